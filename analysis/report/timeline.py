"""The interactive timeline of the page: arrays for ``lanes.js``, and controls.

Each lane is a device, with its steps in order of time. For a step, the arrays have the gap to the
step before and the step's length, in ticks (the unit of time). These are small integers, which
compress well.
"""

import html
import math
from collections.abc import Iterable, Sequence
from string import Template
from typing import NamedTuple, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsim.analysis import palette, style
from fedsim.analysis.report.markup import Markup, asset, el
from fedsim.analysis.strips import capacity, concurrency
from fedsim.analysis.timeline import critical_steps
from fedsim.common.arrays import AnyArray, Ints
from fedsim.common.harmless import harmless
from fedsim.lab.reading.activities import Activities, MessageEnd, StepSpan, TimeSpan
from fedsim.lab.reading.attempts import PRE_TRAINING, Attempts
from fedsim.lab.reading.history import MARKS, NO_GROUP, History
from fedsim.lab.trackers.link_load import link_load, peer_load, thin_out
from fedsim.records.folder import AVAILABILITY
from fedsim.records.ledger import has_no_server
from fedsim.records.reading import RunFolder

OUTCOMES = tuple(palette.OUTCOMES)
MARKED = (*MARKS, "split")  # kinds of marks; the column ``mark_kind`` has indices of this tuple
_OUTCOME_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_TICK_S = 1e-4  # usual length of a tick (s), as precise as a time on the screen
_LEAST_TICKS = 2**20  # least count of ticks in a run; a short run has shorter ticks
# greatest count of ticks in a run, so that times fit into 32 bits; a long run has longer ticks
_MOST_TICKS = 2**31
_MOST_MESSAGES = 20_000  # if there are more messages outside of tasks, a part of them is shown
_POINTS = 16384  # points of a curve, at most: far more than pixels, so that readers can zoom in
# kind of step -> names of the fields of its record with the work done and the whole work
_AMOUNTS = {
    "train": ("epochs", "asked"),
    PRE_TRAINING: ("epochs", "asked"),
    "evaluate": ("models", "models"),
    "download": ("delivered", "bytes"),
    "upload": ("delivered", "bytes"),
}

Columns = dict[str, AnyArray]
LaneSpan = TypeVar("LaneSpan", bound=TimeSpan)


class TimelineHeader(TypedDict):
    """Values about a run, as JSON in the page, for the script that draws the run's timeline.

    Attributes:
        tick: length of a tick (s), the unit of all times in the timeline's columns.
        end: end of the run (ticks).
        population: count of devices.
        worked: count of devices that worked.
        groups: background colour of each group, by the group's index as text.
        knows_away: whether the run recorded the times at which devices were unreachable.
        capacity: capacity of the server's link, ``down`` and ``up`` (bytes/s); None if unlimited.
        evaluated: whether any round has an accuracy.
        endpoints: names of the other endpoints of devices' messages. The column
            ``message_other`` has indices of this list.
        without_server: whether devices exchange messages, and none with the server.
        clock: name of the run's time, ``simulated time`` or ``measured time``.
        round_word: noun for a round: ``round``, or ``version`` of an asynchronous server's model.
        is_done: whether the run is done; otherwise its open tasks may still be useful.
        loses_edges: whether an edge server failed in the run.
    """

    tick: float
    end: int
    population: int
    worked: int
    groups: dict[str, str]
    knows_away: bool
    capacity: dict[str, float | None]
    evaluated: bool
    endpoints: tuple[str, ...]
    without_server: bool
    clock: str
    round_word: str
    is_done: bool
    loses_edges: bool


class TimelineData(NamedTuple):
    """Data of a run's timeline on the page.

    Attributes:
        header: values about the run.
        columns: name -> array with a single dimension, such as the start of each step.
        kinds: kinds of the run's steps. The column ``step`` has indices of this list.
    """

    header: TimelineHeader
    columns: Columns
    kinds: tuple[str, ...]


def read_timeline(run: RunFolder, most_lanes: int, most_steps: int) -> TimelineData:
    """Read the timeline of a run: each device has a lane (row) with the steps of its tasks.

    Args:
        run: the run.
        most_lanes: greatest count of lanes.
        most_steps: greatest count of steps, approximately.

    Returns:
        The timeline of all devices. If a limit is exceeded, it has some of the devices that worked,
        evenly spread by ID.
    """
    columns = _ColumnsOfLanes(run, most_lanes, most_steps)
    arrays = columns.arrays()
    header: TimelineHeader = {
        "tick": columns.tick,
        "end": round(columns.history.end / columns.tick),
        "population": run.population,
        "worked": len({step.device for step in columns.activities.steps}),
        "groups": {str(group): palette.group_tint(group) for group in columns.history.groups},
        "knows_away": run.has(AVAILABILITY),
        "capacity": capacity(run),
        "evaluated": bool(np.isfinite(arrays["round_accuracy"]).any()),
        "endpoints": columns.endpoints,
        "without_server": has_no_server(run.summary["bytes"]),
        "clock": run.clock,
        "round_word": run.round_word,
        "is_done": run.is_done,
        "loses_edges": columns.history.loses_edges,
    }
    return TimelineData(header, arrays, columns.kinds)


class _ColumnsOfLanes:
    """Builder of the arrays of a run's timeline.

    Attributes:
        tick: length of a tick (s).
        kinds: kinds of the run's steps, in the order in which they are drawn.
        devices: device of each lane, int64 [lanes].
        lanes: index of the lane by device, for devices with a lane.
        endpoints: names of the other endpoints of messages; set by ``arrays``.
    """

    def __init__(self, run: RunFolder, most_lanes: int, most_steps: int) -> None:
        self.run = run
        self.history = History(run)
        self.activities = Activities(self.history)
        self.attempts = Attempts(self.activities)
        self.tick = _choose_tick(self.history.end)
        self.kinds = tuple(palette.step_colours(step.kind for step in self.attempts.steps))
        self.devices = self._choose_devices(most_lanes, most_steps)
        self.lanes = {device: lane for lane, device in enumerate(self.devices.tolist())}
        self.endpoints: tuple[str, ...] = ()

    def _choose_devices(self, most_lanes: int, most_steps: int) -> Ints:
        """Return the devices that get a lane; int64 [lanes].

        These are all devices, or some of the devices that worked if a limit is exceeded.
        """
        all_devices = self.history.population.index.to_numpy(np.int64)
        steps = self.activities.steps
        if len(all_devices) <= most_lanes and len(steps) <= most_steps:
            return all_devices
        workers = np.array(sorted({step.device for step in steps}), dtype=np.int64)
        if not len(workers):
            return all_devices[:most_lanes]
        # The count of shown devices gives about ``most_steps`` steps if all devices have equally
        # many steps.
        share = min(1.0, most_steps / max(1, len(steps)))
        most = min(most_lanes, max(1, int(len(workers) * share)))
        return workers[style.choose_evenly(len(workers), most)]

    def arrays(self) -> Columns:
        """Return all arrays of the timeline, by the names under which ``lanes.js`` reads them."""
        return {
            **self._devices(),
            **self._steps(),
            **self._rounds(),
            **self._critical_path(),
            "act": np.unique(self._ticks(self.activities.act_times)),
            **self._absences(),
            **self._stays(),
            **self._marks(),
            **self._limits(),
            **self._messages(),
            **self._curves(),
        }

    def _devices(self) -> Columns:
        table = self.history.population.loc[self.devices]
        return {
            "device": self.devices.astype(np.uint32),
            "speed": table["speed"].to_numpy(np.float32),
            "samples": table["samples"].to_numpy(np.uint32),
            "arrival": self._ticks(table["arrival"].fillna(0.0)),
            "departure": self._ticks(table["departure"].fillna(np.inf)),
            "last_group": table["group"].fillna(NO_GROUP).to_numpy(np.int32),
        }

    def _steps(self) -> Columns:
        """Return the steps lane by lane, in order of time.

        Start times and numbers such as the round are differences to the previous step in the lane,
        which compress better.
        """
        steps = self._in_lanes(self.attempts.steps)
        steps.sort(key=lambda step: (self.lanes[step.device], step.start, step.task))
        first_positions = self._first_positions(steps)

        def previous(values: AnyArray) -> Ints:
            """Return for each step the value of the step before it in the lane; 0 for the first."""
            shifted = np.zeros(len(values), dtype=np.int64)
            shifted[1:] = values[:-1]
            # an empty lane at the end has the count of steps as its position, which is no index
            first_steps = first_positions[first_positions < len(values)]
            shifted[first_steps] = 0
            return shifted

        start = self._ticks([step.start for step in steps])
        end = self._ticks([step.end for step in steps])
        numbers_of_kinds = {kind: number for number, kind in enumerate(self.kinds)}
        kinds = [numbers_of_kinds[step.kind] for step in steps]
        outcomes = [_OUTCOME_CODES[step.task_outcome] for step in steps]
        columns: Columns = {
            "first": first_positions.astype(np.uint32),  # index of each lane's first step
            "gap": (start - previous(end)).astype(np.int32),
            "length": (end - start).astype(np.uint32),
            "step": np.array(kinds, dtype=np.uint16),
            "outcome": np.array(outcomes, dtype=np.uint8),
        }
        numbers = {
            "task": np.array([step.task for step in steps], dtype=np.int64),
            "round": _without_none(step.round for step in steps),
            "group": _without_none(step.group for step in steps),
        }
        for name, values in numbers.items():
            columns[name] = (values - previous(values)).astype(np.int32)
        amounts = [_amounts(step) for step in steps]
        done, whole = np.array(amounts, dtype=np.float32).reshape(-1, 2).T
        columns["done"] = done
        columns["asked"] = whole
        return columns

    def _rounds(self) -> Columns:
        periods = self.activities.rounds
        accuracy_of_round = {row["round"]: row["accuracy"] for row in self.run.rounds}
        deadlines = np.zeros(len(periods))  # time (s); 0 for a round that reached no deadline
        for index, period in enumerate(periods):
            if period.reached_deadline is not None:
                deadlines[index] = period.reached_deadline
        accuracies = [accuracy_of_round.get(period.number) for period in periods]
        return {
            "round_number": np.array([period.number for period in periods], dtype=np.uint32),
            "round_end": self._ticks([period.end for period in periods]),
            "round_deadline": self._ticks(deadlines),
            "round_accuracy": np.array(accuracies, dtype=np.float32),  # None becomes NaN
        }

    def _critical_path(self) -> Columns:
        steps = critical_steps(self.run)
        # lane -1, which the page does not draw, is for steps without a device or a lane
        lanes = [-1 if step.device is None else self.lanes.get(step.device, -1) for step in steps]
        return {
            "path_lane": np.array(lanes, dtype=np.int32),
            "path_start": self._ticks([step.start for step in steps]),
            "path_end": self._ticks([step.end for step in steps]),
        }

    def _absences(self) -> Columns:
        absences = self._in_lanes(self.activities.absences)
        absences.sort(key=self._lane_and_start)
        return {
            "off_first": self._first_positions(absences).astype(np.uint32),
            "off_start": self._ticks([span.start for span in absences]),
            "off_end": self._ticks([span.end for span in absences]),
        }

    def _stays(self) -> Columns:
        stays = self._in_lanes(self.activities.stays)
        stays.sort(key=self._lane_and_start)
        return {
            "stay_first": self._first_positions(stays).astype(np.uint32),
            "stay_start": self._ticks([stay.start for stay in stays]),
            "stay_end": self._ticks([stay.end for stay in stays]),
            "stay_group": np.array([stay.group for stay in stays], dtype=np.int32),
        }

    def _marks(self) -> Columns:
        """Return lane, time and kind of each mark, such as a move or a split of a device's data."""
        marks: list[tuple[int, float, int]] = []  # lane, time (s), and index of the mark's kind
        for mark in self.activities.marks:
            if mark.kind in MARKS and mark.device is not None and mark.device in self.lanes:
                marks.append((self.lanes[mark.device], mark.time, MARKED.index(mark.kind)))
        for attempt in self.attempts.all:
            if attempt.splits and attempt.device in self.lanes:
                marks.append((self.lanes[attempt.device], attempt.end, MARKED.index("split")))
        marks.sort()
        return {
            "mark_lane": np.array([lane for lane, _, _ in marks], dtype=np.uint32),
            "mark_time": self._ticks([time for _, time, _ in marks]),
            "mark_kind": np.array([kind for _, _, kind in marks], dtype=np.uint8),
        }

    def _limits(self) -> Columns:
        """Return the ends of the time limit T of trainings, with the lanes of their devices.

        Limits that end after the run are left out.
        """
        limits: list[tuple[int, float]] = []  # lane, and end of the time limit (s)
        for attempt in self.attempts.all:
            limit = attempt.limit
            if limit is None or limit > self.history.end:
                continue
            if attempt.device in self.lanes:
                limits.append((self.lanes[attempt.device], limit))
        limits.sort()
        return {
            "limit_lane": np.array([lane for lane, _ in limits], dtype=np.uint32),
            "limit_time": self._ticks([time for _, time in limits]),
        }

    def _messages(self) -> Columns:
        """Return the bars of messages outside of tasks, in the lanes of sender and receiver.

        A message has a bar for each endpoint that is a device with a lane. Messages of which no
        byte arrived, such as to an unreachable device, are left out. Of very many messages, some
        are returned, evenly spread.
        """
        messages = [entry for entry in self.activities.messages if entry.device_ends()]
        chosen = style.choose_evenly(len(messages), _MOST_MESSAGES)
        bars: list[MessageEnd] = []
        for index in chosen.tolist():
            bars += self._in_lanes(messages[index].device_ends())
        bars.sort(key=lambda bar: (*self._lane_and_start(bar), bar.end, bar.is_sent, bar.other))
        self.endpoints = tuple(sorted({bar.other for bar in bars}))
        endpoint_indices = {name: index for index, name in enumerate(self.endpoints)}
        return {
            "message_lane": np.array([self.lanes[bar.device] for bar in bars], dtype=np.uint32),
            "message_start": self._ticks([bar.start for bar in bars]),
            "message_end": self._ticks([bar.end for bar in bars]),
            "message_sent": np.array([bar.is_sent for bar in bars], dtype=np.uint8),
            "message_other": np.array(
                [endpoint_indices[bar.other] for bar in bars], dtype=np.uint32
            ),
            "message_bytes": np.array([bar.delivered for bar in bars], dtype=np.float32),
            "message_cut": np.array([bar.outcome != "done" for bar in bars], dtype=np.uint8),
        }

    def _curves(self) -> Columns:
        """Return times and values of curves over the run.

        The curves are the counts of devices with useful and with wasted work, and the load of the
        server's link and of messages between devices (bytes/s).
        """
        # while a run goes on, its open tasks may still become useful
        useful_outcomes = ("done",) if self.run.is_done else ("done", "stopped")
        steps = self.activities.steps
        useful = [step for step in steps if step.task_outcome in useful_outcomes]
        wasted = [step for step in steps if step.task_outcome not in useful_outcomes]
        curves = {
            "useful": concurrency(useful),
            "wasted": concurrency(wasted),
            "down": link_load(self.run, "down"),
            "up": link_load(self.run, "up"),
            "peer": peer_load(self.run),
        }
        thinned_curves = {name: thin_out(curve, _POINTS) for name, curve in curves.items()}
        times: Columns = {}
        values: Columns = {}
        for name, curve in thinned_curves.items():
            times[f"{name}_time"] = self._ticks(curve.times)
            values[f"{name}_value"] = curve.values.astype(np.float32)
        return {**times, **values}

    def _ticks(self, times: ArrayLike) -> NDArray[np.uint32]:
        """Convert times (s) to ticks; times after the end of the run become the end."""
        clipped = np.clip(np.asarray(times, dtype=float), 0.0, self.history.end)
        return np.asarray(np.rint(clipped / self.tick), dtype=np.uint32)

    def _in_lanes(self, spans: Sequence[LaneSpan]) -> list[LaneSpan]:
        return [span for span in spans if span.device in self.lanes]

    def _lane_and_start(self, span: TimeSpan) -> tuple[int, float]:
        return self.lanes[span.device], span.start

    def _first_positions(self, spans: Sequence[TimeSpan]) -> Ints:
        """Return the index of each lane's first span in ``spans``, int64 [lanes + 1].

        ``spans`` are sorted by lane. The last entry is the count of spans.
        """
        lanes = np.array([self.lanes[span.device] for span in spans], dtype=np.int64)
        return np.searchsorted(lanes, np.arange(len(self.lanes) + 1)).astype(np.int64)


def _choose_tick(end: float) -> float:
    """Return the length of a tick (s) for a run that ends at ``end`` (s)."""
    if not end:
        return 1.0
    return max(min(_TICK_S, end / _LEAST_TICKS), end / _MOST_TICKS)


def _without_none(values: Iterable[int | None]) -> Ints:
    """Return the values as int64 [n], with -1 instead of None."""
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)


def _amounts(step: StepSpan) -> tuple[float, float]:
    """Return the work done and the whole work of a step, in epochs or bytes; NaN if unknown."""
    fields = _AMOUNTS.get(step.kind)
    if fields is None:
        return math.nan, math.nan
    done, whole = fields
    data = step.data
    return data.get(done, math.nan), data.get(whole, math.nan)


def stage(index: int, name: str, word: str, *, has_groups: bool) -> Markup:
    """Return HTML for a run's timeline: the controls, and the element that ``lanes.js`` fills.

    Args:
        index: index of the run on the page, from 0.
        name: name of the run.
        word: the run's noun for its rounds, such as ``round`` or ``version``.
        has_groups: whether the run has groups of devices.
    """
    tint: Markup | str = ""
    by_group: Markup | str = ""
    if has_groups:
        box = el("input", type="checkbox", name="tint", checked=True)
        tint = el("label", box, "groups as tints")
        by_group = el("option", "by last group", value="group")
    words = {
        "place": str(index),
        "name": html.escape(harmless(name)),
        "word": html.escape(harmless(word)),
        "tint": tint,
        "by_group": by_group,
    }
    return Markup(Template(asset("stage.html")).substitute(words))
