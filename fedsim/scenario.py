"""``Scenario``: the sections of a run, read from TOML, checked together, and written back with every default.

Each section is a ``Spec`` in the module of its rule.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fedsim.checkpoint.spec import CheckpointSpec
from fedsim.data.shifts import ShiftSpec
from fedsim.data.spec import DataSpec
from fedsim.errors import ScenarioError, nearest, shown
from fedsim.evaluation.evaluator import EvaluationSpec
from fedsim.federation.codecs.lossy import Lossy
from fedsim.federation.costs import ServerSpec
from fedsim.federation.malicious import MaliciousSpec
from fedsim.federation.wire import MessagesSpec
from fedsim.language.imports import from_file
from fedsim.language.spec import Spec
from fedsim.language.stop import StopSpec
from fedsim.language.wording import in_words
from fedsim.learning.models import Logistic, ModelSpec
from fedsim.learning.spec import TrainingSpec
from fedsim.meters.base import MeterContext, Meters
from fedsim.meters.costs import CostsSpec
from fedsim.meters.spec import METERS, MeterSpec
from fedsim.output.harmless import clean
from fedsim.output.notebook import as_html, as_line
from fedsim.shipped import found, is_study
from fedsim.simulation import Simulation
from fedsim.strategies import STRATEGIES
from fedsim.strategies.base import StrategyParams
from fedsim.strategies.fedavg import FedAvgParams
from fedsim.tables import apply_changes, read_toml
from fedsim.world.energy.spec import EnergySpec
from fedsim.world.network import NetworkSpec, StarSpec
from fedsim.world.population import PopulationSpec
from fedsim.world.processes import WorldSpec

_OF_LEARNING = ("learning", "data", "model", "training", "drift", "malicious", "messages", "evaluation")


class Scenario(Spec):
    """A whole run, described.

    Attributes:
        name: for people; it goes into reports, never into a path or a command.
        seed: one seed gives every strategy the same world.
        learning: ``on``, or ``off`` for time and bytes only.
        data: the samples, and which device holds which.
        model: what is trained.
        training: how a client trains: steps, batches, solver.
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
    training: TrainingSpec = TrainingSpec()
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

    def __init__(self, **sections: Any) -> None:
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise ScenarioError(explain(error, sections)) from None

    @model_validator(mode="after")
    def _fits_together(self) -> "Scenario":
        self.strategy.check(self.population.devices)
        self.strategy.check_population(self.population)
        if self.strategy.brings_learning:
            for section in (name for name in _OF_LEARNING if name in self.model_fields_set):
                raise ScenarioError(
                    f"{section} is not used by strategy.kind = {self.strategy.kind!r}, which brings its own; leave it out"
                )
        elif self.population.samples is not None and self.learning == "on":
            raise ScenarioError('population.samples gives sizes without data; allowed with learning = "off" only')
        if self.strategy.at_edges and not self.network.edge_servers:
            raise ScenarioError(
                f"strategy.kind is {self.strategy.kind!r}, which needs edge servers, and the network has none; allowed with "
                'network.kind "tree" or "graph" and a table network.edge ("edge = {}")'
            )
        if self.strategy.at_edges:
            self.strategy.check_edges(self.network.edge_servers)
        if self.strategy.serverless:
            self._check_serverless()
        if self.malicious is not None:
            self.malicious.check(self.population.devices)
        if getattr(self.strategy, "secure_aggregation", None) is not None and self.messages.up.kind != "plain":
            raise ScenarioError(
                f"messages.up is {self.messages.up.kind!r} and strategy.secure_aggregation is given: masked numbers are all "
                "alike to a codec, and must be sent in full; allowed is 'plain'"
            )
        up = self.messages.up
        usual = type(up).model_fields["error_feedback"].default if isinstance(up, Lossy) else None
        if isinstance(up, Lossy) and "update" in self.strategy.added_up and up.error_feedback != usual:
            raise ScenarioError(
                f"messages.up has error_feedback = {str(up.error_feedback).lower()}, and with {self.strategy.called} that "
                "changes nothing: its devices go by what has arrived, and what was left out is in the next update; leave it out"
            )
        if self.learning == "on" and self.model.kind == "size":
            raise ScenarioError("model.kind is 'size', which has no weights to learn; allowed with learning = \"off\" only")
        if self.drift is not None and self.population.samples is not None:
            raise ScenarioError("population.samples gives sizes without data, so there is nothing for [drift] to change")
        if self.population.capacity is not None and self.network.has_device_rates:
            raise ScenarioError("population.capacity and network.device both say how fast links are; give one of them")
        if self.not_restorable and (self.checkpoint.rounds or self.checkpoint.time):
            raise ScenarioError(f"[checkpoint] asks for a run that can be resumed, but {self.not_restorable}")
        return self

    def _check_serverless(self) -> None:
        """Refuse sections that need a server."""
        up = self.messages.up
        of_changes = "down" not in up.ways or getattr(up, "error_feedback", False)
        wrong = {
            "messages.up": of_changes and f"which writes changes of a model ({up.kind!r}), and devices send whole ones",
            "energy": self.energy is not None and "which counts what tasks alone draw",
            "server": self.server != ServerSpec() and "which is how long a server computes and waits",
            "messages.down": self.messages.down.kind != "plain" and "which is how a server writes models",
            "network.edge": bool(self.network.edge_servers) and "which are servers",
        }
        for key, why in wrong.items():
            if why:
                raise ScenarioError(
                    f"{key} is given, {why}; not for strategy.kind = {self.strategy.kind!r}, which has no server"
                )

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

    def install(self, simulation: Simulation) -> Any:
        """Build this scenario into an empty simulation."""
        from fedsim.running.assembly import assemble

        return assemble(self, simulation)

    def __repr__(self) -> str:
        return as_line(f"scenario {clean(self.name)!r}", self._facts())

    def _repr_html_(self) -> str:
        return as_html(f"scenario {self.name}", self._facts())

    def _facts(self) -> dict[str, str]:
        ends = self.stop.model_dump(mode="json", exclude_none=True)
        return {
            "strategy": self.strategy.kind,
            "model": self.model.kind if self.learning == "on" else "none",
            "data": f"{self.data.source.kind}, {self.data.partition.kind}",
            "devices": str(self.population.devices),
            "network": self.network.kind,
            "seed": str(self.seed),
            "until": ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in ends.items()),
        }

    def to_toml(self) -> str:
        """The scenario with every default written out; reading it gives the same scenario."""
        unused = set(_OF_LEARNING) if self.strategy.brings_learning else None
        return tomli_w.dumps(_without_none(self.model_dump(mode="python", exclude=unused)))


def load(
    path: str | Path,
    changes: Sequence[str] = (),
    seed: int | None = None,
    *,
    allow_code: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Scenario:
    """Read a scenario file.

    Args:
        path: a TOML file, which may begin from another one (``fedsim.tables.read_toml``), or the name of a shipped one.
        changes: ``key.path=value`` texts that override it; a value is TOML, or else plain text, and none takes the key away.
        seed: overrides the file's seed.
        allow_code: whether code that it names by import path (a strategy, a module) is imported (``fedsim.language.imports``).
        tell: called with a line for each key that is dropped because ``changes`` make another ``kind`` of its table.

    Raises:
        ScenarioError: the file cannot be read, or says something that cannot be run.
    """
    if not isinstance(path, str | Path):
        raise ScenarioError(f"{shown(path)} is no file's path or name; tables become a scenario by fedsim.Scenario(**tables)")
    sections = read_toml(found(path), "scenario")
    if is_study(sections):
        raise ScenarioError(f"{str(path)!r} is a study, not a scenario: 'fedsim study' runs it")
    with from_file(allow_code):
        apply_changes([sections], [*changes, *([] if seed is None else [f"seed={seed}"])], Scenario, tell)
        return Scenario(**sections)


def explain(error: ValidationError, sections: Mapping[str, Any], whole: str = "the scenario") -> str:
    """One message for what is wrong with a scenario: the key, the value, what is allowed, the nearest right name."""
    problems = error.errors(include_url=False)
    first = problems[0]
    key = _key_path(first["loc"], sections) or whole
    # Where a word or something else may be said, each way has its problem.
    a_word = bool(first["loc"]) and str(first["loc"][-1]).startswith("literal[")
    others = [in_words(other) for other in problems[1:] if a_word and other["loc"][:-1] == first["loc"][:-1]]
    ways = [f"; or {message}" for message in others]
    more = len(problems) - 1 - len(ways)
    return _explain_one(key, first) + "".join(ways) + (f" (and {more} more)" if more else "")


def _explain_one(key: str, problem: Any) -> str:
    context, value = problem.get("ctx", {}), problem["input"]
    match problem["type"]:
        case "unknown_key":
            return f"{key} {problem['msg']}"
        case "part_kind":
            return f"{key}.{problem['msg']}"
        case "model_type":
            return f"{key} is {shown(value)}; it must be a table, and 'fedsim list {key}' names its keys"
        case "missing":
            return f"{key} is missing"
        case "literal_error":
            allowed = [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")]
            return f"{key} is {shown(value)}; allowed are {', '.join(allowed)}{nearest(str(value), allowed)}"
        case "value_error":
            return f"{key}: {problem['msg'].removeprefix('Value error, ')}"
        case "quantity":
            return f"{key} is {shown(value)}: {problem['msg']}"
    return f"{key} is {shown(value)}; {in_words(problem)}"


def _key_path(location: tuple[int | str, ...], sections: Any) -> str:
    """The key as written in the scenario, from pydantic's location."""
    keys: list[str] = []
    here = sections
    for depth, part in enumerate(location):
        if str(part).startswith(("~", "literal[")):
            continue  # a name for one of several types
        last = depth == len(location) - 1
        if (isinstance(here, Mapping) and part in here) or (isinstance(here, list) and isinstance(part, int)):
            here = here[part]  # type: ignore[index]
        elif not (last and isinstance(here, Mapping | str)):
            continue  # a key that stands for a shorthand
        keys.append(str(part))
    return ".".join(keys)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
