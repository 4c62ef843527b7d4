"""CATA-Fed on the devices: splitting one's data when it is too much for the time given (straggler mitigation, SMS).

This side knows its own data and keeps its own counts. The server learns of it by messages alone: what a device reports is
what its messages say.
"""

from collections.abc import Callable

from fedsim.server import DeviceFacts
from fedsim.training import Part

State = dict[str, list[int]]


def most_splits(samples: int, smallest_part: int) -> int:
    """beta = floor(log2(|D| / pi)), at least 0: how often |D| samples may be halved (Eq. 10)."""
    return max(0, (samples // smallest_part).bit_length() - 1)


class Clients:
    """The devices' side of CATA-Fed. Each method is one device's own doing and looks at nothing of another's.

    Args:
        state: ``splits`` (u) and ``selected`` (n) of each device; ``Clients.fresh`` makes it.
        facts: what a device knows of itself.
        smallest_part: pi, the samples below which a device does not split; None where no device ever splits.
    """

    def __init__(self, state: State, facts: Callable[[int], DeviceFacts], smallest_part: int | None) -> None:
        self._state = state
        self._facts = facts
        self._smallest_part = smallest_part

    @staticmethod
    def fresh(devices: int) -> State:
        """The state of devices that never connected."""
        return {"splits": [0] * devices, "selected": [0] * devices}

    def connect(self, device: int) -> None:
        """Begin anew, with all data in one piece."""
        self._state["splits"][device] = self._state["selected"][device] = 0

    def size(self, device: int) -> int:
        """What the device reports: the size of its largest part, all its samples before any split."""
        return self._part(device, 1).samples

    def sizes(self, device: int) -> list[int]:
        """The sizes of all its parts."""
        return [self._part(device, number).samples for number in range(1, 2 ** self._state["splits"][device] + 1)]

    def take_part(self, device: int) -> Part | None:
        """The device was selected once more: the part that it trains on, x = 1 + n mod 2^u (Eq. 12); None before any split."""
        self._state["selected"][device] += 1
        splits = self._state["splits"][device]
        if not splits:
            return None
        number = 1 + self._state["selected"][device] % 2**splits
        return self._part(device, number)

    def may_split(self, device: int) -> bool:
        """Whether the device's parts may be halved once more: u < beta."""
        if self._smallest_part is None:
            return False
        return self._state["splits"][device] < most_splits(self._facts(device).samples, self._smallest_part)

    def split(self, device: int) -> bool:
        """The device could not finish: halve its parts if it may (Eq. 10); returns whether it did."""
        may = self.may_split(device)
        self._state["splits"][device] += may
        return may

    def _part(self, device: int, number: int) -> Part:
        return Part(self._state["splits"][device], number, self._facts(device).samples)
