"""Series: runs of the same scenario with several seeds, and bars of their means."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedsim.analysis.palette import BLACK, Look
from fedsim.analysis.style import run_names, shorten, with_strategy
from fedsim.lab.reading.study_folder import distinct_names
from fedsim.records.reading import RunFolder

_KEYS_OF_RUNS = ("seed", "name")  # keys in which runs of one series may differ


@dataclass(frozen=True)
class Series:
    """Runs that differ only in the seed, drawn together: as a line with a band, or as one bar.

    Attributes:
        name: name of the series.
        runs: folders of the runs.
        number: index of the series, which determines its look (``line_of``) in all pictures.
    """

    name: str
    runs: tuple[RunFolder, ...]
    number: int = 0

    @property
    def label(self) -> str:
        """Name of the series, with the count of seeds if there are several."""
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} seeds)"


def group_by_scenario(runs: Sequence[RunFolder]) -> list[Series]:
    """Group runs into series of one scenario each, in the order of their first runs.

    A second run of the same scenario and seed begins another series. Series are named after
    their strategies. If several series have the same strategy, the name of each also has a folder:
    the folder that has only runs of this series, or else the folder of the series' first run.
    """
    repetitions: Counter[tuple[str, int]] = Counter()  # count of runs by scenario and seed
    groups: dict[tuple[str, int], list[RunFolder]] = {}  # runs by scenario and repetition
    for run in runs:
        keys = {key: value for key, value in run.scenario.items() if key not in _KEYS_OF_RUNS}
        scenario = json.dumps(keys, sort_keys=True)
        scenario_and_seed = (scenario, run.summary["seed"])
        repetition = repetitions[scenario_and_seed]
        groups.setdefault((scenario, repetition), []).append(run)
        repetitions[scenario_and_seed] += 1
    names = _name_series([*groups.values()])
    series = []
    for number, (name, group) in enumerate(zip(names, groups.values(), strict=True)):
        series.append(Series(name, tuple(group), number))
    return series


def _name_series(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Return the names of series, each from its runs."""
    first_runs = [group[0] for group in groups]
    strategies = [shorten(str(run.summary["strategy"])) for run in first_runs]
    names = []
    for strategy, folder, run in zip(strategies, _folder_names(groups), first_runs, strict=True):
        is_unique = strategies.count(strategy) == 1
        names.append(strategy if is_unique else with_strategy(folder, run))
    return names


def _folder_names(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Return a distinct name per group of runs, of the folder of the group or of its first run."""
    parents_of_groups = [{run.path.resolve().parent for run in group} for group in groups]
    group_counts = Counter(parent for parents in parents_of_groups for parent in parents)
    folders = []
    for group, parents in zip(groups, parents_of_groups, strict=True):
        folder = group[0].path
        if len(group) > 1 and len(parents) == 1:
            (parent,) = parents
            if group_counts[parent] == 1:  # the folder has no runs of other groups
                folder = parent
        folders.append(folder)
    return [shorten(name) for name in distinct_names(folders)]


def each_alone(runs: Sequence[RunFolder]) -> list[Series]:
    """Return one series per run, named after the run's folder and strategy."""
    series = []
    for number, (name, run) in enumerate(zip(run_names(runs), runs, strict=True)):
        series.append(Series(with_strategy(name, run), (run,), number))
    return series


WHISKER = "whiskers: from the least to the most of the seeds"
"""Label of the lines that ``draw_mean_bar`` draws over bars."""


def whisker_entry() -> Line2D:
    """Return the legend's entry that explains the lines over bars, which show ranges over seeds."""
    return Line2D([], [], color=BLACK, linewidth=1.4, marker="|", markersize=7, label=WHISKER)


def draw_mean_bar(
    panel: Axes, row: int, seeds: pd.DataFrame, looks: Mapping[str, Look], words: str
) -> None:
    """Draw a bar of means over runs, stacked by part, a line over the runs' totals, and a text.

    Args:
        panel: the panel.
        row: vertical position of the bar.
        seeds: DataFrame with a row per run and a column per part of the bar, in units of the axis.
        looks: name of a part -> matplotlib's options of its bar.
        words: text beside the bar.
    """
    base = 0.0
    for part, mean in seeds.mean().items():
        panel.barh(row, mean, left=base, height=0.6, gid=str(part), **looks[str(part)])
        base += mean
    totals = seeds.sum(axis=1)
    if totals.min() < totals.max():
        panel.plot(
            [totals.min(), totals.max()],
            [row, row],
            color=BLACK,
            linewidth=1.4,
            marker="|",
            markersize=7,
        )
    panel.annotate(
        words,
        (float(totals.max()), row),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=10,
    )


def name_bars(panel: Axes, names: Sequence[str]) -> None:
    """Label the rows of bars, the first row on top.

    Args:
        panel: the panel.
        names: name of each row.
    """
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)


def end_axis_at(panel: Axes, end: float) -> None:
    """End the horizontal axis of bars at ``end``, and leave room beyond it for texts.

    Args:
        panel: the panel, whose axis begins at 0.
        end: the end of the longest bar or whisker.
    """
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(0, end)
    last = end * (1 + 1e-9)  # by rounding, a tick at the end may be slightly beyond the end
    panel.set_xticks([float(tick) for tick in ticks if 0 <= tick <= last])
    panel.xaxis.set_major_formatter("{x:,g}")
    panel.spines["bottom"].set_bounds(0, end)
