"""Notices to a strategy about single devices: a return, a newcomer, or changed data."""

import math
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from fedsim.clock.simulation import Handler, Simulation
from fedsim.federation.client_halves import ClientHalves
from fedsim.federation.contents import received
from fedsim.federation.devices import Devices
from fedsim.federation.events import Handlers

if TYPE_CHECKING:
    from fedsim.world.task_runner import TaskRunner


class NoticeKind(Enum):
    """Kind of a notice: a device has returned, is new, or has changed data.

    The value names the notice in checkpoints.
    """

    RETURN = "return"
    NEWCOMER = "newcomer"
    SHIFT = "shift"


class Notices:
    """Delivers notices about a device as soon as the device can be reached.

    A notice is a call of ``Strategy.on_return``, of ``Strategy.on_arrival``, or of
    ``Strategy.on_shift`` with the device's message about its changed data.

    Args:
        simulation: the clock.
        devices: the devices as their own code sees them.
        tasks: the tasks on the devices.
        strategy: the strategy's code on the server.
        halves: the strategy's code on each device.

    Attributes:
        postponed: kind and device of each notice that waits until the device is switched on.
    """

    def __init__(
        self,
        simulation: Simulation,
        devices: Devices,
        tasks: "TaskRunner",
        strategy: Handlers,
        halves: ClientHalves,
    ) -> None:
        self._simulation = simulation
        self._devices = devices
        self._tasks = tasks
        self._strategy = strategy
        self._halves = halves
        # kind and device of each notice that waits until the device is switched on
        self.postponed: list[tuple[NoticeKind, int]] = []
        # kind and device of each notice that has an alarm
        self._scheduled: set[tuple[NoticeKind, int]] = set()
        for kind in NoticeKind:  # so that a resumed run can set the alarms of its checkpoint again
            simulation.env.declare_alarm(kind.value, partial(self.notify_at, kind))

    def notify(self, kind: NoticeKind, device: int) -> None:
        """Notify the strategy about a device, now or as soon as the device can be reached.

        A device that is switched off cannot be reached. The strategy is not notified if the device
        can never be reached again.

        Args:
            kind: the event, and so the method that is called: ``Strategy.on_return``,
                ``on_arrival`` or ``on_shift``.
            device: ID of the device.
        """
        now = self._simulation.now
        self._scheduled.discard((kind, device))  # the alarm of the notice, if any, has rung
        if device in self._tasks.switched_off:  # ``on_switched_on`` will notify the strategy
            self.postponed.append((kind, device))
            return
        when = self._tasks.next_on(device, now)
        if when <= now:
            self._simulation.post(self._handler(kind, device))
        elif when < math.inf:
            self.notify_at(kind, device, when)

    def notify_at(self, kind: NoticeKind, device: int, when: float) -> None:
        """Notify the strategy about a device at a later time, or as soon after as ``notify`` can.

        Args:
            kind: kind of the notice.
            device: ID of the device.
            when: the absolute time (s), a multiple of the clock's tick.
        """
        self._scheduled.add((kind, device))
        self._simulation.wake((kind.value, device), when, partial(self.notify, kind, device))

    def notify_once(self, kind: NoticeKind, device: int) -> None:
        """Notify the strategy as ``notify`` does, unless such a notice waits already.

        A notice waits while its device cannot be reached.

        Args:
            kind: kind of the notice, such as changed data.
            device: ID of the device that the notice is about.
        """
        notice = (kind, device)
        if notice not in self._scheduled and notice not in self.postponed:
            self.notify(kind, device)

    def _handler(self, kind: NoticeKind, device: int) -> Handler:
        match kind:
            case NoticeKind.RETURN:
                return partial(self._strategy.on_return, device)
            case NoticeKind.NEWCOMER:
                return partial(self._strategy.on_arrival, device)
            case NoticeKind.SHIFT:
                return partial(self.pass_on_shift, device)

    async def pass_on_shift(self, device: int) -> None:
        """Pass a device's message about its changed data to the strategy's code on the server.

        The message is the result of ``Client.on_shift``; there is none if the result is None.

        Args:
            device: ID of the device.
        """
        contents = self._halves.of(device).on_shift(self._devices.of(device))
        if contents is not None:
            await self._strategy.on_shift(device, received(contents))

    def on_switched_on(self, device: int) -> None:
        """Schedule the notices that waited until a device was switched on."""
        kinds = [kind for kind, number in self.postponed if number == device]
        self.postponed = [(kind, number) for kind, number in self.postponed if number != device]
        for kind in kinds:
            self.notify_at(kind, device, self._tasks.next_on(device, self._simulation.now))

    def snapshot(self) -> list[tuple[str, int]]:
        """Return kind and device of each postponed notice, which a checkpoint saves.

        A notice is postponed while a process of the world, such as an outage, has switched the
        device off. Any other notice has a known time; the clock saves it as an alarm.
        """
        return [(kind.value, device) for kind, device in self.postponed]

    def restore(self, state: list[tuple[str, int]]) -> None:
        """Set the postponed notices that ``snapshot`` returned, when a run is resumed."""
        self.postponed = [(NoticeKind(kind), device) for kind, device in state]
