"""Rates of links that follow recorded traces.

A rate is a function of time alone: it depends on the trace, and on the place in the trace at which
the link is at simulated time 0. So a snapshot needs no state of traces.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Floats, Ints
from fedsim.common.streams import Streams

TraceColumns = dict[str, list[object]]
"""Columns of a table by name."""

_PURPOSE = "world/link-trace"
_TRACE = 0  # draws of a link: its trace, and its place in it at simulated time 0
_PLACE = 1
_PACKETS = (" latency", " loss")  # ends of the names of traces that are no rates


class StepTrace:
    """Values of a quantity over time, as a step function, which repeats or keeps its last value.

    Args:
        name: name of the trace in messages.
        times: begins of the values (s), not descending; the first is the begin of the trace.
        values: the values.
        end: end of the trace (s), above the last begin.
        loops: whether the trace begins anew at its end; else its last value lasts.

    Attributes:
        since: begins of the pieces (s), on the clock's grid, the first 0. Equal neighbours are one
            piece.
        values: value of each piece.
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
            if self.since and self.since[-1] == since:  # shorter than a tick
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

    def _find(self, position: float) -> tuple[float, int]:
        """Find the piece of the trace (a time with one value) in which a time lies.

        Args:
            position: time after the begin of the trace (s).

        Returns:
            Begin of the repetition of the trace in which the time lies (s), and index of the piece.
        """
        lap = 0.0
        if self.loops and position >= self.length:
            lap = position - math.fmod(position, self.length)
        return lap, bisect_right(self.since, position - lap) - 1

    def at(self, position: float) -> float:
        """Return the value at a time after the begin of the trace.

        Args:
            position: the time (s), 0 or more.
        """
        return self.values[self._find(position)[1]]

    def next_change(self, position: float) -> float:
        """Return the next time at which the value changes, counted from the begin of the trace (s).

        Args:
            position: a time from the begin of the trace (s), 0 or more.

        Returns:
            Begin of the next piece after ``position``; infinity if the value stays.
        """
        lap, piece = self._find(position)
        if piece + 1 < len(self.since):
            return lap + self.since[piece + 1]
        if self.loops and len(self.since) > 1:
            return lap + self.length
        return math.inf


@dataclass(frozen=True, eq=False)
class Assignment:
    """Rule that determines which link follows which of several traces (values over time).

    The links are the devices' own links, or shared links.

    Attributes:
        traces: the traces.
        streams: random streams of the run.
        is_drawn: whether each link draws a trace; else link i has trace i, modulo their count.
        random_start: whether each link is at a random place of its trace at simulated time 0,
            instead of at its begin.
        purpose: name of the random stream.
    """

    traces: Sequence[StepTrace]
    streams: Streams
    is_drawn: bool
    random_start: bool
    purpose: str = _PURPOSE

    def of(self, link: int) -> tuple[StepTrace, float]:
        """Return the trace that a link follows, and the link's position in it at time 0.

        Args:
            link: number of the link; for devices' own links the index of the device.

        Returns:
            The trace, and the position of the link in the trace at simulated time 0 (s).
        """
        number = link % len(self.traces)
        if self.is_drawn:
            number = int(self.streams.uniform(self.purpose, link, _TRACE) * len(self.traces))
        trace = self.traces[number]
        if not self.random_start:
            return trace, 0.0
        return trace, on_grid(self.streams.uniform(self.purpose, link, _PLACE) * trace.length)

    def numbers(self, links: Ints) -> Ints:
        """Return the index of each link's trace, int64 [links].

        Args:
            links: numbers of the links, int64 [links].
        """
        count = len(self.traces)
        if not self.is_drawn:
            return np.asarray(links % count)
        draws = self.streams.uniforms(self.purpose, links, _TRACE)
        return (draws * count).astype(np.int64)

    def means(self, links: int) -> Floats:
        """Return the mean of the trace of each of the links 0 to ``links`` - 1; float64 [links]."""
        means = np.array([trace.mean for trace in self.traces])
        return np.asarray(means[self.numbers(np.arange(links))])


@dataclass(slots=True)
class _TracedLink:
    """Link that has a trace (values over time) and at least one running flow.

    Its attributes are the trace, how far the link is in it at time 0 (s), the flows, and ``next``,
    the time of the next change of the value (s).
    """

    trace: StepTrace
    ahead: float
    flows: dict[int, None]
    next: float = math.inf


class LinkTraces:
    """Traces (values over time) that the rates, latencies and losses of a network's links follow.

    Changes are computed only for links with running flows (``begin``, ``end``).

    Args:
        of_devices: traces of the devices' own links by quantity: ``down``, ``up``, ``latency`` and
            ``loss``. Latency and loss of a device are named like links, such as ``device 3 latency``.
        shared: name of a shared link -> its traces, and the number of the link in them.
    """

    def __init__(
        self,
        of_devices: Mapping[str, Assignment],
        shared: Mapping[str, tuple[Assignment, int]],
    ) -> None:
        self.of_devices = of_devices
        self.shared = shared
        self._courses: dict[str, _TracedLink] = {}  # of links with flows
        self._links_of: dict[int, list[str]] = {}  # flow ID -> its links with traces
        self._changes: list[tuple[float, str]] = []  # heap of next changes, some of them outdated

    def of(self, link: str) -> tuple[StepTrace, float] | None:
        """Return the trace of a link, and the link's position in it at time 0 (s).

        Args:
            link: name of the link, such as ``server up`` or ``device 7 down``.

        Returns:
            The two; None for a link without a trace.
        """
        course = self._courses.get(link)
        if course is not None:
            return course.trace, course.ahead
        if link in self.shared:
            assignment, number = self.shared[link]
            return assignment.of(number)
        device, direction = _device_of(link)
        if direction not in self.of_devices:
            return None
        return self.of_devices[direction].of(device)

    def is_shared(self, link: str) -> bool:
        """Return whether a link with a trace is a shared link, and not a device's own.

        Args:
            link: name of a link with a trace.
        """
        return link in self.shared

    def value(self, name: str, now: float) -> float | None:
        """Return the value of a trace: rate (bytes/s), latency (s) or share; None without a trace.

        Args:
            name: name of the link, or ``device 7 latency`` or ``device 7 loss``.
            now: the time (s).
        """
        entry = self.of(name)
        if entry is None:
            return None
        trace, ahead = entry
        return trace.at(now + ahead)

    # flows, for whose links changes are events

    def begin(self, flow: int, links: Iterable[str], now: float) -> list[str]:
        """Note that a flow uses links from now on, so that changes of their rates are reported.

        Args:
            flow: ID of the flow.
            links: names of all links of its route; links without a trace are ignored.
            now: the time (s).

        Returns:
            Names of the links with traces that had no flow before.
        """
        first_used: list[str] = []
        for link in links:
            course = self._courses.get(link)
            if course is None:
                entry = self.of(link)
                if entry is None:
                    continue
                course = self._courses[link] = _TracedLink(*entry, {})
                self._schedule(link, course, now)
                first_used.append(link)
            course.flows[flow] = None
            self._links_of.setdefault(flow, []).append(link)
        return first_used

    def end(self, flow: int) -> None:
        """Note that a flow has ended and uses its links no longer."""
        for link in self._links_of.pop(flow, ()):
            course = self._courses[link]
            del course.flows[flow]
            if not course.flows:
                del self._courses[link]

    def flows_on(self, link: str) -> Collection[int]:
        """Return the IDs of the flows on a link with a trace."""
        return self._courses[link].flows

    def next_change(self) -> float:
        """Return the next time at which the rate of a link with flows changes (s), or infinity."""
        changes = self._changes
        while changes:
            when, link = changes[0]
            course = self._courses.get(link)
            if course is not None and course.next == when:
                return when
            heappop(changes)
        return math.inf

    def take_due(self, now: float) -> list[str]:
        """Return the links whose rates change at or before a time, and schedule their next changes.

        Args:
            now: the time (s).
        """
        due = []
        while self.next_change() <= now:
            _, link = heappop(self._changes)
            self._schedule(link, self._courses[link], now)
            due.append(link)
        return due

    def _schedule(self, link: str, course: _TracedLink, now: float) -> None:
        course.next = course.trace.next_change(now + course.ahead) - course.ahead
        if course.next <= now:  # by rounding, long after the begin
            course.next = math.nextafter(now, math.inf)
        if course.next < math.inf:
            heappush(self._changes, (course.next, link))

    def dead_links(self, now: float) -> list[str]:
        """Describe each link whose trace has ended with rate 0, so that its flows never end.

        Args:
            now: the time (s).
        """
        dead = []
        for link, course in self._courses.items():
            if link.endswith(_PACKETS):
                continue
            position = now + course.ahead
            if course.trace.at(position) == 0 and course.trace.next_change(position) == math.inf:
                dead.append(f"{link} (trace {course.trace.name!r})")
        return dead

    # the run folder

    def columns(self, devices: Ints) -> tuple[TraceColumns, TraceColumns]:
        """Return two tables for the run folder: the traces, and which link follows which.

        Args:
            devices: the devices whose links are listed, int64 [n].

        Returns:
            Columns of ``link_traces.parquet`` and of ``traced_links.parquet``, by name.
        """
        numbers: dict[StepTrace, int] = {}  # trace -> its number in the tables
        links: TraceColumns = {"device": [], "link": [], "trace": [], "ahead": []}
        for direction, assignment in self.of_devices.items():
            links["device"] += devices.tolist()
            links["link"] += [direction] * len(devices)
            entries = [assignment.of(device) for device in devices.tolist()]
            links["trace"] += [numbers.setdefault(trace, len(numbers)) for trace, _ in entries]
            links["ahead"] += [ahead for _, ahead in entries]
        for name, (assignment, number) in self.shared.items():
            trace, ahead = assignment.of(number)
            row = (-1, name, numbers.setdefault(trace, len(numbers)), ahead)
            for cells, cell in zip(links.values(), row, strict=True):
                cells.append(cell)
        columns = ("trace", "name", "length", "loops", "since", "value")
        pieces: TraceColumns = {column: [] for column in columns}
        for trace, number in numbers.items():
            count = len(trace.since)
            facts = {"trace": number, "name": trace.name, "length": trace.length}
            for column, value in (facts | {"loops": trace.loops}).items():
                pieces[column] += [value] * count
            pieces["since"] += trace.since
            pieces["value"] += trace.values
        return pieces, links


def _device_of(link: str) -> tuple[int, str]:
    """Return the device index and the direction in the name of a device's own link.

    The result is (-1, "") for the name of another link.
    """
    first, _, rest = link.partition(" ")
    number, _, direction = rest.partition(" ")
    if first != "device" or not number.isdecimal():
        return -1, ""
    return int(number), direction
