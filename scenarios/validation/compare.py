"""Real rounds and simulated ones side by side: each world of the testbed told to fedsim, run,
and compared with its log.

    python scenarios/validation/compare.py [NAME...]        # all worlds, or some

Needs no root: it reads the logs that are kept in ``logs``, and the rounds of repeated runs in
``repeated-rounds.csv``. Links and latencies are those that the testbed was told, and each client
trains as long as it did on the median; nothing else is fitted. Renews ``rounds.csv`` and
``predicted.csv`` of the study ``validation`` in ``scenarios/outside``.
"""

import csv
import json
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq
import tomli_w

import fedsim
from fedsim.common.arrays import Floats
from fedsim.common.harmless import say
from fedsim.lab.calibrate.log import Log, LogDefaults, read_log
from fedsim.lab.calibrate.tasks import durations
from fedsim.running.mistakes import explained
from fedsim.running.scenarios.outside import rows as outside
from fedsim.running.scenarios.validation.real_rounds import (
    LATE,
    MODELS,
    TESTBED,
    Row,
    read,
    row_of,
    write,
)

HERE = Path(__file__).resolve().parent
WORLDS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "worlds.toml").read_text())
SEEDS = range(1, 6)  # of the unequal shares that transfers get
STUDY = HERE.parent / "outside" / "validation" / "predicted.csv"
# worlds in whose rounds mechanisms of the window model were found (docs/time.md)
LOOKED_AT = ("near-far", "mixed-rates", "buffered-server", "fair")


def protocol_of(model: str, *, paces: bool) -> str | dict[str, Any]:
    """Return ``network.protocol`` of a scenario.

    Args:
        model: one of ``MODELS``.
        paces: whether the testbed's senders spread a window over its round trip.
    """
    if model != "window":
        return model
    return {"kind": "tcp", "model": "window", "queue": {"time": "60 ms"}, "pacing": paces}


def senders_pace(name: str) -> bool:
    """Return whether the senders of a world's log paced, as the index of the logs has it.

    A socket that begins with BBR, the default of some machines, keeps pacing when it is set to
    CUBIC.
    """
    runs = json.loads((HERE / "logs" / "index.json").read_text())
    return bool(runs[name]["began_with"] == "bbr")


def trainings(world: dict[str, Any], log: Log | None) -> list[float]:
    """How long each client trains (s): on the median of a log, or as the world says without one."""
    clients = world["clients"]
    if log is None:
        return [client["train"] for client in clients]
    steps = durations(log.tasks.train)
    return [float(np.median(steps[log.tasks.client == one])) for one in range(len(clients))]


def told(
    name: str, world: dict[str, Any], log: Log | None, protocol: str | dict[str, Any]
) -> dict[str, Any]:
    """The sections of the scenario that is this world."""
    clients = world["clients"]
    trained = trainings(world, log)
    samples = int(world.get("samples", 100))
    strategy = {"kind": "fedavg", "clients_per_round": len(clients)}
    if "buffer" in world:
        strategy = {"kind": "fedbuff", "concurrency": len(clients), "buffer": world["buffer"]}
    return {
        "name": f"{name}, as it was told to the testbed",
        "learning": "off",
        "model": {"kind": "size", "bytes": f"{world['bytes']} B"},
        "population": {
            "devices": len(clients),
            "speed": [f"{samples / took:.9g} samples/s" for took in trained],
            "samples": {"low": samples, "high": samples},
        },
        "network": {
            "kind": "star",
            "protocol": protocol,
            "server": {way: f"{rate} Mbit/s" for way, rate in world.get("server", {}).items()},
            "device": {way: [f"{one[way]} Mbit/s" for one in clients] for way in ("down", "up")}
            | {"latency": [f"{one.get('latency', 0)} ms" for one in clients]},
        },
        "strategy": strategy | {"local_epochs": 1},
        "stop": {"rounds": world["rounds"]},
    }


def real_rounds(name: str, log: Log) -> list[Floats]:
    """Return durations of the real rounds of each run of a world, or times between versions (s).

    Args:
        name: name of the world.
        log: its log, whose rounds are returned if the world has not been run again.
    """
    runs: dict[str, list[float]] = {}
    with (HERE / "repeated-rounds.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            if line["world"] == name:
                runs.setdefault(line["run"], []).append(float(line["seconds"]))
    if not runs:
        return [log.rounds.end - log.rounds.start]
    return [np.array(rounds) for rounds in runs.values()]


def compared(name: str, world: dict[str, Any], models: tuple[str, ...] = MODELS) -> Iterator[Row]:
    """Yield the row of a world by each model."""
    log = read_log(HERE / "logs" / f"{name}.csv", LogDefaults())
    real = real_rounds(name, log)
    for model in models:
        protocol = protocol_of(model, paces=senders_pace(name))
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "scenario.toml"
            path.write_text(tomli_w.dumps(told(name, world, log, protocol)))
            simulated = []
            folders = []
            for seed in SEEDS:
                run = fedsim.run(fedsim.load(path, seed=seed), Path(scratch) / str(seed))
                simulated.append(np.diff(run.rounds["time"], prepend=0.0))
                folders.append(Path(scratch) / str(seed))
            transfers = _simulated(folders, len(log.clients)) / _real(log) - 1
        error = float(np.abs(transfers).mean())
        yield row_of(name, model, real, simulated, error)


def _real(log: Log) -> Floats:
    own = [log.tasks.client == one for one in range(len(log.clients))]
    return np.array(
        [
            [np.mean(durations(steps)[one]) for one in own]
            for steps in (log.tasks.down, log.tasks.up)
        ]
    )


def _simulated(folders: list[Path], clients: int) -> Floats:
    frames = [pq.read_table(folder / "transfers.parquet").to_pandas() for folder in folders]
    took = np.zeros((2, clients))
    for place, way in enumerate(("down", "up")):
        for one in range(clients):
            rows = [
                frame[(frame.direction == way) & (frame.device == one) & (frame.outcome == "done")]
                for frame in frames
            ]
            took[place, one] = np.mean([(row.end - row.start).mean() for row in rows])
    return took


def write_study(rows: list[Row]) -> None:
    """Write the predictions of the study ``validation``: rounds by ``tcp`` and by windows."""
    predictions = []
    for row in rows:
        what = "version, s" if "buffer" in WORLDS[row.world] else "round, s"
        if row.model == "fluid":
            continue
        if row.model == "window":
            what = f"{what}, window"
        given = row.model == "window" and row.world in LOOKED_AT
        predictions.append(outside.Prediction(what, row.world, row.real, row.simulated, given))
    predictions.sort(key=lambda prediction: prediction.what)
    outside.write(STUDY, predictions)


@click.command()
@click.argument("names", nargs=-1)
@explained("compare")
def main(names: tuple[str, ...]) -> None:
    """Compare the named worlds, or all."""
    rows = read(TESTBED) if TESTBED.exists() else []
    found = {(row.world, row.model): row for row in rows}
    for name in names or WORLDS:
        for row in compared(name, WORLDS[name]):
            found[row.world, row.model] = row
            say(
                f"{row.world:<16} {row.model:<7} {row.real:7.3f} s {row.error:+7.1%}, "
                f"{LATE}th percentile {row.late_error:+7.1%}, transfers {row.transfers:6.1%}"
            )
    ordered = [found[name, model] for name in WORLDS for model in MODELS]
    write(TESTBED, ordered)
    write_study(ordered)


if __name__ == "__main__":
    main()
