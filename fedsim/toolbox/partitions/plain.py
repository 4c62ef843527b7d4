"""Partitions by label, shards, Dirichlet shares or a file, and partitions with true groups."""

from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.common import former_keys
from fedsim.common.arrays import AnyArray
from fedsim.common.device_names import naming_rule, number_devices
from fedsim.common.errors import DataError, ScenarioError, nearest, show_value
from fedsim.common.files import find_file, read_keyed_json, reading
from fedsim.common.former_keys import Former
from fedsim.common.notes import note
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Dataset, FederatedData, Index, Shard
from fedsim.learning.data.partitions import (
    Partition,
    deal_evenly,
    deal_test_alike,
    federated,
    gather,
    require_devices,
)

_EXAMPLE = '{"0": {"train": [3, 14], "test": [1]}, "1": {"train": [15]}}'
_MOST_DRAWS = 10_000  # permutations that are drawn before the search is given up


class ByLabel(Partition):
    """Samples are divided by their label, or by the column that ``data.column`` names.

    With L labels, device d gets samples of label d mod L. This label is the device's true group,
    with which groups found by clustering are compared. The devices of a label share its samples
    evenly. If there are fewer devices than labels, label l goes to device l mod the count of
    devices, and there are no true groups. Test samples are divided by the same rule.
    """

    kind: Literal["by-label"] = "by-label"

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        labels = dataset.pool.classes
        train = self._deal(dataset, dataset.train, devices, streams, "world/data/train")
        test = self._deal(dataset, dataset.test, devices, streams, "world/data/test")
        truth = np.arange(devices) % labels if devices >= labels else None
        return federated(dataset, train, test, truth)

    def _deal(
        self, dataset: Dataset, index: Index, devices: int, streams: Streams, purpose: str
    ) -> list[Index]:
        """Divide the samples of each label evenly among the devices that have this label.

        Args:
            dataset: the data set.
            index: indices into ``dataset.pool`` of the samples, training or test.
            devices: count of devices.
            streams: the random streams of the run.
            purpose: name of the random stream.

        Returns:
            For each device the indices of its samples.
        """
        classes = dataset.pool.classes
        pieces: list[list[Index]] = [[] for _ in range(devices)]
        for label, samples in enumerate(dataset.by_class(index)):
            # device d has the label d % classes
            members = list(range(label, devices, classes))
            if not members:  # fewer devices than labels
                members = [label % devices]
            shares = deal_evenly(samples, len(members), streams.generator(purpose, label))
            for device, share in zip(members, shares, strict=True):
                pieces[device].append(share)
        return [np.concatenate(device_pieces) for device_pieces in pieces]


class ByUser(Partition):
    """One device for each user, for data with ``data.column = "user"``, such as LEAF's or a CSV.

    Devices are in the order of the users, except that users without training samples are last. Such
    users occur in data whose training and test parts have different users. Set
    ``population.tested_only`` to their count, so that they are tested but do not train.
    """

    kind: Literal["by-user"] = "by-user"

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Give each device the samples of a user.

        With ``data.column = "user"`` the classes of the data set are the users.
        """
        users = dataset.pool.classes
        if devices != users:
            raise ScenarioError(
                f"population.devices is {devices}; '{dataset.name}' has {users} users in "
                f"data.column, and with data.partition 'by-user' allowed is {users}"
            )
        train = dataset.by_class(dataset.train)
        test = dataset.by_class(dataset.test)
        # users with training samples first, otherwise in order
        order = sorted(range(users), key=lambda user: len(train[user]) == 0)
        shards = [Shard(train[user], test[user]) for user in order]
        return FederatedData(dataset.pool, shards)


class Shards(Partition):
    """Samples sorted by class and cut into even shards (McMahan et al. 2017, non-IID).

    Each device gets ``per_device`` shards at random, so that each training sample is on one device.
    Test samples are divided in proportion to each device's training labels.

    Attributes:
        per_device: shards of a device: 2 as in the source, 1 as in Karimireddy et al. 2020
            (SCAFFOLD).
        similarity: share of the samples that is divided at random instead of by shards, as in
            Karimireddy et al. 2020; 1 gives IID data.
    """

    kind: Literal["shards"] = "shards"
    per_device: int = Field(default=2, ge=1, le=1_000_000)
    similarity: float = Field(default=0.0, ge=0.0, le=1.0)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Deal a share ``similarity`` of the samples evenly, and the rest in shards of few classes.

        A shard is a piece of the remaining samples sorted by class; each device gets ``per_device``
        random shards.
        """
        size = dataset.train_size
        per_device = self.per_device
        require_devices(
            devices,
            size // per_device,
            f"'{dataset.name}' has {size} training samples, {per_device} shards a device",
        )
        generator = streams.generator("world/data/train")
        shuffled = generator.permutation(dataset.train)
        even_size = round(self.similarity * size)
        even_parts = np.array_split(shuffled[:even_size], devices)
        rest = shuffled[even_size:]
        by_class = rest[np.argsort(dataset.pool.y[rest], kind="stable")]
        shards = np.array_split(by_class, devices * per_device)
        shards_of_device = generator.permutation(len(shards)).reshape(devices, per_device)
        train = []
        for even_part, numbers in zip(even_parts, shards_of_device.tolist(), strict=True):
            device_shards = [shards[number] for number in numbers]
            train.append(np.concatenate([even_part, *device_shards]))
        return federated(dataset, train, deal_test_alike(dataset, train, streams))


class Dirichlet(Partition):
    """The samples of each class are divided in shares drawn from Dirichlet(alpha, ..., alpha).

    Source: Yurochkin et al. 2019. Each training sample is on one device; labels and sizes are
    skewed. Test samples are divided in proportion to each device's training labels.

    Attributes:
        alpha: concentration; the smaller it is, the fewer classes a device holds, and 100 is nearly
            IID.
        minimum: least count of training samples of a device. A device with fewer gets random
            samples of the largest device.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, ge=0.001, le=1e6)
    minimum: int = Field(default=2, ge=1)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Divide the samples of each class among the devices in Dirichlet proportions.

        Devices with fewer than ``minimum`` samples then get samples of the largest devices.
        """
        size = dataset.train_size
        minimum = self.minimum
        require_devices(
            devices,
            size // minimum,
            f"'{dataset.name}' has {size} training samples, at least {minimum} a device",
        )
        generator = streams.generator("world/data/train")
        # for each class the shuffled samples, then the device of each of them
        samples = [generator.permutation(part) for part in dataset.by_class(dataset.train)]
        owners = [self._draw_owners(len(part), devices, generator) for part in samples]
        train = gather(np.concatenate(owners), np.concatenate(samples), devices)
        self._fill_up(train, generator)
        return federated(dataset, train, deal_test_alike(dataset, train, streams))

    def _draw_owners(
        self, size: int, devices: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """Divide the ``size`` samples of a class among devices, in shares drawn from Dirichlet.

        Returns:
            The device of each sample, int64 [size].
        """
        shares = generator.dirichlet(np.full(devices, self.alpha))
        # index of the sample after the last sample of each device, rounded
        ends = np.floor(np.cumsum(shares) * size + 0.5).astype(np.int64).clip(0, size)
        ends[-1] = size
        counts = np.diff(ends, prepend=0)
        return np.repeat(np.arange(devices), counts)

    def _fill_up(self, indices: list[Index], generator: np.random.Generator) -> None:
        """Move samples from the largest devices to devices below ``minimum``, in place.

        Args:
            indices: for each device the indices of its samples in the data set's pool.
            generator: source of the random choice of samples.
        """
        sizes = np.array([len(index) for index in indices])
        for device in np.flatnonzero(sizes < self.minimum).tolist():
            while sizes[device] < self.minimum:
                donor = int(sizes.argmax())
                position = int(generator.integers(sizes[donor]))
                indices[device] = np.append(indices[device], indices[donor][position])
                indices[donor] = np.delete(indices[donor], position)
                sizes[device] += 1
                sizes[donor] -= 1


class PartitionFile(Partition):
    """A partition that a JSON file describes by an object with one entry for each device.

    The keys are the numbers of the devices, ``"0"``, ``"1"`` and so on, or other names, which are
    numbered in natural order (``"c2"`` before ``"c10"``). An entry is a list of indices of training
    samples, or an object with such a list as ``train``, and perhaps one of test samples as
    ``test``, as in ``{"0": [3, 14], "1": {"train": [15], "test": [1]}}``. Indices count from 0
    within the published training and test sets. If no device has test indices, test samples are
    divided in proportion to the devices' training labels. A sample may be on several devices.

    Attributes:
        path: the file; a relative path starts from ``data.root``, else the working directory, else
            ``$FEDSIM_DATA``.
    """

    kind: Literal["file"] = "file"
    path: str

    def under(self, root: Path | None) -> Self:
        return self.model_copy(update={"path": str(find_file(self.path, root))})

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Give each device the samples that the user's file lists.

        If the file lists no test samples, the test samples of the data set are divided in
        proportion to the devices' training labels.
        """
        path = Path(self.path)
        entries = _read_entries(path)
        if len(entries) != devices:
            raise ScenarioError(
                f"population.devices is {devices}; the partition file '{path}' has "
                f"{len(entries)} devices"
            )
        train = []
        test = []
        for device, entry in enumerate(entries):
            test_entry = entry.get("test", [])
            train.append(_pool_indices(path, f"{device}, train", entry["train"], dataset.train))
            test.append(_pool_indices(path, f"{device}, test", test_entry, dataset.test))
        tests = "with test indices"
        if not any("test" in entry for entry in entries):
            test = deal_test_alike(dataset, train, streams)
            tests = "test samples follow the devices' labels"
        note(f"{str(path)!r}: training indices of {devices} devices by their numbers; {tests}")
        return federated(dataset, train, test)


def _read_entries(path: Path) -> list[dict[str, object]]:
    """Read a partition file, a JSON file that lists the samples of each device.

    Returns:
        For each device, in order of index, its entry as a dict with ``train`` and perhaps ``test``.

    Raises:
        DataError: the file is malformed, or its keys do not name the devices.
    """
    with reading(path, "data.partition.path", "JSON"):
        content = read_keyed_json(path)
    if not isinstance(content, dict):
        raise DataError(f"'{path}' is not an object of devices, such as {_EXAMPLE}")
    # key -> index of the device; or a text, the first key that names no device
    numbers = number_devices(content, len(content))
    if isinstance(numbers, str) or "" in content:
        wrong = numbers if isinstance(numbers, str) else ""
        raise DataError(f"'{path}' has the key {show_value(wrong)}; {naming_rule(len(content))}")
    return [
        _parse_entry(path, name, content[name]) for name in sorted(content, key=numbers.__getitem__)
    ]


def _parse_entry(path: Path, name: str, entry: object) -> dict[str, object]:
    """Return a device's entry in a partition file as a dict with ``train`` and perhaps ``test``.

    Args:
        path: the file, for error messages.
        name: name of the device, for error messages.
        entry: the entry; a list is the value of ``train``.

    Raises:
        DataError: the entry is neither a list, nor an object with ``train`` and at most ``test``.
    """
    parts = {"train": entry} if isinstance(entry, list) else entry
    if not isinstance(parts, dict) or "train" not in parts:
        raise DataError(
            f"'{path}': device {name} is neither a list nor an object of 'train' and 'test', "
            f"as in {_EXAMPLE}"
        )
    for part in parts:
        if part not in ("train", "test"):
            hint = nearest(part, ("train", "test"))
            raise DataError(
                f"'{path}': device {name} has {show_value(part)}, which nothing uses; known are "
                f"'train' and 'test'{hint}"
            )
    return parts


def _pool_indices(path: Path, label: str, entry: object, samples: Index) -> Index:
    """Convert a device's sample indices in a partition file to indices into the data set's pool.

    Args:
        path: the file, for error messages.
        label: text that names the device and ``train`` or ``test``, for error messages.
        entry: the list in the file, of indices into ``samples``.
        samples: indices into the pool of the training set, or of the test set.

    Raises:
        DataError: the entry is not a list of valid indices.
    """
    try:
        numbers: AnyArray = np.asarray(entry)
    except ValueError:  # nested lists of different lengths
        numbers = np.zeros((1, 1))  # rejected below, as it has two dimensions
    if numbers.size == 0:
        return samples[:0]
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise DataError(f"'{path}': device {label} is not a list of whole numbers")
    outside = numbers[(numbers < 0) | (numbers >= len(samples))]
    if len(outside):
        raise DataError(
            f"'{path}': device {label} has the index {outside[0]}; allowed are 0 to "
            f"{len(samples) - 1}"
        )
    return np.take(samples, numbers)


def _require_members(groups: int, devices: int) -> None:
    if devices < groups:
        raise ScenarioError(
            f"data.partition.groups is {groups}; with population.devices = {devices}, 1 to "
            f"{devices} are allowed"
        )


class LabelGroups(Partition):
    """The classes are divided among the groups of devices, so that no two groups share a class.

    Device d belongs to the true group d mod ``groups``, with which groups found by clustering are
    compared. With C classes, group g has the C/groups consecutive classes from g C/groups on. The
    devices of a group get random training samples of the group's classes. All devices get equally
    many training samples, and the remaining samples are unused. The test samples of a group's
    classes are divided evenly among the group's devices.

    Attributes:
        groups: number of groups, a divisor of the number of classes.
    """

    kind: Literal["label-groups"] = "label-groups"
    groups: int = Field(default=5, ge=1)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Give each group of devices the samples of a range of neighbouring classes.

        Device d is in group d % ``groups``. The devices of all groups get equally many training
        samples. The test samples of a group are divided evenly among its devices.
        """
        groups = self.groups
        self._require_divisor(dataset)
        _require_members(groups, devices)
        classes_per_group = dataset.pool.classes // groups
        y = dataset.pool.y
        group_train = gather(y[dataset.train] // classes_per_group, dataset.train, groups)
        group_test = gather(y[dataset.test] // classes_per_group, dataset.test, groups)
        fewest = min(map(len, group_train))
        require_devices(
            devices, groups * fewest, f"'{dataset.name}' has {fewest} training samples for a group"
        )
        members_of = [range(group, devices, groups) for group in range(groups)]
        # all devices get as many samples as a device of the scarcest group can get
        size = min(
            len(samples) // len(members)
            for samples, members in zip(group_train, members_of, strict=True)
        )
        train: dict[int, Index] = {}
        test: dict[int, Index] = {}
        for group, members in enumerate(members_of):
            mixed = streams.generator("world/data/train", group).permutation(group_train[group])
            train_parts = mixed[: size * len(members)].reshape(len(members), size)
            generator = streams.generator("world/data/test", group)
            test_parts = deal_evenly(group_test[group], len(members), generator)
            train.update(zip(members, train_parts, strict=True))
            test.update(zip(members, test_parts, strict=True))
        order = range(devices)
        return federated(
            dataset,
            [train[device] for device in order],
            [test[device] for device in order],
            truth=np.arange(devices) % groups,
        )

    def _require_divisor(self, dataset: Dataset) -> None:
        classes = dataset.pool.classes
        if classes % self.groups:
            divisors = [str(number) for number in range(1, classes + 1) if classes % number == 0]
            raise ScenarioError(
                f"data.partition.groups is {self.groups}; '{dataset.name}' has {classes} classes, "
                f"so {', '.join(divisors)} are allowed"
            )


class Permutations(Partition):
    """IID shards whose labels each group of devices permutes (Sattler et al. 2020, CFL).

    Device d belongs to the true group d mod ``groups``, with which groups found by clustering are
    compared. Each group has a random permutation of the labels. The first group has the published
    labels. Training and test labels are permuted alike. Every device is tested on the whole
    published test set.

    Attributes:
        groups: number of groups, each with another permutation.
        agree: largest count of labels that the permutations of any two groups may replace by the
            same label. Of C labels at most C - 2 can be replaced alike by different permutations,
            and larger numbers have the effect of C - 2.
    """

    instead: ClassVar[Former] = former_keys.PERMUTATIONS
    kind: Literal["permutations"] = "permutations"
    groups: int = Field(default=4, ge=1)
    agree: int = Field(default=2, ge=0)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Deal the training samples evenly, and give each group of devices a label permutation.

        Device d is of group d % ``groups``; group 0 keeps the labels. All devices share the test
        samples, with permuted labels too.
        """
        require_devices(
            devices,
            dataset.train_size,
            f"'{dataset.name}' has {dataset.train_size} training samples",
        )
        _require_members(self.groups, devices)
        maps = self._draw_maps(dataset.pool.classes, streams.generator("world/data/permutations"))
        train = deal_evenly(dataset.train, devices, streams.generator("world/data/train"))
        test = dataset.test  # shared by all devices
        truth = np.arange(devices) % self.groups
        shards = []
        for index, group in zip(train, truth, strict=True):
            label_map = maps[group] if group else None
            shards.append(Shard(index, test, label_map=label_map))
        return FederatedData(dataset.pool, shards, truth=truth)

    def _draw_maps(self, classes: int, generator: np.random.Generator) -> list[NDArray[np.int64]]:
        """Draw a permutation of the labels 0..C-1 for each group, int64 [C] each.

        The first permutation is the identity. Any two permutations agree on at most ``agree``
        labels.

        Raises:
            ScenarioError: not enough such permutations were found.
        """
        # permutations that agree on all labels but one are equal, so at most C - 2 labels can agree
        most_equal = min(self.agree, classes - 2)
        maps = [np.arange(classes)]
        for _ in range(_MOST_DRAWS + 1):  # the last pass can return what the last draw completed
            if len(maps) == self.groups:
                return maps
            candidate = generator.permutation(classes)
            if all(np.count_nonzero(candidate == label_map) <= most_equal for label_map in maps):
                maps.append(candidate)
        raise ScenarioError(
            f"data.partition.groups is {self.groups}; only {len(maps)} permutations of {classes} "
            f"labels that agree on at most {most_equal} were found: lower it, or raise "
            "data.partition.agree"
        )


class Rotations(Partition):
    """Images rotated by an angle that depends on the device (Ghosh 2020, IFCA).

    With k rotations, all images of device d are turned by rotation d mod k. This is the device's
    true group, with which groups found by clustering are compared. The devices of a rotation divide
    the complete data set evenly among them. Training samples are shuffled anew for each rotation;
    test samples stay in the order of the data set.

    Attributes:
        degrees: the k rotations, counter-clockwise, multiples of 90: four for MNIST, ``[0, 180]``
            for CIFAR-10.
        most_samples: largest count of training samples of a device, whose other samples are
            unused; None: no limit.
    """

    kind: Literal["rotations"] = "rotations"
    degrees: list[int] = Field(default=[0, 90, 180, 270], min_length=1)
    most_samples: int | None = Field(default=None, ge=1)

    @field_validator("degrees")
    @classmethod
    def _check_degrees(cls, degrees: list[int]) -> list[int]:
        are_allowed = set(degrees) <= {0, 90, 180, 270}
        if not are_allowed or len(set(degrees)) < len(degrees):
            raise ValueError(f"{degrees} are not different rotations out of 0, 90, 180 and 270")
        return degrees

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Deal all samples evenly among the devices of each rotation, and turn the images.

        Device d has the rotation ``degrees[d % len(degrees)]``; devices of different rotations may
        have the same samples.
        """
        shape = dataset.pool.shape
        size = dataset.train_size
        groups = len(self.degrees)
        turns_sideways = any(degrees % 180 for degrees in self.degrees)
        if len(shape) != 3 or (turns_sideways and shape[1] != shape[2]):
            why = (
                f"the samples of '{dataset.name}' have the shape {shape}, and only square images "
                "can be turned by 90 degrees"
            )
            raise ScenarioError(f"data.partition.kind is 'rotations'; {why}")
        if devices < groups:
            raise ScenarioError(
                f"population.devices is {devices}; {groups} rotations need at least {groups}"
            )
        require_devices(
            devices,
            groups * size,
            f"'{dataset.name}' has {size} training samples for each rotation",
        )
        shards: dict[int, Shard] = {}
        for group, degrees in enumerate(self.degrees):
            members = range(group, devices, groups)
            generator = streams.generator("world/data/train", group)
            train = deal_evenly(dataset.train, len(members), generator)
            test = np.array_split(dataset.test, len(members))
            for device, train_index, test_index in zip(members, train, test, strict=True):
                quarter_turns = degrees // 90
                used_train = train_index[: self.most_samples]
                shards[device] = Shard(used_train, test_index, quarter_turns)
        in_order = [shards[device] for device in range(devices)]
        return FederatedData(dataset.pool, in_order, truth=np.arange(devices) % groups)
