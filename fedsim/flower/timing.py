"""How long a device computes for a message: by the examples that it says it has worked on, by FLOPs, or as stated."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from fedsim.errors import ScenarioError
from fedsim.language.spec import Spec
from fedsim.language.units import Seconds
from fedsim.world.population import PopulationSpec
from fedsim.world.task import Work

_FORWARD_SHARE = 1 / 3  # of a training step: forward, and backward at twice that
_EPOCHS = ("local-epochs", "local_epochs", "epochs")


class SamplesTime(Spec):
    """As long as training takes on the examples that the reply tells of (``num-examples``), by the device's speed.

    A message that is no training takes a third of that an example, as a forward pass does.

    Attributes:
        passes: over those examples; None: what the app's run configuration calls ``local-epochs``, else 1.
    """

    kind: Literal["samples"] = "samples"
    passes: float | None = Field(default=None, ge=0.0, le=1e6)
    counts_flops: ClassVar[bool] = False

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
        passes = self.passes
        if passes is None:
            passes = next((float(config[name]) for name in _EPOCHS if isinstance(config.get(name), int | float)), 1.0)
        factor = passes if kind.partition(".")[0] == "train" else _FORWARD_SHARE
        return Work(samples=examples * factor, what=kind) if examples * factor else None


class FlopsTime(Spec):
    """As long as torch's operations take at the device's FLOP/s: counted in the first message of a kind, then by examples."""

    kind: Literal["flops"] = "flops"
    counts_flops: ClassVar[bool] = True

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
    counts_flops: ClassVar[bool] = False

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


def _spelled_out(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


TimeSpec = Annotated[SamplesTime | FlopsTime | StatedTime, Field(discriminator="kind"), BeforeValidator(_spelled_out)]
