"""Where the bytes went: by direction and purpose, over simulated time and in total, with what was wasted.

A byte is wasted when the task that moved it did not end as ``done``, or trained without an epoch that counts: the same rule,
and the same split of a message into its purposes, as the ledger's (``fedsim.records.ledger``). What parts of the server's side
send each other belongs to no task, is never wasted, and is drawn as a direction of its own; the ledger counts it as up.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.activity import read_activity
from fedsim.analysis.series import Series
from fedsim.arrays import Floats
from fedsim.language.units import show_bytes
from fedsim.records.folder import TRANSFERS
from fedsim.records.ledger import NOT_IN_PAPER, split_by_purpose
from fedsim.records.reading import RunFolder

_HUES = {
    "down": (style.SKY, style.PURPLE, style.YELLOW, "#882255"),
    "up": (style.BLUE, style.GREEN, style.ORANGE, "#999933"),
    "peer": (style.GREEN, style.PURPLE),
    "server": ("#332288", "#AA8866"),
}
_ARROWS = {"down": "↓", "up": "↑", "peer": "⇄", "server": "↔"}
_PAPER: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.2, "linestyle": (0, (5, 3))}
_WASTED: dict[str, Any] = {"facecolor": "white", "edgecolor": style.VERMILLION, "hatch": "////", "linewidth": 0.8}
_WASTED_MEANING = "wasted: its task was late, lost, cut off or idle"
_POINTS = 800  # more points than pixels only make the SVG large


@style.styled
def draw_traffic(run: RunFolder) -> Figure:
    """Cumulative bytes over simulated time, stacked, and beside it each kind's total with its wasted part.

    A broken line is the ledger's ``paper`` view: without what papers leave out, in the whole, wasted or not.

    Raises:
        NothingToDrawError: the run moved no bytes.
        RunFolderError: the folder is damaged.
    """
    parts = read_parts(run)
    if parts.empty or parts["bytes"].sum() == 0:
        raise style.NothingToDrawError(f"{str(run.path)!r} moved no bytes, so there is no traffic to draw")
    colours = _colours(parts)
    figure = Figure(figsize=(style.WIDTH_IN, 5.6))
    over_time, totals = figure.subplots(1, 2, width_ratios=(3, 2))
    _plot_over_time(over_time, parts, colours)
    _plot_totals(totals, parts, colours)
    figure.suptitle(style.headline(run))
    handles: list[Artist] = [Patch(facecolor=colour) for colour in colours.values()]
    labels = [_label(*kind) for kind in colours]
    if parts["purpose"].isin(NOT_IN_PAPER).any():
        paper = show_bytes(float(parts.loc[~parts["purpose"].isin(NOT_IN_PAPER), "bytes"].sum()))
        handles.append(Line2D([], [], **_PAPER))
        labels.append(f"all as the papers count it: models and updates, {paper}")
    style.legend_below(figure, [*handles, Patch(**_WASTED)], [*labels, _WASTED_MEANING])
    return figure


@style.styled
def draw_traffic_compared(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """A bar a run: what it moved down, up and within the server's side and was of use, and what was wasted.

    Runs are called after their folders, unless ``series`` has one for each, with its name.

    Raises:
        NothingToDrawError: none of the runs moved any bytes.
        RunFolderError: a folder is damaged.
    """
    ledgers = [read_parts(run) for run in runs]
    totals = [float(parts["bytes"].sum()) for parts in ledgers]
    if not any(totals):
        raise style.NothingToDrawError("none of these runs moved any bytes, so there is no traffic to draw")
    unit = style.bytes_unit(max(totals))
    ways = [way for way in _HUES if any((parts["direction"] == way).any() for parts in ledgers)]
    figure = Figure(figsize=(style.WIDTH_IN, 2.0 + 0.55 * len(runs)))
    panel = figure.subplots()
    for place, (parts, total) in enumerate(zip(ledgers, totals, strict=True)):
        useful = parts[~parts["wasted"]].groupby("direction")["bytes"].sum()
        wasted = float(parts.loc[parts["wasted"], "bytes"].sum()) / unit.size
        base = 0.0
        for way in ways:
            moved = float(useful.get(way, 0.0)) / unit.size
            panel.barh(place, moved, left=base, color=_HUES[way][0], height=0.6)
            base += moved
        if wasted:
            panel.barh(place, wasted, left=base, height=0.6, **_WASTED)
        panel.annotate(
            _amount(total, wasted * unit.size), (total / unit.size, place), (6, 0), textcoords="offset points", va="center"
        )
    panel.set_yticks(range(len(runs)), style.run_names(runs) if series is None else [one.name for one in series])
    panel.set_ylim(len(runs) - 0.5, -0.5)
    panel.set_xlim(0, max(totals) / unit.size * 1.2)  # room for what is written beside the bars
    panel.set_xlabel(f"moved in total ({unit.name})")
    figure.suptitle(style.headline_of(runs))
    handles = [*(Patch(facecolor=_HUES[way][0]) for way in ways), Patch(**_WASTED)]
    style.legend_below(figure, handles, [*(_way(way) for way in ways), _WASTED_MEANING])
    return figure


def read_parts(run: RunFolder) -> pd.DataFrame:
    """One row a part of a message: ``end`` (s), ``direction`` (down, up, peer, server), ``purpose``, ``bytes``, ``wasted``."""
    rows = run.table(TRANSFERS).to_pandas()
    activity, payloads = read_activity(run), cache(json.loads)
    trained = activity.steps.query("step == 'train' and data.notna()")
    idle = {task for task, data in zip(trained["task"], trained["data"], strict=True) if not json.loads(data)["epochs"]}
    lost = {task for (data,) in run.events_of(("updates-lost",), ("data",)) for task in json.loads(data)["tasks"]}
    done = set(activity.tasks.query("outcome == 'done'")["task"]) - idle - lost
    ways = (
        rows["direction"]
        .astype(str)
        .where(rows["device"].notna() | (rows["wire_bytes"] > 0) | (rows["direction"] == "peer"), "server")
    )
    columns = (rows["end"], ways, rows["delivered"], rows["task"], rows["device"].notna(), rows["payloads"])
    parts = [
        (end, way, purpose, size, of_device and task not in done)
        for end, way, delivered, task, of_device, text in zip(*columns, strict=True)
        for purpose, size in split_by_purpose(payloads(text), delivered).items()
    ]
    return pd.DataFrame(parts, columns=["end", "direction", "purpose", "bytes", "wasted"]).astype({"wasted": bool})


def _colours(parts: pd.DataFrame) -> dict[tuple[str, str], str]:
    """A colour a kind of traffic: those down first, the largest first."""
    sums = parts.groupby(["direction", "purpose"])["bytes"].sum().sort_values(ascending=False, kind="stable")
    kinds = [(str(direction), str(purpose)) for direction, purpose in sums.index]
    return {
        kind: hues[place] if place < len(hues) else style.GREY
        for way, hues in _HUES.items()
        for place, kind in enumerate(kind for kind in kinds if kind[0] == way)
    }


def _label(direction: str, purpose: str) -> str:
    return f"{_way(direction)}: {style.short(purpose, 24)}"


def _way(direction: str) -> str:
    return f"{_ARROWS[direction]} {'within the server' if direction == 'server' else direction}"


def _plot_over_time(panel: Axes, parts: pd.DataFrame, colours: dict[tuple[str, str], str]) -> None:
    """Stacked areas: what counted, a kind on the other, and what was wasted on top, so that the top edge is everything."""
    end = float(parts["end"].max())
    grid = np.linspace(0.0, end, _POINTS)
    useful = parts[~parts["wasted"]]
    layers = [
        _moved_by(grid, useful[(useful["direction"] == direction) & (useful["purpose"] == purpose)])
        for direction, purpose in colours
    ]
    wasted = _moved_by(grid, parts[parts["wasted"]])
    time, size = style.time_unit(end), style.bytes_unit(float(parts["bytes"].sum()))

    base = np.zeros_like(grid)
    for layer, colour in zip(layers, colours.values(), strict=True):
        panel.fill_between(grid / time.size, base / size.size, (base + layer) / size.size, color=colour, linewidth=0)
        base = base + layer
    panel.fill_between(grid / time.size, base / size.size, (base + wasted) / size.size, **_WASTED)
    panel.plot(grid / time.size, (base + wasted) / size.size, color=style.BLACK, linewidth=1.2)
    in_paper = ~parts["purpose"].isin(NOT_IN_PAPER)
    if not in_paper.all():
        panel.plot(grid / time.size, _moved_by(grid, parts[in_paper]) / size.size, gid="paper", **_PAPER)
    panel.set(xlabel=f"simulated time ({time.name})", ylabel=f"moved so far ({size.name})", title="over time")
    panel.set_xlim(0, end / time.size or 1.0)  # transfers may take no time
    panel.set_ylim(bottom=0)
    panel.grid(color=style.PALE, linewidth=1)


def _moved_by(grid: Floats, parts: pd.DataFrame) -> Floats:
    """Bytes of messages that had ended by each time of the grid."""
    ordered = parts.sort_values("end", kind="stable")
    sums = np.concatenate([[0.0], ordered["bytes"].cumsum().to_numpy()])
    return sums[np.searchsorted(ordered["end"].to_numpy(), grid, side="right")]


def _plot_totals(panel: Axes, parts: pd.DataFrame, colours: dict[tuple[str, str], str]) -> None:
    sums = parts.groupby(["direction", "purpose", "wasted"])["bytes"].sum()
    unit = style.bytes_unit(max(_total(sums, kind) for kind in colours))
    for place, (kind, colour) in enumerate(colours.items()):
        useful, wasted = float(sums.get((*kind, False), 0.0)), float(sums.get((*kind, True), 0.0))
        panel.barh(place, useful / unit.size, color=colour, height=0.6)
        if wasted:
            panel.barh(place, wasted / unit.size, left=useful / unit.size, height=0.6, **_WASTED)
        panel.text(0, place - 0.36, f"{_label(*kind)}   {_amount(useful + wasted, wasted)}", va="bottom")
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.set_ylim(len(colours) - 0.5, -0.75)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
    wasted, total = float(parts.loc[parts["wasted"], "bytes"].sum()), float(parts["bytes"].sum())
    panel.set(xlabel=f"moved in total ({unit.name})")
    panel.set_title(f"in total: {_amount(total, wasted)}")


def _amount(total: float, wasted: float) -> str:
    """How much, and which share of it was wasted: ``"1.14 MB, 2% wasted"``."""
    share = "" if not wasted else ", under 1% wasted" if wasted < 0.005 * total else f", {wasted / total:.0%} wasted"
    return f"{show_bytes(total)}{share}"


def _total(sums: pd.Series, kind: tuple[str, str]) -> float:
    return float(sums.get((*kind, False), 0.0)) + float(sums.get((*kind, True), 0.0))
