"""The round loop with groups of devices, each with a model of its own, and groups that devices
leave when their data shift.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Ints
from fedsim.common.registry import Registry
from fedsim.federation import Contents, Device, Header, Instruction, Server, TaskEnd
from fedsim.federation.evaluator import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.round_params import CombiningParams, SelectingParams, SynchronousParams
from fedsim.strategies.synchronous import Synchronous, SynchronousClient, SynchronousState
from fedsim.toolbox.clustering.moments import EachRound, ShiftTest, WhenShifted
from fedsim.toolbox.deadlines import Relative

Preset = Literal["paper", "published-code"]


class ClusteredParams(SelectingParams, CombiningParams):
    """Parameters of every strategy with groups, in addition to ``SelectingParams`` and
    ``CombiningParams``.

    Attributes:
        groups: m, how many groups there are.
        as: where they differ, what it follows: its ``paper`` or the ``published-code``;
            docs/strategies.md has the differences.
    """

    sweeps: ClassVar[bool] = False
    """Whether the published code's first rounds ask the devices in turn, until each has been
    asked once.
    """

    groups: int = Field(default=3, ge=1, le=10_000)
    # a keyword of Python
    __annotations__["as"] = Annotated[Preset, Field(default="published-code")]

    @property
    def as_published(self) -> bool:
        """Whether it follows the published code."""
        return bool(getattr(self, "as") == "published-code")


class PlainDeadline(SelectingParams):
    """Parameters of strategies whose deadline counts from the begin of the round, in seconds."""

    @model_validator(mode="after")
    def _from_the_round(self) -> Self:
        if self.bounds_training or isinstance(self.deadline, Relative):
            raise ValueError(
                "'deadline' counts from the begin of the round here, in seconds: give a time, "
                "or a quantile"
            )
        return self


class GroupedParams(ClusteredParams, SynchronousParams):
    """Parameters of strategies that ask a number of clients across all groups, in addition to
    ``ClusteredParams``.
    """

    instead: ClassVar[Mapping[str, str]] = {**SynchronousParams.instead, "sweep": "as"}

    def combined_at_once(self, devices: int) -> int:
        return super().combined_at_once(devices) // self.groups


G = TypeVar("G", bound=ClusteredParams)


@dataclass
class GroupedState(SynchronousState):
    """Memory of ``Grouped``."""

    models: list[Ref] = field(default_factory=list)
    """Models of the groups."""
    group: list[int] = field(default_factory=list)
    """Group of each device, -1 for none."""
    asked: list[bool] = field(default_factory=list)
    """Whether each device was ever asked in a round."""
    preparing: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Open tasks of preparation, task -> (device, whether the round waits for it)."""
    prepared: list[dict[str, Any]] = field(default_factory=list)
    """Tasks of preparation that have ended in this instant: ``task``, ``device``, ``in_round``,
    ``asked`` and ``contents``.
    """
    unprepared: list[int] = field(default_factory=list)
    """Devices that must be prepared before they train again, in order."""


class Grouped(Synchronous[G]):
    """A strategy in rounds with a model a group.

    A device without a group, or whose data have shifted, first gets a task of preparation, beside
    the rounds or within one; its task of the round then follows in the instant in which its group
    is known. Devices prepared in one instant are assigned together.
    """

    State = GroupedState
    state: GroupedState

    def __init__(self, params: G, server: Server) -> None:
        super().__init__(params, server)
        self.state.group = [-1] * server.devices
        self.state.asked = [False] * server.devices

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        """Contents and job of the device's preparation; None if it needs none."""
        return None

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        """Give devices that have been prepared their groups (``move``)."""

    def contents_after_preparation(self, device: int) -> Contents:
        """Message to a device that was prepared in the same round."""
        return self.contents(device)

    async def after_aggregation(self) -> None:
        """The groups' models are new: a step between them."""

    def move(self, device: int, group: int, why: str) -> None:
        """Put a device into a group, and record it if it is another one than before."""
        before = self.state.group[device]
        if before != group:
            self.state.group[device] = group
            self.server.emit(
                "assign", device=device, group=group, before=None if before < 0 else before, why=why
            )

    def members(self, group: int) -> list[int]:
        """The devices of a group, in ascending order."""
        return [device for device, own in enumerate(self.state.group) if own == group]

    def group_of(self, device: int) -> int | None:
        group = self.state.group[device]
        return None if group < 0 else group

    async def choices(self, entries: Sequence[dict[str, Any]], purpose: str) -> list[int]:
        """The group in each entry's content ``id``; where nothing is learnt, one at random from
        the stream ``purpose``.
        """
        if self.server.models.learns:
            return await self.server.models.choices([entry["contents"]["id"] for entry in entries])
        return self.random_groups(len(entries), purpose, *(entry["task"] for entry in entries[:1]))

    def random_groups(self, count: int, purpose: str, *ids: int) -> list[int]:
        """``count`` random groups, for runs without learning."""
        found: list[int] = (
            self.server.rng(purpose, *ids).integers(len(self.state.models), size=count).tolist()
        )
        return found

    def models(self) -> ModelAssignment:
        own = np.array(self.state.group)
        models = enumerate(self.state.models)
        return {
            f"group/{group}": (model, np.flatnonzero(own == group).tolist())
            for group, model in models
        }

    def select(self) -> list[int]:
        number = self.state.round
        wanted = self.params.asked_per_round
        chosen = list[int]()
        if (
            self.params.sweeps
            and self.params.as_published
            and number * wanted < self.server.devices
        ):
            chosen = [
                device for device in self.server.clients.online() if not self.state.asked[device]
            ][:wanted]
        if len(chosen) < wanted:
            others = (
                [device for device in range(self.server.devices) if device not in chosen]
                if chosen
                else None
            )
            chosen += self.pick(wanted - len(chosen), among=others)
        for device in chosen:
            self.state.asked[device] = True
        return chosen

    def _ask(self, device: int, continues: bool = False) -> None:
        """Ask a device for its next job in the round; ``continues``: it has been prepared in the
        round.
        """
        if (needed := self.preparation(device)) is not None:
            self._prepare(device, *needed, in_round=True, continues=continues)
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
                models[group] = await self.next_model(models[group], entries, group, group=group)
        await self.after_aggregation()

    def center(self, entry: dict[str, Any]) -> Ref | None:
        group = entry["group"]
        return None if group is None else self.state.models[group]

    def must_prepare(self, device: int) -> None:
        """The device has to be prepared: in its round if it has just been selected, else beside
        the rounds, when it can.
        """
        if device not in self.state.unprepared:
            self.state.unprepared.append(device)
        self._prepare_aside(device)

    def _prepare_aside(self, device: int) -> None:
        """Prepare a device now if it is free and not about to be asked; else when its task ends
        or it returns.
        """
        state = self.state
        about_to_be_asked = device in state.cohort and not state.open
        if device not in state.unprepared or self.is_preparing(device) or about_to_be_asked:
            return
        if not self.server.clients.idle(device):
            return
        if (needed := self.preparation(device)) is not None:
            self._prepare(device, *needed, in_round=False)
        else:
            state.unprepared.remove(device)

    def _prepare(
        self, device: int, contents: Contents, job: str, *, in_round: bool, continues: bool = False
    ) -> None:
        if in_round:
            task = self._start(device, contents, job, continues=continues)
        else:
            task = self.server.ask(device, contents, job, group=self.group_of(device))
        self.state.preparing[task] = (device, in_round)

    def _passed_over(self, device: int) -> None:
        self._prepare_aside(device)

    def is_preparing(self, device: int) -> bool:
        """Whether the device's preparation runs, or has ended in this very instant."""
        ended = [entry["device"] for entry in self.state.prepared]
        return device in ended or any(device == own for own, _ in self.state.preparing.values())

    async def on_return(self, device: int) -> None:
        self._prepare_aside(device)

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        device = message.device
        if message.task not in state.preparing:
            self._prepare_aside(device)
            if device in state.unprepared and not self.is_preparing(device):
                self.server.clients.await_return(device)
            await super().on_task_end(message)
            return
        _, in_round = state.preparing.pop(message.task)
        if message.outcome == "done":
            if not state.prepared:
                self.server.timer("assign", self.server.now)
            about = {"task": message.task, "device": device, "in_round": in_round}
            state.prepared.append(
                about | {"asked": dict(message.asked), "contents": dict(message.contents)}
            )
            return
        if device in state.unprepared:
            self.server.clients.await_return(device)
        if in_round:
            await super().on_task_end(message)

    async def on_timer(self, name: str) -> None:
        """First assign the devices prepared in this instant: a deadline can end only tasks that
        have started.
        """
        if name == "assign":
            if self.state.prepared:  # else another timer of this instant has seen to them
                await self._assign()
        elif name in ("ask", "computed", "deadline") and self.state.prepared:
            self.server.cancel_timer("assign")
            await self._assign()
            self.server.timer(name, self.server.now)
        else:
            await super().on_timer(name)

    async def _assign(self) -> None:
        prepared, self.state.prepared = self.state.prepared, []
        await self.assign(prepared)
        for entry in prepared:
            if entry["device"] in self.state.unprepared:
                self.state.unprepared.remove(entry["device"])
            if entry["in_round"]:
                del self.state.open[entry["task"]]
                self._ask(entry["device"], continues=True)
        if len(self.state.received) >= self.params.enough:
            # enough updates: no client that continues only now is needed
            self.server.timer("deadline", self.server.now)


def distance(counts: Ints, reference: Ints, metric: ShiftTest) -> float:
    """Distance of a device's label counts [C] from its reference, per class; for ``oracle`` any
    is far.

    ``sorted_counts`` is the Wasserstein distance of the two count vectors taken as samples, as
    the published code has it.
    """
    if metric == "oracle":
        return float("inf")
    if metric == "sorted_counts":
        counts = np.sort(counts)
        reference = np.sort(reference)
    return float(np.abs(counts - reference).sum() / len(counts))


class MigratingParams(GroupedParams):
    """Parameters of every strategy with migration, in addition to ``GroupedParams``."""

    instead: ClassVar[Mapping[str, str]] = {
        **GroupedParams.instead,
        **dict.fromkeys(("dynamic", "shift_metric"), "moment.shift"),
    }
    moment: Annotated[WhenShifted, Registry.of("moment", EachRound, usual="each-round")] = (
        EachRound()
    )
    """when devices choose their group: in each round, and when their data have shifted."""

    @property
    def usual_shift(self) -> ShiftTest:
        return "never"

    @property
    def shift(self) -> ShiftTest:
        """The test by which devices detect a shift of their data."""
        return self.moment.shift or self.usual_shift


M = TypeVar("M", bound=MigratingParams)


class MigratingClient(SynchronousClient[M]):
    """Detects shifts of its own data; state: ``reference``, label counts of the data by which it
    found its group.
    """

    def settles(self, device: Device, instruction: Instruction) -> bool:
        """Whether this task says which group the device belongs to."""
        raise NotImplementedError

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if self.settles(device, instruction):
            device.state["reference"] = device.used_label_counts.tolist()

    def on_shift(self, device: Device) -> Contents | None:
        if self.params.shift == "never":
            return None
        first = device.first_label_counts
        reference = np.array(device.state["reference"]) if "reference" in device.state else first
        far = distance(device.label_counts, reference, self.params.shift)
        most = 0.2 * float(first.sum()) / len(first)  # FlexCFL, Eq. 9
        return {"distance": Header(far), "threshold": Header(most)}


class Migrating(Grouped[M]):
    """A strategy with groups that devices leave when their data have shifted (FlexCFL, section
    3.4).

    A device whose data have changed compares its label counts with its reference, at no cost, as
    soon as it is idle. If they are too far apart it is prepared again, and its present counts
    become the reference. After preparing it tests new changes.
    """

    async def on_shift(self, device: int, contents: Mapping[str, float]) -> None:
        group = self.state.group[device]
        if group < 0 or self.is_preparing(device):
            return
        fired = bool(contents["distance"] > contents["threshold"])
        measured = {} if self.params.shift == "oracle" else dict(contents)
        self.server.emit("shift-test", device=device, group=group, fired=fired, **measured)
        if fired:
            self.must_prepare(device)

    def settle(self, device: int, group: int, newcomer: str = "cold-start") -> None:
        self.move(device, group, newcomer if self.group_of(device) is None else "migration")

    async def test_again(self, devices: Iterable[int]) -> None:
        """Have devices test themselves that were settled by data that may have changed since."""
        for device in devices:
            await self.server.clients.look_for_shift(device)

    async def _assign(self) -> None:
        devices = [entry["device"] for entry in self.state.prepared]
        await super()._assign()
        await self.test_again(devices)
