"""Tasks that real devices carry out, in place of the tasks of simulated devices."""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Flags, Ints
from fedsim.common.errors import SimulationError
from fedsim.federation.contents import Contents
from fedsim.federation.direction_codec import CodedContents
from fedsim.federation.dispatch import Dispatch
from fedsim.federation.notices import NoticeKind
from fedsim.federation.task_context import TaskContext
from fedsim.world.network import Network
from fedsim.world.population import Population
from fedsim.world.steps import Cause, Task, TaskStep


class Arrival(NamedTuple):
    """Arrival of a device's answer at the server: which task was answered, and when.

    Attributes:
        number: index of the answered task among the device's tasks, from 0 (``Task.count``).
        time: time of the arrival (s).
    """

    number: int
    time: float


class RemoteTasks:
    """Tasks that real devices carry out, with the interface of the simulated ``TaskRunner``.

    A device is reachable while its node (the program of the device) is connected.

    Args:
        simulation: the clock, which receives the records.
        population: the devices. A device's ``arrival`` is set when its node connects for the first
            time.
        network: the scenario's links.
        dispatch: is notified of ended tasks.

    Attributes:
        send: function that sends a task to its device; set by ``Nodes``.
        running: dict from task ID to task, of tasks that have not ended.
        switched_off: devices whose node was connected and is gone.
        arrivals: dict from device to arrival of its last answer that the server has used.
        times_asked: device -> count of its tasks.
        times_selected: device -> count of its selections: tasks of a round that do not continue
            an earlier task.
    """

    batteries = None
    send: Callable[[Task], None]

    def __init__(
        self,
        simulation: Simulation,
        population: Population,
        network: Network,
        dispatch: Dispatch,
    ) -> None:
        self.simulation = simulation
        self.population = population
        self.network = network
        self._dispatch = dispatch
        self.running: dict[int, Task] = {}
        self.switched_off: set[int] = set()
        self.arrivals: dict[int, Arrival] = {}
        self.times_asked: Counter[int] = Counter()
        self.times_selected: Counter[int] = Counter()
        device_count = len(population.speed)
        # whether each device's node is connected, and whether each device has an open task
        self._online = np.zeros(device_count, dtype=np.bool_)
        self._busy = np.zeros(device_count, dtype=np.bool_)
        self._task_count = 0

    def connect(self, device: int) -> None:
        """Note that a device's node (the program of the device) has connected, perhaps again.

        The strategy is notified of newcomers and of devices that are back.

        Args:
            device: ID of the device.
        """
        if self._online[device]:
            return
        self._online[device] = True
        if device in self.switched_off:
            self.switched_off.discard(device)
            self.simulation.record("node-return", {"device": device})
            self._dispatch.on_switched_on(device)
            return
        is_newcomer = self.simulation.now > 0.0  # other nodes are connected when the run begins
        self.population.arrival[device] = self.simulation.now
        self.simulation.record("node", {"device": device})
        if is_newcomer:
            self._dispatch.notices.notify(NoticeKind.NEWCOMER, device)

    def disconnect(self, device: int) -> None:
        """Handle the loss of a device's node, its program; the device's task ends as ``lost``."""
        if not self._online[device]:
            return
        self._online[device] = False
        self.switched_off.add(device)
        self.simulation.record("node-gone", {"device": device})
        for task in list(self.running.values()):  # a copy, as ended tasks are removed
            if task.device == device:
                self._finish(task, "lost")

    def is_idle(self, device: int) -> bool:
        """Return whether a device's node is connected and has no open task."""
        return bool(self._online[device] and not self._busy[device])

    def idle(self, devices: Ints) -> Flags:
        """Return whether devices' nodes are connected and have no open task; bool [n].

        Args:
            devices: IDs of the devices, int64 [n].
        """
        free: Flags = self._online[devices] & ~self._busy[devices]
        return free

    def reachable(self, devices: Ints) -> Flags:
        """Return whether the nodes of devices are connected; bool [n].

        Args:
            devices: IDs of the devices, int64 [n].
        """
        online: Flags = self._online[devices]
        return online

    def reachable_until(self, device: int) -> float:
        """Return infinity if a device's node is connected, else the present time (s)."""
        return math.inf if self._online[device] else self.simulation.now

    def next_on(self, device: int, time: float) -> float:
        """Return ``time`` (s) itself as the next time at which a device can be reached.

        A node (the program of a device) that is gone may be back at any time.
        """
        return time

    def anyone_ever(self) -> bool:
        """Return whether any device can be reached now or later: True, as a node may connect."""
        return True

    def start(
        self,
        device: int,
        steps: tuple[TaskStep, ...],
        round: int | None,  # noqa: A002
        group: int | None,
        *,
        continues: bool = False,
        edge: int | None = None,
        context: TaskContext | None = None,
    ) -> Task:
        """Send a task to an idle device, and return the task.

        Args:
            device: ID of the device.
            steps: first steps of the task.
            round: index of the round; None for a task outside of rounds.
            group: index of the device's group; None without groups.
            continues: whether the task continues the device's previous task.
            edge: index of an edge server; a deployment has none.
            context: state of the task, with the contents of the request.

        Raises:
            SimulationError: the device has another task, or its node is not connected.
        """
        if not self.is_idle(device):
            raise SimulationError(f"device {device} is asked, but it is busy or not connected")
        count = self.times_asked[device]  # count of the device's earlier tasks
        task = Task(self._task_count, device, steps, round, group, count, continues, edge, context)
        self._task_count += 1
        self.times_asked[device] = count + 1
        if round is not None and not continues:
            self.times_selected[device] += 1
        self.running[task.id] = task
        self._busy[device] = True
        task.step_start = self.simulation.now
        self.simulation.record("task-start", dict(task.fields))
        self.send(task)
        return task

    def receive(self, task_id: int, contents: Contents | None, outcome: Cause | None) -> None:
        """Process the answer of a device, and end its task.

        An answer to a task that has ended already is ignored.

        Args:
            task_id: ID of the task.
            contents: the answer's contents; None if it has none.
            outcome: cause of an early end; None if the task is done.
        """
        task = self.running.get(task_id)
        if task is None:
            return
        if outcome is None:
            if contents is not None:
                TaskContext.of(task).answer = CodedContents(contents, {})
            # the device's next request tells it that this answer has arrived
            self.arrivals[task.device] = Arrival(task.count, self.simulation.now)
        self._finish(task, outcome)

    def end(self, task_id: int, cause: Cause) -> None:
        """End an open task on the server's side; the device's later answer is ignored.

        Args:
            task_id: ID of the task; nothing is done if it has ended already.
            cause: why the task ends, such as ``late``; it becomes the task's outcome.
        """
        task = self.running.get(task_id)
        if task is not None:
            self._finish(task, cause)

    def end_all(self, cause: Cause) -> None:
        """End all open tasks on the server's side; later answers of devices are ignored.

        Args:
            cause: why the tasks end, such as ``stopped``; it becomes the tasks' outcome.
        """
        for task_id in list(self.running):
            self.end(task_id, cause)

    def _finish(self, task: Task, cause: Cause | None) -> None:
        del self.running[task.id]
        self._busy[task.device] = False
        task.outcome = cause or "done"
        self.simulation.record("task-end", {**task.fields, "outcome": task.outcome})
        self._dispatch.on_task_end(task)
