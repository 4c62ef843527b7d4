"""A task as data: a tuple of steps for one device, and its progress.

A step is an interval that can end early, with a cause.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import simpy
from simpy.resources.resource import Request

from fedsim.clock.environment import Alarm
from fedsim.common.training import NO_LIMIT, Limit, Training
from fedsim.world.network.endpoints import Direction
from fedsim.world.network.flows import Flow

Cause = Literal["late", "lost", "left", "battery", "stopped", "memory"]
"""Cause of a task's early end; ``late``: past its deadline, or no longer needed."""
Outcome = Literal["done", "late", "lost", "left", "battery", "stopped", "memory", "cancelled"]


class Payload(NamedTuple):
    """A part of a message, with its own purpose in the ledger, such as ``"model"``."""

    purpose: str
    bytes: float


@dataclass(slots=True)  # a frozen one takes four times as long to make
class Download:
    """The server sends payloads to the device, as one message."""

    payloads: tuple[Payload, ...]
    name = "download"
    direction: ClassVar[Direction] = "down"


@dataclass(frozen=True, slots=True)
class Train:
    """The device trains on its own data, within the limit.

    Attributes:
        training: the ``Training``.
        limit: the limit of its time.
    """

    training: Training
    limit: Limit = NO_LIMIT
    name = "train"


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The device computes the loss of models on its training data; the task is late if that
    takes longer than the limit.

    Attributes:
        models: the models, a tuple of refs; ``LocalResult.tested`` is the best of them.
        limit: the limit of its time.
        samples: number of training samples, drawn anew for each task; None: all.
    """

    models: tuple[Any, ...]
    limit: Limit = NO_LIMIT
    samples: int | None = None
    name = "evaluate"


@dataclass(slots=True)
class Upload:
    """The device sends payloads to the server, as one message."""

    payloads: tuple[Payload, ...]
    name = "upload"
    direction: ClassVar[Direction] = "up"


@dataclass(frozen=True, slots=True)
class Code:
    """The device encodes or decodes models; takes a fixed time (s)."""

    name: Literal["encode", "decode"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """The device computes without a ref; the times of all that is given add up.

    Attributes:
        samples: the time of a training on so many samples.
        flops: the time of so many FLOPs.
        seconds: a fixed time (s).
        what: its purpose, in the records.
    """

    samples: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    what: str = ""
    name = "compute"

    @property
    def facts(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name))}


@dataclass(frozen=True, slots=True)
class Pause:
    """The device takes a fixed time without computing.

    Attributes:
        name: ``sleep``; ``start-up`` is that of hosts.
        seconds: the time (s).
    """

    name: Literal["start-up", "sleep"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Queue:
    """The device waits for a slot for its next message, or for a worker of its host."""

    name = "queue"


Computation = Train | Evaluate | Work | Pause
"""Steps that a client half may ask of its device."""

TaskStep = Download | Computation | Upload | Code | Pause | Queue


class Power(Protocol):
    """The batteries of devices, as the world uses them: ``fedsim.world.energy.batteries``."""

    def has(self, device: int) -> bool: ...
    def start(self, device: int) -> None: ...
    def begin(self, device: int, step: TaskStep) -> None: ...
    def dry(self, device: int, until: float) -> float: ...
    def look(self, device: int, left: float, rate: float) -> tuple[float, bool, bool]: ...
    def settle(self, device: int, moved: float = 0.0) -> None: ...
    def end(self, device: int, moved: float, *, dry: bool) -> None: ...
    def stop(self, device: int) -> None: ...
    def close(self) -> None: ...
    def charge(self, device: int) -> float: ...
    def plugged_in(self, device: int) -> bool: ...
    def snapshot(self) -> dict[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...
    def rearm(self, kind: str, device: int, when: float) -> None: ...


NOT_SAVED = tuple(
    f"Task.{name}"
    for name in ("process", "done", "slot", "worker", "alarm", "vanish", "battery", "fields")
)
"""Fields that a snapshot omits; ``Task.take_up``, the process and the alarms bring them back."""


@dataclass(slots=True)
class Task:
    """A running or ended task: all of its state, from which its device's process can be started
    again.

    Attributes:
        count: number of the device's tasks before this one.
        continues: whether it goes on with the device's task before, which has computed for
            ``spent_s``.
        edge: the edge server with which it exchanges messages; None for the server itself.
        position, begun, step_start: the step that runs now, whether it has begun, and when (s).
        epochs, trained: local epochs that count, of the last training so far, and of each that
            is over.
        samples, version: training samples that it computes on, and the version of the device's
            data.
        epoch_ends: ends of the epochs of the running training, or of the running evaluation
            (absolute s).
        off, dry: when its device disconnects, and when its battery is flat (s), as far as known.
        fails: whether the running computation ends for lack of memory.
        done: the end of the running step, for which its device's ``process`` waits.
        alarm, vanish, battery: ring at the end of a computation, when the device disconnects,
            and to look at its battery.
    """

    id: int
    device: int
    steps: tuple[TaskStep, ...]
    round: int | None
    group: int | None
    count: int
    continues: bool = False
    edge: int | None = None
    context: Any = None
    position: int = 0
    begun: bool = False
    step_start: float = 0.0
    epochs: int = 0
    trained: tuple[int, ...] = ()
    samples: int = 0
    version: int = 0
    epoch_ends: list[float] | None = None
    spent_s: float = 0.0
    budget_from: float | None = None
    off: float = math.inf
    dry: float = math.inf
    fails: bool = False
    flow: Flow | None = None
    outcome: Outcome | None = None
    process: simpy.Process | None = None
    done: simpy.Event | None = None
    slot: Request | None = None
    worker: Request | None = None
    alarm: Alarm | None = None
    vanish: Alarm | None = None
    battery: Alarm | None = None
    fields: dict[str, int | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.fields = {
            "task": self.id,
            "device": self.device,
            "round": self.round,
            "group": self.group,
        }

    def take_up(self) -> None:
        """Set attributes that a snapshot does not hold."""
        self.process = self.done = self.slot = self.worker = self.alarm = self.vanish = (
            self.battery
        ) = None
        self.__post_init__()

    def carried_out(self) -> None:
        """End the running step in this instant."""
        assert self.done is not None
        self.done.succeed("memory" if self.fails else None)

    @property
    def step(self) -> TaskStep:
        return self.steps[self.position]

    def cancel(self, what: Literal["alarm", "vanish", "battery"]) -> None:
        alarm: Alarm | None = getattr(self, what)
        setattr(self, what, None)
        if alarm is not None:
            alarm.cancel()

    @property
    def waits(self) -> bool:
        """Whether the running step has begun and not ended."""
        return self.begun and self.done is not None and not self.done.triggered

    def request(self, what: str, resource: simpy.Resource) -> bool:
        """Request a ``slot`` or a ``worker``; returns whether one is free.

        If not, the running step ends when one is.
        """
        request = resource.request()
        setattr(self, what, request)
        if not request.triggered:
            request.callbacks.append(lambda _: self.carried_out() if self.waits else None)
        return request.triggered

    def release(self, what: str) -> None:
        request = getattr(self, what)
        setattr(self, what, None)
        if request is not None and request.triggered:
            request.resource.release(request)
        elif request is not None:
            request.cancel()


def in_line(what: str, resource: simpy.Resource, tasks: Mapping[int, Task]) -> list[int]:
    """Numbers of the tasks that have a ``slot`` or a ``worker`` of a resource, then of those
    that wait.
    """
    of = {id(getattr(task, what)): task_id for task_id, task in tasks.items()}
    return [of[id(request)] for request in (*resource.users, *resource.queue)]
