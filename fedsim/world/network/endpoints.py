"""Endpoints, a flow between two of them, the ways between them, and what a rule that shares links must offer."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from fedsim.arrays import Floats, Ints
from fedsim.errors import SimulationError, nearest
from fedsim.simulation import TICK_S, on_grid
from fedsim.world.columns import ALL, each
from fedsim.world.network.protocol import Transport

Direction = Literal["down", "up"]  # down: to a device, up: from it

SERVER = -1
"""The server's number. Devices have the numbers from 0, edge servers those after all devices, hosts those after these."""


def ends(device: int, direction: Direction, at: int = SERVER) -> tuple[int, int]:
    """Source and destination of a message between a device and the endpoint ``at``: from there if ``"down"``, else to it."""
    return (at, device) if direction == "down" else (device, at)


@dataclass(slots=True, eq=False)
class Flow:
    """A transfer between two endpoints, running or ended.

    Attributes:
        id: the order of its start among all flows of the network.
        size, wire: bytes to send, and what they are on the links, headers included.
        ended: when the last byte came, or when it was cancelled (s); exact, not on the clock's grid; None until then.
        sent: bytes delivered at the end; 0 until then (``Network.sent`` tells how far a running flow is).
    """

    id: int
    source: int
    destination: int
    size: float
    started: float
    done: Callable[[], None]
    wire: float
    weight: float
    ended: float | None = None
    sent: float = 0.0


Route = Iterable[tuple[str, float]]
"""The links of a flow: the name, and what each carries now (bytes/s)."""


class Sharing(Protocol):
    """A sharing rule at work on a set of links: numbers alone, no clock, no flows but their ids. It may be deep-copied.

    Its bytes are those on the wire. A snapshot keeps the attributes of the instance: plain values, lists, dicts and arrays.

    Attributes:
        next_end: when the next flow will have sent all if nothing changes (s, exact); infinity if none runs.
        changed: whether flows have come or left, or links changed, since the last ``share``.
    """

    next_end: float
    changed: bool

    def enter(
        self, flow_id: int, size: float, cap: float, now: float, weight: float = 1.0, sent: float = 0.0, route: Route = ()
    ) -> None:
        """Let a flow of ``size`` bytes in, of which ``sent`` were sent before. The next ``share`` finds its rate.

        ``cap`` is the most that it can have (bytes/s), infinite only if a link of its route is not; ``weight`` is above 0.
        """

    def leave(self, flow_id: int, now: float) -> None:
        """Take a flow out before its end. Its share is given away by the next ``share``."""

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        """Give a running flow of ``size`` bytes another cap (bytes/s). Taken in by the next ``share``."""

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        """Give a link another capacity (bytes/s). One that is on no flow's route does not matter."""

    def share(self, now: float) -> None:
        """Share the links again among the flows that are there ``now`` (s)."""

    def advance(self, until: float) -> list[tuple[float, int]]:
        """Carry out all ends up to ``until`` (s), each at its exact time; returns (end, flow id) of each."""

    def sent(self, flow_id: int, at: float) -> float:
        """Bytes that a running flow has sent ``at`` a time (s) between the last change and the next end."""

    def rate(self, flow_id: int) -> float:
        """Bytes/s of a running flow."""


class Endpoints(ABC):
    """Senders and receivers of a network, and the links between them.

    A device has a link of its own each way, which all that it sends, or receives, takes; the others have none but those on
    their routes. A flow's latency is the sum of both ends' own. To it come that of the edge server of either end (its own, if
    it is one), unless both ends have the same.

    Args:
        links: name -> capacity of each link that endpoints share, bytes/s, infinity allowed.
        down, up: rates of the devices' own links, bytes/s, above 0, infinity allowed; float64 [devices].
        latency: each device's own: what passes before the first byte leaves, s; loads no link; float64 [devices].
        edge_latency: of each edge server, between it and the server (s); float64 [edge servers].
        edges: which is each device's, int64 [devices]; None where there are none.
        hosts: names of further endpoints, which have no latency.

    Attributes:
        devices, endpoints: how many there are, and how many endpoints besides the server.
        hosts: name -> number of each.

    ``SimulationError``: a rate is not above 0, a latency is negative or not finite, or the arrays differ in length.
    """

    def __init__(
        self,
        links: Mapping[str, float],
        down: Floats,
        up: Floats,
        latency: Floats,
        transport: Transport,
        edge_latency: Floats | None,
        edges: Ints | None,
        hosts: Sequence[str],
    ) -> None:
        _check(links, down, up, latency)
        self.devices = len(latency)
        self.links, self.edges = links, edges
        self._edge_latency = np.empty(0) if edge_latency is None else edge_latency
        servers = self.devices + len(self._edge_latency)
        self.hosts = {name: servers + number for number, name in enumerate(hosts)}
        self.endpoints = servers + len(hosts)
        self._access: dict[Direction, Floats] = {"down": down, "up": up}
        self._own_latency = latency  # weights depend on it as it was given, and a tick is much of a short one
        far = latency if edges is None else latency + self._edge_latency[edges]
        self._latency: Floats = each(_in_ticks, far)
        self._protocol = transport.protocol

    @abstractmethod
    def route(self, source: int, destination: int) -> Sequence[str]:
        """The names of the shared links between two endpoints, without the devices' own."""

    def edge_at(self, endpoint: int) -> int | None:
        """The number of the edge server at an endpoint; None where that is none."""
        edge = endpoint - self.devices
        return edge if 0 <= edge < len(self._edge_latency) else None

    def name(self, endpoint: int) -> str:
        """Name of an endpoint in records: ``server``, ``device 7``, ``edge 3``, or a host's name."""
        if endpoint < self.devices:
            return "server" if endpoint == SERVER else f"device {endpoint}"
        edge = self.edge_at(endpoint)
        return next(name for name, host in self.hosts.items() if host == endpoint) if edge is None else f"edge {edge}"

    def endpoint(self, name: str) -> int:
        """The number of the endpoint that records call ``name``; ``SimulationError`` if there is none."""
        edges = len(self._edge_latency)
        found = re.fullmatch(r"(device|edge) (\d{1,9})", name)
        if name == "server" or name in self.hosts:
            return SERVER if name == "server" else self.hosts[name]
        if found and int(found[2]) < (self.devices if found[1] == "device" else edges):
            return int(found[2]) + (0 if found[1] == "device" else self.devices)
        few = [f"edge 0 to edge {edges - 1}"] * (edges > 0)
        allowed = ", ".join(["server", f"device 0 to device {self.devices - 1}", *few, *self.hosts])
        known = ["server", "device 0", *(["edge 0"] if edges else []), *self.hosts]
        raise SimulationError(f"there is no endpoint {name!r}; allowed are {allowed}{nearest(name, known)}")

    def layout(self) -> dict[str, Any] | None:
        """The shared links and routes, as plain tables for the run folder; None if the scenario says all of them itself."""
        return None

    def devices_at(self, place: int) -> list[int]:
        """The devices of a cell, or of the place of that number in ``attach``; ``SimulationError`` if there is none."""
        raise SimulationError(f"there is no cell {place}: the network has none")

    # Latencies.

    def latency_s(self, source: int, destination: int) -> float:
        """Delay before a flow's first byte leaves, on the clock's grid (s)."""
        device = destination if source == SERVER else source
        if (source == SERVER or destination == SERVER) and device < self.devices:
            return self._latency.item(device)
        return on_grid(self._exact_latency_s(source, destination))

    def latencies_s(self) -> Floats:
        """``latency_s`` between the server and all devices (s), float64 [devices]."""
        return self._latency

    def _exact_latency_s(self, source: int, destination: int) -> float:
        seconds = 0.0
        places = []  # of an endpoint: its edge server, or itself where it has none
        for end in (source, destination):
            if 0 <= end < self.devices:
                seconds += self._own_latency.item(end)
                end = end if self.edges is None else self.devices + self.edges.item(end)
            places.append(end)
        if places[0] != places[1]:
            found = [edge for edge in map(self.edge_at, places) if edge is not None]
            seconds += sum(self._edge_latency.item(edge) for edge in found)
        return seconds

    def round_trip_s(self, source: int, destination: int) -> float:
        """From a packet to its acknowledgement on empty links, on the clock's grid (s)."""
        return on_grid(2 * self.latency_s(source, destination) + self._protocol.round_trip)

    # Messages that are alone on their way.

    def nominal_s(self, device: int, direction: Direction, size: float, *, near: bool = False) -> float:
        """Time of a message of ``size`` bytes between a device and the server if the device's own link is the only limit (s).

        ``near``: between it and its edge server.
        """
        at = SERVER if self.edges is None or not near else self.devices + self.edges.item(device)
        way, rate = ends(device, direction, at), self.access_rate(device, direction)
        return self.latency_s(*way) + float(self._protocol.sending_s(size, rate, self.round_trip_s(*way)))

    def all_alone_s(self, direction: Direction, size: float, *, near: bool = False, devices: slice = ALL) -> Floats:
        """Time of a message of ``size`` bytes between each device and the server, alone on its way (s); float64 [devices].

        ``near``: between each device and its edge server, over its own link alone.
        """
        latency = each(_in_ticks, self._own_latency[devices]) if near else self.latencies_s()[devices]
        rates = self.access_rates(direction)[devices] if near else self.lone_rates(direction, devices)
        return latency + self._protocol.sending_s(size, rates, 2 * latency + self._protocol.round_trip)

    # Rates, as they were built.

    def access_rate(self, device: int, direction: Direction) -> float:
        """The rate of a device's own link (bytes/s)."""
        return self._access[direction].item(device)

    def access_rates(self, direction: Direction) -> Floats:
        """The rates of all devices' own links (bytes/s), float64 [devices]."""
        return self._access[direction]

    def lone_rate(self, source: int, destination: int) -> float:
        """The rate of a flow that shares its way with no other (bytes/s)."""
        own = (self.access_rate(*own) for own in self._own(source, destination))
        return min([*own, *(rate for _, rate in self.links_between(source, destination)), math.inf])

    def lone_rates(self, direction: Direction, devices: slice = ALL) -> Floats:
        """``lone_rate`` between the server and all devices or some (bytes/s), float64 [devices]."""
        return np.array([self.lone_rate(*ends(device, direction)) for device in range(self.devices)[devices]])

    def links_between(self, source: int, destination: int) -> list[tuple[str, float]]:
        """The shared links between two endpoints: the name and the capacity (bytes/s) of each."""
        try:
            return [(name, self.links[name]) for name in self.route(source, destination)]
        except KeyError as error:
            way, name = f"the route from {source} to {destination}", error.args[0]
            raise SimulationError(f"{way} has the unknown link {name!r}{nearest(str(name), self.links)}") from None

    def built_rate(self, link: str) -> float:
        """Built capacity of a link (bytes/s), or ``SimulationError``: a shared one by its name, or ``device 7 up``."""
        if link in self.links:
            return self.links[link]
        device, direction = self._owner(link)
        if device is None or device >= self.devices:
            names = [*self.links, *(f"device 0 {way}" for way in self._access)]
            raise SimulationError(f"there is no link {link!r}; allowed are {', '.join(names)} and so on{nearest(link, names)}")
        return self.access_rate(device, direction)

    @staticmethod
    def _owner(link: str) -> tuple[int | None, Direction]:
        found = re.fullmatch(r"device ([0-9]+) (down|up)", link)
        return (int(found[1]), "down" if found[2] == "down" else "up") if found else (None, "down")

    def _own(self, source: int, destination: int) -> list[tuple[int, Direction]]:
        """The devices' own links on a way."""
        both: tuple[tuple[int, Direction], ...] = (source, "up"), (destination, "down")
        return [own for own in both if 0 <= own[0] < self.devices]

    def _no_way(self, source: int, destination: int) -> SimulationError:
        if source == destination:
            return SimulationError(f"endpoint {source} sends to itself; a message goes to another endpoint")
        wrong = next(end for end in (source, destination) if not SERVER <= end < self.endpoints)
        allowed = f"{SERVER}, the server, and 0 to {self.endpoints - 1}"
        return SimulationError(f"there is no endpoint {wrong}; allowed are {allowed}")


def _in_ticks(seconds: Floats) -> Floats:
    ticks: Floats = np.rint(seconds / TICK_S) * TICK_S
    return ticks


def _check(links: Mapping[str, float], down: Floats, up: Floats, latency: Floats) -> None:
    for name, capacity in links.items():
        if not capacity > 0:
            raise SimulationError(f"the link {name!r} carries {capacity} B/s; a capacity must be above 0")
    if not len(down) == len(up) == len(latency):
        raise SimulationError(f"devices have {len(down)} rates down, {len(up)} up and {len(latency)} latencies; all as many")
    for name, column in (("link down", down), ("link up", up), ("latency", latency)):
        is_rate = column is not latency
        wrong = ~(column > 0) if is_rate else ~((latency >= 0) & (latency < np.inf))
        for device in np.flatnonzero(wrong)[:1]:
            why = "B/s; a rate must be above 0" if is_rate else "s; it must be finite and not negative"
            raise SimulationError(f"device {device} has a {name} of {column[device]} {why}")
