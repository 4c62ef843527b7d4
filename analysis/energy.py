"""Energy by use: joules by phase for one run or several, and battery levels over a run."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import palette, style
from fedsim.analysis.series import (
    Series,
    draw_mean_bar,
    end_axis_at,
    group_by_scenario,
    name_bars,
    whisker_entry,
)
from fedsim.common.arrays import Floats
from fedsim.common.units import show_joules, show_share
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import RecordData
from fedsim.records.reading import RunFolder
from fedsim.world.meters.energy import PHASES, PLACES, TABLE

_COLOURS = {
    "idle": "#A9BFCC",
    "compute": palette.GREEN,
    "receive": palette.SKY,
    "send": palette.BLUE,
    "tail": palette.ORANGE,
    "server": "#332288",
    "edge": "#AA8866",
}
_LOOKS = {phase: {"color": colour} for phase, colour in _COLOURS.items()}
_MOST_BATTERIES = 6
_FLAT: palette.Look = {
    "marker": "s",
    "color": palette.OUTCOMES["battery"],
    "linestyle": "",
    "markersize": 5,
}


class _EnergyBar(NamedTuple):
    """Bar of a series in the picture of energy.

    Attributes:
        label: label of the series.
        summaries: section ``energy`` of the summary of each run that has one.
        phases: DataFrame of joules, with a row per run, and a column per phase of devices (such as
            ``compute``) and per part of the server's side.
    """

    label: str
    summaries: list[RecordData]
    phases: pd.DataFrame


@style.styled
def draw_energy(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Draw the energy that devices and the server's side have used, as a bar for each series.

    A bar is stacked by phase of the devices (such as ``compute`` or ``send``), and by part of the
    server's side. It is the mean over the runs of a series, with a line over the range of the runs.
    The text beside a bar has the sum, the wasted share of the devices' energy, and the carbon
    emissions if counted. Runs without energy are left out.

    Args:
        runs: the runs.
        series: the same runs as series; by default one series per scenario.

    Raises:
        NothingToDrawError: no run has counted energy.
    """
    bars = _read_bars(group_by_scenario(runs) if series is None else series)
    if not any(summary["joules"] for bar in bars for summary in bar.summaries):
        raise style.NothingToDrawError(
            "energy was not counted in any of these runs, so there is none to draw"
        )
    views: dict[str, tuple[str, ...]] = {"drawn by devices": PHASES}
    if any(bar.phases[[*PLACES]].to_numpy().any() for bar in bars):
        views["drawn in all, with the server's side"] = (*PHASES, *PLACES)
    figure = Figure(figsize=(style.WIDTH_IN, 2.3 + 0.55 * len(bars)))
    panels = figure.subplots(1, len(views), sharey=True, squeeze=False)[0]
    for panel, (label, phases) in zip(panels, views.items(), strict=True):
        _draw_bars(panel, bars, phases, label, has_carbon=panel is panels[-1])
    name_bars(panels[0], [bar.label for bar in bars])
    return style.finish(figure, runs, _bar_legend(bars))


def _read_bars(series: Sequence[Series]) -> list[_EnergyBar]:
    """Return a bar for each series of which a run has counted energy, in the order of series."""
    bars = []
    for line in series:
        summaries = [run.summary["energy"] for run in line.runs if "energy" in run.summary]
        if summaries:
            rows = [summary["by_phase"] for summary in summaries]
            bars.append(_EnergyBar(line.label, summaries, pd.DataFrame(rows, dtype=float)))
    return bars


def _draw_bars(
    panel: Axes,
    bars: Sequence[_EnergyBar],
    phases: tuple[str, ...],
    label: str,
    *,
    has_carbon: bool,
) -> None:
    """Draw a bar of energy per series, and set the axis.

    Args:
        panel: the panel.
        bars: the bars, the first on top.
        phases: phases of devices, and parts of the server's side, that are stacked in a bar.
        label: label of the axis, without its unit.
        has_carbon: whether the texts beside the bars have the carbon emissions.
    """
    most = max(float(bar.phases[[*phases]].sum(axis=1).max()) for bar in bars)
    unit = style.unit_for(most, style.JOULES)
    for row, bar in enumerate(bars):
        joules = bar.phases[[*phases]]
        text = show_joules(float(joules.mean().sum()))
        if phases == PHASES:
            text += _wasted_in_words(bar.summaries)
        if has_carbon:
            text += _carbon_in_words(bar.summaries)
        draw_mean_bar(panel, row, joules / unit.size, _LOOKS, text)
    # ratio of the axis to the longest bar, which leaves room for text beside the bars
    room = 1.6 if phases == PHASES else 1.45
    end = max(most / unit.size, 1e-9)
    panel.set_xlim(0, end * room)
    end_axis_at(panel, end)
    panel.set_xlabel(f"{label} ({unit.name})")


def _bar_legend(bars: Sequence[_EnergyBar]) -> list[Artist]:
    """Return the legend's entries: the phases that occur, and the line over the runs' range."""
    handles: list[Artist] = []
    for phase, colour in _COLOURS.items():
        if any(bar.phases[phase].any() for bar in bars):
            handles.append(Patch(facecolor=colour, label=phase))
    if any(len(bar.phases) > 1 for bar in bars):
        handles.append(whisker_entry())
    return handles


def _wasted_in_words(summaries: Sequence[RecordData]) -> str:
    """Return a text on the mean share of devices' energy that was wasted; empty if none was."""
    shares = []
    for summary in summaries:
        total = sum(summary["by_phase"][phase] for phase in PHASES)
        if total:
            shares.append(summary["wasted"] / total)
    if not any(shares):
        return ""
    return f", {show_share(float(np.mean(shares)))} wasted"


def _carbon_in_words(summaries: Sequence[RecordData]) -> str:
    """Return a text on the mean carbon emissions; empty if they were not counted."""
    if "grams" not in summaries[0]:
        return ""
    grams = float(np.mean([summary["grams"] for summary in summaries]))
    if grams >= 1000:
        return f", {grams / 1000:.3g} kg CO2"
    return f", {grams:.3g} g CO2"


@style.styled
def draw_batteries(run: RunFolder) -> Figure:
    """Draw levels of at most six batteries over time, and when their devices worked and ran flat.

    The range of each battery's axis suits the battery's levels. The drawn devices ran flat most
    often; among devices that ran flat equally often, devices with more tasks are drawn. The panels
    are in the order of the device IDs.

    Raises:
        NothingToDrawError: the run has no records of batteries.
    """
    history = History(run)
    levels = read_levels(history) if "energy" in run.summary else {}
    if not levels:
        raise style.NothingToDrawError(
            f"no device of {str(run.path)!r} has a battery of which the records tell"
        )
    devices = _choose_devices(history, levels)
    capacity = run.table(TABLE).column("capacity_j").to_numpy()
    unit = style.unit_for(run.summary["simulated_s"], style.TIMES)
    figure = Figure(figsize=(style.WIDTH_IN, 1.2 + 1.15 * len(devices)))
    panels = figure.subplots(len(devices), 1, sharex=True, squeeze=False)[:, 0]
    handles: list[Artist] = [
        Line2D([], [], color=palette.BLUE, label="level of the battery"),
        Patch(facecolor=palette.GREEN, label="works on a task"),
    ]
    flat_count = 0
    for panel, device in zip(panels, devices, strict=True):
        times, joules = np.array(levels[device]).T
        times = times / unit.size
        percent = 100 * joules / capacity[device]
        steps = history.steps[history.steps["device"] == device]
        _draw_level(panel, times, percent, steps[["start", "end"]].to_numpy(float) / unit.size)
        was_flat = np.concatenate([[False], joules[:-1] <= 0])
        flat_times = times[(joules <= 0) & ~was_flat]
        flat_count += len(flat_times)
        style.draw_markers(panel, flat_times, np.zeros(len(flat_times)), **_FLAT)
        label = f"device {device}\n{show_joules(capacity[device])}"
        panel.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10)
    if flat_count:
        handles.append(Line2D([], [], label="flat", **_FLAT))
    panels[-1].set_xlabel(style.time_label([run], unit.name))
    panels[-1].set_xlim(0, max(run.summary["simulated_s"], 1e-9) / unit.size)
    words = "how full batteries were (%), each on its own range"
    return style.finish(figure, [run], handles, words)


def _draw_level(panel: Axes, times: Floats, percent: Floats, steps: Floats) -> None:
    """Draw the level of a battery over time, and below it the steps of its device.

    Args:
        panel: the panel.
        times: times of the levels, in units of the axis.
        percent: levels (%).
        steps: start and end of each step, float64 [n, 2].
    """
    panel.plot(times, percent, color=palette.BLUE, linewidth=1.3)
    least = float(percent.min())
    most = float(percent.max())
    span = max(most - least, 0.5)
    foot = least - 0.22 * span
    top = least - 0.1 * span
    style.draw_rectangles(panel, steps[:, 0], steps[:, 1], foot, top, facecolor=palette.GREEN)
    panel.set_ylim(least - 0.24 * span, most + 0.06 * span)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=3))


def _choose_devices(history: History, levels: Iterable[int]) -> list[int]:
    """Choose at most ``_MOST_BATTERIES`` devices whose battery levels are known.

    They are the devices that ran flat most often, and among equals the devices with most tasks.

    Args:
        history: the run.
        levels: devices whose battery levels are known.

    Returns:
        The devices, ascending.
    """
    tasks = history.tasks[["device", "outcome"]].assign(flat=history.tasks["outcome"] == "battery")
    counts = tasks.groupby("device")["flat"].agg(["sum", "size"])
    counts = counts[counts.index.isin([*levels])]
    counts = counts.sort_values(["sum", "size"], ascending=False, kind="stable")
    return sorted(counts.index[:_MOST_BATTERIES].tolist())


def read_levels(history: History) -> dict[int, list[list[float]]]:
    """Return the energy in each recorded battery over time, by device.

    Returns:
        Device ID -> points [time (s), level (J)], in order of time; the level is linear between
        them.
    """
    levels: dict[int, list[list[float]]] = {}
    for row in history.data("battery"):
        data = row["data"]
        breakpoints = levels.setdefault(int(row["device"]), [])
        breakpoints += data["path"]
        breakpoints.append([row["time"], data["level"]])
    return levels
