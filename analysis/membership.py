"""Group membership over time."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import style
from fedsim.analysis.lanes import MANY_BARS, MOST_LANES, mark_rows, number_rounds
from fedsim.arrays import Ints
from fedsim.records.folder import ROUNDS
from fedsim.records.history import NO_GROUP, History
from fedsim.records.reading import RunFolder

_ROW_IN, _LEAST_IN, _MOST_IN = 0.13, 2.4, 7.4  # the rows' height: so much a device, within these limits
_STRIP_IN, _SIZES_IN, _AGREEMENT_IN, _FRAME_IN = 0.85, 1.6, 1.3, 1.9
_NAMED_ROWS = 60  # with more, rows are too thin to be named
_GAPPED_ROWS = 150
_MOST_NAMED = 20  # more groups are not named in the legend
_BARS = 150  # of the strip: more are too thin
_NONE: dict[str, Any] = {"facecolor": "#DDDDDD"}
_SPLIT: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.1, "linestyle": (0, (5, 3))}
_AGREEMENT: dict[str, dict[str, Any]] = {
    "purity": {"label": "purity", "color": style.BLACK, "linestyle": "-"},
    "ari": {"label": "adjusted Rand index", "color": style.VERMILLION, "linestyle": "--"},
    "nmi": {"label": "normalised mutual information", "color": style.BLUE, "linestyle": ":"},
}


@style.styled
def draw_membership(run: RunFolder, *, devices: int = MOST_LANES) -> Figure:
    """A row a device, its colour the group that it is in; marks show moves, shifts of data, newcomers and leavers, and below it
    stand the sizes of the groups and how well they agree with the true ones where these are known.

    Rows are ordered by the devices' last groups, then by when they first had one; at most ``devices`` are shown, evenly spread
    over that order. Group sizes count all devices.
    """
    if devices < 1:
        raise style.PictureError(f"the number of devices is {devices}; allowed is 1 or more")
    history = History(run)
    if history.moves.empty or not history.end:
        raise style.NothingToDrawError(f"{str(run.path)!r} never puts a device into a group, so there is no membership to draw")
    order = history.order()
    shown = order[style.evenly(len(order), devices)]
    rounds = run.table(ROUNDS).to_pandas()
    agreement = rounds.reindex(columns=["time", *_AGREEMENT]).dropna()  # a run of an older version lacks these columns
    counts = history.marks["kind"].value_counts()
    splits = history.of("cluster-split")["time"].to_numpy(float)
    unit = style.time_unit(history.end)

    heights = {"rows": float(np.clip(len(shown) * _ROW_IN, _LEAST_IN, _MOST_IN))}
    if {"move", "shift"} & set(counts.index):
        heights["strip"] = _STRIP_IN
    heights["sizes"] = _SIZES_IN
    if len(agreement):
        heights["agreement"] = _AGREEMENT_IN
    figure = Figure(figsize=(style.WIDTH_IN, sum(heights.values()) + _FRAME_IN))
    panels = figure.subplot_mosaic([[name] for name in heights], sharex=True, height_ratios=list(heights.values()))

    panels["rows"].set_xlim(0, history.end / unit.size)  # of all panels
    handles = _draw_rows(panels["rows"], history, shown, unit.size)
    if len(splits):
        handles.append(Line2D([], [], label="a group splits", **_SPLIT))
        style.across(panels.values(), np.unique(splits) / unit.size, zorder=2, gid="splits", **_SPLIT)
    _name_rows(panels["rows"], history, shown)
    if "strip" in panels:
        _draw_strip(panels["strip"], history, unit.size)
    _draw_sizes(panels["sizes"], history, unit.size)
    if "agreement" in panels:
        handles += _draw_agreement(panels["agreement"], agreement, unit.size)
    ends = history.rounds["end"].to_numpy() / unit.size
    number_rounds(panels["rows"], np.arange(1, len(ends) + 1), ends, "rounds that have ended", tick=3)
    list(panels.values())[-1].set_xlabel(f"simulated time ({unit.name})")
    return style.finished(figure, [run], handles, _counts(history, len(shown), counts, len(splits)))


def _counts(history: History, shown: int, counts: "pd.Series[int]", splits: int) -> str:
    final = history.final
    words = [f"{len(final):,} devices" if shown == len(final) else f"{shown:,} of {len(final):,} devices"]
    moves = style.counted(int((history.migrations["why"] != "split").sum()), "move")
    words += [style.counted(len(history.groups), "group"), f"{moves} between them"]
    names = {"shift": "data shift", "arrival": "newcomer", "departure": "departure"}
    words += [style.counted(counts[kind], word) for kind, word in names.items() if kind in counts]
    words += [style.counted(splits, "split")] if splits else []
    without = int((final == NO_GROUP).sum())
    words += [f"{without:,} without a group at the end"] if without else []
    return ", ".join(words)


# Rows.


def _draw_rows(panel: Axes, history: History, shown: Ints, unit: float) -> list[Artist]:
    """Each device's stays as bars, and marks where something happened to it; returns the legend's entries."""
    row = pd.Series(np.arange(len(shown), dtype=float), index=shown)
    half = 0.42 if len(shown) <= _GAPPED_ROWS else 0.5
    stays = history.stays[history.stays["device"].isin(shown)]
    many = len(stays) > MANY_BARS or len(shown) > _GAPPED_ROWS
    handles: list[Artist] = []
    groups = history.groups
    for group in [*groups, NO_GROUP]:
        own = stays[stays["group"] == group]
        if len(own):
            start, end = (own[name].to_numpy(float) / unit for name in ("start", "end"))
            style.bars(panel, start, end, own["device"].map(row), half, gid=f"group-{group}", rasterized=many, **_look(group))
        if len(own) if group == NO_GROUP else len(groups) <= _MOST_NAMED:
            handles.append(Patch(label=_name(group), **_look(group)))
    panel.set_ylim(len(shown) - 0.5, -0.5)
    return handles + mark_rows(panel, history, row, unit)


def _look(group: int) -> dict[str, Any]:
    return _NONE if group == NO_GROUP else {"facecolor": style.group_colour(group)}


def _name(group: int) -> str:
    return "no group" if group == NO_GROUP else f"group {group}"


def _name_rows(panel: Axes, history: History, shown: Ints) -> None:
    """Device numbers on the left if there is room, and on the right each last group's block with its members."""
    if len(shown) <= _NAMED_ROWS:
        panel.set_yticks(range(len(shown)), [str(device) for device in shown], fontsize=7)
        panel.tick_params(axis="y", length=0, pad=6)  # room for marks at the very beginning
        panel.set_ylabel("device, by last group\nand first assignment")
    else:
        style.whole_ticks(panel.yaxis, 6)
        panel.set_ylabel("devices, by last group\nand first assignment")
    totals = history.final.value_counts()
    groups = history.final.reindex(shown).to_numpy()
    blocks = [int(group) for group in pd.unique(groups)]
    middles = np.array([np.flatnonzero(groups == group).mean() for group in blocks])
    edges = np.flatnonzero(np.diff(groups)) + 0.5
    panel.hlines(edges, 0, 1, transform=panel.get_yaxis_transform(), color=style.BLACK, linewidth=0.7, zorder=2)
    height = float(np.clip(len(shown) * _ROW_IN, _LEAST_IN, _MOST_IN))
    labels = style.spread(middles, len(shown) * 0.17 / height)
    labels -= max(0.0, labels.max(initial=0) - (len(shown) - 0.5))
    for group, y in zip(blocks, labels, strict=True):
        style.write_beside(panel, y, f"{_name(group)}: {totals[group]:,}", 8, fontsize=9)


# Below the rows.


def _draw_strip(panel: Axes, history: History, unit: float) -> None:
    """Numbers of devices that moved and that shifted, a bar a round, or a bar several rounds where there are too many."""
    every = style.step_for(len(history.rounds), _BARS)
    edges = np.array([0.0, *history.rounds["end"][every - 1 :: every], history.end]) / unit
    periods = history.marks["period"] // every
    moved, shifted = (
        np.bincount(periods[history.marks["kind"] == kind], minlength=len(edges) - 1).astype(float)
        for kind in ("move", "shift")
    )
    style.rectangles(panel, edges[:-1], edges[1:], 0.0, moved, facecolor=style.BLACK, gid="moved")
    style.rectangles(panel, edges[:-1], edges[1:], -shifted, 0.0, facecolor=style.GREY, gid="shifted")
    most = max(1, int(moved.max()), int(shifted.max()))
    panel.set_ylim(-1.15 * most if shifted.any() else 0, 1.15 * most)
    panel.axhline(0, color=style.BLACK, linewidth=0.6)
    style.whole_ticks(panel.yaxis, 3)
    panel.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    words = [word for word, counts in (("↑ moves", moved), ("↓ shifts", shifted)) if counts.any()]
    panel.set_ylabel("\n".join([*words, "a round" if every == 1 else f"in {every} rounds"]), fontsize=9)


def _draw_sizes(panel: Axes, history: History, unit: float) -> None:
    """The groups' sizes, one on the other, those without a group on top."""
    sizes = {group: history.sizes(group) for group in [*history.groups, NO_GROUP]}
    times = np.unique(np.concatenate([at for at, _ in sizes.values()]))
    edge = np.append(times, history.end) / unit
    base = np.zeros(len(edge))
    for group, (at, members) in sizes.items():
        inside = members[np.searchsorted(at, times, side="right") - 1]
        top = base + np.append(inside, inside[-1:])
        panel.fill_between(edge, base, top, step="post", linewidth=0, gid=f"size-{group}", **_look(group))
        panel.step(edge, top, where="post", color="white", linewidth=0.8)
        base = top
    panel.step(edge, base, where="post", color=style.BLACK, linewidth=1.0)
    panel.set_ylim(0, max(1.0, base.max() * 1.05))
    style.whole_ticks(panel.yaxis, 4)
    panel.set_ylabel("devices\nin groups", fontsize=10)


def _draw_agreement(panel: Axes, agreement: pd.DataFrame, unit: float) -> list[Artist]:
    for name, look in _AGREEMENT.items():
        panel.plot(agreement["time"] / unit, agreement[name], linewidth=1.6, gid=name, **look)
    panel.set_ylim(min(0.0, float(agreement[list(_AGREEMENT)].min().min()) * 1.1) - 0.04, 1.04)
    panel.set_ylabel("agreement\nwith truth", fontsize=10)
    panel.grid(color=style.PALE, linewidth=1)
    return panel.get_legend_handles_labels()[0]
