"""CCS: the threshold and the greedy clusters."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.algorithms import greedy_clusters, threshold
from fedsim.strategies.clustering.similarity import cosine_matrix


def test_the_threshold_falls_from_the_cosine_of_theta_to_0() -> None:
    assert threshold(2.3, 2.3) == pytest.approx(math.cos(math.pi / 36), abs=1e-15)
    assert threshold(0.0, 2.3) == 0.0
    assert threshold(0.5, 2.5, least_loss=0.5) == 0.0
    theta = 0.2
    assert threshold(1.5, 2.5, 0.5, theta) == pytest.approx(math.cos(theta + (math.pi / 2 - theta) / 2), abs=1e-15)


def test_progress_is_limited() -> None:
    assert threshold(9.0, 2.3) == threshold(2.3, 2.3)
    assert threshold(0.1, 2.3, least_loss=0.5) == 0.0
    assert threshold(1.0, 0.5, least_loss=0.5) == threshold(0.0, 0.5, least_loss=0.7) == threshold(2.3, 2.3)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, math.pi / 2))
def test_a_smaller_loss_never_raises_the_threshold(one: float, other: float, theta: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= threshold(low, 5.0, 0.5, theta) <= threshold(high, 5.0, 0.5, theta) <= 1


@pytest.mark.parametrize("losses", [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)])
def test_the_threshold_needs_losses(losses: tuple[float, float]) -> None:
    with pytest.raises(SimulationError, match="CCS needs finite losses"):
        threshold(*losses)


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
