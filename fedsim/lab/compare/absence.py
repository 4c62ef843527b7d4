"""Reasons why a line (a variant or a run) has no figure of a measure, such as "not reached"."""

from collections.abc import Iterable, Sequence

from fedsim.lab.compare.lines import ComparedLine
from fedsim.lab.compare.measures import BEST, Measure, Values

_NOT_REACHED = "not reached"
_NOT_MEASURED = "not measured"


def explain_absence(measure: Measure, line: ComparedLine, values: Sequence[Values]) -> str:
    """Return the reason why a line (variant or run) has no mean of a measure, for a table's cell.

    The reason is empty if the line has a mean, or if no reason is known.

    Args:
        measure: the measure, such as the time to a target.
        line: the line.
        values: values of all measures of each finished run of the line.
    """
    if not line.is_begun:
        return "not begun"
    if not line.runs:
        return "no run is done"
    count = sum(of_run[measure.name] is not None for of_run in values)
    if count == len(values):
        return ""
    is_pooled = bool(line.runs[0].scenario.get("data", {}).get("pooled_from"))
    if is_pooled and not measure.is_of_pooled_data:
        return "pooled data"
    if count:
        return f"in {count} of {len(values)} runs"
    if measure.target is not None:
        is_measured = measure.target.metric != "accuracy" or has_accuracy(values)
        return _NOT_REACHED if is_measured else _NOT_MEASURED
    if measure.topic == "fairness and groups":  # a run without groups has no such figure to miss
        return ""
    return _NOT_MEASURED


def has_accuracy(values: Iterable[Values]) -> bool:
    """Return whether any run measured an accuracy.

    Args:
        values: values of all measures of each run.
    """
    return any(of_run[BEST.name] is not None for of_run in values)
