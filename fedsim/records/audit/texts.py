"""The column ``data`` of the records: JSON.

All of it is parsed, so that a damaged record is found, but the same text only once in a piece of the table; what is kept of it
is numbers. So nothing of the size of the run is ever held as Python objects.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Ints

T = TypeVar("T")

Data = dict[str, Any]
"""The data of a record, parsed; empty if it has none."""


class Unreadable(Exception):  # noqa: N818
    """A record's data do not say what they must.

    Attributes:
        row: which record's, in its piece of the table.
    """

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.row = row


class Texts:
    """A piece of the column.

    Args:
        column: a ``pyarrow`` array of texts.

    Raises:
        ValueError: a text is no JSON.
    """

    def __init__(self, column: Any) -> None:
        encoded = column.dictionary_encode()
        self._texts: list[str] = encoded.dictionary.to_pylist()
        self._data = [json.loads(text) for text in self._texts]
        self._numbers = encoded.indices.fill_null(-1).to_numpy()

    def text(self, row: int) -> str:
        """The data of a record, as they are written."""
        self.read(row, lambda data: None)
        place = self._numbers.item(row)
        return "{}" if place < 0 else self._texts[place]

    def read(self, row: int, take: Callable[[Data], T]) -> T:
        """What ``take`` finds in the data of a record.

        Raises:
            Unreadable: they are not as ``take`` wants them.
        """
        place = self._numbers.item(row)
        try:
            data = {} if place < 0 else self._data[place]
            if not isinstance(data, dict):
                raise TypeError(f"{data!r} is no table")
            return take(data)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise Unreadable(row, error) from None

    def each(self, rows: Ints, take: Callable[[Data], Any], dtype: Any) -> NDArray[Any]:
        """What ``take`` finds in the data of each of some records; [rows].

        Raises:
            Unreadable: those of one are not as ``take`` wants them.
        """
        _, first, which = np.unique(self._numbers[rows], return_index=True, return_inverse=True)
        return np.array([self.read(row, take) for row in rows[first].tolist()], dtype=dtype)[which]
