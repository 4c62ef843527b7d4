"""All-reduce strategies: against FedAvg through a server, plain arithmetic, and closed forms."""

import asyncio
from typing import Any, ClassVar

import numpy as np
import pytest

import fedsim
from fedsim.errors import ScenarioError, SimulationError
from fedsim.executors.inline import Inline
from fedsim.running.runner import Job
from fedsim.testing import StrategyContract, quiet_world
from tests.strategies.peers.test_peers import models, peers

LINKS = {"kind": "star", "device": {"up": "100 kB/s", "latency": "10 ms"}}


def done(strategy: dict[str, Any], rounds: int = 3, devices: int = 4, **sections: Any) -> tuple[Job, dict[str, Any]]:
    job = Job(fedsim.Scenario(**peers(strategy, devices, rounds, **sections)), None, Inline())
    return job, asyncio.run(job.execute()).summary


class TestContract(StrategyContract):
    strategy: ClassVar[dict[str, Any]] = {"kind": "diloco", "local_steps": 3, "fragments": 2, "overlap": True}
    sections: ClassVar[dict[str, Any]] = {
        "population": {"devices": 6, "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0}, "jitter": 0.2},
        "messages": {"up": "float16"},
    }
    # All-reduces are refused where devices come and go.
    test_newcomers_and_leavers = test_devices_vanish_at_any_instant = None  # type: ignore[assignment]
    test_an_hour_with_nobody = test_everybody_leaves = None  # type: ignore[assignment]


def through_a_server(server: dict[str, Any] | None, rounds: int = 3, **strategy: Any) -> np.ndarray[Any, Any]:
    """The model of FedAvg over all devices, each weighing the same."""
    sections = quiet_world(
        {"kind": "fedavg", "clients_per_round": 4, "aggregation": "mean", "server": server, **strategy}, rounds=rounds
    )
    sections["population"] |= {"devices": 4}
    job = Job(fedsim.Scenario(**sections), None, Inline())
    asyncio.run(job.execute())
    served = job.run.strategy.models()["global"][0]
    return np.array(asyncio.run(job.run.learner.values([served]))[0])


@pytest.mark.parametrize("kind", ["ring", "tree", "butterfly"])
def test_every_all_reduce_ends_at_the_model_of_a_server(kind: str) -> None:
    found = models(done({"kind": "local-sgd", "collective": kind})[0])
    assert (found == found[0]).all()
    np.testing.assert_allclose(found[0], through_a_server(None), atol=1e-6)


def test_diloco_is_fedavg_with_nesterov_momentum_at_the_server() -> None:
    server = {"kind": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
    np.testing.assert_allclose(models(done({"kind": "diloco"})[0])[0], through_a_server(server), atol=2e-6)


def test_a_step_between_averages_is_synchronous_sgd() -> None:
    """H = 1, outer lr 1, no momentum: plain gradient descent on the mean of all devices' batches."""
    strategy = {"kind": "diloco", "local_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
    job, _ = done(strategy, training={"batch_size": 10_000, "lr": 0.1})
    learner = job.run.learner
    plain = np.array(asyncio.run(learner.values([learner.initial()]))[0], dtype=np.float64)
    for number in range(3):
        start = learner.given(plain.astype(np.float32))
        gradients = [fedsim.training.Training(start, steps=1, full_batch=True)] * 4
        trained = [learner.train(step, device, key=number, round=number) for device, step in enumerate(gradients)]
        plain = np.mean(asyncio.run(learner.values(trained)), axis=0, dtype=np.float64)
    np.testing.assert_allclose(models(job)[0], plain, atol=1e-6)


@pytest.mark.parametrize(("kind", "hops", "shares"), [("ring", 6, 6 / 4), ("butterfly", 2, 6 / 4), ("tree", 4, 1 + 1 + 2 + 1)])
def test_times_in_closed_form(kind: str, hops: int, shares: float) -> None:
    """On links up of one rate: hops of twice a device's latency, and the shares of the model that follow on one another."""
    population = {"devices": 4, "speed": "inf samples/s"}
    job, summary = done({"kind": "local-sgd", "collective": kind}, 5, network=LINKS, population=population)
    assert summary["simulated_s"] == pytest.approx(5 * (hops * 0.02 + shares * job.run.learner.bytes / 1e5), abs=1e-6)
    assert summary["bytes"]["peer"] == pytest.approx(5 * 6 * job.run.learner.bytes)


def test_fragments_stream_while_devices_train() -> None:
    """A third of the bytes a synchronisation; an all-reduce that is shorter than training takes no time but the last."""
    blocking, overlapped = ({"kind": "diloco", "fragments": 3, "overlap": overlap} for overlap in (False, True))
    world = {"network": LINKS, "population": {"devices": 4, "speed": "60 samples/s"}}
    (job, first), (_, second) = done(blocking, 6, **world), done(overlapped, 6, **world)
    one = 6 * 0.02 + 6 / 4 * job.run.learner.bytes / 3 / 1e5
    assert first["bytes"]["peer"] == second["bytes"]["peer"] == pytest.approx(6 * 6 * job.run.learner.bytes / 3, rel=1e-3)
    assert first["simulated_s"] - second["simulated_s"] == pytest.approx(5 * one, rel=1e-3)


def test_a_fragment_alone_changes_and_is_mixed_in_late() -> None:
    job, _ = done({"kind": "diloco", "fragments": 2}, 1)
    found, learner = models(job), job.run.learner
    half, first = found.shape[1] // 2, np.array(asyncio.run(learner.values([learner.initial()]))[0])
    assert (found[:, :half] == found[0, :half]).all()
    assert (found[:, half:] != found[0, half:]).any()
    assert (found[0, :half] != first[:half]).any()


def test_low_bits_shrink_messages_and_reach_all_alike() -> None:
    (_, plain), (job, coded) = (
        done({"kind": "diloco", "fragments": 2}, 4, messages={"up": codec})
        for codec in ("plain", {"kind": "int8", "bucket": None})
    )
    assert coded["bytes"]["peer"] == pytest.approx(plain["bytes"]["peer"] / 4, rel=0.02)
    found = models(job)
    assert np.abs(found - found.mean(axis=0)).max() < 0.5


def test_refused() -> None:
    away = {"devices": 4, "availability": {"kind": "renewal", "mean_on": "1 h", "mean_off": "1 min"}}
    with pytest.raises(ScenarioError, match="wait for every device"):
        done({"kind": "diloco"}, population=away)
    with pytest.raises(ScenarioError, match="averages over 2 or more"):
        done({"kind": "local-sgd"}, devices=1)
    with pytest.raises(ScenarioError, match=r"'mixing' is 0\.2, which counts only where 'overlap'"):
        done({"kind": "diloco", "mixing": 0.2})
    with pytest.raises(ScenarioError, match=r"local_steps and strategy\.local_epochs"):
        done({"kind": "diloco", "local_steps": 3, "local_epochs": 2})
    outage = {"processes": [f"{__name__}:switch_off"]}
    with pytest.raises(SimulationError, match="let no process of the world switch one off"):
        done({"kind": "diloco"}, world=outage)


def switch_off(world: Any) -> Any:
    """Device 1 is off for a while."""
    yield world.timeout(0.05)
    with world.off(1):
        yield world.timeout(1.0)
