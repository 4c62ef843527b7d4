"""Clusterings by models: similarities or distances of devices, and the devices as points."""

import math
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from fedsim.analysis import palette, style
from fedsim.analysis.style import group_name
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import RunFolderError
from fedsim.common.round_words import counted
from fedsim.common.units import show_seconds
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import RecordData
from fedsim.records.folder import EVENTS
from fedsim.records.reading import RunFolder

_MOST_CLUSTERINGS = 6  # greatest count of clusterings in a picture
_MOST_COLUMNS = 3  # greatest count of panels side by side
_MOST_NAMED = 40  # in a matrix of more devices than this, rows and columns have no device IDs
_MOST_SHARP = 400  # the cells of a matrix of more devices than this are smoothed
_STRIP = 0.035  # width of the strip of groups' colours, as a share of the matrix' width
_OVER_TIME_IN = 4.0
_PAIRS = {
    "alike": (palette.BLUE, "in one group, data alike"),
    "unlike": (palette.ORANGE, "in one group, data unlike"),
    "settled": (palette.GREY, "in a group whose data are all alike"),
    "within": (palette.BLUE, "in one group"),
    "across": (palette.PURPLE, "in two groups"),
}
"""Kind of pairs of devices in a record ``cosines`` -> colour and label in the picture.

The colours are as in CFL's Fig. 3, which leaves the last kind out.
"""
_SPLITS: palette.Look = {
    "color": palette.GREY,
    "linewidth": 0.9,
    "linestyle": (0, (4, 3)),
    "label": "a cluster splits",
}
_MEAN: palette.Look = {
    "marker": "+",
    "color": palette.BLACK,
    "linestyle": "",
    "markeredgewidth": 0.8,
}


@dataclass(frozen=True)
class Clustering:
    """Clustering of devices that the server of a run has computed, from a record ``clustering``.

    Attributes:
        title: text with the time of the clustering, and the counts of devices and groups.
        measure: name of the strategy's measure of similarity or distance.
        devices: IDs of the clustered devices, int64 [n].
        groups: group of each device, int64 [n].
        matrix: measure of each pair of devices, float64 [n, n]; None if not recorded.
        has_similarities: whether the matrix has similarities instead of distances.
        features: points of the devices that were clustered, float64 [n, m]; None if not recorded.
    """

    title: str
    measure: str
    devices: Ints
    groups: Ints
    matrix: Floats | None
    has_similarities: bool
    features: Floats | None


def read_clusterings(history: History) -> list[Clustering]:
    """Read every clustering of a run, in order of time.

    Raises:
        RunFolderError: the arrays of a clustering have different counts of devices.
    """
    clusterings = []
    for row in history.data("clustering"):
        clustering = _read_clustering(row)
        if not _is_consistent(clustering):
            raise RunFolderError(
                f"{EVENTS} of {str(history.run.path)!r} is damaged: the clustering at "
                f"{row['time']:g} s does not fit its {len(clustering.devices)} devices"
            )
        clusterings.append(clustering)
    return clusterings


def _read_clustering(row: RecordData) -> Clustering:
    """Return the clustering that a record ``clustering`` describes."""
    data = row["data"]
    devices = np.array(data["devices"], dtype=np.int64)
    groups = np.array(data["groups"], dtype=np.int64)
    similarities = data.get("similarity")
    distances = data.get("distance", data.get("distances"))  # PACFL's records have the plural key
    has_similarities = similarities is not None
    matrix = similarities if has_similarities else distances
    features = data.get("features")
    round_number = row["round"]
    moment = f"after {show_seconds(row['time'])}"
    if round_number is not None:
        moment = f"round {int(round_number)}"
    group_count = counted(len(np.unique(groups)), "group")
    return Clustering(
        title=f"{moment}: {counted(len(devices), 'device')} in {group_count}",
        measure=style.shorten(_measure_of(data), 30),
        devices=devices,
        groups=groups,
        matrix=None if matrix is None else np.array(matrix, dtype=np.float64),
        has_similarities=has_similarities,
        features=None if features is None else np.array(features, dtype=np.float64),
    )


def _measure_of(data: RecordData) -> str:
    """Return the name of the measure of similarity or distance in a record ``clustering``.

    PACFL's records do not name their measure, which is principal angles.
    """
    if "measure" in data:
        return str(data["measure"])
    return "principal angles, degrees" if "distances" in data else "measure not named"


def _is_consistent(clustering: Clustering) -> bool:
    """Whether the arrays of a clustering have the same count of devices."""
    n = len(clustering.devices)
    if len(clustering.groups) != n:
        return False
    if clustering.matrix is not None and clustering.matrix.shape != (n, n):
        return False
    features = clustering.features
    return features is None or (features.ndim == 2 and len(features) == n)


def _choose_clusterings(clusterings: list[Clustering]) -> tuple[list[Clustering], str]:
    """Choose at most ``_MOST_CLUSTERINGS`` clusterings, evenly spread.

    Returns:
        The clusterings, and a text such as "6 of 20 clusterings", which is empty if all are chosen.
    """
    if not clusterings:
        return [], ""
    indices = style.choose_evenly(len(clusterings), _MOST_CLUSTERINGS)
    selection = [clusterings[index] for index in indices]
    if len(selection) == len(clusterings):
        return selection, ""
    return selection, f"{len(selection)} of {len(clusterings)} clusterings"


def _make_panels(part: Figure | SubFigure, count: int) -> list[Axes]:
    """Return panels in rows of at most three; panels after the first ``count`` are blank."""
    rows = math.ceil(count / _MOST_COLUMNS)
    columns = min(_MOST_COLUMNS, count)
    panels = part.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[count:]:
        panel.set_axis_off()
    return list(panels)


@style.styled
def draw_similarity(run: RunFolder) -> Figure:
    """Draw a matrix of the similarities or distances of devices for each clustering by the server.

    - Devices are ordered by the groups into which the server put them. Titles have the mean of the
      pairs within groups, and of the pairs across groups; the diagonal is left out.
    - All panels share a scale. If some clusterings have similarities and others distances, only
      clusterings with the measure of the first one are drawn. Of more than six clusterings, six are
      drawn, evenly spread.
    - If cosines between updates were recorded (``evaluation.cosines``), a panel below has the
      cosines by round, within groups and across groups, as in CFL's Fig. 3.

    Raises:
        NothingToDrawError: the run has recorded neither similarities nor cosines.
    """
    history = History(run)
    clusterings = [
        clustering for clustering in read_clusterings(history) if clustering.matrix is not None
    ]
    cosines = history.data("cosines")
    if not clusterings and not cosines:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} has recorded no similarity of devices, so there is none to draw"
        )
    comparable = []
    for clustering in clusterings:
        if clustering.has_similarities == clusterings[0].has_similarities:
            comparable.append(clustering)
    selection, remark = _choose_clusterings(comparable)
    columns = min(_MOST_COLUMNS, len(selection))
    # width of the figure (inches) by count of columns
    width = {1: 8.6, 2: 12.0}.get(columns, style.WIDTH_IN)
    heights = []  # heights of the figure's parts (inches): the matrices, then the cosines
    if selection:
        # the subtracted inches leave room for a colour bar and labels beside the matrices
        side = (width - 1.7) / columns - 0.25
        rows = math.ceil(len(selection) / _MOST_COLUMNS)
        heights.append(rows * (side + 1.0) + 0.4)
    if cosines:
        heights.append(_OVER_TIME_IN)
    figure = Figure(figsize=(width, sum(heights)))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
    if selection:
        _draw_matrices(parts[0], selection)
    if cosines:
        _draw_over_time(parts[-1], cosines, history.of("cluster-split")["round"].to_numpy(int))
    return style.finish(figure, [run], [], remark)


def _draw_over_time(part: SubFigure, cosines: list[RecordData], splits: Ints) -> None:
    """Draw cosines of the updates of two devices by round, for each kind of pairs (``_PAIRS``).

    A line is the mean over the pairs; a band goes from the lowest to the highest.
    """
    panel = part.subplots()
    rounds = [row["round"] for row in cosines]
    unknown = [np.nan] * 3
    look: palette.Look = {"linewidth": 1.6, "marker": None}
    if len(rounds) < 2:  # a line of one point would not be seen
        look["marker"] = "."
    for kind, (colour, label) in _PAIRS.items():
        low, mean, high = np.array([row["data"].get(kind, unknown) for row in cosines]).T
        if np.isfinite(mean).any():
            panel.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
            panel.plot(rounds, mean, color=colour, label=label, gid=f"cosines-{kind}", **look)
    if len(splits):
        style.draw_verticals([panel], np.unique(splits), gid="splits", **_SPLITS)
    panel.axhline(0, color=palette.BLACK, linewidth=0.6)
    panel.set(
        xlabel="round", ylabel="cosine of the updates\nof two devices\n(mean, least to largest)"
    )
    style.set_whole_ticks(panel.xaxis, 12)
    part.legend(loc="outside lower center", ncols=3)


def _draw_matrices(part: SubFigure, selection: list[Clustering]) -> None:
    """Draw the matrices of clusterings on one colour scale, devices ordered by group.

    Args:
        part: the empty part of the figure.
        selection: the clusterings; they have matrices, either all of similarities or all of
            distances.
    """
    panels = _make_panels(part, len(selection))
    orders = [np.argsort(clustering.groups, kind="stable") for clustering in selection]
    matrices = []
    for clustering, order in zip(selection, orders, strict=True):
        matrices.append(_ordered_matrix(clustering, order))
    values = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    has_similarities = selection[0].has_similarities
    scale = _colour_scale(values, has_similarities=has_similarities)
    # there may be more panels than clusterings: the last panels are blank
    for panel, clustering, order, matrix in zip(panels, selection, orders, matrices, strict=False):
        interpolation = "nearest" if len(matrix) <= _MOST_SHARP else "antialiased"
        image = panel.imshow(matrix, interpolation=interpolation, gid="matrix", **scale)
        groups = clustering.groups[order]
        _mark_groups(panel, groups)
        _name_devices(panel, clustering.devices[order])
        panel.set_title(f"{clustering.title}\n{_means_in_words(groups, matrix)}", fontsize=11)
    bar = part.colorbar(image, ax=panels, shrink=0.75, aspect=30, pad=0.02)
    # The bar shows 0 and the values that occur. The scale itself also has colours for the negative
    # of each similarity, which may not occur.
    lowest = float(values.min(initial=0.0))
    highest = float(values.max(initial=0.0))
    bar.ax.set_ylim(lowest, highest if highest else 1.0)
    measure = "similarity" if has_similarities else "distance"
    bar.set_label(f"{measure} of two devices ({selection[0].measure})")


def _colour_scale(values: Floats, *, has_similarities: bool) -> palette.Look:
    """Return colours and limits for matrices, safe for the colour-blind, as options of ``imshow``.

    Similarities go from blue (negative) through white (0) to red. Distances begin at 0.

    Args:
        values: all finite values of the matrices; float64 [n].
        has_similarities: whether they are similarities instead of distances.
    """
    greatest = float(np.abs(values).max(initial=0.0))
    if not greatest:
        greatest = 1.0  # the two limits have to differ
    least = 0.0
    colour_map = "cividis"
    if has_similarities:
        least = -greatest  # 0 is then in the middle of the colours, which is white
        colour_map = "RdBu_r"
    # the diagonals of the matrices are NaN, drawn in the colour "bad"
    colours = matplotlib.colormaps[colour_map].with_extremes(bad="#BBBBBB")
    return {"cmap": colours, "vmin": least, "vmax": greatest}


def _ordered_matrix(clustering: Clustering, order: Ints) -> Floats:
    """Return the matrix with rows and columns reordered by ``order``; its diagonal is NaN."""
    assert clustering.matrix is not None
    matrix = clustering.matrix[np.ix_(order, order)]
    np.fill_diagonal(matrix, np.nan)
    return matrix


def _mark_groups(panel: Axes, groups: Ints) -> None:
    """Draw borders between groups, and colours and names of groups beside the matrix."""
    n = len(groups)
    borders = np.flatnonzero(np.diff(groups)) + 0.5
    panel.hlines(borders, -0.5, n - 0.5, color=palette.BLACK, linewidth=0.8)
    panel.vlines(borders, -0.5, n - 0.5, color=palette.BLACK, linewidth=0.8)
    width = n * _STRIP
    # the strips of colours are left of the matrix and above it, between these two coordinates
    inner = -0.5 - width / 5
    outer = -0.5 - width
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        first = members[0] - 0.5
        last = members[-1] + 0.5
        look = {"facecolor": _colour(group), "clip_on": False}
        style.draw_rectangles(panel, x0=outer, x1=inner, y0=first, y1=last, **look)
        style.draw_rectangles(panel, x0=first, x1=last, y0=outer, y1=inner, **look)
        if len(members) >= n / 30:
            panel.text(
                n - 0.5 + width / 2,
                members.mean(),
                group_name(group),
                va="center",
                ha="left",
                fontsize=9,
                rotation=270,
            )
    panel.set(xlim=(outer, n - 0.5), ylim=(n - 0.5, outer))
    panel.spines[:].set_visible(False)


def _means_in_words(groups: Ints, matrix: Floats) -> str:
    """Return a text with the means of the matrix within and across groups."""
    is_within = groups[:, None] == groups[None]
    is_finite = np.isfinite(matrix)
    means = []
    for word, is_of_kind in (("within", is_within), ("across", ~is_within)):
        values = matrix[is_of_kind & is_finite]
        if len(values):
            means.append(f"{word} {values.mean():.2g}")
    return f"mean {', '.join(means)}"


def _name_devices(panel: Axes, devices: Ints) -> None:
    """Label the rows and columns by device ID; by position if there are many devices."""
    n = len(devices)
    if n <= _MOST_NAMED:
        names = [str(device) for device in devices]
        panel.set_yticks(range(n), names, fontsize=7)
        panel.set_xticks(range(n), names, fontsize=7, rotation=90)
        panel.set_xlabel("device")
    else:
        style.set_whole_ticks(panel.xaxis, 6)
        style.set_whole_ticks(panel.yaxis, 6)
        panel.set_xlabel("devices, ordered by group")


def _colour(group: int) -> str:
    return palette.group_colour(int(group)) if group >= 0 else palette.GREY


@style.styled
def draw_embedding(run: RunFolder) -> Figure:
    """Draw the devices of each clustering as points, with colour and shape by group.

    Points are the recorded features, such as FlexCFL's EDC embedding (Duan et al. 2021, Eq. 7).
    Without features, classical multidimensional scaling (Torgerson 1952) computes points from the
    recorded distances, or from similarities, which it takes as inner products. A panel has the
    first two principal components of a clustering, turned or mirrored so that devices lie near
    their points in the panel before.

    Raises:
        NothingToDrawError: the run has recorded neither features nor similarities.
    """
    clusterings = []
    for clustering in read_clusterings(History(run)):
        if len(clustering.devices) > 1 and _coordinates(clustering).size:
            clusterings.append(clustering)
    if not clusterings:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} has recorded neither features nor similarities of devices, so "
            "there is no embedding to draw"
        )
    selection, remark = _choose_clusterings(clusterings)
    columns = min(_MOST_COLUMNS, len(selection))
    rows = math.ceil(len(selection) / _MOST_COLUMNS)
    side = style.WIDTH_IN / max(2, columns) - 0.2  # side of a panel (inches)
    width = max(1.15 * columns, 1.3) * side
    height = rows * (side + 0.4) + 1.1
    figure = Figure(figsize=(width, height))
    panels = _make_panels(figure, len(selection))
    previous: Clustering | None = None
    previous_points = np.empty((0, 2))
    for panel, clustering in zip(panels, selection, strict=False):
        points, share = principal_components(_coordinates(clustering))
        if previous is not None:
            points = _align(points, clustering, previous_points, previous)
        previous = clustering
        previous_points = points
        _draw_points(panel, clustering.groups, points)
        panel.set_title(f"{clustering.title}\n{share:.0%} of the variance", fontsize=11)
    handles = _embedding_legend(selection)
    source = f"{_source(selection[0])} of devices ({selection[0].measure})"
    words = f"{source}; {remark}" if remark else source
    return style.finish(figure, [run], handles, words)


def _align(
    points: Floats, clustering: Clustering, previous_points: Floats, previous: Clustering
) -> Floats:
    """Rotate or mirror points [n, 2] to be as close as possible to the devices' previous points.

    Source: P. H. Schoenemann, "A generalized solution of the orthogonal Procrustes problem",
    Psychometrika 31 (1966).
    """
    from scipy.linalg import orthogonal_procrustes

    _, in_previous, in_present = np.intersect1d(
        previous.devices, clustering.devices, return_indices=True
    )
    rotation, _ = orthogonal_procrustes(points[in_present], previous_points[in_previous])
    aligned: Floats = points @ rotation
    return aligned


def _embedding_legend(selection: list[Clustering]) -> list[Artist]:
    groups: set[int] = set()
    for clustering in selection:
        groups.update(clustering.groups.tolist())
    handles: list[Artist] = []
    for group in sorted(groups):
        handles.append(Line2D([], [], linestyle="", markersize=7, **_look(group)))
    handles.append(Line2D([], [], label="a group's mean", markersize=14, **_MEAN))
    return handles


def _source(clustering: Clustering) -> str:
    """Return the values from which a clustering's points are computed, such as ``distances``."""
    if clustering.features is not None:
        return "features"
    return "similarities" if clustering.has_similarities else "distances"


def _coordinates(clustering: Clustering) -> Floats:
    """Return points of the devices, float64 [n, m]: the features, or else points from the matrix.

    The distances of points from the matrix are about the distances in the matrix. If neither
    features nor a matrix was recorded, the result is [n, 0].
    """
    if clustering.features is not None:
        return clustering.features
    n = len(clustering.devices)
    if clustering.matrix is None:
        return np.empty((n, 0))
    # classical scaling: inner products B = -J D^2 J / 2 of distances D, with J = I - 1/n
    products = clustering.matrix if clustering.has_similarities else -(clustering.matrix**2) / 2
    products = np.where(np.isfinite(products), products, products.T)
    # a pair without a value counts as far apart
    is_finite = np.isfinite(products)
    products = np.where(is_finite, products, products[is_finite].min(initial=0.0))
    centring = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(centring @ (products + products.T) @ centring / 2)
    points: Floats = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
    return points


def principal_components(features: Floats) -> tuple[Floats, float]:
    """Project centred features onto their first two principal axes.

    Args:
        features: points in m dimensions, float64 [n, m]; not necessarily centred.

    Returns:
        Points [n, 2], and the share of the variance along the two axes (0..1). The direction of an
        axis is chosen so that the largest entry of its vector (by magnitude) is positive.
    """
    # columns and rows of zeros, so that there are two axes even with one feature or one device
    missing_columns = max(0, 2 - features.shape[1])
    centred = np.pad(features - features.mean(axis=0), ((0, 0), (0, missing_columns)))
    padded = np.vstack([centred, np.zeros((2, centred.shape[1]))])
    _, values, all_axes = np.linalg.svd(padded, full_matrices=False)
    axes = all_axes[:2]
    largest_entries = axes[np.arange(2), np.abs(axes).argmax(axis=1)]
    axes = axes * np.sign(largest_entries)[:, None]
    points = centred @ axes.T
    total = float((values**2).sum())
    if not total:
        return points, 0.0
    return points, float((values[:2] ** 2).sum()) / total


def _draw_points(panel: Axes, groups: Ints, points: Floats) -> None:
    """Draw devices as points [n, 2] in the looks of their groups, and the mean of each group."""
    size = float(np.clip(2000 / len(points), 14, 60))
    look: palette.Look = {"s": size, "edgecolor": "white", "linewidth": 0.5, "alpha": 0.85}
    panel.axhline(0, color=palette.PALE, linewidth=1.2, zorder=0)
    panel.axvline(0, color=palette.PALE, linewidth=1.2, zorder=0)
    for group in np.unique(groups):
        members = points[groups == group]
        gid = f"group-{group}"
        panel.scatter(members[:, 0], members[:, 1], gid=gid, **look, **_look(int(group)))
        panel.plot(*members.mean(axis=0), markersize=22, zorder=0.5, gid=f"mean-{group}", **_MEAN)
    panel.set_aspect("equal", adjustable="datalim")
    panel.margins(0.08)


def _look(group: int) -> palette.Look:
    marker = palette.SHAPES[group % len(palette.SHAPES)] if group >= 0 else "."
    return {"label": group_name(group), "marker": marker, "color": _colour(group)}
