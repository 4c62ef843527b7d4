"""Source of the SQLite files in which TensorFlow Federated publishes its data sets."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import DataError, show_value
from fedsim.common.files import find_file, reading, require_regular
from fedsim.common.notes import note
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Source
from fedsim.toolbox.sources.examples import Feature, parse_example
from fedsim.toolbox.sources.tables import USER

CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
"""The 86 characters of TensorFlow Federated's Shakespeare, in its order."""

_PAD = 0
_SPECIAL = 4  # count of tokens for padding, unknown words, and a text's beginning and end
_FORMS = {"pixels": "images", "snippets": "characters", "tokens": "words"}
"""Name of a feature -> form of a data set whose examples have this feature."""

_FETCHED = {"emnist_all.sqlite": "femnist", "shakespeare.sqlite": "shakespeare"}
"""Name of a file -> the data set of ``fedsim data fetch`` that has it."""

# names that files give to the parts for training and tests
_SPLITS = (("train", "test"), ("all_train", "all_test"))
_DIGIT_SPLITS = ("digits_only_train", "digits_only_test")
_CLASSES = 62  # classes of FEMNIST
_DIGIT_CLASSES = 10
_PIXELS = 28 * 28

Example = dict[str, Feature]


class _Examples(NamedTuple):
    """Examples of the training or the test part of a data set.

    An example is a dict of features by name. ``users`` has the number of each example's user.
    """

    users: list[int]
    examples: list[Example]


class Tff(Source):
    """A data set of TensorFlow Federated, in its SQLite file.

    There are three data sets:

    - FEMNIST (``emnist_all.sqlite``): images of 28x28 pixels in 62 classes.
    - Shakespeare (``shakespeare.sqlite``): 86 characters as tokens, and four special tokens.
    - Stack Overflow (``stackoverflow.sqlite``): the most frequent words, and four special tokens.

    ``data.column = "user"`` with the partition ``by-user`` gives each device a user. The tokens of
    each user are divided into windows of ``length`` + 1, which overlap in one token. Tokens after
    the last full window are left out; only a user who has no full window gets a padded window.

    Attributes:
        path: the SQLite file, unpacked; a relative path starts from ``data.root``, else the working
            directory, else ``$FEDSIM_DATA``. ``fedsim data fetch`` downloads ``femnist`` and
            ``shakespeare``.
        length: T, the count of tokens of a window that a model receives; samples are int64 [n, T +
            1]. Papers have 80 for Shakespeare and 20 for Stack Overflow.
        words: number of words of Stack Overflow that have a token, the most frequent words in the
            training samples that are read; all other words share the token for unknown words.
        only_digits: whether only the digits of FEMNIST are read, which are ten classes.
        users: number of users that are read, the first users in the order of names; None: all.
        samples: largest count of examples of each user that are read for training, and for tests;
            None: all.
    """

    kind: Literal["tff"] = "tff"
    path: str
    length: int = Field(default=80, ge=1, le=100_000)
    words: int = Field(default=10_000, ge=1, le=1_000_000)
    only_digits: bool = False
    users: int | None = Field(default=None, ge=1, le=10_000_000)
    samples: int | None = Field(default=None, ge=1, le=10_000_000)

    def surplus(self, raw: Raw, column: str | None) -> list[str]:
        return []

    def load(self, root: Path | None) -> Raw:
        """Read the users' examples from the database, and convert them to images or to tokens."""
        path = find_file(self.path, root)
        if path.name in _FETCHED and not path.exists():
            raise DataError(
                f"data.source.path names '{path}', which does not exist; run `fedsim data fetch "
                f"{_FETCHED[path.name]} --root DIR`, and set data.root or FEDSIM_DATA to DIR"
            )
        with (
            reading(path, "data.source.path", "an SQLite file of TensorFlow Federated"),
            closing(_connect(path)) as connection,
        ):
            names = _split_names(path, connection, self.only_digits)
            users = self._users(connection, names)
            train, test = (self._read(path, connection, name, users) for name in names)
        if not train.examples:
            raise DataError(f"'{path}' has no training samples")
        note(
            f"{str(path)!r}: {len(users)} users, {len(train.examples)} + {len(test.examples)} "
            "examples for training and tests"
        )
        form = _form_of(path, train.examples[0])
        if form == "images":
            return self._read_images(path, train, test)
        return self._read_tokens(path, form, train, test)

    def _users(self, connection: sqlite3.Connection, names: Sequence[str]) -> dict[str, int]:
        """Return the users that are read, in the order of their names: name -> number from 0.

        Args:
            connection: the database.
            names: names under which the file has the training and the test samples.
        """
        query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name IN (?, ?) "
        query += "ORDER BY client_id LIMIT ?"
        limit = -1 if self.users is None else self.users
        rows = connection.execute(query, (*names, limit)).fetchall()
        return {str(name): number for number, (name,) in enumerate(rows)}

    def _read(
        self, path: Path, connection: sqlite3.Connection, split: str, users: dict[str, int]
    ) -> _Examples:
        """Read the training or the test examples of all users.

        Args:
            path: the file, for error messages.
            connection: the database.
            split: name under which the file has the training or the test samples.
            users: name of a user -> the user's number.

        Raises:
            DataError: an example is damaged.
        """
        part = _Examples([], [])
        for name, number in users.items():
            for message in self._messages(connection, split, name):
                try:
                    if not isinstance(message, bytes):
                        raise ValueError("it is no blob")
                    example = parse_example(message)
                except ValueError as error:
                    raise DataError(
                        f"'{path}': an example of the user {show_value(name)} is damaged: {error}"
                    ) from None
                part.users.append(number)
                part.examples.append(example)
        return part

    def _messages(self, connection: sqlite3.Connection, split: str, user: str) -> Iterator[object]:
        query = "SELECT serialized_example_proto FROM examples "
        query += "WHERE split_name = ? AND client_id = ? ORDER BY rowid LIMIT ?"
        limit = -1 if self.samples is None else self.samples
        for (message,) in connection.execute(query, (split, user, limit)):
            yield message

    def _read_images(self, path: Path, train: _Examples, test: _Examples) -> Raw:
        x_train, y_train = _to_images(path, train.examples, self.only_digits)
        x_test, y_test = _to_images(path, test.examples, self.only_digits)
        columns = {USER: np.array([*train.users, *test.users], dtype=np.int64)}
        classes = _DIGIT_CLASSES if self.only_digits else _CLASSES
        return Raw(path.stem, x_train, y_train, x_test, y_test, classes, columns=columns)

    def _read_tokens(self, path: Path, form: str, train: _Examples, test: _Examples) -> Raw:
        """Convert texts to samples, which are windows of tokens.

        The label of a window is the number of its user.

        Args:
            path: the file.
            form: type of the tokens: ``characters`` or ``words``.
            train: the examples for training.
            test: the examples for tests.
        """
        tokens: Sequence[str] = CHARACTERS
        if form == "words":
            tokens = _frequent_words(path, train.examples, self.words)
        numbers = {token: number for number, token in enumerate(tokens, 1)}
        x_train, y_train = self._cut_windows(path, form, train, numbers)
        x_test, y_test = self._cut_windows(path, form, test, numbers)
        user_of_window = np.concatenate([y_train, y_test])
        return Raw(
            path.stem,
            x_train,
            y_train,
            x_test,
            y_test,
            classes=int(user_of_window.max()) + 1,
            peak=1.0,
            vocabulary=len(numbers) + _SPECIAL,
            columns={USER: user_of_window},
        )

    def _cut_windows(
        self, path: Path, form: str, part: _Examples, numbers: dict[str, int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Divide the tokens of each user's texts into windows that overlap in one token.

        Args:
            path: the file, for error messages.
            form: type of the tokens: ``characters`` or ``words``.
            part: the examples of the training or the test part of the data set.
            numbers: token -> its number.

        Returns:
            Windows, int64 [n, length + 1], and the number of each window's user, int64 [n].
        """
        tokens_of_user: dict[int, list[int]] = {}  # all texts of a user, joined
        # the tokens have the numbers from 1; 0 is ``_PAD``
        unknown = len(numbers) + 1
        begin = unknown + 1
        end = unknown + 2
        for user, example in zip(part.users, part.examples, strict=True):
            tokens = tokens_of_user.setdefault(user, [])
            for text in _split_texts(path, example, form):
                tokens.append(begin)
                tokens += [numbers.get(token, unknown) for token in text]
                tokens.append(end)
        windows = [np.zeros((0, self.length + 1), np.int64)]
        owners = [np.zeros(0, np.int64)]
        for user, tokens in tokens_of_user.items():
            padding = max(0, self.length + 1 - len(tokens))  # above 0 if no window would be full
            padded = np.array([*tokens, *[_PAD] * padding], dtype=np.int64)
            all_windows = np.lib.stride_tricks.sliding_window_view(padded, self.length + 1)
            windows.append(all_windows[:: self.length])
            owners.append(np.full(len(windows[-1]), user, dtype=np.int64))
        return np.concatenate(windows), np.concatenate(owners)


def _connect(path: Path) -> sqlite3.Connection:
    """Open a SQLite database for reading only.

    The file may come from anyone, so SQLite does not run functions that its schema calls.
    """
    # immutable: nobody writes to the file, so it needs no locks
    address = f"file:{quote(str(require_regular(path).resolve()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _split_names(path: Path, connection: sqlite3.Connection, only_digits: bool) -> tuple[str, str]:
    """Return the names under which the file has the training and the test samples.

    Args:
        path: the file, for error messages.
        connection: the database.
        only_digits: whether the parts that have only digits are to be read.

    Raises:
        DataError: the file lacks a table or such parts.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    missing = {"examples", "client_metadata"} - tables
    if missing:
        raise DataError(
            f"'{path}' has no table {', '.join(sorted(missing))}; files of TensorFlow Federated "
            "have 'examples' and 'client_metadata'"
        )
    rows = connection.execute("SELECT DISTINCT split_name FROM client_metadata")
    splits = {str(name) for (name,) in rows}
    candidates = (_DIGIT_SPLITS,) if only_digits else _SPLITS
    for names in candidates:
        if set(names) <= splits:
            return names
    allowed = " or ".join(f"'{train}' and '{test}'" for train, test in candidates)
    raise DataError(f"'{path}' has the parts {', '.join(sorted(splits))}; expected are {allowed}")


def _form_of(path: Path, example: Example) -> str:
    for feature, form in _FORMS.items():
        if feature in example:
            return form
    raise DataError(
        f"'{path}' has examples of {', '.join(sorted(example))[:200]}; allowed are those with one "
        f"of {', '.join(_FORMS)}"
    )


def _to_images(
    path: Path, examples: list[Example], only_digits: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Convert examples of FEMNIST to images and labels.

    Args:
        path: the file, for error messages.
        examples: the examples, with the features ``pixels`` (0 to 1) and ``label``.
        only_digits: whether labels must be below 10.

    Returns:
        Images, uint8 [n, 1, 28, 28], and labels, int64 [n].

    Raises:
        DataError: a count of pixels, a pixel or a label is not allowed.
    """
    classes = _DIGIT_CLASSES if only_digits else _CLASSES
    x = np.zeros((len(examples), _PIXELS), np.uint8)
    y = np.zeros(len(examples), np.int64)
    for index, example in enumerate(examples):
        pixels = np.asarray(example.get("pixels", ()), dtype=np.float32)
        label = np.asarray(example.get("label", ()))
        if pixels.shape != (_PIXELS,) or label.shape != (1,):
            raise DataError(
                f"'{path}' has an example of {pixels.size} pixels and {label.size} labels; "
                f"{_PIXELS} and 1 are expected"
            )
        if not (pixels >= 0).all() or not (pixels <= 1).all():
            raise DataError(f"'{path}' has pixels outside of 0 to 1")
        if not 0 <= int(label[0]) < classes:
            raise DataError(f"'{path}' has the label {label[0]}; allowed are 0 to {classes - 1}")
        x[index] = np.floor(pixels * 255 + 0.5)  # rounds half up
        y[index] = label[0]
    return x.reshape(-1, 1, 28, 28), y


def _split_texts(path: Path, example: Example, form: str) -> Iterator[Sequence[str]]:
    """Yield the tokens of each text of an example.

    Args:
        path: the file, for error messages.
        example: the features of the example.
        form: ``words`` splits a text at blanks; ``characters`` yields the text itself.

    Raises:
        DataError: the example has numbers in place of texts.
    """
    feature = "tokens" if form == "words" else "snippets"
    values = example.get(feature, [])
    if not isinstance(values, list):
        raise DataError(f"'{path}' has numbers as {feature!r}; texts are expected")
    for value in values:
        text = value.decode("utf-8", "replace")
        if form == "words":
            yield text.split()
        else:
            yield text


def _frequent_words(path: Path, examples: list[Example], count: int) -> list[str]:
    """Return the ``count`` most frequent words of examples, the most frequent first.

    Equally frequent words are in alphabetic order.
    """
    counts: Counter[str] = Counter()
    for example in examples:
        for words in _split_texts(path, example, "words"):
            counts.update(words)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return ordered[:count]
