"""The index of a study's folder, which describes the study's runs.

Comparisons and reports read the index, and not the study's file. ``index.json`` is a
``StudyIndex``, which is written before the first run begins, and again whenever the study is
resumed.
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
# files of a search
TRIALS = "trials.csv"
BEST_OF = "best.toml"
UNNAMED = "unnamed study"  # name of a study whose file has none

# part of a path that stays inside the folder, on every system
_PART = "[A-Za-z0-9][A-Za-z0-9_.=,+-]*"


class _IndexPart(BaseModel):
    # a newer fedsim may write more
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class IndexedRun(_IndexPart):
    """A run of a study, finished or not.

    Attributes:
        seed: of the run.
        folder: relative to the study's folder, with ``/`` between the parts.
    """

    seed: int
    folder: Annotated[str, Field(pattern=f"^{_PART}(/{_PART})*$")]


class IndexedVariant(_IndexPart):
    """One line of a study's comparison: a way to change the base, at one point of the grid.

    Attributes:
        name: of the variant.
        label: for people, such as ``flexcfl, share=0.3``; unique within the study.
        point: the grid's keys and their values, first ``size`` and ``part``.
        changes: all other changes of the base.
        reference: whether the line is a reference, made of the base.
        runs: one per seed.
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
        format: 1; a later number means that readers of format 1 would misread the index.
        name: of the study.
        about: introduction for readers.
        baseline: the variant with which all variants are compared.
        targets: accuracies (0..1), or metrics as texts, at which costs are compared.
        goal: by which cells are ranked.
        budget: limits by cost, for the accuracy within the budget.
        seeds: of the study.
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
    """Whether a folder is a study's folder."""
    return any((path / name).is_file() for name in (INDEX, STUDY))


def read_index(path: Path) -> StudyIndex:
    """Read the index of a study.

    Args:
        path: of the study's folder.

    Raises:
        RunFolderError: the index is missing, damaged, or of another format.
    """
    try:
        return StudyIndex.model_validate_json(read_bytes(path / INDEX))
    except ValidationError as error:
        raise RunFolderError(f"{INDEX} of {str(path)!r} {_explain_damage(error)}") from None
    except OSError:
        raise RunFolderError(_explain_absence(path)) from None


def _explain_damage(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    for problem in problems:  # another format is the reason for all other problems
        if problem["loc"] == ("format",) and problem["type"] == "literal_error":
            return (
                f"is of format {problem['input']!r}; this fedsim reads 1 alone, so use the fedsim "
                "that wrote it"
            )
    place = ".".join(map(str, problems[0]["loc"])) or "all of it"
    return f"is damaged: {place}: {problems[0]['msg']}"


def _explain_absence(path: Path) -> str:
    if is_study(path):
        return (
            f"{str(path)!r} holds a study, but no {INDEX} that can be read; "
            f"fedsim study {str(path / STUDY)!r} --out {str(path)!r} writes it, and does none of "
            "the runs again that are done"
        )
    if path.exists():
        return f"{str(path)!r} is not the folder of a study: it holds no {INDEX}"
    return f"{str(path)!r} does not exist: there is no {INDEX}"


def write_index(path: Path, index: StudyIndex) -> None:
    """Write the index of the study at ``path``.

    Args:
        path: the study's folder.
        index: the index.
    """
    files.write_text(path / INDEX, json.dumps(index.model_dump(), indent=2, allow_nan=False) + "\n")


def names_apart(paths: Sequence[Path]) -> list[str]:
    """Different names for folders: each with as many folders above it as all names need.

    Equal paths are distinguished by their places.
    """
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0)):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{place}-{part[-1]}" for place, part in enumerate(parts, start=1)]


def is_done(run: Path) -> bool:
    """Whether the run in a folder was run to its end; False if its summary cannot be read."""
    return bool(files.summarised_status(run) == "done")
