"""The memory of a module besides its flat model, by name, so that two moments can be compared.

It covers attributes of every part, tensors outside the flat model, closures of hooks, and what the
code of the module's classes reaches: attributes of classes and functions, and globals of their
modules and of other modules of the user. Only code of users is followed, not that of torch.
"""

import functools
import hashlib
import pickle
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# numbers of a tensor that are compared; of a larger one its version, which torch raises at each
# change
_SMALL = 1 << 12
_ENDS = 50  # entries at each end of a long container that are compared, unless all are plain
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_MOST_PLAIN = 1 << 20  # plain entries of a container that are compared
_DEEPEST = 8
_OUTSIDE = ("torch", "numpy", "builtins", "fedsim", "typing", "collections", "functools", "abc")
_WRAPPERS = (
    types.FunctionType,
    types.MethodType,
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
    functools.partialmethod,
    functools._lru_cache_wrapper,
)
_STRUCTURE = frozenset(vars(nn.Module()))  # "training" is set before each use
_HOOKS = sorted(name for name in _STRUCTURE if name.endswith("hooks"))
_NORMS = nn.modules.batchnorm._NormBase

Token = Any
"""A value that is equal where the memory is."""


def remains(
    module: nn.Module, flat: Mapping[str, Tensor], *, whole: bool = False
) -> dict[str, Token]:
    """Memory of a module by name, without the tensors by name that the flat model has.

    ``whole``: large tensors by their numbers, too.
    """
    skipped = {id(tensor) for tensor in flat.values()} | {id(part) for part in module.modules()}
    tokens: dict[str, Token] = {}
    classes: dict[type, None] = {}
    for name, part in module.named_modules():
        # the key of a keyed dropout is set in each step
        if type(part).__module__.startswith("fedsim."):
            continue
        reader = _Reader(skipped, whole)
        prefix = f"{name}." if name else ""
        for key, value in _held(part):
            if f"{prefix}{key}" not in flat:
                tokens[f"{prefix}{key}"] = reader.token(value)
        classes |= dict.fromkeys(_own_classes(type(part)))
    reader = _Reader(skipped, whole)
    for key, value in _Shared(classes).values.items():
        tokens[key] = reader.token(value)
    return tokens


def clear_caches(module: nn.Module) -> list[str]:
    """Empty the caches of ``functools.lru_cache`` that code of the module reaches; their names."""
    classes = dict.fromkeys(cls for part in module.modules() for cls in _own_classes(type(part)))
    caches = _Shared(classes).caches
    for cache in caches.values():
        cache.cache_clear()
    return list(caches)


def differences(before: Mapping[str, Token], after: Mapping[str, Token]) -> list[str]:
    """Names under which two memories differ."""
    return [
        name
        for name in {**before, **after}
        if before.get(name, _Reader) != after.get(name, _Reader)
    ]


def _held(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attributes of a part, its tensors and its hooks."""
    for key, value in vars(part).items():
        if key not in _STRUCTURE:
            yield key, value
    for key, value in (*part._parameters.items(), *part._buffers.items()):
        # counts for no result, with a momentum
        if not (key == "num_batches_tracked" and isinstance(part, _NORMS)):
            yield key, value
    for key in _HOOKS:
        if hooks := getattr(part, key, None):
            yield key, hooks


class _Shared:
    """State that all objects of some classes share.

    Attributes:
        values: data by name: attributes of classes and functions, and globals that their code
            names.
        caches: functions with a cache, by name.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self.values: dict[str, Any] = {}
        self.caches: dict[str, Any] = {}
        self._seen: set[int] = set()
        self._functions: list[types.FunctionType] = []
        self._classes = list(classes)
        while self._classes or self._functions:
            if self._classes:
                self._follow_class(self._classes.pop())
            else:
                self._follow_function(self._functions.pop())

    def _follow_class(self, cls: type) -> None:
        if self._is_known(cls):
            return
        for key, value in list(vars(cls).items()):
            name = f"{cls.__name__}.{key}"
            functions = list(_functions_of(value))
            self._functions += functions
            if isinstance(value, functools._lru_cache_wrapper):
                self.caches[name] = value
            elif not functions and not key.startswith("__") and not hasattr(value, "__get__"):
                self.values[name] = value

    def _follow_function(self, function: types.FunctionType) -> None:
        if self._is_known(function) or _is_outside(function.__module__ or ""):
            return
        names = list(dict.fromkeys(_names(function.__code__)))
        for key in names:
            if key in function.__globals__:
                self._follow_value(f"{function.__module__}.{key}", function.__globals__[key], names)
            elif key in sys.modules:  # it is imported within the function
                self._follow_value(key, sys.modules[key], names)
        for value in map(_content, function.__closure__ or ()):
            self._functions += _functions_of(value)
        if function.__closure__ or function.__defaults__ or vars(function):
            self.values[self._free(f"{function.__module__}.{function.__qualname__}()")] = function

    def _follow_value(self, name: str, value: Any, names: list[str]) -> None:
        """Go on with a global; of a module with those of its attributes that the code names."""
        if value is None or isinstance(value, types.BuiltinFunctionType):
            return
        functions = list(_functions_of(value))
        self._functions += functions
        if isinstance(value, functools._lru_cache_wrapper):
            self.caches[name] = value
        elif isinstance(value, types.ModuleType):
            if not _is_installed(value.__name__) and not self._is_known(value, *names):
                for key in names:
                    if key in vars(value):
                        self._follow_value(f"{value.__name__}.{key}", vars(value)[key], names)
        elif isinstance(value, type):
            self._classes += _followed_classes(value)
        elif not functions:
            self.values[name] = value
            self._classes += _followed_classes(type(value))

    def _free(self, name: str) -> str:
        """The name, with a number if it is taken: several functions may have been made by the
        same lines.
        """
        number = 2
        free = name
        while free in self.values:
            free = f"{name} {number}"
            number += 1
        return free

    def _is_known(self, value: Any, *names: str) -> bool:
        key = hash((id(value), *names))
        is_known = key in self._seen
        self._seen.add(key)
        return is_known


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Functions of Python that an attribute is, or is made of: a method, a property, a function
    with a cache.
    """
    if isinstance(value, types.FunctionType):
        yield value
    for key in ("__func__", "__wrapped__", "fget", "fset", "fdel", "func"):
        if isinstance(value, _WRAPPERS) and isinstance(
            inner := getattr(value, key, None), types.FunctionType
        ):
            yield inner


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that a code uses, with those of functions within it."""
    for name in code.co_names:
        yield from name.split(".") if "." in name else (name,)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _own_classes(cls: type) -> list[type]:
    """A class and its bases, as far as they are a user's."""
    return [each for each in cls.__mro__ if not _is_outside(each.__module__)]


def _followed_classes(cls: type) -> list[type]:
    """The same for a class that is no part of the module: those of installed packages are not
    followed.
    """
    return [each for each in _own_classes(cls) if not _is_installed(each.__module__)]


def _is_outside(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _OUTSIDE or top in sys.stdlib_module_names


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether a module is of Python, or of a package that a user has installed."""
    place = getattr(sys.modules.get(module), "__file__", None) or ""
    return _is_outside(module) or "site-packages" in place or "dist-packages" in place


class _Reader:
    """Turns objects into tokens; an object that occurs again, and those that are ``skipped``,
    are not followed.
    """

    def __init__(self, skipped: set[int], whole: bool) -> None:
        self._skipped = skipped
        self._whole = whole
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
            return self._items(value, depth), self._of_object(value, depth)
        if isinstance(value, list | tuple | deque):
            return self._entries(list(value), depth), self._of_object(value, depth)
        if isinstance(value, set | frozenset):
            entries = sorted(map(str, (self.token(each, depth) for each in value)))
            return len(value), entries, self._of_object(value, depth)
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
            return value.__qualname__, self._entries(
                [value.__closure__, value.__defaults__, vars(value)], depth
            )
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            return None if frame is None else (frame.f_lasti, self._items(frame.f_locals, depth))
        if type(value).__module__ == "itertools":
            return repr(value)
        return self._of_object(value, depth)

    def _of_object(self, value: Any, depth: int) -> Token:
        names = [
            name
            for cls in type(value).__mro__
            for name in getattr(cls, "__slots__", ())
            if isinstance(name, str)
        ]
        slots = {
            name: getattr(value, name, None)
            for name in names
            if name not in ("__dict__", "__weakref__")
        }
        return type(value), self._items(slots | getattr(value, "__dict__", {}), depth)

    def _of_array(self, array: np.ndarray[Any, Any], depth: int) -> Token:
        if array.dtype.hasobject:
            return array.shape, self._entries(array.ravel().tolist(), depth + 1)
        return (
            array.shape,
            array.dtype.str,
            hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest(),
        )

    def _items(self, values: Mapping[Any, Any], depth: int) -> Token:
        return self._entries([part for item in list(values.items()) for part in item], depth)

    def _entries(self, values: list[Any], depth: int) -> Token:
        if len(values) <= _MOST_PLAIN and _PLAIN.issuperset(map(type, values)):
            return len(values), hashlib.blake2b(
                repr(values).encode(errors="surrogatepass")
            ).digest()
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
