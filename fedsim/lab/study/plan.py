"""The plan of a study: the scenario of every run, in a fixed order, before anything is run."""

import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.errors import shown as overridden
from fedsim.common.files import flat
from fedsim.common.imports import from_file, is_allowed
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.lab.compare.lines import ComparedLine, format_value, short_key
from fedsim.lab.compare.published import Published, beside_published
from fedsim.lab.reading.study_folder import RUNS
from fedsim.lab.study.search import measure_of
from fedsim.lab.study.spec import PART, REFERENCES, SIZE, TRIAL, Size, StudyPart, StudySpec
from fedsim.running.overrides import (
    SetChange,
    Tables,
    apply_changes,
    at,
    changed,
    read_toml,
    spread_out,
)
from fedsim.running.scenario import Scenario
from fedsim.running.shipped import found, is_study, shipped
from fedsim.strategies import STRATEGIES, params_class

_LONGEST_NAME = 60  # of a folder, so that its path stays below what file systems allow
_NEEDS = {
    "energy": "energy",
    "carbon": "energy",
    "battery": "energy",
    "flat": "energy",
    "cost": "costs",
}
"""Sections of a scenario without which no run has a figure, by the first word of its measure."""


@dataclass(frozen=True)
class Variant:
    """One line of a comparison: a way to change the base, at one point of the grid.

    ``point``: size and part, if any, and the grid's keys with their values; of a trial also its
    number and its values.
    """

    name: str
    point: tuple[tuple[str, Any], ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """Its name and its place in the grid, for people; different for each variant of a study."""
        return ", ".join(
            [
                self.name,
                *(
                    f"{short_key(key, dict(self.point))}={format_value(value)}"
                    for key, value in self.point
                ),
            ]
        )

    def at(self, values: Mapping[str, Any]) -> "Variant":
        return replace(self, point=(*self.point, *values.items()))

    @property
    def folder(self) -> str:
        return safe_name(self.label)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a study: the first variant with its scenario, the scenario, seed included, and
    its folder within the study's.
    """

    variant: Variant
    scenario: Scenario
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.variant.label}, seed {self.scenario.seed}"


class Study:
    """A study that can be run; runs of the same scenario are one run."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.allow_code = is_allowed()
        self.variants: list[Variant] = []  # at each point of the grid, those of one point together
        self.typed: Sequence[SetChange] = ()  # changes of the bases, as ``--set`` gives them
        # by the variant's folder, in the order of the seeds
        self.runs_of: dict[str, list[PlannedRun]] = {}
        self._first: dict[str, PlannedRun] = {}

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Seed by seed, all variants of a seed together; one of each scenario."""
        return tuple(self._first.values())

    def add(self, variants: Sequence[Variant], seeds: Sequence[int]) -> None:
        """Add a run of each variant for each seed, seed by seed; a variant that is there gets
        more runs.
        """
        known = {variant.folder.lower(): variant for variant in self.variants}
        for variant in variants:
            other = known.setdefault(variant.folder.lower(), variant)
            if other != variant:
                raise ScenarioError(
                    f"variants {other.label!r} and {variant.label!r} would share a folder; "
                    "rename one of them"
                )
            if variant.folder not in self.runs_of:
                self.variants.append(variant)
                self.runs_of[variant.folder] = []
        for variant, seed in ((variant, seed) for seed in seeds for variant in variants):
            run = planned(variant, self.spec, seed)
            self.runs_of[variant.folder].append(self._first.setdefault(run.scenario.to_toml(), run))

    def unfelt(self, folders: Collection[Path]) -> list[str]:
        """A line for each change that some of the runs in ``folders`` do not feel;
        ``ScenarioError`` if all of them do not.
        """
        chosen = [
            variant
            for variant in self.variants
            if any(run.folder in folders for run in self.runs_of[variant.folder])
        ]
        notes = []
        for change in self.typed if chosen else ():
            others = {variant.label: _layers(variant, self.spec) for variant in chosen}
            others = {
                label: layers for label, layers in others.items() if not _feels(layers, change)
            }
            if not others:
                continue
            label, layers = next(iter(others.items()))
            why = _last_word(layers, change.keys)
            if len(others) == len(chosen):
                raise ScenarioError(
                    f"--set {change.text!r} reaches none of the runs that are chosen: {why}; "
                    "change it there"
                )
            notes.append(
                f"--set {change.text!r} does not reach {len(others)} of {len(chosen)} lines, "
                f"such as {label!r}: {why}"
            )
        return notes

    def to_toml(self) -> str:
        return tomli_w.dumps(self.spec.model_dump(exclude_unset=True, mode="python"))

    def only(self, wanted: Sequence[str]) -> "frozenset[Path]":
        """The folders of the runs with one of the ``wanted`` values of each key, as
        ``KEY=VALUE``, or a variant alone.

        A key is ``variant``, ``seed`` or one of ``point``, in full or its last part; another one
        raises ``ScenarioError``.
        """
        asked: dict[str, list[str]] = {}
        for text in wanted:
            key, _, value = (text if "=" in text else f"variant={text}").partition("=")
            asked.setdefault(key.strip(), []).append(value.strip())
        facts = []
        for variant in self.variants:
            point = {key: format_value(value) for key, value in variant.point}
            said = {
                "variant": variant.name,
                "seed": "",
                **{short_key(key, point): point[key] for key in point},
                **point,
            }
            facts += [
                (run.folder, said | {"seed": str(run.scenario.seed)})
                for run in self.runs_of[variant.folder]
            ]
        for key, values in asked.items():
            known = list(dict.fromkeys(said[key] for _, said in facts if key in said))
            if not known:
                keys = list(dict.fromkeys(name for _, said in facts for name in said))
                raise ScenarioError(
                    f"--only names {key!r}; allowed are {', '.join(keys)}{nearest(key, keys)}"
                )
            for value in values:
                if value not in known:
                    raise ScenarioError(
                        f"--only {key} is {value!r}; allowed are "
                        f"{', '.join(known)}{nearest(value, known)}"
                    )
        chosen = [
            (folder, said)
            for folder, said in facts
            if all(said.get(key) in values for key, values in asked.items())
        ]
        for key, value in ((key, value) for key, values in asked.items() for value in values):
            if not any(said[key] == value for _, said in chosen):
                raise ScenarioError(
                    f"--only {key}={value} chooses no run that the other --only choose too; "
                    "leave one of them out"
                )
        return frozenset(folder for folder, _ in chosen)


def read_study(
    study: str | Path | Mapping[str, Any],
    changes: Sequence[str] = (),
    *,
    size: str | None = None,
    seeds: int | None = None,
    allow_code: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Study:
    """Read a study and the files that it names; for ``tell`` see ``fedsim.load``.
    ``ScenarioError``: it cannot be run.

    Args:
        study: a TOML file, the name of a shipped one, or tables, whose paths are relative to the
            working directory.
        changes: ``key.path=value`` texts that override the bases.
        size, seeds: replace the study's own; the seeds are 1 to ``seeds``.
        allow_code: whether code that it names by import path may be imported; see
            ``fedsim.common.imports``.
    """
    if isinstance(study, Mapping):
        tables = deepcopy(dict(study))
        folder = Path()
        called = "this"
    else:
        path = found(study)
        tables = read_toml(path, "study")
        folder = path.parent
        called = repr(str(path))
    if not is_study(tables) and {"strategy", "stop", "data", "population", "network"} & set(tables):
        raise ScenarioError(
            f"{called} is a scenario, not a study: 'fedsim run' runs it, and a study names it "
            "as its 'base'"
        )
    if isinstance(tables.get("published"), str):
        tables["published"] = read_toml(folder / tables["published"], "published figures")
    if isinstance(tables.get("parts"), dict):
        tables["parts"] = {name: _extended(name, tables["parts"]) for name in tables["parts"]}
    named = [
        said
        for key in ("sizes", "parts")
        if isinstance(tables.get(key), dict)
        for said in tables[key].values()
    ]
    bases: list[Tables] = []
    for said in (tables, *(said for said in named if isinstance(said, dict))):
        if isinstance(said.get("base"), str):
            name = said["base"]
            path = folder / said["base"]
            said["base"] = read_toml(
                found(name) if name in shipped() and not path.exists() else path, "base scenario"
            )
            if is_study(said["base"]):
                raise ScenarioError(f"base is {name!r}, which is a study; allowed is a scenario")
        if isinstance(said.get("base"), dict):
            said["base"].pop("seed", None)  # the study's seeds count
            bases.append(said["base"])
    tables |= {} if size is None else {"size": size}
    tables |= {} if seeds is None else {"seeds": [*range(1, seeds + 1)]}
    with from_file(allow_code):
        typed = apply_changes(bases, changes, Scenario, tell)
        spec = StudySpec(**tables)
        runs = plan(spec)
        _refuse_lost(spec, typed)
        runs.typed = typed
        return runs


def _extended(name: str, parts: Mapping[str, Any], of: Sequence[str] = ()) -> Any:
    """The tables of a part; one that extends another is merged into that one."""
    part = parts[name]
    if not isinstance(part, dict):
        return part
    if isinstance(part.get("changes"), dict):
        part = part | {"changes": spread_out(part["changes"])}
    if "extends" not in part:
        return part
    allowed = [one for one in parts if one not in (*of, name)]
    if part["extends"] not in allowed:
        known = f"{', '.join(allowed)}{nearest(str(part['extends']), allowed)}"
        raise ScenarioError(f"parts.{name}.extends is {part['extends']!r}; allowed are {known}")
    own = {key: value for key, value in part.items() if key != "extends"}
    return changed(_extended(part["extends"], parts, [*of, name]), own)


def plan(spec: StudySpec) -> Study:
    """The runs of a study; of one that searches those of its references, see
    ``fedsim.lab.study.trials``.
    """
    variants = variants_of(spec)
    if spec.published is not None:  # a row that is none of the study's is refused here
        lines = [ComparedLine(variant.name, (), 0, variant.point) for variant in variants]
        beside_published(lines, Published(**spec.published))
    study = Study(spec)
    trials = [] if spec.search is None else searched(spec)
    study.add([variant for variant in variants if variant not in trials], spec.seeds)
    return study


def variants_of(spec: StudySpec) -> list[Variant]:
    """The variants of each part at each point of its grid."""
    size = spec.chosen_size
    found = []
    for name, part in (spec.parts or {"": StudyPart()}).items():
        if part.sizes is not None and size is not None and size[0] not in part.sizes:
            continue
        where = [*([(SIZE, size[0])] if size else []), *([(PART, name)] if name else [])]
        grid = spec.grid | part.grid
        for values in itertools.product(*grid.values()):
            point = (*where, *zip(grid, values, strict=True))
            for one in spec.names if part.variants is None else part.variants:
                here = (part.variants or {}).get(one, {})
                found.append(
                    Variant(
                        one,
                        point,
                        changed(spread_out(spec.variants.get(one, {})), spread_out(here)),
                    )
                )
    return found


def searched(spec: StudySpec) -> list[Variant]:
    """The variants at each point of the grid that are searched; each is refused whose runs are
    invalid or lack the metric.
    """
    assert spec.search is not None
    metric = measure_of(spec.search.metric, spec.target)
    assert metric is not None
    first, _, named = metric.name.partition(" ")
    needs = _NEEDS.get(first)
    variants = [variant for variant in variants_of(spec) if variant.name not in spec.references]
    tried = (
        one.at({key: end})
        for one in variants
        for key, of in spec.search.space_of(one.name).items()
        for end in of.extremes
    )
    for variant in tried:
        scenario = planned(variant, spec, spec.seeds[0]).scenario
        lacks = f"[{needs}]" if needs and getattr(scenario, needs) is None else ""
        if named in MORE_IS_BETTER and named not in scenario.objective.metrics:
            lacks = f"objective.metrics = [{named!r}]"
        learns = metric.topic in ("accuracy", "to target")
        lacks = lacks or ('learning = "on"' if learns and scenario.learning == "off" else "")
        if lacks:
            wanted = f"search.metric is {spec.search.metric!r}, which needs {lacks}"
            raise ScenarioError(f"{wanted}; variant {variant.label!r} has none")
    return variants


def planned(variant: Variant, spec: StudySpec, seed: int) -> PlannedRun:
    """A run of the base, changed by size, part, variant and grid, in this order; a
    ``ScenarioError`` names the variant.
    """
    try:
        tables: Tables = reduce(changed, _layers(variant, spec).values(), {})
        tables = tables if variant.name in spec.variants else REFERENCES[variant.name](tables)
        return PlannedRun(
            variant, Scenario(**tables | {"seed": seed}), Path(RUNS, variant.folder, f"seed-{seed}")
        )
    except ScenarioError as error:
        raise ScenarioError(f"variant {variant.label!r}: {error}") from None


def _layers(variant: Variant, spec: StudySpec) -> dict[str, Mapping[str, Any]]:
    point = {key: value for key, value in variant.point if key != TRIAL}
    size_name = point.pop(SIZE, "")
    part_name = point.pop(PART, "")
    size = spec.sizes.get(size_name, Size())
    part = spec.parts.get(part_name, StudyPart())
    layers: dict[str, Mapping[str, Any]] = {
        "base": part.base or size.base or spec.base,
        f"sizes.{size_name}.changes": spread_out(size.changes),
        f"parts.{part_name}.changes": spread_out(part.changes),
    }
    if variant.name in spec.variants:
        layers[f"variants.{variant.name}"] = spread_out(variant.changes)
    for key, value in point.items():
        sets = {**spec.sets.get(key, {}), **size.sets.get(key, {})}
        layers[f"sets.{key}.{value}" if sets else f"grid.{key}"] = spread_out(
            sets[value] if sets else {key: value}
        )
    return layers


def _feels(layers: Mapping[str, Mapping[str, Any]], change: SetChange) -> bool:
    return change.holds_in(reduce(changed, layers.values(), {}))


def _last_word(layers: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> str:
    """Words for the last layer that gives a key, or a table around it, and its value there."""
    for where in reversed([*layers]):
        for depth in range(len(keys), 0, -1):
            value = at(layers[where], keys[:depth])
            if value is not None:
                return f"{where} says {'.'.join(keys[:depth])} = {overridden(value)}"
    return "nothing of it is left"


def _refuse_lost(spec: StudySpec, changes: Sequence[SetChange]) -> None:
    """Refuse keys of a study, or changes of it, that reach no run; of the base only keys that
    its own strategy lacks too.
    """
    counts: dict[tuple[str, str], bool] = {}
    for variant in variants_of(spec):
        if spec.search is not None and variant.name in spec.variants:
            variant = variant.at(
                {key: one.extremes[0] for key, one in spec.search.space_of(variant.name).items()}
            )
        layers = _layers(variant, spec)
        tables: Tables = reduce(changed, layers.values(), {})
        tables.pop("seed", None)
        found = [(("--set", change.text), change.holds_in(tables)) for change in changes]
        for where, layer in layers.items():
            for key in flat(layer) if where != "base" else _strange(layer):
                found.append(
                    ((where, key), key.endswith("kind") or at(tables, key.split(".")) is not None)
                )
        for said, counted in found:
            counts[said] = counts.get(said, False) or counted
    for where, key in (said for said, counted in counts.items() if not counted):
        *above, last = key.partition("=")[0].split(".")
        there = at(planned(variant, spec, spec.seeds[0]).scenario.model_dump(), above) or {}
        why = "another 'kind' drops it, or the variants say something else" + nearest(last, there)
        hint = "; the study's 'seeds' count" if key.startswith("seed") else ""
        raise ScenarioError(f"{where} says {key!r}, which reaches no run: {why}{hint}")


def _strange(base: Mapping[str, Any]) -> list[str]:
    """Keys of a base's strategy that this strategy lacks; a variant's may have them."""
    strategy = base.get("strategy")
    kind = strategy.get("kind", STRATEGIES.usual) if isinstance(strategy, Mapping) else None
    takes = (
        params_class(kind).takes() if isinstance(kind, str) and kind in STRATEGIES.kinds else None
    )
    return [f"strategy.{key}" for key in strategy or () if takes is not None and key not in takes]


def safe_name(name: str) -> str:
    """A name as a folder's: letters, digits and ``-_.=,+`` stay; one that had to be altered ends
    in part of its sha256.
    """
    plain = name.replace(", ", ",")
    kept = re.sub(r"[^A-Za-z0-9_.=,+-]", "_", plain)
    if (
        kept == plain
        and len(kept) <= _LONGEST_NAME
        and kept[:1].isalnum()
        and not kept.endswith(".")
    ):
        return kept
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{kept[:_LONGEST_NAME].lstrip('-_.=,+') or 'variant'}-{digest}"
