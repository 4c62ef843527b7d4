"""The critical path of each round: the steps that it waited for, one after the other, read off
the events of a run folder.

A round lasts from the end of the one before to its own. Its path is found from its end backwards:
the task or message that ended in that instant, with its steps; then the one that ended when that
one began. Where none did, the round waited. So the steps of a path lie end to end, and their times
sum to the round's without a remainder.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import median
from typing import Any

from fedsim.common.errors import RunFolderError
from fedsim.common.files import parse_json
from fedsim.common.units import TICK_S, show_seconds
from fedsim.lab.compare.table import Cell, ComparedTable
from fedsim.records.folder import DEVICES
from fedsim.records.reading import RunFolder, as_rows

_KINDS = (
    *("task-start", "step-start", "step-end", "task-end", "edge-transfer", "message"),
    *("round-start", "aggregate", "round", "run-end"),
)
_COLUMNS = ("time", "kind", "device", "round", "task", "step", "outcome", "data")
_LINK = ("link_down", "link_up", "latency")
WAIT = "wait"
_CATEGORIES = {
    "download": "downloads over the device's own link",
    "upload": "uploads over the device's own link",
    "queue": "queue at the server",
    "edge-transfer": "links of edge servers",
    "message": "messages between devices",
    WAIT: "no device at work",
}
SHARED = "links that are shared, such as the server's"
AFTER = "after the last round"
_BAR = 40  # characters of the longest bar
_MOST_DEVICES = 5


@dataclass(frozen=True)
class PathStep:
    """A step of a path, or the part of it within the round, from ``start`` to ``end`` (s).

    Attributes:
        step: its name; ``edge-transfer`` and ``message`` for those outside of tasks, ``wait``
            where nothing was under way.
        outcome, data: ``done``, or why it was cut short, and the data of that record.
        shared: the part of a transfer (s) that its device's own link would not have needed.
        label: which edge server or endpoints, where no device.
    """

    step: str
    start: float
    end: float
    device: int | None = None
    task: int | None = None
    outcome: str = "done"
    shared: float = 0.0
    label: str = ""
    data: str | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class _WaitedFor:
    """A task or a message, from its start to its end, with its steps."""

    start: float
    device: int | None
    task: int | None
    round: int | None
    end: float = math.inf
    outcome: str = "stopped"
    steps: list[PathStep] = field(default_factory=list)

    def rank(self, now: float) -> tuple[float, ...]:
        """Order of tasks that a round waited for: done, lost, late; of late ones the farthest
        from its end first.
        """
        if self.end == now and self.outcome not in ("late", "stopped"):
            return (0 if self.outcome == "done" else 1, self.start, self.task or 0)
        begun = [step.start for step in self.steps if step.start < now]
        return (2, len(begun), -max(begun, default=self.start), self.task or 0)


@dataclass(frozen=True)
class RoundPath:
    """A round and its critical path, from the end of the round before (``start``, s) to its own,
    without gaps.

    Attributes:
        selected: number of selected clients; 0 for strategies with versions instead of rounds.
        late, deadline: devices whose tasks the round's end cut off, and whether its deadline
            ended the round.
        sooner: time by which its tasks would have ended sooner without the last ones (s); 0
            without rounds.
        half: time at which half of its tasks had ended (s); the round's end without rounds.
    """

    number: int
    start: float
    end: float
    steps: tuple[PathStep, ...]
    selected: int = 0
    late: tuple[int, ...] = ()
    deadline: bool = False
    sooner: float = 0.0
    half: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def device(self) -> int | None:
        return next(
            iter(
                _summed((one.device, one.seconds) for one in self.steps if one.device is not None)
            ),
            None,
        )

    @property
    def totals(self) -> dict[str, float]:
        """Seconds by category, most first; they sum to the round's length."""
        own = (
            (_CATEGORIES.get(one.step, "computing"), one.seconds - one.shared) for one in self.steps
        )
        return _summed(chain(own, ((SHARED, one.shared) for one in self.steps)))


class CriticalPaths:
    """The critical paths of a run that ended at ``end`` (s).

    ``RunFolderError``: its folder is damaged.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.end: float = 0.0
        self._ends: defaultdict[float, list[_WaitedFor]] = defaultdict(list)
        self._of_round: defaultdict[int, list[_WaitedFor]] = defaultdict(list)
        # of each round its number, its end, and the tasks that it used
        self._ended: list[tuple[int, float, set[int]]] = []
        self._begun: dict[int, Mapping[str, Any]] = {}
        tasks: dict[int, _WaitedFor] = {}
        used: set[int] = set()
        for time, kind, device, number, task, step, outcome, data in run.events_of(
            _KINDS, _COLUMNS
        ):
            self.end = max(self.end, time)
            match kind:
                case "task-start":
                    tasks[task] = _WaitedFor(time, device, task, number)
                    if number is not None:
                        self._of_round[number].append(tasks[task])
                case "step-start":
                    tasks[task].steps.append(PathStep(step, time, math.inf, device, task))
                case "step-end":
                    steps = tasks[task].steps
                    steps[-1] = replace(steps[-1], end=time, outcome=outcome, data=data)
                case "task-end":
                    self._over(tasks[task], time, outcome)
                case "edge-transfer" | "message":
                    said = parse_json(data)
                    if kind == "message":
                        label = f"{said['source']} to {said['destination']}"
                    else:
                        label = (
                            f"edge {said['edge']} "
                            f"{'from' if said['direction'] == 'down' else 'to'} the server"
                        )
                    own = PathStep(kind, said["start"], time, outcome=outcome, label=label)
                    self._over(
                        _WaitedFor(said["start"], None, None, number, steps=[own]), time, outcome
                    )
                case "round-start":
                    self._begun[number] = parse_json(data)
                case "aggregate":
                    used.update(parse_json(data)["tasks"])
                case "round":
                    self._ended.append((number, time, used))
                    used = set()

    def _over(self, work: _WaitedFor, time: float, outcome: str) -> None:
        work.end = time
        work.outcome = outcome
        if work.start < time:
            self._ends[time].append(work)

    @cached_property
    def rounds(self) -> list[RoundPath]:
        starts = [0.0, *(time for _, time, _ in self._ended)]
        return [self._round(start, *one) for start, one in zip(starts, self._ended, strict=False)]

    def round(self, number: int) -> RoundPath:
        """The round of a number; ``RunFolderError`` where there is none."""
        by_number = {one.number: one for one in self.rounds}
        if number not in by_number:
            known = (
                f"allowed are {min(by_number)} to {max(by_number)}"
                if by_number
                else "it has no rounds"
            )
            raise RunFolderError(
                f"--round is {number}, which {str(self._run.path)!r} lacks; {known}"
            )
        return by_number[number]

    @cached_property
    def totals(self) -> dict[str, float]:
        """Seconds by category over all rounds and the time after them, most first; they sum to
        the run's length.
        """
        last = self.rounds[-1].end if self.rounds else 0.0
        return _summed(
            [
                *(item for one in self.rounds for item in one.totals.items()),
                (AFTER, self.end - last),
            ]
        )

    def _round(self, start: float, number: int, end: float, used: set[int]) -> RoundPath:
        steps = tuple(reversed([*self._back(start, number, end, used)]))
        own = [one for one in self._of_round[number] if one.end > start and one.start < end]
        late = tuple(
            one.device
            for one in own
            if one.device is not None and one.outcome == "late" and one.end == end
        )
        facts = self._begun.get(number, {})
        sooner = 0.0
        half = end
        if facts and own:
            ends = sorted(min(one.end, end) for one in own)
            half = ends[(len(ends) - 1) // 2]
            begun = max(one.start for one in own if one.end >= ends[-1])
            sooner = ends[-1] - max([begun, start, *(one for one in ends if one < ends[-1])])
        by_deadline = bool(late) and (facts.get("deadline") or math.inf) <= end
        return RoundPath(
            number, start, end, steps, facts.get("selected", 0), late, by_deadline, sooner, half
        )

    def _back(self, start: float, number: int, end: float, used: set[int]) -> Iterator[PathStep]:
        def last(now: float) -> _WaitedFor | None:
            """The task or message of the round that ended in an instant; at the round's end also
            one that goes on.
            """
            here = self._ends.get(now, ())
            own = [one for one in here if one.round == number or one.task in used]
            own = own or [one for one in here if one.round is None and one.task is not None]
            if not own and now == end:
                own = [one for one in self._of_round[number] if one.start < now < one.end]
            return min(own, key=lambda one: one.rank(now), default=None)

        now = end
        while now > start:
            found = last(now)
            if found is None:
                earlier = reversed(self._times[: bisect_left(self._times, now)])
                before = max(
                    start,
                    next(
                        (time for time in earlier if time <= start or last(time) is not None), start
                    ),
                )
                yield PathStep(WAIT, before, now)
                now = before
            for step in reversed(found.steps if found else []):
                if step.start < now and start < now:
                    yield self._part(step, max(step.start, start), now)
                    now = max(step.start, start)

    @cached_property
    def _times(self) -> list[float]:
        return sorted(self._ends)

    def _part(self, step: PathStep, start: float, end: float) -> PathStep:
        """The part of a step between two times, with its share of the time that shared links
        took.
        """
        part = replace(step, start=start, end=end)
        way = {"download": "link_down", "upload": "link_up"}.get(step.step)
        link = self._links.get(step.device, {})
        rate = link.get(way)
        latency = link.get("latency")
        if not rate or latency is None or not step.data:
            return part
        facts = parse_json(step.data)
        alone = latency + facts.get("wire_bytes", facts["delivered"]) / rate
        shared = max(0.0, step.seconds - alone) * (part.seconds / step.seconds)
        return replace(part, shared=min(part.seconds, math.floor(shared / TICK_S) * TICK_S))

    @cached_property
    def _links(self) -> dict[int | None, dict[Any, Any]]:
        return {
            row["device"]: row
            for row in as_rows(self._run.table(DEVICES).select(["device", *_LINK]))
        }


def _summed(pairs: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    found: defaultdict[Any, float] = defaultdict(float)
    for key, seconds in pairs:
        found[key] += seconds
    return dict(
        sorted(
            ((key, seconds) for key, seconds in found.items() if seconds), key=lambda item: -item[1]
        )
    )


def run_in_words(paths: CriticalPaths) -> list[str]:
    """The reasons why the rounds of a run ended when they did: deadlines, and the slowest
    devices.
    """
    rounds = paths.rounds
    if not rounds:
        return ["The run has no rounds, so nothing was waited for."]
    longest = max(rounds, key=lambda one: one.seconds)
    words = [
        f"{len(rounds)} rounds in {show_seconds(rounds[-1].end)}: "
        f"{show_seconds(median(one.seconds for one in rounds))} in the "
        f"median, {show_seconds(longest.seconds)} the longest (round {longest.number})."
    ]
    if asked := [one for one in rounds if one.selected]:
        half = sum(one.half - one.start for one in asked) / (
            sum(one.seconds for one in asked) or 1.0
        )
        words.append(
            f"Half of a round's clients were done after {half:.0%} of it; the slowest alone "
            "held the rounds up for "
            f"{show_seconds(sum(one.sooner for one in rounds))} in all."
        )
    if ended := sum(one.deadline for one in rounds):
        words.append(f"The deadline ended {ended} of {len(rounds)} rounds.")
    often = Counter(one.device for one in rounds if one.device is not None).most_common(
        _MOST_DEVICES
    )
    named = (
        f"device {device} ({count} round{'s' if count > 1 else ''})" for device, count in often
    )
    return [*words, f"Waited for most often: {', '.join(named)}."]


def round_in_words(paths: CriticalPaths, number: int) -> list[str]:
    """The reasons why a round took as long as it did, and changes that would have ended it
    sooner.
    """
    one = paths.round(number)
    usual = median(other.seconds for other in paths.rounds)
    ratio = f"{one.seconds / usual:.2g}" if usual else ""
    factor = {"": "", "1": ", as long as the median"}.get(ratio, f", {ratio} times the median")
    words = [
        f"Round {number} took {show_seconds(one.seconds)}{factor}: "
        f"from {show_seconds(one.start)} to {show_seconds(one.end)} of simulated time."
    ]
    devices = ", ".join(map(str, one.late[:_MOST_DEVICES])) + (
        " and others" if len(one.late) > _MOST_DEVICES else ""
    )
    if one.deadline:
        named = f"device{'s' if len(one.late) > 1 else ''} {devices}"
        words.append(
            f"Its deadline ended it: {len(one.late)} of {one.selected} clients were late ({named})."
        )
    elif one.late:
        words.append(
            f"Enough others had answered: {len(one.late)} of {one.selected} clients were cut off."
        )
    if one.steps:
        step = max(one.steps, key=lambda step: step.seconds)
        idle = step.label or "the server, or its timers; no device was at work"
        whom = idle if step.device is None else f"device {step.device} ({step.step})"
        words.append(
            f"It waited longest for {whom}: {show_seconds(step.seconds)}, "
            f"{step.seconds / one.seconds:.0%}."
        )
        if one.sooner > 0:
            whom = "the late clients" if one.deadline else f"device {one.device}"
            words.append(f"Without {whom} it would have ended {show_seconds(one.sooner)} sooner.")
        if one.sooner > 0 and step.step not in (WAIT, "queue") and step.outcome == "done":
            gain = min(step.seconds / 2, one.sooner)
            then = "; then another client is the last" if gain == one.sooner else ""
            words.append(f"With twice the rate there, {show_seconds(gain)} sooner{then}.")
    shared = one.totals.get(SHARED, 0.0) + one.totals.get("queue at the server", 0.0)
    if shared > 0:
        words.append(
            f"Shared links and queues held it up for {show_seconds(shared)}: the most that a "
            "faster server saves."
        )
    return words


def path_table(one: RoundPath) -> ComparedTable:
    """The steps of a round's path; their times sum to the round's."""
    rows: list[dict[str, Cell]] = [
        {
            "step": step.step if step.outcome == "done" else f"{step.step} ({step.outcome})",
            "of": step.label or (None if step.device is None else f"device {step.device}"),
            "after": show_seconds(step.start - one.start),
            "took": show_seconds(step.seconds),
            "share": f"{step.seconds / one.seconds:.1%}",
            "of it shared links": show_seconds(step.shared) if step.shared else None,
        }
        for step in one.steps
    ]
    return ComparedTable.of(["step", "of", "after", "took", "share", "of it shared links"], rows)


def totals_table(runs: Mapping[str, CriticalPaths]) -> ComparedTable:
    """The simulated time of runs by category of their critical paths, with bars on one axis of
    time.
    """
    most = max(
        (seconds for paths in runs.values() for seconds in paths.totals.values()), default=0.0
    )
    rows: list[dict[str, Cell]] = []
    for name in dict.fromkeys(name for paths in runs.values() for name in paths.totals):
        for run, paths in runs.items():
            seconds = paths.totals.get(name, 0.0)
            share, bar = (
                f"{seconds / paths.end:.1%}" if paths.end else None,
                "#" * round(_BAR * seconds / most),
            )
            rows.append(
                {
                    "critical path": name,
                    "run": run,
                    "took": show_seconds(seconds),
                    "share": share,
                    "": bar,
                }
            )
    return ComparedTable.of(
        ["critical path", *(["run"] if len(runs) > 1 else []), "took", "share", ""], rows
    )
