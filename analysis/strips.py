"""What happened at a time to all devices together: how many were at work or away, and what the server's link carried."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.activity import Activity
from fedsim.analysis.presence import Presence
from fedsim.analysis.view import View
from fedsim.arrays import Floats
from fedsim.records.link_load import link_load, means, summed
from fedsim.records.reading import RunFolder

_BINS = 625  # over a timeline's width: two pixels each
_FAR_MORE = 10  # times as many devices as work would flatten those that work
_RATES = (style.Unit(125e6, "Gbit/s"), style.Unit(125e3, "Mbit/s"), style.Unit(125.0, "kbit/s"), style.Unit(0.125, "bit/s"))
_CAPACITY: dict[str, Any] = {"color": style.BLACK, "linewidth": 0.8, "linestyle": ":"}


def capacity(run: RunFolder) -> dict[str, float | None]:
    """What the server's link can carry, bytes/s each way; None where the scenario sets no limit to it."""
    from pydantic import TypeAdapter, ValidationError

    from fedsim.language.units import BytesPerSecond

    server = run.scenario.get("network", {}).get("server", {})
    limits: dict[str, float | None] = {}
    for way in ("down", "up"):
        try:
            rate = TypeAdapter[float](BytesPerSecond).validate_python(server[way]) if isinstance(server, dict) else np.inf
        except (KeyError, ValidationError):
            rate = np.inf
        limits[way] = rate if np.isfinite(rate) else None
    return limits


def draw_work(axes: Axes, activity: Activity, presence: Presence, population: int, view: View, unit: float) -> None:
    """How many devices were at work, by how their tasks ended; above, if it is known of all, how many could not be reached."""
    edges = np.linspace(view.start, view.end, _BINS + 1)
    top = np.zeros(_BINS)
    for outcome, colour in style.OUTCOMES.items():
        own = activity.steps[activity.steps["outcome"] == outcome]
        if len(own):
            base, top = top, top + _count(own, edges)
            axes.stairs(top, edges / unit, baseline=base, fill=True, color=colour, linewidth=0, gid=outcome)
    most = max(1.0, float(top.max()))
    there = _count(presence.there, edges)
    if len(presence.known) == population and there.max() <= _FAR_MORE * most:
        most = max(most, float(there.max()))
        away = there - _count(presence.away, edges)
        axes.stairs(there, edges / unit, baseline=away, fill=True, color=style.AWAY, linewidth=0, gid="away")
    axes.set(ylim=(0, most), ylabel="devices\nat work")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))


def _count(stretches: pd.DataFrame, edges: Floats) -> Floats:
    """How many stretches of time go on, on the mean between each edge and the next."""
    times = np.concatenate([stretches["start"].to_numpy(float), stretches["end"].to_numpy(float)])
    return means(summed(times, np.repeat([1.0, -1.0], len(stretches))), edges)


def draw_load(axes: Axes, run: RunFolder, view: View, unit: float) -> list[Artist]:
    """What the server's link carried: down above the line, up below it; returns the legend's entry for what it can carry."""
    edges = np.linspace(view.start, view.end, _BINS + 1)
    limits = capacity(run)
    rates = {way: np.minimum(means(link_load(run, way), edges), limits[way] or np.inf) for way in ("down", "up")}
    peaks = {way: float(rate.max()) for way, rate in rates.items()}
    most = max(1e-9, *peaks.values())
    size, name = next((rate for rate in _RATES if most >= rate.size), _RATES[-1])
    handles: list[Artist] = []
    for way, sign, step in (("down", 1.0, "download"), ("up", -1.0, "upload")):
        axes.stairs(sign * rates[way] / size, edges / unit, fill=True, color=style.STEPS[step], linewidth=0, gid=way)
        limit = limits[way]
        if limit is not None and limit <= 1.3 * most:  # one far above would flatten what was carried
            peaks[way] = max(peaks[way], limit)
            axes.axhline(sign * limit / size, gid=f"capacity-{way}", **_CAPACITY)
            handles = [Line2D([], [], label="what the server's link can carry", **_CAPACITY)]
    axes.axhline(0, color=style.GREY, linewidth=0.8)
    room = 0.15 * max(most, *peaks.values())
    axes.set(ylim=((-peaks["up"] - room) / size, (peaks["down"] + room) / size), ylabel=f"server's link,\ndown, up\n({name})")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    return handles
