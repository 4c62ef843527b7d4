"""Logs with known answers: what devices of known speed behind known links would have written down."""

import math
from collections.abc import Sequence
from pathlib import Path

SIZE = 1e6
"""Bytes of a message."""

Device = tuple[float, float, float]
"""Samples/s, and bytes/s down and up."""

DEVICES: Sequence[Device] = ((50.0, 1e6, 5e5), (20.0, 2e6, 2.5e5), (10.0, 4e6, 1e6))
HEAD = "client,round,what,start,end,bytes,samples"


def task(
    name: str, number: int, begin: float, device: Device, size: float = SIZE, samples: int = 100, wait: float = 0.0
) -> str:
    speed, down, up = device
    got = begin + wait + size / down
    trained = got + samples / speed
    return (
        f"{name},{number},down,{begin!r},{got!r},{size:g},\n{name},{number},train,{got!r},{trained!r},,{samples}\n"
        f"{name},{number},up,{trained!r},{trained + wait + size / up!r},{size:g},\n"
    )


def written(path: Path, text: str, head: str = HEAD) -> Path:
    path.write_text(f"{head}\n{text}")
    return path


def rounds(count: int, devices: Sequence[Device] = DEVICES, sizes: Sequence[float] = (SIZE,), wait: float = 0.0) -> str:
    """Synchronous rounds of all devices, 100 s apart; sizes take turns."""
    return "".join(
        task(f"phone {name}", number, 1000.0 + 100.0 * number, device, sizes[number % len(sizes)], wait=wait)
        for number in range(count)
        for name, device in enumerate(devices)
    )


def round_s(devices: Sequence[Device] = DEVICES) -> float:
    return max(SIZE / down + 100 / speed + SIZE / up for speed, down, up in devices)


assert math.isclose(round_s(), 0.25 + 10 + 1)
