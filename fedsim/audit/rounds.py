"""Do the rounds say of their tasks what their tasks' records say?"""

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd

from fedsim.audit.evidence import NOTHING, Evidence, findings, latest, shown
from fedsim.records import folder as files
from fedsim.records.schema import ROUNDS

_COUNTS = {
    "valid": ("done",),
    "slow": ("late", "memory"),
    "disconnected": ("lost", "left", "battery"),
}


def round_counts(evidence: Evidence) -> Iterator[str]:
    """Each round's counts are those of its tasks, and the rounds' table says what the records say."""
    events, summary, table = evidence.events, evidence.run.summary, evidence.rounds
    tasks, recorded = _tasks(evidence), evidence.said("round")["data"]
    counts = _counts(tasks)
    agree = len(recorded) == len(table) == summary["rounds"]
    rows = _rows(evidence) if agree else repeat({})
    for at, data, row in zip(recorded.index.tolist(), recorded, rows, strict=False):
        number = shown(events["round"].iat[at])
        yield from _problems(number, data, counts[at])
        told = {"round": number, "time": shown(events["time"].iat[at])} | data
        for key, value in told.items() if agree else ():
            here = row.get(key, "missing")
            if here != value:
                yield f"round {number}: {key} is {here!r} in the table and {value!r} in the records"
    text = "task {task} goes on with one of round {round}, of which none has ended"
    yield from findings(text, tasks, (tasks["weight"] < 0) & (latest(tasks["weight"] > 0, tasks["part"]) < 0))
    if not agree:
        yield f"there are {len(recorded)} recorded rounds, {len(table)} in the table, {summary['rounds']} in the summary"
        return
    measured, stated = table["accuracy"].dropna(), summary["accuracy"]
    if len(measured) and (stated["final"] != measured.iat[-1] or stated["best"] != measured.max()):
        last, best = shown(measured.iat[-1]), shown(measured.max())
        yield f"the summary's accuracy is {stated}, the rounds' last {last!r} and best {best!r}"


def _tasks(evidence: Evidence) -> pd.DataFrame:
    """Ends of the tasks of rounds, and records of rounds, with what each counts for.

    Columns besides those of the records: ``weight``, -1 for a begin that goes on with another task, as both count as one;
    ``closed``, the record of the round that counts it; ``part``, a number for those that are counted together.
    """
    events = evidence.events
    closes, continues = (events["kind"] == "round").to_numpy(), evidence.continues
    ends = ((events["kind"] == "task-end") & (events["round"] != NOTHING)).to_numpy()
    idle = latest(evidence.idle, events["task"]) >= 0  # slow, even if they were carried out to their end
    outcome = np.asarray(events["outcome"], dtype=object)
    outcome[idle & ends & (outcome == "done")] = "late"
    outcome[continues] = "done"
    closed = events.index.to_series().where(closes).groupby(events["round"]).bfill()
    told = events.assign(outcome=outcome, weight=ends.astype(int) - continues, closed=closed)[ends | closes | continues]
    return told.assign(part=told.groupby(["round", "closed"], dropna=False).ngroup())


def _counts(tasks: pd.DataFrame) -> dict[int, dict[str, int]]:
    """Number of tasks by outcome, by the record of the round that counts them."""
    ended = tasks.groupby(["closed", "outcome"])["weight"].sum().unstack(fill_value=0)
    counts = {key: ended.reindex(columns=outcomes, fill_value=0).sum(axis=1) for key, outcomes in _COUNTS.items()}
    return pd.DataFrame(counts | {"selected": ended.sum(axis=1)}).to_dict("index")  # type: ignore[return-value]


def _problems(number: int | None, told: Mapping[str, Any], counted: Mapping[str, int]) -> Iterator[str]:
    for key, value in counted.items():
        waits = "selected" in told or key != "disconnected"  # a round that does not wait may close before it hears of a loss
        if key in told and (told[key] != value if waits else told[key] > value):
            yield f"round {number}: {key} is {told[key]}, its tasks say {value}"


def _rows(evidence: Evidence) -> Iterator[dict[str, Any]]:
    for table in evidence.run.batches(files.ROUNDS, ROUNDS, 4_096):
        yield from table.to_pylist()
