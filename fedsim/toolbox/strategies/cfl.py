"""CFL: recursive bipartition of clusters whose clients pull in different directions."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Epochs, OnlyWith
from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Instruction, LocalResult
from fedsim.learning.refs import Ref
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.clustering.algorithms import bipartition
from fedsim.toolbox.clustering.similarity import cosine_matrix, length, most_alike, shown_pairs
from fedsim.toolbox.strategies.grouped import Grouped, GroupedParams


class CFLParams(GroupedParams):
    """Parameters of CFL, in addition to ``SynchronousParams``.

    Attributes:
        clients_per_round: how many clients a round asks; None for all that can be had, as the
            paper has it.
        groups: 1: all begin together, and the splits make the other clusters.
        aggregation: ``weighted`` by samples, as in the paper; ``mean``, as in the published code.
        eps1: a cluster has converged when its aggregated update is shorter than this (Algorithm
            1, line 8); by default 0.2 times the mean length of the first round's updates.
        eps2: its clients are congruent when all of their updates are shorter than this (Eq. 5);
            by default 2.5 ``eps1``.
        split_rounds: rounds, from 0, in which, or after which, the cluster with the longest
            update is split (Fig. 3).
        split: ``single`` linkage, which solves Eq. 6 exactly; ``complete``, as in the published
            code.
        as: new clusters move apart in the round of the split (``published-code``), or only
            afterwards (``paper``).
        order: all clusters advance ``together``, as in the published code, or one after the
            other (``recursive``, Algorithm 2).
    """

    instead: ClassVar[Mapping[str, str]] = {**GroupedParams.instead, "split_step": "as"}
    unaccounted: ClassVar[str] = "clusters are made of updates that are not clipped"
    kind: Literal["cfl"] = "cfl"
    clients_per_round: int | None = Field(default=None, ge=1)  # type: ignore[assignment]
    local_epochs: Epochs = 3
    groups: Literal[1] = 1
    eps1: Annotated[float | None, OnlyWith("split_rounds", values=(None,))] = Field(
        default=None, ge=0.0
    )
    eps2: Annotated[float | None, OnlyWith("split_rounds", values=(None,))] = Field(
        default=None, ge=0.0
    )
    split_rounds: list[int] | None = None
    split: Literal["single", "complete"] = "single"
    order: Literal["together", "recursive"] = "together"

    @model_validator(mode="after")
    def _recursion_goes_by_the_criteria(self) -> Self:
        rounds = self.split_rounds
        if self.order == "recursive" and rounds is not None:
            raise ValueError(
                "'order' is 'recursive', which goes by the criteria alone, without 'split_rounds'"
            )
        if rounds is not None and (rounds != sorted(set(rounds)) or min(rounds, default=0) < 0):
            raise ValueError(
                f"'split_rounds' is {rounds}; allowed are different rounds from 0 on, in "
                "ascending order"
            )
        return self

    def check(self, devices: int) -> None:
        super().check(devices)
        if self.clients_per_round is None and not (
            self.over_selection == 1 and self.selection.uniform
        ):
            raise ScenarioError(
                f"strategy.over_selection is {self.over_selection:g}, and selection "
                f"{self.selection.kind!r}, but a round asks "
                "all clients; allowed are 1 and 'random', or give 'clients_per_round'"
            )


def lengths(
    updates: Sequence[NDArray[np.floating]] | NDArray[np.floating], weights: Sequence[float]
) -> dict[str, float]:
    """``mean_norm``, the length of the mean of ``updates`` [k, d] with ``weights``, and
    ``max_norm``, of the longest.
    """
    total = np.zeros(len(updates[0]))
    for update, weight in zip(updates, weights, strict=True):
        total += update * np.float64(weight / sum(weights))
    return {"mean_norm": length(total), "max_norm": max(length(update) for update in updates)}


def is_incongruent(mean_norm: float, max_norm: float, eps1: float, eps2: float) -> bool:
    """Whether a cluster must be split: it has converged (Algorithm 1, line 8), but not for each
    of its clients (Eq. 5).
    """
    return mean_norm < eps1 and max_norm >= eps2


Entries = list[dict[str, Any]]  # of ``received``, in order of the devices' numbers
Pull = tuple[Ref, Ref]  # a trained model, and that from which it was trained

ClusterUpdates = tuple[int, Entries, list[NDArray[np.float32]], dict[str, float]]
"""A cluster, entries whose updates are finite, these as float32 [d], and their ``lengths``."""

Cut = tuple[int, Entries, tuple[list[int], list[int]], dict[str, Any], dict[str, Any]]
"""A cluster, entries, positions in these on both sides, and fields of the records of the split
and its clustering.
"""


class CFLClient(SynchronousClient[CFLParams]):
    """Trains as FedAvg's, on the way down the tree too."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        (model,) = instruction.contents.values()
        return Training(model, self.params.local_epochs)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        return (
            {"cold-start": result.update}
            if instruction.job == "cold-start"
            else super().reply(device, instruction, result)
        )


class CFL(Grouped[CFLParams]):
    """Clustered federated learning.

    Source: Sattler, Mueller and Samek, "Clustered federated learning" (2018), Algorithms 1 and 2.

    All clients begin in one cluster, the root of a tree whose leaves are the clusters. In each
    round all available clients receive their cluster's model (d parameters), train, and send their
    update (d); the model moves by the weighted mean of updates. When that mean is shorter than
    ``eps1``, and some update at least ``eps2`` long, the cluster is cut such that the largest
    cosine of updates across the cut is least (Eq. 6), and both parts go on from its model. An
    absent client goes to the side with the update most like its own last one to this cluster;
    without one it leaves the cluster.

    Such a client, or a newcomer, joins the root when it is selected, if that is whole. Else it goes
    down the tree, on arrival or when it is selected: at each split it receives the parent's model
    (d, purpose ``cold-start``), trains, sends its update (d), and goes to the side with the most
    similar update. Shifts of data move no device. With ``learning = "off"`` clusters are split by
    ``split_rounds`` alone, at random.

    State besides ``Grouped``'s, with a model for each node of the tree: ``children`` of each node,
    None for a leaf; ``pulls``, the updates by which a node's clients were cut out; ``down``,
    newcomer -> node; ``last``, each client's last update to its cluster; ``scale``, mean length of
    the first updates; ``scheduled``, the number of splits done.
    """

    Params: ClassVar[type[CFLParams]] = CFLParams
    Client = CFLClient

    async def on_start(self) -> None:
        self.state |= {
            "children": [None],
            "pulls": [[]],
            "down": {},
            "last": {},
            "scale": None,
            "scheduled": 0,
        }
        self.state |= {"waiting": [0], "models": [self.server.models.initial()]}
        await super().on_start()

    def select(self) -> list[int]:
        among = None
        if self.params.order == "recursive":  # a leaf without an available device is skipped now
            group = self.state["group"]
            online = self.server.clients.online()
            for leaf in reversed(self.state["waiting"]):
                among = [
                    device
                    for device in online
                    if group[device] == leaf or (group[device] < 0 and leaf == 0)
                ]
                if among:
                    break
        if self.params.clients_per_round is not None:
            return (
                super().select()
                if among is None
                else self.pick(self.params.asked_per_round, among=among)
            )
        return self.server.clients.online() if among is None else among

    async def before_asking(self) -> None:
        for device in self.state["cohort"]:
            if self.state["group"][device] < 0 and self.preparation(device) is None:
                self.move(device, self.state["down"].pop(device, 0), "start")

    async def aggregate(self) -> None:
        cuts = await self._cuts()
        self.state["last"] |= {
            entry["device"]: (entry["update"], entry["start"]) for entry in self.state["received"]
        }
        if not self.params.as_published:
            await super().aggregate()
        for cut in cuts:
            await self._split(*cut)
        if self.params.as_published:
            await super().aggregate()

    async def _cuts(self) -> list[Cut]:
        state = self.state
        params = self.params
        number = state["round"]
        schedule = params.split_rounds
        # By the schedule, when fewer splits are done than should be by now: one that was impossible
        # is made up for.
        may_split = schedule is None or sum(at <= number for at in schedule) > state["scheduled"]
        if not may_split and (schedule is not None or state["scale"] is not None):
            return []
        if not self.server.models.learns:
            return self._random_cut() if may_split and schedule is not None else []
        clusters = await self._clusters()
        if state["scale"] is None and clusters:
            norms = [length(update) for _, _, updates, _ in clusters for update in updates]
            state["scale"] = sum(norms) / len(norms)
        eps1 = 0.2 * (state["scale"] or 0.0) if params.eps1 is None else params.eps1
        limits = {"eps1": eps1, "eps2": 2.5 * eps1 if params.eps2 is None else params.eps2}
        for group, _, _, found in clusters:
            self.server.emit(
                "cluster-criteria",
                round=number,
                group=group,
                **found,
                **(limits if schedule is None else {}),
            )
        able = [cluster for cluster in clusters if len(cluster[1]) > 1] if may_split else []
        if schedule is None:
            to_split = [cluster for cluster in able if is_incongruent(**cluster[3], **limits)]
        else:
            to_split = [max(able, key=lambda cluster: cluster[3]["max_norm"])] if able else []
            state["scheduled"] += len(to_split)
        # a leaf that has converged is done, and the run when all are
        if params.order == "recursive":
            done = {group for group, _, _, found in clusters if found["mean_norm"] < limits["eps1"]}
            done -= {group for group, *_ in to_split}
            state["waiting"] = [leaf for leaf in state["waiting"] if leaf not in done]
            if not state["waiting"]:
                self.server.stop("every cluster has converged")
        cuts: list[Cut] = []
        for group, entries, updates, found in to_split:
            self.server.compute("products", len(updates), self.setting.parameters)
            self.server.compute("linkage", len(updates))
            cosines = cosine_matrix(np.stack(updates))
            first, second, cross = bipartition(cosines, params.split)
            record = found | {"similarity": cross}
            shown = shown_pairs("similarity", cosines)
            cuts.append((group, entries, (first, second), record, shown))
        return cuts

    async def _clusters(self) -> list[ClusterUpdates]:
        received = self.state["received"]
        self.server.compute("distances", len(received), self.setting.parameters)
        changes = await self._changes([(entry["update"], entry["start"]) for entry in received])
        updates = {entry["task"]: change for entry, change in zip(received, changes, strict=True)}
        clusters = []
        for group in sorted({entry["group"] for entry in received}):
            entries = [
                entry for entry in self._from(group) if np.isfinite(updates[entry["task"]]).all()
            ]
            if entries:
                own = [updates[entry["task"]] for entry in entries]
                clusters.append(
                    (group, entries, own, lengths(own, self.params.aggregation.weights(entries)))
                )
        return clusters

    def _from(self, group: int) -> Entries:
        return sorted(
            (entry for entry in self.state["received"] if entry["group"] == group),
            key=lambda entry: entry["device"],
        )

    def _random_cut(self) -> list[Cut]:
        able = [group for group in range(len(self.state["models"])) if len(self._from(group)) > 1]
        if not able:
            return []
        generator = self.server.rng("split", self.state["round"])
        group = able[int(generator.integers(len(able)))]
        entries = self._from(group)
        order = generator.permutation(len(entries)).tolist()
        half = len(order) // 2
        self.state["scheduled"] += 1
        return [(group, entries, (sorted(order[:half]), sorted(order[half:])), {}, {})]

    async def _split(
        self,
        parent: int,
        entries: Entries,
        sides: Sequence[list[int]],
        record: dict[str, Any],
        shown: dict[str, Any],
    ) -> None:
        state = self.state
        last = self.state["last"]
        side = dict[int, int]()
        children = [len(state["models"]), len(state["models"]) + 1]
        state["children"][parent] = children
        for child, positions in zip(children, sides, strict=True):
            side |= {entries[at]["device"]: child for at in positions}
            state["pulls"].append(
                [(entries[at]["update"], entries[at]["start"]) for at in positions]
            )
            state["models"].append(state["models"][parent])
            state["children"].append(None)
        if parent in state["waiting"]:
            at = state["waiting"].index(parent)
            state["waiting"][at : at + 1] = reversed(children)
        devices = [entry["device"] for entry in entries]
        groups = [side[device] for device in devices]
        # Other clients that have sent an update to the cluster go by their last one.
        others = {
            device: last[device]
            for device in self.members(parent)
            if device not in side and device in last
        }
        side |= await self._most_like(others, children)
        members = [
            [device for device in self.members(parent) if side.get(device) == child]
            for child in children
        ]
        self.server.emit(
            "cluster-split",
            round=state["round"],
            group=parent,
            children=children,
            members=members,
            **record,
        )
        if shown:
            self.server.emit(
                "clustering", measure="cosine", devices=devices, groups=groups, **shown
            )
        for device in self.members(parent):
            if device in side:
                self.move(device, side[device], "split")
            else:
                # It has not sent the cluster an update, and is on no side of the cut.
                state["group"][device], state["down"][device] = -1, parent
                self.server.emit("assign", device=device, group=None, before=parent, why="split")
        for device in side:
            del last[device]
        for entry in self._from(parent):
            entry["group"] = side[entry["device"]]

    async def _most_like(
        self, trained: Mapping[int, Pull], children: Sequence[int]
    ) -> dict[int, int]:
        """For each device the child with the client of the most similar update, by Eq. 6."""
        if not self.server.models.learns:
            return {
                device: children[int(self.server.rng("newcomer", device, *children).integers(2))]
                for device in trained
            }
        pulls = [(child, pull) for child in children for pull in self.state["pulls"][child]]
        changes = (
            await self._changes([*(pull for _, pull in pulls), *trained.values()])
            if trained
            else []
        )
        told = changes[: len(pulls)]
        own = changes[len(pulls) :]
        return {
            device: pulls[place][0]
            for device, place in zip(trained, most_alike(own, told), strict=True)
        }

    async def _changes(self, trained: Sequence[Pull]) -> list[NDArray[np.float32]]:
        known = await self.server.models.values([ref for pair in trained for ref in pair])
        with np.errstate(invalid="ignore"):  # of a device that has diverged
            return [update - start for update, start in zip(known[::2], known[1::2], strict=True)]

    async def on_arrival(self, device: int) -> None:
        if self.state["children"][0] is not None:
            self.must_prepare(device)

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        node = self.state["down"].get(device, 0)
        if self.state["group"][device] >= 0 or self.state["children"][node] is None:
            return None
        return {"cold-start": self.state["models"][node]}, "cold-start"

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        for entry in prepared:
            device = entry["device"]
            down = self.state["down"]
            pull = entry["contents"]["cold-start"], entry["asked"]["cold-start"]
            down |= await self._most_like(
                {device: pull}, self.state["children"][down.get(device, 0)]
            )
            if self.preparation(device) is None:
                self.move(device, down.pop(device), "cold-start")

    async def _assign(self) -> None:
        aside = [entry["device"] for entry in self.state["prepared"] if not entry["in_round"]]
        await super()._assign()
        for device in aside:
            if self.state["group"][device] < 0:
                self.must_prepare(device)
