"""Test samples, and models applied to them.

A test image that many devices hold (in the same orientation) is computed once for all of them. Images stand in an order of
their own, so that a result does not depend on what was tested before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.data.federated import FederatedData, Shard
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Solver, compute_with_one_thread

_BLOCK_NUMBERS = 1 << 20  # numbers in the samples of one block of work
_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Samples:
    """The test samples of some devices.

    Attributes:
        devices: whose.
        blocks: the distinct images, in blocks of one size, float32 [block, *shape].
        image: which image each sample is, int64 [samples]; samples stand device by device.
        y: labels, int64 [samples].
        owner: position of each sample's device in ``devices``, int64 [samples].
    """

    devices: list[int]
    blocks: list[Tensor]
    image: Tensor
    y: Tensor
    owner: NDArray[np.int64]

    @property
    def bytes(self) -> int:
        """Memory that it takes, nearly all of it in the images."""
        return sum(block.numel() * 4 for block in self.blocks) + 24 * len(self.y)


class TestSets:
    """Every device's test samples in its current version.

    Args:
        data: of all devices.
        device: where the samples are kept.
    """

    def __init__(self, data: FederatedData, device: torch.device) -> None:
        self._data = data
        self._device = device
        self._versions = np.zeros(len(data.shards), dtype=np.int64)
        self._cache: dict[tuple[int, ...] | None, Samples] = {}

    def shift(self, device: int, version: int) -> None:
        """From now on ``device`` is tested on another version of its data."""
        self._versions[device] = version
        for key in [key for key in self._cache if key is None or device in key]:
            del self._cache[key]

    def of(self, devices: Sequence[int] | None) -> Samples:
        """The samples of some devices, or of all; kept while there is room."""
        key = None if devices is None else tuple(devices)
        if key not in self._cache:
            samples = self._gather(range(len(self._versions)) if devices is None else devices)
            while self._cache and samples.bytes + sum(kept.bytes for kept in self._cache.values()) > _CACHE_BYTES:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = samples
        return self._cache[key]

    def own(self, device: int) -> tuple[Tensor, Tensor]:
        """One device's samples as they are: x float32 [n, *shape], y int64 [n]."""
        x, y = self._data.test_samples(self._shard(device))
        return torch.from_numpy(x), torch.from_numpy(y)

    def size(self, device: int) -> int:
        """How many test samples a device has."""
        return len(self._shard(device).test)

    def _shard(self, device: int) -> Shard:
        return self._data.shard(device, int(self._versions[device]))

    def _gather(self, devices: Sequence[int]) -> Samples:
        pool = self._data.pool
        shards = [self._shard(device) for device in devices]
        sizes = [len(shard.test) for shard in shards]
        images = [shard.test.astype(np.int64) + shard.quarter_turns % 4 * len(pool.y) for shard in shards]
        labels = [pool.y[shard.test] if shard.label_map is None else shard.label_map[pool.y[shard.test]] for shard in shards]
        distinct, image = np.unique(np.concatenate([np.empty(0, np.int64), *images]), return_inverse=True)
        size = max(1, _BLOCK_NUMBERS // int(np.prod(pool.shape)))
        blocks = [self._images(distinct[at : at + size]) for at in range(0, len(distinct), size)]
        y = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *labels])).to(self._device)
        owner = np.repeat(np.arange(len(shards)), sizes)
        return Samples(list(devices), blocks, torch.from_numpy(image).to(self._device), y, owner)

    def _images(self, distinct: NDArray[np.int64]) -> Tensor:
        """Images by number: quarter turns x pool size + index."""
        turns, index = np.divmod(distinct, len(self._data.pool.y))
        nothing = np.empty(0, dtype=np.int32)
        parts = [
            self._data.test_samples(Shard(nothing, index[turns == turn].astype(np.int32), turn))[0]
            for turn in np.unique(turns).tolist()
        ]
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts)).to(self._device)


def apply(solver: Solver, weights: Weights, block: Tensor) -> Tensor:
    """A model's outputs for a block of images; runs on a worker."""
    compute_with_one_thread()
    return solver.outputs(weights, block)


def apply_each(solver: Solver, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of several models, each for its own samples; runs on a worker."""
    compute_with_one_thread()
    return solver.outputs_each(weights, xs)


def judge(solver: Solver, samples: Samples, outputs: Sequence[Tensor]) -> Evaluation:
    """Compare a model's outputs for ``samples.blocks`` with the labels."""
    count = np.bincount(samples.owner, minlength=len(samples.devices))
    if not len(samples.y):
        return Evaluation(samples.devices, count, count, count.astype(np.float64))
    every = torch.cat(list(outputs)) if len(outputs) > 1 else outputs[0]
    return _judged(solver, samples.devices, samples.owner, every[samples.image], samples.y, count)


def judge_each(solver: Solver, devices: list[int], outputs: Sequence[Tensor], ys: Sequence[Tensor]) -> Evaluation:
    """Compare the outputs of several models with their own labels."""
    count = np.array([len(y) for y in ys], dtype=np.int64)
    owner = np.repeat(np.arange(len(ys)), count)
    every = torch.cat(list(outputs))
    return _judged(solver, devices, owner, every, torch.cat(list(ys)).to(every.device), count)


def _judged(
    solver: Solver, devices: list[int], owner: NDArray[np.int64], outputs: Tensor, y: Tensor, count: NDArray[np.int64]
) -> Evaluation:
    losses = solver.losses(outputs, y).cpu().numpy()
    right = (outputs.argmax(dim=1) == y).cpu().numpy()
    correct = np.bincount(owner, weights=right, minlength=len(devices)).astype(np.int64)
    loss_sum = np.bincount(owner, weights=losses, minlength=len(devices)).astype(np.float64)
    return Evaluation(devices, correct, count, loss_sum)
