"""Processes of the world: what they do to links and devices, who queues, what is recorded, and
what can be resumed.
"""

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import simpy

import fedsim
from fedsim.clock.simulation import on_grid
from fedsim.common.errors import CheckpointError, ScenarioError, SimulationError
from fedsim.lab.audit import audit
from fedsim.lab.trackers.trace import trace_events
from fedsim.plugin import (
    Device,
    FedAvg,
    Instruction,
    Pause,
    Process,
    SynchronousClient,
    World,
)
from fedsim.records.reading import RunFolder
from fedsim.testing import assert_same_run, assert_sound, eventful_world, go_on, run, run_until
from fedsim.world.steps import TaskStep
from tests.lab.test_audit import events as edited

HERE = __name__


def slow_then_normal(world: World, begin: float = 10.0, end: float = 50.0) -> Iterator[Any]:
    """All devices at half their speed for a while."""
    yield world.timeout(begin)
    with world.slow(range(world.devices), 0.5):
        yield world.until(end)


def away(world: World, begin: float, end: float) -> Iterator[Any]:
    """Device 0 off for a while."""
    yield world.until(begin)
    with world.off(0):
        world.emit("note", device=0, why="test")
        yield world.until(end)


def two_at_a_time(world: World) -> Iterator[Any]:
    """A resource of SimPy, used as in SimPy."""
    world.queue("up", simpy.Resource(world.env, 2))
    yield world.env.timeout(0)


def anything(world: World, given: dict[str, Any]) -> Iterator[Any]:
    yield world.timeout(0)
    world.emit("given", **given)


def breaks(world: World) -> Iterator[Any]:
    yield world.timeout(1.0)
    raise KeyError("broken on purpose")


def forever(world: World) -> Iterator[Any]:
    while True:
        yield world.timeout(1.0)


def no_generator(world: World) -> None:
    """It forgets to yield."""


def world(*processes: Any, devices: int = 6, **sections: Any) -> dict[str, Any]:
    """One round of equal devices: 10 s of download, 100 s of training, and 50 s of upload where
    nobody shares the link.
    """
    return {
        "learning": "off",
        "model": {"kind": "size", "bytes": "1000 B", "flops_per_sample": 1.0},
        "population": {
            "devices": devices,
            "speed": "1 samples/s",
            "samples": {"low": 100, "high": 100},
        },
        "network": {"kind": "star", "device": {"down": "100 B/s", "up": "20 B/s"}},
        "strategy": {"kind": "fedavg", "clients_per_round": devices, "local_epochs": 1},
        "stop": {"rounds": 1},
        "world": {"processes": list(processes)},
    } | sections


def events(scenario: dict[str, Any]) -> list[fedsim.Record]:
    """All records of a run."""
    found: list[Any] = []
    simulation = fedsim.Simulation(fedsim.Scenario(**scenario))
    simulation.listen(found.append)
    asyncio.run(simulation.run())
    return found


def steps(records: list[Any], step: str, kind: str = "step-end") -> list[tuple[int, float, str]]:
    return [
        (r.fields["device"], r.time, r.fields.get("outcome"))
        for r in records
        if r.kind == kind and r.fields["step"] == step
    ]


class TestRuns:
    def test_an_outage_of_ten_seconds_delays_the_upload_by_ten(self) -> None:
        outage = {
            "kind": "link-outage",
            "link": "device 0 up",
            "every": "130 s",
            "lasts": "10 s",
            "random": False,
        }
        records = events(world(outage, devices=1))
        assert steps(records, "upload") == [(0, 170.0, "done")]  # 160 s without
        told = [
            (r.time, r.fields["link"], r.fields["rate"]) for r in records if r.kind == "link-rate"
        ]
        assert told == [(130.0, "device 0 up", 0.0), (140.0, "device 0 up", 20.0)]

    @pytest.mark.parametrize(
        "process", [{"kind": "upload-slots", "slots": 2}, f"{HERE}:two_at_a_time"]
    )
    def test_uploads_take_turns(self, process: Any) -> None:
        """Five of 50 s, two at a time, all of them ready at 110 s."""
        records = events(world(process, devices=5))
        begun = {device: time for device, time, _ in steps(records, "upload", "step-start")}
        ends = {device: (begun[device], time) for device, time, _ in steps(records, "upload")}
        assert list(ends.values()) == [
            (110.0, 160.0),
            (110.0, 160.0),
            (160.0, 210.0),
            (160.0, 210.0),
            (210.0, 260.0),
        ]
        assert sorted(time for _, time, _ in steps(records, "queue")) == [160.0, 160.0, 210.0]

    def test_who_is_late_in_the_queue_never_uploads_and_lets_the_next_in(self) -> None:
        strategy = {
            "kind": "fedavg",
            "clients_per_round": 4,
            "local_epochs": 1,
            "deadline": "215 s",
        }
        records = events(world({"kind": "upload-slots", "slots": 1}, devices=4, strategy=strategy))
        assert [outcome for *_, outcome in steps(records, "upload")] == ["done", "done", "late"]
        assert [outcome for *_, outcome in steps(records, "queue")] == ["done", "done", "late"]
        assert (
            len(steps(events(world({"kind": "upload-slots", "slots": 1}, devices=2)), "queue")) == 1
        )

    def test_epochs_that_begin_while_a_device_is_slow_take_longer(self) -> None:
        strategy = {"kind": "fedavg", "clients_per_round": 1, "local_epochs": 3}
        slow = {"kind": f"{HERE}:slow_then_normal", "begin": 60.0, "end": 260.0}
        records = events(world(slow, devices=1, strategy=strategy))
        (ends,) = [r.fields["epoch_ends"] for r in records if "epoch_ends" in r.fields]
        # 50 + 50/0.5; half of the second by 260 s; the third at full speed
        assert ends == [160.0, 310.0, 410.0]
        (trained,) = steps(events(world({"kind": f"{HERE}:slow_then_normal"}, devices=1)), "train")
        assert trained == (0, 130.0, "done")  # 20 s of 100 are done by 50 s

    def test_a_device_that_is_switched_off_loses_its_task_and_comes_back(self) -> None:
        off = {"kind": f"{HERE}:away", "begin": 30.0, "end": 500.0}
        records = events(world(off, devices=2, stop={"rounds": 6}))
        mine = [
            (r.time, r.fields["outcome"])
            for r in records
            if r.kind == "task-end" and r.fields["device"] == 0
        ]
        assert mine[0] == (30.0, "lost")
        assert all(not 30.0 < time <= 500.0 for time, _ in mine)
        assert mine[-1][1] == "done"
        told = [
            (r.time, r.kind)
            for r in records
            if r.kind in ("switch-off", "switch-on", "process:note")
        ]
        assert told == [(30.0, "switch-off"), (30.0, "process:note"), (500.0, "switch-on")]

    def test_who_waits_for_a_device_hears_of_it_when_it_is_on_again(self) -> None:
        off = {"kind": f"{HERE}:away", "begin": 30.0, "end": 400.0}
        records = events(
            world(
                off, devices=1, strategy={"kind": "fedasync", "concurrency": 1}, stop={"rounds": 2}
            )
        )
        starts = [r.time for r in records if r.kind == "task-start"]
        assert starts[0] == 0.0
        assert starts[1] >= 400.0

    def test_a_process_without_end_does_not_keep_a_run_alive(self) -> None:
        simulation = fedsim.Simulation(fedsim.Scenario(**world(f"{HERE}:forever", devices=1)))

        async def asks_for_nothing() -> None:
            pass

        simulation.installed.strategy.on_start = asks_for_nothing
        assert asyncio.run(simulation.run()) == "nothing left to happen"

    def test_the_same_draws_whatever_the_strategy(self) -> None:
        outage = {"kind": "link-outage", "link": "server up", "every": "20 s", "lasts": "5 s"}
        seen = []
        for strategy in (
            {"kind": "fedavg", "clients_per_round": 3},
            {"kind": "fedasync", "concurrency": 2},
        ):
            records = events(
                world(outage, devices=6, strategy=strategy, stop={"simulated_time": "500 s"})
            )
            seen.append(
                [
                    (r.time, r.fields["rate"])
                    for r in records
                    if r.kind == "link-rate" and r.time < 400
                ]
            )
        assert seen[0] == seen[1] != []
        assert all(time == on_grid(time) for time, _ in seen[0])


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("process", "says"),
        [
            (f"{HERE}:away", "begin is missing"),
            (
                {"kind": f"{HERE}:away", "begin": 1.0, "end": 2.0, "ending": 3.0},
                "unknown key 'ending'.*did you mean 'end'",
            ),
            (f"{HERE}:no_generator", "allowed is a generator function"),
            (f"{HERE}:TestRuns", "not a subclass of fedsim.plugin.Process"),
            (f"{HERE}:awya", "no attribute 'awya'.*did you mean 'away'"),
        ],
    )
    def test_in_the_scenario(self, process: Any, says: str) -> None:
        with pytest.raises(ScenarioError, match=f"(?s){says}"):
            fedsim.Simulation(fedsim.Scenario(**world(process)))

    def test_a_mistake_names_file_and_line(self) -> None:
        says = (
            r"breaks' failed at 1.0 s, in test_processes.py, line \d+: KeyError: 'broken on "
            r"purpose'"
        )
        with pytest.raises(SimulationError, match=says):
            events(world(f"{HERE}:breaks"))

    @pytest.mark.parametrize("given", [{"round": 3}, {"step": "x"}])
    def test_what_would_damage_the_records(self, given: dict[str, Any]) -> None:
        with pytest.raises(SimulationError, match="is a column of its own"):
            events(world({"kind": f"{HERE}:anything", "given": given}))

    def test_a_run_that_cannot_be_restored_asks_for_no_checkpoint_and_is_not_resumed(
        self, tmp_path: Path
    ) -> None:
        says = f"process '{HERE}:forever' does not say how it is restored"
        with pytest.raises(ScenarioError, match=says):
            fedsim.Scenario(**world(f"{HERE}:forever", checkpoint={"rounds": 1}))
        scenario = world(f"{HERE}:forever", stop={"rounds": 3})
        assert run_until(scenario, tmp_path / "cut", 20) == "interrupted"
        assert not list(tmp_path.rglob("checkpoints/*"))
        with pytest.raises(CheckpointError, match=says):
            go_on(scenario, tmp_path / "cut")


class Rush(Process):
    """A user's own that can be restored: every second wait all devices are slow."""

    restorable = True
    kind: str = ""

    def run(self, world: World) -> Iterator[Any]:
        """Fast and slow in turns."""
        state = world.state
        if not state:
            state |= {"turn": 0, "until": 1.0}
        while True:
            factor = 0.25 if state["turn"] % 2 else 1.0
            with (
                world.slow(range(0, world.devices, 2), factor),
                world.off([1] if state["turn"] % 3 == 2 else []),
            ):
                yield world.until(state["until"])
            state |= {
                "turn": state["turn"] + 1,
                "until": state["until"] + 1.0 + world.rng("wait", state["turn"]).random(),
            }


class Forgetful(Rush):
    """One that holds nothing when it is restored."""

    def run(self, world: World) -> Iterator[Any]:
        """Limit a link once."""
        if not world.state:
            world.state["begun"] = True
            world.limit("server up", 1000.0)
        while True:
            yield world.until(math.floor(world.now) + 1.0)


TREE = {
    "kind": "tree",
    "server": {"down": "2 Mbit/s", "up": "150 kbit/s"},
    "cells": 3,
    "cell": {"down": "1 Mbit/s", "up": "60 kbit/s"},
    "device": {"down": "1 Mbit/s", "up": "100 kbit/s", "latency": "40 ms"},
}
BUSY = [
    {"kind": "link-outage", "link": "server up", "every": "5 s", "lasts": "2 s"},
    {
        "kind": "link-outage",
        "link": "server up",
        "every": "7 s",
        "lasts": "3 s",
        "random": False,
        "rate": "2 kB/s",
    },
    {"kind": "link-outage", "link": "device 3 down", "every": "4 s", "lasts": "9 s"},
    {"kind": "upload-slots", "slots": 1},
    {"kind": "heat", "warms": "2 s", "factor": 0.25, "devices": [0, 1, 2, 3, 4]},
    {"kind": f"{HERE}:Rush"},
]


@pytest.mark.parametrize(
    ("strategy", "tree"),
    [
        ({"kind": "fedavg", "clients_per_round": 6, "deadline": "30 s"}, True),
        ({"kind": "fedbuff", "concurrency": 7, "buffer": 3}, False),
    ],
    ids=["fedavg-tree", "fedbuff-star"],
)
def test_a_run_goes_on_to_the_bit(strategy: dict[str, Any], tree: bool, tmp_path: Path) -> None:
    scenario = eventful_world(strategy, rounds=4) | {
        "world": {"processes": BUSY},
        "learning": "off",
        "drift": None,
    }
    scenario["network"] = (
        TREE if tree else scenario["network"] | {"server": {"down": "2 Mbit/s", "up": "100 kbit/s"}}
    )
    summary = run(scenario, tmp_path / "whole")
    kinds = {
        row["kind"] for row in RunFolder(tmp_path / "whole").table("events.parquet").to_pylist()
    }
    assert {"link-rate", "queue", "pace", "switch-off", "switch-on"} <= kinds
    assert_sound(tmp_path / "whole")
    for number, share in enumerate((0.1, 0.45, 0.85)):
        cut = tmp_path / str(number)
        assert run_until(scenario, cut, int(share * summary["events"])) == "interrupted"
        go_on(scenario, cut)
        assert_same_run(tmp_path / "whole", cut)


class SleepyClient(SynchronousClient[Any]):
    """Client that sleeps for 400 s, and then trains."""

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        return (Pause("sleep", 400.0), *super().work(device, instruction))


class Sleepy(FedAvg):
    Client = SleepyClient


@pytest.mark.parametrize(("kind", "asleep_s"), [("fedavg", 0.0), (f"{HERE}:Sleepy", 400.0)])
def test_throttling_by_hand(kind: str, asleep_s: float) -> None:
    """40 s of work: fast for ln 10, then slow for ln(.65/.6) and fast for ln(.15/.1) by turns,
    in units of 10 s. A device that sleeps before it works does not become warm.
    """
    scenario = world(
        {"kind": "heat", "warms": "10 s", "factor": 0.25, "slow_at": 0.9, "fast_at": 0.85},
        stop={"rounds": 1},
    )
    scenario |= {
        "population": {"devices": 1, "speed": "10 samples/s", "samples": {"low": 400, "high": 400}}
    }
    scenario |= {
        "strategy": {"kind": kind, "clients_per_round": 1},
        "learning": "off",
        "network": {"kind": "star"},
    }
    done, lasted, slow = 10 * math.log(10), 10 * math.log(10), True
    while True:
        span, rate = (10 * math.log(0.65 / 0.6), 0.25) if slow else (10 * math.log(0.15 / 0.1), 1.0)
        if done + span * rate >= 40:
            break
        done, lasted, slow = done + span * rate, lasted + span, not slow
    end_s = asleep_s + lasted + (40 - done) / rate
    assert run(scenario)["simulated_s"] == pytest.approx(end_s, abs=1e-6)


def test_a_process_that_does_not_come_to_where_it_was_is_found_out(tmp_path: Path) -> None:
    scenario = world({"kind": f"{HERE}:Forgetful"}, stop={"rounds": 3})
    assert run_until(scenario, tmp_path / "cut", 30) == "interrupted"
    with pytest.raises(CheckpointError, match="do not repeat their effects: at the checkpoint"):
        go_on(scenario, tmp_path / "cut")


class TestRecords:
    HELD = "no link carried more than it can"

    NETWORK = world()["network"] | {"server": {"up": "30 B/s"}}

    def test_the_audit_knows_what_a_link_carried_when(self, tmp_path: Path) -> None:
        slow = {
            "kind": "link-outage",
            "link": "server up",
            "every": "120 s",
            "lasts": "20 s",
            "random": False,
        }
        run(world(slow, network=self.NETWORK), tmp_path / "run")
        assert not any(audit(tmp_path / "run").values())

        def longer(rows: list[dict[str, Any]]) -> None:
            """The outage is said to be from 120 s to the run's end."""
            for row in rows:
                if row["kind"] == "link-rate":
                    row["data"] = json.dumps({"link": "server up", "rate": 0.0})

        edited(longer)(tmp_path / "run")
        assert any("the server's up link" in text for text in audit(tmp_path / "run")[self.HELD])

    def test_a_link_that_carries_more_than_it_was_built_to(self, tmp_path: Path) -> None:
        faster = [
            {
                "kind": "link-outage",
                "link": link,
                "every": "5 s",
                "lasts": "1 h",
                "random": False,
                "rate": "1 kB/s",
            }
            for link in ("server up", "device 2 up")
        ]
        run(world(*faster, network=self.NETWORK), tmp_path / "run")
        assert not any(audit(tmp_path / "run").values())

    def test_the_trace_shows_it(self, tmp_path: Path) -> None:
        outage = {"kind": "link-outage", "link": "server up", "every": "30 s", "lasts": "10 s"}
        off = {"kind": f"{HERE}:away", "begin": 30.0, "end": 40.0}
        run(world({"kind": "upload-slots", "slots": 2}, outage, off), tmp_path / "run")
        names = {entry["name"] for entry in trace_events(RunFolder(tmp_path / "run"))}
        assert {"queue", "link-rate", "switch-off", "switch-on", "process:note"} <= names


@pytest.mark.parametrize("kind", [simpy.PreemptiveResource, simpy.Container, simpy.Resource])
def test_slots_are_a_resource_of_the_run(kind: Any) -> None:
    world = fedsim.build_world({"devices": 1}, {"kind": "star"})
    with pytest.raises(SimulationError, match=r"queue for a simpy\.Resource"):
        world.queue("up", kind(simpy.Environment(), 2))
