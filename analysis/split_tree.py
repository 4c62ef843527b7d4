"""How a server split its clusters, as a tree over the rounds, above the accuracy of all devices in the same rounds."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedsim.analysis import style
from fedsim.errors import RunFolderError
from fedsim.language.units import show_seconds
from fedsim.records.folder import DEVICES, EVENTS, ROUNDS
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


# The picture.


_LEAF_IN, _LEAST_IN, _MOST_IN = 0.85, 2.6, 9.0  # the tree's height: so much a leaf, within these limits
_ACCURACY_IN, _FRAME_IN = 2.0, 1.6
_CROWDED = 12  # with more leaves there is no room for words about each split
_COLUMNS, _LINE_IN = 2, 0.24  # of these words: columns, and a line's height
_OUTLINE = [patheffects.withStroke(linewidth=3.0, foreground="white")]
_SPLIT: dict[str, Any] = {"color": style.GREY, "linewidth": 0.9, "linestyle": (0, (4, 3))}


@style.styled
def draw_split_tree(run: RunFolder) -> Figure:
    """CFL's bipartitions (Sattler et al. 2020): each cluster from its making to its split, and the clusters of the end.

    A line is as thick as its cluster has members. Splits have numbers; below stand their rounds and times, and the two norms
    that decided them: of the cluster's mean update, and of its members' largest update. At the end of each leaf stand its
    devices and the mean of their accuracies. Under the tree is the accuracy over all devices: a cluster's own is known at the
    end only.

    Raises:
        NothingToDrawError: no cluster was split.
        RunFolderError: the folder is damaged.
    """
    tree = read_splits(run)
    if not tree.roots:
        raise style.NothingToDrawError(f"{str(run.path)!r} never splits a cluster, so there is no tree to draw")
    leaves = [leaf for root in tree.roots for leaf in root.leaves()]
    splits = [node for root in tree.roots for node in root.nodes() if node.split_round is not None]
    splits.sort(key=lambda node: (node.split_round or 0, node.group))
    told = [] if len(leaves) > _CROWDED else [_told(number, node) for number, node in enumerate(splits, start=1)]
    curve = run.table(ROUNDS).select(["round", "accuracy"]).to_pandas().dropna()
    heights = {"tree": float(np.clip(len(leaves) * _LEAF_IN, _LEAST_IN, _MOST_IN))}
    if len(curve):
        heights["accuracy"] = _ACCURACY_IN
    if told:
        heights["words"] = _LINE_IN * math.ceil(len(told) / _COLUMNS)
    figure = Figure(figsize=(style.WIDTH_IN, sum(heights.values()) + _FRAME_IN))
    panels = figure.subplot_mosaic([[name] for name in heights], height_ratios=list(heights.values()))
    bottom = panels["accuracy" if len(curve) else "tree"]
    _draw_tree(panels["tree"], tree, leaves, heights["tree"])
    if told:
        _number_splits(panels["tree"], splits)
        _write_splits(panels["words"], told)
    if len(curve):
        _draw_accuracy(bottom, curve, splits)
        bottom.sharex(panels["tree"])
        panels["tree"].tick_params(labelbottom=False)
        key = [Line2D([], [], color=style.BLACK, linewidth=1.4), Line2D([], [], **_SPLIT)]
        style.legend_below(figure, key, ["accuracy over all devices", "a cluster splits"])
    bottom.set_xlabel("rounds that have ended")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    bottom.set_xlim(0, tree.rounds)
    counts = f"{style.counted(len(splits), 'split')}, {style.counted(len(leaves), 'cluster')} in the end"
    figure.suptitle(f"{style.headline(run)}\n{counts}", fontsize=12)
    return figure


def _draw_accuracy(panel: Axes, curve: pd.DataFrame, splits: list[Node]) -> None:
    panel.plot(curve["round"] + 1, curve["accuracy"], color=style.BLACK, linewidth=1.4, gid="accuracy")
    panel.set_ylabel("test accuracy,\nall devices (0 to 1)")
    panel.grid(color=style.PALE, linewidth=1)
    times = sorted({float(node.split_round or 0) for node in splits})
    panel.vlines(times, 0, 1, transform=panel.get_xaxis_transform(), gid="splits", **_SPLIT)


# Splits close in time leave no room for words beside them: they have numbers, and the words stand below.


def _told(number: int, node: Node) -> str:
    when = f"round {(node.split_round or 0) - 1}" + (
        f" ({show_seconds(node.split_time)})" if node.split_time is not None else ""
    )
    norms = [
        f"{word} {value:.3g}"
        for word, value in (("mean norm", node.mean_norm), ("largest", node.max_norm))
        if value is not None
    ]
    return f"{number}: " + ", ".join([when, *norms])


def _write_splits(words: Axes, told: list[str]) -> None:
    """The splits' rounds, times and norms, in columns."""
    words.set_axis_off()
    rows = math.ceil(len(told) / _COLUMNS)
    for place, text in enumerate(told):
        column, row = divmod(place, rows)
        words.text(
            column / _COLUMNS, 1 - (row + 0.5) / rows, text, transform=words.transAxes, va="center", fontsize=9.5, gid="told"
        )


def _number_splits(panel: Axes, splits: list[Node]) -> None:
    """Each split's number in its dot."""
    dots = {line.get_label(): line for line in panel.lines if line.get_gid() == "split"}
    for number, node in enumerate(splits, start=1):
        dot = dots[f"split of {node.group}"]
        dot.set_markersize(13)
        x, y = (float(np.asarray(values).item()) for values in dot.get_data())
        panel.annotate(
            str(number), (x, y), color="white", ha="center", va="center_baseline", fontsize=8, zorder=5, weight="bold"
        )


def _draw_tree(panel: Axes, tree: SplitTree, leaves: list[Node], height: float) -> None:
    places = {id(leaf): float(place) for place, leaf in enumerate(leaves)}
    most = max(root.members for root in tree.roots)
    for root in tree.roots:
        _draw_node(panel, tree, root, places, most, len(leaves) > _CROWDED)
    panel.set_ylim(len(leaves) - 0.4, -0.75)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.grid(axis="x", color=style.PALE, linewidth=1)
    size = float(np.clip(height / len(leaves) * 30, 6, 10))
    for leaf in leaves:
        count, accuracy = tree.final(leaf)
        told = f"accuracy {accuracy:.3f}" if math.isfinite(accuracy) else "not tested"
        text = f"group {leaf.group}: {style.counted(count, 'device')}{chr(10) if size > 8 else ', '}{told}"
        style.write_beside(panel, places[id(leaf)], text, 10, fontsize=size, gid="leaf")


def _draw_node(panel: Axes, tree: SplitTree, node: Node, places: dict[int, float], most: int, crowded: bool) -> float:
    """Draw a cluster and all below it; returns where it lies, in leaves from the top."""
    if not node.children:
        y = places[id(node)]
        _draw_line(panel, node, y, tree.rounds, most, style.group_colour(node.group), crowded)
        return y
    ys = [_draw_node(panel, tree, child, places, most, crowded) for child in node.children]
    y, end = sum(ys) / 2, float(node.split_round or 0)
    for child, below in zip(node.children, ys, strict=True):
        width = _width(child, most)
        panel.plot([end, end], [y, below], color="#BBBBBB", linewidth=min(width, 2.5), solid_capstyle="butt", zorder=1)
    _draw_line(panel, node, y, end, most, style.GREY, crowded)
    dot: dict[str, Any] = {"marker": "o", "linestyle": "", "color": style.BLACK, "markersize": 6}
    panel.plot([end], [y], zorder=4, gid="split", label=f"split of {node.group}", **dot)
    return y


def _draw_line(panel: Axes, node: Node, y: float, end: float, most: int, colour: str, crowded: bool) -> None:
    width = _width(node, most)
    panel.plot(
        [node.born, end], [y, y], color=colour, linewidth=width, solid_capstyle="butt", zorder=2, gid=f"cluster-{node.group}"
    )
    text = f"{node.members:,}" if crowded else style.counted(node.members, "device")
    look: dict[str, Any] = {"va": "top", "fontsize": 9, "path_effects": _OUTLINE}
    panel.annotate(text, (node.born, y), (4, -width / 2 - 3), textcoords="offset points", gid="members", **look)


def _width(node: Node, most: int) -> float:
    return 1.5 + 12.5 * node.members / most
