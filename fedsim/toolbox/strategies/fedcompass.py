"""FedCompass: local steps by each client's speed, so that groups arrive together (Li et al., 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.training import LocalSteps, Training
from fedsim.federation import Client, Device, Header, Instruction, TaskEnd
from fedsim.strategies.asynchronous import (
    Asynchronous,
    AsynchronousParams,
    AsynchronousState,
    OpenTask,
)
from fedsim.strategies.state import Entries
from fedsim.strategies.updates import AsynchronousUpdate


class FedCompassParams(AsynchronousParams):
    """Keys of ``[strategy]`` for FedCompass: bounds of local steps, waiting time, discounts.

    ``AsynchronousParams`` describes the keys of all asynchronous strategies.

    Attributes:
        min_steps: Q_min, the least count of SGD steps of a training, and the count of each client's
            first training.
        max_steps: Q_max, the largest count of SGD steps of a training.
        latest_factor: lambda, the longest wait for a group (clients that are to answer together).
            It counts from the opening of the group, as a multiple of the time from the opening to
            the group's expected arrival.
        speed_momentum: weight of the latest training in the estimate of a client's time per step.
        alpha: factor of all updates; the discount of staleness tau is alpha (1 + tau)^-exponent.
        exponent: exponent of the staleness discount.
        local_epochs: not a key; the number of local steps follows from the client's speed.
    """

    kind: Literal["fedcompass"] = "fedcompass"
    min_steps: int = Field(default=20, ge=1)
    max_steps: int = Field(default=100, ge=1)
    latest_factor: float = Field(default=1.2, ge=1.0)
    speed_momentum: float = Field(default=0.9, gt=0.0, le=1.0)
    alpha: float = Field(default=0.9, gt=0.0, le=1.0)
    exponent: float = Field(default=0.5, ge=0.0)
    # removes the key of the base class: None, its only value, cannot be written in a scenario
    __annotations__["local_epochs"] = Annotated[None, Field(default=None)]

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        if self.max_steps < self.min_steps:
            raise ValueError(
                f"'max_steps' is {self.max_steps}; allowed is 'min_steps' = {self.min_steps} or more"
            )
        return self

    @property
    def expected_steps(self) -> float:
        return (self.min_steps + self.max_steps) / 2

    @property
    def updates_of_round(self) -> float:
        # A client can join a group only if its count of steps is within the bounds. The estimate is
        # that half of the clients that can join do so.
        # Expected count of clients that can join, without the client that opens the group.
        joining = (self.concurrency - 1) * (1 - self.min_steps / self.max_steps)
        return 1 + joining / 2

    def discount(self, staleness: int) -> float:
        """Return the factor for the change by a stale update, alpha (1 + staleness)^-exponent.

        Args:
            staleness: count of versions of the model published since the client's download.

        Returns:
            The factor, 0 to 1.
        """
        return float(self.alpha * (1 + staleness) ** -self.exponent)


class FedCompassClient(Client[FedCompassParams]):
    """Client that trains the received model for the count of SGD steps that the server has set.

    The client sends its update.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(instruction["model"], LocalSteps(instruction["steps"]))


@dataclass
class ArrivalGroup(Entries):
    """Clients of FedCompass that are expected to answer at the same time.

    The server chooses their counts of local steps for this purpose, and aggregates their updates
    together.

    Attributes:
        expected: Time at which the clients are expected (s).
        latest: Time after which an answer is late (s).
        clients: Clients that have not answered yet.
        arrived: Clients that have answered in time.
        updates: Updates of the clients that have answered in time.
    """

    expected: float
    latest: float
    clients: list[int] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    updates: list[AsynchronousUpdate] = field(default_factory=list)


@dataclass
class FedCompassState(AsynchronousState):
    """State of FedCompass on the server: the model, open arrival groups, speeds of clients.

    An arrival group is a set of clients that answer together.

    Attributes:
        groups: Open arrival groups by index, in the order of their creation.
        next_group: Index of the next group.
        group_of: Device -> index of its group, for each device that works for a group.
        step_s: Device -> estimated time of a local step (s), transfers included.
        steps: Device -> count of steps of its open training.
        asked_at: Device -> time at which it was asked (s).
        late: Late updates, which the next group's aggregation includes.
    """

    groups: dict[int, ArrivalGroup] = field(default_factory=dict)
    next_group: int = 0
    group_of: dict[int, int] = field(default_factory=dict)
    step_s: dict[int, float] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    asked_at: dict[int, float] = field(default_factory=dict)
    late: list[AsynchronousUpdate] = field(default_factory=list)


class FedCompass(Asynchronous[FedCompassParams]):
    """Federated learning with a scheduler that knows the clients' computing power.

    Source: Li et al., "FedCompass: efficient cross-silo federated learning on heterogeneous client
    devices using a computing power-aware scheduler" (ICLR 2024, arXiv 2309.14675), and the
    scheduler of the authors' framework APPFL.

    There are no rounds. The server estimates each client's time per local step. It gives each
    client a number of steps between Q_min and Q_max, with which the client answers together with a
    group of other clients:

    - A client's first training has Q_min steps and no group. Its answer, which shows the client's
      speed, is aggregated at once.
    - Later the client joins the open group that allows it the most steps, so that it answers at the
      group's expected time.
    - If no open group allows a number in this range, the client opens a new group. Its number of
      steps is such that the fastest client of another open group can join the new group: after the
      other group's latest time this client still has time for Q_max of its steps. If there is no
      such group, the number is Q_max.
    - The answers of a group are aggregated when all its clients have answered, or at the group's
      latest time. A late answer waits for the next aggregation of any group.

    An aggregation sets the model w <- w + (1/N) sum_i alpha (1 + tau_i)^-a (w_i - w_i^received)
    over the answers i. N is ``concurrency``, w_i the trained model of a client, w_i^received the
    model that the client had received, tau_i the count of versions published since then, and a is
    ``exponent``.

    Messages are as in FedAsync, the model down and the update up (d parameters each), with the
    number of steps in the header. A client that has answered rests until its group is aggregated.
    """

    Params = FedCompassParams
    Client = FedCompassClient
    State = FedCompassState
    state: FedCompassState

    def _refill(self) -> None:
        """Ask clients, the fastest first, until ``concurrency`` clients work or rest.

        A client rests after its answer until its group is aggregated.
        """
        state = self.state
        server = self.server
        selection = self.params.selection
        state.refilling = False  # clients are replaced now
        if self._waits_for_clients():
            return
        resting = set[int]()  # clients that have answered, in groups that are not aggregated
        for group in state.groups.values():
            resting.update(group.arrived)
        missing = self.params.concurrency - len(state.open) - len(resting)
        candidates = None  # all devices
        if resting:
            candidates = [device for device in range(server.devices) if device not in resting]
        proposed = selection.select(server, state.selection, missing, (state.draws,), candidates)
        devices = server.clients.chosen(proposed, type(selection).select)
        state.draws += 1
        # The fastest client comes first, as a client joins a group that an earlier one has opened.
        for device in sorted(devices, key=self._speed_order):
            self._ask(device)
        # If too few clients were available, try again later. ``look_again`` also ends a run in
        # which no client will ever be available; this need not be checked while a task is open.
        if not state.open:
            server.look_again("refill", self.params.retry)
        elif len(state.open) + len(resting) < self.params.concurrency:
            server.timer("refill", server.now + self.params.retry)

    def _speed_order(self, device: int) -> tuple[float, int]:
        """Return the sorting key of a device by its time per local step, and then by its ID.

        The fastest device comes first; devices of unknown speed come last.

        Args:
            device: ID of the device.
        """
        return self.state.step_s.get(device, math.inf), device

    def _ask(self, device: int) -> None:
        """Send a client the model and the number of SGD steps that it is to take.

        With these steps it answers together with other clients, its arrival group. A client of
        unknown speed takes ``min_steps``, and joins no group.

        Args:
            device: ID of the client.
        """
        state = self.state
        steps = self.params.min_steps
        if device in state.step_s:
            steps = self._assign(device)
        state.steps[device] = steps
        state.asked_at[device] = self.server.now
        contents = {"model": state.model, "steps": Header(steps)}
        task = self.server.ask(device, contents, round=state.version)
        state.open[task] = OpenTask(state.version, state.model)

    def _assign(self, device: int) -> int:
        """Add a client to the best group of clients that answer together, or to a new group.

        Args:
            device: ID of the client, whose speed is known.

        Returns:
            The number of local SGD steps with which the client answers together with the group.
        """
        state = self.state
        best = self._best_group(device)
        if best is None:
            steps = self._steps_of_new_group(device)
            index = self._open_group(steps * state.step_s[device])
        else:
            index, steps = best
        state.groups[index].clients.append(device)
        state.group_of[device] = index
        return steps

    def _best_group(self, device: int) -> tuple[int, int] | None:
        """Find the open arrival group that leaves a client the most local steps.

        The steps must end at the time at which the group's clients are expected to answer.

        Args:
            device: ID of the client.

        Returns:
            The index of the group and the count of steps; None if no group allows a count from
            ``min_steps`` to ``max_steps``.
        """
        best: tuple[int, int] | None = None
        best_steps = self.params.min_steps
        for index, group in self.state.groups.items():
            steps = self._steps_until(group.expected, device)
            if best_steps <= steps <= self.params.max_steps:  # the last of equal groups is best
                best = index, steps
                best_steps = steps
        return best

    def _steps_until(self, time: float, device: int) -> int:
        """Return how many local SGD steps a client can take from now until a time.

        Args:
            time: simulated time (s).
            device: ID of the client.

        Returns:
            The count; negative if the time has passed.
        """
        return math.floor((time - self.server.now) / self.state.step_s[device])

    def _steps_of_new_group(self, device: int) -> int:
        """Return the count of local SGD steps of a client that opens a new arrival group.

        The new group is to arrive together with the fastest client of another open group, when that
        client answers for the next time. This is at the latest ``max_steps`` of its steps after the
        latest time of its present group. Groups for which the count would exceed ``max_steps`` are
        skipped. Of the other groups, the one that gives the largest count is chosen. The count is
        at least ``min_steps``; it is ``max_steps`` if all groups are skipped.

        Args:
            device: ID of the client.
        """
        state = self.state
        params = self.params
        counts = list[int]()  # steps of the device until each group's fastest client can arrive
        for group in state.groups.values():
            if self.server.now >= group.latest:  # about to be aggregated at this instant
                continue
            members = [*group.clients, *group.arrived]
            fastest_step_s = min(state.step_s[member] for member in members)
            # at the group's latest time, if not before, the fastest client is asked again
            latest_arrival = group.latest + fastest_step_s * params.max_steps
            steps = self._steps_until(latest_arrival, device)
            if steps <= params.max_steps:
                counts.append(steps)
        if not counts:
            return params.max_steps
        return max([*counts, params.min_steps])

    def _open_group(self, duration: float) -> int:
        """Open a group of clients that answer together, and set a timer for its latest time.

        Args:
            duration: time from now at which the clients are expected to answer (s).

        Returns:
            The index of the group.
        """
        state = self.state
        now = self.server.now
        index = state.next_group
        state.next_group += 1
        latest = now + duration * self.params.latest_factor
        state.groups[index] = ArrivalGroup(expected=now + duration, latest=latest)
        self.server.timer(f"group/{index}", latest)
        return index

    async def on_timer(self, name: str) -> None:
        kind, _, index = name.partition("/")
        if kind != "group":
            await super().on_timer(name)
        elif not self.state.over:
            await self._aggregate_group(int(index))

    async def on_task_end(self, message: TaskEnd) -> None:
        """Handle the end of a client's task: store or publish its update, and ask clients again.

        A client's first update is published at once as a new version of the model. A later update
        is stored in the client's arrival group, the clients that were to answer together. If this
        group has been aggregated already, the update is stored as late. A group is aggregated when
        its last client has answered.

        Args:
            message: the ended task.
        """
        state = self.state
        task = state.open.pop(message.task)
        device = message.device
        self.params.selection.on_task_end(self.server, state.selection, message)
        if state.over:
            return
        index = state.group_of.pop(device, None)
        group = None  # the task is in no group, or its group has been aggregated
        if index is not None:
            group = state.groups.get(index)
        if group is not None:
            group.clients.remove(device)  # the clients that have not answered
        if message.outcome == "done":
            self._estimate_speed(device)
            update = self._make_update(message, task)
            if index is None:  # the client's first task, in no group
                await self._publish([update])
            elif group is None:  # the group has been aggregated already
                state.late.append(update)
            else:
                group.arrived.append(device)
                group.updates.append(update)
        # without clients to wait for, the group is aggregated before its latest time
        if index is not None and group is not None and not group.clients:
            self.server.cancel_timer(f"group/{index}")
            await self._aggregate_group(index)
        self._refill_soon()

    def _make_update(self, message: TaskEnd, task: OpenTask) -> AsynchronousUpdate:
        """Return the update of an ended task, with the version of the model that was downloaded.

        Its weight is set when it is aggregated.

        Args:
            message: the ended task.
            task: the version and the model with which the task began.
        """
        update = self.entry(message, task.model)
        update["version"] = task.version
        return update

    def _estimate_speed(self, device: int) -> None:
        """Update the estimate of a client's time per local step, when its answer has arrived.

        The time since the client was asked includes its transfers.

        Args:
            device: ID of the client.
        """
        state = self.state
        duration_s = self.server.now - state.asked_at[device]
        measured = duration_s / state.steps[device]
        momentum = self.params.speed_momentum
        estimate = state.step_s.get(device, measured)
        state.step_s[device] = (1.0 - momentum) * estimate + momentum * measured

    async def _aggregate_group(self, index: int) -> None:
        """Close a group of clients, and publish a model with the updates that have arrived.

        Late updates of earlier groups are included. Without any update of the group nothing is
        published. Updates of the group that arrive later are late.

        Args:
            index: index of the group.
        """
        group = self.state.groups.pop(index)
        if group.updates:
            updates = [*self.state.late, *group.updates]
            self.state.late = []
            await self._publish(updates)
        self._refill_soon()

    async def _publish(self, updates: Sequence[AsynchronousUpdate]) -> None:
        """Move the model by the changes of updates, and publish it as a new version.

        The change of an update is its difference from the downloaded model. The longer ago the
        download, in versions, the smaller the change's weight.

        Args:
            updates: the updates; their staleness and weight are set.
        """
        state = self.state
        mix = self.server.models.mix
        parts = [(state.model, 1.0)]
        for update in updates:
            update.staleness = state.version - update["version"]
            update.weight = self.params.discount(update.staleness) / self.params.concurrency
            change = mix([(update.update, 1.0), (update.base, -1.0)])
            parts.append((change, update.weight))
        model = mix(parts, otherwise=state.model, rescale=False)
        await self.publish(model, updates)
