"""Energy by use: joules by phase for one run or several, and battery levels over a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.style import Series, draw_mean_bar, group_by_scenario, name_bars
from fedsim.common.units import show_joules
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder
from fedsim.world.meters.energy import PHASES, PLACES, TABLE

_COLOURS = {
    "idle": "#A9BFCC",
    "compute": style.GREEN,
    "receive": style.SKY,
    "send": style.BLUE,
    "tail": style.ORANGE,
}
_COLOURS |= {"server": "#332288", "edge": "#AA8866"}
# as ``show_joules`` counts
_JOULES = ((3.6e9, 3.6e9, "MWh"), (1e6, 3.6e6, "kWh"), (1e3, 1e3, "kJ"), (0.0, 1.0, "J"))
_MOST_BATTERIES = 6
_FLAT: dict[str, Any] = {
    "marker": "s",
    "color": style.OUTCOMES["battery"],
    "linestyle": "",
    "markersize": 5,
}


@style.styled
def draw_energy(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Joules that devices drew by phase, and with those of the server's side; what was wasted,
    and the carbon.

    One bar per series, by default the runs of a scenario: their mean, with a line over their
    range. Runs without energy are left out.
    """
    series = group_by_scenario(runs) if series is None else series
    every = [
        [run.summary["energy"] for run in one.runs if "energy" in run.summary] for one in series
    ]
    books = [own for own in every if own]
    if not any(book["joules"] for own in books for book in own):
        raise style.NothingToDrawError(
            "energy was not counted in any of these runs, so there is none to draw"
        )
    tables = [pd.DataFrame([book["by_phase"] for book in own], dtype=float) for own in books]
    views: dict[str, tuple[str, ...]] = {"drawn by devices": PHASES}
    if any(table[[*PLACES]].to_numpy().any() for table in tables):
        views["drawn in all, with the server's side"] = (*PHASES, *PLACES)
    figure = Figure(figsize=(style.WIDTH_IN, 2.3 + 0.55 * len(books)))
    panels = figure.subplots(1, len(views), sharey=True, squeeze=False)[0]
    for panel, (what, phases) in zip(panels, views.items(), strict=True):
        most = max(float(table[[*phases]].sum(axis=1).max()) for table in tables)
        unit = style.unit_for(most, _JOULES)
        for place, (table, own) in enumerate(zip(tables, books, strict=True)):
            words = show_joules(float(table[[*phases]].mean().sum()))
            shares = [
                book["wasted"] / drawn
                for book in own
                if (drawn := sum(book["by_phase"][phase] for phase in PHASES))
            ]
            if phases == PHASES and any(shares):
                words += f", {np.mean(shares):.0%} wasted"
            if "grams" in own[0] and panel is panels[-1]:
                grams = float(np.mean([book["grams"] for book in own]))
                words += f", {grams / 1000:.3g} kg CO2" if grams >= 1000 else f", {grams:.3g} g CO2"
            looks = {phase: {"color": colour} for phase, colour in _COLOURS.items()}
            draw_mean_bar(panel, place, table[[*phases]] / unit.size, looks, words)
        room = 1.6 if phases == PHASES else 1.45  # for what is written beside the bars
        panel.set_xlim(0, max(most / unit.size, 1e-9) * room)
        panel.set_xlabel(f"{what} ({unit.name})")
        panel.xaxis.set_major_formatter("{x:,g}")
    name_bars(panels[0], [one.label for one, own in zip(series, every, strict=True) if own])
    shown = {
        phase: colour
        for phase, colour in _COLOURS.items()
        if any(table[phase].any() for table in tables)
    }
    return style.finished(
        figure, runs, [Patch(facecolor=colour, label=phase) for phase, colour in shown.items()]
    )


@style.styled
def draw_batteries(run: RunFolder) -> Figure:
    """Battery levels of a few devices over time, each on its own range, with the times at which
    they worked and ran flat.

    Devices are those that ran flat most often, then those that worked most.
    """
    history = History(run)
    levels = read_levels(history) if "energy" in run.summary else {}
    if not levels:
        raise style.NothingToDrawError(
            f"no device of {str(run.path)!r} has a battery of which the records tell"
        )
    ends = history.tasks.groupby("device")["outcome"]
    order = pd.DataFrame(
        {"flat": ends.apply(lambda own: (own == "battery").sum()), "tasks": ends.size()}
    )
    order = order[order.index.isin(levels)].sort_values(
        ["flat", "tasks"], ascending=False, kind="stable"
    )
    shown = sorted(order.index[:_MOST_BATTERIES].tolist())
    capacity = run.table(TABLE).column("capacity_j").to_numpy()
    unit = style.unit_for(run.summary["simulated_s"], style.TIMES)
    figure = Figure(figsize=(style.WIDTH_IN, 1.2 + 1.15 * len(shown)))
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    handles: list[Artist] = [Line2D([], [], color=style.BLUE, label="level of the battery")]
    handles.append(Patch(facecolor=style.GREEN, label="works on a task"))
    for panel, device in zip(panels, shown, strict=True):
        times, joules = np.array(levels[device]).T
        share = 100 * joules / capacity[device]
        panel.plot(times / unit.size, share, color=style.BLUE, linewidth=1.3)
        least = float(share.min())
        most = float(share.max())
        span = max(most - least, 0.5)
        steps = history.steps[history.steps["device"] == device]
        start, end = (steps[name].to_numpy(float) / unit.size for name in ("start", "end"))
        style.rectangles(
            panel, start, end, least - 0.22 * span, least - 0.1 * span, facecolor=style.GREEN
        )
        flat = times[(joules <= 0) & ~np.concatenate([[False], joules[:-1] <= 0])]
        style.marks_at(panel, flat / unit.size, np.zeros(len(flat)), **_FLAT)
        if len(flat) and len(handles) == 2:
            handles.append(Line2D([], [], label="flat", **_FLAT))
        panel.set_ylim(least - 0.24 * span, most + 0.06 * span)
        panel.yaxis.set_major_locator(MaxNLocator(nbins=3))
        panel.set_ylabel(
            f"device {device}\n{show_joules(capacity[device])}",
            rotation=0,
            ha="right",
            va="center",
            fontsize=10,
        )
    panels[-1].set_xlabel(f"simulated time ({unit.name})")
    panels[-1].set_xlim(0, max(run.summary["simulated_s"], 1e-9) / unit.size)
    return style.finished(
        figure, [run], handles, "how full batteries were (%), each on its own range"
    )


def read_levels(history: History) -> dict[int, list[list[float]]]:
    """The level of each recorded battery over time: breakpoints [time (s), level (J)],
    ascending.
    """
    paths: dict[int, list[list[float]]] = {}
    for row in history.data("battery"):
        paths.setdefault(int(row["device"]), []).extend(
            [*row["data"]["path"], [row["time"], row["data"]["level"]]]
        )
    return paths
