"""Reader of run folders, for the audit, comparisons and figures.

The module only reads files, and runs no part of the simulation.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsim.common.errors import FedsimError, RunFolderError
from fedsim.common.files import parse_json, read_text, read_toml, require_regular
from fedsim.common.former_keys import Understood, understand
from fedsim.common.round_words import round_word
from fedsim.common.tensor_files import StoredTensor, open_tensors
from fedsim.common.units import CLOCK_END_S
from fedsim.records import folder as files
from fedsim.records import schema
from fedsim.records.live import LIVE

if TYPE_CHECKING:
    import pandas as pd

Records = list[dict[str, Any]]

_SCHEMAS = {
    files.EVENTS: schema.EVENTS,
    files.TRANSFERS: schema.TRANSFERS,
    files.ROUNDS: schema.ROUNDS,
    files.DEVICES: schema.DEVICES,
    files.AVAILABILITY: schema.AVAILABILITY,
    files.TRACES: schema.TRACES,
    files.TRACED_LINKS: schema.TRACED_LINKS,
    **schema.OF_METERS,
}


def as_list(column: pa.ChunkedArray) -> list[Any]:
    """Convert a ``pyarrow`` column to a list of Python objects.

    A dictionary column is cast to its values first, because ``to_pylist`` of a dictionary column is
    25 times as slow.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values: list[Any] = column.to_pylist()
    return values


def as_rows(table: pa.Table) -> Records:
    """Convert a ``pyarrow`` table to rows, each a dict from column to value."""
    return [
        dict(zip(table.schema.names, row, strict=True))
        for row in zip(*map(as_list, table.columns), strict=True)
    ]


def as_frame(table: pa.Table) -> "pd.DataFrame":
    """Convert a ``pyarrow`` table to a pandas DataFrame.

    Integer columns keep an integer type, with ``pd.NA`` in empty cells.
    """
    import pandas as pd

    whole = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=whole.get)
    return frame


# errors that code raises on unexpected values of a table
_VALUE_ERRORS = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, AttributeError)


@contextmanager
def making_sense(paths: Iterable[Path]) -> Iterator[None]:
    """Context manager that converts exceptions caused by damaged run folders to ``RunFolderError``.

    If a file was changed after its run, the message names the file. If no file was changed, only
    errors that unexpected values cause, such as ``ValueError``, are converted. All other exceptions
    are raised unchanged.

    Args:
        paths: the run folders, or folders of studies, that the block reads.
    """
    try:
        yield
    except (FedsimError, MemoryError, BrokenPipeError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        for path in paths:
            for run in sorted(path.glob("runs/*/seed-*")) or [path]:  # runs of a study, or the run
                change = next(files.changes(run), None)
                if change is not None:
                    raise RunFolderError(
                        f"{str(run)!r} cannot be made sense of: {change} ({cause})"
                    ) from error
        if not isinstance(error, _VALUE_ERRORS):
            raise
        names = ", ".join(repr(str(path)) for path in paths)
        raise RunFolderError(
            f"{names} cannot be made sense of: {cause}; 'fedsim audit' says whether its figures "
            "fit together; if they do, please report this"
        ) from error


_LARGEST = dict.fromkeys(("time", "start", "end"), CLOCK_END_S)
_LARGEST |= dict.fromkeys(("bytes", "delivered", "bytes_down", "bytes_up"), 1e18)
"""Column -> largest magnitude that any run writes.

Columns without an entry, such as a loss, may have any values; rates may be infinite.
"""


def _check_magnitudes(table: pa.Table) -> None:
    """Raise ``ValueError`` if a table has a time or a byte count that no run could have written.

    Such a value is NaN or too large; it shows that the file was changed.

    Args:
        table: any table of a run folder.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        largest = _LARGEST.get(name)
        if largest is None or not pa.types.is_floating(column.type):  # any value is possible
            continue
        values = column.drop_null()
        # NaN counts as impossible, because both comparisons are False for NaN
        is_possible = pc.and_kleene(
            pc.greater_equal(values, -largest), pc.less_equal(values, largest)
        )
        impossible = values.filter(pc.invert(is_possible))
        if len(impossible):
            raise ValueError(f"its column {name} holds {impossible[0].as_py():g}")


def _types_of(name: str, stored: pa.Schema) -> dict[str, pa.DataType]:
    """Return the type with which each column of a table in a run folder is read.

    Integers and floats of any width are accepted, as other programs that write such tables may use
    other widths. Columns that older versions of fedsim did not write may be missing.

    Args:
        name: name of the file. For a table that no run writes, the stored types are returned.
        stored: the columns in the file.

    Returns:
        Column name -> type.

    Raises:
        KeyError, TypeError: a column is missing, or has another type.
    """
    types = dict(zip(stored.names, stored.types, strict=True))
    for field in _SCHEMAS.get(name, ()):
        may_be_missing = field.name in schema.LATER  # older versions do not write these columns
        if field.name not in types and not may_be_missing:
            raise KeyError(f"it has no column {field.name}")
        stored_type = types.get(field.name, field.type)
        if not _can_be_read_as(stored_type, field.type):
            raise TypeError(f"its column {field.name} is {stored_type}, not {field.type}")
        types[field.name] = field.type
    return types


def _can_be_read_as(stored: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of a column's stored type can be converted to another type.

    An empty column can be converted to any type.
    """
    if stored == target or pa.types.is_null(stored):
        return True
    if pa.types.is_integer(target):
        return bool(pa.types.is_integer(stored))
    return bool(pa.types.is_floating(target) and pa.types.is_floating(stored))


def _read_columns(file: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """Read columns of a Parquet file, in the given order.

    If an older version of fedsim wrote the file, a column may be missing. The missing column is
    then read from the column that the older version wrote instead, or it is empty.

    Args:
        file: the file.
        columns: names of the columns.
    """
    stored = file.schema_arrow.names
    # missing column -> stored column that is read instead; None if there is none
    equivalents: dict[str, str | None] = {}
    for name in columns:
        if name not in stored and name in schema.LATER:
            equivalents[name] = schema.LATER[name]
    sources = dict.fromkeys(equivalents.get(name, name) for name in columns)
    table = file.read([name for name in sources if name is not None])
    for name, equivalent in equivalents.items():
        has_values = equivalent in table.column_names
        values = table[equivalent] if has_values else pa.nulls(len(table))
        if name == "wire_bytes" and "sender" in stored:
            within_server = pc.is_valid(file.read(["sender"])["sender"])
            values = pc.if_else(within_server, 0.0, values)
        table = table.append_column(name, values)
    return table.select(columns)


class RunFolder:
    """Reader of the files of a run folder: summary, scenario, tables and models.

    The run may be unfinished. A missing or damaged file raises ``RunFolderError`` when it is first
    used.

    Args:
        path: path of the folder.

    Raises:
        RunFolderError: the folder holds no run.

    Example:
        >>> import fedsim
        >>> from fedsim.plugin import RunFolder
        >>> scenario = fedsim.load("quickstart", ["learning=off", "stop.rounds=1"])
        >>> result = fedsim.run(scenario, "runs/one")
        >>> folder = RunFolder("runs/one")
        >>> folder.size("rounds.parquet"), folder.population
        (1, 50)
        >>> [row["selected"] for row in folder.rows("rounds.parquet")]
        [20]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._tables = self.path
        if not self._has_summary(self.path) and self._has_summary(self.path / LIVE):
            self._tables = self.path / LIVE
        if not self._has_summary(self._tables):
            raise RunFolderError(self._explain_absence())

    @staticmethod
    def _has_summary(place: Path) -> bool:
        return (place / files.SUMMARY).is_file()

    def _explain_absence(self) -> str:
        """Return the reason why the folder holds no run that can be read."""
        name = repr(str(self.path))
        if not self.path.exists():
            return f"{name} does not exist"
        if not self.path.is_dir():
            return f"{name} is not a run folder: it is no folder"
        reason = f"{name} is not a run folder: it holds no {files.SUMMARY}"
        if (self.path / files.SCENARIO).is_file():
            reason += "; a run that goes on can be read after some seconds"
        return reason

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Content of ``summary.json``."""
        with self._reading(files.SUMMARY):
            value: dict[str, Any] = parse_json(read_text(self._tables / files.SUMMARY), finite=True)
            if not isinstance(value, dict):
                raise TypeError("it is not a table")
            return value

    @cached_property
    def understood(self) -> Understood:
        """Scenario of the run, with present keys in place of keys of earlier versions of fedsim.

        Attribute ``tables`` of the object is the scenario as a dict. Attribute ``lost`` names the
        former keys and values that this version cannot express.
        """
        with self._reading(files.SCENARIO):
            return understand(read_toml(self.path / files.SCENARIO))

    @cached_property
    def scenario(self) -> dict[str, Any]:
        """Content of ``scenario.toml``, with present keys instead of keys of earlier versions."""
        return self.understood.tables

    @property
    def clock(self) -> str:
        """Noun phrase for the run's time: ``simulated time``, or ``measured time`` of a deployment."""
        return "measured time" if files.MEASURED in self.summary else "simulated time"

    @property
    def is_done(self) -> bool:
        """Whether the run has reached its end, and was not interrupted and has not failed."""
        return bool(self.summary.get("status", "done") == "done")

    @property
    def round_word(self) -> str:
        """Singular noun for a row of ``rounds.parquet``, such as ``round`` or ``version``."""
        return round_word(self.summary)

    @property
    def has_all_devices(self) -> bool:
        """Whether ``devices.parquet`` has a row for each device.

        In a run with very many devices it has rows only for devices that had a task.
        """
        return self.summary.get("device_rows") != schema.ASKED

    @property
    def population(self) -> int:
        """Count of devices in the run's population."""
        if self.has_all_devices:
            return self.size(files.DEVICES)
        return int(self.scenario["population"]["devices"])

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a Parquet table of the folder.

        Args:
            name: name of the file, such as ``events.parquet``.
            columns: the columns to read, in this order; None for all.

        Returns:
            The table, whose columns have the types in ``fedsim.records.schema``.

        Raises:
            RunFolderError: the file is missing or damaged.
        """
        # ``pq.read_table`` is half as fast on small files.
        with self._reading(name), pq.ParquetFile(require_regular(self._tables / name)) as file:
            types = _types_of(name, file.schema_arrow)
            table = _read_columns(file, [*types] if columns is None else columns)
            _check_magnitudes(table)
            fields = [field.with_type(types[field.name]) for field in table.schema]
            return table.cast(pa.schema(fields, table.schema.metadata))

    def has(self, name: str) -> bool:
        """Return whether the folder has a file; some files are written only at the end of a run.

        Args:
            name: name of the file.
        """
        return (self._tables / name).exists()

    def size(self, name: str) -> int:
        """Return the count of rows of a Parquet table.

        Args:
            name: name of the file.
        """
        with self._reading(name):
            return pq.read_metadata(require_regular(self._tables / name)).num_rows  # type: ignore[no-any-return]

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Context manager that converts errors of the block to ``RunFolderError`` with a file's name."""
        try:
            yield
        except (
            OSError,
            KeyError,
            TypeError,
            ValueError,
            RecursionError,
            pa.ArrowException,
        ) as error:
            text = str(error)
            if isinstance(error, KeyError) and error.args:  # ``str(error)`` would add quotes
                text = str(error.args[0])
            reason = text.splitlines()[0] if text else type(error).__name__
            raise RunFolderError(
                f"{name} of {str(self.path)!r} is missing or damaged: {reason}"
            ) from None

    def rows(self, name: str) -> Records:
        """Return the rows of a Parquet table of the folder, each as a dict from column to value.

        Args:
            name: name of the file.
        """
        return as_rows(self.table(name))

    @cached_property
    def events(self) -> Records:
        """Rows of ``events.parquet``: each record as a dict, with ``data`` parsed from JSON."""
        return self._rows_with_json(files.EVENTS, "data")

    def events_of(self, kinds: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Iterate over events of some kinds, without converting other events to Python objects.

        Args:
            kinds: the kinds of records.
            columns: the columns to read; values of ``data`` are JSON text or None.

        Returns:
            An iterator over tuples of the columns' values, in the order of the events.
        """
        table = self.table(files.EVENTS)
        is_of_kinds = pc.is_in(table["kind"].cast(pa.string()), value_set=pa.array(kinds))
        events = table.select(columns).filter(is_of_kinds)
        values_by_column = map(as_list, events.columns)
        return zip(*values_by_column, strict=True)

    @cached_property
    def transfers(self) -> Records:
        """Rows of ``transfers.parquet``: each message as a dict, with ``payloads`` parsed."""
        return self._rows_with_json(files.TRANSFERS, "payloads")

    def _rows_with_json(self, name: str, column: str) -> Records:
        """Return the rows of a table as dicts, with one column parsed from JSON.

        An empty cell of ``events.parquet`` becomes an empty dict.
        """
        rows = self.rows(name)
        with self._reading(name):
            for row in rows:
                text = row[column]
                if text is None and name == files.EVENTS:
                    text = "{}"
                row[column] = parse_json(text)
        return rows

    @cached_property
    def rounds(self) -> Records:
        """Rows of ``rounds.parquet``, each as a dict."""
        return self.rows(files.ROUNDS)

    @cached_property
    def devices(self) -> Records:
        """Rows of ``devices.parquet``, each as a dict."""
        return self.rows(files.DEVICES)

    def models(self, place: str = files.MODELS) -> dict[str, dict[str, Any]]:
        """Return the models that the run has stored: file name without ending -> tensors by name.

        Args:
            place: folder of the files within the run folder: ``models``, the last models, or
                ``best``, the models of the best test (``evaluation.keep_best``).
        """
        models: dict[str, dict[str, Any]] = {}
        for name, tensors in self.stored_models(place).items():
            models[name] = {tensor: values.read() for tensor, values in tensors.items()}
        return models

    def stored_models(self, place: str = files.MODELS) -> dict[str, dict[str, StoredTensor]]:
        """Return the models that the run has stored, with tensors that are read only when used.

        Args:
            place: folder of the files within the run folder, as for ``models``.

        Returns:
            File name without ending -> stored tensors by name.
        """
        try:
            paths = sorted((self.path / place).glob("*.safetensors"))
            return {path.stem: open_tensors(path).tensors for path in paths}
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"a file in {place} of {str(self.path)!r} is damaged: {error}"
            ) from None
