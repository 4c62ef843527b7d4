"""Output of a calibration: text lines for users, a scenario, and tables of clients and rounds."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import tomli_w

from fedsim.common.arrays import Floats
from fedsim.common.harmless import clean, for_csv
from fedsim.common.round_words import counted
from fedsim.common.streams import Streams
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.calibrate.fitting import Fitted
from fedsim.lab.calibrate.log import Log
from fedsim.lab.calibrate.presence import Presence
from fedsim.lab.calibrate.replay import FittedWorld, Prediction
from fedsim.lab.calibrate.tasks import Steps, Tasks
from fedsim.records.folder import writing
from fedsim.running.overrides import Tables
from fedsim.running.scenario import Scenario
from fedsim.world.network.protocol import Fluid

SCENARIO = "scenario.toml"
CLIENTS = "clients.csv"
ROUNDS = "rounds.csv"
_LONGEST_NAME = 200  # greatest length of a scenario's name (characters)
_ALIKE = 1.02  # spread (see ``_fit_lognormal``) below which all clients count as equal
_UNITS = {  # quantity of clients: unit, and its size in the base unit
    "speed": ("samples/s", 1.0),
    "down": ("Mbit/s", 125e3),
    "up": ("Mbit/s", 125e3),
    "latency": ("ms", 1e-3),
}


def draw_clients(world: FittedWorld, seed: int) -> FittedWorld:
    """Return a fitted world (speeds and links) in which the clients are drawn anew.

    Such worlds show how much a prediction depends on the clients. Each quantity is drawn from the
    lognormal distribution that fits the values of the log's clients.

    Args:
        world: the world that was fitted to a log.
        seed: seed of the draws.

    Returns:
        The world with the drawn values, for the same count of clients.
    """
    streams = Streams(seed)
    quantities: dict[str, Floats] = {}
    for name, values in world.quantities.items():
        median, spread = _fit_lognormal(values)
        normal = streams.generator(f"world/{name}").standard_normal(len(values))
        quantities[name] = median * spread**normal
    return world._replace(
        speed=quantities["speed"],
        down=quantities["down"],
        up=quantities["up"],
        latency=quantities["latency"],
    )


def describe(fitted: Fitted, log: Log, presence: Presence | None) -> Iterator[str]:
    """Yield lines of text that describe a calibration to users.

    Args:
        fitted: the clients' fitted speeds and links, with further estimates and notes.
        log: the log to which they were fitted.
        presence: estimates of online and unreachable phases; None if the log has none.
    """
    yield from _describe_world(fitted, log)
    yield from _describe_clients(fitted, presence)
    yield from _list_notes(fitted, log)


def _describe_world(fitted: Fitted, log: Log) -> Iterator[str]:
    """Yield lines of text about the log, the protocol, and the clients' speeds and links."""
    world = fitted.world
    kind = "synchronous"
    if not log.synchronous:
        kind = f"asynchronous, {counted(log.at_once, 'client')} at work"
    yield (
        f"log        {counted(len(log.clients), 'client')}, {counted(len(log.rounds), 'round')}, "
        f"{counted(len(log.tasks), 'task')} ({kind})"
    )
    yield f"protocol   {world.protocol.kind}"
    jitter = ", without jitter"
    if world.jitter:
        jitter = f", an epoch's time varies by {world.jitter:.1%}"
    yield f"speed      {_format_values('speed', world.speed)}{jitter}"
    for direction, limit in world.server.items():
        server_text = "no limit at the server is seen"
        if limit < math.inf:
            server_text = f"the server's link carries {_format_value(direction, limit)}"
        client_text = _format_values(direction, world.quantities[direction])
        yield f"{direction:<9}  {client_text}; {server_text}"


def _describe_clients(fitted: Fitted, presence: Presence | None) -> Iterator[str]:
    """Yield lines of text on the clients' latency, fixed time of a training, and availability."""
    caveat = ""
    if not fitted.latency_is_known:
        caveat = ": messages of one size do not tell it, so rates have it in them (--latency)"
    yield f"latency    {_format_values('latency', fitted.world.latency)}{caveat}"
    overheads = fitted.overhead[~np.isnan(fitted.overhead)]
    if len(overheads) and np.median(overheads) > 0:
        yield (
            f"overhead   {show_seconds(float(np.median(overheads)))} of a training, whatever its "
            "samples; speeds contain it"
        )
    if presence is None:
        yield "available  always, as far as the log tells"
    else:
        yield (
            f"available  {show_seconds(presence.mean_on)} on and "
            f"{show_seconds(presence.mean_off)} off on the mean"
        )


def _list_notes(fitted: Fitted, log: Log) -> Iterator[str]:
    """Yield notes for the user on the limits of a calibration.

    For example, a note names quantities that the log cannot show.

    Args:
        fitted: the clients' fitted speeds and links, with notes.
        log: the log.
    """
    is_unlimited = all(limit == math.inf for limit in fitted.world.server.values())
    if log.synchronous and log.at_once == len(log.clients) and is_unlimited:
        yield (
            "note: all clients are in every round, so that a limit at the server may be taken for "
            "their own links"
        )
    yield from (f"note: {note}" for note in fitted.notes)
    yield (
        f"note: fitted to {counted(log.at_once, 'client')} at a time; links that more of them would "
        "fill are not seen"
    )
    download_bytes, upload_bytes = _message_bytes(log.tasks)
    if upload_bytes and abs(upload_bytes / download_bytes - 1) > _ALIKE - 1:
        yield (
            f"note: uploads have {show_bytes(upload_bytes)} and downloads "
            f"{show_bytes(download_bytes)}, which the scenario has for both"
        )


def write_files(
    out: Path,
    name: str,
    log: Log,
    fitted: Fitted,
    by_client: bool,
    presence: Presence | None,
    prediction: Prediction,
) -> None:
    """Write a calibration as ``scenario.toml``, ``clients.csv`` and ``rounds.csv``.

    The scenario simulates the clients. The tables have the fitted values of each client, and the
    measured and predicted duration of each round.

    Args:
        out: folder to write to.
        name: name of the log.
        log: the log.
        fitted: the fitted world.
        by_client: whether the scenario lists the clients' own values instead of distributions.
        presence: estimates of online and unreachable phases; None if the log has none.
        prediction: measured and predicted durations of the log's rounds.

    Raises:
        ScenarioError: the scenario would be invalid; nothing is written.
    """
    sections = _build_sections(name, log, fitted, by_client, presence)
    # the construction raises the errors of an invalid scenario, before the file is written
    Scenario(**sections)
    with writing(out / SCENARIO) as temporary_path:
        temporary_path.write_text(
            f"# Fitted by fedsim calibrate to {clean(name)}.\n{tomli_w.dumps(sections)}",
            encoding="utf-8",
        )
    clients: dict[str, object] = {
        "device": range(len(log.clients)),
        "client": list(map(for_csv, log.clients)),
        **fitted.world.quantities,
        "overhead": fitted.overhead,
        "samples": fitted.samples,
        "tasks": fitted.tasks,
    }
    if presence is not None:
        clients["present"] = presence.share
    rounds = {
        "round": log.rounds.number,
        "held_out": prediction.held_out.astype(int),
        "measured": prediction.measured,
        "predicted": prediction.predicted,
    }
    for file, columns in ((CLIENTS, clients), (ROUNDS, rounds)):
        with writing(out / file) as temporary_path:
            pd.DataFrame(columns).to_csv(
                temporary_path, index=False, float_format="%.9g", lineterminator="\n"
            )


def _build_sections(
    name: str, log: Log, fitted: Fitted, by_client: bool, presence: Presence | None
) -> Tables:
    """Return the scenario that is fitted to a log, as nested dicts by section and key.

    Args:
        name: name of the log.
        log: the log.
        fitted: the clients' fitted speeds and links.
        by_client: whether the scenario lists the clients' own values instead of distributions.
        presence: estimates of online and unreachable phases; None if the log has none.
    """
    at_once = min(log.at_once, len(log.clients))
    settings: dict[str, object] = {}  # quantity -> distribution, or list of the clients' values
    for key, values in fitted.world.quantities.items():
        if by_client:
            settings[key] = [_format_value(key, value) for value in values.tolist()]
        else:
            settings[key] = _format_distribution(key, values)
    samples: dict[str, int] | list[int] = {
        "low": int(fitted.samples.min()),
        "high": int(fitted.samples.max()),
    }
    if by_client:
        samples = fitted.samples.astype(int).tolist()
    population: Tables = {
        "devices": len(log.clients),
        "speed": settings["speed"],
        "samples": samples,
        "jitter": round(fitted.world.jitter, 4),
        "fitted_at_once": at_once,
    }
    if presence is not None:
        # a scenario accepts no phase of 0 s
        population["availability"] = {
            "kind": "renewal",
            "mean_on": f"{max(presence.mean_on, 1e-3):.6g} s",
            "mean_off": f"{max(presence.mean_off, 1e-3):.6g} s",
        }
    device_links = {key: settings[key] for key in ("down", "up", "latency")}
    strategy: Tables = {"kind": "fedavg", "clients_per_round": at_once}
    if not log.synchronous:
        strategy = {"kind": "fedbuff", "concurrency": at_once, "buffer": log.per_version}
    strategy["local_epochs"] = fitted.epochs
    return {
        "name": f"calibrated from {clean(name)}"[:_LONGEST_NAME],
        "learning": "off",
        "model": {"kind": "size", "bytes": f"{_message_bytes(log.tasks)[0]:.9g} B"},
        "population": population,
        "network": _build_network(fitted.world, device_links),
        "strategy": strategy,
        "stop": {"rounds": len(log.rounds)},
    }


def _build_network(world: FittedWorld, device_links: Mapping[str, object]) -> Tables:
    """Return the section ``network`` of a scenario: a star with the fitted links and protocol.

    Args:
        world: the fitted world, whose server may have a limited link.
        device_links: ``down``, ``up`` and ``latency`` of the devices, as a scenario states them.
    """
    server = {}
    for direction, rate in world.server.items():
        if rate < math.inf:
            server[direction] = _format_value(direction, rate)
    network: Tables = {"kind": "star", "server": server}
    if world.protocol != Fluid():
        network["protocol"] = world.protocol.model_dump(mode="json", exclude_defaults=True)
        # the kind is a default, which ``exclude_defaults`` drops
        network["protocol"]["kind"] = world.protocol.kind
    network["device"] = dict(device_links)
    return network


def _message_bytes(tasks: Tasks) -> tuple[float, float]:
    """Return the median size of a log's downloads, and of its uploads (bytes).

    If the log has no downloads, the size of uploads is returned for both. If it has no uploads,
    their size is 0.
    """
    download_bytes = _median_amount(tasks.down)
    upload_bytes = _median_amount(tasks.up)
    return download_bytes or upload_bytes, upload_bytes


def _median_amount(steps: Steps) -> float:
    amounts = steps.amount[~np.isnan(steps.amount)]
    return float(np.median(amounts)) if len(amounts) else 0.0


def _format_value(name: str, value: float) -> str:
    unit, size = _UNITS[name]
    return f"{value / size:.6g} {unit}"


def _format_distribution(name: str, values: Floats) -> str | Tables:
    median, spread = _fit_lognormal(values)
    if spread < _ALIKE:
        return _format_value(name, median)
    return {"kind": "lognormal", "median": _format_value(name, median), "spread": round(spread, 4)}


def _fit_lognormal(values: Floats) -> tuple[float, float]:
    """Return the median and the spread of a lognormal distribution that is fitted to values.

    The fit is by the moments of logarithms, and the spread is exp(standard deviation of the
    logarithms). If a value is 0 or infinite, the spread is 1.
    """
    if not (values > 0).all() or np.isinf(values).any():
        return float(np.median(values)), 1.0
    logarithms = np.log(values)
    deviation = logarithms.std(ddof=1) if len(values) > 1 else 0.0
    return math.exp(logarithms.mean()), math.exp(deviation)


def _format_values(name: str, values: Floats) -> str:
    median, spread = _fit_lognormal(values)
    text = _format_value(name, float(f"{median:.4g}"))
    if spread < _ALIKE:
        return f"{text} everywhere"
    return f"{text}, spread {spread:.3g}"
