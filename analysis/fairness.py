"""Fairness over a run, for one or several side by side: Jain's index, waiting times, and
selections by device and group.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.style import Series, each_alone
from fedsim.common.arrays import Ints
from fedsim.lab.reading.fairness import jain_over_time, selections
from fedsim.records.folder import DEVICES
from fedsim.records.reading import RunFolder

Clock = Literal["round", "time"]

_MOST = 800  # points of a line: more than pixels are of no use
# runs whose numbers of rounds differ by more than this factor are compared on the clock of
# simulated time
_UNLIKE = 3
_AGE: dict[str, Any] = {"color": style.GREY, "linestyle": (0, (1, 2)), "linewidth": 1.2}
_WIDTH = 1.6  # of a line, in points
_GROUPS = 12  # more clusters than this do not get a bar each
_FAILED = "not valid: slow, late, lost or cut off"


@style.styled
def draw_fairness(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Fairness of selection: Jain's index and waiting times as the run goes on, and selections
    by device and by group.

    Runs with very different numbers of rounds are drawn over simulated time. ``series``, one per
    run, sets names and looks; by default folders give the names.
    """
    series = each_alone(runs) if series is None else series
    if not all(run.has_all_devices for run in runs):
        raise style.NothingToDrawError(
            "only asked devices have rows, so the waiting times of all are unknown"
        )
    counts = [selections_of_devices(run) for run in runs]
    rounds = [int(run.summary["rounds"]) for run in runs]
    if not any(number and count.any() for number, count in zip(rounds, counts, strict=True)):
        raise style.NothingToDrawError("no round had a selection, so there is no fairness to draw")
    clock: Clock = "round" if max(rounds) <= _UNLIKE * max(1, min(rounds)) else "time"

    figure = Figure(figsize=(style.WIDTH_IN, 8.2))
    above, below = figure.subfigures(2, 1, squeeze=False)[:, 0]
    _draw_over_rounds(above.subplots(1, 4, sharex=True), series, clock)
    grouped = [selections_of_groups(run) for run in runs]
    looks = [style.line_of(one.number, _WIDTH) for one in series]
    devices, *groups = np.ravel(below.subplots(1, 1 + any(len(own) > 1 for own in grouped)))
    _draw_devices(devices, counts, looks)
    for panel in groups:
        _draw_groups(panel, grouped, [look["color"] for look in looks])
    lines = [
        Line2D([], [], label=one.name, **look)
        for one, look in zip(series, looks, strict=True)
        if len(series) > 1
    ]
    age = Line2D([], [], label="the run's age: never selected", **_AGE)
    return style.finished(
        figure, runs, [*lines, age, *(Patch(label=_FAILED, **style.HATCHED) for _ in groups)]
    )


def waiting_times(run: RunFolder, clock: Clock) -> pd.DataFrame:
    """Waiting times of devices at the ends of at most 800 rounds, evenly spread: in rounds, or
    simulated time (s).

    Columns: ``at``, ended rounds or the time; over all present devices ``mean``, ``tenth`` (90th
    percentile) and ``longest`` of the time since a device's last selection (0 rounds for this one),
    or else since its arrival.
    """
    kinds = ("task-start", "arrival", "departure", "round")
    columns = ("time", "kind", "device", "round")
    population = run.table(DEVICES)
    last = np.full(population.num_rows, -1.0 if clock == "round" else 0.0)
    there = np.nan_to_num(population.column("arrival").to_numpy().astype(float)) <= 0
    shown = set(style.evenly(run.summary["rounds"], _MOST).tolist())
    ended = 0
    moments = []
    tick = int(clock == "round")
    for time, kind, device, number in run.events_of(kinds, columns):
        now = ended if clock == "round" else time
        if kind == "task-start" and number is not None:
            last[device] = now
        elif kind == "arrival":
            there[device], last[device] = True, now - tick
        elif kind == "departure":
            there[device] = False
        elif kind == "round":
            if ended in shown and there.any():
                waited = (now - last)[there]
                moments.append((now + tick, waited.mean(), np.percentile(waited, 90), waited.max()))
            ended += 1
    return pd.DataFrame(moments, columns=["at", "mean", "tenth", "longest"], dtype=float)


def selections_of_devices(run: RunFolder) -> Ints:
    """Selections of each device, the most often selected first, int64 [n]."""
    counts = selections(run)["device"].value_counts().to_numpy(np.int64)
    return np.append(counts, np.zeros(run.size(DEVICES) - len(counts), dtype=np.int64))


def selections_of_groups(run: RunFolder) -> pd.DataFrame:
    """Selections by the device's cluster or tier at that time (-1 for none): ``valid`` and
    ``failed``.
    """
    asked = selections(run)
    valid = asked["valid"].groupby(asked["group"].fillna(-1).astype(int)).agg(["sum", "size"])
    return pd.DataFrame({"valid": valid["sum"], "failed": valid["size"] - valid["sum"]})


def _draw_groups(panel: Axes, grouped: Sequence[pd.DataFrame], colours: Sequence[str]) -> None:
    """A bar for each group and run, with the selections that were not valid hatched on top."""
    keys = sorted({key for own in grouped for key in own.index})[:_GROUPS]
    width = 0.84 / len(grouped)
    for run, (own, colour) in enumerate(zip(grouped, colours, strict=True)):
        own = own.reindex(keys, fill_value=0)
        at = np.arange(len(keys)) + (run - (len(grouped) - 1) / 2) * width
        panel.bar(at, own["valid"], width * 0.92, color=colour)
        panel.bar(
            at,
            own["failed"],
            width * 0.92,
            own["valid"],
            color="white",
            edgecolor=colour,
            hatch="//////",
            linewidth=0,
        )
    panel.set_xticks(range(len(keys)), ["none" if key < 0 else str(key) for key in keys])
    panel.set(
        title="selections by group",
        xlabel="group, cluster or tier of the device at that time",
        ylabel="selections",
    )


def _draw_over_rounds(panels: Sequence[Axes], series: Sequence[Series], clock: Clock) -> None:
    jain, mean, *_ = panels
    end = max(
        float(one.runs[0].summary["rounds" if clock == "round" else "simulated_s"])
        for one in series
    )
    unit = style.unit_for(end, style.TIMES if clock == "time" else ((0.0, 1.0, "rounds"),))
    titles = {"mean": "mean", "tenth": "90th percentile", "longest": "maximum"}
    for one in series:
        look = style.line_of(one.number, _WIDTH)
        waiting = waiting_times(one.runs[0], clock)
        time, index = jain_over_time(one.runs[0])
        jain.plot(
            np.arange(1, len(time) + 1) if clock == "round" else time / unit.size, index, **look
        )
        for panel, name in zip(panels[1:], titles, strict=True):
            panel.plot(waiting["at"] / unit.size, waiting[name] / unit.size, **look)
    jain.set(title="Jain's index", ylim=(0, 1.02), ylabel="fairness of selections so far (0 to 1)")
    for panel, title in zip(panels[1:], titles.values(), strict=True):
        panel.set(title=f"waiting time: {title}", ylim=(0, panel.get_ylim()[1]))
        panel.plot([0, end / unit.size], [0, end / unit.size], scaley=False, zorder=1, **_AGE)
    mean.set_ylabel(f"since the last selection ({unit.name})")
    for panel in panels:
        panel.set_xlim(left=0)
        panel.set_xlabel(
            "rounds aggregated" if clock == "round" else f"simulated time ({unit.name})"
        )
        panel.xaxis.set_major_locator(
            MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=clock == "round")
        )
        panel.grid()


def _draw_devices(panel: Axes, counts: Sequence[Ints], looks: Sequence[dict[str, Any]]) -> None:
    """Draw selections of each device, the most often selected at the left, over a share of the
    population.
    """
    for count, look in zip(counts, looks, strict=True):
        # a step a value: there are few, of any population
        begins = np.concatenate([[0], np.flatnonzero(np.diff(count)) + 1])
        edges = np.append(begins, len(count)) * (100 / len(count))
        panel.stairs(count[begins], edges, baseline=None, **look)
    panel.set(title="selections of each device", ylabel="selections", xlim=(0, 100))
    panel.set_xlabel("share of the devices (%), most often selected first")
    panel.set_ylim(bottom=0)
    style.whole_ticks(panel.yaxis, 7)
    panel.grid()
