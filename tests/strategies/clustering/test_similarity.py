"""Lengths, cosines and distances against their definitions and known answers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.toolbox.clustering import similarity
from fedsim.toolbox.clustering.algorithms import kmeans
from fedsim.toolbox.clustering.similarity import (
    cosine_matrix,
    diff_norm,
    edc_features,
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


# EDC.


def by_svd(updates: np.ndarray, groups: int) -> np.ndarray:
    """Cosines with the left singular vectors of updates^T, by their definition."""
    left, _, _ = np.linalg.svd(updates.astype(np.float64).T, full_matrices=False)
    return updates @ left[:, :groups] / np.linalg.norm(updates, axis=1, keepdims=True)  # type: ignore[no-any-return]


def mixture(devices: int, d: int, groups: int, noise: float) -> np.ndarray:
    """Updates around directions of distinct lengths, which makes the singular values distinct."""
    generator = np.random.default_rng(devices)
    directions = generator.standard_normal((groups, d)) * (1 + np.arange(groups))[:, None]
    return directions[np.arange(devices) % groups] + noise * generator.standard_normal((devices, d))


@given(lengths=st.lists(st.floats(0.01, 100), min_size=3, max_size=12), axes=st.data())
def test_two_directions_are_told_apart_at_any_length(lengths: list[float], axes: st.DataObject) -> None:
    along = np.array([0, 1, *axes.draw(st.lists(st.integers(0, 1), min_size=len(lengths) - 2, max_size=len(lengths) - 2))])
    updates = np.zeros((len(lengths), 5))
    updates[np.arange(len(lengths)), along * 3] = lengths
    found = edc_features(updates, 2)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1.0, abs=1e-7)
    assert np.abs(found @ found.T) == pytest.approx((along[:, None] == along).astype(float), abs=1e-7)
    labels = kmeans(found, 2, np.random.default_rng(0))
    assert labels.tolist() == along.tolist()


def test_they_are_the_singular_value_decomposition() -> None:
    updates = mixture(90, 300, 4, 0.5)
    found, expected = edc_features(updates, 4), by_svd(updates, 4)
    signs = np.sign((found * expected).sum(axis=0))
    assert found * signs == pytest.approx(expected, abs=1e-10)
    assert found.dtype == np.float64


def test_signs_do_not_depend_on_rounding() -> None:
    updates = mixture(20, 40, 2, 0.0)
    found = edc_features(updates, 2)
    for factor in (1.0 + 1e-12, 3.0, 1e-4):
        assert edc_features(updates * factor, 2) == pytest.approx(found, abs=1e-6)
    for column in found.T:
        assert column[np.abs(column) > np.abs(column).max() / 2][0] > 0


def test_updates_of_zeros_and_missing_directions_give_zeros() -> None:
    updates = np.array([[2.0, 0, 0], [0, 0, 0], [1.0, 0, 0], [-1.0, 0, 0]])
    assert np.abs(edc_features(updates, 3)).tolist() == pytest.approx(
        np.array([[1, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]]), abs=1e-12
    )
    assert not edc_features(np.zeros((4, 3)), 2).any()
