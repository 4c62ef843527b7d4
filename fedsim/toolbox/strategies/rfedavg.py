"""RFedAvg on clusters by CCS, and the benchmarks of its paper (Wang, Zhang and Tao)."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.arrays import Floats, Floats32, Ints
from fedsim.common.spec import OnlyWith
from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Header, Instruction, Lazy, LocalResult, TaskEnd
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.server import ServerOptimiserSpec
from fedsim.strategies.round_params import RoundParams, SynchronousParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.clustering.algorithms import (
    canonical,
    greedy_clusters,
    kmeans,
    members,
    threshold,
)
from fedsim.toolbox.clustering.similarity import cosine_matrix, shown_pairs
from fedsim.world.task import Computation


class RFedAvgParams(SynchronousParams):
    """Parameters of RFedAvg, in addition to ``SynchronousParams``.

    Attributes:
        local_epochs: gradient steps on all of its data that a client makes; 1 in the paper.
        server: what the server makes of the reweighted mean (``parts/server``); None: it is the
            new model.
        weights: p_n of the clusters: ``rfedavg``, by inverse imbalance; ``optimal``, nearest to
            equal class shares; ``uniform-by-data``.
        clustering: ``ccs``, greedy clusters by cosine; ``kmeans``, K-means on the gradients as
            they are (a benchmark).
        kmeans_clusters: N of K-means: a number, as many as there are ``classes``, or as ``ccs``
            would find; fewer if gradients coincide.
        imbalance: I_k compares class counts with D / M, D all samples of all devices
            (``global``, Eq. 17), or D_k / M (``local``).
        theta: the angle (radians) between gradients that counts as alike at first (Eq. 7; not
            given in the paper).
        least_loss: l_*, the loss at which every acute angle does (likewise).
    """

    kind: Literal["rfedavg"] = "rfedavg"
    needs_labels: ClassVar[bool] = True
    server: ServerOptimiserSpec | None = None
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
        """Whether clients must know for their imbalance how many samples all devices have."""
        return self.weights == "rfedavg" and self.imbalance == "global"

    @property
    def uses_loss(self) -> bool:
        return self.clustering == "ccs" or self.kmeans_clusters == "ccs"


Clusters = list[list[int]]

_SAME = 1e-10  # relative singular value below which mixtures of clusters are taken to be the same
_NONE = 1e-8  # weight below which a cluster is taken to have none
_PULL = 1e-6


def class_imbalance(counts: Ints, samples: int | None = None) -> Floats:
    """I_k = sum over the M classes of |D/M - D_k^m| (Eq. 17), float64 [n], from the ``counts``
    D_k^m [n, M].

    ``samples`` is D, those of all devices together, as the equation has it; None: each device's
    own number.
    """
    totals = counts.sum(axis=1, keepdims=True) if samples is None else samples
    return np.asarray(np.abs(totals / counts.shape[1] - counts).sum(axis=1))


def cluster_imbalance(imbalance: Floats, sizes: Ints, clusters: Sequence[Sequence[int]]) -> Floats:
    """I_C of each cluster: the largest I_k (``imbalance`` [n]) of its members, less the samples
    D_k (``sizes``) of all others.

    At least 1 sample: with I_k from a device's own number of samples it could become negative.
    """
    values = []
    for cluster in clusters:
        ordered = sorted(cluster)
        worst = ordered[int(np.argmax(imbalance[ordered]))]
        others = sum(int(sizes[device]) for device in ordered if device != worst)
        values.append(max(float(imbalance[worst]) - others, 1.0))
    return np.array(values)


def class_shares(counts: Ints, clusters: Sequence[Sequence[int]]) -> Floats:
    """Class shares of each cluster's samples, float64 [M, N]; each cluster has a sample at
    least.
    """
    totals = np.stack([counts[list(cluster)].sum(axis=0) for cluster in clusters], axis=1)
    return np.asarray(totals / totals.sum(axis=0))


def optimal_weights(shares: Floats) -> Floats:
    """The weights that bring the mixture of clusters nearest to equal class shares (the paper's
    benchmark "Optimal").

    The minimiser float64 [N] of ||B p - 1/M||^2 over p >= 0 with sum 1, where B [M, N] are the
    clusters' class ``shares``; of several, the one of least norm. With C = B - 1/M, min ||C u||^2 +
    (sum u - 1)^2 over u >= 0 has the same answer but for its length. A slight pull towards 0 says
    which clusters the shortest answer has; least squares then find it among these.
    """
    from scipy.optimize import nnls

    classes, clusters = shares.shape
    system = np.vstack((shares - 1.0 / classes, np.ones(clusters)))
    target = np.zeros(classes + 1)
    target[-1] = 1.0
    pulled = np.vstack((system, _PULL * np.eye(clusters)))
    u = nnls(pulled, np.append(target, np.zeros(clusters)), maxiter=100 * clusters)[0]
    exact = np.linalg.lstsq(system[:, u > _NONE], target, rcond=_SAME)[0]
    if exact.min() >= 0:
        u[u > _NONE], u[u <= _NONE] = exact, 0.0
    return np.asarray(u / u.sum())


def by_kmeans(gradients: Floats32, groups: int, generator: np.random.Generator) -> Clusters:
    """Clusters of ``gradients`` [n, d] by K-means, positions in ascending order; fewer where
    gradients coincide.
    """
    distinct = len({row.tobytes() for row in gradients + 0.0})  # -0.0 becomes 0.0
    # In an orthonormal basis of their span distances are the same, at less cost.
    coordinates = np.asarray(np.linalg.qr(gradients.T.astype(np.float64), mode="r")).T
    return members(kmeans(coordinates, min(groups, distinct), generator))


def balance(
    counts: Ints, clusters: Clusters, weights: Sequence[Floats]
) -> dict[str, list[float | None]]:
    """Balance of the classes in mixtures of clusters, one entry for each vector of weights.

    ``beta`` is the largest class share by the smallest (Eq. 3), None where a class is missing;
    ``distance`` the squared distance of the class shares from equal ones (Theorem 1, Q1).
    """
    mixtures = [class_shares(counts, clusters) @ each for each in weights]
    return {
        "beta": [
            float(mixture.max()) / least if (least := float(mixture.min())) > 0 else None
            for mixture in mixtures
        ],
        "distance": [float(np.square(mixture - 1 / len(mixture)).sum()) for mixture in mixtures],
    }


class RFedAvgClient(SynchronousClient[RFedAvgParams]):
    """Makes gradient steps on all of its data, and reports their requested facts; ``total`` is
    the last received D.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        return () if instruction.job == "report" else super().work(device, instruction)

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(instruction["model"], self.params.local_epochs, full_batch=True)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        params = self.params
        if instruction.job == "report":
            return {"size-report": result.samples}
        if "control" in instruction.contents:
            device.state["total"] = instruction["control"]
        control: list[Any] = [result.samples]
        if params.weights == "rfedavg":
            total = device.state["total"] if params.uses_total else None
            control.append(float(class_imbalance(device.label_counts[None], total)[0]))
        if params.uses_loss and result.update is not None:
            control.append(Lazy("loss", result.update))
        labels: list[int] = device.label_counts.tolist()
        counts = {"class-counts": labels} if params.weights == "optimal" else {}
        # The labels are sent only for the record of the classes' balance.
        return {"update": result.update, "control": control} | counts | {"labels": Header(labels)}


class RFedAvg(FedAvg[RFedAvgParams]):
    """Reweighted federated averaging over clusters of like gradients.

    Source: Wang, Zhang and Tao, "Adaptive clustering-based model aggregation for federated learning
    with imbalanced data": Algorithm 1 (CCS), Eqs. 4 to 7 and 17, and the two steps after it;
    benchmarks of section IV.

    In a round K clients receive the model (d parameters). Each makes one gradient step on all of
    its data, and sends its model (d), with its samples D_k, its imbalance I_k and its loss F_k (a
    scalar each, if used). The server clusters the gradients. A cluster's model is the mean of its
    clients', weighted by samples; the new model is the sum of p_n times theirs, the gradient step
    of Eq. 5. The threshold of CCS falls with the mean of the reported losses; the first is l_0.

    I_k needs D, the samples of all devices: each reports its size once it is available (a scalar,
    ``size-report``), and is not drawn before. D is the sum of the last reported sizes, and goes to
    each client that does not know it yet (a scalar, ``control``). ``optimal`` needs class counts (M
    scalars, ``class-counts``). Updates that are not finite are left out. Without learning the
    clusters are drawn at random.

    The record ``reweighting`` has the classes' balance under weights by samples and under these;
    ``clustering`` comes in rounds 0, 1, 2, 4, ...
    """

    Params: ClassVar[type[RoundParams]] = RFedAvgParams
    Client = RFedAvgClient

    async def on_start(self) -> None:
        devices = self.server.devices
        self.state |= {
            "sizes": [None] * devices,
            "reporting": {},
            "begun": False,
            "total": 0,
            "told": [0] * devices,
        }
        self.state |= {
            "imbalance": [0.0] * devices,
            "counts": {},
            "first_loss": None,
            "loss": None,
            "cluster": {},
        }
        self.state |= {"model": self.server.models.initial(), "round": 0, "open": {}}
        for device in range(devices):
            self._hear_size(device)
        self._begin()

    async def on_return(self, device: int) -> None:
        self._hear_size(device)

    on_arrival = on_return

    def _hear_size(self, device: int) -> None:
        state = self.state
        server = self.server
        if (
            not self.params.uses_total
            or state["sizes"][device] is not None
            or device in state["reporting"]
        ):
            return
        if server.clients.idle(device):
            state["reporting"][device] = server.ask(device, {}, "report")
        else:
            server.clients.await_return(device)

    def _begin(self) -> None:
        if not (self.state["begun"] or self.state["reporting"]):
            self.state["begun"] = True
            self._open_round()

    def select(self) -> list[int]:
        sizes = self.state["sizes"]
        if not self.params.uses_total or None not in sizes:
            return super().select()
        known = [device for device, size in enumerate(sizes) if size is not None]
        return self.pick(self.params.asked_per_round, among=known)

    async def before_asking(self) -> None:
        self.state["total"] = sum(size for size in self.state["sizes"] if size is not None)
        self.state["cluster"] = {}

    def contents(self, device: int) -> Contents:
        total = self.state["total"]
        tell = self.params.uses_total and self.state["told"][device] != total
        return {"model": self.state["model"]} | ({"control": total} if tell else {})

    def _samples(self, message: TaskEnd) -> int:
        return int(message["control"][0])

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        device = message.device
        if state["reporting"].get(device) == message.task:
            del state["reporting"][device]
            if message.outcome == "done":
                state["sizes"][device] = message["size-report"]
            self._hear_size(device)
            self._begin()
            return
        if message.outcome == "done" and message.job == "train":
            state["sizes"][device] = self._samples(message)
            if self.params.weights == "rfedavg":
                state["imbalance"][device], state["told"][device] = (
                    message["control"][1],
                    state["total"],
                )
            elif self.params.weights == "optimal":
                state["counts"][device] = message["class-counts"]
        await super().on_task_end(message)

    async def aggregate(self) -> None:
        received = self.state["received"]
        before = self.state["model"]
        if any(entry["samples"] for entry in received):
            weights = await self._weights(received)
            parts = [
                (entry["update"], weight) for entry, weight in zip(received, weights, strict=True)
            ]
            self.state["model"] = self.advance(
                before, self.server.models.mix(parts, otherwise=before)
            )
            self.record_aggregate(received, weights)

    async def _weights(self, received: list[dict[str, Any]]) -> list[float]:
        """The weight of each update: its cluster's, times its share of the cluster's samples
        (Eq. 4); 0 if it is left out.
        """
        state = self.state
        weights = np.zeros(len(received))
        gradients = None
        # The order of arrival decides nothing, not even between equals.
        held = sorted(
            (at for at, entry in enumerate(received) if entry["samples"]),
            key=lambda at: received[at]["device"],
        )
        if self.server.models.learns:
            model, *updates = await self.server.models.values(
                [state["model"], *(received[at]["update"] for at in held)]
            )
            with np.errstate(over="ignore", invalid="ignore"):
                changes = np.stack(updates) - model
            finite = np.isfinite(changes).all(axis=1)
            held = [at for at, is_finite in zip(held, finite, strict=True) if is_finite]
            gradients = changes[finite]
        if not held:
            return [0.0] * len(received)
        entries = [received[at] for at in held]
        devices = [entry["device"] for entry in entries]
        sizes = np.array([entry["samples"] for entry in entries], dtype=np.int64)
        clusters, eps = await self._cluster(entries, devices, gradients)
        by_data = shares = np.array([sizes[cluster].sum() / sizes.sum() for cluster in clusters])
        if self.params.weights == "rfedavg":
            inverse = 1.0 / cluster_imbalance(
                np.array([state["imbalance"][device] for device in devices]), sizes, clusters
            )
            shares = inverse / inverse.sum()
        elif self.params.weights == "optimal":
            shares = optimal_weights(
                class_shares(np.array([state["counts"][device] for device in devices]), clusters)
            )
        balanced = balance(
            np.array([entry["contents"]["labels"] for entry in entries]),
            clusters,
            [by_data, shares],
        )
        told = {
            "clusters": [len(cluster) for cluster in clusters],
            "weights": shares.tolist(),
            "eps": eps,
            "balance": balanced,
        }
        self.server.emit("reweighting", round=state["round"], **told)
        for cluster, share in zip(clusters, shares, strict=True):
            weights[[held[at] for at in cluster]] = share * (sizes[cluster] / sizes[cluster].sum())
        return [float(weight) for weight in weights]

    async def _cluster(
        self, entries: list[dict[str, Any]], devices: list[int], gradients: Floats32 | None
    ) -> tuple[Clusters, float | None]:
        """Clusters, as positions in ``entries`` (random without gradients), and the threshold if
        there was one.
        """
        params = self.params
        server = self.server
        number = self.state["round"]
        classes = self.setting.classes
        generator = server.rng("clusters", number)
        eps = None
        shown = None
        if gradients is None:
            clusters = members(canonical(generator.integers(classes, size=len(entries))))
        else:
            eps = await self._threshold(entries) if params.uses_loss else None
            n, d = gradients.shape
            server.compute("products", n, d)
            similarity = cosine_matrix(gradients)
            clusters = [] if eps is None else greedy_clusters(similarity, eps)
            if params.clustering == "kmeans":
                server.compute("k-means", n, d, classes)
                wanted = params.kmeans_clusters
                count = (
                    wanted
                    if isinstance(wanted, int)
                    else len(clusters)
                    if wanted == "ccs"
                    else classes
                )
                clusters = by_kmeans(gradients, count, generator)
            shown = shown_pairs("similarity", similarity)
        place = {at: cluster for cluster, own in enumerate(clusters) for at in own}
        groups = [place[at] for at in range(len(devices))]
        if shown is not None and number & (number - 1) == 0:
            server.emit(
                "clustering",
                round=number,
                measure=params.clustering,
                devices=devices,
                groups=groups,
                **shown,
            )
        self.state["cluster"] = dict(zip(devices, groups, strict=True))
        return clusters, eps

    async def _threshold(self, entries: list[dict[str, Any]]) -> float:
        """The cosine that like gradients have now; a loss that is not known is taken to be the
        last one.
        """
        state = self.state
        theta = self.params.theta
        loss = await self.server.models.train_loss(
            [(entry["update"], float(entry["samples"])) for entry in entries]
        )
        if loss is not None:
            state |= {
                "loss": loss,
                "first_loss": loss if state["first_loss"] is None else state["first_loss"],
            }
        if state["first_loss"] is None:
            return threshold(0.0, 0.0, 0.0, theta)
        return threshold(state["loss"], state["first_loss"], self.params.least_loss, theta)

    def group_of(self, device: int) -> int | None:
        return self.state.get("cluster", {}).get(device)  # type: ignore[no-any-return]
