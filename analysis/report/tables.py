"""The tables of a report: comparisons, devices, rounds, and what differs between scenarios."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedsim.analysis import style
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.common.files import flat
from fedsim.common.units import show_bytes, show_joules, show_seconds
from fedsim.lab.compare.show import by_topic, format_cell
from fedsim.lab.compare.table import ComparedColumn, ComparedTable
from fedsim.lab.reading.history import History
from fedsim.records.folder import TRANSFERS
from fedsim.records.reading import RunFolder

_NOTHING = "\N{EN DASH}"
_MOST_DEVICES = 200
_MOST_ROUNDS = 60  # rows; of more rounds every so many-th, the best and the last
_FEW_DIFFERENCES = 8
_MOST_DIFFERENCES = 60


class TableCell(NamedTuple):
    """A cell of a table: its text, its sort key, and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


def grid(
    heads: Sequence[str],
    rows: Sequence[Sequence[str | TableCell]],
    words: Sequence[bool],
    caption: str | None = None,
) -> Markup:
    """A table that the reader can sort; ``words`` marks text columns, and the first column heads
    its row.
    """
    looks = ["text" if word else None for word in words]
    head = el(
        "tr",
        *(
            el("th", text, scope="col", class_=look)
            for text, look in zip(heads, looks, strict=True)
        ),
    )
    body = []
    for row in rows:
        cells = []
        for place, (own, look) in enumerate(zip(row, looks, strict=True)):
            cell = own if isinstance(own, TableCell) else TableCell(own)
            value = None if cell.value is None else f"{cell.value:.9g}"
            text = el("strong", cell.text) if cell.best else cell.text
            cells.append(
                el(
                    "td" if place else "th",
                    text,
                    scope=None if place else "row",
                    class_=look,
                    data_v=value,
                )
            )
        body.append(el("tr", *cells))
    title = el("caption", caption) if caption else None
    table = el(
        "table",
        title,
        el("thead", head),
        el("tbody", *body),
        class_="sortable" if len(rows) > 1 else None,
    )
    return el("div", table, class_="wide", tabindex="0")


def comparison(table: ComparedTable, order: Sequence[int]) -> Iterator[Markup]:
    """A comparison as one table per topic, and its notes; rows are in the ``order`` of the
    lines, if it is complete.
    """
    count = len(table.columns[0].cells)
    for topic, columns in by_topic(table):
        if topic:
            yield el("h3", f"{topic[:1].upper()}{topic[1:]}")
            yield of_columns(columns, order if len(order) == count else range(count))
    yield from (el("p", plain(note, 400), class_="soft") for note in table.notes)


def of_columns(columns: Sequence[ComparedColumn], order: Sequence[int]) -> Markup:
    """Columns of a comparison as a table, its rows in an ``order``."""

    def told(column: ComparedColumn, row: int) -> TableCell:
        cell = column.cells[row]
        mean = getattr(cell, "mean", cell)
        value = float(mean) if isinstance(mean, int | float) else None
        return TableCell(plain(format_cell(cell, column)), value, row in column.best_cells)

    rows = [[told(column, row) for column in columns] for row in order]
    return grid([column.head for column in columns], rows, [column.is_text for column in columns])


_ENDINGS = {
    "late": "late",
    "lost": "lost",
    "left": "left",
    "battery": "flat",
    "memory": "no room",
    "stopped": "cut off",
}
# head, key of the rows, and how a value is written
_TableColumn = tuple[str, str, Callable[[Any], str]]
_OF_DEVICES: tuple[_TableColumn, ...] = (
    ("last group", "group", "{:.0f}".format),
    ("accuracy (0-1)", "accuracy", "{:.4f}".format),
    ("energy", "joules", show_joules),
    ("cost", "cost", "{:.4f}".format),
)


def devices(run: RunFolder, timeline: str) -> tuple[str, Markup] | None:
    """Summary and table of each active device's work and waste, most waste first; None if no
    device worked.
    """
    found = read_devices(run)
    if found.empty:
        return None
    endings = [name for name in _ENDINGS if found[name].any()]
    columns: list[_TableColumn] = [
        ("speed (samples/s)", "speed", "{:.3g}".format),
        *(
            (_ENDINGS.get(name, name), name, "{:,.0f}".format)
            for name in ("samples", "tasks", *endings)
        ),
        ("worked", "worked_s", show_seconds),
        ("of it wasted", "wasted_s", show_seconds),
        ("share wasted", "share", "{:.0%}".format),
        ("moved", "bytes", show_bytes),
        *(column for column in _OF_DEVICES if found[column[1]].notna().any()),
    ]
    part = (
        f" The {_MOST_DEVICES} of {len(found):,} that wasted most are shown."
        if len(found) > _MOST_DEVICES
        else ""
    )
    caption = (
        "One row a device that worked, who wasted most on top; its number shows it in the "
        f"timeline.{part}"
    )
    late = (
        f", {int((found[endings].sum(axis=1) > 0).sum()):,} of them with a task that was wasted"
        if endings
        else ""
    )
    table = _with_buttons(
        "device", timeline, found.head(_MOST_DEVICES).to_dict("records"), columns, caption
    )
    return f"Table of {len(found):,} devices{late}", table


def _with_buttons(
    what: str,
    timeline: str,
    rows: Sequence[Any],
    columns: Sequence[_TableColumn],
    caption: str,
    best: object = None,
) -> Markup:
    """A table whose first column has buttons that show a device or round in the timeline; the
    best accuracy is bold.
    """
    body = []
    for row in rows:
        button = el(
            "button",
            str(row[what]),
            type="button",
            **{f"data_{what}": row[what]},
            data_timeline=timeline,
        )
        cells = [TableCell(button, row[what])]
        for _, key, show in columns:
            value = row.get(key)
            is_best = row is best and key == "accuracy"
            cells.append(
                TableCell(_NOTHING) if pd.isna(value) else TableCell(show(value), value, is_best)
            )
        body.append(cells)
    heads = [what, *(head for head, _, _ in columns)]
    return grid(heads, body, [False] * len(heads), caption)


def read_devices(run: RunFolder) -> pd.DataFrame:
    """One row per active device, most waste first: columns of the devices' table, ``tasks`` and
    their count by outcome, ``worked_s``, ``wasted_s`` (of tasks that were not done) and its
    ``share``, ``bytes``.
    """
    history = History(run)
    steps = history.steps.assign(length=history.steps["end"] - history.steps["start"])
    of_tasks = (
        steps.drop_duplicates("task").groupby(["device", "outcome"]).size().unstack(fill_value=0)
    )
    rows = of_tasks.reindex(columns=list(_ENDINGS), fill_value=0).assign(tasks=of_tasks.sum(axis=1))
    rows["worked_s"] = steps.groupby("device")["length"].sum()
    rows["wasted_s"] = steps[steps["outcome"] != "done"].groupby("device")["length"].sum()
    rows["share"] = rows["wasted_s"] / rows["worked_s"]
    moved = run.table(TRANSFERS).select(["device", "delivered"]).to_pandas().dropna(subset="device")
    rows["bytes"] = moved.groupby("device")["delivered"].sum()
    facts = ["speed", "samples", *(key for _, key, _ in _OF_DEVICES)]
    rows = rows.fillna(0.0).join(history.population.reindex(columns=facts))
    return (
        rows.sort_values(["wasted_s", "worked_s"], ascending=False, kind="stable")
        .rename_axis("device")
        .reset_index()
    )


_OF_ROUNDS = {
    "accuracy": "accuracy (0-1)",
    "loss": "test loss",
    "train_loss": "training loss",
    "discrepancy": "discrepancy",
    "mean_accuracy": "accuracy of the mean (0-1)",
    "consensus": "consensus distance",
    "purity": "purity (0-1)",
    "epsilon": "epsilon",
    "joules": "energy (J)",
    "cost": "cost",
}


def rounds(run: RunFolder, timeline: str) -> tuple[str, Markup] | None:
    """Summary and table of each round's events and results; None for a run without rounds."""
    starts = [0.0, *(row["time"] for row in run.rounds)]
    rows = [
        row | {"lasted": max(0.0, row["time"] - start)}
        for row, start in zip(run.rounds, starts, strict=False)
    ]
    if not rows:
        return None
    best = max(
        (row for row in rows if row["accuracy"] is not None),
        key=lambda row: row["accuracy"],
        default=None,
    )
    step = style.step_for(len(rows), _MOST_ROUNDS)
    kept = [
        row for place, row in enumerate(rows) if place % step == 0 or row is best or row is rows[-1]
    ]
    measured = _OF_ROUNDS | {name: name for name in run.summary.get("metrics", {})}
    columns: list[_TableColumn] = [
        ("ended at", "time", show_seconds),
        ("lasted", "lasted", show_seconds),
        *((head, key, "{:.4f}".format) for key, head in measured.items()),
        *((name, name, "{:,}".format) for name in ("selected", "valid", "slow", "disconnected")),
        ("down", "bytes_down", show_bytes),
        ("up", "bytes_up", show_bytes),
        ("between devices", "bytes_peer", show_bytes),
    ]
    columns = [column for column in columns if any(row.get(column[1]) is not None for row in rows)]
    part = f" {len(kept)} of {len(rows):,} are shown: one of {step}, the best and the last."
    caption = (
        "One row a round; its number shows it in the "
        f"timeline.{'' if len(kept) == len(rows) else part}"
    )
    return f"Table of {len(rows):,} rounds", _with_buttons(
        "round", timeline, kept, columns, caption, best
    )


def without_places(value: Any) -> Any:
    """A scenario without the folders of its machine."""
    if isinstance(value, dict):
        return {key: without_places(item) for key, item in value.items() if key != "root"}
    if isinstance(value, list):
        return [without_places(item) for item in value]
    if isinstance(value, str) and value.startswith(("/", "~", "\\")):
        return f"…/{value.replace(chr(92), '/').rpartition('/')[2]}"
    return value


def differing(runs: Sequence[RunFolder], names: Sequence[str]) -> Markup | None:
    """The keys in which the scenarios differ, a column a run; None where they are the same."""
    sayings = [flat(without_places(run.scenario)) for run in runs]
    keys = sorted(
        {
            key
            for own in sayings
            for key in own
            if any(own[key] != other.get(key) for other in sayings)
        }
        - {"name"}
    )
    if not keys:
        return None
    rows = [
        [key, *(plain(own.get(key, _NOTHING), 60) for own in sayings)]
        for key in keys[:_MOST_DIFFERENCES]
    ]
    table = grid(["key", *names], rows, [True] * (len(names) + 1))
    more = (
        el("p", f"{len(keys) - len(rows)} more keys differ.", class_="soft")
        if len(keys) > len(rows)
        else None
    )
    head = f"What their scenarios say differently: {style.counted(len(keys), 'key')}"
    return el("details", el("summary", head), table, more, open=len(keys) <= _FEW_DIFFERENCES)
