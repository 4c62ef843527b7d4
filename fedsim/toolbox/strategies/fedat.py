"""FedAT: tiers of similar speed, each with its own rounds and model (Chai et al., 2021)."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.spec import Epochs
from fedsim.common.training import Proximal, Training
from fedsim.common.units import PositiveSeconds
from fedsim.federation import Client, Contents, Device, Instruction, LocalResult, TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousState, OpenTask
from fedsim.strategies.params import StrategyParams
from fedsim.strategies.parts.aggregation import AggregationSpec, Entry, Weighted
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.state import state_of_slot
from fedsim.toolbox.strategies.tiers import Tiered, TieredState


class FedATParams(StrategyParams):
    """Keys of ``[strategy]`` for FedAT: the tiers, their rounds, training and aggregation.

    A tier is a set of devices of similar speed. Each tier has separate rounds.

    Attributes:
        tiers: M, the number of tiers, which have equal numbers of devices.
        clients_per_round: number of clients that a tier selects for its round; fewer if fewer are
            available.
        local_epochs: E, passes of a client over its data.
        mu: weight of the proximal term mu/2 ||w - w_received||^2, the paper's lambda. The default
            was not checked against the paper.
        aggregation: how a tier's updates become its model (docs page ``parts/aggregation``).
        retry: time (s) after which a tier tries again to open a round, if no client was available
            or no update has arrived.
    """

    why_not: ClassVar[Reasons] = Reasons(
        privacy_account=(
            "FedAT's tiers have rounds of their own, and draws are counted from all devices"
        )
    )
    kind: Literal["fedat"] = "fedat"
    tiers: int = Field(default=5, ge=1, le=10_000)
    clients_per_round: int = Field(default=10, ge=1)
    local_epochs: Epochs = 1
    mu: float = Field(default=0.4, ge=0.0, le=1e6)
    aggregation: AggregationSpec = Weighted()
    retry: PositiveSeconds = 60.0

    def check(self, devices: int) -> None:
        self.refuse_more("tiers", devices)
        self.refuse_more("clients_per_round", devices)
        self.aggregation.check(min(self.clients_per_round, devices // self.tiers))


class FedATClient(Client[FedATParams]):
    """Client that trains with a proximal term around the received model, and sends the result.

    It does the same in its first task, by which the server measures its latency.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        content = "profiling" if instruction.job == "profile" else "model"
        epochs = self.params.local_epochs
        return Training(instruction[content], epochs, proximal=Proximal(self.params.mu))

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        if result.update is None or result.start is None:
            return result
        update = self.params.aggregation.on_device(device, result.update, result.start)
        return result._replace(update=update)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        if instruction.job == "profile":
            return {"profiling": result.update}
        return super().reply(device, instruction, result)


@dataclass
class FedATState(TieredState, AsynchronousState):
    """State of FedAT on the server: the global model, and each tier's model and updates.

    An open task has the additional entry ``tier``, the index of its tier.

    Attributes:
        tiers: Model of each tier.
        counts: T_m, how many times each tier's model was updated.
        received: Updates that each tier has received in its open round.
        tier_draws: Count of rounds that each tier has opened.
        aggregation: Tier index -> state of the tier's aggregation.
    """

    tiers: list[Ref] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    received: list[list[Entry]] = field(default_factory=list)
    tier_draws: list[int] = field(default_factory=list)
    aggregation: dict[int, Any] = field(default_factory=dict)


# The type variable of Asynchronous asks for ``concurrency``, which follows from the tiers here.
class FedAT(Tiered[FedATParams], Asynchronous[FedATParams]):  # type: ignore[type-var]
    """Federated learning with asynchronous tiers.

    A tier is a set of devices of similar speed. Each tier has separate rounds and a separate model;
    the global model is a weighted mean of the tiers' models.

    Source: Chai et al., "FedAT: a high-performance and communication-efficient federated learning
    system with asynchronous tiers" (SC 2021), Algorithm 2 with its cross-tier weights; without its
    compression, which a codec in ``[messages]`` can replace.

    - At first every available device trains once as in a round (down and up d parameters), and the
      server measures its latency. The devices are then divided into M tiers of equal size. Tier 1
      has the fastest devices, tier M the slowest.
    - In a tier's round random clients of the tier receive the global model (d), train, and send
      their update (d). The mean of the updates becomes the tier's model. Before its first round
      ends, a tier has the initial model.
    - After each round of a tier the global model becomes the weighted mean of all tiers' models,
      and is published as a new version. Tier m has the weight T_(M+1-m) / T. T_m counts the rounds
      of tier m that have replaced its model, and T is the sum of all T_m. Slow tiers thus get the
      counts of fast tiers as their weights.

    A device that is away at first, or a newcomer, does the measured training when it is available,
    and joins the tier into whose range its latency falls.
    """

    Params = FedATParams
    Client = FedATClient
    State = FedATState
    state: FedATState

    async def on_start(self) -> None:
        tiers = self.params.tiers
        model = self.server.models.initial()
        self.state.model = model
        self.state.tiers = [model] * tiers
        self.state.counts = [0] * tiers
        self.state.received = [[] for _ in range(tiers)]
        self.state.tier_draws = [0] * tiers
        self.server.begin_round(0)
        self._measure_all(tiers)

    def tiers_of(self, devices: Sequence[int]) -> list[int]:
        return [bisect_left(self.state.cuts, self.state.figures[device]) for device in devices]

    def make_tiers(self, devices: list[int]) -> None:
        """Divide devices into tiers of equal size by their latency, and open each tier's round.

        If there are fewer devices than tiers, the server waits for more devices. The run is stopped
        if too few devices have enough memory for the training.

        Args:
            devices: IDs of the devices whose latency is known.
        """
        state = self.state
        server = self.server
        tiers = self.params.tiers
        if server.devices - len(state.dropped) < tiers:
            server.stop(f"fewer than {tiers} devices have room for the training")
            return
        if len(devices) < tiers:
            server.look_again("begin", self.params.retry, at_least=tiers)
            return
        server.cancel_timer("begin")
        # a device's figure is its latency here; None if it is not measured yet
        latencies_s = sorted(figure for figure in state.figures if figure is not None)
        latencies_of_tiers = np.array_split(latencies_s, tiers)
        # highest latency (s) of each tier except the last one, which has no upper border
        state.cuts = [float(latencies[-1]) for latencies in latencies_of_tiers[:-1]]
        self._assign_tiers(devices)
        counts = [len(members) for members in state.members]
        server.emit("latency-tiers", bounds=state.cuts, members=counts)
        for tier in range(tiers):
            self._open_round(tier)

    def _open_round(self, tier: int) -> None:
        """Open a round of a tier, and send the global model to random clients of the tier.

        If no client is available, the tier tries again after the time ``retry``.

        Args:
            tier: index of the tier.
        """
        state = self.state
        version = state.version
        model = state.model
        cohort = self.server.clients.sample(
            self.params.clients_per_round,
            "select",  # purpose of the random stream, whose name the next two numbers complete
            tier,
            state.tier_draws[tier],
            among=state.members[tier],
        )
        for device in cohort:
            task = self.server.ask(device, {"model": model}, round=version, group=tier)
            state.open[task] = OpenTask(version, model) | {"tier": tier}
        state.tier_draws[tier] += 1
        if not self._is_busy(tier):  # no client was available
            self.server.look_again(f"tier/{tier}", self.params.retry)

    def _is_busy(self, tier: int) -> bool:
        """Return whether a client of a tier still works on a task of the tier's open round."""
        return any(task["tier"] == tier for task in self.state.open.values())

    async def on_timer(self, name: str) -> None:
        kind, _, tier = name.partition("/")
        if kind == "begin":
            self._make_tiers_if_measured()
        elif kind != "tier":
            await super().on_timer(name)
        elif not self.state.over and not self._is_busy(int(tier)):
            self._open_round(int(tier))

    async def on_task_end(self, message: TaskEnd) -> None:
        """Store the latency that a device's first task measured, or the update of a later task.

        If a later task was the last one of its tier's round, the round is closed. If the round has
        no update, it is opened again after the time ``retry``.

        Args:
            message: the ended task.
        """
        state = self.state
        if self._is_first_task(message.task):
            self._end_first_task(message)
            return
        task = state.open.pop(message.task)
        tier = task["tier"]
        if message.outcome == "done":
            entry = self.entry(message, task.model)
            entry["version"] = task.version
            state.received[tier].append(entry)
        is_last_task = not self._is_busy(tier)
        if state.over or not is_last_task:
            return
        if not state.received[tier]:
            self.server.look_again(f"tier/{tier}", self.params.retry)
            return
        await self._close_round(tier)
        if not state.over:
            # By a timer, the next round opens after all messages of this instant are handled.
            self.server.timer(f"tier/{tier}", self.server.now)

    async def _close_round(self, tier: int) -> None:
        """Close a tier's round: set the tier's model and the global model.

        The tier's model becomes the mean of its updates, and the global model the weighted mean of
        all tiers' models, which is published as a version.

        Args:
            tier: index of the tier.
        """
        state = self.state
        aggregation = self.params.aggregation.for_rounds_of(self.params.clients_per_round)
        received = state.received[tier]
        state.received[tier] = []
        # the tier's model
        weights = await aggregation.weigh(self.server, received, aggregation.weights(received))
        aggregation_state = state_of_slot(state.aggregation, tier, aggregation)
        # Clients' changes are relative to the global model that they received, not to the tier's
        # previous model.
        start = received[0]["start"]
        state.tiers[tier] = aggregation.combine(
            self.server, aggregation_state, received, weights, start
        )
        state.counts[tier] += 1
        # the global model, whose record has the weight and the staleness of each update
        for entry, weight in zip(received, weights, strict=True):
            entry |= {"weight": weight, "staleness": state.version - entry["version"]}
        model = self.server.models.mix(self._cross_tier_parts(), otherwise=state.model)
        await self.publish(model, received, group=tier, **aggregation.record_fields(len(received)))

    def _cross_tier_parts(self) -> list[tuple[Ref, float]]:
        """Return each tier's model with its weight in the global model, the fastest tier first.

        Of M tiers, tier m, counted from the fastest, has the weight T_(M+1-m) / T. T_m counts the
        updates of tier m, and T is the sum of all T_m, so that slow tiers, with few updates, weigh
        more.
        """
        counts = self.state.counts
        total = sum(counts)
        weights = [count / total for count in reversed(counts)]
        return list(zip(self.state.tiers, weights, strict=True))
