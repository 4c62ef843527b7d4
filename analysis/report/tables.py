"""The tables of a report: comparisons, rounds, and what differs between scenarios."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from fedsim.analysis import style
from fedsim.analysis.history import History
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.analysis.report.words import without_places
from fedsim.files import flat
from fedsim.language.units import show_bytes, show_joules, show_seconds
from fedsim.records.folder import TRANSFERS
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    from fedsim.compare.table import Column, Table

_NOTHING = "\N{EN DASH}"
_MOST_ROUNDS = 60  # rows; of more rounds every so many-th, the best and the last
_FEW_DIFFERENCES, _MOST_DIFFERENCES = 8, 60


def comparison(table: "Table", order: Sequence[int], level: str = "h3") -> Iterator[Markup]:
    """A comparison as a table a topic, with what says which row it is, and the notes.

    Columns in which no row has anything are left out. Rows stand in the ``order`` of the lines, where the table has them all.
    """
    rows = list(order) if len(order) == len(table.columns[0].cells) else list(range(len(table.columns[0].cells)))
    who = [column for column in table.columns if not column.topic]
    rest = [column for column in table.columns if column.topic]
    for topic in dict.fromkeys(column.topic for column in rest):
        own = [column for column in rest if column.topic == topic and any(cell is not None for cell in column.cells)]
        if own:
            yield el(level, f"{topic[:1].upper()}{topic[1:]}")
            yield _columns([*who, *own], rows)
    yield from (el("p", plain(note, 400), class_="soft") for note in table.notes)


def _columns(columns: Sequence["Column"], order: Sequence[int]) -> Markup:
    from fedsim.compare.text import shown

    words = [any(isinstance(cell, str) for cell in column.cells) for column in columns]
    best = [column.best_cells for column in columns]
    rows = []
    for row in order:
        cells = [Cell(plain(shown(column.cells[row], column)), _plain_value(column.cells[row])) for column in columns]
        rows.append([cell._replace(best=row in own) for cell, own in zip(cells, best, strict=True)])
    return grid([column.head for column in columns], rows, words)


def _plain_value(cell: object) -> float | None:
    mean = getattr(cell, "mean", cell)
    return float(mean) if isinstance(mean, int | float) else None


class Cell(NamedTuple):
    """A cell of a table: what stands in it, the number that it is sorted by, and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


def grid(
    heads: Sequence[str], rows: Sequence[Sequence[str | Cell]], words: Sequence[bool], caption: str | None = None
) -> Markup:
    """A table that a reader can sort by any column; ``words`` says which are text, and the first is the head of its row."""
    looks = ["text" if word else None for word in words]
    head = el("tr", *(el("th", text, scope="col", class_=look) for text, look in zip(heads, looks, strict=True)))
    body = []
    for row in rows:
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
        body.append(
            el("tr", *(_cell(cell, look, place == 0) for place, (cell, look) in enumerate(zip(cells, looks, strict=True))))
        )
    title = el("caption", caption) if caption else None
    table = el("table", title, el("thead", head), el("tbody", *body), class_="sortable" if len(rows) > 1 else None)
    return el("div", table, class_="wide", tabindex="0")


def _cell(cell: Cell, look: str | None, is_head: bool) -> Markup:
    value = None if cell.value is None else f"{cell.value:.9g}"
    text = el("strong", cell.text) if cell.best else cell.text
    return el("th" if is_head else "td", text, scope="row" if is_head else None, class_=look, data_v=value)


_MOST_DEVICES = 200
_ENDINGS = {"late": "late", "lost": "lost", "left": "left", "battery": "flat", "memory": "no room", "stopped": "cut off"}


def devices(run: RunFolder, timeline: str) -> Markup | None:
    """What each device that worked did and wasted, who wasted most on top; its number shows it in the timeline."""
    found = read_devices(run)
    if found.empty:
        return None
    endings = [name for name in _ENDINGS if found[name].any()]
    optional = [name for name in _OF_DEVICES if found[name].notna().any()]
    heads = ["device", "speed (samples/s)", "samples", "tasks", *(_ENDINGS[name] for name in endings)]
    heads += ["worked", "of it wasted", "share wasted", "moved", *(_OF_DEVICES[name] for name in optional)]
    rows = []
    for row in found.head(_MOST_DEVICES).to_dict("records"):
        share = row["wasted_s"] / row["worked_s"] if row["worked_s"] else 0.0
        button = el("button", str(row["device"]), type="button", data_device=row["device"], data_timeline=timeline)
        cells = [Cell(button, row["device"]), Cell(f"{row['speed']:.3g}", row["speed"]), _count(row["samples"])]
        cells += [_count(row[name]) for name in ("tasks", *endings)]
        cells += [Cell(show_seconds(row[name]), row[name]) for name in ("worked_s", "wasted_s")]
        cells += [Cell(f"{share:.0%}", share), Cell(show_bytes(row["bytes"]), row["bytes"])]
        cells += [_of_device(name, row[name]) for name in optional]
        rows.append(cells)
    part = f" The {_MOST_DEVICES} of {len(found):,} that wasted most are shown." if len(found) > _MOST_DEVICES else ""
    caption = f"One row a device that worked, who wasted most on top; its number shows it in the timeline.{part}"
    late = f", {int((found[endings].sum(axis=1) > 0).sum()):,} of them with a task that was wasted" if endings else ""
    table = grid(heads, rows, [False] * len(heads), caption)
    return el("details", el("summary", f"Table of {len(found):,} devices{late}"), table)


_OF_DEVICES = {"group": "last group", "accuracy": "accuracy (0-1)", "joules": "energy", "cost": "cost"}


def read_devices(run: RunFolder) -> pd.DataFrame:
    """A row a device that worked, who wasted most first.

    Columns: ``device``, ``speed``, ``samples``, ``group``, ``accuracy``, ``joules`` and ``cost`` as in the devices' table;
    ``tasks``, and how many of them ended in each way; ``worked_s`` (s), ``wasted_s`` (s, for tasks that were not done); its
    ``bytes``.
    """
    history = History(run)
    steps = history.steps.assign(length=history.steps["end"] - history.steps["start"])
    of_tasks = steps.drop_duplicates("task").groupby(["device", "outcome"]).size().unstack(fill_value=0)
    rows = pd.DataFrame({"tasks": of_tasks.sum(axis=1)})
    for name in _ENDINGS:
        rows[name] = of_tasks.get(name, 0)
    rows["worked_s"] = steps.groupby("device")["length"].sum()
    rows["wasted_s"] = steps[steps["outcome"] != "done"].groupby("device")["length"].sum()
    moved = run.table(TRANSFERS).select(["device", "delivered"]).to_pandas().dropna(subset="device")
    rows["bytes"] = moved.groupby("device")["delivered"].sum()
    rows = rows.fillna(0.0).join(history.population.reindex(columns=["speed", "samples", *_OF_DEVICES]))
    return rows.sort_values(["wasted_s", "worked_s"], ascending=False, kind="stable").rename_axis("device").reset_index()


def _count(value: float) -> Cell:
    return Cell(f"{int(value):,}", value)


def _of_device(name: str, value: float | None) -> Cell:
    if value is None or math.isnan(value):
        return Cell(_NOTHING)
    return Cell(
        show_joules(value) if name == "joules" else f"{value:.4f}" if name in ("accuracy", "cost") else f"{value:.0f}", value
    )


def rounds(run: RunFolder, timeline: str) -> Markup | None:
    """What each round did and reached; its number shows it in the timeline. None for a run without any."""
    rows = run.rounds
    if not rows:
        return None
    known = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    best = next((place for place, row in enumerate(rows) if known and row["accuracy"] == max(known)), None)
    step = style.step_for(len(rows), _MOST_ROUNDS)
    shown = [place for place in range(len(rows)) if place % step == 0 or place in (best, len(rows) - 1)]
    ends = [0.0, *(row["time"] for row in rows)]
    optional = [
        ("accuracy", "accuracy (0-1)"),
        ("loss", "test loss"),
        ("train_loss", "training loss"),
        ("discrepancy", "discrepancy"),
        ("mean_accuracy", "accuracy of the mean (0-1)"),
        ("consensus", "consensus distance"),
        ("purity", "purity (0-1)"),
        ("epsilon", "epsilon"),
        ("joules", "energy (J)"),
        ("cost", "cost"),
    ]
    measured = [(key, head) for key, head in optional if any(row.get(key) is not None for row in rows)]
    peers = ["bytes_peer"] if any(row.get("bytes_peer") is not None for row in rows) else []
    heads = ["round", "ended at", "lasted", *(head for _, head in measured)]
    heads += ["selected", "valid", "slow", "disconnected", "down", "up", *(["between devices"] if peers else [])]
    body = []
    for place in shown:
        row, lasted = rows[place], max(0.0, rows[place]["time"] - ends[place])
        button = el("button", str(row["round"]), type="button", data_round=row["round"], data_timeline=timeline)
        cells = [Cell(button, row["round"]), Cell(show_seconds(row["time"]), row["time"]), Cell(show_seconds(lasted), lasted)]
        cells += [Cell(_number(row[key]), row[key], key == "accuracy" and place == best) for key, _ in measured]
        cells += [Cell(_number(row[key]), row[key]) for key in ("selected", "valid", "slow", "disconnected")]
        body.append([*cells, *(Cell(show_bytes(row[key]), row[key]) for key in ("bytes_down", "bytes_up", *peers))])
    part = (
        ""
        if len(shown) == len(rows)
        else f" {len(shown)} of {len(rows):,} are shown: every {style.ordinal(step)}, the best and the last."
    )
    caption = f"One row a round; its number shows it in the timeline.{part}"
    return el("details", el("summary", f"Table of {len(rows):,} rounds"), grid(heads, body, [False] * len(heads), caption))


def _number(value: float | int | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def differing(runs: Sequence[RunFolder], names: Sequence[str]) -> Markup | None:
    """The keys in which the scenarios differ, a column a run; None where they are the same."""
    sayings = [flat(without_places(run.scenario)) for run in runs]
    keys = sorted({key for own in sayings for key in own if any(own[key] != other.get(key) for other in sayings)} - {"name"})
    if not keys:
        return None
    rows = [[key, *(plain(own.get(key, _NOTHING), 60) for own in sayings)] for key in keys[:_MOST_DIFFERENCES]]
    table = grid(["key", *names], rows, [True] * (len(names) + 1))
    more = el("p", f"{len(keys) - len(rows)} more keys differ.", class_="soft") if len(keys) > len(rows) else None
    head = f"What their scenarios say differently: {style.counted(len(keys), 'key')}"
    return el("details", el("summary", head), table, more, open=len(keys) <= _FEW_DIFFERENCES)
