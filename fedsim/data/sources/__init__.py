"""Where samples come from: one small file a source."""

from typing import Annotated

from fedsim.data.sources.base import Source
from fedsim.data.sources.cifar10 import Cifar10
from fedsim.data.sources.digits import Digits
from fedsim.data.sources.huggingface import HuggingFace
from fedsim.data.sources.idx import Emnist, Fashion, Mnist
from fedsim.data.sources.npz import Npz
from fedsim.data.sources.synthetic import Synthetic
from fedsim.language.registry import Registry

_BASE = "fedsim.data.sources.base:Source"
SOURCES = Registry.of("source", Digits, Mnist, Fashion, Cifar10, Emnist, Synthetic, Npz, HuggingFace, base=_BASE)
SourceSpec = Annotated[Source, SOURCES]
