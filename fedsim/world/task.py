"""A task as data: a tuple of steps for one device, and its progress."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import simpy
from simpy.resources.resource import Request

from fedsim.clock.environment import Alarm
from fedsim.world.network.flow import Flow
from fedsim.world.steps import (
    Cause,
    Code,
    Computation,
    Download,
    Evaluate,
    Outcome,
    Pause,
    Payload,
    Queue,
    TaskStep,
    Train,
    Upload,
    Work,
)


@dataclass(slots=True)
class Task:
    """A running or ended task, with all the state from which its process can be started again.

    Attributes:
        count: number of the device's tasks before this one.
        continues: whether the task goes on with the device's previous task, which has computed
            for ``spent_s`` (s).
        edge: the edge server with which the device exchanges messages; None for the server.
        context: the federation's part of the task.
        position, begun, step_start: place of the present step in ``steps``, whether that step has
            begun, and when (s).
        epochs, trained: local epochs that count, of the last training so far, and of each
            training that is over.
        samples, version: training samples on which the device computes, and the version of its
            data.
        epoch_ends: ends of the epochs of the running training or evaluation (absolute s).
        budget_from: time from which the budget of a limit counts (s).
        off, dry: when the device disconnects, and when its battery is flat (s), as far as known.
        fails: whether the running computation ends for lack of memory.
        flow: the running message.
        done: the end of the running step, for which the device's ``process`` waits.
        slot, worker: requests for a slot of a message, and for a worker of a host.
        alarm, vanish, battery: ring at the end of a computation, when the device disconnects,
            and to look at its battery.
    """

    not_saved: ClassVar[tuple[str, ...]] = (
        "process",
        "done",
        "slot",
        "worker",
        "alarm",
        "vanish",
        "battery",
        "fields",
    )
    """Fields that a snapshot omits: ``take_up``, the process and the alarms bring them back."""

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
        self.process = self.done = None
        self.slot = self.worker = None
        self.alarm = self.vanish = self.battery = None
        self.__post_init__()

    def carried_out(self) -> None:
        """End the running step in this instant."""
        assert self.done is not None
        self.done.succeed("memory" if self.fails else None)

    @property
    def step(self) -> TaskStep:
        return self.steps[self.position]

    def cancel(self, name: Literal["alarm", "vanish", "battery"]) -> None:
        """Cancel an alarm, if it is set."""
        alarm: Alarm | None = getattr(self, name)
        setattr(self, name, None)
        if alarm is not None:
            alarm.cancel()

    @property
    def waits(self) -> bool:
        """Whether the running step has begun and not ended."""
        return self.begun and self.done is not None and not self.done.triggered

    def request(self, name: Literal["slot", "worker"], resource: simpy.Resource) -> bool:
        """Request a ``slot`` or a ``worker``; returns whether the request is granted at once.

        Otherwise the running step ends when the request is granted.
        """
        request = resource.request()
        setattr(self, name, request)
        if not request.triggered:
            request.callbacks.append(lambda _: self.carried_out() if self.waits else None)
        return request.triggered

    def release(self, name: Literal["slot", "worker"]) -> None:
        """Release a ``slot`` or a ``worker``, or withdraw the request for it."""
        request: Request | None = getattr(self, name)
        setattr(self, name, None)
        if request is None:
            return
        if request.triggered:
            request.resource.release(request)
        else:
            request.cancel()


def in_line(
    name: Literal["slot", "worker"], resource: simpy.Resource, tasks: Mapping[int, Task]
) -> list[int]:
    """Numbers of the tasks that hold a ``slot`` or ``worker`` of a resource, then of the waiting.

    Args:
        name: the request of a task, ``slot`` or ``worker``.
        resource: the slots of a direction, or the workers of a host.
        tasks: number -> each task that has not ended.
    """
    number_of = {id(getattr(task, name)): number for number, task in tasks.items()}
    return [number_of[id(request)] for request in (*resource.users, *resource.queue)]


__all__ = [
    "Cause",
    "Code",
    "Computation",
    "Download",
    "Evaluate",
    "Outcome",
    "Pause",
    "Payload",
    "Queue",
    "Task",
    "TaskStep",
    "Train",
    "Upload",
    "Work",
    "in_line",
]
