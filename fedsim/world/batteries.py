"""Batteries of devices: they drain by steps, charge while plugged in, and run flat.

The energy in a battery changes linearly between two breakpoints. A breakpoint is a time, in whole
ticks of the clock, at which the power changes: a charger is plugged in or out, the battery is full,
flat or charged enough to restart, a radio falls asleep, or a task's step begins or ends. So the
level at any time follows from the last breakpoint. A device draws its idle power all the time, also
while it is disconnected. If its battery is flat, the device is off until the battery is charged to
the level at which it restarts.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypedDict

import numpy as np

from fedsim.clock.simulation import TICK_S, Alarm, Simulation, on_grid
from fedsim.common.arrays import AnyArray, Flags, Floats, Ints
from fedsim.common.saved import saved
from fedsim.world.availability import Availability
from fedsim.world.charging import Charging
from fedsim.world.phases import Span
from fedsim.world.steps import TaskStep

_NO_TIMES = array("d")
_AT, _LEVEL, _FLAT, _TAIL = range(4)  # columns of ``Batteries._points``
_AHEAD_S = 3_600.0  # longest time (s) between checks of a battery in a transfer of unknown end


class BatteriesState(TypedDict):
    """State of ``Batteries`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        points: state of each device's battery at its last update, float64 [devices, 7]. Columns are
            the time (s), the level (J), whether the battery is flat, the time at which the radio
            falls asleep (s), and the energy so far that was charged, drawn as idle power and drawn
            for tasks (J).
        loads: device with a running task -> power and energy that the running step draws.
        turns: device -> times (s) at which its battery alternately ran flat and restarted.
        paths: device -> time (s) and level (J) of each breakpoint since the device's last record
            ``battery``, as one flat list.
    """

    points: Floats
    loads: dict[int, "Load"]
    turns: dict[int, list[float]]
    paths: dict[int, list[float]]


@saved()
@dataclass(slots=True)
class Load:
    """Power and energy that the running step of a device's task draws from its battery.

    Attributes:
        watts: power in addition to idle power (W).
        moves: whether the device sends or receives.
        byte: energy of each byte of the message (J).
        moved: bytes of the message whose energy has been subtracted from the battery's level.
        is_at_risk: whether the battery may be flat before the end of the message.
        rate: rate of the message (bytes/s) if the battery ``is_at_risk``; otherwise 0.
        was_flat: whether the battery was flat when the task began. Such a task is cut off immediately
            and draws no energy, while the battery may charge.
    """

    watts: float = 0.0
    moves: bool = False
    byte: float = 0.0
    moved: float = 0.0
    is_at_risk: bool = False
    rate: float = 0.0
    was_flat: bool = False

    @property
    def total_w(self) -> float:
        """Power of the step in addition to idle power (W).

        If the battery ``is_at_risk``, it includes the energy of the message's bytes at ``rate``.
        """
        return self.watts + self.byte * self.rate


class FlatPrediction(NamedTuple):
    """Prediction of when a device's battery is flat, if the device goes on as it does now.

    Attributes:
        when: if ``is_flat``, time at which the battery becomes flat (s); otherwise, a time up to
            which the battery is not flat (s).
        is_flat: whether the battery is predicted to be flat at ``when``.
        is_at_risk: whether the battery may be flat before the end of the device's message, so that
            the prediction holds only for the message's present rate.
    """

    when: float
    is_flat: bool
    is_at_risk: bool


@dataclass(slots=True)
class _Point:
    """State of a battery at one time.

    Attributes:
        at: the time (s).
        level: energy in the battery (J).
        flat: whether the battery is flat.
        tail: time at which the device's radio falls asleep (s).
        charged, idled, drawn: total energy so far that was charged, drawn as idle power, and drawn
            for tasks (J).
    """

    at: float
    level: float
    flat: bool
    tail: float
    charged: float
    idled: float
    drawn: float


@dataclass(slots=True)
class _Course:
    """Linear course of the energy in a battery, until a change of its power (a breakpoint).

    Attributes:
        end: time of the breakpoint (s).
        net_w: net power into the battery (W): ``charge_w`` less ``idle_w`` and ``task_w``.
        charge_w, idle_w, task_w: power of the charger, idle power, and power of tasks (W).
        capacity: highest possible level (J).
        target: level at the breakpoint (J) if the battery is then full, flat or charged enough to
            restart; None if the level follows from ``net``.
    """

    end: float
    net_w: float
    charge_w: float
    idle_w: float
    task_w: float
    capacity: float
    target: float | None = None

    def follow(self, point: _Point, to: float) -> None:
        """Change ``point``, the state of the battery, to the state at ``to`` (s), at most ``end``.

        The level at ``end`` is ``target`` (J), if there is one: the battery is then full, flat (0),
        or charged enough to restart a flat device. Powers are in W; ``tail`` is the time at which
        the device's radio falls asleep.
        """
        seconds = to - point.at
        point.charged += self.charge_w * seconds
        point.idled += self.idle_w * seconds
        point.drawn += self.task_w * seconds
        if to == self.end and self.target is not None:
            point.level = self.target
            point.flat = self.target == 0
            # a tail does not continue after the restart of a flat device
            point.tail = 0.0 if point.flat else point.tail
        else:
            # ``to`` is rounded to a tick, so that the level could be below 0 or above the capacity
            point.level = min(max(0.0, point.level + self.net_w * seconds), self.capacity)
        point.at = to


class Batteries:
    """Energy in the batteries of all devices, if the scenario has batteries.

    A battery of infinite capacity is ignored. A record ``battery`` is emitted when a task begins or
    ends, when a device runs flat while its radio is still awake after a task, and at the end of the
    run for each device that had a task. The record has these fields:

    * ``level``: energy in the battery (J).
    * ``charged``, ``idle``, ``drawn``: energy since the device joined that was charged, drawn as idle
      power, and drawn for tasks (J).
    * ``flat``: whether the battery is flat.
    * ``path``: the breakpoints [time (s), level (J)] since the device's last record. A breakpoint is
      a time at which the power changes.

    Args:
        simulation: the clock.
        columns: values of the energy meter and of the batteries, such as ``idle_w`` (W) and
            ``capacity_j`` (J): name -> float64 [devices].
        restart: share of the capacity at which a flat device restarts.
        charging: phases in which devices are plugged in.
        arrival: time at which each device joins (s), float64 [devices].
    """

    def __init__(
        self,
        simulation: Simulation,
        columns: Mapping[str, AnyArray],
        restart: float,
        charging: Charging,
        arrival: Floats,
    ) -> None:
        self._simulation = simulation
        self._columns = columns
        self._restart = restart
        self._charging = charging
        # fields of the `_Point` of each device at its last breakpoint, [devices, 7]
        self._points = np.zeros((len(arrival), 7))
        self._points[:, _AT] = arrival
        self._points[:, _LEVEL] = columns["initial_j"]
        self._points[:, _FLAT] = columns["initial_j"] <= 0
        self._loads: dict[int, Load] = {}  # device with a task -> load of its running step
        # device that ever ran flat -> times (s) at which it changed between flat and not flat
        self._turns: dict[int, array[float]] = {}
        # device that ever had a task -> time (s) and level (J) of each unreported breakpoint
        self._paths: dict[int, array[float]] = {}
        # device without a task -> alarm at which its battery runs flat, while its radio is awake
        self._alarms: dict[int, Alarm] = {}
        simulation.env.declare_alarm("flat", self._set_flat_alarm)

    def has(self, device: int) -> bool:
        """Whether the device has a battery of finite capacity, which can run flat."""
        return self._coefficient(device, "capacity_j") < math.inf

    def up(self, devices: Ints, time: float) -> Flags:
        """Return whether the batteries of devices have energy (are not flat) at a time; bool [n].

        Args:
            devices: indices of the devices, int64 [n].
            time: the time (s).
        """
        columns = self._columns
        points = self._points[devices]
        # A battery becomes flat at the nearest tick, which may be before the exact time.
        elapsed_s = time + TICK_S - points[:, _AT]
        idle_j = columns["idle_w"][devices] * elapsed_s
        tail_j = columns["tail_w"][devices] * columns["tail_s"][devices]
        most_j = idle_j + tail_j  # upper bound of the energy drawn since the stored level
        is_up: Flags = (points[:, _FLAT] == 0) & (points[:, _LEVEL] > most_j)
        # the other devices may be flat, and are computed exactly
        for position in np.flatnonzero(~is_up).tolist():
            is_up[position] = self.next_up(int(devices[position]), time) <= time
        return is_up

    def next_up(self, device: int, time: float) -> float:
        """Return the first time (s), not before ``time``, at which an idle device is not flat.

        If the device stays flat up to the end of the run, the result is a time after the end, or
        infinity.
        """
        has_task = device in self._loads  # the task ends when its device runs flat
        if not self.has(device) or (has_task and not self._points[device, _FLAT]):
            return time
        point = self._point(device)
        if not has_task:  # breakpoints until now are final, as no task can change them
            self._follow_breakpoints(device, point, min(time, self._simulation.now), is_final=True)
        self._follow_breakpoints(device, point, time)
        while point.flat:
            course = self._find_course(device, point)
            if course.end > self._simulation.end:  # the device restarts after the run
                return course.end
            course.follow(point, course.end)
        return max(time, point.at)

    def phase_at(self, device: int, time: float) -> Span:
        """Return the interval around a past time in which a battery was flat, or was not flat.

        Args:
            device: index of the device.
            time: the past time (s).

        Returns:
            Begin and end of the interval; ``on`` is true if the battery was not flat.
        """
        if device not in self._loads:  # without a task, the turns until now are not stored yet
            now = self._simulation.now
            self._follow_breakpoints(device, self._point(device), now, is_final=True)
        turns = self._turns.get(device, _NO_TIMES)  # times of changes between flat and not flat
        passed = bisect_right(turns, time)  # count of the changes until ``time``
        is_odd = bool(passed % 2)  # after an even count of changes the first state is back
        was_up = self._columns["initial_j"].item(device) > 0
        is_up = was_up != is_odd
        start = turns[passed - 1] if passed else 0.0
        end = turns[passed] if passed < len(turns) else math.inf
        return Span(is_up, start, end)

    def charge(self, device: int) -> float:
        """Return the charge of a battery now, as a share of its capacity, 0 to 1.

        The result is 1 for a device without a battery. The stored state does not change.
        """
        if not self.has(device):
            return 1.0
        point = self._point(device)
        now = self._simulation.now
        load = self._loads.get(device, Load())
        course = self._follow_breakpoints(device, point, now, load.total_w)
        course.follow(point, now)
        return point.level / self._coefficient(device, "capacity_j")

    def plugged_in(self, device: int) -> bool:
        """Whether the device is on a charger now; true for a device without a battery."""
        return not self.has(device) or self._charging.span(device, self._simulation.now).on

    # tasks and steps of a device with a battery

    def begin_task(self, device: int) -> None:
        alarm = self._alarms.pop(device, None)
        if alarm is not None:
            alarm.cancel()
        self._paths.setdefault(device, array("d"))
        self._emit_battery(device)
        self._loads[device] = Load(was_flat=bool(self._points[device, _FLAT]))

    def begin_step(self, device: int, step: TaskStep) -> None:
        self.update(device)
        watts = 0.0 if step.power is None else self._coefficient(device, f"{step.power}_w")
        load = Load(watts, was_flat=self._loads[device].was_flat)
        self._loads[device] = load
        if step.direction is not None:
            load.moves = True
            load.byte = self._coefficient(device, f"{step.power}_j_byte")
            self._points[device, _TAIL] = 0.0

    def flat_at(self, device: int, until: float) -> float:
        """Return the time (s) at which a device runs flat during its step, up to ``until`` (s).

        The result is infinity if the device does not run flat by ``until``. It is also infinity if
        the device was flat when its task began, as such a task ends immediately, as ``lost``.
        """
        if self._loads[device].was_flat:
            return math.inf
        point = self._point(device)
        watts = self._loads[device].total_w
        self._follow_breakpoints(
            device, point, min(until, self._simulation.end), watts, to_flat=True
        )
        return point.at if point.flat else math.inf

    def predict(self, device: int, remaining: float, rate: float) -> FlatPrediction:
        """Predict when a device runs flat during a step without a known end, up to an hour ahead.

        In such a step the device sends, receives or waits. The method also stores in the device's
        ``Load`` whether the battery may be flat before the end of the message, and the rate of the
        message for which the prediction holds.

        Args:
            device: index of the device.
            remaining: remaining payload of its message (bytes); 0 while it waits.
            rate: present rate of the message (bytes of payload/s).
        """
        point = self._point(device)
        load = self._loads[device]
        until = self._simulation.now + _AHEAD_S
        if load.was_flat:  # the task is cut off immediately, and draws no energy
            return FlatPrediction(until, is_flat=False, is_at_risk=False)
        # energy for the rest of the message, set aside if the battery has enough of it
        reserve = load.byte * remaining
        load.is_at_risk = reserve >= point.level
        load.rate = 0.0
        if load.is_at_risk:  # no reserve is set aside, and the bytes at the present rate draw power
            load.rate = rate
            reserve = 0.0
        point.level -= reserve
        self._follow_breakpoints(device, point, until, load.total_w, to_flat=True, reserve=reserve)
        when = point.at if point.flat else until
        # a battery that has used all but its reserve is not flat, and is checked again
        is_flat = point.flat and not reserve
        return FlatPrediction(when, is_flat, load.is_at_risk)

    def end_step(self, device: int, moved: float, *, is_flat: bool) -> None:
        """End a device's running step now: subtract its energy, and stop drawing its power.

        After a transfer the radio stays awake for a time (``tail_s``), unless the battery is flat.

        Args:
            device: index of the device.
            moved: payload transferred in the step (bytes).
            is_flat: whether an empty battery ended the step.
        """
        self.update(device, moved)
        load = self._loads[device]
        self._loads[device] = Load(was_flat=load.was_flat)
        point = self._point(device)
        # The level reaches 0 within this tick. A device that was flat when its task began may have
        # charged since.
        if is_flat and not load.was_flat:
            point.level = 0.0
            point.flat = True
            point.tail = 0.0
            self._store_point(device, point)
            return
        is_awake = load.moves and not point.flat  # the radio of a flat device sleeps
        if is_awake and self._coefficient(device, "tail_w"):
            self._points[device, _TAIL] = self._simulation.now + self._coefficient(device, "tail_s")

    def end_task(self, device: int) -> None:
        del self._loads[device]
        self._emit_battery(device)
        point = self._point(device)
        self._follow_breakpoints(device, point, point.tail, to_flat=True)
        if point.flat and not self._points[device, _FLAT]:
            self._set_flat_alarm(device, point.at)

    def _set_flat_alarm(self, device: int, when: float) -> None:
        """Set the alarm for the time ``when`` (s) at which an idle device's battery runs flat."""
        self._alarms[device] = self._simulation.wake(
            ("flat", device), when, partial(self._record_flat, device)
        )

    def _record_flat(self, device: int) -> None:
        del self._alarms[device]
        self._emit_battery(device)

    def close(self) -> None:
        """Emit the last record ``battery`` of each device that had a task, at the end of the run."""
        for device in sorted(self._paths):
            self._emit_battery(device)

    def _coefficient(self, device: int, name: str) -> float:
        coefficient: float = self._columns[name].item(device)
        return coefficient

    # the level of a battery, which is linear between times at which its power changes (breakpoints)

    def _point(self, device: int) -> _Point:
        return _Point(*self._points[device].tolist())

    def _store_point(self, device: int, point: _Point) -> None:
        if point.flat != self._points[device, _FLAT]:
            self._turns.setdefault(device, array("d")).append(point.at)
        self._points[device] = [getattr(point, name) for name in _Point.__slots__]

    def _find_course(
        self, device: int, point: _Point, watts: float = 0.0, reserve: float = 0.0
    ) -> _Course:
        """Return how the energy in a battery changes from a point on, up to the next breakpoint.

        At a breakpoint the device is plugged in or out, its radio falls asleep, or its battery is
        full, flat, or charged enough to restart the device.

        Args:
            device: index of the device.
            point: state of the battery at the begin of the course.
            watts: power of the device's task (W).
            reserve: energy that is subtracted from the capacity (J).
        """
        capacity = self._coefficient(device, "capacity_j") - reserve
        charge_w, end = self._charger_at(device, point.at)
        if point.flat:
            idle_w = 0.0
            task_w = 0.0
            net_w = charge_w
            target = self._restart * capacity  # the device restarts at this level
        else:
            idle_w = self._coefficient(device, "idle_w")
            task_w = watts
            if point.at < point.tail:
                end = min(end, point.tail)
                task_w += self._coefficient(device, "tail_w")
            net_w = charge_w - idle_w - task_w
            if net_w >= 0 and point.level >= capacity:
                net_w = 0.0
                charge_w = idle_w + task_w  # a full battery is charged with the power that is drawn
            target = capacity if net_w > 0 else 0.0
        # a course ends when the charger or the radio changes, or when the level reaches ``target``
        course = _Course(end, net_w, charge_w, idle_w, task_w, capacity)
        if net_w:
            # A course of no length could make a device with a tiny battery run flat and restart
            # without end at one instant.
            reached = max(on_grid(point.at + (target - point.level) / net_w), point.at + TICK_S)
            if reached <= end:
                course.end = reached
                course.target = target
        return course

    def _charger_at(self, device: int, time: float) -> tuple[float, float]:
        """Return the power of a device's charger (W), 0 while unplugged, and until when (s)."""
        charge_w = self._coefficient(device, "charge_w")
        if not charge_w:
            return 0.0, math.inf
        is_plugged_in, _, end = self._charging.span(device, time)
        return charge_w if is_plugged_in else 0.0, end

    def _follow_breakpoints(
        self,
        device: int,
        point: _Point,
        until: float,
        watts: float = 0.0,
        reserve: float = 0.0,
        *,
        to_flat: bool = False,
        is_final: bool = False,
    ) -> _Course:
        """Compute the state of a battery at its breakpoints, up to the last breakpoint before a time.

        A breakpoint is a time at which the power into or out of the battery changes.

        Args:
            device: index of the device.
            point: a copy of the state of the battery; it becomes the state at the last breakpoint.
            until: time up to which breakpoints are computed (s).
            watts: power of the device's task (W).
            reserve: energy that is set aside for the rest of a message (J). It is subtracted from
                the capacity here. The caller must subtract it from the level of ``point`` before.
            to_flat: whether to stop at the first breakpoint at which the battery is flat.
            is_final: whether to store the state at each breakpoint. False for a prediction, which
                must not change the battery.

        Returns:
            The linear course of the energy after the last breakpoint.
        """
        while True:
            course = self._find_course(device, point, watts, reserve)
            if course.end > until or (to_flat and point.flat):
                return course
            course.follow(point, course.end)
            if is_final:
                self._store_point(device, point)
                if device in self._paths:  # the breakpoint belongs to the device's next record
                    self._paths[device].extend((point.at, point.level))

    def update(self, device: int, moved: float = 0.0) -> None:
        """Update a battery to the present time: subtract the energy drawn since its last update.

        The energy of the bytes that were transferred since the last update is drawn evenly over the
        time since then. If the battery may be flat before the end of the message
        (``Load.is_at_risk``), the energy of bytes at the predicted rate ``Load.rate`` is drawn
        instead, and the difference to the transferred bytes is subtracted at the present time.

        Args:
            device: index of the device.
            moved: payload transferred so far in the running step (bytes).
        """
        point = self._point(device)
        load = self._loads.get(device, Load())
        now = self._simulation.now
        elapsed_s = now - point.at
        watts = load.total_w
        bytes_j = load.byte * (moved - load.moved)  # energy of the bytes since the last update
        if load.is_at_risk:  # ``watts`` already has the energy of the predicted bytes
            predicted_j = load.byte * load.rate * elapsed_s
            at_once_j = bytes_j - predicted_j
        elif load.moves and elapsed_s > 0:
            watts += bytes_j / elapsed_s
            at_once_j = 0.0
        else:
            at_once_j = bytes_j
        if elapsed_s <= 0 and not at_once_j:  # the battery is up to date
            return
        if elapsed_s > 0:
            course = self._follow_breakpoints(device, point, now, watts, is_final=True)
            if now > point.at:
                course.follow(point, now)
        # ``at_once_j`` may be below 0, and would then lift the level of a full battery above its
        # capacity.
        level = point.level - at_once_j
        point.level = min(max(0.0, level), self._coefficient(device, "capacity_j"))
        point.drawn += at_once_j
        load.moved = max(moved, load.moved)
        self._store_point(device, point)

    def _emit_battery(self, device: int) -> None:
        """Emit a record ``battery``, with the breakpoints since the device's last such record."""
        self.update(device)
        path = np.array(self._paths[device]).reshape(-1, 2).tolist()  # pairs of time and level
        self._paths[device] = array("d")
        point = self._point(device)
        fields = {
            "device": device,
            "level": point.level,
            "charged": point.charged,
            "idle": point.idled,
            "drawn": point.drawn,
            "flat": bool(point.flat),
            "path": path,
        }
        self._simulation.record("battery", fields)

    def snapshot(self) -> BatteriesState:
        return {
            "points": self._points,
            "loads": self._loads,
            "turns": {device: times.tolist() for device, times in self._turns.items()},
            "paths": {device: times.tolist() for device, times in self._paths.items()},
        }

    def restore(self, state: BatteriesState) -> None:
        self._points = state["points"]
        self._loads = state["loads"]
        self._turns = {device: array("d", times) for device, times in state["turns"].items()}
        self._paths = {device: array("d", times) for device, times in state["paths"].items()}


class Powered(Availability):
    """Availability in which a device is also unreachable while its battery is flat.

    ``span`` uses the battery's state at the given time: it ignores that the battery may run flat
    before the end of an on phase. ``phase_at`` returns the actual phases of the past.

    Args:
        within: availability without batteries.
        batteries: the devices' batteries.
    """

    def __init__(self, within: Availability, batteries: Batteries) -> None:
        self._within = within
        self._batteries = batteries

    def span(self, device: int, time: float) -> Span:
        span = self._within.span(device, time)
        up = self._batteries.next_up(device, time)
        if not span.on or up <= time:
            return span
        return Span(False, time, up)

    def phase_at(self, device: int, time: float) -> Span:
        """Return the on or off phase around a past time; the device is off while its battery is flat.

        Args:
            device: index of the device.
            time: the past time (s).
        """
        within = self._within.span(device, time)
        battery = self._batteries.phase_at(device, time)
        start = max(within.start, battery.start)
        end = min(within.end, battery.end)
        return Span(within.on and battery.on, start, end)

    def next_on(self, device: int, time: float) -> float:
        while time < math.inf:
            when = self._within.next_on(device, time)
            if when == math.inf:
                break
            time = self._batteries.next_up(device, when)
            if time == when:
                return when
        return math.inf

    def on(self, devices: Ints, time: float) -> Flags:
        on = self._within.on(devices, time)
        on[on] = self._batteries.up(devices[on], time)
        return on
