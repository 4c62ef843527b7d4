"""The cohort solver: plain torch is its oracle, and no bit depends on who shares a stack."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim.clock.executors import Inline, Threads
from fedsim.common.training import Contrast
from fedsim.learning.modules import trained_tensors
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, use_one_thread
from fedsim.learning.solvers.choice import choose_solver
from fedsim.learning.solvers.cohort import Cohort, CohortByTrainer, kind_of
from fedsim.learning.solvers.reference import Reference, flat_weights
from fedsim.learning.solvers.stack import SgdSteps, plan_lanes
from fedsim.running.runner import Job
from fedsim.toolbox.trainers.torch_trainer import TorchTrainer
from tests.learning.small import RULES, pulled, solve_of

CPU = torch.device("cpu")
RAGGED = (23, 4, 10, 61, 1, 37)
# All matrices begin and end at cache lines: with others, CPUs multiply by place (``try_stack``).
SHAPE = (1, 12, 12)
CLASSES = 5
MORE_RULES = [*RULES, Descent(0.1, clip=0.5), Descent(0.1, held=((0, 400),))]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    use_one_thread()


def dropping() -> nn.Module:
    """A small network with convolution and both kinds of dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(256, CLASSES),
    )


class Residual(nn.Module):
    """A residual block with group norm, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(2, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(2, outputs),
        )
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def residual() -> nn.Module:
    """Two residual blocks."""
    return nn.Sequential(
        Residual(1, 16, 1),
        Residual(16, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def separable() -> nn.Module:
    """Convolutions by depth, as in MobileNetV2."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 1),
        nn.GroupNorm(2, 16),
        nn.ReLU6(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.ReLU6(),
        nn.Flatten(),
        nn.Linear(2304, CLASSES),
    )


class Patches(nn.Module):
    """A vision transformer of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 16, 4, 4)
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, 0.0, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2)
        scores: Tensor = self.head(self.layer(patches).mean(1))
        return scores


class Rows(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.squeeze(1))
        scores: Tensor = self.head(states[:, -1])
        return scores


class Complaining(nn.Sequential):
    """A module whose forward looks at a number of its data."""

    def forward(self, x: Tensor) -> Tensor:
        if float(x.mean()) > 1e6:
            raise ValueError("these are no samples")
        scores: Tensor = super().forward(x)
        return scores


def complaining() -> nn.Module:
    return Complaining(nn.Flatten(), nn.Linear(144, CLASSES))


def normed() -> nn.Module:
    """A module with a norm by the batch."""
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))


def trainings(module: nn.Module, descent: Descent, pull: str) -> list[tuple[LocalSolve, Descent]]:
    """Trainings of devices with few and many samples, each from its own model."""
    weights = flat_weights(list(trained_tensors(module).values()))
    found = []
    for device, samples in enumerate(RAGGED):
        start = (weights + np.float32(0.01 * device)).astype(np.float32)
        solve = solve_of(start, samples, SHAPE, CLASSES, seed=device)
        solve = pulled(solve, pull)
        if pull == "anchor and linear":
            solve = replace(solve, contrast=Contrast(start * 0.9, 0.7, 0.5))
        found.append((solve, replace(descent, lr=descent.lr * (1 - 0.1 * device))))
    return found


def bits(results: list[Solved]) -> list[tuple[bytes, float]]:
    return [(solved.weights.tobytes(), solved.train_loss) for solved in results]


@pytest.mark.parametrize("rule", MORE_RULES, ids=str)
@pytest.mark.parametrize("pull", ["", "anchor", "anchor and linear"])
def test_a_stack_is_plain_torch_up_to_rounding(rule: Descent, pull: str) -> None:
    torch.manual_seed(0)
    module = dropping()
    plain = Reference(module, CPU)
    cohort = Cohort(module, CPU, lanes=4)
    work = trainings(module, rule, pull)
    assert cohort.try_stack(*work[0]) == ""
    for expected, found in zip(plain.solve_all(work), cohort.solve_all(work), strict=True):
        scale = np.abs(expected.weights).max()
        assert np.abs(expected.weights - found.weights).max() <= 1e-5 * scale
        assert found.train_loss == pytest.approx(expected.train_loss, rel=1e-5)
    double = [
        (replace(solve, weights=solve.weights.astype(np.float64)), descent)
        for solve, descent in work
    ]
    exact = Cohort(module, CPU, torch.float64, lanes=4)
    assert exact.try_stack(*double[0]) == ""
    plain = Reference(module, CPU, torch.float64)
    for expected, found in zip(plain.solve_all(double), exact.solve_all(double), strict=True):
        assert np.abs(expected.weights - found.weights).max() <= 1e-12 * np.abs(found.weights).max()
    for begin, end in rule.held:
        for (solve, _), found in zip(work, cohort.solve_all(work), strict=True):
            assert np.array_equal(found.weights[begin:end], solve.weights[begin:end])


@pytest.mark.parametrize("make", [dropping, residual, separable, Patches, Rows])
def test_architectures_that_people_train_are_stacked(make: Any) -> None:
    torch.manual_seed(0)
    module = make()
    plain = Reference(module, CPU)
    cohort = Cohort(module, CPU, lanes=5)
    work = trainings(module, Descent(0.05, momentum=0.9), "")
    assert cohort.try_stack(*work[0]) == ""
    assert cohort.at_once == 5
    found = cohort.solve_all(work)
    # oneDNN may compute a convolution of one model by another algorithm than that of a stack
    for expected, solved in zip(plain.solve_all(work), found, strict=True):
        change = np.abs(expected.weights - solved.weights).max()
        assert change <= 1e-2 * np.abs(expected.weights).max()
    assert bits(cohort.solve_all(work[::-1]))[::-1] == bits(found)
    double = [
        (replace(solve, weights=solve.weights.astype(np.float64)), descent)
        for solve, descent in work
    ]
    exact = Cohort(module, CPU, torch.float64, lanes=5)
    plain = Reference(module, CPU, torch.float64)
    for expected, solved in zip(plain.solve_all(double), exact.solve_all(double), strict=True):
        change = np.abs(expected.weights - solved.weights).max()
        assert change <= 1e-11 * np.abs(expected.weights).max()


def test_no_bit_depends_on_who_shares_a_stack() -> None:
    torch.manual_seed(0)
    module = dropping()
    cohort = Cohort(module, CPU, lanes=4)
    work = trainings(module, Descent(0.1, momentum=0.9, mu=0.1), "anchor")
    assert cohort.try_stack(*work[0]) == ""
    diverging = replace(work[3][0], weights=np.full_like(work[3][0].weights, 1e30))
    together = bits(cohort.solve_all(work))
    assert [bits([cohort.solve(*training)])[0] for training in work] == together
    beside = cohort.solve_all([(diverging, work[3][1]), *work])
    assert not np.isfinite(beside[0].weights).all()
    assert bits(beside[1:]) == together


def test_a_training_without_steps_stays_where_it_is() -> None:
    module = dropping()
    (work, *_) = trainings(module, Descent(0.1), "")
    solve = replace(work[0], batches=work[0].batches.between(0, 0))
    cohort = Cohort(module, CPU)
    assert cohort.try_stack(*work) == ""
    solved = cohort.solve(solve, work[1])
    assert np.array_equal(solved.weights, solve.weights)
    assert np.isnan(solved.train_loss)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (normed, "a BatchNorm1d, a norm by the batch"),
        (complaining, "torch cannot stack it"),
    ],
)
def test_what_cannot_be_stacked_is_trained_alone(make: Any, reason: str) -> None:
    module = make()
    cohort = Cohort(module, CPU)
    work = trainings(module, Descent(0.1), "")
    work = [training for training in work if len(training[0].y) not in (1, 61)]  # a single sample
    assert reason in cohort.try_stack(*work[0])
    assert cohort.at_once == 1
    assert bits(cohort.solve_all(work)) == bits(Reference(module, CPU).solve_all(work))


@pytest.mark.parametrize("rule", MORE_RULES, ids=str)
def test_on_the_meta_device_no_step_reads_a_number_or_leaves_the_device(rule: Descent) -> None:
    """Torch's device without numbers: ``.item()`` raises, as does a tensor elsewhere."""
    module = dropping()
    meta = torch.device("meta")
    cohort = Cohort(module, meta, lanes=3)
    work = trainings(module, rule, "linear")[:3]
    solves = [solve for solve, _ in work]
    kind = kind_of(*work[0])
    starts = torch.from_numpy(np.stack([solve.weights for solve in solves]))
    steps = SgdSteps(torch.ones(3).to(meta), rule.momentum)
    with cohort.stack(cohort.watch.fresh(), kind, solves) as stack:
        stack.load(starts.to(meta), starts.to(meta))
        x = torch.cat([solve.x for solve in solves]).to(meta)
        y = torch.cat([solve.y for solve in solves]).to(meta)
        losses = stack.descend(plan_lanes(solves, kind.width, meta), x, y, steps)
    assert losses.device == meta
    assert stack.weights().device == meta
    assert stack.weights().shape == starts.shape


STEEP = {"eps": 1e-3}  # a greater one makes sign and size of tiny gradients matter less
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "Adam", "args": STEEP},
    "adamw in groups": {
        "optimizer": "AdamW",
        "args": STEEP | {"weight_decay": 0.1},
        "groups": [{"match": ["*.bias"], "args": {"weight_decay": 0.0}}],
    },
    "nesterov": {"optimizer": "SGD", "args": {"momentum": 0.9, "nesterov": True}},
    "schedule by step": {
        "optimizer": "Adam",
        "args": STEEP,
        "schedule": {"name": "CosineAnnealingLR"},
    },
    "schedule by epoch": {
        "optimizer": "SGD",
        "schedule": {"name": "StepLR", "args": {"step_size": 1, "gamma": 0.5}, "every": "epoch"},
    },
    "clipped by norm": {"optimizer": "Adam", "args": STEEP, "clip_norm": 0.1},
    "clipped by value, smoothed": {
        "optimizer": "RMSprop",
        "args": STEEP,
        "clip_value": 0.01,
        "label_smoothing": 0.1,
    },
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_torch_step_in_a_stack_as_alone(name: str) -> None:
    torch.manual_seed(0)
    module = dropping()
    trainer = TorchTrainer(lr=0.01, **OPTIMIZERS[name])
    stacking = TorchTrainer(lr=0.01, solver="cohort", lanes=4, **OPTIMIZERS[name])
    plain = choose_solver(module, CPU, "fast", trainer)
    cohort = choose_solver(module, CPU, "fast", stacking)
    assert isinstance(cohort, CohortByTrainer)
    for pull in ("", "anchor and linear"):
        work = [
            (replace(solve, contrast=None), Descent(0.01, mu=0.3))
            for solve, _ in trainings(module, Descent(0.01), pull)
        ]
        assert cohort.try_stack(*work[0]) == ""
        found = cohort.solve_all(work)
        for expected, solved in zip(plain.solve_all(work), found, strict=True):
            scale = np.abs(expected.weights).max()
            assert np.abs(expected.weights - solved.weights).max() <= 1e-4 * scale
            assert solved.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
        assert bits([cohort.solve(*training) for training in work]) == bits(found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimizer": "Adafactor"}, "looks at whole tensors"),
        ({"accumulate": 2}, "accumulate"),
        ({"state": "kept", "args": {"momentum": 0.5}}, "differs from device to device"),
    ],
)
def test_trainers_that_cannot_be_stacked_train_alone(changes: dict[str, Any], reason: str) -> None:
    module = dropping()
    cohort = choose_solver(module, CPU, "fast", TorchTrainer(solver="cohort", **changes))
    work = trainings(module, Descent(0.01), "")
    assert isinstance(cohort, CohortByTrainer)
    assert reason in cohort.try_stack(*work[0])
    plain = choose_solver(module, CPU, "fast", TorchTrainer(**changes))
    assert bits(cohort.solve_all(work)) == bits(plain.solve_all(work))


def sections(**training: Any) -> dict[str, Any]:
    """A small scenario with dropout whose devices differ in their samples."""
    return {
        "seed": 5,
        "population": {"devices": 12, "speed": "40 samples/s"},
        "network": {"kind": "star", "device": {"up": "1 MB/s", "down": "1 MB/s"}},
        "data": {
            "source": "digits",
            "partition": {"kind": "dirichlet", "alpha": 0.5},
        },
        "model": {"kind": "module", "factory": f"{__name__}:flat_dropping"},
        "training": {"solver": "cohort", "lanes": 3, "batch_size": 8, **training},
        "strategy": {"kind": "fedprox", "mu": 0.1, "clients_per_round": 7, "local_epochs": 2},
        "stop": {"rounds": 3},
    }


def summary(found: dict[str, Any], workers: int = 1) -> dict[str, Any]:
    scenario = fedsim.Scenario(**found)
    executor = Inline() if workers == 1 else Threads(workers)
    job = Job(scenario, None, executor)
    assert job.run.learner.notes == []
    told: dict[str, Any] = asyncio.run(job.execute()).summary
    return told


def test_hashes_do_not_depend_on_workers_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = summary(sections())
    assert summary(sections(), workers=2)["models_sha256"] == expected["models_sha256"]
    monkeypatch.setattr("fedsim.learning.scratch.MEMORY_BYTES", 4.0 * 3 * 500)
    streamed = summary(sections())
    assert streamed["models_sha256"] == expected["models_sha256"]
    assert streamed["events_sha256"] == expected["events_sha256"]


def test_the_solver_changes_no_event_but_what_is_learned() -> None:
    by_cohort = summary(sections())
    by_reference = summary(sections(solver="reference"))
    assert by_cohort["bytes"] == by_reference["bytes"]
    assert by_cohort["accuracy"] == pytest.approx(by_reference["accuracy"], abs=0.02)


def test_a_user_reads_why_models_are_not_stacked() -> None:
    told = sections()
    told["model"] = {"kind": "module", "factory": f"{__name__}:flat_normed"}
    told["training"] = {"solver": "cohort", "last_batch": "drop"}
    (text,) = Job(fedsim.Scenario(**told), None, Inline()).run.learner.notes
    assert "one after the other" in text
    assert "BatchNorm1d" in text


def flat_normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))


def flat_dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.2), nn.Linear(16, 10))
