"""The clusters of a run that splits them, as a tree: CFL's bipartitions, read off the ``cluster-split`` records."""

import json
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedsim.errors import RunFolderError
from fedsim.records.folder import DEVICES, EVENTS
from fedsim.records.reading import RunFolder


@dataclass
class Node:
    """A cluster from its making to its split or to the run's end.

    Attributes:
        group: its number. A child may carry on its parent's number.
        born: rounds that had ended when it was made.
        members: how many devices it had: a child at its making, a root when it was split.
        split_round: rounds that had ended when it was split, this one included; None for a leaf.
        split_time: when (s); None for a leaf.
        mean_norm, max_norm: norm of its members' mean update, and the largest of its members' updates, at the split; None
            where they were not recorded.
        children: two, or none.
    """

    group: int
    born: int
    members: int
    split_round: int | None = None
    split_time: float | None = None
    mean_norm: float | None = None
    max_norm: float | None = None
    children: list["Node"] = field(default_factory=list)

    def leaves(self) -> list["Node"]:
        """Those below it that were never split, or itself; a node's first child comes before its second."""
        return [leaf for child in self.children for leaf in child.leaves()] if self.children else [self]

    def nodes(self) -> list["Node"]:
        """Itself and all below it."""
        return [self, *(node for child in self.children for node in child.nodes())]


@dataclass(frozen=True)
class SplitTree:
    """What became of the clusters.

    Attributes:
        roots: the clusters from which the splits begin, one or more.
        rounds: rounds that had ended when the run did.
        accuracy: each device's final test accuracy, NaN where it was not tested, float64 [devices].
        group: each device's final group, -1 for none, int64 [devices].
    """

    roots: list[Node]
    rounds: int
    accuracy: NDArray[np.float64]
    group: NDArray[np.int64]

    def final(self, leaf: Node) -> tuple[int, float]:
        """How many devices are in a leaf in the end, and the mean of their accuracies (NaN if none was tested)."""
        inside = self.group == leaf.group
        known = self.accuracy[inside & np.isfinite(self.accuracy)]
        return int(inside.sum()), float(known.mean()) if len(known) else float("nan")


def read_splits(run: RunFolder) -> SplitTree:
    """The tree of a run's clusters; without roots where nothing was ever split.

    Raises:
        RunFolderError: a table is missing or damaged, or a cluster is split that was never made.
    """
    table = run.table(EVENTS).select(["time", "kind", "round", "group", "data"])
    rows = table.filter(pc.equal(table.column("kind").cast("string"), "cluster-split")).to_pylist()
    roots: list[Node] = []
    known: dict[int, Node] = {}
    for row in rows:
        data = json.loads(row["data"])
        group, counts = int(row["group"]), [len(part) for part in data["members"]]
        node = known.get(group)
        if node is None:
            node = Node(group, 0, sum(counts))
            roots.append(node)
        elif node.children:
            raise RunFolderError(f"{EVENTS} of {str(run.path)!r} is damaged: group {group} is split twice")
        node.split_round, node.split_time = int(row["round"]) + 1, row["time"]
        node.mean_norm, node.max_norm = data.get("mean_norm"), data.get("max_norm")
        node.children = [
            Node(int(child), node.split_round, count) for child, count in zip(data["children"], counts, strict=True)
        ]
        known |= {child.group: child for child in (node, *node.children)}
    devices = run.table(DEVICES).select(["accuracy", "group"]).to_pandas()
    groups = devices["group"].astype(float).fillna(-1).to_numpy(np.int64)
    return SplitTree(roots, int(run.summary["rounds"]), devices["accuracy"].to_numpy(float), groups)
