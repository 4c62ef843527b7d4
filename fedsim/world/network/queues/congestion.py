"""Congestion control of TCP senders by CUBIC and Reno, vectorised over flows; ``bbr.py`` has BBR.

Windows are in segments, so that the formulas look as in the standards.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal, Self

import numpy as np

from fedsim.common.arrays import AnyArray, Flags, Floats, Ints
from fedsim.common.saved import saved

Control = Literal["cubic", "reno", "bbr"]

CUBIC_C = 0.4
"""Growth constant C of CUBIC (segments/s^3; RFC 9438, section 5.1)."""
CUBIC_BETA = 0.7
"""Factor of the window after a loss with CUBIC (RFC 9438, section 4.6)."""
RENO_BETA = 0.5
"""Factor of the window after a loss with Reno (RFC 5681, section 3.1)."""
LEAST_WINDOW = 2.0
"""Smallest window (segments; RFC 5681, section 3.1)."""

# Segments by which a window grows when a whole window is acknowledged. With CUBIC's factor after a
# loss, the window then has the mean of Reno's window (RFC 9438, section 4.3).
_FRIENDLY_SHARE = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
_GROWTH_BEFORE_LOSS = 1.05  # least growth of CUBIC's window per round trip, as a factor (Linux)
_SLOW_PACING = 2.0  # pacing rate in slow start, in windows per round trip (Linux)
_PACING = 1.2  # pacing rate after slow start, in windows per round trip (Linux)
_HYSTART_LEAST_WINDOW = 16.0  # window below which slow start goes on (segments; Ha and Rhee, 2011)
_HYSTART_SAMPLES = 8  # acknowledgements needed in a round trip (RFC 9406, section 4.3)
# bounds of the rise of the round trip that ends slow start (s; RFC 9406, section 4.3)
_HYSTART_LEAST_S = 0.004
_HYSTART_MOST_S = 0.016
_HYSTART_SHARE = 1 / 8  # this rise as a share of the round trip


def cubic_window(elapsed_s: Floats, peak: Floats, after_loss: Floats) -> Floats:
    """Compute the congestion window of TCP CUBIC at a time since the last loss (segments), [flows].

    Source: RFC 9438, equations 1 and 2: W(t) = C (t - K)^3 + W_max with K = cbrt((W_max -
    cwnd_epoch) / C). C is 0.4 segments/s^3 (``CUBIC_C``). An epoch is the period after a loss.

    Args:
        elapsed_s: t, the time since the epoch began (s), [flows].
        peak: W_max, the window before the last loss (segments), [flows].
        after_loss: cwnd_epoch, the window at the begin of the epoch (segments), [flows].
    """
    plateau_s = np.cbrt((peak - after_loss) / CUBIC_C)
    window: Floats = CUBIC_C * (elapsed_s - plateau_s) ** 3 + peak
    return window


def append_row(values: AnyArray, row: float | AnyArray) -> AnyArray:
    """Return an array over flows with a row for a new flow at the end.

    Args:
        values: the array, [flows, ...].
        row: the value of the new flow, [...].
    """
    longer = np.empty((len(values) + 1, *values.shape[1:]), values.dtype)
    longer[:-1] = values
    longer[-1] = row
    return longer


def part_of(amounts: Floats, share: Floats | None) -> Floats:
    """Scale amounts of a planned time step to the part of the step that is carried out; [flows].

    Args:
        amounts: amounts of the whole step, such as sent bytes, float64 [flows].
        share: part of the step that is carried out, 0 to 1, float64 [flows]; None for the whole step.
    """
    return amounts if share is None else share * amounts


@dataclass(slots=True)
class FlowColumns:
    """Base of dataclasses whose fields are arrays with one row for each flow of the window model."""

    def columns(self) -> Iterator[tuple[str, Floats]]:
        """Yield each field's name and its array, [flows] or [flows, ...]."""
        for name in self.__dataclass_fields__:
            yield name, getattr(self, name)

    def append(self, row: Mapping[str, float | Floats]) -> None:
        """Append a row for a new flow.

        Args:
            row: field -> value of the flow, for each field.
        """
        for name, values in self.columns():
            setattr(self, name, append_row(values, row[name]))

    def select(self, rows: Flags | Ints) -> None:
        """Keep the rows of some flows, and remove all others.

        Args:
            rows: whether each flow is kept, bool [flows], or indices of the flows to keep.
        """
        for name, values in self.columns():
            setattr(self, name, values[rows])

    def join(self, others: Self) -> None:
        """Append the rows of other flows.

        Args:
            others: object of the same class, for other flows.
        """
        for name, values in self.columns():
            setattr(self, name, np.concatenate((values, getattr(others, name))))

    def row(self, row: int) -> dict[str, float | Floats]:
        """Return a copy of a flow's values: field -> value.

        Args:
            row: index of the flow.
        """
        copies: dict[str, float | Floats] = {}
        for name, values in self.columns():
            copies[name] = values.item(row) if values.ndim == 1 else values[row].copy()
        return copies


@saved()
@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of senders' windows in a time step; ``Senders.apply`` carries it out.

    Attributes:
        windows: growth of windows (segments), float64 [flows].
        friendly: growth of the windows that Reno would have (segments), float64 [flows]; None if no
            window grows by CUBIC's rule, so that these windows are not needed.
        starts: whether CUBIC's epoch (time since the last loss) begins, bool [flows]; None if
            ``friendly`` is None.
    """

    windows: Floats
    friendly: Floats | None = None
    starts: Flags | None = None


@saved()
@dataclass(slots=True)
class Senders(FlowColumns):
    """TCP congestion control state of the sender of each flow; float64 [flows] each.

    CUBIC computes a window from the time since the last loss, which it calls an epoch.

    Attributes:
        round_trip: round trip on empty links (s).
        window: congestion window (segments).
        threshold: slow start threshold (segments); infinity before the first loss.
        peak: CUBIC's W_max (segments): the window before the last loss, or 0.85 of it if that window
            was below the former W_max (fast convergence); 0 before the first loss.
        epoch: begin of CUBIC's epoch (s); NaN if the next growth begins an epoch.
        epoch_window: window at the begin of the epoch (segments).
        friendly: window that Reno would have (segments).
        round_begin, round_end: count of acknowledged segments at which the present round trip begins
            and ends.
        least_wait: shortest time in queues of the segments acknowledged in this round trip (s).
        pace: pacing rate at the end of the connection's previous flow (segments/s); infinity without
            a previous flow.
    """

    round_trip: Floats
    window: Floats
    threshold: Floats
    peak: Floats
    epoch: Floats
    epoch_window: Floats
    friendly: Floats
    round_begin: Floats
    round_end: Floats
    least_wait: Floats
    pace: Floats

    @classmethod
    def none(cls) -> "Senders":
        """Return an object for no flows: all its arrays are empty."""
        return cls(*[np.empty(0) for _ in fields(cls)])

    def apply(self, growth: Growth, share: Floats | None, now: float) -> None:
        """Grow the senders' windows as planned for a time step, or for the first part of the step.

        For flows with ``growth.starts``, an epoch of CUBIC begins at ``now``.

        Args:
            growth: growth in the whole time step.
            share: part of the growth that is carried out, 0 to 1, [flows]; None for all of it.
            now: end of the time step, or of its part that is carried out (s).
        """
        if growth.friendly is not None and growth.starts is not None:
            starts = growth.starts
            if np.count_nonzero(starts):
                self.epoch[starts] = now
                self.epoch_window[starts] = self.window[starts]
                self.friendly[starts] = self.window[starts]
            self.friendly += part_of(growth.friendly, share)
        self.window += part_of(growth.windows, share)


def first_state(
    round_trip: float, window: float, threshold: float, peak: float
) -> dict[str, float]:
    """Return the row of ``Senders`` for a new flow: attribute -> value.

    Args:
        round_trip: round trip on empty links (s).
        window: first window (segments).
        threshold: slow start threshold (segments), which may be infinite.
        peak: CUBIC's W_max of the connection (segments); 0 for a new connection.
    """
    return {
        "round_trip": round_trip,
        "window": window,
        "threshold": threshold,
        "peak": peak,
        "epoch": np.nan,  # CUBIC's first epoch begins later
        "epoch_window": window,
        "friendly": window,  # the window that Reno would have
        "round_begin": 0.0,
        "round_end": 0.0,
        "least_wait": np.inf,
        "pace": np.inf,  # infinity: the connection has had no pacing rate yet
    }


def grow(
    senders: Senders, control: Control, acked: Floats, is_limited: Flags, now: float, delay: Floats
) -> Growth:
    """Compute by how much windows grow when segments are acknowledged; ``senders`` stays as it is.

    Args:
        senders: the flows.
        control: ``cubic`` or ``reno``; ``grow_by_bandwidth`` has the growth of BBR's windows.
        acked: acknowledged segments, [flows].
        is_limited: whether the window limits the flow's rate, [flows]; other windows do not grow.
        now: the time of the acknowledgements (s).
        delay: round trip, the time in queues included (s), [flows]; CUBIC's target is the value of
            its window curve one such round trip later.
    """
    window = senders.window
    # in slow start, each acknowledged segment lets the window grow by one, up to the threshold
    is_slow = window < senders.threshold
    in_slow_start = np.minimum(acked, np.maximum(senders.threshold - window, 0.0))
    if np.count_nonzero(is_slow) == len(is_slow):
        return Growth(np.where(is_limited, in_slow_start, 0.0))
    if control == "reno":
        growth = np.where(is_slow, in_slow_start, acked / window)
        return Growth(np.where(is_limited, growth, 0.0))
    # CUBIC: an epoch begins at the first growth after a loss or slow start
    is_cubic = is_limited & ~is_slow
    is_new_epoch = is_cubic & np.isnan(senders.epoch)
    elapsed_s = now - senders.epoch
    elapsed_s[np.isnan(elapsed_s)] = 0.0
    epoch_window = np.where(is_new_epoch, window, senders.epoch_window)
    friendly_before = np.where(is_new_epoch, window, senders.friendly)
    peak = np.maximum(senders.peak, epoch_window)
    # the target is the window one round trip later, at most 1.5 windows (RFC 9438, section 4.2)
    curve = cubic_window(elapsed_s + delay, peak, epoch_window)
    # Linux: before the first loss no former rate is known, and the curve may grow too slowly
    least_target = np.where(senders.peak > 0, window, _GROWTH_BEFORE_LOSS * window)
    target = np.minimum(np.maximum(curve, least_target), 1.5 * window)
    cubic = (target - window) / window * acked
    # RFC 9438, section 4.3: the window is at least Reno's window (W_est, here ``friendly``)
    friendly_share = np.where(friendly_before < peak, _FRIENDLY_SHARE, 1.0)
    friendly = np.where(is_cubic, friendly_share * acked / window, 0.0)
    after_slow_start = np.maximum(cubic, friendly_before + friendly - window)
    growth = np.where(is_slow, in_slow_start, after_slow_start)
    return Growth(np.where(is_limited, growth, 0.0), friendly, is_new_epoch)


def reduce(senders: Senders, control: Control, has_lost: Flags) -> None:
    """Reduce the congestion windows of flows whose senders have learned of a loss.

    The window is multiplied by 0.7 with CUBIC and by 0.5 with Reno, but stays at least 2 segments.
    The reduced window is also the new slow start threshold.

    Args:
        senders: windows of all flows, which are changed.
        control: ``cubic`` or ``reno``.
        has_lost: whether the flow's sender has learned of a loss, bool [flows].
    """
    window = senders.window[has_lost]
    beta = CUBIC_BETA if control == "cubic" else RENO_BETA
    reduced = np.maximum(window * beta, LEAST_WINDOW)
    # the peak is CUBIC's W_max; fast convergence, RFC 9438, section 4.7, lowers it
    has_fallen = window < senders.peak[has_lost]
    senders.peak[has_lost] = np.where(has_fallen, window * (1 + CUBIC_BETA) / 2, window)
    senders.window[has_lost] = reduced
    senders.threshold[has_lost] = reduced
    senders.epoch[has_lost] = np.nan  # the next growth begins an epoch


def leave_slow_start(senders: Senders, segments: Floats) -> None:
    """End TCP's slow start for flows whose round trip has risen (HyStart, Ha and Rhee, 2011).

    The rise is checked only from the eighth acknowledged segment of a round trip on.

    Args:
        senders: windows of all flows, which are changed.
        segments: segments of each flow that are acknowledged so far, float64 [flows].
    """
    is_sampled = segments - senders.round_begin >= _HYSTART_SAMPLES
    rise = np.clip(_HYSTART_SHARE * senders.round_trip, _HYSTART_LEAST_S, _HYSTART_MOST_S)
    # Linux ends slow start by this rule at most once per connection
    is_over = is_sampled & np.isinf(senders.threshold) & (senders.least_wait >= rise)
    is_over &= senders.window >= _HYSTART_LEAST_WINDOW
    senders.threshold[is_over] = senders.window[is_over]


def pacing_rate(senders: Senders, growth: Floats, delay: Floats) -> Floats:
    """Return the rate at which each sender sends a window's segments (segments/s), float64 [flows].

    The rate is two windows per round trip while the window is below half the slow start threshold,
    and 1.2 windows afterwards (Linux, ``tcp_update_pacing_rate``). The window counts with half of its
    growth in the present step. The round trip includes the time in queues.

    Args:
        senders: the flows.
        growth: growth of windows in the present step (segments), [flows].
        delay: time in queues, which is added to the round trip on empty links (s), [flows].
    """
    is_slow = senders.window < senders.threshold / 2
    windows = np.where(is_slow, _SLOW_PACING, _PACING)
    rate: Floats = windows * (senders.window + growth / 2) / (senders.round_trip + delay)
    return rate
