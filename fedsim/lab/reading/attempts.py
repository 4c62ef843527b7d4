"""Attempts: the tasks of clients in rounds, each with its outcome, from a run's activities.

Pictures of stragglers, the figures for papers and their tables count and draw the same ``Attempt``
values. All times are simulated seconds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from fedsim.lab.reading.activities import Activities, StepSpan
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import RecordData

AttemptOutcome = Literal["valid", "slow", "late", "lost", "stopped"]
COUNTED: tuple[AttemptOutcome, ...] = ("valid", "slow", "late", "lost")
"""Outcomes that are counted; nobody knows how a ``stopped`` attempt would have ended."""

PRE_TRAINING = "pre-training"
"""Kind that figures show for a training in a task that prepares rounds (``is_preparation``)."""

_OUTCOME_OF_TASK: Mapping[str, AttemptOutcome] = {
    "done": "valid",
    "late": "late",
    "lost": "lost",
    "left": "lost",
    "battery": "lost",
    "memory": "late",
}
_MODEL = "model"  # purpose of the model that a round trains
_UPDATE = "update"


@dataclass(frozen=True)
class Attempt:
    """Attempt of a client: a task from its begin to its end, with its steps and its outcome.

    Attributes:
        task: ID of the task.
        device: ID of the device.
        round: index of the round, or of the model's version if the strategy has no rounds; None for
            a task outside of rounds.
        group: ID of the group, if any.
        start: begin of the task (s).
        end: end of the task (s); the run's end if the task was open then.
        outcome: ``valid``; ``slow`` if the client answered without a finished epoch; ``late`` if
            the server ended the task, or the model did not fit into memory; ``lost`` if the device
            disconnected, left, or ran flat; ``stopped`` if the run ended first.
        is_preparation: whether the task trains no model of a round, but prepares rounds: for
            example, it measures the device's speed, trains a model to find the device's group, or
            answers a question of the server.
        steps: steps of the task, in order.
        training_limit: the most time for training (s) in the task's round; None if it has no limit.
        splits: whether the device reported in this round that it has split its data (CATA-Fed).
    """

    task: int
    device: int
    round: int | None
    group: int | None
    start: float
    end: float
    outcome: AttemptOutcome
    is_preparation: bool
    steps: tuple[StepSpan, ...]
    training_limit: float | None
    splits: bool

    def of_kind(self, kind: str) -> list[StepSpan]:
        """Return the task's steps of a kind, such as ``upload``, in order."""
        return [step for step in self.steps if step.kind == kind]

    @property
    def trains(self) -> bool:
        """Whether the device began a training in this task."""
        return bool(self.of_kind("train"))

    @property
    def limit(self) -> float | None:
        """Simulated time (s) at which the round's time limit for training is over.

        The limit counts from the begin of the task's first training. None if the round has no
        limit, or if the task has no training.
        """
        trainings = self.of_kind("train")
        if self.training_limit is None or not trainings:
            return None
        return trainings[0].start + self.training_limit

    @property
    def epochs(self) -> int:
        """Count of finished epochs in the update of the task's last training; 0 for no training."""
        trainings = self.of_kind("train")
        if not trainings:
            return 0
        return int(trainings[-1].data.get("epochs", 0))


class Attempts:
    """All tasks of a run's clients, as a list and by round.

    Each list is computed when it is first used.

    Args:
        activities: activities of the run.
    """

    def __init__(self, activities: Activities) -> None:
        self.activities = activities

    @property
    def history(self) -> History:
        """Records of the run."""
        return self.activities.history

    @cached_property
    def all(self) -> list[Attempt]:
        """All tasks of the run, in the order of their begins."""
        steps: defaultdict[int, list[StepSpan]] = defaultdict(list)
        for step in self.activities.steps:
            steps[step.task].append(step)
        # whether the server sends the models that rounds train, which tells preparations apart
        sends_models = _MODEL in _purposes(self.activities.steps, "download")
        ends = {row["task"]: row for row in self.history.data("task-end")}
        split_reports = {(row["round"], row["device"]) for row in self.history.data("split")}
        attempts = []
        for row in self.history.data("task-start"):
            task = int(row["task"])
            end = ends.get(row["task"])
            task_steps = tuple(steps[task])
            end_s = self.history.end
            task_outcome = "stopped"  # the outcome if the task was open at the run's end
            if end is not None:
                end_s = float(end["time"])
                task_outcome = str(end["outcome"])
            round_number = _int_or_none(row["round"])
            has_split = (row["round"], row["device"]) in split_reports
            attempts.append(
                Attempt(
                    task=task,
                    device=int(row["device"]),
                    round=round_number,
                    group=_int_or_none(row["group"]),
                    start=float(row["time"]),
                    end=end_s,
                    outcome=_outcome(task_outcome, task_steps),
                    is_preparation=_is_preparation(task_steps, task_outcome, sends_models),
                    steps=task_steps,
                    training_limit=self._limits.get(round_number),
                    splits=round_number is not None and has_split,
                )
            )
        return attempts

    @cached_property
    def clients(self) -> dict[int, list[Attempt]]:
        """Dict from index of a round, or model version, to the tasks of its clients.

        A task of a round may train no model of this round, such as a task for profiling. Such a
        task is left out if it was successful. If it failed, its client trains no model in this
        round, so the task counts.
        """
        rounds: defaultdict[int, list[Attempt]] = defaultdict(list)
        for attempt in self.all:
            if attempt.round is None:
                continue
            if attempt.is_preparation and attempt.outcome == "valid":
                continue
            rounds[attempt.round].append(attempt)
        return dict(sorted(rounds.items()))

    @cached_property
    def steps(self) -> list[StepSpan]:
        """All steps of the run's tasks, task by task, each task's steps in order of time.

        The kind of a training that trains no model of a round, such as in a task that decides a
        device's group, is ``pre-training``.
        """
        preparing = {attempt.task for attempt in self.all if attempt.is_preparation}
        steps = []
        for step in self.activities.steps:
            if step.kind == "train" and step.task in preparing:
                steps.append(replace(step, kind=PRE_TRAINING))
            else:
                steps.append(step)
        return steps

    @cached_property
    def trained(self) -> list[int]:
        """Indices of the rounds in which at least one device began a training.

        Empty if the strategy has no rounds.
        """
        with_training = {attempt.round for attempt in self.all if attempt.trains}
        return [number for number in self.openings if number in with_training]

    @cached_property
    def openings(self) -> dict[int, RecordData]:
        """Dict from index of a round to the record of the round's begin.

        Empty if the strategy has no rounds.
        """
        return {int(row["round"]): row for row in self.history.data("round-start")}

    @cached_property
    def _limits(self) -> dict[int | None, float | None]:
        limits: dict[int | None, float | None] = {}
        for number, row in self.openings.items():
            limits[number] = row["data"].get("training_limit")
        return limits


def _int_or_none(value: float | None) -> int | None:
    return None if value is None else int(value)


def _purposes(steps: Iterable[StepSpan], kind: str) -> list[str]:
    """Return the purposes, such as ``update``, of the contents that tasks received or sent.

    Args:
        steps: steps of tasks.
        kind: ``download`` for received contents, ``upload`` for sent contents.

    Returns:
        A text for each part of each message, in order.
    """
    purposes = []
    for step in steps:
        if step.kind != kind:
            continue
        for purpose, _ in step.data.get("payloads", []):
            purposes.append(str(purpose))
    return purposes


def _is_preparation(steps: Sequence[StepSpan], task_outcome: str, sends_models: bool) -> bool:
    """Whether a task trains no model of a round, as in profiling or pre-training.

    This is so for a task that is done without a training. If the server sends models, it is also so
    for a task that neither received a round's model nor sent an update, but sent or received
    something else, or began to train a model that the device has kept.

    Args:
        steps: steps of the task.
        task_outcome: outcome of the task.
        sends_models: whether any task of the run received a round's model.
    """
    if task_outcome == "done" and not any(step.kind == "train" for step in steps):
        return True
    received = _purposes(steps, "download")
    sent = _purposes(steps, "upload")
    if not sends_models or _MODEL in received or _UPDATE in sent:
        return False
    if received or sent:
        return True
    return any(step.kind == "train" for step in steps)


def _outcome(task_outcome: str, steps: Sequence[StepSpan]) -> AttemptOutcome:
    """Return the outcome of a client's task for statistics, such as ``valid`` or ``late``.

    Args:
        task_outcome: outcome of the task in the records, such as ``done`` or ``battery``.
        steps: steps of the task; ``done`` without a finished epoch counts as ``slow``.
    """
    outcome = _OUTCOME_OF_TASK.get(task_outcome, "stopped")
    trainings = [step for step in steps if step.kind == "train"]
    if outcome == "valid" and trainings and not trainings[-1].data.get("epochs"):
        return "slow"
    return outcome
