"""The user's own arrays as a data set: each array's name, shape and type has a meaning, or is
refused by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import DataError, nearest, shown
from fedsim.common.notes import note
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import checked_labels, every_fifth

_MOST_CLASSES = 100_000  # labels index tables a class wide: of each device's samples, of outputs
_CHANNELS = (1, 3, 4)  # of images: grey, colours, colours with transparency
_PARTS = ("_train", "_test")
_NEEDS = "x_train, y_train, x_test and y_test, or x and y"
_TEXT = "USOT"  # numpy's kinds of arrays of text, and of objects

Vocabulary = Annotated[int | None, Field(ge=2, le=10_000_000)]
Layout = Literal["channels-first", "channels-last"] | None
NamedArrays = dict[str, NDArray[Any]]


class Meaning(NamedTuple):
    """The meaning that a scenario gives to its arrays.

    Attributes:
        vocabulary: number of tokens; None: up to the largest that is there.
        layout: the place of the channels in samples of three dimensions; None: first, if the
            shape does not contradict.
    """

    vocabulary: int | None = None
    layout: Layout = None


def raw_of(path: Path, arrays: NamedArrays, meaning: Meaning) -> Raw:
    """The data set of arrays that are named as in ``Npz``.

    Args:
        path: the file or the factory, for messages.
        arrays: all arrays that are there, by name.
        meaning: what the scenario says of them.

    Raises:
        DataError: an array is missing, malformed, or of a name that has no meaning.
    """
    split = sorted(
        name for name in arrays if name.endswith(_PARTS) and name[0] in "xy" and name[1] == "_"
    )
    whole = [name for name in ("x", "y") if name in arrays]
    if split and whole:
        both = f"it has {', '.join(whole)}, and {', '.join(split)} too"
        raise DataError(f"'{path}': {both}; allowed are {_NEEDS}, not both")
    if whole:
        x, y = _pair(path, arrays, "", meaning)
        columns = _columns(path, arrays, ("",), {"": len(x)})
        test = every_fifth(y if y.ndim == 1 else np.zeros(len(y), np.int64))
        x_train = x[~test]
        y_train = y[~test]
        x_test = x[test]
        y_test = y[test]
        columns = {
            name: np.concatenate([each[~test], each[test]]) for name, each in columns.items()
        }
    else:
        x_train, y_train = _pair(path, arrays, "_train", meaning)
        x_test, y_test = _pair(path, arrays, "_test", meaning)
        columns = _columns(path, arrays, _PARTS, {"_train": len(x_train), "_test": len(x_test)})
    for name, train, tested in (("x", x_train, x_test), ("y", y_train, y_test)):
        if train.shape[1:] != tested.shape[1:] or train.dtype != tested.dtype:
            what = "samples" if name == "x" else "targets"
            held = f"{what} of shape {train.shape[1:]} and type {train.dtype}"
            other = f"of {tested.shape[1:]} and {tested.dtype}"
            raise DataError(f"'{path}': {name}_train holds {held}, but {name}_test {other}")
    classes = max(1, y_train.shape[1]) if y_train.ndim > 1 else _most(y_train, y_test) + 1
    tokens = _tokens(path, x_train, x_test, meaning.vocabulary)
    peak = 255.0 if x_train.dtype == np.uint8 else 1.0
    held = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
    tests = (
        "every fifth sample of a class is for tests" if whole else "with test samples of its own"
    )
    used = f"; columns are {', '.join(columns)}" if columns else ""
    note(f"{str(path)!r} has {held}; {tests}{used}")
    return Raw(path.stem, x_train, y_train, x_test, y_test, classes, peak, tokens, columns)


def surplus(columns: Iterable[str], declared: Iterable[str], used: str | None) -> list[str]:
    """The columns that are neither ``declared`` by the source nor ``used`` as ``data.column``."""
    return sorted({*columns} - {*declared} - {used})


def _most(train: NDArray[Any], test: NDArray[Any]) -> int:
    return int(max(train.max(), test.max(initial=0)))


def _tokens(path: Path, train: NDArray[Any], test: NDArray[Any], vocabulary: int | None) -> int:
    """The number of tokens; 0 of samples that are no tokens."""
    if train.dtype != np.int64:
        if vocabulary is not None:
            what = f"'{path}' has samples of type {train.dtype}"
            raise DataError(
                f"data.source.vocabulary is {vocabulary}, which counts only for tokens; {what}"
            )
        return 0
    largest = _most(train, test)
    tokens = vocabulary or largest + 1
    if largest >= tokens:
        allowed = f"with data.source.vocabulary = {tokens}, 0 to {tokens - 1} are allowed"
        raise DataError(f"'{path}' has the token {largest}; {allowed}")
    return tokens


def _columns(
    path: Path, arrays: NamedArrays, parts: Sequence[str], sizes: Mapping[str, int]
) -> NamedArrays:
    """Further integers of each sample, those of all parts one after the other; any other array
    is refused.
    """
    roles = [f"{name}{part}" for part in parts for name in "xy"]
    further = [name for name in arrays if name not in roles]
    columns: NamedArrays = {}
    for name in further:
        base, part = _base(name, parts)
        peers = [f"{base}{each}" for each in parts]
        missing = [peer for peer in peers if peer not in arrays]
        held = arrays[name]
        is_column = held.shape == (sizes.get(part, -1),) and np.issubdtype(held.dtype, np.integer)
        if missing or not is_column:
            kind = f"of shape {held.shape} and type {held.dtype}"
            lacks = f" (there is no {missing[0]!r})" if missing and part else ""
            columns_are = (
                "columns: integers of shape "
                f"(n,){' in both parts' if part or len(parts) > 1 else ''}"
            )
            known = f"known are {', '.join(roles)}, and {columns_are}{nearest(name, roles)}"
            raise DataError(f"'{path}': nothing uses the array {name!r}, {kind}{lacks}; {known}")
        columns[base] = np.concatenate([arrays[peer] for peer in peers]).astype(np.int64)
    return columns


def _base(name: str, parts: Sequence[str]) -> tuple[str, str]:
    """A column's name without its part, and the part; a part that it lacks is ``"?"``."""
    for part in parts:
        if name.endswith(part) and name != part:
            return name.removesuffix(part), part
    return name, "?"


def _pair(
    path: Path, arrays: NamedArrays, part: str, meaning: Meaning
) -> tuple[NDArray[Any], NDArray[Any]]:
    x_name = f"x{part}"
    y_name = f"y{part}"
    x = arrays.get(x_name)
    y = arrays.get(y_name)
    if x is not None and y is None and _is_tokens(x):
        return _samples(path, x_name, x, meaning.layout), np.zeros((len(x), 0))
    if x is None or y is None:
        lacks = x_name if x is None else y_name
        has = ", ".join(arrays) or "none"
        raise DataError(f"'{path}' has no array '{lacks}'; it has {has}, and needs {_NEEDS}")
    for name, array in ((x_name, x), (y_name, y)):
        _refuse_other_values(path, name, array)
    real = np.issubdtype(y.dtype, np.floating)
    if (
        not (real or y.dtype == np.bool_ or np.issubdtype(y.dtype, np.integer))
        or not 1 <= y.ndim <= 2
    ):
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
    samples = _samples(path, x_name, x, meaning.layout)
    if y.ndim == 1 and not real:
        if y.dtype.kind == "u" and y.max() >= _MOST_CLASSES:  # it may not fit into int64
            raise DataError(
                f"'{path}' has the label {y.max()}; allowed are 0 to {_MOST_CLASSES - 1}"
            )
        return samples, checked_labels(path, y.astype(np.int64), _MOST_CLASSES)
    with np.errstate(over="ignore"):
        targets = y.reshape(len(y), -1).astype(np.float32 if real else np.int64)
    if not np.isfinite(targets).all():
        raise DataError(f"'{path}': '{y_name}' has values that are not finite, or no float32")
    return samples, targets


def _refuse_other_values(path: Path, name: str, array: NDArray[Any]) -> None:
    """Refuse text, objects and types that are unknown to numpy, with advice."""
    if array.dtype.kind in _TEXT:
        words = ", ".join(shown(value) for value in np.unique(array.astype(str))[:3].tolist())
        advice = (
            f"it takes numbers; np.unique({name}, return_inverse=True)[1] numbers words in their "
            "order, from 0"
        )
        raise DataError(f"'{path}': '{name}' is text or objects ({words} and so on); {advice}")
    if array.dtype.kind == "V":
        unknown = (
            f"of type {array.dtype}, which numpy does not know as numbers (bfloat16, or fields by "
            "name)"
        )
        raise DataError(f"'{path}': '{name}' is {unknown}; save plain float32 instead")


def _is_tokens(x: NDArray[Any]) -> bool:
    return np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8


def _samples(path: Path, name: str, x: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Samples as models take them: tokens int64 [n, T], else uint8 or float32, channels first."""
    held = f"'{path}': '{name}' is of shape {x.shape} and type {x.dtype}"
    if _is_tokens(x):
        if x.ndim != 2 or not x.size or x.min() < 0:
            held += f", and the least is {x.min()}" if x.size else ""
            advice = (
                "tokens are integers from 0 of shape (n, T), and samples of numbers uint8 or floats"
            )
            raise DataError(f"{held}; {advice}")
        if x.dtype.kind == "u" and x.max() > np.iinfo(np.int64).max:
            raise DataError(f"{held}, and the largest is {x.max()}; tokens are below 2^63")
        return x.astype(np.int64)
    if 0 in x.shape:
        raise DataError(f"{held}; each sample needs one number at least")
    x = _channels_first(held, name, x, layout)
    if x.dtype == np.uint8:
        return np.asarray(x, dtype=np.uint8)
    if not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{held}; allowed are uint8 and floats")
    with np.errstate(over="ignore"):
        numbers = x.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise DataError(f"'{path}': '{name}' has values that are not finite, or no float32")
    return numbers


def _channels_first(held: str, name: str, x: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Images [n, c, h, w]; ``DataError`` where the shape is more likely [n, h, w, c] and no
    layout is stated.
    """
    if layout is not None and x.ndim != 4:
        raise DataError(
            f"data.source.layout is {layout!r}, which counts only for shapes of 4 numbers; {held}"
        )
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and layout == "channels-last":
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.ndim == 4 and layout is None and _looks_channels_last(*x.shape[1:]):
        _, first, second, last = x.shape
        read = f"(n, c, h, w) would be {first} channels of {second} x {last}"
        advice = (
            f'say layout = "channels-last" in data.source, or save {name}.transpose(0, 3, 1, 2)'
        )
        raise DataError(
            f'{held}: {read}; {advice}, or say layout = "channels-first" if that is right'
        )
    return x


def _looks_channels_last(first: int, second: int, last: int) -> bool:
    """Whether the last number is one of channels, and smaller than the others would allow for an
    image.
    """
    return last in _CHANNELS and first > last and second != last
