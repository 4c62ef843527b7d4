"""API ``World`` for SimPy processes of users: messages, computations, effects and records."""

import math
from collections.abc import Iterable
from typing import Any, Protocol, cast

import numpy as np
import simpy

from fedsim.clock.environment import Environment, ProcessGenerator
from fedsim.clock.simulation import Simulation, on_grid
from fedsim.common.arguments import (
    INDEX,
    NUMBER,
    STREAM_ID,
    TEXT,
    is_text,
    is_whole,
    number,
    one_of,
    plain,
    refusal,
    takes,
)
from fedsim.common.errors import SimulationError, show_value
from fedsim.common.streams import Streams
from fedsim.common.units import Bytes, Flops, Seconds
from fedsim.common.user_records import OF_PROCESSES, check_fields
from fedsim.world.device_kinds import Capacity
from fedsim.world.network.endpoints import SERVER, Direction
from fedsim.world.processes.activity import (
    Activity,
    Call,
    ComputationState,
    ComputeActivity,
    Sending,
    TimeEvent,
)
from fedsim.world.processes.holds import Effects, Hold, Holds
from fedsim.world.processes.values import DeviceFacts, indices, parse_quantity
from fedsim.world.steps import Payload, Work

# columns of records that fedsim sets itself, and that a process may not set
_RESERVED = ("kind", "round", "group", "task", "step", "outcome")


class ProcessServices(Effects, Protocol):
    """Interface of ``Processes`` that ``World`` uses: clock, streams, effects and saved activities.

    Attributes:
        simulation: the clock.
        streams: random streams of the seed.
        capacity: sampled speeds, links and kinds of the devices.
        holds: the effects of all processes.
        switched_on: device -> event that fires when the device is switched on again.
        sending: message of a process that is under way -> index of the process.
        computed: count of the computations that processes have started.
    """

    simulation: Simulation
    streams: Streams
    capacity: Capacity
    holds: Holds
    switched_on: dict[int, simpy.Event]
    sending: dict[Sending, int]
    computed: int

    def wait(self, number: int, when: float, event: TimeEvent) -> None:
        """Set an alarm at ``when`` (s) that fires an event, for which process ``number`` waits."""

    def take_saved(self, number: int, call: Call) -> Any:
        """Return the saved message or computation that belongs to a call of a process.

        When a run is resumed, its processes repeat their calls up to the time of the checkpoint.

        Args:
            number: index of the process in ``[world] processes``; the length of this list for a
                process that is started from Python.
            call: name and arguments of the method that the process calls.

        Returns:
            The saved message or computation; None if no restore is going on.
        """

    def add_computation(self, process: int, *state: *ComputationState) -> ComputeActivity:
        """Register a computation that a process starts on a device.

        Args:
            process: index of the process in ``[world] processes``; the length of this list for a
                process that is started from Python.
            state: arguments of ``ComputeActivity`` from ``call`` to ``pace``.
        """


class World:
    """API of a run's world for a SimPy process. Times are simulated seconds, rates bytes/s.

    Endpoints are ``"server"``, ``"device 7"`` (or 7), ``"edge 3"`` and the names of hosts, the other
    nodes of a network.

    A call with a wrong argument raises ``SimulationError``, which names the argument and its value.

    Attributes:
        env: SimPy's environment, for ``env.process``, ``env.event``, ``simpy.Resource(world.env,
            2)`` and so on.
        simulation: the clock; ``world.simulation.listen`` gives every record.
        devices: number of devices.
        state: JSON-able values that a restorable process must remember.

    Example:
        >>> import fedsim
        >>> devices = {"devices": 2, "speed": "10 samples/s"}
        >>> world = fedsim.build_world(devices, {"kind": "star"})
        >>> def relay(world):
        ...     yield world.compute("device 0", samples=20)
        ...     yield world.timeout(1.0)
        ...     return world.now
        >>> world.env.run(until=world.env.process(relay(world)))
        3.0
    """

    def __init__(self, processes: ProcessServices, number: int) -> None:
        self._processes = processes
        self._process_id = number
        self.simulation = processes.simulation
        self.env: Environment = self.simulation.env
        self.devices = processes.network.devices
        self.state: dict[str, Any] = {}

    @property
    def now(self) -> float:
        """Simulated time (s)."""
        return self.simulation.now

    @takes(seconds=NUMBER)
    def timeout(self, seconds: float) -> simpy.Event:
        """Return an event that fires after a time, rounded to the clock's ticks of 2^-30 s.

        SimPy's own ``env.timeout`` does not round.

        Args:
            seconds: the time from now (s), 0 or more.

        Returns:
            An event to ``yield``; its value is None.

        Raises:
            SimulationError: the time is negative, infinite or no number.

        Example:
            >>> import fedsim
            >>> devices = {"devices": 1, "speed": "10 samples/s"}
            >>> world = fedsim.build_world(devices, {"kind": "star"})
            >>> def at_most(world, seconds):
            ...     work = world.compute(0, samples=50)
            ...     yield work | world.timeout(seconds)
            ...     work.cancel()
            ...     return world.now, work.outcome
            >>> world.env.run(until=world.env.process(at_most(world, 2.0)))
            (2.0, 'cancelled')
        """
        return self.until(self.now + seconds)

    @takes(when=NUMBER)
    def until(self, when: float) -> simpy.Event:
        """Return an event that fires at a simulated time, rounded to the clock's ticks of 2^-30 s.

        Args:
            when: the simulated time (s), not before now.

        Returns:
            An event to ``yield``; its value is None.

        Raises:
            SimulationError: the time is past, infinite or no number.

        Example:
            >>> import fedsim
            >>> world = fedsim.build_world({"devices": 1}, {"kind": "star"})
            >>> def nightly(world):
            ...     for night in range(1, 3):
            ...         yield world.until(night * 86400.0)
            ...         print("day", night, "is over at", world.now)
            >>> world.env.run(until=world.env.process(nightly(world)))
            day 1 is over at 86400.0
            day 2 is over at 172800.0
        """
        when = on_grid(when)
        if not self.now <= when < math.inf:
            raise SimulationError(f"a process cannot wait from {self.now!r} s until {when!r} s")
        event = TimeEvent(self.env)
        self._processes.wait(self._process_id, when, event)
        return event

    @takes(purpose=TEXT, waited=number(least=0.0))
    def send(
        self,
        source: int | str,
        destination: int | str,
        size: float | str,
        purpose: str = "process",
        waited: float = 0.0,
    ) -> Activity:
        """Send a message between two endpoints, over the links between them.

        The message shares the links with other messages, and its bytes count as traffic of the run.

        Args:
            source, destination: endpoints, by number or by name: ``"server"``, ``"device 7"``.
            size: payload in bytes, or a text such as ``"5 MB"``.
            purpose: name of the payload in records and in the table of transfers.
            waited: time that the message has waited for another message on the same connection
                (s), which is subtracted from its latency.

        Returns:
            The message, an event. Its ``outcome`` is ``lost`` if the sender or receiver becomes
            unavailable before the last byte has arrived.

        Raises:
            SimulationError: an endpoint or a route does not exist, or ``size`` is not a valid size.

        Example:
            >>> import fedsim
            >>> network = {"kind": "star", "device": {"up": "1 MB/s"}}
            >>> world = fedsim.build_world({"devices": 2}, network)
            >>> def forward(world):
            ...     first = yield world.send(0, 1, "3 MB")
            ...     second = yield world.send(1, "server", "2 MB", purpose="summary")
            ...     return world.now, first.outcome, second.outcome
            >>> world.env.run(until=world.env.process(forward(world)))
            (5.0, 'done', 'done')
        """
        processes = self._processes
        payload = Payload(purpose, parse_quantity(size, Bytes, "a message"))
        route = self._endpoint(source), self._endpoint(destination)
        call = ("send", *route, payload.bytes, purpose)
        # a resumed process repeats its calls, and gets back the message that was saved under way
        message = processes.take_saved(self._process_id, call)
        if message is None:
            message = processes.messages.send(*route, (payload,), number=None, waited=waited)
        # a snapshot saves the messages in ``sending``; a message removes itself from it at its end
        sending = Sending(call, processes.messages, message, processes.sending.pop)
        processes.sending[sending] = self._process_id
        return sending

    @takes(samples=NUMBER)
    def compute(
        self,
        device: int | str,
        work: float | str = 0.0,
        *,
        samples: float = 0.0,
        seconds: float | str = 0.0,
    ) -> Activity:
        """Start a computation on a device; the task of the device does not get slower.

        The computation takes the sum of the times of ``work``, ``samples`` and ``seconds``. Samples
        and FLOPs take time by the device's speed. Jitter, slow phases and ``slow`` change the whole
        sum, a fixed time included.

        Args:
            device: a device, by number or by name.
            work: FLOPs, or a text such as ``"3 GFLOP"``.
            samples: training samples that are processed.
            seconds: a fixed time (s), or a text such as ``"2 min"``.

        Returns:
            The computation, an event. Its ``outcome`` is ``lost`` if the device becomes unavailable
            before its end.

        Raises:
            SimulationError: the device does not exist, an amount is negative or not a number, or
                the device shares the cores of a host.

        Example:
            >>> import fedsim
            >>> devices = {"devices": 2, "speed": "10 samples/s"}
            >>> world = fedsim.build_world(devices, {"kind": "star"})
            >>> def race(world):
            ...     fast = world.compute(0, samples=20)
            ...     fixed = world.compute(1, seconds="90 s")
            ...     yield fast | fixed
            ...     return world.now, fast.outcome, fixed.left
            >>> world.env.run(until=world.env.process(race(world)))
            (2.0, 'done', 88.0)
        """
        number = self._device(device)
        processes = self._processes
        tasks = processes.tasks
        work_flops = parse_quantity(work, Flops, "work")
        work_s = parse_quantity(seconds, Seconds, "a time")
        if not 0 <= samples < math.inf:
            raise SimulationError(
                f"a device cannot compute {samples!r} samples; allowed is a number of 0 or more"
            )
        call = ("compute", number, samples, work_flops, work_s)
        saved: Activity | None = processes.take_saved(self._process_id, call)
        if saved is not None:
            return saved
        if tasks.computing.hosts is not None:
            raise SimulationError(
                f"a process computes on device {number}, whose host shares its cores among "
                "tasks alone"
            )
        # ``pace`` is the factor by which ``slow`` changes the device's speed now
        now = self.now
        pace = tasks.computing.paces.get(number, 1.0)
        until = tasks.reachable_until(number)
        duration = tasks.population.working_s(number, Work(samples, work_flops, work_s)) / pace
        if until <= now:  # the computation is lost immediately, so that its end does not matter
            end = on_grid(now + duration)
        else:  # one epoch stands for the work, so that jitter and slow phases count
            (end,) = tasks.compute.epoch_ends(number, now, duration, 1, math.inf, until)
        computation = processes.add_computation(
            self._process_id, call, processes.computed, number, now, end, until, pace
        )
        processes.computed += 1
        computation.set_end_alarm()
        return computation

    def device(self, device: int | str) -> DeviceFacts:
        """Return the properties of a device: its speed, link and samples, and when it takes part.

        Args:
            device: a device, by number or by name.

        Returns:
            Speed, rates, latency, samples, kind, and times of arrival and departure.

        Raises:
            SimulationError: there is no such device.

        Example:
            >>> import fedsim
            >>> world = fedsim.build_world(
            ...     {"devices": 2, "speed": "10 samples/s"},
            ...     {"kind": "star", "device": {"down": "2 MB/s", "up": "1 MB/s"}},
            ... )
            >>> device = world.device(1)
            >>> device.speed, device.down, device.up, device.present
            (10.0, 2000000.0, 1000000.0, True)
        """
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
        """Return whether a device is available now: present, on, and not switched off by a process.

        Args:
            device: a device, by number or by name.
        """
        return self._processes.tasks.reachable_until(self._device(device)) > self.now

    def until_available(self, device: int | str) -> simpy.Event:
        """Return an event that fires as soon as a device is available.

        Args:
            device: a device, by number or by name.

        Returns:
            An event to ``yield``. It never fires if the device never comes back.
        """
        number = self._device(device)
        tasks = self._processes.tasks

        def wait() -> ProcessGenerator:
            # at the end of a wait, the device may be unavailable for another reason
            while tasks.reachable_until(number) <= self.now:
                if number in tasks.switched_off:
                    yield self._processes.switched_on.setdefault(number, self.env.event())
                    continue
                when = tasks.next_on(number, self.now)
                yield self.until(when) if when < math.inf else self.env.event()

        return self.env.process(wait())

    @takes(purpose=TEXT, ids=STREAM_ID)
    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """Return a random generator, a function of this process, the arguments and the run's seed.

        Args:
            purpose: purpose of the draws, such as ``failing``; processes may use equal purposes.
            ids: integers that distinguish generators of one purpose, such as the index of a device.

        Returns:
            A generator at the start of its stream. Generators of calls with equal arguments give
            equal draws.

        Example:
            >>> import fedsim
            >>> world = fedsim.build_world({"devices": 10}, {"kind": "star"}, seed=7)
            >>> order = world.rng("failing", 3).permutation(5)
            >>> order.tolist() == world.rng("failing", 3).permutation(5).tolist()
            True
            >>> sorted(order.tolist())
            [0, 1, 2, 3, 4]
        """
        return self._processes.streams.generator(f"world/process/{purpose}", self._process_id, *ids)

    @takes(link=TEXT)
    def rate(self, link: str) -> float:
        """Return the capacity of a link in the scenario (bytes/s); ``limit`` does not change it.

        For a link that follows a trace this is the mean of the trace.

        Args:
            link: name of the link: ``server up``, ``cell 3 down``, ``device 7 up`` or ``a -> b``.

        Raises:
            SimulationError: there is no such link.
        """
        return self._processes.network.built_rate(link)

    @takes(number=INDEX)
    def cell(self, number: int) -> list[int]:
        """Return the indices of the devices in one cell, or at one node, of the network.

        In a network with edge servers (a tree), a cell has the devices of one edge server. In a
        network of routers (a graph), devices are attached to some of the nodes.

        Args:
            number: index of the cell, from 0; in a graph, index of the node in the scenario's list
                ``attach``.

        Raises:
            SimulationError: there is no such cell or node.
        """
        return self._processes.network.devices_at(number)

    @takes(link=TEXT, rate=NUMBER)
    def limit(self, link: str, rate: float = 0.0) -> Hold:
        """Change the rate of a link until the hold ends; flows on the link get new rates now.

        Args:
            link: name of the link, as in ``rate``.
            rate: the rate (bytes/s) that replaces the scenario's rate of the link; 0 stops all flows
                on it. A link that follows a trace has the lower of ``rate`` and the trace.

        Returns:
            The hold: a context manager, with ``end``.

        Raises:
            SimulationError: there is no such link, or the rate is negative or no number.

        Example:
            >>> import fedsim
            >>> network = {"kind": "star", "device": {"up": "1 MB/s"}}
            >>> world = fedsim.build_world({"devices": 1}, network)
            >>> def cut(world):
            ...     with world.limit("device 0 up"):
            ...         yield world.timeout(10.0)
            >>> process = world.env.process(cut(world))
            >>> message = world.send(0, "server", "4 MB")
            >>> world.env.run(until=message).outcome, world.now
            ('done', 14.0)
        """
        self.rate(link)
        if not rate >= 0:
            raise SimulationError(f"a link cannot carry {rate!r} B/s; allowed is 0 or more")
        return self._processes.holds.add("link", [link], rate)

    @takes(factor=NUMBER)
    def slow(self, devices: int | Iterable[int], factor: float) -> Hold:
        """Multiply the speed of devices by a factor until the hold ends, also for running work.

        Args:
            devices: index of a device, or several.
            factor: factor of the speed, above 0.

        Returns:
            The hold: a context manager, with ``end``.

        Raises:
            SimulationError: there is no such device, or the factor is not above 0.

        Example:
            >>> import fedsim
            >>> devices = {"devices": 2, "speed": "10 samples/s"}
            >>> world = fedsim.build_world(devices, {"kind": "star"})
            >>> def throttle(world):
            ...     with world.slow([0, 1], 0.5):
            ...         yield world.timeout(60.0)
            >>> process = world.env.process(throttle(world))
            >>> work = world.compute(0, samples=50)
            >>> world.env.run(until=work).outcome, world.now
            ('done', 10.0)
        """
        if not 0 < factor < math.inf:
            raise SimulationError(
                f"a device cannot compute at {factor!r} of its speed; allowed is a number above 0"
            )
        return self._processes.holds.add("pace", indices(devices, self.devices, "device"), factor)

    def off(self, devices: int | Iterable[int]) -> Hold:
        """Make devices unreachable until the hold ends; their tasks and activities are lost.

        Args:
            devices: index of a device, or several.

        Returns:
            The hold: a context manager, with ``end``.

        Raises:
            SimulationError: there is no such device.

        Example:
            >>> import fedsim
            >>> devices = {"devices": 2, "speed": "10 samples/s"}
            >>> world = fedsim.build_world(devices, {"kind": "star"})
            >>> def outage(world):
            ...     yield world.until(3.0)
            ...     with world.off(0):
            ...         yield world.until(30.0)
            >>> process = world.env.process(outage(world))
            >>> work = world.compute(0, samples=50)
            >>> world.env.run(until=work).outcome, world.now
            ('lost', 3.0)
            >>> world.env.run(until=world.until_available(0))
            >>> world.now
            30.0
        """
        return self._processes.holds.add("off", indices(devices, self.devices, "device"), 1.0)

    def lose(self, edges: int | Iterable[int]) -> Hold:
        """Fail edge servers until the hold ends; their state and their devices' tasks are lost.

        Args:
            edges: index of an edge server, or several.

        Returns:
            The hold: a context manager, with ``end``.

        Raises:
            SimulationError: there is no such edge server.
        """
        return self._processes.holds.add(
            "edge", indices(edges, self._processes.messages.edges, "edge server"), 1.0
        )

    @takes(direction=one_of("up", "down"))
    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """Limit how many uploads or downloads between devices and the server run at a time.

        From now on, each such message of a task waits for a slot, which is a unit of the resource's
        capacity, and holds it until its end.

        Args:
            direction: ``up`` or ``down``.
            slots: the resource, whose capacity is the count of messages that are sent at a time.

        Raises:
            SimulationError: ``slots`` is no ``simpy.Resource``, is a preemptive one, or is of another
                environment than ``world.env``.
        """
        if not isinstance(slots, simpy.Resource) or isinstance(slots, simpy.PreemptiveResource):
            raise SimulationError(
                f"messages queue for a simpy.Resource, or a PriorityResource; {slots!r} is none"
            )
        if not self.env.owns(slots):
            raise SimulationError(
                "messages queue for a simpy.Resource of another environment, which no event of this "
                "run can free; allowed is one of world.env, as simpy.Resource(world.env, 2)"
            )
        self._processes.tasks.slots.add(direction, slots)
        self._processes.emit("queue", direction=direction, slots=slots.capacity)

    def emit(self, kind: str, **data: object) -> None:
        """Record an event of the kind ``process:KIND``, as a row of ``events.parquet``.

        Args:
            kind: the kind, without the prefix ``process:``.
            data: JSON values by name; ``device``, the index of a device, fills the column of that
                name.

        Raises:
            SimulationError: a name in ``data`` is that of another column, or a value is not JSON.

        Example:
            >>> import fedsim
            >>> world = fedsim.build_world({"devices": 1}, {"kind": "star"})
            >>> world.simulation.listen(lambda record: print(record.kind, record.fields))
            >>> world.emit("cache-miss", device=0, file="map")
            process:cache-miss {'device': 0, 'file': 'map'}
        """
        if not is_text(kind):
            raise refusal("World.emit", "kind", kind, "a text")
        reserved = [name for name in data if name in _RESERVED]
        if reserved:
            raise SimulationError(
                f"{reserved[0]!r} is a column of its own in the records; allowed are other names "
                "of fields"
            )
        fields = check_fields("World.emit", kind, data, self.devices)
        self._processes.emit(f"{OF_PROCESSES}{kind}", **fields)

    def _endpoint(self, endpoint: int | str) -> int:
        network = self._processes.network
        if isinstance(endpoint, str):
            return network.endpoint(endpoint)
        number = plain(endpoint)
        if not is_whole(number) or not SERVER <= cast(int, number) < network.endpoints:
            raise SimulationError(
                f"there is no endpoint {show_value(endpoint)}; allowed are names such as 'server' "
                f"and 'device 0', and devices 0 to {self.devices - 1}"
            )
        return cast(int, number)

    def _device(self, device: int | str) -> int:
        number: object = device
        if isinstance(device, str):
            number = self._processes.network.endpoint(device)
        return indices([cast(int, number)], self.devices, "device")[0]
