"""What a scenario says of a Flower app."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from fedsim.flower.timing import SamplesTime, TimeSpec
from fedsim.language.imports import refuse_code
from fedsim.language.units import PositiveSeconds
from fedsim.strategies.base import StrategyParams
from fedsim.world.population import PopulationSpec


class FlowerParams(StrategyParams):
    """What a Flower app takes.

    Attributes:
        app: its folder, with a ``pyproject.toml`` as ``flwr run`` reads it.
        run_config: keys of its run configuration that are to differ.
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
