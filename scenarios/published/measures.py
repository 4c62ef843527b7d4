"""Figures of a run, read from its folder."""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.records.reading import RunFolder
from scenarios.published.tables import Reading


@cache
def column(folder: Path, name: str) -> NDArray[np.float64]:
    """A column of ``rounds.parquet`` where it was measured, float64 [rounds]: nothing for rounds without."""
    values = [row[name] for row in RunFolder(folder).rounds]
    return np.array([value for value in values if value is not None], dtype=np.float64)


def best_accuracy(folder: Path) -> float:
    """The best accuracy of the rounds that were tested (%)."""
    return 100 * float(column(folder, "accuracy").max())


def median_accuracy(folder: Path) -> float:
    """The median over the rounds that were tested (%)."""
    return 100 * float(np.median(column(folder, "accuracy")))


def accuracy_after(rounds: int) -> Reading:
    """The accuracy (%) at the end of the round with this number, counted from 1."""

    def read(folder: Path) -> float:
        accuracy = RunFolder(folder).rounds[rounds - 1]["accuracy"]
        if accuracy is None:
            raise ValueError(
                f"round {rounds} of {str(folder)!r} was not tested; set evaluation.every and evaluation.from_round"
            )
        return 100 * float(accuracy)

    return read


def early_accuracy(rounds: int) -> Reading:
    """The mean accuracy (%) of the first so many rounds that were tested: how fast a run converges."""
    return lambda folder: 100 * float(column(folder, "accuracy")[:rounds].mean())


def late_accuracy(rounds: int) -> Reading:
    """The mean accuracy (%) of the last so many rounds that were tested: where a run ends, without the last round's luck."""
    return lambda folder: 100 * float(column(folder, "accuracy")[-rounds:].mean())


def rounds_to(target: float) -> Reading:
    """Rounds until an accuracy (%) is reached; a run that never does counts with all its rounds."""

    def read(folder: Path) -> float:
        rounds = RunFolder(folder).rounds
        reached = [row["round"] + 1 for row in rounds if row["accuracy"] is not None and 100 * row["accuracy"] >= target]
        return float(reached[0] if reached else len(rounds))

    return read


def last_of(name: str) -> Reading:
    """A column of ``rounds.parquet`` in the last round in which it was measured."""
    return lambda folder: float(column(folder, name)[-1])


def events_of(kind: str) -> Reading:
    """How many events of a kind there were."""
    return lambda folder: float(len(_rounds_of(folder, kind)))


def rounds_before(kind: str, number: int) -> Reading:
    """Whole rounds before the n-th event of a kind, n from 1; all rounds where there was none."""

    def read(folder: Path) -> float:
        found = _rounds_of(folder, kind)
        return float(found[number - 1] if number <= len(found) else len(RunFolder(folder).rounds))

    return read


def accuracy_before(kind: str) -> Reading:
    """The last accuracy (%) before the round of the first event of a kind; at the end where there was none."""

    def read(folder: Path) -> float:
        rounds, found = RunFolder(folder).rounds, _rounds_of(folder, kind)
        if found:
            rounds = rounds[: found[0]]
        tested = [row["accuracy"] for row in rounds if row["accuracy"] is not None]
        if not tested:
            raise ValueError(f"no round of {str(folder)!r} was tested before the first {kind!r}; lower evaluation.every")
        return 100 * float(tested[-1])

    return read


@cache
def _rounds_of(folder: Path, kind: str) -> list[int]:
    """The round (from 0) of each event of a kind, in order."""
    return [event["round"] for event in RunFolder(folder).events if event["kind"] == kind]


def mean_of(name: str) -> Reading:
    """The mean over rounds of a column of ``rounds.parquet``."""
    return lambda folder: float(column(folder, name).mean())


def variance_of(name: str) -> Reading:
    """The variance over rounds of a column of ``rounds.parquet``."""
    return lambda folder: float(column(folder, name).var(ddof=1))


def traffic(folder: Path) -> float:
    """Bytes both ways as the FlexCFL paper counts them: models and updates, without what first reaches cold clients, ids
    and scalars."""
    return float(RunFolder(folder).summary["bytes"]["paper"])
