"""Devices that share machines: processor sharing and pools beside hand computation and queueing theory."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.simulation import Simulation
from fedsim.streams import Streams
from fedsim.testing import StrategyContract, assert_sound, eventful_world, run
from fedsim.world.availability import AlwaysOn
from fedsim.world.compute import Compute
from fedsim.world.hosts import HostSpec
from fedsim.world.life import TaskRunner
from fedsim.world.network import Star
from fedsim.world.population import Population
from fedsim.world.task import Task, Work
from tests.benchmarks.hashes import STRATEGIES


def carried_out(host: dict[str, Any], arrivals: Sequence[float], seconds: Sequence[float]) -> dict[int, float]:
    """When each of some computations, a device each, that begin at ``arrivals`` (s), ends (s)."""
    simulation, count, ends = Simulation(), len(arrivals), {}
    nothing, endless = np.zeros(count), np.full(count, math.inf)
    population = Population(np.ones(count), np.zeros(count, dtype=np.int64), 1.0, nothing, endless)
    network = Star(simulation, endless, endless, nothing, math.inf, math.inf)
    streams = Streams(1)
    available, compute = AlwaysOn().build(streams, count, None), Compute(streams, 0.0, None, count)

    def on_end(task: Task) -> None:
        ends[task.device] = simulation.now

    spec = HostSpec(**host)
    tasks = TaskRunner(simulation, population, available, compute, network, 1, lambda task: (), on_end, None, None, spec)

    def start(device: int) -> None:
        tasks.start(device, (Work(seconds=seconds[device]),), 0, None)

    for device, time in enumerate(arrivals):
        simulation.wake(("start", device), time, lambda device=device: start(device))
    asyncio.run(simulation.run())
    return ends


@pytest.mark.parametrize(
    ("host", "arrivals", "seconds", "ends"),
    [
        ({"cores": 1}, [0, 0], [10, 20], [20, 30]),
        ({"cores": 1}, [0, 0, 6], [10, 20, 2], [22, 32, 12]),  # 3 each by 6, a third each until 12, then halves
        ({"cores": 2}, [0, 0], [10, 20], [10, 20]),
        ({"cores": 2}, [0, 0, 0], [10, 10, 20], [15, 15, 25]),
        ({"throughput": [[2, 1.2]]}, [0, 0], [6, 12], [10, 16]),  # a core of two threads, .6 each
        ({"throughput": [[2, 2], [4, 2.6]]}, [0, 0, 0], [4.6, 4.6, 4.6], [6, 6, 6]),  # between the points, 2.3 together
        ({"cores": 1, "number": 2}, [0, 0, 0], [10, 10, 10], [20, 10, 20]),  # devices 0 and 2 are on host 0
        ({"cores": 4, "workers": 1}, [0, 0, 1], [10, 5, 2], [10, 15, 17]),
        ({"cores": 4, "memory": "10 GB", "task_memory": "4 GB"}, [0, 0, 0], [10, 5, 2], [10, 5, 7]),
        ({"cores": 1, "start_up": "2 s"}, [0, 1], [4, 4], [9, 10]),  # both start without a core, alone from 2 to 3
        ({"cores": 1}, [0, 5], [5, 0], [5, 5]),
    ],
)
def test_by_hand(host: dict[str, Any], arrivals: list[float], seconds: list[float], ends: list[float]) -> None:
    found = carried_out(host, arrivals, seconds)
    assert [found[device] for device in range(len(ends))] == pytest.approx(ends, abs=1e-8)


@pytest.mark.parametrize("kind", ["exponential", "two sizes"])
def test_processor_sharing_under_poisson_arrivals(kind: str) -> None:
    """M/G/1-PS: the mean response is E[S] / (1 - rho), whatever the distribution (Kleinrock, Queueing Systems II, 4.4)."""
    generator, count, rho = np.random.default_rng(3), 20_000, 0.6
    works = generator.exponential(1.0, count) if kind == "exponential" else generator.choice([0.5, 5.5], count, p=[0.9, 0.1])
    arrivals = np.cumsum(generator.exponential(1 / rho, count))
    ends = carried_out({"cores": 1}, arrivals.tolist(), works.tolist())
    response = np.mean([ends[device] - arrivals[device] for device in range(count)])
    assert response == pytest.approx(works.mean() / (1 - rho), rel=0.06)


def test_a_pool_is_a_queue_with_so_many_servers() -> None:
    """M/M/c: the mean wait is C(c, a) / (c mu - lambda), with Erlang's C."""
    generator, count, servers, load = np.random.default_rng(4), 20_000, 3, 2.1
    works, arrivals = generator.exponential(1.0, count), np.cumsum(generator.exponential(1 / load, count))
    ends = carried_out({"cores": servers, "workers": servers}, arrivals.tolist(), works.tolist())
    wait = np.mean([ends[device] - arrivals[device] - works[device] for device in range(count)])
    all_busy = load**servers / math.factorial(servers) * servers / (servers - load)
    erlang = all_busy / (sum(load**k / math.factorial(k) for k in range(servers)) + all_busy)
    assert wait == pytest.approx(erlang / (servers - load), rel=0.08)


HOST = {"number": 2, "throughput": [[2, 2.0], [8, 3.0]], "workers": 4, "start_up": "500 ms"}


@pytest.mark.parametrize("kind", ["fedavg", "cata-fed", "fedbuff", "tifl"])
def test_interrupted_and_resumed_at_any_instant(kind: str, tmp_path: Path) -> None:
    """With deadlines, disconnections, departures and shifts; the audit counts shares and workers again."""
    contract = StrategyContract()
    contract.strategy = {"kind": kind} | STRATEGIES[kind]
    contract.sections = {"learning": "off", "energy": {"compute": "5 W", "idle": "1 W"}}
    population = eventful_world(contract.strategy)["population"] | {"host": HOST}
    population.pop("slow_phases", None)
    contract.sections["population"] = population
    contract.test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)
    folder = assert_sound(tmp_path / "whole")
    outcomes = {
        event["outcome"] for event in folder.events if event["kind"] == "step-end" and event["step"] in ("train", "queue")
    }
    assert {"done", "lost"} <= outcomes


def test_no_hosts_are_hosts_with_a_core_for_each_device() -> None:
    """What happens is the same; records of trainings only say how much of a core they had, so hashes differ."""
    scenario = eventful_world({"kind": "fedavg", "clients_per_round": 6, "deadline": "30 s"}, seed=4, rounds=4) | {
        "learning": "off"
    }
    scenario["population"].pop("slow_phases", None)
    alone = run(scenario)
    scenario["population"]["host"] = {"cores": 100}
    shared = run(scenario)
    assert shared["simulated_s"] == pytest.approx(alone["simulated_s"], abs=1e-6)
    assert shared["events"] == alone["events"]
