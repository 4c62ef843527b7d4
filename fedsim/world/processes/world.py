"""What a process of the world may do to it, and the books of what it does.

What several processes do to one thing at a time adds up: a link carries the least that any of them leaves it, factors of a
device's speed are multiplied, and a device is off while any of them holds it off.
"""

import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import simpy

from fedsim.errors import CheckpointError, FedsimError, ScenarioError, SimulationError
from fedsim.simulation import Environment, Simulation, on_grid
from fedsim.streams import Streams
from fedsim.world.edges import Edges
from fedsim.world.life import TaskRunner
from fedsim.world.network.base import Network
from fedsim.world.network.flow import Direction

if TYPE_CHECKING:
    from fedsim.world.processes.base import Process

_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")  # of every record; a process may say a device


class Hold:
    """Something that a process does to the world until ``end()``, or to the end of a ``with``."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        """Undo it; once is enough."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


class World:
    """What a process sees of the world. Times are simulated seconds, rates bytes/s.

    Attributes:
        env: SimPy's environment, for ``env.process``, ``env.event``, ``simpy.Resource(world.env, 2)`` and all the rest.
        devices: how many there are.
        state: what a process that can be restored must remember; values that JSON has.
    """

    def __init__(self, processes: "Processes", number: int, devices: int) -> None:
        self._processes = processes
        self._number = number
        self.env: Environment = processes.simulation.env
        self.devices = devices
        self.state: dict[str, Any] = {}

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._processes.simulation.now

    def timeout(self, seconds: float) -> simpy.Event:
        """An event so many seconds from now, on the clock's grid. ``env.timeout`` is the same off the grid."""
        return self.until(self.now + seconds)

    def until(self, when: float) -> simpy.Event:
        """An event at a time (s), on the clock's grid."""
        return self._processes.sleep(self._number, when)

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A random stream of this process's own; the same for the same purpose and ids, whatever the strategy does."""
        return self._processes.streams.generator(f"world/process/{purpose}", self._number, *ids)

    def rate(self, link: str) -> float:
        """What a link was built to carry: ``server up``, ``cell 3 down``, ``device 7 up``, ``a -> b``."""
        return self._processes.network.built_rate(link)

    def cell(self, number: int) -> list[int]:
        """The devices of a cell, or of the place of that number in ``attach``."""
        return self._processes.network.devices_at(number)

    def limit(self, link: str, rate: float = 0.0) -> Hold:
        """A link carries ``rate`` meanwhile; nothing, if that is 0. What is on its way goes on at once at its new share."""
        self.rate(link)
        if not rate >= 0:
            raise SimulationError(f"a link cannot carry {rate!r} B/s; allowed is 0 or more")
        return self._processes.hold("link", [link], rate)

    def slow(self, devices: int | Iterable[int], factor: float) -> Hold:
        """Devices compute at a factor of their speed meanwhile, also what they compute now."""
        if not 0 < factor < math.inf:
            raise SimulationError(f"a device cannot compute at {factor!r} of its speed; allowed is a number above 0")
        return self._processes.hold("pace", self._numbers(devices), factor)

    def off(self, devices: int | Iterable[int]) -> Hold:
        """Devices cannot be reached meanwhile, whatever their availability; what they do now is lost."""
        return self._processes.hold("off", self._numbers(devices), 1.0)

    def lose(self, edges: int | Iterable[int]) -> Hold:
        """Edge servers are lost meanwhile, with all that they hold, and what their devices do for them now."""
        count = self._processes.edges.count
        numbers = [edges] if isinstance(edges, int) else [int(edge) for edge in edges]
        for edge in numbers:
            if not 0 <= edge < count:
                allowed = f"allowed are 0 to {count - 1}" if count else "the network has none (network.edge)"
                raise SimulationError(f"there is no edge server {edge}; {allowed}")
        return self._processes.hold("edge", numbers, 1.0)

    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """From now on each upload (``up``) or download (``down``) requests a slot before it begins, and releases it after."""
        self._processes.queue(direction, slots)

    def emit(self, kind: str, **data: Any) -> None:
        """Record that something happened, as an event of the kind ``process:KIND``; ``device`` may be one of the data."""
        wrong = [key for key in data if key in _COLUMNS and (key != "device" or type(data[key]) is not int)]
        if wrong:
            raise SimulationError(f"{wrong[0]!r} is a column of its own in the records; give what you say another name")
        try:
            json.dumps(data)
        except (TypeError, ValueError) as error:
            raise SimulationError(f"what the process says at {kind!r} must be JSON: {error}") from None
        self._processes.emit(f"process:{kind}", **data)

    def _numbers(self, devices: int | Iterable[int]) -> list[int]:
        numbers = [devices] if isinstance(devices, int) else [int(device) for device in devices]
        for device in numbers:
            if not 0 <= device < self.devices:
                raise SimulationError(f"there is no device {device}; allowed are 0 to {self.devices - 1}")
        return numbers


class Processes:
    """Starts the processes of a run, and knows what they hold.

    Args:
        specs: what they are.
        simulation, streams, network, tasks, edges: the world.
        on_switched_on: told of each device that is switched on again.

    Raises:
        ScenarioError: a process does not fit this world.
    """

    def __init__(
        self,
        specs: "Sequence[Process]",
        simulation: Simulation,
        streams: Streams,
        network: Network,
        tasks: TaskRunner,
        edges: Edges,
        on_switched_on: Callable[[int], None],
    ) -> None:
        self.simulation, self.streams, self.network, self.edges = simulation, streams, network, edges
        self._specs, self._tasks, self._on_switched_on = specs, tasks, on_switched_on
        self._held: dict[tuple[str, str | int], list[float]] = {}
        self._asleep: dict[int, simpy.Event] = {}
        self._silent = False  # while processes are restored, and when the run is over
        self._worlds = [World(self, number, network.devices) for number in range(len(specs))]
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
        except FedsimError as error:
            raise SimulationError(f"the process {spec.kind!r} failed at {world.now!r} s: {error}") from error
        except Exception as error:
            at = extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            told = f"the process {spec.kind!r} failed at {world.now!r} s in {where}: {type(error).__name__}: {error}"
            raise SimulationError(told) from error

    def _nothing_left(self) -> bool:
        """Whether nobody works, nobody is held off, and nothing is to come but what processes do: the run is over then."""
        gone = self._tasks.off or self.edges.off
        busy = self._tasks.running or self.edges.messages.under_way
        return not busy and not gone and set(self.simulation.expected()) <= {"process"}

    def _end(self) -> None:
        self._silent = True

    def sleep(self, number: int, when: float) -> simpy.Event:
        """An event at a time (s) for the process of that number; while it is restored its alarm is set again by ``rearm``."""
        when = on_grid(when)
        if not self.simulation.now <= when < math.inf:
            raise SimulationError(f"a process cannot wait from {self.simulation.now!r} s until {when!r} s")
        event = self.simulation.env.event()
        self._asleep[number] = event
        if not self._silent:
            self._wake(number, when, event)
        return event

    def _wake(self, number: int, when: float, event: simpy.Event) -> None:
        def ring() -> None:
            event.succeed()

        self.simulation.wake(("process", number), when, ring)

    def emit(self, kind: str, **fields: Any) -> None:
        """Record that something happened."""
        if not self._silent:
            self.simulation.emit(kind, **fields)

    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """See ``World.queue``."""
        if not isinstance(slots, simpy.Resource) or isinstance(slots, simpy.PreemptiveResource):
            raise SimulationError(f"messages queue for a simpy.Resource, or a PriorityResource; {slots!r} is none")
        self._tasks.queue(direction, slots)
        self.emit("queue", direction=direction, slots=slots.capacity)

    def hold(self, what: str, keys: Sequence[str | int], value: float) -> Hold:
        """Do something to links or devices, until the end of what is returned."""
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
            if self._tasks.computing.paces.get(device, 1.0) != (pace := math.prod(wanted)):
                self._tasks.set_pace(device, pace)
                self.emit("pace", device=device, factor=pace)
        elif what == "edge":
            if wanted and device not in self.edges.off:
                self.emit("edge-off", edge=device)
                self.edges.switch_off(device)
                self._tasks.lose_edge(device)
            elif not wanted:
                self.emit("edge-on", edge=device)
                self.edges.switch_on(device)
        elif wanted and device not in self._tasks.off:
            self.emit("switch-off", device=device)
            self._tasks.switch_off(device)
        elif not wanted:
            self.emit("switch-on", device=device)
            self._tasks.switch_on(device)
            self._on_switched_on(device)

    # Snapshots, between two instants.

    def snapshot(self) -> list[dict[str, Any]]:
        """What each process remembers; ``restore`` takes it back."""
        return [world.state for world in self._worlds]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Bring each process to where it was, when all else is. Alarms follow by ``rearm``.

        Raises:
            CheckpointError: a process does not come to hold what was held.
        """
        for world, state in zip(self._worlds, states, strict=True):
            world.state = dict(state)
        self._silent = True
        self._start()
        while self.simulation.env.peek() <= self.simulation.now:
            self.simulation.env.step()  # the beginning of each process, up to its first wait
        self._silent = False
        held: dict[str, dict[Any, float]] = {"link": {}, "pace": {}, "off": {}, "edge": {}}
        for (what, key), values in self._held.items():
            value = min(values) if what == "link" else math.prod(values)
            if what != "pace" or value != 1.0:
                held[what][key] = value
        there = {
            "link": self.network.limits,
            "pace": self._tasks.computing.paces,
            "off": dict.fromkeys(self._tasks.off, 1.0),
        }
        there["edge"] = dict.fromkeys(self.edges.off, 1.0)
        if held != there:
            raise CheckpointError(f"the processes of the world do not come to where they were: they held {there}, now {held}")

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm that was there when the snapshot was taken: a process wakes up."""
        self._wake(number, when, self._asleep[number])
