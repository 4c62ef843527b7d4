"""The tree of clusters that a server split."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsim.analysis import style
from fedsim.errors import RunFolderError
from fedsim.language.units import show_seconds
from fedsim.records.folder import EVENTS, ROUNDS
from fedsim.records.history import NO_GROUP, History
from fedsim.records.reading import RunFolder


@dataclass
class TreeCluster:
    """A cluster from its making to its split or to the run's end.

    Attributes:
        group: its number. A child may carry on its parent's number.
        born: rounds that had ended when it was made.
        members: how many devices it had: a child at its making, a root when it was split.
        split_round: rounds that had ended when it was split, this one included; None for a leaf.
        told: when it was split, and the norms that decided it where they were recorded, in words.
        children: two, or none.
    """

    group: int
    born: int
    members: int
    split_round: int | None = None
    told: str = ""
    children: list["TreeCluster"] = field(default_factory=list)

    def below(self) -> list["TreeCluster"]:
        """Itself and all below it; the first child and all below it come before the second."""
        return [self, *(cluster for child in self.children for cluster in child.below())]


def read_splits(history: History) -> list[TreeCluster]:
    """The clusters from which the splits begin; none where no cluster was split."""
    roots: list[TreeCluster] = []
    known: dict[int, TreeCluster] = {}
    for row in history.data("cluster-split"):
        group, data, number = int(row["group"]), row["data"], int(row["round"])
        counts = [len(part) for part in data["members"]]
        if group not in known:
            roots.append(TreeCluster(group, 0, sum(counts)))
        parent = known.get(group, roots[-1])
        if parent.children:
            raise RunFolderError(f"{EVENTS} of {str(history.run.path)!r} is damaged: group {group} is split twice")
        norms = (("mean norm", data.get("mean_norm")), ("largest", data.get("max_norm")))
        words = [f"{word} {norm:.3g}" for word, norm in norms if norm is not None]
        parent.told = ", ".join([f"round {number} ({show_seconds(row['time'])})", *words])
        parent.split_round = number + 1
        parent.children = [TreeCluster(int(at), number + 1, count) for at, count in zip(data["children"], counts, strict=True)]
        known |= {cluster.group: cluster for cluster in (parent, *parent.children)}
    return roots


_LEAF_IN, _LEAST_IN, _MOST_IN = 0.85, 2.6, 9.0  # the tree's height: so much a leaf, within these limits
_ACCURACY_IN, _FRAME_IN = 2.0, 1.6
_CROWDED = 12  # with more leaves there is no room for words about each split
_COLUMNS, _LINE_IN = 2, 0.24  # of these words: columns, and a line's height
_OUTLINE = [patheffects.withStroke(linewidth=3.0, foreground="white")]
_SPLIT: dict[str, Any] = {"color": style.GREY, "linewidth": 0.9, "linestyle": (0, (4, 3))}
_ACCURACY: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.4}


@style.styled
def draw_split_tree(run: RunFolder) -> Figure:
    """A tree over the rounds: each cluster from its making to its split, with its members and its last accuracy.

    They are CFL's bipartitions (Sattler et al. 2020). A line is as thick as its cluster has members. Splits have numbers; below
    stand their rounds and times, and the two norms that decided them. Under the tree is the accuracy over all devices.
    """
    history = History(run)
    roots = read_splits(history)
    if not roots:
        raise style.NothingToDrawError(f"{str(run.path)!r} never splits a cluster, so there is no tree to draw")
    clusters = [cluster for root in roots for cluster in root.below()]
    leaves = [cluster for cluster in clusters if not cluster.children]
    splits = sorted((one for one in clusters if one.children), key=lambda one: (one.split_round, one.group))
    crowded = len(leaves) > _CROWDED
    curve = run.table(ROUNDS).select(["round", "accuracy"]).to_pandas().dropna()
    heights = {"tree": float(np.clip(len(leaves) * _LEAF_IN, _LEAST_IN, _MOST_IN))}
    if len(curve):
        heights["accuracy"] = _ACCURACY_IN
    if not crowded:
        heights["words"] = _LINE_IN * math.ceil(len(splits) / _COLUMNS)
    figure = Figure(figsize=(style.WIDTH_IN, sum(heights.values()) + _FRAME_IN))
    panels = figure.subplot_mosaic([[name] for name in heights], height_ratios=list(heights.values()))
    bottom = panels["accuracy" if len(curve) else "tree"]
    rounds = int(run.summary["rounds"])
    _Tree(panels["tree"], roots, leaves, rounds).draw(heights["tree"], history.population)
    if not crowded:
        _number_splits(panels["tree"], panels["words"], splits)
    if len(curve):
        _draw_accuracy(bottom, curve, [one.split_round for one in splits])
        bottom.sharex(panels["tree"])
        panels["tree"].tick_params(labelbottom=False)
    bottom.set_xlabel("rounds that have ended")
    style.whole_ticks(bottom.xaxis, 12)
    bottom.set_xlim(0, rounds)
    counts = f"{style.counted(len(splits), 'split')}, {style.counted(len(leaves), 'cluster')} in the end"
    lines = {"accuracy over all devices": _ACCURACY, "a cluster splits": _SPLIT} if len(curve) else {}
    return style.finished(figure, [run], [Line2D([], [], label=label, **look) for label, look in lines.items()], counts)


def _draw_accuracy(panel: Axes, curve: pd.DataFrame, splits: list[int | None]) -> None:
    panel.plot(curve["round"] + 1, curve["accuracy"], gid="accuracy", **_ACCURACY)
    panel.set_ylabel("test accuracy,\nall devices (0 to 1)")
    panel.grid(color=style.PALE, linewidth=1)
    style.across([panel], sorted(set(splits)), gid="splits", **_SPLIT)


def _number_splits(tree: Axes, words: Axes, splits: list[TreeCluster]) -> None:
    """Each split's number in its dot, as there is no room for words beside it; its words in columns below."""
    dots = {line.get_label(): line for line in tree.lines if line.get_gid() == "split"}
    words.set_axis_off()
    rows = math.ceil(len(splits) / _COLUMNS)
    for place, cluster in enumerate(splits):
        dot = dots[f"split of {cluster.group}"]
        dot.set_markersize(13)
        x, y = np.asarray(dot.get_xydata())[0]
        centred: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": "white"}
        tree.text(x, y, str(place + 1), fontsize=8, weight="bold", zorder=5, **centred)
        column, row = divmod(place, rows)
        look: dict[str, Any] = {"transform": words.transAxes, "va": "center", "fontsize": 9.5, "gid": "told"}
        words.text(column / _COLUMNS, 1 - (row + 0.5) / rows, f"{place + 1}: {cluster.told}", **look)


class _Tree:
    """Draws clusters as lines, the leaves one below the other."""

    def __init__(self, panel: Axes, roots: list[TreeCluster], leaves: list[TreeCluster], rounds: int) -> None:
        self._panel, self._roots, self._leaves, self._rounds = panel, roots, leaves, rounds
        self._most = max(root.members for root in roots)
        self._places = {id(leaf): float(place) for place, leaf in enumerate(leaves)}

    def draw(self, height: float, population: pd.DataFrame) -> None:
        """Draw all, and at the end of each leaf its devices and the mean of their accuracies; ``height`` in inches."""
        for root in self._roots:
            self._draw(root)
        panel = self._panel
        panel.set_ylim(len(self._leaves) - 0.4, -0.75)
        panel.set_yticks([])
        panel.spines["left"].set_visible(False)
        panel.grid(axis="x", color=style.PALE, linewidth=1)
        size = float(np.clip(height / len(self._leaves) * 30, 6, 10))
        groups = population["group"].astype(float).fillna(NO_GROUP)
        for leaf in self._leaves:
            own = population.loc[groups == leaf.group, "accuracy"].astype(float)
            told = f"accuracy {own.mean():.3f}" if own.notna().any() else "not tested"
            text = f"group {leaf.group}: {style.counted(len(own), 'device')}{chr(10) if size > 8 else ', '}{told}"
            style.write_beside(panel, self._places[id(leaf)], text, 10, fontsize=size, gid="leaf")

    def _draw(self, cluster: TreeCluster) -> float:
        """Draw a cluster and all below it; returns where it lies, in leaves from the top."""
        if not cluster.children:
            y = self._places[id(cluster)]
            self._draw_line(cluster, y, self._rounds, style.group_colour(cluster.group))
            return y
        ys = [self._draw(child) for child in cluster.children]
        y, end = sum(ys) / 2, float(cluster.split_round or 0)
        for child, below in zip(cluster.children, ys, strict=True):
            look: dict[str, Any] = {"color": "#BBBBBB", "solid_capstyle": "butt", "zorder": 1}
            self._panel.plot([end, end], [y, below], linewidth=min(self._width(child), 2.5), **look)
        self._draw_line(cluster, y, end, style.GREY)
        dot: dict[str, Any] = {"marker": "o", "linestyle": "", "color": style.BLACK, "markersize": 6}
        self._panel.plot([end], [y], zorder=4, gid="split", label=f"split of {cluster.group}", **dot)
        return y

    def _draw_line(self, cluster: TreeCluster, y: float, end: float, colour: str) -> None:
        width = self._width(cluster)
        line: dict[str, Any] = {"color": colour, "linewidth": width, "solid_capstyle": "butt", "zorder": 2}
        self._panel.plot([cluster.born, end], [y, y], gid=f"cluster-{cluster.group}", **line)
        crowded = len(self._leaves) > _CROWDED
        text = f"{cluster.members:,}" if crowded else style.counted(cluster.members, "device")
        look: dict[str, Any] = {"va": "top", "fontsize": 9, "path_effects": _OUTLINE, "gid": "members"}
        self._panel.annotate(text, (cluster.born, y), (4, -width / 2 - 3), textcoords="offset points", **look)

    def _width(self, cluster: TreeCluster) -> float:
        return 1.5 + 12.5 * cluster.members / self._most
