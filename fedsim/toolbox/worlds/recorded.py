"""Paths that were written down: phones as FLASH recorded them, and tables of the user's own."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedsim.errors import DataError, ScenarioError, shown
from fedsim.files import SOUGHT, read_json, sought
from fedsim.language.units import CLOCK_END_S, PositiveSeconds, Seconds
from fedsim.simulation import on_grid
from fedsim.streams import Streams
from fedsim.world.availability.base import Availability, AvailabilityModel
from fedsim.world.calendar import DAY_S, Calendar, seconds_of_day
from fedsim.world.device_table import DeviceTable
from fedsim.world.phases import Span

_FORMS = {float: "simulated times", time: "times of day", datetime: "dates"}

Trace = tuple[float, list[float]]
"""A period (s), infinity for what never repeats, and change times in [0, period]: on at even positions, off at odd ones."""


def append_on(changes: list[float], begin: float, end: float) -> None:
    """Add an interval, on from ``begin`` to ``end`` (s), after those that are there: one that touches the last joins it."""
    if begin < end:
        if changes and changes[-1] == begin:
            changes[-1] = end
        else:
            changes += [begin, end]


class Traces(Availability):
    """Recorded phases: each device follows one trace, over and over.

    ``assigned`` says which, and ``ahead`` how far into it each device is at time 0 (s), both [devices]; None for not at all.
    """

    def __init__(self, traces: Sequence[Trace], assigned: Sequence[int], ahead: Sequence[float] | None = None) -> None:
        self._traces, self._assigned = traces, assigned
        self._ahead = [0.0] * len(assigned) if ahead is None else ahead

    def span(self, device: int, time: float) -> Span:
        period, changes = self._traces[self._assigned[device]]
        if changes == [0.0, period]:
            return Span(True, 0.0, math.inf)
        offset = math.fmod(time + self._ahead[device], period)
        lap = time - offset
        position = bisect_right(changes, offset)
        start = changes[position - 1] if position else 0.0
        end = changes[position] if position < len(changes) else period
        on = position % 2 == 1
        if on and end == period and changes[0] == 0.0:  # the phase goes on in the next lap
            end = period + changes[1]
        return Span(on, max(0.0, lap + start), lap + end)

    def next_on(self, device: int, time: float) -> float:
        if not self._traces[self._assigned[device]][1]:
            return math.inf
        return super().next_on(device, time)


class Flash(AvailabilityModel):
    """Phones as FLASH recorded them: on while idle, charging and on Wi-Fi.

    The file is JSON, ``{id: {start, end, ready: [[from, to], ...], ok}}`` in seconds; entries with ``ok`` false are skipped.
    Each device follows a trace drawn at random, at the time of day at which it was recorded: at time 0 the file's own clock
    (in days of 86,400 s) shows what that of the device shows. A trace repeats when it is through.
    """

    kind: Literal["flash"] = "flash"
    file: str = "traces/flash_availability_1000.json"

    def build_on(self, streams: Streams, devices: int, root: Path | None, calendar: Calendar) -> Traces:
        """The population's paths. ``DataError``: the file is missing, is not such a file, or has a trace with holes."""
        path = sought(self.file, root)
        traces = read_flash(path)
        drawn = streams.generator("world/availability").integers(len(traces), size=devices).tolist()
        started = zip(calendar.day_s().tolist(), [traces[trace] for trace in drawn], strict=True)
        ahead = [(now - start) % period for now, (start, (period, _)) in started]
        return Traces([trace for _, trace in traces], drawn, ahead)


def read_flash(path: Path) -> list[tuple[float, Trace]]:
    """Each usable trace of a FLASH file, and when it starts (s)."""
    try:
        entries = read_json(path)
    except FileNotFoundError:
        raise DataError(
            f"population.availability: there is no trace file {str(path)!r}; put FLASH's availability file there, "
            f"or name another with 'file' ({SOUGHT})"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"population.availability: {str(path)!r} cannot be read as JSON: {error}") from None
    if not isinstance(entries, dict):
        raise DataError(f"population.availability: {str(path)!r} is not a table of traces by phone")
    for name, entry in entries.items():
        if not isinstance(entry, dict) or "ok" not in entry:
            raise DataError(f"population.availability: trace {name!r} of {str(path)!r} lacks 'ok'")
    traces = [_trace_of(path, name, entry) for name, entry in entries.items() if entry["ok"]]
    if not traces:
        raise DataError(f"population.availability: {str(path)!r} holds no trace with 'ok': true")
    return traces


def _trace_of(path: Path, name: str, entry: dict[str, object]) -> tuple[float, Trace]:
    """Validate one trace and turn it into its start and itself; empty intervals vanish, touching ones join."""

    def hole(what: str) -> DataError:
        return DataError(f"population.availability: trace {name!r} of {str(path)!r} has holes: {what}")

    def number(value: object, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= CLOCK_END_S:
            raise hole(f"{what} is {shown(value)}, not a time in seconds of at most {CLOCK_END_S:g}")
        return on_grid(float(value))

    start, end = number(entry.get("start"), "'start'"), number(entry.get("end"), "'end'")
    ready = entry.get("ready")
    if end <= start or not isinstance(ready, list):
        raise hole(f"'start' {start:g} s, 'end' {end:g} s and 'ready' do not make a path")
    changes: list[float] = []
    last = start
    for position, pair in enumerate(ready):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise hole(f"interval {position} is {shown(pair)}, not [from, to]")
        begin, finish = number(pair[0], f"interval {position}"), number(pair[1], f"interval {position}")
        if not last <= begin <= finish <= end:
            raise hole(f"interval {position} [{begin:g}, {finish:g}] does not follow what is before it, or leaves [start, end]")
        last = finish
        append_on(changes, begin - start, finish - start)
    return start, (end - start, changes)


class Intervals(AvailabilityModel):
    """On from ``start`` to ``end``: a CSV or Parquet file with a row an interval, and columns ``device``, ``start``, ``end``.

    A device without a row is never on. All times of a file are of one form:

    - simulated times, such as ``90 s``, or bare numbers with ``unit``;
    - times of day, such as ``22:00`` to ``06:30``, which come again every day, in the device's time zone;
    - dates with times, such as ``2024-03-04T22:00`` (in the device's time zone) or ``2024-03-04T22:00Z``; what was before
      time 0 is left out.

    For days and dates ``population.calendar`` says which instant time 0 is, and where the devices are.

    Attributes:
        file: the file; a relative path starts from ``data.root``, else the working directory, else ``$FEDSIM_DATA``.
        unit: of times that are bare numbers.
        every: how long the pattern is until it comes again; None: it doesn't (times of day do, every day).
        drawn: each device follows the intervals of one that is drawn among those of the file, which may be called anything.
    """

    kind: Literal["intervals"] = "intervals"
    file: str
    unit: str | None = None
    every: PositiveSeconds | None = None
    drawn: bool = False

    def build_on(self, streams: Streams, devices: int, root: Path | None, calendar: Calendar) -> Traces:
        """The population's paths; draws from ``world/availability`` if devices are drawn.

        ``DataError``: the file or an interval is malformed. ``ScenarioError``: dates, and nothing says which of them is time 0.
        """
        table = DeviceTable("population.availability", sought(self.file, root), ("device", "start", "end"))
        owners = table.values("device", Any) if self.drawn else table.devices(devices)
        start, end, form = self._times(table)
        if form is datetime and not calendar.stated:
            raise ScenarioError(
                f"population.availability: {self.file!r} has dates; give population.calendar.starts, the date and time of "
                "simulated time 0"
            )
        if form is datetime and self.drawn:
            raise ScenarioError(
                "population.availability.drawn is true, but dates are of devices that are known; allowed is false"
            )
        intervals: dict[Any, list[_OnInterval]] = {}
        for row, owner in enumerate(owners):
            intervals.setdefault(owner, []).extend(self._pieces(table, row, start[row], end[row], owner, calendar))
        if form is time and self.every not in (None, DAY_S):
            raise ScenarioError(f"population.availability.every is {self.every:g} s, but times of day come again every day")
        period = DAY_S if form is time else math.inf if self.every is None else on_grid(self.every)
        traces = {owner: _trace(table, sorted(pieces), period) for owner, pieces in intervals.items()}
        kept = [*traces.values(), (period, [])]
        if self.drawn:
            assigned = streams.generator("world/availability").integers(len(traces), size=devices).tolist()
        else:
            places = {owner: place for place, owner in enumerate(traces)}
            assigned = [places.get(device, len(traces)) for device in range(devices)]
        return Traces(kept, assigned, calendar.day_s().tolist() if form is time else None)

    def _times(self, table: DeviceTable) -> tuple[list[Any], list[Any], Any]:
        form = _form(table.cells("start")[0])
        columns = []
        for name in ("start", "end"):
            cells = table.cells(name)
            for row, cell in enumerate(cells):
                if cell is not None and _form(cell) is not form:
                    raise table.wrong(row, name, f"the first row has {_FORMS[form]}; allowed is one form of time in a file")
            kind = Seconds if form is float else form
            columns.append(table.values(name, kind, self.unit))
        return columns[0], columns[1], form

    def _pieces(
        self, table: DeviceTable, row: int, start: Any, end: Any, owner: Any, calendar: Calendar
    ) -> "list[_OnInterval]":
        """An interval in seconds, on the clock's grid; one over midnight as two."""
        if isinstance(start, time):
            begin, finish = seconds_of_day(start), seconds_of_day(end) or DAY_S  # which ends at 00:00 again
            if begin == finish:
                raise table.wrong(row, "end", "that is when it starts; allowed are other times (00:00 to 00:00 is a whole day)")
            if begin > finish:
                return [_OnInterval(0.0, finish, row), _OnInterval(begin, DAY_S, row)]
            return [_OnInterval(begin, finish, row)]
        if isinstance(start, datetime):
            begin, finish = (calendar.simulated_s(instant, owner) for instant in (start, end))
        else:
            begin, finish = on_grid(start), on_grid(end)
        if finish < begin:
            raise table.wrong(row, "end", f"that is before its start, {table.cells('start')[row]}; allowed are later times")
        if self.every is not None and finish > self.every:
            raise table.wrong(row, "end", f"that is after the {self.every:g} s of population.availability.every")
        return [_OnInterval(max(0.0, begin), min(finish, CLOCK_END_S), row)] if finish > 0 else []


class _OnInterval(NamedTuple):
    start: float
    end: float
    row: int


def _trace(table: DeviceTable, pieces: list[_OnInterval], period: float) -> Trace:
    changes: list[float] = []
    last: _OnInterval | None = None
    for piece in pieces:
        if last is not None and piece.start < last.end:
            raise table.wrong(
                piece.row, "start", f"that is within row {last.row + 1} of the same device; intervals must not overlap"
            )
        append_on(changes, piece.start, piece.end)
        last = piece
    return period, changes


def _form(cell: Any) -> Any:
    if isinstance(cell, datetime | time):
        return datetime if isinstance(cell, datetime) else time
    for form in (time, datetime):
        try:
            if isinstance(cell, str):
                form.fromisoformat(cell)  # "12" is a simulated time that lacks its unit
                return form if ":" in cell else float
        except ValueError:
            continue
    return float
