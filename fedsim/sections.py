"""The sections of a scenario, and what they must say of each other to be run.

Each section is a ``Spec`` in the module of its rule.
"""

from itertools import starmap
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedsim.checkpoint import CheckpointSpec
from fedsim.data.shifts import ShiftSpec
from fedsim.data.spec import DataSpec
from fedsim.energy.spec import EnergySpec
from fedsim.errors import ScenarioError, nearest
from fedsim.evaluation.evaluator import EvaluationSpec
from fedsim.federation.codecs import MessagesSpec, Plain
from fedsim.federation.costs import ServerSpec
from fedsim.federation.malicious import MaliciousSpec
from fedsim.language.spec import Spec
from fedsim.language.stop import StopSpec
from fedsim.learning.metrics import EvaluationMetric, reported_metric
from fedsim.learning.models import Logistic, ModelSpec
from fedsim.learning.objectives import Classification, ObjectiveSpec
from fedsim.learning.spec import TrainerSpec, TrainingSpec
from fedsim.meters.base import MeterContext, Meters
from fedsim.meters.spec import METERS, CostsSpec, MeterSpec
from fedsim.strategies import STRATEGIES
from fedsim.strategies.base import StrategyParams
from fedsim.strategies.fedavg import FedAvgParams
from fedsim.strategies.parts.aggregation import Mean, Weighted
from fedsim.world.network import NetworkSpec, StarSpec
from fedsim.world.population import PopulationSpec
from fedsim.world.processes import WorldSpec

OF_LEARNING = ("learning", "data", "model", "objective", "training", "drift", "malicious", "messages", "evaluation")


class Sections(Spec):
    """The sections of a scenario.

    Attributes:
        name: for people; it goes into reports, never into a path or a command.
        seed: one seed gives every strategy the same world.
        learning: ``on``, or ``off`` for time and bytes only.
        data: the samples, and which device holds which.
        model: what is trained.
        objective: what it learns to give for a sample, its loss, and the metrics of tests.
        training: how a client trains: a kind of trainer, its rates and batches.
        population: how many devices, how fast, and when they can be reached.
        network: the links between the server and the devices.
        world: processes of the world, such as outages.
        energy: power draw and batteries of devices; None: not counted, and no device has a battery.
        costs: prices of hours, bytes, messages and tasks; None: there is no bill.
        meters: further meters, each a kind, a table with a kind and its parameters, or a class by import path.
        drift: how data change during the run; None: they do not.
        malicious: devices that attack the learning; None: there are none.
        messages: codecs of models on the wire.
        server: its computing time, and its timeout for lost clients.
        strategy: the federated learning algorithm, and what it takes.
        evaluation: when and how accuracy is measured.
        stop: when the run ends.
        checkpoint: when the run is saved on the way.
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
    meters: list[Annotated[MeterSpec, METERS]] = Field(default_factory=list)
    drift: ShiftSpec | None = None
    malicious: MaliciousSpec | None = None
    messages: MessagesSpec = MessagesSpec()
    server: ServerSpec = ServerSpec()
    strategy: Annotated[StrategyParams, STRATEGIES] = FedAvgParams()
    evaluation: EvaluationSpec = EvaluationSpec()
    stop: StopSpec = StopSpec(rounds=100)
    checkpoint: CheckpointSpec = CheckpointSpec()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        strategy, population, network = self.strategy, self.population, self.network
        named = f"strategy.kind is {strategy.kind!r}"
        strategy.check(population.devices)
        strategy.check_population(population)
        if strategy.brings_learning:
            for section in (name for name in OF_LEARNING if name in self.model_fields_set):
                raise ScenarioError(
                    f"{section} is not used by strategy.kind = {strategy.kind!r}, which brings its own; leave it out"
                )
        elif population.samples is not None and self.learning == "on":
            raise ScenarioError('population.samples gives sizes without data; allowed with learning = "off" only')
        if strategy.at_edges and not network.edge_servers:
            raise ScenarioError(
                f"{named}, which needs edge servers, and the network has none; allowed with network.kind "
                '"tree" or "graph" and a table network.edge ("edge = {}")'
            )
        if strategy.at_edges:
            strategy.check_edges(network.edge_servers)
        if strategy.serverless:
            self._check_serverless()
        if self.malicious is not None:
            self.malicious.check(population.devices)
        self._check_messages()
        self._check_objective()
        self._check_training()
        if self.drift is not None and population.samples is not None:
            raise ScenarioError("population.samples gives sizes without data, so there is nothing for [drift] to change")
        if population.capacity is not None and network.has_device_rates:
            raise ScenarioError("population.capacity and network.device both say how fast links are; give one of them")
        if population.host is not None and self.energy is not None and self.energy.battery is not None:
            raise ScenarioError("population.host and energy.battery: devices that share a machine have no battery of their own")
        if self.not_restorable and (self.checkpoint.rounds or self.checkpoint.time):
            raise ScenarioError(f"[checkpoint] asks for a run that can be resumed, but {self.not_restorable}")
        return self

    def _check_messages(self) -> None:
        """Refuse codecs that cannot write what the strategy sends."""
        strategy, up, down = self.strategy, self.messages.up, self.messages.down
        if getattr(strategy, "secure_aggregation", None) is not None and up.kind != "plain":
            raise ScenarioError(
                f"messages.up is {up.kind!r} and strategy.secure_aggregation is given: masked numbers are all "
                "alike to a codec, and must be sent in full; allowed is 'plain'"
            )
        if strategy.plain_down and down.kind != "plain":
            said = f"messages.down is {down.kind!r}, and strategy.kind {strategy.kind!r} sends no model down"
            raise ScenarioError(f"{said}; allowed is 'plain'")
        for key, aggregation in strategy.aggregations.items():
            if why := aggregation.why_not(up):
                raise ScenarioError(f"messages.up is {up.kind!r} and strategy.{key} is {aggregation.kind!r}: the codec {why}")
        if strategy.resizes and getattr(up, "error_feedback", False):
            raise ScenarioError(
                f"messages.up is {up.kind!r} with error_feedback, and strategy.redraw gives a device's next update another "
                "size; allowed is error_feedback = false"
            )
        usual, feedback = type(up).model_fields.get("error_feedback"), getattr(up, "error_feedback", None)
        if usual is not None and "update" in strategy.added_up and feedback != usual.default:
            raise ScenarioError(
                f"messages.up has error_feedback = {str(feedback).lower()}, and with {strategy.called} that "
                "changes nothing: its devices go by what has arrived, and what was left out is in the next update; leave it out"
            )

    def _check_objective(self) -> None:
        """Refuse what the objective has no numbers for."""
        objective, known = self.objective, ["loss", *(metric.name for metric in self.figures)]
        here = f"objective.kind = {objective.kind!r}"
        for name in self.stop.metrics:
            if name not in known:
                allowed = f"{', '.join(known)}{nearest(name, known)}"
                raise ScenarioError(
                    f"stop.metrics has {name!r}; with objective.metrics = {objective.metrics} allowed are {allowed}"
                )
        if not objective.has_accuracy and self.stop.accuracy is not None:
            raise ScenarioError(
                f"stop.accuracy is {self.stop.accuracy:g}; with {here} no answer is right or wrong: allowed is stop.metrics, "
                f"of {', '.join(known)}"
            )
        if not objective.has_accuracy and (key := self.strategy.needs_accuracy):
            raise ScenarioError(f"{key}, which goes by accuracies, and with {here} there are none")
        smoothing = getattr(self.training, "label_smoothing", 0.0)
        if smoothing and (objective.loss is not None or not objective.of_entropy):
            raise ScenarioError(
                f"training.label_smoothing is {smoothing:g}, which is of the cross-entropy, and {here} has another loss here; "
                "allowed is 0"
            )
        others = objective.kind != "classification" or self.data.column is not None
        if others and self.malicious is not None and self.malicious.attack.flips_labels:
            raise ScenarioError("malicious.attack turns labels around, and models learn other targets here")

    def _check_training(self) -> None:
        """Refuse a model or a trainer that the strategy cannot use, and a state that cannot be sent."""
        strategy, training, messages = self.strategy, self.training, self.messages
        if self.learning == "on" and not self.model.learnable:
            raise ScenarioError(
                f'model.kind is {self.model.kind!r}, which has no weights to learn; allowed with learning = "off" only'
            )
        if self.model.says_what_stays and strategy.kept_by != "scenario":
            how = "says so itself" if strategy.kept_by == "strategy" else "sends them all"
            raise ScenarioError(
                "model.keep or model.send says which tensors stay on the devices; not for strategy.kind = "
                f"{strategy.kind!r}, which {how}; allowed are fedavg and fedprox"
            )
        if self.learning == "on" and not training.steps_along_gradient and (why := strategy.counts_steps):
            raise ScenarioError(
                f"training.kind is {training.kind!r}, by which a step is not one along a gradient, and not for "
                f"{strategy.called}: {why}; allowed are 'sgd', and 'torch' with the optimiser 'SGD' and nothing that "
                "changes its steps"
            )
        if training.state != "sent":
            return
        aggregation, name = getattr(strategy, "aggregation", None), getattr(training, "optimiser", training.kind)
        needed = {
            f"the trainer is {name!r}, of whose state no size is known": training.state_numbers({"": (2, 2)}) > 0,
            f"strategy.kind is {strategy.kind!r}": vars(type(strategy)).get("mixes_states", False),
            "strategy.server is given": getattr(strategy, "server", None) is None,
            f"strategy.aggregation is {getattr(aggregation, 'kind', None)!r}": type(aggregation) in (Weighted, Mean),
            "strategy.secure_aggregation is given": getattr(strategy, "secure_aggregation", None) is None,
            f"messages.down is {messages.down.kind!r}": isinstance(messages.down, Plain),
            f"messages.up is {messages.up.kind!r}": isinstance(messages.up, Plain),
            "malicious is given": self.malicious is None,
            "model.keep or model.send is given": not self.model.says_what_stays,
        }
        for said, holds in needed.items():
            if not holds:
                raise ScenarioError(
                    f"training.state is 'sent' and {said}; allowed are moments (as Adam's) and 'fedavg' or 'fedprox', "
                    "'weighted' or 'mean', without codecs, server optimiser, secure aggregation, attack and kept tensors"
                )

    def _check_serverless(self) -> None:
        """Refuse sections that need a server."""
        up = self.messages.up
        of_changes = "down" not in up.ways or getattr(up, "error_feedback", False)
        codec = f"which writes changes of a model ({up.kind!r}), or keeps what it leaves out; not between devices"
        wrong = {
            "messages.up": of_changes and codec,
            "energy": self.energy is not None and "which counts what tasks alone draw",
            "server": self.server != ServerSpec() and "which is how long a server computes and waits",
            "messages.down": self.messages.down.kind != "plain" and "which is how a server writes models",
            "network.edge": bool(self.network.edge_servers) and "which are servers",
        }
        for key, why in wrong.items():
            if why:
                said = f"{key} is given, {why}"
                raise ScenarioError(f"{said}; not for strategy.kind = {self.strategy.kind!r}, which has no server")

    @property
    def figures(self) -> list[EvaluationMetric]:
        """Metrics of tests, and numbers of trainers that are columns of rounds."""
        return [*self.objective.figures, *starmap(reported_metric, self.training.reports.items())]

    @property
    def not_restorable(self) -> str | None:
        """The reason why a run cannot be resumed; None if it can."""
        return self.world.not_restorable or self.strategy.not_restorable

    def meters_in(self, context: MeterContext) -> Meters:
        """The meters of a run in such a world.

        Raises:
            ScenarioError, DataError: a meter cannot be made there.
        """
        sections = {"energy": self.energy, "costs": self.costs}
        built = {name: spec.build(context) for name, spec in sections.items() if spec is not None}
        return Meters(built, [spec.build(context) for spec in self.meters])
