"""Base class and registry of partitions, and functions that deal samples to devices."""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import returns
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Dataset, FederatedData, Index, Normalize, Shard
from fedsim.learning.data.mistakes import find_wrong_split

_SHARDS = "a FederatedData with the shard of each device, such as 'federated' makes it"


class Partition(Spec):
    """Base of the rules that divide the samples of a data set among the devices.

    A scenario chooses a rule as ``data.partition``. A subclass implements ``split``.

    Example:
        >>> import numpy as np
        >>> from fedsim.plugin import Dataset, Partition, Pool, Streams, federated
        >>> class Blocks(Partition):
        ...     kind: str = "mine:Blocks"
        ...     def split(self, dataset, devices, streams):
        ...         train = np.array_split(dataset.train, devices)
        ...         test = np.array_split(dataset.test, devices)
        ...         return federated(dataset, train, test)
        >>> pool = Pool(np.zeros((9, 2), dtype=np.float32), np.zeros(9, dtype=np.int64), classes=1)
        >>> data = Blocks().split(Dataset("points", pool, train_size=6), 3, Streams(seed=1))
        >>> [shard.train.tolist() for shard in data.shards]
        [[0, 1], [2, 3], [4, 5]]
    """

    kind: str
    usual_normalize: ClassVar[Normalize] = "pixel"
    """Default of ``data.normalize``: ``pixel``, ``standardize`` or ``none``."""

    usually_augmented: ClassVar[bool] = False
    """Default of ``data.augmentation``: whether training images are distorted."""

    pools_test: ClassVar[bool] = False
    """Whether published training and test samples are divided together among the devices.

    Each device then tests on a tenth of its samples.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **options: object) -> None:
        """Accept the attribute ``usual_normalise`` in a subclass, with a warning.

        It is the former name of ``usual_normalize``.
        """
        super().__pydantic_init_subclass__(**options)
        former = vars(cls).get("usual_normalise")
        if former is None:
            return
        message = f"{cls.__name__}.usual_normalise is called usual_normalize now"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        cls.usual_normalize = "standardize" if former == "standardise" else former

    @abstractmethod
    @returns(_SHARDS, find_wrong_split, allowed_draws="streams.generator('world/data/NAME')")
    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Divide the samples among devices.

        Args:
            dataset: all samples, divided into training and test samples; ``dataset.by_class``
                splits indices by label.
            devices: count of devices.
            streams: random streams of the run; a stream named ``world/data/NAME`` gives equal
                draws with all strategies.

        Returns:
            The data of all devices, which ``federated`` makes from indices of samples.

        Raises:
            ScenarioError: the partition is not possible, for example a device would get no samples.
        """

    def under(self, root: Path | None) -> Self:
        """Return the partition with its relative paths of files, if any, looked up from a folder.

        By default there are no files, and the partition itself is returned.

        Args:
            root: the folder, ``data.root``; None for the working directory or ``$FEDSIM_DATA``.
        """
        return self


def federated(
    dataset: Dataset, train: Sequence[Index], test: Sequence[Index], truth: Ints | None = None
) -> FederatedData:
    """Build the data of all devices from the indices of the samples that each device gets.

    Args:
        dataset: all samples.
        train: indices in ``dataset.pool`` of each device's training samples, int32 [n] each; n is
            at least 1.
        test: indices in ``dataset.pool`` of each device's test samples, int32 [m] each.
        truth: group of devices with similar data to which each device belongs, int64 [devices];
            None if there are no such groups.

    Raises:
        ScenarioError: a device has no training samples.

    Example:
        >>> import numpy as np
        >>> from fedsim.plugin import Dataset, Pool, federated
        >>> x = np.zeros((6, 2), dtype=np.float32)
        >>> pool = Pool(x, np.array([0, 1, 0, 1, 0, 1]), classes=2)
        >>> dataset = Dataset("points", pool, train_size=4)
        >>> data = federated(dataset, np.split(dataset.train, 2), np.split(dataset.test, 2))
        >>> data.train_labels(data.current(1)).tolist()
        [0, 1]
    """
    shards = []
    for device, (device_train, device_test) in enumerate(zip(train, test, strict=True)):
        if not len(device_train):
            raise ScenarioError(
                f"population.devices is {len(train)}; with this data.partition device {device} "
                "gets no training samples of "
                f"'{dataset.name}', and each device needs one at least"
            )
        shards.append(Shard(device_train, device_test))
    return FederatedData(dataset.pool, shards, truth=truth)


def require_devices(devices: int, most: int, why: str) -> None:
    """Raise ``ScenarioError`` if a run has more devices than a partition can serve.

    Args:
        devices: count of devices.
        most: greatest count of devices that is allowed.
        why: the reason for the limit, for the error message.

    Raises:
        ScenarioError: there are more than ``most`` devices.
    """
    if devices > most:
        raise ScenarioError(
            f"population.devices is {devices}; {why}, so at most {max(most, 0)} are allowed"
        )


def require_classes(count: int, dataset: Dataset) -> None:
    """Raise ``ScenarioError`` if a data set has fewer classes than each device should hold.

    Args:
        count: count of classes of a device.
        dataset: the data set.

    Raises:
        ScenarioError: the data set has fewer than ``count`` classes.
    """
    most = dataset.pool.classes
    if count > most:
        raise ScenarioError(
            f"data.partition gives a device {count} classes (classes_per_device); "
            f"'{dataset.name}' has {most} classes, so 1 to {most} are allowed"
        )


def deal_evenly(index: Index, devices: int, generator: np.random.Generator) -> list[Index]:
    """Divide samples among devices at random, in parts whose sizes differ by at most one.

    Args:
        index: indices of the samples, int32 [n].
        devices: count of devices.
        generator: source of the random permutation.

    Returns:
        The indices of each device's samples.
    """
    return np.array_split(generator.permutation(index), devices)


def gather(owner: Ints, index: Index, devices: int) -> list[Index]:
    """Split indices of samples by the device that owns each sample; the order is kept.

    Args:
        owner: device of each index, int64 [n].
        index: indices of the samples, int32 [n].
        devices: count of devices.

    Returns:
        The indices of each device's samples.
    """
    by_owner = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=devices)
    ends = counts.cumsum()
    return np.split(index[by_owner], ends[:-1])


def hold_out_tenths(
    dataset: Dataset, held: Sequence[Index], streams: Streams, truth: Ints | None = None
) -> FederatedData:
    """Build the data of all devices, with a tenth of each device's samples for tests (FedProx).

    Each device's samples are shuffled; floor(0.9 n) are for training, the remaining for testing.

    Args:
        dataset: all samples.
        held: indices in ``dataset.pool`` of each device's samples, int32 [n] each.
        streams: random streams of the run, for the shuffling.
        truth: group of devices with similar data to which each device belongs, int64 [devices];
            None if there are no such groups.

    Raises:
        ScenarioError: a device has no training samples.
    """
    train = []
    test = []
    for device, index in enumerate(held):
        shuffled = streams.generator("world/data/hold-out", device).permutation(index)
        train_size = len(index) * 9 // 10
        train.append(shuffled[:train_size])
        test.append(shuffled[train_size:])
    return federated(dataset, train, test, truth)


def deal_test_alike(dataset: Dataset, train: Sequence[Index], streams: Streams) -> list[Index]:
    """Divide the published test samples so that each device's labels resemble its training labels.

    Each test sample goes to one device, in proportion to the devices' training samples of the
    sample's class. Classes without training samples are left out. With fewer test samples than
    devices, some devices get no test samples.

    Args:
        dataset: all samples.
        train: indices in ``dataset.pool`` of each device's training samples, int32 [n] each.
        streams: random streams of the run.

    Returns:
        Indices in ``dataset.pool`` of each device's test samples, int32 [m] each.
    """
    devices = len(train)
    test_by_class = dataset.by_class(dataset.test)
    classes = len(test_by_class)
    train_counts = []
    for index in train:
        train_counts.append(np.bincount(dataset.pool.y[index], minlength=classes))
    available = np.array([len(class_index) for class_index in test_by_class])
    test_counts = _apportion(np.array(train_counts), available)  # [devices, classes]
    generator = streams.generator("world/data/test")
    samples = []
    owners = []  # device of each sample
    for device_counts, class_index in zip(test_counts.T, test_by_class, strict=True):
        # all test samples of the class, or none if no device trains on the class
        samples.append(generator.permutation(class_index)[: device_counts.sum()])
        owners.append(np.repeat(np.arange(devices), device_counts))
    return gather(np.concatenate(owners), np.concatenate(samples), devices)


def _apportion(counts: Ints, available: Ints) -> Ints:
    """Divide each class's test samples among devices, in proportion to their training samples.

    The remainder of a class goes to the devices whose previous shares were rounded down most, so
    that the devices' totals are in proportion too.

    Args:
        counts: training samples of each device and class, int64 [devices, C].
        available: test samples of each class, int64 [C].

    Returns:
        The count of test samples of each device and class, int64 [devices, C]. A column sums to
        ``available``, or to 0 if its class has no training samples.
    """
    shares = np.zeros_like(counts)
    owed = np.zeros(len(counts))  # samples that each device has lost by rounding down
    for label in np.flatnonzero(counts.sum(axis=0)):
        label_counts = counts[:, label]
        expected = available[label] * label_counts / label_counts.sum()
        shares[:, label] = np.floor(expected)
        owed += expected - shares[:, label]
        remainder = int(available[label] - shares[:, label].sum())
        # devices without training samples of the class are last
        priority = np.where(label_counts > 0, -owed, np.inf)
        most_owed = np.argsort(priority, kind="stable")[:remainder]
        shares[most_owed, label] += 1
        owed[most_owed] -= 1.0
    return shares


class Iid(Partition):
    """Partition into shards of equal distribution: samples are shuffled, then divided evenly.

    The devices' counts of samples differ by at most one, and their labels by chance only.
    """

    kind: Literal["iid"] = "iid"

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        require_devices(
            devices,
            dataset.train_size,
            f"'{dataset.name}' has {dataset.train_size} training samples",
        )
        train = deal_evenly(dataset.train, devices, streams.generator("world/data/train"))
        test = deal_evenly(dataset.test, devices, streams.generator("world/data/test"))
        return federated(dataset, train, test)


class SyntheticSizes(Partition):
    """Partition of the source ``synthetic``, with lognormal counts of samples (code of FedProx).

    A device has int(lognormal(``log_mean``, ``log_std``)) + ``least`` samples, of which a tenth is
    for testing.

    Attributes:
        log_mean, log_std: mean and standard deviation of the logarithm.
        least: count of samples that is added for each device.
    """

    kind: Literal["synthetic"] = "synthetic"
    usual_normalize: ClassVar[Normalize] = "none"

    log_mean: float = Field(default=4.0, ge=0.0, le=10.0)
    log_std: float = Field(default=2.0, ge=0.0, le=3.0)
    least: int = Field(default=50, ge=2, le=1_000_000_000)

    def sizes(self, devices: int, streams: Streams) -> Ints:
        """Draw the count of samples of each device, test samples included; int64 [devices]."""
        generator = streams.generator("world/data/sizes")
        draws = generator.lognormal(self.log_mean, self.log_std, devices)
        return draws.astype(np.int64) + self.least

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        ends = self.sizes(devices, streams).cumsum()
        return hold_out_tenths(dataset, np.split(dataset.all, ends[:-1]), streams)


_TOOLS = "fedsim.toolbox.partitions"
_IN_TOOLBOX = {
    "by-label": (
        f"{_TOOLS}.plain:ByLabel",
        "each label's samples stay together: the natural partition of a column",
    ),
    "by-user": (
        f"{_TOOLS}.plain:ByUser",
        "one device for each user of a column; users without training samples are last",
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
_IN_THIS_MODULE = Registry.of("partition", Iid, SyntheticSizes)
_KNOWN = {**_IN_THIS_MODULE.known, **_IN_TOOLBOX}
PARTITIONS = Registry(
    "partition", "fedsim.learning.data.partitions:Partition", _KNOWN, key="data.partition"
)
PartitionSpec = Annotated[Partition, KindField(PARTITIONS)]
