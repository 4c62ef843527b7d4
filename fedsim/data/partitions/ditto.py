"""Ditto's Fashion-MNIST: five neighbouring classes a device in lognormal proportions."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset, Normalise
from fedsim.data.federated import FederatedData, Index
from fedsim.data.partitions.base import Partition, federated, first_class, require_classes
from fedsim.streams import Streams


class Ditto(Partition):
    """Device u holds the classes u..u+4 (mod C) in lognormal(1, 1) proportions; sizes are lognormal(3, 1) + 10 (code of Ditto).

    Sizes are scaled to the number of training samples; each class gives int(p n) + 1 training and int(p n / r) + 1 test
    samples, r the published sets' ratio. A class that is used up starts again, so devices may share images, but a test image
    is never a training image. With Fashion-MNIST, 500 devices and the defaults: 61,251 + 11,254 samples, training sizes from
    31 to 1,378 with median 88, exactly as published. Devices with the same classes are a true group,
    which its first class names.

    Attributes:
        seed: of numpy's legacy generator, which the published split was drawn with: the split is then the same in every
            run. ``"run"`` follows the run's seed.
        classes_per_device: consecutive classes that a device holds.
    """

    kind: Literal["ditto"] = "ditto"
    usual_normalise: ClassVar[Normalise] = "standardise"

    seed: Annotated[int, Field(ge=0, lt=2**32)] | Literal["run"] = 233
    classes_per_device: int = Field(default=5, ge=1)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Neighbouring classes in lognormal proportions."""
        classes, slots = dataset.pool.classes, self.classes_per_device
        require_classes("classes_per_device", slots, classes, dataset.name)
        seed = streams.word("world/data/ditto") >> 32 if self.seed == "run" else self.seed
        # A generator of our own, of the one kind that gives the published split.
        legacy = np.random.RandomState(seed)
        sizes = legacy.lognormal(3.0, 1.0, devices) + 10.0
        sizes = dataset.train_size * sizes / sum(sizes)
        ratio = dataset.train_size / max(1, len(dataset.test))
        train_pile, test_pile = _Pile(dataset.by_class(dataset.train)), _Pile(dataset.by_class(dataset.test))
        train, test = [], []
        for device in range(devices):
            shares = legacy.lognormal(1.0, 1.0, slots)
            amounts = shares / sum(shares) * sizes[device]
            labels = [(device + slot) % classes for slot in range(slots)]
            train.append(train_pile.take(labels, amounts.astype(np.int64) + 1))
            test.append(test_pile.take(labels, (amounts / ratio).astype(np.int64) + 1))
        return federated(dataset, train, test, first_class(devices, slots, classes))


class _Pile:
    """The samples of each class, taken from the front; a class that cannot give as many starts again."""

    def __init__(self, parts: list[Index]) -> None:
        self._parts = parts
        self._taken = np.zeros(len(parts), dtype=np.int64)

    def take(self, labels: list[int], amounts: NDArray[np.int64]) -> Index:
        pieces = []
        for label, amount in zip(labels, amounts, strict=True):
            part = self._parts[label]
            if self._taken[label] + amount > len(part):
                self._taken[label] = 0
            pieces.append(part[self._taken[label] : self._taken[label] + amount])
            self._taken[label] += amount
        return np.concatenate(pieces)
