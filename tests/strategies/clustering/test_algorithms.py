"""Groupings as labels and members, k-means, k-medoids, DBSCAN, linkage with CFL's split, and CCS."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.toolbox.clustering.algorithms import (
    Dbscan,
    agglomerative,
    bipartition,
    canonical,
    greedy_clusters,
    k_medoids,
    kmeans,
    members,
    plus_plus,
    threshold,
)
from fedsim.toolbox.clustering.similarity import cosine_matrix


@given(st.lists(st.integers(-3, 3), max_size=12))
def test_numbering_keeps_the_grouping_and_members_name_it(labels: list[int]) -> None:
    numbered = canonical(labels)
    assert [[a == b for b in labels] for a in labels] == [[a == b for b in numbered] for a in numbered]
    groups = members(numbered)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    assert sorted(device for group in groups for device in group) == list(range(len(labels)))
    assert all(group == sorted(group) and len(set(numbered[group])) == 1 for group in groups)
    assert canonical(numbered).tolist() == numbered.tolist()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: labels_of([[0.0], [1.0]], 0), "k-means into 0 groups of 2 devices; allowed are 1 to 2"),
        (lambda: agglomerative(np.zeros((2, 2)), 3, "complete"), "complete linkage into 3 groups of 2 devices"),
        (lambda: by_medoids(np.zeros((2, 2)), 3), "k-medoids into 3 groups of 2 devices"),
        (lambda: agglomerative(np.zeros((2, 3)), 1, "average"), r"distance has shape \(2, 3\)"),
        (lambda: by_medoids(np.zeros((0, 0)), 1), r"shape \(0, 0\)"),
        (lambda: by_density(np.array([[0, 1.0], [np.nan, 0]]), 1.0), "distance of devices 1 and 0 is nan"),
        (lambda: bipartition(np.eye(1)), "a cluster of 1 device cannot be split"),
        (lambda: labels_of([[0.0], [np.nan]], 1), "row 1 of 2 is not finite"),
        (lambda: threshold(math.nan, 1.0), "CCS needs finite losses"),
        (lambda: threshold(1.0, math.inf), "CCS needs finite losses"),
    ],
)
def test_what_cannot_be_grouped_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        make()


def labels_of(rows: object, groups: int, seed: int = 0) -> list[int]:
    return kmeans(np.array(rows, dtype=np.float64), groups, np.random.default_rng(seed)).tolist()  # type: ignore[no-any-return]


@given(arrays(np.int64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 2)), st.integers(1, 5))
def test_no_group_is_empty_and_equal_rows_stay_together(rows: np.ndarray, groups: int) -> None:
    distinct = len(np.unique(rows, axis=0))
    if groups > distinct:
        with pytest.raises(SimulationError, match=f"k-means into {groups} groups"):
            labels_of(rows, groups)
        return
    labels = labels_of(rows, groups)
    assert sorted(set(labels)) == list(range(groups))
    assert len({(*row, label) for row, label in zip(rows.tolist(), labels, strict=True)}) == distinct


def test_fewer_distinct_rows_than_groups() -> None:
    with pytest.raises(
        SimulationError, match="k-means into 3 groups needs as many distinct feature rows, and the 4 devices have 2"
    ):
        labels_of([[0, 1], [1, 0], [1, 0], [0, 1]], 3)
    with pytest.raises(SimulationError, match="the 5 devices have 1"):
        labels_of(1.0 + 1e-15 * np.arange(5)[:, None], 2)
    with pytest.raises(SimulationError, match="k-means into 2 groups of 1 devices"):
        labels_of([[0.0]], 2)
    assert labels_of([[0.0], [0.0]], 1) == [0, 0]


def test_rows_too_near_for_scikit_learn_still_fill_all_groups() -> None:
    rows = 1.0 + 2e-9 * np.array([[0], [1], [2], [-5e8]])
    assert sorted(set(labels_of(rows, 3))) == [0, 1, 2]


def symmetric(n: int, upper: list[float], diagonal: float) -> np.ndarray:
    matrix = np.full((n, n), diagonal)
    matrix[np.triu_indices(n, 1)] = upper
    matrix.T[np.triu_indices(n, 1)] = upper
    return matrix


def least_cross_similarity(similarity: np.ndarray) -> float:
    """By trying every split."""
    n = len(similarity)
    values = []
    for sides in product([False, True], repeat=n - 1):
        if any(sides):
            other = np.array([False, *sides])
            values.append(similarity[np.ix_(~other, other)].max())
    return float(min(values))


def check(similarity: np.ndarray, method: str = "single") -> float:
    """It is a split of all, and its value is what it says."""
    first, second, cross = bipartition(similarity, method)  # type: ignore[arg-type]
    assert sorted(first + second) == list(range(len(similarity)))
    assert (first, second, first[0]) == (sorted(first), sorted(second), 0)
    assert cross == max(similarity[i, j] for i in first for j in second)
    return cross


FIVE = symmetric(5, [0.9, 0.5, 0.1, 0.0, 0.8, 0.2, 0.1, 0.7, 0.3, 0.6], 1.0)


def test_five_clients() -> None:
    assert bipartition(FIVE) == ([0, 1, 2, 3], [4], 0.6)
    assert bipartition(FIVE, "complete") == ([0, 1], [2, 3, 4], 0.8)
    assert least_cross_similarity(FIVE) == 0.6


@given(st.integers(2, 7).flatmap(lambda n: st.lists(st.floats(-1, 1), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2)))
def test_single_linkage_is_the_best_split(upper: list[float]) -> None:
    similarity = symmetric(round((1 + (1 + 8 * len(upper)) ** 0.5) / 2), upper, 1.0)
    assert check(similarity) == least_cross_similarity(similarity)


def test_differences_below_the_rounding_of_1_minus_similarity_count() -> None:
    similarity = symmetric(3, [2e-20, 1e-20, 1e-20], 1.0)
    assert bipartition(similarity) == ([0, 1], [2], 1e-20)


@given(
    st.sampled_from(["single", "complete", "average"]),
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.randoms(use_true_random=False))),
)
def test_exactly_as_many_clusters_as_asked_for_even_when_distances_tie(method: str, case: tuple[int, int, object]) -> None:
    n, groups, random = case
    distance = symmetric(n, [float(random.randint(0, 2)) for _ in range(n * (n - 1) // 2)], 0.0)  # type: ignore[attr-defined]
    labels = agglomerative(distance, groups, method)  # type: ignore[arg-type]
    assert len(labels) == n
    assert sorted(set(labels.tolist())) == list(range(groups))


STARTS = ["build", "heuristic", "k-medoids++"]


def apart(points: list[float]) -> np.ndarray:
    values = np.array(points, dtype=np.float64)
    return np.abs(values[:, None] - values)


def by_medoids(distance: np.ndarray, groups: int, start: Any = "build", seed: int = 0) -> np.ndarray:
    return k_medoids(distance, groups, start, np.random.default_rng(seed))


def by_density(distance: np.ndarray, eps: float, min_samples: int = 5) -> list[list[int]]:
    return members(Dbscan(eps=eps, min_samples=min_samples).labels(distance, 2, np.random.default_rng(0)))


def test_radius_counts_the_diagonal() -> None:
    distance = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 3.0], [5.0, 3.0, 0.0]])  # sorted: 0 0 0 1 1 3 3 5 5
    for groups, together in ((2, [0, 0, 0]), (3, [0, 0, 1]), (5, [0, 1, 2])):  # radii 5, 1, 0
        assert Dbscan(min_samples=1).labels(distance, groups, np.random.default_rng(0)).tolist() == together


def test_noise_is_one_cluster_of_its_own() -> None:
    distance = apart([100.0, 0.0, 0.1, 0.2, 50.0, 0.3])
    assert by_density(distance, 0.15, 3) == [[0, 4], [1, 2, 3, 5]]
    assert by_density(distance, 0.15) == [list(range(6))]
    assert by_density(distance, 0.15, 1) == [[0], [1, 2, 3, 5], [4]]
    assert by_density(apart([1.0, 2.0, 1.0, 2.0]), 0.0, 2) == [[0, 2], [1, 3]]  # twins


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


def test_the_threshold_falls_from_the_cosine_of_theta_to_0() -> None:
    assert threshold(2.3, 2.3) == threshold(9.0, 2.3) == pytest.approx(math.cos(math.pi / 36), abs=1e-15)
    assert threshold(0.0, 2.3) == threshold(0.1, 2.3, least_loss=0.5) == 0.0
    assert threshold(1.5, 2.5, 0.5, 0.2) == pytest.approx(math.cos(0.2 + (math.pi / 2 - 0.2) / 2), abs=1e-15)
    assert threshold(1.0, 0.5, least_loss=0.5) == threshold(2.3, 2.3)


def test_the_largest_neighbourhood_goes_first_and_the_first_of_equals() -> None:
    near = np.eye(6)
    for one, other in [(0, 1), (2, 3), (3, 4)]:
        near[one, other] = near[other, one] = 0.5
    # 3 is near to 2 and 4, which are not near to each other; then come 0 with 1, then 5.
    assert greedy_clusters(near, 0.5) == [[2, 3, 4], [0, 1], [5]]
    assert greedy_clusters(near, 0.50001) == [[device] for device in range(6)]


def as_written(similarity: np.ndarray, eps: float) -> list[list[int]]:
    """Algorithm 1, line by line."""
    left = list(range(len(similarity)))
    clusters = []
    while left:
        near = [[j for j in left if j == k or similarity[k, j] >= eps] for k in left]
        largest = max(near, key=len)
        clusters.append(largest)
        left = [k for k in left if k not in largest]
    return clusters


@given(arrays(np.float64, st.tuples(st.integers(1, 9), st.just(3)), elements=st.integers(-2, 2).map(float)), st.floats(-1, 1))
def test_it_is_the_algorithm_as_written(rows: np.ndarray, eps: float) -> None:
    cosines = cosine_matrix(rows)
    clusters = greedy_clusters(cosines, eps)
    assert clusters == as_written(cosines, eps)
    assert sorted(device for cluster in clusters for device in cluster) == list(range(len(rows)))
    assert [len(cluster) for cluster in clusters] == sorted((len(cluster) for cluster in clusters), reverse=True)
