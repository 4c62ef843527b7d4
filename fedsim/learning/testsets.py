"""Test samples of the devices, and tests of models on them.

An image that several devices have in the same orientation is computed once for all these devices.
Each model is applied to the images in ascending order, in blocks of fixed size. A result therefore
does not depend on earlier tests.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.common.arrays import AnyArray, Ints
from fedsim.learning.data.federated import FederatedData, Shard
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.host_copies import to_host
from fedsim.learning.objectives import Objective, SampleNumbers
from fedsim.learning.resident import ResidentSamples
from fedsim.learning.resident_models import NamedWeights, ResidentModels
from fedsim.learning.scratch import Weights
from fedsim.learning.solvers.base import Solver, use_one_thread

_BLOCK_NUMBERS = 1 << 20  # count of values in the images of one block
_KEPT_BYTES = 1 << 30  # limit of the test samples in memory, indices and images (bytes)


class SampleResults(NamedTuple):
    """Results of tests of models on n test samples, as a worker returns them.

    ``evaluation_of`` sums them by device. A model gives one answer (prediction) for each sample, or
    one for each token of a sample.

    Attributes:
        scores: loss, count of correct answers and count of answers of each sample, float64 [n, 3].
        facts: name of a metric -> the m values of each sample from which the metric is computed,
            float64 [n, m].
    """

    scores: SampleNumbers
    facts: dict[str, SampleNumbers]


class Block:
    """Block of k distinct test images; calling it returns the images as a tensor.

    The tensor is [k, *shape]: float32 images, or int64 tokens. The ID of an image is its quarter
    turns x pool size + its index in the pool, which has all samples of the data set.

    Args:
        samples: all samples on the torch device of the images.
        numbers: IDs of the images, ascending, int64 [k].
        keeps_images: whether this object keeps the images in memory after the first call; ignored
            if ``samples`` keeps them.

    Attributes:
        samples: as the argument.
    """

    def __init__(self, samples: ResidentSamples, numbers: Ints, keeps_images: bool) -> None:
        self.samples = samples
        self._numbers = numbers
        self._keeps_images = keeps_images
        self._images: Tensor | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return Block, (self.samples, self._numbers, self._keeps_images)  # images are left out

    def __call__(self) -> Tensor:
        """Return the images as a tensor, rotated and normalised, [block, *shape]."""
        if self._images is not None:
            return self._images
        samples = self.samples
        pool = samples.data.pool
        turns, index = np.divmod(self._numbers, len(pool.y))  # turns and pool index of each image
        dtype = torch.int64 if pool.vocabulary else torch.float32
        images = torch.empty(len(turns), *pool.shape, device=samples.device, dtype=dtype)
        no_samples = np.empty(0, dtype=np.int32)
        # a shard has one rotation, so there is a shard for each count of quarter turns
        for turn in np.unique(turns).tolist():  # ascending, as the images are sorted by turns
            shard = Shard(no_samples, index[turns == turn].astype(np.int32), quarter_turns=turn)
            x, _ = samples.test(shard)
            begin = int(np.searchsorted(turns, turn))
            images[begin : begin + len(x)] = x
        if self._keeps_images and not samples.stays:
            self._images = images
        return images


class BlockSamples(NamedTuple):
    """Block of distinct images, and the n test samples that have these images.

    Attributes:
        block: the images.
        image: index of each sample's image within the block, int64 [n].
        targets: targets of the samples, [n, ...].
    """

    block: Block
    image: Ints
    targets: AnyArray


class TestSamples(NamedTuple):
    """Test samples of some devices, with each distinct image stored once.

    The samples are numbered device by device. An image that several devices have is a sample of
    each of them. The ID of an image is its quarter turns x pool size + its index in the pool of all
    samples. The images are divided into blocks of limited size, as a model is tested on one block
    at a time.

    Attributes:
        devices: the devices.
        owner: index in ``devices`` of each sample's device, int64 [samples].
        order: numbers of the samples, sorted by their images' IDs, int64 [samples].
        blocks: the images by ascending ID, block by block. Each block has the samples with its
            images, so that the samples of all blocks are in the order of ``order``.
        bytes: memory of the fields and of the images (bytes).
    """

    devices: list[int]
    owner: Ints
    order: Ints
    blocks: list[BlockSamples]
    bytes: int


class TestSets:
    """Provider of the test samples of devices, in the current version of each device's data.

    Args:
        data: the data of all devices.
        samples: all samples on the torch device of the test images.
    """

    def __init__(self, data: FederatedData, samples: ResidentSamples) -> None:
        self._data = data
        self.samples = samples
        self._versions = np.zeros(len(data.shards), dtype=np.int64)
        self._lists: dict[tuple[int, ...] | None, TestSamples] = {}

    def shift(self, device: int, version: int) -> None:
        """Use a new version of a device's test samples in later tests, as its data have shifted.

        Args:
            device: index of the device.
            version: index of the version of the device's data.
        """
        self._versions[device] = version
        self._lists.clear()

    def samples_of(self, devices: Sequence[int] | None) -> TestSamples:
        """Return the test samples of devices, in the current versions of their data.

        The results of the last calls are cached, up to 1 GiB.

        Args:
            devices: indices of the devices; None for all.
        """
        key = None if devices is None else tuple(devices)
        samples = self._lists.pop(key, None)
        if samples is None:
            every_device = range(len(self._versions))
            samples = self._gather(every_device if devices is None else devices)
        self._lists[key] = samples
        while len(self._lists) > 1 and self._list_bytes() > _KEPT_BYTES:
            oldest = next(iter(self._lists))
            del self._lists[oldest]
        return samples

    def _list_bytes(self) -> int:
        return sum(samples.bytes for samples in self._lists.values())

    def shard(self, device: int) -> Shard:
        """Return the current shard of a device: its sample indices and their transform."""
        return self._data.shard(device, int(self._versions[device]))

    def _gather(self, devices: Sequence[int]) -> TestSamples:
        """Collect the test samples of devices, with each distinct image once."""
        pool = self._data.pool
        shards = [self.shard(device) for device in devices]
        turns = np.array([shard.quarter_turns % 4 for shard in shards], dtype=np.int64)
        sizes = np.array([len(shard.test) for shard in shards], dtype=np.int64)
        # for each sample, device by device: the position of its shard, and its index in the pool
        owner = np.repeat(np.arange(len(shards)), sizes)
        index = np.concatenate([np.empty(0, np.int64), *(shard.test for shard in shards)])
        # an image is a sample of the pool after a number of quarter turns; its ID has both numbers
        image_ids = index + turns[owner] * len(pool.y)
        # the distinct images, and the index of each sample's image among them
        images, image_of_sample = np.unique(image_ids, return_inverse=True)
        order = np.argsort(image_of_sample, kind="stable")  # samples in the order of their images
        targets = pool.y if pool.targets is None else pool.targets
        y = _map_labels(targets[index], owner, shards)
        image_bytes = 4 * self._image_numbers * len(images)
        keeps_images = image_bytes <= _KEPT_BYTES
        # 8 bytes for each device, for each image ID, and for each of four numbers of a sample:
        # owner, order, image within its block, and target
        size = 8 * (len(devices) + len(images) + 4 * len(y))
        if keeps_images:
            size += image_bytes
        blocks = self._blocks(images, image_of_sample[order], y[order], keeps_images=keeps_images)
        return TestSamples(list(devices), owner, order, blocks, size)

    @property
    def _image_numbers(self) -> int:
        """Count of values by which an image's need for memory is estimated.

        It is the count of the image's own values; for tokens, it includes a model's outputs.
        """
        pool = self._data.pool
        numbers = int(np.prod(pool.shape))
        if pool.vocabulary:  # a model may output many values for each token
            numbers *= max(1, pool.outputs)
        return numbers

    def _blocks(
        self, images: Ints, image_of_sample: Ints, targets: AnyArray, *, keeps_images: bool
    ) -> list[BlockSamples]:
        """Divide distinct images, and the samples that have them, into blocks.

        Args:
            images: IDs of the distinct images, ascending, int64.
            image_of_sample: index in ``images`` of each sample's image, ascending, int64 [samples].
            targets: targets of the samples, [samples, ...].
            keeps_images: whether the blocks keep their images in memory.

        Returns:
            Blocks of images by ascending ID, each with its samples.
        """
        width = max(1, _BLOCK_NUMBERS // self._image_numbers)  # count of images in a block
        blocks = []
        for start in range(0, len(images), width):
            block = Block(self.samples, images[start : start + width], keeps_images)
            # the samples of the block follow one another, as ``image_of_sample`` ascends
            begin, end = np.searchsorted(image_of_sample, (start, start + width))
            image_in_block = image_of_sample[begin:end] - start
            blocks.append(BlockSamples(block, image_in_block, targets[begin:end]))
        return blocks


def _map_labels(y: AnyArray, owner: Ints, shards: Sequence[Shard]) -> AnyArray:
    """Replace the labels of samples by the label maps of their devices' shards.

    A label map has the new label of each class.

    Args:
        y: targets, [samples, ...].
        owner: index of each sample's shard, int64 [samples].
        shards: the shards.

    Returns:
        The targets after the maps; ``y`` if no shard has a map.
    """
    maps = [shard.label_map for shard in shards if shard.label_map is not None]
    if not maps:
        return y
    classes = len(maps[0])
    # new label of each class, for each shard; [shards, classes]
    new_labels = np.tile(np.arange(classes), (len(shards), 1))
    for position, shard in enumerate(shards):
        if shard.label_map is not None:
            new_labels[position] = shard.label_map
    mapped: AnyArray = new_labels[owner, y]
    return mapped


def evaluate_block(
    solver: Solver,
    objective: Objective,
    models: ResidentModels,
    model: Weights | NamedWeights,
    samples: BlockSamples,
) -> SampleResults:
    """Test a model on the samples of a block of images, on a worker.

    Args:
        solver: the solver of the model.
        objective: the objective, which has loss and metrics.
        models: store of models on the torch device of the solver.
        model: the model, as ``ResidentModels.named`` returns it.
        samples: the block and its samples.
    """
    use_one_thread()
    weights = models.flat(model)
    block, image, y = samples
    outputs = solver.outputs(weights, block())[block.samples.numbers(image)]
    targets = block.samples.numbers(y)
    losses = solver.tested_losses(weights, outputs, targets)
    return _results_of(objective, outputs, targets, losses)


def evaluate_each(
    solver: Solver,
    objective: Objective,
    samples: ResidentSamples,
    models: ResidentModels,
    tested: Sequence[Weights | NamedWeights],
    shards: Sequence[Shard],
) -> SampleResults:
    """Test several models on a worker, each on the test samples of a single device.

    Args:
        solver: the solver of the models.
        objective: the objective, which has loss and metrics.
        samples: all samples on the torch device of the solver.
        models: store of models on the torch device of the solver.
        tested: the models, each as ``ResidentModels.named`` returns it.
        shards: for each model, the shard (a device's data) on which it is tested.

    Returns:
        The results on the samples of all shards, concatenated.
    """
    use_one_thread()
    weights = [models.flat(model) for model in tested]
    xs, ys = zip(*map(samples.test, shards), strict=True)
    outputs = solver.outputs_each(weights, xs)
    targets = torch.cat(ys)
    losses = solver.tested_losses_each(weights, outputs, targets)
    return _results_of(objective, torch.cat(outputs), targets, losses)


def _results_of(
    objective: Objective, outputs: Tensor, targets: Tensor, losses: Tensor
) -> SampleResults:
    # bool [samples, answers]; a sequence may have one answer for each token
    is_counted = objective.asked(targets).reshape(len(targets), -1)
    is_equal = (objective.answers(outputs) == targets).reshape(len(targets), -1)
    is_correct = is_equal & is_counted
    facts = {}
    for metric in objective.figures:
        facts[metric.name] = to_host(metric.keep(outputs, targets).double())
    scores = [losses.double(), is_correct.sum(1).double(), is_counted.sum(1).double()]
    return SampleResults(to_host(torch.stack(scores, dim=1)), facts)


def evaluation_of(
    objective: Objective,
    devices: list[int],
    owner: Ints,
    results: Sequence[SampleResults],
    order: Ints | None = None,
) -> Evaluation:
    """Sum the test results of samples by device.

    Args:
        objective: the objective of the run.
        devices: the tested devices.
        owner: index in ``devices`` of each sample's device, int64 [samples].
        results: the results on parts of the samples, which together have all samples.
        order: for each sample of the concatenated ``results``, its index in ``owner``, int64
            [samples]; None if the results are in the order of ``owner``.

    Returns:
        The evaluation, with one entry for each of ``devices``.
    """
    scores = np.zeros((len(owner), 3))
    facts: dict[str, SampleNumbers] = {}
    if results:
        scores = _in_sample_order([part.scores for part in results], order)
        for name in results[0].facts:
            facts[name] = _in_sample_order([part.facts[name] for part in results], order)
    losses, correct_answers, counts = scores.T

    def sum_by_device(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(owner, numbers, len(devices)).astype(np.float64)

    loss_sum = sum_by_device(losses * counts)  # a sample's loss is the mean over its answers
    correct = None
    if objective.has_accuracy:
        correct = sum_by_device(correct_answers).astype(np.int64)
    count = sum_by_device(counts).astype(np.int64)
    # the values of each device's samples, for metrics that are no sums, such as F1
    by_device = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=len(devices)))[:-1]
    device_facts = {name: np.split(values[by_device], ends) for name, values in facts.items()}
    return Evaluation(devices, correct, count, loss_sum, facts=device_facts)


def _in_sample_order(parts: Sequence[SampleNumbers], order: Ints | None) -> SampleNumbers:
    numbers = np.concatenate(parts)
    if order is None:
        return numbers
    sorted_numbers = np.empty_like(numbers)
    sorted_numbers[order] = numbers
    return sorted_numbers
