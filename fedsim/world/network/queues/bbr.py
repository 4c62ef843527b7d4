"""BBR, the congestion control by estimates of bandwidth and round trip, vectorised over flows.

Source: draft-cardwell-iccrg-bbr-congestion-control-00 and Linux's ``tcp_bbr`` (version 1). Their
recovery phase after a loss is left out, so losses have no effect on windows and rates here.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.saved import saved
from fedsim.world.network.queues.congestion import FlowColumns, Senders

OTHER = -1  # state of flows with another congestion control
STARTUP = 0
DRAIN = 1
PROBE_BANDWIDTH = 2
PROBE_ROUND_TRIP = 3

_HIGH_GAIN = 2 / math.log(2)
_PHASES = np.array([1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
_WINDOW_GAIN = 2.0
_FILTER_ROUNDS = 10  # round trips over which the estimate of the bandwidth is a maximum
FILTER_S = 10.0  # time over which the estimate of the round trip is a minimum (s)
_LEAST_PROBE_S = 0.2  # least time in PROBE_ROUND_TRIP, with a small window (s)
_LEAST_WINDOW = 4.0  # smallest window (segments)
# The pipe, the links of the route, counts as full after ``_FULL_ROUNDS`` round trips in which the
# bandwidth did not grow by the factor ``_FULL_GROWTH``.
_FULL_GROWTH = 1.25
_FULL_ROUNDS = 3


@saved()
@dataclass(slots=True)
class BbrSenders(FlowColumns):
    """Estimates and states of senders with the TCP congestion control BBR; one row per flow.

    Attributes are float64 [flows] if no shape is given.

    Attributes:
        state: ``OTHER`` (the flow does not use BBR), ``STARTUP``, ``DRAIN``, ``PROBE_BANDWIDTH`` or
            ``PROBE_ROUND_TRIP``.
        rates: delivery rates of the last round trips (segments/s), float64 [flows, 10].
        round: count of round trips so far.
        round_since: begin of the present round trip (s).
        least: shortest round trip that was measured in about the last 10 s (s).
        least_since: time at which ``least`` was measured (s).
        full_rate: bandwidth after its last growth in ``STARTUP`` (segments/s).
        full_rounds: count of round trips since that growth.
        phase: index of the present pacing gain in the cycle of gains of ``PROBE_BANDWIDTH``.
        phase_since: time since which this gain holds (s).
        probe_until: end of ``PROBE_ROUND_TRIP`` (s); infinity while more segments are in flight than
            its window of 4 segments allows, as the time of the state counts only from then on.
        former_window: window before ``PROBE_ROUND_TRIP`` (segments).
    """

    state: Floats
    rates: Floats
    round: Floats
    round_since: Floats
    least: Floats
    least_since: Floats
    full_rate: Floats
    full_rounds: Floats
    phase: Floats
    phase_since: Floats
    probe_until: Floats
    former_window: Floats

    @classmethod
    def none(cls) -> "BbrSenders":
        """Return an object for no flows: all its arrays are empty."""
        empty = {column.name: np.empty(0) for column in fields(cls)}
        empty["rates"] = np.empty((0, _FILTER_ROUNDS))
        return cls(**empty)

    @classmethod
    def others(cls, flows: int) -> "BbrSenders":
        """Return an object for flows that do not use BBR: state ``OTHER``, all other values 0.

        Args:
            flows: count of the flows.
        """
        empty = {column.name: np.zeros(flows) for column in fields(cls)}
        empty["state"] = np.full(flows, float(OTHER))
        empty["rates"] = np.zeros((flows, _FILTER_ROUNDS))
        return cls(**empty)

    @property
    def is_used(self) -> Flags:
        """Whether each flow has BBR as its congestion control, bool [flows]."""
        has_bbr: Flags = self.state != OTHER
        return has_bbr

    @property
    def bandwidth(self) -> Floats:
        """Estimated bandwidth of each flow: its highest recent delivery rate (segments/s), [flows]."""
        best: Floats = self.rates.max(axis=1, initial=0.0)
        return best

    @property
    def product(self) -> Floats:
        """Bandwidth-delay product: bandwidth times least round trip (segments), float64 [flows].

        With this count of segments under way, links are busy and queues are empty.
        """
        return self.bandwidth * self.least

    def pacing_gain(self) -> Floats:
        """Return each flow's pacing gain: its sending rate divided by its bandwidth estimate, [flows]."""
        gains = np.ones(len(self.state))
        gains[self.state == STARTUP] = _HIGH_GAIN
        gains[self.state == DRAIN] = 1 / _HIGH_GAIN
        is_probing = self.state == PROBE_BANDWIDTH
        gains[is_probing] = _PHASES[self.phase[is_probing].astype(np.int64)]
        return gains


def first_estimates(round_trip: float, window: float, now: float, key: int) -> dict[str, float]:
    """Return the first BBR estimates of a new connection: attribute of ``BbrSenders`` -> value.

    Args:
        round_trip: round trip on empty links (s).
        window: first window (segments).
        now: the time (s).
        key: random bits, from which the first phase of ``PROBE_BANDWIDTH`` follows.
    """
    phase = key % (len(_PHASES) - 1)
    return {
        "state": STARTUP,
        "rates": window / round_trip,
        "round": 0.0,
        "round_since": now,
        "least": round_trip,
        "least_since": now,
        "full_rate": 0.0,
        "full_rounds": 0.0,
        "phase": phase + (phase > 0),  # never phase 1, which drains the queue
        "phase_since": now,
        "probe_until": math.inf,
        "former_window": window,
    }


def grow_by_bandwidth(senders: Senders, bbr: BbrSenders, acked: Floats) -> Floats:
    """Compute the growth of BBR's windows by acknowledgements (segments), float64 [flows].

    Each window grows by ``acked`` until it reaches its target. A window above its target falls to the
    target immediately, except in ``STARTUP``. The target is the bandwidth-delay product (``product``)
    times 2.89 in ``STARTUP`` and ``DRAIN`` and times 2 in ``PROBE_BANDWIDTH``, 4 segments or more. In
    ``PROBE_ROUND_TRIP`` the target is 4 segments.

    Args:
        senders: windows of the flows, which are not changed.
        bbr: estimates of the flows.
        acked: segments of each flow that are acknowledged in the step, float64 [flows].
    """
    window = senders.window
    is_startup = bbr.state == STARTUP
    gain = np.where(is_startup | (bbr.state == DRAIN), _HIGH_GAIN, _WINDOW_GAIN)
    target = np.maximum(gain * bbr.product, _LEAST_WINDOW)
    is_probing = bbr.state == PROBE_ROUND_TRIP
    target[is_probing] = _LEAST_WINDOW
    growth = np.minimum(acked, target - window)
    # before the pipe is full a window never falls
    return np.where(is_startup, np.maximum(growth, 0.0), growth)


def note_round(
    bbr: BbrSenders, rows: Ints, delivered: Floats, is_limited: Flags, now: float
) -> None:
    """Store the delivery rates of BBR's round trips that end now; end ``STARTUP`` if they stagnate.

    They stagnate if the bandwidth has not grown by 25 % for three round trips.

    Args:
        bbr: the estimates of all flows, which are changed.
        rows: indices of the flows whose round trip ends, [rows].
        delivered: segments that were acknowledged in that round trip, [rows].
        is_limited: whether the network, not a lack of bytes to send, limited the flow, [rows].
        now: the time (s).
    """
    length_s = now - bbr.round_since[rows]
    rate = delivered / np.maximum(length_s, 1e-9)  # round trips of length 0 are skipped below
    former_bandwidth = bbr.bandwidth[rows]
    # In PROBE_ROUND_TRIP the window is small on purpose, so that the rate is only a lower bound of the
    # bandwidth.
    is_sample = is_limited & (bbr.state[rows] != PROBE_ROUND_TRIP)
    is_noted = (is_sample | (rate >= former_bandwidth)) & (length_s > 0)
    noted = rows[is_noted]
    bbr.round[noted] += 1
    # the rates of the last ``_FILTER_ROUNDS`` round trips are a ring buffer
    columns = bbr.round[noted].astype(np.int64) % _FILTER_ROUNDS
    bbr.rates[noted, columns] = rate[is_noted]
    bbr.round_since[rows] = now
    bandwidth = bbr.bandwidth
    # STARTUP ends when the bandwidth has not grown enough in ``_FULL_ROUNDS`` round trips in a row
    in_startup = rows[(bbr.state[rows] == STARTUP) & is_limited]
    has_grown = bandwidth[in_startup] >= _FULL_GROWTH * bbr.full_rate[in_startup]
    bbr.full_rate[in_startup[has_grown]] = bandwidth[in_startup[has_grown]]
    bbr.full_rounds[in_startup[has_grown]] = 0.0
    bbr.full_rounds[in_startup[~has_grown]] += 1
    full_rows = in_startup[bbr.full_rounds[in_startup] >= _FULL_ROUNDS]
    bbr.state[full_rows] = DRAIN


def change_states(
    senders: Senders, bbr: BbrSenders, round_trip: Floats, in_flight: Floats, now: float
) -> None:
    """Update BBR's least round trips, and change the states of flows.

    The changes depend on the time and on the segments in flight:

    * Without a new least round trip for 10 s, a flow enters ``PROBE_ROUND_TRIP``.
    * After ``probe_until`` it leaves this state, and its window is at least ``former_window`` again.
    * It leaves ``DRAIN`` when the segments in flight are at most ``product`` + 1.
    * In ``PROBE_BANDWIDTH`` it moves on to its next pacing gain when the present gain is over.

    Args:
        senders: windows of the flows; windows of flows that leave ``PROBE_ROUND_TRIP`` are changed.
        bbr: estimates and states of the flows, which are changed.
        round_trip: round trip of the segments that are acknowledged now (s), float64 [flows].
        in_flight: segments that are sent and not acknowledged, float64 [flows].
        now: the time (s).
    """
    # a measured round trip that has expired is replaced by a longer one too
    is_old = now > bbr.least_since + FILTER_S
    is_new_least = (round_trip <= bbr.least) | is_old
    bbr.least = np.where(is_new_least, round_trip, bbr.least)
    bbr.least_since[is_new_least] = now
    # enter PROBE_ROUND_TRIP, in which a small window empties the queues
    is_entering = is_old & bbr.is_used & (bbr.state != PROBE_ROUND_TRIP)
    bbr.former_window[is_entering] = senders.window[is_entering]
    bbr.state[is_entering] = PROBE_ROUND_TRIP
    bbr.probe_until[is_entering] = math.inf
    # the time in PROBE_ROUND_TRIP counts from the begin of the small window
    is_probing = bbr.state == PROBE_ROUND_TRIP
    is_begin = is_probing & np.isinf(bbr.probe_until) & (in_flight <= _LEAST_WINDOW + 1)
    bbr.probe_until[is_begin] = now + np.maximum(_LEAST_PROBE_S, bbr.least)[is_begin]
    # leave PROBE_ROUND_TRIP
    is_over = is_probing & (now >= bbr.probe_until)
    senders.window[is_over] = np.maximum(bbr.former_window, senders.window)[is_over]
    bbr.least_since[is_over] = now
    is_full = bbr.full_rounds >= _FULL_ROUNDS
    bbr.state[is_over] = np.where(is_full, PROBE_BANDWIDTH, STARTUP)[is_over]
    bbr.phase_since[is_over] = now
    # leave DRAIN when the queues are empty
    product = bbr.product
    is_drained = (bbr.state == DRAIN) & (in_flight <= product + 1)
    bbr.state[is_drained] = PROBE_BANDWIDTH
    bbr.phase_since[is_drained] = now
    _change_phases(bbr, in_flight, product, now)


def _change_phases(bbr: BbrSenders, in_flight: Floats, product: Floats, now: float) -> None:
    """Move flows in ``PROBE_BANDWIDTH`` on to their next pacing gain if the present gain is over.

    Args:
        bbr: estimates and states of the flows, which are changed.
        in_flight: segments that are sent and not acknowledged, float64 [flows].
        product: bandwidth-delay product of each flow (segments), float64 [flows].
        now: the time (s).
    """
    gains = _PHASES[bbr.phase.astype(np.int64)]
    is_time_over = now - bbr.phase_since > bbr.least
    has_probed = is_time_over & (in_flight >= gains * product - 1)
    # a flow that cannot send enough to fill the pipe leaves the phase too
    has_probed |= now - bbr.phase_since > 2 * bbr.least
    has_drained = is_time_over | (in_flight <= product)
    # a gain above 1 probes for bandwidth, a gain below 1 drains the queue, a gain of 1 cruises
    is_cruise_or_probe_over = np.where(gains > 1, has_probed, is_time_over)
    is_phase_over = np.where(gains < 1, has_drained, is_cruise_or_probe_over)
    is_over = is_phase_over & (bbr.state == PROBE_BANDWIDTH)
    bbr.phase[is_over] = (bbr.phase[is_over] + 1) % len(_PHASES)
    bbr.phase_since[is_over] = now
