"""Synthetic(alpha, beta) of FedProx: every device has its own linear model and its own place in feature space."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.federated import Pool
from fedsim.errors import ScenarioError
from fedsim.language.spec import Spec
from fedsim.streams import Streams

_MOST_NUMBERS = 1_000_000_000  # 4 GB of samples


class Synthetic(Spec):
    """Samples drawn for each device (Li et al. 2020, section 5.1; constants from the authors' code).

    Device k draws u ~ N(0, alpha) and B ~ N(0, beta); W and b have entries N(u, 1), both around the same u; its samples are
    x ~ N(v, Sigma) with v_j ~ N(B, 1) and Sigma_jj = j^-1.2, its labels y = argmax(x W + b). This source brings its own
    devices: only the partition ``synthetic``, which says how many samples each has, goes with it.

    Attributes:
        alpha: standard deviation between the devices' models.
        beta: standard deviation between the devices' places.
        features: length of a sample.
        classes: number of classes.
    """

    kind: Literal["synthetic"] = "synthetic"
    alpha: float = Field(default=1.0, ge=0.0, le=1e6)
    beta: float = Field(default=1.0, ge=0.0, le=1e6)
    features: int = Field(default=60, ge=1, le=1_000_000)
    classes: int = Field(default=10, ge=2, le=100_000)

    def draw(self, sizes: NDArray[np.int64], streams: Streams) -> Dataset:
        """Samples of all devices, one device after the other; device k's do not depend on the other devices.

        Args:
            sizes: samples of each device, int64 [devices].
            streams: draws from ``world/data/synthetic``.

        Raises:
            ScenarioError: that would be more numbers than fit a memory.
        """
        numbers = int(sizes.sum()) * self.features + self.features * self.classes
        if numbers > _MOST_NUMBERS:
            raise ScenarioError(
                f"data.source.features is {self.features} for {sizes.sum()} samples and {self.classes} classes, {numbers} "
                f"numbers; allowed are at most {_MOST_NUMBERS}"
            )
        parts = [self._draw_device(int(size), streams.generator("world/data/synthetic", k)) for k, size in enumerate(sizes)]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Dataset("synthetic", Pool(x, y, self.classes), len(y))

    def _draw_device(self, size: int, generator: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        u, place = generator.normal(0.0, [self.alpha, self.beta])
        centre = generator.normal(place, 1.0, self.features)
        weights = generator.normal(u, 1.0, (self.features, self.classes))
        bias = generator.normal(u, 1.0, self.classes)
        spread = np.arange(1, self.features + 1) ** -0.6  # the square root of Sigma's diagonal
        x = centre + spread * generator.standard_normal((size, self.features))
        return x.astype(np.float32), np.argmax(x @ weights + bias, axis=1)
