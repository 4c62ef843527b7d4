"""Sources of users' files: numpy archives, and folders of Hugging Face's ``datasets``."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import DataError, nearest
from fedsim.common.files import find_file, read_bytes, read_json, reading, require_regular
from fedsim.common.notes import note
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Source
from fedsim.toolbox.sources.arrays import (
    ArrayOptions,
    Layout,
    NamedArrays,
    Vocabulary,
    raw_of,
    surplus,
)
from fedsim.toolbox.sources.decoding import open_image

if TYPE_CHECKING:
    import pyarrow as pa


class Npz(Source):
    """Your own arrays in one ``.npz`` file.

    The file has the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``; or ``x`` and ``y``,
    of which every fifth sample of each class is a test sample.

    - ``x``, the samples: uint8 or floats, [n, features], [n, h, w] or [n, c, h, w]; or tokens,
      which are other integers, [n, T].
    - ``y``: labels, integers [n] from 0; or targets, floats [n] or [n, k], or integers [n, k].
      Tokens need no ``y``.
    - Other arrays are columns for ``data.column``, integers [n], such as ``place`` (or
      ``place_train`` and ``place_test``). Arrays of any other form are refused.

    Attributes:
        path: the file; a relative path starts from ``data.root``, else the working directory, else
            ``$FEDSIM_DATA``.
        columns: names of columns that may stay unused. The scenario is refused if the file has any
            other column, except the one that ``data.column`` names.
        layout: ``channels-last`` for samples [n, h, w, c], ``channels-first`` for [n, c, h, w];
            None: [n, c, h, w], but a shape that is more likely [n, h, w, c] is refused.
        vocabulary: count of different tokens, which are 0..vocabulary-1; None: the largest token +
            1.
    """

    kind: Literal["npz"] = "npz"
    path: str
    columns: list[str] = Field(default_factory=list)
    layout: Layout = None
    vocabulary: Vocabulary = None

    def load(self, root: Path | None) -> Raw:
        """Read all arrays of the archive, after checking that their names are distinct."""
        path = find_file(self.path, root)
        if path.is_dir():
            raise DataError(
                f"data.source.path is {str(path)!r}, a folder; 'npz' is one file. A folder of "
                "pictures is read by a torch Dataset of yours (kind = 'dataset'), and one of "
                "Hugging Face's datasets by kind = 'huggingface'"
            )
        with reading(path, "data.source.path", "an .npz archive of plain arrays"):
            if not is_zipfile(require_regular(path)):
                raise ValueError("it is no zip file")
            with np.load(require_regular(path), allow_pickle=False) as archive:
                names = list(archive.files)
                arrays = dict(archive)
        for name in names:
            fault = ""
            if names.count(name) > 1:
                fault = "twice"
            elif not isinstance(arrays[name], np.ndarray):
                fault = "which is no array"
            if fault:
                raise DataError(
                    f"'{path}' holds {name!r} {fault}; allowed are arrays, each of its own name"
                )
        return raw_of(path, arrays, ArrayOptions(self.vocabulary, self.layout))

    def surplus(self, raw: Raw, column: str | None) -> list[str]:
        return surplus(raw.columns, self.columns, column)


class HuggingFace(Source):
    """A data set of Hugging Face's ``datasets``, in a folder that ``save_to_disk`` has written.

    If the data set has splits, ``train`` and ``test`` are read. If it has none, every fifth sample
    of each class is a test sample.

    Attributes:
        path: the folder; a relative path starts from ``data.root``, else the working directory,
            else ``$FEDSIM_DATA``.
        x: the column of the samples: images (decoded by Pillow), or lists of numbers of equal
            length. Lists of integers are sequences of tokens.
        y: the column of the labels, integers from 0; or of targets, floats or lists of numbers.
        columns: names of additional columns of integers to read, one of which ``data.column`` may
            name; all other columns are ignored.
        layout: ``channels-last`` or ``channels-first``, for samples that are nested lists of three
            dimensions; None: channels first. Decoded images need no layout.
        vocabulary: count of different tokens; None: the largest token + 1.
    """

    kind: Literal["huggingface"] = "huggingface"
    path: str
    x: str = "image"
    y: str = "label"
    columns: list[str] = Field(default_factory=list)
    layout: Layout = None
    vocabulary: Vocabulary = None

    @field_validator("columns")
    @classmethod
    def _refuse_reserved_names(cls, columns: list[str]) -> list[str]:
        reserved = {"x", "y"} & {*columns}
        if reserved:
            raise ValueError(
                f"'columns' has {min(reserved)!r}, which names the samples or targets here"
            )
        return columns

    def load(self, root: Path | None) -> Raw:
        """Read the columns of samples, labels and others from the folder, or from both its splits.

        Images are decoded with their channels first.
        """
        folder = find_file(self.path, root)
        columns = {"x": self.x, "y": self.y}  # name of the array -> column of the table
        for name in self.columns:
            columns[name] = name
        subfolders = {"": ""}  # suffix of the arrays' names -> folder
        if (folder / "dataset_dict.json").is_file():
            subfolders = {"_train": "train", "_test": "test"}
        arrays: NamedArrays = {}
        layout = self.layout
        for suffix, subfolder in subfolders.items():
            table = _read_table(folder / subfolder, [*columns.values()])
            for name, column in columns.items():
                array = _read_column(folder / subfolder, column, table[column])
                arrays[f"{name}{suffix}"] = array
            if _holds_images(table[self.x].type):
                layout = self._layout_of_images(arrays[f"x{suffix}"])
        self._note_columns(folder, table.column_names)
        return raw_of(folder, arrays, ArrayOptions(self.vocabulary, layout))

    def _note_columns(self, folder: Path, names: list[str]) -> None:
        """Print a note on the columns of samples and labels, and on unused columns and splits.

        Args:
            folder: the folder of the data set.
            names: names of all columns.
        """
        unused = [name for name in names if name not in (self.x, self.y, *self.columns)]
        splits = folder / "dataset_dict.json"
        if splits.is_file():
            for name in read_json(splits).get("splits", []):
                if name not in ("train", "test"):
                    unused.append(f"the split {name}")
        rest = f"; not used: {', '.join(unused)}" if unused else ""
        note(
            f"{str(folder)!r}: column {self.x!r} has the samples, {self.y!r} the labels or "
            f"targets{rest}"
        )

    def _layout_of_images(self, images: AnyArray) -> Layout:
        if self.layout is not None:
            raise DataError(
                f"data.source.layout is {self.layout!r}, but column {self.x!r} holds images, "
                "which are decoded with their channels first; leave it out"
            )
        return "channels-first" if images.ndim == 4 else None


def _read_table(folder: Path, names: list[str]) -> "pa.Table":
    """Read the Arrow table of a folder that ``save_to_disk`` has written.

    Args:
        folder: the folder.
        names: names of the columns that the table must have.

    Raises:
        DataError: the folder cannot be read, or lacks a column.
    """
    import pyarrow as pa

    try:
        state = read_json(folder / "state.json")  # this file lists the files of the table
        if state.get("_indices_data_files"):
            raise ValueError(
                "it holds a selection of its rows as indices; call flatten_indices() before "
                "save_to_disk"
            )
        pieces = []
        for entry in state["_data_files"]:
            stream = pa.ipc.open_stream(read_bytes(folder / entry["filename"]))
            pieces.append(stream.read_all())
        table = pa.concat_tables(pieces)
    except FileNotFoundError as error:
        raise DataError(
            f"data.source.path: there is no '{error.filename}'; give a folder that datasets' "
            "save_to_disk has written"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"'{folder}' cannot be read as a Hugging Face data set: {error}") from None
    for name in names:
        if name not in table.column_names:
            hint = nearest(name, table.column_names)
            raise DataError(
                f"data.source: '{folder}' has no column '{name}'; it has "
                f"{', '.join(table.column_names)}{hint}"
            )
        if table.column_names.count(name) > 1:
            raise DataError(
                f"data.source: '{folder}' has the column '{name}' twice; allowed is one"
            )
    return table


def _read_column(folder: Path, name: str, chunks: "pa.ChunkedArray") -> AnyArray:
    """Convert a column of a Hugging Face data set to an array.

    Args:
        folder: the folder, for error messages.
        name: name of the column, for error messages.
        chunks: the column.

    Returns:
        Numbers [n], numbers in nested lists [n, ...], or decoded images [n, c, h, w] or [n, h, w].

    Raises:
        DataError: a value is missing, lists or images differ in shape, or a type is not allowed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = chunks.combine_chunks()
    named = f"column '{name}'"
    if column.null_count:
        raise DataError(f"'{folder}': {named} has no value at {column.null_count} places")
    if _holds_images(column.type):
        images = [_decode_image(folder, name, value) for value in column.field("bytes").to_pylist()]
        if len({image.shape for image in images}) != 1:
            raise DataError(f"'{folder}': the images of {named} are not all of one shape")
        stacked = np.stack(images)
        return stacked.transpose(0, 3, 1, 2) if stacked.ndim == 4 else stacked
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    # nested lists are flattened level by level; the numbers then get the shape of the lists
    shape = [len(column)]
    while _holds_lists(column.type):
        lengths = pc.list_value_length(column).unique().to_pylist()
        if len(lengths) != 1:
            raise DataError(f"'{folder}': the lists of {named} are not all of one length")
        shape.append(lengths[0])
        column = column.flatten()
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        allowed = "images, numbers and lists of numbers"
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            allowed += " (datasets' class_encode_column numbers words)"
        raise DataError(f"'{folder}': {named} is of type {column.type}; allowed are {allowed}")
    array: AnyArray = column.to_numpy(zero_copy_only=False).reshape(shape)
    return array


def _holds_lists(kind: object) -> bool:
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list or pa.types.is_fixed_size_list(kind))


def _holds_images(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _decode_image(folder: Path, name: str, data: bytes | None) -> NDArray[np.uint8]:
    try:
        return np.asarray(open_image(data or b""), dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # Pillow raises errors of many types for damaged images
        raise DataError(
            f"'{folder}': column '{name}' has an image that cannot be read: {error}"
        ) from None
