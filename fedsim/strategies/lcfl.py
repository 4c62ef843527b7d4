"""LCFL: devices are clustered once, by how much worse their models do on each other's data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.errors import ScenarioError, SimulationError
from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation.client import Instruction, LocalResult
from fedsim.federation.contents import Contents, Header, Lazy
from fedsim.federation.devices import Device
from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.language.spec import Epochs, Iterations, OnlyWith
from fedsim.language.units import PositiveSeconds
from fedsim.learning.refs import Ref
from fedsim.strategies.clustering.algorithms import Labels, Start, agglomerative, canonical, dbscan, k_medoids, members, radius
from fedsim.strategies.clustering.similarity import Matrix, diff_norm, gradient_cosine, loss_distance, loss_gap, shown_pairs
from fedsim.strategies.grouped import Grouped
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean, Protection
from fedsim.strategies.round_params import CombiningParams, SelectingParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import Training
from fedsim.world.task import Computation, Evaluate, Train

Measure = Literal["lcfl", "loss-gap", "diff-norm", "grad-cos"]


class LCFLParams(SelectingParams, CombiningParams):
    """What LCFL takes. The defaults are those of its published code on Rotated MNIST.

    Attributes:
        groups: k, how many clusters to look for.
        participation: the share of a group's members asked in a round, in place of ``clients_per_round``; one at least.
        aggregation: ``mean`` (published) or ``weighted`` by samples; in the warm-up too.
        warmup: ``federated``: the first rounds are FedAvg (the published experiments); ``local``: every device trains for
            itself (Algorithm 1).
        warmup_rounds: rounds of the federated warm-up; they count as rounds of the run.
        warmup_participation: the share of all devices asked in each of them.
        warmup_epochs: passes over its data of a device's local warm-up.
        warmup_iterations: SGD steps of it, in place of ``warmup_epochs`` (the T of Algorithm 1).
        local_start: the local warm-up begins at a model that the server sends (``common``) or at the device's own draw
            (``own``).
        metric: how far apart two devices are: ``lcfl`` (Eq. 2); ``loss-gap``, by what both objectives say of the same model
            (Eq. 6), for which devices send their losses themselves; ``diff-norm``, the distance of their models;
            ``grad-cos``, 1 minus the cosine of their gradients.
        gradient: what ``grad-cos`` compares: the gradients on all of a device's data at its own model (``final``, as in the
            paper), which each device computes and sends; or the whole changes by the last training (``update``), which the
            server has anyway.
        clustering: ``k-medoids``, ``hierarchical`` (average linkage) or ``dbscan``.
        start: the first medoids: ``build``, ``heuristic`` (the published code's) or ``k-medoids++``.
        eps: DBSCAN's radius; None for the published code's, the percentile 100 / (groups - 1) of all distances. That one
            is so wide that ``groups`` should exceed the number of clusters looked for.
        min_samples: how many neighbours, itself included, make a device's neighbourhood dense for DBSCAN.
        clusters_start: every cluster begins at the global model (``global``, published; after a local warm-up the initial one)
            or at the mean of its members' warm-up models (``members``).
        exchange_attempts: how often a device is asked for its part of the local warm-up, or of the exchange, at most: again
            on its return if it was lost.
        exchange_deadline: each of the two ends so long (s) after its begin, with those who came back. None: it waits for all.
    """

    instead: ClassVar[Mapping[str, str]] = {"clients_per_round": "participation"}

    kind: Literal["lcfl"] = "lcfl"
    clients_per_round: None = None  # type: ignore[assignment]
    groups: int = Field(default=4, ge=1, le=10_000)
    local_epochs: Epochs = 10
    participation: float = Field(default=1.0, gt=0.0, le=1.0)
    aggregation: AggregationSpec = Mean()
    warmup: Literal["federated", "local"] = "federated"
    warmup_rounds: Annotated[int, OnlyWith("warmup", values=("federated",))] = Field(default=5, ge=1)
    warmup_participation: Annotated[float, OnlyWith("warmup", values=("federated",))] = Field(default=1.0, gt=0.0, le=1.0)
    warmup_epochs: Epochs = 10
    warmup_iterations: Iterations | None = None
    local_start: Annotated[Literal["common", "own"], OnlyWith("warmup", values=("local",))] = "common"
    metric: Measure = "lcfl"
    gradient: Annotated[Literal["final", "update"], OnlyWith("metric", values=("grad-cos",))] = "final"
    clustering: Literal["k-medoids", "hierarchical", "dbscan"] = "k-medoids"
    start: Annotated[Start, OnlyWith("clustering", values=("k-medoids",))] = "build"
    eps: Annotated[float | None, OnlyWith("clustering", values=("dbscan",))] = Field(default=None, ge=0.0)
    min_samples: Annotated[int, OnlyWith("clustering", values=("dbscan",))] = Field(default=5, ge=1)
    clusters_start: Literal["global", "members"] = "global"
    exchange_attempts: int = Field(default=3, ge=1)
    exchange_deadline: PositiveSeconds | None = None

    def unprotected(self, protection: Protection) -> str | None:
        """Clusters may begin at a plain mean."""
        start = "clusters begin at the plain mean of their members' models"
        return start if self.clusters_start == "members" and protection == "private" else None

    @property
    def unaccounted(self) -> str:
        """One device's update changes which others are averaged together."""
        return "clusters are made of updates that are not clipped"

    @property
    def federated_rounds(self) -> int:
        """Rounds before the devices are clustered."""
        return self.warmup_rounds if self.warmup == "federated" else 0

    @property
    def second_campaign(self) -> Literal["exchange", "gradient"] | None:
        """What devices that have a model are asked for before they are clustered, if anything."""
        if self.metric in ("lcfl", "loss-gap"):
            return "exchange"
        return "gradient" if self.metric == "grad-cos" and self.gradient == "final" else None

    def cohort_size(self, devices: int) -> int:
        """A share of each group, and so of all."""
        return share_of(devices, self.participation)

    def check(self, devices: int) -> None:
        """There must be as many devices as groups; whom a round asks follows from the groups alone."""
        self.aggregation.check(self.cohort_size(devices))
        if self.groups > devices:
            raise ScenarioError(
                f"strategy.groups is {self.groups}, more than the population's {devices} devices; allowed are 1 to {devices}"
            )
        if self.clustering == "dbscan" and self.eps is None and self.groups < 2:
            raise ScenarioError(
                f"strategy.groups is {self.groups}, from which no radius for dbscan follows; allowed are 2 or more, or 'eps'"
            )


def share_of(count: int, participation: float) -> int:
    """How many of ``count`` devices a share of them is: the nearest whole number, one at least."""
    return max(1, round(participation * count))


Found = tuple[list[int], Matrix]
"""Positions of the devices that can be compared, and their distances."""


def by_losses(losses: Matrix, measure: Callable[[Matrix], Matrix] = loss_distance) -> Found:
    """Distances by what devices' models do to each other's data.

    Args:
        measure: of the matrix: ``loss_distance`` (LCFL, Eq. 2) or ``loss_gap`` (Eq. 6).
        losses: L_i(w_j), the objective on the data of device i (row) of the model of device j (column), [n, n].

    Returns:
        Without those whose own objective, or whose model on another's data, is no finite number.
    """
    own = np.flatnonzero(np.isfinite(losses.diagonal()))
    kept = own[np.isfinite(losses[np.ix_(own, own)]).all(axis=0)]
    if not len(kept):
        return [], np.zeros((0, 0))
    return kept.tolist(), measure(losses[np.ix_(kept, kept)])


def by_models(models: Sequence[NDArray[np.float32]]) -> Found:
    """Euclidean distances of devices' models (LCFL's DiffNorm), without those that are not finite."""
    kept = _finite(models)
    return kept, diff_norm(np.stack([models[at] for at in kept])) if kept else np.zeros((0, 0))


def by_updates(models: Sequence[NDArray[np.float32]], starts: Sequence[NDArray[np.float32]]) -> Found:
    """1 - cosine of what devices' training has changed (LCFL's GradCos), without what is not finite."""
    kept = _finite(models)
    if not kept:
        return [], np.zeros((0, 0))
    return kept, gradient_cosine(np.stack([models[at] - starts[at] for at in kept]))


def _finite(models: Sequence[NDArray[np.float32]]) -> list[int]:
    return [at for at, model in enumerate(models) if np.isfinite(model).all()]


def cluster(distance: Matrix, params: "LCFLParams", generator: np.random.Generator) -> Labels:
    """The cluster of each device, int64 [n], numbered by their first members."""
    match params.clustering:
        case "hierarchical":
            return agglomerative(distance, params.groups, "average")
        case "dbscan":
            eps = radius(distance, params.groups) if params.eps is None else params.eps
            return dbscan(distance, eps, params.min_samples)
        case _:
            return k_medoids(distance, params.groups, params.start, generator)


class LCFLClient(SynchronousClient[LCFLParams]):
    """Trains a model of its own in the warm-up, compares it with those of others, and then trains its cluster's.

    State: ``own``, the model that it has sent last, as long as it is needed: until it has been compared.
    """

    def work(self, device: Device, order: Instruction) -> Sequence[Computation]:
        """Test models, or train."""
        match order.job:
            case "exchange":
                models = list(order["exchange"])
                models.insert(order["place"], device.state["own"])
                return (Evaluate(tuple(models)),)
            case "gradient":
                return (Train(Training(device.state["own"], full_batch=True, lr=1.0)),)
            case "cold-start":
                return (Evaluate(tuple(order["cold-start"]), self.testing_limit(order)),)
            case "warm-up":
                return (Train(self._warming_up(device, order)),)
        return super().work(device, order)

    def _warming_up(self, device: Device, order: Instruction) -> Training:
        """From the model that was received, or a draw of its own."""
        params = self.params
        start = order.contents.get("warm-up") or device.initial(1 + device.number)
        if params.warmup == "federated":
            return Training(start, params.local_epochs)
        if params.warmup_iterations is None:
            return Training(start, params.warmup_epochs)
        return Training(start, steps=params.warmup_iterations)

    def reply(self, device: Device, order: Instruction, done: LocalResult) -> Contents | None:
        """The losses, the choice or the model."""
        match order.job:
            case "exchange":
                assert done.tested is not None
                differences = len(order["exchange"])
                return {"probe-loss": Lazy("losses", done.tested, differences + (self.params.metric == "loss-gap"))}
            case "gradient":
                return {"gradient": done.update}
            case "cold-start":
                assert done.tested is not None
                return {"id": Lazy("choice", done.tested)}
            case "warm-up":
                return {"warm-up": done.update, "start": Header(done.start)}
        return super().reply(device, order, done)

    def sent(self, device: Device, order: Instruction, reply: Contents) -> None:
        """The server has the model: it will be compared with others."""
        if order.job == self.params.second_campaign:
            device.state.pop("own", None)
        elif self.params.second_campaign and (order.job == "warm-up" or "compared" in order.contents):
            device.state["own"] = reply.get("update") or reply.get("warm-up")


class LCFL(Grouped[LCFLParams]):  # type: ignore[type-var]  # whom it asks follows from the groups alone
    """Loss-based clustered federated learning.

    Source: Gu et al., "Novel clustered federated learning based on local loss" (2024), Algorithm 1 and Eq. 2; the federated
    warm-up as in its published experiments.

    Warm-up. ``federated``: rounds of FedAvg, with FedAvg's messages; what a device sent last is its model w_i. Who was never
    drawn, and is there when these rounds are over, trains once more from the global model (d parameters each way). ``local``:
    each device receives the initial model (d parameters; nothing if it draws its own), trains, and sends w_i (d parameters).

    Exchange: each of the M devices with a w_i receives those of the others ((M - 1) d parameters), computes the objective L_i
    of them and of its own on its training data, and sends |L_i(w_j) - L_i(w_i)| for each (M - 1 scalars of 4 bytes). The
    distance of two devices is the sum of what both found. (For ``loss-gap`` each sends L_i(w_j), M scalars, and the distance is
    |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)|.) The objective is what training minimises, with the penalty
    ``training.l2`` if there is one. The other metrics need no exchange. For ``diff-norm`` the server has the models. For
    ``grad-cos`` each of these devices is asked for the gradient on all of its data at w_i: it makes one step of length 1 and
    sends the model that it has then (d parameters).

    Then the devices are clustered, once and for all, and each cluster runs FedAvg by itself (d parameters each way).

    Who is lost in the local warm-up or in what follows it is asked again on its return, up to ``exchange_attempts`` times.
    Clusters are made of those who came back; with fewer than ``groups`` of them the run ends. All others, those whose training
    has diverged, and newcomers receive the clusters' models (k d parameters), test them on their training data, join the best
    and say which (4 bytes): as soon as they can, but not before no two clusters have the same model, since clusters that begin
    at the global one cannot be told apart. LCFL has no rule for data that shift: a device stays where it is.

    A campaign is one task each for many devices, outside of the rounds: the local warm-up, the exchange, or the gradients.

    State besides ``Grouped``'s:
        campaign: the name of the campaign that runs, or None.
        campaign_open: its tasks that have not ended, task -> device.
        campaign_waiting: devices whose return it waits for.
        campaign_asked: how often it has asked each device, device -> count.
        global: the model of the warm-up.
        clustered: whether there are clusters; ``admitting``: whether newcomers can tell them apart.
        own: the model w_i that each device sent last before that, or None; ``began``: the model from which it trained.
        exchanged: devices whose models are exchanged, in order; ``tested``: what each found, device -> choice or model.
    """

    Params: ClassVar[type[LCFLParams]] = LCFLParams
    Client = LCFLClient

    def __init__(self, params: LCFLParams, server: Server) -> None:
        super().__init__(params, server)
        devices = server.devices
        self.state |= {"campaign": None, "campaign_open": {}, "campaign_waiting": [], "campaign_asked": {}}
        self.state |= {"clustered": False, "admitting": False, "own": [None] * devices, "began": [None] * devices}
        self.state |= {"exchanged": [], "tested": {}, "cohort": [], "open": {}}

    async def on_start(self) -> None:
        """Begin the warm-up with a freshly initialised model."""
        self.state["global"] = self.server.initial()
        await super().on_start()

    # Rounds: FedAvg of all, then of each cluster.

    def _open_round(self) -> None:
        if self.state["clustered"] or self.state["round"] < self.params.federated_rounds:
            super()._open_round()
        else:
            self.state["cohort"] = []
            self.server.timer("gather", self.server.now)

    def select(self) -> list[int]:
        """In the warm-up a share of all devices, drawn as FedAvg does; then a share of each cluster's members."""
        server, params = self.server, self.params
        if not self.state["clustered"]:
            return self.pick(share_of(server.devices, params.warmup_participation))
        chosen: list[int] = []
        for group in range(len(self.state["models"])):
            among = self.members(group)
            chosen += self.pick(share_of(len(among), params.participation), group, among=among)
        return chosen

    def contents(self, device: int) -> Contents:
        """The model of the device's cluster; in the warm-up the global one, and that what comes of it will be compared."""
        if self.state["clustered"]:
            return super().contents(device)
        return {"model": self.state["global"], "compared": Header(True)}

    async def aggregate(self) -> None:
        """Each cluster's updates become its model; in the warm-up there is one, and the server keeps what each has sent."""
        state = self.state
        if state["clustered"]:
            await super().aggregate()
            return
        received = state["received"]
        for entry in received:
            self._keep(entry["device"], entry["update"], entry["start"])
        if received:
            state["global"] = await self.combine(state["global"], received, -1)

    def _keep(self, device: int, update: Ref | None, start: Ref | None) -> None:
        self.state["own"][device], self.state["began"][device] = update, start

    def center(self, entry: dict[str, Any]) -> Ref | None:
        """The model that the update went into."""
        return super().center(entry) if self.state["clustered"] else self.state["global"]

    def models(self) -> ModelAssignment:
        """The global model until there are clusters, then one a cluster, for its members."""
        return super().models() if self.state["clustered"] else {"global": (self.state["global"], None)}

    # From the warm-up to the clusters.

    async def on_timer(self, name: str) -> None:
        """After the rounds of the warm-up: a model of everybody. A campaign's deadline ends what is open, waits for nobody."""
        if name == "gather":
            await self._gather()
        elif name == "campaign-deadline":
            self.state["campaign_waiting"] = []
            for task in list(self.state["campaign_open"]):
                self.server.end(task, "late")
            await self._look_whether_over()
        else:
            await super().on_timer(name)

    def _with_model(self) -> list[int]:
        return [device for device, own in enumerate(self.state["own"]) if own is not None]

    async def _gather(self) -> None:
        """Ask those who are there and have sent no model for one."""
        without = [device for device in self.server.online() if self.state["own"][device] is None]
        if len(without) + len(self._with_model()) < self.params.groups:
            self.server.look_again("gather", self.params.retry)
        else:
            await self._begin_campaign("warm-up", without)

    async def _begin_campaign(self, name: str, devices: Sequence[int]) -> None:
        """Ask devices, those that are away when they are back."""
        server, state, params = self.server, self.state, self.params
        state |= {"campaign": name, "campaign_open": {}, "campaign_waiting": [], "campaign_asked": dict.fromkeys(devices, 0)}
        server.emit("campaign", what=name, devices=len(devices))
        if params.exchange_deadline is not None:
            server.timer("campaign-deadline", server.now + params.exchange_deadline)
        for device in devices:
            self._invite(device)
        await self._look_whether_over()

    def _invite(self, device: int) -> None:
        """Ask a device that is there; wait for one that is not, if it will ever be."""
        state = self.state
        if self.server.idle(device):
            state["campaign_asked"][device] += 1
            task = self.server.ask(device, self._campaign_contents(device), state["campaign"])
            state["campaign_open"][task] = device
        elif self.server.await_return(device):
            state["campaign_waiting"].append(device)

    async def _look_whether_over(self) -> None:
        state = self.state
        if not state["campaign_open"] and not state["campaign_waiting"]:
            name, state["campaign"] = state["campaign"], None
            self.server.cancel_timer("campaign-deadline")
            await self._campaign_over(name)

    async def on_task_end(self, message: TaskEnd) -> None:
        """A device has done its part of the campaign, or not; other tasks as in every round."""
        state = self.state
        if message.task not in state["campaign_open"]:
            await super().on_task_end(message)
            return
        device = state["campaign_open"].pop(message.task)
        if message.outcome == "done":
            if message.job == self.params.second_campaign:
                state["tested"][device] = message["probe-loss" if message.job == "exchange" else "gradient"]
            else:
                self._keep(device, message["warm-up"], message["start"])
        elif message.outcome in ("lost", "battery") and state["campaign_asked"][device] < self.params.exchange_attempts:
            self._invite(device)
        await self._look_whether_over()

    async def on_return(self, device: int) -> None:
        """A device that the campaign waits for is back."""
        if device in self.state["campaign_waiting"]:
            self.state["campaign_waiting"].remove(device)
            self._invite(device)
            await self._look_whether_over()
        else:
            await super().on_return(device)

    def _campaign_contents(self, device: int) -> Contents:
        """A model to train from; or the models of all others, and which place is the device's own."""
        state, params = self.state, self.params
        if state["campaign"] == "gradient":
            return {}
        if state["campaign"] == "exchange":
            others = [state["own"][other] for other in state["exchanged"] if other != device]
            return {"exchange": others, "place": Header(state["exchanged"].index(device))}
        if params.warmup == "local" and params.local_start == "own":
            return {}
        return {"warm-up": state["global"]}

    async def _campaign_over(self, name: str) -> None:
        """Go on with those who came back: to the exchange, or to the clusters."""
        state, server, params = self.state, self.server, self.params
        found = self._with_model() if name == "warm-up" else list(state["tested"])
        if len(found) < params.groups:
            what = f"{len(found)} devices came back from the {name}, too few for {params.groups} groups"
            server.stop(what)
        elif name == "warm-up" and params.second_campaign is not None:
            state["exchanged"] = found
            await self._begin_campaign(params.second_campaign, found)
        else:
            await self._make_clusters(sorted(found))

    async def _make_clusters(self, devices: list[int]) -> None:
        """Cluster devices; a cluster gets its first model, and who is in none looks for one."""
        state, server, params = self.state, self.server, self.params
        devices, labels = await self._cluster(devices)
        for cluster_members in members(np.array(labels)):
            share = 1 / len(cluster_members)
            own = [state["own"][devices[at]] for at in cluster_members]
            at_members = params.clusters_start == "members"
            parts = await params.aggregation.total(server, own, share) if at_members else [(state["global"], 1.0)]
            state["models"].append(server.mix(parts) if at_members else state["global"])
        for device, group in zip(devices, labels, strict=True):
            self.move(device, group, "clustering")
        state |= {"clustered": True, "own": [], "began": [], "exchanged": [], "tested": {}}  # large, and needed no more
        self._admit()
        self._open_round()

    async def _cluster(self, devices: list[int]) -> tuple[list[int], list[int]]:
        """Those out of ``devices`` that can be compared, and the cluster of each; where nothing is learnt, one at random."""
        server, params = self.server, self.params
        generator = server.rng("clustering")
        record: dict[str, Any] = {"measure": params.metric}
        if server.learns:
            kept, distance = await self._distances(devices)
            if params.second_campaign != "exchange":
                server.compute("products", len(kept), server.setting.parameters)
            server.compute("medoids" if params.clustering == "k-medoids" else "linkage", len(kept), m=params.groups)
            if len(kept) < params.groups:
                raise SimulationError(
                    f"the warm-up of {len(devices)} devices gave {len(kept)} finite models, fewer than the {params.groups} "
                    "groups that they are to make; a smaller training.lr may help"
                )
            devices = [devices[at] for at in kept]
            labels = self.clusters(distance, generator).tolist()
            record |= shown_pairs("distance", distance)
        else:
            labels = canonical(generator.permutation(len(devices)) % params.groups).tolist()
        server.emit("clustering", devices=devices, groups=labels, **record)
        return devices, labels

    def clusters(self, distance: Matrix, generator: np.random.Generator) -> Labels:
        """The cluster of each device, int64 [n]."""
        return cluster(distance, self.params, generator)

    async def _distances(self, devices: list[int]) -> Found:
        """How far apart devices are, by positions in ``devices``."""
        server, state = self.server, self.state
        if self.params.second_campaign == "exchange":
            rows = await server.numbers([state["tested"][device] for device in devices])
            columns = [state["exchanged"].index(device) for device in devices]
            return by_losses(np.stack(rows)[:, columns], loss_gap if self.params.metric == "loss-gap" else loss_distance)
        models = await server.values([state["own"][device] for device in devices])
        if self.params.metric == "diff-norm":
            return by_models(models)
        other = "tested" if self.params.gradient == "final" else "began"
        return by_updates(models, await server.values([state[other][device] for device in devices]))

    # Who comes later.

    async def after_aggregation(self) -> None:
        """The clusters' models may now differ."""
        self._admit()

    def _admit(self) -> None:
        """Once no two clusters have the same model, all devices without a cluster look for one, now or on their return."""
        state = self.state
        if state["admitting"] or len({model.name for model in state["models"]}) < len(state["models"]):
            return
        state["admitting"] = True
        for device in range(self.server.devices):
            if state["group"][device] < 0:
                there = self.server.idle(device)
                self.must_prepare(device)
                if not there:
                    self.server.await_return(device)

    async def on_arrival(self, device: int) -> None:
        """A newcomer looks for its cluster as soon as it can be found; in the warm-up it is like any other device."""
        if self.state["admitting"] and self.state["group"][device] < 0:
            self.must_prepare(device)

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        """The clusters' models, to say which is the best."""
        return ({"cold-start": self.state["models"]}, "cold-start") if device in self.state["unprepared"] else None

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        """The cluster whose model each device found best; the first of equals, and one at random where nothing is learnt."""
        if self.server.learns:
            groups = await self.server.choices([entry["contents"]["id"] for entry in prepared])
        else:
            groups = self.random_groups(len(prepared), "cold-start", prepared[0]["task"])
        for entry, group in zip(prepared, groups, strict=True):
            self.move(entry["device"], group, "cold-start")
