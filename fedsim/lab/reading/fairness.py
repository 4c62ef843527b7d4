"""Fairness of a run: how evenly it selected devices, and how equal accuracies are.

A selection is a task of a round, or of a model version if the strategy has no rounds. A task and
its continuations in the same round are one selection. Tasks outside of rounds, such as reports,
profiling and tests, are no selections.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.files import parse_json
from fedsim.lab.reading.record_data import parse_data
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def jain_index(values: Iterable[float], among: int | None = None) -> float:
    """Return Jain's index of fairness, (sum x)^2 / (n sum x^2).

    Source: Jain, Chiu and Hawe, "A quantitative measure of fairness and discrimination" (1984).

    Args:
        values: the values x; zeros may be omitted if ``among`` counts them.
        among: the count n, by default the count of ``values``.

    Returns:
        The index, from 1/n to 1; NaN if all values are 0.
    """
    array = np.array([*values], dtype=np.float64)
    squares = (among or len(array)) * float(np.square(array).sum())
    return float(array.sum()) ** 2 / squares if squares else math.nan


def worst_decile(values: Iterable[float]) -> float:
    """Return the mean of the lowest tenth of the values; NaN if there are no values.

    The count of the lowest values is rounded up.
    """
    ordered = np.sort([*values])
    if not len(ordered):
        return math.nan
    return float(ordered[: math.ceil(len(ordered) / 10)].mean())


def selectable(run: RunFolder) -> int:
    """Return the count of devices that a run's strategy may select, also before they arrive.

    Devices that only test models (``population.tested_only``) are left out.
    """
    return run.population - int(run.scenario["population"].get("tested_only") or 0)


def jain_over_time(run: RunFolder) -> tuple[Floats, Floats]:
    """Return how evenly a run had selected its devices by the end of each round, as Jain's index.

    The index is over the devices' counts of selections up to that time. It is 1 if all devices were
    selected equally often, and 1/n if only one of n devices was selected. Devices that are tested
    and never train do not count.

    Args:
        run: the run folder.

    Returns:
        Ends of the rounds (s), and indices; float64 [rounds] each.
    """
    import pandas as pd

    names = ["time", "kind", "device", "round", "data"]
    events = pd.DataFrame(run.events_of(("task-start", "round"), names), columns=names)
    ends = events["kind"] == "round"
    is_selection = _is_selection(events)
    earlier = events[is_selection].groupby("device").cumcount().reindex(events.index, fill_value=0)
    # a device's count x becomes x + 1, so that the sum of squares grows by 2 x + 1
    sum_of_squares = ((2 * earlier + 1) * is_selection).cumsum()
    index = is_selection.cumsum() ** 2 / (selectable(run) * sum_of_squares)
    times = events["time"][ends].to_numpy().astype(np.float64)
    return times, index[ends].to_numpy().astype(np.float64)


def selections(run: RunFolder) -> "pd.DataFrame":
    """Return a DataFrame of the selections of devices, in order of their ends.

    A selection is a task of a round, together with the tasks that continue it. Columns are
    ``device``, its ``group`` at the end of the selection (NaN for no group), and ``valid``: whether
    the update was neither late nor lost, and has a finished epoch.
    """
    import pandas as pd

    names = ["kind", "task", "device", "round", "group", "step", "outcome", "data"]
    kinds = ("task-start", "step-end", "task-end")
    events = pd.DataFrame(run.events_of(kinds, names), columns=names)
    # number of the device's selection that an event belongs to, from 1
    selection = _is_selection(events).groupby(events["device"]).cumsum()
    ends = events[(events["kind"] == "task-end") & events["round"].notna()]
    # a task and its continuations are one selection, which ends with the last of them
    ends = ends.assign(selection=selection).drop_duplicates(["device", "selection"], keep="last")
    trainings = events[(events["kind"] == "step-end") & (events["step"] == "train")]
    has_no_epoch = trainings["data"].map(lambda data: not parse_json(data)["epochs"]).astype(bool)
    is_unfinished = ends["task"].isin(trainings["task"][has_no_epoch])
    return ends[["device", "group"]].assign(valid=(ends["outcome"] == "done") & ~is_unfinished)


def _is_selection(events: "pd.DataFrame") -> "pd.Series[bool]":
    """Return whether each record begins a task of a round that continues no other task; [records].

    Args:
        events: records, with the columns ``kind``, ``round`` and ``data``.
    """
    begins = (events["kind"] == "task-start") & events["round"].notna()
    continues = events["data"][begins].map(lambda text: "continues" in parse_data(text))
    return begins & ~continues.reindex(events.index, fill_value=False).astype(bool)
