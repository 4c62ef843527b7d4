"""The populations of CCS + RFedAvg: a majority class on each device, and classes that are globally imbalanced."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData
from fedsim.data.partitions.base import Partition, deal_evenly, federated, gather, require_classes
from fedsim.errors import ScenarioError
from fedsim.streams import Streams


class ClassImbalance(Partition):
    """Each device's majority class lies near the middle class, so that middle classes dominate globally (Wang et al., CCS).

    The majority class, counted from 1, is Normal(``mean``, ``variance``) rounded, redrawn outside 1..C. B whole numbers
    uniform in 0..``largest`` are drawn and redrawn while all are 0; the largest is the amount of the majority class, the
    others go to random other classes. A training image is on two devices only where its class is used up (MNIST nearly
    suffices for B = 10). The published (balanced) test set is dealt evenly. With one class a device, the devices of a class
    are a true group.

    Attributes:
        classes_per_device: B, the number of classes that a device may hold (10, 5, 2, 1 in the paper).
        mean, variance: of the majority class's number, counted from 1.
        largest: the most samples that a device can hold of one class.
    """

    kind: Literal["class-imbalance"] = "class-imbalance"
    classes_per_device: int = Field(default=2, ge=1)
    mean: float = 5.0
    variance: float = Field(default=10.0, gt=0.0, le=1e6)
    largest: int = Field(default=100, ge=1, le=1_000_000_000)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Training samples by majority class, test samples evenly."""
        classes = dataset.pool.classes
        require_classes("classes_per_device", self.classes_per_device, classes, dataset.name)
        majority = self._majority_chances(classes)
        counts = np.array([self._counts(majority, streams.generator("world/data/sizes", device)) for device in range(devices)])
        generator = streams.generator("world/data/train")
        parts = [generator.permutation(part) for part in dataset.by_class(dataset.train)]
        self._require_distinct(dataset.name, counts.max(axis=0), np.array([len(part) for part in parts]))
        owner = np.concatenate([np.repeat(np.arange(devices), counts[:, label]) for label in range(classes)])
        index = np.concatenate([np.resize(part, total) for part, total in zip(parts, counts.sum(axis=0), strict=True)])
        test = deal_evenly(dataset.test, devices, streams.generator("world/data/test"))
        truth = counts.argmax(axis=1) if self.classes_per_device == 1 else None
        return federated(dataset, gather(owner, index, devices), test, truth)

    def _majority_chances(self, classes: int) -> NDArray[np.float64]:
        """The chance of each class to be a device's majority: of the rounded normal, given that it lies in 1..C."""
        if not 0.5 <= self.mean <= classes + 0.5:
            raise ScenarioError(f"data.partition.mean is {self.mean}; allowed is a class number from 1 to {classes}")
        edges = (np.arange(classes + 1) + 0.5 - self.mean) / math.sqrt(2.0 * self.variance)
        chances: NDArray[np.float64] = np.diff([math.erf(edge) for edge in edges])
        return np.asarray(chances / chances.sum(), dtype=np.float64)

    def _counts(self, majority: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.int64]:
        """One device's training samples of each class, int64 [C]."""
        classes = len(majority)
        chosen = generator.choice(classes, p=majority)
        others = generator.choice(np.delete(np.arange(classes), chosen), self.classes_per_device - 1, replace=False)
        amounts: NDArray[np.int64] = np.zeros(self.classes_per_device, dtype=np.int64)
        while not amounts.any():
            amounts = generator.integers(0, self.largest, self.classes_per_device, endpoint=True)
        most = int(amounts.argmax())
        amounts[0], amounts[most] = amounts[most], amounts[0]
        counts = np.zeros(classes, dtype=np.int64)
        counts[chosen] = amounts[0]
        counts[others] = amounts[1:]
        return counts

    def _require_distinct(self, name: str, asked: NDArray[np.int64], there: NDArray[np.int64]) -> None:
        lacking = np.flatnonzero(asked > there)
        if len(lacking):
            label = int(lacking[0])
            raise ScenarioError(
                f"data.partition.largest is {self.largest}; '{name}' has {there[label]} training samples of class {label}, "
                f"so 1 to {there.min()} are allowed"
            )
