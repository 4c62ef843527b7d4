"""Communication cost: bytes until a target, by direction and seed, and accuracy against bytes."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import palette, style
from fedsim.analysis.accuracy import band, curves_of
from fedsim.analysis.paper.lines import refuse_too_many
from fedsim.analysis.paper.sheet import (
    BAND,
    NumberRow,
    PaperFigure,
    add_legend,
    band_handle,
    line_look,
    styled,
)
from fedsim.analysis.series import Series
from fedsim.lab.reading.targets import Target, costs_until_target
from fedsim.records.ledger import total_of_round
from fedsim.records.reading import RunFolder

MOST_LINES = 12
_USUAL = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
USUAL_TARGETS = tuple(Target(accuracy) for accuracy in _USUAL)
DIRECTIONS: dict[str, palette.Look] = {
    "down": {"facecolor": palette.STEPS["download"], "label": "to devices"},
    "up": {"facecolor": palette.STEPS["upload"], "label": "from devices", "hatch": "//////"},
    "peer": {"facecolor": "#CCBB44", "label": "between devices"},
}
_LONGEST_NAME = 18  # characters after which a bar's name goes on in another row of text
_LONGEST_LABEL = 24
_WIDE_IN = 3.0  # in a figure of at least this width (inches), the label of bytes has one row
_BAR_IN = 0.2  # least height for a bar (inches)
_NAME_LINE_IN = 0.15  # height of a row of text in a bar's name (inches)
_LEGEND_IN = 0.45  # a figure grows if its legend is higher than this (inches)
_NAME_GAP_IN = 0.05  # distance between the names of two bars (inches)
_CURVES_IN = 1.35
_FRAME_IN = 0.95
_SEED: palette.Look = {
    "marker": "o",
    "markersize": 2.6,
    "markerfacecolor": "white",
    "markeredgecolor": palette.BLACK,
    "markeredgewidth": 0.6,
    "linestyle": "",
}
_TARGET: palette.Look = {"color": palette.GREY, "linewidth": 0.7, "linestyle": (0, (3, 2))}


@dataclass(frozen=True)
class BytesToTarget:
    """Bytes that one run moved until the end of the round whose test reached the figure's target.

    The target is a value of the accuracy, or of some other metric (``Communication.target``).

    Attributes:
        seed: seed of the run.
        parts: bytes by direction: ``down``, ``up`` and ``peer`` (between devices); None if the run
            missed the target.
        round: index of the round whose test reached the target; None if the run missed it.
    """

    seed: int
    parts: dict[str, float] | None
    round: int | None

    @property
    def total(self) -> float | None:
        """Sum of the bytes of all directions; None if the run missed the target."""
        return None if self.parts is None else sum(self.parts.values())


@dataclass(frozen=True)
class CommunicationLine:
    """Bytes that the runs of a figure's line moved until they reached the target.

    A line is a variant or scenario with its runs over seeds.

    Attributes:
        name: name of the line.
        number: index of the line, which determines its colour, dash and mark.
        runs: bytes to the target, for each run.
        curve: accuracy, or the target's metric, against bytes. A point is a tuple: bytes, and mean,
            lowest and highest value over the seeds. The curve covers only the range of bytes in
            which each seed has tests.
    """

    name: str
    number: int
    runs: tuple[BytesToTarget, ...]
    curve: tuple[tuple[float, float, float, float], ...]

    @property
    def has_missed(self) -> bool:
        """Whether any run of this line missed the target."""
        return any(run.parts is None for run in self.runs)

    @property
    def means(self) -> dict[str, float]:
        """Mean bytes by direction over the runs that reached the target; empty if no run did."""
        reached = [run.parts for run in self.runs if run.parts is not None]
        means = {}
        for name in DIRECTIONS:
            if reached:
                means[name] = sum(map(itemgetter(name), reached)) / len(reached)
        return means

    def numbers(self) -> list[NumberRow]:
        """Return the rows of the figure's CSV: one for each run, each mean and each curve point."""
        rows: list[NumberRow] = []
        for run in self.runs:
            row: NumberRow = {"line": self.name, "number": "bytes to target", "seed": run.seed}
            row |= {"round": run.round, "bytes": run.total}
            if run.parts is not None:
                row |= {f"bytes_{name}": size for name, size in run.parts.items()}
            rows.append(row)
        if self.means:
            row = {"line": self.name, "number": "mean bytes to target"}
            row |= {f"bytes_{name}": size for name, size in self.means.items()}
            rows.append(row | {"bytes": sum(self.means.values())})
        for size, mean, low, high in self.curve:
            row = {"line": self.name, "number": "curve", "bytes": size, "mean": mean}
            rows.append(row | {"lowest_seed": low, "highest_seed": high})
        return rows


@dataclass(frozen=True)
class Communication:
    """Bytes that the runs of a figure moved until a test reached a target, by line.

    A line is a variant or scenario with its runs over seeds. ``measure_communication`` computes the
    bytes, and ``draw_communication`` draws them.

    Attributes:
        target: the accuracy, or the metric's value, that a test has to reach.
        lines: each line with the bytes of its runs.
    """

    target: Target
    lines: tuple[CommunicationLine, ...]


def measure_communication(
    series: Sequence[Series],
    targets: Sequence[Target] = USUAL_TARGETS,
    fallback_targets: Sequence[Target] = (),
) -> Communication:
    """Return the bytes that each run of each line moved until it reached a target.

    Args:
        series: the lines of the figure, each with the runs of a variant or scenario.
        targets: possible targets, of which one is used for all lines: the hardest that all runs
            reach, or else the hardest that any run reaches. Any accuracy is tried before a value of
            another metric.
        fallback_targets: targets among which one is chosen in the same way if no run reaches any of
            ``targets``.

    Raises:
        NothingToDrawError: no round was evaluated, or no run moved bytes or reached the target.
    """
    all_runs: list[RunFolder] = []
    for entry in series:
        all_runs += entry.runs
    if not any(total_of_round(row) for run in all_runs for row in run.rounds):
        raise style.NothingToDrawError("no round of these runs moved bytes")
    curves_of(series, targets[0].metric)  # raises if no round was evaluated
    target = _choose_target(all_runs, targets) or _choose_target(all_runs, fallback_targets)
    if target is None:
        words = ", ".join(f"{target:g}" for target in (*targets, *fallback_targets))
        raise style.NothingToDrawError(
            f"no run reached a target out of {words}; --target gives another target"
        )
    curves = curves_of(series, target.metric)
    lines = []
    for entry, line_curves in zip(series, curves, strict=True):
        runs = tuple(_bytes_of(run, target) for run in entry.runs)
        points: list[tuple[float, float, float, float]] = []
        if line_curves:
            table = band(line_curves, "bytes")[["at", "mean", "low", "high"]]
            points = [*table.itertuples(index=False, name=None)]
        lines.append(CommunicationLine(entry.name, entry.number, runs, tuple(points)))
    return Communication(target, tuple(lines))


def _sort_hardest_first(targets: Sequence[Target], runs: Sequence[RunFolder]) -> list[Target]:
    """Return the targets in order: accuracies first, and the hardest first of each metric."""

    def rank(target: Target) -> tuple[bool, str, float]:
        is_maximised = any(target.is_maximised(run.summary) for run in runs)
        sign = -1 if is_maximised else 1
        return target.metric != "accuracy", target.metric, sign * target.value

    return sorted(targets, key=rank)


def _choose_target(runs: Sequence[RunFolder], targets: Sequence[Target]) -> Target | None:
    """Return the hardest target that all runs reach, or else the hardest that any run reaches.

    The result is None if no run reaches any of the targets.
    """
    reached_by_some = None
    for target in _sort_hardest_first(targets, runs):
        reached = [
            costs_until_target(run.rounds, target, run.summary)["rounds"] is not None
            for run in runs
        ]
        if all(reached):
            return target
        if any(reached) and reached_by_some is None:
            reached_by_some = target
    return reached_by_some


def _bytes_of(run: RunFolder, target: Target) -> BytesToTarget:
    """Return the bytes that a run moved until the end of the round that reached the target."""
    seed = int(run.summary["seed"])
    round_count = costs_until_target(run.rounds, target, run.summary)["rounds"]
    if round_count is None:  # the run missed the target
        return BytesToTarget(seed, parts=None, round=None)
    target_round = int(round_count) - 1  # rounds are numbered from 0
    size_by_direction = dict.fromkeys(DIRECTIONS, 0.0)
    for row in run.rounds:
        for direction in DIRECTIONS:
            size_by_direction[direction] += float(row[f"bytes_{direction}"] or 0.0)
        if row["round"] == target_round:
            break
    return BytesToTarget(seed, size_by_direction, target_round)


@styled
def draw_communication(
    series: Sequence[Series],
    width: float,
    targets: Sequence[Target] = USUAL_TARGETS,
    fallback_targets: Sequence[Target] = (),
) -> PaperFigure:
    """Draw accuracy against bytes, and the bytes until a target with a dot per seed.

    Args:
        series: the lines to draw; a line is a variant or scenario with its runs over seeds.
        width: width of the figure (inches).
        targets: possible targets, of which one is used for all lines: the hardest that all runs
            reach, or else the hardest that any run reaches. Any accuracy is tried before a value of
            another metric.
        fallback_targets: targets among which one is chosen in the same way if no run reaches any of
            ``targets``.

    Raises:
        NothingToDrawError: no round was evaluated, or no run moved bytes or reached the target.
        PictureError: there are more lines than the figure has room for.
    """
    refuse_too_many("communication", series, MOST_LINES)
    cost = measure_communication(series, targets, fallback_targets)
    bars_in = 0.15 + _bar_height(cost) * len(cost.lines)
    figure = Figure(figsize=(width, _CURVES_IN + bars_in + _FRAME_IN))
    curves, bars = figure.subplots(2, 1, height_ratios=[_CURVES_IN, bars_in])
    _draw_curves(curves, cost)
    _draw_bars(bars, cost)
    add_legend(figure, _handles(cost))
    legend_in = figure.legends[0].get_window_extent().height / figure.dpi
    figure.set_figheight(figure.get_figheight() + max(0.0, legend_in - _LEGEND_IN))
    numbers: list[NumberRow] = [
        {"number": "target", "metric": cost.target.metric, "mean": cost.target.value}
    ]
    notes = []
    for line in cost.lines:
        numbers += line.numbers()
        missed = [run.seed for run in line.runs if run.parts is None]
        if missed:
            seeds = ", ".join(map(str, missed))
            notes.append(f"{line.name} missed the target with the seeds {seeds}")
    return PaperFigure(figure, numbers, tuple(notes))


def _draw_curves(panel: Axes, cost: Communication) -> None:
    """Draw accuracy, or the target's metric, against bytes: a curve per line, and the target."""
    ends = [line.curve[-1][0] for line in cost.lines if line.curve]
    unit = style.unit_for(max(ends), style.BYTES)
    for line in cost.lines:
        if not line.curve:
            continue
        x, mean, low, high = np.array(line.curve).T
        look = line_look(line.number)
        mark_every = max(1, len(x) // 8)
        if len(line.runs) > 1:
            shade: palette.Look = {"color": look["color"], "alpha": BAND, "linewidth": 0}
            panel.fill_between(x / unit.size, low, high, gid=f"band-{line.number}", **shade)
        panel.plot(
            x / unit.size,
            mean,
            gid=f"mean-{line.number}",
            markersize=2.8,
            markevery=(
                line.number % mark_every,
                mark_every,
            ),  # the marks of different lines are at different points
            **look,
        )
    panel.axhline(cost.target.value, gid="target", **_TARGET)
    panel.set_xlim(left=0)
    panel.set_xlabel(f"bytes moved ({unit.name})")
    label = "test accuracy" if cost.target.metric == "accuracy" else cost.target.metric
    panel.set_ylabel(label)
    panel.grid(axis="y")


def _draw_bar(panel: Axes, row: int, sizes: Mapping[str, float], unit: float) -> float:
    """Draw bytes by direction as one bar, and return its length in the unit."""
    length = 0.0
    for name, size in sizes.items():
        if size:
            panel.barh(
                row,
                size / unit,
                left=length,
                height=0.62,
                edgecolor="white",
                linewidth=0,
                gid=name,
                **DIRECTIONS[name],
            )
        length += size / unit
    return length


def _bar_names(cost: Communication) -> list[str]:
    """Return the names beside the bars, long ones with several lines of text."""
    return [textwrap.fill(line.name, _LONGEST_NAME) for line in cost.lines]


def _bar_height(cost: Communication) -> float:
    """Return the height for a bar (inches), in which the longest name has room."""
    most_lines = max(name.count("\n") + 1 for name in _bar_names(cost))
    return max(_BAR_IN, _NAME_LINE_IN * most_lines + _NAME_GAP_IN)


def _draw_bars(panel: Axes, cost: Communication) -> None:
    """Draw the mean bytes to the target: a bar per line, a dot per seed and the mean as text."""
    totals = [run.total for line in cost.lines for run in line.runs if run.total is not None]
    unit = style.unit_for(max(totals), style.BYTES)
    for row, line in enumerate(cost.lines):
        length = _draw_bar(panel, row, line.means, unit.size)
        dots = [run.total / unit.size for run in line.runs if run.total is not None]
        if len(line.runs) > 1 and dots:  # matplotlib's layout fails for a curve without points
            panel.plot(dots, [row] * len(dots), gid="seeds", clip_on=False, **_SEED)
        words = f"{length:.3g}" if line.means else ""
        if line.has_missed:
            missed = sum(run.parts is None for run in line.runs)
            words = f"{words} ({missed} of {len(line.runs)} missed)".strip()
        panel.annotate(
            words,
            (max([length, *dots]), row),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    panel.set_yticks(range(len(cost.lines)), _bar_names(cost))
    panel.tick_params(axis="y", length=0)
    panel.set_ylim(len(cost.lines) - 0.5, -0.5)
    panel.set_xlim(0, max(totals) / unit.size * 1.18)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
    label = f"bytes until {_words(cost.target)} ({unit.name})"
    if panel.figure.bbox.width / panel.figure.dpi < _WIDE_IN:
        label = textwrap.fill(label, _LONGEST_LABEL)
    panel.set_xlabel(label)


def _words(target: Target) -> str:
    if target.metric == "accuracy":
        return f"{100 * target.value:g} % test accuracy"
    return f"{target.metric} {target.value:g}"


def _handles(cost: Communication) -> list[Artist]:
    handles: list[Artist] = []
    for line in cost.lines:
        handles.append(Line2D([], [], label=line.name, markersize=3, **line_look(line.number)))
    for name, look in DIRECTIONS.items():
        if any(line.means.get(name) for line in cost.lines):
            handles.append(Patch(edgecolor="white", linewidth=0, **look))
    seeds = max(len(line.runs) for line in cost.lines)
    if seeds > 1:
        handles.append(Line2D([], [], label=f"one of {seeds} seeds", **_SEED))
        handles.append(band_handle(seeds))
    return handles
