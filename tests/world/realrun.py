"""Rounds that really happened over TCP, simulated with the preset ``tcp``.

The worlds and their logs lie beside the checkout (``shared/oracles/realrun``, its README says how
they were made). A world's links and latencies are built as a network; downloads begin, and training
takes, when and as long as they did; all else follows.

    python -m tests.world.realrun scenarios/outside/realrun/predicted.csv  # mean rounds and transfers as a table
    python -m tests.world.realrun                       # prints rounds of all eight worlds with windows
"""

import asyncio
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.world.network import Direction, Flow, Network, Star, ends
from fedsim.world.network.protocol import Protocol, QueueLength, Tcp, Transport
from tests.world.network_plays import Listed

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "oracles" / "realrun"
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


def write(path: Path) -> None:
    """Means over 20 runs, as the studies in ``scenarios/outside`` have their predictions."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["what", "cell", "measured", "predicted", "error", "given"])
        for world in worlds():
            runs = [simulated(world, Tcp(), seed) for seed in range(20)]
            figures = {
                "round, s": (world.rounds.mean(), np.mean([rounds.mean() for rounds, _ in runs]))
            }
            for way, name in (("down", "downloads, s"), ("up", "uploads, s")):
                figures[name] = (
                    world.transfers[way].mean(),
                    np.mean([took[way].mean() for _, took in runs]),
                )
            for what, (real, here) in figures.items():
                known = "yes" if world.name in FITTED else "no"
                table.writerow(
                    [
                        what,
                        world.name,
                        f"{real:.5g}",
                        f"{here:.5g}",
                        f"{here / real - 1:+.4f}",
                        known,
                    ]
                )


def compare_windows() -> None:
    """Print errors of rounds with windows, senders that pace and that do not (README: unknown)."""
    measured = [*worlds(SHARED), *worlds()]
    queue = QueueLength.model_validate({"time": "60 ms"})
    print("world, real round (s), p95 (s); errors of both by tcp, by windows, by windows that pace")
    for world in measured:
        row = [
            f"{world.name:<10} {world.rounds.mean():7.3f} {np.percentile(world.rounds, 95):7.3f}"
        ]
        for protocol in (
            Tcp(),
            Tcp(model="window", queue=queue),
            Tcp(model="window", queue=queue, pacing=True),
        ):
            runs = [simulated(world, protocol, seed)[0] for seed in range(WINDOW_SEEDS)]
            mean = np.mean(runs) / world.rounds.mean() - 1
            late = np.percentile(runs, 95) / np.percentile(world.rounds, 95) - 1
            row.append(f"{mean:+7.1%} {late:+7.1%}")
        print("  ".join(row), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        write(Path(sys.argv[1]))
    else:
        compare_windows()
