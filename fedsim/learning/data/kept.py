"""Store of data sets that are loaded once for many runs.

A study sends its store to other processes, which then need not load the data sets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from fedsim.learning.data.federated import Dataset


@dataclass
class KeptData:
    """Store of loaded data sets, so that several runs in one process load each of them only once.

    Attributes:
        datasets: key (text that names a data set and its settings) -> loaded data set, whose arrays
            are read-only.
        shapes: key -> shape of a sample, and count of classes.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def keep(self, key: str, dataset: Dataset) -> None:
        """Store a data set under a key, and make its arrays read-only.

        Args:
            key: text that names the data set and its settings; runs with equal texts share the data
                set.
            dataset: the data set.
        """
        pool = dataset.pool
        for array in (pool.x, pool.y, pool.mean, pool.std, pool.targets):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        self.datasets[key] = dataset


_kept: ContextVar[KeptData | None] = ContextVar("_kept", default=None)


@contextmanager
def keeping(data: KeptData) -> Iterator[None]:
    """Return a context in which runs share loaded data sets, so that each is loaded at most once.

    Args:
        data: the store of loaded data sets, to which newly loaded data sets are added.
    """
    token = _kept.set(data)
    try:
        yield
    finally:
        _kept.reset(token)


def kept_data() -> KeptData | None:
    """Return the store of the surrounding ``keeping`` context; None outside of such a context."""
    return _kept.get()
