"""Pure functions of models, from which server optimisers, robust means, codecs and noise are built.

The description of a model's computation stores the import path of the function, so that the
function can be called later, in another process, and after a run is resumed. A checkpoint could
name any function. Therefore only functions that ``pure`` marks are called, and no module of a user
is imported for them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import (
    FedsimError,
    SimulationError,
    place_of,
    show_error,
    show_value,
)
from fedsim.common.streams import Streams
from fedsim.common.training import Places

Function = Callable[..., NDArray[np.floating]]
DataFunction = Function
"""Function of a device's training samples [n, ...], their labels [n], and constants."""
F = TypeVar("F", bound=Function)

_BLOCK = 1 << 15  # count of values in one block of a sum, which fits into a core's own cache

# import path -> function that ``pure`` has marked
_PURE_FUNCTIONS: dict[str, Function] = {}


def pure(function: F) -> F:
    """Mark a function of models as pure, so that ``ServerModels.apply`` can call it on a worker.

    Args:
        function: a function at the top of a module, without side effects. Its first argument is a
            list of models, float32 [d] each; constants follow by name.

    Returns:
        The function itself.

    Example:
        >>> import numpy as np
        >>> from fedsim.plugin import pure
        >>> @pure
        ... def clipped(models, most):
        ...     return np.clip(models[0], -most, most)
        >>> clipped([np.array([-2.0, 0.5, 3.0])], most=1.0).tolist()
        [-1.0, 0.5, 1.0]
    """
    _PURE_FUNCTIONS[_path(function)] = function
    return function


def _path(function: Function) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', '')}"


def path_of(function: Function) -> str:
    """Return the import path ``package.module:function`` of a function that ``pure`` has marked.

    Raises:
        SimulationError: the function is not marked, or is not at the top of its module.
    """
    path = _path(function)
    if _PURE_FUNCTIONS.get(path) is not function:
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
    """Return the function of models at an import path, which must be marked with ``pure``.

    A module of fedsim is imported if needed. A function of a user's strategy is marked already, as
    the strategy's module has been imported.

    Args:
        path: ``package.module:name``.

    Raises:
        SimulationError: no imported function at this path is marked.
    """
    module = path.partition(":")[0]
    if (
        path not in _PURE_FUNCTIONS
        and module.startswith("fedsim.")
        and find_spec(module) is not None
    ):
        import_module(module)
    if path not in _PURE_FUNCTIONS:
        raise SimulationError(
            f"{path!r} is no function that is marked by fedsim's decorator 'pure' and has been "
            "imported"
        )
    return _PURE_FUNCTIONS[path]


class NamedStream(NamedTuple):
    """Random stream from which a function of models draws.

    Attributes:
        streams: the random streams of the run.
        name: name of the stream: its purpose, such as ``strategy/local-noise``, and integers.
    """

    streams: Streams
    name: tuple[Any, ...]


class FunctionCall(NamedTuple):
    """Call of a pure function of models, with its arguments, which a worker carries out.

    Attributes:
        function: the function.
        models: the models, float32 [d] each, read-only; at least one.
        constants: name -> constant argument of the function.
        stream: the random stream whose generator the function receives as ``rng``; None if it draws
            no random numbers.
        size: count of values in the result; None for a model.
    """

    function: Function
    models: Sequence[NDArray[np.float32]]
    constants: Mapping[str, Any]
    stream: NamedStream | None
    size: int | None


def carry_out_all(calls: Sequence[FunctionCall]) -> list[NDArray[np.float32]]:
    """Call functions of models one by one, on a worker.

    Args:
        calls: each function with its arguments.

    Returns:
        The result of each call, float32 [d] or [size].

    Raises:
        SimulationError: a function raises an error, or a result is not of shape [d] or [size].
    """
    results = []
    for function, models, constants, stream, size in calls:
        arguments = dict(constants)
        if stream is not None:
            arguments["rng"] = stream.streams.generator(*stream.name)
        with np.errstate(all="ignore"):  # no warnings: non-finite inputs show in the result
            result = _call(function, list(models), arguments)
        shape = models[0].shape if size is None else (size,)
        if result.shape != shape:
            raise SimulationError(
                f"{_path(function)} made an array of shape {result.shape}; allowed is {shape}"
            )
        results.append(result)
    return results


def _call(
    function: Function, arrays: Sequence[AnyArray], arguments: Mapping[str, object]
) -> NDArray[np.float32]:
    """Call a function of arrays, and return its result as float32.

    Args:
        function: the function.
        arrays: its first argument.
        arguments: its keyword arguments.

    Raises:
        SimulationError: the function raises an error, or returns no numbers.
    """
    try:
        return np.asarray(function(arrays, **arguments)).astype(np.float32, copy=False)
    except (FedsimError, MemoryError):
        raise
    except Exception as error:
        raise call_error(function, arguments, error) from error


def call_error(
    function: Function, arguments: Mapping[str, object], error: Exception
) -> SimulationError:
    """Return the error that reports a failed call of a function that computes from models or data.

    Args:
        function: the function that was called.
        arguments: its keyword arguments.
        error: the error that the function raised, or that the conversion of its result raised.
    """
    constants = "".join(f", {name}={show_value(value)}" for name, value in arguments.items())
    return SimulationError(
        f"{_path(function)}(...{constants}) failed{place_of(error)}: {show_error(error)}"
    )


@pure
def taken(models: list[NDArray[np.float32]], places: Places) -> NDArray[np.floating]:
    """Extract some slices of a model, or of a substitute if the model's slices are not finite.

    Args:
        models: the model, and models to use instead, in order of preference; float32 [d] each.
        places: (begin, end) of each slice.

    Returns:
        The concatenated values of the first model whose values in all slices are finite, or of the
        last model if no model has such values; float32.
    """
    for model in models:
        values = np.concatenate([model[begin:end] for begin, end in places])
        if np.isfinite(values).all():
            break
    return values


@pure
def spliced(models: list[NDArray[np.float32]], places: Places) -> NDArray[np.floating]:
    """Replace some slices of a model, one array of weights, by values of another array.

    Args:
        models: two arrays: the model, float32 [d], and the source of the new values, which is a
            whole model, [d], or the concatenated values of the slices.
        places: (begin, end) of each slice.

    Returns:
        The changed model, float32 [d].
    """
    model, source = models
    result = model.copy()
    mask = np.zeros(len(result), dtype=bool)
    for begin, end in places:
        mask[begin:end] = True
    is_whole_model = len(source) == len(result)
    result[mask] = source[mask] if is_whole_model else source
    return result


@pure
def weighted_sum(
    models: list[NDArray[np.float32]], coefficients: list[float]
) -> NDArray[np.floating]:
    """Compute the sum of coefficient x model, in float64 and in the order of the models.

    The sum is computed block by block, so that each block stays in the cache.

    Args:
        models: the models, float32 [d] each, at least one.
        coefficients: the coefficient of each model.

    Returns:
        The sum, float32 [d].
    """
    mixed = np.empty(len(models[0]), dtype=np.float32)
    with np.errstate(all="ignore"):  # a sum may leave the range of float32
        for start in range(0, len(mixed), _BLOCK):
            block = slice(start, start + _BLOCK)
            total = np.zeros(len(mixed[block]))
            product = np.empty(len(total))
            for model, coefficient in zip(models, coefficients, strict=True):
                total += np.multiply(model[block], coefficient, out=product, dtype=np.float64)
            mixed[block] = total
    return mixed


class RunningSum:
    """Accumulator of a weighted sum of models, which are added one by one.

    The result is bitwise equal to ``weighted_sum`` of the same models in the same order.

    Args:
        length: count of weights of a model, d.

    Attributes:
        total: the sum so far, float64 [d].
    """

    def __init__(self, length: int) -> None:
        self.total = np.zeros(length)
        self._product = np.empty(min(_BLOCK, length))

    def add(self, model: NDArray[np.float32], coefficient: float) -> None:
        """Add a model times its coefficient to the sum.

        Args:
            model: the model, float32 [d].
            coefficient: the coefficient.
        """
        with np.errstate(all="ignore"):  # a sum may leave the range of float32
            for start in range(0, len(model), _BLOCK):
                block = slice(start, start + _BLOCK)
                numbers = model[block]
                product = self._product[: len(numbers)]
                np.multiply(numbers, coefficient, out=product, dtype=np.float64)
                self.total[block] += product

    def result(self) -> NDArray[np.float32]:
        """Return the sum so far, float32 [d]."""
        with np.errstate(all="ignore"):
            return self.total.astype(np.float32)


def mean_state(
    parts: Sequence[tuple[Mapping[str, AnyArray] | None, float]],
) -> dict[str, AnyArray]:
    """Compute the weighted mean of the states (such as momentum) of several devices' trainers.

    Empty states, and states that are not finite, are left out.

    Args:
        parts: each state (name -> array) and its weight.

    Returns:
        Name -> mean array, with the first state's shape and dtype; empty if no state remains, or
        if the weights sum to 0.

    Raises:
        SimulationError: states differ in names or shapes.
    """
    states = []
    weights = []
    for state, weight in parts:
        if state and _is_finite(state):
            states.append(state)
            weights.append(weight)
    total_weight = math.fsum(weights)
    if total_weight == 0.0:
        return {}
    first = states[0]
    shapes = [_shapes(state) for state in states]
    if any(state_shapes != shapes[0] for state_shapes in shapes):
        raise SimulationError(
            f"states of a trainer differ in names or shapes, and have no mean: {shapes[0]} and "
            "others"
        )
    shares = [weight / total_weight for weight in weights]
    mean = {}
    for name, array in first.items():
        values = weighted_sum([state[name].ravel() for state in states], shares)
        mean[name] = values.reshape(array.shape).astype(array.dtype)
    return mean


def _is_finite(state: Mapping[str, AnyArray]) -> bool:
    return all(np.isfinite(array).all() for array in state.values())


def _shapes(state: Mapping[str, AnyArray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in state.items()}
