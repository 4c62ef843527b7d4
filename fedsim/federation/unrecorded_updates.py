"""Received updates whose aggregation is not recorded: no record ``aggregate`` names their tasks.

When a round is finished, the server records the aggregation of its unrecorded updates.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

from fedsim.common.errors import SimulationError
from fedsim.federation.contents import Contents, holds_model
from fedsim.federation.round_result import Measured
from fedsim.learning.refs import Ref


class UnrecordedUpdatesState(TypedDict):
    """State of ``UnrecordedUpdates`` in a checkpoint, from which a resumed run restores it.

    It has the tasks whose updates are in no record of an aggregation, and each device's last task;
    see the attributes of ``UnrecordedUpdates``.
    """

    unrecorded: dict[int, tuple[int, list[int]]]
    continuable: dict[int, tuple[int, int]]
    without_model: list[int]


class UnrecordedTask(NamedTuple):
    """Task whose update was aggregated, while no record of an aggregation lists the task so far.

    Attributes:
        task: ID of the task.
        round: the round for which the device worked.
        weight: weight of the update (``Measured.weight``).
    """

    task: int
    round: int
    weight: float


class UnrecordedUpdates:
    """Updates that the server has received and whose aggregation is not recorded yet.

    A record ``aggregate`` lists the tasks whose updates were aggregated. At the end of a round the
    server records the aggregations that the strategy has not recorded itself.

    Attributes:
        unrecorded: task -> round of the task and serial numbers of the models in its answer, for
            each answer that no record ``aggregate`` has listed.
        continuable: device -> ID and round of the device's last task, if that task is done and was
            asked for a round.
        without_model: IDs of the tasks that have trained in the present round and whose answers
            have no model, so that no aggregation has to list them. The record ``no-update`` lists
            them at the end of the round.
    """

    def __init__(self) -> None:
        self.unrecorded: dict[int, tuple[int, list[int]]] = {}
        self.continuable: dict[int, tuple[int, int]] = {}
        self.without_model: list[int] = []

    def add(
        self, task: int, device: int, round_number: int, contents: Contents, has_trained: bool
    ) -> None:
        """Store the answer of a task that is done, until a record lists the task as aggregated.

        Called only for tasks that were asked for a round.

        Args:
            task: ID of the task.
            device: ID of the task's device.
            round_number: index of the task's round, from 0.
            contents: the contents of the answer by name.
            has_trained: whether the task finished an epoch of a training.
        """
        self.continuable[device] = task, round_number
        serials = [value.serial for value in contents.values() if type(value) is Ref]
        if serials:
            self.unrecorded[task] = round_number, serials
        elif has_trained and not holds_model(contents):
            self.without_model.append(task)

    def continue_task(self, device: int, round_number: int | None) -> None:
        """Remove the answer of a device's last task, because the device's next task continues it.

        Both tasks count as one, and only the answer of the next task is an update. So no record
        ``aggregate`` has to list the last task.

        Args:
            device: ID of the device.
            round_number: round of the next task; it must be the round of the last task.

        Raises:
            SimulationError: the device's last task was not asked for this round, or is not done.
        """
        task, last_round = self.continuable.get(device, (None, None))
        if task is not None and last_round == round_number:
            self.unrecorded.pop(task, None)
            if task in self.without_model:
                self.without_model.remove(task)
            return
        obstacle = f"was last asked in round {last_round}"
        if task is None:
            obstacle = "has done nothing"
        raise SimulationError(
            f"device {device} is asked in round {round_number} with continues=True, but {obstacle}; "
            "a task continues the device's last one, which was asked in the same round and is "
            "done; leave 'continues' out after any other task"
        )

    def remove(self, tasks: Iterable[int]) -> None:
        """Remove the answers of tasks that a record lists as aggregated or as lost.

        An answer is lost if the edge server that has it is lost.

        Args:
            tasks: IDs of the tasks.
        """
        for task in tasks:
            self.unrecorded.pop(task, None)
            if task in self.without_model:
                self.without_model.remove(task)

    def find(self, updates: Sequence[Measured]) -> list[UnrecordedTask]:
        """Return the tasks of the given updates that no record of an aggregation lists so far.

        The server calls it at the end of a round, and lists these tasks in a new record.

        Args:
            updates: the updates that the strategy has aggregated. The task of an update is found by
                the serial number of the model (``Ref.serial``).
        """
        tasks_by_serial: dict[int, list[int]] = {}
        for task, (_, serials) in self.unrecorded.items():
            for serial in serials:
                tasks_by_serial.setdefault(serial, []).append(task)
        weights: dict[int, float] = {}  # task -> weight of its update
        for update in updates:
            # if several tasks have sent the same model, each update stands for one of these tasks
            candidates = tasks_by_serial.get(update.update.serial, ())
            unlisted = [task for task in candidates if task not in weights]
            if unlisted:
                weights[unlisted[0]] = update.weight
        unlisted_tasks: list[UnrecordedTask] = []
        for task, weight in weights.items():
            round_number, _ = self.unrecorded[task]
            unlisted_tasks.append(UnrecordedTask(task, round_number, weight))
        return unlisted_tasks

    def snapshot(self) -> UnrecordedUpdatesState:
        """Return the state that a checkpoint saves; ``restore`` sets it in a resumed run."""
        return {
            "unrecorded": self.unrecorded,
            "continuable": self.continuable,
            "without_model": self.without_model,
        }

    def restore(self, state: UnrecordedUpdatesState) -> None:
        """Set the state that ``snapshot`` returned, when a run is resumed from a checkpoint."""
        self.unrecorded = state["unrecorded"]
        self.continuable = state["continuable"]
        self.without_model = state.get("without_model", [])  # earlier checkpoints lack it
