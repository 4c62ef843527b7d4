"""Checks that fedsim can use the hooks (functions, coroutines, properties) of users' classes."""

import inspect
from collections.abc import Iterator
from functools import cache, cached_property
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from fedsim.common.errors import ScenarioError, home_of
from fedsim.common.spec import Spec

UNIONS = (Union, UnionType)
# names of the classes that a user may nest in a strategy class, and that fedsim uses too
_HALVES = ("Client", "Params", "Half")
METHODS = (classmethod, staticmethod)
_KEY = object()  # in the result of ``_attributes_of``, the value of a key of a scenario table


class Override(NamedTuple):
    """Method or attribute of a fedsim class that a user's class overrides.

    Attributes:
        name: name of the attribute.
        own: the attribute of the user's class.
        base: the attribute of the fedsim class.
        root_class: the most general fedsim class that has the attribute.
    """

    name: str
    own: object
    base: object
    root_class: type

    @property
    def root_attribute(self) -> object:
        """The attribute as it was first defined, in ``root_class``."""
        return vars(self.root_class)[self.name]

    @property
    def is_value(self) -> bool:
        """Whether the user's attribute is a plain value, not a method, property or scenario key."""
        is_code = callable(self.own) or isinstance(self.own, (property, cached_property, *METHODS))
        return self.own is not _KEY and not is_code


@cache
def refuse_wrong_hooks(user_class: type, key: str, like: type | None = None) -> None:
    """Check that a user's class has the methods that fedsim calls (hooks), in a usable form.

    A method has a wrong form if it does not accept the calls that the fedsim class's method
    accepts, such as a method with other parameters. Nested classes (``Client``, ``Params``) are
    checked, too.

    Args:
        user_class: the class.
        key: the key of a scenario that names the class, in messages.
        like: a fedsim class whose methods ``user_class`` must have, even without inheriting them.

    Raises:
        ScenarioError: a method is missing, or has a wrong form or type.
    """
    missing = sorted(getattr(user_class, "__abstractmethods__", ()))
    if missing and not _is_fedsims(user_class):
        raise ScenarioError(
            f"{key}: {user_class.__qualname__}{home_of(user_class)} has no {missing[0]!r}, which "
            "it has to have"
        )
    for half in halves_of(user_class):  # the class and its nested classes
        _refuse_former_hooks(half, key, like)
        for name, own, base, _root_class in overrides(half, like):
            # the form that the attribute must have; empty if it has that form
            form = _required_form(own, base)
            if form:
                place = home_of(function_of(own)) or home_of(half)
                raise ScenarioError(
                    f"{key}: {half.__qualname__}.{name}{place} is {_form_of(own)}; it must be "
                    f"{form}"
                )
        for name, own_type, inherited_type in _retyped_keys(half):
            raise ScenarioError(
                f"{key}: {half.__qualname__}.{name}{home_of(half)} is a key of type "
                f"{_type_name(own_type)}; the inherited key holds {_type_name(inherited_type)}: "
                "repeat its type, or choose another name"
            )


def _refuse_former_hooks(half: type, key: str, like: type | None) -> None:
    """Raise ``ScenarioError`` if a class defines a hook by a name that the hook had before.

    The fedsim classes list such names in ``former_hooks``: former name -> present name.

    Args:
        half: the user's class, or a class nested in it.
        key: the key of a scenario that names the user's class.
        like: a fedsim class that counts as a base of ``half``.
    """
    former: dict[str, str] = {}
    for parent in (*half.__mro__, like):
        if parent is not None and _is_fedsims(parent):
            former |= vars(parent).get("former_hooks", {})
    own_parents = [parent for parent in half.__mro__ if not _is_fedsims(parent)]
    for parent in own_parents:
        for name, present in former.items():
            if name in vars(parent):
                raise ScenarioError(
                    f"{key}: {half.__qualname__}.{name}{home_of(half)} is a hook that is now called "
                    f"{present!r}; rename it"
                )


def overrides(user_class: type, like: type | None = None) -> Iterator[Override]:
    """Yield the public attributes of fedsim classes that a user's class overrides.

    Args:
        user_class: the class.
        like: a fedsim class that counts as a base of ``user_class``, which need not inherit it.
    """
    user_attributes: dict[str, object] = {}
    parents = list(user_class.__mro__)
    if like is not None and like not in parents:
        parents.append(like)
    fedsim_parents = [parent for parent in parents if _is_fedsims(parent)]
    # In the method resolution order, a class comes before the classes whose attributes it
    # overrides. So a user's attribute is stored until a fedsim class with that attribute comes.
    for parent in parents:
        if not _is_fedsims(parent):
            user_attributes = {**_attributes_of(parent), **user_attributes}
            continue
        for name, base in vars(parent).items():
            if name in user_attributes and not name.startswith("_"):
                owners = [ancestor for ancestor in fedsim_parents if name in vars(ancestor)]
                # the last owner is the class that has introduced the attribute
                yield Override(name, user_attributes.pop(name), base, root_class=owners[-1])


def _attributes_of(user_class: type) -> dict[str, object]:
    """Return the attributes that a class itself defines, without inherited attributes.

    Returns:
        Name -> value. A key of a scenario's table has the marker ``_KEY`` instead of its value.
    """
    attributes = dict(vars(user_class))
    fields = getattr(user_class, "model_fields", ())
    for name in attributes.get("__annotations__", ()):
        if name in fields:
            attributes[name] = _KEY
    return attributes


def halves_of(user_class: type) -> list[type]:
    """Return a user's class with the classes nested in it that fedsim also calls.

    Nested classes are ``Client`` and ``Params`` of a strategy, for example.
    """
    halves = [user_class]
    for name in _HALVES:
        half = getattr(user_class, name, None)
        if isinstance(half, type):
            halves.append(half)
    return halves


def _is_fedsims(parent: type) -> bool:
    return parent.__module__.partition(".")[0] == "fedsim"


def _retyped_keys(spec: type) -> Iterator[tuple[str, object, object]]:
    """Find keys of a scenario's table whose type a user's class changes from the inherited one.

    Args:
        spec: the user's class of the table.

    Yields:
        Name of the key, its type in the user's class, and its type in the fedsim class.
    """
    if not issubclass(spec, Spec):
        return
    fedsim_spec = next(parent for parent in spec.__mro__ if _is_fedsims(parent))
    for name, inherited in getattr(fedsim_spec, "model_fields", {}).items():
        own_type = spec.model_fields[name].annotation
        is_dropped = own_type is NoneType  # the annotation None removes an inherited key
        if name == "kind" or is_dropped:
            continue
        if not _is_narrower(own_type, inherited.annotation):
            yield name, own_type, inherited.annotation


def _is_narrower(own: object, inherited: object) -> bool:
    """Whether every value of the type ``own`` is a value of the type ``inherited``.

    Constraints in annotations are ignored.
    """
    if own == inherited or inherited is Any:
        return True
    inherited_members = _members_of(inherited)

    def is_allowed(member: object) -> bool:
        return any(_is_narrower_member(member, allowed) for allowed in inherited_members)

    return all(map(is_allowed, _members_of(own)))


def _members_of(annotation: object) -> set[object]:
    """Return the member types of a union, or the type itself if it is not a union."""
    return {*get_args(annotation)} if get_origin(annotation) in UNIONS else {annotation}


def _is_narrower_member(own: object, inherited: object) -> bool:
    """Whether every value of ``own`` is a value of ``inherited``; neither type is a union."""
    if own == inherited:
        return True
    if get_origin(own) is Literal:
        if get_origin(inherited) is Literal:
            allowed = get_args(inherited)
            return all(value in allowed for value in get_args(own))
        return all(type(value) is inherited for value in get_args(own))
    if not isinstance(own, type) or not isinstance(inherited, type):
        return False
    # a bool is no int in a scenario, although ``bool`` is a subclass of ``int``
    return issubclass(own, inherited) and own is not bool


def _type_name(annotation: object) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def function_of(hook: object) -> object:
    """Return the function of a method or property; any other attribute is returned unchanged."""
    if isinstance(hook, property):
        return hook.fget
    if isinstance(hook, cached_property):
        return hook.func
    if isinstance(hook, classmethod | staticmethod):
        return hook.__func__
    return hook


def _form_of(attribute: object) -> str:
    """Describe an attribute of a class for messages, such as ``'def f(self)'`` or ``a property``."""
    if isinstance(attribute, property | cached_property):
        return "a property"
    if isinstance(attribute, FunctionType):
        parameters = ", ".join(inspect.signature(attribute).parameters)
        keyword = "async def" if _is_coroutine(attribute) else "def"
        return f"'{keyword} {attribute.__name__}({parameters})'"
    if isinstance(attribute, classmethod):
        return "a class method"
    return "a key" if attribute is _KEY else "a value"


def _is_coroutine(function: FunctionType) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def _required_form(own: object, base: object) -> str:
    """Describe the form that a user's attribute must have; empty if it has that form already.

    Args:
        own: the attribute of the user's class.
        base: the attribute of the fedsim class, whose form it must have.
    """
    if isinstance(base, FunctionType):  # the attribute is a method
        if isinstance(own, FunctionType):
            is_right = _is_coroutine(own) == _is_coroutine(base) and _accepts_calls_of(own, base)
        else:
            is_right = callable(own) or isinstance(own, staticmethod)
        return "" if is_right else _form_of(base)
    is_own_method = isinstance(own, FunctionType)
    if isinstance(base, property | cached_property):
        # a key has no value in the class, only in an instance
        is_wrong = is_own_method or own is _KEY
        return "a property (@property), or a ClassVar" if is_wrong else ""
    is_base_value = not callable(base) and not isinstance(base, METHODS)
    if is_base_value and is_own_method:
        return "a value (ClassVar)"
    return ""


def _accepts_calls_of(own: FunctionType, base: FunctionType) -> bool:
    """Whether ``own`` accepts every call that ``base`` accepts.

    This is tested by a call with all parameters of ``base``, in the kinds that ``base`` gives them.
    """
    arguments = []  # the parameters themselves serve as arguments, as any objects would do
    options = {}
    for parameter in inspect.signature(base).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            arguments.append(parameter)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            options[parameter.name] = parameter
    try:
        inspect.signature(own).bind(*arguments, **options)
    except TypeError:
        return False
    return True
