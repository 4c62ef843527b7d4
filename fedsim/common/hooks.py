"""The form of hooks of users' classes: functions, coroutines or properties as fedsim's own."""

import inspect
from collections.abc import Iterator
from functools import cache, cached_property
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from fedsim.common.errors import ScenarioError, home_of
from fedsim.common.spec import Spec

UNIONS = (Union, UnionType)
# attributes of a strategy that hold further classes of its author
_HALVES = ("Client", "Params", "Half")
METHODS = (classmethod, staticmethod)
_KEY = object()  # marks an overridden field of a spec


class Override(NamedTuple):
    """A name of fedsim's that a user's class defines anew.

    Attributes:
        name: the name.
        own: the attribute of the user's class.
        base: the attribute of fedsim's class.
        root: the first class of fedsim that has the name.
    """

    name: str
    own: Any
    base: Any
    root: type

    @property
    def first(self) -> Any:
        """The attribute of the first class of fedsim that has the name."""
        return vars(self.root)[self.name]

    @property
    def is_value(self) -> bool:
        """Whether the user's class has a plain value, and no method, property or key."""
        is_code = callable(self.own) or isinstance(self.own, (property, cached_property, *METHODS))
        return self.own is not _KEY and not is_code


@cache
def refuse_wrong_hooks(found: type, key: str, like: type | None = None) -> None:
    """Refuse a user's class that lacks a hook, or has one of another form than fedsim's.

    Args:
        found: the class, which is looked at with those that it holds.
        key: the key of a scenario that holds the part, in messages.
        like: the class of fedsim whose hooks it has, although it may not inherit it.
    """
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing and not _is_fedsims(found):
        lacks = f"has no {missing[0]!r}, which it has to have"
        raise ScenarioError(f"{key}: {found.__qualname__}{home_of(found)} {lacks}")
    for one in halves_of(found):
        for name, own, base, _ in overrides(one, like):
            if wanted := _wanted(own, base):
                where = home_of(function_of(own)) or home_of(one)
                raise ScenarioError(
                    f"{key}: {one.__qualname__}.{name}{where} is {_form(own)}; it must be {wanted}"
                )
        for name, own_type, inherited_type in _retyped_keys(one):
            wrong = (
                f"{one.__qualname__}.{name}{home_of(one)} is a key of type {_type_name(own_type)}"
            )
            allowed = (
                f"the inherited key holds {_type_name(inherited_type)}: repeat its type, or choose "
                "another name"
            )
            raise ScenarioError(f"{key}: {wrong}; {allowed}")


def overrides(one: type, like: type | None = None) -> Iterator[Override]:
    """The public names that a user's class overrides, of its parents or of ``like``."""
    own: dict[str, Any] = {}
    parents = list(one.__mro__)
    if like is not None and like not in parents:
        parents.append(like)
    for number, parent in enumerate(parents):
        if not _is_fedsims(parent):
            keys = [
                name
                for name in vars(parent).get("__annotations__", ())
                if name in getattr(parent, "model_fields", ())
            ]
            own = {**vars(parent), **dict.fromkeys(keys, _KEY), **own}
            continue
        for name, base in vars(parent).items():
            if name in own and not name.startswith("_"):
                above = [other for other in parents[number:] if _is_fedsims(other)]
                root = [other for other in above if name in vars(other)][-1]
                yield Override(name, own.pop(name), base, root)


def halves_of(found: type) -> list[type]:
    """A user's class, and the classes that it holds."""
    halves = [getattr(found, name, None) for name in _HALVES]
    return [found, *(half for half in halves if isinstance(half, type))]


def _is_fedsims(parent: type) -> bool:
    return parent.__module__.partition(".")[0] == "fedsim"


def _retyped_keys(spec: type) -> Iterator[tuple[str, Any, Any]]:
    """The keys that a user's class declares anew with another type: name, its type, and the type
    of fedsim's key.
    """
    if not issubclass(spec, Spec):
        return
    of_fedsim = next(parent for parent in spec.__mro__ if _is_fedsims(parent))
    for name, inherited in getattr(of_fedsim, "model_fields", {}).items():
        own = spec.model_fields[name].annotation
        is_dropped = own is NoneType
        if name != "kind" and not is_dropped and not _is_narrower(own, inherited.annotation):
            yield name, own, inherited.annotation


def _is_narrower(own: Any, inherited: Any) -> bool:
    """Whether every value of the type ``own`` is one of the type ``inherited``, as far as the
    types themselves say.
    """
    if own == inherited or inherited is Any:
        return True
    own_types = {*get_args(own)} if get_origin(own) in UNIONS else {own}
    inherited_types = {*get_args(inherited)} if get_origin(inherited) in UNIONS else {inherited}
    return all(
        any(_is_narrower_plain(one, other) for other in inherited_types) for one in own_types
    )


def _is_narrower_plain(own: Any, inherited: Any) -> bool:
    if own == inherited:
        return True
    if get_origin(own) is Literal:
        allowed = get_args(inherited) if get_origin(inherited) is Literal else None
        return all(
            value in allowed if allowed is not None else type(value) is inherited
            for value in get_args(own)
        )
    return (
        isinstance(own, type)
        and isinstance(inherited, type)
        and issubclass(own, inherited)
        and own is not bool
    )


def _type_name(annotation: Any) -> str:
    return (
        annotation.__name__
        if isinstance(annotation, type)
        else str(annotation).replace("typing.", "")
    )


def function_of(hook: Any) -> Any:
    """The function of a method or a property."""
    if isinstance(hook, property):
        return hook.fget
    if isinstance(hook, cached_property):
        return hook.func
    return hook.__func__ if isinstance(hook, METHODS) else hook


def _form(hook: Any) -> str:
    if isinstance(hook, property | cached_property):
        return "a property"
    if isinstance(hook, FunctionType):
        given = f"{hook.__name__}({', '.join(inspect.signature(hook).parameters)})"
        return (
            f"'async def {given}'"
            if inspect.iscoroutinefunction(inspect.unwrap(hook))
            else f"'def {given}'"
        )
    return (
        "a class method"
        if isinstance(hook, classmethod)
        else "a key"
        if hook is _KEY
        else "a value"
    )


def _wanted(own: Any, base: Any) -> str:
    """The form that a hook must have; empty if its own form is right."""
    if isinstance(base, property | cached_property) and (
        isinstance(own, FunctionType) or own is _KEY
    ):
        return "a property (@property), or a ClassVar"
    if isinstance(own, FunctionType) and not callable(base) and not isinstance(base, METHODS):
        return "a value (ClassVar)"
    if not isinstance(base, FunctionType):
        return ""
    wanted = _form(base)
    if not isinstance(own, FunctionType):
        return "" if callable(own) or isinstance(own, staticmethod) else wanted
    return (
        ""
        if wanted.startswith("'async") == _form(own).startswith("'async") and _takes(own, base)
        else wanted
    )


def _takes(own: FunctionType, base: FunctionType) -> bool:
    """Whether ``own`` accepts every call that ``base`` accepts."""
    parameters = inspect.signature(base).parameters.values()
    fixed = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    try:
        inspect.signature(own).bind(
            *fixed, **{one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
        )
    except TypeError:
        return False
    return True
