"""The straggler timeline: a panel a round, a bar a selected device made of its epochs, against the deadline that it had.

Time counts from the start of the round. A round's deadline is one instant for all; CATA-Fed's T, which counts from the end of
each device's own download, stands a little differently in each lane. Rounds of more devices than there is room for are drawn
as a distribution: how many do what at each time.
"""

import json
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
from fedsim.records.folder import DEVICES, EVENTS
from fedsim.records.reading import RunFolder

OUTCOMES = ("valid", "slow", "late", "lost", "stopped")
_OF_TASK = {"done": "valid", "late": "late", "lost": "lost", "left": "lost", "battery": "lost", "memory": "late"}
_FACTS = (
    *("task", "round", "device", "group", "outcome", "samples", "epoch_s", "part", "parts", "splits"),
    *("epoch_ends", "epochs", "asked", "train_end", "sends", "answered", "cut", "limit", "deadline", "begun", "ended"),
)


def trained_rounds(run: RunFolder) -> list[int]:
    """The rounds that were opened by the server and in which somebody trained, in order; none where there are no rounds.

    Raises:
        RunFolderError: the events are missing or damaged.
    """
    events = run.table(EVENTS).select(["kind", "step", "round"]).to_pandas()
    trained = set(events.loc[(events["kind"] == "step-start") & (events["step"] == "train"), "round"].dropna().astype(int))
    return [int(number) for number in events.loc[events["kind"] == "round-start", "round"] if int(number) in trained]


def read_attempts(run: RunFolder, rounds: Sequence[int]) -> pd.DataFrame:
    """One row a selected device of these rounds, in the order of their tasks.

    Times are simulated seconds since the end of the device's own download, but for ``begun`` and ``ended``; NaN where it did
    not come so far.

    Columns:
        task, round, device, group: whose; ``group`` is NaN where the device was in none.
        outcome: one of ``OUTCOMES``. Who is ``slow`` answered without having trained enough; who is ``late`` was ended by the
            server, by its time, or for want of memory; who is ``lost`` disconnected; ``stopped`` is who was at work when the
            run ended.
        samples, part, parts: what it was to train on; part 1 to ``parts`` of its data, or 0 where they are in one piece.
        epoch_s: one epoch over these samples at the device's nominal speed.
        splits: whether it split its data after this.
        epoch_ends, epochs, asked: when epochs ended (a list), how many counted for the device, and how many were asked for.
        train_end, sends, answered: the end of its training, and begin and end of its upload.
        cut: the end of an upload that was not done.
        limit, deadline: the end of the time to train, and of the round; NaN where there is none.
        begun, ended: the end of its own download, and of its task, since the start of the round.

    Raises:
        RunFolderError: a table is missing or damaged.
    """
    events = run.table(EVENTS).to_pandas()
    events = events[events["round"].isin(list(rounds))]
    population = run.table(DEVICES).to_pandas().set_index("device")
    opened = {int(row["round"]): row for row in events[events["kind"] == "round-start"].to_dict("records")}
    splits = {(row["round"], row["device"]) for row in events[events["kind"] == "split"].to_dict("records")}
    rows = []
    for task, records in events[events["task"].notna()].groupby("task", sort=True):
        first = records.iloc[0]
        start = opened.get(int(first["round"]), {"data": None, "time": first["time"]})
        limits = _data(start["data"])
        row = {"task": int(task), "round": int(first["round"]), "device": int(first["device"]), "group": first["group"]}
        row |= {"samples": int(population["samples"][row["device"]]), "splits": (first["round"], first["device"]) in splits}
        row |= _course(records, start["time"], limits.get("training_limit"), limits.get("deadline"))
        rows.append(row | {"epoch_s": row["samples"] / population["speed"][row["device"]]})
    return pd.DataFrame(rows, columns=list(_FACTS))


def _course(records: pd.DataFrame, start: float, limit: float | None, deadline: float | None) -> dict[str, Any]:
    """What the records of one task say of its training."""
    nan = float("nan")
    course: dict[str, Any] = {"part": 0, "parts": 1, "epoch_ends": [], "epochs": 0, "asked": 0}
    course |= {
        "train_end": nan,
        "sends": nan,
        "answered": nan,
        "cut": nan,
        "begun": nan,
        "ended": nan,
        "limit": nan if limit is None else limit,
        "deadline": nan,
    }
    course["outcome"] = "stopped"
    begun, idle = nan, False
    for row in records.to_dict("records"):
        if row["kind"] == "step-start" and row["step"] == "train":
            begun = row["time"]
            course["begun"] = begun - start
            course["deadline"] = nan if deadline is None else deadline - begun
        elif row["kind"] == "step-end" and row["step"] == "train":
            data = _data(row["data"])
            course |= {"epochs": data["epochs"], "asked": data["asked"], "train_end": row["time"] - begun}
            course["epoch_ends"] = [end - begun for end in data["epoch_ends"]]
            if "part" in data:
                course["part"], course["parts"], course["samples"] = data["part"]
            idle = not data["epochs"]
        elif row["kind"] == "step-start" and row["step"] == "upload":
            course["sends"] = row["time"] - begun
        elif row["kind"] == "step-end" and row["step"] == "upload":
            course["answered" if row["outcome"] == "done" else "cut"] = row["time"] - begun
        elif row["kind"] == "task-end":
            course["ended"] = row["time"] - start
            course["outcome"] = _OF_TASK.get(row["outcome"], "stopped")
    if course["outcome"] == "valid" and idle:
        course["outcome"] = "slow"
    return course


def _data(text: object) -> dict[str, Any]:
    return json.loads(text) if isinstance(text, str) else {}


# The picture.


SORTS = ("size", "epoch")
MOST_PANELS = 8
_COLUMNS = 4
_LANE_IN, _THIN_IN = 0.17, 0.105  # a lane's height, with few and with many of them
_FEW_LANES, _MANY_LANES = 16, 60  # up to here lanes are high; with more there is no room to name each
_MOST_LANES, _MOMENTS = 120, 300  # with more lanes how many do what is drawn, at so many times
_LEAST_EPOCH = 1 / 60  # of the axis: shorter epochs run into one bar
_COLOURS = dict(zip(OUTCOMES, (style.GREEN, style.ORANGE, style.VERMILLION, style.BLACK, style.GREY), strict=True))
_COLOURS_OF_MANY = _COLOURS | {"valid": style.OUTCOMES["done"]}  # whose training is green
_MEANING = {
    "valid": "valid",
    "slow": "slow: a straggler, answered untrained",
    "late": "late: ended, nothing arrived",
    "lost": "lost: disconnected",
    "stopped": "cut off by the end of the run",
}
_LIMIT: dict[str, Any] = {"color": style.BLUE, "linewidth": 1.6}
_DEADLINE: dict[str, Any] = {"color": style.BLUE, "linewidth": 1.6, "linestyle": (0, (2, 1))}
_NO_DOWNLOAD: dict[str, Any] = {"marker": "s", "markerfacecolor": "white", "markersize": 5, "linestyle": ""}
_PART: dict[str, Any] = {"marker": "D", "color": style.PURPLE, "linestyle": ""}


@style.styled
def draw_stragglers(run: RunFolder, *, rounds: tuple[int, int] | None = None, order: str = SORTS[0]) -> Figure:
    """What each selected device made of the time it had, round by round.

    Args:
        run: the run.
        rounds: of rounds ``rounds[0]`` to ``rounds[1] - 1`` those with training, at most the first eight; by default the last
            eight of the run.
        order: ``size`` (the most samples on top) or ``epoch`` (the longest epoch on top).

    Raises:
        NothingToDrawError: the run has no rounds, or no such ones with training, or none of them had a deadline.
        PictureError: there is no such order.
        RunFolderError: the folder is damaged.
    """
    if order not in SORTS:
        raise style.PictureError(f"the order is {order!r}; allowed are {', '.join(SORTS)}{nearest(order, SORTS)}")
    shown = _window(run, rounds)
    attempts = _since_start(read_attempts(run, shown))
    if attempts[["limit", "deadline"]].isna().all(axis=None):
        raise style.NothingToDrawError(f"the rounds of {str(run.path)!r} have no deadline that anybody could miss")
    attempts = attempts.sort_values(
        ["samples", "epoch_s", "task"] if order == "size" else ["epoch_s", "samples", "task"], ascending=[False, False, True]
    )
    most = int(attempts.groupby("round").size().max())
    lane = np.interp(most, (_FEW_LANES, 2 * _FEW_LANES), (_LANE_IN, _THIN_IN))
    columns = min(_COLUMNS, len(shown))
    lines = math.ceil(len(shown) / columns)
    height = 1.9 + lines * (max(min(most, _MANY_LANES), 4) * lane + 0.6 if most <= _MOST_LANES else 3.0)
    room = ConstrainedLayoutEngine(hspace=0.04, wspace=0.04)
    figure = Figure(figsize=(style.WIDTH_IN, height), layout=room)
    grid = figure.subplots(lines, columns, sharex=True, squeeze=False)
    end = np.nanmax(attempts[["train_end", "answered", "cut", "limit", "deadline", "ended"]].to_numpy(float))
    unit = style.time_unit(end)
    counted = bool(((attempts["epochs"] == attempts["asked"]) & (attempts["asked"] > 0)).any())
    for panel, number in zip(grid.flat, shown, strict=False):
        panel.set_xlim(0, end * 1.02 / unit.size)
        lanes = attempts[attempts["round"] == number].reset_index(drop=True)
        if most > _MOST_LANES:
            _draw_many(panel, lanes, unit.size, end)
        else:
            _draw_round(panel, lanes, unit.size, most)
            _label(panel, lanes, order, counted)
        panel.set_title(_heading(run, number, lanes), fontsize=10)
    for panel in grid.flat[len(shown) :]:
        panel.set_visible(False)
    _name_axes(figure, grid, len(shown), order, unit.name, most > _MOST_LANES)
    title = f"{style.headline(run)}\n{_excerpt(run, shown)}; "
    if most > _MOST_LANES:
        title += "what the selected devices do at each time"
    else:
        title += "epochs of each selected device against its deadline; at the right how many it finished"
        title += ", of those asked for" if counted else ""
    figure.suptitle(title, fontsize=12)
    handles = _handles_of_many(attempts) if most > _MOST_LANES else _handles(attempts)
    style.legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


def _window(run: RunFolder, rounds: tuple[int, int] | None) -> list[int]:
    trained = trained_rounds(run)
    if not trained:
        raise style.NothingToDrawError(f"{str(run.path)!r} has no rounds in which devices trained against a deadline")
    if rounds is None:
        return trained[-MOST_PANELS:]
    inside = [number for number in trained if rounds[0] <= number < rounds[1]]
    if not inside:
        raise style.NothingToDrawError(f"nobody trained in rounds {rounds[0]}:{rounds[1]}, so there are no stragglers to draw")
    return inside[:MOST_PANELS]


def _excerpt(run: RunFolder, shown: list[int]) -> str:
    """Which of the rounds are drawn."""
    every = len(trained_rounds(run))
    which = f"rounds {shown[0]} to {shown[-1]}" if len(shown) > 1 else f"round {shown[0]}"
    return f"all rounds with training ({which})" if len(shown) == every else f"{which}: {len(shown)} of {every:,} with training"


def _since_start(attempts: pd.DataFrame) -> pd.DataFrame:
    """The attempts with all times since the start of their round; who did not train has ``begun`` 0."""
    begun = attempts["begun"].fillna(0.0)
    moved = {name: attempts[name] + begun for name in ("train_end", "sends", "answered", "cut", "limit", "deadline")}
    ends = [[end + by for end in own] for own, by in zip(attempts["epoch_ends"], begun, strict=True)]
    return attempts.assign(**moved, begun=begun, epoch_ends=pd.Series(ends, attempts.index, dtype=object))


def _draw_many(panel: Axes, lanes: pd.DataFrame, unit: float, end: float) -> None:
    """How many devices do what at each time, one on the other; at the bottom those that have answered."""
    at, base = np.linspace(0.0, end, _MOMENTS), np.zeros(_MOMENTS)
    for _, colour, begins, ends in _doings(lanes):
        begin, over = np.sort(begins[~np.isnan(begins)]), np.sort(ends[~np.isnan(ends)])
        count = np.searchsorted(begin, at, side="right") - np.searchsorted(over, at, side="right")
        panel.fill_between(at / unit, base, base + count, color=colour, linewidth=0, step="post", gid="doing")
        base = base + count
    for column, look in (("limit", _LIMIT), ("deadline", _DEADLINE)):
        for value in lanes[column].dropna().quantile([0.0, 1.0]).unique():
            panel.axvline(value / unit, gid=column, **look)
    panel.set_ylim(0, len(lanes))


def _doings(lanes: pd.DataFrame) -> list[tuple[str, str, Floats, Floats]]:
    """What devices do: in words, a colour, and when each begins and ends it (s; NaN where it does not); arrays [n]."""
    nothing = np.full(len(lanes), np.nan)
    ended, begun = lanes["ended"].to_numpy(float), lanes["begun"].to_numpy(float)
    trained, sends = lanes["train_end"].to_numpy(float), lanes["sends"].to_numpy(float)
    sent = lanes["answered"].fillna(lanes["cut"]).to_numpy(float)
    trains = np.where(begun > 0, begun, np.nan)
    over = [(lanes["outcome"] == outcome).to_numpy() for outcome in OUTCOMES]
    found = [
        (_MEANING[o], _COLOURS_OF_MANY[o], np.where(own, ended, np.nan), nothing) for o, own in zip(OUTCOMES, over, strict=True)
    ]
    found.insert(1, ("upload", style.STEPS["upload"], sends, np.where(np.isnan(sends), np.nan, np.fmin(sent, ended))))
    found.insert(
        1, ("queue", style.STEPS["queue"], np.where(sends > trained, trained, np.nan), np.where(sends > trained, sends, np.nan))
    )
    found.insert(1, ("train", style.STEPS["train"], trains, np.where(np.isnan(trains), np.nan, np.fmin(trained, ended))))
    found.insert(1, ("download", style.STEPS["download"], np.zeros(len(lanes)), np.fmin(np.fmin(trains, ended), np.inf)))
    return found


def _handles_of_many(attempts: pd.DataFrame) -> list[Artist]:
    there = [(words, colour) for words, colour, begins, _ in _doings(attempts) if not np.isnan(begins).all()]
    handles: list[Artist] = [Patch(facecolor=colour, label=words) for words, colour in there]
    for column, look, words in (
        ("limit", _LIMIT, "T, the deadline of training"),
        ("deadline", _DEADLINE, "the round's deadline"),
    ):
        if attempts[column].notna().any():
            handles.append(Line2D([], [], label=words, **look))
    return handles


def _draw_round(panel: Axes, lanes: pd.DataFrame, unit: float, most: int) -> None:
    panel.set_ylim(most - 0.5, -0.5)
    for outcome, colour in _COLOURS.items():
        rows = lanes[lanes["outcome"] == outcome]
        _draw_epochs(panel, rows, unit, colour)
        _draw_tails(panel, rows, unit, colour)
        never = rows[rows["train_end"].isna()]
        where = never["ended"].fillna(0.0).to_numpy() / unit
        style.marks_at(panel, where, never.index, color=colour, markeredgecolor=colour, gid="no-download", **_NO_DOWNLOAD)
    for column, look in (("limit", _LIMIT), ("deadline", _DEADLINE)):
        reached = lanes[lanes[column].notna()]
        if len(reached):
            panel.vlines(reached[column] / unit, reached.index - 0.5, reached.index + 0.5, zorder=3, gid=column, **look)
    size = 5.0 if most <= _FEW_LANES else 3.2
    parts, splits = lanes.index[lanes["part"] > 0], lanes.index[lanes["splits"]]
    style.marks_at(panel, (lanes.loc[parts, "begun"] / unit).to_numpy(), parts, markersize=size, gid="part", **_PART)
    middle = ((lanes.loc[splits, "begun"] + lanes.loc[splits, "train_end"]) / 2 / unit).to_numpy()
    style.marks_at(panel, middle, splits, markersize=size, markerfacecolor="white", gid="splits", **_PART)


def _draw_epochs(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """A bar an epoch, with gaps between them; where epochs are too short for that, one bar of them all."""
    least = panel.get_xlim()[1] * unit * _LEAST_EPOCH
    spans = []
    for lane, begun, ends in zip(rows.index, rows["begun"], rows["epoch_ends"], strict=True):
        if ends and (ends[-1] - begun) / len(ends) < least:
            spans.append((begun, ends[-1], lane))
        else:
            spans += [(start, end, lane) for start, end in zip([begun, *ends], ends, strict=False)]
    _draw_bars(panel, spans, unit, 0.38, facecolor=colour, edgecolor="white", linewidth=0.9, gid="epochs")


def _draw_tails(panel: Axes, rows: pd.DataFrame, unit: float, colour: str) -> None:
    """Before the epochs the download; after them one that was not finished, the wait in a queue, and the upload, cut or not."""
    got = rows[rows["begun"] > 0]
    _draw_bars(panel, ((0.0, end, at) for at, end in got["begun"].items()), unit, 0.12, facecolor=style.STEPS["download"])
    done = [ends[-1] if ends else begun for ends, begun in zip(rows["epoch_ends"], rows["begun"], strict=True)]
    tails = rows.assign(done=done).dropna(subset="train_end")
    begun = tails[tails["train_end"] > tails["done"]]
    pale = {"facecolor": style.lighten(colour, 0.75), "edgecolor": colour, "hatch": "//////", "linewidth": 0.0}
    _draw_bars(panel, zip(begun["done"], begun["train_end"], begun.index, strict=True), unit, 0.34, gid="unfinished", **pale)
    sent = tails.dropna(subset="answered")
    waited = sent[sent["sends"] > sent["train_end"]]
    for step, begin, end in (("queue", waited["train_end"], waited["sends"]), ("upload", sent["sends"], sent["answered"])):
        _draw_bars(panel, zip(begin, end, end.index, strict=True), unit, 0.12, facecolor=style.STEPS[step], gid=step)
    cut = tails.dropna(subset=["sends", "cut"])
    look = {"facecolor": style.lighten(style.STEPS["upload"], 0.6), "edgecolor": colour, "hatch": "//////"}
    _draw_bars(panel, zip(cut["sends"], cut["cut"], cut.index, strict=True), unit, 0.3, gid="cut-upload", **look)


def _draw_bars(panel: Axes, spans: Any, unit: float, half: float, **look: Any) -> None:
    start, end, lane = np.array(list(spans), dtype=float).reshape(-1, 3).T
    if len(lane):
        panel.add_collection(style.rectangles(start / unit, end / unit, lane - half, lane + half, **look), autolim=False)


# Words.


def _label(panel: Axes, lanes: pd.DataFrame, order: str, counted: bool) -> None:
    """Who each lane is and what it is sorted by, left; how many epochs it finished, right."""
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="y", length=0, pad=6)
    if len(lanes) > _MANY_LANES:
        panel.set_yticks([])
        return
    small = 8 if len(lanes) <= _FEW_LANES else 6
    values = lanes["samples"].astype(str) if order == "size" else lanes["epoch_s"].map("{:.3g}".format)
    panel.set_yticks(lanes.index, [f"{device} · {value}" for device, value in zip(lanes["device"], values, strict=True)])
    panel.tick_params(axis="y", labelsize=small)
    asked = lanes["asked"] if counted else [0] * len(lanes)
    for lane, epochs, of in zip(lanes.index, lanes["epochs"], asked, strict=True):
        text = f"{epochs}/{of}" if of else f"{epochs}"
        panel.text(1.015, lane, text, transform=panel.get_yaxis_transform(), va="center", fontsize=small)


def _heading(run: RunFolder, number: int, lanes: pd.DataFrame) -> str:
    word = {"cata-fed": "cluster", "tifl": "tier"}.get(str(run.summary["strategy"]), "group")
    groups = lanes["group"].dropna().unique()
    group = f", {word} {int(groups[0])}" if len(groups) == 1 else ""
    counts = lanes["outcome"].value_counts()
    return f"round {number}{group}\n" + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if name in counts)


def _name_axes(figure: Figure, grid: Any, shown: int, order: str, unit: str, many: bool) -> None:
    what = "samples it trains on" if order == "size" else "nominal epoch (s)"
    for panel in grid[:, 0]:
        panel.set_ylabel("devices" if many else f"device · {what}", fontsize=9)
    for place, panel in enumerate(grid.flat[:shown]):
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
        if place + grid.shape[1] >= shown:
            panel.tick_params(axis="x", labelbottom=True)
            panel.set_xlabel(f"since the round began ({unit})", fontsize=9)


def _handles(attempts: pd.DataFrame) -> list[Artist]:
    handles: list[Artist] = [
        Patch(facecolor=colour, label=_MEANING[outcome])
        for outcome, colour in _COLOURS.items()
        if (attempts["outcome"] == outcome).any()
    ]
    hatched: dict[str, Any] = {"facecolor": style.PALE, "edgecolor": style.GREY, "hatch": "//////"}
    last = zip(attempts["epoch_ends"], attempts["begun"], strict=True)
    if (attempts["train_end"] > [ends[-1] if ends else begun for ends, begun in last]).any():
        handles.append(Patch(label="epoch begun, not finished", **hatched))
    if attempts["train_end"].isna().any():
        look = _NO_DOWNLOAD | {"markeredgecolor": style.BLACK}
        handles.append(Line2D([], [], label="ended during its download", **look))
    if (attempts["begun"] > 0).any():
        handles.append(Patch(facecolor=style.STEPS["download"], label="download"))
    if attempts["answered"].notna().any():
        handles.append(Patch(facecolor=style.STEPS["upload"], label="upload"))
    if attempts["cut"].notna().any():
        cut: dict[str, Any] = {
            "facecolor": style.lighten(style.STEPS["upload"], 0.6),
            "edgecolor": style.GREY,
            "hatch": "//////",
        }
        handles.append(Patch(label="upload that was cut short", **cut))
    if (attempts["sends"] > attempts["train_end"]).any():
        handles.append(Patch(facecolor=style.STEPS["queue"], label="queue"))
    if attempts["limit"].notna().any():
        handles.append(Line2D([], [], label="T, the deadline of training", **_LIMIT))
    if attempts["deadline"].notna().any():
        handles.append(Line2D([], [], label="the round's deadline", **_DEADLINE))
    if (attempts["part"] > 0).any():
        handles.append(Line2D([], [], label="trains on a part of its data", **_PART))
    if attempts["splits"].any():
        handles.append(Line2D([], [], label="splits its data after this", markerfacecolor="white", **_PART))
    return handles
