"""Where samples come from: one small file a source."""

from typing import Annotated

from pydantic import Field, SerializeAsAny

from fedsim.data.sources.cifar10 import Cifar10
from fedsim.data.sources.digits import Digits
from fedsim.data.sources.huggingface import HuggingFace
from fedsim.data.sources.idx import Emnist, Fashion, Mnist
from fedsim.data.sources.npz import Npz
from fedsim.data.sources.synthetic import Synthetic
from fedsim.language.families import Kinds

SourceSpec = Annotated[
    SerializeAsAny[
        Annotated[Digits | Mnist | Fashion | Cifar10 | Emnist | Synthetic | Npz | HuggingFace, Field(discriminator="kind")]
    ],
    Kinds("fedsim.data.sources.base:Source"),
]
