"""Processor time of the server's operations at several sizes on one thread (ms), and its ratio
to ``cost_s`` (0.5 to 2).

``python -m tests.benchmarks.server``
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedsim.federation.costs import cost_s
from fedsim.toolbox.clustering.algorithms import agglomerative, k_medoids, kmeans
from fedsim.toolbox.clustering.similarity import gram_matrix, madc

REPEATS = 5


def cases() -> Iterator[tuple[str, int, int, int, Callable[[], object]]]:
    """Operation, n, d, m, and how to carry it out."""
    draw = np.random.default_rng(1)
    for n, d in ((10, 10_000), (20, 100_000), (50, 400_000)):
        rows = draw.standard_normal((n, d), dtype=np.float32)
        yield "mix", n, d, 1, partial(mixed, list(rows))
    for n, d in ((20, 50_000), (60, 100_000), (200, 20_000)):
        rows = draw.standard_normal((n, d), dtype=np.float32)
        yield "products", n, d, 1, partial(gram_matrix, rows)
        yield "distances", n, d, 5, partial(distances, rows, rows[:5])
    for n, d, m in ((60, 5, 5), (500, 10, 10), (30, 20_000, 10)):
        yield "k-means", n, d, m, partial(kmeans, draw.standard_normal((n, d)), m, draw)
    for n in (50, 200, 600):
        points = draw.standard_normal((n, 5))
        far = np.linalg.norm(points[:, None] - points[None], axis=2)
        yield "linkage", n, 0, 1, partial(agglomerative, far, 5, "complete")
        yield "medoids", n, 0, 5, partial(k_medoids, far, 5, "build", draw)
        yield "absolute differences", n, 0, 1, partial(madc, far)


def mixed(rows: list[NDArray[np.float32]]) -> object:
    return sum(np.float32(0.1) * row for row in rows)


def distances(rows: NDArray[np.float32], centers: NDArray[np.float32]) -> object:
    return [[np.linalg.norm(row.astype(np.float64) - one) for one in centers] for row in rows]


def seconds(carry_out: Callable[[], object]) -> float:
    carry_out()  # imports
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        carry_out()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    with threadpool_limits(1):
        for what, n, d, m, carry_out in cases():
            took = seconds(carry_out)
            print(
                f"{what:22} n={n:<4} d={d:<7} m={m:<3} {took * 1e3:9.3f} ms "
                f"{took / cost_s(what, n, d, m):6.2f}"
            )


if __name__ == "__main__":
    main()
