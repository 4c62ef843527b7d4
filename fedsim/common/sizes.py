"""Distributions of the devices' training sample counts, for partitions that deal by size and for
runs without learning.
"""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.registry import Registry
from fedsim.common.spec import Spec

# share of devices, least, most
_LONG_TAIL = ((0.4, 100, 300), (0.3, 300, 500), (0.2, 500, 1000), (0.1, 1000, 3000))
_MOST = 1_000_000_000  # samples of a device


class UniformSizes(Spec):
    """Whole numbers, uniform from ``low`` to ``high``, both included."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(default=100, ge=1, le=_MOST)
    high: int = Field(default=3000, ge=1, le=_MOST)

    @model_validator(mode="after")
    def _ordered(self) -> "UniformSizes":
        if self.low > self.high:
            raise ValueError("'low' is above 'high'")
        return self

    def draw(self, devices: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Training samples of each device, int64 [devices]."""
        return generator.integers(self.low, self.high, devices, endpoint=True)


class LongTailSizes(Spec):
    """40 % of the devices have 100-300 samples, 30 % 300-500, 20 % 500-1,000 and 10 %
    1,000-3,000 (CATA-Fed, section 5.5).
    """

    kind: Literal["long-tail"] = "long-tail"
    scale: float = Field(default=1.0, gt=0.0, le=1e5)
    """multiplies all these bounds, for smaller studies of the same shape."""

    def draw(self, devices: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Training samples of each device, int64 [devices]; the shares of devices are exact up
        to rounding.
        """
        shares, lows, highs = (np.array(column) for column in zip(*_LONG_TAIL, strict=True))
        edges = np.round(np.cumsum(shares) * devices).astype(np.int64)
        tier = generator.permutation(np.repeat(np.arange(len(edges)), np.diff(edges, prepend=0)))
        lows, highs = (
            np.maximum(1, np.round(bounds * self.scale)).astype(np.int64)
            for bounds in (lows, highs)
        )
        return np.asarray(generator.integers(lows[tier], highs[tier], endpoint=True))


Sizes = Annotated[
    UniformSizes | LongTailSizes,
    Registry.of("sample count", UniformSizes, LongTailSizes, usual="uniform"),
]
