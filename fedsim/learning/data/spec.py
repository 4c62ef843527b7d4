"""``[data]``: which samples there are and who holds them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import FederatedData, Normalise, pooled
from fedsim.learning.data.partitions import PARTITIONS, Iid, PartitionSpec, SyntheticSizes
from fedsim.learning.data.sources import Digits, SourceSpec, Synthetic
from fedsim.learning.data.transforms import Augmentation

# partitions of samples that may have targets instead
_WITHOUT_LABELS = {"iid", "rotations", "file"}


class DataSpec(Spec):
    """``[data]``: a source of samples and a partition among the devices."""

    source: SourceSpec = Digits()
    """a name such as ``"mnist"``, or a table with ``kind`` and the source's options."""
    root: str | None = None
    """the folder of data folders; None: the working directory, and then ``$FEDSIM_DATA``."""
    partition: PartitionSpec = Iid()
    """a name, or a table with ``kind`` and options; by default ``iid``, or ``synthetic`` for the
    source ``synthetic``.
    """
    normalise: Normalise = "pixel"
    """``pixel`` scales bytes to [0, 1] (digits: 0..16) and leaves floats; ``standardise`` takes (x
    - mean) / (std + 0.001) of each pixel over the samples that the partition trains on. By default
    as published: ``standardise`` for ``power-law`` (over all samples) and ``ditto``, ``none`` for
    ``synthetic``, ``pixel`` for the others.
    """
    augmentation: Augmentation | Literal["none"] = "none"
    """distortion of training images.

    By default that of ``Augmentation`` for ``class-bias``, ``none`` for the others.
    """
    column: str | None = None
    """an integer column of the source, such as the writer, that partitions and strategies take
    for labels; None: the labels.
    """
    pooled_from: int | None = Field(default=None, ge=1)
    """deal to so many devices, then give all to the one device: the reference line of
    centralised training; None: do not.
    """

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if "partition" not in data and _kind(data.get("source")) == "synthetic":
            data = {"partition": SyntheticSizes(), **data}
        kind = _kind(data.get("partition", "iid"))
        known = isinstance(kind, str) and kind in PARTITIONS.known
        recipe = PARTITIONS.find(kind) if known else Iid  # a user's own has the defaults of iid
        augmentation = Augmentation() if recipe.usually_augmented else "none"
        return {"normalise": recipe.usual_normalise, "augmentation": augmentation, **data}

    @model_validator(mode="after")
    def _fits_together(self) -> "DataSpec":
        generated = isinstance(self.source, Synthetic)
        if generated != isinstance(self.partition, SyntheticSizes):
            kinds = (
                f"source '{self.source.kind}' does not go with partition '{self.partition.kind}'"
            )
            raise ValueError(
                f"{kinds}; the source 'synthetic' and the partition 'synthetic' go together only"
            )
        if generated and self.column is not None:
            raise ValueError(f"'column' is {self.column!r}; the source 'synthetic' has no columns")
        return self

    def shape_and_classes(self) -> tuple[tuple[int, ...], int]:
        """Shape of one sample and number of classes, without reading files where they are known
        beforehand.
        """
        if isinstance(self.source, Synthetic):
            return (self.source.features,), self.source.classes
        return self.source.shape_and_classes(self.own_folder())

    def own_folder(self) -> Path | None:
        """``root`` of files that are sought (``fedsim.common.files.sought``)."""
        return Path(self.root) if self.root else None

    def build(self, devices: int, streams: Streams) -> FederatedData:
        """Load the source and deal it to the devices; draws from the streams ``world/data/...``.

        ``ScenarioError``: the partition does not fit the source or the devices; ``DataError``:
        files are wrong.
        """
        if self.pooled_from is not None and devices != 1:
            raise ScenarioError(
                f"population.devices is {devices}; with data.pooled_from only 1 is allowed"
            )
        data = self._deal(self.pooled_from or devices, streams)
        data = data if self.pooled_from is None else data.on_one_device()
        if self.augmentation == "none":
            return data
        if len(shape := data.pool.shape) != 3:
            raise ScenarioError(
                f"data.augmentation is given for samples of shape {shape}; only images can be "
                "augmented"
            )
        seeds = (streams.word("world/data/augment", device) for device in range(len(data.shards)))
        shards = [
            replace(shard, augment_seed=seed)
            for shard, seed in zip(data.shards, seeds, strict=True)
        ]
        return replace(data, shards=shards, augmentation=self.augmentation)

    def _deal(self, devices: int, streams: Streams) -> FederatedData:
        if isinstance(self.source, Synthetic):
            assert isinstance(self.partition, SyntheticSizes)
            dataset = self.source.draw(self.partition.sizes(devices, streams), streams)
        else:
            raw = self.source.load(self.own_folder())
            if surplus := self.source.surplus(raw, self.column):
                names = ", ".join(surplus)
                advice = (
                    "name one as data.column, list them as data.source.columns, or leave them out"
                )
                raise DataError(
                    f"data.source: nothing uses the columns {names} of '{raw.name}'; {advice}"
                )
            dataset = pooled(
                raw, self.normalise, over_test=self.partition.pools_test, column=self.column
            )
            if (
                not dataset.pool.labelled
                and self.partition.kind in PARTITIONS.known.keys() - _WITHOUT_LABELS
            ):
                of = f", or data.column as one of {', '.join(raw.columns)}" if raw.columns else ""
                why = (
                    f"which deals by labels, and '{raw.name}' has targets instead; allowed are "
                    f"'iid' and 'file'{of}"
                )
                raise ScenarioError(f"data.partition.kind is {self.partition.kind!r}, {why}")
        return self.partition.under(self.own_folder()).split(dataset, devices, streams)


def _kind(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("kind")
    return value if isinstance(value, str) else getattr(value, "kind", None)
