"""FedAT: tiers of similar speed in rounds of their own, whose models are mixed on arrival (Chai
et al., 2021).
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.spec import Epochs
from fedsim.common.training import Training
from fedsim.common.units import PositiveSeconds
from fedsim.federation import Client, Contents, Device, Instruction, LocalResult, TaskEnd
from fedsim.strategies.asynchronous import Asynchronous
from fedsim.strategies.base import StrategyParams
from fedsim.strategies.parts.aggregation import AggregationSpec, Weighted
from fedsim.strategies.state import state_of_slot
from fedsim.toolbox.strategies.tifl import Tiered


class FedATParams(StrategyParams):
    """Parameters of FedAT."""

    unaccounted: ClassVar[str] = (
        "FedAT's tiers have rounds of their own, and draws are counted from all devices"
    )
    kind: Literal["fedat"] = "fedat"
    tiers: int = Field(default=5, ge=1, le=10_000)
    """M, of as many devices each."""
    clients_per_round: int = Field(default=10, ge=1)
    """clients that a tier selects in a round of its own (all available ones, if fewer)."""
    local_epochs: Epochs = 1
    """E, passes over its own data that a client makes."""
    mu: float = Field(default=0.4, ge=0.0, le=1e6)
    """weight of the proximal term mu/2 ||w - w_received||^2, the paper's lambda; its default
    could not be checked.
    """
    aggregation: AggregationSpec = Weighted()
    """how a tier's updates become its model (``parts/aggregation``)."""
    retry: PositiveSeconds = 60.0
    """a tier without an available client, or without an update, looks again after this time (s)."""

    def check(self, devices: int) -> None:
        self.refuse_more("tiers", devices)
        self.refuse_more("clients_per_round", devices)
        self.aggregation.check(min(self.clients_per_round, devices // self.tiers))


class FedATClient(Client[FedATParams]):
    """Trains around the received model; to be profiled it does the same."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        model = instruction["profiling" if instruction.job == "profile" else "model"]
        return Training(model, self.params.local_epochs, mu=self.params.mu)

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        if result.update is None or result.start is None:
            return result
        return result._replace(
            update=self.params.aggregation.on_device(device, result.update, result.start)
        )

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        return (
            {"profiling": result.update}
            if instruction.job == "profile"
            else super().reply(device, instruction, result)
        )


class FedAT(Tiered[FedATParams], Asynchronous[FedATParams]):  # type: ignore[type-var]  # how many work follows from the tiers
    """Federated learning with asynchronous tiers.

    Source: Chai et al., "FedAT: a high-performance and communication-efficient federated learning
    system with asynchronous tiers" (SC 2021), Algorithm 2 with its cross-tier weights; without its
    compression, which ``[messages]`` can say.

    First every available device does the whole task of a round once (down and up d parameters), and
    the server measures its latency. Tiers are then as many devices each, from the fastest to the
    slowest. Each has rounds of its own: random clients receive the global model (d), train, and
    send their update (d); their mean becomes the tier's model, and the global model the mean of all
    tiers' models with the weights T_(M+1-m) / T, where T_m is how often tier m was updated. Until
    then a tier's model is the initial one. Each update of a tier makes a version. Devices that are
    away at first, and newcomers, are profiled when they are available, and join the tier of their
    latency.
    """

    Params = FedATParams
    Client = FedATClient

    async def on_start(self) -> None:
        tiers = self.params.tiers
        model = self.server.models.initial()
        self.state |= {
            "version": 0,
            "model": model,
            "open": {},
            "over": False,
            "draws": [0] * tiers,
        }
        self.state |= {
            "tiers": [model] * tiers,
            "counts": [0] * tiers,
            "received": [[] for _ in range(tiers)],
        }
        self.server.begin_round(0)
        self._meet_all(tiers)

    def tiers_of(self, devices: Sequence[int]) -> list[int]:
        return [
            bisect_left(self.state["cuts"], self.state["figures"][device]) for device in devices
        ]

    def begin(self, known: list[int]) -> None:
        state = self.state
        server = self.server
        tiers = self.params.tiers
        if server.devices - len(state["dropped"]) < tiers:
            server.stop(f"fewer than {tiers} devices have room for the training")
            return
        if len(known) < tiers:
            server.look_again("begin", self.params.retry, at_least=tiers)
            return
        server.cancel_timer("begin")
        parts = np.array_split(sorted(state["figures"][device] for device in known), tiers)
        # the highest latency of each tier but the last (s)
        state["cuts"] = [float(part[-1]) for part in parts[:-1]]
        self._sort_in(known)
        server.emit(
            "latency-tiers", bounds=state["cuts"], members=[len(part) for part in state["members"]]
        )
        for tier in range(tiers):
            self._open(tier)

    def _open(self, tier: int) -> None:
        state = self.state
        server = self.server
        among = state["members"][tier]
        for device in server.clients.sample(
            self.params.clients_per_round, "select", tier, state["draws"][tier], among=among
        ):
            task = server.ask(device, {"model": state["model"]}, round=state["version"], group=tier)
            state["open"][task] = {
                "version": state["version"],
                "model": state["model"],
                "tier": tier,
            }
        state["draws"][tier] += 1
        if not self._at_work(tier):
            server.look_again(f"tier/{tier}", self.params.retry)

    def _at_work(self, tier: int) -> bool:
        return any(begun["tier"] == tier for begun in self.state["open"].values())

    async def on_timer(self, name: str) -> None:
        what, _, tier = name.partition("/")
        if what == "begin":
            self._make_tiers()
        elif what != "tier":
            await super().on_timer(name)
        elif not self.state["over"] and not self._at_work(int(tier)):
            self._open(int(tier))

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        if self._ends_meeting(message):
            return
        begun = state["open"].pop(message.task)
        tier = begun["tier"]
        if message.outcome == "done":
            more: dict[str, Any] = {
                "start": begun["model"],
                "version": begun["version"],
                "contents": dict(message.contents),
            }
            state["received"][tier].append(self.entry(message, begun["model"]) | more)
        if state["over"] or self._at_work(tier):
            return
        if state["received"][tier]:
            await self._close(tier)
            if not state["over"]:
                # after every message of this instant
                self.server.timer(f"tier/{tier}", self.server.now)
        else:
            self.server.look_again(f"tier/{tier}", self.params.retry)

    async def _close(self, tier: int) -> None:
        state = self.state
        how = self.params.aggregation.for_rounds_of(self.params.clients_per_round)
        received, state["received"][tier] = state["received"][tier], []
        weights = await how.weigh(self.server, received, how.weights(received))
        memory = state_of_slot(state.setdefault("aggregation", {}), tier, how)
        # Clients' changes are relative to the model that the tier was sent, not to the tier's last
        # one.
        state["tiers"][tier] = how.combine(
            self.server, memory, received, weights, received[0]["start"]
        )
        state["counts"][tier] += 1
        # a tier weighs T_(M+1-m) / T, by the counts of all, the fastest first
        total = sum(state["counts"])
        parts = [
            (model, count / total)
            for model, count in zip(state["tiers"], reversed(state["counts"]), strict=True)
        ]
        for entry, weight in zip(received, weights, strict=True):
            entry |= {"weight": weight, "staleness": state["version"] - entry["version"]}
        model = self.server.models.mix(parts, otherwise=state["model"])
        await self.publish(model, received, group=tier, **how.told(len(received)))
