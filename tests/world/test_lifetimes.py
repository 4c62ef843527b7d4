"""Newcomers and leavers: who they are, when they can be reached, what is recorded, and what a
scenario may say of them.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.clock.simulation import Simulation, on_grid
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.toolbox.worlds.availability import Traces
from fedsim.world.availability import AlwaysOn, Availability
from fedsim.world.lifetimes import Bounded, Lifetimes, bounded
from fedsim.world.population import Population
from fedsim.world.population_spec import PopulationSpec

INF = math.inf


def columns(seed: int = 1, **sections: Any) -> Population:
    """The population that a scenario's ``[population]`` describes."""
    spec = PopulationSpec(**sections)
    return spec.build(
        Streams(seed), np.ones(spec.devices), np.ones(spec.devices, dtype=np.int64), 1.0
    )


class TestArrivals:
    def test_the_gaps_are_exponential_and_independent_and_the_newcomers_mixed(self) -> None:
        arrival = columns(
            devices=20_000, arrivals={"kind": "poisson", "rate": "30 /h", "newcomers": 10_000}
        ).arrival
        newcomers = np.flatnonzero(arrival)
        gaps = np.diff(np.sort(arrival[newcomers]), prepend=0.0)
        assert gaps.mean() == pytest.approx(120.0, rel=0.04)
        assert gaps.std() == pytest.approx(120.0, rel=0.06)
        assert np.quantile(gaps, [0.25, 0.75]) == pytest.approx(
            [120 * math.log(4 / 3), 120 * math.log(4)], rel=0.06
        )
        assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.04
        assert abs(newcomers.mean() - 10_000) < 250  # 4.3 standard errors
        assert abs(np.corrcoef(newcomers, arrival[newcomers])[0, 1]) < 0.04

    def test_more_newcomers_are_the_same_ones_at_the_same_times_and_more(self) -> None:
        few, many = (
            columns(
                devices=40, arrivals={"kind": "poisson", "rate": "1 /s", "newcomers": n}
            ).arrival
            for n in (7, 20)
        )
        assert (many[few > 0] == few[few > 0]).all()
        assert (many > 0).sum() == 20
        assert (
            columns(devices=101, arrivals={"kind": "poisson", "rate": "30 /h"}).arrival > 0
        ).sum() == 50

    def test_a_schedule(self) -> None:
        schedule = {"kind": "schedule", "times": ["1 h", "90 s"], "devices": [3, 1]}
        assert columns(devices=4, arrivals=schedule).arrival.tolist() == [0.0, 90.0, 0.0, 3600.0]
        assert columns(devices=4, departures=schedule).departure.tolist() == [
            INF,
            90.0,
            INF,
            3600.0,
        ]


class TestDepartures:
    def test_stays_are_exponential_and_counted_from_the_arrival(self) -> None:
        come, leave = (
            {"kind": "poisson", "rate": "1 /s"},
            {"kind": "exponential", "mean_stay": "10 h"},
        )
        built = columns(devices=20_000, arrivals=come, departures=leave)
        stay = built.departure - built.arrival
        assert stay.min() > 0
        assert all(
            time == on_grid(time) for time in [*built.arrival.tolist(), *built.departure.tolist()]
        )
        for some in (stay[built.arrival > 0], stay[built.arrival == 0]):
            assert some.mean() == pytest.approx(36_000, rel=0.04)
            assert some.std() == pytest.approx(36_000, rel=0.06)

    def test_a_larger_share_is_the_same_leavers_and_more(self) -> None:
        few, many = (
            columns(
                devices=40, departures={"kind": "exponential", "mean_stay": "1 h", "share": share}
            ).departure
            for share in (0.25, 0.5)
        )
        assert ((few < INF).sum(), (many < INF).sum()) == (10, 20)
        assert (many[few < INF] == few[few < INF]).all()


@pytest.mark.parametrize("leave", ["20 s", "5 s"])
def test_a_departure_before_the_arrival_or_with_it_is_refused(leave: str) -> None:
    come = {"kind": "schedule", "times": ["20 s"], "devices": [2]}
    message = f"device 2 leaves at {leave} but arrives at 20 s; allowed are times after its arrival"
    with pytest.raises(ScenarioError, match=message):
        columns(
            devices=3,
            arrivals=come,
            departures={"kind": "schedule", "times": [leave], "devices": [2]},
        )


HORIZON = 60
"""From then on (s) a path only repeats: lifetimes have begun, and ended if they ever do; a
trace's period is at most 12 s.
"""


@st.composite
def traces(draw: st.DrawFn) -> Callable[[], Availability]:
    """A path that changes at whole seconds only, so that the states at whole seconds say all;
    maybe never on, or always.
    """
    if draw(st.integers(0, 9)) == 0:
        return AlwaysOn
    period = draw(st.integers(1, 12))
    changes = sorted(draw(st.sets(st.integers(0, period))))
    changes = changes[: len(changes) // 2 * 2]
    return lambda: Traces([(float(period), [float(change) for change in changes])], [0])


class TestBounded:
    @settings(max_examples=150)
    @given(
        path=traces(),
        arrival=st.integers(0, 30),
        stay=st.one_of(st.integers(1, 30), st.just(INF)),
        questions=st.lists(
            st.integers(0, 4 * HORIZON).map(lambda quarter: quarter / 4), min_size=1, max_size=12
        ),
    )
    def test_it_is_the_pointwise_definition(
        self, path: Callable[[], Availability], arrival: int, stay: float, questions: list[float]
    ) -> None:
        """On where arrived, not left, and on within; a span is a stretch of one state, the next
        time on the first of them.
        """
        departure = arrival + stay
        on = [
            arrival <= time < departure and path().span(0, float(time)).on
            for time in range(2 * HORIZON)
        ]
        lived = Bounded(path(), np.array([float(arrival)]), np.array([float(departure)]))
        for time in questions:
            span = lived.span(0, time)
            assert span.start <= time < span.end
            assert span.on == on[math.floor(time)]
            last = min(span.end, 2 * HORIZON)
            assert {on[second] for second in range(math.floor(span.start), math.ceil(last))} == {
                span.on
            }
            # it is off at the end: who waits for it is not told too early
            if span.on and span.end < 2 * HORIZON:
                assert not on[math.floor(span.end)]
            later = [
                float(second) for second in range(math.floor(time) + 1, 2 * HORIZON) if on[second]
            ]
            expected = time if span.on else min(later, default=INF)
            assert lived.next_on(0, time) == expected
            assert lived.on(np.array([0]), time).tolist() == [span.on]

    def test_who_is_always_there_costs_nothing(self) -> None:
        path = AlwaysOn()
        lives = ([0.0, 0.0], [INF, INF]), ([0.0, 1.0], [INF, INF]), ([0.0, 0.0], [INF, 1.0])
        assert [bounded(path, *map(np.array, each)) is path for each in lives] == [
            True,
            False,
            False,
        ]


class Site:
    """A bare clock with lifetimes; who was told, and what was recorded."""

    def __init__(
        self,
        arrival: list[float],
        departure: list[float] | None = None,
        path: Availability | None = None,
    ) -> None:
        self.simulation = simulation = Simulation()
        self.lives = (
            np.array(arrival),
            np.array([INF] * len(arrival) if departure is None else departure),
        )
        self.told: list[tuple[float, int]] = []
        self.records: list[tuple[float, str, int]] = []
        simulation.listen(
            lambda record: self.records.append((record.time, record.kind, record.fields["device"]))
        )
        self.availability = bounded(AlwaysOn() if path is None else path, *self.lives)
        self.lifetimes = Lifetimes(
            simulation,
            *self.lives,
            self.availability,
            lambda device: self.told.append((simulation.now, device)),
        )

    def run(self) -> None:
        asyncio.run(self.simulation.run())


class TestLifetimes:
    @settings(max_examples=60)
    @given(
        st.lists(
            st.tuples(st.integers(0, 9), st.integers(1, 9) | st.just(INF)), min_size=1, max_size=12
        ),
        st.booleans(),
    )
    def test_everybody_is_told_of_once_at_the_first_instant_at_which_it_can_be_reached(
        self, lives: list[tuple[int, float]], always: bool
    ) -> None:
        path = (
            None
            if always
            else Traces(
                [(9.0, [2.0, 4.0]), (7.0, [0.0, 3.0])], [device % 2 for device in range(len(lives))]
            )
        )
        site = Site(
            [float(come) for come, _ in lives], [float(come + stay) for come, stay in lives], path
        )
        site.run()
        reached = [
            (site.availability.next_on(device, 0.0), device)
            for device, (come, _) in enumerate(lives)
            if come
        ]
        assert site.told == sorted((time, device) for time, device in reached if time < INF)
        assert [time for time, _, _ in site.records] == sorted(time for time, _, _ in site.records)
        for kind, times in zip(("arrival", "departure"), site.lives, strict=True):
            told = [(time, device) for time, which, device in site.records if which == kind]
            assert told == sorted(
                (time, device) for device, time in enumerate(times) if 0 < time < INF
            )

    def test_two_wakeups_at_most_however_many_are_to_come(self) -> None:
        devices = 200_000
        site = Site([0.0, *range(1, devices)], [float(devices)] * devices)
        assert sorted(event.name for event in site.simulation.env.alarms()) == [
            ("arrival", 0),
            ("departure", 0),
        ]
        site.simulation.wake(("stop", 0), 3.0, lambda: site.simulation.stop("enough"))
        site.run()
        assert sorted(event.name for event in site.simulation.env.alarms()) == [
            ("arrival", 3),
            ("departure", 0),
        ]
        assert site.told == [(1.0, 1), (2.0, 2), (3.0, 3)]

    def test_present(self) -> None:
        assert not list(Site([0.0, 0.0]).simulation.env.alarms())
        lifetimes = Site([0.0, 5.0], [8.0, INF]).lifetimes
        assert [lifetimes.present(time).tolist() for time in (4.9, 5.0, 8.0)] == [
            [True, False],
            [True, True],
            [False, True],
        ]
