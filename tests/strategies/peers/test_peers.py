"""Strategies without a server: against plain loops, closed forms, and what every strategy must pass."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

import fedsim
from fedsim.executors.inline import Inline
from fedsim.running.runner import Job
from fedsim.testing import ScenarioTables, assert_sound, quiet_world
from fedsim.toolbox.peers.rounds import Graphs, Topology, mixing_weight
from fedsim.training import Training


def peers(strategy: dict[str, Any], devices: int, rounds: int, **sections: Any) -> ScenarioTables:
    world = quiet_world(strategy, rounds=rounds)
    world["population"] |= {"devices": devices}
    return copy.deepcopy(world | sections)


def models(job: Job) -> np.ndarray[Any, Any]:
    served = job.run.strategy.models().values()
    return np.array(asyncio.run(job.run.learner.values([model for model, _ in served])), dtype=np.float64)


def mixing_matrix(topology: Topology, devices: int) -> np.ndarray[Any, Any]:
    """As the scheme says, from networkx's own graph."""
    graph = topology.graph(devices, 0)
    matrix = np.zeros((devices, devices))
    for one, other in graph.edges:
        matrix[one, other] = matrix[other, one] = 1 / (1 + max(graph.degree[one], graph.degree[other]))
    return matrix + np.diag(1 - matrix.sum(axis=1))


@pytest.mark.parametrize("topology", ["ring", "star", {"kind": "hypercube", "parameters": {"n": 3}}])
def test_d_psgd_is_the_plain_loop(topology: Any) -> None:
    """x <- W x + (what training from x changes), in float64 with the same trainings, to 1e-6."""
    sections = peers({"kind": "d-psgd", "topology": topology, "start": "own"}, 8, 3)
    job = Job(fedsim.Scenario(**sections), None, Inline())
    matrix = mixing_matrix(job.scenario.strategy.topology, 8)  # type: ignore[attr-defined]
    asyncio.run(job.execute())
    learner = job.run.learner
    plain = np.array(asyncio.run(learner.values([learner.initial(1 + device) for device in range(8)])), dtype=np.float64)
    for number in range(3):
        starts = [learner.given(model) for model in plain]
        trained = [learner.train(Training(start), d, key=number, round=number) for d, start in enumerate(starts)]
        plain = matrix @ plain + (asyncio.run(learner.values(trained)) - plain)
    np.testing.assert_allclose(models(job), plain, atol=1e-6)


def test_consensus_shrinks_by_the_second_eigenvalue(tmp_path: Path) -> None:
    """On a ring of four all eigenvalues but the first have the size 1/3; averaging alone, from models that differ."""
    topology = Topology(kind="ring")
    sizes = np.sort(np.abs(np.linalg.eigvalsh(mixing_matrix(topology, 4))))
    np.testing.assert_allclose(sizes, [1 / 3, 1 / 3, 1 / 3, 1])
    strategy = {"kind": "d-psgd", "start": "own", "local_epochs": 0}
    fedsim.run(fedsim.Scenario(**peers(strategy, 4, 5)), tmp_path / "run", executor="inline")
    consensus = np.array([row["consensus"] for row in assert_sound(tmp_path / "run").rounds])
    np.testing.assert_allclose(consensus[1:] / consensus[:-1], 1 / 3, rtol=1e-6)


def test_gossip_without_training_leaves_the_mean_and_brings_models_together() -> None:
    sections = peers({"kind": "gossip", "start": "own", "local_epochs": 0, "topology": "complete"}, 6, 8)
    job = Job(fedsim.Scenario(**sections), None, Inline())
    rows = asyncio.run(job.execute()).rows
    learner = job.run.learner
    first = asyncio.run(learner.values([learner.initial(1 + device) for device in range(6)]))
    np.testing.assert_allclose(models(job).mean(axis=0), np.mean(first, axis=0), atol=0.02)  # but for answers on their way
    assert rows[-1]["consensus"] < rows[0]["consensus"] / 10


def test_a_ring_of_equal_links_in_closed_form() -> None:
    """Each device sends to two neighbours over its own link: a round takes two latencies and two models at its rate."""
    device = {"down": "1 MB/s", "up": "100 kB/s", "latency": "50 ms"}
    sections = peers({"kind": "d-psgd", "local_epochs": 0}, 10, 7, network={"kind": "star", "device": device})
    job = Job(fedsim.Scenario(**sections), None, Inline())
    summary = asyncio.run(job.execute()).summary
    size = job.run.learner.bytes
    assert summary["simulated_s"] == pytest.approx(7 * (2 * 0.05 + 2 * size / 1e5), abs=1e-6)
    assert summary["bytes"] | {"by_purpose": 0} == {"down": 0.0, "up": 0.0, "peer": 7 * 20 * size, "wasted": 0.0} | {
        "paper": 7 * 20 * size,
        "by_purpose": 0,
    }


def test_graphs_change_when_they_are_said_to() -> None:
    def rng(purpose: str, *ids: int) -> np.random.Generator:
        return np.random.default_rng(ids)

    graphs = Graphs(Topology(kind="random-regular", parameters={"d": 3}, every=2), 12)
    drawn = [graphs.in_round(number, rng) for number in range(4)]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]
    assert all(len(neighbours) == 3 for neighbours in drawn[0])
    assert mixing_weight(drawn[0], 0, drawn[0][0][0]) == 1 / 4
    torus = Topology(kind="torus", parameters={"m": 3, "n": 4}).graph(12, 0)
    assert networkx.is_isomorphic(torus, networkx.grid_2d_graph(3, 4, True))
