"""The sections of a scenario, each a ``Spec`` from the module that implements it."""

from itertools import starmap
from typing import Annotated, Literal

from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.federation.codecs import MessagesSpec
from fedsim.federation.costs import ServerSpec
from fedsim.federation.evaluation_spec import EvaluationSpec
from fedsim.federation.malicious import MaliciousSpec
from fedsim.learning.data.shifts import ShiftSpec
from fedsim.learning.data.spec import DataSpec
from fedsim.learning.models import Logistic, ModelSpec
from fedsim.learning.objectives import (
    Classification,
    EvaluationMetric,
    ObjectiveSpec,
    reported_metric,
)
from fedsim.learning.spec import TrainerSpec, TrainingSpec
from fedsim.running.checkpoint import CheckpointSpec
from fedsim.strategies import STRATEGIES
from fedsim.strategies.base import StrategyParams
from fedsim.strategies.fedavg import FedAvgParams
from fedsim.world.energy.spec import EnergySpec
from fedsim.world.meters.base import Meter, MeterContext, Meters
from fedsim.world.meters.spec import METERS, CostsSpec, MeterSpec
from fedsim.world.network import NetworkSpec, StarSpec
from fedsim.world.population_spec import PopulationSpec
from fedsim.world.processes import WorldSpec


class Sections(Spec):
    """The sections of a scenario."""

    name: str = Field(default="unnamed", max_length=200)
    """title in reports; never part of a path or a command."""
    seed: int = Field(default=1, ge=0)
    """one seed gives every strategy the same world."""
    learning: Literal["on", "off"] = "on"
    """``on``, or ``off`` for time and bytes only."""
    data: DataSpec = DataSpec()
    """the data source, and the partition over devices."""
    model: ModelSpec = Logistic()
    """the model."""
    objective: ObjectiveSpec = Classification()
    """the targets of the model, its loss, and the test metrics."""
    training: TrainerSpec = TrainingSpec()
    """local training: the kind of trainer, learning rate, batch size."""
    population: PopulationSpec = PopulationSpec()
    """the number of devices, their speed and availability."""
    network: NetworkSpec = StarSpec()
    """the links between the server and the devices."""
    world: WorldSpec = WorldSpec()
    """processes of the world, such as outages."""
    energy: EnergySpec | None = None
    """power draw and batteries of devices; None: not counted, and no device has a battery."""
    costs: CostsSpec | None = None
    """prices of hours, bytes, messages and tasks; None: there is no bill."""
    meters: list[Annotated[MeterSpec, METERS]] = Field(default_factory=list)
    """additional meters, each a kind, a table with a kind and its parameters, or a class by import
    path.
    """
    drift: ShiftSpec | None = None
    """data shifts during the run; None: none."""
    malicious: MaliciousSpec | None = None
    """devices that attack the learning; None: none."""
    messages: MessagesSpec = MessagesSpec()
    """codecs of models on the wire."""
    server: ServerSpec = ServerSpec()
    """the server's computing time, and its timeout for lost clients."""
    strategy: Annotated[StrategyParams, STRATEGIES] = FedAvgParams()
    """the federated learning algorithm and its parameters."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """when and how accuracy is measured."""
    stop: StopSpec = StopSpec(rounds=100)
    """when the run ends."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """when the run is saved on the way."""

    @property
    def figures(self) -> list[EvaluationMetric]:
        """Metrics that are columns of the table of rounds: those of tests and of the trainer."""
        reported = starmap(reported_metric, self.training.reports.items())
        return [*self.objective.figures, *reported]

    @property
    def not_restorable(self) -> str | None:
        """Why a run of this scenario cannot be resumed, as text for the user; None if it can."""
        return self.world.not_restorable or self.strategy.not_restorable

    def meters_in(self, context: MeterContext) -> Meters:
        """Build the meters of a run.

        Args:
            context: the run's world.

        Returns:
            The meters of ``[energy]``, ``[costs]`` and ``meters``.

        Raises:
            ScenarioError, DataError: a meter cannot be built in this world.
        """
        sections: dict[str, Meter] = {}
        if self.energy is not None:
            sections["energy"] = self.energy.build(context)
        if self.costs is not None:
            sections["costs"] = self.costs.build(context)
        return Meters(sections, [spec.build(context) for spec in self.meters])
