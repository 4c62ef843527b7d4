"""A task as data: a tuple of steps for one device, and its progress; and the base of all steps.

A step is an interval of a task that can end early, with a cause. A kind of step is a dataclass
that is derived from ``TaskStep``: its methods begin and end the step, its class attributes name
its costs, and its fields are saved in checkpoints.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import simpy
from simpy.resources.resource import Request

from fedsim.clock.environment import Alarm
from fedsim.clock.simulation import Simulation, tie_s
from fedsim.world.meters.energy import POWERS, Power
from fedsim.world.network.endpoints import Direction
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network
from fedsim.world.services import ChargeWatch, ComputationTimer, DeviceTimes

Cause = Literal["late", "lost", "left", "battery", "stopped", "memory"]
"""Cause of a task's early end; ``late``: past its deadline, or no longer needed."""
Outcome = Literal["done", "late", "lost", "left", "battery", "stopped", "memory", "cancelled"]


Ending = tuple[Cause | None, dict[str, Any]]
"""Cause by which a step ended (None: it was completed), and further fields of its record."""


class StepServices(Protocol):
    """The services of the world that steps use; ``TaskRunner`` has them."""

    @property
    def simulation(self) -> Simulation:
        """The clock, and the sink of records."""

    @property
    def network(self) -> Network:
        """The links on which messages are sent."""

    @property
    def population(self) -> DeviceTimes:
        """Times of undisturbed work on each device."""

    @property
    def computing(self) -> ComputationTimer:
        """The timing of computations."""

    @property
    def charge(self) -> ChargeWatch:
        """The batteries of devices at work."""

    @property
    def running(self) -> Mapping[int, "Task"]:
        """ID -> each task that has not ended."""

    def end_step_at(self, task: "Task", end: float) -> None:
        """Set the alarm for the end of the running step of ``task`` at ``end`` (s)."""

    def note_data(self, task: "Task") -> None:
        """Note the samples that the device holds now, and their version, in the task."""

    def task_of(self, device: int) -> "Task | None":
        """The task on which a device works; None if it does not work."""

    def cut(self, task: "Task") -> None:
        """Interrupt a task whose device leaves, is flat, or disconnects at this instant."""


class TaskStep:
    """The base of all kinds of steps.

    Attributes:
        kinds: class name -> class of every kind of step; checkpoints save steps of these classes.
        name: name of the step in records.
        names: all values of ``name``, if a kind of step has several.
        power: the power that the device draws during the step; None for idle power alone.
        direction: direction of a message; None for steps that are no message.
    """

    __slots__ = ()
    kinds: ClassVar[dict[str, type["TaskStep"]]] = {}
    names: ClassVar[tuple[str, ...]] = ()
    power: ClassVar[Power | None] = None
    direction: ClassVar[Direction | None] = None

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...

    def __init_subclass__(cls) -> None:
        namesake = cls.kinds.get(cls.__name__)
        if namesake is not None and _is_shipped(namesake) and not _is_shipped(cls):
            raise TypeError(
                f"fedsim has a step of the class name {cls.__name__!r}, by which a checkpoint saves "
                "it; give yours another name"
            )
        cls.kinds[cls.__name__] = cls
        name = cls.__dict__.get("name")
        names = (name,) if isinstance(name, str) else cls.names
        if cls.power is not None:
            POWERS.update(dict.fromkeys(names, cls.power))

    def begin(self, task: "Task", runner: "StepServices") -> None:
        """Begin the step now, and arrange that ``task.carried_out`` is called at its end.

        Args:
            task: the task whose running step this is.
            runner: the services of the world: ``end_step_at``, ``network``, ``computing``,
                ``charge``, ``population``, ``simulation``.
        """
        raise NotImplementedError

    def end(
        self,
        task: "Task",
        runner: "StepServices",
        cause: Cause | None,
    ) -> Ending:
        """End the step now.

        Args:
            task: the task whose running step this is.
            runner: the services of the world, as in ``begin``.
            cause: the cause of an early end; None if the step was carried out.

        Returns:
            The cause with which the task ends (None: the task goes on), and fields of the record
            ``step-end`` beside ``step`` and ``outcome``.
        """
        return cause, {}

    def is_due(self, task: "Task", runner: "StepServices") -> bool:
        """Whether the running step is carried out by now, but for the rounding of times."""
        alarm = task.alarm
        if alarm is None or alarm.name[0] != "step" or task.fails:
            return False
        now = runner.simulation.now
        return alarm.when <= now + tie_s(now)


def _is_shipped(cls: type) -> bool:
    return cls.__module__.startswith("fedsim.")


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
    """IDs of the tasks that hold a ``slot`` or ``worker`` of a resource, then of the waiting.

    Args:
        name: the request of a task, ``slot`` or ``worker``.
        resource: the slots of a direction, or the workers of a host.
        tasks: ID -> each task that has not ended.
    """
    number_of = {id(getattr(task, name)): number for number, task in tasks.items()}
    return [number_of[id(request)] for request in (*resource.users, *resource.queue)]
