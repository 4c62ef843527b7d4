"""The digits that come with scikit-learn: the embedded default, for which nothing needs to be downloaded."""

from pathlib import Path
from typing import Literal

import numpy as np

from fedsim.data.dataset import Raw
from fedsim.data.sources.base import Source, every_fifth


class Digits(Source):
    """1,797 hand-written digits of 8x8 pixels with values 0..16 (scikit-learn's ``load_digits``).

    Every fifth image of each class is a test image: 1,442 for training and 355 for testing.
    """

    kind: Literal["digits"] = "digits"

    def load(self, root: Path | None) -> Raw:
        """The digits; ``root`` is not needed."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x, y = bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)
        test = every_fifth(y)
        return Raw("digits", x[~test], y[~test], x[test], y[test], classes=10, peak=16.0)

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """One channel of 8x8 pixels; 10 classes."""
        return (1, 8, 8), 10
