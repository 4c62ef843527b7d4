"""Single rounds: each client's downloads, epochs and upload against its deadlines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.paper.lines import strategy_of
from fedsim.analysis.paper.sheet import NumberRow, PaperFigure, add_legend, columns_for, styled
from fedsim.analysis.round_lanes import (
    OUTCOMES,
    TIMES,
    LaneSizes,
    assign_lanes,
    choose_lanes,
    draw_round,
    handles_of,
    name_lanes,
    read_attempts,
    trained_rounds,
)
from fedsim.analysis.series import Series
from fedsim.analysis.stragglers import worst_rounds
from fedsim.lab.reading.history import History

_LANE_IN = 0.105  # height of a lane (inches), with room for a text of 7 points
_FRAME_IN = 0.75
_TITLE_IN = 0.32
_MOST_LANES = 24
_MOST_PANELS = 8
_SIZES = LaneSizes(font=7, mark=2.4, line=1.0, gap=0.4)
_NUMBERS = (
    *("task", "round", "device", "group", "outcome", "prepares", "samples", "part", "splits"),
    *("begun", "done", "train_end", "epochs", "sends", "answered", "cut", "limit", "deadline"),
    "ended",
)


@dataclass(frozen=True)
class ChosenRounds:
    """Rounds of a run that a figure draws, the reason to draw each, and the tasks of the rounds.

    Attributes:
        history: records of the run.
        reasons: index of a round -> reason to draw it; an empty text if the user chose it.
        attempts: tasks of the rounds, as ``read_attempts`` returns them.
    """

    history: History
    reasons: dict[int, str]
    attempts: pd.DataFrame


def choose_rounds(series: Series, rounds: Sequence[int] = ()) -> ChosenRounds:
    """Choose the rounds to draw of the first run of a line.

    Args:
        series: the line, which is a variant or scenario with its runs over seeds.
        rounds: indices of the rounds, of which the first eight are drawn. By default the rounds
            are the round with the most failed tasks and the median round (``worst_rounds``).

    Raises:
        NothingToDrawError: the run has no round in which devices train.
        PictureError: ``rounds`` has an index of no such round.
    """
    history = History(series.runs[0])
    trained = trained_rounds(history)
    if not trained:
        raise style.NothingToDrawError(
            f"{strategy_of(series)} has no rounds that a server opens and in which devices train"
        )
    for number in rounds:
        if number not in trained:
            raise style.PictureError(
                f"--round is {number}; allowed are the rounds with training of "
                f"{str(history.run.path)!r}, {trained[0]} to {trained[-1]}"
            )
    reasons = dict.fromkeys(rounds[:_MOST_PANELS], "")
    if not reasons:
        reasons = worst_rounds(history, trained, 1)
    return ChosenRounds(history, reasons, read_attempts(history, list(reasons)))


@styled
def draw_rounds(series: Series, width: float, rounds: Sequence[int] = ()) -> PaperFigure:
    """Draw rounds of the first run of a line, a panel per round.

    Args:
        series: the line, which is a variant or scenario with its runs over seeds.
        width: width of the figure (inches).
        rounds: indices of the rounds, of which the first eight are drawn. By default the rounds
            are the round with the most failed tasks and the median round (``worst_rounds``).

    Raises:
        NothingToDrawError: the run has no round in which devices train.
        PictureError: ``rounds`` has an index of no such round.
    """
    selection = choose_rounds(series, rounds)
    by_round = {}
    for number in selection.reasons:
        tasks = selection.attempts[selection.attempts["round"] == number]
        by_round[number] = assign_lanes(tasks)
    client_counts = {number: int(tasks["lane"].max()) + 1 for number, tasks in by_round.items()}
    columns = columns_for(width, len(by_round))
    lanes_of_rows = _lanes_of_rows([*client_counts.values()], columns)
    rows = len(lanes_of_rows)
    height = _FRAME_IN + rows * _TITLE_IN + sum(lanes_of_rows) * _LANE_IN
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False, height_ratios=lanes_of_rows)
    end = float(np.nanmax(selection.attempts[list(TIMES)].to_numpy(float)))
    unit = style.unit_for(end, style.TIMES)
    for index, (number, reason) in enumerate(selection.reasons.items()):
        panel = grid.flat[index]
        tasks = by_round[number]
        lowest = lanes_of_rows[index // columns] - 0.5
        panel.set(xlim=(0, end * 1.02 / unit.size), ylim=(lowest, -0.5))
        lanes = choose_lanes(tasks, _MOST_LANES)
        draw_round(panel, lanes, unit.size, _SIZES)
        name_lanes(panel, lanes, _SIZES)
        panel.tick_params(axis="y", pad=2)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
        panel.set_title(_title(number, reason, tasks))
    for panel in grid.flat[len(by_round) :]:
        panel.set_visible(False)
    for panel in style.lowest_panels(grid, len(by_round)):
        panel.tick_params(labelbottom=True)
        panel.set_xlabel(f"since the round began ({unit.name}); right: epochs")
    figure.supylabel("device · samples", fontsize=7.5)
    handles = handles_of(selection.attempts)
    # a narrow figure has no room for the explanation that follows the colon in a label
    for handle in handles:
        label, _, _ = str(handle.get_label()).partition(":")
        handle.set_label(label)
    add_legend(figure, handles)
    notes = []
    for number, count in client_counts.items():
        if count > _MOST_LANES:
            notes.append(f"of {count} clients in round {number}, {_MOST_LANES} are drawn")
    return PaperFigure(figure, _numbers(selection.attempts), tuple(notes))


def _lanes_of_rows(client_counts: Sequence[int], columns: int) -> list[int]:
    """Return the count of lanes for which each row of panels has room: that of its highest panel.

    Args:
        client_counts: count of clients of each panel, row by row.
        columns: count of panels in a row.
    """
    lanes_of_rows = []
    for first in range(0, len(client_counts), columns):
        most_clients = max(client_counts[first : first + columns])
        lanes_of_rows.append(min(_MOST_LANES, most_clients))
    return lanes_of_rows


def _title(number: int, reason: str, tasks: pd.DataFrame) -> str:
    counts = tasks.loc[tasks["counts"], "outcome"].value_counts()
    ends = [f"{counts[name]} {name}" for name in OUTCOMES if name in counts]
    head = f"Round {number}"
    if reason:
        head += f" ({reason.removeprefix('one of ')})"
    return f"{head}: {', '.join(ends)}"


def _numbers(attempts: pd.DataFrame) -> list[NumberRow]:
    """Return a row per task: times in s since the round's start, and the ends of its epochs."""
    rows: list[NumberRow] = []
    for task in attempts.to_dict("records"):
        row: NumberRow = {}
        for name in _NUMBERS:
            value = task[name]
            is_missing = value != value  # only NaN differs from itself
            row[name] = None if is_missing else value
        row["epoch_ends"] = " ".join(map(repr, task["epoch_ends"]))
        row["downloads"] = " ".join(f"{start!r}-{end!r}" for start, end in task["downloads"])
        rows.append(row)
    return rows
