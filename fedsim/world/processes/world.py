"""The world as a process of SimPy sees it: messages, computations, effects and records."""

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import simpy
from pydantic import TypeAdapter, ValidationError

from fedsim.clock.environment import Environment, ProcessGenerator
from fedsim.clock.simulation import Simulation, on_grid
from fedsim.common.errors import SimulationError
from fedsim.common.streams import Streams
from fedsim.common.units import Bytes, Flops, Seconds
from fedsim.world.device_kinds import Capacity
from fedsim.world.network.endpoints import SERVER, Direction
from fedsim.world.processes.activity import (
    Activity,
    Call,
    ComputationState,
    ComputeActivity,
    Sending,
)
from fedsim.world.processes.holds import Effects, Hold, Holds
from fedsim.world.steps import Payload, Work

# of every record; a process may give a device
_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")


class DeviceFacts(NamedTuple):
    """Properties of a device.

    Attributes:
        speed: samples/s.
        flops: FLOP/s; None if the scenario does not say.
        down, up: rates of the device's link (bytes/s).
        latency: latency of the device's link (s).
        samples: training samples that it holds.
        kind: its kind; None without kinds.
        arrival, departure: when it joins and leaves (s).
        present: whether it has joined and not left.
    """

    speed: float
    flops: float | None
    down: float
    up: float
    latency: float
    samples: int
    kind: str | None
    arrival: float
    departure: float
    present: bool


class ProcessServices(Effects, Protocol):
    """The part of ``Processes`` that worlds use.

    Attributes:
        simulation: the clock.
        streams: random streams of the seed.
        capacity: kinds of devices.
        holds: the effects of all processes.
        restoring: whether processes are restored from a checkpoint now.
        asleep: number of a process and time (s) -> events for which it waits, during a restore.
        switched_on: device -> event of its next switch-on.
    """

    simulation: Simulation
    streams: Streams
    capacity: Capacity
    holds: Holds
    restoring: bool
    asleep: dict[tuple[int, float], list[simpy.Event]]
    switched_on: dict[int, simpy.Event]
    sending: dict[Sending, int]
    computed: int

    def wait(self, number: int, when: float, event: simpy.Event) -> None:
        """Fire an event of the process ``number`` at a time (s)."""

    def resumed(self, number: int, call: Call) -> Any:
        """The activity that a restored process had begun by a call; None outside of a restore."""

    def add_computation(self, process: int, *state: *ComputationState) -> ComputeActivity:
        """Add a computation of a process, by the arguments of ``ComputeActivity``."""


class World:
    """The world as a process sees it. Times are simulated seconds, rates bytes/s.

    Endpoints are ``"server"``, ``"device 7"`` (or 7), ``"edge 3"`` and the names of hosts.

    Attributes:
        env: SimPy's environment, for ``env.process``, ``env.event``, ``simpy.Resource(world.env,
            2)`` and so on.
        simulation: the clock; ``world.simulation.listen`` gives every record.
        devices: number of devices.
        state: JSON-able values that a restorable process must remember.
    """

    def __init__(self, processes: ProcessServices, number: int) -> None:
        self._processes = processes
        self._number = number
        self.simulation = processes.simulation
        self.env: Environment = self.simulation.env
        self.devices = processes.network.devices
        self.state: dict[str, Any] = {}

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self.simulation.now

    def timeout(self, seconds: float) -> simpy.Event:
        """An event ``seconds`` from now, on the clock's grid (``env.timeout`` is off the grid)."""
        return self.until(self.now + seconds)

    def until(self, when: float) -> simpy.Event:
        """An event at a time (s), on the clock's grid."""
        when = on_grid(when)
        if not self.now <= when < math.inf:
            raise SimulationError(f"a process cannot wait from {self.now!r} s until {when!r} s")
        event = self.env.event()
        if self._processes.restoring:  # its alarm is set again later
            self._processes.asleep.setdefault((self._number, when), []).append(event)
        elif not self._processes.silent:
            self._processes.wait(self._number, when, event)
        return event

    def send(
        self,
        source: int | str,
        destination: int | str,
        size: float | str,
        purpose: str = "process",
        waited: float = 0.0,
    ) -> Activity:
        """Send a message between any two endpoints, over the links between them.

        Args:
            source: the sender.
            destination: the receiver.
            size: size of the message, in bytes or as text (``"5 MB"``).
            purpose: name of the message in records.
            waited: time for which the message has waited behind another on the same connection
                (s); the message pays less latency by this time.

        Returns:
            The message, an event. Its ``outcome`` is ``lost`` if an end cannot be reached before
            the last byte has arrived.
        """
        processes = self._processes
        part = Payload(purpose, quantity(size, Bytes, "a message"))
        route = self._endpoint(source), self._endpoint(destination)
        call = ("send", *route, part.bytes, purpose)
        message = processes.resumed(self._number, call)
        if message is None:
            message = processes.messages.send(*route, (part,), None, waited=waited)
        sending = Sending(call, processes.messages, message, processes.sending.pop)
        processes.sending[sending] = self._number
        return sending

    def compute(
        self,
        device: int | str,
        work: float | str = 0.0,
        *,
        samples: float = 0.0,
        seconds: float | str = 0.0,
    ) -> Activity:
        """Let a device compute, at the same time as its task; the times of all arguments add up.

        Speed, jitter, slow phases and ``slow`` apply.

        Args:
            device: the device.
            work: FLOPs, or text (``"3 GFLOP"``).
            samples: number of samples of a training.
            seconds: a fixed time (s), or text.

        Returns:
            The computation, an event. Its ``outcome`` is ``lost`` if the device cannot be reached
            meanwhile.
        """
        number = self._device(device)
        processes = self._processes
        tasks = processes.tasks
        work_flops = quantity(work, Flops, "work")
        work_s = quantity(seconds, Seconds, "a time")
        if not 0 <= samples < math.inf:
            raise SimulationError(
                f"a device cannot compute {samples!r} samples; allowed is a number of 0 or more"
            )
        call = ("compute", number, samples, work_flops, work_s)
        resumed = processes.resumed(self._number, call)
        if resumed is not None:
            activity: Activity = resumed
            return activity
        if tasks.computing.hosts is not None:
            raise SimulationError(
                f"a process computes on device {number}, whose host shares its cores among "
                "tasks alone"
            )
        now = self.now
        pace = tasks.computing.paces.get(number, 1.0)
        until = tasks.reachable_until(number)
        duration = tasks.population.working_s(number, Work(samples, work_flops, work_s)) / pace
        if until <= now:
            end = on_grid(now + duration)
        else:
            (end,) = tasks.compute.epoch_ends(number, now, duration, 1, math.inf, until)
        computation = processes.add_computation(
            self._number, call, processes.computed, number, now, end, until, pace
        )
        processes.computed += 1
        computation.arm()
        return computation

    def device(self, device: int | str) -> DeviceFacts:
        """Properties of a device."""
        number = self._device(device)
        population = self._processes.tasks.population
        network = self._processes.network
        arrival = population.arrival.item(number)
        departure = population.departure.item(number)
        return DeviceFacts(
            speed=population.speed.item(number),
            flops=None if population.flops is None else population.flops.item(number),
            down=network.access["down"].item(number),
            up=network.access["up"].item(number),
            latency=network.latency_s(SERVER, number),
            samples=population.samples.item(number),
            kind=self._processes.capacity.name(number),
            arrival=arrival,
            departure=departure,
            present=arrival <= self.now < departure,
        )

    def available(self, device: int | str) -> bool:
        """Whether a device can be reached now."""
        return self._processes.tasks.reachable_until(self._device(device)) > self.now

    def until_available(self, device: int | str) -> simpy.Event:
        """An event that fires as soon as a device can be reached."""
        number = self._device(device)
        tasks = self._processes.tasks

        def wait() -> ProcessGenerator:
            while tasks.reachable_until(number) <= self.now:
                if number in tasks.off:
                    yield self._processes.switched_on.setdefault(number, self.env.event())
                    continue
                when = tasks.next_on(number, self.now)
                yield self.until(when) if when < math.inf else self.env.event()

        return self.env.process(wait())

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A random stream of this process, by purpose and ids."""
        return self._processes.streams.generator(f"world/process/{purpose}", self._number, *ids)

    def rate(self, link: str) -> float:
        """Built capacity of a link (bytes/s).

        Args:
            link: name of the link: ``server up``, ``cell 3 down``, ``device 7 up``, ``a -> b``.
        """
        return self._processes.network.built_rate(link)

    def cell(self, number: int) -> list[int]:
        """The devices of a cell, or of a place of ``attach``."""
        return self._processes.network.devices_at(number)

    def limit(self, link: str, rate: float = 0.0) -> Hold:
        """Give a link another rate until the hold ends; its flows are shared again at once.

        Args:
            link: name of the link.
            rate: the rate (bytes/s); 0 for none.
        """
        self.rate(link)
        if not rate >= 0:
            raise SimulationError(f"a link cannot carry {rate!r} B/s; allowed is 0 or more")
        return self._processes.holds.add("link", [link], rate)

    def slow(self, devices: int | Iterable[int], factor: float) -> Hold:
        """Let devices compute at a factor of their speed meanwhile, at once."""
        if not 0 < factor < math.inf:
            raise SimulationError(
                f"a device cannot compute at {factor!r} of its speed; allowed is a number above 0"
            )
        return self._processes.holds.add("pace", _numbers(devices, self.devices, "device"), factor)

    def off(self, devices: int | Iterable[int]) -> Hold:
        """Make devices unreachable meanwhile; their tasks are lost."""
        return self._processes.holds.add("off", _numbers(devices, self.devices, "device"), 1.0)

    def lose(self, edges: int | Iterable[int]) -> Hold:
        """Lose edge servers meanwhile, with their state and their devices' tasks."""
        return self._processes.holds.add(
            "edge", _numbers(edges, self._processes.messages.edges, "edge server"), 1.0
        )

    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """Let each message of tasks in a direction hold a slot while it is under way, from now on.

        Args:
            direction: ``up`` for uploads, ``down`` for downloads.
            slots: the slots.
        """
        if not isinstance(slots, simpy.Resource) or isinstance(slots, simpy.PreemptiveResource):
            raise SimulationError(
                f"messages queue for a simpy.Resource, or a PriorityResource; {slots!r} is none"
            )
        self._processes.tasks.slots.add(direction, slots)
        self._processes.emit("queue", direction=direction, slots=slots.capacity)

    def emit(self, kind: str, **data: object) -> None:
        """Record an event of the kind ``process:KIND``; ``device`` may be one of the data."""
        reserved = [key for key in data if key in _COLUMNS]
        if type(data.get("device")) is int:
            reserved.remove("device")
        if reserved:
            raise SimulationError(
                f"{reserved[0]!r} is a column of its own in the records; give what you say "
                "another name"
            )
        try:
            json.dumps(data)
        except (TypeError, ValueError) as error:
            raise SimulationError(
                f"what the process says at {kind!r} must be JSON: {error}"
            ) from None
        self._processes.emit(f"process:{kind}", **data)

    def _endpoint(self, endpoint: int | str) -> int:
        return endpoint if isinstance(endpoint, int) else self._processes.network.endpoint(endpoint)

    def _device(self, device: int | str) -> int:
        return _numbers(self._endpoint(device), self.devices, "device")[0]


def _numbers(numbers: int | Iterable[int], count: int, thing: str) -> list[int]:
    """One number or several as a list; ``SimulationError`` for one that is not below ``count``."""
    listed = [numbers] if isinstance(numbers, int) else [int(number) for number in numbers]
    for number in listed:
        if 0 <= number < count:
            continue
        allowed = "the network has none (network.edge)"
        if count:
            allowed = f"allowed are 0 to {count - 1}"
        raise SimulationError(f"there is no {thing} {number}; {allowed}")
    return listed


def quantity(value: float | str, kind: Any, name: str) -> float:
    """A number in the base unit, or text with a unit, as a number.

    Args:
        value: the number, or the text such as ``"5 MB"``.
        kind: the quantity, such as ``fedsim.common.units.Bytes``.
        name: the value's name in errors.

    Returns:
        The value in the base unit, 0 or more.

    Raises:
        SimulationError: the value is no such quantity.
    """
    try:
        if isinstance(value, str):
            number: float = TypeAdapter[float](kind).validate_python(value)
        else:
            number = float(value)
    except ValidationError as error:
        raise SimulationError(f"{name} is {value!r}: {error.errors()[0]['msg']}") from None
    if not 0 <= number < math.inf:
        raise SimulationError(f"{name} is {value!r}; allowed is a finite number of 0 or more")
    return number
