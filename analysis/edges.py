"""What edge servers did: a lane each, with what came from the server and went to it, its devices at work, and its losses."""

import json
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import style
from fedsim.analysis.activity import read_activity
from fedsim.analysis.style import NothingToDrawError
from fedsim.records.folder import TRANSFERS
from fedsim.records.link_load import summed
from fedsim.records.reading import RunFolder

_MOST_LANES = 60
_LANE_IN, _FRAME_IN = 0.34, 2.4
_LEAST_SHARE = 1 / 1250  # of the time axis: a message, however short, is drawn a pixel wide
_WAYS = {"down": ("download", "from the server"), "up": ("upload", "to the server")}


@style.styled
def draw_edges(run: RunFolder) -> Figure:
    """What edge servers did when.

    The band of a lane is the darker, the more of its devices work for it at a time.

    Raises:
        NothingToDrawError: none had a message.
        RunFolderError: the folder is damaged.
    """
    messages = read_messages(run)
    if messages.empty:
        raise NothingToDrawError("no edge server had a message, so there is nothing to draw of edge servers")
    activity = read_activity(run)
    edges = np.unique(messages["edge"])
    shown = edges[style.evenly(len(edges), _MOST_LANES)]
    lane = pd.Series(np.arange(len(shown), dtype=float), index=shown)
    unit = style.time_unit(activity.end)
    figure = Figure(figsize=(style.WIDTH_IN, max(len(shown), 4) * _LANE_IN + _FRAME_IN))
    panel = figure.subplots()
    panel.set_xlim(0, activity.end / unit.size)
    panel.set_ylim(len(shown) - 0.5, -0.5)
    panel.set_yticks(range(len(shown)), [f"edge {edge}" for edge in shown])
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel(f"simulated time ({unit.name})")
    handles = _draw_work(panel, activity.steps, lane, unit.size)
    for way, (step, label) in _WAYS.items():
        own = messages[(messages["direction"] == way) & messages["edge"].isin(shown)]
        start, end, row = own["start"].to_numpy(float), own["end"].to_numpy(float), own["edge"].map(lane).to_numpy(float)
        end = np.maximum(end, start + activity.end * _LEAST_SHARE) / unit.size
        bars = style.rectangles(start / unit.size, end, row - 0.4, row + 0.4, facecolor=style.STEPS[step])
        bars.set_gid(way)
        panel.add_collection(bars, autolim=False)
        handles.append(Patch(facecolor=style.STEPS[step], label=label))
    handles += _draw_losses(panel, run, activity.end, lane, unit.size)
    ends = activity.rounds["end"].to_numpy() / unit.size
    every = style.step_for(len(ends), 45)
    panel.vlines(ends[::every], 0, 1, transform=panel.get_xaxis_transform(), colors="#404040", linewidth=0.6)
    which = "" if every == 1 else f" (of every {style.ordinal(every)} round)"
    handles.append(Line2D([], [], color="#404040", linewidth=0.6, label=f"round's end{which}"))
    part = "" if len(shown) == len(edges) else f"{len(shown)} of "
    figure.suptitle(f"{style.headline(run)}\n{part}{style.counted(len(edges), 'edge server')}", fontsize=12)
    style.legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


def read_messages(run: RunFolder) -> pd.DataFrame:
    """One row a message between an edge server and the server: ``edge``, ``direction``, ``start``, ``end`` (s), ``outcome``.

    Raises:
        RunFolderError: the transfers are missing or damaged.
    """
    rows: pd.DataFrame = run.table(TRANSFERS).to_pandas()
    rows = rows[rows["device"].isna() & (rows["direction"] != "peer")]
    down = (rows["direction"] == "down").to_numpy()
    names = np.where(down, rows["receiver"].astype(str), rows["sender"].astype(str))
    edge = pd.Series(names, index=rows.index, dtype=str).str.extract(r"^edge ([0-9]+)$")[0]
    found: pd.DataFrame = rows.assign(edge=edge).loc[edge.notna(), ["edge", "direction", "start", "end", "outcome"]]
    return found.astype({"edge": int, "direction": str, "outcome": str}).reset_index(drop=True)


def _draw_work(panel: Axes, steps: pd.DataFrame, lane: "pd.Series[float]", unit: float) -> list[Artist]:
    """How many devices work for each edge server: those of its group."""
    own = steps[steps["group"].isin(lane.index)]
    most = 1.0
    curves = {}
    for edge, rows in own.groupby("group"):
        times = np.concatenate([rows["start"].to_numpy(float), rows["end"].to_numpy(float)])
        curves[edge] = summed(times, np.repeat([1.0, -1.0], len(rows)))
        most = max(most, float(curves[edge].values.max(initial=0.0)))
    for edge, curve in curves.items():
        working = np.flatnonzero(curve.values[:-1] > 0)
        share = curve.values[working] / most
        colours = [style.lighten(style.STEPS["train"], 0.85 - 0.6 * value) for value in share]
        start, end = curve.times[working] / unit, curve.times[working + 1] / unit
        row = np.full(len(working), lane[edge])
        panel.add_collection(style.rectangles(start, end, row - 0.4, row + 0.4, facecolor=colours), autolim=False)
    label = f"its devices at work (darkest: {most:.0f})"
    return [Patch(facecolor=style.lighten(style.STEPS["train"], 0.4), label=label)] if curves else []


def _draw_losses(panel: Axes, run: RunFolder, end: float, lane: "pd.Series[float]", unit: float) -> list[Artist]:
    """When edge servers were lost."""
    since: dict[int, float] = {}
    lost: list[tuple[int, float, float]] = []
    for time, kind, data in run.events_of(("edge-off", "edge-on"), ("time", "kind", "data")):
        edge = json.loads(data)["edge"]
        if kind == "edge-off":
            since[edge] = time
        else:
            lost.append((edge, since.pop(edge, time), time))
    lost += [(edge, start, end) for edge, start in since.items()]
    rows = [(lane[edge], start / unit, stop / unit) for edge, start, stop in lost if edge in lane.index]
    if not rows:
        return []
    row, start_, stop_ = np.array(rows).T
    look: dict[str, Any] = {"facecolor": "white", "edgecolor": style.VERMILLION, "hatch": "//////", "linewidth": 0.8}
    panel.add_collection(style.rectangles(start_, stop_, row - 0.45, row + 0.45, gid="lost", **look), autolim=False)
    return [Patch(**look, label="lost")]
