"""MNIST and Fashion-MNIST: four IDX files each."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.data.dataset import Raw
from fedsim.data.sources.base import Source, checked_labels, find_files
from fedsim.data.sources.idx import read_idx
from fedsim.errors import DataError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class Mnist(Source):
    """60,000 + 10,000 hand-written digits of 28x28 pixels, from the IDX files in ``mnist/``."""

    kind: Literal["mnist"] = "mnist"

    def load(self, root: Path | None) -> Raw:
        """The digits as published."""
        return load_idx("mnist", find_files("mnist", root, ["mnist"], FILES, packed=True), classes=10)

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """One channel of 28x28 pixels; 10 classes."""
        return (1, 28, 28), 10


class Fashion(Source):
    """60,000 + 10,000 garments of 28x28 pixels (Fashion-MNIST), from the IDX files in ``fashion-mnist/``."""

    kind: Literal["fashion"] = "fashion"

    def load(self, root: Path | None) -> Raw:
        """The garments as published."""
        return load_idx("fashion", find_files("fashion", root, ["fashion-mnist"], FILES, packed=True), classes=10)

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """One channel of 28x28 pixels; 10 classes."""
        return (1, 28, 28), 10


def load_idx(name: str, files: list[Path], classes: int) -> Raw:
    """Training images, training labels, test images and test labels from four IDX files.

    Raises:
        DataError: a file is truncated or malformed, or images and labels do not match.
    """
    train, test = _load_pair(files[0], files[1], classes), _load_pair(files[2], files[3], classes)
    return Raw(name, *train, *test, classes)


def _load_pair(images_path: Path, labels_path: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 [n, 1, 28, 28] and labels int64 [n]."""
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(f"'{images_path}' has {len(images)} images, but '{labels_path}' has {len(labels)} labels")
    if images.shape[1:] != (28, 28):
        raise DataError(f"'{images_path}' has images of {images.shape[1]}x{images.shape[2]} pixels; 28x28 are expected")
    return images[:, None], checked_labels(labels_path, labels, classes)
