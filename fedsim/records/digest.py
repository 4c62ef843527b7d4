"""Fingerprints of a run: a chain over its records, and one over its models."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.records.schema import EventRow


class EventChain:
    """h = sha256(h + record), over all records in order: it can be saved at any record and continued from there.

    A record enters as ``repr`` of its row, which is the same whether it was just emitted or read back from Parquet.
    """

    def __init__(self, state: bytes = b"", count: int = 0) -> None:
        self.state = state
        self.count = count

    def extend(self, rows: Iterable[EventRow]) -> None:
        """Take in the next records."""
        state, count, sha256 = self.state, self.count, hashlib.sha256
        for row in rows:
            state = sha256(state + repr(row).encode()).digest()
            count += 1
        self.state, self.count = state, count

    def hexdigest(self) -> str:
        """The chain's head."""
        return self.state.hex()


def models_digest(models: Mapping[str, Mapping[str, NDArray[Any]]]) -> str:
    """sha256 over all models' tensors: by file name, then tensor name; each as its name, its shape and its bytes.

    The type of the numbers is told where it is not float32.
    """
    digest = hashlib.sha256()
    for name in sorted(models):
        for tensor, values in sorted(models[name].items()):
            told = "" if values.dtype == np.float32 else f"/{values.dtype}"
            digest.update(f"{name}/{tensor}/{list(values.shape)}{told}\n".encode())
            digest.update(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
