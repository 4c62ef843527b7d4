"""Interface of a process to the world.

What several processes do to one thing at a time adds up: a link carries the least that any of them leaves it, factors of a
device's speed are multiplied, and a device is off while any of them holds it off.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import simpy
from pydantic import TypeAdapter, ValidationError

from fedsim.environment import Environment, ProcessGenerator
from fedsim.errors import CheckpointError, SimulationError
from fedsim.language.units import Bytes, Flops, Seconds
from fedsim.simulation import Simulation, on_grid
from fedsim.streams import Streams
from fedsim.world.compute import Compute
from fedsim.world.device_kinds import Capacity
from fedsim.world.life import TaskRunner
from fedsim.world.messages import Messages
from fedsim.world.network.endpoints import SERVER, Direction
from fedsim.world.network.machine import Network
from fedsim.world.population import Population
from fedsim.world.processes.activity import Activity, Call, ComputeActivity, DeviceFacts, Sending
from fedsim.world.task import Payload, Work

_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")  # of every record; a process may say a device


class Hold(AbstractContextManager["Hold"]):
    """Something that a process does to the world until ``end()``, or to the end of a ``with``."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        """Undo it; once is enough."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __exit__(self, *_: object) -> None:
        self.end()


@dataclass(eq=False)
class ProcessContext:
    """The parts of a world, and what all its processes hold, have begun and wait for.

    Attributes:
        held: values by what they are held of: ``link``, ``pace``, ``off`` or ``edge``, and its key.
        begun, asleep: while processes are restored: what each had begun, by its call, and until when it waits.
        sending, computing: what is under way, and the number of the process whose it is; computations by their numbers.
        restoring, silent: whether processes are restored, and whether nothing is recorded: then, and when the run is over.
    """

    simulation: Simulation
    streams: Streams
    capacity: Capacity
    population: Population
    compute: Compute
    network: Network
    tasks: TaskRunner
    messages: Messages
    on_switched_on: Callable[[int], None]
    held: dict[tuple[str, str | int], list[float]] = field(default_factory=dict)
    begun: dict[tuple[int, Call], list[Any]] = field(default_factory=dict)
    asleep: dict[tuple[int, float], list[simpy.Event]] = field(default_factory=dict)
    sending: dict[Sending, int] = field(default_factory=dict)
    computing: dict[int, tuple[ComputeActivity, int]] = field(default_factory=dict)
    computed: int = 0
    switched_on: dict[int, simpy.Event] = field(default_factory=dict)
    restoring: bool = False
    silent: bool = False

    def emit(self, kind: str, **fields: Any) -> None:
        if not self.silent:
            self.simulation.emit(kind, **fields)

    def wake(self, number: int, when: float, event: simpy.Event) -> None:
        self.simulation.wake(("process", number), when, event.succeed)

    def taken_up(self, number: int, call: Call) -> Any:
        """Work that a restored process had begun by this call, else ``CheckpointError``; None if nothing is restored."""
        if not self.restoring:
            return None
        begun = self.begun.get((number, call))
        if not begun:
            raise CheckpointError(f"does not come to where it was: it had not begun {call[0]}{call[1:]}")
        return begun.pop(0)

    def computing_of(self, number: int, *saved: Any) -> ComputeActivity:
        arguments: Any = self.simulation.env, *saved, self._computed_by
        computing = ComputeActivity(*arguments)
        self.computing[computing.number] = computing, number
        return computing

    def _computed_by(self, ended: ComputeActivity) -> None:
        del self.computing[ended.number]
        self.emit("process:compute", device=ended.device, start=ended.began, how=ended.outcome)

    def hold(self, what: str, keys: Sequence[str | int], value: float) -> Hold:
        for key in keys:
            self.held.setdefault((what, key), []).append(value)
            self._carry_out(what, key)
        return Hold(partial(self._let_go, what, keys, value))

    def _let_go(self, what: str, keys: Sequence[str | int], value: float) -> None:
        for key in keys:
            held = self.held[what, key]
            held.remove(value)
            if not held:
                del self.held[what, key]
            self._carry_out(what, key)

    def _carry_out(self, what: str, key: str | int) -> None:
        """Bring about what is held of a thing now, and record it if that changes anything."""
        if self.silent:
            return
        wanted, device = self.held.get((what, key), []), key if isinstance(key, int) else -1
        if what == "link":
            link, rate = str(key), min(wanted, default=None)
            if self.network.limits.get(link) != rate:
                self.network.limit(link, rate)
                now = self.network.built_rate(link) if rate is None else rate
                self.emit("link-rate", link=link, rate=None if now == math.inf else now)
        elif what == "pace":
            if self.tasks.paces.get(device, 1.0) != (pace := math.prod(wanted)):
                self.tasks.set_pace(device, pace)
                self.emit("pace", device=device, factor=pace)
                for computing in self._computing_on(device):
                    computing.set_pace(pace)
        elif what == "edge":
            if wanted and device not in self.messages.lost:
                self.emit("edge-off", edge=device)
                self.messages.lose_edge(device)
                self.tasks.lose_edge(device)
            elif not wanted:
                self.emit("edge-on", edge=device)
                self.messages.lost.discard(device)
        elif wanted and device not in self.tasks.off:
            self.emit("switch-off", device=device)
            self.tasks.switch_off(device)
            for computing in self._computing_on(device):
                computing.cancel("lost")
        elif not wanted:
            self.emit("switch-on", device=device)
            self.tasks.off.discard(device)
            self.on_switched_on(device)
            if device in self.switched_on:
                self.switched_on.pop(device).succeed()

    def _computing_on(self, device: int) -> list[ComputeActivity]:
        return [computing for computing, _ in self.computing.values() if computing.device == device]


class World:
    """The world as a process sees it. Times are simulated seconds, rates bytes/s.

    Endpoints are ``"server"``, ``"device 7"`` (or 7), ``"edge 3"`` and the names of hosts.

    Attributes:
        env: SimPy's environment, for ``env.process``, ``env.event``, ``simpy.Resource(world.env, 2)`` and all the rest.
        simulation: the clock; ``world.simulation.listen`` tells of every record.
        devices: how many there are.
        state: what a process that can be restored must remember; values that JSON has.
    """

    def __init__(self, context: ProcessContext, number: int) -> None:
        self._context, self._number = context, number
        self.simulation = context.simulation
        self.env: Environment = self.simulation.env
        self.devices = context.network.devices
        self.state: dict[str, Any] = {}

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self.simulation.now

    def timeout(self, seconds: float) -> simpy.Event:
        """An event so many seconds from now, on the clock's grid. ``env.timeout`` is the same off the grid."""
        return self.until(self.now + seconds)

    def until(self, when: float) -> simpy.Event:
        """An event at a time (s), on the clock's grid."""
        when = on_grid(when)
        if not self.now <= when < math.inf:
            raise SimulationError(f"a process cannot wait from {self.now!r} s until {when!r} s")
        event = self.env.event()
        if self._context.restoring:  # its alarm is set again later
            self._context.asleep.setdefault((self._number, when), []).append(event)
        elif not self._context.silent:
            self._context.wake(self._number, when, event)
        return event

    def send(
        self, source: int | str, destination: int | str, size: float | str, purpose: str = "process", waited: float = 0.0
    ) -> Activity:
        """Send a message of ``size`` bytes (``"5 MB"``) from any endpoint to any other, over the links between them.

        One that has ``waited`` (s) behind another on the same connection pays so much less latency.

        Its value is the ``Activity``: ``outcome`` is ``lost`` if an end cannot be reached, or not until the last byte is there.
        """
        context, parts = self._context, (Payload(purpose, quantity(size, Bytes, "a message")),)
        ends = self._endpoint(source), self._endpoint(destination)
        call = ("send", *ends, parts[0].bytes, purpose)
        message = context.taken_up(self._number, call)
        if message is None:
            message = context.messages.send(*ends, parts, None, waited=waited)
        sending = Sending(self.env, call, context.messages, message, context.sending.pop)
        context.sending[sending] = self._number
        return sending

    def compute(
        self, device: int | str, work: float | str = 0.0, *, samples: float = 0.0, seconds: float | str = 0.0
    ) -> Activity:
        """Let a device compute: FLOPs (``"3 GFLOP"``), as long as a training on so many samples, or some seconds; they add up.

        It takes what the device's speed, jitter, slow phases and ``slow`` make of it. It runs beside the device's task, if it
        has one. Its value is the ``Activity``: ``outcome`` is ``lost`` if the device cannot be reached meanwhile.
        """
        number, context = self._device(device), self._context
        asked = Work(samples, quantity(work, Flops, "work"), quantity(seconds, Seconds, "a time"))
        if not 0 <= samples < math.inf:
            raise SimulationError(f"a device cannot compute {samples!r} samples; allowed is a number of 0 or more")
        call = ("compute", number, asked.samples, asked.flops, asked.seconds)
        begun: ComputeActivity | None = context.taken_up(self._number, call)
        if begun is not None:
            return begun
        if context.tasks.hosts is not None:
            raise SimulationError(f"a process computes on device {number}, whose host shares its cores among tasks alone")
        now, pace = self.now, context.tasks.paces.get(number, 1.0)
        until, lasts = context.tasks.reachable_until(number), context.population.working_s(number, asked) / pace
        away = until <= now
        (ends,) = [on_grid(now + lasts)] if away else context.compute.epoch_ends(number, now, lasts, 1, math.inf, until)
        computing = context.computing_of(self._number, call, context.computed, number, now, ends, until, pace)
        context.computed += 1
        computing.arm()
        return computing

    def device(self, device: int | str) -> DeviceFacts:
        """Properties of a device."""
        number, population, network = self._device(device), self._context.population, self._context.network
        arrival, departure = population.arrival.item(number), population.departure.item(number)
        return DeviceFacts(
            population.speed.item(number),
            None if population.flops is None else population.flops.item(number),
            network.access_rate(number, "down"),
            network.access_rate(number, "up"),
            network.latency_s(SERVER, number),
            population.samples.item(number),
            self._context.capacity.name(number),
            arrival,
            departure,
            arrival <= self.now < departure,
        )

    def available(self, device: int | str) -> bool:
        """Whether a device can be reached now, whether it works or not."""
        return self._context.tasks.reachable_until(self._device(device)) > self.now

    def until_available(self, device: int | str) -> simpy.Event:
        """An event that fires when a device can be reached; at once if that is now."""
        return self.env.process(self._wait_for(self._device(device)))

    def _wait_for(self, device: int) -> ProcessGenerator:
        tasks = self._context.tasks
        while tasks.reachable_until(device) <= self.now:
            if device in tasks.off:
                yield self._context.switched_on.setdefault(device, self.env.event())
            elif (when := tasks.next_on(device, self.now)) < math.inf:
                yield self.until(when)
            else:
                yield self.env.event()

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A random stream of this process's own; the same for the same purpose and ids, whatever the strategy does."""
        return self._context.streams.generator(f"world/process/{purpose}", self._number, *ids)

    def rate(self, link: str) -> float:
        """Built capacity of a link (bytes/s): ``server up``, ``cell 3 down``, ``device 7 up``, ``a -> b``."""
        return self._context.network.built_rate(link)

    def cell(self, number: int) -> list[int]:
        """The devices of a cell, or of the place of that number in ``attach``."""
        return self._context.network.devices_at(number)

    def limit(self, link: str, rate: float = 0.0) -> Hold:
        """A link carries ``rate`` meanwhile; nothing, if that is 0. What is on its way goes on at once at its new share."""
        self.rate(link)
        if not rate >= 0:
            raise SimulationError(f"a link cannot carry {rate!r} B/s; allowed is 0 or more")
        return self._context.hold("link", [link], rate)

    def slow(self, devices: int | Iterable[int], factor: float) -> Hold:
        """Devices compute at a factor of their speed meanwhile, also what they compute now."""
        if not 0 < factor < math.inf:
            raise SimulationError(f"a device cannot compute at {factor!r} of its speed; allowed is a number above 0")
        return self._context.hold("pace", self._numbers(devices), factor)

    def off(self, devices: int | Iterable[int]) -> Hold:
        """Devices cannot be reached meanwhile, whatever their availability; what they do now is lost."""
        return self._context.hold("off", self._numbers(devices), 1.0)

    def lose(self, edges: int | Iterable[int]) -> Hold:
        """Edge servers are lost meanwhile, with all that they hold, and what their devices do for them now."""
        count = self._context.messages.edges
        numbers = [edges] if isinstance(edges, int) else [int(edge) for edge in edges]
        for edge in numbers:
            if not 0 <= edge < count:
                allowed = f"allowed are 0 to {count - 1}" if count else "the network has none (network.edge)"
                raise SimulationError(f"there is no edge server {edge}; {allowed}")
        return self._context.hold("edge", numbers, 1.0)

    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """From now on each upload (``up``) or download (``down``) requests a slot before it begins, and releases it after."""
        if not isinstance(slots, simpy.Resource) or isinstance(slots, simpy.PreemptiveResource):
            raise SimulationError(f"messages queue for a simpy.Resource, or a PriorityResource; {slots!r} is none")
        self._context.tasks.queue(direction, slots)
        self._context.emit("queue", direction=direction, slots=slots.capacity)

    def emit(self, kind: str, **data: Any) -> None:
        """Record that something happened, as an event of the kind ``process:KIND``; ``device`` may be one of the data."""
        wrong = [key for key in data if key in _COLUMNS and (key != "device" or type(data[key]) is not int)]
        if wrong:
            raise SimulationError(f"{wrong[0]!r} is a column of its own in the records; give what you say another name")
        try:
            json.dumps(data)
        except (TypeError, ValueError) as error:
            raise SimulationError(f"what the process says at {kind!r} must be JSON: {error}") from None
        self._context.emit(f"process:{kind}", **data)

    def _endpoint(self, endpoint: int | str) -> int:
        return endpoint if isinstance(endpoint, int) else self._context.network.endpoint(endpoint)

    def _device(self, device: int | str) -> int:
        return self._numbers(self._endpoint(device))[0]

    def _numbers(self, devices: int | Iterable[int]) -> list[int]:
        numbers = [devices] if isinstance(devices, int) else [int(device) for device in devices]
        for device in numbers:
            if not 0 <= device < self.devices:
                raise SimulationError(f"there is no device {device}; allowed are 0 to {self.devices - 1}")
        return numbers


def quantity(value: float | str, kind: Any, what: str) -> float:
    """A number in the base unit, or text with a unit, as a number; ``SimulationError`` if it is no such quantity."""
    try:
        number = TypeAdapter[float](kind).validate_python(value) if isinstance(value, str) else float(value)
    except ValidationError as error:
        raise SimulationError(f"{what} is {value!r}: {error.errors()[0]['msg']}") from None
    if not 0 <= number < math.inf:
        raise SimulationError(f"{what} is {value!r}; allowed is a finite number of 0 or more")
    return number
