"""Members: the group of each device over time, with shifts, moves and pre-trainings, of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedsim.analysis import palette, style
from fedsim.analysis.marks import mark_rows
from fedsim.analysis.membership import draw_pre_trainings, membership_colour
from fedsim.analysis.paper.lines import attempts_of, strategy_of
from fedsim.analysis.paper.sheet import NumberRow, PaperFigure, add_legend, styled
from fedsim.analysis.series import Series
from fedsim.common.arrays import Floats, Ints
from fedsim.common.round_words import counted
from fedsim.lab.reading.activities import Mark, TimeSpan
from fedsim.lab.reading.attempts import Attempts
from fedsim.lab.reading.history import MARKS, NO_GROUP

_ROW_IN = 0.05
_LEAST_IN = 1.2
_MOST_IN = 4.0
_SIZES_IN = 0.75
_FRAME_IN = 0.9
_MOST_ROWS = 160
_MOST_NAMES = 12  # greatest count of groups with an entry in the legend
_HATCHES = ("", "", "", "//////", "", "......", "......", "xxxxxx", "......", "xxxxxx")


@dataclass(frozen=True)
class Members:
    """Devices of a run and the sizes of their groups over time, to be drawn.

    Attributes:
        attempts: tasks of the run.
        devices: IDs of the drawn devices, from the top row down; ordered by last group.
        marks: arrivals, departures, data shifts and moves of the drawn devices, and tests that
            detected a shift. Moves because a whole group was split are left out.
        times: simulated times (s) at which the size of a group changed, and the run's end.
        sizes: group -> count of its present members from each of ``times`` on; the key -1 is for
            devices without a group.
    """

    attempts: Attempts
    devices: Ints
    marks: tuple[Mark, ...]
    times: Floats
    sizes: dict[int, Ints]


def measure_members(series: Series) -> Members:
    """Return the devices of a line's first run, and their groups over time.

    Args:
        series: the line, which is a variant or scenario with its runs over seeds.

    Raises:
        NothingToDrawError: the run records no assignment of a device to a group.
    """
    attempts = attempts_of(series.runs[0])
    history = attempts.history
    if history.assignments.empty or not history.end:
        raise style.NothingToDrawError(
            f"{strategy_of(series)} records no assignment of a device to a group, so there are no members"
        )
    order = history.order()
    devices = order[style.choose_evenly(len(order), _MOST_ROWS)]
    drawn_devices = set(devices.tolist())
    marks = []
    for mark in attempts.activities.marks:
        is_split = mark.kind == "move" and mark.data.get("why") == "split"
        if mark.kind in MARKS and mark.device in drawn_devices and not is_split:
            marks.append(mark)
    curves = {group: history.sizes(group) for group in [*history.groups, NO_GROUP]}
    changes = [changed_at for changed_at, _ in curves.values()]
    times = np.unique(np.concatenate([[history.end], *changes]))
    sizes = {}
    for group, (changed_at, members) in curves.items():
        last_changes = np.searchsorted(changed_at, times, side="right") - 1
        sizes[group] = members[last_changes]
    return Members(attempts, devices, tuple(marks), times, sizes)


@styled
def draw_members(series: Series, width: float) -> PaperFigure:
    """Draw a row per device in the colours of its groups, and the sizes of the groups.

    Args:
        series: the variant or scenario with its runs over seeds, of which the first run is drawn.
        width: width of the figure (inches).

    Raises:
        NothingToDrawError: the run records no assignment of a device to a group.
    """
    members = measure_members(series)
    count = len(members.devices)
    height = float(np.clip(count * _ROW_IN, _LEAST_IN, _MOST_IN))
    figure = Figure(figsize=(width, height + _SIZES_IN + _FRAME_IN))
    rows, sizes = figure.subplots(2, 1, sharex=True, height_ratios=[height, _SIZES_IN])
    unit = style.unit_for(members.attempts.history.end, style.TIMES)
    rows.set_xlim(0, members.attempts.history.end / unit.size)
    handles = _draw_rows(rows, members, unit.size)
    rows.set_ylabel("device")
    rows.set_yticks([])
    rows.spines["left"].set_visible(False)
    _draw_sizes(sizes, members, unit.size)
    sizes.set_xlabel(f"simulated time ({unit.name})")
    add_legend(figure, handles)
    total = len(members.attempts.history.final)
    notes: tuple[str, ...] = ()
    if count < total:
        notes = (f"of {counted(total, 'device')}, {count} have a row",)
    return PaperFigure(figure, _numbers(series, members), notes)


def _group_look(group: int) -> palette.Look:
    """Return the look of a group: its colour, and a hatch if it would look like another in grey."""
    look: palette.Look = {"facecolor": membership_colour(group), "linewidth": 0}
    hatch = _HATCHES[group % len(_HATCHES)]
    if group != NO_GROUP and hatch:
        look |= {"hatch": hatch, "edgecolor": "white"}
    return look


def _draw_rows(panel: Axes, members: Members, unit: float) -> list[Artist]:
    """Draw each device's groups over time, and its marks; return the legend's entries."""
    rows = {device: float(row) for row, device in enumerate(members.devices.tolist())}
    stays = members.attempts.activities.stays
    panel.set_ylim(len(rows) - 0.5, -0.5)
    handles: list[Artist] = []
    presence = members.attempts.activities.presence
    look: palette.Look = {"facecolor": membership_colour(NO_GROUP), "gid": "present"}
    _draw_spans(panel, presence, rows, unit, look)
    for group in members.attempts.history.groups:
        stays_in_group = [stay for stay in stays if stay.group == group]
        look = {"gid": f"group-{group}", **_group_look(group)}
        _draw_spans(panel, stays_in_group, rows, unit, look)
    handles += _name_groups(members)
    if members.sizes[NO_GROUP].any():
        handles.append(Patch(facecolor=membership_colour(NO_GROUP), label="no group"))
    handles += draw_pre_trainings(panel, members.attempts.all, rows, unit)
    size = float(np.clip(150 / len(rows), 1.6, 4.0))
    return handles + mark_rows(panel, members.marks, rows, unit, size)


def _name_groups(members: Members) -> list[Artist]:
    """Return the legend's entries of the groups; if there are many, of the largest groups only."""
    groups = members.attempts.history.groups
    durations = np.diff(members.times)
    device_seconds = {group: float(members.sizes[group][:-1] @ durations) for group in groups}
    largest = sorted(groups, key=lambda group: (-device_seconds[group], group))[:_MOST_NAMES]
    handles: list[Artist] = []
    for group in sorted(largest):
        handles.append(Patch(label=style.group_name(group), **_group_look(group)))
    others = len(groups) - len(largest)
    if others:
        label = counted(others, "smaller group")
        handles.append(Patch(facecolor="white", edgecolor=palette.GREY, linewidth=0.5, label=label))
    return handles


def _draw_spans(
    panel: Axes,
    spans: Sequence[TimeSpan],
    rows: Mapping[int, float],
    unit: float,
    look: palette.Look,
) -> None:
    """Draw spans of time as bars in the rows of their devices; skip devices without a row."""
    starts = []
    ends = []
    y = []
    for span in spans:
        if span.device in rows:
            starts.append(span.start / unit)
            ends.append(span.end / unit)
            y.append(rows[span.device])
    if starts:
        style.draw_bars(panel, starts, ends, y, 0.45, **look)


def _draw_sizes(panel: Axes, members: Members, unit: float) -> None:
    """Draw the count of members of each group over time, stacked."""
    x = members.times / unit
    base = np.zeros(len(x))
    for group, sizes in members.sizes.items():
        top = base + sizes
        look: palette.Look = {"gid": f"size-{group}", **_group_look(group)}
        panel.fill_between(x, base, top, step="post", **look)
        panel.step(x, top, where="post", color="white", linewidth=0.5)
        base = top
    panel.step(x, base, where="post", color=palette.BLACK, linewidth=0.8, gid="present")
    panel.set_ylim(0, max(1.0, float(base.max()) * 1.05))
    style.set_whole_ticks(panel.yaxis, 3)
    panel.set_ylabel("devices")


def _numbers(series: Series, members: Members) -> list[NumberRow]:
    """Return a row per stay, mark and pre-training, and per size of a group at each time."""
    rows: list[NumberRow] = []
    drawn_devices = set(members.devices.tolist())

    def add(number: str, device: int | None, start: float, end: float | None, **more: int) -> None:
        rows.append(
            {"line": series.name, "number": number, "device": device, "start_s": start}
            | {"end_s": end}
            | more
        )

    for stay in members.attempts.activities.stays:
        if stay.device in drawn_devices:
            add("stay", stay.device, stay.start, stay.end, group=stay.group)
    for mark in members.marks:
        add(mark.kind, mark.device, mark.time, end=None)
    for attempt in members.attempts.all:
        if attempt.is_preparation and attempt.device in drawn_devices:
            for step in attempt.of_kind("train"):
                add("pre-training", attempt.device, step.start, step.end)
    for group, sizes in members.sizes.items():
        for time, size in zip(members.times.tolist(), sizes.tolist(), strict=True):
            add("size", device=None, start=time, end=None, group=group, devices=size)
    return rows
