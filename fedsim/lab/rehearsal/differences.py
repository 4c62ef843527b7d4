"""Differences between a rehearsal and a simulation of its scenario: rounds, steps and bytes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedsim.common.files import parse_json
from fedsim.common.round_words import counted
from fedsim.common.step_names import DIRECTIONS
from fedsim.common.units import show_bytes, show_seconds
from fedsim.deployed.wire import WireCounters
from fedsim.records.reading import RunFolder

_KINDS = ("step-start", "step-end", "task-start", "task-end", "round-start", "round", "sent")
_COLUMNS = ("time", "kind", "device", "round", "task", "step", "outcome", "data")


@dataclass(frozen=True, slots=True)
class StepLength:
    """Step of a device's task, such as ``train``, with its times in a simulated or measured run.

    Attributes:
        step: name of the step, such as ``train``.
        start: begin of the step (s).
        end: end of the step (s).
        outcome: ``done``, or the reason why the step was cut short.
        bytes: size of the message of a download or upload; 0 for other steps.
    """

    step: str
    start: float
    end: float
    outcome: str
    bytes: float

    @property
    def seconds(self) -> float:
        """Length of the step (s)."""
        return self.end - self.start


@dataclass(slots=True)
class TaskTimes:
    """Times and steps of the task of one device in one round, simulated or measured.

    Attributes:
        start: time at which the server requested the task (s).
        end: end of the task (s).
        outcome: outcome of the task, such as ``done`` or ``late``; empty if the task did not end.
        spans: steps of the task that ended, in order.
    """

    start: float
    end: float = 0.0
    outcome: str = ""
    spans: list[StepLength] = field(default_factory=list)


class RoundTimes(NamedTuple):
    """Begin and end of a round, simulated or measured.

    Attributes:
        number: index of the round.
        start: begin (s).
        end: end (s).
    """

    number: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length of the round (s)."""
        return self.end - self.start


@dataclass(slots=True)
class RunTimes:
    """Times of a run's rounds and tasks, simulated or measured, with its bytes and accuracy.

    Attributes:
        rounds: the rounds in order.
        tasks: dict from (round, device) to the device's first task for the round.
        bytes: bytes that moved in the whole run, by direction (``down`` or ``up``).
        accuracy: the final accuracy; None if it was not measured.
    """

    rounds: list[RoundTimes]
    tasks: dict[tuple[int, int], TaskTimes]
    bytes: dict[str, float]
    accuracy: float | None


def read_times(folder: Path) -> RunTimes:
    """Read the times of rounds, tasks and steps, the bytes and the accuracy of a run.

    Args:
        folder: folder of a simulated or a measured run.
    """
    run = RunFolder(folder)
    tasks: dict[int, TaskTimes] = {}  # tasks by ID, in the order of their begins
    first_tasks: dict[tuple[int, int], TaskTimes] = {}  # first tasks by round and device
    step_starts: dict[int, float] = {}  # begin of each task's running step (s), by ID of the task
    rounds: list[RoundTimes] = []
    round_start_s = 0.0
    for row in run.events_of(_KINDS, _COLUMNS):
        time_s, kind, device, number, task, step, outcome, text = row
        match kind:
            case "task-start":
                tasks[task] = TaskTimes(time_s)
                if number is not None:  # the index of the round
                    first_tasks.setdefault((number, device), tasks[task])
            case "task-end":
                tasks[task].end = time_s
                tasks[task].outcome = outcome
            case "step-start":
                step_starts[task] = time_s
            case "step-end":
                size = 0.0
                if step in DIRECTIONS:
                    size = parse_json(text).get("bytes", 0.0)
                span = StepLength(step, step_starts[task], time_s, outcome, size)
                tasks[task].spans.append(span)
            case "round-start":
                round_start_s = time_s
            case "round":
                rounds.append(RoundTimes(number, round_start_s, time_s))
                round_start_s = time_s  # begin of the next round, unless that is recorded
    ledger = run.summary["bytes"]
    sizes = {"down": float(ledger["down"]), "up": float(ledger["up"])}
    return RunTimes(rounds, first_tasks, sizes, run.summary["accuracy"]["final"])


class Pair(NamedTuple):
    """Quantity, such as the length of a round, in a simulation and in a real run.

    Attributes:
        simulated: value in the simulation.
        measured: value in the real run.
    """

    simulated: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the simulation: simulated / measured - 1; 0 if ``measured`` is 0."""
        return self.simulated / self.measured - 1.0 if self.measured else 0.0


@dataclass(slots=True)
class Differences:
    """Comparison of the times of a real run with the times of its simulation.

    Attributes:
        simulated, measured: the times of both runs.
        wire: dict from name of a quantity to its values, one for each measured message. The
            quantities are the waiting times before the first and after the last byte on the wire
            (s), the time between these two (s), and the bytes on the wire per byte of payload.
            Empty if bytes were not counted on the wire.
    """

    simulated: RunTimes
    measured: RunTimes
    wire: dict[str, list[float]]

    @property
    def rounds(self) -> dict[int, Pair]:
        """Lengths of the rounds that both runs have (s), by index of the round."""
        measured = {entry.number: entry.seconds for entry in self.measured.rounds}
        return {
            entry.number: Pair(entry.seconds, measured[entry.number])
            for entry in self.simulated.rounds
            if entry.number in measured
        }

    @property
    def mean_round(self) -> Pair:
        """Mean length of the rounds that both runs have (s); 0 if there are none."""
        pairs = list(self.rounds.values())
        if not pairs:
            return Pair(0.0, 0.0)
        return mean_of(pairs)

    @property
    def phases(self) -> dict[str, list[Pair]]:
        """Lengths of steps (s), simulated and measured, of the tasks that are done in both runs.

        They are in a dict from name of the step, such as ``train``, to a pair for each task. If a
        task has several steps of a name, their lengths are added. The start-up of a task counts as
        part of its download, as the start of a real ClientApp does.
        """
        phases: dict[str, list[Pair]] = defaultdict(list)
        for key, simulated in self.simulated.tasks.items():
            measured = self.measured.tasks.get(key)
            if measured is None:
                continue
            measured_s = _lengths(measured)
            for name, simulated_s in _lengths(simulated).items():
                if name in measured_s:
                    phases[name].append(Pair(simulated_s, measured_s[name]))
        return dict(phases)

    @property
    def undone(self) -> list["UndoneTask"]:
        """Tasks that were requested but not done in at least one of the two runs.

        A task that was cut off by the end of its run counts as done. First are the tasks that
        neither run has done, then the tasks that only the simulation has not done, then the tasks
        that only the rehearsal has not done.
        """
        tasks = []
        for key in sorted(self.simulated.tasks.keys() | self.measured.tasks.keys()):
            simulated = _outcome(self.simulated.tasks.get(key))
            measured = _outcome(self.measured.tasks.get(key))
            if simulated not in _DONE or measured not in _DONE:
                tasks.append(UndoneTask(*key, simulated, measured))
        order = [*_SENTENCE_OF_RUNS]
        return sorted(tasks, key=lambda task: order.index(task.where))


_DONE = ("done", "not asked", "stopped")  # outcomes that do not count as undone
_SENTENCE_OF_RUNS: Mapping[str, str] = {
    "both": "both",
    "simulated": "the simulation only",
    "rehearsed": "the rehearsal only",
}
"""Runs in which a task was not done, and their names in sentences."""


class UndoneTask(NamedTuple):
    """Task of a device for a round that was not done in a simulation or its rehearsal.

    Attributes:
        round: index of the round.
        device: ID of the device.
        simulated: outcome in the simulation, such as ``late``; ``not asked`` if the simulation has
            no such task.
        measured: outcome in the rehearsal; ``not asked`` if the rehearsal has no such task.
    """

    round: int
    device: int
    simulated: str
    measured: str

    @property
    def where(self) -> str:
        """Runs in which the task was not done: ``both``, ``simulated`` or ``rehearsed``."""
        if self.simulated in _DONE:
            return "rehearsed"
        return "simulated" if self.measured in _DONE else "both"


def _outcome(task: TaskTimes | None) -> str:
    return "not asked" if task is None else task.outcome


def _lengths(task: TaskTimes) -> dict[str, float]:
    """Return the length of each kind of step of a task (s); empty if the task was not done.

    A start-up counts as part of the download, because the start of a real ClientApp does.
    """
    lengths: dict[str, float] = defaultdict(float)
    if task.outcome != "done":
        return {}
    for span in task.spans:
        name = "download" if span.step == "start-up" else span.step
        lengths[name] += span.seconds
    return dict(lengths)


def compare(simulated: Path, measured: Path, wire: WireCounters | None = None) -> Differences:
    """Compare the times of a real run with the times of its simulation.

    Args:
        simulated: the simulated run folder.
        measured: the measured run folder.
        wire: byte counters of the devices' real links over time; None if they were not recorded.

    Returns:
        Both runs' times, for comparison by rounds, steps and tasks.
    """
    times = read_times(measured)
    parts = {} if wire is None else _passages(times, wire)
    return Differences(read_times(simulated), times, parts)


WAITS = {
    "download": ("request until its first bytes", "its last bytes until the ClientApp has them"),
    "upload": ("answer until its first bytes", "its last bytes until the server has them"),
}
"""Dict from step to names of the waits before and after its message passes over the wire."""


def _passages(times: RunTimes, wire: WireCounters) -> dict[str, list[float]]:
    """Return how long each message of a real run waited, and how long it was on the wire.

    Args:
        times: the measured times of the run.
        wire: byte counters of the devices' links over time.

    Returns:
        Dict from name of a quantity to its values, as ``Differences.wire`` has it.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for (_, device), task in times.tasks.items():
        for span in task.spans:
            direction = DIRECTIONS.get(span.step)
            if direction is None or span.outcome != "done":  # no message, or a message cut short
                continue
            passage = wire.passage(device, direction, span.bytes, span.start, span.end)
            if passage is None:
                continue
            wait_before, wait_after = WAITS[span.step]
            values[wait_before].append(passage.first - span.start)
            values[f"{span.step} on the wire"].append(passage.last - passage.first)
            values[wait_after].append(max(0.0, span.end - passage.last))
            values[f"bytes on the wire / payload, {direction}"].append(passage.bytes / span.bytes)
    return dict(values)


def lines(differences: Differences, title: str) -> Iterator[str]:
    """Yield lines of text, for people, on how a real run differs from its simulation.

    Args:
        differences: the differences.
        title: title of the simulated run.
    """
    mean = differences.mean_round
    yield (
        f"{title}: {counted(len(differences.rounds), 'round')} of {show_seconds(mean.measured)} on "
        f"the mean, simulated {show_seconds(mean.simulated)}: error {mean.error:+.1%}"
    )
    for name, pairs in differences.phases.items():
        mean = mean_of(pairs)
        yield (
            f"  {name}: {show_seconds(mean.measured)}, simulated {show_seconds(mean.simulated)} "
            f"({mean.simulated - mean.measured:+.2f} s)"
        )
    for name, values in differences.wire.items():
        if name.startswith("bytes"):  # a ratio; all other quantities are times
            yield f"  {name}: {fmean(values):.3f}"
        else:
            yield f"  {name}: {show_seconds(fmean(values))} in the rehearsal"
    for direction, pair in bytes_of(differences).items():
        simulated = f"simulated {show_bytes(pair.simulated)}"
        if pair.simulated == pair.measured:
            simulated = "equal"
        yield f"  bytes {direction}: {show_bytes(pair.measured)}, {simulated}"
    # ``undone`` is sorted by ``where``, as ``groupby`` needs it
    for where, tasks in groupby(differences.undone, key=lambda task: task.where):
        names = ", ".join(f"round {task.round} device {task.device}" for task in tasks)
        yield f"  not done in {_SENTENCE_OF_RUNS[where]}: {names}"


def mean_of(pairs: list[Pair]) -> Pair:
    """Return the mean of the simulated and the mean of the measured values of pairs."""
    return Pair(fmean([pair.simulated for pair in pairs]), fmean([pair.measured for pair in pairs]))


def bytes_of(differences: Differences) -> dict[str, Pair]:
    """Return the bytes that moved, simulated and measured, by direction (``down`` or ``up``)."""
    return {
        direction: Pair(differences.simulated.bytes[direction], size)
        for direction, size in differences.measured.bytes.items()
    }
