"""What a scenario may say, and what is answered when it says something wrong.

A scenario is data, short enough to read aloud. Each section is a ``Spec`` that lives where its rule lives; here they are only
put together, read from TOML, and written back with every default.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from fedsim.checkpoint.spec import CheckpointSpec
from fedsim.data.shifts import ShiftSpec
from fedsim.data.spec import DataSpec
from fedsim.errors import ScenarioError, nearest, shown
from fedsim.evaluation.evaluator import EvaluationSpec
from fedsim.federation.malicious import MaliciousSpec
from fedsim.federation.wire import MessagesSpec
from fedsim.language.imports import from_file
from fedsim.language.spec import Spec
from fedsim.language.stop import StopSpec
from fedsim.learning.models import Logistic, ModelSpec
from fedsim.learning.spec import TrainingSpec
from fedsim.simulation import Simulation
from fedsim.strategies import params_class
from fedsim.strategies.base import StrategyParams
from fedsim.strategies.fedavg import FedAvgParams
from fedsim.tables import apply_change, read_toml
from fedsim.world.energy.spec import EnergySpec
from fedsim.world.network import NetworkSpec, StarSpec
from fedsim.world.population import PopulationSpec
from fedsim.world.processes import WorldSpec


def _strategy_params(value: Any) -> Any:
    """Find the parameters' class by ``kind``."""
    if not isinstance(value, Mapping):
        return value
    kind = value.get("kind", "fedavg")
    if not isinstance(kind, str):
        raise ScenarioError(f"strategy.kind is {kind!r}; it must be a name")
    return params_class(kind).model_validate(value)


class Scenario(Spec):
    """A whole run, described.

    Attributes:
        name: for people; it goes into reports, never into a path or a command.
        seed: one seed gives every strategy the same world.
        learning: ``on``, or ``off`` for time and bytes only.
        drift: how data change while the run goes on; None: they don't.
        malicious: devices that attack the learning; None: there are none.
        energy: what devices draw, and from what; None: not counted, and nobody has a battery.
        data, model, training, population, network, world, messages, strategy, evaluation, stop, checkpoint: the other sections.
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
    drift: ShiftSpec | None = None
    malicious: MaliciousSpec | None = None
    messages: MessagesSpec = MessagesSpec()
    strategy: Annotated[SerializeAsAny[StrategyParams], BeforeValidator(_strategy_params)] = FedAvgParams()
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
        if self.malicious is not None:
            self.malicious.check(self.population.devices)
        if getattr(self.strategy, "secure_aggregation", None) is not None and self.messages.up.kind != "plain":
            raise ScenarioError(
                f"messages.up is {self.messages.up.kind!r} and strategy.secure_aggregation is given: masked numbers are all "
                "alike to a codec, and must be sent in full; allowed is 'plain'"
            )
        if self.learning == "on" and self.model.kind == "size":
            raise ScenarioError("model.kind is 'size', which has no weights to learn; allowed with learning = \"off\" only")
        if self.learning == "on" and self.population.samples is not None:
            raise ScenarioError('population.samples gives sizes without data; allowed with learning = "off" only')
        if self.drift is not None and self.population.samples is not None:
            raise ScenarioError("population.samples gives sizes without data, so there is nothing for [drift] to change")
        if self.population.capacity is not None and self.network.has_device_rates:
            raise ScenarioError("population.capacity and network.device both say how fast links are; give one of them")
        if self.world.not_restorable and (self.checkpoint.rounds or self.checkpoint.time):
            raise ScenarioError(f"[checkpoint] asks for a run that can be resumed, but {self.world.not_restorable}")
        return self

    def install(self, simulation: Simulation) -> Any:
        """Build this scenario into an empty simulation."""
        from fedsim.running.assembly import assemble

        return assemble(self, simulation)

    def to_toml(self) -> str:
        """The scenario with every default written out; reading it gives the same scenario."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="python")))


def load(path: str | Path, changes: Sequence[str] = (), seed: int | None = None, *, allow_code: bool = False) -> Scenario:
    """Read a scenario file.

    Args:
        path: a TOML file; it may begin from another one, see ``fedsim.tables.read_toml``.
        changes: ``key.path=value`` texts that override it; a value is TOML, or else plain text.
        seed: overrides the file's seed.
        allow_code: whether code that it names by import path (a strategy, a module) is imported (``fedsim.language.imports``).

    Raises:
        ScenarioError: the file cannot be read, or says something that cannot be run.
    """
    sections = read_toml(path, "scenario")
    for change in changes:
        apply_change(sections, change)
    if seed is not None:
        sections["seed"] = seed
    with from_file(allow_code):
        return Scenario(**sections)


def explain(error: ValidationError, sections: Mapping[str, Any], whole: str = "the scenario") -> str:
    """One message for what is wrong with a scenario: the key, the value, what is allowed, the nearest right name."""
    problems = error.errors(include_url=False)
    first = problems[0]
    key = _key_path(first["loc"], sections) or whole
    message = _explain_one(key, first)
    return message if len(problems) == 1 else f"{message} (and {len(problems) - 1} more)"


def _explain_one(key: str, problem: Any) -> str:
    context, value = problem.get("ctx", {}), problem["input"]
    match problem["type"]:
        case "unknown_key":
            return f"{key} {problem['msg']}"
        case "union_tag_invalid":
            allowed = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
            return f"{key}.kind is {context['tag']!r}; allowed are {', '.join(allowed)}{nearest(str(context['tag']), allowed)}"
        case "union_tag_not_found":
            return f"{key}.kind is missing; it says which kind of {key.rpartition('.')[2]} is meant"
        case "part_kind":
            return f"{key}.{problem['msg']}"
        case "missing":
            return f"{key} is missing"
        case "literal_error":
            allowed = [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")]
            return f"{key} is {shown(value)}; allowed are {', '.join(allowed)}{nearest(str(value), allowed)}"
        case "value_error":
            return f"{key}: {problem['msg'].removeprefix('Value error, ')}"
    return f"{key} is {shown(value)}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _key_path(location: tuple[int | str, ...], sections: Any) -> str:
    """The key as written in the scenario: pydantic's location without the tags of unions."""
    keys: list[str] = []
    here = sections
    for depth, part in enumerate(location):
        if str(part).startswith("~"):
            continue  # a name of ours for one way to say a value
        last = depth == len(location) - 1
        if (isinstance(here, Mapping) and part in here) or (isinstance(here, list) and isinstance(part, int)):
            here = here[part]  # type: ignore[index]
        elif not (last and isinstance(here, Mapping | str)):
            continue  # the tag of a union, or a key that stands for a shorthand
        keys.append(str(part))
    return ".".join(keys)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
