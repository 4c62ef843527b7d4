"""The straggler timeline: each selected device's epochs against its deadline.

Time counts from the start of the round. A round's deadline is one instant for all; CATA-Fed's T, which counts from the end of
each device's own download, stands a little differently in each lane. Rounds of more devices than there is room for are drawn
as a distribution: how many do what at each time.
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
from fedsim.arrays import Floats
from fedsim.errors import nearest
from fedsim.records.history import History, parsed
from fedsim.records.reading import RunFolder

OUTCOMES = ("valid", "slow", "late", "lost", "stopped")
_OF_TASK = {"done": "valid", "late": "late", "lost": "lost", "left": "lost", "battery": "lost", "memory": "late"}
_TIMES = ("train_end", "sends", "answered", "cut", "limit", "deadline", "ended")


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


SORTS = ("size", "epoch")
MOST_PANELS = 8
_PICKED = 3  # the worst rounds, where none are asked for
_COLUMNS = 4
_LANE_IN, _THIN_IN = 0.17, 0.105  # a lane's height, with few and with many of them
_FEW_LANES, _MANY_LANES = 16, 60  # up to here lanes are high; with more there is no room to name each
_MOST_LANES, _MOMENTS = 120, 300  # with more lanes how many do what is drawn, at so many times
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
            in which most tasks were not done, and the median one.
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
    most = int(attempts.groupby("round").size().max())
    many = most > _MOST_LANES
    lane = np.interp(most, (_FEW_LANES, 2 * _FEW_LANES), (_LANE_IN, _THIN_IN))
    columns = min(_COLUMNS, len(shown))
    lines = math.ceil(len(shown) / columns)
    height = 1.9 + lines * (3.0 if many else max(min(most, _MANY_LANES), 4) * lane + 0.6)
    room = ConstrainedLayoutEngine(hspace=0.04, wspace=0.04)
    figure = Figure(figsize=(style.WIDTH_IN, height), layout=room)
    grid = figure.subplots(lines, columns, sharex=True, squeeze=False)
    end = np.nanmax(attempts[list(_TIMES)].to_numpy(float))
    unit = style.time_unit(end)
    counted = bool(((attempts["epochs"] == attempts["asked"]) & (attempts["asked"] > 0)).any())
    for panel, number in zip(grid.flat, shown, strict=False):
        panel.set_xlim(0, end * 1.02 / unit.size)
        lanes = attempts[attempts["round"] == number].reset_index(drop=True)
        if many:
            _draw_many(panel, lanes, unit.size, end)
        else:
            _draw_round(panel, lanes, unit.size, most)
            _label(panel, lanes, order, counted)
        panel.set_title(_heading(run, number, shown[number], lanes), fontsize=10)
    for panel in grid.flat[len(shown) :]:
        panel.set_visible(False)
    _name_axes(grid, len(shown), order, unit.name, many)
    handles = _handles_of_many(attempts) if many else _handles(attempts)
    what = "what the selected devices do at each time"
    if not many:
        what = "epochs of each selected device against its deadline; at the right how many it finished"
        what += ", of those asked for" if counted else ""
    return style.finished(figure, [run], handles, f"{_excerpt(shown, len(trained))}; {what}")


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
    numbers = list(shown)
    which = f"rounds {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"round {numbers[0]}"
    return f"all rounds with training ({which})" if len(shown) == every else f"{which}: {len(shown)} of {every:,} with training"


def _draw_many(panel: Axes, lanes: pd.DataFrame, unit: float, end: float) -> None:
    """Numbers of devices by activity at each time, stacked; at the bottom those that have answered."""
    at, base = np.linspace(0.0, end, _MOMENTS), np.zeros(_MOMENTS)
    for _, colour, begins, ends in _doings(lanes):
        begin, over = np.sort(begins[~np.isnan(begins)]), np.sort(ends[~np.isnan(ends)])
        count = np.searchsorted(begin, at, side="right") - np.searchsorted(over, at, side="right")
        panel.fill_between(at / unit, base, base + count, color=colour, linewidth=0, step="post", gid="doing")
        base = base + count
    for column, look in _ENDS.items():
        for value in lanes[column].dropna().quantile([0.0, 1.0]).unique():
            panel.axvline(value / unit, gid=column, **look)
    panel.set_ylim(0, len(lanes))


def _doings(lanes: pd.DataFrame) -> list[tuple[str, str, Floats, Floats]]:
    """Activities of devices: name, colour, and begin and end of each (s; NaN where there is none); arrays [n]."""
    ended, begun, trained, sends = (lanes[name].to_numpy(float) for name in ("ended", "begun", "train_end", "sends"))
    sent = lanes["answered"].fillna(lanes["cut"]).to_numpy(float)
    trains = np.where(begun > 0, begun, np.nan)
    queued = sends > trained
    doings = [
        ("download", np.zeros(len(lanes)), np.fmin(trains, ended)),
        ("train", trains, np.where(np.isnan(trains), np.nan, np.fmin(trained, ended))),
        ("queue", np.where(queued, trained, np.nan), np.where(queued, sends, np.nan)),
        ("upload", sends, np.where(np.isnan(sends), np.nan, np.fmin(sent, ended))),
    ]
    colours = _COLOURS | {"valid": style.OUTCOMES["done"]}  # whose training is green
    over = [
        (_MEANING[outcome], colours[outcome], np.where(lanes["outcome"] == outcome, ended, np.nan), np.full(len(lanes), np.nan))
        for outcome in OUTCOMES
    ]
    return [over[0], *((step, style.STEPS[step], begin, end) for step, begin, end in doings), *over[1:]]


def _handles_of_many(attempts: pd.DataFrame) -> list[Artist]:
    there = [(words, colour) for words, colour, begins, _ in _doings(attempts) if not np.isnan(begins).all()]
    ends = [Line2D([], [], **look) for column, look in _ENDS.items() if attempts[column].notna().any()]
    return [*(Patch(facecolor=colour, label=words) for words, colour in there), *ends]


def _hatched(face: str, edge: str) -> dict[str, Any]:
    return {"facecolor": style.lighten(face, 0.6), "edgecolor": edge, "hatch": "//////"}


def _draw_round(panel: Axes, lanes: pd.DataFrame, unit: float, most: int) -> None:
    panel.set_ylim(most - 0.5, -0.5)
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
    size = 5.0 if most <= _FEW_LANES else 3.2
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
            start, stop = own[begin].to_numpy() / unit, own[end].to_numpy() / unit
            style.bars(panel, start, stop, own.index, half, **look)

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
    panel.tick_params(axis="y", length=0, pad=6)
    if len(lanes) > _MANY_LANES:
        panel.set_yticks([])
        return
    small = 8 if len(lanes) <= _FEW_LANES else 6
    values = lanes["samples"].astype(str) if order == "size" else lanes["epoch_s"].map("{:.3g}".format)
    panel.set_yticks(lanes.index, lanes["device"].astype(str) + " · " + values)
    panel.tick_params(axis="y", labelsize=small)
    for lane, epochs, asked in zip(lanes.index, lanes["epochs"], lanes["asked"], strict=True):
        text = f"{epochs}/{asked}" if counted and asked else f"{epochs}"
        panel.text(1.015, lane, text, transform=panel.get_yaxis_transform(), va="center", fontsize=small)


def _heading(run: RunFolder, number: int, why: str, lanes: pd.DataFrame) -> str:
    word = {"cata-fed": "cluster", "tifl": "tier"}.get(str(run.summary["strategy"]), "group")
    groups = lanes["group"].dropna().unique()
    group = f", {word} {int(groups[0])}" if len(groups) == 1 else ""
    counts = lanes["outcome"].value_counts()
    return f"round {number}{group}{f', {why}' if why else ''}\n" + ", ".join(
        f"{counts[name]} {name}" for name in OUTCOMES if name in counts
    )


def _name_axes(grid: Any, shown: int, order: str, unit: str, many: bool) -> None:
    what = "samples it trains on" if order == "size" else "nominal epoch (s)"
    for panel in grid[:, 0]:
        panel.set_ylabel("devices" if many else f"device · {what}", fontsize=9)
    for place, panel in enumerate(grid.flat[:shown]):
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        if place + grid.shape[1] >= shown:
            panel.tick_params(axis="x", labelbottom=True)
            panel.set_xlabel(f"since the round began ({unit})", fontsize=9)


def _handles(attempts: pd.DataFrame) -> list[Artist]:
    no_download = Line2D([], [], label="ended during its download", **_NO_DOWNLOAD | {"markeredgecolor": style.BLACK})
    cut = Patch(label="upload that was cut short", **_hatched(style.STEPS["upload"], style.GREY))
    phases = [
        (attempts["train_end"] > attempts["done"], Patch(label="epoch begun, not finished", **style.HATCHED)),
        (attempts["train_end"].isna(), no_download),
        (attempts["begun"] > 0, Patch(facecolor=style.STEPS["download"], label="download")),
        (attempts["answered"].notna(), Patch(facecolor=style.STEPS["upload"], label="upload")),
        (attempts["cut"].notna(), cut),
        (attempts["sends"] > attempts["train_end"], Patch(facecolor=style.STEPS["queue"], label="queue")),
    ]
    parts = [
        (attempts["part"] > 0, Line2D([], [], label="trains on a part of its data", **_PART)),
        (attempts["splits"], Line2D([], [], label="splits its data after this", **_SPLITS)),
    ]
    outcomes = [(attempts["outcome"] == name, Patch(facecolor=_COLOURS[name], label=_MEANING[name])) for name in OUTCOMES]
    ends = [(attempts[column].notna(), Line2D([], [], **look)) for column, look in _ENDS.items()]
    return [key for there, key in [*outcomes, *phases, *ends, *parts] if there.any()]
