"""How long computing takes: exact sums, limits, jitter, slow phases; kinds of devices by hand;
and hosts that are shared.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.clock.simulation import Simulation, on_grid
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.model_cost import ModelCost
from fedsim.common.streams import Streams
from fedsim.common.training import ALL_SAMPLES, Batching, LastBatch, LocalSteps, Part, Training
from fedsim.testing import StrategyContract, assert_sound, eventful_world, run
from fedsim.toolbox.models.profile import profile
from fedsim.world.device_kinds import DeviceKind
from fedsim.world.hosts import HostSpec
from fedsim.world.network import Star
from fedsim.world.population import Population
from fedsim.world.rooflines import Rooflines, operations_s
from fedsim.world.steps import Work
from fedsim.world.time_variation import SlowPhases, TimeVariation
from tests.benchmarks.hashes import STRATEGIES
from tests.benchmarks.roofline import MODELS, batch_s, fit
from tests.world.sites import WorkSite

SLOW = SlowPhases(factor=0.25, mean_normal="10 s", mean_slow="10 s")  # type: ignore[arg-type]


def test_epochs_end_back_to_back() -> None:
    ends = TimeVariation(Streams(1), 0.0, None, 2).epoch_ends(0, 10.0, 0.1, 5, math.inf)
    assert ends == [on_grid(10.0 + 0.1 * (epoch + 1)) for epoch in range(5)]
    # infinitely fast
    ends = TimeVariation(Streams(1), 0.0, None, 2).epoch_ends(0, 2.0, 0.0, 3, math.inf)
    assert ends == [2.0, 2.0, 2.0]


def test_so_many_epochs_are_exactly_as_long_as_a_limit_of_so_many() -> None:
    compute = TimeVariation(Streams(1), 0.0, None, 2)
    for epoch_s in (0.1, 1 / 3, 4.2, 123.456789, 1e-3 / 7):
        for epochs in (1, 5, 77, 1000):
            limit = on_grid(3.0 + epochs * epoch_s)
            ends = compute.epoch_ends(0, 3.0, epoch_s, epochs + 3, limit)
            assert sum(end <= limit for end in ends) == epochs
            assert len(compute.adapt(3.0, ends, limit)) >= epochs
            assert sum(end <= on_grid(3.0 + epochs * epoch_s - 1e-9) for end in ends) == epochs - 1


def test_jitter_has_mean_one_and_the_stated_spread_and_belongs_to_the_instant() -> None:
    compute = TimeVariation(Streams(4), 0.3, None, 2)
    times = [
        compute.epoch_ends(1, float(start), 1.0, 1, math.inf)[0] - start for start in range(8000)
    ]
    assert np.mean(times) == pytest.approx(1.0, abs=0.015)
    assert np.std(times) == pytest.approx(0.3, abs=0.02)
    ends = [compute.epoch_ends(device, 17.0, 1.0, 1, math.inf) for device in (1, 1, 0)]
    assert ends[0] == ends[1] != ends[2]


def test_slow_phases_are_integrated() -> None:
    end = TimeVariation(Streams(9), 0.0, SLOW, 2).epoch_ends(0, 3.0, 500.0, 1, math.inf)[0]
    phases = TimeVariation(Streams(9), 0.0, SLOW, 2)._phases
    assert phases is not None
    done, time = 0.0, 3.0
    while time < end:
        span = phases.span(0, time)
        until = min(span.end, end)
        done += (until - time) * (1.0 if span.on else 0.25)
        time = until
    assert done == pytest.approx(500.0, abs=1e-6)


@pytest.mark.parametrize("slow", [None, SLOW])
@pytest.mark.parametrize("jitter", [0.0, 0.4])
@pytest.mark.parametrize("epoch_s", [0.0, 0.25, 1.7, 8.0, 333.3])
def test_a_horizon_changes_nothing_before_it(
    slow: SlowPhases | None, jitter: float, epoch_s: float
) -> None:
    for start, limit, horizon in [
        (3.0, math.inf, 40.0),
        (3.0, 25.0, math.inf),
        (3.0, 25.0, 9.0),
        (0.25, 8.25, 3.25),
    ]:
        compute = TimeVariation(Streams(9), jitter, slow, 2)
        whole = [end for end in compute.epoch_ends(0, start, epoch_s, 30, math.inf) if end <= 1e5]
        ends = compute.epoch_ends(0, start, epoch_s, 30, limit, horizon)
        known = [end for end in ends if end <= min(limit, horizon)]
        begun = zip([start, *whole], whole, strict=False)
        assert known == [
            end for begin, end in begun if begin < limit and end <= min(limit, horizon)
        ]
        assert ends[: len(known)] == known
        assert len(ends) <= len(known) + 2 or epoch_s == 0


def test_a_billion_epochs_are_not_laid_out() -> None:
    for jitter, slow in ((0.0, None), (0.3, None), (0.3, SLOW)):
        compute = TimeVariation(Streams(9), jitter, slow, 2)
        assert len(compute.epoch_ends(0, 3.0, 1.0, 10**9, math.inf, 23.0)) < 200
        assert len(compute.epoch_ends(0, 3.0, 1.0, 10**9, 23.0)) < 200


def test_far_too_many_phases_are_refused_before_they_are_walked_through() -> None:
    short = SlowPhases(factor=0.5, mean_normal="1 ms", mean_slow="1 ms")  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match=r"phases of 0\.001 s and 0\.001 s"):
        TimeVariation(Streams(9), 0.0, short, 2).epoch_ends(0, 0.0, 1e9, 1, math.inf)


def kind(**figures: Any) -> DeviceKind:
    """1 GFLOP/s, 1 GB/s and 1 MB, unless said otherwise."""
    whole = {
        "flops": "1 GFLOP/s",
        "flops_share": 1.0,
        "bandwidth": "1 GB/s",
        "bandwidth_share": 1.0,
    }
    return DeviceKind(**whole | {"memory": "1 MB", "memory_share": 1.0} | figures)


def operation(fixed: Sequence[float], a_sample: Sequence[float]) -> list[float]:
    """FLOPs, bytes, bytes of further passes: in any case, and a sample; on ARM twice the FLOPs,
    and 1e6 more bytes a sample.
    """
    on_arm = [[2 * fixed[0], fixed[2]], [2 * a_sample[0], a_sample[2] + 1e6]]
    return [
        number
        for pair in zip([*fixed, *on_arm[0]], [*a_sample, *on_arm[1]], strict=True)
        for number in pair
    ]


# An operation bound by its arithmetic (1 ms a sample), one bound by its data (2 ms in any case, and
# 1 ms a sample).
FORWARD = np.array([operation((0, 8, 0), (1e6, 8, 0)), operation((8, 2e6, 0), (8, 1e6, 0))])
COST = ModelCost(FORWARD, 2 * FORWARD, np.array([operation((0, 4e6, 0), (0, 0, 0))]), 1e5, 2e5, 1e5)
NOW = Training(None)


def rooflines(*kinds: DeviceKind, batch_size: int = 4) -> Rooflines:
    return Rooflines(kinds, np.arange(len(kinds)), COST, Batching(batch_size))


def test_each_operation_takes_the_longer_of_its_two_times() -> None:
    assert operations_s(FORWARD, 3, 1e9, 1e9) == pytest.approx(3e-3 + 5e-3)
    assert operations_s(FORWARD, 3, 1e9, 1e4) == pytest.approx((8 + 24) / 1e4 + 5e6 / 1e4)


def test_further_passes_come_on_top_and_a_gpu_spares_them() -> None:
    """1 ms of arithmetic or .5 ms of data, a sample; then 3 ms in any case, and 2 ms a sample."""
    passing = np.array([operation((0, 0, 3e6), (1e6, 5e5, 2e6))])
    assert operations_s(passing, 4, 1e9, 1e9) == pytest.approx(4e-3 + 3e-3 + 8e-3)
    assert operations_s(passing, 4, 1e9, 1e9, "gpu") == pytest.approx(4e-3)
    assert operations_s(passing, 4, 1e9, 1e9, "arm") == pytest.approx(8e-3 + 3e-3 + 12e-3)
    cost = ModelCost(passing, 0 * passing, 0 * passing, 0.0, 0.0, 0.0)
    devices = Rooflines((kind(), kind(gpu=True), kind(arm=True)), np.arange(3), cost, Batching(4))
    assert [devices.training_s(device, NOW, 4) for device in range(3)] == pytest.approx(
        [15e-3, 4e-3, 23e-3]
    )


def test_an_epoch_by_hand() -> None:
    """A full batch of 4: three times (4 + 2 + 4) ms, and 4 ms of the optimiser; of 2: three
    times (2 + 2 + 2), and 4.
    """
    devices = rooflines(
        kind(), kind(batch="1 ms", epoch="5 ms"), kind(flops_share=0.5, bandwidth_share=0.5)
    )
    full, rest = 34e-3, 22e-3
    assert devices.training_s(0, NOW, 10) == pytest.approx(2 * full + rest)
    assert devices.training_s(1, NOW, 10) == pytest.approx(2 * full + rest + 3e-3 + 5e-3)
    assert devices.training_s(2, NOW, 10) == pytest.approx(2 * (2 * full + rest))
    assert devices.training_s(0, NOW, 2) == pytest.approx(rest)
    assert devices.training_s(1, NOW, 0) == pytest.approx(5e-3)
    # the forward pass
    assert [devices.testing_s(0, samples) for samples in (0, 10)] == [
        0,
        pytest.approx(2 * 10e-3 + 6e-3),
    ]
    samples = np.array([10, 10, 10])
    assert devices.epochs_s(samples) == pytest.approx(
        [devices.training_s(device, NOW, 10) for device in range(3)]
    )
    assert devices.speeds() == pytest.approx([4 / full, 4 / (full + 1e-3), 2 / full])


def test_full_batches_steps_and_parts() -> None:
    devices = rooflines(kind())
    assert devices.training_s(0, Training(None, batch_size=ALL_SAMPLES), 10) == pytest.approx(
        3 * (10 + 2 + 10) * 1e-3 + 4e-3
    )
    per_pass = 2 * 34e-3 + 22e-3
    assert devices.training_s(0, Training(None, LocalSteps(7)), 10) == pytest.approx(
        2 * per_pass + 34e-3
    )
    assert devices.training_s(0, Training(None, LocalSteps(2)), 3) == pytest.approx(
        2 * (3 * (3 + 2 + 3) + 4) * 1e-3
    )
    part = Part(1, 1, 10)
    assert devices.training_s(0, Training(None, part=part), part.samples) == pytest.approx(
        34e-3 + 3 * 4e-3 + 4e-3
    )


@pytest.mark.parametrize(
    ("last", "sizes"), [("keep", [4, 4, 2]), ("drop", [4, 4]), ("merge", [4, 6])]
)
def test_the_last_batch_takes_its_time_alone_merged_or_not_at_all(
    last: LastBatch, sizes: list[int]
) -> None:
    """A batch of n takes 3 (2 n + 2) ms where data are moved, and 4 ms: 34 ms of 4, 22 of 2, 46
    of 6.
    """
    devices = Rooflines((kind(),), np.zeros(1, dtype=np.int64), COST, Batching(4, last))
    taken = sum((3 * (2 * size + 2) + 4) * 1e-3 for size in sizes)
    assert devices.training_s(0, NOW, 10) == pytest.approx(taken)
    assert devices.epochs_s(np.array([10])) == pytest.approx([taken])
    assert devices.needed(NOW, 10) == COST.memory + max(sizes) * COST.memory_a_sample
    population = Population(
        np.full(1, 2.0),
        np.array([10]),
        1.0,
        np.zeros(1),
        np.full(1, np.inf),
        batching=Batching(4, last),
    )
    assert population.training_s(0, NOW, 10) == population.epochs_s()[0] == sum(sizes) / 2


def test_room() -> None:
    """Training takes 200 kB, and 100 kB for each sample of a batch."""
    devices = rooflines(
        kind(memory="600 kB"), kind(memory="599 kB", epoch="1 ms"), kind(memory="99 kB")
    )
    assert [devices.failing_s(device, NOW, 10) for device in range(3)] == [
        None,
        pytest.approx(11e-3),
        pytest.approx(10e-3),
    ]
    assert devices.failing_s(1, NOW, 3) is None  # a smaller batch
    whole = Training(None, batch_size=ALL_SAMPLES)
    assert devices.failing_s(0, whole, 5) == pytest.approx(12e-3)  # its batch has all 5 samples
    assert [devices.failing_s(device, None, 10) is None for device in range(3)] == [
        True,
        True,
        False,
    ]
    devices.check(10)
    with pytest.raises(
        ScenarioError, match=r"takes 300 kB, and no device has room, at most 250 kB"
    ):
        rooflines(kind(memory="0.5 MB", memory_share=0.5)).check(1)


def test_what_was_fitted_to_exact_times_is_found_again() -> None:
    """The benchmark's fit, on the models' own operations: two numbers out of four times."""
    names = ("logistic", "mlp-1024", "cnn-16-32", "mlp-128")
    costs = {name: profile(MODELS[name][0](), MODELS[name][1]) for name in names}
    times = {name: batch_s(cost, 40e9, 6e9, 1e-4) for name, cost in costs.items()}
    assert fit(costs, times, 1e-4) == pytest.approx((40e9, 6e9), rel=1e-4)


def carried_out(
    host: dict[str, Any], arrivals: Sequence[float], seconds: Sequence[float]
) -> dict[int, float]:
    """When each of some computations, a device each, that begin at ``arrivals`` (s), ends (s)."""
    count = len(arrivals)
    nothing, endless = np.zeros(count), np.full(count, math.inf)
    population = Population(np.ones(count), np.zeros(count, dtype=np.int64), 1.0, nothing, endless)
    site = WorkSite(
        Star(Simulation(), endless, endless, nothing, math.inf, math.inf),
        population,
        host=HostSpec(**host),
    )
    for device, time in enumerate(arrivals):
        site.start(Work(seconds=seconds[device]), device=device, at=time)
    site.run()
    return {
        record.fields["device"]: record.time for record in site.records if record.kind == "task-end"
    }


@pytest.mark.parametrize(
    ("host", "arrivals", "seconds", "ends"),
    [
        ({"cores": 1}, [0, 0], [10, 20], [20, 30]),
        # 3 each by 6, a third each until 12, then halves
        ({"cores": 1}, [0, 0, 6], [10, 20, 2], [22, 32, 12]),
        ({"cores": 2}, [0, 0], [10, 20], [10, 20]),
        ({"cores": 2}, [0, 0, 0], [10, 10, 20], [15, 15, 25]),
        ({"throughput": [[2, 1.2]]}, [0, 0], [6, 12], [10, 16]),  # a core of two threads, .6 each
        # between the points, 2.3 together
        ({"throughput": [[2, 2], [4, 2.6]]}, [0, 0, 0], [4.6, 4.6, 4.6], [6, 6, 6]),
        # devices 0 and 2 are on host 0
        ({"cores": 1, "number": 2}, [0, 0, 0], [10, 10, 10], [20, 10, 20]),
        ({"cores": 4, "workers": 1}, [0, 0, 1], [10, 5, 2], [10, 15, 17]),
        ({"cores": 4, "memory": "10 GB", "task_memory": "4 GB"}, [0, 0, 0], [10, 5, 2], [10, 5, 7]),
        # both start without a core, alone from 2 to 3
        ({"cores": 1, "start_up": "2 s"}, [0, 1], [4, 4], [9, 10]),
        ({"cores": 1}, [0, 5], [5, 0], [5, 5]),
    ],
)
def test_by_hand(
    host: dict[str, Any], arrivals: list[float], seconds: list[float], ends: list[float]
) -> None:
    found = carried_out(host, arrivals, seconds)
    assert [found[device] for device in range(len(ends))] == pytest.approx(ends, abs=1e-8)


@pytest.mark.parametrize("kind", ["exponential", "two sizes"])
def test_processor_sharing_under_poisson_arrivals(kind: str) -> None:
    """M/G/1-PS: the mean response is E[S] / (1 - rho), whatever the distribution (Kleinrock,
    Queueing Systems II, 4.4).
    """
    generator, count, rho = np.random.default_rng(3), 20_000, 0.6
    works = (
        generator.exponential(1.0, count)
        if kind == "exponential"
        else generator.choice([0.5, 5.5], count, p=[0.9, 0.1])
    )
    arrivals = np.cumsum(generator.exponential(1 / rho, count))
    ends = carried_out({"cores": 1}, arrivals.tolist(), works.tolist())
    response = np.mean([ends[device] - arrivals[device] for device in range(count)])
    assert response == pytest.approx(works.mean() / (1 - rho), rel=0.06)


def test_a_pool_is_a_queue_with_so_many_servers() -> None:
    """M/M/c: the mean wait is C(c, a) / (c mu - lambda), with Erlang's C."""
    generator, count, servers, load = np.random.default_rng(4), 20_000, 3, 2.1
    works, arrivals = (
        generator.exponential(1.0, count),
        np.cumsum(generator.exponential(1 / load, count)),
    )
    ends = carried_out({"cores": servers, "workers": servers}, arrivals.tolist(), works.tolist())
    wait = np.mean([ends[device] - arrivals[device] - works[device] for device in range(count)])
    all_busy = load**servers / math.factorial(servers) * servers / (servers - load)
    erlang = all_busy / (sum(load**k / math.factorial(k) for k in range(servers)) + all_busy)
    assert wait == pytest.approx(erlang / (servers - load), rel=0.08)


HOST = {"number": 2, "throughput": [[2, 2.0], [8, 3.0]], "workers": 4, "start_up": "500 ms"}


@pytest.mark.parametrize("kind", ["fedavg", "cata-fed", "fedbuff", "tifl"])
def test_interrupted_and_resumed_at_any_instant(kind: str, tmp_path: Path) -> None:
    """With deadlines, disconnections, departures and shifts; the audit counts shares and workers
    again.
    """
    contract = StrategyContract()
    contract.strategy = {"kind": kind} | STRATEGIES[kind]
    contract.sections = {"learning": "off", "energy": {"compute": "5 W", "idle": "1 W"}}
    population = eventful_world(contract.strategy)["population"] | {"host": HOST}
    population.pop("slow_phases", None)
    contract.sections["population"] = population
    contract.test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)
    folder = assert_sound(tmp_path / "whole")
    ends = [
        event
        for event in folder.events
        if event["kind"] == "step-end" and event["step"] in ("train", "queue")
    ]
    assert {"done", "lost"} <= {event["outcome"] for event in ends}


def test_no_hosts_are_hosts_with_a_core_for_each_device() -> None:
    """What happens is the same; records of trainings only say how much of a core they had, so
    hashes differ.
    """
    scenario = eventful_world(
        {"kind": "fedavg", "clients_per_round": 6, "deadline": "30 s"}, seed=4, rounds=4
    )
    scenario["learning"] = "off"
    scenario["population"].pop("slow_phases", None)
    alone = run(scenario)
    scenario["population"]["host"] = {"cores": 100}
    shared = run(scenario)
    assert shared["simulated_s"] == pytest.approx(alone["simulated_s"], abs=1e-6)
    assert shared["events"] == alone["events"]
