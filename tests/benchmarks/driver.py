"""What the driver costs an event over plain SimPy: medians in microseconds, as JSON.

Run it on an idle machine: python -m tests.benchmarks.driver
"""

import asyncio
import json
import statistics
import time

import simpy
from simpy.events import ProcessGenerator

from fedsim.clock.simulation import Simulation

EVENTS, PROCESSES, REPEATS = 200_000, 10, 7


def clock(env: simpy.Environment, count: int, delay: float) -> ProcessGenerator:
    """``count`` waits of ``delay`` seconds."""
    for _ in range(count):
        yield env.timeout(delay)


def event_us(spread: float, driven: bool) -> float:
    """Microseconds an event of ``Simulation.run``, or of SimPy's ``Environment.run``."""
    simulation = Simulation()
    env = simulation.env if driven else simpy.Environment()
    for number in range(PROCESSES):
        (simulation if driven else env).process(
            clock(env, EVENTS // PROCESSES, 1.0 + number * spread)
        )
    begin = time.perf_counter()
    if driven:
        asyncio.run(simulation.run())
    else:
        env.run()
    return (time.perf_counter() - begin) / EVENTS * 1e6


def main() -> None:
    """Measure events that share instants, and events that do not."""
    report = {}
    for name, spread in (("ten events an instant", 0.0), ("one event an instant", 1e-3)):
        pairs = [(event_us(spread, False), event_us(spread, True)) for _ in range(REPEATS)]
        plain, driven = (statistics.median(column) for column in zip(*pairs, strict=True))
        extra = statistics.median(after - before for before, after in pairs)
        report[name] = {
            "simpy_us": round(plain, 3),
            "driven_us": round(driven, 3),
            "extra_us": round(extra, 3),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
