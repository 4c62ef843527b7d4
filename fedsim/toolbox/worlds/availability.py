"""Devices that come and go by day and night, as phones did that FLASH recorded, or as a table of
the user's says.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.files import SOUGHT, sought
from fedsim.common.notes import note
from fedsim.common.streams import Streams
from fedsim.common.units import CLOCK_END_S, TICK_S, PositiveSeconds, Seconds
from fedsim.common.wording import in_words
from fedsim.toolbox.worlds.published import recorded_phones
from fedsim.world.availability import Availability, AvailabilityModel
from fedsim.world.calendar import DAY_S, Calendar, seconds_of_day
from fedsim.world.columns import each
from fedsim.world.device_table import DeviceTable
from fedsim.world.phases import Span


def _time_of_day(text: str) -> str:
    try:
        time.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError(
            "time_of_day", "a time of day such as '02:00' or '22:30:15' is allowed"
        ) from None
    return text


TimeText = Annotated[
    str,
    AfterValidator(_time_of_day),
    BeforeValidator(lambda v: v.isoformat() if isinstance(v, time) else v),
]


class Diurnal(AvailabilityModel):
    """The share of devices that are on is a sinusoid of the local hour.

    Each device draws a number every ``lasts``, and is on while the share is above the number.
    With a long ``lasts`` a device is on at the same hours for days; with a short one it comes
    and goes.

    Attributes:
        most, least: the share that is on at the best and at the worst hour.
        peak: the best hour, local time (see ``population.calendar``).
        lasts: how long a device keeps its number.
    """

    kind: Literal["diurnal"] = "diurnal"
    most: float = Field(ge=0.001, le=1.0)
    least: float = Field(ge=0.0, le=0.999)
    peak: TimeText = "02:00"
    lasts: PositiveSeconds = 3600.0

    @model_validator(mode="after")
    def _ordered(self) -> "Diurnal":
        if self.least > self.most:
            raise ValueError(f"'least' is {self.least:g}, above 'most', which is {self.most:g}")
        return self

    def build_on(
        self, streams: Streams, devices: int, root: Path | None, calendar: Calendar
    ) -> "Tides":
        peak_s = seconds_of_day(time.fromisoformat(self.peak))
        peaks = each(lambda day_s: peak_s - day_s, calendar.day_s())
        return Tides(streams, self.least, self.most, peaks, self.lasts)


class Tides(Availability):
    """The paths of ``Diurnal``; ``peak``: a time at which each device's share is highest (s),
    float64 [devices].
    """

    def __init__(
        self, streams: Streams, least: float, most: float, peak: Floats, lasts: float
    ) -> None:
        self._streams = streams
        self._middle = (least + most) / 2
        self._swing = (most - least) / 2
        self._peak = peak
        self._lasts = on_grid(lasts)
        # the phase that each device was last found in, as a cache
        self._found: dict[int, Span] = {}

    def span(self, device: int, time: float) -> Span:
        last = self._found.get(device)
        if last is not None and last.start <= time < last.end:
            return last
        on, start, end = self._stretch(device, time)
        while end < math.inf:
            other, _, beyond = self._stretch(device, end)
            if other != on:
                break
            end = beyond
        while start > 0:
            other, before, _ = self._stretch(device, start - max(TICK_S, math.ulp(start)))
            if other != on:
                break
            start = before
        self._found[device] = found = Span(on, max(0.0, start), end)
        return found

    def on(self, devices: Ints, time: float) -> Flags:
        first = self._streams.uniforms("world/availability/first", devices)
        into = np.rint(first * self._lasts / TICK_S) * TICK_S  # the first piece, at time 0
        piece = (time + into) // self._lasts
        draws = self._streams.uniforms("world/availability", devices, piece.astype(np.int64))
        half = np.array([self._half_window(draw) for draw in draws.tolist()])
        peak = self._peak[devices]
        nearest = peak + (time - peak + DAY_S / 2) // DAY_S * DAY_S
        on: Flags = (nearest - half <= time) & (time < nearest + half) | (half == DAY_S / 2)
        return on

    def _half_window(self, draw: float) -> float:
        """Time before and after a peak while the share is above ``draw`` (s): half a day for
        always, 0 for never.
        """
        if self._swing == 0.0:
            return DAY_S / 2 if draw < self._middle else 0.0
        height = (draw - self._middle) / self._swing
        return (
            0.0
            if height >= 1
            else DAY_S / 2
            if height <= -1
            else on_grid(math.acos(height) * DAY_S / (2 * math.pi))
        )

    def _stretch(self, device: int, time: float) -> tuple[bool, float, float]:
        """Whether ``device`` is on at ``time``, and the begin and end (s) of a part of its piece
        with that state.
        """
        into = (
            round(self._streams.uniform("world/availability/first", device) * self._lasts / TICK_S)
            * TICK_S
        )
        piece = (time + into) // self._lasts
        start = piece * self._lasts - into
        end = (piece + 1) * self._lasts - into
        half = self._half_window(self._streams.uniform("world/availability", device, int(piece)))
        if half in (0.0, DAY_S / 2):
            return half > 0, start, end
        peak = self._peak.item(device)
        nearest = peak + (time - peak + DAY_S / 2) // DAY_S * DAY_S
        if time < nearest - half:
            return False, max(start, nearest - DAY_S + half), min(end, nearest - half)
        if time >= nearest + half:
            return False, max(start, nearest + half), min(end, nearest + DAY_S - half)
        return True, max(start, nearest - half), min(end, nearest + half)


_FORMS = {float: "simulated times", time: "times of day", datetime: "dates"}

Trace = tuple[float, list[float]]
"""A period (s), infinity without repetition, and change times in [0, period]: on at even
positions, off at odd ones.
"""
OnInterval = tuple[float, float, int]
"""From when to when (s) a device is on, and the row of the table that says so."""


def append_on(changes: list[float], begin: float, end: float) -> None:
    """Append an interval, on from ``begin`` to ``end`` (s); one that touches the last joins it."""
    if begin < end and changes and changes[-1] == begin:
        changes[-1] = end
    elif begin < end:
        changes += [begin, end]


class Traces(Availability):
    """Recorded phases: each device follows its ``assigned`` trace over and over, ``ahead`` (s)
    into it at time 0; [devices].
    """

    def __init__(
        self, traces: Sequence[Trace], assigned: Sequence[int], ahead: Sequence[float] | None = None
    ) -> None:
        self._traces = traces
        self._assigned = assigned
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
        return (
            super().next_on(device, time) if self._traces[self._assigned[device]][1] else math.inf
        )


class Flash(AvailabilityModel):
    """Phones as FLASH recorded them: on while idle, charging and on Wi-Fi.

    Each device repeats a random trace, at the time of day at which the trace was recorded.
    """

    kind: Literal["flash"] = "flash"
    file: str = "traces/flash_availability_1000.json"
    """FLASH's ``state_traces.json`` or ``cached_timers.json``, FedScale's ``client_behave_trace``
    (a pickle, of which plain values alone are read), or JSON ``{id: {start, end, ready: [[from,
    to], ...], ok}}`` in seconds. Phones without a usable trace (``ok`` false) are skipped.
    FedScale's times count from a midnight on.
    """

    def build_on(
        self, streams: Streams, devices: int, root: Path | None, calendar: Calendar
    ) -> Traces:
        traces = read_flash(sought(self.file, root))
        drawn = streams.generator("world/availability").integers(len(traces), size=devices).tolist()
        started = zip(calendar.day_s().tolist(), [traces[trace] for trace in drawn], strict=True)
        ahead = [(now - start) % period for now, (start, (period, _)) in started]
        return Traces([trace for _, trace in traces], drawn, ahead)


RecordedTime = Annotated[float, Field(ge=-CLOCK_END_S, le=CLOCK_END_S, strict=True)]


class _Recorded(BaseModel):
    ok: bool
    start: RecordedTime
    end: RecordedTime
    ready: list[tuple[RecordedTime, RecordedTime]]


def read_flash(path: Path) -> list[tuple[float, Trace]]:
    """Each usable trace of a FLASH file, and when it starts (s)."""
    where = f"population.availability: {str(path)!r}"
    try:
        form, phones = recorded_phones(path)
    except FileNotFoundError:
        raise DataError(
            f"population.availability: there is no trace file {str(path)!r}; {SOUGHT}"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where} cannot be read as JSON, or FedScale's pickle: {error}") from None
    usable = {name: phone for name, phone in phones.items() if phone["ok"]}
    if not usable:
        raise DataError(
            f"{where} holds no trace that can be used ('ok': true); it is of the form {form}"
        )
    note(f"{str(path)!r}: of the form {form}, {len(usable)} of {len(phones)} phones can be used")
    return [
        _trace_of(f"population.availability: trace {name!r} of {str(path)!r}", entry)
        for name, entry in usable.items()
    ]


def _trace_of(where: str, entry: dict[str, object]) -> tuple[float, Trace]:
    try:
        recorded = _Recorded.model_validate(entry)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise DataError(
            f"{where} has holes: {'.'.join(map(str, problem['loc']))}: {in_words(problem)}"
        ) from None
    last = start = on_grid(recorded.start)
    end = on_grid(recorded.end)
    changes = list[float]()
    for position, (begin, finish) in enumerate(
        tuple(map(on_grid, pair)) for pair in recorded.ready
    ):
        if not last <= begin <= finish <= end:
            raise DataError(
                f"{where} has holes: interval {position} [{begin:g}, {finish:g}] is out of "
                "order or bounds"
            )
        last = finish
        append_on(changes, begin - start, finish - start)
    if end <= start:
        raise DataError(f"{where} has holes: it ends at {end:g} s, and starts at {start:g} s")
    return start, (end - start, changes)


class Intervals(AvailabilityModel):
    """On from ``start`` to ``end``: a CSV or Parquet file with a row an interval, and columns
    ``device``, ``start``, ``end``.

    Rows have any order. Other columns are refused: a row that means off would be taken for one
    that means on. A device without a row is never on. All times of a file are of one form:

    - simulated times, such as ``90 s``, or bare numbers with ``unit``;
    - times of day, such as ``22:00`` to ``06:30``, every day, in the device's time zone
      (``population.calendar``);
    - dates with times, such as ``2024-03-04T22:00`` (in the device's time zone) or
      ``2024-03-04T22:00Z``, from time 0 on.
    """

    kind: Literal["intervals"] = "intervals"
    file: str
    """the file; a relative path starts from ``data.root``, else the working directory, else
    ``$FEDSIM_DATA``.
    """
    unit: str | None = None
    """of times that are bare numbers."""
    drawn: bool = False
    """whether each device follows a device of the file, of any name, that is drawn at random."""

    def build_on(
        self, streams: Streams, devices: int, root: Path | None, calendar: Calendar
    ) -> Traces:
        columns = ("device", "start", "end")
        table = DeviceTable("population.availability", sought(self.file, root), columns, others=())
        table.note("a row for each interval in which a device is on")
        owners = table.values("device", Any) if self.drawn else table.devices(devices)
        start, end, form = self._times(table)
        if form is datetime and not calendar.stated:
            raise ScenarioError(
                f"population.availability: {self.file!r} has dates; give population.calendar.starts"
            )
        if form is datetime and self.drawn:
            raise ScenarioError(
                "population.availability.drawn is true, but dates are of devices that are "
                "known; give false"
            )
        intervals: dict[Any, list[OnInterval]] = {}
        for row, owner in enumerate(owners):
            intervals.setdefault(owner, []).extend(
                self._pieces(table, row, start[row], end[row], owner, calendar)
            )
        period = DAY_S if form is time else math.inf
        traces = {
            owner: _trace(table, sorted(pieces), period) for owner, pieces in intervals.items()
        }
        kept = [*traces.values(), (period, [])]
        if self.drawn:
            assigned = (
                streams.generator("world/availability").integers(len(traces), size=devices).tolist()
            )
        else:
            places = {owner: place for place, owner in enumerate(traces)}
            assigned = [places.get(device, len(traces)) for device in range(devices)]
        return Traces(kept, assigned, calendar.day_s().tolist() if form is time else None)

    def _times(self, table: DeviceTable) -> tuple[list[Any], list[Any], Any]:
        form = _form(table.cells["start"][0])
        columns = []
        for name in ("start", "end"):
            cells = table.cells[name]
            for row, cell in enumerate(cells):
                if cell is not None and _form(cell) is not form:
                    raise table.wrong(
                        row,
                        name,
                        f"the first row has {_FORMS[form]}; allowed is one form of time in a file",
                    )
            columns.append(table.values(name, Seconds if form is float else form, self.unit))
        return columns[0], columns[1], form

    def _pieces(
        self, table: DeviceTable, row: int, start: Any, end: Any, owner: Any, calendar: Calendar
    ) -> list[OnInterval]:
        """An interval in seconds, on the clock's grid; one over midnight as two."""
        if isinstance(start, time):
            # which ends at 00:00 again
            begin = seconds_of_day(start)
            finish = seconds_of_day(end) or DAY_S
            if begin == finish:
                raise table.wrong(
                    row,
                    "end",
                    "that is when it starts; allowed are other times (00:00 to 00:00 is a "
                    "whole day)",
                )
            if begin > finish:
                return [(0.0, finish, row), (begin, DAY_S, row)]
            return [(begin, finish, row)]
        if isinstance(start, datetime):
            begin, finish = (calendar.simulated_s(instant, owner) for instant in (start, end))
        else:
            begin = on_grid(start)
            finish = on_grid(end)
        if finish < begin:
            raise table.wrong(
                row,
                "end",
                f"that is before its start, {table.cells['start'][row]}; allowed are later times",
            )
        return [(max(0.0, begin), min(finish, CLOCK_END_S), row)] if finish > 0 else []


def _trace(table: DeviceTable, pieces: list[OnInterval], period: float) -> Trace:
    changes: list[float] = []
    last_end = -math.inf
    last_row = 0
    for start, end, row in pieces:
        if start < last_end:
            raise table.wrong(
                row,
                "start",
                f"that is within row {last_row + 1} of the same device; intervals must not overlap",
            )
        append_on(changes, start, end)
        last_end = end
        last_row = row
    return period, changes


def _form(cell: Any) -> Any:
    if isinstance(cell, datetime | time):
        return datetime if isinstance(cell, datetime) else time
    for form in (time, datetime):
        with suppress(ValueError, TypeError):
            form.fromisoformat(cell)
            return form if ":" in cell else float  # "12" is a simulated time that lacks its unit
    return float
