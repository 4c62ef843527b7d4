"""Edge servers over time."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import style
from fedsim.analysis.history import History
from fedsim.analysis.timeline import ROUND_END, counted, every_so_many
from fedsim.records.folder import TRANSFERS
from fedsim.records.reading import RunFolder

_MOST_LANES = 60
_LANE_IN, _FRAME_IN = 0.34, 2.4
_LEAST_SHARE = 1 / 1250  # of the time axis: a message, however short, is drawn a pixel wide
_WAYS = {"down": ("download", "from the server"), "up": ("upload", "to the server")}
_LOST: dict[str, Any] = {"facecolor": "white", "edgecolor": style.VERMILLION, "hatch": "//////", "linewidth": 0.8}


@style.styled
def draw_edges(run: RunFolder) -> Figure:
    """A lane an edge server: what came from the server and went to it, how many of its devices worked for it, its losses."""
    messages = read_messages(run)
    if messages.empty:
        raise style.NothingToDrawError("no edge server had a message, so there is nothing to draw of edge servers")
    history = History(run)
    edges = np.unique(messages["edge"])
    shown = edges[style.evenly(len(edges), _MOST_LANES)]
    lane = pd.Series(np.arange(len(shown), dtype=float), index=shown)
    unit = style.time_unit(history.end)
    figure = Figure(figsize=(style.WIDTH_IN, max(len(shown), 4) * _LANE_IN + _FRAME_IN))
    panel = figure.subplots()
    panel.set_xlim(0, history.end / unit.size)
    panel.set_ylim(len(shown) - 0.5, -0.5)
    panel.set_yticks(range(len(shown)), [f"edge {edge}" for edge in shown])
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel(f"simulated time ({unit.name})")
    handles = _draw_work(panel, history.steps, lane, unit.size)
    for way, (step, label) in _WAYS.items():
        own = messages[(messages["direction"] == way) & messages["edge"].isin(shown)]
        start, end = own["start"].to_numpy(float), own["end"].to_numpy(float)
        end = np.maximum(end, start + history.end * _LEAST_SHARE)
        look = {"facecolor": style.STEPS[step], "gid": way}
        style.bars(panel, start / unit.size, end / unit.size, own["edge"].map(lane), 0.4, **look)
        handles.append(Patch(facecolor=style.STEPS[step], label=label))
    handles += _draw_losses(panel, history, lane, unit.size)
    ends = history.rounds["end"].to_numpy() / unit.size
    which, every = every_so_many(len(ends))
    style.across([panel], ends[::every], **ROUND_END)
    handles.append(Line2D([], [], label=f"round's end{which}", **ROUND_END))
    part = "" if len(shown) == len(edges) else f"{len(shown)} of "
    return style.finished(figure, [run], handles, part + style.counted(len(edges), "edge server"))


def read_messages(run: RunFolder) -> pd.DataFrame:
    """One row a message between an edge server and the server: ``edge``, ``direction``, ``start``, ``end`` (s), ``outcome``."""
    rows: pd.DataFrame = run.table(TRANSFERS).to_pandas()
    rows = rows[rows["device"].isna() & (rows["direction"] != "peer")]
    names = rows["receiver"].astype(str).where(rows["direction"] == "down", rows["sender"].astype(str))
    rows = rows.assign(edge=names.astype(str).str.extract(r"^edge ([0-9]+)$")[0]).dropna(subset="edge")
    rows = rows[["edge", "direction", "start", "end", "outcome"]]
    return rows.astype({"edge": int, "direction": str, "outcome": str}).reset_index(drop=True)


def _draw_work(panel: Axes, steps: pd.DataFrame, lane: "pd.Series[float]", unit: float) -> list[Artist]:
    """How many devices work for each edge server: those of its group."""
    curves = {edge: counted(own) for edge, own in steps[steps["group"].isin(lane.index)].groupby("group")}
    most = max([1.0, *(float(curve.values.max(initial=0.0)) for curve in curves.values())])
    for edge, curve in curves.items():
        working = np.flatnonzero(curve.values[:-1] > 0)
        colours = [style.lighten(style.STEPS["train"], 0.85 - 0.6 * value) for value in curve.values[working] / most]
        start, end = curve.times[working] / unit, curve.times[working + 1] / unit
        style.bars(panel, start, end, lane[edge], 0.4, facecolor=colours)
    label = f"its devices at work (darkest: {most:.0f})"
    return [Patch(facecolor=style.lighten(style.STEPS["train"], 0.4), label=label)] if curves else []


def _draw_losses(panel: Axes, history: History, lane: "pd.Series[float]", unit: float) -> list[Artist]:
    """When edge servers were lost."""
    since: dict[int, float] = {}
    lost: list[tuple[float, float, float]] = []
    for row in history.data("edge-off", "edge-on"):
        edge = row["data"]["edge"]
        if row["kind"] == "edge-off":
            since[edge] = row["time"]
        elif edge in lane.index:
            lost.append((lane[edge], since.pop(edge, row["time"]), row["time"]))
    lost += [(lane[edge], start, history.end) for edge, start in since.items() if edge in lane.index]
    if not lost:
        return []
    place, start, end = np.array(lost).T
    style.bars(panel, start / unit, end / unit, place, 0.45, gid="lost", **_LOST)
    return [Patch(**_LOST, label="lost")]
