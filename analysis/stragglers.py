"""The straggler timeline: each selected device's epochs against its deadline.

Time counts from the start of the round. CATA-Fed's T, which counts from the end of a device's
own download, differs by lane.
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
from fedsim.lab.reading.history import History, parsed
from fedsim.records.reading import RunFolder

OUTCOMES = {  # colour and meaning of each
    "valid": (style.GREEN, "valid"),
    "slow": (style.ORANGE, "slow: a straggler, answered untrained"),
    "late": (style.VERMILLION, "late: ended, nothing arrived"),
    "lost": (style.BLACK, "lost: disconnected"),
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
_PICKED = 3  # the worst rounds, where none are asked for
_COLUMNS = 4
_LANE_IN = 0.13  # a lane's height
_FEW_LANES = 16  # up to here texts and marks are large
_LEAST_EPOCH = 1 / 60  # of the axis: shorter epochs run into one bar
_ENDS: dict[str, dict[str, Any]] = {
    "limit": {"label": "T, the deadline of training", "color": style.BLUE, "linewidth": 1.6},
    "deadline": {
        "label": "the round's deadline",
        "color": style.BLUE,
        "linewidth": 1.6,
        "linestyle": (0, (2, 1)),
    },
}
_CUT: dict[str, Any] = {"facecolor": style.lighten(style.STEPS["upload"], 0.6), "hatch": "//////"}
_NO_DOWNLOAD: dict[str, Any] = {
    "marker": "s",
    "markerfacecolor": "white",
    "markersize": 5,
    "linestyle": "",
}
_PART: dict[str, Any] = {"marker": "D", "color": style.PURPLE, "linestyle": ""}
_SPLITS = _PART | {"markerfacecolor": "white"}


@style.styled
def draw_stragglers(run: RunFolder, *, rounds: tuple[int, int] | None = None) -> Figure:
    """Each selected device's epochs against its deadline, a panel a round: how far it came, and
    what became of it.

    Of rounds ``rounds[0]`` to ``rounds[1] - 1`` the first eight with training are drawn; by default
    the three with the most failed tasks, and the median one. Devices with the most samples are on
    top; of more than 60, 60 are drawn, evenly spread.
    """
    history = History(run)
    trained = trained_rounds(history)
    shown, excerpt = _choice(history, trained, rounds)
    attempts = read_attempts(history, list(shown))
    if attempts[["limit", "deadline"]].isna().all(axis=None):
        raise style.NothingToDrawError(
            f"the rounds of {str(run.path)!r} have no deadline that anybody could miss"
        )
    by_round = dict(
        [*attempts.sort_values(["samples", "task"], ascending=[False, True]).groupby("round")]
    )
    most = min(MOST_LANES, max(map(len, by_round.values())))
    columns = min(_COLUMNS, len(shown))
    lines = math.ceil(len(shown) / columns)
    room = ConstrainedLayoutEngine(hspace=0.04, wspace=0.04)
    figure = Figure(
        figsize=(style.WIDTH_IN, 1.9 + lines * (max(most, 4) * _LANE_IN + 0.6)), layout=room
    )
    grid = figure.subplots(lines, columns, sharex=True, squeeze=False)
    end = np.nanmax(attempts[list(_TIMES)].to_numpy(float))
    unit = style.unit_for(end, style.TIMES)
    for panel, (number, why) in zip(grid.flat, shown.items(), strict=False):
        own = by_round[number]
        panel.set(xlim=(0, end * 1.02 / unit.size), ylim=(most - 0.5, -0.5))
        lanes = own.iloc[style.evenly(len(own), MOST_LANES)].reset_index(drop=True)
        _draw_round(panel, lanes, unit.size)
        _label(panel, lanes)
        groups = own["group"].dropna().unique()
        counts = own["outcome"].value_counts()
        heads = [f"round {number}", f"group {groups[0]:.0f}" if len(groups) == 1 else "", why]
        ends = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if name in counts)
        panel.set_title(f"{', '.join(filter(None, heads))}\n{ends}", fontsize=10)
    for panel in grid.flat[len(shown) :]:
        panel.set_visible(False)
    figure.supylabel("device · samples it trains on", fontsize=9)
    for panel in grid.flat[max(0, len(shown) - columns) : len(shown)]:
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        panel.tick_params(axis="x", labelbottom=True)
        panel.set_xlabel(f"since the round began ({unit.name})", fontsize=9)
    words = (
        f"{excerpt}; {'the' if most < MOST_LANES else 'some'} selected devices; at the right how "
        "many epochs each finished"
    )
    return style.finished(figure, [run], _handles(attempts), words)


def _choice(
    history: History, trained: list[int], rounds: tuple[int, int] | None
) -> tuple[dict[int, str], str]:
    """The rounds to draw, in order, each with the reason of an automatic choice; and words for
    the title.
    """
    if not trained:
        raise style.NothingToDrawError(
            f"{str(history.run.path)!r} has no rounds in which devices trained against a deadline"
        )
    every = len(trained)
    if rounds is None and every > _PICKED + 1:
        ends = history.of("task-end")
        wasted = ends.loc[ends["outcome"] != "done", "round"].dropna().astype(int).value_counts()
        lengths = history.rounds.set_index("round")["end"].diff()
        ranked = sorted(
            trained, key=lambda number: (-wasted.get(number, 0), -lengths.get(number, 0.0))
        )
        picked = dict.fromkeys(ranked[:_PICKED], "one of the worst") | {
            ranked[every // 2]: "the median"
        }
        return dict(sorted(picked.items())), f"{len(picked)} of {every:,} rounds with training"
    first, stop = rounds or (0, trained[-1] + 1)
    inside = [number for number in trained if first <= number < stop][:MOST_PANELS]
    if not inside:
        raise style.NothingToDrawError(
            f"nobody trained in rounds {first}:{stop}, so there are no stragglers to draw"
        )
    return dict.fromkeys(inside, ""), f"{len(inside)} of {every:,} rounds with training"


def trained_rounds(history: History) -> list[int]:
    """The rounds that the server opened and in which somebody trained, in order."""
    trained = set(history.steps.loc[history.steps["step"] == "train", "round"].dropna().astype(int))
    return [
        number for number in history.of("round-start")["round"].astype(int) if number in trained
    ]


def read_attempts(history: History, rounds: Sequence[int]) -> pd.DataFrame:
    """One row per selected device of these rounds, in the order of tasks; times in seconds since
    the round's start.

    Columns; a time is NaN if the device did not get so far:
        task, round, device, group: ``group`` is NaN for none.
        outcome: one of ``OUTCOMES``; ``late`` if the server ended it, or memory was short.
        samples, part: samples to train on; the number of the part of its data from 1 on, or 0 for undivided data.
        splits: whether it split its data after this.
        epoch_ends, epochs: the ends of epochs (a list), and the number that counted.
        begun, done, train_end: begin of training (0 if none), end of its last whole epoch, end of training.
        sends, answered, cut: begin of the upload, its end if complete, and its end if cut.
        limit, deadline, ended: the deadline of training, of the round, and the end of the task.
    """
    events = history.events[history.events["round"].isin(list(rounds))]
    opened = {
        int(row["round"]): row for row in events[events["kind"] == "round-start"].to_dict("records")
    }
    splits = set(
        events.loc[events["kind"] == "split", ["round", "device"]].itertuples(
            index=False, name=None
        )
    )
    rows = []
    for _, records in events[events["task"].notna()].groupby("task", sort=True):
        first: Any = records.iloc[0]
        start = opened.get(int(first["round"]), {"data": None, "time": first["time"]})
        row = {name: int(first[name]) for name in ("task", "round", "device")} | {
            "group": first["group"]
        }
        device: Any = history.population.loc[row["device"]]
        row |= {
            "samples": int(device["samples"]),
            "splits": (first["round"], first["device"]) in splits,
        }
        rows.append(row | _course(records, start["time"], parsed(start["data"])))
    return pd.DataFrame(rows)


def _course(records: pd.DataFrame, start: float, limits: dict[str, Any]) -> dict[str, Any]:
    course: dict[str, Any] = dict.fromkeys(_TIMES, math.nan)
    course |= {"outcome": "stopped", "part": 0, "epoch_ends": [], "epochs": 0, "begun": 0.0}
    for row in records.to_dict("records"):
        since = row["time"] - start
        data = parsed(row["data"])
        match row["kind"], row["step"]:
            case "step-start", "train":
                course["begun"] = since
                course["deadline"] = (
                    math.nan if limits.get("deadline") is None else limits["deadline"] - start
                )
            case "step-end", "train":
                course |= {"epochs": data["epochs"], "train_end": since}
                course["epoch_ends"] = [end - start for end in data["epoch_ends"]]
                if "part" in data:
                    course["part"], _, course["samples"] = data["part"]
            case "step-start", "upload":
                course["sends"] = since
            case "step-end", "upload":
                course["answered" if row["outcome"] == "done" else "cut"] = since
            case "task-end", _:
                course |= {"ended": since, "outcome": _OF_TASK.get(row["outcome"], "stopped")}
    if limits.get("training_limit") is not None:
        course["limit"] = course["begun"] + limits["training_limit"]
    if (
        course["outcome"] == "valid"
        and not math.isnan(course["train_end"])
        and not course["epochs"]
    ):
        course["outcome"] = "slow"
    return course | {"done": course["epoch_ends"][-1] if course["epoch_ends"] else course["begun"]}


def _draw_round(panel: Axes, lanes: pd.DataFrame, unit: float) -> None:
    for outcome, (colour, _) in OUTCOMES.items():
        rows = lanes[lanes["outcome"] == outcome]
        _draw_bars(panel, rows, unit, colour)
        never = rows[rows["train_end"].isna()]
        where = never["ended"].fillna(0.0).to_numpy() / unit
        style.marks_at(
            panel,
            where,
            never.index,
            color=colour,
            markeredgecolor=colour,
            gid="no-download",
            **_NO_DOWNLOAD,
        )
    for column, look in _ENDS.items():
        reached = lanes[lanes[column].notna()]
        if len(reached):
            panel.vlines(
                reached[column] / unit,
                reached.index - 0.5,
                reached.index + 0.5,
                zorder=3,
                gid=column,
                **look,
            )
    size = 5.0 if len(lanes) <= _FEW_LANES else 3.2
    parts = lanes[lanes["part"] > 0]
    splits = lanes[lanes["splits"]]
    style.marks_at(panel, parts["begun"] / unit, parts.index, markersize=size, gid="part", **_PART)
    middle = (splits["begun"] + splits["train_end"]) / 2 / unit
    style.marks_at(panel, middle, splits.index, markersize=size, gid="splits", **_SPLITS)


def _draw_bars(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """Draw the download, a bar per epoch (one for all if epochs are short), an unfinished epoch,
    the queue and the upload.
    """
    least = panel.get_xlim()[1] * unit * _LEAST_EPOCH
    spans = []
    for lane, begun, ends in zip(rows.index, rows["begun"], rows["epoch_ends"], strict=True):
        wide = ends if ends and (ends[-1] - begun) / len(ends) >= least else ends[-1:]
        spans += [(start, end, lane) for start, end in zip([begun, *wide], wide, strict=False)]
    if spans:
        start, stop, lanes = np.array(spans, dtype=float).T
        look: dict[str, Any] = {
            "facecolor": colour,
            "edgecolor": "white",
            "linewidth": 0.9,
            "gid": "epochs",
        }
        style.bars(panel, start / unit, stop / unit, lanes, 0.38, **look)

    rows = rows.assign(opened=0.0, queued=rows["sends"].where(rows["answered"].notna()))
    pale = {
        "facecolor": style.lighten(colour, 0.75),
        "edgecolor": colour,
        "hatch": "//////",
        "linewidth": 0.0,
    }
    for begin, end, half, look in (
        ("opened", "begun", 0.12, {"facecolor": style.STEPS["download"]}),
        ("done", "train_end", 0.34, {"gid": "unfinished", **pale}),
        ("train_end", "queued", 0.12, {"gid": "queue", "facecolor": style.STEPS["queue"]}),
        ("sends", "answered", 0.12, {"gid": "upload", "facecolor": style.STEPS["upload"]}),
        ("sends", "cut", 0.3, {"gid": "cut-upload", "edgecolor": colour, **_CUT}),
    ):
        own = rows[rows[end] > rows[begin]]
        if len(own):
            style.bars(panel, own[begin] / unit, own[end] / unit, own.index, half, **look)


def _label(panel: Axes, lanes: pd.DataFrame) -> None:
    panel.spines["left"].set_visible(False)
    panel.tick_params(
        axis="y", length=0, pad=6, labelsize=(small := 8 if len(lanes) <= _FEW_LANES else 6)
    )
    panel.set_yticks(
        lanes.index, lanes["device"].astype(str) + " · " + lanes["samples"].astype(str)
    )
    for lane, epochs in zip(lanes.index, lanes["epochs"], strict=True):
        panel.text(
            1.015,
            lane,
            str(epochs),
            transform=panel.get_yaxis_transform(),
            va="center",
            fontsize=small,
        )


def _handles(attempts: pd.DataFrame) -> list[Artist]:
    no_download = Line2D(
        [], [], label="ended during its download", **_NO_DOWNLOAD | {"markeredgecolor": style.BLACK}
    )
    cut = Patch(label="upload that was cut short", edgecolor=style.GREY, **_CUT)
    keys = [
        *(
            (attempts["outcome"] == name, Patch(facecolor=look, label=words))
            for name, (look, words) in OUTCOMES.items()
        ),
        (
            attempts["train_end"] > attempts["done"],
            Patch(label="epoch begun, not finished", **style.HATCHED),
        ),
        (attempts["train_end"].isna(), no_download),
        (attempts["begun"] > 0, Patch(facecolor=style.STEPS["download"], label="download")),
        (attempts["answered"].notna(), Patch(facecolor=style.STEPS["upload"], label="upload")),
        (attempts["cut"].notna(), cut),
        (
            attempts["sends"] > attempts["train_end"],
            Patch(facecolor=style.STEPS["queue"], label="queue"),
        ),
        *((attempts[column].notna(), Line2D([], [], **look)) for column, look in _ENDS.items()),
        (attempts["part"] > 0, Line2D([], [], label="trains on a part of its data", **_PART)),
        (attempts["splits"], Line2D([], [], label="splits its data after this", **_SPLITS)),
    ]
    return [key for there, key in keys if there.any()]
