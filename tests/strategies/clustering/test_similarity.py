"""Lengths, cosines and distances against their definitions and known answers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.toolbox.clustering import similarity
from fedsim.toolbox.clustering.similarity import (
    cosine_matrix,
    diff_norm,
    gradient_cosine,
    gram_matrix,
    loss_distance,
    loss_gap,
    madc,
    most_alike,
)


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


VECTORS = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.integers(-4, 4).map(float))


@given(VECTORS)
def test_madc_is_its_definition(rows: np.ndarray) -> None:
    cosines = cosine_matrix(rows)
    n = len(rows)
    expected = np.zeros((n, n))
    for i, j in np.ndindex(n, n):
        others = [z for z in range(n) if z not in (i, j)]
        if others and i != j:
            expected[i, j] = np.mean([abs(cosines[i, z] - cosines[j, z]) for z in others])
    found = madc(cosines)
    assert found == pytest.approx(expected, abs=1e-14)
    assert np.array_equal(found, found.T)


@given(VECTORS)
def test_quadratic_losses_make_the_loss_distance_the_square_of_diff_norm(centres: np.ndarray) -> None:
    losses = ((centres[:, None] - centres[None]) ** 2).sum(axis=2) / 2  # L_i(w) = |w - c_i|^2 / 2 and w_j = c_j
    assert diff_norm(centres) ** 2 == pytest.approx(loss_distance(losses), abs=1e-9)
    assert diff_norm(centres) == pytest.approx(np.sqrt(2 * losses), abs=1e-9)


def test_a_shift_of_all_logits_is_seen_by_diff_norm_alone() -> None:
    generator = np.random.default_rng(2)
    samples, labels = generator.standard_normal((50, 4)), generator.integers(0, 3, 50)
    weights, shift = generator.standard_normal((3, 4)), generator.standard_normal(4)

    def loss(w: np.ndarray) -> float:
        logits = samples @ w.T
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(50), labels]))

    models = [weights, weights + shift]
    losses = np.array([[loss(model) for model in models]] * 2)
    assert loss_distance(losses) == pytest.approx(np.zeros((2, 2)), abs=1e-12)
    distance = diff_norm(np.stack([model.ravel() for model in models]))
    assert distance[0, 1] == pytest.approx(np.sqrt(3) * np.linalg.norm(shift))


def test_the_loss_distance_of_linear_models() -> None:
    """LCFL, Eq. 8: with the same second moments S of the inputs, L_i(w_j) - L_i(w_i) is dS' S^-1 dS."""
    generator = np.random.default_rng(4)
    inputs = generator.standard_normal((200, 3))
    targets = [inputs @ generator.standard_normal(3) + generator.standard_normal(200) for _ in range(4)]
    models = [np.linalg.lstsq(inputs, y)[0] for y in targets]
    losses = np.array([[np.mean((inputs @ w - y) ** 2) for w in models] for y in targets])
    moments = inputs.T @ inputs / 200
    cross = np.array([inputs.T @ y / 200 for y in targets])
    for i, j in np.ndindex(4, 4):
        difference = cross[j] - cross[i]
        assert loss_distance(losses)[i, j] == pytest.approx(2 * difference @ np.linalg.inv(moments) @ difference, abs=1e-12)


def test_diff_norm_keeps_its_digits_far_from_the_origin_and_between_near_twins() -> None:
    rows = np.array([[1e8, 1.0], [1e8, 1.0], [1e8, 2.0], [1e8 + 1, 1.0]])
    assert diff_norm(rows)[0].tolist() == pytest.approx([0, 0, 1, 1], rel=1e-12)
    assert diff_norm(rows)[0, 1] == 0
    twins = np.array([[1.0, 0.0], [1.0, 1e-7], [-1.0, 0.0]])
    assert diff_norm(twins)[0, 1] == pytest.approx(1e-7, rel=1e-9)


@pytest.mark.parametrize("measure", [diff_norm, gradient_cosine])
def test_diverged_rows_are_refused(measure: object) -> None:
    with pytest.raises(SimulationError, match="not finite"):
        measure(np.array([[1.0, np.nan], [0.0, 0.0]]))  # type: ignore[operator]


def test_the_gap_of_losses_compares_devices_on_the_same_model() -> None:
    losses = np.array([[1.0, 7.0, 2.0], [3.0, 2.0, 0.0], [1.0, 1.0, 0.5]])
    for i in range(3):
        for j in range(3):
            expected = abs(losses[i, i] - losses[j, i]) + abs(losses[i, j] - losses[j, j])
            assert loss_gap(losses)[i, j] == expected
    assert (loss_gap(losses) != loss_distance(losses)).any()
