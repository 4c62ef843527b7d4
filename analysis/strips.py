"""Strips below a timeline: count of active devices, and load of links."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from fedsim.analysis import palette, style
from fedsim.analysis.view import View
from fedsim.common.arrays import Floats
from fedsim.common.errors import FedsimError
from fedsim.common.units import BytesPerSecond, read_quantity
from fedsim.lab.reading.activities import TimeSpan
from fedsim.lab.trackers.link_load import Curve, interval_means, link_load, peer_load, running_sum
from fedsim.records.ledger import has_no_server
from fedsim.records.reading import RunFolder

_BINS = 625  # count of time bins over the width of a timeline; two pixels each
# Greatest ratio of present devices (those between arrival and departure) to devices at work for
# which unreachable devices are drawn. Beyond this ratio, an axis that has room for all present
# devices would show the devices at work as a thin line.
_FAR_MORE = 10
_FAR_ABOVE = 1.3  # a capacity above this multiple of the largest load is not drawn
# least end of the axis (bytes/s), size (bytes/s) and name of each unit, for ``style.unit_for``
RATES = (
    (125e6, 125e6, "Gbit/s"),
    (125e3, 125e3, "Mbit/s"),
    (125.0, 125.0, "kbit/s"),
    (0.0, 0.125, "bit/s"),
)
_CAPACITY: palette.Look = {"color": palette.BLACK, "linewidth": 0.8, "linestyle": ":"}

LaneDirection = Literal["down", "up"]
_DIRECTIONS: tuple[LaneDirection, ...] = ("down", "up")
_SIGNS = {"down": 1.0, "up": -1.0}
_COLOURS = {"down": palette.STEPS["download"], "up": palette.STEPS["upload"]}


def capacity(run: RunFolder) -> dict[str, float | None]:
    """Return the capacity of the server's link by direction, ``down`` and ``up`` (bytes/s).

    The value is None if the link is unlimited in this direction, or if the scenario has no number
    for it.
    """
    server = run.scenario.get("network", {}).get("server", {})
    limits: dict[str, float | None] = {}
    for direction in _DIRECTIONS:
        limits[direction] = None
        # KeyError: no limit; TypeError: the server is no table
        with suppress(KeyError, TypeError, FedsimError):
            rate = read_quantity(direction, server[direction], BytesPerSecond)
            if np.isfinite(rate):
                limits[direction] = rate
    return limits


def concurrency(spans: Sequence[TimeSpan]) -> Curve:
    """Return the count of spans that are going on at each time, as a step function of time."""
    starts = [span.start for span in spans]
    ends = [span.end for span in spans]
    return running_sum(np.array(starts + ends), np.repeat([1.0, -1.0], len(spans)))


def draw_work(axes: Axes, view: View) -> None:
    """Draw the count of active devices over time, stacked by the outcomes of their tasks.

    Unreachable devices are stacked on top, if the availability of all devices is known and at most
    ten times as many devices are present as are active.

    Args:
        axes: the panel.
        view: the part of the run to draw.
    """
    edges = _edges(view)
    activities = view.activities
    top = np.zeros(_BINS)
    for outcome, colour in palette.OUTCOMES.items():
        steps = [step for step in activities.steps if step.task_outcome == outcome]
        if steps:
            base = top
            top = top + interval_means(concurrency(steps), edges)
            _draw_area(axes, view, top, base, outcome, colour)
    most_drawn = max(1.0, float(top.max()))
    present = interval_means(concurrency(activities.presence), edges)
    history = view.history
    are_phases_known = len(history.devices_with_phases) == len(history.population)
    if are_phases_known and present.max() <= _FAR_MORE * most_drawn:
        most_drawn = max(most_drawn, float(present.max()))
        reachable = present - interval_means(concurrency(activities.absences), edges)
        _draw_area(axes, view, present, reachable, "away", palette.AWAY)
    axes.set(ylim=(0, most_drawn), ylabel="devices\nat work")
    style.set_whole_ticks(axes.yaxis, 3)


def _edges(view: View) -> Floats:
    """Return the edges of the strips' bins: simulated times (s), float64 [_BINS + 1]."""
    return np.linspace(view.start, view.end, _BINS + 1)


def _draw_area(axes: Axes, view: View, top: Floats, base: Floats, gid: str, colour: str) -> None:
    """Fill the area between ``base`` and ``top``, float64 [_BINS] each."""
    edges = _edges(view) / view.unit.size
    axes.stairs(top, edges, baseline=base, fill=True, color=colour, linewidth=0, gid=gid)


def draw_load(axes: Axes, view: View) -> list[Artist]:
    """Draw the bytes per second on the server's link over time, by direction.

    If the run has no server, the bytes per second of all messages between devices are drawn.

    Args:
        axes: the panel.
        view: the part of the run to draw.

    Returns:
        The legend's entry for the link's capacity, if the capacity is drawn.
    """
    if has_no_server(view.history.run.summary["bytes"]):
        _draw_peer_load(axes, view)
        return []
    return _draw_link_load(axes, view)


def _draw_peer_load(axes: Axes, view: View) -> None:
    """Draw the load of all messages between devices over time (bytes/s)."""
    edges = _edges(view)
    rate = interval_means(peer_load(view.history.run), edges)
    has_load = bool(rate.max())
    most = float(rate.max()) if has_load else 1.0
    unit = style.unit_for(most, RATES)
    _draw_rate(axes, view, rate / unit.size, "peer", _COLOURS["up"])
    axes.set(ylim=(0, 1.15 * most / unit.size))
    axes.set_ylabel(f"messages\nof devices\n({unit.name})")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3) if has_load else FixedLocator([0]))


def _draw_link_load(axes: Axes, view: View) -> list[Artist]:
    """Draw the load of the server's link, down above the line and up below it.

    Returns the legend's entry for the link's capacity, if the capacity is drawn.
    """
    edges = _edges(view)
    run = view.history.run
    limits = capacity(run)
    rates: dict[str, Floats] = {}
    for direction in _DIRECTIONS:
        rate = interval_means(link_load(run, direction), edges)
        limit = limits[direction]
        if limit:
            rate = np.minimum(rate, limit)
        rates[direction] = rate
    extents = {direction: float(rate.max()) for direction, rate in rates.items()}
    has_load = max(extents.values()) > 0
    most = max(extents.values()) if has_load else 1.0
    unit = style.unit_for(most, RATES)
    handles: list[Artist] = []
    for direction in _DIRECTIONS:
        sign = _SIGNS[direction]
        heights = sign * rates[direction] / unit.size
        _draw_rate(axes, view, heights, direction, _COLOURS[direction])
        limit = limits[direction]
        if limit is not None and limit <= _FAR_ABOVE * most:
            extents[direction] = max(extents[direction], limit)
            axes.axhline(sign * limit / unit.size, gid=f"capacity-{direction}", **_CAPACITY)
            handles = [Line2D([], [], label="what the server's link can carry", **_CAPACITY)]
    axes.axhline(0, color=palette.GREY, linewidth=0.8)
    margin = 0.15 * max(most, *extents.values())
    lowest = (-extents["up"] - margin) / unit.size
    highest = (extents["down"] + margin) / unit.size
    axes.set(ylim=(lowest, highest), ylabel=f"server's link,\ndown, up\n({unit.name})")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4) if has_load else FixedLocator([0]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    return handles


def _draw_rate(axes: Axes, view: View, heights: Floats, gid: str, colour: str) -> None:
    """Fill the area between a curve, float64 [_BINS], and zero."""
    edges = _edges(view) / view.unit.size
    axes.stairs(heights, edges, fill=True, color=colour, linewidth=0, gid=gid)
