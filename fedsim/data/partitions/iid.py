"""Everybody alike."""

from typing import Literal

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData
from fedsim.data.partitions.base import Partition, deal_evenly, federated, require_devices
from fedsim.streams import Streams


class Iid(Partition):
    """Training and test samples are shuffled and dealt evenly: sizes differ by at most one, labels by chance only."""

    kind: Literal["iid"] = "iid"

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """All samples, each to one device."""
        require_devices(devices, dataset.train_size, f"'{dataset.name}' has {dataset.train_size} training samples")
        train = deal_evenly(dataset.train, devices, streams.generator("world/data/train"))
        return federated(dataset, train, deal_evenly(dataset.test, devices, streams.generator("world/data/test")))
