"""Lengths and cosines against their definition, and where it says nothing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.strategies.clustering import similarity
from fedsim.strategies.clustering.similarity import cosine_matrix, gram_matrix, most_alike


def test_known_cosines() -> None:
    rows = np.array([[3, 0], [0, 0.5], [-2, 0], [1, 1], [0, 0]], dtype=np.float32)
    half = math.sqrt(0.5)
    expected = [[1, 0, -1, half, 0], [0, 1, 0, half, 0], [-1, 0, 1, -half, 0], [half, half, -half, 1, 0], [0, 0, 0, 0, 1]]
    assert cosine_matrix(rows) == pytest.approx(np.array(expected), abs=1e-15)


@given(arrays(np.float64, (4, 3), elements=st.floats(-1e6, 1e6, width=32)), st.floats(1e-3, 1e3))
def test_cosines_are_symmetric_bounded_and_blind_to_length(rows: np.ndarray, factor: float) -> None:
    cosines = cosine_matrix(rows)
    assert np.array_equal(cosines, cosines.T)
    assert np.array_equal(cosines.diagonal(), np.ones(4))
    assert (np.abs(cosines) <= 1).all()
    scaled = rows.copy()
    scaled[1] *= factor
    assert cosine_matrix(scaled) == pytest.approx(cosines, abs=1e-12)


def test_blocks_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 103)).astype(np.float32)
    whole = gram_matrix(rows)
    assert whole == pytest.approx(rows.astype(np.float64) @ rows.astype(np.float64).T, rel=1e-13)
    monkeypatch.setattr(similarity, "_BLOCK_BYTES", 8 * 5 * 10)
    assert gram_matrix(rows) == pytest.approx(whole, rel=1e-13)


def test_float32_rows_are_summed_in_float64() -> None:
    one = np.ones(2**20, dtype=np.float32)
    other = one.copy()
    other[0] += 0.5
    gram = gram_matrix(np.stack((one, other)))
    assert gram[0, 1] == 2**20 + 0.5
    assert gram[1, 1] == 2**20 + 1.25


def test_the_nearest_direction_is_that_of_the_largest_cosine() -> None:
    directions = [np.float32([10, 0]), np.float32([1, 1]), np.float32([0, 0])]
    updates = [np.float32([3, 0.1]), np.float32([3, 3]), np.float32([-1, -1]), np.float32([np.nan, 1])]
    assert most_alike(updates, directions) == [0, 1, 2, 0]  # a cosine of 0 is more than one of -1
    assert most_alike(updates[:1], [np.float32([5, 0]), np.float32([7, 0])]) == [0]
    assert most_alike([], directions) == []
    diverged = [np.float32([np.inf, 0]), np.float32([1, 9])]
    assert most_alike(updates[:2], diverged) == [1, 1]
