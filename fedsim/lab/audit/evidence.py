"""A run folder as pandas frames: a missing whole number is ``NOTHING``, a missing quantity NaN,
a missing name ``""``.
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

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.errors import RunFolderError
from fedsim.common.files import read_json
from fedsim.common.units import TICK_S, Bytes
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.records.schema import AVAILABILITY, DEVICES, EVENTS, ROUNDS, TRANSFERS
from fedsim.world.meters.base import ends_of

NOTHING = -(2**31)
OF_DEVICES = "step-end of download or upload"
FLOWS = ("edge-transfer", "message")
"""Records of messages outside of tasks that were on links."""

PEERS = ("d-psgd", "diloco", "epidemic", "gossip", "local-sgd")
"""Strategies whose devices send to each other."""

TomlTable = Mapping[str, Any]
"""A table of the scenario."""

Data = dict[str, Any]
"""The parsed ``data`` of a record."""


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _tasks(data: Data) -> list[int]:
    if not all(type(task) is int for task in data["tasks"]):
        raise TypeError(f"{data['tasks']!r} are no tasks")
    return list(data["tasks"])


def _counts_of(data: Data) -> tuple[float, float, bool, float]:
    part = data.get("part")
    return (
        _number(data["epochs"]),
        _number(data["asked"]),
        part is not None,
        math.nan if part is None else _number(part[2]),
    )


def _weights(data: Data) -> tuple[list[float] | None, Any]:
    weights = data.get("weights")
    return None if weights is None else [*map(_number, weights)], data.get("staleness")


def _limits(data: Data) -> tuple[float, float, float]:
    deadline = data.get("deadline")
    limit = math.nan if deadline is None else _number(deadline)
    return (
        limit,
        _number(data.get("training_limit", math.inf)),
        _number(data.get("selected", math.nan)),
    )


def _battery(data: Data) -> tuple[Any, ...]:
    levels = [_number(data["level"]), *(_number(level) for _, level in data["path"])]
    return (
        bool(data["flat"]),
        *(_number(data[key]) for key in _LEVELS),
        min(levels),
        max(levels),
        len(levels) - 1,
    )


_LEVELS = ("level", "charged", "idle", "drawn")
_READERS: dict[str, tuple[Mapping[str, type], Callable[[Data], tuple[Any, ...]]]] = {
    "step-end of train": (
        {"epochs": float, "asked": float, "in_part": bool, "part_samples": float, "ends": object},
        lambda data: (*_counts_of(data), [*map(_number, data["epoch_ends"])]),
    ),
    "step-end of train or evaluate or compute": (
        {"core_s": float},
        lambda data: (_number(data.get("core_s", math.nan)),),
    ),
    "task-start": ({"continues": bool}, lambda data: (data.get("continues") is True,)),
    **dict.fromkeys(("edge-off", "edge-on"), ({"edge": int}, lambda data: (int(data["edge"]),))),
    "assign": (
        {"before": float},
        lambda data: (math.nan if data["before"] is None else _number(data["before"]),),
    ),
    "shift": (
        {"what": object, "occasion": int},
        lambda data: (data["what"], int(data["occasion"])),
    ),
    "pace": ({"factor": float}, lambda data: (_number(data["factor"]),)),
    "queue": (
        {"direction": object, "slots": int},
        lambda data: (data["direction"], int(data["slots"])),
    ),
    "updates-lost": ({"tasks": object}, lambda data: (_tasks(data),)),
    "aggregate": (
        {
            "tasks": object,
            "rounds": bool,
            "at_edge": bool,
            "edge": float,
            "weights": object,
            "staleness": object,
            "bears": float,
        },
        lambda data: (
            _tasks(data),
            "staleness" not in data,
            "edge" in data,
            math.nan if data.get("edge") is None else _number(data["edge"]),
            *_weights(data),
            _number(data.get("bears", math.nan)),
        ),
    ),
    "edges-combined": (
        {"edges": object, "weights": object},
        lambda data: ([*data["edges"]], [*data["weights"]]),
    ),
    "round-start": ({"deadline": float, "training": float, "selected": float}, _limits),
    "round": ({"data": object}, lambda data: (data,)),
    "battery": (
        {"flat": bool, **dict.fromkeys((*_LEVELS, "least", "most", "points"), float)},
        _battery,
    ),
    "run-end": ({"reason": object}, lambda data: (data["reason"],)),
    "link-rate": (
        {"link": object, "rate": float},
        lambda data: (
            str(data["link"]),
            math.inf if data["rate"] is None else _number(data["rate"]),
        ),
    ),
}
"""The columns that the ``data`` of each kind of record make, and the function that gives their
cells.
"""


class Evidence:
    """A run folder as the checks see it; each table is read when a check first wants it.

    Every table raises ``RunFolderError`` where it is missing or damaged.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        # lists of purposes and bytes: their numbers in tables
        self.payloads: dict[tuple[tuple[str, float], ...], int] = {}
        self._said: dict[str, pd.DataFrame] = {}
        numbers = dict.fromkeys(("start", "bytes", "delivered", "wire_bytes"), float)
        message = {
            "direction": object,
            "sender": object,
            "receiver": object,
            **numbers,
            "payloads": int,
        }
        self._readers = _READERS | {
            OF_DEVICES: (message, self._of_device),
            "server-transfer": (message, self._at_once),
        }
        self._readers |= dict.fromkeys(FLOWS, (message, self._on_links))

    def _of_device(self, data: Data) -> tuple[Any, ...]:
        return (
            "",
            data.get("sender") or "",
            data.get("receiver") or "",
            math.nan,
            *self._sizes(data),
        )

    def _on_links(self, data: Data) -> tuple[Any, ...]:
        return *ends_of(data), _number(data["start"]), *self._sizes(data)

    def _sizes(self, data: Data) -> tuple[Any, ...]:
        sizes = data["bytes"], data["delivered"], data.get("wire_bytes", data["delivered"])
        return *map(_number, sizes), self._numbered(data["payloads"])

    def _at_once(self, data: Data) -> tuple[Any, ...]:
        size = _number(data["bytes"])
        payloads = self._numbered([[data["purpose"], size]])
        return "up", data["sender"], data["receiver"], math.nan, size, size, 0.0, payloads

    def _numbered(self, payloads: Any) -> int:
        parts = tuple([(purpose, _number(size)) for purpose, size in payloads])
        if not all(isinstance(purpose, str) for purpose, _ in parts):
            raise ValueError(f"{payloads!r} are no payloads")
        return self.payloads.setdefault(parts, len(self.payloads))

    def said(self, of: str) -> pd.DataFrame:
        """The ``data`` of the records of a kind (see ``_READERS``), by the record's number."""
        if of not in self._said:
            self._said[of] = self._parsed(of, self._among(of), *self._readers[of])
        return self._said[of]

    def parse_others(self) -> None:
        """Parse the ``data`` of the records that no check reads."""
        known = np.logical_or.reduce([*map(self._among, self._readers)])
        self._parsed("other", ~known, {"any": object}, lambda data: (None,))

    def _among(self, of: str) -> Flags:
        kind, _, steps = of.partition(" of ")
        found = (self.events["kind"] == kind).to_numpy()
        return found & self.events["step"].isin(steps.split(" or ")).to_numpy() if steps else found

    def _parsed(
        self,
        of: str,
        mask: Flags,
        columns: Mapping[str, type],
        cells: Callable[[Data], tuple[Any, ...]],
    ) -> pd.DataFrame:
        texts = (
            self._texts.filter(pa.array(mask)).fill_null("{}").combine_chunks().dictionary_encode()
        )
        rows = np.flatnonzero(mask)
        codes = texts.indices.to_numpy()
        found = []
        for code, text in enumerate(texts.dictionary.to_pylist()):
            try:
                data = json.loads(text)
                if not isinstance(data, dict):
                    raise TypeError(f"{data!r} is no table")
                found.append(cells(data))
            except (
                KeyError,
                TypeError,
                ValueError,
                ArithmeticError,
                AttributeError,
                RecursionError,
            ) as error:
                row = rows[codes.tolist().index(code)]
                reason = f"{type(error).__name__}: {error}"
                where = f"{files.EVENTS} of {str(self.run.path)!r} is damaged"
                raise RunFolderError(
                    f"{where}: record {row} ({of}) has wrong data ({reason})"
                ) from None
        return (
            pd.DataFrame.from_records(found, columns=[*columns])
            .astype(columns)
            .take(codes)
            .set_axis(rows)
        )

    @cached_property
    def _texts(self) -> Any:
        return self.run.table(files.EVENTS, ["data"])["data"]

    def frame(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        table = self.run.table(name, columns)
        return pd.DataFrame({column: _values(table[column]) for column in columns})

    @cached_property
    def events(self) -> pd.DataFrame:
        """The records, but for their ``data``; the index is the record's number."""
        return self.frame(files.EVENTS, EVENTS.names[:-1])

    @cached_property
    def moved(self) -> pd.DataFrame:
        """The transfers as the records have them, by their records; without ``purpose``."""
        told = pd.concat(
            [self.said(name) for name in (OF_DEVICES, "server-transfer", *FLOWS)]
        ).sort_index()
        told = told.join(
            self.events[["kind", "step", "time", "device", "round", "task", "outcome"]]
        )
        own = told["kind"] == "step-end"
        at_once = told["kind"] == "server-transfer"
        starts = np.where(
            own,
            self.steps["start"].reindex(told.index),
            np.where(at_once, told["time"], told["start"]),
        )
        ways = np.where(own, np.where(told["step"] == "download", "down", "up"), told["direction"])
        outcomes = np.where(at_once, "done", told["outcome"])
        return told.assign(start=starts, end=told["time"], direction=ways, outcome=outcomes)

    @property
    def core_s(self) -> "pd.Series[float]":
        """Seconds of a core that each computation got of its device's host, by its last record;
        NaN without hosts.
        """
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
    def steps(self) -> pd.DataFrame:
        return self._spans("step")

    @cached_property
    def tasks(self) -> pd.DataFrame:
        return self._spans("task")

    def _spans(self, what: str) -> pd.DataFrame:
        """Ends of steps or tasks, with the record (``begun``, -1: none) and the time (``start``,
        s) of their begins.
        """
        events = self.events
        ended = events[events["kind"] == f"{what}-end"]
        begun = latest(events["kind"] == f"{what}-start", events["task"])[ended.index]
        return ended.assign(begun=begun, start=at_places(events["time"], begun))

    @cached_property
    def in_vain(self) -> pd.DataFrame:
        """Ends of tasks that ended otherwise than done, trained for nothing, or were lost with
        an edge server.
        """
        lost = self.said("updates-lost")["tasks"].explode().dropna()
        useless = pd.concat([self.events["task"][self.idle], lost.astype(np.int64)])
        tasks = self.tasks[self.tasks["task"] != NOTHING]
        return tasks[(tasks["outcome"] != "done") | tasks["task"].isin(useless)]

    @cached_property
    def trainings(self) -> pd.DataFrame:
        trainings = self.said("step-end of train")
        return self.steps.loc[trainings.index].join(trainings).join(self.core_s)

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """The messages, with ``edge``: the edge server that sent or received each, or
        ``NOTHING``.
        """
        frame = self.frame(
            files.TRANSFERS, [name for name in TRANSFERS.names if name != "payloads"]
        )
        ends = (numbered(frame[end], "edge") for end in ("receiver", "sender"))
        frame["edge"] = np.where(frame["direction"] == "peer", NOTHING, np.maximum(*ends))
        column = self.run.table(files.TRANSFERS, ["payloads"])["payloads"]
        texts = column.combine_chunks().dictionary_encode()
        try:
            lookup = [self._numbered(json.loads(text)) for text in texts.dictionary.to_pylist()]
            if column.null_count:
                raise ValueError("a message has no payloads")
        except (TypeError, ValueError, RecursionError) as error:
            raise RunFolderError(
                f"{files.TRANSFERS} of {str(self.run.path)!r} is damaged: {error}"
            ) from None
        return frame.assign(payloads=np.array(lookup, dtype=np.int64)[texts.indices.to_numpy()])

    @cached_property
    def devices(self) -> pd.DataFrame:
        return self.frame(files.DEVICES, DEVICES.names)

    def row_of(self, device: Any) -> Ints:
        """The row of each of these devices among ``devices``, -1 for one that has none; int64,
        as many.
        """
        index = pd.Index(self.devices["device"])
        if self.run.has_all_devices or not index.is_unique:
            index = pd.RangeIndex(len(index))
        rows: Ints = index.get_indexer(np.asarray(device)).astype(np.int64)
        return rows

    @cached_property
    def rounds(self) -> pd.DataFrame:
        return self.frame(files.ROUNDS, ROUNDS.names)

    @cached_property
    def availability(self) -> pd.DataFrame:
        """When devices could be reached; empty in a folder of a version that did not say."""
        if not self.run.has(files.AVAILABILITY):
            return pd.DataFrame({name: [] for name in AVAILABILITY.names})
        return self.frame(files.AVAILABILITY, AVAILABILITY.names)

    @cached_property
    def models(self) -> dict[str, dict[str, Any]]:
        """Every model file's tensors, by file name without its ending."""
        return self.run.models()

    @cached_property
    def network(self) -> dict[str, Any] | None:
        return self.document(files.NETWORK) if self.run.has(files.NETWORK) else None

    def document(self, name: str) -> Any:
        try:
            return read_json(self.run.path / name)
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{name} of {str(self.run.path)!r} is missing or damaged: {error}"
            ) from None

    @property
    def cells(self) -> int:
        """Number of cells, or of places to which devices are attached."""
        network = self.run.scenario["network"]
        return (
            network.get("cells", 0) if self.network is None else len(self.network["routes"]["down"])
        )

    @property
    def overhead(self) -> float:
        """Bytes on the wire for a byte of payload, by the scenario's protocol."""
        protocol = self.run.scenario["network"]["protocol"]
        segment, header = (read(Bytes, protocol[key]) for key in ("segment", "header"))
        return float((segment + header) / segment)

    @property
    def has_own_protocol(self) -> bool:
        return ":" in self.run.scenario["network"]["protocol"]["kind"]


def _values(column: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        names = column.unify_dictionaries().combine_chunks()
        known = list(dict.fromkeys([*names.dictionary.to_pylist(), ""]))
        return pd.Categorical.from_codes(
            names.indices.fill_null(known.index("")), pd.Index(known, dtype=object)
        )
    if pa.types.is_integer(column.type):
        return column.fill_null(NOTHING).to_numpy()
    return (column.fill_null(False) if pa.types.is_boolean(column.type) else column).to_numpy()


def findings(text: str, rows: pd.DataFrame, wrong: Any = slice(None)) -> Iterator[str]:
    """``text`` of each wrong row, filled in with the row's columns and, as ``row``, its index."""
    if np.any(wrong):
        for row, *values in rows[wrong].itertuples():
            yield text.format(row=row, **dict(zip(rows.columns, map(shown, values), strict=True)))


def differing(text: str, table: pd.DataFrame, due: Any, **how: Any) -> Iterator[str]:
    """``text`` of each cell (``name``, ``row``, ``told``) that is not ``due``, column by column;
    ``how`` as for ``close``.
    """
    for name, values in due.items():
        told = np.asarray(table[name])
        if len(told) != len(values):
            yield f"there are {len(told)} rows with {name}; due are {len(values)}"
            continue
        rows = pd.DataFrame({"name": name, "told": told, "due": np.asarray(values)})
        yield from findings(text, rows, ~close(rows["told"], rows["due"], **how))


def shown(value: Any) -> Any:
    """A cell as findings show it: None where it is missing, and numbers as Python's."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain in (NOTHING, "") else plain


def latest(wanted: Any, keys: Any) -> Ints:
    """For each row the place of the last wanted one, at or before it, with the same key; -1
    where there is none.
    """
    places = pd.Series(np.where(wanted, np.arange(len(wanted)), np.nan))
    found = places.groupby(np.asarray(keys)).ffill().fillna(-1)
    return found.to_numpy().astype(np.int64)


def at_places(values: Any, places: Ints) -> Floats:
    """The values at some places, NaN at place -1; float64 [places]."""
    return np.append(np.asarray(values, dtype=np.float64), np.nan)[places]


def close(one: Any, other: Any, atol: float = 1e-6, equal_nan: bool = False) -> Any:
    """Whether numbers are equal up to the rounding of sums; bool, as many."""
    return np.isclose(one, other, rtol=1e-9, atol=atol, equal_nan=equal_nan)


_adapter = cache(TypeAdapter[Any])


def read(kind: Any, text: Any) -> Any:
    """A quantity as the scenario says it, of a ``kind`` such as ``Bytes``, in its base unit."""
    return _adapter(kind).validate_python(text)


def numbered(names: "pd.Series[str]", kind: str) -> Ints:
    """The numbers in names such as ``edge 3`` of one ``kind`` of endpoint; ``NOTHING`` for other
    names; int64 [names].
    """
    codes, distinct = pd.factorize(names)
    found = [re.fullmatch(rf"{kind} ([0-9]{{1,9}})", str(name)) for name in distinct]
    return np.array([NOTHING if one is None else int(one[1]) for one in found], dtype=np.int64)[
        codes
    ]


def grain_s(times: Any) -> Floats:
    """Least distance of two times around each of some (s): a tick, or beyond 97 days the spacing
    of float64.
    """
    return np.maximum(TICK_S, np.spacing(np.asarray(times, dtype=np.float64)))
