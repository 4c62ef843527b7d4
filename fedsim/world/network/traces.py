"""Rates, latencies and losses of links that follow traces: recorded values over time.

A link may be at any position of its trace at simulated time 0. From then on, its value depends on the
time alone, so a snapshot needs no state of traces.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Floats, Ints
from fedsim.common.streams import Streams

TraceColumns = dict[str, list[object]]
"""Columns of a table by name."""

_PURPOSE = "world/link-trace"
# numbers of a link's two draws: its trace, and its position in the trace at simulated time 0
_TRACE = 0
_POSITION = 1
_NO_RATES = (" latency", " loss")  # suffixes of the names of traces that are no rates


class StepTrace:
    """Values of a quantity over time, as a step function, which repeats or keeps its last value.

    Args:
        name: name of the trace in error messages.
        times: begins of the values (s), not descending; the first time is the begin of the trace.
        values: the value from each of the ``times`` on.
        end: end of the trace (s), above the last begin.
        loops: whether the trace begins anew at its end; else its last value lasts.

    Attributes:
        since: begins of the pieces (s), in whole ticks of the clock, the first 0. A piece is a time
            with one value.
        values: value of each piece; neighbours differ.
        length: time after which the trace begins anew or keeps its last value (s).
    """

    def __init__(
        self,
        name: str,
        times: Sequence[float],
        values: Sequence[float],
        end: float,
        *,
        loops: bool = True,
    ) -> None:
        self.name = name
        self.loops = loops
        self.since: list[float] = []
        self.values: list[float] = []
        begin = times[0]
        self.length = on_grid(end - begin)
        for time, value in zip(times, values, strict=True):
            since = on_grid(time - begin)
            if self.since and self.since[-1] == since:  # the earlier value lasted less than a tick
                self.since.pop()
                self.values.pop()
            if not self.values or self.values[-1] != value:
                self.since.append(since)
                self.values.append(value)

    @cached_property
    def mean(self) -> float:
        """Mean of the values over the length of the trace."""
        if len(self.values) == 1:
            return self.values[0]
        lengths = np.diff([*self.since, self.length])
        return float(np.dot(lengths, self.values) / self.length)

    def _find_piece(self, position: float) -> tuple[float, int]:
        """Find the piece of the trace (a time with one value) in which a time lies.

        Args:
            position: time after the begin of the trace (s).

        Returns:
            Begin of the repetition of the trace in which the time lies (s), and index of the piece.
        """
        lap_begin = 0.0
        if self.loops and position >= self.length:
            lap_begin = position - math.fmod(position, self.length)
        # ``since``: begin of each piece, from the begin of the trace (s)
        piece = bisect_right(self.since, position - lap_begin) - 1
        return lap_begin, piece

    def at(self, position: float) -> float:
        """Return the value at a time after the begin of the trace.

        Args:
            position: the time (s), 0 or more.
        """
        return self.values[self._find_piece(position)[1]]

    def next_change(self, position: float) -> float:
        """Return the next time at which the value changes, counted from the begin of the trace (s).

        Args:
            position: a time from the begin of the trace (s), 0 or more.

        Returns:
            Begin of the next piece after ``position``; infinity if the value stays.
        """
        lap_begin, piece = self._find_piece(position)
        if piece + 1 < len(self.since):
            return lap_begin + self.since[piece + 1]
        if self.loops and len(self.since) > 1:  # the first piece follows the last one
            return lap_begin + self.length
        return math.inf


class PlacedTrace(NamedTuple):
    """Trace that a link follows, with the link's position in it.

    Attributes:
        trace: the trace.
        ahead: position of the link in the trace at simulated time 0 (s).
    """

    trace: StepTrace
    ahead: float


@dataclass(frozen=True, eq=False)
class Assignment:
    """Rule that determines which link follows which of several traces (values over time).

    The links are the devices' own links, or shared links.

    Attributes:
        traces: the traces.
        streams: random streams of the run.
        is_drawn: whether each link draws a trace; else link i has trace i modulo the count of traces.
        random_start: whether each link is at a random position of its trace at simulated time 0,
            instead of at the begin of the trace.
        purpose: name of the random stream.
    """

    traces: Sequence[StepTrace]
    streams: Streams
    is_drawn: bool
    random_start: bool
    purpose: str = _PURPOSE

    def of(self, link: int) -> PlacedTrace:
        """Return the trace that a link follows, and the link's position in it.

        Args:
            link: index of the link: for a device's own link, the index of the device; for a shared
                link, its position in ``SharedLinks.names``.
        """
        number = link % len(self.traces)  # links get the traces in turn, unless they draw them
        if self.is_drawn:
            number = int(self.streams.uniform(self.purpose, link, _TRACE) * len(self.traces))
        trace = self.traces[number]
        if not self.random_start:
            return PlacedTrace(trace, 0.0)
        position = self.streams.uniform(self.purpose, link, _POSITION) * trace.length
        return PlacedTrace(trace, on_grid(position))

    def numbers(self, links: Ints) -> Ints:
        """Return the index of each link's trace, int64 [links].

        Args:
            links: indices of the links, int64 [links].
        """
        count = len(self.traces)
        if not self.is_drawn:
            return np.asarray(links % count)
        draws = self.streams.uniforms(self.purpose, links, _TRACE)
        return (draws * count).astype(np.int64)

    def means(self, links: int) -> Floats:
        """Return the mean over time of each link's trace, float64 [links].

        A mean has the unit of the trace: bytes/s for rates, s for latencies, a share of the packets
        for losses.

        Args:
            links: count of links, which have the indices 0 to ``links`` - 1. Each of them follows a
                trace of this assignment.
        """
        means = np.array([trace.mean for trace in self.traces])
        trace_of_link = self.numbers(np.arange(links))  # index of each link's trace
        return np.asarray(means[trace_of_link])


@dataclass(slots=True)
class _TracedLink:
    """Link that has a trace (values over time) and at least one running flow.

    Attributes:
        placed: the trace, and the link's position in it.
        flows: IDs of the flows, each with the value None, in the order of their begins.
        next_change_s: time of the next change of the value (s).
    """

    placed: PlacedTrace
    flows: dict[int, None]
    next_change_s: float = math.inf


class LinkTraces:
    """Traces (values over time) that the rates, latencies and losses of a network's links follow.

    Only changes of links with running flows are reported: ``begin`` adds a flow, ``end`` removes it.

    Args:
        of_devices: traces of the devices' own links by quantity: ``down``, ``up``, ``latency`` and
            ``loss``. Latency and loss of a device are named like links, such as ``device 3 latency``.
        shared: name of a shared link -> an assignment of traces to links, and the index of the link
            in this assignment.
    """

    def __init__(
        self,
        of_devices: Mapping[str, Assignment],
        shared: Mapping[str, tuple[Assignment, int]],
    ) -> None:
        self.of_devices = of_devices
        self.shared = shared
        self._used: dict[str, _TracedLink] = {}  # name -> link with flows
        self._links_of: dict[int, list[str]] = {}  # flow ID -> its links with traces
        self._changes: list[tuple[float, str]] = []  # heap of (time (s), link); some are outdated

    def of(self, link: str) -> PlacedTrace | None:
        """Return the trace of a link; None for a link without a trace.

        Args:
            link: name of the link, such as ``server up`` or ``device 7 down``.
        """
        used = self._used.get(link)  # a link with a running flow, whose trace is known
        if used is not None:
            return used.placed
        if link in self.shared:
            assignment, index = self.shared[link]
            return assignment.of(index)
        device, direction = _device_of(link)
        if direction not in self.of_devices:
            return None
        return self.of_devices[direction].of(device)

    def value(self, name: str, now: float) -> float | None:
        """Return the present value of a trace; None without a trace.

        Args:
            name: name of a link for its rate (bytes/s), or a name such as ``device 7 latency`` (s) or
                ``device 7 loss`` (share of packets).
            now: the time (s).
        """
        placed = self.of(name)
        return None if placed is None else placed.trace.at(now + placed.ahead)

    # running flows, whose links' changes are followed

    def begin(self, flow: int, links: Iterable[str], now: float) -> list[str]:
        """Register a flow's links, so that changes of their traces are reported while it runs.

        Args:
            flow: ID of the flow.
            links: names of the links of its route, and names such as ``device 7 latency``; names
                without a trace are ignored.
            now: the time (s).

        Returns:
            The names in ``links`` that have a trace, and that no other running flow uses.
        """
        first_used: list[str] = []
        for link in links:
            used = self._used.get(link)
            if used is None:  # no flow uses the link yet
                placed = self.of(link)
                if placed is None:
                    continue
                used = self._used[link] = _TracedLink(placed, {})
                self._schedule(link, used, now)
                first_used.append(link)
            used.flows[flow] = None  # a dict serves as a set in the order of the flows' begins
            self._links_of.setdefault(flow, []).append(link)
        return first_used

    def end(self, flow: int) -> None:
        """Remove a flow that has ended; changes of links without flows are no longer reported."""
        for link in self._links_of.pop(flow, ()):
            used = self._used[link]
            del used.flows[flow]
            if not used.flows:
                del self._used[link]

    def flows_on(self, link: str) -> Collection[int]:
        """Return the IDs of the running flows on a link, which must have a trace and such a flow."""
        return self._used[link].flows

    def next_change(self) -> float:
        """Return the next time (s) at which a trace of a link with flows changes, or infinity."""
        changes = self._changes
        while changes:
            when, link = changes[0]
            used = self._used.get(link)
            if used is not None and used.next_change_s == when:
                return when
            heappop(changes)
        return math.inf

    def take_due(self, now: float) -> list[str]:
        """Return the links whose traces change at or before a time, and schedule their next changes.

        Args:
            now: the time (s).

        Returns:
            Names of links with flows, such as ``device 7 up`` for a rate, or ``device 7 latency``.
        """
        changed = []
        while self.next_change() <= now:
            _, link = heappop(self._changes)  # heap of (time of the next change, link)
            self._schedule(link, self._used[link], now)
            changed.append(link)
        return changed

    def _schedule(self, link: str, used: _TracedLink, now: float) -> None:
        trace, ahead = used.placed
        used.next_change_s = trace.next_change(now + ahead) - ahead
        if used.next_change_s <= now:  # late in a run, rounding may give a past time
            used.next_change_s = math.nextafter(now, math.inf)
        if used.next_change_s < math.inf:
            heappush(self._changes, (used.next_change_s, link))

    def dead_links(self, now: float) -> list[str]:
        """Describe each link whose trace has ended with rate 0, so that its flows never end.

        Args:
            now: the time (s).

        Returns:
            One text for each such link, with its name and its trace.
        """
        dead = []
        for link, used in self._used.items():
            if link.endswith(_NO_RATES):  # a trace of latencies or losses
                continue
            trace, ahead = used.placed
            position = now + ahead
            if trace.at(position) == 0 and trace.next_change(position) == math.inf:
                dead.append(f"{link} (trace {trace.name!r})")
        return dead

    def columns(self, devices: Ints) -> tuple[TraceColumns, TraceColumns]:
        """Return two tables for the run folder: the traces, and which link follows which.

        Args:
            devices: the devices whose links are listed, int64 [n].

        Returns:
            Column name -> list of cells, for two tables. ``link_traces.parquet`` has a row for each
            time with one value: number of the ``trace``, its ``name``, ``length`` (s), whether it
            ``loops``, ``since`` (s, begin of the value) and ``value``. ``traced_links.parquet`` has
            a row for each link: ``device`` (-1 for a shared link), ``link`` (name or direction),
            number of its ``trace``, and ``ahead`` (s, its position in the trace at time 0).
        """
        numbers: dict[StepTrace, int] = {}  # trace -> its number in the tables
        links: TraceColumns = {"device": [], "link": [], "trace": [], "ahead": []}

        def add_link(device: int, name: str, placed: PlacedTrace) -> None:
            links["device"].append(device)
            links["link"].append(name)
            links["trace"].append(numbers.setdefault(placed.trace, len(numbers)))
            links["ahead"].append(placed.ahead)

        for direction, assignment in self.of_devices.items():
            for device in devices.tolist():
                add_link(device, direction, assignment.of(device))
        for name, (assignment, number) in self.shared.items():
            add_link(-1, name, assignment.of(number))
        piece_columns = ("trace", "name", "length", "loops", "since", "value")
        pieces: TraceColumns = {column: [] for column in piece_columns}
        # a trace has a number here if a listed link follows it
        for trace, number in numbers.items():
            count = len(trace.since)
            pieces["trace"] += [number] * count
            pieces["name"] += [trace.name] * count
            pieces["length"] += [trace.length] * count
            pieces["loops"] += [trace.loops] * count
            pieces["since"] += trace.since
            pieces["value"] += trace.values
        return pieces, links


def _device_of(link: str) -> tuple[int, str]:
    """Return the device index and the direction in the name of a device's own link.

    The result is (-1, "") for the name of another link.
    """
    prefix, _, rest = link.partition(" ")
    number, _, direction = rest.partition(" ")
    if prefix != "device" or not number.isdecimal():
        return -1, ""
    return int(number), direction
