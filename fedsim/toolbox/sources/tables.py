"""Sources of tables: CSV and Parquet files with a column for each feature, a label and a user."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import DataError, nearest, show_value
from fedsim.common.files import find_file, reading, require_regular
from fedsim.common.notes import note
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Source, every_fifth

if TYPE_CHECKING:
    import pandas as pd

USER = "user"
"""Name of the column of users, for ``data.column``."""

_MOST_CLASSES = 100_000
_NUMBER_KINDS = "biuf"  # numpy's codes of bool, integers and floats
_MOST_NAMED = 8  # greatest count of columns or words that a message lists

Dimension = Annotated[int, Field(ge=1, le=100_000)]


class TableSource(Source):
    """Base of the sources that read samples from the rows of a table, such as a CSV file.

    A second table may hold the test samples.

    Attributes:
        path: the file; a relative path starts from ``data.root``, else the working directory, else
            ``$FEDSIM_DATA``.
        test: a file with the test samples and the same columns; None: every fifth sample of each
            user (or of each class, without users) is a test sample.
        label: the column of the labels: words or integers, which are sorted and numbered from 0; or
            floats, which are targets of a regression.
        features: the columns of numbers that make a sample, in order; None: all columns but label
            and user.
        user: the column of each sample's user, words or integers; ``data.column = "user"`` divides
            the samples by user.
        shape: shape of a sample, such as [28, 28] or [3, 32, 32]; None: a list of numbers.
    """

    path: str
    test: str | None = None
    label: str
    features: list[str] | None = None
    user: str | None = None
    shape: list[Dimension] | None = None

    _form: ClassVar[str]

    @model_validator(mode="after")
    def _check_roles(self) -> "TableSource":
        roles = [self.label]
        if self.user is not None:
            roles.append(self.user)
        roles += self.features or []
        for role in roles:
            if roles.count(role) > 1:
                raise ValueError(f"the column {role!r} has two roles; allowed is one for each")
        return self

    @abstractmethod
    def read(self, path: Path) -> "pd.DataFrame":
        """Read a file as a pandas table with named columns; ``load`` calls it for each file.

        Args:
            path: the file.
        """

    def surplus(self, raw: Raw, column: str | None) -> list[str]:
        return []

    def load(self, root: Path | None) -> Raw:
        """Read the table, and the table of test samples if there is one, into arrays.

        Without a table of test samples, every fifth row of each user is for tests; without users,
        every fifth row of each class.
        """
        path = find_file(self.path, root)
        table = self._read_checked(path, "data.source.path")
        features = self._feature_names(path, table)
        tables = [(path, table)]
        if self.test is not None:
            test_path = find_file(self.test, root)
            tables.append((test_path, self._read_checked(test_path, "data.source.test")))
        x = np.concatenate([_feature_array(*part, features) for part in tables])
        y, classes = _read_labels(tables, self.label)
        columns = {}
        users = None
        if self.user is not None:
            users, _ = numbered(tables, self.user)
            columns[USER] = users
        train_size = len(table)
        if self.test is None:
            # every fifth row of each user is for tests; without users, of each label
            strata = users
            if strata is None and y.ndim == 1:
                strata = y
            elif strata is None:  # targets of a regression: all rows are one group
                strata = np.zeros(len(y), np.int64)
            is_test = every_fifth(strata)
            order = np.argsort(is_test, kind="stable")  # test samples come last
            train_size -= int(is_test.sum())
            x = x[order]
            y = y[order]
            columns = {name: column[order] for name, column in columns.items()}
        x = reshape_samples(path, x, self.shape)
        tests = "a file of its own has the tests" if self.test else "every fifth is for tests"
        note(f"{str(path)!r}: {len(x)} samples of {len(features)} features; {tests}")
        return Raw(
            path.stem,
            x[:train_size],
            y[:train_size],
            x[train_size:],
            y[train_size:],
            classes,
            peak=1.0,
            columns=columns,
        )

    def _read_checked(self, path: Path, key: str) -> "pd.DataFrame":
        """Read a file as a table, and check it.

        Args:
            path: the file.
            key: the scenario's key that names the file, for error messages.

        Raises:
            DataError: the file cannot be read, is empty, or has a column twice.
        """
        with reading(path, key, self._form):
            table = self.read(require_regular(path))
        names = [str(name) for name in table.columns]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"'{path}' has the column {name!r} twice; allowed is one")
        if table.empty:
            raise DataError(f"'{path}' has no rows, or no columns; it needs samples")
        return table

    def _feature_names(self, path: Path, table: "pd.DataFrame") -> list[str]:
        if self.features is not None:
            return self.features
        names = [str(name) for name in table.columns if name not in (self.label, self.user)]
        if not names:
            raise DataError(f"'{path}' has no column beside label and user; a sample needs one")
        return names


class Csv(TableSource):
    """Rows of a CSV file whose first line names the columns of features and labels.

    Attributes:
        separator: the character between two values.
    """

    kind: Literal["csv"] = "csv"
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","

    _form = "a CSV file with a first line of names"

    def read(self, path: Path) -> "pd.DataFrame":
        import pandas as pd

        # the first line as text, because pandas would rename the second of two equal columns
        header = pd.read_csv(
            require_regular(path), sep=self.separator, header=None, nrows=1, dtype=str
        )
        names = header.iloc[0].tolist()
        for name in names:
            if names.count(name) > 1:  # pandas would rename the second one
                raise ValueError(f"it has the column {name!r} twice")
        return pd.read_csv(
            require_regular(path), sep=self.separator, low_memory=False, skipinitialspace=True
        )


class Parquet(TableSource):
    """Rows of a Parquet file with columns of features and labels."""

    kind: Literal["parquet"] = "parquet"

    _form = "a Parquet file"

    def read(self, path: Path) -> "pd.DataFrame":
        import pyarrow.parquet as pq

        table: pd.DataFrame = pq.ParquetFile(require_regular(path)).read().to_pandas()
        return table


def reshape_samples(path: Path, x: AnyArray, shape: list[Dimension] | None) -> AnyArray:
    """Return samples [n, d] in the shape that the scenario gives, [n, *shape].

    Args:
        path: the file, for error messages.
        x: the samples.
        shape: ``data.source.shape``; None to return the samples as they are.

    Raises:
        DataError: the shape has another count of dimensions than two or three, or their product is
            not d.
    """
    if shape is None:
        return x
    if len(shape) not in (2, 3) or np.prod(shape) != x.shape[1]:
        raise DataError(
            f"data.source.shape is {shape}; '{path}' has samples of {x.shape[1]} numbers, and "
            "allowed are two or three dimensions whose product that is"
        )
    return x.reshape(len(x), *shape)


def column_of(path: Path, table: "pd.DataFrame", name: str) -> AnyArray:
    """Return the values of a column of a table, [rows], after checking that none is missing.

    Args:
        path: the file, for error messages.
        table: the table.
        name: name of the column.

    Raises:
        DataError: there is no such column, or a value is missing.
    """
    names = [str(column) for column in table.columns]
    if name not in names:
        listed = ", ".join(names[:_MOST_NAMED]) + (" ..." if len(names) > _MOST_NAMED else "")
        raise DataError(f"'{path}' has no column {name!r}; it has {listed}{nearest(name, names)}")
    column = table[name]
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise DataError(
            f"'{path}': the column {name!r} has no value (or NaN) in {len(missing)} rows, first in "
            f"row {missing[0]} (from 0); fill these rows in, or leave them out"
        )
    values: AnyArray = column.to_numpy()
    return values


def _feature_array(path: Path, table: "pd.DataFrame", names: list[str]) -> NDArray[np.float32]:
    """Return the columns of features of a table as one array, float32 [n, features].

    Args:
        path: the file, for error messages.
        table: the table.
        names: names of the columns.

    Raises:
        DataError: there is no such column, or a value is missing, no number, or no finite float32.
    """
    columns = []
    for name in names:
        column = column_of(path, table, name)
        kind = column.dtype.kind
        if kind not in _NUMBER_KINDS:
            values = column.tolist()
            wrong = [value for value in values if not _is_number(value)] or values
            mixed = "numbers and other values" if len(wrong) < len(values) else "no numbers"
            raise DataError(
                f"'{path}': the column {name!r} has {mixed}, such as {show_value(wrong[0])}; "
                "features are numbers: list the columns of numbers in data.source.features"
            )
        with np.errstate(over="ignore"):
            columns.append(column.astype(np.float64).astype(np.float32))
    x = np.stack(columns, axis=1)
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        row, column_index = bad[0].tolist()
        raise DataError(
            f"'{path}': the column {names[column_index]!r} has in row {row} (from 0) a number that is not "
            "finite, or no float32"
        )
    return x


def _is_number(value: object) -> bool:
    """Return whether a value is a number, or a text that can be parsed as a number."""
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _read_labels(tables: list[tuple[Path, "pd.DataFrame"]], name: str) -> tuple[AnyArray, int]:
    """Convert the label column of all tables to class numbers, or to targets of a regression.

    Args:
        tables: path and content of each file, for training and perhaps for tests.
        name: name of the column.

    Returns:
        Labels of all rows, int64 [n], and the count of classes. If the column has floats: targets,
        float32 [n, 1], and 1.

    Raises:
        DataError: the column is missing, mixes types, or has too many different labels.
    """
    kinds = {column_of(*part, name).dtype.kind for part in tables}
    if kinds == {"f"}:
        return np.concatenate([_feature_array(*part, [name]) for part in tables]), 1
    labels, words = numbered(tables, name)
    if len(words) > _MOST_CLASSES:
        raise DataError(
            f"'{tables[0][0]}': the column {name!r} has {len(words)} different labels; allowed are "
            f"{_MOST_CLASSES}"
        )
    return labels, max(2, len(words))


def numbered(
    tables: list[tuple[Path, "pd.DataFrame"]], name: str
) -> tuple[NDArray[np.int64], list[object]]:
    """Replace the words or integers of a column by numbers from 0, the same in all tables.

    Numbers follow the sorted order of the words or integers. If the column has at most 8 different
    words, a note to the user lists them with their numbers.

    Args:
        tables: path and content of each file.
        name: name of the column.

    Returns:
        The numbers of the rows of all tables, int64 [n], and the list of words or integers, in
        which a number is the index of its word.

    Raises:
        DataError: the column has values of another type, or both words and integers.
    """
    values: list[object] = []
    for path, table in tables:
        column = column_of(path, table, name)
        if column.dtype.kind == "f":
            raise DataError(
                f"'{path}': the column {name!r} has numbers with fractions; allowed are words or "
                "integers"
            )
        values += column.tolist()
    types = {str if isinstance(value, str) else type(value) for value in values}
    if types not in ({str}, {int}, {bool}):
        type_names = ", ".join(sorted(kind.__name__ for kind in types))
        raise DataError(
            f"'{tables[0][0]}': the column {name!r} mixes values of the types {type_names}; allowed are "
            "words alone, or integers alone"
        )
    words, numbers = np.unique(np.array(values, dtype=object), return_inverse=True)
    if types == {str} and len(words) <= _MOST_NAMED:
        listed = ", ".join(f"{number} = {word!r}" for number, word in enumerate(words))
        note(f"{str(tables[0][0])!r}: {name} is {listed}")
    return numbers.astype(np.int64), words.tolist()
