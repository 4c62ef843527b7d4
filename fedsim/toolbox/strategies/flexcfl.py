"""FlexCFL: groups by the direction of first updates, newcomers by cosine, migration when data
shift.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.arrays import Floats, Floats32
from fedsim.common.errors import SimulationError
from fedsim.common.registry import Registry
from fedsim.common.spec import Epochs
from fedsim.common.training import Limit, Training
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server, TaskEnd
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.toolbox.clustering import similarity as pairs
from fedsim.toolbox.clustering.algorithms import RandomGroups, agglomerative, kmeans
from fedsim.toolbox.clustering.moments import PreTraining, ShiftTest
from fedsim.toolbox.strategies.grouped import (
    Migrating,
    MigratingClient,
    MigratingParams,
    PlainDeadline,
)
from fedsim.world.task import Computation


class FlexCFLParams(PlainDeadline, MigratingParams):
    """Parameters of FlexCFL beside ``MigratingParams``.

    The defaults are those of its published experiments on MNIST.
    """

    instead: ClassVar[Mapping[str, str]] = {
        **MigratingParams.instead,
        "alpha": "moment.devices",
        "pretrain_iterations": "moment.steps",
        "pretrain_epochs": "moment.epochs",
        **dict.fromkeys(("newcomers", "on_arrival"), "moment.newcomers"),
        "cold_start": "measure",
        **dict.fromkeys(("epochs_after_cold_start", "inter_group"), "as"),
    }
    sweeps: ClassVar[bool] = True
    beside: ClassVar[str | None] = "groups begin with the plain mean of pre-trained models"

    kind: Literal["flexcfl", "fedgroup"] = "flexcfl"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Epochs = 10
    measure: Literal["edc", "madc"] = "edc"
    """how alike devices are: ``edc``, by the cosines with the m leading singular directions of
    all updates; ``madc``, by the mean absolute difference of the cosines with all others.
    """
    clusterer: Annotated[RandomGroups, Registry.of("clusterer", RandomGroups)] | None = None
    """None: k-means with ``edc``, complete linkage with ``madc``; ``random``: a group for each
    of m random devices (RCC).
    """
    moment: Annotated[PreTraining, Registry.of("moment", PreTraining, usual="pre-training")] = (
        PreTraining()
    )
    """pre-training before the first round; newcomers; and when devices' data have shifted."""
    eta_g: float = Field(default=0.0, ge=0.0, le=1e6)
    """the learning rate between groups; 0 keeps them apart."""

    @property
    def usual_shift(self) -> ShiftTest:
        return "never" if self.kind == "fedgroup" else "aligned_l1"

    @property
    def pretraining_epochs(self) -> int | None:
        """Passes over its data of a pre-training; None where it is counted in steps."""
        return self.moment.epochs or (
            None if self.as_published or self.moment.steps else self.local_epochs
        )

    def pretrained(self, devices: int) -> int:
        """The number of devices pre-trained to make the groups."""
        return self.groups if self.clusterer else min(self.moment.devices * self.groups, devices)

    def combined_at_once(self, devices: int) -> int:
        return min(super().combined_at_once(devices), self.pretrained(devices) // self.groups)

    def check(self, devices: int) -> None:
        super().check(devices)
        self.refuse_more("groups", devices)


def inter_group_coefficients(norms: Floats, eta: float, *, literal: bool = False) -> Floats:
    """Row j has the coefficients of all groups' models in group j's next model, float64 [m, m];
    ``norms`` [m] are ||w_l||.

    Literally it is w_j + eta sum of w_l / ||w_l|| over l != j (Algorithm 2): each round adds up to
    eta (m - 1) to the norm. Else that is divided by 1 + sum of eta / ||w_l|| (the published code).
    A model of zeros has no direction to give.
    """
    coefficients = np.tile(
        np.divide(eta, norms, out=np.zeros(len(norms)), where=norms > 0), (len(norms), 1)
    )
    np.fill_diagonal(coefficients, 1.0)
    return coefficients if literal else coefficients / coefficients.sum(axis=1, keepdims=True)


_MOST_FAILURES = 100  # of the group cold start: a deadline may be shorter than any pre-training


@pure
def nearest_direction(models: list[Floats32]) -> Floats:
    """Position of the direction most like the update; ``models`` are the initial one, the
    trained, and the directions.
    """
    initial, trained, *directions = models
    return np.array(pairs.most_alike([trained - initial], directions), dtype=np.float64)


class FlexCFLClient(MigratingClient[FlexCFLParams]):
    """Pre-trains from the ``initial`` model to find its group by the ``directions``, and trains
    the group's model.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        for name, key in (
            ("initial", "initial-model"),
            ("initial", "pre-training"),
            ("directions", "directions"),
        ):
            if key in instruction.contents:
                device.state[name] = instruction[key]
        return super().work(device, instruction)

    def training(self, device: Device, instruction: Instruction) -> Training:
        params = self.params
        job = instruction.job
        start, epochs = (
            (instruction["model"], 0)
            if job == "train"
            else (device.state["initial"], params.pretraining_epochs)
        )
        if job == "train":  # in the paper a pre-training in the same round was the first epoch
            one_less = "pre-trained" in instruction.contents and not params.as_published
            epochs = max(1, params.local_epochs - one_less)
        return (
            Training(start, epochs) if epochs else Training(start, steps=params.moment.steps or 50)
        )

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        return Limit(at_least=self.training(device, instruction).epochs)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        match instruction.job:
            case "pre-train":
                return {"pre-training": result.update}
            case "find-group" if result.update is not None:
                models = [device.state["initial"], result.update, *device.state["directions"]]
                return {"id": device.numbers(nearest_direction, models)}
        return super().reply(device, instruction, result)

    def settles(self, device: Device, instruction: Instruction) -> bool:
        return instruction.job != "train"


class FlexCFL(Migrating[FlexCFLParams]):
    """Flexible clustered federated learning; ``fedgroup`` is FedGroup, its static form.

    Source: Duan et al., "Flexible clustered federated learning for client-level data distribution
    shift" (2021), Algorithms 2 and 3, section 3.4, and "FedGroup: efficient clustered federated
    learning via decomposed data-driven measure" (2020).

    Group cold start: alpha m devices receive the initial model w0 (d parameters), pre-train, and
    send their update dw (d), by which they are clustered. A group's model is the mean of its
    members' trained models, its direction the mean of their updates, which never changes again. If
    fewer than m devices come back it is repeated, up to 100 times.

    Client cold start: a device without a group that is selected or arrives receives w0 and the m
    directions (d + m d), pre-trains, joins the group whose direction has the largest cosine with
    dw, and sends its number (4 bytes), in the same round. Pre-trained devices receive the
    directions with their first group model. A device whose data have shifted (``Migrating``)
    pre-trains again from w0, and sends the number of its group.

    In a round K clients receive their group's model (d), train, and send their update (d); a
    group's model becomes their mean, weighted by samples. With eta_g groups then move towards each
    other (Eq. 20) through an auxiliary server (d a group).
    """

    Params: ClassVar[type[FlexCFLParams]] = FlexCFLParams
    Client = FlexCFLClient

    def __init__(self, params: FlexCFLParams, server: Server) -> None:
        super().__init__(params, server)
        self.at_random = params.moment.newcomers == "random"

    async def on_start(self) -> None:
        self.state |= {
            "directions": [],
            "pretraining": {},
            "pretrained": [],
            "attempts": 0,
            "failures": 0,
        }
        self.state |= {
            "round": 0,
            "cohort": [],
            "open": {},
            "initial": self.server.models.initial(),
        }
        self.state["informed"] = [False] * self.server.devices
        self._begin_groups()

    def _begin_groups(self) -> None:
        state = self.state
        params = self.params
        server = self.server
        devices = server.clients.sample(
            params.pretrained(server.devices), "pre-training", state["attempts"]
        )
        state |= {"attempts": state["attempts"] + 1, "pretrained": []}
        if len(devices) < params.groups:
            server.look_again("pre-training", params.retry, at_least=params.groups)
            return
        if self._round_limit is not None:
            server.timer("pre-training-deadline", server.now + self._round_limit)
        for device in devices:
            state["pretraining"][
                server.ask(device, {"pre-training": state["initial"]}, "pre-train")
            ] = device

    async def _make_groups(self) -> None:
        state = self.state
        models = self.server.models
        devices, updates, labels = await self._cluster()
        state["pretrained"] = []
        for group in range(self.params.groups):
            members = [
                update for update, label in zip(updates, labels, strict=True) if label == group
            ]
            parts = await self.params.aggregation.total(self.server, members, 1 / len(members))
            state["models"].append(models.mix(parts))
            state["directions"].append(
                models.mix([*parts, (state["initial"], -1.0)], rescale=False)
            )
        for device, label in zip(devices, labels, strict=True):
            self.settle(device, label, "pre-training")
        await self.test_again(devices)

    async def _cluster(self) -> tuple[list[int], list[Ref], list[int]]:
        """The pre-trained devices whose update is finite, these updates, and the group of each."""
        server = self.server
        params = self.params
        m = self.params.groups
        devices, updates = map(list, zip(*self.state["pretrained"], strict=True))
        if server.models.learns:
            initial, *trained = await server.models.values([self.state["initial"], *updates])
            kept = [at for at, value in enumerate(trained) if np.isfinite(value).all()]
            if len(kept) < m:
                raise SimulationError(
                    f"the pre-training of {len(trained)} devices gave {len(kept)} finite "
                    "updates, fewer than the "
                    f"{m} groups that they are to make; a smaller training.lr may help"
                )
            devices = [devices[at] for at in kept]
            updates = [updates[at] for at in kept]
        generator = server.rng("clustering", self.state["attempts"])
        if not server.models.learns or params.clusterer:
            order = generator.permutation(len(devices))
            return devices, updates, (np.argsort(order) % m).tolist()
        n = len(updates)
        server.compute("products", n, server.setting.parameters)
        server.compute(
            *(("absolute differences", n) if params.measure == "madc" else ("k-means", n, m, m))
        )
        changes = np.stack([trained[at] for at in kept]) - initial
        similarity = pairs.cosine_matrix(changes)
        record = dict[str, Any]({"measure": params.measure})
        if params.measure == "madc":
            labels = agglomerative(pairs.madc(similarity), m, "complete")
        else:
            features = pairs.edc_features(changes, m)
            record["features"] = pairs.rounded(features)
            labels = kmeans(features, m, generator)
        record |= pairs.shown_pairs("similarity", similarity)
        server.emit("clustering", devices=devices, **record, groups=labels.tolist())
        return devices, updates, labels.tolist()

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        state = self.state
        if state["group"][device] >= 0 and device not in state["unprepared"]:
            return None
        needed = {"initial-model": state["initial"], "directions": state["directions"]}
        return {} if state["informed"][device] else needed, "find-group"

    def _ask(self, device: int, continues: bool = False) -> None:
        if self.at_random and self.state["group"][device] < 0:
            self.move(
                device,
                int(self.server.rng("newcomer", device).integers(self.params.groups)),
                "cold-start",
            )
        super()._ask(device, continues)

    def contents_after_preparation(self, device: int) -> Contents:
        return {**self.contents(device), "pre-trained": Header(True)}

    def contents(self, device: int) -> Contents:
        if self.state["informed"][device] or self.at_random:
            return super().contents(device)
        return {**super().contents(device), "directions": self.state["directions"]}

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        for entry, group in zip(prepared, await self.choices(prepared, "nearest"), strict=True):
            self.state["informed"][entry["device"]] = True
            self.settle(entry["device"], group)

    async def on_arrival(self, device: int) -> None:
        if self.params.moment.newcomers == "arrival" and self.state["models"]:
            self.must_prepare(device)

    async def after_aggregation(self) -> None:
        state = self.state
        server = self.server
        params = self.params
        inhabited = sorted({group for group in state["group"] if group >= 0})
        if not params.eta_g or len(inhabited) < 2:
            return
        models = [state["models"][group] for group in inhabited]
        for group, model in zip(inhabited, models, strict=True):
            server.exchange({"group-exchange": model}, f"group-{group}", "auxiliary")
        if not server.models.learns:
            return
        server.compute("distances", len(models), server.setting.parameters)
        norms = np.array(
            [
                np.linalg.norm(value.astype(np.float64))
                for value in await server.models.values(models)
            ]
        )
        if np.isfinite(norms).all():
            matrix = inter_group_coefficients(norms, params.eta_g, literal=not params.as_published)
            for group, row in zip(inhabited, matrix.tolist(), strict=True):
                state["models"][group] = server.models.mix(list(zip(models, row, strict=True)))

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        groups = self.params.groups
        if message.task not in state["pretraining"]:
            if "update" in message.contents and message.task in state["open"]:
                state["informed"][message.device] |= not self.at_random
            await super().on_task_end(message)
            return
        device = state["pretraining"].pop(message.task)
        if message.outcome == "done":
            state["pretrained"].append((device, message["pre-training"]))
        if state["pretraining"]:
            return
        self.server.cancel_timer("pre-training-deadline")
        if len(state["pretrained"]) >= groups:
            await self._make_groups()
            self._open_round()
            return
        state["failures"] += 1
        if state["failures"] == _MOST_FAILURES:
            self.server.stop(
                f"{_MOST_FAILURES} group cold starts brought back fewer than {groups} devices each"
            )
        else:
            self.server.look_again("pre-training", self.params.retry, at_least=groups)

    async def on_timer(self, name: str) -> None:
        if name == "pre-training":
            self._begin_groups()
        elif name == "pre-training-deadline":
            for task in list(self.state["pretraining"]):
                self.server.end(task, "late")
        else:
            await super().on_timer(name)
