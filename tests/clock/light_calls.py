"""Functions for worker processes, in a module that is loaded quickly."""

import os
from pathlib import Path

from fedsim.common.arrays import AnyArray


def seen_gpu(folder: Path, name: str, count: int) -> tuple[int, str | None]:
    """The process and its GPU, once ``count`` calls have begun: none waits for another to end."""
    (folder / name).touch()
    while len(list(folder.iterdir())) < count:
        pass
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


def crash() -> None:
    """End the process by a signal, as a library does that writes beyond its memory."""
    os.abort()


def exit_at_once() -> None:
    os._exit(3)


def sum_and_flag(values: AnyArray, *_: object) -> tuple[float, bool]:
    """The sum of an array, and whether it is writable."""
    return float(values.sum()), bool(values.flags.writeable)


class Closed:
    """An object that another process cannot make."""

    def __reduce__(self) -> tuple[object, ...]:
        return refuse, ()


def refuse() -> None:
    raise ValueError("not here")


class Heavy:
    """An object that counts how often it is pickled, with another one in it."""

    pickled = 0

    def __init__(self, inner: "Heavy | None" = None) -> None:
        self.inner = inner

    def __reduce__(self) -> tuple[object, ...]:
        Heavy.pickled += 1
        return Heavy, (self.inner,)

    def has(self, other: "Heavy") -> bool:
        """Whether ``other`` is the inner object itself."""
        return self.inner is other
