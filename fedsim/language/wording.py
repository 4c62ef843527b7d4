"""Messages for the problems that pydantic finds in values, each with an example of a right value."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fedsim.errors import nearest, shown

_PLAIN = {"bool_type": "it must be true or false", "finite_number": "it must be a finite number"}
_BOUNDS = {"ge": "{} or more", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


def in_words(problem: Any) -> str:
    """The second half of a message: what the value must be.

    Args:
        problem: one of ``ValidationError.errors()``.
    """
    value, limits = problem["input"], problem.get("ctx", {})
    match problem["type"]:
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            return f"it must be a whole number, such as {_whole(value)}"
        case "float_type" | "float_parsing":
            return f"it must be a number, such as {_number(value) or 0.5:g}"
        case "list_type" | "tuple_type":
            return f"it must be a list, such as {shown([_typed(value)])}"
        case "string_type":
            return f"it must be a text in quotes, such as {shown(str(value))}"
        case "dict_type":
            return "it must be a table, such as { name = 1 }"
        case "too_short" | "too_long" | "string_too_long" | "string_too_short" as kind:
            least = limits.get("min_length")
            bound = f"at most {limits.get('max_length'):,}" if least is None else f"{least:,} or more"
            return f"it must have {bound} {'characters' if kind.startswith('string') else 'entries'}"
        case kind if kind in _PLAIN:
            return _PLAIN[kind]
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            name, bound = next((name, limits[name]) for name in _BOUNDS if name in limits)
            share = isinstance(bound, float) and bound == 1 and name in ("le", "lt") and 1 < value <= 100
            hint = f" (did you mean {value / 100:g}?)" if share else ""
            return f"it must be {_BOUNDS[name].format(_shown(bound))}{hint}"
    message: str = problem["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _shown(bound: Any) -> str:
    if isinstance(bound, int | float):
        return f"{bound:,.0f}" if bound == round(bound) and abs(bound) < 1e15 else f"{bound:g}"
    return str(bound)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int:
    number = _number(value)
    return 10 if number is None or abs(number) > 1e9 else max(1, round(number))


def _typed(value: Any) -> Any:
    """A value as an entry of a list; a number in quotes loses them."""
    number = _number(value) if isinstance(value, str) else None
    if number is None:
        return 10 if isinstance(value, dict | list) else value
    return round(number) if number == round(number) else number


def explain(error: ValidationError, sections: Mapping[str, Any], whole: str = "the scenario") -> str:
    """One message for what is wrong with a scenario: the key, the value, what is allowed, the nearest right name."""
    problems = error.errors(include_url=False)
    first = problems[0]
    key = _key_path(first["loc"], sections) or whole
    # Where a word or something else may be said, each way has its problem.
    a_word = bool(first["loc"]) and str(first["loc"][-1]).startswith("literal[")
    others = [in_words(other) for other in problems[1:] if a_word and other["loc"][:-1] == first["loc"][:-1]]
    ways = [f"; or {message}" for message in others]
    more = len(problems) - 1 - len(ways)
    return _explain_one(key, first) + "".join(ways) + (f" (and {more} more)" if more else "")


def _explain_one(key: str, problem: Any) -> str:
    context, value = problem.get("ctx", {}), problem["input"]
    match problem["type"]:
        case "unknown_key":
            return f"{key} {problem['msg']}"
        case "part_kind":
            return f"{key}.{problem['msg']}"
        case "model_type":
            return f"{key} is {shown(value)}; it must be a table, and 'fedsim list {key}' names its keys"
        case "missing":
            return f"{key} is missing"
        case "literal_error":
            allowed = [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")]
            return f"{key} is {shown(value)}; allowed are {', '.join(allowed)}{nearest(str(value), allowed)}"
        case "value_error":
            return f"{key}: {problem['msg'].removeprefix('Value error, ')}"
        case "quantity":
            return f"{key} is {shown(value)}: {problem['msg']}"
    return f"{key} is {shown(value)}; {in_words(problem)}"


def _key_path(location: tuple[int | str, ...], sections: Any) -> str:
    """The key as written in the scenario, from pydantic's location."""
    keys: list[str] = []
    here = sections
    for depth, part in enumerate(location):
        if str(part).startswith(("~", "literal[")):
            continue  # a name for one of several types
        last = depth == len(location) - 1
        if (isinstance(here, Mapping) and part in here) or (isinstance(here, list) and isinstance(part, int)):
            here = here[part]  # type: ignore[index]
        elif not (last and isinstance(here, Mapping | str)):
            continue  # a key that stands for a shorthand
        keys.append(str(part))
    return ".".join(keys)
