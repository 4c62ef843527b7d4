"""The memory of a module besides its flat model, by name, so that two moments can be compared.

It covers attributes of every part, tensors outside the flat model, closures of hooks, and what the code of the module's classes
reaches: attributes of classes and globals of their modules. Only code of users is followed, not that of torch.
"""

import functools
import hashlib
import pickle
import random
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_SMALL = 1 << 12  # numbers of a tensor that are compared; of a larger one its version, which torch raises at each change
_ENDS = 50  # entries at each end of a long container that are compared
_DEEPEST = 8
_OUTSIDE = ("torch", "numpy", "builtins", "fedsim", "typing", "collections", "functools", "abc")
_STRUCTURE = frozenset(vars(nn.Module()))  # "training" is set before each use
_HOOKS = sorted(name for name in _STRUCTURE if name.endswith("hooks"))
_NORMS = nn.modules.batchnorm._NormBase

Token = Any
"""A value that is equal where the memory is."""


def remains(module: nn.Module, flat: Mapping[str, Tensor], *, whole: bool = False) -> dict[str, Token]:
    """Memory of a module by name, without the tensors by name that the flat model has.

    ``whole``: large tensors by their numbers, too.
    """
    skipped = {id(tensor) for tensor in flat.values()} | {id(part) for part in module.modules()}
    tokens: dict[str, Token] = {}
    classes: dict[type, None] = {}
    for name, part in module.named_modules():
        if type(part).__module__.startswith("fedsim."):  # the key of a keyed dropout is set in each step
            continue
        reader = _Reader(skipped, whole)
        prefix = f"{name}." if name else ""
        for key, value in _held(part):
            if f"{prefix}{key}" not in flat:
                tokens[f"{prefix}{key}"] = reader.token(value)
        classes |= dict.fromkeys(each for each in type(part).__mro__ if not _is_outside(each.__module__))
    reader = _Reader(skipped, whole)
    for cls in classes:
        for key, value in _shared(cls):
            tokens[key] = reader.token(value)
    return tokens


def differences(before: Mapping[str, Token], after: Mapping[str, Token]) -> list[str]:
    """Names under which two memories differ."""
    return [name for name in {**before, **after} if before.get(name, _Reader) != after.get(name, _Reader)]


def _held(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attributes of a part, its tensors and its hooks."""
    for key, value in vars(part).items():
        if key not in _STRUCTURE:
            yield key, value
    for key, value in (*part._parameters.items(), *part._buffers.items()):
        if not (key == "num_batches_tracked" and isinstance(part, _NORMS)):  # counts for no result, with a momentum
            yield key, value
    for key in _HOOKS:
        if hooks := getattr(part, key, None):
            yield key, hooks


def _shared(cls: type) -> Iterator[tuple[str, Any]]:
    """Data that all objects of a class share: its attributes, and globals that its functions name."""
    functions = []
    for key, value in vars(cls).items():
        code = getattr(value, "__func__", value)
        if isinstance(code, types.FunctionType):
            functions.append(code)
        elif not key.startswith("__") and not hasattr(value, "__get__"):
            yield f"{cls.__name__}.{key}", value
    seen: set[int] = set()
    while functions:
        function = functions.pop()
        if id(function) in seen or _is_outside(function.__module__ or ""):
            continue
        seen.add(id(function))
        for key in function.__code__.co_names:
            value = function.__globals__.get(key, None)
            if isinstance(value, types.FunctionType):
                functions.append(value)
            elif not isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | None):
                yield f"{function.__module__}.{key}", value
        functions += [each for each in map(_content, function.__closure__ or ()) if isinstance(each, types.FunctionType)]
        if function.__closure__ or function.__defaults__:
            yield f"{cls.__name__}.{function.__name__}()", (function.__closure__, function.__defaults__)


def _is_outside(module: str) -> bool:
    return module.partition(".")[0] in _OUTSIDE


class _Reader:
    """Turns objects into tokens; an object that occurs again, and those that are ``skipped``, are not followed."""

    def __init__(self, skipped: set[int], whole: bool) -> None:
        self._skipped, self._whole = skipped, whole
        self._seen: set[int] = set()

    def token(self, value: Any, depth: int = 0) -> Token:
        if value is None or isinstance(value, bool | int | str | bytes | type | types.ModuleType):
            return type(value), value
        if isinstance(value, float | complex):
            return type(value), repr(value)
        if id(value) in self._skipped:
            return "of the model"
        if isinstance(value, Tensor):
            return _of_tensor(value, whole=self._whole)
        if isinstance(value, np.ndarray | np.generic):
            return self._of_array(np.asarray(value), depth)
        if id(value) in self._seen or depth > _DEEPEST:
            return "seen"
        self._seen.add(id(value))
        return self._followed(value, depth + 1)

    def _followed(self, value: Any, depth: int) -> Token:
        if isinstance(value, Mapping):
            return type(value), self._items(value, depth)
        if isinstance(value, list | tuple | deque):
            return type(value), self._entries(list(value), depth)
        if isinstance(value, set | frozenset):
            return type(value), len(value), sorted(map(str, (self.token(each, depth) for each in value)))
        if isinstance(value, torch.Generator):
            return value.get_state().numpy().tobytes()
        if isinstance(value, np.random.Generator):
            return pickle.dumps(value.bit_generator.state)
        if isinstance(value, np.random.RandomState):
            return pickle.dumps(value.get_state())
        if isinstance(value, random.Random):
            return hash(value.getstate())
        if isinstance(value, types.CellType):
            return self.token(_content(value), depth)
        if isinstance(value, weakref.ReferenceType):
            return "reference"
        if isinstance(value, functools.partial):
            return self._entries([value.func, value.args, value.keywords], depth)
        if isinstance(value, types.MethodType):
            return self._entries([value.__func__, value.__self__], depth)
        if isinstance(value, types.FunctionType):
            if _is_outside(value.__module__ or ""):
                return value.__qualname__
            return value.__qualname__, self._entries([value.__closure__, value.__defaults__, vars(value)], depth)
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            return None if frame is None else (frame.f_lasti, self._items(frame.f_locals, depth))
        if type(value).__module__ == "itertools":
            return repr(value)
        return self._of_object(value, depth)

    def _of_object(self, value: Any, depth: int) -> Token:
        names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if isinstance(name, str)]
        slots = {name: getattr(value, name, None) for name in names if name not in ("__dict__", "__weakref__")}
        return type(value), self._items(slots | getattr(value, "__dict__", {}), depth)

    def _of_array(self, array: np.ndarray[Any, Any], depth: int) -> Token:
        if array.dtype.hasobject:
            return array.shape, self._entries(array.ravel().tolist(), depth + 1)
        return array.shape, array.dtype.str, hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()

    def _items(self, values: Mapping[Any, Any], depth: int) -> Token:
        return self._entries([part for item in list(values.items()) for part in item], depth)

    def _entries(self, values: list[Any], depth: int) -> Token:
        shown = values if len(values) <= 2 * _ENDS else values[:_ENDS] + values[-_ENDS:]
        return len(values), tuple(self.token(each, depth) for each in shown)


def _of_tensor(tensor: Tensor, *, whole: bool) -> Token:
    shape = tuple(tensor.shape)
    if (tensor.numel() > _SMALL and not whole) or tensor.is_meta or tensor.layout != torch.strided:
        version = 0 if tensor.is_inference() else tensor._version
        return shape, tensor.dtype, id(tensor), version
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return shape, tensor.dtype, plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None
