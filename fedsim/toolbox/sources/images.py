"""MNIST, Fashion-MNIST, EMNIST and CIFAR-10, and the formats of their files: read with every length checked, and written.

IDX (http://yann.lecun.com/exdb/mnist/): two zero bytes, the type (8 = unsigned byte), the number of dimensions, each dimension
as a big-endian 32-bit integer, then the values, last dimension fastest. CIFAR-10, binary version: rows of one label byte and
3,072 pixel bytes.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import IO, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.data.federated import Raw, Samples
from fedsim.data.sources import Source, checked_labels
from fedsim.durable import replacing
from fedsim.errors import DataError
from fedsim.files import regular

_UNSIGNED_BYTE = 8
_CHUNK = 1 << 20


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes, plain or gzip; ``DataError`` for any other file."""
    try:
        with regular(path).open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            with gzip.GzipFile(fileobj=plain) if packed else plain as stream:
                return _parse(path, stream, dimensions)
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"'{path}' is a damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}") from None


def _parse(path: Path, stream: IO[bytes] | gzip.GzipFile, dimensions: int) -> NDArray[np.uint8]:
    header = _read(stream, 4 + 4 * dimensions)
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if header[:4] != magic[: len(header[:4])]:
        raise DataError(
            f"'{path}' is no IDX file of {dimensions} dimensions: it begins with {header[:4].hex()}, not {magic.hex()}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"'{path}' is truncated: the header takes {4 + 4 * dimensions} bytes, {len(header)} are there")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    expected = math.prod(shape)
    content = _read(stream, expected + 1)
    if len(content) < expected:
        raise DataError(f"'{path}' is truncated: its header promises {expected} bytes of data, {len(content)} are there")
    if len(content) > expected:
        raise DataError(f"'{path}' is too long: its header promises {expected} bytes of data, and more are there")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read(stream: IO[bytes] | gzip.GzipFile, limit: int) -> bytearray:
    """Up to ``limit`` bytes; a gzip file that breaks off gives what it has."""
    content = bytearray()
    try:
        while len(content) < limit and (chunk := stream.read(min(_CHUNK, limit - len(content)))):
            content += chunk
    except EOFError:
        pass
    return content


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Write ``array`` as IDX, packed if the name ends in ``.gz``."""
    header = bytes([0, 0, _UNSIGNED_BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + np.ascontiguousarray(array).tobytes()
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with replacing(path) as beside:
        beside.write_bytes(content)


MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
EMNIST_FILES = tuple(
    f"emnist-byclass-{part}-{what}" for part in ("train", "test") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
_EMNIST_CLASSES = 62
_A, _J = 36, 45  # lower-case letters follow 10 digits and 26 capitals


class Mnist(Source):
    """60,000 + 10,000 hand-written digits of 28x28 pixels, from the IDX files in ``mnist/``."""

    kind: Literal["mnist"] = "mnist"
    folder: ClassVar[str] = "mnist"
    known = (1, 28, 28), 10

    def load(self, root: Path | None) -> Raw:
        return load_idx(self.kind, find_files(self.kind, root, [self.folder], MNIST_FILES, packed=True), classes=10)


class Fashion(Mnist):
    """60,000 + 10,000 garments of 28x28 pixels (Fashion-MNIST), from the IDX files in ``fashion-mnist/``."""

    kind: Literal["fashion"] = "fashion"  # type: ignore[assignment]
    folder: ClassVar[str] = "fashion-mnist"


def load_idx(name: str, files: list[Path], classes: int) -> Raw:
    """The data set in four IDX files: training images, training labels, test images and test labels."""
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


class Emnist(Source):
    """EMNIST ByClass (Cohen et al. 2017) from its IDX files in ``emnist/``: digits, capitals and lower-case letters.

    Attributes:
        letters: ``all`` 62 classes, or only ``a-j``, the ten lower-case letters of FEMNIST (labels 36-45 become 0-9).
    """

    kind: Literal["emnist"] = "emnist"
    letters: Literal["all", "a-j"] = "all"

    def load(self, root: Path | None) -> Raw:
        files = find_files("emnist", root, ["emnist", "emnist/gzip"], EMNIST_FILES, packed=True)
        raw = load_idx("emnist", files, _EMNIST_CLASSES)
        classes = self.shape_and_classes(root)[1]
        return Raw("emnist", *self._upright(raw.x_train, raw.y_train), *self._upright(raw.x_test, raw.y_test), classes)

    def _upright(self, x: Samples, y: NDArray[np.int64]) -> tuple[Samples, NDArray[np.int64]]:
        """The wanted characters, upright: the published files hold them transposed."""
        if self.letters == "a-j":
            wanted = (y >= _A) & (y <= _J)
            x, y = x[wanted], y[wanted] - _A
        return np.ascontiguousarray(x.swapaxes(2, 3), dtype=np.uint8), y

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        return (1, 28, 28), _EMNIST_CLASSES if self.letters == "all" else _J - _A + 1


_CIFAR_FOLDERS = ("cifar10", "cifar-10-batches-bin")
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32


class Cifar10(Source):
    """50,000 + 10,000 colour images of 32x32 pixels, from the binary batches in ``cifar10/``."""

    kind: Literal["cifar10"] = "cifar10"
    known = _SHAPE, 10

    def load(self, root: Path | None) -> Raw:
        batches = [read_batch(path) for path in find_files("cifar10", root, _CIFAR_FOLDERS, CIFAR_FILES, packed=False)]
        x_train, y_train = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
        return Raw("cifar10", x_train, y_train, *batches[-1], classes=10)


def read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n] of one batch."""
    size = path.stat().st_size
    if size == 0 or size % _RECORD:
        whole = max(1, -(-size // _RECORD))
        raise DataError(
            f"'{path}' is truncated: {whole} records of {_RECORD} bytes are {whole * _RECORD} bytes, {size} are there"
        )
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, _RECORD)
    return rows[:, 1:].reshape(-1, *_SHAPE), checked_labels(path, rows[:, 0], 10)


def write_batch(path: Path, x: NDArray[np.uint8], y: NDArray[np.uint8]) -> None:
    """Write images [n, 3, 32, 32] and labels [n] as one batch."""
    write_whole(path, np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1).tobytes())


def find_files(source: str, root: Path | None, folders: Sequence[str], names: Sequence[str], *, packed: bool) -> list[Path]:
    """The files ``names`` in the first of ``folders`` under ``root`` that has all; ``packed`` ones may end in ``.gz``."""
    for folder in folders if root is not None else ():
        found = [path for name in names if (path := _present(Path(root or ""), folder, name, packed)) is not None]
        if len(found) == len(names):
            return found
    where = advice(root, folders[0], names, packed=packed)
    fetch = f"or run `fedsim data fetch {source} --root {quote(str(root or 'data'))}`"
    then = "" if root else " and then set data.root to 'data'"
    raise DataError(f"data.source is '{source}', whose files are missing: {where}, {fetch}{then}")


def advice(root: Path | None, folder: str, names: Sequence[str], *, packed: bool) -> str:
    """The sentence that says which files are missing, and where they belong."""
    if root is None:
        lacking = list(names)
        where = f"the folder '{folder}' of the folder that data.root or $FEDSIM_DATA names (neither is set)"
    else:
        lacking = [name for name in names if _present(root, folder, name, packed) is None]
        where = f"'{root / folder}'"
    return f"put {', '.join(lacking)}{' (plain or .gz)' if packed else ''} into {where}"


def _present(root: Path, folder: str, name: str, packed: bool) -> Path | None:
    candidates = [root / folder / name, *([root / folder / f"{name}.gz"] if packed else [])]
    return next((path for path in candidates if path.is_file()), None)
