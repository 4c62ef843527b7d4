"""Checks of the values that hooks of users' classes return.

A base class declares the results of a hook by its annotation, and by ``returns`` if the type is not
enough. ``guard`` makes a ``HookRule`` for each hook of a user's class, and replaces the hook by a
function that calls it and checks the result by the rule. Classes of fedsim are not changed, so
that built-in parts spend no time on checks.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fedsim.common.errors import (
    FedsimError,
    ScenarioError,
    SimulationError,
    home_of,
    show_value,
)
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
"""Function that gets a value, the object, and the arguments of the hook's call.

It returns the mistake in the value, in words, or "".
"""
Check = Callable[[object], bool]

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
    """Rule for the values of the annotated type that a user's method (hook) may return.

    Attributes:
        allowed: the allowed values in words, for messages; empty for words made from the type.
        find_mistake: function that is called as ``find_mistake(value, *arguments)`` for a value of
            the right type. It returns what is wrong with the value, in words, or "". ``arguments``
            are the arguments of the hook's call, with ``self`` as the first.
        allowed_draws: the random numbers that the hook may draw, in words. A draw from a global
            generator is then an error. Empty if draws are not checked.
        guarded: whether the returned object has hooks, which are checked too.
    """

    allowed: str = ""
    find_mistake: FindMistake = _find_nothing
    allowed_draws: str = ""
    guarded: bool = False


_ANYTHING = Returns()
_declared: dict[object, Returns] = {}  # function of a base class's hook -> its rule
_guarded_hooks: set[tuple[type, str]] = set()  # (class, hook) whose results are checked already


def returns(
    allowed: str = "",
    find_mistake: FindMistake = _find_nothing,
    *,
    allowed_draws: str = "",
    guarded: bool = False,
) -> Callable[[Hook], Hook]:
    """Decorator that declares which values a user's override of a hook may return.

    It decorates the hook in the base class. A value that is not of the hook's annotated type, or
    that breaks the declared rule, ends the run with an error that names the user's method.

    Args:
        allowed: the allowed values in words, for messages; empty for words made from the type.
        find_mistake: function that is called as ``find_mistake(value, *arguments)`` for a value of
            the right type. It returns what is wrong with the value, in words, or "". ``arguments``
            are the arguments of the hook's call, with ``self`` as the first.
        allowed_draws: the random numbers that the hook may draw, in words. A draw from a global
            generator is then an error. Empty if draws are not checked.
        guarded: whether the returned object has hooks, which are checked too.
    """

    def declare(hook: Hook) -> Hook:
        _declared[hook] = Returns(allowed, find_mistake, allowed_draws, guarded)
        return hook

    return declare


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

    def is_within(number: float) -> bool:  # False for NaN
        is_between = above < number and least <= number <= most
        return bool(is_between and (infinite or math.isfinite(number)))

    def find(value: Any, *_: object, **__: object) -> str:
        if value is None:
            return ""
        if not isinstance(value, np.ndarray):
            return "" if is_within(value) else show_value(value)
        # an array with NaN has NaN as its minimum and maximum
        if not value.size or (is_within(value.min()) and is_within(value.max())):
            return ""
        entries = enumerate(value.ravel())
        first_wrong = next(index for index, number in entries if not is_within(number))
        return _entry_in_words(value, first_wrong)

    return find


def _entry_in_words(array: AnyArray, flat_index: int) -> str:
    index = [int(number) for number in np.unravel_index(flat_index, array.shape)]
    position = index[0] if len(index) == 1 else index
    return f"an array with {array.flat[flat_index]} at {position}"


def find_wrong_entry(value: object, length: int, find: FindMistake) -> str:
    """Check a one-dimensional array of numbers, and describe the first mistake.

    Args:
        value: the array.
        length: required count of entries.
        find: function that gets the array, and returns what is wrong with its first wrong entry, in
            words, or "". The result of ``find_outside`` is such a function.

    Returns:
        The mistake in words; empty if there is none.
    """
    if not isinstance(value, np.ndarray):
        return show_value(value)
    is_numeric = value.dtype.kind in "iuf"  # signed or unsigned integers, or floats
    if value.shape != (length,) or not is_numeric:
        return f"an array of {value.dtype} of shape {value.shape}"
    return find(value)


def is_of_type(hint: object) -> Check:
    """Make a check of whether a value has an annotated type.

    The elements of lists and mappings are not checked.

    Args:
        hint: the type, as in an annotation.

    Returns:
        Function that gets a value, and returns whether the value has the type.
    """
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in UNIONS:
        checks = [is_of_type(argument) for argument in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is Literal:
        return lambda value: isinstance(value, str | int) and value in arguments
    if origin is tuple:
        return _make_tuple_check(arguments)
    kind = origin or hint  # the class, without the types of elements
    if kind is bool:
        return lambda value: isinstance(value, bool | np.bool_)
    if kind is int:
        return _make_number_check(Integral)  # integers of numpy are ``Integral``, too
    if kind is float:
        return _make_number_check(Real)
    if kind is list:
        return lambda value: isinstance(value, _LISTS)
    if kind is Sequence:
        return _is_sequence
    if not isinstance(kind, type) or kind in (Any, type) or is_typeddict(kind):
        return lambda value: True  # ``isinstance`` cannot check this type
    if getattr(kind, "_is_protocol", False):
        return _make_method_check(kind)
    return lambda value: isinstance(value, kind)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _make_number_check(kind: type) -> Check:
    def check(value: object) -> bool:
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        return is_number and bool(value == value)  # the comparison is False for NaN

    return check


def _make_tuple_check(arguments: tuple[object, ...]) -> Check:
    """Make a check for a type of tuples by its arguments, such as ``(int, str)`` or ``(int, ...)``."""
    if arguments[1:] == (...,):  # any count of entries of one type; a list is accepted, too
        is_right = is_of_type(arguments[0])
        return lambda value: isinstance(value, tuple | list) and all(map(is_right, value))
    checks = [is_of_type(argument) for argument in arguments]

    def check(value: object) -> bool:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return False
        return all(is_right(entry) for is_right, entry in zip(checks, value, strict=True))

    return check


def _make_method_check(protocol: type) -> Check:
    names = []
    for name, attribute in vars(protocol).items():
        if isinstance(attribute, FunctionType) and not name.startswith("_"):
            names.append(name)
    return lambda value: all(callable(getattr(value, name, None)) for name in names)


def _in_words(hint: object) -> str:
    """Describe an annotated type for messages, such as ``a list or None``."""
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
        The annotated type in the most general fedsim class that has the method or attribute;
        ``Any`` if it has no annotation.
    """
    function = function_of(override.root_attribute)
    try:
        if isinstance(function, FunctionType):
            hint = get_type_hints(function).get("return", Any)
        else:
            hint = get_type_hints(override.root_class).get(override.name, Any)
    except NameError:  # the annotation names a class that is imported only for type checking
        return Any
    if get_origin(hint) is ClassVar:
        hint = get_args(hint)[0]
    # ``Self`` in the fedsim class allows any object of that class
    return override.root_class if hint is Self else hint


@dataclass(frozen=True)
class HookRule:
    """Rule for the values that one method or attribute of a user's class may return or have.

    Attributes:
        key: key of the scenario that names the class.
        name: the method or attribute with its class, such as ``Mine.select``.
        place: file and line at which the method or its class is defined, for messages.
        hint: the annotated type, in the fedsim class.
        returns: the allowed values of this type, as the fedsim class has declared them.
        error_type: type of the error that a wrong value raises.
    """

    key: str
    name: str
    place: str
    hint: object
    returns: Returns
    error_type: type[FedsimError]

    @classmethod
    def of(cls, override: Override, owner: type, key: str) -> "HookRule":
        """Make the rule of a method, property or attribute of a user's class.

        Args:
            override: the method or attribute.
            owner: the user's class that defines it.
            key: key of the scenario that names the class.
        """
        function = function_of(override.root_attribute)
        returns = _ANYTHING
        if isinstance(function, FunctionType):
            returns = _declared.get(function, _ANYTHING)
        place = home_of(function_of(override.own)) or home_of(owner)
        # a wrong property or plain value is an error of the scenario, a wrong result one of the run
        is_method = isinstance(override.own, FunctionType)
        error_type = SimulationError if is_method else ScenarioError
        name = f"{owner.__qualname__}.{override.name}"
        return cls(key, name, place, _hint_of(override), returns, error_type)

    @property
    def allows_anything(self) -> bool:
        """Whether the rule accepts every result, so that the results need no check."""
        return self.hint in (None, NoneType) or (self.hint is Any and self.returns == _ANYTHING)

    @cached_property
    def is_of_sequence(self) -> bool:
        """Whether the rule is for a method that returns a sequence, such as a list of steps."""
        return get_origin(self.hint) is Sequence

    @cached_property
    def _is_right_type(self) -> Check:
        return is_of_type(self.hint)

    def check(
        self,
        value: object,
        arguments: Sequence[object] = (None,),
        options: Mapping[str, object] | None = None,
        verb: str = "returns",
    ) -> None:
        """Check a value that a method has returned, or that an attribute has.

        If the value is an object that has hooks (``Returns.guarded``), the class of the object is
        changed so that results of these hooks are checked too.

        Args:
            value: the value.
            arguments: positional arguments of the method's call, ``self`` included; a single None
                for an attribute, which is not called.
            options: keyword arguments of the call; None for none.
            verb: verb of the error message: "Mine.select returns ..." or "Mine.limit is ...".

        Raises:
            FedsimError: the value breaks the rule. The error's type is ``error_type``.
        """
        if self._is_right_type(value):
            mistake = self.returns.find_mistake(value, *arguments, **(options or {}))
        else:
            mistake = show_value(value)
        if mistake:
            allowed = self.returns.allowed or _in_words(self.hint)
            raise self.error_type(
                f"{self.key}: {self.name}{self.place} {verb} {mistake}; allowed is {allowed}"
            )
        if self.returns.guarded:
            guard(cast(type, type(value)), self.key, like=cast(type, self.hint))

    def check_draws(self, states: Mapping[str, object]) -> None:
        """Check that no global random generator has been used.

        Args:
            states: the generators' states before the hook was called, by name of the generator.

        Raises:
            SimulationError: a generator has another state now.
        """
        present = generator_states()
        changed = [name for name, state in states.items() if present[name] != state]
        if changed:
            raise SimulationError(
                f"{self.key}: {self.name}{self.place} draws from the global generator of "
                f"{' and of '.join(changed)}, so that no run can be repeated; allowed is "
                f"{self.returns.allowed_draws}"
            )


@cache
def guard(user_class: type, key: str, class_key: str = "", like: type | None = None) -> None:
    """Change a user's class so that wrong return values of its methods raise clear errors.

    Nested classes that fedsim also calls, such as ``Client``, are changed as well.

    Args:
        user_class: the class.
        key: key of the scenario that is named in later errors, when a method has returned a wrong
            value.
        class_key: key of the scenario that is named in errors that this call raises; if empty,
            ``key`` is named.
        like: a fedsim class that counts as a base of ``user_class``, which need not inherit it.

    Raises:
        ScenarioError: a method has a wrong form, or an attribute a wrong value.
    """
    refuse_wrong_hooks(user_class, class_key or key, like)
    for half in halves_of(user_class):
        for override in overrides(half, like):
            root = override.root_attribute
            is_method = callable(root) or isinstance(root, METHODS)
            # a plain value is checked now, the results of a method when it is called
            if override.is_value and not is_method:
                rule = HookRule.of(override, half, class_key or key)
                rule.check(override.own, verb="is")
            _guard_hook(half, override, key)


def _guard_hook(half: type, override: Override, key: str) -> None:
    """Replace a method of a user's class by one that checks results, if there is anything to check.

    Args:
        half: the user's class, which is changed.
        override: the method.
        key: key of the scenario, for messages.
    """
    own = override.own
    function = function_of(own)
    # plain values were checked by ``guard``; class methods and static methods are not checked
    if not isinstance(function, FunctionType) or isinstance(own, METHODS):
        return
    # the class that defines the method: ``half``, or a base class of ``half``
    owner = next(parent for parent in half.__mro__ if override.name in vars(parent))
    rule = HookRule.of(override, owner, key)
    if rule.allows_anything or (owner, override.name) in _guarded_hooks:
        return
    checked_function = _add_checks(function, rule)
    hook: object = checked_function
    if isinstance(own, property):
        hook = property(checked_function, own.fset, own.fdel, own.__doc__)
    elif isinstance(own, cached_property):
        hook = cached_property(checked_function)
        hook.__set_name__(half, override.name)
    setattr(half, override.name, hook)
    _guarded_hooks.add((half, override.name))


def _add_checks(own: FunctionType, rule: HookRule) -> Callable[..., object]:
    """Make a function that calls a hook and checks its results by a rule."""

    @wraps(own)
    def hook(*arguments: object, **options: object) -> object:
        # the states are compared after the call only if the rule restricts random draws
        states = generator_states() if rule.returns.allowed_draws else {}
        value = own(*arguments, **options)
        if rule.is_of_sequence and isinstance(value, Iterator):
            value = tuple(value)  # as an iterator can be read only once
        rule.check(value, arguments, options)
        if states:
            rule.check_draws(states)
        return value

    @wraps(own)
    async def awaited_hook(*arguments: object, **options: object) -> object:
        value = await own(*arguments, **options)
        rule.check(value, arguments, options)
        return value

    return awaited_hook if inspect.iscoroutinefunction(inspect.unwrap(own)) else hook
