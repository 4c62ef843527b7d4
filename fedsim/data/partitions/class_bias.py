"""CATA-Fed's populations: a few classes make most of a device's data, and images are reused, each time distorted again."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData, Index
from fedsim.data.partitions.base import Partition, deal_test_alike, federated, require_classes
from fedsim.errors import ScenarioError
from fedsim.language.sizes import Sizes, UniformSizes
from fedsim.streams import Streams

_MOST_SAMPLES = 100_000_000  # places of a sample in an index


class ClassBias(Partition):
    """A share of each device's data is of a few random classes, the rest of all the others (Jeong and Kim 2022, CATA-Fed).

    Images are drawn from the first ``per_class`` training images of each class: within a device without repetition while
    they last, among devices with. So each device distorts its images in its own way (``data.augmentation``). Test samples
    are the published ones, each on one device, following the devices' labels. With one class a device, the devices of a
    class are a true group.

    Attributes:
        classes_per_device: H, the number of classes that make the larger part; all of them gives IID data.
        share: the larger part, in equal amounts of the H classes; the rest is random among the other classes.
        sizes: training samples of the devices: ``uniform`` (100 to 3,000) or ``long-tail``.
        per_class: training images of each class that are used.
    """

    kind: Literal["class-bias"] = "class-bias"
    usually_augmented: ClassVar[bool] = True

    classes_per_device: int = Field(default=1, ge=1)
    share: float = Field(default=0.9, gt=0.0, le=1.0)
    sizes: Sizes = UniformSizes()
    per_class: int = Field(default=5000, ge=1)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Biased draws from the training images."""
        require_classes("classes_per_device", self.classes_per_device, dataset.pool.classes, dataset.name)
        parts = [part[: self.per_class] for part in dataset.by_class(dataset.train)]
        empty = next((label for label, part in enumerate(parts) if not len(part)), None)
        if empty is not None:
            raise ScenarioError(
                f"data.partition.kind is 'class-bias'; '{dataset.name}' has no training sample of class {empty}"
            )
        sizes = self.sizes.draw(devices, streams.generator("world/data/sizes"))
        if sizes.sum() > _MOST_SAMPLES:
            raise ScenarioError(
                f"data.partition.sizes gives {devices} devices {sizes.sum()} training samples; allowed are at most "
                f"{_MOST_SAMPLES} in all"
            )
        train, first = [], []
        for device, size in enumerate(sizes.tolist()):
            generator = streams.generator("world/data/train", device)
            order = generator.permutation(len(parts))
            train.append(self._draw(parts, order, size, generator))
            first.append(order[0])
        truth = np.array(first) if self.classes_per_device == 1 else None
        return federated(dataset, train, deal_test_alike(dataset, train, streams), truth)

    def _draw(self, parts: list[Index], order: NDArray[np.int64], size: int, generator: np.random.Generator) -> Index:
        """One device's training samples; the first classes in ``order`` make the larger part."""
        biased, others = order[: self.classes_per_device], order[self.classes_per_device :]
        major = round(self.share * size) if len(others) else size
        counts = np.zeros(len(parts), dtype=np.int64)
        counts[biased] = [len(chunk) for chunk in np.array_split(np.arange(major), len(biased))]
        if len(others):
            counts[others] = generator.multinomial(size - major, np.full(len(others), 1.0 / len(others)))
        drawn = [
            part[generator.choice(len(part), count, replace=bool(count > len(part)))]
            for part, count in zip(parts, counts, strict=True)
            if count
        ]
        return np.concatenate(drawn)
