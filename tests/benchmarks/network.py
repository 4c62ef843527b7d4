"""How long the networks take: prints JSON. Run with ``python -m tests.benchmarks.network``.

An event is a start or an end, all included: the clock's turn, the wake-up, the call of ``done``. Each device sends again as
soon as it has sent, so that the number of concurrent flows stands.
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedsim.simulation import Simulation
from fedsim.streams import Streams
from fedsim.world.network import SERVER, Network, Star
from fedsim.world.network.filling import max_min
from fedsim.world.network.protocol import Tcp, Transport
from fedsim.world.network.spec import TreeSpec

Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def unequal(devices: int, latency_s: float) -> Columns:
    rates = np.random.default_rng(1).lognormal(math.log(1e6), 1.0, devices)
    return rates, rates, np.full(devices, latency_s)


def equal(devices: int, latency_s: float) -> Columns:
    rates = np.full(devices, 1e6)
    return rates, rates, np.full(devices, latency_s)


def microseconds_an_event(build: Callable[[Simulation], Network], devices: int, transfers: int) -> float:
    """Starts and ends, at ``devices`` concurrent flows; the median of three."""
    return statistics.median(_once(build, devices, transfers) for _ in range(3))


def _once(build: Callable[[Simulation], Network], devices: int, transfers: int) -> float:
    simulation = Simulation()
    network = build(simulation)
    sizes = np.random.default_rng(2).lognormal(math.log(1e6), 0.5, devices + transfers).tolist()
    began, left = 0.0, transfers

    def again(device: int) -> None:
        nonlocal left, began
        if left == transfers:
            began = time.perf_counter()
        if left:
            left -= 1
            network.send(device, SERVER, sizes.pop(), lambda: again(device))
        else:
            simulation.stop("enough")

    for device in range(devices):
        network.send(device, SERVER, sizes.pop(), lambda device=device: again(device))  # type: ignore[misc]
    asyncio.run(simulation.run())
    return (time.perf_counter() - began) / (2 * transfers) * 1e6


def milliseconds_a_filling(flows: int, cells: int) -> float:
    """``max_min`` alone, in a tree: a server link, a link a cell, and each flow its own cap."""
    generator = np.random.default_rng(3)
    caps = generator.lognormal(math.log(1e6), 1.0, flows)
    capacity = np.append(generator.lognormal(math.log(1e6 * flows / cells), 0.5, cells), (5e5 * flows, np.inf))
    routes = np.stack((np.arange(flows) % cells, np.full(flows, cells)), axis=1)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        max_min(capacity, routes, caps, np.ones(flows))
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def tree(simulation: Simulation, devices: int) -> Network:
    spec = TreeSpec.model_validate(
        {
            "cells": 20,
            "cell": {"up": f"{devices / 20} MB/s"},
            "server": {"up": f"{devices / 2} MB/s"},
            "device": {"up": {"kind": "lognormal", "median": "1 MB/s", "spread": 2.7}},
        }
    )
    return spec.build(simulation, Streams(1), devices)


def main() -> None:
    figures: dict[str, float] = {}
    for name, columns in (("unequal", unequal), ("equal", equal)):
        for load, share in (("half full", 0.5), ("just full", 1.0), ("unlimited", math.inf)):
            for devices in (100, 1_000, 10_000):
                figures[f"star, {name} links, server {load}, {devices} flows, us an event"] = microseconds_an_event(
                    lambda simulation: Star(simulation, *columns(devices, 0.0), math.inf, share * 1e6 * devices),  # noqa: B023
                    devices,
                    20_000,
                )
    figures["star, latency too, 10000 flows, us an event"] = microseconds_an_event(
        lambda simulation: Star(simulation, *unequal(10_000, 0.04), math.inf, 5e9), 10_000, 20_000
    )
    for devices in (1_000, 10_000):
        tcp = Transport(Tcp(), Streams(1))
        figures[f"star, tcp, latency too, {devices} flows, us an event"] = microseconds_an_event(
            lambda simulation: Star(simulation, *equal(devices, 0.04), math.inf, 5e5 * devices, tcp),  # noqa: B023
            devices,
            20_000,
        )
    figures["tree of 20 cells, 1000 flows, ms a filling"] = milliseconds_a_filling(1_000, 20)
    event_us = microseconds_an_event(lambda simulation: tree(simulation, 1_000), 1_000, 1_000)
    figures["tree of 20 cells, 1000 flows, ms an event"] = event_us / 1e3
    print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
