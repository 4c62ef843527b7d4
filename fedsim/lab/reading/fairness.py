"""Fairness of selections: tasks of a round (or of a version, where there are none), and no reports, profiling or tests."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedsim.arrays import Floats
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def jain_index(values: Iterable[float], among: int | None = None) -> float:
    """(sum x)^2 / (n sum x^2), 1/n to 1, NaN where nobody has any; n is ``among``, or the number of values.

    Source: Jain, Chiu and Hawe, "A quantitative measure of fairness and discrimination" (1984).
    """
    known = np.array([*values], dtype=np.float64)
    squares = (among or len(known)) * float(np.square(known).sum())
    return float(known.sum()) ** 2 / squares if squares else math.nan


def worst_decile(values: Iterable[float]) -> float:
    """Mean of the lowest tenth (at least one) of the values; NaN where there are none."""
    ordered = np.sort([*values])
    return float(ordered[: math.ceil(len(ordered) / 10)].mean()) if len(ordered) else math.nan


def jain_over_time(run: RunFolder) -> tuple[Floats, Floats]:
    """The end of each round (s), and Jain's index of all selections until then, over all devices of the population."""
    from fedsim.lab.reading.history import History

    events = History(run).of("task-start", "round")
    ends = events["kind"] == "round"
    asked = ~ends & events["round"].notna()
    before = events[asked].groupby("device").cumcount().reindex(events.index, fill_value=0)
    squares = ((2 * before + 1) * asked).cumsum()
    index = asked.cumsum() ** 2 / (run.population * squares)
    return events["time"][ends].to_numpy().astype(np.float64), index[ends].to_numpy().astype(np.float64)


def selections(run: RunFolder) -> "pd.DataFrame":
    """The selections in order of their tasks' ends: ``device``, its ``group`` then (NaN for none), and ``valid``.

    An update is valid if it was not late or lost, and an epoch was finished.
    """
    from fedsim.lab.reading.history import History, parsed

    history = History(run)
    trained, ended = history.steps[history.steps["step"] == "train"], history.of("task-end").dropna(subset="round")
    idle = trained["task"][[not parsed(data).get("epochs") for data in trained["data"]]]
    return ended[["device", "group"]].assign(valid=(ended["outcome"] == "done") & ~ended["task"].isin(idle))
