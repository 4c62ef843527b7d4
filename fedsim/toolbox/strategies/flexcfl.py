"""FlexCFL: groups by first updates, and migration when data shift (Duan et al., 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common import former_keys
from fedsim.common.arrays import Floats, Floats32
from fedsim.common.errors import SimulationError
from fedsim.common.former_keys import Former
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Epochs
from fedsim.common.training import Limit, LocalSteps, Training
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, TaskEnd
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.refusals import Reasons
from fedsim.toolbox.clustering.algorithms import Labels, RandomGroups, agglomerative, kmeans
from fedsim.toolbox.clustering.moments import PreTraining, ShiftTest
from fedsim.toolbox.clustering.similarity import cosine_matrix, edc_features, madc, most_alike
from fedsim.toolbox.strategies.clustering import charge_clustering, record_clustering, rounded
from fedsim.toolbox.strategies.grouped import (
    COLD_START,
    NO_GROUP,
    GroupedState,
    PlainDeadline,
    Preparation,
)
from fedsim.toolbox.strategies.migrating import Migrating, MigratingClient, MigratingParams
from fedsim.world.steps import TaskStep

PRE_TRAINING = "pre-training"
"""Job of a device in the group cold start, a training of the initial model.

It is also the name of the contents of such a task and of the random stream that draws its devices,
and the reason in the record ``assign`` of these devices.
"""
FIND_GROUP = "find-group"
"""Job in which a device finds its group by a training of the initial model."""

# timers of the group cold start
_BEGIN_TIMER = "pre-training"
_DEADLINE_TIMER = "pre-training-deadline"


class FlexCFLParams(PlainDeadline, MigratingParams):
    """Keys of ``[strategy]`` for FlexCFL: how devices are grouped, when, and how groups interact.

    The keys of strategies with groups and rounds are allowed too. The defaults are taken from the
    published experiments on MNIST. Equations are numbered as in Duan et al. (2021).

    Attributes:
        measure: the distance of two devices, by their updates in the pre-training. ``edc`` (Eq. 7):
            by the cosines of each update with the m leading singular vectors of all updates, with m
            = ``groups``. ``madc`` (Eq. 6): the mean absolute difference of the cosines of the two
            updates with each other device's update.
        clusterer: None: k-means with ``edc``, complete linkage with ``madc``; ``random``: each of m
            random devices begins a group (the paper's ablation RCC).
        moment: the pre-training before the first round, by which groups are made; how newcomers
            find a group; and the test for a change of a device's data.
        eta_g: learning rate of the step that moves the groups' models towards each other (Eq. 20);
            0: no such step.
    """

    instead: ClassVar[Former] = {**MigratingParams.instead, **former_keys.FLEXCFL}
    sweeps: ClassVar[bool] = True
    why_not: ClassVar[Reasons] = Reasons(
        private_aggregation="groups begin with the plain mean of pre-trained models",
        by_device={"steps": "pre-trainings are counted in epochs, or have steps of their own"},
    )

    kind: Literal["flexcfl", "fedgroup"] = "flexcfl"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Epochs = 10
    measure: Literal["edc", "madc"] = "edc"
    clusterer: Annotated[RandomGroups, KindField(Registry.of("clusterer", RandomGroups))] | None = (
        None
    )
    moment: Annotated[
        PreTraining, KindField(Registry.of("moment", PreTraining, usual="pre-training"))
    ] = PreTraining()
    eta_g: float = Field(default=0.0, ge=0.0, le=1e6)

    @property
    def usual_shift(self) -> ShiftTest:
        return "never" if self.kind == "fedgroup" else "aligned_l1"

    def pretraining(self, initial: Ref) -> Training:
        """Return a pre-training, the training of the initial model by which a group is found.

        Its length is a key of the scenario's table ``strategy.moment``: ``epochs``, or ``steps``
        (SGD steps). If neither is given, it is 50 steps with ``follows = "published-code"``, and
        ``local_epochs`` with ``"paper"``.

        Args:
            initial: the initial model.
        """
        moment = self.moment
        if moment.epochs:
            return Training(initial, moment.epochs)
        if moment.steps or self.as_published:
            return Training(initial, LocalSteps(moment.steps or 50))
        return Training(initial, self.local_epochs)

    def devices_to_pretrain(self, devices: int) -> int:
        """Return how many devices train the initial model before the first round, to make groups.

        The count is alpha m, at most all devices, with m groups and alpha = ``devices`` of the
        scenario's table ``strategy.moment``. With random groups it is one device for each group.

        Args:
            devices: count of all devices.
        """
        if self.clusterer:
            return self.groups
        return min(self.moment.devices * self.groups, devices)

    def combined_at_once(self, devices: int) -> int:
        return min(
            super().combined_at_once(devices), self.devices_to_pretrain(devices) // self.groups
        )

    def check(self, devices: int) -> None:
        super().check(devices)
        self.refuse_more("groups", devices)


def inter_group_coefficients(norms: Floats, eta: float, *, literal: bool = False) -> Floats:
    """Compute the coefficients by which each group's next model mixes all groups' models (Eq. 20).

    This step moves FlexCFL's groups towards each other. w_l is the model of group l. In the paper
    group j's next model is w_j + eta times the sum of w_l / ||w_l|| over l != j (Algorithm 2), so
    that each round adds up to eta (m - 1) to the norm of the model. The published code divides this
    model by 1 + the sum of eta / ||w_l|| over l != j. A model of zeros has no direction, and adds
    nothing.

    Args:
        norms: ||w_l|| of each group's model, float64 [m].
        eta: eta_g, the learning rate between groups.
        literal: whether to follow the paper, in which models are not divided.

    Returns:
        Coefficients, float64 [m, m]; row j has the coefficients of group j's next model.
    """
    shares = np.divide(eta, norms, out=np.zeros(len(norms)), where=norms > 0)
    coefficients = np.tile(shares, (len(norms), 1))
    np.fill_diagonal(coefficients, 1.0)
    if literal:
        return coefficients
    weights: Floats = coefficients / coefficients.sum(axis=1, keepdims=True)
    return weights


# Maximum count of failed group cold starts. All fail if the deadline is shorter than every
# pre-training.
_MOST_FAILURES = 100


@pure
def nearest_direction(models: list[Floats32]) -> Floats:
    """Find the group of FlexCFL whose direction is most similar to a device's update.

    The update is the trained model minus the initial model. A group's direction is the mean update
    of its first members. Similarity is the cosine (FlexCFL, section 3.3).

    Args:
        models: the initial model, the trained model, and the m directions, float32 [d] each.

    Returns:
        The index of the direction, as an array, float64 [1].
    """
    initial, trained, *directions = models
    return np.array(most_alike([trained - initial], directions), dtype=np.float64)


class FlexCFLClient(MigratingClient[FlexCFLParams]):
    """Client that finds its group by a training of the initial model, and trains the group's model.

    It compares the update of the initial model with the direction of each group, and reports the
    index of the most similar one.

    Entries of a device's state: ``initial``, the initial model w0; ``directions``, the directions
    of the m groups; ``reference``, the label counts of the data with which the device found its
    group.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        for name in ("initial-model", PRE_TRAINING):
            if name in instruction.contents:
                device.state["initial"] = instruction[name]
        if "directions" in instruction.contents:
            device.state["directions"] = instruction["directions"]
        return super().work(device, instruction)

    def training(self, device: Device, instruction: Instruction) -> Training:
        params = self.params
        if instruction.job == "train":
            epochs = params.local_epochs
            # In the paper a pre-training in the same round counts as the first epoch.
            if "after-pre-training" in instruction.contents and not params.as_published:
                epochs = max(1, epochs - 1)
            return Training(instruction["model"], epochs)
        return params.pretraining(device.state["initial"])

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        return Limit(at_least=self.training(device, instruction).epochs)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        if instruction.job == PRE_TRAINING:
            return {PRE_TRAINING: result.update}
        if instruction.job == FIND_GROUP and result.update is not None:
            models = [device.state["initial"], result.update, *device.state["directions"]]
            return {"id": device.numbers(nearest_direction, models)}
        return super().reply(device, instruction, result)

    def settles(self, device: Device, instruction: Instruction) -> bool:
        return instruction.job != "train"


@dataclass
class FlexCFLState(GroupedState):
    """State of FlexCFL on the server: the groups' models and directions, each device's group.

    A group's direction is the mean update of its first members. In the group cold start, devices
    train the initial model, and are clustered by their updates into the first groups.

    Attributes:
        initial: w0, the initial model.
        directions: Direction of each group.
        cold_start_tasks: Open tasks of the group cold start, task ID -> device ID.
        pretrained_models: Device ID -> trained model, for the devices that have answered in the
            group cold start.
        attempts: Count of group cold starts.
        failures: Count of group cold starts in which too few devices answered.
        has_directions: Whether each device has received the directions.
    """

    initial: Ref = field(init=False)
    directions: list[Ref] = field(default_factory=list)
    cold_start_tasks: dict[int, int] = field(default_factory=dict)
    pretrained_models: dict[int, Ref] = field(default_factory=dict)
    attempts: int = 0
    failures: int = 0
    has_directions: list[bool] = field(default_factory=list)


class FlexCFL(Migrating[FlexCFLParams]):
    """Flexible clustered federated learning; ``kind = "fedgroup"`` is FedGroup, without migration.

    Devices are grouped by their updates of the initial model, and look for a group again when their
    data have changed.

    Source: Duan et al., "Flexible clustered federated learning for client-level data distribution
    shift" (2021), Algorithms 2 and 3, section 3.4, and "FedGroup: efficient clustered federated
    learning via decomposed data-driven measure" (2020).

    A pre-training is a training of the initial model w0, for the steps or epochs of the key
    ``moment``. It gives an update dw, the trained model minus w0, by which the device finds its
    group.

    - Group cold start (Algorithm 3), before the first round: alpha m devices, with m groups and
      alpha the key ``moment.devices``, receive w0 (d parameters), pre-train, and send the trained
      model (d parameters). The devices are clustered by dw. A group's first model is the mean of
      its members' trained models. The group's direction is the mean of their dw, and never changes
      again. If fewer than m devices answer, the cold start is repeated; after 100 such cold starts
      the run ends.
    - Round: K clients receive their group's model (d parameters), train, and send their update (d
      parameters). A group's model becomes the mean of its updates, weighted by samples. With eta_g
      above 0 the groups' models then move towards each other (Eq. 20) through an auxiliary server,
      which receives each group's model (d parameters).
    - Client cold start: a device without a group that is selected or arrives receives w0 and the m
      directions (d + m d), and pre-trains. It joins the group whose direction has the largest
      cosine with dw, and sends the group's number (4 bytes). If it was selected, it trains in the
      same round. Devices of the group cold start receive the directions with their first group
      model.
    - Migration: once a device's data have changed, it compares its label counts with the counts
      with which it found its group. If they differ too much, it pre-trains again from w0, and sends
      the number of its new group.
    """

    Params: ClassVar[type[FlexCFLParams]] = FlexCFLParams
    Client = FlexCFLClient
    State = FlexCFLState
    state: FlexCFLState

    @property
    def _joins_at_random(self) -> bool:
        """Whether newcomers join a random group, without a training of the initial model (RAC).

        RAC is an ablation in the paper.
        """
        return self.params.moment.newcomers == "random"

    async def on_start(self) -> None:
        self.state.initial = self.server.models.initial()
        self.state.has_directions = [False] * self.server.devices
        self._begin_cold_start()

    # group cold start (Algorithm 3)

    def _begin_cold_start(self) -> None:
        """Ask devices to train the initial model; if too few are available, try again later."""
        state = self.state
        params = self.params
        server = self.server
        if server.lacks_clients(params.min_available):
            server.look_again(_BEGIN_TIMER, params.retry, at_least=params.min_available or 1)
            return
        count = params.devices_to_pretrain(server.devices)
        devices = server.clients.sample(count, PRE_TRAINING, state.attempts)
        state.attempts += 1
        state.pretrained_models = {}
        if len(devices) < params.groups:  # each group needs a device
            server.look_again(_BEGIN_TIMER, params.retry, at_least=params.groups)
            return
        if self._round_limit_s is not None:
            server.timer(_DEADLINE_TIMER, server.now + self._round_limit_s)
        for device in devices:
            task = server.ask(device, {PRE_TRAINING: state.initial}, PRE_TRAINING)
            state.cold_start_tasks[task] = device

    async def _end_cold_start_task(self, message: TaskEnd) -> None:
        """Store the model that a device has trained in the group cold start.

        After the last task of the cold start the groups are made, and the first round is opened. If
        too few devices have answered, the cold start is repeated; after 100 failures the run is
        stopped.

        Args:
            message: the ended task.
        """
        state = self.state
        groups = self.params.groups
        device = state.cold_start_tasks.pop(message.task)
        if message.outcome == "done":
            state.pretrained_models[device] = message[PRE_TRAINING]
        if state.cold_start_tasks:
            return
        self.server.cancel_timer(_DEADLINE_TIMER)
        if len(state.pretrained_models) >= groups:
            await self._make_groups()
            self._open_round()
            return
        state.failures += 1
        if state.failures == _MOST_FAILURES:
            self.server.stop(
                f"{_MOST_FAILURES} group cold starts brought back fewer than {groups} devices each"
            )
        else:
            self.server.look_again(_BEGIN_TIMER, self.params.retry, at_least=groups)

    async def _make_groups(self) -> None:
        """Cluster the pre-trained devices, and set the model and the direction of each group."""
        state = self.state
        mix = self.server.models.mix
        devices, models, labels = await self._cluster_devices()
        state.pretrained_models = {}
        for group in range(self.params.groups):
            member_models = []
            for model, label in zip(models, labels, strict=True):
                if label == group:
                    member_models.append(model)
            share = 1 / len(member_models)
            # pairs of a model and a factor, whose sum is the mean of the members' models
            mean_parts = await self.params.aggregation.total(self.server, member_models, share)
            state.models.append(mix(mean_parts))
            # the mean update of the members
            direction = mix([*mean_parts, (state.initial, -1.0)], rescale=False)
            state.directions.append(direction)
        for device, label in zip(devices, labels, strict=True):
            self.settle(device, label, PRE_TRAINING)
        await self.test_for_shifts(devices)  # data may have changed since the pre-training

    async def _cluster_devices(self) -> tuple[list[int], list[Ref], list[int]]:
        """Cluster the devices that have trained the initial model, by their updates.

        Devices whose model is not finite are left out. In runs without learning, and for the
        clusterer ``random``, the groups are random.

        Returns:
            Device IDs, their trained models, and the group index of each device.

        Raises:
            SimulationError: there are fewer finite models than groups.
        """
        devices = list(self.state.pretrained_models)
        models = list(self.state.pretrained_models.values())
        updates = await self._finite_updates(models)  # position in ``models`` -> update
        if updates is not None:
            devices = [devices[position] for position in updates]
            models = [models[position] for position in updates]
        generator = self.server.rng("clustering", self.state.attempts)
        if updates is None or self.params.clusterer:  # ``clusterer`` may only be ``random``
            # the devices join the groups in turn, in a random order
            labels = np.empty(len(devices), dtype=np.int64)
            random_order = generator.permutation(len(devices))
            labels[random_order] = np.arange(len(devices)) % self.params.groups
        else:
            labels = self._cluster_updates(devices, np.stack([*updates.values()]), generator)
        return devices, models, labels.tolist()

    async def _finite_updates(self, models: list[Ref]) -> dict[int, Floats32] | None:
        """Compute the updates of pre-trained models: trained model minus initial model.

        Args:
            models: the trained models.

        Returns:
            Position in ``models`` -> update, float32 [d], for each finite model. None in runs
            without learning.

        Raises:
            SimulationError: there are fewer finite models than groups.
        """
        groups = self.params.groups
        if not self.server.models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await self.server.models.note_skipped([self.state.initial, *models])
            return None
        initial, *weights = await self.server.models.values([self.state.initial, *models])
        updates = {}
        for position, row in enumerate(weights):
            if np.isfinite(row).all():
                updates[position] = row - initial
        if len(updates) < groups:
            raise SimulationError(
                f"the pre-training of {len(weights)} devices gave {len(updates)} finite "
                f"updates, fewer than the {groups} groups that they are to make; a smaller "
                "training.lr may help"
            )
        return updates

    def _cluster_updates(
        self, devices: list[int], updates: Floats32, generator: np.random.Generator
    ) -> Labels:
        """Return the group index of each device, by a clustering of the devices' updates.

        With ``edc`` k-means clusters the cosines of the updates with the leading singular
        directions of all updates. With ``madc`` complete linkage joins devices whose cosines with
        all other updates are similar. The clustering is recorded among the run's events, and the
        server is charged its time.

        Args:
            devices: device IDs, [n].
            updates: the update of each device, [n, d].
            generator: source of random draws.
        """
        server = self.server
        measure = self.params.measure
        groups = self.params.groups
        count, parameters = updates.shape
        cosines = cosine_matrix(updates)
        record: dict[str, object] = {"measure": measure}
        match measure:
            case "madc":
                charge_clustering(server, "absolute differences", count, parameters)
                labels = agglomerative(madc(cosines), groups, "complete")
            case "edc":
                charge_clustering(
                    server, "k-means", count, parameters, features=groups, groups=groups
                )
                features = edc_features(updates, groups)
                record["features"] = rounded(features)
                labels = kmeans(features, groups, generator)
        record_clustering(server, devices, labels.tolist(), {"similarity": cosines}, **record)
        return labels

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        state = self.state
        if state.group[device] != NO_GROUP and device not in state.unprepared:
            return None
        if state.has_directions[device]:
            return {}, FIND_GROUP
        contents = {"initial-model": state.initial, "directions": state.directions}
        return contents, FIND_GROUP

    def _ask(self, device: int, continues: bool = False) -> None:
        if self._joins_at_random and self.state.group[device] == NO_GROUP:
            generator = self.server.rng("newcomer", device)
            self.move(device, int(generator.integers(self.params.groups)), COLD_START)
        super()._ask(device, continues)

    def contents_after_preparation(self, device: int) -> Contents:
        return {**self.contents(device), "after-pre-training": Header(True)}

    def contents(self, device: int) -> Contents:
        if self.state.has_directions[device] or self._joins_at_random:
            return super().contents(device)
        return {**super().contents(device), "directions": self.state.directions}

    async def assign(self, prepared: Sequence[Preparation]) -> None:
        groups = await self.choices(prepared, "nearest")
        for preparation, group in zip(prepared, groups, strict=True):
            self.state.has_directions[preparation.device] = True
            self.settle(preparation.device, group)

    async def on_arrival(self, device: int) -> None:
        if self.params.moment.newcomers == "arrival" and self.state.models:
            self.require_preparation(device)

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        if message.task in state.cold_start_tasks:
            await self._end_cold_start_task(message)
            return
        if "update" in message.contents and message.task in state.open:
            # the directions, if the device did not have them, came with the model that it trained
            state.has_directions[message.device] |= not self._joins_at_random
        await super().on_task_end(message)

    async def on_timer(self, name: str) -> None:
        if name == _BEGIN_TIMER:
            self._begin_cold_start()
        elif name == _DEADLINE_TIMER:
            for task in list(self.state.cold_start_tasks):
                self.server.end(task, "late")
        else:
            await super().on_timer(name)

    # inter-group aggregation (Eq. 20)

    async def after_aggregation(self) -> None:
        """Move the groups' models towards each other (Eq. 20) after a round.

        Nothing is done if the key ``eta_g`` is 0. Groups without devices do not take part.
        """
        state = self.state
        server = self.server
        params = self.params
        inhabited = sorted({group for group in state.group if group != NO_GROUP})
        if not params.eta_g or len(inhabited) < 2:
            return
        # all mixes below read the groups' models before this step
        models = [state.models[group] for group in inhabited]
        # messages to the auxiliary server, which makes this step
        for group, model in zip(inhabited, models, strict=True):
            server.exchange({"group-exchange": model}, f"group-{group}", "auxiliary")
        server.compute("distances", len(models), server.setting.parameters)
        norms = await self._norms(models)
        if not np.isfinite(norms).all():
            return
        matrix = inter_group_coefficients(norms, params.eta_g, literal=not params.as_published)
        for group, coefficients in zip(inhabited, matrix.tolist(), strict=True):
            parts = list(zip(models, coefficients, strict=True))
            state.models[group] = server.models.mix(parts)

    async def _norms(self, models: Sequence[Ref]) -> Floats:
        """Return the L2 norm of each model, float64 [m]; ones in runs without learning."""
        if not self.server.models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await self.server.models.note_skipped(models)
            return np.ones(len(models))
        weights = await self.server.models.values(models)
        return np.array([np.linalg.norm(row.astype(np.float64)) for row in weights])
