"""The devices, as columns: a device is a row number, and a process exists only while it works."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.spec import Spec
from fedsim.streams import Streams
from fedsim.world.availability import AlwaysOn, AvailabilitySpec
from fedsim.world.capacity import Capacity, FedScaleCapacity
from fedsim.world.compute import SlowPhases
from fedsim.world.distributions import Constant, SpeedDistribution, WholeNumbers

if TYPE_CHECKING:
    pass


@dataclass
class Population:
    """What the devices are like. Every column has one entry a device.

    Attributes:
        speed: training speed, samples/s of the reference model; float64.
        samples: training samples held now; int64.
        cost: how many times the reference model's cost a sample of the trained model takes.
        arrival: when the device joins (s); float64.
        departure: when it leaves for good (s), ``inf`` if never; float64.
    """

    speed: NDArray[np.float64]
    samples: NDArray[np.int64]
    cost: float
    arrival: NDArray[np.float64]
    departure: NDArray[np.float64]

    def epoch_s(self, device: int) -> float:
        """Seconds of one undisturbed pass over the device's training samples."""
        return float(self.samples[device] * self.cost / self.speed[device])


class PopulationSpec(Spec):
    """``[population]``: how many devices, how fast, and when they can be reached.

    Attributes:
        devices: how many.
        speed: training speed in samples/s, for the scenario's own model, or for the reference model if that is given.
        capacity: speeds and links from a file of real phones, instead of ``speed`` and the network's device rates.
        samples: how many training samples devices hold where there is no learning; None: as the data are dealt.
        reference_flops: FLOPs a sample (forward and backward) of the model that ``speed`` is for; the trained model's time
            is scaled by its own FLOPs. None: ``speed`` is for the trained model itself.
        jitter: coefficient of variation of an epoch's time.
        slow_phases: phases in which a device is slow.
        availability: when devices can be reached.
    """

    devices: int = Field(default=100, ge=1)
    speed: SpeedDistribution | None = None
    capacity: FedScaleCapacity | None = None
    samples: WholeNumbers | None = None
    reference_flops: float | None = Field(default=None, gt=0.0)
    jitter: float = Field(default=0.0, ge=0.0)
    slow_phases: SlowPhases | None = None
    availability: AvailabilitySpec = AlwaysOn()

    @model_validator(mode="after")
    def _one_source_of_speed(self) -> "PopulationSpec":
        if self.speed is not None and self.capacity is not None:
            raise ValueError("'speed' and 'capacity' both say how fast devices are; give one of them")
        return self

    def capacities(self, streams: Streams, root: Path | None) -> Capacity:
        """Speeds (samples/s) and, from a file, link rates (bytes/s) of all devices.

        Raises:
            DataError: a capacity file is missing or malformed.
        """
        if self.capacity is not None:
            return self.capacity.draw(streams, self.devices, root)
        speed = self.speed if self.speed is not None else Constant(value=math.inf)
        return Capacity(speed.draw(streams.generator("world/speed"), self.devices), None)

    def build(self, speed: NDArray[np.float64], samples: NDArray[np.int64], flops_per_sample: float) -> Population:
        """The columns of a population whose devices hold ``samples`` [devices] and train a model of the given FLOPs."""
        cost = 1.0 if self.reference_flops is None else flops_per_sample / self.reference_flops
        never = np.full(self.devices, np.inf)
        return Population(speed, samples, cost, np.zeros(self.devices), never)
