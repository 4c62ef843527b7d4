"""Fairness of selections: tasks of a round (or of a version, where there are none), and no
reports, profiling or tests.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.files import parse_json
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def jain_index(values: Iterable[float], among: int | None = None) -> float:
    """(sum x)^2 / (n sum x^2), 1/n to 1, NaN if all are 0; n is ``among``, or the number of values.

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
    """The end of each round (s), and Jain's index of all selections until then, over all devices
    of the population.
    """
    import pandas as pd

    names = ["time", "kind", "device", "round"]
    events = pd.DataFrame(run.events_of(("task-start", "round"), names), columns=names)
    ends = events["kind"] == "round"
    asked = ~ends & events["round"].notna()
    before = events[asked].groupby("device").cumcount().reindex(events.index, fill_value=0)
    squares = ((2 * before + 1) * asked).cumsum()
    index = asked.cumsum() ** 2 / (run.population * squares)
    return events["time"][ends].to_numpy().astype(np.float64), index[ends].to_numpy().astype(
        np.float64
    )


def selections(run: RunFolder) -> "pd.DataFrame":
    """The selections in order of their tasks' ends: ``device``, its ``group`` then (NaN for
    none), and ``valid``.

    An update is valid if it was not late or lost, and an epoch was finished.
    """
    import pandas as pd

    names = ["kind", "task", "device", "round", "group", "step", "outcome", "data"]
    events = pd.DataFrame(run.events_of(("step-end", "task-end"), names), columns=names)
    trained = events[(events["kind"] == "step-end") & (events["step"] == "train")]
    idle = trained["task"][
        trained["data"].map(lambda data: not parse_json(data)["epochs"]).astype(bool)
    ]
    ended = events[(events["kind"] == "task-end") & events["round"].notna()]
    return ended[["device", "group"]].assign(
        valid=(ended["outcome"] == "done") & ~ended["task"].isin(idle)
    )
