"""How fast devices train: prints JSON. Run with ``python -m tests.benchmarks.learning [WHAT...]``.

WHAT is a model (logistic, mlp, cnn5) or ``strategies``; by default all.

One round is 20 clients x 60 samples, 10 epochs, batches of 10: 1,200 SGD steps. The reference is
what anyone would write, a module a client with ``torch.optim.SGD``, in the same process; its time
over ours is the ratio. An evaluation is one model on 7,000 test samples.

``strategies`` puts rounds of others beside FedAvg's, in the same world: processor time in turns,
and the median of the ratios.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import fedsim
from fedsim.clock.executors import Executor, Inline, Threads
from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import FederatedData, Pool, Shard
from fedsim.learning.engine import Learning
from fedsim.learning.models import CNN5, Logistic, ModelSpec, Perceptron
from fedsim.learning.solvers.reference import load_weights, module_of
from fedsim.learning.spec import TrainingSpec
from fedsim.running.runner import Job
from tests.benchmarks.script import round_s

CLIENTS, SAMPLES, TESTS, EPOCHS, BATCH, LR = 20, 60, 350, 10, 10, 0.03
MODELS: dict[str, tuple[ModelSpec, int]] = {
    "logistic": (Logistic(), 15),
    "mlp": (Perceptron(), 9),
    "cnn5": (CNN5(), 2),
}

STRATEGIES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"strategy": {"kind": "scaffold"}},
    "top-k 1 %": {"messages": {"up": {"kind": "top-k", "share": 0.01}}},
    "fedadam": {"strategy": {"kind": "fedavg", "server": {"kind": "adam", "lr": 0.01}}},
}
TURNS, FEW, MANY = 15, 2, 8  # rounds of the two runs whose difference is measured


def digits() -> FederatedData:
    """Noise around ten prototypes, in the shape of MNIST and stored as bytes."""
    draw, total = np.random.default_rng(0), CLIENTS * (SAMPLES + TESTS)
    y = draw.integers(0, 10, total)
    prototypes = draw.integers(0, 128, (10, 1, 28, 28))
    x = np.clip(prototypes[y] + draw.normal(60, 60, (total, 1, 28, 28)), 0, 255).astype(np.uint8)
    index = np.arange(total, dtype=np.int32).reshape(CLIENTS, -1)
    pool = Pool(x, y, 10, scale=1 / 255, mean=0.3, std=0.4)
    return FederatedData(pool, [Shard(row[:SAMPLES].copy(), row[SAMPLES:].copy()) for row in index])


def plain(model: ModelSpec, data: FederatedData, rounds: int) -> float:
    """Median seconds of a round in a plain loop over the clients."""
    weights = asyncio.run(_start(_core(model, data, Inline())))
    seconds = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        for device in range(CLIENTS):
            module = module_of(model.architecture(data.pool.shape, 10))  # type: ignore[union-attr]
            load_weights(list(module.parameters()), weights)
            optimizer = torch.optim.SGD(module.parameters(), lr=LR)
            x, y = map(torch.from_numpy, data.train_samples(data.shard(device)))
            for _ in range(EPOCHS):
                for rows in torch.split(torch.randperm(SAMPLES), BATCH):
                    optimizer.zero_grad()
                    torch.autograd.backward(functional.cross_entropy(module(x[rows]), y[rows]))
                    optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return median(seconds[1:])


def strategies(data: FederatedData, root: Path) -> dict[str, dict[str, float]]:
    """For logistic and the MLP: seconds of a round of FedAvg, and how many times as long each
    other one takes.
    """
    archive = {
        f"{name}_{part}": np.concatenate(
            [values[getattr(data.shard(at), part)] for at in range(CLIENTS)]
        )
        for name, values in (("x", data.pool.x), ("y", data.pool.y))
        for part in ("train", "test")
    }
    np.savez(root / "digits.npz", **archive)  # type: ignore[arg-type]
    results = {}
    for model in ("logistic", "mlp"):
        rows = [
            {name: _round_s(model, root, own) for name, own in STRATEGIES.items()}
            for _ in range(TURNS + 1)
        ][1:]
        results[model] = {
            name: round(median(row[name] / row["fedavg"] for row in rows), 3) for name in STRATEGIES
        }
        results[model]["fedavg_round_s"] = round(median(row["fedavg"] for row in rows), 5)
    return results


def _round_s(model: str, root: Path, own: dict[str, Any]) -> float:
    """Processor time of a round: what more rounds of a run add to it."""
    return (_run_s(model, root, own, MANY) - _run_s(model, root, own, FEW)) / (MANY - FEW)


def _run_s(model: str, root: Path, own: dict[str, Any], rounds: int) -> float:
    device = {"down": "10 Mbit/s", "up": "10 Mbit/s", "latency": "10 ms"}
    sections = {
        "data": {"source": {"kind": "npz", "path": str(root / "digits.npz")}},
        "model": model,
        "training": {"lr": LR, "batch_size": BATCH},
        "population": {"devices": CLIENTS, "speed": "100 samples/s"},
        "network": {
            "kind": "star",
            "server": {"down": "100 Mbit/s", "up": "100 Mbit/s"},
            "device": device,
        },
        "evaluation": {"every": rounds},
        "stop": {"rounds": rounds},
    }
    strategy = {
        "kind": "fedavg",
        **own.get("strategy", {}),
        "clients_per_round": CLIENTS,
        "local_epochs": EPOCHS,
    }
    job = Job(fedsim.Scenario(**(sections | own | {"strategy": strategy})), None, Inline())
    begin = time.process_time()
    asyncio.run(job.execute())
    return time.process_time() - begin


def _core(model: ModelSpec, data: FederatedData, executor: Executor) -> Learning:
    return Learning(
        Simulation(executor=executor),
        model,
        TrainingSpec(lr=LR, batch_size=BATCH),
        data,
        Streams(1),
    )


async def _start(core: Learning) -> np.ndarray:
    return await core.value(core.initial())


def main(names: list[str]) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    data, results = digits(), dict[str, dict[str, float]]()
    for name in names or [*MODELS, "strategies"]:
        if name == "strategies":
            with tempfile.TemporaryDirectory() as folder:
                results |= {
                    f"{model} rounds": ratios
                    for model, ratios in strategies(data, Path(folder)).items()
                }
            continue
        model, rounds = MODELS[name]
        loop = plain(model, data, max(1, rounds // 4))
        result = {"plain_round_s": loop}
        for label, executor in (("inline", Inline()), ("threads_2", Threads(2))):
            seconds, test = asyncio.run(
                round_s(_core(model, data, executor), CLIENTS, EPOCHS, rounds)
            )
            executor.close()
            result |= {
                f"{label}_round_s": seconds,
                f"{label}_evaluation_s": test,
                f"{label}_ratio": loop / seconds,
            }
        results[name] = {key: round(value, 5) for key, value in result.items()}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
