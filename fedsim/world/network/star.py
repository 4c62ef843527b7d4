"""Star network: one server link in each direction, and one own link for each device.

A change of flows takes time O(log n) for n flows, by virtual time. Rates, caps and bytes are here per
unit of a flow's weight. A flow that runs at its highest rate (cap) is *capped*. All other flows are
*free*, and run at one rate, the water level w, by which they use the rest of the link. The ends of
capped flows are stored in real time t. The ends of free flows are stored on a virtual clock V, which
counts the bytes of a free flow: dV = w dt. Flows with equal caps form a *tier*; they become capped or
free together.
"""

import math
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats
from fedsim.common.saved import saved
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.filling import Route, Sharing
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import PLAIN, Transport

# Rates and weights are counted in integer units, so that their sums are exact.
_UNITS = 2.0**40  # units per byte/s
_WEIGHTS = 2**40  # units per weight of 1
# time (s) after which the virtual clock is set to 0, if the water level has not changed; the last bit
# of the clock's reading is then worth 10^-12 s
_SET_BACK_S = 2.0**12
# simulated time (s) from which the rounding of ends is corrected, as the last bit of a time is then
# worth 3 10^-11 s
_LATE_S = 2.0**17
# a heap is freed of dead entries once it has more than two entries per live one, plus this number
_SLACK = 64
# the two states of a tier, ``Tier.is_free``
_CAPPED = False
_FREE = True

Units = int | float
"""Rate in units of 1 / ``_UNITS`` bytes/s, in total or per unit of weight: an int, or infinity."""


def _in_units(rate: float) -> Units:
    if rate == math.inf:
        return rate
    return max(1, round(rate * _UNITS)) if rate else 0


@saved()
@dataclass(slots=True, eq=False)
class Tier:
    """Flows of a star network with the same highest rate (cap), and so with the same present rate.

    All rates and bytes are per unit of a flow's weight. The tier has a clock, which counts the bytes
    that each of its flows has sent. So one number holds the progress of all flows of the tier:

    * If the flows are capped, each sends at ``rate``, and the clock reads ``clock`` + ``rate`` x
      (t - ``since``) at simulated time t.
    * If the flows are free (run below their cap), all free flows of the star send at one rate,
      which changes often. ``StarDirection`` counts these bytes once for all tiers, in the virtual
      clock V, and the tier's clock reads V + ``clock``.

    Attributes:
        cap: the highest rate as an integer, in units of 2^-40 bytes/s; or infinity.
        rate: the same rate in bytes/s.
        is_free: whether the flows run below their cap.
        clock: constant in the clock's reading (bytes).
        since: time from which the clock of capped flows counts (s).
        flows: heap of (reading of the clock at the flow's end, flow ID). Entries of flows that have
            left may remain below its top.
        count, weight: count of the flows, and their total weight in units of 2^-40.
        end: end of the first flow to end: a reading of V if the flows are free, else a time (s).
    """

    cap: Units
    rate: float
    is_free: bool
    clock: float
    since: float
    flows: list[tuple[float, int]] = field(default_factory=list)
    count: int = 0
    weight: int = 0
    end: float = math.inf

    def reading(self, at: float, clock: float) -> float:
        return clock + self.clock if self.is_free else self.clock + self.rate * (at - self.since)


@saved()
@dataclass(slots=True)
class StarFlow:
    """State of a running flow of a star network.

    Flows with the same highest rate (cap) per unit of weight form a tier. The clock of a tier counts
    the bytes that a flow of weight 1 in this tier sends (the virtual time of fair queueing).

    Attributes:
        tier: the tier to which the flow belongs.
        start, end: readings of the tier's clock at which the flow begins and ends (bytes per unit
            of weight).
        weight: weight of the flow in the sharing of the link.
        units: the weight as an integer, in units of 2^-40.
    """

    tier: Tier
    start: float
    end: float
    weight: float
    units: int


class StarDirection:
    """Sharing rule for one direction of a star network, whose flows all share the server's link.

    Each flow also has a highest rate of its own (cap), such as the rate of its device's link. A flow
    whose cap is less than its share of the server's link is capped: it runs at its cap. All other
    flows are free: they divide the rest of the link in proportion to their weights. Flows with equal
    caps per unit of weight form a tier, which is capped or free as a whole.

    Args:
        capacity: capacity of the server link (bytes/s), which may be infinite.
        link: name of the server link.
    """

    def __init__(self, capacity: float, link: str = "") -> None:
        self._link = link
        self.next_end = math.inf
        self.changed = False
        self._next_is_free = False  # whether the flow that ends at ``next_end`` is free
        # Free flows run at the rate ``_room`` / ``_free_weight`` per unit of weight, the water level.
        # Capacity that capped flows leave, an exact product: 2^-40 bytes/s times 2^-40 of a weight.
        self._room = _in_units(capacity) * _WEIGHTS
        self._free_weight = 0  # total weight of the free flows, in units of 2^-40
        self._level = math.inf  # the water level in bytes/s; infinity without free flows
        self._pushes = 0  # entries put on ``_ends`` since its dead entries were last dropped
        self._changes = 0  # computations of the level since the clocks were last set to 0
        # Virtual clock V of the free flows, as of the time ``_since`` (s): bytes that a free flow of
        # weight 1 has sent since the clock was last set to 0.
        self._clock = 0.0
        self._since = 0.0
        self._tiers: dict[Units, Tier] = {}  # cap -> the tier of all flows with this cap
        self._flows: dict[int, StarFlow] = {}  # flow ID -> state of the flow
        # Two heaps each: one of capped tiers, and one of free tiers (index ``Tier.is_free``). An
        # entry is dead if its tier is gone or is on the other side, or if its end has changed.
        # Entries of ``_ends`` are (end of the tier's first flow, cap of the tier).
        self._ends: list[list[tuple[float, Units]]] = [[], []]
        # Entries of ``_caps`` are caps of tiers, with a minus sign for capped ones. On top is the
        # next tier to change sides: the free one with the least cap, the capped one with the
        # greatest.
        self._caps: list[list[Units]] = [[], []]

    def enter(
        self,
        flow_id: int,
        size: float,
        cap: float,
        now: float,
        weight: float = 1.0,
        sent: float = 0.0,
        route: Route = (),
    ) -> None:
        self._move(now)
        self.changed = True
        # Free flows share the capacity that capped flows leave (``_room``), in proportion to their
        # weights. Flows with equal caps form a tier, which is free or capped as a whole.
        # The weight is rounded to whole units, so that sums of weights are exact
        units = max(1, round(weight * _WEIGHTS))
        weight = units / _WEIGHTS
        rate = cap / weight  # highest rate per unit of weight
        tier_cap = _in_units(rate)  # by which the flow's tier is found
        tier = self._tiers.get(tier_cap)
        # A new tier begins as free or capped by an estimate, which ``share`` corrects.
        if tier is None:
            is_free = tier_cap * (self._free_weight + units) > self._room
            clock = -self._clock if is_free else 0.0  # the tier's clock reads 0 now
            tier = self._tiers[tier_cap] = Tier(tier_cap, rate, is_free, clock, self._since)
            heappush(self._caps[is_free], tier_cap if is_free else -tier_cap)
        if tier.is_free:
            start = self._clock + tier.clock
            self._free_weight += units
        else:
            start = tier.clock + tier.rate * (now - tier.since)
            self._room -= tier_cap * units
        if sent:  # the flow counts as begun earlier in this tier
            start -= sent / weight
        tier.count += 1
        tier.weight += units
        # ``start`` and ``end`` are readings of the tier's clock (bytes per unit of weight)
        end = start + size / weight
        self._flows[flow_id] = StarFlow(tier, start, end, weight, units)
        flows = tier.flows  # heap by end
        heappush(flows, (end, flow_id))
        if flows[0][1] == flow_id:  # the new flow is the first of the tier to end
            self._schedule(tier)

    def leave(self, flow_id: int, now: float) -> None:
        self._move(now)
        self.changed = True
        tier = self._drop(flow_id)
        if tier.count:
            flows = tier.flows
            if len(flows) > 2 * tier.count + _SLACK:
                flows[:] = [entry for entry in flows if self._is_live(tier, *entry)]
                heapify(flows)
            self._schedule_first(tier)

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        sent = self.sent(flow_id, now)
        weight = self._flows[flow_id].weight
        self.leave(flow_id, now)
        self.enter(flow_id, size, cap, now, weight, sent)

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        if link == self._link:
            self._move(now)
            self.changed = True
            taken = sum(tier.cap * tier.weight for tier in self._tiers.values() if not tier.is_free)
            self._room = _in_units(capacity) * _WEIGHTS - taken

    def advance(self, until: float) -> list[tuple[float, int]]:
        ended: list[tuple[float, int]] = []
        while self.next_end <= until:
            now = self.next_end
            end, cap = self._ends[self._next_is_free][0]
            # let time pass up to the end
            if self._next_is_free:
                # the virtual clock is set to the end itself, as adding the passed bytes would round
                exact_s = (end - self._clock) / self._level if self._level else math.inf
                # ``now`` is a rounded time, at which the clock is not exactly at the flow's end
                rounding_s = exact_s - (now - self._since) if now > _LATE_S else 0.0
                self._clock = end - self._level * rounding_s
                self._since = now
            else:
                self._move(now)
            # Remove the flows of this tier that end together. Entries of flows that have left the
            # tier are skipped.
            tier = self._tiers[cap]
            flows = tier.flows
            finish = flows[0][0]
            while flows and flows[0][0] <= finish:
                end, flow_id = heappop(flows)
                if self._is_live(tier, end, flow_id):
                    self._drop(flow_id)
                    ended.append((now, flow_id))
            if tier.count:
                self._schedule_first(tier)
            self._find_level()
        return ended

    def _is_live(self, tier: Tier, end: float, flow_id: int) -> bool:
        # a flow whose cap has changed is in another tier, and a flow that has ended is in none
        flow = self._flows.get(flow_id)
        return flow is not None and flow.tier is tier and flow.end == end

    def _drop(self, flow_id: int) -> Tier:
        """Remove a flow from its tier and from the sums over flows; return the tier.

        The flow's entry in the heap of the tier remains, and is skipped later (see ``_is_live``).
        """
        flow = self._flows.pop(flow_id)
        tier = flow.tier
        units = flow.units
        tier.count -= 1
        tier.weight -= units
        if tier.is_free:
            self._free_weight -= units
        else:
            self._room += tier.cap * units
        if not tier.count:
            del self._tiers[tier.cap]
        return tier

    def _move(self, now: float) -> None:
        if now > self._since:
            if self._free_weight:
                self._clock += self._level * (now - self._since)
            self._since = now

    def _schedule_first(self, tier: Tier) -> None:
        flows = tier.flows
        while not self._is_live(tier, *flows[0]):
            heappop(flows)
        self._schedule(tier)

    def _schedule(self, tier: Tier) -> None:
        """Store when the first flow of a tier ends in the heap of ends.

        The top of the tier's heap must be the entry of a running flow.
        """
        first = tier.flows[0][0]
        if tier.is_free:
            tier.end = first - tier.clock
        else:
            tier.end = tier.since + ((first - tier.clock) / tier.rate if tier.rate else math.inf)
        self._pushes += 1
        heappush(self._ends[tier.is_free], (tier.end, tier.cap))

    def share(self, now: float) -> None:
        self.changed = False
        self._move(now)
        self._find_level()

    def _find_level(self) -> None:
        """Decide which flows run at their caps, and compute the water level and the next end.

        A cap is the highest rate of a flow per unit of weight; flows with equal caps form a tier.
        The water level is the rate per unit of weight of the free flows, which are not at their
        caps. It is ``_room`` (the capacity that capped flows leave) / ``_free_weight``. A tier is
        capped if its cap is at most the level, and free otherwise. The virtual clock ``_clock``
        counts the bytes that a free flow of weight 1 has sent by ``_since``, the present time.
        """
        tiers = self._tiers
        if self._pushes > 2 * len(tiers) + _SLACK:
            self._drop_dead()

        # Step 1: let tiers change sides until each is on the right one. A comparison of a cap with
        # the level is multiplied by the free weight, so that it is exact. If all flows are capped,
        # and the link carries all of them, no tier changes sides. Each tier that becomes capped
        # raises the level of the free flows, so the loop ends.
        while self._free_weight or self._room < 0:
            lowest_free_cap = self._next_cap(_FREE)
            if lowest_free_cap is not None and lowest_free_cap * self._free_weight <= self._room:
                self._change_side(tiers[lowest_free_cap])
                continue
            highest_capped_cap = self._next_cap(_CAPPED)
            if highest_capped_cap is None or highest_capped_cap * self._free_weight <= self._room:
                break
            self._change_side(tiers[highest_capped_cap])

        # Step 2: the level in bytes/s. The clock is set to 0 once it is so large that its float
        # gets imprecise. This visits all n flows, so it is done at most once in n changes.
        if self._free_weight:
            self._level = self._room / self._free_weight / _UNITS
        else:
            self._level = math.inf
            self._clock = 0.0
        self._changes += 1
        if self._clock > self._level * _SET_BACK_S and self._changes > len(self._flows):
            self._set_back()

        # Step 3: the next end. Ends of capped flows are times (s), and ends of free flows are
        # readings of the virtual clock (bytes), which advances at the level.
        next_end = self._first_end(_CAPPED)
        free_end = math.inf
        if self._free_weight and self._level:
            bytes_left = self._first_end(_FREE) - self._clock
            free_end = self._since + bytes_left / self._level
        self._next_is_free = bool(free_end < next_end)
        if self._next_is_free:
            next_end = free_end
        # rounding may put an end a last bit before now
        self.next_end = max(self._since, next_end)

    def _next_cap(self, is_free: bool) -> Units | None:
        """Return the lowest cap of the free tiers, or the highest cap of the capped tiers.

        Dead entries on top of the heap are removed. The result is None if there is no such tier.
        """
        tiers = self._tiers
        heap = self._caps[is_free]
        while heap:
            cap = abs(heap[0])  # caps of capped tiers are negated, so that the highest is on top
            tier = tiers.get(cap)
            if tier is not None and tier.is_free == is_free:
                return cap
            heappop(heap)
        return None

    def _first_end(self, is_free: bool) -> float:
        """Return the first end of a free flow (on the virtual clock), or of a capped flow (s).

        Dead entries on top of the heap are removed. Without such a flow, the result is infinity.
        """
        tiers = self._tiers
        heap = self._ends[is_free]
        while heap:
            end, cap = heap[0]
            tier = tiers.get(cap)
            if tier is not None and tier.is_free == is_free and tier.end == end:
                return end
            heappop(heap)
        return math.inf

    def _change_side(self, tier: Tier) -> None:
        """Make a free tier capped, or a capped tier free, so that its clock reads as before."""
        heappop(self._caps[tier.is_free])  # ``_next_cap`` has put the tier's entry on top
        # free flows have the room that capped flows leave, which changes with the tier
        sign = -1 if tier.is_free else 1
        self._free_weight += sign * tier.weight
        self._room += sign * tier.cap * tier.weight
        if tier.is_free:
            # the reading of a free tier is ``_clock`` + ``tier.clock``; that of a capped tier is
            # ``tier.clock`` plus the bytes that its rate has sent since ``tier.since``
            tier.clock += self._clock
            tier.since = self._since
        else:
            tier.clock += tier.rate * (self._since - tier.since) - self._clock
        tier.is_free = not tier.is_free
        heappush(self._caps[tier.is_free], tier.cap if tier.is_free else -tier.cap)
        self._schedule(tier)

    def _set_back(self) -> None:
        """Reset the clocks, which count sent bytes per weight, to 0, so that they stay precise.

        The readings at which flows begin and end are shifted by the same amount. The heaps of ends
        are built anew, since they are ordered by these readings.
        """
        self._changes = 0
        self._ends = [[], []]
        for tier in self._tiers.values():
            tier.flows.clear()
        for flow_id, flow in self._flows.items():
            reading = flow.tier.reading(self._since, self._clock)
            flow.start -= reading
            flow.end -= reading
            flow.tier.flows.append((flow.end, flow_id))
        self._clock = 0.0
        for tier in self._tiers.values():
            tier.clock = 0.0
            tier.since = self._since
            heapify(tier.flows)
            self._schedule(tier)

    def _drop_dead(self) -> None:
        self._pushes = 0
        for is_free in (False, True):
            tiers = [tier for tier in self._tiers.values() if tier.is_free == is_free]
            # sorted lists are heaps
            self._caps[is_free] = sorted(tier.cap if is_free else -tier.cap for tier in tiers)
            self._ends[is_free] = sorted((tier.end, tier.cap) for tier in tiers)

    def sent(self, flow_id: int, at: float) -> float:
        flow = self._flows[flow_id]
        clock = self._clock + self._level * (at - self._since) if flow.tier.is_free else 0.0
        return flow.weight * (flow.tier.reading(at, clock) - flow.start)

    def rate(self, flow_id: int) -> float:
        flow = self._flows[flow_id]
        return flow.weight * (self._level if flow.tier.is_free else flow.tier.rate)


class Star(Network):
    """Star network, with one server link in each direction and one own link for each device.

    Args:
        simulation: the clock.
        down, up: rates of the devices' own links (bytes/s, may be infinite), float64 [devices].
        latency: latency of each device (s), float64 [devices].
        server_down, server_up: rates of the server links (bytes/s, may be infinite).
        transport: the protocol, and the random streams from which it draws the weights of flows in
            the sharing of a link.
    """

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
        # links with queues have one rule for all; otherwise there is a fast rule for each direction
        if self._queues is None:
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
