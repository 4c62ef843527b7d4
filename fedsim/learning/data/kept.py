"""Data sets that are loaded once for many runs, in this process or in another."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from fedsim.learning.data.federated import Dataset


@dataclass
class KeptData:
    """Loaded data sets, by the key of ``DataSpec.kept_key``.

    Attributes:
        datasets: the data sets, whose arrays are read-only.
        shapes: shape of a sample, and count of classes.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def keep(self, key: str, dataset: Dataset) -> None:
        """Keep a data set, and make its arrays read-only."""
        pool = dataset.pool
        for array in (pool.x, pool.y, pool.mean, pool.std, pool.targets):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        self.datasets[key] = dataset


_kept: ContextVar[KeptData | None] = ContextVar("_kept", default=None)


@contextmanager
def keeping(data: KeptData) -> Iterator[None]:
    """Context manager in which each data set is loaded at most once.

    Args:
        data: the loaded data sets, to which this context adds.
    """
    token = _kept.set(data)
    try:
        yield
    finally:
        _kept.reset(token)


def kept_data() -> KeptData | None:
    """Return the data sets that ``keeping`` keeps now; None outside of ``keeping``."""
    return _kept.get()
