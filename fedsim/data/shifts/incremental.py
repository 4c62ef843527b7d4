"""Training data come to light bit by bit."""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.data.federated import FederatedData
from fedsim.data.shifts.base import Change, Shift
from fedsim.data.shifts.occasions import Occasions
from fedsim.streams import Streams

_HAIR = 1e-9  # so that 0.29 of 100 are 29, not 28


class Incremental(Shift):
    """On each occasion every candidate holds a larger share of its training data (FlexCFL, section 5.3: 25 % every 50 rounds).

    On occasion k these are the first ``shares[k]`` of its samples, in an order shuffled once for each device; rounded down,
    but one sample at least. So a release keeps what was released before, distorted as it was. Test data and the true group
    stay. After the last share nothing happens any more.

    The first occasion belongs at the start of a run: before it, a device holds everything.

    Attributes:
        shares: of a device's training samples, in (0, 1], not falling.
        as_published: as in the published code, which takes each share of what is released at that time: with the defaults
            n/4, n/8, 3n/32 and 3n/32 of n samples, so that data vanish.
    """

    kind: Literal["incremental"] = "incremental"
    at: Occasions = Occasions(rounds=[0, 50, 100, 150])
    shares: list[Annotated[float, Field(gt=0.0, le=1.0)]] = Field(default=[0.25, 0.5, 0.75, 1.0], min_length=1)
    as_published: bool = False

    @field_validator("shares")
    @classmethod
    def _rising(cls, shares: list[float]) -> list[float]:
        if shares != sorted(shares):
            raise ValueError(f"{shares} fall; each share includes the one before it")
        return shares

    def apply(self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams) -> list[Change]:
        """Release the share of this occasion."""
        changes: list[Change] = []
        if occasion < len(self.shares):
            for device in np.sort(candidates).tolist():
                everything = data.shards[device].train
                size = self.released(len(everything), occasion)
                if size != len(data.current(device).train):
                    order = streams.generator("world/drift/order", device).permutation(len(everything))
                    shard = replace(data.shards[device], train=everything[order[:size]])
                    changes.append(Change(device, data.replace_shard(device, shard)))
        return changes

    def released(self, samples: int, occasion: int) -> int:
        """How many of a device's ``samples`` it holds from ``occasion`` on."""
        size = samples
        for share in self.shares[: occasion + 1]:
            size = int((size if self.as_published else samples) * share + _HAIR)
        return max(1, size)
