"""Runs side by side: what each reached, and what it cost in rounds, simulated time and bytes."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.records.ledger import Preset
from fedsim.records.reading import RunFolder

Cell = str | float | int | None


def compare(paths: Sequence[str | Path], ledger: Preset = "strict", target: float | None = None) -> list[dict[str, Cell]]:
    """One row a run, in the order given; byte ratios are to the first run.

    Args:
        paths: run folders.
        ledger: ``strict`` counts every byte that moved, ``paper`` as the papers count.
        target: an accuracy (0..1); adds the first round, time and bytes at which each run has it.

    Raises:
        RunFolderError: a folder is not a run, or is damaged.
    """
    runs = [RunFolder(path) for path in paths]
    first = _total_bytes(runs[0], ledger)
    return [_row(run, ledger, target, first) for run in runs]


def _row(run: RunFolder, ledger: Preset, target: float | None, first_bytes: float) -> dict[str, Cell]:
    summary = run.summary
    total = _total_bytes(run, ledger)
    row: dict[str, Cell] = {
        "run": run.path.name,
        "strategy": summary["strategy"],
        "seed": summary["seed"],
        "rounds": summary["rounds"],
        "final accuracy": summary["accuracy"]["final"],
        "best accuracy": summary["accuracy"]["best"],
        "simulated s": summary["simulated_s"],
        "bytes": total,
        "wasted bytes": summary["bytes"]["wasted"],
        "bytes to first": total / first_bytes if first_bytes else None,
    }
    return row if target is None else row | _until(run, target)


def _total_bytes(run: RunFolder, ledger: Preset) -> float:
    moved = run.summary["bytes"]
    return float(moved["paper"] if ledger == "paper" else moved["down"] + moved["up"])


def _until(run: RunFolder, target: float) -> dict[str, Cell]:
    """Where the run first has the target accuracy; Nones where it never does. Bytes are strict."""
    moved = 0.0
    for row in run.rounds:
        moved += row["bytes_down"] + row["bytes_up"]
        if row["accuracy"] is not None and row["accuracy"] >= target:
            return {"rounds to target": row["round"] + 1, "s to target": row["time"], "bytes to target": moved}
    return {"rounds to target": None, "s to target": None, "bytes to target": None}


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV; a text that a spreadsheet would take for a formula is made plain."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _plain(value) for key, value in row.items()})
    return out.getvalue()


def _plain(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and value[:1] in "=+-@" else value
