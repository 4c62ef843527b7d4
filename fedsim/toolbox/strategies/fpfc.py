"""FPFC: a model for each device, fused with those that are near it (Yu, Liu, Wang and Sun, 2022)."""

from typing import Any, ClassVar, Literal, Self

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation import Contents, Device, Instruction, Server, TaskEnd
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.round_params import RoundParams, SynchronousParams
from fedsim.strategies.synchronous import Synchronous, SynchronousClient
from fedsim.toolbox.clustering.similarity import length
from fedsim.training import Training


class FPFCParams(SynchronousParams):
    """Parameters of FPFC, in addition to ``SynchronousParams``."""

    kind: Literal["fpfc"] = "fpfc"
    lam: float = Field(default=1.0, ge=0.0, le=1e6)
    """lambda, the strength of the penalty; 0: local training."""
    rho: float = Field(default=1.0, gt=0.0, le=1e6)
    """of the augmented Lagrangian, and how strongly a device is held to what it receives."""
    a: float = Field(default=3.7, gt=1.0, le=1e6)
    """of SCAD: what is farther apart than a lam is not penalised."""
    xi: float = Field(default=1e-4, gt=0.0, le=1e6)
    """within so small a distance the penalty is smooth."""
    nu: float = Field(default=1e-3, ge=0.0, le=1e6)
    """devices whose difference theta is no longer than this are of one group."""
    layers: Literal["all", "last"] = "all"
    """distances are those of whole models (``all``), or of their last layer (``last``, an option of the authors' code): then
    the whole difference of two models shrinks as that layer's does.
    """

    @model_validator(mode="after")
    def _has_one_minimum(self) -> Self:
        if (self.a - 1.0) * self.rho <= 1.0:
            raise ValueError(f"'a' is {self.a:g} and 'rho' {self.rho:g}; allowed is (a - 1) rho above 1")
        return self


class FPFCClient(SynchronousClient[FPFCParams]):
    """Goes on with its own ``model`` (absent until it has first answered), held to what it received."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        own = device.state.get("model", instruction["model"])
        return Training(own, self.params.local_epochs, mu=self.params.rho, anchor=instruction["model"])

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """The server has it as it arrived; one that is not finite on neither side."""
        device.state["model"] = device.mix([(reply["update"], 1.0)], otherwise=device.state.get("model", instruction["model"]))


class FPFC(Synchronous[FPFCParams]):
    """Fusion penalised federated clustering.

    Source: Yu, Liu, Wang and Sun, "Clustered federated learning based on nonconvex pairwise fusion" (2022), the algorithm FPFC
    (rules from memory): the least of the sum of f_i(w_i) and, over all pairs of m devices, 1 / m of SCAD's penalty (smooth near
    0) of ||w_i - w_j||, by ADMM. For each pair there are theta_ij = -theta_ji, which stands for w_i - w_j, and its dual v_ij,
    at first 0. A client receives z_i, the mean over j of w_j + theta_ij - v_ij / rho (d parameters), makes ``local_epochs`` of
    SGD on f_i(w) + rho / 2 ||w - z_i||^2 from its own w_i, and sends it (d parameters). Then, for each pair of which one was
    asked, delta = w_i - w_j + v_ij / rho, theta_ij = the proximal step of the penalty from delta, and v_ij = rho (delta -
    theta_ij).

    Devices with theta no longer than ``nu`` between them, or by way of others, are of one group, named by its first device; its
    model is the mean of theirs, weighted by samples. A device that has never answered is in no pair and no mean, and receives
    the first model. The paper's warm-up of lambda and asynchronous form are not built. Without learning there is one group.

    State besides ``Synchronous``'s: ``first``, the first model; by device ``own``, w_i, ``samples`` and ``group``; by pair (i,
    j), i < j, ``pairs``, theta and v as one array [2 d], and ``apart``, ||theta||; ``models``, group -> model.
    """

    Params: ClassVar[type[RoundParams]] = FPFCParams
    Client = FPFCClient
    score: Literal["pooled", "device-mean"] = "device-mean"

    def __init__(self, params: FPFCParams, server: Server) -> None:
        super().__init__(params, server)
        layers = [(tensor.name.rpartition(".")[0], tensor.size) for tensor in self.setting.tensors()]
        whole = params.layers == "all"
        self.begin = sum(size for layer, size in layers if not whole and layer != layers[-1][0])  # of what distances are about

    async def on_start(self) -> None:
        self.state["first"] = self.server.models.initial()
        self.state |= {"own": {}, "samples": {}, "pairs": {}, "apart": {}, "group": {}, "models": {}}
        await super().on_start()

    def contents(self, device: int) -> Contents:
        own, pairs = self.state["own"], self.state["pairs"]
        if device not in own:
            return {"model": self.state["first"]}
        others = [other for other in own if other != device]
        between = [pairs[min(device, other), max(device, other)] for other in others]
        signs = [1.0 if device < other else -1.0 for other in others]
        models = [own[device], *(own[other] for other in others), *between]
        return {"model": self.server.models.apply(held_to, models, otherwise=own[device], signs=signs, rho=self.params.rho)}

    def entry(self, message: TaskEnd) -> dict[str, Any]:
        return super().entry(message) | {"start": self.state["own"].get(message.device, message.asked["model"])}

    async def aggregate(self) -> None:
        state, server, received = self.state, self.server, self.state["received"]
        if not received:
            return
        self.record_aggregate(received, [1.0] * len(received))
        own, pairs = state["own"], state["pairs"]
        for entry in received:
            own[entry["device"]] = server.models.mix([(entry["update"], 1.0)], otherwise=entry["start"])
            state["samples"][entry["device"]] = entry["samples"]
        asked = {entry["device"] for entry in received}
        changed = [(i, j) for i in sorted(own) for j in sorted(own) if i < j and (i in asked or j in asked)]
        scad = {"begin": self.begin, **{name: getattr(self.params, name) for name in ("lam", "rho", "a", "xi")}}
        for i, j in changed:
            before = [pairs[i, j]] if (i, j) in pairs else []
            pairs[i, j] = server.models.apply(fused, [own[i], own[j], *before], size=2 * self.setting.parameters, **scad)
        state["apart"] |= dict.fromkeys(changed, 0.0)
        if server.models.learns and changed:
            told = server.models.apply(apart, [pairs[pair] for pair in changed], size=len(changed), begin=self.begin)
            state["apart"] |= zip(changed, (await server.models.value(told)).tolist(), strict=True)
        fused_pairs: nx.Graph[int] = nx.Graph([pair for pair, length in state["apart"].items() if length <= self.params.nu])
        fused_pairs.add_nodes_from(own)
        group = dict(sorted((device, min(part)) for part in nx.connected_components(fused_pairs) for device in part))
        for device, name in group.items():
            if state["group"].get(device) != name:
                server.emit("assign", device=device, group=name, before=state["group"].get(device), why="fused")
        state |= {"group": group, "models": {}}
        for name in sorted({*group.values()}):
            members = [device for device in group if group[device] == name]
            total = sum(state["samples"][device] for device in members)
            parts = [(own[at], state["samples"][at] / total if total else 1 / len(members)) for at in members]
            state["models"][name] = server.models.mix(parts, otherwise=own[members[0]])

    def group_of(self, device: int) -> int | None:
        return self.state["group"].get(device)  # type: ignore[no-any-return]

    def center(self, entry: dict[str, Any]) -> Ref:
        return self.state["models"][self.state["group"][entry["device"]]]  # type: ignore[no-any-return]

    def models(self) -> ModelAssignment:
        group = self.state["group"]
        others = [device for device in range(self.server.devices) if device not in group]
        served = {"first": (self.state["first"], others)} if others else {}
        for name, model in self.state["models"].items():
            served[f"group/{name}"] = model, [device for device in group if group[device] == name]
        return served


def shrunk(length: float, lam: float, rho: float, a: float, xi: float) -> float:
    """The penalised length of a difference of this ``length``: the t at which g(t) + rho / 2 (t - length)^2 is least.

    g is SCAD's penalty, smooth at 0: g'(t) = lam t / xi up to xi, lam up to lam, (a lam - t) / (a - 1) up to a lam, then 0.
    """
    if length <= xi + lam / rho:
        return length * xi * rho / (lam + xi * rho)
    if length <= lam + lam / rho:
        return length - lam / rho
    if length <= a * lam:
        return (length - a * lam / ((a - 1) * rho)) / (1 - 1 / ((a - 1) * rho))
    return length


@pure
def fused(models: list[NDArray[np.float32]], begin: int, lam: float, rho: float, a: float, xi: float) -> NDArray[np.floating]:
    """theta and v [2 d] of a pair of models [d], and of theirs before, if any, by the distance from ``begin`` on."""
    one, other = (model.astype(np.float64) for model in models[:2])
    delta = one - other + (models[2][len(one) :] / rho if len(models) > 2 else 0.0)
    before = length(delta[begin:])
    theta = delta * (shrunk(before, lam, rho, a, xi) / before) if before else delta
    return np.concatenate([theta, rho * (delta - theta)])


@pure
def held_to(models: list[NDArray[np.float32]], signs: list[float], rho: float) -> NDArray[np.floating]:
    """z of a device [d], of its model, those of the others, and the pairs with them: it comes first (sign 1) or second (-1)."""
    size, count = len(models[0]), len(signs) + 1
    total: NDArray[np.float64] = np.array(models[:count], dtype=np.float64).sum(axis=0)
    for sign, pair in zip(signs, models[count:], strict=True):
        total += sign * (pair[:size] - pair[size:].astype(np.float64) / rho)
    return total / count


@pure
def apart(models: list[NDArray[np.float32]], begin: int) -> NDArray[np.floating]:
    """The length of theta of each pair, from ``begin`` on."""
    return np.array([length(pair[begin : len(pair) // 2]) for pair in models])
