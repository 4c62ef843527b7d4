"""Runs of one scenario with several seeds, put together, their names beside others, and their bars."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from fedsim.analysis import style
from fedsim.files import flat
from fedsim.records.reading import RunFolder

_APART = ("seed", "name")  # what runs of one series may differ in
_MOST_KEYS = 2  # more differences than this do not fit into a name


@dataclass(frozen=True)
class Series:
    """Runs whose scenarios are the same but for the seed.

    Attributes:
        name: fit to be drawn.
        runs: one or more, of different seeds, in the order given.
        number: which look it has (``style.line_of``), the same in all pictures of a page.
    """

    name: str
    runs: tuple[RunFolder, ...]
    number: int = 0

    @property
    def label(self) -> str:
        """Its name, and how many seeds it has if there are several."""
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} seeds)"


def group_by_scenario(runs: Sequence[RunFolder]) -> list[Series]:
    """The series, in the order of their first runs. A second run of the same scenario and seed begins a series of its own.

    A series is called after its strategy. Where several have the same one, what they differ in is added, or they are called
    after the folders of their first runs where that is too much to say.
    """
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], list[RunFolder]] = {}
    for run in runs:
        scenario = json.dumps({key: value for key, value in run.scenario.items() if key not in _APART}, sort_keys=True)
        again = f"{run.summary['seed']} {scenario}"
        found.setdefault((scenario, seen[again]), []).append(run)
        seen[again] += 1
    members = list(found.values())
    named = zip(_names([part[0] for part in members]), members, strict=True)
    return [Series(name, tuple(part), number) for number, (name, part) in enumerate(named)]


def each_alone(runs: Sequence[RunFolder]) -> list[Series]:
    """A series a run, called after its folder and strategy."""
    names = [style.with_strategy(name, run) for run, name in zip(runs, style.run_names(runs), strict=True)]
    return [Series(name, (run,), number) for number, (run, name) in enumerate(zip(runs, names, strict=True))]


def _names(firsts: Sequence[RunFolder]) -> list[str]:
    folders = style.run_names(firsts)
    strategies = [str(run.summary["strategy"]) for run in firsts]
    settings = [{key: value for key, value in flat(run.scenario).items() if key not in _APART} for run in firsts]
    names = []
    for place, (strategy, own) in enumerate(zip(strategies, settings, strict=True)):
        rivals = [other for at, other in enumerate(settings) if at != place and strategies[at] == strategy]
        keys = sorted({key for key in own for rival in rivals if own[key] != rival.get(key)})
        if not rivals:
            names.append(style.short(strategy, 40))
        elif keys and len(keys) <= _MOST_KEYS:
            names.append(style.short(", ".join([strategy, *(f"{key.rpartition('.')[2]} {own[key]}" for key in keys)]), 40))
        else:
            names.append(f"{folders[place]}: {style.short(strategy, 20)}")
    repeated = Counter(names)
    return [f"{folder}: {name}" if repeated[name] > 1 else name for name, folder in zip(names, folders, strict=True)]


def draw_mean_bar(panel: Axes, place: int, seeds: pd.DataFrame, looks: Mapping[str, dict[str, Any]], words: str) -> None:
    """Draw a stacked bar of means over seeds, a line from the least to the largest total, and words beside it.

    ``seeds`` has a row a run and a column a part, in units of the axis.
    """
    base = 0.0
    for part, mean in seeds.mean().items():
        panel.barh(place, mean, left=base, height=0.6, gid=str(part), **looks[str(part)])
        base += mean
    totals = seeds.sum(axis=1)
    if totals.min() < totals.max():
        panel.plot([totals.min(), totals.max()], [place, place], color=style.BLACK, linewidth=1.4, marker="|", markersize=7)
    panel.annotate(words, (float(totals.max()), place), (6, 0), textcoords="offset points", va="center", fontsize=10)


def name_bars(panel: Axes, names: Sequence[str]) -> None:
    """Name the rows of bars, the first on top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
