"""Sources of samples."""

from typing import Annotated

from fedsim.data.sources.base import Source
from fedsim.data.sources.embedded import Digits, LinearLaw, Synthetic, Text
from fedsim.language.registry import Registry

_TOOLS = "fedsim.toolbox.sources"
_OTHERS = {
    "mnist": (f"{_TOOLS}.images:Mnist", "60,000 + 10,000 hand-written digits of 28x28 pixels, from IDX files"),
    "fashion": (f"{_TOOLS}.images:Fashion", "60,000 + 10,000 garments of 28x28 pixels (Fashion-MNIST), from IDX files"),
    "cifar10": (f"{_TOOLS}.images:Cifar10", "50,000 + 10,000 colour images of 32x32 pixels, from the binary batches"),
    "emnist": (f"{_TOOLS}.images:Emnist", "digits and letters (EMNIST ByClass, Cohen et al. 2017), from IDX files"),
    "npz": (f"{_TOOLS}.own:Npz", "arrays of the user's own in one '.npz' file"),
    "huggingface": (f"{_TOOLS}.own:HuggingFace", "a folder that the 'save_to_disk' of Hugging Face's data sets has written"),
    "dataset": (f"{_TOOLS}.dataset:MapDataset", "a map-style 'torch.utils.data.Dataset', read into memory"),
}
_HERE = Registry.of("source", Digits, Text, LinearLaw, Synthetic)
SOURCES = Registry("source", "fedsim.data.sources.base:Source", {**_HERE.known, **_OTHERS})
SourceSpec = Annotated[Source, SOURCES]
