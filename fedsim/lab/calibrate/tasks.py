"""Types of a log's tasks and rounds, which are NumPy recarrays."""

from typing import Protocol, overload

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.world.network import Direction


class Steps(Protocol):
    """Record array of numpy with a row per task of a log, for one step of these tasks.

    The step is the download, the training or the upload. The row of a task that lacks the step has
    only NaN.

    Attributes:
        start: begin (s since the log's first instant); float64 [tasks].
        end: end (s since the log's first instant); float64 [tasks].
        amount: bytes of the transfer, or samples of the training; float64 [tasks].
    """

    start: Floats
    end: Floats
    amount: Floats

    def __getitem__(self, index: slice) -> "Steps": ...


class Tasks(Protocol):
    """Record array of numpy with a row per task of a log, sorted by the tasks' starts.

    Attributes:
        client: index of the client; int64 [tasks].
        number: number of the task's round in the log; int64 [tasks].
        epochs: count of epochs of the training; int64 [tasks].
        down, train, up: times and sizes of the download, the training and the upload, as ``Steps``
            with a row per task.
    """

    client: Ints
    number: Ints
    epochs: Ints
    down: Steps
    train: Steps
    up: Steps

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: Direction) -> Steps: ...

    @overload
    def __getitem__(self, index: Flags | Ints) -> "Tasks": ...


class Rounds(Protocol):
    """Record array of numpy with a row per round of a log.

    If the server is asynchronous, a row is a model version instead.

    Attributes:
        number: number of the round in the log; int64 [rounds].
        start: begin (s since the log's first instant); float64 [rounds].
        end: end (s since the log's first instant); float64 [rounds].
    """

    number: Ints
    start: Floats
    end: Floats

    def __len__(self) -> int: ...

    def __getitem__(self, index: Flags | Ints) -> "Rounds": ...


def durations(steps: Steps) -> Floats:
    """Return the duration of each task's step (s), NaN for a missing step; float64 [tasks]."""
    return steps.end - steps.start


def spans(tasks: Tasks) -> tuple[Floats, Floats]:
    """Return the begin of each task's first step, and the end of its last step (s).

    Returns:
        Begins and ends; float64 [tasks] each.
    """
    down = tasks.down
    train = tasks.train
    up = tasks.up
    start = np.fmin(down.start, np.fmin(train.start, up.start))
    end = np.fmax(down.end, np.fmax(train.end, up.end))
    return start, end


def has_ended(tasks: Tasks) -> Flags:
    """Return whether each task of a log has finished its upload; bool [tasks]."""
    return np.asarray(~np.isnan(tasks.up.end))
