"""The index of a study's folder, which describes its runs. Comparisons and reports read it, and
not the study's file.

``index.json`` is a ``StudyIndex``, written before the first run begins, and again whenever the
study is continued.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsim.common.errors import RunFolderError
from fedsim.common.files import read_bytes
from fedsim.records import folder as files

STUDY = "study.toml"
INDEX = "index.json"
RUNS = "runs"
PUBLISHED = "published.toml"
# of a study that searches
TRIALS = "trials.csv"
BEST_OF = "best.toml"
UNNAMED = "unnamed study"  # name of a study whose file has none

_PART = "[A-Za-z0-9][A-Za-z0-9_.=,+-]*"  # of a path that stays inside the folder, on every system


class _IndexPart(BaseModel):
    # a newer fedsim may write more
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class IndexedRun(_IndexPart):
    """A run of a study, done or not; its folder is relative to the study's, with ``/`` between
    the parts.
    """

    seed: int
    folder: Annotated[str, Field(pattern=f"^{_PART}(/{_PART})*$")]


class IndexedVariant(_IndexPart):
    """One line of a study's comparison: a way to change the base, at one point of the grid."""

    name: str
    label: str  # for people, such as ``flexcfl, share=0.3``; different for each
    point: dict[str, Any]  # the grid's keys and their values here; ``size`` and ``part`` first
    changes: dict[str, Any]  # what else it changes of the base
    reference: bool  # whether it is a line to compare with, made out of the base
    runs: tuple[IndexedRun, ...]


class StudyIndex(_IndexPart):
    """The runs of a study."""

    format: Literal[1]  # another number where readers of this one would misread it
    name: str
    about: str = ""  # what it shows
    baseline: str | None  # the variant that the others are compared with
    # accuracies (0..1), or metrics: the costs to reach each are compared
    targets: tuple[float | str, ...]
    goal: str | None = None  # what cells are ranked by
    budget: dict[str, float] = {}  # limits by cost, within which an accuracy is to be reached
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    # in the order of the tables
    variants: Annotated[tuple[IndexedVariant, ...], Field(min_length=1)]


def is_study(path: Path) -> bool:
    """Whether a folder is that of a study."""
    return any((path / name).is_file() for name in (INDEX, STUDY))


def read_index(path: Path) -> StudyIndex:
    """The index of the study at ``path``; ``RunFolderError``: there is none, or it is damaged or
    of another format.
    """
    try:
        return StudyIndex.model_validate_json(read_bytes(path / INDEX))
    except ValidationError as error:
        problems = error.errors(include_url=False)
        where = ".".join(map(str, problems[0]["loc"])) or "all of it"
        why = f"is damaged: {where}: {problems[0]['msg']}"
        for one in problems:  # another format is the reason for whatever else does not fit
            if one["loc"] == ("format",) and one["type"] == "literal_error":
                why = (
                    f"is of format {one['input']!r}; this fedsim reads 1 alone, so use the fedsim "
                    "that wrote it"
                )
        raise RunFolderError(f"{INDEX} of {str(path)!r} {why}") from None
    except OSError:
        why = (
            "is not the folder of a study: it holds no"
            if path.exists()
            else "does not exist: there is no"
        )
        message = f"{str(path)!r} {why} {INDEX}"
        if is_study(path):
            again = (
                f"fedsim study {str(path / STUDY)!r} --out {str(path)!r} writes it, and does none "
                "of the runs again"
            )
            message = (
                f"{str(path)!r} holds a study, but no {INDEX} that can be read; {again} that are "
                "done"
            )
        raise RunFolderError(message) from None


def write_index(path: Path, index: StudyIndex) -> None:
    """Write the index of the study at ``path``."""
    files.write_text(path / INDEX, json.dumps(index.model_dump(), indent=2, allow_nan=False) + "\n")


def names_apart(paths: Sequence[Path]) -> list[str]:
    """The names of folders, with as many folders above as tell them apart, or with their places
    where none do.
    """
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0)):
        found = ["/".join(part[-depth:]) for part in parts]
        if len(set(found)) == len(found):
            return found
    return [f"{place}-{part[-1]}" for place, part in enumerate(parts, start=1)]


def is_done(run: Path) -> bool:
    """Whether the run in a folder was run to its end; where that cannot be read, it was not."""
    return bool(files.summarised_status(run) == "done")
