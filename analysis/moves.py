"""Which group each device was in when, read off the events into tables: stays, moves, shifts, newcomers and leavers."""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsim.records.folder import DEVICES, EVENTS
from fedsim.records.reading import RunFolder

NO_GROUP = -1


@dataclass(frozen=True)
class Membership:
    """What happened to the groups' members, as tables with one row each; times in simulated seconds.

    Attributes:
        stays: ``device``, ``group`` (-1 while it has none), ``start`` and ``end``: from a device's arrival to its departure or
            the run's end without a gap, in order of devices and times.
        moves: ``time``, ``device``, ``round`` (how many had ended by then), ``group`` and ``before`` (each -1 for none: a
            device may also be left without a group) and ``why``.
        shifts: ``time``, ``device`` and ``round``: its data changed.
        noticed: ``time``, ``device`` and ``round``: its test for a shift fired.
        arrivals, departures: ``time``, ``device`` and ``round``, after the beginning and before the end.
        splits: when a group was cut in two.
        rounds: when each round ended.
        end: the time of the last record.
    """

    stays: pd.DataFrame
    moves: pd.DataFrame
    shifts: pd.DataFrame
    noticed: pd.DataFrame
    arrivals: pd.DataFrame
    departures: pd.DataFrame
    splits: NDArray[np.float64]
    rounds: NDArray[np.float64]
    end: float

    @property
    def migrations(self) -> pd.DataFrame:
        """The moves from one group to another."""
        return self.moves[(self.moves["before"] != NO_GROUP) & (self.moves["group"] != NO_GROUP)]

    @property
    def groups(self) -> list[int]:
        """Every group that ever had a member, ascending."""
        return sorted(int(group) for group in self.moves["group"].unique() if group != NO_GROUP)

    @property
    def final(self) -> "pd.Series[int]":
        """The last group of each device that was ever there, by device; -1 for none."""
        return self.stays.groupby("device")["group"].last()

    def order(self) -> NDArray[np.int64]:
        """Every device that was ever there: by its last group, then by when it first had one; who has none comes last."""
        final = self.final
        first = self.moves.groupby("device")["time"].min().reindex(final.index).fillna(np.inf)
        last = final.where(final != NO_GROUP, final.max() + 1)
        return final.index.to_numpy(np.int64)[np.lexsort((final.index, first, last))]

    def sizes(self, group: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """When a group's size changed (s), beginning at 0, and its members from then on; -1 for devices without a group."""
        stays = self.stays[self.stays["group"] == group]
        starts, ends = np.sort(stays["start"].to_numpy(float)), np.sort(stays["end"].to_numpy(float))
        times = np.unique(np.concatenate([[0.0], starts, ends[ends < self.end]]))
        inside = np.searchsorted(starts, times, side="right") - np.searchsorted(ends, times, side="right")
        return times, inside.astype(np.int64)


def read_membership(run: RunFolder) -> Membership:
    """Read who was where; a run without groups has no moves.

    Raises:
        RunFolderError: a table is missing or damaged.
    """
    events = run.table(EVENTS).select(["time", "kind", "device", "group", "data"]).to_pandas()
    population = run.table(DEVICES).select(["device", "arrival", "departure"]).to_pandas()
    end = float(events["time"].max()) if len(events) else 0.0
    population = population[population["arrival"] <= end]
    events["round"] = events.index[events["kind"] == "round"].searchsorted(events.index)
    moves = _moves(events[events["kind"] == "assign"])
    tests = events[events["kind"] == "shift-test"]
    fired = [bool(json.loads(text)["fired"]) for text in tests["data"]]
    return Membership(
        stays=_stays(moves, population, end),
        moves=moves,
        shifts=_who(events[events["kind"] == "shift"]),
        noticed=_who(tests[np.array(fired, dtype=bool)]),
        arrivals=_who(events[events["kind"] == "arrival"]),
        departures=_who(events[events["kind"] == "departure"]),
        splits=events["time"][events["kind"] == "cluster-split"].to_numpy(float),
        rounds=events["time"][events["kind"] == "round"].to_numpy(float),
        end=end,
    )


def _who(events: pd.DataFrame) -> pd.DataFrame:
    table = events[["time", "device", "round"]].astype({"device": int, "round": int})
    return table.reset_index(drop=True)


def _moves(assigned: pd.DataFrame) -> pd.DataFrame:
    data = [json.loads(text) for text in assigned["data"]]
    table = _who(assigned)
    table["group"] = assigned["group"].fillna(NO_GROUP).to_numpy(int)
    table["before"] = np.array([NO_GROUP if entry["before"] is None else int(entry["before"]) for entry in data], dtype=int)
    table["why"] = pd.Series([str(entry["why"]) for entry in data], dtype=str)
    return table


def _stays(moves: pd.DataFrame, population: pd.DataFrame, end: float) -> pd.DataFrame:
    """From each move to the device's next one, and from its arrival to the first, as far as the device is there."""
    births = pd.DataFrame({"device": population["device"].astype(int), "time": population["arrival"], "group": NO_GROUP})
    rows = pd.concat([births, moves[["device", "time", "group"]]], ignore_index=True).sort_values("device", kind="stable")
    arrival = rows["device"].map(population.set_index("device")["arrival"])
    gone = rows["device"].map(population.set_index("device")["departure"]).clip(upper=end)
    following = rows["time"].shift(-1).where(rows["device"].shift(-1) == rows["device"], gone)
    stays = pd.DataFrame(
        {
            "device": rows["device"],
            "group": rows["group"],
            "start": np.maximum(rows["time"], arrival),
            "end": np.minimum(following, gone),
        }
    )
    return stays[stays["end"] > stays["start"]].reset_index(drop=True)
