"""The clients as the server sees them: present, idle, arrived; never their data, speed or
labels.
"""

import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import on_grid
from fedsim.common.errors import SimulationError, home_of, shown
from fedsim.common.streams import Shuffle

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

_BYTES_TO_LOOK_AT = 200  # a device, where its phase and its number are kept for it
_LEAST_ASKED = 16  # checking one device or so many for availability takes about the same time


def _memory_bytes() -> int:
    names = getattr(os, "sysconf_names", {})
    return (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if "SC_PHYS_PAGES" in names
        else sys.maxsize
    )


class Clients:
    """The clients as the server sees them (``Server.clients``): which devices can be asked.

    ``idle``, ``arrived``, ``await_return``, ``look_for_shift`` and ``exists`` take the number of
    one device; ``online``, ``reachable`` and ``sample`` return lists of numbers.

    Attributes:
        count: number of all devices, also of those that have not joined yet; they have the numbers
        0 to ``count`` - 1.
    """

    def __init__(self, dispatch: "Dispatch", count: int) -> None:
        self._dispatch = dispatch
        self.count = count

    def online(self) -> list[int]:
        """The devices that are checked in and idle. Looks at every device: O(population).

        Returns:
            Their numbers, ascending; ``Server.ask`` accepts each of them now.

        Raises:
            SimulationError: the machine has no memory to look at so many devices; ``sample`` needs
                none.
        """
        return self._dispatch.idle(self._everybody()).nonzero()[0].tolist()

    def reachable(self) -> list[int]:
        """The devices that can be reached, whether they work or not. Looks at every device:
        O(population).

        Returns:
            Their numbers, ascending.

        Raises:
            SimulationError: the machine has no memory to look at so many devices.
        """
        return self._dispatch.tasks.reachable(self._everybody()).nonzero()[0].tolist()

    def _everybody(self) -> NDArray[np.int64]:
        """All devices, to be looked at together; ``SimulationError``: this machine has no room
        for so many.
        """
        needed = self.count * _BYTES_TO_LOOK_AT
        there = _memory_bytes()
        if needed > there:
            raise SimulationError(
                f"the strategy looks at all {self.count:,} devices at once, which takes some "
                f"{needed / 1e9:.0f} GB, and this "
                f"machine has {there / 1e9:.0f}; allowed are {there // _BYTES_TO_LOOK_AT:,} "
                "devices, or a strategy that draws "
                "its clients at random (fedavg), which looks at those alone"
            )
        return np.arange(self.count)

    def sample(
        self, count: int, purpose: str, *ids: int, among: Sequence[int] | None = None
    ) -> list[int]:
        """``count`` devices, uniformly without replacement out of those checked in and idle;
        fewer if there are not so many.

        Takes the first available ones along a random permutation, at a cost independent of the
        population; absent devices do not change the order of the others.

        Args:
            count: how many devices at most.
            purpose: name of the draw's stream (``strategy/purpose``), such as ``"select"``.
            ids: further numbers that name the stream, such as the round; two draws of the same name
                are the same draw.
            among: the devices to draw from, each once; None: all.

        Returns:
            Numbers of devices in the order drawn; empty if no device is available.
        """
        generator = self._dispatch.streams.generator(f"strategy/{purpose}", *ids)
        shuffle = Shuffle(generator, self.count if among is None else len(among))
        chosen: list[int] = []
        while shuffle.remaining and len(chosen) < count:
            places = shuffle.draw(max(count - len(chosen), _LEAST_ASKED))
            devices = np.array(
                places if among is None else [among[place] for place in places], dtype=np.int64
            )
            chosen += devices[self._dispatch.idle(devices)].tolist()
        return chosen[:count]

    def anyone_ever(self, at_least: int = 1) -> bool:
        """Whether some device is there now or will be some time.

        Args:
            at_least: the number of devices that must be; with more than 1 it looks at every device.

        Returns:
            False: it makes no sense to wait (``Server.look_again`` ends the run then).
        """
        if at_least == 1:
            return self._dispatch.tasks.anyone_ever()
        return len(list(islice(filter(self._ever, range(self.count)), at_least))) == at_least

    def _ever(self, device: int) -> bool:
        return self._dispatch.tasks.next_on(device, self._dispatch.simulation.now) < math.inf

    def expects_newcomers(self) -> bool:
        """Whether some device will still join that can ever be reached: then it makes sense to
        wait.
        """
        coming = np.flatnonzero(
            self._dispatch.population.arrival > self._dispatch.simulation.now
        ).tolist()
        return any(map(self._ever, coming))

    def idle(self, device: int) -> bool:
        """Whether a device is checked in and has nothing to do, so that ``Server.ask`` accepts
        it now.

        Args:
            device: number of one device.
        """
        return self._dispatch.is_idle(device)

    def arrived(self, device: int) -> bool:
        """Whether a device has joined the population, be it here or away by now.

        Args:
            device: number of one device. ``Strategy.on_arrival`` announces those that join later.
        """
        return bool(self._dispatch.population.arrival[device] <= self._dispatch.simulation.now)

    def await_return(self, device: int, delay: float = 0.0) -> bool:
        """Call ``Strategy.on_return`` with a device as soon as it can be reached.

        Args:
            device: number of one device.
            delay: time from now (s) before which the call does not come.

        Returns:
            False if the device will never be reachable again; then there is no call.
        """
        when = self._dispatch.tasks.next_on(device, on_grid(self._dispatch.simulation.now + delay))
        if when < math.inf:
            self._dispatch.tell_at("return", device, when)
        return when < math.inf

    async def look_for_shift(self, device: int) -> None:
        """Let a device whose data have changed send its message again (``Client.on_shift``).

        For a strategy that could not use the message when it came. ``Strategy.on_shift`` is awaited
        before this returns, if the data are others than those of the device's last task.

        Args:
            device: number of one device.
        """
        devices = self._dispatch.devices
        if devices.population.version.item(device) != devices.used_versions.get(device, 0):
            await self._dispatch.tell_shift(device)

    def exists(self, device: Any) -> bool:
        """Whether a value is the number of a device.

        Args:
            device: any value.
        """
        return isinstance(device, int | np.integer) and 0 <= int(device) < self.count

    def chosen(
        self, devices: Sequence[int], by: Callable[..., Any], *, idle: bool = True
    ) -> list[int]:
        """Check a choice of devices, such as that of a selection.

        Args:
            devices: numbers of devices; a list, tuple, range or array.
            by: the function that has chosen them, which the error names.
            idle: whether they must be available and idle now.

        Returns:
            The same devices as a list.

        Raises:
            SimulationError: no sequence, a number of no device, one twice or, with ``idle``, one
                that is away or busy.
        """
        if not isinstance(devices, list | tuple | range | np.ndarray):
            raise SimulationError(
                f"{by.__qualname__}{home_of(by)} returns {shown(devices)}; allowed is a list "
                "of devices"
            )
        known = np.array(
            sorted({int(device) for device in devices if self.exists(device)}), dtype=np.int64
        )
        free = set((known[self._dispatch.idle(known)] if idle else known).tolist())
        seen: set[int] = set()
        for device in devices:
            if not self.exists(device) or device in seen or device not in free:
                why = (
                    ""
                    if not self.exists(device)
                    else " twice"
                    if device in seen
                    else ", which is not there or is busy"
                )
                wanted = " that are there and idle (Clients.sample, Clients.online)" if idle else ""
                raise SimulationError(
                    f"{by.__qualname__}{home_of(by)} has chosen device {device!r}{why}; "
                    "allowed are devices of 0 to "
                    f"{self.count - 1}{wanted}, each once"
                )
            seen.add(device)
        return list(devices)
