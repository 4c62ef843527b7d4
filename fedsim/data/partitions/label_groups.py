"""Groups of devices that have no class in common."""

from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData, Index
from fedsim.data.partitions.base import Partition, deal_evenly, federated, gather, require_devices
from fedsim.errors import ScenarioError
from fedsim.streams import Streams


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
        if devices < groups:
            raise ScenarioError(
                f"data.partition.groups is {groups}; with population.devices = {devices}, 1 to {devices} are allowed"
            )
        fewest = min(map(len, self._of_groups(dataset, dataset.train)))
        require_devices(devices, groups * fewest, f"'{dataset.name}' has {fewest} training samples for a group")
