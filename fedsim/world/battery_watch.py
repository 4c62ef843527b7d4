"""Watch over the batteries of devices with a task: a task ends when the battery is flat."""

import math
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from fedsim.clock.environment import CUT
from fedsim.world.steps import StepServices, Task, TaskStep

if TYPE_CHECKING:
    from fedsim.world.batteries import Batteries, BatteriesState


class BatteryWatchState(TypedDict):
    """State of ``BatteryWatch`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        batteries: state of the batteries; None if no device has one.
        at_risk: IDs of the tasks whose battery may be flat before the end of their message.
    """

    batteries: "BatteriesState | None"
    at_risk: list[int]


class BatteryWatch:
    """Part of ``TaskRunner`` that ends a device's task when the device's battery is flat.

    It also passes the begins and ends of tasks and steps on to ``Batteries``, which subtracts their
    energy from the batteries. A device without a battery is ignored.

    Args:
        runner: the runner of the tasks.
        batteries: the batteries of all devices; None if no device has one.

    Attributes:
        batteries: the argument ``batteries``.
    """

    def __init__(self, runner: StepServices, batteries: "Batteries | None") -> None:
        self._runner = runner
        self._simulation = runner.simulation
        self._network = runner.network
        self.batteries = batteries
        self._simulation.env.declare_alarm("battery", self.set_alarm)
        # task ID -> task whose device's battery may be flat before the end of its message
        self._at_risk: dict[int, Task] = {}
        if batteries is not None:
            self._network.on_shared = self._predict_at_risk

    def _find_batteries(self, task: Task) -> "Batteries | None":
        """Return ``batteries`` if the device of a task has a battery; otherwise None."""
        if self.batteries is None or not self.batteries.has(task.device):
            return None
        return self.batteries

    def begin_task(self, task: Task) -> None:
        batteries = self._find_batteries(task)
        if batteries is not None:
            batteries.begin_task(task.device)

    def begin_step(self, task: Task, step: TaskStep) -> None:
        batteries = self._find_batteries(task)
        if batteries is not None:
            batteries.begin_step(task.device, step)

    def end_step(self, task: Task, sent: float, *, is_flat: bool) -> None:
        """Update the battery of a task's device at the end of a step of the task.

        Args:
            task: the task.
            sent: payload that the step has transferred (bytes).
            is_flat: whether an empty battery ended the step.
        """
        batteries = self._find_batteries(task)
        if batteries is not None:
            task.cancel("battery")  # cancel the alarm of the previous prediction
            self._at_risk.pop(task.id, None)
            task.flat_at = math.inf  # the next step makes a new prediction
            batteries.end_step(task.device, sent, is_flat=is_flat)

    def end_task(self, task: Task) -> None:
        batteries = self._find_batteries(task)
        if batteries is not None:
            batteries.end_task(task.device)

    def runs_flat(self, task: Task, until: float) -> bool:
        """Return whether the battery of a task's device runs flat in the running step by a time.

        The time at which it runs flat is stored in ``task.flat_at``, infinity if it does not. A
        device without a battery never runs flat.

        Args:
            task: the task.
            until: the time (s).
        """
        batteries = self._find_batteries(task)
        if batteries is not None:
            task.flat_at = batteries.flat_at(task.device, until)
        return task.flat_at < math.inf

    def predict(self, task: Task) -> None:
        """Predict when the battery of a task's device will be flat, and set an alarm for that time.

        A step calls this method at its begin if its end is not known in advance, because the device
        sends, receives or waits. At the alarm the task ends if the battery is flat. Otherwise the
        prediction is repeated. If the prediction depends on the rate of the device's message, it is
        also repeated when rates of messages change.

        Args:
            task: the task.
        """
        if self.batteries is None:
            return
        batteries = self._find_batteries(task)
        if batteries is None:
            return
        remaining = 0.0  # bytes of payload
        rate = 0.0  # bytes of payload/s
        flow = task.flow
        if flow is not None:
            remaining = flow.size - self._network.sent(flow)
            # batteries count bytes of payload, as ``remaining`` does
            rate = self._network.rate(flow) / self._network.overhead
        when, is_flat, is_at_risk = batteries.predict(task.device, remaining, rate)
        task.flat_at = when if is_flat else math.inf
        if is_at_risk:  # predict again when rates change
            self._at_risk[task.id] = task
        if when < task.disconnects_at:  # otherwise the task ends before ``when``
            self.set_alarm(task.id, max(when, self._simulation.now))

    def set_alarm(self, number: int, when: float) -> None:
        """Set the alarm at which the battery of a task's device is flat, or is checked again.

        Args:
            number: ID of the task.
            when: time of the alarm (s).
        """
        task = self._runner.running[number]
        task.battery = self._simulation.env.at(
            ("battery", number), when, partial(self._end_or_predict_again, task), CUT
        )

    def _end_or_predict_again(self, task: Task) -> None:
        if self._simulation.now >= task.flat_at:
            self._runner.end_disconnected(task)
        else:
            self._predict_again(task)

    def _predict_at_risk(self) -> None:
        """Repeat the predictions for devices whose battery may be flat before their message ends.

        The network calls this method after rates of messages have changed.
        """
        for task in list(self._at_risk.values()):
            if task.waits and task.flow is not None and task.flow.ended is None:
                self._predict_again(task)

    def _predict_again(self, task: Task) -> None:
        assert self.batteries is not None
        sent = 0.0 if task.flow is None else self._network.sent(task.flow)
        self.batteries.update(task.device, sent)
        task.cancel("battery")
        self.predict(task)

    # state for checkpoints, and alarms that a resumed run sets again

    def snapshot(self) -> BatteryWatchState:
        batteries = None if self.batteries is None else self.batteries.snapshot()
        return {"batteries": batteries, "at_risk": list(self._at_risk)}

    def restore_batteries(self, state: BatteryWatchState) -> None:
        """Set the batteries' levels from a checkpoint; call this before the tasks are restored."""
        batteries = state["batteries"]
        if self.batteries is not None and batteries is not None:
            self.batteries.restore(batteries)

    def restore_tasks(self, state: BatteryWatchState) -> None:
        """Restore which tasks' batteries may run flat; call this after the tasks are restored."""
        self._at_risk = {number: self._runner.running[number] for number in state["at_risk"]}
