"""RFedAvg on clusters by CCS, and the benchmarks of its paper (Wang, Zhang and Tao)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.arrays import Floats, Floats32, Ints
from fedsim.common.spec import OnlyWith
from fedsim.common.training import ALL_SAMPLES, Training
from fedsim.federation import Contents, Device, Header, Instruction, Lazy, LocalResult, TaskEnd
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.parts.server_optimizer import ServerOptimizerSpec
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import RoundParams, SynchronousParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.strategies.traits import Traits
from fedsim.toolbox.clustering.algorithms import (
    canonical,
    greedy_clusters,
    members,
    threshold,
)
from fedsim.toolbox.clustering.similarity import Matrix, cosine_matrix
from fedsim.toolbox.strategies.clustering import charge_clustering, record_clustering
from fedsim.toolbox.strategies.reweighting import (
    Clusters,
    balance,
    by_kmeans,
    class_imbalance,
    class_shares,
    cluster_imbalance,
    optimal_weights,
)
from fedsim.world.steps import TaskStep

# Records count bytes under a content's name. Both contents have one name, so that their bytes are
# counted together.
TOTAL_SAMPLES = "control"
"""Content of a message to a client: D, the samples of all devices."""
FACTS = "control"
"""Content of a client's answer, a list: the client's sample count D_k; then its class imbalance I_k
if the key ``weights`` is ``rfedavg``; then its loss F_k if ``RFedAvgParams.uses_loss``.
"""


class RFedAvgParams(SynchronousParams):
    """Keys of ``[strategy]`` for RFedAvg, in addition to the keys of rounds.

    Equations and algorithms are numbered as in Wang, Zhang and Tao, whose paper ``RFedAvg`` names.

    Attributes:
        local_epochs: gradient steps of a client on all of its data; 1 in the paper.
        server: the step of the server from the old model to the reweighted mean (docs page
            ``parts/server_optimizer``); None: the mean is the new model.
        weights: p_n, the weight of each cluster's model in the new model. ``rfedavg``: inverse to
            the cluster's class imbalance. ``optimal``: the weights with which the mixture of the
            clusters' data comes nearest to equal class shares (a benchmark). ``uniform-by-data``:
            by samples, as in FedAvg.
        clustering: ``ccs``, greedy clusters by cosine (Algorithm 1); ``kmeans``, K-means on the
            gradients without normalisation (a benchmark).
        kmeans_clusters: N of K-means: a number, the number of ``classes``, or the number of
            clusters that ``ccs`` makes; fewer if gradients coincide.
        imbalance: count of samples with which the class imbalance I_k compares each of client k's M
            class counts: D / M, with D the samples of all devices (``global``, Eq. 17), or D_k / M,
            with the client's samples D_k (``local``).
        theta: the largest angle (radians) between two gradients that ``ccs`` counts as alike at the
            beginning of the training (Eq. 7; not given in the paper).
        least_loss: l_*, the loss at which ``ccs`` counts all gradients with an acute angle as alike
            (Eq. 7; not given in the paper).
    """

    kind: Literal["rfedavg"] = "rfedavg"
    traits: ClassVar[Traits] = Traits(needs_labels=True)
    why_not: ClassVar[Reasons] = Reasons(
        by_device=dict.fromkeys(
            ("steps", "batch_size"), "a client of RFedAvg makes gradient steps on all of its data"
        )
    )
    server: ServerOptimizerSpec | None = None
    clients_per_round: int = Field(default=30, ge=1)
    weights: Literal["rfedavg", "optimal", "uniform-by-data"] = "rfedavg"
    clustering: Literal["ccs", "kmeans"] = "ccs"
    kmeans_clusters: Annotated[
        Literal["classes", "ccs"] | Annotated[int, Field(ge=1)],
        OnlyWith("clustering", values=("kmeans",)),
    ] = "classes"
    imbalance: Annotated[Literal["global", "local"], OnlyWith("weights", values=("rfedavg",))] = (
        "global"
    )
    theta: float = Field(default=math.pi / 36, ge=0.0, le=math.pi / 2)
    least_loss: float = Field(default=0.0, ge=0.0)

    @property
    def uses_total(self) -> bool:
        """Whether clients receive the sample count of all devices, for their class imbalance.

        It is true with ``weights = "rfedavg"`` and ``imbalance = "global"``.
        """
        return self.weights == "rfedavg" and self.imbalance == "global"

    @property
    def uses_loss(self) -> bool:
        """Whether clients report their training loss, which the clustering CCS needs.

        CCS clusters clients by the cosines of their gradients. Its threshold depends on the losses.
        """
        return self.clustering == "ccs" or self.kmeans_clusters == "ccs"


class RFedAvgClient(SynchronousClient[RFedAvgParams]):
    """Client that makes gradient steps on all of its data, and sends its update.

    With its update it reports its count of samples. If the keys ``weights`` or ``clustering`` need
    them, it also reports its class imbalance, its class counts, or its loss.

    Entries of a device's state: ``total``, D, the last received count of all devices' samples.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        if instruction.job == "report":
            return ()
        return super().work(device, instruction)

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(instruction["model"], self.params.local_epochs, batch_size=ALL_SAMPLES)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        """Return the client's sample count, or an update with the numbers that set its weight.

        The numbers are the sample count, and as far as they are used the class imbalance, the loss
        and the class counts.

        Args:
            device: the device, whose state stores the received sample count of all devices.
            instruction: the message; its job is ``report`` or a training.
            result: the result of the training, with the device's sample count.
        """
        if instruction.job == "report":
            return {"size-report": result.samples}
        if TOTAL_SAMPLES in instruction.contents:
            device.state["total"] = instruction[TOTAL_SAMPLES]
        contents: dict[str, object] = {
            "update": result.update,
            FACTS: self._facts(device, result),
        }
        class_counts: list[int] = device.label_counts.tolist()
        if self.params.weights == "optimal":
            contents["class-counts"] = class_counts
        # a header costs no bytes: the counts are only for the record of the classes' balance
        contents["labels"] = Header(class_counts)
        return contents

    def _facts(self, device: Device, result: LocalResult) -> list[object]:
        """Return the client's sample count, then its class imbalance and its loss if they are used.

        The class imbalance is used if the key ``weights`` is ``rfedavg``, the loss if clusters are
        made by losses.

        Args:
            device: the device, whose state has the sample count of all devices.
            result: the result of the training.
        """
        params = self.params
        facts: list[object] = [result.samples]
        if params.weights == "rfedavg":
            # None: the imbalance is relative to the device's own sample count
            total = device.state["total"] if params.uses_total else None
            imbalances = class_imbalance(device.label_counts[None], total)  # [1 device]
            facts.append(float(imbalances[0]))
        if params.uses_loss and result.update is not None:
            facts.append(Lazy("loss", result.update))
        return facts


@dataclass
class RFedAvgState(FedAvgState):
    """State of RFedAvg on the server: the model, and the devices' last reports.

    Devices report sizes, class imbalances and class counts.

    Attributes:
        sizes: Size that each device reported last (samples); None before its first report.
        reporting: Open tasks in which devices report their size, device ID -> task ID.
        begun: Whether the first round has been opened, which waits for these reports.
        total: D, the sum of the reported sizes in the open round (samples).
        last_total: Value of D that each device received last (samples).
        imbalance: Class imbalance I_k that each device reported last (samples); 0 before its first
            report.
        counts: Device ID -> class counts that the device reported last; filled only with the key
            ``weights = "optimal"``.
        first_loss: l_0, the mean of the losses reported in the first round with losses; None before
            it.
        loss: l_t, the mean of the losses reported in the last round with losses.
        cluster: Device ID -> cluster index of each device of the round.
    """

    sizes: list[int | None] = field(default_factory=list)
    reporting: dict[int, int] = field(default_factory=dict)
    begun: bool = False
    total: int = 0
    last_total: list[int] = field(default_factory=list)
    imbalance: list[float] = field(default_factory=list)
    counts: dict[int, list[int]] = field(default_factory=dict)
    first_loss: float | None = None
    loss: float | None = None
    cluster: dict[int, int] = field(default_factory=dict)


def _shares_of_samples(sizes: Ints, clusters: Clusters) -> Floats:
    """Return the share of all samples that each cluster has, float64 [N clusters]."""
    return np.array([sizes[cluster].sum() / sizes.sum() for cluster in clusters])


class RFedAvg(FedAvg[RFedAvgParams]):
    """Reweighted federated averaging over clusters of clients with similar gradients.

    Source: Wang, Zhang and Tao, "Adaptive clustering-based model aggregation for federated learning
    with imbalanced data": Algorithm 1 (CCS), Eqs. 4 to 7 and 17, and the two steps after it;
    benchmarks of section IV.

    A round has these steps:

    - The clients of the round receive the model (d parameters).
    - Each client k makes ``local_epochs`` gradient steps on all of its data, and sends its model
      (d). With the model it sends its sample count D_k, and, if the server uses them, its class
      imbalance I_k and its training loss F_k (a scalar each).
    - The server clusters the clients by their gradients. With ``clustering = "ccs"`` a cluster has
      the clients whose gradients have at least a given cosine with the gradient of one of them (Eq.
      7). This cosine falls as the mean of the losses F_k falls from its first value, l_0.
    - The model of each cluster is the mean of its clients' models, weighted by samples (Eq. 4).
    - The new model is the sum of p_n times the model of cluster n, over all clusters (Eq. 5). By
      default a cluster with more balanced classes has a larger weight p_n; the key ``weights`` has
      other choices.

    By default I_k needs D, the sample count of all devices. Therefore each device reports its size
    once it is available (a scalar, ``size-report``), and is not selected before. D is the sum of
    the last reported sizes. Each client that does not know this D yet receives it with the model (a
    scalar, ``control``). With ``weights = "optimal"`` each client sends its counts of the M classes
    in place of I_k (M scalars, ``class-counts``).

    Updates that are not finite are left out. Without learning the clusters are drawn at random.

    The record ``reweighting`` of the run's events has the balance of the classes if clusters are
    weighted by samples, and if they are weighted by p_n. The record ``clustering`` is written in
    rounds 0, 1, 2, 4, 8, ...
    """

    Params: ClassVar[type[RoundParams]] = RFedAvgParams
    Client = RFedAvgClient
    State = RFedAvgState
    state: RFedAvgState

    async def on_start(self) -> None:
        devices = self.server.devices
        self.state.sizes = [None] * devices
        self.state.last_total = [0] * devices
        self.state.imbalance = [0.0] * devices
        self.state.model = self.server.models.initial()
        for device in range(devices):
            self._request_size(device)
        self._open_first_round()

    # sample counts of all devices, whose sum is D

    async def on_return(self, device: int) -> None:
        self._request_size(device)

    on_arrival = on_return

    def _request_size(self, device: int) -> None:
        """Ask a device for its count of samples, now if it is idle, else when it returns.

        Does nothing if the sample count of all devices is not needed (``uses_total``), or if the
        device has reported its count or was asked already.

        Args:
            device: ID of the device.
        """
        state = self.state
        is_unknown = state.sizes[device] is None and device not in state.reporting
        if not self.params.uses_total or not is_unknown:
            return
        if self.server.clients.idle(device):
            state.reporting[device] = self.server.ask(device, {}, "report")
        else:
            self.server.clients.await_return(device)

    def _open_first_round(self) -> None:
        """Open the first round, once no device is asked for its count of samples."""
        if not (self.state.begun or self.state.reporting):
            self.state.begun = True
            self._open_round()

    def select(self) -> list[int]:
        sizes = self.state.sizes
        if not self.params.uses_total or None not in sizes:
            return super().select()
        candidates = [device for device, size in enumerate(sizes) if size is not None]
        return self.pick(self.params.asked_per_round, among=candidates)

    async def before_asking(self) -> None:
        self.state.total = sum(size for size in self.state.sizes if size is not None)
        self.state.cluster = {}

    def contents(self, device: int) -> Contents:
        contents: dict[str, object] = {"model": self.state.model}
        if self.params.uses_total and self.state.last_total[device] != self.state.total:
            contents[TOTAL_SAMPLES] = self.state.total
        return contents

    def _samples(self, message: TaskEnd) -> int:
        samples, *_ = message[FACTS]
        return int(samples)

    async def on_task_end(self, message: TaskEnd) -> None:
        """Store a device's reported sample count, or the report and the update of a training.

        When the last device that was asked for its sample count before the first round has
        answered, the first round is opened.

        Args:
            message: the ended task, which is either a report of the sample count or a training.
        """
        state = self.state
        device = message.device
        if state.reporting.get(device) == message.task:
            del state.reporting[device]
            if message.outcome == "done":
                state.sizes[device] = message["size-report"]
            self._request_size(device)  # has an effect only if the report was lost
            self._open_first_round()
            return
        if message.outcome == "done" and message.job == "train":
            self._store_report(message)
        await super().on_task_end(message)

    def _store_report(self, message: TaskEnd) -> None:
        """Store a client's reported sample count, and its class imbalance or class counts.

        Args:
            message: the ended task with the report.
        """
        state = self.state
        device = message.device
        state.sizes[device] = self._samples(message)
        if self.params.weights == "rfedavg":
            # sample count, class imbalance, and the loss if clusters are made by losses
            _samples, imbalance, *_loss = message[FACTS]
            state.imbalance[device] = imbalance
            state.last_total[device] = state.total  # D, relative to which it was computed
        elif self.params.weights == "optimal":
            state.counts[device] = message["class-counts"]

    async def aggregate(self) -> None:
        received = self.state.received
        model = self.state.model
        if not any(entry["samples"] for entry in received):
            return
        weights = await self._update_weights(received)
        updates = [entry["update"] for entry in received]
        parts = list(zip(updates, weights, strict=True))
        mean = self.server.models.mix(parts, otherwise=model)
        self.state.model = self.advance(model, mean)
        self.record_aggregate(received, weights)

    async def _update_weights(self, received: list[Entry]) -> list[float]:
        """Compute the weight of each update in the next model.

        Updates are clustered by their gradients. A weight is the weight p_n of the update's cluster
        times the update's share of the cluster's samples (Eq. 4); 0 if the update is left out. The
        weights and the balance of the classes are recorded among the run's events as
        ``reweighting``.

        Args:
            received: the updates of the round.
        """
        usable, gradients = await self._usable_changes(received)
        if not usable:
            return [0.0] * len(received)
        entries = [received[position] for position in usable]
        sizes = np.array([entry["samples"] for entry in entries], dtype=np.int64)
        clusters, eps = await self._cluster_updates(entries, gradients)
        cluster_weights = self._cluster_weights(entries, sizes, clusters)
        self._record_reweighting(entries, sizes, clusters, cluster_weights, eps)
        weights = np.zeros(len(received))
        for cluster, cluster_weight in zip(clusters, cluster_weights, strict=True):
            positions = [usable[member] for member in cluster]  # indices in ``received``
            shares_in_cluster = sizes[cluster] / sizes[cluster].sum()
            weights[positions] = cluster_weight * shares_in_cluster  # Eq. 4
        return [float(weight) for weight in weights]

    def _record_reweighting(
        self,
        entries: list[Entry],
        sizes: Ints,
        clusters: Clusters,
        cluster_weights: Floats,
        eps: float | None,
    ) -> None:
        """Record the weights of clusters among the run's events as ``reweighting``.

        The record has the balance of the classes if clusters are weighted by samples, and if they
        are weighted by ``cluster_weights``.

        Args:
            entries: the usable updates.
            sizes: sample count of each update's client, [n].
            clusters: for each cluster the positions of its updates in ``entries``.
            cluster_weights: p_n of each cluster, [N clusters].
            eps: the threshold of CCS, a cosine; None if it was not used.
        """
        class_counts = np.array([entry["contents"]["labels"] for entry in entries])
        mixtures = [_shares_of_samples(sizes, clusters), cluster_weights]
        self.server.emit(
            "reweighting",
            round=self.state.round,
            clusters=[len(cluster) for cluster in clusters],
            weights=cluster_weights.tolist(),
            eps=eps,
            balance=balance(class_counts, clusters, mixtures),
        )

    async def _usable_changes(self, received: list[Entry]) -> tuple[list[int], Floats32 | None]:
        """Select the usable updates, and compute their changes of the model.

        An update is usable if it has samples and is finite. A change is a negative multiple of the
        client's gradient.

        Args:
            received: the updates of the round.

        Returns:
            Positions of the usable updates in ``received``, sorted by device ID, and their changes,
            float32 [n, d]. In runs without learning the changes are None.
        """
        positions = [position for position, entry in enumerate(received) if entry["samples"]]
        # sorted, so that the order of arrival does not affect the result
        positions.sort(key=lambda position: received[position]["device"])
        updates = [received[position]["update"] for position in positions]
        if not self.server.models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await self.server.models.note_skipped([self.state.model, *updates])
            return positions, None
        model, *weights = await self.server.models.values([self.state.model, *updates])
        with np.errstate(over="ignore", invalid="ignore"):
            changes = np.stack(weights) - model
        is_finite = np.isfinite(changes).all(axis=1)
        usable = np.array(positions)[is_finite]
        return usable.tolist(), changes[is_finite]

    def _cluster_weights(self, entries: list[Entry], sizes: Ints, clusters: Clusters) -> Floats:
        """Compute the weight p_n of each cluster of clients, by the key ``weights``.

        Args:
            entries: the usable updates.
            sizes: sample count of each update's client, [n].
            clusters: for each cluster the positions of its updates in ``entries``.

        Returns:
            p_n, float64 [N clusters].
        """
        state = self.state
        devices = [entry["device"] for entry in entries]
        match self.params.weights:
            case "rfedavg":
                imbalance = np.array([state.imbalance[device] for device in devices])
                inverse = 1.0 / cluster_imbalance(imbalance, sizes, clusters)
                return np.asarray(inverse / inverse.sum())
            case "optimal":
                counts = np.array([state.counts[device] for device in devices])
                return optimal_weights(class_shares(counts, clusters))
            case "uniform-by-data":
                return _shares_of_samples(sizes, clusters)

    async def _cluster_updates(
        self, entries: list[Entry], gradients: Floats32 | None
    ) -> tuple[Clusters, float | None]:
        """Cluster the updates by their gradients, or at random if ``gradients`` is None.

        The cluster of each device is stored in ``state.cluster``.

        Args:
            entries: the usable updates.
            gradients: the change of the model by each update, float32 [n, d].

        Returns:
            For each cluster the positions of its updates in ``entries``, and the threshold of CCS,
            the cosine from which on gradients are alike (None if the clustering does not use it).
        """
        devices = [entry["device"] for entry in entries]
        generator = self.server.rng("clusters", self.state.round)
        if gradients is None:  # as many random clusters as there are classes, at most
            labels = canonical(generator.integers(self.setting.classes, size=len(entries)))
            self.state.cluster = dict(zip(devices, labels.tolist(), strict=True))
            return members(labels), None
        eps = await self._threshold(entries) if self.params.uses_loss else None
        cosines = cosine_matrix(gradients)
        clusters = self._cluster_gradients(gradients, cosines, eps, generator)
        for label, cluster in enumerate(clusters):
            for position in cluster:
                self.state.cluster[devices[position]] = label
        self._record_clusters(devices, cosines)
        return clusters, eps

    def _record_clusters(self, devices: list[int], cosines: Matrix) -> None:
        """Record the clusters of ``state.cluster`` among the run's events as ``clustering``.

        They are recorded in rounds 0, 1, 2, 4, 8, ..., as a record of each round would be large.

        Args:
            devices: IDs of the devices with usable updates, [n].
            cosines: cosines of all pairs of their gradients, float64 [n, n].
        """
        round_number = self.state.round
        is_0_or_power_of_2 = round_number & (round_number - 1) == 0
        if not is_0_or_power_of_2:
            return
        groups = [self.state.cluster[device] for device in devices]
        pairs = {"similarity": cosines}
        measure = self.params.clustering
        record_clustering(self.server, devices, groups, pairs, round=round_number, measure=measure)

    def _cluster_gradients(
        self,
        gradients: Floats32,
        cosines: Matrix,
        eps: float | None,
        generator: np.random.Generator,
    ) -> Clusters:
        """Cluster gradients by CCS or by k-means; the server is charged the time.

        Args:
            gradients: the gradients, float32 [n, d].
            cosines: cosines of all pairs of gradients, float64 [n, n].
            eps: the threshold of CCS; None if CCS is not used.
            generator: source of the draws of k-means.

        Returns:
            For each cluster the positions of its gradients.
        """
        count, parameters = gradients.shape
        ccs_clusters: Clusters = []
        if eps is not None:  # k-means needs only the count (``kmeans_clusters = "ccs"``)
            ccs_clusters = greedy_clusters(cosines, eps)
        if self.params.clustering == "ccs":
            self.server.compute("products", count, parameters)
            return ccs_clusters
        charge_clustering(
            self.server,
            "k-means",
            count,
            parameters,
            features=parameters,
            groups=self.setting.classes,
        )
        return by_kmeans(gradients, self._kmeans_clusters(len(ccs_clusters)), generator)

    def _kmeans_clusters(self, ccs_count: int) -> int:
        """Return the count of clusters into which k-means divides the gradients.

        Args:
            ccs_count: the count of clusters that CCS has made, which the key ``kmeans_clusters``
                may choose.
        """
        match self.params.kmeans_clusters:
            case "ccs":
                return ccs_count
            case "classes":
                return self.setting.classes
            case int() as count:
                return count

    async def _threshold(self, entries: list[Entry]) -> float:
        """Compute eps_t, the cosine from which on gradients are alike in this round (Eq. 7).

        It falls with the mean training loss of the updates, which is stored in ``state.loss``. The
        last known mean is used if no loss of this round is known.

        Args:
            entries: the updates of the round.
        """
        state = self.state
        theta = self.params.theta
        parts = [(entry["update"], float(entry["samples"])) for entry in entries]
        loss = await self.server.models.train_loss(parts)
        if loss is not None:
            state.loss = loss
            if state.first_loss is None:
                state.first_loss = loss
        if state.loss is None or state.first_loss is None:
            # no loss is known yet: the threshold is as at the beginning of the training
            return threshold(loss=0.0, first_loss=0.0, theta=theta)
        return threshold(state.loss, state.first_loss, self.params.least_loss, theta)

    def group_of(self, device: int) -> int | None:
        return self.state.cluster.get(device)
