"""Predicts messages/s of a semi-asynchronous Flower app: ``python
scenarios/outside/fedsasync/predict.py``.
"""

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import fedsim
from fedsim.running.scenarios.outside.rows import Prediction, given, show, write

HERE = Path(__file__).resolve().parent
SEEDS = (1, 2, 3)
PROCESSES = 4
NODES = 20
ROUNDS = {"mnist": 25, "cifar10": 50}
SETTINGS = [
    f"{data}_{split}" for data, split in product(("mnist", "cifar10"), ("iid", "dirichlet"))
]
SLOW = ("0.0", "0.1", "0.2", "0.3", "0.4", "0.5")
VARIANTS = (*(f"M{replies}" for replies in range(8, 21, 2)), "FedAvg")
CALIBRATION = json.loads((HERE / "calibration.json").read_text(encoding="utf-8"))
PARTITIONS = json.loads((HERE / "partitions.json").read_text(encoding="utf-8"))


Cell = tuple[str, str, str]
"""Setting, fraction of slow clients and variant."""


def cell_of(row: dict[str, str]) -> Cell:
    """Setting, fraction of slow clients and variant of a given row."""
    return row["setting"], row["fraction_slow"], row["variant"]


def is_test(cell: Cell) -> bool:
    """Whether a cell was given after the rule had been written."""
    return cell[0] == "cifar10_iid" and cell[1] != SLOW[0]


def scenario(
    setting: str, slow: str, variant: str, seed: int, fitted: dict[str, Any] = CALIBRATION
) -> fedsim.Scenario:
    """A cell's world and app; ``fitted``: the times and the curve of the machine."""
    data = setting.partition("_")[0]
    times = {key: fitted[key] for key in ("cold", "fixed", "test", "server")} | {
        "sample": fitted["sample"][data],
    }
    replies = NODES if variant == "FedAvg" else int(variant[1:])
    counts = {"replies": replies, "slow": round(float(slow) * NODES), "rounds": ROUNDS[data]}
    sections: dict[str, Any] = {
        "name": f"{setting}, {slow} slow, {variant}",
        "seed": seed,
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 B", "flops_per_sample": 1.0},
        "population": {
            "devices": 2 * NODES,
            "samples": {"kind": "list", "values": 2 * PARTITIONS[setting]},
            "jitter": fitted["jitter"],
            "host": {"throughput": fitted["throughput"], "workers": NODES},
        },
        "network": {"kind": "star"},
        "strategy": {
            "kind": "fedsim.running.scenarios.outside.fedsasync.app:FedSaSync",
            **counts,
            **times,
        },
        "stop": {"rounds": 1_000},
    }
    return fedsim.Scenario(**sections)


def rate(setting: str, slow: str, variant: str, seed: int) -> float:
    """Messages/s of one run."""
    simulation = fedsim.Simulation(scenario(setting, slow, variant, seed))
    simulation.env.run(until=simulation.ended)
    state = simulation.installed.strategy.state
    return float(state["messages"] / state["seconds"])


def rates(cells: Sequence[Cell]) -> dict[Cell, float]:
    """Mean messages/s of each cell over all seeds."""
    runs = [(*cell, seed) for cell in cells for seed in SEEDS]
    with ProcessPoolExecutor(PROCESSES) as pool:
        results = [*pool.map(rate, *zip(*runs, strict=True), chunksize=len(SEEDS))]
    size = len(SEEDS)
    return {
        cell: fmean(results[number * size : (number + 1) * size])
        for number, cell in enumerate(cells)
    }


def main(only: str = "") -> None:
    """All cells; ``only`` those without slow clients: ``calibrated``."""
    measured = {cell_of(row): row for row in given(HERE)}
    fractions = SLOW[:1] if only == "calibrated" else SLOW
    by_cell = rates([*product(SETTINGS, fractions, VARIANTS[:-1])])
    predictions: list[Prediction] = []
    misses: dict[bool, list[str]] = {True: [], False: []}
    for cell in product(SETTINGS, fractions, VARIANTS):
        row = measured.get(cell)
        found = by_cell[(*cell[:2], cell[2].replace("FedAvg", f"M{NODES}"))]  # which are the same
        mean = None if row is None else float(row["rate_mean"])
        is_given = row is not None and not is_test(cell)
        predictions.append(Prediction("messages/s", " ".join(cell), mean, found, is_given))
        if row is None or mean is None:
            continue
        if abs(found - mean) > max(2 * float(row["rate_sd"]), 0.05 * mean):
            misses[is_test(cell)].append(
                f"{' '.join(cell)}: {mean} +- {row['rate_sd']}, predicted {found:.2f} "
                f"({found / mean - 1:+.1%})"
            )
    show("FedSaSync, messages/s", predictions)
    for is_later, cells in misses.items():
        count = sum(row.measured is not None and row.given != is_later for row in predictions)
        which = "given since" if is_later else "given before"
        print(f"  outside of mean +- 2 sd and of 5 %, {which}: {len(cells)} of {count}")
        print("", *cells, sep="\n    ")
    if not only:
        write(HERE / "predicted.csv", predictions)


if __name__ == "__main__":
    main(*sys.argv[1:])
