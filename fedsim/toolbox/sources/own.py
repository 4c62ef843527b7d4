"""The user's own data: numpy archives, folders as Hugging Face's ``datasets`` saves them, and any ``Dataset`` of torch."""

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.data.federated import Raw
from fedsim.data.sources import Source, checked_labels, every_fifth
from fedsim.errors import DataError, nearest
from fedsim.files import read_bytes, read_json, reading, regular, sought
from fedsim.language.imports import find, refuse_unless_allowed

_MOST_PIXELS = 1 << 24  # of one image: few bytes may unpack to gigabytes
_MOST_CLASSES = 100_000  # labels index tables a class wide: of each device's samples, of outputs

Vocabulary = Annotated[int | None, Field(ge=2, le=10_000_000)]
NamedArrays = dict[str, NDArray[Any]]


class Npz(Source):
    """Arrays of the user's own in one ``.npz`` file."""

    kind: Literal["npz"] = "npz"
    path: str
    """the file; a relative path starts from ``data.root``, else the working directory, else ``$FEDSIM_DATA``. It holds
    ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y``, whose every fifth sample (of each class) is a test
    sample. Samples: uint8 or floats, [n, features], [n, h, w] or [n, c, h, w]; or tokens, other integers [n, T]. ``y``: labels,
    integers [n] from 0; or targets, floats [n] or [n, k], or integers [n, k]; tokens can do without. Further integers [n], such
    as ``place`` (or ``place_train`` and ``place_test``), are columns for ``data.column``.
    """
    vocabulary: Vocabulary = None
    """tokens are 0..vocabulary-1; None: up to the largest that is there."""

    def load(self, root: Path | None) -> Raw:
        path = sought(self.path, root)
        with reading(path, "data.source.path", "an .npz archive of plain arrays"):
            if not is_zipfile(regular(path)):
                raise ValueError("it is no zip file")
            with np.load(regular(path), allow_pickle=False) as archive:
                arrays = dict(archive)
        return _raw_of(path, arrays, self.vocabulary)


def _raw_of(path: Path, arrays: NamedArrays, vocabulary: int | None) -> Raw:
    """The data set of a file's arrays, which are named as in ``Npz``; ``DataError`` names the one that is wrong."""
    if "x_train" in arrays or "x" not in arrays:
        (x_train, y_train), (x_test, y_test) = (_pair(path, arrays, part) for part in ("_train", "_test"))
        both = [name.removesuffix("_train") for name in arrays if name.removesuffix("train") + "test" in arrays]
        columns = {name: np.concatenate([arrays[f"{name}_train"], arrays[f"{name}_test"]]) for name in both if name not in "xy"}
    else:
        x, y = _pair(path, arrays, "")
        test = every_fifth(y if y.ndim == 1 else np.zeros(len(y), np.int64))
        x_train, y_train, x_test, y_test = x[~test], y[~test], x[test], y[test]
        others = {name: each for name, each in arrays.items() if name not in "xy" and len(each) == len(x)}
        columns = {name: np.concatenate([each[~test], each[test]]) for name, each in others.items()}
    for name, train, tested in (("x", x_train, x_test), ("y", y_train, y_test)):
        if train.shape[1:] != tested.shape[1:] or train.dtype != tested.dtype:
            what = "samples" if name == "x" else "targets"
            held = f"{what} of shape {train.shape[1:]} and type {train.dtype}"
            raise DataError(f"'{path}': {name}_train holds {held}, but {name}_test of {tested.shape[1:]} and {tested.dtype}")
    classes = int(max(y_train.max(), y_test.max(initial=0))) + 1 if y_train.ndim == 1 else max(1, y_train.shape[1])
    tokens = 0
    if x_train.dtype == np.int64:
        largest = int(max(x_train.max(), x_test.max(initial=0)))
        tokens = vocabulary or largest + 1
        if largest >= tokens:
            allowed = f"with data.source.vocabulary = {tokens}, 0 to {tokens - 1} are allowed"
            raise DataError(f"'{path}' has the token {largest}; {allowed}")
    shape = (len(x_train) + len(x_test),)
    columns = {name: each for name, each in columns.items() if each.shape == shape and np.issubdtype(each.dtype, np.integer)}
    peak = 255.0 if x_train.dtype == np.uint8 else 1.0
    return Raw(path.stem, x_train, y_train, x_test, y_test, classes, peak, tokens, columns)


def _pair(path: Path, arrays: NamedArrays, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    x_name, y_name = f"x{part}", f"y{part}"
    x, y = arrays.get(x_name), arrays.get(y_name)
    if x is not None and y is None and _is_tokens(x):
        return _samples(path, x_name, x), np.zeros((len(x), 0))
    if x is None or y is None:
        lacks, has = x_name if x is None else y_name, ", ".join(arrays) or "none"
        needs = "x_train, y_train, x_test and y_test, or x and y"
        raise DataError(f"'{path}' has no array '{lacks}'; it has {has}, and needs {needs}")
    real = np.issubdtype(y.dtype, np.floating)
    if not (real or y.dtype == np.bool_ or np.issubdtype(y.dtype, np.integer)) or not 1 <= y.ndim <= 2:
        allowed = "labels are integers of shape (n,), targets floats or integers of shape (n, k)"
        raise DataError(f"'{path}': '{y_name}' is of shape {y.shape} and type {y.dtype}; {allowed}")
    if not 2 <= x.ndim <= 4:
        raise DataError(f"'{path}': '{x_name}' is of shape {x.shape}; allowed are (n, features), (n, h, w) and (n, c, h, w)")
    if len(x) != len(y) or not len(x):
        said = f"'{x_name}' has {len(x)} samples and '{y_name}' {len(y)} labels"
        raise DataError(f"'{path}': {said}; they must match and not be empty")
    samples = _samples(path, x_name, x)
    if y.ndim == 1 and not real:
        return samples, checked_labels(path, y.astype(np.int64), _MOST_CLASSES)
    if real and not np.isfinite(y).all():
        raise DataError(f"'{path}': '{y_name}' has values that are not finite")
    return samples, y.reshape(len(y), -1).astype(np.float32 if real else np.int64)


def _is_tokens(x: NDArray[Any]) -> bool:
    return np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8


def _samples(path: Path, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Samples as models take them: tokens int64 [n, T], else uint8 or float32."""
    said = f"'{path}': '{name}' is of shape {x.shape} and type {x.dtype}"
    if _is_tokens(x):
        if x.ndim != 2 or not x.size or x.min() < 0:
            said += f", and the least is {x.min()}" if x.size else ""
            raise DataError(f"{said}; tokens are integers from 0 of shape (n, T), and samples of numbers uint8 or floats")
        return x.astype(np.int64)
    if 0 in x.shape:
        raise DataError(f"{said}; each sample needs one number at least")
    if x.ndim == 3:
        x = x[:, None]
    if x.dtype == np.uint8:
        return np.asarray(x, dtype=np.uint8)
    if not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{said}; allowed are uint8 and floats")
    with np.errstate(over="ignore"):
        numbers = x.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise DataError(f"'{path}': '{name}' has values that are not finite")
    return numbers


class HuggingFace(Source):
    """A folder that ``save_to_disk`` has written, with or without splits ``train`` and ``test``."""

    kind: Literal["huggingface"] = "huggingface"
    path: str
    """the folder, sought as an ``npz`` file is."""
    x: str = "image"
    """the column of the samples: images (decoded by Pillow), or lists of numbers of one length; integers are tokens."""
    y: str = "label"
    """the column of the labels, or of targets as in ``Npz``."""
    columns: list[str] = Field(default_factory=list)
    """further columns of integers, for ``data.column``."""
    vocabulary: Vocabulary = None
    """as of ``npz``."""

    def load(self, root: Path | None) -> Raw:
        folder = sought(self.path, root)
        names = {"x": self.x, "y": self.y} | {name: name for name in self.columns}
        parts = {"_train": "train", "_test": "test"} if (folder / "dataset_dict.json").is_file() else {"": ""}
        arrays: NamedArrays = {}
        for part, inner in parts.items():
            table = _table(folder / inner, [*names.values()])
            arrays |= {f"{name}{part}": _array(folder / inner, column, table[column]) for name, column in names.items()}
        return _raw_of(folder, arrays, self.vocabulary)


def _table(folder: Path, names: list[str]) -> Any:
    import pyarrow as pa

    try:
        files = [folder / each["filename"] for each in read_json(folder / "state.json")["_data_files"]]
        table = pa.concat_tables([pa.ipc.open_stream(read_bytes(file)).read_all() for file in files])
    except FileNotFoundError as error:
        needed = "give a folder that datasets' save_to_disk has written"
        raise DataError(f"data.source.path: there is no '{error.filename}'; {needed}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"'{folder}' cannot be read as a Hugging Face data set: {error}") from None
    for name in names:
        if name not in table.column_names:
            known = f"{', '.join(table.column_names)}{nearest(name, table.column_names)}"
            raise DataError(f"data.source: '{folder}' has no column '{name}'; it has {known}")
    return table


def _array(folder: Path, name: str, chunks: Any) -> NDArray[Any]:
    """A column's values: of one number each, of lists of lists of one length, or of images, [n, c, h, w] or [n, h, w]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column, named = chunks.combine_chunks(), f"column '{name}'"
    if column.null_count:
        raise DataError(f"'{folder}': {named} has no value at {column.null_count} places")
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        images = [_image(folder, name, value) for value in column.field("bytes").to_pylist()]
        if len({image.shape for image in images}) != 1:
            raise DataError(f"'{folder}': the images of {named} are not all of one shape")
        stacked = np.stack(images)
        return stacked.transpose(0, 3, 1, 2) if stacked.ndim == 4 else stacked
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    shape = [len(column)]
    while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.list_value_length(column).unique().to_pylist()
        if len(lengths) != 1:
            raise DataError(f"'{folder}': the lists of {named} are not all of one length")
        shape.append(lengths[0])
        column = column.flatten()
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        allowed = "images, numbers and lists of numbers"
        raise DataError(f"'{folder}': {named} is of type {column.type}; allowed are {allowed}")
    return column.to_numpy(zero_copy_only=False).reshape(shape)  # type: ignore[no-any-return]


def _image(folder: Path, name: str, data: bytes | None) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"data.source: images need Pillow, which cannot be imported ({error}); pip install pillow") from error
    try:
        with warnings.catch_warnings(action="ignore"):  # of more pixels than usual; many more are refused below
            image = Image.open(io.BytesIO(data or b""))
        width, height = image.size
        if width * height > _MOST_PIXELS:
            raise ValueError(f"it has {width} x {height} pixels; allowed are at most {_MOST_PIXELS} in all")
        return np.asarray(image, dtype=np.uint8)
    except Exception as error:  # Pillow raises many kinds for damaged images
        raise DataError(f"'{folder}': column '{name}' has an image that cannot be read: {error}") from None


class MapDataset(Source):
    """A map-style ``torch.utils.data.Dataset``, read into memory.

    An item is ``(sample, target)``, or a mapping with the keys ``x``, ``y`` and perhaps columns, as in ``npz``.
    """

    kind: Literal["dataset"] = "dataset"
    factory: str
    """``package.module:Name`` of a subclass of ``torch.utils.data.Dataset``, or of a function annotated to return one."""
    args: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments for it."""
    test: dict[str, Any] | None = None
    """keyword arguments that differ for the test samples (``{ train = false }``); None: every fifth sample is one."""
    vocabulary: Vocabulary = None
    """as of ``npz``."""

    @field_validator("factory")
    @classmethod
    def _allowed(cls, factory: str) -> str:
        refuse_unless_allowed(factory, "data.source.factory")
        return factory

    def load(self, root: Path | None) -> Raw:
        parts = {"": self.args} if self.test is None else {"_train": self.args, "_test": self.args | self.test}
        arrays = {f"{key}{part}": array for part, args in parts.items() for key, array in self._arrays(args).items()}
        return _raw_of(Path(self.factory.rpartition(":")[2]), arrays, self.vocabulary)

    def _arrays(self, args: Mapping[str, Any]) -> NamedArrays:
        from torch import Tensor
        from torch.utils.data import Dataset, default_collate

        where = f"data.source.factory is {self.factory!r}"
        factory = find(self.factory, "data.source.factory", Dataset, "torch.utils.data.Dataset", or_function=True)
        try:
            made = factory(**args)
            items = default_collate([made[at] for at in range(len(made))]) if hasattr(made, "__len__") else None
        except Exception as error:
            raise DataError(f"{where}, whose items cannot be read into arrays: {type(error).__name__}: {error}") from error
        if items is None:
            raise DataError(f"{where}, a {type(made).__name__} without a length; allowed is a map-style Dataset with __len__")
        if isinstance(items, list | tuple) and len(items) == 2:
            items = dict(zip("xy", items, strict=True))
        if not isinstance(items, Mapping):
            raise DataError(f"{where}, whose items are {type(made[0]).__name__}; allowed are (sample, target) and mappings")
        return {key: np.asarray(value) for key, value in items.items() if isinstance(value, Tensor)}
