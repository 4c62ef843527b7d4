"""EDC's features against the singular value decomposition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.errors import SimulationError
from fedsim.streams import Streams
from fedsim.toolbox.clustering import edc
from fedsim.toolbox.clustering.algorithms import kmeans
from fedsim.toolbox.clustering.edc import edc_features

Form = Callable[[np.ndarray, int], np.ndarray]


def exact(updates: np.ndarray, groups: int) -> np.ndarray:
    return edc.exact(updates, groups)


def randomised(updates: np.ndarray, groups: int) -> np.ndarray:
    return edc.randomised(updates, groups, Streams(1).generator("strategy/embedding"))


FORMS = pytest.mark.parametrize("form", [exact, randomised])


def by_svd(updates: np.ndarray, groups: int) -> np.ndarray:
    """Cosines with the left singular vectors of updates^T, by their definition."""
    left, _, _ = np.linalg.svd(updates.astype(np.float64).T, full_matrices=False)
    return updates @ left[:, :groups] / np.linalg.norm(updates, axis=1, keepdims=True)  # type: ignore[no-any-return]


def features(updates: np.ndarray, groups: int, seed: int = 1) -> np.ndarray:
    return edc_features(updates, groups, Streams(seed).generator("strategy/embedding"))


def mixture(devices: int, d: int, groups: int, noise: float) -> np.ndarray:
    """Updates around directions of distinct lengths, which makes the singular values distinct."""
    generator = np.random.default_rng(devices)
    directions = generator.standard_normal((groups, d)) * (1 + np.arange(groups))[:, None]
    return directions[np.arange(devices) % groups] + noise * generator.standard_normal((devices, d))


@FORMS
@given(lengths=st.lists(st.floats(0.01, 100), min_size=3, max_size=12), axes=st.data())
def test_two_directions_are_told_apart_at_any_length(form: Form, lengths: list[float], axes: st.DataObject) -> None:
    along = np.array([0, 1, *axes.draw(st.lists(st.integers(0, 1), min_size=len(lengths) - 2, max_size=len(lengths) - 2))])
    updates = np.zeros((len(lengths), 5))
    updates[np.arange(len(lengths)), along * 3] = lengths
    found = form(updates, 2)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1.0, abs=1e-7)
    assert np.abs(found @ found.T) == pytest.approx((along[:, None] == along).astype(float), abs=1e-7)
    labels = kmeans(found, 2, np.random.default_rng(0))
    assert labels.tolist() == along.tolist()


@FORMS
def test_both_forms_are_the_singular_value_decomposition(form: Form) -> None:
    updates = mixture(90, 300, 4, 0.5)
    found, expected = form(updates, 4), by_svd(updates, 4)
    signs = np.sign((found * expected).sum(axis=0))
    assert found * signs == pytest.approx(expected, abs=1e-10)
    assert found.dtype == np.float64


def test_many_float32_updates() -> None:
    updates = mixture(400, 2000, 5, 3.0).astype(np.float32)
    found, expected = randomised(updates, 5), exact(updates, 5)
    assert found * np.sign((found * expected).sum(axis=0)) == pytest.approx(expected, abs=1e-5)
    assert (np.linalg.norm(found, axis=1) <= 1 + 1e-6).all()
    assert np.array_equal(features(updates, 5), features(updates, 5))
    assert features(updates, 5, seed=2) == pytest.approx(features(updates, 5), abs=1e-5)
    labels = kmeans(features(updates, 5), 5, np.random.default_rng(1))
    assert labels.tolist() == (np.arange(400) % 5).tolist()


@pytest.mark.parametrize("devices", [20, 300])
def test_signs_do_not_depend_on_rounding(devices: int) -> None:
    updates = mixture(devices, 40, 2, 0.0)
    found = features(updates, 2)
    for factor in (1.0 + 1e-12, 3.0, 1e-4):
        assert features(updates * factor, 2) == pytest.approx(found, abs=1e-6)
    for column in found.T:
        assert column[np.abs(column) > np.abs(column).max() / 2][0] > 0


@FORMS
def test_updates_of_zeros_and_missing_directions_give_zeros(form: Form) -> None:
    updates = np.array([[2.0, 0, 0], [0, 0, 0], [1.0, 0, 0], [-1.0, 0, 0]])
    assert np.abs(form(updates, 3)).tolist() == pytest.approx(np.array([[1, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]]), abs=1e-12)
    assert not form(np.zeros((4, 3)), 2).any()


@pytest.mark.parametrize("devices", [10, 300])
def test_what_cannot_be_embedded_is_refused(devices: int) -> None:
    updates = np.ones((devices, 4), dtype=np.float32)
    with pytest.raises(SimulationError, match=rf"EDC into {devices + 1} groups of {devices} devices"):
        features(updates, devices + 1)
    updates[7, 0] = np.inf
    with pytest.raises(SimulationError, match=rf"row 7 of {devices} is not finite"):
        features(updates, 2)


def test_more_groups_than_the_krylov_space_has_room_for() -> None:
    updates = np.random.default_rng(3).standard_normal((80, 100)) * 0.97 ** np.arange(80)[:, None]
    expected = by_svd(updates, 40)
    assert randomised(updates, 40) @ randomised(updates, 40).T == pytest.approx(expected @ expected.T, abs=1e-8)
