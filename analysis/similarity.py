"""Clusterings by models, and the similarity of devices by which the server put them into groups."""

import math
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from fedsim.analysis import style
from fedsim.arrays import Floats, Ints
from fedsim.errors import RunFolderError
from fedsim.language.units import show_seconds
from fedsim.records.folder import EVENTS
from fedsim.records.history import History
from fedsim.records.reading import RunFolder

_ORDERED_WELL = 300  # of more the best of the trees' orders takes too long to find
_MOST = 6  # clusterings in one picture


@dataclass(frozen=True)
class Clustering:
    """One ``clustering`` record.

    Attributes:
        time: when (s).
        round: for which round; None where it belongs to none.
        measure: what was compared, by the strategy's name for it; empty if it says none.
        devices: those that were clustered, int64 [n].
        groups: the group of each, int64 [n].
        similarity, distance: of every two, [n, n]; None where it was not recorded.
        features: what was clustered, [n, m]; None where it was not recorded.
    """

    time: float
    round: int | None
    measure: str
    devices: Ints
    groups: Ints
    similarity: Floats | None
    distance: Floats | None
    features: Floats | None

    @property
    def matrix(self) -> Floats | None:
        """The similarity, or the distance, [n, n]."""
        return self.distance if self.similarity is None else self.similarity

    @property
    def title(self) -> str:
        """When, how many devices, and in how many groups."""
        when = f"after {show_seconds(self.time)}" if self.round is None else f"round {self.round}"
        return f"{when}: {len(self.devices)} devices in {style.counted(len(np.unique(self.groups)), 'group')}"

    def order(self) -> Ints:
        """Positions [n] by group, and within a group like ones together (as they come where there is no matrix)."""
        matrix = self.matrix
        if matrix is None:
            return np.argsort(self.groups, kind="stable")
        apart = matrix if self.similarity is None else -matrix
        members = [np.flatnonzero(self.groups == group) for group in np.unique(self.groups)]
        return np.concatenate([own[_side_by_side(apart[np.ix_(own, own)])] for own in members])


def _side_by_side(apart: Floats) -> Ints:
    """Positions [n] such that those little ``apart`` [n, n] lie together, by average linkage; NaN counts as furthest."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    n = len(apart)
    if n < 3:
        return np.arange(n)
    both = (apart + apart.T) / 2
    off = ~np.eye(n, dtype=bool) & np.isfinite(both)
    low, high = (both[off].min(), both[off].max()) if off.any() else (0.0, 1.0)
    distance = np.where(np.isfinite(both), both, high) - low
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=n <= _ORDERED_WELL)
    leaves: Ints = leaves_list(tree).astype(np.int64)
    return leaves if leaves[0] < leaves[-1] else leaves[::-1]


def read_clusterings(history: History) -> list[Clustering]:
    """Every clustering of a run, in order."""
    return [_clustering(history, row) for row in history.data("clustering")]


def _clustering(history: History, row: dict[str, Any]) -> Clustering:
    data, time, number = row["data"], row["time"], row["round"]
    devices, groups = (np.array(data[key], dtype=np.int64) for key in ("devices", "groups"))
    n = len(devices)
    similarity, distance, features = (
        None if data.get(key) is None else np.array(data[key], dtype=np.float64)
        for key in ("similarity", "distance", "features")
    )
    square = all(matrix is None or matrix.shape == (n, n) for matrix in (similarity, distance))
    if len(groups) != n or not square or (features is not None and (features.ndim != 2 or len(features) != n)):
        where = f"{EVENTS} of {str(history.run.path)!r} is damaged"
        raise RunFolderError(f"{where}: the clustering at {time:g} s does not fit its {n} devices")
    at = None if number is None else int(number)
    return Clustering(time, at, str(data.get("measure", "")), devices, groups, similarity, distance, features)


def some_of(found: list[Clustering]) -> list[Clustering]:
    """The first, the last, and some between, of more than six."""
    return [found[place] for place in style.evenly(len(found), _MOST)] if found else []


_NAMED = 40  # with more devices, rows are too thin to be named
_STRIP = 0.035  # the groups' colours beside the matrix, in its width
_WORDS = {
    "edc": "EDC",
    "madc": "MADC",
    "lcfl": "loss of each on the other's data (LCFL, Eq. 2)",
    "diff-norm": "norm of their models' difference",
    "grad-cos": "1 - cosine of their gradients",
    "update-cos": "1 - cosine of their updates",
}
_PAIRS = {
    "alike": (style.BLUE, "in one group, data alike"),
    "unlike": (style.ORANGE, "in one group, data unlike"),
    "settled": (style.GREY, "in a group whose data are all alike"),
    "within": (style.BLUE, "in one group"),
    "across": (style.PURPLE, "in two groups"),
}
"""The pairs of a ``cosines`` record, in the colours of CFL's Fig. 3, which leaves the last kind out."""
_SPLITS: dict[str, Any] = {"color": style.GREY, "linewidth": 0.9, "linestyle": (0, (4, 3)), "label": "a cluster splits"}
_OVER_TIME_IN = 4.0


@style.styled
def draw_similarity(run: RunFolder) -> Figure:
    """The similarities or distances of every two devices that the server saw, ordered by the groups it made of them; below
    them, where that was recorded, how alike updates were in each round, within groups and across them.

    Within a group like ones stand together. Above the matrix stands the mean within groups and across them, without the
    diagonal. All panels have one scale. Of more than six clusterings the first, the last and some between are drawn. Cosines
    of updates (``evaluation.cosines``) are drawn as in Fig. 3 of the CFL paper.
    """
    history = History(run)
    found = [clustering for clustering in read_clusterings(history) if clustering.matrix is not None]
    cosines = history.data("cosines")
    if not found and not cosines:
        raise style.NothingToDrawError(f"{str(run.path)!r} has recorded no similarity of devices, so there is none to draw")
    kind = [clustering for clustering in found if (clustering.similarity is None) == (found[0].similarity is None)]
    chosen = some_of(kind)
    columns = max(min(3, len(chosen)), 1)
    width = {1: 8.6, 2: 12.0, 3: style.WIDTH_IN}[columns] if chosen else style.WIDTH_IN
    side = (width - 1.7) / columns - 0.25  # beside the matrices there are a colour bar and labels
    heights = [math.ceil(len(chosen) / columns) * (side + 1.0) + 0.4] * bool(chosen) + [_OVER_TIME_IN] * bool(cosines)
    figure = Figure(figsize=(width, sum(heights)))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
    if chosen:
        _draw_matrices(parts[0], chosen, columns)
    if cosines:
        _draw_over_time(parts[-1], cosines, history.of("cluster-split")["round"].to_numpy(int))
    part = f"{len(chosen)} of {len(kind)} clusterings" if len(chosen) < len(kind) else ""
    return style.finished(figure, [run], [], part)


def _draw_over_time(part: SubFigure, cosines: list[dict[str, Any]], splits: Ints) -> None:
    """Cosines of the pairs of each kind: the mean as a line, in a band from the least to the largest."""
    panel, rounds = part.subplots(), [int(row["round"]) for row in cosines]
    for kind, (colour, words) in _PAIRS.items():
        low, mean, high = np.array([row["data"].get(kind, [np.nan] * 3) for row in cosines]).T
        if np.isfinite(mean).any():
            dot = "." if len(rounds) < 2 else None
            panel.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
            panel.plot(rounds, mean, color=colour, linewidth=1.6, marker=dot, label=words, gid=f"cosines-{kind}")
    if len(splits):
        style.across([panel], np.unique(splits), gid="splits", **_SPLITS)
    panel.axhline(0, color=style.BLACK, linewidth=0.6)
    panel.set_xlabel("round")
    panel.set_ylabel("cosine of the updates\nof two devices\n(mean, least to largest)")
    style.whole_ticks(panel.xaxis, 12)
    part.legend(loc="outside lower center", ncols=3)


def _draw_matrices(part: SubFigure, chosen: list[Clustering], columns: int) -> None:
    """Similarities on a scale with white at 0, distances on one from 0 on; both are safe for the colour-blind."""
    panels = np.atleast_1d(part.subplots(math.ceil(len(chosen) / columns), columns)).ravel()
    matrices = [_off_diagonal(clustering) for clustering in chosen]
    values = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    distances, most = chosen[0].similarity is None, float(np.abs(values).max(initial=0.0)) or 1.0
    colours = matplotlib.colormaps["cividis" if distances else "RdBu_r"].with_extremes(bad="#BBBBBB")  # bad is the diagonal
    look = {"cmap": colours, "vmin": 0.0 if distances else -most, "vmax": most, "gid": "matrix"}
    for panel, clustering, matrix in zip(panels, chosen, matrices, strict=False):
        image = panel.imshow(matrix, interpolation="nearest" if len(matrix) <= 400 else "antialiased", **look)
        _finish_panel(panel, clustering, matrix)
    for panel in panels[len(chosen) :]:
        panel.set_axis_off()
    bar = part.colorbar(image, ax=list(panels), shrink=0.75, aspect=30, pad=0.02)
    bar.ax.set_ylim(float(values.min(initial=0.0)), float(values.max(initial=0.0)) or 1.0)
    bar.set_label(f"{'distance' if distances else 'similarity'} of two devices\n{_measure(chosen[0])}")


def _measure(clustering: Clustering) -> str:
    name = clustering.measure
    known = _WORDS.get(name, style.short(name, 24) if name else "")
    if clustering.similarity is not None:
        return "cosine of their updates" + (f"; grouped by {known}" if name not in ("", "cosine") else "")
    return known


def _off_diagonal(clustering: Clustering) -> Floats:
    """The matrix in the order of the groups, [n, n], NaN on the diagonal, which says nothing."""
    assert clustering.matrix is not None
    order = clustering.order()
    matrix = clustering.matrix[np.ix_(order, order)].copy()
    np.fill_diagonal(matrix, np.nan)
    return matrix


def _finish_panel(panel: Axes, clustering: Clustering, matrix: Floats) -> None:
    """Borders, strips of colour, names and a title."""
    order = clustering.order()
    groups, n = clustering.groups[order], len(order)
    borders = np.flatnonzero(np.diff(groups)) + 0.5
    panel.hlines(borders, -0.5, n - 0.5, color=style.BLACK, linewidth=0.8)
    panel.vlines(borders, -0.5, n - 0.5, color=style.BLACK, linewidth=0.8)
    _draw_strips(panel, groups)
    same, known = groups[:, None] == groups[None], np.isfinite(matrix)
    within, across = matrix[same & known], matrix[~same & known]
    parts = [f"{word} {values.mean():.2g}" for word, values in (("within", within), ("across", across)) if len(values)]
    panel.set_title(f"{clustering.title}\nmean {', '.join(parts)}", fontsize=11)
    if n <= _NAMED:
        names = [str(device) for device in clustering.devices[order]]
        panel.set_yticks(range(n), names, fontsize=7)
        panel.set_xticks(range(n), names, fontsize=7, rotation=90)
    else:
        style.whole_ticks(panel.xaxis, 6)
        style.whole_ticks(panel.yaxis, 6)
    panel.set_xlabel("device" if n <= _NAMED else "devices, ordered by group")
    panel.spines[:].set_visible(False)


def _draw_strips(panel: Axes, groups: Ints) -> None:
    """The groups' colours and numbers left of the matrix and above it."""
    n = len(groups)
    wide = n * _STRIP
    near, far = -0.5 - wide / 5, -0.5 - wide
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        low, high = own[0] - 0.5, own[-1] + 0.5
        colour = style.group_colour(int(group)) if group >= 0 else style.GREY
        style.rectangles(panel, far, near, low, high, facecolor=colour, clip_on=False)
        style.rectangles(panel, low, high, far, near, facecolor=colour, clip_on=False)
        if len(own) >= n / 30:
            name = f"group {group}" if group >= 0 else "none"
            panel.text(n - 0.5 + wide / 2, own.mean(), name, va="center", ha="left", fontsize=9, rotation=270)
    panel.set_xlim(far, n - 0.5)
    panel.set_ylim(n - 0.5, far)
    panel.set_xticks([])
