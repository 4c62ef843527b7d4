"""The sections of a scenario, each a ``Spec`` from the module of its rule, and the checks across
sections.
"""

from collections.abc import Iterator
from itertools import chain, starmap
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.federation.codecs import MessagesSpec, Plain
from fedsim.federation.costs import ServerSpec
from fedsim.federation.evaluator import EvaluationSpec
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
from fedsim.strategies.parts.aggregation import Mean, Weighted
from fedsim.world.energy.spec import EnergySpec
from fedsim.world.meters.base import MeterContext, Meters
from fedsim.world.meters.spec import METERS, CostsSpec, MeterSpec
from fedsim.world.network import NetworkSpec, StarSpec
from fedsim.world.population import PopulationSpec
from fedsim.world.processes import WorldSpec

OF_LEARNING = (
    "learning",
    "data",
    "model",
    "objective",
    "training",
    "drift",
    "malicious",
    "messages",
    "evaluation",
)


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
    """further meters, each a kind, a table with a kind and its parameters, or a class by import
    path.
    """
    drift: ShiftSpec | None = None
    """data shifts during the run; None: none."""
    malicious: MaliciousSpec | None = None
    """devices that attack the learning; None: none."""
    messages: MessagesSpec = MessagesSpec()
    """codecs of models on the wire."""
    server: ServerSpec = ServerSpec()
    """its computing time, and its timeout for lost clients."""
    strategy: Annotated[StrategyParams, STRATEGIES] = FedAvgParams()
    """the federated learning algorithm and its parameters."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """when and how accuracy is measured."""
    stop: StopSpec = StopSpec(rounds=100)
    """when the run ends."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """when the run is saved on the way."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.strategy.check(self.population.devices)
        self.strategy.check_population(self.population)
        for problem in chain(
            self._of_world(), self._of_messages(), self._of_objective(), self._of_training()
        ):
            raise ScenarioError(problem)
        return self

    def _of_world(self) -> Iterator[str]:
        strategy = self.strategy
        population = self.population
        network = self.network
        kind = repr(self.strategy.kind)
        if strategy.brings_learning:
            for section in (name for name in OF_LEARNING if name in self.model_fields_set):
                yield (
                    f"{section} is not used by strategy.kind = {kind}, which brings its own; leave "
                    "it out"
                )
        elif population.samples is not None and self.learning == "on":
            yield 'population.samples gives sizes without data; allowed with learning = "off" only'
        if strategy.at_edges and not network.edge_servers:
            allowed = 'network.kind "tree" or "graph" and a table network.edge ("edge = {}")'
            yield (
                f"strategy.kind is {kind}, which needs edge servers, and the network has none; "
                f"allowed with {allowed}"
            )
        if strategy.at_edges and network.edge_servers:
            strategy.check_edges(network.edge_servers)
        for key, is_given, why in self._of_servers() if strategy.serverless else ():
            if is_given:
                yield (
                    f"{key} is given, which {why}; not for strategy.kind = {kind}, which has no "
                    "server"
                )
        if self.malicious is not None:
            self.malicious.check(population.devices)
        if self.drift is not None and population.samples is not None:
            yield (
                "population.samples gives sizes without data, so there is nothing for [drift] to "
                "change"
            )
        if population.capacity is not None and network.has_device_rates:
            yield (
                "population.capacity and network.device both say how fast links are; give one of "
                "them"
            )
        if (
            population.host is not None
            and self.energy is not None
            and self.energy.battery is not None
        ):
            yield (
                "population.host and energy.battery: devices that share a machine have no battery "
                "of their own"
            )
        if self.not_restorable and (self.checkpoint.rounds or self.checkpoint.time):
            yield f"[checkpoint] asks for a run that can be resumed, but {self.not_restorable}"

    def _of_servers(self) -> Iterator[tuple[str, bool, str]]:
        """Sections that need a server, whether they are given, and why they do."""
        up = self.messages.up
        of_changes = "down" not in up.ways or up.keeps_rest
        yield (
            "messages.up",
            of_changes,
            f"writes changes of a model ({up.kind!r}), or keeps what it leaves out; not "
            "between devices",
        )
        yield "energy", self.energy is not None, "counts what tasks alone draw"
        yield "server", self.server != ServerSpec(), "is how long a server computes and waits"
        yield "messages.down", self.messages.down.kind != "plain", "is how a server writes models"
        yield "network.edge", bool(self.network.edge_servers), "are servers"

    def _of_messages(self) -> Iterator[str]:
        """Codecs that cannot write what the strategy sends."""
        strategy = self.strategy
        up = self.messages.up
        down = self.messages.down
        said = f"messages.up is {up.kind!r}"
        if not strategy.sends_models and self.messages != MessagesSpec():
            yield f"messages is given, and {strategy.called} sends nothing; leave it out"
        if getattr(strategy, "secure_aggregation", None) is not None and up.kind != "plain":
            yield (
                f"{said}, and strategy.secure_aggregation masks numbers, which must be sent in "
                "full; allowed is 'plain'"
            )
        if strategy.plain_down and down.kind != "plain":
            yield (
                f"messages.down is {down.kind!r}, and {strategy.called} sends no model down; "
                "allowed is 'plain'"
            )
        for key, aggregation in strategy.aggregations.items():
            if why := aggregation.why_not(up):
                yield f"{said} and strategy.{key} is {aggregation.kind!r}: the codec {why}"
        if strategy.resizes and up.keeps_rest:
            resized = "by strategy.redraw the next update has another size"
            yield f"{said} with error_feedback, and {resized}; allowed is error_feedback = false"
        usual = type(up).model_fields.get("error_feedback")
        feedback = getattr(up, "error_feedback", None)
        if usual is not None and "update" in strategy.added_up and feedback != usual.default:
            given = (
                f"messages.up has error_feedback = {str(feedback).lower()}, and with "
                f"{strategy.called} that"
            )
            yield (
                f"{given} changes nothing: what was left out is in its devices' next update; leave "
                "it out"
            )

    def _of_objective(self) -> Iterator[str]:
        """Keys that need metrics which the objective lacks."""
        objective = self.objective
        known = ["loss", *(metric.name for metric in self.figures)]
        here = f"objective.kind = {objective.kind!r}"
        allowed = f"allowed are {', '.join(known)}"
        for name in self.stop.metrics:
            if name not in known:
                said = f"stop.metrics has {name!r}; with objective.metrics = {objective.metrics}"
                yield f"{said} {allowed}{nearest(name, known)}"
        if not objective.has_accuracy and self.stop.accuracy is not None:
            said = (
                f"stop.accuracy is {self.stop.accuracy:g}; with {here} no answer is right or wrong"
            )
            yield f"{said}: allowed is stop.metrics, of which {allowed}"
        if not objective.has_accuracy and (key := self.strategy.needs_accuracy):
            yield f"{key}, which goes by accuracies, and with {here} there are none"
        smoothing = getattr(self.training, "label_smoothing", 0.0)
        if smoothing and (objective.loss is not None or not objective.of_entropy):
            yield (
                f"training.label_smoothing is {smoothing:g}, and the loss of {here} is no "
                "cross-entropy here; allowed is 0"
            )
        others = objective.kind != "classification" or self.data.column is not None
        if others and self.malicious is not None and self.malicious.attack.flips_labels:
            yield "malicious.attack turns labels around, and models learn other targets here"

    def _of_training(self) -> Iterator[str]:
        """A model or a trainer that the strategy cannot use, and a state that cannot be sent."""
        strategy = self.strategy
        training = self.training
        messages = self.messages
        if self.learning == "on" and not self.model.learnable:
            yield (
                f"model.kind is {self.model.kind!r}, which has no weights to learn; allowed with "
                'learning = "off" only'
            )
        if self.model.says_what_stays and strategy.kept_by != "scenario":
            how = "says so itself" if strategy.kept_by == "strategy" else "sends them all"
            said = (
                f"not for strategy.kind = {strategy.kind!r}, which {how}; allowed are fedavg and "
                "fedprox"
            )
            yield f"model.keep or model.send says which tensors stay on the devices; {said}"
        if (
            self.learning == "on"
            and not training.steps_along_gradient
            and (why := strategy.counts_steps)
        ):
            allowed = (
                "'sgd', and 'torch' with the optimiser 'SGD' and nothing that changes its steps"
            )
            said = (
                f"training.kind is {training.kind!r}, by which a step is not one along a gradient"
            )
            yield f"{said}, and not for {strategy.called}: {why}; allowed are {allowed}"
        if training.state == "kept" and training.has_no_state:
            yield (
                "training.state is 'kept', and "
                f"{getattr(training, 'optimiser', training.kind)!r} has no state with these "
                "training.args; allowed is 'fresh', or an optimiser with momentum or moments"
            )
        if training.state != "sent":
            return
        aggregation = getattr(strategy, "aggregation", None)
        name = getattr(training, "optimiser", training.kind)
        refused = [
            (
                training.state_numbers({"": (2, 2)}) <= 0,
                f"the trainer is {name!r}, of whose state no size is known",
            ),
            (
                not vars(type(strategy)).get("mixes_states", False),
                f"strategy.kind is {strategy.kind!r}",
            ),
            (getattr(strategy, "server", None) is not None, "strategy.server is given"),
            (
                type(aggregation) not in (Weighted, Mean),
                f"strategy.aggregation is {getattr(aggregation, 'kind', None)!r}",
            ),
            (
                getattr(strategy, "secure_aggregation", None) is not None,
                "strategy.secure_aggregation is given",
            ),
            (not isinstance(messages.down, Plain), f"messages.down is {messages.down.kind!r}"),
            (not isinstance(messages.up, Plain), f"messages.up is {messages.up.kind!r}"),
            (self.malicious is not None, "malicious is given"),
            (self.model.says_what_stays, "model.keep or model.send is given"),
        ]
        allowed = "moments (as Adam's) and 'fedavg' or 'fedprox', 'weighted' or 'mean'"
        without = "codecs, server optimiser, secure aggregation, attack and kept tensors"
        for said in (said for holds, said in refused if holds):
            yield f"training.state is 'sent' and {said}; allowed are {allowed}, without {without}"

    @property
    def figures(self) -> list[EvaluationMetric]:
        """Metrics of tests, and numbers of trainers that are columns of rounds."""
        return [*self.objective.figures, *starmap(reported_metric, self.training.reports.items())]

    @property
    def not_restorable(self) -> str | None:
        """The reason why a run cannot be resumed; None if it can."""
        return self.world.not_restorable or self.strategy.not_restorable

    def meters_in(self, context: MeterContext) -> Meters:
        """The meters of a run in such a world; ``ScenarioError``, ``DataError``: one cannot be
        made there.
        """
        sections = {"energy": self.energy, "costs": self.costs}
        built = {name: spec.build(context) for name, spec in sections.items() if spec is not None}
        return Meters(built, [spec.build(context) for spec in self.meters])
