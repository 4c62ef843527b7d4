"""Population of devices as arrays over devices; there is no object for a single device."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import SimulationError
from fedsim.common.training import Batching, CutBy, Training
from fedsim.world.columns import ALL, alike, mean
from fedsim.world.own_training import OwnTraining
from fedsim.world.rooflines import Rooflines
from fedsim.world.steps import WorkAmounts

# A training step is a forward pass and a backward pass at twice its cost, so that a forward pass
# costs a third of the step.
_FORWARD_SHARE = 1 / 3

MeanOver = Literal["unslowed", "all"]
"""Speed of stragglers in the devices' mean time of an epoch, the unit of a relative deadline.

``all``: stragglers count at their reduced speed. ``unslowed``: they count at their usual speed.
"""


@dataclass
class Population:
    """Properties of all devices, such as speeds and sample counts, as arrays [devices].

    Attributes:
        speed: training speed (samples/s) on the reference model, the model for which the scenario
            states speeds (``reference_flops``); by default the trained model. If devices have kinds,
            it is the speed on the trained model in full batches.
        samples, version: count of training samples that the device holds now, and the version of
            its data, from 0; int64.
        cost: FLOPs of training the trained model on a sample, divided by the reference model's.
        arrival, departure: time at which the device joins, and leaves for good (s), float64;
            ``inf`` for a device that never leaves.
        slowness: factor of a straggler's usual speed, at most 1 and already contained in ``speed``;
            1 for devices that are no stragglers.
        rooflines: training times of kinds of devices, instead of ``speed`` and ``cost``.
        flops: FLOP/s that each device reaches, float64; None if unknown.
        share_of: function of the fields of ``Training.cut`` that returns the cost of training the
            cut, smaller model on a sample, relative to the whole model. The fields are ``by``, the
            way in which the model is cut, and ``size``. Set by ``Run``.
        batching: division of an epoch's samples into batches; set by ``Run``.
        own: local trainings that differ by device; None if all devices train alike.
        trainable: count n of devices that may train: those with the indices 0 to n - 1.
    """

    speed: Floats
    samples: Ints
    cost: float
    arrival: Floats
    departure: Floats
    slowness: Floats = field(default_factory=lambda: np.ones(1))
    rooflines: Rooflines | None = None
    flops: Floats | None = None
    share_of: Callable[[CutBy, float], float] | None = None
    batching: Batching = field(default=Batching(1))
    own: OwnTraining | None = None
    version: Ints = field(init=False)
    trainable: int = field(init=False)

    def __post_init__(self) -> None:
        self.trainable = len(self.speed)
        self.version = alike(0, len(self.speed))
        self.slowness = np.broadcast_to(self.slowness, self.speed.shape)

    def shift(self, device: int, version: int, samples: int) -> None:
        """Store a device's new sample count and data version, after a change (shift) of its data.

        Args:
            device: index of the device.
            version: number of the new version, from 0.
            samples: count of training samples in the new version.
        """
        # read-only until the first shift, as one stored value stands for all devices
        if not self.version.flags.writeable:
            self.version = self.version.copy()
            self.samples = self.samples.copy()
        self.version[device] = version
        self.samples[device] = samples

    def training_s(self, device: int, training: Training, samples: int) -> float:
        """Return the time (s) of an epoch on ``samples`` samples, without random variation.

        Args:
            device: index of the device.
            training: the training, which may be of a smaller model.
            samples: count of samples on which the device trains.
        """
        if self.own is not None:
            training = self.own.with_batch(device, training)
        # ``share``: factor of the time, below 1 if the trainer stops early
        if self.rooflines is not None:
            return (
                training.share
                * self.rooflines.training_s(device, training, samples)
                / self.slowness.item(device)
            )
        # cost of a sample, with the forward passes of the other models of a contrastive term
        cost = self.cost * (1.0 + _FORWARD_SHARE * training.asked_besides)
        if training.cut is not None and self.share_of is not None:  # a smaller model costs less
            cost *= self.share_of(*training.cut)
        return training.share * (
            training.samples_an_epoch(samples, self.batching) * cost / self.speed.item(device)
        )

    def testing_s(self, device: int, samples: int) -> float:
        """Return the time (s) of a forward pass over ``samples`` samples, without random variation."""
        if self.rooflines is not None:
            return self.rooflines.testing_s(device, samples) / self.slowness.item(device)
        return samples * self.cost / self.speed.item(device) * _FORWARD_SHARE

    def working_s(self, device: int, work: WorkAmounts) -> float:
        """Return the time (s) of a device's step ``Work``, which needs no model.

        Random variation and slow phases are not included.

        Args:
            device: index of the device.
            work: the samples, FLOPs and seconds of the step.

        Raises:
            SimulationError: the work has FLOPs, and the FLOP/s of the devices are unknown.
        """
        seconds = work.seconds
        if work.samples:
            seconds += work.samples * self.cost / self.speed.item(device)
        if work.flops:
            if self.flops is None:
                raise SimulationError(
                    "work in FLOPs needs population.device, or population.speed with "
                    "reference_flops"
                )
            seconds += work.flops / self.flops.item(device)
        return seconds

    def failing_s(self, device: int, training: Training | None, samples: int) -> float | None:
        """Return the time after which a computation runs out of memory (s), None if it does not.

        Args:
            device: index of the device.
            training: the training; None for a test.
            samples: count of samples on which the device computes.
        """
        if self.rooflines is None:
            return None
        if self.own is not None and training is not None:
            training = self.own.with_batch(device, training)
        return self.rooflines.failing_s(device, training, samples)

    def fit(
        self, device: int, training: Training, samples: int, rooflines: Rooflines | None = None
    ) -> Training:
        """Return a training limited to the last layers for which the device has memory.

        The training is unchanged if the memory suffices for all layers, and also if it does not
        suffice for a single layer.

        Args:
            device: index of the device.
            training: the training.
            samples: count of samples on which the device trains.
            rooflines: the memory of kinds of devices; None for ``self.rooflines``.
        """
        rooflines = rooflines or self.rooflines
        if rooflines is None:
            return training
        if self.own is not None:
            training = self.own.with_batch(device, training)
        return rooflines.fit(int(rooflines.which[device]), training, samples)

    def epochs_s(self, devices: slice = ALL, over: MeanOver = "all") -> Floats:
        """Return the time (s) of an epoch on each device in a slice, float64 [devices].

        Random variation (jitter) is not included.

        Args:
            devices: the slice; by default all devices.
            over: ``all``: stragglers count at their reduced speed; ``unslowed``: at their usual speed.
        """
        slowness = self.slowness[devices] if over == "unslowed" else 1.0
        if self.rooflines is not None:
            batch_sizes = None
            if self.own is not None:
                batch_sizes = self.own.batch_size
            # the times of stragglers at their reduced speeds, which the factor ``slowness`` undoes
            epochs: Floats = self.rooflines.epochs_s(self.samples, batch_sizes) / self.slowness
            return epochs[devices] * slowness
        samples = self._samples_per_epoch(devices)
        return samples * self.cost / (self.speed[devices] / slowness)

    def _samples_per_epoch(self, devices: slice) -> Ints:
        """Return how many samples an epoch of each device in a slice trains on, int64 [slice].

        These are all samples, less an incomplete last batch if such batches are dropped. A device
        with fewer samples than a batch trains on all of them.
        """
        samples = self.samples[devices]
        if self.own is None or self.batching.last != "drop":
            return self.batching.taken(samples)
        own_sizes = self.own.batch_size[devices]
        sizes = np.where(own_sizes == 0, self.batching.size, own_sizes)
        has_full_batch = samples >= sizes
        left_out = (samples % sizes) * has_full_batch  # the incomplete last batch after full ones
        return samples - left_out

    def batching_of(self, device: int) -> Batching:
        """Return how the samples of an epoch on a device are divided into batches."""
        if self.own is None:
            return self.batching
        return self.own.batching(device, self.batching)

    def passes(self, devices: slice, epochs: int) -> Floats:
        """Return how often a training of each device passes over its samples, float64 [slice].

        Args:
            devices: slice of the devices.
            epochs: ``strategy.local_epochs``, for devices for which neither epochs nor steps are set.
        """
        samples = self.samples[devices]
        if self.own is None:
            return np.full(len(samples), float(epochs))
        return self.own.passes(devices, epochs, samples, self.batching)

    def mean_epoch_s(self, over: MeanOver) -> float:
        """Return the mean time of an epoch over the devices that may train (s), without jitter.

        Args:
            over: ``all``: stragglers count at their reduced speed; ``unslowed``: at their usual speed.
        """
        if self.rooflines is not None:
            return float(np.mean(self.epochs_s(over=over)[: self.trainable]))
        with np.errstate(divide="ignore"):
            return mean(lambda devices: self.epochs_s(devices, over), self.trainable)
