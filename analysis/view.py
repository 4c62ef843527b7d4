"""What part of a run a timeline shows: a span of simulated time, and which devices, in which order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsim.analysis.activity import Activity
from fedsim.analysis.presence import Presence
from fedsim.analysis.style import NothingToDrawError, PictureError, evenly
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
        start, end: in simulated seconds. What ended at ``start`` belongs to what came before.
        devices: the devices shown, from the top lane to the bottom one.
        at_work: how many devices worked within the span, shown or not.
        there, away: stretches of time in which each was there, and of these the ones in which it could not be reached, with
            ``lane``, ``start`` and ``end``; ``away`` is None where nobody knows.
        steps, tasks, rounds, acts: the activity's tables cut down to the span and the devices (``rounds`` and ``acts`` to the
            span alone), with a column ``lane`` where there is a device.
    """

    start: float
    end: float
    devices: NDArray[np.int64]
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


def look_at(
    activity: Activity,
    population: pd.DataFrame,
    presence: Presence,
    span: Span | None = None,
    most: int = MOST_LANES,
    order: str = "speed",
) -> View:
    """Choose what to show.

    Args:
        activity: what happened.
        population: the devices' table (``device``, ``speed``).
        presence: when they were there. If it is known of some devices when they could be reached, only those have lanes.
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
    start, end = span or (0.0, activity.end)
    if 0 <= start == end:
        raise NothingToDrawError(f"no simulated time passes from {start:g} s to {end:g} s, so there is no timeline to draw")
    if not 0 <= start < end:
        raise PictureError(f"the window is {start:g} s to {end:g} s; it must begin at 0 s or later and end after that")
    since = start if start > 0 else -np.inf  # what ends at the very beginning of the run belongs to it
    steps = activity.steps[(activity.steps["end"] > since) & (activity.steps["start"] < end)]
    tables = (activity.tasks, activity.rounds, activity.acts)
    tasks, rounds, acts = (table[table["end"].between(since, end, inclusive="right")] for table in tables)
    at_work = _SORTS[order](steps, population)
    if not len(at_work):
        raise NothingToDrawError(f"no device worked between {start:g} s and {end:g} s, so there is no timeline to draw")
    known = at_work[np.isin(at_work, presence.known)] if len(presence.known) else at_work
    shown = known[evenly(len(known), most)]
    lane = pd.Series(np.arange(len(shown)), index=shown)
    there, away, steps, tasks = (_on_lanes(table, lane) for table in (presence.there, presence.away, steps, tasks))
    knows = len(presence.known) > 0
    return View(start, end, shown, len(at_work), there, away if knows else None, steps, tasks, rounds, acts)


def span_of_rounds(activity: Activity, first: int, stop: int) -> Span:
    """The simulated time of rounds ``first`` to ``stop - 1``, numbered from 0 as in the records.

    Raises:
        PictureError: the run has no such rounds.
    """
    numbers, ends = activity.rounds["round"], activity.rounds["end"]
    inside = ends[(numbers >= first) & (numbers < stop)]
    if inside.empty:
        last = f"rounds 0 to {numbers.max()}" if len(numbers) else "no finished round"
        raise PictureError(f"rounds {first}:{stop} are not in this run, which has {last}")
    before = ends[numbers < first]
    return (float(before.max()) if len(before) else 0.0), float(inside.max())


def _on_lanes(rows: pd.DataFrame, lane: "pd.Series[int]") -> pd.DataFrame:
    shown = rows[rows["device"].isin(lane.index)]
    return shown.assign(lane=shown["device"].map(lane).astype(int))


def _by_speed(steps: pd.DataFrame, population: pd.DataFrame) -> NDArray[np.int64]:
    rows = population[population["device"].isin(steps["device"])]
    return rows.sort_values("speed", ascending=False, kind="stable")["device"].to_numpy(np.int64)


def _by_first_work(steps: pd.DataFrame, population: pd.DataFrame) -> NDArray[np.int64]:
    return steps.groupby("device")["start"].min().sort_values(kind="stable").index.to_numpy(np.int64)


def _by_number(steps: pd.DataFrame, population: pd.DataFrame) -> NDArray[np.int64]:
    return np.sort(steps["device"].unique()).astype(np.int64)


_SORTS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], NDArray[np.int64]]] = {
    "speed": _by_speed,
    "first": _by_first_work,
    "number": _by_number,
}
