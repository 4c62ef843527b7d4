"""Compilation by numba of short loops for which torch has no operation."""

import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numba
from filelock import FileLock
from numba.core import caching, config

from fedsim.common.files import read_bytes

F = TypeVar("F", bound=Callable[..., object])

_LONGEST_WAIT_S = 300.0  # real time after which a process compiles although another may do so

_config: Any = config
# Numba's config file is ignored. A file in the working directory could set the folder of numba's
# caches, which are pickles and can run any code.
_config._config_fname = ""
_config.reload_config()
# NUMBA_DISABLE_JIT=1 is ignored, as functions that are written for numba do not run as plain Python
_config.DISABLE_JIT = 0

_caching: Any = caching  # Any, as the module has no stubs
_njit: Any = partial(
    numba.njit,
    nogil=True,  # other Python threads run at the same time
    error_model="numpy",  # a division by 0 raises no exception
    # sums may be reordered, for vector registers; NaN and infinities are still handled
    fastmath={"reassoc", "contract", "nsz"},
    no_cfunc_wrapper=True,  # omits a wrapper for C, which takes time to compile
)


class _CheckedFile(_caching.IndexDataCacheFile):  # type: ignore[misc]
    """Numba's cache file of a compiled function, which is not used if its checksum is wrong.

    Numba itself would run damaged code.
    """

    def _load_index(self) -> dict[object, str]:
        try:
            return dict(super()._load_index())
        except Exception:  # a damaged index raises many kinds of errors; numba makes a new one
            return {}

    def _load_data(self, name: str) -> object:
        content = read_bytes(Path(self._data_path(name)))
        code = content[hashlib.sha256().digest_size :]
        if not content.startswith(hashlib.sha256(code).digest()):
            raise OSError(f"{name} is damaged")  # numba then compiles the function
        return pickle.loads(code)

    def _save_data(self, name: str, data: object) -> None:
        code = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(code).digest() + code)


def compiled(function: F) -> F:
    """Decorator that compiles a function by numba, for calls from compiled functions only.

    The function's machine code becomes part of each caller's code (``forceinline``). The bits of
    results are then equal in all processes. Without ``forceinline``, the process that compiles the
    caller would run a separately optimised version of the function. Processes that load the
    caller's stored code would run the version in that code, and could round differently.
    """
    dispatcher: F = _njit(no_cpython_wrapper=True, forceinline=True)(function)
    return dispatcher


def compiled_entry(function: F) -> F:
    """Decorator that compiles a function which Python calls, and caches its machine code on disk.

    The function is compiled at its first call. Later processes load the stored code, which includes
    all functions that the function calls. The code is compiled again if a file of the function's
    folder changes, or if the code is damaged.
    """
    dispatcher: Any = _njit()(function)
    with suppress(RuntimeError):  # raised if no folder is writable; the code is then not stored
        cache = _caching.FunctionCache(function)
        stamps = []  # file versions, by which numba decides whether stored code is up to date
        for path in sorted(Path(function.__code__.co_filename).parent.glob("*.py")):
            status = path.stat()
            stamps.append((path.name, status.st_mtime, status.st_size))
        cache._cache_file = _CheckedFile(cache._cache_path, cache._impl.filename_base, stamps)
        dispatcher._cache = cache
    compiled_function: F = dispatcher
    return compiled_function


@contextmanager
def compiling(function: Callable[..., object]) -> Iterator[None]:
    """Context manager for the first call of a function, in which no other process compiles it.

    Processes that start together, such as the workers of a study, would otherwise all compile the
    function, which takes each of them ten seconds or more. A process that has waited here loads the
    code that another process has stored. No process waits if code cannot be stored or locked.

    Args:
        function: a function with the decorator ``compiled_entry``.
    """
    cache = vars(function).get("_cache")
    folder = getattr(cache, "_cache_path", None)  # None if no folder is writable
    with ExitStack() as stack:
        if folder is not None:
            # a Timeout is an OSError; NotImplementedError: the file system has no locks
            with suppress(OSError, NotImplementedError):
                Path(folder).mkdir(parents=True, exist_ok=True)
                lock = FileLock(Path(folder, f"{function.__name__}.lock"))
                stack.enter_context(lock.acquire(timeout=_LONGEST_WAIT_S))
        yield
