"""FedProx's FEMNIST: three neighbouring classes a device, lognormal sizes."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData, Index
from fedsim.data.partitions.base import Partition, first_class, hold_out_tenths, require_classes
from fedsim.errors import ScenarioError
from fedsim.streams import Streams

_LEAST_PER_CLASS = 2


class Femnist(Partition):
    """Device u holds equal amounts of the classes u, u+1, u+2 (mod C); its size is lognormal(4, 1) + 5 (code of FedProx).

    Samples come from the training set, at most ``per_class`` of each class; a tenth of each device's is held back for
    testing. With the ten letters a-j of EMNIST and 200 devices this is the papers' FEMNIST; any other source gets the same
    label skew. Devices with the same classes are a true group, which its first class names.

    Attributes:
        overlap: as published, where an inverted test makes every device take the *first* images of a class: devices share
            most images, and the test images of one are training images of others. The published accuracies need it. False
            gives each image to one device.
        classes_per_device: consecutive classes that a device holds.
        per_class: images of each class that are used, a random choice.
    """

    kind: Literal["femnist"] = "femnist"
    overlap: bool = True
    classes_per_device: int = Field(default=3, ge=1)
    per_class: int = Field(default=4000, ge=_LEAST_PER_CLASS)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Neighbouring classes in lognormal sizes."""
        classes = dataset.pool.classes
        require_classes("classes_per_device", self.classes_per_device, classes, dataset.name)
        order = streams.generator("world/data/train")
        parts = [order.permutation(part)[: self.per_class] for part in dataset.by_class(dataset.train)]
        sizes = streams.generator("world/data/sizes").lognormal(4.0, 1.0, devices) + 5.0
        taken = np.zeros(classes, dtype=np.int64)
        held = []
        for device, size in enumerate(sizes):
            amount = max(_LEAST_PER_CLASS, int(size / self.classes_per_device))
            labels = [(device + slot) % classes for slot in range(self.classes_per_device)]
            held.append(np.concatenate([self._take(parts[label], taken, label, amount) for label in labels]))
            self._require_some(dataset.name, devices, device, held[-1])
        return hold_out_tenths(dataset, held, streams, first_class(devices, self.classes_per_device, classes))

    def _take(self, part: Index, taken: NDArray[np.int64], label: int, amount: int) -> Index:
        """The next ``amount`` samples of a class, or as many as are left."""
        start = 0 if self.overlap else taken[label]
        taken[label] += amount
        return part[start : start + amount]

    def _require_some(self, name: str, devices: int, device: int, mine: Index) -> None:
        if len(mine) < _LEAST_PER_CLASS:
            raise ScenarioError(
                f"population.devices is {devices}; '{name}' has too few samples for so many with data.partition.kind "
                f"'femnist': the classes of device {device} are used up. Allowed are fewer devices, "
                "a larger data.partition.per_class, or data.partition.overlap = true"
            )
