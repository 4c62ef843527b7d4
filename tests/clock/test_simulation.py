"""The clock: order within an instant, joins, determinism under any real delays; and no instant
takes too long.
"""

import asyncio
import gc
import hashlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from simpy.events import Event, ProcessGenerator

from fedsim.clock.environment import URGENT
from fedsim.clock.executors import Inline, Threads
from fedsim.clock.simulation import Simulation, on_grid, on_grid_after
from fedsim.testing import (
    Delayed,
    assert_same_run,
    eventful_world,
    go_on,
    quiet_world,
    run,
    run_until,
)
from fedsim.world import time_variation
from tests.children import ended, popen, python_within


def play(simulation: Simulation) -> str:
    return asyncio.run(simulation.run())


def test_a_sink_may_want_some_kinds_alone() -> None:
    simulation, some, every, names = Simulation(), list[int](), list[int](), ("a", "b", "c", "a")
    simulation.listen(lambda record: some.append(record.fields["number"]), kinds=("a", "c"))
    simulation.listen(lambda record: every.append(record.fields["number"]))
    for number, kind in enumerate(names):
        simulation.emit(kind, number=number)
    assert (some, every) == ([0, 2, 3], [0, 1, 2, 3])


def test_sums_of_grid_times_are_exact_in_any_order() -> None:
    parts = [on_grid(x) for x in (0.1, 0.2, 0.3, 1 / 3, 1e-9, 86400.1)]
    assert sum(parts) == sum(reversed(parts)) == sum(sorted(parts))
    assert on_grid(10.0 + 1e-9) > 10.0
    assert all(on_grid_after(x) >= x for x in (0.0, 1 / 3, 1e-12, 12345.678))
    assert on_grid(math.inf) == on_grid_after(math.inf) == math.inf


class TestClock:
    def test_an_instant_is_world_then_solve_then_inbox(self) -> None:
        simulation = Simulation()
        order: list[str] = []

        async def handle(message: str) -> None:
            order.append(message)
            if message == "first":
                simulation.wake(("again", 0), simulation.now, lambda: order.append("world again"))

        def at_five(name: str) -> None:
            if not order:
                simulation.call_after_changes(lambda: order.append("solve"))
                simulation.env.call(lambda: order.append("soon"))
                simulation.env.call(lambda: order.append("urgent"), URGENT)
                simulation.wake(("three", 0), simulation.now, lambda: order.append("three"))
            order.append(name)
            simulation.post(lambda: handle("first" if name == "one" else "second"))

        def process() -> ProcessGenerator:
            yield simulation.env.timeout(5.0)
            order.append("process")

        simulation.wake(("one", 0), 5.0, lambda: at_five("one"))
        simulation.process(process())
        simulation.wake(("two", 0), 5.0, lambda: at_five("two"))
        play(simulation)
        # as they were scheduled, urgent ones first
        world = ["one", "urgent", "two", "process", "soon", "three"]
        assert order == [*world, "solve", "first", "world again", "second"]

    def test_cancelled_alarms_of_later_do_not_fill_the_schedule(self) -> None:
        """An alarm a second, each of which sets one for much later and cancels it, but for every
        tenth.
        """
        simulation, rung, most = Simulation(), list[float](), 0

        def tick() -> None:
            nonlocal most
            second, most = int(simulation.now), max(most, len(simulation.env._queue))
            late = simulation.wake(
                ("late", second), 1e6 + second, lambda: rung.append(simulation.now)
            )
            if second % 10:
                late.cancel()
            if second < 5_000:
                simulation.wake(("tick", second), simulation.now + 1, tick)

        simulation.wake(("tick", 0), 0.0, tick)
        play(simulation)
        assert rung == [1e6 + second for second in range(0, 5_001, 10)]
        assert most < 1_200  # of 5,001

    def test_an_alarm_rings_once_and_can_be_cancelled_in_its_instant(self) -> None:
        simulation = Simulation()
        order: list[str] = []
        simulation.wake(("a", 0), 1.0, lambda: late.cancel())
        late = simulation.wake(("b", 0), 1.0, lambda: order.append("late"))
        once = simulation.wake(("c", 0), 1.0, lambda: order.append("once"))
        later = simulation.wake(("d", 0), 100.0, lambda: pytest.fail("was cancelled"))
        simulation.wake(("e", 0), 1.0, later.cancel)
        play(simulation)
        once.cancel()
        # a cancelled alarm does not move the clock
        assert (order, simulation.now) == (["once"], 1.0)
        assert simulation.alarms() == []

    def test_garbage_is_looked_for_rarely_while_a_run_goes_on_and_as_before_afterwards(
        self,
    ) -> None:
        before = gc.get_threshold()
        seen: list[int] = []
        simulation, other = Simulation(), Simulation()
        simulation.wake(("a", 0), 1.0, lambda: seen.append(gc.get_threshold()[0]))

        async def both() -> None:
            watch = aiter(other)
            other.wake(("b", 0), 0.0, lambda: other.emit("begun"))
            other.wake(("c", 0), 1.0, lambda: other.emit("ended"))
            await anext(watch)
            await simulation.run()
            seen.append(gc.get_threshold()[0])  # the other one still runs
            assert [record.kind async for record in watch] == ["ended"]

        asyncio.run(both())
        assert min(seen) > before[0]
        assert gc.get_threshold() == before

    def test_watching_sees_every_record_and_keeps_the_loop_alive(self) -> None:
        simulation = Simulation()

        def chatter() -> ProcessGenerator:
            for number in range(50_000):
                simulation.emit("tick", number=number)
                yield simulation.env.timeout(1.0)

        simulation.process(chatter())

        async def watch() -> tuple[list[int], int]:
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            seen = [record.fields["number"] async for record in simulation]
            task.cancel()
            return seen, turns

        seen, turns = asyncio.run(watch())
        assert seen == list(range(50_000))
        assert turns >= 3


class TestJoin:
    def test_a_failure_in_real_work_surfaces_where_it_is_joined(self) -> None:
        simulation, seen = Simulation(), list[str]()

        def worker() -> ProcessGenerator:
            with pytest.raises(ZeroDivisionError):
                yield simulation.join(simulation.submit(lambda: 1 / 0))
            simulation.emit("survived")

        simulation.process(worker())
        simulation.listen(lambda record: seen.append(record.kind))
        play(simulation)
        assert seen == ["survived"]

    def test_a_handler_awaits_a_value_while_the_clock_stands_still(self) -> None:
        simulation = Simulation(executor=Threads(1))
        times: list[float] = []

        async def handle() -> None:
            assert await simulation.join(simulation.submit(time.sleep, 0.02)) is None
            times.append(simulation.now)

        simulation.wake(("a", 0), 3.0, lambda: simulation.post(handle))
        simulation.wake(("b", 0), 3.5, lambda: None)
        play(simulation)
        assert times == [3.0]


def contest(simulation: Simulation) -> str:
    """Twelve processes that each do real work between waits and write to one record; returns the
    record's fingerprint.
    """
    digest = hashlib.sha256()
    simulation.listen(lambda record: digest.update(repr(record).encode()))

    def worker(number: int) -> ProcessGenerator:
        for turn in range(6):
            yield simulation.env.timeout(1.0 + number % 3)
            value = yield simulation.join(simulation.submit(lambda turn=turn: number * 100 + turn))
            simulation.emit("value", value=value)

    for number in range(12):
        simulation.process(worker(number))
    play(simulation)
    simulation.executor.close()
    return digest.hexdigest()


def executors() -> Iterator[Any]:
    yield Inline()
    for workers in (1, 2, 4):
        yield Threads(workers)
        yield Delayed(workers)
        yield Delayed(workers)


def test_real_delays_and_workers_change_nothing() -> None:
    """Joins resolve in the order in which they were made, as ``Inline`` does the work."""
    assert len({contest(Simulation(executor=executor)) for executor in executors()}) == 1


class NaiveBridge(Simulation):
    """The mistake that the clock avoids: it goes on, and the work that finishes first triggers
    its event first.
    """

    def __init__(self, executor: Any) -> None:
        super().__init__(executor=executor)
        self._outstanding: list[tuple[Future[Any], Event]] = []
        self._peek, self.env.peek = self.env.peek, self._look  # type: ignore[method-assign]

    def join(self, work: "Future[Any]") -> Any:
        self._outstanding.append((work, Event(self.env)))
        return self._outstanding[-1][1]

    def _look(self) -> float:
        while True:
            for pair in [pair for pair in self._outstanding if pair[0].done()]:
                self._outstanding.remove(pair)
                pair[1].succeed(pair[0].result())
            if self._peek() < math.inf or not self._outstanding:
                return self._peek()


def test_control_a_naive_bridge_fails_the_same_test() -> None:
    assert len({contest(NaiveBridge(executor=executor)) for executor in executors()}) > 1


FEDAVG = {"kind": "fedavg", "clients_per_round": 10, "local_epochs": 3, "deadline": "20 s"}


def slow_world(**changes: Any) -> dict[str, Any]:
    sections = eventful_world(FEDAVG, rounds=4) | {"learning": "off"}
    sections["population"] |= {
        "slow_phases": {"factor": 0.1, "mean_normal": "5 s", "mean_slow": "5 s"}
    } | changes
    return sections


def test_a_deadline_bounds_the_work_however_slow_a_device_is() -> None:
    speed = {"kind": "lognormal", "median": "60 samples/s", "spread": 1e6}
    world = f"slow_world(speed={speed}, availability={{'kind': 'always'}}, departures=None)"
    code = f"from tests.clock.test_simulation import run, slow_world; run({world})"
    tried = python_within(60, code)  # a walk through all slow phases would take hours
    assert tried.returncode == 0, tried.stderr


@pytest.mark.parametrize(
    "strategy", [FEDAVG, {"kind": "ifca", "groups": 2, "clients_per_round": 6}]
)
def test_how_far_is_looked_ahead_changes_nothing(
    strategy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = slow_world(
        availability={"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"}
    ) | {"strategy": strategy}
    events = run(sections, tmp_path / "far")["events"]
    monkeypatch.setattr(time_variation, "_PHASES_AHEAD", 0.5)
    run(sections, tmp_path / "near")
    assert_same_run(tmp_path / "far", tmp_path / "near")
    assert run_until(sections, tmp_path / "cut", events // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "far", tmp_path / "cut")


LONG = """
import time
import {module}

def long(*_, **__):
    print("begun", flush=True)
    while True:
        time.sleep(0.01)

{module}.{name} = long
"""
LONG_INSTANT = LONG.format(module="fedsim.federation.dispatch", name="Dispatch.start")
LONG_BUILDING = LONG.format(module="fedsim.running.runner", name="Simulation")
LONG_TRAINING = """
import time
import fedsim.running.runner
from fedsim.clock.simulation import Simulation

submit, begun = Simulation.submit, []
fedsim.running.runner._LONGEST_TRAINING_S = 0.5

def slow(self, function, *args):
    def long(*args):
        if not begun:
            begun.append(True)
            print("begun", flush=True)
            time.sleep(1.5)
        return function(*args)

    return submit(self, long, *args)

Simulation.submit = slow
"""


@pytest.mark.parametrize(
    ("program", "said", "number"),
    [
        (LONG_INSTANT, "this instant takes too long", signal.SIGINT),
        (LONG_INSTANT, "this instant takes too long", signal.SIGTERM),
        (LONG_BUILDING, "", signal.SIGTERM),
        (LONG_BUILDING, "", signal.SIGUSR2),
    ],
)
def test_a_signal_takes_effect_whatever_goes_on(
    program: str, said: str, number: signal.Signals, tmp_path: Path
) -> None:
    errors = interrupted(
        program,
        number,
        slow_world(departures={"kind": "exponential", "mean_stay": "1 h"}),
        tmp_path,
        status=75 if number == signal.SIGUSR2 else 130,
    )
    assert said in errors
    assert not list(tmp_path.rglob("*.writing"))
    assert (tmp_path / "out").exists() == bool(said)


def interrupted(
    program: str,
    number: signal.Signals,
    sections: dict[str, Any],
    place: Path,
    *options: str,
    status: int = 130,
) -> str:
    """What a run says on stderr that gets a signal when it has begun something long."""
    (place / "s.toml").write_text(tomli_w.dumps(sections))
    program += "from fedsim.cli import main\nmain()\n"
    command = [
        sys.executable,
        "-c",
        program,
        "run",
        str(place / "s.toml"),
        "--out",
        str(place / "out"),
        "--quiet",
        *options,
    ]
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, errors = ended(process)  # which would never come if it did not heed the signal
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    return errors


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_training_may_come_to_its_end(number: signal.Signals, status: int, tmp_path: Path) -> None:
    options = ("--executor", "threads")
    errors = interrupted(
        LONG_TRAINING, number, quiet_world(FEDAVG), tmp_path, *options, status=status
    )
    assert "takes too long" not in errors
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"
    go_on(quiet_world(FEDAVG), tmp_path / "out")


@pytest.mark.parametrize(
    ("evaluation", "executor"), [({}, "inline"), ({"from_round": 1000}, "threads")]
)
def test_training_has_no_more_than_its_time_after_sigterm(
    evaluation: dict[str, int], executor: str, tmp_path: Path
) -> None:
    sections = quiet_world(FEDAVG) | {"evaluation": evaluation}
    errors = interrupted(LONG_TRAINING, signal.SIGTERM, sections, tmp_path, "--executor", executor)
    assert "this instant takes too long" in errors
    assert not (tmp_path / "out" / "summary.json").exists()
