"""Readers of the files of MNIST, Fashion-MNIST, EMNIST and CIFAR-10.

An IDX file (http://yann.lecun.com/exdb/mnist/) has two zero bytes, the type (8: unsigned byte), the
number of dimensions, each dimension as a big-endian uint32, and the values. A binary file of
CIFAR-10 has records of a label byte and 3,072 pixel bytes. Readers check every length.
"""

import gzip
import math
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path
from shlex import quote
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import DataError
from fedsim.common.files import find_file, open_file, read_bytes
from fedsim.learning.data.federated import Raw, Samples
from fedsim.learning.data.sources import Source, check_labels

ByteArray = NDArray[np.uint8]

_UNSIGNED_BYTE = 8
_RECORD_BYTES = 1 + 3 * 32 * 32
_EMNIST_CLASSES = 62
_MOST_PIXELS = 10**9  # greatest count of values in a file; EMNIST's largest has 547,178,688
# lower-case letters follow 10 digits and 26 capitals
_LABEL_A = 36
_LABEL_J = 45


def read_idx(path: Path, dimensions: int) -> ByteArray:
    """Read an array from an IDX file of unsigned bytes, plain or gzip.

    Args:
        path: the file.
        dimensions: count of dimensions that the array must have.

    Returns:
        The array, uint8.

    Raises:
        DataError: the file cannot be read, or is no IDX file of this count of dimensions.
    """
    try:
        with open_file(path) as file:
            if file.peek(2)[:2] != b"\x1f\x8b":
                return _read_idx(path, file, dimensions)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read_idx(path, unpacked, dimensions)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"'{path}' is a damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}") from None


def _read_idx(path: Path, file: BufferedIOBase, dimensions: int) -> ByteArray:
    """Read the array of an unpacked IDX file, and check its header and its length.

    The header has four magic bytes, and the length of each dimension as a big-endian integer of
    four bytes. The values follow, one byte each.

    Args:
        path: the file, for error messages.
        file: its unpacked content.
        dimensions: count of dimensions that the array must have.

    Raises:
        DataError: the content is not such an array.
    """
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    header_bytes = 4 + 4 * dimensions
    header = file.read(header_bytes)
    if header[:4] != magic:
        raise DataError(
            f"'{path}' is no IDX file of {dimensions} dimensions: it begins with "
            f"{header[:4].hex()}, not {magic.hex()}"
        )
    padded_lengths = header[4:].ljust(header_bytes - 4, b"\0")  # a short header is refused below
    shape = struct.unpack(f">{dimensions}I", padded_lengths)
    values = math.prod(shape)
    if values > _MOST_PIXELS:
        raise DataError(
            f"'{path}' has {values} values by its header; allowed are at most {_MOST_PIXELS}"
        )
    # One byte more shows that a file is too long. A small file may unpack to gigabytes, so further
    # bytes are not read.
    content = file.read(values + 1)
    length = len(header) + len(content)
    expected_length = header_bytes + values
    if length != expected_length:
        present = "more" if length > expected_length else str(length)
        raise DataError(
            f"'{path}' is truncated or too long: by its header {expected_length} bytes are "
            f"expected, {present} are there"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


class PublishedImages(Source):
    """Base of the sources that read images from the files of a published data set.

    A subclass names the files, and the folders that may hold them.
    """

    folders: ClassVar[tuple[str, ...]]
    """Folders that may hold the files; the first folder with all files is read."""
    files: ClassVar[tuple[str, ...]]
    """Names of the files."""
    packed: ClassVar[bool] = True
    """Whether the names of files may end in ``.gz``."""

    def _find_files(self, root: Path | None) -> list[Path]:
        """Return the paths of the data set's files, in the first folder that has all of them.

        Args:
            root: ``data.root``, or None.

        Raises:
            DataError: no folder has all files.
        """
        folders = [find_file(name, root) for name in self.folders]
        for folder in folders:
            candidates = [self._find_file(folder, name) for name in self.files]
            files = [path for path in candidates if path is not None]
            if len(files) == len(self.files):
                return files
        fetch = f"or run `fedsim data fetch {self.kind} --root {quote(str(folders[0].parent))}`"
        raise DataError(
            f"data.source is '{self.kind}', whose files are missing: "
            f"{self.advice(folders[0])}, {fetch}"
        )

    @classmethod
    def _find_file(cls, folder: Path, name: str) -> Path | None:
        """Return the path of a file in a folder, plain or ``.gz``; None if there is none."""
        plain = folder / name
        packed = folder / f"{name}.gz"
        if plain.is_file():
            return plain
        if cls.packed and packed.is_file():
            return packed
        return None

    @classmethod
    def advice(cls, folder: Path) -> str:
        """Return a sentence for the user that names the missing files and where to put them.

        Args:
            folder: the folder in which the files were looked for.
        """
        missing = [name for name in cls.files if cls._find_file(folder, name) is None]
        forms = " (plain or .gz)" if cls.packed else ""
        return f"put {', '.join(missing)}{forms} into '{folder}'"


class _MnistFiles(PublishedImages):
    """Base of data sets in four files with the names and shapes of MNIST's files."""

    kind: str
    known = (1, 28, 28), 10
    files = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )

    def load(self, root: Path | None) -> Raw:
        return _load_idx(self.kind, self._find_files(root), classes=10)


class Mnist(_MnistFiles):
    """60,000 + 10,000 hand-written digits of 28x28 pixels, from the IDX files in ``mnist/``."""

    kind: Literal["mnist"] = "mnist"
    folders = ("mnist",)


class Fashion(_MnistFiles):
    """Fashion-MNIST: 60,000 + 10,000 garments of 28x28 pixels, from IDX files.

    The files are in ``fashion-mnist/``.
    """

    kind: Literal["fashion"] = "fashion"
    folders = ("fashion-mnist",)


def _load_idx(name: str, files: list[Path], classes: int) -> Raw:
    """Read a data set of 28x28 images from four IDX files.

    Args:
        name: name of the data set.
        files: paths of training images, training labels, test images and test labels.
        classes: count of classes.

    Raises:
        DataError: a file cannot be read, or its shape or a label is not as expected.
    """
    x_train, y_train = _load_idx_pair(files[0], files[1], classes)
    x_test, y_test = _load_idx_pair(files[2], files[3], classes)
    return Raw(name, x_train, y_train, x_test, y_test, classes)


def _load_idx_pair(
    images_path: Path, labels_path: Path, classes: int
) -> tuple[ByteArray, NDArray[np.int64]]:
    """Read images and their labels from two IDX files.

    Args:
        images_path: the file of the images.
        labels_path: the file of the labels.
        classes: count of classes; labels must be below it.

    Returns:
        Images, uint8 [n, 1, 28, 28], and labels, int64 [n].

    Raises:
        DataError: a file cannot be read, or its shape or a label is not as expected.
    """
    images = read_idx(images_path, 3)
    labels = read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"'{images_path}' has {len(images)} images, but '{labels_path}' has "
            f"{len(labels)} labels"
        )
    if images.shape[1:] != (28, 28):
        raise DataError(
            f"'{images_path}' has images of {images.shape[1]}x{images.shape[2]} pixels; "
            "28x28 are expected"
        )
    return images[:, None], check_labels(labels_path, labels, classes)


class Emnist(PublishedImages):
    """EMNIST ByClass: digits, capitals and lower-case letters, from IDX files.

    Source: Cohen et al. 2017. The files are in ``emnist/``.

    Attributes:
        letters: ``all`` 62 classes, or only ``a-j``, the ten lower-case letters of FEMNIST (labels
            36-45 become 0-9).
    """

    kind: Literal["emnist"] = "emnist"
    letters: Literal["all", "a-j"] = "all"
    folders = ("emnist", "emnist/gzip")
    files = (
        "emnist-byclass-train-images-idx3-ubyte",
        "emnist-byclass-train-labels-idx1-ubyte",
        "emnist-byclass-test-images-idx3-ubyte",
        "emnist-byclass-test-labels-idx1-ubyte",
    )

    def load(self, root: Path | None) -> Raw:
        raw = _load_idx("emnist", self._find_files(root), _EMNIST_CLASSES)
        train = self._upright(raw.x_train, raw.y_train)
        test = self._upright(raw.x_test, raw.y_test)
        return Raw("emnist", *train, *test, self.shape_and_classes(root)[1])

    def _upright(self, x: Samples, y: NDArray[np.int64]) -> tuple[Samples, NDArray[np.int64]]:
        """Undo the files' transposition of images, and select the characters of ``letters``.

        Args:
            x: images as in the files, [n, 1, 28, 28].
            y: their labels, int64 [n].

        Returns:
            Images, uint8 [m, 1, 28, 28], and labels, int64 [m]; the labels of a to j become 0 to 9.
        """
        if self.letters == "a-j":
            is_letter = (y >= _LABEL_A) & (y <= _LABEL_J)
            x = x[is_letter]
            y = y[is_letter] - _LABEL_A
        return np.ascontiguousarray(x.swapaxes(2, 3), dtype=np.uint8), y

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        classes = _EMNIST_CLASSES if self.letters == "all" else _LABEL_J - _LABEL_A + 1
        return (1, 28, 28), classes


class Cifar10(PublishedImages):
    """50,000 + 10,000 colour images of 32x32 pixels, from the binary batches in ``cifar10/``."""

    kind: Literal["cifar10"] = "cifar10"
    known = (3, 32, 32), 10
    folders = ("cifar10", "cifar-10-batches-bin")
    files = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    packed = False

    def load(self, root: Path | None) -> Raw:
        batches = [_read_batch(path) for path in self._find_files(root)]
        x_train = np.concatenate([images for images, _ in batches[:-1]])
        y_train = np.concatenate([labels for _, labels in batches[:-1]])
        x_test, y_test = batches[-1]
        return Raw("cifar10", x_train, y_train, x_test, y_test, classes=10)


def _read_batch(path: Path) -> tuple[ByteArray, NDArray[np.int64]]:
    """Read a binary file of CIFAR-10: images, uint8 [n, 3, 32, 32], and labels, int64 [n]."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}") from None
    if not content or len(content) % _RECORD_BYTES:
        raise DataError(
            f"'{path}' is truncated: records of {_RECORD_BYTES} bytes are expected, {len(content)} "
            "bytes are there"
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD_BYTES)
    return rows[:, 1:].reshape(-1, 3, 32, 32), check_labels(path, rows[:, 0], 10)
