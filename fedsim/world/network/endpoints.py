"""Endpoints of a network, the links and latencies between them, and rates as the scenario sets them."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedsim.clock.simulation import TICK_S, on_grid
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import SimulationError, nearest
from fedsim.common.returns import returns
from fedsim.world.columns import ALL, each
from fedsim.world.network.protocol import Transport

Direction = Literal["down", "up"]  # down: to a device, up: from it

SERVER = -1
"""Endpoint ID of the server.

The endpoint ID of a device is its index. The IDs of edge servers follow the IDs of all devices, and
the IDs of hosts follow the IDs of all edge servers.
"""


def ends(device: int, direction: Direction, at: int = SERVER) -> tuple[int, int]:
    """Return the sender's and the receiver's ID of a message between a device and a server.

    Args:
        device: index of the device.
        direction: ``down`` to the device, ``up`` from it.
        at: ID of the other endpoint: the server, or an edge server.
    """
    return (at, device) if direction == "down" else (device, at)


def _find_wrong_route(links: Sequence[str], network: "Endpoints", *_: object, **__: object) -> str:
    if not isinstance(links, list | tuple):
        return ""
    unknown = [name for name in links if name not in network.links]
    hint = nearest(str(unknown[0]), network.links) if unknown else ""
    return f"the unknown link {unknown[0]!r}{hint}" if unknown else ""


@dataclass(frozen=True, eq=False)
class Infrastructure:
    """Links, latencies and endpoints, which ``Network`` passes to its base classes.

    Attributes:
        links: name -> capacity of each shared link (bytes/s).
        down, up: rates of the devices' own links (bytes/s), float64 [devices].
        latency: one-way propagation delay of each device (s), float64 [devices].
        transport: the protocol, and the random streams from which the weights of flows are drawn.
        edge_latency: latency between each edge server and the server (s), float64 [edge servers].
        edges: index of each device's edge server, int64 [devices]; None without edge servers.
        hosts: names of other endpoints than server, devices and edge servers.
    """

    links: Mapping[str, float]
    down: Floats
    up: Floats
    latency: Floats
    transport: Transport
    edge_latency: Floats | None
    edges: Ints | None
    hosts: Sequence[str]


class Endpoints(ABC):
    """Base of ``Network``: endpoints (senders and receivers), and the links between them.

    Each device has its own link in each direction. A flow's latency is the sum of the latencies of
    source and destination, and of the edge servers of both unless they have the same edge server.

    Args:
        built: the links, latencies and endpoints.

    Attributes:
        devices, endpoints: count of devices, and of endpoints except the server.
        hosts: name -> endpoint ID of each host, an endpoint that is no server, device or edge server.
        access: scenario's rates of the devices' own links, ``down`` and ``up`` (bytes/s), float64
            [devices] each.
        latencies: ``latency_s`` between the server and each device (s), float64 [devices].
        repeats: number n such that devices i and i + n always have the same shared links to the
            server, which saves computing all routes; None if there is no such number.

    Raises:
        SimulationError: a rate is not above 0, a latency is negative or not finite, or the arrays
            differ in length.
    """

    repeats: int | None = None

    def __init__(self, built: Infrastructure) -> None:
        latency = built.latency
        _refuse_wrong_values(built.links, built.down, built.up, latency)
        self.devices = len(latency)
        self.links = built.links
        self.edges = built.edges
        self._edge_latency = np.empty(0)
        if built.edge_latency is not None:
            self._edge_latency = built.edge_latency
        # IDs of devices come first, then those of edge servers, then those of hosts
        first_host = self.devices + len(self._edge_latency)
        self.hosts = {name: first_host + number for number, name in enumerate(built.hosts)}
        self.endpoints = first_host + len(built.hosts)
        self.access: dict[Direction, Floats] = {"down": built.down, "up": built.up}
        # Not rounded to ticks: weights depend on latencies, and a latency may be only a few ticks.
        self._own_latency = latency
        to_server = latency
        if built.edges is not None:
            to_server = latency + self._edge_latency[built.edges]
        self.latencies: Floats = each(in_ticks, to_server)
        self._protocol = built.transport.protocol

    @abstractmethod
    @returns("a list of names of the network's 'links'", _find_wrong_route)
    def route(self, source: int, destination: int) -> Sequence[str]:
        """Return the names of the shared links between two endpoints.

        The result does not include the devices' own links.

        Args:
            source, destination: IDs of the endpoints.
        """

    def edge_at(self, endpoint: int) -> int | None:
        """Return the index of the edge server that has an endpoint ID; None for other endpoints.

        Args:
            endpoint: ID of the endpoint.
        """
        edge = endpoint - self.devices
        return edge if 0 <= edge < len(self._edge_latency) else None

    def name(self, endpoint: int) -> str:
        """Return the name of an endpoint, as records use it.

        Args:
            endpoint: ID of the endpoint.

        Returns:
            ``server``, ``device 7``, ``edge 3``, or the name of a host.
        """
        if endpoint == SERVER:
            return "server"
        if endpoint < self.devices:
            return f"device {endpoint}"
        edge = self.edge_at(endpoint)
        if edge is not None:
            return f"edge {edge}"
        return next(name for name, host in self.hosts.items() if host == endpoint)

    def endpoint(self, name: str) -> int:
        """Return the ID of an endpoint by its name.

        Args:
            name: ``server``, ``device 7``, ``edge 3``, or the name of a host.

        Raises:
            SimulationError: there is no such endpoint.
        """
        if name in self.hosts:
            return self.hosts[name]
        if name == "server":
            return SERVER
        edges = len(self._edge_latency)  # count of edge servers
        match = re.fullmatch(r"(device|edge) (\d{1,9})", name)
        if match is not None:
            number = int(match[2])
            if match[1] == "device" and number < self.devices:
                return number
            if match[1] == "edge" and number < edges:
                return self.devices + number
        allowed = ["server"]
        for kind, count in (("device", self.devices), ("edge", edges)):
            if count:
                allowed.append(f"{kind} 0 to {count - 1}")
        allowed += self.hosts
        # a mistyped name is compared with the first name of each range
        hint = nearest(name, [text.partition(" to ")[0] for text in allowed])
        raise SimulationError(
            f"there is no endpoint {name!r}; allowed are {', '.join(allowed)}{hint}"
        )

    def layout(self) -> dict[str, Any] | None:
        """Return the shared links and routes, as ``network.json`` of a run folder stores them.

        The result is None if links and routes follow from the scenario's keys, so that no file is
        needed.
        """
        return None

    def devices_at(self, place: int) -> list[int]:
        """Return the indices of the devices in one cell of a tree, or at one node of a graph.

        Args:
            place: index of the cell, or index of the node in ``attach``, the list of the nodes to
                which devices are attached.

        Raises:
            SimulationError: there is no such cell or node.
        """
        raise SimulationError(f"there is no cell {place}: the network has none")

    def latency_s(self, source: int, destination: int) -> float:
        """Return the one-way latency (propagation delay) between two endpoints (s).

        It is the scenario's value, rounded to the clock's ticks; ``Network.present_latency_s`` also
        follows traces. A flow waits this time once at its start, before its bytes use any link.

        Args:
            source, destination: IDs of the endpoints.
        """
        device = destination if source == SERVER else source
        if (source == SERVER or destination == SERVER) and device < self.devices:
            return self.latencies.item(device)  # latency between the server and a device
        return on_grid(self._exact_latency_s(source, destination))

    def _exact_latency_s(self, source: int, destination: int) -> float:
        """Return the delay before a flow's first byte leaves (s), without rounding to ticks."""
        seconds = 0.0
        # the two endpoints without the devices' own links: a device is replaced by its edge server
        hubs = []
        for endpoint in (source, destination):
            hub = endpoint
            if 0 <= endpoint < self.devices:
                seconds += self._own_latency.item(endpoint)
                if self.edges is not None:
                    hub = self.devices + self.edges.item(endpoint)
            hubs.append(hub)
        if hubs[0] == hubs[1]:  # two devices of one edge server: bytes do not go to the server
            return seconds
        edges = [self.edge_at(hub) for hub in hubs]  # None for a hub that is no edge server
        seconds += sum(self._edge_latency.item(edge) for edge in edges if edge is not None)
        return seconds

    def round_trip_s(self, source: int, destination: int) -> float:
        """Return the time from sending a packet to its acknowledgement on empty links (s).

        The time is rounded to the clock's ticks.

        Args:
            source, destination: IDs of the endpoints.
        """
        return on_grid(2 * self.latency_s(source, destination) + self._protocol.round_trip)

    # times of messages that share no link with another message

    def nominal_s(
        self, device: int, direction: Direction, size: float, *, near: bool = False
    ) -> float:
        """Return how long a device's message takes if only the device's own link limits the rate (s).

        The time includes the latency and a slow start.

        Args:
            device: index of the device.
            direction: the direction of the message.
            size: payload (bytes).
            near: whether the other end is the device's edge server, instead of the server.
        """
        peer = SERVER
        if near and self.edges is not None:
            peer = self.devices + self.edges.item(device)
        route = ends(device, direction, peer)
        rate = self.access[direction].item(device)
        sending_s = self._protocol.sending_s(size, rate, self.round_trip_s(*route))
        return self.latency_s(*route) + float(sending_s)

    def all_alone_s(
        self, direction: Direction, size: float, *, near: bool = False, devices: slice = ALL
    ) -> Floats:
        """Return how long a message of each device takes if no other flow runs (s), [devices].

        The time includes the latency and a slow start. The rate is ``lone_rates`` to and from the
        server, and the rate of the device's own link to and from an edge server (``near``).

        Args:
            direction: the direction of the messages.
            size: payload of each message (bytes).
            near: whether the other end is each device's edge server, instead of the server.
            devices: slice of the devices; all by default.
        """
        if near:
            latency = self.near_latencies(devices)
            rates = self.access[direction][devices]
        else:
            latency = self.latencies[devices]
            rates = self.lone_rates(direction, devices)
        round_trips = 2 * latency + self._protocol.round_trip
        return latency + self._protocol.sending_s(size, rates, round_trips)

    def near_latencies(self, devices: slice = ALL) -> Floats:
        """Return the latency between each device and its edge server (s), float64 [devices].

        Args:
            devices: slice of the devices.
        """
        return each(in_ticks, self._own_latency[devices])

    # rates as built, before any trace or other change of a link

    def lone_rates(self, direction: Direction, devices: slice = ALL) -> Floats:
        """Return the rate of a flow between the server and each device if no other flow is running.

        Args:
            direction: ``down`` or ``up``.
            devices: slice of the devices; all by default.

        Returns:
            Least rate of the links on each route (bytes on the wire/s), float64 [devices].
        """
        start, stop, step = devices.indices(self.devices)
        indices = np.arange(start, stop, step)
        # devices i and i + period have the same shared links
        period = self.devices
        if self.repeats:
            period = min(self.repeats, self.devices)
        narrowest_rates = []  # least rate of the shared links, for each of ``period`` devices
        for device in range(period):
            links = self.links_between(*ends(device, direction))
            narrowest_rates.append(min([rate for _, rate in links], default=math.inf))
        shared_rates = np.array(narrowest_rates)[indices % period]
        rates: Floats = np.minimum(self.access[direction][devices], shared_rates)
        return rates

    def links_between(self, source: int, destination: int) -> list[tuple[str, float]]:
        """Return the shared links on the route between two endpoints.

        Args:
            source, destination: IDs of the endpoints.

        Returns:
            Name and capacity (bytes/s) of each link.
        """
        try:
            return [(name, self.links[name]) for name in self.route(source, destination)]
        except KeyError as error:
            unknown = f"{error.args[0]!r}{nearest(str(error.args[0]), self.links)}"
            raise SimulationError(
                f"the route from {source} to {destination} has the unknown link {unknown}"
            ) from None

    def own_links(self, source: int, destination: int) -> list[tuple[str, float]]:
        """Return the devices' own links on the route between two endpoints.

        Args:
            source, destination: IDs of the endpoints.

        Returns:
            Name and rate (bytes/s) of each link.
        """
        links = []
        if 0 <= source < self.devices:
            links.append((f"device {source} up", self.access["up"].item(source)))
        if 0 <= destination < self.devices:
            links.append((f"device {destination} down", self.access["down"].item(destination)))
        return links

    def built_rate(self, link: str) -> float:
        """Return the capacity of a link (bytes/s) as the scenario has it.

        It is the mean of the trace if the link follows a trace. Limits by processes do not change it.

        Args:
            link: name of a shared link, or a device's own link such as ``device 7 up``.

        Raises:
            SimulationError: there is no such link.
        """
        if link in self.links:
            return self.links[link]
        match = re.fullmatch(r"device ([0-9]+) (down|up)", link)
        if match is None or int(match[1]) >= self.devices:
            # the links of device 0 stand for those of all devices
            names = [*self.links, *(f"device 0 {direction}" for direction in self.access)]
            raise SimulationError(
                f"there is no link {link!r}; allowed are {', '.join(names)} and so "
                f"on{nearest(link, names)}"
            )
        direction: Direction = "up" if match[2] == "up" else "down"
        return self.access[direction].item(int(match[1]))


def in_ticks(seconds: Floats) -> Floats:
    """Round times (s) to multiples of ``TICK_S``, the resolution of the simulated clock."""
    ticks: Floats = np.rint(seconds / TICK_S) * TICK_S
    return ticks


def _refuse_wrong_values(
    links: Mapping[str, float], down: Floats, up: Floats, latency: Floats
) -> None:
    for name, capacity in links.items():
        if not capacity > 0:
            raise SimulationError(
                f"the link {name!r} carries {capacity} B/s; a capacity must be above 0"
            )
    if not len(down) == len(up) == len(latency):
        raise SimulationError(
            f"devices have {len(down)} rates down, {len(up)} up and {len(latency)} latencies; "
            "all as many"
        )
    rate_rule = "B/s; a rate must be above 0"
    latency_rule = "s; it must be finite and not negative"
    is_latency = (latency >= 0) & (latency < np.inf)
    # for each check: name and values, whether each value is allowed, and the rule in words
    checks = [
        ("link down", down, down > 0, rate_rule),
        ("link up", up, up > 0, rate_rule),
        ("latency", latency, is_latency, latency_rule),
    ]
    for name, column, is_allowed, rule in checks:
        wrong_devices = np.flatnonzero(~is_allowed)
        if len(wrong_devices):
            device = wrong_devices[0]
            raise SimulationError(f"device {device} has a {name} of {column[device]} {rule}")
