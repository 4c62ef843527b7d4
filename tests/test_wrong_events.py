"""Wrong events of users' SimPy processes, and events of fedsim that users' code fires itself.

A process that yields no event of its run ends in an error of fedsim that names the process, its
line and the value. All else that SimPy does with a process is as SimPy does it.
"""

import asyncio
import math
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import simpy

import fedsim
from fedsim import Simulation
from fedsim.clock.processes import CheckedEvents
from fedsim.common.errors import SimulationError
from fedsim.plugin import Process, World

HERE = f"{__name__}:"
POPULATION = {"devices": 2, "speed": "10 samples/s"}
NETWORK = {"kind": "star", "device": {"up": "1 MB/s"}}


def world_with(*processes: object) -> World:
    return fedsim.build_world(POPULATION, NETWORK, processes=processes)


def waiting() -> Iterator[Any]:
    yield 1


async def coroutine() -> None:
    pass


VALUES: dict[str, Callable[[Any], object]] = {
    "None": lambda env: None,
    "number": lambda env: 5,
    "float": lambda env: 2.5,
    "NaN": lambda env: math.nan,
    "number of numpy": lambda env: np.float64(5),
    "True": lambda env: True,
    "text": lambda env: "5 s",
    "generator": lambda env: waiting(),
    "coroutine": lambda env: coroutine(),
    "foreign event": lambda env: simpy.Environment().event(),
    "event of another run": lambda env: world_with().timeout(1.0),
    "activity of another run": lambda env: world_with().send(0, "server", "1 MB"),
    "list of events": lambda env: [env.event()],
    "dict": lambda env: {},
    "class": lambda env: simpy.Event,
    "environment": lambda env: env,
    "resource": lambda env: simpy.Resource(env),
}
"""Name -> function of the environment that makes a value for which no process can wait."""

HINTS = {
    "number": "to wait 5 s, yield world.timeout(5), or env.timeout(5) of a bare clock",
    "generator": "use 'yield from'",
    "coroutine": "not by 'await'",
    "foreign event": "an event of another environment",
    "event of another run": "an event of another environment",
    "list of events": "env.all_of([...])",
}


class Odd(Process):
    """Waits for an odd value after a second, in itself or in a generator of its own."""

    value: str
    form: str = "run"
    caught: ClassVar[list[str]] = []

    def run(self, world: World) -> Generator[Any, Any, Any]:
        yield world.timeout(1.0)
        if self.form == "run":
            yield VALUES[self.value](world.env)
        elif self.form == "nested":
            yield from self.nested(world)
        elif self.form == "child":
            yield world.env.process(self.nested(world))
        else:
            try:
                yield VALUES[self.value](world.env)
            finally:
                self.caught.append(self.value)

    def nested(self, world: World) -> Generator[Any, Any, Any]:
        yield world.timeout(1.0)
        yield VALUES[self.value](world.env)


def function(world: World, value: str) -> Generator[Any, Any, Any]:
    yield VALUES[value](world.env)


def error_of(simulation: Simulation) -> str:
    with pytest.raises(SimulationError) as caught:
        simulation.env.run(until=10.0)
    return str(caught.value)


@pytest.mark.parametrize("value", VALUES)
def test_a_process_that_yields_no_event_of_its_run_is_named(value: str) -> None:
    methods = {"run": "Odd.run", "nested": "Odd.nested", "child": "Odd.nested"}
    for form, method in {**methods, "finally": "Odd.run"}.items():
        world = world_with({"kind": f"{HERE}Odd", "value": value, "form": form})
        error = error_of(world.simulation)
        time = "1.0" if method == "Odd.run" else "2.0"
        assert f"the process '{HERE}Odd' failed at {time} s" in error
        assert f"{method} (test_wrong_events.py, line " in error
        assert "; allowed is an event of this run, such as world.timeout(5.0)" in error
        assert HINTS.get(value, "") in error
    assert Odd.caught.pop() == value
    error = error_of(world_with({"kind": f"{HERE}function", "value": value}).simulation)
    assert "function (test_wrong_events.py, line " in error


@pytest.mark.parametrize("value", VALUES)
def test_a_process_of_a_clock_that_yields_no_event_is_named(value: str) -> None:
    simulation = Simulation()

    def odd() -> Generator[Any, Any, Any]:
        yield simulation.env.timeout(1.0)
        yield VALUES[value](simulation.env)

    simulation.process(odd())
    assert "odd (test_wrong_events.py, line " in error_of(simulation)
    process = simulation.env.process(odd())  # whose error SimPy raises as a copy
    with pytest.raises(SimulationError, match=r"odd \(test_wrong_events.py, line "):
        simulation.env.run(until=process)


@pytest.mark.parametrize("value", [None, 5, waiting, [], coroutine])
def test_a_process_that_is_no_generator_is_refused(value: object) -> None:
    for start in (Simulation().env.process, Simulation().process):
        with pytest.raises(SimulationError, match=r"generator is .*; allowed is a generator"):
            start(value)  # type: ignore[arg-type]


def test_a_process_that_goes_on_after_an_odd_value_ends_all_the_same() -> None:
    simulation = Simulation()

    def stubborn() -> Generator[Any, Any, Any]:
        for _ in range(2):
            try:
                yield None
            except BaseException:  # also GeneratorExit
                continue

    simulation.process(stubborn())
    assert "stubborn (test_wrong_events.py, line " in error_of(simulation)


def story(env: simpy.Environment, log: list[object]) -> Generator[Any, Any, Any]:
    """Exercises all that a process may do, and logs it with the times."""

    def child(seconds: float) -> Generator[Any, Any, Any]:
        try:
            got = yield env.timeout(seconds, value="fired")
            log.append((env.now, got))
        except simpy.Interrupt as interrupt:
            log.append((env.now, "interrupted", interrupt.cause))
            yield env.timeout(1.0)
            raise KeyError("after the interrupt") from None
        return seconds

    log.append((yield from child(1.0)))
    done = env.event().succeed(7)
    yield env.timeout(0.5)
    log.append((yield done))  # processed already
    process = env.process(child(10.0))
    log.append((process.name, process.is_alive))
    yield env.timeout(2.0)
    process.interrupt("cause")
    try:
        yield process
    except KeyError as error:
        log.append((env.now, str(error), type(error.__cause__).__name__))
    failed = env.event()
    failed.fail(ValueError("failed"))
    try:
        yield failed
    except ValueError as error:
        log.append(str(error))
    both = yield env.process(child(1.0)) & env.timeout(2.0, value=2)
    log.append([*both.values()])
    either = yield env.any_of([env.event(), env.timeout(1.0, value=3)])
    log.append([*either.values()])
    with simpy.Resource(env).request() as request:
        yield request
    log.append((yield env.process(iter_of_nothing(env))))
    return env.now


def iter_of_nothing(env: simpy.Environment) -> Generator[Any, Any, Any]:
    return "result"
    yield env


def test_processes_do_as_those_of_simpy() -> None:
    logs: list[list[object]] = []
    for env in (simpy.Environment(), Simulation().env):
        log: list[object] = []
        log.append(env.run(until=env.process(story(env, log))))
        logs.append(log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 10


def test_checked_events_pass_on_what_is_sent_thrown_and_returned() -> None:
    env = Simulation().env
    log: list[object] = []

    def events() -> Generator[Any, Any, Any]:
        try:
            log.append((yield env.event()))
            yield env.event()
        except KeyError:
            yield env.event()
        finally:
            log.append("closed")

    checked = CheckedEvents(events(), env)
    assert next(checked).env is env
    checked.send("sent")
    checked.throw(KeyError())
    assert checked.__name__ == "events"
    checked.close()
    assert log == ["sent", "closed"]


OWN_EVENTS: dict[str, Callable[[World], Any]] = {
    "Sending": lambda world: world.send(0, "server", "1 MB"),
    "ComputeActivity": lambda world: world.compute(1, samples=20),
    "TimeEvent": lambda world: world.until(3.0),
    "_EndOfRun": lambda world: world.simulation.ended,
}
"""Class -> function that makes an event that fedsim alone fires."""


@pytest.mark.parametrize("kind", OWN_EVENTS)
def test_an_event_of_fedsim_cannot_be_fired_by_users(kind: str) -> None:
    world = world_with()
    event = OWN_EVENTS[kind](world)
    for _ in range(2):
        for name, fire in {
            "succeed": event.succeed,
            "fail": partial(event.fail, ValueError()),
            "trigger": partial(event.trigger, world.env.event().succeed()),
        }.items():
            with pytest.raises(SimulationError, match=rf"^{kind}\.{name}: fedsim fires"):
                fire()
    assert not event.triggered
    asyncio.run(world.simulation.run())
    assert event.processed or kind == "_EndOfRun"


@pytest.mark.parametrize("kind", ["Sending", "ComputeActivity"])
def test_an_activity_can_be_cancelled_at_any_time(kind: str) -> None:
    world = world_with()
    activity = OWN_EVENTS[kind](world)
    with activity:
        activity.cancel()
    activity.cancel()
    asyncio.run(world.simulation.run())
    activity.cancel()
    assert activity.outcome == "cancelled"
    ended = OWN_EVENTS[kind](world := world_with())
    asyncio.run(world.simulation.run())
    ended.cancel()
    assert ended.outcome == "done"


def test_effects_can_be_ended_at_any_time() -> None:
    world = world_with()
    holds = [world.limit("device 0 up", 1.0), world.slow(0, 0.5), world.off(1)]
    for hold in holds:
        hold.end()
        hold.end()
    asyncio.run(world.simulation.run())
    for hold in holds:
        hold.end()
    assert world.available(1)
