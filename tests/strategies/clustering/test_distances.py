"""MADC and LCFL's three measures against known answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.similarity import cosine_matrix, diff_norm, gradient_cosine, loss_distance, loss_gap, madc

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


def test_gradient_cosine() -> None:
    gradients = np.array([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, 0.0]])
    assert gradient_cosine(gradients)[0].tolist() == [0, 0, 1, 2, 1]
    assert not gradient_cosine(gradients).diagonal().any()


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
