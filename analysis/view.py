"""The part of a run that a timeline shows: a span of time, and devices with a lane each."""

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from fedsim.analysis import style
from fedsim.analysis.style import NothingToDrawError, PictureError, choose_evenly
from fedsim.common.arrays import Ints
from fedsim.common.errors import nearest
from fedsim.lab.reading.activities import Activities, Mark, MessageEnd, RoundPeriod, TimeSpan
from fedsim.lab.reading.attempts import Attempt, Attempts
from fedsim.lab.reading.history import History

ORDERS = {"speed": "fastest on top", "first": "first at work on top", "number": "by number"}
Interval = tuple[float, float]

MOST_LANES = 1500  # greatest count of lanes; a picture has fewer pixels in its height
_GAPPED_LANES = 150

DeviceSpan = TypeVar("DeviceSpan", bound=TimeSpan)


class View:
    """Part of a run within a span of time, as ``draw_timeline`` draws it.

    Each device that worked in the span has a lane, which is a row of the picture. If the
    availability of only some devices is known, the other devices have no lane. Records at
    the time of the span's start are not within the span, unless this time is 0.

    Args:
        history: the run's records.
        span: from and to (simulated s); by default the whole run.
        most: the largest number of lanes; of more devices, evenly spread ones are shown.
        order: ``speed`` (fastest on top), ``first`` (first at work on top) or ``number``.

    Attributes:
        history: the run's records.
        activities: activities of the whole run, within the span or not.
        start, end, span: start, end and length of the span (simulated s).
        order: the order of the lanes: ``speed``, ``first`` or ``number``.
        unit: unit of the time axis.
        half_lane: half the height of a bar, as a share of a lane's height.
        devices: the devices shown, from the top lane down.
        lanes: index of the lane by shown device, 0 at the top.
        at_work: count of devices that worked or exchanged messages within the span, shown or not.
        all_steps: all steps of the run.
        steps: steps of the shown devices that overlap the span.
        attempts: tasks of the shown devices, within the span or not.
        messages: messages outside of tasks that overlap the span: an entry for each shown device
            that sends or receives the message.
        task_ends: marks of tasks of the shown devices that ended within the span.
        presence: spans of time in which the shown devices were present.
        absences: spans of time in which the shown devices could not be reached; None if
            availability is unknown.
        rounds: rounds that ended within the span.
        act_times: times within the span at which devices or the network changed, such as the rate
            of a link (s).

    Raises:
        PictureError: ``order``, ``span`` or ``most`` is not allowed.
        NothingToDrawError: no device worked within the span.
    """

    def __init__(
        self,
        history: History,
        span: Interval | None = None,
        most: int = MOST_LANES,
        order: str = "speed",
    ) -> None:
        if span is None:
            span = (0.0, history.end)
        start, end = span
        _check_options(start, end, most, order)
        self.history = history
        self.activities = Activities(history)
        self.start = start
        self.end = end
        self.span = end - start
        self.order = order
        # a span from time 0 includes steps that end at time 0
        self._since = start if start > 0 else -np.inf

        attempts = Attempts(self.activities)
        self.all_steps = attempts.steps
        steps = [step for step in self.all_steps if self._overlaps(step)]
        messages = [end for end in self.activities.message_ends if self._overlaps(end)]
        if not steps and not messages:
            raise NothingToDrawError(
                f"no device worked between {start:g} s and {end:g} s, so there is no timeline "
                "to draw"
            )
        at_work = _order_devices([*steps, *messages], history, order)
        self.at_work = len(at_work)
        self.devices = _choose_devices(at_work, history.devices_with_phases, most)
        self.lanes = {device: lane for lane, device in enumerate(self.devices.tolist())}
        self.half_lane = 0.4 if len(self.devices) <= _GAPPED_LANES else 0.5
        self.unit = style.unit_for(self.span, style.TIMES)

        self.steps = self.in_lanes(steps)
        self.presence = self.in_lanes(self.activities.presence)
        self.absences: list[TimeSpan] | None = None
        if len(history.devices_with_phases):
            self.absences = self.in_lanes(self.activities.absences)
        self.attempts: list[Attempt] = [
            attempt for attempt in attempts.all if attempt.device in self.lanes
        ]
        self.messages: list[MessageEnd] = self.in_lanes(messages)

    @cached_property
    def task_ends(self) -> list[Mark]:
        return [mark for mark in self.activities.marks if self._has_task_end(mark)]

    @cached_property
    def rounds(self) -> list[RoundPeriod]:
        return [entry for entry in self.activities.rounds if self._includes(entry.end)]

    @cached_property
    def act_times(self) -> list[float]:
        return [time for time in self.activities.act_times if self._includes(time)]

    def in_lanes(self, spans: Sequence[DeviceSpan]) -> list[DeviceSpan]:
        """Return the spans of time (such as steps) that belong to devices with a lane."""
        return [span for span in spans if span.device in self.lanes]

    def _overlaps(self, span: TimeSpan) -> bool:
        return span.end > self._since and span.start < self.end

    def _includes(self, time: float) -> bool:
        return self._since < time <= self.end

    def _has_task_end(self, mark: Mark) -> bool:
        return mark.kind == "task-end" and mark.device in self.lanes and self._includes(mark.time)


def _check_options(start: float, end: float, most: int, order: str) -> None:
    """Raise an error, as described in ``View``, if an option is not allowed."""
    if order not in ORDERS:
        raise PictureError(
            f"the order is {order!r}; allowed are {', '.join(ORDERS)}{nearest(order, ORDERS)}"
        )
    if most < 1:
        raise PictureError(f"the number of devices is {most}; allowed is 1 or more")
    if 0 <= start == end:
        raise NothingToDrawError(
            f"no simulated time passes from {start:g} s to {end:g} s, so there is no "
            "timeline to draw"
        )
    if not 0 <= start < end:
        raise PictureError(
            f"the window is {start:g} s to {end:g} s; it must begin at 0 s or later and "
            "end after that"
        )


def _choose_devices(at_work: Ints, with_phases: Ints, most: int) -> Ints:
    """Return the devices that get a lane, evenly spread over the devices that may get one.

    Args:
        at_work: the devices that worked, from the top lane down.
        with_phases: devices whose availability is known; only they get a lane, unless it is empty.
        most: greatest count of lanes.
    """
    candidates = at_work[np.isin(at_work, with_phases)] if len(with_phases) else at_work
    return candidates[choose_evenly(len(candidates), most)]


def _order_devices(spans: Sequence[TimeSpan], history: History, order: str) -> Ints:
    """Return the devices of ``spans`` in the given order, from the top lane down, int64 [n]."""
    first_starts: dict[int, float] = {}  # device -> start of its first span (s)
    for span in spans:
        first_starts[span.device] = min(span.start, first_starts.get(span.device, np.inf))
    devices = np.array(sorted(first_starts), dtype=np.int64)
    if order == "number":
        return devices
    if order == "speed":
        keys = -history.population["speed"].loc[devices.tolist()].to_numpy(float)
    else:
        keys = np.array([first_starts[device] for device in devices.tolist()])
    return devices[np.argsort(keys, kind="stable")]


def span_of_rounds(history: History, first: int, stop: int) -> Interval:
    """Return start and end (simulated s) of the rounds ``first`` to ``stop - 1``.

    Args:
        history: the run's records.
        first: index of the first round, from 0.
        stop: index of the round after the last round.

    Raises:
        PictureError: the run has no finished round from ``first`` to ``stop - 1``.
    """
    numbers = history.rounds["round"]
    ends = history.rounds["end"]
    inside = ends[(numbers >= first) & (numbers < stop)]
    if inside.empty:
        extent = f"rounds 0 to {numbers.max()}" if len(numbers) else "no finished round"
        raise PictureError(f"rounds {first}:{stop} are not in this run, which has {extent}")
    earlier = ends[numbers < first]
    start = 0.0 if earlier.empty else float(earlier.max())
    return start, float(inside.max())
