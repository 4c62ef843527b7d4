"""FedAdagrad (Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2)."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats
from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.server.adaptive import Adaptive, bounded, delta_and_square


@pure
def second_moment(models: list[NDArray[np.float32]], at_first: float) -> Floats:
    """v <- v + delta^2."""
    delta, square = delta_and_square(models, at_first)
    return bounded(square + delta**2)


class Adagrad(Adaptive):
    """``Adaptive`` with v <- v + delta^2, which forgets nothing and is never corrected.

    Attributes:
        beta1: 0 by default, as in the paper's experiments.
    """

    kind: Literal["adagrad"] = "adagrad"
    beta1: float = Field(default=0.0, ge=0.0, lt=1.0)

    def second_moment(self) -> tuple[Function, dict[str, Any], float]:
        return second_moment, {}, 0.0
