"""Straggling over a whole run: shares of clients that were valid, late and lost, by round.

A client is a task of a device in a round (``fedsim.lab.reading.attempts``). A round of an
asynchronous strategy is a version of its model, and a task belongs to the version from which it
began. A round of a strategy with edge servers has the tasks of all its edge rounds.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator

from fedsim.analysis import palette, style
from fedsim.analysis.paper.lines import attempts_of, measure_each, refuse_too_many, strategy_of
from fedsim.analysis.paper.sheet import (
    BAND,
    OUTCOMES,
    NumberRow,
    PaperFigure,
    Spread,
    SpreadCurve,
    add_legend,
    band_handle,
    columns_for,
    panel_stacks,
    pools,
    styled,
    title_of,
)
from fedsim.analysis.series import Series
from fedsim.common.round_words import counted
from fedsim.lab.reading.attempts import COUNTED, Attempts

MOST_LINES = 8
_MOST_POINTS = 25
_PANEL_IN = 0.95
_FRAME_IN = 0.45
_PERCENT = 0.01
_STEP = 10.0  # a gap of the vertical axis begins and ends at multiples of this (%)
_LEAST_GAP = 15.0  # least gap of the vertical axis (%)


@dataclass(frozen=True)
class StragglingPoint:
    """Shares of clients by outcome in some consecutive rounds, drawn as one point.

    Attributes:
        first: index of the first round.
        last: index of the last round.
        clients: count of clients in these rounds, over all seeds.
        shares: outcome (``valid``, ``slow``, ``late`` or ``lost``) -> share of the clients (0..1),
            as mean and range over seeds. Seeds without clients in these rounds are left out.
    """

    first: int
    last: int
    clients: int
    shares: dict[str, Spread]


@dataclass(frozen=True)
class StragglingLine:
    """Shares of clients by outcome in the runs of a figure's line.

    A line is a variant or scenario with its runs over seeds. Outcomes are ``valid``, ``slow`` (the
    client answered without a finished epoch), ``late`` (the server ended the client's task, or the
    model did not fit into memory) and ``lost`` (the device disconnected, left, or ran flat).

    Attributes:
        name: name of the line.
        seeds: count of runs.
        counts_versions: whether the line's rounds are versions of an asynchronous server's model.
        pooled: count of rounds that are drawn together as one point.
        points: points in the order of the rounds, up to the last round that all runs have.
        clients: count of clients in all rounds of all seeds, without the ``stopped`` clients.
        stopped: count of clients that were at work when their run ended, in all seeds.
        shares: outcome -> share of the clients (0..1) in a whole run, as mean and range over seeds.
    """

    name: str
    seeds: int
    counts_versions: bool
    pooled: int
    points: tuple[StragglingPoint, ...]
    clients: int
    stopped: int
    shares: dict[str, Spread]

    def numbers(self) -> list[NumberRow]:
        """Return the rows of the figure's CSV: one per point and outcome, and one per outcome."""
        rows: list[NumberRow] = []
        for point in self.points:
            for outcome, share in point.shares.items():
                rows.append(self._row(outcome, share, point.clients, point.first, point.last))
        for outcome, share in self.shares.items():
            rows.append(self._row(outcome, share, self.clients, first=None, last=None))
        return rows

    def _row(
        self, outcome: str, share: Spread, clients: int, first: int | None, last: int | None
    ) -> NumberRow:
        """Return a row on one outcome; ``first`` and ``last`` are None for all rounds."""
        return {
            "line": self.name,
            "rounds": "all" if first is None else "pooled",
            "first_round": first,
            "last_round": last,
            "outcome": outcome,
            "share": share.mean,
            "lowest_seed": share.low,
            "highest_seed": share.high,
            "seeds": share.seeds,
            "clients": clients,
        }


def measure_straggling(series: Series) -> StragglingLine:
    """Return the shares of clients by outcome, by round and over all rounds.

    Args:
        series: the runs of a line: a variant or scenario with its runs over seeds.

    Raises:
        NothingToDrawError: the strategy has no server that selects clients, or no client's work
            ended.
    """
    runs = [*map(attempts_of, series.runs)]
    if any(map(is_without_server, runs)):
        raise style.NothingToDrawError(
            f"{strategy_of(series)} has no server that selects clients, so none can be late"
        )
    counts = [*map(_count_outcomes, runs)]
    totals = []  # for each run with clients, their counts by outcome over all rounds
    stopped = 0
    for by_round in counts:
        total: Counter[str] = sum(by_round.values(), Counter())
        # the run's end cut these clients off, so that they have no share
        stopped_of_run = total.pop("stopped", 0)
        stopped += stopped_of_run
        if total:
            totals.append(total)
    if not totals:
        raise style.NothingToDrawError(f"no client of {series.name} ended its work in a round")
    # each point has the clients of several consecutive rounds if there are too many rounds to draw
    rounds = min(len(run.activities.rounds) for run in runs)
    pooled = style.thinning_step(rounds, _MOST_POINTS)
    points = []
    for first, stop in pools(rounds, pooled):
        point = _point(counts, first, stop - 1)
        if point is not None:
            points.append(point)
    # an asynchronous server does not open rounds: it has no records of their begins
    has_opened_rounds = any(run.openings for run in runs)
    return StragglingLine(
        name=series.name,
        seeds=len(runs),
        counts_versions=not has_opened_rounds,
        pooled=pooled,
        points=tuple(points),
        clients=sum(map(Counter.total, totals)),
        stopped=stopped,
        shares=_shares(totals),
    )


def is_without_server(attempts: Attempts) -> bool:
    """Whether devices of a run work without a server, as in decentralised learning.

    A run is without a server if, by its records, no server began a round and no device downloaded
    anything.

    Args:
        attempts: the tasks of the run.
    """
    if attempts.openings:
        return False
    return not any(step.kind == "download" for step in attempts.activities.steps)


def _count_outcomes(attempts: Attempts) -> dict[int, Counter[str]]:
    """Return the counts of clients by outcome of each round."""
    counts = {}
    for number, clients in attempts.clients.items():
        counts[number] = Counter(map(attrgetter("outcome"), clients))
    return counts


def _point(
    counts: Sequence[dict[int, Counter[str]]], first: int, last: int
) -> StragglingPoint | None:
    """Return the shares of outcomes in the rounds ``first`` to ``last``; None without clients.

    Args:
        counts: for each run: index of a round -> count of its clients by outcome.
        first: index of the first round.
        last: index of the last round.
    """
    totals = []
    for by_round in counts:
        total: Counter[str] = Counter()
        for number in range(first, last + 1):
            total += by_round.get(number, Counter())
        total.pop("stopped", None)  # the run's end cut these clients off
        if total:
            totals.append(total)
    if not totals:
        return None
    clients = sum(map(Counter.total, totals))
    return StragglingPoint(first, last, clients, _shares(totals))


def _shares(totals: Sequence[Counter[str]]) -> dict[str, Spread]:
    """Return the shares of outcomes over seeds, from the counts of each seed."""
    shares = {}
    for outcome in COUNTED:
        shares[str(outcome)] = Spread.of([total[outcome] / total.total() for total in totals])
    return shares


@styled
def draw_straggling(series: Sequence[Series], width: float) -> PaperFigure:
    """Draw shares of clients by outcome (valid, slow, late, lost: ``StragglingLine``) by round.

    Each line has one panel. If valid clients are far more than all other clients, each line has two
    panels, one above the other, between which the vertical axis has a gap. Curves are means over
    seeds; bands go from the lowest to the highest seed.

    Args:
        series: the lines; a line is a variant or scenario with its runs over seeds.
        width: width of the figure (inches).

    Raises:
        NothingToDrawError: no line has a server that selects clients.
        PictureError: there are more lines than the figure has room for.
    """
    refuse_too_many("straggling", series, MOST_LINES)
    lines, notes = measure_each(series, measure_straggling)
    outcomes = _occurring(lines)
    y_ranges = _y_ranges(lines, outcomes)
    columns = columns_for(width, len(lines))
    rows = math.ceil(len(lines) / columns)
    figure = Figure(figsize=(width, _FRAME_IN + rows * _PANEL_IN))
    end = max(line.points[-1].last for line in lines)
    stacks = panel_stacks(figure, len(lines), columns, [high - low for low, high in y_ranges])
    for line, (panels, is_lowest) in zip(lines, stacks, strict=True):
        for panel, limits in zip(panels, y_ranges, strict=True):
            _draw_line(panel, line, outcomes, limits)
        _mark_axis_gap(panels)
        panels[0].set(title=_title(line, outcomes, width / columns), xlim=(0, end))
        if is_lowest:
            panels[-1].set_xlabel(_round_label(lines))
            panels[-1].tick_params(labelbottom=True)
    figure.supylabel("clients (%)", fontsize=7.5)
    add_legend(figure, _legend_handles(lines, outcomes))
    numbers: list[NumberRow] = []
    for line in lines:
        numbers += line.numbers()
        if line.stopped:
            clients = counted(line.stopped, "client")
            notes.append(f"{clients} of {line.name} cut off by the end of a run: not counted")
    return PaperFigure(figure, numbers, tuple(notes))


def _legend_handles(
    lines: Sequence[StragglingLine], outcomes: Sequence[str]
) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for outcome in outcomes:
        handles.append(Line2D([], [], label=outcome, **OUTCOMES[outcome]))
    seeds = max(map(attrgetter("seeds"), lines))
    if seeds > 1:
        handles.append(band_handle(seeds))
    return handles


def _occurring(lines: Sequence[StragglingLine]) -> list[str]:
    """Return the outcomes to draw: valid, and the others that occur."""
    outcomes = []
    for outcome in OUTCOMES:
        if outcome == "valid" or any(line.shares[outcome].high > 0 for line in lines):
            outcomes.append(outcome)
    return outcomes


def _round_label(lines: Sequence[StragglingLine]) -> str:
    """Return the label of the axis of rounds, with the count of rounds in each point."""
    label = "round"
    counts_versions = [line.counts_versions for line in lines]
    if all(counts_versions):
        label = "version of the model"
    elif any(counts_versions):
        label = "round, or version of the model"
    pooled = sorted(set(map(attrgetter("pooled"), lines)))
    if pooled == [1]:
        return label
    counts = " or ".join(map(str, pooled))
    return f"{label} ({counts} counted together at each point)"


def _y_ranges(
    lines: Sequence[StragglingLine], outcomes: Sequence[str]
) -> list[tuple[float, float]]:
    """Return the ranges of the vertical axis (%), the upper one first.

    If valid clients are far more than all others, the axis has a gap between them.
    """
    lowest_valid = 100.0
    highest_other = 0.0
    for line in lines:
        for point in line.points:
            lowest_valid = min(lowest_valid, 100 * point.shares["valid"].low)
            for outcome in outcomes[1:]:  # the first outcome is ``valid``
                highest_other = max(highest_other, 100 * point.shares[outcome].high)
    # The gap is between these two shares (%). Above and below it, at least one step of the axis
    # remains.
    gap_high = min(100 - _STEP, _STEP * math.floor(lowest_valid / _STEP))
    gap_low = _STEP * max(1, math.ceil(highest_other / _STEP))
    if gap_high - gap_low < _LEAST_GAP:
        return [(0.0, 100.0)]
    return [(gap_high, 100.0), (0.0, gap_low)]


def _mark_axis_gap(panels: Sequence[Axes]) -> None:
    """Mark the gap of the vertical axis between panels with slanted lines."""
    for above, below in pairwise(panels):
        above.spines["bottom"].set_visible(False)
        above.tick_params(axis="x", length=0)
        marks: palette.Look = {
            "marker": [(-1, -0.5), (1, 0.5)],
            "markersize": 5,
            "linestyle": "",
            "color": palette.BLACK,
            "markeredgewidth": 0.6,
            "clip_on": False,
        }
        above.plot([0], [0], transform=above.transAxes, **marks)
        below.plot([0], [1], transform=below.transAxes, **marks)


def _draw_line(
    panel: Axes, line: StragglingLine, outcomes: Sequence[str], limits: tuple[float, float]
) -> None:
    """Draw the outcomes whose shares lie within the limits of a panel (%)."""
    x = np.array([(point.first + point.last) / 2 for point in line.points])
    low_limit, high_limit = limits
    for outcome in outcomes:
        curve = SpreadCurve.of([point.shares[outcome] for point in line.points], _PERCENT)
        if curve.high.max() < low_limit or curve.low.min() > high_limit:
            continue
        look = OUTCOMES[outcome]
        if line.seeds > 1:
            band: palette.Look = {"color": look["color"], "alpha": BAND, "linewidth": 0}
            panel.fill_between(x, curve.low, curve.high, gid=f"band-{outcome}", **band)
        panel.plot(x, curve.mean, gid=outcome, markersize=2.2, clip_on=False, **look)
    panel.set_ylim(low_limit, high_limit)
    step = _STEP
    if high_limit - low_limit > 3 * _STEP:
        step = 2 * _STEP
    panel.yaxis.set_major_locator(MultipleLocator(step))
    panel.grid(axis="y")


def _title(line: StragglingLine, outcomes: Sequence[str], width: float) -> str:
    """Return the name of a line and its shares over all rounds.

    Args:
        line: the line.
        outcomes: the outcomes to name.
        width: width of the panel with its axis (inches); a longer title has two lines.
    """
    shares = [f"{100 * line.shares[outcome].mean:.1f} % {outcome}" for outcome in outcomes]
    return title_of(line.name, ", ".join(shares), width)
