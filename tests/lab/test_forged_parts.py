"""Forgeries of parts of strategies and of the world, and of figures, all sealed again; those
admitted are named.

Each changes one thing in all books that have it, as a forger would who knows the files but not
the rules behind them.
"""

import copy
import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import fedsim
from fedsim.lab.audited import VALID
from fedsim.plugin import World
from fedsim.records import folder as files
from fedsim.testing import run
from tests.records.columns import Cached, Forged, finder

Rows = list[dict[str, Any]]


def beacon(world: World, every: float = 5.0) -> Any:
    """A process of one's own."""
    while True:
        yield world.timeout(every)
        world.emit("beacon", device=1)


_BASE: dict[str, Any] = {
    "seed": 6,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "model": {"kind": "mlp", "hidden": [6]},
    "population": {
        "devices": 8,
        "speed": {"kind": "lognormal", "median": "40 samples/s", "spread": 2.0},
    },
    "network": {
        "kind": "star",
        "server": {"down": "400 kbit/s", "up": "50 kbit/s"},
        "device": {"down": "200 kbit/s", "up": "60 kbit/s", "latency": "20 ms"},
    },
    "strategy": {"kind": "fedavg", "clients_per_round": 6},
    "stop": {"rounds": 2, "simulated_time": "1 h"},
}
_CELL = {"down": "300 kbit/s", "up": "60 kbit/s"}
_DEVICE = {"down": "200 kbit/s", "up": "60 kbit/s"}
_SLOTS = {"kind": "upload-slots", "slots": 2}
_OUTAGE = {
    "kind": "link-outage",
    "link": "server up",
    "every": "1 s",
    "lasts": "500 ms",
    "rate": "1 kbit/s",
}
_HEAT = {"kind": "heat", "warms": "3 s", "slow_at": 0.5, "fast_at": 0.4}
_PRIVATE = {"kind": "private", "noise": 1.0, "clip": 1.0}


def _with(**sections: Any) -> dict[str, Any]:
    return _BASE | sections


def _of(kind: str, **keys: Any) -> dict[str, Any]:
    return {"strategy": {"kind": kind} | keys}


_FEDAVG = _BASE["strategy"]
RUNS: dict[str, dict[str, Any]] = {
    "codecs": _with(messages={"up": {"kind": "qsgd", "levels": 3}, "down": "float16"}),
    "sparse": _with(messages={"up": {"kind": "top-k", "share": 0.2}}),
    "lora": _with(model={"kind": "mlp", "hidden": [6], "lora": {"rank": 2}}),
    "widths": _with(**_of("heterofl", clients_per_round=6, sizes=[1.0, 0.5])),
    "ranks": _with(
        model={"kind": "mlp", "hidden": [6], "lora": {"rank": 2}},
        **_of("hetlora", clients_per_round=6, sizes=[1, 2]),
    ),
    "secure": _with(strategy=_FEDAVG | {"secure_aggregation": {"neighbors": 4}}),
    "private": _with(strategy=_FEDAVG | {"aggregation": _PRIVATE}),
    "krum": _with(strategy=_FEDAVG | {"aggregation": "krum"}),
    "weighted": _with(strategy=_FEDAVG | {"deadline": "90 s"}),
    "fedbuff": _with(**_of("fedbuff", concurrency=5, buffer=3)),
    "fedasync": _with(**_of("fedasync", concurrency=3)),
    "cata-fed": _with(
        **_of("cata-fed", clients_per_round=4, clusters=2, smallest_part=4, deadline="20 s")
    ),
    "edges": _with(
        network={
            "kind": "tree",
            "cells": 2,
            "cell": _CELL,
            "edge": {"latency": "30 ms"},
            "device": _DEVICE,
        },
        **_of("hierfavg", clients_per_round=6, kappa2=2),
    ),
    "cells": _with(network={"kind": "tree", "cells": 2, "cell": _CELL, "device": _DEVICE}),
    "hosts": _with(
        population=_BASE["population"]
        | {"host": {"number": 2, "cores": 1, "workers": 2, "start_up": "1 s"}}
    ),
    "graph": _with(**_of("d-psgd", topology={"kind": "random-regular", "parameters": {"d": 4}})),
    "epidemic": _with(**_of("epidemic", sample_size=2)),
    "gossip": _with(**_of("gossip", topology="ring")),
    "diloco": _with(**_of("diloco", collective="ring", local_steps=2)),
    "processes": _with(world={"processes": [_SLOTS, _OUTAGE]}),
    "heat": _with(world={"processes": [_HEAT]}),
    "own": _with(world={"processes": [{"kind": "tests.lab.test_forged_parts:beacon"}]}),
    "metrics": _with(
        data={"source": {"kind": "linear"}},
        model={"kind": "logistic"},
        objective={"kind": "regression"},
    ),
}


class Books:
    """The content of a run folder, to be changed; ``forged`` is the folder with what has been
    changed.
    """

    def __init__(self, honest: Cached) -> None:
        self.scenario = copy.deepcopy(honest.scenario)
        self.summary = copy.deepcopy(honest.summary)
        self._honest = honest
        self._rows: dict[str, Rows] = {}

    def rows(self, name: str) -> Rows:
        if name not in self._rows:
            self._rows[name] = self._honest.table(name).to_pylist()
        return self._rows[name]

    def events(self, kind: str) -> Rows:
        return [row for row in self.rows(files.EVENTS) if row["kind"] == kind]

    def forged(self) -> Forged:
        """As if sealed again."""
        tables = {
            name: pa.Table.from_pylist(rows, schema=self._honest.table(name).schema)
            for name, rows in self._rows.items()
        }
        summary = self.summary | {key: self.scenario.get(key) for key in ("seed", "name")}
        summary |= {"strategy": self.scenario["strategy"]["kind"]}
        return Forged(self._honest, scenario=self.scenario, summary=summary, tables=tables)


Forge = Callable[[Books], Any]


def said(key: str, value: Any) -> Forge:
    """Another value of a key of the scenario; None takes it away."""

    def forge(books: Books) -> None:
        *path, last = key.split(".")
        place: Any = books.scenario
        for part in path:
            place = place[int(part) if isinstance(place, list) else part]
        where = int(last) if isinstance(place, list) else last
        if value is None:
            del place[where]
        else:
            place[where] = value

    return forge


def data(kind: str, change: Callable[[dict[str, Any]], Any]) -> Forge:
    """Other data in every record of a kind."""

    def forge(books: Books) -> None:
        for row in books.events(kind):
            content = json.loads(row["data"] or "{}")
            change(content)
            row["data"] = json.dumps(content, sort_keys=True, separators=(",", ":"))

    return forge


def scaled(factor: float, purpose: str | None = None, only: int | None = None) -> Forge:
    """The bytes of messages (of a purpose, of a task) times a factor, in all books."""

    def forge(books: Books) -> None:
        def wanted(payloads: Any, task: Any) -> bool:
            return (purpose is None or any(name == purpose for name, _ in payloads)) and only in (
                None,
                task,
            )

        def times(sizes: dict[str, Any], payloads: Any) -> Any:
            for key in ("bytes", "delivered", "wire_bytes"):
                if sizes.get(key) is not None:
                    sizes[key] *= factor
            return [[name, size * factor] for name, size in payloads]

        for row in books.rows(files.EVENTS):
            content = json.loads(row["data"] or "{}")
            if "payloads" in content and wanted(content["payloads"], row["task"]):
                content["payloads"] = times(content, content["payloads"])
                row["data"] = json.dumps(content, sort_keys=True, separators=(",", ":"))
        for row in books.rows(files.TRANSFERS):
            payloads = json.loads(row["payloads"])
            if wanted(payloads, row["task"]):
                row["payloads"] = json.dumps(
                    times(row, payloads), sort_keys=True, separators=(",", ":")
                )
        _sum_up(books)

    return forge


def _sum_up(books: Books) -> None:
    """Rounds and summary again, from the transfers."""
    transfers, begin = books.rows(files.TRANSFERS), -math.inf
    for row in books.rows(files.ROUNDS):
        for way in ("down", "up", "peer"):
            moved = [
                one["delivered"]
                for one in transfers
                if begin < one["end"] <= row["time"] and one["direction"] == way
            ]
            row[f"bytes_{way}"] = (
                sum(moved) if way != "peer" or row["bytes_peer"] is not None else None
            )
        begin = row["time"]
    purposes: dict[str, float] = {}
    for row in transfers:
        for name, size in json.loads(row["payloads"]):
            purposes[name] = purposes.get(name, 0.0) + size * (
                row["delivered"] / row["bytes"] if row["bytes"] else 0.0
            )
    stated = books.summary["bytes"]
    stated["by_purpose"] = {name: purposes.get(name, 0.0) for name in stated["by_purpose"]}
    for way in ("down", "up", "peer"):
        if way in stated:
            stated[way] = sum(row["delivered"] for row in transfers if row["direction"] == way)


def without(*kinds: str) -> Forge:
    """All records of some kinds removed."""

    def forge(books: Books) -> None:
        kept = [row for row in books.rows(files.EVENTS) if row["kind"] not in kinds]
        books._rows[files.EVENTS] = kept

    return forge


def weighed(weights: Callable[[int], list[float]]) -> Forge:
    return data("aggregate", lambda content: content.update(weights=weights(len(content["tasks"]))))


def of_rounds(key: str, change: Callable[[Any], Any]) -> Forge:
    """A figure of rounds, in the table and in the records."""

    def forge(books: Books) -> None:
        for row in books.rows(files.ROUNDS):
            row[key] = change(row[key])
        data(
            "round",
            lambda content: content.update({key: change(content[key])} if key in content else {}),
        )(books)
        if key == "epsilon":
            data(
                "round",
                lambda content: content if content.get(key) is not None else content.pop(key, None),
            )(books)

    return forge


def summed(path: str, value: Any) -> Forge:
    """Another entry of the summary."""

    def forge(books: Books) -> None:
        *way, last = path.split(".")
        place = books.summary
        for part in way:
            place = place[part]
        place[last] = value(place[last]) if callable(value) else value

    return forge


def both(*forges: Forge) -> Forge:
    def forge(books: Books) -> None:
        for one in forges:
            one(books)

    return forge


def moved_choice(content: dict[str, Any]) -> None:
    weights = content["weights"]
    content["weights"] = [*weights[1:], weights[0]]


def another_receiver(books: Books) -> None:
    """A model went to the device after the one that it went to, in all books."""
    row = next(row for row in books.events("message"))
    content = json.loads(row["data"])
    number = int(content["destination"].split()[1])
    other = f"device {(number + 3) % 8}"
    told = next(
        one
        for one in books.rows(files.TRANSFERS)
        if one["end"] == row["time"] and one["sender"] == content["source"]
    )
    content["destination"] = told["receiver"] = other
    row["data"] = json.dumps(content, sort_keys=True, separators=(",", ":"))


def _first(count: int) -> list[float]:
    return [1.0, *[0.0] * (count - 1)]


def _even(count: int) -> list[float]:
    return [1 / count] * count


_A = "strategy.aggregation"
_H = "population.host"
FORGERIES: dict[str, dict[str, Forge]] = {
    "codecs": {
        "all bytes halved in all books": scaled(0.5),
        "updates halved in all books": scaled(0.5, "update"),
        "levels": said("messages.up.levels", 127),
        "codec up": said(
            "messages.up", {"kind": "int8", "encodes": "change", "error_feedback": False}
        ),
        "codec down": said("messages.down", {"kind": "plain", "dtype": "float32"}),
        "bucket": said("messages.up.bucket", 16),
        "number format": said("messages.down", {"kind": "plain", "dtype": "int8"}),
    },
    "sparse": {
        "share": said("messages.up.share", 0.4),
        "random-k": said("messages.up.kind", "random-k"),
    },
    "lora": {
        "rank": said("model.lora.rank", 4),
        "no adapters": said("model.lora", None),
        "where": said("model.lora.where", "3"),
        "all trained": said("model.train", "*"),
        "base halved in all books": scaled(0.5, "base"),
        "hidden units": said("model.hidden", [7]),
        "alpha": said("model.lora.alpha", 8.0),
    },
    "widths": {
        "widths": said("strategy.sizes", [1.0, 0.25]),
        "widths in another order": said("strategy.sizes", [0.5, 1.0]),
        "drawn again": said("strategy.redraw", True),
        "updates halved in all books": scaled(0.5, "update"),
    },
    "ranks": {
        "ranks": said("strategy.sizes", [1.0, 1.0]),
        "ranks in another order": said("strategy.sizes", [2.0, 1.0]),
    },
    "secure": {
        "neighbours": said("strategy.secure_aggregation.neighbors", 2),
        "all are neighbours": said("strategy.secure_aggregation.neighbors", None),
        "key": said("strategy.secure_aggregation.key", "64 B"),
        "share": said("strategy.secure_aggregation.share", "16 B"),
        "no secure aggregation": said("strategy.secure_aggregation", None),
        "keys doubled in all books": scaled(2.0, "secure-keys"),
        "threshold": said("strategy.secure_aggregation.threshold", 0.6),
    },
    "private": {
        "epsilon halved in all books": of_rounds("epsilon", lambda value: value / 2),
        "epsilon removed": of_rounds("epsilon", lambda value: None),
        "noise": said(f"{_A}.noise", 2.0),
        "noise a little": said(f"{_A}.noise", 1.05),
        "delta": said(f"{_A}.delta", 1e-5),
        "local noise": said(f"{_A}.where", "local"),
        "no account": said(f"{_A}.account", False),
        "no privacy": said(_A, {"kind": "weighted"}),
        "clip": said(f"{_A}.clip", 0.1),
    },
    "krum": {
        "two updates chosen": weighed(lambda count: [0.5, 0.5, *[0.0] * (count - 2)]),
        "all updates": weighed(_even),
        "multi-krum": said(f"{_A}.kind", "multi-krum"),
        "malicious": said(f"{_A}.malicious", 2),
        "by samples": said(_A, {"kind": "weighted"}),
        "another choice": data("aggregate", moved_choice),
    },
    "weighted": {
        "weights [1, 0, ...]": weighed(_first),
        "even weights": weighed(_even),
        "weights doubled": data(
            "aggregate",
            lambda content: content.update(weights=[2 * one for one in content["weights"]]),
        ),
        "the plain mean": said(f"{_A}.kind", "mean"),
        "the first": said(f"{_A}.kind", "first"),
        "median": said(f"{_A}.kind", "median"),
        "rate of the server": said("network.server.up", "100 kbit/s"),
        "rate of devices": said("network.device.up.value", "30 kbit/s"),
        "deadline": said("strategy.deadline", "45 s"),
        "more clients than devices": said("strategy.clients_per_round", 20),
        "a key that does not exist": said("strategy.frobs", 1),
        "a learning rate below 0": said("training.lr", -1.0),
        "learning rate": said("training.lr", 0.02),
        "best accuracy": summed("accuracy.best", 0.99),
    },
    "fedbuff": {
        "even weights": weighed(lambda count: [1 / 3] * count),
        "staleness 0": data(
            "aggregate", lambda content: content.update(staleness=[0] * len(content["tasks"]))
        ),
        "buffer": said("strategy.buffer", 2),
        "no discount": said("strategy.staleness_discount", False),
        "concurrency": said("strategy.concurrency", 4),
    },
    "fedasync": {
        "alpha": said("strategy.alpha", 0.5),
        "exponent": said("strategy.exponent", 0.9),
        "weights 1": weighed(lambda count: [1.0] * count),
    },
    "cata-fed": {"even weights": weighed(_even), "deadline": said("strategy.deadline", "40 s")},
    "edges": {
        "cells": said("network.cells", 4),
        "rate of cells": said("network.cell.up", "5 kbit/s"),
        "edge weights": data("edges-combined", lambda content: content.update(weights=[0.9, 0.1])),
        "edge updates halved in all books": scaled(0.5, "edge-update"),
    },
    "cells": {
        "cells": said("network.cells", 4),
        "rate of cells": said("network.cell.up", "200 kbit/s"),
    },
    "hosts": {
        "workers": said(f"{_H}.workers", 3),
        "no workers": said(f"{_H}.workers", None),
        "fewer workers": said(f"{_H}.workers", 1),
        "start-up": said(f"{_H}.start_up", "2 s"),
        "no start-up": said(f"{_H}.start_up", "0 s"),
        "cores": said(f"{_H}.cores", 2),
        "hosts": said(f"{_H}.number", 1),
    },
    "graph": {
        "ring": said("strategy.topology", {"kind": "ring", "parameters": {}}),
        "degree": said("strategy.topology.parameters.d", 2),
        "drawn again": said("strategy.topology.every", 1),
        "another receiver in all books": another_receiver,
        "all bytes halved in all books": scaled(0.5),
    },
    "epidemic": {
        "sample size": said("strategy.sample_size", 3),
        "another receiver in all books": another_receiver,
    },
    "gossip": {"complete": said("strategy.topology", {"kind": "complete", "parameters": {}})},
    "diloco": {
        "tree": said("strategy.collective", "tree"),
        "butterfly": said("strategy.collective", "butterfly"),
        "fragments": said("strategy.fragments", 2),
        "parts halved in all books": scaled(0.5, "part"),
    },
    "processes": {
        "slots": said("world.processes.0.slots", 1),
        "more slots": said("world.processes.0.slots", 4),
        "more slots in all books": both(
            said("world.processes.0.slots", 4),
            data("queue", lambda content: content.update(slots=4)),
        ),
        "no slots": said("world.processes.0", None),
        "outages more often": said("world.processes.1.every", "600 ms"),
        "longer outages": said("world.processes.1.lasts", "700 ms"),
        "rate in outages": said("world.processes.1.rate", "2 kbit/s"),
        "outages removed": without("link-rate"),
    },
    "heat": {
        "factor": said("world.processes.0.factor", 0.9),
        "slowing removed": without("pace"),
        "devices": said("world.processes.0.devices", [0]),
    },
    "own": {
        "records removed": without("process:beacon"),
        "another process": said("world.processes.0.kind", "heat"),
        "every": said("world.processes.0.every", 7.0),
    },
    "metrics": {
        "best": summed("metrics.mse.best", lambda value: value / 2),
        "final": summed("metrics.mse.final", lambda value: value / 2),
        "best is": summed("metrics.mse.best_is", "most"),
    },
}
CASES = {
    f"{of}: {name}": (of, forge)
    for of, forges in FORGERIES.items()
    for name, forge in forges.items()
}

ADMITTED = {
    "private: clip",
    "krum: another choice",
    "weighted: learning rate",
    "lora: alpha",
    "secure: threshold",
    "sparse: random-k",
    "own: every",
}
"""Forgeries that no check finds: what they change is in ``declared.UNCHECKED``."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Cached]:
    """An honest run of ``RUNS``; not to be changed."""
    place = tmp_path_factory.mktemp("honest")

    @cache
    def made(of: str) -> Cached:
        run(RUNS[of], place / of)
        folder = Cached(place / of)
        assert finder(folder, of) is None, of
        return folder

    return made


def found(folder: Cached, forge: Forge, of: str) -> str | None:
    """The check that finds a forgery, of a folder sealed again; None if none does."""
    books = Books(folder)
    forge(books)
    try:
        fedsim.Scenario(**copy.deepcopy(books.scenario))
    except fedsim.ScenarioError:
        return VALID
    return finder(books.forged(), of)


_FEW = ("codecs",)


@pytest.mark.parametrize(
    "of", [pytest.param(of, marks=[] if of in _FEW else pytest.mark.long) for of in FORGERIES]
)
def test_forgeries_of_parts_are_found_or_named(honest: Callable[[str], Cached], of: str) -> None:
    missed = {
        f"{of}: {name}"
        for name, forge in FORGERIES[of].items()
        if found(honest(of), forge, of) is None
    }
    assert missed == {name for name in ADMITTED if name.startswith(f"{of}: ")}


def test_they_are_many() -> None:
    assert len(CASES) >= 76
    assert {*CASES} >= ADMITTED
    assert len(ADMITTED) <= 11
