"""The plan of a study: the scenario of every run, in a fixed order, before anything is run."""

import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.errors import ScenarioError, nearest
from fedsim.files import flat
from fedsim.lab.compare.lines import ComparedLine, short_key, shown
from fedsim.lab.compare.published import Published, beside_published
from fedsim.lab.study.references import REFERENCES
from fedsim.lab.study.search import METRICS
from fedsim.lab.study.spec import PART, SIZE, TRIAL, Size, StudyPart, StudySpec
from fedsim.language.imports import from_file, is_allowed
from fedsim.language.stop import MORE_IS_BETTER
from fedsim.overrides import SetChange, Tables, apply_changes, at, changed, read_toml, spread_out
from fedsim.records.study_folder import RUNS
from fedsim.scenario import Scenario
from fedsim.shipped import found, is_study, shipped
from fedsim.strategies import STRATEGIES, params_class

_LONGEST_NAME = 60  # of a folder, so that its path stays below what file systems allow


@dataclass(frozen=True)
class Variant:
    """One line of a comparison: a way to change the base, at one point of the grid.

    Attributes:
        name: as in the study file.
        point: the size and the part, if there are any, and the grid's keys with their values; of a trial also its number, and
            the values of the keys that are searched over.
        changes: of the base, besides.
    """

    name: str
    point: tuple[tuple[str, Any], ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """Its name and its place in the grid, for people; different for each variant of a study."""
        return ", ".join([self.name, *(f"{short_key(key, dict(self.point))}={shown(value)}" for key, value in self.point)])

    def at(self, values: Mapping[str, Any]) -> "Variant":
        """The variant with values of further keys."""
        return replace(self, point=(*self.point, *values.items()))

    @property
    def folder(self) -> str:
        """A name fit for a folder, and different for each variant of a study."""
        return safe_name(self.label)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a study: the first variant with its scenario, the scenario, seed included, and its folder within the study's."""

    variant: Variant
    scenario: Scenario
    folder: Path

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.variant.label}, seed {self.scenario.seed}"


class Study:
    """A study that can be run; runs of the same scenario are one run.

    Attributes:
        spec: the content of its file.
        variants: the variants at each point of the grid, those of one point together.
        runs_of: the runs of each variant, by its folder, in the order of the seeds.
        allow_code: whether code that it names was allowed.
    """

    def __init__(self, spec: StudySpec) -> None:
        self.spec, self.allow_code = spec, is_allowed()
        self.variants: list[Variant] = []
        self.runs_of: dict[str, list[PlannedRun]] = {}
        self._first: dict[str, PlannedRun] = {}

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Seed by seed, all variants of a seed together; one of each scenario."""
        return tuple(self._first.values())

    def add(self, variants: Sequence[Variant], seeds: Sequence[int]) -> None:
        """Add a run of each variant for each seed, seed by seed; a variant that is there gets more runs."""
        known = {variant.folder.lower(): variant for variant in self.variants}
        for variant in variants:
            other = known.setdefault(variant.folder.lower(), variant)
            if other != variant:
                raise ScenarioError(f"variants {other.label!r} and {variant.label!r} would share a folder; rename one of them")
            if variant.folder not in self.runs_of:
                self.variants.append(variant)
                self.runs_of[variant.folder] = []
        for variant, seed in ((variant, seed) for seed in seeds for variant in variants):
            run = planned(variant, self.spec, seed)
            self.runs_of[variant.folder].append(self._first.setdefault(run.scenario.to_toml(), run))

    def to_toml(self) -> str:
        """The study as one file that needs no other."""
        return tomli_w.dumps(self.spec.model_dump(exclude_unset=True, mode="python"))

    def only(self, wanted: Sequence[str]) -> "frozenset[Path]":
        """The folders of the runs with one of the values that are ``wanted`` of each key.

        Args:
            wanted: ``KEY=VALUE`` texts; a key is ``variant``, ``seed`` or one of ``point``, in full or its last part. A
                ``VALUE`` alone is a variant.

        Raises:
            ScenarioError: there is no such key, or no such value of it.
        """
        asked: dict[str, list[str]] = {}
        for text in wanted:
            key, _, value = (text if "=" in text else f"variant={text}").partition("=")
            asked.setdefault(key.strip(), []).append(value.strip())
        runs = ((variant, run) for variant in self.variants for run in self.runs_of[variant.folder])
        facts = [(run.folder, _facts(variant, run.scenario.seed)) for variant, run in runs]
        for key, values in asked.items():
            known = list(dict.fromkeys(said[key] for _, said in facts if key in said))
            if not known:
                keys = list(dict.fromkeys(name for _, said in facts for name in said))
                raise ScenarioError(f"--only names {key!r}; allowed are {', '.join(keys)}{nearest(key, keys)}")
            for value in values:
                if value not in known:
                    raise ScenarioError(f"--only {key} is {value!r}; allowed are {', '.join(known)}{nearest(value, known)}")
        return frozenset(folder for folder, said in facts if all(said.get(key) in values for key, values in asked.items()))


def _facts(variant: Variant, seed: int) -> dict[str, str]:
    point = {key: shown(value) for key, value in variant.point}
    shorts = {short_key(key, point): value for key, value in point.items()}
    return {"variant": variant.name, "seed": str(seed)} | shorts | point


def read_study(
    study: str | Path | Mapping[str, Any],
    changes: Sequence[str] = (),
    *,
    size: str | None = None,
    seeds: int | None = None,
    allow_code: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Study:
    """Read a study file, and the files that it names.

    Args:
        study: a TOML file, or the name of one that comes with fedsim; or the tables of one, whose paths lead from here.
        changes: ``key.path=value`` texts that override the base, and those of sizes and parts.
        size: instead of its own.
        seeds: so many, from 1 on, instead of its own.
        allow_code: whether code that it names by import path may be imported; see ``fedsim.language.imports``.
        tell: see ``fedsim.load``.

    Raises:
        ScenarioError: a file cannot be read, or its study cannot be run; for a run the message names the variant.
    """
    if isinstance(study, Mapping):
        tables, folder = deepcopy(dict(study)), Path()
    else:
        path = found(study)
        tables, folder = read_toml(path, "study"), path.parent
    if not is_study(tables) and {"strategy", "stop", "data", "population", "network"} & set(tables):
        name = "this" if isinstance(study, Mapping) else repr(str(path))
        raise ScenarioError(f"{name} is a scenario, not a study: 'fedsim run' runs it, and a study names it as its 'base'")
    if isinstance(tables.get("published"), str):
        tables["published"] = read_toml(folder / tables["published"], "published figures")
    if isinstance(tables.get("parts"), dict):
        tables["parts"] = {name: _extended(name, tables["parts"]) for name in tables["parts"]}
    named = [said for key in ("sizes", "parts") if isinstance(tables.get(key), dict) for said in tables[key].values()]
    bases: list[Tables] = []
    for said in (tables, *(said for said in named if isinstance(said, dict))):
        if isinstance(said.get("base"), str):
            name, path = said["base"], folder / said["base"]
            said["base"] = read_toml(found(name) if name in shipped() and not path.exists() else path, "base scenario")
            if is_study(said["base"]):
                raise ScenarioError(f"base is {name!r}, which is a study; allowed is a scenario")
        if isinstance(said.get("base"), dict):
            said["base"].pop("seed", None)  # the study's seeds count
            bases.append(said["base"])
    if size is not None:
        tables["size"] = size
    if seeds is not None:
        tables["seeds"] = [*range(1, seeds + 1)]
    with from_file(allow_code):
        typed = apply_changes(bases, changes, Scenario, tell)
        spec = StudySpec(**tables)
        runs = plan(spec)
        _refuse_lost(spec, typed)
        return runs


def _extended(name: str, parts: Mapping[str, Any], of: Sequence[str] = ()) -> Any:
    """The tables of a part; one that extends another is merged into that one."""
    if not isinstance(parts[name], dict) or "extends" not in parts[name]:
        return parts[name]
    own = dict(parts[name])
    other = own.pop("extends")
    allowed = [part for part in parts if part not in (*of, name)]
    if other not in allowed:
        known = f"{', '.join(allowed)}{nearest(str(other), allowed)}"
        raise ScenarioError(f"parts.{name}.extends is {other!r}; allowed are {known}")
    return changed(_spread(_extended(other, parts, [*of, name])), _spread(own))


def _spread(part: Any) -> Any:
    changes = part.get("changes") if isinstance(part, dict) else None
    return part | {"changes": spread_out(changes)} if isinstance(changes, dict) else part


def plan(spec: StudySpec) -> Study:
    """The runs of a study; of one that searches those of its references, see ``fedsim.lab.study.trials``."""
    variants = variants_of(spec)
    if spec.published is not None:  # a row that is none of the study's is refused here
        beside_published(
            [ComparedLine(variant.name, (), 0, variant.point) for variant in variants], Published(**spec.published)
        )
    study, trials = Study(spec), [] if spec.search is None else searched(spec)
    study.add([variant for variant in variants if variant not in trials], spec.seeds)
    return study


def variants_of(spec: StudySpec) -> list[Variant]:
    """The variants of each part at each point of its grid."""
    size, found = spec.chosen_size, []
    for name, part in (spec.parts or {"": StudyPart()}).items():
        if part.sizes is not None and size is not None and size[0] not in part.sizes:
            continue
        where = [*([(SIZE, size[0])] if size else []), *([(PART, name)] if name else [])]
        grid = spec.grid | part.grid
        for values in itertools.product(*grid.values()):
            point = (*where, *zip(grid, values, strict=True))
            for one in spec.names if part.variants is None else part.variants:
                here = (part.variants or {}).get(one, {})
                found.append(Variant(one, point, changed(spread_out(spec.variants.get(one, {})), spread_out(here))))
    return found


def searched(spec: StudySpec) -> list[Variant]:
    """The variants at each point of the grid that are searched; each is refused whose runs are invalid or lack the metric."""
    search = spec.search
    assert search is not None
    search.refuse_if_missing()
    needs = METRICS[search.metric].needs
    variants = [variant for variant in variants_of(spec) if variant.name not in spec.references]
    for one in variants:
        for key, values in search.space_of(one.name).items():
            for variant in (one.at({key: value}) for value in values.extremes):
                scenario = planned(variant, spec, spec.seeds[0]).scenario
                lacks = f"[{needs}]" if needs in ("energy", "costs") and getattr(scenario, needs) is None else ""
                wanted = METRICS[search.metric].measure.partition(" ")[2]
                if wanted in MORE_IS_BETTER and wanted not in scenario.objective.metrics:
                    lacks = f"objective.metrics = [{wanted!r}]"
                lacks = lacks or ('learning = "on"' if needs is not None and scenario.learning == "off" else "")
                if lacks:
                    raise ScenarioError(
                        f"search.metric is {search.metric!r}, which needs {lacks}; variant {variant.label!r} has none"
                    )
    return variants


def planned(variant: Variant, spec: StudySpec, seed: int) -> PlannedRun:
    """A run of the base, changed by the size, the part, the variant and its place in the grid, in this order.

    Raises:
        ScenarioError: it cannot be run; the message names the variant.
    """
    try:
        tables = _merged(_layers(variant, spec))
        tables = tables if variant.name in spec.variants else REFERENCES[variant.name](tables)
        return PlannedRun(variant, Scenario(**tables | {"seed": seed}), Path(RUNS, variant.folder, f"seed-{seed}"))
    except ScenarioError as error:
        raise ScenarioError(f"variant {variant.label!r}: {error}") from None


def _merged(layers: Mapping[str, Mapping[str, Any]]) -> Tables:
    return functools.reduce(changed, layers.values(), {})


def _layers(variant: Variant, spec: StudySpec) -> dict[str, Mapping[str, Any]]:
    """The tables that make up a variant's, by their place in the study."""
    point = {key: value for key, value in variant.point if key != TRIAL}
    size_name, part_name = point.pop(SIZE, ""), point.pop(PART, "")
    size, part = spec.sizes.get(size_name, Size()), spec.parts.get(part_name, StudyPart())
    layers: dict[str, Mapping[str, Any]] = {
        "base": part.base or size.base or spec.base,
        f"sizes.{size_name}.changes": spread_out(size.changes),
        f"parts.{part_name}.changes": spread_out(part.changes),
    }
    if variant.name in spec.variants:
        layers[f"variants.{variant.name}"] = spread_out(variant.changes)
    for key, value in point.items():
        sets = {**spec.sets.get(key, {}), **size.sets.get(key, {})}
        layers[f"sets.{key}.{value}" if sets else f"grid.{key}"] = spread_out(sets[value] if sets else {key: value})
    return layers


def _refuse_lost(spec: StudySpec, changes: Sequence[SetChange]) -> None:
    """Refuse keys of a study, or changes of it, that reach no run: mostly another ``kind`` drops them.

    Of the base only keys are refused that its own strategy lacks too, since it may be a scenario used elsewhere.
    """
    counts: dict[tuple[str, str], bool] = {}
    for variant in variants_of(spec):
        if spec.search is not None and variant.name in spec.variants:
            variant = variant.at({key: one.extremes[0] for key, one in spec.search.space_of(variant.name).items()})
        layers = _layers(variant, spec)
        tables = {key: value for key, value in _merged(layers).items() if key != "seed"}
        for change in changes:
            said = "--set", change.text
            counts[said] = counts.get(said, False) or change.holds_in(tables)
        for where, layer in layers.items():
            for key in flat(layer) if where != "base" else _strange(layer):
                counts[where, key] = (
                    counts.get((where, key), False) or key.endswith("kind") or at(tables, key.split(".")) is not None
                )
    for (where, key), counted in counts.items():
        if not counted:
            *above, last = key.partition("=")[0].split(".")
            there = at(planned(variant, spec, spec.seeds[0]).scenario.model_dump(), above) or {}
            raise ScenarioError(
                f"{where} says {key!r}, which reaches no run: another 'kind' drops it, or the variants say something "
                f"else{nearest(last, there)}" + ("; the study's 'seeds' count" if key.startswith("seed") else "")
            )


def _strange(base: Mapping[str, Any]) -> list[str]:
    """Keys of a base's strategy that this strategy lacks; a variant's may have them."""
    strategy = base.get("strategy")
    kind = strategy.get("kind", STRATEGIES.usual) if isinstance(strategy, Mapping) else None
    takes = params_class(kind).takes() if isinstance(kind, str) and kind in STRATEGIES.kinds else None
    return [f"strategy.{key}" for key in strategy or () if takes is not None and key not in takes]


def safe_name(name: str) -> str:
    """A name as a folder's: letters, digits and ``-_.=,+`` stay; one that had to be altered ends in part of its sha256."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.=,+") else "_" for c in name.replace(", ", ","))
    if kept == name.replace(", ", ",") and len(kept) <= _LONGEST_NAME and kept[:1].isalnum() and not kept.endswith("."):
        return kept
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{kept[:_LONGEST_NAME].lstrip('-_.=,+') or 'variant'}-{digest}"
