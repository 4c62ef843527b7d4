"""Values of ``World``: properties of a device that it returns; indices and quantities that it takes."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError

from fedsim.common.arguments import is_index, is_number, plain
from fedsim.common.errors import SimulationError, show_value


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
    entries: Iterable[object] = [numbers]
    if isinstance(numbers, Iterable) and not isinstance(numbers, str):
        entries = numbers
    listed = []
    for number in map(plain, entries):
        if not is_index(number) or cast(int, number) >= count:
            allowed = "the network has none (network.edge)"
            if count:
                allowed = f"allowed are 0 to {count - 1}"
            raise SimulationError(f"there is no {thing} {show_value(number)}; {allowed}")
        listed.append(cast(int, number))
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
    number = math.nan
    if isinstance(value, str):
        try:
            number = TypeAdapter[float](kind).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise SimulationError(f"{name} is {show_value(value)}: {reason}") from None
    elif is_number(value):
        number = float(value)
    if not 0 <= number < math.inf:
        raise SimulationError(
            f"{name} is {show_value(value)}; allowed is a finite number of 0 or more"
        )
    return number
