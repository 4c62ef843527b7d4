"""Paired differences against textbook numbers."""

import math

import numpy as np
import pytest

from analysis.paired import paired_difference


def test_a_textbook_interval() -> None:
    # Differences 1..5: mean 3, standard deviation sqrt(2.5), t(0.975, 4) = 2.776445.
    difference = paired_difference([11, 12, 13, 14, 15], [10, 10, 10, 10, 10])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (difference.mean, difference.low, difference.high) == pytest.approx((3.0, 3 - half, 3 + half))
    assert difference.verdict == "holds"


def test_verdicts() -> None:
    assert paired_difference([1.0, 5.0, -2.0], [0, 0, 0]).verdict == "holds in part"
    assert paired_difference([-1.0, -1.5], [0, 0]).verdict == "does not hold"
    assert paired_difference([1.0], [0.0]).verdict == "holds in part"
    assert paired_difference([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).verdict == "holds"


def test_the_interval_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    covered = [
        difference.low <= 0.5 <= difference.high
        for difference in (paired_difference(generator.normal(0.5, 1, 5), np.zeros(5)) for _ in range(2000))
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("above", "below"), [([1], [1, 2]), ([], []), ([math.nan], [1]), ([math.inf], [1])])
def test_what_cannot_be_paired_is_refused(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot pair"):
        paired_difference(above, below)
