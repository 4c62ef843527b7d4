"""Base class and registry of sources, scikit-learn's digits, and FedProx's synthetic data."""

import gzip
from abc import abstractmethod
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.files import require_regular
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import returns
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Dataset, Pool, Raw, TokenShape
from fedsim.learning.data.mistakes import find_wrong_raw, find_wrong_sizes

_MOST_NUMBERS = 1_000_000_000  # greatest count of values in the drawn samples (4 GB as float32)


_RAW = "a Raw of finite samples, and as many labels of 0 to 'classes' - 1"
_SIZES = "the shape of a sample and the number of classes, each number 1 or more"


class Source(Spec):
    """Base of the data sets that a scenario can name as ``data.source``.

    A source loads samples, which a partition then divides among the devices. A subclass implements
    ``load``.

    Example:
        >>> import numpy as np
        >>> from fedsim.plugin import Raw, Source
        >>> class Parity(Source):
        ...     kind: str = "mine:Parity"
        ...     samples: int = 100
        ...     def load(self, root):
        ...         x = np.arange(self.samples, dtype=np.float32).reshape(-1, 1)
        ...         y = np.arange(self.samples) % 2
        ...         return Raw("parity", x[:80], y[:80], x[80:], y[80:], classes=2, peak=1.0)
        >>> raw = Parity(samples=120).load(None)
        >>> raw.x_train.shape, raw.x_test.shape
        ((80, 1), (40, 1))
    """

    kind: str
    known: ClassVar[tuple[tuple[int, ...], int] | None] = None
    """Shape of a sample and number of classes; None if only the files have them."""

    @abstractmethod
    @returns(_RAW, find_wrong_raw, allowed_draws="numpy.random.default_rng(SEED)")
    def load(self, root: Path | None) -> Raw:
        """Read the data set.

        Args:
            root: ``data.root``, the folder that contains the data sets' folders. None: the data
                sets' folders are looked for in the working directory, and then in ``$FEDSIM_DATA``.

        Returns:
            Training and test samples with their labels.

        Raises:
            DataError: files are missing or malformed.
        """

    def surplus(self, raw: Raw, column: str | None) -> list[str]:
        """Return the names of columns of a user's data that nothing uses; by default none.

        If there are any, the scenario is rejected.

        Args:
            raw: the data set as loaded.
            column: ``data.column``, the column used as labels or users; None if it is not set.
        """
        return []

    @returns(_SIZES, find_wrong_sizes)
    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """Return the shape of a sample and the number of classes.

        The data set is loaded for it if the class does not declare both in ``known``.

        Args:
            root: ``data.root``, the folder that contains the data sets' folders. None: the data
                sets' folders are looked for in the working directory, and then in ``$FEDSIM_DATA``.
        """
        if self.known is not None:
            return self.known
        raw = self.load(root)
        shape = tuple(raw.x_train.shape[1:])
        if raw.vocabulary:
            shape = TokenShape.of(shape, raw.vocabulary)
        return shape, raw.classes


def check_labels(path: Path, labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Convert labels to int64, after checking their range.

    Args:
        path: the file of the labels, for the error message.
        labels: the labels, [n].
        classes: count of classes.

    Raises:
        DataError: a label is outside 0..classes-1.
    """
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise DataError(f"'{path}' has the label {outside[0]}; allowed are 0 to {classes - 1}")
    return labels.astype(np.int64)


def every_fifth(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which samples become test samples: the fifth, tenth, ... of each class; bool [n].

    Args:
        labels: the class of each sample, int64 [n].
    """
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        is_test[positions[4::5]] = True
    return is_test


class Digits(Source):
    """Hand-written digits, 1,442 for training and 355 for tests (scikit-learn's ``load_digits``).

    An image has 8 x 8 pixels with values 0 to 16.
    """

    kind: Literal["digits"] = "digits"
    known = (1, 8, 8), 10

    def load(self, root: Path | None) -> Raw:
        rows = _read_digits()
        # The rows are cached, so ``x`` must not be changed. The boolean indices below make copies.
        x = rows[:, :-1].reshape(-1, 1, 8, 8)
        y = rows[:, -1].astype(np.int64)
        is_test = every_fifth(y)
        return Raw(
            "digits", x[~is_test], y[~is_test], x[is_test], y[is_test], classes=10, peak=16.0
        )


@cache
def _read_digits() -> NDArray[np.uint8]:
    """Read the hand-written digits of scikit-learn: 64 pixels and the label of each, uint8 [n, 65].

    The file is read without scikit-learn, because importing scikit-learn takes more than a second.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(require_regular(file), "rt", encoding="ascii") as lines:
                return np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits  # slow, so only if the file is not found

    return np.column_stack(load_digits(return_X_y=True)).astype(np.uint8)


class Synthetic(Spec):
    """Random samples that differ by device, the data set "Synthetic(alpha, beta)" of FedProx.

    Source: Li et al. 2020, section 5.1, with the constants of the authors' code.

    All draws are from normal distributions. The samples of each device are drawn in these steps:

    1. Two numbers with mean 0: u with standard deviation ``alpha``, and B with ``beta``.
    2. A linear model, the matrix W and the vector b: each entry with mean u and variance 1.
    3. The mean sample v: each entry with mean B and variance 1.
    4. The samples x: entry j, from 1 on, with mean v_j and variance j^-1.2.

    The label of a sample is argmax(x W + b). The partition ``synthetic`` determines the count of
    samples of each device.

    Attributes:
        alpha: standard deviation of u, by which the devices' linear models differ.
        beta: standard deviation of B, by which the devices' mean samples differ.
        features: length of a sample.
        classes: number of classes.
    """

    kind: Literal["synthetic"] = "synthetic"
    alpha: float = Field(default=1.0, ge=0.0, le=1e6)
    beta: float = Field(default=1.0, ge=0.0, le=1e6)
    features: int = Field(default=60, ge=1, le=1_000_000)
    classes: int = Field(default=10, ge=2, le=100_000)

    def draw(self, sizes: NDArray[np.int64], streams: Streams) -> Dataset:
        """Draw the samples of all devices, one device after the other.

        The samples of a device do not depend on other devices.

        Args:
            sizes: count of samples of each device, int64 [devices].
            streams: random streams of the run.

        Raises:
            ScenarioError: the samples need too much memory.
        """
        numbers = int(sizes.sum()) * self.features + self.features * self.classes
        if numbers > _MOST_NUMBERS:
            raise ScenarioError(
                f"data.source.features is {self.features} for {sizes.sum()} samples and "
                f"{self.classes} classes, {numbers} "
                f"numbers; allowed are at most {_MOST_NUMBERS}"
            )
        xs = []
        ys = []
        for device, size in enumerate(sizes):
            generator = streams.generator("world/data/synthetic", device)
            x, y = self._draw_device(int(size), generator)
            xs.append(x)
            ys.append(y)
        pool = Pool(np.concatenate(xs), np.concatenate(ys), self.classes)
        return Dataset("synthetic", pool, len(pool.y))

    def _draw_device(
        self, size: int, generator: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Draw a device's samples, float32 [size, features], and their labels, int64 [size]."""
        u, mean_centre = generator.normal(0.0, [self.alpha, self.beta])  # u and B of the source
        centre = generator.normal(mean_centre, 1.0, self.features)  # v of the source
        weights = generator.normal(u, 1.0, (self.features, self.classes))
        bias = generator.normal(u, 1.0, self.classes)
        # standard deviation of each feature: feature j has the variance j ** -1.2
        feature_std = np.arange(1, self.features + 1) ** -0.6
        x = centre + feature_std * generator.standard_normal((size, self.features))
        return x.astype(np.float32), np.argmax(x @ weights + bias, axis=1)


_TOOLS = "fedsim.toolbox.sources"
_IN_TOOLBOX = {
    "text": (
        f"{_TOOLS}.laws:Text",
        "characters of a text as tokens, a window of one speaker's lines each",
    ),
    "linear": (f"{_TOOLS}.laws:LinearLaw", "a linear law with noise: y = x W + b + e"),
    "drawn-images": (
        f"{_TOOLS}.drawn:DrawnImages",
        "images of any shape, drawn for users of unequal size",
    ),
    "mnist": (
        f"{_TOOLS}.images:Mnist",
        "60,000 + 10,000 hand-written digits of 28x28 pixels, from IDX files",
    ),
    "fashion": (
        f"{_TOOLS}.images:Fashion",
        "60,000 + 10,000 garments of 28x28 pixels (Fashion-MNIST), from IDX files",
    ),
    "cifar10": (
        f"{_TOOLS}.images:Cifar10",
        "50,000 + 10,000 colour images of 32x32 pixels, from the binary batches",
    ),
    "emnist": (
        f"{_TOOLS}.images:Emnist",
        "digits and letters (EMNIST ByClass, Cohen et al. 2017), from IDX files",
    ),
    "npz": (f"{_TOOLS}.own:Npz", "arrays of the user's own in one '.npz' file"),
    "csv": (
        f"{_TOOLS}.tables:Csv",
        "rows of a CSV file: columns of numbers, words or integers as labels, a user's column",
    ),
    "parquet": (f"{_TOOLS}.tables:Parquet", "rows of a Parquet file, as of 'csv'"),
    "leaf": (f"{_TOOLS}.leaf:Leaf", "LEAF's JSON files, in which each sample belongs to a user"),
    "tff": (
        f"{_TOOLS}.tff:Tff",
        "SQLite files of TensorFlow Federated: FEMNIST, Shakespeare, Stack Overflow, by user",
    ),
    "flair": (f"{_TOOLS}.flair:Flair", "FLAIR's photographs with several labels, by user"),
    "huggingface": (
        f"{_TOOLS}.own:HuggingFace",
        "a folder that the 'save_to_disk' of Hugging Face's data sets has written",
    ),
    "dataset": (
        f"{_TOOLS}.datasets:MapDataset",
        "a map-style 'torch.utils.data.Dataset', read into memory",
    ),
}
_IN_THIS_MODULE = Registry.of("source", Digits, Synthetic)
_KNOWN = {**_IN_THIS_MODULE.known, **_IN_TOOLBOX}
SOURCES = Registry("source", "fedsim.learning.data.sources:Source", _KNOWN, key="data.source")
SourceSpec = Annotated[Source, KindField(SOURCES)]
