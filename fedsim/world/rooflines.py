"""Training times of kinds of devices, by a roofline model.

Each operation takes the longer of its arithmetic and its memory traffic (Williams, Waterman and
Patterson, "Roofline", CACM 2009). CPUs pass over some data more than once, GPUs never. A batch and
an epoch have fixed costs, which are added.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.model_cost import ModelCost, Operations, Processor
from fedsim.common.training import Batching, LocalSteps, ModelCut, Training
from fedsim.common.units import show_bytes
from fedsim.world.columns import alike
from fedsim.world.device_kinds import DeviceKind

_CHECKED_BATCHES = range(16, 65)
_ARM_BATCH = 16
_ARM_VALUES = 3 * 224 * 224
_RULES: dict[Processor, str] = {
    "cpu": "times of training on a CPU follow a rule for batches of 16 to 64 on one core: 8 % off on "
    "the mean of six models, "
    "12 % at most; recurrent ones 8 % to 11 % on the mean, 28 % at most from batches of 4 on",
    "arm": "times of training on ARM cores follow a rule for batches of 16 images on a Raspberry Pi "
    "4: a model left out of its "
    "26 is 13 % off in the median, 52 % at most",
}


def _processor(kind: DeviceKind) -> Processor:
    if kind.gpu:
        return "gpu"
    return "arm" if kind.arm else "cpu"


def operations_s(
    operations: Operations,
    samples: int,
    flops: float,
    bandwidth: float,
    processor: Processor = "cpu",
) -> float:
    """Compute the time (s) of a pass (forward, or forward and backward) over one batch.

    By the roofline rule, an operation takes the longer of its arithmetic and its memory traffic. On
    a CPU, the time of additional passes over the operation's data is added.

    Args:
        operations: the operations of the pass.
        samples: count of samples in the batch.
        flops: FLOP/s that the processor reaches.
        bandwidth: bytes/s that its memory reaches.
        processor: kind of the processor.

    Returns:
        The time (s).
    """
    # columns come in pairs: a fixed amount of a batch, and an amount per sample of the batch
    per_batch = operations[:, 0::2]
    per_sample = operations[:, 1::2]
    # FLOPs, bytes of one pass over the data, and bytes of additional passes, [operations] each; ARM
    # cores have FLOPs and additional bytes of their own
    work, traffic, passes, arm_work, arm_passes = (per_batch + samples * per_sample).T
    if processor == "arm":
        work = arm_work
        passes = arm_passes
    seconds = np.maximum(work / flops, traffic / bandwidth)
    if processor != "gpu":
        seconds = seconds + passes / bandwidth
    return float(seconds.sum())


class AlikeDevices(NamedTuple):
    """Devices of one kind whose usual trainings need equal memory, so that one check serves all.

    The strategy names the usual training of each kind, such as local SGD on the whole model.

    Attributes:
        kind: index of the kind.
        training: the usual training, with the batch size of the devices.
        samples: count of samples on which one of the devices trains.
        devices: indices of the devices, int64.
    """

    kind: int
    training: Training
    samples: int
    devices: Ints


class Rooflines:
    """Training times and memory needs of devices of known kinds, by FLOP/s and memory bandwidth.

    Args:
        kinds: the kinds of devices.
        which: index in ``kinds`` of each device's kind, int [devices].
        cost: operations and memory of the trained model.
        batching: how an epoch's samples are divided into batches.
        cost_of: function of ``Training.cut`` (a smaller model) and ``Training.layers`` (count of the
            last layers that are trained) that returns the operations and memory of such a training;
            None if all devices train the whole model.
        usual: the usual training of each kind's devices, whose need of memory ``check`` and
            ``short`` compare with the devices' memory; None: a training of the whole model.
        layers: what a device with too little memory does. 0: its training fails. Else the count of
            layers of the model: the device trains only as many last layers as fit into its memory.
    """

    def __init__(
        self,
        kinds: Sequence[DeviceKind],
        which: NDArray[np.integer],
        cost: ModelCost,
        batching: Batching,
        cost_of: Callable[[ModelCut | None, int | None], ModelCost] | None = None,
        usual: Sequence[Training] | None = None,
        layers: int = 0,
    ) -> None:
        self.kinds = kinds
        self.which = which  # index of each device's kind
        self._cost = cost
        self._batching = batching
        self._cost_of = cost_of
        self._usual = usual or [Training(start=None)] * len(kinds)
        self.layers = layers
        # the results of these methods are cached, as many devices have equal trainings
        self._batch_s = cache(self._compute_batch_s)
        self._smaller = cache(self._make_smaller)

    def _make_smaller(self, cut: ModelCut | None, layers: int | None) -> "Rooflines":
        """Make the object for a smaller model, or for the model with fewer trained layers.

        Args:
            cut: size of the smaller model (``Training.cut``).
            layers: count of trained last layers; None for all.
        """
        assert self._cost_of is not None
        return Rooflines(self.kinds, self.which, self._cost_of(cut, layers), self._batching)

    def _resolve(self, training: Training) -> "tuple[Rooflines, Training]":
        """Find the ``Rooflines`` of the model, or of the last layers, that a training trains.

        ``Training.cut`` selects a smaller model, ``Training.layers`` fewer trained layers.

        Returns:
            The object for these, and the training without ``cut`` and ``layers``.
        """
        if training.cut is None and training.layers is None:
            return self, training
        smaller = self._smaller(training.cut, training.layers)
        return smaller, replace(training, cut=None, layers=None)

    def training_s(self, device: int, training: Training, samples: int) -> float:
        """Compute the time of an epoch of a training.

        Args:
            device: index of the device.
            training: the training.
            samples: count of samples on which the device trains.

        Returns:
            The time (s).
        """
        smaller, training = self._resolve(training)
        if smaller is not self:  # the training is of a smaller model, or of fewer layers
            return smaller.training_s(device, training, samples)
        kind = int(self.which[device])
        if not samples:
            return self.kinds[kind].epoch  # the fixed time of an epoch
        # a count of steps is divided into whole passes over the samples, and single batches
        batching = training.batching(self._batching)
        whole_passes = 1
        single_batches = 0
        match training.amount:
            case LocalSteps(count, only_batch=None):
                whole_passes, single_batches = divmod(count, batching.count(samples))
            case LocalSteps(count):  # all steps use one batch
                whole_passes = 0
                single_batches = count
        size = min(batching.size, samples)

        def all_batches_s(learns: bool) -> float:
            passes_s = whole_passes * self._epoch_s(kind, samples, batching, learns=learns)
            return passes_s + single_batches * self._batch_s(kind, size, learns=learns)

        # the other models of a contrastive term take forward passes only
        forward_s = all_batches_s(learns=False)
        fixed_s = self.kinds[kind].epoch
        return fixed_s + all_batches_s(learns=True) + training.asked_besides * forward_s

    def rules(self) -> list[str]:
        """Describe each fitted formula of training times: its range and its error, as text.

        ``fedsim check`` prints these texts.
        """
        processors = {_processor(kind) for kind in self._used_kinds()}
        return [_RULES[processor] for processor in sorted(processors & {*_RULES})]

    def outside_of_rules(self, numbers: int) -> list[str]:
        """Return warnings about trainings outside the range that the fitted time formulas cover.

        Args:
            numbers: count of input values in a sample, such as the pixels of an image.

        Returns:
            One text for each formula whose range the trainings leave; empty if there is none.
        """
        size = self._batching.size
        processors = {_processor(kind) for kind in self._used_kinds()}
        warnings = []
        if processors & {"cpu", "gpu"} and size not in _CHECKED_BATCHES:
            checked = f"{_CHECKED_BATCHES.start} to {_CHECKED_BATCHES.stop - 1}"
            warnings.append(
                f"times of batches of {size} samples are less certain: they were compared with "
                f"real ones at {checked} (docs/time.md)"
            )
        if "arm" in processors and (size, numbers) != (_ARM_BATCH, _ARM_VALUES):
            warnings.append(
                "times of boards with ARM cores are less certain: their rule is of batches of "
                f"{_ARM_BATCH} images of {_ARM_VALUES} numbers, and here batches of {size} samples "
                f"of {numbers} are trained on (docs/time.md)"
            )
        return warnings

    def _used_kinds(self) -> list[DeviceKind]:
        return [self.kinds[kind] for kind in np.unique(self.which).tolist()]

    def testing_s(self, device: int, samples: int) -> float:
        """Compute the time of a forward pass over ``samples`` samples (s)."""
        kind = int(self.which[device])
        size = min(self._batching.size, samples)
        return self._pass_s(kind, samples, size, learns=False)

    def epochs_s(self, samples: Ints, sizes: Ints | None = None) -> Floats:
        """Compute the time of an epoch of training on every device.

        Args:
            samples: count of samples of each device, int64 [devices].
            sizes: batch size of each device, 0 for the usual one, int64 [devices]; None: the usual
                one for all devices.

        Returns:
            The times (s), float64 [devices].
        """
        seconds = np.empty(len(samples))
        if sizes is None:
            sizes = alike(0, len(samples))
        for size in np.unique(sizes).tolist():
            batching = self._batching
            if size:  # 0: the usual batch size
                batching = replace(batching, size=size)
            for kind in range(len(self.kinds)):
                devices = (self.which == kind) & (sizes == size)
                seconds[devices] = self._epochs_of_kind(kind, samples[devices], batching)
        return seconds

    def _epochs_of_kind(self, kind: int, samples: Ints, batching: Batching) -> Floats:
        """Compute the time of an epoch of training on several devices of one kind.

        Args:
            kind: index of the kind.
            samples: count of samples of each device, int64 [n].
            batching: how the samples of each device are divided into batches.

        Returns:
            The times (s), float64 [n].
        """
        whole_training = Training(start=None, batch_size=batching.size)  # it trains all layers
        # the time is computed once for each count of samples
        counts, which_count = np.unique(samples, return_inverse=True)
        times = []
        for count in counts.tolist():
            # with little memory, devices train only the last layers
            rooflines, _ = self._resolve(self.fit(kind, whole_training, count))
            pass_s = rooflines._epoch_s(kind, count, batching, learns=True)
            times.append(self.kinds[kind].epoch + pass_s)
        seconds: Floats = np.array(times, dtype=np.float64)[which_count]
        return seconds

    def speeds(self) -> Floats:
        """Compute the training speed of every device in full batches (samples/s), [devices]."""
        size = self._batching.size
        speeds = [size / self._batch_s(kind, size, learns=True) for kind in range(len(self.kinds))]
        by_device: Floats = np.array(speeds)[self.which]
        return by_device

    def needed(self, training: Training | None, samples: int) -> float:
        """Compute the memory that a computation takes.

        Args:
            training: the training; None for a test.
            samples: count of samples on which the device computes.

        Returns:
            The memory (bytes).
        """
        if training is None:
            return self._cost.weights
        smaller, training = self._resolve(training)
        if smaller is not self:  # the training is of a smaller model, or of fewer layers
            return smaller.needed(training, samples)
        batch = self._largest_batch(training, samples)
        return (
            self._cost.memory
            + batch * self._cost.memory_a_sample
            + training.asked_besides * self._cost.weights
        )

    def failing_s(self, device: int, training: Training | None, samples: int) -> float | None:
        """Compute the time until a device runs out of memory, in the first forward pass.

        Args:
            device: index of the device.
            training: the training; None for a test.
            samples: count of samples on which the device computes.

        Returns:
            The time (s); None if the computation fits into memory.
        """
        if training is not None:
            smaller, training = self._resolve(training)
            if smaller is not self:  # the training is of a smaller model, or of fewer layers
                return smaller.failing_s(device, training, samples)
        kind = int(self.which[device])
        device_kind = self.kinds[kind]
        if self.needed(training, samples) <= device_kind.training_memory:
            return None
        batching = self._batching if training is None else training.batching(self._batching)
        size = max(1, min(batching.size, samples))
        # the fixed time of an epoch, and a forward pass over the first batch
        return device_kind.epoch + self._batch_s(kind, size, learns=False)

    def fit(self, kind: int, training: Training, samples: int) -> Training:
        """Limit a training to the last layers for which a kind of device has the memory.

        Args:
            kind: index of the device's kind.
            training: the training.
            samples: count of samples on which the device trains.

        Returns:
            The training with ``Training.layers``, the count of its last layers that are trained. It is
            unchanged if the device has memory for all layers, if it has too little memory even for one
            layer, or if trainings of fewer layers are not allowed.
        """
        available = self.kinds[kind].training_memory
        if self.layers < 2 or self.needed(training, samples) <= available:
            return training
        if self.needed(replace(training, layers=1), samples) > available:
            return training
        # binary search for the greatest count of layers that fits
        layers = 1
        too_many = self.layers  # least count of layers known not to fit
        while too_many - layers > 1:
            count = (layers + too_many) // 2
            if self.needed(replace(training, layers=count), samples) <= available:
                layers = count
            else:
                too_many = count
        return replace(training, layers=layers)

    def can_train(self, kind: int, training: Training, samples: int) -> bool:
        """Return whether a device has the memory for a training, or for fewer layers of it.

        Args:
            kind: index of the device's kind.
            training: the training.
            samples: count of samples on which the device trains.
        """
        fitted = self.fit(kind, training, samples)
        return self.needed(fitted, samples) <= self.kinds[kind].training_memory

    def short(self, samples: Ints, sizes: Ints | None = None) -> NDArray[np.bool_]:
        """Return which devices have too little memory for their usual training; bool [devices].

        Args:
            samples: count of samples of each device, int64 [devices].
            sizes: batch size of each device, 0 for the usual one, int64 [devices]; None: the usual
                one for all devices.
        """
        is_short = np.zeros(len(samples), dtype=np.bool_)
        for group in self.groups(samples, sizes):
            if not self.can_train(group.kind, group.training, group.samples):
                is_short[group.devices] = True
        return is_short

    def groups(self, samples: Ints, sizes: Ints | None = None) -> Iterator[AlikeDevices]:
        """Yield the devices in groups, in each of which the usual trainings need equal memory.

        The devices of a group are of one kind and have equal batch sizes. Their largest batches have
        equal counts of samples too. The largest batch of a device with few samples is smaller than
        the batch size.

        Args:
            samples: count of samples of each device, int64 [devices].
            sizes: batch size of each device, 0 for the usual one, int64 [devices]; None: the usual
                one for all devices.
        """
        if sizes is None:
            sizes = alike(0, len(samples))
        for kind, usual in enumerate(self._usual):
            for size in np.unique(sizes[self.which == kind]).tolist():
                training = replace(usual, batch_size=size or None)  # None: the usual batch size
                devices = np.flatnonzero((self.which == kind) & (sizes == size))
                # the largest batch is computed once for each count of samples
                counts, which_count = np.unique(samples[devices], return_inverse=True)
                batches = [self._largest_batch(training, count) for count in counts.tolist()]
                batch_by_count = np.array(batches, dtype=np.int64)
                for batch in np.unique(batch_by_count).tolist():
                    # whether each count of samples has this largest batch
                    has_batch = batch_by_count == batch
                    members = devices[has_batch[which_count]]
                    yield AlikeDevices(kind, training, int(samples[members[0]]), members)

    def check(self, samples: int) -> None:
        """Raise ``ScenarioError`` if no device has the memory to train on ``samples`` samples."""
        used = [int(kind) for kind in np.unique(self.which)]
        if any(self.can_train(kind, self._usual[kind], samples) for kind in used):
            return
        least_memory = min(self.needed(self._usual[kind], samples) for kind in used)
        available = max(self.kinds[kind].training_memory for kind in used)
        raise ScenarioError(
            f"population.device: training the model takes {show_bytes(least_memory)}, and no device "
            f"has room, at most {show_bytes(available)}"
        )

    def _largest_batch(self, training: Training, samples: int) -> int:
        batching = training.batching(self._batching)
        return max(min(batching.size, samples), batching.last_size(samples))

    def _epoch_s(self, kind: int, samples: int, batching: Batching, *, learns: bool) -> float:
        """Compute the time of a pass over a device's samples (s).

        Args:
            kind: index of the device's kind.
            samples: count of samples.
            batching: how the samples are divided into batches.
            learns: whether the pass trains the model, instead of only testing it.
        """
        size = batching.size
        if batching.last != "merge" or samples <= size:
            return self._pass_s(kind, batching.taken(samples), min(size, samples), learns=learns)
        # an incomplete last batch is merged with the batch before it, to a larger last batch
        last_size = batching.last_size(samples)
        full_s = self._pass_s(kind, samples - last_size, size, learns=learns)
        return full_s + self._batch_s(kind, last_size, learns=learns)

    def _pass_s(self, kind: int, samples: int, size: int, *, learns: bool) -> float:
        """Compute the time of a pass over samples, batch by batch (s); the last may be incomplete.

        Args:
            kind: index of the device's kind.
            samples: count of samples.
            size: count of samples in a batch.
            learns: whether the model is trained, instead of only tested.
        """
        if not samples:
            return 0.0
        count, last_size = divmod(samples, size)
        last_s = self._batch_s(kind, last_size, learns=learns) if last_size else 0.0
        return count * self._batch_s(kind, size, learns=learns) + last_s

    def _compute_batch_s(self, kind: int, samples: int, *, learns: bool) -> float:
        device_kind = self.kinds[kind]
        cost = self._cost
        parts = (cost.forward, cost.backward, cost.update) if learns else (cost.forward,)
        flops = device_kind.flops * device_kind.flops_share
        bandwidth = device_kind.bandwidth * device_kind.bandwidth_share
        processor = _processor(device_kind)
        return device_kind.batch + sum(
            operations_s(part, samples, flops, bandwidth, processor) for part in parts
        )
