"""Day and night: the share that is on is the sinusoid at every instant, in every zone, whoever asks and when."""

import math
from typing import Any

import numpy as np
import pytest

from fedsim.errors import ScenarioError
from fedsim.streams import Streams
from fedsim.toolbox.worlds.availability import Diurnal
from fedsim.world.availability import Availability
from fedsim.world.calendar import CalendarSpec
from fedsim.world.population import PopulationSpec

DEVICES = 20_000
HOUR, DAY = 3600.0, 86400.0


def paths(devices: int = DEVICES, calendar: dict[str, Any] | None = None, **how: Any) -> Availability:
    streams = Streams(3)
    spec = Diurnal(**{"most": 0.5, "least": 0.1, "peak": "02:00", "lasts": "90 min"} | how)  # type: ignore[arg-type]
    return spec.build_on(streams, devices, None, CalendarSpec(**calendar or {}).build(streams, devices, None))


def share(path: Availability, time: float, devices: range = range(DEVICES)) -> float:
    return float(path.on(np.array(devices), time).mean())


@pytest.mark.parametrize("lasts", ["10 min", "90 min", "3 day"])
def test_the_share_is_the_sinusoid_at_every_hour(lasts: str) -> None:
    path = paths(lasts=lasts)
    for hour in (0, 2, 7, 14, 20.5, 26, 61, 24 * 90 + 3):
        expected = 0.3 + 0.2 * math.cos(2 * math.pi * (hour - 2) / 24)
        assert share(path, hour * HOUR) == pytest.approx(expected, abs=5 * math.sqrt(0.25 / DEVICES))


def test_it_is_the_local_hour_that_counts() -> None:
    half = DEVICES // 2
    zones = ["Europe/Berlin"] * half + ["-05:00"] * half
    path = paths(calendar={"starts": "2024-07-01T18:00+02:00", "zone": zones}, most=0.9, least=0.0)
    assert share(path, 8 * HOUR, range(half)) == pytest.approx(0.9, abs=0.02)  # 02:00 in Berlin, in summer
    assert share(path, 20 * HOUR, range(half)) == pytest.approx(0.0, abs=0.02)
    assert share(path, 15 * HOUR, range(half, DEVICES)) == pytest.approx(0.9, abs=0.02)  # 18:00 there is 11:00 here


def test_many_at_once_are_what_each_is_alone() -> None:
    path, devices = paths(300), np.arange(300)
    for time in np.linspace(0, 5 * DAY, 67).tolist():
        assert path.on(devices, time).tolist() == [path.span(device, time).on for device in range(300)]


def test_habits() -> None:
    """With one draw for ever a device is on in the same window each day, symmetric about the peak."""
    path = paths(50, lasts="1000 day", most=1.0, least=0.0)
    for device in range(50):
        first = path.span(device, path.next_on(device, 14 * HOUR))
        assert first.start + first.end == pytest.approx(2 * 26 * HOUR)
        again = path.span(device, path.next_on(device, 38 * HOUR))
        assert again == (True, first.start + DAY, first.end + DAY)


def test_a_flat_share_needs_no_sun() -> None:
    path = paths(most=0.3, least=0.3)
    assert share(path, 5e5) == pytest.approx(0.3, abs=0.02)


def test_bad_shares() -> None:
    with pytest.raises(ValueError, match=r"'least' is 0\.6, above 'most', which is 0\.5"):
        Diurnal(most=0.5, least=0.6)
    with pytest.raises(ValueError, match="a time of day such as '02:00'"):
        Diurnal(most=0.5, least=0.1, peak="2 am")


@pytest.mark.parametrize(
    ("calendar", "message"),
    [
        ({"zone": "Europe/Belin"}, r"population\.calendar\.zone is 'Europe/Belin'.*did you mean 'Europe/Berlin'"),
        ({"zone": "+25:00"}, r"population\.calendar\.zone is '\+25:00'"),
        ({"zone": "../etc"}, r"population\.calendar\.zone is '\.\./etc'"),
    ],
)
def test_bad_zones(calendar: dict[str, Any], message: str) -> None:
    spec = PopulationSpec(devices=3, calendar=calendar)  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match=message):
        spec.paths(Streams(1), None)


@pytest.mark.parametrize("starts", ["noon", "2024-02-30T00:00", ""])
def test_bad_starts(starts: str) -> None:
    with pytest.raises(ValueError, match="a date and time, or a time of day, is allowed"):
        CalendarSpec(starts=starts)
