"""Bytes by direction and purpose, over simulated time and in total, with the wasted part.

A byte is wasted when its task did not end as ``done``, or trained no epoch that counts, as in
``fedsim.records.ledger``. Bytes between parts of the server's side belong to no task and are never
wasted; the ledger counts them as up.
"""

from collections.abc import Sequence
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.style import Series, draw_mean_bar, group_by_scenario, name_bars
from fedsim.common.files import parse_json
from fedsim.common.units import show_bytes
from fedsim.lab.reading.history import History, parsed
from fedsim.records.folder import TRANSFERS
from fedsim.records.ledger import NOT_IN_PAPER, split_by_purpose
from fedsim.records.reading import RunFolder

_HUES = {
    "down": (style.SKY, style.PURPLE, style.YELLOW, "#882255"),
    "up": (style.BLUE, style.GREEN, style.ORANGE, "#999933"),
    "peer": (style.GREEN, style.PURPLE),
    "server": ("#332288", "#AA8866"),
}
_WAYS = {"down": "↓ down", "up": "↑ up", "peer": "⇄ peer", "server": "↔ within the server"}
_WASTED: dict[str, Any] = {
    "facecolor": "white",
    "edgecolor": style.VERMILLION,
    "hatch": "////",
    "linewidth": 0.8,
}
_POINTS = 800  # more points than pixels only make the SVG large
_BAR_IN = 0.62
_FRAME_IN = 2.0

_Kind = tuple[str, str]  # direction and purpose


@style.styled
def draw_traffic(run: RunFolder) -> Figure:
    """Bytes moved so far by direction and purpose, over simulated time and in total; what is
    hatched was wasted.
    """
    parts = read_parts(run)
    if parts.empty or parts["bytes"].sum() == 0:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} moved no bytes, so there is no traffic to draw"
        )
    colours = _colours(parts)
    figure = Figure(figsize=(style.WIDTH_IN, max(5.6, len(colours) * _BAR_IN + _FRAME_IN)))
    over_time, totals = figure.subplots(1, 2, width_ratios=(3, 2))
    handles: list[Artist] = [
        Patch(facecolor=colour, label=_label(kind)) for kind, colour in colours.items()
    ]
    handles.append(Patch(label="wasted: its task was late, lost, cut off or idle", **_WASTED))
    _plot_over_time(over_time, parts, colours)
    _plot_totals(totals, parts, colours)
    return style.finished(figure, [run], handles)


def read_parts(run: RunFolder) -> pd.DataFrame:
    """Each part of a message: ``end`` (s), ``direction`` (down, up, peer, server), ``purpose``,
    ``bytes``, ``wasted``.
    """
    rows = run.table(TRANSFERS).to_pandas()
    history = History(run)
    payloads = cache(parse_json)
    trained = history.steps.query("step == 'train' and data.notna()")
    idle = {
        task
        for task, data in zip(trained["task"], trained["data"], strict=True)
        if not parsed(data)["epochs"]
    }
    lost = {task for row in history.data("updates-lost") for task in row["data"]["tasks"]}
    done = set(history.tasks.query("outcome == 'done'")["task"]) - idle - lost
    outside = rows["device"].notna() | (rows["wire_bytes"] > 0) | (rows["direction"] == "peer")
    ways = rows["direction"].astype(str).where(outside, "server")
    columns = (
        rows["end"],
        ways,
        rows["delivered"],
        rows["task"],
        rows["device"].notna(),
        rows["payloads"],
    )
    parts = [
        (end, way, purpose, size, of_device and task not in done)
        for end, way, delivered, task, of_device, text in zip(*columns, strict=True)
        for purpose, size in split_by_purpose(payloads(text), delivered).items()
    ]
    return pd.DataFrame(parts, columns=["end", "direction", "purpose", "bytes", "wasted"]).astype(
        {"wasted": bool}
    )


def _colours(parts: pd.DataFrame) -> dict[_Kind, str]:
    """The colour of each kind of traffic: by direction, the largest first."""
    sums = (
        parts.groupby(["direction", "purpose"])["bytes"]
        .sum()
        .sort_values(ascending=False, kind="stable")
    )
    return {
        (way, str(purpose)): hues[place] if place < len(hues) else style.GREY
        for way, hues in _HUES.items()
        for place, purpose in enumerate(
            purpose for direction, purpose in sums.index if direction == way
        )
    }


def _label(kind: _Kind) -> str:
    return f"{_WAYS[kind[0]]}: {style.short(kind[1], 24)}"


def _plot_over_time(panel: Axes, parts: pd.DataFrame, colours: dict[_Kind, str]) -> None:
    """Draw stacked areas: the useful bytes of each kind, and the wasted ones on top."""
    end = float(parts["end"].max())
    time = style.unit_for(end, style.TIMES)
    size = style.unit_for(float(parts["bytes"].sum()), style.BYTES)
    moments = np.linspace(0.0, end, _POINTS)
    useful = dict([*parts[~parts["wasted"]].groupby(["direction", "purpose"])])
    layers = [
        (useful[kind], {"color": colour, "linewidth": 0})
        for kind, colour in colours.items()
        if kind in useful
    ]
    base = np.zeros_like(moments)
    for own, look in [*layers, (parts[parts["wasted"]], _WASTED)]:
        moved = (
            own.groupby("end")["bytes"]
            .sum()
            .cumsum()
            .reindex(moments, method="ffill", fill_value=0.0)
        )
        top = base + moved.to_numpy() / size.size
        panel.fill_between(moments / time.size, base, top, **look)
        base = top
    panel.plot(moments / time.size, base, color=style.BLACK, linewidth=1.2)
    panel.set(
        xlabel=f"simulated time ({time.name})",
        ylabel=f"moved so far ({size.name})",
        title="over time",
    )
    panel.set(xlim=(0, end / time.size or 1.0), ylim=(0, None))  # transfers may take no time
    panel.grid()


def _plot_totals(panel: Axes, parts: pd.DataFrame, colours: dict[_Kind, str]) -> None:
    sums = parts.pivot_table("bytes", ["direction", "purpose"], "wasted", "sum", fill_value=0.0)
    sums = sums.reindex(columns=[False, True], fill_value=0.0)
    unit = style.unit_for(float(sums.sum(axis=1).max()), style.BYTES)
    for place, (kind, colour) in enumerate(colours.items()):
        useful, wasted = sums.loc[[kind]].to_numpy(float)[0]
        panel.barh(place, useful / unit.size, color=colour, height=0.6)
        if wasted:
            panel.barh(place, wasted / unit.size, left=useful / unit.size, height=0.6, **_WASTED)
        panel.text(
            0, place - 0.36, f"{_label(kind)}   {_amount(useful + wasted, wasted)}", va="bottom"
        )
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.set_ylim(len(colours) - 0.5, -0.75)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
    panel.set_xlabel(f"moved in total ({unit.name})")
    panel.set_title(f"in total: {_amount(float(parts['bytes'].sum()), float(sums[True].sum()))}")


def _amount(total: float, wasted: float) -> str:
    """Total and the share that was wasted: ``"1.14 MB, 2.0% wasted"``."""
    return show_bytes(total) + (f", {wasted / total:.1%} wasted" if wasted else "")


# Purposes, of several runs: as bytes really moved, and as the papers count them.

# what nearly every strategy sends looks the same in every picture
_FIXED = {"model": style.SKY, "update": style.BLUE}
_OTHERS = (
    style.GREEN,
    style.ORANGE,
    style.PURPLE,
    style.VERMILLION,
    style.YELLOW,
    "#332288",
    "#882255",
    "#999933",
)


@style.styled
def draw_purposes_compared(
    runs: Sequence[RunFolder], series: Sequence[Series] | None = None
) -> Figure:
    """Bytes by purpose, all that moved and as papers count them, the mean of the seeds of a
    scenario.

    One bar per series, by default the runs of a scenario: both directions together, with a line
    over the range of seeds.
    """
    series = group_by_scenario(runs) if series is None else series
    table = [
        pd.DataFrame([run.summary["bytes"]["by_purpose"] for run in one.runs], dtype=float).fillna(
            0.0
        )
        for one in series
    ]
    most = max(float(seeds.sum(axis=1).max()) for seeds in table)
    if not most:
        raise style.NothingToDrawError(
            "none of these runs moved any bytes, so there is no traffic to draw"
        )
    colours = _colours_of_purposes(pd.DataFrame([seeds.mean() for seeds in table]))
    unit = style.unit_for(most, style.BYTES)
    figure = Figure(figsize=(style.WIDTH_IN, 2.6 + 0.5 * len(series)))
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    looks = {purpose: {"color": colour} for purpose, colour in colours.items()}
    paper = [purpose for purpose in colours if purpose not in NOT_IN_PAPER]
    titles = (
        "everything that moved (strict)",
        "models and updates only, as the papers count (paper)",
    )
    for panel, kept, title in zip(panels, (list(colours), paper), titles, strict=True):
        for place, seeds in enumerate(table):
            own = seeds.reindex(columns=kept, fill_value=0.0)
            draw_mean_bar(panel, place, own / unit.size, looks, show_bytes(float(own.mean().sum())))
        panel.set_title(title, fontsize=11)
        panel.set_xlabel(f"moved in total, down and up ({unit.name})")
        panel.xaxis.set_major_locator(MaxNLocator(nbins=7))
    name_bars(panels[0], [one.label for one in series])
    panels[0].set_xlim(0, most / unit.size * 1.22)  # room for what is written beside the bars
    handles = [
        Patch(facecolor=colour, label=style.short(purpose, 24))
        for purpose, colour in colours.items()
    ]
    return style.finished(figure, runs, handles)


def _colours_of_purposes(means: pd.DataFrame) -> dict[str, str]:
    """A colour a purpose, models and updates first, then the others by size."""
    sums = means.sum().sort_values(ascending=False, kind="stable")
    others = [str(purpose) for purpose in sums.index if purpose not in _FIXED]
    looks = _FIXED | dict(zip(others, cycle(_OTHERS), strict=False))
    return {purpose: colour for purpose, colour in looks.items() if sums.get(purpose, 0.0) > 0}
