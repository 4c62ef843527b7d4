"""Small federations, modules of a user's own, and a plain torch loop to compare with."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Record, Simulation
from fedsim.common.streams import Streams
from fedsim.common.training import Batching, LocalEpochs
from fedsim.learning.data.federated import FederatedData, Pool, Shard
from fedsim.learning.engine import Learning
from fedsim.learning.models import ModelSpec, ModuleModel
from fedsim.learning.solvers.base import Descent, LocalSolve, draw_batches
from fedsim.learning.spec import TrainingSpec

T = TypeVar("T")

RULES = [
    Descent(0.1),
    Descent(0.1, l2=0.02),
    Descent(0.1, weight_decay=0.03),
    Descent(0.1, mu=0.7),
    Descent(0.05, momentum=0.9),
    Descent(0.05, momentum=0.5, weight_decay=0.01, l2=0.02, mu=0.3),
]

PULLS = ("", "anchor", "linear", "anchor and linear")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def federation(
    sizes: Sequence[int],
    tests: int = 7,
    shape: tuple[int, ...] = (6,),
    classes: int = 3,
    seed: int = 0,
) -> FederatedData:
    """Devices with so many training samples each; classes lie around centres of their own."""
    draw = np.random.default_rng(seed)
    total = sum(sizes) + tests * len(sizes)
    y = draw.integers(0, classes, total)
    centres = draw.normal(size=(classes, *shape))
    x = (centres[y] + 0.7 * draw.normal(size=(total, *shape))).astype(np.float32)
    shards, at = [], 0
    for size in sizes:
        index = np.arange(at, at + size + tests, dtype=np.int32)
        shards.append(Shard(index[:size], index[size:]))
        at += size + tests
    return FederatedData(Pool(x, y, classes), shards)


def learning(
    data: FederatedData, model: ModelSpec, executor: Any = None, seed: int = 1, **training: Any
) -> tuple[Learning, list[Record]]:
    """A learning core on a bare clock, and the records that it emits."""
    simulation = Simulation(executor=executor)
    records: list[Record] = []
    simulation.listen(records.append)
    return Learning(simulation, model, TrainingSpec(**training), data, Streams(seed)), records


class Counting(Inline):
    """An executor that remembers what it was asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        self.asked.append(function.__name__)
        return super().submit(function, *args)


def solve_of(
    weights: np.ndarray[Any, Any],
    samples: int,
    shape: tuple[int, ...],
    classes: int,
    *,
    seed: int,
    batch_size: int = 10,
    epochs: int = 2,
) -> LocalSolve:
    """A device's work with random samples; all of it follows from ``seed``."""
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.normal(size=(samples, *shape)).astype(np.float32))
    y = torch.from_numpy(draw.integers(0, classes, samples))
    return LocalSolve(
        weights,
        x,
        y,
        draw_batches(draw, samples, Batching(batch_size), LocalEpochs(epochs)),
        key=seed,
    )


def pulled(solve: LocalSolve, pull: str) -> LocalSolve:
    """The same work with an anchor of its own, a linear term, or both; ``pull`` is one of
    ``PULLS``.
    """
    draw = np.random.default_rng(solve.key + 1000)
    anchor, linear = (
        draw.normal(0, 0.3, len(solve.weights)).astype(solve.weights.dtype) for _ in range(2)
    )
    return replace(
        solve,
        anchor=anchor if "anchor" in pull else None,
        linear=linear if "linear" in pull else None,
    )


def plain_sgd(
    module: nn.Module, solve: LocalSolve, descent: Descent, kernels: Sequence[str] = ()
) -> tuple[np.ndarray[Any, Any], float]:
    """Local SGD as anyone would write it in torch; ``module`` holds the start and is trained in
    place.
    """
    named = dict(module.named_parameters())
    dtype = next(iter(named.values())).dtype
    start = torch.from_numpy(solve.weights)
    anchor = start if solve.anchor is None else torch.from_numpy(solve.anchor)
    linear = torch.zeros_like(start) if solve.linear is None else torch.from_numpy(solve.linear)
    decay = torch.cat(
        [
            torch.full_like(
                own, descent.weight_decay + 2 * descent.l2 * (name in kernels)
            ).flatten()
            for name, own in named.items()
        ]
    )
    velocity, total, seen = torch.zeros_like(start), 0.0, 0
    for step, (rows, count) in enumerate(
        zip(solve.batches.rows, solve.batches.counts, strict=True)
    ):
        batch = torch.from_numpy(rows[:count])
        loss = functional.cross_entropy(module(solve.x[batch].to(dtype)), solve.y[batch])
        gradient = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(named.values())))
        with torch.no_grad():
            flat = nn.utils.parameters_to_vector(named.values())
            velocity = (
                descent.momentum * velocity
                + gradient
                + decay * flat
                + descent.mu * (flat - anchor)
                + linear
            )
            nn.utils.vector_to_parameters(flat - descent.lr * velocity, named.values())
        if step >= solve.batches.last_epoch:
            total += float(loss.detach()) * int(count)
            seen += int(count)
    return nn.utils.parameters_to_vector(named.values()).detach().numpy(), total / seen


class Quadratic(nn.Module):
    """One weight w with loss (w - a)^2 / 2, where a is the sample itself; starts at 3."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.square().sum(dim=1) / 2


class Dropping(nn.Module):
    """A module with two dropout layers and an activation that no closed form knows."""

    def __init__(self, features: int, classes: int, rate: float = 0.5) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(features, 11), nn.Tanh(), nn.Dropout(rate))
        self.drop = nn.Dropout(rate)
        self.back = nn.Linear(11, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.drop(self.front(x)))  # type: ignore[no-any-return]


def not_a_module() -> int:
    return 3


def no_module_after_all() -> "nn.Module":
    return 3  # type: ignore[return-value]


def own(name: str, **args: Any) -> ModuleModel:
    """The spec of a module in this file."""
    return ModuleModel(factory=f"{__name__}:{name}", args=args)
