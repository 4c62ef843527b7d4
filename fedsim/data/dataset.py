"""A data set before it is dealt out: as published (``Raw``), and as one pool of samples (``Dataset``)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.data.federated import Index, Pool

Samples = NDArray[np.uint8] | NDArray[np.float32]
Normalise = Literal["pixel", "standardise", "none"]

_STD_FLOOR = 0.001  # added to each standard deviation, as FedProx and Ditto do: border pixels never change
_BLOCK = 4096


@dataclass(frozen=True)
class Raw:
    """A data set as published.

    Attributes:
        name: for messages.
        x_train, x_test: samples [n, *shape]; uint8 images with channels first [n, c, h, w], or float32.
        y_train, y_test: labels 0..C-1, int64 [n].
        classes: number of classes C.
        peak: the value of a full pixel, by which ``pixel`` divides; 1 for data that are no pixels.
    """

    name: str
    x_train: Samples
    y_train: NDArray[np.int64]
    x_test: Samples
    y_test: NDArray[np.int64]
    classes: int
    peak: float = 255.0


@dataclass(frozen=True)
class Dataset:
    """One pool in which the published training samples come first and the published test samples after them.

    Attributes:
        name: for messages.
        pool: all samples.
        train_size: how many of them are training samples.
    """

    name: str
    pool: Pool
    train_size: int

    @property
    def train(self) -> Index:
        """Pool indices of the published training samples."""
        return np.arange(self.train_size, dtype=np.int32)

    @property
    def test(self) -> Index:
        """Pool indices of the published test samples."""
        return np.arange(self.train_size, len(self.pool.y), dtype=np.int32)

    @property
    def all(self) -> Index:
        """Pool indices of all samples."""
        return np.arange(len(self.pool.y), dtype=np.int32)

    def by_class(self, index: Index) -> list[Index]:
        """``index`` cut up by label, each part in the order of ``index``; one part a class."""
        labels = self.pool.y[index]
        return [index[labels == label] for label in range(self.pool.classes)]


def pooled(raw: Raw, normalise: Normalise, *, over_test: bool = False) -> Dataset:
    """All samples of ``raw`` in one pool.

    ``pixel`` divides by the full pixel value. ``standardise`` takes (x - mean) / (std + 0.001) of each feature, with mean and
    std of the training samples, or of all (``over_test``). ``none`` leaves the values alone.
    """
    x = np.concatenate([raw.x_train, raw.x_test])
    y = np.concatenate([raw.y_train, raw.y_test])
    if normalise == "standardise":
        mean, std = _moments(x if over_test else raw.x_train)
        pool = Pool(x, y, raw.classes, mean=mean, std=std + np.float32(_STD_FLOOR))
    else:
        pool = Pool(x, y, raw.classes, scale=1.0 / raw.peak if normalise == "pixel" else 1.0)
    return Dataset(raw.name, pool, len(raw.y_train))


def _moments(x: Samples) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation of each feature, float32 of one sample's shape; summed in float64, block by block."""
    blocks = [x[start : start + _BLOCK] for start in range(0, len(x), _BLOCK)]
    mean = sum(block.sum(axis=0, dtype=np.float64) for block in blocks) / len(x)
    variance = sum(((block - mean) ** 2).sum(axis=0) for block in blocks) / len(x)
    return np.asarray(mean, dtype=np.float32), np.sqrt(variance, dtype=np.float64).astype(np.float32)
