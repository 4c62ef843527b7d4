"""Checks that the summary's figures agree with the rounds, and are possible."""

import json
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import plain_value, report
from fedsim.records import folder as files

_SHARES = ("accuracy", "purity", "nmi", "mean_accuracy")
_DISTANCES = ("discrepancy", "discrepancy_start", "consensus")


def metrics_agree(evidence: Evidence) -> Iterator[str]:
    """The last and the best value of each metric agree with the rounds, and the run stops in time."""
    for name, entry in evidence.run.summary.get("metrics", {}).items():
        column = evidence.frame(files.ROUNDS, [name])[name].astype(np.float64).dropna()
        best_is = entry["best_is"]
        if best_is == "most":
            best = column.max()
        elif best_is == "least":
            best = column.min()
        else:
            yield (
                f"metrics.{name}.best_is is {json.dumps(best_is)}; there are only 'most' "
                "and 'least'"
            )
            continue
        due = {"final": _last(column), "best": plain_value(best) if len(column) else None}
        for key, value in due.items():
            if entry[key] != value:
                yield (
                    f"metrics.{name}.{key} is {entry[key]!r} in the summary, by the rounds "
                    f"{value!r}"
                )
        stop = evidence.run.scenario["stop"].get("metrics", {}).get(name)
        if stop is None:
            continue
        before_last = column.iloc[:-1]
        reached = before_last >= stop if best_is == "most" else before_last <= stop
        if reached.any():
            yield (
                f"the {name} at which the run was to stop, {stop!r}, was reached before its last "
                "round"
            )


def _last(column: "pd.Series[float]") -> object:
    return plain_value(column.iat[-1]) if len(column) else None


def accuracies_agree(evidence: Evidence) -> Iterator[str]:
    """The summary has the last and the best accuracy of the rounds, or why there is none."""
    measured = evidence.rounds["accuracy"].dropna()
    stated = evidence.run.summary["accuracy"]
    last = _last(measured)
    best = plain_value(measured.max()) if len(measured) else None
    if stated["final"] != last or stated["best"] != best:
        yield f"the summary's accuracy is {stated}, the rounds' last {last!r} and best {best!r}"
    if last is not None and "no_accuracy" in evidence.run.summary:
        yield (
            f"the summary says that no accuracy was measured, and round {measured.index[-1]} has "
            "one"
        )


def figures_possible(evidence: Evidence) -> Iterator[str]:
    """Shares are from 0 to 1 and distances not below 0, in rounds and of devices."""
    for name in _SHARES:
        text = f"{name} of round {{row}} is {{value!r}}; it is a share"
        yield from _report_outside(text, evidence.rounds[name], 1.0)
    for name in _DISTANCES:
        text = f"{name} of round {{row}} is {{value!r}}; it is a distance"
        yield from _report_outside(text, evidence.rounds[name], math.inf)
    text = "the accuracy of device {row} is {value!r}; it is a share"
    yield from _report_outside(text, evidence.devices["accuracy"], 1.0)


def _report_outside(text: str, values: "pd.Series[float]", most: float) -> Iterator[str]:
    """Report values below 0 or above ``most``."""
    column = values.astype(np.float64)
    yield from report(text, pd.DataFrame({"value": column}), (column < 0.0) | (column > most))
