"""The folder of a study, and which runs of an earlier one in it can be resumed.

``study.toml`` is the study as one file that needs no other, ``index.json`` its runs (see
``fedsim.lab.reading.study_folder``), ``runs/VARIANT/seed-N`` are run folders, ``published.toml``
holds published figures; ``fedsim.lab.compare.show`` adds tables.
"""

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedsim.common.errors import RunFolderError
from fedsim.common.files import flat, read_text, toml
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
from fedsim.running.overrides import first_difference, spread_out

RunState = Literal["done", "resume", "anew", "new"]

_LOCK_WAIT_S = 15.0  # workers whose parent was killed are gone by then


def refuse_unusable(path: Path) -> None:
    """Refuse a path that holds other files than a study's, is no folder, or cannot be written;
    change nothing.
    """
    if not (path / STUDY).is_file():
        files.refuse_unusable(path)
    elif not os.access(path, os.W_OK | os.X_OK):
        raise RunFolderError(f"--out {str(path)!r} holds a study, but you may not write to it")


def states(path: Path, study: Study) -> list[RunState]:
    """The state of each run of a study at ``path``; runs of another study or other scenarios are
    refused.
    """
    planned = {path / run.folder for run in study.runs}
    for there in sorted((path / RUNS).glob("*/seed-*")):
        # pictures and traces may lie beside a run
        if there not in planned and there.name.removeprefix("seed-").isdecimal():
            strange = str(there.relative_to(path))
            raise RunFolderError(
                f"--out {str(path)!r} holds {strange!r}, no run of this study; give another folder"
            )
    return [state_of(path / run.folder, run.scenario.to_toml()) for run in study.runs]


def state_of(folder: Path, scenario: str) -> RunState:
    """The state of the run of a scenario (as TOML) in its folder; other content is refused."""
    if not folder.exists():
        return "new"
    try:
        there = read_text(folder / files.SCENARIO)
    except (OSError, UnicodeDecodeError):
        if not files.holds_nothing(folder):
            raise RunFolderError(
                f"{str(folder)!r} holds files, but no {files.SCENARIO}: it is no run of this study"
            ) from None
        return "anew"
    if there != scenario:
        try:
            difference = first_difference(toml(there), toml(scenario))
        except ValueError:
            difference = f"its {files.SCENARIO} is damaged"
        hint = "give another folder, or remove that run"
        raise RunFolderError(
            f"{str(folder)!r} holds a run of another scenario: {difference}; {hint}"
        )
    if is_done(folder):
        return "done"
    return "resume" if (folder / "checkpoint").is_dir() else "anew"


def write_study(path: Path, study: Study) -> None:
    """Write the study and the index of its runs."""
    files.write_text(path / STUDY, study.to_toml())
    if study.spec.published is not None:
        files.write_text(path / PUBLISHED, tomli_w.dumps(study.spec.published))
    write_index(path, index_of(study))


def index_of(study: Study) -> StudyIndex:
    """The index of a study's runs."""
    spec = study.spec
    variants = []
    for one in study.variants:
        runs = (
            IndexedRun(seed=run.scenario.seed, folder=run.folder.as_posix())
            for run in study.runs_of[one.folder]
        )
        point = _plain(dict(one.point))
        changes = _plain(flat(spread_out(one.changes)))
        about: dict[str, Any] = {
            "name": one.name,
            "label": one.label,
            "reference": one.name in spec.references,
        }
        variants.append(IndexedVariant(**about, point=point, changes=changes, runs=tuple(runs)))
    said: dict[str, Any] = {
        name: getattr(spec, name) for name in ("name", "about", "baseline", "goal")
    }
    said |= {
        "targets": tuple(spec.target),
        "seeds": tuple(spec.seeds),
        "budget": spec.budget.limits,
    }
    return StudyIndex(format=1, **said, variants=tuple(variants))


def _plain(value: Any) -> Any:
    """A value of TOML for JSON: dates, infinities and NaN as texts."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda name: str(float(name)))


def locked(path: Path) -> AbstractContextManager[list[int]]:
    """Make the folder, and keep other processes from working in it: see ``fedsim.records.lock``."""
    files.make(path)
    return lock.locked(path, _LOCK_WAIT_S)
