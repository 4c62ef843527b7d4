"""Messages for pydantic's validation errors, each with an example of a valid value."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedsim.common.errors import nearest, show_value

_BOUNDS = {"ge": "{} or more", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


def in_words(problem: ErrorDetails) -> str:
    """Return the part of an error message that describes the valid values of a key.

    Examples are "it must be true or false" and "it must be 1 or more". The key and its present
    value are not named.

    Args:
        problem: an entry of pydantic's ``ValidationError.errors()``, about one key.
    """
    value = problem["input"]
    limits = problem.get("ctx", {})
    number = _number_of(value)
    match problem["type"]:
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            example = 10
            if number is not None and abs(number) <= 1e9:
                example = max(1, round(number))  # a whole number near the user's number
            return f"it must be a whole number, such as {example}"
        case "float_type" | "float_parsing":
            return f"it must be a number, such as {number or 0.5:g}"
        case "finite_number":
            return "it must be a finite number"
        case "bool_type":
            return "it must be true or false"
        case "list_type" | "tuple_type":
            # the example is a list with the user's value, if that value can be an entry
            entry = value
            if isinstance(value, dict):
                entry = 10
            elif isinstance(value, str) and number is not None:  # the user put quotes on a number
                entry = round(number) if number == round(number) else number
            return f"it must be a list, such as {show_value([entry])}"
        case "string_type":
            return f"it must be a text in quotes, such as {show_value(str(value))}"
        case "dict_type":
            return "it must be a table, such as { name = 1 }"
        case "too_short" | "too_long" | "string_too_long" | "string_too_short" as kind:
            unit = "characters" if kind.startswith("string") else "entries"
            return f"it must have {_format_length(limits)} {unit}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            name = next(name for name in _BOUNDS if name in limits)
            bound = limits[name]
            is_share = isinstance(bound, float) and bound == 1 and name in ("le", "lt")
            hint = ""
            if is_share and 1 < value <= 100:  # the user probably means a percentage
                hint = f" (did you mean {value / 100:g}?)"
            return f"it must be {_BOUNDS[name].format(_format_bound(bound))}{hint}"
    message = problem["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _format_length(limits: Mapping[str, int]) -> str:
    if "min_length" in limits:
        return f"{limits['min_length']:,} or more"
    return f"at most {limits['max_length']:,}"


def _format_bound(bound: object) -> str:
    if not isinstance(bound, int | float):
        return str(bound)
    is_whole = bound == round(bound) and abs(bound) < 1e15
    return f"{bound:,.0f}" if is_whole else f"{bound:g}"


def _number_of(value: Any) -> float | None:
    """Return a number, or the number that a text contains, as a float.

    None if the value is neither a number nor the text of a number, or if the number is not finite.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def explain(
    error: ValidationError, sections: Mapping[str, object], whole: str = "the scenario"
) -> str:
    """Format the message for an invalid scenario: key, value, allowed values, nearest valid name.

    Args:
        error: the error that the validation of the scenario has raised.
        sections: the scenario as nested tables.
        whole: name of the document in the message.
    """
    first, *more = error.errors(include_url=False)
    location = first["loc"]
    message = _explain_problem(_key_path(location, sections) or whole, first)
    # A key with alternative types has one problem per alternative. If the alternatives are allowed
    # words, the message lists all of them; other problems are only counted.
    accepts_word = bool(location) and str(location[-1]).startswith("literal[")
    unexplained = 0
    for problem in more:
        if accepts_word and problem["loc"][:-1] == location[:-1]:
            message += f"; or {in_words(problem)}"
        else:
            unexplained += 1
    if unexplained:
        message += f" (and {unexplained} more)"
    return message


def _explain_problem(key: str, problem: ErrorDetails) -> str:
    """Return the message for a problem that pydantic has found at a key.

    Args:
        key: dotted name of the key.
        problem: an entry of pydantic's ``ValidationError.errors()``, about this key.
    """
    value = problem["input"]
    message = problem["msg"]
    match problem["type"]:
        case "unknown_key":
            return f"{key} {message}"
        case "part_kind":
            # the message of an error from a part of the scenario may begin with the whole key
            return message if message.startswith(f"{key}.") else f"{key}.{message}"
        case "model_type":
            return (
                f"{key} is {show_value(value)}; it must be a table, and 'fedsim list {key}' names its "
                "keys"
            )
        case "missing":
            return f"{key} is missing"
        case "literal_error":
            # pydantic lists the allowed words as "'a', 'b' or 'c'"
            words = problem["ctx"]["expected"].replace(" or ", ",").split(",")
            allowed = [word.strip("' ") for word in words]
            hint = nearest(str(value), allowed)
            return f"{key} is {show_value(value)}; allowed are {', '.join(allowed)}{hint}"
        case "value_error":
            return f"{key}: {message.removeprefix('Value error, ')}"
        case "quantity":
            return f"{key} is {show_value(value)}: {message}"
    return f"{key} is {show_value(value)}; {in_words(problem)}"


def _key_path(location: tuple[int | str, ...], sections: Any) -> str:
    """Return the key at fault as the user wrote it, such as ``network.device.up``.

    Args:
        location: pydantic's location of the error, which also has names of types.
        sections: the scenario as nested tables.
    """
    keys: list[str] = []
    value = sections  # value of the scenario at the keys so far
    for depth, part in enumerate(location):
        if str(part).startswith(("~", "literal[")):
            continue  # the entry is pydantic's label of an alternative, not a key
        has_key = isinstance(value, Mapping) and part in value
        has_position = isinstance(value, list) and isinstance(part, int)
        if has_key or has_position:
            value = value[part]
        else:
            is_last = depth == len(location) - 1
            is_missing_key = is_last and isinstance(value, Mapping | str)
            if not is_missing_key:
                continue  # the user's short form of the table does not have this key
        keys.append(str(part))
    return ".".join(keys)
