"""Rates of links that follow traces or were changed, and checks of traces against the scenario."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.streams import Streams
from fedsim.lab.audit.capacity import LinkCapacity, Rate
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.records import folder as files
from fedsim.records.schema import TRACED_LINKS, TRACES

_DIRECTIONS = ("down", "up")
_STREAM = "world/link-trace"
_OFFSET_DRAW = 1  # number of the draw of a link's offset in its trace


@dataclass(frozen=True, eq=False)
class RecordedTrace:
    """Step function of time from ``link_traces.parquet``: the rate, latency or loss of a link.

    Positions are times since the trace's begin (s).

    Attributes:
        since: begins of the pieces of constant value (s), the first 0; float64 [pieces].
        rates: values of the pieces: rates (bytes/s), latencies (s) or shares of lost packets;
            float64 [pieces].
        length: duration of the trace (s).
        loops: whether the trace begins anew at its end.
    """

    since: Floats
    rates: Floats
    length: float
    loops: bool

    @property
    def mean(self) -> float:
        """Mean of the values over the trace's duration (bytes/s, s or a share)."""
        if len(self.rates) == 1:
            return self.rates.item(0)
        lengths = np.diff(np.append(self.since, self.length))
        return float(lengths @ self.rates / self.length)

    def _locate(self, position: Floats) -> tuple[Floats, Floats, Ints]:
        """Return lap, offset and piece of each position in the trace, repeated if it loops.

        Args:
            position: positions (s); float64 [n].

        Returns:
            Index of the repetition (lap), and time since its begin (s), float64 [n] each; index of
            the piece of constant value, int64 [n].
        """
        laps = np.zeros(len(position))
        if self.loops:
            laps = np.floor(position / self.length)
        offset = position - laps * self.length
        # the last piece that has begun by then
        piece = np.searchsorted(self.since, offset, side="right") - 1
        return laps, offset, piece

    def values_at(self, position: Floats) -> Floats:
        """Return the trace's values at positions (s), the times since its begin; float64 [n]."""
        _, _, piece = self._locate(position)
        return self.rates[piece]

    def capacity_until(self, position: Floats, limit: float = np.inf) -> Floats:
        """Return the bytes that a link can carry from the begin of the trace to given positions.

        Args:
            position: positions (s); float64 [n].
            limit: upper limit of the rate (bytes/s).

        Returns:
            Bytes; float64 [n].
        """
        rates = np.minimum(self.rates, limit)
        piece_lengths = np.diff(np.append(self.since, self.length))  # durations of the pieces (s)
        bytes_before_piece = np.append(0.0, np.cumsum(rates * piece_lengths))
        bytes_of_lap = bytes_before_piece[-1]
        laps, offset, piece = self._locate(position)
        bytes_in_piece = rates[piece] * (offset - self.since[piece])
        return np.asarray(laps * bytes_of_lap + (bytes_before_piece[piece] + bytes_in_piece))


@dataclass(frozen=True, eq=False)
class TraceRate(LinkCapacity):
    """Capacity of a link whose rate follows a trace, to check its recorded traffic.

    Processes of the scenario, such as outages, may limit the rate at times.

    Attributes:
        trace: the trace.
        start_s: position in the trace at simulated time 0 (s).
        limits: limits of the rate over time, infinity for no limit.
    """

    trace: RecordedTrace
    start_s: float
    limits: Rate

    def capacity_until(self, until: Floats) -> Floats:
        # sums of the bytes in each period of constant limit, of which the last one has no end
        sums = np.zeros(len(until))
        ends = np.append(self.limits.since[1:], np.inf)
        for since, end, limit in zip(self.limits.since, ends, self.limits.values, strict=True):
            bytes_before = self.trace.capacity_until(np.array([since + self.start_s]), limit)
            # clipped: a time before the period gets no byte of it, a later one gets all
            position = np.clip(until, since, end) + self.start_s
            sums += self.trace.capacity_until(position, limit) - bytes_before
        return sums

    def is_unlimited(self, begin: Floats, end: Floats) -> Flags:
        return np.zeros(len(begin), dtype=bool)


class LinkRates:
    """Rates of a run's links over time, from recorded changes and from traces that links follow.

    Args:
        evidence: the run folder.
    """

    def __init__(self, evidence: Evidence) -> None:
        rates = evidence.data_of("link-rate").assign(time=evidence.events["time"])
        self._changes: dict[str, pd.DataFrame] = {}
        for link, changes in rates.groupby("link"):
            self._changes[str(link)] = changes
        self._traces = read_traces(evidence)

    def beyond_mean_s(self, device: Ints, start: Floats) -> Floats:
        """Return by how much the latencies of devices are above their means at given times (s).

        Args:
            device: device of each message, negative for none; int64 [messages].
            start: begins of the messages (s); float64 [messages].

        Returns:
            Differences (s), 0 for a constant latency or no device; float64 [messages].
        """
        beyond_s = np.zeros(len(device))
        for number in np.unique(device[device >= 0]).tolist():
            trace_and_start = self._traces.get(f"device {number} latency")
            if trace_and_start is None:  # a constant latency
                continue
            trace, start_s = trace_and_start  # ``start_s``: position in the trace at time 0
            rows = device == number
            beyond_s[rows] = trace.values_at(start[rows] + start_s) - trace.mean
        return beyond_s

    def varies(self, link: str) -> bool:
        """Return whether the rate of a link changed, or follows a trace."""
        return link in self._changes or link in self._traces

    def of(self, link: str, built: float) -> LinkCapacity:
        """Return the rate of a link as a function of simulated time, over the whole run.

        Args:
            link: name of the link.
            built: rate at the begin of the run (bytes/s); not used for a link that follows a trace.
        """
        changes = self._changes.get(link)
        traced = self._traces.get(link)
        # recorded rates are limits for a link that follows a trace, which begins without a limit
        first = built if traced is None else np.inf
        recorded = Rate(np.zeros(1), np.array([first]))
        if changes is not None:
            recorded = Rate(np.append(0.0, changes["time"]), np.append(first, changes["rate"]))
        if traced is None:
            return recorded
        trace, start_s = traced
        return TraceRate(trace, start_s, limits=recorded)


def read_traces(evidence: Evidence) -> dict[str, tuple[RecordedTrace, float]]:
    """Return the trace that each link follows, with the link's position in it at time 0 (s).

    Returns:
        Dict from name of a link to trace and position; links without a trace are left out.
    """
    if not evidence.run.has(files.TRACED_LINKS):
        return {}
    all_pieces = evidence.frame(files.TRACES, TRACES.names)  # a row per piece of constant value
    traces: dict[int, RecordedTrace] = {}
    for number in np.unique(all_pieces["trace"].to_numpy()).tolist():
        pieces = all_pieces[all_pieces["trace"] == number]
        traces[number] = RecordedTrace(
            pieces["since"].to_numpy(),
            pieces["value"].to_numpy(),
            float(pieces["length"].iloc[0]),
            bool(pieces["loops"].iloc[0]),
        )
    traced_links = evidence.frame(files.TRACED_LINKS, TRACED_LINKS.names)
    trace_of_link: dict[str, tuple[RecordedTrace, float]] = {}
    for device, link, number, start_s in traced_links.itertuples(index=False):
        is_shared = device < 0
        name = link if is_shared else f"device {device} {link}"
        trace_of_link[name] = traces[int(number)], float(start_s)
    return trace_of_link


def has_trace(section: object) -> bool:
    """Return whether a scenario sets a rate by a trace.

    Args:
        section: value of the rate's key in the scenario: a text such as ``"1 Mbit/s"``, or a table.
    """
    return isinstance(section, Mapping) and section.get("kind") == "trace"


def check_trace_offsets(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each link that does not begin at the expected position of its trace.

    A trace gives a link's rate over time; the position is drawn from the seed, or is 0. It is also
    a finding if other links follow traces than in the scenario, if a trace loops though the
    scenario has it end (or the reverse), or if the mean of a trace is not the rate of its device's
    link in the table of devices.
    """
    network = evidence.run.scenario["network"]
    sections = _traced_sections(network)
    traces = read_traces(evidence)
    streams = Streams(evidence.run.scenario["seed"])
    for link, (trace, start_s) in traces.items():
        key = _scenario_key(link)
        if key == "network.device.loss" and key not in sections:
            # the run writes a constant share of lost packets as a trace of one piece
            loss = network["device"]["loss"]
            if trace.rates.tolist() != [loss]:
                yield f"{link} is {trace.rates.tolist()}; by the scenario {loss!r}"
            continue
        if key not in sections:
            yield f"{link} follows a trace in {files.TRACED_LINKS}, by the scenario none"
            continue
        section = sections[key]
        expected_s = 0.0
        if section["starts"] == "random":
            expected_s = _draw_offset_s(streams, link, key, trace.length)
        if start_s != expected_s:
            yield (
                f"{link} begins at {start_s!r} s of its trace; by the scenario's seed at "
                f"{expected_s!r} s"
            )
        has_to_loop = section["ends"] == "loop"
        if trace.loops != has_to_loop:
            yield f"the trace of {link} ends otherwise than the scenario says"
    yield from _check_devices(evidence, sections, traces)
    for key in sections:
        if not key.startswith("network.device.") and key not in map(_scenario_key, traces):
            yield f"no link follows the trace of {key}"


def _draw_offset_s(streams: Streams, link: str, key: str, length_s: float) -> float:
    """Draw again the position in its trace at which a link begins (s).

    Args:
        streams: the scenario's random streams.
        link: name of the link, such as ``cell 3 up``.
        key: dotted key of the trace in the scenario.
        length_s: duration of the trace (s).
    """
    numbers = [int(part) for part in link.split() if part.isdecimal()]
    owner = numbers[0] if numbers else 0  # index of the link's device, cell or edge server
    purpose = _STREAM if key.startswith("network.device.") else f"{_STREAM}/{key}"
    return on_grid(streams.uniform(purpose, owner, _OFFSET_DRAW) * length_s)


def _check_devices(
    evidence: Evidence,
    sections: Mapping[str, TomlTable],
    traces: Mapping[str, tuple[RecordedTrace, float]],
) -> Iterator[str]:
    """Yield a finding for each device whose link lacks a trace, or has another rate than its mean.

    Args:
        evidence: the run folder, whose table of devices has the rates.
        sections: the scenario's tables of traces by dotted key.
        traces: trace of each link, and its position at time 0 (s), by link name.
    """
    devices = evidence.devices
    for direction in _DIRECTIONS:
        if f"network.device.{direction}" not in sections:
            continue
        stated = devices[f"link_{direction}"].tolist()
        for device, rate in zip(devices["device"].tolist(), stated, strict=True):
            trace_and_start = traces.get(f"device {device} {direction}")
            if trace_and_start is None:
                yield f"the link {direction} of device {device} has no trace"
                continue
            trace, _ = trace_and_start
            if not np.isclose(trace.mean, rate, rtol=1e-9):
                yield (
                    f"the link {direction} of device {device} has {rate!r} B/s; its trace has a "
                    f"mean of {trace.mean!r} B/s"
                )


def _traced_sections(network: TomlTable) -> dict[str, TomlTable]:
    """Return the scenario's tables of traced links, as a dict from dotted key to table."""
    sections: dict[str, TomlTable] = {}
    for part in ("device", "server", "cell", "edge"):
        table = network.get(part)
        if not isinstance(table, Mapping):
            continue
        for name, section in table.items():
            if has_trace(section):
                sections[f"network.{part}.{name}"] = section
    return sections


def _scenario_key(link: str) -> str:
    """Return the dotted key by which a scenario sets the rate of a link.

    Args:
        link: name of the link, such as ``cell 3 up``, whose key is ``network.cell.up``.
    """
    part, *_, direction = re.sub(r" [0-9]+ ", " ", link).split()
    return f"network.{part}.{direction}"
