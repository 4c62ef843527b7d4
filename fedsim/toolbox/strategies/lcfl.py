"""LCFL: devices are clustered once, by the losses of each other's models (Gu et al., 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedsim.common.arrays import Floats32
from fedsim.common.errors import SimulationError
from fedsim.common.training import ALL_SAMPLES, LocalSteps, Training
from fedsim.federation import Contents, Device, Header, Instruction, Lazy, LocalResult, TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.clustering.algorithms import KMedoids, canonical, k_medoids
from fedsim.toolbox.clustering.comparison import (
    ModelComparison,
    by_losses,
    by_rows,
    cosine_distances,
)
from fedsim.toolbox.clustering.moments import AfterLocalTraining, AfterRounds
from fedsim.toolbox.clustering.similarity import (
    Matrix,
    loss_distance,
    loss_gap,
    row_distances,
)
from fedsim.toolbox.strategies.campaign import DEADLINE, Campaign, CampaignState
from fedsim.toolbox.strategies.clustering import charge_clustering, record_clustering
from fedsim.toolbox.strategies.grouped import (
    COLD_START,
    NO_GROUP,
    Grouped,
    GroupedState,
    Preparation,
)
from fedsim.toolbox.strategies.lcfl_params import LCFLParams, share_of
from fedsim.world.steps import Evaluate, TaskStep, Train

_GLOBAL_MODEL = -1
"""Index of the model before the clustering; the models of clusters have 0, 1, ...."""


class LCFLClient(SynchronousClient[LCFLParams]):
    """Client that trains a local model, tests other devices' models, and trains a cluster's model.

    Device i sends its local model w_i, and then the losses of other devices' models on its data, or
    a gradient. From these the server forms the clusters.

    A task is one of these jobs:

    - ``train``, in a round: train the model of the device's cluster; in the rounds before the
      clustering train the global model, which gives w_i.
    - ``warm-up``: train the received model, or random initial weights that the device draws if it
      received none, which gives w_i.
    - ``exchange``: compute the losses of w_i and of the received models of other devices.
    - ``gradient``: compute the gradient at w_i, or send the gradient that w_i's training has
      stored.
    - ``cold-start``: test the received models of all clusters, and choose the best.

    A message that starts a training of w_i is marked by the header ``trains-local``, in the jobs
    ``train`` and ``warm-up``.

    Entries of a device's state: ``own``, the local model w_i, until the losses or the gradient have
    arrived at the server; ``gradient``, the gradient of the last mini-batch of w_i's training;
    ``unsent-gradient``, the gradient of a new w_i until the new w_i has arrived at the server. If
    that answer is cut off, the earlier w_i and its gradient stay valid.
    """

    @property
    def _keeps_gradient(self) -> bool:
        """Whether the training of w_i stores the gradient of its last mini-batch."""
        return self.params.measure == "last-batch-cos"

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        """Return the computation of a task by its job: to train, to test models, or to do nothing.

        Args:
            device: the device, whose state has w_i, the device's local model, as ``own``.
            instruction: the message with the job, and the models to train or to test.
        """
        if instruction.job == COLD_START:  # tests the models of all clusters
            return (Evaluate(tuple(instruction[COLD_START])),)
        match instruction.job:
            case "warm-up":
                return (Train(self._warm_up(device, instruction)),)
            case "exchange":  # tests the local models of all devices
                models = list(instruction["exchange"])
                # the device's model gets its place, as all devices report losses in one order
                models.insert(instruction["place"], device.state["own"])
                return (Evaluate(tuple(models)),)
            case "gradient" if self._keeps_gradient:  # the training has stored the gradient
                return ()
            case "gradient":  # one step of length 1, so that the update is w_i - gradient
                return (Train(Training(device.state["own"], batch_size=ALL_SAMPLES, lr=1.0)),)
        return super().work(device, instruction)

    def _warm_up(self, device: Device, instruction: Instruction) -> Training:
        """Return the training of the local model w_i, by which the device is compared with others.

        It begins at the received model, or at the device's own draw if no model was received.
        """
        start = instruction.contents.get("warm-up")
        if start is None:
            start = device.initial(1 + device.number)
        moment = self.params.moment
        if isinstance(moment, AfterRounds):  # the training is as long as in FedAvg's rounds
            return Training(start, self.params.local_epochs)
        if moment.steps is None:
            return Training(start, moment.epochs)
        return Training(start, LocalSteps(moment.steps))

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        """Return a task's answer by its job; after a training of w_i also store its last gradient.

        The answers: ``cold-start``, the index of the best cluster's model; ``warm-up``, the local
        model w_i; ``exchange``, the losses of the compared models; ``gradient``, the gradient, or
        the model after one step along it; ``train``, the update.

        Args:
            device: the device, in whose state the gradient is stored.
            instruction: the message that has started the task.
            result: the trained model, or the test of models.
        """
        trains_local = "trains-local" in instruction.contents
        if trains_local and self._keeps_gradient and result.trained is not None:
            device.state["unsent-gradient"] = device.last_gradient(result.trained)
        if instruction.job == COLD_START and result.tested is not None:
            return {"id": Lazy("choice", result.tested)}
        match instruction.job:
            case "warm-up":
                return {"warm-up": result.update, "start": Header(result.start)}
            case "exchange" if result.tested is not None:
                # The message costs one scalar for each other device: |L_i(w_j) - L_i(w_i)|, or for
                # ``loss-gap`` L_i(w_j) and one more for L_i(w_i).
                scalars = len(instruction["exchange"])
                if self.params.measure == "loss-gap":
                    scalars += 1
                return {"probe-loss": Lazy("losses", result.tested, scalars)}
            case "gradient" if self._keeps_gradient:
                return {"gradient": device.state["gradient"]}
            case "gradient":
                return {"gradient": result.update}
        return super().reply(device, instruction, result)

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """Store or delete the device's local model, after an answer has arrived at the server.

        A local model that the server has received is stored for the later task in which the device
        compares it with other models, or computes its gradient. After this task it is deleted. If
        the clustering needs no such task, nothing is stored.
        """
        second_job = self.params.second_campaign  # the task that uses the stored model
        if second_job is None:  # the device is never asked for its local model again
            return
        if instruction.job == second_job:
            device.state.pop("own", None)
            device.state.pop("gradient", None)
        elif "trains-local" in instruction.contents:  # the reply has a new local model
            content = "warm-up" if instruction.job == "warm-up" else "update"
            device.state["own"] = reply[content]
            if self._keeps_gradient:
                device.state["gradient"] = device.state.pop("unsent-gradient")


@dataclass
class LCFLState(GroupedState):
    """State of LCFL on the server: local models before the clustering, clusters' models after it.

    Before the clustering there is also the global model.

    Attributes:
        global_model: Global model, which the warm-up trains and at which clusters begin.
        clustered: Whether the devices have been clustered.
        campaign: State of the open ``Campaign``, in which each device does one task, such as the
            warm-up.
        local_models: Device ID -> w_i, the last model that the device has sent. Empty after the
            clustering.
        starts: Device ID -> model from which the device's local model was trained. Empty after the
            clustering.
        compared: IDs of the devices whose models are compared. Empty after the clustering.
        reports: Device ID -> losses or gradient that a compared device has sent, as a reference to
            values that are computed when they are needed (``Lazy`` or ``Ref``).
        admitting: Whether devices without a cluster may choose one, from the time at which the
            models of all clusters differ.
    """

    global_model: Ref = field(init=False)
    clustered: bool = False
    campaign: CampaignState = field(default_factory=CampaignState)
    local_models: dict[int, Ref] = field(default_factory=dict)
    starts: dict[int, Ref] = field(default_factory=dict)
    compared: list[int] = field(default_factory=list)
    reports: dict[int, Any] = field(default_factory=dict)
    admitting: bool = False


class LCFL(Grouped[LCFLParams]):
    """Loss-based clustered federated learning.

    Each device trains a local model, and tests the local models of the other devices on its data.
    The devices are clustered once, by these losses, and each cluster then runs FedAvg separately.

    Source: Gu et al., "Novel clustered federated learning based on local loss" (2024), Algorithm 1
    and Eq. 2; the rounds of FedAvg before the clustering as in its published experiments.

    - Warm-up, which gives each device i a local model w_i. With rounds of FedAvg, w_i is the last
      model that device i sent; available devices that were never drawn train once after these
      rounds (d parameters each way). With local training, each device receives the initial model
      (d parameters; nothing if it draws a model itself), trains, and sends w_i (d parameters).
    - Exchange: each of the M devices with a w_i receives the models of the M - 1 other devices
      ((M - 1) d parameters). It computes the objective L_i of all M models on its training data,
      with ``training.l2``, and sends |L_i(w_j) - L_i(w_i)| for each model (M - 1 scalars of 4
      bytes). The distance of two devices is the sum of the two values that they send about each
      other's models (Eq. 2).
    - Clustering: the compared devices are clustered. The run ends if fewer than ``groups`` devices
      could be compared.
    - Newcomers: once the models of all clusters differ, devices without a cluster receive the
      models (k d parameters), test them on their training data, join the cluster of the best model,
      and send its number (4 bytes).

    Other distances are chosen by ``measure``. For ``loss-gap`` each device sends L_i(w_j) in the
    exchange (M scalars). All further measures need no exchange. For ``grad-cos`` each device sends
    the model after one step of length 1 from w_i on all of its data (d parameters). For
    ``last-batch-cos`` it sends the gradient of the last step of its training of w_i (d parameters).
    For ``diff-norm`` and ``update-cos`` it sends nothing more.
    """

    Params: ClassVar[type[LCFLParams]] = LCFLParams
    Client = LCFLClient
    State = LCFLState
    state: LCFLState

    async def on_start(self) -> None:
        self.state.global_model = self.server.models.initial()
        await super().on_start()

    # warm-up by rounds of FedAvg, then rounds of each cluster

    def _open_round(self) -> None:
        moment = self.params.moment
        warm_up_rounds = moment.rounds if isinstance(moment, AfterRounds) else 0
        if self.state.clustered or self.state.round < warm_up_rounds:
            super()._open_round()
        else:
            self.state.cohort = []  # no round is open
            self.server.timer("gather", self.server.now)

    def select(self) -> list[int]:
        if not self.state.clustered:
            assert isinstance(self.params.moment, AfterRounds)
            return self.pick(share_of(self.server.devices, self.params.moment.participation))
        cohort: list[int] = []
        for group in range(len(self.state.models)):
            members = self.members(group)
            count = share_of(len(members), self.params.participation)
            cohort += self.pick(count, group, among=members)
        return cohort

    def contents(self, device: int) -> Contents:
        if self.state.clustered:
            return super().contents(device)
        return {"model": self.state.global_model, "trains-local": Header(True)}

    async def aggregate(self) -> None:
        """Aggregate updates into the clusters' models, or at first into the global model.

        Before the clustering the updates are also stored, as the devices' local models.
        """
        state = self.state
        if state.clustered:
            await super().aggregate()
            return
        received = state.received
        for entry in received:
            state.local_models[entry["device"]] = entry["update"]
            state.starts[entry["device"]] = entry["start"]
        if received:
            model = state.global_model
            state.global_model = await self.next_model(model, received, slot=_GLOBAL_MODEL)

    def center(self, entry: Entry) -> Ref | None:
        if self.state.clustered:
            return super().center(entry)
        return self.state.global_model

    def models(self) -> ModelAssignment:
        if self.state.clustered:
            return super().models()
        return {"global": (self.state.global_model, None)}

    # campaigns (the warm-up of devices without a model, and the exchange)

    @property
    def _campaign(self) -> Campaign:
        return Campaign(
            self.server, self.state.campaign, self._campaign_contents, self._end_campaign
        )

    def _campaign_contents(self, device: int, job: str) -> Contents:
        """Return the message that starts a device's task of a campaign.

        Args:
            device: ID of the device.
            job: job of the campaign: ``warm-up``, ``exchange`` or ``gradient``.
        """
        state = self.state
        moment = self.params.moment
        match job:
            case "warm-up" if isinstance(moment, AfterLocalTraining) and moment.start == "own":
                return {"trains-local": Header(True)}  # the device draws a model
            case "warm-up":
                return {"warm-up": state.global_model, "trains-local": Header(True)}
            case "exchange":
                compared = state.compared
                models = [state.local_models[peer] for peer in compared if peer != device]
                return {"exchange": models, "place": Header(compared.index(device))}
        return {}  # ``gradient``: a device computes it from stored values alone

    async def on_timer(self, name: str) -> None:
        if name == "gather":
            await self._begin_warm_up()
        elif name == DEADLINE:
            await self._campaign.stop()
        else:
            await super().on_timer(name)

    async def _begin_warm_up(self) -> None:
        """Ask all available devices without a local model to train one, before the clustering.

        If too few devices are available, the server tries again later.
        """
        models = self.state.local_models
        idle = self.server.clients.idle_devices()
        untrained = [device for device in idle if device not in models]
        lacks_clients = self.server.lacks_clients(self.params.min_available)
        expected_models = len(models) + len(untrained)
        if lacks_clients or expected_models < self.params.groups:  # a cluster needs a device
            least = self.params.min_available or 1
            self.server.look_again("gather", self.params.retry, at_least=least)
        else:
            await self._campaign.begin("warm-up", untrained, self.params.moment.deadline)

    async def on_task_end(self, message: TaskEnd) -> None:
        """Store the answer of a task of the open campaign, or handle the end of a round's task.

        In a campaign each device does one task outside the rounds, such as a local training.

        Args:
            message: the ended task.
        """
        state = self.state
        campaign = self._campaign
        if not campaign.has_task(message.task):
            await super().on_task_end(message)
            return
        device = message.device
        if message.outcome == "done":
            match message.job:
                case "warm-up":
                    state.local_models[device] = message["warm-up"]
                    state.starts[device] = message["start"]
                case "exchange":
                    state.reports[device] = message["probe-loss"]
                case "gradient":
                    state.reports[device] = message["gradient"]
        await campaign.end(message)

    async def on_return(self, device: int) -> None:
        campaign = self._campaign
        if campaign.awaits(device):
            await campaign.resume(device)
        else:
            await super().on_return(device)

    async def _end_campaign(self, job: str) -> None:
        """Go on after a campaign: begin the second campaign, or cluster the devices.

        A second campaign follows the warm-up if the key ``measure`` needs losses or gradients. The
        run is stopped if too few devices have answered.

        Args:
            job: job of the campaign that is over.
        """
        state = self.state
        groups = self.params.groups
        second = self.params.second_campaign
        devices = sorted(state.local_models if job == "warm-up" else state.reports)
        if len(devices) < groups:
            self.server.stop(
                f"{len(devices)} devices came back from the {job}, too few for {groups} groups"
            )
        elif job == "warm-up" and second is not None:
            state.compared = devices
            await self._campaign.begin(second, devices, self.params.moment.deadline)
        else:
            await self._make_clusters(devices)

    async def _make_clusters(self, devices: list[int]) -> None:
        """Cluster the compared devices, make the clusters' first models, and go on with rounds.

        In runs without learning the clusters are random, and all devices have one. The clustering
        is recorded among the run's events.

        Args:
            devices: IDs of the devices that have answered in the last campaign.
        """
        state = self.state
        server = self.server
        pairs: dict[str, Matrix] = {}
        distance: Matrix | None = None
        if server.models.learns:
            devices, distance = await self._compare(devices)
            pairs["distance"] = distance
        else:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await server.models.note_skipped(self._compared_models(devices))
        labels = self._cluster_devices(len(devices), distance)
        record_clustering(server, devices, labels, pairs, measure=self.params.measure)
        members_of_group: list[list[int]] = [[] for _ in range(max(labels) + 1)]
        for device, group in zip(devices, labels, strict=True):
            members_of_group[group].append(device)
        for members in members_of_group:
            state.models.append(await self._first_model(members))
        for device, group in zip(devices, labels, strict=True):
            self.move(device, group, "clustering")
        # Models and losses use memory, and are not needed after the clustering.
        state.local_models = {}
        state.starts = {}
        state.compared = []
        state.reports = {}
        state.clustered = True
        await self.after_aggregation()  # admits newcomers if the clusters' models differ already
        self._open_round()

    async def _first_model(self, members: Sequence[int]) -> Ref:
        """Return the model with which a new cluster begins.

        It is the global model, or with ``clusters_start = "members"`` the mean of the members'
        local models.

        Args:
            members: IDs of the devices in the cluster.
        """
        if self.params.clusters_start == "global":
            return self.state.global_model
        models = [self.state.local_models[device] for device in members]
        mean = await self.params.aggregation.total(self.server, models, 1 / len(models))
        return self.server.models.mix(mean)

    async def _compare(self, devices: list[int]) -> tuple[list[int], Matrix]:
        """Compute the distances of devices, and charge the server the time of the clustering.

        Args:
            devices: IDs of the devices that have answered in the last campaign.

        Returns:
            IDs of the devices whose losses, models or updates are finite, and the distances of all
            pairs of them, float64 [n, n].

        Raises:
            SimulationError: fewer devices than ``groups`` have finite values.
        """
        params = self.params
        groups = params.groups
        positions, distance = await self.distances(devices)
        count = len(positions)
        method = "medoids" if isinstance(params.clusterer, KMedoids) else "linkage"
        # Distances by losses need no inner products of models, which the length 0 says.
        uses_losses = params.second_campaign == "exchange"
        length = 0 if uses_losses else self.setting.parameters
        charge_clustering(self.server, method, count, length, groups=groups)
        if count < groups:
            raise SimulationError(
                f"the warm-up of {len(devices)} devices gave {count} finite models, "
                f"fewer than the {groups} groups that they are to make; a smaller training.lr "
                "may help"
            )
        return [devices[position] for position in positions], distance

    def _cluster_devices(self, count: int, distance: Matrix | None) -> list[int]:
        """Return the cluster index of each device, by the devices' distances.

        Args:
            count: n, the count of devices.
            distance: distances of all pairs of devices, [n, n]; None: the clusters are random.
        """
        params = self.params
        groups = params.groups
        generator = self.server.rng("clustering")
        if distance is None:
            labels = canonical(generator.permutation(count) % groups)
        elif params.as_published and isinstance(params.clusterer, KMedoids):
            # the published code begins with other medoids
            labels = k_medoids(distance, groups, "heuristic", generator)
        else:
            labels = params.clusterer.labels(distance, groups, generator)
        clusters: list[int] = labels.tolist()
        return clusters

    async def distances(self, devices: Sequence[int]) -> ModelComparison:
        """Compute the distances of all pairs of devices, by the key ``measure``.

        They are computed from the devices' losses on each other's models, their local models,
        gradients, or updates. Devices with values that are not finite are left out.

        Args:
            devices: IDs of the devices.

        Returns:
            Positions in ``devices`` of the n remaining devices, and the distances of all pairs of
            them, float64 [n, n].
        """
        state = self.state
        match self.params.measure:
            case "lcfl":
                return by_losses(await self._reported_losses(devices), loss_distance)
            case "loss-gap":
                return by_losses(await self._reported_losses(devices), loss_gap)
            case "diff-norm":
                rows = await self._values(state.local_models, devices)
                return by_rows(rows, row_distances)
            case "grad-cos":
                # a report is w_i - grad L_i(w_i), so that the gradients are w_i - report
                rows = await self._local_models_minus(state.reports, devices)
            case "last-batch-cos":  # a report is a gradient
                rows = await self._values(state.reports, devices)
            case "update-cos":
                rows = await self._local_models_minus(state.starts, devices)
        return by_rows(rows, cosine_distances)

    def _compared_models(self, devices: Sequence[int]) -> list[Ref]:
        """Return the models and reported values that ``distances`` would read.

        In runs without learning they are noted, so that ``fedsim check`` counts their memory.
        """
        state = self.state
        sources: list[Mapping[int, Ref]] = []
        match self.params.measure:
            case "lcfl" | "loss-gap":  # reports are ``Lazy`` losses
                return [state.reports[device].ref for device in devices]
            case "diff-norm":
                sources = [state.local_models]
            case "grad-cos":  # reports are models
                sources = [state.local_models, state.reports]
            case "last-batch-cos":  # reports are gradients
                sources = [state.reports]
            case "update-cos":
                sources = [state.local_models, state.starts]
        return [models[device] for models in sources for device in devices]

    async def _reported_losses(self, devices: Sequence[int]) -> Matrix:
        """Return the losses of the devices' local models on each other's data, as reported.

        Args:
            devices: IDs of the devices, [n].

        Returns:
            L_i(w_j), the loss of the model of device j on the data of device i, float64 [n, n] with
            i as the row.
        """
        reports = [self.state.reports[device] for device in devices]
        # losses of all compared models on the device's data
        losses_of_device = await self.server.models.numbers(reports)
        # models of devices that have not reported are left out
        columns = [self.state.compared.index(device) for device in devices]
        return np.stack(losses_of_device)[:, columns]

    async def _values(self, models: Mapping[int, Ref], devices: Sequence[int]) -> list[Floats32]:
        return await self.server.models.values([models[device] for device in devices])

    async def _local_models_minus(
        self, others: Mapping[int, Ref], devices: Sequence[int]
    ) -> list[Floats32]:
        """Compute the difference between each device's local model and another model of the device.

        Args:
            others: device ID -> the other model, such as the model from which the local one was
                trained.
            devices: IDs of the devices.

        Returns:
            Local model minus other model, float32 [d], for each device.
        """
        models = await self._values(self.state.local_models, devices)
        other_models = await self._values(others, devices)
        with np.errstate(all="ignore"):  # values of a diverged device are not finite
            return [model - other for model, other in zip(models, other_models, strict=True)]

    async def after_aggregation(self) -> None:
        """Let devices without a cluster choose one, once the models of all clusters differ.

        Called after the clustering and after each round; it has an effect only once. Each such
        device receives all models, and joins the cluster whose model has the least loss on its
        data. Unavailable devices do so when they return.
        """
        state = self.state
        distinct = {model.name for model in state.models}
        are_all_different = len(distinct) == len(state.models)
        if state.admitting or not are_all_different:
            return
        state.admitting = True
        for device in self.members(NO_GROUP):
            is_idle = self.server.clients.idle(device)
            self.require_preparation(device)  # an idle device begins its preparation at once
            if not is_idle:
                self.server.clients.await_return(device)

    async def on_arrival(self, device: int) -> None:
        if self.state.admitting and self.state.group[device] == NO_GROUP:
            self.require_preparation(device)

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        if device not in self.state.unprepared:
            return None
        return {COLD_START: self.state.models}, COLD_START

    async def assign(self, prepared: Sequence[Preparation]) -> None:
        groups = await self.choices(prepared, COLD_START)
        for preparation, group in zip(prepared, groups, strict=True):
            self.move(preparation.device, group, COLD_START)
