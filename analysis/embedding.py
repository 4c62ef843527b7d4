"""Embedding of devices that were put into groups: what the server clustered, coloured by group."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsim.analysis import style
from fedsim.analysis.similarity import Clustering, read_clusterings, some_of
from fedsim.arrays import Floats
from fedsim.language.units import show_seconds
from fedsim.records.history import History
from fedsim.records.reading import RunFolder

_PAIRS = 3  # features of so many dimensions are shown pair by pair, of more in their principal components
_WORDS = {"edc": "EDC features: cosines of each device's update with the leading singular directions of all updates"}


class _Scatter(NamedTuple):
    """A panel: points [n, 2], and the names of its axes."""

    clustering: Clustering
    title: str
    points: Floats
    x: str = ""
    y: str = ""


@style.styled
def draw_embedding(run: RunFolder) -> Figure:
    """The clustered points, one per device, with colour and shape by the group that was found; one panel per time.

    Points are features where some were recorded: FlexCFL's EDC embedding (Duan et al. 2021, Eq. 7). Of a similarity or a
    distance of every two devices they are what classical multidimensional scaling makes (Torgerson 1952), a similarity taken
    for the inner product of the two. Panels have the first two principal components, turned so that devices lie near where they
    lay in the panel before. Features that were clustered once are drawn in more detail.
    """
    found = [one for one in read_clusterings(History(run)) if len(one.devices) > 1 and _coordinates(one).size]
    if not found:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} has recorded neither features nor similarities of devices, so there is no embedding to draw"
        )
    chosen = some_of(found)
    features = found[0].features if len(found) == 1 else None
    views = _over_time(chosen) if features is None else _in_detail(found[0], features)
    columns = min(3, len(views))
    rows = math.ceil(len(views) / columns)
    side = style.WIDTH_IN / max(2, columns) - 0.2
    figure = Figure(figsize=(max(1.15 * columns, 1.3) * side, rows * (side + 0.4) + 1.1))
    panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for panel, view in zip(panels, views, strict=False):
        _draw_points(panel, view.clustering, view.points)
        panel.set(xlabel=view.x, ylabel=view.y)
        panel.set_title(view.title, fontsize=11)
    for panel in panels[len(views) :]:
        panel.set_axis_off()
    groups = [int(group) for group in np.unique(np.concatenate([view.clustering.groups for view in views]))]
    handles = [Line2D([], [], linestyle="", markersize=7, label=_name(group, chosen), **_look(group)) for group in groups]
    cross: dict[str, Any] = {"marker": "+", "color": style.BLACK, "markersize": 14, "markeredgewidth": 0.8}
    handles.append(Line2D([], [], linestyle="", label="a group's mean", **cross))
    return style.finished(figure, [run], handles, f"{_what(chosen[0])}; {_when(found, chosen)}")


def _name(group: int, chosen: Sequence[Clustering]) -> str:
    name = f"group {group}" if group >= 0 else "none"
    return f"{name}: {style.counted(int((chosen[0].groups == group).sum()), 'device')}" if len(chosen) == 1 else name


def _what(clustering: Clustering) -> str:
    measure = f" ({style.short(clustering.measure, 30)})" if clustering.measure else ""
    if clustering.features is not None:
        return _WORDS.get(clustering.measure, f"features{measure}")
    kind = "similar to each other" if clustering.similarity is not None else "distant from each other"
    return f"devices as {kind} as the server saw them{measure}"


def _when(found: Sequence[Clustering], chosen: Sequence[Clustering]) -> str:
    if len(found) == 1:
        return f"{len(found[0].devices)} devices after {show_seconds(found[0].time)}"
    part = f"{len(chosen)} of {len(found)}" if len(chosen) < len(found) else str(len(found))
    return f"{part} clusterings, each panel turned to match the one before"


def _coordinates(clustering: Clustering) -> Floats:
    """Points [n, m] whose distances are those that the server saw, or come near them; of no size where it recorded none."""
    if clustering.features is not None:
        return clustering.features
    n = len(clustering.devices)
    if clustering.matrix is None:
        return np.empty((n, 0))
    near = clustering.matrix if clustering.similarity is not None else -(clustering.matrix**2) / 2
    near = np.where(np.isfinite(near), near, near.T)
    near = np.where(np.isfinite(near), near, near[np.isfinite(near)].min(initial=0.0))  # who cannot be compared is far away
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(centre @ (near + near.T) @ centre / 2)
    points: Floats = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
    return points


def _over_time(chosen: Sequence[Clustering]) -> list[_Scatter]:
    """A panel a clustering: its two principal components, turned to match the panel before."""
    views: list[_Scatter] = []
    for clustering in chosen:
        points, shares = principal_components(_coordinates(clustering))
        points = points[:, :2]
        if views:
            before = views[-1]
            _, there, here = np.intersect1d(before.clustering.devices, clustering.devices, return_indices=True)
            points = turned(points, points[here], before.points[there])
        views.append(_Scatter(clustering, f"{clustering.title}\n{shares[:2].sum():.0%} of the variance", points))
    return views


def turned(points: Floats, some: Floats, to: Floats) -> Floats:
    """The points [n, 2] rotated or mirrored so that ``some`` [k, 2] of them come nearest ``to`` [k, 2] (Schoenemann 1966)."""
    from scipy.linalg import orthogonal_procrustes

    there: Floats = points @ orthogonal_procrustes(some, to)[0]
    return there


def _in_detail(clustering: Clustering, features: Floats) -> list[_Scatter]:
    """The panels of features that were clustered once."""
    dimensions = features.shape[1]
    if dimensions == 1:
        return [_Scatter(clustering, "", np.column_stack([features[:, 0], np.zeros(len(features))]), "dimension 1")]
    if dimensions <= _PAIRS:
        titles = {
            (x, y): "" if dimensions == 2 else f"dimensions {x + 1} and {y + 1}" for x, y in combinations(range(dimensions), 2)
        }
        return [
            _Scatter(clustering, title, features[:, [x, y]], f"dimension {x + 1}", f"dimension {y + 1}")
            for (x, y), title in titles.items()
        ]
    points, shares = principal_components(features)
    first, second, third = (f"component {place} ({share:.0%} of the variance)" for place, share in enumerate(shares, start=1))
    title = f"principal components 1 and {{}} of all {dimensions}"
    return [
        _Scatter(clustering, f"dimensions 1 and 2 of {dimensions}", features[:, :2], "dimension 1", "dimension 2"),
        _Scatter(clustering, title.format(2), points[:, :2], first, second),
        _Scatter(clustering, title.format(3), points[:, [0, 2]], first, third),
    ]


def principal_components(features: Floats) -> tuple[Floats, Floats]:
    """The centred features [n, m] along their first three principal axes, [n, 3], and each axis's share of the variance, [3].

    The sign of an axis is that with which its largest entry is positive.
    """
    centred = features - features.mean(axis=0)
    _, values, axes = np.linalg.svd(np.vstack([centred, np.zeros((3, centred.shape[1]))]), full_matrices=False)
    first = axes[:3]
    first = first * np.sign(first[np.arange(len(first)), np.abs(first).argmax(axis=1)])[:, None]
    total = float((values**2).sum())
    shares = values[:3] ** 2 / total if total else np.zeros(3)
    return centred @ first.T, shares


def _draw_points(panel: Axes, clustering: Clustering, points: Floats) -> None:
    size = float(np.clip(2000 / len(points), 14, 60))
    panel.axhline(0, color=style.PALE, linewidth=1.2, zorder=0)
    panel.axvline(0, color=style.PALE, linewidth=1.2, zorder=0)
    for group in np.unique(clustering.groups):
        own = points[clustering.groups == group]
        look: dict[str, Any] = {"s": size, "edgecolor": "white", "linewidth": 0.5, "alpha": 0.85} | _look(int(group))
        panel.scatter(own[:, 0], own[:, 1], gid=f"group-{group}", **look)
    for group in np.unique(clustering.groups):
        mean = points[clustering.groups == group].mean(axis=0)
        panel.plot(*mean, marker="+", color=style.BLACK, markersize=22, markeredgewidth=0.8, zorder=0.5, gid=f"mean-{group}")
    panel.set_aspect("equal", adjustable="datalim")
    panel.margins(0.08)


def _look(group: int) -> dict[str, Any]:
    if group < 0:
        return {"marker": ".", "color": style.GREY}
    return {"marker": style.SHAPES[group % len(style.SHAPES)], "color": style.group_colour(group)}
