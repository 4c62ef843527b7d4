"""The messages of a run as columns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import RunFolderError
from fedsim.records.audit.columns import Columns, Numbers, Words
from fedsim.records.audit.payloads import PayloadKinds
from fedsim.records.folder import TRANSFERS
from fedsim.records.reading import RunFolder
from fedsim.records.schema import TRANSFERS as SCHEMA

_WANTED = tuple(name for name in SCHEMA.names if name != "payloads")


class Transfers(Columns):
    """``transfers.parquet``: its columns, those of ``payloads`` as ``PayloadKinds`` numbers them."""

    def __init__(self, run: RunFolder, words: Words, kinds: PayloadKinds) -> None:
        self._kinds = kinds
        self._payloads: list[Numbers] = [np.empty(0, dtype=np.int32)]
        self._where = f"{TRANSFERS} of {str(run.path)!r}"
        super().__init__(run, TRANSFERS, SCHEMA, _WANTED, words, "payloads")
        self._columns["payloads"] = np.concatenate(self._payloads)
        del self._payloads

    def _take(self, at: int, piece: dict[str, NDArray[Any]], extra: Any) -> None:
        encoded = extra.dictionary_encode()
        try:
            lookup = [self._kinds.of_text(text) for text in encoded.dictionary.to_pylist()]
        except (TypeError, ValueError) as error:
            raise RunFolderError(f"{self._where} is damaged: {error}") from None
        if encoded.null_count:
            raise RunFolderError(f"{self._where} is damaged: a message has no payloads")
        self._payloads.append(np.array(lookup, dtype=np.int32)[encoded.indices.to_numpy()])
