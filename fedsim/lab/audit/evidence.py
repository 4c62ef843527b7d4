"""A run folder as the pandas frames that the checks read."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike

from fedsim.common.arrays import AnyArray, Flags, Ints
from fedsim.common.errors import RunFolderError
from fedsim.common.files import read_json
from fedsim.common.units import Bytes
from fedsim.lab.audit.data import (
    FLOWS,
    OF_DEVICES,
    READERS,
    DataReader,
    PayloadTable,
    RecordData,
)
from fedsim.lab.audit.frames import (
    NOTHING,
    at_places,
    column_values,
    endpoint_numbers,
    latest,
    read,
)
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.records.schema import AVAILABILITY, DEVICES, EVENTS, ROUNDS, TRANSFERS

TomlTable = Mapping[str, Any]
"""A table of the scenario."""

_DAMAGES = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""Errors of a reader on data that no run writes."""


class Evidence:
    """The tables of a run folder, each read when a check first uses it.

    Every table raises ``RunFolderError`` if its file is missing or damaged.

    Attributes:
        run: the folder.
        payloads: the lists of payloads to which the columns ``payloads`` refer.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.payloads = PayloadTable()
        self._readers = {**READERS, **self.payloads.readers()}
        self._data: dict[str, pd.DataFrame] = {}

    def data_of(self, kind: str) -> pd.DataFrame:
        """The ``data`` of the records of a kind, by the record's number.

        Args:
            kind: of records, or a kind and its steps, such as ``step-end of train``.

        Returns:
            The columns of the kind's ``DataReader``.
        """
        if kind not in self._data:
            self._data[kind] = self._parse(kind, self._select(kind), self._readers[kind])
        return self._data[kind]

    def parse_rest(self) -> None:
        """Parse the ``data`` of the records of which no check reads the data."""
        read_elsewhere = np.logical_or.reduce([self._select(kind) for kind in self._readers])
        self._parse("other", ~read_elsewhere, DataReader({"any": object}, _read_nothing))

    def _select(self, kind: str) -> Flags:
        kind, _, steps = kind.partition(" of ")
        mask: Flags = (self.events["kind"] == kind).to_numpy()
        if steps:
            mask = mask & self.events["step"].isin(steps.split(" or ")).to_numpy()
        return mask

    def _parse(self, kind: str, mask: Flags, reader: DataReader) -> pd.DataFrame:
        """Parse each distinct text of the masked records once."""
        column = self._texts.filter(pa.array(mask)).fill_null("{}")
        texts = column.combine_chunks().dictionary_encode()
        codes = texts.indices.to_numpy()
        rows = np.flatnonzero(mask)
        cells = []
        for code, text in enumerate(texts.dictionary.to_pylist()):
            try:
                data = json.loads(text)
                if not isinstance(data, dict):
                    raise TypeError(f"{data!r} is no table")
                cells.append(reader.cells(data))
            except _DAMAGES as error:
                row = rows[codes.tolist().index(code)]
                reason = f"{type(error).__name__}: {error}"
                raise RunFolderError(
                    f"{files.EVENTS} of {str(self.run.path)!r} is damaged: record {row} ({kind}) "
                    f"has wrong data ({reason})"
                ) from None
        distinct = pd.DataFrame.from_records(cells, columns=[*reader.columns])
        return distinct.astype(reader.columns).take(codes).set_axis(rows)

    @cached_property
    def _texts(self) -> pa.ChunkedArray:
        return self.run.table(files.EVENTS, ["data"])["data"]

    def frame(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        """Some columns of a table of the folder.

        Args:
            name: the name of the table.
            columns: the names of the columns.
        """
        table = self.run.table(name, columns)
        return pd.DataFrame({column: column_values(table[column]) for column in columns})

    @cached_property
    def events(self) -> pd.DataFrame:
        """The records without their ``data``; the index is the record's number."""
        return self.frame(files.EVENTS, EVENTS.names[:-1])

    @cached_property
    def recorded_transfers(self) -> pd.DataFrame:
        """The messages by the records that end them, in the columns of ``transfers``.

        There is no ``purpose``.
        """
        kinds = (OF_DEVICES, "server-transfer", *FLOWS)
        data = pd.concat([self.data_of(kind) for kind in kinds]).sort_index()
        columns = ["kind", "step", "time", "device", "round", "task", "outcome"]
        records = data.join(self.events[columns])
        of_tasks = records["kind"] == "step-end"
        at_once = records["kind"] == "server-transfer"
        step_start = self.steps["start"].reindex(records.index)
        start = np.where(at_once, records["time"], records["start"])
        direction = np.where(records["step"] == "download", "down", "up")
        return records.assign(
            start=np.where(of_tasks, step_start, start),
            end=records["time"],
            direction=np.where(of_tasks, direction, records["direction"]),
            outcome=np.where(at_once, "done", records["outcome"]),
        )

    @property
    def core_s(self) -> "pd.Series[float]":
        """Core time of each computation on its host (s), by its last record; NaN without hosts."""
        return self.data_of("step-end of train or evaluate or compute")["core_s"]

    @cached_property
    def is_idle_training(self) -> Flags:
        """Whether each record ends a training of which no epoch counts; bool [records]."""
        trainings = self.data_of("step-end of train")
        return self.events.index.isin(trainings.index[trainings["epochs"] == 0])

    @cached_property
    def is_continuation(self) -> Flags:
        """Whether each record begins a task that continues its device's last; bool [records]."""
        starts = self.data_of("task-start")
        return self.events.index.isin(starts.index[starts["continues"]])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The ends of steps; ``begun`` and ``start`` as in ``tasks``."""
        return self._find_spans("step")

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """The ends of tasks, with the record of their begin (``begun``) and its time (``start``, s).

        ``begun`` is -1 for a task whose begin is not recorded.
        """
        return self._find_spans("task")

    def _find_spans(self, unit: str) -> pd.DataFrame:
        events = self.events
        ends = events[events["kind"] == f"{unit}-end"]
        begun = latest(events["kind"] == f"{unit}-start", events["task"])[ends.index]
        return ends.assign(begun=begun, start=at_places(events["time"], begun))

    @cached_property
    def wasted_tasks(self) -> pd.DataFrame:
        """The ends of tasks without an update that counts.

        They ended otherwise than done, trained no epoch that counts, or were lost with an edge
        server.
        """
        lost = self.data_of("updates-lost")["tasks"].explode().dropna().astype(np.int64)
        useless = pd.concat([self.events["task"][self.is_idle_training], lost])
        tasks = self.tasks[self.tasks["task"] != NOTHING]
        return tasks[(tasks["outcome"] != "done") | tasks["task"].isin(useless)]

    @cached_property
    def trainings(self) -> pd.DataFrame:
        """The ends of trainings, with their data and ``core_s``."""
        trainings = self.data_of("step-end of train")
        return self.steps.loc[trainings.index].join(trainings).join(self.core_s)

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """The table of messages, with the edge server that sent or received each (``edge``).

        ``edge`` is ``NOTHING`` for messages without an edge server, and between devices.
        """
        columns = [name for name in TRANSFERS.names if name != "payloads"]
        frame = self.frame(files.TRANSFERS, columns)
        receiver = endpoint_numbers(frame["receiver"], "edge")
        sender = endpoint_numbers(frame["sender"], "edge")
        between_peers = frame["direction"] == "peer"
        frame["edge"] = np.where(between_peers, NOTHING, np.maximum(receiver, sender))
        column = self.run.table(files.TRANSFERS, ["payloads"])["payloads"]
        texts = column.combine_chunks().dictionary_encode()
        try:
            distinct = texts.dictionary.to_pylist()
            numbers = [self.payloads.intern(json.loads(text)) for text in distinct]
            if column.null_count:
                raise ValueError("a message has no payloads")
        except (TypeError, ValueError, RecursionError) as error:
            raise RunFolderError(
                f"{files.TRANSFERS} of {str(self.run.path)!r} is damaged: {error}"
            ) from None
        frame["payloads"] = np.array(numbers, dtype=np.int64)[texts.indices.to_numpy()]
        return frame

    @cached_property
    def devices(self) -> pd.DataFrame:
        """The table of devices."""
        return self.frame(files.DEVICES, DEVICES.names)

    def row_of(self, device: ArrayLike) -> Ints:
        """Rows of devices in ``devices``, -1 for a device without one; int64, of their shape."""
        index = pd.Index(self.devices["device"])
        if self.run.has_all_devices or not index.is_unique:
            index = pd.RangeIndex(len(index))
        rows: Ints = index.get_indexer(np.asarray(device)).astype(np.int64)
        return rows

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """The table of rounds."""
        return self.frame(files.ROUNDS, ROUNDS.names)

    @cached_property
    def availability(self) -> pd.DataFrame:
        """The table of availability; empty if the version that wrote the folder had none."""
        if not self.run.has(files.AVAILABILITY):
            return pd.DataFrame({name: [] for name in AVAILABILITY.names})
        return self.frame(files.AVAILABILITY, AVAILABILITY.names)

    @cached_property
    def models(self) -> dict[str, dict[str, AnyArray]]:
        """The tensors of every model file, by the file's name without its ending."""
        return self.run.models()

    @cached_property
    def network(self) -> TomlTable | None:
        """The layout of the network; None if the run left none."""
        if not self.run.has(files.NETWORK):
            return None
        layout: TomlTable = self.document(files.NETWORK)
        return layout

    def document(self, name: str) -> Any:
        """Parse a JSON file of the folder."""
        try:
            return read_json(self.run.path / name)
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{name} of {str(self.run.path)!r} is missing or damaged: {error}"
            ) from None

    @property
    def cells(self) -> int:
        """Number of cells, or of places to which devices are attached."""
        if self.network is None:
            count: int = self.run.scenario["network"].get("cells", 0)
            return count
        return len(self.network["routes"]["down"])

    @property
    def overhead(self) -> float:
        """Bytes on the wire for a byte of payload, by the scenario's protocol."""
        protocol = self.run.scenario["network"]["protocol"]
        segment = read(Bytes, protocol["segment"])
        header = read(Bytes, protocol["header"])
        return float((segment + header) / segment)

    @property
    def has_own_protocol(self) -> bool:
        """Whether the scenario names its protocol by an import path."""
        return ":" in self.run.scenario["network"]["protocol"]["kind"]


def _read_nothing(data: RecordData) -> tuple[object, ...]:
    return (None,)
