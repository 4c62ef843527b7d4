"""FedAvg, FedProx and Local against known answers, through whole simulated runs."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedsim
from fedsim.plugin import Synchronous
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.simulation import Simulation
from tests.strategies.clustered import file_data, of_kind, played, ran, weights
from tests.strategies.curved import PULLS, curved, model_after

FEATURES, CLASSES = 6, 3
_RNG = np.random.default_rng(7)


def write_data(folder: Path, sizes: list[int], identical: bool = False) -> dict[str, Any]:
    """Random data: ``sizes`` samples a device, or the same ones on each."""
    total = sizes[0] if identical else sum(sizes)
    x = _RNG.normal(size=(total, FEATURES))
    y = _RNG.integers(0, CLASSES, total)
    y[:CLASSES] = range(CLASSES)
    if identical:
        return file_data(folder, [(x, y.tolist())] * len(sizes))
    cuts = np.cumsum(sizes)[:-1]
    return file_data(folder, [(x, y.tolist()) for x, y in zip(np.split(x, cuts), np.split(y, cuts), strict=True)])


def sections(data: dict[str, Any], devices: int, rounds: int, strategy: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {
        "seed": 5,
        "data": data,
        "model": {"kind": "logistic"},
        "training": {"lr": 0.5, "batch_size": 1000} | training,
        "population": {"devices": devices},
        "strategy": {"clients_per_round": devices} | strategy,
        "stop": {"rounds": rounds},
    }


def initial_weights(scenario: dict[str, Any]) -> NDArray[np.float32]:
    built: Run = Simulation(fedsim.Scenario(**scenario)).installed
    return asyncio.run(built.learner.value(built.learner.initial()))


def gradient_step(flat: NDArray[np.float32], scenario: dict[str, Any]) -> NDArray[np.float64]:
    """One step w - lr sum_i (n_i / N) grad_i by autograd in float64: the same as the full-batch gradient over all data."""
    built: Run = Simulation(fedsim.Scenario(**scenario)).installed
    found = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in built.learner.tensors(flat).values()]
    (kernel,), (bias,) = ([tensor for tensor in found if tensor.ndim == axes] for axes in (2, 1))
    with np.load(Path(scenario["data"]["root"]) / "data.npz") as file:
        x, y = torch.tensor(file["x_train"], dtype=torch.float64), torch.tensor(file["y_train"])
    kernel_in_out = kernel if kernel.shape == (FEATURES, CLASSES) else kernel.T
    torch.nn.functional.cross_entropy(x @ kernel_in_out + bias, y).backward()  # type: ignore[no-untyped-call]
    lr = scenario["training"]["lr"]
    return np.concatenate([(tensor - lr * tensor.grad).detach().numpy().ravel() for tensor in found])


def test_the_round_loop_has_few_members_that_an_author_may_override() -> None:
    assert len([name for name in vars(Synchronous) if not name.startswith("_")]) <= 15


def test_one_full_batch_epoch_is_one_gradient_step(tmp_path: Path) -> None:
    scenario = sections(write_data(tmp_path, [5, 17, 40]), 3, 1, {"kind": "fedavg"})
    expected = gradient_step(initial_weights(scenario), scenario)
    assert model_after(scenario) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mu", [0.5, 3.0])
def test_the_proximal_optimum(mu: float, tmp_path: Path) -> None:
    """Many local steps on h (w - a)^2 / 2 with anchor w0 end in (h a + mu w0) / (h + mu)."""
    center, strength = PULLS.T
    found = model_after(curved(tmp_path, {"kind": "fedprox", "mu": mu}, 1, 300))[0]
    assert found == pytest.approx(((strength * center + mu * 5.0) / (strength + mu)).mean(), abs=1e-5)


def test_fedprox_without_its_term_is_fedavg_and_local_what_one_client_of_it_does(tmp_path: Path) -> None:
    """Bit for bit."""
    data, shape = write_data(tmp_path, [5, 17, 40, 8]), {"clients_per_round": 3, "local_epochs": 4}
    fedavg, fedprox = ({"kind": "fedavg"}, {"kind": "fedprox", "mu": 0.0})
    one, other = (model_after(sections(data, 4, 6, kind | shape, batch_size=4)) for kind in (fedavg, fedprox))
    assert (one == other).all()
    data = write_data(tmp_path / "alone", [25])
    local, _ = played(sections(data, 1, 4, {"kind": "local", "local_epochs": 2}, batch_size=4))
    alone = model_after(sections(data, 1, 4, {"kind": "fedavg", "local_epochs": 2}, batch_size=4))
    assert (weights(local, local.strategy.state["own"])[0] == alone).all()


def test_when_all_are_dropped_the_model_stays(small: dict[str, Any], tmp_path: Path) -> None:
    small["population"]["speed"] = "1 samples/h"
    small["strategy"] |= {"deadline": "2 s", "local_epochs": 1}
    assert (model_after(small) == initial_weights(small)).all()
    result = ran(small, tmp_path / "run")
    assert all(row["valid"] == 0 and row["selected"] > 0 for row in result.rounds)
    assert result.summary["bytes"]["wasted"] == pytest.approx(result.summary["bytes"]["down"])


def deadline_run(tmp_path: Path, strategy: dict[str, Any], sizes: list[int]) -> tuple[RunFolder, list[str]]:
    """One round without network time, in which device d needs sizes[d] / 10 seconds an epoch; how each device's task ended."""
    scenario = sections(write_data(tmp_path, sizes), len(sizes), 1, strategy)
    scenario["population"]["speed"] = "10 samples/s"
    run = ran(scenario, tmp_path / "run")
    ends = sorted(of_kind(run, "task-end"), key=lambda event: event["device"])  # type: ignore[no-any-return]
    return run, [event["outcome"] for event in ends]


def test_fedprox_sends_what_it_has_done_and_drops_only_those_without_an_epoch(tmp_path: Path) -> None:
    strategy = {"kind": "fedprox", "local_epochs": 5, "deadline": "7 s"}
    run, ends = deadline_run(tmp_path, strategy, [10, 20, 30, 70, 80])
    trainings = [event for event in of_kind(run, "step-end") if event["step"] == "train"]
    assert {event["device"]: event["data"]["epochs"] for event in trainings} == {0: 5, 1: 3, 2: 2, 3: 1, 4: 0}
    assert ends == ["done"] * 4 + ["late"]


def test_over_selection_closes_when_enough_have_come(tmp_path: Path) -> None:
    strategy = {"kind": "fedavg", "clients_per_round": 4, "over_selection": 1.3}
    run, ends = deadline_run(tmp_path, strategy, [10, 20, 30, 40, 50, 60])
    (row,) = run.rounds
    assert (row["selected"], row["valid"], row["slow"], row["time"]) == (6, 4, 2, 4.0)
    assert ends == ["done"] * 4 + ["late"] * 2


def test_local_sends_nothing_and_scores_each_device_by_its_own_model(small: dict[str, Any], tmp_path: Path) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    small["strategy"] = {"kind": "local", "local_epochs": 2}
    run = ran(small, tmp_path / "run")
    assert run.summary["bytes"] == {"down": 0.0, "up": 0.0, "wasted": 0.0, "by_purpose": {}, "paper": 0}
    accuracies = [row["accuracy"] for row in run.devices if row["accuracy"] is not None]
    assert run.summary["accuracy"]["final"] == pytest.approx(np.mean(accuracies))
    models = run.models()["device"]
    assert len({values.tobytes() for name, values in models.items() if name.endswith("weight")}) == 20
