"""A task is data: what the server asks of one device, as a tuple of steps, and how far the device has come with them.

Each step is an interval of simulated time that can end early, with a cause. The world passes models through untouched.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import simpy
from simpy.resources.resource import Request

from fedsim.environment import Alarm
from fedsim.training import NO_LIMIT, Limit, Training
from fedsim.world.network.endpoints import Direction
from fedsim.world.network.flows import Flow

Cause = Literal["late", "lost", "left", "battery", "stopped", "memory"]
"""Why a task ends before its last step: past its deadline (or no longer needed), its device vanished, left for good or has a
flat battery, the run was over, or what was to be computed does not fit into memory."""
Outcome = Literal["done", "late", "lost", "left", "battery", "stopped", "memory", "cancelled"]


class Payload(NamedTuple):
    """A part of a message, with a purpose of its own in the ledger, such as ``"model"`` or ``"update"``."""

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
    """The device trains on its own data, as long as the limit lets it."""

    training: Training
    limit: Limit = NO_LIMIT
    name = "train"


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The device computes the loss of ``models`` on its own training data: a forward pass over each sample for each model.

    With a budget it is late if it is not through by then. ``samples``: of so many, drawn for this task; None: of all.
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
    """The device writes models in the form in which they are sent, or reads them; takes a fixed time (s)."""

    name: Literal["encode", "decode"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """The device computes something without a ref, for as long as a training on ``samples``, ``flops`` and ``seconds`` take.

    Its jitter is named by the number of its device's task, so that one who begins a little later meets the same delay.
    ``what`` says what it is for.
    """

    samples: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    what: str = ""
    name = "compute"

    @property
    def facts(self) -> dict[str, Any]:
        """The amounts that are given, by name."""
        told = {"samples": self.samples, "flops": self.flops, "seconds": self.seconds, "what": self.what}
        return {name: value for name, value in told.items() if value}


@dataclass(frozen=True, slots=True)
class Pause:
    """The device takes a fixed time (s) without computing: its worker starts, or its code sleeps."""

    name: Literal["start-up", "sleep"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Queue:
    """The device waits until it is let in with the message of the step after this one, or has a worker of its host."""

    name = "queue"


Computation = Train | Evaluate | Work | Pause
"""Computation, or time without, that a client half may ask of its device."""

TaskStep = Download | Computation | Upload | Code | Pause | Queue


class Power(Protocol):
    """The batteries of devices, as the world asks them and tells them what a device does: ``fedsim.energy.batteries``."""

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


NOT_SAVED = tuple(f"Task.{name}" for name in ("process", "done", "slot", "worker", "alarm", "vanish", "battery", "fields"))
"""Fields that a snapshot omits; ``Task.take_up``, the process and the alarms bring them back."""


@dataclass(slots=True)
class Task:
    """A running or ended task: the whole truth about it, so that its device's process can be started again from it.

    Attributes:
        count: how many tasks this device was given before.
        continues: whether it goes on with what the task before began, which has computed for ``spent_s``.
        edge: the edge server with which it exchanges messages; None for the server itself.
        position, begun, step_start: the step that runs now, whether that has begun, and when (s).
        epochs, trained: local epochs that count, of the last training so far, and of each that is over.
        samples, version: training samples that it computes on, and of which version of the device's data.
        epoch_ends: when the epochs of the running training, or the running evaluation, end (absolute s).
        off, dry: when its device disconnects, and when its battery is flat (s), as far as that is known.
        fails: the running computation ends for want of memory.
        done: the end of the running step, for which its device's ``process`` waits.
        alarm, vanish, battery: ring at the end of a computation, when the device disconnects, and to look at its battery.
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
        self.fields = {"task": self.id, "device": self.device, "round": self.round, "group": self.group}

    def take_up(self) -> None:
        """Set what a snapshot does not hold."""
        self.process = self.done = self.slot = self.worker = self.alarm = self.vanish = self.battery = None
        self.__post_init__()

    def carried_out(self) -> None:
        """The running step is over: its process goes on, in this instant. A computation may have failed."""
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
        """Ask for a ``slot`` or a ``worker``; returns whether there was one. If not, the running step ends when there is."""
        request = resource.request()
        setattr(self, what, request)
        if not request.triggered:
            request.callbacks.append(lambda _: self.carried_out() if self.waits else None)
        return request.triggered

    def release(self, what: str) -> None:
        """Give it back, or ask for it no longer."""
        request = getattr(self, what)
        setattr(self, what, None)
        if request is not None and request.triggered:
            request.resource.release(request)
        elif request is not None:
            request.cancel()


def in_line(what: str, resource: simpy.Resource, tasks: Mapping[int, Task]) -> list[int]:
    """The tasks that have a ``slot`` or a ``worker`` of a resource, and then those that wait for one."""
    of = {id(getattr(task, what)): task_id for task_id, task in tasks.items()}
    return [of[id(request)] for request in (*resource.users, *resource.queue)]
