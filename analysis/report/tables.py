"""The tables of a report: comparisons, rounds, and what differs between scenarios."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedsim.analysis import style
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.analysis.report.words import without_places
from fedsim.language.units import show_bytes, show_seconds
from fedsim.records.reading import RunFolder
from fedsim.tables import flat

if TYPE_CHECKING:
    from fedsim.compare.table import Column, Table

_NOTHING = "\N{EN DASH}"
_MOST_ROUNDS = 60  # rows; of more rounds every so many-th, the best and the last
_FEW_DIFFERENCES, _MOST_DIFFERENCES = 8, 60


def comparison(table: "Table", level: str = "h3") -> Iterator[Markup]:
    """A comparison as a table a topic, with what says which row it is, and the notes.

    Columns in which no row has anything are left out.
    """
    who = [column for column in table.columns if not column.topic]
    rest = [column for column in table.columns if column.topic]
    for topic in dict.fromkeys(column.topic for column in rest):
        own = [column for column in rest if column.topic == topic and any(cell is not None for cell in column.cells)]
        if own:
            yield el(level, f"{topic[:1].upper()}{topic[1:]}")
            yield _columns([*who, *own])
    yield from (el("p", plain(note, 400), class_="soft") for note in table.notes)


def _columns(columns: Sequence["Column"]) -> Markup:
    from fedsim.compare.text import shown

    heads = [column.head for column in columns]
    words = [any(isinstance(cell, str) for cell in column.cells) for column in columns]
    rows = [
        [plain(shown(cell, column)) for cell, column in zip(cells, columns, strict=True)]
        for cells in zip(*(column.cells for column in columns), strict=True)
    ]
    return grid(heads, rows, words)


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[bool], caption: str | None = None) -> Markup:
    """A table; ``words`` says which columns are text, and the first is the head of its row."""
    looks = ["text" if word else None for word in words]
    head = el("tr", *(el("th", text, scope="col", class_=look) for text, look in zip(heads, looks, strict=True)))
    body = [
        el(
            "tr",
            el("th", row[0], scope="row", class_=looks[0]),
            *(el("td", text, class_=look) for text, look in zip(row[1:], looks[1:], strict=True)),
        )
        for row in rows
    ]
    title = el("caption", caption) if caption else None
    return el("div", el("table", title, el("thead", head), el("tbody", *body)), class_="wide", tabindex="0")


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
        ("purity", "purity (0-1)"),
        ("joules", "energy (J)"),
    ]
    measured = [(key, head) for key, head in optional if any(row.get(key) is not None for row in rows)]
    heads = ["round", "ended at", "lasted", *(head for _, head in measured)]
    heads += ["selected", "valid", "slow", "disconnected", "down", "up"]
    body = [
        [
            el("button", str(rows[place]["round"]), type="button", data_round=rows[place]["round"], data_timeline=timeline),
            show_seconds(rows[place]["time"]),
            show_seconds(max(0.0, rows[place]["time"] - ends[place])),
            *(_number(rows[place][key]) + (" (best)" if key == "accuracy" and place == best else "") for key, _ in measured),
            *(_number(rows[place][key]) for key in ("selected", "valid", "slow", "disconnected")),
            *(show_bytes(rows[place][key]) for key in ("bytes_down", "bytes_up")),
        ]
        for place in shown
    ]
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
