"""A convex problem whose answer is known: each sample pulls the one weight w towards a, with a strength h of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.strategies.clustered import Sections, Weights, file_data, played, weights

PULLS = np.array([(1.0, 0.2), (-2.0, 1.0), (3.0, 0.5), (0.5, 2.0)])  # a and h of each device
OPTIMUM = float((PULLS[:, 0] * PULLS[:, 1]).sum() / PULLS[:, 1].sum())


class Curved(torch.nn.Module):
    """The loss of a sample (a, h) is h (w - a)^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([5.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:] * (self.w - x[:, :1]) ** 2 / 2

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return outputs[:, 0]


class Centre(torch.nn.Module):
    """The loss of a sample c is |w - c|^2 / 2; w begins at ``start``, or is one weight that is drawn."""

    def __init__(self, start: Sequence[float] | None = None) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(1) if start is None else torch.tensor(start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w - x[:, : len(self.w)]

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return outputs.square().sum(dim=1) / 2


def curved(
    folder: Path, strategy: Sections, rounds: int, epochs: int = 5, steps: Sequence[int] = (1, 1, 1, 1), **others: Any
) -> Sections:
    """Each device has its own pull, in ten equal samples for each of its ``steps`` of an epoch."""
    shards = [(np.repeat(pull[None], 10 * own, axis=0), [0, 1] * 5 * own) for pull, own in zip(PULLS, steps, strict=True)]
    return {
        "seed": 1,
        "data": file_data(folder, shards) | {"normalise": "none"},
        "model": {"kind": "module", "factory": "tests.strategies.curved:Curved"},
        "training": {"lr": 0.1, "batch_size": 10},
        "population": {"devices": len(PULLS), "speed": "100 samples/s"},
        "strategy": {"clients_per_round": len(PULLS), "local_epochs": epochs} | strategy,
        "stop": {"rounds": rounds},
        "evaluation": {"every": rounds},
    } | others


def model_after(sections: Sections) -> Weights:
    """The global model at the end of a run."""
    run, _ = played(sections)
    (value,) = weights(run, [run.strategy.state["model"]])
    return value


def all_after(sections: Sections) -> tuple[Weights, Weights]:
    """The global model at the end of a run, [d], and those of the devices that have one of their own, [devices, d]."""
    run, _ = played(sections)
    own = run.strategy.state["own"]
    found = np.array(weights(run, [run.strategy.state["model"], *(own[device] for device in sorted(own))]))
    return found[0], found[1:]
