"""The recorder of a run, which turns records into tables, ledger and fingerprint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from fedsim.clock.simulation import Record
from fedsim.common.files import sync
from fedsim.common.step_names import DIRECTIONS
from fedsim.records import folder as files
from fedsim.records.chain import ChainState, EventChain
from fedsim.records.ledger import Ledger, LedgerState
from fedsim.records.parquet import TableWriter
from fedsim.records.schema import (
    EVENTS,
    ROUNDS,
    TRANSFERS,
    EventRow,
    encode_payloads,
    event_row,
    with_columns,
)
from fedsim.world.meters.base import Column, Meters, MetersState
from fedsim.world.meters.ended import MESSAGES, Transfer, transfer_of

_PAYLOADS = Transfer._fields.index("payloads")  # index of the column that tables store as JSON
_ROWS_AT_ONCE = 4_096


class RecorderState(TypedDict):
    """State of ``Recorder`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        parts: table -> SHA-256 of each part file of the table, in order of the rows.
        chain: running hash over all records so far.
        ledger: bytes counted so far.
        rounds: rows of ``rounds.parquet`` so far.
        last_time: time of the last record (s).
        starts: task ID -> start of the step that began last (s), for each running task.
        moved: bytes to devices, from devices and between other endpoints until the end of the last
            round.
        meters: states of the meters.
    """

    parts: dict[str, list[str]]
    chain: ChainState
    ledger: LedgerState
    rounds: list[dict[str, Any]]
    last_time: float
    starts: dict[int, float]
    moved: tuple[float, float, float]
    meters: MetersState


class Recorder:
    """Writer of a run's tables: it receives all records, and writes them to the run folder.

    A record is an event of the run, with time, kind and fields. The tables of messages and of
    rounds, and the sums of bytes, are derived from the records. Files are written while the run
    goes on.

    Args:
        folder: the existing run folder; None to store only the rounds, in memory.
        meters: objects that count quantities such as energy; they receive each record first.
        columns: columns of ``rounds.parquet`` in addition to the columns in ``schema.ROUNDS`` and
            of meters.

    Attributes:
        ledger: sums of the bytes that moved.
        rounds: rows of ``rounds.parquet`` so far.
        last_time: time of the last record (s).
    """

    def __init__(
        self, folder: Path | None, meters: Meters | None = None, columns: Sequence[Column] = ()
    ) -> None:
        self.meters = Meters() if meters is None else meters
        self._is_metered = bool(self.meters)
        self._chain = EventChain()
        # rows of events and transfers that are not in a table yet
        self._rows: list[EventRow] = []
        self._transfers: list[tuple[object, ...]] = []
        self.ledger = Ledger()
        self.rounds: list[dict[str, Any]] = []
        self.last_time = 0.0
        self._starts: dict[int, float] = {}
        self._moved = (0.0, 0.0, 0.0)
        self._folder = folder
        rounds = with_columns(ROUNDS, [*columns, *self.meters.columns("round")])
        self._empty = dict.fromkeys(rounds.names)
        self._tables: dict[str, TableWriter] = {}
        if folder is not None:
            schemas = {files.EVENTS: EVENTS, files.TRANSFERS: TRANSFERS, files.ROUNDS: rounds}
            for name, schema in schemas.items():
                self._tables[name] = TableWriter(folder / name, schema)

    def take(self, record: Record) -> None:
        """Process a record: store it, and update tables and sums.

        Args:
            record: the next record of the run, in order of time.
        """
        time, kind, fields = record
        self.last_time = time
        if self._is_metered:
            self.meters.take(record)
        # the row is made now, because the values of the record's fields may change later
        self._rows.append(event_row(record))
        if kind == "step-start":
            self._starts[fields["task"]] = time
        elif kind == "step-end":
            step = fields["step"]
            if step in DIRECTIONS:
                start = self._starts.get(fields["task"], time)
                self._add_transfer(transfer_of(time, kind, fields, start))
            elif step == "train" and not fields["epochs"]:
                self.ledger.note_idle(fields["task"])
        elif kind == "task-end":
            self._starts.pop(fields["task"], None)
            self.ledger.close_task(fields["task"], fields["outcome"])
        elif kind == "updates-lost":
            self.ledger.count_as_wasted(fields["tasks"])
        elif kind == "round":
            self._add_round(time, fields)
        elif kind in MESSAGES:
            self._add_transfer(transfer_of(time, kind, fields, time))
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush_rows()

    def _add_transfer(self, ended: Transfer | None) -> None:
        """Add a message that has ended to the sums of bytes and to the table of messages.

        Args:
            ended: the message; None if the record ends no message, and then nothing is done.
        """
        if ended is None:
            return
        self.ledger.add(ended.task, ended.direction, ended.payloads, ended.delivered)
        if ended.task is not None and (ended.sender or ended.receiver):
            self.ledger.note_edge(ended.task)
        if self._tables:
            payloads = encode_payloads(ended.payloads)
            self._transfers.append((*ended[:_PAYLOADS], payloads, *ended[_PAYLOADS + 1 :]))

    def _add_round(self, time: float, fields: Mapping[str, object]) -> None:
        """Append a row to the table of rounds, with the bytes that moved since the previous round.

        Args:
            time: time at which the round ended (s).
            fields: fields of the record ``round``. The fields that are columns of the table become
                cells.
        """
        ledger = self.ledger
        down, up, peer = self._moved
        self._moved = (ledger.down, ledger.up, ledger.peer)
        row: dict[str, Any] = dict(self._empty)
        for name, value in fields.items():
            if name in row:
                row[name] = value
        row["time"] = time
        row["bytes_down"] = ledger.down - down
        row["bytes_up"] = ledger.up - up
        if ledger.peer:
            row["bytes_peer"] = ledger.peer - peer
        row |= self.meters.of_round(time)
        self.rounds.append(row)
        ledger.close_round(self._starts)
        if self._tables:
            self._tables[files.ROUNDS].extend([tuple(row.values())])

    def _flush_rows(self) -> None:
        """Append the rows collected in memory to the tables and to the fingerprint of records."""
        self._chain.extend(self._rows)
        if self._tables:
            self._tables[files.EVENTS].extend(self._rows)
            self._tables[files.TRANSFERS].extend(self._transfers)
        self._rows = []
        self._transfers = []

    def fingerprint(self) -> EventChain:
        """Return the fingerprint of all records so far, with their count.

        The rows that are collected in memory are first added to the tables.
        """
        self._flush_rows()
        return self._chain

    def close(self) -> None:
        """Close the meters, and write the final files of the tables."""
        self.meters.close(self.last_time)
        if self._folder is not None:
            self.copy_to(self._folder)

    def copy_to(self, folder: Path) -> None:
        """Write all tables with their rows so far to a folder; the tables can still grow.

        Args:
            folder: an existing folder: the run folder at the end of the run, or the folder of a
                live view, a copy by which a run can be read while it goes on.
        """
        self._flush_rows()
        for name, table in self._tables.items():
            table.copy_to(folder / name)

    @property
    def parts(self) -> list[Path]:
        """Paths of the part files of all tables, which have the rows written so far."""
        return [part for table in self._tables.values() for part in table.parts]

    def snapshot(self) -> RecorderState:
        """Return the state that a checkpoint saves; all rows are first written to the disk."""
        chain = self.fingerprint().snapshot()
        parts = {name: table.flush() for name, table in self._tables.items()}
        if self._folder is not None:
            sync(self._folder)
        return {
            "parts": parts,
            "chain": chain,
            "ledger": self.ledger.snapshot(),
            "rounds": self.rounds,
            "last_time": self.last_time,
            "starts": self._starts,
            "moved": self._moved,
            "meters": self.meters.snapshot(),
        }

    def restore(self, state: RecorderState) -> None:
        """Set the state that ``snapshot`` returned, when a run is resumed from a checkpoint.

        Raises:
            CheckpointError: a file with rows of a table is missing, or has been changed.
        """
        for name, table in self._tables.items():
            table.adopt(state["parts"][name])
        self._rows = []
        self._transfers = []
        self._chain.restore(state["chain"])
        self.ledger.restore(state["ledger"])
        self.rounds = state["rounds"]
        self.last_time = state["last_time"]
        self._starts = state["starts"]
        self._moved = state["moved"]
        self.meters.restore(state["meters"])
