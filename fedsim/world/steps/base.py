"""Task of a device, as a tuple of steps and the progress so far, and the base of all steps.

A step is an interval of a task, such as a download, which can end early for a cause. A kind of step
is a dataclass derived from ``TaskStep``. Its methods begin and end the step, its class attributes
say which power the device draws and whether it sends, and its fields are saved in checkpoints.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import simpy
from simpy.resources.resource import Request

from fedsim.clock.environment import Alarm, DirectProcess, Signal
from fedsim.clock.simulation import Simulation, tie_s
from fedsim.common.errors import ScenarioError
from fedsim.common.saved import register_saved, saved
from fedsim.common.step_names import DIRECTIONS
from fedsim.common.training import Limit, Training
from fedsim.world.meters.energy import POWERS, Power
from fedsim.world.network.endpoints import Direction
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network

Cause = Literal["late", "lost", "left", "battery", "stopped", "memory"]
"""Cause of a task's early end.

``late``: the deadline is past, or the server does not need the task any more. ``lost``: the device
has disconnected, or its edge server is lost. ``left``: the device has left for good. ``battery``: its
battery is flat. ``stopped``: the run has ended. ``memory``: the model does not fit into the memory.
"""
Outcome = Literal["done", "late", "lost", "left", "battery", "stopped", "memory", "cancelled"]


Ending = tuple[Cause | None, dict[str, object]]
"""Cause of a step's early end (None for a completed step), and other fields of its record."""


class WorkAmounts(Protocol):
    """Attributes of the step ``Work``: amounts of work, from which ``DeviceTimes`` computes a time."""

    @property
    def samples(self) -> float:
        """Number of samples; each takes as long as training on a sample."""

    @property
    def flops(self) -> float:
        """Number of FLOPs."""

    @property
    def seconds(self) -> float:
        """Fixed time (s), which is added to the times of the samples and FLOPs."""


class HostQueue(Protocol):
    """Methods of ``Hosts`` that task steps call; a host is a machine on which several devices run."""

    def steps_until_admitted(self, task: "Task") -> "tuple[TaskStep, ...]":
        """Request a worker (a place to run) on its device's host for a task that begins.

        Args:
            task: the task.

        Returns:
            Steps to carry out before the task's own steps: ``Queue`` if all workers are busy, and a
            pause if workers take time to start.
        """

    def is_due(self, task: "Task") -> bool:
        """Whether the computation of a task is complete now, within the rounding of times."""


class DeviceTimes(Protocol):
    """Methods of ``Population`` that task steps call: times of work without random variation."""

    def training_s(self, device: int, training: Training, samples: int) -> float:
        """Time of an epoch of a training on ``samples`` samples (s)."""

    def testing_s(self, device: int, samples: int) -> float:
        """Time of a forward pass over ``samples`` samples (s)."""

    def working_s(self, device: int, work: WorkAmounts) -> float:
        """Time of a step ``Work``, which computes without a model (s)."""

    def failing_s(self, device: int, training: Training | None, samples: int) -> float | None:
        """Time until a training, or a test (``training`` None), runs out of memory (s).

        The result is None if the memory suffices.
        """


class ComputationTimer(Protocol):
    """Methods of ``EpochTimer``, which ends trainings and evaluations, that task steps call."""

    @property
    def hosts(self) -> "HostQueue | None":
        """Machines whose cores the devices share; None if each device has its own."""

    def begin(self, task: "Task", training: Training | None) -> None:
        """Begin the computation of a task's step: a training, or an evaluation (``training`` None)."""

    def schedule_end(self, task: "Task") -> None:
        """Compute the end of a task's running computation, and set the alarm for it.

        If the computation would contain thousands of slow phases of its device, only a part of it is
        computed now. The alarm then calls this method again at the end of this part.
        """

    def limit_of(self, task: "Task", limit: Limit) -> float:
        """Return the simulated time at which a deadline or time budget ends the running step (s).

        The result is infinity if ``limit`` has neither.
        """

    def end(self, task: "Task", limit: Limit, cause: "Cause | None") -> dict[str, object]:
        """End the running computation of a task.

        Args:
            task: the task.
            limit: the time limit of the computation, whose ``budget`` may have been used.
            cause: why the computation ended early, such as ``late``; None if it is complete.

        Returns:
            Fields of the record ``step-end``, by name.
        """


class ChargeWatch(Protocol):
    """Methods of ``BatteryWatch``, which ends tasks of flat devices, that task steps call."""

    def predict(self, task: "Task") -> None:
        """Predict when the battery of a task's device will be flat; set an alarm for that time."""

    def runs_flat(self, task: "Task", until: float) -> bool:
        """Whether the battery of the task's device runs flat in the running step by ``until`` (s)."""


class StepServices(Protocol):
    """Attributes and methods of ``TaskRunner`` that task steps use: clock, network, timers ..."""

    @property
    def simulation(self) -> Simulation:
        """Clock of the run, which also receives the records."""

    @property
    def network(self) -> Network:
        """Network on which messages are sent."""

    @property
    def population(self) -> DeviceTimes:
        """Durations of trainings, tests and other computations on each device.

        They are without random variation (jitter) and slow phases.
        """

    @property
    def computing(self) -> ComputationTimer:
        """Timer that ends each training or evaluation of a task at its computed time."""

    @property
    def battery_watch(self) -> ChargeWatch:
        """Object that ends a task when its device's battery is flat."""

    @property
    def running(self) -> Mapping[int, "Task"]:
        """Tasks that have not ended, by task ID."""

    def end_step_at(self, task: "Task", end: float) -> None:
        """Set the alarm for the end of the running step of ``task`` at ``end`` (s)."""

    def note_data(self, task: "Task") -> None:
        """Store the device's present sample count and data version in its task.

        A step of computing calls this at its begin, as its time depends on the sample count.
        """

    def task_of(self, device: int) -> "Task | None":
        """Return the running task of a device; None if the device has no task."""

    def end_disconnected(self, task: "Task") -> None:
        """End a task now because its device leaves for good, has a flat battery or disconnects."""


class TaskStep:
    """Base of the steps of a device's task, such as ``Train``.

    Attributes:
        name: name of the step in records.
        names: all values of ``name``, if a kind of step has several.
        power: the activity whose power the device draws in addition to idle power: ``compute``,
            ``receive`` or ``send``; None if it draws only idle power.
        direction: direction of the message, ``up`` or ``down``; None if the step sends no message.
    """

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ()
    power: ClassVar[Power | None] = None
    direction: ClassVar[Direction | None] = None

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...

    def __init_subclass__(cls) -> None:
        name = cls.__dict__.get("name")
        names = (name,) if isinstance(name, str) else cls.names
        _refuse_unknown_message(cls)
        register_saved(cls)
        if cls.power is not None:
            POWERS.update(dict.fromkeys(names, cls.power))

    def begin(self, task: "Task", services: "StepServices") -> None:
        """Begin the step now, and arrange that ``task.end_step`` is called at its end.

        Args:
            task: the task whose running step this is.
            services: the services of the world: ``end_step_at``, ``network``, ``computing``,
                ``battery_watch``, ``population``, ``simulation``.
        """
        raise NotImplementedError

    def end(
        self,
        task: "Task",
        services: "StepServices",
        cause: Cause | None,
    ) -> Ending:
        """End the step now.

        Args:
            task: the task whose running step this is.
            services: the services of the world, as in ``begin``.
            cause: the cause of an early end; None if the step was carried out.

        Returns:
            The cause with which the task ends (None: the task goes on), and fields of the record
            ``step-end`` beside ``step`` and ``outcome``.
        """
        return cause, {}

    def is_due(self, task: "Task", services: "StepServices") -> bool:
        """Whether the running step is complete now, within the rounding of times.

        Args:
            task: the task whose step is running.
            services: services of the world, as in ``begin``.
        """
        alarm = task.alarm  # an alarm for the end of the step has the kind ``step``
        if alarm is None or alarm.name[0] != "step" or task.fails:
            return False
        now = services.simulation.now
        return alarm.when <= now + tie_s(now)


def _refuse_unknown_message(step: type[TaskStep]) -> None:
    """Refuse a step that sends a message if its records would not be read as a message's.

    The bytes of messages are counted by the names of steps in the records.

    Args:
        step: a kind of step.

    Raises:
        ScenarioError: the step has a direction, and one of its names is not the name of a message in
            this direction.
    """
    direction = step.direction
    name = getattr(step, "name", None)  # the name may be inherited
    names = (name,) if isinstance(name, str) else step.names
    # ``DIRECTIONS``: name of a step that sends a message -> direction of the message
    has_message_names = names and all(DIRECTIONS.get(name) == direction for name in names)
    if direction is None or has_message_names:
        return
    base = {"down": "Download", "up": "Upload"}.get(direction, "Download or Upload")
    raise ScenarioError(
        f"{step.__module__}:{step.__qualname__} is a step with direction = {direction!r} and the "
        f"name {name!r}, so that its bytes would not be counted; allowed is a class that inherits "
        f"{base}, without a name of its own: the purpose of its payload tells its messages from "
        "others"
    )


@saved(
    omit=("process", "step_ended", "slot", "worker", "alarm", "disconnection", "battery", "fields")
)
@dataclass(slots=True)
class Task:
    """Work of a device for one request of the server, as a list of steps, with its present state.

    Its SimPy process can be started again from these attributes, after a restore.

    Attributes:
        id: ID of the task, unique within the run.
        device: ID of the device.
        steps: the steps, which the device does in order.
        round: index of the round; None for a task outside of rounds.
        group: ID of the device's group (cluster); None without groups.
        count: count of the device's tasks before this one.
        continues: whether the task continues the device's previous task, which has computed for
            ``spent_s`` (s).
        edge: index of the edge server with which the device exchanges messages; None if it
            exchanges them with the server.
        context: data that ``fedsim.federation`` attaches to the task; not used here.
        position, step_begun, step_start: index of the present step in ``steps``, whether that step
            has begun, and the time of its begin (s).
        epochs: count of epochs that the last training has completed; 0 if it completed too few, or
            was undone, and the device reports the untrained model (``Limit.go_on``).
        trained: the counts ``epochs`` of all trainings of the task that have ended, in order.
        samples, version: count of training samples on which the device computes, and the version of
            its data.
        epoch_ends: ends of the epochs of the running training or evaluation (simulated s).
        budget_from: begin of the time budget of a limit (s); None before the first computation.
        disconnects_at, flat_at: time at which the device disconnects, and time at which its battery
            is flat (s); infinity if unknown.
        fails: whether the running computation ends for lack of memory.
        flow: flow of the running message.
        outcome: ``done`` or the reason of a failure; None before the end.
        process: SimPy process that carries out the steps.
        step_ended: event of the end of the running step, for which the device's ``process`` waits.
        slot: request for one of the limited places for messages that are sent at a time; None
            without a request.
        worker: request for one of the limited places to run on the device's host; None without a
            request.
        alarm, disconnection, battery: alarms for the end of a computation, for the time at which the
            device disconnects, and for the next check of its battery.
        fields: entries that each record of the task has: IDs of task, device, round and group.
    """

    id: int
    device: int
    steps: tuple[TaskStep, ...]
    round: int | None
    group: int | None
    count: int
    continues: bool = False
    edge: int | None = None
    context: object = None
    position: int = 0
    step_begun: bool = False
    step_start: float = 0.0
    epochs: int = 0
    trained: tuple[int, ...] = ()
    samples: int = 0
    version: int = 0
    epoch_ends: list[float] | None = None
    spent_s: float = 0.0
    budget_from: float | None = None
    disconnects_at: float = math.inf
    flat_at: float = math.inf
    fails: bool = False
    flow: Flow | None = None
    outcome: Outcome | None = None
    process: DirectProcess | None = None
    step_ended: Signal | None = None
    slot: Request | None = None
    worker: Request | None = None
    alarm: Alarm | None = None
    disconnection: Alarm | None = None
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
        """Reset the attributes that a checkpoint omits, such as alarms, after a restore."""
        self.process = self.step_ended = None
        self.slot = self.worker = None
        self.alarm = self.disconnection = self.battery = None
        self.__post_init__()

    def end_step(self) -> None:
        """End the running step now: as complete, or for lack of memory if the task ``fails``."""
        assert self.step_ended is not None
        self.step_ended.fire("memory" if self.fails else None)

    def end_step_later(self) -> None:
        """End the running step as ``end_step`` does, but in an event after the present one."""
        assert self.step_ended is not None
        self.step_ended.succeed("memory" if self.fails else None)

    @property
    def step(self) -> TaskStep:
        return self.steps[self.position]

    def cancel(self, name: Literal["alarm", "disconnection", "battery"]) -> None:
        """Cancel an alarm of the task, if it is set.

        Args:
            name: attribute that holds the alarm.
        """
        alarm: Alarm | None = getattr(self, name)
        setattr(self, name, None)
        if alarm is not None:
            alarm.cancel()

    @property
    def waits(self) -> bool:
        """Whether the running step has begun and has not ended."""
        return self.step_begun and self.step_ended is not None and not self.step_ended.triggered

    def request(self, name: Literal["slot", "worker"], resource: simpy.Resource) -> bool:
        """Request a slot or a worker for the task; return whether it is granted immediately.

        If not, the task waits in its running step, which ends when the request is granted.

        Args:
            name: ``slot``, one of the limited places for messages that are sent at a time; or
                ``worker``, a place to run on the device's host.
            resource: the slots of a direction, or the workers of a host.
        """
        request = resource.request()
        setattr(self, name, request)
        # a task that has ended before the request is granted does not wait any more
        if not request.triggered:
            request.callbacks.append(lambda _: self.end_step() if self.waits else None)
        return request.triggered

    def release(self, name: Literal["slot", "worker"]) -> None:
        """Release the task's slot or worker, or withdraw the request if it is not granted yet.

        Args:
            name: ``slot`` or ``worker``, as in ``request``.
        """
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
    """Return the IDs of the tasks that have a slot or worker of a resource, or wait for one.

    Tasks that have one come first, then waiting tasks in the order of their requests. Checkpoints
    store this list.

    Args:
        name: ``slot`` (place for a message that is sent) or ``worker`` (place to run on a host).
        resource: the slots of a direction, or the workers of a host.
        tasks: ID -> each task that has not ended.
    """
    # each task stores its request object, by whose identity the task of a request is found
    task_of = {id(getattr(task, name)): task_id for task_id, task in tasks.items()}
    return [task_of[id(request)] for request in (*resource.users, *resource.queue)]
