"""What a scenario says of a Flower app."""

import os
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from fedsim.errors import ScenarioError
from fedsim.flower.app import Value, read_app
from fedsim.flower.timing import SamplesTime, TimeSpec
from fedsim.language.imports import refuse_code
from fedsim.language.stop import StopSpec
from fedsim.language.units import PositiveSeconds
from fedsim.strategies.base import StrategyParams
from fedsim.world.population import PopulationSpec

_ROUNDS = ("num-server-rounds", "num_server_rounds", "num-rounds", "num_rounds", "rounds")  # the last word of a dotted key


class FlowerParams(StrategyParams):
    """What a Flower app takes.

    Attributes:
        app: its folder, with a ``pyproject.toml`` as ``flwr run`` reads it.
        run_config: keys of its run configuration that are to differ.
        node_config: what the ClientApp finds in ``context.node_config`` beside ``partition-id`` and ``num-partitions``; a list
            has a value for each device.
        time: how long a device computes for a message: ``samples`` (by the examples that it says it has worked on), ``flops``
            (torch's operations, counted once for each kind of message), or ``stated``.
        accuracy, loss, train_loss: the names of the app's metrics that are meant; of clients the mean by examples.
        unavailable_after: how long the server waits for a device that has vanished until it takes it as unavailable.
        client_errors: what an exception of the ClientApp does: ``stop`` the run, or ``reply`` with an error, as Flower does.
        real_patience: real time for which either app may compute at a stretch.
    """

    kind: Literal["flower"] = "flower"
    app: str
    run_config: dict[str, Any] = Field(default_factory=dict)
    node_config: dict[str, Value | list[Value]] = Field(default_factory=dict)
    time: TimeSpec = SamplesTime()
    accuracy: str = "accuracy"
    loss: str = "loss"
    train_loss: str = "train_loss"
    unavailable_after: PositiveSeconds = 60.0
    client_errors: Literal["stop", "reply"] = "stop"
    real_patience: PositiveSeconds = 600.0

    brings_learning: ClassVar[bool] = True

    @field_validator("app")
    @classmethod
    def _allowed(cls, app: str) -> str:
        refuse_code(app, "app")  # the section's name comes before it
        return app

    def check(self, devices: int) -> None:
        """See ``StrategyParams``."""
        for key, value in self.node_config.items():
            if isinstance(value, list) and len(value) != devices:
                raise ScenarioError(
                    f"strategy.node_config.{key} has {len(value)} values, and population.devices is {devices}; "
                    "allowed are one value for all devices, or a list with one for each"
                )

    def node_config_of(self, device: int, devices: int) -> dict[str, Value]:
        """What a device is told of itself."""
        own = {key: value[device] if isinstance(value, list) else value for key, value in self.node_config.items()}
        return {"partition-id": device, "num-partitions": devices} | own

    def horizon(self, stop: StopSpec) -> StopSpec:
        """The app's own number of rounds; nothing where it names none, since it may end at any time."""
        config = read_app(self.app, self.run_config).config
        keys = (key for key, value in config.items() if key.rpartition(".")[2] in _ROUNDS and type(value) is int and value > 0)
        planned = config.get(next(keys, ""))
        if planned is None:
            return stop.model_copy(update={"rounds": None, "simulated_time": None})
        return stop.model_copy(update={"rounds": min(int(planned), stop.rounds or int(planned))})

    @property
    def notes(self) -> list[str]:
        """See ``StrategyParams``."""
        if "FLWR_LOG_LEVEL" in os.environ:
            return []
        return ["Flower's log, and what an app writes into it, is shown from WARNING on; FLWR_LOG_LEVEL=INFO shows the rest"]

    @property
    def called(self) -> str:
        """See ``StrategyParams``."""
        return f"a Flower app, {self.app!r},"

    @property
    def not_restorable(self) -> str | None:
        """A thread cannot be saved."""
        return "a Flower app keeps what it knows in a running thread"

    def check_population(self, population: PopulationSpec) -> None:
        """See ``StrategyParams``."""
        self.time.check(population)
