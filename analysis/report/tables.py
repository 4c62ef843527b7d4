"""Tables of a report: comparisons, devices, rounds, and differences between scenarios."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedsim.analysis import style
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.common.files import flatten
from fedsim.common.round_words import count_rounds, counted
from fedsim.common.units import show_bytes, show_joules, show_seconds, show_share
from fedsim.lab.compare.columns import ComparedColumn, ComparedTable
from fedsim.lab.compare.show import by_topic, format_cell
from fedsim.lab.reading.history import History
from fedsim.records.folder import TRANSFERS
from fedsim.records.ledger import has_no_server
from fedsim.records.reading import RunFolder

NOTHING = "\N{EN DASH}"
_SHORT = 14  # a text of at most this count of characters is never broken into lines
_MOST_DEVICES = 200
# if a run has more rounds, only every n-th round has a row, besides the best and the last round
_MOST_ROUNDS = 60
_FEW_DIFFERENCES = 8
_MOST_DIFFERENCES = 60


class TableCell(NamedTuple):
    """Cell of an HTML table.

    Attributes:
        text: text of the cell.
        value: number by which the page sorts the rows; None if the cell has no number. A column
            without numbers is sorted by its texts.
        best: whether the cell is emphasised, as the best of its column.
    """

    text: str
    value: float | None = None
    best: bool = False


def grid(
    heads: Sequence[str],
    rows: Sequence[Sequence[str | TableCell]],
    is_text: Sequence[bool],
    caption: str | None = None,
) -> Markup:
    """Return an HTML table that the reader can sort.

    Args:
        heads: heads of the columns.
        rows: cells of each row; the first cell is the head of the row.
        is_text: for each column, whether the column has texts instead of numbers.
        caption: caption of the table; None for no caption.
    """
    looks = ["text" if text else None for text in is_text]
    head_cells = []
    for head, look in zip(heads, looks, strict=True):
        head_cells.append(el("th", head, scope="col", class_=look))
    body = []
    for row in rows:
        cells = []
        for column, (cell, look) in enumerate(zip(row, looks, strict=True)):
            cells.append(_draw_cell(cell, look, heads_row=column == 0))
        body.append(el("tr", *cells))
    table = el(
        "table",
        el("caption", caption) if caption else None,
        el("thead", el("tr", *head_cells)),
        el("tbody", *body),
        class_="sortable" if len(rows) > 1 else None,
    )
    return el("div", table, class_="wide", tabindex="0")


def _draw_cell(cell: str | TableCell, look: str | None, *, heads_row: bool) -> Markup:
    """Return a cell of a table; its value, by which the page sorts rows, is in ``data-v``."""
    if not isinstance(cell, TableCell):
        cell = TableCell(cell)
    sort_key = None if cell.value is None else f"{cell.value:.9g}"
    text = el("strong", cell.text) if cell.best else cell.text
    if look is not None and len(cell.text) <= _SHORT:
        look = f"{look} short"
    if heads_row:
        return el("th", text, scope="row", class_=look, data_v=sort_key)
    return el("td", text, class_=look, data_v=sort_key)


def comparison(table: ComparedTable, order: Sequence[int]) -> Iterator[Markup]:
    """Yield a comparison in HTML: a table for each topic, such as time, and then the notes.

    Args:
        table: the compared figures of all topics, in columns.
        order: indices of the rows in the order to show. If an index is missing, the rows keep the
            order of ``table``.
    """
    count = len(table.columns[0].cells)
    if len(order) != count:
        order = range(count)
    for topic, columns in by_topic(table):
        if topic:
            yield el("h3", f"{topic[:1].upper()}{topic[1:]}")
            yield of_columns(columns, order)
    for note in table.notes:
        yield el("p", plain(note, 400), class_="soft")


def of_columns(columns: Sequence[ComparedColumn], order: Sequence[int]) -> Markup:
    """Return one HTML table with columns of a comparison, such as all columns on a topic.

    Args:
        columns: the columns.
        order: indices of the rows to show, from the top down.
    """
    rows = [[_compared_cell(column, row) for column in columns] for row in order]
    return grid([column.head for column in columns], rows, [column.is_text for column in columns])


def _compared_cell(column: ComparedColumn, row: int) -> TableCell:
    cell = column.cells[row]
    mean = getattr(cell, "mean", cell)
    value = float(mean) if isinstance(mean, int | float) else None
    return TableCell(plain(format_cell(cell, column)), value, row in column.best_cells)


_ENDINGS = {
    "late": "late",
    "lost": "lost",
    "left": "left",
    "battery": "flat",
    "memory": "no room",
    "stopped": "cut off",
}
# column of a table: its head, key of its values in the rows, and function that formats a value
_TableColumn = tuple[str, str, Callable[[Any], str]]
_OPTIONAL_DEVICE_COLUMNS: tuple[_TableColumn, ...] = (
    ("last group", "group", "{:.0f}".format),
    ("accuracy (0-1)", "accuracy", "{:.4f}".format),
    ("energy", "joules", show_joules),
    ("cost", "cost", "{:.4f}".format),
)


def devices(run: RunFolder, timeline: str) -> tuple[str, Markup] | None:
    """Return a table of the work and wasted work of devices, the most wasted work first.

    Each device that worked has a row; of more than 200 devices, the first 200 have one.

    Args:
        run: the run.
        timeline: id of the HTML element with the data of the run's timeline. The button of a row
            shows the device in this timeline.

    Returns:
        Short text on the table, to be its heading, and the table; None if no device worked.
    """
    rows = read_devices(run)
    if rows.empty:
        return None
    endings = [name for name in _ENDINGS if rows[name].any()]
    columns: list[_TableColumn] = [("speed (samples/s)", "speed", "{:.3g}".format)]
    counts = ["tasks", *endings]
    if rows["samples"].any():  # all counts are 0 if a Flower app brings its own data
        counts.insert(0, "samples")
    for name in counts:
        head = _ENDINGS.get(name, name)
        if name == "stopped" and not run.is_done:
            head = "not finished"
        columns.append((head, name, "{:,.0f}".format))
    columns += [
        ("worked", "worked_s", show_seconds),
        ("of it wasted", "wasted_s", show_seconds),
        ("share wasted", "share", show_share),
        ("moved", "bytes", show_bytes),
    ]
    for column in _OPTIONAL_DEVICE_COLUMNS:
        _, key, _ = column
        if rows[key].notna().any():
            columns.append(column)
    caption = (
        "One row for each device that worked, the most wasted work on top. The number of a device "
        "shows it in the timeline."
    )
    if len(rows) > _MOST_DEVICES:
        caption += f" The {_MOST_DEVICES} of {len(rows):,} that wasted most are shown."
    wasted = [name for name in endings if name in wasted_outcomes(run)]
    records = rows.head(_MOST_DEVICES).to_dict("records")
    table = _with_buttons("device", timeline, records, columns, caption)
    return _summarise_devices(rows, wasted), table


def _summarise_devices(rows: pd.DataFrame, wasted: Sequence[str]) -> str:
    """Return a text with the count of devices, and of devices with wasted tasks.

    Args:
        rows: one row per device, with a count of tasks for each outcome.
        wasted: outcomes of wasted tasks that occur.
    """
    text = f"Table of {counted(len(rows), 'device')}"
    during_run = [name for name in wasted if name != "stopped"]
    wasteful = int((rows[during_run].sum(axis=1) > 0).sum())
    if wasteful:
        text += f", {wasteful:,} of them with a task that was wasted"
    # counted separately: in gossip, most devices have an open task when the run ends
    if "stopped" in wasted:
        cut_off = int((rows["stopped"] > 0).sum())
        text += f", {cut_off:,} of them with a task cut off by the end of the run"
    return text


def _with_buttons(
    noun: str,
    timeline: str,
    rows: Sequence[Mapping[Any, Any]],
    columns: Sequence[_TableColumn],
    caption: str,
    best: object = None,
    head: str = "",
) -> Markup:
    """Return a table whose first column has buttons that show a device or round in the timeline.

    Args:
        noun: ``device`` or ``round``; also the key of the device or round in a row.
        timeline: id of the HTML element with the data of the timeline.
        rows: values of each row by key.
        columns: the columns after the first.
        caption: caption of the table.
        best: the row whose accuracy is bold; None for none.
        head: head of the first column; by default ``noun``.
    """
    body = []
    for row in rows:
        number = row[noun]
        data = {f"data_{noun}": number}
        button = el("button", str(number), type="button", **data, data_timeline=timeline)
        cells = [TableCell(button, number)]
        for _, key, show in columns:
            value = row.get(key)
            is_best = row is best and key == "accuracy"
            cell = TableCell(NOTHING)
            if not pd.isna(value):
                cell = TableCell(show(value), value, is_best)
            cells.append(cell)
        body.append(cells)
    heads = [head or noun, *(name for name, _, _ in columns)]
    return grid(heads, body, [False] * len(heads), caption)


def read_devices(run: RunFolder) -> pd.DataFrame:
    """Return a DataFrame with one row per device that worked, most wasted time first.

    Returns:
        Columns:

        - ``device``, ``speed``, ``samples`` and other columns of ``devices.parquet``;
        - ``tasks``: count of tasks;
        - ``late``, ``lost``, ``left``, ``battery``, ``memory``, ``stopped``: count of tasks with
          this outcome;
        - ``worked_s``: time of the steps of the device's tasks (s);
        - ``wasted_s``: time of steps of tasks whose work was not used (s);
        - ``share``: share of ``wasted_s`` in ``worked_s`` (0..1);
        - ``bytes``: bytes that the device sent and received.
    """
    history = History(run)
    steps = history.steps.assign(length=history.steps["end"] - history.steps["start"])
    first_steps = steps.drop_duplicates("task")
    tasks = first_steps.groupby(["device", "outcome"]).size().unstack(fill_value=0)
    rows = tasks.reindex(columns=list(_ENDINGS), fill_value=0).assign(tasks=tasks.sum(axis=1))
    wasted = steps[steps["outcome"].isin(wasted_outcomes(run))]
    rows["worked_s"] = steps.groupby("device")["length"].sum()
    rows["wasted_s"] = wasted.groupby("device")["length"].sum()
    rows["share"] = rows["wasted_s"] / rows["worked_s"]
    rows["bytes"] = _bytes_of_devices(run)
    facts = ["speed", "samples", *(key for _, key, _ in _OPTIONAL_DEVICE_COLUMNS)]
    rows = rows.fillna(0.0).join(history.population.reindex(columns=facts))
    rows = rows.sort_values(["wasted_s", "worked_s"], ascending=False, kind="stable")
    return rows.rename_axis("device").reset_index()


def wasted_outcomes(run: RunFolder) -> tuple[str, ...]:
    """Return the outcomes of tasks whose work counts as wasted, such as ``late``.

    The outcome ``stopped`` of tasks that are open when the records end is returned only if the run
    is done.
    """
    outcomes = tuple(_ENDINGS)
    return outcomes if run.is_done else tuple(name for name in outcomes if name != "stopped")


def _bytes_of_devices(run: RunFolder) -> "pd.Series[float]":
    """Return the bytes of messages that each device sent or received, by device.

    A message between two devices counts for both, so these bytes may exceed the run's.
    """
    names = ["device", "delivered", "sender", "receiver"]
    transfers = run.table(TRANSFERS).select(names).to_pandas()
    is_of_task = transfers["device"].notna()
    parts = [transfers.loc[is_of_task, ["device", "delivered"]]]
    outside_of_tasks = transfers[~is_of_task]
    for end in ("sender", "receiver"):
        names_of_end = outside_of_tasks[end].astype(str)
        device = names_of_end.str.extract(r"^device (\d+)$", expand=False).astype(float)
        with_device = outside_of_tasks.assign(device=device).dropna(subset="device")
        parts.append(with_device[["device", "delivered"]])
    sizes: pd.Series[float] = pd.concat(parts).groupby("device")["delivered"].sum()
    return sizes


_HEADS_OF_MEASURES = {
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
    """Return a table of times, clients, bytes and test results by round.

    Of more than 60 rounds, some are shown, among them the round with the best accuracy and the
    last round.

    Args:
        run: the run.
        timeline: id of the HTML element with the data of the run's timeline. The button of a row
            shows the round in this timeline.

    Returns:
        Short text on the table, to be its heading, and the table; None if the run has no rounds.
    """
    rows = []
    start = 0.0
    for row in run.rounds:
        rows.append(row | {"lasted": max(0.0, row["time"] - start)})
        start = row["time"]
    if not rows:
        return None
    tested = [row for row in rows if row["accuracy"] is not None]
    best = max(tested, key=lambda row: row["accuracy"], default=None)
    every = style.thinning_step(len(rows), _MOST_ROUNDS)
    shown = []
    for index, row in enumerate(rows):
        if index % every == 0 or row is best or row is rows[-1]:
            shown.append(row)
    columns = []
    for column in _round_columns(run):
        _, key, _ = column
        if any(row.get(key) is not None for row in rows):
            columns.append(column)
    caption = (
        f"One row for each {run.round_word}. The number of a {run.round_word} shows it in the "
        "timeline."
    )
    if len(shown) != len(rows):
        caption += (
            f" {len(shown)} of {len(rows):,} are shown: one of {every}, the best and the last."
        )
    table = _with_buttons("round", timeline, shown, columns, caption, best, run.round_word)
    return f"Table of {count_rounds(len(rows), run.round_word)}", table


def _round_columns(run: RunFolder) -> list[_TableColumn]:
    """Return all columns that a report's table of rounds can have, for the kind of this run."""
    columns: list[_TableColumn] = [
        ("ended at", "time", show_seconds),
        ("lasted", "lasted", show_seconds),
    ]
    heads = _HEADS_OF_MEASURES | {name: name for name in run.summary.get("metrics", {})}
    columns += [(head, key, "{:.4f}".format) for key, head in heads.items()]
    columns += [
        (name, name, "{:,}".format) for name in ("selected", "valid", "slow", "disconnected")
    ]
    if not has_no_server(run.summary["bytes"]):
        columns += [("down", "bytes_down", show_bytes), ("up", "bytes_up", show_bytes)]
    columns.append(("between devices", "bytes_peer", show_bytes))
    return columns


def without_paths(value: Any) -> Any:
    """Return a scenario without the folders of the machine on which the run was computed.

    Keys ``root`` are left out. Of another text that begins like a path, only the part after the
    last slash is kept.

    Args:
        value: the scenario as nested dicts and lists, or a part of it.
    """
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items() if key != "root"}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if isinstance(value, str) and value.startswith(("/", "~", "\\")):
        _, _, name = value.replace("\\", "/").rpartition("/")
        return f"…/{name}"
    return value


def compare_scenarios(runs: Sequence[RunFolder], names: Sequence[str]) -> Markup | None:
    """Return a table of the keys in which scenarios differ, one column per run.

    Args:
        runs: the runs.
        names: names of the runs.

    Returns:
        The table, of at most 60 keys; None if the scenarios differ in nothing but their names and
        folders.
    """
    scenarios = [flatten(without_paths(run.scenario)) for run in runs]
    keys = _differing_keys(scenarios)
    if not keys:
        return None
    rows = []
    for key in keys[:_MOST_DIFFERENCES]:
        values = [_say_value(scenario.get(key, NOTHING)) for scenario in scenarios]
        rows.append([key, *values])
    table = grid(["key", *names], rows, [True] * (len(names) + 1))
    remark = None
    if len(keys) > len(rows):
        remark = el("p", f"Keys that differ besides: {len(keys) - len(rows)}.", class_="soft")
    heading = f"Keys that differ between the scenarios: {len(keys)}"
    is_open = len(keys) <= _FEW_DIFFERENCES
    return el("details", el("summary", heading), table, remark, open=is_open)


def _say_value(value: object) -> str:
    """Return a short text of a scenario's value, with booleans as TOML has them."""
    if isinstance(value, bool):
        return str(value).lower()
    return plain(value, 60)


def _differing_keys(scenarios: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the keys of flat scenarios whose values differ, without ``name``."""
    keys = set()
    for scenario in scenarios:
        for key, value in scenario.items():
            if any(value != other.get(key) for other in scenarios):
                keys.add(key)
    return sorted(keys - {"name"})
