"""Rounds that really happened over TCP, simulated with the preset ``tcp``.

The worlds and their logs lie beside the checkout (``shared/oracles/realrun``, its README says how
they were made). A world's links and latencies are built as a network; downloads begin, and training
takes, when and as long as they did; all else follows.

    python -m tests.world.realrun [NAME...]              # all eight worlds by each model, or some
    python -m tests.world.realrun --predict FILE NAME... # simulated rounds alone, before they are compared

The first renews ``scenarios/validation/rounds-of-others.csv`` and ``predicted.csv`` of the study ``realrun``.
"""

import asyncio
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.running.scenarios.outside import rows as outside
from fedsim.running.scenarios.validation import real_rounds
from fedsim.world.network import Direction, Flow, Network, Star, ends
from fedsim.world.network.protocol import Fluid, Protocol, QueueLength, Tcp, Transport
from tests.world.network_plays import Listed

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "oracles" / "realrun"
STUDY = Path(__file__).resolve().parents[2] / "scenarios" / "outside" / "realrun"
FITTED = ("equal", "cell")
"""The worlds that ``Tcp.weight_spread`` was chosen on; nothing else in the preset is fitted to
any.
"""
SHARED = "worlds-shared.json"
"""File of the worlds with a shared uplink and clients at different distances."""
WINDOW_SEEDS = 5

Floats = NDArray[np.float64]
_MBIT_S = 125_000.0


class World(NamedTuple):
    """What was, in seconds; [rounds, clients] unless said otherwise."""

    name: str
    setting: dict[str, Any]  # its links and latencies
    begin: Floats  # when each download began
    trained: Floats  # how long each training took
    rounds: Floats  # how long each round took, [rounds]
    transfers: dict[Direction, Floats]  # how long each download and upload took


def worlds(file: str = "worlds.json") -> Iterator[World]:
    """Yield all worlds of a file that were measured."""
    for name, setting in json.loads((FOLDER / file).read_text()).items():
        rounds, clients = setting["rounds"], len(setting["clients"])
        begin, length = (
            {what: np.zeros((rounds, clients + 1)) for what in ("down", "train", "up", "round")}
            for _ in "12"
        )
        with (FOLDER / f"{name}-cubic.csv").open() as lines:
            for row in csv.DictReader(lines):
                if row["what"] in length:
                    place, start = (int(row["round"]), int(row["client"])), float(row["start"])
                    begin[row["what"]][place], length[row["what"]][place] = (
                        start,
                        float(row["end"]) - start,
                    )
        whole = length["round"][:, -1]
        down, train, up = (length[what][:, :-1] for what in ("down", "train", "up"))
        yield World(
            name,
            setting,
            begin["down"][:, :-1] - begin["round"][:, -1:],
            train,
            whole,
            {"down": down, "up": up},
        )


def network_of(setting: dict[str, Any], simulation: Simulation, transport: Transport) -> Network:
    """A star, or where clients share cells, a graph."""
    clients = setting["clients"]
    columns = [np.array([client[way] * _MBIT_S for client in clients]) for way in ("down", "up")]
    common_ms = setting.get("latency_ms", 0)
    latency = np.array([client.get("latency", common_ms) / 1e3 for client in clients])
    server = [setting.get("server", {}).get(way, np.inf) * _MBIT_S for way in ("down", "up")]
    if "cells" not in setting:
        return Star(simulation, *columns, latency, *server, transport)
    ways: tuple[Direction, ...] = ("down", "up")
    links = {
        f"{cell} {way}": rates[way] * _MBIT_S
        for cell, rates in setting["cells"].items()
        for way in ways
    }
    routes = {
        way: [[f"{client['cell']} {way}"] if "cell" in client else [] for client in clients]
        for way in ways
    }
    return Listed(simulation, links, *columns, latency, transport, routes=routes)


def simulated(
    world: World, protocol: Protocol, seed: int
) -> tuple[Floats, dict[Direction, Floats]]:
    """How long rounds and transfers of a world take, as ``World`` has them."""
    simulation = Simulation()
    network = network_of(world.setting, simulation, Transport(protocol, Streams(seed)))
    flows: dict[tuple[Direction, int, int], Flow] = {}
    apart = 2 * world.rounds.max()  # rounds never touch

    def send(direction: Direction, number: int, client: int) -> None:
        def done() -> None:
            if direction == "down":
                trained = simulation.now + world.trained[number, client]
                simulation.wake(("train", client), trained, lambda: send("up", number, client))

        flows[direction, number, client] = network.send(
            *ends(client, direction), world.setting["bytes"], done
        )

    for (number, client), after in np.ndenumerate(world.begin):
        begin = number * apart + after
        simulation.wake(
            ("begin", client),
            begin,
            lambda number=number, client=client: send("down", number, client),
        )  # type: ignore[misc]
    asyncio.run(simulation.run())
    took: dict[Direction, Floats] = {way: np.zeros_like(world.begin) for way in world.transfers}
    over = np.zeros_like(world.begin)
    for (direction, number, client), flow in flows.items():
        assert flow.ended is not None
        took[direction][number, client] = flow.ended - flow.started
        over[number, client] = max(over[number, client], flow.ended - number * apart)
    return over.max(axis=1), took


def errors(world: World, protocol: Protocol, seeds: int) -> tuple[Floats, Floats, Floats]:
    """Simulated over real, less 1, of so many runs, of which each has other weights.

    Of each round, all runs in a row; of each download and upload, [2, rounds, clients]; and of
    the mean length of each over all runs: which of equal flows is first is chance.
    """
    runs = [simulated(world, protocol, seed) for seed in range(seeds)]
    real, *here = (
        np.stack([of[way] for way in ("down", "up")])
        for of in (world.transfers, *(took for _, took in runs))
    )
    rounds = np.concatenate([took / world.rounds - 1 for took, _ in runs])
    return (
        rounds,
        np.concatenate(here, axis=1) / np.tile(real, (1, seeds, 1)) - 1,
        np.mean(here, axis=0) / real - 1,
    )


def protocol_of(model: str, *, paces: bool = False) -> Protocol:
    """Return the protocol of a model of ``real_rounds.MODELS``.

    Args:
        model: its name.
        paces: whether senders spread a window over its round trip; unknown of these worlds.
    """
    match model:
        case "fluid":
            return Fluid()
        case "tcp":
            return Tcp()
    queue = QueueLength.model_validate({"time": "60 ms"})
    return Tcp(model="window", queue=queue, pacing=paces)


def write_study() -> None:
    """Write means over 20 runs, as the studies in ``scenarios/outside`` have their predictions."""
    predictions = []
    for world in worlds():
        runs = [simulated(world, Tcp(), seed) for seed in range(20)]
        means = [rounds.mean() for rounds, _ in runs]
        figures = {"round, s": (world.rounds.mean(), np.mean(means))}
        for way, name in (("down", "downloads, s"), ("up", "uploads, s")):
            means = [took[way].mean() for _, took in runs]
            figures[name] = (world.transfers[way].mean(), np.mean(means))
        given = world.name in FITTED
        for what, (real, here) in figures.items():
            predictions.append(outside.Prediction(what, world.name, real, float(here), given))
    for row in real_rounds.read(real_rounds.OTHERS):
        if row.model == "window":
            what = "round, s, window"
            predictions.append(outside.Prediction(what, row.world, row.real, row.simulated, False))
    outside.write(STUDY / "predicted.csv", predictions)


def compare(names: Sequence[str]) -> None:
    """Renew the rows of the named worlds by each model, or of all worlds."""
    everyone = [*worlds(SHARED), *worlds()]
    kept = real_rounds.read(real_rounds.OTHERS) if real_rounds.OTHERS.exists() else []
    found = {(row.world, row.model): row for row in kept}
    for world in everyone:
        if names and world.name not in names:
            continue
        real = np.stack([world.transfers[way] for way in ("down", "up")]).mean(axis=1)
        for model in real_rounds.MODELS:
            runs = [simulated(world, protocol_of(model), seed) for seed in range(WINDOW_SEEDS)]
            rounds = [took for took, _ in runs]
            here = [np.stack([took["down"], took["up"]]).mean(axis=1) for _, took in runs]
            transfers = float(np.abs(np.mean(here, axis=0) / real - 1).mean())
            row = real_rounds.row_of(world.name, model, [world.rounds], rounds, transfers)
            found[row.world, row.model] = row
            print(
                f"{row.world:<10} {model:<7} {row.error:+7.1%} {row.late_error:+7.1%}", flush=True
            )
    worlds_and_models = product([world.name for world in everyone], real_rounds.MODELS)
    rows = [found[key] for key in worlds_and_models if key in found]
    real_rounds.write(real_rounds.OTHERS, rows)


def predict(path: Path, names: Sequence[str]) -> None:
    """Write simulated rounds of worlds, and nothing of the real ones."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["world", "model", "round, s", "95th percentile, s"])
        for world in (*worlds(SHARED), *worlds()):
            if world.name not in names:
                continue
            for model, paces in (("tcp", False), ("window", False), ("window", True)):
                protocol = protocol_of(model, paces=paces)
                runs = [simulated(world, protocol, seed)[0] for seed in range(WINDOW_SEEDS)]
                mean, late = real_rounds.mean_and_late(runs)
                name = f"{model}, pacing" if paces else model
                table.writerow([world.name, name, f"{mean:.5g}", f"{late:.5g}"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--predict"]:
        predict(Path(sys.argv[2]), sys.argv[3:])
    else:
        compare(sys.argv[1:])
        write_study()
