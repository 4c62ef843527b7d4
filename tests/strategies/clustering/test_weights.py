"""FlexCFL's inter-group aggregation on hand-made models; RFedAvg's weights, and the benchmark that knows the classes."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.toolbox.clustering.weights import class_imbalance, class_shares, cluster_imbalance, optimal_weights
from fedsim.toolbox.strategies.flexcfl import inter_group_coefficients
from fedsim.toolbox.strategies.rfedavg import balance


def mixed(models: np.ndarray, eta: float, form: Any) -> np.ndarray:
    return inter_group_coefficients(np.linalg.norm(models, axis=1), eta, literal=form == "literal") @ models  # type: ignore[no-any-return]


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


@given(st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=2, max_size=8), st.integers(1, 4))
def test_a_cluster_lacks_what_it_does_not_have(rows: list[list[int]], parts: int) -> None:
    counts = np.array(rows)
    total = 3 * max(int(counts.max()), int(counts.sum()))
    clusters = [list(range(part, len(counts), parts)) for part in range(min(parts, len(counts)))]
    found = cluster_imbalance(class_imbalance(counts, total), counts.sum(axis=1), clusters)
    assert found == pytest.approx([max(total - int(counts[cluster].sum()), 1) for cluster in clusters])


def test_imbalance_is_at_least_one_sample() -> None:
    one_class = np.zeros((3, 10), dtype=np.int64)
    one_class[:, 4] = 50
    assert cluster_imbalance(class_imbalance(one_class), one_class.sum(axis=1), [[0, 1, 2]]).tolist() == [1.0]
    everything = np.array([[5, 5], [5, 5]])
    imbalance = cluster_imbalance(class_imbalance(everything, 20), everything.sum(axis=1), [[0, 1]])
    assert imbalance.tolist() == [1.0]


def test_the_first_of_the_most_imbalanced_members_is_spared() -> None:
    assert cluster_imbalance(np.array([70.0, 90.0, 90.0]), np.array([1, 20, 3]), [[2, 1, 0]]).tolist() == [90 - 3 - 1]


def test_class_shares_and_how_balanced_they_are() -> None:
    counts = np.array([[3, 1], [0, 4], [2, 0]])
    shares = class_shares(counts, [[0, 1], [2]])
    assert shares.tolist() == [[3 / 8, 1], [5 / 8, 0]]
    found = balance(counts, [[0, 1], [2]], [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.8, 0.2])])
    assert found == {"beta": [pytest.approx(5 / 3), None, pytest.approx(1.0)], "distance": pytest.approx([1 / 32, 0.5, 0.0])}
    with pytest.raises(SimulationError, match="cluster 1 of 2 has no samples"):
        class_shares(np.array([[1, 0], [0, 0]]), [[0], [1]])


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1)], [1 / 3, 1 / 3, 1 / 3]),
        ([(1, 0), (1, 0), (0, 1)], [0.25, 0.25, 0.5]),
        ([(1, 0), (0.5, 0.5)], [0, 1]),
        ([(0.5, 0.5)], [1]),
        ([(0.7, 0.3)] * 4, [0.25] * 4),
        ([(0.5, 0.5), (1, 0), (0, 1)], [1 / 3] * 3),
        ([(0.5, 0.5), (0.5, 0.5), (0.9, 0.1)], [0.5, 0.5, 0]),
        # Nearest to equal shares is (1/2, 1/2, 0), which only an even mixture of those in the plane gives.
        ([(1, 0, 0), (0, 1, 0), (0.5, 0.5, 0)], [1 / 3] * 3),
        # The nearest mixture is the first cluster alone, though the second lies in the same supporting line.
        ([(1 / 2, 1 / 2, 0), (1 / 2, 1 / 2, 0), (1, 0, 0)], [0.5, 0.5, 0]),
    ],
)
def test_optimal_weights(columns: list[tuple[float, ...]], expected: list[float]) -> None:
    weights = optimal_weights(np.array(columns).T)
    assert weights == pytest.approx(expected, abs=1e-12)


def mixtures_alike(shares: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """The corners of {q >= 0, sum q = 1, B q = B weights}, by trying every set of independent columns."""
    rows = np.vstack((shares, np.ones(shares.shape[1])))
    target = rows @ weights
    rank = int(np.linalg.matrix_rank(rows, tol=1e-9))
    corners = []
    for size in range(1, rank + 1):
        for chosen in combinations(range(shares.shape[1]), size):
            part = rows[:, chosen]
            if np.linalg.matrix_rank(part, tol=1e-9) < size:
                continue
            solution = np.linalg.lstsq(part, target)[0]
            if np.abs(part @ solution - target).max() < 1e-9 and solution.min() > -1e-9:
                corner = np.zeros(shares.shape[1])
                corner[list(chosen)] = solution
                corners.append(corner)
    return corners


@given(
    st.tuples(st.integers(2, 4), st.integers(1, 7)).flatmap(
        lambda shape: st.lists(
            st.lists(st.integers(0, 4), min_size=shape[0], max_size=shape[0]).filter(any), min_size=shape[1], max_size=shape[1]
        )
    )
)
@example([[1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 1, 0], [1, 0, 1]])
def test_optimal_weights_satisfy_the_conditions_of_optimality(histograms: list[list[int]]) -> None:
    counts = np.array(histograms)
    shares = class_shares(counts, [[device] for device in range(len(counts))])
    weights = optimal_weights(shares)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    # A minimum of the convex objective: no cluster's shares lie on the near side of the mixture.
    mixture = shares @ weights
    offset = mixture - 1 / len(mixture)
    assert (offset @ shares).min() >= offset @ mixture - 1e-10
    # The least norm among the minimisers: none of their corners lies on the near side of the weights.
    corners = mixtures_alike(shares, weights)
    assert corners
    assert min(float(weights @ corner) for corner in corners) >= weights @ weights - 1e-8


@pytest.mark.parametrize("seed", [18, 63, 210])
def test_clusters_that_are_nearly_alike(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(4, 9))
    counts = generator.integers(0, 100, (3, 3))[np.arange(n) % 3] * 100 + generator.integers(0, 3, (n, 3))
    shares = class_shares(counts, [[device] for device in range(n)])
    weights = optimal_weights(shares)
    assert min(float(weights @ corner) for corner in mixtures_alike(shares, weights)) >= weights @ weights - 1e-8
