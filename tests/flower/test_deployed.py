"""Exported halves over Flower's messages, with nodes in threads of this process."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedsim
from fedsim.deployed.client import client_app
from fedsim.deployed.export import export
from fedsim.deployed.server import Deployment
from fedsim.running.runner import EndedRun
from fedsim.running.scenario import Scenario, load
from tests.flower.nodes import NODES, ThreadGrid

SCAFFOLD = {"kind": "scaffold", "clients_per_round": 3}
FEDAVG = {"kind": "fedavg", "clients_per_round": 3}


def both(
    folder: Path,
    strategy: dict[str, object],
    pace: float = 0.0,
    grid_type: type[ThreadGrid] = ThreadGrid,
    **sections: object,
) -> tuple[EndedRun, Deployment]:
    """A scenario simulated, and its exported app run in real time."""
    shared: dict[str, object] = {
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "population": {"devices": NODES, "speed": "500 samples/s"},
        "strategy": strategy,
        "stop": {"rounds": 3},
    }
    scenario = Scenario(**shared | sections)
    simulated = fedsim.run(scenario, folder / "simulated")
    export(scenario, folder / "app")
    path = folder / "app/fedsim_app/scenario.toml"
    deployment = Deployment(load(path), grid_type(client_app(path), pace), pace)
    deployment.execute(folder / "deployed", 0, 60.0)
    return simulated, deployment


def sizes(deployment: Deployment, kind: str) -> int:
    sent = [record.fields["bytes"] for record in deployment.records if record.kind == kind]
    return sum(sum(by_content.values()) for by_content in sent)


def model(folder: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    tensors = load_file(folder / "models/global.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


@pytest.mark.parametrize("strategy", [FEDAVG, SCAFFOLD], ids=["fedavg", "scaffold"])
def test_models_and_bytes_are_the_simulated_ones(
    strategy: dict[str, object], tmp_path: Path
) -> None:
    simulated, deployment = both(tmp_path, strategy)
    assert np.allclose(model(tmp_path / "simulated"), model(tmp_path / "deployed"), atol=1e-5)
    assert sizes(deployment, "sent") == simulated.summary["bytes"]["down"]
    assert sizes(deployment, "received") == simulated.summary["bytes"]["up"]


def test_a_node_short_of_memory_trains_the_layers_that_fit_at_any_pace(tmp_path: Path) -> None:
    small = {"like": "raspberry-pi-zero-2w", "memory_share": 1.0, "memory": "100 kB"}
    population = {
        "devices": NODES,
        "device": ["laptop", "small", "small", "laptop"],
        "kinds": {"small": small},
    }
    two_layers = {"model": {"kind": "mlp", "hidden": [200]}}
    strategy = FEDAVG | {"clients_per_round": NODES}
    whole = population | {"device": "laptop"}
    both(tmp_path / "whole", strategy, population=whole, **two_layers)
    fewer = population | {"short_of_memory": "fewer-layers"}
    both(tmp_path / "fewer", strategy, population=fewer, **two_layers)
    simulated = model(tmp_path / "fewer/simulated")
    assert np.allclose(simulated, model(tmp_path / "fewer/deployed"), atol=1e-5)
    assert not np.allclose(simulated, model(tmp_path / "whole/simulated"), atol=1e-5)


def test_a_codec_s_payloads_have_the_counted_bytes(tmp_path: Path) -> None:
    simulated, deployment = both(tmp_path, FEDAVG, messages={"up": "qsgd", "down": "int8"})
    assert sizes(deployment, "sent") == simulated.summary["bytes"]["down"]
    assert sizes(deployment, "received") == simulated.summary["bytes"]["up"]
    rounds = [record for record in deployment.records if record.kind == "round"]
    assert abs(rounds[-1].fields["accuracy"] - simulated.summary["accuracy"]["final"]) < 0.1
