"""Steps of tasks in which a device computes: training, evaluation, and other work."""

import math
from bisect import bisect_right
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from fedsim.clock.simulation import tie_s
from fedsim.common.step_names import COMPUTE, EVALUATE, TRAIN
from fedsim.common.training import NO_LIMIT, Limit, Training
from fedsim.world.steps.base import Cause, Ending, StepServices, Task, TaskStep


class Plan(NamedTuple):
    """Epochs of a task's computation and their limits, before jitter and slow phases.

    Attributes:
        epoch_s: time of an epoch at the device's usual speed (s).
        epochs: count of epochs.
        limit: time from which on no epoch begins, and at which the computation is cut off (simulated
            s); infinity if there is no limit.
        adaptive: whether the device begins another epoch only if an epoch of the mean length so far
            would end before the limit.
        slack_s: time by which the computation may exceed ``limit`` by rounding (s).
        jitter_of: index of the task among the device's tasks, which determines one random factor
            (jitter) for the times of all epochs. None: each epoch has a factor, which the time of
            its begin determines.
    """

    epoch_s: float
    epochs: int
    limit: float = math.inf
    adaptive: bool = False
    slack_s: float = 0.0
    jitter_of: int | None = None


class EpochStep(TaskStep):
    """Base of the steps of a task in which its device computes for one epoch or several.

    A subclass overrides ``plan``, which returns the count and times of the epochs.
    """

    __slots__ = ()
    power = "compute"

    def plan(self, task: Task, services: StepServices) -> Plan:
        """Return the count and times of this step's epochs, at the device's usual speed.

        Args:
            task: the task.
            services: services of the world, as in ``TaskStep.begin``.
        """
        raise NotImplementedError

    def is_due(self, task: Task, services: StepServices) -> bool:
        """Return whether the step is complete now, within the rounding of times.

        If it is complete and its last epoch would end after now by rounding, the end of that epoch is
        set to now, so that the epoch counts.
        """
        hosts = services.computing.hosts
        ends = task.epoch_ends
        # on a shared host, ``ends`` lacks the running epoch, which must be the last one
        if hosts is not None and hosts.is_due(task) and ends is not None:
            return len(ends) + 1 == self.plan(task, services).epochs
        if not super().is_due(task, services):
            return False
        if ends:
            ends[-1] = min(ends[-1], services.simulation.now)
        return True


# not frozen, because the construction of a frozen object takes several times as long
@dataclass(slots=True, unsafe_hash=True)
class Train(EpochStep):
    """Task step in which the device trains on its own data, perhaps within a time limit.

    At the limit the training is cut short after its last complete epoch. With ``limit.cut_undoes``
    this undoes the whole training. The task is late if the training is undone, or if fewer than
    ``limit.at_least`` epochs are complete. With ``limit.go_on`` it is not late: the device then
    answers with the untrained model.

    Attributes:
        training: the training: its start model, epochs and terms of the loss.
        limit: time limits of the training.
    """

    training: Training
    limit: Limit = NO_LIMIT
    name = TRAIN

    def begin(self, task: Task, services: StepServices) -> None:
        services.note_data(task)
        if self.training.part is not None:
            task.samples = self.training.part.samples
        services.computing.begin(task, self.training)

    def plan(self, task: Task, services: StepServices) -> Plan:
        limit = math.inf
        if self.limit is not NO_LIMIT:
            limit = services.computing.limit_of(task, self.limit)
        # the time that the limit reserves for the upload is rounded up, so the limit may be too early
        slack_s = tie_s(limit) if self.limit.reserves else 0.0
        epoch_s = services.population.training_s(task.device, self.training, task.samples)
        return Plan(epoch_s, self.training.epochs, limit, self.limit.adaptive, slack_s)

    def end(self, task: Task, services: StepServices, cause: Cause | None) -> Ending:
        usage = services.computing.end(task, self.limit, cause)
        limit = self.limit
        ends = task.epoch_ends or []
        done = bisect_right(ends, services.simulation.now)  # count of the complete epochs
        # with ``cut_undoes``, an epoch that the limit cuts off undoes the whole training
        is_undone = limit.cut_undoes and done < len(ends)
        # a device with fewer epochs than ``at_least`` is slow, unless the step was interrupted
        is_slow = cause is None and (is_undone or done < limit.at_least)
        # a slow device that may go on answers with the untrained model; otherwise it is late
        task.epochs = 0 if is_slow and limit.go_on else done
        task.trained = (*task.trained, task.epochs)  # count of epochs of each training of the task
        facts: dict[str, Any] = {
            "epochs": task.epochs,
            "asked": self.training.epochs,
            "epoch_ends": ends[:done],
        }
        facts |= usage
        part = self.training.part
        if self.training.layers is not None:
            facts["layers"] = self.training.layers
        if part is not None:
            # index of the part of the samples, count of the parts, and count of the part's samples
            facts["part"] = [part.number, 2**part.splits, part.samples]
        if is_slow and not limit.go_on:
            return "late", facts
        return cause, facts


@dataclass(frozen=True, slots=True)
class Evaluate(EpochStep):
    """Task step in which the device computes the loss of models on its own training data.

    The task is late if the evaluation takes longer than the limit.

    Attributes:
        models: references to the models; ``LocalResult.tested`` is the model with the least loss.
        limit: limit of the evaluation's time.
        samples: count of training samples, drawn anew for each task; None for all samples.
    """

    models: tuple[Any, ...]
    limit: Limit = NO_LIMIT
    samples: int | None = None
    name = EVALUATE

    def begin(self, task: Task, services: StepServices) -> None:
        services.note_data(task)
        if self.samples is not None:
            task.samples = min(task.samples, self.samples)
        services.computing.begin(task, None)

    def plan(self, task: Task, services: StepServices) -> Plan:
        model_s = services.population.testing_s(task.device, task.samples)
        return Plan(model_s * len(self.models), 1, services.computing.limit_of(task, self.limit))

    def end(self, task: Task, services: StepServices, cause: Cause | None) -> Ending:
        usage = services.computing.end(task, self.limit, cause)
        is_done = bisect_right(task.epoch_ends or [], services.simulation.now) > 0
        facts: dict[str, Any] = {"models": len(self.models)}
        if self.samples is not None:
            facts["samples"] = task.samples
        facts |= usage
        if cause is None and not is_done:
            return "late", facts
        return cause, facts


@dataclass(frozen=True, slots=True)
class Work(EpochStep):
    """Task step in which the device computes something other than a model.

    Its time is the sum of the times of ``samples``, ``flops`` and ``seconds``.

    Attributes:
        samples: count of samples, which take the time of a training on these samples.
        flops: count of FLOPs, which take time by the device's FLOP/s.
        seconds: a fixed time (s).
        what: purpose of the work in records.
    """

    samples: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    what: str = ""
    name = COMPUTE

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of the step that are not 0 or empty, for its record: name -> value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value}

    def begin(self, task: Task, services: StepServices) -> None:
        services.note_data(task)
        services.computing.schedule_end(task)

    def plan(self, task: Task, services: StepServices) -> Plan:
        seconds = services.population.working_s(task.device, self)
        return Plan(seconds, 1, jitter_of=task.count)

    def end(self, task: Task, services: StepServices, cause: Cause | None) -> Ending:
        return cause, self.facts | services.computing.end(task, NO_LIMIT, cause)
