"""Marks in devices' rows: when each arrived, left for good, had other data, noticed it, and moved to another group."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import AbstractPathEffect

from fedsim.analysis import style
from fedsim.analysis.moves import Membership

KINDS = ("arrivals", "departures", "shifts", "noticed", "moves")
MOVE = style.BLACK
_MANY = 4000  # as vectors they would make the SVG large and slow


def draw_marks(
    panel: Axes, membership: Membership, row: "pd.Series[float]", unit: float, kinds: Sequence[str] = KINDS
) -> list[Artist]:
    """A mark in its device's row at each instant; returns the legend's entries.

    Args:
        panel: where; marks outside its limits of time are left out.
        membership: what happened.
        row: each shown device's row, by device.
        unit: seconds that the time axis counts as one.
        kinds: which of ``KINDS``.
    """
    size = float(np.clip(420 / len(row), 2.2, 7.0))
    outline: list[AbstractPathEffect] = [patheffects.withStroke(linewidth=size / 4 + 1.4, foreground="white")]
    looks: dict[str, tuple[pd.DataFrame, str, dict[str, Any]]] = {
        "arrivals": (membership.arrivals, "arrives", {"marker": 9, "color": style.BLACK, "s": size**2}),
        "departures": (membership.departures, "leaves for good", {"marker": 8, "color": style.BLACK, "s": size**2}),
        "shifts": (
            membership.shifts,
            "its data shift",
            {"marker": "o", "facecolor": "white", "edgecolor": style.BLACK, "s": size**2 * 0.7, "linewidths": size / 7},
        ),
        "noticed": (
            membership.noticed,
            "it notices the shift",
            {"marker": "o", "color": style.BLACK, "s": size**2 * 0.7, "linewidths": size / 7},
        ),
        "moves": (membership.migrations, "moves to another group", {"marker": "|", "color": MOVE, "s": (1.4 * size) ** 2}),
    }
    handles: list[Artist] = []
    left, right = panel.get_xlim()
    for kind in kinds:
        table, label, look = looks[kind]
        own = table[table["device"].isin(row.index) & (table["time"] / unit).between(left, right)]
        if own.empty:
            continue
        marks = panel.scatter(own["time"] / unit, own["device"].map(row), gid=kind, zorder=3, label=label, **look)
        marks.set_clip_on(False)
        marks.set_rasterized(len(own) > _MANY)
        if kind == "moves":
            marks.set_linewidth(max(0.8, size / 4))
            marks.set_path_effects(outline)
        handles.append(_key(label, look))
    return handles


def _key(label: str, look: dict[str, Any]) -> Line2D:
    """The mark in the legend, where it is large enough to be recognised however many rows there are."""
    face, edge = look.get("facecolor", look.get("color")), look.get("edgecolor", look.get("color"))
    return Line2D(
        [],
        [],
        linestyle="",
        label=label,
        marker=look["marker"],
        markersize=10 if look["marker"] == "|" else 6.5,
        markerfacecolor=face,
        markeredgecolor=edge,
        markeredgewidth=1.5 if look["marker"] == "|" else 1.0,
    )
