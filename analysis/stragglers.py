"""The straggler timeline: each selected device's epochs against its deadline.

Time counts from the start of the round. The deadline T of CATA-Fed counts from the end of a
device's download, so that it differs by lane.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import RecordData, parse_data
from fedsim.records.reading import RunFolder

OUTCOMES = {  # outcome: colour and meaning
    "valid": (style.GREEN, "valid"),
    "slow": (style.ORANGE, "slow: answered untrained"),
    "late": (style.VERMILLION, "late: ended, nothing arrived"),
    "lost": (style.BLACK, "lost: device disconnected"),
    "stopped": (style.GREY, "cut off by the end of the run"),
}
_OF_TASK = {
    "done": "valid",
    "late": "late",
    "lost": "lost",
    "left": "lost",
    "battery": "lost",
    "memory": "late",
}
_TIMES = ("train_end", "sends", "answered", "cut", "limit", "deadline", "ended")
MOST_PANELS = 8
MOST_LANES = 60
_WORST = 3  # count of worst rounds drawn by default
_COLUMNS = 4
_LANE_IN = 0.13  # height of a lane (inches)
_FEW_LANES = 16  # most lanes with large texts and marks
_LEAST_EPOCH = 1 / 60  # share of the axis below which epochs are drawn as one bar
_ENDS: dict[str, style.Look] = {
    "limit": {"label": "T, the deadline of training", "color": style.BLUE, "linewidth": 1.6},
    "deadline": {
        "label": "the round's deadline",
        "color": style.BLUE,
        "linewidth": 1.6,
        "linestyle": (0, (2, 1)),
    },
}
_CUT: style.Look = {"facecolor": style.lighten(style.STEPS["upload"], 0.6), "hatch": "//////"}
_NO_DOWNLOAD: style.Look = {
    "marker": "s",
    "markerfacecolor": "white",
    "markersize": 5,
    "linestyle": "",
}
_PART: style.Look = {"marker": "D", "color": style.PURPLE, "linestyle": ""}
_SPLITS: style.Look = {**_PART, "markerfacecolor": "white"}


@style.styled
def draw_stragglers(run: RunFolder, *, rounds: tuple[int, int] | None = None) -> Figure:
    """Draw each selected device's epochs against its deadline, in a panel per round.

    Devices with the most samples are on top; of more than 60, 60 are drawn, evenly spread.

    Args:
        run: the run.
        rounds: draw the first eight rounds with training of ``rounds[0]`` to ``rounds[1] - 1``; by
            default the three with the most failed tasks, and the median one.

    Raises:
        NothingToDrawError: no round has training, or a deadline.
    """
    history = History(run)
    reasons, excerpt = _choose_rounds(history, trained_rounds(history), rounds)
    attempts = read_attempts(history, list(reasons))
    if attempts[["limit", "deadline"]].isna().all(axis=None):
        raise style.NothingToDrawError(
            f"the rounds of {str(run.path)!r} have no deadline that anybody could miss"
        )
    ordered = attempts.sort_values(["samples", "task"], ascending=[False, True])
    by_round = dict([*ordered.groupby("round")])
    most = min(MOST_LANES, max(map(len, by_round.values())))
    columns = min(_COLUMNS, len(reasons))
    lines = math.ceil(len(reasons) / columns)
    height = 1.9 + lines * (max(most, 4) * _LANE_IN + 0.6)
    layout = ConstrainedLayoutEngine(hspace=0.04, wspace=0.04)
    figure = Figure(figsize=(style.WIDTH_IN, height), layout=layout)
    grid = figure.subplots(lines, columns, sharex=True, squeeze=False)
    end = np.nanmax(attempts[list(_TIMES)].to_numpy(float))
    unit = style.unit_for(end, style.TIMES)
    for panel, (number, reason) in zip(grid.flat, reasons.items(), strict=False):
        of_round = by_round[number]
        panel.set(xlim=(0, end * 1.02 / unit.size), ylim=(most - 0.5, -0.5))
        lanes = of_round.iloc[style.evenly(len(of_round), MOST_LANES)].reset_index(drop=True)
        _draw_round(panel, lanes, unit.size)
        _name_lanes(panel, lanes)
        panel.set_title(_title(number, reason, of_round), fontsize=10)
    for panel in grid.flat[len(reasons) :]:
        panel.set_visible(False)
    figure.supylabel("device · samples it trains on", fontsize=9)
    for panel in grid.flat[max(0, len(reasons) - columns) : len(reasons)]:
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        panel.tick_params(axis="x", labelbottom=True)
        panel.set_xlabel(f"since the round began ({unit.name})", fontsize=9)
    article = "the" if most < MOST_LANES else "some"
    words = f"{excerpt}; {article} selected devices; at the right how many epochs each finished"
    return style.finished(figure, [run], _handles(attempts), words)


def _title(number: int, reason: str, attempts: pd.DataFrame) -> str:
    """Return the title of a panel: round, group, reason to draw it, and devices by outcome."""
    heads = [f"round {number}"]
    groups = attempts["group"].dropna().unique()
    if len(groups) == 1:
        heads.append(f"group {groups[0]:.0f}")
    if reason:
        heads.append(reason)
    counts = attempts["outcome"].value_counts()
    ends = [f"{counts[name]} {name}" for name in OUTCOMES if name in counts]
    return f"{', '.join(heads)}\n{', '.join(ends)}"


def _choose_rounds(
    history: History, trained: list[int], rounds: tuple[int, int] | None
) -> tuple[dict[int, str], str]:
    """Choose the rounds to draw.

    Returns:
        The reason to draw a round by the round's index, in order (empty if the user chose it),
        and a text for the title.
    """
    if not trained:
        raise style.NothingToDrawError(
            f"{str(history.run.path)!r} has no rounds in which devices trained against a deadline"
        )
    if rounds is None and len(trained) > _WORST + 1:
        reasons = _worst_rounds(history, trained)
    else:
        first, stop = (0, trained[-1] + 1) if rounds is None else rounds
        inside = [number for number in trained if first <= number < stop]
        if not inside:
            raise style.NothingToDrawError(
                f"nobody trained in rounds {first}:{stop}, so there are no stragglers to draw"
            )
        reasons = dict.fromkeys(inside[:MOST_PANELS], "")
    return reasons, f"{len(reasons)} of {len(trained):,} rounds with training"


def _worst_rounds(history: History, trained: list[int]) -> dict[int, str]:
    """Choose the rounds with the most failed tasks, and the median round.

    Of rounds with equally many failed tasks, the longest comes first. Returns the reason to draw
    a round by its index, in order.
    """
    ends = history.of("task-end")
    failed = ends.loc[ends["outcome"] != "done", "round"].dropna().astype(int).value_counts()
    durations = history.rounds.set_index("round")["end"].diff()
    ranked = sorted(
        trained, key=lambda number: (-failed.get(number, 0), -durations.get(number, 0.0))
    )
    reasons = dict.fromkeys(ranked[:_WORST], "one of the worst")
    reasons[ranked[len(ranked) // 2]] = "the median"
    return dict(sorted(reasons.items()))


def trained_rounds(history: History) -> list[int]:
    """Return the indices of rounds that the server opened and in which a device trained."""
    steps = history.steps
    trained = set(steps.loc[steps["step"] == "train", "round"].dropna().astype(int))
    opened = history.of("round-start")["round"].astype(int)
    return [number for number in opened if number in trained]


def read_attempts(history: History, rounds: Sequence[int]) -> pd.DataFrame:
    """Return a DataFrame of the tasks of rounds, one row per selected device.

    Times are in seconds since the round's start. The time of a step that the device did not reach
    is NaN.

    Args:
        history: the run's records.
        rounds: indices of the rounds.

    Returns:
        Columns:

        - ``task``, ``round``, ``device``, ``group`` (NaN for none);
        - ``outcome``: one of ``OUTCOMES``; ``late`` if the server ended the task, or memory was
          short;
        - ``samples``, ``part``: samples to train on; the number of the part of the device's data
          from 1 on, or 0 for undivided data;
        - ``splits``: whether the device split its data after this;
        - ``epoch_ends``, ``epochs``: the ends of epochs (a list), and the number that counted;
        - ``begun``, ``done``, ``train_end``: begin of training (0 if none), end of the last whole
          epoch, end of training;
        - ``sends``, ``answered``, ``cut``: begin of the upload, its end if complete, and its end
          if cut;
        - ``limit``, ``deadline``, ``ended``: the deadline of training and of the round, and the
          end of the task.
    """
    events = history.events[history.events["round"].isin(list(rounds))]
    opens: dict[int, float] = {}
    limits: dict[int, RecordData] = {}
    openings = events[events["kind"] == "round-start"]
    for number, time, text in openings[["round", "time", "data"]].itertuples(index=False):
        opens[int(number)] = time
        limits[int(number)] = parse_data(text)
    split_events = events.loc[events["kind"] == "split", ["round", "device"]]
    splits = set(split_events.itertuples(index=False, name=None))
    rows = []
    for _, records in events[events["task"].notna()].groupby("task", sort=True):
        first = records.iloc[0]
        number = int(first["round"])
        device = int(first["device"])
        row = {
            "task": int(first["task"]),
            "round": number,
            "device": device,
            "group": first["group"],
            "samples": int(history.population["samples"].loc[device]),
            "splits": (first["round"], first["device"]) in splits,
        }
        row |= _course(records, opens.get(number, first["time"]), limits.get(number, {}))
        rows.append(row)
    return pd.DataFrame(rows)


def _course(records: pd.DataFrame, start: float, limits: RecordData) -> RecordData:
    """Return the columns of ``read_attempts`` for one task, from its records.

    Args:
        records: the records of the task.
        start: start of the task's round (s).
        limits: data of the record ``round-start``, with the deadline.
    """
    course: RecordData = dict.fromkeys(_TIMES, math.nan)
    course |= {"outcome": "stopped", "part": 0, "epoch_ends": [], "epochs": 0, "begun": 0.0}
    for row in records.to_dict("records"):
        since = row["time"] - start
        data = parse_data(row["data"])
        match row["kind"], row["step"]:
            case "step-start", "train":
                course["begun"] = since
                deadline = limits.get("deadline")
                course["deadline"] = math.nan if deadline is None else deadline - start
            case "step-end", "train":
                course["epochs"] = data["epochs"]
                course["train_end"] = since
                course["epoch_ends"] = [end - start for end in data["epoch_ends"]]
                if "part" in data:
                    course["part"], _, course["samples"] = data["part"]
            case "step-start", "upload":
                course["sends"] = since
            case "step-end", "upload":
                course["answered" if row["outcome"] == "done" else "cut"] = since
            case "task-end", _:
                course["ended"] = since
                course["outcome"] = _OF_TASK.get(row["outcome"], "stopped")
    if limits.get("training_limit") is not None:
        course["limit"] = course["begun"] + limits["training_limit"]
    has_trained = not math.isnan(course["train_end"])
    if course["outcome"] == "valid" and has_trained and not course["epochs"]:
        course["outcome"] = "slow"
    epoch_ends = course["epoch_ends"]
    course["done"] = epoch_ends[-1] if epoch_ends else course["begun"]
    return course


def _draw_round(panel: Axes, lanes: pd.DataFrame, unit: float) -> None:
    for outcome, (colour, _) in OUTCOMES.items():
        rows = lanes[lanes["outcome"] == outcome]
        _draw_epochs(panel, rows, unit, colour)
        _draw_phases(panel, rows, unit, colour)
        untrained = rows[rows["train_end"].isna()]
        style.marks_at(
            panel,
            untrained["ended"].fillna(0.0).to_numpy() / unit,
            untrained.index,
            color=colour,
            markeredgecolor=colour,
            gid="no-download",
            **_NO_DOWNLOAD,
        )
    for column, look in _ENDS.items():
        rows = lanes[lanes[column].notna()]
        if len(rows):
            top = rows.index - 0.5
            bottom = rows.index + 0.5
            panel.vlines(rows[column] / unit, top, bottom, zorder=3, gid=column, **look)
    size = 5.0 if len(lanes) <= _FEW_LANES else 3.2
    parts = lanes[lanes["part"] > 0]
    splits = lanes[lanes["splits"]]
    style.marks_at(panel, parts["begun"] / unit, parts.index, markersize=size, gid="part", **_PART)
    middle = (splits["begun"] + splits["train_end"]) / 2 / unit
    style.marks_at(panel, middle, splits.index, markersize=size, gid="splits", **_SPLITS)


def _draw_epochs(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """Draw a bar per finished epoch; one bar for all epochs of a device if they are short."""
    least = panel.get_xlim()[1] * unit * _LEAST_EPOCH
    spans: list[tuple[float, float, int]] = []
    for lane, begun, epoch_ends in zip(rows.index, rows["begun"], rows["epoch_ends"], strict=True):
        ends = epoch_ends
        if ends and (ends[-1] - begun) / len(ends) < least:
            ends = ends[-1:]
        start = begun
        for end in ends:
            spans.append((start, end, lane))
            start = end
    if not spans:
        return
    starts, stops, lanes = np.array(spans, dtype=float).T
    look: style.Look = {
        "facecolor": colour,
        "edgecolor": "white",
        "linewidth": 0.9,
        "gid": "epochs",
    }
    style.bars(panel, starts / unit, stops / unit, lanes, 0.38, **look)


def _draw_phases(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """Draw the download, an unfinished epoch, the queue and the upload of each lane as bars."""
    rows = rows.assign(opened=0.0, queued=rows["sends"].where(rows["answered"].notna()))
    unfinished = {
        "facecolor": style.lighten(colour, 0.75),
        "edgecolor": colour,
        "hatch": "//////",
        "linewidth": 0.0,
        "gid": "unfinished",
    }
    queue = {"facecolor": style.STEPS["queue"], "gid": "queue"}
    upload = {"facecolor": style.STEPS["upload"], "gid": "upload"}
    phases: tuple[tuple[str, str, float, dict[str, Any]], ...] = (
        ("opened", "begun", 0.12, {"facecolor": style.STEPS["download"]}),
        ("done", "train_end", 0.34, unfinished),
        ("train_end", "queued", 0.12, queue),
        ("sends", "answered", 0.12, upload),
        ("sends", "cut", 0.3, {"gid": "cut-upload", "edgecolor": colour, **_CUT}),
    )
    for start, end, half, look in phases:
        spans = rows[rows[end] > rows[start]]
        if len(spans):
            style.bars(panel, spans[start] / unit, spans[end] / unit, spans.index, half, **look)


def _name_lanes(panel: Axes, lanes: pd.DataFrame) -> None:
    """Write device and samples left of each lane, and the count of epochs right of it."""
    size = 8 if len(lanes) <= _FEW_LANES else 6
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="y", length=0, pad=6, labelsize=size)
    names = lanes["device"].astype(str) + " · " + lanes["samples"].astype(str)
    panel.set_yticks(lanes.index, names)
    for lane, epochs in zip(lanes.index, lanes["epochs"], strict=True):
        panel.text(
            1.015,
            lane,
            str(epochs),
            transform=panel.get_yaxis_transform(),
            va="center",
            fontsize=size,
        )


def _handles(attempts: pd.DataFrame) -> list[Artist]:
    """Return the legend's entries for outcomes and phases that occur in ``attempts``."""
    no_download = {**_NO_DOWNLOAD, "markeredgecolor": style.BLACK}
    entries: list[tuple[pd.Series[bool], Artist]] = []
    for outcome, (colour, label) in OUTCOMES.items():
        entries.append((attempts["outcome"] == outcome, Patch(facecolor=colour, label=label)))
    entries += [
        (
            attempts["train_end"] > attempts["done"],
            Patch(label="epoch begun, not finished", **style.HATCHED),
        ),
        (
            attempts["train_end"].isna(),
            Line2D([], [], label="ended during its download", **no_download),
        ),
        (attempts["begun"] > 0, Patch(facecolor=style.STEPS["download"], label="download")),
        (attempts["answered"].notna(), Patch(facecolor=style.STEPS["upload"], label="upload")),
        (
            attempts["cut"].notna(),
            Patch(label="upload that was cut short", edgecolor=style.GREY, **_CUT),
        ),
        (
            attempts["sends"] > attempts["train_end"],
            Patch(facecolor=style.STEPS["queue"], label="queue"),
        ),
    ]
    for column, look in _ENDS.items():
        entries.append((attempts[column].notna(), Line2D([], [], **look)))
    entries += [
        (attempts["part"] > 0, Line2D([], [], label="trains on a part of its data", **_PART)),
        (attempts["splits"], Line2D([], [], label="splits its data after this", **_SPLITS)),
    ]
    return [entry for has_entry, entry in entries if has_entry.any()]
