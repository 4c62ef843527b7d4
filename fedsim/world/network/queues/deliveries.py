"""History of delivered bytes, from which the acknowledgements of a round trip later follow."""

import math

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.saved import saved
from fedsim.world.network.queues.congestion import append_row

_FIRST_ROWS = 64
_FIRST_COLUMNS = 8


@saved()
class Deliveries:
    """History of the bytes that each flow had delivered, by simulated time.

    Senders look up how many of their bytes had arrived a round trip ago. Values between two stored
    times are interpolated linearly. ``QueuedFlows`` also keeps the times in queues in such a history.
    """

    def __init__(self) -> None:
        self._times = np.full(_FIRST_ROWS, math.inf)
        # delivered bytes, [times, columns], with spare columns for flows that are added later
        self._curves = np.zeros((_FIRST_ROWS, _FIRST_COLUMNS))
        self._rows = 0
        self._columns = np.empty(0, dtype=np.int64)  # column of each flow
        self._next_column = 0  # first spare column; spare columns are 0

    def add_flow(self) -> None:
        """Add a flow, whose history begins with 0 delivered bytes."""
        if self._next_column == self._curves.shape[1]:
            self._make_room()
        self._columns = append_row(self._columns, self._next_column)
        self._next_column += 1

    def _make_room(self) -> None:
        """Drop the columns of removed flows, and make room for twice as many flows as remain."""
        flows = len(self._columns)
        curves = np.zeros((len(self._curves), max(2 * flows, _FIRST_COLUMNS)))
        curves[: self._rows, :flows] = self._curves[: self._rows].take(self._columns, axis=1)
        self._curves = curves
        self._columns = np.arange(flows)
        self._next_column = flows

    def select(self, flows: Flags) -> None:
        """Keep the histories of some flows, and remove all others.

        Args:
            flows: whether each flow is kept, bool [flows].
        """
        self._columns = self._columns[flows]
        if not len(self._columns):
            self._rows = 0

    def join(self, others: "Deliveries") -> None:
        """Append the histories of other flows: the bytes that had arrived by each time.

        Args:
            others: histories of other flows. The times of their values may differ; all histories
                are then interpolated to the times of both.
        """
        times = np.union1d(self._times[: self._rows], others._times[: others._rows])
        rows = max(2 * len(times), _FIRST_ROWS)  # half of the rows or more are for later times
        flows = len(self._columns) + len(others._columns)
        # bytes of each flow at all of these times, interpolated; with columns for later flows
        curves = np.zeros((rows, max(2 * flows, _FIRST_COLUMNS)))
        column = 0
        for deliveries in (self, others):
            for source_column in deliveries._columns.tolist():
                if deliveries._rows:
                    past = deliveries._times[: deliveries._rows]
                    curve = deliveries._curves[: deliveries._rows, source_column]
                    curves[: len(times), column] = np.interp(times, past, curve)
                column += 1
        self._times = np.full(rows, math.inf)
        self._times[: len(times)] = times
        self._curves = curves
        self._rows = len(times)
        self._columns = np.arange(flows)
        self._next_column = flows

    def add(self, now: float, delivered: Floats, memory_s: float) -> None:
        """Store the bytes that each flow has delivered by now.

        Args:
            now: the time (s).
            delivered: the bytes, float64 [flows].
            memory_s: length of the past (s) for which stored values are still needed.
        """
        # only the first ``_rows`` rows of ``_times`` and ``_curves`` are used
        if self._rows and self._times[self._rows - 1] == now:
            self._rows -= 1  # the last stored value is of this time, and is replaced
        if self._rows == len(self._times):
            self._drop_old(now - memory_s)
        self._times[self._rows] = now
        self._curves[self._rows, self._columns] = delivered
        self._rows += 1

    def _drop_old(self, before: float) -> None:
        """Drop values older than ``before`` (s), and make room for as many values as remain."""
        # the last value before the limit is kept, as later values are interpolated from it
        first_row = int(np.searchsorted(self._times[: self._rows], before, "right")) - 1
        first_row = max(first_row, 0)
        times = self._times[first_row : self._rows]
        curves = self._curves[first_row : self._rows]
        rows = max(2 * len(times), _FIRST_ROWS)  # half of the rows or more are for later times
        self._times = np.full(rows, math.inf)
        self._curves = np.zeros((rows, curves.shape[1]))
        self._rows = len(times)
        self._times[: self._rows] = times
        self._curves[: self._rows] = curves

    def at(self, times: Floats) -> Floats:
        """Return the bytes that each flow had delivered at its time in ``times``; float64 [flows].

        A time before the first stored time gets the first stored value. A time after the last stored
        time gets the last stored value.

        Args:
            times: a time for each flow (s), float64 [flows].
        """
        # linear interpolation between the stored values before and after each time; ``_curves`` is
        # [times, columns], and is indexed as a flat array, which is faster
        rows = self._rows
        past = self._times[:rows]
        row_after = past.searchsorted(times, "right")
        row_before = np.maximum(row_after - 1, 0)
        row_after = np.minimum(row_after, rows - 1)
        curves = self._curves.reshape(-1)
        columns = self._curves.shape[1]
        low = curves.take(row_before * columns + self._columns)
        high = curves.take(row_after * columns + self._columns)
        begin = past.take(row_before)
        interval_s = past.take(row_after) - begin
        # outside the stored times both rows are the same, and any length but 0 serves
        interval_s[interval_s <= 0] = 1.0
        share = np.minimum(np.maximum((times - begin) / interval_s, 0.0), 1.0)
        acked: Floats = low + (high - low) * share
        return acked

    def times_before_exceeding(
        self, flows: Ints, counts: Floats, begins: Floats, length_s: float
    ) -> Floats:
        """Return for each flow the last stored time before its delivered bytes exceed a count.

        One round trip after this time, the sender gets an acknowledgement of more than ``counts``
        bytes. To save time, each flow's history is searched only from ``begins`` for ``length_s``.

        Args:
            flows: indices of the flows, int64 [n].
            counts: the count of bytes for each of these flows, float64 [n].
            begins: begin of the interval for each of these flows (s), float64 [n].
            length_s: length of the intervals (s).

        Returns:
            Stored times (s), float64 [n]. For a flow whose time is not in its interval the result
            has no meaning: it is infinity, or some time outside of the interval.
        """
        past = self._times[: self._rows]
        # Only rows of the interval matter, as curves never fall. One more row on each side is for
        # rounding.
        first_row = np.maximum(past.searchsorted(begins) - 1, 0)
        last_row = np.minimum(past.searchsorted(begins + length_s) + 1, self._rows - 1)
        rows = first_row + np.arange((last_row - first_row).max() + 1)[:, None]
        rows = np.minimum(rows, self._rows - 1)
        # the same as curves[rows, columns], but faster
        values = self._curves.take(rows * self._curves.shape[1] + self._columns[flows])
        exceeds = values > counts  # [rows, n]
        first_exceeding = exceeds.argmax(axis=0)
        times = past.take(np.maximum(first_row + first_exceeding - 1, 0))
        does_exceed = exceeds[first_exceeding, np.arange(len(flows))]
        return np.where(does_exceed, times, math.inf)
