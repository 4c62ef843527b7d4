"""Groupings as labels and members, k-means, k-medoids, DBSCAN, linkage with CFL's split, and
CCS.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.common.errors import SimulationError
from fedsim.toolbox.clustering import similarity
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


@given(st.lists(st.integers(-3, 3), max_size=12))
def test_numbering_keeps_the_grouping_and_members_name_it(labels: list[int]) -> None:
    numbered = canonical(labels)
    assert [[a == b for b in labels] for a in labels] == [
        [a == b for b in numbered] for a in numbered
    ]
    groups = members(numbered)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    assert sorted(device for group in groups for device in group) == list(range(len(labels)))
    assert all(group == sorted(group) and len(set(numbered[group])) == 1 for group in groups)
    assert canonical(numbered).tolist() == numbered.tolist()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: labels_of([[0.0]], 2), "2 groups needs as many distinct .* 1 devices have 1"),
        (
            lambda: labels_of([[0, 1], [1, 0], [1, 0], [0, 1]], 3),
            "3 groups needs as many distinct .* 4 devices have 2",
        ),
        (lambda: labels_of(1.0 + 1e-15 * np.arange(5)[:, None], 2), "the 5 devices have 1"),
        (lambda: labels_of([[0.0], [np.nan]], 1), "of 2 rows some are not finite"),
        (lambda: threshold(math.nan, 1.0), "CCS needs finite losses"),
        (lambda: threshold(1.0, math.inf), "CCS needs finite losses"),
    ],
)
def test_what_cannot_be_grouped_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        make()


def labels_of(rows: object, groups: int, seed: int = 0) -> list[int]:
    return kmeans(np.array(rows, dtype=np.float64), groups, np.random.default_rng(seed)).tolist()  # type: ignore[no-any-return]


@given(
    arrays(np.int64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 2)),
    st.integers(1, 5),
)
def test_no_group_is_empty_and_equal_rows_stay_together(rows: np.ndarray, groups: int) -> None:
    distinct = len(np.unique(rows, axis=0))
    if groups > distinct:
        with pytest.raises(SimulationError, match=f"k-means into {groups} groups needs"):
            labels_of(rows, groups)
        return
    labels = labels_of(rows, groups)
    assert sorted(set(labels)) == list(range(groups))
    assert (
        len({(*row, label) for row, label in zip(rows.tolist(), labels, strict=True)}) == distinct
    )


def test_rows_too_near_for_scikit_learn_still_fill_all_groups() -> None:
    rows = 1.0 + 2e-9 * np.array([[0], [1], [2], [-5e8]])
    assert sorted(set(labels_of(rows, 3))) == [0, 1, 2]


def symmetric(n: int, upper: list[float], diagonal: float) -> np.ndarray:
    matrix = np.full((n, n), diagonal)
    matrix[np.triu_indices(n, 1)] = matrix.T[np.triu_indices(n, 1)] = upper
    return matrix


def least_cross_similarity(similarity: np.ndarray) -> float:
    """By trying every split."""
    sides = (
        np.array([False, *other])
        for other in product([False, True], repeat=len(similarity) - 1)
        if any(other)
    )
    return float(min(similarity[np.ix_(~other, other)].max() for other in sides))


FIVE = symmetric(5, [0.9, 0.5, 0.1, 0.0, 0.8, 0.2, 0.1, 0.7, 0.3, 0.6], 1.0)


def test_five_clients() -> None:
    assert bipartition(FIVE) == ([0, 1, 2, 3], [4], 0.6)
    assert bipartition(FIVE, "complete") == ([0, 1], [2, 3, 4], 0.8)
    assert least_cross_similarity(FIVE) == 0.6


@given(
    st.integers(2, 7).flatmap(
        lambda n: st.lists(st.floats(-1, 1), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2)
    )
)
def test_single_linkage_is_the_best_split(upper: list[float]) -> None:
    similarity = symmetric(round((1 + (1 + 8 * len(upper)) ** 0.5) / 2), upper, 1.0)
    first, second, cross = bipartition(similarity)
    assert sorted(first + second) == list(range(len(similarity)))
    assert (first, second, first[0]) == (sorted(first), sorted(second), 0)
    assert cross == similarity[np.ix_(first, second)].max() == least_cross_similarity(similarity)


def test_differences_below_the_rounding_of_1_minus_similarity_count() -> None:
    similarity = symmetric(3, [2e-20, 1e-20, 1e-20], 1.0)
    assert bipartition(similarity) == ([0, 1], [2], 1e-20)


@given(
    st.sampled_from(["single", "complete", "average"]),
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(1, n), st.randoms(use_true_random=False))
    ),
)
def test_exactly_as_many_clusters_as_asked_for_even_when_distances_tie(
    method: str, case: tuple[int, int, object]
) -> None:
    n, groups, random = case
    distance = symmetric(n, [float(random.randint(0, 2)) for _ in range(n * (n - 1) // 2)], 0.0)  # type: ignore[attr-defined]
    labels = agglomerative(distance, groups, method)  # type: ignore[arg-type]
    assert len(labels) == n
    assert sorted(set(labels.tolist())) == list(range(groups))


STARTS = ["build", "heuristic", "k-medoids++"]


def apart(points: list[float]) -> np.ndarray:
    values = np.array(points, dtype=np.float64)
    return np.abs(values[:, None] - values)


def by_medoids(
    distance: np.ndarray, groups: int, start: Any = "build", seed: int = 0
) -> np.ndarray:
    return k_medoids(distance, groups, start, np.random.default_rng(seed))


def by_density(distance: np.ndarray, groups: int) -> list[list[int]]:
    return members(Dbscan().labels(distance, groups, np.random.default_rng(0)))


def test_dbscans_radius_is_a_percentile_and_noise_is_one_cluster_of_its_own() -> None:
    # of 49 distances, 0 on the diagonal counted, 27 are 0.4 or less
    distance = apart([100.0, 0.0, 0.1, 0.2, 0.3, 0.4, 50.0])
    assert by_density(distance, 2) == [list(range(7))]
    # the median is 0.4: five neighbours, itself counted
    assert by_density(distance, 3) == [[0, 6], [1, 2, 3, 4, 5]]
    assert by_density(distance, 9) == [list(range(7))], "all are noise"
    assert by_density(apart([1.0, 2.0] * 5), 3) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]], (
        "a radius of 0: twins"
    )


@given(
    st.sampled_from(STARTS),
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(
            st.integers(1, n), arrays(np.float64, (n, n), elements=st.integers(0, 9).map(float))
        )
    ),
    st.integers(0, 3),
)
def test_medoids_are_their_clusters_best_and_devices_nearest_to_theirs(
    start: str, case: tuple[int, np.ndarray], seed: int
) -> None:
    groups, matrix = case
    distance = np.triu(matrix, 1) + np.triu(matrix, 1).T
    clusters = members(by_medoids(distance, groups, start, seed))
    assert len(clusters) == groups
    sums = [distance[np.ix_(cluster, cluster)].sum(axis=1) for cluster in clusters]
    best = [
        np.array(cluster)[own == own.min()] for cluster, own in zip(clusters, sums, strict=True)
    ]
    own = np.concatenate([np.full(len(cluster), number) for number, cluster in enumerate(clusters)])
    rows = np.concatenate(clusters)
    # Where several members are equally good, one of them is the medoid.
    assert any(
        (
            distance[rows, np.array(medoids)[own]] == distance[np.ix_(rows, medoids)].min(axis=1)
        ).all()
        for medoids in product(*best)
    )


def test_far_devices_are_drawn_by_the_square_of_the_distance() -> None:
    """From 0 the others are drawn with 1:9, from 1 with 1:4, from 3 with 9:4."""
    generator = np.random.default_rng(0)
    draws = [tuple(plus_plus(apart([0.0, 1.0, 3.0]), 2, generator).tolist()) for _ in range(6000)]
    expected = {
        (0, 1): 1 / 10,
        (0, 2): 9 / 10,
        (1, 0): 1 / 5,
        (1, 2): 4 / 5,
        (2, 0): 9 / 13,
        (2, 1): 4 / 13,
    }
    for pair, share in expected.items():
        assert draws.count(pair) / 6000 == pytest.approx(share / 3, abs=0.02)


def test_the_threshold_falls_from_the_cosine_of_theta_to_0() -> None:
    assert (
        threshold(2.3, 2.3)
        == threshold(9.0, 2.3)
        == pytest.approx(math.cos(math.pi / 36), abs=1e-15)
    )
    assert threshold(0.0, 2.3) == threshold(0.1, 2.3, least_loss=0.5) == 0.0
    assert threshold(1.5, 2.5, 0.5, 0.2) == pytest.approx(
        math.cos(0.2 + (math.pi / 2 - 0.2) / 2), abs=1e-15
    )
    assert threshold(1.0, 0.5, least_loss=0.5) == threshold(2.3, 2.3)


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


@given(
    arrays(
        np.float64, st.tuples(st.integers(1, 9), st.just(3)), elements=st.integers(-2, 2).map(float)
    ),
    st.floats(-1, 1),
)
def test_it_is_the_algorithm_as_written(rows: np.ndarray, eps: float) -> None:
    cosines = similarity.cosine_matrix(rows)
    clusters = greedy_clusters(cosines, eps)
    assert clusters == as_written(cosines, eps)
    assert sorted(device for cluster in clusters for device in cluster) == list(range(len(rows)))
    assert [len(cluster) for cluster in clusters] == sorted(
        (len(cluster) for cluster in clusters), reverse=True
    )


# Lengths, cosines and distances against their definitions and known answers.


def test_known_cosines() -> None:
    rows = np.array([[3, 0], [0, 0.5], [-2, 0], [1, 1], [0, 0]], dtype=np.float32)
    half = math.sqrt(0.5)
    expected = [
        [1, 0, -1, half, 0],
        [0, 1, 0, half, 0],
        [-1, 0, 1, -half, 0],
        [half, half, -half, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert similarity.cosine_matrix(rows) == pytest.approx(np.array(expected), abs=1e-15)


@given(arrays(np.float64, (4, 3), elements=st.floats(-1e6, 1e6, width=32)), st.floats(1e-3, 1e3))
def test_cosines_are_symmetric_bounded_and_blind_to_length(rows: np.ndarray, factor: float) -> None:
    cosines = similarity.cosine_matrix(rows)
    assert np.array_equal(cosines, cosines.T)
    assert np.array_equal(cosines.diagonal(), np.ones(4))
    assert (np.abs(cosines) <= 1).all()
    assert similarity.cosine_matrix(rows * [[1], [factor], [1], [1]]) == pytest.approx(
        cosines, abs=1e-12
    )


def test_blocks_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 103)).astype(np.float32)
    whole = similarity.gram_matrix(rows)
    assert whole == pytest.approx(rows.astype(np.float64) @ rows.astype(np.float64).T, rel=1e-13)
    monkeypatch.setattr(similarity, "_BLOCK_BYTES", 8 * 5 * 10)
    assert similarity.gram_matrix(rows) == pytest.approx(whole, rel=1e-13)


def test_float32_rows_are_summed_in_float64() -> None:
    rows = np.ones((2, 2**20), dtype=np.float32)
    rows[1, 0] += 0.5
    assert similarity.gram_matrix(rows)[1].tolist() == [2**20 + 0.5, 2**20 + 1.25]


def test_the_nearest_direction_is_that_of_the_largest_cosine() -> None:
    directions = [np.float32([10, 0]), np.float32([1, 1]), np.float32([0, 0])]
    updates = [
        np.float32([3, 0.1]),
        np.float32([3, 3]),
        np.float32([-1, -1]),
        np.float32([np.nan, 1]),
    ]
    # a cosine of 0 is more than one of -1
    assert similarity.most_alike(updates, directions) == [0, 1, 2, 0]
    assert similarity.most_alike(updates[:1], [np.float32([5, 0]), np.float32([7, 0])]) == [0]
    assert similarity.most_alike([], directions) == []
    diverged = [np.float32([np.inf, 0]), np.float32([1, 9])]
    assert similarity.most_alike(updates[:2], diverged) == [1, 1]


VECTORS = arrays(
    np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.integers(-4, 4).map(float)
)


@given(VECTORS)
def test_madc_is_its_definition(rows: np.ndarray) -> None:
    cosines = similarity.cosine_matrix(rows)
    n = len(rows)
    expected = np.zeros((n, n))
    for i, j in np.ndindex(n, n):
        others = [z for z in range(n) if z not in (i, j)]
        if others and i != j:
            expected[i, j] = np.mean([abs(cosines[i, z] - cosines[j, z]) for z in others])
    found = similarity.madc(cosines)
    assert found == pytest.approx(expected, abs=1e-14)
    assert np.array_equal(found, found.T)


@given(VECTORS)
def test_quadratic_losses_make_the_loss_distance_the_square_of_diff_norm(
    centres: np.ndarray,
) -> None:
    # L_i(w) = |w - c_i|^2 / 2 and w_j = c_j
    losses = ((centres[:, None] - centres[None]) ** 2).sum(axis=2) / 2
    assert similarity.row_distances(centres) ** 2 == pytest.approx(
        similarity.loss_distance(losses), abs=1e-9
    )
    assert similarity.row_distances(centres) == pytest.approx(np.sqrt(2 * losses), abs=1e-9)


def test_the_loss_distance_of_linear_models() -> None:
    """LCFL, Eq. 8: with the same second moments S of the inputs, L_i(w_j) - L_i(w_i) is dS' S^-1
    dS.
    """
    generator = np.random.default_rng(4)
    inputs = generator.standard_normal((200, 3))
    targets = [
        inputs @ generator.standard_normal(3) + generator.standard_normal(200) for _ in range(4)
    ]
    models = [np.linalg.lstsq(inputs, y)[0] for y in targets]
    losses = np.array([[np.mean((inputs @ w - y) ** 2) for w in models] for y in targets])
    moments = inputs.T @ inputs / 200
    cross = np.array([inputs.T @ y / 200 for y in targets])
    for i, j in np.ndindex(4, 4):
        difference = cross[j] - cross[i]
        expected = 2 * difference @ np.linalg.inv(moments) @ difference
        assert similarity.loss_distance(losses)[i, j] == pytest.approx(expected, abs=1e-12)


def test_the_gap_of_losses_compares_devices_on_the_same_model() -> None:
    losses = np.array([[1.0, 7.0, 2.0], [3.0, 2.0, 0.0], [1.0, 1.0, 0.5]])
    for i, j in np.ndindex(3, 3):
        assert similarity.loss_gap(losses)[i, j] == abs(losses[i, i] - losses[j, i]) + abs(
            losses[i, j] - losses[j, j]
        )
    assert (similarity.loss_gap(losses) != similarity.loss_distance(losses)).any()


def by_svd(updates: np.ndarray, groups: int) -> np.ndarray:
    """Cosines with the left singular vectors of updates^T, by their definition."""
    left, _, _ = np.linalg.svd(updates.astype(np.float64).T, full_matrices=False)
    return updates @ left[:, :groups] / np.linalg.norm(updates, axis=1, keepdims=True)  # type: ignore[no-any-return]


def mixture(devices: int, d: int, groups: int, noise: float) -> np.ndarray:
    """Updates around directions of distinct lengths, which makes the singular values distinct."""
    generator = np.random.default_rng(devices)
    directions = generator.standard_normal((groups, d)) * (1 + np.arange(groups))[:, None]
    return directions[np.arange(devices) % groups] + noise * generator.standard_normal((devices, d))


def test_they_are_the_singular_value_decomposition() -> None:
    updates = mixture(90, 300, 4, 0.5)
    found, expected = similarity.edc_features(updates, 4), by_svd(updates, 4)
    signs = np.sign((found * expected).sum(axis=0))
    assert found * signs == pytest.approx(expected, abs=1e-10)
    assert found.dtype == np.float64


def test_signs_do_not_depend_on_rounding() -> None:
    updates = mixture(20, 40, 2, 0.0)
    found = similarity.edc_features(updates, 2)
    for factor in (1.0 + 1e-12, 3.0, 1e-4):
        assert similarity.edc_features(updates * factor, 2) == pytest.approx(found, abs=1e-6)
    for column in found.T:
        assert column[np.abs(column) > np.abs(column).max() / 2][0] > 0


def test_updates_of_zeros_and_missing_directions_give_zeros() -> None:
    updates = np.array([[2.0, 0, 0], [0, 0, 0], [1.0, 0, 0], [-1.0, 0, 0]])
    expected = np.array([[1, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]])
    assert np.abs(similarity.edc_features(updates, 3)) == pytest.approx(expected, abs=1e-12)
    assert not similarity.edc_features(np.zeros((4, 3)), 2).any()
