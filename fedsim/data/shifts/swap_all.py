"""Two devices exchange everything."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.federated import FederatedData
from fedsim.data.shifts.base import Change, Shift, draw_pairs, exchange
from fedsim.streams import Streams


class SwapAll(Shift):
    """Random pairs of candidates exchange their complete training and test data (Duan et al. 2021, FlexCFL, section 5.3).

    On each occasion the candidates are paired at random (code of FlexCFL), and each pair exchanges with ``probability``:
    samples, rotation, labels and distortions, and with them the true group. Nothing is copied.

    Attributes:
        probability: of each pair, on each occasion.
    """

    kind: Literal["swap-all"] = "swap-all"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)

    def apply(self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams) -> list[Change]:
        """Exchange whole shards."""
        generator = streams.generator("world/drift", occasion)
        pairs = draw_pairs(candidates, generator)
        fired = pairs[generator.random(len(pairs)) < self.probability]
        changes: list[Change] = []
        for one, other in fired.tolist():
            changes += exchange(data, one, other, data.current(other), data.current(one))
            if data.truth is not None:
                data.truth[[one, other]] = data.truth[[other, one]]
        return changes
