"""Compilation of loops too short for an interpreter, and for which torch has no operation:
numba, without its traps.
"""

import hashlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching, config

from fedsim.common.files import read_bytes

F = TypeVar("F", bound=Callable[..., object])

_config: Any = config
# a file in the working directory could say where numba's caches are, and they are pickles
_config._config_fname = ""
_config.reload_config()
_config.DISABLE_JIT = 0  # NUMBA_DISABLE_JIT=1: functions for machine code do not run as Python

_caching: Any = caching  # has no stubs
_njit: Any = partial(
    numba.njit,
    nogil=True,  # other threads go on meanwhile
    error_model="numpy",  # a division by 0 is no exception
    # sums may be reordered, for vector registers; non-finite values stay so
    fastmath={"reassoc", "contract", "nsz"},
    no_cfunc_wrapper=True,  # only C would call it; each wrapper takes time to compile
)


class _CheckedFile(_caching.IndexDataCacheFile):  # type: ignore[misc]
    """Numba's cache of a function, with checksums: numba itself would run damaged code, or give
    up.
    """

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except Exception:  # reading a damaged one raises many kinds; it is made again
            return {}

    def _load_data(self, name: str) -> Any:
        content = read_bytes(Path(self._data_path(name)))
        code = content[hashlib.sha256().digest_size :]
        if not content.startswith(hashlib.sha256(code).digest()):
            raise OSError(f"{name} is damaged")  # to numba this says that there is none
        return pickle.loads(code)

    def _save_data(self, name: str, data: Any) -> None:
        code = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(code).digest() + code)


def compiled(function: F) -> F:
    """``function`` as machine code, for use in other compiled functions of the same folder."""
    made: F = _njit(no_cpython_wrapper=True)(function)
    return made


def compiled_entry(function: F) -> F:
    """The same for a function that Python calls: made at the first call, and kept beside the
    source for later processes.

    The stored code, with all functions that it calls, is rebuilt when a file of the function's
    folder changes, or if damaged.
    """
    made: Any = _njit()(function)
    with suppress(RuntimeError):  # there is no folder in which it could be kept
        cache = _caching.FunctionCache(function)
        beside = sorted(Path(function.__code__.co_filename).parent.glob("*.py"))
        stamps = [(path.name, path.stat().st_mtime, path.stat().st_size) for path in beside]
        cache._cache_file = _CheckedFile(cache._cache_path, cache._impl.filename_base, stamps)
        made._cache = cache
    kept: F = made
    return kept
