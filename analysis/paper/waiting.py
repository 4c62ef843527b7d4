"""Waiting: the time that each round waited for its slowest client, and for whom."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import palette, style
from fedsim.analysis.paper.lines import attempts_of, measure_each, refuse_too_many
from fedsim.analysis.paper.sheet import (
    NumberRow,
    PaperFigure,
    Spread,
    SpreadCurve,
    add_legend,
    columns_for,
    pools,
    styled,
    title_of,
)
from fedsim.analysis.series import Series
from fedsim.common.arrays import Floats
from fedsim.lab.reading.attempts import COUNTED, AttemptOutcome, Attempts
from fedsim.records.reading import RunFolder

MOST_LINES = 6
_MOST_POINTS = 25
_MOST_RANKS = 5
_PERCENT = 0.01
_PANEL_IN = 0.95
_FRAME_IN = 0.75
_EARLY: palette.Look = {"facecolor": "#EDEDED", "label": "until half of the clients were done"}
_MOST_DONE: palette.Look = {"facecolor": "#CCCCCC", "label": "until all but the slowest were done"}
_WAITED: dict[str, palette.Look] = {
    "valid": {
        "facecolor": palette.VALID,
        "edgecolor": "#00654A",
        "hatch": "//////",
        "label": "the slowest client was valid",
    },
    "slow": {"facecolor": palette.ORANGE, "hatch": "....", "label": "the slowest was slow"},
    "late": {"facecolor": palette.VERMILLION, "label": "the slowest was late"},
    "lost": {"facecolor": palette.BLACK, "label": "the slowest was lost"},
}
_SEVERITY: tuple[AttemptOutcome, ...] = ("stopped", *COUNTED)  # the worst outcome is the last
_EXTENT: palette.Look = {"color": palette.BLACK, "linewidth": 0.8}
_BAR: palette.Look = {"color": "#B0B0B0", "edgecolor": palette.BLACK, "linewidth": 0.5}


@dataclass(frozen=True)
class RoundWait:
    """Wait of a round for its slowest clients. Times are in s since the round's start.

    The slowest clients are the ones that ended last. At a deadline, several end together.

    Attributes:
        round: index of the round.
        half_s: time at which half of the round's clients were done.
        others_s: time at which all clients but the slowest were done; or the time at which a
            slowest client began, if this is later.
        end_s: time at which the slowest clients were done, or the round ended.
        outcome: outcome of the slowest clients; if their outcomes differ, the worst, which is the
            last of ``stopped``, ``valid``, ``slow``, ``late`` and ``lost``.
        devices: device IDs of the slowest clients.
    """

    round: int
    half_s: float
    others_s: float
    end_s: float
    outcome: str
    devices: tuple[int, ...]

    @property
    def waited_s(self) -> float:
        """Time (s) that the round waited for its slowest clients alone."""
        return self.end_s - self.others_s


@dataclass(frozen=True)
class WaitingPoint:
    """Mean times of some consecutive rounds over seeds, drawn as one point.

    Times are in s since the start of a round.

    Attributes:
        first: index of the first round.
        last: index of the last round.
        half_s: time at which half of the clients were done.
        others_s: time at which all clients but the slowest were done.
        end_s: time at which the slowest clients were done.
        waited_s: outcome of the slowest clients -> mean time that a round waited for slowest
            clients with this outcome. Rounds with another outcome count as 0, so that the sum over
            the outcomes is the mean wait of a round.
    """

    first: int
    last: int
    half_s: Spread
    others_s: Spread
    end_s: Spread
    waited_s: dict[str, Spread]


@dataclass(frozen=True)
class Awaited:
    """Device for which rounds waited, with its share of the waiting.

    Attributes:
        device: ID of the device.
        rounds: count of rounds in which the device was the slowest client, alone or together with
            others.
        share: share (0..1) of the run's waiting that was for this device. The waiting for several
            devices that end together is divided equally among them.
    """

    device: int
    rounds: int
    share: float


@dataclass(frozen=True)
class WaitingLine:
    """Waiting for the slowest clients in the runs of a figure's line.

    A line is a variant or scenario with its runs over seeds.

    Attributes:
        name: name of the line.
        seeds: count of runs.
        pooled: count of rounds that are drawn together as one point.
        points: points in the order of the rounds.
        rounds: for each run, the waits of its rounds.
        share: share (0..1) of the rounds' time that was waiting for slowest clients, over seeds.
        awaited: devices of each run, the most awaited first.
        ranks: share (0..1) of the waiting that was for the most awaited device of a run, for the
            second, and so on, over seeds.
        rest: share (0..1) of the waiting for all other devices, over seeds.
    """

    name: str
    seeds: int
    pooled: int
    points: tuple[WaitingPoint, ...]
    rounds: tuple[tuple[RoundWait, ...], ...]
    share: Spread
    awaited: tuple[tuple[Awaited, ...], ...]
    ranks: tuple[Spread, ...]
    rest: Spread

    def numbers(self) -> list[NumberRow]:
        """Return the rows of the figure's CSV: one per drawn number.

        The numbers are the mean times of each point, and shares of the waiting by device.
        """
        rows: list[NumberRow] = []
        for point in self.points:
            spreads = {
                "half_s": point.half_s,
                "others_s": point.others_s,
                "end_s": point.end_s,
            }
            for outcome, spread in point.waited_s.items():
                spreads[f"waited_{outcome}_s"] = spread
            for name, spread in spreads.items():
                rows.append(
                    spread.row(self.name, name)
                    | {"first_round": point.first, "last_round": point.last}
                )
        rows.append(self.share.row(self.name, "share_of_time"))
        for rank, spread in enumerate(self.ranks, start=1):
            rows.append(spread.row(self.name, "share_of_waiting") | {"rank": rank})
        rows.append(self.rest.row(self.name, "share_of_waiting") | {"rank": "rest"})
        for run_index, devices in enumerate(self.awaited):
            for rank, awaited in enumerate(devices[:_MOST_RANKS], start=1):
                row = Spread.of([awaited.share]).row(self.name, "device")
                rows.append(row | {"rank": rank, "run": run_index, "device": awaited.device})
        return rows


def read_waits(run: RunFolder) -> list[RoundWait]:
    """Return how long each ended round of a run waited for its slowest clients.

    Rounds without clients are left out.

    Raises:
        NothingToDrawError: the server opens no rounds, or no round with clients has ended.
    """
    attempts = attempts_of(run)
    if not attempts.openings:
        strategy = style.shorten(str(run.summary["strategy"]))
        raise style.NothingToDrawError(
            f"{strategy} has no rounds that a server opens, so nobody waits for the slowest"
        )
    waits = []
    for period in attempts.activities.rounds:
        opening = attempts.openings.get(period.number)
        if opening is not None and period.number in attempts.clients:
            round_start = float(opening["time"])
            waits.append(_measure_wait(attempts, period.number, round_start, period.end))
    if not waits:
        raise style.NothingToDrawError(f"no round of {str(run.path)!r} with clients has ended")
    return waits


def _measure_wait(
    attempts: Attempts, number: int, round_start: float, round_end: float
) -> RoundWait:
    """Return the wait of a round for its slowest clients.

    Args:
        attempts: tasks of the run.
        number: index of the round.
        round_start: simulated time (s) at which the server opened the round.
        round_end: simulated time (s) of its end.
    """
    clients = attempts.clients[number]
    ends = [min(client.end, round_end) for client in clients]
    last_end = max(ends)
    slowest = [client for client, end in zip(clients, ends, strict=True) if end == last_end]
    earlier_ends = [end for end in ends if end < last_end]
    slowest_start = max(map(attrgetter("start"), slowest))
    # from here on, the round waits for the slowest clients alone
    wait_start = max([slowest_start, round_start, *earlier_ends])
    half_end = sorted(ends)[(len(ends) - 1) // 2]  # end of the ceil(n / 2)-th of n clients
    return RoundWait(
        round=number,
        half_s=half_end - round_start,
        others_s=wait_start - round_start,
        end_s=last_end - round_start,
        outcome=max(map(attrgetter("outcome"), slowest), key=_SEVERITY.index),
        devices=tuple(sorted(set(map(attrgetter("device"), slowest)))),
    )


def measure_waiting(series: Series) -> WaitingLine:
    """Return how long the rounds of a line waited for their slowest clients, and for whom.

    Args:
        series: the runs of a line: a variant or scenario with its runs over seeds.

    Raises:
        NothingToDrawError: the strategy has no rounds that a server opens, or a run has no ended
            round with clients.
    """
    runs = [*map(read_waits, series.runs)]
    rounds = min(map(len, runs))
    pooled = style.thinning_step(rounds, _MOST_POINTS)
    points = []
    for first, stop in pools(rounds, pooled):
        points.append(_point([waits[first:stop] for waits in runs]))
    awaited = [*map(_rank_devices, runs)]
    most_devices = max(map(len, awaited))
    ranks = []
    for rank in range(min(_MOST_RANKS, most_devices)):
        shares = [devices[rank].share if rank < len(devices) else 0.0 for devices in awaited]
        ranks.append(Spread.of(shares))
    further_shares = [sum(map(attrgetter("share"), devices[_MOST_RANKS:])) for devices in awaited]
    return WaitingLine(
        name=series.name,
        seeds=len(runs),
        pooled=pooled,
        points=tuple(points),
        rounds=tuple(map(tuple, runs)),
        share=Spread.of([*map(_waited_share, runs)]),
        awaited=tuple(awaited),
        ranks=tuple(ranks),
        rest=Spread.of(further_shares),
    )


def _waited_share(waits: Sequence[RoundWait]) -> float:
    total = sum(map(attrgetter("end_s"), waits))
    waited = sum(map(attrgetter("waited_s"), waits))
    return waited / total if total else 0.0


def _point(seeds: Sequence[Sequence[RoundWait]]) -> WaitingPoint:
    """Return the mean times of a few consecutive rounds, to draw them as one point.

    The times are those at which half of a round's clients were done (``half_s``), all clients but
    the slowest (``others_s``), and the slowest (``end_s``).

    Args:
        seeds: for each seed, its waits in these rounds. Seeds are aligned by position: a seed in
            which a round had no clients has a later round in its place, and the point is named
            after the rounds of the first seed.
    """
    first_seed = seeds[0]
    waited = {}
    for outcome in COUNTED:  # all outcomes but ``stopped``, the outcome of tasks open at the end
        means = []
        for waits in seeds:
            times = [wait.waited_s if wait.outcome == outcome else 0.0 for wait in waits]
            means.append(float(np.mean(times)))
        waited[str(outcome)] = Spread.of(means)
    return WaitingPoint(
        first=first_seed[0].round,
        last=first_seed[-1].round,
        half_s=_mean(seeds, "half_s"),
        others_s=_mean(seeds, "others_s"),
        end_s=_mean(seeds, "end_s"),
        waited_s=waited,
    )


def _mean(seeds: Sequence[Sequence[RoundWait]], name: str) -> Spread:
    """Return mean and range over seeds of the attribute ``name`` of ``RoundWait``.

    The value of a seed is the mean over its rounds.
    """
    get = attrgetter(name)
    means = [float(np.mean([*map(get, waits)])) for waits in seeds]
    return Spread.of(means)


def _rank_devices(waits: Sequence[RoundWait]) -> tuple[Awaited, ...]:
    """Return the devices for which rounds waited, the most awaited first."""
    waited_s: defaultdict[int, float] = defaultdict(float)  # device -> its share of the waiting (s)
    round_counts: defaultdict[int, int] = defaultdict(int)
    for wait in waits:
        for device in wait.devices:  # several devices of a wait share its time
            waited_s[device] += wait.waited_s / len(wait.devices)
            round_counts[device] += 1
    total_s = sum(waited_s.values())
    ranked = []
    for device in sorted(waited_s, key=lambda device: (-waited_s[device], device)):
        share = waited_s[device] / total_s if total_s else 0.0
        ranked.append(Awaited(device, round_counts[device], share))
    return tuple(ranked)


@styled
def draw_waiting(series: Sequence[Series], width: float) -> PaperFigure:
    """Draw how long rounds waited for their slowest clients, and for which devices.

    Each line has two panels: on the left the mean times of its rounds, on the right each device's
    share of the waiting.

    Args:
        series: the lines to draw; a line is a variant or scenario with its runs over seeds.
        width: width of the figure (inches).

    Raises:
        NothingToDrawError: no line has rounds that a server opens and that have clients.
        PictureError: there are more lines than the figure has room for (``MOST_LINES``).
    """
    refuse_too_many("waiting", series, MOST_LINES)
    lines, notes = measure_each(series, measure_waiting)
    columns = columns_for(width, len(lines))
    rows = math.ceil(len(lines) / columns)
    figure = Figure(figsize=(width, _FRAME_IN + rows * _PANEL_IN))
    ratios = [1.0, 0.5] * columns
    grid = figure.subplots(rows, 2 * columns, squeeze=False, width_ratios=ratios)
    end = max(point.end_s.high for line in lines for point in line.points)
    unit = style.unit_for(end, style.TIMES)
    panels_of_lines = grid.reshape(-1, 2)  # two neighbouring panels for each line
    for index, (by_round, by_device) in enumerate(panels_of_lines):
        if index >= len(lines):
            by_round.set_visible(False)
            by_device.set_visible(False)
            continue
        line = lines[index]
        is_in_top_row = index < columns
        is_lowest = index >= len(lines) - columns
        _draw_rounds(by_round, line, unit.size)
        words = f"{100 * line.share.mean:.0f} % waiting"
        panel_width = width / columns * 0.7  # the left panel has about 0.7 of a column's width
        by_round.set_title(title_of(line.name, words, panel_width))
        by_round.set_ylim(0, end * 1.02 / unit.size)
        _draw_devices(by_device, line)
        if is_in_top_row:
            by_device.set_title("share of the waiting (%)", loc="right")
        if is_lowest:
            label = "round"
            if line.pooled > 1:
                label = f"round (means of {line.pooled})"
            by_round.set_xlabel(label)
            by_device.set_xlabel(_device_label(line))
    figure.supylabel(f"since a round began ({unit.name})", fontsize=7.5)
    add_legend(figure, _handles(lines))
    numbers: list[NumberRow] = []
    for line in lines:
        numbers += line.numbers()
    return PaperFigure(figure, numbers, tuple(notes))


def _device_label(line: WaitingLine) -> str:
    return "device" if line.seeds == 1 else "rank of device"


def _draw_rounds(panel: Axes, line: WaitingLine, unit_s: float) -> None:
    """Draw the times of a line's rounds as stacked areas, the waiting by outcome on top.

    Args:
        panel: the empty panel.
        line: the line.
        unit_s: unit of the vertical axis (s).
    """
    edges = [point.first - 0.5 for point in line.points]
    edges.append(line.points[-1].last + 0.5)
    half = SpreadCurve.of([*map(attrgetter("half_s"), line.points)], unit_s).mean
    top = SpreadCurve.of([*map(attrgetter("others_s"), line.points)], unit_s).mean
    # ID in the SVG, upper edge and look of each area, the lowest area first
    areas: list[tuple[str, Floats, palette.Look]] = [
        ("half", half, _EARLY),
        ("others", top, _MOST_DONE),
    ]
    for outcome, look in _WAITED.items():
        waited = SpreadCurve.of([point.waited_s[outcome] for point in line.points], unit_s).mean
        top = top + waited
        areas.append((f"waited-{outcome}", top, look))
    lower = np.zeros(len(line.points))
    for gid, upper, look in areas:
        if (upper > lower).any():
            panel.stairs(upper, edges, baseline=lower, fill=True, linewidth=0, gid=gid, **look)
            panel.stairs(upper, edges, baseline=None, color="white", linewidth=0.6)
        lower = np.maximum(lower, upper)
    if line.seeds > 1:
        ends = SpreadCurve.of([*map(attrgetter("end_s"), line.points)], unit_s)
        middles = (np.array(edges[1:]) + edges[:-1]) / 2
        panel.vlines(middles, ends.low, ends.high, gid="end-seeds", **_EXTENT)
    panel.set_xlim(edges[0], edges[-1])


def _draw_devices(panel: Axes, line: WaitingLine) -> None:
    """Draw shares of the waiting by device as bars, with whiskers over the seeds."""
    shares = [*line.ranks, line.rest]
    x = np.arange(len(shares))
    curve = SpreadCurve.of(shares, _PERCENT)
    panel.bar(x, curve.mean, width=0.75, gid="awaited", **_BAR)
    if line.seeds > 1:
        panel.vlines(
            x, curve.low, curve.high, color=palette.BLACK, linewidth=0.8, gid="awaited-seeds"
        )
    names = [*map(str, range(1, len(line.ranks) + 1))]
    if line.seeds == 1:
        names = [str(entry.device) for entry in line.awaited[0][: len(line.ranks)]]
    panel.set_xticks(x, [*names, "rest"])
    panel.tick_params(axis="x", length=0)
    panel.set_ylim(0, 100)
    panel.set_yticks([0, 50, 100])


def _handles(lines: Sequence[WaitingLine]) -> list[Artist]:
    handles: list[Artist] = [Patch(**_EARLY), Patch(**_MOST_DONE)]
    for outcome, look in _WAITED.items():
        if any(point.waited_s[outcome].high > 0 for line in lines for point in line.points):
            handles.append(Patch(**look))
    seeds = max(map(attrgetter("seeds"), lines))
    if seeds > 1:
        handles.append(Line2D([], [], label=f"end: lowest to highest of {seeds} seeds", **_EXTENT))
    return handles
