"""Tables as numpy columns, which is how the checks look at them: a run of millions of records fits, and takes seconds.

A whole number that is missing is ``NOTHING``, a missing quantity is NaN, and names are numbers (``Words``).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedsim.arrays import Floats, Ints
from fedsim.errors import RunFolderError
from fedsim.language.units import TICK_S
from fedsim.records.reading import RunFolder

Numbers = NDArray[np.int32]
Mask = NDArray[np.bool_]

NOTHING = -(2**31)
NO_WORD = -1


class Words:
    """Numbers for names, the same in all tables of a run."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._words: list[str] = []

    def __getitem__(self, word: str) -> int:
        if word not in self._numbers:
            self._numbers[word] = len(self._words)
            self._words.append(word)
        return self._numbers[word]

    def name(self, number: int) -> str | None:
        """The name that has this number; None for ``NO_WORD``."""
        return None if number == NO_WORD else self._words[number]

    def numbers(self, column: Any) -> Numbers:
        """The numbers of a ``pyarrow`` array of dictionary type; int32 [n]."""
        lookup = [NO_WORD if word is None else self[word] for word in column.dictionary.to_pylist()]
        numbers: Numbers = np.array([*lookup, NO_WORD], dtype=np.int32)
        return numbers[column.indices.fill_null(len(lookup)).to_numpy(zero_copy_only=False)]  # type: ignore[no-any-return]


def shown(value: float) -> float | None:
    """A whole number or a quantity as findings tell it: None where it is missing."""
    return None if value == NOTHING or value != value else value


def grain_s(times: Floats) -> Floats:
    """How far apart two times are at least around each of some (s): a tick, or beyond 97 days the spacing of float64."""
    return np.maximum(TICK_S, np.spacing(times))


class Columns:
    """Columns of a table by name, each ``[rows]``: float64 of quantities, int32 of whole numbers and of names.

    Args:
        run, name: the folder and the table's file in it.
        schema: the table's columns.
        wanted: which of them are read.
        words: gives names their numbers.
        extra: a further column that does not become numbers, but is handed to ``_take`` as it is read.

    Raises:
        RunFolderError: the table is missing or damaged.
    """

    def __init__(
        self,
        run: RunFolder,
        name: str,
        schema: pa.Schema,
        wanted: Sequence[str],
        words: Words,
        extra: str | None = None,
    ) -> None:
        self._words = words
        self._spoken = {column for column in wanted if pa.types.is_dictionary(schema.field(column).type)}
        self.count = run.size(name)
        fields = [schema.field(column) for column in (*wanted, *([extra] if extra else []))]
        self._columns: dict[str, NDArray[Any]] = {
            column: np.empty(self.count, dtype=np.float64 if schema.field(column).type == pa.float64() else np.int32)
            for column in wanted
        }
        at = 0
        for table in run.batches(name, pa.schema(fields)):
            piece = {}
            for column in wanted:
                values = _values(table.column(column), words, f"{name} of {str(run.path)!r}")
                self._columns[column][at : at + len(table)] = piece[column] = values
            if extra is not None:
                self._take(at, piece, table.column(extra).combine_chunks())
            at += len(table)

    def _take(self, at: int, piece: dict[str, NDArray[Any]], extra: Any) -> None:
        """Take in a piece of the table.

        Args:
            at: the number of its first row.
            piece: its columns, as they are kept.
            extra: the column that does not become numbers, as a ``pyarrow`` array.
        """
        raise NotImplementedError

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self._columns[column]

    def shown(self, column: str, row: int) -> Any:
        """A value of a column of whole numbers or quantities, as it is shown in a finding."""
        return shown(self._columns[column].item(row))

    def name(self, column: str, row: int) -> str | None:
        """A value of a column of names."""
        return self._words.name(self._columns[column].item(row))

    def row(self, row: int) -> dict[str, Any]:
        """All values of a row, as they are shown in a finding."""
        return {name: (self.name if name in self._spoken else self.shown)(name, row) for name in self._columns}


def _values(column: Any, words: Words, where: str) -> NDArray[Any]:
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
        return np.concatenate([words.numbers(chunk) for chunk in chunks]) if chunks else np.empty(0, dtype=np.int32)
    if pa.types.is_floating(array.type):
        return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if pa.types.is_boolean(array.type):
        return array.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if array.null_count:
        array = array.fill_null(NOTHING)
    elif len(array) and array.to_numpy().min() == NOTHING:
        raise RunFolderError(f"{where} is damaged: it has the number {NOTHING}")
    return array.to_numpy()  # type: ignore[no-any-return]


class Sequences:
    """Rows by a key, those of one key in a row and in the order of their numbers: what happened to each task, say.

    Args:
        keys: of the rows; int [n].

    Attributes:
        order: the numbers of the rows, key by key; int64 [n]. All else here is in this order.
        first, last: whether a row is the first, the last of its key; bool [n].
        begin: the place of the first row of the same key; int32 [n].
        number: the how-many-eth key it is; int32 [n].
    """

    def __init__(self, keys: NDArray[Any]) -> None:
        self.order: Ints = np.argsort(keys, kind="stable")
        ordered = keys[self.order]
        self.first: Mask = np.ones(len(keys), dtype=bool)
        self.first[1:] = ordered[1:] != ordered[:-1]
        self.last: Mask = np.ones(len(keys), dtype=bool)
        self.last[:-1] = self.first[1:]
        self.number: Numbers = np.cumsum(self.first, dtype=np.int32) - np.int32(1)
        self.begin: Numbers = np.flatnonzero(self.first).astype(np.int32)[self.number]

    def latest_before(self, wanted: Mask) -> Numbers:
        """For each place the last one before it, of the same key, that is ``wanted``; -1 where there is none; int32 [n]."""
        latest = np.where(wanted, _places(len(wanted)), np.int32(-1))
        np.maximum.accumulate(latest, out=latest)
        latest[1:] = latest[:-1].copy()
        latest[:1] = -1
        latest[latest < self.begin] = -1
        return latest

    def places(self) -> Numbers:
        """The how-many-eth of its key each row is, from 0; int32 [n]."""
        return _places(len(self.order)) - self.begin

    def lengths(self) -> Numbers:
        """How many rows there are of the same key; int32 [n]."""
        return np.bincount(self.number).astype(np.int32)[self.number]

    def parts_with(self, wanted: Mask) -> Iterator[slice]:
        """The places of the rows of each key of which a row is ``wanted``, in the order in which the keys first occur."""
        begins = np.unique(self.begin[wanted])
        ends = np.flatnonzero(self.last)[self.number[begins]] + 1
        for part in np.argsort(self.order[begins]).tolist():
            yield slice(begins.item(part), ends.item(part))


def _places(count: int) -> Numbers:
    return np.arange(count, dtype=np.int32)
