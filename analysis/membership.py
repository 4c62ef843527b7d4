"""Who was in which group when: a row a device, its colour the group, with moves, shifts, newcomers and leavers.

Under the rows stand how many moves and shifts of data there were, round by round, the groups' sizes, and how well the groups
agree with the true ones, where the truth is known.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedsim.analysis import style
from fedsim.analysis.marks import MOVE, draw_marks
from fedsim.analysis.moves import NO_GROUP, Membership, read_membership
from fedsim.analysis.view import MOST_LANES
from fedsim.records.folder import ROUNDS
from fedsim.records.reading import RunFolder

_ROW_IN, _LEAST_IN, _MOST_IN = 0.13, 2.4, 7.4  # the rows' height: so much a device, within these limits
_STRIP_IN, _SIZES_IN, _AGREEMENT_IN, _FRAME_IN = 0.85, 1.6, 1.3, 1.9
_NAMED_ROWS = 60  # with more, rows are too thin to be named
_GAPPED_ROWS = 150
_MANY = 4000  # rows: as vectors they would make the SVG large and slow
_NUMBERS = 24  # more round numbers run into one another
_MOST_NAMED = 20  # more groups are not named in the legend
_BARS = 150  # of the strip: more are too thin
_NONE: dict[str, Any] = {"facecolor": "#DDDDDD"}
_SHIFT = style.GREY
_SPLIT: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.1, "linestyle": (0, (5, 3))}
_AGREEMENT: dict[str, dict[str, Any]] = {
    "purity": {"color": style.BLACK, "linestyle": "-"},
    "ari": {"color": style.VERMILLION, "linestyle": "--"},
    "nmi": {"color": style.BLUE, "linestyle": ":"},
}
_AGREEMENT_WORDS = {"purity": "purity", "ari": "adjusted Rand index", "nmi": "normalised mutual information"}


@style.styled
def draw_membership(run: RunFolder, *, devices: int = MOST_LANES) -> Figure:
    """Which group each device was in, over simulated time.

    Rows are ordered by the devices' last groups, then by when they first had one. A row begins when its device arrives and ends
    when it departs. Group sizes count all devices, shown or not.

    Args:
        run: the run.
        devices: show at most so many rows, evenly spread over the order.

    Raises:
        NothingToDrawError: no device was ever put into a group.
        PictureError: fewer than one device is asked for.
        RunFolderError: the folder is damaged.
    """
    if devices < 1:
        raise style.PictureError(f"the number of devices is {devices}; allowed is 1 or more")
    membership = read_membership(run)
    if membership.moves.empty or not membership.end:
        raise style.NothingToDrawError(f"{str(run.path)!r} never puts a device into a group, so there is no membership to draw")
    order = membership.order()
    shown = order[style.evenly(len(order), devices)]
    agreement = _read_agreement(run)
    unit = style.time_unit(membership.end)

    heights = {"rows": float(np.clip(len(shown) * _ROW_IN, _LEAST_IN, _MOST_IN))}
    if len(membership.migrations) or len(membership.shifts):
        heights["strip"] = _STRIP_IN
    heights["sizes"] = _SIZES_IN
    if len(agreement):
        heights["agreement"] = _AGREEMENT_IN
    figure = Figure(figsize=(style.WIDTH_IN, sum(heights.values()) + _FRAME_IN))
    panels = figure.subplot_mosaic([[name] for name in heights], sharex=True, height_ratios=list(heights.values()))

    panels["rows"].set_xlim(0, membership.end / unit.size)  # of all panels
    handles = _draw_rows(panels["rows"], membership, shown, unit.size)
    if "strip" in panels:
        _draw_strip(panels["strip"], membership, unit.size)
    _draw_sizes(panels["sizes"], membership, unit.size)
    if "agreement" in panels:
        handles += _draw_agreement(panels["agreement"], agreement, unit.size)
    if len(membership.splits):
        _draw_splits(list(panels.values()), membership, unit.size)
    _number_rounds(panels["rows"], membership, unit.size)
    list(panels.values())[-1].set_xlabel(f"simulated time ({unit.name})")
    figure.suptitle(_title(run, membership, len(shown)), fontsize=12)
    style.legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


def _title(run: RunFolder, membership: Membership, shown: int) -> str:
    final = membership.final
    counts = [f"{len(final):,} devices" if shown == len(final) else f"{shown:,} of {len(final):,} devices"]
    counts += [
        style.counted(len(membership.groups), "group"),
        style.counted(int((membership.migrations["why"] != "split").sum()), "move") + " between them",
    ]
    for table, word in (
        (membership.shifts, "data shift"),
        (membership.arrivals, "newcomer"),
        (membership.departures, "departure"),
        (membership.splits, "split"),
    ):
        if len(table):
            counts.append(style.counted(len(table), word))
    without = int((final == NO_GROUP).sum())
    if without:
        counts.append(f"{without:,} without a group at the end")
    return f"{style.headline(run)}\n{', '.join(counts)}"


# Rows.


def _draw_rows(panel: Axes, membership: Membership, shown: NDArray[np.int64], unit: float) -> list[Artist]:
    """Each device's stays as bars, and marks where something happened to it; returns the legend's entries."""
    row = pd.Series(np.arange(len(shown), dtype=float), index=shown)
    half = 0.42 if len(shown) <= _GAPPED_ROWS else 0.5
    stays = membership.stays[membership.stays["device"].isin(shown)]
    rasterized = len(stays) > _MANY or len(shown) > _GAPPED_ROWS
    handles: list[Artist] = []
    groups = membership.groups
    for group in [*groups, NO_GROUP]:
        own = stays[stays["group"] == group]
        look = _look(group)
        if len(own):
            place = own["device"].map(row).to_numpy(float)
            start, end = own["start"].to_numpy(float) / unit, own["end"].to_numpy(float) / unit
            bars = style.rectangles(start, end, place - half, place + half, gid=f"group-{group}", **look)
            bars.set_rasterized(rasterized)
            panel.add_collection(bars, autolim=False)
        if group == NO_GROUP and len(own):
            handles.append(Patch(label="no group", **look))
        elif group != NO_GROUP and len(groups) <= _MOST_NAMED:
            handles.append(Patch(label=f"group {group}", **look))
    panel.set_ylim(len(shown) - 0.5, -0.5)
    handles += draw_marks(panel, membership, row, unit)
    if len(membership.splits):
        handles.append(Line2D([], [], label="a group splits", **_SPLIT))
    _name_rows(panel, membership, shown)
    return handles


def _look(group: int) -> dict[str, Any]:
    return _NONE if group == NO_GROUP else {"facecolor": style.group_colour(group)}


def _name_rows(panel: Axes, membership: Membership, shown: NDArray[np.int64]) -> None:
    """Device numbers on the left if there is room, and on the right each last group's block with its members."""
    if len(shown) <= _NAMED_ROWS:
        panel.set_yticks(range(len(shown)), [str(device) for device in shown], fontsize=7)
        panel.tick_params(axis="y", length=0, pad=6)  # room for marks at the very beginning
        panel.set_ylabel("device, by last group\nand first assignment")
    else:
        panel.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        panel.set_ylabel("devices, by last group\nand first assignment")
    final = membership.final
    totals = final.value_counts()
    groups = final.reindex(shown).to_numpy()
    blocks = [int(group) for group in pd.unique(groups)]
    middles = np.array([np.flatnonzero(groups == group).mean() for group in blocks])
    edges = np.flatnonzero(np.diff(groups)) + 0.5
    panel.hlines(edges, 0, 1, transform=panel.get_yaxis_transform(), color=style.BLACK, linewidth=0.7, zorder=2)
    height = float(np.clip(len(shown) * _ROW_IN, _LEAST_IN, _MOST_IN))
    labels = style.spread(middles, len(shown) * 0.17 / height)
    labels -= max(0.0, labels.max(initial=0) - (len(shown) - 0.5))
    for group, y in zip(blocks, labels, strict=True):
        name = "no group" if group == NO_GROUP else f"group {group}"
        style.write_beside(panel, y, f"{name}: {totals[group]:,}", 8, fontsize=9)


def _number_rounds(panel: Axes, membership: Membership, unit: float) -> None:
    """Round numbers above the rows, each at its round's end."""
    step, last = style.step_for(len(membership.rounds), _NUMBERS), -np.inf
    shown: dict[int, float] = {}
    for number, end in enumerate(membership.rounds, start=1):
        if number % step == 0 and end - last >= membership.end / 40:
            shown[number] = last = float(end)
    if not shown:
        return
    above = panel.secondary_xaxis("top")
    above.set_xticks([end / unit for end in shown.values()], [str(number) for number in shown])
    above.tick_params(length=3, pad=1)
    above.set_xlabel("rounds that have ended", fontsize=10)


def _draw_splits(panels: list[Axes], membership: Membership, unit: float) -> None:
    for panel in panels:
        times = np.unique(membership.splits) / unit
        panel.vlines(times, 0, 1, transform=panel.get_xaxis_transform(), zorder=2, gid="splits", **_SPLIT)


# Below the rows.


def _draw_strip(panel: Axes, membership: Membership, unit: float) -> None:
    """How many moved and how many shifted, a bar a round, or a bar several rounds where there are too many."""
    every = style.step_for(len(membership.rounds), _BARS)
    edges = np.array([0.0, *membership.rounds[every - 1 :: every], membership.end])
    bars = len(edges) - 1
    moved, shifted = (
        np.bincount(table["round"] // every, minlength=bars).astype(np.float64)
        for table in (membership.migrations, membership.shifts)
    )
    left, right = edges[:-1] / unit, edges[1:] / unit
    zero = np.zeros(bars)
    panel.add_collection(style.rectangles(left, right, zero, moved, facecolor=MOVE, gid="moved"), autolim=False)
    panel.add_collection(style.rectangles(left, right, -shifted, zero, facecolor=_SHIFT, gid="shifted"), autolim=False)
    most = max(1, int(moved.max()), int(shifted.max()))
    panel.set_ylim(-1.15 * most if shifted.any() else 0, 1.15 * most)
    panel.axhline(0, color=style.BLACK, linewidth=0.6)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    panel.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    words = [("↑ moves", bool(len(membership.migrations))), ("↓ shifts", bool(shifted.any()))]
    where = "a round" if every == 1 else f"in {every} rounds"
    panel.set_ylabel("\n".join([*(word for word, there in words if there), where]), fontsize=9)


def _draw_sizes(panel: Axes, membership: Membership, unit: float) -> None:
    """The groups' sizes, one on the other, those without a group on top."""
    groups = [*membership.groups, NO_GROUP]
    sizes = [membership.sizes(group) for group in groups]
    times = np.unique(np.concatenate([at for at, _ in sizes]))
    base = np.zeros(len(times))
    edge = np.append(times, membership.end) / unit
    for group, (at, members) in zip(groups, sizes, strict=True):
        top = base + members[np.searchsorted(at, times, side="right") - 1]
        low, high = np.append(base, base[-1:]), np.append(top, top[-1:])
        panel.fill_between(edge, low, high, step="post", linewidth=0, gid=f"size-{group}", **_look(group))
        panel.step(edge, np.append(top, top[-1:]), where="post", color="white", linewidth=0.8)
        base = top
    panel.step(edge, np.append(base, base[-1:]), where="post", color=style.BLACK, linewidth=1.0)
    panel.set_ylim(0, max(1.0, base.max() * 1.05))
    panel.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    panel.set_ylabel("devices\nin groups", fontsize=10)


def _read_agreement(run: RunFolder) -> pd.DataFrame:
    """The rounds for which the groups were compared with the true ones: ``time`` (s), ``purity``, ``ari``, ``nmi``."""
    table = run.table(ROUNDS)
    if not set(_AGREEMENT) <= set(table.column_names):  # a run of an older version
        return pd.DataFrame()
    agreement: pd.DataFrame = table.select(["time", *_AGREEMENT]).to_pandas()
    return agreement.dropna()


def _draw_agreement(panel: Axes, agreement: pd.DataFrame, unit: float) -> list[Artist]:
    for name, look in _AGREEMENT.items():
        panel.plot(agreement["time"] / unit, agreement[name], linewidth=1.6, label=_AGREEMENT_WORDS[name], gid=name, **look)
    panel.set_ylim(min(0.0, float(agreement[list(_AGREEMENT)].min().min()) * 1.1) - 0.04, 1.04)
    panel.set_ylabel("agreement\nwith truth", fontsize=10)
    panel.grid(color=style.PALE, linewidth=1)
    return panel.get_legend_handles_labels()[0]
