"""Batteries: levels by hand, the instant at which one is flat, who is off for how long, and
books that balance.
"""

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.clock.simulation import TICK_S, Simulation
from fedsim.common.streams import Streams
from fedsim.common.training import Training
from fedsim.toolbox.worlds.availability import Diurnal
from fedsim.world.availability import AlwaysOn, Availability
from fedsim.world.batteries import Batteries, Powered
from fedsim.world.calendar import CalendarSpec
from fedsim.world.charging import Charging, ChargingModel, Daily, Never, RenewalCharging
from fedsim.world.network import Star
from fedsim.world.network.protocol import Fluid, Transport
from fedsim.world.phases import Span
from fedsim.world.population import Population
from fedsim.world.steps import Download, Payload, Train, Upload
from tests.benchmarks import batteries
from tests.world.sites import WorkSite

HOUR, DAY = 3600.0, 86_400.0
DRAWS = {
    "idle_w": 0.5,
    "compute_w": 3.0,
    "receive_w": 1.0,
    "send_w": 2.0,
    "receive_j_byte": 0.01,
    "send_j_byte": 0.02,
}
DRAWS |= {"tail_w": 0.5, "tail_s": 3.0, "capacity_j": 1000.0, "charge_w": 0.0}


def level(batteries: Batteries, device: int) -> float:
    """What a battery holds now (J)."""
    return batteries.charge(device) * batteries._columns["capacity_j"].item(device)


class Site(WorkSite):
    """Two devices: 100 B/s down, 50 B/s up; device 0 takes 10 s an epoch, device 1 15 s.

    ``up`` is what the server's link carries from both (bytes/s), ``header`` are bytes on the wire
    beside each of payload, and ``draws`` replace ``DRAWS``; ``initial_j`` is the capacity if
    nothing else is said.
    """

    def __init__(
        self,
        charging: ChargingModel | None = None,
        up: float = math.inf,
        restart: float = 0.1,
        within: Availability | None = None,
        header: float = 0.0,
        **draws: float,
    ) -> None:
        simulation = Simulation()
        population = Population(
            np.full(2, 10.0), np.array([100, 150]), 1.0, np.zeros(2), np.full(2, np.inf)
        )
        transport = Transport(
            Fluid.model_validate({"segment": "1 B", "header": f"{header} B"}), Streams(1)
        )
        network = Star(
            simulation, np.full(2, 100.0), np.full(2, 50.0), np.zeros(2), math.inf, up, transport
        )
        values = DRAWS | draws
        columns = {
            name: np.full(2, value)
            for name, value in ({"initial_j": values["capacity_j"]} | values).items()
        }
        within = AlwaysOn() if within is None else within
        path: Charging = (charging or Never()).build(Streams(5), 2, 0.0, None)
        self.batteries = Batteries(simulation, columns, restart, path, np.zeros(2))
        super().__init__(network, population, Powered(within, self.batteries), self.batteries)
        simulation.at_end(self.batteries.close)

    def told(self, device: int = 0) -> list[tuple[float, dict[str, Any]]]:
        return [
            (r.time, r.fields)
            for r in self.records
            if r.kind == "battery" and r.fields["device"] == device
        ]


def model(size: float) -> Download:
    return Download((Payload("model", size),))


def update(size: float) -> Upload:
    return Upload((Payload("update", size),))


def train(epochs: int) -> Train:
    return Train(Training("model", epochs))


def test_a_device_with_1000_j_ends_at_the_right_instant() -> None:
    """Receiving 4 s takes 4 (1 + 0.5) + 4 J; then 3 s at 4 W with the tail, and 978 J at 3.5 W."""
    site = Site()
    site.start(model(400.0), train(1000))
    site.run()
    assert site.steps() == [
        ("download", 4.0, "done", 400.0),
        ("train", pytest.approx(7 + 978 / 3.5, abs=TICK_S), "battery", 28),
    ]
    (time, last) = site.told()[-1]
    assert (time, last["level"], last["flat"]) == (site.steps()[-1][1], 0.0, True)
    assert last["drawn"] == pytest.approx(8 + 1.5 + 3 * (time - 4), rel=1e-12)
    assert site.ended[0].outcome == "battery"
    assert not site.tasks.is_idle(0)
    assert site.availability.next_on(0, time) == math.inf


def test_completion_wins_a_tie_and_the_next_step_ends_at_once() -> None:
    site = Site(capacity_j=7 * 10.0 + 3.5 * 10, idle_w=0.5, tail_s=0.0, compute_w=10.0)
    site.start(train(1), update(100.0))
    site.run()
    assert site.steps() == [("train", 10.0, "done", 1), ("upload", 10.0, "battery", 0.0)]


@pytest.mark.parametrize(
    ("joules", "header", "rate", "watts"),
    [(10, 0.0, 50.0, 3.5), (10, 0.25, 40.0, 3.3), (300, 0, 50, 3.5)],
)
def test_bytes_are_drawn_as_they_move(
    joules: float, header: float, rate: float, watts: float
) -> None:
    """50 bytes/s on the wire, 0.02 J for each of payload, 2 W and idle. 300 J hold more than the
    bytes alone take.
    """
    site = Site(capacity_j=float(joules), header=header)
    site.start(update(1000.0 if joules < 300 else 10_000.0))
    site.run()
    ((_, time, outcome, delivered),) = site.steps()
    assert (outcome, time) == ("battery", pytest.approx(joules / watts, abs=TICK_S))
    assert delivered == pytest.approx(rate * joules / watts, rel=1e-9)


def test_what_others_send_changes_how_long_a_battery_lasts() -> None:
    """Alone at 50 bytes/s (3.5 W); from 1 s on two share 50 (3 W); from 2 s on both are at 25
    until device 1 is flat too.
    """
    site = Site(up=50.0, capacity_j=10.0)
    site.start(update(1000.0))
    site.start(update(20.0), device=1, at=1.0)
    site.run()
    # 3.5 J in the first second; at 25 bytes/s each, device 1 has sent its 20 bytes after 0.8 s: 2.4
    # J; then 3.5 W again.
    assert site.steps()[0][1:3] == (
        pytest.approx(1.8 + (10 - 3.5 - 2.4) / 3.5, abs=2 * TICK_S),
        "battery",
    )
    assert site.steps()[0][3] == pytest.approx(50 + 20 + 50 * (10 - 3.5 - 2.4) / 3.5, rel=1e-9)
    assert site.steps(1)[0][1:3] == (pytest.approx(1.8, abs=TICK_S), "done")


def test_a_tail_drains_and_is_cut_short_by_the_next_transfer() -> None:
    site = Site()
    site.start(model(100.0), update(50.0))
    site.start(model(100.0), at=4.0)
    site.run(20.0)
    # 1 s down, 1 s up, 2 s of tail, 1 s down, 3 s of tail; idle all the time.
    last = site.told()[-1][1]
    assert last["drawn"] == pytest.approx(2 + 3 + 1 + 2 + 1.5, rel=1e-12)
    assert last["idle"] == pytest.approx(10.0, rel=1e-12)
    assert last["level"] == pytest.approx(1000 - 9.5 - 10, rel=1e-12)


def test_a_tail_ends_where_the_battery_is_flat() -> None:
    """9 J at 1 s, at 7 W net into a tail of 10 s; at 1 J the device goes on, still within these
    10 s, with its radio asleep.
    """
    site = Site(
        day("0 h", "24 h"),
        capacity_j=10.0,
        restart=0.1,
        charge_w=1.0,
        idle_w=0.0,
        tail_w=8.0,
        tail_s=10.0,
    )
    site.start(model(100.0))
    site.run(5.0)
    (flat, at_flat), (_, last) = site.told()[-2:]
    assert (flat, at_flat["flat"]) == (pytest.approx(1 + 9 / 7, abs=TICK_S), True)
    assert last["level"] == pytest.approx(5.0 - flat, abs=1e-6)
    assert last["drawn"] == pytest.approx(2.0 + 8.0 * 9 / 7, abs=1e-6)


def day(begins: str, lasts: str, chance: float = 1.0) -> Daily:
    return Daily.model_validate({"begins": begins, "lasts": lasts, "chance": chance})


def ask_anyway(site: Site, at: float, *steps: Any) -> None:
    """Give the first device a task at a time (s), whether or not it can be reached."""
    site.simulation.wake(("ask", 0), at, lambda: site.tasks.start(0, steps, 0, None))


def now_and_then(mean_s: float) -> RenewalCharging:
    return RenewalCharging.model_validate({"mean_on": f"{mean_s} s", "mean_off": f"{mean_s} s"})


def test_a_day_by_hand() -> None:
    """From midnight on 1,000 J at 0.05 W; plugged in from 1 h to 2 h with 0.2 W; full at the end
    of the second charge.
    """
    site = Site(day("1 h", "1 h"), capacity_j=1200.0, initial_j=1000.0, idle_w=0.05, charge_w=0.2)
    levels: list[float] = []
    for hour in (0.5, 1, 1.5, 2, 5, 24, 25.5, 26):
        site.simulation.wake(
            ("look", 0), hour * HOUR, lambda: levels.append(level(site.batteries, 0))
        )
    site.run()
    # At 2 h it would be 1,360: full after 0.704 h. Flat 6 h 40 min after that; off until the
    # charger comes at 25 h, and on at 120 J, after 10 min; then 0.15 W until 26 h.
    assert levels[:5] == pytest.approx([910, 820, 820 + 270, 1200, 1200 - 540], rel=1e-12)
    assert levels[5:] == [
        0.0,
        pytest.approx(120 + 0.15 * 1200, rel=1e-9),
        pytest.approx(120 + 0.15 * 3000, rel=1e-9),
    ]


def test_days_follow_each_other_beyond_the_clocks_exact_time() -> None:
    """A time that lay on the end of a day once found the same day again from 97 days on: a run
    went on for ever.
    """
    for begins in (0.1, 7.77, 13.3):
        spans = day(f"{begins} h", "6.7 h", 0.9).build(Streams(1), 1, 0.0, None)
        time = 96 * 24 * HOUR
        while time < 800 * 24 * HOUR:
            found = spans.span(0, time)
            assert found.start <= time < found.end <= time + 24 * HOUR
            time = found.end


def test_off_until_charged() -> None:
    site = Site(day("1 h", "1 h"), capacity_j=1200.0, initial_j=100.0, idle_w=0.05, charge_w=0.2)
    assert site.availability.next_on(0, 0.0) == 0.0
    site.run(0.6 * HOUR)  # flat after 2,000 s
    both = np.arange(2)
    assert not site.tasks.is_idle(0)
    assert not site.availability.on(both, site.simulation.now).any()
    back = HOUR + 120 / 0.2
    assert site.availability.next_on(0, site.simulation.now) == pytest.approx(back, abs=TICK_S)
    assert site.availability.span(0, site.simulation.now) == Span(
        False, site.simulation.now, pytest.approx(back, abs=TICK_S)
    )
    assert not site.availability.on(both, back - 1).any()
    assert site.availability.on(both, back + 1).all()


def test_flat_for_good_where_there_are_days() -> None:
    """Nobody asks a path when it is on after the end of time."""
    tides = Diurnal(most=1.0, least=0.5, peak="02:00").build_on(
        Streams(1), 2, None, CalendarSpec().build(Streams(1), 2, None)
    )
    site = Site(within=tides, capacity_j=1.0)
    site.start(train(1))
    site.run()
    assert site.steps()[0][2] == "battery"
    assert site.availability.next_on(0, site.simulation.now) == math.inf


def test_charging_patterns() -> None:
    reach = now_and_then(10.0).build(Streams(1), 2, 0.0, None)
    assert not Never().build(Streams(1), 2, 0.0, None).span(0, 0.0).on
    assert reach.span(0, 0.0) == now_and_then(10.0).build(Streams(1), 2, 9.0, None).span(0, 0.0)
    # the run begins at 7 in the morning
    night = day("22 h", "10 h").build(Streams(1), 2, 7 * HOUR, None)
    assert night.span(0, 0.0) == Span(True, -9 * HOUR, HOUR)
    assert night.span(0, HOUR) == Span(False, HOUR, 15 * HOUR)
    assert night.span(0, 15 * HOUR) == Span(True, 15 * HOUR, 25 * HOUR)
    some = day("0 h", "24 h", 0.25).build(Streams(1), 1000, 0.0, None)
    assert 200 < sum(some.span(device, 5 * HOUR).on for device in range(1000)) < 300
    assert 1 < sum(some.span(7, count * DAY).on for count in range(20)) < 12


asked = st.tuples(
    st.integers(0, 1),
    st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    st.integers(1, 3),
    st.integers(0, 400),
)


@settings(max_examples=50, deadline=None)
@given(
    tasks=st.lists(asked, min_size=1, max_size=8),
    capacity=st.floats(3.0, 200.0),
    charge=st.sampled_from([0.0, 1.0, 5.0]),
    looks=st.lists(st.floats(0.0, 100.0), max_size=5),
    header=st.sampled_from([0.0, 0.3]),
    tail_w=st.sampled_from([0.0, 0.5]),
)
def test_never_below_zero_and_the_books_balance(
    tasks: list[tuple[int, float, int, int]],
    capacity: float,
    charge: float,
    looks: list[float],
    header: float,
    tail_w: float,
) -> None:
    """Whatever is asked: 0 <= level <= capacity, and what is there is what was there, was
    charged, and was not drawn.

    Looking changes nothing: at any time, at each breakpoint, and a tick before and after it.
    """

    seen: list[tuple[list[Any], list[Any]]] = []

    def look_at(site: Site) -> list[Any]:
        """All that can be read, all devices at once and one by one."""
        now, batteries = site.simulation.now, site.batteries
        both = [
            batteries.up(np.arange(2), now).tolist(),
            [batteries.next_up(device, now) <= now for device in (0, 1)],
        ]
        assert both[0] == both[1]
        later = [batteries.next_up(device, now + 5.0) for device in (0, 1)]
        return [
            *both,
            later,
            level(batteries, 0),
            level(batteries, 1),
            batteries.phase_at(0, now / 2),
            batteries.phase_at(1, now / 2),
        ]

    def play(looks: list[float]) -> Site:
        pattern = now_and_then(8.0)
        draws = {"capacity_j": capacity, "charge_w": charge, "tail_s": 1.5, "tail_w": tail_w}
        site = Site(pattern, up=60.0, restart=0.3, header=header, **draws)

        time = 0.0
        for device, gap, epochs, size in tasks:
            time += gap
            site.start(
                model(float(size)), train(epochs), update(float(size)), device=device, at=time
            )
        for look in looks:
            site.simulation.wake(
                ("look", 0), look, lambda: seen.append((look_at(site), look_at(site)))
            )
        site.run(100.0)
        return site

    site = play([])
    for device in (0, 1):
        for _, told in site.told(device):
            assert 0 <= told["level"] <= capacity
            assert all(0 <= level <= capacity for _, level in told["path"])
            assert told["level"] == pytest.approx(
                capacity + told["charged"] - told["idle"] - told["drawn"], abs=1e-6
            )
            assert told["drawn"] >= 0
        times = [at for _, told in site.told(device) for at, _ in told["path"]]
        assert times == sorted(times)
    breakpoints = {
        at for record in site.records for at in (record.time, *dict(record.fields.get("path", ())))
    }
    looks += [
        when
        for at in sorted(breakpoints)
        for when in (at - TICK_S, at, at + TICK_S)
        if 0 <= when <= 100
    ]
    assert play(looks).records == site.records, "who asks has changed what happens"
    assert all(one == other for one, other in seen)


def test_a_flat_battery_that_charges_keeps_its_charge_when_its_device_is_asked() -> None:
    """Flat from the start, charged at 4 W from 1 s on, asked at 2 s: 4 J then, on again at 5 J,
    trained at 6 s.
    """
    site = Site(
        day("1 s", "23 h"),
        capacity_j=10.0,
        initial_j=0.0,
        restart=0.5,
        charge_w=4.0,
        idle_w=0.0,
        tail_s=0.0,
    )
    ask_anyway(site, 2.0, model(100.0), train(1))
    ask_anyway(site, 6.0, train(1))
    site.run(20.0)
    assert site.steps() == [("download", 2.0, "lost", 0.0), ("train", 16.0, "done", 1)]
    assert [(time, told["level"], told["flat"]) for time, told in site.told()] == [
        (2.0, 4.0, True),
        (2.0, 4.0, True),
        (6.0, 10.0, False),
        (16.0, 10.0, False),
        (20.0, 10.0, False),
    ]


def test_a_battery_that_runs_flat_holds_nothing() -> None:
    """A charger gives less than a message draws; the level at which it is flat is 0, not 1e-18."""
    levels = []
    for number in range(1, 60):
        rates = {"charge_w": 0.013 * number, "receive_w": 0.7 * number, "idle_w": 0.003 * number}
        site = Site(day("0 s", "23 h"), capacity_j=3.3, receive_j_byte=0.0101, **rates)
        ask_anyway(site, 0.3, model(10000.0))
        site.run(200.0)
        levels += [told["level"] for _, told in site.told() if told["flat"]]
    assert len(levels) > 20
    assert set(levels) == {0.0}


@pytest.mark.parametrize("asked_again", [False, True])
def test_the_radio_of_a_flat_device_sleeps(asked_again: bool) -> None:
    """Flat as a message ends at 4 s; a charger gives 1 W from 4.5 s to 8 s, and no tail of 3 s
    takes any of it.
    """
    rates = {"charge_w": 1.0, "idle_w": 0.0, "receive_w": 1.25, "receive_j_byte": 0.0}
    site = Site(day("4.5 s", "23 h"), capacity_j=5.0, restart=0.2, **rates)
    ask_anyway(site, 0.0, model(400.0))
    if asked_again:
        ask_anyway(site, 5.0, model(100.0))
    site.run(8.0)
    assert site.told()[-1][1]["level"] == 3.5


@pytest.mark.parametrize("number", range(40))
def test_a_battery_is_what_its_book_says(number: int) -> None:
    assert not list(batteries.site_faults(batteries.drawn_site(random.Random(f"test/{number}"))))


@pytest.mark.parametrize("number", range(2))
def test_a_run_with_batteries_passes_its_audit(number: int) -> None:
    assert not list(batteries.run_faults(batteries.drawn_run(random.Random(f"test/{number}"))))


def test_cata_fed_that_asks_flat_devices_on_chargers_passes_its_audit() -> None:
    charging = {"kind": "renewal", "mean_on": "20 s", "mean_off": "20 s"}
    sections = {
        "seed": 38,
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 kB"},
        "population": {
            "devices": 8,
            "speed": {"kind": "lognormal", "median": "36 samples/s", "spread": 2.0},
            "samples": {"low": 100, "high": 400},
        },
        "strategy": {
            "kind": "cata-fed",
            "clients_per_round": 6,
            "clusters": 2,
            "deadline": "10 s",
            "rejoin": True,
        },
        "energy": {
            "idle": "1 W",
            "compute": "8 W",
            "battery": {"capacity": "60 J", "charge": "4 W", "charging": charging},
        },
        "stop": {"rounds": 20, "simulated_time": "20 min"},
    }
    assert not list(batteries.run_faults(sections))
