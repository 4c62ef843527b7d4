"""CATA-Fed: adaptive epochs, straggler mitigation, selection by clusters (Jeong and Kim, 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common import former_keys
from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import Former
from fedsim.common.spec import Epochs
from fedsim.common.training import Limit, Part, Training
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server, TaskEnd
from fedsim.federation.events import RoundCount
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.deadline import Deadline
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import CombiningParams, DeadlineKey, RoundParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.deadlines import Relative
from fedsim.world.steps import TaskStep

_MOST_EPOCHS = 1000  # maximum count of epochs of an adaptive client in a round
_REJOIN_S = 60.0

# Records count bytes under a content's name. Both contents have one name, so that their bytes are
# counted together.
TIME_LIMIT = "control"
"""Content of a message to a client: T, the time limit of training and upload (s)."""
HAS_FINISHED = "control"
"""Content of a client's answer: I, 1 if the client has finished an epoch, else 0."""


def moderate_range(sizes: Ints) -> tuple[int, int]:
    """Return the smallest and the largest data size of clients that are no outliers (CATA-Fed).

    An outlier is more than 1.5 interquartile ranges below the first or above the third quartile.
    The results are R_l and R_u of Eqs. 17 and 18 in CATA-Fed's paper.

    Args:
        sizes: reported data sizes of clients (samples), int64 [n].

    Returns:
        R_l and R_u, the smallest and the largest size that is no outlier (samples).
    """
    first, third = np.percentile(sizes, (25, 75))
    reach = 1.5 * (third - first)
    moderate = sizes[(sizes >= first - reach) & (sizes <= third + reach)]
    return int(moderate.min()), int(moderate.max())


def cluster_numbers(sizes: Ints, clusters: int, bounds: tuple[int, int]) -> Ints:
    """Assign clients to clusters of similar data size (CATA-Fed, Eqs. 19 and 20).

    The range from R_l to R_u is cut into P intervals of equal width theta, one for each cluster. A
    size on the border of two clusters belongs to the upper cluster, an outlier to the first or the
    last cluster. If theta is 0, all clients are in the last cluster. Eq. 20 is read as floor((size
    - R_l) / theta).

    Args:
        sizes: reported data sizes of the clients (samples), int64 [n].
        clusters: P, the count of clusters.
        bounds: R_l and R_u, the smallest and the largest size that are no outliers (samples).

    Returns:
        The cluster index of each client, from 0 to P - 1, int64 [n].
    """
    low, high = bounds
    if low == high:
        return np.full(len(sizes), clusters - 1, dtype=np.int64)
    # In whole numbers, so that floor((s - R_l) / theta) is exact on the borders of clusters.
    return np.clip((sizes - low) * clusters // (high - low), 0, clusters - 1)


def cut_groups(cluster: Ints, size: int, generator: np.random.Generator) -> list[Ints]:
    """Divide each cluster of clients at random into groups of ``size`` clients (CATA-Fed, Eq. 23).

    A round then asks one of these groups. Clients of a cluster that are left over, too few for a
    further group, are not selected in this round. A cluster with fewer than ``size`` clients is one
    group; otherwise it would never be selected.

    Args:
        cluster: the cluster index of each client, int64 [n]; -1 for a client that is not connected.
        size: K, the count of clients in a group.
        generator: source of the random order.

    Returns:
        One array of client IDs for each cluster that is not empty, int64 [groups, clients per
        group].
    """
    shuffled = generator.permutation(len(cluster))
    blocks = list[Ints]()
    for index in range(int(cluster.max(initial=-1)) + 1):
        members = shuffled[cluster[shuffled] == index]
        if len(members):
            group_size = min(size, len(members))
            group_count = len(members) // group_size
            grouped = members[: group_count * group_size]
            blocks.append(grouped.reshape(group_count, group_size))
    return blocks


def fairest_group(blocks: list[Ints], waiting: Ints, generator: np.random.Generator) -> Ints:
    """Return the group of clients that has waited longest for its selection (CATA-Fed).

    The wait of a group is the sum of the waits of its clients (Eqs. 24 and 25).

    Args:
        blocks: groups of client IDs, one array for each cluster, int64 [groups, clients per group].
        waiting: A, the count of rounds since each client was last selected, int64 [n].
        generator: source of the draw among groups with equal sums.

    Returns:
        The client IDs of the group, int64; empty if there are no groups.
    """
    groups: list[Ints] = []
    for block in blocks:
        groups += list(block)
    if not groups:
        return np.empty(0, dtype=np.int64)
    waits = np.array([waiting[group].sum() for group in groups])
    longest_waiting = np.flatnonzero(waits == waits.max())
    return groups[int(generator.choice(longest_waiting))]


def in_turn(
    cluster: Ints, clusters: int, size: int, round_number: int, generator: np.random.Generator
) -> Ints:
    """Draw random clients of one cluster; another cluster is used in each round (CATA-Fed).

    In round r it is cluster r mod P, or the next cluster that has connected clients.

    Args:
        cluster: the cluster index of each client, int64 [n]; -1 for a client that is not connected.
        clusters: P, the count of clusters.
        size: K, the count of clients to draw.
        round_number: r, the index of the round.
        generator: source of the draw.

    Returns:
        Client IDs, int64 [at most ``size``].
    """
    for step in range(clusters):
        index = (round_number + step) % clusters
        members = np.flatnonzero(cluster == index)
        if len(members):
            return generator.permutation(members)[:size]
    return np.empty(0, dtype=np.int64)


def at_random(cluster: Ints, size: int, generator: np.random.Generator) -> Ints:
    """Draw random clients from all clients that are connected.

    Args:
        cluster: the cluster index of each client, int64 [n]; -1 for a client that is not connected.
        size: K, the count of clients to draw.
        generator: source of the draw.

    Returns:
        Client IDs, int64 [at most ``size``].
    """
    shuffled = generator.permutation(len(cluster))
    return shuffled[cluster[shuffled] >= 0][:size]


class CataFedParams(CombiningParams):
    """Keys of ``[strategy]`` for CATA-Fed.

    Each part of the method can be switched off separately: ``adaptive`` epochs, the ``mitigation``
    of stragglers, and clustering (by ``clusters = 1``). The usual keys of rounds and aggregation
    are added. Equations and algorithms are numbered as in Jeong and Kim (2022).

    Attributes:
        deadline: T, the time limit of training and upload, which counts from the end of a client's
            download; by default the mean over all devices of the time of five epochs.
        adaptive: whether a client trains as many epochs as fit into T (the paper's ALU). If false,
            it trains exactly ``local_epochs``; a client that cannot do so within T is a slow
            straggler.
        local_epochs: K_local, the epochs of a training if ``adaptive`` is false.
        mitigation: whether slow stragglers halve their data, and then train on one part at a time
            (the paper's straggler mitigation, SMS).
        upload_time: eps_i, the upload time of a client, is ``reserved`` out of T (Eq. 8) or
            ``ignored`` (0, as in the paper's experiments). A client expects the time of its last
            upload of a model; before its first upload, the time that its link alone would need.
        cut_epoch: if T ends within an epoch, the epochs that were finished before are ``kept`` (Eq.
            13) or ``lost`` (Algorithm 2, by the letter).
        size_reports: a straggler that has split its data reports the size of the ``largest`` part,
            or the sizes of ``all`` parts (Algorithm 2, by the letter).
        smallest_part: pi, the least size (samples) of a part into which data are split.
        straggler_upload: a slow straggler sends the unchanged ``model`` with its flag, as in the
            paper, or the ``flag`` alone.
        clusters: P, the number of clusters.
        selection: clients of a round: ``proportional-fair``, the group of clients of one cluster
            that has waited longest; ``round-robin``, random clients of each cluster in turn;
            ``random``, out of all connected clients.
        rejoin: whether a disconnected client may connect again after 60 s, as a new client. If
            false, it stays disconnected.
    """

    instead: ClassVar[Former] = {**CombiningParams.instead, **former_keys.CATA_FED}
    kind: Literal["cata-fed"] = "cata-fed"
    deadline: DeadlineKey = Relative()
    adaptive: bool = True
    local_epochs: Epochs = 5
    mitigation: bool = True
    upload_time: Literal["reserved", "ignored"] = "reserved"
    cut_epoch: Literal["kept", "lost"] = "kept"
    size_reports: Literal["largest", "all"] = "largest"
    smallest_part: int = Field(default=100, ge=1)
    straggler_upload: Literal["model", "flag"] = "model"
    clusters: int = Field(default=4, ge=1)
    selection: Literal["proportional-fair", "round-robin", "random"] = "proportional-fair"
    rejoin: bool = False

    @property
    def why_not(self) -> Reasons:
        refused = {"steps": "CATA-Fed counts work in epochs"}
        if self.adaptive:
            refused["epochs"] = "with 'adaptive' clients train as many epochs as fit"
        return Reasons(by_device=refused)

    @model_validator(mode="after")
    def _check_deadline_since(self) -> Self:
        deadline = self.deadline
        counts_from_round = isinstance(deadline, Deadline) and (
            getattr(deadline, "since", "round") == "round"
        )
        if deadline is None or counts_from_round:
            raise ValueError(
                "'deadline' must be given, and counts from each client's download; 'since' may "
                "not be 'round'"
            )
        return self

    @property
    def bounds_training(self) -> bool:
        return True

    def check(self, devices: int) -> None:
        super().check(devices)
        self.refuse_more("clusters", devices)

    def check_samples(self, most: int) -> None:
        if self.mitigation and self.smallest_part > most:
            raise ScenarioError(
                f"strategy.smallest_part is {self.smallest_part}, but the largest device holds "
                f"{most} training samples, so no straggler could ever split its data; allowed are "
                f"1 to {most}, or strategy.mitigation = false"
            )


def most_splits(samples: int, smallest_part: int) -> int:
    """Return how many times a device may halve its training data (CATA-Fed, Eq. 10).

    The count is beta = floor(log2(|D| / pi)), so that no part is smaller than pi.

    Args:
        samples: |D|, the sample count of the device.
        smallest_part: pi, the least size of a part (samples).

    Returns:
        beta, at least 0.
    """
    # floor(log2(x)) is the bit length of floor(x), minus 1
    return max(0, (samples // smallest_part).bit_length() - 1)


class CataFedClient(SynchronousClient[CataFedParams]):
    """Client that trains on one part of its data at a time, and halves its data if it is too slow.

    A client is too slow (a straggler) if it finished no epoch within its limit, or without
    ``adaptive`` fewer than ``local_epochs``. With ``cut_epoch = "lost"`` it is also too slow if the
    limit has cut off an epoch. A straggler reports that it was too slow. Any other client answers
    with its update.

    Entries of a device's state: ``selected``, the count n of its selections; ``splits``, the count
    u of splits, so that there are 2^u parts; ``upload_s``, the measured upload time eps_i (s);
    ``trained_at``, the time at which its last training ended (s).

    eps_i is the measured duration of the device's last upload of a model. It is measured because
    the rate of the device's link neglects shared links, encoding and TCP. A straggler deletes
    eps_i, since a single slow upload could otherwise leave no time for any later training. If the
    straggler sends the unchanged model, this upload is measured as the new eps_i.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        if instruction.job == "connect":
            device.state.update(splits=0, selected=0)
            device.state.pop("upload_s", None)
            return ()
        device.state["selected"] += 1
        return super().work(device, instruction)

    def training(self, device: Device, instruction: Instruction) -> Training:
        """Return the training of the received model on one part of the device's data.

        After u splits there are 2^u parts, and the part is number 1 + n mod 2^u (CATA-Fed, Eq. 12),
        with n the count of the device's selections. Before the first split it is all data.
        """
        splits = device.state["splits"]
        part = None
        if splits:
            number = 1 + device.state["selected"] % 2**splits
            part = Part(splits, number, device.samples)
        epochs = _MOST_EPOCHS if self.params.adaptive else self.params.local_epochs
        return Training(instruction["model"], epochs, part=part)

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        """Return the limit of a training, which must end early enough for the upload to end by T.

        T (s), the longest time of training and upload, is in the server's message. The time that is
        reserved for the upload is the measured time of the device's last upload of a model, or
        before its first upload the time that its link needs for the answer's bytes. With
        ``upload_time = "ignored"`` no time is reserved.
        """
        params = self.params
        limit = Limit(
            budget=instruction[TIME_LIMIT],  # T (s)
            adaptive=params.adaptive,
            at_least=1 if params.adaptive else params.local_epochs,  # fewer epochs: a straggler
            go_on=True,  # a straggler answers too
            cut_undoes=params.cut_epoch == "lost",
        )
        if params.upload_time == "ignored":
            return limit
        if "upload_s" in device.state:
            return replace(limit, reserve_s=device.state["upload_s"])
        # before its first upload: the time that the device's link alone would need
        upload_bytes = device.upload_bytes({"update": instruction["model"], HAS_FINISHED: 1})
        return replace(limit, reserve_upload=upload_bytes)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        """Return the contents of an answer: the data size on connection, or a training's result.

        A training without an update makes the client a straggler. Its answer is
        ``_straggler_reply``.

        Args:
            device: the device, whose state is changed.
            instruction: the message; its job is ``connect`` or a training.
            result: the result of the training; it has no update if the client was too slow.
        """
        if instruction.job == "connect":
            return {"size-report": self._part_sizes(device)[0]}
        # The state changes even if the answer does not arrive: the device itself knows when it has
        # trained, and whether it was too slow.
        device.state["trained_at"] = device.clock_s
        if result.update is None:
            return self._straggler_reply(device, instruction)
        return {"update": result.update, HAS_FINISHED: 1, "samples": Header(result.samples)}

    def _straggler_reply(self, device: Device, instruction: Instruction) -> Contents:
        """Halve the parts of the data of a client that was too slow, and return its answer.

        The answer has the flag I = 0, by the key ``straggler_upload`` the unchanged model, and the
        sizes of the new parts. Data are not halved without ``mitigation``, or if parts would become
        too small.
        """
        params = self.params
        # The measured time is deleted, as one slow upload could leave no time for later trainings.
        device.state.pop("upload_s", None)
        contents: dict[str, object] = {}
        if params.straggler_upload == "model":
            contents["unchanged-model"] = instruction["model"]
        contents[HAS_FINISHED] = 0
        splits = device.state["splits"]
        if params.mitigation and splits < most_splits(device.samples, params.smallest_part):
            device.state["splits"] = splits + 1
            sizes = self._part_sizes(device)
            contents["size-report"] = sizes if params.size_reports == "all" else sizes[0]
            contents["parts"] = Header(sizes)
        return contents

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if "update" in reply or "unchanged-model" in reply:
            device.state["upload_s"] = device.clock_s - device.state["trained_at"]

    def _part_sizes(self, device: Device) -> list[int]:
        """Return the sample counts of the parts of the device's data, the largest first.

        After u splits there are 2^u parts.
        """
        splits = device.state["splits"]
        return [Part(splits, number, device.samples).samples for number in range(1, 2**splits + 1)]


@dataclass
class CataFedState(FedAvgState):
    """State of CATA-Fed on the server: model, data sizes and clusters of clients, last selections.

    A client is connected from the report of its data size until a task of it ends without an
    answer. Lists have an entry for each client.

    Attributes:
        sizes: Data size that each client reported last (samples), 0 if the client is disconnected.
        cluster: Cluster index of each client, -1 if the client is disconnected.
        zeroed: Round index from which each client's wait is counted: in round t client i has waited
            for t - ``zeroed[i]`` rounds.
        reported: Whether a size was reported since the last clustering.
        connecting: Open tasks in which clients report their size to connect, task ID -> client ID.
        away: Count of unavailable clients that may still connect.
        awaits_client: Whether the next round cannot open until a client connects.
    """

    sizes: list[int] = field(default_factory=list)
    cluster: list[int] = field(default_factory=list)
    zeroed: list[int] = field(default_factory=list)
    reported: bool = False
    connecting: dict[int, int] = field(default_factory=dict)
    away: int = 0
    awaits_client: bool = True


class CataFed(FedAvg[CataFedParams]):
    """Cluster-driven adaptive training.

    Clients of similar data size are in one cluster, and a round asks clients of one cluster. Each
    trains as many epochs as fit into a time limit; a client that is too slow for one epoch trains
    on parts of its data from then on.

    Source: Jeong and Kim, "A cluster-driven adaptive training approach for federated learning",
    Sensors 22(18), 2022.

    A client reports its data size when it connects (a scalar), and is in a cluster of clients of
    similar size from the next round on. Each cluster is divided at random into groups of K =
    ``clients_per_round`` clients. A round asks the group that has waited longest (``selection`` has
    other choices). Its clients receive the model and the time limit T (d parameters, a scalar).
    From the end of its download on, each client trains as many epochs as leave time for the upload
    within T (the paper's ALU). Then it is one of these:

    - *Valid*, if it has finished at least one epoch. It sends its update and the flag I = 1 (d
      parameters, a scalar).
    - *Slow straggler*, if it has finished none. It sends the unchanged model, or no model, and the
      flag I = 0 (d parameters or none, a scalar). It halves its data, stratified by label, unless
      parts would have fewer than pi samples (``smallest_part``), and reports the size of its
      largest part (a scalar). From then on it trains on one part at a time, in turn (SMS).
    - *Disconnected*, if no answer arrives. It is removed.

    The new model is the mean of the valid updates, by default weighted by the count of samples of
    each training (psi_i, Eqs. 15, 16). After a report of a size clients are clustered anew, by
    intervals of equal width of the reported sizes without outliers.
    """

    Params: ClassVar[type[RoundParams]] = CataFedParams
    Client = CataFedClient
    State = CataFedState
    state: CataFedState

    def __init__(self, params: CataFedParams, server: Server) -> None:
        super().__init__(params, server)
        limit = params.first_deadline_s(self.setting.mean_epoch_s)
        assert limit is not None  # the parameters do not allow a run without a deadline
        self._time_limit_s = limit

    async def on_start(self) -> None:
        """Connect all available clients; all other clients connect when they return.

        The first round opens when the connected clients have reported their data sizes, or at once,
        without clients, if none is available.
        """
        devices = self.server.devices
        clients = self.server.clients
        self.state.model = self.server.models.initial()
        self.state.sizes = [0] * devices  # reported data sizes; 0: not connected
        self.state.cluster = [-1] * devices  # cluster indices; -1: not connected
        self.state.zeroed = [0] * devices  # rounds from which each client's wait is counted
        available = set(clients.idle_devices())
        for device in filter(clients.joined, range(devices)):
            if device in available:
                await self.on_arrival(device)
            elif clients.await_return(device):
                self.state.away += 1
        if not available:  # no report will open the round, which now waits for a client
            self._open_round()

    def select(self) -> list[int]:
        """Select the clients of the round; if a size was reported, clients are clustered first.

        By the key ``selection`` they are the group of clients that has waited longest
        (``proportional-fair``), random clients of each cluster in turn (``round-robin``), or any
        connected clients (``random``).

        Returns:
            Device IDs; empty if no client is connected.
        """
        state = self.state
        params = self.params
        round_number = state.round
        if state.reported:
            self._cluster_clients()
        count = params.clients_per_round
        cluster = np.array(state.cluster)  # cluster index of each client; -1: disconnected
        generator = self.server.rng("select", round_number)
        match params.selection:
            case "random":
                cohort = at_random(cluster, count, generator)
            case "round-robin":
                cohort = in_turn(cluster, params.clusters, count, round_number, generator)
            case "proportional-fair":
                waiting = round_number - np.array(state.zeroed)  # the wait A of Eq. 21 (rounds)
                blocks = cut_groups(cluster, count, generator)
                cohort = fairest_group(blocks, waiting, generator)
        clients: list[int] = cohort.tolist()
        for client in clients:
            state.zeroed[client] = round_number + 1  # its wait begins with the next round
        state.awaits_client = False
        return clients

    def _cluster_clients(self) -> None:
        """Assign all connected clients to clusters, by the data sizes that they reported last.

        The result replaces ``state.cluster``, and is recorded among the run's events as
        ``cluster``.
        """
        state = self.state
        clusters = self.params.clusters
        sizes = np.array(state.sizes)
        connected = np.flatnonzero(sizes)  # a disconnected client has size 0
        cluster = np.full(len(sizes), -1)  # cluster index of each client
        if len(connected):
            bounds = moderate_range(sizes[connected])
            cluster[connected] = cluster_numbers(sizes[connected], clusters, bounds)
            members = np.bincount(cluster[connected], minlength=clusters).tolist()
            self.server.emit("cluster", round=state.round, bounds=list(bounds), members=members)
        state.cluster = cluster.tolist()
        state.reported = False

    def _wait(self) -> None:
        state = self.state
        state.awaits_client = True
        may_connect = state.away or state.connecting
        if not (may_connect or self.server.clients.expects_newcomers()):
            self.server.stop("no client is connected any more")

    async def on_return(self, device: int) -> None:
        self.state.away -= 1
        await self.on_arrival(device)

    async def on_arrival(self, device: int) -> None:
        task = self.server.ask(device, {}, "connect")
        self.state.connecting[task] = device

    def contents(self, device: int) -> Contents:
        return {"model": self.state.model, TIME_LIMIT: self._time_limit_s}

    def _counted_as(self, message: TaskEnd) -> RoundCount:
        """Return which count of the round an ended task increases.

        This is ``valid``, ``slow`` or ``disconnected``. It is ``slow`` if the client answered that
        it was too slow (I = 0).
        """
        column = super()._counted_as(message)
        if column == "valid" and not message[HAS_FINISHED]:
            return "slow"
        return column

    async def on_task_end(self, message: TaskEnd) -> None:
        if message.outcome != "done":
            self._disconnect(message.device)
        elif "size-report" in message.contents:
            self._store_report(message)
        if self.state.connecting.pop(message.task, None) is None:
            await super().on_task_end(message)
        elif self.state.awaits_client and not self.state.connecting:
            self._open_round()

    def _disconnect(self, device: int) -> None:
        self.state.sizes[device] = 0
        self.state.cluster[device] = -1
        if self.params.rejoin and self.server.clients.await_return(device, _REJOIN_S):
            self.state.away += 1

    def _store_report(self, message: TaskEnd) -> None:
        """Store the data size that a client reports on connection, or after splitting its data.

        A message on a split has ``parts``, the size of each part; the split is recorded among the
        run's events. For a client that connects, the wait by which clients are selected is 0 at the
        next selection.
        """
        state = self.state
        device = message.device
        round_number = state.round
        if "parts" in message.contents:
            group = self.group_of(device)
            sizes = message["parts"]
            self.server.emit("split", device=device, round=round_number, group=group, sizes=sizes)
        else:
            is_round_open = bool(state.open)
            next_selection = round_number + 1 if is_round_open else round_number
            state.zeroed[device] = next_selection
        # the report is one size, or with ``size_reports = "all"`` a list
        state.sizes[device] = np.max(message["size-report"]).item()
        state.reported = True

    def group_of(self, device: int) -> int | None:
        cluster = self.state.cluster[device]
        return None if cluster < 0 else cluster
