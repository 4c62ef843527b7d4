"""A round as lanes: each client's downloads, epochs and upload against its deadlines.

The picture of stragglers and the papers' figure of single rounds draw rounds with these functions.
Time counts from the start of the round. The deadline T of CATA-Fed counts from the end of a
device's download, so that it differs by lane.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import palette, style
from fedsim.analysis.marks import LOST, LOST_WITH_EDGES
from fedsim.lab.reading.activities import Activities, StepSpan
from fedsim.lab.reading.attempts import Attempt, Attempts
from fedsim.lab.reading.history import History

OUTCOMES = {  # outcome: colour and meaning
    "valid": (palette.VALID, "valid"),
    "slow": (palette.ORANGE, "slow: answered untrained"),
    "late": (palette.VERMILLION, "late: ended, nothing arrived"),
    "lost": (palette.BLACK, LOST),
    "stopped": (palette.GREY, "not finished when the records end"),
}
TIMES = ("train_end", "sends", "answered", "cut", "limit", "deadline", "ended")
_LEAST_EPOCH_PT = 3.0  # if epochs of a training are narrower (points), they are drawn as one bar
_LEAST_COUNT_PT = 34.0  # width (points) of a bar that has room for its count of epochs
_ENDS: dict[str, palette.Look] = {
    "limit": {"label": "T, the deadline of training", **palette.LIMIT},
    "deadline": {"label": "the round's deadline", **palette.DEADLINE},
}
_CUT: palette.Look = {"facecolor": palette.lighten(palette.STEPS["upload"], 0.6), "hatch": "//////"}
_NO_TRAINING: palette.Look = {"marker": "s", "markerfacecolor": "white", "linestyle": ""}
_PRE_TRAINING: palette.Look = {
    "facecolor": palette.lighten(palette.PRE_TRAINING, 0.55),
    "edgecolor": palette.PRE_TRAINING,
    "hatch": "......",
    "linewidth": 0.0,
}
_PART: palette.Look = {"marker": "D", "color": palette.PURPLE, "linestyle": ""}
_SPLITS: palette.Look = {**palette.SPLIT, "linestyle": ""}
# half the heights of bars, as shares of a lane's height
_EPOCH = 0.38
_UNFINISHED = 0.34
_MESSAGE = 0.13
_CUT_MESSAGE = 0.3


@dataclass(frozen=True)
class LaneSizes:
    """Sizes (points) in a picture of a round, in which each device has a lane (row).

    Attributes:
        font: size of texts.
        mark: size of marks.
        line: width of the lines at deadlines.
        gap: width of the white gap between epochs.
    """

    font: float
    mark: float
    line: float
    gap: float


LARGE = LaneSizes(font=8, mark=5, line=1.6, gap=0.9)
SMALL = LaneSizes(font=6, mark=3.2, line=1.6, gap=0.9)


def trained_rounds(history: History) -> list[int]:
    """Return the indices of rounds that the server opened and in which a device trained."""
    return Attempts(Activities(history)).trained


def read_attempts(history: History, rounds: Sequence[int]) -> pd.DataFrame:
    """Return the tasks of some rounds as a DataFrame, one row per task.

    Times are in seconds since the round's start. The time of an event that did not happen is NaN.

    Args:
        history: the run's records.
        rounds: indices of the rounds.

    Returns:
        Columns:

        - ``task``, ``round``, ``device``, ``group``: IDs, and the index of the round; ``group`` is
          NaN without a group;
        - ``outcome``: one of ``OUTCOMES``;
        - ``prepares``: whether the task only prepares rounds (such as pre-training), and trains no
          model of the round;
        - ``counts``: whether the task counts as a client of the round; False if it ``prepares`` and
          was successful;
        - ``samples``: count of samples to train on;
        - ``part``: number of the part of the device's data on which the task trains, from 1; 0 for
          undivided data;
        - ``splits``: whether the device reported in this round that it has split its data;
        - ``downloads``: list with a pair (start, end) for each download;
        - ``trainings``: list with a pair for each training: its start, and the list of the ends of
          its epochs;
        - ``epoch_ends``: list of the ends of the epochs of all trainings;
        - ``epochs``: count of epochs in the update;
        - ``begun``: start of the first training;
        - ``done``: end of the last whole epoch, or ``begun`` if there is none;
        - ``train_end``: end of the last training;
        - ``sends``: start of the upload;
        - ``answered``: end of the upload if it was complete;
        - ``cut``: end of the upload if it was cut off;
        - ``limit``: deadline of the training, if the round limits trainings;
        - ``deadline``: deadline of the round, if a training has begun;
        - ``ended``: end of the task.
    """
    attempts = Attempts(Activities(history))
    selection = frozenset(rounds)
    lanes = []
    for attempt in attempts.all:
        if attempt.round not in selection:
            continue
        assert attempt.round is not None
        opening = attempts.openings.get(attempt.round)
        round_start = attempt.start
        deadline = None
        if opening is not None:
            round_start = opening["time"]
            deadline = opening["data"].get("deadline")
        lane = _read_lane(attempt, attempt.round, round_start, deadline)
        lane.samples = lane.part_samples
        if not lane.part:
            lane.samples = int(history.population["samples"].loc[attempt.device])
        lanes.append(lane)
    return pd.DataFrame(map(vars, lanes))


@dataclass
class _RoundLane:
    """Task of a client in a round: a row of ``read_attempts``, whose columns are the fields."""

    train_end: float = math.nan
    sends: float = math.nan
    answered: float = math.nan
    cut: float = math.nan
    limit: float = math.nan
    deadline: float = math.nan
    ended: float = math.nan
    task: int = -1
    round: int = -1
    device: int = -1
    group: float = math.nan
    outcome: str = ""
    prepares: bool = False
    counts: bool = True
    splits: bool = False
    part: int = 0
    part_samples: int = 0
    begun: float = math.nan
    epochs: int = 0
    downloads: list[tuple[float, float]] = field(default_factory=list)
    trainings: list[tuple[float, list[float]]] = field(default_factory=list)
    epoch_ends: list[float] = field(default_factory=list)
    done: float = math.nan
    samples: int = 0

    def add(self, step: StepSpan, round_start: float) -> None:
        """Add a step of the task.

        Args:
            step: the step.
            round_start: start of the round (s).
        """
        start = step.start - round_start
        end = step.end - round_start
        has_ended = step.text is not None
        match step.kind:
            case "download":
                self.downloads.append((start, end))
            case "train":
                epoch_ends = [time - round_start for time in step.data.get("epoch_ends", [])]
                self.epoch_ends += epoch_ends
                self.trainings.append((start, epoch_ends))
                if has_ended:
                    self.train_end = end
                if "part" in step.data:
                    self.part, _, self.part_samples = step.data["part"]
            case "upload":
                self.sends = start  # the upload's begin
                if has_ended and step.outcome == "done":
                    self.answered = end
                elif has_ended:
                    self.cut = end  # the upload broke off


def _read_lane(
    attempt: Attempt, number: int, round_start: float, deadline: float | None
) -> _RoundLane:
    """Return the row of ``read_attempts`` for one task, without its ``samples``.

    Args:
        attempt: the task.
        number: index of the task's round.
        round_start: start of the round (s).
        deadline: deadline of the round (s); None if it has none.
    """
    lane = _RoundLane(
        task=attempt.task,
        round=number,
        device=attempt.device,
        group=math.nan if attempt.group is None else attempt.group,
        outcome=attempt.outcome,
        prepares=attempt.is_preparation,
        counts=not (attempt.is_preparation and attempt.outcome == "valid"),
        splits=attempt.splits,
        epochs=attempt.epochs,
    )
    for step in attempt.steps:
        lane.add(step, round_start)
    if lane.trainings:
        lane.begun, _ = lane.trainings[0]
        if deadline is not None:
            lane.deadline = deadline - round_start
    lane.done = lane.epoch_ends[-1] if lane.epoch_ends else lane.begun
    if attempt.limit is not None:
        lane.limit = attempt.limit - round_start
    if attempt.outcome != "stopped":
        lane.ended = attempt.end - round_start
    return lane


def assign_lanes(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return the tasks of a round with the column ``lane``: the row in which a task is drawn.

    A device has one lane for all its tasks. Devices with more samples have earlier lanes.

    Args:
        attempts: tasks of the round, as ``read_attempts`` returns them.
    """
    order = attempts.sort_values(["samples", "task"], ascending=[False, True])
    devices = {device: lane for lane, device in enumerate(dict.fromkeys(order["device"]))}
    return order.assign(lane=order["device"].map(devices))


def choose_lanes(lanes: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the tasks of at most ``most`` devices, evenly spread over the lanes.

    A lane is the row with the tasks of one device. The lanes are numbered anew from 0.

    Args:
        lanes: tasks of a round with lanes, as ``assign_lanes`` returns them.
        most: greatest count of lanes.
    """
    count = int(lanes["lane"].max()) + 1
    numbers = {
        lane: number for number, lane in enumerate(style.choose_evenly(count, most).tolist())
    }
    selection = lanes[lanes["lane"].isin(numbers)]
    return selection.assign(lane=selection["lane"].map(numbers)).reset_index(drop=True)


def draw_round(panel: Axes, lanes: pd.DataFrame, unit: float, sizes: LaneSizes) -> None:
    """Draw the tasks of a round; each device has a lane, a row of the panel.

    Args:
        panel: the panel. Its limits and the size of its figure have to be set before.
        lanes: tasks with lanes, as ``assign_lanes`` returns them.
        unit: unit of the panel's time axis (s).
        sizes: sizes of marks, lines and gaps.
    """
    for outcome, (colour, _) in OUTCOMES.items():
        with_outcome = lanes[lanes["outcome"] == outcome]
        _draw_epochs(panel, with_outcome[~with_outcome["prepares"]], unit, colour, sizes)
        _draw_phases(panel, with_outcome, unit, colour)
        untrained = with_outcome[with_outcome["begun"].isna()]
        style.draw_markers(
            panel,
            untrained["ended"].fillna(0.0).to_numpy() / unit,
            untrained["lane"],
            color=colour,
            markeredgecolor=colour,
            markersize=sizes.mark,
            gid="no-training",
            **_NO_TRAINING,
        )
    _draw_pre_trainings(panel, lanes[lanes["prepares"]], unit)
    _draw_deadlines(panel, lanes, unit, sizes)
    parts = lanes[lanes["part"] > 0]
    splits = lanes[lanes["splits"]]
    style.draw_markers(
        panel, parts["begun"] / unit, parts["lane"], markersize=sizes.mark, gid="part", **_PART
    )
    middle = (splits["begun"] + splits["train_end"]) / 2 / unit
    style.draw_markers(
        panel, middle, splits["lane"], markersize=sizes.mark, gid="splits", **_SPLITS
    )


def _draw_deadlines(panel: Axes, lanes: pd.DataFrame, unit: float, sizes: LaneSizes) -> None:
    """Draw a line in each lane at the deadline of its training, and at the round's deadline."""
    outline = [patheffects.withStroke(linewidth=sizes.line + 1.2, foreground="white")]
    for column, look in _ENDS.items():
        rows = lanes[lanes[column].notna()]
        if len(rows):
            panel.vlines(
                rows[column] / unit,
                rows["lane"] - 0.5,
                rows["lane"] + 0.5,
                zorder=3,
                gid=column,
                path_effects=outline,
                **look | {"linewidth": sizes.line},
            )


def _draw_epochs(
    panel: Axes, rows: pd.DataFrame, unit: float, colour: str, sizes: LaneSizes
) -> None:
    """Draw a bar per finished epoch.

    The epochs of a training that are too short to be told apart are one bar with their count.
    """
    panel_pt = panel.get_window_extent().width / panel.figure.dpi * 72
    pt_per_s = panel_pt / (panel.get_xlim()[1] * unit)
    bars: list[tuple[float, float, int]] = []
    for lane, trainings in zip(rows["lane"], rows["trainings"], strict=True):
        for start, epoch_ends in trainings:
            if not epoch_ends:
                continue
            end = epoch_ends[-1]
            bar_ends = epoch_ends
            if (end - start) / len(epoch_ends) * pt_per_s < _LEAST_EPOCH_PT:
                bar_ends = [end]
                if (end - start) * pt_per_s > _LEAST_COUNT_PT:
                    _write_count(panel, lane, (start + end) / 2 / unit, epoch_ends, sizes)
            for bar_start, bar_end in pairwise([start, *bar_ends]):
                bars.append((bar_start, bar_end, lane))
    if not bars:
        return
    starts, stops, lanes = np.array(bars, dtype=float).T
    style.draw_bars(
        panel,
        starts / unit,
        stops / unit,
        lanes,
        _EPOCH,
        facecolor=colour,
        edgecolor="white",
        linewidth=sizes.gap,
        gid="epochs",
    )


def _write_count(
    panel: Axes, lane: int, x: float, epoch_ends: Sequence[float], sizes: LaneSizes
) -> None:
    """Write the count of epochs on the bar of a training whose epochs are not told apart."""
    panel.text(
        x,
        lane,
        f"{len(epoch_ends)} epochs",
        ha="center",
        va="center_baseline",
        fontsize=sizes.font,
        path_effects=[patheffects.withStroke(linewidth=1.5, foreground="white")],
        gid="epoch-count",
        clip_on=True,
        zorder=3.5,
    )


def _draw_phases(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """Draw the downloads, an unfinished epoch, the queue and the upload of each task as bars."""
    _draw_downloads(panel, rows, unit)
    # ends of the queue and of an unfinished epoch; NaN for a task that has none
    rows = rows.assign(
        queued=rows["sends"].where(rows["answered"].notna()),
        unfinished=rows["train_end"].where(~rows["prepares"]),
    )
    unfinished: palette.Look = {
        "facecolor": palette.lighten(colour, 0.75),
        "edgecolor": colour,
        "hatch": "//////",
        "linewidth": 0.0,
        "gid": "unfinished",
    }
    queue: palette.Look = {"facecolor": palette.STEPS["queue"], "gid": "queue"}
    upload: palette.Look = {"facecolor": palette.STEPS["upload"], "gid": "upload"}
    cut: palette.Look = {"gid": "cut-upload", "edgecolor": colour, **_CUT}
    # for each phase: column of its begin, column of its end, half the height of its bar, and look
    phases: tuple[tuple[str, str, float, palette.Look], ...] = (
        ("done", "unfinished", _UNFINISHED, unfinished),
        ("train_end", "queued", _MESSAGE, queue),
        ("sends", "answered", _MESSAGE, upload),
        ("sends", "cut", _CUT_MESSAGE, cut),
    )
    for start, end, half_height, look in phases:
        drawn = rows[rows[end] > rows[start]]  # comparisons with NaN are False
        if len(drawn):
            starts = drawn[start] / unit
            ends = drawn[end] / unit
            style.draw_bars(panel, starts, ends, drawn["lane"], half_height, **look)


def _draw_downloads(panel: Axes, rows: pd.DataFrame, unit: float) -> None:
    """Draw the downloads of tasks as bars; a task may have several."""
    downloads: list[tuple[float, float, int]] = []  # start (s), end (s), lane
    for lane, spans in zip(rows["lane"], rows["downloads"], strict=True):
        downloads += [(start, end, lane) for start, end in spans]
    if downloads:
        starts, stops, lanes = np.array(downloads, dtype=float).T
        look: palette.Look = {"facecolor": palette.STEPS["download"], "gid": "download"}
        style.draw_bars(panel, starts / unit, stops / unit, lanes, _MESSAGE, **look)


def _draw_pre_trainings(panel: Axes, rows: pd.DataFrame, unit: float) -> None:
    """Draw pre-trainings as dotted bars; dots of failed ones have the colour of the outcome."""
    for outcome, (colour, _) in OUTCOMES.items():
        trained = rows[(rows["outcome"] == outcome) & (rows["train_end"] > rows["begun"])]
        if len(trained):
            start = trained["begun"] / unit
            end = trained["train_end"] / unit
            look = {"gid": "pre-training", **_PRE_TRAINING}
            if outcome != "valid":
                look["edgecolor"] = colour
            style.draw_bars(panel, start, end, trained["lane"], _UNFINISHED, **look)


def name_lanes(panel: Axes, lanes: pd.DataFrame, sizes: LaneSizes) -> None:
    """Label the lanes of a round's picture; a lane is the row with the tasks of one device.

    To the left of a lane are the device's ID and its count of samples. To the right is the count of
    epochs that it finished in the round.

    Args:
        panel: the panel.
        lanes: tasks with lanes, as ``assign_lanes`` returns them.
        sizes: sizes, of which ``font`` is the size of the labels.
    """
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="y", length=0, pad=6, labelsize=sizes.font)
    last = lanes.drop_duplicates("lane", keep="last")
    names = last["device"].astype(str) + " · " + last["samples"].astype(str)
    panel.set_yticks(last["lane"], names)
    trained = lanes[~lanes["prepares"]]
    # epochs of all trainings are counted, also trainings of a personal model
    epochs = trained["epoch_ends"].map(len).groupby(trained["lane"]).sum()
    for lane in last["lane"]:
        panel.text(
            1.015,
            lane,
            str(epochs.get(lane, 0)),
            transform=panel.get_yaxis_transform(),
            va="center",
            fontsize=sizes.font,
        )


def handles_of(attempts: pd.DataFrame, *, loses_edges: bool = False) -> list[Artist]:
    """Return the legend's entries for outcomes and phases that occur in ``attempts``.

    Args:
        attempts: tasks, as ``read_attempts`` returns them.
        loses_edges: whether an edge server failed in the run, which also loses tasks.
    """
    no_training = {**_NO_TRAINING, "markeredgecolor": palette.BLACK, "markersize": 5}
    entries: list[tuple[pd.Series[bool], Artist]] = []
    for outcome, (colour, label) in OUTCOMES.items():
        counts = (attempts["outcome"] == outcome) & attempts["counts"]
        if label == LOST and loses_edges:
            label = LOST_WITH_EDGES
        entries.append((counts, Patch(facecolor=colour, label=label)))
    unfinished = (attempts["train_end"] > attempts["done"]) & ~attempts["prepares"]
    pre_trained = (attempts["train_end"] > attempts["begun"]) & attempts["prepares"]
    entries += [
        (unfinished, Patch(label="epoch begun, not finished", **palette.HATCHED)),
        (pre_trained, Patch(label="pre-training", **_PRE_TRAINING)),
        (
            attempts["begun"].isna(),
            Line2D([], [], label="ended before it trained", **no_training),
        ),
        (
            attempts["downloads"].astype(bool),
            Patch(facecolor=palette.STEPS["download"], label="download"),
        ),
        (attempts["answered"].notna(), Patch(facecolor=palette.STEPS["upload"], label="upload")),
        (
            attempts["cut"].notna(),
            Patch(label="upload that was cut short", edgecolor=palette.GREY, **_CUT),
        ),
        (
            attempts["sends"] > attempts["train_end"],
            Patch(facecolor=palette.STEPS["queue"], label="queue"),
        ),
    ]
    for column, look in _ENDS.items():
        entries.append((attempts[column].notna(), Line2D([], [], **look)))
    entries += [
        (attempts["part"] > 0, Line2D([], [], label="trains on a part of its data", **_PART)),
        (attempts["splits"], Line2D([], [], label="splits its data after this", **_SPLITS)),
    ]
    return [entry for has_entry, entry in entries if has_entry.any()]
