"""Test samples, and models applied to them.

An image that many devices hold (in the same orientation) is computed once for all of them. A model
always meets images in their own order, in blocks, so that a result does not depend on earlier
tests.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.common.arrays import Ints
from fedsim.learning.data.federated import FederatedData, Shard
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.objectives import Objective, SampleNumbers
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Solver, one_thread

_BLOCK_NUMBERS = 1 << 20  # numbers in the samples of one block of work
_KEPT_BYTES = 1 << 30  # of the lists of devices' samples, and of their images


Judged = dict[str, SampleNumbers]
"""A model's results on samples: the numbers of each metric, and as "" loss, correct answers and
answers of each, [n, 3].
"""


class Block:
    """Calling it makes test images, float32 [block, *shape], by ascending number: quarter turns
    x pool size + index.
    """

    def __init__(
        self, samples: FederatedData, device: torch.device, numbers: Ints, keep: bool
    ) -> None:
        self._parts = samples, device, numbers, keep
        self._images: Tensor | None = None

    def __reduce__(self) -> Any:
        return Block, self._parts  # no image is sent to another process

    def __call__(self) -> Tensor:
        if self._images is not None:
            return self._images
        samples, device, numbers, keep = self._parts
        turns, index = np.divmod(numbers, len(samples.pool.y))
        kind = torch.int64 if samples.pool.vocabulary else torch.float32
        images = torch.empty(len(numbers), *samples.pool.shape, device=device, dtype=kind)
        nothing = np.empty(0, dtype=np.int32)
        for turn in np.unique(turns).tolist():
            x, _ = samples.test_samples(Shard(nothing, index[turns == turn].astype(np.int32), turn))
            begin = int(np.searchsorted(turns, turn))
            images[begin : begin + len(x)] = torch.from_numpy(x)
        self._images = images if keep else None
        return images


class TestSamples(NamedTuple):
    """The test samples of some devices, in order of devices."""

    devices: list[int]
    owner: Ints
    """position of each sample's device in ``devices``, int64 [samples]."""
    order: Ints
    """the samples by image, int64 [samples]."""
    blocks: list[tuple[Block, Ints, NDArray[Any]]]
    """the distinct images, each with the samples of it in that order: which image within it, and
    the target.
    """
    bytes: int
    """memory that all of it takes."""


class TestSets:
    """Every device's test samples in its current version; ``samples`` is ``data`` without
    shards, which workers get.
    """

    def __init__(self, data: FederatedData, samples: FederatedData, device: torch.device) -> None:
        self._data = data
        self.samples = samples
        self._device = device
        self._versions = np.zeros(len(data.shards), dtype=np.int64)
        self._lists: dict[tuple[int, ...] | None, TestSamples] = {}

    def shift(self, device: int, version: int) -> None:
        """From now on ``device`` is tested on another version of its data."""
        self._versions[device] = version
        self._lists.clear()

    def of(self, devices: Sequence[int] | None) -> TestSamples:
        """The samples of some devices, or of all; kept while there is room, the latest longest."""
        key = None if devices is None else tuple(devices)
        samples = self._lists.pop(key, None) or self._gather(
            range(len(self._versions)) if devices is None else devices
        )
        self._lists[key] = samples
        while (
            len(self._lists) > 1 and sum(each.bytes for each in self._lists.values()) > _KEPT_BYTES
        ):
            del self._lists[next(iter(self._lists))]
        return samples

    def shard(self, device: int) -> Shard:
        """The shard on whose test samples a device is tested now."""
        return self._data.shard(device, int(self._versions[device]))

    def _gather(self, devices: Sequence[int]) -> TestSamples:
        pool = self._data.pool
        shards = list(map(self.shard, devices))
        turns = np.array([shard.quarter_turns % 4 for shard in shards], dtype=np.int64)
        owner = np.repeat(
            np.arange(len(shards)), np.array([len(shard.test) for shard in shards], dtype=np.int64)
        )
        index = np.concatenate([np.empty(0, np.int64), *(shard.test for shard in shards)])
        y = pool.y[index] if pool.targets is None else pool.targets[index]
        maps = {
            at: shard.label_map for at, shard in enumerate(shards) if shard.label_map is not None
        }
        if maps:
            table = np.tile(np.arange(pool.classes), (len(shards), 1))
            table[list(maps)] = list(maps.values())
            y = table[owner, y]
        images, image = np.unique(index + turns[owner] * len(pool.y), return_inverse=True)
        order = np.argsort(image, kind="stable")
        image = image[order]
        numbers = int(np.prod(pool.shape)) * max(1, pool.outputs if pool.vocabulary else 1)
        image_bytes = 4 * numbers * len(images)
        size = max(1, _BLOCK_NUMBERS // numbers)
        starts = range(0, len(images), size)
        keep = image_bytes <= _KEPT_BYTES
        blocks = [Block(self.samples, self._device, images[at : at + size], keep) for at in starts]
        ends = np.searchsorted(image, starts[1:])
        work = list(
            zip(blocks, np.split(image % size, ends), np.split(y[order], ends), strict=False)
        )
        list_bytes = 8 * (len(devices) + len(images) + 4 * len(y))
        return TestSamples(list(devices), owner, order, work, list_bytes + keep * image_bytes)


def judge(
    solver: Solver,
    objective: Objective,
    weights: Weights,
    block: Block,
    image: Ints,
    y: NDArray[Any],
) -> Judged:
    """Apply a model to the samples of a block, given which image each is, and its target; runs
    on a worker.
    """
    one_thread()
    outputs = solver.outputs(weights, block())[torch.from_numpy(image).to(solver.device)]
    targets = torch.from_numpy(y).to(outputs.device)
    return _judged(objective, outputs, targets, solver.tested_losses(weights, outputs, targets))


def judge_each(
    solver: Solver,
    objective: Objective,
    samples: FederatedData,
    weights: Sequence[Weights],
    shards: Sequence[Shard],
) -> Judged:
    """Apply several models, each to the test samples of its shard; runs on a worker."""
    one_thread()
    xs, ys = zip(*map(samples.test_samples, shards), strict=True)
    # in torch's memory, which is aligned
    outputs = solver.outputs_each(weights, list(map(torch.tensor, xs)))
    whole = torch.cat(outputs)
    targets = torch.from_numpy(np.concatenate(ys)).to(whole.device)
    return _judged(objective, whole, targets, solver.tested_losses_each(weights, outputs, targets))


def _judged(objective: Objective, outputs: Tensor, targets: Tensor, losses: Tensor) -> Judged:
    asked = objective.asked(targets).reshape(len(targets), -1)
    right = (objective.answers(outputs) == targets).reshape(len(targets), -1) & asked
    found = {metric.name: metric.keep(outputs, targets) for metric in objective.figures}
    found[""] = torch.stack([each.double() for each in (losses, right.sum(1), asked.sum(1))], dim=1)
    return {name: facts.double().cpu().numpy() for name, facts in found.items()}


def counted(
    objective: Objective,
    devices: list[int],
    owner: Ints,
    judged: Sequence[Judged],
    order: Ints | None = None,
) -> Evaluation:
    """The evaluation of samples judged in parts, in some ``order``; ``owner`` has each one's
    position in ``devices``.
    """
    facts: dict[str, SampleNumbers] = {"": np.zeros((len(owner), 3))}
    for name in judged[0] if judged else ():
        found = np.concatenate([part[name] for part in judged])
        facts[name] = np.empty_like(found)
        facts[name][slice(None) if order is None else order] = found
    losses, right, asked = facts.pop("").T
    sums = [
        np.bincount(owner, each, len(devices)).astype(np.float64)
        for each in (losses * asked, right, asked)
    ]
    correct = sums[1].astype(np.int64) if objective.has_accuracy else None
    by_device = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=len(devices)))[:-1]
    each = {name: np.split(whole[by_device], ends) for name, whole in facts.items()}
    return Evaluation(devices, correct, sums[2].astype(np.int64), sums[0], facts=each)
