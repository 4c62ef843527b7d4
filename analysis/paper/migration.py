"""Migration: shifts of data, the moves between groups that follow, and the devices in groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsim.analysis import palette, style
from fedsim.analysis.paper.lines import attempts_of, measure_each, refuse_too_many, strategy_of
from fedsim.analysis.paper.sheet import (
    BAND,
    NumberRow,
    PaperFigure,
    Spread,
    SpreadCurve,
    add_legend,
    band_handle,
    columns_for,
    panel_stacks,
    styled,
)
from fedsim.analysis.series import Series
from fedsim.common.arrays import Floats, Ints
from fedsim.lab.reading.attempts import Attempts
from fedsim.lab.reading.history import NO_GROUP
from fedsim.records.reading import RunFolder

MOST_LINES = 4
_POINTS = 20  # intervals into which the time axis is divided; a curve has a point at each border
_COUNTS_IN = 0.95
_DEVICES_IN = 0.85
_PURITY_IN = 0.6
_FRAME_IN = 0.45

EVENTS: dict[str, palette.Look] = {
    "shift": {
        "label": "data shifts",
        "color": palette.BLACK,
        "linestyle": "-",
        "marker": "o",
        "markerfacecolor": "white",
    },
    "noticed": {
        "label": "shifts noticed",
        "color": palette.BLACK,
        "linestyle": (0, (1, 1.2)),
        "marker": "o",
    },
    "move": {
        "label": "moves between groups",
        "color": "#332288",
        "linestyle": (0, (4, 1.5)),
        "marker": "^",
    },
    "joined": {
        "label": "first groups of devices",
        "color": "#44AA99",
        "linestyle": (0, (4, 1.2, 1, 1.2)),
        "marker": "s",
    },
    "pre-training": {
        "label": "pre-trainings",
        "color": palette.PRE_TRAINING,
        "linestyle": "-",
        "marker": "D",
    },
}
"""Kind of event -> look of its line in the figure."""

DEVICES: dict[str, palette.Look] = {
    "present": {"label": "devices present", "color": palette.GREY, "linestyle": "-"},
    "grouped": {"label": "of them in a group", "color": "#882255", "linestyle": (0, (4, 1.5))},
}
_PURITY: palette.Look = {"label": "purity of the groups", "color": palette.BLACK, "marker": "."}


@dataclass(frozen=True)
class MigrationLine:
    """Data shifts and moves between groups in the runs of a figure's line.

    A line is a variant or scenario with its runs over seeds.

    Attributes:
        name: name of the line.
        seeds: count of runs.
        times: simulated times (s) [n]; the last is the end of the run that ended first.
        counts: kind of event (``EVENTS``) -> count of events until each of ``times``, as mean and
            range over seeds.
        devices: ``present`` or ``grouped`` -> count of devices that are present, or that are in a
            group, at each of ``times``.
        purity: share (0..1) of devices whose true group is the most frequent true group in their
            group, at each of ``times``, as measured in the last round that had ended. None at times
            before the first value of some seed. Empty if a run does not know the true groups, which
            are sets of devices with alike data.
        totals: kind of event -> count of events in a whole run.
    """

    name: str
    seeds: int
    times: tuple[float, ...]
    counts: dict[str, tuple[Spread, ...]]
    devices: dict[str, tuple[Spread, ...]]
    purity: tuple[Spread | None, ...]
    totals: dict[str, Spread]

    def numbers(self) -> list[NumberRow]:
        """Return the rows of the figure's CSV: one per number and time, and one per total."""
        rows: list[NumberRow] = []
        curves: dict[str, Sequence[Spread | None]] = {**self.counts, **self.devices}
        curves["purity"] = self.purity
        for name, spreads in curves.items():
            for time, spread in zip(self.times, spreads, strict=False):
                if spread is not None:
                    rows.append(spread.row(self.name, name) | {"time_s": time})
        for name, spread in self.totals.items():
            rows.append(spread.row(self.name, f"total {name}"))
        return rows


def event_times(attempts: Attempts) -> dict[str, Floats]:
    """Return the times (s) of a run's events, ascending, by kind (such as ``shift``: ``EVENTS``).

    A move is a device's change from one group to another, unless its whole group was split. The
    first assignment of a device to a group is no move, and counts as ``joined``. The time of a
    pre-training is its start.
    """
    history = attempts.history
    times: dict[str, list[float]] = {kind: [] for kind in EVENTS}
    for mark in attempts.activities.marks:
        if mark.kind in ("shift", "noticed"):
            times[mark.kind].append(mark.time)
    migrations = history.migrations
    times["move"] = migrations.loc[migrations["why"] != "split", "time"].tolist()
    first_assignments = history.assignments.drop_duplicates("device")
    # CFL records the removal of a device from a split cluster as an assignment to no group
    has_group = first_assignments["group"] != NO_GROUP
    times["joined"] = first_assignments.loc[has_group, "time"].tolist()
    for attempt in attempts.all:
        if attempt.is_preparation:
            times["pre-training"] += [step.start for step in attempt.of_kind("train")]
    return {kind: np.sort(np.array(values, dtype=float)) for kind, values in times.items()}


def measure_migration(series: Series) -> MigrationLine:
    """Return counts of data shifts, and of devices' moves between groups, over time.

    The result also has the counts of present devices and of devices in groups, and the purity of
    the groups.

    Args:
        series: the runs of a line of the figure: a variant or scenario with its runs over seeds.

    Raises:
        NothingToDrawError: a run records no assignment of a device to a group.
    """
    runs = [*map(attempts_of, series.runs)]
    for attempts in runs:
        if attempts.history.assignments.empty:
            raise style.NothingToDrawError(
                f"{strategy_of(series)} records no assignment of a device to a group, so nobody migrates"
            )
    end = min(map(attrgetter("history.end"), runs))
    times = np.linspace(0.0, end, _POINTS + 1)
    events_of_runs = [*map(event_times, runs)]
    counts = {}
    totals = {}
    for kind in EVENTS:
        counts_of_runs: list[Floats | Ints] = []
        for events in events_of_runs:
            counts_of_runs.append(np.searchsorted(events[kind], times, side="right"))
        counts[kind] = _spreads(counts_of_runs)
        totals[kind] = Spread.of([float(len(events[kind])) for events in events_of_runs])
    members = [_count_members(attempts, times) for attempts in runs]
    devices = {}
    for name in DEVICES:
        devices[name] = _spreads([*map(itemgetter(name), members)])
    return MigrationLine(
        name=series.name,
        seeds=len(runs),
        times=tuple(times.tolist()),
        counts=counts,
        devices=devices,
        purity=_purity(series.runs, times),
        totals=totals,
    )


def _spreads(values: Sequence[Floats | Ints]) -> tuple[Spread, ...]:
    """Return mean, lowest and highest over seeds at each time, from an array [times] per seed."""
    table = np.array(values, dtype=float)
    return tuple(map(Spread.of, table.T.tolist()))


def _count_members(attempts: Attempts, times: Floats) -> dict[str, Floats]:
    """Return the counts of devices that are present, and in a group, at each time, float64 [n]."""
    history = attempts.history
    stays = history.stays
    counts = {}
    grouped = stays[stays["group"] != NO_GROUP]
    for name, spans in (("present", stays), ("grouped", grouped)):
        starts = np.sort(spans["start"].to_numpy(float))
        started = np.searchsorted(starts, times, side="right")
        ends = np.sort(spans["end"].to_numpy(float))
        # a stay that ends with the run has no departure: its device is still there
        ended = np.searchsorted(ends[ends < history.end], times, side="right")
        counts[name] = (started - ended).astype(float)
    return counts


def _purity(runs: Sequence[RunFolder], times: Floats) -> tuple[Spread | None, ...]:
    """Return the purity of the groups at each time, as of the last ended round, over seeds.

    Purity is the share of devices whose true group is the most frequent one in their group. A value
    is None at times before a seed's first value. The result is empty if a run has no values.
    """
    curves = []
    for run in runs:
        rows = [row for row in run.rounds if row["purity"] is not None]
        if not rows:
            return ()
        ends = np.array([*map(itemgetter("time"), rows)])
        values = np.array([*map(itemgetter("purity"), rows)])
        curves.append((ends, values))
    spreads: list[Spread | None] = []
    for time in times.tolist():
        at_time = []
        for ends, values in curves:
            last_ended = int(np.searchsorted(ends, time, side="right")) - 1
            if last_ended >= 0:
                at_time.append(float(values[last_ended]))
        spreads.append(Spread.of(at_time) if len(at_time) == len(curves) else None)
    return tuple(spreads)


@styled
def draw_migration(series: Sequence[Series], width: float) -> PaperFigure:
    """Draw cumulative counts of shifts and moves, devices in groups, and purity, for each line.

    Args:
        series: the lines to draw; a line is a variant or scenario with its runs over seeds.
        width: width of the figure (inches).

    Raises:
        NothingToDrawError: no line puts devices into groups.
        PictureError: there are more lines with groups than the figure has room for.
    """
    measured, notes = measure_each(series, lambda entry: (entry, measure_migration(entry)))
    refuse_too_many("migration", [entry for entry, _ in measured], MOST_LINES)
    lines = [line for _, line in measured]
    columns = columns_for(width, len(lines))
    rows = math.ceil(len(lines) / columns)
    heights = [_COUNTS_IN, _DEVICES_IN]
    if any(map(attrgetter("purity"), lines)):
        heights.append(_PURITY_IN)
    height = _FRAME_IN + rows * sum(heights) + 0.3
    figure = Figure(figsize=(width, height))
    unit = style.unit_for(max(line.times[-1] for line in lines), style.TIMES)
    stacks = panel_stacks(figure, len(lines), columns, heights)
    for line, (panels, is_lowest) in zip(lines, stacks, strict=True):
        _draw_line(panels, line, unit.size)
        if is_lowest:
            panels[-1].set_xlabel(f"simulated time ({unit.name})")
            panels[-1].tick_params(labelbottom=True)
    add_legend(figure, _handles(lines))
    numbers: list[NumberRow] = []
    for line in lines:
        numbers += line.numbers()
    return PaperFigure(figure, numbers, tuple(notes))


def _draw_line(panels: Sequence[Axes], line: MigrationLine, unit_s: float) -> None:
    """Draw a line's events, devices and purity (if there is a third panel) over time.

    Args:
        panels: the line's panels, from top to bottom.
        line: the line.
        unit_s: unit of the horizontal axis (s).
    """
    x = np.array(line.times) / unit_s
    for kind, look in EVENTS.items():
        if line.totals[kind].high > 0:
            extra: palette.Look = {"markersize": 2.4, "markevery": 2, "gid": kind}
            if kind == "shift":
                extra["markersize"] = 4.2  # the mark is a ring around the dot of ``noticed``
            _draw_curve(panels[0], x, line.counts[kind], look | extra)
    panels[0].set_ylabel("events so far")
    panels[0].set_title(line.name)
    for name, look in DEVICES.items():
        _draw_curve(panels[1], x, line.devices[name], look | {"gid": name})
    panels[1].set_ylabel("devices")
    for panel in panels[:2]:
        panel.set_ylim(bottom=0)
    panels[0].set_xlim(0, float(x[-1]))
    if len(panels) > 2:
        _draw_purity(panels[2], line, x)
    for panel in panels:
        panel.grid(axis="y")


def _draw_purity(panel: Axes, line: MigrationLine, x: Floats) -> None:
    known_x = []
    spreads = []
    for position, spread in zip(x.tolist(), line.purity, strict=False):
        if spread is not None:
            known_x.append(position)
            spreads.append(spread)
    _draw_curve(panel, np.array(known_x), spreads, _PURITY | {"gid": "purity"})
    panel.set_ylim(0, 1.02)
    panel.set_ylabel("purity")


def _draw_curve(panel: Axes, x: Floats, spreads: Sequence[Spread], look: palette.Look) -> None:
    curve = SpreadCurve.of(spreads)
    band: palette.Look = {"color": look["color"], "alpha": BAND, "linewidth": 0}
    if spreads and spreads[0].seeds > 1:
        panel.fill_between(x, curve.low, curve.high, gid=f"band-{look['gid']}", **band)
    panel.plot(x, curve.mean, **look)


def _handles(lines: Sequence[MigrationLine]) -> list[Artist]:
    handles: list[Artist] = []
    for kind, look in EVENTS.items():
        if any(line.totals[kind].high > 0 for line in lines):
            handles.append(Line2D([], [], **look))
    handles += [Line2D([], [], **look) for look in DEVICES.values()]
    seeds = max(map(attrgetter("seeds"), lines))
    if seeds > 1:
        handles.append(band_handle(seeds))
    return handles
