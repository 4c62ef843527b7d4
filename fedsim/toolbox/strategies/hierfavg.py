"""HierFAVG: edge servers average their clients' models, and now and then the server averages
theirs (Liu et al., 2020).
"""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.training import Training
from fedsim.federation import Carried, Device, Instruction, TaskEnd
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import Weighted
from fedsim.strategies.parts.selection import QUESTION
from fedsim.strategies.round_params import CombiningParams, SelectingParams
from fedsim.strategies.state import state_of_slot
from fedsim.strategies.synchronous import SynchronousClient


class HierFAVGParams(SelectingParams, CombiningParams):
    """Parameters of HierFAVG, in addition to ``SelectingParams`` and ``CombiningParams``.

    Attributes:
        kappa1: SGD steps that a client makes in an edge round; None: ``local_epochs`` passes
            over its data.
        kappa2: edge rounds in a round.
        aggregation: how the updates of an edge server's clients become its model.
        deadline: of a whole round; at that time edge servers send what they have.
        selection: whom a round asks (``parts/selection``); not by what clients say with their
            updates.
    """

    at_edges: ClassVar[bool] = True

    unaccounted: ClassVar[str] = (
        "edge servers have rounds of their own, and draws are counted from all devices"
    )
    kind: Literal["hierfavg"] = "hierfavg"
    kappa1: int | None = Field(default=None, ge=1, le=1_000_000)
    kappa2: int = Field(default=4, ge=1, le=10_000)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kappa1 is not None and self.local_epochs != 1:
            raise ValueError(
                "'kappa1' and 'local_epochs' both say how long clients train; give one of them"
            )
        if self.selection.looks_at_each or (self.selection.talks and not self.selection.asks):
            raise ValueError(
                f"'selection' is {self.selection.kind!r}, which goes by what clients send with "
                "their updates, and these end at "
                "edge servers; allowed are random, least-asked, least-available, fedcs, and "
                "power-of-choice that asks"
            )
        return self

    def check_edges(self, edges: int) -> None:
        self.aggregation.check(self.clients_per_round // edges)

    @property
    def turns(self) -> int:
        return self.kappa2


class HierFAVGClient(SynchronousClient[HierFAVGParams]):
    """Trains for ``kappa1`` steps, or ``local_epochs``."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(instruction["model"], self.params.local_epochs, steps=self.params.kappa1)


class HierFAVG(FedAvg[HierFAVGParams]):
    """Hierarchical federated averaging.

    Source: Liu, Zhang, Song and Letaief, "Client-edge-cloud hierarchical federated learning"
    (ICC 2020), Algorithm 1; there all clients take part, which ``clients_per_round`` = devices
    does.

    In each round the server sends the global model (``edge-model``, d parameters) to the edge
    servers of K clients. Each has kappa2 edge rounds by itself: it sends its model to its clients
    (``model``, d); each makes kappa1 SGD steps and sends its model back (``update``, d); the edge
    server's model becomes their mean, weighted by samples. Then it sends that to the server
    (``edge-update``, d), whose model becomes their mean, weighted by the samples of the last edge
    round. With kappa2 = 1 that is FedAvg.

    A late or lost client is out until the next round; one that is away when an edge round begins
    counts by its last update. A lost edge server loses its clients' updates of the round (record
    ``updates-lost``), and they are not asked until it is back. The record ``round`` counts clients
    by their last task. A device's group is its edge server.
    """

    Params = HierFAVGParams
    Client = HierFAVGClient

    def group_of(self, device: int) -> int | None:
        return self.server.edges.of(device)

    def select(self) -> list[int]:
        server = self.server
        if all(map(server.edges.has, range(server.edges.count))):
            return super().select()
        among = [
            device for device in range(server.devices) if server.edges.has(server.edges.of(device))
        ]
        return self.pick(self.params.asked_per_round, among=among)

    async def before_asking(self) -> None:
        edges: dict[int, dict[str, Any]] = {}
        for device in self.state["cohort"]:
            new = {
                "clients": [],
                "left": self.params.kappa2,
                "open": [],
                "updates": [],
                "last": [],
                "tasks": [],
                "lost": False,
            }
            edges.setdefault(self.server.edges.of(device), new)["clients"].append(device)
        self.state |= {"edges": edges, "arrived": [], "valid": 0, "over": False}

    def _ask(self, device: int) -> None:
        edge = self.server.edges.of(device)
        if device == self.state["edges"][edge]["clients"][0]:
            self.server.edges.carry(
                edge, {"edge-model": self.state["model"]}, "down", round=self.state["round"]
            )

    async def on_carried(self, message: Carried) -> None:
        state = self.state
        edge = message.edge
        own = state["edges"][edge]
        if message.direction == "down" and message.outcome == "done" and not own["lost"]:
            own["model"] = own["start"] = message["edge-model"]
            await self._edge_round(edge)
            return
        if message.direction == "up" and message.outcome == "done":
            entry = {
                "task": own["tasks"][0],
                "device": None,
                "group": edge,
                "contents": message.contents,
            }
            samples = sum(each["samples"] for each in own["last"])
            state["arrived"].append(
                entry
                | {"update": message["edge-update"], "samples": samples, "start": own["start"]}
            )
            state["received"] += own["last"]
            own["tasks"] = []
        await self._leave(edge)

    async def on_edge_lost(self, edge: int) -> None:
        if edge in self.state.get("edges", {}):
            self.state["edges"][edge]["lost"] = True

    async def _edge_round(self, edge: int) -> None:
        state = self.state
        server = self.server
        own = self.state["edges"][edge]
        again = own["left"] < self.params.kappa2
        own["clients"] = [
            device for device in own["clients"] if server.clients.idle(device) and not state["over"]
        ]
        how: dict[str, Any] = {
            "round": state["round"],
            "group": edge,
            "continues": again,
            "at_edge": True,
        }
        for device in own["clients"]:
            task = server.ask(device, {"model": own["model"]}, **how)
            state["open"][task] = device
            own["open"].append(task)
            state["valid"] -= again
        if not own["open"]:
            await self._edge_through(edge)

    async def on_task_end(self, message: TaskEnd) -> None:
        if message.job == QUESTION:
            await super().on_task_end(message)
            return
        state = self.state
        edge = self.server.edges.of(message.device)
        own = state["edges"][edge]
        del state["open"][message.task]
        own["open"].remove(message.task)
        verdict = self._verdict(message)
        state[verdict] += 1
        if verdict == "valid":
            own["updates"].append(self.entry(message))
            own["tasks"].append(message.task)
        else:
            own["clients"].remove(message.device)
        if verdict != "valid" or own["left"] == 1:
            self._heard(message)
        if not own["open"]:
            await (self._leave(edge) if own["lost"] else self._edge_through(edge))

    async def _edge_through(self, edge: int) -> None:
        state = self.state
        server = self.server
        own = self.state["edges"][edge]
        if own["updates"]:
            how, own["last"] = self.params.aggregation, own["updates"]
            weights = await how.weigh(server, own["last"], how.weights(own["last"]))
            self.record_aggregate(own["last"], weights, group=edge, edge=edge)
            remembered = state_of_slot(state.aggregation, edge, how)
            own["model"] = how.combine(server, remembered, own["last"], weights, own["model"])
            own["updates"] = []
        own["left"] -= 1
        if own["left"] and own["clients"] and not state["over"]:
            await self._edge_round(edge)
        elif own["last"]:
            server.edges.carry(
                edge, {"edge-update": own["model"]}, "up", round=state["round"], start=own["start"]
            )
        else:
            await self._leave(edge)

    async def _leave(self, edge: int) -> None:
        own = self.state["edges"].pop(edge)
        if own["tasks"]:
            self.server.emit(
                "updates-lost", round=self.state["round"], edge=edge, tasks=own["tasks"]
            )
        if not self.state["edges"]:
            await self._close_round()

    def _end_open(self) -> None:
        self.state["over"] = True
        super()._end_open()

    async def aggregate(self) -> None:
        state = self.state
        how = Weighted()
        arrived = self.state["arrived"]
        if arrived:
            weights = await how.weigh(self.server, arrived, how.weights(arrived))
            edges = [entry["group"] for entry in arrived]
            self.server.emit(
                "edges-combined",
                round=state["round"],
                edges=edges,
                weights=weights,
                **how.told(len(edges)),
            )
            combined = how.combine(
                self.server, self.remembered("cloud"), arrived, weights, state["model"]
            )
            state["model"] = self.advance(state["model"], combined)

    def _counts(self) -> dict[str, int]:
        counts = {name: self.state[name] for name in ("valid", "slow", "disconnected")}
        return {"selected": sum(counts.values())} | counts
