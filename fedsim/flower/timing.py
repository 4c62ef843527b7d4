"""How long a device computes for a message: by the examples that it says it has worked on, by FLOPs, or as stated."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import Seconds
from fedsim.world.population import PopulationSpec
from fedsim.world.task import Work

_FORWARD_SHARE = 1 / 3  # of a training step: forward, and backward at twice that
_EPOCHS = ("local-epochs", "local_epochs", "epochs")  # the last word of a dotted key
_FAR = 1.5  # a factor between the samples that count and those that a model was given

Counts = Literal["flops", "samples"]
"""What is counted while a ClientApp works: torch's operations, or the samples that its model is given."""


class SamplesTime(Spec):
    """As long as training takes on the examples that the reply tells of (``num-examples``), by the device's speed.

    A message that is no training takes a third of that an example, as a forward pass does.

    Attributes:
        passes: over those examples; None: what the message or the app's run configuration calls ``local-epochs``, else 1.
    """

    kind: Literal["samples"] = "samples"
    passes: float | None = Field(default=None, ge=0.0, le=1e6)
    counts: ClassVar[Counts | None] = "samples"

    def check(self, population: PopulationSpec) -> None:
        """Refuse devices whose speed is not in samples.

        Raises:
            ScenarioError: names the key.
        """
        if population.device is not None:
            raise ScenarioError(
                "strategy.time is 'samples', but the kinds of population.device know FLOPs only; say strategy.time = 'flops'"
            )

    def work(self, kind: str, examples: float, flops: float | None, config: Mapping[str, Any]) -> Work | None:
        """What a device does for a message of a kind; None for nothing."""
        factor = self.passes_over(config)[0] if kind.partition(".")[0] == "train" else _FORWARD_SHARE
        return Work(samples=examples * factor, what=kind) if examples * factor else None

    def passes_over(self, config: Mapping[str, Any]) -> tuple[float, str]:
        """How often training passes over the examples, and what says so."""
        if self.passes is not None:
            return self.passes, "strategy.time.passes"
        for name in _EPOCHS:
            for key, value in config.items():
                if key.rpartition(".")[2] == name and isinstance(value, int | float) and not isinstance(value, bool):
                    return float(value), key
        return 1.0, "no key local-epochs"


class SamplesTaken:
    """What devices were taken to compute for where time goes by samples, and whether that can be true.

    Args:
        time: by which they go.
    """

    def __init__(self, time: SamplesTime) -> None:
        self._time = time
        self._ranges: dict[str, tuple[float, float, str]] = {}
        self._warnings: dict[str, str] = {}

    def note(self, kind: str, config: Mapping[str, Any], examples: float | None, given: float | None) -> None:
        """A reply to a message of a kind.

        Args:
            kind: the message's.
            config: the message's and the run's.
            examples: that the reply tells of; None: it tells of none.
            given: samples that the ClientApp's model was given; None where they were not counted, 0 where torch was not used.
        """
        if examples is None:
            message = f"replies to {kind!r} messages give no num-examples: such a message takes a device no time"
            self._warnings.setdefault(kind, f"{message}, or that of population.samples; strategy.time can state another")
            return
        trains = kind.partition(".")[0] == "train"
        passes, source = self._time.passes_over(config) if trains else (1.0, "")
        least, most, _ = self._ranges.get(kind, (examples, examples, ""))
        factor = f" x {passes:g} ({source})" if trains else " / 3 (no training)"
        self._ranges[kind] = min(least, examples), max(most, examples), factor
        taken = examples * passes
        if given and not taken / _FAR <= given <= taken * _FAR:
            far = f"{given / max(taken, 1):.3g} times too short" if given > taken else f"{taken / given:.3g} times too long"
            message = f"a {kind!r} message counts as {taken:g} samples, but the ClientApp's model was given {given:g}"
            hint = f"; strategy.time.passes = {given / examples:g} would fit" if trains and examples else ""
            self._warnings.setdefault(kind, f"{message}: its time is {far} (is num-examples a count of samples?){hint}")

    @property
    def warnings(self) -> list[str]:
        """One for each kind of message whose time is doubtful."""
        return list(self._warnings.values())

    @property
    def notes(self) -> Iterator[str]:
        """What was taken, by the kind of message."""
        for kind, (least, most, factor) in self._ranges.items():
            between = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            yield f"time by samples: a {kind!r} message took num-examples ({between}){factor}"


class FlopsTime(Spec):
    """As long as torch's operations take at the device's FLOP/s: counted in the first message of a kind, then by examples."""

    kind: Literal["flops"] = "flops"
    counts: ClassVar[Counts | None] = "flops"

    def check(self, population: PopulationSpec) -> None:
        """Refuse devices of which nobody knows how many FLOPs they do in a second.

        Raises:
            ScenarioError: names the key.
        """
        if population.device is None and population.reference_flops is None:
            raise ScenarioError(
                "strategy.time is 'flops', but nothing says how many FLOPs a device does in a second; give population.device, "
                "or population.speed with population.reference_flops"
            )

    def work(self, kind: str, examples: float, flops: float | None, config: Mapping[str, Any]) -> Work | None:
        """What a device does for a message of a kind; None for nothing."""
        return Work(flops=flops * max(examples, 1.0), what=kind) if flops else None


class Cost(Spec):
    """What a message costs: what is said of it adds up."""

    samples: float = Field(default=0.0, ge=0.0, le=1e15)
    flops: float = Field(default=0.0, ge=0.0, le=1e30)
    seconds: Seconds = 0.0


class StatedTime(Spec):
    """What the scenario says, whatever a device really does.

    Attributes:
        train, evaluate, query: the cost of messages of that category.
    """

    kind: Literal["stated"] = "stated"
    train: Cost = Cost()
    evaluate: Cost = Cost()
    query: Cost = Cost()
    counts: ClassVar[Counts | None] = None

    def check(self, population: PopulationSpec) -> None:
        """Refuse costs that devices have no speed for.

        Raises:
            ScenarioError: names the key.
        """
        costs = {name: getattr(self, name) for name in ("train", "evaluate", "query")}
        for name, cost in costs.items():
            if cost.flops and population.device is None and population.reference_flops is None:
                raise ScenarioError(f"strategy.time.{name}.flops needs population.device, or population.reference_flops")
            if cost.samples and population.device is not None:
                raise ScenarioError(f"strategy.time.{name}.samples needs population.speed; kinds of devices know FLOPs only")

    def work(self, kind: str, examples: float, flops: float | None, config: Mapping[str, Any]) -> Work | None:
        """What a device does for a message of a kind; None for nothing."""
        category = kind.partition(".")[0]
        cost = getattr(self, category if category in ("train", "evaluate") else "query")
        work = Work(cost.samples, cost.flops, cost.seconds, kind)
        return work if work.samples or work.flops or work.seconds else None


TimeSpec = Annotated[SamplesTime | FlopsTime | StatedTime, Registry.of("time", SamplesTime, FlopsTime, StatedTime)]
