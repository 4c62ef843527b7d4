"""FedYogi (Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2; after Zaheer et al., 2018)."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats
from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.server.adaptive import Adaptive, bounded, delta_and_square


@pure
def second_moment(models: list[NDArray[np.float32]], beta: float, at_first: float) -> Floats:
    """v <- v - (1 - beta) delta^2 sign(v - delta^2)."""
    delta, square = delta_and_square(models, at_first)
    return bounded(square - (1 - beta) * delta**2 * np.sign(square - delta**2))


class Yogi(Adaptive):
    """``Adaptive`` with v <- v - (1 - beta2) delta^2 sign(v - delta^2): v forgets a large change slowly.

    Attributes:
        beta2: how slowly the second moment follows.
    """

    kind: Literal["yogi"] = "yogi"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)

    def second_moment(self) -> tuple[Function, dict[str, Any], float]:
        return second_moment, {"beta": self.beta2}, self.beta2
