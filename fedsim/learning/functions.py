"""Pure functions of models: what server optimisers, robust means, codecs and noise are made of.

A function is kept by its import path, so that it can be carried out later, in another process, and after a run was resumed.
A checkpoint could name any function: only those that are marked as meant for it are ever called.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError

Function = Callable[..., NDArray[np.floating]]
F = TypeVar("F", bound=Function)

_MARK = "__fedsim_pure__"


def pure(function: F) -> F:
    """Mark a function of models as fit for ``Server.apply``: it stands at the top of a module and has no side effects."""
    setattr(function, _MARK, True)
    return function


def path_of(function: Function) -> str:
    """The import path of a function, ``package.module:function``.

    Raises:
        SimulationError: it is not marked by ``pure``, or does not stand at the top of its module.
    """
    name = getattr(function, "__qualname__", repr(function))
    if not getattr(function, _MARK, False):
        raise SimulationError(f"{name} cannot be applied to models: it is not marked by fedsim's decorator 'pure'")
    if not name.isidentifier():
        raise SimulationError(f"{name} cannot be applied to models: it must stand at the top of a module, to be found by name")
    return f"{function.__module__}:{name}"


def carry_out(
    path: str, models: Sequence[NDArray[np.float32]], constants: Mapping[str, Any], stream: tuple[Any, ...] | None
) -> NDArray[np.float32]:
    """What the function at ``path`` makes of models: float32 [d].

    Args:
        path: where it is.
        models: float32 [d] each, read-only.
        constants: what else it is given.
        stream: the run's streams, and the name of the one that it draws from as ``rng``; None for none.

    Raises:
        SimulationError: there is no such function, or what it gives is no model.
    """
    module, _, name = path.partition(":")
    function = getattr(import_module(module), name, None)
    if function is None or not getattr(function, _MARK, False):
        raise SimulationError(f"{path!r} is no function that is marked by fedsim's decorator 'pure'")
    drawing = {} if stream is None else {"rng": stream[0].generator(*stream[1:])}
    with np.errstate(all="ignore"):  # what is not finite is found by looking at the result
        value = np.asarray(function(list(models), **constants, **drawing))
    if value.shape != models[0].shape:
        raise SimulationError(f"{path!r} made an array of shape {value.shape}; allowed is {models[0].shape}, a model's")
    return value.astype(np.float32)
