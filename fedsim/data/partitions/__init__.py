"""Partitions: the recipes by which samples are dealt to devices."""

from typing import Annotated

from fedsim.data.partitions.base import Partition
from fedsim.data.partitions.plain import ByLabel, Dirichlet, Iid, LabelGroups, PartitionFile, Permutations, Rotations, Shards
from fedsim.data.partitions.published import ClassBias, ClassImbalance, DittoPartition, Femnist, PowerLaw, SyntheticSizes
from fedsim.language.registry import Registry

PARTITIONS = Registry.of(
    "partition",
    Iid,
    ByLabel,
    Shards,
    Dirichlet,
    PowerLaw,
    Femnist,
    DittoPartition,
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
