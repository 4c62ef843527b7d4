"""TCP connections: the state that a sender keeps between two flows to one receiver."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedsim.common.arrays import Floats
from fedsim.common.saved import saved
from fedsim.world.network.queues.bbr import FILTER_S, OTHER, first_estimates
from fedsim.world.network.queues.congestion import Control, first_state

_RETRANSMISSION_S = 0.2  # least time by which a timeout exceeds the round trip (s; Linux)


@saved()
@dataclass(frozen=True, slots=True)
class SenderMemory:
    """Congestion control state of a sender after a flow, for the next flow to the same receiver.

    Attributes:
        window: congestion window (segments).
        threshold: window at which slow start ends (segments).
        peak: CUBIC's W_max (segments), as ``Senders.peak``.
        epoch_window: window at the begin of CUBIC's epoch, the time since the last loss (segments).
        friendly: window that Reno would have (segments).
        elapsed: time since CUBIC's epoch began, without idle times between flows (s); NaN without an
            epoch.
        until: end of the last flow (s).
        pace: pacing rate at the end of the last flow (segments/s); infinity without pacing.
        estimates: attribute of ``BbrSenders`` -> value; None for senders without BBR.
    """

    window: float
    threshold: float
    peak: float
    epoch_window: float
    friendly: float
    elapsed: float
    until: float
    pace: float
    estimates: Mapping[str, float | Floats] | None


@saved()
class Connections:
    """Memory of TCP connections: the last state of each sender for each receiver.

    Args:
        initial_window: window of a new connection (segments).

    Attributes:
        memories: IDs (sender, receiver) -> state of the sender at the end of the last flow.
    """

    def __init__(self, initial_window: float) -> None:
        self._initial_window = initial_window
        self.memories: dict[tuple[int, int], SenderMemory] = {}

    def first_state(
        self, ends: tuple[int, int], round_trip: float, now: float, control: Control
    ) -> dict[str, float]:
        """Return the congestion window and related values of a flow that begins.

        These are the values at the end of the last flow between the two endpoints, or the values of a
        new connection. After an idle time of more than a timeout (``round_trip`` + 0.2 s), the
        window is at most the window of a new connection (RFC 5681, section 4.1), and the slow start
        threshold at least three quarters of the former window (RFC 2861). With BBR an idle time
        changes neither of them.

        Args:
            ends: IDs of sender and receiver.
            round_trip: round trip on empty links (s).
            now: the time (s).
            control: congestion control of the flow.

        Returns:
            Attribute of ``Senders`` -> value.
        """
        memory = self.memories.get(ends)
        if memory is None:
            return first_state(round_trip, self._initial_window, threshold=float("inf"), peak=0.0)
        window = memory.window
        threshold = memory.threshold
        # BBR keeps its window over an idle time
        is_idle = now - memory.until > round_trip + _RETRANSMISSION_S
        if is_idle and control != "bbr":
            window = min(window, self._initial_window)
            threshold = max(threshold, 0.75 * memory.window)
        sender = first_state(round_trip, window, threshold, memory.peak)
        # Linux: CUBIC's epoch goes on as if there had been no idle time
        sender["epoch"] = now - memory.elapsed
        sender["epoch_window"] = memory.epoch_window
        sender["friendly"] = memory.friendly
        # Linux: the pacing rate changes by acknowledgements, and not by an idle time
        sender["pace"] = memory.pace
        return sender

    def first_estimates(
        self,
        ends: tuple[int, int],
        key: int,
        sender: Mapping[str, float],
        now: float,
        control: Control,
    ) -> Mapping[str, float | Floats]:
        """Return the BBR estimates with which a flow begins: attribute of ``BbrSenders`` -> value.

        These are the estimates at the end of the last flow with BBR between the two endpoints, however
        long ago, or first estimates if there was none.

        Args:
            ends: endpoint IDs of sender and receiver.
            key: random bits, from which the first pacing gain follows.
            sender: the result of ``first_state``.
            now: the time (s).
            control: congestion control of the flow.
        """
        memory = self.memories.get(ends)
        former = None if memory is None else memory.estimates
        if memory is None or former is None:  # no earlier flow with BBR
            row = first_estimates(sender["round_trip"], sender["window"], now, key)
            if control != "bbr":
                row["state"] = OTHER
            return row
        # rounds and phases go on as if there had been no idle time
        idle_s = now - memory.until
        estimates = dict(former)
        estimates["round_since"] = former["round_since"] + idle_s
        estimates["phase_since"] = former["phase_since"] + idle_s
        if now > former["least_since"] + FILTER_S:
            # the idle time has emptied the queues, so that no small window has to do so
            estimates["least_since"] = now
        return estimates
