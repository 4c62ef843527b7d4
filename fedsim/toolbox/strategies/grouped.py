"""Base of strategies in rounds with a model for each group of devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from fedsim.common import former_keys
from fedsim.common.former_keys import Former
from fedsim.federation import Contents, Server, TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.round_params import CombiningParams, SelectingParams, SynchronousParams
from fedsim.strategies.round_timers import RoundTimer
from fedsim.strategies.state import Entries
from fedsim.strategies.synchronous import Synchronous, SynchronousState
from fedsim.toolbox.deadlines import Relative

Preset = Literal["paper", "published-code"]

COLD_START = "cold-start"
"""Reason in the record ``assign`` if a device without a group has found one by a separate task.

It is also the name of such a task's job, and of its contents.
"""

NO_GROUP = -1
"""Group index of a device without a group."""


class ClusteredParams(SelectingParams, CombiningParams):
    """Keys of ``[strategy]`` that all strategies with a model for each group of devices have.

    They are added to the keys of rounds and aggregation.

    Attributes:
        groups: m, the number of groups.
        follows: the source that the strategy follows if its two sources differ: the ``paper`` or
            the ``published-code``; docs/strategies.md has the differences.
    """

    renamed: ClassVar[Mapping[str, str]] = {"as": "follows"}
    sweeps: ClassVar[bool] = False
    """Whether the published code first asks the devices in turn, until each was asked once."""

    groups: int = Field(default=3, ge=1, le=10_000)
    follows: Preset = "published-code"

    @property
    def as_published(self) -> bool:
        """Whether the strategy follows its authors' published code, instead of the paper."""
        return self.follows == "published-code"


class PlainDeadline(SelectingParams):
    """Keys of ``[strategy]`` for strategies whose deadline counts from the start of a round.

    The deadline is a time, or a quantile of the times of earlier tasks. A deadline in epochs, or a
    deadline that counts from each client's download, is refused.
    """

    @model_validator(mode="after")
    def _check_plain_deadline(self) -> Self:
        if self.bounds_training or isinstance(self.deadline, Relative):
            raise ValueError(
                "'deadline' counts from the begin of the round here, in seconds: give a time, "
                "or a quantile"
            )
        return self


class GroupedParams(ClusteredParams, SynchronousParams):
    """Keys of ``[strategy]`` for strategies with groups in which a round asks all groups' clients.

    A group is a set of devices that share a model. A round asks ``clients_per_round`` clients in
    all.
    """

    instead: ClassVar[Former] = {**SynchronousParams.instead, **former_keys.GROUPS}

    def combined_at_once(self, devices: int) -> int:
        return super().combined_at_once(devices) // self.groups

    @property
    def unforeseen(self) -> str:
        return (
            "groups are drawn at random in place of those that learning makes; sizes differ by up "
            "to a tenth with the devices of a group"
        )


G = TypeVar("G", bound=ClusteredParams)


@dataclass
class Preparation(Entries):
    """Record of a task by which the group of a device is found: its device, message and answer.

    It is stored in the state of the strategy until the group is assigned.
    """

    task: int
    """ID of the task."""
    device: int
    """ID of the device."""
    in_round: bool
    """Whether the round waits for the task."""
    asked: Contents = field(default_factory=dict)
    """Contents of the message to the device, known once the task has ended."""
    contents: Contents = field(default_factory=dict)
    """Contents of the device's answer."""


@dataclass
class GroupedState(SynchronousState):
    """State of a strategy with groups of devices on the server: models, groups, preparations.

    A preparation is a task by which the group of a device is found.

    Attributes:
        models: Model of each group.
        group: Group index of each device; ``NO_GROUP`` (-1) for a device without a group.
        asked: Whether each device has ever been selected for a round.
        preparing: Open preparations, by task ID.
        prepared: Preparations that have ended at the present simulated time, and await
            ``Grouped.assign``.
        unprepared: IDs of the devices that must be prepared before they train again, in the order
            in which they were marked.
    """

    models: list[Ref] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    asked: list[bool] = field(default_factory=list)
    preparing: dict[int, Preparation] = field(default_factory=dict)
    prepared: list[Preparation] = field(default_factory=list)
    unprepared: list[int] = field(default_factory=list)


class Grouped(Synchronous[G]):
    """Base of strategies in rounds that train a model for each group of devices.

    A device whose group must be found first does a task called preparation, such as a training of
    the initial model, from which the server finds the group. A preparation is part of a round, in
    which the device then trains its group's model at once, or takes place outside the rounds. All
    devices whose preparations end at the same simulated time are assigned together. Subclasses
    implement ``preparation``, the message that starts the task, and ``assign``, which finds the
    groups.
    """

    State = GroupedState
    state: GroupedState

    def __init__(self, params: G, server: Server) -> None:
        super().__init__(params, server)
        self.state.group = [NO_GROUP] * server.devices
        self.state.asked = [False] * server.devices

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        """Return the message that starts the task by which a device's group is found, if needed.

        The task is called preparation. In a round the method is called before the device is asked
        to train; outside the rounds, after ``require_preparation`` was called for the device.

        Args:
            device: ID of the device.

        Returns:
            Contents of the message by name, and the name of the job; None, the default, if the
            device needs no preparation.
        """
        return None

    async def assign(self, prepared: Sequence[Preparation]) -> None:
        """Assign groups to devices, by calls of ``move``; by default nothing is assigned.

        It is called when devices have ended their preparation, the task by which their group is
        found.

        Args:
            prepared: the ended preparation of each device, with the message to the device and its
                answer.
        """

    def contents_after_preparation(self, device: int) -> Contents:
        """Return the message that starts a device's training after it has found its group.

        It is used if the device has found its group by a task (a preparation) in the same round. By
        default it equals the message to any other device (``contents``).

        Args:
            device: ID of the device.

        Returns:
            Contents by name.
        """
        return self.contents(device)

    async def after_aggregation(self) -> None:
        """Hook after a round's updates have been aggregated into the groups' models.

        By default nothing is done. A subclass may mix the models of different groups here.
        """

    def move(self, device: int, group: int, why: str) -> None:
        """Assign a device to a group; a change is recorded among the run's events as ``assign``.

        Args:
            device: ID of the device.
            group: index of the group.
            why: the reason, a field of the record, such as ``cold-start`` or ``migration``.
        """
        previous = self.group_of(device)
        if previous == group:
            return
        self.state.group[device] = group
        self.server.emit("assign", device=device, group=group, before=previous, why=why)

    def members(self, group: int) -> list[int]:
        """Return the IDs of the devices in a group, ascending.

        Args:
            group: index of the group; ``NO_GROUP`` for the devices without a group.
        """
        groups = enumerate(self.state.group)
        return [device for device, group_of_device in groups if group_of_device == group]

    def group_of(self, device: int) -> int | None:
        group = self.state.group[device]
        return None if group == NO_GROUP else group

    async def choices(self, entries: Sequence[Mapping[str, Any]], purpose: str) -> list[int]:
        """Return the group that each device has chosen, which is the content ``id`` of its answer.

        In runs without learning the groups are drawn at random.

        Args:
            entries: for each device its received update or ended preparation, which has the answer
                as ``contents`` and the ID of the task as ``task``.
            purpose: name of the random stream for runs without learning.

        Returns:
            The group index in each answer.
        """
        models = self.server.models
        answers = [entry["contents"]["id"] for entry in entries]
        if models.learns:
            return await models.choices(answers)
        # for the memory forecast of ``fedsim check``, whose trial has no weights
        await models.note_skipped([answer.ref for answer in answers])
        if not entries:
            return []
        return self.random_groups(len(entries), purpose, entries[0]["task"])

    def random_groups(self, count: int, purpose: str, *ids: int) -> list[int]:
        """Draw groups at random, in place of groups found by learning, for runs without learning.

        Args:
            count: count of draws.
            purpose: name of the random stream.
            ids: integers that complete the name of the stream.

        Returns:
            ``count`` group indices.
        """
        generator = self.server.rng(purpose, *ids)
        groups: list[int] = generator.integers(len(self.state.models), size=count).tolist()
        return groups

    def models(self) -> ModelAssignment:
        groups = np.array(self.state.group)
        assignment: dict[str, tuple[Ref, list[int]]] = {}
        for group, model in enumerate(self.state.models):
            assignment[f"group/{group}"] = (model, np.flatnonzero(groups == group).tolist())
        return assignment

    def select(self) -> list[int]:
        """Return the round's clients, by the key ``selection``.

        If the published code that the strategy follows first asks all devices in turn, devices
        that no round has asked yet come first.
        """
        count = self.params.asked_per_round
        cohort = self._sweep(count)
        if len(cohort) < count:
            candidates = None  # all devices
            if cohort:
                devices = range(self.server.devices)
                candidates = [device for device in devices if device not in cohort]
            cohort += self.pick(count - len(cohort), among=candidates)
        for device in cohort:
            self.state.asked[device] = True
        return cohort

    def _sweep(self, count: int) -> list[int]:
        """Return available devices that no round has asked yet, at most ``count``.

        Some published codes ask all devices in turn in the first rounds. The list is empty in later
        rounds, and in strategies that do not follow such a code.
        """
        follows_such_code = self.params.sweeps and self.params.as_published
        if not follows_such_code:
            return []
        if self.state.round * count >= self.server.devices:  # earlier rounds had a place for each
            return []
        was_asked = self.state.asked
        available = self.server.clients.idle_devices()
        unasked = [device for device in available if not was_asked[device]]
        return unasked[:count]

    def _ask(self, device: int, continues: bool = False) -> None:
        """Send a device of the round its next task: a preparation if it needs one, else a training.

        A preparation is a task by which the device's group is found.

        Args:
            device: ID of the device.
            continues: whether the device has already had a preparation in this round.
        """
        preparation = self.preparation(device)
        if preparation is not None:
            self._prepare(device, *preparation, in_round=True, continues=continues)
        elif continues:
            self._start(device, self.contents_after_preparation(device), continues=True)
        else:
            super()._ask(device)

    def contents(self, device: int) -> Contents:
        return {"model": self.state.models[self.state.group[device]]}

    async def aggregate(self) -> None:
        models = self.state.models
        for group in range(len(models)):
            entries = [entry for entry in self.state.received if entry["group"] == group]
            if entries:
                model = models[group]
                models[group] = await self.next_model(model, entries, slot=group, group=group)
        await self.after_aggregation()

    def center(self, entry: Entry) -> Ref | None:
        group = entry["group"]
        return None if group is None else self.state.models[group]

    def require_preparation(self, device: int) -> None:
        """Make a device do its preparation, the task that finds its group.

        If the device has just been selected for a round, the preparation is part of the round.
        Otherwise it takes place outside the rounds: now if the device is idle, else when the task
        of the device has ended, or when the device returns.

        Args:
            device: ID of the device.
        """
        if device not in self.state.unprepared:
            self.state.unprepared.append(device)
        self._prepare_outside_round(device)

    def _prepare_outside_round(self, device: int) -> None:
        """Start a device's preparation, the task that finds its group, outside the rounds.

        Nothing is done unless the device is marked (``require_preparation``) and idle. A marked
        device that is about to be asked in a round is prepared in that round; if it is busy or
        unavailable, this method is called again when its task ends, or when it returns.
        """
        state = self.state
        if device not in state.unprepared or self.is_preparing(device):
            return
        # the round's clients are selected, and not yet asked
        about_to_be_asked = device in state.cohort and not state.open
        if about_to_be_asked or not self.server.clients.idle(device):
            return
        preparation = self.preparation(device)
        if preparation is None:
            state.unprepared.remove(device)
        else:
            self._prepare(device, *preparation, in_round=False)

    def _prepare(
        self, device: int, contents: Contents, job: str, *, in_round: bool, continues: bool = False
    ) -> None:
        if in_round:
            task = self._start(device, contents, job, continues=continues)
        else:
            task = self.server.ask(device, contents, job, group=self.group_of(device))
        self.state.preparing[task] = Preparation(task, device, in_round)

    def _passed_over(self, device: int) -> None:
        self._prepare_outside_round(device)

    def is_preparing(self, device: int) -> bool:
        """Return whether a device does the task that finds its group, or awaits the assignment.

        Args:
            device: ID of the device.
        """
        unfinished = [*self.state.prepared, *self.state.preparing.values()]
        return any(preparation.device == device for preparation in unfinished)

    async def on_return(self, device: int) -> None:
        self._prepare_outside_round(device)

    async def on_task_end(self, message: TaskEnd) -> None:
        """Store the answer of a device that has ended a preparation, or handle another ended task.

        A preparation is the task by which a device's group is found; the group is assigned by a
        timer at the same simulated time. Other tasks, such as a training, end as in
        ``Synchronous``. A device that still has to find its group (``require_preparation``) starts
        its preparation now if it is idle, else when it returns.

        Args:
            message: the ended task.
        """
        state = self.state
        device = message.device
        is_preparation = message.task in state.preparing
        if not is_preparation:
            self._prepare_outside_round(device)  # if the device was marked during the task
            could_not_begin = device in state.unprepared and not self.is_preparing(device)
            if could_not_begin:
                self.server.clients.await_return(device)
            await super().on_task_end(message)
            return
        preparation = state.preparing.pop(message.task)
        if message.outcome == "done":
            preparation.asked = dict(message.asked)
            preparation.contents = dict(message.contents)
            self._store_prepared(preparation)
            return
        # the preparation has failed
        if device in state.unprepared:
            self.server.clients.await_return(device)
        if preparation.in_round:  # the round counts the client as slow or disconnected
            await super().on_task_end(message)

    def _store_prepared(self, preparation: Preparation) -> None:
        """Store an ended preparation, and set the timer at which groups are assigned.

        The timer fires at the present simulated time, after all messages of this time have arrived,
        so that all devices prepared at this time are assigned together.
        """
        if not self.state.prepared:
            self.server.timer("assign", self.server.now)
        self.state.prepared.append(preparation)

    async def on_timer(self, name: str) -> None:
        """Assign groups to the devices that have just ended their preparation, or handle a timer.

        A preparation is the task that finds a device's group. The timer ``assign`` causes the
        assignment, after which devices of the round start their training. If the timer of the
        round's deadline, or a timer before the round's first messages, fires earlier at the same
        simulated time, groups are assigned first. That timer is handled when the trainings have
        been started.

        Args:
            name: name of the timer that has fired.
        """
        comes_after_assignments = name in (RoundTimer.ASK, RoundTimer.COMPUTED, RoundTimer.DEADLINE)
        if name == "assign":
            await self._assign_prepared()
        elif comes_after_assignments and self.state.prepared:
            self.server.cancel_timer("assign")
            await self._assign_prepared()
            self.server.timer(name, self.server.now)
        else:
            await super().on_timer(name)

    async def _assign_prepared(self) -> None:
        """Assign groups to the devices whose preparation has just ended.

        Devices that were prepared as part of the round are then asked to train.
        """
        prepared = self.state.prepared
        if not prepared:  # another timer of this instant has assigned groups
            return
        self.state.prepared = []
        await self.assign(prepared)
        for preparation in prepared:
            device = preparation.device
            if device in self.state.unprepared:
                self.state.unprepared.remove(device)
            if preparation.in_round:
                # The preparation has been open until now, so that the round waits for the training.
                del self.state.open[preparation.task]
                self._ask(device, continues=True)
        if len(self.state.received) >= self.params.enough:
            # Enough updates have arrived: the deadline is now, also for the trainings asked above.
            self.server.timer(RoundTimer.DEADLINE, self.server.now)
