"""What the devices of a run did, read off its events into tables: steps, tasks and rounds."""

import json
from dataclasses import dataclass

import pandas as pd

from fedsim.records.folder import EVENTS
from fedsim.records.reading import RunFolder
from fedsim.records.schema import is_act


@dataclass(frozen=True)
class Activity:
    """What happened, as tables with one row each; times in simulated seconds.

    Attributes:
        steps: ``device``, ``task``, ``round`` and ``group`` (NaN where it has none), ``step``, ``start``, ``end``, ``outcome``,
            that of the *task* it belongs to: unless that is ``done``, the step's work was wasted; and ``data``, what its
            end's record says beyond that, as JSON (None for a step that never ended).
        tasks: ``device``, ``task``, ``end``, ``outcome``, and ``period``, the number of rounds that had ended by then.
        rounds: ``round``, ``end``, and ``deadline`` (NaN where there is none).
        acts: ``end``, when processes of the world did something.
        end: the time of the last record.
    """

    steps: pd.DataFrame
    tasks: pd.DataFrame
    rounds: pd.DataFrame
    acts: pd.DataFrame
    end: float


def read_activity(run: RunFolder) -> Activity:
    """Read a run's activity.

    Raises:
        RunFolderError: the events are missing or damaged.
    """
    events = run.table(EVENTS).to_pandas()
    last = float(events["time"].max()) if len(events) else 0.0
    tasks = _tasks(events)
    acts = events.loc[events["kind"].astype(str).map(is_act).astype(bool), ["time"]].rename(columns={"time": "end"})
    return Activity(_steps(events, tasks, last), tasks, _rounds(events), acts, last)


def _tasks(events: pd.DataFrame) -> pd.DataFrame:
    ends = events[events["kind"] == "task-end"]
    round_positions = events.index[events["kind"] == "round"]
    return pd.DataFrame(
        {
            "device": ends["device"].astype(int),
            "task": ends["task"].astype(int),
            "end": ends["time"],
            "outcome": ends["outcome"].astype(str),
            "period": round_positions.searchsorted(ends.index),
        }
    ).reset_index(drop=True)


def _steps(events: pd.DataFrame, tasks: pd.DataFrame, last: float) -> pd.DataFrame:
    """Pair each start with the record of the same task that follows it: a task does one step at a time."""
    rows = events[events["kind"].isin(["step-start", "step-end"])].sort_values("task", kind="stable")
    starts = rows["kind"] == "step-start"
    ended = (~starts.shift(-1, fill_value=True)) & (rows["task"].shift(-1) == rows["task"])
    end = rows["time"].shift(-1).where(ended, last)  # a run that was cut off leaves its last steps open
    begun = rows[starts]
    outcome = begun["task"].astype(int).map(tasks.set_index("task")["outcome"]).astype(object).fillna("stopped")
    return pd.DataFrame(
        {
            "device": begun["device"].astype(int),
            "task": begun["task"].astype(int),
            "round": begun["round"],
            "group": begun["group"],
            "step": begun["step"].astype(str),
            "start": begun["time"],
            "end": end[starts],
            "outcome": outcome.astype(str),
            "data": rows["data"].shift(-1).where(ended, None)[starts],
        }
    ).reset_index(drop=True)


def _rounds(events: pd.DataFrame) -> pd.DataFrame:
    ends = events[events["kind"] == "round"]
    starts = events[events["kind"] == "round-start"]
    deadlines = {
        int(number): (json.loads(data) if isinstance(data, str) else {}).get("deadline")
        for number, data in zip(starts["round"], starts["data"], strict=True)
    }
    numbers = ends["round"].astype(int)
    return pd.DataFrame(
        {"round": numbers, "end": ends["time"], "deadline": numbers.map(deadlines).astype(float)},
    ).reset_index(drop=True)
