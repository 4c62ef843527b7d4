"""Checks of the best round, the models saved in it, and the stop after rounds without progress."""

import json
import math
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.common.tensor_files import StoredTensor
from fedsim.lab.audit.evidence import Evidence
from fedsim.records import folder as files

_NO_PROGRESS = r"no progress of \S+ in (?P<rounds>\d+) rounds"
"""Regular expression for the reason of a run that ended without progress."""


def check_progress(evidence: Evidence) -> Iterator[str]:
    """Yield findings if the run's best round, best models or end contradict the rounds' tests.

    The best round is the one with the best value of a monitored metric. It is checked if the
    scenario keeps the models of the best round (``evaluation.keep_best``), or ends the run after
    some rounds without a better value (``stop.patience``). For other scenarios, the summary must
    state no best round.
    """
    run = evidence.run
    stop = run.scenario["stop"]
    patience = stop.get("patience")
    keeps_best = run.scenario.get("evaluation", {}).get("keep_best", False)
    stated = run.summary.get("best")
    if patience is None and not keeps_best:
        if stated is not None:
            yield "the summary has a best round, and the scenario compares no tests"
        return
    if stated is None:
        yield "the summary has no best round, and the scenario compares tests"
        return
    monitor = stated["monitor"]
    if monitor != stop.get("monitor", monitor):
        yield f"the best round is by {monitor!r}, the scenario says {stop['monitor']!r}"
    tests = _monitored_values(evidence, monitor)
    best_round, best_value = _find_best(tests)
    value = stated["value"]
    stated_value = None if value is None else abs(value)  # ``_find_best`` gives no sign
    if (stated["round"], stated_value) != (best_round, best_value):
        yield (
            f"the summary's best {monitor} is {value!r} of round {stated['round']}, by the rounds "
            f"it is in round {best_round}"
        )
    if patience is not None:
        yield from _check_patience(evidence, tests, patience, stop.get("min_delta", 0.0))
    yield from _check_models(evidence, stated["round"] if keeps_best else None)


def _monitored_values(evidence: Evidence, monitor: str) -> "pd.Series[float]":
    """Return the monitored metric of each tested round, negated if smaller values are better.

    Args:
        evidence: the run folder.
        monitor: column of the table of rounds, such as ``accuracy``.

    Returns:
        Values indexed by round, of which greater ones are better; rounds without a value are left
        out.
    """
    column = evidence.frame(files.ROUNDS, ["round", monitor])
    values = column.set_index("round")[monitor].astype(np.float64)
    metric = evidence.run.summary.get("metrics", {}).get(monitor, {})
    is_least = monitor == "loss" or metric.get("best_is") == "least"
    return (-values if is_least else values).dropna()


def _find_best(tests: "pd.Series[float]") -> tuple[int | None, float | None]:
    """Return the first round with the greatest finite value, and the value without its sign.

    Values are negated if smaller is better, so the sign tells nothing.

    Args:
        tests: monitored values by round, of which greater ones are better.

    Returns:
        Round and value; both None if no value is finite.
    """
    finite = tests[np.isfinite(tests)]
    if not len(finite):
        return None, None
    best = int(finite.to_numpy().argmax())
    return int(finite.index[best]), abs(float(finite.iloc[best]))


def _check_patience(
    evidence: Evidence, tests: "pd.Series[float]", patience: int, min_delta: float
) -> Iterator[str]:
    """Yield findings if the run went on for too long without progress, or ended too early.

    Args:
        evidence: the run folder.
        tests: monitored values by round, of which greater ones are better.
        patience: count of rounds without progress after which the run has to end.
        min_delta: a value is progress if it exceeds the best one so far by more than this.
    """
    best = -math.inf
    progress_round: int | None = None
    rounds_without_progress = 0
    for number, value in zip(tests.index.tolist(), tests.tolist(), strict=True):
        # the count is from the previous test, at which the run should have ended
        if rounds_without_progress >= patience:
            yield f"round {number} was begun after {rounds_without_progress} rounds without progress"
            return
        # the first finite value is progress, whatever it is
        is_progress = math.isfinite(value) and (best == -math.inf or value > best + min_delta)
        if is_progress:
            best = value
        # patience counts from the first test, even if its value is not finite
        if is_progress or progress_round is None:
            progress_round = number
        rounds_without_progress = number - progress_round
    stopped = str(evidence.run.summary["stopped"])
    reason = re.fullmatch(_NO_PROGRESS, stopped)
    if reason is None:
        return
    is_early = rounds_without_progress < patience
    if is_early or int(reason["rounds"]) != rounds_without_progress:
        yield (
            f"the run stopped as {json.dumps(stopped)}, and its last progress was in round "
            f"{progress_round}"
        )


def _check_models(evidence: Evidence, best_round: int | None) -> Iterator[str]:
    """Yield findings on the models that the run saved at its best test.

    They have to exist, and to equal the last models if the last round was the best.

    Args:
        evidence: the run folder.
        best_round: index of the best round; None if no best models are expected.
    """
    run = evidence.run
    if run.summary["status"] == "failed":
        return
    models = run.stored_models(files.BEST)
    has_models = bool(models)
    needs_models = best_round is not None
    if has_models != needs_models:
        yield f"there are {len(models)} files of best models, and the best round is {best_round}"
    last_round = run.summary["rounds"] - 1
    if best_round != last_round:
        return
    last_models = evidence.models
    for name, tensors in models.items():
        if not _are_equal(tensors, last_models.get(name, {})):
            yield f"the best round is the last one, and {files.BEST}/{name} is another model"


def _are_equal(tensors: dict[str, StoredTensor], expected: dict[str, StoredTensor]) -> bool:
    """Whether a model's tensors equal the expected tensors of the same names, to the bit.

    More expected tensors are allowed.
    """
    if not tensors.keys() <= expected.keys():
        return False
    return all(
        np.array_equal(values.read(), expected[key].read()) for key, values in tensors.items()
    )
