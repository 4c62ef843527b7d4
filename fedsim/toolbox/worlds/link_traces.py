"""Kind ``trace`` of rates, of latencies and of losses of links, which follow recorded traces."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from fedsim.common.errors import ScenarioError
from fedsim.common.files import find_file
from fedsim.common.notes import note
from fedsim.common.streams import Streams
from fedsim.common.units import BytesPerSecond, PositiveSeconds, Seconds, unit_factor
from fedsim.toolbox.worlds.trace_files import Recording, TraceOptions, read_recordings
from fedsim.world.network.traced import TracedRate
from fedsim.world.network.traces import Assignment, StepTrace

_LINKS = "world/link-trace"


class _FileTrace(TracedRate):
    """Base of the kinds ``trace``, which read rates, latencies or losses of links from files.

    A trace is a recording of such values over time. The keys say how to read the files, and which
    link gets which trace.

    Attributes:
        file: the file, folder or archive; a relative path starts from ``data.root``, else the
            working directory, else ``$FEDSIM_DATA``.
        members: pattern of the names of the files within a folder or archive, such as
            ``"*driving*"``.
        time: unit of times that are bare numbers.
        time_column: the column of times of a table; None: a usual name, such as ``time``.
        device_column: the column of a table that names the device of each row; None: a usual name,
            such as ``device``, if the table has one.
        every: time between two rows, in place of the times of the file.
        average: length of the time intervals in which values are replaced by their mean, which
            preserves their integral; None: values as they are recorded, and 100 ms for packet
            files.
        ends: ``loop``: a trace repeats after its end; ``hold``: its last value stays for ever.
        starts: position of a link in its trace at simulated time 0: ``random``, drawn for each
            link; ``begin``, the begin of the trace. The rates, latencies and losses of a device use
            the same draw.
        deals: assignment of traces to links: ``drawn``, each link draws a trace; ``in-turn``, link
            i has trace i modulo the count of traces, in order of names; ``own``, as ``in-turn``,
            but the counts of traces and links must be equal. The rates, latencies and losses of a
            device use the same draw.
    """

    kind: Literal["trace"] = "trace"
    file: str
    members: str = Field(default="*", min_length=1)
    time: str = "s"
    time_column: str | None = None
    device_column: str | None = None
    every: PositiveSeconds | None = None
    average: PositiveSeconds | None = None
    ends: Literal["loop", "hold"] = "loop"
    starts: Literal["random", "begin"] = "random"
    deals: Literal["drawn", "in-turn", "own"] = "drawn"

    _quantity: ClassVar[str]

    @field_validator("time")
    @classmethod
    def _is_unit_of_time(cls, value: str) -> str:
        return _checked_unit(value, Seconds)

    def _unit_factor(self) -> float | None:
        """Return the factor that converts bare numbers of the file to bytes/s, s or a share.

        Returns:
            The factor; None if the scenario gives no unit.
        """
        raise NotImplementedError

    def _read(self, key: str, root: Path | None) -> list[StepTrace]:
        """Read the traces of the file, and print a note on them.

        Args:
            key: the key of the scenario that has this kind, such as ``network.device.up``; its end
                shows the direction of the links.
            root: ``data.root``, or None.
        """
        # the link by which an edge server receives counts as a link for uploads
        upward = key.endswith(("up", "receive"))
        options = TraceOptions(
            key=key,
            quantity=self._quantity,
            upward=upward,
            time_factor=unit_factor(self.time, Seconds),
            factor=self._unit_factor(),
            time_column=self.time_column,
            value_column=getattr(self, f"{self._quantity}_column"),
            device_column=self.device_column,
            every=self.every,
            average=self.average,
            members=self.members,
        )
        file_format, recordings = read_recordings(find_file(self.file, root), options)
        traces = [self._step_trace(recording) for recording in recordings]
        note(f"{key} from {self.file!r}: {_describe(file_format, traces, self._quantity)}")
        return traces

    def _step_trace(self, recording: Recording) -> StepTrace:
        return StepTrace(
            recording.name,
            recording.times,
            recording.values,
            recording.end,
            loops=self.ends == "loop",
        )

    def assign(
        self, key: str, streams: Streams, links: int, root: Path | None, shared: str = ""
    ) -> Assignment:
        """Read the traces, and return the rule that assigns one to each link and chooses its start.

        With random traces or starts, each group of shared links, named ``shared``, has its own
        random stream.
        """
        traces = self._read(key, root)
        if self.deals == "own" and len(traces) != links:
            raise ScenarioError(
                f"{key}.deals is 'own', and {self.file!r} has {len(traces)} traces for {links} "
                "links; allowed is one a link, or 'drawn' or 'in-turn'"
            )
        return Assignment(
            traces,
            streams,
            is_drawn=self.deals == "drawn",
            random_start=self.starts == "random",
            purpose=f"{_LINKS}/{shared}" if shared else _LINKS,
        )


class LinkTrace(_FileTrace):
    """Rates over time from files of bandwidth or throughput traces.

    A file has one trace, or one for each device; a folder or an archive (tar, zip) has several such
    files. The format of a file is recognised: lines of a time and a rate (Lumos5G), a CSV with a
    header, Mahimahi's packet files, the FCC's ``curr_httpgetmt.csv``, or the CSVs of the Irish 4G
    and 5G drives. The first time of a trace is its begin. Each rate lasts until the next time; the
    last rate lasts as long as the rate before it. While a rate is 0, transfers over the link wait.

    Attributes:
        rate: unit of rates that are bare numbers, such as ``"Mbit/s"``. Packet files and the tables
            of the FCC and of the Irish drives have fixed units.
        rate_column: the column of rates of a table; None: a usual name, such as ``throughput`` or
            ``DL_bitrate``.
    """

    rate: str | None = None
    rate_column: str | None = None

    _quantity = "rate"

    @field_validator("rate")
    @classmethod
    def _is_unit_of_rate(cls, value: str | None) -> str | None:
        return None if value is None else _checked_unit(value, BytesPerSecond)

    def _unit_factor(self) -> float | None:
        return None if self.rate is None else unit_factor(self.rate, BytesPerSecond)


class LatencyTrace(_FileTrace):
    """Latencies over time from files.

    Allowed if senders have congestion windows (``protocol = { kind = "tcp", model = "window" }``).
    A file has lines of a time and a latency, or a table with a header.

    Attributes:
        latency: unit of latencies that are bare numbers.
        latency_column: the column of latencies of a table; None: a usual name, such as ``latency``.
    """

    latency: str = "ms"
    latency_column: str | None = None

    _quantity = "latency"

    @field_validator("latency")
    @classmethod
    def _is_unit_of_latency(cls, value: str) -> str:
        return _checked_unit(value, Seconds)

    def _unit_factor(self) -> float:
        return unit_factor(self.latency, Seconds)


class LossTrace(_FileTrace):
    """Shares of lost packets over time from files.

    Allowed if senders have congestion windows (``protocol = { kind = "tcp", model = "window" }``).
    A file has lines of a time and a loss, or a table with a header.

    Attributes:
        loss: unit of losses: ``share``, from 0 to 1; or ``%``.
        loss_column: the column of losses of a table; None: a usual name, such as ``loss``.
    """

    loss: Literal["share", "%"] = "share"
    loss_column: str | None = None

    _quantity = "loss"

    def _unit_factor(self) -> float:
        return 1.0 if self.loss == "share" else 0.01


def _checked_unit(value: str, kind: object) -> str:
    try:
        unit_factor(value, kind)
    except ValueError as error:
        raise PydanticCustomError("unit", "{why}", {"why": str(error)}) from None
    return value


_NOTE_UNITS = {"rate": (8e-6, " Mbit/s"), "latency": (1e3, " ms"), "loss": (100.0, " %")}
"""Quantity -> factor and unit in which notes show it."""


def _describe(form: str, traces: list[StepTrace], quantity: str) -> str:
    """Return a line for the user on traces: count, lengths, means, and whether rates are 0.

    Args:
        form: name of the file's format, such as ``a table``.
        traces: the traces.
        quantity: ``rate``, ``latency`` or ``loss``.
    """
    factor, unit = _NOTE_UNITS[quantity]
    count = len(traces)
    plural = "s" if count > 1 else ""
    means = np.array([trace.mean for trace in traces])
    lengths = np.array([trace.length for trace in traces])
    text = (
        f"{count} trace{plural} ({form}), {lengths.min():.6g} to "
        f"{lengths.max():.6g} s long, means {means.min() * factor:.4g} to "
        f"{means.max() * factor:.4g}{unit}"
    )
    if quantity != "rate" or not any(0.0 in trace.values for trace in traces):
        return text
    stalled = sum(0.0 in trace.values for trace in traces)
    verb = "are" if stalled > 1 else "is"
    text += f"; {stalled} of them {verb} 0 for a while"
    stay_at_0 = sum(not trace.loops and trace.values[-1] == 0 for trace in traces)
    if stay_at_0:
        ends = "their ends" if stay_at_0 > 1 else "its end"
        text += f", and {stay_at_0} from {ends} on for ever"
    return text
