"""The CNN of CATA-Fed on images of CIFAR-10's shape, 40 clients a round, on a GPU: prints JSON.

``python -m tests.benchmarks.gpu [DEVICE]``; DEVICE is ``cuda`` unless given. Beside the seconds of a round stands the share of
the card's own rate that they come to: the FLOPs of the round over what products of large float32 matrices reach in the same
process.
"""

import asyncio
import json
import sys
import time

import numpy as np
import torch

from fedsim.data.federated import FederatedData, Pool, Shard
from fedsim.executors.inline import Inline
from fedsim.learning.engine import Learning
from fedsim.learning.spec import TrainingSpec
from fedsim.simulation import Simulation
from fedsim.streams import Streams
from fedsim.toolbox.models.published import CataCNN
from tests.benchmarks.script import round_s

CLIENTS, SAMPLES, EPOCHS, BATCH, ROUNDS = 40, 100, 5, 20, 3
_SIDE, _PRODUCTS = 4096, 10


def images() -> FederatedData:
    """Noise in the shape of CIFAR-10."""
    draw = np.random.default_rng(0)
    total = CLIENTS * SAMPLES
    x = draw.integers(0, 256, (total, 3, 32, 32)).astype(np.uint8)
    index = np.arange(total, dtype=np.int32).reshape(CLIENTS, -1)
    pool = Pool(x, draw.integers(0, 10, total), 10, scale=1 / 255, mean=0.5, std=0.25)
    return FederatedData(pool, [Shard(row.copy(), row[:1].copy()) for row in index])


def product_rate(device: str) -> float:
    """FLOPs a second of large float32 matrix products."""
    left, right = (torch.randn(_SIDE, _SIDE, device=device) for _ in range(2))
    float((left @ right)[0, 0])
    begin = time.perf_counter()
    for _ in range(_PRODUCTS):
        right = left @ right / _SIDE
    float(right[0, 0])  # waits for the device
    return _PRODUCTS * 2 * _SIDE**3 / (time.perf_counter() - begin)


def main(device: str = "cuda") -> None:
    """Measure and print."""
    training = TrainingSpec(lr=0.05, batch_size=BATCH, device=device)
    core = Learning(Simulation(executor=Inline()), CataCNN(), training, images(), Streams(1))
    seconds, _ = asyncio.run(round_s(core, CLIENTS, EPOCHS, ROUNDS))
    flops = CLIENTS * SAMPLES * EPOCHS * core.flops_per_sample
    share = flops / seconds / product_rate(device)
    print(json.dumps({"device": device, "round_s": seconds, "round_flops": flops, "share_of_rate": share}, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
