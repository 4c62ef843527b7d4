"""Snapshots of a torch module's hidden memory, which can be compared.

The flat model of a module has its parameters and buffers that are trained and sent. The hidden
memory is all else: attributes of each submodule, other tensors, and closures of hooks. It also
comprises all data that the code of the module's classes reaches: attributes of classes and
functions, and globals of the user's Python modules. Only users' code is followed, not torch's.
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
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.common.arrays import AnyArray

# Count of values above which a tensor is compared by its identity and version. Torch raises the
# version at each change in place.
_SMALL = 1 << 12
_END_ENTRIES = 50  # count of entries compared at each end of a long container, unless all are plain
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_MOST_PLAIN = 1 << 20  # greatest length of a container whose plain entries are all compared
_MOST_DEPTH = 8  # greatest depth of nested objects that is compared
# top-level Python modules whose code is not followed, in addition to Python's library
_LIBRARIES = ("torch", "numpy", "builtins", "fedsim", "typing", "collections", "functools", "abc")
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
_STRUCTURE = frozenset(vars(nn.Module()))  # attributes of every module, which are not compared
_HOOKS = sorted(name for name in _STRUCTURE if name.endswith("hooks"))
_NORMS = nn.modules.batchnorm._NormBase
_COUNT = "num_batches_tracked"

# comparable values of objects whose content is not read
_OF_MODEL = "of the model"
_NOT_COMPARED = "seen"  # value of an object that was converted before, or that is too deep
_REFERENCE = "reference"

Token = object
"""Comparable value for a piece of memory; two tokens are equal if the memory is equal."""


def read_memory(
    module: nn.Module, flat: Mapping[str, Tensor], *, by_value: bool = False
) -> dict[str, Token]:
    """Take a snapshot of a module's hidden memory: all that it remembers except its flat model.

    The flat model has the parameters and buffers that are trained and sent. The hidden memory
    consists of attributes, all other tensors, and globals that the module's code uses. Function
    ``differences`` compares two snapshots, to find out whether a training has changed the memory.

    Args:
        module: the module.
        flat: name -> tensor of the flat model, whose tensors are left out.
        by_value: whether large tensors are compared by their values; else by their version, torch's
            count of changes in place.

    Returns:
        Name of an attribute or global -> a value that is equal if the memory is equal.
    """
    skipped_ids = {id(tensor) for tensor in flat.values()}
    skipped_ids.update(id(part) for part in module.modules())
    tokens: dict[str, Token] = {}
    parts = {}
    for part_name, part in module.named_modules():
        # fedsim's modules change by design: the key of a keyed dropout is set in each step
        if not type(part).__module__.startswith("fedsim."):
            parts[part_name] = part
    for part_name, part in parts.items():
        reader = _Reader(skipped_ids, by_value)
        for key, value in _attributes(part):
            name = f"{part_name}.{key}" if part_name else key
            if name not in flat:
                tokens[name] = reader.token(value)
    # memory that the code of the modules' classes can reach: class attributes, globals and closures
    reader = _Reader(skipped_ids, by_value)
    for key, value in _SharedMemory(parts.values()).values.items():
        tokens[key] = reader.token(value)
    return tokens


def clear_caches(module: nn.Module) -> list[str]:
    """Empty the caches of ``functools.lru_cache`` that the code of a module uses.

    Returns:
        The names of the cached functions.
    """
    caches = _SharedMemory(module.modules()).caches
    for cache in caches.values():
        cache.cache_clear()
    return list(caches)


def counts_of_norms(module: nn.Module) -> list[str]:
    """Return the names of the buffers ``num_batches_tracked`` in norms of a user's own classes.

    These buffers count the batches that a norm has seen. Norms of torch's own classes are left out.
    """
    names = []
    for name, part in module.named_modules():
        is_counting = isinstance(part, _NORMS) and part.num_batches_tracked is not None
        if is_counting and _user_classes(type(part)):
            names.append(f"{name}.{_COUNT}" if name else _COUNT)
    return names


def differences(before: Mapping[str, Token], after: Mapping[str, Token]) -> list[str]:
    """Return the names of attributes and globals that differ between two snapshots of a module.

    Args:
        before: name -> comparable value, as ``read_memory`` returns it.
        after: a later snapshot.

    Returns:
        The names whose values differ, or that only one snapshot has.
    """
    names = [*before, *(name for name in after if name not in before)]
    missing = object()
    return [name for name in names if before.get(name, missing) != after.get(name, missing)]


def _attributes(part: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield name and value of each attribute, tensor and hook of a submodule.

    Left out are the attributes that every torch module has, and norms' counts of batches.
    """
    for key, value in vars(part).items():
        if key not in _STRUCTURE:
            yield key, value
    for key, value in (*part._parameters.items(), *part._buffers.items()):
        # ``probe`` refuses norms whose results depend on this count
        if not (key == _COUNT and isinstance(part, _NORMS)):
            yield key, value
    for key in _HOOKS:
        hooks = getattr(part, key, None)
        if hooks:
            yield key, hooks


class _SharedMemory:
    """Memory that several modules share: class attributes, and globals that their code uses.

    It is found by following the code: from the modules' classes to their functions, and from a
    function to the globals, functions and classes that it names.

    Args:
        parts: submodules, whose classes are followed.

    Attributes:
        values: name -> attribute of a class or function, or global that the code uses.
        caches: name -> function with a ``functools.lru_cache``.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        self.values: dict[str, object] = {}
        self.caches: dict[str, functools._lru_cache_wrapper[Any]] = {}
        self._visited: set[int] = set()  # hashes of visited values (``_visit``)
        self._functions: list[types.FunctionType] = []  # functions still to be followed
        classes = chain.from_iterable(_user_classes(type(part)) for part in parts)
        self._classes = list(dict.fromkeys(classes))  # classes still to be followed, each once
        while self._classes or self._functions:
            if self._classes:
                self._follow_class(self._classes.pop())
            else:
                self._follow_function(self._functions.pop())

    def _follow_class(self, cls: type) -> None:
        """Add the attributes of a class to ``values``, and note its functions to be followed."""
        if not self._visit(cls):
            return
        for key, value in list(vars(cls).items()):
            name = f"{cls.__name__}.{key}"
            functions = list(_functions_of(value))
            self._functions += functions
            if isinstance(value, functools._lru_cache_wrapper):
                self.caches[name] = value
            elif not functions and not key.startswith("__") and not hasattr(value, "__get__"):
                self.values[name] = value  # data: neither code nor a descriptor

    def _follow_function(self, function: types.FunctionType) -> None:
        """Add the globals and the closure that a function uses to ``values``."""
        is_first_visit = self._visit(function)
        if not is_first_visit or _is_of_library(function.__module__ or ""):
            return
        # attributes are among the names too: ``np`` and ``random`` of ``np.random``
        names = list(dict.fromkeys(_names_in(function.__code__)))
        for key in names:
            if key in function.__globals__:
                self._follow_value(f"{function.__module__}.{key}", function.__globals__[key], names)
            elif key in sys.modules:  # imported within the function
                self._follow_value(key, sys.modules[key], names)
        for cell in function.__closure__ or ():
            self._functions += _functions_of(_content(cell))
        # a function without any of these cannot keep a value from one call to the next
        if function.__closure__ or function.__defaults__ or vars(function):
            name = self._unused_name(f"{function.__module__}.{function.__qualname__}()")
            self.values[name] = function

    def _follow_value(self, name: str, value: object, names: list[str]) -> None:
        """Add a global that a function uses to ``values``, and note the code to be followed next.

        Args:
            name: name of the global, as a key of ``values``.
            value: its value; of a Python module only the attributes ``names`` are added.
            names: all names that the function uses.
        """
        if value is None or isinstance(value, types.BuiltinFunctionType):
            return
        functions = list(_functions_of(value))
        self._functions += functions
        if isinstance(value, functools._lru_cache_wrapper):
            self.caches[name] = value
        elif isinstance(value, types.ModuleType):
            self._follow_module(value, names)
        elif isinstance(value, type):
            self._classes += _followed_classes(value)
        elif not functions:
            self.values[name] = value
            self._classes += _followed_classes(type(value))

    def _follow_module(self, module: types.ModuleType, names: list[str]) -> None:
        """Add attributes of a Python module to ``values``.

        Of an installed module only numbers, texts and containers of these (os.environ) are added.

        Args:
            module: the Python module.
            names: names of the attributes, if it has them.
        """
        is_first_visit = self._visit(module, *names)  # the first with these names
        if not is_first_visit:
            return
        is_installed = _is_installed(module.__name__)
        for key in names:
            if key not in vars(module):
                continue
            name = f"{module.__name__}.{key}"
            value = vars(module)[key]
            if not is_installed:
                self._follow_value(name, value, names)
            elif _is_plain(value):
                self.values[name] = value

    def _unused_name(self, name: str) -> str:
        """Return ``name``, or ``name`` with a number if ``values`` has it as a key already.

        Two functions that the same lines define have equal names.
        """
        number = 2
        candidate = name
        while candidate in self.values:
            candidate = f"{name} {number}"
            number += 1
        return candidate

    def _visit(self, value: object, *names: str) -> bool:
        """Mark a value as visited, and return whether this is its first visit with these names.

        ``names`` are the attributes that are visited, if the value is a Python module.
        """
        visit = hash((id(value), *names))
        is_new = visit not in self._visited
        self._visited.add(visit)
        return is_new


def _functions_of(value: object) -> Iterator[types.FunctionType]:
    """Yield the Python functions that an attribute of a class consists of or wraps.

    A method, a property or a cached function wraps others.
    """
    if isinstance(value, types.FunctionType):
        yield value
    if not isinstance(value, _WRAPPERS):
        return
    for key in ("__func__", "__wrapped__", "fget", "fset", "fdel", "func"):
        inner = getattr(value, key, None)
        if isinstance(inner, types.FunctionType):
            yield inner


def _is_plain(value: object) -> bool:
    """Return whether a value is a number or text, or a container of numbers and texts."""
    if isinstance(value, Mapping):
        return _PLAIN.issuperset(map(type, value.values()))
    if isinstance(value, list | set):
        return _PLAIN.issuperset(map(type, value))
    return type(value) in _PLAIN


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that code and its inner functions use."""
    for name in code.co_names:
        yield from name.split(".")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _user_classes(cls: type) -> list[type]:
    """Return a class and its bases, without classes of Python's library, torch and fedsim."""
    return [base for base in cls.__mro__ if not _is_of_library(base.__module__)]


def _followed_classes(cls: type) -> list[type]:
    """Return a class and its bases, without classes of Python, fedsim and installed packages."""
    return [base for base in _user_classes(cls) if not _is_installed(base.__module__)]


def is_of_user(module: str) -> bool:
    """Return whether a Python module, given by name, is a user's own.

    Modules of Python, of fedsim and of installed packages are not.
    """
    return not _is_installed(module)


def _is_of_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names


@functools.cache
def _is_installed(module: str) -> bool:
    """Return whether a Python module belongs to Python, fedsim or an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return _is_of_library(module) or "site-packages" in file or "dist-packages" in file


class _Reader:
    """Converter of objects to comparable values, for a snapshot of a module's memory.

    If an object occurs a second time, its value is a constant text.

    Args:
        skipped_ids: ``id()`` of objects that are not read.
        by_value: whether large tensors are compared by their values; else by their version, torch's
            count of changes in place.
    """

    def __init__(self, skipped_ids: set[int], by_value: bool) -> None:
        self._skipped_ids = skipped_ids
        self._by_value = by_value
        self._visited: set[int] = set()

    def token(self, value: object, depth: int = 0) -> Token:
        """Convert an object, which lies within ``depth`` nested objects, to a comparable value.

        Numbers, texts, tensors and arrays are converted at each occurrence. All other objects are
        converted once, by ``_convert``, because they may contain each other.
        """
        if value is None or isinstance(value, bool | int | str | bytes | type | types.ModuleType):
            return type(value), value
        if isinstance(value, float | complex):
            return type(value), repr(value)  # as NaN differs from NaN
        if id(value) in self._skipped_ids:
            return _OF_MODEL
        if isinstance(value, Tensor):
            return _of_tensor(value, by_value=self._by_value)
        if isinstance(value, np.ndarray | np.generic):
            return self._of_array(np.asarray(value), depth)
        if id(value) in self._visited or depth > _MOST_DEPTH:
            return _NOT_COMPARED
        self._visited.add(id(value))
        return self._convert(value, depth + 1)

    def _convert(self, value: object, depth: int) -> Token:
        """Convert an object that contains others, by its type, to a comparable value.

        Args:
            value: the object, such as a container, a function or a random generator.
            depth: count of nested objects around the objects that ``value`` contains.
        """
        # containers: their entries, and the attributes that a subclass may have
        if isinstance(value, Mapping):
            return self._items(value, depth), self._of_object(value, depth)
        if isinstance(value, list | tuple | deque):
            return self._entries(list(value), depth), self._of_object(value, depth)
        if isinstance(value, set | frozenset):
            entries = sorted(str(self.token(entry, depth)) for entry in value)
            return len(value), entries, self._of_object(value, depth)
        # random generators: their states
        if isinstance(value, torch.Generator):
            return value.get_state().numpy().tobytes()
        if isinstance(value, np.random.Generator):
            return pickle.dumps(value.bit_generator.state)
        if isinstance(value, np.random.RandomState):
            return pickle.dumps(value.get_state())
        if isinstance(value, random.Random):
            return hash(value.getstate())
        # references and functions: the objects to which they refer, except by weak references
        if isinstance(value, types.CellType):
            return self.token(_content(value), depth)
        if isinstance(value, weakref.ReferenceType):
            return _REFERENCE
        if isinstance(value, functools.partial):
            return self._entries([value.func, value.args, value.keywords], depth)
        if isinstance(value, types.MethodType):
            return self._entries([value.__func__, value.__self__], depth)
        if isinstance(value, types.FunctionType):
            return self._of_function(value, depth)
        # iterators: their positions
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame  # None after the generator's end
            return None if frame is None else (frame.f_lasti, self._items(frame.f_locals, depth))
        if type(value).__module__ == "itertools":
            return repr(value)
        return self._of_object(value, depth)

    def _of_function(self, function: types.FunctionType, depth: int) -> Token:
        if _is_of_library(function.__module__ or ""):
            return function.__qualname__
        state = [function.__closure__, function.__defaults__, vars(function)]
        return function.__qualname__, self._entries(state, depth)

    def _of_object(self, value: object, depth: int) -> Token:
        """Convert the attributes of an object, in ``__slots__`` and ``__dict__``, with its class."""
        attributes = {}
        for cls in type(value).__mro__:
            for name in getattr(cls, "__slots__", ()):
                if isinstance(name, str) and name not in ("__dict__", "__weakref__"):
                    attributes[name] = getattr(value, name, None)
        attributes.update(getattr(value, "__dict__", {}))
        return type(value), self._items(attributes, depth)

    def _of_array(self, array: AnyArray, depth: int) -> Token:
        if array.dtype.hasobject:
            return array.shape, self._entries(array.ravel().tolist(), depth + 1)
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()
        return array.shape, array.dtype.str, digest

    def _items(self, values: Mapping[Any, object], depth: int) -> Token:
        """Convert the keys and values of a mapping, in order."""
        entries: list[object] = []
        for item in list(values.items()):
            entries += item
        return self._entries(entries, depth)

    def _entries(self, values: list[Any], depth: int) -> Token:
        """Convert the entries of a list to a comparable value.

        If all entries are numbers or texts, one hash compares them, for up to 2^20 entries. Of any
        other list that has more than 100 entries, only the first and the last 50 are compared.
        """
        if len(values) <= _MOST_PLAIN and _PLAIN.issuperset(map(type, values)):
            text = repr(values).encode(errors="surrogatepass")
            return len(values), hashlib.blake2b(text).digest()
        compared = values
        if len(values) > 2 * _END_ENTRIES:
            compared = values[:_END_ENTRIES] + values[-_END_ENTRIES:]
        return len(values), tuple(self.token(value, depth) for value in compared)


def _of_tensor(tensor: Tensor, *, by_value: bool) -> Token:
    """Convert a tensor to its bytes; a large tensor to its identity and version.

    Args:
        tensor: the tensor.
        by_value: whether large tensors are converted to their bytes, too.
    """
    shape = tuple(tensor.shape)
    is_large = tensor.numel() > _SMALL and not by_value
    if is_large or tensor.is_meta or tensor.layout != torch.strided:
        version = 0 if tensor.is_inference() else tensor._version
        return shape, tensor.dtype, id(tensor), version
    # A tensor that is lazily conjugated or negated is resolved, because its memory still has the
    # bytes of the original values.
    resolved = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return shape, tensor.dtype, resolved.reshape(-1).view(torch.uint8).numpy().tobytes()


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None
