"""Rows of a study of other people's measurements: what was measured, what is predicted, and how
far off that is.
"""

import csv
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Prediction(NamedTuple):
    """A predicted figure.

    Attributes:
        what: the quantity and its unit.
        cell: the configuration.
        measured: None where the measurement is not at hand.
        predicted: by fedsim.
        given: whether the measurement could be seen, and fitted if the rule says so.
    """

    what: str
    cell: str
    measured: float | None
    predicted: float
    given: bool

    @property
    def error(self) -> float | None:
        """Relative error."""
        return None if not self.measured else self.predicted / self.measured - 1


def given(folder: Path) -> list[dict[str, str]]:
    """The rows of ``given.csv``."""
    with (folder / "given.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def is_held_out(cell: str) -> bool:
    """Whether a given row is left out of fits, so that it tests the rule.

    The hash of the configuration's name decides, so that no error can. About half of all names are
    held out. Studies that hold out rows say so in their README, with the date.
    """
    return hashlib.sha256(cell.encode()).digest()[0] % 2 == 1


def read(path: Path) -> list[Prediction]:
    """What ``write`` has written."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Prediction(
                row["what"],
                row["cell"],
                float(row["measured"]) if row["measured"] else None,
                float(row["predicted"]),
                row["given"] in ("yes", "1"),
            )
            for row in csv.DictReader(file)
        ]


def write(path: Path, predictions: Iterable[Prediction]) -> None:
    """Write ``predicted.csv``."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["what", "cell", "measured", "predicted", "error", "given"])
        for row in predictions:
            measured = "" if row.measured is None else f"{row.measured:g}"
            error = "" if row.error is None else f"{row.error:+.4f}"
            table.writerow(
                [
                    row.what,
                    row.cell,
                    measured,
                    f"{row.predicted:.5g}",
                    error,
                    "yes" if row.given else "no",
                ]
            )


def show(title: str, predictions: Sequence[Prediction]) -> None:
    """Print the rows that were measured, and their errors."""
    print(title)
    for row in predictions:
        if row.error is not None:
            print(
                f"  {row.what:24} {row.cell:42} {row.measured:10.5g} {row.predicted:10.5g} "
                f"{row.error:+8.2%}"
            )
    errors = [abs(row.error) for row in predictions if row.error is not None]
    print(
        f"  {len(errors)} measured: median error {median(errors):.2%}, largest "
        f"{max(errors):.2%}; {len(predictions)} predicted"
    )
