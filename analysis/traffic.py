"""Bytes by direction and purpose, over simulated time and in total, with the wasted part.

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
from fedsim.analysis.series import Series, draw_mean_bar, group_by_scenario, name_bars
from fedsim.arrays import Floats
from fedsim.language.units import show_bytes
from fedsim.records.folder import TRANSFERS
from fedsim.records.history import History, parsed
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
_WASTED_KEY = Patch(label="wasted: its task was late, lost, cut off or idle", **_WASTED)
_POINTS = 800  # more points than pixels only make the SVG large


@style.styled
def draw_traffic(run: RunFolder) -> Figure:
    """Bytes moved so far by direction and purpose, over simulated time and in total; what is hatched was wasted."""
    parts = read_parts(run)
    if parts.empty or parts["bytes"].sum() == 0:
        raise style.NothingToDrawError(f"{str(run.path)!r} moved no bytes, so there is no traffic to draw")
    colours = _colours(parts)
    figure = Figure(figsize=(style.WIDTH_IN, 5.6))
    over_time, totals = figure.subplots(1, 2, width_ratios=(3, 2))
    _plot_over_time(over_time, parts, colours)
    _plot_totals(totals, parts, colours)
    handles: list[Artist] = [Patch(facecolor=colour, label=_label(*kind)) for kind, colour in colours.items()]
    if parts["purpose"].isin(NOT_IN_PAPER).any():
        paper = show_bytes(float(parts.loc[~parts["purpose"].isin(NOT_IN_PAPER), "bytes"].sum()))
        handles.append(Line2D([], [], label=f"all as the papers count it: models and updates, {paper}", **_PAPER))
    return style.finished(figure, [run], [*handles, _WASTED_KEY])


@style.styled
def draw_traffic_compared(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Bytes of each run down and up, and the part of them that was wasted.

    A bar a run, called after its folder, unless ``series`` has one for each, with its name.
    """
    ledgers = [read_parts(run) for run in runs]
    totals = [float(parts["bytes"].sum()) for parts in ledgers]
    if not any(totals):
        raise style.NothingToDrawError("none of these runs moved any bytes, so there is no traffic to draw")
    unit = style.bytes_unit(max(totals))
    ways = [way for way in _HUES if any((parts["direction"] == way).any() for parts in ledgers)]
    figure = Figure(figsize=(style.WIDTH_IN, 2.0 + 0.55 * len(runs)))
    panel = figure.subplots()
    looks: dict[str, dict[str, Any]] = {way: {"color": _HUES[way][0]} for way in ways} | {"wasted": _WASTED}
    for place, (parts, total) in enumerate(zip(ledgers, totals, strict=True)):
        sums = parts["bytes"].groupby(parts["direction"].where(~parts["wasted"], "wasted")).sum().reindex(list(looks)).dropna()
        words = _amount(total, float(sums.get("wasted", 0.0)))
        draw_mean_bar(panel, place, sums.to_frame().T / unit.size, looks, words)
    name_bars(panel, style.run_names(runs) if series is None else [one.name for one in series])
    panel.set_xlim(0, max(totals) / unit.size * 1.2)  # room for what is written beside the bars
    panel.set_xlabel(f"moved in total ({unit.name})")
    return style.finished(figure, runs, [*(Patch(facecolor=_HUES[way][0], label=_way(way)) for way in ways), _WASTED_KEY])


def read_parts(run: RunFolder) -> pd.DataFrame:
    """One row a part of a message: ``end`` (s), ``direction`` (down, up, peer, server), ``purpose``, ``bytes``, ``wasted``."""
    rows = run.table(TRANSFERS).to_pandas()
    history, payloads = History(run), cache(json.loads)
    trained = history.steps.query("step == 'train' and data.notna()")
    idle = {task for task, data in zip(trained["task"], trained["data"], strict=True) if not parsed(data)["epochs"]}
    lost = {task for row in history.data("updates-lost") for task in row["data"]["tasks"]}
    done = set(history.tasks.query("outcome == 'done'")["task"]) - idle - lost
    outside = rows["device"].notna() | (rows["wire_bytes"] > 0) | (rows["direction"] == "peer")
    ways = rows["direction"].astype(str).where(outside, "server")
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
    time, size = style.time_unit(end), style.bytes_unit(float(parts["bytes"].sum()))
    moments = np.linspace(0.0, end, _POINTS)
    useful = parts[~parts["wasted"]]
    layers: list[tuple[pd.DataFrame, dict[str, Any]]] = [
        (useful[(useful["direction"] == direction) & (useful["purpose"] == purpose)], {"color": colour, "linewidth": 0})
        for (direction, purpose), colour in colours.items()
    ]
    base = np.zeros_like(moments)
    for own, look in [*layers, (parts[parts["wasted"]], _WASTED)]:
        top = base + _moved_by(moments, own) / size.size
        panel.fill_between(moments / time.size, base, top, **look)
        base = top
    panel.plot(moments / time.size, base, color=style.BLACK, linewidth=1.2)
    in_paper = ~parts["purpose"].isin(NOT_IN_PAPER)
    if not in_paper.all():
        panel.plot(moments / time.size, _moved_by(moments, parts[in_paper]) / size.size, gid="paper", **_PAPER)
    panel.set(xlabel=f"simulated time ({time.name})", ylabel=f"moved so far ({size.name})", title="over time")
    panel.set_xlim(0, end / time.size or 1.0)  # transfers may take no time
    panel.set_ylim(bottom=0)
    panel.grid(color=style.PALE, linewidth=1)


def _moved_by(moments: Floats, parts: pd.DataFrame) -> Floats:
    """Bytes of messages that had ended by each moment."""
    ordered = parts.sort_values("end", kind="stable")
    sums = np.concatenate([[0.0], ordered["bytes"].cumsum().to_numpy()])
    return sums[np.searchsorted(ordered["end"].to_numpy(), moments, side="right")]


def _plot_totals(panel: Axes, parts: pd.DataFrame, colours: dict[tuple[str, str], str]) -> None:
    sums = parts.groupby(["direction", "purpose", "wasted"])["bytes"].sum()
    amounts = {kind: (float(sums.get((*kind, False), 0.0)), float(sums.get((*kind, True), 0.0))) for kind in colours}
    unit = style.bytes_unit(max(map(sum, amounts.values())))
    for place, (kind, (useful, wasted)) in enumerate(amounts.items()):
        panel.barh(place, useful / unit.size, color=colours[kind], height=0.6)
        if wasted:
            panel.barh(place, wasted / unit.size, left=useful / unit.size, height=0.6, **_WASTED)
        panel.text(0, place - 0.36, f"{_label(*kind)}   {_amount(useful + wasted, wasted)}", va="bottom")
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.set_ylim(len(colours) - 0.5, -0.75)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
    panel.set_xlabel(f"moved in total ({unit.name})")
    all_wasted = float(parts.loc[parts["wasted"], "bytes"].sum())
    panel.set_title(f"in total: {_amount(float(parts['bytes'].sum()), all_wasted)}")


def _amount(total: float, wasted: float) -> str:
    """Total and the share that was wasted: ``"1.14 MB, 2% wasted"``."""
    share = "" if not wasted else ", under 1% wasted" if wasted < 0.005 * total else f", {wasted / total:.0%} wasted"
    return f"{show_bytes(total)}{share}"


# Purposes, of several runs: as bytes really moved, and as the papers count them.

_FIXED = {"model": style.SKY, "update": style.BLUE}  # what nearly every strategy sends looks the same in every picture
_OTHERS = (style.GREEN, style.ORANGE, style.PURPLE, style.VERMILLION, style.YELLOW, "#332288", "#882255", "#999933")
_SEEN = 0.003  # of the longest bar: less is thinner than a line
_VIEWS = {"strict": "everything that moved (strict)", "paper": "models and updates only, as the papers count (paper)"}


@style.styled
def draw_purposes_compared(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Bytes by purpose, all that moved and as papers count them, the mean of the seeds of a scenario.

    A bar a scenario, both ways together, with a line from the least to the most of its seeds. Where all runs send updates of
    one size, an axis above counts in models of that size. Runs of one scenario are a series, unless ``series`` says which are.
    """
    series = group_by_scenario(runs) if series is None else series
    table = [pd.DataFrame([run.summary["bytes"]["by_purpose"] for run in one.runs], dtype=float).fillna(0.0) for one in series]
    if not any(seeds.to_numpy().sum() for seeds in table):
        raise style.NothingToDrawError("none of these runs moved any bytes, so there is no traffic to draw")
    colours = _colours_of_purposes(pd.DataFrame([seeds.mean() for seeds in table]).fillna(0.0))
    most = max(float(seeds.sum(axis=1).max()) for seeds in table)
    unit, model = style.bytes_unit(most), _model_bytes(runs)
    figure = Figure(figsize=(style.WIDTH_IN, 2.6 + 0.5 * len(series)))
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    for panel, view in zip(panels, _VIEWS, strict=True):
        kept = [purpose for purpose in colours if view == "strict" or purpose not in NOT_IN_PAPER]
        for place, seeds in enumerate(table):
            own = seeds.reindex(columns=kept, fill_value=0.0)
            looks = {purpose: {"color": colour} for purpose, colour in colours.items()}
            draw_mean_bar(panel, place, own / unit.size, looks, show_bytes(float(own.mean().sum())))
        panel.set_title(_VIEWS[view], fontsize=11)
        panel.set_xlabel(f"moved in total, down and up ({unit.name})")
        panel.xaxis.set_major_locator(MaxNLocator(nbins=7))
        if model:
            above = panel.secondary_xaxis("top", functions=(lambda x: x * unit.size / model, lambda x: x * model / unit.size))
            above.set_xlabel(f"in models of {show_bytes(model)}", fontsize=9)
            above.xaxis.set_major_locator(MaxNLocator(nbins=6))
            above.xaxis.set_major_formatter("{x:,g}")
            above.tick_params(labelsize=9)
    name_bars(panels[0], [one.label for one in series])
    panels[0].set_xlim(0, most / unit.size * 1.22)  # room for what is written beside the bars
    named = {own: [purpose for purpose, colour in colours.items() if colour == own] for own in colours.values()}
    labels = {
        colour: style.short(own[0], 24) if colour != style.GREY else f"others: {style.short(', '.join(own), 60)}"
        for colour, own in named.items()
    }
    return style.finished(figure, runs, [Patch(facecolor=colour, label=label) for colour, label in labels.items()])


def _colours_of_purposes(means: pd.DataFrame) -> dict[str, str]:
    """A colour a purpose: models and updates first, then the largest; those that nobody could see share grey."""
    sums = means.sum().sort_values(ascending=False, kind="stable")
    seen = means.max() >= _SEEN * means.sum(axis=1).max()
    others = sorted((str(purpose) for purpose in sums.index if purpose not in _FIXED), key=lambda name: not seen[name])
    count = sum(bool(seen[name]) for name in others)
    hues = dict(zip(others, [*_OTHERS[:count], *[style.GREY] * len(others)], strict=False))
    return {purpose: colour for purpose, colour in (_FIXED | hues).items() if sums.get(purpose, 0.0) > 0}


def _model_bytes(runs: Sequence[RunFolder]) -> float | None:
    """The size of an update (bytes), if all that any of the runs sent are of one size."""
    sizes: set[float] = set()
    for run in runs:
        texts = np.unique(run.table(TRANSFERS).column("payloads").to_numpy().astype(str))
        sizes |= {float(size) for text in texts for purpose, size in json.loads(text) if purpose == "update"}
    return sizes.pop() if len(sizes) == 1 else None
