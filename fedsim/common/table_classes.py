"""Classes of scenario tables that are made of users' functions and classes."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import create_model

from fedsim.common.spec import Spec

S = TypeVar("S", bound=Spec)


def keys_of(call: Callable[..., object]) -> tuple[dict[str, Any], bool]:
    """Return the parameters of a function as keys of a scenario table, for pydantic.

    Args:
        call: the function or class, whose first parameter is left out.

    Returns:
        A pair. First, name -> (type, default) of each parameter, as pydantic's ``create_model``
        takes it, with ``...`` for no default. Second, whether the function also takes any other
        keywords (``**``).
    """
    parameters = list(inspect.signature(call, eval_str=True).parameters.values())
    takes_any_keyword = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    if takes_any_keyword:
        parameters.pop()
    fields = {}
    for parameter in parameters[1:]:
        is_typed = parameter.annotation is not parameter.empty
        annotation = parameter.annotation if is_typed else Any
        has_default = parameter.default is not parameter.empty
        default = parameter.default if has_default else ...
        fields[parameter.name] = (annotation, default)
    return fields, takes_any_keyword


@cache
def with_any_kind(spec: type[S]) -> type[S]:
    """Return a subclass of a table's class that accepts any text as the required key ``kind``.

    Tables of users' classes need such a class, because their ``kind`` is an import path.
    """
    return create_model(spec.__name__, __base__=spec, __module__=spec.__module__, kind=(str, ...))
