"""Records of a run as pandas DataFrames, for figures and exports."""

from functools import cached_property

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats, Ints
from fedsim.lab.reading.record_data import RecordData, parse_data
from fedsim.records.folder import AVAILABILITY, DEVICES, EVENTS
from fedsim.records.reading import RunFolder
from fedsim.records.schema import is_act

NO_GROUP = -1
MARKS = ("arrival", "departure", "shift", "noticed", "move")


class History:
    """Records of a finished or unfinished run, as DataFrames for analysis and pictures.

    Each DataFrame is built when it is first used. All times are simulated seconds.

    Attributes:
        run: the run folder.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    @cached_property
    def events(self) -> pd.DataFrame:
        """DataFrame of all records of the run, a row for each.

        The added column ``period`` is the count of rounds that ended before the record.
        """
        events: pd.DataFrame = self.run.table(EVENTS).to_pandas()
        rounds = events.index[events["kind"] == "round"]
        return events.assign(period=rounds.searchsorted(events.index))

    def of(self, *kinds: str) -> pd.DataFrame:
        """Return a DataFrame with all records of the given kinds, such as ``task-end``."""
        return self.events[self.events["kind"].isin(kinds)]

    def data(self, *kinds: str) -> list[RecordData]:
        """Return the records of some kinds, such as ``task-end``, as dicts from field to value.

        The value of ``data`` is itself a dict, parsed from JSON; empty fields are None.
        """
        table = self.of(*kinds).astype(object)
        rows: list[RecordData] = []
        for cells in table.where(table.notna(), None).to_dict("records"):
            row = {str(name): value for name, value in cells.items()}
            row["data"] = parse_data(row["data"])
            rows.append(row)
        return rows

    @cached_property
    def end(self) -> float:
        """Simulated time of the last record (s); 0 if there are no records."""
        return float(self.events["time"].max()) if len(self.events) else 0.0

    @cached_property
    def population(self) -> pd.DataFrame:
        """DataFrame of ``devices.parquet``, with a row for each device, indexed by device ID."""
        population: pd.DataFrame = self.run.table(DEVICES).to_pandas()
        return population.set_index("device")

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """DataFrame of the tasks that ended, a row for each.

        Columns are ``device``, ``task``, ``end`` (s), ``outcome``, and ``period``, the count of
        rounds that ended before the task's end.
        """
        ends = self.of("task-end")[["device", "task", "time", "outcome", "period"]]
        ends = ends.rename(columns={"time": "end"})
        return ends.astype({"device": int, "task": int, "outcome": str}).reset_index(drop=True)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """DataFrame with one row per step of a task, from ``start`` to ``end`` (s).

        ``ended`` is the outcome of the step, and ``outcome`` is the outcome of its task. The step's
        work was wasted unless ``outcome`` is ``done``. ``round`` and ``group`` may be NaN. ``data``
        is the JSON of the record that ends the step, and None for a step that never ended.
        """
        # sorted by task, and for each task in the order of the records
        rows = self.of("step-start", "step-end").sort_values("task", kind="stable")
        # a task does one step at a time, so the task's next record is the end of the step
        following = rows[["kind", "task", "time", "outcome", "data"]].shift(-1)
        has_end = (following["kind"] == "step-end") & (following["task"] == rows["task"])
        # if the run was cut off, tasks and steps are still open at its end
        outcomes = rows["task"].map(self.tasks.set_index("task")["outcome"]).astype(object)
        steps = rows.assign(
            start=rows["time"],
            end=following["time"].where(has_end, self.end),
            ended=following["outcome"].astype(object).where(has_end, "stopped"),
            outcome=outcomes.fillna("stopped").astype(str),
            data=following["data"].where(has_end, None),
        )
        steps = steps.loc[
            rows["kind"] == "step-start",
            [
                "device",
                "task",
                "round",
                "group",
                "step",
                "start",
                "end",
                "ended",
                "outcome",
                "data",
            ],
        ]
        return steps.astype({"device": int, "task": int, "step": str}).reset_index(drop=True)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """DataFrame of ended rounds: ``round``, ``end`` (s), and ``deadline`` (s, NaN if none)."""
        starts = self.of("round-start")
        deadlines = {}
        for number, data in zip(starts["round"], starts["data"], strict=True):
            deadlines[int(number)] = parse_data(data).get("deadline")
        ends = self.of("round")[["round", "time"]]
        ends = ends.rename(columns={"time": "end"}).astype({"round": int})
        ends = ends.assign(deadline=ends["round"].map(deadlines).astype(float))
        return ends.reset_index(drop=True)

    @cached_property
    def acts(self) -> pd.DataFrame:
        """DataFrame of the simulated times at which devices or the network changed.

        Examples are an outage, and a new rate of a link. The only column, ``end``, is the time (s)
        of the record of the change.
        """
        is_act_record = self.events["kind"].astype(str).map(is_act).astype(bool)
        return self.events.loc[is_act_record, ["time"]].rename(columns={"time": "end"})

    @cached_property
    def presence(self) -> pd.DataFrame:
        """DataFrame of the interval from each device's arrival to its departure or the run's end.

        Columns are ``device``, ``start`` and ``end``.
        """
        stays = self.population[["arrival", "departure"]].reset_index()
        stays = stays.rename(columns={"arrival": "start", "departure": "end"})
        return _drop_empty(stays.assign(end=stays["end"].clip(upper=self.end)))

    @cached_property
    def away(self) -> pd.DataFrame:
        """DataFrame of intervals in which a present device was unreachable or switched off.

        Columns are ``device``, ``start`` and ``end`` (s).
        """
        if not self.run.has(AVAILABILITY):
            return self._phases
        switched_off = self._intervals_from(self.of("switch-off", "switch-on"), "switch-off")
        unreachable = self._phases[~self._phases["on"]]
        absences = pd.concat([unreachable, switched_off])[["device", "start", "end"]]
        devices = self.population.loc[absences["device"]]
        start = np.maximum(absences["start"], devices["arrival"].to_numpy())
        end = np.minimum(absences["end"], devices["departure"].to_numpy())
        absences = _drop_empty(absences.assign(start=start, end=end))
        return absences.sort_values(["device", "start"], kind="stable", ignore_index=True)

    @property
    def devices_with_phases(self) -> Ints:
        """IDs, ascending, of the devices for which the run has recorded when they were reachable.

        For other devices, ``away`` has only the times when they were switched off. Empty for an
        unfinished run.
        """
        return self._phases["device"].unique()

    @cached_property
    def _phases(self) -> pd.DataFrame:
        if not self.run.has(AVAILABILITY):
            return pd.DataFrame({"device": [], "start": [], "end": []}).astype({"device": int})
        phases: pd.DataFrame = self.run.table(AVAILABILITY).to_pandas()
        phases = phases.rename(columns={"time": "start"})
        return phases.assign(end=_next_start(phases, self.end))

    @cached_property
    def loses_edges(self) -> bool:
        """Whether an edge server failed."""
        return bool((self.events["kind"] == "edge-off").any())

    @property
    def lost_edges(self) -> pd.DataFrame:
        """DataFrame of outages of edge servers, from ``start`` to ``end`` (s).

        The column ``device`` is the index of the edge server.
        """
        acts = self.of("edge-off", "edge-on")
        acts = acts.assign(device=[parse_data(text)["edge"] for text in acts["data"]])
        return self._intervals_from(acts, "edge-off")

    def _intervals_from(self, acts: pd.DataFrame, kind: str) -> pd.DataFrame:
        """Return the intervals that begin with a record of a kind, such as ``switch-off``.

        Args:
            acts: DataFrame of records, with ``device``.
            kind: kind of the record that begins an interval.

        Returns:
            DataFrame with ``device``, ``start`` and ``end`` (s). An interval ends with the next
            record in ``acts`` of the same device, or with the run.
        """
        acts = acts.rename(columns={"time": "start"}).astype({"device": "Int64"})
        acts = acts.sort_values("device", kind="stable")
        acts = acts.assign(end=_next_start(acts, self.end))
        return acts.loc[acts["kind"] == kind, ["device", "start", "end"]].astype({"device": int})

    @cached_property
    def assignments(self) -> pd.DataFrame:
        """DataFrame of the assignments of devices to groups, in the order of the records.

        Columns are ``time`` (s), ``device``, ``period`` (count of rounds that ended before the
        assignment), the new ``group``, the previous group (``before``), and the reason (``why``). A
        group of -1 stands for no group.
        """
        records = self.of("assign")
        fields = [parse_data(text) for text in records["data"]]  # further fields of each record
        assignments = records[["time", "device", "period", "group"]].reset_index(drop=True)
        assignments["before"] = pd.Series([record["before"] for record in fields], dtype=float)
        assignments["why"] = pd.Series([str(record["why"]) for record in fields], dtype=str)
        assignments = assignments.fillna({"group": NO_GROUP, "before": NO_GROUP})
        return assignments.astype({"device": int, "group": int, "before": int})

    @property
    def migrations(self) -> pd.DataFrame:
        """DataFrame of the assignments that moved a device from one group to another.

        It has the rows of ``assignments`` with both a new and a previous group.
        """
        had_group = self.assignments["before"] != NO_GROUP
        has_group = self.assignments["group"] != NO_GROUP
        return self.assignments[had_group & has_group]

    @cached_property
    def marks(self) -> pd.DataFrame:
        """DataFrame of instants that pictures mark: arrivals, departures, data shifts and moves.

        Columns are ``time`` (s), ``device``, ``period`` (count of rounds that ended before the
        instant) and ``kind``: ``arrival``, ``departure``, ``shift``, ``noticed`` (a test detected a
        shift) or ``move`` (from one group to another). Rows are sorted by kind, in this order.
        """
        tests = self.of("shift-test")
        has_fired = [parse_data(text)["fired"] for text in tests["data"]]
        noticed = tests[np.array(has_fired, dtype=bool)]
        tables = (
            self.of("arrival"),
            self.of("departure"),
            self.of("shift"),
            noticed,
            self.migrations,
        )
        marks = []
        for kind, table in zip(MARKS, tables, strict=True):
            rows = table[["time", "device", "period"]].astype({"device": int})
            marks.append(rows.assign(kind=kind))
        return pd.concat(marks, ignore_index=True)

    @cached_property
    def stays(self) -> pd.DataFrame:
        """DataFrame of the intervals for which devices stayed in a group.

        Columns are ``device``, ``group`` (-1 for no group), ``start`` and ``end`` (s). The
        intervals of a device have no gap between its arrival and its departure.
        """
        population = self.population[self.population["arrival"] <= self.end]
        # a device has no group from its arrival until its first assignment
        arrivals = pd.DataFrame(
            {"device": population.index, "time": population["arrival"], "group": NO_GROUP}
        )
        assignments = self.assignments[["device", "time", "group"]]
        stays = pd.concat([arrivals, assignments], ignore_index=True)
        # sorted by device; for each device first the arrival, then the assignments in record order
        stays = stays.sort_values("device", kind="stable").rename(columns={"time": "start"})
        arrival = stays["device"].map(population["arrival"])
        departure = stays["device"].map(population["departure"]).clip(upper=self.end)
        # an assignment may lie outside of the time in which the device is present
        start = np.maximum(stays["start"], arrival)
        end = np.minimum(_next_start(stays, departure), departure)
        return _drop_empty(stays.assign(start=start, end=end))

    @property
    def groups(self) -> list[int]:
        """IDs, ascending, of the groups to which at least one device was ever assigned."""
        groups = self.assignments["group"].unique()
        return sorted(int(group) for group in groups if group != NO_GROUP)

    @property
    def final(self) -> "pd.Series[int]":
        """Group of each device at its departure or the run's end; -1 for no group.

        The index of the series has the ID of each device that ever arrived.
        """
        return self.stays.groupby("device")["group"].last()

    @property
    def members_at_end(self) -> dict[int, int]:
        """Dict from group (-1: no group) to the count of its devices present at the run's end."""
        last = self.stays.groupby("device").last()
        staying = last[last["end"] >= self.end]
        groups, counts = np.unique(staying["group"].to_numpy(np.int64), return_counts=True)
        return dict(zip(groups.tolist(), counts.tolist(), strict=True))

    def order(self) -> Ints:
        """Return the IDs of all devices that ever arrived, in the order of rows in pictures.

        The devices are sorted by their last group, and within a group by the time of their first
        assignment to any group. Devices without a group are last.
        """
        final = self.final
        first_time = self.assignments.groupby("device")["time"].min().reindex(final.index)
        group_rank = final.where(final != NO_GROUP, final.max() + 1)
        # lexsort sorts by its last key first
        order = np.lexsort((final.index, first_time.fillna(np.inf), group_rank))
        return final.index.to_numpy(np.int64)[order]

    def sizes(self, group: int) -> tuple[Floats, Ints]:
        """Return the count of members of a group over time.

        Args:
            group: ID of the group; -1 for the devices that have no group.

        Returns:
            Times (s) at which the count changed, starting with 0, and the count from each time
            until the next; float64 and int64 [times].
        """
        stays = self.stays[self.stays["group"] == group]
        starts = np.sort(stays["start"].to_numpy(float))
        ends = np.sort(stays["end"].to_numpy(float))
        times = np.unique(np.concatenate([[0.0], starts, ends[ends < self.end]]))
        # stays that began, and that ended, by each time
        begun_counts = np.searchsorted(starts, times, side="right")
        ended_counts = np.searchsorted(ends, times, side="right")
        return times, (begun_counts - ended_counts).astype(np.int64)


def _drop_empty(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the rows of a table whose interval from ``start`` to ``end`` has length 0."""
    return table[table["end"] > table["start"]].reset_index(drop=True)


def _next_start(rows: pd.DataFrame, end: "float | pd.Series[float]") -> "pd.Series[float]":
    """Return the ``start`` of the same device's next row, or ``end`` for its last row.

    Args:
        rows: DataFrame with ``device`` and ``start``, sorted by both.
        end: result for the last row of each device: one value for all, or a value for each row.
    """
    return rows["start"].shift(-1).where(rows["device"].shift(-1) == rows["device"], end)
