"""Checks of a user's own class: each hook must have the form of the hook that it overrides."""

import inspect
from collections.abc import Iterator
from functools import cache, cached_property
from types import FunctionType
from typing import Any

from fedsim.errors import ScenarioError, home_of

_HALVES = ("Client", "Params")  # of a strategy: classes of the user's own, too
_KEY = object()  # stands for a key of a scenario


@cache
def refuse_wrong_hooks(found: type, key: str) -> None:
    """Refuse a class with a hook that is no property, is not async, or takes other arguments than the hook it overrides.

    Args:
        found: the class; of a strategy also its ``Client`` and its ``Params``.
        key: the key that names the class, for the message.

    Raises:
        ScenarioError: says which hook, its file and line, and what it must be.
    """
    halves = [half for half in map(vars(found).get, _HALVES) if isinstance(half, type)]
    for one in (found, *halves):
        for name, own, base in _overrides(one):
            wanted = _wanted(own, base)
            if wanted:
                where = home_of(own.fget if isinstance(own, property) else own) or home_of(one)
                raise ScenarioError(f"{key}: {one.__qualname__}.{name}{where} is {_form(own)}; it must be {wanted}")


def _overrides(one: type) -> Iterator[tuple[str, Any, Any]]:
    """The public names that a user's own class overrides: name, own attribute, fedsim's attribute."""
    own: dict[str, Any] = {}
    for parent in one.__mro__:
        if parent.__module__.partition(".")[0] != "fedsim":
            keys = [name for name in vars(parent).get("__annotations__", ()) if name in getattr(parent, "model_fields", ())]
            own = {**vars(parent), **dict.fromkeys(keys, _KEY), **own}
            continue
        for name, base in vars(parent).items():
            if name in own and not name.startswith("_"):
                yield name, own.pop(name), base


def _form(hook: Any) -> str:
    if isinstance(hook, property | cached_property):
        return "a property"
    if isinstance(hook, FunctionType):
        given = f"{hook.__name__}({', '.join(inspect.signature(hook).parameters)})"
        return f"'async def {given}'" if inspect.iscoroutinefunction(inspect.unwrap(hook)) else f"'def {given}'"
    return "a class method" if isinstance(hook, classmethod) else "a key" if hook is _KEY else "a value"


def _wanted(own: Any, base: Any) -> str:
    """The form that a hook must have; empty if its own form is right."""
    if isinstance(base, property) and (isinstance(own, FunctionType) or own is _KEY):
        return "a property (@property), or a ClassVar"
    if not isinstance(base, FunctionType):
        return ""
    wanted = _form(base)
    if not isinstance(own, FunctionType):
        return "" if callable(own) or isinstance(own, staticmethod) else wanted
    return "" if wanted.startswith("'async") == _form(own).startswith("'async") and _takes(own, base) else wanted


def _takes(own: FunctionType, base: FunctionType) -> bool:
    """Whether ``own`` accepts every call that ``base`` accepts."""
    parameters = inspect.signature(base).parameters.values()
    fixed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    named = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(own).bind(*fixed, **named)
    except TypeError:
        return False
    return True
