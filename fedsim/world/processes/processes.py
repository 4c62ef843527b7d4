"""Starts the processes of a run, and keeps the books of what they hold and have begun."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import simpy

from fedsim.environment import ProcessGenerator
from fedsim.errors import CheckpointError, FedsimError, ScenarioError, SimulationError
from fedsim.simulation import Simulation, on_grid
from fedsim.streams import Streams
from fedsim.world.compute import Compute
from fedsim.world.device_kinds import Capacity
from fedsim.world.life import TaskRunner
from fedsim.world.messages import Edges
from fedsim.world.network.base import Network
from fedsim.world.population import Population
from fedsim.world.processes.activity import Call, ComputeActivity, Sending
from fedsim.world.processes.world import Hold, World
from fedsim.world.task import Payload, Work

if TYPE_CHECKING:
    from fedsim.world.processes.base import Process

_OF_PROCESSES = {"process", "compute", "network", "latency", "cut"}  # alarms, where nobody else sends


class Processes:
    """Starts the processes of a run, and knows what they hold; ``ScenarioError`` if one does not fit this world.

    Attributes:
        world: the face of the world for processes that are started from Python.
    """

    def __init__(
        self,
        specs: "Sequence[Process]",
        simulation: Simulation,
        streams: Streams,
        capacity: Capacity,
        population: Population,
        compute: Compute,
        network: Network,
        tasks: TaskRunner,
        edges: Edges,
        on_switched_on: Callable[[int], None],
    ) -> None:
        self.simulation, self.streams, self.network, self.edges = simulation, streams, network, edges
        self.capacity, self.population, self.tasks, self._compute = capacity, population, tasks, compute
        self._specs, self._on_switched_on = specs, on_switched_on
        self._held: dict[tuple[str, str | int], list[float]] = {}
        self._begun: dict[tuple[int, Call], list[Any]] = {}  # while processes are restored: what they had begun
        self._asleep: dict[tuple[int, float], list[simpy.Event]] = {}  # while processes are restored: until when they wait
        self._sending: dict[Sending, int] = {}  # and whose each is
        self._computing: dict[int, tuple[ComputeActivity, int]] = {}
        self._computed = 0
        self._switched_on: dict[int, simpy.Event] = {}
        self._restoring = self._silent = False  # silent: while processes are restored, and when the run is over
        *self._worlds, self.world = [World(self, number, network.devices) for number in range(len(specs) + 1)]
        for number, (spec, world) in enumerate(zip(specs, self._worlds, strict=True)):
            try:
                spec.check(world)
            except SimulationError as error:
                raise ScenarioError(f"world.processes.{number} ({spec.kind!r}): {error}") from None
        if specs:
            simulation.idle = self._nothing_left
        simulation.at_end(self._end)
        self._start()

    def _start(self) -> list[simpy.Process]:
        return [self.simulation.process(self._play(*each)) for each in zip(self._specs, self._worlds, strict=True)]

    def _play(self, spec: "Process", world: World) -> Generator[Any, Any, Any]:
        """A process whose mistakes are told by file and line."""
        try:
            yield from spec.run(world)
        except CheckpointError:
            raise
        except FedsimError as error:
            raise SimulationError(f"the process {spec.kind!r} failed at {world.now!r} s: {error}") from error
        except Exception as error:
            at = extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            told = f"the process {spec.kind!r} failed at {world.now!r} s in {where}: {type(error).__name__}: {error}"
            raise SimulationError(told) from error

    def _nothing_left(self) -> bool:
        """Whether nobody works, nobody is held off, and nothing is to come but what processes do: the run is over then."""
        gone = self.tasks.off or self.edges.off
        busy = self.tasks.running or len(self.edges.messages.under_way) > len(self._sending)
        return not busy and not gone and set(self.simulation.expected()) <= _OF_PROCESSES

    def _end(self) -> None:
        self._silent = True

    # What processes begin and wait for.

    def sleep(self, number: int, when: float) -> simpy.Event:
        """An event at a time (s) for the process of that number; while it is restored its alarm is set again by ``rearm``."""
        when = on_grid(when)
        if not self.simulation.now <= when < math.inf:
            raise SimulationError(f"a process cannot wait from {self.simulation.now!r} s until {when!r} s")
        event = self.simulation.env.event()
        if self._restoring:
            self._asleep.setdefault((number, when), []).append(event)
        elif not self._silent:
            self._wake(number, when, event)
        return event

    def _wake(self, number: int, when: float, event: simpy.Event) -> None:
        self.simulation.wake(("process", number), when, partial(_succeed, event))

    def send(self, number: int, source: int, destination: int, size: float, purpose: str, waited: float) -> Sending:
        call = ("send", source, destination, size, purpose)
        message = self._taken_up(number, call)
        if message is None:
            message = self.edges.messages.send(source, destination, (Payload(purpose, size),), None, waited=waited)
        sending = Sending(self.simulation.env, call, self.edges.messages, message, self._sending.pop)
        self._sending[sending] = number
        return sending

    def compute(self, number: int, device: int, work: Work) -> ComputeActivity:
        call = ("compute", device, work.samples, work.flops, work.seconds)
        begun = self._taken_up(number, call)
        if begun is not None:
            computing: ComputeActivity = begun
            return computing
        if self.tasks.steps.hosts is not None:
            raise SimulationError(f"a process computes on device {device}, whose host shares its cores among tasks alone")
        now, pace = self.simulation.now, self.tasks.steps.paces.get(device, 1.0)
        until, lasts = self.tasks.reachable_until(device), self.population.working_s(device, work) / pace
        away = until <= now
        (ends,) = [on_grid(now + lasts)] if away else self._compute.epoch_ends(device, now, lasts, 1, math.inf, until)
        computing = self._computing_of(number, call, self._computed, device, now, ends, until, pace)
        self._computed += 1
        computing.arm()
        return computing

    def _computing_of(self, number: int, *saved: Any) -> ComputeActivity:
        arguments: Any = self.simulation.env, *saved, self._computed_by
        computing = ComputeActivity(*arguments)
        self._computing[computing.number] = computing, number
        return computing

    def _computed_by(self, ended: ComputeActivity) -> None:
        del self._computing[ended.number]
        self.emit("process:compute", device=ended.device, start=ended.began, how=ended.outcome)

    def _taken_up(self, number: int, call: Call) -> Any:
        """Work that a restored process had begun by this call, else ``CheckpointError``; None if nothing is restored."""
        if not self._restoring:
            return None
        begun = self._begun.get((number, call))
        if not begun:
            raise CheckpointError(
                f"the process {self._specs[number].kind!r} does not come to where it was: it had not begun {call[0]}{call[1:]}"
            )
        return begun.pop(0)

    def wait_for(self, number: int, device: int) -> ProcessGenerator:
        while self.tasks.reachable_until(device) <= self.simulation.now:
            if device in self.tasks.off:
                yield self._switched_on.setdefault(device, self.simulation.env.event())
            elif (when := self.tasks.next_on(device, self.simulation.now)) < math.inf:
                yield self.sleep(number, when)
            else:
                yield self.simulation.env.event()

    def emit(self, kind: str, **fields: Any) -> None:
        if not self._silent:
            self.simulation.emit(kind, **fields)

    def hold(self, what: str, keys: Sequence[str | int], value: float) -> Hold:
        for key in keys:
            self._held.setdefault((what, key), []).append(value)
            self._carry_out(what, key)
        return Hold(partial(self._let_go, what, keys, value))

    def _let_go(self, what: str, keys: Sequence[str | int], value: float) -> None:
        for key in keys:
            held = self._held[what, key]
            held.remove(value)
            if not held:
                del self._held[what, key]
            self._carry_out(what, key)

    def _carry_out(self, what: str, key: str | int) -> None:
        """Bring about what is held of a thing now, and record it if that changes anything."""
        if self._silent:
            return
        wanted, device = self._held.get((what, key), []), key if isinstance(key, int) else -1
        if what == "link":
            link, rate = str(key), min(wanted, default=None)
            if self.network.limits.get(link) != rate:
                self.network.limit(link, rate)
                now = self.network.built_rate(link) if rate is None else rate
                self.emit("link-rate", link=link, rate=None if now == math.inf else now)
        elif what == "pace":
            if self.tasks.steps.paces.get(device, 1.0) != (pace := math.prod(wanted)):
                self.tasks.set_pace(device, pace)
                self.emit("pace", device=device, factor=pace)
                for computing in self._computing_on(device):
                    computing.set_pace(pace)
        elif what == "edge":
            if wanted and device not in self.edges.off:
                self.emit("edge-off", edge=device)
                self.edges.switch_off(device)
                self.tasks.lose_edge(device)
            elif not wanted:
                self.emit("edge-on", edge=device)
                self.edges.off.discard(device)
        elif wanted and device not in self.tasks.off:
            self.emit("switch-off", device=device)
            self.tasks.switch_off(device)
            for computing in self._computing_on(device):
                computing.cancel("lost")
        elif not wanted:
            self.emit("switch-on", device=device)
            self.tasks.off.discard(device)
            self._on_switched_on(device)
            if device in self._switched_on:
                self._switched_on.pop(device).succeed()

    def _computing_on(self, device: int) -> list[ComputeActivity]:
        return [computing for computing, _ in self._computing.values() if computing.device == device]

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        return {
            "states": [world.state for world in self._worlds],
            "sending": [(number, sending.call, sending.message.id) for sending, number in self._sending.items()],
            "computing": [(number, computing.saved()) for computing, number in self._computing.values()],
            "computed": self._computed,
        }

    def restore(self, state: Mapping[str, Any], alarms: Sequence[tuple[str, int, float]]) -> None:
        """Bring each process to where it was, when all else is: what it had begun it takes up. Alarms follow by ``rearm``.

        ``CheckpointError``: a process does not come to hold what was held, or to wait for what it waited for.
        """
        for world, saved in zip(self._worlds, state["states"], strict=True):
            world.state = dict(saved)
        self._computed = state["computed"]
        for number, call, message in state["sending"]:
            self._begun.setdefault((number, call), []).append(self.edges.messages.under_way[message])
        for number, saved in state["computing"]:
            self._begun.setdefault((number, saved[0]), []).append(self._computing_of(number, *saved))
        self._silent = self._restoring = True
        self._start()
        while self.simulation.env.peek() <= self.simulation.now:
            self.simulation.env.step()  # the beginning of each process, up to its first wait
        self._silent = self._restoring = False
        self._begun.clear()
        due = Counter((number, when) for kind, number, when in alarms if kind == "process")
        for (number, when), events in self._asleep.items():
            if len(events) > due[number, when]:
                kind = self._specs[number].kind
                raise CheckpointError(f"the process {kind!r} does not come to where it was: it had not waited until {when!r} s")
        held: dict[str, dict[Any, float]] = {"link": {}, "pace": {}, "off": {}, "edge": {}}
        for (what, key), values in self._held.items():
            value = min(values) if what == "link" else math.prod(values)
            if what != "pace" or value != 1.0:
                held[what][key] = value
        there = {"link": self.network.limits, "pace": self.tasks.steps.paces}
        there |= {"off": dict.fromkeys(self.tasks.off, 1.0), "edge": dict.fromkeys(self.edges.off, 1.0)}
        if held != there:
            raise CheckpointError(f"the processes of the world do not come to where they were: they held {there}, now {held}")

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm that was there when the snapshot was taken: a ``process`` wakes up, or the end of a ``compute``."""
        if kind == "compute":
            self._computing[number][0].arm()
        else:
            waiting = self._asleep.get((number, when))
            self._wake(number, when, waiting.pop(0) if waiting else self.simulation.env.event())


def _succeed(event: simpy.Event) -> None:
    event.succeed()
