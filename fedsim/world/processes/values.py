"""Values of ``World``: properties of a device that it returns; indices and quantities that it takes."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from fedsim.common.errors import SimulationError


class DeviceFacts(NamedTuple):
    """Speed, link, samples and presence of a device; ``World.device`` returns it.

    Attributes:
        speed: training speed (samples/s).
        flops: FLOP/s that the device reaches; None if unknown.
        down, up: rates of the device's link (bytes/s).
        latency: latency of the device's link (s).
        samples: count of training samples that the device holds.
        kind: name of its kind; None if devices have no kinds.
        arrival, departure: times at which it joins and leaves (s).
        present: whether it has joined and not left yet.
    """

    speed: float
    flops: float | None
    down: float
    up: float
    latency: float
    samples: int
    kind: str | None
    arrival: float
    departure: float
    present: bool


def indices(numbers: int | Iterable[int], count: int, thing: str) -> list[int]:
    """Convert one index or several to a list, and check them.

    Args:
        numbers: the index, or indices.
        count: count of the things, whose indices are 0 to ``count`` - 1.
        thing: noun for the things in the error, such as "device".

    Returns:
        The indices, in the order given.

    Raises:
        SimulationError: an index is not one of 0 to ``count`` - 1; the message names the ``thing``.
    """
    listed = [numbers] if isinstance(numbers, int) else [int(number) for number in numbers]
    for number in listed:
        if 0 <= number < count:
            continue
        allowed = "the network has none (network.edge)"
        if count:
            allowed = f"allowed are 0 to {count - 1}"
        raise SimulationError(f"there is no {thing} {number}; {allowed}")
    return listed


def parse_quantity(value: float | str, kind: Any, name: str) -> float:
    """Convert a number in the base unit, or text with a unit, to a number in the base unit.

    Args:
        value: the number, or the text such as ``"5 MB"``.
        kind: the quantity, such as ``fedsim.common.units.Bytes``.
        name: the value's name in error messages.

    Returns:
        The value in the base unit, 0 or more.

    Raises:
        SimulationError: the value is not a quantity of this kind.
    """
    try:
        if isinstance(value, str):
            number: float = TypeAdapter[float](kind).validate_python(value)
        else:
            number = float(value)
    except ValidationError as error:
        raise SimulationError(f"{name} is {value!r}: {error.errors()[0]['msg']}") from None
    if not 0 <= number < math.inf:
        raise SimulationError(f"{name} is {value!r}; allowed is a finite number of 0 or more")
    return number
