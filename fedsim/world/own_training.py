"""Table ``[population.local]``: local epochs, steps, batch size and learning rate by device."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import AnyArray, Floats, Ints
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Epochs, Iterations, Spec
from fedsim.common.streams import Streams
from fedsim.common.training import Batching, Training
from fedsim.world.columns import alike
from fedsim.world.device_kinds import Capacity, OwnKind, find_kind
from fedsim.world.distributions import (
    Choice,
    Constant,
    Distribution,
    FromFile,
    Listed,
    LogNormal,
    Uniform,
)

Q = TypeVar("Q")

DEFAULT = "default"
"""Key of a table by kind: its value is for all kinds that the table does not name."""


class ByKind(Distribution, Generic[Q]):
    """Distribution of ``[population.local]`` in which a device's value depends on its kind.

    The short form in a scenario is a table with a value for each kind, such as ``{ phone-mid = 1 }``.

    Attributes:
        values: name of a kind -> value; ``default`` is the value of all other kinds.
    """

    kind: Literal["by-kind"] = "by-kind"
    values: dict[str, Q] = Field(min_length=1)

    def of_kinds(
        self, key: str, devices: int, capacity: Capacity, kinds: Mapping[str, OwnKind]
    ) -> AnyArray:
        """Return the value of each device, 0 if its kind has no value; [devices].

        Args:
            key: the key of the scenario that has the values, for error messages.
            devices: count of devices.
            capacity: the kind of each device.
            kinds: the user's kinds of devices (``population.kinds``), by name.

        Raises:
            ScenarioError: the devices have no kinds, or no device is of a kind that ``values`` names.
        """
        if capacity.which is None:
            raise ScenarioError(
                f"{key} gives values by kind of device ({', '.join(self.values)}), and the devices "
                "have no kinds; allowed with population.device, else a value, a list, or a file"
            )
        for name in self.values:
            if name == DEFAULT:
                continue
            find_kind(name, kinds, key)
            if name not in capacity.names:
                allowed = ", ".join(capacity.names)
                raise ScenarioError(
                    f"{key} has a value for {name!r}, and no device is of that kind; allowed are "
                    f"{allowed} and {DEFAULT}{nearest(name, capacity.names)}"
                )
        default = self.values.get(DEFAULT, 0)  # value of the kinds that are not named
        by_kind = np.array([self.values.get(name, default) for name in capacity.names])
        column: AnyArray = by_kind[capacity.which]
        return column


_OwnBatchSize = Annotated[int, Field(ge=1, le=1_000_000_000)]
_OwnRate = Annotated[float, Field(gt=0.0, le=1e6)]


def _by_device(quantity: object, *forms: type[Distribution]) -> KindField:
    """Make the annotation of a key of ``population.local``, by the forms that its value may have.

    The forms are one value for all devices, values drawn by shares, a list, a column of a file, and
    values by kind of device.

    Args:
        quantity: type of the values.
        forms: further classes of distributions that the key allows.
    """
    all_forms: tuple[type[Spec], ...] = (Constant, *forms, Choice, Listed, FromFile, ByKind)
    registry = Registry.of("distribution", *all_forms, usual="constant", quantity=quantity)
    return KindField(registry, bare="value", by_device=True, by_kind=True)


class OwnTraining(NamedTuple):
    """Settings of local training that differ by device; arrays [devices], 0 for the usual setting.

    Attributes:
        epochs: passes over the data, in place of ``strategy.local_epochs``; int64.
        steps: SGD steps in place of epochs; int64.
        batch_size: count of samples in a batch, in place of ``training.batch_size``; int64.
        lr: learning rate of the first round, in place of ``training.lr``; float64.
    """

    epochs: Ints
    steps: Ints
    batch_size: Ints
    lr: Floats

    def with_batch(self, device: int, training: Training) -> Training:
        """Return ``training`` with the device's own batch size, if the device has one.

        If ``training`` has a batch size already, it is returned unchanged.

        Args:
            device: index of the device.
            training: the training.
        """
        size = self.batch_size.item(device)
        if not size or training.batch_size is not None:
            return training
        return replace(training, batch_size=size)

    def batching(self, device: int, usual: Batching) -> Batching:
        """Return how a device's samples are divided into batches.

        Args:
            device: index of the device.
            usual: batches of devices for which no batch size is set here (section ``[training]``).
        """
        size = self.batch_size.item(device)
        if not size:
            return usual
        return Batching(size, usual.last)

    def passes(self, devices: slice, epochs: int, samples: Ints, usual: Batching) -> Floats:
        """Return how often a training of each device passes over its samples, float64 [slice].

        Args:
            devices: slice of the devices.
            epochs: ``strategy.local_epochs``, for devices for which neither epochs nor steps are set.
            samples: count of samples of each device in the slice.
            usual: batches of devices for which no batch size is set here (section ``[training]``).
        """
        # a value of 0 stands for a device with the usual setting
        own_epochs = self.epochs[devices]
        passes = np.where(own_epochs == 0, epochs, own_epochs).astype(np.float64)
        steps = self.steps[devices]
        own_sizes = self.batch_size[devices]
        sizes = np.where(own_sizes == 0, usual.size, own_sizes)
        batches = np.maximum(np.ceil(samples / sizes), 1.0)
        return np.where(steps == 0, passes, steps / batches)


class LocalSpec(Spec):
    """``[population.local]``: local trainings that differ by device or by kind of device.

    Each key takes one value, a list, shares, a column of a file, or a table of kinds of
    ``population.device`` such as ``{ phone-mid = 1, default = 5 }``. Devices without a value train
    as ``[strategy]`` and ``[training]`` say.

    Attributes:
        epochs: passes over the data, in place of ``strategy.local_epochs``.
        steps: SGD steps, in place of epochs.
        batch_size: samples in a batch, in place of ``training.batch_size``.
        lr: learning rate, in place of ``training.lr``; it decays over the rounds in the same way.
    """

    epochs: Annotated[Distribution, _by_device(Epochs)] | None = None
    steps: Annotated[Distribution, _by_device(Iterations)] | None = None
    batch_size: Annotated[Distribution, _by_device(_OwnBatchSize)] | None = None
    lr: Annotated[Distribution, _by_device(_OwnRate, Uniform, LogNormal)] | None = None

    @model_validator(mode="after")
    def _refuse_empty(self) -> "LocalSpec":
        if not self.keys:
            raise ValueError("is empty; allowed are epochs, steps, batch_size and lr")
        return self

    @property
    def keys(self) -> list[str]:
        """Names of the keys, such as ``epochs``, that the scenario gives a value."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    def build(
        self,
        streams: Streams,
        devices: int,
        root: Path | None,
        capacity: Capacity,
        kinds: Mapping[str, OwnKind],
    ) -> OwnTraining:
        """Return each device's own settings of training: epochs, steps, batch size, learning rate.

        Args:
            streams: random streams; draws for a key are from the stream ``world/local/KEY``.
            devices: count of devices.
            root: folder of data files; None for the working directory.
            capacity: the kind of each device.
            kinds: the user's kinds of devices (``population.kinds``), by name.

        Raises:
            ScenarioError: a list has another count of values than devices, a table names a kind that no
                device has, or a device has both epochs and steps.
            DataError: a file is missing or malformed.
        """
        # key of ``population.local`` -> value of each device, 0 if it has none
        columns: dict[str, AnyArray] = {}
        for key, quantity in _QUANTITIES.items():
            values = alike(0, devices)
            distribution: Distribution | None = getattr(self, key)
            path = f"population.local.{key}"
            if isinstance(distribution, ByKind):
                values = distribution.of_kinds(path, devices, capacity, kinds)
            elif isinstance(distribution, FromFile):
                values = distribution.cells(path, devices, root, quantity, empty=0)
            elif distribution is not None:
                generator = streams.generator(f"world/local/{key}")
                values = distribution.by_device(path, generator, devices, root)
            columns[key] = values
        settings = OwnTraining(**columns)
        has_both = (settings.epochs != 0) & (settings.steps != 0)
        if has_both.any():
            device = np.flatnonzero(has_both).item(0)
            raise ScenarioError(
                f"population.local gives device {device} {settings.epochs.item(device)} epochs and "
                f"{settings.steps.item(device)} steps; allowed is one of them for a device"
            )
        return settings


_QUANTITIES = {"epochs": Epochs, "steps": Iterations, "batch_size": _OwnBatchSize, "lr": _OwnRate}
