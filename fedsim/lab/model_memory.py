"""Memory and disk that the models of a round need, and the part of a scenario that needs most."""

from typing import NamedTuple

from fedsim.common.units import show_bytes
from fedsim.learning.scratch import ROOM
from fedsim.learning.streaming import WAITING
from fedsim.running.assembly import Run


class Together(NamedTuple):
    """Greatest count of models that one call of a function takes, with the function's name."""

    models: int = 0
    function: str = ""


def model_memory_lines(run: Run, together: Together, workers: int) -> list[str]:
    """Return a text line on the memory and disk that the models of a round need.

    Args:
        run: the run.
        together: greatest count of models that one call of a function takes.
        workers: count of workers.

    Returns:
        List with a single line; empty if all models of a round fit in memory.
    """
    size = run.learner.bytes
    cohort = run.at_once
    room = run.scenario.training.memory or ROOM
    if size * cohort <= room:
        return []
    # models in memory: start, sum (twice the size), its result, and results of the workers
    models = 4 + WAITING * workers + int(room / size)
    reason = "sums take a client's model at a time"
    needed = _explain_need(run)
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


def _explain_need(run: Run) -> str:
    """Return the reason why the server needs all updates at once; empty if no part gives one."""
    params = run.scenario.strategy
    parts = (getattr(params, "aggregation", None), getattr(params, "selection", None), params)
    for part in parts:
        reason = getattr(part, "looks_at_each", None)
        if reason:
            return str(reason).partition(";")[0]
    return ""
