"""Kinds of ``population.availability``: day and night, recordings of phones, or a user's table."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
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
from fedsim.common.files import SEARCH_RULE, find_file
from fedsim.common.notes import note
from fedsim.common.streams import Streams
from fedsim.common.units import CLOCK_END_S, TICK_S, PositiveSeconds, Seconds
from fedsim.common.wording import in_words
from fedsim.toolbox.worlds.published import recorded_phones
from fedsim.world.availability import Availability, AvailabilityModel
from fedsim.world.calendar import DAY_S, Calendar, seconds_of_day
from fedsim.world.columns import each
from fedsim.world.device_table import IDS, DeviceTable
from fedsim.world.phases import Span


def _check_time_of_day(text: str) -> str:
    try:
        time.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError(
            "time_of_day", "a time of day such as '02:00' or '22:30:15' is allowed"
        ) from None
    return text


def _as_text(value: object) -> object:
    """Convert a ``datetime.time``, which TOML's parser returns for ``02:00:00``, to its ISO text.

    Any other value is returned unchanged, for pydantic to check.
    """
    return value.isoformat() if isinstance(value, time) else value


TimeText = Annotated[str, AfterValidator(_check_time_of_day), BeforeValidator(_as_text)]


class Diurnal(AvailabilityModel):
    """The share of devices that are on is a sinusoid of the local time of day.

    Each device draws a number from 0 to 1, and a new one after each time ``lasts``. The device is
    on while the sinusoid is above its number. With ``lasts`` of many days a device is on at the
    same hours every day; with a short ``lasts`` it turns on and off at random.

    Attributes:
        most, least: the largest and the smallest share of devices that are on, at the best and the
            worst time of day.
        peak: the best time of day, in local time (see ``population.calendar``).
        lasts: time after which a device draws a new number.
    """

    kind: Literal["diurnal"] = "diurnal"
    most: float = Field(ge=0.001, le=1.0)
    least: float = Field(ge=0.0, le=0.999)
    peak: TimeText = "02:00"
    lasts: PositiveSeconds = 3600.0

    @model_validator(mode="after")
    def _check_order(self) -> "Diurnal":
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
    """Availability in which the share of devices that are on is a sinusoid of the time of day.

    Each device draws a number from 0 to 1 at regular times, and is on while the share is above the
    number. ``Diurnal``, the kind of the scenario, builds an instance for each run.

    Args:
        streams: the random streams of the run.
        least: the share of devices that is on at the worst time of day.
        most: the share of devices that is on at the best time of day.
        peak: for each device a simulated time at which the share is highest in its time zone (s),
            float64 [devices].
        lasts: time after which a device draws a new number (s).
    """

    def __init__(
        self, streams: Streams, least: float, most: float, peak: Floats, lasts: float
    ) -> None:
        self._streams = streams
        self._middle = (least + most) / 2
        self._swing = (most - least) / 2
        self._peak = peak
        self._lasts = on_grid(lasts)
        self._last_spans: dict[int, Span] = {}  # device -> cache of its last span

    def span(self, device: int, time: float) -> Span:
        """Join the neighbouring intervals in which the device stays on, or stays off."""
        last = self._last_spans.get(device)
        if last is not None and last.start <= time < last.end:
            return last
        is_on, start, end = self._uniform_interval(device, time)
        while end < math.inf:
            is_on_next, _, next_end = self._uniform_interval(device, end)
            if is_on_next != is_on:
                break
            end = next_end
        while start > 0:
            # a tick earlier; if that is less than a float's precision, the next smaller float
            moment_before = start - max(TICK_S, math.ulp(start))
            is_on_before, start_before, _ = self._uniform_interval(device, moment_before)
            if is_on_before != is_on:
                break
            start = start_before
        span = Span(is_on, max(0.0, start), end)
        self._last_spans[device] = span
        return span

    def on(self, devices: Ints, time: float) -> Flags:
        """Return whether the time is within each device's window around its nearest daily peak.

        A device is on in a window of each day, whose length follows from the number that the device
        has drawn last.
        """
        ages = self._streams.uniforms("world/availability/first", devices)  # as shares of ``lasts``
        # time for which the number drawn first has been valid at time 0 (s)
        age_at_0 = np.rint(ages * self._lasts / TICK_S) * TICK_S
        # a device draws a new number after each ``lasts`` seconds
        draw_number = ((time + age_at_0) // self._lasts).astype(np.int64)
        draws = self._streams.uniforms("world/availability", devices, draw_number)
        half = np.array([self._half_window(draw) for draw in draws.tolist()])
        peak = self._peak[devices]
        # the peak recurs every day; this is its time nearest to ``time``
        nearest_peak = peak + (time - peak + DAY_S / 2) // DAY_S * DAY_S
        is_in_window = (nearest_peak - half <= time) & (time < nearest_peak + half)
        is_on_all_day = half == DAY_S / 2
        on: Flags = is_in_window | is_on_all_day
        return on

    def _half_window(self, draw: float) -> float:
        """Return half the time of each day for which a device that drew ``draw`` is on (s).

        The device is on while the share of devices that are on, a sinusoid of the time of day, is
        above ``draw``. The middle of this part of the day is the sinusoid's peak. The result is
        half a day if the share is always above ``draw``, and 0 if it never is.
        """
        if self._swing == 0.0:
            return DAY_S / 2 if draw < self._middle else 0.0
        height = (draw - self._middle) / self._swing
        if height >= 1:
            return 0.0
        if height <= -1:
            return DAY_S / 2
        return on_grid(math.acos(height) * DAY_S / (2 * math.pi))

    def _uniform_interval(self, device: int, time: float) -> tuple[bool, float, float]:
        """Return an interval around a time in which a device is on throughout, or off throughout.

        The interval may end where the device draws a new number, even if the device stays on or
        off.

        Args:
            device: index of the device.
            time: simulated time (s).

        Returns:
            Whether the device is on in the interval, and the interval's begin and end (s).
        """
        age = self._streams.uniform("world/availability/first", device)  # as a share of ``lasts``
        # time for which the number drawn first has been valid at time 0 (s)
        age_at_0 = round(age * self._lasts / TICK_S) * TICK_S
        draw_number = int((time + age_at_0) // self._lasts)
        # the time in which the present number is valid
        start = draw_number * self._lasts - age_at_0
        end = (draw_number + 1) * self._lasts - age_at_0
        half = self._half_window(self._streams.uniform("world/availability", device, draw_number))
        if half in (0.0, DAY_S / 2):  # on never, or all day
            return half > 0, start, end
        # the device is on each day from ``half`` before the peak to ``half`` after it
        peak = self._peak.item(device)
        nearest_peak = peak + (time - peak + DAY_S / 2) // DAY_S * DAY_S
        on_begin = nearest_peak - half
        on_end = nearest_peak + half
        if time < on_begin:
            end_of_previous_day = nearest_peak - DAY_S + half
            return False, max(start, end_of_previous_day), min(end, on_begin)
        if time >= on_end:
            begin_on_next_day = nearest_peak + DAY_S - half
            return False, max(start, on_end), min(end, begin_on_next_day)
        return True, max(start, on_begin), min(end, on_end)


TimeForm = type[float] | type[time] | type[datetime]
"""Type of all times in a file: simulated times, times of day, or dates."""

# type of times -> its plural, for error messages
_PLURALS: dict[TimeForm, str] = {
    float: "simulated times",
    time: "times of day",
    datetime: "dates",
}

Trace = tuple[float, list[float]]
"""Period (s) of a device's availability, and the times in [0, period] at which it changes (s).

The device turns on at times with an even index in the list, and off at times with an odd index.
The period is infinite if the trace does not repeat.
"""
OnInterval = tuple[float, float, int]
"""Interval in which a device is on: its begin and end (s), and its row in the table."""


def append_on(changes: list[float], begin: float, end: float) -> None:
    """Append an interval in which a device is on to its list of switching times.

    The list is changed in place. If the interval touches the last one, the two are merged. An empty
    interval is ignored.

    Args:
        changes: times at which the device turns on and off, in turn (s).
        begin: begin of the interval in which the device is on (s).
        end: end of the interval (s).
    """
    if begin < end and changes and changes[-1] == begin:
        changes[-1] = end
    elif begin < end:
        changes += [begin, end]


class Traces(Availability):
    """Availability by recorded or listed times at which devices turn on and off.

    Each device follows a trace: a period (s), and the times within it at which the device turns on
    and off, in turn. The device repeats its trace after each period, which may be infinite.

    Args:
        traces: all traces.
        assigned: index in ``traces`` of each device's trace, [devices].
        ahead: each device's position in its trace at simulated time 0 (s), [devices]; None for 0.
    """

    def __init__(
        self, traces: Sequence[Trace], assigned: Sequence[int], ahead: Sequence[float] | None = None
    ) -> None:
        self._traces = traces
        self._assigned = assigned
        self._ahead = [0.0] * len(assigned) if ahead is None else ahead

    def span(self, device: int, time: float) -> Span:
        """Find the interval at the device's present position in its trace, which repeats."""
        period, changes = self._traces[self._assigned[device]]
        if changes == [0.0, period]:  # always on
            return Span(on=True, start=0.0, end=math.inf)
        offset = math.fmod(time + self._ahead[device], period)  # position in the trace (s)
        lap_start = time - offset  # when the trace began last
        changes_so_far = bisect_right(changes, offset)
        start = changes[changes_so_far - 1] if changes_so_far else 0.0
        end = changes[changes_so_far] if changes_so_far < len(changes) else period
        is_on = changes_so_far % 2 == 1  # the first, third, ... change turns the device on
        if is_on and end == period and changes[0] == 0.0:  # it stays on when the trace repeats
            end = period + changes[1]
        return Span(is_on, max(0.0, lap_start + start), lap_start + end)

    def next_on(self, device: int, time: float) -> float:
        _, changes = self._traces[self._assigned[device]]
        if not changes:
            return math.inf
        return super().next_on(device, time)


class Flash(AvailabilityModel):
    """Devices are on when phones were available, as recorded by the study FLASH.

    A phone was available while it was idle, charging and on Wi-Fi. Each device repeats the
    recording (trace) of a random phone, at the times of day at which it was recorded.

    Attributes:
        file: FLASH's ``state_traces.json`` or ``cached_timers.json``; FedScale's
            ``client_behave_trace``, a pickle from which only plain values are read, with times
            since a midnight; or JSON ``{id: {start, end, ready: [[from, to], ...], ok}}`` in
            seconds. Phones without a usable trace (``ok`` is false) are skipped.
    """

    kind: Literal["flash"] = "flash"
    file: str = "traces/flash_availability_1000.json"

    def build_on(
        self, streams: Streams, devices: int, root: Path | None, calendar: Calendar
    ) -> Traces:
        traces = read_flash(find_file(self.file, root))
        generator = streams.generator("world/availability")
        assigned: list[int] = generator.integers(len(traces), size=devices).tolist()
        ahead = []
        for day_s, trace_index in zip(calendar.day_s().tolist(), assigned, strict=True):
            start, (period, _) = traces[trace_index]
            ahead.append((day_s - start) % period)
        return Traces([trace for _, trace in traces], assigned, ahead)


RecordedTime = Annotated[float, Field(ge=-CLOCK_END_S, le=CLOCK_END_S, strict=True)]


class _Recorded(BaseModel):
    """Recording of a phone that is available in the intervals ``ready`` (s), checked by pydantic."""

    ok: bool
    start: RecordedTime
    end: RecordedTime
    ready: list[tuple[RecordedTime, RecordedTime]]


def read_flash(path: Path) -> list[tuple[float, Trace]]:
    """Read the availability traces of a file of recorded phones, and print a note on the file.

    Phones whose recording is marked as unusable (``ok`` is false) are left out.

    Args:
        path: a file of FLASH, of FedScale, or JSON ``{id: {start, end, ready, ok}}`` with times in
            seconds.

    Returns:
        For each usable phone the start of its recording (s since a midnight), and its trace: the
        length of the recording (s), and the times since the start at which the phone turns on and
        off, in turn (s).

    Raises:
        DataError: the file cannot be read, or holds no usable trace.
    """
    where = f"population.availability: {str(path)!r}"
    try:
        form, phones = recorded_phones(path)
    except FileNotFoundError:
        raise DataError(
            f"population.availability: there is no trace file {str(path)!r}; {SEARCH_RULE}"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where} cannot be read as JSON, or FedScale's pickle: {error}") from None
    usable = {name: phone for name, phone in phones.items() if phone["ok"]}
    if not usable:
        raise DataError(
            f"{where} holds no trace that can be used ('ok': true); it is of the form {form}"
        )
    note(f"{str(path)!r}: of the form {form}, {len(usable)} of {len(phones)} phones can be used")
    traces = []
    for name, phone in usable.items():
        label = f"population.availability: trace {name!r} of {str(path)!r}"
        traces.append(_trace_of_phone(label, phone))
    return traces


def _trace_of_phone(where: str, phone: Mapping[str, object]) -> tuple[float, Trace]:
    """Convert a phone's recording to the times at which the phone turns on and off.

    Args:
        where: text that names the recording, for error messages.
        phone: the recording: ``start`` and ``end`` (s since a midnight), ``ready`` (intervals in
            which the phone is on) and ``ok``.

    Returns:
        The start of the recording (s since a midnight), and the trace: the length of the recording
        (s), and the times since the start at which the phone turns on and off, in turn (s).

    Raises:
        DataError: a value is invalid, or an interval is out of order.
    """
    try:
        recorded = _Recorded.model_validate(phone)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise DataError(
            f"{where} has holes: {'.'.join(map(str, problem['loc']))}: {in_words(problem)}"
        ) from None
    start = on_grid(recorded.start)
    end = on_grid(recorded.end)
    changes: list[float] = []
    last_end = start
    for position, interval in enumerate(recorded.ready):
        on_begin = on_grid(interval[0])
        on_end = on_grid(interval[1])
        if not last_end <= on_begin <= on_end <= end:
            raise DataError(
                f"{where} has holes: interval {position} [{on_begin:g}, {on_end:g}] is out of "
                "order or bounds"
            )
        last_end = on_end
        append_on(changes, on_begin - start, on_end - start)
    if end <= start:
        raise DataError(f"{where} has holes: it ends at {end:g} s, and starts at {start:g} s")
    return start, (end - start, changes)


class Intervals(AvailabilityModel):
    """Devices are on in the intervals of a CSV or Parquet file.

    The file has a row for each interval, in any order, and the columns ``device``, ``start`` and
    ``end``. The column ``device`` (or ``phone``, ``client``, ``id``) has numbers of devices, or a
    name for every device. Names are sorted, ``d2`` before ``d10``, and numbered from 0. Other
    columns are refused, as they
    might mean that a device is off in an interval. A device without a row is never on. All times of
    a file are of the same form:

    - simulated times, such as ``90 s``, or bare numbers with ``unit``;
    - times of day, such as ``22:00`` to ``06:30``, every day, in the device's time zone
      (``population.calendar``);
    - dates with times, such as ``2024-03-04T22:00`` (in the device's time zone) or
      ``2024-03-04T22:00Z``, from time 0 on.

    Attributes:
        file: the file; a relative path starts from ``data.root``, else the working directory, else
            ``$FEDSIM_DATA``.
        unit: unit of times that are bare numbers.
        drawn: whether each device has the intervals of a random device of the file; devices of
            the file may then have any names.
    """

    kind: Literal["intervals"] = "intervals"
    file: str
    unit: str | None = None
    drawn: bool = False

    def build_on(
        self, streams: Streams, devices: int, root: Path | None, calendar: Calendar
    ) -> Traces:
        """Read the intervals of the file, make a trace for each device in it, and assign the traces.

        With ``drawn`` each device gets a random trace of the file; otherwise its own, or an empty
        trace if the file has no row of the device.
        """
        table = DeviceTable(
            "population.availability", find_file(self.file, root), ("start", "end"), IDS, others=()
        )
        column = table.id_column
        table.note(f"a row for each interval in which the device in {column!r} is on")
        # the device of each row: any name if devices are drawn, otherwise an index
        owners = table.values(column, Any) if self.drawn else table.devices(devices)
        start, end, form = self._times(table)
        if form is datetime:
            self._check_dates(calendar)
        intervals: dict[object, list[OnInterval]] = {}  # device -> its intervals
        for row, owner in enumerate(owners):
            pieces = self._pieces(table, row, start[row], end[row], owner, calendar)
            intervals.setdefault(owner, []).extend(pieces)
        period = DAY_S if form is time else math.inf  # times of day repeat every day
        traces = [_build_trace(table, sorted(pieces), period) for pieces in intervals.values()]
        if self.drawn:
            generator = streams.generator("world/availability")
            assigned = generator.integers(len(traces), size=devices).tolist()
        else:
            never_on = len(traces)  # index of the empty trace that is appended below
            index_of_trace = {owner: index for index, owner in enumerate(intervals)}
            assigned = [index_of_trace.get(device, never_on) for device in range(devices)]
        traces.append((period, []))
        # a trace of times of day begins at midnight, simulated time 0 at another time of day
        ahead = calendar.day_s().tolist() if form is time else None
        return Traces(traces, assigned, ahead)

    def _check_dates(self, calendar: Calendar) -> None:
        if not calendar.stated:
            raise ScenarioError(
                f"population.availability: {self.file!r} has dates; give population.calendar.starts"
            )
        if self.drawn:
            raise ScenarioError(
                "population.availability.drawn is true, but dates are of devices that are "
                "known; give false"
            )

    def _times(self, table: DeviceTable) -> tuple[list[Any], list[Any], TimeForm]:
        """Read the columns ``start`` and ``end`` of a table of intervals in which devices are on.

        Returns:
            The starts and the ends, one for each row, as numbers (s), times of day or dates; and
            their type.

        Raises:
            DataError: a time is invalid, or its type is not the first row's.
        """
        form = _time_form(table.cells["start"][0])
        columns = []
        for name in ("start", "end"):
            for row, cell in enumerate(table.cells[name]):
                if cell is not None and _time_form(cell) is not form:
                    raise table.wrong(
                        row,
                        name,
                        f"the first row has {_PLURALS[form]}; "
                        "allowed is one form of time in a file",
                    )
            columns.append(table.values(name, Seconds if form is float else form, self.unit))
        return columns[0], columns[1], form

    def _pieces(
        self,
        table: DeviceTable,
        row: int,
        start: Any,
        end: Any,
        owner: Any,
        calendar: Calendar,
    ) -> list[OnInterval]:
        """Convert the interval of a row, in which a device is on, to seconds of the simulation.

        Args:
            table: the table, for error messages.
            row: index of the row.
            start: begin of the interval: simulated time (s), time of day or date.
            end: end of the interval, of the same type.
            owner: the device of the row.
            calendar: time zones of the devices, and the date of simulated time 0.

        Returns:
            Begin and end (s), and ``row``, of a single interval; two for a time of day that spans
            midnight, none if the interval ends before simulated time 0.

        Raises:
            DataError: the interval ends before it begins.
        """
        if isinstance(start, time):
            return _daily_pieces(table, row, seconds_of_day(start), seconds_of_day(end))
        if isinstance(start, datetime):
            start_s = calendar.simulated_s(start, owner)
            end_s = calendar.simulated_s(end, owner)
        else:
            start_s = on_grid(start)
            end_s = on_grid(end)
        if end_s < start_s:
            raise table.wrong(
                row,
                "end",
                f"that is before its start, {table.cells['start'][row]}; allowed are later times",
            )
        if end_s <= 0:
            return []
        return [(max(0.0, start_s), min(end_s, CLOCK_END_S), row)]


def _daily_pieces(table: DeviceTable, row: int, begin: float, finish: float) -> list[OnInterval]:
    """Split an interval of the day, which repeats daily, if midnight is within it.

    Args:
        table: the table, for error messages.
        row: index of the interval's row.
        begin: begin of the interval (s of the day).
        finish: end of the interval (s of the day); earlier than ``begin`` if it spans midnight.

    Returns:
        One interval or two: begin and end (s of the day), and ``row``.

    Raises:
        DataError: the interval is empty.
    """
    finish = finish or DAY_S  # an interval may end at 00:00 of the next day
    if begin == finish:
        raise table.wrong(
            row,
            "end",
            "that is when it starts; allowed are other times (00:00 to 00:00 is a whole day)",
        )
    if begin > finish:
        return [(0.0, finish, row), (begin, DAY_S, row)]
    return [(begin, finish, row)]


def _build_trace(table: DeviceTable, pieces: list[OnInterval], period: float) -> Trace:
    """Build a device's trace from the intervals in which it is on.

    Args:
        table: the table, for error messages.
        pieces: the intervals, sorted: begin and end (s), and the row of the table.
        period: time after which the trace repeats (s).

    Returns:
        The period, and the times at which the device turns on and off, in turn (s).

    Raises:
        DataError: two intervals overlap.
    """
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


def _time_form(cell: object) -> TimeForm:
    """Return the type of the time in a table's cell: ``float``, ``time`` or ``datetime``.

    A text is of the type that can parse it; ``float`` also stands for a text that no type parses.
    """
    if isinstance(cell, datetime):
        return datetime
    if isinstance(cell, time):
        return time
    if not isinstance(cell, str) or ":" not in cell:
        return float  # a text such as "12" is a simulated time without its unit
    for form in (time, datetime):
        with suppress(ValueError):
            form.fromisoformat(cell)
            return form
    return float
