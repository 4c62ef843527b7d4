"""FedProx's MNIST: few classes a device and sizes by a power law."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset, Normalise
from fedsim.data.federated import FederatedData, Index
from fedsim.data.partitions.base import Partition, first_class, hold_out_tenths, require_classes, require_devices
from fedsim.streams import Streams


class PowerLaw(Partition):
    """Device u holds the classes u, u+1, ... (mod C), and lognormal amounts of each (Li et al. 2020; code of FedProx).

    Training and test samples are pooled. Each device first gets ``minimum_per_class`` samples of each of its classes, in
    file order; then the rest of each class is shared out in lognormal proportions. A request beyond the end of the class
    is left out whole. A tenth of each device's samples is held back for testing. With MNIST, 1,000 devices and the defaults
    this is FedProx's recipe (about 69,050 samples; mean 69, median 24, least 10); other ``classes_per_device`` give Table I
    of FlexCFL. Devices with the same classes are a true group, which its first class names.

    Attributes:
        classes_per_device: consecutive classes that a device holds.
        sigma: standard deviation of the logarithm of the shares.
        minimum_per_class: samples of each of its classes that every device has.
    """

    kind: Literal["power-law"] = "power-law"
    usual_normalise: ClassVar[Normalise] = "standardise"
    pools_test: ClassVar[bool] = True

    classes_per_device: int = Field(default=2, ge=1)
    sigma: float = Field(default=2.0, ge=0.0, le=10.0)
    minimum_per_class: int = Field(default=5, ge=2, le=1_000_000_000)

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Pooled samples, none in two devices."""
        classes = dataset.pool.classes
        require_classes("classes_per_device", self.classes_per_device, classes, dataset.name)
        parts = dataset.by_class(dataset.all)
        sizes = np.array([len(part) for part in parts])
        labels = (np.arange(devices)[:, None] + np.arange(self.classes_per_device)) % classes
        reserved = self.minimum_per_class * np.bincount(labels.ravel(), minlength=classes)
        self._require_room(dataset.name, devices, sizes, reserved)
        wanted = self._extras(labels, sizes - reserved, streams.generator("world/data/sizes"))
        amounts = np.stack([np.full_like(wanted, self.minimum_per_class), wanted])
        truth = first_class(devices, self.classes_per_device, classes)
        return hold_out_tenths(dataset, _take(parts, labels, amounts), streams, truth)

    def _extras(self, labels: NDArray[np.int64], left: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """Samples beyond the first few that each device asks for, [devices, classes_per_device]."""
        devices, slots = labels.shape
        classes = len(left)
        draws = generator.lognormal(0.0, self.sigma, (classes, -(-devices // classes), slots))
        place = (labels, np.arange(devices)[:, None] // classes, np.arange(slots)[None])
        used = np.zeros_like(draws)
        used[place] = draws[place]
        total = np.maximum(used.sum(axis=(1, 2), keepdims=True), np.finfo(np.float64).tiny)
        wanted: NDArray[np.float64] = (left[:, None, None] * used / total)[place]
        return wanted.astype(np.int64)

    def _require_room(self, name: str, devices: int, sizes: NDArray[np.int64], reserved: NDArray[np.int64]) -> None:
        lacking = np.flatnonzero(reserved > sizes)
        if len(lacking):
            label = int(lacking[0])
            least = int(sizes.min()) // self.minimum_per_class
            require_devices(
                devices,
                least * len(sizes) // self.classes_per_device,
                f"{self.minimum_per_class} samples of each of its {self.classes_per_device} classes for each device are "
                f"{reserved[label]} of class {label}, and '{name}' has {sizes[label]}",
            )


def _take(parts: list[Index], labels: NDArray[np.int64], amounts: NDArray[np.int64]) -> list[Index]:
    """What each device gets when all of them take in turn, once for each pass [passes, devices, slots] of ``amounts``."""
    pieces: list[list[Index]] = [[] for _ in labels]
    taken = np.zeros(len(parts), dtype=np.int64)
    for turn, device, slot in np.ndindex(amounts.shape):
        label, amount = labels[device, slot], amounts[turn, device, slot]
        end = taken[label] + amount
        if end <= len(parts[label]):
            pieces[device].append(parts[label][taken[label] : end])
            taken[label] = end
    return [np.concatenate(piece) for piece in pieces]
