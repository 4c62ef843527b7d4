"""Fingerprints of a run: a chain over its records, and one over its models."""

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedsim.records.schema import Row, event_line


class EventChain:
    """h = sha256(h + record), over all records in order: it can be saved at any record and continued from there."""

    def __init__(self, state: bytes = b"", count: int = 0) -> None:
        self.state = state
        self.count = count

    def add(self, row: Row) -> None:
        """Take in the next record."""
        self.state = hashlib.sha256(self.state + event_line(row)).digest()
        self.count += 1

    def hexdigest(self) -> str:
        """The chain's head."""
        return self.state.hex()


def models_digest(models: Mapping[str, Mapping[str, NDArray[np.float32]]]) -> str:
    """sha256 over all models' tensors: by file name, then tensor name; each as its name, its shape and its float32 bytes."""
    digest = hashlib.sha256()
    for name in sorted(models):
        for tensor, values in sorted(models[name].items()):
            digest.update(f"{name}/{tensor}/{list(values.shape)}\n".encode())
            digest.update(np.ascontiguousarray(values, dtype="<f4").tobytes())
    return digest.hexdigest()
