"""A data set of the user's own code: a map-style ``torch.utils.data.Dataset``, by its import path."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.data.federated import Raw
from fedsim.data.sources import Source
from fedsim.errors import DataError
from fedsim.language.imports import find, refuse_unless_allowed
from fedsim.toolbox.sources.own import Vocabulary, raw_of


class MapDataset(Source):
    """A map-style ``torch.utils.data.Dataset``, all of whose items are read into memory.

    An item is ``(sample, target)``, or a mapping with the keys ``x``, ``y`` and perhaps columns; all as in the source ``npz``.

    Attributes:
        factory: ``package.module:Name`` of a subclass of ``torch.utils.data.Dataset``, or of a function that is annotated
            to return one.
        args: keyword arguments for it.
        test: keyword arguments that differ for the test samples (``{ train = false }``); None: every fifth sample is one.
        vocabulary: as of ``npz``.
    """

    published: ClassVar[bool] = False
    kind: Literal["dataset"] = "dataset"
    factory: str
    args: dict[str, Any] = Field(default_factory=dict)
    test: dict[str, Any] | None = None
    vocabulary: Vocabulary = None

    @field_validator("factory")
    @classmethod
    def _allowed(cls, factory: str) -> str:
        refuse_unless_allowed(factory, "data.source.factory")
        return factory

    def load(self, root: Path | None) -> Raw:
        parts = {"": self.args} if self.test is None else {"_train": self.args, "_test": self.args | self.test}
        arrays = {f"{key}{part}": array for part, args in parts.items() for key, array in self._arrays(args).items()}
        return raw_of(Path(self.factory.rpartition(":")[2]), arrays, self.vocabulary)

    def _arrays(self, args: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The items as arrays, by their keys."""
        from torch import Tensor
        from torch.utils.data import Dataset, default_collate

        where = f"data.source.factory is {self.factory!r}"
        factory = find(self.factory, "data.source.factory", Dataset, "torch.utils.data.Dataset", or_function=True)
        try:
            made = factory(**args)
            if not hasattr(made, "__len__"):
                raise DataError(
                    f"{where}, a {type(made).__name__} without a length; allowed is a map-style Dataset with __len__"
                )
            items = default_collate([made[at] for at in range(len(made))])
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{where}, whose items cannot be read into arrays: {type(error).__name__}: {error}") from error
        if isinstance(items, list | tuple) and len(items) == 2:
            items = dict(zip("xy", items, strict=True))
        if not isinstance(items, Mapping):
            raise DataError(f"{where}, whose items are {type(made[0]).__name__}; allowed are (sample, target) and mappings")
        return {key: np.asarray(value) for key, value in items.items() if isinstance(value, Tensor)}
