"""FedAdam (Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2)."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats
from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.server.adaptive import Adaptive, bounded, delta_and_square


@pure
def second_moment(models: list[NDArray[np.float32]], beta: float, at_first: float) -> Floats:
    """v <- beta v + (1 - beta) delta^2."""
    delta, square = delta_and_square(models, at_first)
    delta *= delta
    delta *= 1 - beta
    delta += beta * square
    return bounded(delta)


class Adam(Adaptive):
    """``Adaptive`` with v <- beta2 v + (1 - beta2) delta^2.

    Attributes:
        beta2: how long the second moment remembers.
    """

    kind: Literal["adam"] = "adam"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)

    def second_moment(self) -> tuple[Function, dict[str, Any], float]:
        return second_moment, {"beta": self.beta2}, self.beta2
