"""K-means: every group has members, or the request is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.algorithms import kmeans, with_all_groups


def labels_of(rows: object, groups: int, seed: int = 0) -> list[int]:
    return kmeans(np.array(rows, dtype=np.float64), groups, np.random.default_rng(seed)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(5))
def test_separate_heaps_are_found_and_numbered_by_their_first_member(seed: int) -> None:
    assert labels_of([[9, 0], [0, 0], [0, 1], [9, 1], [0, 50]], 3, seed) == [0, 1, 1, 0, 2]


@given(arrays(np.int64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 2)), st.integers(1, 5))
def test_no_group_is_empty_and_equal_rows_stay_together(rows: np.ndarray, groups: int) -> None:
    distinct = len(np.unique(rows, axis=0))
    if groups > distinct:
        with pytest.raises(SimulationError, match=f"k-means into {groups} groups"):
            labels_of(rows, groups)
        return
    labels = labels_of(rows, groups)
    assert sorted(set(labels)) == list(range(groups))
    assert len({(*row, label) for row, label in zip(rows.tolist(), labels, strict=True)}) == distinct


def test_fewer_distinct_rows_than_groups() -> None:
    with pytest.raises(
        SimulationError, match="k-means into 3 groups needs as many distinct feature rows, and the 4 devices have 2"
    ):
        labels_of([[0, 1], [1, 0], [1, 0], [0, 1]], 3)
    with pytest.raises(SimulationError, match="the 5 devices have 1"):
        labels_of(1.0 + 1e-15 * np.arange(5)[:, None], 2)
    with pytest.raises(SimulationError, match="k-means into 2 groups of 1 devices"):
        labels_of([[0.0]], 2)
    assert labels_of([[0.0], [0.0]], 1) == [0, 0]


def test_rows_too_near_for_scikit_learn_still_fill_all_groups() -> None:
    rows = 1.0 + 2e-9 * np.array([[0], [1], [2], [-5e8]])
    assert sorted(set(labels_of(rows, 3))) == [0, 1, 2]


def test_an_empty_group_gets_the_row_farthest_from_its_mean() -> None:
    rows = np.array([[0.0], [1.0], [2.0], [30.0], [31.0], [90.0]])
    assert with_all_groups(rows, np.array([0, 0, 0, 2, 2, 4]), 5).tolist() == [1, 3, 0, 2, 2, 4]
    assert with_all_groups(rows, np.zeros(6, dtype=np.int64), 2).tolist() == [0, 0, 0, 0, 0, 1]


def test_a_row_that_is_not_finite_is_named() -> None:
    with pytest.raises(SimulationError, match="row 1 of 2 is not finite"):
        labels_of([[0.0], [np.nan]], 1)
