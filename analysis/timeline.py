"""The timeline of a run as a picture: a lane per device, and strips for all devices together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import palette, style
from fedsim.analysis.marks import (
    LOST,
    LOST_WITH_EDGES,
    draw_marks,
    mark_rows,
    number_rounds,
)
from fedsim.analysis.strips import draw_load, draw_work
from fedsim.analysis.style import choose_evenly
from fedsim.analysis.view import MOST_LANES, ORDERS, Interval, View, span_of_rounds
from fedsim.common.arrays import Floats, Ints
from fedsim.common.round_words import counted
from fedsim.common.units import show_seconds
from fedsim.lab.compare.critical_path import CriticalPaths, PathStep
from fedsim.lab.reading.activities import StepSpan, TimeSpan
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder

_LEAST_LANES = 5  # least count of lanes for which the height has room
_MANY_LANES = 60  # if there are more lanes than this, bars have no hatches, and few have labels
_MANY_ROUNDS = 60  # if there are more rounds than this, bars have no hatches
_MOST_LINES = 45  # greatest count of vertical lines of a kind over the lanes
_PIXELS = 1250  # assumed width of the time axis (pixels); no step is drawn thinner than a pixel
# height per lane, and least and greatest height of all lanes (inches)
_LANE_IN = 0.24
_LEAST_IN = 2.2
_MOST_IN = 8.6
_STRIPS_IN = (0.8, 1.0)
_FRAME_IN = 2.3  # height of title, axis labels and legend (inches)

_ACT: palette.Look = {"color": palette.PURPLE, "linewidth": 0.8, "linestyle": (0, (1, 2))}
_ROUND_END: palette.Look = {"color": "#404040", "linewidth": 0.8, "linestyle": "-"}
_PATH: palette.Look = {"color": palette.BLACK, "linewidth": 1.4, "linestyle": "-"}
_EDGE: palette.Look = {
    "edgecolor": palette.GREY,
    "linewidth": 0.4,
}  # outline of pale legend entries
# tracks of sent and of received messages in a lane: distances of top and foot from its middle
_TRACKS = ((0.0, 0.2), (0.2, 0.4))
_MARKED_OUTCOMES = ("late", "lost", "left", "battery")
_MEANING = {
    "late": "late: ended by the server",
    "lost": LOST,
    "left": "left for good",
    "battery": "battery: flat",
    "stopped": "cut off by the end of the run",
    "memory": "the model does not fit into the device's memory",
}


def outcome_meanings(*, are_done: bool, lose_edges: bool) -> dict[str, str]:
    """Return the legend's text for each outcome of tasks whose work was wasted, such as ``late``.

    Args:
        are_done: whether the runs are done. Otherwise, open tasks are not wasted yet.
        lose_edges: whether an edge server failed in any of the runs, which also loses tasks.
    """
    meanings = {outcome: f"wasted, {meaning}" for outcome, meaning in _MEANING.items()}
    if lose_edges:
        meanings["lost"] = f"wasted, {LOST_WITH_EDGES}"
    if not are_done:
        meanings["stopped"] = "not finished yet"
    return meanings


@style.styled
def draw_timeline(
    run: RunFolder,
    *,
    rounds: tuple[int, int] | None = None,
    window: Interval | None = None,
    devices: int = MOST_LANES,
    order: str = "speed",
) -> Figure:
    """Draw the steps of each device over time, and wasted work with its reason.

    Args:
        run: the run.
        rounds: show only rounds ``rounds[0]`` to ``rounds[1] - 1``, numbered from 0 as in the
            records.
        window: show only this span, from and to (simulated s); ``rounds`` overrides it.
        devices: greatest count of devices shown, evenly spread over the order.
        order: ``speed`` (fastest on top), ``first`` (first at work on top) or ``number``.

    Returns:
        The figure.

    Raises:
        PictureError: ``rounds`` are not in the run, or another argument has a value that is not
            allowed.
        NothingToDrawError: no device worked in the shown span.
    """
    history = History(run)
    if rounds is not None:
        window = span_of_rounds(history, *rounds)
    view = View(history, window, devices, order)
    height = min(max(len(view.devices) * _LANE_IN, _LEAST_IN), _MOST_IN)
    figure = Figure(figsize=(style.WIDTH_IN, height + sum(_STRIPS_IN) + _FRAME_IN))
    lanes, work, load = figure.subplots(3, 1, sharex=True, height_ratios=(height, *_STRIPS_IN))
    handles = _draw_lanes(lanes, view)
    draw_work(work, view)
    handles += draw_load(load, view)
    handles += _draw_lines((lanes, work, load), view)
    load.set_xlabel(style.time_label([run], view.unit.name))
    _number_rounds(lanes, view)
    return style.finish(figure, [run], handles, _describe(view))


def _number_rounds(lanes: Axes, view: View) -> None:
    """Write the index of each round above the middle of the round."""
    if not view.rounds:
        return
    numbers = np.array([entry.number for entry in view.rounds])
    ends = np.array([entry.end for entry in view.rounds])
    starts = np.concatenate([[view.start], ends[:-1]])
    middles = (starts + ends) / 2 / view.unit.size
    number_rounds(lanes, numbers, middles, view.history.run.round_word)


def _describe(view: View) -> str:
    """Return a text on the shown span of time and the count of devices that worked in it."""
    text = f"{show_seconds(view.span)} of {view.history.run.clock}"
    if view.start:
        text += f" from {show_seconds(view.start)} on"
    text += ": "
    if len(view.devices) < view.at_work:
        text += f"{len(view.devices):,} of "
    population = len(view.history.population)
    if view.at_work < population:
        return f"{text}{counted(view.at_work, 'device')} that worked, out of {population:,}"
    if population == 1:
        return f"{text}the only device"
    return f"{text}all {population:,} devices"


def _draw_lanes(axes: Axes, view: View) -> list[Artist]:
    """Draw the lanes with labels, and set the limits; return the legend's entries."""
    has_room = _has_room(view)
    axes.set_ylim(max(len(view.devices), _LEAST_LANES) - 0.5, -0.5)
    axes.set_xlim(view.start / view.unit.size, view.end / view.unit.size)
    _draw_bars(axes, view, view.presence, facecolor=palette.PALE, zorder=0)
    colours = palette.step_colours(step.kind for step in view.all_steps)
    handles = _draw_useful_steps(axes, view, colours)
    handles += _draw_messages(axes, view)
    handles += _draw_absences(axes, view)
    handles += _draw_wasted_steps(axes, view, colours if has_room else None)
    handles += _mark_task_ends(axes, view, has_room)
    handles += _tint_groups(axes, view)
    handles += _draw_limits(axes, view)
    handles += mark_rows(axes, view.activities.marks, view.lanes, view.unit.size)
    handles += _mark_splits(axes, view)
    handles += _draw_path(axes, view)
    _name_lanes(axes, view)
    return handles


def _draw_useful_steps(axes: Axes, view: View, colours: Mapping[str, str]) -> list[Artist]:
    """Draw the steps of done tasks; return legend entries for all kinds of steps that occur."""
    handles: list[Artist] = []
    for kind, colour in colours.items():
        steps = [step for step in view.steps if step.kind == kind]
        if steps:
            useful = [step for step in steps if step.task_outcome == "done"]
            _draw_steps(axes, view, useful, gid=kind, facecolor=colour)
            handles.append(Patch(facecolor=colour, label=style.shorten(kind)))
    handles.append(Patch(facecolor=palette.OUTCOMES["done"], label="devices at work"))
    return handles


def _draw_messages(axes: Axes, view: View) -> list[Artist]:
    """Draw messages between devices in both their lanes; return the legend's entries.

    Sent messages are above received ones in the lower half of a lane, over its steps. Lanes that
    are too thin for this have them in full height, under the steps.
    """
    handles: list[Artist] = []
    for is_sent, kind, label, (top, foot) in (
        (True, "upload", "message sent", _TRACKS[0]),
        (False, "download", "message received", _TRACKS[1]),
    ):
        messages = [message for message in view.messages if message.is_sent == is_sent]
        if not messages:
            continue
        two_pixels_s = 2 * view.span / _PIXELS
        start, end, lanes = _bar_positions(view, messages, least=two_pixels_s)
        colour = palette.STEPS[kind]
        look: palette.Look = {"facecolor": colour, "gid": label.replace(" ", "-")}
        if len(view.devices) <= _MANY_LANES:
            style.draw_rectangles(axes, start, end, lanes + top, lanes + foot, zorder=1.5, **look)
        else:
            style.draw_bars(axes, start, end, lanes, view.half_lane, zorder=0.9, **look)
        handles.append(Patch(facecolor=colour, label=label))
    return handles


def _draw_absences(axes: Axes, view: View) -> list[Artist]:
    if view.absences is None:
        return [Patch(facecolor=palette.PALE, label="idle or disconnected", **_EDGE)]
    handles: list[Artist] = [Patch(facecolor=palette.PALE, label="idle", **_EDGE)]
    if view.absences:
        _draw_bars(axes, view, view.absences, facecolor=palette.AWAY, zorder=0.7, gid="away")
        handles.append(Patch(facecolor=palette.AWAY, label="cannot be reached", **_EDGE))
    return handles


def _draw_wasted_steps(axes: Axes, view: View, colours: Mapping[str, str] | None) -> list[Artist]:
    """Draw the steps of failed tasks; return the legend's entries.

    If ``colours`` (by kind of step) is given, bars are hatched over a pale shade of the kind's
    colour. Otherwise bars have the colour of the task's outcome.
    """
    handles: list[Artist] = []
    meanings = outcome_meanings(
        are_done=view.history.run.is_done, lose_edges=view.history.loses_edges
    )
    for outcome, meaning in meanings.items():
        wasted = [step for step in view.steps if step.task_outcome == outcome]
        if not wasted:
            continue
        colour = palette.OUTCOMES[outcome]
        look: palette.Look = {"facecolor": colour}
        if colours is not None:
            hatch = {"edgecolor": colour, "hatch": "//////", "linewidth": 0.8}
            look = {"facecolor": "white", **hatch}
            for kind in sorted({step.kind for step in wasted}):
                steps = [step for step in wasted if step.kind == kind]
                pale = palette.lighten(colours[kind], 0.5)
                _draw_steps(axes, view, steps, gid=f"{kind}-{outcome}", facecolor=pale, **hatch)
        else:
            _draw_steps(axes, view, wasted, gid=f"wasted-{outcome}", facecolor=colour)
        handles.append(Patch(label=meaning, **look))
    return handles


def _mark_task_ends(axes: Axes, view: View, has_room: bool) -> list[Artist]:
    """Draw marks at the ends of failed tasks; return the legend's entries.

    Without ``has_room``, late tasks have no mark.
    """
    # marks (points) get smaller the less room a lane and a round have
    room = min(320 / len(view.devices), 1200 / max(1, len(view.rounds)))
    size = float(np.clip(room, 3.0, 8.0))
    handles: list[Artist] = []
    for outcome in _MARKED_OUTCOMES:
        if outcome == "late" and not has_room:
            continue
        x: list[float] = []
        y: list[int] = []
        for mark in view.task_ends:
            if mark.outcome == outcome and mark.device is not None:
                x.append(mark.time / view.unit.size)
                y.append(view.lanes[mark.device])
        handles += draw_marks(axes, x, y, outcome, size)
    return handles


def _draw_limits(axes: Axes, view: View) -> list[Artist]:
    """Draw a line in each lane where the time limit T of a training ends; return legend entries.

    Nothing is drawn if many lanes or rounds leave no room for these lines.
    """
    if not _has_room(view):
        return []
    times = []
    lanes = []
    for attempt in view.attempts:
        if attempt.limit is not None and view.start < attempt.limit <= view.end:
            times.append(attempt.limit / view.unit.size)
            lanes.append(view.lanes[attempt.device])
    if not times:
        return []
    y = np.array(lanes)
    outline = [patheffects.withStroke(linewidth=3.4, foreground="white")]
    axes.vlines(
        times, y - 0.5, y + 0.5, gid="limit", zorder=2.5, path_effects=outline, **palette.LIMIT
    )
    return [Line2D([], [], label="T, the deadline of a training", **palette.LIMIT)]


def _mark_splits(axes: Axes, view: View) -> list[Artist]:
    """Draw marks at the times at which devices split their data; return the legend's entries."""
    x = []
    y = []
    for attempt in view.attempts:
        if attempt.splits and view.start < attempt.end <= view.end:
            x.append(attempt.end / view.unit.size)
            y.append(view.lanes[attempt.device])
    size = float(np.clip(320 / len(view.devices), 3.0, 7.0))
    return draw_marks(axes, x, y, "split", size)


def _has_room(view: View) -> bool:
    """Whether lanes and rounds are few enough for hatches and single lines."""
    return len(view.devices) <= _MANY_LANES and len(view.rounds) <= _MANY_ROUNDS


def _draw_steps(axes: Axes, view: View, steps: Sequence[StepSpan], **look: Any) -> None:
    """Draw steps as bars that are at least one pixel wide."""
    _draw_bars(axes, view, steps, least=view.span / _PIXELS, **look)


def _draw_bars(
    axes: Axes, view: View, spans: Sequence[TimeSpan], *, least: float = 0.0, **look: Any
) -> None:
    """Draw spans of time as bars in the lanes of their devices, at least ``least`` (s) long."""
    starts, ends, lanes = _bar_positions(view, spans, least)
    style.draw_bars(axes, starts, ends, lanes, view.half_lane, **look)


def _bar_positions(
    view: View, spans: Sequence[TimeSpan], least: float
) -> tuple[Floats, Floats, Ints]:
    """Return starts and ends of bars, in units of the time axis, and their lanes; [n] each.

    Args:
        view: the part of the run to draw.
        spans: spans of time in the lanes of their devices.
        least: least length of a bar (s).
    """
    starts = np.array([span.start for span in spans], dtype=float)
    ends = np.array([span.end for span in spans], dtype=float)
    ends = np.maximum(ends, starts + least)
    lanes = np.array([view.lanes[span.device] for span in spans], dtype=np.int64)
    unit = view.unit.size
    return starts / unit, ends / unit, lanes


def _name_lanes(axes: Axes, view: View) -> None:
    """Label lanes with device and speed: all lanes if there are few, otherwise some."""
    count = len(view.devices)
    speeds = view.history.population["speed"]
    host = view.history.run.scenario["population"].get("host")
    lanes = np.arange(count)
    font_size = 9 if count <= 45 else 8
    tick_length = 0
    if count > _MANY_LANES:
        lanes = choose_evenly(count, 21)
        font_size = 10
        tick_length = 3
    names = []
    for device in view.devices[lanes]:
        host_name = ""
        if host is not None:
            host_count = host["number"]
            host_name = f" at host {device % host_count}"
        names.append(f"{device}{host_name}  ({speeds[device]:.3g}/s)")
    axes.set_yticks(lanes, names, fontsize=font_size)
    axes.tick_params(axis="y", length=tick_length)
    axes.set_ylabel(f"device, speed (samples/s),\n{ORDERS[view.order]}")


def _tint_groups(axes: Axes, view: View) -> list[Artist]:
    """Draw the colour of the device's group as the lane's background; return legend entries."""
    stays = []
    for stay in view.in_lanes(view.activities.stays):
        if stay.end > view.start and stay.start < view.end:
            start = max(stay.start, view.start)
            end = min(stay.end, view.end)
            stays.append(replace(stay, start=start, end=end))
    if not stays:
        return []
    for group in sorted({stay.group for stay in stays}):
        members = [stay for stay in stays if stay.group == group]
        colour = palette.group_tint(group)
        _draw_bars(axes, view, members, gid="group", zorder=0.5, facecolor=colour)
    colour = palette.group_tint(stays[0].group)
    return [Patch(facecolor=colour, label="in a group, each its colour")]


def critical_steps(run: RunFolder) -> list[PathStep]:
    """Return the steps of the critical paths of all rounds, to draw them, in order of time.

    A round's critical path is the chain of steps of tasks that determined when the round ended.
    """
    steps: list[PathStep] = []
    for path in CriticalPaths(run).rounds:
        steps += path.steps
    return steps


def _draw_path(axes: Axes, view: View) -> list[Artist]:
    """Draw a line along the critical path of each round; return the legend's entries.

    The line connects lanes, unless there are too many rounds.
    """
    times = []
    lanes = []
    for step in critical_steps(view.history.run):
        if step.device is None or step.device not in view.lanes:
            continue
        if view.start < step.end and step.start < view.end:
            # the third point, at the step's end, is where the line may have a gap
            times.append([step.start, step.end, step.end])
            lanes.append([view.lanes[step.device]] * 3)
    if not times:
        return []
    x = np.array(times) / view.unit.size
    y = np.array(lanes, dtype=float)
    next_starts_at_end = np.append(x[1:, 0] == x[:-1, 1], False)
    if len(view.rounds) > _MOST_LINES:
        next_starts_at_end[:] = False
    y[~next_starts_at_end, 2] = np.nan  # gap in the line
    outline = [patheffects.withStroke(linewidth=3, foreground="w")]
    label = f"critical path: what each {view.history.run.round_word} waited for"
    axes.plot(
        x.ravel(),
        y.ravel(),
        zorder=4,
        gid="path",
        path_effects=outline,
        scalex=False,
        scaley=False,
        **_PATH,
    )
    return [Line2D([], [], label=label, **_PATH)]


def _draw_lines(panels: tuple[Axes, ...], view: View) -> list[Artist]:
    """Draw vertical lines at round ends, deadlines and acts of processes; return legend entries.

    If there are many, only some are drawn. A deadline after the end of its round has no line, as
    it would be in the next round.
    """
    every = style.thinning_step(len(view.rounds), _MOST_LINES)
    ends = []
    deadlines = []
    for entry in view.rounds:
        if entry.number % every:
            continue
        ends.append(entry.end)
        if entry.reached_deadline is not None:
            deadlines.append(entry.reached_deadline)
    handles: list[Artist] = []
    word = view.history.run.round_word
    suffix = f" (one {word} of {every})" if every > 1 else ""
    opacity = 0.5 if every > 1 else 1.0
    lines: tuple[tuple[str, list[float], palette.Look, str], ...] = (
        ("end", ends, _ROUND_END, f"{word}'s end"),
        ("deadline", deadlines, palette.DEADLINE, "deadline"),
    )
    for gid, times, look, label in lines:
        if times:
            x = np.array(times) / view.unit.size
            style.draw_verticals(panels, x, zorder=2, alpha=opacity, gid=gid, **look)
            handles.append(Line2D([], [], label=label + suffix, alpha=opacity, **look))
    if view.act_times:
        acts = np.unique(np.array(view.act_times) / view.unit.size)
        drawn_acts = acts[:: style.thinning_step(len(acts), _MOST_LINES)]
        style.draw_verticals(panels, drawn_acts, zorder=2, gid="process", **_ACT)
        handles.append(Line2D([], [], label="a process of the world acts", **_ACT))
    return handles
