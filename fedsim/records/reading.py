"""Reading a run folder: for the audit, for comparisons, and for pictures.

Knows the files, and nothing of the engine.
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
from fedsim.common.files import parse_json, read_text, read_toml, regular
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
    **schema.OF_METERS,
}


def as_list(column: Any) -> list[Any]:
    """The values of a column of ``pyarrow``.

    Names are cast first, as ``to_pylist`` of a dictionary is 25 times as slow.
    """
    names = pa.types.is_dictionary(column.type)
    values: list[Any] = (column.cast(column.type.value_type) if names else column).to_pylist()
    return values


def as_rows(table: Any) -> Records:
    """The rows of a table of ``pyarrow``, as dicts."""
    return [
        dict(zip(table.schema.names, row, strict=True))
        for row in zip(*map(as_list, table.columns), strict=True)
    ]


def as_frame(table: Any) -> "pd.DataFrame":
    """A table of ``pyarrow`` as pandas has it; whole numbers stay whole, though some lack."""
    import pandas as pd

    whole: dict[Any, Any] = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=whole.get)
    return frame


# what odd values make code raise
_OF_VALUES = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, AttributeError)


@contextmanager
def making_sense(paths: Iterable[Path]) -> Iterator[None]:
    """Turns an unforeseen error into a ``RunFolderError``, which names a file of a run (or of a
    study's) that was changed.
    """
    try:
        yield
    except (FedsimError, MemoryError):
        raise
    except Exception as error:
        for path in paths:
            for run in (path, *sorted(path.glob("runs/*/seed-*"))):
                if change := next(files.changes(run), None):
                    reason = f"{change} ({type(error).__name__}: {error})"
                    raise RunFolderError(
                        f"{str(run)!r} cannot be made sense of: {reason}"
                    ) from error
        if isinstance(error, _OF_VALUES):
            names = ", ".join(repr(str(path)) for path in paths)
            hint = (
                "'fedsim audit' says whether its figures fit together; if they do, please report "
                "this"
            )
            raise RunFolderError(
                f"{names} cannot be made sense of: {type(error).__name__}: {error}; {hint}"
            ) from error
        raise


_MOST = dict.fromkeys(("time", "start", "end"), CLOCK_END_S)
_MOST |= dict.fromkeys(("bytes", "delivered", "bytes_down", "bytes_up"), 1e18)
"""The largest number of a column in any run: others, such as a loss, may be of any size, and
rates infinite.
"""


def _refuse_absurd(table: Any) -> None:
    """Raise ``ValueError`` for times and sizes that no run writes."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        most = _MOST.get(name)
        if most is None or not pa.types.is_floating(column.type):
            continue
        known = column.drop_null()
        # NaN is neither
        allowed = pc.and_kleene(pc.greater_equal(known, -most), pc.less_equal(known, most))
        if pc.all(allowed).as_py() is False:
            value = known.filter(pc.invert(allowed))[0].as_py()
            raise ValueError(f"its column {name} holds {value:g}")


class RunFolder:
    """A run folder, of a finished run or of one that goes on.

    A missing or damaged file raises ``RunFolderError`` when it is first used.

    Args:
        path: of the folder.

    Raises:
        RunFolderError: there is no run in the folder.

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
        self._tables = next(
            (place for place in (self.path, self.path / LIVE) if (place / files.SUMMARY).is_file()),
            self.path,
        )
        if not (self._tables / files.SUMMARY).is_file():
            lacks = (
                f"it holds no {files.SUMMARY}"
                if self.path.is_dir()
                else "it is no folder"
                if self.path.exists()
                else ""
            )
            lacks = f"is not a run folder: {lacks}" if lacks else "does not exist"
            begun = (
                "; a run that goes on can be read after some seconds"
                if (self.path / files.SCENARIO).is_file()
                else ""
            )
            raise RunFolderError(f"{str(self.path)!r} {lacks}{begun}")

    @cached_property
    def summary(self) -> dict[str, Any]:
        with self._reading(files.SUMMARY):
            value: dict[str, Any] = parse_json(read_text(self._tables / files.SUMMARY), finite=True)
            if not isinstance(value, dict):
                raise TypeError("it is not a table")
            return value

    @cached_property
    def scenario(self) -> dict[str, Any]:
        with self._reading(files.SCENARIO):
            return read_toml(self.path / files.SCENARIO)

    @property
    def has_all_devices(self) -> bool:
        """Whether ``devices.parquet`` has a row for each device.

        A run with very many devices has only rows of devices that were asked.
        """
        return self.summary.get("device_rows") != schema.ASKED

    @property
    def population(self) -> int:
        """Number of devices that the run simulated."""
        return (
            self.size(files.DEVICES)
            if self.has_all_devices
            else int(self.scenario["population"]["devices"])
        )

    def table(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """Return a Parquet table of the folder.

        Args:
            name: name of the file, such as ``events.parquet``.
            columns: the columns to read, in this order; None for all.

        Returns:
            A ``pyarrow.Table``.

        Raises:
            RunFolderError: the file is missing or damaged.
        """
        # ``read_table`` is half as fast on small ones.
        with self._reading(name), pq.ParquetFile(regular(self._tables / name)) as file:
            there = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
            later: dict[str, str | None] = {}
            for wanted in _SCHEMAS.get(name, ()):
                found = there.get(wanted.name)
                if found is None and wanted.name in schema.LATER:
                    later[wanted.name], found = schema.LATER[wanted.name], wanted.type
                if found is None:
                    raise KeyError(f"it has no column {wanted.name}")
                # Whole numbers of any width are whole numbers: others that write such tables may
                # have had other ones.
                alike = any(
                    kind(found) and kind(wanted.type)
                    for kind in (pa.types.is_integer, pa.types.is_floating)
                )
                if not (alike or found == wanted.type or pa.types.is_null(found)):
                    raise TypeError(f"its column {wanted.name} is {found}, not {wanted.type}")
                there[wanted.name] = wanted.type
            wish = [*there] if columns is None else columns
            table = file.read(
                list(dict.fromkeys(one for key in wish if (one := later.get(key, key))))
            )
            for key, same in later.items():
                table = table.append_column(
                    key, table[same] if same in table.column_names else pa.nulls(len(table))
                )
            table = table.select(wish)
            _refuse_absurd(table)
            return table.cast(
                pa.schema(
                    [field.with_type(there[field.name]) for field in table.schema],
                    table.schema.metadata,
                )
            )

    def has(self, name: str) -> bool:
        """Return whether the folder has a file, which may be missing while the run goes on.

        Args:
            name: name of the file.
        """
        return (self._tables / name).exists()

    def size(self, name: str) -> int:
        """Return the number of rows of a Parquet table of the folder.

        Args:
            name: name of the file.
        """
        with self._reading(name):
            return pq.read_metadata(regular(self._tables / name)).num_rows  # type: ignore[no-any-return]

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
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
            text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
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
        """Every record in order, ``data`` parsed."""
        return self._parsed(files.EVENTS, "data")

    def events_of(self, kinds: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Iterate over events of some kinds; no other events become Python objects.

        Args:
            kinds: the kinds of records.
            columns: the columns to read; ``data`` is JSON or None.

        Returns:
            Tuples of the columns' values, in the order of the events.
        """
        table = self.table(files.EVENTS)
        wanted = pc.is_in(table["kind"].cast(pa.string()), value_set=pa.array(kinds))
        return zip(*map(as_list, table.select(columns).filter(wanted).columns), strict=True)

    @cached_property
    def transfers(self) -> Records:
        """One row a message, ``payloads`` parsed."""
        return self._parsed(files.TRANSFERS, "payloads")

    def _parsed(self, name: str, column: str) -> Records:
        rows = self.rows(name)
        with self._reading(name):
            for row in rows:
                row[column] = parse_json(
                    "{}" if row[column] is None and name == files.EVENTS else row[column]
                )
        return rows

    @cached_property
    def rounds(self) -> Records:
        return self.rows(files.ROUNDS)

    @cached_property
    def devices(self) -> Records:
        return self.rows(files.DEVICES)

    def models(self) -> dict[str, dict[str, Any]]:
        """Every model file's tensors, by file name without its ending."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            paths = sorted((self.path / files.MODELS).glob("*.safetensors"))
            return {path.stem: load_file(regular(path)) for path in paths}
        except (OSError, SafetensorError) as error:
            raise RunFolderError(
                f"a file in {files.MODELS} of {str(self.path)!r} is damaged: {error}"
            ) from None
