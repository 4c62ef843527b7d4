"""Readers of published traces of links: two columns, packet files, and two tables.

- Two columns: lines of a time and a rate, as Lumos5G's throughput traces (Narayanan et al., ACM IMC
  2020) have them; or a CSV with a header.
- Packet files of Mahimahi (Netravali et al., USENIX ATC 2015): each line is a time (ms) at which the
  link can carry 1500 bytes. The file begins anew after its last time.
- FCC, Measuring Broadband America, raw data (``curr_httpgetmt.csv``, ``curr_httppostmt.csv``,
  ``curr_webget.csv``): a row is a test by a measuring unit, with ``unit_id``, ``dtime`` and
  ``bytes_sec``.
- Irish 4G and 5G of University College Cork (Raca et al., ACM MMSys 2018 and 2020): a row is a
  sample of a drive, with ``Timestamp``, ``DL_bitrate`` and ``UL_bitrate`` (kbit/s), ``State``.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from fedsim.common.device_names import natural_key
from fedsim.common.errors import DataError, nearest, show_value
from fedsim.common.files import SEARCH_RULE
from fedsim.common.units import CLOCK_END_S
from fedsim.toolbox.worlds.trace_members import files_of, members
from fedsim.world.device_table import IDS

_PACKET_BYTES = 1500.0  # Mahimahi's traces have a line for each packet of this size (bytes)
_PACKET_STEP_S = 0.1  # length of the intervals over which rates of a packet file are averaged (s)
_SINGLE_ROW_S = 1.0  # length of a trace that has a single row (s)
_MOST_RATE = 1e15  # greatest rate (bytes/s)
_ROUNDING = 1e-9  # part of an interval that counts as a rounding error
_KBIT_S = 125.0  # a kbit/s, in bytes/s
_USUAL_COLUMNS = {
    "rate": (
        *("rate", "throughput", "Throughput", "bandwidth", "Bandwidth", "bitrate", "mbps", "Mbps"),
    ),
    "latency": ("latency", "Latency", "delay", "latency_ms"),
    "loss": ("loss", "Loss", "loss_rate", "plr"),
}
"""Quantity of a trace -> usual names of its column."""
_LARGEST = {"rate": _MOST_RATE, "latency": 1e4, "loss": 0.999}
"""Quantity of a trace -> largest value, in its base unit."""
_TIME_COLUMNS = (
    *("time", "Time", "timestamp", "Timestamp", "t", "seconds", "time_s", "time_ms", "elapsed"),
)
_DATE_FORMATS = ("%Y-%m-%d %H:%M:%S", "%Y.%m.%d_%H.%M.%S", "%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True)
class TraceOptions:
    """Settings for reading files of traces of links: quantity, columns, units and averaging.

    Attributes:
        key: the key of the scenario that names the file, for messages.
        quantity: the quantity that the trace records: ``rate``, ``latency`` or ``loss``.
        upward: whether the link carries messages to the server, not from it. If a table has rates
            of both directions, this selects the column of uploads.
        time_factor: factor that converts times without a unit to seconds.
        factor: factor that converts values without a unit to bytes/s, s or a share; None if the
            scenario gives no unit.
        time_column, value_column, device_column: names of columns; None for the usual names.
        every: time between two rows, in place of the times of the file (s); None to use the times
            of the file.
        average: length of the intervals over which values are averaged (s); None for values as
            they are recorded, and for 0.1 s in packet files.
        members: pattern of the names of files within a folder or an archive.
    """

    key: str
    quantity: str
    upward: bool
    time_factor: float
    factor: float | None
    time_column: str | None
    value_column: str | None
    device_column: str | None
    every: float | None
    average: float | None
    members: str


@dataclass(frozen=True)
class Recording:
    """Trace of a link as recorded in a file: its rates, latencies or losses over time.

    Attributes:
        name: name of the file. If the file has traces of several devices, it is ``FILE: DEVICE``,
            or the name of the device alone if ``TraceOptions.members`` is ``*``.
        times: time from which each value holds, until the next (s).
        values: the recorded rates (bytes/s), latencies (s), or shares of lost packets.
        end: time at which the last value ends (s).
    """

    name: str
    times: Sequence[float]
    values: Sequence[float]
    end: float


def read_recordings(path: Path, options: TraceOptions) -> tuple[str, list[Recording]]:
    """Read all traces of a file, a folder, or an archive (tar or zip).

    The result is cached until a file changes.

    Args:
        path: the file, folder or archive.
        options: how to read the files, such as columns and units.

    Returns:
        The name of the files' format, such as ``a table`` or ``Mahimahi's packets``, and the traces
        in natural order of their names (``2`` before ``10``).

    Raises:
        DataError: there is no such file, or a file is damaged, empty or of an unknown format.
    """
    try:
        stamp = tuple((str(file), file.stat().st_mtime_ns) for file in files_of(path))
    except FileNotFoundError:
        raise DataError(f"{options.key}: there is no file {str(path)!r}; {SEARCH_RULE}") from None
    except OSError as error:
        raise DataError(f"{options.key}: {str(path)!r} cannot be read: {error}") from None
    return _read_cached(path, stamp, options)


@lru_cache(maxsize=16)
def _read_cached(
    path: Path, stamp: tuple[tuple[str, int], ...], options: TraceOptions
) -> tuple[str, list[Recording]]:
    """Read all traces of a file, a folder or an archive; the results of equal calls are cached.

    Args:
        path: the file, folder or archive.
        stamp: path and time of the last change (ns) of each file. It is only a part of the cache's
            key, so that changed files are read again.
        options: how to read the files.

    Returns:
        The name of the files' format, and the traces in natural order of their names.
    """
    forms: dict[str, None] = {}  # names of formats, as an ordered set
    recordings: list[Recording] = []
    for name, content in members(path, options.members, options.key):
        form, file_recordings = _read_file(name, content, options)
        forms[form] = None
        recordings += file_recordings
    if not recordings:
        raise DataError(
            f"{options.key}: {str(path)!r} has no file whose name fits members = "
            f"{options.members!r}"
        )
    recordings.sort(key=lambda recording: natural_key(recording.name))
    return " and ".join(forms), recordings


class _File:
    """Lines of a file of traces, split into cells, with methods that parse cells.

    Args:
        name: name of the file.
        lines: number from 1 and cells of each line that is not empty.
        options: how to read the file, such as columns and units.
    """

    def __init__(
        self, name: str, lines: list[tuple[int, list[str]]], options: TraceOptions
    ) -> None:
        self.name = name
        self.lines = lines
        self.options = options

    def wrong(self, why: str) -> DataError:
        """Return an error whose message names the file, and ends in ``why``."""
        return DataError(f"{self.options.key}: {self.name!r} {why}")

    def wrong_line(self, line: int, why: str) -> DataError:
        """Return an error whose message names the file and the line, and ends in ``why``."""
        return DataError(f"{self.options.key}: line {line} of {self.name!r}: {why}")

    def number(self, line: int, cell: str, what: str, most: float) -> float:
        """Parse a number of 0 or more in a cell of the file.

        Args:
            line: number of the line, for error messages.
            cell: the text.
            what: name of the number, for error messages.
            most: largest allowed value.

        Raises:
            DataError: the text is no number, or the number is out of range.
        """
        try:
            value = float(cell)
        except ValueError:
            raise self.wrong_line(
                line, f"{what} is {show_value(cell)}; it must be a number"
            ) from None
        if not 0 <= value <= most:
            raise self.wrong_line(
                line, f"{what} is {show_value(cell)}; allowed is a number from 0 to {most:g}"
            )
        return value

    def time_s(self, line: int, cell: str) -> float:
        """Parse a cell with a time, and return it in seconds.

        Args:
            line: number of the line, for error messages.
            cell: a number in the unit of ``options``; or a date, whose seconds count from 1970
                (UTC).

        Raises:
            DataError: the cell is neither a number nor a date, or the number is out of range.
        """
        for form in _DATE_FORMATS:
            try:
                moment = datetime.strptime(cell, form).replace(tzinfo=UTC)
            except ValueError:
                continue
            return moment.timestamp()
        factor = self.options.time_factor
        return self.number(line, cell, "the time", CLOCK_END_S / factor) * factor

    def value(self, line: int, cell: str, factor: float) -> float:
        """Parse a cell with a rate, latency or loss, and return it in bytes/s, s or as a share.

        Args:
            line: number of the line, for error messages.
            cell: a number of 0 or more.
            factor: factor that converts the number to bytes/s, s or a share.

        Raises:
            DataError: the cell is no number, or out of range.
        """
        quantity = self.options.quantity
        return self.number(line, cell, f"the {quantity}", _LARGEST[quantity] / factor) * factor

    def recording(
        self, name: str, lines: Sequence[int], times: list[float], values: list[float]
    ) -> Recording:
        """Build the trace of a device from its rows, averaged if the options say so.

        Of rows with equal times the last row counts.

        Args:
            name: name of the trace.
            lines: number of each row's line in the file, for error messages.
            times: time of each row (s); not used if the options give the time between rows.
            values: value of each row (bytes/s, s, or share of lost packets).

        Raises:
            DataError: a time is before the time of the row above it, or all rates are 0.
        """
        every = self.options.every
        if every is not None:
            times = [row * every for row in range(len(times))]
        value_at: dict[float, float] = {}  # time -> value of the last row with this time
        last_time = -math.inf
        for line, time, value in zip(lines, times, values, strict=True):
            if time < last_time:
                raise self.wrong_line(
                    line,
                    f"the time {time:.15g} s comes after {last_time:.15g} s; times must ascend",
                )
            value_at[time] = value
            last_time = time
        if self.options.quantity == "rate" and not any(value_at.values()):
            raise self.wrong(f"has the trace {name!r}, which is 0 throughout; nothing would arrive")
        begins = [*value_at]
        # the last value holds as long as the one before it
        last_length_s = every or _SINGLE_ROW_S
        if len(begins) > 1:
            last_length_s = begins[-1] - begins[-2]
        whole = Recording(name, begins, [*value_at.values()], begins[-1] + last_length_s)
        if self.options.average is None:
            return whole
        return averaged(whole, self.options.average)


def averaged(recording: Recording, step: float) -> Recording:
    """Return a recording in which values are replaced by their means over equal time intervals.

    The last interval may be shorter.

    Args:
        recording: the recording.
        step: length of an interval (s).
    """
    begin = recording.times[0]
    count = max(1, math.ceil((recording.end - begin) / step - _ROUNDING))
    # an interval lasts from an edge to the next one
    edges = [begin + step * interval for interval in range(count)] + [recording.end]
    integrals = [0.0] * count  # value x time within each interval
    interval = 0  # index of the interval that contains ``since``
    ends = [*recording.times[1:], recording.end]
    for since, until, value in zip(recording.times, ends, recording.values, strict=True):
        while since < until:  # each step adds the part of the value in one interval
            while interval + 1 < count and edges[interval + 1] <= since:
                interval += 1
            part_end = min(until, edges[interval + 1])
            integrals[interval] += value * (part_end - since)
            since = part_end
    means = []
    for integral, (left, right) in zip(integrals, pairwise(edges), strict=True):
        means.append(integral / (right - left))
    return Recording(recording.name, edges[:-1], means, recording.end)


def _read_file(name: str, content: bytes, options: TraceOptions) -> tuple[str, list[Recording]]:
    """Recognise the format of a file of traces, and read its traces.

    Args:
        name: name of the file.
        content: the bytes of the file.
        options: how to read the file, such as columns and units.

    Returns:
        The name of the format, such as ``times and rates``, and the traces.

    Raises:
        DataError: the file is not text, is empty, or has an unknown format.
    """
    try:
        text = content.decode("utf-8-sig")
        is_csv = "," in text.partition("\n")[0]
        rows = csv.reader(io.StringIO(text)) if is_csv else map(str.split, text.splitlines())
        lines = [(line, [*map(str.strip, cells)]) for line, cells in enumerate(rows, 1)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{options.key}: {name!r} is no text: {error}") from None
    file = _File(name, [(line, cells) for line, cells in lines if any(cells)], options)
    if not file.lines:
        raise file.wrong("is empty")
    header = file.lines[0][1]
    if {"unit_id", "dtime"} <= {*header}:
        return "FCC's tests", _read_fcc(file)
    if {"Timestamp", "DL_bitrate"} <= {*header}:
        return "Irish drives", _read_irish(file)
    if not all(map(_is_number, header)):
        return "a table", _read_table(file)
    if len(header) == 1:
        return "Mahimahi's packets", [_read_packets(file)]
    if len(header) != 2:
        raise file.wrong(
            f"has {len(header)} columns and no header; allowed are lines of time and rate, a "
            "header with names, or Mahimahi's packets, a time (ms) in each line"
        )
    return "times and rates", [_read_pairs(file)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _required_factor(file: _File) -> float:
    factor = file.options.factor
    if factor is None:
        raise file.wrong("has bare rates; give their unit, such as rate = 'Mbit/s'")
    return factor


def _check_fixed_unit(file: _File, form: str) -> None:
    """Check that the scenario fits a format that has rates of a fixed unit.

    Args:
        file: the file.
        form: name of the format, such as ``a packet file``, for error messages.

    Raises:
        DataError: the scenario reads latencies or losses from the file, or gives a unit of rates.
    """
    if file.options.quantity != "rate":
        raise file.wrong(
            f"is {form}, of which rates alone are read; allowed are a table with a header, or lines "
            f"of time and {file.options.quantity}"
        )
    if file.options.factor is not None:
        raise file.wrong(f"is {form}, whose rates have a unit; leave 'rate' out")


def _read_pairs(file: _File) -> Recording:
    """Read a trace from lines of a time and a rate (or latency, or loss), without a header."""
    factor = _required_factor(file)
    times = []
    values = []
    for line, cells in file.lines:
        if len(cells) != 2:
            raise file.wrong_line(line, f"it has {len(cells)} cells; allowed are a time and a rate")
        times.append(file.time_s(line, cells[0]))
        values.append(file.value(line, cells[1], factor))
    return file.recording(file.name, [line for line, _ in file.lines], times, values)


def _read_packets(file: _File) -> Recording:
    """Read a trace from one of Mahimahi's packet files, with mean rates over intervals of 0.1 s.

    Each line is a time (ms) at which the link can carry 1500 bytes. A packet at t ms is counted in
    the first interval that ends at t or later. ``options.average`` replaces the 0.1 s.
    """
    _check_fixed_unit(file, "a packet file")
    if file.options.every is not None:
        raise file.wrong("is a packet file, whose lines are times; leave 'every' out")
    times = _packet_times(file)
    end = times[-1]
    step = file.options.average or _PACKET_STEP_S
    count = max(1, math.ceil(end / step - _ROUNDING))
    packets = [0] * count  # count of packets in each interval
    for time in times:
        interval = math.ceil(time / step - _ROUNDING) - 1
        packets[min(max(interval, 0), count - 1)] += 1  # a packet at time 0 is in interval 0
    begins = [interval * step for interval in range(count)]
    ends = [*begins[1:], end]
    rates = []
    for begin, until, packet_count in zip(begins, ends, packets, strict=True):
        rates.append(packet_count * _PACKET_BYTES / (until - begin))
    return Recording(file.name, begins, rates, end)


def _packet_times(file: _File) -> list[float]:
    """Parse the times of a packet file, one in each line, and return them in seconds.

    Raises:
        DataError: a line has other cells than a time, times do not ascend, or the last time is 0.
    """
    times: list[float] = []
    for line, cells in file.lines:
        if len(cells) != 1:
            raise file.wrong_line(line, f"it has {len(cells)} cells; allowed is a time (ms)")
        time_s = file.number(line, cells[0], "the time (ms)", 1e3 * CLOCK_END_S) / 1e3
        if times and time_s < times[-1]:
            raise file.wrong_line(line, f"{cells[0]} ms comes before the line above it")
        times.append(time_s)
    if times[-1] == 0:
        raise file.wrong("ends at 0 ms; the last time is the length of the trace")
    return times


def _column(file: _File, name: str | None, usual: Sequence[str], key: str) -> int:
    """Return the index of a column in the header of a file.

    Args:
        file: the file.
        name: name of the column in the scenario; None to look for a usual name.
        usual: the usual names, tried in order.
        key: the key by which the scenario names the column, for the error message.

    Raises:
        DataError: the header has no such column.
    """
    header = file.lines[0][1]
    names = usual if name is None else (name,)
    for column in names:
        if column in header:
            return header.index(column)
    text = f"no column {name!r}" if name else f"none of the columns {', '.join(usual)}"
    hint = nearest(name, header) if name else ""
    raise file.wrong(f"has {text}; it has {', '.join(header)}{hint}; {key} names it")


def _rows(file: _File) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each line below the header.

    Raises:
        DataError: the file has only a header, or a line has more or fewer cells than the header.
    """
    width = len(file.lines[0][1])
    if len(file.lines) == 1:
        raise file.wrong("has a header and no rows")
    for line, cells in file.lines[1:]:
        if len(cells) != width:
            raise file.wrong_line(line, f"it has {len(cells)} cells, and the header {width}")
        yield line, cells


@dataclass
class _Rows:
    """Rows of a trace in a file: number of the line, time (s) and value (bytes/s, s or share)."""

    lines: list[int]
    times: list[float]
    values: list[float]


def _name_recordings(file: _File, traces: dict[str, _Rows]) -> list[Recording]:
    """Build and name the recordings of a file that may have rows of several devices.

    Args:
        file: the file.
        traces: name of a device -> its rows; a file without a column of devices has one entry.
    """
    recordings = []
    for device, rows in traces.items():
        name = file.name
        if len(traces) > 1:
            name = device if file.options.members == "*" else f"{file.name}: {device}"
        recordings.append(file.recording(name, rows.lines, rows.times, rows.values))
    return recordings


def _read_table(file: _File) -> list[Recording]:
    """Read the traces of a table with a header: columns of time and value, and perhaps of devices.

    There is one trace for each device; without a column of devices, one trace in all.
    """
    options = file.options
    header = file.lines[0][1]
    factor = _required_factor(file)
    time_column = _column(file, options.time_column, _TIME_COLUMNS, "time_column")
    value_column = _column(
        file, options.value_column, _USUAL_COLUMNS[options.quantity], f"{options.quantity}_column"
    )
    device_column = None
    usual = [name for name in IDS if name and name in header]
    if options.device_column is not None:
        device_column = _column(file, options.device_column, (), "device_column")
    elif usual:
        device_column = header.index(usual[0])
    traces: dict[str, _Rows] = {}
    for line, cells in _rows(file):
        name = "" if device_column is None else cells[device_column]
        rows = traces.setdefault(name, _Rows([], [], []))
        rows.lines.append(line)
        rows.times.append(file.time_s(line, cells[time_column]))
        rows.values.append(file.value(line, cells[value_column], factor))
    return _name_recordings(file, traces)


def _read_fcc(file: _File) -> list[Recording]:
    """Read the traces of a table of the FCC's broadband tests, one for each measuring unit.

    Failed tests are left out. Of tests of a unit with equal times the last test counts.
    """
    _check_fixed_unit(file, "a table of the FCC")
    header = file.lines[0][1]
    unit_column = header.index("unit_id")
    time_column = header.index("dtime")
    rate_column = _column(file, file.options.value_column, ("bytes_sec",), "rate_column")
    passed_column = header.index("successes") if "successes" in header else None
    # unit -> time of a test (s) -> number of the line, and rate (bytes/s)
    tests: dict[str, dict[float, tuple[int, float]]] = {}
    for line, cells in _rows(file):
        if passed_column is not None and cells[passed_column] == "0":
            continue
        time_s = file.time_s(line, cells[time_column])
        tests.setdefault(cells[unit_column], {})[time_s] = (
            line,
            file.value(line, cells[rate_column], 1.0),
        )
    if not tests:
        raise file.wrong("has no test that succeeded")
    traces: dict[str, _Rows] = {}
    for unit, test_at in tests.items():
        rows = _Rows([], [], [])
        for time_s in sorted(test_at):  # a file may have its tests in any order
            line, rate = test_at[time_s]
            rows.lines.append(line)
            rows.times.append(time_s)
            rows.values.append(rate)
        traces[unit] = rows
    return _name_recordings(file, traces)


def _read_irish(file: _File) -> list[Recording]:
    """Read the trace of a drive in the Irish 4G and 5G data sets, in a list of length 1.

    A rate is the mean of the samples with the same time (a second). Samples in which the phone was
    idle, and samples without a rate, are left out.
    """
    _check_fixed_unit(file, "a table of the Irish drives")
    header = file.lines[0][1]
    usual_name = "UL_bitrate" if file.options.upward else "DL_bitrate"
    rate_column = _column(file, file.options.value_column, (usual_name,), "rate_column")
    time_column = header.index("Timestamp")
    state_column = header.index("State") if "State" in header else None
    # time (s) -> number of the line, and rate (bytes/s), of each sample
    samples: dict[float, list[tuple[int, float]]] = {}
    for line, cells in _rows(file):
        is_idle = state_column is not None and cells[state_column] == "I"
        has_rate = cells[rate_column] != "-"
        if is_idle or not has_rate:
            continue
        value = file.value(line, cells[rate_column], _KBIT_S)
        samples.setdefault(file.time_s(line, cells[time_column]), []).append((line, value))
    if not samples:
        raise file.wrong("has no sample in which something was transferred (State 'D')")
    rows = _Rows([], [], [])
    for time_s, entries in samples.items():
        rows.lines.append(entries[0][0])  # the first line, for error messages
        rows.times.append(time_s)
        rows.values.append(sum([value for _, value in entries]) / len(entries))
    return [file.recording(file.name, rows.lines, rows.times, rows.values)]
