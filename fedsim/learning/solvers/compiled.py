"""Compilation of loops too short for an interpreter, and for which torch has no operation: numba, without its traps."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])

_njit: Any = numba.njit  # its stubs lack some of its options

_OPTIONS: dict[str, Any] = {
    "nogil": True,  # other threads go on meanwhile
    "error_model": "numpy",  # a division by 0 is no exception
    "fastmath": {"reassoc", "contract", "nsz"},  # sums may be reordered, for vector registers; what is not finite stays so
    "no_cfunc_wrapper": True,  # only C would call it; each wrapper takes time to compile
}


def compiled(function: F) -> F:
    """``function`` as machine code of this processor, for use in other such functions of the same file."""
    made: F = _njit(no_cpython_wrapper=True, **_OPTIONS)(function)
    return made


def compiled_entry(function: F) -> F:
    """The same for a function that Python calls: made at the first call, and kept beside the source for later processes.

    What is kept is made anew when the function's own file changes. It includes all that the function calls, which therefore
    belongs in the same file.
    """
    try:
        made: F = _njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # there is no folder in which it could be kept
        made = _njit(**_OPTIONS)(function)
    return made
