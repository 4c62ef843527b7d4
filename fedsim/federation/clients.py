"""The clients as the server sees them: which of them can be asked."""

import os
import sys
from collections.abc import Callable, Sequence
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError, home_of, shown
from fedsim.simulation import on_grid
from fedsim.streams import Shuffle

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

_NUMBERS = (int, np.integer)
_BYTES_TO_LOOK_AT = 200  # a device, where its phase and its number are kept for it
_LEAST_ASKED = 16  # to ask of one device or of so many whether they can be had takes about the same time


def _memory_bytes() -> int:
    """Memory of this machine; where nobody says so, as much as may be."""
    names = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else sys.maxsize


class Clients:
    """All devices, by number; ``count`` is how many there are."""

    def __init__(self, dispatch: "Dispatch", count: int) -> None:
        self._dispatch = dispatch
        self.count = count

    @property
    def _now(self) -> float:
        return self._dispatch.simulation.now

    # All of them.

    def online(self) -> list[int]:
        """The devices that are checked in and idle, in order of their numbers. Looks at every device: O(population)."""
        online: list[int] = np.flatnonzero(self._dispatch.idle(self._everybody())).tolist()
        return online

    def reachable(self) -> list[int]:
        """The devices that can be reached, whether they work or not, in order of their numbers. Looks at every device."""
        found: list[int] = np.flatnonzero(self._dispatch.tasks.reachable(self._everybody())).tolist()
        return found

    def _everybody(self) -> NDArray[np.int64]:
        """All devices, to be looked at together.

        Raises:
            SimulationError: there are so many that this machine has no room for it.
        """
        needed, there = self.count * _BYTES_TO_LOOK_AT, _memory_bytes()
        if needed > there:
            raise SimulationError(
                f"the strategy looks at all {self.count:,} devices at once, which takes some {needed / 1e9:.0f} GB, and this "
                f"machine has {there / 1e9:.0f}; allowed are {there // _BYTES_TO_LOOK_AT:,} devices, or a strategy that draws "
                "its clients at random (fedavg), which looks at those alone"
            )
        return np.arange(self.count)

    def sample(self, count: int, purpose: str, *ids: int, among: Sequence[int] | None = None) -> list[int]:
        """``count`` devices, uniformly without replacement out of those checked in and idle; fewer if there are not so many.

        Walks a random permutation of all devices, or of those ``among`` which to choose (the stream ``strategy/purpose``,
        ids), and takes the first that can be had, so the cost does not grow with the population, and a device that is away
        changes no other's place.
        """
        generator = self._dispatch.streams.generator(f"strategy/{purpose}", *ids)
        shuffle = Shuffle(generator, self.count if among is None else len(among))
        chosen: list[int] = []
        while shuffle.remaining and len(chosen) < count:
            places = shuffle.draw(max(count - len(chosen), _LEAST_ASKED))
            devices = np.array(places if among is None else [among[place] for place in places], dtype=np.int64)
            chosen += devices[self._dispatch.idle(devices)].tolist()
        return chosen[:count]

    def anyone_ever(self, at_least: int = 1) -> bool:
        """Whether ``at_least`` so many devices are there now or will be some time."""
        if at_least == 1:
            return self._dispatch.tasks.anyone_ever()
        ever = (device for device in range(self.count) if self._dispatch.tasks.next_on(device, self._now) < float("inf"))
        return len(list(islice(ever, at_least))) == at_least

    def expects_newcomers(self) -> bool:
        """Whether some device will still join that can ever be reached: then it makes sense to wait."""
        coming = np.flatnonzero(self._dispatch.population.arrival > self._now).tolist()
        return any(self._dispatch.tasks.next_on(device, self._now) < float("inf") for device in coming)

    # One of them.

    def idle(self, device: int) -> bool:
        """Whether a device is checked in and has nothing to do."""
        return self._dispatch.is_idle(device)

    def arrived(self, device: int) -> bool:
        """Whether a device has joined the population, be it here or away by now; ``on_arrival`` announces the others."""
        return bool(self._dispatch.population.arrival[device] <= self._now)

    def await_return(self, device: int, delay: float = 0.0) -> bool:
        """Call the strategy's ``on_return(device)`` when the device can be reached, ``delay`` (s) from now at the earliest.

        Returns:
            Whether that will ever be; if not, nothing is called.
        """
        when = self._dispatch.tasks.next_on(device, on_grid(self._now + delay))
        if when == float("inf"):
            return False
        self._dispatch.rearm("return", device, when)
        return True

    async def look_for_shift(self, device: int) -> None:
        """Let a device see whether its data are others than those on which it last worked; then ``on_shift`` follows at once.

        For one that has just got something to compare them with: when they changed it could not tell.
        """
        if self._dispatch.devices.has_changed(device):
            await self._dispatch.tell_shift(device)

    def exists(self, device: Any) -> bool:
        """Whether this is the number of a device."""
        return isinstance(device, _NUMBERS) and 0 <= int(device) < self.count

    def chosen(self, devices: Sequence[int], by: Callable[..., Any], *, idle: bool = True) -> list[int]:
        """The devices that a function has chosen to be asked.

        Args:
            devices: which.
            by: the function.
            idle: whether all must be there and idle; whoever asks others learns soon that they are disconnected.

        Raises:
            SimulationError: one cannot be asked; says which, and where the function stands.
        """
        if not isinstance(devices, list | tuple | range | np.ndarray):
            raise SimulationError(f"{by.__qualname__}{home_of(by)} returns {shown(devices)}; allowed is a list of devices")
        seen: set[int] = set()
        there = list(map(self.exists, devices))
        known = np.array(sorted({int(device) for device in compress(devices, there)}), dtype=np.int64)
        free = set((known[self._dispatch.idle(known)] if idle else known).tolist())
        if all(there) and len(free) == len(devices):  # all are there and different, as they should be
            return list(devices)
        for device, exists in zip(devices, there, strict=True):
            if not exists or device in seen or device not in free:
                why = "" if not exists else " twice" if device in seen else ", which is not there or is busy"
                wanted = " that are there and idle (Clients.sample, Clients.online)" if idle else ""
                raise SimulationError(
                    f"{by.__qualname__}{home_of(by)} has chosen device {device!r}{why}; allowed are devices of 0 to "
                    f"{self.count - 1}{wanted}, each once"
                )
            seen.add(device)
        return list(devices)
