"""The grammar of a study file, and the reference lines that it can name."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
from fedsim.common.files import flat
from fedsim.common.spec import Spec, json_schema
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.common.wording import explain
from fedsim.lab.compare.measures import GOALS, WITHIN, Budget
from fedsim.lab.reading.study_folder import UNNAMED
from fedsim.lab.reading.targets import Target
from fedsim.lab.study.search import AnySearch, Search, measure_of
from fedsim.running.overrides import Tables, changed
from fedsim.running.scenario import Scenario
from fedsim.strategies import STRATEGIES, strategy_class
from fedsim.world.population import PopulationSpec

# places in the grid that are no keys of a scenario
SIZE = "size"
PART = "part"
TRIAL = "trial"
# beyond this a study is a typing error, and its plan alone would fill the memory
_MOST_RUNS = 100_000
_USUAL_DEVICES = PopulationSpec.model_fields["devices"].default
_USUAL_ROUNDS = 100
_NOT_ALONE = ("clients_per_round", "deadline")
# shifts after which the same samples are other data
_CHANGES_SAMPLES = ("label-permutation", "rotation")


def local(base: Mapping[str, Any]) -> Tables:
    """Every device trains alone, as often in a round and for as many epochs as the base asks its
    clients; nothing is sent.
    """
    kind = _table(base, "strategy").get("kind", STRATEGIES.usual)
    if not isinstance(kind, str):
        raise ScenarioError(f"strategy.kind is {kind!r}; it must be a name")
    score = _table(base, "evaluation").get("score") or strategy_class(kind).score
    return changed(base, {"strategy": {"kind": "local"}, "evaluation": {"score": score}})


def centralised(base: Mapping[str, Any]) -> Tables:
    """One device trains alone on the data of all devices of the base.

    It makes as many rounds as the base, with as many passes a round as its clients; nothing is sent
    or late, and comparisons leave out its times. Swapped data ([drift]) are the same when pooled;
    incremental data are all there from the start. ``ScenarioError``: the base has no number of
    rounds, no learning, or a drift that alters samples.
    """
    if base.get("learning") == "off":
        raise ScenarioError(
            "'centralised' has no meaning with learning = \"off\": it is there for its accuracy"
        )
    drift = _table(base, "drift").get("kind")
    if drift in _CHANGES_SAMPLES:
        raise ScenarioError(
            f"'centralised' has no meaning with drift.kind {drift!r}: there is no one set of "
            "data to pool"
        )
    stop = {"rounds": _USUAL_ROUNDS} if "stop" not in base else _table(base, "stop")
    if "rounds" not in stop:
        raise ScenarioError(
            "'centralised' needs stop.rounds in the base: it has no simulated time of its own"
        )
    alone = local(
        {key: value for key, value in base.items() if key not in ("drift", "population", "network")}
    )
    return alone | {
        "strategy": {
            key: value for key, value in alone["strategy"].items() if key not in _NOT_ALONE
        },
        "data": {
            **_table(base, "data"),
            "pooled_from": _table(base, "population").get("devices", _USUAL_DEVICES),
        },
        "population": {"devices": 1},
        "stop": {key: value for key, value in stop.items() if key != "simulated_time"},
    }


REFERENCES: Mapping[str, Callable[[Mapping[str, Any]], Tables]] = {
    "centralised": centralised,
    "local": local,
}


def _table(base: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of the base; one that is no table is refused when the scenario is validated."""
    section = base.get(name, {})
    return section if isinstance(section, Mapping) else {}


@dataclass(frozen=True)
class _AsInScenario:
    """Annotates tables as in a scenario; in a file perhaps the path of one."""

    or_path: bool = False

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tables = json_schema(Scenario, handler)
        return {"anyOf": [{"type": "string"}, tables]} if self.or_path else tables


Changes = Annotated[dict[str, Any], _AsInScenario()]
"""Tables as in a scenario, or dotted keys."""

Base = Annotated[dict[str, Any], _AsInScenario(or_path=True)]


def _several(grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
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


Grid = Annotated[
    dict[str, list[Any]],
    BeforeValidator(
        lambda grid: flat(grid) if isinstance(grid, dict) else grid,
        json_schema_input_type=dict[str, Any],
    ),
    AfterValidator(_several),
]
"""Dotted key -> its values."""

Said = float | str
"""A target as a study says it: an accuracy, or ``metric=value``."""


def _listed(target: Any) -> Any:
    return (
        [target]
        if isinstance(target, int | float | str) and not isinstance(target, bool)
        else target
    )


def _read(target: list[Said]) -> list[Said]:
    for one in target:
        if isinstance(one, str):
            metric = Target.read(one).metric
            if metric == "accuracy" or (
                metric not in MORE_IS_BETTER and nearest(metric, MORE_IS_BETTER)
            ):
                known = ", ".join(MORE_IS_BETTER)
                raise ValueError(
                    f"{one!r} is of no metric; allowed are {known}, your own and loss, as in "
                    "'perplexity=8'"
                )
        elif not 0 < one <= 1:
            raise ValueError(f"{one:g} is no accuracy; it must lie in (0, 1]")
    return sorted({*target}, key=lambda one: (isinstance(one, str), one))


Targets = Annotated[
    list[Said],
    BeforeValidator(_listed, json_schema_input_type=Said | list[Said]),
    AfterValidator(_read),
]


class Size(Spec):
    """A way to run the same study, large or small."""

    base: Base | None = None
    """the scenario that runs start from, if not the study's."""
    changes: Changes = Field(default={})
    """to the base, before a part's or a variant's own."""
    sets: dict[str, dict[str, Changes]] = Field(default={})
    """instead of those of the study that have the same names."""


class StudyPart(Spec):
    """Some of the variants in a world of their own, such as those of one figure."""

    base: Base | None = None
    """the scenario that its runs start from, if not the size's or the study's."""
    changes: Changes = Field(default={})
    """to the base, before the variants' own."""
    variants: dict[str, Changes] | None = None
    """names of variants to run, all by default; or a table of further changes by name."""
    grid: Grid = Field(default={})
    """of its own, besides the study's."""
    sizes: list[str] | None = None
    """in which it is run; by default in all."""

    @field_validator(
        "variants", mode="before", json_schema_input_type=list[str] | dict[str, Changes]
    )
    @classmethod
    def _listed(cls, variants: Any) -> Any:
        return {name: {} for name in variants} if isinstance(variants, list) else variants


class StudySpec(Spec):
    """A base scenario, its variations, and the seeds: the same worlds for every variant."""

    name: str = Field(default=UNNAMED, max_length=200)
    """for people; it goes into reports, never into a path or a command."""
    about: str = Field(default="", max_length=2000)
    """a text for readers, with which reports begin."""
    base: Base
    """the tables of the scenario that all runs start from; in a file also the path of one,
    relative to the study file, or the name of one that comes with fedsim.
    """
    seeds: list[int] = Field(default=[1], min_length=1)
    """one run of every variant for each."""
    variants: dict[str, Changes] = Field(default={})
    """by name, the changes that make a variant out of the base: tables as in a scenario, or
    dotted keys.
    """
    grid: Grid = Field(default={})
    """dotted key -> values; every variant is run with every combination.

    The name of one of the ``sets`` -> names in it.
    """
    search: AnySearch | None = None
    """ranges in which the best values of each variant are searched, at every point of the grid."""
    sets: dict[str, dict[str, Changes]] = Field(default={})
    """changes that go together, by name, for the grid."""
    parts: dict[str, StudyPart] = Field(default={})
    """the runs, if not every variant at every point of the grid."""
    sizes: dict[str, Size] = Field(default={})
    """ways to run it."""
    size: str | None = None
    """the one in which it is run; by default the first."""
    references: list[str] = Field(default=[])
    """lines to compare with, added as variants of these names (``REFERENCES``)."""
    baseline: str | None = None
    """the variant that the others are compared with, seed by seed; None: they are not."""
    target: Targets = Field(default=[])
    """one or several accuracies (0..1), up to which costs are compared; other metrics as
    ``"perplexity=8"``.
    """
    goal: Literal[GOALS] | None = None  # type: ignore[valid-type]
    """criterion of the ranking of cells: the least ``time``, ``bytes``, ``energy``, ``carbon``,
    ``money`` or ``rounds`` to the highest target that can be reached; the least of a ``battery``
    (%) or the fewest devices that run ``flat``, over whole runs; the highest ``accuracy`` in the
    end, or within the ``budget``. By default the time, or the accuracy within the budget, if there
    is one.
    """
    budget: Budget = Field(default=Budget())
    """limits of what a run may cost."""
    published: (
        Annotated[
            dict[str, Any], WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
        ]
        | None
    ) = None
    """what papers say of these figures, see ``fedsim.lab.compare.published``; tables, or in a
    file the path of one.
    """

    def __init__(self, **tables: Any) -> None:
        try:
            super().__init__(**tables)
        except ValidationError as error:
            raise ScenarioError(explain(error, tables, "the study")) from None

    @property
    def names(self) -> list[str]:
        return [*self.variants, *self.references]

    @property
    def chosen_size(self) -> tuple[str, Size] | None:
        name = self.size or next(iter(self.sizes), None)
        return None if name is None else (name, self.sizes[name])

    @property
    def _grids(self) -> list[dict[str, list[Any]]]:
        return [self.grid | part.grid for part in self.parts.values()] or [self.grid]

    @field_validator("seeds")
    @classmethod
    def _different_seeds(cls, seeds: list[int]) -> list[int]:
        if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
            raise ValueError(f"{seeds} are not different whole numbers from 0 on")
        return seeds

    @field_validator("variants", "parts", "sizes")
    @classmethod
    def _named(cls, named: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        what, most = ("a variant's name", 200) if info.field_name == "variants" else ("a name", 60)
        for name, said in named.items():
            if not name.strip() or len(name) > most:
                raise ValueError(
                    f"{what} has {len(name)} characters; allowed are 1 to {most}, not all of "
                    "them blank"
                )
            if info.field_name == "variants" and "seed" in said:
                raise ValueError(
                    f"{name!r} has a seed of its own; all variants run with the study's 'seeds'"
                )
        return named

    @model_validator(mode="after")
    def _fits_together(self) -> "StudySpec":
        if not self.names:
            raise ValueError("a study needs a variant at least, such as [variants.fedavg]")
        if self.goal is not None and (self.goal == "budget") != bool(self.budget.limits):
            raise ValueError(
                f"goal is {self.goal!r}; with [budget] it is 'budget', and without one another"
            )
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
        for what, names, allowed in self._used_names():
            for name in names:
                if name not in allowed:
                    hint = (
                        f"allowed are {', '.join(allowed)}{nearest(str(name), allowed)}"
                        if allowed
                        else "the study has none"
                    )
                    raise ValueError(f"{what} is {name!r}; {hint}")
        trials = 1 if self.search is None else self.search.trials
        runs = (
            sum(math.prod(map(len, grid.values())) for grid in self._grids)
            * len(self.names)
            * len(self.seeds)
            * trials
        )
        if runs > _MOST_RUNS:
            raise ValueError(f"it has {runs} runs; at most {_MOST_RUNS} are allowed")
        searched = (
            []
            if self.search is None
            else [key for name in self.variants for key in self.search.space_of(name)]
        )
        used = [*itertools.chain(*self._grids), *searched]
        for key in self.sets:
            if key not in used:
                raise ValueError(
                    f"sets has {key!r}, which no grid has: it would change "
                    f"nothing{nearest(key, used)}"
                )
        return self

    def _refuse_unfit(self, search: Search) -> None:
        if not self.variants:
            raise ValueError(
                "a search needs a variant at least, such as [variants.fedavg]; references are "
                "not searched"
            )
        if (measure := measure_of(search.metric, self.target)) is WITHIN and not self.budget.limits:
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
            space = search.space_of(name)
            if not space:
                raise ValueError(
                    f"search.space has no keys for the variant {name!r}; it needs one, such as "
                    "'training.lr'"
                )
            taken = [key for grid in self._grids for key in grid if key in space]
            if taken:
                raise ValueError(
                    f"{taken[0]!r} is both in a grid and in search.space; allowed is one of them"
                )
            if "seed" in space:
                raise ValueError(
                    "'seed' is no key to search over; the study's 'seeds' are what runs are "
                    "repeated with"
                )

    def _used_names(self) -> Iterator[tuple[str, Iterable[Any], Collection[str]]]:
        """Names of other entries: where they stand, the names, and those that exist."""
        yield "a reference", self.references, REFERENCES
        yield "'baseline'", () if self.baseline is None else (self.baseline,), self.names
        yield "size", () if self.size is None else (self.size,), self.sizes
        for name, part in self.parts.items():
            yield f"a variant of the part {name!r}", part.variants or (), self.names
            yield f"a size of the part {name!r}", part.sizes or (), self.sizes
        for key, values in (
            item for grid in self._grids for item in grid.items() if item[0] in self.sets
        ):
            yield f"a value of {key!r} in a grid", values, self.sets[key]
        if self.search is not None:
            yield "a variant of the search", self.search.variants, self.variants
            for key, one in (
                item for name in self.variants for item in self.search.space_of(name).items()
            ):
                yield (
                    f"a value of {key!r} in search.space",
                    one.extremes if key in self.sets else (),
                    self.sets.get(key, ()),
                )
