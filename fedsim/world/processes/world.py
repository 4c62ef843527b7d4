"""Interface of a process to the world.

What several processes do to one thing at a time adds up: a link carries the least that any of them leaves it, factors of a
device's speed are multiplied, and a device is off while any of them holds it off.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import simpy
from pydantic import TypeAdapter, ValidationError

from fedsim.environment import Environment, ProcessGenerator
from fedsim.errors import SimulationError
from fedsim.language.units import Bytes, Flops, Seconds
from fedsim.simulation import Simulation
from fedsim.world.network.flow import SERVER, Direction
from fedsim.world.processes.activity import Activity, DeviceFacts
from fedsim.world.task import Work

if TYPE_CHECKING:
    from fedsim.streams import Streams
    from fedsim.world.device_kinds import Capacity
    from fedsim.world.life import TaskRunner
    from fedsim.world.messages import Edges
    from fedsim.world.network.base import Network
    from fedsim.world.population import Population

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


class Engine(Protocol):
    """Carries out what processes do, each by its number: ``Processes``."""

    simulation: Simulation
    streams: "Streams"
    network: "Network"
    tasks: "TaskRunner"
    edges: "Edges"
    capacity: "Capacity"
    population: "Population"

    def sleep(self, number: int, when: float) -> simpy.Event: ...
    def send(self, number: int, source: int, destination: int, size: float, purpose: str, waited: float) -> Activity: ...
    def compute(self, number: int, device: int, work: Work) -> Activity: ...
    def wait_for(self, number: int, device: int) -> ProcessGenerator: ...
    def hold(self, what: str, keys: Sequence[str | int], value: float) -> Hold: ...
    def emit(self, kind: str, **fields: Any) -> None: ...


class World:
    """The world as a process sees it. Times are simulated seconds, rates bytes/s.

    Endpoints are ``"server"``, ``"device 7"`` (or 7), ``"edge 3"`` and the names of hosts.

    Attributes:
        env: SimPy's environment, for ``env.process``, ``env.event``, ``simpy.Resource(world.env, 2)`` and all the rest.
        simulation: the clock; ``world.simulation.listen`` tells of every record.
        devices: how many there are.
        state: what a process that can be restored must remember; values that JSON has.
    """

    def __init__(self, processes: Engine, number: int, devices: int) -> None:
        self._processes, self._number = processes, number
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

    def send(
        self, source: int | str, destination: int | str, size: float | str, purpose: str = "process", waited: float = 0.0
    ) -> Activity:
        """Send a message of ``size`` bytes (``"5 MB"``) from any endpoint to any other, over the links between them.

        One that has ``waited`` (s) behind another on the same connection pays so much less latency.

        Its value is the ``Activity``: ``outcome`` is ``lost`` if an end cannot be reached, or not until the last byte is there.
        """
        ends = self._endpoint(source), self._endpoint(destination)
        return self._processes.send(self._number, *ends, quantity(size, Bytes, "a message"), purpose, waited)

    def compute(
        self, device: int | str, work: float | str = 0.0, *, samples: float = 0.0, seconds: float | str = 0.0
    ) -> Activity:
        """Let a device compute: FLOPs (``"3 GFLOP"``), as long as a training on so many samples, or some seconds; they add up.

        It takes what the device's speed, jitter, slow phases and ``slow`` make of it. It runs beside the device's task, if it
        has one. Its value is the ``Activity``: ``outcome`` is ``lost`` if the device cannot be reached meanwhile.
        """
        number = self._device(device)
        asked = Work(samples, quantity(work, Flops, "work"), quantity(seconds, Seconds, "a time"))
        if not 0 <= samples < math.inf:
            raise SimulationError(f"a device cannot compute {samples!r} samples; allowed is a number of 0 or more")
        return self._processes.compute(self._number, number, asked)

    def device(self, device: int | str) -> DeviceFacts:
        """Properties of a device."""
        number, processes = self._device(device), self._processes
        population, network = processes.population, processes.network
        arrival, departure = population.arrival.item(number), population.departure.item(number)
        return DeviceFacts(
            population.speed.item(number),
            None if population.flops is None else population.flops.item(number),
            network.access_rate(number, "down"),
            network.access_rate(number, "up"),
            network.latency_s(SERVER, number),
            population.samples.item(number),
            processes.capacity.name(number),
            arrival,
            departure,
            arrival <= self.now < departure,
        )

    def available(self, device: int | str) -> bool:
        """Whether a device can be reached now, whether it works or not."""
        return self._processes.tasks.reachable_until(self._device(device)) > self.now

    def until_available(self, device: int | str) -> simpy.Event:
        """An event that fires when a device can be reached; at once if that is now."""
        return self.env.process(self._processes.wait_for(self._number, self._device(device)))

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A random stream of this process's own; the same for the same purpose and ids, whatever the strategy does."""
        return self._processes.streams.generator(f"world/process/{purpose}", self._number, *ids)

    def rate(self, link: str) -> float:
        """Built capacity of a link (bytes/s): ``server up``, ``cell 3 down``, ``device 7 up``, ``a -> b``."""
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
        if not isinstance(slots, simpy.Resource) or isinstance(slots, simpy.PreemptiveResource):
            raise SimulationError(f"messages queue for a simpy.Resource, or a PriorityResource; {slots!r} is none")
        tasks = self._processes.tasks
        tasks.steps.queue(direction, slots, tasks.running)
        self._processes.emit("queue", direction=direction, slots=slots.capacity)

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
