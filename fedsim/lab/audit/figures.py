"""Are the figures of the summary those of the rounds, and are a round's figures possible?"""

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.lab.audit.evidence import Evidence, findings, shown
from fedsim.records import folder as files

_SHARES = ("accuracy", "purity", "nmi", "mean_accuracy")
_AT_LEAST_NONE = ("discrepancy", "discrepancy_start", "consensus")


def metrics_agree(evidence: Evidence) -> Iterator[str]:
    """The last and the best value of each metric are those of the rounds, and whether the best
    is the most or the least.
    """
    stated = evidence.run.summary.get("metrics", {})
    for name, entry in stated.items():
        column = evidence.frame(files.ROUNDS, [name])[name].astype(np.float64).dropna()
        last = shown(column.iat[-1]) if len(column) else None
        best = {"most": column.max, "least": column.min}.get(entry["best_is"])
        if best is None:
            yield (
                f"metrics.{name}.best_is is {json.dumps(entry['best_is'])}; there are only 'most' "
                "and 'least'"
            )
            continue
        due = shown(best()) if len(column) else None
        for key, value in (("final", last), ("best", due)):
            if entry[key] != value:
                yield (
                    f"metrics.{name}.{key} is {entry[key]!r} in the summary, by the rounds "
                    f"{value!r}"
                )
        stop = evidence.run.scenario["stop"].get("metrics", {}).get(name)
        reached = (
            stop is not None
            and (
                column.iloc[:-1] >= stop if entry["best_is"] == "most" else column.iloc[:-1] <= stop
            ).any()
        )
        if reached:
            yield (
                f"the {name} at which the run was to stop, {stop!r}, was reached before its last "
                "round"
            )


def accuracies_agree(evidence: Evidence) -> Iterator[str]:
    """The summary has the last and the best accuracy of the rounds, or says why there is none."""
    measured = evidence.rounds["accuracy"].dropna()
    stated = evidence.run.summary["accuracy"]
    last = shown(measured.iat[-1]) if len(measured) else None
    best = shown(measured.max()) if len(measured) else None
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
        column = evidence.rounds[name].astype(np.float64)
        yield from _outside(
            f"{name} of round {{row}} is {{value!r}}; it is a share", column, 0.0, 1.0
        )
    for name in _AT_LEAST_NONE:
        column = evidence.rounds[name].astype(np.float64)
        yield from _outside(
            f"{name} of round {{row}} is {{value!r}}; it is a distance", column, 0.0, np.inf
        )
    column = evidence.devices["accuracy"].astype(np.float64)
    yield from _outside(
        "the accuracy of device {row} is {value!r}; it is a share", column, 0.0, 1.0
    )


def _outside(text: str, column: "pd.Series[float]", least: float, most: float) -> Iterator[str]:
    yield from findings(text, pd.DataFrame({"value": column}), (column < least) | (column > most))
