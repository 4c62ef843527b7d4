"""Fairness over a run, for one or several side by side: Jain's index, how long devices wait, who was selected how often."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2DBase, ScaledTranslation
from numpy.typing import NDArray

from fedsim.analysis import style
from fedsim.analysis.waiting import Clock, read_jain, read_waiting, selections_of_devices, selections_of_groups
from fedsim.records.reading import RunFolder

_UNLIKE = 3  # runs whose numbers of rounds differ by more than this factor are compared on the clock of simulated time
_GROUPS = 12  # more clusters than this do not get a bar each
_AGE: dict[str, Any] = {"color": style.GREY, "linestyle": (0, (1, 2)), "linewidth": 1.2}
_APART = 1.8  # points between lines that would lie on one another


@style.styled
def draw_fairness(runs: Sequence[RunFolder], names: Sequence[str] | None = None) -> Figure:
    """Over rounds Jain's index of the selections and the waiting time of all devices; in total the selections of each.

    Waiting time is how long ago a device was last selected, or how old the run is if it never was: its mean, 90th percentile
    and maximum. Runs that differ much in their numbers of rounds, as those without rounds do, are drawn over simulated time.
    They are called after their folders unless ``names`` are given.

    Raises:
        NothingToDrawError: none of the runs has a round with a selection.
        RunFolderError: a folder is damaged.
    """
    counts = [selections_of_devices(run) for run in runs]
    rounds = [int(run.summary["rounds"]) for run in runs]
    if not any(number and count.any() for number, count in zip(rounds, counts, strict=True)):
        raise style.NothingToDrawError("no round had a selection, so there is no fairness to draw")
    clock: Clock = "round" if max(rounds) <= _UNLIKE * max(1, min(rounds)) else "time"
    longest = max(float(run.summary["simulated_s"]) for run in runs)
    unit = style.Unit(1.0, "rounds") if clock == "round" else style.time_unit(longest)

    figure = Figure(figsize=(style.WIDTH_IN, 8.2))
    grid = figure.add_gridspec(2, 1)
    above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    _draw_over_rounds(above.subplots(1, 4, sharex=True), runs, clock, unit)
    devices, groups = below.subplots(1, 2)
    _draw_devices(devices, counts, figure.dpi_scale_trans)
    _draw_groups(groups, runs)
    if len(runs) == 1:
        figure.suptitle(style.headline(runs[0]))
    _draw_legend(figure, style.run_labels(runs, names))
    return figure


def _look(number: int) -> dict[str, Any]:
    turn, colour = divmod(number, len(style.SERIES))
    return {"color": style.SERIES[colour], "linestyle": ("-", "--", ":", "-.")[turn % 4], "linewidth": 1.6}


def _draw_over_rounds(panels: Sequence[Axes], runs: Sequence[RunFolder], clock: Clock, unit: style.Unit) -> None:
    jain, mean, tenth, longest = panels
    since = 1.0 if clock == "round" else unit.size
    end = max(float(run.summary["rounds" if clock == "round" else "simulated_s"]) for run in runs)
    for number, run in enumerate(runs):
        look, waiting = _look(number), read_waiting(run, clock)
        at, index = read_jain(run, clock)
        jain.plot(at / unit.size, index, **look)
        for panel, values in ((mean, waiting.mean), (tenth, waiting.tenth), (longest, waiting.longest)):
            panel.plot(waiting.at / unit.size, values / since, **look)
    jain.set(title="Jain's index", ylim=(0, 1.02))
    for panel, title in ((mean, "mean"), (tenth, "90th percentile"), (longest, "maximum")):
        panel.set(title=f"waiting time: {title}", ylim=(0, panel.get_ylim()[1]))
        panel.plot([0, end / unit.size], [0, end / since], scaley=False, zorder=1, **_AGE)
    jain.set_ylabel("fairness of selections so far (0 to 1)")
    mean.set_ylabel(f"since the last selection ({unit.name})")
    for panel in panels:
        panel.set_xlim(left=0)
        panel.set_xlabel("rounds aggregated" if clock == "round" else f"simulated time ({unit.name})")
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=clock == "round"))
        panel.grid(color=style.PALE, linewidth=1)


def _draw_devices(panel: Axes, counts: Sequence[NDArray[np.int64]], inches: Affine2DBase) -> None:
    """Selections of each device, the most often selected at the left; populations of any size have one width.

    Counts are whole numbers and often the same: each line is shifted by a hair, so that all can be seen.
    """
    for number, count in enumerate(counts):
        begins = np.concatenate([[0], np.flatnonzero(np.diff(count)) + 1])  # a step a value: there are few, of any population
        edges = np.append(begins, len(count)) * (100 / len(count))
        line = panel.stairs(count[begins], edges, baseline=None, **_look(number))
        shift = _APART / 72 * (number - (len(counts) - 1) / 2)
        line.set_transform(panel.transData + ScaledTranslation(0, shift, inches))
    panel.set(
        title="selections of each device", xlabel="share of the devices (%), most often selected first", ylabel="selections"
    )
    panel.set_xlim(0, 100)
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    panel.grid(color=style.PALE, linewidth=1)


def _draw_groups(panel: Axes, runs: Sequence[RunFolder]) -> None:
    """Selections by the cluster or tier that a device was in at that time, those that were not valid hatched on top."""
    groups = [selections_of_groups(run) for run in runs]
    keys = sorted({key for counts in groups for key in counts}, key=lambda key: (key is None, key or 0))[:_GROUPS]
    width = 0.84 / max(sum(key in counts for counts in groups) for key in keys)
    for place, key in enumerate(keys):
        present = [number for number, counts in enumerate(groups) if key in counts]
        for bar, number in enumerate(present):
            left = place + (bar - len(present) / 2) * width
            valid, failed = groups[number][key]
            colour = style.SERIES[number % len(style.SERIES)]
            panel.bar(left, valid, width * 0.92, align="edge", color=colour)
            pale = style.lighten(colour, 0.75)
            panel.bar(
                left, failed, width * 0.92, valid, align="edge", color=pale, edgecolor=colour, hatch="//////", linewidth=0
            )
    panel.tick_params(axis="x", length=0)
    if keys == [None]:
        panel.set_xticks([])
        panel.set(title="selections in all", ylabel="selections")
    else:
        panel.set_xticks(range(len(keys)), ["none" if key is None else str(key) for key in keys])
        panel.set(title="selections by group", xlabel="group, cluster or tier of the device at that time", ylabel="selections")
    panel.set_xlim(-0.6, len(keys) - 0.4)
    panel.margins(y=0.05)
    panel.set_ylim(bottom=0)


def _draw_legend(figure: Figure, labels: Sequence[str]) -> None:
    age = Line2D([], [], label="the run's age: never selected", **_AGE)
    what = "not valid: slow, late, lost or cut off"
    failed = Patch(facecolor=style.PALE, edgecolor=style.GREY, hatch="//////", label=what)
    handles = [Line2D([], [], **_look(number)) for number in range(len(labels))] if len(labels) > 1 else []
    style.legend_below(figure, [*handles, age, failed], [*labels[: len(handles)], str(age.get_label()), what])
