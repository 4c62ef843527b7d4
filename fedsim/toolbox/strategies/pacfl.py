"""PACFL: clusters by the principal angles between subspaces of the clients' data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.spec import Epochs
from fedsim.federation import (
    Contents,
    Device,
    Header,
    Instruction,
    Lazy,
    LocalResult,
    TaskEnd,
)
from fedsim.learning.refs import Ref
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.clustering.algorithms import Linkage, agglomerative
from fedsim.toolbox.clustering.angles import (
    AngleMeasure,
    left_singular_vectors,
    proximity,
    proximity_matrix,
    svd_flops,
)
from fedsim.toolbox.strategies.campaign import Campaign, CampaignState
from fedsim.toolbox.strategies.clustering import charge_clustering, record_clustering
from fedsim.toolbox.strategies.grouped import (
    NO_GROUP,
    Grouped,
    GroupedParams,
    GroupedState,
    Preparation,
)
from fedsim.world.steps import TaskStep, Work

JOB = "subspace"
"""Job in which a client sends the singular vectors of its data."""

_FLOPS_PER_PARAMETER = 6  # FLOPs of a training on one sample: 2 forward, 4 backward

_LINKAGE_FUNCTIONS: Mapping[Linkage, Callable[[NDArray[np.float64]], np.float64]] = {
    "single": np.min,
    "complete": np.max,
    "average": np.mean,
}
"""Linkage -> function that computes a newcomer's distance from a cluster by its members' angles."""


class PACFLParams(GroupedParams):
    """Keys of ``[strategy]`` for PACFL, in addition to the keys of groups and rounds.

    Attributes:
        vectors: p, the count of singular vectors for each class of a client's data, or for all of
            its data (``follows``).
        angle: proximity of two clients: the ``smallest`` angle between their data, or the ``sum``
            of the angles between vectors of the same position.
        beta: largest distance (degrees) at which two clusters are merged. A newcomer that is
            farther from all clusters begins a new cluster. None: clusters are merged until
            ``groups`` remain.
        linkage: distance of two clusters: the ``single`` (least), ``complete`` (largest) or
            ``average`` distance of two members.
        groups: the number of clusters, if ``beta`` is not given.
        follows: the vectors, and the smallest angle of two clients. ``published-code``: p vectors
            of each class of a client's data, and the smallest angle of any two vectors; ``paper``:
            p vectors of all of its data, and the smallest principal angle.
    """

    why_not: ClassVar[Reasons] = Reasons(
        private_aggregation="clients send singular vectors of their data",
        privacy_account="clusters are made of singular vectors of the clients' data",
    )
    kind: Literal["pacfl"] = "pacfl"
    local_epochs: Epochs = 10
    vectors: int = Field(default=3, ge=1, le=1_000)
    angle: AngleMeasure = "smallest"
    beta: float | None = Field(default=None, gt=0.0)
    linkage: Linkage = "average"

    @property
    def unforeseen(self) -> str:
        count = "groups" if self.beta is None else "devices, which is the most"
        return (
            "all clients are in one cluster: checkpoints grow with each further one; the count of "
            f"final models is that of {count}"
        )

    def final_models(self, devices: int) -> int:
        return devices if self.beta is not None else min(self.groups, devices)


class PACFLClient(SynchronousClient[PACFLParams]):
    """Client that once sends singular vectors of its data, and trains its cluster's model.

    From the vectors the server finds the client's cluster.
    """

    def _matrix_sizes(self, device: Device) -> list[int]:
        """Return the count of samples in each matrix whose singular vectors the client sends.

        There is a matrix for each class of its data, or one of all data.
        """
        if self.params.as_published:
            return [count for count in device.label_counts.tolist() if count]
        return [device.samples]

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        if instruction.job != JOB:
            return super().work(device, instruction)
        flops = sum(svd_flops(device.features, size) for size in self._matrix_sizes(device))
        # an SVD takes the time of a training with as many FLOPs
        samples = flops / (_FLOPS_PER_PARAMETER * self.setting.parameters)
        return (Work(samples=samples, what="svd"),)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        """Return the update of a training, or the singular vectors of the device's data.

        Args:
            device: the device.
            instruction: the message; its job is a training, or ``subspace`` for the vectors.
            result: the result of the training.

        Returns:
            Contents by name. ``subspace`` has the vectors, which are computed when they are needed;
            ``vectors`` is their count.
        """
        if instruction.job != JOB:
            return super().reply(device, instruction, result)
        # a matrix has at most as many singular vectors as it has features or samples
        most = min(self.params.vectors, device.features)
        count = sum(min(most, samples) for samples in self._matrix_sizes(device))
        subspace = device.of_data(
            signature,
            count * device.features,
            vectors=self.params.vectors,
            by_class=self.params.as_published,
        )
        return {"subspace": subspace, "vectors": Header(count)}


def signature(
    x: NDArray[np.floating], y: NDArray[np.integer], vectors: int, *, by_class: bool
) -> NDArray[np.float32]:
    """Compute the singular vectors by which a client describes its data to the server.

    Args:
        x: the client's training samples, [n, ...].
        y: label of each sample, [n].
        vectors: p, the wanted count of vectors; fewer if a matrix has fewer samples or features.
        by_class: whether p vectors are computed of each class's samples; otherwise of all samples.

    Returns:
        The leading left singular vectors, class by class, one vector after the other, flat, float32
        [count of vectors * features].
    """
    rows = x.reshape(len(x), -1)
    matrices = [rows]
    if by_class:
        matrices = [rows[y == label] for label in np.unique(y)]
    columns = [left_singular_vectors(matrix, vectors) for matrix in matrices]
    return np.concatenate(columns, axis=1).T.reshape(-1).astype(np.float32)


@dataclass
class PACFLState(GroupedState):
    """State of PACFL on the server: clusters, their models, and devices' singular vectors.

    Devices describe their data by singular vectors, from which the clusters are formed.

    Attributes:
        initial: The initial model, with which each cluster begins.
        campaign: State of the campaign in which the first clients send their vectors.
        signatures: Device ID -> its singular vectors, and their count.
        clustered: Whether the clusters have been made.
    """

    initial: Ref = field(init=False)
    campaign: CampaignState = field(default_factory=CampaignState)
    signatures: dict[int, tuple[Lazy, int]] = field(default_factory=dict)
    clustered: bool = False


class PACFL(Grouped[PACFLParams]):
    """Clustered federated learning by principal angles between client data subspaces.

    Clients are clustered once, before the first round, by the angles between singular vectors of
    their data.

    Source: Vahidian et al., "Efficient distribution similarity identification in clustered
    federated learning via principal angles between client data subspaces" (AAAI 2023), Algorithm 1.

    - Before the first round each available client computes p left singular vectors (key
      ``vectors``) of the samples of each class (``follows = "published-code"``) or of all its data
      (``"paper"``). This takes the time of a training with as many FLOPs. The client sends the
      vectors (4 bytes for each entry).
    - The server computes the angles between all pairs of clients, and clusters the clients
      hierarchically: clusters are merged while their distance is at most ``beta``, or until
      ``groups`` remain. All clusters begin with the same initial model.
    - In a round clients receive their cluster's model (d parameters), train, and send their update
      (d parameters). A cluster's model becomes the mean of its updates, by default weighted by
      samples.
    - A client that was not available before the first round sends its vectors when it is first
      selected. In the same round it joins the nearest cluster. If no cluster is within ``beta``, it
      begins a new one; the existing clusters remain.

    The defaults were checked against the published code (github.com/MMorafah/PACFL). Its ``beta``,
    which has no default here, is 4.9 degrees for CIFAR-10 with two labels a client, and 9.88 for
    CIFAR-100 with 20. The code differs from this class in three ways:

    - With average linkage the distance from a merged cluster is the mean of the distances from its
      two parts, whatever their sizes.
    - Cosines keep the arbitrary signs of singular vectors.
    - Clients that are not seen in training are clustered with all other clients, before the first
      round.

    Not checked against the paper's text: the numbers of its algorithm and equations, and its
    settings.

    With ``learning = "off"`` there are no angles: all clients are in one cluster.
    """

    Params = PACFLParams
    Client = PACFLClient
    State = PACFLState
    state: PACFLState

    async def on_start(self) -> None:
        self.state.initial = self.server.models.initial()
        await self._begin_campaign()

    @property
    def _campaign(self) -> Campaign:
        return Campaign(
            self.server, self.state.campaign, lambda device, job: {}, self._end_campaign
        )

    async def _begin_campaign(self) -> None:
        """Ask all available clients for the singular vectors of their data.

        If too few clients are available, the server tries again later.
        """
        server = self.server
        least = self.params.min_available
        devices = server.clients.idle_devices()
        if not devices or server.lacks_clients(least):
            server.look_again("gather", self.params.retry, at_least=least or 1)
            return
        await self._campaign.begin(JOB, devices, limit=None)

    async def on_timer(self, name: str) -> None:
        if name == "gather":
            await self._begin_campaign()
        elif name == "cluster":
            await self._make_clusters()
        else:
            await super().on_timer(name)

    async def on_task_end(self, message: TaskEnd) -> None:
        if not self._campaign.has_task(message.task):
            await super().on_task_end(message)
            return
        if message.outcome == "done":
            self._store_signature(message.device, message.contents)
        await self._campaign.end(message)

    async def on_return(self, device: int) -> None:
        if self._campaign.awaits(device):
            await self._campaign.resume(device)
        else:
            await super().on_return(device)

    async def _end_campaign(self, job: str) -> None:
        if self.state.signatures:
            self.server.timer("cluster", self.server.now)
        else:
            self.server.look_again("gather", self.params.retry)

    def _store_signature(self, device: int, contents: Contents) -> None:
        self.state.signatures[device] = (contents["subspace"], contents["vectors"])

    async def _make_clusters(self) -> None:
        """Cluster the clients by the singular vectors of their data, and open the first round.

        The clustering is recorded among the run's events, and the server is charged its time.
        """
        state = self.state
        devices = sorted(state.signatures)
        # without learning there are no angles, and all clients are in one cluster
        labels = np.zeros(len(devices), dtype=np.int64)
        if self.server.models.learns:
            vectors = await self._singular_vectors(devices)
            charge_clustering(self.server, "linkage", len(devices), vectors[0].size)
            distance = proximity_matrix(
                vectors, self.params.angle, of_vectors=self.params.as_published
            )
            groups = min(self.params.groups, len(devices))  # used only if ``beta`` is None
            labels = agglomerative(distance, groups, self.params.linkage, self.params.beta)
            record_clustering(self.server, devices, labels.tolist(), {"distances": distance})
        state.models = [state.initial] * (int(labels.max()) + 1)
        for device, label in zip(devices, labels.tolist(), strict=True):
            self.move(device, label, "clustering")
        state.clustered = True
        self._open_round()

    async def _singular_vectors(self, devices: Sequence[int]) -> list[NDArray[np.floating]]:
        """Return the singular vectors that devices have sent.

        Args:
            devices: IDs of the devices.

        Returns:
            The vectors of each device as columns, float64 [features, vectors].
        """
        signatures = [self.state.signatures[device] for device in devices]
        values = await self.server.models.numbers([content for content, _ in signatures])
        vectors = list[NDArray[np.floating]]()
        for value, (_, count) in zip(values, signatures, strict=True):
            vectors.append(value.reshape(count, -1).T)
        return vectors

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        if self.state.group[device] != NO_GROUP:
            return None
        return {}, JOB

    async def assign(self, prepared: Sequence[Preparation]) -> None:
        for preparation in prepared:
            self._store_signature(preparation.device, preparation.contents)
        for preparation in prepared:
            device = preparation.device
            self.move(device, await self._find_cluster(device), "newcomer")

    async def _find_cluster(self, device: int) -> int:
        """Return the index of the cluster whose clients' data are nearest to a new client's data.

        If no cluster is within ``beta`` (degrees), a new cluster is added with the initial model,
        and its index is returned.

        Args:
            device: ID of the device, whose singular vectors are stored.
        """
        state = self.state
        if not self.server.models.learns:
            return 0
        distances = await self._distances_from_clusters(device)
        nearest = int(np.argmin(distances))
        beta = self.params.beta
        if beta is None or distances[nearest] <= beta:
            return nearest
        state.models.append(state.initial)
        return len(state.models) - 1

    async def _distances_from_clusters(self, device: int) -> list[float]:
        """Compute the distance of a new client's data from each cluster, by the key ``linkage``.

        The server is charged the time of the computation.

        Args:
            device: ID of the device, whose singular vectors are stored.

        Returns:
            The distance (degrees) by cluster index; infinite for a cluster without members.
        """
        state = self.state
        params = self.params
        peers = [peer for peer in sorted(state.signatures) if state.group[peer] != NO_GROUP]
        newcomer, *peer_vectors = await self._singular_vectors([device, *peers])
        # angles (degrees) between the newcomer's data and the data of each cluster's clients
        angles_of_group: list[list[float]] = [[] for _ in state.models]
        for peer, vectors in zip(peers, peer_vectors, strict=True):
            angle = proximity(newcomer, vectors, params.angle, of_vectors=params.as_published)
            angles_of_group[state.group[peer]].append(angle)
        self.server.compute("products", len(peers) + 1, newcomer.size)
        distance_by_angles = _LINKAGE_FUNCTIONS[params.linkage]  # least, largest or mean angle
        distances = [np.inf] * len(state.models)
        for group, angles in enumerate(angles_of_group):
            if angles:
                distances[group] = float(distance_by_angles(np.array(angles)))
        return distances
