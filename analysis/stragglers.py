"""The straggler timeline: each selected device's epochs against its deadline.

Time counts from the start of the round. A round's deadline is one instant for all; CATA-Fed's T, which counts from the end of
each device's own download, stands a little differently in each lane.
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
from fedsim.errors import nearest
from fedsim.lab.reading.history import History, parsed
from fedsim.records.reading import RunFolder

OUTCOMES = ("valid", "slow", "late", "lost", "stopped")
_OF_TASK = {"done": "valid", "late": "late", "lost": "lost", "left": "lost", "battery": "lost", "memory": "late"}
_TIMES = ("train_end", "sends", "answered", "cut", "limit", "deadline", "ended")
SORTS = ("size", "epoch")
MOST_PANELS, MOST_LANES = 8, 60
_PICKED = 3  # the worst rounds, where none are asked for
_COLUMNS = 4
_LANE_IN, _THIN_IN = 0.17, 0.105  # a lane's height, with few and with many of them
_FEW_LANES = 16  # up to here lanes are high
_LEAST_EPOCH = 1 / 60  # of the axis: shorter epochs run into one bar
_COLOURS = dict(zip(OUTCOMES, (style.GREEN, style.ORANGE, style.VERMILLION, style.BLACK, style.GREY), strict=True))
_MEANING = {
    "valid": "valid",
    "slow": "slow: a straggler, answered untrained",
    "late": "late: ended, nothing arrived",
    "lost": "lost: disconnected",
    "stopped": "cut off by the end of the run",
}
_ENDS: dict[str, dict[str, Any]] = {
    "limit": {"label": "T, the deadline of training", "color": style.BLUE, "linewidth": 1.6},
    "deadline": {"label": "the round's deadline", "color": style.BLUE, "linewidth": 1.6, "linestyle": (0, (2, 1))},
}
_NO_DOWNLOAD: dict[str, Any] = {"marker": "s", "markerfacecolor": "white", "markersize": 5, "linestyle": ""}
_PART: dict[str, Any] = {"marker": "D", "color": style.PURPLE, "linestyle": ""}
_SPLITS = _PART | {"markerfacecolor": "white"}


@style.styled
def draw_stragglers(run: RunFolder, *, rounds: tuple[int, int] | None = None, order: str = SORTS[0]) -> Figure:
    """Each selected device's epochs against its deadline, a panel a round: how far it came, and what became of it.

    Args:
        run: the run.
        rounds: of rounds ``rounds[0]`` to ``rounds[1] - 1`` those with training, at most the first eight; by default the three
            in which most tasks were not done, and the median one. Of more than 60 devices some are drawn, evenly spread.
        order: ``size`` (the most samples on top) or ``epoch`` (the longest epoch on top).
    """
    if order not in SORTS:
        raise style.PictureError(f"the order is {order!r}; allowed are {', '.join(SORTS)}{nearest(order, SORTS)}")
    history = History(run)
    trained = trained_rounds(history)
    shown = _window(run, history, trained, rounds)
    attempts = read_attempts(history, list(shown))
    if attempts[["limit", "deadline"]].isna().all(axis=None):
        raise style.NothingToDrawError(f"the rounds of {str(run.path)!r} have no deadline that anybody could miss")
    keys = ["samples", "epoch_s", "task"] if order == "size" else ["epoch_s", "samples", "task"]
    attempts = attempts.sort_values(keys, ascending=[False, False, True])
    lanes = {
        number: own.iloc[style.evenly(len(own), MOST_LANES)].reset_index(drop=True) for number, own in attempts.groupby("round")
    }
    most = max(map(len, lanes.values()))
    lane = np.interp(most, (_FEW_LANES, 2 * _FEW_LANES), (_LANE_IN, _THIN_IN))
    columns = min(_COLUMNS, len(shown))
    lines = math.ceil(len(shown) / columns)
    room = ConstrainedLayoutEngine(hspace=0.04, wspace=0.04)
    figure = Figure(figsize=(style.WIDTH_IN, 1.9 + lines * (max(most, 4) * lane + 0.6)), layout=room)
    grid = figure.subplots(lines, columns, sharex=True, squeeze=False)
    end = np.nanmax(attempts[list(_TIMES)].to_numpy(float))
    unit = style.unit_for(end, style.TIMES)
    counted = bool(((attempts["epochs"] == attempts["asked"]) & (attempts["asked"] > 0)).any())
    for panel, number in zip(grid.flat, shown, strict=False):
        panel.set_xlim(0, end * 1.02 / unit.size)
        panel.set_ylim(most - 0.5, -0.5)
        _draw_round(panel, lanes[number], unit.size)
        _label(panel, lanes[number], order, counted)
        panel.set_title(_heading(run, number, shown[number], attempts[attempts["round"] == number]), fontsize=10)
    for panel in grid.flat[len(shown) :]:
        panel.set_visible(False)
    figure.supylabel(f"device · {'samples it trains on' if order == 'size' else 'nominal epoch (s)'}", fontsize=9)
    for panel in grid.flat[max(0, len(shown) - columns) : len(shown)]:
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        panel.tick_params(axis="x", labelbottom=True)
        panel.set_xlabel(f"since the round began ({unit.name})", fontsize=9)
    what = f"epochs of {'the' if most < MOST_LANES else 'some'} selected devices against their deadlines"
    what += f"; at the right how many each finished{', of those asked for' if counted else ''}"
    return style.finished(figure, [run], _handles(attempts), f"{_excerpt(shown, len(trained))}; {what}")


def _window(run: RunFolder, history: History, trained: list[int], rounds: tuple[int, int] | None) -> dict[int, str]:
    """The rounds to draw, in order, and why each is drawn, where that is not what was asked for."""
    if not trained:
        raise style.NothingToDrawError(f"{str(run.path)!r} has no rounds in which devices trained against a deadline")
    if rounds is None:
        if len(trained) <= _PICKED + 1:
            return dict.fromkeys(trained, "")
        ends = history.of("task-end")
        wasted = ends.loc[ends["outcome"] != "done", "round"].dropna().astype(int).value_counts()
        lengths = history.rounds.set_index("round")["end"].diff()
        ranked = sorted(trained, key=lambda number: (-wasted.get(number, 0), -lengths.get(number, 0.0)))
        picked = dict.fromkeys(ranked[:_PICKED], "one of the worst") | {ranked[len(ranked) // 2]: "the median"}
        return dict(sorted(picked.items()))
    inside = [number for number in trained if rounds[0] <= number < rounds[1]]
    if not inside:
        raise style.NothingToDrawError(f"nobody trained in rounds {rounds[0]}:{rounds[1]}, so there are no stragglers to draw")
    return dict.fromkeys(inside[:MOST_PANELS], "")


def _excerpt(shown: dict[int, str], every: int) -> str:
    """Text that names the rounds drawn."""
    if any(shown.values()):
        return f"the {_PICKED} rounds in which most tasks were not done, and the median one, of {every:,} with training"
    which = f"rounds {min(shown)} to {max(shown)}" if len(shown) > 1 else f"round {min(shown)}"
    return f"all rounds with training ({which})" if len(shown) == every else f"{which}: {len(shown)} of {every:,} with training"


def _heading(run: RunFolder, number: int, why: str, lanes: pd.DataFrame) -> str:
    word = {"cata-fed": "cluster", "tifl": "tier"}.get(str(run.summary["strategy"]), "group")
    groups = lanes["group"].dropna().unique()
    counts = lanes["outcome"].value_counts()
    title = ", ".join([f"round {number}", *([f"{word} {int(groups[0])}"] if len(groups) == 1 else []), *([why] if why else [])])
    return f"{title}\n" + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if name in counts)


def trained_rounds(history: History) -> list[int]:
    """The rounds that were opened by the server and in which somebody trained, in order; none where there are no rounds."""
    trained = set(history.steps.loc[history.steps["step"] == "train", "round"].dropna().astype(int))
    return [number for number in history.of("round-start")["round"].astype(int) if number in trained]


def read_attempts(history: History, rounds: Sequence[int]) -> pd.DataFrame:
    """One row a selected device of these rounds, in the order of their tasks; times in seconds since the start of the round.

    Columns; a time is NaN where the device did not come so far:
        task, round, device, group: whose; ``group`` is NaN where the device was in none.
        outcome: one of ``OUTCOMES``. ``slow``: it answered without having trained enough; ``late``: the server ended it, by its
            time, or for want of memory; ``lost``: it disconnected; ``stopped``: it was at work when the run ended.
        samples, part: what it was to train on; the number of the part of its data from 1 on, or 0 where they are in one piece.
        epoch_s: one epoch over these samples at the device's nominal speed.
        splits: whether it split its data after this.
        epoch_ends, epochs, asked: when epochs ended (a list), how many counted for the device, and how many were asked for.
        begun, done, train_end: begin of training (0 if none), end of its last whole epoch, end of training.
        sends, answered, cut: begin of the upload, and its end if it was done and if it was not.
        limit, deadline: the end of the time to train, and of the round; NaN where there is none.
        ended: the end of the task.
    """
    events = history.events[history.events["round"].isin(list(rounds))]
    opened = {int(row["round"]): row for row in events[events["kind"] == "round-start"].to_dict("records")}
    splits = set(events.loc[events["kind"] == "split", ["round", "device"]].itertuples(index=False, name=None))
    rows = []
    for _, records in events[events["task"].notna()].groupby("task", sort=True):
        first: Any = records.iloc[0]
        start = opened.get(int(first["round"]), {"data": None, "time": first["time"]})
        device: Any = history.population.loc[int(first["device"])]
        row = {name: int(first[name]) for name in ("task", "round", "device")} | {"group": first["group"]}
        row |= {"samples": int(device["samples"]), "splits": (first["round"], first["device"]) in splits}
        row |= _course(records, start["time"], parsed(start["data"]))
        rows.append(row | {"epoch_s": row["samples"] / device["speed"]})
    return pd.DataFrame(rows)


def _course(records: pd.DataFrame, start: float, limits: dict[str, Any]) -> dict[str, Any]:
    """Course of the training of one task, from its records."""
    course: dict[str, Any] = dict.fromkeys(_TIMES, math.nan)
    course |= {"outcome": "stopped", "part": 0, "epoch_ends": [], "epochs": 0, "asked": 0, "begun": 0.0}
    for row in records.to_dict("records"):
        since, data = row["time"] - start, parsed(row["data"])
        match row["kind"], row["step"]:
            case "step-start", "train":
                course["begun"] = since
                course["deadline"] = math.nan if limits.get("deadline") is None else limits["deadline"] - start
            case "step-end", "train":
                course |= {"epochs": data["epochs"], "asked": data["asked"], "train_end": since}
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
    if course["outcome"] == "valid" and not math.isnan(course["train_end"]) and not course["epochs"]:
        course["outcome"] = "slow"
    return course | {"done": course["epoch_ends"][-1] if course["epoch_ends"] else course["begun"]}


def _hatched(face: str, edge: str) -> dict[str, Any]:
    return {"facecolor": style.lighten(face, 0.6), "edgecolor": edge, "hatch": "//////"}


def _draw_round(panel: Axes, lanes: pd.DataFrame, unit: float) -> None:
    for outcome, colour in _COLOURS.items():
        rows = lanes[lanes["outcome"] == outcome]
        _draw_epochs(panel, rows, unit, colour)
        _draw_tails(panel, rows, unit, colour)
        never = rows[rows["train_end"].isna()]
        where = never["ended"].fillna(0.0).to_numpy() / unit
        style.marks_at(panel, where, never.index, color=colour, markeredgecolor=colour, gid="no-download", **_NO_DOWNLOAD)
    for column, look in _ENDS.items():
        reached = lanes[lanes[column].notna()]
        if len(reached):
            panel.vlines(reached[column] / unit, reached.index - 0.5, reached.index + 0.5, zorder=3, gid=column, **look)
    size = 5.0 if len(lanes) <= _FEW_LANES else 3.2
    parts, splits = lanes[lanes["part"] > 0], lanes[lanes["splits"]]
    style.marks_at(panel, parts["begun"] / unit, parts.index, markersize=size, gid="part", **_PART)
    middle = (splits["begun"] + splits["train_end"]) / 2 / unit
    style.marks_at(panel, middle, splits.index, markersize=size, gid="splits", **_SPLITS)


def _draw_epochs(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """A bar an epoch, with gaps between them; where epochs are too short for that, one bar of them all."""
    least = panel.get_xlim()[1] * unit * _LEAST_EPOCH
    spans = []
    for lane, begun, ends in zip(rows.index, rows["begun"], rows["epoch_ends"], strict=True):
        if ends and (ends[-1] - begun) / len(ends) < least:
            spans.append((begun, ends[-1], lane))
        else:
            spans += [(start, end, lane) for start, end in zip([begun, *ends], ends, strict=False)]
    if spans:
        start, end, lanes = np.array(spans, dtype=float).T
        look: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.9, "gid": "epochs"}
        style.bars(panel, start / unit, end / unit, lanes, 0.38, **look)


def _draw_tails(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """Before the epochs the download; after them one that was not finished, the wait in a queue, and the upload, cut or not."""

    def bars(begin: str, end: str, half: float, **look: Any) -> None:
        own = rows[rows[end] > rows[begin]]
        if len(own):
            style.bars(panel, own[begin] / unit, own[end] / unit, own.index, half, **look)

    rows = rows.assign(opened=0.0, queued=rows["sends"].where(rows["answered"].notna()))
    pale = {"facecolor": style.lighten(colour, 0.75), "edgecolor": colour, "hatch": "//////", "linewidth": 0.0}
    bars("opened", "begun", 0.12, facecolor=style.STEPS["download"])
    bars("done", "train_end", 0.34, gid="unfinished", **pale)
    bars("train_end", "queued", 0.12, gid="queue", facecolor=style.STEPS["queue"])
    bars("sends", "answered", 0.12, gid="upload", facecolor=style.STEPS["upload"])
    bars("sends", "cut", 0.3, gid="cut-upload", **_hatched(style.STEPS["upload"], colour))


def _label(panel: Axes, lanes: pd.DataFrame, order: str, counted: bool) -> None:
    """Label each lane: device and sort key, left; finished epochs, right."""
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="y", length=0, pad=6, labelsize=(small := 8 if len(lanes) <= _FEW_LANES else 6))
    values = lanes["samples"].astype(str) if order == "size" else lanes["epoch_s"].map("{:.3g}".format)
    panel.set_yticks(lanes.index, lanes["device"].astype(str) + " · " + values)
    for lane, epochs, asked in zip(lanes.index, lanes["epochs"], lanes["asked"], strict=True):
        text = f"{epochs}/{asked}" if counted and asked else f"{epochs}"
        panel.text(1.015, lane, text, transform=panel.get_yaxis_transform(), va="center", fontsize=small)


def _handles(attempts: pd.DataFrame) -> list[Artist]:
    no_download = Line2D([], [], label="ended during its download", **_NO_DOWNLOAD | {"markeredgecolor": style.BLACK})
    cut = Patch(label="upload that was cut short", **_hatched(style.STEPS["upload"], style.GREY))
    keys = [
        *((attempts["outcome"] == name, Patch(facecolor=_COLOURS[name], label=_MEANING[name])) for name in OUTCOMES),
        (attempts["train_end"] > attempts["done"], Patch(label="epoch begun, not finished", **style.HATCHED)),
        (attempts["train_end"].isna(), no_download),
        (attempts["begun"] > 0, Patch(facecolor=style.STEPS["download"], label="download")),
        (attempts["answered"].notna(), Patch(facecolor=style.STEPS["upload"], label="upload")),
        (attempts["cut"].notna(), cut),
        (attempts["sends"] > attempts["train_end"], Patch(facecolor=style.STEPS["queue"], label="queue")),
        *((attempts[column].notna(), Line2D([], [], **look)) for column, look in _ENDS.items()),
        (attempts["part"] > 0, Line2D([], [], label="trains on a part of its data", **_PART)),
        (attempts["splits"], Line2D([], [], label="splits its data after this", **_SPLITS)),
    ]
    return [key for there, key in keys if there.any()]
