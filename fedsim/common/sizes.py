"""Distributions of training sample counts over devices, for partitions and ``learning = "off"``.

The sizes of messages are in ``federation/contents.py``.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec

# for each tier of devices: its share of all devices, and the least and greatest count of samples
_LONG_TAIL = ((0.4, 100, 300), (0.3, 300, 500), (0.2, 500, 1000), (0.1, 1000, 3000))
_MOST = 1_000_000_000  # greatest count of samples of one device


class UniformSizes(Spec):
    """Sample counts drawn uniformly, whole numbers from ``low`` to ``high``, both included.

    Attributes:
        low, high: least and greatest count.
    """

    kind: Literal["uniform"] = "uniform"
    low: int = Field(default=100, ge=1, le=_MOST)
    high: int = Field(default=3000, ge=1, le=_MOST)

    @model_validator(mode="after")
    def _check_order(self) -> "UniformSizes":
        if self.low > self.high:
            raise ValueError("'low' is above 'high'")
        return self

    def draw(self, devices: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the count of training samples of each device.

        Args:
            devices: count of devices.
            generator: source of random numbers.

        Returns:
            Counts, int64 [devices].
        """
        return generator.integers(self.low, self.high, devices, endpoint=True)


class LongTailSizes(Spec):
    """40 % of the devices have 100 to 300 samples, 30 % 300 to 500, 20 % 500 to 1,000 and 10 %
    1,000 to 3,000 (CATA-Fed, section 5.5).

    Attributes:
        scale: factor of all bounds of the sample counts, for smaller studies of the same shape.
    """

    kind: Literal["long-tail"] = "long-tail"
    scale: float = Field(default=1.0, gt=0.0, le=1e5)

    def draw(self, devices: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the count of training samples of each device.

        Each range of counts, such as 100 to 300 samples, gets exactly its share of the devices,
        such as 40 %, except for rounding.

        Args:
            devices: count of devices.
            generator: source of random numbers.

        Returns:
            Counts, int64 [devices].
        """
        shares, lows, highs = zip(*_LONG_TAIL, strict=True)  # one entry for each tier
        tier_ends = np.round(np.cumsum(shares) * devices).astype(np.int64)
        tier_sizes = np.diff(tier_ends, prepend=0)  # count of devices in each tier
        tier_of_device = generator.permutation(np.repeat(np.arange(len(shares)), tier_sizes))
        low = self._scale_bounds(lows)[tier_of_device]
        high = self._scale_bounds(highs)[tier_of_device]
        return np.asarray(generator.integers(low, high, endpoint=True))

    def _scale_bounds(self, bounds: Sequence[float]) -> NDArray[np.int64]:
        scaled = np.round(np.array(bounds) * self.scale)
        return np.maximum(1, scaled).astype(np.int64)


Sizes = Annotated[
    UniformSizes | LongTailSizes,
    KindField(Registry.of("sample count", UniformSizes, LongTailSizes, usual="uniform")),
]
