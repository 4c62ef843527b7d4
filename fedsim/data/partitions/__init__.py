"""Who holds what: one file a recipe."""

from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny

from fedsim.data.partitions.base import Partition
from fedsim.data.partitions.class_bias import ClassBias
from fedsim.data.partitions.class_imbalance import ClassImbalance
from fedsim.data.partitions.dirichlet import Dirichlet
from fedsim.data.partitions.ditto import Ditto
from fedsim.data.partitions.femnist import Femnist
from fedsim.data.partitions.file import PartitionFile
from fedsim.data.partitions.iid import Iid
from fedsim.data.partitions.label_groups import LabelGroups
from fedsim.data.partitions.permutations import Permutations
from fedsim.data.partitions.power_law import PowerLaw
from fedsim.data.partitions.rotations import Rotations
from fedsim.data.partitions.synthetic import SyntheticSizes
from fedsim.data.sources import by_name
from fedsim.language.families import or_own

Known = (
    Iid
    | Dirichlet
    | PowerLaw
    | Femnist
    | Ditto
    | ClassBias
    | ClassImbalance
    | LabelGroups
    | Rotations
    | Permutations
    | PartitionFile
    | SyntheticSizes
)
PartitionSpec = Annotated[
    SerializeAsAny[Annotated[Known, Field(discriminator="kind")]],
    or_own("fedsim.data.partitions.base:Partition"),
    BeforeValidator(by_name),
]

__all__ = [
    "ClassBias",
    "ClassImbalance",
    "Dirichlet",
    "Ditto",
    "Femnist",
    "Iid",
    "Known",
    "LabelGroups",
    "Partition",
    "PartitionFile",
    "PartitionSpec",
    "Permutations",
    "PowerLaw",
    "Rotations",
    "SyntheticSizes",
]
