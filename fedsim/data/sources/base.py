"""What every source of data can do, and how its files are found."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.data.dataset import Raw
from fedsim.errors import DataError
from fedsim.language.spec import Spec


class Source(Spec):
    """A data set that is as it is, whatever the population."""

    kind: str
    published: ClassVar[bool] = True
    """Whether it is a published data set, whose folder lies in ``data.root`` or ``$FEDSIM_DATA``, and no file of the user's."""

    @abstractmethod
    def load(self, root: Path | None) -> Raw:
        """The data set as published.

        Args:
            root: the folder of data folders (``data.root``, or for what is ``published`` ``$FEDSIM_DATA``), if there is one.

        Raises:
            DataError: files are missing, truncated or malformed.
        """

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """Shape of one sample and number of classes; by default what the files hold, which a source may know beforehand."""
        raw = self.load(root)
        return tuple(raw.x_train.shape[1:]), raw.classes


def find_files(source: str, root: Path | None, folders: Sequence[str], names: Sequence[str], *, packed: bool) -> list[Path]:
    """The files ``names``, all in the first of ``folders`` under ``root`` that has them; ``packed`` ones may end in ``.gz``.

    Raises:
        DataError: no folder has them all; says which files go where.
    """
    for folder in folders if root is not None else ():
        found = [path for name in names if (path := _present(Path(root or ""), folder, name, packed)) is not None]
        if len(found) == len(names):
            return found
    where = advice(root, folders[0], names, packed=packed)
    fetch = f"or run `fedsim data fetch {source} --root {quote(str(root or 'data'))}`"
    then = "" if root else " and then set data.root to 'data'"
    raise DataError(f"data.source is '{source}', whose files are missing: {where}, {fetch}{then}")


def advice(root: Path | None, folder: str, names: Sequence[str], *, packed: bool) -> str:
    """What to put where, for files that are not there."""
    if root is None:
        lacking, where = (
            list(names),
            f"the folder '{folder}' of the folder that data.root or $FEDSIM_DATA names (neither is set)",
        )
    else:
        lacking = [name for name in names if _present(root, folder, name, packed) is None]
        where = f"'{root / folder}'"
    return f"put {', '.join(lacking)}{' (plain or .gz)' if packed else ''} into {where}"


def _present(root: Path, folder: str, name: str, packed: bool) -> Path | None:
    candidates = [root / folder / name, *([root / folder / f"{name}.gz"] if packed else [])]
    return next((path for path in candidates if path.is_file()), None)


def checked_labels(path: Path, labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Labels as int64.

    Raises:
        DataError: one lies outside 0..classes-1.
    """
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
