"""Pure functions of models, of which server optimisers, robust means, codecs and noise are made.

A function is kept by its import path, so that it can be carried out later, in another process, and
after a run was resumed. A checkpoint could name any function, so only marked ones of modules that
are imported already are ever called.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import SimulationError
from fedsim.common.training import Places

Function = Callable[..., NDArray[np.floating]]
F = TypeVar("F", bound=Function)

_BLOCK = 1 << 15  # numbers that are summed at once, which fit into a core's own cache

# every marked function whose module has been imported, by its import path
_KNOWN: dict[str, Function] = {}


def pure(function: F) -> F:
    """Mark a function of models as fit for ``ServerModels.apply``: defined at the top of a
    module, without side effects.
    """
    _KNOWN[_path(function)] = function
    return function


def _path(function: Function) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', '')}"


def path_of(function: Function) -> str:
    """The import path ``package.module:function`` of a marked function at the top of its module."""
    path = _path(function)
    if _KNOWN.get(path) is not function:
        raise SimulationError(
            f"{path} cannot be applied to models: it is not marked by fedsim's decorator 'pure'"
        )
    if not path.partition(":")[2].isidentifier():
        raise SimulationError(
            f"{path} cannot be applied to models: it must stand at the top of a module, to be "
            "found by name"
        )
    return path


def function_at(path: str) -> Function:
    """The marked function at a path.

    Nothing outside fedsim is imported: a strategy has imported its functions.
    """
    module = path.partition(":")[0]
    if path not in _KNOWN and module.startswith("fedsim.") and find_spec(module) is not None:
        import_module(module)
    if path not in _KNOWN:
        raise SimulationError(
            f"{path!r} is no function that is marked by fedsim's decorator 'pure' and has been "
            "imported"
        )
    return _KNOWN[path]


class FunctionCall(NamedTuple):
    """A function of models, float32 [d] each, read-only, and constants, that gives a model or
    ``size`` numbers.

    ``stream`` has the run's streams, and the name of the one that it draws from as ``rng``.
    """

    function: Function
    models: Sequence[NDArray[np.float32]]
    constants: Mapping[str, Any]
    stream: tuple[Any, ...] | None
    size: int | None


def carry_out_all(calls: Sequence[FunctionCall]) -> list[NDArray[np.float32]]:
    """The results of some calls, float32 [d] or [size]; one of another shape raises
    ``SimulationError``.
    """
    results = []
    for function, models, constants, stream, size in calls:
        drawing = {} if stream is None else {"rng": stream[0].generator(*stream[1:])}
        with np.errstate(all="ignore"):  # non-finite inputs are found in the result
            found = np.asarray(function(list(models), **constants, **drawing)).astype(
                np.float32, copy=False
            )
        wanted = models[0].shape if size is None else (size,)
        if found.shape != wanted:
            raise SimulationError(
                f"{_path(function)} made an array of shape {found.shape}; allowed is {wanted}"
            )
        results.append(found)
    return results


@pure
def taken(models: list[NDArray[np.float32]], places: Places) -> NDArray[np.floating]:
    """The numbers at some places of the first model that is finite there, else of the last;
    [numbers there].
    """
    found = [np.concatenate([model[begin:end] for begin, end in places]) for model in models]
    return next((numbers for numbers in found if np.isfinite(numbers).all()), found[-1])


@pure
def spliced(models: list[NDArray[np.float32]], places: Places) -> NDArray[np.floating]:
    """The first model with others at some places: those of the second, a whole model or the
    numbers there alone; [d].
    """
    result = models[0].copy()
    other = models[1]
    there = np.zeros(len(result), dtype=bool)
    for begin, end in places:
        there[begin:end] = True
    result[there] = other if len(other) < len(result) else other[there]
    return result


@pure
def weighted_sum(
    models: list[NDArray[np.float32]], coefficients: list[float]
) -> NDArray[np.floating]:
    """The sum of coefficient x model in the order given, in float64; block by block, so that the
    sums stay in the cache.
    """
    mixed = np.empty(len(models[0]), dtype=np.float32)
    with np.errstate(all="ignore"):  # a sum may leave the range of float32
        for at in range(0, len(mixed), _BLOCK):
            block = mixed[at : at + _BLOCK]
            total = np.zeros(len(block))
            product = np.empty(len(block))
            for model, coefficient in zip(models, coefficients, strict=True):
                total += np.multiply(
                    model[at : at + _BLOCK], coefficient, out=product, dtype=np.float64
                )
            block[:] = total
    return mixed


def mean_state(
    parts: Sequence[tuple[Mapping[str, NDArray[Any]] | None, float]],
) -> dict[str, NDArray[Any]]:
    """The mean of trainers' states, without those that are empty or not finite; unlike ones
    raise ``SimulationError``.
    """
    finite = [
        (state, weight)
        for state, weight in parts
        if state and all(np.isfinite(each).all() for each in state.values())
    ]
    total = math.fsum(weight for _, weight in finite)
    if total == 0.0:
        return {}
    first = finite[0][0]
    shapes = [{name: each.shape for name, each in state.items()} for state, _ in finite]
    if shapes.count(shapes[0]) < len(shapes):
        raise SimulationError(
            f"states of a trainer differ in names or shapes, and have no mean: {shapes[0]} and "
            "others"
        )
    weights = [weight / total for _, weight in finite]
    sums = {
        name: weighted_sum([state[name].ravel() for state, _ in finite], weights) for name in first
    }
    return {
        name: values.reshape(first[name].shape).astype(first[name].dtype)
        for name, values in sums.items()
    }
