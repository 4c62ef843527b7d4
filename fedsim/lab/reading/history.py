"""Events of a run, read from its folder into tables, for pictures and exports."""

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats, Ints
from fedsim.common.files import parse_json
from fedsim.records.folder import AVAILABILITY, DEVICES, EVENTS
from fedsim.records.reading import RunFolder
from fedsim.records.schema import is_act

NO_GROUP = -1
MARKS = ("arrival", "departure", "shift", "noticed", "move")


class History:
    """A run's records as tables, each read when it is first needed; times in simulated seconds."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    @cached_property
    def events(self) -> pd.DataFrame:
        """Every record; ``period`` is the number of rounds that had ended by then."""
        events: pd.DataFrame = self.run.table(EVENTS).to_pandas()
        return events.assign(
            period=events.index[events["kind"] == "round"].searchsorted(events.index)
        )

    def of(self, *kinds: str) -> pd.DataFrame:
        """The records of some kinds."""
        return self.events[self.events["kind"].isin(kinds)]

    def data(self, *kinds: str) -> list[Any]:
        """The records of some kinds as dicts, ``data`` parsed, None where a field is empty."""
        rows = self.of(*kinds).astype(object)
        return [
            row | {"data": parsed(row["data"])}
            for row in rows.where(rows.notna(), None).to_dict("records")
        ]

    @cached_property
    def end(self) -> float:
        """The time of the last record."""
        return float(self.events["time"].max()) if len(self.events) else 0.0

    @cached_property
    def population(self) -> pd.DataFrame:
        """The devices' table, by device."""
        population: pd.DataFrame = self.run.table(DEVICES).to_pandas()
        return population.set_index("device")

    # Work.

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """Tasks that ended: ``device``, ``task``, ``end``, ``outcome``, ``period``."""
        ends = self.of("task-end")[["device", "task", "time", "outcome", "period"]].rename(
            columns={"time": "end"}
        )
        return ends.astype({"device": int, "task": int, "outcome": str}).reset_index(drop=True)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step; ``ended`` is its own outcome, ``outcome`` the *task's*: unless it is
        ``done``, the work was wasted.

        ``round`` and ``group`` are NaN for none; ``data`` is that of the step's end, as JSON
        (None for one that never ended).
        """
        rows = self.of("step-start", "step-end").sort_values("task", kind="stable")
        # a task does one step at a time
        following = rows[["kind", "task", "time", "outcome", "data"]].shift(-1)
        ended = (following["kind"] == "step-end") & (following["task"] == rows["task"])
        steps = rows.assign(
            start=rows["time"],
            # a run that was cut off leaves its last steps open
            end=following["time"].where(ended, self.end),
            ended=following["outcome"].astype(object).where(ended, "stopped"),
            outcome=rows["task"]
            .map(self.tasks.set_index("task")["outcome"])
            .astype(object)
            .fillna("stopped")
            .astype(str),
            data=following["data"].where(ended, None),
        )[rows["kind"] == "step-start"]
        steps = steps[
            ["device", "task", "round", "group", "step", "start", "end", "ended", "outcome", "data"]
        ]
        return steps.astype({"device": int, "task": int, "step": str}).reset_index(drop=True)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Rounds that ended: ``round``, ``end``, and ``deadline`` (NaN for none)."""
        starts = self.of("round-start")
        deadlines = {
            int(at): parsed(data).get("deadline")
            for at, data in zip(starts["round"], starts["data"], strict=True)
        }
        ends = (
            self.of("round")[["round", "time"]]
            .rename(columns={"time": "end"})
            .astype({"round": int})
        )
        return ends.assign(deadline=ends["round"].map(deadlines).astype(float)).reset_index(
            drop=True
        )

    @cached_property
    def acts(self) -> pd.DataFrame:
        """``end``: when processes of the world did something."""
        acts = self.events["kind"].astype(str).map(is_act).astype(bool)
        return self.events.loc[acts, ["time"]].rename(columns={"time": "end"})

    # Presence: tables with ``device``, ``start``, ``end``, in order of devices and times.

    @cached_property
    def there(self) -> pd.DataFrame:
        """From each device's arrival to its departure, or to the run's end."""
        there = self.population[["arrival", "departure"]].reset_index()
        there = there.rename(columns={"arrival": "start", "departure": "end"})
        return _some_time(there.assign(end=there["end"].clip(upper=self.end)))

    @cached_property
    def away(self) -> pd.DataFrame:
        """While a device was there and could not be reached: by its availability, or because it
        was switched off.
        """
        if not self.run.has(AVAILABILITY):
            return self._phases
        switched_off = self._stretches(self.of("switch-off", "switch-on"), "switch-off")
        off = pd.concat([self._phases[~self._phases["on"]], switched_off])[
            ["device", "start", "end"]
        ]
        own = self.population.loc[off["device"]]
        start = np.maximum(off["start"], own["arrival"].to_numpy())
        off = _some_time(
            off.assign(start=start, end=np.minimum(off["end"], own["departure"].to_numpy()))
        )
        return off.sort_values(["device", "start"], kind="stable", ignore_index=True)

    @property
    def known(self) -> Ints:
        """The devices of which ``away`` tells, ascending; none of a run that goes on."""
        return self._phases["device"].unique()

    @cached_property
    def _phases(self) -> pd.DataFrame:
        if not self.run.has(AVAILABILITY):
            return pd.DataFrame({"device": [], "start": [], "end": []}).astype({"device": int})
        phases: pd.DataFrame = (
            self.run.table(AVAILABILITY).to_pandas().rename(columns={"time": "start"})
        )
        return phases.assign(end=_next_start(phases, self.end))

    @property
    def lost_edges(self) -> pd.DataFrame:
        """Stretches during which edge servers were lost: ``device``, the number of the edge
        server, ``start`` and ``end``.
        """
        acts = self.of("edge-off", "edge-on")
        return self._stretches(
            acts.assign(device=[parsed(text)["edge"] for text in acts["data"]]), "edge-off"
        )

    def _stretches(self, acts: pd.DataFrame, kind: str) -> pd.DataFrame:
        """From each record of a kind to the next record of the same device, or to the end."""
        acts = (
            acts.rename(columns={"time": "start"})
            .astype({"device": "Int64"})
            .sort_values("device", kind="stable")
        )
        acts = acts.assign(end=_next_start(acts, self.end))
        return acts.loc[acts["kind"] == kind, ["device", "start", "end"]].astype({"device": int})

    # Groups.

    @cached_property
    def moves(self) -> pd.DataFrame:
        """Assignments: ``time``, ``device``, ``period``, ``group`` and ``before`` (each -1 for
        none), and ``why``.
        """
        rows = self.of("assign")
        data = [parsed(text) for text in rows["data"]]
        moves = rows[["time", "device", "period", "group"]].reset_index(drop=True)
        moves["before"] = pd.Series([entry["before"] for entry in data], dtype=float)
        moves["why"] = pd.Series([str(entry["why"]) for entry in data], dtype=str)
        return moves.fillna({"group": NO_GROUP, "before": NO_GROUP}).astype(
            {"device": int, "group": int, "before": int}
        )

    @property
    def migrations(self) -> pd.DataFrame:
        """The moves from one group to another."""
        return self.moves[(self.moves["before"] != NO_GROUP) & (self.moves["group"] != NO_GROUP)]

    @cached_property
    def marks(self) -> pd.DataFrame:
        """Instants in devices' rows: ``time``, ``device``, ``period``, and ``kind``, one of
        ``MARKS``, in their order.
        """
        tests = self.of("shift-test")
        noticed = tests[np.array([parsed(text)["fired"] for text in tests["data"]], dtype=bool)]
        tables = (
            self.of("arrival"),
            self.of("departure"),
            self.of("shift"),
            noticed,
            self.migrations,
        )
        columns = [
            table[["time", "device", "period"]].astype({"device": int}).assign(kind=kind)
            for kind, table in zip(MARKS, tables, strict=True)
        ]
        return pd.concat(columns, ignore_index=True)

    @cached_property
    def stays(self) -> pd.DataFrame:
        """``device``, ``group`` (-1 while it has none), ``start``, ``end``: without a gap as
        long as the device is there.
        """
        population = self.population[self.population["arrival"] <= self.end]
        births = pd.DataFrame(
            {"device": population.index, "time": population["arrival"], "group": NO_GROUP}
        )
        rows = pd.concat([births, self.moves[["device", "time", "group"]]], ignore_index=True)
        rows = rows.sort_values("device", kind="stable").rename(columns={"time": "start"})
        gone = rows["device"].map(population["departure"]).clip(upper=self.end)
        start = np.maximum(rows["start"], rows["device"].map(population["arrival"]))
        return _some_time(rows.assign(start=start, end=np.minimum(_next_start(rows, gone), gone)))

    @property
    def groups(self) -> list[int]:
        """Every group that ever had a member, ascending."""
        return sorted(int(group) for group in self.moves["group"].unique() if group != NO_GROUP)

    @property
    def final(self) -> "pd.Series[int]":
        """The last group of each device that was ever there, by device; -1 for none."""
        return self.stays.groupby("device")["group"].last()

    def order(self) -> Ints:
        """Every device that was ever there: by its last group, then by when it first had one;
        those without one come last.
        """
        final = self.final
        first = self.moves.groupby("device")["time"].min().reindex(final.index).fillna(np.inf)
        last = final.where(final != NO_GROUP, final.max() + 1)
        return final.index.to_numpy(np.int64)[np.lexsort((final.index, first, last))]

    def sizes(self, group: int) -> tuple[Floats, Ints]:
        """When a group's size changed (s), beginning at 0, and its members from then on; -1 for
        devices without a group.
        """
        stays = self.stays[self.stays["group"] == group]
        starts = np.sort(stays["start"].to_numpy(float))
        ends = np.sort(stays["end"].to_numpy(float))
        times = np.unique(np.concatenate([[0.0], starts, ends[ends < self.end]]))
        inside = np.searchsorted(starts, times, side="right") - np.searchsorted(
            ends, times, side="right"
        )
        return times, inside.astype(np.int64)


def parsed(text: object) -> dict[str, Any]:
    """The ``data`` of a record; empty where it has none."""
    return parse_json(text) if isinstance(text, str) else {}


def _some_time(table: pd.DataFrame) -> pd.DataFrame:
    """The stretches that take any time."""
    return table[table["end"] > table["start"]].reset_index(drop=True)


def _next_start(rows: pd.DataFrame, end: "float | pd.Series[float]") -> "pd.Series[float]":
    """The start of the next row of the same device, or the end."""
    return rows["start"].shift(-1).where(rows["device"].shift(-1) == rows["device"], end)
