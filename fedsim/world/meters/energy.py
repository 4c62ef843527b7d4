"""Meter of energy: joules by device and phase and their CO2 emissions, counted from the records.

A device draws ``idle`` power during a task, and ``compute``, ``receive``, ``send`` and ``tail`` in
addition. A tail is the time for which the radio stays awake after a transfer, up to the device's
next transfer, even beyond the run's end. The energy of a phase is added when the phase is over. The
server's side has the totals ``server`` and ``edge``. Carbon intensity may differ by zone and hour.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common import step_names
from fedsim.common.arrays import AnyArray
from fedsim.world.meters.base import Column, Meter
from fedsim.world.meters.ended import Step
from fedsim.world.meters.fields import (
    BatteryFields,
    EdgeTransferFields,
    ServerTransferFields,
    StepFields,
    TaskEndFields,
    TaskFields,
    UpdatesFields,
)

TABLE = "energy.parquet"
SETTING = "energy.json"
PHASES = ("idle", "compute", "receive", "send", "tail")
PLACES = ("server", "edge")
COEFFICIENTS = (
    "idle_w",
    "compute_w",
    "receive_w",
    "send_w",
    "receive_j_byte",
    "send_j_byte",
    "tail_w",
    "tail_s",
)
"""Names of a device's coefficients: powers (W), energies per byte (J), and length of a tail (s)."""
Power = Literal["receive", "send", "compute"]
"""Phases in which a device draws power, except ``idle`` and ``tail``."""
POWERS: dict[str, Power] = {
    step_names.DOWNLOAD: "receive",
    step_names.UPLOAD: "send",
    step_names.TRAIN: "compute",
    step_names.EVALUATE: "compute",
    step_names.COMPUTE: "compute",
    step_names.DECODE: "compute",
    step_names.ENCODE: "compute",
}
"""Name of a step in records -> phase whose power the device draws during the step.

Steps during which a device draws only idle power have no entry. The powers of fedsim's own steps are
repeated here because an audit reads records without loading the steps; a test compares them with the
classes of ``world.steps``. ``TaskStep`` adds the kinds of steps that users define.
"""
DAY_S = 86_400.0
_HOUR_S = 3_600.0


def computing_steps() -> list[str]:
    """Return the names of the task steps during which a device draws its computing power."""
    return [name for name, power in POWERS.items() if power == "compute"]


class Zone:
    """Zone of the power grid, with its carbon intensity by hour.

    Args:
        hours: carbon intensity in each hour of the zone's day (g/J), 24 values.
        offset: time of day in the zone at the start of the run (s).
    """

    def __init__(self, hours: list[float], offset: float) -> None:
        self._hours = hours
        self._offset = offset
        self._is_constant = len(set(hours)) == 1
        # integral of the intensity from midnight to each hour (g s/J)
        self._until_hour = [math.fsum(hours[:hour]) * _HOUR_S for hour in range(25)]

    def grams(self, joules: float, start: float, end: float) -> float:
        """Compute the emissions of energy that is drawn evenly over an interval, or at one instant.

        Args:
            joules: the energy (J).
            start: begin of the interval (s).
            end: end of the interval (s); equal to ``start`` for an instant.

        Returns:
            CO2 emissions (g).
        """
        # ``_hours``: carbon intensity of each hour of the day (g/J)
        if self._is_constant:
            return joules * self._hours[0]
        # energy of an instant; ``_offset`` is the time of day in the zone at the start of the run
        if end <= start:
            hour = int((start + self._offset) % DAY_S // _HOUR_S)
            return joules * self._hours[hour]
        return joules * (self._integral(end) - self._integral(start)) / (end - start)

    def _integral(self, time: float) -> float:
        """Integrate the carbon intensity from the midnight before the run to ``time`` (g s/J).

        Args:
            time: simulated time (s).
        """
        # ``_hours``: carbon intensity of each hour of a day; ``_until_hour``: its integral from
        # midnight to the begin of each hour, and to the end of the day at index 24
        days, day_s = divmod(time + self._offset, DAY_S)
        hour = int(day_s // _HOUR_S)
        return (
            days * self._until_hour[24]
            + self._until_hour[hour]
            + (day_s - hour * _HOUR_S) * self._hours[hour]
        )


class EnergyMeter(Meter):
    """Meter of the energy (J) that devices and servers draw in a run, and of its CO2 (g).

    Args:
        columns: coefficient, such as ``compute_w`` -> its value for each device, [devices]; and
            ``zone`` -> index of each device's zone.
        setting: settings that do not depend on the device: ``batteries`` (whether devices have
            batteries), ``server`` and ``edge`` (coefficients from ``PlaceSpec.coefficients``), and
            ``zones`` (``ZoneProfile`` of each zone of the power grid).
    """

    round_columns = (
        Column(
            "joules", "J", "drawn since the round before ended: a phase is booked when it is over"
        ),
        Column("grams", "g", "of CO2 of these"),
    )
    device_columns = (Column("joules", "J", "drawn in all phases"),)
    tables: ClassVar = {
        TABLE: {"device": int, "zone": int}
        | dict.fromkeys((*COEFFICIENTS, "capacity_j", "initial_j", "charge_w"), float)
        | dict.fromkeys((*(f"{phase}_j" for phase in PHASES), "grams"), float)
    }
    fixed = ("columns", "setting", "_zones")

    def __init__(self, columns: Mapping[str, AnyArray], setting: Mapping[str, Any]) -> None:
        self.columns = columns
        self.setting = setting
        self._zones = [Zone(zone["hours"], zone["offset_s"]) for zone in setting["zones"]]
        self._grams = np.zeros(len(columns["zone"]))  # CO2 of each device
        # phase -> energy of each device in this phase (J)
        self._books = {phase: np.zeros_like(self._grams) for phase in PHASES}
        # phase of devices, or ``server`` or ``edge`` -> energy of all devices or servers (J)
        self.by_phase = dict.fromkeys((*PHASES, *PLACES), 0.0)
        # energy of tasks whose work was not used (J): they failed, had no epoch that counts, or
        # their update was lost at an edge server
        self.wasted = 0.0
        self.grams: float | None = 0.0 if self._zones else None
        self._places_since = 0.0  # time up to which the idle energy of places is counted (s)
        # running task's ID -> its begin (s), and the energy that it has drawn beyond idle (J)
        self._tasks: dict[int, tuple[float, float]] = {}
        # ID -> True of each running task with a training that had no epoch that counts; the energy
        # of the whole task is wasted when the task ends
        self._idlers: dict[int, bool] = {}
        # task ID -> energy (J) of a task that transfers through an edge server, where its update
        # may be lost
        self._at_edges: dict[int, float] = {}
        # device -> begin of its radio's tail (s), task ID, and whether the task is wasted
        self._tails: dict[int, tuple[float, int, bool]] = {}

    def totals(self, time: float) -> dict[str, float | None]:
        self._book_unfinished(time, is_run_over=False)
        return {"joules": math.fsum(self.by_phase.values()), "grams": self.grams}

    def close(self, time: float) -> None:
        self._book_unfinished(time, is_run_over=True)

    def summary(self) -> dict[str, object]:
        entry: dict[str, object] = {
            "joules": math.fsum(self.by_phase.values()),
            "by_phase": dict(self.by_phase),
            "wasted": self.wasted,
        }
        if self.grams is not None:
            entry["grams"] = self.grams
        return entry

    def of_devices(self) -> dict[str, NDArray[np.float64]]:
        """Return the totals of each device.

        Returns:
            Column name -> float64 [devices]: joules of each phase (``idle_j`` and so on), their sum
            ``joules``, and ``grams`` of CO2.
        """
        totals = {f"{phase}_j": joules for phase, joules in self._books.items()}
        totals["joules"] = sum(self._books.values(), np.zeros(len(self._grams)))
        totals["grams"] = self._grams
        return totals

    def files(self) -> dict[str, object]:
        """Return the files of the meter in the run's folder.

        Returns:
            ``energy.parquet`` -> table with each device's coefficients and totals; ``energy.json``
            -> the settings that do not depend on the device.
        """
        devices = np.arange(len(self._grams))
        return {
            TABLE: {"device": devices, **self.columns, **self.of_devices()},
            SETTING: self.setting,
        }

    def _book(self, device: int, phase: str, joules: float, start: float, end: float) -> None:
        """Add energy to the totals of a device and of all devices, with its emissions.

        Args:
            device: index of the device.
            phase: the phase in which the energy was drawn, one of ``PHASES``.
            joules: the energy (J).
            start: begin of the time in which the energy was drawn (s).
            end: end of that time (s).
        """
        self._books[phase][device] += joules
        self.by_phase[phase] += joules  # ``by_phase``: totals of all devices
        if self.grams is not None:
            grams = self._zones[self.columns["zone"].item(device)].grams(joules, start, end)
            self._grams[device] += grams
            self.grams += grams

    def _book_server_side(
        self, places: Sequence[str], coefficient: str, amount: float, start: float, end: float
    ) -> None:
        """Add energy of the server's side, with its emissions in the first zone.

        Args:
            places: the places at which it is drawn: ``server``, ``edge`` or both.
            coefficient: ``idle_w``, ``update_j`` or ``j_byte``.
            amount: the coefficient's factor: seconds, updates or bytes.
            start: begin of the time in which the energy is drawn (s).
            end: end of that time (s).
        """
        for place in places:
            joules = self.setting[place][coefficient] * amount
            self.by_phase[place] += joules
            if self.grams is not None:
                self.grams += self._zones[0].grams(joules, start, end)

    def _coefficient(self, device: int, name: str) -> float:
        coefficient: float = self.columns[name].item(device)
        return coefficient

    def _book_unfinished(self, time: float, *, is_run_over: bool) -> None:
        """Add the energy for which there is no record: servers' idle power, and radios' tails.

        A tail is the time for which a device's radio stays awake after a transfer.

        Args:
            time: time up to which idle energy is added (s).
            is_run_over: whether all tails are added in full; otherwise, only the tails that have ended
                by ``time``.
        """
        self._book_server_side(
            PLACES, "idle_w", time - self._places_since, self._places_since, time
        )
        self._places_since = time
        # the loop is over a copy, as ``_end_tail`` removes a tail from ``_tails``
        for device, (begin, _, _) in list(self._tails.items()):
            if is_run_over:
                self._end_tail(device, math.inf)
            elif begin + self._coefficient(device, "tail_s") <= time:
                self._end_tail(device, time)

    def _end_tail(self, device: int, time: float) -> None:
        """Add the energy that a device's radio has drawn while it stayed awake after a transfer.

        Nothing is added if the device's radio is not awake.

        Args:
            device: index of the device.
            time: latest end of the radio's tail (s).
        """
        tail = self._tails.pop(device, None)
        if tail is None:
            return
        begin, task, is_wasted = tail
        end = min(time, begin + self._coefficient(device, "tail_s"))
        joules = self._coefficient(device, "tail_w") * (end - begin)
        self._book(device, "tail", joules, begin, end)
        self._charge_task(task, joules, is_wasted)

    def _charge_task(self, task: int, joules: float, is_wasted: bool = False) -> None:
        """Add energy of a device to the task that caused it, to find wasted energy.

        The totals of devices and phases do not change; ``_book`` adds to them.

        Args:
            task: ID of the task.
            joules: the energy (J).
            is_wasted: whether the task has ended and its result is not used, so that the energy
                counts as wasted.
        """
        if task in self._tasks:  # the task is still running
            begin, drawn = self._tasks[task]
            self._tasks[task] = begin, drawn + joules
        elif is_wasted:
            self.wasted += joules
        elif task in self._at_edges:  # the task's update may still be lost at an edge server
            self._at_edges[task] += joules

    def on_task_start(self, time: float, fields: TaskFields) -> None:
        self._tasks[fields["task"]] = time, 0.0

    def on_step_start(self, time: float, fields: StepFields) -> None:
        if POWERS.get(fields["step"]) in ("receive", "send"):
            self._end_tail(fields["device"], time)

    def on_step(self, ended: Step) -> None:
        start, end, device, task, step, outcome, fields = ended
        phase = POWERS.get(step)
        if phase is None:  # a step that draws idle power only
            return
        if phase == "compute":
            # core time on a host that devices share; other devices compute for the whole step
            core_s = fields.get("core_s", end - start)
            joules = self._coefficient(device, "compute_w") * core_s
        else:
            joules = self._book_transfer(ended, phase)
        if step == "train" and not fields["epochs"]:  # the whole task will count as wasted
            self._idlers[task] = True
        if outcome == "battery":  # the radio of a flat device sleeps
            self._end_tail(device, end)
        self._book(device, phase, joules, start, end)
        self._charge_task(task, joules)

    def _book_transfer(self, ended: Step, phase: Literal["receive", "send"]) -> float:
        """Return the energy that a device has drawn for a message of its task (J).

        The method also adds the energy of the message at the server's side to the totals, and begins
        the tail, the time for which the device's radio stays awake.

        Args:
            ended: the step ``download`` or ``upload``.
            phase: ``receive`` or ``send``.
        """
        start, end, device, task, _, outcome, fields = ended
        delivered = fields["delivered"]
        joules: float = (
            self._coefficient(device, f"{phase}_w") * (end - start)
            + self._coefficient(device, f"{phase}_j_byte") * delivered
        )
        # a record names the sender or receiver only if it is an edge server instead of the server
        if "sender" in fields or "receiver" in fields:
            self._at_edges[task] = 0.0  # the energy is stored here at the end of the task
            self._book_server_side(("edge",), "j_byte", delivered, start, end)
        else:
            self._book_server_side(PLACES, "j_byte", delivered, start, end)
        if self._coefficient(device, "tail_w") and outcome != "battery":
            self._tails[device] = end, task, False
        return joules

    def on_task_end(self, time: float, fields: TaskEndFields) -> None:
        task = fields["task"]
        device = fields["device"]
        begin, drawn = self._tasks.pop(task)  # ``drawn``: energy in addition to idle power (J)
        trained_nothing = self._idlers.pop(task, False)
        is_wasted = trained_nothing or fields["outcome"] != "done"
        idle = self._coefficient(device, "idle_w") * (time - begin)
        joules = drawn + idle
        if is_wasted:
            self.wasted += joules
            self._at_edges.pop(task, None)
        elif task in self._at_edges:  # the energy is wasted if the edge server loses the update
            self._at_edges[task] = joules
        # the energy of the radio's tail, which goes on after the task, is wasted with the task
        if device in self._tails:
            tail_begin, tail_task, _ = self._tails[device]
            if tail_task == task:
                self._tails[device] = tail_begin, task, is_wasted
        self._book(device, "idle", idle, begin, time)

    def on_battery(self, time: float, fields: BatteryFields) -> None:
        if fields["flat"]:
            self._end_tail(fields["device"], time)

    def on_aggregate(self, time: float, fields: UpdatesFields) -> None:
        place = "edge" if "edge" in fields else "server"
        self._book_server_side((place,), "update_j", len(fields["tasks"]), time, time)

    def on_edge_transfer(self, time: float, fields: EdgeTransferFields) -> None:
        self._book_server_side(PLACES, "j_byte", fields["delivered"], fields["start"], time)

    def on_updates_lost(self, time: float, fields: UpdatesFields) -> None:
        """Count the energy of tasks whose updates are lost at an edge server as wasted.

        The energy of the devices' radios after their last transfer is included.

        Args:
            time: time of the record (s).
            fields: fields of the record ``updates-lost``.
        """
        lost_tasks = fields["tasks"]
        # ``_at_edges``: energy of each ended task whose update is at an edge server
        self.wasted += math.fsum([self._at_edges.pop(task, 0.0) for task in lost_tasks])
        for device, (begin, task, _) in self._tails.items():
            if task in lost_tasks:  # the energy of this tail, caused by the task, is wasted too
                self._tails[device] = begin, task, True

    def on_round(self, time: float, fields: Mapping[str, object]) -> None:
        """Forget the energy of ended tasks whose updates went to edge servers, at the end of a round.

        These updates cannot be lost any more, so their energy is not wasted.

        Args:
            time: time of the record (s).
            fields: fields of the record ``round``.
        """
        running = self._tasks  # the updates of running tasks can still be lost
        self._at_edges = {
            task: joules for task, joules in self._at_edges.items() if task in running
        }

    def on_server_transfer(self, time: float, fields: ServerTransferFields) -> None:
        self._book_server_side(("server",), "j_byte", fields["bytes"], time, time)
