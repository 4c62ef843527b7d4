"""The sections of a scenario, each a ``Spec`` from the module that implements it."""

from itertools import starmap
from typing import Annotated, Literal

from pydantic import Field

from fedsim.common.kind_field import KindField
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.federation.costs import ServerSpec
from fedsim.federation.evaluation_spec import EvaluationSpec
from fedsim.federation.malicious import MaliciousSpec
from fedsim.federation.messages_spec import MessagesSpec
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
from fedsim.strategies.fedavg import FedAvgParams
from fedsim.strategies.params import StrategyParams
from fedsim.world.energy.spec import EnergySpec
from fedsim.world.meters.base import Meter, MeterContext, Meters
from fedsim.world.meters.spec import METERS, CostsSpec, MeterSpec
from fedsim.world.network import NetworkSpec, StarSpec
from fedsim.world.population_spec import PopulationSpec
from fedsim.world.processes import WorldSpec


class Sections(Spec):
    """Base of ``Scenario``: the sections of a scenario as typed attributes.

    Attributes:
        name: title in reports; never part of a path or a command.
        seed: seed of all random draws. Scenarios with equal seeds give every strategy the same
            devices, network and data.
        learning: ``on``, or ``off`` for time and bytes only.
        data: the data source, and the partition over devices.
        model: the model.
        objective: the targets of the model, its loss, and the test metrics.
        training: local training: the kind of trainer, learning rate, batch size.
        population: the number of devices, their speed and availability.
        network: the links between the server and the devices.
        world: processes of the world, such as outages.
        energy: power draw and batteries of devices; None: energy is not counted, and no device has
            a battery.
        costs: prices of hours, bytes, messages and tasks; None: costs are not counted.
        meters: additional meters, each a kind, a table with a kind and its parameters, or a class
            by import path.
        drift: data shifts during the run; None: data do not shift.
        malicious: devices that attack the learning; None: no device attacks.
        messages: codecs of models in messages.
        server: the server's computing time, and its timeout for lost clients.
        strategy: the federated learning algorithm and its parameters.
        evaluation: when and how accuracy is measured.
        stop: when the run ends.
        checkpoint: when the state of the run is saved, so that the run can be resumed.
    """

    name: str = Field(default="unnamed", max_length=200)
    seed: int = Field(default=1, ge=0)
    learning: Literal["on", "off"] = "on"
    data: DataSpec = DataSpec()
    model: ModelSpec = Logistic()
    objective: ObjectiveSpec = Classification()
    training: TrainerSpec = TrainingSpec()
    population: PopulationSpec = PopulationSpec()
    network: NetworkSpec = StarSpec()
    world: WorldSpec = WorldSpec()
    energy: EnergySpec | None = None
    costs: CostsSpec | None = None
    meters: list[Annotated[MeterSpec, KindField(METERS)]] = Field(default_factory=list)
    drift: ShiftSpec | None = None
    malicious: MaliciousSpec | None = None
    messages: MessagesSpec = MessagesSpec()
    server: ServerSpec = ServerSpec()
    strategy: Annotated[StrategyParams, KindField(STRATEGIES)] = FedAvgParams()
    evaluation: EvaluationSpec = EvaluationSpec()
    stop: StopSpec = StopSpec(rounds=100)
    checkpoint: CheckpointSpec = CheckpointSpec()

    @property
    def figures(self) -> list[EvaluationMetric]:
        """Metrics with a column in the table of rounds, from tests and from trainers' reports."""
        reported = starmap(reported_metric, self.training.reports.items())
        return [*self.objective.figures, *reported]

    @property
    def not_restorable(self) -> str | None:
        """Text for the user on why a run of the scenario cannot be resumed; None if it can."""
        return self.world.not_restorable or self.strategy.why_not.resuming

    def meters_in(self, context: MeterContext) -> Meters:
        """Build the meters of a run: the meters of energy and of costs, and the user's own.

        A meter counts a quantity, and adds columns to the tables of rounds and of devices.

        Args:
            context: properties of the run's world.

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
