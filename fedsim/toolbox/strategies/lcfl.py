"""LCFL: devices are clustered once, by the losses of each other's models (Gu et al., 2024)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.registry import Registry
from fedsim.common.spec import Epochs
from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Header, Instruction, Lazy, LocalResult, TaskEnd
from fedsim.federation.evaluator import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean, Protection
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.clustering.algorithms import (
    Clusterer,
    Dbscan,
    Hierarchical,
    KMedoids,
    Linkage,
    canonical,
    k_medoids,
)
from fedsim.toolbox.clustering.moments import AfterLocalTraining, AfterRounds
from fedsim.toolbox.clustering.similarity import (
    Matrix,
    cosine_matrix,
    loss_distance,
    loss_gap,
    row_distances,
    shown_pairs,
)
from fedsim.toolbox.strategies.grouped import ClusteredParams, Grouped, PlainDeadline, Preset
from fedsim.world.task import Computation, Evaluate, Train

_BY_LOSSES = ("lcfl", "loss-gap")
_BY_GRADIENTS = ("grad-cos", "last-batch-cos")


class AverageLinkage(Hierarchical):
    """Agglomerative clustering, by default with average linkage as in LCFL's published code; see
    ``Hierarchical``.
    """

    linkage: Linkage = "average"


class LCFLParams(PlainDeadline, ClusteredParams):
    """Parameters of LCFL. The defaults are those of its published code on Rotated MNIST.

    Attributes:
        groups: k, the number of clusters.
        participation: the share of a group's members asked in a round, at least one; in place of
            ``clients_per_round``.
        aggregation: ``mean`` (published) or ``weighted`` by samples; before the clustering too.
        measure: how far apart two devices are: by losses ``lcfl`` (Eq. 2) or ``loss-gap`` (Eq. 6);
            ``diff-norm`` of models; 1 minus the cosine of the gradients at their own models
            (``grad-cos``), of those of their last mini-batch (``last-batch-cos``, the published
            code) or of the last changes (``update-cos``).
        clusterer: ``k-medoids``, ``hierarchical`` or ``dbscan``.
        moment: after ``rounds`` of FedAvg (published), or a ``local`` training of each device by
            itself (Algorithm 1).
        clusters_start: clusters begin at the ``global`` model (published), or at the mean of
            their ``members``'.
        as: with ``published-code`` the first medoids of ``k-medoids`` are the k devices nearest
            to all others.
    """

    instead: ClassVar[Mapping[str, str]] = {
        **ClusteredParams.instead,
        "clients_per_round": "participation",
        **dict.fromkeys(("metric", "gradient"), "measure"),
        "warmup": "moment",
        "clustering": "clusterer",
        "local_start": "moment.start",
        "warmup_iterations": "moment.steps",
        **{f"warmup_{key}": f"moment.{key}" for key in ("rounds", "participation", "epochs")},
        "exchange_deadline": "moment.deadline",
        **{key: f"clusterer.{key}" for key in ("start", "linkage", "threshold")},
    }

    unaccounted: ClassVar[str] = "clusters are made of updates that are not clipped"
    kind: Literal["lcfl"] = "lcfl"
    clients_per_round: None = None  # type: ignore[assignment]
    groups: int = Field(default=4, ge=1, le=10_000)
    local_epochs: Epochs = 10
    participation: float = Field(default=1.0, gt=0.0, le=1.0)
    aggregation: AggregationSpec = Mean()
    measure: Literal[
        "lcfl", "loss-gap", "diff-norm", "grad-cos", "last-batch-cos", "update-cos"
    ] = "lcfl"
    clusterer: Annotated[
        Clusterer, Registry.of("clusterer", KMedoids, AverageLinkage, Dbscan, usual="k-medoids")
    ] = KMedoids()
    moment: Annotated[
        AfterRounds | AfterLocalTraining,
        Registry.of("moment", AfterRounds, AfterLocalTraining, usual="rounds"),
    ] = AfterRounds()
    clusters_start: Literal["global", "members"] = "global"
    __annotations__["as"] = Annotated[Preset, Field(default="paper")]

    def unprotected(self, protection: Protection) -> str | None:
        start = "clusters begin at the plain mean of their members' models"
        return start if self.clusters_start == "members" and protection == "private" else None

    @property
    def counts_steps(self) -> str | None:
        return (
            "a step of SGD gives LCFL's gradients"
            if self.measure in _BY_GRADIENTS
            else super().counts_steps
        )

    @property
    def second_campaign(self) -> str | None:
        """The job of devices that have a model, before they are clustered."""
        if self.measure in _BY_GRADIENTS:
            return "gradient"
        return "exchange" if self.measure in _BY_LOSSES else None

    def cohort_size(self, devices: int) -> int:
        return _share_of(devices, self.participation)

    def check(self, devices: int) -> None:
        self.aggregation.check(self.selection.fewest(self.cohort_size(devices)))
        self.refuse_more("groups", devices)
        if isinstance(self.clusterer, Dbscan) and self.groups < 2:
            raise ScenarioError(
                f"strategy.groups is {self.groups}, from which no radius for dbscan follows; "
                "allowed are 2 or more"
            )


_MOST_ATTEMPTS = 3  # of a device at its warm-up, and at its exchange


def _share_of(count: int, participation: float) -> int:
    return max(1, round(participation * count))


# positions of the devices that can be compared, and their distances
Found = tuple[list[int], Matrix]


def by_losses(losses: Matrix, measure: Callable[[Matrix], Matrix] = loss_distance) -> Found:
    """Distances by ``losses`` [n, n] as of ``loss_distance``, without devices whose own, or
    whose model's, are not finite.
    """
    own = np.flatnonzero(np.isfinite(losses.diagonal()))
    kept = own[np.isfinite(losses[np.ix_(own, own)]).all(axis=0)]
    return kept.tolist(), measure(losses[np.ix_(kept, kept)]) if len(kept) else np.zeros((0, 0))


def by_rows(
    rows: Sequence[NDArray[np.floating]], measure: Callable[[NDArray[np.floating]], Matrix]
) -> Found:
    """Distances of models or updates [d], without those that are not finite."""
    kept = [at for at, row in enumerate(rows) if np.isfinite(row).all()]
    return kept, measure(np.stack([rows[at] for at in kept])) if kept else np.zeros((0, 0))


class LCFLClient(SynchronousClient[LCFLParams]):
    """Trains a model of its own (``own``, until it has been compared), compares it with others,
    and trains its cluster's.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        match instruction.job:
            case "exchange":
                models = list(instruction["exchange"])
                models.insert(instruction["place"], device.state["own"])
                return (Evaluate(tuple(models)),)
            case "gradient" if self.params.measure == "last-batch-cos":
                return ()  # it is there since the training
            case "gradient":
                return (Train(Training(device.state["own"], full_batch=True, lr=1.0)),)
            case "cold-start":
                return (Evaluate(tuple(instruction["cold-start"])),)
            case "warm-up":
                start = instruction.contents.get("warm-up") or device.initial(1 + device.number)
                moment = self.params.moment
                epochs = self.params.local_epochs
                steps = None
                if isinstance(moment, AfterLocalTraining):
                    epochs = moment.epochs if moment.steps is None else 1
                    steps = moment.steps
                return (Train(Training(start, epochs, steps=steps)),)
        return super().work(device, instruction)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        if self._keeps_gradient(instruction) and result.trained is not None:
            device.state["unsent-gradient"] = device.last_gradient(result.trained)
        match instruction.job:
            case "exchange" if result.tested is not None:
                told = len(instruction["exchange"]) + (self.params.measure == "loss-gap")
                return {"probe-loss": Lazy("losses", result.tested, told)}
            case "gradient":
                return {"gradient": device.state.get("gradient", result.update)}
            case "cold-start" if result.tested is not None:
                return {"id": Lazy("choice", result.tested)}
            case "warm-up":
                return {"warm-up": result.update, "start": Header(result.start)}
        return super().reply(device, instruction, result)

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if instruction.job == self.params.second_campaign:
            device.state.pop("own", None)
            device.state.pop("gradient", None)
        elif self.params.second_campaign and self._is_compared(instruction):
            device.state["own"] = reply.get("update") or reply.get("warm-up")
            if self._keeps_gradient(instruction):
                device.state["gradient"] = device.state.pop("unsent-gradient")

    def _is_compared(self, instruction: Instruction) -> bool:
        """Whether the model that it trains may be its w_i."""
        return instruction.job == "warm-up" or "compared" in instruction.contents

    def _keeps_gradient(self, instruction: Instruction) -> bool:
        return self.params.measure == "last-batch-cos" and self._is_compared(instruction)


class LCFL(Grouped[LCFLParams]):
    """Loss-based clustered federated learning.

    Source: Gu et al., "Novel clustered federated learning based on local loss" (2024), Algorithm
    1 and Eq. 2; the rounds of FedAvg before the clustering as in its published experiments.

    Warm-up: rounds of FedAvg, in which w_i is the last model that device i sent; available devices
    that were never drawn train once after them (d parameters each way). Or each device receives the
    initial model (d parameters; nothing if it draws its own), trains, and sends w_i (d parameters).

    Exchange: each of the M devices with a w_i receives the others' ((M - 1) d parameters), computes
    the objective L_i, with ``training.l2``, of all M on its training data, and sends |L_i(w_j) -
    L_i(w_i)| for each (M - 1 scalars of 4 bytes; for ``loss-gap`` L_i(w_j), M scalars). The
    distance of two devices is the sum of both figures. Other measures need no exchange; for
    ``grad-cos`` each sends the model one step of length 1 on all of its data from w_i, for
    ``last-batch-cos`` the gradient that its training of w_i left behind (d parameters).

    Then the devices that came back are clustered once, and each cluster runs FedAvg by itself; with
    fewer than ``groups`` of them the run ends. Once all clusters' models differ, the others and
    newcomers receive them (k d parameters), test them on their training data, join the best and
    send its number (4 bytes).

    State besides ``Grouped``'s: ``campaign``, a task each for many devices; ``global``, the model
    of the warm-up; ``own``, w_i, and ``began``, its start; ``tested``, the figures of each device;
    ``admitting``, whether all clusters differ.
    """

    Params: ClassVar[type[LCFLParams]] = LCFLParams
    Client = LCFLClient

    async def on_start(self) -> None:
        devices = self.server.devices
        self.state |= {
            "campaign": None,
            "campaign_open": {},
            "campaign_waiting": [],
            "campaign_asked": {},
        }
        self.state |= {
            "clustered": False,
            "admitting": False,
            "exchanged": [],
            "tested": {},
            "cohort": [],
            "open": {},
        }
        self.state |= {
            "own": [None] * devices,
            "began": [None] * devices,
            "global": self.server.models.initial(),
        }
        await super().on_start()

    def _open_round(self) -> None:
        if self.state["clustered"] or self.state["round"] < getattr(
            self.params.moment, "rounds", 0
        ):
            super()._open_round()
        else:
            self.state["cohort"] = []
            self.server.timer("gather", self.server.now)

    def select(self) -> list[int]:
        if not self.state["clustered"]:
            assert isinstance(self.params.moment, AfterRounds)
            return self.pick(_share_of(self.server.devices, self.params.moment.participation))
        chosen: list[int] = []
        for group in range(len(self.state["models"])):
            among = self.members(group)
            chosen += self.pick(
                _share_of(len(among), self.params.participation), group, among=among
            )
        return chosen

    def contents(self, device: int) -> Contents:
        if self.state["clustered"]:
            return super().contents(device)
        return {"model": self.state["global"], "compared": Header(True)}

    async def aggregate(self) -> None:
        state = self.state
        received = self.state["received"]
        if state["clustered"]:
            await super().aggregate()
            return
        for entry in received:
            state["own"][entry["device"]], state["began"][entry["device"]] = (
                entry["update"],
                entry["start"],
            )
        if received:
            state["global"] = await self.next_model(state["global"], received, -1)

    def center(self, entry: dict[str, Any]) -> Ref | None:
        return super().center(entry) if self.state["clustered"] else self.state["global"]

    def models(self) -> ModelAssignment:
        return (
            super().models()
            if self.state["clustered"]
            else {"global": (self.state["global"], None)}
        )

    async def on_timer(self, name: str) -> None:
        if name == "gather":
            await self._gather()
        elif name == "campaign-deadline":
            self.state["campaign_waiting"] = []
            for task in list(self.state["campaign_open"]):
                self.server.end(task, "late")
            await self._look_whether_over()
        else:
            await super().on_timer(name)

    async def _gather(self) -> None:
        """Ask the available devices that have sent no model for one."""
        own = self.state["own"]
        without = [device for device in self.server.clients.online() if own[device] is None]
        if len(without) + sum(model is not None for model in own) < self.params.groups:
            self.server.look_again("gather", self.params.retry)
        else:
            await self._begin_campaign("warm-up", without)

    async def _begin_campaign(self, name: str, devices: Sequence[int]) -> None:
        server = self.server
        deadline = self.params.moment.deadline
        self.state |= {"campaign": name, "campaign_asked": dict.fromkeys(devices, 0)}
        server.emit("campaign", what=name, devices=len(devices))
        if deadline is not None:
            server.timer("campaign-deadline", server.now + deadline)
        await self._invite(*devices)

    async def _invite(self, *devices: int) -> None:
        """Ask devices for their part in the campaign, those that are away on their return."""
        state = self.state
        server = self.server
        name = self.state["campaign"]
        for device in devices:
            if not server.clients.idle(device):
                if server.clients.await_return(device):
                    state["campaign_waiting"].append(device)
                continue
            contents: dict[str, Any] = {}
            if name == "exchange":
                others = [state["own"][other] for other in state["exchanged"] if other != device]
                contents = {"exchange": others, "place": Header(state["exchanged"].index(device))}
            elif name == "warm-up" and getattr(self.params.moment, "start", "common") == "common":
                contents = {"warm-up": state["global"]}
            state["campaign_asked"][device] += 1
            state["campaign_open"][server.ask(device, contents, name)] = device
        await self._look_whether_over()

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        if message.task not in state["campaign_open"]:
            await super().on_task_end(message)
            return
        device = state["campaign_open"].pop(message.task)
        if message.outcome == "done":
            if message.job == "warm-up":
                state["own"][device], state["began"][device] = message["warm-up"], message["start"]
            else:
                state["tested"][device] = message[
                    "probe-loss" if message.job == "exchange" else "gradient"
                ]
        again = (
            message.outcome in ("lost", "battery")
            and state["campaign_asked"][device] < _MOST_ATTEMPTS
        )
        await self._invite(*([device] if again else []))

    async def on_return(self, device: int) -> None:
        if device in self.state["campaign_waiting"]:
            self.state["campaign_waiting"].remove(device)
            await self._invite(device)
        else:
            await super().on_return(device)

    async def _look_whether_over(self) -> None:
        """After the last task of a campaign, continue with its results: to the exchange, or to
        the clusters.
        """
        state = self.state
        params = self.params
        name = self.state["campaign"]
        if state["campaign_open"] or state["campaign_waiting"]:
            return
        state["campaign"] = None
        self.server.cancel_timer("campaign-deadline")
        has_model = [device for device, own in enumerate(state["own"]) if own is not None]
        found = has_model if name == "warm-up" else sorted(state["tested"])
        if len(found) < params.groups:
            self.server.stop(
                f"{len(found)} devices came back from the {name}, too few for {params.groups} "
                "groups"
            )
        elif name == "warm-up" and params.second_campaign is not None:
            state["exchanged"] = found
            await self._begin_campaign(params.second_campaign, found)
        else:
            await self._make_clusters(found)

    async def _make_clusters(self, devices: list[int]) -> None:
        state = self.state
        server = self.server
        devices, labels = await self._cluster(devices)
        for group in range(max(labels) + 1):
            model = state["global"]
            if self.params.clusters_start == "members":
                own = [
                    state["own"][device]
                    for device, label in zip(devices, labels, strict=True)
                    if label == group
                ]
                model = server.models.mix(
                    await self.params.aggregation.total(server, own, 1 / len(own))
                )
            state["models"].append(model)
        for device, label in zip(devices, labels, strict=True):
            self.move(device, label, "clustering")
        # large, and needed no more
        state |= {"clustered": True, "own": [], "began": [], "exchanged": [], "tested": {}}
        await self.after_aggregation()
        self._open_round()

    async def _cluster(self, devices: list[int]) -> tuple[list[int], list[int]]:
        """The comparable devices among ``devices``, and the cluster of each; random clusters
        where nothing is learnt.
        """
        server = self.server
        params = self.params
        generator = self.server.rng("clustering")
        record: dict[str, Any] = {"measure": params.measure}
        if not server.models.learns:
            labels = canonical(generator.permutation(len(devices)) % params.groups)
        else:
            kept, distance = await self.distances(devices)
            if params.second_campaign != "exchange":
                server.compute("products", len(kept), server.setting.parameters)
            server.compute(
                "medoids" if isinstance(params.clusterer, KMedoids) else "linkage",
                len(kept),
                m=params.groups,
            )
            if len(kept) < params.groups:
                raise SimulationError(
                    f"the warm-up of {len(devices)} devices gave {len(kept)} finite models, "
                    f"fewer than the {params.groups} "
                    "groups that they are to make; a smaller training.lr may help"
                )
            devices = [devices[at] for at in kept]
            if params.as_published and isinstance(params.clusterer, KMedoids):
                labels = k_medoids(distance, params.groups, "heuristic", generator)
            else:
                labels = params.clusterer.labels(distance, params.groups, generator)
            record |= shown_pairs("distance", distance)
        server.emit("clustering", devices=devices, groups=labels.tolist(), **record)
        return devices, labels.tolist()

    async def distances(self, devices: list[int]) -> Found:
        """Pairwise distances of the devices, by positions in ``devices``."""
        server = self.server
        state = self.state
        measure = self.params.measure
        if self.params.second_campaign == "exchange":
            rows = await server.models.numbers([state["tested"][device] for device in devices])
            columns = [state["exchanged"].index(device) for device in devices]
            return by_losses(
                np.stack(rows)[:, columns], loss_gap if measure == "loss-gap" else loss_distance
            )
        if measure == "last-batch-cos":
            gradients = await server.models.values([state["tested"][device] for device in devices])
            return by_rows(gradients, lambda rows: 1.0 - cosine_matrix(rows))
        models = await server.models.values([state["own"][device] for device in devices])
        if measure == "diff-norm":
            return by_rows(models, row_distances)
        against = state["tested" if measure == "grad-cos" else "began"]
        others = await server.models.values([against[device] for device in devices])
        with np.errstate(all="ignore"):  # of a device that has diverged
            changes = [model - other for model, other in zip(models, others, strict=True)]
        return by_rows(changes, lambda rows: 1.0 - cosine_matrix(rows))

    async def after_aggregation(self) -> None:
        """Once no two clusters have the same model, all devices without a cluster look for one,
        now or on their return.
        """
        state = self.state
        if state["admitting"] or len({model.name for model in state["models"]}) < len(
            state["models"]
        ):
            return
        state["admitting"] = True
        for device in self.members(-1):
            there = self.server.clients.idle(device)
            self.must_prepare(device)
            if not there:
                self.server.clients.await_return(device)

    async def on_arrival(self, device: int) -> None:
        if self.state["admitting"] and self.state["group"][device] < 0:
            self.must_prepare(device)

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        return (
            ({"cold-start": self.state["models"]}, "cold-start")
            if device in self.state["unprepared"]
            else None
        )

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        for entry, group in zip(prepared, await self.choices(prepared, "cold-start"), strict=True):
            self.move(entry["device"], group, "cold-start")
