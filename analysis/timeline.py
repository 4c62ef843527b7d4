"""The timeline of a run: a lane a device, what it did when, and what all did together."""

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.style import NothingToDrawError, PictureError, evenly
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import FedsimError, nearest
from fedsim.common.units import BytesPerSecond, read_quantity, show_seconds
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.reading.history import MARKS, NO_GROUP, History
from fedsim.lab.trackers.link_load import Curve, link_load, means, summed
from fedsim.records.reading import RunFolder

_ORDERS = {"speed": "fastest on top", "first": "first at work on top", "number": "by number"}
TimeSpan = tuple[float, float]

MOST_LANES = 1500  # more would be thinner than a pixel
_GAPPED_LANES = 150
_LEAST_LANES = 5  # fewer lanes leave room, rather than to grow fat
_MANY_LANES = 60  # with more, lanes are too thin for hatches and a label each
_MANY_ROUNDS = 60  # with more, bars are too short for hatches
_MOST_NUMBERS = 24  # more round numbers run into one another
_MOST_LINES = 45  # more vertical lines hide the lanes
_PIXELS = 1250  # about what the time axis has: a step, however short, is drawn one pixel wide
_BINS = 625  # of the strips, over a timeline's width: two pixels each
_FAR_MORE = 10  # times as many devices as work would flatten those that work
# the lanes' height: so much a device, within these limits
_LANE_IN = 0.24
_LEAST_IN = 2.2
_MOST_IN = 8.6
_STRIPS_IN, _FRAME_IN = (0.8, 1.0), 2.3  # the strips below; title, axis labels and legend together
_RATES = (
    (125e6, 125e6, "Gbit/s"),
    (125e3, 125e3, "Mbit/s"),
    (125.0, 125.0, "kbit/s"),
    (0.0, 0.125, "bit/s"),
)

_CAPACITY: dict[str, Any] = {"color": style.BLACK, "linewidth": 0.8, "linestyle": ":"}
_DEADLINE: dict[str, Any] = {"color": style.VERMILLION, "linewidth": 1.2, "linestyle": (0, (4, 3))}
_ACT: dict[str, Any] = {"color": style.PURPLE, "linewidth": 0.8, "linestyle": (0, (1, 2))}
ROUND_END: dict[str, Any] = {"color": "#404040", "linewidth": 0.8, "linestyle": "-"}
_PATH: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.4, "linestyle": "-"}
_SHAPES: dict[str, Any] = {
    "arrival": 9,
    "departure": 8,
    "move": "|",
    "late": "|",
    "lost": "x",
    "left": "D",
    "battery": "s",
}
_MEANING_OF_MARKS = {
    "arrival": "arrives",
    "departure": "leaves for good",
    "shift": "its data shift",
    "noticed": "it notices the shift",
    "move": "moves to another group",
}
MEANING = {
    "late": "late: ended by the server",
    "lost": "lost: device disconnected",
    "left": "left for good",
    "battery": "battery: flat",
    "stopped": "cut off by the end of the run",
    "memory": "the model does not fit into the device's memory",
}


class View:
    """The part of a run within a ``span`` (from and to, s), with at most ``most`` devices that
    worked, evenly spread.

    Where availability is known of some devices, only those have lanes. Records at the span's start
    belong to the time before. ``PictureError``: a wrong order, span or number of devices;
    ``NothingToDrawError``: no device worked.

    Attributes:
        devices, lane: the devices shown, from the top lane down, and the lane of each.
        at_work: the number of devices that worked within the span, shown or not.
        there, away, steps, tasks: tables of the history for these devices, with ``lane``; the
            last two cut to the span. ``away`` is None if availability is unknown.
        rounds, acts: tables of the history cut to the span.
    """

    def __init__(
        self,
        history: History,
        span: TimeSpan | None = None,
        most: int = MOST_LANES,
        order: str = "speed",
    ) -> None:
        if order not in _ORDERS:
            raise PictureError(
                f"the order is {order!r}; allowed are {', '.join(_ORDERS)}{nearest(order, _ORDERS)}"
            )
        if most < 1:
            raise PictureError(f"the number of devices is {most}; allowed is 1 or more")
        start, end = span or (0.0, history.end)
        if 0 <= start == end:
            raise NothingToDrawError(
                f"no simulated time passes from {start:g} s to {end:g} s, so there is no "
                "timeline to draw"
            )
        if not 0 <= start < end:
            raise PictureError(
                f"the window is {start:g} s to {end:g} s; it must begin at 0 s or later and "
                "end after that"
            )
        # what ends at the very beginning of the run belongs to it
        since = start if start > 0 else -np.inf
        steps = history.steps[(history.steps["end"] > since) & (history.steps["start"] < end)]
        tables = (history.tasks, history.rounds, history.acts)
        tasks, self.rounds, self.acts = (
            table[table["end"].between(since, end, inclusive="right")] for table in tables
        )
        keys = steps.groupby("device")["start"].min()
        if keys.empty:
            raise NothingToDrawError(
                f"no device worked between {start:g} s and {end:g} s, so there is no timeline "
                "to draw"
            )
        if order == "speed":
            keys = -history.population["speed"][keys.index]
        at_work = (keys if order == "number" else keys.sort_values(kind="stable")).index.to_numpy(
            np.int64
        )
        known = at_work[np.isin(at_work, history.known)] if len(history.known) else at_work
        self.history = history
        self.start = start
        self.end = end
        self.span = end - start
        self.order = order
        self.devices = known[evenly(len(known), most)]
        self.at_work = len(at_work)
        self.half_lane = 0.4 if len(self.devices) <= _GAPPED_LANES else 0.5
        self.unit = style.unit_for(self.span, style.TIMES)
        self.lane = pd.Series(np.arange(len(self.devices)), index=self.devices)
        self.there, self.steps, self.tasks = (
            on_lanes(table, self.lane) for table in (history.there, steps, tasks)
        )
        self.away = on_lanes(history.away, self.lane) if len(history.known) else None


def span_of_rounds(history: History, first: int, stop: int) -> TimeSpan:
    """The simulated time of rounds ``first`` to ``stop - 1``, numbered from 0; ``PictureError``
    if there are none.
    """
    numbers = history.rounds["round"]
    ends = history.rounds["end"]
    inside = ends[(numbers >= first) & (numbers < stop)]
    if inside.empty:
        last = f"rounds 0 to {numbers.max()}" if len(numbers) else "no finished round"
        raise PictureError(f"rounds {first}:{stop} are not in this run, which has {last}")
    return float(ends[numbers < first].max()) if (numbers < first).any() else 0.0, float(
        inside.max()
    )


def on_lanes(rows: pd.DataFrame, lane: "pd.Series[Any]") -> pd.DataFrame:
    """The rows of the devices that have a lane, with the column ``lane``."""
    shown = rows[rows["device"].isin(lane.index)]
    return shown.assign(lane=shown["device"].map(lane).astype(int))


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
        rounds: show only rounds ``rounds[0]`` to ``rounds[1] - 1``, numbered from 0 as in the
            records.
        window: show only this span, from and to (simulated s); ``rounds`` overrides it.
        devices: show at most this many, evenly spread over the order.
        order: ``speed`` (fastest on top), ``first`` (first at work on top) or ``number``.
    """
    history = History(run)
    view = View(
        history, window if rounds is None else span_of_rounds(history, *rounds), devices, order
    )
    height = min(max(len(view.devices) * _LANE_IN, _LEAST_IN), _MOST_IN)
    figure = Figure(figsize=(style.WIDTH_IN, height + sum(_STRIPS_IN) + _FRAME_IN))
    lanes, work, load = figure.subplots(3, 1, sharex=True, height_ratios=(height, *_STRIPS_IN))
    handles = _draw_lanes(lanes, view)
    draw_work(work, view)
    handles += draw_load(load, view)
    handles += _draw_lines((lanes, work, load), view)
    load.set_xlabel(f"simulated time ({view.unit.name})")
    if len(ends := view.rounds["end"].to_numpy()):
        middles = (np.concatenate([[view.start], ends[:-1]]) + ends) / 2 / view.unit.size
        number_rounds(lanes, view.rounds["round"].to_numpy(), middles, "round")
    population = len(history.population)
    span = f"{show_seconds(view.span)} of simulated time" + (
        f" from {show_seconds(view.start)} on" if view.start else ""
    )
    part = f"{len(view.devices):,} of " if len(view.devices) < view.at_work else ""
    worked = f"the {view.at_work:,} devices that worked, out of {population:,}"
    who = f"all {population:,} devices" if view.at_work == population else worked
    return style.finished(figure, [run], handles, f"{span}: {part}{who}")


# Lanes: every step, over it what was wasted, and marks.


def _draw_lanes(axes: Axes, view: View) -> list[Artist]:
    """Draw the lanes, name them and set the limits; returns the legend's entries."""
    coarse = len(view.devices) <= _MANY_LANES and len(view.rounds) <= _MANY_ROUNDS
    axes.set_ylim(max(len(view.devices), _LEAST_LANES) - 0.5, -0.5)
    axes.set_xlim(view.start / view.unit.size, view.end / view.unit.size)
    _draw_bars(axes, view, view.there, facecolor=style.PALE, zorder=0)
    handles: list[Artist] = []
    pixel = view.span / _PIXELS
    for step, colour in style.STEPS.items():
        own = view.steps[view.steps["step"] == step]
        if len(own):
            _draw_bars(
                axes, view, own[own["outcome"] == "done"], least=pixel, gid=step, facecolor=colour
            )
            handles.append(Patch(facecolor=colour, label=step))
    edge: dict[str, Any] = {"edgecolor": style.GREY, "linewidth": 0.4}
    handles.append(Patch(facecolor=style.OUTCOMES["done"], label="devices at work"))
    handles.append(
        Patch(
            facecolor=style.PALE,
            label="idle" if view.away is not None else "idle or disconnected",
            **edge,
        )
    )
    if view.away is not None and len(view.away):
        _draw_bars(axes, view, view.away, facecolor=style.AWAY, zorder=0.7, gid="away")
        handles.append(Patch(facecolor=style.AWAY, label="cannot be reached", **edge))
    for outcome, meaning in MEANING.items():
        wasted = view.steps[view.steps["outcome"] == outcome]
        colour = style.OUTCOMES[outcome]
        hatched: dict[str, Any] = {"edgecolor": colour, "hatch": "//////", "linewidth": 0.8}
        if not coarse:
            _draw_bars(axes, view, wasted, least=pixel, gid=f"wasted-{outcome}", facecolor=colour)
        for of_step, rows in wasted.groupby("step") if coarse else ():
            pale = style.lighten(style.STEPS[str(of_step)], 0.5)
            _draw_bars(
                axes, view, rows, least=pixel, gid=f"{of_step}-{outcome}", facecolor=pale, **hatched
            )
        if len(wasted):
            look = {"facecolor": "white"} | hatched if coarse else {"facecolor": colour}
            handles.append(Patch(label=f"wasted, {meaning}", **look))
    size = float(np.clip(min(320 / len(view.devices), 1200 / max(1, len(view.rounds))), 3.0, 8.0))
    for outcome in ("late", "lost", "left", "battery"):
        own = view.tasks[view.tasks["outcome"] == outcome]
        if coarse or outcome != "late":  # a late bar that is thin ends plainly enough
            handles += _draw_marks(axes, own["end"] / view.unit.size, own["lane"], outcome, size)
    handles += _tint_groups(axes, view)
    handles += mark_rows(axes, view.history, view.lane, view.unit.size)
    handles += _draw_path(axes, view)
    _name_lanes(axes, view)
    return handles


def _draw_bars(
    axes: Axes, view: View, rows: pd.DataFrame, *, least: float = 0.0, **look: Any
) -> None:
    end = np.maximum(rows["end"], rows["start"] + least)
    style.bars(
        axes,
        rows["start"] / view.unit.size,
        end / view.unit.size,
        rows["lane"],
        view.half_lane,
        **look,
    )


def _name_lanes(axes: Axes, view: View) -> None:
    """Name the lanes by device and speed: all of few, some of many."""
    count = len(view.devices)
    speeds = view.history.population["speed"]
    lanes = np.arange(count) if count <= _MANY_LANES else evenly(count, 21)
    host = view.history.run.scenario["population"].get("host")
    places = [
        "" if host is None else f" at host {device % host['number']}"
        for device in view.devices[lanes]
    ]
    names = [
        f"{device}{at}  ({speeds[device]:.3g}/s)"
        for device, at in zip(view.devices[lanes], places, strict=True)
    ]
    axes.set_yticks(lanes, names, fontsize=10 if count > _MANY_LANES else 9 if count <= 45 else 8)
    axes.tick_params(axis="y", length=0 if count <= _MANY_LANES else 3)
    axes.set_ylabel(f"device, speed (samples/s),\n{_ORDERS[view.order]}")


def number_rounds(panel: Axes, numbers: Ints, places: Floats, label: str, tick: float = 0) -> None:
    """Round numbers above a panel, each at its place, with a tick (points); of many rounds some,
    none too close together.
    """
    least = (panel.get_xlim()[1] - panel.get_xlim()[0]) / 40
    last = -np.inf
    shown = dict[float, str]()
    for number, place in zip(numbers, places, strict=True):
        if number % style.step_for(len(numbers), _MOST_NUMBERS) == 0 and place - last >= least:
            shown[place], last = str(number), place
    if shown:
        above = panel.secondary_xaxis("top")
        above.set_xticks([*shown], [*shown.values()])
        above.tick_params(length=tick, pad=1)
        above.set_xlabel(label, fontsize=10)


def mark_rows(panel: Axes, history: History, row: "pd.Series[Any]", unit: float) -> list[Artist]:
    """Draw ``history.marks`` within the panel's limits, each in its device's row; returns the
    legend's entries.
    """
    shown = history.marks[
        history.marks["device"].isin(row.index)
        & (history.marks["time"] / unit).between(*panel.get_xlim())
    ]
    size = float(np.clip(420 / len(row), 2.2, 7.0))
    handles = []
    for kind in MARKS:
        own = shown[shown["kind"] == kind]
        handles += _draw_marks(panel, own["time"] / unit, own["device"].map(row), kind, size)
    return handles


def _draw_marks(
    panel: Axes, x: "pd.Series[float]", y: "pd.Series[float]", kind: str, size: float
) -> list[Artist]:
    """Draw marks of one kind; returns the legend's entry, which is large however many lanes
    there are.
    """
    if x.empty:
        return []
    shape = _SHAPES.get(kind, "o")
    look: dict[str, Any] = {
        "marker": shape,
        "color": style.OUTCOMES.get(kind, style.BLACK),
        "linestyle": "",
    }
    look |= {"markerfacecolor": "white"} if kind == "shift" else {}
    width = size / 7 if shape == "o" else max(0.8, size / 4)
    drawn: dict[str, Any] = {
        "markersize": size * {"|": 1.4, "o": 0.84}.get(shape, 1.0),
        "markeredgewidth": width,
    }
    if kind in ("move", "lost", "left", "battery"):
        drawn["path_effects"] = [patheffects.withStroke(linewidth=width + 1.5, foreground="white")]
    panel.plot(
        x,
        y,
        gid=kind,
        zorder=3,
        clip_on=kind == "late",
        rasterized=len(x) > style.MANY_BARS,
        **look,
        **drawn,
    )
    size, width = (10, 1.5) if shape == "|" else (6.5, 1.0)
    label = _MEANING_OF_MARKS.get(kind, f"{kind} at this instant")
    return [Line2D([], [], label=label, markersize=size, markeredgewidth=width, **look)]


def _tint_groups(axes: Axes, view: View) -> list[Artist]:
    """Each lane in the pale colour of the group that its device is in, under its steps; returns
    the legend's entry.
    """
    stays = on_lanes(view.history.stays, view.lane)
    stays = stays[
        (stays["group"] != NO_GROUP) & (stays["end"] > view.start) & (stays["start"] < view.end)
    ]
    for group, own in stays.groupby("group"):
        inside = own.assign(
            start=own["start"].clip(view.start), end=own["end"].clip(upper=view.end)
        )
        _draw_bars(
            axes, view, inside, gid="group", zorder=0.5, facecolor=style.group_tint(int(str(group)))
        )
    some = [style.group_tint(int(group)) for group in stays["group"][:1]]
    return [Patch(facecolor=colour, label="in a group, each its colour") for colour in some]


def _draw_path(axes: Axes, view: View) -> list[Artist]:
    """A line through the steps that each round waited for, from lane to lane unless there are
    too many rounds.
    """
    steps = [step for one in CriticalPaths(view.history.run).rounds for step in one.steps]
    shown = [
        step
        for step in steps
        if view.start < step.end and step.start < view.end and step.device in view.lane.index
    ]
    if not shown:
        return []
    times = np.array([[step.start, step.end, step.end] for step in shown]) / view.unit.size
    rows = np.repeat(
        view.lane.loc[pd.Index([step.device for step in shown])].to_numpy(float)[:, None], 3, axis=1
    )
    follows = np.append(times[1:, 0] == times[:-1, 1], False) & (len(view.rounds) <= _MOST_LINES)
    rows[~follows, 2] = np.nan  # a gap
    edge = [patheffects.withStroke(linewidth=3, foreground="w")]
    axes.plot(
        times.ravel(),
        rows.ravel(),
        zorder=4,
        gid="path",
        path_effects=edge,
        scalex=False,
        scaley=False,
        **_PATH,
    )
    return [Line2D([], [], label="critical path: what each round waited for", **_PATH)]


# The strips: all devices together.


def capacity(run: RunFolder) -> dict[str, float | None]:
    """Capacity of the server's link, bytes/s each way; None where the scenario sets no limit."""
    server = run.scenario.get("network", {}).get("server", {})
    limits: dict[str, float | None] = dict.fromkeys(("down", "up"))
    for way in limits:
        # no such limit, or a server that is no table
        with suppress(KeyError, TypeError, FedsimError):
            rate = read_quantity(way, server[way], BytesPerSecond)
            limits[way] = rate if np.isfinite(rate) else None
    return limits


def counted(stretches: pd.DataFrame) -> Curve:
    """Number of these stretches of time, with ``start`` and ``end`` (s), that go on at a time."""
    return summed(
        stretches[["start", "end"]].to_numpy(float).ravel("F"),
        np.repeat([1.0, -1.0], len(stretches)),
    )


def draw_work(axes: Axes, view: View) -> None:
    """Devices at work, by the outcome of their tasks; above, if it is known of all, those that
    could not be reached.
    """
    edges = np.linspace(view.start, view.end, _BINS + 1)
    top = np.zeros(_BINS)
    history = view.history
    for outcome, colour in style.OUTCOMES.items():
        own = history.steps[history.steps["outcome"] == outcome]
        if len(own):
            base = top
            top = top + means(counted(own), edges)
            axes.stairs(
                top,
                edges / view.unit.size,
                baseline=base,
                fill=True,
                color=colour,
                linewidth=0,
                gid=outcome,
            )
    most = max(1.0, float(top.max()))
    there = means(counted(history.there), edges)
    if len(history.known) == len(history.population) and there.max() <= _FAR_MORE * most:
        most = max(most, float(there.max()))
        away = there - means(counted(history.away), edges)
        axes.stairs(
            there,
            edges / view.unit.size,
            baseline=away,
            fill=True,
            color=style.AWAY,
            linewidth=0,
            gid="away",
        )
    axes.set(ylim=(0, most), ylabel="devices\nat work")
    style.whole_ticks(axes.yaxis, 3)


def draw_load(axes: Axes, view: View) -> list[Artist]:
    """Load of the server's link: down above the line, up below it; returns the legend's entry
    for its capacity.
    """
    edges = np.linspace(view.start, view.end, _BINS + 1)
    run = view.history.run
    limits = capacity(run)
    rates = {
        way: np.minimum(means(link_load(run, way), edges), limits[way] or np.inf)
        for way in ("down", "up")
    }
    peaks = {way: float(rate.max()) for way, rate in rates.items()}
    most = max(1e-9, *peaks.values())
    _, size, name = style.unit_for(most, _RATES)
    handles: list[Artist] = []
    for way, sign, step in (("down", 1.0, "download"), ("up", -1.0, "upload")):
        heights = sign * rates[way] / size
        colour = style.STEPS[step]
        axes.stairs(heights, edges / view.unit.size, fill=True, color=colour, linewidth=0, gid=way)
        limit = limits[way]
        # one far above would flatten what was carried
        if limit is not None and limit <= 1.3 * most:
            peaks[way] = max(peaks[way], limit)
            axes.axhline(sign * limit / size, gid=f"capacity-{way}", **_CAPACITY)
            handles = [Line2D([], [], label="what the server's link can carry", **_CAPACITY)]
    axes.axhline(0, color=style.GREY, linewidth=0.8)
    room = 0.15 * max(most, *peaks.values())
    axes.set(
        ylim=((-peaks["up"] - room) / size, (peaks["down"] + room) / size),
        ylabel=f"server's link,\ndown, up\n({name})",
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    return handles


def _draw_lines(panels: tuple[Axes, ...], view: View) -> list[Artist]:
    """Round ends, deadlines and acts of processes through all panels, of many some; returns the
    legend's entries.

    A round that closed before its deadline has no deadline line: it would fall into the next round.
    """
    rounds = view.rounds.assign(
        deadline=view.rounds["deadline"].where(view.rounds["deadline"] <= view.rounds["end"])
    )
    some = style.step_for(len(rounds), _MOST_LINES)
    which, shade = (f" (one round of {some})", 0.5) if some > 1 else ("", 1.0)
    handles: list[Artist] = []
    for column, look, label in (
        ("end", ROUND_END, "round's end"),
        ("deadline", _DEADLINE, "deadline"),
    ):
        times = rounds[column][rounds["round"] % some == 0].dropna().to_numpy() / view.unit.size
        if len(times):
            style.across(panels, times, zorder=2, alpha=shade, gid=column, **look)
            handles.append(Line2D([], [], label=label + which, alpha=shade, **look))
    if len(view.acts):
        acts = np.unique(view.acts["end"].to_numpy() / view.unit.size)
        style.across(
            panels, acts[:: style.step_for(len(acts), _MOST_LINES)], zorder=2, gid="process", **_ACT
        )
        handles.append(Line2D([], [], label="a process of the world acts", **_ACT))
    return handles
