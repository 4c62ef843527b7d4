"""Agglomerative clustering, and CFL's split against all splits there are."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.algorithms import agglomerative, bipartition
from fedsim.strategies.clustering.similarity import cosine_matrix


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
    split = bipartition(similarity, method)  # type: ignore[arg-type]
    assert sorted(split.first + split.second) == list(range(len(similarity)))
    assert split.first == sorted(split.first)
    assert split.second == sorted(split.second)
    assert split.first[0] == 0
    assert split.cross == max(similarity[i, j] for i in split.first for j in split.second)
    return split.cross


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


@pytest.mark.parametrize("method", ["single", "complete"])
def test_identical_and_zero_updates_split_all_the_same(method: str) -> None:
    assert check(cosine_matrix(np.ones((4, 3))), method) == pytest.approx(1.0)
    assert check(cosine_matrix(np.zeros((4, 3))), method) == 0.0
    assert bipartition(np.eye(2), method) == ([0], [1], 0.0)  # type: ignore[arg-type]


def test_one_client_cannot_be_split() -> None:
    with pytest.raises(SimulationError, match="a cluster of 1 device cannot be split"):
        bipartition(np.eye(1))


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


def test_what_cannot_be_clustered_is_refused() -> None:
    with pytest.raises(SimulationError, match="complete linkage into 3 groups of 2 devices"):
        agglomerative(np.zeros((2, 2)), 3, "complete")
    with pytest.raises(SimulationError, match="distance of devices 0 and 1 is nan"):
        agglomerative(np.array([[0, np.nan], [np.nan, 0]]), 1, "average")
    assert agglomerative(np.zeros((1, 1)), 1, "complete").tolist() == [0]
