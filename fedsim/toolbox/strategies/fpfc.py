"""FPFC: a model for each device, drawn towards similar models (Yu, Liu, Wang and Sun, 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Literal, Self

import networkx as nx
import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats, Floats32
from fedsim.common.training import Proximal, Training
from fedsim.federation import Contents, Device, Instruction, Server, TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.architecture import Tensor
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.round_params import RoundParams, SynchronousParams
from fedsim.strategies.synchronous import Synchronous, SynchronousClient, SynchronousState
from fedsim.toolbox.clustering.similarity import length

DevicePair = tuple[int, int]


class FPFCParams(SynchronousParams):
    """Keys of ``[strategy]`` for FPFC: constants of the penalty and of its minimisation.

    The penalty (SCAD) grows with the distance of each pair of devices' models, and so draws them
    together. The losses plus the penalty are minimised by ADMM, which keeps for each pair a vector
    theta in place of the difference of the two models. ``SynchronousParams`` describes the keys of
    all strategies in rounds.

    Attributes:
        lam: lambda, the strength of the penalty; 0: local training.
        rho: rho of the augmented Lagrangian: how strongly a device is held to the model that it
            receives.
        a: a of SCAD: beyond the distance a times lambda the penalty is constant, so that models
            this far apart are not drawn together.
        xi: distance of two models below which the penalty is quadratic, so that it is smooth at 0.
        nu: two devices are in one group if the L2 norm of their theta is at most ``nu``.
        layers: distances are between whole models (``all``), or between their last layers
            (``last``, an option of the authors' code). With ``last`` the factor by which the
            penalty shrinks the difference of two models is computed for the last layer, and applied
            to the whole difference.
    """

    kind: Literal["fpfc"] = "fpfc"
    lam: float = Field(default=1.0, ge=0.0, le=1e6)
    rho: float = Field(default=1.0, gt=0.0, le=1e6)
    a: float = Field(default=3.7, gt=1.0, le=1e6)
    xi: float = Field(default=1e-4, gt=0.0, le=1e6)
    nu: float = Field(default=1e-3, ge=0.0, le=1e6)
    layers: Literal["all", "last"] = "all"

    @model_validator(mode="after")
    def _check_convexity(self) -> Self:
        if (self.a - 1.0) * self.rho <= 1.0:
            values = f"'a' is {self.a:g} and 'rho' {self.rho:g}"
            raise ValueError(f"{values}; allowed is (a - 1) rho above 1")
        return self

    @property
    def unforeseen(self) -> str:
        return (
            "devices share a final model if theirs have fused; their count is that of all devices, "
            "which is the most, and of the pairs of devices not all may be kept at once"
        )

    def final_models(self, devices: int) -> int:
        return devices


class FPFCClient(SynchronousClient[FPFCParams]):
    """Client that trains its own model w_i, pulled towards the received model z_i, and sends it.

    The pull is a proximal term.

    Entries of a device's state: ``model``, w_i; absent until the device has first answered.
    """

    def _last(self, device: Device, instruction: Instruction) -> Ref:
        model: Ref = device.state.get("model", instruction["model"])
        return model

    def training(self, device: Device, instruction: Instruction) -> Training:
        start = self._last(device, instruction)
        epochs = self.params.local_epochs
        return Training(
            start, epochs, proximal=Proximal(self.params.rho, anchor=instruction["model"])
        )

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """Store the trained model as the device's model w_i, after it has arrived at the server.

        If the trained model is not finite, device and server keep the previous w_i.
        """
        last = self._last(device, instruction)
        device.state["model"] = device.mix([(reply["update"], 1.0)], otherwise=last)


@dataclass
class FPFCState(SynchronousState):
    """State of FPFC on the server: models of devices and groups, differences of pairs.

    A pair of devices is (i, j) with i < j. theta is the pair's penalised difference, v its dual.

    Attributes:
        first: The initial model of the run.
        own: Device ID -> model w_i of each device that has answered.
        samples: Device ID -> count of training samples of each device that has answered.
        pairs: Pair of devices -> theta and v, as one array [2 d].
        apart: Pair of devices -> ||theta||, the L2 norm of the pair's difference.
        group: Device ID -> group ID of each device that has answered.
        models: Group ID -> model of the group.
    """

    first: Ref = field(init=False)
    own: dict[int, Ref] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    pairs: dict[DevicePair, Ref] = field(default_factory=dict)
    apart: dict[DevicePair, float] = field(default_factory=dict)
    group: dict[int, int] = field(default_factory=dict)
    models: dict[int, Ref] = field(default_factory=dict)


class FPFC(Synchronous[FPFCParams]):
    """Fusion penalised federated clustering.

    Each device has a separate model. A penalty on the differences of models draws similar models
    together, and devices whose models are thus near each other form a group.

    Source: Yu, Liu, Wang and Sun, "Clustered federated learning based on nonconvex pairwise fusion"
    (2022), the algorithm FPFC (its rules were not checked against the paper).

    - Objective: each device i of m has its own model w_i and its loss f_i. The sum of all f_i(w_i),
      plus 1 / m of the sum of p(||w_i - w_j||) over all pairs, is minimised by ADMM. p is the SCAD
      penalty of strength lambda (``lam``), made smooth near 0.
    - State of a pair: theta_ij = -theta_ji, which stands for w_i - w_j, and its dual v_ij, 0 at
      first.
    - Client: it receives z_i, the mean over j of w_j + theta_ij - v_ij / rho (d parameters). From
      its own w_i it makes ``local_epochs`` of SGD on f_i(w) + rho / 2 ||w - z_i||^2, and sends the
      new w_i (d parameters).
    - Server, for each pair with a device that answered: delta = w_i - w_j + v_ij / rho, theta_ij is
      the proximal step of the penalty from delta, and v_ij = rho (delta - theta_ij).
    - Groups: two devices are in one group if ||theta_ij|| is at most ``nu``, or if a chain of such
      pairs connects them. The group's ID is the least ID of its devices, and its model the mean of
      their models, weighted by samples.

    A device that has never answered is in no pair, mean or group, and receives the initial model.
    With ``learning = "off"`` no theta is computed, and all devices that have answered are one
    group. The paper's warm-up of lambda and its asynchronous variant are left out.
    """

    Params: ClassVar[type[RoundParams]] = FPFCParams
    Client = FPFCClient
    State = FPFCState
    state: FPFCState
    score: Literal["pooled", "device-mean"] = "device-mean"

    def __init__(self, params: FPFCParams, server: Server) -> None:
        super().__init__(params, server)
        # index in a flat model from which on models are compared
        self._compared_from = 0
        if params.layers == "last":
            self._compared_from = begin_of_last_layer(self.setting.tensors())

    async def on_start(self) -> None:
        self.state.first = self.server.models.initial()
        await super().on_start()

    def contents(self, device: int) -> Contents:
        """Return the message to a device: the model z_i towards which its training is pulled.

        z_i is the mean, over all devices j that have answered, of w_j + theta_ij - v_ij / rho: w_j
        is the model of device j, theta_ij the penalised difference of the pair, v_ij its dual, and
        rho the weight of the quadratic penalty (``strategy.rho``).
        A device that has never answered receives the initial model.

        Args:
            device: ID of the device.

        Returns:
            Contents with one entry, ``model``.
        """
        models = self.state.own  # device ID -> w_i, for devices that have answered
        pairs = self.state.pairs  # (smaller ID, larger ID) -> theta and v, as one array
        if device not in models:
            return {"model": self.state.first}
        peer_models = []
        peer_pairs = []
        signs = []  # 1 or -1 by peer, as theta_ji = -theta_ij and v_ji = -v_ij
        for peer, peer_model in models.items():
            if peer == device:
                continue
            peer_models.append(peer_model)
            if device < peer:
                peer_pairs.append(pairs[device, peer])
                signs.append(1.0)
            else:
                peer_pairs.append(pairs[peer, device])
                signs.append(-1.0)
        center = self.server.models.apply(
            proximal_center,
            [models[device], *peer_models, *peer_pairs],
            otherwise=models[device],
            signs=signs,
            rho=self.params.rho,
        )
        return {"model": center}

    def entry(self, message: TaskEnd) -> Entry:
        start = self.state.own.get(message.device, message.asked["model"])
        return super().entry(message) | {"start": start}

    async def aggregate(self) -> None:
        received = self.state.received
        if not received:
            return
        self.record_aggregate(received, [1.0] * len(received))
        self._store_models(received)
        changed = self._changed_pairs({entry["device"] for entry in received})
        self._fuse(changed)
        await self._measure_differences(changed)
        self._regroup()
        self._average_groups()

    def _store_models(self, received: Sequence[Entry]) -> None:
        for entry in received:
            device = entry["device"]
            model = self.server.models.mix([(entry["update"], 1.0)], otherwise=entry["start"])
            self.state.own[device] = model
            self.state.samples[device] = entry["samples"]

    def _changed_pairs(self, updated: set[int]) -> list[DevicePair]:
        devices = sorted(self.state.own)
        return [pair for pair in combinations(devices, 2) if not updated.isdisjoint(pair)]

    def _fuse(self, changed: Sequence[DevicePair]) -> None:
        """Compute the penalised difference theta and its dual v of each changed pair of devices.

        They are stored in ``state.pairs``, as one array [2 d] for each pair.

        Args:
            changed: pairs of device IDs in which the model of a device has changed.
        """
        models = self.state.own
        pairs = self.state.pairs
        params = self.params
        for pair in changed:
            parts = [models[device] for device in pair]
            if pair in pairs:  # a new pair has no dual, which counts as 0
                parts.append(pairs[pair])
            pairs[pair] = self.server.models.apply(
                fused,
                parts,
                size=2 * self.setting.parameters,
                compared_from=self._compared_from,
                lam=params.lam,
                rho=params.rho,
                a=params.a,
                xi=params.xi,
            )

    async def _measure_differences(self, changed: Sequence[DevicePair]) -> None:
        """Compute the length of the penalised difference theta of each changed pair of devices.

        The L2 norms are stored in ``state.apart``. They are 0 in runs without learning.

        Args:
            changed: pairs of device IDs.
        """
        lengths = [0.0] * len(changed)
        thetas_and_duals = [self.state.pairs[pair] for pair in changed]
        if not self.server.models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await self.server.models.note_skipped(thetas_and_duals, stay=False)
        elif changed:
            measured = self.server.models.apply(
                difference_lengths,
                thetas_and_duals,
                size=len(changed),
                compared_from=self._compared_from,
            )
            lengths = (await self.server.models.value(measured)).tolist()
        self.state.apart |= zip(changed, lengths, strict=True)

    def _regroup(self) -> None:
        """Assign devices to groups: devices whose penalised difference is short share a group.

        The groups are the connected components of the pairs whose difference theta is at most
        ``nu`` long. Changes are recorded among the run's events as ``assign``.
        """
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(self.state.own)
        for pair, distance in self.state.apart.items():
            if distance <= self.params.nu:
                graph.add_edge(*pair)
        groups = dict[int, int]()  # device ID -> the least device ID of its group
        for component in nx.connected_components(graph):
            groups |= dict.fromkeys(component, min(component))
        groups = dict(sorted(groups.items()))
        for device, group in groups.items():
            previous = self.state.group.get(device)
            if previous != group:
                self.server.emit("assign", device=device, group=group, before=previous, why="fused")
        self.state.group = groups

    def _average_groups(self) -> None:
        """Set each group's model to the mean of its devices' models, weighted by samples."""
        group_of = self.state.group
        models = self.state.own
        samples = self.state.samples
        self.state.models = {}
        for group in sorted(set(group_of.values())):
            members = [device for device in group_of if group_of[device] == group]
            total = sum(samples[device] for device in members)
            parts = []
            for device in members:
                share = 1 / len(members)  # if no member has samples
                if total:
                    share = samples[device] / total
                parts.append((models[device], share))
            self.state.models[group] = self.server.models.mix(parts, otherwise=models[members[0]])

    def group_of(self, device: int) -> int | None:
        return self.state.group.get(device)

    def center(self, entry: Entry) -> Ref:
        group = self.state.group[entry["device"]]
        return self.state.models[group]

    def models(self) -> ModelAssignment:
        groups = self.state.group
        unheard = [device for device in range(self.server.devices) if device not in groups]
        assignment: dict[str, tuple[Ref, list[int]]] = {}
        if unheard:
            assignment["first"] = (self.state.first, unheard)
        for group, model in self.state.models.items():
            members = [device for device in groups if groups[device] == group]
            assignment[f"group/{group}"] = (model, members)
        return assignment


def begin_of_last_layer(tensors: Sequence[Tensor]) -> int:
    """Return the index in a flat model at which the last layer's tensors begin.

    Args:
        tensors: the tensors of the model, in the order of the flat model.
    """
    layers = [tensor.name.rpartition(".")[0] for tensor in tensors]
    sizes = [tensor.size for tensor in tensors]
    return sum(size for size, layer in zip(sizes, layers, strict=True) if layer != layers[-1])


def shrunk(length: float, lam: float, rho: float, a: float, xi: float) -> float:
    """Compute the length of a vector after the proximal step of SCAD's penalty (FPFC).

    The vector is delta = w_i - w_j + v / rho, the difference of two devices' models plus their dual
    v over rho; the step shortens it. The result is the t that minimises g(t) + rho / 2 (t -
    length)^2, with g SCAD's penalty, smoothed at 0. Its slope g'(t) is lam t / xi up to t = xi,
    then lam up to t = lam, then (a lam - t) / (a - 1) up to t = a lam, then 0.

    Args:
        length: ||delta||, the length before the step.
        lam: lambda, the strength of the penalty.
        rho: rho of the augmented Lagrangian.
        a: a of SCAD.
        xi: the length below which the penalty is smooth.

    Returns:
        The length t.
    """
    # g'(t) + rho (t - length) = 0 on each piece of g'; the limits are the lengths with t = xi, t =
    # lam and t = a lam
    if length <= xi + lam / rho:
        return length * xi * rho / (lam + xi * rho)
    if length <= lam + lam / rho:
        return length - lam / rho
    if length <= a * lam:
        return (length - a * lam / ((a - 1) * rho)) / (1 - 1 / ((a - 1) * rho))
    return length


@pure
def fused(
    models: list[Floats32], compared_from: int, lam: float, rho: float, a: float, xi: float
) -> Floats:
    """Compute the penalised difference of two devices' models, and its dual, by a step of ADMM.

    ADMM keeps for the pair of devices i and j, with the models w_i and w_j, a vector theta in place
    of w_i - w_j, and its dual variable v. With delta = w_i - w_j + v / rho, the new theta is delta
    shortened by SCAD's penalty (``shrunk``), and the new v is rho (delta - theta).

    Args:
        models: w_i and w_j, [d] each; then the pair's last result of this function [2 d], which is
            missing in the first step, in which v is 0.
        compared_from: index in a flat model; the length of delta is over the parameters from this
            index on.
        lam: lambda, the strength of the penalty.
        rho: rho of the augmented Lagrangian.
        a: a of SCAD.
        xi: the distance below which the penalty is smooth.

    Returns:
        theta and v, float64 [2 d].
    """
    first, second, *earlier = models
    delta = first.astype(np.float64) - second
    if earlier:
        dual = earlier[0][len(first) :]  # the dual comes after theta
        delta = delta + dual / rho
    distance = length(delta[compared_from:])
    factor = 1.0
    if distance:
        factor = shrunk(distance, lam, rho, a, xi) / distance
    theta = delta * factor
    return np.concatenate([theta, rho * (delta - theta)])


@pure
def proximal_center(models: list[Floats32], signs: list[float], rho: float) -> Floats:
    """Compute the model z_i towards which the training of device i is pulled (FPFC).

    z_i is the mean, over all devices j that have answered, of w_j + theta_ij - v_ij / rho: w_j is
    the model of device j, theta_ij the penalised difference of the pair, and v_ij its dual.

    Args:
        models: first the model of device i, then the model of each other device j, [d] each. Then
            for each j, in the same order, theta and v of the pair, joined to one array [2 d].
        signs: for each j the sign of theta and v in the sum: 1 if device i is the first in the
            pair, -1 if it is the second.
        rho: rho of the augmented Lagrangian.

    Returns:
        z_i, float64 [d].
    """
    d = len(models[0])
    count = len(signs) + 1  # count of devices, device i included
    device_models = models[:count]
    total: Floats = np.array(device_models, dtype=np.float64).sum(axis=0)
    for sign, pair in zip(signs, models[count:], strict=True):
        theta = pair[:d]
        dual = pair[d:]
        total += sign * (theta - dual.astype(np.float64) / rho)
    return total / count


@pure
def difference_lengths(models: list[Floats32], compared_from: int) -> Floats:
    """Compute the length of the penalised difference theta for each pair of devices (FPFC).

    Args:
        models: theta and its dual v of each pair, as one array [2 d] each.
        compared_from: index in a flat model; the length is over the parameters from this index on.

    Returns:
        The L2 norm of each pair's theta, float64 [pairs].
    """
    lengths = []
    for pair in models:
        theta = pair[: len(pair) // 2]
        lengths.append(length(theta[compared_from:]))
    return np.array(lengths)
