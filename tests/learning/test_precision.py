"""Training in mixed precision: how far bfloat16 may be from float32, known beforehand."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from fedsim.clock.executors import Inline, Threads
from fedsim.common.errors import ScenarioError
from fedsim.learning.modules import trained_tensors
from fedsim.learning.solvers.base import Descent, LocalSolve, use_one_thread
from fedsim.learning.solvers.choice import choose_solver
from fedsim.learning.solvers.reference import Reference, flat_weights
from fedsim.learning.spec import Trainer, TrainingSpec
from fedsim.running.runner import Job
from fedsim.toolbox.trainers.torch_trainer import TorchTrainer
from tests.learning.small import solve_of

CPU = torch.device("cpu")
SHAPE = (1, 12, 12)
CLASSES = 5
U = 2.0**-9
"""Greatest relative error of rounding to bfloat16, which has 8 binary digits."""
# On the way to a gradient of two layers there are twelve roundings at most: of samples, weights and
# sums of both layers, and of all three on the way back. Outputs are below 1, so none is amplified.
MOST = 12 * U


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    use_one_thread()


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def convolution() -> nn.Module:
    """A network without a maximum, which may choose another value after rounding."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, CLASSES)
    )


def _step(module: nn.Module) -> LocalSolve:
    """One step on all samples of a device."""
    weights = flat_weights(list(trained_tensors(module).values()))
    return solve_of(weights, 20, SHAPE, CLASSES, seed=3, batch_size=20, epochs=1)


TRAINERS: dict[str, Callable[[str], Trainer]] = {
    "reference": lambda precision: TrainingSpec(solver="reference", precision=precision),
    "cohort": lambda precision: TrainingSpec(solver="cohort", lanes=3, precision=precision),
    "torch": lambda precision: TorchTrainer(precision=precision),
    "torch in a stack": lambda precision: TorchTrainer(
        solver="cohort", lanes=3, precision=precision
    ),
}


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("make", [dense, convolution])
def test_a_step_differs_from_float32_by_rounding_to_bfloat16(
    make: Callable[[], nn.Module], name: str
) -> None:
    torch.manual_seed(0)
    module = make()
    solve = _step(module)
    changes = []
    for precision in ("float32", "bf16"):
        trainer = TRAINERS[name](precision)
        solver = choose_solver(module, CPU, trainer.sgd.solver, trainer, lanes=3)
        assert isinstance(solver, Reference)
        if hasattr(solver, "try_stack"):
            assert solver.try_stack(solve, Descent(0.1)) == ""
        solved = solver.solve(solve, Descent(0.1))
        assert solved.weights.dtype == np.float32
        changes.append(solved.weights - solve.weights)
    exact, rounded = changes
    difference = float(np.linalg.norm(exact - rounded) / np.linalg.norm(exact))
    assert 1e-5 < difference <= MOST  # float32 alone would differ by less


def test_a_product_is_computed_in_bfloat16_and_weights_are_not() -> None:
    """By hand: one sample x, one weight w, cross-entropy of two classes with outputs w x and 0."""
    module = nn.Linear(1, 2, bias=False)
    weights = np.array([1 + 2.0**-12, 0.0], dtype=np.float32)  # in bfloat16, 1
    x = torch.full((1, 1), 1 + 2.0**-12)
    batches = solve_of(weights, 1, (1,), 2, seed=0, batch_size=1, epochs=1).batches
    solve = LocalSolve(weights, x, torch.tensor([1]), batches)
    solver = choose_solver(module, CPU, "reference", TRAINERS["reference"]("bf16"))
    solved = solver.solve(solve, Descent(2.0**-3))
    output = 1.0  # 1 x 1 after rounding
    slope = np.exp(output) / (np.exp(output) + 1)
    assert solved.train_loss == pytest.approx(np.log1p(np.exp(output)), rel=1e-6)
    moved = (weights[0] - solved.weights[0]) * 2**3
    assert moved == pytest.approx(slope, rel=3 * U)
    rounded = float(torch.tensor(moved).bfloat16())
    assert moved == pytest.approx(rounded, abs=2.0**-19)  # a gradient in bfloat16
    assert solved.weights[1] != 0


SECTIONS: dict[str, Any] = {
    "seed": 3,
    "data": {"source": "digits"},
    "model": {"kind": "mlp", "hidden": [32]},
    "training": {"lr": 0.1, "solver": "cohort", "lanes": 4, "precision": "bf16"},
    "population": {"devices": 6, "speed": "100 samples/s"},
    "strategy": {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 1},
    "stop": {"rounds": 2},
}


def _models(**training: Any) -> str:
    sections = SECTIONS | {"training": SECTIONS["training"] | training}
    executor = Threads(2) if training.get("memory") else Inline()
    job = Job(fedsim.Scenario(**sections), None, executor)
    digest: str = asyncio.run(job.execute()).summary["models_sha256"]
    return digest


def test_no_bit_depends_on_workers_or_memory() -> None:
    assert _models() == _models(memory="40 kB")
    assert _models() != _models(precision="float32")


def test_it_is_refused_where_it_does_not_apply() -> None:
    with pytest.raises(ScenarioError, match=r"precision is 'bf16', but models of dense layers"):
        _models(solver="fast")
    with pytest.raises(ScenarioError, match=r"'0\.weight' of the model is float64"):
        choose_solver(
            nn.Sequential(nn.Linear(3, 2)).double(), CPU, "reference", TRAINERS["torch"]("bf16")
        )
    sections = SECTIONS | {"training": {"precision": "fp16"}}
    with pytest.raises(ScenarioError, match=r"training\.precision is 'fp16'; allowed are"):
        fedsim.Scenario(**sections)
