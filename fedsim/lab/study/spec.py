"""The keys of a study file, and the reference scenarios that it can add as variants."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import flatten
from fedsim.common.spec import Spec, json_schema
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.common.wording import explain
from fedsim.lab.compare.measures import GOALS, WITHIN, Budget
from fedsim.lab.reading.study_folder import UNNAMED
from fedsim.lab.reading.targets import Target
from fedsim.lab.study.search import AnySearch, Search, measure_of
from fedsim.lab.study.until_sure import UntilSure
from fedsim.running.overrides import Tables, changed
from fedsim.running.scenario import Scenario
from fedsim.strategies import STRATEGIES, strategy_class
from fedsim.world.population_spec import PopulationSpec

# keys of a grid point that are no keys of a scenario
SIZE = "size"
PART = "part"
TRIAL = "trial"
if TYPE_CHECKING:
    _Goal = str
else:
    _Goal = Literal[GOALS]
# limit of planned runs: more are probably a mistake in the file, and would fill the memory
_MOST_RUNS = 100_000
_LONGEST_VARIANT = 200  # greatest length of a variant's name (characters)
_LONGEST_NAME = 60  # greatest length of the name of a part or a size (characters)
_USUAL_DEVICES = PopulationSpec.model_fields["devices"].default
_USUAL_ROUNDS = 100
_KEYS_OF_SEVERAL_CLIENTS = ("clients_per_round", "deadline")
# kinds of drift that alter samples, so that no pooled data set equals all devices' data
_DRIFTS_OF_SAMPLES = ("label-permutation", "rotation")


def local(base: Mapping[str, object]) -> Tables:
    """Return the reference scenario in which every device trains alone and nothing is sent.

    A device trains as often in a round, and for as many epochs, as a client of the base.

    Args:
        base: tables of the base scenario.

    Raises:
        ScenarioError: ``strategy.kind`` of the base is no text.
    """
    kind = _section(base, "strategy").get("kind", STRATEGIES.usual)
    if not isinstance(kind, str):
        raise ScenarioError(f"strategy.kind is {kind!r}; it must be a name")
    score = _section(base, "evaluation").get("score") or strategy_class(kind).score
    return changed(base, {"strategy": {"kind": "local"}, "evaluation": {"score": score}})


def centralised(base: Mapping[str, object]) -> Tables:
    """Return the reference scenario in which one device trains on the data of all devices.

    It has as many rounds as the base, and trains in each round for as many epochs as a client of
    the base. Nothing is sent, no update is late, and comparisons omit the times of this reference.
    A data shift that swaps the data of devices has no effect, and data that arrive bit by bit are
    complete from the start.

    Args:
        base: tables of the base scenario.

    Raises:
        ScenarioError: the base has no ``stop.rounds``, no learning, or a drift that alters samples.
    """
    if base.get("learning") == "off":
        raise ScenarioError(
            "'centralised' has no meaning with learning = \"off\": it is there for its accuracy"
        )
    drift = _section(base, "drift").get("kind")
    if drift in _DRIFTS_OF_SAMPLES:
        raise ScenarioError(
            f"'centralised' has no meaning with drift.kind {drift!r}: there is no one set of "
            "data to pool"
        )
    stop = {"rounds": _USUAL_ROUNDS} if "stop" not in base else _section(base, "stop")
    if "rounds" not in stop:
        raise ScenarioError(
            "'centralised' needs stop.rounds in the base: it has no simulated time of its own"
        )
    tables = local(_drop_keys(base, "drift", "population", "network"))
    devices = _section(base, "population").get("devices", _USUAL_DEVICES)
    return {
        **tables,
        "strategy": _drop_keys(tables["strategy"], *_KEYS_OF_SEVERAL_CLIENTS),
        "data": {**_section(base, "data"), "pooled_from": devices},
        "population": {"devices": 1},
        "stop": _drop_keys(stop, "simulated_time"),
    }


REFERENCES: Mapping[str, Callable[[Mapping[str, object]], Tables]] = {
    "centralised": centralised,
    "local": local,
}


def _section(base: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return a section of the base scenario; empty if the section is no table (rejected later)."""
    section = base.get(name, {})
    return section if isinstance(section, Mapping) else {}


def _drop_keys(tables: Mapping[str, object], *keys: str) -> Tables:
    return {key: value for key, value in tables.items() if key not in keys}


@dataclass(frozen=True)
class _AsInScenario:
    """Annotation of a key of a study whose value is a scenario, or some of a scenario's tables.

    In the study's JSON schema, the key gets the schema of a scenario.

    Attributes:
        or_path: whether the value may also be a text, the path of a scenario.
    """

    or_path: bool = False

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tables = json_schema(Scenario, handler)
        return {"anyOf": [{"type": "string"}, tables]} if self.or_path else tables


Changes = Annotated[dict[str, object], _AsInScenario()]
"""Tables as in a scenario, or dotted keys."""

Base = Annotated[dict[str, object], _AsInScenario(or_path=True)]


def _refuse_equal(grid: dict[str, list[object]]) -> dict[str, list[object]]:
    """Return a grid unchanged; refuse seeds, empty lists, and lists with a value twice."""
    if "seed" in grid:
        raise ValueError(
            "'seed' is no key of a grid; the study's 'seeds' are what runs are repeated with"
        )
    for key, values in grid.items():
        if not values or len(set(map(repr, values))) < len(values):
            raise ValueError(
                f"{key!r} has the values {values}; allowed is a list of different ones, at "
                "least one"
            )
    return grid


def _flatten(grid: object) -> object:
    """Return a grid (lists of values by key) with dotted keys instead of nested tables."""
    return flatten(grid) if isinstance(grid, dict) else grid


Grid = Annotated[
    dict[str, list[object]],
    BeforeValidator(_flatten, json_schema_input_type=dict[str, object]),
    AfterValidator(_refuse_equal),
]
"""Values by dotted key."""

DeclaredTarget = float | str
"""A target of a study: an accuracy, or ``metric=value``."""


def _put_in_list(target: object) -> object:
    """Return a single target, an accuracy or a text, as a list; a list is unchanged."""
    is_single = isinstance(target, int | float | str) and not isinstance(target, bool)
    return [target] if is_single else target


def _sort_targets(targets: list[DeclaredTarget]) -> list[DeclaredTarget]:
    """Return the distinct targets of a study: accuracies first, then each metric's targets.

    The targets of a metric go from the easiest to the hardest. The targets of a user's metric go
    from the least to the greatest, because fedsim does not know whether more of it is better.

    Raises:
        ValueError: an accuracy is not in (0, 1], or a text names no metric.
    """
    for target in targets:
        if isinstance(target, str):
            metric = Target.read(target).metric
            # a name similar to a metric of fedsim is a typo; any other name is a user's metric
            is_typo = metric not in MORE_IS_BETTER and nearest(metric, MORE_IS_BETTER)
            if metric == "accuracy" or is_typo:
                metrics = ", ".join(MORE_IS_BETTER)
                raise ValueError(
                    f"{target!r} is of no metric; allowed are {metrics}, your own and loss, as in "
                    "'perplexity=8'"
                )
        elif not 0 < target <= 1:
            raise ValueError(f"{target:g} is no accuracy; it must lie in (0, 1]")
    return sorted({*targets}, key=_rank_of_target)


def _rank_of_target(declared: DeclaredTarget) -> tuple[bool, str, float]:
    target = Target.read(declared)
    more_is_better = {"loss": False, **MORE_IS_BETTER}.get(target.metric, True)
    harder = target.value if more_is_better else -target.value
    return target.metric != "accuracy", target.metric, harder


Targets = Annotated[
    list[DeclaredTarget],
    BeforeValidator(_put_in_list, json_schema_input_type=DeclaredTarget | list[DeclaredTarget]),
    AfterValidator(_sort_targets),
]


class Size(Spec):
    """Table of a study's file that makes the study larger or smaller, such as for a quick trial.

    It changes the base scenario of all variants.

    Attributes:
        base: the base scenario; by default the study's.
        changes: changes to the base, which changes of a part or of a variant override.
        sets: sets of changes (``StudySpec.sets``) that replace the study's sets of equal name.
    """

    base: Base | None = None
    changes: Changes = Field(default={})
    sets: dict[str, dict[str, Changes]] = Field(default={})


class StudyPart(Spec):
    """Table of a study's file for a part: some of the variants, with further changes.

    For example, a part has the variants of a figure in a paper.

    Attributes:
        base: the base scenario; by default the size's or the study's.
        changes: changes to the base; the changes of a variant override them.
        variants: names of the variants to run, or a table of further changes by name; by default
            all.
        grid: further keys of the grid, with their values.
        sizes: the sizes in which the part is run; by default all.
    """

    base: Base | None = None
    changes: Changes = Field(default={})
    variants: dict[str, Changes] | None = None
    grid: Grid = Field(default={})
    sizes: list[str] | None = None

    @field_validator(
        "variants", mode="before", json_schema_input_type=list[str] | dict[str, Changes]
    )
    @classmethod
    def _name_variants(cls, variants: object) -> object:
        return {name: {} for name in variants} if isinstance(variants, list) else variants


class StudySpec(Spec):
    """Content of a study's file: a base scenario, its variants, and the seeds.

    All variants run with the same seeds, so that they share devices, network and data.

    Attributes:
        name: a title for people, which goes into reports, and never into a path or a command.
        about: an introduction for readers, with which reports begin.
        base: tables of the base scenario; in a file also the path of a scenario, relative to the
            study file, or the name of a scenario that comes with fedsim.
        seeds: seeds of the runs; every variant is run once with each seed.
        variants: by name, the changes that make a variant out of the base: tables as in a scenario,
            or dotted keys.
        grid: dotted key of the scenario -> list of values, such as ``{"training.lr": [0.01,
            0.1]}``; or name of one of the ``sets`` -> list of names of values. Every variant is run
            with every combination.
        search: a search for the best values of each variant, at every point of the grid.
        sets: changes of several keys that the grid varies together: name of a set -> name of a
            value -> the changes that are made for this value, such as ``{"network": {"slow":
            {"network.device.down": "1 Mbit/s", "network.device.up": "1 Mbit/s"}}}``.
        parts: parts of the study, by name, if not every variant is run at every point of the grid.
        sizes: smaller and larger versions of the study, such as for a quick trial, by name.
        size: the size in which the study is run; by default the first.
        references: reference scenarios to add as variants: ``centralised`` (one device trains on
            all data) or ``local`` (every device trains alone).
        baseline: the variant with which all variants are compared, seed by seed; None compares
            none.
        target: one or several accuracies (0..1) at which costs are compared; other metrics as
            ``"perplexity=8"``.
        goal: criterion by which variants are ranked: the least ``time``, ``bytes``, ``energy``,
            ``carbon``, ``money`` or ``rounds`` to the hardest target that a variant reaches; the
            least ``battery`` (mean share of a battery that a device draws, %) or the fewest devices
            that run ``flat``, over whole runs; the best ``accuracy``, or another metric by its
            name, at the end; the best accuracy within the ``budget``. By default ``time``, or
            ``budget`` if the study has one.
        budget: limits on the costs of a run.
        until_sure: rule by which the variants that may still be the best get more seeds, until one
            is surely the best; by default all variants run the same seeds.
        published: numbers from papers to compare with (``fedsim.lab.compare.published``): tables,
            or in a study's file also the path of a file of tables.
    """

    name: str = Field(default=UNNAMED, max_length=200)
    about: str = Field(default="", max_length=2000)
    base: Base
    seeds: list[int] = Field(default=[1], min_length=1)
    variants: dict[str, Changes] = Field(default={})
    grid: Grid = Field(default={})
    search: AnySearch | None = None
    sets: dict[str, dict[str, Changes]] = Field(default={})
    parts: dict[str, StudyPart] = Field(default={})
    sizes: dict[str, Size] = Field(default={})
    size: str | None = None
    references: list[str] = Field(default=[])
    baseline: str | None = None
    target: Targets = Field(default=[])
    goal: _Goal | None = None
    budget: Budget = Field(default=Budget())
    until_sure: UntilSure | None = None
    published: (
        Annotated[
            dict[str, object], WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
        ]
        | None
    ) = None

    def __init__(self, **tables: object) -> None:
        try:
            super().__init__(**tables)
        except ValidationError as error:
            raise ScenarioError(explain(error, tables, "the study")) from None

    @property
    def names(self) -> list[str]:
        """Names of the study's variants, followed by the names of its reference scenarios."""
        return [*self.variants, *self.references]

    @property
    def chosen_size(self) -> tuple[str, Size] | None:
        """Name and table of the size (large or small) to run the study in; None without sizes."""
        name = self.size or next(iter(self.sizes), None)
        return None if name is None else (name, self.sizes[name])

    @property
    def _grids(self) -> list[dict[str, list[object]]]:
        """Grids of the study's parts: for each part, a dict from key to values.

        The grid of a part has the keys of the study's grid, too. A study without parts has one
        grid.
        """
        return [self.grid | part.grid for part in self.parts.values()] or [self.grid]

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: list[int]) -> list[int]:
        if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
            raise ValueError(f"{seeds} are not different whole numbers from 0 on")
        return seeds

    @field_validator("variants", "parts", "sizes")
    @classmethod
    def _check_names(
        cls, tables_by_name: dict[str, object], info: ValidationInfo
    ) -> dict[str, object]:
        """Refuse names that are blank or too long, and variants with a seed of their own."""
        are_variants = info.field_name == "variants"
        noun = "a variant's name" if are_variants else "a name"
        most = _LONGEST_VARIANT if are_variants else _LONGEST_NAME
        for name, tables in tables_by_name.items():
            if not name.strip() or len(name) > most:
                raise ValueError(
                    f"{noun} has {len(name)} characters; allowed are 1 to {most}, not all of "
                    "them blank"
                )
            if are_variants and isinstance(tables, Mapping) and "seed" in tables:
                raise ValueError(
                    f"{name!r} has a seed of its own; all variants run with the study's 'seeds'"
                )
        return tables_by_name

    @model_validator(mode="after")
    def _require_variant(self) -> Self:
        if not self.names:
            raise ValueError("a study needs a variant at least, such as [variants.fedavg]")
        return self

    @model_validator(mode="after")
    def _check_goal(self) -> Self:
        if self.goal is not None and (self.goal == "budget") != bool(self.budget.limits):
            raise ValueError(
                f"goal is {self.goal!r}; with [budget] it is 'budget', and without one another"
            )
        return self

    @model_validator(mode="after")
    def _check_used_names(self) -> Self:
        """Refuse names of variants, sizes and the like that the study does not define."""
        if len(set(self.references)) < len(self.references):
            raise ValueError(f"references are {self.references}, which names one of them twice")
        for name in self.references:
            if name in self.variants:
                raise ValueError(
                    f"{name!r} is both a variant and one of the references; give the variant "
                    "another name"
                )
        if self.search is not None:
            self._refuse_unfit(self.search)
        for place, names, allowed in self._used_names():
            for name in names:
                if name not in allowed:
                    hint = "the study has none"
                    if allowed:
                        hint = f"allowed are {', '.join(allowed)}{nearest(str(name), allowed)}"
                    raise ValueError(f"{place} is {name!r}; {hint}")
        return self

    @model_validator(mode="after")
    def _check_count(self) -> Self:
        points = sum(math.prod(map(len, grid.values())) for grid in self._grids)
        trials = 1 if self.search is None else self.search.trials
        runs = points * len(self.names) * len(self.seeds) * trials
        if runs > _MOST_RUNS:
            raise ValueError(f"it has {runs} runs; at most {_MOST_RUNS} are allowed")
        return self

    @model_validator(mode="after")
    def _check_sets(self) -> Self:
        """Refuse sets of changes whose key is neither in a grid nor searched."""
        used_keys = list(itertools.chain.from_iterable(self._grids))
        if self.search is not None:
            for name in self.variants:
                used_keys += self.search.space_of(name)
        for key in self.sets:
            if key not in used_keys:
                raise ValueError(
                    f"sets has {key!r}, which no grid has: it would change "
                    f"nothing{nearest(key, used_keys)}"
                )
        return self

    def _refuse_unfit(self, search: Search) -> None:
        """Raise ``ValueError`` if the study cannot be searched.

        For example, it has no target although the search's metric needs one, or it has numbers of
        papers to compare with.
        """
        if self.until_sure is not None:
            raise ValueError(
                "it has both a search and until_sure; which trials follow depends on the same "
                "seeds of all: leave out one of the two"
            )
        if not self.variants:
            raise ValueError(
                "a search needs a variant at least, such as [variants.fedavg]; references are "
                "not searched"
            )
        measure = measure_of(search.metric, self.target)
        if measure is WITHIN and not self.budget.limits:
            raise ValueError(
                f"search.metric is {search.metric!r}, which needs the study's [budget], such "
                "as time = '20 min'"
            )
        if measure is None:
            raise ValueError(
                f"search.metric is {search.metric!r}, which needs the study's 'target', such "
                "as target = 0.8"
            )
        if self.published is not None:
            raise ValueError(
                "it has both a search and published figures; a search is compared with no "
                "published ones"
            )
        for name in self.variants:
            self._refuse_space(name, search.space_of(name))

    def _refuse_space(self, name: str, space: Collection[str]) -> None:
        """Raise ``ValueError`` if a search has no keys for a variant, or keys that it cannot vary.

        Args:
            name: name of the variant.
            space: the keys for which the search tries values.
        """
        if not space:
            raise ValueError(
                f"search.space has no keys for the variant {name!r}; it needs one, such as "
                "'training.lr'"
            )
        for key in itertools.chain.from_iterable(self._grids):
            if key in space:
                raise ValueError(
                    f"{key!r} is both in a grid and in search.space; allowed is one of them"
                )
        if "seed" in space:
            raise ValueError(
                "'seed' is no key to search over; the study's 'seeds' are what runs are "
                "repeated with"
            )

    def _used_names(self) -> Iterator[tuple[str, Iterable[Any], Collection[str]]]:
        """Yield the names of variants, sizes and the like that the study's file uses, by place.

        The caller checks that each name is defined.

        Yields:
            Description of the place for an error message, names used there, and allowed names.
        """
        yield "a reference", self.references, REFERENCES
        if self.baseline is not None:
            yield "'baseline'", (self.baseline,), self.names
        if self.size is not None:
            yield "size", (self.size,), self.sizes
        for name, part in self.parts.items():
            yield f"a variant of the part {name!r}", part.variants or (), self.names
            yield f"a size of the part {name!r}", part.sizes or (), self.sizes
        for grid in self._grids:
            for key, values in grid.items():
                if key in self.sets:
                    yield f"a value of {key!r} in a grid", values, self.sets[key]
        if self.search is None:
            return
        yield "a variant of the search", self.search.variants, self.variants
        for name in self.variants:
            for key, candidates in self.search.space_of(name).items():
                if key in self.sets:
                    place = f"a value of {key!r} in search.space"
                    yield place, candidates.extremes, self.sets[key]
