"""Memory and disk that a round's models take, and the part of the scenario that needs most."""

from typing import NamedTuple

from fedsim.common.units import show_bytes
from fedsim.learning.scratch import ROOM
from fedsim.learning.streaming import WAITING
from fedsim.running.assembly import Run


class Together(NamedTuple):
    """The most models that one function of a run takes at once."""

    models: int = 0
    function: str = ""


def model_memory_lines(run: Run, together: Together, workers: int) -> list[str]:
    """Describe the models in memory and on disk in a round.

    Args:
        run: the run.
        together: the most models that a function takes at once.
        workers: number of workers.

    Returns:
        One line; none if all models of a round have room in memory.
    """
    size = run.learner.bytes
    cohort = run.at_once
    if size * cohort <= ROOM:
        return []
    # the start, a sum of twice the size, its result, and the results of workers
    models = 4 + WAITING * workers + int(ROOM / size)
    reason = "sums take a client's model at a time"
    needed = _reason_for_all(run)
    if needed or together.models >= cohort:
        models = max(cohort, together.models) + 1
        reason = needed or f"{together.function} takes {together.models} models together"
    line = f"a round has {models} models in memory, {show_bytes(models * size)}: {reason}"
    if not needed:
        line += (
            f"; a round that is tested has up to {show_bytes(size * cohort)} in a file for "
            "temporary files (TMPDIR)"
        )
    return [line]


def _reason_for_all(run: Run) -> str:
    """Why the server needs all updates at once; empty if it does not say so."""
    params = run.scenario.strategy
    parts = (getattr(params, "aggregation", None), getattr(params, "selection", None), params)
    for part in parts:
        reason = getattr(part, "looks_at_each", None)
        if reason:
            return str(reason).partition(";")[0]
    return ""
