"""The three clusterings of LCFL: k-medoids, DBSCAN and average linkage."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.algorithms import dbscan, k_medoids, members, plus_plus, radius

STARTS = ["build", "heuristic", "k-medoids++"]


def apart(points: list[float]) -> np.ndarray:
    values = np.array(points, dtype=np.float64)
    return np.abs(values[:, None] - values)


def by_medoids(distance: np.ndarray, groups: int, start: Any = "build", seed: int = 0) -> np.ndarray:
    return k_medoids(distance, groups, start, np.random.default_rng(seed))


def test_radius_counts_the_diagonal() -> None:
    distance = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 3.0], [5.0, 3.0, 0.0]])  # sorted: 0 0 0 1 1 3 3 5 5
    assert radius(distance, 2) == 5.0
    assert radius(distance, 3) == 1.0
    assert radius(distance, 5) == 0.0
    with pytest.raises(SimulationError, match="radius for DBSCAN is asked for 1 groups; allowed are 2 or more"):
        radius(distance, 1)


def test_noise_is_one_cluster_of_its_own() -> None:
    distance = apart([100.0, 0.0, 0.1, 0.2, 50.0, 0.3])
    assert members(dbscan(distance, 0.15, min_samples=3)) == [[0, 4], [1, 2, 3, 5]]
    assert members(dbscan(distance, 0.15)) == [list(range(6))]
    assert members(dbscan(distance, 0.15, min_samples=1)) == [[0], [1, 2, 3, 5], [4]]


def test_a_radius_of_0_puts_twins_together() -> None:
    assert members(dbscan(apart([1.0, 2.0, 1.0, 2.0]), 0.0, min_samples=2)) == [[0, 2], [1, 3]]


def test_the_heuristic_may_start_twice_in_one_cluster_and_stay_there() -> None:
    distance = apart([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 100.0, 100.1, 100.2])
    assert members(by_medoids(distance, 2, "build")) == [list(range(10)), [10, 11, 12]]
    assert len(members(by_medoids(distance, 2, "heuristic"))[0]) < 10


def test_a_single_cluster_and_clusters_of_one() -> None:
    distance = apart([4.0, 0.0, 1.0])
    for start in STARTS:
        assert by_medoids(distance, 1, start).tolist() == [0, 0, 0]
        assert by_medoids(distance, 3, start).tolist() == [0, 1, 2]
        assert by_medoids(np.zeros((1, 1)), 1, start).tolist() == [0]


@given(
    st.sampled_from(STARTS),
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(st.integers(1, n), arrays(np.float64, (n, n), elements=st.integers(0, 9).map(float)))
    ),
    st.integers(0, 3),
)
def test_each_medoid_is_its_clusters_best_and_each_device_is_nearest_to_its_own(
    start: str, case: tuple[int, np.ndarray], seed: int
) -> None:
    groups, matrix = case
    distance = np.triu(matrix, 1) + np.triu(matrix, 1).T
    clusters = members(by_medoids(distance, groups, start, seed))
    assert len(clusters) == groups
    best = []
    for cluster in clusters:
        sums = distance[np.ix_(cluster, cluster)].sum(axis=1)
        best.append([cluster[i] for i in np.flatnonzero(sums == sums.min())])
    own = np.concatenate([np.full(len(cluster), number) for number, cluster in enumerate(clusters)])
    rows = np.concatenate(clusters)
    # Where several members are equally good, one of them is the medoid.
    assert any(
        (distance[rows, np.array(medoids)[own]] == distance[np.ix_(rows, medoids)].min(axis=1)).all()
        for medoids in product(*best)
    )


def test_far_devices_are_drawn_by_the_square_of_the_distance() -> None:
    """From 0 the others are drawn with 1:9, from 1 with 1:4, from 3 with 9:4."""
    generator = np.random.default_rng(0)
    draws = [tuple(plus_plus(apart([0.0, 1.0, 3.0]), 2, generator).tolist()) for _ in range(6000)]
    expected = {(0, 1): 1 / 10, (0, 2): 9 / 10, (1, 0): 1 / 5, (1, 2): 4 / 5, (2, 0): 9 / 13, (2, 1): 4 / 13}
    for pair, share in expected.items():
        assert draws.count(pair) / 6000 == pytest.approx(share / 3, abs=0.02)


@pytest.mark.parametrize("start", STARTS)
def test_devices_that_coincide(start: str) -> None:
    assert sorted(set(by_medoids(np.zeros((5, 5)), 3, start).tolist())) == [0, 1, 2]


def test_what_cannot_be_clustered_is_refused() -> None:
    with pytest.raises(SimulationError, match="k-medoids into 3 groups of 2 devices"):
        by_medoids(np.zeros((2, 2)), 3)
    with pytest.raises(SimulationError, match="distance of devices 0 and 1 is inf"):
        by_medoids(np.array([[0, np.inf], [np.inf, 0]]), 1)
    with pytest.raises(SimulationError, match="distance of devices 0 and 1 is nan"):
        dbscan(np.array([[0, np.nan], [np.nan, 0]]), 1.0)
