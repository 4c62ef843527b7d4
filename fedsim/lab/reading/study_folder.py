"""Index of a study's folder, which describes the study's runs.

Comparisons and reports read the index, and not the study's file. ``index.json`` is a
``StudyIndex``, which is written before the first run begins, and again whenever the study is
resumed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsim.common.errors import RunFolderError
from fedsim.common.files import read_bytes
from fedsim.records import folder as files

STUDY = "study.toml"
INDEX = "index.json"
RUNS = "runs"
PUBLISHED = "published.toml"
# file names of a search's results
TRIALS = "trials.csv"
BEST_OF = "best.toml"
UNNAMED = "unnamed study"  # name of a study whose file has none

# pattern of one part of a path, so that the path stays inside the folder on every system
_PART = "[A-Za-z0-9][A-Za-z0-9_.=,+-]*"


class _IndexPart(BaseModel):
    # ignore unknown fields, which a newer fedsim may write
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class IndexedRun(_IndexPart):
    """Entry of a study's index for one run, finished or not.

    Attributes:
        seed: seed of the run.
        folder: path of the run folder relative to the study's folder, with ``/`` between the parts.
    """

    seed: int
    folder: Annotated[str, Field(pattern=f"^{_PART}(/{_PART})*$")]


class IndexedVariant(_IndexPart):
    """Entry of a study's index for one row of its comparison: a variant at one point of the grid.

    The variant changes the study's base scenario. The grid has lists of values for some keys of the
    base scenario.

    Attributes:
        name: name of the variant.
        label: label for users, such as ``flexcfl, share=0.3``; unique within the study.
        point: one value of each key of the grid. If the study has sizes or parts, the first keys
            are ``size`` (such as a small or a full study) and ``part`` (some of the variants).
        changes: all other changes of the base scenario: dict from key to value.
        reference: whether the variant is a reference of the study: ``centralised`` training on all
            data, or ``local`` training on each device.
        runs: one run per seed.
    """

    name: str
    label: str
    point: dict[str, object]
    changes: dict[str, object]
    reference: bool
    runs: tuple[IndexedRun, ...]


class IndexedSure(_IndexPart):
    """Rule of a study that adds seeds until one variant is surely the best (``--until-sure``).

    Attributes:
        within: greatest difference between two variants that does not matter: a share of a cost
            (0.05 is 5 %), or a difference of a metric; None for 0.05 of a cost or 0.01 of a metric.
        error: greatest probability of a wrong decision (0..1).
        first: seeds that all variants run before the first decision.
        is_over: whether no more seeds are added, because the best variants are decided or the
            budget (of runs or real time) is spent.
    """

    within: float | None
    error: float
    first: tuple[int, ...]
    is_over: bool


class StudyIndex(_IndexPart):
    """Content of ``index.json``, which describes a study and has the folders of its runs.

    Attributes:
        format: 1; a larger number means that readers of format 1 would misread the index.
        name: name of the study.
        about: introduction for users.
        baseline: name of the variant with which all variants are compared.
        targets: accuracies (0..1), or texts ``metric=value``, at which costs are compared.
        goal: quantity by which variants are ranked, such as ``bytes``; None for the default.
        budget: dict from name of a cost to its limit, for the best accuracy within the budget.
        seeds: seeds of all runs; with ``until_sure``, some variants have only the first seeds.
        until_sure: rule by which seeds are added; None if all variants have the same seeds.
        variants: variants in the order of the study's tables.
    """

    format: Literal[1]
    name: str
    about: str = ""
    baseline: str | None
    targets: tuple[float | str, ...]
    goal: str | None = None
    budget: dict[str, float] = {}
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    until_sure: IndexedSure | None = None
    variants: Annotated[tuple[IndexedVariant, ...], Field(min_length=1)]


def is_study(path: Path) -> bool:
    """Whether a folder has a study: a file ``study.toml`` or ``index.json``."""
    return any((path / name).is_file() for name in (INDEX, STUDY))


def read_index(path: Path) -> StudyIndex:
    """Read ``index.json`` of a study, the description of its variants and runs.

    Args:
        path: the study's folder.

    Raises:
        RunFolderError: the index is missing, damaged, or of an unknown format.
    """
    try:
        return StudyIndex.model_validate_json(read_bytes(path / INDEX))
    except ValidationError as error:
        raise RunFolderError(f"{INDEX} of {str(path)!r} {_explain_damage(error)}") from None
    except OSError:
        raise RunFolderError(_explain_absence(path)) from None


def _explain_damage(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    for problem in problems:  # an unknown format may cause all other problems
        if problem["loc"] == ("format",) and problem["type"] == "literal_error":
            return (
                f"is of format {problem['input']!r}; this fedsim reads 1 alone, so use the fedsim "
                "that wrote it"
            )
    key = ".".join(map(str, problems[0]["loc"])) or "all of it"
    return f"is damaged: {key}: {problems[0]['msg']}"


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
    """Write ``index.json``, the description of a study's variants and runs, into its folder.

    Args:
        path: the study's folder.
        index: the content.
    """
    files.write_text(path / INDEX, json.dumps(index.model_dump(), indent=2, allow_nan=False) + "\n")


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return a distinct name for each folder: the last part of its path, or more parts if needed.

    All names have the same count of parts, separated by ``/``. If two paths are equal, each name is
    the path's position in ``paths``, from 1, and its last part, such as ``2-runs``.
    """
    parts_of_paths = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts_of_paths), default=0)):
        names = ["/".join(parts[-depth:]) for parts in parts_of_paths]
        if len(set(names)) == len(names):
            return names
    return [f"{position}-{parts[-1]}" for position, parts in enumerate(parts_of_paths, start=1)]


def is_done(run: Path) -> bool:
    """Whether the run in a folder has ended as planned; False for a missing or damaged summary."""
    return bool(files.summarised_status(run) == "done")
