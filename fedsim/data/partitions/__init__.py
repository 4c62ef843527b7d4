"""Partitions: the recipes by which samples are dealt to devices."""

from typing import Annotated

from fedsim.data.partitions.base import Iid, Partition, SyntheticSizes
from fedsim.language.registry import Registry

_TOOLS = "fedsim.toolbox.partitions"
_OTHERS = {
    "by-label": (f"{_TOOLS}.plain:ByLabel", "each label's samples stay together: the natural partition of a column"),
    "shards": (f"{_TOOLS}.plain:Shards", "samples sorted by class in even shards (McMahan et al. 2017, non-IID)"),
    "dirichlet": (f"{_TOOLS}.plain:Dirichlet", "shares of each class by a Dirichlet law (Yurochkin et al. 2019)"),
    "power-law": (f"{_TOOLS}.published:PowerLaw", "a few classes, lognormal amounts (Li et al. 2020; code of FedProx)"),
    "femnist": (f"{_TOOLS}.published:Femnist", "three neighbouring classes, lognormal sizes (code of FedProx)"),
    "ditto": (f"{_TOOLS}.published:DittoPartition", "five neighbouring classes, lognormal sizes (code of Ditto)"),
    "class-bias": (f"{_TOOLS}.published:ClassBias", "a share is of a few random classes (Jeong and Kim 2022, CATA-Fed)"),
    "class-imbalance": (f"{_TOOLS}.published:ClassImbalance", "middle classes dominate (Wang et al., CCS)"),
    "label-groups": (f"{_TOOLS}.plain:LabelGroups", "each group of devices has its own classes"),
    "rotations": (f"{_TOOLS}.plain:Rotations", "groups rotate all data, each its way (Ghosh et al. 2020, IFCA)"),
    "permutations": (f"{_TOOLS}.plain:Permutations", "IID, but groups permute the labels (Sattler et al. 2020, CFL)"),
    "file": (f"{_TOOLS}.plain:PartitionFile", "as a file describes"),
}
_HERE = Registry.of("partition", Iid, SyntheticSizes)
PARTITIONS = Registry("partition", "fedsim.data.partitions.base:Partition", {**_HERE.known, **_OTHERS})
PartitionSpec = Annotated[Partition, PARTITIONS]
