"""Partitions: the base of all, the ways of dealing samples that several of them share, and the
registry.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Dataset, FederatedData, Index, Normalise, Shard


class Partition(Spec):
    """A recipe that says which device holds which samples."""

    kind: str
    usual_normalise: ClassVar[Normalise] = "pixel"
    """The ``data.normalise`` of a scenario that names none: ``pixel``, ``standardise`` or
    ``none``.
    """

    usually_augmented: ClassVar[bool] = False
    """Whether training images are distorted if the scenario does not say."""

    pools_test: ClassVar[bool] = False
    """Whether devices draw from training and test samples alike; each holds back a tenth of its
    own.
    """

    @abstractmethod
    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Deal the samples to devices.

        Args:
            dataset: all samples, and which of them are for training; ``dataset.by_class`` sorts
                indices by label.
            devices: number of devices.
            streams: random numbers; by the purpose ``world/data/NAME`` they are the same for
                every strategy.

        Returns:
            The shards of all devices, such as ``federated`` makes them of pool indices.

        Raises:
            ScenarioError: it cannot be done, for a device without a sample, say.
        """

    def under(self, root: Path | None) -> Self:
        """The same recipe with any file that it names sought under ``root``."""
        return self


def federated(
    dataset: Dataset, train: Sequence[Index], test: Sequence[Index], truth: Ints | None = None
) -> FederatedData:
    """Plain shards: device d trains on ``train[d]`` (one sample at least), is tested on
    ``test[d]``, of group ``truth[d]``.
    """
    empty = next((device for device, mine in enumerate(train) if not len(mine)), None)
    if empty is not None:
        raise ScenarioError(
            f"population.devices is {len(train)}; with this data.partition device {empty} gets "
            "no training samples of "
            f"'{dataset.name}', and each device needs one at least"
        )
    return FederatedData(
        dataset.pool,
        [Shard(mine, tested) for mine, tested in zip(train, test, strict=True)],
        truth=truth,
    )


def require_devices(devices: int, most: int, why: str) -> None:
    """Refuse more devices than the data can serve."""
    if devices > most:
        raise ScenarioError(
            f"population.devices is {devices}; {why}, so at most {max(most, 0)} are allowed"
        )


def require_classes(count: int, dataset: Dataset) -> None:
    """Refuse to give each device ``count`` classes if there are fewer."""
    if count > (most := dataset.pool.classes):
        held = f"data.partition gives a device {count} classes (classes_per_device)"
        raise ScenarioError(
            f"{held}; '{dataset.name}' has {most} classes, so 1 to {most} are allowed"
        )


def deal_evenly(index: Index, devices: int, generator: np.random.Generator) -> list[Index]:
    """``index`` shuffled and cut into parts whose sizes differ by at most one, one a device."""
    return np.array_split(generator.permutation(index), devices)


def gather(owner: Ints, index: Index, devices: int) -> list[Index]:
    """The entries of ``index`` that each device owns, in their order.

    ``owner`` is [n], of 0..devices-1.
    """
    order = np.argsort(owner, kind="stable")
    return np.split(index[order], np.bincount(owner, minlength=devices).cumsum()[:-1])


def hold_out_tenths(
    dataset: Dataset, held: Sequence[Index], streams: Streams, truth: Ints | None = None
) -> FederatedData:
    """Shards whose samples are shuffled and cut into floor(0.9 n) for training and the rest for
    testing (FedProx).
    """
    shuffled = [
        streams.generator("world/data/hold-out", device).permutation(index)
        for device, index in enumerate(held)
    ]
    train, test = zip(*(np.split(index, [len(index) * 9 // 10]) for index in shuffled), strict=True)
    return federated(dataset, train, test, truth)


def deal_test_alike(dataset: Dataset, train: Sequence[Index], streams: Streams) -> list[Index]:
    """Deal each published test sample to one device, in proportion to the devices' training
    samples of its class.

    Classes on which nobody trains are left out. With fewer test samples than devices some
    devices get none.
    """
    devices = len(train)
    parts = dataset.by_class(dataset.test)
    held = np.array([np.bincount(dataset.pool.y[index], minlength=len(parts)) for index in train])
    given = _proportional(held, np.array([len(part) for part in parts]))
    generator = streams.generator("world/data/test")
    dealt = [
        generator.permutation(part)[: own.sum()] for own, part in zip(given.T, parts, strict=True)
    ]
    owner = np.concatenate([np.repeat(np.arange(devices), own) for own in given.T])
    return gather(owner, np.concatenate(dealt), devices)


def _proportional(held: Ints, available: Ints) -> Ints:
    """Whole numbers [devices, C] in proportion to ``held`` within each class; each column sums
    to ``available`` [C].

    The remainder of a class goes to the devices rounded down most so far, so that totals are in
    proportion too.
    """
    given = np.zeros_like(held)
    owed = np.zeros(len(held))
    for label in np.flatnonzero(held.sum(axis=0)):
        expected = available[label] * held[:, label] / held[:, label].sum()
        given[:, label] = np.floor(expected)
        owed += expected - given[:, label]
        left = int(available[label] - given[:, label].sum())
        most_owed = np.argsort(np.where(held[:, label] > 0, -owed, np.inf), kind="stable")[:left]
        given[most_owed, label] += 1
        owed[most_owed] -= 1.0
    return given


class Iid(Partition):
    """Training and test samples are shuffled and dealt evenly: sizes differ by at most one,
    labels by chance only.
    """

    kind: Literal["iid"] = "iid"

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        require_devices(
            devices,
            dataset.train_size,
            f"'{dataset.name}' has {dataset.train_size} training samples",
        )
        train = deal_evenly(dataset.train, devices, streams.generator("world/data/train"))
        return federated(
            dataset, train, deal_evenly(dataset.test, devices, streams.generator("world/data/test"))
        )


class SyntheticSizes(Partition):
    """int(lognormal(``log_mean``, ``log_std``)) + ``least`` samples of the source ``synthetic``
    a device, a tenth for testing.

    Source: code of FedProx.
    """

    kind: Literal["synthetic"] = "synthetic"
    usual_normalise: ClassVar[Normalise] = "none"

    log_mean: float = Field(default=4.0, ge=0.0, le=10.0)
    log_std: float = Field(default=2.0, ge=0.0, le=3.0)
    least: int = Field(default=50, ge=2, le=1_000_000_000)

    def sizes(self, devices: int, streams: Streams) -> Ints:
        """Samples of each device, int64 [devices]."""
        draws = streams.generator("world/data/sizes").lognormal(
            self.log_mean, self.log_std, devices
        )
        return draws.astype(np.int64) + self.least

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        return hold_out_tenths(
            dataset, np.split(dataset.all, self.sizes(devices, streams).cumsum()[:-1]), streams
        )


_TOOLS = "fedsim.toolbox.partitions"
_OTHERS = {
    "by-label": (
        f"{_TOOLS}.plain:ByLabel",
        "each label's samples stay together: the natural partition of a column",
    ),
    "shards": (
        f"{_TOOLS}.plain:Shards",
        "samples sorted by class in even shards (McMahan et al. 2017, non-IID)",
    ),
    "dirichlet": (
        f"{_TOOLS}.plain:Dirichlet",
        "shares of each class by a Dirichlet law (Yurochkin et al. 2019)",
    ),
    "power-law": (
        f"{_TOOLS}.published:PowerLaw",
        "a few classes, lognormal amounts (Li et al. 2020; code of FedProx)",
    ),
    "femnist": (
        f"{_TOOLS}.published:Femnist",
        "three neighbouring classes, lognormal sizes (code of FedProx)",
    ),
    "ditto": (
        f"{_TOOLS}.published:DittoPartition",
        "five neighbouring classes, lognormal sizes (code of Ditto)",
    ),
    "class-bias": (
        f"{_TOOLS}.published:ClassBias",
        "a share is of a few random classes (Jeong and Kim 2022, CATA-Fed)",
    ),
    "class-imbalance": (
        f"{_TOOLS}.published:ClassImbalance",
        "middle classes dominate (Wang et al., CCS)",
    ),
    "label-groups": (f"{_TOOLS}.plain:LabelGroups", "each group of devices has its own classes"),
    "rotations": (
        f"{_TOOLS}.plain:Rotations",
        "groups rotate all data, each its way (Ghosh et al. 2020, IFCA)",
    ),
    "permutations": (
        f"{_TOOLS}.plain:Permutations",
        "IID, but groups permute the labels (Sattler et al. 2020, CFL)",
    ),
    "file": (f"{_TOOLS}.plain:PartitionFile", "as a file describes"),
}
_HERE = Registry.of("partition", Iid, SyntheticSizes)
PARTITIONS = Registry(
    "partition", "fedsim.learning.data.partitions:Partition", {**_HERE.known, **_OTHERS}
)
PartitionSpec = Annotated[Partition, PARTITIONS]
