"""Messages for pydantic's validation errors, each with an example of a valid value."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fedsim.common.errors import nearest, shown

_BOUNDS = {"ge": "{} or more", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


def in_words(problem: Any) -> str:
    """Second half of a message, naming the valid values, for one entry of
    ``ValidationError.errors()``.
    """
    value = problem["input"]
    limits = problem.get("ctx", {})
    number = _number(value)
    match problem["type"]:
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            example = 10 if number is None or abs(number) > 1e9 else max(1, round(number))
            return f"it must be a whole number, such as {example}"
        case "float_type" | "float_parsing":
            return f"it must be a number, such as {number or 0.5:g}"
        case "finite_number":
            return "it must be a finite number"
        case "bool_type":
            return "it must be true or false"
        case "list_type" | "tuple_type":
            # the example shows the number without its quotes
            if isinstance(value, str) and number is not None:
                value = round(number) if number == round(number) else number
            return f"it must be a list, such as {shown([10 if isinstance(value, dict) else value])}"
        case "string_type":
            return f"it must be a text in quotes, such as {shown(str(value))}"
        case "dict_type":
            return "it must be a table, such as { name = 1 }"
        case "too_short" | "too_long" | "string_too_long" | "string_too_short" as kind:
            least = limits.get("min_length")
            bound = (
                f"at most {limits.get('max_length'):,}" if least is None else f"{least:,} or more"
            )
            return (
                f"it must have {bound} {'characters' if kind.startswith('string') else 'entries'}"
            )
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            name, bound = next((name, limits[name]) for name in _BOUNDS if name in limits)
            share = (
                isinstance(bound, float)
                and bound == 1
                and name in ("le", "lt")
                and 1 < value <= 100
            )
            hint = f" (did you mean {value / 100:g}?)" if share else ""
            if isinstance(bound, int | float):
                bound = (
                    f"{bound:,.0f}" if bound == round(bound) and abs(bound) < 1e15 else f"{bound:g}"
                )
            return f"it must be {_BOUNDS[name].format(bound)}{hint}"
    message: str = problem["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def explain(
    error: ValidationError, sections: Mapping[str, Any], whole: str = "the scenario"
) -> str:
    """One message for an invalid scenario: key, value, allowed values, nearest valid name."""
    first, *others = error.errors(include_url=False)
    key = _key_path(first["loc"], sections) or whole
    # A key that accepts a word or another type has one problem per alternative.
    a_word = bool(first["loc"]) and str(first["loc"][-1]).startswith("literal[")
    ways = [
        f"; or {in_words(other)}"
        for other in others
        if a_word and other["loc"][:-1] == first["loc"][:-1]
    ]
    more = len(others) - len(ways)
    return _explain_one(key, first) + "".join(ways) + (f" (and {more} more)" if more else "")


def _explain_one(key: str, problem: Any) -> str:
    value = problem["input"]
    message = problem["msg"]
    match problem["type"]:
        case "unknown_key":
            return f"{key} {message}"
        case "part_kind":
            return f"{key}.{message}"
        case "model_type":
            return (
                f"{key} is {shown(value)}; it must be a table, and 'fedsim list {key}' names its "
                "keys"
            )
        case "missing":
            return f"{key} is missing"
        case "literal_error":
            allowed = [
                word.strip("' ")
                for word in problem["ctx"]["expected"].replace(" or ", ",").split(",")
            ]
            return (
                f"{key} is {shown(value)}; allowed are "
                f"{', '.join(allowed)}{nearest(str(value), allowed)}"
            )
        case "value_error":
            return f"{key}: {message.removeprefix('Value error, ')}"
        case "quantity":
            return f"{key} is {shown(value)}: {message}"
    return f"{key} is {shown(value)}; {in_words(problem)}"


def _key_path(location: tuple[int | str, ...], sections: Any) -> str:
    """The key as written in the scenario, from pydantic's location."""
    keys: list[str] = []
    here = sections
    for depth, part in enumerate(location):
        if str(part).startswith(("~", "literal[")):
            continue  # pydantic's label of an alternative
        last = depth == len(location) - 1
        if (isinstance(here, Mapping) and part in here) or (
            isinstance(here, list) and isinstance(part, int)
        ):
            here = here[part]  # type: ignore[index]
        elif not (last and isinstance(here, Mapping | str)):
            continue  # the key behind a shorthand value
        keys.append(str(part))
    return ".".join(keys)
