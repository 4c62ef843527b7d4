"""Marks and round numbers in panels with a row per device or a time axis."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from fedsim.analysis import palette, style
from fedsim.common.arrays import Floats, Ints
from fedsim.lab.reading.activities import Mark
from fedsim.lab.reading.history import MARKS

_MOST_NUMBERS = 24  # approximate limit of the round numbers above a panel
_SHAPES: Mapping[str, str | int] = {
    "arrival": 9,
    "departure": 8,
    "move": "|",
    "late": "|",
    "lost": "x",
    "left": "D",
    "battery": "s",
    "split": "D",
}
LOST = "lost: device disconnected"
"""Meaning of the outcome ``lost`` in a legend."""
LOST_WITH_EDGES = "lost: device disconnected, or its edge server failed"
"""Meaning of the outcome ``lost`` in a run in which an edge server failed."""
_LABELS = {
    "battery": "battery flat at this instant",
    "arrival": "arrives",
    "departure": "leaves for good",
    "shift": "its data shift",
    "noticed": "it notices the shift",
    "move": "moves to another group",
    "split": "splits its data",
}
# factors of the size of marks; the dot of ``noticed`` has to fit into the ring of ``shift``
_SCALES = {"move": 1.4, "late": 1.4, "shift": 1.15, "noticed": 0.5}
_OUTLINED = ("move", "lost", "left", "battery", "split")


def number_rounds(panel: Axes, numbers: Ints, places: Floats, label: str, tick: float = 0) -> None:
    """Write round numbers above a panel, at an axis on top; some are skipped to avoid overlap.

    Args:
        panel: the panel. Its time limits have to be set before.
        numbers: indices of the rounds, int64 [n].
        places: position of each number on the time axis, ascending, float64 [n].
        label: label of the axis with the numbers.
        tick: length of the ticks (points).
    """
    start, end = panel.get_xlim()
    least_gap = (end - start) / 40
    every = style.thinning_step(len(numbers), _MOST_NUMBERS)
    last_place = -np.inf
    labels: dict[float, str] = {}
    for number, place in zip(numbers, places, strict=True):
        if number % every == 0 and place - last_place >= least_gap:
            labels[place] = str(number)
            last_place = place
    if labels:
        above = panel.secondary_xaxis("top")
        above.set_xticks([*labels], [*labels.values()])
        above.tick_params(length=tick, pad=1)
        above.set_xlabel(label, fontsize=10)


def mark_rows(
    panel: Axes,
    marks: Sequence[Mark],
    rows: Mapping[int, float],
    unit: float,
    size: float | None = None,
) -> list[Artist]:
    """Draw marks of events, such as data shifts and moves, in the rows of their devices.

    Args:
        panel: the panel. Its time limits have to be set before; marks beyond them are skipped.
        marks: marks of a run. Marks of a kind that is not in ``MARKS``, and marks of devices
            without a row, are skipped.
        rows: device ID -> vertical position of the device's row.
        unit: unit of the panel's time axis (s).
        size: size of the marks (points); by default it suits the count of rows.

    Returns:
        The legend's entries.
    """
    start, end = panel.get_xlim()
    if size is None:
        size = float(np.clip(420 / len(rows), 2.2, 7.0))
    handles: list[Artist] = []
    for kind in MARKS:
        x: list[float] = []
        y: list[float] = []
        for mark in marks:
            time = mark.time / unit
            is_visible = mark.kind == kind and start <= time <= end
            if is_visible and mark.device is not None and mark.device in rows:
                x.append(time)
                y.append(rows[mark.device])
        handles += draw_marks(panel, x, y, kind, size)
    return handles


def draw_marks(panel: Axes, x: ArrayLike, y: ArrayLike, kind: str, size: float) -> list[Artist]:
    """Draw marks of one kind, such as ``move``, in a panel with a row per device.

    Args:
        panel: the panel.
        x: positions on the time axis [n].
        y: vertical positions of the marks, such as rows of devices [n].
        kind: one of ``MARKS``, ``split``, or the outcome of a task.
        size: size of the marks (points).

    Returns:
        List with the legend's entry, whose size does not depend on ``size``; empty if there are no
        marks.
    """
    count = np.size(x)
    if not count:
        return []
    shape = _SHAPES.get(kind, "o")
    colour = palette.OUTCOMES.get(kind, palette.BLACK)
    look: palette.Look = {"marker": shape, "color": colour, "linestyle": ""}
    if kind == "shift":
        look["markerfacecolor"] = "white"
    if kind == "split":
        look |= palette.SPLIT
    edge_width = max(0.8, size / 4)
    if shape == "o":
        edge_width = size / 7
    effects: palette.Look = {}
    if kind in _OUTLINED:
        outline = patheffects.withStroke(linewidth=edge_width + 1.5, foreground="white")
        effects["path_effects"] = [outline]
    panel.plot(
        x,
        y,
        gid=kind,
        zorder=3,
        clip_on=kind == "late",
        rasterized=count > style.MANY_BARS,
        markersize=size * _SCALES.get(kind, 1.0),
        markeredgewidth=edge_width,
        **look,
        **effects,
    )
    return [_legend_entry(kind, shape, look)]


def _legend_entry(kind: str, shape: str | int, look: palette.Look) -> Line2D:
    """Return the legend's entry of the marks of a kind.

    Args:
        kind: kind of the marks.
        shape: shape of the marks, as matplotlib names it.
        look: look of the marks, which sizes and widths do not belong to.
    """
    size = 6.5
    width = 1.0
    if shape == "|":
        size = 10.0
        width = 1.5
    if kind == "noticed":
        size = 4.0
    label = _LABELS.get(kind, f"{kind} at this instant")
    return Line2D([], [], label=label, markersize=size, markeredgewidth=width, **look)
