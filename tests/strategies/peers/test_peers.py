"""Strategies without a server, by gossip and by all-reduce: against plain loops, FedAvg through
a server, and closed forms.
"""

import asyncio
import copy
import inspect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import networkx
import numpy as np
import pytest
from pydantic import ValidationError

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.training import ALL_SAMPLES, LocalSteps, Training
from fedsim.running.runner import Job
from fedsim.testing import ScenarioTables, StrategyContract, assert_sound, quiet_world
from fedsim.toolbox.peers.topology import Topology

Models = np.ndarray[Any, Any]
SLOW = {"kind": "star", "device": {"up": "100 kB/s", "latency": "10 ms"}}


def peers(strategy: dict[str, Any], devices: int, rounds: int, **sections: Any) -> ScenarioTables:
    world = quiet_world(strategy, rounds=rounds)
    world["population"] |= {"devices": devices}
    return copy.deepcopy(world | sections)


def done(
    strategy: dict[str, Any], rounds: int = 3, devices: int = 4, **sections: Any
) -> tuple[Job, dict[str, Any]]:
    job = Job(fedsim.Scenario(**peers(strategy, devices, rounds, **sections)), None, Inline())
    return job, asyncio.run(job.execute()).summary


def values(job: Job, models: Sequence[Any]) -> Models:
    return np.array(asyncio.run(job.run.learner.values(models)), dtype=np.float64)


def models(job: Job) -> Models:
    return values(job, [model for model, _ in job.run.strategy.models().values()])


def trained(job: Job, starts: Models, number: int, **how: Any) -> Models:
    """What each device makes of its model in a round."""
    learner = job.run.learner
    given = [learner.given(start.astype(np.float32)) for start in starts]
    return values(
        job,
        [
            learner.train(Training(ref, **how), one, key=number, round=number)
            for one, ref in enumerate(given)
        ],
    )


def mixing_matrix(topology: Topology, devices: int) -> Models:
    """As the scheme says, from networkx's own graph."""
    graph = topology.graph(devices, 0)
    matrix = np.zeros((devices, devices))
    for one, other in graph.edges:
        matrix[one, other] = matrix[other, one] = 1 / (
            1 + max(graph.degree[one], graph.degree[other])
        )
    return matrix + np.diag(1 - matrix.sum(axis=1))


@pytest.mark.parametrize(
    "topology", ["ring", "star", {"kind": "hypercube", "parameters": {"n": 3}}]
)
def test_d_psgd_is_the_plain_loop(topology: Any) -> None:
    """x <- W x + (what training from x changes), in float64 with the same trainings, to 1e-6."""
    job, _ = done({"kind": "d-psgd", "topology": topology, "start": "own"}, devices=8)
    matrix = mixing_matrix(job.scenario.strategy.topology, 8)  # type: ignore[attr-defined]
    plain = values(job, [job.run.learner.initial(1 + device) for device in range(8)])
    for number in range(3):
        plain = matrix @ plain + (trained(job, plain, number) - plain)
    np.testing.assert_allclose(models(job), plain, atol=1e-6)


def test_consensus_shrinks_by_the_second_eigenvalue(tmp_path: Path) -> None:
    """On a ring of four all eigenvalues but the first have the size 1/3; averaging alone, from
    models that differ.
    """
    sizes = np.sort(np.abs(np.linalg.eigvalsh(mixing_matrix(Topology(kind="ring"), 4))))
    np.testing.assert_allclose(sizes, [1 / 3, 1 / 3, 1 / 3, 1])
    strategy = {"kind": "d-psgd", "start": "own", "local_epochs": 0}
    fedsim.run(fedsim.Scenario(**peers(strategy, 4, 5)), tmp_path / "run", executor="inline")
    consensus = np.array([row["consensus"] for row in assert_sound(tmp_path / "run").rounds])
    np.testing.assert_allclose(consensus[1:] / consensus[:-1], 1 / 3, rtol=1e-6)


def test_gossip_without_training_leaves_the_mean_and_brings_models_together() -> None:
    job, _ = done(
        {"kind": "gossip", "start": "own", "local_epochs": 0, "topology": "complete"}, 8, 6
    )
    first, last = (
        values(job, [job.run.learner.initial(1 + device) for device in range(6)]),
        models(job),
    )
    # but for answers on their way
    np.testing.assert_allclose(last.mean(axis=0), first.mean(axis=0), atol=0.02)
    assert last.std(axis=0).sum() < first.std(axis=0).sum() / 10


def test_graphs_change_when_they_are_said_to() -> None:
    topology = {"kind": "random-regular", "parameters": {"d": 3}, "every": 2}
    run = fedsim.Simulation(
        fedsim.Scenario(**peers({"kind": "d-psgd", "topology": topology}, 12, 1))
    ).installed
    half, device = run.strategy._half, run.server.peer(0)
    drawn = [half.neighbours(device, number) for number in range(4)]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]
    assert all(len(neighbours) == 3 for neighbours in drawn[0])
    assert half.weight(device, 0, drawn[0][0][0], 3) == 1 / 4
    torus = Topology(kind="torus", parameters={"m": 3, "n": 4}).graph(12, 0)
    assert networkx.is_isomorphic(torus, networkx.grid_2d_graph(3, 4, True))


@pytest.mark.parametrize(
    ("strategy", "devices", "messages", "hops", "shares"),
    [
        # two neighbours, at once on a device's own link
        ({"kind": "d-psgd", "local_epochs": 0}, 10, 20, 1, 2),
        ({"kind": "local-sgd", "collective": "ring"}, 4, 6, 6, 6 / 4),
        ({"kind": "local-sgd", "collective": "butterfly"}, 4, 6, 2, 6 / 4),
        ({"kind": "local-sgd", "collective": "tree"}, 4, 6, 4, 1 + 1 + 2 + 1),
    ],
)
def test_times_in_closed_form(
    strategy: dict[str, Any], devices: int, messages: int, hops: int, shares: float
) -> None:
    """On links up of one rate: hops of twice a device's latency, and the shares of the model
    that follow on one another.
    """
    population = {"devices": devices, "speed": "inf samples/s"}
    job, summary = done(strategy, 5, network=SLOW, population=population)
    size, moved = job.run.learner.bytes, summary["bytes"]
    assert summary["simulated_s"] == pytest.approx(
        5 * (hops * 0.02 + shares * size / 1e5), abs=1e-6
    )
    assert (moved["peer"], moved["paper"]) == pytest.approx((5 * messages * size,) * 2)
    assert (moved["down"], moved["up"], moved["wasted"]) == (0, 0, 0)


class TestAllReduce(StrategyContract):
    """But where devices come and go, which all-reduces refuse."""

    strategy: ClassVar[dict[str, Any]] = {
        "kind": "diloco",
        "local_steps": 3,
        "fragments": 2,
        "overlap": True,
    }
    sections: ClassVar[dict[str, Any]] = {
        "population": {
            "devices": 6,
            "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
            "jitter": 0.2,
        },
        "messages": {"up": "float16"},
    }
    test_newcomers_and_leavers = test_devices_vanish_at_any_instant = None  # type: ignore[assignment]
    test_an_hour_with_nobody = test_everybody_leaves = None  # type: ignore[assignment]


class TestAllReduceInSteps(TestAllReduce):
    """Results are used after one of three steps."""

    strategy: ClassVar[dict[str, Any]] = {
        "kind": "diloco",
        "local_steps": 3,
        "fragments": 2,
        "overlap": 1,
    }


@pytest.mark.parametrize(
    ("strategy", "server"),
    [
        *(
            ({"kind": "local-sgd", "collective": kind}, None)
            for kind in ("ring", "tree", "butterfly")
        ),
        ({"kind": "diloco"}, {"kind": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}),
    ],
    ids=str,
)
def test_every_all_reduce_ends_at_the_model_of_a_server(
    strategy: dict[str, Any], server: dict[str, Any] | None
) -> None:
    """That of FedAvg over all devices, each weighing the same; DiLoCo with Nesterov momentum
    there.
    """
    fedavg = {"kind": "fedavg", "clients_per_round": 4, "aggregation": "mean", "server": server}
    found, (expected,) = models(done(strategy)[0]), models(done(fedavg)[0])
    assert (found == found[0]).all()
    np.testing.assert_allclose(found[0], expected, atol=2e-6 if server else 1e-6)


def test_a_step_between_averages_is_synchronous_sgd() -> None:
    """H = 1, outer lr 1, no momentum: plain gradient descent on the mean of all devices'
    batches.
    """
    strategy = {"kind": "diloco", "local_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
    job, _ = done(strategy, training={"batch_size": 10_000, "lr": 0.1})
    plain = values(job, [job.run.learner.initial()])[0]
    for number in range(3):
        plain = trained(
            job, np.tile(plain, (4, 1)), number, amount=LocalSteps(1), batch_size=ALL_SAMPLES
        ).mean(axis=0)
    np.testing.assert_allclose(models(job)[0], plain, atol=1e-6)


def test_fragments_stream_while_devices_train() -> None:
    """A third of the bytes a synchronisation; an all-reduce that is shorter than training takes
    no time but the last.
    """
    blocking, overlapped = (
        {"kind": "diloco", "fragments": 3, "overlap": overlap} for overlap in (False, True)
    )
    world = {"network": SLOW, "population": {"devices": 4, "speed": "60 samples/s"}}
    (job, first), (_, second) = done(blocking, 6, **world), done(overlapped, 6, **world)
    one = 6 * 0.02 + 6 / 4 * job.run.learner.bytes / 3 / 1e5
    assert (
        first["bytes"]["peer"]
        == second["bytes"]["peer"]
        == pytest.approx(6 * 6 * job.run.learner.bytes / 3, rel=1e-3)
    )
    assert first["simulated_s"] - second["simulated_s"] == pytest.approx(5 * one, rel=1e-3)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_result_is_used_after_some_steps(steps: int) -> None:
    """An all-reduce lasts two and a half steps, of which ``steps`` are hidden; all three hide it
    as ``true`` does.
    """
    training = {"batch_size": 10}
    everything = {"network": SLOW, "training": training}
    diloco = {"kind": "diloco", "local_steps": 3}
    _, idle = done(diloco, 4, population={"devices": 4, "speed": "inf samples/s"}, **everything)
    reduce_s = idle["simulated_s"] / 4
    step_s = reduce_s / 2.5
    everything["population"] = {"devices": 4, "speed": f"{10 / step_s!r} samples/s"}
    _, blocking = done(diloco, 4, **everything)
    job, early = done(diloco | {"overlap": steps}, 4, **everything)
    hidden = blocking["simulated_s"] - early["simulated_s"]
    assert hidden == pytest.approx(3 * min(reduce_s, steps * step_s), rel=1e-6)
    if steps == 3:
        late, _ = done(diloco | {"overlap": True}, 4, **everything)
        np.testing.assert_array_equal(models(job), models(late))


def test_a_result_that_is_used_after_some_steps_is_the_plain_loop() -> None:
    """Three steps; an outer step, while one further step is made from the own model; half of each;
    the other two steps, and the last outer step. Each training has batches of its own.
    """
    job, _ = done(
        {"kind": "diloco", "local_steps": 3, "overlap": 1, "mixing": 0.5},
        2,
        network=SLOW,
        training={"batch_size": 10, "lr": 0.1},
    )
    start = np.tile(values(job, [job.run.learner.initial()]), (4, 1))
    own = trained(job, start, 0, amount=LocalSteps(3))
    velocity = (own - start).mean(axis=0)
    outer = start + 0.7 * (1 + 0.9) * velocity
    own = trained(job, own, 1, amount=LocalSteps(1))
    own = trained(job, (own + outer) / 2, 2, amount=LocalSteps(2))
    change = (own - outer).mean(axis=0)
    velocity = 0.9 * velocity + change
    np.testing.assert_allclose(models(job), outer + 0.7 * (change + 0.9 * velocity), atol=1e-6)


def test_a_fragment_alone_changes_and_is_mixed_in_late() -> None:
    job, _ = done({"kind": "diloco", "fragments": 2}, 1)
    found, first = models(job), values(job, [job.run.learner.initial()])[0]
    half = found.shape[1] // 2
    assert (found[:, :half] == found[0, :half]).all()
    assert (found[:, half:] != found[0, half:]).any()
    assert (found[0, :half] != first[:half]).any()


def test_low_bits_shrink_messages_and_reach_all_alike() -> None:
    strategy, codec = {"kind": "diloco", "fragments": 2}, {"kind": "int8", "bucket": None}
    (_, plain), (job, coded) = done(strategy, 4), done(strategy, 4, messages={"up": codec})
    assert coded["bytes"]["peer"] == pytest.approx(plain["bytes"]["peer"] / 4, rel=0.02)
    found = models(job)
    assert np.abs(found - found.mean(axis=0)).max() < 0.5


@pytest.mark.parametrize(
    ("strategy", "sections", "says"),
    [
        (
            {},
            {
                "population": {
                    "availability": {"kind": "renewal", "mean_on": "1 h", "mean_off": "1 min"}
                }
            },
            "for every device",
        ),
        ({}, {"devices": 1}, "averages over 2 or more"),
        ({"mixing": 0.2}, {}, r"'mixing' is 0\.2, which counts only where 'overlap'"),
        ({"local_steps": 3, "local_epochs": 2}, {}, r"local_steps and strategy\.local_epochs"),
        ({"overlap": 1}, {}, r"overlap is 1 SGD steps, and strategy\.local_steps is missing"),
        ({"local_steps": 3, "overlap": 4}, {}, r"overlap is 4 SGD steps.*local_steps is 3"),
        (
            {},
            {"world": {"processes": [f"{__name__}:switch_off"]}},
            "let no process of the world switch one off",
        ),
    ],
    ids=str,
)
def test_refused(strategy: dict[str, Any], sections: dict[str, Any], says: str) -> None:
    with pytest.raises((ScenarioError, SimulationError), match=says):
        done({"kind": "diloco"} | strategy, **sections)


def switch_off(world: Any) -> Any:
    """Device 1 is off for a while."""
    yield world.timeout(0.05)
    with world.off(1):
        yield world.timeout(1.0)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (
            {"kind": "ring", "parameters": {"backend": 1}},
            "parameters has 'backend'; allowed with 'ring' are n",
        ),
        (
            {"kind": "random-regular", "parameters": {"e": 3}},
            "parameters has 'e'; allowed with 'random-regular' are d, n",
        ),
        ({"kind": "random-regular", "parameters": {"seed": 3}}, "parameters has 'seed'"),
        (
            {"kind": "torus", "parameters": {"m": 10**9, "n": 10**9}},
            "m = 1000000000; allowed are at most 6",
        ),
        (
            {"kind": "hypercube", "parameters": {"n": 6}},
            "with n = 6 'hypercube' has more than 6 nodes",
        ),
        ({"kind": "random-regular", "parameters": {"d": 1.5}}, "networkx says"),
        (
            {"kind": "ring", "every": 2},
            "'every' is 2, which counts only with a graph that is drawn",
        ),
        ({"kind": "complete", "every": 2}, "'complete' is always the same"),
    ],
)
def test_a_topology_that_cannot_be_made(topology: Any, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        fedsim.Scenario(**peers({"kind": "d-psgd", "topology": topology}, 6, 1))


def test_every_generator_of_networkx_makes_a_graph_or_is_refused() -> None:
    """With nothing, and with each of its parameters at 0, 1, the number of devices, and huge."""
    made = Counter[bool]()
    names = [
        name.removesuffix("_graph") for name in dir(networkx.generators) if name.endswith("_graph")
    ]
    for name in names:
        generator = getattr(networkx.generators, f"{name}_graph")
        takes = inspect.signature(generator).parameters if callable(generator) else {}
        values: list[dict[str, Any]] = [
            {},
            *({key: value} for key in takes for value in (0, 1, 6, 0.5, 10**9)),
        ]
        for parameters in values:
            try:
                graph = Topology(kind=name, parameters=parameters).graph(6, 0)
            except (ScenarioError, ValidationError):
                made[False] += 1
            else:
                made[True] += 1
                assert len(graph) == 6
    assert min(made[True], made[False]) > 50
