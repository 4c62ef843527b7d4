"""IFCA's rotated images: groups of devices that see the same pictures turned differently."""

from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData, Shard
from fedsim.data.partitions.base import Partition, deal_evenly, require_devices
from fedsim.errors import ScenarioError
from fedsim.streams import Streams


class Rotations(Partition):
    """Each rotation has the complete training and test sets, shared out among its own devices (Ghosh et al. 2020, IFCA).

    Device d belongs to rotation d mod k, which is its true group. Training samples are shuffled again for each rotation and
    dealt evenly among its devices; test samples are dealt in order.

    Attributes:
        degrees: the k rotations, counter-clockwise, multiples of 90: four for MNIST, ``[0, 180]`` for CIFAR-10.
    """

    kind: Literal["rotations"] = "rotations"
    degrees: list[int] = Field(default=[0, 90, 180, 270], min_length=1)

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
                shards[int(member)] = Shard(mine, tested, quarter_turns=degrees // 90)
        return FederatedData(dataset.pool, [shards[device] for device in range(devices)], truth=truth)

    def _require_images(self, dataset: Dataset) -> None:
        shape = dataset.pool.shape
        sideways = any(degrees % 180 for degrees in self.degrees)
        if len(shape) != 3 or (sideways and shape[1] != shape[2]):
            raise ScenarioError(
                f"data.partition.kind is 'rotations'; the samples of '{dataset.name}' have the shape {shape}, and only "
                "square images can be turned (oblong ones by 180 degrees)"
            )
