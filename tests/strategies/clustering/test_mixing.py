"""FlexCFL's inter-group aggregation against hand-made models."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.strategies.clustering.weights import inter_group_coefficients


def mixed(models: np.ndarray, eta: float, form: Any) -> np.ndarray:
    return inter_group_coefficients(np.linalg.norm(models, axis=1), eta, literal=form == "literal") @ models  # type: ignore[no-any-return]


def test_two_groups() -> None:
    models = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert mixed(models, 1.0, "normalised") == pytest.approx(np.array([[2.4, 0.8], [0.75, 3.0]]))
    assert mixed(models, 1.0, "literal") == pytest.approx(np.array([[3.0, 1.0], [1.0, 4.0]]))


@given(
    arrays(np.float64, st.tuples(st.integers(1, 5), st.just(3)), elements=st.floats(-100, 100).map(lambda x: round(x, 3))),
    st.floats(0, 10),
)
def test_normalised_models_never_grow_and_literal_ones_add_directions(models: np.ndarray, eta: float) -> None:
    norms = np.linalg.norm(models, axis=1)
    new = mixed(models, eta, "normalised")
    assert (np.linalg.norm(new, axis=1) <= norms.max() * (1 + 1e-12)).all()
    for j in range(len(models)):
        others = [l for l in range(len(models)) if l != j and norms[l] > 0]  # noqa: E741
        literal = models[j] + eta * sum((models[l] / norms[l] for l in others), np.zeros(3))  # noqa: E741
        assert mixed(models, eta, "literal")[j] == pytest.approx(literal, abs=1e-9)
        assert new[j] * (1 + sum(eta / norms[l] for l in others)) == pytest.approx(literal, rel=1e-9, abs=1e-9)  # noqa: E741


@pytest.mark.parametrize("literal", [True, False])
def test_without_influence_every_group_keeps_its_model_exactly(literal: bool) -> None:
    norms = np.array([1.0, 0.0, 3.7])
    assert inter_group_coefficients(norms, 0.0, literal=literal).tolist() == np.eye(3).tolist()
    assert inter_group_coefficients(norms[:1], 5.0, literal=literal).tolist() == [[1.0]]
