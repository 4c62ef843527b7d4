"""CATA-Fed: clients train as much as fits their time, stragglers split their data, cohorts are
of like data size.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Epochs
from fedsim.common.training import Limit, Part, Training
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server, TaskEnd
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.deadline import Deadline
from fedsim.strategies.round_params import CombiningParams, DeadlineKey, RoundParams
from fedsim.strategies.synchronous import SynchronousClient, Verdict
from fedsim.toolbox.deadlines import Relative
from fedsim.world.task import Computation

_MOST_EPOCHS = 1000  # of an adaptive client in a round
_REJOIN_S = 60.0


def moderate_range(sizes: Ints) -> tuple[int, int]:
    """R_l and R_u, the least and the largest of ``sizes`` [n] within 1.5 IQR of the quartiles
    (Eqs. 17, 18).
    """
    first, third = np.percentile(sizes, (25, 75))
    reach = 1.5 * (third - first)
    moderate = sizes[(sizes >= first - reach) & (sizes <= third + reach)]
    return int(moderate.min()), int(moderate.max())


def cluster_numbers(sizes: Ints, clusters: int, bounds: tuple[int, int]) -> Ints:
    """The cluster of each client, 0..P-1 by ``sizes`` [n] in samples (Eqs. 19, 20); int64 [n].

    R_l to R_u is cut into P clusters of equal width theta; a size on the border between two belongs
    to the upper one, outliers to the first or the last. Where theta is 0 all are in the last. (Eq.
    20 as printed subtracts R_l; it is meant as an offset.)
    """
    low, high = bounds
    if low == high:
        return np.full(len(sizes), clusters - 1, dtype=np.int64)
    # Whole numbers throughout: floor((s - R_l) / theta) is exact on the borders.
    return np.clip((sizes - low) * clusters // (high - low), 0, clusters - 1)


def cut_groups(cluster: Ints, size: int, generator: np.random.Generator) -> list[Ints]:
    """Shuffle each cluster and cut it into disjoint groups of exactly ``size``, [g, size] a
    cluster (Eq. 23).

    Clients that remain sit out this round. A cluster smaller than ``size`` is one group: it
    would never be selected otherwise.
    """
    shuffled = generator.permutation(len(cluster))
    parts = [
        shuffled[cluster[shuffled] == number] for number in range(int(cluster.max(initial=-1)) + 1)
    ]
    sizes = [min(size, len(part)) for part in parts]
    return [
        part[: len(part) // each * each].reshape(-1, each)
        for part, each in zip(parts, sizes, strict=True)
        if each
    ]


def fairest_group(blocks: list[Ints], waiting: Ints, generator: np.random.Generator) -> Ints:
    """The group out of ``blocks``, [g, size] each, with the largest sum of A over its clients
    (Eqs. 24, 25); ties at random.

    A is ``waiting`` [n], rounds since each client was last selected.
    """
    groups: list[Ints] = [group for block in blocks for group in block]
    if not groups:
        return np.empty(0, dtype=np.int64)
    priorities = np.array([waiting[group].sum() for group in groups])
    return groups[int(generator.choice(np.flatnonzero(priorities == priorities.max())))]


def in_turn(
    cluster: Ints, clusters: int, size: int, number: int, generator: np.random.Generator
) -> Ints:
    """Round robin over clusters: random clients of cluster ``number`` mod P, or of the next one
    that is not empty.
    """
    for step in range(clusters):
        if len(members := np.flatnonzero(cluster == (number + step) % clusters)):
            return generator.permutation(members)[:size]
    return np.empty(0, dtype=np.int64)


def at_random(cluster: Ints, size: int, generator: np.random.Generator) -> Ints:
    """Random clients out of all connected ones, of any cluster."""
    shuffled = generator.permutation(len(cluster))
    return shuffled[cluster[shuffled] >= 0][:size]


class CataFedParams(CombiningParams):
    """Parameters of CATA-Fed.

    Each part of the method can be switched off alone (clustering by P = 1).
    """

    kind: Literal["cata-fed"] = "cata-fed"
    deadline: DeadlineKey = Relative()
    """T, for training and upload, from the end of a client's own download on; by default the mean
    time of five epochs.
    """
    adaptive: bool = True
    """a client trains as many epochs as fit (ALU).

    If not, exactly ``local_epochs``, or it is a slow straggler.
    """
    local_epochs: Epochs = 5
    """K_local, where ``adaptive`` is off."""
    mitigation: bool = True
    """slow stragglers split their data (straggler mitigation, SMS)."""
    upload_time: Literal["reserved", "ignored"] = "reserved"
    """eps_i, the upload time of a client, is ``reserved`` out of T (Eq. 8) or ``ignored`` (0, as in
    the paper's experiments). A client expects the time of its last upload of a model. Before its
    first, it expects the time that its own link alone would need.
    """
    cut_epoch: Literal["kept", "lost"] = "kept"
    """when T ends within an epoch, finished ones are ``kept`` (Eq. 13) or ``lost`` (Algorithm 2,
    by the letter).
    """
    size_reports: Literal["largest", "all"] = "largest"
    """after a split the size of the ``largest`` part is reported, or those of ``all`` 2^u
    (Algorithm 2, by the letter).
    """
    smallest_part: int = Field(default=100, ge=1)
    """pi, samples; no part becomes smaller (but for rounding)."""
    straggler_upload: Literal["model", "flag"] = "model"
    """a slow straggler sends the unchanged ``model`` with its flag, as in the paper, or the
    ``flag`` alone.
    """
    clusters: int = Field(default=4, ge=1)
    """P."""
    selection: Literal["proportional-fair", "round-robin", "random"] = "proportional-fair"
    """``proportional-fair``; ``round-robin`` over the clusters; ``random`` out of all connected
    clients.
    """
    rejoin: bool = False
    """a disconnected client may connect again after 60 s, as a new one.

    If not, it is gone for good.
    """

    @model_validator(mode="after")
    def _from_the_download(self) -> Self:
        since = (
            getattr(self.deadline, "since", "round")
            if isinstance(self.deadline, Deadline)
            else None
        )
        if self.deadline is None or since == "round":
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
                f"{most} training samples, so no "
                f"straggler could ever split its data; allowed are 1 to {most}, or "
                "strategy.mitigation = false"
            )


def most_splits(samples: int, smallest_part: int) -> int:
    """beta = floor(log2(|D| / pi)), at least 0: how often |D| samples may be halved (Eq. 10)."""
    return max(0, (samples // smallest_part).bit_length() - 1)


class CataFedClient(SynchronousClient[CataFedParams]):
    """Trains on one part of its data, in turn (n, ``selected``); splits them (u, ``splits``) if
    no epoch was done.

    eps_i is measured (``upload_s``, from ``trained_at`` on), since the nominal rate of a device's
    own link says nothing of links that it shares, nothing of encoding, and little of TCP. A
    straggler forgets its measurement: a single slow upload must not keep it from training for good.
    The unchanged model, if it sends that, is measured again.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        if instruction.job == "connect":
            device.state.update(splits=0, selected=0)
            device.state.pop("upload_s", None)
            return ()
        device.state["selected"] += 1
        return super().work(device, instruction)

    def training(self, device: Device, instruction: Instruction) -> Training:
        """On the part x = 1 + n mod 2^u (Eq. 12); on everything before any split."""
        params = self.params
        splits = device.state["splits"]
        selected = device.state["selected"]
        part = Part(splits, 1 + selected % 2**splits, device.samples) if splits else None
        return Training(
            instruction["model"],
            _MOST_EPOCHS if params.adaptive else params.local_epochs,
            part=part,
        )

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        params = self.params
        limit = Limit(
            budget=instruction["control"],
            adaptive=params.adaptive,
            at_least=1 if params.adaptive else params.local_epochs,
            go_on=True,
            cut_undoes=params.cut_epoch == "lost",
        )
        if params.upload_time == "ignored":
            return limit
        if "upload_s" in device.state:
            return replace(limit, reserve_s=device.state["upload_s"])
        size = device.upload_bytes({"update": instruction["model"], "control": 1})
        return replace(limit, reserve_upload=size)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        params = self.params
        if instruction.job == "connect":
            return {"size-report": self._sizes(device)[0]}
        device.state["trained_at"] = device.clock_s
        if result.update is None:
            device.state.pop("upload_s", None)
        if result.update is not None:
            return {"update": result.update, "control": 1, "samples": Header(result.samples)}
        unchanged = (
            {"unchanged-model": instruction["model"]} if params.straggler_upload == "model" else {}
        )
        splits = device.state["splits"]
        if not params.mitigation or splits >= most_splits(device.samples, params.smallest_part):
            return {**unchanged, "control": 0}
        device.state["splits"] = splits + 1
        sizes = self._sizes(device)
        report = sizes if params.size_reports == "all" else sizes[0]
        return {**unchanged, "control": 0, "size-report": report, "parts": Header(sizes)}

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if "update" in reply or "unchanged-model" in reply:
            device.state["upload_s"] = device.clock_s - device.state["trained_at"]

    def _sizes(self, device: Device) -> list[int]:
        splits = device.state["splits"]
        return [Part(splits, number, device.samples).samples for number in range(1, 2**splits + 1)]


class CataFed(FedAvg[CataFedParams]):
    """Cluster-driven adaptive training.

    Source: Jeong and Kim, "A cluster-driven adaptive training approach for federated learning",
    Sensors 22(18), 2022.

    A client reports its data size when it connects (a scalar), and is in a cluster from the next
    round on. A round asks K clients of one cluster. They receive the model and T (d parameters, a
    scalar), train as long as their upload still fits in T after their download, and answer. *Valid*
    (an epoch is finished): update and flag I = 1 (d, a scalar). *Slow straggler* (none is): the
    unchanged model and I = 0 (d or nothing, a scalar); it halves its data, stratified by label,
    down to pi samples, reports the size of its largest part (a scalar), and trains on one part a
    time, in turn. *Disconnected* (no answer): it is removed.

    The new model is the mean of the valid updates, weighted by the size of the data of each
    training (psi_i, Eqs. 15, 16). Clusters are cut by the interquartile range of sizes after each
    report; the group that waits longest is asked first.

    State besides FedAvg's: for each client ``sizes``, 0 if disconnected, ``cluster``, then -1, and
    ``zeroed``, the round in which its wait A_i was last 0: A_i[t] = t - zeroed_i (Eq. 21);
    ``away``, how many may yet connect.
    """

    Params: ClassVar[type[RoundParams]] = CataFedParams
    Client = CataFedClient

    def __init__(self, params: CataFedParams, server: Server) -> None:
        super().__init__(params, server)
        limit = params.deadline_s(self.setting.mean_epoch_s)
        assert limit is not None  # the parameters see to it
        self.budget = limit

    async def on_start(self) -> None:
        devices = self.server.devices
        server = self.server
        self.state |= {
            "model": server.models.initial(),
            "round": 0,
            "open": {},
            "connecting": {},
            "away": 0,
            "waiting": True,
        }
        self.state |= {
            "sizes": [0] * devices,
            "cluster": [-1] * devices,
            "zeroed": [0] * devices,
            "reported": False,
        }
        here = set(server.clients.online())
        for device in filter(server.clients.arrived, range(devices)):
            if device in here:
                await self.on_arrival(device)
            else:
                self.state["away"] += server.clients.await_return(device)
        if not here:
            self._open_round()

    async def on_return(self, device: int) -> None:
        self.state["away"] -= 1
        await self.on_arrival(device)

    async def on_arrival(self, device: int) -> None:
        self.state["connecting"][self.server.ask(device, {}, "connect")] = device

    def _wait(self) -> None:
        self.state["waiting"] = True
        if not (
            self.state["away"]
            or self.state["connecting"]
            or self.server.clients.expects_newcomers()
        ):
            self.server.stop("no client is connected any more")

    def select(self) -> list[int]:
        state = self.state
        params = self.params
        number = self.state["round"]
        if state["reported"]:
            self._cluster()
        wanted = params.clients_per_round
        cluster = np.array(state["cluster"])
        generator = self.server.rng("select", number)
        if params.selection == "random":
            chosen = at_random(cluster, wanted, generator)
        elif params.selection == "round-robin":
            chosen = in_turn(cluster, params.clusters, wanted, number, generator)
        else:
            chosen = fairest_group(
                cut_groups(cluster, wanted, generator),
                number - np.array(state["zeroed"]),
                generator,
            )
        clients: list[int] = chosen.tolist()
        for client in clients:
            state["zeroed"][client] = number + 1
        state["waiting"] = False
        return clients

    def _cluster(self) -> None:
        state = self.state
        params = self.params
        sizes = np.array(state["sizes"])
        connected = np.flatnonzero(sizes)
        cluster = np.full(len(sizes), -1)
        if len(connected):
            bounds = moderate_range(sizes[connected])
            cluster[connected] = cluster_numbers(sizes[connected], params.clusters, bounds)
            members = np.bincount(cluster[connected], minlength=params.clusters).tolist()
            self.server.emit("cluster", round=state["round"], bounds=list(bounds), members=members)
        state["cluster"], state["reported"] = cluster.tolist(), False

    def contents(self, device: int) -> Contents:
        return {"model": self.state["model"], "control": self.budget}

    def _verdict(self, message: TaskEnd) -> Verdict:
        verdict = super()._verdict(message)
        return "slow" if verdict == "valid" and not message["control"] else verdict

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        device = message.device
        if message.outcome != "done":  # it is connected no more
            state["sizes"][device], state["cluster"][device] = 0, -1
            if self.params.rejoin:
                state["away"] += self.server.clients.await_return(device, _REJOIN_S)
        elif "size-report" in message.contents:
            if "parts" in message.contents:  # it has split its data
                number = state["round"]
                group = self.group_of(device)
                self.server.emit(
                    "split", device=device, round=number, group=group, sizes=message["parts"]
                )
            else:
                # A = 0 at the next selection
                state["zeroed"][device] = state["round"] + bool(state["open"])
            state["sizes"][device], state["reported"] = np.max(message["size-report"]).item(), True
        if state["connecting"].pop(message.task, None) is None:
            await super().on_task_end(message)
        elif state["waiting"] and not state["connecting"]:
            self._open_round()

    def group_of(self, device: int) -> int | None:
        cluster: int = self.state["cluster"][device]
        return None if cluster < 0 else cluster
