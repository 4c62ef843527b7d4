"""The base of all sources of data."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from fedsim.data.federated import Raw, TokenShape
from fedsim.errors import DataError
from fedsim.files import SOUGHT, regular
from fedsim.language.spec import Spec


class Source(Spec):
    """A data set that is as it is, whatever the population."""

    kind: str
    published: ClassVar[bool] = True
    """Whether it is a published data set, whose folder lies in ``data.root`` or ``$FEDSIM_DATA``, and no file of the user's."""
    known: ClassVar[tuple[tuple[int, ...], int] | None] = None
    """Shape of one sample and number of classes, where they are known without the files."""

    @abstractmethod
    def load(self, root: Path | None) -> Raw:
        """The data set as published.

        Args:
            root: the folder of data folders (``data.root``, or for what is ``published`` ``$FEDSIM_DATA``), if there is one.

        Raises:
            DataError: files are missing, truncated or malformed.
        """

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """Shape of one sample and number of classes."""
        if self.known is not None:
            return self.known
        raw = self.load(root)
        shape = tuple(raw.x_train.shape[1:])
        return TokenShape.of(shape, raw.vocabulary) if raw.vocabulary else shape, raw.classes


def checked_labels(path: Path, labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Labels as int64; one outside 0..classes-1 raises ``DataError``."""
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise DataError(f"'{path}' has the label {outside[0]}; allowed are 0 to {classes - 1}")
    return labels.astype(np.int64)


def every_fifth(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks every fifth sample of each class, in the given order, as a test sample; bool [n]."""
    marks = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        marks[np.flatnonzero(labels == label)[4::5]] = True
    return marks


def read_arrays(path: Path, key: str) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file that the scenario names at ``key``."""
    try:
        if not is_zipfile(regular(path)):
            raise ValueError("it is no zip file")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{key} names '{path}', which does not exist; {SOUGHT}") from None
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged archive
        raise DataError(f"'{path}' cannot be read as an .npz archive of plain arrays: {error}") from None
