"""Clusterings by models: the similarity of devices by which the server put them into groups, and
the devices as points.
"""

import math
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from fedsim.analysis import style
from fedsim.analysis.style import group_name
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import RunFolderError
from fedsim.common.units import show_seconds
from fedsim.lab.reading.history import History
from fedsim.records.folder import EVENTS
from fedsim.records.reading import RunFolder

_MOST = 6  # clusterings in one picture
_NAMED = 40  # with more devices, rows are too thin to be named
_STRIP = 0.035  # the groups' colours beside the matrix, in its width
_OVER_TIME_IN = 4.0
_PAIRS = {
    "alike": (style.BLUE, "in one group, data alike"),
    "unlike": (style.ORANGE, "in one group, data unlike"),
    "settled": (style.GREY, "in a group whose data are all alike"),
    "within": (style.BLUE, "in one group"),
    "across": (style.PURPLE, "in two groups"),
}
"""The pairs of a ``cosines`` record, in the colours of CFL's Fig. 3, which leaves the last kind
out.
"""
_SPLITS: dict[str, Any] = {
    "color": style.GREY,
    "linewidth": 0.9,
    "linestyle": (0, (4, 3)),
    "label": "a cluster splits",
}
_MEAN: dict[str, Any] = {
    "marker": "+",
    "color": style.BLACK,
    "linestyle": "",
    "markeredgewidth": 0.8,
}


@dataclass(frozen=True)
class Clustering:
    """One ``clustering`` record: the ``groups`` of ``devices``, int64 [n], by the strategy's
    ``measure``.

    The pairwise ``matrix`` [n, n] is a similarity if ``alike``, else a distance. It and the
    clustered ``features`` [n, m] are None if not recorded.
    """

    title: str
    measure: str
    devices: Ints
    groups: Ints
    matrix: Floats | None
    alike: bool
    features: Floats | None


def read_clusterings(history: History) -> list[Clustering]:
    """Every clustering of a run, in order."""
    found = []
    for row in history.data("clustering"):
        data = row["data"]
        number = row["round"]
        devices, groups = (np.array(data[key], dtype=np.int64) for key in ("devices", "groups"))
        n = len(devices)
        alike = data.get("similarity") is not None
        matrix, features = (
            None if data.get(key) is None else np.array(data[key], dtype=np.float64)
            for key in ("similarity" if alike else "distance", "features")
        )
        fits = matrix is None or matrix.shape == (n, n)
        if (
            len(groups) != n
            or not fits
            or (features is not None and (features.ndim != 2 or len(features) != n))
        ):
            where = f"{EVENTS} of {str(history.run.path)!r} is damaged"
            raise RunFolderError(
                f"{where}: the clustering at {row['time']:g} s does not fit its {n} devices"
            )
        when = f"after {show_seconds(row['time'])}" if number is None else f"round {int(number)}"
        title = f"{when}: {n} devices in {style.counted(len(np.unique(groups)), 'group')}"
        measure = style.short(str(data.get("measure", "measure not named")), 30)
        found.append(Clustering(title, measure, devices, groups, matrix, alike, features))
    return found


def _some_of(found: list[Clustering]) -> tuple[list[Clustering], str]:
    chosen = [found[place] for place in style.evenly(len(found), _MOST)] if found else []
    return chosen, f"{len(chosen)} of {len(found)} clusterings" if len(chosen) < len(found) else ""


def _grid(part: Figure | SubFigure, count: int) -> list[Axes]:
    panels = part.subplots(math.ceil(count / 3), min(3, count), squeeze=False).ravel()
    for panel in panels[count:]:
        panel.set_axis_off()
    return list(panels)


# Similarities and distances as matrices.


@style.styled
def draw_similarity(run: RunFolder) -> Figure:
    """The similarities or distances of every two devices that the server saw, ordered by the groups
    it made of them; below them, where that was recorded, how alike updates were in each round,
    within groups and across them.

    Titles have the means within and across groups, without the diagonal. All panels share one
    scale; of more than six clusterings six are drawn, evenly spread. Cosines of updates
    (``evaluation.cosines``) are drawn as in CFL's Fig. 3.
    """
    history = History(run)
    found = [
        clustering for clustering in read_clusterings(history) if clustering.matrix is not None
    ]
    cosines = history.data("cosines")
    if not found and not cosines:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} has recorded no similarity of devices, so there is none to draw"
        )
    chosen, part = _some_of(
        [clustering for clustering in found if clustering.alike == found[0].alike]
    )
    columns = min(3, len(chosen))
    width = {1: 8.6, 2: 12.0}.get(columns, style.WIDTH_IN)
    # beside the matrices there are a colour bar and labels
    side = (width - 1.7) / (columns or 1) - 0.25
    heights = [math.ceil(len(chosen) / 3) * (side + 1.0) + 0.4] * bool(chosen) + [
        _OVER_TIME_IN
    ] * bool(cosines)
    figure = Figure(figsize=(width, sum(heights)))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
    if chosen:
        _draw_matrices(parts[0], chosen)
    if cosines:
        _draw_over_time(parts[-1], cosines, history.of("cluster-split")["round"].to_numpy(int))
    return style.finished(figure, [run], [], part)


def _draw_over_time(part: SubFigure, cosines: list[dict[str, Any]], splits: Ints) -> None:
    """Cosines of the pairs of each kind: the mean as a line, in a band from the least to the
    largest.
    """
    panel = part.subplots()
    rounds = [row["round"] for row in cosines]
    for kind, (colour, words) in _PAIRS.items():
        low, mean, high = np.array([row["data"].get(kind, [np.nan] * 3) for row in cosines]).T
        if np.isfinite(mean).any():
            dot = "." if len(rounds) < 2 else None
            panel.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
            panel.plot(
                rounds,
                mean,
                color=colour,
                linewidth=1.6,
                marker=dot,
                label=words,
                gid=f"cosines-{kind}",
            )
    if len(splits):
        style.across([panel], np.unique(splits), gid="splits", **_SPLITS)
    panel.axhline(0, color=style.BLACK, linewidth=0.6)
    panel.set(
        xlabel="round", ylabel="cosine of the updates\nof two devices\n(mean, least to largest)"
    )
    style.whole_ticks(panel.xaxis, 12)
    part.legend(loc="outside lower center", ncols=3)


def _draw_matrices(part: SubFigure, chosen: list[Clustering]) -> None:
    """Similarities on a scale with white at 0, distances on one from 0 on; both are safe for the
    colour-blind.
    """
    panels = _grid(part, len(chosen))
    orders = [np.argsort(clustering.groups, kind="stable") for clustering in chosen]
    matrices = [
        np.where(np.eye(len(order), dtype=bool), np.nan, clustering.matrix[np.ix_(order, order)])  # type: ignore[index]
        for clustering, order in zip(chosen, orders, strict=True)
    ]
    values = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    alike = chosen[0].alike
    most = float(np.abs(values).max(initial=0.0)) or 1.0
    # bad is the diagonal
    colours = matplotlib.colormaps["RdBu_r" if alike else "cividis"].with_extremes(bad="#BBBBBB")
    look: dict[str, Any] = {
        "cmap": colours,
        "vmin": -most if alike else 0.0,
        "vmax": most,
        "gid": "matrix",
    }
    for panel, clustering, order, matrix in zip(panels, chosen, orders, matrices, strict=False):
        image = panel.imshow(
            matrix, interpolation="nearest" if len(matrix) <= 400 else "antialiased", **look
        )
        _finish_panel(
            panel, clustering.title, clustering.groups[order], matrix, clustering.devices[order]
        )
    bar = part.colorbar(image, ax=panels, shrink=0.75, aspect=30, pad=0.02)
    bar.ax.set_ylim(float(values.min(initial=0.0)), float(values.max(initial=0.0)) or 1.0)
    bar.set_label(f"{'similarity' if alike else 'distance'} of two devices ({chosen[0].measure})")


def _finish_panel(panel: Axes, title: str, groups: Ints, matrix: Floats, devices: Ints) -> None:
    """Borders of the groups, their colours and numbers left of the matrix and above it, names
    and a title.
    """
    n = len(groups)
    borders = np.flatnonzero(np.diff(groups)) + 0.5
    panel.hlines(borders, -0.5, n - 0.5, color=style.BLACK, linewidth=0.8)
    panel.vlines(borders, -0.5, n - 0.5, color=style.BLACK, linewidth=0.8)
    wide = n * _STRIP
    near = -0.5 - wide / 5
    far = -0.5 - wide
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        low = own[0] - 0.5
        high = own[-1] + 0.5
        look = {"facecolor": _colour(group), "clip_on": False}
        style.rectangles(panel, far, near, low, high, **look)
        style.rectangles(panel, low, high, far, near, **look)
        if len(own) >= n / 30:
            panel.text(
                n - 0.5 + wide / 2,
                own.mean(),
                group_name(group),
                va="center",
                ha="left",
                fontsize=9,
                rotation=270,
            )
    panel.set(xlim=(far, n - 0.5), ylim=(n - 0.5, far))
    same = groups[:, None] == groups[None]
    known = np.isfinite(matrix)
    within = matrix[same & known]
    across = matrix[~same & known]
    means = [
        f"{word} {values.mean():.2g}"
        for word, values in (("within", within), ("across", across))
        if len(values)
    ]
    panel.set_title(f"{title}\nmean {', '.join(means)}", fontsize=11)
    if n <= _NAMED:
        panel.set_yticks(range(n), list(map(str, devices)), fontsize=7)
        panel.set_xticks(range(n), list(map(str, devices)), fontsize=7, rotation=90)
    else:
        style.whole_ticks(panel.xaxis, 6)
        style.whole_ticks(panel.yaxis, 6)
    panel.set_xlabel("device" if n <= _NAMED else "devices, ordered by group")
    panel.spines[:].set_visible(False)


def _colour(group: int) -> str:
    return style.group_colour(int(group)) if group >= 0 else style.GREY


# Devices as points.


@style.styled
def draw_embedding(run: RunFolder) -> Figure:
    """The clustered points, one per device, with colour and shape by the group that was found;
    one panel per time.

    Points are the features where some were recorded: FlexCFL's EDC embedding (Duan et al. 2021, Eq.
    7). Otherwise classical multidimensional scaling (Torgerson 1952) makes them of distances, or of
    similarities as inner products. Panels have the first two principal components, turned so that
    devices lie near their points in the panel before.
    """
    from scipy.linalg import orthogonal_procrustes

    found = [
        one
        for one in read_clusterings(History(run))
        if len(one.devices) > 1 and _coordinates(one).size
    ]
    if not found:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} has recorded neither features nor similarities of devices, so "
            "there is no embedding to draw"
        )
    chosen, part = _some_of(found)
    columns = min(3, len(chosen))
    side = style.WIDTH_IN / max(2, columns) - 0.2
    figure = Figure(
        figsize=(max(1.15 * columns, 1.3) * side, math.ceil(len(chosen) / 3) * (side + 0.4) + 1.1)
    )
    before = chosen[0]
    last = np.empty((0, 2))
    for panel, clustering in zip(_grid(figure, len(chosen)), chosen, strict=False):
        points, share = principal_components(_coordinates(clustering))
        # rotated or mirrored, so that devices come nearest to their last points (Schoenemann 1966)
        if len(last):
            _, there, here = np.intersect1d(before.devices, clustering.devices, return_indices=True)
            points = points @ orthogonal_procrustes(points[here], last[there])[0]
        before = clustering
        last = points
        _draw_points(panel, clustering.groups, points)
        panel.set_title(f"{clustering.title}\n{share:.0%} of the variance", fontsize=11)
    groups = sorted({int(group) for one in chosen for group in one.groups})
    handles: list[Artist] = [
        Line2D([], [], linestyle="", markersize=7, **_look(group)) for group in groups
    ]
    handles.append(Line2D([], [], label="a group's mean", markersize=14, **_MEAN))
    first = chosen[0]
    seen = (
        "features" if first.features is not None else "similarities" if first.alike else "distances"
    )
    return style.finished(
        figure,
        [run],
        handles,
        "; ".join(filter(None, [f"{seen} of devices ({first.measure})", part])),
    )


def _coordinates(clustering: Clustering) -> Floats:
    """Points [n, m] with the distances that the server saw, or near them; [n, 0] if it recorded
    none.
    """
    if clustering.features is not None:
        return clustering.features
    n = len(clustering.devices)
    if clustering.matrix is None:
        return np.empty((n, 0))
    near = clustering.matrix if clustering.alike else -(clustering.matrix**2) / 2
    near = np.where(np.isfinite(near), near, near.T)
    # pairs without a value lie far apart
    near = np.where(np.isfinite(near), near, near[np.isfinite(near)].min(initial=0.0))
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(centre @ (near + near.T) @ centre / 2)
    points: Floats = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
    return points


def principal_components(features: Floats) -> tuple[Floats, float]:
    """The centred features [n, m] along their first two principal axes [n, 2], and the share of
    variance along these.

    The largest entry of each axis is positive.
    """
    centred = np.pad(features - features.mean(axis=0), ((0, 0), (0, max(0, 2 - features.shape[1]))))
    _, values, axes = np.linalg.svd(
        np.vstack([centred, np.zeros((2, centred.shape[1]))]), full_matrices=False
    )
    first = axes[:2]
    first = first * np.sign(first[np.arange(2), np.abs(first).argmax(axis=1)])[:, None]
    total = float((values**2).sum())
    return centred @ first.T, float((values[:2] ** 2).sum()) / total if total else 0.0


def _draw_points(panel: Axes, groups: Ints, points: Floats) -> None:
    size = float(np.clip(2000 / len(points), 14, 60))
    panel.axhline(0, color=style.PALE, linewidth=1.2, zorder=0)
    panel.axvline(0, color=style.PALE, linewidth=1.2, zorder=0)
    for group in np.unique(groups):
        own = points[groups == group]
        look: dict[str, Any] = {
            "s": size,
            "edgecolor": "white",
            "linewidth": 0.5,
            "alpha": 0.85,
        } | _look(int(group))
        panel.scatter(own[:, 0], own[:, 1], gid=f"group-{group}", **look)
        panel.plot(*own.mean(axis=0), markersize=22, zorder=0.5, gid=f"mean-{group}", **_MEAN)
    panel.set_aspect("equal", adjustable="datalim")
    panel.margins(0.08)


def _look(group: int) -> dict[str, Any]:
    marker = style.SHAPES[group % len(style.SHAPES)] if group >= 0 else "."
    return {"label": group_name(group), "marker": marker, "color": _colour(group)}
