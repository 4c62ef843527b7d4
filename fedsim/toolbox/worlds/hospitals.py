"""Hospitals, as slow as those of the FeTS federation were: ``population = "hospitals-fets"``."""

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.arrays import Floats
from fedsim.files import read_toml
from fedsim.streams import Streams
from fedsim.world.device_kinds import Capacity, CapacityModel


class HospitalsCapacity(CapacityModel):
    """Each device is a hospital, and a sample a patient: its times were measured in the FeTS federation.

    Source: github.com/FeTS-AI/Challenge, Task_1/fets_challenge/time_utils.py (BSD-style, 2022): 21 and 16 institutions.

    Computing and transfers are drawn each on its own, with replacement, as the FeTS challenge does. An epoch's time has the
    mean and the standard deviation of the hospital's, unless ``population.jitter`` is above 0. It is lognormal, where the
    challenge draws a normal of 1 s at least. A transfer takes the mean of the hospital's download and upload, whatever its
    size: a latency.

    Attributes:
        validated: patients that a hospital validates for each one that it trains on, before and after the training; their time
            is added to an epoch's.
    """

    kind: Literal["hospitals-fets"] = "hospitals-fets"
    validated: float = Field(default=0.0, ge=0.0, le=100.0)

    def _drawn(self, streams: Streams, devices: int) -> Floats:
        """Mean and standard deviation of a patient's training and validation (s), float64 [devices, 4]."""
        compute: Floats = _table("compute")
        return compute[streams.generator("world/capacity").integers(len(compute), size=devices)]

    def _seconds(self, drawn: Floats) -> Floats:
        return np.asarray(drawn[:, 0] + 2 * self.validated * drawn[:, 2])

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Capacity:
        network = _table("network")
        latency = network[streams.generator("world/capacity/network").integers(len(network), size=devices)][:, [0, 2]].mean(
            axis=1
        )
        unlimited = np.full(devices, np.inf)
        return Capacity(1.0 / self._seconds(self._drawn(streams, devices)), (unlimited, unlimited, latency))

    def jitters(self, streams: Streams, devices: int) -> Floats:
        drawn, half = self._drawn(streams, devices), 2 * self.validated
        spread: Floats = np.hypot(drawn[:, 1], half * drawn[:, 3] / np.sqrt(2.0))  # two validations, drawn apart
        return spread / self._seconds(drawn)


@cache
def _table(name: str) -> Floats:
    return np.array(read_toml(Path(__file__).with_suffix(".toml"))[name])
