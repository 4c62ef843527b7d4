"""Bytes on the links of nodes: byte counters of a router's network interfaces, sampled over time.

``python -m fedsim.deployed.wire FILE CLIENTS`` samples the interfaces ``c1``, ``c2`` and so on, to
which the nodes of the devices 0, 1 and so on are connected.
"""

import bisect
import sys
import time
from pathlib import Path
from typing import NamedTuple

from fedsim.common.files import read_text

FILE = "wire.csv"
"""File in the folder of step logs: time of the day (s), device, bytes to it and from it so far."""
_EVERY_S = 0.05
# positions of the byte counters in a line of /proc/net/dev, after the interface's name
_RECEIVED = 0
_SENT = 8


def sample(file: Path, clients: int) -> None:
    """Record the byte counters of clients' links whenever they change, until the process is killed.

    The link of device 0 is the interface ``c1`` of this process's network namespace, the link of
    device 1 is ``c2``, and so on.

    Args:
        file: the file to write: lines with time of the day (s), device, and bytes so far to the
            device and from it, separated by commas.
        clients: count of clients.
    """
    last: dict[int, tuple[int, int]] = {}
    with file.open("w", encoding="utf-8", buffering=1) as rows:
        while True:
            now = time.time()
            interface_lines = read_text(Path("/proc/self/net/dev")).splitlines()
            for line in interface_lines:
                name, _, text = line.partition(":")
                number = name.strip().removeprefix("c")
                if not number.isdecimal() or not 1 <= int(number) <= clients:
                    continue  # another interface, or a title
                device = int(number) - 1
                counters = text.split()
                # the interface is the router's end of the link: it sends what the client receives
                down = int(counters[_SENT])
                up = int(counters[_RECEIVED])
                if last.get(device) != (down, up):
                    last[device] = down, up
                    rows.write(f"{now:.3f},{device},{down},{up}\n")
            time.sleep(_EVERY_S)


class Passage(NamedTuple):
    """Time span in which a message passed over a device's link, and the bytes on the link.

    Attributes:
        first: time (s) at which the message began to pass: until then, less than 3 % of its bytes
            had passed.
        last: time (s) at which the message had passed: the link had carried as many bytes as the
            message has.
        bytes: all bytes that the link carried in the span of time that was searched, headers
            included.
    """

    first: float
    last: float
    bytes: float


_FIRST_SHARE = 0.03  # share of a message's bytes after which its passage counts as begun


class WireCounters:
    """Reader of the recorded byte counters of devices' links, to find when messages passed.

    Args:
        file: the file that ``sample`` has written.
        began: time of the day at which the clock began (s since 1970).
    """

    def __init__(self, file: Path, began: float) -> None:
        self._times: dict[int, list[float]] = {}  # device -> times of its samples
        # device and direction -> bytes so far at each of these times
        self._counts: dict[tuple[int, str], list[float]] = {}
        for line in read_text(file).splitlines():
            cells = line.split(",")
            if len(cells) != 4:  # a killed process may leave its last line incomplete
                continue
            wall, device, down, up = map(float, cells)
            number = int(device)
            self._times.setdefault(number, []).append(wall - began)
            self._counts.setdefault((number, "down"), []).append(down)
            self._counts.setdefault((number, "up"), []).append(up)

    def moved(self, device: int, direction: str, start: float, end: float) -> float:
        """Return how many bytes passed over a device's link in a span of time, headers included.

        Args:
            device: number of the device.
            direction: ``down`` or ``up``.
            start: start of the span (s).
            end: end of the span (s).
        """
        times = self._times.get(device, [])
        # ``counts[k]``: count of bytes after k samples
        counts = [0.0, *self._counts.get((device, direction), [])]
        count_at_start = counts[bisect.bisect_right(times, start)]
        count_at_end = counts[bisect.bisect_right(times, end)]
        return count_at_end - count_at_start

    def passage(
        self, device: int, direction: str, size: float, start: float, end: float
    ) -> Passage | None:
        """Find when a message passed over a device's link within a span of time.

        It is assumed that all bytes on the link since the start of the span belong to the message.

        Args:
            device: number of the device.
            direction: ``down`` or ``up``.
            size: size of the message (bytes).
            start: start of the span (s).
            end: end of the span (s).

        Returns:
            The times and bytes; None if fewer bytes than the message has passed in the span.
        """
        times = self._times.get(device, [])
        # ``counts[k]``: count of bytes after k samples
        counts = [0.0, *self._counts.get((device, direction), [])]
        next_sample = bisect.bisect_right(times, start)
        count_at_start = counts[next_sample]
        first: float | None = None
        later_samples = zip(times[next_sample:], counts[next_sample + 1 :], strict=True)
        for time_s, count in later_samples:
            if time_s > end + 2 * _EVERY_S:  # a sample may be late by its interval
                break
            passed = count - count_at_start
            if first is None and passed >= _FIRST_SHARE * size:
                # the message began to pass before this sample
                first = max(start, time_s - _EVERY_S)
            if passed >= size and first is not None:
                return Passage(first, time_s, self.moved(device, direction, start, end))
        return None


if __name__ == "__main__":
    sample(Path(sys.argv[1]), int(sys.argv[2]))
