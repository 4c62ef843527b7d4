"""The folder of a study, as far as reading it goes: its index says what its runs are.

Whoever compares or shows a study reads its index and its run folders, and nothing else: never the study file, whose grammar may
grow. ``index.json`` is a ``StudyIndex``, written before the first run begins, and again whenever the study is gone on with.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsim.errors import RunFolderError
from fedsim.files import regular
from fedsim.records import folder as files

STUDY, INDEX, RUNS, PUBLISHED = "study.toml", "index.json", "runs", "published.toml"
TRIALS, BEST_OF = "trials.csv", "best.toml"  # of a study that searches
UNNAMED = "unnamed study"  # what a study is called whose file does not say

_PART = "[A-Za-z0-9][A-Za-z0-9_.=,+-]*"  # of a path that stays inside the folder, on every system


class _IndexPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)  # a newer fedsim may write more


class IndexedRun(_IndexPart):
    """A run of a study, done or not; its folder is relative to the study's, with ``/`` between the parts."""

    seed: int
    folder: Annotated[str, Field(pattern=f"^{_PART}(/{_PART})*$")]


class IndexedVariant(_IndexPart):
    """One line of a study's comparison: a way to change the base, at one point of the grid.

    Attributes:
        label: for people, such as ``flexcfl, share=0.3``; different for each.
        point: the grid's keys and their values here; ``size`` and ``part`` first.
        changes: what else it changes of the base.
        reference: whether it is a line to compare with, made out of the base.
    """

    name: str
    label: str
    point: dict[str, Any]
    changes: dict[str, Any]
    reference: bool
    runs: tuple[IndexedRun, ...]


class StudyIndex(_IndexPart):
    """The runs of a study.

    Attributes:
        format: another number where readers of this one would misread it.
        about: what it shows; empty where the study does not say.
        baseline: the variant that the others are compared with.
        targets: accuracies (0..1): the costs to reach each are compared.
        goal: what cells are ranked by; None: not said.
        budget: limits by cost, within which an accuracy is to be reached.
        variants: in the order of the tables.
    """

    format: Literal[1]
    name: str
    about: str = ""
    baseline: str | None
    targets: tuple[float | str, ...]
    goal: str | None = None
    budget: dict[str, float] = {}
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    variants: Annotated[tuple[IndexedVariant, ...], Field(min_length=1)]


def is_study(path: Path) -> bool:
    """Whether a folder is that of a study."""
    return any((path / name).is_file() for name in (INDEX, STUDY))


def read_index(path: Path) -> StudyIndex:
    """The index of the study at ``path``.

    Raises ``RunFolderError``: there is none, or it is damaged, or of a format that is not known here.
    """
    try:
        return StudyIndex.model_validate_json(regular(path / INDEX).read_bytes())
    except ValidationError as error:
        problems = error.errors(include_url=False)
        where = ".".join(map(str, problems[0]["loc"])) or "all of it"
        why = f"is damaged: {where}: {problems[0]['msg']}"
        for one in problems:  # another format is the reason for whatever else does not fit
            if one["loc"] == ("format",) and one["type"] == "literal_error":
                why = f"is of format {one['input']!r}; this fedsim reads 1 alone, so use the fedsim that wrote it"
        raise RunFolderError(f"{INDEX} of {str(path)!r} {why}") from None
    except OSError:
        why = "is not the folder of a study: it holds no" if path.exists() else "does not exist: there is no"
        if is_study(path):
            raise RunFolderError(
                f"{str(path)!r} holds a study, but no {INDEX} that can be read; fedsim study {str(path / STUDY)!r} --out "
                f"{str(path)!r} writes it, and does none of the runs again that are done"
            ) from None
        raise RunFolderError(f"{str(path)!r} {why} {INDEX}") from None


def write_index(path: Path, index: StudyIndex) -> None:
    """Write the index of the study at ``path``."""
    files.write_text(path / INDEX, json.dumps(index.model_dump(), indent=2, allow_nan=False) + "\n")


def is_done(run: Path) -> bool:
    """Whether the run in a folder was run to its end; where that cannot be read, it was not."""
    return bool(files.summarised_status(run) == "done")
