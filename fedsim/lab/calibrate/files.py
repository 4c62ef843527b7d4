"""The output of a calibration: lines for people, a scenario, a table of clients and a table of
rounds.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from fedsim.common.arrays import Floats
from fedsim.common.harmless import clean, for_csv
from fedsim.common.streams import Streams
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.calibrate.fitting import Fitted, Presence
from fedsim.lab.calibrate.log import Log, Tasks
from fedsim.lab.calibrate.replay import FittedWorld, Prediction
from fedsim.records.folder import writing
from fedsim.running.scenario import Scenario
from fedsim.world.network.protocol import Fluid

SCENARIO = "scenario.toml"
CLIENTS = "clients.csv"
ROUNDS = "rounds.csv"
_ALIKE = 1.02  # a spread below which all clients count as equal
_UNITS = {  # of the quantities of clients, with the size in the base unit
    "speed": ("samples/s", 1.0),
    "down": ("Mbit/s", 125e3),
    "up": ("Mbit/s", 125e3),
    "latency": ("ms", 1e-3),
}


def drawn(world: FittedWorld, seed: int) -> FittedWorld:
    """A world of as many clients, drawn from the distributions that the scenario gets."""
    streams = Streams(seed)
    found = dict[str, Any]()
    for name, values in world.quantities.items():
        middle, spread = _lognormal(values)
        found[name] = middle * spread ** streams.generator(f"world/{name}").standard_normal(
            len(values)
        )
    return world._replace(**found)


def summary(fitted: Fitted, log: Log, there: Presence | None) -> Iterator[str]:
    """Lines for people."""
    world = fitted.world
    kind = "synchronous" if log.synchronous else f"asynchronous, {log.at_once} clients at work"
    yield (
        f"log        {len(log.clients)} clients, {len(log.rounds)} rounds, {len(log.tasks)} tasks "
        f"({kind})"
    )
    yield f"protocol   {world.protocol.kind}"
    jitter = (
        f", an epoch's time varies by {world.jitter:.1%}" if world.jitter else ", without jitter"
    )
    yield f"speed      {_in_words('speed', world.speed)}{jitter}"
    for way, limit in world.server.items():
        words = (
            f"the server's link carries {_text(way, limit)}"
            if limit < math.inf
            else "no limit at the server is seen"
        )
        yield f"{way:<9}  {_in_words(way, world.quantities[way])}; {words}"
    unknown = ": messages of one size do not tell it, so rates have it in them (--latency)"
    yield (
        "latency    "
        f"{_in_words('latency', world.latency)}{'' if fitted.latency_is_known else unknown}"
    )
    known = fitted.overhead[~np.isnan(fitted.overhead)]
    if len(known) and np.median(known) > 0:
        yield (
            f"overhead   {show_seconds(float(np.median(known)))} of a training, whatever its "
            "samples; speeds contain it"
        )
    if there is None:
        yield "available  always, as far as the log tells"
    else:
        yield (
            f"available  {show_seconds(there.mean_on)} on and {show_seconds(there.mean_off)} off "
            "on the mean"
        )
    if (
        log.synchronous
        and log.at_once == len(log.clients)
        and all(limit == math.inf for limit in world.server.values())
    ):
        yield (
            "note: all clients are in every round, so that a limit at the server may be taken for "
            "their own links"
        )
    yield from (f"note: {note}" for note in fitted.notes)
    yield (
        f"note: fitted to {log.at_once} clients at a time; links that more of them would fill are "
        "not seen"
    )
    down, up = _message_bytes(log.tasks)
    if up and abs(up / down - 1) > _ALIKE - 1:
        yield (
            f"note: uploads have {show_bytes(up)} and downloads {show_bytes(down)}, which the "
            "scenario has for both"
        )


def write(
    out: Path,
    name: str,
    log: Log,
    fitted: Fitted,
    by_client: bool,
    there: Presence | None,
    prediction: Prediction,
) -> None:
    """Write all files; ``by_client``: the scenario lists the clients' own values."""
    sections = _sections(name, log, fitted, by_client, there)
    Scenario(**sections)  # refuses what it would be refused for when it is read
    with writing(out / SCENARIO) as beside:
        beside.write_text(
            f"# Fitted by fedsim calibrate to {clean(name)}.\n{tomli_w.dumps(sections)}",
            encoding="utf-8",
        )
    clients = {
        "device": range(len(log.clients)),
        "client": list(map(for_csv, log.clients)),
        **fitted.world.quantities,
        "overhead": fitted.overhead,
        "samples": fitted.samples,
        "tasks": fitted.seen,
        **({} if there is None else {"present": there.share}),
    }
    rounds = {
        "round": log.rounds.number,
        "held_out": prediction.held_out.astype(int),
        "measured": prediction.measured,
        "predicted": prediction.predicted,
    }
    for file, columns in ((CLIENTS, clients), (ROUNDS, rounds)):
        with writing(out / file) as beside:
            pd.DataFrame(columns).to_csv(
                beside, index=False, float_format="%.9g", lineterminator="\n"
            )


def _sections(
    name: str, log: Log, fitted: Fitted, by_client: bool, there: Presence | None
) -> dict[str, Any]:
    world = fitted.world
    at_once = min(log.at_once, len(log.clients))
    listed = {
        key: [_text(key, value) for value in values.tolist()]
        for key, values in world.quantities.items()
    }
    values = (
        listed
        if by_client
        else {key: _distribution(key, values) for key, values in world.quantities.items()}
    )
    sizes = {"low": int(fitted.samples.min()), "high": int(fitted.samples.max())}
    population: dict[str, Any] = {
        "devices": len(log.clients),
        "speed": values["speed"],
        "samples": fitted.samples.astype(int).tolist() if by_client else sizes,
        "jitter": round(world.jitter, 4),
        "fitted_at_once": at_once,
    }
    if there is not None:
        phases = {
            "mean_on": f"{max(there.mean_on, 1e-3):.6g} s",
            "mean_off": f"{max(there.mean_off, 1e-3):.6g} s",
        }
        population["availability"] = {"kind": "renewal"} | phases
    server = {way: _text(way, rate) for way, rate in world.server.items() if rate < math.inf}
    rounds: dict[str, Any] = {"kind": "fedavg", "clients_per_round": at_once}
    strategy = (
        rounds
        if log.synchronous
        else {"kind": "fedbuff", "concurrency": at_once, "buffer": log.per_version}
    )
    network: dict[str, Any] = {"kind": "star", "server": server}
    if world.protocol != Fluid():
        network["protocol"] = world.protocol.model_dump(mode="json", exclude_defaults=True) | {
            "kind": world.protocol.kind
        }
    return {
        "name": f"calibrated from {clean(name)}"[:200],
        "learning": "off",
        "model": {"kind": "size", "bytes": f"{_message_bytes(log.tasks)[0]:.9g} B"},
        "population": population,
        "network": network | {"device": {key: values[key] for key in ("down", "up", "latency")}},
        "strategy": strategy | {"local_epochs": fitted.epochs},
        "stop": {"rounds": len(log.rounds)},
    }


def _message_bytes(tasks: Tasks) -> tuple[float, float]:
    """Medians of a download and of an upload; of the other where there are none."""
    sizes = [steps.amount[~np.isnan(steps.amount)] for steps in (tasks.down, tasks.up)]
    down, up = (float(np.median(of)) if len(of) else 0.0 for of in sizes)
    return down or up, up


def _text(name: str, value: float) -> str:
    unit, size = _UNITS[name]
    return f"{value / size:.6g} {unit}"


def _distribution(name: str, values: Floats) -> Any:
    middle, spread = _lognormal(values)
    if spread < _ALIKE:
        return _text(name, middle)
    return {"kind": "lognormal", "median": _text(name, middle), "spread": round(spread, 4)}


def _lognormal(values: Floats) -> tuple[float, float]:
    """The median and the spread of a lognormal distribution with the mean and deviation of the
    values' logarithms.
    """
    if not (values > 0).all() or np.isinf(values).any():
        return float(np.median(values)), 1.0
    logarithms = np.log(values)
    return math.exp(logarithms.mean()), math.exp(logarithms.std(ddof=1) if len(values) > 1 else 0.0)


def _in_words(name: str, values: Floats) -> str:
    middle, spread = _lognormal(values)
    return _text(name, float(f"{middle:.4g}")) + (
        f", spread {spread:.3g}" if spread >= _ALIKE else " everywhere"
    )
