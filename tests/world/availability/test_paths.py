"""Paths of availability: the same whoever asks and when, with the stated means; traces read and refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import DataError
from fedsim.streams import Streams
from fedsim.toolbox.worlds.availability import Diurnal, Flash, Traces
from fedsim.world.availability import AlwaysOn, Availability, Renewal
from fedsim.world.calendar import Calendar, CalendarSpec
from fedsim.world.phases import Phases


def build(seed: int = 1) -> Phases:
    return Renewal(mean_on="20 min", mean_off="5 min").build(Streams(seed), 10, None)  # type: ignore[arg-type]


def tides(lasts: str) -> Callable[[], Availability]:
    spec = Diurnal.model_validate({"most": 0.5, "least": 0.1, "lasts": lasts})
    return lambda: spec.build_on(Streams(3), 10, None, Calendar.assumed(10))


PATHS = pytest.mark.parametrize("path", [build, tides("10 min"), tides("7 h"), tides("3 day")])


@PATHS
@settings(max_examples=40, deadline=None)
@given(device=st.integers(0, 9), times=st.lists(st.floats(0, 2e6), min_size=1, max_size=20))
def test_any_order_of_questions_gives_the_same_answers(
    path: Callable[[], Availability], device: int, times: list[float]
) -> None:
    forwards, fresh = path(), path()
    answers = {time: forwards.span(device, time) for time in times}
    for time in reversed(times):
        assert fresh.span(device, time) == answers[time]
        assert answers[time].start <= time < answers[time].end


@PATHS
def test_phases_alternate_without_gaps(path: Callable[[], Availability]) -> None:
    walked = path()
    last = walked.span(4, 0.0)
    for _ in range(300):
        following = walked.span(4, last.end)
        assert (following.start, following.on) == (last.end, not last.on)
        middle = (following.start + following.end) / 2
        assert walked.span(4, middle) == following
        assert walked.next_on(4, middle) == (middle if following.on else following.end)
        last = following


def test_always_on() -> None:
    path = AlwaysOn().build(Streams(1), 3, None)
    assert path.span(2, 1e9).on
    assert path.span(2, 1e9).end == math.inf
    assert path.on(np.array([2, 0]), 1e9).tolist() == [True, True]


class TestFlash:
    def write(self, folder: Path, entries: dict[str, Any]) -> Path:
        (folder / "traces").mkdir(exist_ok=True)
        path = folder / "traces" / "flash_availability_1000.json"
        path.write_text(json.dumps(entries))
        return path

    def one(self, tmp_path: Path, ready: list[Any], end: float = 1100.0, **more: Any) -> Traces:
        self.write(tmp_path, {"7": {"start": 1000, "end": end, "ready": ready, "ok": True} | more})
        return Flash().build_on(Streams(1), 5, tmp_path, Calendar.assumed(5))

    def test_a_trace_repeats(self, tmp_path: Path) -> None:
        path = self.one(tmp_path, [[1010, 1030], [1030, 1040], [1050, 1050], [1060, 1070]])
        on = [second for second in range(200) if path.span(0, float(second)).on]
        lap = [*range(10, 40), *range(60, 70)]
        assert on == [*lap, *(second + 100 for second in lap)]
        assert [second for second in range(200) if path.on(np.array([0]), float(second))[0]] == on
        assert path.span(0, 15.0)[1:] == (10.0, 40.0)
        assert path.next_on(0, 75.0) == 110.0

    def test_ends_of_traces(self, tmp_path: Path) -> None:
        """A phase that reaches over a trace's end goes on, one that is always on has no end, and one never on never comes."""
        assert self.one(tmp_path, [[1000, 1010], [1090, 1100]]).span(0, 95.0).end == 110.0
        assert self.one(tmp_path, [[1000, 1100]]).span(0, 5e5).end == math.inf
        assert self.one(tmp_path, []).next_on(0, 0.0) == math.inf

    @pytest.mark.parametrize(
        ("ready", "what"),
        [
            ([[1010, None]], r"ready\.0\.1: it must be a number"),
            ([[1010, 1030], [1020, 1040]], "interval 1"),
            ([[1010, 1005]], "interval 0"),
            ([[1010, 2000]], "interval 0"),
            ([[1010]], r"ready\.0\.1"),
            ("oops", "ready: it must be a list"),
        ],
    )
    def test_a_trace_with_holes_is_refused(self, tmp_path: Path, ready: list[Any], what: str) -> None:
        with pytest.raises(DataError, match=f"trace '7'.*holes.*{what}"):
            self.one(tmp_path, ready)

    def test_no_file_and_no_trace(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"flash_availability_1000\.json"):
            Flash().build_on(Streams(1), 5, tmp_path, Calendar.assumed(5))
        self.write(tmp_path, {"1": {"start": None, "end": None, "ready": [], "ok": False}})
        with pytest.raises(DataError, match="no trace with 'ok'"):
            Flash().build_on(Streams(1), 5, tmp_path, Calendar.assumed(5))

    def test_devices_keep_the_time_of_day_that_the_traces_have_in_common(self, tmp_path: Path) -> None:
        """Both phones are on from 01:00 to 02:00 on the file's clock, and were written down from other hours on."""
        phones = {
            "1": {"start": 347400, "end": 433800, "ready": [[349200, 352800]], "ok": True},
            "2": {"start": 7200, "end": 7200 + 2 * 86400, "ready": [[90000, 93600], [176400, 180000]], "ok": True},
        }
        self.write(tmp_path, phones)
        path = Flash().build_on(Streams(1), 20, tmp_path, CalendarSpec(starts="22:00").build(Streams(1), 20, None))
        for device in range(20):
            assert path.span(device, 3 * 3600.0) == (True, 3 * 3600.0, 4 * 3600.0)
            assert path.next_on(device, 4 * 3600.0) == 27 * 3600.0

    def test_the_tide_of_the_published_traces(self, data_folder: Path) -> None:
        """By the hour of the day the phones of the file are ready 2.1 times as often at best as at worst (each once)."""
        path = Flash().build_on(Streams(1), 1500, data_folder, Calendar.assumed(1500))
        ready = [sum(path.span(device, 900.0 * quarter).on for device in range(1500)) for quarter in range(96)]
        hours = np.array(ready).reshape(24, 4).mean(axis=1)
        assert hours.max() / hours.min() == pytest.approx(2.1, abs=0.35)
        assert 2 <= hours.argmax() <= 7

    def test_the_published_traces(self, data_folder: Path) -> None:
        path = Flash().build_on(Streams(1), 300, data_folder, Calendar.assumed(300))
        share = sum(path.span(device, 3600.0 * hour).on for device in range(300) for hour in range(0, 48, 3)) / (300 * 16)
        assert 0.05 < share < 0.25  # 9.5 % over all phones, 13 % over those with intervals
