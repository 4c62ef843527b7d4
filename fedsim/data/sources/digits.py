"""The digits that come with scikit-learn: the embedded default, for which nothing needs to be downloaded."""

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.data.dataset import Raw
from fedsim.data.sources.base import Source, every_fifth


class Digits(Source):
    """1,797 hand-written digits of 8x8 pixels with values 0..16 (scikit-learn's ``load_digits``).

    Every fifth image of each class is a test image: 1,442 for training and 355 for testing.
    """

    kind: Literal["digits"] = "digits"

    def load(self, root: Path | None) -> Raw:
        """The digits; ``root`` is not needed."""
        rows = _rows()
        x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)  # what goes out below are copies
        test = every_fifth(y)
        return Raw("digits", x[~test], y[~test], x[test], y[test], classes=10, peak=16.0)

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """One channel of 8x8 pixels; 10 classes."""
        return (1, 8, 8), 10


@cache
def _rows() -> NDArray[np.uint8]:
    """64 pixels and the label of each digit, from scikit-learn's own file: importing scikit-learn takes more than a second."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                return np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits  # a scikit-learn that keeps its file elsewhere

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels]).astype(np.uint8)
