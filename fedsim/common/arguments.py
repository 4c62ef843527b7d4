"""Rules for the arguments of methods that users' code calls, such as ``Server.timer``.

A method of the API declares a rule for each argument by ``takes``. A wrong argument then ends the
call with an error that names the method, the argument, its value and the allowed values, before
the method does anything. Numbers of numpy arrive in the method as plain numbers of Python.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

import numpy as np

from fedsim.common.errors import SimulationError, nearest, show_value

P = ParamSpec("P")
T = TypeVar("T")
Fits = Callable[[object, object], bool]
"""Function that gets the object whose method is called and an argument of the call.

It returns whether the rule allows the argument.
"""

MOST_INDEX = 2**31 - 1
"""Largest index of a round, group, task or device: columns of tables are int32."""

_MOST_COUNT = 2**63 - 1
_MOST_FLOAT = sys.float_info.max
# types of plain numbers; a union such as ``int | float`` would be made anew at each call
_PLAIN_NUMBERS = (int, float)
_NUMPY_NUMBERS = (np.integer, np.floating)
_LISTS = (list, tuple, range)


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """Rule for an argument of a method.

    Attributes:
        fits: function that gets the object whose method is called and the argument, and returns
            whether the rule allows the argument. Numbers of numpy are converted to plain numbers
            before.
        allowed: the allowed values in words: a text, or a function that makes the text from the
            object whose method is called.
        names: the allowed names, of which an error suggests the nearest; empty if there are none.
    """

    fits: Fits
    allowed: str | Callable[[object], str]
    names: tuple[str, ...] = ()


def refusal(
    method: str, name: str, value: object, allowed: str, names: Iterable[str] = ()
) -> SimulationError:
    """Return the error for a wrong argument of a method that users' code has called.

    Args:
        method: the method with its class, such as ``Server.timer``.
        name: name of the argument.
        value: the wrong value.
        allowed: the allowed values in words.
        names: the allowed names, of which the nearest is suggested.
    """
    hint = nearest(value, names) if isinstance(value, str) else ""
    return SimulationError(f"{method}: {name} is {show_value(value)}; allowed is {allowed}{hint}")


def plain(value: object) -> object:
    """Convert numbers and arrays of numpy to numbers and lists of Python, also in lists and dicts.

    Any other value is returned unchanged.
    """
    if type(value) in _PLAIN_NUMBERS:  # most values are plain numbers; the check saves time
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    return value


# checks of single values


def is_text(value: object) -> bool:
    """Return whether a value is text that can be written to a file: without lone surrogates."""
    if not isinstance(value, str):
        return False
    if value.isascii():  # fast, as Python stores this property with the text
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number; True and False do not count as numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_index(value: object) -> bool:
    """Return whether a value is a whole number from 0 to ``MOST_INDEX``, the greatest int32."""
    return _is_index(None, value)


def _is_index(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_INDEX


def is_number(value: object) -> bool:
    """Return whether a value is a number of Python or numpy, also infinity or NaN.

    False for True and False, and for integers that are too large for a float.
    """
    if isinstance(value, float):
        return True
    if isinstance(value, int):
        return not isinstance(value, bool) and -_MOST_FLOAT <= value <= _MOST_FLOAT
    return isinstance(value, _NUMPY_NUMBERS)


def is_mapping(value: object) -> bool:
    """Return whether a value is a dict, or another mapping, whose keys are texts."""
    if type(value) is not dict and not isinstance(value, Mapping):
        return False
    for name in value:  # noqa: SIM110 - a call of ``all`` takes twice as long
        if not is_text(name):
            return False
    return True


# rules


def whole(least: int, most: float = _MOST_COUNT) -> ArgumentRule:
    """Make a rule for whole numbers.

    Args:
        least: the least number.
        most: the largest number; by default the largest of 64 bits.
    """

    def fits(_: object, value: object) -> bool:
        return isinstance(value, int) and least <= value <= most and not isinstance(value, bool)

    return ArgumentRule(fits, f"a whole number of {least} or more")


def number(
    *, least: float = -math.inf, above: float = -math.inf, infinite: bool = False
) -> ArgumentRule:
    """Make a rule for numbers; it never allows NaN.

    Args:
        least: the least number.
        above: bound that an allowed number must exceed.
        infinite: whether infinity is allowed.
    """
    words = "a number" if infinite else "a finite number"
    if least > -math.inf:
        words += f" of {least:g} or more"
    if above > -math.inf:
        words += f" above {above:g}"

    def fits(_: object, value: object) -> bool:
        if not isinstance(value, _PLAIN_NUMBERS) or not is_number(value):
            return False
        exceeds_bound = above == -math.inf or value > above
        is_within = exceeds_bound and value >= least  # False for NaN
        return is_within and (infinite or math.isfinite(value))

    return ArgumentRule(fits, words)


def one_of(*names: str) -> ArgumentRule:
    """Make a rule for one of several names.

    Args:
        names: the allowed names.
    """

    def fits(_: object, value: object) -> bool:
        return isinstance(value, str) and value in names

    return ArgumentRule(fits, ", ".join(map(repr, names)), names)


def instance(kind: type | tuple[type, ...], allowed: str) -> ArgumentRule:
    """Make a rule for objects of a class.

    Args:
        kind: the class, or several classes.
        allowed: text that describes the allowed objects, for the error's message.
    """
    return ArgumentRule(lambda _, value: isinstance(value, kind), allowed)


def optional(rule: ArgumentRule) -> ArgumentRule:
    """Make a rule that also allows None.

    Args:
        rule: the rule for all other values.
    """
    fits_value = rule.fits

    def allowed(owner: object) -> str:
        return f"{in_words(rule, owner)}, or None"

    def fits(owner: object, value: object) -> bool:
        return value is None or fits_value(owner, value)

    return ArgumentRule(fits, allowed, rule.names)


def list_of(rule: ArgumentRule, things: str, least: int = 0) -> ArgumentRule:
    """Make a rule for lists, each of whose entries must fit another rule.

    Args:
        rule: the rule of each entry.
        things: plural noun for the entries.
        least: least count of entries.
    """
    count = f", at least {least}" if least else ""
    fits_entry = rule.fits

    def allowed(owner: object) -> str:
        return f"a list of {things}{count}, each {in_words(rule, owner)}"

    def fits(owner: object, value: object) -> bool:
        if not isinstance(value, _LISTS) or len(value) < least:
            return False
        return False not in [fits_entry(owner, entry) for entry in value]

    return ArgumentRule(fits, allowed)


def in_words(rule: ArgumentRule, owner: object) -> str:
    """Return the values that a rule allows, in words.

    Args:
        rule: the rule.
        owner: the object whose method is called. The allowed values may depend on this object, such
            as on its count of devices.
    """
    return rule.allowed if isinstance(rule.allowed, str) else rule.allowed(owner)


TEXT = ArgumentRule(lambda _, value: is_text(value), "a text (without lone surrogates)")
NAME = ArgumentRule(lambda _, value: is_text(value) and value != "", "a text that is not empty")
FLAG = ArgumentRule(lambda _, value: isinstance(value, bool), "True or False")
INDEX = ArgumentRule(_is_index, f"a whole number from 0 to {MOST_INDEX}")
COUNT = whole(0)
STREAM_ID = whole(-1, math.inf)
NUMBER = ArgumentRule(
    lambda _, value: isinstance(value, _PLAIN_NUMBERS) and is_number(value), "a number"
)
CALLABLE = ArgumentRule(lambda _, value: callable(value), "a function")
LIST = ArgumentRule(lambda _, value: isinstance(value, _LISTS), "a list")
MAPPING = ArgumentRule(lambda _, value: is_mapping(value), "a dict by names")


# methods with rules


def takes(
    **rules: ArgumentRule,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator that declares rules for the arguments of a method of the API.

    A call with a wrong argument raises ``SimulationError`` and does nothing else. Arguments that a
    call leaves out are not checked. Numbers and arrays of numpy become numbers and lists.

    Args:
        rules: name of a parameter -> its rule. The rule of a parameter such as ``*ids`` or
            ``**counts`` is for each argument that the parameter collects.
    """

    def declare(method: Callable[P, T]) -> Callable[P, T]:
        checker = _Checker(method, rules)
        fits_at = checker.fits_at
        has_only_positions = not checker.collects
        call: Callable[..., T] = method

        @wraps(method)
        def checked(*arguments: P.args, **options: P.kwargs) -> T:
            owner = arguments[0]
            for fits, value in zip(fits_at, arguments):  # noqa: B905 - ``strict`` takes time
                if fits is not None and not fits(owner, value):
                    break
            else:  # all positional arguments are allowed as they are
                if has_only_positions and not options:
                    return call(*arguments)
                if checker.allows_rest(arguments, options):
                    return call(*arguments, **options)
            # an argument is a number of numpy, or is wrong
            converted, named = checker.convert(arguments, options)
            return call(*converted, **named)

        return checked

    return declare


class _Checker:
    """Check of the arguments of one method.

    Args:
        method: the method.
        rules: name of a parameter -> its rule.

    Attributes:
        fits_at: for each parameter by position, ``self`` included, whether a value fits; None for a
            parameter without a rule.
        collects: whether the method has a parameter such as ``*ids`` or ``**counts``.
    """

    def __init__(self, method: Callable[..., object], rules: Mapping[str, ArgumentRule]) -> None:
        self._method = method.__qualname__
        self._rules = rules
        self._names: list[str] = []  # names of the parameters by position; the first is ``self``
        self._rest = ""  # name of a parameter such as ``*ids``; empty if there is none
        self._others = ""  # name of a parameter such as ``**counts``; empty if there is none
        for parameter in signature(method).parameters.values():
            match parameter.kind:
                case Parameter.VAR_POSITIONAL:
                    self._rest = parameter.name
                case Parameter.VAR_KEYWORD:
                    self._others = parameter.name
                case Parameter.POSITIONAL_ONLY | Parameter.POSITIONAL_OR_KEYWORD:
                    self._names.append(parameter.name)
        self.collects = bool(self._rest or self._others)
        self._fits = {name: rule.fits for name, rule in rules.items()}
        self.fits_at = tuple(map(self._fits.get, self._names))
        self._fits_rest = self._fits.get(self._rest)
        self._fits_others = self._fits.get(self._others)

    def allows_rest(self, arguments: tuple[object, ...], options: Mapping[str, object]) -> bool:
        """Return whether arguments that are passed by name, or collected by ``*ids``, are allowed.

        Numbers of numpy, which ``convert`` would convert, count as not allowed.

        Args:
            arguments: positional arguments, ``self`` included.
            options: keyword arguments.
        """
        owner = arguments[0]
        if self._fits_rest is not None:
            for value in arguments[len(self._names) :]:
                if not self._fits_rest(owner, value):
                    return False
        for name, value in options.items():
            fits = self._fits.get(name, self._fits_others)
            if fits is not None and not fits(owner, value):
                return False
        return True

    def convert(
        self, arguments: tuple[object, ...], options: Mapping[str, object]
    ) -> tuple[list[object], dict[str, object]]:
        """Return the arguments of a call with plain numbers in place of numbers of numpy.

        Args:
            arguments: positional arguments, ``self`` included.
            options: keyword arguments.

        Raises:
            SimulationError: an argument is not allowed.
        """
        owner = arguments[0]
        converted = []
        for position, value in enumerate(arguments):
            name = self._rest  # an argument that a parameter such as ``*ids`` collects
            if position < len(self._names):
                name = self._names[position]
            converted.append(self._convert(owner, name, name, value))
        named = {}
        for name, value in options.items():
            # an unknown name belongs to a parameter such as ``**counts``
            parameter = name if name in self._rules else self._others
            named[name] = self._convert(owner, parameter, name, value)
        return converted, named

    def _convert(self, owner: object, parameter: str, name: str, value: object) -> object:
        """Return an argument, or a plain number in place of a number of numpy.

        Args:
            owner: the object whose method is called.
            parameter: name of the parameter that takes the argument, such as ``counts`` for an
                argument that ``**counts`` collects.
            name: name of the argument.
            value: the argument.

        Raises:
            SimulationError: the argument is not allowed.
        """
        rule = self._rules.get(parameter)
        if rule is None or rule.fits(owner, value):
            return value
        plain_value = plain(value)
        if rule.fits(owner, plain_value):
            return plain_value
        raise refusal(self._method, name, value, in_words(rule, owner), rule.names)
