"""The plan of a study: the scenario of every run, in a fixed order, before anything is run."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import flatten
from fedsim.common.imports import code_from_file, is_allowed
from fedsim.common.round_words import counted
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.lab.compare.lines import ComparedLine, format_value, short_key
from fedsim.lab.compare.published import Published, beside_published
from fedsim.lab.reading.study_folder import RUNS, IndexedSure
from fedsim.lab.study.search import measure_of
from fedsim.lab.study.spec import PART, REFERENCES, SIZE, StudyPart, StudySpec
from fedsim.lab.study.variant import Variant, find_last_layer, layers_of, merge
from fedsim.running.overrides import (
    SetChange,
    Tables,
    apply_changes,
    at,
    changed,
    nest_dotted_keys,
    read_toml,
)
from fedsim.running.scenario import Scenario
from fedsim.running.shipped import find_file, is_study, shipped
from fedsim.strategies import STRATEGIES, params_class

_SECTION_OF_QUANTITY = {
    "energy": "energy",
    "carbon": "energy",
    "battery": "energy",
    "flat devices": "energy",
    "cost": "costs",
}
"""Sections of a scenario that a measure needs, by the measure's quantity."""


@dataclass(frozen=True)
class PlannedRun:
    """Run that a study needs: the scenario of a variant with a seed, and the run's folder.

    Attributes:
        variant: variant that the run belongs to; the first one if several have equal scenarios.
        scenario: scenario of the run, with its seed.
        folder: run folder, relative to the study's folder.
    """

    variant: Variant
    scenario: Scenario
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.variant.label}, seed {self.scenario.seed}"


class Study:
    """Study as read from its file, with all runs that are planned for it so far.

    Variants with equal scenarios share a run. ``add`` plans more runs, for trials of a search or
    for seeds that are added.

    Attributes:
        spec: content of the study's file.
        allow_code: whether to import code that the study names by import path.
        variants: variants at all points of the grid, point by point.
        typed: changes of the base scenarios that the user has typed with ``--set``.
        runs_of: dict from a variant's folder to the variant's runs, in the order of the seeds.
        until_sure: rule by which seeds are added; None for the same seeds of all variants.
    """

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.allow_code = is_allowed()
        self.variants: list[Variant] = []
        self.typed: Sequence[SetChange] = ()
        self.runs_of: dict[str, list[PlannedRun]] = {}
        self.until_sure: IndexedSure | None = None
        self._first_run_of: dict[str, PlannedRun] = {}  # scenario as TOML -> the first run of it

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """All runs that are planned so far, each scenario once, in the order of planning."""
        return tuple(self._first_run_of.values())

    def add(self, variants: Sequence[Variant], seeds: Sequence[int]) -> None:
        """Plan a run of each variant for each seed, seed by seed, and add the runs to the study.

        A run with the same scenario as an earlier one is not added again, but counts for both
        variants.

        Args:
            variants: the variants, new or already in the study.
            seeds: the seeds.

        Raises:
            ScenarioError: two variants would share a folder, or a scenario is invalid.
        """
        # folders whose names differ only in case are one folder on some systems
        by_folder = {variant.folder.lower(): variant for variant in self.variants}
        for variant in variants:
            namesake = by_folder.setdefault(variant.folder.lower(), variant)
            if namesake != variant:
                raise ScenarioError(
                    f"variants {namesake.label!r} and {variant.label!r} would share a folder; "
                    "rename one of them"
                )
            if variant.folder not in self.runs_of:
                self.variants.append(variant)
                self.runs_of[variant.folder] = []
        for seed, variant in itertools.product(seeds, variants):  # all variants of a seed first
            run = plan_run(variant, self.spec, seed)
            first_run = self._first_run_of.setdefault(run.scenario.to_toml(), run)
            self.runs_of[variant.folder].append(first_run)

    def notes_on_ineffective_changes(self, folders: Collection[Path]) -> list[str]:
        """Return sentences on changes by ``--set`` that do not reach all of the chosen runs.

        In the other runs, a later change, such as a variant's, overrides the value of ``--set``.

        Args:
            folders: folders of the chosen runs.

        Raises:
            ScenarioError: a change has no effect in any chosen run.
        """
        chosen_variants = []
        for variant in self.variants:
            if any(run.folder in folders for run in self.runs_of[variant.folder]):
                chosen_variants.append(variant)
        notes = []
        for change in self.typed:
            unreached = []
            for variant in chosen_variants:
                layers = layers_of(variant, self.spec)
                if not change.holds_in(merge(layers)):
                    unreached.append((variant.label, layers))
            if not unreached:
                continue
            label, layers = unreached[0]
            reason = find_last_layer(layers, change.keys)
            if len(unreached) == len(chosen_variants):
                raise ScenarioError(
                    f"--set {change.text!r} reaches none of the runs that are chosen: {reason}; "
                    "change it there"
                )
            notes.append(
                f"--set {change.text!r} does not reach {len(unreached)} of "
                f"{counted(len(chosen_variants), 'line')}, such as {label!r}: {reason}"
            )
        return notes

    def to_toml(self) -> str:
        return tomli_w.dumps(self.spec.model_dump(exclude_unset=True, mode="python"))

    def only(self, texts: Sequence[str]) -> "frozenset[Path]":
        """Return the folders of the runs that the option ``--only`` selects.

        Args:
            texts: ``KEY=VALUE``, or the name of a variant. A key is ``variant``, ``seed``,
                ``size`` or ``part`` (tables ``[sizes]`` and ``[parts]`` of the study), or a key of
                the study's grid, in full or its last part. A run needs one of the values of each
                key.

        Raises:
            ScenarioError: no run has a given key or value, or no run has values of all given keys.
        """
        request = _split_request(texts)
        candidates = list(self._selectable_values())  # lists a run twice if two parts share it
        for key, value in request:
            _refuse_unknown(key, value, [values for _, values in candidates])
        requested_values: dict[str, set[str]] = {}
        for key, value in request:
            requested_values.setdefault(key, set()).add(value)
        selection = []
        for folder, values in candidates:
            if all(values.get(key) in allowed for key, allowed in requested_values.items()):
                selection.append((folder, values))
        for key, value in request:
            if not any(values[key] == value for _, values in selection):
                raise ScenarioError(
                    f"--only {key}={value} chooses no run that the other --only choose too; "
                    "leave one of them out"
                )
        return frozenset(folder for folder, _ in selection)

    def _selectable_values(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """Yield the folder of each run, and the values by which ``--only`` can select the run.

        The values are texts by key: the variant, the seed, and the values of the study's grid by
        their full and by their short key (the last part).
        """
        for variant in self.variants:
            point = {key: format_value(value) for key, value in variant.point}
            values = {"variant": variant.name, "seed": ""}
            for key in point:
                values[short_key(key, point)] = point[key]
            values.update(point)
            for run in self.runs_of[variant.folder]:
                yield run.folder, {**values, "seed": str(run.scenario.seed)}


def _split_request(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return key and value of each text of ``--only``; a text without ``=`` names a variant."""
    request = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            key = "variant"
            value = text
        request.append((key.strip(), value.strip()))
    return request


def _refuse_unknown(key: str, value: str, values_of_runs: Sequence[Mapping[str, str]]) -> None:
    """Raise ``ScenarioError`` if ``--only KEY=VALUE`` names a key or a value that no run has.

    Args:
        key: the key.
        value: the value.
        values_of_runs: for each run, its values by key.
    """
    options = list(dict.fromkeys(values[key] for values in values_of_runs if key in values))
    if not options:
        keys = list(dict.fromkeys(itertools.chain.from_iterable(values_of_runs)))
        raise ScenarioError(
            f"--only names {key!r}; allowed are {', '.join(keys)}{nearest(key, keys)}"
        )
    if value not in options:
        allowed = f"{', '.join(options)}{nearest(value, options)}"
        raise ScenarioError(f"--only {key} is {value!r}; allowed are {allowed}")


def read_study(
    study: str | Path | Mapping[str, object],
    changes: Sequence[str] = (),
    *,
    size: str | None = None,
    seeds: int | None = None,
    until_sure: Mapping[str, object] | None = None,
    allow_code: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Study:
    """Read a study and the files that it names, and plan its runs.

    Args:
        study: a TOML file, the name of a shipped study, or tables, whose paths are relative to the
            working directory.
        changes: ``key.path=value`` texts that override the base scenarios of the study, its sizes
            and its parts.
        size: name of a size, which overrides ``size`` of the study.
        seeds: replaces the study's seeds by 1 to ``seeds``.
        until_sure: keys that override keys of the study's table ``[until_sure]``.
        allow_code: whether to import code that the study names by import path; see
            ``fedsim.common.imports``.
        tell: called with a message for each key dropped because ``changes`` alter the ``kind`` of
            its table.

    Raises:
        ScenarioError: the study is invalid, or a file is missing.
    """
    tables, folder = _read_study_file(study)
    if isinstance(tables.get("published"), str):
        tables["published"] = read_toml(folder / tables["published"], "published figures")
    if isinstance(tables.get("parts"), dict):
        tables["parts"] = {part: _extend(part, tables["parts"]) for part in tables["parts"]}
    # the bases are read after all parts are extended, as a part may take its base from another part
    bases = _read_bases(tables, folder)
    if size is not None:
        tables["size"] = size
    if seeds is not None:
        tables["seeds"] = [*range(1, seeds + 1)]
    if until_sure is not None:
        tables["until_sure"] = {**tables.get("until_sure", {}), **until_sure}
    with code_from_file(allow_code):
        typed = apply_changes(bases, changes, Scenario, tell)  # alters the bases in ``tables``
        spec = StudySpec(**tables)
        planned_study = plan(spec)
        _refuse_ineffective(spec, typed)
        planned_study.typed = typed
        return planned_study


def _read_study_file(study: str | Path | Mapping[str, object]) -> tuple[Tables, Path]:
    """Return the tables of a study, and the folder to which their paths are relative.

    Args:
        study: a TOML file, the name of a shipped study, or tables, of which a copy is returned.

    Raises:
        ScenarioError: there is no such study, or it is a scenario.
    """
    if isinstance(study, Mapping):
        tables: Tables = deepcopy(dict(study))
        folder = Path()
        name = "this"
    else:
        path = find_file(study)
        tables = read_toml(path, "study")
        folder = path.parent
        name = repr(str(path))
    sections_of_scenarios = {"strategy", "stop", "data", "population", "network"}
    if not is_study(tables) and sections_of_scenarios & set(tables):
        raise ScenarioError(
            f"{name} is a scenario, not a study: 'fedsim run' runs it, and a study names it "
            "as its 'base'"
        )
    return tables, folder


def _read_bases(tables: Tables, folder: Path) -> list[Tables]:
    """Read the base scenarios that a study names by path, and return the tables of all its bases.

    A study has a base scenario. Its sizes (such as a small one for a quick trial) and its parts
    (some of the variants) may have their own. A seed in a base is removed, as the study has the
    seeds.

    Args:
        tables: tables of a study, in which each path of a base is replaced by the base's tables.
        folder: folder to which paths are relative.
    """
    owners: list[object] = [tables]
    for section in ("sizes", "parts"):
        if isinstance(tables.get(section), dict):
            owners += tables[section].values()
    bases: list[Tables] = []
    for owner in owners:
        if not isinstance(owner, dict):
            continue
        name = owner.get("base")
        if isinstance(name, str):
            path = folder / name
            if name in shipped() and not path.exists():
                path = find_file(name)
            owner["base"] = read_toml(path, "base scenario")
            if is_study(owner["base"]):
                raise ScenarioError(f"base is {name!r}, which is a study; allowed is a scenario")
        if isinstance(owner.get("base"), dict):
            owner["base"].pop("seed", None)  # the study's seeds replace the base's seed
            bases.append(owner["base"])
    return bases


def _extend(name: str, parts: Mapping[str, object], extending_parts: Sequence[str] = ()) -> Any:
    """Return the tables of a part of a study, merged into the tables of the part that it extends.

    Args:
        name: name of the part.
        parts: the tables of all parts.
        extending_parts: names of the parts that extend the part, directly or through others. The
            part must extend none of these.

    Raises:
        ScenarioError: the part extends itself, or a part that does not exist.
    """
    part = parts[name]
    if not isinstance(part, dict):
        return part  # no table: the validation of the whole study raises an error
    if isinstance(part.get("changes"), dict):
        part = part | {"changes": nest_dotted_keys(part["changes"])}
    if "extends" not in part:
        return part
    allowed = [candidate for candidate in parts if candidate not in (*extending_parts, name)]
    if part["extends"] not in allowed:
        hint = f"{', '.join(allowed)}{nearest(str(part['extends']), allowed)}"
        raise ScenarioError(f"parts.{name}.extends is {part['extends']!r}; allowed are {hint}")
    extension = {key: value for key, value in part.items() if key != "extends"}
    return changed(_extend(part["extends"], parts, [*extending_parts, name]), extension)


def plan(spec: StudySpec) -> Study:
    """Plan a run of each variant and seed of a study, without the trials of a search.

    Raises:
        ScenarioError: a scenario is invalid, or a row of numbers from a paper
            (``StudySpec.published``) belongs to no variant.
    """
    variants = expand_variants(spec)
    if spec.published is not None:  # check that each row of numbers from a paper has a variant
        lines = [ComparedLine(variant.name, (), 0, variant.point) for variant in variants]
        beside_published(lines, Published(**spec.published))
    study = Study(spec)
    searched_variants = [] if spec.search is None else find_searched(spec)
    study.add([variant for variant in variants if variant not in searched_variants], spec.seeds)
    return study


def expand_variants(spec: StudySpec) -> list[Variant]:
    """Return the variants of a study, each once for every point of the grid.

    The grid has lists of values for keys of the scenario; a point is one combination of values. A
    study may be divided into parts (such as one for each figure of a paper), which have variants
    and further grid keys, and come one after another. A study may have several sizes, such as a
    small one for a quick trial. Parts that are not run in the chosen size are left out.
    """
    variants = []
    size = spec.chosen_size
    for part_name, part in (spec.parts or {"": StudyPart()}).items():
        if part.sizes is None or size is None or size[0] in part.sizes:
            variants += _expand_part(spec, part_name, part)
    return variants


def _expand_part(spec: StudySpec, part_name: str, part: StudyPart) -> list[Variant]:
    """Return the variants of a part of a study, each once for every point of the grid.

    Args:
        spec: the study.
        part_name: name of the part; empty if the study has no parts.
        part: the part, which may have further grid keys and changes of the variants.
    """
    size_and_part = []
    size = spec.chosen_size
    if size:
        size_and_part.append((SIZE, size[0]))
    if part_name:
        size_and_part.append((PART, part_name))
    grid = spec.grid | part.grid
    changes_of_part = part.variants or {}
    names = spec.names if part.variants is None else part.variants
    variants = []
    for values in itertools.product(*grid.values()):
        point = (*size_and_part, *zip(grid, values, strict=True))
        for name in names:
            changes = changed(
                nest_dotted_keys(spec.variants.get(name, {})),
                nest_dotted_keys(changes_of_part.get(name, {})),
            )
            variants.append(Variant(name, point, changes))
    return variants


def find_searched(spec: StudySpec) -> list[Variant]:
    """Return the variants for which the study's search tries values, at each point of the grid.

    The search has a range or a list of values for some keys of the scenario. Each end of a range,
    and each value of a list, is first put into the scenario of each variant, to reject a search
    that cannot work. Reference scenarios, such as central training on all data, are not searched.

    Args:
        spec: a study with a search.

    Raises:
        ScenarioError: a scenario with such a value is invalid, or its run does not measure the
            search's metric.
    """
    assert spec.search is not None
    variants = [variant for variant in expand_variants(spec) if variant.name not in spec.references]
    for variant in variants:
        for key, values in spec.search.space_of(variant.name).items():
            for value in values.extremes:
                _refuse_unmeasured(variant.at({key: value}), spec, spec.search.metric)
    return variants


def _refuse_unmeasured(variant: Variant, spec: StudySpec, metric: str) -> None:
    """Raise ``ScenarioError`` if the runs of a variant do not measure the metric of a search.

    For example, energy is not measured without the section ``[energy]``.

    Args:
        variant: the variant, at its point of the grid.
        spec: the study.
        metric: name of the metric.
    """
    measure = measure_of(metric, spec.target)
    assert measure is not None
    quantity = measure.quantity
    section = _SECTION_OF_QUANTITY.get(quantity)
    scenario = plan_run(variant, spec, spec.seeds[0]).scenario
    missing_setting = ""
    if quantity in MORE_IS_BETTER and quantity not in scenario.objective.metrics:
        missing_setting = f"objective.metrics = [{quantity!r}]"
    elif section is not None and getattr(scenario, section) is None:
        missing_setting = f"[{section}]"
    elif measure.topic in ("accuracy", "to target") and scenario.learning == "off":
        missing_setting = 'learning = "on"'
    if missing_setting:
        raise ScenarioError(
            f"search.metric is {metric!r}, which needs {missing_setting}; variant "
            f"{variant.label!r} has none"
        )


def plan_run(variant: Variant, spec: StudySpec, seed: int) -> PlannedRun:
    """Return the run of a variant with a seed, with its scenario and folder.

    The scenario is the study's base, changed by the tables of the study's size, part and variant
    and by the values of the grid, in this order.

    Args:
        variant: the variant, at its point of the grid.
        spec: the study.
        seed: the seed of the run.

    Raises:
        ScenarioError: the scenario is invalid; the message names the variant.
    """
    try:
        tables = merge(layers_of(variant, spec))
        if variant.name not in spec.variants:
            tables = REFERENCES[variant.name](tables)
        scenario = Scenario(**tables | {"seed": seed})
    except ScenarioError as error:
        raise ScenarioError(f"variant {variant.label!r}: {error}") from None
    return PlannedRun(variant, scenario, Path(RUNS, variant.folder, f"seed-{seed}"))


class _StudySetting(NamedTuple):
    """Setting that a study's file or ``--set`` makes, to check that a run of the study has it.

    Attributes:
        origin: ``--set``, ``base``, or the place in the study's file, such as ``sizes.full``.
        text: dotted key; for ``--set`` with ``=`` and the value.
    """

    origin: str
    text: str


def _refuse_ineffective(spec: StudySpec, changes: Sequence[SetChange]) -> None:
    """Raise ``ScenarioError`` if a setting of a study has no effect on any of its runs.

    Settings are keys in the study's file and changes by ``--set``. Keys of a base scenario are
    rejected only if the base's own strategy does not take them either.

    Args:
        spec: the study.
        changes: the changes by ``--set``.
    """
    variants = []
    for variant in expand_variants(spec):
        # for the keys of a search, any allowed value shows whether the scenario has the key
        if spec.search is not None and variant.name in spec.variants:
            space = spec.search.space_of(variant.name)
            variant = variant.at({key: values.extremes[0] for key, values in space.items()})
        variants.append(variant)
    reaches_a_run: dict[_StudySetting, bool] = {}
    for variant in variants:
        for setting, has_effect in _settings_of(variant, spec, changes):
            reaches_a_run[setting] = reaches_a_run.get(setting, False) or has_effect
    for setting, has_effect in reaches_a_run.items():
        if not has_effect:
            scenario = plan_run(variants[-1], spec, spec.seeds[0]).scenario
            raise ScenarioError(_explain_ineffective(setting, scenario))


def _settings_of(
    variant: Variant, spec: StudySpec, changes: Sequence[SetChange]
) -> Iterator[tuple[_StudySetting, bool]]:
    """Yield settings of a study, and whether each has an effect on the scenario of a variant.

    A change by ``--set`` has an effect if the scenario has its value. A key of the study's file has
    an effect if the scenario has the key, with any value, and a ``kind`` if the scenario has its
    table or a bare name instead of the table. Of the base, only the keys of ``[strategy]`` that the
    base's own strategy does not take are yielded.

    Args:
        variant: the variant, at its point of the grid.
        spec: the study.
        changes: the changes by ``--set``.
    """
    layers = layers_of(variant, spec)
    tables = merge(layers)
    tables.pop("seed", None)
    for change in changes:
        yield _StudySetting("--set", change.text), change.holds_in(tables)
    for origin, tables_of_origin in layers.items():
        keys: Iterable[str] = flatten(tables_of_origin)
        if origin == "base":  # variants may drop keys of the base on purpose
            keys = _untaken_strategy_keys(tables_of_origin)
        for key in keys:
            path = key.split(".")
            if path[-1] == "kind":
                # A later layer may replace a table such as ``{kind = "oort"}`` by the bare name of
                # another kind (``selection = "random"``). The path ``selection.kind`` no longer
                # exists then, although its value was only overridden, so the table's name decides.
                path.pop()
            yield _StudySetting(origin, key), at(tables, path) is not None


def _explain_ineffective(setting: _StudySetting, scenario: Scenario) -> str:
    """Return the error message for a setting that reaches no run.

    Args:
        setting: the setting.
        scenario: scenario of a run, from which the message proposes the key with the nearest name.
    """
    *parent_keys, last_key = setting.text.partition("=")[0].split(".")
    siblings = at(scenario.model_dump(), parent_keys) or {}
    reason = "another 'kind' drops it, or the variants say something else"
    reason += nearest(last_key, siblings)
    hint = "; the study's 'seeds' count" if setting.text.startswith("seed") else ""
    return f"{setting.origin} says {setting.text!r}, which reaches no run: {reason}{hint}"


def _untaken_strategy_keys(base: Mapping[str, object]) -> list[str]:
    """Return the dotted keys in a base's section ``[strategy]`` that its strategy does not take."""
    strategy = base.get("strategy")
    if not isinstance(strategy, Mapping):
        return []
    kind = strategy.get("kind", STRATEGIES.usual)
    if not isinstance(kind, str) or kind not in STRATEGIES.kinds:
        return []
    keys = params_class(kind).takes()
    return [f"strategy.{key}" for key in strategy if key not in keys]
