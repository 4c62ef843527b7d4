"""The star: one server link each way, and each device behind a link of its own. O(log n) an
event, by virtual time.

Rates, caps and bytes are *a unit of weight*. Flows below their cap are free and run at the water
level w, others are capped. Capped flows have real time, free ones a virtual clock V, dV = w dt.
Flows of one cap are a *tier* and change sides together.
"""

import math
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.filling import Route, Sharing
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import PLAIN, Transport

_UNITS = 2.0**40  # units of rate in a byte/s
_WEIGHTS = 2**40  # units of weight in 1
_SET_BACK_S = 2.0**12  # for how long the virtual clock runs on; then its last bit is worth 10^-12 s
_LATE_S = 2.0**17  # from when on the last bit of a time counts: it is worth 3 10^-11 s
_SLACK = 64  # how many dead entries a heap may hold beside as many as it has live ones

Units = int | float
"""A rate in units, a unit of weight or not: an int, or infinity."""


def _in_units(rate: float) -> Units:
    if rate == math.inf:
        return rate
    return max(1, round(rate * _UNITS)) if rate else 0  # an int: sums are exact of these alone


@dataclass(slots=True, eq=False)
class Tier:
    """The flows of one cap. Its clock counts the bytes sent by each, a unit of weight, since the
    tier began.

    While free the clock reads V + ``clock``; while capped it reads ``clock`` + ``rate`` x (t -
    ``since``). ``flows`` is a heap of (end on that clock, flow id), which may hold dead entries
    below its top. ``cap`` and ``weight`` are in units. The first flow ends at ``end``, on V while
    free, in real time while capped.
    """

    cap: Units
    rate: float
    free: bool
    clock: float
    since: float
    flows: list[tuple[float, int]] = field(default_factory=list)
    count: int = 0
    weight: int = 0
    end: float = math.inf

    def reading(self, at: float, clock: float) -> float:
        return clock + self.clock if self.free else self.clock + self.rate * (at - self.since)


@dataclass(slots=True)
class Place:
    """A flow's tier, the tier's clock at the flow's start and end, and its weight, also in
    units.
    """

    tier: Tier
    start: float
    end: float
    weight: float
    units: int


class StarDirection:
    """One direction of a star: flows with caps over one shared link of so many bytes/s, infinity
    allowed.
    """

    def __init__(self, capacity: float, link: str = "") -> None:
        self._link = link
        self.next_end = math.inf
        self.changed = False
        self._next_free = False  # whether the tier that ends next is free
        self._room = _in_units(capacity) * _WEIGHTS  # rate left by capped flows, per unit of weight
        self._free = 0  # the weight of free flows, in units
        self._level = math.inf  # w, bytes/s a unit of weight
        self._pushes = 0  # of ends, since the heaps were rid of dead entries
        self._changes = 0  # since the clocks were set back
        self._clock = 0.0  # V, bytes a unit of weight, as of _since
        self._since = 0.0
        self._tiers: dict[Units, Tier] = {}
        self._flows: dict[int, Place] = {}
        # Heaps of capped tiers, and of free ones; an entry that disagrees with its tier is dead.
        self._ends: list[list[tuple[float, Units]]] = [[], []]
        self._caps: list[list[Units]] = [[], []]  # of capped ones negative: the largest first

    # Flows come and go.

    def enter(
        self,
        flow_id: int,
        size: float,
        rate: float,
        now: float,
        weight: float = 1.0,
        sent: float = 0.0,
        route: Route = (),
    ) -> None:
        self._change(now)
        units = max(1, round(weight * _WEIGHTS))
        weight = units / _WEIGHTS
        rate /= weight
        cap = _in_units(rate)
        tier = self._tiers.get(cap)
        # it begins on the side where it will most likely be; ``share`` has the last word
        if tier is None:
            free = cap * (self._free + units) > self._room
            tier = self._tiers[cap] = Tier(
                cap, rate, free, -self._clock if free else 0.0, self._since
            )
            heappush(self._caps[free], cap if free else -cap)
        if tier.free:
            start = self._clock + tier.clock
            self._free += units
        else:
            start = tier.clock + tier.rate * (now - tier.since)
            self._room -= cap * units
        if sent:
            start -= sent / weight
        tier.count += 1
        tier.weight += units
        end = start + size / weight
        self._flows[flow_id] = Place(tier, start, end, weight, units)
        flows = tier.flows
        heappush(flows, (end, flow_id))
        if flows[0][1] == flow_id:
            self._schedule(tier)

    def leave(self, flow_id: int, now: float) -> None:
        self._change(now)
        tier = self._drop(flow_id)
        if tier.count:
            flows = tier.flows
            if len(flows) > 2 * tier.count + _SLACK:
                flows[:] = [entry for entry in flows if self._is_there(tier, *entry)]
                heapify(flows)
            self._schedule_first(tier)

    def recap(self, flow_id: int, size: float, rate: float, now: float) -> None:
        sent = self.sent(flow_id, now)
        weight = self._flows[flow_id].weight
        self.leave(flow_id, now)
        self.enter(flow_id, size, rate, now, weight, sent)

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        if link == self._link:
            self._change(now)
            taken = sum(tier.cap * tier.weight for tier in self._tiers.values() if not tier.free)
            self._room = _in_units(capacity) * _WEIGHTS - taken

    def advance(self, until: float) -> list[tuple[float, int]]:
        ended: list[tuple[float, int]] = []
        while self.next_end <= until:
            now = self.next_end
            end, cap = self._ends[self._next_free][0]
            if self._next_free:
                lasts = (end - self._clock) / self._level if self._level else math.inf
                rounded = lasts - (now - self._since) if now > _LATE_S else 0.0
                self._clock = end - self._level * rounded
                self._since = now
            else:
                self._move(now)
            tier = self._tiers[cap]
            flows = tier.flows
            finish = flows[0][0]
            while flows and flows[0][0] <= finish:
                end, flow_id = heappop(flows)
                if self._is_there(tier, end, flow_id):
                    self._drop(flow_id)
                    ended.append((now, flow_id))
            if tier.count:
                self._schedule_first(tier)
            self._find_level()
        return ended

    def _is_there(self, tier: Tier, end: float, flow_id: int) -> bool:
        place = self._flows.get(flow_id)  # it may be back with another cap
        return place is not None and place.tier is tier and place.end == end

    def _drop(self, flow_id: int) -> Tier:
        place = self._flows.pop(flow_id)
        tier = place.tier
        units = place.units
        tier.count -= 1
        tier.weight -= units
        if tier.free:
            self._free -= units
        else:
            self._room += tier.cap * units
        if not tier.count:
            del self._tiers[tier.cap]
        return tier

    # The two clocks.

    def _move(self, now: float) -> None:
        if now > self._since:
            if self._free:
                self._clock += self._level * (now - self._since)
            self._since = now

    def _change(self, now: float) -> None:
        self._move(now)
        self.changed = True

    def _schedule_first(self, tier: Tier) -> None:
        flows = tier.flows
        while not self._is_there(tier, *flows[0]):
            heappop(flows)
        self._schedule(tier)

    def _schedule(self, tier: Tier) -> None:
        first = tier.flows[0][0]
        if tier.free:
            tier.end = first - tier.clock
        else:
            tier.end = tier.since + ((first - tier.clock) / tier.rate if tier.rate else math.inf)
        self._pushes += 1
        heappush(self._ends[tier.free], (tier.end, tier.cap))

    # The water level.

    def share(self, now: float) -> None:
        self.changed = False
        self._move(now)
        self._find_level()

    def _find_level(self) -> None:
        """Tiers whose cap the level has crossed change sides.

        It only rises on the way, so this ends.
        """
        tiers = self._tiers
        if self._pushes > 2 * len(tiers) + _SLACK:
            self._drop_dead()
        while True:
            cap = self._next_cap(free=True)
            if cap is None or cap * self._free > self._room:
                cap = self._next_cap(free=False)
                if cap is None or cap * self._free <= self._room:
                    break
            self._change_side(tiers[cap])
        if self._free:
            self._level = self._room / self._free / _UNITS
        else:
            self._level = math.inf
            self._clock = 0.0
        self._changes += 1
        if self._clock > self._level * _SET_BACK_S and self._changes > len(self._flows):
            self._set_back()
        capped = self._first_end(free=False)
        free = self._first_end(free=True)
        if free < math.inf:
            free = self._since + (free - self._clock) / self._level if self._level else math.inf
        self._next_free = bool(free < capped)
        # rounding may put an end a last bit before now; it is now
        self.next_end = max(self._since, min(free, capped))

    def _next_cap(self, *, free: bool) -> Units | None:
        tiers = self._tiers
        heap = self._caps[free]
        while heap:
            cap = abs(heap[0])
            tier = tiers.get(cap)
            if tier is not None and tier.free == free:
                return cap
            heappop(heap)
        return None

    def _first_end(self, *, free: bool) -> float:
        tiers = self._tiers
        heap = self._ends[free]
        while heap:
            end, cap = heap[0]
            tier = tiers.get(cap)
            if tier is not None and tier.free == free and tier.end == end:
                return end
            heappop(heap)
        return math.inf

    def _change_side(self, tier: Tier) -> None:
        heappop(self._caps[tier.free])
        sign = -1 if tier.free else 1
        self._free += sign * tier.weight
        self._room += sign * tier.cap * tier.weight
        if tier.free:
            tier.clock += self._clock
            tier.since = self._since
        else:
            tier.clock += tier.rate * (self._since - tier.since) - self._clock
        tier.free = not tier.free
        heappush(self._caps[tier.free], tier.cap if tier.free else -tier.cap)
        self._schedule(tier)

    def _set_back(self) -> None:
        """Set all clocks back to 0."""
        self._changes = 0
        self._ends = [[], []]
        for tier in self._tiers.values():
            tier.flows.clear()
        for flow_id, place in self._flows.items():
            reading = place.tier.reading(self._since, self._clock)
            place.start -= reading
            place.end -= reading
            place.tier.flows.append((place.end, flow_id))
        self._clock = 0.0
        for tier in self._tiers.values():
            tier.clock = 0.0
            tier.since = self._since
            heapify(tier.flows)
            self._schedule(tier)

    def _drop_dead(self) -> None:
        self._pushes = 0
        for free in (False, True):
            tiers = [tier for tier in self._tiers.values() if tier.free == free]
            # sorted lists are heaps
            self._caps[free] = sorted(tier.cap if free else -tier.cap for tier in tiers)
            self._ends[free] = sorted((tier.end, tier.cap) for tier in tiers)

    # Readings.

    def sent(self, flow_id: int, at: float) -> float:
        place = self._flows[flow_id]
        clock = self._clock + self._level * (at - self._since) if place.tier.free else 0.0
        return place.weight * (place.tier.reading(at, clock) - place.start)

    def rate(self, flow_id: int) -> float:
        place = self._flows[flow_id]
        return place.weight * (self._level if place.tier.free else place.tier.rate)


class Star(Network):
    """One server link each way, and each device behind its own; bytes/s, infinity allowed."""

    repeats = 1

    def __init__(
        self,
        simulation: Simulation,
        down: Floats,
        up: Floats,
        latency: Floats,
        server_down: float = math.inf,
        server_up: float = math.inf,
        transport: Transport = PLAIN,
    ) -> None:
        links = {"server down": server_down, "server up": server_up}
        super().__init__(simulation, links, down, up, latency, transport)
        self._rules = [StarDirection(capacity, link) for link, capacity in links.items()]

    def route(self, source: int, destination: int) -> tuple[str, ...]:
        if source == SERVER:
            return ("server down",)
        if destination == SERVER:
            return ("server up",)
        return ()

    def _enter(self, flow: Flow, cap: float, now: float, sent: float = 0.0) -> None:
        if self._general:
            super()._enter(flow, cap, now, sent)
        else:
            self._rules[flow.source != SERVER].enter(flow.id, flow.wire, cap, now, flow.weight)

    def _rule(self, flow: Flow) -> Sharing:
        return self._rules[0 if self._general or flow.source == SERVER else 1]
