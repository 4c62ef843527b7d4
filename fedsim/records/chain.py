"""Fingerprint of a run's records: a chain of hashes over blocks of rows of ``events.parquet``."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np

from fedsim.records.schema import EventRow

ROWS_A_BLOCK = 512


class ChainState(TypedDict):
    """State of ``EventChain`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        count: count of rows so far.
        state: fingerprint of the complete blocks of ``ROWS_A_BLOCK`` rows, as hexadecimal digits.
        rows: the rows after the last complete block, which the fingerprint does not cover yet, as
            JSON.
    """

    count: int
    state: str
    rows: str


class EventChain:
    """Fingerprint (SHA-256) of all records of a run, computed while the run goes on.

    The records, as rows of ``events.parquet``, form blocks of ``ROWS_A_BLOCK`` rows; the last block
    may be shorter. Each block changes the state h, at first empty, to sha256(h + block). The bytes
    of a block are the times of its rows (little-endian float64), followed by ``repr`` of a list
    with a tuple for each other column.

    Attributes:
        count: count of rows so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._state = b""  # state h after the complete blocks
        self._rows: list[EventRow] = []  # rows of the incomplete block

    def extend(self, rows: Iterable[EventRow]) -> None:
        """Add further records to the fingerprint.

        Args:
            rows: rows of ``events.parquet`` in their order.
        """
        waiting = self._rows  # rows of the incomplete block
        previous_count = len(waiting)
        waiting.extend(rows)
        self.count += len(waiting) - previous_count
        rows_in_blocks = len(waiting) - len(waiting) % ROWS_A_BLOCK
        for begin in range(0, rows_in_blocks, ROWS_A_BLOCK):
            block = waiting[begin : begin + ROWS_A_BLOCK]
            self._state = _hash_block(self._state, block)
        self._rows = waiting[rows_in_blocks:]

    def hexdigest(self) -> str:
        """Return the fingerprint of the rows so far; an empty string if there are no rows."""
        if not self._rows:
            return self._state.hex()
        return _hash_block(self._state, self._rows).hex()

    def snapshot(self) -> ChainState:
        """Return the state that a checkpoint saves; ``restore`` sets it in a resumed run."""
        # the rows are joined to one text, which a checkpoint saves faster than thousands of values
        return {
            "count": self.count,
            "state": self._state.hex(),
            "rows": json.dumps(self._rows, separators=(",", ":")),
        }

    def restore(self, state: ChainState) -> None:
        """Set the state that ``snapshot`` returned, when a run is resumed from a checkpoint."""
        self.count = state["count"]
        self._state = bytes.fromhex(state["state"])
        self._rows = [tuple(row) for row in json.loads(state["rows"])]


def _hash_block(state: bytes, rows: Sequence[EventRow]) -> bytes:
    times, *columns = zip(*rows, strict=True)
    block = np.array(times, dtype="<f8").tobytes() + repr(columns).encode()
    return hashlib.sha256(state + block).digest()


class RowChain:
    """Fingerprint of a run's records as older versions of fedsim computed it, to check old runs.

    A summary without the entry ``events_block`` has such a fingerprint. Each row changes the state
    h, at first empty, to sha256(h + ``repr`` of the row).

    Attributes:
        count: count of rows so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._state = b""

    def extend(self, rows: Iterable[EventRow]) -> None:
        """Add further records to the fingerprint.

        Args:
            rows: rows of ``events.parquet`` in their order.
        """
        for row in rows:
            self._state = hashlib.sha256(self._state + repr(row).encode()).digest()
            self.count += 1

    def hexdigest(self) -> str:
        """Return the fingerprint of the rows so far; an empty string if there are no rows."""
        return self._state.hex()
