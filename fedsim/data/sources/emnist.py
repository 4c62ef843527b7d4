"""EMNIST, ByClass split: the letters and digits from which the papers' FEMNIST is made."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.data.dataset import Raw, Samples
from fedsim.data.sources.base import Source, find_files
from fedsim.data.sources.mnist import load_idx

FILES = tuple(
    f"emnist-byclass-{part}-{what}" for part in ("train", "test") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
_CLASSES = 62
_A, _J = 36, 45  # lower-case letters follow 10 digits and 26 capitals


class Emnist(Source):
    """EMNIST ByClass (Cohen et al. 2017) from its IDX files in ``emnist/``: digits, capitals and lower-case letters.

    Attributes:
        letters: ``all`` 62 classes, or only ``a-j``, the ten lower-case letters of FEMNIST (labels 36-45 become 0-9).
    """

    kind: Literal["emnist"] = "emnist"
    letters: Literal["all", "a-j"] = "all"

    def load(self, root: Path | None) -> Raw:
        """The characters, upright: the published files hold them transposed."""
        files = find_files("emnist", root, ["emnist", "emnist/gzip"], FILES, packed=True)
        raw = load_idx("emnist", files, _CLASSES)
        classes = self.shape_and_classes(root)[1]
        return Raw("emnist", *self._upright(raw.x_train, raw.y_train), *self._upright(raw.x_test, raw.y_test), classes)

    def _upright(self, x: Samples, y: NDArray[np.int64]) -> tuple[Samples, NDArray[np.int64]]:
        """The wanted characters, rows and columns exchanged."""
        if self.letters == "a-j":
            wanted = (y >= _A) & (y <= _J)
            x, y = x[wanted], y[wanted] - _A
        return np.ascontiguousarray(x.swapaxes(2, 3), dtype=np.uint8), y

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """One channel of 28x28 pixels; 62 classes or 10."""
        return (1, 28, 28), _CLASSES if self.letters == "all" else _J - _A + 1
