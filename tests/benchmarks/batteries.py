"""Batteries in random worlds, against an audit and against a book that is kept without the
engine. By hand:

    python -m tests.benchmarks.batteries                  # 300 sites and 300 runs
    python -m tests.benchmarks.batteries --sites 0 --runs 50 --seed 7

A *site* is one device whose tasks, charger and phases of reach change at whole and half seconds, so
that they coincide: a task for a flat device, with or without a charger, a battery that is full,
flat or restarts as a step ends. Its level is computed again, from breakpoint to breakpoint, by
``Book``, which shares no code with ``world.batteries``. A *run* is a whole scenario of a
drawn strategy with batteries and chargers; it must pass its audit, and its levels what ``books``
checks. Exit status 1 if anything differs.
"""

import json
import random
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import fedsim
from fedsim.clock.environment import CUT
from fedsim.clock.simulation import TICK_S, Record, Simulation
from fedsim.common.training import Training
from fedsim.lab.audit import audit
from fedsim.records.reading import RunFolder
from fedsim.testing import run
from fedsim.world.batteries import Batteries, Powered
from fedsim.world.network import Star
from fedsim.world.phases import Span
from fedsim.world.population import Population
from fedsim.world.steps import Download, Payload, TaskStep, Train, Upload
from tests.benchmarks.script import parser
from tests.world.sites import WorkSite

SLACK_J = 1e-5  # a breakpoint lies on a tick, a nanosecond, at some hundred watts
_END_S = 60.0
Sections = dict[str, Any]


class Turns(NamedTuple):
    """Alternating phases of one device, which change at ``changes`` (s)."""

    first: bool
    changes: tuple[float, ...]

    def span(self, device: int, time: float) -> Span:
        """The phase at a time (s)."""
        passed = sum(change <= time for change in self.changes)
        edges = (0.0, *self.changes, inf)
        return Span(self.first != bool(passed % 2), edges[passed], edges[passed + 1])

    def next_on(self, device: int, time: float) -> float:
        """The first time (s) from ``time`` on in an on phase."""
        phase = self.span(device, time)
        return time if phase.on else phase.end

    def on(self, devices: Any, time: float) -> Any:
        """Whether devices are in an on phase; bool [len(devices)]."""
        return np.full(len(devices), self.span(0, time).on)


class Site(NamedTuple):
    """One device: its draws (W, J, s), when it is plugged in and within reach, and its tasks
    with their times (s).
    """

    draws: Mapping[str, float]
    restart: float
    charging: Turns
    reach: Turns
    tasks: tuple[tuple[float, tuple[TaskStep, ...]], ...]


def drawn_site(draw: random.Random) -> Site:
    """A site whose times are multiples of half a second, and whose powers are small numbers."""

    def path() -> Turns:
        changes = sorted(draw.sample(range(1, 120), draw.randint(0, 8)))
        return Turns(draw.random() < 0.6, tuple(change / 2 for change in changes))

    capacity = draw.choice([2.0, 5.0, 10.0, 20.0, 50.0])
    draws = {
        "capacity_j": capacity,
        "initial_j": capacity * draw.choice([0.0, 0.0, 0.1, 0.5, 1.0, 1.0]),
        "charge_w": draw.choice([0.0, 0.5, 1.0, 2.0, 4.0, 8.0]),
        "idle_w": draw.choice([0.0, 0.5, 1.0, 2.0]),
        "compute_w": draw.choice([0.0, 1.0, 3.0, 4.0]),
        "receive_w": draw.choice([0.0, 1.0, 2.0]),
        "send_w": draw.choice([0.0, 1.0, 2.0]),
        "receive_j_byte": draw.choice([0.0, 0.01, 0.02]),
        "send_j_byte": draw.choice([0.0, 0.01, 0.04]),
        "tail_w": draw.choice([0.0, 0.5, 1.0]),
        "tail_s": draw.choice([0.0, 1.0, 3.0]),
    }
    tasks = []
    for _ in range(draw.randint(1, 10)):
        size = draw.choice([0.0, 50.0, 100.0, 250.0])
        steps: list[TaskStep] = [
            Download((Payload("model", size),)),
            Train(Training("model", draw.randint(1, 4))),
            Upload((Payload("update", size),)),
        ]
        tasks.append((draw.randint(0, 110) / 2, tuple(steps[draw.randint(0, 2) :])))
    reach = path() if draw.random() < 0.5 else Turns(True, ())
    return Site(
        draws,
        draw.choice([0.001, 0.1, 0.5, 1.0]),
        path(),
        reach,
        tuple(sorted(tasks, key=lambda task: task[0])),
    )


class _Plant(WorkSite):
    """A device at 100 bytes/s down and 50 bytes/s up that takes 2 s an epoch; it is asked
    whether or not it can be reached.
    """

    def __init__(self, site: Site) -> None:
        simulation = Simulation()
        population = Population(np.full(1, 10.0), np.array([20]), 1.0, np.zeros(1), np.full(1, inf))
        network = Star(simulation, np.full(1, 100.0), np.full(1, 50.0), np.zeros(1), inf, inf)
        columns = {name: np.full(1, value) for name, value in site.draws.items()}
        self.batteries = Batteries(simulation, columns, site.restart, site.charging, np.zeros(1))
        super().__init__(network, population, Powered(site.reach, self.batteries), self.batteries)
        simulation.at_end(self.batteries.close)
        simulation.wake(("end", 0), _END_S - 1.0, lambda: self.tasks.end_all("stopped"), CUT)
        for at, steps in site.tasks:
            simulation.wake(("ask", 0), at, lambda steps=steps: self._ask(steps))  # type: ignore[misc]

    def _ask(self, steps: tuple[TaskStep, ...]) -> None:
        if not self.tasks.running:
            self.tasks.start(0, steps, 0, None)


class Book:
    """The level of one battery from slice to slice of time; ``flats`` and ``restarts`` have
    their times (s).

    ``charged``, ``idle`` and ``drawn`` are joules so far. In a slice all powers are the same.
    """

    def __init__(self, site: Site) -> None:
        self._draws, self._restart = site.draws, site.restart * site.draws["capacity_j"]
        self.time = 0.0
        self.level = site.draws["initial_j"]
        self.flat = self.level <= 0.0
        self.charged = self.idle = self.drawn = 0.0
        self._awake = False
        self.flats: list[float] = []
        self.restarts: list[float] = []

    def slice(self, until: float, charger: bool, task_w: float, tail: bool) -> None:
        """Go on to ``until`` (s) with a ``charger`` or without; ``task_w`` is drawn beyond idle,
        and a radio's ``tail``.

        The radio of a device that has run flat within a tail stays asleep.
        """
        while self.time < until - 1e-12:
            charge = self._draws["charge_w"] if charger else 0.0
            idle, task, target = self._draws["idle_w"], task_w, 0.0
            if tail and self._awake:
                task += self._draws["tail_w"]
            if self.flat:
                idle = task = 0.0
                target = self._restart
            net = charge - idle - task
            if not self.flat and net > 0:
                target = self._draws["capacity_j"]
            if net > 0 and not self.flat and self.level >= target - 1e-12:
                charge, net = idle + task, 0.0
            turn = (
                round((self.time + (target - self.level) / net) / TICK_S) * TICK_S if net else inf
            )
            seconds = min(until, max(turn, self.time + TICK_S)) - self.time
            self.time += seconds
            self.level += net * seconds
            self.charged += charge * seconds
            self.idle += idle * seconds
            self.drawn += task * seconds
            if turn <= self.time:
                self._turn(target)

    def wake(self) -> None:
        """The radio begins a tail, unless its device is flat."""
        self._awake = not self.flat

    def run_flat(self) -> None:
        """A step has ended by the battery: it is flat now, if it is within a tick."""
        if not self.flat and self.level < SLACK_J:
            self._turn(0.0)

    def _turn(self, target: float) -> None:
        self.level = target
        if self.flat:
            self.flat = False
            self.restarts.append(self.time)
        elif target == 0.0:
            self.flat = True
            self._awake = False
            self.flats.append(self.time)


Interval = tuple[float, float, float]
"""Start (s), end (s) and power (W)."""


def _task_watts(site: Site, records: list[Record]) -> tuple[list[Interval], list[Interval]]:
    """Intervals in which steps draw beyond idle, their bytes evenly, and those in which the
    radio stays awake after one.
    """
    phases = {"download": "receive", "train": "compute", "upload": "send"}
    intervals: list[Interval] = []
    tails: list[Interval] = []
    begun = 0.0
    for record in records:
        step = record.fields.get("step", "")
        moves = step in ("download", "upload")
        if record.kind == "step-start":
            begun = record.time
            if moves and tails:
                start, end, watts = tails.pop()
                tails.append((start, min(end, begun), watts))
        elif record.kind == "step-end":
            seconds, watts = record.time - begun, site.draws[f"{phases[step]}_w"]
            if moves and seconds:
                watts += record.fields["delivered"] * site.draws[f"{phases[step]}_j_byte"] / seconds
            intervals.append((begun, record.time, watts))
            if moves:
                tails.append(
                    (record.time, record.time + site.draws["tail_s"], site.draws["tail_w"])
                )
    return intervals, tails


def _at(intervals: list[Interval], time: float) -> Interval | None:
    """The interval that holds a time (s)."""
    return next((interval for interval in intervals if interval[0] <= time < interval[1]), None)


def site_faults(site: Site) -> Iterator[str]:
    """What the engine says of a site and the book does not."""
    plant = _Plant(site)
    plant.run(_END_S)
    intervals, tails = _task_watts(site, plant.records)
    times = {time for start, end, _ in (*intervals, *tails) for time in (start, end)} | {
        *site.charging.changes,
        _END_S,
    }
    reports = [record for record in plant.records if record.kind == "battery"]
    times |= {record.time for record in reports}
    cut_off = {record.time for record in plant.records if record.fields.get("outcome") == "battery"}
    book, left = Book(site), list(reports)
    for start, end in pairwise(sorted({0.0, *(time for time in times if time <= _END_S)})):
        while left and left[0].time <= start:
            yield from _differing(book, left.pop(0))
        step, tail = _at(intervals, start), _at(tails, start)
        watts = 0.0 if step is None else step[2]
        if tail is not None and tail[0] == start:
            book.wake()
        book.slice(end, site.charging.span(0, start).on, watts, tail is not None)
        if end in cut_off:
            book.run_flat()
    for report in left:
        yield from _differing(book, report)
    yield from _outcomes(site, book, plant.records)


def _differing(book: Book, report: Record) -> Iterator[str]:
    fields = report.fields
    for name, due in {
        "level": book.level,
        "charged": book.charged,
        "idle": book.idle,
        "drawn": book.drawn,
    }.items():
        if abs(fields[name] - due) > SLACK_J:
            yield f"at {report.time} s {name} is {fields[name]}, by the book {due}"
    turned = [*book.flats, *book.restarts]
    in_turn = book.level < SLACK_J or any(abs(report.time - time) <= 4 * TICK_S for time in turned)
    if fields["flat"] != book.flat and not in_turn:
        yield f"at {report.time} s flat is {fields['flat']}, by the book {book.flat}"


def _outcomes(site: Site, book: Book, records: list[Record]) -> Iterator[str]:
    """A step ends by its battery if and only if it runs flat then."""
    for record in records:
        if record.kind == "step-end":
            runs_flat = any(abs(record.time - time) <= 4 * TICK_S for time in book.flats)
            if record.fields["outcome"] == "battery" and not runs_flat:
                yield (
                    f"a step ended by the battery at {record.time} s, which ran flat at "
                    f"{book.flats}"
                )


# Whole runs.

_OFF: dict[str, Sections] = {
    "fedavg": {"clients_per_round": 5, "local_epochs": 2, "deadline": "30 s"},
    "cata-fed": {
        "clients_per_round": 5,
        "clusters": 2,
        "deadline": "10 s",
        "smallest_part": 10,
        "rejoin": True,
    },
    "fedasync": {"concurrency": 4},
    "fedbuff": {"concurrency": 4, "buffer": 2},
    "fedat": {"clients_per_round": 2, "tiers": 2},
    "refl": {"clients_per_round": 3, "over_selection": 1.5, "deadline": "20 s"},
    "tifl": {"clients_per_round": 2, "tiers": 2, "deadline": "30 s"},
    "hierfavg": {"clients_per_round": 4, "kappa2": 2, "deadline": "40 s"},
    "local": {"clients_per_round": 4},
    "scaffold": {"clients_per_round": 4, "deadline": "30 s"},
}


def drawn_run(draw: random.Random) -> Sections:
    """A scenario with batteries, chargers in most, and whatever else moves a battery."""
    kind = draw.choice(sorted(_OFF))
    charging: list[Any] = [
        {"kind": "renewal", "mean_on": "20 s", "mean_off": "20 s"},
        {"kind": "renewal", "mean_on": "2 s", "mean_off": "5 s"},
        {"kind": "daily", "begins": "1 min", "lasts": "2 min"},
        {"kind": "daily", "begins": "0 s", "lasts": "24 h"},
        "never",
    ]
    battery: Sections = {
        "capacity": draw.choice(
            ["20 J", "60 J", {"kind": "uniform", "low": "10 J", "high": "300 J"}]
        ),
        "initial": draw.choice([0.0, 0.5, 1.0, {"kind": "uniform", "low": 0.0, "high": 1.0}]),
        "charge": draw.choice(["1 W", "4 W", "20 W"]),
        "charging": draw.choice(charging),
        "restart": draw.choice([0.001, 0.1, 0.5, 1.0]),
    }
    energy: Sections = {
        "idle": draw.choice(["0 W", "200 mW", "2 W"]),
        "compute": "3 W",
        "receive": "1 W",
        "send": "2 W",
        "send_byte": draw.choice(["0 J/B", "1 J/kB"]),
        "tail": draw.choice(["0 W", "1 W"]),
        "tail_lasts": "5 s",
        "battery": battery,
    }
    population: Sections = {
        "devices": 8,
        "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
        "samples": {"low": 20, "high": 200},
        "jitter": draw.choice([0.0, 0.2]),
    }
    if draw.random() < 0.5:
        population["availability"] = {"kind": "renewal", "mean_on": "40 s", "mean_off": "10 s"}
    if draw.random() < 0.3:
        population["arrivals"] = {"kind": "poisson", "rate": "300 /h", "newcomers": 3}
        population["departures"] = {"kind": "exponential", "mean_stay": "3 min", "share": 0.5}
    network: Sections = {
        "kind": "star",
        "server": {"up": "20 kB/s"},
        "device": {"down": "8 kB/s", "up": "4 kB/s"},
    }
    network["device"]["latency"] = draw.choice(["0 s", "40 ms"])
    if kind == "hierfavg":
        network |= {"kind": "tree", "cells": 2, "edge": {"latency": "30 ms"}}
    if draw.random() < 0.3:
        network["protocol"] = "tcp"
    sections: Sections = {
        "seed": draw.randrange(1000),
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 kB"},
        "population": population,
        "network": network,
        "strategy": {"kind": kind} | _OFF[kind],
        "energy": energy,
        "stop": {"rounds": 15, "simulated_time": "20 min"},
    }
    if draw.random() < 0.3:
        sections["world"] = {"processes": [{"kind": "upload-slots", "slots": 2}]}
    return sections


def run_faults(sections: Sections) -> Iterator[str]:
    """What an audit and the books find in a run."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        run(sections, place)
        for check, problems in audit(place).items():
            yield from (f"{check}: {problem}" for problem in problems)
        folder_of = RunFolder(place)
        capacities = folder_of.table("energy.parquet").column("capacity_j").to_pylist()
        for device, data in folder_of.events_of(("battery",), ("device", "data")):
            fields = json.loads(data)
            levels = [fields["level"], *(level for _, level in fields["path"])]
            if not -1e-9 <= min(levels) <= max(levels) <= capacities[device] + SLACK_J:
                yield (
                    f"device {device} holds {min(levels)} to {max(levels)} J of "
                    f"{capacities[device]}"
                )


def main() -> int:
    """Try the sites and the runs; say how many failed."""
    options = parser(__doc__, sites=300, runs=300, seed=1).parse_args()
    failed = 0
    for number in range(options.sites):
        site = drawn_site(random.Random(f"{options.seed}/site/{number}"))
        faults = list(site_faults(site))
        failed += bool(faults)
        if faults:
            print(f"site {number}:", faults[0], flush=True)
    refused = 0
    for number in range(options.runs):
        sections = drawn_run(random.Random(f"{options.seed}/run/{number}"))
        try:
            faults = list(run_faults(sections))
        except fedsim.ScenarioError as error:
            refused += 1
            print(f"run {number} is refused:", error, flush=True)
            continue
        failed += bool(faults)
        if faults:
            print(f"run {number} ({sections['strategy']['kind']}):", faults[0], flush=True)
    print(f"{options.sites} sites, {options.runs} runs ({refused} refused), {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
