"""Checks of the values that hooks of users' classes return.

A base class declares the results of a hook by its annotation, and by ``returns`` if the type is not
enough. ``guard`` replaces the hooks of a user's class by functions that call the hook and raise an
error with its name and place for a wrong result. Classes of fedsim are not changed, so that
built-in parts spend no time on checks.
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
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError, SimulationError, home_of, show_value
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

Hook = TypeVar("Hook", bound=Callable[..., object])
FindMistake = Callable[..., str]
"""Function of a value, the object and the hook's arguments, which returns the mistake or ''."""
Check = Callable[[object], bool]

_MARK = "fedsim_returns"  # attribute that stores the ``Returns`` on a hook of a base class
_GUARDED = "fedsim_guarded"  # name of the attribute that marks a checking hook
_LISTS = (list, tuple, range, np.ndarray)
_WORDS: dict[object, str] = {
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


def _find_nothing(*_: object, **__: object) -> str:
    return ""


@dataclass(frozen=True)
class Returns:
    """Rule for the values that a user's method (hook) may return, beyond the annotated type.

    Attributes:
        allowed: the allowed values in words; empty for the words of the type.
        find_mistake: check of a value of the right type.
        keyed: the random numbers that the hook may draw, in words. A draw from a global generator
            is then an error. Empty if draws are not checked.
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
    """Decorator that gives a hook of a base class a rule for the values that users' methods return.

    Args:
        allowed: the allowed values in words; empty for the words of the type.
        find_mistake: check of a value of the right type.
        keyed: the random numbers that the hook may draw, in words; see ``Returns``.
        guarded: whether the returned object has hooks, which are checked too.
    """

    def mark(hook: Hook) -> Hook:
        hook.__dict__[_MARK] = Returns(allowed, find_mistake, keyed, guarded)
        return hook

    return mark


# checks of numbers


def find_outside(
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    infinite: bool = False,
) -> FindMistake:
    """Make a check that numbers are within bounds.

    Args:
        above: bound that numbers must exceed.
        least: least number.
        most: largest number.
        infinite: whether infinity is allowed.

    Returns:
        The check of a number or of an array of numbers, which returns the mistake in words, or "".
        None always passes.
    """

    def is_within(number: float) -> bool:
        is_inside = above < number and least <= number <= most
        return bool(is_inside and (infinite or math.isfinite(number)))

    def find(value: Any, *_: object, **__: object) -> str:
        if value is None:
            return ""
        if not isinstance(value, np.ndarray):
            return "" if is_within(value) else show_value(value)
        if not value.size or (is_within(value.min()) and is_within(value.max())):
            return ""  # an array with NaN has NaN as its minimum and maximum
        places = enumerate(value.ravel())
        wrong_place = next(place for place, number in places if not is_within(number))
        return _entry_in_words(value, wrong_place)

    return find


def _entry_in_words(array: AnyArray, place: int) -> str:
    index = [int(number) for number in np.unravel_index(place, array.shape)]
    return f"an array with {array.flat[place]} at {index[0] if len(index) == 1 else index}"


def find_wrong_entry(value: object, length: int, find: FindMistake) -> str:
    """Check a one-dimensional array of numbers, and describe the first mistake.

    Args:
        value: the array.
        length: required count of entries.
        find: check of the entries.

    Returns:
        The mistake in words; empty: none.
    """
    if not isinstance(value, np.ndarray):
        return show_value(value)
    if value.shape != (length,) or value.dtype.kind not in "iuf":
        return f"an array of {value.dtype} of shape {value.shape}"
    return find(value)


# checks of types


def is_of_type(hint: object) -> Check:
    """Make a check of whether a value has an annotated type.

    Elements of lists and mappings are not checked.

    Args:
        hint: the type, as in an annotation.

    Returns:
        Function of a value that returns True or False.
    """
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in UNIONS:
        checks = [is_of_type(argument) for argument in arguments]
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


def _is_sequence(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_number(kind: type) -> Check:
    def check(value: object) -> bool:
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        return is_number and bool(value == value)  # not NaN

    return check


def _is_tuple(arguments: tuple[object, ...]) -> Check:
    if arguments[1:] == (...,):
        is_right = is_of_type(arguments[0])
        return lambda value: isinstance(value, tuple | list) and all(map(is_right, value))
    checks = [is_of_type(argument) for argument in arguments]

    def check(value: object) -> bool:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return False
        return all(check_part(part) for check_part, part in zip(checks, value, strict=True))

    return check


def _has_methods(protocol: type) -> Check:
    names = []
    for name, attribute in vars(protocol).items():
        if isinstance(attribute, FunctionType) and not name.startswith("_"):
            names.append(name)
    return lambda value: all(callable(getattr(value, name, None)) for name in names)


def _in_words(hint: object) -> str:
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
    if kind in _WORDS:
        return _WORDS[kind]
    name = str(getattr(kind, "__name__", kind))
    article = "an" if name[0] in "AEIOU" else "a"
    return f"{article} {name}"


def _hint_of(override: Override) -> object:
    """Return the type that a user's method must return, or that an attribute must have.

    Args:
        override: the method or attribute that replaces one of fedsim's.

    Returns:
        The type by the annotation in the fedsim class; ``Any`` if there is none.
    """
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


def _returns_of(override: Override) -> Returns:
    """Return the rule for results that the first fedsim class with a user's method has declared."""
    marked: Returns = getattr(function_of(override.first), _MARK, _ANYTHING)
    return marked


# checking hooks


@cache
def guard(user_class: type, key: str, class_key: str = "", like: type | None = None) -> None:
    """Change a user's class so that wrong return values of its methods raise clear errors.

    Classes within it that fedsim calls too, such as ``Client``, are changed as well.

    Args:
        user_class: the class.
        key: key of the scenario that errors about results of methods name.
        class_key: key that errors about the form of a method or the value of an attribute name; by
            default ``key``.
        like: a fedsim class that counts as its base, although the class may not inherit it.

    Raises:
        ScenarioError: a method has a wrong form, or an attribute a wrong value.
    """
    refuse_wrong_hooks(user_class, class_key or key, like)
    for half in halves_of(user_class):
        for override in overrides(half, like):
            _refuse_wrong_value(half, override, class_key or key)
            _guard_hook(half, override, key)


def _refuse_wrong_value(half: type, override: Override, key: str) -> None:
    """Raise an error if an attribute of a user's class that is no method has a wrong value.

    Args:
        half: the user's class.
        override: the attribute.
        key: key of the scenario that names the class, for the message.
    """
    first = override.first
    is_method = callable(first) or isinstance(first, METHODS)
    if is_method or not override.is_value:
        return
    allowed = _returns_of(override)
    hint = _hint_of(override)
    find_mistake = _check_of(hint, allowed)
    mistake = find_mistake(override.own, None)
    if mistake:
        raise ScenarioError(
            f"{key}: {half.__qualname__}.{override.name}{home_of(half)} is {mistake}; allowed is "
            f"{allowed.allowed or _in_words(hint)}"
        )


def _guard_hook(half: type, override: Override, key: str) -> None:
    """Replace a method of a user's class by one that checks results, if there is anything to check.

    Args:
        half: the user's class, which is changed.
        override: the method.
        key: key of the scenario, for messages.
    """
    name = override.name
    own = override.own
    function = function_of(own)
    if not isinstance(function, FunctionType) or isinstance(own, METHODS):
        return
    allowed = _returns_of(override)
    hint = _hint_of(override)
    is_free = hint in (None, NoneType) or (hint is Any and allowed == _ANYTHING)
    if is_free or hasattr(function, _GUARDED):
        return
    definer = next(parent for parent in half.__mro__ if name in vars(parent))
    place = home_of(function) or home_of(definer)
    label = f"{key}: {definer.__qualname__}.{name}{place}"
    checking = _make_checking(function, label, hint, allowed, is_method=own is function)
    _replace(half, name, own, checking)


def _replace(half: type, name: str, own: object, function: Callable[..., object]) -> None:
    """Put a function into a class in place of an attribute, as a method, property or as that was.

    Args:
        half: the class, which is changed.
        name: name of the attribute.
        own: the attribute that is replaced.
        function: the function.
    """
    hook: object = function
    if isinstance(own, property):
        hook = property(function, own.fset, own.fdel, own.__doc__)
    elif isinstance(own, cached_property):
        hook = cached_property(function)
        hook.__set_name__(half, name)
    setattr(half, name, hook)


def _check_of(hint: object, allowed: Returns) -> FindMistake:
    """Make a function that finds the mistake in a method's result, in its type or its value.

    Args:
        hint: the annotated type.
        allowed: the rule for values.

    Returns:
        The function, which returns the mistake in words, or "".
    """
    is_right_type = is_of_type(hint)

    def find(value: Any, *arguments: object, **options: object) -> str:
        if not is_right_type(value):
            return show_value(value)
        return allowed.find_mistake(value, *arguments, **options)

    return find


def _make_checking(
    own: FunctionType,
    label: str,
    hint: object,
    allowed: Returns,
    *,
    is_method: bool,
) -> Callable[..., object]:
    """Make a function that calls a hook and refuses wrong results.

    Args:
        own: the hook.
        label: key, name and place of the hook, for messages.
        hint: annotated type of the result.
        allowed: the allowed results.
        is_method: whether the hook is a method; a property describes a part, so its mistakes are
            mistakes of the scenario.
    """
    find_mistake = _check_of(hint, allowed)
    in_words = allowed.allowed or _in_words(hint)
    error_type = SimulationError if is_method else ScenarioError
    key = label.partition(":")[0]

    def check(value: object, arguments: Sequence[object], options: Mapping[str, object]) -> None:
        mistake = find_mistake(value, *arguments, **options)
        if mistake:
            raise error_type(f"{label} returns {mistake}; allowed is {in_words}")
        if allowed.guarded:
            guard(cast(type, type(value)), key, like=hint)

    def refuse_draws(states: Mapping[str, object]) -> None:
        now = generator_states()
        changed = [name for name, state in states.items() if now[name] != state]
        if changed:
            raise SimulationError(
                f"{label} draws from the global generator of {' and of '.join(changed)}, so that "
                f"no run can be repeated; allowed is {allowed.keyed}"
            )

    @wraps(own)
    def hook(*arguments: object, **options: object) -> object:
        states = generator_states() if allowed.keyed else {}
        value = own(*arguments, **options)
        check(value, arguments, options)
        if allowed.keyed:
            refuse_draws(states)
        return value

    @wraps(own)
    async def awaited_hook(*arguments: object, **options: object) -> object:
        value = await own(*arguments, **options)
        check(value, arguments, options)
        return value

    is_coroutine = inspect.iscoroutinefunction(inspect.unwrap(own))
    checking: Callable[..., object] = awaited_hook if is_coroutine else hook
    setattr(checking, _GUARDED, True)
    return checking
