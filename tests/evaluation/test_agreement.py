"""Agreement of groupings against scikit-learn, and where there is nothing to compare."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from fedsim.errors import SimulationError
from fedsim.evaluation.agreement import adjusted_rand_index, normalised_mutual_information, purity

Measure = Callable[[list[int], list[int]], float]
MEASURES: list[Measure] = [purity, adjusted_rand_index, normalised_mutual_information]
PAIRS = st.lists(st.tuples(st.integers(-1, 4), st.integers(-2, 3)), min_size=1, max_size=30)


@given(PAIRS.filter(lambda pairs: any(group >= 0 for group, _ in pairs)))
def test_measures_are_those_of_scikit_learn_over_who_has_a_group(pairs: list[tuple[int, int]]) -> None:
    groups, truth = [group for group, _ in pairs], [kind for _, kind in pairs]
    found = [group for group in groups if group >= 0]
    real = [kind for group, kind in pairs if group >= 0]
    assert purity(groups, truth) == pytest.approx(contingency_matrix(real, found).max(axis=0).sum() / len(real), abs=1e-15)
    assert adjusted_rand_index(groups, truth) == pytest.approx(adjusted_rand_score(real, found), abs=1e-12)
    assert normalised_mutual_information(groups, truth) == pytest.approx(normalized_mutual_info_score(real, found), abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_one_device(measure: Measure) -> None:
    assert measure([4], [0]) == 1.0
    assert measure([-1, 4], [0, 1]) == 1.0


@pytest.mark.parametrize("measure", MEASURES)
def test_nothing_to_compare_is_refused(measure: Measure) -> None:
    with pytest.raises(SimulationError, match="none of 2 devices has a group"):
        measure([-1, -1], [0, 1])
    with pytest.raises(SimulationError, match="groups of 2 devices cannot be compared with the true ones of 3"):
        measure([0, 1], [0, 1, 1])


def test_many_devices_do_not_overflow() -> None:
    generator = np.random.default_rng(0)
    groups, truth = generator.integers(0, 2, 300_000), generator.integers(0, 3, 300_000)
    assert adjusted_rand_index(groups, truth) == pytest.approx(adjusted_rand_score(truth, groups), abs=1e-12)
    truth = groups.copy()
    truth[0] = 1 - truth[0]
    assert 0.9999 < adjusted_rand_index(groups, truth) < 1
