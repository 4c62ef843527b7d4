"""Adaptive server optimisers: FedAdagrad, FedAdam and FedYogi."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.arrays import Floats
from fedsim.federation import Server
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.server import ServerOptimizer
from fedsim.strategies.state import State


@pure
def second_moment(
    models: list[NDArray[np.float32]], rule: str, at_first: float, beta: float
) -> Floats:
    """Compute the second moment v after an update delta, float64 [d] (Reddi 2021, Algorithm 2).

    Args:
        models: delta and v, each float32 [d]; if v is missing, all its entries are ``at_first``.
        rule: ``adagrad``, ``adam`` or ``yogi``.
        at_first: the first value of v.
        beta: beta2, the weight of the old v; not used by ``adagrad``.
    """
    delta = models[0].astype(np.float64)
    square = models[1] if len(models) > 1 else at_first
    if rule == "adagrad":
        moment = square + delta**2
    elif rule == "adam":
        moment = delta**2 * (1 - beta) + beta * square
    else:
        moment = square - (1 - beta) * delta**2 * np.sign(square - delta**2)
    # v stays finite: with an infinite v no later step would move the model
    return np.minimum(moment, np.finfo(np.float32).max, out=moment)


@pure
def adaptive_step(
    models: list[NDArray[np.float32]], lr: float, tau: float, mean_scale: float, square_scale: float
) -> Floats:
    """Compute the next model w + lr m / (sqrt(v) + tau), float64 [d].

    Args:
        models: w, m and v, each float32 [d].
        lr: the server's learning rate.
        tau: added to the root of v.
        mean_scale: factor of m.
        square_scale: factor of v.
    """
    weights, mean, square = (array.astype(np.float64) for array in models)
    return weights + mean * mean_scale * lr / (np.sqrt(square * square_scale) + tau)


@dataclass
class AdaptiveState(State):
    """Memory of an adaptive server optimiser, for one model."""

    steps: int = 0
    """Number of steps made."""
    mean: Ref | None = None
    """m, the first moment [d]; None while it is 0."""
    square: Ref | None = None
    """v, the second moment [d]; None before the first step."""


class Adaptive(ServerOptimizer):
    """Base of the optimisers that scale steps by moments of past updates.

    With delta = aggregated - w: m <- beta1 m + (1 - beta1) delta, v by each kind's rule, and w <- w
    + lr m / (sqrt(v) + tau).

    Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2: v begins at
    tau^2 and m at 0, and neither is corrected. With ``bias_correction`` v begins at 0 too, and a
    moment that is a decaying mean is divided by 1 - beta^t, as in Adam (Kingma and Ba, 2015).
    """

    lr: float = Field(default=0.01, gt=0.0, le=1e6)
    """the server's learning rate, eta."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """decay factor of the first moment in each step."""
    tau: float = Field(default=1e-3, ge=1e-12, le=1e6)
    """constant that is added to the root of v; the smaller it is, the more a step is scaled by v.
    """
    bias_correction: bool = False
    """whether both moments begin at 0 and are divided by 1 - beta^t, as in Adam."""

    State = AdaptiveState

    def step(self, server: Server, state: AdaptiveState, model: Ref, aggregated: Ref) -> Ref:
        models = server.models
        beta2 = getattr(self, "beta2", 0.0)
        state.steps += 1
        delta = models.mix([(aggregated, 1.0), (model, -1.0)], rescale=False)
        mean_parts = [(delta, 1 - self.beta1)]
        squares = [delta]
        if state.mean is not None:
            mean_parts.insert(0, (state.mean, self.beta1))
        if state.square is not None:
            squares.append(state.square)
        state.mean = models.mix(mean_parts, rescale=False)
        at_first = 0.0 if self.bias_correction else self.tau**2
        state.square = models.apply(
            second_moment, squares, rule=self.kind, at_first=at_first, beta=beta2
        )
        return models.apply(
            adaptive_step,
            [model, state.mean, state.square],
            otherwise=model,
            lr=self.lr,
            tau=self.tau,
            mean_scale=self._correction(self.beta1, state.steps),
            square_scale=self._correction(beta2, state.steps),
        )

    def _correction(self, beta: float, steps: int) -> float:
        return 1 / (1 - beta**steps) if self.bias_correction else 1.0


class Adagrad(Adaptive):
    """FedAdagrad: v <- v + delta^2. v never falls, and has no bias correction."""

    kind: Literal["adagrad"] = "adagrad"
    beta1: float = Field(default=0.0, ge=0.0, lt=1.0)
    """0 by default, as in the paper's experiments."""


class Adam(Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) delta^2."""

    kind: Literal["adam"] = "adam"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """decay factor of the second moment in each step."""


class Yogi(Adaptive):
    """FedYogi: v <- v - (1 - beta2) delta^2 sign(v - delta^2), so that v falls slowly."""

    kind: Literal["yogi"] = "yogi"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """1 - beta2 is the rate at which the second moment follows delta^2."""
