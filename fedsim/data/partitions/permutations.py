"""Groups of devices that name the same things differently: CFL's conflicting labels."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData, Shard
from fedsim.data.partitions.base import Partition, deal_evenly, require_devices
from fedsim.errors import ScenarioError
from fedsim.streams import Streams

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
        if devices < self.groups:
            raise ScenarioError(
                f"data.partition.groups is {self.groups}; with population.devices = {devices}, 1 to {devices} are allowed"
            )
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
