"""Intervals of the user's own: seconds, times of day and dates, each against a path worked out by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsim.errors import DataError, FedsimError
from fedsim.streams import Streams
from fedsim.world.availability import Availability
from fedsim.world.population import PopulationSpec

HOUR, DAY = 3600.0, 86400.0


def paths(folder: Path, text: str, calendar: dict[str, Any] | None = None, devices: int = 3, **how: Any) -> Availability:
    (folder / "on.csv").write_text(text)
    availability = {"kind": "intervals", "file": "on.csv"} | how
    return PopulationSpec(devices=devices, availability=availability, calendar=calendar).paths(Streams(1), folder)  # type: ignore[arg-type]


def phases(path: Availability, device: int, until: float) -> list[tuple[float, float]]:
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
    path = paths(tmp_path, "device,start,end\n2,50 s,2 min\n0,0 s,10 s\n2,10 s,20 s\n2,20 s,30 s\n2,40 s,40 s\n")
    assert phases(path, 0, 1000) == [(0, 10)]
    assert phases(path, 1, 1000) == []
    assert phases(path, 2, 1000) == [(10, 30), (50, 120)]
    assert [path.next_on(device, 35.0) for device in range(3)] == [math.inf, math.inf, 50.0]
    assert path.next_on(2, 120.0) == math.inf


def test_a_pattern_that_comes_again(tmp_path: Path) -> None:
    path = paths(tmp_path, "device,start,end\n0,0,10\n0,90,100\n1,0,100\n2,5,6\n", unit="s", every="100 s")
    assert phases(path, 0, 200) == [(0, 10), (90, 110), (190, 210)]
    assert phases(path, 1, 200) == [(0, math.inf)]
    assert phases(path, 2, 300) == [(5, 6), (105, 106), (205, 206)]


def test_times_of_day_are_local_and_may_go_over_midnight(tmp_path: Path) -> None:
    text = "device,start,end\n0,22:00,06:30\n1,22:00,06:30\n2,00:00,00:00\n1,12:00,13:00\n"
    path = paths(tmp_path, text, {"starts": "2024-03-04T05:00Z", "zone": ["UTC", "Asia/Tokyo", "UTC"]})
    assert phases(path, 0, 2 * DAY) == [(0, 1.5 * HOUR), (17 * HOUR, 25.5 * HOUR), (41 * HOUR, 49.5 * HOUR)]
    tokyo = [(8, 16.5), (22, 23), (32, 40.5), (46, 47)]  # it is 14:00 there
    assert phases(path, 1, 2 * DAY) == [(start * HOUR, end * HOUR) for start, end in tokyo]
    assert phases(path, 2, 2 * DAY) == [(0, math.inf)]


def test_dates(tmp_path: Path) -> None:
    text = (
        "device,start,end\n"
        "0,2024-03-30T23:00,2024-03-31T04:00\n"  # four hours in Berlin: that night summer time began
        "0,2024-03-29T10:00,2024-03-29T12:00\n"  # before the run
        "1,2024-03-30 21:00:00Z,2024-03-30 23:30:00+01:00\n"
        "1,2024-03-30T12:00,2024-03-30T21:00\n"
    )
    path = paths(tmp_path, text, {"starts": "2024-03-30T20:00Z", "zone": ["Europe/Berlin", "UTC", "UTC"]})
    assert phases(path, 0, 2 * DAY) == [(2 * HOUR, 6 * HOUR)]
    assert phases(path, 1, 2 * DAY) == [(0, 2.5 * HOUR)]


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_parquet_holds_the_same(tmp_path: Path, zone: str | None) -> None:
    start = pd.to_datetime(["2024-03-04T06:00", "2024-03-04T08:00"]).tz_localize("UTC").tz_convert(zone)
    pd.DataFrame({"device": [0, 1], "start": start, "end": start + pd.Timedelta("90min")}).to_parquet(tmp_path / "on.parquet")
    how = {"kind": "intervals", "file": "on.parquet"}
    calendar = {"starts": "2024-03-04T06:00"}
    path = PopulationSpec(devices=2, availability=how, calendar=calendar).paths(Streams(1), tmp_path)  # type: ignore[arg-type]
    assert [phases(path, device, DAY) for device in range(2)] == [[(0, 1.5 * HOUR)], [(2 * HOUR, 3.5 * HOUR)]]


def test_devices_may_be_drawn_among_those_of_the_file(tmp_path: Path) -> None:
    path = paths(tmp_path, "device,start,end\nmine,1,2\nyours,3,4\n", unit="s", drawn=True, devices=1000)
    kinds = [tuple(phases(path, device, 10)) for device in range(1000)]
    assert set(kinds) == {((1.0, 2.0),), ((3.0, 4.0),)}
    assert kinds.count(((1.0, 2.0),)) == pytest.approx(500, abs=80)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device,start\n0,1 s\n", r"has no column 'end'"),
        ("device,start,end\n0,1 s,5 s\n3,1 s,5 s\n", r"row 2 of '.*on\.csv': device is '3': allowed are 0 to 2"),
        ("device,start,end\n0,5 s,1 s\n", r"row 1 of '.*': end is '1 s': that is before its start, 5 s"),
        (
            "device,start,end\n0,8 s,9 s\n1,3 s,9 s\n0,1 s,8.5 s\n",
            r"row 1 of '.*': start is '8 s': that is within row 3 of",
        ),
        ("device,start,end\n0,-1 s,5 s\n", r"row 1 of '.*': start is '-1 s': a time cannot be negative"),
        ("device,start,end\n0,1,5\n", r"row 1 of '.*': start is '1': a time is a number and a unit"),
        ("device,start,end\n0,1 s,\n", r"row 1 of '.*': end is None: every row needs a value"),
        ("device,start,end\n0,1 s,5 s\n0,22:00,23:00\n", r"row 2 of '.*': start is '22:00': the first row has simulated times"),
        ("device,start,end\n0,22:00,25:00\n", r"row 1 of '.*': end is '25:00'"),
        ("device,start,end\n0,22:00,22:00\n", r"row 1 of '.*': end is '22:00': that is when it starts"),
        ("device,start,end\n0,22:00,06:00\n0,05:00,07:00\n", r"row 2 of '.*': start is '05:00': that is within row 1"),
        ("device,start,end\n0,2024-03-04T08:00,2024-03-04T07:00\n", r"row 1 of '.*': end is .*before its start"),
    ],
)
def test_bad_intervals(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"^population\.availability: .*{message}"):
        paths(tmp_path, text, {"starts": "2024-03-04T00:00"})


@pytest.mark.parametrize(
    ("interval", "how", "message"),
    [
        ("2024-03-04T08:00,2024-03-04T09:00", {}, r"has dates; give population\.calendar\.starts"),
        ("1 s,2 h", {"every": "1 h"}, r"end is '2 h': that is after the 3600 s of population\.availability\.every"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, interval: str, how: dict[str, Any], message: str) -> None:
    with pytest.raises(FedsimError, match=message):
        paths(tmp_path, f"device,start,end\n0,{interval}\n", **how)
