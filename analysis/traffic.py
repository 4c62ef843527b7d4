"""Bytes by direction and purpose, over simulated time and in total, with the wasted part.

A byte is wasted if its task did not end as ``done``, or if the task's training finished no epoch,
as in ``fedsim.records.ledger``. Bytes between parts of the server's side belong to no task and are
never wasted; the ledger counts them as up.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import palette, style
from fedsim.analysis.series import (
    Series,
    draw_mean_bar,
    end_axis_at,
    group_by_scenario,
    name_bars,
    whisker_entry,
)
from fedsim.common.files import parse_json
from fedsim.common.units import show_bytes, show_share
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import parse_data
from fedsim.records.folder import TRANSFERS
from fedsim.records.ledger import NOT_IN_PAPER, PROCESS, split_by_purpose
from fedsim.records.reading import RunFolder

_HUES = {
    "down": (palette.SKY, palette.PURPLE, palette.YELLOW, "#882255"),
    "up": (palette.BLUE, palette.GREEN, palette.ORANGE, "#999933"),
    "peer": (palette.GREEN, palette.PURPLE),
    "server": ("#332288", "#AA8866"),
}
_DIRECTIONS = {
    "down": "↓ down",
    "up": "↑ up",
    "peer": "⇄ peers",
    "server": "↔ within the server",
}
_WASTED: palette.Look = {
    "facecolor": "white",
    "edgecolor": palette.VERMILLION,
    "hatch": "////",
    "linewidth": 0.8,
}
_POINTS = 800  # points of a curve; more points than pixels would only make the SVG large
_BAR_IN = 0.62
_FRAME_IN = 2.0
_LEAST_SEEN = 0.002  # parts of bars below this share of the longest bar cannot be seen

_Kind = tuple[str, str]  # kind of bytes: direction and purpose


@style.styled
def draw_traffic(run: RunFolder) -> Figure:
    """Draw the bytes moved so far by direction and purpose, over simulated time and in total.

    Wasted bytes are hatched.

    Raises:
        NothingToDrawError: the run moved no bytes.
    """
    parts = read_parts(run)
    if parts.empty or parts["bytes"].sum() == 0:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} moved no bytes, so there is no traffic to draw"
        )
    colours = _choose_colours(parts)
    figure = Figure(figsize=(style.WIDTH_IN, max(5.6, len(colours) * _BAR_IN + _FRAME_IN)))
    over_time, totals = figure.subplots(1, 2, width_ratios=(3, 2))
    handles: list[Artist] = [
        Patch(facecolor=colour, label=_label(kind)) for kind, colour in colours.items()
    ]
    if parts["wasted"].any():
        meaning = "wasted: its task was late, lost or unfinished, or finished no epoch"
        handles.append(Patch(label=meaning, **_WASTED))
    _plot_over_time(over_time, parts, colours, run)
    _plot_totals(totals, parts, colours)
    return style.finish(figure, [run], handles)


def read_parts(run: RunFolder) -> pd.DataFrame:
    """Read the delivered bytes of each message by their purpose, to draw a run's traffic.

    Returns:
        DataFrame with a row per message and purpose. Columns are ``end`` (end of the message, s),
        ``direction`` (down, up, peer or server), ``purpose`` (such as ``model`` or ``update``),
        ``bytes``, and ``wasted``: whether the message belongs to a device's task whose work was not
        used, such as a task that ended late.
    """
    rows = run.table(TRANSFERS).to_pandas()
    useful_tasks = _useful_tasks(run)
    is_of_device = rows["device"].notna()
    # messages without a device and without bytes on a wire stay within the server's side
    is_on_link = is_of_device | (rows["wire_bytes"] > 0) | (rows["direction"] == "peer")
    columns = (
        rows["end"],
        rows["direction"].astype(str).where(is_on_link, "server"),
        rows["delivered"],
        rows["task"],
        is_of_device,
        rows["payloads"],
    )
    parse = cache(parse_json)  # many messages have equal payloads
    parts = []
    for end, direction, delivered, task, of_device, text in zip(*columns, strict=True):
        wasted = of_device and task not in useful_tasks
        for purpose, size in split_by_purpose(parse(text), delivered).items():
            parts.append((end, direction, purpose, size, wasted))
    names = ["end", "direction", "purpose", "bytes", "wasted"]
    return pd.DataFrame(parts, columns=names).astype({"wasted": bool})


def _useful_tasks(run: RunFolder) -> set[int]:
    """Return the IDs of useful tasks, whose bytes are not wasted.

    A task is useful if it is done, its training (if any) finished an epoch, and its update was not
    lost on the way to the server. In an unfinished run, open tasks count as useful too.
    """
    history = History(run)
    trainings = history.steps.query("step == 'train' and data.notna()")
    without_epoch = set()
    for task, data in zip(trainings["task"], trainings["data"], strict=True):
        if not parse_data(data)["epochs"]:
            without_epoch.add(task)
    with_lost_update: set[int] = set()
    for row in history.data("updates-lost"):
        with_lost_update.update(row["data"]["tasks"])
    useful = set(history.tasks.query("outcome == 'done'")["task"])
    if not run.is_done:
        useful.update(history.steps.query("outcome == 'stopped'")["task"])
    return useful - without_epoch - with_lost_update


def _choose_colours(parts: pd.DataFrame) -> dict[_Kind, str]:
    """Return the colour of each kind of traffic, (direction, purpose), in order of bytes."""
    sums = parts.groupby(["direction", "purpose"])["bytes"].sum()
    sums = sums.sort_values(ascending=False, kind="stable")
    colours = {}
    for direction, hues in _HUES.items():
        purposes = [str(purpose) for sent, purpose in sums.index if sent == direction]
        for rank, purpose in enumerate(purposes):
            colours[direction, purpose] = hues[rank] if rank < len(hues) else palette.GREY
    return colours


def _label(kind: _Kind) -> str:
    direction, purpose = kind
    if kind == ("peer", PROCESS):
        return "messages of processes"
    return f"{_DIRECTIONS[direction]}: {style.shorten(purpose, 24)}"


def _plot_over_time(
    panel: Axes, parts: pd.DataFrame, colours: dict[_Kind, str], run: RunFolder
) -> None:
    """Draw stacked areas of bytes over time: the useful bytes of each kind, then wasted bytes."""
    end = float(parts["end"].max())
    time_unit = style.unit_for(end, style.TIMES)
    byte_unit = style.unit_for(float(parts["bytes"].sum()), style.BYTES)
    moments = np.linspace(0.0, end, _POINTS)
    x = moments / time_unit.size
    # dict from (direction, purpose) to the rows of the useful bytes of this kind
    useful = dict([*parts[~parts["wasted"]].groupby(["direction", "purpose"])])
    layers: list[tuple[pd.DataFrame, palette.Look]] = []
    for kind, colour in colours.items():
        if kind in useful:
            layers.append((useful[kind], {"color": colour, "linewidth": 0}))
    layers.append((parts[parts["wasted"]], _WASTED))
    base = np.zeros_like(moments)
    for layer, look in layers:
        total = layer.groupby("end")["bytes"].sum().cumsum()  # bytes until each end of a message
        # total at the last end of a message until each moment; 0 before the first end
        at_moments = total.reindex(moments, method="ffill", fill_value=0.0)
        top = base + at_moments.to_numpy() / byte_unit.size
        panel.fill_between(x, base, top, **look)
        base = top
    panel.plot(x, base, color=palette.BLACK, linewidth=1.2)
    panel.set(
        xlabel=style.time_label([run], time_unit.name),
        ylabel=f"moved so far ({byte_unit.name})",
        title="over time",
    )
    axis_end = end / time_unit.size
    if not axis_end:  # transfers may take no time
        axis_end = 1.0
    panel.set(xlim=(0, axis_end), ylim=(0, None))
    panel.grid()


def _plot_totals(panel: Axes, parts: pd.DataFrame, colours: dict[_Kind, str]) -> None:
    """Draw a bar with the total bytes of each kind, useful and wasted."""
    sums = parts.pivot_table("bytes", ["direction", "purpose"], "wasted", "sum", fill_value=0.0)
    sums = sums.reindex(columns=[False, True], fill_value=0.0)
    unit = style.unit_for(float(sums.sum(axis=1).max()), style.BYTES)
    for row, (kind, colour) in enumerate(colours.items()):
        useful, wasted = sums.loc[[kind]].to_numpy(float)[0]  # ``kind`` has one row
        panel.barh(row, useful / unit.size, color=colour, height=0.6)
        if wasted:
            panel.barh(row, wasted / unit.size, left=useful / unit.size, height=0.6, **_WASTED)
        text = f"{_label(kind)}   {_amount(useful + wasted, wasted)}"
        panel.text(0, row - 0.36, text, va="bottom")
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.set_ylim(len(colours) - 0.5, -0.75)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6))
    panel.set_xlabel(f"moved in total ({unit.name})")
    panel.set_title(f"in total: {_amount(float(parts['bytes'].sum()), float(sums[True].sum()))}")


def _amount(total: float, wasted: float) -> str:
    """Format bytes and their wasted share: ``"1.14 MB, 2.0% wasted"``."""
    text = show_bytes(total)
    if wasted:
        text += f", {show_share(wasted / total, 1)} wasted"
    return text


# colours of the purposes that nearly every strategy has, so that all comparisons agree in them
_FIXED = {"model": palette.SKY, "update": palette.BLUE}
_OTHERS = (
    palette.GREEN,
    palette.ORANGE,
    palette.PURPLE,
    palette.VERMILLION,
    palette.YELLOW,
    "#332288",
    "#882255",
    "#999933",
)


@style.styled
def draw_purposes_compared(
    runs: Sequence[RunFolder], series: Sequence[Series] | None = None
) -> Figure:
    """Draw the bytes that runs moved, by purpose such as ``update``, to compare the runs.

    A second panel shows only the bytes that papers count: bytes of models and updates. The panel is
    left out if it would look the same. A bar is the mean over the seeds of a series, with a line
    over the range of the seeds. Bars have both the bytes to devices and the bytes from devices.

    Args:
        runs: the runs.
        series: the same runs as series; by default one series per scenario.

    Raises:
        NothingToDrawError: no run moved any bytes.
    """
    if series is None:
        series = group_by_scenario(runs)
    tables = []  # bytes of each series: a row per seed, a column per purpose
    for line in series:
        rows = [run.summary["bytes"]["by_purpose"] for run in line.runs]
        tables.append(pd.DataFrame(rows, dtype=float).fillna(0.0))
    most = max(float(sizes.sum(axis=1).max()) for sizes in tables)
    if not most:
        raise style.NothingToDrawError(
            "none of these runs moved any bytes, so there is no traffic to draw"
        )
    colours = _choose_purpose_colours(pd.DataFrame([sizes.mean() for sizes in tables]))
    unit = style.unit_for(most, style.BYTES)
    in_paper = [purpose for purpose in colours if purpose not in NOT_IN_PAPER]
    views = {"everything that moved (strict)": list(colours)}
    if _differ(tables, in_paper):
        views["models and updates only, as the papers count (paper)"] = in_paper
    figure = Figure(figsize=(style.WIDTH_IN, 2.6 + 0.5 * len(series)))
    panels = figure.subplots(1, len(views), sharey=True, sharex=True, squeeze=False)[0]
    looks = {purpose: {"color": colour} for purpose, colour in colours.items()}
    for panel, (title, purposes) in zip(panels, views.items(), strict=True):
        if len(views) > 1:
            panel.set_title(title, fontsize=11)
        for row, sizes in enumerate(tables):
            sizes_in_view = sizes.reindex(columns=purposes, fill_value=0.0)
            text = show_bytes(float(sizes_in_view.mean().sum()))
            draw_mean_bar(panel, row, sizes_in_view / unit.size, looks, text)
        panel.set_xlabel(f"moved in total ({unit.name})")
        panel.set_xlim(0, most / unit.size * 1.22)  # room for text beside the bars
        end_axis_at(panel, most / unit.size)
    name_bars(panels[0], [line.label for line in series])
    return style.finish(figure, runs, _purpose_legend(tables, colours, most))


def _purpose_legend(
    tables: Sequence[pd.DataFrame], colours: Mapping[str, str], most: float
) -> list[Artist]:
    """Return the legend's entries of purposes, and of the lines over bars if there are seeds.

    Args:
        tables: bytes by purpose (column) of each run (row); a table for each bar.
        colours: colour of each purpose.
        most: largest count of bytes of a run, the length of the longest bar.
    """
    handles: list[Artist] = []
    for purpose, colour in colours.items():
        label = style.shorten(purpose, 24)
        largest = max(float(sizes[purpose].max()) for sizes in tables if purpose in sizes)
        if largest / most < _LEAST_SEEN:
            label += " (too little to be seen)"
        handles.append(Patch(facecolor=colour, label=label))
    has_seeds = any(len(sizes) > 1 for sizes in tables)
    if has_seeds:
        handles.append(whisker_entry())
    return handles


def _differ(tables: Sequence[pd.DataFrame], in_paper: list[str]) -> bool:
    """Whether all bytes and the bytes that papers count differ when formatted as text."""
    for seeds in tables:
        in_all = float(seeds.mean().sum())
        in_papers = float(seeds.reindex(columns=list(in_paper), fill_value=0.0).mean().sum())
        if show_bytes(in_all) != show_bytes(in_papers):
            return True
    return False


def _choose_purpose_colours(means: pd.DataFrame) -> dict[str, str]:
    """Return the colour of each purpose: models and updates first, then other purposes by size."""
    sums = means.sum().sort_values(ascending=False, kind="stable")
    names = [str(purpose) for purpose in sums.index if purpose not in _FIXED]
    colours = _FIXED | dict(zip(names, cycle(_OTHERS), strict=False))
    return {purpose: colour for purpose, colour in colours.items() if sums.get(purpose, 0.0) > 0}
