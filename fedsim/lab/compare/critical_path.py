"""The critical path of each round: the chain of steps that the round waited for.

A round lasts from the end of the previous round to its own end. Its path is built backwards from
this end: the task or message that ended at that time, with its steps, then the task or message
that ended when the first one began, and so on. Times at which no task or message ended are filled
by a step ``wait``. So the steps of a path have no gaps, and their times sum to the round's time
exactly.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from fedsim.common import step_names
from fedsim.common.errors import RunFolderError
from fedsim.common.files import parse_json
from fedsim.common.step_names import DOWNLOAD, UPLOAD
from fedsim.common.units import TICK_S
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.attempts import PRE_TRAINING, Attempts
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import RecordData
from fedsim.records.folder import DEVICES
from fedsim.records.reading import RunFolder, as_rows

K = TypeVar("K")
_EVENTS_OF_WORK = ("task-start", "step-start", "step-end", "task-end", "edge-transfer", "message")
_EVENTS_OF_RUN = ("round-start", "aggregate", "round", "run-end")
_COLUMNS = ("time", "kind", "device", "round", "task", "step", "outcome", "data")
_LINK = ("link_down", "link_up", "latency")
WAIT = "wait"
_CATEGORIES = {
    DOWNLOAD: "downloads over the device's own link",
    UPLOAD: "uploads over the device's own link",
    step_names.QUEUE: "queue at the server",
    "edge-transfer": "links of edge servers",
    "message": "messages between devices",
    WAIT: "waits between tasks",
}
SHARED = "links that are shared, such as the server's"
QUEUE = _CATEGORIES[step_names.QUEUE]
AT_HOST = "queue for a worker of the host"
AFTER = "after the last round"


@dataclass(frozen=True)
class PathStep:
    """Part of a round's critical path: what the round waited for in a stretch of its time.

    It is a step of a task (such as ``train``), a message outside of tasks, or a wait in which
    nothing was under way. A step that began before the round is cut to its part within the round.

    Attributes:
        step: name of the step; ``edge-transfer`` or ``message`` outside of tasks, ``wait`` if
            nothing was under way.
        start, end: simulated time (s).
        device, task: device and task ID of the step; None if it belongs to no task.
        outcome: ``done``, or the reason why the step was cut short.
        shared: time (s) by which a transfer took longer than on the device's own link without other
            traffic.
        at_host: whether the step is a wait for one of the workers of the host, the machine on which
            several devices run.
        label: for a step without a device, the edge server or the two endpoints of the message.
        data: further fields of the record at the end of a task's step, as JSON; None for messages
            and for steps that did not end.
    """

    step: str
    start: float
    end: float
    device: int | None = None
    task: int | None = None
    outcome: str = "done"
    shared: float = 0.0
    at_host: bool = False
    label: str = ""
    data: str | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def category(self) -> str:
        """Kind of waiting, such as ``computing``, to which a round's totals add the step's time."""
        return AT_HOST if self.at_host else _CATEGORIES.get(self.step, "computing")


@dataclass
class _AwaitedWork:
    """Task or message for which a round may have waited: its begin and end (s) and its steps.

    A message has a single step, and neither ``device`` nor ``task``. While it is under way, ``end``
    is infinite.
    """

    start: float
    device: int | None
    task: int | None
    round: int | None
    end: float = math.inf
    outcome: str = "stopped"  # kept if the work never ends
    steps: list[PathStep] = field(default_factory=list)

    def rank(self, now: float) -> tuple[float, ...]:
        """Return a sort key to choose for which of several tasks or messages a round waited.

        The task or message with the least key is chosen. Those that ended ``done`` at the time
        ``now`` come first, then those that were lost at this time. Late and unfinished ones are
        last, the least advanced first.

        Args:
            now: simulated time at which the work ended or was still going on (s).
        """
        if self.end == now and self.outcome not in ("late", "stopped"):
            is_lost = self.outcome != "done"
            return (int(is_lost), self.start, self.task or 0)
        starts = [step.start for step in self.steps if step.start < now]
        return (2, len(starts), -max(starts, default=self.start), self.task or 0)


@dataclass(frozen=True)
class RoundPath:
    """Round with its critical path: the chain of steps, without gaps, for which the round waited.

    Attributes:
        number: index of the round.
        start, end: simulated times (s) of the end of the previous round and of this round.
        steps: steps of the path, in order and without gaps.
        selected: count of selected clients; 0 for strategies with versions instead of rounds.
        late: IDs of the devices whose tasks were cut off at the end of the round.
        by_deadline: whether the deadline ended the round.
        saved_s: time (s) by which the round would have ended sooner without the tasks that ended
            last; 0 for strategies without rounds.
        clients_at_end: count of the tasks that ended last together; 0 for strategies without
            rounds.
        half_done_s: simulated time (s) at which half of the tasks of the round had ended; ``end``
            for strategies without rounds.
    """

    number: int
    start: float
    end: float
    steps: tuple[PathStep, ...]
    selected: int = 0
    late: tuple[int, ...] = ()
    by_deadline: bool = False
    saved_s: float = 0.0
    clients_at_end: int = 0
    half_done_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def device(self) -> int | None:
        """ID of the device for which the round waited longest; None if it waited for no device."""
        times = [(step.device, step.seconds) for step in self.steps if step.device is not None]
        return next(iter(_sum_by_key(times)), None)

    @property
    def totals(self) -> dict[str, float]:
        """Seconds of the round by kind of waiting, such as ``computing``, the longest first.

        They sum to the length of the round.
        """
        times = []
        for step in self.steps:
            times.append((step.category, step.seconds - step.shared))
        times += [(SHARED, step.shared) for step in self.steps]
        return _sum_by_key(times)


class _FinishedRound(NamedTuple):
    """Round that ended: its index, its end (s), and IDs of the tasks whose updates it used."""

    number: int
    end: float
    used_tasks: set[int]


class _PathRecords:
    """Tasks, messages and rounds of a run, collected from the run's records in their order.

    Args:
        run: the folder of the run.

    Attributes:
        end: simulated time of the last record (s).
        ended_at: tasks and messages by the time at which they ended (s).
        tasks_of_round: tasks by the index of their round.
        round_starts: fields of the record of a round's begin, by index of the round.
        finished_rounds: the rounds that ended, in order.
    """

    def __init__(self, run: RunFolder) -> None:
        self.end: float = 0.0
        self.ended_at: defaultdict[float, list[_AwaitedWork]] = defaultdict(list)
        self.tasks_of_round: defaultdict[int, list[_AwaitedWork]] = defaultdict(list)
        self.round_starts: dict[int, RecordData] = {}
        self.finished_rounds: list[_FinishedRound] = []
        self._has_hosts = bool(run.scenario.get("population", {}).get("host"))
        self._tasks: dict[int, _AwaitedWork] = {}  # tasks by task ID
        used_tasks: set[int] = set()  # tasks of the updates aggregated since the last round
        events = run.events_of((*_EVENTS_OF_WORK, *_EVENTS_OF_RUN), _COLUMNS)
        for time, kind, device, number, task, step, outcome, data in events:
            self.end = max(self.end, time)
            match kind:
                case "task-start":
                    self._start_task(time, device, task, number)
                case "step-start":
                    self._start_step(time, device, task, step)
                case "step-end":
                    steps = self._tasks[task].steps
                    steps[-1] = replace(steps[-1], end=time, outcome=outcome, data=data)
                case "task-end":
                    self._finish(self._tasks[task], time, outcome)
                case "edge-transfer" | "message":
                    self._add_transfer(time, kind, number, outcome, parse_json(data))
                case "round-start":
                    self.round_starts[number] = parse_json(data)
                case "aggregate":
                    used_tasks.update(parse_json(data)["tasks"])
                case "round":
                    self.finished_rounds.append(_FinishedRound(number, time, used_tasks))
                    used_tasks = set()

    def _start_task(self, time: float, device: int, task: int, number: int | None) -> None:
        work = _AwaitedWork(time, device, task, number)
        self._tasks[task] = work
        if number is not None:
            self.tasks_of_round[number].append(work)

    def _start_step(self, time: float, device: int | None, task: int, step: str) -> None:
        steps = self._tasks[task].steps
        # a task's first step "queue" waits for the host, and later ones for the server's slots
        at_host = self._has_hosts and step == step_names.QUEUE and not steps
        steps.append(PathStep(step, time, math.inf, device, task, at_host=at_host))

    def _add_transfer(
        self, time: float, kind: str, number: int | None, outcome: str, fields: RecordData
    ) -> None:
        start = fields["start"]
        label = _name_transfer(kind, fields)
        transfer = PathStep(kind, start, time, outcome=outcome, label=label)
        work = _AwaitedWork(start, device=None, task=None, round=number, steps=[transfer])
        self._finish(work, time, outcome)

    def _finish(self, work: _AwaitedWork, time: float, outcome: str) -> None:
        work.end = time
        work.outcome = outcome
        if work.start < time:
            self.ended_at[time].append(work)


class CriticalPaths:
    """Critical paths of a run: for each round, the chain of steps for which the round waited.

    A critical path has no gaps, so that the times of its steps sum to the round's length.

    Attributes:
        end: simulated time at which the run ended (s).
        clock: ``simulated time``, or another name if the run's times were measured
            (``RunFolder.clock``).
        word: noun for a round, such as ``version`` for an asynchronous strategy
            (``RunFolder.round_word``).

    Args:
        run: the folder of the run.

    Raises:
        RunFolderError: the folder is damaged.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.clock = run.clock
        self.word = run.round_word
        self._records = _PathRecords(run)
        self.end = self._records.end

    @cached_property
    def rounds(self) -> list[RoundPath]:
        paths = []
        start = 0.0
        for finished in self._records.finished_rounds:
            paths.append(self._round(start, finished))
            start = finished.end
        return paths

    def round(self, number: int) -> RoundPath:
        """Return a round with the chain of steps for which it waited (its critical path).

        Args:
            number: index of the round.

        Raises:
            RunFolderError: the run has no such round.
        """
        by_number = {path.number: path for path in self.rounds}
        if number not in by_number:
            hint = f"it has no {self.word}s"
            if by_number:
                hint = f"allowed are {min(by_number)} to {max(by_number)}"
            raise RunFolderError(
                f"--round is {number}, which {str(self._run.path)!r} lacks; {hint}"
            )
        return by_number[number]

    def described_round(self, number: int) -> RoundPath:
        """Return a round as ``round`` does, with the steps of pre-trainings renamed as in figures.

        The step ``train`` of a task that trains no model of a round becomes ``pre-training``.

        Args:
            number: index of the round.

        Raises:
            RunFolderError: the run has no such round.
        """
        path = self.round(number)
        steps = []
        for step in path.steps:
            if step.step == step_names.TRAIN and step.task in self._preparations:
                steps.append(replace(step, step=PRE_TRAINING))
            else:
                steps.append(step)
        return replace(path, steps=tuple(steps))

    @cached_property
    def _preparations(self) -> frozenset[int]:
        """IDs of the tasks that train no model of a round, such as pre-training."""
        attempts = Attempts(Activities(History(self._run)))
        return frozenset(attempt.task for attempt in attempts.all if attempt.is_preparation)

    @cached_property
    def totals(self) -> dict[str, float]:
        """Seconds of the whole run by kind of waiting, such as ``computing``, the longest first.

        Time after the last round is a separate kind. The seconds sum to the length of the run.
        """
        times: list[tuple[str, float]] = []
        for path in self.rounds:
            times += path.totals.items()
        last = self.rounds[-1].end if self.rounds else 0.0
        times.append((AFTER, self.end - last))
        return _sum_by_key(times)

    def _round(self, start: float, finished: _FinishedRound) -> RoundPath:
        """Return a round with its critical path, and with the time that its last clients cost.

        Args:
            start: simulated time of the round's start (s).
            finished: number, end and aggregated tasks of the round.
        """
        number = finished.number
        end = finished.end
        start_fields = self._records.round_starts.get(number, {})
        tasks = []  # tasks of this round that were under way at some time of the round
        late = []  # devices whose tasks the end of the round cut off
        for task in self._records.tasks_of_round[number]:
            if task.end > start and task.start < end:
                tasks.append(task)
                if task.device is not None and task.outcome == "late" and task.end == end:
                    late.append(task.device)
        path = RoundPath(
            number,
            start,
            end,
            steps=tuple(reversed([*self._trace(start, finished)])),
            selected=start_fields.get("selected", 0),
            late=tuple(late),
            by_deadline=bool(late) and (start_fields.get("deadline") or math.inf) <= end,
            half_done_s=end,
        )
        if not start_fields or not tasks:
            return path
        return self._add_last_clients(path, tasks)

    def _add_last_clients(self, path: RoundPath, tasks: list[_AwaitedWork]) -> RoundPath:
        """Return a round with the count of its last clients, and the time that they cost.

        Args:
            path: the round, without these figures.
            tasks: tasks of the round that went on during the round, at least one.
        """
        ends = sorted(min(task.end, path.end) for task in tasks)  # a task may outlast its round
        last_end = ends[-1]
        last_start = max(task.start for task in tasks if task.end >= last_end)
        earlier_ends = [time for time in ends if time < last_end]
        # Without its last clients, the round would have ended at the end of the other clients'
        # tasks. It would not have ended before the last clients began.
        end_of_others = max([last_start, path.start, *earlier_ends])
        return replace(
            path,
            saved_s=last_end - end_of_others,
            clients_at_end=ends.count(last_end),
            half_done_s=ends[(len(ends) - 1) // 2],
        )

    def _trace(self, start: float, finished: _FinishedRound) -> Iterator[PathStep]:
        """Yield the steps for which a round waited, from its end back to its start, without gaps.

        Args:
            start: simulated time of the round's start (s).
            finished: number, end and aggregated tasks of the round.
        """
        now = finished.end  # moves back from the round's end to its start
        while now > start:
            work = self._find_awaited(now, finished)
            if work is None:
                previous_end = self._last_awaited(now, start, finished)
                yield PathStep(WAIT, previous_end, now)
                now = previous_end
                continue
            for step in reversed(work.steps):
                # each step is cut to the part of the round that later steps leave
                if step.start < now and start < now:
                    step_start = max(step.start, start)
                    yield self._cut(step, step_start, now)
                    now = step_start

    def _last_awaited(self, now: float, start: float, finished: _FinishedRound) -> float:
        """Return the last time before ``now`` at which an awaited task or message ended.

        Args:
            now: the simulated time (s).
            start: simulated time of the round's start (s), which is the result if nothing ended.
            finished: number, end and aggregated tasks of the round.
        """
        for time in reversed(self._times[: bisect_left(self._times, now)]):
            if time <= start:
                break
            if self._find_awaited(time, finished) is not None:
                return time
        return start

    def _find_awaited(self, now: float, finished: _FinishedRound) -> _AwaitedWork | None:
        """Return the task or message for which a round waited up to a given time; None if none.

        The task or message ended at this time and belongs to the round, or the round used its
        update. At the round's end, a task of the round that is still going on counts too.

        Args:
            now: the simulated time (s).
            finished: number and end of the round, and the tasks whose updates it aggregated,
                whatever their round.
        """
        number, end, used_tasks = finished
        ended = self._records.ended_at.get(now, ())
        work = [task for task in ended if task.round == number or task.task in used_tasks]
        if not work:  # tasks of an asynchronous strategy have no round
            work = [task for task in ended if task.round is None and task.task is not None]
        if not work and now == end:
            work = [
                task for task in self._records.tasks_of_round[number] if task.start < now < task.end
            ]
        return min(work, key=lambda task: task.rank(now), default=None)

    @cached_property
    def _times(self) -> list[float]:
        return sorted(self._records.ended_at)

    def _cut(self, step: PathStep, start: float, end: float) -> PathStep:
        """Return the part of a step between two simulated times (s), with its ``shared`` time.

        This is the time by which a transfer took longer than on the device's own link without other
        traffic, in proportion to the part.
        """
        part = replace(step, start=start, end=end)
        column = {DOWNLOAD: "link_down", UPLOAD: "link_up"}.get(step.step, "")
        link = self._links.get(step.device, {})
        rate = link.get(column)
        latency = link.get("latency")
        if not rate or latency is None or not step.data:  # no transfer over a link of known rate
            return part
        end_fields = parse_json(step.data)
        # duration of the transfer without other traffic
        alone_s = latency + end_fields.get("wire_bytes", end_fields["delivered"]) / rate
        shared_s = max(0.0, step.seconds - alone_s) * (part.seconds / step.seconds)
        # in whole ticks, so that a rounding error is no shared time
        return replace(part, shared=min(part.seconds, math.floor(shared_s / TICK_S) * TICK_S))

    @cached_property
    def _links(self) -> dict[int | None, dict[str, Any]]:
        table = self._run.table(DEVICES).select(["device", *_LINK])
        return {row["device"]: row for row in as_rows(table)}


def _name_transfer(kind: str, fields: Mapping[str, object]) -> str:
    if kind == "message":
        return f"{fields['source']} to {fields['destination']}"
    preposition = "from" if fields["direction"] == "down" else "to"
    return f"edge {fields['edge']} {preposition} the server"


def _sum_by_key(times: Iterable[tuple[K, float]]) -> dict[K, float]:
    """Return the sum of seconds for each key, the greatest first; sums of 0 are left out.

    Args:
        times: pairs of key and seconds; a key may occur several times.
    """
    totals: defaultdict[K, float] = defaultdict(float)
    for key, seconds in times:
        totals[key] += seconds
    order = sorted(totals.items(), key=lambda item: -item[1])
    return {key: seconds for key, seconds in order if seconds}
