"""Processes of the world at work, and their interface to the world.

Holds of several processes combine: the least rate of a link, the product of speed factors, off
while any holds a device off.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import simpy
from pydantic import TypeAdapter, ValidationError

from fedsim.clock.environment import Alarm, Environment, ProcessGenerator
from fedsim.clock.simulation import on_grid
from fedsim.common.errors import (
    CheckpointError,
    FedsimError,
    ScenarioError,
    SimulationError,
    place_of,
    told,
)
from fedsim.common.streams import Streams
from fedsim.common.units import Bytes, Flops, Seconds
from fedsim.world.device_kinds import Capacity
from fedsim.world.life import TaskRunner
from fedsim.world.network.endpoints import SERVER, Direction
from fedsim.world.processes.activity import Activity, Call, ComputeActivity, Sending
from fedsim.world.steps import Payload, Work

# of every record; a process may say a device
_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")


class DeviceFacts(NamedTuple):
    """Properties of a device.

    Attributes:
        speed: samples/s.
        flops: FLOP/s; None if the scenario does not say.
        down, up: rates of its own link (bytes/s).
        latency: latency of its own link (s).
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


class Hold(ExitStack):
    """An effect of a process on the world, until ``end()`` or the end of a ``with``."""

    def end(self) -> None:
        """Undo the effect."""
        self.close()


class Processes:
    """Starts and restores the processes of a run; ``ScenarioError``: one does not fit.

    ``world`` is for those from Python.
    """

    def __init__(
        self,
        specs: Sequence[Any],
        streams: Streams,
        capacity: Capacity,
        tasks: TaskRunner,
        on_switched_on: Callable[[int], None],
    ) -> None:
        self._specs = specs
        self.streams = streams
        self.capacity = capacity
        self.tasks = tasks
        self._on_switched_on = on_switched_on
        self.messages = tasks.messages
        self.network = tasks.network
        self.simulation = tasks.messages.simulation
        # of a "link", "pace", "off" or "edge", by its key
        self.held: dict[tuple[str, str | int], list[float]] = {}
        self.sending: dict[Sending, int] = {}  # and whose each is
        self.computing: dict[int, tuple[ComputeActivity, int]] = {}
        self.computed = 0
        self.switched_on: dict[int, simpy.Event] = {}
        self.restoring = False
        # while it is restoring: what each process had begun
        self.begun: dict[tuple[int, Call], list[Any]] = {}
        self.asleep: dict[tuple[int, float], list[simpy.Event]] = {}  # and until when it waits
        self.silent = False  # nothing is recorded: it is restoring, or the run is over
        self.acts: Counter[str] = Counter()  # records of processes by kind
        *self._worlds, self.world = [World(self, number) for number in range(len(specs) + 1)]
        for number, (spec, world) in enumerate(zip(specs, self._worlds, strict=True)):
            try:
                spec.check(world)
            except SimulationError as error:
                raise ScenarioError(f"world.processes.{number} ({spec.kind!r}): {error}") from None
        if specs:
            self.simulation.idle = self._nothing_left
        env = self.simulation.env
        env.declare_alarm("process", self._rearm_wait, in_background=True)
        env.declare_alarm("compute", self._rearm_computation, in_background=True)
        self.simulation.at_end(partial(setattr, self, "silent", True))
        self._start()

    def _start(self) -> None:
        for each in zip(self._specs, self._worlds, strict=True):
            self.simulation.process(self._play(*each))

    def _play(self, spec: Any, world: "World") -> Generator[Any, Any, Any]:
        try:
            yield from spec.run(world)
        except CheckpointError as error:
            raise CheckpointError(f"the process {spec.kind!r} {error}") from None
        except Exception as error:
            why = (
                f": {error}"
                if isinstance(error, FedsimError)
                else f"{place_of(error)}: {told(error)}"
            )
            raise SimulationError(
                f"the process {spec.kind!r} failed at {world.now!r} s{why}"
            ) from error

    def _nothing_left(self) -> bool:
        """Whether the run is over: processes have alarms, and nothing else is under way."""
        if (
            self.tasks.running
            or len(self.messages.under_way) > len(self.sending)
            or self.tasks.off
            or self.messages.lost
        ):
            return False
        env = self.simulation.env
        return all(env.is_background(event) for event in env.alarms() if isinstance(event, Alarm))

    def emit(self, kind: str, **fields: Any) -> None:
        if not self.silent:
            self.acts[kind] += 1
            self.simulation.emit(kind, **fields)

    def taken_up(self, number: int, call: Call) -> Any:
        """The activity that a restored process had begun by this call, else ``CheckpointError``;
        None without restoring.
        """
        if not self.restoring:
            return None
        if begun := self.begun.get((number, call)):
            return begun.pop(0)
        raise CheckpointError(
            f"does not come to where it was: it had not begun {call[0]}{call[1:]}"
        )

    def computing_of(self, number: int, *saved: Any) -> ComputeActivity:
        def end(ended: ComputeActivity) -> None:
            del self.computing[ended.number]
            self.emit("process:compute", device=ended.device, start=ended.began, how=ended.outcome)

        computing = ComputeActivity(self.simulation.env, end, *saved)
        self.computing[computing.number] = computing, number
        return computing

    def hold(self, what: str, keys: Sequence[str | int], value: float) -> Hold:
        def let_go() -> None:
            for key in keys:
                self.held[what, key].remove(value)
                if not self.held[what, key]:
                    del self.held[what, key]
                self._carry_out(what, key)

        for key in keys:
            self.held.setdefault((what, key), []).append(value)
            self._carry_out(what, key)
        hold = Hold()
        hold.callback(let_go)
        return hold

    def _carry_out(self, what: str, key: str | int) -> None:
        """Apply the present holds on a thing, and record them if that changes anything."""
        if self.silent:
            return
        wanted = self.held.get((what, key), [])
        device = key if isinstance(key, int) else -1
        on_it = [
            computing for computing, _ in self.computing.values() if computing.device == device
        ]
        if what == "link":
            link = str(key)
            rate = min(wanted, default=None)
            if self.network.limits.get(link) != rate:
                self.network.limit(link, rate)
                now = self.network.built_rate(link) if rate is None else rate
                self.emit("link-rate", link=link, rate=None if now == math.inf else now)
        elif what == "pace":
            if self.tasks.computing.paces.get(device, 1.0) != (pace := math.prod(wanted)):
                self.tasks.computing.set_pace(device, pace)
                self.emit("pace", device=device, factor=pace)
                for computing in on_it:
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
            for computing in on_it:
                computing.cancel("lost")
        elif not wanted:
            self.emit("switch-on", device=device)
            self.tasks.off.discard(device)
            self._on_switched_on(device)
            if device in self.switched_on:
                self.switched_on.pop(device).succeed()

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        return {
            "states": [world.state for world in self._worlds],
            "sending": [
                (number, sending.call, sending.message.id)
                for sending, number in self.sending.items()
            ],
            "computing": [
                (number, computing.saved()) for computing, number in self.computing.values()
            ],
            "computed": self.computed,
            "acts": dict(self.acts),
        }

    def restore(self, state: Mapping[str, Any], alarms: Sequence[tuple[str, int, float]]) -> None:
        """Restore processes after all but alarms; ``CheckpointError``: a process has other holds
        or waits than it had.
        """
        for world, saved in zip(self._worlds, state["states"], strict=True):
            world.state = dict(saved)
        self.computed = state["computed"]
        self.acts = Counter(state["acts"])
        for number, call, message in state["sending"]:
            self.begun.setdefault((number, call), []).append(self.messages.under_way[message])
        for number, saved in state["computing"]:
            self.begun.setdefault((number, saved[0]), []).append(self.computing_of(number, *saved))
        self.silent = self.restoring = True
        self._start()
        while self.simulation.env.peek() <= self.simulation.now:
            self.simulation.env.step()  # the beginning of each process, up to its first wait
        self.silent = self.restoring = False
        self.begun.clear()
        due = Counter((number, when) for kind, number, when in alarms if kind == "process")
        for (number, when), events in self.asleep.items():
            if len(events) > due[number, when]:
                kind = self._specs[number].kind
                raise CheckpointError(
                    f"the process {kind!r} does not come to where it was: it had not waited "
                    f"until {when!r} s"
                )
        held = {
            thing: min(values) if thing[0] == "link" else math.prod(values)
            for thing, values in self.held.items()
        }
        held = {thing: value for thing, value in held.items() if thing[0] != "pace" or value != 1.0}
        there: dict[tuple[str, Any], float] = {
            ("link", link): rate for link, rate in self.network.limits.items()
        }
        there |= {("pace", device): pace for device, pace in self.tasks.computing.paces.items()}
        there |= {("off", device): 1.0 for device in self.tasks.off} | {
            ("edge", edge): 1.0 for edge in self.messages.lost
        }
        if held != there:
            raise CheckpointError(
                "the processes of the world do not come to where they were: they held "
                f"{there}, now {held}"
            )

    def _rearm_computation(self, number: int, when: float) -> None:
        computation, _ = self.computing[number]
        computation.arm()

    def _rearm_wait(self, number: int, when: float) -> None:
        """Set the alarm for which the restored process ``number`` waits."""
        waiting = self.asleep.get((number, when))
        event = waiting.pop(0) if waiting else self.simulation.env.event()
        self.wait(number, when, event)

    def wait(self, number: int, when: float, event: simpy.Event) -> None:
        """Fire an event of the process ``number`` at a time (s)."""
        self.simulation.wake(("process", number), when, event.succeed)


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

    def __init__(self, processes: Processes, number: int) -> None:
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
        """Send a message of ``size`` bytes (``"5 MB"``) between any two endpoints, over the
        links between them.

        A message that has ``waited`` (s) behind another on the same connection pays so much less
        latency. Its ``outcome`` is ``lost`` if an end cannot be reached before the last byte has
        arrived.
        """
        here = self._processes
        part = Payload(purpose, quantity(size, Bytes, "a message"))
        ends = self._endpoint(source), self._endpoint(destination)
        call = ("send", *ends, part.bytes, purpose)
        message = here.taken_up(self._number, call) or here.messages.send(
            *ends, (part,), None, waited=waited
        )
        sending = Sending(call, here.messages, message, here.sending.pop)
        here.sending[sending] = self._number
        return sending

    def compute(
        self,
        device: int | str,
        work: float | str = 0.0,
        *,
        samples: float = 0.0,
        seconds: float | str = 0.0,
    ) -> Activity:
        """Let a device compute, beside its task: FLOPs (``"3 GFLOP"``), a training on
        ``samples``, and ``seconds`` add up.

        Speed, jitter, slow phases and ``slow`` apply. The ``outcome`` is ``lost`` if the device
        cannot be reached meanwhile.
        """
        number = self._device(device)
        here = self._processes
        asked = Work(samples, quantity(work, Flops, "work"), quantity(seconds, Seconds, "a time"))
        if not 0 <= samples < math.inf:
            raise SimulationError(
                f"a device cannot compute {samples!r} samples; allowed is a number of 0 or more"
            )
        call = ("compute", number, asked.samples, asked.flops, asked.seconds)
        if (begun := here.taken_up(self._number, call)) is not None:
            return begun  # type: ignore[no-any-return]
        if here.tasks.computing.hosts is not None:
            raise SimulationError(
                f"a process computes on device {number}, whose host shares its cores among "
                "tasks alone"
            )
        now = self.now
        pace = here.tasks.computing.paces.get(number, 1.0)
        until = here.tasks.reachable_until(number)
        lasts = here.tasks.population.working_s(number, asked) / pace
        away = until <= now
        (ends,) = (
            [on_grid(now + lasts)]
            if away
            else here.tasks.compute.epoch_ends(number, now, lasts, 1, math.inf, until)
        )
        computing = here.computing_of(
            self._number, call, here.computed, number, now, ends, until, pace
        )
        here.computed += 1
        computing.arm()
        return computing

    def device(self, device: int | str) -> DeviceFacts:
        """Properties of a device."""
        number = self._device(device)
        population = self._processes.tasks.population
        network = self._processes.network
        flops = None if population.flops is None else population.flops.item(number)
        down, up = (rates.item(number) for rates in network.access.values())
        link = (down, up, network.latency_s(SERVER, number))
        kind = self._processes.capacity.name(number)
        life = population.arrival.item(number), population.departure.item(number)
        present = life[0] <= self.now < life[1]
        held = population.samples.item(number)
        return DeviceFacts(population.speed.item(number), flops, *link, held, kind, *life, present)

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
                elif (when := tasks.next_on(number, self.now)) < math.inf:
                    yield self.until(when)
                else:
                    yield self.env.event()

        return self.env.process(wait())

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A random stream of this process, by purpose and ids."""
        return self._processes.streams.generator(f"world/process/{purpose}", self._number, *ids)

    def rate(self, link: str) -> float:
        """Built capacity of a link (bytes/s): ``server up``, ``cell 3 down``, ``device 7 up``,
        ``a -> b``.
        """
        return self._processes.network.built_rate(link)

    def cell(self, number: int) -> list[int]:
        """The devices of a cell, or of a place of ``attach``."""
        return self._processes.network.devices_at(number)

    def limit(self, link: str, rate: float = 0.0) -> Hold:
        """Give a link another ``rate`` meanwhile, 0 for none; flows get their new shares at
        once.
        """
        self.rate(link)
        if not rate >= 0:
            raise SimulationError(f"a link cannot carry {rate!r} B/s; allowed is 0 or more")
        return self._processes.hold("link", [link], rate)

    def slow(self, devices: int | Iterable[int], factor: float) -> Hold:
        """Let devices compute at a factor of their speed meanwhile, at once."""
        if not 0 < factor < math.inf:
            raise SimulationError(
                f"a device cannot compute at {factor!r} of its speed; allowed is a number above 0"
            )
        return self._processes.hold("pace", _numbers(devices, self.devices, "device"), factor)

    def off(self, devices: int | Iterable[int]) -> Hold:
        """Make devices unreachable meanwhile; their tasks are lost."""
        return self._processes.hold("off", _numbers(devices, self.devices, "device"), 1.0)

    def lose(self, edges: int | Iterable[int]) -> Hold:
        """Lose edge servers meanwhile, with their state and their devices' tasks."""
        return self._processes.hold(
            "edge", _numbers(edges, self._processes.messages.edges, "edge server"), 1.0
        )

    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """Let each upload (``up``) or download (``down``) from now on hold a slot while it is
        under way.
        """
        if not isinstance(slots, simpy.Resource) or isinstance(slots, simpy.PreemptiveResource):
            raise SimulationError(
                f"messages queue for a simpy.Resource, or a PriorityResource; {slots!r} is none"
            )
        self._processes.tasks.slots.add(direction, slots)
        self._processes.emit("queue", direction=direction, slots=slots.capacity)

    def emit(self, kind: str, **data: Any) -> None:
        """Record an event of the kind ``process:KIND``; ``device`` may be one of the data."""
        wrong = [
            key
            for key in data
            if key in _COLUMNS and (key != "device" or type(data[key]) is not int)
        ]
        if wrong:
            raise SimulationError(
                f"{wrong[0]!r} is a column of its own in the records; give what you say "
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


def _numbers(said: int | Iterable[int], count: int, what: str) -> list[int]:
    numbers = [said] if isinstance(said, int) else [int(number) for number in said]
    for number in numbers:
        if not 0 <= number < count:
            allowed = (
                f"allowed are 0 to {count - 1}" if count else "the network has none (network.edge)"
            )
            raise SimulationError(f"there is no {what} {number}; {allowed}")
    return numbers


def quantity(value: float | str, kind: Any, what: str) -> float:
    """A number in the base unit, or text with a unit, as a number; ``SimulationError`` if it is
    no such quantity.
    """
    try:
        number = (
            TypeAdapter[float](kind).validate_python(value)
            if isinstance(value, str)
            else float(value)
        )
    except ValidationError as error:
        raise SimulationError(f"{what} is {value!r}: {error.errors()[0]['msg']}") from None
    if not 0 <= number < math.inf:
        raise SimulationError(f"{what} is {value!r}; allowed is a finite number of 0 or more")
    return number
