"""The part of a run that a timeline shows: a span of simulated time, and some devices in an order."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from fedsim.analysis.history import History
from fedsim.analysis.style import NothingToDrawError, PictureError, Unit, evenly, time_unit
from fedsim.arrays import Ints
from fedsim.errors import nearest

Order = Literal["speed", "first", "number"]
ORDERS: tuple[str, ...] = get_args(Order)
Span = tuple[float, float]

MOST_LANES = 1500  # more would be thinner than a pixel
_GAPPED_LANES = 150


@dataclass(frozen=True)
class View:
    """The part of a run that is shown.

    Attributes:
        history: of the whole run.
        start, end: in simulated seconds. Records at ``start`` belong to the time before.
        devices: the devices shown, from the top lane to the bottom one.
        at_work: how many devices worked within the span, shown or not.
        there, away, steps, tasks: tables of the history cut to the devices, with ``lane``, the last two to the span as well;
            ``away`` is None where nobody knows.
        rounds, acts: tables of the history cut to the span.
    """

    history: History
    start: float
    end: float
    devices: Ints
    at_work: int
    there: pd.DataFrame
    away: pd.DataFrame | None
    steps: pd.DataFrame
    tasks: pd.DataFrame
    rounds: pd.DataFrame
    acts: pd.DataFrame

    @property
    def half_lane(self) -> float:
        """Half of a bar's height in its lane; thin lanes have no gap between them."""
        return 0.4 if len(self.devices) <= _GAPPED_LANES else 0.5

    @property
    def span(self) -> float:
        """How much simulated time is shown (s)."""
        return self.end - self.start

    @property
    def unit(self) -> Unit:
        """The unit of the time axis."""
        return time_unit(self.span)


def look_at(history: History, span: Span | None = None, most: int = MOST_LANES, order: str = "speed") -> View:
    """Choose what to show.

    Args:
        history: what happened. If it is known of some devices when they could be reached, only those have lanes.
        span: from and to, in simulated seconds; None for the whole run.
        most: show at most so many of the devices that worked, evenly spread over the order.
        order: ``speed`` (fastest on top), ``first`` (who worked first on top) or ``number``.

    Raises:
        PictureError: there is no such order, fewer than one device is asked for, or the span ends before it begins.
        NothingToDrawError: nobody worked within the span, or it is empty.
    """
    if order not in ORDERS:
        raise PictureError(f"the order is {order!r}; allowed are {', '.join(ORDERS)}{nearest(order, ORDERS)}")
    if most < 1:
        raise PictureError(f"the number of devices is {most}; allowed is 1 or more")
    start, end = span or (0.0, history.end)
    if 0 <= start == end:
        raise NothingToDrawError(f"no simulated time passes from {start:g} s to {end:g} s, so there is no timeline to draw")
    if not 0 <= start < end:
        raise PictureError(f"the window is {start:g} s to {end:g} s; it must begin at 0 s or later and end after that")
    since = start if start > 0 else -np.inf  # what ends at the very beginning of the run belongs to it
    steps = history.steps[(history.steps["end"] > since) & (history.steps["start"] < end)]
    tables = (history.tasks, history.rounds, history.acts)
    tasks, rounds, acts = (table[table["end"].between(since, end, inclusive="right")] for table in tables)
    at_work = _sorted(steps, history.population, order)
    if not len(at_work):
        raise NothingToDrawError(f"no device worked between {start:g} s and {end:g} s, so there is no timeline to draw")
    known = at_work[np.isin(at_work, history.known)] if len(history.known) else at_work
    shown = known[evenly(len(known), most)]
    lane = pd.Series(np.arange(len(shown)), index=shown)
    there, away, steps, tasks = (on_lanes(table, lane) for table in (history.there, history.away, steps, tasks))
    cut = (there, away if len(history.known) else None, steps, tasks, rounds, acts)
    return View(history, start, end, shown, len(at_work), *cut)


def span_of_rounds(history: History, first: int, stop: int) -> Span:
    """The simulated time of rounds ``first`` to ``stop - 1``, numbered from 0 as in the records.

    Raises:
        PictureError: the run has no such rounds.
    """
    numbers, ends = history.rounds["round"], history.rounds["end"]
    inside = ends[(numbers >= first) & (numbers < stop)]
    if inside.empty:
        last = f"rounds 0 to {numbers.max()}" if len(numbers) else "no finished round"
        raise PictureError(f"rounds {first}:{stop} are not in this run, which has {last}")
    before = ends[numbers < first]
    return (float(before.max()) if len(before) else 0.0), float(inside.max())


def on_lanes(rows: pd.DataFrame, lane: "pd.Series[Any]") -> pd.DataFrame:
    """The rows of the devices that have a lane, with the column ``lane``."""
    shown = rows[rows["device"].isin(lane.index)]
    return shown.assign(lane=shown["device"].map(lane).astype(int))


def _sorted(steps: pd.DataFrame, population: pd.DataFrame, order: str) -> Ints:
    """The devices that did these steps, in order."""
    if order == "speed":
        speeds = population.loc[population.index.isin(steps["device"]), "speed"]
        return speeds.sort_values(ascending=False, kind="stable").index.to_numpy(np.int64)
    first = steps.groupby("device")["start"].min()
    return (first.sort_values(kind="stable") if order == "first" else first).index.to_numpy(np.int64)
