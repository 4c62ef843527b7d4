"""Sources without files of data sets: scikit-learn's digits, the embedded default, and FedProx's synthetic data."""

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.federated import Dataset, Pool, Raw
from fedsim.data.sources.base import Source, every_fifth
from fedsim.errors import ScenarioError
from fedsim.language.spec import Spec
from fedsim.streams import Streams


class Digits(Source):
    """1,797 hand-written digits of 8x8 pixels with values 0..16 (scikit-learn's ``load_digits``).

    Every fifth image of each class is a test image: 1,442 for training and 355 for testing.
    """

    kind: Literal["digits"] = "digits"
    known = (1, 8, 8), 10

    def load(self, root: Path | None) -> Raw:
        rows = _rows()
        x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)  # what goes out below are copies
        test = every_fifth(y)
        return Raw("digits", x[~test], y[~test], x[test], y[test], classes=10, peak=16.0)


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


_MOST_NUMBERS = 1_000_000_000  # 4 GB of samples


class Synthetic(Spec):
    """Samples drawn for each device (Li et al. 2020, section 5.1; constants from the authors' code).

    Device k draws u ~ N(0, alpha) and B ~ N(0, beta); W and b have entries N(u, 1), both around the same u; its samples are
    x ~ N(v, Sigma) with v_j ~ N(B, 1) and Sigma_jj = j^-1.2, its labels y = argmax(x W + b). This source brings its own
    devices: only the partition ``synthetic``, which says how many samples each has, goes with it.

    Attributes:
        alpha: standard deviation between the devices' models.
        beta: standard deviation between the devices' places.
        features: length of a sample.
        classes: number of classes.
    """

    kind: Literal["synthetic"] = "synthetic"
    alpha: float = Field(default=1.0, ge=0.0, le=1e6)
    beta: float = Field(default=1.0, ge=0.0, le=1e6)
    features: int = Field(default=60, ge=1, le=1_000_000)
    classes: int = Field(default=10, ge=2, le=100_000)

    def draw(self, sizes: NDArray[np.int64], streams: Streams) -> Dataset:
        """Samples of devices of such ``sizes``, int64 [devices], one after the other; no device's depend on the others."""
        numbers = int(sizes.sum()) * self.features + self.features * self.classes
        if numbers > _MOST_NUMBERS:
            raise ScenarioError(
                f"data.source.features is {self.features} for {sizes.sum()} samples and {self.classes} classes, {numbers} "
                f"numbers; allowed are at most {_MOST_NUMBERS}"
            )
        parts = [self._draw_device(int(size), streams.generator("world/data/synthetic", k)) for k, size in enumerate(sizes)]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Dataset("synthetic", Pool(x, y, self.classes), len(y))

    def _draw_device(self, size: int, generator: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        u, place = generator.normal(0.0, [self.alpha, self.beta])
        centre = generator.normal(place, 1.0, self.features)
        weights = generator.normal(u, 1.0, (self.features, self.classes))
        bias = generator.normal(u, 1.0, self.classes)
        spread = np.arange(1, self.features + 1) ** -0.6  # the square root of Sigma's diagonal
        x = centre + spread * generator.standard_normal((size, self.features))
        return x.astype(np.float32), np.argmax(x @ weights + bias, axis=1)
