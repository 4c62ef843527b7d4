"""Do the meters say what the records say? Each counts again, from the records of the folder alone."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.audit.evidence import Evidence, close, findings, read
from fedsim.errors import ScenarioError
from fedsim.files import flat
from fedsim.meters.base import Meter, MeterContext, Meters
from fedsim.meters.costs import CostsSpec
from fedsim.meters.spec import METERS
from fedsim.records import folder as files
from fedsim.records.schema import DEVICES, OF_TASKS, ROUNDS, with_columns
from fedsim.simulation import Record
from fedsim.streams import Streams

_OF_TASK = ("device", "round", "group", "task")


def meters_agree(evidence: Evidence) -> Iterator[str]:
    """The bill and the user's own meters have the columns and entries that the records make.

    One's own are left out where their code may not be imported. Energy has a check that shares no code with its meter.
    """
    if ("costs" in evidence.run.summary) != ("costs" in evidence.run.scenario):
        yield "the scenario and the summary do not agree on whether there are costs"
        return
    meters = _meters(evidence)
    if not meters:
        return
    rounds = []
    for record in _records(evidence):
        meters.take(record)
        if record.kind == "round":
            rounds.append(meters.of_round(record.time))
    meters.close(evidence.run.summary["simulated_s"])
    found = {name: np.array([row[name] for row in rounds], dtype=float) for name in meters.names("round")}
    yield from _differing(evidence, files.ROUNDS, with_columns(ROUNDS, meters.columns("round")), found)
    devices = meters.of_devices(evidence.devices["device"].to_numpy(np.int64))
    yield from _differing(evidence, files.DEVICES, with_columns(DEVICES, meters.columns("device")), devices)
    told = flat(evidence.run.summary)
    for name, entry in flat(meters.summary()).items():
        if not _close(told.get(name), entry):
            yield f"{name} is {told.get(name)!r} in the summary, the records say {entry!r}"


def _meters(evidence: Evidence) -> Meters:
    scenario = evidence.run.scenario
    context = MeterContext(
        scenario["population"]["devices"], evidence.cells or None, Streams(scenario["seed"]), evidence.overhead
    )
    sections: dict[str, Meter] = {}
    if "costs" in scenario:
        sections["costs"] = read(CostsSpec, scenario["costs"]).build(context)
    own = []
    for told in scenario.get("meters", ()):
        try:
            own.append(METERS.spec(told["kind"]).model_validate(told).build(context))  # type: ignore[attr-defined]
        except ScenarioError:
            continue  # its code may not be imported, or cannot be here
    return Meters(sections, own)


def _records(evidence: Evidence) -> Iterator[Record]:
    """The records as the meters heard them."""
    for row in evidence.run.events:
        kind, data = row["kind"], dict(row["data"])
        if "payloads" in data:
            data["payloads"] = tuple((purpose, size) for purpose, size in data["payloads"])
        said = {name: value for name, value in row.items() if value is not None and name not in ("time", "kind", "data")}
        absent: dict[str, Any] = dict.fromkeys(_OF_TASK) if kind in OF_TASKS else {}
        yield Record(row["time"], kind, absent | said | data)


def _differing(evidence: Evidence, file: str, schema: Any, found: Mapping[str, Any]) -> Iterator[str]:
    table = evidence.frame(file, schema, tuple(found))
    for name, values in found.items():
        if len(table) != len(values):
            yield f"{file} has {len(table)} rows, the records say {len(values)}"
            return
        told = pd.DataFrame({"name": name, "told": table[name], "file": file, "found": values})
        wrong = ~(close(told["told"], told["found"], 1e-9) | (told["told"].isna() & told["found"].isna()))
        yield from findings("{name} is {told!r} in row {row} of {file}, the records say {found!r}", told, wrong)


def _close(told: Any, found: Any) -> bool:
    if isinstance(told, float | int) and isinstance(found, float | int):
        return bool(close(told, found, 1e-9))
    return bool(told == json.loads(json.dumps(found)))
