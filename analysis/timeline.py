"""Timelines of devices and of edge servers: who did what when, and what all did together."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.lanes import (
    MANY_BARS,
    MOST_LANES,
    ORDERS,
    TimeSpan,
    View,
    draw_lanes,
    label_lanes,
    mark_rows,
    number_rounds,
    on_lanes,
    span_of_rounds,
)
from fedsim.arrays import Floats
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.trackers.link_load import Curve, link_load, means, summed
from fedsim.language.units import show_seconds
from fedsim.records.folder import TRANSFERS
from fedsim.records.history import NO_GROUP, History
from fedsim.records.reading import RunFolder

_LANE_IN, _LEAST_IN, _MOST_IN = 0.24, 2.2, 8.6  # the lanes' height: so much a device, within these limits
_STRIPS_IN, _FRAME_IN = (0.8, 1.0, 1.0), 2.3  # the strips below; title, axis labels and legend together
_MOST_LINES = 45  # more vertical lines hide the lanes
_BINS = 625  # over a timeline's width: two pixels each
_FAR_MORE = 10  # times as many devices as work would flatten those that work
_RATES = (
    style.AxisUnit(125e6, "Gbit/s"),
    style.AxisUnit(125e3, "Mbit/s"),
    style.AxisUnit(125.0, "kbit/s"),
    style.AxisUnit(0.125, "bit/s"),
)
_CAPACITY: dict[str, Any] = {"color": style.BLACK, "linewidth": 0.8, "linestyle": ":"}
_DEADLINE: dict[str, Any] = {"color": style.VERMILLION, "linewidth": 1.2, "linestyle": (0, (4, 3))}
_ACT: dict[str, Any] = {"color": style.PURPLE, "linewidth": 0.8, "linestyle": (0, (1, 2))}
_ROUND_END: dict[str, Any] = {"color": "#404040", "linewidth": 0.8, "linestyle": "-"}
_PATH: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.4, "linestyle": "-"}
_ORDER_WORDS = dict(zip(ORDERS, ("fastest on top", "first at work on top", "by number"), strict=True))


@style.styled
def draw_timeline(
    run: RunFolder,
    *,
    rounds: tuple[int, int] | None = None,
    window: TimeSpan | None = None,
    devices: int = MOST_LANES,
    order: str = "speed",
) -> Figure:
    """A lane a device, what it did when, what was wasted and why.

    Args:
        run: the run.
        rounds: show rounds ``rounds[0]`` to ``rounds[1] - 1`` only, numbered from 0 as in the records.
        window: show this span only, from and to in simulated seconds; ``rounds`` goes before it.
        devices: show at most so many of the devices that worked, evenly spread over the order.
        order: ``speed`` (fastest on top), ``first`` (who worked first on top) or ``number``.

    Raises:
        PictureError: there are no such rounds, window, order or number of devices.
    """
    history = History(run)
    view = View(history, window if rounds is None else span_of_rounds(history, *rounds), devices, order)
    height = min(max(len(view.devices) * _LANE_IN, _LEAST_IN), _MOST_IN)
    figure = Figure(figsize=(style.WIDTH_IN, height + sum(_STRIPS_IN) + _FRAME_IN))
    panels = figure.subplots(4, 2, sharex="col", sharey="row", width_ratios=(10, 1), height_ratios=(height, *_STRIPS_IN))
    (lanes, totals), (work, beside), (load, below), (strip, words) = panels
    handles = draw_lanes(lanes, view)
    row = pd.Series(np.arange(len(view.devices), dtype=float), index=view.devices)
    handles += _tint_groups(lanes, view, row)
    handles += mark_rows(lanes, history, row, view.unit.size)
    handles += _draw_path(lanes, view, row)
    label_lanes(lanes, view)
    lanes.set_ylabel(f"device, speed (samples/s),\n{_ORDER_WORDS[order]}")
    draw_work(work, view)
    handles += draw_load(load, view)
    for empty in (beside, below):
        empty.remove()
    handles += _draw_lines((lanes, work, load, strip), view)
    _draw_strip(strip, view)
    which = "" if len(view.devices) == view.at_work else ",\nthese lanes"
    strip.set(ylabel=f"tasks\nper round{which}", xlabel=f"simulated time ({view.unit.name})")
    _number_rounds(lanes, view)
    _draw_totals(totals, view)
    _write_counts(words, view)
    return style.finished(figure, [run], handles, _part(view))


def _part(view: View) -> str:
    population = len(view.history.population)
    span = f"{show_seconds(view.span)} of simulated time" + (f" from {show_seconds(view.start)} on" if view.start else "")
    who = f"all {population:,} devices" if view.at_work == population else f"the {view.at_work:,} devices that worked"
    part = f"{len(view.devices):,} of " if len(view.devices) < view.at_work else ""
    out_of = "" if view.at_work == population else f", out of {population:,}"
    return f"{span}: {part}{who}{out_of}"


def _tint_groups(lanes: Axes, view: View, row: "pd.Series[float]") -> list[Artist]:
    """Each lane in the pale colour of the group that its device is in, under its steps; returns the legend's entry."""
    stays = on_lanes(view.history.stays, row)
    stays = stays[(stays["group"] != NO_GROUP) & (stays["end"] > view.start) & (stays["start"] < view.end)]
    for group, own in stays.groupby("group"):
        start, end = (own[name].clip(view.start, view.end).to_numpy(float) / view.unit.size for name in ("start", "end"))
        look = {"facecolor": style.tint(style.group_colour(int(str(group)))), "zorder": 0.5, "rasterized": len(own) > MANY_BARS}
        style.bars(lanes, start, end, own["lane"], view.half_lane, gid="group", **look)
    if stays.empty:
        return []
    return [Patch(facecolor=style.tint(style.group_colour(int(stays["group"].iloc[0]))), label="in a group, each its colour")]


def _draw_path(lanes: Axes, view: View, row: "pd.Series[float]") -> list[Artist]:
    """A line through the steps that each round waited for, from lane to lane unless there are too many rounds."""
    steps = [step for one in CriticalPaths(view.history.run).rounds for step in one.steps]
    shown = [step for step in steps if view.start < step.end and step.start < view.end and step.device in row.index]
    if not shown:
        return []
    times = np.array([[step.start, step.end, step.end] for step in shown]) / view.unit.size
    rows = np.repeat(row.loc[pd.Index([step.device for step in shown])].to_numpy()[:, None], 3, axis=1)
    follows = np.append(times[1:, 0] == times[:-1, 1], False) & (len(view.rounds) <= _MOST_LINES)
    rows[~follows, 2] = np.nan  # a gap
    edge = [withStroke(linewidth=3, foreground="w")]
    lanes.plot(times.ravel(), rows.ravel(), zorder=4, gid="path", path_effects=edge, scalex=False, scaley=False, **_PATH)
    return [Line2D([], [], label="critical path: what each round waited for", **_PATH)]


# The strips: all devices together.


def capacity(run: RunFolder) -> dict[str, float | None]:
    """Capacity of the server's link, bytes/s each way; None where the scenario sets no limit."""
    from pydantic import TypeAdapter, ValidationError

    from fedsim.language.units import BytesPerSecond

    server = run.scenario.get("network", {}).get("server", {})
    limits: dict[str, float | None] = {}
    for way in ("down", "up"):
        try:
            rate = TypeAdapter[float](BytesPerSecond).validate_python(server[way]) if isinstance(server, dict) else np.inf
        except (KeyError, ValidationError):
            rate = np.inf
        limits[way] = rate if np.isfinite(rate) else None
    return limits


def counted(stretches: pd.DataFrame) -> Curve:
    """Number of these stretches of time, with ``start`` and ``end`` (s), that go on at a time."""
    times = stretches[["start", "end"]].to_numpy(float).ravel("F")
    return summed(times, np.repeat([1.0, -1.0], len(stretches)))


def draw_work(axes: Axes, view: View) -> None:
    """Devices at work, by the outcome of their tasks; above, if it is known of all, those that could not be reached."""
    edges, top, history = np.linspace(view.start, view.end, _BINS + 1), np.zeros(_BINS), view.history
    for outcome, colour in style.OUTCOMES.items():
        own = history.steps[history.steps["outcome"] == outcome]
        if len(own):
            base, top = top, top + means(counted(own), edges)
            axes.stairs(top, edges / view.unit.size, baseline=base, fill=True, color=colour, linewidth=0, gid=outcome)
    most = max(1.0, float(top.max()))
    there = means(counted(history.there), edges)
    if len(history.known) == len(history.population) and there.max() <= _FAR_MORE * most:
        most = max(most, float(there.max()))
        away = there - means(counted(history.away), edges)
        axes.stairs(there, edges / view.unit.size, baseline=away, fill=True, color=style.AWAY, linewidth=0, gid="away")
    axes.set(ylim=(0, most), ylabel="devices\nat work")
    style.whole_ticks(axes.yaxis, 3)


def draw_load(axes: Axes, view: View) -> list[Artist]:
    """Load of the server's link: down above the line, up below it; returns the legend's entry for its capacity."""
    edges, run = np.linspace(view.start, view.end, _BINS + 1), view.history.run
    limits = capacity(run)
    rates = {way: np.minimum(means(link_load(run, way), edges), limits[way] or np.inf) for way in ("down", "up")}
    peaks = {way: float(rate.max()) for way, rate in rates.items()}
    most = max(1e-9, *peaks.values())
    size, name = next((rate for rate in _RATES if most >= rate.size), _RATES[-1])
    handles: list[Artist] = []
    for way, sign, step in (("down", 1.0, "download"), ("up", -1.0, "upload")):
        look: dict[str, Any] = {"color": style.STEPS[step], "linewidth": 0, "gid": way}
        axes.stairs(sign * rates[way] / size, edges / view.unit.size, fill=True, **look)
        limit = limits[way]
        if limit is not None and limit <= 1.3 * most:  # one far above would flatten what was carried
            peaks[way] = max(peaks[way], limit)
            axes.axhline(sign * limit / size, gid=f"capacity-{way}", **_CAPACITY)
            handles = [Line2D([], [], label="what the server's link can carry", **_CAPACITY)]
    axes.axhline(0, color=style.GREY, linewidth=0.8)
    room = 0.15 * max(most, *peaks.values())
    axes.set(ylim=((-peaks["up"] - room) / size, (peaks["down"] + room) / size), ylabel=f"server's link,\ndown, up\n({name})")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    return handles


# Rounds: vertical lines, and numbers above.


def _draw_lines(panels: tuple[Axes, ...], view: View) -> list[Artist]:
    """Round ends, deadlines and acts of processes through all panels, of many some; returns the legend's entries.

    A round that closed before its deadline has no deadline line: it would fall into the next round.
    """
    rounds = view.rounds.assign(deadline=view.rounds["deadline"].where(view.rounds["deadline"] <= view.rounds["end"]))
    which, some = _every_so_many(len(rounds))
    shade = 0.5 if which else 1.0
    handles: list[Artist] = []
    for column, look, label in (("end", _ROUND_END, "round's end"), ("deadline", _DEADLINE, "deadline")):
        times = rounds[column][rounds["round"] % some == 0].dropna().to_numpy() / view.unit.size
        if len(times):
            style.across(panels, times, zorder=2, alpha=shade, gid=column, **look)
            handles.append(Line2D([], [], label=label + which, alpha=shade, **look))
    if len(view.acts):
        acts = np.unique(view.acts["end"].to_numpy() / view.unit.size)
        style.across(panels, acts[:: style.step_for(len(acts), _MOST_LINES)], zorder=2, gid="process", **_ACT)
        handles.append(Line2D([], [], label="a process of the world acts", **_ACT))
    return handles


def _every_so_many(rounds: int) -> tuple[str, int]:
    """Of so many rounds every how many-th has a line, and words that say so."""
    every = style.step_for(rounds, _MOST_LINES)
    return "" if every == 1 else f" (of every {style.ordinal(every)} round)", every


def _number_rounds(lanes: Axes, view: View) -> None:
    """Round numbers over the lanes, each in the middle of its round."""
    if view.rounds.empty:
        return
    ends, numbers = view.rounds["end"].to_numpy(), view.rounds["round"].to_numpy()
    middles = (np.concatenate([[view.start], ends[:-1]]) + ends) / 2 / view.unit.size
    number_rounds(lanes, numbers, middles, "round")


# Outcomes of tasks: by round below the lanes, by device beside them.


def _draw_strip(strip: Axes, view: View) -> None:
    """Each bar is as wide as its round; what came after the last round has a bar too."""
    edges = np.array([view.start, *view.rounds["end"], view.end]) / view.unit.size
    first = int(view.rounds.index[0]) if len(view.rounds) else 0
    counts = pd.crosstab(view.tasks["period"] - first, view.tasks["outcome"]).reindex(range(len(edges) - 1), fill_value=0)
    for base, top, colour in _stacked(counts):
        style.rectangles(strip, edges[:-1], edges[1:], base, top, facecolor=colour)
    strip.set_ylim(0, max(1.0, counts.sum(axis=1).max() * 1.05))
    style.whole_ticks(strip.yaxis, 3)


def _draw_totals(totals: Axes, view: View) -> None:
    counts = pd.crosstab(view.tasks["lane"], view.tasks["outcome"])
    for base, top, colour in _stacked(counts):
        style.bars(totals, base, top, counts.index.to_numpy(float), view.half_lane, facecolor=colour)
    totals.set_xlim(0, max(1.0, counts.sum(axis=1).max() * 1.05))
    style.whole_ticks(totals.xaxis, 2)
    totals.tick_params(axis="y", left=False, labelleft=False)
    totals.tick_params(axis="x", bottom=False, labelbottom=False, top=True, labeltop=True)
    totals.xaxis.set_label_position("top")
    totals.set_xlabel("tasks\nper device", fontsize=10)
    totals.spines["top"].set_visible(True)
    totals.spines["bottom"].set_visible(False)


def _stacked(counts: pd.DataFrame) -> list[tuple[Floats, Floats, str]]:
    """Of each outcome where its bars begin and end, and its colour."""
    present = [outcome for outcome in style.OUTCOMES if outcome in counts]
    tops = counts[present].cumsum(axis=1).to_numpy(float).T
    bases = np.vstack([np.zeros(len(counts)), tops])
    return [(base, top, style.OUTCOMES[outcome]) for base, top, outcome in zip(bases, tops, present, strict=False)]


def _write_counts(words: Axes, view: View) -> None:
    """The outcomes' sums, as the key to the colours of both margins."""
    words.set_axis_off()
    counts = view.tasks["outcome"].value_counts()
    present = [(outcome, colour) for outcome, colour in style.OUTCOMES.items() if outcome in counts.index]
    for place, (outcome, colour) in enumerate(present):
        y = 0.55 - 0.2 * place
        words.text(0.02, y, "■", color=colour, transform=words.transAxes, va="center")
        words.text(0.2, y, f"{outcome} {counts[outcome]:,}", transform=words.transAxes, va="center", fontsize=9)


# Edge servers: a lane each.

_MOST_EDGES = 60
_EDGE_IN, _EDGES_FRAME_IN = 0.34, 2.4
_LEAST_SHARE = 1 / 1250  # of the time axis: a message, however short, is drawn a pixel wide
_WAYS = {"down": ("download", "from the server"), "up": ("upload", "to the server")}
_LOST: dict[str, Any] = {"facecolor": "white", "edgecolor": style.VERMILLION, "hatch": "//////", "linewidth": 0.8}


@style.styled
def draw_edges(run: RunFolder) -> Figure:
    """A lane an edge server: what came from the server and went to it, how many of its devices worked for it, its losses."""
    messages = read_messages(run)
    if messages.empty:
        raise style.NothingToDrawError("no edge server had a message, so there is nothing to draw of edge servers")
    history = History(run)
    edges = np.unique(messages["edge"])
    shown = edges[style.evenly(len(edges), _MOST_EDGES)]
    lane = pd.Series(np.arange(len(shown), dtype=float), index=shown)
    unit = style.time_unit(history.end)
    figure = Figure(figsize=(style.WIDTH_IN, max(len(shown), 4) * _EDGE_IN + _EDGES_FRAME_IN))
    panel = figure.subplots()
    panel.set_xlim(0, history.end / unit.size)
    panel.set_ylim(len(shown) - 0.5, -0.5)
    panel.set_yticks(range(len(shown)), [f"edge {edge}" for edge in shown])
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel(f"simulated time ({unit.name})")
    handles = _draw_edges_work(panel, history.steps, lane, unit.size)
    for way, (step, label) in _WAYS.items():
        own = messages[(messages["direction"] == way) & messages["edge"].isin(shown)]
        start, end = own["start"].to_numpy(float), own["end"].to_numpy(float)
        end = np.maximum(end, start + history.end * _LEAST_SHARE)
        look = {"facecolor": style.STEPS[step], "gid": way}
        style.bars(panel, start / unit.size, end / unit.size, own["edge"].map(lane), 0.4, **look)
        handles.append(Patch(facecolor=style.STEPS[step], label=label))
    handles += _draw_losses(panel, history, lane, unit.size)
    ends = history.rounds["end"].to_numpy() / unit.size
    which, every = _every_so_many(len(ends))
    style.across([panel], ends[::every], **_ROUND_END)
    handles.append(Line2D([], [], label=f"round's end{which}", **_ROUND_END))
    part = "" if len(shown) == len(edges) else f"{len(shown)} of "
    return style.finished(figure, [run], handles, part + style.counted(len(edges), "edge server"))


def read_messages(run: RunFolder) -> pd.DataFrame:
    """One row a message between an edge server and the server: ``edge``, ``direction``, ``start``, ``end`` (s), ``outcome``."""
    rows: pd.DataFrame = run.table(TRANSFERS).to_pandas()
    rows = rows[rows["device"].isna() & (rows["direction"] != "peer")]
    names = rows["receiver"].astype(str).where(rows["direction"] == "down", rows["sender"].astype(str))
    rows = rows.assign(edge=names.astype(str).str.extract(r"^edge ([0-9]+)$")[0]).dropna(subset="edge")
    rows = rows[["edge", "direction", "start", "end", "outcome"]]
    return rows.astype({"edge": int, "direction": str, "outcome": str}).reset_index(drop=True)


def _draw_edges_work(panel: Axes, steps: pd.DataFrame, lane: "pd.Series[float]", unit: float) -> list[Artist]:
    """Number of devices at work for each edge server: those of its group."""
    curves = {edge: counted(own) for edge, own in steps[steps["group"].isin(lane.index)].groupby("group")}
    most = max([1.0, *(float(curve.values.max(initial=0.0)) for curve in curves.values())])
    for edge, curve in curves.items():
        working = np.flatnonzero(curve.values[:-1] > 0)
        colours = [style.lighten(style.STEPS["train"], 0.85 - 0.6 * value) for value in curve.values[working] / most]
        start, end = curve.times[working] / unit, curve.times[working + 1] / unit
        style.bars(panel, start, end, lane[edge], 0.4, facecolor=colours)
    label = f"its devices at work (darkest: {most:.0f})"
    return [Patch(facecolor=style.lighten(style.STEPS["train"], 0.4), label=label)] if curves else []


def _draw_losses(panel: Axes, history: History, lane: "pd.Series[float]", unit: float) -> list[Artist]:
    """When edge servers were lost."""
    lost = on_lanes(history.lost_edges, lane)
    if lost.empty:
        return []
    start, end = (lost[name].to_numpy(float) / unit for name in ("start", "end"))
    style.bars(panel, start, end, lost["lane"], 0.45, gid="lost", **_LOST)
    return [Patch(**_LOST, label="lost")]
