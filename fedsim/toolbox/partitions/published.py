"""Partitions of published experiments, with few classes on a device and very unequal sizes."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common import former_keys
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import Former
from fedsim.common.sizes import Sizes, UniformSizes
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Dataset, FederatedData, Index, Normalize
from fedsim.learning.data.partitions import (
    Partition,
    deal_evenly,
    deal_test_alike,
    federated,
    gather,
    hold_out_tenths,
    require_classes,
    require_devices,
)

_LEAST_PER_CLASS = 2  # least images of a class on a device (``femnist``)
_FEMNIST_CLASSES = 3  # classes of a device (``femnist``)
_FEMNIST_PER_CLASS = 4000  # greatest count of images of a class that are used (``femnist``)
_DITTO_CLASSES = 5  # classes of a device (``ditto``)
_FIRST_OF_CLASS = 5  # least samples of a class on a device (``power-law``)
_MOST_SAMPLES = 100_000_000  # greatest sum of all devices' training samples (``class-bias``)


class PowerLaw(Partition):
    """Device u holds lognormal amounts of the classes u, u+1, ... (mod C), as in FedProx.

    C is the count of classes. Training and test samples are pooled. Each device first gets 5
    samples of each of its classes, in file order. The rest of each class is divided in proportions
    drawn from lognormal(0, 2). A tenth of each device's samples is held back for testing. Devices
    with the same classes form a true group, with which groups found by clustering are compared.

    Source: Li et al. 2020, and the code of FedProx. MNIST and 1,000 devices give FedProx's data
    (about 69,050 samples; mean 69, median 24, least 10 on a device); other ``classes_per_device``
    give Table I of FlexCFL.

    Attributes:
        classes_per_device: number of consecutive classes that a device holds.
    """

    instead: ClassVar[Former] = former_keys.POWER_LAW
    kind: Literal["power-law"] = "power-law"
    usual_normalize: ClassVar[Normalize] = "standardize"
    pools_test: ClassVar[bool] = True

    classes_per_device: int = Field(default=2, ge=1)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Deal samples in two passes: 5 of each class of a device, then the rest by random shares.

        The rest of a class is all samples that the first pass leaves.
        """
        labels, truth = _neighbouring_classes(dataset, devices, self.classes_per_device)
        parts = dataset.by_class(dataset.all)
        sizes = np.array([len(part) for part in parts])
        devices_of_class = np.bincount(labels.ravel(), minlength=len(parts))
        reserved = _FIRST_OF_CLASS * devices_of_class  # samples of each class for the first pass
        self._refuse_scarce_class(dataset, devices, sizes, reserved)
        rest = self._divide_rest(labels, sizes - reserved, streams.generator("world/data/sizes"))
        # samples to deal of each class of a device: [2 passes, devices, classes of a device]
        amounts = np.stack([np.full_like(rest, _FIRST_OF_CLASS), rest])
        # amounts are rounded down, so a class suffices for all devices, except for rounding errors
        indices = _deal(parts, labels, amounts, "skip")
        return hold_out_tenths(dataset, indices, streams, truth)

    def _refuse_scarce_class(
        self, dataset: Dataset, devices: int, sizes: Ints, reserved: Ints
    ) -> None:
        """Raise ``ScenarioError`` if a class has fewer samples than its devices need at least.

        Args:
            dataset: the data set, for the error message.
            devices: count of devices.
            sizes: count of samples of each class, int64 [C].
            reserved: count of samples that the devices of each class need, int64 [C].
        """
        scarce = np.flatnonzero(reserved > sizes)
        if len(scarce):
            label = scarce[0]
            why = (
                f"each needs {_FIRST_OF_CLASS} samples of each of its {self.classes_per_device} "
                f"classes, and '{dataset.name}' has {sizes[label]} of {label}"
            )
            # devices that a class can serve at most; each device needs several classes
            devices_per_class = int(sizes.min()) // _FIRST_OF_CLASS
            most_devices = devices_per_class * len(sizes) // self.classes_per_device
            require_devices(devices, most_devices, why)

    def _divide_rest(self, labels: Ints, available: Ints, generator: np.random.Generator) -> Ints:
        """Divide the remaining samples of each class among the devices of the class, at random.

        The shares of a class are proportional to draws from lognormal(0, 2), and are rounded down.
        As in FedProx's code, numbers are drawn for a full table of classes, rows and slots. A row
        has the draws of C devices with consecutive IDs. No two of them have the same class in the
        same slot, so that each draw belongs to at most one device. A slot is a place in a device's
        list of classes.

        Args:
            labels: the classes of each device, int64 [devices, slots].
            available: count of samples of each class to divide, int64 [C].
            generator: source of the random proportions.

        Returns:
            For each device and slot the count of samples of the class, int64 [devices, slots].
        """
        devices, slots = labels.shape
        classes = len(available)
        rows = math.ceil(devices / classes)
        draws = generator.lognormal(0.0, 2.0, (classes, rows, slots))
        row_of_device = np.arange(devices)[:, None] // classes  # [devices, 1]
        # place in the table of the draw for each slot of each device: its class, row and slot, which
        # index together, broadcast to [devices, slots]
        positions = (labels, row_of_device, np.arange(slots)[None])
        used = np.zeros_like(draws)  # 0 for a draw that belongs to no device
        used[positions] = draws[positions]
        total = used.sum(axis=(1, 2), keepdims=True)  # sum of each class's draws, [classes, 1, 1]
        # prevents a division by 0 for a class that no device has
        total = np.maximum(total, np.finfo(np.float64).tiny)
        # samples of the class for each draw, [classes, rows, slots]
        amounts = available[:, None, None] * used / total
        device_amounts: Floats = amounts[positions]
        return device_amounts.astype(np.int64)


class Femnist(Partition):
    """Device u holds equal amounts of the classes u, u+1, u+2 (mod C), as in FedProx's FEMNIST.

    C is the count of classes. The count of a device's samples is drawn from lognormal(4, 1) + 5.
    Samples come from the training set, at most 4,000 of each class; a tenth of each device's
    samples is held back for testing. Devices with the same classes form a true group, with which
    groups found by clustering are compared. The letters a-j of EMNIST and 200 devices give the
    FEMNIST of the code and the papers.

    Attributes:
        overlap: whether every device gets the *first* images of its classes. Devices then share
            images, and train on images that other devices have for tests. This is a mistake of the
            published code, without which its accuracies cannot be reproduced. False: each image is
            on one device.
    """

    instead: ClassVar[Former] = former_keys.FEMNIST
    kind: Literal["femnist"] = "femnist"
    overlap: bool = True

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Give device u samples of the classes u, u+1 and u+2 (mod C), equally many of each.

        With ``overlap`` these are the first samples of each class, so devices share samples.
        Otherwise each device gets the samples after the samples of the device before it.
        """
        labels, truth = _neighbouring_classes(dataset, devices, _FEMNIST_CLASSES)
        generator = streams.generator("world/data/train")
        samples_of_class = []
        for class_samples in dataset.by_class(dataset.train):
            samples_of_class.append(generator.permutation(class_samples)[:_FEMNIST_PER_CLASS])
        # the distribution of sizes is taken from FedProx's code
        sizes = streams.generator("world/data/sizes").lognormal(4.0, 1.0, devices) + 5.0
        # count of samples of each class of a device, int64 [devices]
        amounts = np.maximum(_LEAST_PER_CLASS, (sizes / _FEMNIST_CLASSES).astype(np.int64))
        indices = []
        if self.overlap:
            for device_labels, amount in zip(labels, amounts, strict=True):
                first_samples = [samples_of_class[label][:amount] for label in device_labels]
                indices.append(np.concatenate(first_samples))
        else:
            # one pass over the devices: int64 [1, devices, classes of a device]
            amounts_by_class = np.repeat(amounts[None, :, None], _FEMNIST_CLASSES, axis=2)
            indices = _deal(samples_of_class, labels, amounts_by_class, "rest")
        for device, index in enumerate(indices):
            if len(index) < _LEAST_PER_CLASS:
                raise ScenarioError(
                    f"population.devices is {devices}; the classes of device {device} are used up "
                    f"in '{dataset.name}': allowed are "
                    "fewer devices, or data.partition.overlap = true"
                )
        return hold_out_tenths(dataset, indices, streams, truth)


class DittoPartition(Partition):
    """Device u holds the classes u..u+4 (mod C) in lognormal(1, 1) proportions (code of Ditto).

    C is the count of classes. The size n of each device is drawn from lognormal(3, 1) + 10, and all
    sizes are scaled so that they sum to the count of training samples. The device's five draws from
    lognormal(1, 1), divided by their sum, are the proportions p of its classes. Of each class the
    device gets floor(p n) + 1 training samples and floor(p n / r) + 1 test samples. r is the count
    of training samples divided by the count of test samples in the data set. A class that is used
    up starts again, so devices may share images, but no test image is a training image.

    The draws have a fixed seed. Fashion-MNIST and 500 devices give 61,251 training and 11,254 test
    samples, as published, with 31 to 1,378 training samples on a device (median 88). Devices with
    the same classes form a true group, with which groups found by clustering are compared. The
    number of the group is the first class of its devices.
    """

    instead: ClassVar[Former] = former_keys.DITTO
    kind: Literal["ditto"] = "ditto"
    usual_normalize: ClassVar[Normalize] = "standardize"

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Draw sizes and proportions as Ditto's code does, and divide both published sets by them."""
        labels, truth = _neighbouring_classes(dataset, devices, _DITTO_CLASSES)
        legacy = np.random.RandomState(233)  # the generator and the seed of the published split
        sizes = legacy.lognormal(3.0, 1.0, devices) + 10.0  # n of each device, not rounded
        sizes = dataset.train_size * sizes / sum(sizes)  # they sum to the count of training samples
        draws = legacy.lognormal(1.0, 1.0, labels.shape)
        shares = np.array([device_draws / sum(device_draws) for device_draws in draws])
        # samples of each class of a device, dealt in one pass: [1, devices, classes of a device]
        amounts = (shares * sizes[:, None])[None]
        train_to_test = dataset.train_size / max(1, len(dataset.test))
        train_amounts = amounts.astype(np.int64) + 1
        test_amounts = (amounts / train_to_test).astype(np.int64) + 1
        train = _deal(dataset.by_class(dataset.train), labels, train_amounts, "again")
        test = _deal(dataset.by_class(dataset.test), labels, test_amounts, "again")
        return federated(dataset, train, test, truth)


def _neighbouring_classes(dataset: Dataset, devices: int, slots: int) -> tuple[Ints, Ints | None]:
    """Assign neighbouring classes to devices: u, u+1, ... (mod C) to device u.

    Args:
        dataset: the data set.
        devices: count of devices.
        slots: count of classes of a device.

    Returns:
        The classes of each device, int64 [devices, slots], and its true group, which is its first
        class, int64 [devices]. The groups are None if each device has all classes.
    """
    classes = dataset.pool.classes
    require_classes(slots, dataset)
    labels = (np.arange(devices)[:, None] + np.arange(slots)) % classes
    truth = labels[:, 0] if slots < classes else None
    return labels, truth


def _deal(
    parts: list[Index], labels: Ints, amounts: Ints, at_end: Literal["skip", "rest", "again"]
) -> list[Index]:
    """Assign the samples of each class to the devices in order, in one or several passes.

    Args:
        parts: for each class the indices of its samples in the data set's pool.
        labels: the classes of each device, one in each slot, int64 [devices, slots].
        amounts: count of samples of each of these classes to assign to the device in each pass,
            int64 [passes, devices, slots].
        at_end: treatment of a class with too few samples left: ``skip`` assigns none, ``rest``
            assigns the remaining samples, ``again`` starts from the class's first sample.

    Returns:
        For each device the indices of its samples.
    """
    pieces: list[list[Index]] = [[] for _ in labels]
    begins = np.zeros(len(parts), dtype=np.int64)  # position of the next sample of each class
    for pass_index, device, slot in np.ndindex(amounts.shape):
        label = labels[device, slot]
        amount = amounts[pass_index, device, slot]
        if begins[label] + amount > len(parts[label]):
            if at_end == "skip":
                continue
            if at_end == "again":
                begins[label] = 0
        begin = begins[label]
        # with ``rest`` the slice ends where the class ends
        pieces[device].append(parts[label][begin : begin + amount])
        begins[label] += amount
    return [np.concatenate(piece) for piece in pieces]


class ClassBias(Partition):
    """A share of each device's data is of a few random classes (CATA-Fed, Jeong and Kim 2022).

    Each device draws its training images from the first ``per_class`` training images of each
    class. It draws an image twice only if it needs more images of a class than there are. Devices
    may share images, so by default each device distorts them in its own way
    (``data.augmentation``). The published test samples are divided in proportion to the devices'
    training labels, each to one device. With one class per device, the devices of a class form a
    true group, with which groups found by clustering are compared.

    Attributes:
        classes_per_device: H, the number of classes that make up ``share`` of a device's data; with
            all classes the data are IID.
        share: share of a device's samples that is divided equally among its H classes; the classes
            of the remaining samples are drawn uniformly from all others.
        sizes: counts of the devices' training samples: ``uniform``, from 100 to 3,000; or
            ``long-tail``, also from 100 to 3,000, but at most 300 on 40 % of the devices, and at
            most 500 on 70 %.
        per_class: count of the training images of each class that are used.
    """

    kind: Literal["class-bias"] = "class-bias"
    usually_augmented: ClassVar[bool] = True

    classes_per_device: int = Field(default=1, ge=1)
    share: float = Field(default=0.9, gt=0.0, le=1.0)
    sizes: Sizes = UniformSizes()
    per_class: int = Field(default=5000, ge=1)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Draw for each device a count of samples, an order of the classes, and the samples.

        The first ``classes_per_device`` classes in the order make up ``share`` of the samples.
        """
        require_classes(self.classes_per_device, dataset)
        parts = [part[: self.per_class] for part in dataset.by_class(dataset.train)]
        for label, part in enumerate(parts):
            if not len(part):
                raise ScenarioError(
                    f"data.partition.kind is 'class-bias'; '{dataset.name}' has no training sample "
                    f"of class {label}"
                )
        sizes = self.sizes.draw(devices, streams.generator("world/data/sizes"))
        if sizes.sum() > _MOST_SAMPLES:
            total = f"{sizes.sum()} training samples; allowed are at most {_MOST_SAMPLES}"
            raise ScenarioError(f"data.partition.sizes gives {devices} devices {total}")
        train = []
        first_labels = []
        for device, size in enumerate(sizes.tolist()):
            generator = streams.generator("world/data/train", device)
            class_order = generator.permutation(len(parts))
            train.append(self._draw_samples(parts, class_order, size, generator))
            first_labels.append(class_order[0])
        truth = np.array(first_labels) if self.classes_per_device == 1 else None
        return federated(dataset, train, deal_test_alike(dataset, train, streams), truth)

    def _draw_samples(
        self, parts: list[Index], order: Ints, size: int, generator: np.random.Generator
    ) -> Index:
        """Draw the training samples of a device, of which a share is of a few classes.

        Args:
            parts: for each class the indices of its samples in the data set's pool.
            order: the classes; the first ``classes_per_device`` make up ``share`` of the samples.
            size: count of the device's samples.
            generator: source of the random choice.

        Returns:
            The indices of the drawn samples, int64 [size].
        """
        major = order[: self.classes_per_device]
        minor = order[self.classes_per_device :]
        major_size = round(self.share * size) if len(minor) else size
        counts = np.zeros(len(parts), dtype=np.int64)  # count of samples to draw from each class
        # the major classes get counts that are as equal as possible
        equal_chunks = np.array_split(np.arange(major_size), len(major))
        counts[major] = [len(chunk) for chunk in equal_chunks]
        if len(minor):
            equal_chances = np.full(len(minor), 1.0 / len(minor))
            counts[minor] = generator.multinomial(size - major_size, equal_chances)
        pieces = []
        for part, count in zip(parts, counts.tolist(), strict=True):
            if count:
                # a sample is drawn twice only if the class has too few
                positions = generator.choice(len(part), count, replace=count > len(part))
                pieces.append(part[positions])
        return np.concatenate(pieces)


class ClassImbalance(Partition):
    """Few classes per device, with a majority class that is often near class 5 (Wang et al., CCS).

    Over all devices the classes near class 5 thus have the most samples. A device has at most B
    classes (``classes_per_device``) of C:

    - The number of its majority class, from 1 to C, is drawn from a normal distribution with mean 5
      and variance 10, rounded, and drawn again if it is not within 1..C. B - 1 other classes are
      drawn uniformly.
    - The device draws B integers uniformly from 0..``largest``, not all 0. The largest integer is
      the sample count of the majority class, the others are the sample counts of its other classes.

    A training image is on several devices only if the devices need more images of its class than
    there are (MNIST nearly suffices for B = 10). The published test set is divided evenly. With one
    class per device, the devices of a class form a true group, with which groups found by
    clustering are compared.

    Attributes:
        classes_per_device: B, the largest number of classes on a device (10, 5, 2, 1 in the
            paper).
        largest: largest count of samples of a class on a device.
    """

    instead: ClassVar[Former] = former_keys.CLASS_IMBALANCE
    kind: Literal["class-imbalance"] = "class-imbalance"
    classes_per_device: int = Field(default=2, ge=1)
    largest: int = Field(default=100, ge=1, le=1_000_000_000)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Draw how many samples of each class each device has, and deal the samples of each class.

        The devices take the shuffled samples of a class in order. Samples that are used up are
        dealt again, to other devices.
        """
        classes = dataset.pool.classes
        require_classes(self.classes_per_device, dataset)
        majority = _majority_chances(classes)
        counts = np.empty((devices, classes), dtype=np.int64)
        for device in range(devices):
            generator = streams.generator("world/data/sizes", device)
            counts[device] = self._draw_counts(majority, generator)
        generator = streams.generator("world/data/train")
        parts = [generator.permutation(part) for part in dataset.by_class(dataset.train)]
        available = np.array([len(part) for part in parts])
        scarce = np.flatnonzero(counts.max(axis=0) > available)
        if len(scarce):
            label = scarce[0]
            raise ScenarioError(
                f"data.partition.largest is {self.largest}; '{dataset.name}' has "
                f"{available[label]} training samples of class {label}, so 1 to "
                f"{available.min()} are allowed"
            )
        owners = []
        pieces = []
        for part, label_counts in zip(parts, counts.T, strict=True):
            owners.append(np.repeat(np.arange(devices), label_counts))  # device of each sample
            pieces.append(np.resize(part, label_counts.sum()))  # repeats a class that is used up
        device_of_sample = np.concatenate(owners)
        samples = np.concatenate(pieces)
        test = deal_evenly(dataset.test, devices, streams.generator("world/data/test"))
        truth = counts.argmax(axis=1) if self.classes_per_device == 1 else None
        return federated(dataset, gather(device_of_sample, samples, devices), test, truth)

    def _draw_counts(self, majority: Floats, generator: np.random.Generator) -> Ints:
        """Draw how many training samples of each class a device has, int64 [C].

        Args:
            majority: probability of each class to be the device's majority class, float64 [C].
            generator: source of the random numbers.
        """
        classes = len(majority)
        major = generator.choice(classes, p=majority)
        candidates = np.delete(np.arange(classes), major)
        minor = generator.choice(candidates, self.classes_per_device - 1, replace=False)
        amounts: Ints = np.zeros(self.classes_per_device, dtype=np.int64)
        while not amounts.any():  # a device needs a sample
            amounts = generator.integers(0, self.largest, self.classes_per_device, endpoint=True)
        # the largest amount goes to the majority class, which is the first of the classes below
        largest_index = int(amounts.argmax())
        amounts[0], amounts[largest_index] = amounts[largest_index], amounts[0]
        counts = np.zeros(classes, dtype=np.int64)
        counts[[major, *minor]] = amounts
        return counts


def _majority_chances(classes: int) -> Floats:
    """Return the probability of each class to be a device's majority class, float64 [classes].

    Class l, counted from 1, has P(l - 0.5 < N(5, 10) < l + 0.5), rescaled to the sum 1.
    """
    # P(N(5, 10) < x) = (1 + erf((x - 5) / sqrt(2 * 10))) / 2. The classes are bounded by x = 0.5,
    # 1.5, ..., and the factor 1/2 cancels in the rescaling.
    edges = (np.arange(classes + 1) - 4.5) / math.sqrt(20.0)
    chances = np.diff([math.erf(edge) for edge in edges])
    return np.asarray(chances / chances.sum(), dtype=np.float64)
