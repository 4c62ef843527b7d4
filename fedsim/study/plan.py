"""A study as the runs that it consists of: every scenario written out, in a fixed order, before anything is run."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.compare.points import short_key, shown
from fedsim.errors import ScenarioError
from fedsim.language.imports import from_file
from fedsim.records.study_folder import RUNS
from fedsim.scenario import Scenario, apply_change, read_toml
from fedsim.study.changes import Tables, changed, spread_out
from fedsim.study.references import REFERENCES
from fedsim.study.spec import StudySpec

_LONGEST_NAME = 60  # of a folder, so that its path stays below what file systems allow


@dataclass(frozen=True)
class Variant:
    """One line of a comparison: a way to change the base, at one point of the grid.

    Attributes:
        name: as the study file calls it.
        point: the grid's keys and their values here; empty without a grid.
    """

    name: str
    point: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """Its name and its place in the grid, for people; different for each variant of a study."""
        return ", ".join([self.name, *(f"{short_key(key, dict(self.point))}={shown(value)}" for key, value in self.point)])

    @property
    def folder(self) -> str:
        """A name fit for a folder, and different for each variant of a study."""
        return safe_name(self.label)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a study.

    Attributes:
        variant: what it is a run of.
        scenario: in full, seed included.
        folder: where it goes, relative to the study's folder.
    """

    variant: Variant
    scenario: Scenario
    folder: Path

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.variant.label}, seed {self.scenario.seed}"


@dataclass(frozen=True)
class Study:
    """A study that can be run.

    Attributes:
        spec: what its file says.
        base: the base scenario's tables, as they are written.
        variants: the variants at each point of the grid, those of one point together.
        runs: seed by seed, all variants of a seed together.
    """

    spec: StudySpec
    base: Tables
    variants: tuple[Variant, ...]
    runs: tuple[PlannedRun, ...]

    def to_toml(self) -> str:
        """The study as one file that needs no other."""
        return tomli_w.dumps(self.spec.tables(self.base))


def read_study(path: str | Path, changes: Sequence[str] = (), *, allow_code: bool = False) -> Study:
    """Read a study file, and the base that it names.

    Args:
        path: a TOML file.
        changes: ``key.path=value`` texts that override the base.
        allow_code: whether code that it names by import path may be imported; see ``fedsim.language.imports``.

    Raises:
        ScenarioError: a file cannot be read, or says something that cannot be run; for a run the message names the variant.
    """
    spec = StudySpec(**read_toml(path, "study"))
    base = read_toml(Path(path).parent / spec.base, "base scenario") if isinstance(spec.base, str) else dict(spec.base)
    for change in changes:
        apply_change(base, change)
    with from_file(allow_code):
        return plan(spec, base)


def plan(spec: StudySpec, base: Tables) -> Study:
    """The runs of a study.

    Raises:
        ScenarioError: one of them cannot be run; the message names the variant.
    """
    base = {key: value for key, value in base.items() if key != "seed"}  # the study's seeds count
    points = [tuple(zip(spec.grid, values, strict=True)) for values in itertools.product(*spec.grid.values())]
    variants = tuple(Variant(name, point) for point in points for name in spec.names)
    tables = [_tables_of(variant, spec, base) for variant in variants]
    runs = tuple(
        PlannedRun(variant, _scenario(variant, {**said, "seed": seed}), Path(RUNS, variant.folder, f"seed-{seed}"))
        for seed in spec.seeds
        for variant, said in zip(variants, tables, strict=True)
    )
    _refuse_clashes(variants)
    return Study(spec, base, variants, runs)


def _tables_of(variant: Variant, spec: StudySpec, base: Tables) -> Tables:
    try:
        point = spread_out(dict(variant.point))
        if variant.name in spec.variants:
            return changed(changed(base, spread_out(spec.variants[variant.name])), point)
        return REFERENCES[variant.name](changed(base, point))
    except ScenarioError as error:
        raise ScenarioError(f"variant {variant.label!r}: {error}") from None


def _scenario(variant: Variant, tables: Mapping[str, Any]) -> Scenario:
    try:
        return Scenario(**tables)
    except ScenarioError as error:
        raise ScenarioError(f"variant {variant.label!r}: {error}") from None


def _refuse_clashes(variants: Sequence[Variant]) -> None:
    seen: dict[str, Variant] = {}
    for variant in variants:
        other = seen.setdefault(variant.folder.lower(), variant)
        if other is not variant:
            raise ScenarioError(f"variants {other.label!r} and {variant.label!r} would share a folder; rename one of them")


def safe_name(name: str) -> str:
    """A name as a folder's: letters, digits and ``-_.=,+`` stay; one that had to be altered ends in part of its sha256."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.=,+") else "_" for c in name.replace(", ", ","))
    if kept == name.replace(", ", ",") and len(kept) <= _LONGEST_NAME and kept[:1].isalnum() and not kept.endswith("."):
        return kept
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{kept[:_LONGEST_NAME].lstrip('-_.=,+') or 'variant'}-{digest}"
