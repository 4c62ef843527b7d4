"""The environment is SimPy's: programs give the same trace as on ``simpy.Environment``, in a
bare clock and in a world.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy.core import EmptySchedule
from simpy.events import Interruption

import fedsim
from fedsim.clock.environment import CUT, SERVE, SETTLE, DirectProcess, Signal
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import SimulationError

Trace = list[tuple[Any, ...]]
Program = Callable[[simpy.Environment, Trace], None]
END = 300.0

SCENARIO: dict[str, Any] = {
    "learning": "off",
    "model": {"kind": "size", "bytes": "1 kB", "flops_per_sample": 1.0},
    "population": {
        "devices": 8,
        "speed": "10 samples/s",
        "samples": {"low": 50, "high": 100},
        "availability": {"kind": "renewal", "mean_on": "20 s", "mean_off": "5 s"},
    },
    "network": {
        "kind": "star",
        "server": {"up": "1 kB/s"},
        "device": {"up": "400 B/s", "latency": "30 ms"},
    },
    "strategy": {"clients_per_round": 4, "deadline": "12 s"},
    "stop": {"simulated_time": "400 s"},
}


def plain(program: Program) -> Trace:
    trace: Trace = []
    env = simpy.Environment()
    program(env, trace)
    env.run(until=END)
    return trace


def played(way: str, simulation: Simulation, program: Program) -> Trace:
    trace: Trace = []
    program(simulation.env, trace)
    if way == "run":
        simulation.env.run(until=END)
    elif way == "asyncio":
        simulation.wake(("stop", 0), END, lambda: simulation.stop("enough"))
        asyncio.run(simulation.run())
    while way == "step" and simulation.env.peek() < END:
        simulation.env.step()
    return [row for row in trace if row[0] < END]


WAYS = ["run", "step", "asyncio"]


_DELAYS = st.sampled_from([0, 0.5, 1, 1, 2, 3.25, 7])
_NUMBERS = st.integers(0, 3)
_WAITS = st.one_of(
    st.tuples(st.just("timeout"), _DELAYS),
    st.tuples(st.just("event"), _NUMBERS),
    st.tuples(st.just("process"), _NUMBERS),
    st.tuples(st.just("slot"), _NUMBERS),
    st.tuples(st.just("get"), _NUMBERS),
)
_STEPS = st.one_of(
    st.tuples(st.just("timeout"), _DELAYS),
    _WAITS,
    st.tuples(st.sampled_from(["any", "all"]), st.lists(_WAITS, max_size=3)),
    st.tuples(st.sampled_from(["succeed", "fail", "interrupt", "put", "start"]), _NUMBERS),
)
_PROGRAMS = st.lists(st.lists(_STEPS, min_size=1, max_size=6), min_size=4, max_size=6)


def random_program(programs: list[list[Any]]) -> Program:
    def program(env: simpy.Environment, trace: Trace) -> None:
        events = [env.event() for _ in range(4)]
        slots = [
            simpy.Resource(env),
            simpy.PriorityResource(env, 2),
            simpy.PreemptiveResource(env),
            simpy.Resource(env),
        ]
        stores = [simpy.Store(env, 1) for _ in range(4)]
        running: list[simpy.Process] = []

        def made(number: int, what: str, value: Any) -> Any:
            if what in ("any", "all"):
                return (env.any_of if what == "any" else env.all_of)(
                    [made(number, *one) for one in value]
                )
            if what == "process":
                return env.timeout(0) if value == number else running[value]
            ways = {
                "event": events.__getitem__,
                "slot": lambda at: slots[at].request(),
                "get": lambda at: stores[at].get(),
            }
            return env.timeout(value, value) if what == "timeout" else ways[what](value)

        def act(number: int, what: str, value: int) -> None:
            if what == "start":
                if len(running) < 12:
                    running.append(env.process(life(len(running), programs[value])))
            elif what == "interrupt":
                if running[value].is_alive and running[value] is not env.active_process:
                    running[value].interrupt(number)
            elif what == "put":
                stores[value].put(number)
            elif not events[value].triggered:
                if what == "succeed":
                    events[value].succeed(number)
                else:
                    events[value].fail(ValueError(number)).defused = True

        def life(number: int, steps: list[Any]) -> Iterator[Any]:
            for what, value in steps:
                try:
                    if what in ("succeed", "fail", "interrupt", "put", "start"):
                        act(number, what, value)
                        found: Any = None
                    else:
                        found = yield made(number, what, value)
                    found = len(found.todict()) if hasattr(found, "todict") else found
                    trace.append(
                        (env.now, number, what, found if isinstance(found, int | float) else None)
                    )
                except (simpy.Interrupt, ValueError) as error:
                    cause = getattr(error, "cause", error.args)
                    told = cause if isinstance(cause, int | tuple) else "preempted"
                    trace.append((env.now, number, type(error).__name__, told))

        for number, steps in enumerate(programs):
            running.append(env.process(life(number, steps)))

    return program


@settings(max_examples=60, deadline=None)
@given(programs=_PROGRAMS)
def test_any_program_gives_the_same_trace(programs: list[list[Any]]) -> None:
    program = random_program(programs)
    expected = plain(program)
    for way in WAYS:
        assert played(way, Simulation(), program) == expected


@pytest.mark.parametrize("way", WAYS)
def test_programs_in_a_world_at_work(way: str) -> None:
    """Processes of a strategy's devices, and these beside them: each queues, gives way, sends
    and is interrupted.
    """
    steps: list[list[Any]] = [
        [
            ("slot", 2),
            ("timeout", 7),
            ("any", [("event", 1), ("timeout", 3.25)]),
            ("succeed", 1),
            ("put", 0),
            ("start", 1),
        ]
        * 6,
        [
            ("timeout", 1),
            ("interrupt", 0),
            ("get", 0),
            ("all", [("timeout", 2), ("process", 2)]),
            ("start", 2),
        ],
        [("slot", 1), ("put", 0), ("timeout", 0.5), ("fail", 3), ("event", 1), ("start", 3)],
        [("event", 3), ("slot", 2), ("timeout", 40), ("interrupt", 0), ("start", 1)],
    ]
    program, simulation, world = random_program(steps), Simulation(fedsim.Scenario(**SCENARIO)), []
    simulation.listen(world.append)
    expected = plain(program)
    assert len(expected) > 15
    assert {"Interrupt", "ValueError"} <= {row[2] for row in expected}
    assert played(way, simulation, program) == expected
    assert len(world) > 200


LEARNS = {
    "data": {"source": "digits"},
    "population": {"devices": 3},
    "strategy": {"clients_per_round": 2},
}


@pytest.mark.parametrize("sections", [SCENARIO, LEARNS], ids=["learning off", "learning"])
def test_a_scenario_runs_by_its_environment_alone(sections: dict[str, Any]) -> None:
    """The records are those of ``simulation.run()``, which real work is awaited for; a process
    of one's own sees the end.
    """
    seen: list[list[Any]] = [[], []]
    simulations = [Simulation(fedsim.Scenario(**sections | {"stop": {"rounds": 5}})) for _ in seen]
    for simulation, records in zip(simulations, seen, strict=True):
        simulation.listen(records.append)
    asyncio.run(simulations[0].run())
    end = simulations[1].env.run(until=simulations[1].ended)
    assert end == simulations[1].stopped == simulations[0].stopped == "5 rounds"
    assert (
        [record for record in seen[0] if record.kind == "round"]
        == [r for r in seen[1] if r.kind == "round"]
        != []
    )
    assert asyncio.run(simulations[1].run()) == end  # what is open then ends as ever
    assert seen[0] == seen[1]


def test_a_run_in_which_nothing_is_left_has_ended() -> None:
    simulation = Simulation()
    simulation.env.timeout(3)
    assert simulation.env.run(until=simulation.ended) == "nothing left to happen"
    simulation.env.run()
    assert (simulation.env.now, simulation.env.peek()) == (3, inf)
    with pytest.raises(EmptySchedule):
        simulation.env.step()


def test_what_simpy_does_in_the_quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices at work are SimPy processes, at every instant; what ends them early are its
    interrupts.
    """
    assert issubclass(DirectProcess, simpy.Process)
    made: dict[type, list[Any]] = {}

    def noted(owner: type) -> None:
        inner, found = owner.__init__, made.setdefault(owner, [])  # type: ignore[misc]
        monkeypatch.setattr(
            owner, "__init__", lambda self, *given: (found.append(self), inner(self, *given))[1]
        )

    noted(DirectProcess)
    noted(Interruption)
    simulation, records = (
        Simulation(fedsim.load("quickstart", ["learning=off", "stop.rounds=30"])),
        Counter[str](),
    )
    run, inner = simulation.installed, simulation.env.moved
    assert inner is not None
    most = 0

    def moved(when: float) -> None:
        nonlocal most
        lives = {id(process) for process in made[DirectProcess] if process.is_alive}
        assert lives == {id(task.process) for task in run.tasks.running.values()}
        assert len(lives) == sum(run.tasks._busy)
        most = max(most, len(lives))
        inner(when)

    simulation.env.moved = moved
    simulation.listen(
        lambda record: records.update([record.fields.get("outcome", "") + " " + record.kind])
    )
    asyncio.run(simulation.run())
    cut = sum(records[f"{cause} task-end"] for cause in ("late", "lost", "left"))
    assert (records[" task-start"], most) == (600, 20)
    assert len(made[DirectProcess]) == records[" task-start"]
    assert len(made[Interruption]) == cut > 50


def test_an_alarm_that_nothing_sets_again_fails_when_it_is_set() -> None:
    env = Simulation().env
    rung: list[float] = []

    def set_tick(number: int, when: float) -> None:
        env.at(("tick", number), when, lambda: rung.append(env.now))

    env.declare_alarm("tick", set_tick)
    set_tick(0, 1.0)
    other = env.at(("other", 0), 1.0, lambda: None)
    with pytest.raises(SimulationError, match="'other'"):
        env.require_rearm()
    other.cancel()
    env.require_rearm()
    with pytest.raises(SimulationError, match="nothing sets an alarm of the kind 'other' again"):
        env.at(("other", 1), 2.0, lambda: None)
    env.call(lambda: None)  # within the instant, so no snapshot holds it
    env.rearm("tick", 1, 3.0)
    env.run()
    assert rung == [1.0, 3.0]


@pytest.mark.parametrize("way", ["run", "step", "advance"])
def test_calls_at_the_present_time_are_in_the_order_of_all_events(way: str) -> None:
    simulation = Simulation()
    env = simulation.env
    order: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: order.append(name)

    env.call(note("serve"), SERVE)
    env.at(("cut", 0), 0.0, note("cut"), CUT)
    env.call(note("settle"), SETTLE)
    env.call(note("first"))
    env.timeout(0).callbacks.append(note("second"))
    env.call(note("third"))
    env.at(("later", 0), 1.0, note("later"))
    with pytest.raises(SimulationError, match="the instant is not over"):
        simulation.alarms()
    if way == "run":
        env.run(until=0.5)
        env.step()  # SimPy schedules the event of ``until`` again
    elif way == "advance":
        assert env.advance() == 1.0
    while way == "step" and env.peek() == 0.0:
        env.step()
    assert order == ["first", "second", "third", "cut", "settle", "serve"]
    assert simulation.alarms() == [("later", 0, 1.0)]
    env.call(note("forgotten"))
    env.restart(5.0)
    assert (env.now, env.peek(), len(order)) == (5.0, inf, 6)


def test_a_direct_process_runs_within_the_event_that_continues_it() -> None:
    env = Simulation().env
    trace: list[Any] = []
    signals = [Signal(env) for _ in range(3)]

    def life() -> Iterator[Any]:
        for signal in signals:
            try:
                trace.append((yield signal))
            except simpy.Interrupt as interrupt:
                trace.append(interrupt.cause)
            assert env.active_process is process
        yield env.timeout(2.0)
        trace.append((yield signals[0]))  # has happened already
        return "end"

    def outer() -> Iterator[Any]:
        signals[2].fire("third")
        assert env.active_process is beside
        trace.append((yield process))

    process = DirectProcess(env, life())
    assert trace == []
    process.begin()
    signals[0].fire("first")
    assert trace == ["first"]
    assert env.peek() == inf
    process.interrupt("cut")
    env.run()
    beside = env.process(outer())
    env.run()
    assert trace == ["first", "cut", "third", "first", "end"]
    assert (env.now, process.value, process.is_alive) == (2.0, "end", False)


def test_an_exception_in_a_direct_process_is_raised_where_it_is_continued() -> None:
    env = Simulation().env

    def life() -> Iterator[Any]:
        yield signal
        raise ValueError("mine")

    signal = Signal(env)
    DirectProcess(env, life()).begin()
    with pytest.raises(ValueError, match="mine"):
        signal.fire()
    assert env.active_process is None
