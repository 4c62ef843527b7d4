"""Who holds what: one file a recipe."""

from typing import Annotated

from fedsim.data.partitions.base import Partition
from fedsim.data.partitions.bias import ClassBias, ClassImbalance
from fedsim.data.partitions.even import Dirichlet, Iid, Shards
from fedsim.data.partitions.file import PartitionFile
from fedsim.data.partitions.groups import LabelGroups, Permutations, Rotations
from fedsim.data.partitions.published import Ditto, Femnist, PowerLaw, SyntheticSizes
from fedsim.language.registry import Registry

PARTITIONS = Registry.of(
    "partition",
    Iid,
    Shards,
    Dirichlet,
    PowerLaw,
    Femnist,
    Ditto,
    ClassBias,
    ClassImbalance,
    LabelGroups,
    Rotations,
    Permutations,
    PartitionFile,
    SyntheticSizes,
    base="fedsim.data.partitions.base:Partition",
)
PartitionSpec = Annotated[Partition, PARTITIONS]
