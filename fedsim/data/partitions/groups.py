"""Partitions with a true grouping: by labels, by how labels are permuted, or by how images are turned."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData, Index, Shard
from fedsim.data.partitions.base import Partition, deal_evenly, federated, gather, require_devices
from fedsim.errors import ScenarioError
from fedsim.streams import Streams


def _require_members(groups: int, devices: int) -> None:
    if devices < groups:
        raise ScenarioError(
            f"data.partition.groups is {groups}; with population.devices = {devices}, 1 to {devices} are allowed"
        )


class LabelGroups(Partition):
    """Each group of devices has its own classes: the clearest grouping that label skew can give.

    Device d belongs to group d mod ``groups``, which is its true group. Group g has the classes g C/groups up to the next
    group's. Within a group the training samples are dealt at random, to all devices equally many: what the group with the
    fewest samples for a device allows; the few left over are unused. Published test samples are dealt evenly, each to a
    device whose group has its class.

    Attributes:
        groups: number of groups; divides the number of classes.
    """

    kind: Literal["label-groups"] = "label-groups"
    groups: int = Field(default=5, ge=1)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Equal parts of the samples of each group's classes."""
        self._require_fit(dataset, devices)
        members = [len(range(group, devices, self.groups)) for group in range(self.groups)]
        held, tested = self._of_groups(dataset, dataset.train), self._of_groups(dataset, dataset.test)
        size = min(len(samples) // count for samples, count in zip(held, members, strict=True))
        train = [
            streams.generator("world/data/train", group).permutation(held[group])[: size * count].reshape(count, size)
            for group, count in enumerate(members)
        ]
        test = [
            deal_evenly(tested[group], count, streams.generator("world/data/test", group))
            for group, count in enumerate(members)
        ]
        place = [divmod(device, self.groups) for device in range(devices)]
        return federated(
            dataset,
            [train[group][position] for position, group in place],
            [test[group][position] for position, group in place],
            truth=np.arange(devices) % self.groups,
        )

    def _of_groups(self, dataset: Dataset, index: Index) -> list[Index]:
        """The samples of each group's classes."""
        group = dataset.pool.y[index] // (dataset.pool.classes // self.groups)
        return gather(group, index, self.groups)

    def _require_fit(self, dataset: Dataset, devices: int) -> None:
        groups, classes = self.groups, dataset.pool.classes
        if classes % groups:
            allowed = ", ".join(str(number) for number in range(1, classes + 1) if classes % number == 0)
            raise ScenarioError(
                f"data.partition.groups is {groups}; '{dataset.name}' has {classes} classes, so {allowed} are allowed"
            )
        _require_members(groups, devices)
        fewest = min(map(len, self._of_groups(dataset, dataset.train)))
        require_devices(devices, groups * fewest, f"'{dataset.name}' has {fewest} training samples for a group")


_TRIES = 10_000


class Permutations(Partition):
    """IID shards whose labels each group of devices permutes in its own way (Sattler et al. 2020, CFL).

    Device d belongs to group d mod ``groups``, which is its true group. The first group keeps the published labels. The
    permutation holds for training and test labels alike.

    Attributes:
        groups: number of permutations.
        agree: labels on which two permutations agree at most; two never agree on all.
        test: ``whole``: every device is tested on the whole published test set; ``share``: on its even share of it.
    """

    kind: Literal["permutations"] = "permutations"
    groups: int = Field(default=4, ge=1)
    agree: int = Field(default=2, ge=0)
    test: Literal["whole", "share"] = "whole"

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Even shards with permuted labels."""
        require_devices(devices, dataset.train_size, f"'{dataset.name}' has {dataset.train_size} training samples")
        _require_members(self.groups, devices)
        maps = self.draw(dataset.pool.classes, streams.generator("world/data/permutations"))
        train = deal_evenly(dataset.train, devices, streams.generator("world/data/train"))
        if self.test == "whole":
            test = [dataset.test] * devices  # one array for all
        else:
            test = deal_evenly(dataset.test, devices, streams.generator("world/data/test"))
        truth = np.arange(devices) % self.groups
        shards = [
            Shard(mine, tested, label_map=maps[group] if group else None)
            for mine, tested, group in zip(train, test, truth, strict=True)
        ]
        return FederatedData(dataset.pool, shards, truth=truth)

    def draw(self, classes: int, generator: np.random.Generator) -> list[NDArray[np.int64]]:
        """Permutations of 0..C-1, int64 [C] each, the first of them the identity.

        Raises:
            ScenarioError: so many that agree so little were not found.
        """
        agree = min(self.agree, classes - 2)  # C - 1 is impossible, and C would be the same permutation twice
        found = [np.arange(classes)]
        for _ in range(_TRIES):
            if len(found) == self.groups:
                break
            candidate = generator.permutation(classes)
            if all(np.count_nonzero(candidate == other) <= agree for other in found):
                found.append(candidate)
        if len(found) < self.groups:
            raise ScenarioError(
                f"data.partition.groups is {self.groups}; only {len(found)} permutations of {classes} labels that agree on at "
                f"most {agree} were found: lower it, or raise data.partition.agree"
            )
        return found


class Rotations(Partition):
    """Each rotation has the complete training and test sets, shared out among its own devices (Ghosh et al. 2020, IFCA).

    Device d belongs to rotation d mod k, which is its true group. Training samples are shuffled again for each rotation and
    dealt evenly among its devices; test samples are dealt in order.

    Attributes:
        degrees: the k rotations, counter-clockwise, multiples of 90: four for MNIST, ``[0, 180]`` for CIFAR-10.
        most_samples: training samples of a device, of its even share, at most: as many as in a publication with more devices.
    """

    kind: Literal["rotations"] = "rotations"
    degrees: list[int] = Field(default=[0, 90, 180, 270], min_length=1)
    most_samples: int | None = Field(default=None, ge=1)

    @field_validator("degrees")
    @classmethod
    def _quarter_turns(cls, degrees: list[int]) -> list[int]:
        if any(turn not in (0, 90, 180, 270) for turn in degrees) or len(set(degrees)) < len(degrees):
            raise ValueError(f"{degrees} are not different rotations out of 0, 90, 180 and 270")
        return degrees

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """The whole data set once for each rotation."""
        self._require_images(dataset)
        groups = len(self.degrees)
        if devices < groups:
            raise ScenarioError(f"population.devices is {devices}; {groups} rotations need at least {groups}")
        require_devices(
            devices,
            groups * dataset.train_size,
            f"'{dataset.name}' has {dataset.train_size} training samples for each rotation",
        )
        truth = np.arange(devices) % groups
        shards: dict[int, Shard] = {}
        for group, degrees in enumerate(self.degrees):
            members = np.flatnonzero(truth == group)
            train = deal_evenly(dataset.train, len(members), streams.generator("world/data/train", group))
            test = np.array_split(dataset.test, len(members))
            for member, mine, tested in zip(members, train, test, strict=True):
                shards[int(member)] = Shard(mine[: self.most_samples], tested, quarter_turns=degrees // 90)
        return FederatedData(dataset.pool, [shards[device] for device in range(devices)], truth=truth)

    def _require_images(self, dataset: Dataset) -> None:
        shape = dataset.pool.shape
        sideways = any(degrees % 180 for degrees in self.degrees)
        if len(shape) != 3 or (sideways and shape[1] != shape[2]):
            raise ScenarioError(
                f"data.partition.kind is 'rotations'; the samples of '{dataset.name}' have the shape {shape}, and only "
                "square images can be turned (oblong ones by 180 degrees)"
            )
