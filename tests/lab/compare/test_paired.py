"""Differences over seeds and what they say of claims."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from fedsim.lab.compare.paired import mean_of, paired_difference


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("pairs", [2, 3, 5, 30])
def test_the_intervals_are_scipys(level: float, pairs: int) -> None:
    generator = np.random.default_rng(pairs)
    above, below = generator.lognormal(3, 1, pairs).tolist(), generator.normal(5, 2, pairs).tolist()
    found, theirs = paired_difference(above, below, level), ttest_rel(above, below).confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert found.mean == pytest.approx(np.subtract(above, below).mean())
    alone, theirs = mean_of(above, level), ttest_1samp(above, 0).confidence_interval(level)
    assert (alone.low, alone.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_equal_differences_have_no_interval_and_one_pair_has_no_end() -> None:
    tenths = mean_of([0.1] * 3)
    assert (tenths.mean, tenths.low, tenths.high, tenths.pairs) == (0.1, 0.1, 0.1, 3)
    assert mean_of([2.0]).low == -math.inf
    assert mean_of([2.0]).high == math.inf


def test_the_order_of_worlds_does_not_matter() -> None:
    above = [1.0, 4.0, 2.5, 3.0]
    first, again = (paired_difference([above[at] for at in order], [0.3] * 4) for order in ((0, 1, 2, 3), (2, 0, 3, 1)))
    assert first.mean == again.mean
    assert (first.low, first.high) == pytest.approx((again.low, again.high), rel=1e-14)


def test_verdicts() -> None:
    assert paired_difference([1.0, 5.0, -2.0], [0, 0, 0]).verdict == "holds in part"
    assert paired_difference([-1.0, -1.5], [0, 0]).verdict == "does not hold"
    assert paired_difference([1.0], [0.0]).verdict == "holds in part"
    assert paired_difference([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).verdict == "holds"


@pytest.mark.parametrize(("above", "below"), [([1], [1, 2]), ([], []), ([math.nan], [1]), ([math.inf], [1])])
def test_what_cannot_be_paired_is_refused(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot pair"):
        paired_difference(above, below)
