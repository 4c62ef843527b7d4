"""Base class of meters, which count a quantity from a run's records, and ``Meters``, a run's meters."""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import Record
from fedsim.common.arrays import AnyArray
from fedsim.common.errors import (
    FedsimError,
    ScenarioError,
    SimulationError,
    home_of,
    place_of,
    show_error,
)
from fedsim.common.streams import Streams
from fedsim.world.meters.ended import Step, Transfer, transfer_of

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


class Column(NamedTuple):
    """Description of a column that a meter adds to the table of rounds or of devices.

    Attributes:
        name: name of the column, which no other column of the table has.
        unit: unit of its values, such as ``"s"``; empty for a count.
        about: description of its values in one line.
    """

    name: str
    unit: str
    about: str


@dataclass(frozen=True)
class MeterContext:
    """Properties of the simulated world, which each meter's constructor receives.

    Attributes:
        devices: count of devices.
        places: count of edge servers, or of nodes of the network to which devices are attached; None
            if the network has neither.
        streams: random streams by name, equal for all strategies.
        overhead: bytes on the wire for each byte of payload.
        folder: folder to which paths of files are relative; None for the working directory.
        powers: energy coefficients of each device, which follow from its kind: name, such as
            ``idle_w`` (W) -> float64 [devices]; empty if devices have no kinds.
    """

    devices: int
    places: int | None
    streams: Streams
    overhead: float = 1.0
    folder: Path | None = None
    powers: Mapping[str, AnyArray] = field(default_factory=dict)


class Meter:
    """Base of every meter, which counts a quantity from the records of a run.

    A scenario names a class of your own by its import path in ``[[meters]]``. The parameters of
    its ``__init__`` after ``context`` are keys of that table. A method ``on_KIND(time, fields)``,
    such as ``on_task_end``, receives the records of that kind. A checkpoint saves all attributes
    except those named in ``fixed``. Saved attributes may be numbers, text, lists, dicts and arrays of
    numpy.

    Attributes:
        entry: name of the meter's entry in ``summary.json``; by default the name of the class.
        round_columns, device_columns: columns that the meter adds to ``rounds.parquet`` and
            ``devices.parquet``.
        tables: name of each Parquet file that ``files`` returns -> (column -> type of its values,
            ``int`` or ``float``).
        fixed: names of the attributes that never change after ``__init__``.

    Example:
        A meter of the time that devices train, in ``mine.py``:

        >>> import numpy as np
        >>> from fedsim.plugin import Column, Meter
        >>> class Training(Meter):
        ...     entry = "training"
        ...     device_columns = (Column("trained", "s", "time that the device trained"),)
        ...     def __init__(self, context):
        ...         self.trained = np.zeros(context.devices)
        ...     def on_step(self, ended):
        ...         if ended.name == "train":
        ...             self.trained[ended.device] += ended.end - ended.start
        ...     def of_devices(self):
        ...         return {"trained": self.trained}

        >>> import fedsim
        >>> samples = {"low": 50, "high": 50}
        >>> result = fedsim.run(
        ...     fedsim.Scenario(
        ...         learning="off",
        ...         population={"devices": 2, "speed": "10 samples/s", "samples": samples},
        ...         strategy={"kind": "fedavg", "clients_per_round": 2},
        ...         stop={"rounds": 3},
        ...         meters=["mine:Training"],
        ...     ),
        ...     "runs/training",
        ... )
        >>> result.devices["trained"].tolist()
        [15.0, 15.0]
    """

    entry: ClassVar[str] = ""
    round_columns: ClassVar[tuple[Column, ...]] = ()
    device_columns: ClassVar[tuple[Column, ...]] = ()
    tables: ClassVar[Mapping[str, Mapping[str, type]]] = {}
    fixed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: MeterContext) -> None: ...

    def on_step(self, ended: Step) -> None:
        """Add a finished step of a device's task, such as a download or training, to the counts.

        The run calls it at the end of each step. By default it does nothing; meters override it.

        Args:
            ended: the step, with its device, its start and end, and its outcome.
        """

    def on_transfer(self, ended: Transfer) -> None:
        """Add a message whose transfer has ended, complete or cut short, to the counts.

        The run calls it at the end of each transfer. By default it does nothing; meters override
        it.

        Args:
            ended: the message.
        """

    def totals(self, time: float) -> Mapping[str, float | None]:
        """Return the meter's totals since the start of the run, for the table of rounds.

        The table of rounds shows by how much each total has grown in the round.

        Args:
            time: the time up to which to count (s).

        Returns:
            Name of each column in ``round_columns`` -> total; None for an unknown total.
        """
        return {}

    def of_devices(self) -> Mapping[str, NDArray[np.float64] | Sequence[float]]:
        """Return the meter's columns of the table of devices.

        Returns:
            Name of each column in ``device_columns`` -> total of each device, [devices].
        """
        return {}

    def close(self, time: float) -> None:
        """Finish the counts at the end of the run.

        Args:
            time: time of the end (s).
        """

    def summary(self) -> Mapping[str, object]:
        """Return the meter's entry of ``summary.json``; by default the sums over the devices.

        Returns:
            JSON-able values by name; stored under ``entry``.
        """
        return {name: math.fsum(values) for name, values in self.of_devices().items()}

    def files(self) -> Mapping[str, object]:
        """Return the files that the meter adds to the run's folder; by default none.

        Returns:
            Name of the file -> table (``*.parquet``) or document (``*.json``).
        """
        return {}

    def snapshot(self) -> dict[str, object]:
        """Return the state for a checkpoint: attributes by name, except those named in ``fixed``."""
        return {name: value for name, value in vars(self).items() if name not in self.fixed}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore the counts of a ``snapshot``, when a run is resumed.

        Args:
            state: the snapshot.
        """
        vars(self).update(state)


_Listener = Callable[[float, Mapping[str, object]], object]


class MetersState(TypedDict):
    """State of all meters of a run in a checkpoint.

    Attributes:
        starts: task ID -> begin of the task's running step (s).
        last_totals: column of the table of rounds -> the run's total at the end of the last round.
        meters: entry of the summary -> snapshot of its meter.
    """

    starts: dict[int, float]
    last_totals: dict[str, float]
    meters: dict[str, dict[str, object]]


class Meters:
    """All meters of a run, which receive the run's records one by one.

    Args:
        of_sections: section of the scenario, such as ``energy`` -> its meter.
        own: the user's meters.

    Raises:
        ScenarioError: two of the user's meters have the same entry, or a method has wrong
            parameters.
    """

    def __init__(
        self, of_sections: Mapping[str, Meter] | None = None, own: Sequence[Meter] = ()
    ) -> None:
        self._own: dict[str, Meter] = {}  # entry in the summary -> meter of the user
        for meter in own:
            name = meter.entry or type(meter).__name__
            if name in self._own:
                raise ScenarioError(
                    f"meters: two have the entry {name!r} in the summary; allowed is one of "
                    "each name"
                )
            _refuse_wrong_parameters(name, type(meter))
            self._own[name] = meter
        self.of_sections = dict(of_sections or {})
        self._all = self.of_sections | self._own
        # kind of record -> entry of each meter with a method ``on_KIND``, and this method; a kind
        # is added with its first record
        self._listeners: dict[str, list[tuple[str, _Listener]]] = {}
        # meters that override ``on_step``, and meters that override ``on_transfer``, with their entries
        self._steps: list[tuple[str, Meter]] = []
        self._transfers: list[tuple[str, Meter]] = []
        for entry, meter in self._all.items():
            if type(meter).on_step is not Meter.on_step:
                self._steps.append((entry, meter))
            if type(meter).on_transfer is not Meter.on_transfer:
                self._transfers.append((entry, meter))
        self._starts: dict[int, float] = {}  # task ID -> start of its running step (s)
        self._last_totals: dict[str, float] = {}  # column -> total at the end of the last round

    def __bool__(self) -> bool:
        return bool(self._all)

    def _find_listeners(self, kind: str) -> list[tuple[str, _Listener]]:
        """Return the meters that have a method for a kind of record.

        Args:
            kind: kind of the record, such as ``task-end``, whose method is ``on_task_end``.

        Returns:
            For each such meter, the name of its entry in the summary, and the method.
        """
        name = "on_" + re.sub(r"\W", "_", kind)
        if hasattr(Meter, name):  # ``on_step`` and ``on_transfer`` are not for records
            return []
        listeners = []
        for entry, meter in self._all.items():
            listener: _Listener | None = getattr(meter, name, None)
            if listener is not None:
                listeners.append((entry, listener))
        return listeners

    def take(self, record: Record) -> None:
        """Pass a record of the run to all meters.

        A record that ends a step or a message is also passed on as ``Step`` or ``Transfer``.

        Args:
            record: the next record of the run, in order of time.
        """
        time, kind, fields = record
        # the meters with a method ``on_KIND`` for records of this kind
        if kind not in self._listeners:
            self._listeners[kind] = self._find_listeners(kind)
        for entry, listener in self._listeners[kind]:
            _call(entry, time, listener, time, fields)
        # a step is passed on at its end; its start is the time of its record ``step-start``
        start = time
        if kind == "step-start":
            self._starts[fields["task"]] = time
        elif kind == "step-end":
            start = self._starts.pop(fields["task"])
            step = Step(
                start,
                time,
                fields["device"],
                fields["task"],
                fields["step"],
                fields["outcome"],
                fields,
            )
            for entry, meter in self._steps:
                _call(entry, time, meter.on_step, step)
        if not self._transfers:
            return
        transfer = transfer_of(time, kind, fields, start)
        if transfer is not None:
            for entry, meter in self._transfers:
                _call(entry, time, meter.on_transfer, transfer)

    def columns(self, table: Literal["round", "device"]) -> list[Column]:
        """Return the columns that the user's own meters add to the table of rounds or devices."""
        return _columns_of(self._own.values(), table)

    def names(self, table: Literal["round", "device"]) -> list[str]:
        """Return the names of the columns that all meters add to the table of rounds or devices."""
        return [column.name for column in _columns_of(self._all.values(), table)]

    def of_round(self, time: float) -> dict[str, float | None]:
        """Return how much the totals of all meters have grown since the end of the previous round.

        Args:
            time: end of the round (s).

        Returns:
            Name of each column -> increase; None for an unknown total.

        Raises:
            SimulationError: a meter fails, or a total is not a finite number.
        """
        increases: dict[str, float | None] = {}
        for entry, meter in self._all.items():
            totals = _call(entry, time, meter.totals, time)
            for name, _, _ in meter.round_columns:
                total = _find_total(entry, totals, name)
                if total is None:  # an unknown total, such as the emissions if there is no zone
                    increases[name] = None
                    self._last_totals[name] = 0.0
                else:
                    increases[name] = total - self._last_totals.get(name, 0.0)
                    self._last_totals[name] = total
        return increases

    def of_devices(self, devices: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Return the device columns of all meters, for some devices.

        Args:
            devices: indices of the devices, int64 [n].

        Returns:
            Column name -> totals, float64 [n].
        """
        columns = {}
        for entry, meter in self._all.items():
            totals = _call(entry, None, meter.of_devices)
            for column in meter.device_columns:
                name = column.name
                try:
                    columns[name] = np.asarray(totals[name], dtype=np.float64)[devices]
                except (KeyError, IndexError, TypeError, ValueError):
                    raise SimulationError(
                        f"the meter {entry!r}: of_devices gives not a number for each device in "
                        f"its column {name!r}"
                    ) from None
        return columns

    def close(self, time: float) -> None:
        """Let all meters finish their counts at the end of the run, ``time`` (s)."""
        for entry, meter in self._all.items():
            _call(entry, time, meter.close, time)

    def summary(self) -> dict[str, object]:
        """Return the entries that the meters add to ``summary.json``.

        Returns:
            Section of the scenario -> entry of its meter; under ``meters``, if the user has meters,
            name of the entry -> entry.

        Raises:
            SimulationError: a meter fails, or its entry is not JSON.
        """
        entries: dict[str, dict[str, object]] = {}
        for entry, meter in self._all.items():
            entries[entry] = dict(_call(entry, None, meter.summary))
        for entry, content in entries.items():
            try:
                json.dumps(content, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise SimulationError(
                    f"the meter {entry!r}: what summary gives must be JSON: {error}"
                ) from None
        # the entries of the user's meters get a section of their own
        user_entries = {entry: entries.pop(entry) for entry in self._own}
        if not user_entries:
            return {**entries}
        return {**entries, "meters": user_entries}

    def files(self) -> Iterator[tuple[str, Any, Mapping[str, type]]]:
        """Yield each file that a meter adds to the run folder.

        Yields:
            File name, content (a table of columns, or a JSON document), and the type of each column
            of a table.
        """
        for meter in self._all.values():
            for name, content in meter.files().items():
                yield name, content, meter.tables.get(name, {})

    def snapshot(self) -> MetersState:
        return {
            "starts": self._starts,
            "last_totals": self._last_totals,
            "meters": {entry: meter.snapshot() for entry, meter in self._all.items()},
        }

    def restore(self, state: MetersState) -> None:
        self._starts = state["starts"]
        self._last_totals = state["last_totals"]
        for entry, meter in self._all.items():
            meter.restore(state["meters"][entry])


def _columns_of(meters: Iterable[Meter], table: Literal["round", "device"]) -> list[Column]:
    columns: list[Column] = []
    for meter in meters:
        columns += meter.round_columns if table == "round" else meter.device_columns
    return columns


def _find_total(entry: str, totals: object, name: str) -> float | None:
    """Return the total of a column in the result of a meter's ``totals``; None if it is unknown.

    Args:
        entry: name of the meter's entry, for the error message.
        totals: the result, which should be a mapping from column to total.
        name: name of the column.

    Raises:
        SimulationError: the total is missing, or not a finite number.
    """
    # the error shows "nothing" if the column is missing, and the result itself if it is no mapping
    total = totals.get(name, "nothing") if isinstance(totals, Mapping) else totals
    if total is None:
        return None
    if isinstance(total, Real) and math.isfinite(total):
        return float(total)
    raise SimulationError(
        f"the meter {entry!r}: totals gives {total!r} for its column {name!r}; allowed is a "
        "number, or None"
    )


def _refuse_wrong_parameters(entry: str, meter: type[Meter]) -> None:
    """Raise ``ScenarioError`` if a method ``on_KIND`` of a meter does not take time and fields.

    Args:
        entry: name of the meter's entry, for the error message.
        meter: the class of the meter.
    """
    for name, hook in inspect.getmembers(meter, inspect.isfunction):
        if not name.startswith("on_") or hasattr(Meter, name):
            continue
        try:
            inspect.signature(hook).bind("self", "time", "fields")
        except TypeError:
            parameters = ", ".join(inspect.signature(hook).parameters)
            raise ScenarioError(
                f"the meter {entry!r}: {name}{home_of(hook)} is 'def {name}({parameters})'; it "
                f"must be 'def {name}(self, time, fields)'"
            ) from None


def _call(
    entry: str, time: float | None, hook: Callable[[*Arguments], T], *arguments: *Arguments
) -> T:
    """Call a method of a meter, and return its result.

    Args:
        entry: name of the meter's entry, for the error message.
        time: simulated time (s), for the error message; None if there is none.
        hook: the method.
        arguments: arguments of the method.

    Raises:
        SimulationError: the method raises an error whose class is not from fedsim. Errors of fedsim
            pass unchanged.
    """
    try:
        return hook(*arguments)
    except FedsimError:
        raise
    except Exception as error:
        when = "" if time is None else f" at {time!r} s"
        raise SimulationError(
            f"the meter {entry!r} failed{when}{place_of(error)}: {show_error(error)}"
        ) from error
