"""Tasks and rounds of a log, as recarrays."""

from typing import Protocol, overload

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.world.network import Direction


class Steps(Protocol):
    """One step of each task, as a recarray [tasks]; NaN if the task lacks the step.

    Attributes:
        start: begin (s, from the log's first instant).
        end: end (s).
        amount: bytes or samples.
    """

    start: Floats
    end: Floats
    amount: Floats

    def __getitem__(self, index: slice) -> "Steps": ...


class Tasks(Protocol):
    """Tasks in order of begin, as a recarray [tasks].

    Attributes:
        client: number of the client, from 0 on.
        number: number of the round.
        epochs: passes of the training.
        down, train, up: the steps.
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
    """Rounds, or versions of an asynchronous server, as a recarray [rounds].

    Attributes:
        number: number of the round.
        start: begin (s, from the log's first instant).
        end: end (s).
    """

    number: Ints
    start: Floats
    end: Floats

    def __len__(self) -> int: ...

    def __getitem__(self, index: Flags | Ints) -> "Rounds": ...


def took(steps: Steps) -> Floats:
    """Durations of steps (s); float64 [tasks]."""
    return steps.end - steps.start


def spans(tasks: Tasks) -> tuple[Floats, Floats]:
    """Begin of each task, and end of its last step (s); float64 [tasks] each."""
    down = tasks.down
    train = tasks.train
    up = tasks.up
    start = np.fmin(down.start, np.fmin(train.start, up.start))
    end = np.fmax(down.end, np.fmax(train.end, up.end))
    return start, end


def whole(tasks: Tasks) -> Flags:
    """Whether each task came to the end of its upload; bool [tasks]."""
    return np.asarray(~np.isnan(tasks.up.end))
