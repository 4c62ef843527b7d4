"""Source of the JSON files of LEAF, in which samples belong to users (Caldas et al. 2018)."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import DataError, nearest, show_value
from fedsim.common.files import find_file, read_json
from fedsim.common.notes import note
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Source
from fedsim.toolbox.sources.tables import USER, Dimension, reshape_samples

_KEYS = ("users", "num_samples", "user_data")

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare, in LEAF's order."""

_CHARACTER_NUMBERS = {character: number for number, character in enumerate(CHARACTERS)}
# LEAF's code replaces unknown characters by the last character
_UNKNOWN_CHARACTER = len(CHARACTERS) - 1

UserArray = NDArray[np.float32] | NDArray[np.int64]
UserSamples = list[tuple[str, UserArray, list[object]]]
"""Name, samples [n, d] and labels of each user, in the order of the files.

Samples are float32, or int64 for texts.
"""


class Leaf(Source):
    """LEAF's files of users: ``train/*.json`` and ``test/*.json``, or one file.

    Source: Caldas et al., "LEAF: a benchmark for federated settings" (2018), whose scripts write
    ``users``, ``num_samples`` and ``user_data`` with ``x`` and ``y`` of each user. ``data.column =
    "user"`` with the partition ``by-user`` gives each device a user. Users who have only test
    samples (LEAF's split by user) are last. Samples are lists of numbers (FEMNIST, synthetic), or
    texts of equal length whose label is the next character (Shakespeare). The characters of texts
    become tokens, and their labels become classes, both numbered 0..79 in LEAF's order.

    Attributes:
        path: the folder with ``train`` and ``test``; or a JSON file, in which every fifth sample of
            each user is a test sample. A relative path starts from ``data.root``, else the working
            directory, else ``$FEDSIM_DATA``.
        shape: shape of a sample, such as [28, 28] for FEMNIST; None: a list of numbers.
    """

    kind: Literal["leaf"] = "leaf"
    path: str
    shape: list[Dimension] | None = None

    def surplus(self, raw: Raw, column: str | None) -> list[str]:
        return []

    def load(self, root: Path | None) -> Raw:
        """Read the users' samples from LEAF's folders ``train`` and ``test``, or from one file.

        In a single file, every fifth sample of each user is a test sample. Samples are numbers with
        labels, or texts with the next character.
        """
        path = find_file(self.path, root)
        if path.is_dir():
            train = _read_folder(path / "train")
            test = _read_folder(path / "test")
        else:
            train, test = _split_every_fifth(_read_users(path))
        if not train:
            raise DataError(f"'{path}' has no users with training samples")
        number_of_user: dict[str, int] = {}
        for name, _, _ in (*train, *test):
            number_of_user.setdefault(name, len(number_of_user))
        x_train, labels_train, users_train = _join_users(path, train, number_of_user)
        x_test, labels_test, users_test = _join_users(path, test, number_of_user)
        if not len(x_test):
            x_test = np.zeros((0, *x_train.shape[1:]), x_train.dtype)
        _require_alike(path, x_train, x_test)
        labels = [*labels_train, *labels_test]
        vocabulary = 0  # samples are numbers
        if x_train.dtype == np.int64:  # samples are texts
            vocabulary = len(CHARACTERS)
            y, classes = _next_characters(path, labels)
        else:
            y, classes = _number_labels(path, labels)
        x = reshape_samples(path, np.concatenate([x_train, x_test]), self.shape)
        train_size = len(x_train)
        test_only_users = len({name for name, *_ in test} - {name for name, *_ in train})
        note(
            f"{str(path)!r}: {len(x)} samples of {len(number_of_user)} users, {test_only_users} of "
            "whom have test samples alone"
        )
        columns = {USER: np.array([*users_train, *users_test], dtype=np.int64)}
        return Raw(
            path.stem,
            x[:train_size],
            y[:train_size],
            x[train_size:],
            y[train_size:],
            classes,
            peak=1.0,
            vocabulary=vocabulary,
            columns=columns,
        )


def _require_alike(path: Path, x_train: AnyArray, x_test: AnyArray) -> None:
    """Raise ``DataError`` if training and test samples differ in type or in length."""
    if x_train.dtype != x_test.dtype:
        raise DataError(f"'{path}' has texts and numbers as samples; allowed are one of both")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(
            f"'{path}': training samples have {x_train.shape[1]} numbers, test samples "
            f"{x_test.shape[1]}"
        )


def _read_folder(folder: Path) -> UserSamples:
    """Read the users of all JSON files of a folder, in the order of the files' names.

    Returns:
        For each user a tuple: name, samples [n, d] and labels.

    Raises:
        DataError: the folder has no JSON files, or a file is not as LEAF writes it.
    """
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not paths:
        raise DataError(
            f"data.source.path: '{folder}' has no JSON files; LEAF's folder has train/*.json and "
            "test/*.json"
        )
    users: UserSamples = []
    for path in paths:
        users += _read_users(path)
    return users


def _read_users(path: Path) -> UserSamples:
    """Read the users of a JSON file of LEAF.

    Returns:
        For each user a tuple: name, samples [n, d] and labels.

    Raises:
        DataError: the file cannot be read, or is not as LEAF writes it.
    """
    try:
        table = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"data.source.path: '{path}' cannot be read as JSON: {error}") from None
    if not isinstance(table, dict):
        raise DataError(f"'{path}' holds no object with {', '.join(_KEYS)}")
    for key in _KEYS:
        if key not in table:
            names = [str(name) for name in table]
            raise DataError(
                f"'{path}' has no entry {key!r}; it has {', '.join(names[:8])}{nearest(key, names)}"
            )
    data = table["user_data"]
    sizes = dict(zip(table["users"], table["num_samples"], strict=False))
    users: UserSamples = []
    for name in table["users"]:
        if not isinstance(data, dict) or name not in data:
            raise DataError(
                f"'{path}': 'user_data' has no user {show_value(name)}, and 'users' lists it"
            )
        users.append(_parse_user(path, str(name), data[name], sizes.get(name)))
    return users


def _parse_user(
    path: Path, name: str, data: object, size: object
) -> tuple[str, UserArray, list[object]]:
    """Check and convert the data of a user in a file of LEAF.

    Args:
        path: the file, for error messages.
        name: name of the user.
        data: the user's entry, which should have lists ``x`` and ``y``.
        size: the count of samples that the file states; None if it states none.

    Returns:
        Name, samples (float32 [n, d]; int64 for texts) and labels of the user.

    Raises:
        DataError: the entry is malformed, or the counts do not agree.
    """
    owner = f"'{path}': user {name!r}"
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise DataError(f"{owner} needs lists 'x' and 'y'")
    labels = data["y"]
    if not isinstance(labels, list) or not isinstance(data["x"], list):
        raise DataError(f"{owner} needs lists 'x' and 'y'")
    if len(data["x"]) != len(labels) or size not in (len(labels), None):
        raise DataError(
            f"{owner} has {len(data['x'])} samples, {len(labels)} labels, and {show_value(size)} in "
            "'num_samples'; the three must agree"
        )
    if any(isinstance(sample, str) for sample in data["x"]):
        return name, _number_characters(owner, data["x"]), labels
    try:
        x = np.array(data["x"], dtype=np.float64).astype(np.float32)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{owner}: samples are no lists of numbers of one length: {error}"
        ) from None
    if len(labels) and x.ndim == 1:  # samples of one number each
        x = x[:, None]
    if not np.isfinite(x).all():
        raise DataError(f"{owner} has a number that is not finite, or no float32")
    if len(labels):
        x = x.reshape(len(labels), -1)
    return name, x, labels


def _number_characters(owner: str, texts: list[object]) -> NDArray[np.int64]:
    """Replace the characters of texts by their numbers in LEAF's order, int64 [n, length].

    Args:
        owner: text that names the user, for error messages.
        texts: the texts, which must have equal lengths.

    Raises:
        DataError: a text is empty or no text, or lengths differ.
    """
    rows = []
    for text in texts:
        if not isinstance(text, str) or not text or len(text) != len(str(texts[0])):
            raise DataError(
                f"{owner} has the sample {show_value(text)}; texts are all of one length, as in LEAF's "
                "Shakespeare: number others first"
            )
        rows.append([_CHARACTER_NUMBERS.get(character, _UNKNOWN_CHARACTER) for character in text])
    return np.array(rows, dtype=np.int64)


def _next_characters(path: Path, labels: list[object]) -> tuple[NDArray[np.int64], int]:
    """Replace labels that are single characters by their numbers in LEAF's order.

    Args:
        path: the file, for error messages.
        labels: the labels of all samples.

    Returns:
        The numbers, int64 [n], and the count of classes.

    Raises:
        DataError: a label is not a single character.
    """
    for label in labels:
        if not isinstance(label, str) or len(label) != 1:
            raise DataError(
                f"'{path}' has the label {show_value(label)} of a text; a single character is expected"
            )
    numbers = [_CHARACTER_NUMBERS.get(str(label), _UNKNOWN_CHARACTER) for label in labels]
    return np.array(numbers, dtype=np.int64), len(CHARACTERS)


def _split_every_fifth(users: UserSamples) -> tuple[UserSamples, UserSamples]:
    """Split each user's samples into training and test samples; every fifth is for tests.

    Args:
        users: name, samples and labels of each user.

    Returns:
        Users with their training samples, and users with their test samples. A user without
        training samples is missing in the first list, a user without test samples in the second.
    """
    train: UserSamples = []
    test: UserSamples = []
    for name, x, labels in users:
        is_test = np.arange(len(labels)) % 5 == 4
        for part, mask in ((train, ~is_test), (test, is_test)):
            indices = np.flatnonzero(mask).tolist()
            if indices:
                part.append((name, x[indices], [labels[index] for index in indices]))
    return train, test


def _join_users(
    path: Path, users: UserSamples, number_of_user: dict[str, int]
) -> tuple[AnyArray, list[object], list[int]]:
    """Concatenate the samples of all users.

    Args:
        path: the file, for error messages.
        users: name, samples [n, d] and labels of each user.
        number_of_user: name of a user -> the user's number.

    Returns:
        Samples [n, d], labels [n], and the number of each sample's user [n].

    Raises:
        DataError: samples of two users differ in length or in type.
    """
    samples: list[UserArray] = []
    labels: list[object] = []
    owners: list[int] = []
    for name, x, y in users:
        if not len(y):  # a user without samples has no shape that could be compared
            continue
        if samples and samples[0].shape[1] != x.shape[1]:
            raise DataError(
                f"'{path}': samples of user {name!r} have {x.shape[1]} numbers, those before "
                f"{samples[0].shape[1]}"
            )
        if samples and samples[0].dtype != x.dtype:
            raise DataError(f"'{path}': user {name!r} has texts, others numbers, or the reverse")
        samples.append(x)
        labels += y
        owners += [number_of_user[name]] * len(y)
    if not samples:
        return np.zeros((0, 1), np.float32), [], []
    return np.concatenate(samples), labels, owners


def _number_labels(path: Path, labels: list[object]) -> tuple[NDArray[np.int64], int]:
    """Convert labels to numbers: integers stay as they are, words are numbered in alphabetic order.

    Args:
        path: the file, for error messages.
        labels: the labels of all samples.

    Returns:
        The numbers, int64 [n], and the count of classes, 2 at least.

    Raises:
        DataError: a label is negative, or labels are of several types.
    """
    types = {type(label) for label in labels}
    if types == {int}:
        numbers = np.array(labels, dtype=np.int64)
        if numbers.min() < 0:
            raise DataError(f"'{path}' has the label {numbers.min()}; integers count from 0")
        return numbers, max(2, int(numbers.max()) + 1)
    if types == {str}:
        words, numbers = np.unique(np.array(labels, dtype=object), return_inverse=True)
        return numbers.astype(np.int64), max(2, len(words))
    names = ", ".join(sorted(kind.__name__ for kind in types))
    raise DataError(f"'{path}' has labels of the types {names}; allowed are integers, or words")
