"""Conversion of a user's named arrays to a data set, with checks of names, shapes and types."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import DataError, nearest, show_value
from fedsim.common.notes import note
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import check_labels, every_fifth

_MOST_CLASSES = 100_000  # greatest count of classes; each class is a column in several tables
_CHANNELS = (1, 3, 4)  # counts of channels of images: grey, colours, colours with transparency
_PARTS = ("_train", "_test")
_NEEDS = "x_train, y_train, x_test and y_test, or x and y"
_TEXT_KINDS = "USOT"  # numpy's codes of kinds of arrays of text and of objects

Vocabulary = Annotated[int | None, Field(ge=2, le=10_000_000)]
Layout = Literal["channels-first", "channels-last"] | None
NamedArrays = dict[str, AnyArray]
LabelledSamples = tuple[AnyArray, AnyArray]
"""Samples, and their labels or targets."""


class ArrayOptions(NamedTuple):
    """Keys of a scenario's ``data.source`` that determine how a user's arrays are read.

    Attributes:
        vocabulary: count of different tokens; None for the largest token + 1.
        layout: ``channels-first`` or ``channels-last``, for samples of three dimensions; None for
            channels first, unless the shape makes channels last more likely, which is an error.
    """

    vocabulary: int | None = None
    layout: Layout = None


class _DividedArrays(NamedTuple):
    """A user's arrays, divided into training samples and test samples.

    Attributes:
        train: training samples and their targets.
        test: test samples and their targets.
        columns: name -> column, in which training samples come first.
    """

    train: LabelledSamples
    test: LabelledSamples
    columns: NamedArrays


def raw_of(path: Path, arrays: NamedArrays, options: ArrayOptions) -> Raw:
    """Convert a user's named arrays to a data set, and print a note on how they were interpreted.

    The names are ``x_train``, ``y_train``, ``x_test`` and ``y_test``; or ``x`` and ``y``, of which
    every fifth sample of a class becomes a test sample. ``x`` has samples, ``y`` labels or targets.
    Any other array is a column: an integer for each sample, such as the number of its user.

    Args:
        path: path of the file, or name of the factory (the user's function that returns a Dataset),
            for error messages.
        arrays: name -> array.
        options: settings of the scenario's source.

    Raises:
        DataError: an array is missing, is malformed, or has a name that is not allowed.
    """
    split_names = sorted(name for name in arrays if _is_split_name(name))
    whole_names = [name for name in ("x", "y") if name in arrays]
    if split_names and whole_names:
        raise DataError(
            f"'{path}': it has {', '.join(whole_names)}, and {', '.join(split_names)} too; "
            f"allowed are {_NEEDS}, not both"
        )
    read = _read_and_split if whole_names else _read_parts
    (x_train, y_train), (x_test, y_test), columns = read(path, arrays, options)
    _require_alike(path, "x", "samples", x_train, x_test)
    _require_alike(path, "y", "targets", y_train, y_test)
    classes = _count_classes(y_train, y_test)
    tokens = _count_tokens(path, x_train, x_test, options.vocabulary)
    peak = 255.0 if x_train.dtype == np.uint8 else 1.0  # largest value, by which samples are scaled
    _note_arrays(path, arrays, columns, has_tests=not whole_names)
    return Raw(path.stem, x_train, y_train, x_test, y_test, classes, peak, tokens, columns)


def _read_and_split(path: Path, arrays: NamedArrays, options: ArrayOptions) -> _DividedArrays:
    """Read the arrays ``x`` and ``y``, of which every fifth sample of a class is a test sample.

    Args:
        path: the file or the factory, for error messages.
        arrays: name -> array.
        options: settings of the scenario's source.
    """
    x, y = _read_pair(path, arrays, "", options)
    columns = _read_columns(path, arrays, ("",), {"": len(x)})
    strata = y if y.ndim == 1 else np.zeros(len(y), np.int64)
    is_test = every_fifth(strata)
    for name, column in columns.items():
        columns[name] = np.concatenate([column[~is_test], column[is_test]])
    return _DividedArrays((x[~is_test], y[~is_test]), (x[is_test], y[is_test]), columns)


def _read_parts(path: Path, arrays: NamedArrays, options: ArrayOptions) -> _DividedArrays:
    """Read the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    Args:
        path: the file or the factory, for error messages.
        arrays: name -> array.
        options: settings of the scenario's source.
    """
    train = _read_pair(path, arrays, "_train", options)
    test = _read_pair(path, arrays, "_test", options)
    sizes = {"_train": len(train[0]), "_test": len(test[0])}
    return _DividedArrays(train, test, _read_columns(path, arrays, _PARTS, sizes))


def _is_split_name(name: str) -> bool:
    return name.startswith(("x_", "y_")) and name.endswith(_PARTS)


def _count_classes(train: AnyArray, test: AnyArray) -> int:
    """Return the count of classes of labels [n], or the count k of values of targets [n, k].

    Args:
        train: labels or targets of the training samples.
        test: labels or targets of the test samples.
    """
    if train.ndim > 1:
        return max(1, int(train.shape[1]))
    return _largest_value(train, test) + 1


def _require_alike(path: Path, name: str, noun: str, train: AnyArray, test: AnyArray) -> None:
    """Raise ``DataError`` if training and test arrays differ in samples' shape or in type.

    Args:
        path: the file or the factory, for error messages.
        name: ``x`` or ``y``, for error messages.
        noun: ``samples`` or ``targets``, for error messages.
        train: the training array.
        test: the test array.
    """
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise DataError(
            f"'{path}': {name}_train holds {noun} of shape {train.shape[1:]} and type "
            f"{train.dtype}, but {name}_test of {test.shape[1:]} and {test.dtype}"
        )


def _note_arrays(path: Path, arrays: NamedArrays, columns: NamedArrays, *, has_tests: bool) -> None:
    """Print a note on a user's arrays: types, shapes, columns, and where test samples come from.

    Args:
        path: the file or the factory.
        arrays: name -> array, as the user gave them.
        columns: name -> column, such as the user of each sample.
        has_tests: whether the user gave test samples; else they are every fifth sample of a class.
    """
    forms = [f"{name} {array.dtype} {array.shape}" for name, array in arrays.items()]
    tests = "with test samples of its own"
    if not has_tests:
        tests = "every fifth sample of a class is for tests"
    suffix = f"; columns are {', '.join(columns)}" if columns else ""
    note(f"{str(path)!r} has {', '.join(forms)}; {tests}{suffix}")


def surplus(columns: Iterable[str], declared: Iterable[str], used: str | None) -> list[str]:
    """Return the names of data columns that the scenario neither declares nor uses, sorted.

    A column has an integer for each sample, such as the number of its user.

    Args:
        columns: names of all columns in the data.
        declared: names that the source lists in ``columns``.
        used: ``data.column``; None if it is not set.
    """
    return sorted({*columns} - {*declared} - {used})


def _largest_value(train: AnyArray, test: AnyArray) -> int:
    return int(max(train.max(), test.max(initial=0)))


def _count_tokens(path: Path, train: AnyArray, test: AnyArray, vocabulary: int | None) -> int:
    """Return the count of different tokens (the vocabulary); 0 if the samples are not tokens.

    Args:
        path: the file or the factory, for error messages.
        train: training samples; int64 if they are tokens.
        test: test samples.
        vocabulary: ``data.source.vocabulary``; None for the largest token + 1.

    Raises:
        DataError: a token is outside the vocabulary, or samples with a vocabulary are no tokens.
    """
    if train.dtype != np.int64:
        if vocabulary is not None:
            raise DataError(
                f"data.source.vocabulary is {vocabulary}, which counts only for tokens; "
                f"'{path}' has samples of type {train.dtype}"
            )
        return 0
    largest = _largest_value(train, test)
    if vocabulary is None:
        return largest + 1
    if largest >= vocabulary:
        raise DataError(
            f"'{path}' has the token {largest}; with data.source.vocabulary = {vocabulary}, 0 to "
            f"{vocabulary - 1} are allowed"
        )
    return vocabulary


def _read_columns(
    path: Path, arrays: NamedArrays, parts: Sequence[str], sizes: Mapping[str, int]
) -> NamedArrays:
    """Return the arrays that are columns: an integer for each sample, such as its user.

    All arrays except samples ``x`` and targets ``y`` must be columns.

    Args:
        path: the file or the factory, for error messages.
        arrays: name -> array.
        parts: suffixes of the names, one for each part of the data: ``_train`` and ``_test``, or
            only "".
        sizes: suffix -> count of samples of the part.

    Returns:
        Name without suffix -> column, int64 [n], with the parts concatenated.

    Raises:
        DataError: an array is neither samples, targets nor a column.
    """
    samples_and_targets: list[str] = []  # names of the arrays of samples and of targets
    for suffix in parts:
        samples_and_targets += [f"x{suffix}", f"y{suffix}"]
    columns: NamedArrays = {}
    for name, array in arrays.items():
        if name in samples_and_targets:
            continue
        base, own_suffix = _split_name(name, parts)
        # the column's name in each part: a column of one part needs its counterpart in the other
        part_names = [f"{base}{suffix}" for suffix in parts]
        missing = [part_name for part_name in part_names if part_name not in arrays]
        has_size = array.shape == (sizes.get(own_suffix, -1),)
        if missing or not has_size or not np.issubdtype(array.dtype, np.integer):
            reason = f" (there is no {missing[0]!r})" if missing and own_suffix else ""
            both_parts = " in both parts" if own_suffix or len(parts) > 1 else ""
            raise DataError(
                f"'{path}': nothing uses the array {name!r}, of shape {array.shape} and type "
                f"{array.dtype}{reason}; known are {', '.join(samples_and_targets)}, and columns: "
                f"integers of shape (n,){both_parts}{nearest(name, samples_and_targets)}"
            )
        part_arrays = [arrays[part_name] for part_name in part_names]
        columns[base] = np.concatenate(part_arrays).astype(np.int64)
    return columns


def _split_name(name: str, parts: Sequence[str]) -> tuple[str, str]:
    """Split an array's name into base name and suffix, such as ``user`` and ``_train``.

    The suffix is the first of ``parts`` with which the name ends; ``?`` if there is none.
    """
    for part in parts:
        if name.endswith(part) and name != part:
            return name.removesuffix(part), part
    return name, "?"


def _read_pair(
    path: Path, arrays: NamedArrays, part: str, options: ArrayOptions
) -> LabelledSamples:
    """Check and convert the samples and the targets of the training or the test part of arrays.

    Args:
        path: the file or the factory, for error messages.
        arrays: name -> array.
        part: suffix of the names: ``_train``, ``_test``, or "" if the parts are not separate.
        options: settings of the scenario's source.

    Returns:
        Samples [n, ...], and labels (int64 [n]) or targets (float32 or int64 [n, k]). Tokens
        without targets get targets of shape [n, 0].

    Raises:
        DataError: an array is missing, or a shape, type or value is not allowed.
    """
    x_name = f"x{part}"
    y_name = f"y{part}"
    x = arrays.get(x_name)
    y = arrays.get(y_name)
    if x is not None and y is None and _is_tokens(x):
        return _convert_samples(path, x_name, x, options.layout), np.zeros((len(x), 0))
    if x is None or y is None:
        missing = x_name if x is None else y_name
        names = ", ".join(arrays) or "none"
        raise DataError(f"'{path}' has no array '{missing}'; it has {names}, and needs {_NEEDS}")
    _refuse_other_values(path, x_name, x)
    _refuse_other_values(path, y_name, y)
    _refuse_wrong_shapes(path, part, x, y)
    samples = _convert_samples(path, x_name, x, options.layout)
    return samples, _convert_targets(path, y_name, y)


def _refuse_wrong_shapes(path: Path, part: str, x: AnyArray, y: AnyArray) -> None:
    """Raise ``DataError`` if samples or targets are of an invalid shape, or their counts differ.

    Args:
        path: the file or the factory, for error messages.
        part: suffix of the arrays' names, for error messages.
        x: the samples.
        y: the labels or targets, of numbers.
    """
    x_name = f"x{part}"
    y_name = f"y{part}"
    is_real = np.issubdtype(y.dtype, np.floating)
    is_integer = y.dtype == np.bool_ or np.issubdtype(y.dtype, np.integer)
    if not (is_real or is_integer) or y.ndim not in (1, 2):
        allowed = "labels are integers of shape (n,), targets floats or integers of shape (n, k)"
        raise DataError(f"'{path}': '{y_name}' is of shape {y.shape} and type {y.dtype}; {allowed}")
    if not 2 <= x.ndim <= 4:
        allowed = "allowed are (n, features), (n, h, w) and (n, c, h, w)"
        raise DataError(f"'{path}': '{x_name}' is of shape {x.shape}; {allowed}")
    if len(x) != len(y) or not len(x):
        counts = f"'{x_name}' has {len(x)} samples and '{y_name}' {len(y)} labels"
        raise DataError(f"'{path}': {counts}; they must match and not be empty")
    if 0 in y.shape:
        raise DataError(
            f"'{path}': '{y_name}' is of shape {y.shape}; each sample needs one target at least"
        )


def _convert_targets(path: Path, name: str, y: AnyArray) -> AnyArray:
    """Convert integers [n] to labels, int64 [n]; other numbers to targets, float32 or int64 [n, k].

    Args:
        path: the file or the factory, for error messages.
        name: name of the array, for error messages.
        y: the array.

    Raises:
        DataError: a label is out of range, or a target is not finite.
    """
    is_real = np.issubdtype(y.dtype, np.floating)
    if y.ndim == 1 and not is_real:
        if y.dtype.kind == "u" and y.max() >= _MOST_CLASSES:  # may not fit into int64
            raise DataError(
                f"'{path}' has the label {y.max()}; allowed are 0 to {_MOST_CLASSES - 1}"
            )
        return check_labels(path, y.astype(np.int64), _MOST_CLASSES)
    with np.errstate(over="ignore"):  # numbers too large for float32 are rejected below
        targets = y.reshape(len(y), -1).astype(np.float32 if is_real else np.int64)
    if not np.isfinite(targets).all():
        raise DataError(f"'{path}': '{name}' has values that are not finite, or no float32")
    return targets


def _refuse_other_values(path: Path, name: str, array: AnyArray) -> None:
    """Raise ``DataError`` with advice if an array has text, objects or a non-numeric type.

    Args:
        path: the file or the factory, for error messages.
        name: name of the array, for error messages.
        array: the array.
    """
    if array.dtype.kind in _TEXT_KINDS:
        words = ", ".join(show_value(value) for value in np.unique(array.astype(str))[:3].tolist())
        advice = (
            f"it takes numbers; np.unique({name}, return_inverse=True)[1] numbers words in their "
            "order, from 0"
        )
        raise DataError(f"'{path}': '{name}' is text or objects ({words} and so on); {advice}")
    if array.dtype.kind == "V":
        raise DataError(
            f"'{path}': '{name}' is of type {array.dtype}, which numpy does not know as numbers "
            "(bfloat16, or fields by name); save plain float32 instead"
        )


def _is_tokens(x: AnyArray) -> bool:
    return np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8


def _convert_samples(path: Path, name: str, x: AnyArray, layout: Layout) -> AnyArray:
    """Convert samples to tokens, int64 [n, T], or to uint8 or float32 with channels first.

    Integers of another type than uint8 are tokens.

    Args:
        path: the file or the factory, for error messages.
        name: name of the array, for error messages.
        x: the array.
        layout: ``data.source.layout``.

    Raises:
        DataError: the shape, the type or a value is not allowed.
    """
    form = f"'{path}': '{name}' is of shape {x.shape} and type {x.dtype}"
    if _is_tokens(x):
        return _convert_tokens(form, x)
    if 0 in x.shape:
        raise DataError(f"{form}; each sample needs one number at least")
    x = _channels_first(form, name, x, layout)
    if x.dtype == np.uint8:
        return np.asarray(x, dtype=np.uint8)
    if not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{form}; allowed are uint8 and floats")
    with np.errstate(over="ignore"):  # numbers too large for float32 are rejected below
        numbers = x.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise DataError(f"'{path}': '{name}' has values that are not finite, or no float32")
    return numbers


def _convert_tokens(form: str, x: AnyArray) -> NDArray[np.int64]:
    """Convert samples of integers to tokens, int64 [n, T].

    Args:
        form: description of the array, for error messages.
        x: the array.

    Raises:
        DataError: the shape or a value is not allowed.
    """
    if x.ndim != 2 or not x.size or x.min() < 0:
        least = f", and the least is {x.min()}" if x.size else ""
        raise DataError(
            f"{form}{least}; tokens are integers from 0 of shape (n, T), and samples of "
            "numbers uint8 or floats"
        )
    if x.dtype.kind == "u" and x.max() > np.iinfo(np.int64).max:
        raise DataError(f"{form}, and the largest is {x.max()}; tokens are below 2^63")
    return x.astype(np.int64)


def _channels_first(form: str, name: str, x: AnyArray, layout: Layout) -> AnyArray:
    """Convert images [n, h, w] or [n, h, w, c] to [n, c, h, w]; return other arrays unchanged.

    Args:
        form: description of the array, for error messages.
        name: name of the array, for error messages.
        x: the array.
        layout: ``data.source.layout``; None: arrays of four dimensions are [n, c, h, w].

    Raises:
        DataError: a layout is given for an array that has not four dimensions; or none is given,
            and the shape is more likely [n, h, w, c].
    """
    if layout is not None and x.ndim != 4:
        raise DataError(
            f"data.source.layout is {layout!r}, which counts only for shapes of 4 numbers; {form}"
        )
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and layout == "channels-last":
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.ndim == 4 and layout is None and _looks_channels_last(*x.shape[1:]):
        _, first, second, last = x.shape
        raise DataError(
            f"{form}: (n, c, h, w) would be {first} channels of {second} x {last}; "
            f'say layout = "channels-last" in data.source, or save {name}.transpose(0, 3, 1, 2), '
            'or say layout = "channels-first" if that is right'
        )
    return x


def _looks_channels_last(first: int, second: int, last: int) -> bool:
    """Return whether images of a shape are likely to have their channels last.

    Args:
        first: first dimension of a sample's shape.
        second: second dimension.
        last: last dimension.
    """
    return last in _CHANNELS and first > last and second != last
