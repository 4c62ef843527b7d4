"""Source that reads a ``Dataset`` of torch into arrays.

The items are read several times, to detect items that draw random numbers or depend on the order
of reading.
"""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import Field, field_validator

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import DataError, place_of
from fedsim.common.imports import import_class, refuse_unless_allowed
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

_REREAD_ITEMS = 512  # least count of items that are read again, to detect draws in ``__getitem__``
_OTHER_SEEDS = (20_231, 77_003)  # seeds of the global generators while items are read again
_ADVICE = (
    "fedsim reads a Dataset once, so that a draw would be the same in every epoch, or another "
    "in every run: give items that "
    "follow from their index alone (draw them once, by a generator with a seed of its own), "
    "and distort images by "
    "[data.augmentation] or in a trainer of your own"
)

Item = dict[str, AnyArray]


class MapDataset(Source):
    """Samples of a map-style ``torch.utils.data.Dataset``, which is read into memory.

    An item is a pair ``(sample, target)``, or a mapping with the keys ``x`` (the sample), ``y``
    (the target) and perhaps others. Each other key names a column, which has an integer for each
    sample, such as the number of its user.

    All items are read again, in reverse order, from a second instance of the Dataset. If an item
    then differs, the Dataset draws random numbers or depends on the order of reading, and is
    refused.

    Attributes:
        factory: ``package.module:Name`` of a subclass of ``torch.utils.data.Dataset``, or of a
            function annotated to return such a Dataset.
        args: keyword arguments of the factory.
        test: keyword arguments of the factory for the Dataset of test samples, such as ``{ train =
            false }``; they are added to ``args``, and replace arguments of the same name. None: there
            is one Dataset, of which every fifth sample of a class is a test sample.
        columns: names of columns that may stay unused. The scenario is refused if the Dataset has
            any other column, except the one that ``data.column`` names.
        layout: order of the dimensions of images: ``channels-last``, [h, w, c]; or
            ``channels-first``, [c, h, w]. None: [c, h, w], but a shape that is more likely [h, w,
            c] is refused.
        vocabulary: count of different tokens, if samples are integers; None: the largest token + 1.
    """

    kind: Literal["dataset"] = "dataset"
    factory: str
    args: dict[str, object] = Field(default_factory=dict)
    test: dict[str, object] | None = None
    columns: list[str] = Field(default_factory=list)
    layout: Layout = None
    vocabulary: Vocabulary = None

    @field_validator("factory")
    @classmethod
    def _refuse_code(cls, factory: str) -> str:
        refuse_unless_allowed(factory, "data.source.factory")
        return factory

    def load(self, root: Path | None) -> Raw:
        """Call the user's factory, and read the Dataset that it returns into arrays.

        If ``test`` is given, the factory is called again for the test samples, with ``test`` as
        additional arguments.
        """
        from torch.utils.data import Dataset

        base = "torch.utils.data.Dataset"
        factory = import_class(self.factory, "data.source.factory", Dataset, base, or_function=True)
        where = f"data.source.factory is {self.factory!r}"
        arguments = {"": self.args}  # suffix of the arrays' names -> arguments of the factory
        if self.test is not None:
            arguments = {"_train": self.args, "_test": {**self.args, **self.test}}
        arrays: NamedArrays = {}
        for suffix, args in arguments.items():
            columns = _read_dataset(partial(factory, **args), where)
            for key, array in columns.items():
                arrays[f"{key}{suffix}"] = array
        name = self.factory.rpartition(":")[2]
        return raw_of(Path(name), arrays, ArrayOptions(self.vocabulary, self.layout))

    def surplus(self, raw: Raw, column: str | None) -> list[str]:
        return surplus(raw.columns, self.columns, column)


def _read_dataset(make: Callable[[], object], where: str) -> NamedArrays:
    """Read all items of a user's Dataset, and stack them by key.

    Items must depend on their index alone, because a run must be repeatable. Therefore the items
    are read again with other seeds of the global random generators and in another order.

    Args:
        make: creates the Dataset.
        where: text that names the Dataset, for error messages.

    Returns:
        Key -> array [n, ...].

    Raises:
        DataError: an item is invalid, or depends on more than its index.
    """
    with _generators_restored():
        states_before = _generator_states()
        dataset = _make_dataset(make, where)
        size = len(dataset)
        arrays = _stack(_read_items(dataset, range(size), where), where)
        states_after = _generator_states()
        # another seed of the global generators changes items that draw from them
        _seed_generators(_OTHER_SEEDS[0])
        step = max(1, size // _REREAD_ITEMS)
        sampled_indices = list(range(0, size, step))[::-1]
        repeated = _read_items(dataset, sampled_indices, where)
        _require_same(repeated, sampled_indices, arrays, where, "when it is read again")
        del dataset, repeated  # two instances at a time may take too much memory
        _require_order_independence(make, where, size, arrays)
        generators = [name for name in states_before if states_before[name] != states_after[name]]
        if generators:
            _require_own_seed(make, where, generators, states_after)
    return arrays


def _require_order_independence(
    make: Callable[[], object], where: str, size: int, arrays: NamedArrays
) -> None:
    """Raise ``DataError`` if a new instance of a Dataset, read backwards, has other items.

    This finds items that depend on what was read before.

    Args:
        make: creates the Dataset.
        where: text that names the Dataset, for error messages.
        size: count of items of the first instance.
        arrays: the stacked items of the first instance.
    """
    dataset = _make_dataset(make, where)
    if len(dataset) != size:
        raise DataError(
            f"{where}, which has {size} items at first and {len(dataset)} when it is made again; "
            f"{_ADVICE}"
        )
    reversed_indices = range(size)[::-1]
    repeated = _read_items(dataset, reversed_indices, where)
    when = "when the Dataset is made again and read in another order"
    _require_same(repeated, reversed_indices, arrays, where, when)


def _require_own_seed(
    make: Callable[[], object], where: str, generators: list[str], states_after: dict[str, bytes]
) -> None:
    """Raise ``DataError`` if a Dataset draws from a global generator that it does not seed itself.

    The Dataset is created and read again under another seed of the generators. The error is raised
    even if no item depends on the draws.

    Args:
        make: creates the Dataset.
        where: text that names the Dataset, for error messages.
        generators: names of the generators whose states the first reading changed.
        states_after: name of a generator -> its state after the first reading.
    """
    _seed_generators(_OTHER_SEEDS[1])
    dataset = _make_dataset(make, where)
    for _ in _read_items(dataset, range(len(dataset)), where):
        pass
    states_again = _generator_states()
    unseeded = [name for name in generators if states_again[name] != states_after[name]]
    if unseeded:
        raise DataError(f"{where}, which draws from {' and '.join(unseeded)}; {_ADVICE}")


class _MapStyle(Protocol):
    """Map-style Dataset of torch: it has a length, and its items are read by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


def _make_dataset(make: Callable[[], object], where: str) -> _MapStyle:
    """Create a user's Dataset by calling ``make``.

    Args:
        make: creates the Dataset.
        where: text that names the Dataset, for error messages.

    Raises:
        DataError: ``make`` raises an error, or returns a Dataset without ``__len__``.
    """
    from torch.utils.data import IterableDataset

    try:
        dataset: Any = make()
    except Exception as error:
        why = f"{type(error).__name__}: {error}{place_of(error)}"
        raise DataError(f"{where}, which cannot be made: {why}") from error
    if isinstance(dataset, IterableDataset):
        allowed = (
            "allowed is a map-style Dataset, with __len__ and __getitem__; its items may be read "
            "once and kept in a list"
        )
        raise DataError(f"{where}, an IterableDataset ({type(dataset).__name__}); {allowed}")
    if not hasattr(dataset, "__len__"):
        name = type(dataset).__name__
        raise DataError(
            f"{where}, a {name} without a length; allowed is a map-style Dataset with __len__"
        )
    made: _MapStyle = dataset
    return made


def _read_items(dataset: _MapStyle, indices: Iterable[int], where: str) -> Iterator[Item]:
    for index in indices:
        try:
            item = dataset[index]
        except Exception as error:
            why = f"{type(error).__name__}: {error}{place_of(error)}"
            raise DataError(f"{where}, whose items cannot be read: item {index}: {why}") from error
        yield _arrays_by_key(item, f"{where}, whose item {index}")


def _arrays_by_key(item: object, owner: str) -> Item:
    """Convert an item of a Dataset to arrays by key; a pair (sample, target) gets the keys x and y.

    Args:
        item: a pair, or a mapping.
        owner: text that names the item, for error messages.

    Raises:
        DataError: the item is neither a pair nor a mapping, or a value is no array.
    """
    if isinstance(item, list | tuple) and len(item) == 2:
        item = dict(zip("xy", item, strict=True))
    if not isinstance(item, Mapping):
        count = f" of {len(item)}" if isinstance(item, list | tuple) else ""
        allowed = "allowed are (sample, target) and mappings with x, y and perhaps columns"
        raise DataError(f"{owner} is a {type(item).__name__}{count}; {allowed}")
    return {str(key): _to_array(value, f"{owner} has {key!r}") for key, value in item.items()}


def _to_array(value: object, label: str) -> AnyArray:
    """Convert a value of an item, such as a tensor, to an array.

    Args:
        value: a tensor, an array, a number, a text, or nested lists of such values.
        label: text that names the value, for error messages.

    Raises:
        DataError: the value cannot be converted to an array of numbers or texts.
    """
    import torch

    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            if value.dtype == torch.bfloat16:
                value = value.float()
        array = np.asarray(value)
    except Exception as error:
        raise DataError(f"{label}, which is no array: {type(error).__name__}: {error}") from error
    if array.dtype.kind == "O":
        allowed = "allowed are tensors, arrays, numbers and lists of numbers"
        raise DataError(f"{label}, a {type(value).__name__} that is no array; {allowed}")
    return array


def _stack(items: Iterator[Item], where: str) -> NamedArrays:
    """Stack the entries of all items of a Dataset by key, and return key -> array [n, ...].

    Args:
        items: the items, each a dict of arrays.
        where: text that names the Dataset, for error messages.

    Raises:
        DataError: the keys, shapes or types of two items differ, or there are no items.
    """
    columns: dict[str, list[AnyArray]] = {}
    for index, item in enumerate(items):
        if index == 0:
            columns = {key: [] for key in item}
        if item.keys() != columns.keys():
            raise DataError(
                f"{where}, whose item {index} has {', '.join(item)}; item 0 has "
                f"{', '.join(columns)}; all must have the same"
            )
        for key, array in item.items():
            first_array = columns[key][0] if index else array
            if not _has_form_of(array, first_array):
                raise DataError(
                    f"{where}, whose item {index} has {key!r} of shape {array.shape} and type "
                    f"{array.dtype}, and item 0 of {first_array.shape} and {first_array.dtype}; "
                    "all must be alike"
                )
            columns[key].append(array)
    if not columns:
        raise DataError(f"{where}, which has no items; a data set needs one at least")
    return {key: np.stack(arrays) for key, arrays in columns.items()}


def _require_same(
    items: Iterator[Item], indices: Iterable[int], arrays: NamedArrays, where: str, when: str
) -> None:
    """Raise ``DataError`` if items differ from the items of the first reading.

    Args:
        items: the items of a later reading.
        indices: indices of the items.
        arrays: the stacked items of the first reading.
        where: text that names the Dataset, for error messages.
        when: text that names the later reading, for error messages.
    """
    for index, item in zip(indices, items, strict=True):
        for key, array in arrays.items():
            if not _is_same(array[index], item.get(key)):
                raise DataError(
                    f"{where}, whose item {index} has another {key!r} {when}; {_ADVICE}"
                )


def _has_form_of(array: AnyArray, other: AnyArray) -> bool:
    """Return whether two arrays have equal shapes, and are both text or both not text."""
    is_text = array.dtype.kind in "US"
    is_other_text = other.dtype.kind in "US"
    return array.shape == other.shape and is_text == is_other_text


def _is_same(first: AnyArray, repeated: AnyArray | None) -> bool:
    """Return whether an item's array, read again, is bitwise equal to the first reading.

    Args:
        first: the array of the first reading.
        repeated: the array of the second reading, converted to the type of ``first``; None if it
            is missing, which is a difference.
    """
    if repeated is None or not _has_form_of(repeated, first):
        return False
    return repeated.astype(first.dtype).tobytes() == np.asarray(first).tobytes()


def _generator_states() -> dict[str, bytes]:
    """Return the states of the global random generators of Python, numpy and torch.

    Returns:
        Name of the generator -> its state, as bytes to compare.
    """
    import torch

    return {
        "Python's random": pickle.dumps(random.getstate()),
        "numpy.random": pickle.dumps(np.random.get_state(legacy=False)),  # noqa: NPY002
        "torch's generator": torch.default_generator.get_state().numpy().tobytes(),
    }


def _seed_generators(seed: int) -> None:
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)


@contextmanager
def _generators_restored() -> Iterator[None]:
    """Context manager that restores the states of the global random generators at its end.

    The generators belong to Python's ``random``, numpy and torch.
    """
    import torch

    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    torch_state = torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.default_generator.set_state(torch_state)
