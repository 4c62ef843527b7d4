"""Group membership over time, and the tree of clusters that a server split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import palette, style
from fedsim.analysis.marks import mark_rows, number_rounds
from fedsim.analysis.style import group_name
from fedsim.analysis.view import MOST_LANES
from fedsim.common.arrays import Ints
from fedsim.common.errors import RunFolderError
from fedsim.common.round_words import counted
from fedsim.common.units import show_seconds
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.attempts import Attempt, Attempts
from fedsim.lab.reading.history import NO_GROUP, History
from fedsim.lab.reading.record_data import RecordData
from fedsim.records.folder import EVENTS, ROUNDS
from fedsim.records.reading import RunFolder

# height per row, and least and greatest height of all rows (inches)
_ROW_IN = 0.13
_LEAST_IN = 2.4
_MOST_IN = 7.4
_SIZES_IN = 1.6
_AGREEMENT_IN = 1.3
_FRAME_IN = 1.9
_NAMED_ROWS = 60  # if there are more rows than this, they have no device IDs
_GAPPED_ROWS = 150
_MOST_NAMED = 20  # if there are more groups than this, the legend names none
_SPLIT: palette.Look = {"color": palette.BLACK, "linewidth": 1.1, "linestyle": (0, (5, 3))}
_AGREEMENT: dict[str, palette.Look] = {
    "purity": {"label": "purity", "color": palette.BLACK, "linestyle": "-"},
    "ari": {"label": "adjusted Rand index", "color": palette.VERMILLION, "linestyle": "--"},
    "nmi": {"label": "normalised mutual information", "color": palette.BLUE, "linestyle": ":"},
}


@style.styled
def draw_membership(run: RunFolder) -> Figure:
    """Draw the group (cluster) of each device over time.

    - A row per device has the colours of its groups, thin bars for pre-training, and marks of
      moves, shifts of data, arrivals and departures. Rows are ordered by the device's last group,
      then by the time of its first assignment. At most 1,500 rows are drawn, evenly spread.
    - Below are the sizes of the groups, over all devices.
    - If the data source knows true groups, sets of devices with alike data, a third panel has the
      agreement of the groups with the true groups.

    Raises:
        NothingToDrawError: no device is ever in a group.
    """
    history = History(run)
    if history.assignments.empty or not history.end:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} records no assignment of a device to a group, so there is no membership to draw"
        )
    order = history.order()
    devices = order[style.choose_evenly(len(order), MOST_LANES)]
    agreement = run.table(ROUNDS).select(["time", *_AGREEMENT]).to_pandas().dropna()
    splits = history.of("cluster-split")["time"].to_numpy(float)
    unit = style.unit_for(history.end, style.TIMES)

    heights = {
        "rows": float(np.clip(len(devices) * _ROW_IN, _LEAST_IN, _MOST_IN)),
        "sizes": _SIZES_IN,
    }
    if len(agreement):
        heights["agreement"] = _AGREEMENT_IN
    figure = Figure(figsize=(style.WIDTH_IN, sum(heights.values()) + _FRAME_IN))
    panels = figure.subplot_mosaic(
        [[name] for name in heights], sharex=True, height_ratios=list(heights.values())
    )
    rows = panels["rows"]
    rows.set_xlim(0, history.end / unit.size)  # all panels share this axis
    handles = _draw_rows(rows, history, devices, unit.size)
    if len(splits):
        handles.append(Line2D([], [], label="a group splits", **_SPLIT))
        style.draw_verticals(
            panels.values(), np.unique(splits) / unit.size, zorder=2, gid="splits", **_SPLIT
        )
    _name_rows(rows, history, devices, heights["rows"])
    _draw_sizes(panels["sizes"], history, unit.size)
    if len(agreement):
        handles += _draw_agreement(panels["agreement"], agreement, unit.size)
    ends = history.rounds["end"].to_numpy() / unit.size
    number_rounds(
        rows, np.arange(1, len(ends) + 1), ends, f"{run.round_word}s that have ended", tick=3
    )
    list(panels.values())[-1].set_xlabel(style.time_label([run], unit.name))
    return style.finish(figure, [run], handles, _describe(history, len(devices), len(order)))


def _describe(history: History, count: int, total: int) -> str:
    """Return a text with the counts of drawn devices, groups, and moves between groups."""
    text = counted(total, "device")
    if count < total:
        text = f"{count:,} of {text}"
    text += f", {counted(len(history.groups), 'group')}"
    if len(history.groups) == 1:
        return text
    splits = len(history.of("cluster-split"))
    if splits:
        text += f", {counted(splits, 'split')}"
    moves = int((history.migrations["why"] != "split").sum())
    return f"{text}, {counted(moves, 'move')} between groups"


def _draw_agreement(panel: Axes, agreement: pd.DataFrame, unit: float) -> list[Artist]:
    """Draw how well the groups agree with the true groups; return the legend's entries.

    Args:
        panel: the panel.
        agreement: ``time`` (s) and the measures of agreement, ``purity``, ``ari`` (adjusted Rand
            index) and ``nmi`` (normalised mutual information), at the end of each round.
        unit: unit of the panel's time axis (s).
    """
    handles: list[Artist] = []
    for name, look in _AGREEMENT.items():
        x = agreement["time"] / unit
        handles += panel.plot(x, agreement[name], linewidth=1.6, gid=name, **look)
    lowest = float(agreement[list(_AGREEMENT)].min().min())
    panel.set_ylim(min(0.0, lowest * 1.1) - 0.04, 1.04)
    panel.set_ylabel("agreement\nwith truth", fontsize=10)
    panel.grid()
    return handles


def _draw_rows(panel: Axes, history: History, devices: Ints, unit: float) -> list[Artist]:
    """Draw each device's stays in groups as bars, and its marks; return the legend's entries."""
    row_of_device = pd.Series(np.arange(len(devices), dtype=float), index=devices)
    half_height = 0.42 if len(devices) <= _GAPPED_ROWS else 0.5
    all_stays = history.stays[history.stays["device"].isin(devices)]
    are_named = len(history.groups) <= _MOST_NAMED
    handles: list[Artist] = []
    for group in [*history.groups, NO_GROUP]:
        stays = all_stays[all_stays["group"] == group]
        colour = membership_colour(group)
        if len(stays):
            style.draw_bars(
                panel,
                stays["start"] / unit,
                stays["end"] / unit,
                stays["device"].map(row_of_device),
                half_height,
                gid=f"group-{group}",
                facecolor=colour,
            )
        is_named = are_named
        if group == NO_GROUP:
            is_named = len(stays) > 0
        if is_named:
            handles.append(Patch(label=group_name(group), facecolor=colour))
    panel.set_ylim(len(devices) - 0.5, -0.5)
    activities = Activities(history)
    rows = dict(zip(row_of_device.index.tolist(), row_of_device.tolist(), strict=True))
    handles += draw_pre_trainings(panel, Attempts(activities).all, rows, unit)
    # moves by a split have no marks, as a line through all panels marks the split
    marks = [mark for mark in activities.marks if mark.data.get("why") != "split"]
    return handles + mark_rows(panel, marks, rows, unit)


def draw_pre_trainings(
    panel: Axes, attempts: Sequence[Attempt], rows: Mapping[int, float], unit: float
) -> list[Artist]:
    """Draw a thin bar for each pre-training of a device; return the legend's entries.

    A pre-training is a training that prepares rounds, such as a training by which the server finds
    the group of the device.

    Args:
        panel: the panel.
        attempts: tasks of a run; tasks of devices without a row are skipped.
        rows: device ID -> vertical position of the device's row.
        unit: unit of the panel's time axis (s).
    """
    starts = []
    ends = []
    y = []
    for attempt in attempts:
        if not attempt.is_preparation or attempt.device not in rows:
            continue
        for step in attempt.of_kind("train"):
            starts.append(step.start / unit)
            ends.append(step.end / unit)
            y.append(rows[attempt.device])
    if not starts:
        return []
    least_length = panel.get_xlim()[1] / 600  # a bar shorter than a point would not be seen
    stops = np.maximum(ends, np.array(starts) + least_length)
    look: palette.Look = {"facecolor": palette.PRE_TRAINING, "gid": "pre-training", "zorder": 2.2}
    look |= {"edgecolor": "white", "linewidth": 0.6}
    style.draw_bars(panel, starts, stops, y, 0.2, **look)
    return [Patch(facecolor=palette.PRE_TRAINING, label="pre-training")]


def membership_colour(group: int) -> str:
    """Return the colour in which members of a group are drawn; grey for devices without a group."""
    return "#DDDDDD" if group == NO_GROUP else palette.group_colour(group)


def _name_rows(panel: Axes, history: History, devices: Ints, height: float) -> None:
    """Label the rows: device IDs on the left if they are few, and last groups on the right.

    A group's label has its size, the count of members that are present at the end of the run.
    """
    count = len(devices)
    if count <= _NAMED_ROWS:
        panel.set_yticks(range(count), [str(device) for device in devices], fontsize=7)
        panel.tick_params(axis="y", length=0, pad=6)  # room for marks at time 0
    else:
        style.set_whole_ticks(panel.yaxis, 6)
    panel.set_ylabel("device, by last group\nand first assignment")
    sizes = history.members_at_end
    groups = history.final.reindex(devices).to_numpy()
    blocks = [int(group) for group in pd.unique(groups)]
    middles = np.array([np.flatnonzero(groups == group).mean() for group in blocks])
    borders = np.flatnonzero(np.diff(groups)) + 0.5
    panel.hlines(
        borders,
        0,
        1,
        transform=panel.get_yaxis_transform(),
        color=palette.BLACK,
        linewidth=0.7,
        zorder=2,
    )
    rows_per_in = count / height
    label_rows = style.separate_labels(middles, 0.17 * rows_per_in)
    # all labels move up if the last one would be below the panel
    label_rows -= max(0.0, label_rows.max(initial=0) - (count - 0.5))
    for group, y in zip(blocks, label_rows, strict=True):
        style.write_beside(panel, y, f"{group_name(group)}: {sizes.get(group, 0):,}", 8, fontsize=9)


def _draw_sizes(panel: Axes, history: History, unit: float) -> None:
    """Draw the count of members of each group over time, stacked."""
    sizes = {group: history.sizes(group) for group in [*history.groups, NO_GROUP]}
    changes = [changed_at for changed_at, _ in sizes.values()]
    times = np.unique(np.concatenate([[history.end], *changes]))
    base = np.zeros(len(times))
    for group, (changed_at, members) in sizes.items():
        last_changes = np.searchsorted(changed_at, times, side="right") - 1
        top = base + members[last_changes]
        panel.fill_between(
            times / unit,
            base,
            top,
            step="post",
            linewidth=0,
            gid=f"size-{group}",
            facecolor=membership_colour(group),
        )
        panel.step(times / unit, top, where="post", color="white", linewidth=0.8)
        base = top
    panel.step(times / unit, base, where="post", color=palette.BLACK, linewidth=1.0)
    panel.set_ylim(0, max(1.0, base.max() * 1.05))
    style.set_whole_ticks(panel.yaxis, 4)
    panel.set_ylabel("devices\nin groups", fontsize=10)


# height per leaf, and least and greatest height of the tree (inches)
_LEAF_IN = 0.85
_LEAST_TREE_IN = 2.6
_MOST_TREE_IN = 9.0
_TREE_FRAME_IN = 1.6
_CROWDED = 12  # if there are more leaves than this, splits have no numbers and no legend
_OUTLINE = [patheffects.withStroke(linewidth=3.0, foreground="white")]


@dataclass
class TreeCluster:
    """Cluster of devices as a node in a tree, whose children are the parts into which it was split.

    Attributes:
        group: index of the cluster's group; a child may have the group of its parent.
        created_round: count of rounds that had ended at the creation of the cluster.
        members: count of members at the creation of the cluster; of a root, at its split.
        split_round: count of rounds that had ended at the split of the cluster, including the
            round of the split; None if the cluster was not split.
        description: text about the split: its round and time, the norm of the cluster's mean
            update, and the largest norm of an update. Empty if the cluster was not split.
        children: the clusters into which this cluster was split; empty if it was not split.
    """

    group: int
    created_round: int
    members: int
    split_round: int | None = None
    description: str = ""
    children: list["TreeCluster"] = field(default_factory=list)

    def below(self) -> list["TreeCluster"]:
        """Return this cluster and all clusters that came from it by splits, depth first."""
        clusters = [self]
        for child in self.children:
            clusters += child.below()
        return clusters


def read_splits(history: History) -> list[TreeCluster]:
    """Read the trees of a run's clusters, in which the children of a cluster are its parts.

    Returns:
        The roots: split clusters that no split had created. Empty if no cluster was split.

    Raises:
        RunFolderError: the records are damaged, as they split a cluster twice.
    """
    roots: list[TreeCluster] = []
    clusters: dict[int, TreeCluster] = {}
    for row in history.data("cluster-split"):
        group = int(row["group"])
        data = row["data"]
        ended_rounds = int(row["round"]) + 1
        sizes = [len(members) for members in data["members"]]
        if group not in clusters:
            clusters[group] = TreeCluster(group, created_round=0, members=sum(sizes))
            roots.append(clusters[group])
        parent = clusters[group]
        if parent.children:
            raise RunFolderError(
                f"{EVENTS} of {str(history.run.path)!r} is damaged: group {group} is split twice"
            )
        parent.description = _describe_split(row)
        parent.split_round = ended_rounds
        for child_group, size in zip(data["children"], sizes, strict=True):
            child = TreeCluster(int(child_group), ended_rounds, size)
            parent.children.append(child)
            clusters[child.group] = child
    return roots


def _describe_split(row: RecordData) -> str:
    """Describe the split of a cluster in a few words: round, time, and the norms that caused it.

    Args:
        row: the record ``cluster-split``.
    """
    words = [f"round {int(row['round'])} ({show_seconds(row['time'])})"]
    for name, key in (("mean norm", "mean_norm"), ("largest", "max_norm")):
        norm = row["data"].get(key)
        if norm is not None:
            words.append(f"{name} {norm:.3g}")
    return ", ".join(words)


@style.styled
def draw_split_tree(run: RunFolder) -> Figure:
    """Draw the tree of clusters over the rounds, from each cluster's creation to its split.

    The splits are CFL's bipartitions (Sattler et al. 2020). Each cluster is a line, whose width
    grows with the count of members. Beside a leaf, a cluster that was not split, is the mean of the
    last test accuracies of its devices. The legend has the round and time of each numbered split,
    and the norms that caused the split: the norm of the cluster's mean update, and the largest norm
    of an update. A tree with more than twelve leaves has no numbers and no legend.

    Raises:
        NothingToDrawError: no cluster is split.
    """
    history = History(run)
    roots = read_splits(history)
    if not roots:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} never splits a cluster, so there is no tree to draw"
        )
    clusters: list[TreeCluster] = []
    for root in roots:
        clusters += root.below()
    leaves = [cluster for cluster in clusters if not cluster.children]
    splits = [cluster for cluster in clusters if cluster.children]
    splits.sort(key=lambda cluster: (cluster.split_round, cluster.group))
    height = float(np.clip(len(leaves) * _LEAF_IN, _LEAST_TREE_IN, _MOST_TREE_IN))
    figure = Figure(figsize=(style.WIDTH_IN, height + _TREE_FRAME_IN))
    tree = figure.subplots()
    rounds = int(run.summary["rounds"])
    rows = _draw_tree(tree, clusters, leaves, rounds)
    _name_leaves(tree, leaves, history.population, height)
    handles: list[Artist] = []
    if len(leaves) <= _CROWDED:
        handles = _number_splits(tree, splits, rows)
    tree.set_xlabel(f"{run.round_word}s that have ended")
    style.set_whole_ticks(tree.xaxis, 12)
    tree.set_xlim(0, rounds)
    counts = f"{counted(len(splits), 'split')}, {counted(len(leaves), 'cluster')} in the end"
    return style.finish(figure, [run], handles, counts)


def _number_splits(tree: Axes, splits: list[TreeCluster], rows: dict[int, float]) -> list[Artist]:
    """Write a number on each split; return the legend's entries, which explain the numbers."""
    look: palette.Look = {
        "ha": "center",
        "va": "center_baseline",
        "color": "white",
        "weight": "bold",
        "zorder": 5,
    }
    handles: list[Artist] = []
    for number, cluster in enumerate(splits, start=1):
        assert cluster.split_round is not None
        tree.text(cluster.split_round, rows[id(cluster)], str(number), fontsize=8, **look)
        label = f"{number}: {cluster.description}"
        handles.append(Line2D([], [], marker="o", linestyle="", color=palette.BLACK, label=label))
    return handles


def _draw_tree(
    panel: Axes, clusters: list[TreeCluster], leaves: list[TreeCluster], rounds: int
) -> dict[int, float]:
    """Draw clusters as lines, one leaf per row; return the row of each cluster by its id()."""
    most_members = max(cluster.members for cluster in clusters)
    is_crowded = len(leaves) > _CROWDED
    rows = {id(leaf): float(row) for row, leaf in enumerate(leaves)}
    for cluster in reversed(clusters):  # children come before their parents
        width = _line_width(cluster, most_members)
        end = float(cluster.split_round or rounds)
        colour = palette.group_colour(cluster.group)
        if cluster.children:
            colour = palette.GREY
            _draw_split(panel, cluster, end, most_members, rows, size=6 if is_crowded else 13)
        y = rows[id(cluster)]
        panel.plot(
            [cluster.created_round, end],
            [y, y],
            gid=f"cluster-{cluster.group}",
            color=colour,
            linewidth=width,
            zorder=2,
            solid_capstyle="butt",
        )
        text = f"{cluster.members:,}" if is_crowded else counted(cluster.members, "device")
        panel.annotate(
            text,
            (cluster.created_round, y),
            (4, -width / 2 - 3),
            textcoords="offset points",
            va="top",
            fontsize=9,
            path_effects=_OUTLINE,
            gid="members",
        )
    return rows


def _line_width(cluster: TreeCluster, most_members: int) -> float:
    return 1.5 + 12.5 * cluster.members / most_members


def _draw_split(
    panel: Axes,
    cluster: TreeCluster,
    end: float,
    most_members: int,
    rows: dict[int, float],
    size: float,
) -> None:
    """Draw a cluster's split: lines to its children, and a dot.

    The cluster's row, in the middle of its children's rows, is added to ``rows``.
    """
    child_rows = [rows[id(child)] for child in cluster.children]
    row = sum(child_rows) / 2  # CFL splits a cluster in two
    rows[id(cluster)] = row
    for child, child_row in zip(cluster.children, child_rows, strict=True):
        panel.plot(
            [end, end],
            [row, child_row],
            color="#BBBBBB",
            zorder=1,
            linewidth=min(_line_width(child, most_members), 2.5),
            solid_capstyle="butt",
        )
    panel.plot([end], [row], "o", color=palette.BLACK, zorder=4, gid="split", markersize=size)


def _name_leaves(
    panel: Axes, leaves: list[TreeCluster], population: pd.DataFrame, height: float
) -> None:
    """Write group, size and accuracy beside each leaf."""
    panel.set_ylim(len(leaves) - 0.4, -0.75)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.grid(axis="x")
    size = float(np.clip(height / len(leaves) * 30, 6, 10))
    separator = "\n" if size > 8 else ", "
    groups = population["group"].astype(float).fillna(NO_GROUP)
    for row, leaf in enumerate(leaves):
        accuracies = population.loc[groups == leaf.group, "accuracy"].astype(float)
        accuracy = "not tested"
        if accuracies.notna().any():
            accuracy = f"accuracy {accuracies.mean():.3f}"
        name = f"group {leaf.group}: {counted(len(accuracies), 'device')}"
        text = f"{name}{separator}{accuracy}"
        style.write_beside(panel, row, text, 10, fontsize=size, gid="leaf")
