"""Paths of availability: the same whoever asks and when, with the stated means; by day and
night; as they were written down.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.clock.simulation import TICK_S
from fedsim.common.errors import DataError, FedsimError
from fedsim.common.streams import Streams
from fedsim.toolbox.worlds.availability import Diurnal, Flash, Traces
from fedsim.world import phases
from fedsim.world.availability import Availability, Renewal
from fedsim.world.calendar import Calendar, CalendarSpec
from fedsim.world.phases import Phases
from fedsim.world.population_spec import PopulationSpec


def build(seed: int = 1) -> Phases:
    return Renewal(mean_on="20 min", mean_off="5 min").build(Streams(seed), 10, None)  # type: ignore[arg-type]


def tides(lasts: str) -> Callable[[], Availability]:
    spec = Diurnal.model_validate({"most": 0.5, "least": 0.1, "lasts": lasts})
    return lambda: spec.build_on(Streams(3), 10, None, Calendar.assumed(10))


HOUR, DAY = 3600.0, 86400.0
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


class TestFlash:
    def built(
        self, folder: Path, entries: dict[str, Any], devices: int = 5, starts: str = "00:00"
    ) -> Traces:
        (folder / "phones.json").write_text(json.dumps(entries))
        calendar = CalendarSpec(starts=starts).build(Streams(1), devices, None)
        return Flash(file="phones.json").build_on(Streams(1), devices, folder, calendar)

    def one(self, folder: Path, ready: list[Any]) -> Traces:
        return self.built(folder, {"7": {"start": 1000, "end": 1100, "ready": ready, "ok": True}})

    def test_a_trace_repeats(self, tmp_path: Path) -> None:
        path = self.one(tmp_path, [[1010, 1030], [1030, 1040], [1050, 1050], [1060, 1070]])
        on = [second for second in range(200) if path.span(0, float(second)).on]
        lap = [*range(10, 40), *range(60, 70)]
        assert on == [*lap, *(second + 100 for second in lap)]
        assert [second for second in range(200) if path.on(np.array([0]), float(second))[0]] == on
        assert path.span(0, 15.0)[1:] == (10.0, 40.0)
        assert path.next_on(0, 75.0) == 110.0

    def test_ends_of_traces(self, tmp_path: Path) -> None:
        """A phase that reaches over a trace's end goes on, one that is always on has no end, and
        one never on never comes.
        """
        assert self.one(tmp_path, [[1000, 1010], [1090, 1100]]).span(0, 95.0).end == 110.0
        assert self.one(tmp_path, [[1000, 1100]]).span(0, 5e5).end == math.inf
        assert self.one(tmp_path, []).next_on(0, 0.0) == math.inf

    @pytest.mark.parametrize(
        ("ready", "what"),
        [
            ([[1010, None]], r"ready\.0\.1: it must be a number"),
            ([[1010, 1030], [1020, 1040]], "interval 1"),
            ([[1010, 2000]], "interval 0"),
            ("oops", "ready: it must be a list"),
        ],
    )
    def test_a_trace_with_holes_is_refused(
        self, tmp_path: Path, ready: list[Any], what: str
    ) -> None:
        with pytest.raises(DataError, match=f"trace '7'.*holes.*{what}"):
            self.one(tmp_path, ready)

    def test_no_file_and_no_trace(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"flash_availability_1000\.json"):
            Flash().build_on(Streams(1), 5, tmp_path, Calendar.assumed(5))
        with pytest.raises(DataError, match="no trace that can be used"):
            self.built(tmp_path, {"1": {"start": None, "end": None, "ready": [], "ok": False}})

    def test_devices_keep_the_time_of_day_that_the_traces_have_in_common(
        self, tmp_path: Path
    ) -> None:
        """Both phones are on from 01:00 to 02:00 on the file's clock, and were written down from
        other hours on.
        """
        phones = {
            "1": {"start": 347400, "end": 433800, "ready": [[349200, 352800]], "ok": True},
            "2": {
                "start": 7200,
                "end": 7200 + 2 * 86400,
                "ready": [[90000, 93600], [176400, 180000]],
                "ok": True,
            },
        }
        path = self.built(tmp_path, phones, 20, "22:00")
        for device in range(20):
            assert path.span(device, 3 * 3600.0) == (True, 3 * 3600.0, 4 * 3600.0)
            assert path.next_on(device, 4 * 3600.0) == 27 * 3600.0

    def test_the_tide_of_the_published_traces(self, data_folder: Path) -> None:
        """By the hour of the day the phones of the file are ready 2.1 times as often at best as
        at worst (each once).

        9.5 % of the time over all phones, 13 % over those with intervals.
        """
        path = Flash().build_on(Streams(1), 1500, data_folder, Calendar.assumed(1500))
        ready = [
            sum(path.span(device, 900.0 * quarter).on for device in range(1500))
            for quarter in range(96)
        ]
        hours = np.array(ready).reshape(24, 4).mean(axis=1)
        assert hours.max() / hours.min() == pytest.approx(2.1, abs=0.35)
        assert 2 <= hours.argmax() <= 7
        assert 0.05 < hours.mean() / 1500 < 0.25


DEVICES = 40

_TIMES = st.floats(0, 3e6, allow_nan=False) | st.integers(0, 40).map(lambda hours: hours * 3600.0)
_QUESTIONS = st.lists(
    st.tuples(_TIMES, st.sets(st.integers(0, DEVICES - 1), min_size=1)), min_size=1, max_size=6
)


def phases_of(
    mean_on: float = 1200.0, mean_off: float = 300.0, devices: int = DEVICES, seed: int = 1
) -> Phases:
    return Phases(Streams(seed), "p", mean_on, mean_off, devices)


@settings(max_examples=40)
@given(
    _QUESTIONS,
    st.sampled_from([(1200.0, 300.0), (7200.0, 14400.0), (86400.0 * 30, 60.0), (3.0, 3000.0)]),
)
def test_many_at_once_are_as_one_by_one_in_any_order(
    asked: list[tuple[float, set[int]]], means: tuple[float, float]
) -> None:
    together, alone = phases_of(*means), phases_of(*means)
    for time, devices in asked:
        column = np.array(sorted(devices, reverse=True), dtype=np.int64)
        on = together.on(column, time)
        spans = [alone.span(device, time) for device in column.tolist()]
        assert on.tolist() == [span.on for span in spans]
        # where the walk has left each
        assert [together.span(device, time) for device in column.tolist()] == spans


def test_phases_shorter_than_a_tick_take_one() -> None:
    together, alone = phases_of(1e-12, 1e-12, 3), phases_of(1e-12, 1e-12, 3)
    time = 700 * TICK_S
    assert together.on(np.arange(3), time).tolist() == [
        alone.span(device, time).on for device in range(3)
    ]
    assert together.span(0, time) == alone.span(0, time)
    assert together.span(0, time).end - time == TICK_S


def test_more_devices_than_are_walked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = phases_of(devices=1000).on(np.arange(1000), 5e4)
    monkeypatch.setattr(phases, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(phases, "_PHASES_AT_ONCE", 5)
    assert phases_of(devices=1000).on(np.arange(1000), 5e4).tolist() == whole.tolist()


def test_the_share_of_those_who_are_on_is_as_stated_at_any_time() -> None:
    path, everybody = phases_of(1200.0, 300.0, 50_000, seed=2), np.arange(50_000)
    for time in (0.0, 1000.0, 40_000.0):
        assert path.on(everybody, time).mean() == pytest.approx(
            0.8, abs=5 * math.sqrt(0.8 * 0.2 / 50_000)
        )


MANY = 20_000


def tidal(devices: int = MANY, calendar: dict[str, Any] | None = None, **how: Any) -> Availability:
    streams = Streams(3)
    spec = Diurnal(**{"most": 0.5, "least": 0.1, "peak": "02:00", "lasts": "90 min"} | how)  # type: ignore[arg-type]
    return spec.build_on(
        streams, devices, None, CalendarSpec(**calendar or {}).build(streams, devices, None)
    )


def share(path: Availability, time: float, devices: range = range(MANY)) -> float:
    return float(path.on(np.array(devices), time).mean())


@pytest.mark.parametrize("lasts", ["10 min", "90 min", "3 day"])
def test_the_share_is_the_sinusoid_at_every_hour(lasts: str) -> None:
    path = tidal(lasts=lasts)
    for hour in (0, 2, 7, 14, 20.5, 26, 61, 24 * 90 + 3):
        expected = 0.3 + 0.2 * math.cos(2 * math.pi * (hour - 2) / 24)
        assert share(path, hour * HOUR) == pytest.approx(expected, abs=5 * math.sqrt(0.25 / MANY))
        some = np.arange(300)
        assert path.on(some, hour * HOUR).tolist() == [
            path.span(device, hour * HOUR).on for device in range(300)
        ]


def test_it_is_the_local_hour_that_counts() -> None:
    half = MANY // 2
    zones = ["Europe/Berlin"] * half + ["Etc/GMT+5"] * half
    path = tidal(calendar={"starts": "2024-07-01T18:00+02:00", "zone": zones}, most=0.9, least=0.0)
    # 02:00 in Berlin, in summer
    assert share(path, 8 * HOUR, range(half)) == pytest.approx(0.9, abs=0.02)
    assert share(path, 20 * HOUR, range(half)) == pytest.approx(0.0, abs=0.02)
    # 18:00 there is 11:00 here
    assert share(path, 15 * HOUR, range(half, MANY)) == pytest.approx(0.9, abs=0.02)


def test_habits() -> None:
    """With one draw for ever a device is on in the same window each day, symmetric about the
    peak.
    """
    path = tidal(50, lasts="1000 day", most=1.0, least=0.0)
    for device in range(50):
        first = path.span(device, path.next_on(device, 14 * HOUR))
        assert first.start + first.end == pytest.approx(2 * 26 * HOUR)
        again = path.span(device, path.next_on(device, 38 * HOUR))
        assert again == (True, first.start + DAY, first.end + DAY)


def paths(
    folder: Path, text: str, calendar: dict[str, Any] | None = None, devices: int = 3, **how: Any
) -> Availability:
    (folder / "on.csv").write_text(text)
    availability = {"kind": "intervals", "file": "on.csv"} | how
    return PopulationSpec(devices=devices, availability=availability, calendar=calendar).paths(
        Streams(1), folder
    )  # type: ignore[arg-type]


def spans(path: Availability, device: int, until: float) -> list[tuple[float, float]]:
    """From when to when a device is on."""
    found: list[tuple[float, float]] = []
    time = 0.0
    while time < until:
        span = path.span(device, time)
        assert span.start <= time < span.end
        assert path.on(np.array([device]), time)[0] == span.on
        if span.on:
            found.append((time, span.end))
        time = span.end
    return found


def test_seconds(tmp_path: Path) -> None:
    path = paths(
        tmp_path,
        "device,start,end\n2,50 s,2 min\n0,0 s,10 s\n2,10 s,20 s\n2,20 s,30 s\n2,40 s,40 s\n",
    )
    assert spans(path, 0, 1000) == [(0, 10)]
    assert spans(path, 1, 1000) == []
    assert spans(path, 2, 1000) == [(10, 30), (50, 120)]
    assert [path.next_on(device, 35.0) for device in range(3)] == [math.inf, math.inf, 50.0]
    assert path.next_on(2, 120.0) == math.inf


def test_times_of_day_are_local_and_may_go_over_midnight(tmp_path: Path) -> None:
    text = "device,start,end\n0,22:00,06:30\n1,22:00,06:30\n2,00:00,00:00\n1,12:00,13:00\n"
    path = paths(
        tmp_path, text, {"starts": "2024-03-04T05:00Z", "zone": ["UTC", "Asia/Tokyo", "UTC"]}
    )
    assert spans(path, 0, 2 * DAY) == [
        (0, 1.5 * HOUR),
        (17 * HOUR, 25.5 * HOUR),
        (41 * HOUR, 49.5 * HOUR),
    ]
    tokyo = [(8, 16.5), (22, 23), (32, 40.5), (46, 47)]  # it is 14:00 there
    assert spans(path, 1, 2 * DAY) == [(start * HOUR, end * HOUR) for start, end in tokyo]
    assert spans(path, 2, 2 * DAY) == [(0, math.inf)]


def test_dates(tmp_path: Path) -> None:
    """Four hours of that night in Berlin, as summer time began; what was before the run is left
    out.
    """
    text = "device,start,end\n0,2024-03-30T23:00,2024-03-31T04:00\n0,2024-03-29T10:00,2024-03-29T12:00\n"
    text += (
        "1,2024-03-30 21:00:00Z,2024-03-30 23:30:00+01:00\n1,2024-03-30T12:00,2024-03-30T21:00\n"
    )
    path = paths(
        tmp_path, text, {"starts": "2024-03-30T20:00Z", "zone": ["Europe/Berlin", "UTC", "UTC"]}
    )
    assert spans(path, 0, 2 * DAY) == [(2 * HOUR, 6 * HOUR)]
    assert spans(path, 1, 2 * DAY) == [(0, 2.5 * HOUR)]


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_parquet_holds_the_same(tmp_path: Path, zone: str | None) -> None:
    start = (
        pd.to_datetime(["2024-03-04T06:00", "2024-03-04T08:00"]).tz_localize("UTC").tz_convert(zone)
    )
    pd.DataFrame(
        {"device": [0, 1], "start": start, "end": start + pd.Timedelta("90min")}
    ).to_parquet(tmp_path / "on.parquet")
    how = {"kind": "intervals", "file": "on.parquet"}
    calendar = {"starts": "2024-03-04T06:00"}
    path = PopulationSpec(devices=2, availability=how, calendar=calendar).paths(
        Streams(1), tmp_path
    )  # type: ignore[arg-type]
    assert [spans(path, device, DAY) for device in range(2)] == [
        [(0, 1.5 * HOUR)],
        [(2 * HOUR, 3.5 * HOUR)],
    ]


def test_devices_may_be_drawn_among_those_of_the_file(tmp_path: Path) -> None:
    path = paths(
        tmp_path, "device,start,end\nmine,1,2\nyours,3,4\n", unit="s", drawn=True, devices=1000
    )
    kinds = [tuple(spans(path, device, 10)) for device in range(1000)]
    assert set(kinds) == {((1.0, 2.0),), ((3.0, 4.0),)}
    assert kinds.count(((1.0, 2.0),)) == pytest.approx(500, abs=80)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "device,start,end\n0,1 s,5 s\n3,1 s,5 s\n",
            r"row 2 of '.*on\.csv': device is '3': allowed are 0 to 2",
        ),
        (
            "device,start,end\n0,5 s,1 s\n",
            r"row 1 of '.*': end is '1 s': that is before its start, 5 s",
        ),
        (
            "device,start,end\n0,8 s,9 s\n1,3 s,9 s\n0,1 s,8.5 s\n",
            r"row 1 of '.*': start is '8 s': that is within row 3 of",
        ),
        (
            "device,start,end\n0,1,5\n",
            r"row 1 of '.*': start is '1': a time is a number and a unit",
        ),
        (
            "device,start,end\n0,1 s,5 s\n0,22:00,23:00\n",
            r"row 2 of '.*': start is '22:00': the first row has simulated times",
        ),
        ("device,start,end\n0,22:00,25:00\n", r"row 1 of '.*': end is '25:00'"),
        (
            "device,start,end\n0,22:00,22:00\n",
            r"row 1 of '.*': end is '22:00': that is when it starts",
        ),
        (
            "device,start,end\n0,22:00,06:00\n0,05:00,07:00\n",
            r"row 2 of '.*': start is '05:00': that is within row 1",
        ),
        (
            "device,start,end\n0,2024-03-04T08:00,2024-03-04T07:00\n",
            r"row 1 of '.*': end is .*before its start",
        ),
    ],
)
def test_bad_intervals(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"^population\.availability: .*{message}"):
        paths(tmp_path, text, {"starts": "2024-03-04T00:00"})
    with pytest.raises(FedsimError, match=r"has dates; give population\.calendar\.starts"):
        paths(tmp_path, "device,start,end\n0,2024-03-04T08:00,2024-03-04T09:00\n")
