"""FlexCFL: groups by the direction of first updates, newcomers by cosine, migration when data shift."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.server import Download, Limit, Payload, Server, Step, TaskEnd, Train, Training, Upload
from fedsim.strategies.clustering.mixing import inter_group_coefficients
from fedsim.strategies.clustering.similarity import most_alike
from fedsim.strategies.flexcfl.cold_start import cluster_updates
from fedsim.strategies.flexcfl.params import FedGroupParams, FlexCFLParams
from fedsim.strategies.migrating import Migrating

if TYPE_CHECKING:
    from fedsim.learning import Ref

_ID = Payload("id", 4.0)
_MOST_FAILURES = 100  # of the group cold start: a deadline may be shorter than any pre-training, and there is no round yet


class FlexCFL(Migrating[FlexCFLParams]):
    """Flexible clustered federated learning.

    Source: Duan et al., "Flexible clustered federated learning for client-level data distribution shift" (2021), Algorithms 2
    to 4; where it differs from the published code, the parameters name both.

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

    Parameters: ``FlexCFLParams``.

    State besides ``Migrating``'s:
        initial: w0.
        directions: each group's direction.
        pretraining: tasks of the group cold start that run, task -> device; ``pretrained``: what came back, (device, update).
        attempts: how many group cold starts there were; ``failures``: those that brought back too few devices.
        informed: for each device whether it has w0 and the directions.
    """

    Params: ClassVar[type[FlexCFLParams]] = FlexCFLParams
    params: FlexCFLParams

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
        down, up = Payload("pre-training", server.download_bytes), Payload("pre-training", server.upload_bytes)
        devices = server.sample(params.pretrained(server.devices), "pre-training", state["attempts"])
        state["attempts"] += 1
        state["pretrained"] = []
        if len(devices) < params.groups:
            server.look_again("pre-training", params.retry, at_least=params.groups)
            return
        if self.round_limit is not None:
            server.timer("pre-training-deadline", server.now + self.round_limit)
        for device in devices:
            task = server.ask(device, self.within_limit((Download((down,)), self.pretraining(), Upload((up,)))))
            state["pretraining"][task] = device

    def pretraining(self) -> Train:
        """A little training from the initial model, for the direction that it takes."""
        initial, params = self.state["initial"], self.params
        if params.pretrain_iterations is None:
            return Train(Training(initial, params.pretrain_epochs), Limit(at_least=params.pretrain_epochs))
        return Train(Training(initial, steps=params.pretrain_iterations))

    async def _end_pretraining(self, message: TaskEnd) -> None:
        state = self.state
        device = state["pretraining"].pop(message.task)
        if message.update is not None:
            state["pretrained"].append((device, message.update))
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
            share = 1 / len(members)
            state["models"].append(server.mix([(update, share) for update in members]))
            difference = [*((update, share) for update in members), (state["initial"], -1.0)]
            state["directions"].append(server.mix(difference, rescale=False))
        for device, label in zip(devices, labels, strict=True):
            self.settle(device, label, "pre-training")
        await self.test_again(devices)

    async def _finite(self, pretrained: "list[tuple[int, Ref]]") -> "list[tuple[int, Ref]]":
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

    async def _cluster(self, devices: list[int], updates: "list[Ref]") -> list[int]:
        """The group of each pre-trained device."""
        server, params = self.server, self.params
        generator = server.rng("clustering", self.state["attempts"])
        if not server.learns or params.cold_start == "random-centers":
            order = generator.permutation(len(devices))
            return [int(place) % params.groups for place in np.argsort(order)]
        labels, record = cluster_updates(await self._changes(updates), params.groups, params.cold_start, generator)
        self.server.emit("clustering", devices=devices, **record)
        return labels

    async def _changes(self, updates: "Sequence[Ref]") -> NDArray[np.float32]:
        """What devices' pre-training has changed in the initial model, float32 [k, d]."""
        initial, *trained = await self.server.values([self.state["initial"], *updates])
        return np.stack(trained) - initial

    # Client cold start and migration.

    def preparation(self, device: int) -> tuple[Step, ...] | None:
        """Pre-train from the initial model and say which group it is, if there is none yet or the data have shifted."""
        state, server = self.state, self.server
        if state["group"][device] >= 0 and device not in state["unprepared"]:
            return None
        steps: list[Step] = [self.pretraining(), Upload((_ID,))]
        if not state["informed"][device]:
            steps.insert(0, Download((Payload("initial-model", server.download_bytes), self._directions())))
        return tuple(steps)

    def _directions(self) -> Payload:
        return Payload("directions", self.params.groups * self.server.download_bytes)

    def _ask(self, device: int) -> None:
        if self.params.newcomers == "random" and self.state["group"][device] < 0:
            generator = self.server.rng("newcomer", device)
            self.move(device, int(generator.integers(self.params.groups)), "cold-start")
        super()._ask(device)

    def steps_after_preparation(self, device: int) -> tuple[Step, ...]:
        """As in every round, or with one epoch less: the pre-training was the first."""
        steps = super().steps_after_preparation(device)
        if self.params.epochs_after_cold_start == "full":
            return steps
        return tuple(_shortened(step) if isinstance(step, Train) else step for step in steps)

    def steps(self, device: int) -> tuple[Step, ...]:
        """As every group's client; who was pre-trained for the groups receives the directions with its first model."""
        download, *others = super().steps(device)
        if self.state["informed"][device] or self.params.newcomers == "random":
            return (download, *others)
        assert isinstance(download, Download)
        return (Download((*download.payloads, self._directions())), *others)

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        """The group whose direction is most like the device's own; the first of equals."""
        groups = await self._nearest(prepared)
        for entry, group in zip(prepared, groups, strict=True):
            device = entry["device"]
            self.state["informed"][device] = True
            self.settle(device, group)

    async def _nearest(self, prepared: Sequence[dict[str, Any]]) -> list[int]:
        if not self.server.learns:
            return self.random_groups(len(prepared), "nearest", *(entry["task"] for entry in prepared[:1]))
        changes = await self._changes([entry["update"] for entry in prepared])
        directions = await self.server.values(self.state["directions"])
        return most_alike(list(changes), directions)

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
            server.exchange("group-exchange", server.upload_bytes, f"group-{group}", "auxiliary")
        if not server.learns:
            return
        models = [state["models"][group] for group in inhabited]
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
        if message.outcome == "done" and message.update is not None and message.task in self.state["open"]:
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


def _shortened(train: Train) -> Train:
    """One epoch less, one at least."""
    training, limit = train.training, train.limit
    if training.epochs == 1:
        return train
    return Train(replace(training, epochs=training.epochs - 1), replace(limit, at_least=limit.at_least - 1))


class FedGroup(FlexCFL):
    """FlexCFL without migration: groups as they were found first, and newcomers by cosine.

    Source: Duan et al., "FedGroup: efficient clustered federated learning via decomposed data-driven measure" (2020), and
    the static form in the paper of FlexCFL. Sends what FlexCFL sends. Parameters: ``FlexCFLParams``.
    """

    Params: ClassVar[type[FlexCFLParams]] = FedGroupParams
