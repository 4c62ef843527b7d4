"""What a process of the world may do to it, and the books of what it does.

What several processes do to one thing at a time adds up: a link carries the least that any of them leaves it, factors of a
device's speed are multiplied, and a device is off while any of them holds it off.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import simpy
from pydantic import TypeAdapter, ValidationError

from fedsim.environment import ProcessGenerator
from fedsim.errors import CheckpointError, FedsimError, ScenarioError, SimulationError
from fedsim.language.units import Bytes, Flops, Seconds
from fedsim.simulation import Environment, Simulation, on_grid
from fedsim.streams import Streams
from fedsim.world.capacity import Capacity
from fedsim.world.compute import Compute
from fedsim.world.edges import Edges
from fedsim.world.life import TaskRunner
from fedsim.world.network.base import Network
from fedsim.world.network.flow import SERVER, Direction
from fedsim.world.population import Population
from fedsim.world.processes.activity import Activity, Call, Computing, DeviceFacts, Sending
from fedsim.world.task import Payload, Work

if TYPE_CHECKING:
    from fedsim.world.processes.base import Process

_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")  # of every record; a process may say a device


_OF_PROCESSES = {"process", "compute", "network", "latency", "cut"}  # alarms, where nobody else sends


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

    Endpoints are ``"server"``, ``"device 7"`` (or 7), ``"edge 3"`` and the names of hosts.

    Attributes:
        env: SimPy's environment, for ``env.process``, ``env.event``, ``simpy.Resource(world.env, 2)`` and all the rest.
        simulation: the clock; ``world.simulation.listen`` tells of every record.
        devices: how many there are.
        state: what a process that can be restored must remember; values that JSON has.
    """

    def __init__(self, processes: "Processes", number: int, devices: int) -> None:
        self._processes = processes
        self._number = number
        self.simulation = processes.simulation
        self.env: Environment = self.simulation.env
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

    def send(self, source: int | str, destination: int | str, size: float | str, purpose: str = "process") -> Activity:
        """Send a message of ``size`` bytes (``"5 MB"``) from any endpoint to any other, over the links between them.

        Its value is the ``Activity``: ``outcome`` is ``lost`` if an end cannot be reached, or not until the last byte is there.
        """
        ends = self._endpoint(source), self._endpoint(destination)
        return self._processes.send(self._number, *ends, quantity(size, Bytes, "a message"), purpose)

    def compute(
        self, device: int | str, work: float | str = 0.0, *, samples: float = 0.0, seconds: float | str = 0.0
    ) -> Activity:
        """Let a device compute: FLOPs (``"3 GFLOP"``), as long as a training on so many samples, or some seconds; they add up.

        It takes what the device's speed, jitter, slow phases and ``slow`` make of it. It runs beside the device's task, if it
        has one. Its value is the ``Activity``: ``outcome`` is ``lost`` if the device cannot be reached meanwhile.
        """
        (number,) = self._numbers(self._endpoint(device))
        asked = Work(samples, quantity(work, Flops, "work"), quantity(seconds, Seconds, "a time"))
        if not 0 <= samples < math.inf:
            raise SimulationError(f"a device cannot compute {samples!r} samples; allowed is a number of 0 or more")
        return self._processes.compute(self._number, number, asked)

    def device(self, device: int | str) -> DeviceFacts:
        """What a device is like."""
        (number,) = self._numbers(self._endpoint(device))
        return self._processes.facts(number)

    def available(self, device: int | str) -> bool:
        """Whether a device can be reached now, whether it works or not."""
        (number,) = self._numbers(self._endpoint(device))
        return self._processes.reachable_until(number) > self.now

    def until_available(self, device: int | str) -> simpy.Event:
        """An event that fires when a device can be reached; at once if that is now."""
        (number,) = self._numbers(self._endpoint(device))
        return self.env.process(self._processes.wait_for(self._number, number))

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

    def _endpoint(self, endpoint: int | str) -> int:
        return endpoint if isinstance(endpoint, int) else self._processes.network.endpoint(endpoint)

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
        simulation, streams, capacity, population, compute, network, tasks, edges: the world.
        on_switched_on: told of each device that is switched on again.

    Attributes:
        world: the face of the world for processes that are started from Python.

    Raises:
        ScenarioError: a process does not fit this world.
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
        self._capacity, self._population, self._compute = capacity, population, compute
        self._specs, self._tasks, self._on_switched_on = specs, tasks, on_switched_on
        self._held: dict[tuple[str, str | int], list[float]] = {}
        self._begun: dict[tuple[int, Call], list[Any]] = {}  # while processes are restored: what they had begun
        self._asleep: dict[tuple[int, float], list[simpy.Event]] = {}  # while processes are restored: until when they wait
        self._sending: dict[Sending, int] = {}  # and whose each is
        self._computing: dict[int, tuple[Computing, int]] = {}
        self._computed = 0
        self._switched_on: dict[int, simpy.Event] = {}
        self._restoring = False
        self._silent = False  # while processes are restored, and when the run is over
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
        gone = self._tasks.off or self.edges.off
        busy = self._tasks.running or len(self.edges.messages.under_way) > len(self._sending)
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
        def ring() -> None:
            event.succeed()

        self.simulation.wake(("process", number), when, ring)

    def send(self, number: int, source: int, destination: int, size: float, purpose: str) -> Sending:
        """Send a message for the process of that number, or take up the one that it had begun when it was saved."""
        call = ("send", source, destination, size, purpose)
        message = self._taken_up(number, call)
        if message is None:
            message = self.edges.messages.send(source, destination, (Payload(purpose, size),), None, _nobody)
        sending = Sending(self.simulation.env, call, self.network, self.edges.messages, message, self._sending.pop)
        self._sending[sending] = number
        return sending

    def compute(self, number: int, device: int, work: Work) -> Computing:
        """Let a device compute for the process of that number, or take up what it had begun when it was saved."""
        call = ("compute", device, work.samples, work.flops, work.seconds)
        begun = self._taken_up(number, call)
        if begun is not None:
            computing: Computing = begun
            return computing
        now, pace, until = self.simulation.now, self._tasks.computing.paces.get(device, 1.0), self.reachable_until(device)
        lasts = self._population.working_s(device, work) / pace
        away = until <= now
        (ends,) = [on_grid(now + lasts)] if away else self._compute.epoch_ends(device, now, lasts, 1, math.inf, until)
        computing = self._computing_of(number, call, self._computed, device, now, ends, until, pace)
        self._computed += 1
        computing.arm()
        return computing

    def _computing_of(self, number: int, *saved: Any) -> Computing:
        arguments: Any = self.simulation.env, *saved, self._computed_by
        computing = Computing(*arguments)
        self._computing[computing.number] = computing, number
        return computing

    def _computed_by(self, ended: Computing) -> None:
        del self._computing[ended.number]
        facts: dict[str, Any] = {"device": ended.device, "start": ended.began, "how": ended.outcome}
        self.emit("process:compute", **facts)

    def _taken_up(self, number: int, call: Call) -> Any:
        """What a process that is restored had begun by this call; None if it is not restored.

        Raises:
            CheckpointError: it had not begun that.
        """
        if not self._restoring:
            return None
        begun = self._begun.get((number, call))
        if not begun:
            raise CheckpointError(
                f"the process {self._specs[number].kind!r} does not come to where it was: it had not begun {call[0]}{call[1:]}"
            )
        return begun.pop(0)

    def reachable_until(self, device: int) -> float:
        """Until when a device can be reached (s); now if it cannot be."""
        return self._tasks.reachable_until(device)

    def wait_for(self, number: int, device: int) -> ProcessGenerator:
        """End when a device can be reached."""
        while self.reachable_until(device) <= self.simulation.now:
            if device in self._tasks.off:
                yield self._switched_on.setdefault(device, self.simulation.env.event())
            elif (when := self._tasks.next_on(device, self.simulation.now)) < math.inf:
                yield self.sleep(number, when)
            else:
                yield self.simulation.env.event()

    def facts(self, device: int) -> DeviceFacts:
        """See ``World.device``."""
        population, network, now = self._population, self.network, self.simulation.now
        arrival, departure = population.arrival.item(device), population.departure.item(device)
        return DeviceFacts(
            population.speed.item(device),
            None if population.flops is None else population.flops.item(device),
            network.access_rate(device, "down"),
            network.access_rate(device, "up"),
            network.latency_s(SERVER, device),
            population.samples.item(device),
            self._capacity.name(device),
            arrival,
            departure,
            arrival <= now < departure,
        )

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
                for computing in self._computing_on(device):
                    computing.set_pace(pace)
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
            for computing in self._computing_on(device):
                computing.cut()
        elif not wanted:
            self.emit("switch-on", device=device)
            self._tasks.switch_on(device)
            self._on_switched_on(device)
            if device in self._switched_on:
                self._switched_on.pop(device).succeed()

    def _computing_on(self, device: int) -> list[Computing]:
        return [computing for computing, _ in self._computing.values() if computing.device == device]

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """What each process remembers and has begun; ``restore`` takes it back."""
        return {
            "states": [world.state for world in self._worlds],
            "sending": [(number, sending.call, sending.message.id) for sending, number in self._sending.items()],
            "computing": [(number, computing.saved()) for computing, number in self._computing.values()],
            "computed": self._computed,
        }

    def restore(self, state: Mapping[str, Any], alarms: Sequence[tuple[str, int, float]]) -> None:
        """Bring each process to where it was, when all else is: what it had begun it takes up. Alarms follow by ``rearm``.

        Raises:
            CheckpointError: a process does not come to hold what was held, or to wait for what it waited for.
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
        there = {
            "link": self.network.limits,
            "pace": self._tasks.computing.paces,
            "off": dict.fromkeys(self._tasks.off, 1.0),
        }
        there["edge"] = dict.fromkeys(self.edges.off, 1.0)
        if held != there:
            raise CheckpointError(f"the processes of the world do not come to where they were: they held {there}, now {held}")

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm that was there when the snapshot was taken: a ``process`` wakes up, or the end of a ``compute``."""
        if kind == "compute":
            self._computing[number][0].arm()
        else:
            waiting = self._asleep.get((number, when))
            self._wake(number, when, waiting.pop(0) if waiting else self.simulation.env.event())


def _nobody(*_: object) -> None:
    """A message is told to whoever waits for it."""


def quantity(value: float | str, kind: Any, what: str) -> float:
    """A number in the base unit, or text with a unit, as a number.

    Raises:
        SimulationError: it is no such quantity.
    """
    try:
        number = TypeAdapter[float](kind).validate_python(value) if isinstance(value, str) else float(value)
    except ValidationError as error:
        raise SimulationError(f"{what} is {value!r}: {error.errors()[0]['msg']}") from None
    if not 0 <= number < math.inf:
        raise SimulationError(f"{what} is {value!r}; allowed is a finite number of 0 or more")
    return number
