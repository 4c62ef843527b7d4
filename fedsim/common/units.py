"""Quantities that carry their unit: ``"90 s"``, ``"40 Mbit/s"``, ``"400 samples/s"``.

A scenario writes quantities as text with a unit; code holds plain floats in the base unit that the
type names (``Seconds``, ``BytesPerSecond``). Numbers without a unit or outside of the type's bounds
are refused. ``scenario.toml`` writes a quantity in the unit that gives the shortest number and
reads back to the very same float.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from fedsim.common.errors import ScenarioError, nearest

TICK_S = 2.0**-30  # step of the clock's grid (s)
EXACT_S = 2.0**23  # time (s; 97 days) up to which sums of times on the grid are exact in a float64
# end of the simulated time (s), 317 years; near it float64s are 2 us apart, and much later a second
# would be too short to change the time
CLOCK_END_S = 1e10
# shortest wait (s), which must advance the clock even near the end of the simulated time
_LEAST_WAIT_S = 1e-3

_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z/]+)\s*")


_USUAL_FORMS = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    "days": "day",
    "weeks": "week",
    **dict.fromkeys(("byte", "bytes"), "B"),
    **dict.fromkeys(("KB", "kilobyte", "kilobytes"), "kB"),
    **dict.fromkeys(("megabyte", "megabytes"), "MB"),
    **dict.fromkeys(("gigabyte", "gigabytes"), "GB"),
    "bps": "bit/s",
    "kbps": "kbit/s",
    "Mbps": "Mbit/s",
    "Gbps": "Gbit/s",
}
"""Other usual form of a unit -> the unit, as it is written in ``scenario.toml``."""

_BPS = re.compile(r"(?i)^([kmg]?)bps$")  # notations such as "Mbps" for bits or bytes per second


def _spell_bps(match: re.Match[str]) -> str:
    return match[1] + ("B/s" if "B" in match[0] else "bit/s")


def _quantity_error(message: str, **values: str) -> PydanticCustomError:
    return PydanticCustomError("quantity", message, values)


@dataclass(frozen=True, eq=False)
class Quantity:
    """Annotation by which pydantic reads and writes a number with a unit, such as ``"5 MB"``.

    Attributes:
        what: name of the quantity in messages.
        units: unit -> factor to the base unit.
        least, most: smallest and largest allowed value, in the base unit.
        infinite: whether "inf" is also allowed.
        shown: the units in which values are written; empty for all units.
        zero: whether 0 is also allowed if ``least`` is above 0.
    """

    what: str
    units: Mapping[str, float]
    least: float
    most: float
    infinite: bool = False
    shown: tuple[str, ...] = ()
    zero: bool = True

    @property
    def _forms(self) -> dict[str, str]:
        """Accepted spelling of a unit -> the name of this unit in ``units``."""
        other_forms = {form: unit for form, unit in _USUAL_FORMS.items() if unit in self.units}
        return {unit: unit for unit in self.units} | other_forms

    @property
    def _base(self) -> str:
        return next(unit for unit, factor in self.units.items() if factor == 1.0)

    def read(self, text: object) -> float:
        """Parse a quantity, such as ``"5 MB"``, and check its bounds.

        Args:
            text: the value as the scenario has it; a number without a unit is refused.

        Returns:
            The value in the base unit.

        Raises:
            PydanticCustomError: the text is not a quantity of this kind, or is out of bounds.
        """
        value = 0.0
        # if 0 is not allowed, a 0 without a unit gets the error on bounds, not on the unit
        if self.zero or text != 0:
            value = self._parse(text)
        is_allowed_zero = self.zero and value == 0
        is_allowed_infinity = self.infinite and "inf" in str(text)
        is_within = self.least <= value <= self.most
        if is_allowed_zero or is_allowed_infinity or is_within:
            return value
        base = self._base
        allowed = f"{self.least:g} {base} to {self.most:g} {base}"
        if self.infinite:
            allowed += f", and inf {base}"
        if self.zero:
            raise _quantity_error(f"{self.what} is 0 {base}, or {allowed}")
        raise _quantity_error(
            f"{self.what} here must be above 0 {base}; allowed is {allowed}, such as '90 {base}'"
        )

    def _parse(self, text: object) -> float:
        """Parse a quantity into the base unit, without a check of its bounds."""
        allowed = self._describe_form(text)
        if not isinstance(text, str):
            raise _quantity_error(
                "{what} needs its unit: {allowed}", what=self.what, allowed=allowed
            )
        match = _QUANTITY.fullmatch(text)  # matches a number and a unit
        units = self._forms  # spelling -> name of the unit
        if match is None or match[2] not in units:
            hint = self._hint_at_unit(match[2]) if match else ""
            raise _quantity_error(
                "{what} is {allowed}{hint}", what=self.what, allowed=allowed, hint=hint
            )
        number, spelling = match.groups()
        value = float(number) * self.units[units[spelling]]
        if math.isnan(value) or value < 0:
            raise _quantity_error("{what} cannot be negative", what=self.what)
        return value

    def _describe_form(self, refused: object) -> str:
        """Return the part of an error's message that says which form a quantity has.

        Args:
            refused: the user's value. If it is a number without a unit, the message's example is
                this number with a unit.
        """
        number = "90"
        is_bool = isinstance(refused, bool)
        if isinstance(refused, int | float) and not is_bool and 0 < refused < math.inf:
            number = f"{refused:g}"
        unit = "s" if "s" in self.units else next(iter(self.units))
        return f"a number and a unit out of {', '.join(self.units)}; for example '{number} {unit}'"

    def _hint_at_unit(self, unit: str) -> str:
        """Return a hint for the user at the known unit that an unknown unit probably means.

        Args:
            unit: the unknown unit, such as ``mbps``.

        Returns:
            The hint, as ``" (did you mean 'Mbit/s'?)"``; empty if no unit is near.
        """
        full_name = _BPS.sub(_spell_bps, unit)  # such as "Mbit/s" instead of "Mbps"
        lower = full_name.lower()
        has_bytes = "B" in full_name  # False for a unit of bits
        same_letters = [option for option in self.units if option.lower() == lower]
        same_case = [option for option in same_letters if ("B" in option) == has_bytes]
        prefixes = [option for option in self.units if lower.startswith(option)]
        prefixes.sort(key=len, reverse=True)
        candidates = same_case or same_letters or prefixes  # the units most similar to ``unit``
        if not candidates:
            return nearest(unit, self.units)
        return f" (did you mean {candidates[0]!r}?)"

    def written(self, value: float) -> str:
        """Format a value with the unit that needs the fewest digits.

        The text reads back to an equal float. If several units need equally few digits, the largest
        of these units is used.
        """
        exact_texts: list[tuple[int, float, str]] = []
        for unit, factor in self.units.items():
            number = f"{value / factor:.12g}"
            is_written = unit in self.shown or not self.shown or factor == 1.0
            is_exact = value < math.inf and float(number) * factor == value
            if is_written and is_exact and value >= factor:
                # sorted by count of digits, then by the unit, the largest first
                exact_texts.append((len(number), -factor, f"{number} {unit}"))
        if exact_texts:
            _, _, shortest = min(exact_texts)
            return shortest
        number = f"{value:g}"
        if float(number) != value:
            number = repr(value)
        return f"{number} {self._base}"

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(self.written)
        return core_schema.no_info_plain_validator_function(self.read, serialization=serialization)

    def __get_pydantic_json_schema__(
        self, _: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        pattern = rf"^\s*({_NUMBER.replace('[-+]?', '[+]?', 1)})\s*({'|'.join(self._forms)})\s*$"
        return {
            "type": "string",
            "pattern": pattern,
            "title": f"{self.what} in {', '.join(self.units)}",
        }


_TIME = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_SIZE = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "GiB": 1024.0**3,
}
_BITS = {"bit/s": 0.125, "kbit/s": 125.0, "Mbit/s": 125e3, "Gbit/s": 125e6}
_RATE = _BITS | {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
_SPEED = {"samples/s": 1.0, "samples/min": 1 / 60, "samples/h": 1 / 3600}
_FREQUENCY = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600, "/day": 1 / 86400}
_ARITHMETIC = {"FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12}
_WORK = {"FLOP": 1.0, "kFLOP": 1e3, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15}
_POWER = {"W": 1.0, "mW": 1e-3, "kW": 1e3}
_ENERGY = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "mWh": 3.6, "Wh": 3600.0, "kWh": 3.6e6}
_BYTE_ENERGY = {
    "J/B": 1.0,
    "J/kB": 1e-3,
    "J/MB": 1e-6,
    "J/GB": 1e-9,
    "Wh/GB": 3.6e-6,
    "kWh/GB": 3.6e-3,
    "nJ/bit": 8e-9,
}
_CARBON = {"g/J": 1.0, "g/kWh": 1 / 3.6e6, "kg/kWh": 1 / 3.6e3}

Seconds = Annotated[float, Quantity("a time", _TIME, 1e-9, CLOCK_END_S)]
PositiveSeconds = Annotated[
    float, Quantity("a time", _TIME, _LEAST_WAIT_S, CLOCK_END_S, zero=False)
]
Bytes = Annotated[float, Quantity("a size", _SIZE, 1e-3, 1e15)]
PositiveBytes = Annotated[float, Quantity("a size", _SIZE, 1e-3, 1e15, zero=False)]
BytesPerSecond = Annotated[
    float, Quantity("a data rate", _RATE, 1e-3, 1e15, infinite=True, shown=tuple(_BITS))
]
LinkRate = Annotated[
    float,
    Quantity("a data rate", _RATE, 1e-3, 1e15, infinite=True, shown=tuple(_BITS), zero=False),
]
SamplesPerSecond = Annotated[float, Quantity("a speed", _SPEED, 1e-6, 1e15, infinite=True)]
PerSecond = Annotated[float, Quantity("a rate", _FREQUENCY, 1e-10, 1e9)]
FlopPerSecond = Annotated[float, Quantity("a rate of arithmetic", _ARITHMETIC, 1.0, 1e21)]
Flops = Annotated[float, Quantity("an amount of arithmetic", _WORK, 1.0, 1e30)]
Watts = Annotated[float, Quantity("a power", _POWER, 1e-9, 1e9)]
Joules = Annotated[float, Quantity("an energy", _ENERGY, 1e-9, 1e15, infinite=True)]
JoulesPerByte = Annotated[float, Quantity("an energy a byte", _BYTE_ENERGY, 1e-15, 1e6)]
GramsPerJoule = Annotated[float, Quantity("a carbon intensity", _CARBON, 1e-12, 1e3)]


def read_quantity(name: str, text: str, kind: Any) -> float:
    """Parse a quantity with its unit.

    Args:
        name: name of the value, for errors.
        text: the text, such as ``"90 s"``.
        kind: type of the quantity, such as ``Seconds``.

    Returns:
        The value in the base unit.

    Raises:
        ScenarioError: the text is not a quantity of this kind.
    """
    try:
        return float(TypeAdapter(kind).validate_python(text))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ScenarioError(f"{name} is {text!r}: {problem['msg']}") from None


def unit_factor(unit: str, kind: object) -> float:
    """Return the factor from a unit to the base unit of its quantity.

    Args:
        unit: name of the unit, such as ``"Mbit/s"``.
        kind: type of the quantity, such as ``BytesPerSecond``.

    Raises:
        ValueError: the quantity has no such unit.

    Example:
        >>> from fedsim.common.units import BytesPerSecond, unit_factor
        >>> unit_factor("Mbit/s", BytesPerSecond)
        125000.0
    """
    quantity: Quantity = get_args(kind)[1]  # ``kind`` is ``Annotated[float, quantity]``
    forms = quantity._forms  # spelling -> name of the unit
    if unit not in forms:
        hint = quantity._hint_at_unit(unit)
        raise ValueError(
            f"it is no unit of {quantity.what}; allowed are {', '.join(quantity.units)}{hint}"
        )
    return quantity.units[forms[unit]]


_ROUNDS_UP = 0.9995  # share of a unit from which rounding to three digits gives the whole unit
# numbers from the first bound to below the second are shown without decimals and exponents
_LEAST_WHOLE = 999.5
_MOST_WHOLE = 1e9
_LEAST_MINUTE_S = 59.95  # from here on, three digits show 60 s, a whole minute


def show_seconds(value: float) -> str:
    """Format a time (s) for people, rounded: ``"1 h 02 min"``, ``"12.3 s"``."""
    if value < _LEAST_MINUTE_S:
        return f"{value:.3g} s"
    # the time is rounded to the smaller of the two units that are shown
    seconds = int(value + 0.5)
    minutes = int(value / 60 + 0.5)
    hours = int(value / 3600 + 0.5)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def show_bytes(value: float) -> str:
    """Format a size (bytes) for people: ``"1.26 MB"``."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= factor * _ROUNDS_UP:
            return f"{show_number(value / factor, 3)} {unit}"
    return f"{value:.0f} B"


def show_number(value: float, digits: int = 4) -> str:
    """Format a number for people: ``"0.01234"``, ``"12.34"``, ``"12,340"``.

    Args:
        value: the number.
        digits: count of significant digits of numbers below 1000.
    """
    if not _LEAST_WHOLE <= abs(value) < _MOST_WHOLE:
        return f"{value:.{digits}g}"
    return f"{value:,.0f}"


def show_joules(value: float) -> str:
    """Format an energy (J) for people: ``"3.6 kJ"``, from a kilowatt-hour on ``"1.2 kWh"``."""
    for unit, factor in (("MWh", 3.6e9), ("kWh", 3.6e6), ("kJ", 1e3)):
        if abs(value) >= factor * _ROUNDS_UP:
            return f"{show_number(value / factor, 3)} {unit}"
    return f"{value:.3g} J"


_LEAST_RATIO = 1e-3
_MOST_RATIO = 1e6


def show_ratio(ratio: float, digits: int = 3) -> str:
    """Format a ratio for people, for texts such as "1.41 times as long": ``"1.41"``, ``"2,500"``.

    Ratios below 0.001 or above a million are ``"less than 0.001"`` and ``"over 1,000,000"``.

    Args:
        ratio: the ratio, at least 0.
        digits: count of significant digits of ratios below 100.
    """
    if ratio < _LEAST_RATIO:
        return f"less than {_LEAST_RATIO:g}" if ratio > 0 else "0"
    if ratio > _MOST_RATIO:
        return f"over {_MOST_RATIO:,.0f}"
    return f"{ratio:.{digits}g}" if ratio < 100 else f"{ratio:,.0f}"


def show_share(share: float, decimals: int = 0) -> str:
    """Format a share (0..1) for people as a percentage: ``"12%"``.

    A share above 0 is never ``"0%"`` but ``"under 1%"``. A share below 1 is never ``"100%"`` but
    ``"over 99%"``.

    Args:
        share: the share.
        decimals: count of decimals.
    """
    text = f"{share:.{decimals}%}"
    step = 10.0**-decimals  # value of one unit in the last decimal (percent)
    is_rounded_to_0 = share > 0 and text == f"{0:.{decimals}%}"
    if is_rounded_to_0:
        return f"under {step:.{decimals}f}%"
    is_rounded_to_1 = share < 1 and text == f"{1:.{decimals}%}"
    if is_rounded_to_1:
        return f"over {100 - step:.{decimals}f}%"
    return text
