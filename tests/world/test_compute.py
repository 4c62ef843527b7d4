"""How long training takes: exact sums, limits, jitter that belongs to the world, slow phases integrated exactly."""

import math

import pytest

from fedsim.simulation import on_grid
from fedsim.streams import Streams
from fedsim.world.compute import Compute, SlowPhases


def test_epochs_end_back_to_back() -> None:
    ends = Compute(Streams(1), 0.0, None, 2).epoch_ends(0, 10.0, 0.1, 5, math.inf)
    assert ends == [on_grid(10.0 + 0.1 * (epoch + 1)) for epoch in range(5)]


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


def test_an_infinitely_fast_device_takes_no_time() -> None:
    assert Compute(Streams(1), 0.0, None, 2).epoch_ends(0, 2.0, 0.0, 3, math.inf) == [2.0, 2.0, 2.0]


def test_jitter_has_mean_one_and_the_stated_spread_and_belongs_to_the_instant() -> None:
    compute = Compute(Streams(4), 0.3, None, 2)
    times = [compute.epoch_ends(1, float(start), 1.0, 1, math.inf)[0] - start for start in range(8000)]
    mean = sum(times) / len(times)
    spread = math.sqrt(sum((time - mean) ** 2 for time in times) / len(times))
    assert mean == pytest.approx(1.0, abs=0.015)
    assert spread == pytest.approx(0.3, abs=0.02)
    assert compute.epoch_ends(1, 17.0, 1.0, 1, math.inf) == compute.epoch_ends(1, 17.0, 1.0, 1, math.inf)
    assert compute.epoch_ends(1, 17.0, 1.0, 1, math.inf) != compute.epoch_ends(2, 17.0, 1.0, 1, math.inf)


def test_slow_phases_are_integrated() -> None:
    slow = SlowPhases(factor=0.25, mean_normal="10 s", mean_slow="10 s")  # type: ignore[arg-type]
    compute = Compute(Streams(9), 0.0, slow, 2)
    end = compute.epoch_ends(0, 3.0, 500.0, 1, math.inf)[0]
    phases = Compute(Streams(9), 0.0, slow, 2)._phases
    assert phases is not None
    done, time = 0.0, 3.0
    while time < end:
        span = phases.span(0, time)
        until = min(span.end, end)
        done += (until - time) * (1.0 if span.on else 0.25)
        time = until
    assert done == pytest.approx(500.0, abs=1e-6)
