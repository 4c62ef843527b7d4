"""FlexCFL: groups by the direction of first updates, newcomers by cosine, migration when data shift."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.errors import ScenarioError, SimulationError
from fedsim.federation.client import Instruction, LocalResult
from fedsim.federation.contents import Contents, Header
from fedsim.federation.devices import Device
from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.language.spec import Epochs, Iterations, OnlyWith
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.clustering.algorithms import agglomerative, kmeans
from fedsim.strategies.clustering.edc import EXACT_UP_TO, edc_features
from fedsim.strategies.clustering.similarity import MOST_SHOWN, cosine_matrix, madc, most_alike, rounded, shown_pairs
from fedsim.strategies.clustering.weights import inter_group_coefficients
from fedsim.strategies.migrating import Migrating, MigratingClient, MigratingParams
from fedsim.strategies.parts.aggregation import Protection
from fedsim.training import Limit, Training
from fedsim.world.task import Computation


class FlexCFLParams(MigratingParams):
    """What FlexCFL takes, besides ``MigratingParams``. The defaults are those of its published experiments on MNIST.

    Attributes:
        alpha: the group cold start pre-trains alpha m devices, or all if there are fewer.
        pretrain_iterations: SGD steps of a pre-training (the published code's 50); or it is counted in ``epochs``.
        pretrain_epochs: passes over its data of a pre-training that is counted in them (in the paper ``local_epochs``,
            Algorithm 3, line 5).
        cold_start: how the first groups come about: by EDC (``edc``), by MADC and complete linkage (``madc``), or from m random
            devices, each of which becomes a group (``random-centers``, the ablation RCC).
        newcomers: a device without a group joins the one whose direction is most like its own (``cosine``), or one at random
            (``random``, the ablation RAC).
        on_arrival: a device that arrives while the run goes on finds its group at once; else when it is first selected.
        epochs_after_cold_start: local epochs in the round in which a device has just been pre-trained: all (``full``, as the
            published code does), or one less (``less``, as the paper says).
        eta_g: the learning rate between groups; 0 keeps them apart.
        inter_group: ``normalised``, divided by the sum of the coefficients (the published code), or ``literal`` (Eq. 20, whose
            models grow with every round).
    """

    kind: Literal["flexcfl"] = "flexcfl"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Epochs = 10
    sweep: bool = True
    alpha: Annotated[int, OnlyWith("cold_start", values=("edc", "madc"))] = Field(default=20, ge=1)
    pretrain_iterations: Literal["epochs"] | Iterations = 50
    pretrain_epochs: Annotated[Epochs, OnlyWith("pretrain_iterations", values=("epochs",))] = 1
    cold_start: Literal["edc", "madc", "random-centers"] = "edc"
    newcomers: Literal["cosine", "random"] = "cosine"
    on_arrival: Annotated[bool, OnlyWith("newcomers", values=("cosine",))] = True
    epochs_after_cold_start: Literal["full", "less"] = "full"
    eta_g: float = Field(default=0.0, ge=0.0, le=1e6)
    inter_group: Annotated[Literal["normalised", "literal"], OnlyWith("eta_g")] = "normalised"

    def unprotected(self, protection: Protection) -> str | None:
        """The first models are the means of what pre-training made."""
        return "groups begin with the plain mean of pre-trained models" if protection == "private" else None

    def pretrained(self, devices: int) -> int:
        """How many devices the group cold start pre-trains."""
        return self.groups if self.cold_start == "random-centers" else min(self.alpha * self.groups, devices)

    def combined_at_once(self, devices: int) -> int:
        """A group's share of a cohort, or of the pre-trained devices."""
        return min(super().combined_at_once(devices), self.pretrained(devices) // self.groups)

    def check(self, devices: int) -> None:
        """There must be at least as many devices as groups, and a round cannot ask more than there are."""
        super().check(devices)
        if self.groups > devices:
            raise ScenarioError(
                f"strategy.groups is {self.groups}, more than the {devices} devices that can be pre-trained to make them; "
                f"allowed are 1 to {devices}"
            )


class FedGroupParams(FlexCFLParams):
    """What FedGroup takes: see ``FlexCFLParams``."""

    kind: Literal["fedgroup"] = "fedgroup"  # type: ignore[assignment]
    dynamic: bool = False


def cluster_updates(
    updates: NDArray[np.float32], groups: int, measure: Literal["edc", "madc"], generator: np.random.Generator
) -> tuple[list[int], dict[str, Any]]:
    """Group updates [k, d] by what they have in common.

    Args:
        updates: of the pre-trained devices.
        groups: m.
        measure: ``edc``: k-means++ on the cosines with the m leading singular directions; ``madc``: complete linkage on the
            mean absolute difference of the cosines with all others.
        generator: of the strategy.

    Returns:
        The group of each, and what is worth recording: the measure, EDC features [k, m], and for up to 200 devices the
        cosine of every two [k, k].
    """
    record: dict[str, Any] = {"measure": measure}
    similarity = cosine_matrix(updates) if measure == "madc" or len(updates) <= MOST_SHOWN else None
    if measure == "madc":
        assert similarity is not None
        labels = agglomerative(madc(similarity), groups, "complete")
    else:
        features = edc_features(updates, groups, generator)
        labels = kmeans(features, groups, generator)
        record["features"] = rounded(features)
    if similarity is not None:
        record |= shown_pairs("similarity", similarity)
    found: list[int] = labels.tolist()
    return found, record | {"groups": found}


_MOST_FAILURES = 100  # of the group cold start: a deadline may be shorter than any pre-training, and there is no round yet


@pure
def nearest_direction(models: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The position of the direction that is most like what training has changed, the first of equals.

    Args:
        models: the initial model, what training has made of it, and the directions; float32 [d] each.
    """
    initial, trained, *directions = models
    return np.array(most_alike([trained - initial], directions), dtype=np.float64)


class FlexCFLClient(MigratingClient[FlexCFLParams]):
    """Pre-trains from the initial model to find its group, and trains the group's model.

    State besides ``MigratingClient``'s: ``initial`` and ``directions``, as it has received them.
    """

    def work(self, device: Device, order: Instruction) -> Sequence[Computation]:
        """Remember what was received, and train."""
        found = {"initial": order.contents.get("initial-model") or order.contents.get("pre-training")}
        found["directions"] = order.contents.get("directions")
        device.state.update({name: value for name, value in found.items() if value is not None})
        return super().work(device, order)

    def training(self, device: Device, order: Instruction) -> Training:
        """A little from the initial model, for the direction that it takes; else from the group's.

        Who has been pre-trained in the same round trains one epoch less, if the parameters say so: that was the first.
        """
        params = self.params
        if order.job != "train":
            if params.pretrain_iterations == "epochs":
                return Training(device.state["initial"], params.pretrain_epochs)
            return Training(device.state["initial"], steps=params.pretrain_iterations)
        return Training(order["model"], self._epochs(order))

    def _epochs(self, order: Instruction) -> int:
        params = self.params
        one_less = "pre-trained" in order.contents and params.epochs_after_cold_start != "full"
        return max(1, params.local_epochs - one_less)

    def limit(self, device: Device, order: Instruction) -> Limit:
        """All of it before the deadline that counts from the download; beside the rounds there is none."""
        params = self.params
        if order.job == "train":
            return Limit(budget=self.training_limit, at_least=self._epochs(order))
        epochs = params.pretrain_epochs if params.pretrain_iterations == "epochs" else 1
        aside = order.job == "find-group" and order.round is None
        return Limit(budget=None if aside else self.training_limit, at_least=epochs)

    def reply(self, device: Device, order: Instruction, done: LocalResult) -> Contents | None:
        """The update; or the group whose direction is most like the change by the pre-training."""
        match order.job:
            case "pre-train":
                return {"pre-training": done.update}
            case "find-group":
                assert done.update is not None
                models = [device.state["initial"], done.update, *device.state["directions"]]
                return {"id": device.numbers(nearest_direction, models)}
        return super().reply(device, order, done)

    def settles(self, device: Device, order: Instruction) -> bool:
        """Pre-training says which group it is."""
        return order.job != "train"


class FlexCFL(Migrating[FlexCFLParams]):
    """Flexible clustered federated learning.

    Source: Duan et al., "Flexible clustered federated learning for client-level data distribution shift" (2021), Algorithms 2
    and 3 and section 3.4; where it differs from the published code, the parameters name both.

    Group cold start: alpha m devices receive the initial model w0 (d parameters), pre-train, and send their update dw
    (d parameters). They are clustered by dw; a group's model is the mean of its members' trained models, its direction the
    mean of their updates, which never changes again. Who came back makes the groups; with fewer than m it is repeated,
    up to 100 times.

    Client cold start, when a device without a group is selected or arrives: it receives w0 and the m directions
    (d + m d parameters), pre-trains, joins the group with the least dissimilarity (1 - cos) / 2 of dw and direction, and says
    which (4 bytes); no round is lost by it. The pre-trained devices receive the directions with their first group model.

    A round: the K clients receive their group's model (d parameters), train, and send their update (d parameters); a group's
    model becomes the mean of its own, weighted by samples. With eta_g the groups' models then move towards each other
    (Eq. 20), for which each goes from its group server to the auxiliary one (d parameters a group).

    Migration (``Migrating``): a device whose data have shifted pre-trains again from w0, joins the group whose direction is now
    nearest, and says which (4 bytes).

    State besides ``Migrating``'s:
        initial: w0.
        directions: each group's direction.
        pretraining: tasks of the group cold start that run, task -> device; ``pretrained``: what came back, (device, update).
        attempts: how many group cold starts there were; ``failures``: those that brought back too few devices.
        informed: for each device whether it has w0 and the directions.
    """

    Params: ClassVar[type[FlexCFLParams]] = FlexCFLParams
    Client = FlexCFLClient

    def __init__(self, params: FlexCFLParams, server: Server) -> None:
        super().__init__(params, server)
        self.state |= {"directions": [], "pretraining": {}, "pretrained": [], "attempts": 0, "failures": 0}
        self.state |= {"informed": [False] * server.devices}

    # Group cold start.

    async def on_start(self) -> None:
        """Pre-train the devices that make the groups."""
        self.state |= {"round": 0, "cohort": [], "open": {}, "initial": self.server.initial()}
        self._begin_groups()

    def _begin_groups(self) -> None:
        state, params, server = self.state, self.params, self.server
        devices = server.sample(params.pretrained(server.devices), "pre-training", state["attempts"])
        state["attempts"] += 1
        state["pretrained"] = []
        if len(devices) < params.groups:
            server.look_again("pre-training", params.retry, at_least=params.groups)
            return
        if self._round_limit is not None:
            server.timer("pre-training-deadline", server.now + self._round_limit)
        for device in devices:
            state["pretraining"][server.ask(device, {"pre-training": state["initial"]}, "pre-train")] = device

    async def _end_pretraining(self, message: TaskEnd) -> None:
        state = self.state
        device = state["pretraining"].pop(message.task)
        if message.outcome == "done":
            state["pretrained"].append((device, message["pre-training"]))
        if state["pretraining"]:
            return
        self.server.cancel_timer("pre-training-deadline")
        groups = self.params.groups
        if len(state["pretrained"]) < groups:
            state["failures"] += 1
            if state["failures"] == _MOST_FAILURES:
                self.server.stop(f"{_MOST_FAILURES} group cold starts brought back fewer than {groups} devices each")
            else:
                self.server.look_again("pre-training", self.params.retry, at_least=groups)
        else:
            await self._make_groups()
            self._open_round()

    async def _make_groups(self) -> None:
        """Cluster the updates that came back; each cluster becomes a group, with a model and a direction."""
        state, server, params = self.state, self.server, self.params
        found = await self._finite(state["pretrained"])
        state["pretrained"] = []
        devices = [device for device, _ in found]
        labels = await self._cluster(devices, [update for _, update in found])
        for group in range(params.groups):
            members = [update for (_, update), label in zip(found, labels, strict=True) if label == group]
            parts = await params.aggregation.total(server, members, 1 / len(members))
            state["models"].append(server.mix(parts))
            difference = [*parts, (state["initial"], -1.0)]
            state["directions"].append(server.mix(difference, rescale=False))
        for device, label in zip(devices, labels, strict=True):
            self.settle(device, label, "pre-training")
        await self.test_again(devices)

    async def _finite(self, pretrained: list[tuple[int, Ref]]) -> list[tuple[int, Ref]]:
        """Those whose update is finite; enough of them, or the run cannot go on."""
        if not self.server.learns:
            return pretrained
        values = await self.server.values([update for _, update in pretrained])
        found = [entry for entry, value in zip(pretrained, values, strict=True) if np.isfinite(value).all()]
        if len(found) < self.params.groups:
            raise SimulationError(
                f"the pre-training of {len(pretrained)} devices gave {len(found)} finite updates, fewer than the "
                f"{self.params.groups} groups that they are to make; a smaller training.lr may help"
            )
        return found

    async def _cluster(self, devices: list[int], updates: list[Ref]) -> list[int]:
        """The group of each pre-trained device."""
        server, params = self.server, self.params
        generator = server.rng("clustering", self.state["attempts"])
        if not server.learns or params.cold_start == "random-centers":
            order = generator.permutation(len(devices))
            return [int(place) % params.groups for place in np.argsort(order)]
        n, d, m = len(updates), server.setting.parameters, params.groups
        if params.cold_start == "madc":
            server.compute("products", n, d)
            server.compute("absolute differences", n)
        else:
            server.compute("products" if n <= EXACT_UP_TO else "directions", n, d, m)
            server.compute("k-means", n, m, m)
        labels, record = cluster_updates(await self._changes(updates), params.groups, params.cold_start, generator)
        self.server.emit("clustering", devices=devices, **record)
        return labels

    async def _changes(self, updates: Sequence[Ref]) -> NDArray[np.float32]:
        """What devices' pre-training has changed in the initial model, float32 [k, d]."""
        initial, *trained = await self.server.values([self.state["initial"], *updates])
        return np.stack(trained) - initial

    # Client cold start and migration.

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        """What a device needs to find its group, if there is none yet or the data have shifted."""
        state = self.state
        if state["group"][device] >= 0 and device not in state["unprepared"]:
            return None
        needed = {} if state["informed"][device] else {"initial-model": state["initial"], "directions": state["directions"]}
        return needed, "find-group"

    def _ask(self, device: int) -> None:
        if self.params.newcomers == "random" and self.state["group"][device] < 0:
            generator = self.server.rng("newcomer", device)
            self.move(device, int(generator.integers(self.params.groups)), "cold-start")
        super()._ask(device)

    def contents_after_preparation(self, device: int) -> Contents:
        """The group's model, and that the device was pre-trained in this round."""
        return {**self.contents(device), "pre-trained": Header(True)}

    def contents(self, device: int) -> Contents:
        """The group's model; who was pre-trained for the groups receives the directions with its first one."""
        if self.state["informed"][device] or self.params.newcomers == "random":
            return super().contents(device)
        return {**super().contents(device), "directions": self.state["directions"]}

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        """The group that each device has found."""
        groups = await self._nearest(prepared)
        for entry, group in zip(prepared, groups, strict=True):
            device = entry["device"]
            self.state["informed"][device] = True
            self.settle(device, group)

    async def _nearest(self, prepared: Sequence[dict[str, Any]]) -> list[int]:
        if not self.server.learns:
            return self.random_groups(len(prepared), "nearest", *(entry["task"] for entry in prepared[:1]))
        return await self.server.choices([entry["contents"]["id"] for entry in prepared])

    async def on_arrival(self, device: int) -> None:
        """A newcomer finds its group at once, if there are groups."""
        if self.params.on_arrival and self.params.newcomers == "cosine" and self.state["models"]:
            self.must_prepare(device)

    # Between groups.

    async def after_aggregation(self) -> None:
        """Each group's model moves towards the others, through an auxiliary server."""
        state, server, params = self.state, self.server, self.params
        inhabited = sorted({group for group in state["group"] if group >= 0})
        if not params.eta_g or len(inhabited) < 2:
            return
        for group in inhabited:
            server.exchange({"group-exchange": state["models"][group]}, f"group-{group}", "auxiliary")
        if not server.learns:
            return
        models = [state["models"][group] for group in inhabited]
        server.compute("distances", len(models), server.setting.parameters)
        norms = [float(np.linalg.norm(value.astype(np.float64))) for value in await server.values(models)]
        if not np.isfinite(norms).all():
            return
        matrix = inter_group_coefficients(np.array(norms), params.eta_g, params.inter_group)
        for group, row in zip(inhabited, matrix.tolist(), strict=True):
            state["models"][group] = server.mix(list(zip(models, row, strict=True)))

    # Messages.

    async def on_task_end(self, message: TaskEnd) -> None:
        """A device has been pre-trained, prepared or trained."""
        if message.task in self.state["pretraining"]:
            await self._end_pretraining(message)
            return
        if "update" in message.contents and message.task in self.state["open"]:
            self.state["informed"][message.device] |= self.params.newcomers == "cosine"
        await super().on_task_end(message)

    async def on_timer(self, name: str) -> None:
        """Pre-train again, or no longer; all else as in every round."""
        if name == "pre-training":
            self._begin_groups()
        elif name == "pre-training-deadline":
            for task in list(self.state["pretraining"]):
                self.server.end(task, "late")
        else:
            await super().on_timer(name)


class FedGroup(FlexCFL):
    """FlexCFL without migration: groups as they were found first, and newcomers by cosine.

    Source: Duan et al., "FedGroup: efficient clustered federated learning via decomposed data-driven measure" (2020), and
    the static form in the paper of FlexCFL. Sends what FlexCFL sends.
    """

    Params: ClassVar[type[FlexCFLParams]] = FedGroupParams
