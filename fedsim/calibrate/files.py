"""The output of a calibration: lines for people, a scenario, a table of clients and a table of rounds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tomli_w
from pydantic import TypeAdapter

from fedsim.arrays import Floats
from fedsim.calibrate.fitting import Fitted, Presence
from fedsim.calibrate.log import Log, Tasks
from fedsim.calibrate.replay import FittedWorld, Prediction
from fedsim.language.units import show_bytes, show_seconds
from fedsim.output.harmless import clean, for_csv
from fedsim.records.folder import writing
from fedsim.scenario import Scenario
from fedsim.streams import Streams
from fedsim.world.distributions import RateDistribution, SpeedDistribution, TimeDistribution
from fedsim.world.network.protocol import Fluid

SCENARIO, CLIENTS, ROUNDS = "scenario.toml", "clients.csv", "rounds.csv"
_ALIKE = 1.02  # a spread that is none


class _QuantityUnit(NamedTuple):
    """The type of a quantity in a scenario, and a unit with its size in the base unit."""

    kind: Any
    name: str
    size: float


_UNITS = {
    "speed": _QuantityUnit(SpeedDistribution, "samples/s", 1.0),
    **dict.fromkeys(("down", "up"), _QuantityUnit(RateDistribution, "Mbit/s", 125e3)),
    "latency": _QuantityUnit(TimeDistribution, "ms", 1e-3),
}


@dataclass(frozen=True)
class Drawn:
    """The quantities of clients as a scenario says and draws them.

    Attributes:
        said: by name: a quantity, a list of quantities, or a distribution.
        fitted: the world.
        samples: of each client, [clients].
        epochs: of a training.
    """

    said: dict[str, Any]
    fitted: Fitted
    samples: Floats
    epochs: int

    @classmethod
    def of(cls, fitted: Fitted, log: Log, tasks: Tasks, by_client: bool) -> "Drawn":
        """Say what was fitted to some tasks of a log."""
        say = _listed if by_client else _distribution
        said = {name: say(name, values) for name, values in fitted.world.quantities.items()}
        held = pd.Series(tasks.train.amount / tasks.epochs)
        own = held.groupby(tasks.client).median().reindex(range(len(log.clients))).fillna(held.median())
        samples = np.maximum(1.0, np.round(own.to_numpy()))
        return cls(said, fitted, samples, max(1, int(np.median(tasks.epochs[held.notna()]))))

    def world(self, seed: int) -> FittedWorld:
        """A world of as many clients, drawn."""
        streams, links = Streams(seed), self.fitted.world.links
        drawn = {}
        for name, said in self.said.items():
            distribution = TypeAdapter[Any](_UNITS[name].kind).validate_python(said)
            drawn[name] = distribution.draw(streams.generator(f"world/{name}"), len(self.samples))
        speed = drawn.pop("speed")
        return FittedWorld(speed, self.fitted.world.jitter, links._replace(**drawn))

    def told(self, log: Log, there: Presence | None) -> Iterator[str]:
        """Lines for people, one a quantity."""
        kind = "synchronous" if log.synchronous else f"asynchronous, {log.at_work} clients at work"
        yield f"log        {len(log.clients)} clients, {len(log.rounds.number)} rounds, {len(log.tasks.client)} tasks ({kind})"
        fitted, links = self.fitted, self.fitted.world.links
        yield f"protocol   {links.protocol.kind}"
        jitter = f", an epoch's time varies by {fitted.world.jitter:.1%}" if fitted.world.jitter else ", without jitter"
        yield f"speed      {_in_words('speed', fitted.world.speed)}{jitter}"
        for way, rates in (("down", links.down), ("up", links.up)):
            server = links.server[way]  # type: ignore[index]
            limit = f"the server's link carries {_text(way, server)}" if server < math.inf else "no limit at the server is seen"
            yield f"{way:<9}  {_in_words(way, rates)}; {limit}"
        unknown = ": messages of one size do not tell it, so rates have it in them (--latency)"
        yield f"latency    {_in_words('latency', links.latency)}{'' if fitted.latency_is_known else unknown}"
        known = fitted.overhead[~np.isnan(fitted.overhead)]
        if len(known) and np.median(known) > 0:
            yield f"overhead   {show_seconds(float(np.median(known)))} of a training, whatever its samples; speeds contain it"
        if len(log.aggregate_s):
            yield f"server     {show_seconds(float(np.median(log.aggregate_s)))} for an aggregation; a scenario has none"
        if there is None:
            yield "available  always, as far as the log tells"
        else:
            yield f"available  {show_seconds(there.mean_on)} on and {show_seconds(there.mean_off)} off on the mean"
        if log.synchronous and log.cohort == len(log.clients) and all(limit == math.inf for limit in links.server.values()):
            yield "note: all clients are in every round, so that a limit at the server may be taken for their own links"
        yield from (f"note: {note}" for note in fitted.notes)
        at_once = log.cohort if log.synchronous else log.at_work
        yield f"note: fitted to {at_once} clients at a time; links that more of them would fill are not seen"
        sizes = _message_bytes(log.tasks)
        if sizes[1] and abs(sizes[1] / sizes[0] - 1) > _ALIKE - 1:
            sent, received = (show_bytes(size) for size in reversed(sizes))
            yield f"note: uploads have {sent} and downloads {received}, which the scenario has for both"


def write(out: Path, name: str, log: Log, drawn: Drawn, there: Presence | None, prediction: Prediction) -> None:
    """Write all files."""
    sections = _sections(name, log, drawn, there)
    Scenario(**sections)  # what it would be refused for, it is refused for here
    with writing(out / SCENARIO) as beside:
        beside.write_text(f"# Fitted by fedsim calibrate to {clean(name)}.\n{tomli_w.dumps(sections)}", encoding="utf-8")
    clients = {
        "device": range(len(log.clients)),
        "client": list(map(for_csv, log.clients)),
        **drawn.fitted.world.quantities,
        "overhead": drawn.fitted.overhead,
        "samples": drawn.samples,
        "tasks": drawn.fitted.seen,
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
            pd.DataFrame(columns).to_csv(beside, index=False, float_format="%.9g", lineterminator="\n")


def _sections(name: str, log: Log, drawn: Drawn, there: Presence | None) -> dict[str, Any]:
    links, least, most = drawn.fitted.world.links, int(drawn.samples.min()), int(drawn.samples.max())
    by_client = isinstance(drawn.said["speed"], list)
    population: dict[str, Any] = {
        "devices": len(log.clients),
        "speed": drawn.said["speed"],
        "samples": [int(one) for one in drawn.samples] if by_client else {"low": least, "high": most},
        "jitter": round(drawn.fitted.world.jitter, 4),
        "fitted_at_once": min(log.cohort if log.synchronous else log.at_work, len(log.clients)),
    }
    if there is not None:
        phases = {"mean_on": f"{max(there.mean_on, 1e-3):.6g} s", "mean_off": f"{max(there.mean_off, 1e-3):.6g} s"}
        population["availability"] = {"kind": "renewal"} | phases
    server = {way: _text(way, rate) for way, rate in links.server.items() if rate < math.inf}
    strategy: dict[str, Any] = {"kind": "fedbuff", "concurrency": log.at_work, "buffer": log.per_version}
    if log.synchronous:
        strategy = {"kind": "fedavg", "clients_per_round": min(log.cohort, len(log.clients))}
    network: dict[str, Any] = {"kind": "star", "server": server}
    if links.protocol != Fluid():
        network["protocol"] = links.protocol.model_dump(mode="json", exclude_defaults=True) | {"kind": links.protocol.kind}
    return {
        "name": f"calibrated from {clean(name)}"[:200],
        "learning": "off",
        "model": {"kind": "size", "bytes": f"{_message_bytes(log.tasks)[0]:.9g} B"},
        "population": population,
        "network": network | {"device": {name: drawn.said[name] for name in ("down", "up", "latency")}},
        "strategy": strategy | {"local_epochs": drawn.epochs},
        "stop": {"rounds": len(log.rounds.number)},
    }


def _message_bytes(tasks: Tasks) -> tuple[float, float]:
    """Of a download and of an upload; of the other where there are none."""
    sizes = [steps.amount[~np.isnan(steps.amount)] for steps in (tasks.down, tasks.up)]
    down, up = (float(np.median(of)) if len(of) else 0.0 for of in sizes)
    return down or up, up


def _text(name: str, value: float) -> str:
    return f"{value / _UNITS[name].size:.6g} {_UNITS[name].name}"


def _listed(name: str, values: Floats) -> Any:
    return [_text(name, value) for value in values.tolist()]


def _distribution(name: str, values: Floats) -> Any:
    """A quantity where all are alike, or else a lognormal distribution of the same mean and deviation of logarithms."""
    middle, spread = _lognormal(values)
    if spread < _ALIKE:
        return _text(name, middle)
    return {"kind": "lognormal", "median": _text(name, middle), "spread": round(spread, 4)}


def _lognormal(values: Floats) -> tuple[float, float]:
    if not (values > 0).all() or np.isinf(values).any():
        return float(np.median(values)), 1.0
    logarithms = np.log(values)
    return math.exp(logarithms.mean()), math.exp(logarithms.std(ddof=1) if len(values) > 1 else 0.0)


def _in_words(name: str, values: Floats) -> str:
    middle, spread = _lognormal(values)
    return _text(name, float(f"{middle:.4g}")) + (f", spread {spread:.3g}" if spread >= _ALIKE else " everywhere")
