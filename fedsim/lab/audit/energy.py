"""Checks that energy adds up over phases, devices and rounds, and in the batteries.

All energy is computed again from the records and from the power of each device (``energy.parquet``,
``energy.json``), not read from the totals that the run wrote.
"""

from collections.abc import Iterator
from typing import TypedDict

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats, Ints
from fedsim.common.units import TICK_S
from fedsim.lab.audit.data import RecordData
from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import is_close, report_differences, report_rows
from fedsim.records import folder as files
from fedsim.records.schema import OF_METERS
from fedsim.world.meters.energy import DAY_S, PHASES, PLACES, SETTING, TABLE, computing_steps

_HOUR_BEGINS_S = np.arange(25) * 3600.0
_POWER_COLUMNS = ["idle_w", "compute_w", "receive_w", "send_w", "tail_w", "charge_w"]
_NO_ID = -1  # in place of device and task, for a server's energy
_CONTINUOUS = -1  # row of energy that is drawn all the time, and so belongs to no record


class _GridZone(TypedDict):
    """Zone of the electricity grid, as ``energy.json`` describes it.

    ``hours`` is the carbon intensity in each hour of the day (g/J), ``offset_s`` the time of day in
    the zone as the run begins (s).
    """

    name: str
    hours: list[float]
    offset_s: float


def check_energy(evidence: Evidence) -> Iterator[str]:
    """Yield findings if the run's energy (J) or carbon (g) differs from a recount by the records.

    Values by device, by phase (idle, compute, receive, send, tail) and by round, and the summary's
    totals are compared.
    """
    stated = evidence.run.summary.get("energy")
    counts_energy = "energy" in evidence.run.scenario
    if stated is None:
        if counts_energy:
            yield "the scenario counts energy, and the summary does not"
        return
    if not counts_energy:
        yield "the scenario counts no energy"
    account = _Account(evidence)
    yield from _check_phases_of_devices(evidence, account)
    yield from _check_totals(account, stated)
    yield from _check_sums_of_devices(evidence, account)
    yield from _check_rounds(evidence, account)


def _check_phases_of_devices(evidence: Evidence, account: "_Account") -> Iterator[str]:
    """Yield a finding for each cell of ``energy.parquet`` that differs from a recount.

    The file has a row for each device, with its joules by phase (such as ``send``) and its grams of
    carbon. Rows have to be in the order of the devices.

    Args:
        evidence: the run folder.
        account: the energy of the run, computed from its records.
    """
    table = account.table
    device_ids = evidence.frame(TABLE, ["device"])["device"].to_numpy()
    yield from report_differences(
        "{name} in row {row} is {stated!r}, due is {expected!r}",
        table.assign(device=device_ids),
        {"device": table.index},
    )
    template = "{name} of device {row} is {stated!r}, the records say {expected!r}"
    yield from report_differences(template, table, account.device_joules.add_suffix("_j"))
    if account.zones:
        grams = account.drawn.groupby("device")["grams"].sum()
        expected = grams.reindex(table.index, fill_value=0.0)
        yield from report_differences(template, table, {"grams": expected})


def _check_totals(account: "_Account", stated: RecordData) -> Iterator[str]:
    """Yield a finding for each total of energy in the summary that is not the sum of its parts.

    Args:
        account: the energy of the run, computed from its records.
        stated: the summary's section on energy.
    """
    by_phase = stated["by_phase"]  # also has the parts of the server's side
    joules_of_records = account.drawn.groupby("phase")["joules"].sum()
    totals = {}  # name -> total in the summary, and sum of its parts
    for phase in PHASES:
        totals[f"by_phase.{phase}"] = by_phase[phase], account.table[f"{phase}_j"].sum()
    for place in PLACES:
        totals[f"by_phase.{place}"] = by_phase[place], joules_of_records[place]
    totals["joules"] = stated["joules"], sum(by_phase.values())
    totals["wasted"] = stated["wasted"], account.wasted()
    if account.zones:
        totals["grams"] = stated["grams"], account.drawn["grams"].sum()
    for name, (total, expected) in totals.items():
        if not is_close(total, expected):
            yield (
                f"energy.{name} is {total!r} in the summary, what it sums up is {float(expected)!r}"
            )


def _check_sums_of_devices(evidence: Evidence, account: "_Account") -> Iterator[str]:
    """Yield a finding for each row of ``devices.parquet`` whose joules are a wrong sum.

    The joules have to be the sum of the device's joules by phase (such as ``send``) in
    ``energy.parquet``.
    """
    expected = account.table[[f"{phase}_j" for phase in PHASES]].sum(axis=1)
    if not evidence.run.has_all_devices:
        expected = expected[evidence.devices["device"]]
    template = (
        f"{{name}} in row {{row}} of {files.DEVICES} is {{stated!r}}, in {TABLE} {{expected!r}}"
    )
    yield from report_differences(template, evidence.devices, {"joules": expected})


def _check_rounds(evidence: Evidence, account: "_Account") -> Iterator[str]:
    """Yield a finding for each round whose joules or grams in the table differ from a recount."""
    quantities = ["joules"]
    if account.zones:
        quantities.append("grams")
    for quantity in quantities:
        expected = account.by_round(quantity)
        # A round's value in the table is the difference of two sums since the run's begin, so its
        # rounding error grows with these sums.
        slack = 1e-6 + 1e-9 * np.abs(np.cumsum(expected))
        template = "round {row} has {stated!r} {name}, the records say {expected!r}"
        yield from report_differences(template, evidence.rounds, {quantity: expected}, atol=slack)


def check_batteries(evidence: Evidence) -> Iterator[str]:
    """Yield findings for impossible levels of batteries, and for wrong sums of energy for tasks.

    A level has to lie from 0 to the battery's capacity, and to equal the initial energy plus the
    energy charged, minus the energy drawn. The energy that tasks drew from a battery has to equal
    the energy of these tasks by a recount.
    """
    if "energy" not in evidence.run.summary or not (evidence.events["kind"] == "battery").any():
        return
    account = _Account(evidence)
    records = (
        evidence.data_of("battery")
        .join(evidence.events[["device", "time"]])
        .join(account.table, on="device")
    )
    moved_j = records["charged"] + records["idle"] + records["drawn"]
    watts = records[_POWER_COLUMNS].sum(axis=1)
    points = (records["path_points"] + 1.0).groupby(records["device"]).transform("sum")
    # times are rounded to a tick of the clock, at each point of a battery's path
    slack = 1e-6 + 1e-9 * moved_j + TICK_S * watts * points
    template = (
        "the battery of device {device} holds {lowest!r} to {highest!r} J; allowed are 0 to "
        "{capacity_j!r} J"
    )
    is_overfull = records["highest"] > records["capacity_j"] + slack
    yield from report_rows(template, records, (records["lowest"] < 0) | is_overfull)
    records["expected"] = (
        records["initial_j"] + records["charged"] - records["idle"] - records["drawn"]
    )
    template = (
        "the battery of device {device} holds {level!r} J at {time!r} s, its books {expected!r} J"
    )
    is_right = np.abs(records["level"] - records["expected"]) <= slack  # False also for NaN
    yield from report_rows(template, records, ~is_right)
    if evidence.run.summary["status"] != "failed":  # unfinished work has no record of its end
        yield from _check_energy_of_tasks(account, records.assign(slack=slack))


def _check_energy_of_tasks(account: "_Account", records: pd.DataFrame) -> Iterator[str]:
    """Yield a finding for each battery that gave more or less energy to tasks than these took.

    Args:
        account: the energy of the run, computed from its records.
        records: the records of batteries, with the energy given to tasks so far as ``drawn`` and
            the tolerance ``slack`` (J).
    """
    phases_of_tasks = list(PHASES[1:])  # all except "idle"
    task_joules = account.device_joules[phases_of_tasks].sum(axis=1) - account.tails_after_end()
    last = records.drop_duplicates("device", keep="last").sort_values("device")
    last["expected"] = task_joules.reindex(last["device"]).to_numpy()
    template = "the battery of device {device} gave {drawn!r} J to tasks, they took {expected!r} J"
    is_right = np.abs(last["drawn"] - last["expected"]) <= last["slack"]  # False also for NaN
    yield from report_rows(template, last, ~is_right)


class _Account:
    """Energy of a run, computed from its records: which device drew it, when, and in which phase.

    Args:
        evidence: the run folder.

    Attributes:
        table: DataFrame of ``energy.parquet``: each device's powers, and the energy that the run
            counted for it.
        zones: the zones of the grid; empty if the scenario counts no carbon.
        drawn: DataFrame of portions of energy: ``device`` and ``task`` (-1: none), ``phase`` (or
            ``server`` or ``edge``), ``joules`` drawn from ``start`` to ``end`` (s), ``grams`` of
            carbon, index ``zone`` of the grid, and ``row``, the record at which the run counted the
            energy.
        device_joules: DataFrame of joules by device (rows) and phase (columns).
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._events = evidence.events
        self.table = evidence.frame(TABLE, OF_METERS[TABLE].names[1:])
        self._setting = evidence.document(SETTING)  # how the run counted energy
        self.zones: list[_GridZone] = self._setting["zones"]
        self._end: float = evidence.run.summary["simulated_s"]
        self._round_rows = np.flatnonzero(self._events["kind"] == "round")  # ends of rounds
        # all portions of energy in one table
        columns = ["device", "task", "start", "end", "joules", "row", "phase"]
        parts = [part.assign(phase=phase)[columns] for phase, part in self._energy_portions()]
        drawn = pd.concat(parts, ignore_index=True)
        # energy of servers (device -1, the appended entry) has the first zone
        drawn["zone"] = np.append(self.table["zone"].to_numpy(), 0)[drawn["device"]]
        drawn["grams"] = 0.0
        for number, zone in enumerate(self.zones):  # sets the rows of one zone after the other
            drawn["grams"] = drawn["grams"].where(drawn["zone"] != number, _grams(zone, drawn))
        self.drawn = drawn
        joules = drawn.groupby(["device", "phase"])["joules"].sum().unstack(fill_value=0)
        self.device_joules = joules.reindex(index=self.table.index, columns=PHASES, fill_value=0.0)

    def _energy_portions(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield name and energy of each phase of devices, of the server and of edge servers.

        Names of phases are ``idle``, ``compute``, ``receive``, ``send`` and ``tail``; the names for
        servers are ``server`` and ``edge``. The energy is a DataFrame with a row for each portion
        and the columns ``device``, ``task``, ``start``, ``end`` (s), ``joules`` and ``row``, the
        record at which the run counted it.
        """
        yield "idle", self._idle_energy()
        yield from self._energy_of_steps()
        yield "tail", self._tail_energy()
        yield from self._energy_of_servers()

    def _energy_of_steps(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the phases ``compute``, ``receive`` and ``send``, each with its steps' energy.

        The energy is a DataFrame with a row for each step of a task. Its column ``joules`` follows
        from the powers of the device, and from the duration and the bytes of the step.
        """
        evidence = self._evidence
        steps = (
            evidence.steps.join(evidence.core_s)
            .join(evidence.recorded_transfers["delivered"])
            .join(self.table, on="device")
        )
        steps = steps.assign(end=steps["time"], row=steps.index)  # a step is recorded at its end
        computing = steps[steps["step"].isin(computing_steps())]
        # core time is recorded only if devices share a host; otherwise it is the step's duration
        core_s = computing["core_s"].fillna(computing["end"] - computing["start"])
        yield "compute", computing.assign(joules=computing["compute_w"] * core_s)
        for phase, step in (("receive", "download"), ("send", "upload")):
            transfers = steps[steps["step"] == step]
            seconds = transfers["end"] - transfers["start"]
            joules = (
                transfers[f"{phase}_w"] * seconds
                + transfers["delivered"] * transfers[f"{phase}_j_byte"]
            )
            yield phase, transfers.assign(joules=joules)

    def _energy_of_servers(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield ``server`` and ``edge``, each with the energy portions of that kind of server.

        A server draws energy for the messages that it sends, receives or forwards. A message of a
        task whose record names a sender or receiver goes between a device and an edge server; the
        server takes no part in it, nor in messages between devices.
        """
        transfers = self._evidence.recorded_transfers
        of_devices = transfers["kind"] == "step-end"
        of_edges = transfers["kind"] == "edge-transfer"
        of_peers = transfers["kind"] == "message"
        names_endpoint = (transfers["sender"] != "") | (transfers["receiver"] != "")
        at_edge_alone = of_devices & names_endpoint
        yield "server", self._energy_of_server_kind("server", ~(at_edge_alone | of_peers))
        yield "edge", self._energy_of_server_kind("edge", of_devices | of_edges)

    def _energy_of_server_kind(self, kind: str, passing: "pd.Series[bool]") -> pd.DataFrame:
        """Return the portions of energy that the server, or all edge servers together, drew.

        Args:
            kind: ``server`` or ``edge``.
            passing: whether each message is sent, received or forwarded by that kind of server;
                bool [messages].

        Returns:
            DataFrame with a row for the idle energy of the whole run, a row for each message and a
            row for each aggregation.
        """
        draws = self._setting[kind]
        aggregates = self._evidence.data_of("aggregate")
        aggregates = aggregates[aggregates["at_edge"] == (kind == "edge")]
        time = self._events["time"][aggregates.index]
        joules = draws["update_j"] * aggregates["tasks"].map(len).astype(float)
        updates = pd.DataFrame({"joules": joules, "start": time, "end": time})
        transfers = self._evidence.recorded_transfers
        messages = transfers[["start", "end"]].assign(
            joules=draws["j_byte"] * transfers["delivered"]
        )
        idle = pd.DataFrame(
            {"joules": draws["idle_w"] * self._end, "start": 0.0, "end": self._end},
            index=[_CONTINUOUS],
        )
        # the index of each part is the row of its record
        parts = pd.concat([idle, messages[passing], updates])
        energy: pd.DataFrame = parts.assign(device=_NO_ID, task=_NO_ID, row=parts.index)
        return energy

    def tails_after_end(self) -> "pd.Series[float]":
        """Return the joules that each device's radio draws after the run's end, indexed by device.

        A radio stays awake for a while after a transfer, possibly beyond the end of the run. The
        records of batteries do not include this last part.
        """
        tails = self.drawn[self.drawn["phase"] == "tail"]
        seconds = (tails["end"] - np.maximum(tails["start"], self._end)).clip(lower=0.0)
        joules = seconds * self._device_values(tails, "tail_w")
        return joules.groupby(tails["device"]).sum().reindex(self.table.index, fill_value=0.0)

    def wasted(self) -> float:
        """Return the energy (J) of tasks whose update was not used, idle energy included."""
        tasks = self._evidence.wasted_tasks
        idle = self._add_joules(tasks.assign(end=tasks["time"]), "idle_w")["joules"].sum()
        of_steps = self.drawn["task"].isin(tasks["task"]) & (self.drawn["phase"] != "idle")
        return float(idle + self.drawn["joules"][of_steps].sum())

    def by_round(self, quantity: str) -> Floats:
        """Return the energy (J) or carbon (g) that counts for each round; float64 [rounds].

        Energy drawn at a constant power counts for the rounds in which it is drawn. Other energy
        counts for the round in which the run's record of it lies.

        Args:
            quantity: ``joules`` or ``grams``.
        """
        end_rows = self._round_rows  # rows of the records that end the rounds; int64 [rounds]
        is_continuous = self.drawn["row"] == _CONTINUOUS
        at_records = self.drawn[~is_continuous]
        round_index = np.searchsorted(end_rows, at_records["row"], side="right")
        # the last entry is for records after the last round, which belong to no round
        of_records = np.bincount(round_index, at_records[quantity], len(end_rows) + 1)[:-1]
        continuous = self.drawn[is_continuous & (self.drawn["end"] > self.drawn["start"])]
        round_ends = self._events["time"].to_numpy()[end_rows]
        until_round = np.zeros(len(end_rows))  # continuous energy up to the end of each round
        if quantity == "grams":
            for index, zone in enumerate(self.zones):
                of_zone = continuous[continuous["zone"] == index]
                until_round += _sum_energy(of_zone, round_ends, zone)
        else:
            until_round += _sum_energy(continuous, round_ends, zone=None)
        return of_records.astype(np.float64) + np.diff(until_round, prepend=0.0)

    def _device_values(self, rows: pd.DataFrame, name: str) -> Floats:
        """Return a value, such as ``idle_w``, of the device of each row; float64 [rows].

        Args:
            rows: DataFrame with ``device``.
            name: column of ``table``, which has the value of each device.
        """
        return self.table[name].to_numpy()[rows["device"]]

    def _add_joules(self, rows: pd.DataFrame, power: str) -> pd.DataFrame:
        """Return rows with the energy of a constant power in the added column ``joules``.

        Args:
            rows: DataFrame with ``device``, ``start`` and ``end`` (s).
            power: name of the device's power in ``table`` (W), such as ``idle_w``.

        Returns:
            The rows with ``joules``, drawn from ``start`` to ``end``, and ``row``, a copy of their
            index.
        """
        joules = self._device_values(rows, power) * (rows["end"] - rows["start"])
        return rows.assign(joules=joules, row=rows.index)

    def _idle_energy(self) -> pd.DataFrame:
        """Return the portions of energy that devices draw at their idle power.

        If the run's setting ``idle_while`` is ``working``, a device draws this power during its
        tasks. Otherwise it draws this power from its first task until it departs or the run ends.
        In the second case, a device with a battery has a portion for each interval between records
        of the battery; any other device has a single portion.
        """
        if self._setting["idle_while"] == "working":
            tasks = self._evidence.tasks
            return self._add_joules(tasks.assign(end=tasks["time"]), "idle_w")
        first_task = self._first_times("task-start")
        departure = self._first_times("departure").reindex(first_task.index)
        end = departure.clip(upper=self._end).fillna(self._end)
        present = pd.DataFrame(
            {"device": first_task.index, "task": _NO_ID, "start": first_task.to_numpy()}
        )
        present["end"] = np.maximum(end.to_numpy(), present["start"])
        drawn = self._add_joules(present, "idle_w").assign(row=_CONTINUOUS)
        if not self._setting["batteries"]:
            return drawn
        without_battery = drawn[np.isinf(self._device_values(drawn, "capacity_j"))]
        return pd.concat([without_battery, self._idle_energy_of_batteries()])

    def _first_times(self, kind: str) -> "pd.Series[float]":
        """Return the time (s) of each device's first record of a kind, indexed by device."""
        records = self._events[self._events["kind"] == kind].drop_duplicates("device")
        return records.set_index("device")["time"].sort_index()

    def _idle_energy_of_batteries(self) -> pd.DataFrame:
        """Return the idle energy of devices with a battery, a row for each interval of its records.

        The records state the idle energy as a running sum since the device's first task.
        """
        records = self._evidence.data_of("battery").join(self._events[["device", "time"]])
        previous = records.groupby("device")[["idle", "time"]].shift()
        intervals = records.assign(
            task=_NO_ID,
            start=previous["time"],
            end=records["time"],
            joules=records["idle"] - previous["idle"],
            row=records.index,
        )
        return intervals.dropna(subset="start")

    def _tail_energy(self) -> pd.DataFrame:
        """Return the energy of radios that stay awake after a transfer, a row for each such tail.

        A tail lasts for the device's ``tail_s``, or ends earlier with the device's next transfer or
        an empty battery.
        """
        events = self._events
        ends_step = events["kind"] == "step-end"
        is_transfer = events["step"].isin(("download", "upload"))
        is_flat = events["outcome"] == "battery"
        begins_tail = ends_step & is_transfer & ~is_flat
        cuts_tail = ((events["kind"] == "step-start") & is_transfer) | (ends_step & is_flat)
        if self._setting["batteries"]:
            battery = self._evidence.data_of("battery")
            cuts_tail |= events.index.isin(battery.index[battery["is_flat"]])
        limits = events.assign(row=events.index)[begins_tail | cuts_tail]
        is_begin = begins_tail[limits.index]
        # the device's next record that begins or cuts a tail; the current tail ends there
        following = limits.groupby("device")[["row", "time"]].shift(-1)
        following = following.fillna({"row": len(events), "time": np.inf})[is_begin]
        tails = limits[is_begin].rename(columns={"time": "start"})
        asleep_at = tails["start"] + self._device_values(tails, "tail_s")
        tails = tails.assign(end=np.minimum(following["time"], asleep_at))
        drawn = self._add_joules(tails, "tail_w")
        rows = self._rows_of_tails(drawn, asleep_at, following["row"].to_numpy())
        return drawn.assign(row=rows)

    def _rows_of_tails(
        self, tails: pd.DataFrame, asleep_at: "pd.Series[float]", cut_row: Ints
    ) -> Ints:
        """Return the row of the record at which the run counts the energy of each radio tail.

        A tail is the time for which a radio stays awake after a transfer. Its energy is counted
        just before the end of the first round that ends after the whole tail. It is counted earlier
        if the device's next transfer or an empty battery comes first.

        Args:
            tails: the tails, with the ``row`` of the record that ends the transfer.
            asleep_at: time at which the radio falls asleep if no transfer follows (s).
            cut_row: row of the record of the next transfer or of the empty battery; int64 [tails].
        """
        round_ends = self._events["time"].to_numpy()[self._round_rows]
        round_index = np.searchsorted(round_ends, asleep_at)
        round_row = np.append(self._round_rows, len(self._events))[round_index]
        row = np.where(round_row <= tails["row"], cut_row, np.minimum(cut_row, round_row - 1))
        return row.astype(np.int64)


def _grams(zone: _GridZone, drawn: pd.DataFrame) -> "pd.Series[float]":
    """Return the carbon of each portion of energy (g), if one zone of the grid supplies all.

    A portion is drawn evenly from its start to its end. So its carbon is its joules times the mean
    of the zone's carbon intensity over that time.
    """
    start = drawn["start"]
    end = drawn["end"]
    hour = np.nan_to_num(np.mod(start + zone["offset_s"], DAY_S) // 3600).astype(np.int64)
    integral = _integrate_intensity(zone, end) - _integrate_intensity(zone, start)
    # a portion of no duration has the intensity of its instant
    intensity = np.where(end > start, integral / (end - start), np.array(zone["hours"])[hour])
    return drawn["joules"] * intensity


def _sum_energy(portions: pd.DataFrame, times: Floats, zone: _GridZone | None) -> Floats:
    """Sum energy at constant powers from the run's begin up to each of given times.

    Args:
        portions: portions of energy, drawn evenly from ``start`` to ``end``.
        times: ends of the sums (s).
        zone: zone of the grid, to sum carbon instead of energy.

    Returns:
        Joules, or grams if ``zone`` is given; float64 [times].
    """
    watts = (portions["joules"] / (portions["end"] - portions["start"])).to_numpy()
    start = portions["start"].to_numpy()
    end = portions["end"].to_numpy()
    if zone is not None:
        # a power times a difference of times is in joules; a power times a difference of the
        # integrated intensity is in grams
        start = _integrate_intensity(zone, start)
        end = _integrate_intensity(zone, end)
        times = _integrate_intensity(zone, times)
    sums = [float(np.sum(watts * (np.clip(time, start, end) - start))) for time in times]
    return np.array(sums, dtype=np.float64)


def _integrate_intensity(zone: _GridZone, times: "Floats | pd.Series[float]") -> Floats:
    """Integrate a zone's carbon intensity (g/J) over time, up to given simulated times (s).

    The integral begins at the last midnight before the run, in the zone's time. Callers use the
    difference of two results: the integral between two times.
    """
    until_hour = np.append(0.0, np.cumsum(zone["hours"])) * 3600.0
    days, time_of_day = np.divmod(times + zone["offset_s"], DAY_S)
    return np.asarray(
        days * until_hour[-1] + np.interp(time_of_day, _HOUR_BEGINS_S, until_hour), dtype=np.float64
    )
