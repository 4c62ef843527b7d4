"""The straggler timeline: each selected device's epochs against its deadline.

Time counts from the start of the round. The deadline T of CATA-Fed counts from the end of a
device's download, so that it differs by lane.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.round_lanes import (
    LARGE,
    OUTCOMES,
    SMALL,
    TIMES,
    assign_lanes,
    choose_lanes,
    draw_round,
    handles_of,
    name_lanes,
    read_attempts,
    trained_rounds,
)
from fedsim.common.round_words import counted
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder

MOST_PANELS = 8
MOST_LANES = 60
_WORST = 3  # count of worst rounds drawn by default
_FEW_ROUNDS = _WORST + 1  # up to this count, all rounds are drawn; else the worst and the median
_COLUMNS = 4
_LANE_IN = 0.13  # height of a lane (inches)
_FRAME_IN = 1.9  # height of title, axis labels and legend (inches)
_TITLE_IN = 0.6  # height of a panel's title and ticks (inches)
_LEAST_LANES = 4  # least count of lanes for which a panel has room
_FEW_LANES = 16  # if a panel has more lanes than this, texts and marks are small


@style.styled
def draw_stragglers(run: RunFolder, *, rounds: tuple[int, int] | None = None) -> Figure:
    """Draw each selected device's epochs against its deadline, in a panel per round.

    Devices with the most samples are on top. Of more than 60 devices, 60 are drawn, evenly spread.

    Args:
        run: the run.
        rounds: pair of indices. The first eight rounds with training from ``rounds[0]`` to
            ``rounds[1] - 1`` are drawn. By default the three rounds with the most failed tasks and
            the median round are drawn (``worst_rounds``), or all rounds if at most four have
            training.

    Raises:
        NothingToDrawError: no round of the run or of ``rounds`` has training, or none of the drawn
            rounds has a deadline.
    """
    history = History(run)
    reasons, excerpt = _choose_rounds(history, trained_rounds(history), rounds)
    attempts = read_attempts(history, list(reasons))
    if attempts[["limit", "deadline"]].isna().all(axis=None):
        raise style.NothingToDrawError(
            f"the rounds of {str(run.path)!r} have no deadline that anybody could miss"
        )
    by_round = {number: assign_lanes(tasks) for number, tasks in attempts.groupby("round")}
    lane_counts = [int(tasks["lane"].max()) + 1 for tasks in by_round.values()]
    most_lanes = min(MOST_LANES, max(lane_counts))
    sizes = LARGE if most_lanes <= _FEW_LANES else SMALL
    columns = min(_COLUMNS, len(reasons))
    rows = math.ceil(len(reasons) / columns)
    height = _FRAME_IN + rows * (max(most_lanes, _LEAST_LANES) * _LANE_IN + _TITLE_IN)
    layout = ConstrainedLayoutEngine(hspace=0.04, wspace=0.04)
    figure = Figure(figsize=(style.WIDTH_IN, height), layout=layout)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    end = np.nanmax(attempts[list(TIMES)].to_numpy(float))
    unit = style.unit_for(end, style.TIMES)
    for panel, (number, reason) in zip(grid.flat, reasons.items(), strict=False):
        of_round = by_round[number]
        panel.set(xlim=(0, end * 1.02 / unit.size), ylim=(most_lanes - 0.5, -0.5))
        lanes = choose_lanes(of_round, MOST_LANES)
        draw_round(panel, lanes, unit.size, sizes)
        name_lanes(panel, lanes, sizes)
        panel.set_title(_title(number, reason, of_round), fontsize=10)
    for panel in grid.flat[len(reasons) :]:
        panel.set_visible(False)
    figure.supylabel("device · samples it trains on", fontsize=9)
    for panel in style.lowest_panels(grid, len(reasons)):
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        panel.tick_params(axis="x", labelbottom=True)
        panel.set_xlabel(f"since the round began ({unit.name})", fontsize=9)
    article = "the" if most_lanes < MOST_LANES else "some"
    words = f"{excerpt}; {article} selected devices; at the right how many epochs each finished"
    handles = handles_of(attempts, loses_edges=history.loses_edges)
    return style.finish(figure, [run], handles, words)


def _title(number: int, reason: str, attempts: pd.DataFrame) -> str:
    """Return the title of a panel: round, group, reason to draw it, and devices by outcome."""
    heads = [f"round {number}"]
    groups = attempts["group"].dropna().unique()
    if len(groups) == 1:
        heads.append(f"group {groups[0]:.0f}")
    if reason:
        heads.append(reason)
    counts = attempts.loc[attempts["counts"], "outcome"].value_counts()
    ends = [f"{counts[name]} {name}" for name in OUTCOMES if name in counts]
    return f"{', '.join(heads)}\n{', '.join(ends)}"


def _choose_rounds(
    history: History, trained: list[int], rounds: tuple[int, int] | None
) -> tuple[dict[int, str], str]:
    """Choose the rounds to draw, at most ``MOST_PANELS``.

    Args:
        history: the run's records.
        trained: indices of the rounds with training, ascending.
        rounds: first round and end of the rounds that the user chose. None: all rounds if they are
            few, otherwise the worst ones and the median one.

    Returns:
        A dict from index of a round to the reason to draw it, ascending, and a text for the title.
        The reason is empty if the round is neither among the worst nor the median one.
    """
    if not trained:
        raise style.NothingToDrawError(
            f"{str(history.run.path)!r} has no rounds in which devices trained against a deadline"
        )
    with_training = f"of {counted(len(trained), 'round')} with training"
    if rounds is None and len(trained) > _FEW_ROUNDS:
        reasons = worst_rounds(history, trained, _WORST)
        return reasons, f"{len(reasons)} {with_training}"
    first, stop = (0, trained[-1] + 1) if rounds is None else rounds
    inside = [number for number in trained if first <= number < stop]
    if not inside:
        raise style.NothingToDrawError(
            f"nobody trained in rounds {first}:{stop}, so there are no stragglers to draw"
        )
    reasons = dict.fromkeys(inside[:MOST_PANELS], "")
    if len(inside) > MOST_PANELS:
        of_inside = f"of the {len(inside)} with training in {first}:{stop}"
        return reasons, f"the first {MOST_PANELS} rounds {of_inside}"
    return reasons, f"{len(reasons)} {with_training}"


def worst_rounds(history: History, trained: list[int], count: int) -> dict[int, str]:
    """Choose the rounds with the most failed tasks, and the median round.

    Rounds are ordered by the count of failed tasks, and rounds with equal counts by duration. The
    first ``count`` rounds are chosen, and the round in the middle of the order. A round that the
    end of the run cut off is chosen only if no other round has training.

    Args:
        history: the run's records.
        trained: indices of the rounds with training.
        count: count of rounds with the most failed tasks to choose.

    Returns:
        Index of a round -> reason to draw it, such as ``many failures``; indices ascend.
    """
    ends = history.of("task-end")
    has_failed = ~ends["outcome"].isin(["done", "stopped"])
    failed = ends.loc[has_failed, "round"].dropna().astype(int).value_counts()
    durations = history.rounds.set_index("round")["end"].diff()
    finished = [number for number in trained if number in durations.index]
    ranked = sorted(  # the worst round first
        finished or trained,
        key=lambda number: (-failed.get(number, 0), -durations.get(number, 0.0)),
    )
    reasons = {}
    for number in ranked[:count]:
        reasons[number] = "a long round"
        if failed.get(number):
            reasons[number] = "many failures" if count > 1 else "most failures"
    median = ranked[len(ranked) // 2]
    reasons.setdefault(median, "the median round" if failed.empty else "median failures")
    return dict(sorted(reasons.items()))
