"""Which line is the best, from seeds that are added one after another: constants, errors, ties."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedsim.lab.compare.sure import Decision, decide, radius


def mixture(values: list[float], mean: float) -> float:
    """Return the martingale of Wang and Ramdas by numeric integration, from its definition.

    The likelihood of N(delta s, s^2) over that of N(0, s^2), both with the right Haar measure
    ds / s, and delta from a standard normal distribution.
    """
    shifted = [value - mean for value in values]
    count = len(shifted)
    squares = sum(value * value for value in shifted)
    total = sum(shifted)

    def by_effect(effect: float) -> float:
        # the integral over s of s^-(n+1) exp(-(squares - 2 effect s total) / (2 s^2)), by t = 1 / s
        def integrand(t: float) -> float:
            power = effect * t * total - t * t * squares / 2 - count * effect**2 / 2
            return math.exp(power) * t ** (count - 1)

        return quad(integrand, 0, math.inf)[0] * norm.pdf(effect)

    null = quad(lambda t: math.exp(-t * t * squares / 2) * t ** (count - 1), 0, math.inf)[0]
    return quad(by_effect, -8, 8)[0] / null


@pytest.mark.parametrize("error", [0.05, 0.05 / 9])
def test_the_interval_ends_where_the_mixture_martingale_reaches_its_bound(error: float) -> None:
    values = [0.3, -0.1, 0.4, 0.9, 0.2, 0.35, 0.1, 0.6]
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    half = radius(len(values), squares, error)
    assert mixture(values, mean + half) == pytest.approx(1 / error, rel=1e-6)
    assert mixture(values, mean - half) == pytest.approx(1 / error, rel=1e-6)
    assert mixture(values, mean + 0.9 * half) < 1 / error


@pytest.mark.parametrize("count", [2, 5, 8])
def test_equal_values_tell_something_only_from_the_seed_on_at_which_they_can(count: int) -> None:
    # without any variance the martingale is (n + 1)^((n - 1) / 2): 36 for five values
    bound = (count + 1) ** ((count - 1) / 2)
    assert radius(count, 0.0, 1.001 / bound) == 0
    assert radius(count, 0.0, 0.999 / bound) == math.inf
    assert radius(count, 1.0, 0.999 / bound) == math.inf


def test_at_any_time_the_interval_misses_the_mean_as_seldom_as_it_says() -> None:
    draws = np.random.default_rng(5).normal(size=(4000, 200))
    missed = np.zeros(4000, dtype=bool)
    for count in range(2, 201):
        part = draws[:, :count]
        squares = part.var(axis=1) * count
        unit = radius(count, 1.0, 0.1)
        missed |= np.abs(part.mean(axis=1)) > unit * np.sqrt(squares)
    assert 0.02 < missed.mean() < 0.1  # 0.1 after endless seeds


def lines_of(*means: float, seeds: int, spread: float = 0.02) -> dict[int, list[float | None]]:
    """Return values of lines by place: means with a little noise that differs from line to line."""
    draws = np.random.default_rng(1).normal(scale=spread, size=(len(means), seeds))
    draws += np.random.default_rng(2).normal(scale=10.0, size=seeds)  # worlds that all lines share
    return {
        place: [mean + float(noise) for noise in draws[place]] for place, mean in enumerate(means)
    }


def test_the_best_is_named_and_every_loser_with_its_seeds_and_its_better() -> None:
    costs = lines_of(1.0, 0.0, 0.05, seeds=12)
    decision = decide(costs, within=0.01, error=0.05)
    assert (decision.status, decision.leader, decision.contenders) == ("best", 1, (1,))
    assert [(loss.line_index, loss.better) for loss in decision.losses] == [(0, 1), (2, 1)]
    far, near = decision.losses
    assert far.seeds == 6  # (n + 1)^((n - 1) / 2) is 36 at five seeds; two errors of 0.025 need 40
    assert 6 <= near.seeds <= 12


def test_losers_stay_so_without_further_seeds_and_no_earlier_seed_is_forgotten() -> None:
    costs = lines_of(1.0, 0.0, 0.01, seeds=30)
    whole = decide(costs, within=0.0, error=0.05)
    short = {0: costs[0][:6], 1: costs[1], 2: costs[2]}
    assert decide(short, within=0.0, error=0.05) == whole


def test_lines_tie_if_the_leader_is_surely_within_the_zone_of_all_that_are_left() -> None:
    costs = lines_of(0.0, 0.01, 1.0, seeds=40)
    tie = decide(costs, within=0.05, error=0.05)
    assert (tie.status, set(tie.contenders), tie.leader) == ("tie", {0, 1}, 0)
    assert tie.bound is not None
    assert 0 < tie.bound <= 0.05
    assert decide(costs, within=0.0, error=0.05).status == "open"
    early = {place: values[:5] for place, values in costs.items()}
    assert decide(early, within=0.05, error=0.05).status == "open"


def test_equal_lines_tie_exactly_and_a_single_line_is_not_compared() -> None:
    same: list[float | None] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert decide({3: same, 4: same}, within=0.0, error=0.05).status == "tie"
    assert decide({3: same}, within=0.0, error=0.05).status == "none"


def test_a_miss_takes_a_line_out_and_gives_those_that_it_beat_another_chance() -> None:
    costs = lines_of(0.0, 0.5, 0.52, seeds=8)
    assert decide(costs, within=0.001, error=0.05).leader == 0
    costs[0].append(None)
    decision = decide(costs, within=0.001, error=0.05)
    assert decision.missed == (0,)
    assert 0 not in decision.contenders
    assert decision.leader in (1, None)
    nobody = {place: [*values, None] for place, values in costs.items()}
    assert decide(nobody, within=0.001, error=0.05) == Decision(
        "none", None, (), (), missed=(0, 1, 2), seeds=0
    )
