"""CFL: recursive bipartition of clusters whose clients' updates disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

import numpy as np

from fedsim.common.arrays import Floats32
from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Instruction, LocalResult
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.clustering.algorithms import bipartition
from fedsim.toolbox.clustering.similarity import cosine_matrix, length, most_alike
from fedsim.toolbox.strategies.cfl_clusters import (
    Cluster,
    Cut,
    ModelChange,
    NormLimits,
    is_incongruent,
    norms_of,
)
from fedsim.toolbox.strategies.cfl_params import CFLParams
from fedsim.toolbox.strategies.clustering import charge_clustering, has_pairs, record_clustering
from fedsim.toolbox.strategies.grouped import (
    COLD_START,
    NO_GROUP,
    Grouped,
    GroupedState,
    Preparation,
)


class CFLClient(SynchronousClient[CFLParams]):
    """Client that trains the received model and sends the result, as FedAvg's client does.

    The task ``cold-start``, by which a client's cluster is found, is such a training too.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        (model,) = instruction.contents.values()
        return Training(model, self.params.local_epochs)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        if instruction.job == COLD_START:
            return {COLD_START: result.update}
        return super().reply(device, instruction, result)


@dataclass
class CFLState(GroupedState):
    """State of CFL on the server: a tree of clusters, with a model for each node.

    The leaves of the tree are the present clusters. A split adds two children to a leaf. A device
    without a cluster goes down the tree to a leaf, at each split to the more similar child.

    Attributes:
        children: Indices of the two children of each node; None for a leaf.
        changes_at_split: For each node, the changes of the model by the clients that were assigned
            to it when its parent was split; empty for the root.
        node_reached: Device ID -> the node that a client without a cluster has reached on its way
            down the tree. A client without an entry is at the root.
        last_change: Device ID -> change of its cluster's model by the device's last training.
        first_norm: Mean L2 norm of the first round's updates. By default a cluster has converged if
            its mean update is shorter than 0.2 times this norm (``eps1``). None before the first
            round.
        scheduled: Count of splits that were done because of the key ``split_rounds``.
        unconverged: Stack of the leaves that have not converged. With ``order = "recursive"`` the
            last one trains until it has converged, then the one before.
    """

    children: list[list[int] | None] = field(default_factory=list)
    changes_at_split: list[list[ModelChange]] = field(default_factory=list)
    node_reached: dict[int, int] = field(default_factory=dict)
    last_change: dict[int, ModelChange] = field(default_factory=dict)
    first_norm: float | None = None
    scheduled: int = 0
    unconverged: list[int] = field(default_factory=list)


def _mean_length(clusters: Sequence[Cluster]) -> float:
    updates = chain.from_iterable(cluster.updates for cluster in clusters)
    lengths = [length(update) for update in updates]
    return sum(lengths) / len(lengths)


class CFL(Grouped[CFLParams]):
    """Clustered federated learning.

    Each cluster of clients has a model. A cluster is split in two when its model hardly changes any
    more, while the updates of some of its clients are still large.

    Source: Sattler, Mueller and Samek, "Clustered federated learning" (2018), Algorithms 1 and 2.

    All clients begin in one cluster, the root of a tree. A split adds two children to a cluster;
    the present clusters are the leaves.

    - Round: by default all available clients receive their cluster's model (d parameters), train,
      and send their update (d). An update is here the trained minus the received model. The model
      of each cluster moves by the weighted mean of its updates.
    - Split: a cluster is split in two when this mean is shorter than ``eps1`` while some update is
      at least ``eps2`` long. The split makes the largest cosine of two updates in different parts
      as small as possible (Eq. 6). Both parts begin with the cluster's model.
    - Absent clients: a client of the cluster that has sent no update in this round goes to the part
      with the update most similar to its last update to this cluster. A client without such an
      update leaves the cluster.
    - Clients without a cluster, such as newcomers: if the root was never split, such a client joins
      it when it is selected. Otherwise it goes down the tree, on arrival or when it is selected. At
      each split it receives the parent's model (d; content ``cold-start``), trains, sends its
      update (d), and goes to the part with the most similar update.

    A change of a device's data during the run does not change its cluster. With ``learning =
    "off"`` clusters are split by ``split_rounds`` alone, at random.
    """

    Params: ClassVar[type[CFLParams]] = CFLParams
    Client = CFLClient
    State = CFLState
    state: CFLState

    async def on_start(self) -> None:
        self.state.models = [self.server.models.initial()]
        self.state.children = [None]
        self.state.changes_at_split = [[]]
        self.state.unconverged = [0]
        await super().on_start()

    def select(self) -> list[int]:
        """Return the clients of a round: all available ones, or ``clients_per_round`` of them.

        With ``order = "recursive"`` only clients of the cluster that trains in this round are
        selected.
        """
        asks_all = self.params.clients_per_round is None
        candidates = None  # all devices
        if self.params.order == "recursive":
            candidates = self._devices_of_next_leaf()
        if candidates is None:
            return self.server.clients.idle_devices() if asks_all else super().select()
        if asks_all:
            return candidates
        return self.pick(self.params.asked_per_round, among=candidates)

    def _devices_of_next_leaf(self) -> list[int] | None:
        """Return the IDs of the available devices of the cluster that trains in this round.

        Called with ``order = "recursive"`` (Algorithm 2), in which one cluster trains until it has
        converged, and then the next one. A cluster without an available device is skipped. For the
        root, available devices without a cluster are included, as they may join it.

        Returns:
            Device IDs; None if all clusters have converged.
        """
        leaves = self.state.unconverged  # clusters that have not converged, the next one last
        if not leaves:
            return None
        groups = self.state.group
        available = self.server.clients.idle_devices()
        for leaf in reversed(leaves):
            allowed_groups = [leaf]
            if leaf == 0:  # the root
                allowed_groups.append(NO_GROUP)
            devices = [device for device in available if groups[device] in allowed_groups]
            if devices:
                return devices
        return []

    async def before_asking(self) -> None:
        for device in self.state.cohort:
            if self.state.group[device] == NO_GROUP and self.preparation(device) is None:
                self.move(device, self.state.node_reached.pop(device, 0), "start")

    async def aggregate(self) -> None:
        """Find the clusters to split by the round's updates; split them, and aggregate the updates.

        Clusters are split after the aggregation, or before it with ``follows = "published-code"``.
        """
        cuts = await self._find_cuts()
        for entry in self.state.received:
            self.state.last_change[entry["device"]] = ModelChange.of(entry)
        if not self.params.as_published:
            await super().aggregate()
        for cut in cuts:
            await self._split(cut)
        if self.params.as_published:
            await super().aggregate()

    async def _find_cuts(self) -> list[Cut]:
        """Find the clusters to split in this round, and the two parts of each.

        The norms of each cluster's updates, which decide on its split, are recorded among the run's
        events as ``cluster-criteria``. With ``order = "recursive"``, clusters that have converged
        no longer train, and the run is stopped when all have.

        Returns:
            The splits, not yet carried out.
        """
        state = self.state
        schedule = self.params.split_rounds  # None: splits are decided by norms alone
        if schedule is not None and not self._split_is_due(schedule):
            return []
        if not self.server.models.learns:  # without learning there are no norms
            await self._note_skipped([ModelChange.of(entry) for entry in state.received])
            return [] if schedule is None else self._random_cut()
        clusters = await self._collect_clusters()
        if state.first_norm is None and clusters:  # the limits are shares of this norm
            state.first_norm = _mean_length(clusters)
        limits = self._norm_limits()
        for cluster in clusters:
            self._record_criteria(cluster, limits)
        incongruent = self._select_incongruent(clusters, limits)
        if self.params.order == "recursive":
            self._remove_converged(clusters, incongruent, limits)
        return [self._bipartition(cluster) for cluster in incongruent]

    def _select_incongruent(self, clusters: list[Cluster], limits: NormLimits) -> list[Cluster]:
        """Return the clusters to split.

        With ``split_rounds`` it is the cluster with the longest update (Fig. 3). Otherwise they are
        all clusters with at least two updates whose mean update is shorter than ``eps1`` while
        their longest update is at least ``eps2`` long.

        Args:
            clusters: the clusters, with the updates of the round.
            limits: ``eps1`` and ``eps2``.
        """
        divisible = [cluster for cluster in clusters if len(cluster.entries) > 1]
        if self.params.split_rounds is None:
            return [cluster for cluster in divisible if is_incongruent(cluster.norms, limits)]
        if not divisible:
            return []
        self.state.scheduled += 1
        return [max(divisible, key=lambda cluster: cluster.norms.max_norm)]

    def _split_is_due(self, schedule: Sequence[int]) -> bool:
        """Return whether fewer splits have been done than were scheduled up to the present round.

        A split that was impossible in its round is thus done in a later round.

        Args:
            schedule: the rounds, from 0, at which a cluster is to be split.
        """
        planned = sum(round_number <= self.state.round for round_number in schedule)
        return planned > self.state.scheduled

    def _norm_limits(self) -> NormLimits:
        eps1 = self.params.eps1
        if eps1 is None:
            eps1 = 0.2 * (self.state.first_norm or 0.0)
        eps2 = self.params.eps2
        if eps2 is None:
            eps2 = 2.5 * eps1
        return NormLimits(eps1, eps2)

    def _record_criteria(self, cluster: Cluster, limits: NormLimits) -> None:
        record = cluster.norms._asdict()
        if self.params.split_rounds is None:
            record |= limits._asdict()
        self.server.emit("cluster-criteria", round=self.state.round, group=cluster.group, **record)

    def _remove_converged(
        self, clusters: list[Cluster], incongruent: list[Cluster], limits: NormLimits
    ) -> None:
        """Remove converged clusters from ``state.unconverged``, the clusters that still train.

        Called with ``order = "recursive"``, in which clusters train one by one. A cluster
        that is about to be split is not removed. The run is stopped if no cluster remains.

        Args:
            clusters: the clusters with updates in this round.
            incongruent: the clusters that are about to be split.
            limits: the limits of norms; a cluster has converged if its mean update is shorter than
                ``limits.eps1``.
        """
        state = self.state
        converged = set[int]()
        for cluster in clusters:
            if cluster.norms.mean_norm < limits.eps1:
                converged.add(cluster.group)
        converged -= {cluster.group for cluster in incongruent}
        state.unconverged = [leaf for leaf in state.unconverged if leaf not in converged]
        if not state.unconverged:
            self.server.stop("every cluster has converged")

    def _bipartition(self, cluster: Cluster) -> Cut:
        """Find the two parts of a cluster whose updates are least similar to each other (Eq. 6).

        The largest cosine of two updates in different parts is as small as possible. The server is
        charged the time of the computation. The cluster is not changed yet.
        """
        updates = cluster.updates
        charge_clustering(self.server, "linkage", len(updates), self.setting.parameters)
        cosines = cosine_matrix(np.stack(updates))
        first, second, similarity = bipartition(cosines, self.params.split)
        criteria = {**cluster.norms._asdict(), "similarity": similarity}
        return Cut(cluster.group, cluster.entries, (first, second), criteria, cosines)

    async def _collect_clusters(self) -> list[Cluster]:
        """Group the finite updates of the present round by cluster.

        The server is charged the time to compute their lengths.

        Returns:
            The clusters with at least one finite update, in the order of their indices.
        """
        received = self.state.received
        self.server.compute("distances", len(received), self.setting.parameters)
        differences = await self._differences([ModelChange.of(entry) for entry in received])
        update_of_task = {}
        for entry, difference in zip(received, differences, strict=True):
            update_of_task[entry["task"]] = difference
        clusters = list[Cluster]()
        for group in sorted({entry["group"] for entry in received}):
            entries: list[Entry] = []  # the finite updates, sorted by device ID
            updates = []
            for entry in self._received_from(group):
                update = update_of_task[entry["task"]]
                if np.isfinite(update).all():
                    entries.append(entry)
                    updates.append(update)
            if entries:
                norms = norms_of(updates, self.params.aggregation.weights(entries))
                clusters.append(Cluster(group, entries, updates, norms))
        return clusters

    def _received_from(self, group: int) -> list[Entry]:
        entries = [entry for entry in self.state.received if entry["group"] == group]
        return sorted(entries, key=lambda entry: entry["device"])

    def _random_cut(self) -> list[Cut]:
        """Draw a random split of a random cluster, for runs without learning.

        The list has one split, or none if no cluster has two updates in this round.
        """
        groups = range(len(self.state.models))
        divisible = [group for group in groups if len(self._received_from(group)) > 1]
        if not divisible:
            return []
        generator = self.server.rng("split", self.state.round)
        group = divisible[int(generator.integers(len(divisible)))]
        entries = self._received_from(group)
        positions = generator.permutation(len(entries)).tolist()
        half = len(positions) // 2
        sides = (sorted(positions[:half]), sorted(positions[half:]))
        self.state.scheduled += 1
        return [Cut(group, entries, sides, criteria={}, cosines=None)]

    async def _split(self, cut: Cut) -> None:
        """Split a cluster: add its two parts to the tree, and move its members to them.

        Args:
            cut: the split.
        """
        children = self._add_children(cut)
        child_of = await self._child_of_each_member(cut, children)
        self._record_split(cut, children, child_of)
        self._move_members(cut.group, child_of)
        for device in child_of:  # their last updates were changes of the split cluster's model
            del self.state.last_change[device]
        # The published code splits before it aggregates, so that each part's model moves by the
        # part's updates.
        for entry in self._received_from(cut.group):
            entry["group"] = child_of[entry["device"]]

    async def _child_of_each_member(self, cut: Cut, children: Sequence[int]) -> dict[int, int]:
        """Return for each member of a split cluster the part to which it belongs.

        A member without an update in this round belongs to the part that has the update most
        similar to the member's last update. Members that have never sent an update to this cluster
        are left out.

        Args:
            cut: the split.
            children: indices of the two parts.

        Returns:
            Device ID -> index of the part.
        """
        last_change = self.state.last_change  # device ID -> its last update to its cluster
        child_of = dict[int, int]()
        for child, positions in zip(children, cut.sides, strict=True):
            for position in positions:  # index in ``cut.entries`` of an update of this part
                child_of[cut.entries[position]["device"]] = child
        absent = dict[int, ModelChange]()  # members without an update in this round
        for device in self.members(cut.group):
            if device not in child_of and device in last_change:
                absent[device] = last_change[device]
        return child_of | await self._find_most_similar(absent, children)

    def _record_split(self, cut: Cut, children: Sequence[int], child_of: Mapping[int, int]) -> None:
        """Record a split among the run's events as ``cluster-split``.

        The cosines of all pairs of updates are recorded too, as ``clustering``, unless the split is
        random or there are too many updates (``has_pairs``).

        Args:
            cut: the split.
            children: indices of the two parts.
            child_of: device ID of each assigned member -> index of its part.
        """
        members_of: dict[int, list[int]] = {child: [] for child in children}
        for device in self.members(cut.group):
            if device in child_of:
                members_of[child_of[device]].append(device)
        self.server.emit(
            "cluster-split",
            round=self.state.round,
            group=cut.group,
            children=children,
            members=list(members_of.values()),
            **cut.criteria,
        )
        devices = [entry["device"] for entry in cut.entries]
        if cut.cosines is not None and has_pairs(devices):
            groups = [child_of[device] for device in devices]
            pairs = {"similarity": cut.cosines}
            record_clustering(self.server, devices, groups, pairs, measure="cosine")

    def _move_members(self, parent: int, child_of: Mapping[int, int]) -> None:
        """Move the members of a split cluster to its parts; members without a part leave it.

        Args:
            parent: index of the split cluster.
            child_of: device ID of each assigned member -> index of its part.
        """
        for device in self.members(parent):
            if device in child_of:
                self.move(device, child_of[device], "split")
            else:
                self._unassign(device, parent)

    def _add_children(self, cut: Cut) -> list[int]:
        """Add the two parts of a split cluster to the tree of clusters, with the cluster's model.

        The changes of the model by both parts' clients are stored in ``state.changes_at_split``.

        Args:
            cut: the split.

        Returns:
            The indices of the two new clusters.
        """
        state = self.state
        # ``models``, ``children`` and ``changes_at_split`` have an entry for each node of the tree
        children = [len(state.models), len(state.models) + 1]
        state.children[cut.group] = children
        for positions in cut.sides:
            changes = [ModelChange.of(cut.entries[position]) for position in positions]
            state.changes_at_split.append(changes)
            state.models.append(state.models[cut.group])
            state.children.append(None)  # a leaf
        if cut.group in state.unconverged:
            position = state.unconverged.index(cut.group)
            # both replace the cluster; reversed, as the last one trains first
            state.unconverged[position : position + 1] = reversed(children)
        return children

    def _unassign(self, device: int, parent: int) -> None:
        """Remove a device from a split cluster, as it has no update by which to choose a part.

        The device later finds a cluster by going down the tree of clusters from ``parent``. The
        removal is recorded among the run's events as ``assign``.

        Args:
            device: ID of the device.
            parent: index of the split cluster.
        """
        self.state.group[device] = NO_GROUP
        self.state.node_reached[device] = parent
        self.server.emit("assign", device=device, group=None, before=parent, why="split")

    async def _find_most_similar(
        self, updates: Mapping[int, ModelChange], children: Sequence[int]
    ) -> dict[int, int]:
        """Assign each device to the part of a split cluster with the most similar update.

        Similarity is the cosine. In runs without learning the part is random.

        Args:
            updates: device ID -> update.
            children: indices of the two parts.

        Returns:
            Device ID -> index of the part.
        """
        if not updates:
            return {}
        # the updates at the split, by which the parts were made, and the part of each
        references = list[ModelChange]()
        child_of_reference = list[int]()
        for child in children:
            references += self.state.changes_at_split[child]
            child_of_reference += [child] * len(self.state.changes_at_split[child])
        child_of = dict[int, int]()
        if not self.server.models.learns:
            await self._note_skipped([*references, *updates.values()])
            for device in updates:
                generator = self.server.rng("newcomer", device, *children)
                child_of[device] = children[int(generator.integers(2))]
            return child_of
        differences = await self._differences([*references, *updates.values()])
        count = len(references)
        # indices in ``references``
        positions = most_alike(differences[count:], differences[:count])
        for device, position in zip(updates, positions, strict=True):
            child_of[device] = child_of_reference[position]
        return child_of

    async def _differences(self, changes: Sequence[ModelChange]) -> list[Floats32]:
        """Compute the trained model minus the model before training, for each update.

        Args:
            changes: the updates, each as these two models.

        Returns:
            The differences, float32 [d] each; not finite for a device whose training diverged.
        """
        # one call for all models: trained, start, trained, start, ...
        weights = await self.server.models.values(list(chain.from_iterable(changes)))
        trained_models = weights[::2]
        start_models = weights[1::2]
        differences = []
        with np.errstate(invalid="ignore"):  # values of a diverged device are not finite
            for trained, start in zip(trained_models, start_models, strict=True):
                differences.append(trained - start)
        return differences

    async def _note_skipped(self, changes: Sequence[ModelChange]) -> None:
        """Note the models that ``_differences`` would read here in a run with learning.

        So ``fedsim check``, whose trial runs without learning, counts the memory that they need.
        """
        await self.server.models.note_skipped(list(chain.from_iterable(changes)))

    async def on_arrival(self, device: int) -> None:
        if self.state.children[0] is not None:
            self.require_preparation(device)

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        node = self.state.node_reached.get(device, 0)
        if self.state.group[device] != NO_GROUP or self.state.children[node] is None:
            return None
        return {COLD_START: self.state.models[node]}, COLD_START

    async def assign(self, prepared: Sequence[Preparation]) -> None:
        """Move devices one split down the tree of clusters, by the update that each has sent.

        Each child has the updates of the clients that were assigned to it at the split. A device
        goes to the child that has the update most similar to the device's update. If this child is
        a leaf, the device joins its cluster.

        Args:
            prepared: for each device the ended task in which it has trained the model of the node
                that it had reached.
        """
        node_reached = self.state.node_reached
        for preparation in prepared:
            device = preparation.device
            node = node_reached.get(device, 0)  # a device begins at the root, node 0
            children = self.state.children[node]
            assert children is not None  # only devices at a split node are prepared
            trained = preparation.contents[COLD_START]
            start = preparation.asked[COLD_START]
            change = ModelChange(trained, start)
            node_reached |= await self._find_most_similar({device: change}, children)
            is_at_leaf = self.preparation(device) is None
            if is_at_leaf:
                self.move(device, node_reached.pop(device), COLD_START)

    async def _assign_prepared(self) -> None:
        prepared = self.state.prepared
        outside_round = [preparation.device for preparation in prepared if not preparation.in_round]
        await super()._assign_prepared()
        for device in outside_round:
            if self.state.group[device] == NO_GROUP:  # the device's node is no leaf: one more task
                self.require_preparation(device)
