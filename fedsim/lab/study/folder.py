"""The folder of a study, and the states of its runs.

``study.toml`` is the study as a single file, and ``index.json`` describes its runs (see
``fedsim.lab.reading.study_folder``). ``runs/VARIANT/seed-N`` are run folders, and
``published.toml`` has numbers of papers to compare with. ``fedsim.lab.compare.show`` adds tables.
"""

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedsim.common.errors import FedsimError, RunFolderError
from fedsim.common.files import flatten, parse_toml, read_text
from fedsim.common.former_keys import understand
from fedsim.lab.reading.study_folder import (
    PUBLISHED,
    RUNS,
    STUDY,
    IndexedRun,
    IndexedVariant,
    StudyIndex,
    is_done,
    write_index,
)
from fedsim.lab.study.plan import Study
from fedsim.records import folder as files
from fedsim.records import lock
from fedsim.running.overrides import first_difference, nest_dotted_keys
from fedsim.running.scenario import Scenario

RunState = Literal["done", "resume", "anew", "new"]
"""``resume`` has a checkpoint, ``anew`` has an unfinished folder, and ``new`` has no folder."""

_LOCK_WAIT_S = 15.0  # time (s) after which workers of a killed parent have ended
TURN_S = 600.0
"""Longest time (s) in which all shards of a study, one by one, write its tables or take trials."""


def refuse_unusable(path: Path) -> None:
    """Raise an error if no study can be written at ``path``; nothing is changed.

    Raises:
        RunFolderError: the path has files that are not of a study, is no folder, or cannot be
            written.
    """
    if not (path / STUDY).is_file():
        files.refuse_unusable(path)
    elif not os.access(path, os.W_OK | os.X_OK):
        raise RunFolderError(f"--out {str(path)!r} holds a study, but you may not write to it")


def states(path: Path, study: Study) -> list[RunState]:
    """Return the state of each run of a study, such as ``done``, in the order of the runs.

    A run is ``new``, ``done``, to ``resume`` from a checkpoint, or to be run ``anew``.

    Args:
        path: the study's folder.
        study: the planned study.

    Raises:
        RunFolderError: the folder has runs of a different study, or of other scenarios.
    """
    planned = {path / run.folder for run in study.runs}
    for folder in sorted((path / RUNS).glob("*/seed-*")):
        # other files, such as pictures and traces, may be beside a run
        is_run = folder.name.removeprefix("seed-").isdecimal()
        if not is_run or folder in planned:
            continue
        is_of_planned_variant = folder.parent.name in study.runs_of
        # an earlier call with another table ``[until_sure]`` may have added more seeds
        if is_of_planned_variant and study.until_sure is not None:
            continue
        unknown_folder = str(folder.relative_to(path))
        hint = "give another folder"
        if is_of_planned_variant:
            hint += ", or --until-sure if seeds were added by it"
        raise RunFolderError(
            f"--out {str(path)!r} holds {unknown_folder!r}, no run of this study; {hint}"
        )
    return [state_of(path / run.folder, run.scenario.to_toml()) for run in study.runs]


def state_of(folder: Path, scenario: str) -> RunState:
    """Return the state of a run by its folder: ``new``, ``done``, ``resume`` or ``anew``.

    A run that has a folder but has not ended is to be resumed from its checkpoint, or, without a
    checkpoint, to be run anew.

    Args:
        folder: the run folder, which need not exist.
        scenario: scenario of the run, as TOML.

    Raises:
        RunFolderError: the folder has other files, or a run of a different scenario.
    """
    if not folder.exists():
        return "new"
    try:
        existing = read_text(folder / files.SCENARIO)
    except (OSError, UnicodeDecodeError):
        if not files.holds_nothing(folder):
            raise RunFolderError(
                f"{str(folder)!r} holds files, but no {files.SCENARIO}: it is no run of this study"
            ) from None
        return "anew"
    if existing != scenario:  # an earlier version may have written the scenario in other keys
        existing = _rewrite_former_keys(existing) or existing
    if existing != scenario:
        try:
            difference = first_difference(parse_toml(existing), parse_toml(scenario))
        except ValueError:
            difference = f"its {files.SCENARIO} is damaged"
        hint = "give another folder, or remove that run"
        raise RunFolderError(
            f"{str(folder)!r} holds a run of another scenario: {difference}; {hint}"
        )
    if is_done(folder):
        return "done"
    return "resume" if (folder / "checkpoint").is_dir() else "anew"


def _rewrite_former_keys(text: str) -> str | None:
    """Return the scenario of a run that an earlier version wrote, in the keys of this version.

    Args:
        text: the scenario as TOML.

    Returns:
        TOML; None if ``text`` has no keys of an earlier version, is invalid, or has a value that
        this version cannot express.
    """
    try:
        tables, is_former, lost = understand(parse_toml(text))
        if is_former and not lost:
            return Scenario(**tables).to_toml()
    except (ValueError, FedsimError):  # damaged, or not valid in this version
        pass
    return None


def mark(path: Path, study: Study) -> None:
    """Write ``study.toml``, which marks a folder as a study's for other processes.

    Args:
        path: the study's folder.
        study: the study.
    """
    files.write_text(path / STUDY, study.to_toml())


def write_study(path: Path, study: Study) -> None:
    """Write the files that describe a study into its folder.

    They are ``study.toml``, ``index.json`` (variants and runs), and ``published.toml`` if the study
    has numbers of papers to compare with.

    Args:
        path: the study's folder.
        study: the study.
    """
    files.write_text(path / STUDY, study.to_toml())
    if study.spec.published is not None:
        files.write_text(path / PUBLISHED, tomli_w.dumps(study.spec.published))
    write_index(path, index_of(study))


def index_of(study: Study) -> StudyIndex:
    """Return the content of a study's ``index.json``: its variants, and where their runs are."""
    spec = study.spec
    variants = []
    # all seeds, each once: the study's seeds in order, then seeds added for some variants
    seeds = dict.fromkeys(spec.seeds)
    for variant in study.variants:
        runs = []
        for run in study.runs_of[variant.folder]:
            runs.append(IndexedRun(seed=run.scenario.seed, folder=run.folder.as_posix()))
            seeds[run.scenario.seed] = None
        variants.append(
            IndexedVariant(
                name=variant.name,
                label=variant.label,
                point=_as_json_value(dict(variant.point)),
                # ``nest_dotted_keys`` nests dotted keys first, so that ``flatten`` writes all keys
                # alike
                changes=_as_json_value(flatten(nest_dotted_keys(variant.changes))),
                reference=variant.name in spec.references,
                runs=tuple(runs),
            )
        )
    return StudyIndex(
        format=1,
        name=spec.name,
        about=spec.about,
        baseline=spec.baseline,
        targets=tuple(spec.target),
        goal=spec.goal,
        budget=spec.budget.limits,
        seeds=tuple(seeds),
        until_sure=study.until_sure,
        variants=tuple(variants),
    )


def _as_json_value(value: object) -> Any:
    """Convert a TOML value to a JSON value: dates, infinities and NaN become text."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda name: str(float(name)))


def claimed(folder: Path) -> AbstractContextManager[list[int]]:
    """Return a context in which no other process carries out the same run of a study.

    A lock file next to the run folder keeps other processes from the run. The value of the
    context is the list of file descriptors that hold the lock. The parent of the run folder is made
    if it does not exist.

    Args:
        folder: the run folder, which need not exist.

    Raises:
        FolderInUseError: another process carries out the run.
    """
    files.make(folder.parent)
    return lock.locked(folder.parent, name=f".{folder.name}.lock")


def locked(path: Path, patience_s: float = _LOCK_WAIT_S) -> AbstractContextManager[list[int]]:
    """Make a study's folder, and return a context that locks it against other processes.

    The value of the context is the list of file descriptors that hold the lock.

    Args:
        path: the study's folder.
        patience_s: the longest time to wait for another process (s).

    Raises:
        FolderInUseError: another process still holds the lock after ``patience_s``.
    """
    files.make(path)
    return lock.locked(path, patience_s)
