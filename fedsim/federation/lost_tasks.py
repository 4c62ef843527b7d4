"""Lost tasks that the server has not noticed yet."""

from functools import partial
from typing import TYPE_CHECKING

from fedsim.clock.simulation import Simulation, on_grid_after
from fedsim.federation.events import Handlers, TaskEnd

if TYPE_CHECKING:
    from fedsim.world.task_runner import TaskRunner


class LostTasks:
    """Lost tasks of which the strategy is notified later, when the server notices the loss.

    The server notices the loss after ``server.patience``, or earlier if the device is back. With the
    default patience of 0 the strategy is notified immediately, and nothing is stored here.

    Args:
        simulation: the clock.
        patience: time after which the server notices a lost task (s).
        tasks: the tasks on the devices.
        strategy: the strategy's code on the server.

    Attributes:
        unnoticed: task -> ``TaskEnd`` of each lost task whose loss the server has not noticed yet.
    """

    def __init__(
        self, simulation: Simulation, patience: float, tasks: "TaskRunner", strategy: Handlers
    ) -> None:
        self._simulation = simulation
        self._patience = patience
        self._tasks = tasks
        self._strategy = strategy
        self.unnoticed: dict[int, TaskEnd] = {}
        simulation.env.declare_alarm("notice", self._set_alarm)

    def add(self, end: TaskEnd) -> None:
        """Store a lost task, and set the time at which the server notices the loss.

        Args:
            end: the end of the task, of which the strategy is notified at that time.
        """
        self.unnoticed[end.task] = end
        now = self._simulation.now
        notice_time = on_grid_after(now + self._patience)
        # The server notices earlier if the device is back. Nobody knows when a device that is
        # switched off is back; ``on_switched_on`` is called then.
        if end.device not in self._tasks.switched_off:
            notice_time = min(notice_time, self._tasks.next_on(end.device, now))
        self._set_alarm(end.task, notice_time)

    def _set_alarm(self, task: int, when: float) -> None:
        self._simulation.wake(("notice", task), when, partial(self.notice, task))

    def notice(self, task: int) -> None:
        """Notify the strategy of a lost task; no effect if the server has noticed its loss before.

        Args:
            task: ID of the task.
        """
        end = self.unnoticed.pop(task, None)
        if end is not None:
            self._simulation.post(partial(self._strategy.on_task_end, end))

    def on_switched_on(self, device: int) -> None:
        """Notify the strategy of the lost tasks of a device that is switched on again."""
        lost_tasks = [task for task, end in self.unnoticed.items() if end.device == device]
        for task in lost_tasks:
            self.notice(task)

    def devices(self) -> list[int]:
        """Return the devices with a lost task that the server has not noticed yet."""
        return [end.device for end in self.unnoticed.values()]
