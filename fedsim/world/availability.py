"""Availability of devices, as on phases (the device is available) and off phases.

The phases of a device are a pure function of the seed and the device. ``span(device, time)`` may be
called for any time in any order, and its result never depends on earlier calls.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Protocol

import numpy as np

from fedsim.common.arrays import AnyArray, Flags, Floats, Ints
from fedsim.common.errors import show_value
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, find_wrong_entry, returns
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import PositiveSeconds
from fedsim.world.calendar import Calendar
from fedsim.world.phases import Phases, Span

_GOLDEN = (5**0.5 - 1) / 2
_KEYED = "streams.generator('world/NAME')"
_SPANS = "an array of bools, and one of ends that are later than the times (s)"


def _find_wrong_span(span: Span, paths: object, device: int, time: float) -> str:
    is_right = isinstance(span.on, bool | np.bool_) and span.start <= time < span.end
    return "" if is_right else f"{show_value(span)} for {time!r} s"


def _find_wrong_return(when: float, paths: object, device: int, time: float) -> str:
    return "" if when >= time else f"{show_value(when)} for {time!r} s"


def _find_wrong_flags(flags: AnyArray, paths: object, devices: Ints, time: float) -> str:
    is_right = flags.shape == devices.shape and flags.dtype == np.bool_
    return "" if is_right else show_value(flags)


def _find_wrong_spans(
    spans: tuple[AnyArray, AnyArray], paths: object, devices: Ints, times: Floats
) -> str:
    """Describe the first mistake in the result of ``Availability.spans``; empty if it is right."""
    on, ends = spans  # whether each device is on at its time in ``times``, and end of its phase (s)
    mistake = _find_wrong_flags(on, paths, devices, 0.0)
    if mistake:
        return mistake
    mistake = find_wrong_entry(ends, len(devices), find_outside(infinite=True))
    if mistake:
        return mistake
    wrong_positions = np.flatnonzero(ends <= times)  # a phase must end after the time in it
    if not len(wrong_positions):
        return ""
    position = wrong_positions[0]
    return f"an end at {ends[position]} s for {times[position]} s"


class Availability(Protocol):
    """Base of objects that compute when each device of a run is on (can be reached) or off.

    An on or off phase is an interval of simulated time. A class has to define ``span``. All other
    methods have slower defaults that call ``span``. A run calls ``on`` when a strategy queries many
    devices, and ``spans`` when it writes the run folder.

    Example:
        >>> import numpy as np
        >>> from fedsim.plugin import Availability, Span
        >>> class Shifts(Availability):
        ...     def span(self, device, time):
        ...         count = time // 60.0
        ...         return Span(count % 2 == device % 2, 60.0 * count, 60.0 * (count + 1))
        >>> paths = Shifts()
        >>> paths.next_on(1, 10.0)
        60.0
        >>> paths.on(np.array([0, 1]), 10.0).tolist()
        [True, False]
    """

    @abstractmethod
    @returns("a Span that begins at that time or before, and ends later", _find_wrong_span)
    def span(self, device: int, time: float) -> Span:
        """Return the on or off phase in which a device is at a time.

        Args:
            device: index of the device.
            time: simulated time (s).

        Returns:
            Whether the device is on, and begin and end of this phase (s). The phase begins at
            ``time`` or before, and ends later.
        """

    @returns("that time (s) or a later one", _find_wrong_return)
    def next_on(self, device: int, time: float) -> float:
        """Return the first time (s), not before ``time``, at which a device is on.

        Args:
            device: index of the device.
            time: simulated time (s).

        Returns:
            ``time`` itself if the device is on then; infinity if it is never on again.
        """
        while time < math.inf:
            span = self.span(device, time)
            if span.on:
                return time
            time = span.end
        return time

    @returns("an array of bools, one for each device", _find_wrong_flags)
    def on(self, devices: Ints, time: float) -> Flags:
        """Return whether each of several devices is on at a time.

        Args:
            devices: indices of different devices, int64 [n].
            time: the time (s).

        Returns:
            Whether each device is on, bool [n].
        """
        return np.array([self.span(device, time).on for device in devices.tolist()], dtype=np.bool_)

    @returns(_SPANS, _find_wrong_spans)
    def spans(self, devices: Ints, times: Floats) -> tuple[Flags, Floats]:
        """Return for several devices, each at its own time, whether it is on and until when.

        Args:
            devices: indices of devices, all different, int64 [n].
            times: a time for each device (s), float64 [n].

        Returns:
            Whether each device is on, bool [n], and the end of its phase (s), float64 [n]; infinity
            for a phase that does not end.
        """
        return one_by_one(self.span)(devices, times)


class AvailabilityModel(Spec):
    """Base of the scenario's models of when devices can be reached (``population.availability``).

    A model defines ``build``, or ``build_on`` if it depends on the time of day.
    """

    kind: str

    @returns(allowed_draws=_KEYED, guarded=True)
    def build(self, streams: Streams, devices: int, root: Path | None) -> Availability:
        """Build the availability of all devices.

        Args:
            streams: random streams of the run. Draw only from streams named ``world/...``.
            devices: number of devices.
            root: folder of data files; None for the working directory.
        """
        raise NotImplementedError

    @returns(allowed_draws=_KEYED, guarded=True)
    def build_on(
        self, streams: Streams, devices: int, root: Path | None, calendar: Calendar
    ) -> Availability:
        """Build the availability of all devices from their local times; a run calls this method.

        By default it calls ``build``, without the local times.

        Args:
            streams: random streams of the run. Draw only from streams named ``world/...``.
            devices: number of devices.
            root: folder of data files; None for the working directory.
            calendar: local times of the devices.
        """
        return self.build(streams, devices, root)


class AlwaysOn(AvailabilityModel):
    """Availability model in which every device can be reached at any time."""

    kind: Literal["always"] = "always"

    def build(self, streams: Streams, devices: int, root: Path | None) -> "AlwaysOn":
        return self

    def span(self, device: int, time: float) -> Span:
        return Span(True, 0.0, math.inf)

    def next_on(self, device: int, time: float) -> float:
        return time

    def on(self, devices: Ints, time: float) -> Flags:
        return np.ones(len(devices), dtype=np.bool_)

    def spans(self, devices: Ints, times: Floats) -> tuple[Flags, Floats]:
        return np.ones(len(devices), dtype=np.bool_), np.full(len(devices), math.inf)


class Renewal(AvailabilityModel):
    """Availability model in which each device is alternately on and off.

    The lengths of these phases are exponential random variables. Devices are independent of each
    other.

    Attributes:
        mean_on, mean_off: mean length of the phases in which a device is on, and off (s).
    """

    kind: Literal["renewal"] = "renewal"
    mean_on: PositiveSeconds
    mean_off: PositiveSeconds

    def build(self, streams: Streams, devices: int, root: Path | None) -> Phases:
        return Phases(streams, "world/availability", self.mean_on, self.mean_off, devices)


_TOOLS = "fedsim.toolbox.worlds.availability"
_TOOLBOX_KINDS = {
    "diurnal": (
        f"{_TOOLS}:Diurnal",
        "the share of devices that are on follows the local hour, as a sinusoid",
    ),
    "intervals": (f"{_TOOLS}:Intervals", "on from 'start' to 'end', by a CSV or Parquet file"),
    "flash": (
        f"{_TOOLS}:Flash",
        "phones as FLASH recorded them: on while idle, charging and on Wi-Fi",
    ),
}
_CORE_KINDS = Registry.of("availability", AlwaysOn, Renewal).known
_BASE = "fedsim.world.availability:AvailabilityModel"
_KEY = "population.availability"
AVAILABILITIES = Registry("availability", _BASE, {**_CORE_KINDS, **_TOOLBOX_KINDS}, key=_KEY)
AvailabilitySpec = Annotated[AvailabilityModel, KindField(AVAILABILITIES)]

Spans = Callable[[Ints, Floats], tuple[Flags, Floats]]
"""Type of ``Availability.spans``."""


def one_by_one(span: Callable[[int, float], Span]) -> Spans:
    """Make ``Availability.spans``, a function of several devices, from a function of one device.

    Args:
        span: function of a device's index and a time (s) that returns the device's phase at this
            time.

    Returns:
        Function of several devices, int64 [n], and a time for each (s), float64 [n]. It calls
        ``span`` for each device, and returns arrays [n]: whether the device is on, and until when
        (s).
    """

    def spans(devices: Ints, times: Floats) -> tuple[Flags, Floats]:
        pairs = zip(devices.tolist(), times.tolist(), strict=True)
        phases = [span(device, time) for device, time in pairs]
        on = np.array([phase.on for phase in phases], dtype=np.bool_)
        ends = np.array([phase.end for phase in phases], dtype=np.float64)
        return on, ends

    return spans


def _spread_evenly(devices: Ints) -> Ints:
    """Order devices so that the first n are spread evenly over all devices, for any n.

    Devices are sorted by the multiples of the golden ratio, modulo 1.
    """
    return devices[np.argsort(np.arange(len(devices)) * _GOLDEN % 1, kind="stable")]


def changes(spans: Spans, devices: Ints, end: float, most: int) -> dict[str, AnyArray]:
    """Return a table of each device's state (on or off) at 0 s and of its changes up to a time.

    Rows are ordered by device and time. The run folder stores this table.

    Args:
        spans: method ``spans`` of the run's ``Availability``.
        devices: indices of the devices, all different, int64 [n].
        end: last time of the table (s).
        most: upper bound of the count of rows. If all devices together have more rows, some devices
            are left out. They are evenly spread over ``devices``.

    Returns:
        Columns ``device`` int64, ``time`` (s) float64 and ``on`` bool; [rows] each.
    """
    count = len(devices)
    devices = _spread_evenly(devices)
    time = np.zeros(count)  # begin of the next phase of each device (s)
    last_state = np.full(count, -1)  # 0 off, 1 on, -1 before the first row
    row_counts = np.zeros(count, dtype=np.int64)
    # columns in parts, a part for each pass: position of a row's device in ``devices``, time, state
    positions = [np.empty(0, dtype=np.int64)]
    times = [np.empty(0)]
    states = [np.empty(0, dtype=np.bool_)]
    complete_count = count  # the rows of the first ``complete_count`` devices are within ``most``
    unfinished = np.arange(count)  # positions of devices whose rows do not reach ``end`` yet
    while len(unfinished):  # each pass takes one phase of each unfinished device
        now = time[unfinished]
        on, until = spans(devices[unfinished], now)
        is_change = last_state[unfinished] != on  # false for an off phase after an off phase
        positions.append(unfinished[is_change])
        times.append(now[is_change])
        states.append(on[is_change])
        last_state[unfinished] = on
        time[unfinished] = until
        row_counts[unfinished] += is_change
        complete_count = int(np.searchsorted(np.cumsum(row_counts), most, side="right"))
        # Without ``now < until`` the loop would not end if a phase of a user's model ends when it
        # begins.
        unfinished = unfinished[(now < until) & (until <= end) & (unfinished < complete_count)]
    # rows of the devices that are complete, sorted by device; a stable sort keeps the order of time
    position_of_row = np.concatenate(positions)
    rows = np.flatnonzero(position_of_row < complete_count)
    rows = rows[np.argsort(devices[position_of_row[rows]], kind="stable")]
    return {
        "device": devices[position_of_row[rows]],
        "time": np.concatenate(times)[rows],
        "on": np.concatenate(states)[rows],
    }
