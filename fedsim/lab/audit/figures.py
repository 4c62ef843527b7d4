"""Checks that the summary's accuracy and metrics agree with the rounds, and are possible."""

import json
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import plain_value, report_rows
from fedsim.records import folder as files

_SHARE_COLUMNS = ("accuracy", "purity", "nmi", "mean_accuracy")
_DISTANCE_COLUMNS = ("discrepancy", "discrepancy_start", "consensus")


def check_metrics(evidence: Evidence) -> Iterator[str]:
    """Yield findings for metrics whose last or best value differs between summary and rounds.

    A metric that reached the scenario's stop value before the last round is a finding too.
    """
    for name, stated in evidence.run.summary.get("metrics", {}).items():
        tests = evidence.frame(files.ROUNDS, [name])[name].astype(np.float64).dropna()
        best_is = stated["best_is"]
        if best_is not in ("most", "least"):
            yield (
                f"metrics.{name}.best_is is {json.dumps(best_is)}; there are only 'most' "
                "and 'least'"
            )
            continue
        best = None
        if len(tests):
            best = plain_value(tests.max() if best_is == "most" else tests.min())
        for key, expected in (("final", _last_value(tests)), ("best", best)):
            if stated[key] != expected:
                yield (
                    f"metrics.{name}.{key} is {stated[key]!r} in the summary, by the rounds "
                    f"{expected!r}"
                )
        yield from _check_stop(evidence, name, tests, best_is)


def _check_stop(
    evidence: Evidence, name: str, column: "pd.Series[float]", best_is: str
) -> Iterator[str]:
    """Yield a finding if a round before the last one reached the metric's stop value.

    Args:
        evidence: the run folder, whose scenario may set a stop value.
        name: name of the metric.
        column: the metric's values in the rounds that have a value.
        best_is: ``most`` if greater values are better, ``least`` if smaller ones are.
    """
    stop = evidence.run.scenario["stop"].get("metrics", {}).get(name)
    if stop is None:
        return
    before_last = column.iloc[:-1]
    reached = before_last >= stop if best_is == "most" else before_last <= stop
    if reached.any():
        yield (
            f"the {name} at which the run was to stop, {stop!r}, was reached before its last round"
        )


def _last_value(column: "pd.Series[float]") -> object:
    """Return the last value of a column; None if the column is empty."""
    return plain_value(column.iat[-1]) if len(column) else None


def check_accuracies(evidence: Evidence) -> Iterator[str]:
    """Yield findings if the summary's last or best accuracy differs from the rounds' table.

    It is a finding, too, if the summary states that no accuracy was measured (``no_accuracy``), but
    a round has one.
    """
    measured = evidence.rounds["accuracy"].dropna()
    stated = evidence.run.summary["accuracy"]
    last = _last_value(measured)
    best = plain_value(measured.max()) if len(measured) else None
    if stated["final"] != last or stated["best"] != best:
        yield f"the summary's accuracy is {stated}, the rounds' last {last!r} and best {best!r}"
    if last is not None and "no_accuracy" in evidence.run.summary:
        yield (
            f"the summary says that no accuracy was measured, and round {measured.index[-1]} has "
            "one"
        )


def check_figures(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each impossible metric in the tables of rounds and devices.

    Shares, such as accuracies, have to be in 0..1; distances, such as a consensus distance, must
    not be negative.
    """
    for name in _SHARE_COLUMNS:
        template = f"{name} of round {{row}} is {{value!r}}; it is a share"
        yield from _report_outside(template, evidence.rounds[name], 1.0)
    for name in _DISTANCE_COLUMNS:
        template = f"{name} of round {{row}} is {{value!r}}; it is a distance"
        yield from _report_outside(template, evidence.rounds[name], math.inf)
    template = "the accuracy of device {row} is {value!r}; it is a share"
    yield from _report_outside(template, evidence.devices["accuracy"], 1.0)


def _report_outside(template: str, values: "pd.Series[float]", most: float) -> Iterator[str]:
    """Yield a finding for each value below 0 or above ``most``.

    Args:
        template: format string of the finding, with ``row`` and ``value`` in braces.
        values: the values; NaN is allowed.
        most: the largest allowed value.
    """
    column = values.astype(np.float64)
    yield from report_rows(
        template, pd.DataFrame({"value": column}), (column < 0.0) | (column > most)
    )
