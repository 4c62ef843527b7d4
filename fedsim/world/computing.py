"""What devices compute in a task: how long it takes, what of it is done when it ends, and what a change of pace does to it.

A computation has one alarm, at its end, if the device does not disconnect before; others on the way if that is far away.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fedsim.environment import CUT
from fedsim.simulation import TICK_S, Simulation, on_grid, on_grid_after, tie_s
from fedsim.training import NO_LIMIT, Limit, Training
from fedsim.world.compute import Compute
from fedsim.world.network.base import Network
from fedsim.world.task import Cause, Code, Ending, Evaluate, Task, Train, Work

if TYPE_CHECKING:
    from fedsim.world.energy.batteries import Batteries
    from fedsim.world.population import Population


class Computing:
    """Begins and ends the steps of tasks in which devices compute; see ``TaskRunner``. ``cut`` interrupts a task whose battery
    is flat.

    Attributes:
        paces: device -> factor of its own speed at which it computes now, of those for which that is not 1.
    """

    def __init__(
        self,
        simulation: Simulation,
        population: "Population",
        compute: Compute,
        network: Network,
        batch_size: int,
        cut: Callable[[Task], None],
        batteries: "Batteries | None",
    ) -> None:
        self._simulation, self._cut = simulation, cut
        self._population, self._compute, self._network = population, compute, network
        self._batch_size = batch_size
        self._batteries = batteries
        self.paces: dict[int, float] = {}
        self._known_ends: dict[int, list[float]] = {}  # where the pace has changed: task -> ends up to the running one
        self._spent: dict[int, float] = {}  # how long devices have computed of a budget, which a task that goes on keeps to

    def note_task(self, task: Task) -> None:
        """A task begins: what its device holds, and what is left of a budget."""
        if self._spent:
            spent_s = self._spent.pop(task.device, 0.0)
            task.spent_s = spent_s if task.continues else 0.0
        self._note_data(task)

    def _note_data(self, task: Task) -> None:
        """Data may change while a device works: what counts is what it holds when it begins to compute."""
        task.samples = self._population.samples.item(task.device)
        task.version = self._population.version.item(task.device)

    # Begins.

    def train(self, task: Task, step: Train) -> None:
        """A training begins."""
        self._note_data(task)
        if step.training.part is not None:
            task.samples = step.training.part.samples
        self._begin(task, step.training)

    def test(self, task: Task, step: Evaluate) -> None:
        """A test of models begins."""
        self._note_data(task)
        if step.samples is not None:
            task.samples = min(task.samples, step.samples)
        self._begin(task, None)

    def work(self, task: Task, step: Work) -> None:
        """Other work begins."""
        self._note_data(task)
        self.look_ahead(task)

    def code(self, task: Task, step: Code) -> None:
        """Models begin to be written or read."""
        self._arm(task, on_grid(self._simulation.now + step.seconds))

    def _begin(self, task: Task, training: Training | None) -> None:
        if task.budget_from is None:
            task.budget_from = self._simulation.now - task.spent_s
        task.fails = False
        failing_s = self._population.failing_s(task.device, training, task.samples)
        if failing_s is None:
            self.look_ahead(task)
        else:
            task.epoch_ends, task.fails = [], True
            self._arm(task, on_grid_after(self._simulation.now + failing_s))

    def look_ahead(self, task: Task) -> None:
        """Find out when the running computation ends; if that is far away, only that it does not end for long.

        Most of what is far away never happens: a deadline comes before. If it does not, a look later goes twice as far.
        """
        now, step, start = self._simulation.now, task.steps[task.position], task.step_start
        limit, epochs, adaptive, draw = math.inf, 1, False, None
        if isinstance(step, Train):
            epochs, adaptive = step.training.epochs, step.limit.adaptive
            if step.limit is not NO_LIMIT:
                limit = self._limit(task, step.limit)
            epoch_s = self._population.training_s(task.device, step.training, task.samples, self._batch_size)
        elif isinstance(step, Work):
            draw = task.count
            epoch_s = self._population.working_s(task.device, step)
        else:
            assert isinstance(step, Evaluate)
            limit = self._limit(task, step.limit)
            epoch_s = self._population.testing_s(task.device, task.samples) * len(step.models)
        if self.paces:
            epoch_s /= self.paces.get(task.device, 1.0)
        last = max(start, min(task.off, self._simulation.end))  # then the device has vanished, or the run is over
        reach = self._compute.reach_s
        reach = reach if reach == math.inf else on_grid(start + max(reach, 2 * (now - start)))
        known = self._known_ends.get(task.id, []) if self._known_ends else []
        begin = known[-1] if known else start
        horizon, left = min(last, reach), epochs - len(known)
        ends = known + self._compute.epoch_ends(task.device, begin, epoch_s, left, limit, horizon, draw)
        far = reach < last and bool(ends) and reach < min(ends[-1], limit)
        if isinstance(step, Train) and step.limit.reserve_upload and ends and limit < ends[-1] <= limit + tie_s(limit):
            ends[-1] = limit  # the time that is kept back was rounded up
        if adaptive and not far:
            ends = self._compute.adapt(start, ends, limit)
        task.epoch_ends = ends
        if far and self._runs_dry(task, reach):
            self._arm(task, math.inf)
            return
        if far:
            task.alarm = self._simulation.wake(("look-ahead", task.id), reach, partial(self.look_ahead, task))
            return
        all_fit = bool(ends) and ends[-1] <= limit and (adaptive or len(ends) == epochs or limit == math.inf)
        self._arm(task, ends[-1] if all_fit else max(limit, now))

    def _limit(self, task: Task, limit: Limit) -> float:
        """When the running computation must be over (s)."""
        until = math.inf if limit.stop_at is None else limit.stop_at
        if limit.budget is not None and task.budget_from is not None:
            until = min(until, task.budget_from + limit.budget)
        if until == math.inf:
            return math.inf
        reserve = 0.0
        if limit.reserve_upload:
            alone_s = self._network.nominal_s(task.device, "up", limit.reserve_upload, near=task.edge is not None)
            # News of the last byte comes on a tick: between two of them on the next one, or on that after it by rounding.
            reserve = alone_s if on_grid(alone_s) == alone_s else on_grid_after(alone_s) + TICK_S
        if limit.reserve_s:
            reserve += on_grid_after(limit.reserve_s) + TICK_S
        return on_grid(until) - reserve

    def _arm(self, task: Task, end: float) -> None:
        """Set the alarm for the ``end`` of the computation, or for the instant at which the battery is flat before.

        There is none where the device disconnects before: then that ends it.
        """
        off = max(task.off, self._simulation.now)
        if self._batteries is not None and self._runs_dry(task, min(end, off)) and task.dry < end:
            task.battery = self._simulation.wake(("battery", task.id), task.dry, partial(self._cut, task), CUT)
        elif end <= off:
            task.alarm = self._simulation.env.at(("step", task.id), end, task.carried_out)

    def _runs_dry(self, task: Task, until: float) -> bool:
        """Whether the device's battery is flat at ``until`` (s), by what it does now."""
        if self._batteries is None:
            return False
        task.dry = self._batteries.dry(task.device, until)
        return task.dry < math.inf

    # Ends.

    def is_due(self, task: Task) -> bool:
        """Whether the running computation ought to be over now, but for the rounding of times; it then is."""
        now, alarm, ends = self._simulation.now, task.alarm, task.epoch_ends
        if alarm is None or alarm.name[0] != "step" or task.fails or alarm.when > now + tie_s(now):
            return False
        if ends:
            ends[-1] = min(ends[-1], now)
        return True

    def trained(self, task: Task, step: Train, cause: Cause | None) -> Ending:
        """A training has ended."""
        training, limit = step.training, step.limit
        self._note_end(task, limit)
        ends = task.epoch_ends or []
        done = bisect_right(ends, self._simulation.now)
        task.epochs = done
        cut = limit.cut_undoes and done < len(ends)
        if cause is None and (cut or done < limit.at_least):  # a slow straggler
            if limit.go_on:
                task.epochs = 0
            else:
                cause = "late"
        task.trained = (*task.trained, task.epochs)
        facts: dict[str, Any] = {"epochs": task.epochs, "asked": training.epochs, "epoch_ends": ends[:done]}
        if training.part is not None:
            facts["part"] = [training.part.number, 2**training.part.splits, training.part.samples]
        return cause, facts

    def tested(self, task: Task, step: Evaluate, cause: Cause | None) -> Ending:
        """A test of models has ended."""
        self._note_end(task, step.limit)
        if cause is None and not bisect_right(task.epoch_ends or [], self._simulation.now):
            cause = "late"
        part = {} if step.samples is None else {"samples": task.samples}
        return cause, {"models": len(step.models), **part}

    def worked(self, task: Task, step: Work, cause: Cause | None) -> Ending:
        """Other work has ended."""
        self._known_ends.pop(task.id, None)
        return cause, step.facts

    def coded(self, task: Task, step: Code, cause: Cause | None) -> Ending:
        """Models have been written or read."""
        return cause, {}

    def _note_end(self, task: Task, limit: Limit) -> None:
        if self._known_ends:
            self._known_ends.pop(task.id, None)
        if limit.budget is not None and task.budget_from is not None:
            self._spent[task.device] = self._simulation.now - task.budget_from

    # What processes of the world do.

    def set_pace(self, device: int, pace: float, task: Task | None) -> None:
        """From now on the device computes at a factor of its own speed; ``task``: whose computation runs, if one does.

        What is left of a running epoch or evaluation takes as much longer or shorter; later epochs are those of the new speed.
        """
        before = self.paces.pop(device, 1.0)
        if pace != 1.0:
            self.paces[device] = pace
        if task is None or task.epoch_ends is None or task.fails:
            return
        now, done = self._simulation.now, bisect_right(task.epoch_ends, self._simulation.now)
        if done == len(task.epoch_ends):
            return
        end = on_grid(now + (task.epoch_ends[done] - now) * (before / pace))
        for alarm in (task.alarm, task.battery):
            if alarm is not None:
                alarm.cancel()
        self._known_ends[task.id] = [*task.epoch_ends[:done], end]
        self.look_ahead(task)

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """What must be remembered besides the tasks; ``restore`` takes it back."""
        return {"paces": self.paces, "known_ends": self._known_ends, "spent": self._spent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave."""
        self.paces, self._known_ends, self._spent = state["paces"], state["known_ends"], state["spent"]
