"""The base of meters: a meter hears every step and transfer, and adds columns to rounds and
devices and a summary entry.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
    told,
)
from fedsim.common.streams import Streams

Payloads = tuple[tuple[str, float], ...]
"""The parts of a message in the order in which they are sent: purpose and bytes of each."""

DIRECTIONS = {"download": "down", "upload": "up"}
"""Direction of the message of a step, by the step's name."""


class Column(NamedTuple):
    """A column that a meter adds to a table.

    Attributes:
        name: its name, which no other column of the table has.
        unit: its unit, such as ``"s"``; empty for a count.
        about: a line about it.
    """

    name: str
    unit: str
    about: str


class Step(NamedTuple):
    """A step of a task that is over.

    Attributes:
        start, end: its times (s).
        device, task: numbers of its device and its task.
        name: ``download``, ``train``, ``evaluate``, ``compute``, ``upload``, ``encode``,
            ``decode``, ``pause`` or ``queue``.
        outcome: ``done``, or the cause for which it ended early.
        fields: all fields of its record, such as ``epochs``, ``samples`` and ``delivered``.
    """

    start: float
    end: float
    device: int
    task: int
    # : ``download``, ``train``, ``evaluate``, ``compute``, ``encode``, ``decode``, ``upload`` or
    # ``queue``
    name: str
    outcome: str  #: ``done``, or the cause for which it ended early
    fields: Mapping[str, Any]


class Transfer(NamedTuple):
    """A message that is over (``start``, ``end`` in s), as ``transfers.parquet`` has it.

    Attributes:
        start, end: its times (s).
        purpose: names of its contents, joined by ``+``.
        payloads: name and bytes of each content.
        round, task: numbers of its round and its task; None for none.
        device: the sender or receiver; None between parts of the server's side.
        direction: ``up``, ``down`` or ``peer``.
        bytes, delivered, wire_bytes: its size, the part that moved, and that with headers.
        outcome: ``done``, or the cause for which it ended early.
        sender, receiver: ends on the server's side other than the server; see ``source`` and
            ``destination``.
    """

    start: float
    end: float
    device: int | None
    direction: str
    purpose: str
    bytes: float
    delivered: float
    wire_bytes: float
    outcome: str
    round: int | None
    task: int | None
    payloads: Payloads
    sender: str | None
    receiver: str | None

    @property
    def source(self) -> str:
        """The sender: ``device 3``, ``edge 1``, ``server`` or another part of the server's side."""
        return self.sender or ("server" if self.direction == "down" else f"device {self.device}")

    @property
    def destination(self) -> str:
        """The receiver, named like the ``source``."""
        return self.receiver or ("server" if self.direction == "up" else f"device {self.device}")


def transfer_of(time: float, kind: str, fields: Mapping[str, Any], start: float) -> Transfer | None:
    """The transfer that ends with a record; None if none does.

    ``start``: of the step of a ``step-end`` (s).
    """
    device: int | None
    ends: tuple[str | None, str | None]
    if kind == "server-transfer":
        purpose = fields["purpose"]
        size = fields["bytes"]
        of = fields.get("round")
        ends = (fields["sender"], fields["receiver"])
        payloads = ((purpose, size),)
        return Transfer(
            time, time, None, "up", purpose, size, size, 0.0, "done", of, None, payloads, *ends
        )
    if kind in ("edge-transfer", "message"):
        direction, sender, receiver = ends_of(fields)
        device = None
        start = fields["start"]
        ends = (sender, receiver)
    elif kind == "step-end" and fields["step"] in DIRECTIONS:
        device = fields["device"]
        direction = DIRECTIONS[fields["step"]]
        ends = fields.get("sender"), fields.get("receiver")
    else:
        return None
    payloads = fields["payloads"]
    delivered = fields["delivered"]
    purpose = (
        payloads[0][0] if len(payloads) == 1 else "+".join([purpose for purpose, _ in payloads])
    )
    sizes = fields["bytes"], delivered, fields.get("wire_bytes", delivered)
    of = fields["outcome"], fields["round"], fields.get("task")
    return Transfer(start, time, device, direction, purpose, *sizes, *of, payloads, *ends)


def ends_of(told: Mapping[str, Any]) -> tuple[str, str, str]:
    """``direction``, ``sender`` and ``receiver`` of a message outside of tasks, from its record."""
    if "source" in told:
        return "peer", told["source"], told["destination"]
    edge = f"edge {told['edge']}"
    direction = told["direction"]
    return (direction, "server", edge) if direction == "down" else (direction, edge, "server")


@dataclass(frozen=True)
class MeterContext:
    """The world in which a meter counts.

    Attributes:
        devices: number of devices.
        places: number of edge servers or cells; None without.
        streams: random streams by name, the same for every strategy.
        overhead: bytes on the wire for a byte of payload.
        folder: the folder where relative paths of files begin.
        powers: draws by kind of device (W), float64 [devices] each.
    """

    devices: int
    places: int | None
    streams: Streams
    overhead: float = 1.0
    folder: Path | None = None
    powers: Mapping[str, AnyArray] = field(default_factory=dict)


class Meter:
    """The base of every meter: it counts something from the records of a run.

    A class of your own is named by its import path in ``[[meters]]``; the parameters of its
    ``__init__`` after ``context`` are keys of that table. Besides ``on_step`` and ``on_transfer`` a
    method ``on_KIND(time, fields)``, such as ``on_task_end``, hears the records of that kind. All
    attributes but those in ``fixed`` are saved with the run: numbers, text, lists, dicts, arrays of
    numpy.

    Attributes:
        entry: the name of its entry in the summary; by default that of the class.
        round_columns, device_columns: what it adds to ``rounds.parquet`` and ``devices.parquet``.
        tables: the Parquet files that ``files`` gives: ``int`` or ``float`` by column.
        fixed: the attributes that ``__init__`` makes and nothing changes.
    """

    entry: ClassVar[str] = ""
    round_columns: ClassVar[tuple[Column, ...]] = ()
    device_columns: ClassVar[tuple[Column, ...]] = ()
    tables: ClassVar[Mapping[str, Mapping[str, type]]] = {}
    fixed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: MeterContext) -> None: ...

    def on_step(self, ended: Step) -> None:
        """A step is over."""

    def on_transfer(self, ended: Transfer) -> None:
        """A message is over, whole or cut short."""

    def totals(self, time: float) -> Mapping[str, float | None]:
        """Running totals until ``time`` (s), by ``round_columns``; the table of rounds has the
        increase in each round.
        """
        return {}

    def of_devices(self) -> Mapping[str, NDArray[np.float64] | Sequence[float]]:
        """Totals of each device for ``device_columns``; [devices] each."""
        return {}

    def close(self, time: float) -> None:
        """The run is over at ``time`` (s)."""

    def summary(self) -> Mapping[str, Any]:
        """The meter's entry in ``summary.json``; by default the sums over the devices."""
        return {name: math.fsum(values) for name, values in self.of_devices().items()}

    def files(self) -> Mapping[str, Any]:
        """Files of its own: tables by column (``*.parquet``), documents (``*.json``)."""
        return {}

    def snapshot(self) -> dict[str, Any]:
        """State needed to resume a run; ``restore`` takes it back."""
        return {name: value for name, value in vars(self).items() if name not in self.fixed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave."""
        vars(self).update(state)


class Meters:
    """The meters of a run, ``of_sections`` of the scenario and the user's ``own``; each hears
    every record.
    """

    def __init__(
        self, of_sections: Mapping[str, Meter] | None = None, own: Sequence[Meter] = ()
    ) -> None:
        self._own: dict[str, Meter] = {}
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
        self._heard: dict[str, list[tuple[str, Callable[[float, dict[str, Any]], None]]]] = {}
        self._steps = [
            pair for pair in self._all.items() if type(pair[1]).on_step is not Meter.on_step
        ]
        self._transfers = [
            pair for pair in self._all.items() if type(pair[1]).on_transfer is not Meter.on_transfer
        ]
        self._starts: dict[int, float] = {}  # of the running step of each task
        self._told: dict[str, float] = {}  # totals at the last round

    def __bool__(self) -> bool:
        return bool(self._all)

    def take(self, record: Record) -> None:
        time, kind, fields = record
        if kind not in self._heard:
            name = "on_" + re.sub(r"\W", "_", kind)
            own = (
                []
                if hasattr(Meter, name)
                else [(of, getattr(meter, name, None)) for of, meter in self._all.items()]
            )
            self._heard[kind] = [(of, hear) for of, hear in own if hear is not None]
        for of, hear in self._heard[kind]:
            _asked(of, time, hear, time, fields)
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
            for of, meter in self._steps:
                _asked(of, time, meter.on_step, step)
        if self._transfers and (ended := transfer_of(time, kind, fields, start)) is not None:
            for of, meter in self._transfers:
                _asked(of, time, meter.on_transfer, ended)

    def columns(self, table: str) -> list[Column]:
        """The columns of the user's own meters in ``round`` or ``device``."""
        return [
            column for meter in self._own.values() for column in getattr(meter, f"{table}_columns")
        ]

    def names(self, table: str) -> list[str]:
        """The names of all their columns in ``round`` or ``device``."""
        return [
            column.name
            for meter in self._all.values()
            for column in getattr(meter, f"{table}_columns")
        ]

    def of_round(self, time: float) -> dict[str, float | None]:
        row: dict[str, float | None] = {}
        for of, meter in self._all.items():
            totals = _asked(of, time, meter.totals, time)
            for name, _, _ in meter.round_columns:
                total = totals.get(name, "nothing") if isinstance(totals, Mapping) else totals
                if total is not None and (not isinstance(total, Real) or not math.isfinite(total)):
                    wrong = (
                        f"totals gives {total!r} for its column {name!r}; allowed is a number, or "
                        "None"
                    )
                    raise SimulationError(f"the meter {of!r}: {wrong}")
                row[name] = None if total is None else float(total) - self._told.get(name, 0.0)
                self._told[name] = float(total or 0.0)
        return row

    def of_devices(self, devices: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """The columns of some devices; float64 [len(devices)] each."""
        found = {}
        for of, meter in self._all.items():
            counted = _asked(of, None, meter.of_devices)
            for column in meter.device_columns:
                try:
                    found[column.name] = np.asarray(counted[column.name], dtype=np.float64)[devices]
                except (KeyError, IndexError, TypeError, ValueError):
                    what = f"a number for each device in its column {column.name!r}"
                    raise SimulationError(
                        f"the meter {of!r}: of_devices gives not {what}"
                    ) from None
        return found

    def close(self, time: float) -> None:
        for of, meter in self._all.items():
            _asked(of, time, meter.close, time)

    def summary(self) -> dict[str, Any]:
        entries = {of: dict(_asked(of, None, meter.summary)) for of, meter in self._all.items()}
        for of, entry in entries.items():
            try:
                json.dumps(entry, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise SimulationError(
                    f"the meter {of!r}: what summary gives must be JSON: {error}"
                ) from None
        own = {of: entries.pop(of) for of in self._own}
        return entries | ({"meters": own} if own else {})

    def files(self) -> Iterator[tuple[str, Any, Mapping[str, type]]]:
        """The files of their own: name, content, and of a table the types of its columns."""
        for meter in self._all.values():
            for name, content in meter.files().items():
                yield name, content, meter.tables.get(name, {})

    def snapshot(self) -> dict[str, Any]:
        return {
            "starts": self._starts,
            "told": self._told,
            "meters": {of: one.snapshot() for of, one in self._all.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._starts = state["starts"]
        self._told = state["told"]
        for of, meter in self._all.items():
            meter.restore(state["meters"][of])


def _refuse_wrong_parameters(entry: str, meter: type[Meter]) -> None:
    """Refuse a meter with a method ``on_KIND`` that does not take the time and the fields of a
    record.
    """
    for name, hook in inspect.getmembers(meter, inspect.isfunction):
        if not name.startswith("on_") or hasattr(Meter, name):
            continue
        try:
            inspect.signature(hook).bind("self", "time", "fields")
        except TypeError:
            given = ", ".join(inspect.signature(hook).parameters)
            wrong = (
                f"{name}{home_of(hook)} is 'def {name}({given})'; it must be 'def {name}(self, "
                "time, fields)'"
            )
            raise ScenarioError(f"the meter {entry!r}: {wrong}") from None


def _asked(of: str, time: float | None, hook: Callable[..., Any], *given: Any) -> Any:
    try:
        return hook(*given)
    except FedsimError:
        raise
    except Exception as error:
        when = "" if time is None else f" at {time!r} s"
        raise SimulationError(
            f"the meter {of!r} failed{when}{place_of(error)}: {told(error)}"
        ) from error
