"""How long devices computed, and for how much of it there was nothing to show."""

import json
from typing import NamedTuple

from fedsim.records.reading import RunFolder

_COMPUTING = ("train", "evaluate", "compute")
_KINDS = ("assign", "step-start", "step-end", "task-end")
_COLUMNS = ("time", "kind", "task", "group", "step", "outcome", "data")


class Work(NamedTuple):
    """What a run's devices computed.

    Attributes:
        seconds: all of it, training and evaluation (device-seconds).
        wasted: the part whose result was not used: all that a task computed which ended late, lost, left or with the run,
            and of the others what came after the last epoch that counted (device-seconds).
        moves: how often a device changed from one group into another; None where there are no groups. A group that is split
            takes its devices with it: none of them moves.
    """

    seconds: float
    wasted: float
    moves: int | None


def read_work(run: RunFolder) -> Work:
    """Add up a run's computing, and count the moves between its groups.

    Raises:
        RunFolderError: its events are missing or damaged.
    """
    begun: dict[int, float] = {}
    computed: dict[int, list[float]] = {}  # of each open task: seconds in all, and those that count if it is done
    seconds = wasted = 0.0
    moves: int | None = None
    for time, kind, task, group, step, outcome, data in run.events_of(_KINDS, _COLUMNS):
        if kind == "assign":
            moves = (moves or 0) + _is_move(group, data)
        elif kind == "step-start" and step in _COMPUTING:
            begun[task] = time
        elif kind == "step-end" and step in _COMPUTING:
            spent = time - begun.pop(task)
            entry = computed.setdefault(task, [0.0, 0.0])
            entry[0] += spent
            entry[1] += _that_counts(time, spent, data)
        elif kind == "task-end" and task in computed:
            spent, counts = computed.pop(task)
            seconds += spent
            wasted += spent - (counts if outcome == "done" else 0.0)
    return Work(seconds, wasted, moves)


def _that_counts(end: float, spent: float, data: str | None) -> float:
    """Of a computation that ended at ``end`` after ``spent`` seconds: those of finished epochs, or all of an evaluation."""
    facts = json.loads(data or "{}")
    if "epochs" not in facts or facts["epochs"] == facts["asked"]:
        return spent
    if not facts["epochs"]:
        return 0.0
    return spent - float(end - facts["epoch_ends"][facts["epochs"] - 1])


def _is_move(group: int | None, data: str | None) -> bool:
    facts = json.loads(data or "{}")
    return group is not None and facts["before"] is not None and facts["why"] != "split"
