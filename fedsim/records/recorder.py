"""From records to tables: the sink that listens to a run and keeps its books."""

import json
from pathlib import Path
from typing import Any

from fedsim.records import folder as files
from fedsim.records.digest import EventChain
from fedsim.records.ledger import Ledger
from fedsim.records.schema import EVENTS, ROUNDS, TRANSFERS, event_row
from fedsim.records.tables import TableWriter
from fedsim.simulation import Record

_DIRECTIONS = {"download": "down", "upload": "up"}
_ROUND_FIELDS = ("accuracy", "loss", "train_loss", "discrepancy", "selected", "valid", "slow", "disconnected")


class Recorder:
    """Writes every record to the run folder, and derives from them the transfers, the rounds and the ledger.

    Args:
        folder: an existing folder, or None to keep only the rounds, in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self.chain = EventChain()
        self.ledger = Ledger()
        self.rounds: list[dict[str, Any]] = []
        self.last_time = 0.0
        self._starts: dict[int, float] = {}
        self._moved = (0.0, 0.0)
        tables = {} if folder is None else {files.EVENTS: EVENTS, files.TRANSFERS: TRANSFERS, files.ROUNDS: ROUNDS}
        self._tables = {name: TableWriter(folder / name, schema) for name, schema in tables.items() if folder is not None}

    def take(self, record: Record) -> None:
        """Take in the next record."""
        row = event_row(record)
        self.chain.add(row)
        self.last_time = record.time
        self._append(files.EVENTS, row)
        match record.kind:
            case "step-start":
                self._starts[record.fields["task"]] = record.time
            case "step-end" if record.fields["step"] in _DIRECTIONS:
                self._take_transfer(record.time, record.fields)
            case "task-end":
                self._starts.pop(record.fields["task"], None)
                self.ledger.close_task(record.fields["task"], record.fields["outcome"])
            case "round":
                self._take_round(record.time, record.fields)

    def close(self) -> None:
        """Bring the tables into their final files."""
        for table in self._tables.values():
            table.close()

    def _append(self, name: str, row: tuple[Any, ...]) -> None:
        if name in self._tables:
            self._tables[name].append(row)

    def _take_transfer(self, time: float, fields: dict[str, Any]) -> None:
        direction, payloads = _DIRECTIONS[fields["step"]], fields["payloads"]
        self.ledger.add(fields["task"], direction, payloads, fields["delivered"])
        purpose = "+".join(name for name, _ in payloads)
        start = self._starts[fields["task"]]
        self._append(
            files.TRANSFERS,
            (
                start,
                time,
                fields["device"],
                direction,
                purpose,
                fields["bytes"],
                fields["delivered"],
                fields["outcome"],
                fields["round"],
                fields["task"],
                json.dumps(payloads, separators=(",", ":")),
            ),
        )

    def _take_round(self, time: float, fields: dict[str, Any]) -> None:
        down, up = self.ledger.down - self._moved[0], self.ledger.up - self._moved[1]
        self._moved = (self.ledger.down, self.ledger.up)
        row = {"round": fields["round"], "time": time} | {name: fields.get(name) for name in _ROUND_FIELDS}
        row |= {"bytes_down": down, "bytes_up": up}
        self.rounds.append(row)
        self._append(files.ROUNDS, tuple(row.values()))
