"""Which way of training dense layers pays when: prints JSON. Run with ``python -m tests.benchmarks.dense``.

For each shape of a device's work: milliseconds a device in each way, and which one the solver takes. The constants of
``Dense._costs`` were fitted to such a table; ``lost`` is what the solver's choice costs beyond the best.
"""

import json
import sys
import time
from itertools import product
from typing import Any, get_args

import numpy as np
import torch

from fedsim.learning.architecture import Architecture, dense
from fedsim.learning.solvers.base import Descent, LocalSolve, compute_with_one_thread, shuffled
from fedsim.learning.solvers.dense import Dense, Way

MODELS = [(784, (10,)), (784, (128, 10)), (784, (512, 10)), (64, (10,)), (64, (32, 10))]
BATCHES, EPOCHS, SAMPLES = (10, 64, 1000), (1, 5, 20), (30, 100, 300, 800)
WAYS: tuple[Way, ...] = get_args(Way)
MOST_PASSES, DEVICES, REPEATS = 6000, 4, 3


def work(solver: Dense, features: int, classes: int, samples: int, batch: int, epochs: int, weights: np.ndarray) -> float:
    """Milliseconds a device."""
    draw = np.random.default_rng(0)
    solves = [
        LocalSolve(
            weights,
            torch.from_numpy(draw.normal(size=(samples, features)).astype(np.float32)),
            torch.from_numpy(draw.integers(0, classes, samples)),
            shuffled(draw, samples, batch, epochs),
        )
        for _ in range(DEVICES)
    ]
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.thread_time()
        solver.solve(solves, Descent(0.03))
        best = min(best, time.thread_time() - begin)
    return 1e3 * best / DEVICES


def main() -> None:
    """Measure and print."""
    compute_with_one_thread()
    rows: list[dict[str, Any]] = []
    for (features, widths), batch, epochs, samples in product(MODELS, BATCHES, EPOCHS, SAMPLES):
        if samples * epochs > MOST_PASSES:
            continue
        architecture = Architecture((features,), dense(features, *widths))
        weights = np.random.default_rng(1).normal(0, 0.1, architecture.parameters).astype(np.float32)
        took = {way: work(Dense(architecture, way=way), features, widths[-1], samples, batch, epochs, weights) for way in WAYS}
        taken = Dense(architecture).way(samples, min(batch, samples), epochs * -(-samples // batch))
        row = {"model": [features, *widths], "batch": batch, "epochs": epochs, "samples": samples}
        rows.append(row | {f"{way} ms": round(ms, 3) for way, ms in took.items()} | {"taken": taken})
        rows[-1]["lost"] = round(took[taken] / min(took.values()) - 1, 2)
        print(rows[-1], file=sys.stderr)
    lost = [row["lost"] for row in rows]
    print(json.dumps({"rows": rows, "mean_lost": float(np.mean(lost)), "most_lost": float(np.max(lost))}, indent=2))


if __name__ == "__main__":
    main()
