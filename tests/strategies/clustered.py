"""What the tests of strategies share: small worlds, and runs that are looked into."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsim
from fedsim.audit import audit
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.simulation import Record, Simulation
from fedsim.strategies.fedavg import FedAvg, FedAvgParams

Sections = dict[str, Any]
Weights = NDArray[np.float32]

ROTATED: Sections = {"source": "digits", "partition": "rotations"}
"""Four true groups that hold the same labels: device d is of group d mod 4."""

PAIRED: Sections = {"source": "digits", "partition": {"kind": "label-groups", "groups": 5}}
"""Five true groups with two digits each: device d is of group d mod 5."""


def world(data: Sections, devices: int, strategy: Sections, rounds: int, **others: Any) -> Sections:
    """A scenario in which everybody is always there, and equally fast unless ``population`` says otherwise."""
    population = {"devices": devices, "speed": "1000 samples/s"} | others.pop("population", {})
    training = {"lr": 0.1, "batch_size": 10} | others.pop("training", {})
    sections = {"seed": 3, "data": data, "training": training, "population": population, "strategy": strategy}
    return sections | {"stop": {"rounds": rounds}} | others


def ran(sections: Sections, folder: Path) -> RunFolder:
    """The folder of a run, which passes its audit."""
    fedsim.run(fedsim.Scenario(**sections), folder, executor="inline")
    found = audit(folder)
    assert not any(found.values()), found
    return RunFolder(folder)


def played(sections: Sections) -> tuple[Run, list[Record]]:
    """A run that is over, to look into, and its records."""

    async def play() -> tuple[Run, list[Record]]:
        simulation = Simulation(fedsim.Scenario(**sections))
        records = [record async for record in simulation]
        return simulation.installed, records

    return asyncio.run(play())


def weights(run: Run, models: Sequence[Any] | None = None) -> list[Weights]:
    """The values of models, by default those of the strategy's groups."""
    return asyncio.run(run.learner.values(run.strategy.state["models"] if models is None else models))


def of_kind(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events if event["kind"] == kind]


def groups_of(run: RunFolder) -> list[int | None]:
    """The group of each device at the end."""
    return [row["group"] for row in run.devices]


def moves(run: RunFolder, why: str) -> list[dict[str, Any]]:
    return [event for event in of_kind(run, "assign") if event["data"]["why"] == why]


Shards = Sequence[tuple[NDArray[Any], Sequence[int]]]
"""Samples [n, ...] and labels of each device."""


def file_data(folder: Path, shards: Shards, tests: Shards | None = None) -> Sections:
    """The data section of devices that train on ``shards``.

    They are tested on others, so that a strategy which chooses or weighs by test data comes out elsewhere: on ``tests``, or
    device d on the negatives of its first 1 + 5 d (mod n) samples, under the same labels.
    """
    if tests is None:
        counts = [1 + 5 * device % len(labels) for device, (_, labels) in enumerate(shards)]
        tests = [(-np.asarray(x)[:count], y[:count]) for (x, y), count in zip(shards, counts, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    arrays, index = {}, {}
    for part, given in (("train", shards), ("test", tests)):
        arrays[f"x_{part}"] = np.concatenate([np.asarray(x, dtype=np.float32) for x, _ in given])
        arrays[f"y_{part}"] = np.concatenate([np.asarray(y, dtype=np.int64) for _, y in given])
        index[part] = _consecutive([len(y) for _, y in given])
    np.savez(folder / "data.npz", **arrays)
    entries = zip(index["train"], index["test"], strict=True)
    who = {str(device): {"train": train, "test": test} for device, (train, test) in enumerate(entries)}
    (folder / "who.json").write_text(json.dumps(who))
    return {
        "source": {"kind": "npz", "path": "data.npz"},
        "root": str(folder),
        "partition": {"kind": "file", "path": "who.json"},
    }


def _consecutive(sizes: Sequence[int]) -> list[list[int]]:
    """0, 1, 2, ... cut into parts of these sizes."""
    return [list(range(end - size, end)) for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True)]


def opposite_groups(folder: Path, sizes: Sequence[int], second: float = 1.0, seed: int = 1) -> Sections:
    """Devices that label the same kind of vectors by their first feature's sign, odd devices the wrong way round.

    ``second`` scales the odd devices' samples: other data, of the same nature.
    """
    draw = np.random.default_rng(seed)
    shards = []
    for device, size in enumerate(sizes):
        x = draw.normal(size=(size, 4))
        y = (x[:, 0] > 0).astype(np.int64)
        shards.append((x * second, 1 - y) if device % 2 else (x, y))
    return file_data(folder, shards)


STARTED = "tests.strategies.clustered:Started"


class StartedParams(FedAvgParams):
    kind: str = STARTED  # type: ignore[assignment]
    start: list[float]


class Started(FedAvg):
    """FedAvg from a model that is given."""

    Params = StartedParams

    async def on_start(self) -> None:
        await super().on_start()
        self.state["model"].settle(np.array(self.params.start, dtype=np.float32))  # type: ignore[attr-defined]
