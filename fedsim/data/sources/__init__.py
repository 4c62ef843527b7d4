"""Sources of samples."""

from typing import Annotated

from fedsim.data.sources.base import Source
from fedsim.data.sources.dataset import MapDataset
from fedsim.data.sources.embedded import Digits, LinearLaw, Synthetic, Text
from fedsim.data.sources.images import Cifar10, Emnist, Fashion, Mnist
from fedsim.data.sources.own import HuggingFace, Npz
from fedsim.language.registry import Registry

_BASE = "fedsim.data.sources.base:Source"
SOURCES = Registry.of(
    "source", Digits, Mnist, Fashion, Cifar10, Emnist, Text, LinearLaw, Synthetic, Npz, HuggingFace, MapDataset, base=_BASE
)
SourceSpec = Annotated[Source, SOURCES]
