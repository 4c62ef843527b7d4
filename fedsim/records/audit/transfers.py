"""The messages of a run as columns.

Of millions of messages, few have payloads unlike any other's, so each kind of payloads is looked at once.
"""

import json
import re
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats
from fedsim.errors import RunFolderError
from fedsim.records.audit.columns import NO_WORD, NOTHING, Columns, Numbers, Words
from fedsim.records.folder import TRANSFERS
from fedsim.records.reading import RunFolder
from fedsim.records.schema import TRANSFERS as SCHEMA

_WANTED = tuple(name for name in SCHEMA.names if name != "payloads")


def numbered(words: Words, names: Numbers, kind: str) -> Numbers:
    """The numbers in names such as ``edge 3``, of one ``kind`` of endpoint; ``NOTHING`` for other names; int32 [n]."""
    found = np.full(len(names), NOTHING, dtype=np.int32)
    for word in np.unique(names[names != NO_WORD]).tolist():
        named = re.fullmatch(rf"{kind} ([0-9]{{1,9}})", words.name(word) or "")
        if named is not None:
            found[names == word] = int(named[1])
    return found


def number(value: object) -> float:
    """A quantity of a record.

    Raises:
        TypeError: it is no number.
    """
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)  # type: ignore[arg-type]


class PayloadKinds:
    """Numbers for lists of payloads; equal lists have the same, however they are written."""

    def __init__(self) -> None:
        self._of_text: dict[str, int] = {}
        self._of_parts: dict[tuple[tuple[str, float], ...], int] = {}
        self.parts: list[tuple[tuple[str, float], ...]] = []

    def of_text(self, text: str) -> int:
        """The number of payloads written as JSON.

        Raises:
            TypeError, ValueError: this is no list of purposes and bytes.
        """
        if text not in self._of_text:
            self._of_text[text] = self.of(json.loads(text))
        return self._of_text[text]

    def of(self, payloads: Any) -> int:
        """The number of a list of pairs: purpose and bytes.

        Raises:
            TypeError, ValueError: it is none.
        """
        key = tuple([(purpose, number(size)) for purpose, size in payloads])
        if not all(isinstance(purpose, str) for purpose, _ in key):
            raise ValueError(f"{payloads!r} are no payloads")
        if key not in self._of_parts:
            self._of_parts[key] = len(self.parts)
            self.parts.append(key)
        return self._of_parts[key]

    def sums(self) -> Floats:
        """Bytes of all payloads of each kind; float64 [kinds]."""
        return np.array([float(sum(size for _, size in parts)) for parts in self.parts], dtype=np.float64)

    def purposes(self) -> list[str]:
        """Each kind's purposes, as the ``purpose`` of a transfer has them."""
        return ["+".join(purpose for purpose, _ in parts) for parts in self.parts]


class Transfers(Columns):
    """``transfers.parquet``: its columns, those of ``payloads`` as ``PayloadKinds`` numbers them."""

    def __init__(self, run: RunFolder, words: Words, kinds: PayloadKinds) -> None:
        self._kinds = kinds
        self._payloads: list[Numbers] = [np.empty(0, dtype=np.int32)]
        self._where = f"{TRANSFERS} of {str(run.path)!r}"
        super().__init__(run, TRANSFERS, SCHEMA, _WANTED, words, "payloads")
        self._columns["payloads"] = np.concatenate(self._payloads)
        del self._payloads

    @cached_property
    def edge(self) -> Numbers:
        """The edge server that sent or received each message, ``NOTHING`` for none; int32 [rows]."""
        sender, receiver = (numbered(self._words, self[end], "edge") for end in ("sender", "receiver"))
        edge = np.where(receiver == NOTHING, sender, receiver)
        return np.where(self["direction"] == self._words["peer"], NOTHING, edge).astype(np.int32)

    def _take(self, at: int, piece: dict[str, NDArray[Any]], extra: Any) -> None:
        encoded = extra.dictionary_encode()
        try:
            lookup = [self._kinds.of_text(text) for text in encoded.dictionary.to_pylist()]
        except (TypeError, ValueError) as error:
            raise RunFolderError(f"{self._where} is damaged: {error}") from None
        if encoded.null_count:
            raise RunFolderError(f"{self._where} is damaged: a message has no payloads")
        self._payloads.append(np.array(lookup, dtype=np.int32)[encoded.indices.to_numpy()])
