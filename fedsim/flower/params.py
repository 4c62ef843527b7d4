"""Scenario keys of ``kind = "flower"``, and simulated compute times of an app's messages."""

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.imports import refuse_code
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.common.units import PositiveSeconds, Seconds
from fedsim.flower.app import Value, read_app
from fedsim.strategies.params import StrategyParams
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.traits import Traits
from fedsim.world.population_spec import PopulationSpec
from fedsim.world.steps import Work

# keys of run configurations, without the sections of a dotted key
_ROUNDS_KEYS = ("num-server-rounds", "num_server_rounds", "num-rounds", "num_rounds", "rounds")
_EPOCHS_KEYS = ("local-epochs", "local_epochs", "epochs")
# time of a forward pass as a share of a training step, whose backward pass takes twice as long
_FORWARD_SHARE = 1 / 3
_WARNING_RATIO = 1.5  # ratio between charged and counted samples above which a run warns


Config = Mapping[str, object]  # key -> value, in the config of a message or of a run


def is_training(kind: str) -> bool:
    """Return whether ``kind`` is ``train`` or ``train.NAME``, Flower's types of messages."""
    return kind.partition(".")[0] == "train"


class SamplesTime(Spec):
    """Compute time of a message by samples: ``num-examples`` x passes, at the device's samples/s.

    ``num-examples`` is a metric of the ClientApp's reply. A message of any other type than
    ``train`` takes a third of the time of one pass, as it has no backward pass.

    Attributes:
        passes: passes of a training over its examples. None: the value of ``local-epochs`` in the
            message's config or in the app's run configuration, or 1 if neither has this key.
    """

    kind: Literal["samples"] = "samples"
    passes: float | None = Field(default=None, ge=0.0, le=1e6)

    def work(self, kind: str, examples: float, flops: float | None, config: Config) -> Work | None:
        """Return the simulated work that a device does for a message.

        For a training it is ``examples`` times the count of passes (``passes_over``), in samples. For
        any other message, such as an evaluation, it is a third of ``examples``: a forward pass has a
        third of the cost of a training step.

        Args:
            kind: Flower's type of the message, such as ``train``.
            examples: count of examples in the reply.
            flops: FLOPs for an example, which only ``FlopsTime`` uses.
            config: the message's config, and the app's run configuration.

        Returns:
            The work; None if it is 0 samples.
        """
        factor = _FORWARD_SHARE
        if is_training(kind):
            factor, _ = self.passes_over(config)
        samples = examples * factor
        if not samples:
            return None
        return Work(samples=samples, what=kind)

    def passes_over(self, config: Config) -> tuple[float, str]:
        """Return how often a training passes over its examples (the count of epochs).

        The count is ``strategy.time.passes``. If that is None, it is the value of a key of the
        config such as ``local-epochs``, or 1 without such a key.

        Args:
            config: the message's config, and the app's run configuration.

        Returns:
            The count of passes, and the name of the key that sets it, for messages to the user.
        """
        if self.passes is not None:
            return self.passes, "strategy.time.passes"
        for name in _EPOCHS_KEYS:
            for key, value in config.items():
                if key.rpartition(".")[2] != name or isinstance(value, bool):
                    continue
                if isinstance(value, int | float):
                    return float(value), key
        return 1.0, "no key local-epochs"


class SamplesTaken:
    """Collector of notes and warnings for the user about ``strategy.time = "samples"``.

    The simulated time of a message then follows from the metric ``num-examples`` of its reply. For
    each type of message a note gives the range of this metric. There is a warning if the count of
    samples that the ClientApp's model received differs from it by a factor of more than 1.5.

    Args:
        time: the scenario's ``strategy.time``.
    """

    def __init__(self, time: SamplesTime) -> None:
        self._time = time
        # type of message -> least and greatest num-examples of the replies, and a text about the
        # factor by which they are multiplied
        self._ranges: dict[str, tuple[float, float, str]] = {}
        self._warnings: dict[str, str] = {}

    def note(
        self, kind: str, config: Config, examples: float | None, counted: float | None
    ) -> None:
        """Record the sample count of a reply, and add warnings about it.

        There is a warning if the reply has no sample count, or if the sample count (for a training:
        times its passes) is above or below ``counted`` by a factor of more than 1.5.

        Args:
            kind: Flower's type of the message, such as ``train``.
            config: the message's config, and the app's run configuration.
            examples: the reply's metric ``num-examples``; None if the reply has no such metric.
            counted: count of samples that the ClientApp's model received; None if they were not
                counted, 0 if the app called no torch module.
        """
        if examples is None:
            message = (
                f"replies to {kind!r} messages give no num-examples: they take the time of "
                "population.samples, if any"
            )
            self._warnings.setdefault(kind, message)
            return
        passes = 1.0
        factor_text = " / 3 (no training)"
        if is_training(kind):
            passes, key = self._time.passes_over(config)
            factor_text = f" x {passes:g} ({key})"
        # the least and the greatest count of examples so far
        least, most, _ = self._ranges.get(kind, (examples, examples, ""))
        self._ranges[kind] = min(least, examples), max(most, examples), factor_text
        expected = examples * passes
        if not counted:  # not counted, or the app has called no torch module
            return
        is_close = expected / _WARNING_RATIO <= counted <= expected * _WARNING_RATIO
        if not is_close:
            self._warn(kind, examples, expected, counted)

    def _warn(self, kind: str, examples: float, expected: float, counted: float) -> None:
        """Add a warning that a message takes the time of more or fewer samples than were computed.

        Args:
            kind: Flower's type of the message.
            examples: count of examples in the reply.
            expected: count of samples whose time the message takes.
            counted: count of samples that the ClientApp's model received.
        """
        error = f"{expected / counted:.3g} times too long"
        if counted > expected:
            error = f"{counted / max(expected, 1):.3g} times too short"
        hint = ""
        if is_training(kind) and examples:
            hint = f"; strategy.time.passes = {counted / examples:g} would fit"
        message = (
            f"a {kind!r} message counts as {expected:g} samples, but the ClientApp's model was "
            f"given {counted:g}: its time is {error} (is num-examples a count of samples?){hint}"
        )
        self._warnings.setdefault(kind, message)

    def facts(self) -> dict[str, list[str]]:
        """Return the collected sentences for the user.

        Returns:
            Two lists of sentences: ``notes``, one for each type of message, and ``warnings``.
        """
        notes = []
        for kind, (least, most, factor_text) in self._ranges.items():
            examples = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            notes.append(
                f"time by samples: a {kind!r} message took num-examples ({examples}){factor_text}"
            )
        return {"notes": notes, "warnings": list(self._warnings.values())}


class FlopsTime(Spec):
    """Compute time of a message by the FLOPs of torch's operations, at the device's FLOP/s.

    FLOPs are counted in the first message of each type. Later messages of the type have FLOPs in
    proportion to ``num-examples`` in their replies.
    """

    kind: Literal["flops"] = "flops"

    def work(self, kind: str, examples: float, flops: float | None, config: Config) -> Work | None:
        if not flops:
            return None
        return Work(flops=flops * max(examples, 1.0), what=kind)


class MessageCost(Spec):
    """Time that a device computes for a message, as the scenario states it.

    Attributes:
        seconds: the time (s).
    """

    seconds: Seconds = 0.0


class StatedTime(Spec):
    """Compute time of a message as the scenario states it, equal on every device.

    Attributes:
        train, evaluate, query: time of Flower's messages of this type; ``query`` is also for all
            other types.
    """

    kind: Literal["stated"] = "stated"
    train: MessageCost = MessageCost()
    evaluate: MessageCost = MessageCost()
    query: MessageCost = MessageCost()

    def work(self, kind: str, examples: float, flops: float | None, config: Config) -> Work | None:
        costs = {"train": self.train, "evaluate": self.evaluate}
        cost = costs.get(kind.partition(".")[0], self.query)
        if not cost.seconds:
            return None
        return Work(seconds=cost.seconds, what=kind)


TimeSpec = Annotated[
    SamplesTime | FlopsTime | StatedTime,
    KindField(Registry.of("time", SamplesTime, FlopsTime, StatedTime)),
]


class FlowerParams(StrategyParams):
    """Keys of ``[strategy]`` for a Flower app (``kind = "flower"``).

    Attributes:
        app: folder of the app, with a ``pyproject.toml`` as ``flwr run`` reads it.
        run_config: changes of the app's run configuration.
        node_config: additions to ``context.node_config`` of the ClientApp; a list has a value
            for each device.
        time: how long a device computes for a message: by ``samples`` (the reply's
            ``num-examples``), by ``flops`` (torch's operations, counted once for each type of
            message), or as ``stated`` in the scenario.
        accuracy, loss, train_loss: the app's name of the metric that goes into this column of the
            run's rounds. Metrics of clients are averaged, weighted by examples.
        unavailable_after: time for which the server waits for a device that has disconnected (s).
        real_patience: real time that the ServerApp may compute between two waits, or the ClientApp
            for a message (s); the run fails if it takes longer.
    """

    kind: Literal["flower"] = "flower"
    app: str
    run_config: dict[str, object] = Field(default_factory=dict)
    node_config: dict[str, Value | list[Value]] = Field(default_factory=dict)
    time: TimeSpec = SamplesTime()
    accuracy: str = "accuracy"
    loss: str = "loss"
    train_loss: str = "train_loss"
    unavailable_after: PositiveSeconds = 60.0
    real_patience: PositiveSeconds = 600.0

    traits: ClassVar[Traits] = Traits(brings_learning=True)
    why_not: ClassVar[Reasons] = Reasons(
        resuming="a Flower app keeps what it knows in a running thread"
    )

    @field_validator("app")
    @classmethod
    def _refuse_code(cls, app: str) -> str:
        refuse_code(app, "app")  # error messages put the section's name before the key
        return app

    def node_config_of(self, device: int, devices: int) -> dict[str, Value]:
        """Return the ``context.node_config`` of a device's ClientApp.

        Args:
            device: index of the device, from 0.
            devices: count of all devices.

        Returns:
            Flower's ``partition-id`` and ``num-partitions``, and the scenario's ``node_config``.
        """
        config: dict[str, Value] = {"partition-id": device, "num-partitions": devices}
        for key, value in self.node_config.items():
            config[key] = value[device] if isinstance(value, list) else value
        return config

    def horizon(self, stop: StopSpec) -> StopSpec:
        """Return the stop conditions from which the display of a run estimates its remaining time.

        The app ends the run after the rounds in its run configuration (such as
        ``num-server-rounds``). The result has this count of rounds, or ``stop.rounds`` if that is
        smaller. If the configuration has no count of rounds, the end is unknown, and the result has
        neither ``rounds`` nor ``simulated_time``.

        Args:
            stop: the scenario's section ``[stop]``.
        """
        for key, value in read_app(self.app, self.run_config).config.items():
            if key.rpartition(".")[2] in _ROUNDS_KEYS and type(value) is int and value > 0:
                rounds = value if stop.rounds is None else min(value, stop.rounds)
                return stop.model_copy(update={"rounds": rounds})
        return stop.model_copy(update={"rounds": None, "simulated_time": None})

    @property
    def notes(self) -> list[str]:
        if "FLWR_LOG_LEVEL" in os.environ:
            return []
        return [
            "Flower's log, and what an app writes into it, is shown from WARNING on; "
            "FLWR_LOG_LEVEL=INFO shows the rest"
        ]

    @property
    def called(self) -> str:
        return f"a Flower app, {self.app!r},"

    def check_population(self, population: PopulationSpec) -> None:
        for key, value in self.node_config.items():
            if isinstance(value, list) and len(value) != population.devices:
                raise ScenarioError(
                    f"strategy.node_config.{key} has {len(value)} values, and population.devices "
                    f"is {population.devices}; allowed are one value for all devices, or a list "
                    "with one for each"
                )
        if self.time.kind == "samples" and population.device is not None:
            raise ScenarioError(
                "strategy.time is 'samples', but the kinds of population.device know FLOPs only; "
                "say strategy.time = 'flops'"
            )
        knows_flops = population.device is not None or population.reference_flops is not None
        if self.time.kind == "flops" and not knows_flops:
            raise ScenarioError(
                "strategy.time is 'flops', but nothing says how many FLOPs a device does in a "
                "second; give population.device, or population.speed with "
                "population.reference_flops"
            )
