"""What processes send and compute: known times, shares, losses, cancellations, books, and a run
that goes on to the bit.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import simpy

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import CheckpointError, ScenarioError, SimulationError
from fedsim.lab.audit import audit
from fedsim.lab.trackers.trace import trace_events
from fedsim.plugin import SERVER, Activity, Process, World
from fedsim.running.runner import Job
from fedsim.testing import (
    assert_same_run,
    assert_sound,
    eventful_world,
    go_on,
    quiet_world,
    run,
    run_until,
)
from fedsim.world.steps import Payload

HERE = __name__
STAR = {
    "kind": "star",
    "server": {"up": "100 B/s"},
    "device": {"up": "100 B/s", "down": "50 B/s", "latency": "500 ms"},
}
DEVICES = {"devices": 4, "speed": "10 samples/s", "reference_flops": 1e9}
EDGES = {
    "kind": "tree",
    "cells": 2,
    "cell": {},
    "edge": {"send": "10 B/s"},
    "device": {"up": "100 B/s"},
}


def played(*programs: Callable[[World], Iterator[Any]], **sections: Any) -> list[Any]:
    """What programs return that begin at once in a world alone."""
    world = fedsim.build_world(**{"population": DEVICES, "network": STAR} | sections)
    processes = [world.env.process(program(world)) for program in programs]
    return list(world.env.run(until=world.env.all_of(processes)).values())


def one(call: Callable[[World], Activity], at: float = 0.0) -> Callable[[World], Iterator[Any]]:
    """An activity that begins some time: when it ends, how, and what is left."""

    def program(world: World) -> Iterator[Any]:
        if at:
            yield world.until(at)
        activity = yield call(world)
        return world.now, activity.outcome, activity.left

    return program


@pytest.mark.parametrize(
    ("call", "network", "expected"),
    [
        (lambda world: world.send("device 0", "server", "1 kB"), STAR, (10.5, "done", 0.0)),
        (lambda world: world.send("server", 1, 1000), STAR, (20.5, "done", 0.0)),
        (lambda world: world.send(0, 1, 1000.0), STAR, (21.0, "done", 0.0)),
        (lambda world: world.send("edge 1", "server", 100), EDGES, (10.0, "done", 0.0)),
        (lambda world: world.send("device 3", "edge 1", 100), EDGES, (1.0, "done", 0.0)),
        (lambda world: world.compute(0, samples=50), STAR, (5.0, "done", 0.0)),
        (lambda world: world.compute("device 2", "20 GFLOP"), STAR, (2.0, "done", 0.0)),
        (
            lambda world: world.compute(0, "20 GFLOP", samples=50, seconds="1 s"),
            STAR,
            (8.0, "done", 0.0),
        ),
        (lambda world: world.compute(0, seconds=0), STAR, (0.0, "done", 0.0)),
    ],
)
def test_alone(
    call: Callable[[World], Activity], network: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert played(one(call), network=network) == [expected]


def test_messages_share_links_and_what_is_cut_off_gives_its_share_back() -> None:
    """Two share 100 B/s from 0.5 s on; one is interrupted at 4.5 s with 200 B sent, so that the
    other is there at 8.5 s.
    """

    def interrupted(how: str) -> Callable[[World], Iterator[Any]]:
        def sender(world: World) -> Iterator[Any]:
            message = world.send(0, "server", 600)
            try:
                if how == "with":
                    with message:
                        yield message | world.timeout(99)
                else:
                    yield message
            except simpy.Interrupt:
                if how == "waits on":
                    yield message
                elif how == "cancels":
                    message.cancel()
            yield world.timeout(0.25)
            return message.outcome, message.left

        def program(world: World) -> Iterator[Any]:
            process = world.env.process(sender(world))
            yield world.until(4.5)
            process.interrupt()
            return (yield process)

        return program

    other = one(lambda world: world.send(1, "server", 600))
    for how in ("with", "is interrupted", "cancels"):
        assert played(interrupted(how), other) == [("cancelled", 400.0), (8.5, "done", 0.0)], how
    assert played(interrupted("waits on"), other) == [("done", 0.0), (12.5, "done", 0.0)]


Forms = dict[str, Callable[[World, Activity, Activity], Any]]

FORMS: Forms = {
    "alone": lambda world, one, other: one,
    "|": lambda world, one, other: one | world.timeout(99),
    "| reversed": lambda world, one, other: world.timeout(99) | one,
    "| with SimPy's timeout": lambda world, one, other: world.env.timeout(99) | one,
    "&": lambda world, one, other: one & world.timeout(99),
    "nested": lambda world, one, other: (one & world.timeout(1)) | world.timeout(99),
    "nested twice": lambda world, one, other: (
        world.timeout(99) | ((world.timeout(98) | one) & world.timeout(97))
    ),
    "any_of": lambda world, one, other: world.env.any_of([one, world.timeout(99)]),
    "all_of": lambda world, one, other: world.env.all_of([world.timeout(1), one]),
    "AnyOf": lambda world, one, other: simpy.AnyOf(world.env, [world.timeout(99), one]),
}
"""What a process may yield that waits for an activity of 10 s."""

BOTH: Forms = {
    "|": lambda world, one, other: one | other,
    "&": lambda world, one, other: one & other,
    "all_of in any_of": lambda world, one, other: world.env.any_of(
        [world.env.all_of([one, other]), world.timeout(99)]
    ),
}
ACTIVITIES: dict[str, Callable[[World], Activity]] = {
    "message": lambda world: world.send(0, "server", 950.0),
    "computation": lambda world: world.compute(1, samples=100),
}


def waits_until(
    form: Callable[..., Any], stopped: float | None, then: Callable[..., Any] | None = None
) -> list[Any]:
    """Outcomes at 20 s of a message and a computation of 10 s, for which a process waits until
    it is interrupted.
    """
    world = fedsim.build_world(DEVICES, STAR)
    one, other = (make(world) for make in ACTIVITIES.values())

    def waiter() -> Iterator[Any]:
        try:
            yield form(world, one, other)
        except simpy.Interrupt:
            if then is not None:
                yield then(world, one, other)

    process = world.env.process(waiter())

    def stopper() -> Iterator[Any]:
        if stopped is not None:
            yield world.until(stopped)
            process.interrupt()

    world.env.process(stopper())
    world.env.run(until=20.0)
    return [one.outcome, other.outcome]


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupt_cancels_an_activity_in_any_form_of_condition(form: str) -> None:
    assert waits_until(FORMS[form], 4.0) == ["cancelled", "done"]
    assert waits_until(lambda world, one, other: FORMS[form](world, other, one), 4.0) == [
        "done",
        "cancelled",
    ]


@pytest.mark.parametrize("form", FORMS)
def test_who_waits_again_in_the_same_instant_has_not_given_up(form: str) -> None:
    assert waits_until(lambda world, one, other: one, 4.0, FORMS[form]) == ["done", "done"]
    assert waits_until(FORMS[form], 4.0, lambda world, one, other: one) == ["done", "done"]


@pytest.mark.parametrize("form", BOTH)
def test_an_interrupt_cancels_all_activities_of_a_condition(form: str) -> None:
    assert waits_until(BOTH[form], 4.0) == ["cancelled", "cancelled"]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "alone"])
def test_a_condition_that_another_process_waits_for_keeps_its_activity(form: str) -> None:
    world = fedsim.build_world(DEVICES, STAR)
    message = ACTIVITIES["message"](world)
    condition = FORMS[form](world, message, message)

    def waiter() -> Iterator[Any]:
        with suppress(simpy.Interrupt):
            yield condition

    first, second = (world.env.process(waiter()) for _ in range(2))

    def stopper(*stopped: simpy.Process) -> Iterator[Any]:
        yield world.until(3.0)
        for process in stopped:
            process.interrupt()

    world.env.process(stopper(first))
    world.env.run(until=4.0)
    assert message.outcome is None
    second.interrupt()
    world.env.run(until=5.0)
    assert message.outcome == "cancelled"


def test_an_activity_goes_on_that_a_timeout_has_outrun() -> None:
    """``message | timeout`` is decided by its timeout at 4 s: who is not interrupted cancels by
    ``with`` or ``cancel()``.
    """
    forms: list[Callable[..., Any]] = [
        lambda world, one, other: one | world.timeout(4),
        lambda world, one, other: (one & world.timeout(1)) | world.timeout(4),
        lambda world, one, other: world.env.any_of([one, other, world.timeout(4)]),
    ]
    for form in forms:
        assert waits_until(form, None) == ["done", "done"]


def test_what_has_ended_of_a_condition_stays_as_it_is() -> None:
    """The computation is done at 10 s, the message of 950 bytes and 0.5 s would be at 10 s too;
    what ends at once has ended.
    """
    form = FORMS["all_of"]
    assert waits_until(form, 10.0) == ["done", "done"]
    assert waits_until(
        lambda world, one, other: world.env.all_of([one, other, world.timeout(15)]), 12.0
    ) == ["done", "done"]


def test_a_computation_follows_the_pace_and_can_be_taken_up_from_what_is_left() -> None:
    def slow(world: World) -> Iterator[Any]:
        yield world.until(4.0)
        with world.slow(0, 0.5):
            yield world.until(8.0)

    def breaks(world: World) -> Iterator[Any]:
        with world.compute(1, samples=100) as part:
            yield part | world.timeout(6.0)
        left = part.left
        rest = yield world.compute(1, seconds=left)
        return part.outcome, left, rest.outcome, world.now

    found = played(slow, one(lambda world: world.compute(0, samples=100)), breaks)
    assert found[1:] == [(12.0, "done", 0.0), ("cancelled", 4.0, "done", 10.0)]


@pytest.mark.parametrize("away", ["intervals", "off"])
def test_what_needs_a_device_that_is_away_is_lost(away: str, tmp_path: Path) -> None:
    (tmp_path / "on.csv").write_text(
        "device,start,end\n0,0 s,4 s\n0,10 s,1 h\n1,0 s,1 h\n2,0 s,1 h\n3,0 s,1 h\n"
    )
    population = DEVICES | {"availability": {"kind": "intervals", "file": str(tmp_path / "on.csv")}}

    def off(world: World) -> Iterator[Any]:
        yield world.until(4.0)
        with world.off([0]) if away == "off" else world.off([]):
            yield world.until(10.0)

    def waits(world: World) -> Iterator[Any]:
        yield world.until(6.0)
        before = world.available(0), world.available("device 1")
        yield world.until_available(1)
        soon = world.now
        yield world.until_available(0)
        return before, soon, world.now, world.available(0)

    found = played(
        off,
        one(lambda world: world.send(0, "server", 1000)),
        one(lambda world: world.send(2, 0, 1000), 3.0),
        one(lambda world: world.compute(0, samples=100)),
        one(lambda world: world.compute(0, samples=40)),
        one(lambda world: world.send("server", 0, 10), 5.0),
        one(lambda world: world.compute(0, samples=10), 5.0),
        waits,
        population=population if away == "intervals" else DEVICES,
    )
    assert found[1:] == [
        (4.0, "lost", 650.0),
        (4.0, "lost", 1000.0),
        (4.0, "lost", 6.0),
        (4.0, "done", 0.0),  # what completes in the same instant has completed
        (5.0, "lost", 10.0),
        (5.0, "lost", pytest.approx(1.0)),
        ((False, True), 6.0, 10.0, True),
    ]


def test_facts() -> None:
    world = fedsim.build_world({"devices": 2, "device": "raspberry-pi-5", "samples": [3, 4]}, STAR)
    _, flops, *facts = world.device("device 1")
    assert facts == [50.0, 100.0, 0.5, 4, "raspberry-pi-5", 0.0, math.inf, True]
    assert flops is not None
    assert flops > 1e9
    assert (
        fedsim.Simulation(fedsim.load("quickstart", ["learning=off"])).world.device(3).samples > 0
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda world: world.send("devise 1", "server", 1),
            "no endpoint 'devise 1'; allowed are server, device 0 to 3",
        ),
        (lambda world: world.send("sever", 1, 1), "did you mean 'server'"),
        (lambda world: world.send(1, 1, 1), "sends to itself"),
        (lambda world: world.send(1, 9, 1), "there is no endpoint 9"),
        (lambda world: world.send(0, 1, "5 Mb"), "'5 Mb'.*did you mean 'MB'"),
        (lambda world: world.send(0, 1, math.nan), "a message is nan; allowed is"),
        (lambda world: world.compute(4, 1), "there is no device 4; allowed are 0 to 3"),
        (lambda world: world.compute(0, samples=-1), "cannot compute -1 samples"),
    ],
)
def test_what_is_refused(call: Callable[[World], Any], says: str) -> None:
    with pytest.raises(SimulationError, match=f"(?s){says}"):
        call(fedsim.build_world(DEVICES, STAR))


def test_a_world_that_cannot_be_built() -> None:
    with pytest.raises(ScenarioError, match=r"population.*unknown key 'device_count'"):
        fedsim.build_world({"device_count": 3})
    with pytest.raises(SimulationError, match="no world in a bare clock"):
        _ = fedsim.Simulation().world


def test_any_endpoints_and_their_books(tmp_path: Path) -> None:
    """Two messages of a device share its link up; one of the server's does not; ledger,
    transfers and trace tell of all.

    They pass no server, which draws nothing for them. The audit finds what a slower link cannot
    have carried.
    """
    sections = quiet_world({"kind": "fedavg", "clients_per_round": 2}, rounds=1)
    device = {"down": "1 MB/s", "up": "100 kB/s", "latency": "50 ms"}
    sections |= {
        "network": {"kind": "star", "device": device},
        "learning": "off",
        "stop": {"simulated_time": "40 s"},
    }
    sections["energy"] = {"server": {"byte": "1 J/kB"}}
    job, told = (
        Job(fedsim.Scenario(**sections), tmp_path / "run", Inline()),
        list[tuple[float, str]](),
    )

    def send() -> Iterator[Any]:
        yield job.simulation.env.timeout(30)
        for ends in ((20, 21), (20, 22), (SERVER, 23)):
            job.run.messages.send(
                *ends,
                (Payload("model", 1e5),),
                7,
                lambda _, how: told.append((job.simulation.now, how)),
            )

    job.simulation.env.process(send())  # type: ignore[arg-type]
    summary = asyncio.run(job.execute()).summary
    assert told == [
        (pytest.approx(when, abs=1e-6), "done")
        for when in (30 + 0.05 + 0.1, 30 + 0.1 + 2, 30 + 0.1 + 2)
    ]
    folder = assert_sound(tmp_path / "run")
    rows = [row for row in folder.transfers if row["direction"] == "peer"]
    assert [(row["sender"], row["receiver"], row["round"], row["delivered"]) for row in rows] == [
        ("server", "device 23", 7, 1e5),
        ("device 20", "device 21", 7, 1e5),
        ("device 20", "device 22", 7, 1e5),
    ]
    assert summary["bytes"]["peer"] == 3e5
    told_in_lanes = [entry["name"] for entry in trace_events(folder) if entry["ph"] == "b"]
    assert sorted(told_in_lanes) == [
        "from device 20",
        "from device 20",
        "from server",
        "to device 21",
        "to device 22",
        "to device 23",
    ]
    path = tmp_path / "run" / "devices.parquet"
    table = parquet.read_table(path)
    slower = [
        rate.as_py() * (0.9 if device == 20 else 1.0)
        for device, rate in enumerate(table.column("link_up"))
    ]
    parquet.write_table(
        table.set_column(table.column_names.index("link_up"), "link_up", [slower]), path
    )
    assert "link up of device 20" in str(
        audit(tmp_path / "run")["no link carried more than it can"]
    )


# Saved and resumed, in a run with a strategy at work.


class Uploads(Process):
    """A device sends files one after the other; each in as many attempts as it takes, and with a
    time out.
    """

    restorable = True
    kind: str
    device: int
    size: float

    def run(self, world: World) -> Iterator[Any]:
        state = world.state
        if not state:
            state |= {"file": 0, "left": self.size, "give_up": None}
        while True:
            if state["give_up"] is None:
                yield world.until_available(self.device)
                state["give_up"] = world.now + 3.0
            with world.send(self.device, "server", state["left"]) as message:
                yield message | world.until(state["give_up"])
            state |= {
                "left": message.left or self.size,
                "give_up": None,
                "file": state["file"] + (message.outcome == "done"),
            }
            if not message.left:
                world.emit("file", device=self.device, number=state["file"])


class Ring(Process):
    """All-reduce after all-reduce; devices compute before each message.

    What is lost is sent again.
    """

    restorable = True
    kind: str
    size: float

    def run(self, world: World) -> Iterator[Any]:
        state, nodes, env = world.state, 5, world.env
        if not state:
            state |= {"sent": [0] * nodes, "computed": [0] * nodes, "pause": [0.0] * nodes}
        news = [env.event() for _ in range(nodes)]

        def node(me: int) -> Iterator[Any]:
            while True:
                if state["computed"][me] <= state["sent"][me]:
                    yield world.compute(me, samples=20 + me)
                    state["computed"][me] += 1
                while state["sent"][me - 1] < state["sent"][me]:
                    yield news[me - 1]
                if state["pause"][me] > world.now:
                    yield world.until(state["pause"][me])
                message = yield world.send(me, (me + 1) % nodes, self.size / nodes, "part")
                if message.outcome == "lost":
                    state["pause"][me] = world.now + 1.0
                    continue
                state["sent"][me] += 1
                told, news[me] = news[me], env.event()
                told.succeed()

        yield env.all_of([env.process(node(me)) for me in range(nodes)])


class Elsewhere(Uploads):
    """One that does not come to where it was: it sends something else."""

    def run(self, world: World) -> Iterator[Any]:
        world.state["restored"] = world.state.get("restored", -1) + 1
        while True:
            yield world.send(self.device, "server", self.size + world.state["restored"])


OWN = [
    {"kind": f"{HERE}:Uploads", "device": 3, "size": 300e3},
    {"kind": f"{HERE}:Ring", "size": 50e3},
    {"kind": "link-outage", "link": "device 1 up", "every": "9 s", "lasts": "4 s"},
    "tests.world.test_processes:Rush",
    {"kind": "./transfer_of_docs.py:Transfer", "device": 2, "size": 1e6},
]


def test_a_run_with_activities_is_sound_and_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the docs is among them, and its message is lost once."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "processes.md").read_text()
    (block,) = re.findall(r"```python\n(# transfer\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "transfer_of_docs.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    scenario = eventful_world(
        {"kind": "fedavg", "clients_per_round": 5, "deadline": "30 s"}, rounds=4
    )
    scenario |= {"world": {"processes": OWN}, "learning": "off", "drift": None}
    summary = run(scenario, tmp_path / "whole")
    folder = assert_sound(tmp_path / "whole")
    records = [event for event in folder.events if event["kind"] == "message"]
    assert {"done", "lost", "cancelled"} <= {event["outcome"] for event in records}
    kinds = [event["kind"] for event in folder.events]
    assert (kinds.count("process:compute") > 10, kinds.count("process:sent")) == (True, 1)
    sent = [row for row in folder.transfers if row["task"] is None]
    for purpose in ("process", "part"):
        moved = math.fsum(row["delivered"] for row in sent if row["purpose"] == purpose)
        assert moved > 1e4
        assert moved == pytest.approx(summary["bytes"]["by_purpose"][purpose], rel=1e-12)
    for number, share in enumerate((0.3, 0.8)):
        cut = tmp_path / str(number)
        assert run_until(scenario, cut, int(share * summary["events"])) == "interrupted"
        go_on(scenario, cut)
        assert_same_run(tmp_path / "whole", cut)


def test_one_that_begins_something_else_when_it_is_restored_is_refused(tmp_path: Path) -> None:
    scenario = eventful_world({"kind": "fedavg", "clients_per_round": 5}, rounds=3) | {
        "learning": "off",
        "drift": None,
    }
    scenario["world"] = {"processes": [{"kind": f"{HERE}:Elsewhere", "device": 3, "size": 1e9}]}
    assert run_until(scenario, tmp_path / "cut", 30) == "interrupted"
    with pytest.raises(CheckpointError, match="does not come to where it was"):
        go_on(scenario, tmp_path / "cut")
