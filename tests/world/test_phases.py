"""Random phases walked many at a time: the same paths as one by one, to the bit, whoever asks for them and when."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.simulation import TICK_S
from fedsim.streams import Streams
from fedsim.world import phases
from fedsim.world.phases import Phases

DEVICES = 40

times = st.floats(0, 3e6, allow_nan=False) | st.integers(0, 40).map(lambda hours: hours * 3600.0)
questions = st.lists(st.tuples(times, st.sets(st.integers(0, DEVICES - 1), min_size=1)), min_size=1, max_size=6)


def build(mean_on: float = 1200.0, mean_off: float = 300.0, devices: int = DEVICES, seed: int = 1) -> Phases:
    return Phases(Streams(seed), "p", mean_on, mean_off, devices)


@settings(max_examples=40)
@given(questions, st.sampled_from([(1200.0, 300.0), (7200.0, 14400.0), (86400.0 * 30, 60.0), (3.0, 3000.0)]))
def test_many_at_once_are_as_one_by_one_in_any_order(asked: list[tuple[float, set[int]]], means: tuple[float, float]) -> None:
    together, alone = build(*means), build(*means)
    for time, devices in asked:
        column = np.array(sorted(devices, reverse=True), dtype=np.int64)
        on = together.on(column, time)
        spans = [alone.span(device, time) for device in column.tolist()]
        assert on.tolist() == [span.on for span in spans]
        assert [together.span(device, time) for device in column.tolist()] == spans  # where the walk has left each


def test_phases_shorter_than_a_tick_take_one() -> None:
    together, alone = build(1e-12, 1e-12, 3), build(1e-12, 1e-12, 3)
    time = 700 * TICK_S
    assert together.on(np.arange(3), time).tolist() == [alone.span(device, time).on for device in range(3)]
    assert together.span(0, time) == alone.span(0, time)
    assert together.span(0, time).end - time == TICK_S


def test_more_devices_than_are_walked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(devices=1000).on(np.arange(1000), 5e4)
    monkeypatch.setattr(phases, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(phases, "_PHASES_AT_ONCE", 5)
    assert build(devices=1000).on(np.arange(1000), 5e4).tolist() == whole.tolist()


def test_nobody_asked_nobody_walked() -> None:
    path = build()
    assert path.on(np.array([], dtype=np.int64), 1e6).tolist() == []
    path.on(np.array([3]), 1e6)
    assert np.flatnonzero(path._end).tolist() == [3]


def test_the_share_of_those_who_are_on_is_as_stated_at_any_time() -> None:
    path, everybody = build(1200.0, 300.0, 50_000, seed=2), np.arange(50_000)
    for time in (0.0, 1000.0, 40_000.0):
        assert path.on(everybody, time).mean() == pytest.approx(0.8, abs=5 * math.sqrt(0.8 * 0.2 / 50_000))
