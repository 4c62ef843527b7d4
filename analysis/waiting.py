"""How long devices wait to be selected, and how often they were: numbers for the picture of fairness."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.records.fairness import jain_over_time, outcomes_by_device, outcomes_by_group
from fedsim.records.folder import DEVICES, EVENTS
from fedsim.records.reading import RunFolder, as_list

Clock = Literal["round", "time"]
Floats = NDArray[np.float64]
_MOST = 800  # points of a line: more than pixels are of no use


@dataclass(frozen=True)
class Waiting:
    """How long devices have waited at the end of rounds, on the clock of rounds or of simulated time (s); arrays [m] each.

    Attributes:
        at: rounds that had ended, or the time.
        mean, tenth, longest: mean, 90th percentile and maximum of the time since a device's last selection, or since the
            beginning or its arrival if it never was selected; 0 rounds for those selected in this one. Over all devices that
            are there: who has left for good, or is yet to come, does not wait.
    """

    at: Floats
    mean: Floats
    tenth: Floats
    longest: Floats


def read_waiting(run: RunFolder, clock: Clock) -> Waiting:
    """How long devices waited, over the run; at most 800 moments, evenly spread.

    Raises:
        RunFolderError: a table is missing or damaged.
    """
    table = run.table(EVENTS).select(["time", "kind", "device", "round"])
    population = run.table(DEVICES)
    last = np.full(population.num_rows, -1.0 if clock == "round" else 0.0)
    there = np.nan_to_num(population.column("arrival").to_numpy().astype(float)) <= 0
    shown = set(np.linspace(0, max(0, run.summary["rounds"] - 1), _MOST).round().astype(int).tolist())
    ended, moments = 0, []
    for time, kind, device, number in zip(*map(as_list, table.columns), strict=True):
        if kind == "task-start" and number is not None:
            last[device] = ended if clock == "round" else time
        elif kind == "arrival":
            there[device], last[device] = True, ended - 1 if clock == "round" else time
        elif kind == "departure":
            there[device] = False
        elif kind == "round":
            if ended in shown and there.any():
                waited = ((ended if clock == "round" else time) - last)[there]
                at = ended + 1 if clock == "round" else time
                moments.append((at, waited.mean(), np.percentile(waited, 90), waited.max()))
            ended += 1
    return Waiting(*np.array(moments, dtype=float).reshape(-1, 4).T)


def read_jain(run: RunFolder, clock: Clock) -> tuple[Floats, Floats]:
    """Jain's index of selections so far, over rounds that had ended or over time; [m] and [m]."""
    moments = jain_over_time(run)
    at = [place + 1.0 if clock == "round" else moment.time for place, moment in enumerate(moments)]
    return np.array(at), np.array([moment.jain for moment in moments])


def selections_of_devices(run: RunFolder) -> NDArray[np.int64]:
    """How often each device was selected, the most often selected first, int64 [n]."""
    return np.sort([counts.total() for counts in outcomes_by_device(run)])[::-1].astype(np.int64)


def selections_of_groups(run: RunFolder) -> dict[int | None, tuple[int, int]]:
    """How many selections of each cluster or tier were valid, and how many were not; ``None`` for devices in none."""
    return {group: (counts["valid"], counts.total() - counts["valid"]) for group, counts in outcomes_by_group(run).items()}
