"""Contents of a run folder as pandas frames, from which the checks of the audit read."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike

from fedsim.common.arrays import Flags, Ints
from fedsim.common.errors import RunFolderError
from fedsim.common.files import read_json
from fedsim.common.tensor_files import StoredTensor
from fedsim.common.units import Bytes
from fedsim.lab.audit.data import (
    COMPUTATION_ENDS,
    DEVICE_MESSAGES,
    FLOWS,
    READERS,
    DataReader,
    PayloadTable,
    RecordData,
)
from fedsim.lab.audit.frames import (
    NOTHING,
    column_values,
    endpoint_numbers,
    last_marked_rows,
    read_quantity,
    values_at_rows,
)
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.records.schema import AVAILABILITY, DEVICES, EVENTS, ROUNDS, TRANSFERS

OWN_COLUMNS = {
    "epochs": "local_epochs",
    "steps": "local_steps",
    "batch_size": "batch_size",
    "lr": "lr",
}
"""Dict from key of ``population.local`` to column of ``devices.parquet``."""

TomlTable = Mapping[str, Any]
"""Table of a scenario, as a dict from key to value."""

_PARSING_ERRORS = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""Errors that readers raise for data that no run writes."""


class Evidence:
    """Tables and files of a run folder, from which all checks of the audit read.

    Each table is read at its first use and kept. Reading raises ``RunFolderError`` if the file is
    missing or damaged.

    Attributes:
        run: the run folder.
        payloads: the distinct payload lists (purpose and bytes of each part) of the run's messages.
            Columns named ``payloads`` have indices into ``payloads.lists``.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.payloads = PayloadTable()
        self._readers = {**READERS, **self.payloads.readers()}
        self._data: dict[str, pd.DataFrame] = {}

    @property
    def tested_only(self) -> int:
        """Count of devices that never train, and are only tested; they have the last IDs."""
        return int(self.run.scenario["population"].get("tested_only", 0))

    @property
    def trainable(self) -> int:
        """Count of devices that may train; they have the first IDs."""
        return int(self.run.scenario["population"]["devices"]) - self.tested_only

    @property
    def refuses_devices(self) -> bool:
        """Whether the scenario keeps devices with too little memory out of the run."""
        return bool(self.run.scenario["population"].get("short_of_memory") == "refuse")

    def data_of(self, kind: str) -> pd.DataFrame:
        """Return the fields in ``data`` of the records of a kind, as a table with a row per record.

        The fields are parsed from the JSON text ``data``; the index is the row of the record in
        ``events``.

        Args:
            kind: a kind of record, such as ``battery``. For records of steps, the kind and the
                names of the steps, such as ``step-end of train``.

        Returns:
            DataFrame with the columns that fedsim reads for this kind (``DataReader.columns``).
        """
        if kind not in self._data:
            self._data[kind] = self._parse(kind, self._select(kind), self._readers[kind])
        return self._data[kind]

    def parse_rest(self) -> None:
        """Parse the ``data`` of the records that no other check parses, to find damage.

        Raises:
            RunFolderError: the ``data`` of such a record is not a JSON object.
        """
        read_elsewhere = np.logical_or.reduce([self._select(kind) for kind in self._readers])
        self._parse("other", ~read_elsewhere, DataReader({"any": object}, _read_nothing))

    def _select(self, kind: str) -> Flags:
        """Return a mask of the records of a kind; bool [records].

        Args:
            kind: a kind of record, such as ``battery``, or a kind and its steps, such as
                ``step-end of train or evaluate``.
        """
        kind, _, steps = kind.partition(" of ")
        mask: Flags = (self.events["kind"] == kind).to_numpy()
        if steps:
            mask = mask & self.events["step"].isin(steps.split(" or ")).to_numpy()
        return mask

    def _parse(self, kind: str, mask: Flags, reader: DataReader) -> pd.DataFrame:
        """Parse the JSON texts ``data`` of some records.

        Args:
            kind: name of these records in an error.
            mask: the records to parse; bool [records].
            reader: parser of the texts, called once for each distinct text.

        Returns:
            DataFrame with the reader's columns, indexed by row of ``events``.

        Raises:
            RunFolderError: the data of a record cannot be parsed.
        """
        rows = np.flatnonzero(mask)  # rows of the records in ``events``
        column = self._texts.filter(pa.array(mask)).fill_null("{}")
        # each distinct text is parsed only once
        encoded = column.combine_chunks().dictionary_encode()
        distinct_texts = encoded.dictionary.to_pylist()
        text_of_record = encoded.indices.to_numpy()  # index in ``distinct_texts``; int32 [records]
        cells = []  # values of the reader's columns, for each distinct text
        for index, text in enumerate(distinct_texts):
            try:
                data = json.loads(text)
                if not isinstance(data, dict):
                    raise TypeError(f"{data!r} is no table")
                cells.append(reader.cells(data))
            except _PARSING_ERRORS as error:
                first_record = text_of_record.tolist().index(index)
                row = rows[first_record]
                reason = f"{type(error).__name__}: {error}"
                raise RunFolderError(
                    f"{files.EVENTS} of {str(self.run.path)!r} is damaged: record {row} ({kind}) "
                    f"has wrong data ({reason})"
                ) from None
        by_text = pd.DataFrame.from_records(cells, columns=[*reader.columns])
        # a row for each record, taken from the rows of the distinct texts
        by_record = by_text.astype(reader.columns).take(text_of_record)
        return by_record.set_axis(rows)

    @cached_property
    def _texts(self) -> pa.ChunkedArray:
        return self.run.table(files.EVENTS, ["data"])["data"]

    def frame(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        """Read columns of a table of the run folder.

        Missing cells become False (bool), NaN (floats), ``""`` (names) or ``NOTHING`` (integers), a
        negative number that no column has.

        Args:
            name: file name of the table.
            columns: names of the columns to read.

        Returns:
            DataFrame with ``columns``.
        """
        table = self.run.table(name, columns)
        return pd.DataFrame({column: column_values(table[column]) for column in columns})

    @cached_property
    def events(self) -> pd.DataFrame:
        """DataFrame of all records of the run, without the JSON in their ``data``.

        The index is the record's row, its position in the run.
        """
        return self.frame(files.EVENTS, EVENTS.names[:-1])

    @cached_property
    def recorded_transfers(self) -> pd.DataFrame:
        """DataFrame of all messages by the run's records, in the order in which the messages ended.

        It has the columns of ``transfers.parquet`` except ``purpose``; the index is the row of the
        record that ends the message.
        """
        kinds = (DEVICE_MESSAGES, "server-transfer", *FLOWS)
        data = pd.concat([self.data_of(kind) for kind in kinds]).sort_index()
        columns = ["kind", "step", "time", "device", "round", "task", "outcome"]
        records = data.join(self.events[columns])
        # A message of a task starts with its step, whose name gives the direction. A message
        # between parts of the server takes no time and always arrives. The records of all other
        # messages state start and direction.
        ends_step = records["kind"] == "step-end"
        of_servers = records["kind"] == "server-transfer"
        step_start = self.steps["start"].reindex(records.index)
        start = np.where(of_servers, records["time"], records["start"])
        direction = np.where(records["step"] == "download", "down", "up")
        return records.assign(
            start=np.where(ends_step, step_start, start),
            end=records["time"],
            direction=np.where(ends_step, direction, records["direction"]),
            outcome=np.where(of_servers, "done", records["outcome"]),
        )

    @property
    def core_s(self) -> "pd.Series[float]":
        """Core time (s) that each computation got on its host: cores times seconds.

        A host is a machine that several devices share. The record that ends a computation states
        the core time; it is NaN if the device shares no host. The index is the row of this record.
        """
        return self.data_of(COMPUTATION_ENDS)["core_s"]

    @cached_property
    def is_idle_training(self) -> Flags:
        """Mask of the records that end a training without any finished epoch; bool [records]."""
        trainings = self.data_of("step-end of train")
        return self.events.index.isin(trainings.index[trainings["epochs"] == 0])

    @cached_property
    def is_continuation(self) -> Flags:
        """Mask of the records that begin a continuation of a task; bool [records].

        In a continuation, a device goes on with its last task in the same round. Both count as one
        task.
        """
        starts = self.data_of("task-start")
        return self.events.index.isin(starts.index[starts["is_continuation"]])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """DataFrame of the records that end a step of a task, such as ``upload``.

        Besides the columns of the records it has ``begin_row``, the index of the record that begins
        the step (-1 for no such record), and ``start``, the time of that record (s).
        """
        return self._find_spans("step")

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """DataFrame of the records that end a task.

        Besides the columns of the records it has ``begin_row``, the index of the record that begins
        the task (-1 for no such record), and ``start``, the time of that record (s).
        """
        return self._find_spans("task")

    def _find_spans(self, unit: str) -> pd.DataFrame:
        """Return the records that end a task or a step, with ``begin_row`` and ``start`` added.

        ``begin_row`` is the row of the record that begins the task or step, -1 if there is none;
        ``start`` is the time of that record (s).

        Args:
            unit: ``task`` or ``step``.
        """
        events = self.events
        ends = events[events["kind"] == f"{unit}-end"]
        begin_row = last_marked_rows(events["kind"] == f"{unit}-start", events["task"])[ends.index]
        return ends.assign(begin_row=begin_row, start=values_at_rows(events["time"], begin_row))

    @cached_property
    def wasted_tasks(self) -> pd.DataFrame:
        """DataFrame of the end records of tasks whose update the server did not use.

        These tasks ended with an outcome other than ``done``, finished no epoch, or lost their
        update when an edge server failed. For a run of an older version, only tasks with another
        outcome than ``done`` are returned, because that version counted only these as wasted.
        """
        if self.run.understood.is_former:
            return self.tasks[(self.tasks["task"] != NOTHING) & (self.tasks["outcome"] != "done")]
        lost = self.data_of("updates-lost")["tasks"].explode().dropna().astype(np.int64)
        useless = pd.concat([self.events["task"][self.is_idle_training], lost])
        tasks = self.tasks[self.tasks["task"] != NOTHING]
        return tasks[(tasks["outcome"] != "done") | tasks["task"].isin(useless)]

    @cached_property
    def trainings(self) -> pd.DataFrame:
        """DataFrame of the records that end a training.

        Besides the columns of the records it has ``begin_row`` (row of the record that begins the
        training), ``start`` (time of that record, s), the epochs, samples and layers from the
        record's ``data``, and ``core_s``, the core time on a shared host (s).
        """
        trainings = self.data_of("step-end of train")
        return self.steps.loc[trainings.index].join(trainings).join(self.core_s)

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """DataFrame of ``transfers.parquet``, the table with a row for each message.

        The added column ``edge`` is the index of the edge server that sent or received the message.
        It is ``NOTHING`` (a negative number) for messages without an edge server, and for messages
        between devices.
        """
        columns = [name for name in TRANSFERS.names if name != "payloads"]
        frame = self.frame(files.TRANSFERS, columns)
        receiver = endpoint_numbers(frame["receiver"], "edge")
        sender = endpoint_numbers(frame["sender"], "edge")
        between_peers = frame["direction"] == "peer"
        frame["edge"] = np.where(between_peers, NOTHING, np.maximum(receiver, sender))
        column = self.run.table(files.TRANSFERS, ["payloads"])["payloads"]
        encoded = column.combine_chunks().dictionary_encode()
        try:
            distinct_texts = encoded.dictionary.to_pylist()
            # index of each text's payloads in ``self.payloads.lists``
            indices = [self.payloads.intern(json.loads(text)) for text in distinct_texts]
            if column.null_count:
                raise ValueError("a message has no payloads")
        except (TypeError, ValueError, RecursionError) as error:
            raise RunFolderError(
                f"{files.TRANSFERS} of {str(self.run.path)!r} is damaged: {error}"
            ) from None
        text_of_message = encoded.indices.to_numpy()  # index in ``distinct_texts``
        frame["payloads"] = np.array(indices, dtype=np.int64)[text_of_message]
        return frame

    @cached_property
    def devices(self) -> pd.DataFrame:
        """DataFrame of ``devices.parquet``, the table with a row for each device.

        If the scenario has ``population.local``, it includes each device's own epochs, SGD steps,
        batch size and learning rate.
        """
        names = [*DEVICES.names]
        if "local" in self.run.scenario["population"]:
            names += OWN_COLUMNS.values()
        return self.frame(files.DEVICES, names)

    def row_of(self, device: ArrayLike) -> Ints:
        """Return the row of each device in ``devices``.

        Args:
            device: device IDs, of any shape.

        Returns:
            Rows, -1 for a device that has no row; int64, of the shape of ``device``.
        """
        index = pd.Index(self.devices["device"])
        # In a table of all devices, the row of a device is its ID. A table with an ID twice is
        # damaged, and is read as if it had all devices.
        if self.run.has_all_devices or not index.is_unique:
            index = pd.RangeIndex(len(index))
        rows: Ints = index.get_indexer(np.asarray(device)).astype(np.int64)
        return rows

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """DataFrame of ``rounds.parquet``, the table with a row for each round."""
        return self.frame(files.ROUNDS, ROUNDS.names)

    @cached_property
    def availability(self) -> pd.DataFrame:
        """DataFrame of the times from which devices could or could not be reached.

        Columns are ``device``, ``time`` (s) and ``on``, whether the device is online from then on.
        The table is empty for run folders of older versions.
        """
        if not self.run.has(files.AVAILABILITY):
            return pd.DataFrame({name: [] for name in AVAILABILITY.names})
        return self.frame(files.AVAILABILITY, AVAILABILITY.names)

    @cached_property
    def models(self) -> dict[str, dict[str, StoredTensor]]:
        """Dict from name of a saved model file, without suffix, to its tensors by name."""
        return self.run.stored_models()

    @cached_property
    def network(self) -> TomlTable | None:
        """Links and routes of the network, from a JSON file; None if the run wrote no such file."""
        if not self.run.has(files.NETWORK):
            return None
        layout: TomlTable = self.document(files.NETWORK)
        return layout

    def document(self, name: str) -> Any:
        """Parse a JSON file of the folder.

        Args:
            name: file name.

        Raises:
            RunFolderError: the file is missing or damaged.
        """
        try:
            return read_json(self.run.path / name)
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{name} of {str(self.run.path)!r} is missing or damaged: {error}"
            ) from None

    @property
    def cells(self) -> int:
        """Count of the network's cells (places to which devices are attached); 0 if it has none."""
        if self.network is None:
            count: int = self.run.scenario["network"].get("cells", 0)
            return count
        return len(self.network["routes"]["down"])

    @property
    def overhead(self) -> float:
        """Bytes on the wire per byte of payload, by the scenario's protocol."""
        protocol = self.run.scenario["network"]["protocol"]
        segment = read_quantity(Bytes, protocol["segment"])
        header = read_quantity(Bytes, protocol["header"])
        return float((segment + header) / segment)

    @property
    def has_own_protocol(self) -> bool:
        """Whether the scenario's protocol is user code, given by an import path."""
        return ":" in self.run.scenario["network"]["protocol"]["kind"]


def _read_nothing(data: RecordData) -> tuple[object, ...]:
    return (None,)
