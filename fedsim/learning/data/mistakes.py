"""Checks of the values that users' sources, partitions and shifts of data return.

Each function takes the returned value, and then the arguments of the user's method. It returns a
text that describes the first mistake, or "" if there is none.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import show_value
from fedsim.common.returns import find_outside
from fedsim.learning.data.federated import Dataset, FederatedData, Pool, Raw, Shard


class DeclaredSource(Protocol):
    """Interface of a data source that may declare the shape and classes of its samples."""

    @property
    def known(self) -> tuple[tuple[int, ...], int] | None:
        """Shape of a sample and number of classes; None if they follow from the data."""

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """Return the shape of a sample and the number of classes.

        Args:
            root: the folder from which the source loads the data.
        """


# checks of a source's data


def find_wrong_raw(raw: Raw, source: DeclaredSource, root: Path | None) -> str:
    """Check the data that a user's source has returned, and describe the first mistake.

    Args:
        raw: the data.
        source: the source, whose declared shape and classes must agree with the data.
        root: the folder from which the source has loaded the data.

    Returns:
        A text on the first mistake, such as a label that is out of range; "" if there is none.
    """
    checks = (
        _find_wrong_number,
        _find_wrong_array,
        _find_wrong_shape,
        _find_wrong_label,
        _find_wrong_column,
    )
    for find in checks:
        mistake = find(raw)
        if mistake:
            return mistake
    return _find_contradiction(raw, source, root)


def find_wrong_sizes(sizes: tuple[tuple[int, ...], int], *_: object, **__: object) -> str:
    """Check the result of ``shape_and_classes`` of a user's source, and describe a mistake.

    The arguments after ``sizes`` are the arguments of that call. They are not used.

    Args:
        sizes: the result: the shape of a sample, and the count of classes.

    Returns:
        A text that shows the result if one of its numbers is below 1; otherwise "".
    """
    shape, classes = sizes
    return show_value(sizes) if min(*shape, classes) < 1 else ""


def _find_wrong_number(raw: Raw) -> str:
    for name, least in (("classes", 1), ("vocabulary", 0)):
        value = getattr(raw, name)
        if not isinstance(value, int | np.integer) or value < least:
            return f"a Raw with {name} = {show_value(value)}"
    return f"a Raw with peak = {show_value(raw.peak)}" if find_outside(above=0.0)(raw.peak) else ""


def _find_wrong_array(raw: Raw) -> str:
    for name in ("x_train", "y_train", "x_test", "y_test"):
        array: object = getattr(raw, name)
        if not isinstance(array, np.ndarray) or not array.ndim or array.dtype.kind not in "biuf":
            return f"a Raw whose {name} is {show_value(array)}"
        mistake = find_outside()(array) if array.dtype.kind == "f" else ""
        if mistake:
            return f"a Raw whose {name} is {mistake}"
    return ""


def _find_wrong_shape(raw: Raw) -> str:
    """Describe the first array without samples, or of a wrong length or shape; "" if none is."""
    if not len(raw.y_train):
        return "a Raw without training samples"
    for part, x, y in (("train", raw.x_train, raw.y_train), ("test", raw.x_test, raw.y_test)):
        if len(x) != len(y):
            return f"a Raw with {len(x)} samples x_{part} and {len(y)} labels y_{part}"
    for name, train, test in (("x", raw.x_train, raw.x_test), ("y", raw.y_train, raw.y_test)):
        train_shape = train.shape[1:]
        test_shape = test.shape[1:]
        if train_shape != test_shape:
            return (
                f"a Raw with {name}_train of shape {train_shape} a sample, {name}_test {test_shape}"
            )
    return ""


def _find_wrong_label(raw: Raw) -> str:
    """Describe the first label or token that is out of range; "" if there is none."""
    find_wrong_class = find_outside(least=0, most=raw.classes - 1)
    find_wrong_token = find_outside(least=0, most=raw.vocabulary - 1)
    for part, x, y in (("train", raw.x_train, raw.y_train), ("test", raw.x_test, raw.y_test)):
        # a y of another form holds no labels, but targets such as the values of a regression
        has_labels = y.ndim == 1 and y.dtype == np.int64
        wrong_label = find_wrong_class(y) if has_labels else ""
        if wrong_label:
            return f"a Raw of {raw.classes} classes whose y_{part} is {wrong_label}"
        wrong_token = find_wrong_token(x) if raw.vocabulary else ""
        if wrong_token:
            return f"a Raw of {raw.vocabulary} tokens whose x_{part} is {wrong_token}"
    return ""


def _find_wrong_column(raw: Raw) -> str:
    count = len(raw.y_train) + len(raw.y_test)
    for name, column in raw.columns.items():
        shape = np.shape(column)
        if shape != (count,):
            return f"a Raw of {count} samples whose column {name!r} has the shape {shape}"
    return ""


def _find_contradiction(raw: Raw, source: DeclaredSource, root: Path | None) -> str:
    """Return a text if the data contradict the shape and classes that the source declares, else "".

    Args:
        raw: the data.
        source: the source.
        root: the folder from which the source has loaded the data.
    """
    # Only a method that the user has overridden is a declaration. The method of fedsim's base
    # classes returns ``known``, or loads the data.
    is_overridden = not type(source).shape_and_classes.__module__.startswith("fedsim.")
    name = "shape_and_classes" if is_overridden else "known"
    declared = source.shape_and_classes(root) if is_overridden else source.known
    if declared is None:
        return ""
    declared_shape = tuple(declared[0])
    declared_classes = declared[1]
    shape = tuple(raw.x_train.shape[1:])
    if shape == declared_shape and raw.classes == declared_classes:
        return ""
    return (
        f"a Raw of samples of shape {shape} and {raw.classes} classes, but {name!r} says "
        f"{declared_shape} and {declared_classes}"
    )


# checks of the shards that a partition or a shift of data makes


def find_wrong_split(
    data: FederatedData,
    partition: object,
    dataset: Dataset,
    devices: int,
    streams: object,
) -> str:
    """Check the data that a user's partition has returned, and describe the first mistake.

    The arguments after ``data`` are the arguments of the call of ``Partition.split``.

    Args:
        data: the data of all devices, as the partition has returned them.
        partition: not used.
        dataset: not used.
        devices: count of devices, each of which must have a shard.
        streams: not used.

    Returns:
        A text on the first mistake, such as a device without samples; "" if there is none.
    """
    if len(data.shards) != devices:
        return f"{len(data.shards)} shards for {devices} devices"
    mistake = _find_wrong_shard(data.pool, range(devices), data.shards)
    if mistake:
        return mistake
    truth: object = data.truth
    if truth is None:
        return ""
    if isinstance(truth, np.ndarray) and truth.dtype.kind in "iu" and truth.shape == (devices,):
        return ""
    return f"data whose 'truth' is {show_value(truth)}"


def find_wrong_change(
    changes: Sequence[object],
    shift: object,
    data: FederatedData,
    occasion: int,
    candidates: NDArray[np.int64],
    streams: object,
) -> str:
    """Check the changes that a user's shift of data has made, and describe the first mistake.

    The arguments after ``changes`` are the arguments of the call of ``Shift.apply``.

    Args:
        changes: the changes that the shift has returned.
        shift: not used.
        data: the data of all devices, after the shift.
        occasion: not used.
        candidates: the devices that were allowed to change, int64 [n].
        streams: not used.

    Returns:
        A text on the first mistake, such as a device that is no candidate; "" if there is none.
    """
    unchanged = {*candidates.tolist()}
    for change in changes:
        device = getattr(change, "device", None)
        if device is None:
            return f"{show_value(change)} among the changes"
        if device not in unchanged:
            return f"a change of device {device!r}, which is no candidate or has changed already"
        unchanged.remove(device)
        version = getattr(change, "version", None)
        if version != data.version(device):
            return (
                f"a change of device {device} to version {version!r}, which replace_shard has "
                "not returned"
            )
        mistake = _find_wrong_shard(data.pool, [device], [data.current(device)])
        if mistake:
            return mistake
    return ""


def _find_wrong_shard(pool: Pool, devices: Iterable[int], shards: Sequence[object]) -> str:
    """Return a text on the first mistake in devices' shards (indices, label map); "" if none."""
    for device, shard in zip(devices, shards, strict=True):
        if not isinstance(shard, Shard):
            return f"{show_value(shard)} as the shard of device {device}"
        # A device other than 0 may have only test samples, as ``population.tested_only`` makes some
        # devices that never train.
        if not len(shard.train) and (device == 0 or not len(shard.test)):
            return f"no training sample for device {device}"
        for name, index in (("train", shard.train), ("test", shard.test)):
            mistake = _find_wrong_index(np.asarray(index), len(pool.y))
            if mistake:
                owner = f"the {name} indices of device {device}"
                return f"{mistake} among {owner}, of a pool of {len(pool.y)} samples"
        if len(np.unique(shard.test)) < len(shard.test):
            return f"a test index twice for device {device}"
        if shard.label_map is not None and _is_wrong_map(shard.label_map, pool.classes):
            labels = show_value(shard.label_map)
            return f"the label map {labels} for device {device}, of {pool.classes} classes"
    return ""


def _is_wrong_map(labels: AnyArray, classes: int) -> bool:
    return labels.shape != (classes,) or bool(_find_wrong_index(labels, classes))


def _find_wrong_index(index: AnyArray, end: int) -> str:
    """Check an array of indices from 0 to ``end`` - 1.

    Returns:
        A text with the first entry that is out of range, or with the array's type and shape if it
        is no array of integers [n]; "" if there is no mistake.
    """
    if index.ndim != 1 or (len(index) and index.dtype.kind not in "iu"):
        return f"an array of {index.dtype} of shape {index.shape}"
    is_outside = (index < 0) | (index >= end)
    return str(index[is_outside][0]) if is_outside.any() else ""
