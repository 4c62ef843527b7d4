"""What every network does whatever its sharing rule: latency, starts and ends, one wake-up for all, and who is told when.

A network is an exact fluid simulator with an inner clock of its own. Rates change only where a flow enters or ends, so between
two such points all is linear, and the next end is known exactly as a real number. The world's clock ticks on a grid, so the
network wakes at the first tick at or after that end; it then carries out the ends that lie before now one after another, each
at its exact time, and tells of them. So ``Flow.ended`` is exact, and news of it comes less than a nanosecond later.

All starts, ends and cancellations of one instant are one ``solve``. Reading (``sent``, ``rate``, ``load``) changes nothing.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError, nearest
from fedsim.simulation import TICK_S, Simulation, Wakeup, on_grid, on_grid_after, tie_s
from fedsim.world.columns import ALL, each
from fedsim.world.network.flow import Direction, Flow, Sharing
from fedsim.world.network.protocol import PLAIN, Transport

_BY_ID = attrgetter("id")
_ROUNDING = 1e-12  # so little below its window's rate a flow still runs at it


class Network(ABC):
    """Flows between the server and devices, which share links by weighted max-min fairness.

    A flow's size, and what of it was sent, are bytes of payload; rates, capacities and loads are bytes on the wire. In slow
    start a flow's window is a further cap of its rate, which doubles every round trip, and is gone when it has not limited one.

    A device has its own link, one each way, and in each direction one flow at a time. Two things that fall on the same instant
    are told apart so: a flow whose exact end is not after now has ended, and cancelling it then is too late, whichever of the
    two the world's order of events brings first.

    Args:
        simulation: the clock.
        down, up: rates of the devices' own links, bytes/s, above 0, infinity allowed; float64 [devices].
        latency: what passes before a flow's first byte leaves, s; loads no link; float64 [devices].
        sharing: the rule that shares the links of each direction; the same object where both share links.
        shared: name -> capacity of each link that devices share, bytes/s.
        transport: the protocol.
        edge_latency: of each edge server, one more endpoint, numbered on from the devices: what passes before the first byte
            between it and the server (s). A device's message to the server pays that besides its own; float64 [edges].
        edges: which is each device's, int64 [devices]; None where there are none.

    Attributes:
        devices: how many there are.
        edges: as given.
        limits: name -> rate of each link that carries something else now than what it was built with, bytes/s. All that is
            said of rates and capacities, but for ``rate`` and ``load``, is of the links as they were built.
        overhead: bytes on the wire for a byte of payload.
        on_shared: called when the links have been shared again, if anybody wants to know.

    Raises:
        SimulationError: a rate is not above 0, a latency is negative or not finite, or the arrays differ in length.
    """

    def __init__(
        self,
        simulation: Simulation,
        down: NDArray[np.float64],
        up: NDArray[np.float64],
        latency: NDArray[np.float64],
        sharing: Mapping[Direction, Sharing],
        shared: Mapping[str, float],
        transport: Transport = PLAIN,
        edge_latency: NDArray[np.float64] | None = None,
        edges: NDArray[np.int64] | None = None,
    ) -> None:
        _check_devices(down, up, latency)
        self._simulation = simulation
        self.devices = len(latency)
        self.edges = edges
        near = latency
        if edges is not None and edge_latency is not None:
            free = np.full(len(edge_latency), np.inf)
            down, up = np.concatenate([down, free]), np.concatenate([up, free])
            latency = np.concatenate([latency + edge_latency[edges], edge_latency])
        self._access: dict[Direction, NDArray[np.float64]] = {"down": down, "up": up}
        self._latency: NDArray[np.float64] = each(_in_ticks, latency)
        self._near_latency: NDArray[np.float64] = self._latency if near is latency else each(_in_ticks, near)
        self._said_latency = {False: latency, True: near}  # weights depend on it, and a tick is much of a short one
        self._sharing = sharing
        self._rules = list({id(rule): rule for rule in sharing.values()}.values())
        self._started = 0
        self._busy: dict[Direction, dict[int, Flow]] = {"down": {}, "up": {}}
        self._in_latency: dict[int, Wakeup] = {}
        self._entering: dict[int, Flow] = {}  # since the last solve
        self._leaving: list[Flow] = []  # cancelled since the last solve
        self._running: dict[int, Flow] = {}
        self._arrived: list[Flow] = []  # ended, and nobody has been told yet
        self._wakeup: Wakeup | None = None
        self._unsettled = False
        self._shared = shared
        self.limits: dict[str, float] = {}
        self.on_shared: Callable[[], None] | None = None
        self._changed: list[str] = []  # links, since the last solve
        self._protocol, self._streams = transport.protocol, transport.streams
        self.overhead, self._weighs = self._protocol.overhead, self._protocol.weighs
        self._transfers: dict[int, int] = {}  # how many each device has begun, where flows have weights
        self._windows: dict[int, float] = {}  # flows in slow start -> bytes/s that the window lets through
        self._round_trips: list[tuple[float, int]] = []  # heap: when the window of which flow doubles

    @abstractmethod
    def route(self, device: int, direction: Direction) -> tuple[tuple[str, float], ...]:
        """The links between the server and a device's own link: the name and the capacity (bytes/s) of each."""

    def layout(self) -> dict[str, Any] | None:
        """The shared links and routes, as plain tables for the run folder; None if the scenario says all of them itself."""
        return None

    @abstractmethod
    def _narrowest(self, direction: Direction, devices: slice) -> NDArray[np.float64] | float:
        """The least capacity on the way between the server and some devices' own links (bytes/s); float64 [devices] or one."""

    @abstractmethod
    def _enter(self, flow: Flow, cap: float, now: float) -> None:
        """Put a flow that can have ``cap`` (bytes/s) at most under the sharing rule. The next ``share`` finds its rate."""

    @abstractmethod
    def _set_capacity(self, link: str, capacity: float, now: float) -> None:
        """Give a shared link another capacity (bytes/s). Rates are found by the next ``share``."""

    def devices_at(self, place: int) -> list[int]:
        """The devices of a cell, or of the place of that number in ``attach``.

        Raises:
            SimulationError: there is no such place.
        """
        raise SimulationError(f"there is no cell {place}: a star has none")

    def _way(self, flow: Flow) -> tuple[tuple[str, float], ...]:
        """The shared links that a flow takes: the name and the capacity (bytes/s) of each."""
        return self.route(flow.device, flow.direction)

    def latency_s(self, device: int, *, near: bool = False) -> float:
        """What passes before a flow's first byte leaves, on the clock's grid (s); ``near``: to or from its edge server."""
        return (self._near_latency if near else self._latency).item(device)

    def round_trip_s(self, device: int, *, near: bool = False) -> float:
        """From a packet to its acknowledgement on empty links, on the clock's grid (s)."""
        return on_grid(2 * self.latency_s(device, near=near) + self._protocol.round_trip)

    def alone_s(self, device: int, direction: Direction, size: float, *, near: bool = False) -> float:
        """How long a message of ``size`` bytes takes if the device's own link is the only limit (s)."""
        rate, round_trip = self.access_rate(device, direction), self.round_trip_s(device, near=near)
        return self.latency_s(device, near=near) + float(self._protocol.sending_s(size, rate, round_trip))

    def all_alone_s(
        self, direction: Direction, size: float, *, near: bool = False, devices: slice = ALL
    ) -> NDArray[np.float64]:
        """How long a message of ``size`` bytes takes each device if it shares its way with no other (s), float64 [devices]."""
        latency = (self._near_latency if near else self.latencies_s())[devices]
        rates = self.access_rates(direction)[devices] if near else self.lone_rates(direction, devices)
        return latency + self._protocol.sending_s(size, rates, 2 * latency + self._protocol.round_trip)

    def access_rate(self, device: int, direction: Direction) -> float:
        """The rate of a device's own link (bytes/s)."""
        return self._access[direction].item(device)

    def lone_rate(self, device: int, direction: Direction) -> float:
        """The rate of a flow that shares its way with no other (bytes/s)."""
        return min(self.access_rate(device, direction), *(capacity for _, capacity in self.route(device, direction)), math.inf)

    def access_rates(self, direction: Direction) -> NDArray[np.float64]:
        """The rates of all devices' own links (bytes/s), float64 [devices]."""
        return self._access[direction][: self.devices]

    def lone_rates(self, direction: Direction, devices: slice = ALL) -> NDArray[np.float64]:
        """``lone_rate`` of all devices or some (bytes/s), float64 [devices]."""
        return np.minimum(self.access_rates(direction)[devices], self._narrowest(direction, devices))

    def latencies_s(self) -> NDArray[np.float64]:
        """``latency_s`` of all devices (s), float64 [devices]."""
        return self._latency[: self.devices]

    def _own_rate(self, device: int, direction: Direction) -> float:
        """What a device's own link carries now (bytes/s)."""
        rate = self._access[direction].item(device)
        return self.limits.get(f"device {device} {direction}", rate) if self.limits else rate

    def _is_unlimited(self, flow: Flow) -> bool:
        shared = (self.limits.get(name, capacity) for name, capacity in self._way(flow))
        return self._cap(flow) == math.inf and all(capacity == math.inf for capacity in shared)

    def _cap(self, flow: Flow) -> float:
        """The most that its own link and its window let a flow have now (bytes/s)."""
        if not self.limits and not self._windows:  # as nearly always
            return self._access[flow.direction].item(flow.device)
        return min(self._own_rate(flow.device, flow.direction), self._windows.get(flow.id, math.inf))

    # Changes. They are taken in at the end of the instant, all at once.

    def start(self, device: int, direction: Direction, size: float, done: Callable[[], None], *, near: bool = False) -> Flow:
        """Send ``size`` bytes; ``done`` is called when the last one is there, from a wake-up and never from within this call.

        Latency is paid first. A flow of size 0, or one that no link limits, takes the latency alone. ``near``: between the
        device and its edge server.

        Raises:
            SimulationError: the device already sends or receives in this direction, or size is negative or not finite.
        """
        busy = self._busy[direction]
        if device in busy:
            raise SimulationError(f"device {device} does one transfer {direction} at a time; there is {busy[device]!r}")
        if not 0 <= size < math.inf:
            raise SimulationError(f"a transfer of {size!r} bytes: the size must be finite and not negative")
        now = self._simulation.now
        wire, weight = size * self.overhead, self._weight(device, direction, near) if self._weighs else 1.0
        flow = busy[device] = Flow(self._started, device, direction, size, now, done, wire=wire, weight=weight, near=near)
        self._started += 1
        latency = (self._near_latency if near else self._latency).item(device)
        if latency > 0:
            self._in_latency[flow.id] = self._simulation.wake(("latency", flow.id), now + latency, partial(self._admit, flow))
        else:
            self._entering[flow.id] = flow
            self._unsettle()
        return flow

    def cancel(self, flow: Flow) -> None:
        """No more bytes from now on; ``done`` is never called. An ended flow stays as it ended, one that ends now included."""
        now = self._simulation.now
        self._advance(now)
        if flow.ended is not None:
            return
        sent = 0.0
        if flow.id in self._running:
            sent = self._payload(flow, self._sharing[flow.direction].sent(flow.id, now))
            del self._running[flow.id]
            self._leaving.append(flow)
            self._unsettle()
        elif flow.id in self._in_latency:
            self._in_latency.pop(flow.id).cancel()
        else:
            del self._entering[flow.id]
        self._end(flow, now, sent)

    def finish(self, flow: Flow) -> bool:
        """Whether a flow has all its bytes by now, but for the rounding of times; then it ends now. ``done`` is not called."""
        now = self._simulation.now
        self._advance(now)
        if flow.id in self._running:
            rule = self._sharing[flow.direction]
            is_due = flow.wire - rule.sent(flow.id, now) <= rule.rate(flow.id) * tie_s(now)
        elif flow.id in self._in_latency:
            is_due = self._in_latency[flow.id].when <= now + tie_s(now) and (flow.size == 0 or self._is_unlimited(flow))
        else:
            return flow.sent == flow.size
        if is_due:
            self.cancel(flow)
            flow.sent = flow.size
        return is_due

    def built_rate(self, link: str) -> float:
        """What a link was built to carry (bytes/s): a shared one by its name, or ``device 7 up``.

        Raises:
            SimulationError: there is no such link.
        """
        if link in self._shared:
            return self._shared[link]
        device, direction = self._owner(link)
        if device is None or device >= self.devices:
            names = [*self._shared, *(f"device 0 {way}" for way in self._busy)]
            raise SimulationError(f"there is no link {link!r}; allowed are {', '.join(names)} and so on{nearest(link, names)}")
        return self.access_rate(device, direction)

    @staticmethod
    def _owner(link: str) -> tuple[int | None, Direction]:
        """Whose own link it is, and of which direction; None for nobody's."""
        found = re.fullmatch(r"device ([0-9]+) (down|up)", link)
        return (int(found[1]), "down" if found[2] == "down" else "up") if found else (None, "down")

    def limit(self, link: str, rate: float | None) -> None:
        """From now on a link carries ``rate`` bytes/s, 0 for nothing at all; None: again what it was built with."""
        self._advance(self._simulation.now)
        if rate is None:
            del self.limits[link]
        else:
            self.limits[link] = rate
        self._changed.append(link)
        self._unsettle()

    def solve(self) -> None:
        """Take in all that changed in this instant, and set the alarm to the next end. Called by the simulation."""
        self._unsettled = False
        now = self._simulation.now
        self._advance(now)
        if self._round_trips:
            self._widen(now)
        if self._leaving:
            for flow in self._leaving:
                self._sharing[flow.direction].leave(flow.id, now)
            self._leaving.clear()
        if self._changed:
            self._change_links(now)
        if self._entering:
            for flow in self._entering.values():
                if self._protocol.slow_start and flow.size > 0:
                    self._open_window(flow, now)
                cap = self._cap(flow)
                if flow.size == 0 or (cap == math.inf and self._is_unlimited(flow)):
                    self._arrive(flow, now)
                else:
                    self._running[flow.id] = flow
                    self._enter(flow, cap, now)
            self._entering.clear()
        for rule in self._rules:
            if rule.changed:
                rule.share(now)
        self._set_alarm(now)
        if self.on_shared is not None:
            self.on_shared()

    def _change_links(self, now: float) -> None:
        for flow in [flow for flow in self._running.values() if self._is_unlimited(flow)]:
            self._sharing[flow.direction].leave(flow.id, now)
            self._arrive(self._running.pop(flow.id), now)
        for link in dict.fromkeys(self._changed):
            device, direction = self._owner(link)
            if device is None:
                self._set_capacity(link, self.limits.get(link, self._shared[link]), now)
            elif (own := self._busy[direction].get(device)) is not None and own.id in self._running:
                self._sharing[direction].recap(own.id, own.wire, self._cap(own), now)
        self._changed.clear()

    def _weight(self, device: int, direction: Direction, near: bool) -> float:
        """Of the transfer that the device begins now. It depends on how many it has begun before, on no size and no other."""
        count = self._transfers.get(device, 0)
        round_trip = 2 * self._said_latency[near].item(device) + self._protocol.round_trip
        weight = self._protocol.weight(self._streams, device, count, round_trip, direction)
        self._transfers[device] = count + 1
        return weight

    # Slow start.

    def _open_window(self, flow: Flow, now: float) -> None:
        """Begin with the first window, if it is a limit at all."""
        round_trip = self.round_trip_s(flow.device, near=flow.near)
        if self._protocol.window < self._own_rate(flow.device, flow.direction) * round_trip:
            self._windows[flow.id] = self._protocol.window / round_trip
            heappush(self._round_trips, (now + round_trip, flow.id))

    def _widen(self, now: float) -> None:
        """Double the windows whose round trip is over. One that did not limit its flow in the end is no limit any more."""
        while self._round_trips and self._round_trips[0][0] <= now:
            flow_id = heappop(self._round_trips)[1]
            if flow_id not in self._windows:
                continue
            flow, window = self._running[flow_id], self._windows.pop(flow_id)
            rule = self._sharing[flow.direction]
            limits = rule.rate(flow_id) > window * (1 - _ROUNDING)
            if limits and 2 * window < self._own_rate(flow.device, flow.direction):
                self._windows[flow_id] = 2 * window
                heappush(self._round_trips, (now + self.round_trip_s(flow.device, near=flow.near), flow_id))
            rule.recap(flow_id, flow.wire, self._cap(flow), now)

    # Readings. They change nothing.

    def sent(self, flow: Flow) -> float:
        """Bytes delivered up to now, exact at any point within an instant."""
        if flow.id not in self._running:
            return flow.sent
        rule, ended = self._as_of_now(flow.direction)
        return flow.size if flow.id in ended else self._payload(flow, rule.sent(flow.id, self._simulation.now))

    def rate(self, flow: Flow) -> float:
        """Bytes/s with which a flow is sent now, as of the last solve; 0 when it is not."""
        return self._as_of_now(flow.direction)[0].rates().get(flow.id, 0.0) if flow.id in self._running else 0.0

    def load(self) -> dict[str, tuple[float, float]]:
        """Name of each link that carries something -> (bytes/s in use as of the last solve, capacity in bytes/s)."""
        used: dict[str, float] = {}
        capacities: dict[str, float] = {}
        for direction in self._sharing:
            rates = self._as_of_now(direction)[0].rates()
            for flow in self._running.values():
                if flow.direction == direction and flow.id in rates:
                    own = (f"device {flow.device} {direction}", self.access_rate(flow.device, direction))
                    for name, capacity in (*((own,) if flow.device < self.devices else ()), *self._way(flow)):
                        used[name] = used.get(name, 0.0) + rates[flow.id]
                        capacities[name] = self.limits.get(name, capacity)
        return {name: (rate, capacities[name]) for name, rate in used.items()}

    def _as_of_now(self, direction: Direction) -> tuple[Sharing, set[int]]:
        """The rule with all ends up to now carried out, and which flows these ended: on a copy if there are any."""
        rule, now = self._sharing[direction], self._simulation.now
        if rule.next_end > now:
            return rule, set()
        ahead = deepcopy(rule)
        return ahead, {flow_id for _, flow_id in ahead.advance(now)}

    # From one end to the next.

    def _payload(self, flow: Flow, wire: float) -> float:
        """Bytes of payload in the first ``wire`` bytes of a flow."""
        return _between(0.0, wire / self.overhead, flow.size)

    def _admit(self, flow: Flow) -> None:
        del self._in_latency[flow.id]
        self._entering[flow.id] = flow
        if not self._unsettled:
            self._unsettle()

    def _unsettle(self) -> None:
        if not self._unsettled:
            self._unsettled = True
            self._simulation.unsettle(self)

    def _advance(self, now: float) -> None:
        for rule in self._rules:
            if rule.next_end <= now:
                for end, flow_id in rule.advance(now):
                    flow = self._running.pop(flow_id)
                    self._arrived.append(flow)
                    self._end(flow, end, flow.size)

    def _arrive(self, flow: Flow, end: float) -> None:
        self._arrived.append(flow)
        self._end(flow, end, flow.size)

    def _end(self, flow: Flow, end: float, sent: float) -> None:
        flow.ended, flow.sent = end, sent
        if self._windows:
            self._windows.pop(flow.id, None)
        del self._busy[flow.direction][flow.device]

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """All that the network must remember; ``restore`` takes it back."""
        state = {"started": self._started, "busy": self._busy, "running": self._running, "rules": self._rules}
        state |= {"transfers": self._transfers, "windows": self._windows, "round_trips": self._round_trips}
        return state | {"limits": self.limits}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave. Who started a flow gives it its ``done`` again; alarms follow by ``rearm``."""
        self._started, self._busy, self._running = state["started"], state["busy"], state["running"]
        self._transfers, self._windows, self._round_trips = state["transfers"], state["windows"], state["round_trips"]
        self.limits = state["limits"]
        for rule, saved in zip(self._rules, state["rules"], strict=True):
            rule.__dict__.update(saved.__dict__)
        self._wakeup = None
        self._in_latency = {}

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm that was there when the snapshot was taken: ``network``, or the ``latency`` of a flow."""
        if kind == "network":
            self._wakeup = self._simulation.wake((kind, number), when, self._tell)
            return
        flow = next(flow for flows in self._busy.values() for flow in flows.values() if flow.id == number)
        self._in_latency[number] = self._simulation.wake((kind, number), when, partial(self._admit, flow))

    def _set_alarm(self, now: float) -> None:
        """Keep exactly one wake-up: at the next end or wider window, or in this instant if someone is still to be told."""
        when = now
        if not self._arrived:
            when = math.inf
            for rule in self._rules:
                when = rule.next_end if rule.next_end < when else when
            when = on_grid_after(when)
        if self._round_trips:
            while self._round_trips and self._round_trips[0][1] not in self._windows:
                heappop(self._round_trips)
            when = min(when, self._round_trips[0][0]) if self._round_trips else when
        if self._wakeup is not None:
            if self._wakeup.when == when:
                return
            self._wakeup.cancel()
        self._wakeup = None if when == math.inf else self._simulation.wake(("network", 0), when, self._tell)

    def _tell(self) -> None:
        """Tell of all flows that have ended by now, in the order of their starts."""
        self._wakeup = None
        self._advance(self._simulation.now)
        arrived, self._arrived = sorted(self._arrived, key=_BY_ID), []
        self._unsettle()
        for flow in arrived:
            flow.done()


def _in_ticks(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    ticks: NDArray[np.float64] = np.rint(seconds / TICK_S) * TICK_S
    return ticks


def _between(low: float, value: float, high: float) -> float:
    return low if value < low else high if value > high else value


def _check_devices(down: NDArray[np.float64], up: NDArray[np.float64], latency: NDArray[np.float64]) -> None:
    if not len(down) == len(up) == len(latency):
        raise SimulationError(f"devices have {len(down)} rates down, {len(up)} up and {len(latency)} latencies; all as many")
    for name, rates in (("down", down), ("up", up)):
        wrong = np.flatnonzero(~(rates > 0))
        if wrong.size:
            raise SimulationError(f"device {wrong[0]} has a link {name} of {rates[wrong[0]]} B/s; a rate must be above 0")
    wrong = np.flatnonzero(~((latency >= 0) & (latency < np.inf)))
    if wrong.size:
        raise SimulationError(f"device {wrong[0]} has a latency of {latency[wrong[0]]} s; it must be finite and not negative")
