"""How cost grows: prints a Markdown table a curve. Run on an idle machine: ``python -m tests.benchmarks.curves [CURVE...]``.

Each point is a run of the same small world in which one thing changes: devices, clients a round, parameters of the model,
samples a device, flows at a time. Times are the processor's, of this process, for one round; the last column is the
exponent between two points (1: as the thing itself; 0: it does not matter). Real times differ from machine to machine, the
exponents hardly.
"""

import asyncio
import math
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import fedsim
from fedsim.executors.inline import Inline
from fedsim.running.runner import Job

WORLD: dict[str, Any] = {
    "name": "curve",
    "learning": "off",
    "population": {
        "devices": 1000,
        "speed": {"kind": "lognormal", "median": "400 samples/s", "spread": 2.0},
        "samples": {"low": 20, "high": 100},
        "availability": {"kind": "renewal", "mean_on": "2 h", "mean_off": "20 min"},
    },
    "network": {
        "kind": "star",
        "server": {"down": "1 Gbit/s", "up": "200 Mbit/s"},
        "device": {"down": "40 Mbit/s", "up": "10 Mbit/s", "latency": "40 ms"},
    },
    "strategy": {"kind": "fedavg", "clients_per_round": 100, "local_epochs": 2},
    "stop": {"rounds": 30},
}


def seconds_a_round(sections: dict[str, Any]) -> float:
    """The median processor time of a round, the first ones left out (s)."""
    job = Job(fedsim.Scenario(**sections), None, Inline())
    ends: list[float] = []
    job.simulation.listen(lambda record: ends.append(time.process_time()) if record.kind == "round" else None)
    asyncio.run(job.execute())
    took = [after - before for before, after in pairwise(ends[1:])]
    return median(took)


def changed(sections: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one key changed."""
    first, _, rest = path.partition(".")
    return sections | {first: changed(sections.get(first, {}), rest, value) if rest else value}


def devices(count: int) -> dict[str, Any]:
    """Of which 100 work."""
    return changed(WORLD, "population.devices", count)


def clients(count: int) -> dict[str, Any]:
    """Out of 20,000 devices."""
    return changed(changed(WORLD, "population.devices", 20_000), "strategy.clients_per_round", count)


def flows(count: int) -> dict[str, Any]:
    """That share one slow link of the server, all at a time."""
    return changed(changed(clients(count), "network.server.down", "10 Mbit/s"), "network.server.up", "10 Mbit/s")


def digits(**model: Any) -> dict[str, Any]:
    """Real training: 20 of 50 devices with handwritten digits, 64 features."""
    sections = WORLD | {"learning": "on", "data": {"source": "digits"}, "model": model or {"kind": "logistic"}}
    sections = changed(changed(sections, "population.devices", 50), "population.samples", None)
    sections["population"].pop("samples")
    return changed(changed(sections, "strategy.clients_per_round", 20), "stop.rounds", 12)


def width(count: int) -> dict[str, Any]:
    """Of the hidden layer of a perceptron; 75 parameters for each unit."""
    return digits(kind="mlp", hidden=[count])


def trained(count: int) -> dict[str, Any]:
    """Clients a round, with learning."""
    return changed(digits(), "strategy.clients_per_round", count)


def epochs(count: int) -> dict[str, Any]:
    """Local epochs."""
    return changed(digits(), "strategy.local_epochs", count)


CURVES: dict[str, tuple[str, Callable[[int], dict[str, Any]], list[int]]] = {
    "devices": ("devices, of which 100 work in a round", devices, [1_000, 10_000, 100_000, 1_000_000]),
    "clients": ("clients a round, no learning", clients, [10, 100, 1_000, 10_000]),
    "flows": ("flows at a time on one link", flows, [10, 100, 1_000, 10_000]),
    "width": ("hidden units (75 parameters each), 20 clients", width, [16, 64, 256, 1024]),
    "trained": ("clients a round, softmax regression on digits", trained, [5, 10, 20, 40]),
    "epochs": ("local epochs, 20 clients", epochs, [1, 4, 16, 64]),
}


def main(names: list[str]) -> None:
    """Measure and print."""
    for name in names or CURVES:
        title, make, counts = CURVES[name]
        print(f"\n| {title} | ms a round | exponent |\n|---|---|---|", flush=True)
        before: tuple[int, float] | None = None
        for count in counts:
            took = seconds_a_round(make(count))
            exponent = "" if before is None else f"{math.log(took / before[1]) / math.log(count / before[0]):.2f}"
            print(f"| {count:,} | {1e3 * took:.2f} | {exponent} |", flush=True)
            before = count, took


if __name__ == "__main__":
    main(sys.argv[1:])
