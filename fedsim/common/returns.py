"""Checks of the values that hooks of users' classes return.

A base says what a hook may return by its annotation, and by ``returns`` where that is not enough.
``guard`` replaces the hooks of a user's class by hooks that refuse wrong results by name and place.
Classes of fedsim stay as they are, so that built-in parts take no time for it.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, wraps
from numbers import Integral, Real
from types import FunctionType, NoneType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError, SimulationError, home_of, shown
from fedsim.common.hooks import (
    METHODS,
    UNIONS,
    Override,
    function_of,
    halves_of,
    overrides,
    refuse_wrong_hooks,
)
from fedsim.common.streams import generator_states

Hook = TypeVar("Hook", bound=Callable[..., Any])
FindMistake = Callable[..., str]
"""Function of a value, the object and the hook's arguments: the mistake in words; empty: none."""

_MARK = "fedsim_returns"  # attribute of a base's hook
_GUARDED = "fedsim_guarded"  # attribute of a hook that checks
_LISTS = (list, tuple, range, np.ndarray)
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "None",
    list: "a list",
    Sequence: "a list",
    tuple: "a tuple",
    dict: "a dict",
    Mapping: "a dict",
    np.ndarray: "an array",
}


def _find_nothing(*_: Any, **__: Any) -> str:
    return ""


@dataclass(frozen=True)
class Returns:
    """The values that a hook may return, beside the type of its annotation.

    Attributes:
        allowed: the values in words; empty: the words for the type.
        find_mistake: a check of a value of the right type.
        keyed: the random numbers that the hook may draw, in words. A draw from a generator of the
            process is refused. Empty: draws are not looked for.
        guarded: whether the returned object has hooks, which are checked too.
    """

    allowed: str = ""
    find_mistake: FindMistake = _find_nothing
    keyed: str = ""
    guarded: bool = False


_ANYTHING = Returns()


def returns(
    allowed: str = "",
    find_mistake: FindMistake = _find_nothing,
    *,
    keyed: str = "",
    guarded: bool = False,
) -> Callable[[Hook], Hook]:
    """Mark a hook of a base by the values that it may return; see ``Returns``."""

    def mark(hook: Hook) -> Hook:
        hook.__dict__[_MARK] = Returns(allowed, find_mistake, keyed, guarded)
        return hook

    return mark


# Checks of numbers.


def find_outside(
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    infinite: bool = False,
) -> FindMistake:
    """A check that finds a number out of bounds, or not finite, also in an array; None is right."""

    def is_within(number: Any) -> bool:
        is_inside = above < number and least <= number <= most
        return bool(is_inside and (infinite or math.isfinite(number)))

    def find(value: Any, *_: Any, **__: Any) -> str:
        if value is None:
            return ""
        if not isinstance(value, np.ndarray):
            return "" if is_within(value) else shown(value)
        if not value.size or (is_within(value.min()) and is_within(value.max())):
            return ""  # NaN is the least and the most of any numbers
        place = next(place for place, one in enumerate(value.ravel()) if not is_within(one))
        return _entry_in_words(value, place)

    return find


def _entry_in_words(array: AnyArray, place: int) -> str:
    where = [int(number) for number in np.unravel_index(place, array.shape)]
    return f"an array with {array.flat[place]} at {where[0] if len(where) == 1 else where}"


def find_wrong_entry(value: Any, length: int, find: FindMistake) -> str:
    """The mistake in an array that must have ``length`` numbers that pass the check ``find``."""
    if not isinstance(value, np.ndarray):
        return shown(value)
    if value.shape != (length,) or value.dtype.kind not in "iuf":
        return f"an array of {value.dtype} of shape {value.shape}"
    return find(value)


# Types.


def is_of_type(hint: Any) -> Callable[[Any], bool]:
    """A check of an annotated type; elements of lists and mappings are not looked at."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in UNIONS:
        checks = [is_of_type(one) for one in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is Literal:
        return lambda value: isinstance(value, str | int) and value in arguments
    if origin is tuple:
        return _is_tuple(arguments)
    kind = origin or hint
    if kind is bool:
        return lambda value: isinstance(value, bool | np.bool_)
    if kind in (int, float):
        return _is_number(Integral if kind is int else Real)
    if kind is list:
        return lambda value: isinstance(value, _LISTS)
    if kind is Sequence:
        return _is_sequence
    if not isinstance(kind, type) or kind in (Any, type) or is_typeddict(kind):
        return lambda value: True
    if getattr(kind, "_is_protocol", False):
        return _has_methods(kind)
    return lambda value: isinstance(value, kind)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_number(kind: type) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        return is_number and bool(value == value)  # not NaN

    return check


def _is_tuple(arguments: tuple[Any, ...]) -> Callable[[Any], bool]:
    if arguments[1:] == (...,):
        is_right = is_of_type(arguments[0])
        return lambda value: isinstance(value, tuple | list) and all(map(is_right, value))
    checks = [is_of_type(one) for one in arguments]

    def check(value: Any) -> bool:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return False
        return all(check_part(part) for check_part, part in zip(checks, value, strict=True))

    return check


def _has_methods(protocol: type) -> Callable[[Any], bool]:
    functions = {name for name, one in vars(protocol).items() if isinstance(one, FunctionType)}
    public = [name for name in functions if not name.startswith("_")]
    return lambda value: all(callable(getattr(value, name, None)) for name in public)


def _in_words(hint: Any) -> str:
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in UNIONS:
        return " or ".join(map(_in_words, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple and arguments[1:] == (...,):
        return f"a tuple, each entry {_in_words(arguments[0])}"
    if origin is tuple:
        return f"a tuple of {' and '.join(map(_in_words, arguments))}"
    kind = origin or hint
    name = str(getattr(kind, "__name__", kind))
    return _WORDS.get(kind, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _hint_of(override: Override) -> Any:
    """The annotated type of a hook's result, or of a value; ``Any`` if it cannot be evaluated."""
    function = function_of(override.first)
    try:
        if isinstance(function, FunctionType):
            hint = get_type_hints(function).get("return", Any)
        else:
            hint = get_type_hints(override.root).get(override.name, Any)
    except NameError:  # imported for type checking alone
        return Any
    if get_origin(hint) is ClassVar:
        hint = get_args(hint)[0]
    return override.root if hint is Self else hint


def _allowed_by(override: Override) -> Returns:
    return getattr(function_of(override.first), _MARK, _ANYTHING)


# Hooks that check.


@cache
def guard(found: type, key: str, here: str = "", like: type | None = None) -> None:
    """Let the hooks of a user's class check their results from now on.

    Args:
        found: the class.
        key: the key of a scenario that holds the part, in messages about results.
        here: the key in messages about the class itself; empty: the same.
        like: the class of fedsim whose hooks it has, although it may not inherit it.

    Raises:
        ScenarioError: a hook of a wrong form, or an attribute with a wrong value.
    """
    refuse_wrong_hooks(found, here or key, like)
    for one in halves_of(found):
        for override in overrides(one, like):
            _refuse_wrong_value(one, override, here or key)
            _guard_one(one, override, key)


def _refuse_wrong_value(one: type, override: Override, key: str) -> None:
    """Refuse a wrong value of a plain attribute that says what a class is or does."""
    name = override.name
    own = override.own
    first = override.first
    is_method = callable(first) or isinstance(first, METHODS)
    if is_method or not override.is_value:
        return
    allowed = _allowed_by(override)
    hint = _hint_of(override)
    if mistake := _check_of(hint, allowed)(own, None):
        told = f"{key}: {one.__qualname__}.{name}{home_of(one)} is {mistake}"
        raise ScenarioError(f"{told}; allowed is {allowed.allowed or _in_words(hint)}")


def _guard_one(one: type, override: Override, key: str) -> None:
    name = override.name
    own = override.own
    function = function_of(own)
    if not isinstance(function, FunctionType) or isinstance(own, METHODS):
        return
    allowed = _allowed_by(override)
    hint = _hint_of(override)
    is_free = hint in (None, NoneType) or (hint is Any and allowed == _ANYTHING)
    if is_free or hasattr(function, _GUARDED):
        return
    definer = next(parent for parent in one.__mro__ if name in vars(parent))
    told = f"{key}: {definer.__qualname__}.{name}{home_of(function) or home_of(definer)}"
    checking = _checking(function, told, hint, allowed, is_method=own is function)
    _replace(one, name, own, checking)


def _replace(one: type, name: str, own: Any, function: FunctionType) -> None:
    hook: Any = function
    if isinstance(own, property):
        hook = property(function, own.fset, own.fdel, own.__doc__)
    elif isinstance(own, cached_property):
        hook = cached_property(function)
        hook.__set_name__(one, name)
    setattr(one, name, hook)


def _check_of(hint: Any, allowed: Returns) -> FindMistake:
    is_right_type = is_of_type(hint)

    def find(value: Any, *arguments: Any, **options: Any) -> str:
        if not is_right_type(value):
            return shown(value)
        return allowed.find_mistake(value, *arguments, **options)

    return find


def _checking(
    own: FunctionType,
    told: str,
    hint: Any,
    allowed: Returns,
    *,
    is_method: bool,
) -> FunctionType:
    """The same hook, which refuses wrong results; ``told``: key, name and place of the hook."""
    find_mistake = _check_of(hint, allowed)
    in_words = allowed.allowed or _in_words(hint)
    error_type = SimulationError if is_method else ScenarioError  # a property says what a part is
    key = told.partition(":")[0]

    def check(value: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        if mistake := find_mistake(value, *arguments, **options):
            raise error_type(f"{told} returns {mistake}; allowed is {in_words}")
        if allowed.guarded:
            made: Any = type(value)
            guard(made, key, like=hint)

    @wraps(own)
    def hook(*arguments: Any, **options: Any) -> Any:
        states = generator_states() if allowed.keyed else {}
        value = own(*arguments, **options)
        check(value, arguments, options)
        if allowed.keyed and (drawn := _moved_since(states)):
            raise SimulationError(
                f"{told} draws from the global generator of {' and of '.join(drawn)}, so that "
                f"no run can be repeated; allowed is {allowed.keyed}"
            )
        return value

    @wraps(own)
    async def awaited(*arguments: Any, **options: Any) -> Any:
        value = await own(*arguments, **options)
        check(value, arguments, options)
        return value

    checking: Any = awaited if inspect.iscoroutinefunction(inspect.unwrap(own)) else hook
    checking.__dict__[_GUARDED] = True
    return checking  # type: ignore[no-any-return]


def _moved_since(states: Mapping[str, Any]) -> list[str]:
    """Names of the process's generators from which somebody has drawn."""
    now = generator_states()
    return [name for name, state in states.items() if now[name] != state]
