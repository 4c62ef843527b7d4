"""Fairness of selection over runs: Jain's index, waiting times, and selections by device."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import palette, style
from fedsim.analysis.series import Series, each_alone
from fedsim.common.arrays import Ints
from fedsim.common.round_words import common_word
from fedsim.lab.reading.fairness import jain_over_time, selectable, selections
from fedsim.records.folder import DEVICES
from fedsim.records.ledger import has_no_server
from fedsim.records.reading import RunFolder

Clock = Literal["round", "time"]

_MOST_POINTS = 800  # greatest count of points of a line
# ratio of round counts above which runs are compared by simulated time
_MOST_APART = 3
_AGE: palette.Look = {"color": palette.GREY, "linestyle": (0, (1, 2)), "linewidth": 1.2}
_WIDTH = 1.6  # width of a line (points)
_MOST_GROUPS = 12  # greatest count of groups with a bar
_FAILED = "not valid: slow, late, lost or unfinished"


@style.styled
def draw_fairness(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Draw how evenly devices were selected over the run, and selections by device and group.

    The measures are Jain's index of the devices' counts of selections, which is 1 if all counts are
    equal, and the devices' waiting times since their last selections. The horizontal axis has
    rounds, or simulated time if a run has more than three times as many rounds as some other run.

    Args:
        runs: the runs.
        series: one series per run, with its name and number, which determines colour and dash; by
            default named after the folders.

    Raises:
        NothingToDrawError: no round had a selection, a run has no server, or a run's table of
            devices has only the devices to which the server sent a task.
    """
    if series is None:
        series = each_alone(runs)
    _refuse_unknown_selections(runs)
    counts = [selections_of_devices(run) for run in runs]
    round_counts = [int(run.summary["rounds"]) for run in runs]
    if not any(rounds and count.any() for rounds, count in zip(round_counts, counts, strict=True)):
        raise style.NothingToDrawError("no round had a selection, so there is no fairness to draw")

    figure = Figure(figsize=(style.WIDTH_IN, 8.2))
    above, below = figure.subfigures(2, 1, squeeze=False)[:, 0]
    _draw_over_rounds(above.subplots(1, 4, sharex=True), series, _choose_clock(round_counts))
    looks = [palette.line_of(line.number, _WIDTH) for line in series]
    by_group = [selections_of_groups(run) for run in runs]
    has_groups = any(len(table) > 1 for table in by_group)
    panels = np.ravel(below.subplots(1, 2 if has_groups else 1))
    _draw_devices(panels[0], counts, looks)
    handles: list[Artist] = []
    if len(series) > 1:
        for line, look in zip(series, looks, strict=True):
            handles.append(Line2D([], [], label=line.name, **look))
    handles.append(Line2D([], [], label="the run's age: never selected", **_AGE))
    if has_groups:
        _draw_groups(panels[1], by_group, [look["color"] for look in looks])
        handles.append(Patch(label=_FAILED, **palette.HATCHED))
    return style.finish(figure, runs, handles)


def _refuse_unknown_selections(runs: Sequence[RunFolder]) -> None:
    """Raise ``NothingToDrawError`` if a run selects no devices, or not all devices are known."""
    if any(has_no_server(run.summary["bytes"]) for run in runs):
        raise style.NothingToDrawError(
            "devices that exchange messages without a server are selected by nobody"
        )
    if not all(run.has_all_devices for run in runs):
        raise style.NothingToDrawError(
            "only asked devices have rows, so the waiting times of all are unknown"
        )


def _choose_clock(round_counts: Sequence[int]) -> Clock:
    """Return the unit of the horizontal axis: rounds, or time if runs differ much in rounds.

    Args:
        round_counts: count of rounds of each run.
    """
    if max(round_counts) <= _MOST_APART * max(1, min(round_counts)):
        return "round"
    return "time"


def waiting_times(run: RunFolder, clock: Clock) -> pd.DataFrame:
    """Return how long devices have waited for a selection, at the ends of at most 800 rounds.

    The rounds are evenly spread. The waiting time of a present device counts from its last
    selection, and is 0 rounds if the device was selected in this round. The waiting time of a
    device that was never selected counts from its arrival.

    Args:
        run: the run.
        clock: the unit of waiting times, ``round`` or ``time`` (simulated s).

    Returns:
        DataFrame with a row per round. Columns are ``at``, the count of ended rounds or the time,
        and over the waiting times of all present devices ``mean``, ``p90`` (90th percentile) and
        ``longest``.
    """
    kinds = ("task-start", "arrival", "departure", "round")
    columns = ("time", "kind", "device", "round")
    population = run.table(DEVICES)
    # Counted in rounds, a new device starts as if it was selected in the round before. So the
    # device has waited for 1 round at the end of the round in which it came.
    one_round = int(clock == "round")
    last_selected = np.full(population.num_rows, 0.0 - one_round)
    is_present = np.nan_to_num(population.column("arrival").to_numpy().astype(float)) <= 0
    drawn_rounds = set(style.choose_evenly(run.summary["rounds"], _MOST_POINTS).tolist())
    ended_rounds = 0
    rows = []
    for time, kind, device, number in run.events_of(kinds, columns):
        now = ended_rounds if clock == "round" else time
        if kind == "task-start" and number is not None:
            last_selected[device] = now
        elif kind == "arrival":
            is_present[device] = True
            last_selected[device] = now - one_round
        elif kind == "departure":
            is_present[device] = False
        elif kind == "round":
            if ended_rounds in drawn_rounds and is_present.any():
                waiting = (now - last_selected)[is_present]
                p90 = np.percentile(waiting, 90)
                at = now + one_round  # ``ended_rounds`` does not count this round yet
                rows.append((at, waiting.mean(), p90, waiting.max()))
            ended_rounds += 1
    return pd.DataFrame(rows, columns=["at", "mean", "p90", "longest"], dtype=float)


def selections_of_devices(run: RunFolder) -> Ints:
    """Return how often each device that may train was selected: counts, descending, int64 [n].

    The counts of devices that were never selected are 0.
    """
    counts = selections(run)["device"].value_counts().to_numpy(np.int64)
    return np.append(counts, np.zeros(selectable(run) - len(counts), dtype=np.int64))


def selections_of_groups(run: RunFolder) -> pd.DataFrame:
    """Return counts of selections by the cluster or tier of the selected device.

    Returns:
        DataFrame with a row per group, whose index is the group (-1 for devices without a group).
        Columns are ``valid``, the count of selections whose task was done with a finished epoch,
        and ``failed``, the count of other selections.
    """
    table = selections(run)
    groups = table["group"].fillna(-1).astype(int)
    valid = table["valid"].groupby(groups).agg(["sum", "size"])
    return pd.DataFrame({"valid": valid["sum"], "failed": valid["size"] - valid["sum"]})


def _draw_groups(panel: Axes, by_group: Sequence[pd.DataFrame], colours: Sequence[str]) -> None:
    """Draw counts of selections as a bar per group and run, failed selections hatched on top."""
    all_groups: set[int] = set()
    for table in by_group:
        all_groups.update(table.index)
    groups = sorted(all_groups)[:_MOST_GROUPS]
    width = 0.84 / len(by_group)
    middle_run = (len(by_group) - 1) / 2
    for run, (table, colour) in enumerate(zip(by_group, colours, strict=True)):
        counts = table.reindex(groups, fill_value=0)
        # the bars of a group's runs are side by side, around the group's index
        x = np.arange(len(groups)) + (run - middle_run) * width
        panel.bar(x, counts["valid"], width * 0.92, color=colour)
        panel.bar(
            x,
            counts["failed"],
            width * 0.92,
            counts["valid"],
            color="white",
            edgecolor=colour,
            hatch="//////",
            linewidth=0,
        )
    names = ["none" if group < 0 else str(group) for group in groups]
    panel.set_xticks(range(len(groups)), names)
    panel.set(
        title="selections by group",
        xlabel="group, tier or edge server of the device at that time",
        ylabel="selections",
    )


def _draw_over_rounds(panels: Sequence[Axes], series: Sequence[Series], clock: Clock) -> None:
    """Draw Jain's index in the first panel, and waiting times in the others, over the runs."""
    runs = [line.runs[0] for line in series]
    word = common_word(run.round_word for run in runs)
    by_round = clock == "round"
    if by_round:
        end = max(float(run.summary["rounds"]) for run in runs)
        unit = style.AxisUnit(0.0, 1.0, f"{word}s")
        label = f"{word}s aggregated"
    else:
        end = max(float(run.summary["simulated_s"]) for run in runs)
        unit = style.unit_for(end, style.TIMES)
        label = style.time_label(runs, unit.name)
    jain_panel, *waiting_panels = panels
    titles = {"mean": "mean", "p90": "90th percentile", "longest": "maximum"}
    for line, run in zip(series, runs, strict=True):
        look = palette.line_of(line.number, _WIDTH)
        times, jain_indices = jain_over_time(run)
        x = np.arange(1, len(times) + 1) if by_round else times / unit.size
        jain_panel.plot(x, jain_indices, **look)
        waiting = waiting_times(run, clock)
        for panel, statistic in zip(waiting_panels, titles, strict=True):
            panel.plot(waiting["at"] / unit.size, waiting[statistic] / unit.size, **look)
    jain_panel.set(
        title="Jain's index", ylim=(0, 1.02), ylabel="fairness of selections so far (0 to 1)"
    )
    for panel, title in zip(waiting_panels, titles.values(), strict=True):
        panel.set(title=f"waiting time: {title}", ylim=(0, max(panel.get_ylim()[1], 1 / unit.size)))
        # the run's age: the waiting time of a device that was never selected
        panel.plot([0, end / unit.size], [0, end / unit.size], scaley=False, zorder=1, **_AGE)
    waiting_panels[0].set_ylabel(f"since the last selection ({unit.name})")
    for panel in panels:
        panel.set_xlim(0, end / unit.size)
        panel.set_xlabel(label)
        ticks = MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=by_round)
        panel.xaxis.set_major_locator(ticks)
        panel.grid()


def _draw_devices(panel: Axes, counts: Sequence[Ints], looks: Sequence[palette.Look]) -> None:
    """Draw counts of selections over the share of devices, the most often selected first."""
    for of_devices, look in zip(counts, looks, strict=True):
        # steps are drawn per distinct count, as there are far fewer counts than devices
        begins = np.concatenate([[0], np.flatnonzero(np.diff(of_devices)) + 1])
        edges = np.append(begins, len(of_devices)) * (100 / len(of_devices))
        panel.stairs(of_devices[begins], edges, baseline=None, **look)
    panel.set(title="selections of each device", ylabel="selections", xlim=(0, 100))
    panel.set_xlabel("share of the devices (%), most often selected first")
    panel.set_ylim(bottom=0)
    style.set_whole_ticks(panel.yaxis, 7)
    panel.grid()
