"""Where the energy went: joules by phase for one run or several, and how full batteries were as a run went on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import style
from fedsim.analysis.activity import read_activity
from fedsim.analysis.series import Series, group_by_scenario
from fedsim.language.units import show_joules
from fedsim.meters.energy import PHASES, PLACES, TABLE
from fedsim.records.reading import RunFolder

_COLOURS = {
    "idle": "#A9BFCC",
    "compute": style.GREEN,
    "receive": style.SKY,
    "send": style.BLUE,
    "tail": style.ORANGE,
    "server": "#332288",
    "edge": "#AA8866",
}
_MOST_BATTERIES = 6
_FLAT: dict[str, Any] = {"marker": "s", "color": style.OUTCOMES["battery"], "linestyle": "", "markersize": 5}


@style.styled
def draw_energy(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """A bar a scenario, stacked by phase: what the devices drew, and beside it all with the server's side, if that drew any.

    Of several seeds the bar is the mean, and a line at its end goes from the least to the most. What of the devices' was wasted
    and, where it is counted, the carbon of all is written beside the bars. Runs of one scenario are a series, unless ``series``
    says which are. Runs in which energy was not counted are left out.

    Raises:
        NothingToDrawError: none of the runs counted energy, or drew any.
        RunFolderError: a folder is damaged.
    """
    series = group_by_scenario(runs) if series is None else series
    books = [[run.summary["energy"] for run in one.runs if "energy" in run.summary] for one in series]
    labels = [one.label for one, own in zip(series, books, strict=True) if own]
    books = [own for own in books if own]
    if not any(book["joules"] for own in books for book in own):
        raise style.NothingToDrawError("energy was not counted in any of these runs, so there is none to draw")
    tables = [pd.DataFrame([book["by_phase"] for book in own], dtype=float) for own in books]
    views: dict[str, tuple[str, ...]] = {"drawn by devices": PHASES}
    if any(table[[*PLACES]].to_numpy().any() for table in tables):
        views["drawn in all, with the server's side"] = (*PHASES, *PLACES)
    figure = Figure(figsize=(style.WIDTH_IN, 2.3 + 0.55 * len(books)))
    panels = figure.subplots(1, len(views), sharey=True, squeeze=False)[0]
    for panel, (what, phases) in zip(panels, views.items(), strict=True):
        most = max(float(table[[*phases]].sum(axis=1).max()) for table in tables)
        unit = _unit(most)
        for place, (table, own) in enumerate(zip(tables, books, strict=True)):
            words = _wasted(own) if phases == PHASES else ""
            if "grams" in own[0] and panel is panels[-1]:
                words += f", {_shown_grams(float(np.mean([book['grams'] for book in own])))} CO2"
            _draw_bar(panel, place, table[[*phases]] / unit.size, words, unit)
        room = 1.6 if phases == PHASES else 1.45  # for what is written beside the bars
        panel.set_xlim(0, max(most / unit.size, 1e-9) * room)
        panel.set_xlabel(f"{what} ({unit.name})")
        panel.xaxis.set_major_formatter("{x:,g}")
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].set_ylim(len(labels) - 0.5, -0.5)
    figure.suptitle(style.headline_of(runs))
    shown = [phase for phase in _COLOURS if any(table[phase].any() for table in tables)]
    style.legend_below(figure, [Patch(facecolor=_COLOURS[phase]) for phase in shown], shown)
    return figure


def _unit(most: float) -> style.Unit:
    """What an axis is counted in that goes up to ``most`` joules, as ``show_joules`` counts."""
    units = ((3.6e9, style.Unit(3.6e9, "MWh")), (1e6, style.Unit(3.6e6, "kWh")), (1e3, style.Unit(1e3, "kJ")))
    return next((unit for least, unit in units if most >= least), style.Unit(1.0, "J"))


def _shown_grams(grams: float) -> str:
    return f"{grams / 1000:.3g} kg" if grams >= 1000 else f"{grams:.3g} g"


def _wasted(books: Sequence[dict[str, Any]]) -> str:
    shares = [book["wasted"] / drawn for book in books if (drawn := sum(book["by_phase"][phase] for phase in PHASES))]
    return f", {np.mean(shares):.0%} wasted" if shares and any(shares) else ""


def _draw_bar(panel: Axes, place: int, seeds: pd.DataFrame, words: str, unit: style.Unit) -> None:
    """One bar of means; ``seeds`` has a row a run and a column a phase, in units of the axis."""
    base = 0.0
    for phase in seeds.columns:
        part = float(seeds[phase].mean())
        panel.barh(place, part, left=base, height=0.6, color=_COLOURS[str(phase)], gid=str(phase))
        base += part
    totals = seeds.sum(axis=1)
    if totals.min() < totals.max():
        panel.plot([totals.min(), totals.max()], [place, place], color=style.BLACK, linewidth=1.4, marker="|", markersize=7)
    panel.annotate(
        show_joules(base * unit.size) + words,
        (float(totals.max()), place),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=10,
    )


@style.styled
def draw_batteries(run: RunFolder) -> Figure:
    """How full the batteries of a few devices were: those that ran flat most often, then those that worked most.

    A level is a line from one breakpoint to the next, as the records tell it; a strip shows when the device worked.

    Raises:
        NothingToDrawError: nobody has a battery, or nobody was asked anything.
        RunFolderError: the folder is damaged.
    """
    levels = read_levels(run) if "energy" in run.summary else {}
    if not levels:
        raise style.NothingToDrawError(f"no device of {str(run.path)!r} has a battery of which the records tell")
    activity = read_activity(run)
    ends = activity.tasks.groupby("device")["outcome"]
    order = pd.DataFrame({"flat": ends.apply(lambda own: (own == "battery").sum()), "tasks": ends.size()})
    order = order[order.index.isin(levels)].sort_values(["flat", "tasks"], ascending=False, kind="stable")
    shown = sorted(order.index[:_MOST_BATTERIES].tolist())
    capacity = run.table(TABLE).column("capacity_j").to_numpy()
    unit = style.time_unit(run.summary["simulated_s"])
    figure = Figure(figsize=(style.WIDTH_IN, 1.2 + 1.15 * len(shown)))
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for panel, device in zip(panels, shown, strict=True):
        path = np.array(levels[device])
        panel.plot(path[:, 0] / unit.size, 100 * path[:, 1] / capacity[device], color=style.BLUE, linewidth=1.3)
        _draw_work(panel, activity.steps[activity.steps["device"] == device], unit.size)
        empty = path[:, 1] <= 0
        flat = path[empty & ~np.concatenate([[False], empty[:-1]]), 0]
        style.marks_at(panel, flat / unit.size, np.zeros(len(flat)), **_FLAT)
        panel.set_ylim(-14, 104)
        panel.set_yticks([0, 50, 100])
        panel.set_ylabel(f"device {device}\n{show_joules(capacity[device])}", rotation=0, ha="right", va="center", fontsize=10)
    panels[0].set_title(f"{style.headline(run)}: how full batteries were (%)")
    panels[-1].set_xlabel(f"simulated time ({unit.name})")
    panels[-1].set_xlim(0, max(run.summary["simulated_s"], 1e-9) / unit.size)
    handles = [Line2D([], [], color=style.BLUE), Patch(facecolor=style.GREEN), Line2D([], [], **_FLAT)]
    style.legend_below(figure, handles, ["level of the battery", "works on a task", "flat"])
    return figure


def _draw_work(panel: Axes, steps: pd.DataFrame, unit: float) -> None:
    start, end = steps["start"].to_numpy(float) / unit, steps["end"].to_numpy(float) / unit
    low, high = np.full(len(steps), -13.0), np.full(len(steps), -6.0)
    panel.add_collection(style.rectangles(start, end, low, high, facecolor=style.GREEN), autolim=False)


def read_levels(run: RunFolder) -> dict[int, list[list[float]]]:
    """The path of each battery of which the records tell: breakpoints, [time (s), level (J)], in order of time.

    Raises:
        RunFolderError: the events are missing or damaged.
    """
    paths: dict[int, list[list[float]]] = {}
    for event in run.events:
        if event["kind"] == "battery":
            path = paths.setdefault(event["device"], [])
            path += [*event["data"]["path"], [event["time"], event["data"]["level"]]]
    return paths
