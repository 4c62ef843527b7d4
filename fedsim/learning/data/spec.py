"""Scenario table ``[data]``: the source of samples, and their partition among the devices."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from fedsim.common import former_keys
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.inputs import unrecorded
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Dataset, FederatedData, Normalize, pooled
from fedsim.learning.data.kept import kept_data
from fedsim.learning.data.partitions import (
    PARTITIONS,
    Iid,
    Partition,
    PartitionSpec,
    SyntheticSizes,
)
from fedsim.learning.data.sources import Digits, Source, SourceSpec, Synthetic
from fedsim.learning.data.transforms import Augmentation

# partitions that accept samples with targets instead of labels
_WITHOUT_LABELS = {"iid", "rotations", "file"}


class DataSpec(Spec):
    """``[data]``: a source of samples and a partition among the devices.

    Attributes:
        source: a name such as ``"mnist"``, or a table with ``kind`` and the source's options.
        root: the folder that contains the data sets' folders. None: the data sets' folders are
            looked for in the working directory, and then in ``$FEDSIM_DATA``.
        partition: a name, or a table with ``kind`` and options; by default ``iid``, or
            ``synthetic`` for the source ``synthetic``.
        normalize: ``pixel`` scales bytes to [0, 1] (digits: from 0..16), and leaves floats as they
            are; ``standardize`` computes (x - mean) / (std + 0.001) of each pixel, over the samples
            that the partition trains on. The default is the normalisation of the partition's
            publication: ``standardize`` for ``power-law`` (over all samples) and ``ditto``,
            ``none`` for ``synthetic``, ``pixel`` for all other partitions.
        augmentation: distortion of training images. By default the distortion with all defaults of
            ``Augmentation`` for the partition ``class-bias``, and ``none`` for other partitions.
        column: an integer column of the source, such as the writer, that partitions and strategies
            use instead of the labels; None to use the labels.
        pooled_from: for the baseline of centralised training: number of devices among which the
            partition divides the data, before a single device gets them all; None: no pooling.
    """

    renamed: ClassVar[Mapping[str, str]] = former_keys.DATA

    source: SourceSpec = Digits()
    root: str | None = None
    partition: PartitionSpec = Iid()
    normalize: Normalize = "pixel"
    augmentation: Augmentation | Literal["none"] = "none"
    column: str | None = None
    pooled_from: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, data: object) -> object:
        """Add the default partition of the source, and the other defaults of the partition."""
        if not isinstance(data, Mapping):
            return data
        data = cls.with_present_names(data)
        if data.get("normalize") == "standardise":  # former spelling
            data["normalize"] = "standardize"
        if "partition" not in data and _kind(data.get("source")) == "synthetic":
            data = {"partition": SyntheticSizes(), **data}
        kind = _kind(data.get("partition", "iid"))
        partition: type[Partition] = Iid  # a user's own partition has the defaults of iid
        if isinstance(kind, str) and kind in PARTITIONS.known:
            partition = PARTITIONS.class_of(kind)
        augmentation = Augmentation() if partition.usually_augmented else "none"
        # ``data`` is last, so that the scenario's own keys replace the defaults
        return {"normalize": partition.usual_normalize, "augmentation": augmentation, **data}

    @model_validator(mode="after")
    def _check_source_and_partition(self) -> "DataSpec":
        """Raise ``ValueError`` if only one of source and partition is ``synthetic``."""
        is_drawn = isinstance(self.source, Synthetic)
        if is_drawn != isinstance(self.partition, SyntheticSizes):
            kinds = (
                f"source '{self.source.kind}' does not go with partition '{self.partition.kind}'"
            )
            raise ValueError(
                f"{kinds}; the source 'synthetic' and the partition 'synthetic' go together only"
            )
        if is_drawn and self.column is not None:
            raise ValueError(f"'column' is {self.column!r}; the source 'synthetic' has no columns")
        return self

    def shape_and_classes(self) -> tuple[tuple[int, ...], int]:
        """Return the shape of a sample and the count of classes of the scenario's data.

        Files are read only if the source does not declare both.
        """
        if isinstance(self.source, Synthetic):
            return (self.source.features,), self.source.classes
        store = kept_data()  # store of the data sets that several runs share
        if store is None:
            return self.source.shape_and_classes(self.own_folder())
        key = self.kept_key
        if key not in store.shapes:
            with unrecorded():  # several runs share the data, so no run records these files
                store.shapes[key] = self.source.shape_and_classes(self.own_folder())
        return store.shapes[key]

    @property
    def kept_key(self) -> str:
        """Text that is equal for scenarios that load the same data set, so that it is loaded once."""
        settings = self.normalize, self.partition.pools_test, self._deals_by_labels, self.column
        source = type(self.source)
        source_path = f"{source.__module__}:{source.__qualname__}"
        return f"{source_path} {self.source.model_dump_json()} {settings} {self.root!r}"

    @property
    def _deals_by_labels(self) -> bool:
        """Whether the partition is one of fedsim's own that need labels."""
        return self.partition.kind in PARTITIONS.known.keys() - _WITHOUT_LABELS

    def own_folder(self) -> Path | None:
        """Return ``root`` as a path; None if it is not set."""
        return Path(self.root) if self.root else None

    def build(self, devices: int, streams: Streams) -> FederatedData:
        """Load the data set, and divide it among the devices.

        Args:
            devices: count of devices.
            streams: random streams of the run; only streams named ``world/data/...`` are used.

        Raises:
            ScenarioError: the partition does not fit the source or the devices.
            DataError: files are missing or malformed.
        """
        if self.pooled_from is not None and devices != 1:
            raise ScenarioError(
                f"population.devices is {devices}; with data.pooled_from only 1 is allowed"
            )
        data = self._deal(self.pooled_from or devices, streams)
        if self.pooled_from is not None:
            data = data.on_one_device()
        if self.augmentation == "none":
            return data
        shape = data.pool.shape
        if len(shape) != 3:
            raise ScenarioError(
                f"data.augmentation is given for samples of shape {shape}; only images can be "
                "augmented"
            )
        shards = []
        for device, shard in enumerate(data.shards):
            seed = streams.word("world/data/augment", device)
            shards.append(replace(shard, augment_seed=seed))
        return replace(data, shards=shards, augmentation=self.augmentation)

    def _deal(self, devices: int, streams: Streams) -> FederatedData:
        if isinstance(self.source, Synthetic):
            assert isinstance(self.partition, SyntheticSizes)
            dataset = self.source.draw(self.partition.sizes(devices, streams), streams)
        else:
            dataset = self._load(self.source)
        return self.partition.under(self.own_folder()).split(dataset, devices, streams)

    def _load(self, source: Source) -> Dataset:
        """Load the data set of a source, or return it if ``keeping`` has it loaded already."""
        store = kept_data()
        if store is None:
            return self._read_dataset(source)
        key = self.kept_key
        if key not in store.datasets:
            with unrecorded():
                store.keep(key, self._read_dataset(source))
        return store.datasets[key]

    def _read_dataset(self, source: Source) -> Dataset:
        """Load the data set of a source, and check its columns and labels."""
        raw = source.load(self.own_folder())
        surplus = source.surplus(raw, self.column)
        if surplus:
            raise DataError(
                f"data.source: nothing uses the columns {', '.join(surplus)} of '{raw.name}'; "
                "name one as data.column, list them as data.source.columns, or leave them out"
            )
        dataset = pooled(
            raw, self.normalize, over_test=self.partition.pools_test, column=self.column
        )
        if self._deals_by_labels and not dataset.pool.labelled:
            advice = ""
            if raw.columns:
                advice = f", or data.column as one of {', '.join(raw.columns)}"
            raise ScenarioError(
                f"data.partition.kind is {self.partition.kind!r}, which deals by labels, and "
                f"'{raw.name}' has targets instead; allowed are 'iid' and 'file'{advice}"
            )
        return dataset


def _kind(value: object) -> object:
    """Return the name of a source or partition that is given in one of three ways.

    Args:
        value: a table with the key ``kind``, the name itself, or an object with the attribute
            ``kind``.

    Returns:
        The name; None if there is none.
    """
    if isinstance(value, Mapping):
        return value.get("kind")
    if isinstance(value, str):
        return value
    return getattr(value, "kind", None)
