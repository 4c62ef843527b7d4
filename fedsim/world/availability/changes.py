"""When devices came and went, as a table for the run folder."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.world.phases import Span

Path = Callable[[int, float], Span]

_GOLDEN = (5**0.5 - 1) / 2


def changes(span: Path, devices: NDArray[np.int64], end: float, most: int) -> dict[str, NDArray[Any]]:
    """Each device's state at time 0, and every change of it up to ``end``, in order of devices and times.

    Args:
        span: the phase that a device is in at a time (s), cut to its lifetime.
        devices: whose changes are wanted.
        end: of the run (s).
        most: of rows. Of too many, whole devices are left out, evenly over their numbers.

    Returns:
        ``device`` int64, ``time`` (s) float64 and ``on`` bool, [rows] each.
    """
    found: dict[int, list[tuple[float, bool]]] = {}
    rows = 0
    spread = np.argsort(np.arange(len(devices)) * _GOLDEN % 1, kind="stable")  # any beginning of it is spread evenly
    for device in devices[spread].tolist():
        own = _of_one(span, device, end, most - rows)
        rows += len(own)
        if rows > most:
            break
        found[device] = own
    return {
        "device": np.repeat(np.array(sorted(found), dtype=np.int64), [len(found[device]) for device in sorted(found)]),
        "time": np.array([time for device in sorted(found) for time, _ in found[device]], dtype=np.float64),
        "on": np.array([on for device in sorted(found) for _, on in found[device]], dtype=np.bool_),
    }


def _of_one(span: Path, device: int, end: float, most: int) -> list[tuple[float, bool]]:
    """The changes of one device, not many more than ``most``; an off phase may follow another one."""
    own: list[tuple[float, bool]] = []
    time = 0.0
    while time <= end and len(own) <= most:
        phase = span(device, time)
        if not own or own[-1][1] != phase.on:
            own.append((time, phase.on))
        if phase.end <= time:  # a path of the user's own that does not move on
            break
        time = phase.end
    return own
