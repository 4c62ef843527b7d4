"""Small worlds for the tests of strategies: scenarios, data that are made here, problems whose
answers are known.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.strategies.fedavg import FedAvg, FedAvgParams

Sections = dict[str, Any]

ROTATED: Sections = {"source": "digits", "partition": "rotations"}
"""Four true groups that hold the same labels: device d is of group d mod 4."""

PAIRED: Sections = {"source": "digits", "partition": {"kind": "label-groups", "groups": 5}}
"""Five true groups with two digits each: device d is of group d mod 5."""


def world(data: Sections, devices: int, strategy: Sections, rounds: int, **others: Any) -> Sections:
    """A scenario in which everybody is always there, and equally fast unless ``population`` says
    otherwise.
    """
    population = {"devices": devices, "speed": "1000 samples/s"} | others.pop("population", {})
    training = {"lr": 0.1, "batch_size": 10} | others.pop("training", {})
    sections = {
        "seed": 3,
        "data": data,
        "training": training,
        "population": population,
        "strategy": strategy,
    }
    return sections | {"stop": {"rounds": rounds}} | others


def swap(**at: Any) -> Sections:
    """Of a scenario in which all devices exchange their data in pairs at these rounds or times."""
    return {"drift": {"kind": "swap-all", "probability": 1.0, "at": at}}


def scheduled(**devices: str) -> Sections:
    """Devices ``d3``, ... that arrive or leave at these times."""
    return {
        "kind": "schedule",
        "times": [*devices.values()],
        "devices": [int(name[1:]) for name in devices],
    }


Shards = Sequence[tuple[NDArray[Any], Sequence[int]]]
"""Samples [n, ...] and labels of each device."""


def file_data(folder: Path, shards: Shards, tests: Shards | None = None) -> Sections:
    """The data section of devices that train on ``shards``.

    They are tested on others, so that a strategy which chooses or weighs by test data comes out
    elsewhere: on ``tests``, or device d on the negatives of its first 1 + 5 d (mod n) samples,
    under the same labels.
    """
    if tests is None:
        counts = [1 + 5 * device % len(labels) for device, (_, labels) in enumerate(shards)]
        tests = [
            (-np.asarray(x)[:count], y[:count])
            for (x, y), count in zip(shards, counts, strict=True)
        ]
    folder.mkdir(parents=True, exist_ok=True)
    arrays, index = {}, {}
    for part, given in (("train", shards), ("test", tests)):
        arrays[f"x_{part}"] = np.concatenate([np.asarray(x, dtype=np.float32) for x, _ in given])
        arrays[f"y_{part}"] = np.concatenate([np.asarray(y, dtype=np.int64) for _, y in given])
        index[part] = _consecutive([len(y) for _, y in given])
    np.savez(folder / "data.npz", **arrays)
    entries = zip(index["train"], index["test"], strict=True)
    who = {
        str(device): {"train": train, "test": test} for device, (train, test) in enumerate(entries)
    }
    (folder / "who.json").write_text(json.dumps(who))
    return {
        "source": {"kind": "npz", "path": "data.npz"},
        "root": str(folder),
        "partition": {"kind": "file", "path": "who.json"},
    }


def _consecutive(sizes: Sequence[int]) -> list[list[int]]:
    """0, 1, 2, ... cut into parts of these sizes."""
    return [
        list(range(end - size, end))
        for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True)
    ]


def opposite_groups(
    folder: Path, sizes: Sequence[int], second: float = 1.0, seed: int = 1
) -> Sections:
    """Devices that label the same kind of vectors by their first feature's sign, odd devices the
    wrong way round.

    ``second`` scales the odd devices' samples: other data, of the same nature.
    """
    draw = np.random.default_rng(seed)
    shards = []
    for device, size in enumerate(sizes):
        x = draw.normal(size=(size, 4))
        y = (x[:, 0] > 0).astype(np.int64)
        shards.append((x * second, 1 - y) if device % 2 else (x, y))
    return file_data(folder, shards)


STARTED = "tests.strategies.worlds:Started"


class StartedParams(FedAvgParams):
    kind: str = STARTED  # type: ignore[assignment]
    start: list[float]


class Started(FedAvg):
    """FedAvg from a model that is given."""

    Params = StartedParams

    async def on_start(self) -> None:
        await super().on_start()
        self.state["model"].settle(np.array(self.params.start, dtype=np.float32))  # type: ignore[attr-defined]


# Random data, in batches that hold them all.

FEATURES, CLASSES = 6, 3
_RNG = np.random.default_rng(7)


def write_data(folder: Path, sizes: Sequence[int]) -> Sections:
    """``sizes`` samples on each device."""
    x, y = _RNG.normal(size=(sum(sizes), FEATURES)), _RNG.integers(0, CLASSES, sum(sizes))
    y[:CLASSES] = range(CLASSES)
    cuts = np.cumsum(sizes)[:-1]
    return file_data(folder, list(zip(np.split(x, cuts), np.split(y, cuts), strict=True)))


def full_batches(
    data: Sections, devices: int, rounds: int, strategy: Sections, **training: Any
) -> Sections:
    """A scenario in which a local epoch is one step and takes no time, and a round asks all
    unless it is told otherwise.
    """
    return {
        "seed": 5,
        "data": data,
        "model": {"kind": "logistic"},
        "training": {"lr": 0.5, "batch_size": 1000} | training,
        "population": {"devices": devices},
        "strategy": {"clients_per_round": devices} | strategy,
        "stop": {"rounds": rounds},
    }


# A convex problem whose answer is known: each sample pulls the one weight w towards a, with a
# strength h of its own.

PULLS = np.array([(1.0, 0.2), (-2.0, 1.0), (3.0, 0.5), (0.5, 2.0)])
"""a and h of each device."""
CENTER, STRENGTH = PULLS.T
OPTIMUM = float((CENTER * STRENGTH).sum() / STRENGTH.sum())


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
    """The loss of a sample c is |w - c|^2 / 2; w begins at ``start``, or is one weight that is
    drawn.
    """

    def __init__(self, start: Sequence[float] | None = None) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(1) if start is None else torch.tensor(start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w - x[:, : len(self.w)]

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return outputs.square().sum(dim=1) / 2


def module(factory: type[torch.nn.Module], **args: Any) -> Sections:
    """The model section of a module of the tests."""
    return {"kind": "module", "factory": f"{factory.__module__}:{factory.__name__}", "args": args}


def curved(
    folder: Path,
    strategy: Sections,
    rounds: int,
    epochs: int = 5,
    steps: Sequence[int] = (1, 1, 1, 1),
    **others: Any,
) -> Sections:
    """Each device has its own pull, in ten equal samples for each of its ``steps`` of an epoch."""
    shards = [
        (np.repeat(pull[None], 10 * own, axis=0), [0, 1] * 5 * own)
        for pull, own in zip(PULLS, steps, strict=True)
    ]
    return {
        "seed": 1,
        "data": file_data(folder, shards) | {"normalize": "none"},
        "model": module(Curved),
        "training": {"lr": 0.1, "batch_size": 10},
        "population": {"devices": len(PULLS), "speed": "100 samples/s"},
        "strategy": {"clients_per_round": len(PULLS), "local_epochs": epochs} | strategy,
        "stop": {"rounds": rounds},
        "evaluation": {"every": rounds},
    } | others
