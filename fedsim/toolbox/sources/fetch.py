"""Downloads public data sets and writes them in their published formats, so that the sources read them like any other copy."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import DataError, ScenarioError, nearest
from fedsim.toolbox.sources.images import CIFAR_FILES, EMNIST_FILES, MNIST_FILES, advice, write_batch, write_idx

ByteArray = NDArray[np.uint8]
_EMNIST_PAGE = "https://www.nist.gov/itl/products-and-services/emnist-dataset"


class RemoteFile(NamedTuple):
    """A data set of version 1 at OpenML, and the files of its folder; ``packed`` ones end in ``.gz``.

    ``write`` turns (folder, images [n, *shape], labels [n], train_size) into them.
    """

    openml: str
    folder: str
    files: tuple[str, ...]
    packed: bool
    shape: tuple[int, ...]
    train_size: int
    write: Callable[[Path, ByteArray, ByteArray, int], None]


def write_mnist(folder: Path, x: ByteArray, y: ByteArray, train_size: int) -> None:
    """Write images [n, 1, h, w] and labels [n] as MNIST's four packed IDX files."""
    parts = (x[:train_size, 0], y[:train_size], x[train_size:, 0], y[train_size:])
    for name, array in zip(MNIST_FILES, parts, strict=True):
        write_idx(folder / f"{name}.gz", array)


def write_cifar10(folder: Path, x: ByteArray, y: ByteArray, train_size: int) -> None:
    """Write images [n, 3, 32, 32] and labels [n] as CIFAR-10's five training batches and one test batch."""
    cuts = np.linspace(0, train_size, len(CIFAR_FILES)).astype(int)[1:]
    for name, images, labels in zip(CIFAR_FILES, np.split(x, cuts), np.split(y, cuts), strict=True):
        write_batch(folder / name, images, labels)


DOWNLOADS = {
    "mnist": RemoteFile("mnist_784", "mnist", MNIST_FILES, True, (1, 28, 28), 60_000, write_mnist),
    "fashion": RemoteFile("Fashion-MNIST", "fashion-mnist", MNIST_FILES, True, (1, 28, 28), 60_000, write_mnist),
    "cifar10": RemoteFile("CIFAR_10", "cifar10", CIFAR_FILES, False, (3, 32, 32), 50_000, write_cifar10),
}


def fetch(name: str, root: Path) -> Path:
    """Download a data set from OpenML into its folder under ``root``; returns that folder.

    Raises:
        ScenarioError: there is no data set of that name to download.
        DataError: it cannot be downloaded; says which files to put where instead.
    """
    if name == "emnist":
        by_hand = advice(root, "emnist", EMNIST_FILES, packed=True)
        raise DataError(f"emnist has to be downloaded by hand: {by_hand}; they are in gzip.zip at {_EMNIST_PAGE}")
    if name not in DOWNLOADS:
        allowed = [*DOWNLOADS, "emnist"]
        raise ScenarioError(f"data fetch: {name!r} is unknown; allowed are {', '.join(allowed)}{nearest(name, allowed)}")
    download = DOWNLOADS[name]
    folder = root / download.folder
    x, y = _from_openml(name, download, root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        download.write(folder, x, y, download.train_size)
    except OSError as error:
        raise DataError(f"'{folder}' cannot be written: {error.strerror or error}") from None
    return folder


def _from_openml(name: str, download: RemoteFile, root: Path) -> tuple[ByteArray, ByteArray]:
    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of each retry; what comes of them is said below
            bunch: Any = fetch_openml(download.openml, version=1, as_frame=False, parser="auto", cache=False)
    except Exception as error:  # whatever a network can do
        by_hand = advice(root, download.folder, download.files, packed=download.packed)
        raise DataError(
            f"{name} cannot be downloaded from OpenML ({type(error).__name__}: {error}); instead, {by_hand}"
        ) from None
    return as_images(name, bunch.data, bunch.target, download.shape)


def as_images(name: str, data: NDArray[Any], target: NDArray[Any], shape: tuple[int, ...]) -> tuple[ByteArray, ByteArray]:
    """OpenML's table (numbers [n, features], labels [n] as text) as images uint8 [n, *shape] and labels uint8 [n]."""
    if data.shape != (len(target), math.prod(shape)) or data.min() < 0 or data.max() > 255:
        raise DataError(f"{name}: OpenML sent a table of shape {data.shape}, not rows of {math.prod(shape)} bytes")
    return data.astype(np.uint8).reshape(-1, *shape), target.astype(np.int64).astype(np.uint8)
