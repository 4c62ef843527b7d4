"""The clients as the server sees them: whether they are present, idle, or have joined.

The server sees neither data, labels nor speed of a client.
"""

import math
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import on_grid
from fedsim.common.arguments import (
    CALLABLE,
    COUNT,
    FLAG,
    LIST,
    STREAM_ID,
    TEXT,
    is_index,
    number,
    optional,
    plain,
    refusal,
    takes,
)
from fedsim.common.errors import SimulationError, home_of, show_value
from fedsim.common.former_names import warn_renamed
from fedsim.common.machine import usable_memory
from fedsim.common.streams import Shuffle
from fedsim.federation.argument_rules import device_of
from fedsim.federation.notices import NoticeKind

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

# memory for each device while all devices are examined, as in a selection (bytes)
_BYTES_PER_DEVICE = 200
_DEVICE = device_of(attrgetter("count"))
# least count of devices whose availability is checked together: 1 takes about as long as 16
_LEAST_CHECKED = 16


class Clients:
    """API of a strategy's server code for the devices: which exist, and which can be asked.

    A strategy reads it as ``Server.clients``. A device in one of these states is also in all states
    that are listed before it:

    - A device *exists* if its ID is in the population (``exists``).
    - It has *joined* if the time of its arrival is over, even if it has left since (``joined``).
    - It is *reachable* if it is available now, with or without a task (``reachable``).
    - It is *idle* if it is reachable and has no task whose end the server does not know yet
      (``idle``, ``idle_devices``).

    A strategy asks idle devices. ``Server.ask`` refuses a device with a running task, and the task
    of a device that is not reachable is lost immediately.

    ``exists``, ``joined``, ``idle``, ``await_return`` and ``look_for_shift`` take the ID of one
    device; ``reachable``, ``idle_devices`` and ``sample`` return lists of IDs.

    A call with a wrong argument raises ``SimulationError``, which names the argument and its value.

    Attributes:
        count: count of all devices, including devices that have not joined yet. Their IDs are 0 to
            ``count`` - 1.
    """

    def __init__(self, dispatch: "Dispatch", count: int) -> None:
        self._dispatch = dispatch
        self.count = count

    def idle_devices(self) -> list[int]:
        """Return the idle devices, which the server can ask now.

        The call looks at every device: O(population).

        Returns:
            IDs of devices, ascending.

        Raises:
            SimulationError: the machine lacks the memory to look at all devices; ``sample`` does
                not look at all of them.
        """
        return self._are_idle(self._all_devices()).nonzero()[0].tolist()

    def reachable(self) -> list[int]:
        """Return the devices that are reachable, idle or with a task.

        The call looks at every device: O(population).

        Returns:
            IDs of devices, ascending.

        Raises:
            SimulationError: the machine lacks the memory to look at all devices.
        """
        return self._dispatch.tasks.reachable(self._all_devices()).nonzero()[0].tolist()

    def _all_devices(self) -> NDArray[np.int64]:
        """Return the IDs of all devices, int64 [devices].

        Raises:
            SimulationError: the machine lacks the memory to look at all devices.
        """
        demand = self.count * _BYTES_PER_DEVICE
        memory = usable_memory()
        if demand > memory:
            raise SimulationError(
                f"the strategy looks at all {self.count:,} devices at once, which takes some "
                f"{demand / 1e9:.0f} GB, and this process may use {memory / 1e9:.0f}; allowed are "
                f"{memory // _BYTES_PER_DEVICE:,} devices, or a strategy that draws its clients "
                "at random (fedavg), which looks at those alone"
            )
        return np.arange(self.count)

    @takes(count=COUNT, purpose=TEXT, ids=STREAM_ID, among=optional(LIST))
    def sample(
        self, count: int, purpose: str, *ids: int, among: Sequence[int] | None = None
    ) -> list[int]:
        """Draw idle devices uniformly, without replacement.

        The call takes the first idle devices along a random permutation, at a cost independent of
        the population. Absent devices do not change the order of the present ones.

        Args:
            count: the largest count of devices that are drawn.
            purpose: a word that names the random stream of the draw, such as ``"select"`` for the
                stream ``strategy/select``.
            ids: numbers that complete the name of the stream, such as the round. Two draws with the
                same name use the same permutation.
            among: the devices to draw from, each once; None: all.

        Returns:
            IDs of devices in the order drawn, fewer than ``count`` if fewer are idle.

        Example:
            A cohort that is drawn anew each minute, in ``mine.py``:

            >>> from fedsim.plugin import Strategy
            >>> class Draws(Strategy):
            ...     async def on_start(self):
            ...         self.state |= {"model": self.server.models.initial(), "draw": 0}
            ...         self.server.timer("draw", 60.0)
            ...     async def on_timer(self, name):
            ...         self.state["draw"] += 1
            ...         cohort = self.server.clients.sample(3, "cohort", self.state["draw"])
            ...         self.server.emit("cohort", size=len(cohort), different=len(set(cohort)))
            ...         self.server.stop("one draw is enough")
            ...     async def on_task_end(self, message):
            ...         pass
            ...     def models(self):
            ...         return {"global": (self.state["model"], None)}

            >>> import fedsim
            >>> scenario = fedsim.Scenario(
            ...     learning="off", population={"devices": 10}, strategy={"kind": "mine:Draws"}
            ... )
            >>> events = fedsim.run(scenario, "runs/draws").events
            >>> events.query("kind == 'cohort'")["data"].tolist()
            [{'different': 3, 'size': 3}]

        Raises:
            SimulationError: an argument is wrong, such as a device in ``among`` that does not exist.
        """
        generator = self._dispatch.streams.generator(f"strategy/{purpose}", *ids)
        shuffle = Shuffle(generator, self.count if among is None else len(among))
        drawn: list[int] = []
        while shuffle.remaining and len(drawn) < count:
            missing = count - len(drawn)
            # at least ``_LEAST_CHECKED`` candidates, as some may not be idle
            candidates = shuffle.draw(max(missing, _LEAST_CHECKED))
            if among is not None:  # then the drawn numbers are indices in ``among``
                candidates = [among[index] for index in candidates]
                self._refuse_unknown(candidates)
            devices = np.array(candidates, dtype=np.int64)
            drawn += devices[self._are_idle(devices)].tolist()
        return drawn[:count]

    @takes(at_least=COUNT)
    def anyone_ever(self, at_least: int = 1) -> bool:
        """Return whether enough devices can be reached now or at some later time.

        Args:
            at_least: count of devices that are enough; above 1 the call looks at every device.

        Returns:
            False if waiting is useless; ``Server.look_again`` then ends the run.
        """
        if at_least == 1:
            return self._dispatch.tasks.anyone_ever()
        returning = filter(self._can_return, range(self.count))
        first_returning = list(islice(returning, at_least))  # looks at no device after these
        return len(first_returning) == at_least

    def _can_return(self, device: int) -> bool:
        return self._dispatch.tasks.next_on(device, self._dispatch.simulation.now) < math.inf

    def expects_newcomers(self) -> bool:
        """Return whether any device will still join the population and be reachable afterwards."""
        is_coming = self._dispatch.population.arrival > self._dispatch.simulation.now
        newcomers = np.flatnonzero(is_coming).tolist()
        return any(self._can_return(device) for device in newcomers)

    @takes(device=_DEVICE)
    def idle(self, device: int) -> bool:
        """Return whether a device is idle, so that the server can ask it now.

        Args:
            device: ID of a device.
        """
        dispatch = self._dispatch
        return dispatch.tasks.is_idle(device) and device not in dispatch.lost_tasks.devices()

    def _are_idle(self, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of several devices is idle; bool [len(devices)].

        Args:
            devices: IDs of devices, no ID twice.
        """
        dispatch = self._dispatch
        idle = dispatch.tasks.idle(devices)
        if not dispatch.lost_tasks.unnoticed:
            return idle
        return idle & ~np.isin(devices, dispatch.lost_tasks.devices())

    @takes(device=_DEVICE)
    def joined(self, device: int) -> bool:
        """Return whether a device has joined the population, including one that has left since.

        Args:
            device: ID of a device. ``Strategy.on_arrival`` announces later arrivals.
        """
        return bool(self._dispatch.population.arrival[device] <= self._dispatch.simulation.now)

    @takes(device=_DEVICE, delay=number(least=0.0))
    def await_return(self, device: int, delay: float = 0.0) -> bool:
        """Request a call of ``Strategy.on_return`` as soon as a device can be reached.

        Args:
            device: ID of a device.
            delay: least time from now to the call (s).

        Returns:
            False if the device will never be reachable again; then there is no call.
        """
        earliest = on_grid(self._dispatch.simulation.now + delay)
        return_time = self._dispatch.tasks.next_on(device, earliest)
        if return_time == math.inf:
            return False
        self._dispatch.notices.notify_at(NoticeKind.RETURN, device, return_time)
        return True

    @takes(device=_DEVICE)
    async def look_for_shift(self, device: int) -> None:
        """Make a device send its message about changed data again (``Client.on_shift``).

        Use this method if the strategy could not use the message when it arrived. The message is
        sent only if the data differ from the data of the device's last task. From a device that is
        reachable, ``Strategy.on_shift`` receives it before this method returns; from another device
        as soon as it is reachable again.

        Args:
            device: ID of a device.
        """
        devices = self._dispatch.devices
        # versions of the device's data: now, and in the device's last task
        present_version = devices.population.version.item(device)
        last_version = devices.used_versions.get(device, 0)
        if present_version == last_version:
            return
        notices = self._dispatch.notices
        is_reachable = self._dispatch.tasks.reachable_until(device) > self._dispatch.simulation.now
        if is_reachable:
            await notices.pass_on_shift(device)
        else:
            notices.notify_once(NoticeKind.SHIFT, device)

    def exists(self, device: object) -> bool:
        """Return whether a value is the ID of a device.

        Args:
            device: any value.
        """
        index = plain(device)
        return isinstance(index, int) and is_index(index) and index < self.count

    @takes(by=CALLABLE, idle=FLAG)
    def chosen(
        self, devices: Sequence[int], by: Callable[..., object], *, idle: bool = True
    ) -> list[int]:
        """Check the devices that a method such as ``select`` has chosen; return them as a list.

        Args:
            devices: IDs of devices; a list, tuple, range or array.
            by: the function that has chosen the devices, which the error names.
            idle: whether the devices must be idle now.

        Returns:
            The same devices as a list.

        Raises:
            SimulationError: ``devices`` is no sequence, has an ID of no device, has a device twice
                or, with ``idle``, has a device that is not idle.
        """
        if not isinstance(devices, list | tuple | range | np.ndarray):
            raise SimulationError(
                f"{by.__qualname__}{home_of(by)} returns {show_value(devices)}; allowed is a list "
                "of devices"
            )
        existing = {int(device) for device in devices if self.exists(device)}
        candidates = np.array(sorted(existing), dtype=np.int64)
        if idle:
            candidates = candidates[self._are_idle(candidates)]
        allowed = set(candidates.tolist())
        if len(allowed) == len(devices):  # otherwise a device is not allowed, or is listed twice
            return list(devices)
        device, fault = self._find_fault(devices, allowed)
        condition = ""
        if idle:
            condition = " that are there and idle (Clients.sample, Clients.idle_devices)"
        raise SimulationError(
            f"{by.__qualname__}{home_of(by)} has chosen device {device!r}{fault}; "
            f"allowed are devices of 0 to {self.count - 1}{condition}, each once"
        )

    def _refuse_unknown(self, devices: Sequence[int]) -> None:
        for device in devices:
            if not self.exists(device):
                allowed = f"a list of devices of 0 to {self.count - 1}"
                raise refusal("Clients.sample", "a device in among", device, allowed)

    def _find_fault(self, devices: Sequence[int], allowed: Collection[int]) -> tuple[int, str]:
        """Return the first wrong device of a selection, and text that names its fault.

        The text follows the device in a message. It is empty for an ID that belongs to no device.

        Args:
            devices: the selected devices, at least one of which is wrong.
            allowed: the devices of the selection that may be selected.
        """
        earlier: set[int] = set()
        for device in devices:
            if not self.exists(device):
                return device, ""
            if device not in allowed:
                return device, ", which is not there or is busy"
            if device in earlier:
                return device, " twice"
            earlier.add(device)
        raise AssertionError("no device of the selection is wrong")

    def online(self) -> list[int]:
        """Former name of ``idle_devices``."""
        warn_renamed("Clients.online", "idle_devices")
        return self.idle_devices()

    def arrived(self, device: int) -> bool:
        """Former name of ``joined``.

        Args:
            device: ID of a device.
        """
        warn_renamed("Clients.arrived", "joined")
        return self.joined(device)
