"""Group membership over time, and the tree of clusters that a server split."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import style
from fedsim.analysis.style import group_name
from fedsim.analysis.timeline import MOST_LANES, mark_rows, number_rounds
from fedsim.common.arrays import Ints
from fedsim.common.errors import RunFolderError
from fedsim.common.units import show_seconds
from fedsim.lab.reading.history import NO_GROUP, History
from fedsim.records.folder import EVENTS, ROUNDS
from fedsim.records.reading import RunFolder

# the rows' height: so much a device, within these limits
_ROW_IN = 0.13
_LEAST_IN = 2.4
_MOST_IN = 7.4
_SIZES_IN = 1.6
_AGREEMENT_IN = 1.3
_FRAME_IN = 1.9
_NAMED_ROWS = 60  # with more, rows are too thin to be named
_GAPPED_ROWS = 150
_MOST_NAMED = 20  # more groups are not named in the legend
_SPLIT: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.1, "linestyle": (0, (5, 3))}
_AGREEMENT: dict[str, dict[str, Any]] = {
    "purity": {"label": "purity", "color": style.BLACK, "linestyle": "-"},
    "ari": {"label": "adjusted Rand index", "color": style.VERMILLION, "linestyle": "--"},
    "nmi": {"label": "normalised mutual information", "color": style.BLUE, "linestyle": ":"},
}


@style.styled
def draw_membership(run: RunFolder) -> Figure:
    """A row a device, its colour the group that it is in; marks show moves, shifts of data,
    newcomers and leavers. Below it stand the sizes of the groups, and how well they agree with the
    true ones where these are known.

    Rows are ordered by last group, then first assignment; at most 1,500 are shown, evenly
    spread. Sizes count all devices.
    """
    history = History(run)
    if history.moves.empty or not history.end:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} never puts a device into a group, so there is no membership to draw"
        )
    order = history.order()
    shown = order[style.evenly(len(order), MOST_LANES)]
    agreement = run.table(ROUNDS).select(["time", *_AGREEMENT]).to_pandas().dropna()
    splits = history.of("cluster-split")["time"].to_numpy(float)
    unit = style.unit_for(history.end, style.TIMES)

    heights = {"rows": float(np.clip(len(shown) * _ROW_IN, _LEAST_IN, _MOST_IN))}
    heights |= {"sizes": _SIZES_IN} | ({"agreement": _AGREEMENT_IN} if len(agreement) else {})
    figure = Figure(figsize=(style.WIDTH_IN, sum(heights.values()) + _FRAME_IN))
    panels = figure.subplot_mosaic(
        [[name] for name in heights], sharex=True, height_ratios=list(heights.values())
    )
    rows = panels["rows"]
    rows.set_xlim(0, history.end / unit.size)  # of all panels
    handles = _draw_rows(rows, history, shown, unit.size)
    if len(splits):
        handles.append(Line2D([], [], label="a group splits", **_SPLIT))
        style.across(
            panels.values(), np.unique(splits) / unit.size, zorder=2, gid="splits", **_SPLIT
        )
    _name_rows(rows, history, shown, heights["rows"])
    _draw_sizes(panels["sizes"], history, unit.size)
    if panel := panels.get("agreement"):
        for name, look in _AGREEMENT.items():
            handles += panel.plot(
                agreement["time"] / unit.size, agreement[name], linewidth=1.6, gid=name, **look
            )
        panel.set_ylim(min(0.0, float(agreement[list(_AGREEMENT)].min().min()) * 1.1) - 0.04, 1.04)
        panel.set_ylabel("agreement\nwith truth", fontsize=10)
        panel.grid()
    ends = history.rounds["end"].to_numpy() / unit.size
    number_rounds(rows, np.arange(1, len(ends) + 1), ends, "rounds that have ended", tick=3)
    list(panels.values())[-1].set_xlabel(f"simulated time ({unit.name})")
    moves = style.counted(int((history.migrations["why"] != "split").sum()), "move")
    who = f"{len(shown):,} of " * (len(shown) < len(order)) + f"{len(order):,} devices"
    words = f"{who}, {style.counted(len(history.groups), 'group')}, {moves} between them"
    return style.finished(figure, [run], handles, words)


def _draw_rows(panel: Axes, history: History, shown: Ints, unit: float) -> list[Artist]:
    """Draw each device's stays as bars, and marks where something happened to it; returns the
    legend's entries.
    """
    row = pd.Series(np.arange(len(shown), dtype=float), index=shown)
    half = 0.42 if len(shown) <= _GAPPED_ROWS else 0.5
    stays = history.stays[history.stays["device"].isin(shown)]
    handles: list[Artist] = []
    for group in [*history.groups, NO_GROUP]:
        own = stays[stays["group"] == group]
        colour = _colour(group)
        if len(own):
            rows = own["device"].map(row)
            style.bars(
                panel,
                own["start"] / unit,
                own["end"] / unit,
                rows,
                half,
                gid=f"group-{group}",
                facecolor=colour,
            )
        if len(own) if group == NO_GROUP else len(history.groups) <= _MOST_NAMED:
            handles.append(Patch(label=group_name(group), facecolor=colour))
    panel.set_ylim(len(shown) - 0.5, -0.5)
    return handles + mark_rows(panel, history, row, unit)


def _colour(group: int) -> str:
    return "#DDDDDD" if group == NO_GROUP else style.group_colour(group)


def _name_rows(panel: Axes, history: History, shown: Ints, height: float) -> None:
    """Name devices on the left if there is room, and on the right the last groups with their
    sizes.
    """
    if len(shown) <= _NAMED_ROWS:
        panel.set_yticks(range(len(shown)), [str(device) for device in shown], fontsize=7)
        panel.tick_params(axis="y", length=0, pad=6)  # room for marks at the very beginning
    else:
        style.whole_ticks(panel.yaxis, 6)
    panel.set_ylabel("device, by last group\nand first assignment")
    totals = history.final.value_counts()
    groups = history.final.reindex(shown).to_numpy()
    blocks = [int(group) for group in pd.unique(groups)]
    middles = np.array([np.flatnonzero(groups == group).mean() for group in blocks])
    edges = np.flatnonzero(np.diff(groups)) + 0.5
    panel.hlines(
        edges,
        0,
        1,
        transform=panel.get_yaxis_transform(),
        color=style.BLACK,
        linewidth=0.7,
        zorder=2,
    )
    labels = style.spread(middles, len(shown) * 0.17 / height)
    labels -= max(0.0, labels.max(initial=0) - (len(shown) - 0.5))
    for group, y in zip(blocks, labels, strict=True):
        style.write_beside(panel, y, f"{group_name(group)}: {totals[group]:,}", 8, fontsize=9)


def _draw_sizes(panel: Axes, history: History, unit: float) -> None:
    sizes = {group: history.sizes(group) for group in [*history.groups, NO_GROUP]}
    times = np.unique(np.concatenate([[history.end], *(at for at, _ in sizes.values())]))
    base = np.zeros(len(times))
    for group, (at, members) in sizes.items():
        top = base + members[np.searchsorted(at, times, side="right") - 1]
        panel.fill_between(
            times / unit,
            base,
            top,
            step="post",
            linewidth=0,
            gid=f"size-{group}",
            facecolor=_colour(group),
        )
        panel.step(times / unit, top, where="post", color="white", linewidth=0.8)
        base = top
    panel.step(times / unit, base, where="post", color=style.BLACK, linewidth=1.0)
    panel.set_ylim(0, max(1.0, base.max() * 1.05))
    style.whole_ticks(panel.yaxis, 4)
    panel.set_ylabel("devices\nin groups", fontsize=10)


# The tree of clusters.

# the tree's height: so much a leaf, within these limits
_LEAF_IN = 0.85
_LEAST_TREE_IN = 2.6
_MOST_TREE_IN = 9.0
_TREE_FRAME_IN = 1.6
_CROWDED = 12  # with more leaves there is no room for words about each split
_OUTLINE = [patheffects.withStroke(linewidth=3.0, foreground="white")]


@dataclass
class TreeCluster:
    """A cluster from its creation (``born``) to its split or the run's end, in ended rounds,
    ``split_round`` included.

    A child may keep its parent's number. ``members`` counts those at its creation, a root's at
    its split. ``told`` has the time and norms of the split.
    """

    group: int
    born: int
    members: int
    split_round: int | None = None
    told: str = ""
    children: list["TreeCluster"] = field(default_factory=list)

    def below(self) -> list["TreeCluster"]:
        """This cluster and its descendants, depth first."""
        return [self, *(cluster for child in self.children for cluster in child.below())]


def read_splits(history: History) -> list[TreeCluster]:
    """The clusters from which the splits begin; none where no cluster was split."""
    roots: list[TreeCluster] = []
    known: dict[int, TreeCluster] = {}
    for row in history.data("cluster-split"):
        group = int(row["group"])
        data = row["data"]
        number = int(row["round"])
        counts = [len(part) for part in data["members"]]
        if group not in known:
            roots.append(TreeCluster(group, 0, sum(counts)))
        parent = known.get(group, roots[-1])
        if parent.children:
            raise RunFolderError(
                f"{EVENTS} of {str(history.run.path)!r} is damaged: group {group} is split twice"
            )
        norms = (("mean norm", data.get("mean_norm")), ("largest", data.get("max_norm")))
        words = [f"{word} {norm:.3g}" for word, norm in norms if norm is not None]
        parent.told = ", ".join([f"round {number} ({show_seconds(row['time'])})", *words])
        parent.split_round = number + 1
        parent.children = [
            TreeCluster(int(at), number + 1, count)
            for at, count in zip(data["children"], counts, strict=True)
        ]
        known |= {cluster.group: cluster for cluster in (parent, *parent.children)}
    return roots


@style.styled
def draw_split_tree(run: RunFolder) -> Figure:
    """A tree over the rounds: each cluster from its making to its split, with its members and
    its last accuracy.

    They are CFL's bipartitions (Sattler et al. 2020). A line's width grows with its members. The
    legend has the round, time and the two deciding norms of each numbered split.
    """
    history = History(run)
    roots = read_splits(history)
    if not roots:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} never splits a cluster, so there is no tree to draw"
        )
    clusters = [cluster for root in roots for cluster in root.below()]
    leaves = [cluster for cluster in clusters if not cluster.children]
    splits = sorted(
        (one for one in clusters if one.children), key=lambda one: (one.split_round, one.group)
    )
    height = float(np.clip(len(leaves) * _LEAF_IN, _LEAST_TREE_IN, _MOST_TREE_IN))
    figure = Figure(figsize=(style.WIDTH_IN, height + _TREE_FRAME_IN))
    tree = figure.subplots()
    places = _draw_tree(tree, clusters, leaves, int(run.summary["rounds"]))
    _tell_leaves(tree, leaves, history.population, height)
    handles: list[Artist] = []
    for number, one in enumerate(splits if len(leaves) <= _CROWDED else [], start=1):
        centred: dict[str, Any] = {
            "ha": "center",
            "va": "center_baseline",
            "color": "white",
            "weight": "bold",
            "zorder": 5,
        }
        tree.text(one.split_round or 0, places[id(one)], str(number), fontsize=8, **centred)
        handles.append(
            Line2D(
                [], [], marker="o", linestyle="", color=style.BLACK, label=f"{number}: {one.told}"
            )
        )
    tree.set_xlabel("rounds that have ended")
    style.whole_ticks(tree.xaxis, 12)
    tree.set_xlim(0, int(run.summary["rounds"]))
    counts = (
        f"{style.counted(len(splits), 'split')}, {style.counted(len(leaves), 'cluster')} in the end"
    )
    return style.finished(figure, [run], handles, counts)


def _draw_tree(
    panel: Axes, clusters: list[TreeCluster], leaves: list[TreeCluster], rounds: int
) -> dict[int, float]:
    """Draw clusters as lines, leaves one below the other; returns the row of each by its id."""
    most = max(cluster.members for cluster in clusters)
    crowded = len(leaves) > _CROWDED
    places = {id(leaf): float(place) for place, leaf in enumerate(leaves)}
    butt: dict[str, Any] = {"solid_capstyle": "butt"}
    for cluster in reversed(clusters):  # children before their parents
        width = 1.5 + 12.5 * cluster.members / most
        end = float(cluster.split_round or rounds)
        colour = style.group_colour(cluster.group)
        if cluster.children:
            colour = style.GREY
            ys = [places[id(child)] for child in cluster.children]
            places[id(cluster)] = sum(ys) / 2
            for child, below in zip(cluster.children, ys, strict=True):
                thin = min(1.5 + 12.5 * child.members / most, 2.5)
                panel.plot(
                    [end, end],
                    [places[id(cluster)], below],
                    color="#BBBBBB",
                    zorder=1,
                    linewidth=thin,
                    **butt,
                )
            size = 6 if crowded else 13
            panel.plot(
                [end],
                [places[id(cluster)]],
                "o",
                color=style.BLACK,
                zorder=4,
                gid="split",
                markersize=size,
            )
        y = places[id(cluster)]
        panel.plot(
            [cluster.born, end],
            [y, y],
            gid=f"cluster-{cluster.group}",
            color=colour,
            linewidth=width,
            zorder=2,
            **butt,
        )
        text = f"{cluster.members:,}" if crowded else style.counted(cluster.members, "device")
        where: dict[str, Any] = {
            "va": "top",
            "fontsize": 9,
            "path_effects": _OUTLINE,
            "gid": "members",
        }
        panel.annotate(
            text, (cluster.born, y), (4, -width / 2 - 3), textcoords="offset points", **where
        )
    return places


def _tell_leaves(
    panel: Axes, leaves: list[TreeCluster], population: pd.DataFrame, height: float
) -> None:
    panel.set_ylim(len(leaves) - 0.4, -0.75)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.grid(axis="x")
    size = float(np.clip(height / len(leaves) * 30, 6, 10))
    groups = population["group"].astype(float).fillna(NO_GROUP)
    for place, leaf in enumerate(leaves):
        own = population.loc[groups == leaf.group, "accuracy"].astype(float)
        told = f"accuracy {own.mean():.3f}" if own.notna().any() else "not tested"
        text = (
            f"group {leaf.group}: "
            f"{style.counted(len(own), 'device')}{chr(10) if size > 8 else ', '}{told}"
        )
        style.write_beside(panel, place, text, 10, fontsize=size, gid="leaf")
