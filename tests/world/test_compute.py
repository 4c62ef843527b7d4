"""How long training takes: exact sums, limits, jitter that belongs to the world, slow phases integrated exactly."""

import math

import pytest

from fedsim.errors import SimulationError
from fedsim.simulation import on_grid
from fedsim.streams import Streams
from fedsim.world.compute import Compute, SlowPhases

SLOW = SlowPhases(factor=0.25, mean_normal="10 s", mean_slow="10 s")  # type: ignore[arg-type]


def test_epochs_end_back_to_back() -> None:
    ends = Compute(Streams(1), 0.0, None, 2).epoch_ends(0, 10.0, 0.1, 5, math.inf)
    assert ends == [on_grid(10.0 + 0.1 * (epoch + 1)) for epoch in range(5)]
    assert Compute(Streams(1), 0.0, None, 2).epoch_ends(0, 2.0, 0.0, 3, math.inf) == [2.0, 2.0, 2.0]  # infinitely fast


def test_so_many_epochs_are_exactly_as_long_as_a_limit_of_so_many() -> None:
    compute = Compute(Streams(1), 0.0, None, 2)
    for epoch_s in (0.1, 1 / 3, 4.2, 123.456789, 1e-3 / 7):
        for epochs in (1, 5, 77, 1000):
            limit = on_grid(3.0 + epochs * epoch_s)
            ends = compute.epoch_ends(0, 3.0, epoch_s, epochs + 3, limit)
            assert sum(end <= limit for end in ends) == epochs
            assert len(compute.adapt(3.0, ends, limit)) >= epochs
            assert sum(end <= on_grid(3.0 + epochs * epoch_s - 1e-9) for end in ends) == epochs - 1


def test_no_epoch_begins_at_or_after_the_limit() -> None:
    compute = Compute(Streams(1), 0.0, None, 2)
    assert compute.epoch_ends(0, 0.0, 1.0, 10, 3.0) == [1.0, 2.0, 3.0]
    assert compute.epoch_ends(0, 0.0, 1.0, 10, 3.5) == [1.0, 2.0, 3.0, 4.0]
    assert compute.epoch_ends(0, 5.0, 1.0, 10, 3.0) == []


def test_jitter_has_mean_one_and_the_stated_spread_and_belongs_to_the_instant() -> None:
    compute = Compute(Streams(4), 0.3, None, 2)
    times = [compute.epoch_ends(1, float(start), 1.0, 1, math.inf)[0] - start for start in range(8000)]
    mean = sum(times) / len(times)
    spread = math.sqrt(sum((time - mean) ** 2 for time in times) / len(times))
    assert mean == pytest.approx(1.0, abs=0.015)
    assert spread == pytest.approx(0.3, abs=0.02)
    assert compute.epoch_ends(1, 17.0, 1.0, 1, math.inf) == compute.epoch_ends(1, 17.0, 1.0, 1, math.inf)
    assert compute.epoch_ends(1, 17.0, 1.0, 1, math.inf) != compute.epoch_ends(0, 17.0, 1.0, 1, math.inf)


def test_slow_phases_are_integrated() -> None:
    compute = Compute(Streams(9), 0.0, SLOW, 2)
    end = compute.epoch_ends(0, 3.0, 500.0, 1, math.inf)[0]
    phases = Compute(Streams(9), 0.0, SLOW, 2)._phases
    assert phases is not None
    done, time = 0.0, 3.0
    while time < end:
        span = phases.span(0, time)
        until = min(span.end, end)
        done += (until - time) * (1.0 if span.on else 0.25)
        time = until
    assert done == pytest.approx(500.0, abs=1e-6)


@pytest.mark.parametrize("slow", [None, SLOW])
@pytest.mark.parametrize("jitter", [0.0, 0.4])
@pytest.mark.parametrize("epoch_s", [0.0, 0.25, 1.7, 8.0, 333.3])
def test_a_horizon_changes_nothing_before_it(slow: SlowPhases | None, jitter: float, epoch_s: float) -> None:
    for start, limit, horizon in [(3.0, math.inf, 40.0), (3.0, 25.0, math.inf), (3.0, 25.0, 9.0), (0.25, 8.25, 3.25)]:
        compute = Compute(Streams(9), jitter, slow, 2)
        whole = [end for end in compute.epoch_ends(0, start, epoch_s, 30, math.inf) if end <= 1e5]
        ends = compute.epoch_ends(0, start, epoch_s, 30, limit, horizon)
        known = [end for end in ends if end <= min(limit, horizon)]
        begun = zip([start, *whole], whole, strict=False)
        assert known == [end for begin, end in begun if begin < limit and end <= min(limit, horizon)]
        assert ends[: len(known)] == known
        assert len(ends) <= len(known) + 2 or epoch_s == 0


def test_an_epoch_far_beyond_the_limit_is_not_walked_through() -> None:
    compute = Compute(Streams(9), 0.0, SLOW, 2)
    assert compute._phases is not None
    asked = []
    span = compute._phases.span
    compute._phases.span = lambda device, time: asked.append(time) or span(device, time)  # type: ignore[method-assign, func-returns-value]
    (end,) = compute.epoch_ends(0, 3.0, 1e15, 5, 23.0)
    assert end > 23.0
    assert len(asked) < 50


def test_a_billion_epochs_are_not_laid_out() -> None:
    for jitter, slow in ((0.0, None), (0.3, None), (0.3, SLOW)):
        compute = Compute(Streams(9), jitter, slow, 2)
        assert len(compute.epoch_ends(0, 3.0, 1.0, 10**9, math.inf, 23.0)) < 200
        assert len(compute.epoch_ends(0, 3.0, 1.0, 10**9, 23.0)) < 200


def test_far_too_many_phases_are_refused_before_they_are_walked_through() -> None:
    short = SlowPhases(factor=0.5, mean_normal="1 ms", mean_slow="1 ms")  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match=r"phases of 0\.001 s and 0\.001 s"):
        Compute(Streams(9), 0.0, short, 2).epoch_ends(0, 0.0, 1e9, 1, math.inf)
