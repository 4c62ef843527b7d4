"""EDC's features against the singular value decomposition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.errors import SimulationError
from fedsim.toolbox.clustering.algorithms import kmeans
from fedsim.toolbox.clustering.similarity import edc_features


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


def test_what_cannot_be_embedded_is_refused() -> None:
    updates = np.ones((devices := 10, 4), dtype=np.float32)
    with pytest.raises(SimulationError, match=rf"EDC into {devices + 1} groups of {devices} devices"):
        edc_features(updates, devices + 1)
    updates[7, 0] = np.inf
    with pytest.raises(SimulationError, match=rf"row 7 of {devices} is not finite"):
        edc_features(updates, 2)
