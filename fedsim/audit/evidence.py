"""Tables of a run folder as pandas frames: a run of millions of records fits in memory, and takes seconds.

A missing whole number is ``NOTHING``, a missing quantity is NaN, a missing name is ``""``.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import TypeAdapter

from fedsim.arrays import Flags, Floats, Ints
from fedsim.audit.data import READERS, Data, TableReader, number
from fedsim.errors import RunFolderError
from fedsim.files import read_json
from fedsim.language.units import TICK_S, Bytes
from fedsim.meters.base import ends_of
from fedsim.meters.energy import SETTING
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.records.schema import AVAILABILITY, DEVICES, EVENTS, ROUNDS, TRANSFERS

NOTHING = -(2**31)
OF_DEVICES = "step-end of download or upload"
FLOWS = ("edge-transfer", "message")
"""Records of messages outside of tasks that were on links."""

_OF_DEVICES = ("device", "link_down", "link_up", "latency", "arrival", "departure", "selected", "group", "speed", "samples")
_OF_ROUNDS = ("time", "accuracy", "bytes_down", "bytes_up", "bytes_peer")


class Evidence:
    """A run folder as the checks see it; each table is read when a check first wants it.

    Attributes:
        run: the folder.
        payloads: lists of purposes and bytes, and their numbers in columns ``payloads``: few messages have one of their own.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.payloads: dict[tuple[tuple[str, float], ...], int] = {}
        self._said: dict[str, pd.DataFrame] = {}
        sizes = dict.fromkeys(("start", "bytes", "delivered", "wire_bytes"), float)
        message = {**sizes, "payloads": int, "sender": object, "receiver": object}
        self._readers: dict[str, TableReader] = {
            **READERS,
            OF_DEVICES: (message, self._message),
            "server-transfer": (message, self._server_transfer),
            **dict.fromkeys(FLOWS, (message, self._flow)),
        }

    @cached_property
    def events(self) -> pd.DataFrame:
        """The records, but for their ``data``; the index is the record's number."""
        return self.frame(files.EVENTS, EVENTS, EVENTS.names[:-1])

    def said(self, of: str) -> pd.DataFrame:
        """The ``data`` of the records of a kind (see ``READERS``), by the record's number.

        Raises:
            RunFolderError: a record's ``data`` lack something.
        """
        if of not in self._said:
            self._said[of] = self._parsed(of, self._among(of), *self._readers[of])
        return self._said[of]

    def parse_others(self) -> None:
        """Parse the ``data`` of the records that no check reads.

        Raises:
            RunFolderError: some are not a table in JSON.
        """
        known = np.logical_or.reduce([self._among(of) for of in self._readers])
        self._parsed("other", ~known, {}, lambda data: ())

    def _among(self, of: str) -> Flags:
        kind, _, steps = of.partition(" of ")
        found = (self.events["kind"] == kind).to_numpy()
        return found & self.events["step"].isin(steps.split(" or ")).to_numpy() if steps else found

    def _parsed(
        self, of: str, mask: Flags, columns: Mapping[str, type], read_cells: Callable[[Data], tuple[Any, ...]]
    ) -> pd.DataFrame:
        texts = self._texts.filter(pa.array(mask)).fill_null("{}")
        texts = texts.combine_chunks().dictionary_encode()
        rows, codes = np.flatnonzero(mask), texts.indices.to_numpy()
        found = []
        for code, text in enumerate(texts.dictionary.to_pylist()):
            try:
                data = json.loads(text)
                if not isinstance(data, dict):
                    raise TypeError(f"{data!r} is no table")
                found.append(read_cells(data))
            except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
                row, reason = rows[codes.tolist().index(code)], f"{type(error).__name__}: {error}"
                where = f"{files.EVENTS} of {str(self.run.path)!r} is damaged"
                raise RunFolderError(f"{where}: record {row} ({of}) has wrong data ({reason})") from None
        cells = zip(*found, strict=True) if found else ((),) * len(columns)
        filled = zip(columns.items(), cells, strict=False)
        return pd.DataFrame({name: np.fromiter(told, kind, len(found))[codes] for (name, kind), told in filled}, index=rows)

    @cached_property
    def _texts(self) -> Any:
        return self._table(files.EVENTS, EVENTS, ["data"])["data"]

    def _numbered(self, payloads: Any) -> int:
        parts = tuple([(purpose, number(size)) for purpose, size in payloads])
        if not all(isinstance(purpose, str) for purpose, _ in parts):
            raise ValueError(f"{payloads!r} are no payloads")
        return self.payloads.setdefault(parts, len(self.payloads))

    def _message(self, data: Data) -> tuple[Any, ...]:
        sizes = data["bytes"], data["delivered"], data.get("wire_bytes", data["delivered"])
        ends = (data.get(end) or "" for end in ("sender", "receiver"))
        return math.nan, *map(number, sizes), self._numbered(data["payloads"]), *ends

    def _server_transfer(self, data: Data) -> tuple[Any, ...]:
        """All of it is of one purpose, arrives at once, and is on no link."""
        size = number(data["bytes"])
        return math.nan, size, size, 0.0, self._numbered([[data["purpose"], size]]), data["sender"], data["receiver"]

    def _flow(self, data: Data) -> tuple[Any, ...]:
        return number(data["start"]), *self._message(data)[1:-2], *ends_of(data)[1:]

    @cached_property
    def messages(self) -> pd.DataFrame:
        """Messages, by the record that tells of each.

        Columns: ``start`` (s; NaN where another record says it), ``bytes``, ``delivered``, ``wire_bytes``, ``payloads``,
        ``sender``, ``receiver``.
        """
        return pd.concat([self.said(name) for name in (OF_DEVICES, "server-transfer", *FLOWS)]).sort_index()

    @cached_property
    def moved(self) -> pd.DataFrame:
        """The transfers as the records have them, by their records; without ``purpose``."""
        messages = self.messages
        events = self.events.loc[messages.index]
        own, of_edge, of_peers = (events["kind"] == kind for kind in ("step-end", *FLOWS))
        at_once = ~(own | of_edge | of_peers)  # other parts of the server's side: begun and ended in its record
        starts = self.steps["start"].reindex(messages.index)
        down = np.where(own, events["step"] == "download", of_edge & (messages["sender"] == "server"))
        return messages.assign(
            start=np.where(own, starts, np.where(at_once, events["time"], messages["start"])),
            end=events["time"],
            direction=np.where(of_peers, "peer", np.where(down, "down", "up")),
            outcome=np.where(at_once, "done", events["outcome"]),
            **{name: events[name] for name in ("device", "round", "task")},
        )

    @property
    def core_s(self) -> "pd.Series[float]":
        """Seconds of a core that each computation got of its device's host, by its last record; NaN without hosts."""
        return self.said("step-end of train or evaluate or compute")["core_s"]

    @cached_property
    def idle(self) -> Flags:
        """Records that end a training of which no epoch counts; bool [records]."""
        trainings = self.said("step-end of train")
        return self.events.index.isin(trainings.index[trainings["epochs"] == 0])

    @cached_property
    def continues(self) -> Flags:
        """Records that begin a task that continues the one before; bool [records]."""
        starts = self.said("task-start")
        return self.events.index.isin(starts.index[starts["continues"]])

    @cached_property
    def lost_updates(self) -> "pd.Series[int]":
        """Tasks that were lost with their edge server, by the record that says so."""
        return self.said("updates-lost")["tasks"].explode().dropna().astype(np.int64)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Ends of steps, with the record (``begun``, -1: none) and the time (``start``, s) of their begins."""
        return self._spans("step")

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """Ends of tasks likewise."""
        return self._spans("task")

    @cached_property
    def in_vain(self) -> pd.DataFrame:
        """Ends of tasks that ended otherwise than done, trained for nothing, or were lost with an edge server."""
        useless = pd.concat([self.events["task"][self.idle], self.lost_updates])
        tasks = self.tasks[self.tasks["task"] != NOTHING]
        return tasks[(tasks["outcome"] != "done") | tasks["task"].isin(useless)]

    @cached_property
    def trainings(self) -> pd.DataFrame:
        """Ends of trainings, with their ``data``."""
        trainings = self.said("step-end of train")
        return self.steps.loc[trainings.index].join(trainings).join(self.core_s)

    def _spans(self, what: str) -> pd.DataFrame:
        events = self.events
        ended = events[events["kind"] == f"{what}-end"]
        begun = latest(events["kind"] == f"{what}-start", events["task"])[ended.index]
        return ended.assign(begun=begun, start=at_places(events["time"], begun))

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """The messages, with ``edge``: the edge server that sent or received each, or ``NOTHING``."""
        frame = self.frame(files.TRANSFERS, TRANSFERS, [name for name in TRANSFERS.names if name != "payloads"])
        ends = (numbered(frame[end], "edge") for end in ("receiver", "sender"))
        frame["edge"] = np.where(frame["direction"] == "peer", NOTHING, np.maximum(*ends))
        return frame.assign(payloads=self._payloads())

    def _payloads(self) -> Ints:
        column = self._table(files.TRANSFERS, TRANSFERS, ["payloads"])["payloads"]
        texts = column.combine_chunks().dictionary_encode()
        try:
            lookup = [self._numbered(json.loads(text)) for text in texts.dictionary.to_pylist()]
            if column.null_count:
                raise ValueError("a message has no payloads")
        except (TypeError, ValueError, RecursionError) as error:
            raise RunFolderError(f"{files.TRANSFERS} of {str(self.run.path)!r} is damaged: {error}") from None
        numbers: Ints = np.array(lookup, dtype=np.int64)[texts.indices.to_numpy()]
        return numbers

    @cached_property
    def devices(self) -> pd.DataFrame:
        """The devices."""
        return self.frame(files.DEVICES, DEVICES, _OF_DEVICES)

    def row_of(self, device: Any) -> Ints:
        """The row of each of these devices among ``devices``, -1 for one that has none; int64, as many."""
        index = pd.Index(self.devices["device"])
        if self.run.has_all_devices or not index.is_unique:
            index = pd.RangeIndex(len(index))
        rows: Ints = index.get_indexer(np.asarray(device)).astype(np.int64)
        return rows

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Of the rounds, what is added up over them."""
        return self.frame(files.ROUNDS, ROUNDS, _OF_ROUNDS)

    @cached_property
    def availability(self) -> pd.DataFrame | None:
        """When devices could be reached; None in a folder of an older fedsim."""
        there = self.run.has(files.AVAILABILITY)
        return self.frame(files.AVAILABILITY, AVAILABILITY, AVAILABILITY.names) if there else None

    def frame(self, name: str, schema: pa.Schema, columns: Sequence[str]) -> pd.DataFrame:
        """Columns of a table.

        Raises:
            RunFolderError: the table is missing or damaged.
        """
        table = self._table(name, schema, columns)
        return pd.DataFrame({column: _values(table[column]) for column in columns})

    def _table(self, name: str, schema: pa.Schema, columns: Sequence[str]) -> Any:
        wanted = pa.schema([schema.field(column) for column in columns])
        return pa.concat_tables([wanted.empty_table(), *self.run.batches(name, wanted)])

    @cached_property
    def network(self) -> dict[str, Any] | None:
        """The links and routes that the run has left in the folder; None where it left none.

        Raises:
            RunFolderError: they are damaged.
        """
        return self._json(files.NETWORK) if self.run.has(files.NETWORK) else None

    @cached_property
    def energy_setting(self) -> Any:
        """Setting by which energy is counted, besides the draw of each device.

        Raises:
            RunFolderError: it is missing or damaged.
        """
        return self._json(SETTING)

    def _json(self, name: str) -> Any:
        try:
            return read_json(self.run.path / name)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{name} of {str(self.run.path)!r} is missing or damaged: {error}") from None

    @property
    def cells(self) -> int:
        """Number of cells, or of places to which devices are attached."""
        network = self.run.scenario["network"]
        return network.get("cells", 0) if self.network is None else len(self.network["routes"]["down"])

    @property
    def overhead(self) -> float:
        """Bytes on the wire for a byte of payload, by the scenario's protocol."""
        usual = {"segment": "1 B", "header": "0 B"}  # of versions without protocols
        protocol = self.run.scenario["network"].get("protocol", usual)
        segment, header = (read(Bytes, protocol[key]) for key in ("segment", "header"))
        return float((segment + header) / segment)

    @property
    def has_own_protocol(self) -> bool:
        """Whether the protocol is of the user's own, which may count bytes otherwise."""
        return ":" in self.run.scenario["network"].get("protocol", {"kind": "fluid"})["kind"]


def _values(column: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        names = column.unify_dictionaries().combine_chunks()
        known = list(dict.fromkeys([*names.dictionary.to_pylist(), ""]))
        return pd.Categorical.from_codes(names.indices.fill_null(known.index("")), pd.Index(known, dtype=object))
    if pa.types.is_integer(column.type):
        return column.fill_null(NOTHING).to_numpy()
    return (column.fill_null(False) if pa.types.is_boolean(column.type) else column).to_numpy()


def findings(text: str, rows: pd.DataFrame, wrong: Any = slice(None)) -> Iterator[str]:
    """``text`` of each wrong row, filled in with the row's columns and, as ``row``, its index."""
    if np.any(wrong):
        for row, *values in rows[wrong].itertuples():
            yield text.format(row=row, **dict(zip(rows.columns, map(shown, values), strict=True)))


def shown(value: Any) -> Any:
    """A cell as findings show it: None where it is missing, and numbers as Python's."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain in (NOTHING, "") else plain


def latest(wanted: Any, keys: Any) -> Ints:
    """For each row the place of the last wanted one, at or before it, with the same key; -1 where there is none."""
    places = pd.Series(np.where(wanted, np.arange(len(wanted)), np.nan))
    found = places.groupby(np.asarray(keys)).ffill().fillna(-1)
    return found.to_numpy().astype(np.int64)


def at_places(values: Any, places: Ints) -> Floats:
    """The values at some places, NaN at place -1; float64 [places]."""
    return np.append(np.asarray(values, dtype=np.float64), np.nan)[places]


_adapter = cache(TypeAdapter[Any])


def close(one: Any, other: Any, atol: float = 1e-6) -> Any:
    """Whether numbers are equal up to the rounding of sums; bool, as many."""
    return np.isclose(one, other, rtol=1e-9, atol=atol)


def read(kind: Any, text: Any) -> Any:
    """A quantity as the scenario says it, of a ``kind`` such as ``Bytes``, in its base unit."""
    return _adapter(kind).validate_python(text)


def numbered(names: "pd.Series[str]", kind: str) -> Ints:
    """The numbers in names such as ``edge 3`` of one ``kind`` of endpoint; ``NOTHING`` for other names; int64 [names]."""
    codes, distinct = pd.factorize(names)
    found = [re.fullmatch(rf"{kind} ([0-9]{{1,9}})", str(name)) for name in distinct]
    return np.array([NOTHING if one is None else int(one[1]) for one in found], dtype=np.int64)[codes]


def grain_s(times: Any) -> Floats:
    """Least distance of two times around each of some (s): a tick, or beyond 97 days the spacing of float64."""
    return np.maximum(TICK_S, np.spacing(np.asarray(times, dtype=np.float64)))
