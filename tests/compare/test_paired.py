"""Differences over seeds and what they say of claims."""

import itertools
import math

import numpy as np
import pytest

from fedsim.compare.paired import bootstrap_difference, bootstrap_mean, paired_difference


def test_a_textbook_interval() -> None:
    # Differences 1..5: mean 3, standard deviation sqrt(2.5), t(0.975, 4) = 2.776445.
    difference = paired_difference([11, 12, 13, 14, 15], [10, 10, 10, 10, 10])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (difference.mean, difference.low, difference.high) == pytest.approx((3.0, 3 - half, 3 + half))
    assert difference.verdict == "holds"


def test_the_bootstrap_interval_by_hand() -> None:
    """Of two pairs a resample's mean is either (1/4 each) or the middle (1/2); of three either end has 1/27 > 2.5 %."""
    two = bootstrap_difference([3.0, 8.0], [1.0, 1.0])
    assert (two.mean, two.low, two.high, two.pairs) == (4.5, 2.0, 7.0, 2)
    three = bootstrap_difference([1.0, 2.0, 6.0], [0.0, 0.0, 0.0])
    assert (three.mean, three.low, three.high) == (3.0, 1.0, 6.0)
    assert bootstrap_difference([0.5, 0.5, 0.5], [0.25, 0.25, 0.25]).high == 0.25
    assert bootstrap_mean([2.0]).low == -math.inf


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_the_bootstrap_interval_against_all_resamples(level: float) -> None:
    """Of five pairs all 3,125 resamples can be written down; the drawn ones' quantiles are near theirs."""
    differences = np.array([-0.7, 0.1, 0.4, 1.3, 2.9])
    means = [np.mean(draw) for draw in itertools.product(differences, repeat=5)]
    found = bootstrap_difference(differences.tolist(), [0.0] * 5, level)
    assert found.mean == pytest.approx(0.8)
    for edge, quantile in ((found.low, 0.5 - level / 2), (found.high, 0.5 + level / 2)):
        assert edge == pytest.approx(np.quantile(means, quantile), abs=0.05)


def test_the_bootstrap_is_the_same_every_time_and_knows_no_order() -> None:
    above, below = [1.0, 4.0, 2.5, 3.0], [0.5, 1.0, 2.0, -1.0]
    first = bootstrap_difference(above, below)
    bootstrap_difference([1.0] * 9, [0.0] * 9)
    assert bootstrap_difference(above, below) == first
    mirrored = bootstrap_difference(below, above)
    assert (mirrored.mean, mirrored.low, mirrored.high) == pytest.approx((-first.mean, -first.high, -first.low), abs=0.05)


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
    for paired in (paired_difference, bootstrap_difference):
        with pytest.raises(ValueError, match="cannot pair"):
            paired(above, below)
