"""The tables of a report: comparisons and what they answer, devices, rounds, and what differs between scenarios."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fedsim.analysis import style
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.analysis.report.words import without_places
from fedsim.files import flat
from fedsim.lab.compare import explore
from fedsim.language.units import show_bytes, show_joules, show_seconds
from fedsim.records.folder import TRANSFERS
from fedsim.records.history import History
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    from fedsim.lab.compare.answer import Answer, RankedLine, Ranking
    from fedsim.lab.compare.table import ComparedColumn, ComparedTable

_NOTHING = "\N{EN DASH}"
_MOST_ROUNDS = 60  # rows; of more rounds every so many-th, the best and the last
_FEW_DIFFERENCES, _MOST_DIFFERENCES = 8, 60


def comparison(table: "ComparedTable", order: Sequence[int], level: str = "h3") -> Iterator[Markup]:
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


def _columns(columns: Sequence["ComparedColumn"], order: Sequence[int]) -> Markup:
    from fedsim.lab.compare.text import shown

    words = [any(isinstance(cell, str) for cell in column.cells) for column in columns]
    best = [column.best_cells for column in columns]
    rows = []
    for row in order:
        cells = [TableCell(plain(shown(column.cells[row], column)), _plain_value(column.cells[row])) for column in columns]
        rows.append([cell._replace(best=row in own) for cell, own in zip(cells, best, strict=True)])
    return grid([column.head for column in columns], rows, words)


def _plain_value(cell: object) -> float | None:
    mean = getattr(cell, "mean", cell)
    return float(mean) if isinstance(mean, int | float) else None


class TableCell(NamedTuple):
    """A cell of a table: what stands in it, the number that it is sorted by, and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


def grid(
    heads: Sequence[str], rows: Sequence[Sequence[str | TableCell]], words: Sequence[bool], caption: str | None = None
) -> Markup:
    """A table that a reader can sort by any column; ``words`` says which are text, and the first is the head of its row."""
    looks = ["text" if word else None for word in words]
    head = el("tr", *(el("th", text, scope="col", class_=look) for text, look in zip(heads, looks, strict=True)))
    body = []
    for row in rows:
        cells = (cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row)
        body.append(el("tr", *(_cell(*of, place == 0) for place, of in enumerate(zip(cells, looks, strict=True)))))
    title = el("caption", caption) if caption else None
    table = el("table", title, el("thead", head), el("tbody", *body), class_="sortable" if len(rows) > 1 else None)
    return el("div", table, class_="wide", tabindex="0")


def _cell(cell: TableCell, look: str | None, is_head: bool) -> Markup:
    value = None if cell.value is None else f"{cell.value:.9g}"
    text = el("strong", cell.text) if cell.best else cell.text
    return el("th" if is_head else "td", text, scope="row" if is_head else None, class_=look, data_v=value)


_MOST_DEVICES = 200
_ENDINGS = {"late": "late", "lost": "lost", "left": "left", "battery": "flat", "memory": "no room", "stopped": "cut off"}
_TableColumn = tuple[str, str, Callable[[Any], str]]  # head, key of the rows, and how a value is written
_OF_DEVICES: tuple[_TableColumn, ...] = (
    ("last group", "group", "{:.0f}".format),
    ("accuracy (0-1)", "accuracy", "{:.4f}".format),
    ("energy", "joules", show_joules),
    ("cost", "cost", "{:.4f}".format),
)


def devices(run: RunFolder, timeline: str) -> tuple[str, Markup] | None:
    """Work and waste of each device that worked, most waste on top, under a summary; its number shows it in the timeline."""
    found = read_devices(run)
    if found.empty:
        return None
    endings = [name for name in _ENDINGS if found[name].any()]
    columns: list[_TableColumn] = [
        ("speed (samples/s)", "speed", "{:.3g}".format),
        *((name, name, "{:,.0f}".format) for name in ("samples", "tasks")),
        *((_ENDINGS[name], name, "{:,.0f}".format) for name in endings),
        ("worked", "worked_s", show_seconds),
        ("of it wasted", "wasted_s", show_seconds),
        ("share wasted", "share", "{:.0%}".format),
        ("moved", "bytes", show_bytes),
        *(column for column in _OF_DEVICES if found[column[1]].notna().any()),
    ]
    part = f" The {_MOST_DEVICES} of {len(found):,} that wasted most are shown." if len(found) > _MOST_DEVICES else ""
    caption = f"One row a device that worked, who wasted most on top; its number shows it in the timeline.{part}"
    late = f", {int((found[endings].sum(axis=1) > 0).sum()):,} of them with a task that was wasted" if endings else ""
    table = _with_buttons("device", timeline, found.head(_MOST_DEVICES).to_dict("records"), columns, caption)
    return f"Table of {len(found):,} devices{late}", table


def _with_buttons(
    what: str, timeline: str, rows: Sequence[Any], columns: Sequence[_TableColumn], caption: str, best: object = None
) -> Markup:
    """A table whose first column has buttons that show a device or round in the timeline; the best accuracy is bold."""
    body = []
    for row in rows:
        button = el("button", str(row[what]), type="button", **{f"data_{what}": row[what]}, data_timeline=timeline)
        cells = [TableCell(button, row[what])]
        for _, key, show in columns:
            value = row.get(key)
            cells.append(
                TableCell(_NOTHING) if pd.isna(value) else TableCell(show(value), value, row is best and key == "accuracy")
            )
        body.append(cells)
    heads = [what, *(head for head, _, _ in columns)]
    return grid(heads, body, [False] * len(heads), caption)


def read_devices(run: RunFolder) -> pd.DataFrame:
    """A row a device that worked, who wasted most first.

    Columns: ``device``, ``speed``, ``samples``, ``group``, ``accuracy``, ``joules`` and ``cost`` as in the devices' table;
    ``tasks``, and how many of them ended in each way; ``worked_s`` (s), ``wasted_s`` (s, for tasks that were not done), its
    ``share`` (0..1); ``bytes``.
    """
    history = History(run)
    steps = history.steps.assign(length=history.steps["end"] - history.steps["start"])
    of_tasks = steps.drop_duplicates("task").groupby(["device", "outcome"]).size().unstack(fill_value=0)
    rows = of_tasks.reindex(columns=list(_ENDINGS), fill_value=0).assign(tasks=of_tasks.sum(axis=1))
    rows["worked_s"] = steps.groupby("device")["length"].sum()
    rows["wasted_s"] = steps[steps["outcome"] != "done"].groupby("device")["length"].sum()
    rows["share"] = rows["wasted_s"] / rows["worked_s"]
    moved = run.table(TRANSFERS).select(["device", "delivered"]).to_pandas().dropna(subset="device")
    rows["bytes"] = moved.groupby("device")["delivered"].sum()
    facts = ["speed", "samples", *(key for _, key, _ in _OF_DEVICES)]
    rows = rows.fillna(0.0).join(history.population.reindex(columns=facts))
    return rows.sort_values(["wasted_s", "worked_s"], ascending=False, kind="stable").rename_axis("device").reset_index()


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
    """Events and results of each round, under a summary; its number shows it in the timeline. None for a run without rounds."""
    starts = [0.0, *(row["time"] for row in run.rounds)]
    rows = [row | {"lasted": max(0.0, row["time"] - start)} for row, start in zip(run.rounds, starts, strict=False)]
    if not rows:
        return None
    best = max((row for row in rows if row["accuracy"] is not None), key=lambda row: row["accuracy"], default=None)
    step = style.step_for(len(rows), _MOST_ROUNDS)
    shown = [row for place, row in enumerate(rows) if place % step == 0 or row is best or row is rows[-1]]

    def measured(keys: Mapping[str, str], show: Callable[[Any], str]) -> list[_TableColumn]:
        return [(head, key, show) for key, head in keys.items() if any(row.get(key) is not None for row in rows)]

    columns = [
        ("ended at", "time", show_seconds),
        ("lasted", "lasted", show_seconds),
        *measured(_OF_ROUNDS | {name: name for name in run.summary.get("metrics", {})}, "{:.4f}".format),
        *((name, name, "{:,}".format) for name in ("selected", "valid", "slow", "disconnected")),
        ("down", "bytes_down", show_bytes),
        ("up", "bytes_up", show_bytes),
        *measured({"bytes_peer": "between devices"}, show_bytes),
    ]
    part = f" {len(shown)} of {len(rows):,} are shown: every {style.ordinal(step)}, the best and the last."
    caption = f"One row a round; its number shows it in the timeline.{'' if len(shown) == len(rows) else part}"
    table = _with_buttons("round", timeline, shown, columns, caption, best)
    return f"Table of {len(rows):,} rounds", table


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


_MOST_WORLDS = 6
_UNLIKE = 12  # values further apart than this factor do not fit on one linear axis


# What a comparison answers: sentences, and for each figure a sorted plot of dots with intervals. Plots are tables whose last
# column is drawn: they fit any width, follow the page's colours, and can be read aloud.


def answers(found: "Sequence[Answer]", colours: dict[int, str]) -> list[Markup]:
    """Text and plots of each world's answer; ``colours`` are those of the lines, by place."""
    parts = []
    for answer in found[:_MOST_WORLDS]:
        parts += [el("h3", answer.world)] if answer.world else []
        parts += [*_answer_words(answer)]
        cells = explore.heat_map(answer)
        parts += [el("h4", cells.title), _columns(cells.columns, range(len(cells.columns[0].cells)))] if cells else []
        parts.append(el("div", *(el("div", _plot(one, colours)) for one in answer.rankings), class_="plots"))
    if len(found) > _MOST_WORLDS:
        parts.append(el("p", f"{len(found) - _MOST_WORLDS} more worlds are in the tables below.", class_="soft"))
    return parts


def _answer_words(answer: "Answer") -> Iterator[Markup]:
    """The goal's sentences, the best in bold where it is told apart from the next; then what else there is to say."""
    first, goal = answer.words, answer.rankings[0] if answer.rankings else None
    if goal and goal.sentences:
        best = answer.to(goal) + goal.sentences[0]
        yield el("p", el("strong", best) if goal.is_sure else best, " " + " ".join(goal.sentences[1:]), class_="answer")
        first = first[1:]
    yield from (el("p", text) for text in [*first, *explore.in_words(answer)])


def _plot(ranking: "Ranking", colours: dict[int, str]) -> Markup:
    """One figure of all lines, the best on top: name, value, and a dot with its interval."""
    there = [one for one in ranking.entries if one.values]
    scale = _Scale(there, ranking)
    rows = []
    for one in there:
        whole = len(one.values) == one.of
        name = (
            f"{one.name}{', a reference' if one.reference else ''}{', the baseline' if one.place == ranking.baseline else ''}"
        )
        said = ranking.show(one.mean.mean) if whole else f"{len(one.values)} of {one.of}"
        best = ranking.is_sure and one is ranking.whole[0]
        row = (
            el("th", plain(one.name, 40), scope="row", class_="text", title=plain(name, 200)),
            el("td", el("strong", said) if best else said),
            el("td", scale.draw(one, ranking, colours[one.place]), class_="dots"),
        )
        rows.append(el("tr", *row, class_=None if whole and not one.reference else "soft"))
    axis = el("tr", el("td"), el("td"), el("td", el("span", scale.low), el("span", scale.high), class_="axis"))
    title = ranking.measure.name.capitalize()
    more = "more is better" if ranking.measure.more_is_better else "less is better"
    caption = el("caption", el("strong", title), el("small", f" {more}{', log scale' if scale.log else ''}"))
    return el("table", caption, el("tbody", *rows), el("tfoot", axis), class_="plot")


def _arrow(tip: int, back: int) -> Callable[[str], Markup]:
    """The head of an arrow at an end of the axis: the interval goes on beyond it."""
    return lambda colour: el("polyline", points=f"{back},4 {tip},10 {back},16", stroke=colour, fill="none", class_="beyond")


_ARROWS = {"low": _arrow(0, 12), "high": _arrow(1000, 988)}


class _Scale:
    """From figures to places of an axis, 0 to 1000."""

    def __init__(self, entries: "Sequence[RankedLine]", ranking: "Ranking") -> None:
        values = [value for one in entries for value in one.values.values()]
        least, most, show = min(values), max(values), ranking.show
        self.log = ranking.measure.is_cost and least > 0 and most > _UNLIKE * least
        if self.log:
            self._from, self._to = math.log10(least / 1.3), math.log10(most * 1.3)
        elif ranking.measure.is_cost:
            self._from, self._to = 0.0, most * 1.08 or 1.0
        else:
            room = max(0.005, (most - least) * 0.08)
            self._from, self._to = max(0.0, least - room), min(1.0, most + room)
        ends = [10**edge if self.log else edge for edge in (self._from, self._to)]
        self.low, self.high = map(show, ends)

    def __call__(self, value: float) -> float:
        """The place of a value; what lies beyond an end lies at it."""
        if self.log:
            value = math.log10(value) if value > 0 else -math.inf
        return round(min(1000.0, max(0.0, (value - self._from) / (self._to - self._from) * 1000)), 1)

    def leaves(self, value: float, end: str) -> bool:
        """Whether a value lies beyond an end of the axis that is no end of the figure itself."""
        edge = self._from if end == "low" else self._to
        where = math.log10(value) if self.log and value > 0 else -math.inf if self.log else value
        return (where < edge if end == "low" else where > edge) and not (end == "low" and edge == 0.0 and not self.log)

    def draw(self, one: "RankedLine", ranking: "Ranking", colour: str) -> Markup:
        """A dot at the mean, a line for its interval, and a small tick for each seed."""
        mean, parts = one.mean, []
        whole = len(one.values) == one.of
        if whole and mean.pairs > 1:
            low, high = self(max(0.0, mean.low)), self(min(mean.high, ranking.measure.most))
            parts.append(el("line", x1=low, x2=high, y1="10", y2="10", stroke=colour, class_="interval"))
            parts += [
                _ARROWS[end](colour) for end, beyond in (("low", mean.low), ("high", mean.high)) if self.leaves(beyond, end)
            ]
        for value in one.values.values() if mean.pairs > 1 or not whole else ():
            parts.append(el("line", x1=self(value), x2=self(value), y1="6", y2="14", stroke=colour, class_="seed"))
        if whole:
            parts.append(el("line", x1=self(mean.mean), x2=self(mean.mean), y1="10", y2="10", stroke=colour, class_="dot"))
        return el("svg", *parts, viewBox="0 0 1000 20", preserveAspectRatio="none", aria_hidden="true")
