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
from fedsim.strategies.parts.server_optimizer import ServerOptimizer
from fedsim.strategies.state import State


@pure
def second_moment(
    models: list[NDArray[np.float32]], rule: str, at_first: float, beta: float
) -> Floats:
    """Compute the second moment v of an adaptive server optimiser after an update, float64 [d].

    Source: Reddi 2021, Algorithm 2. The update delta is the aggregated update minus the model.

    Args:
        models: delta and v, each float32 [d]; if v is missing, all its entries are ``at_first``.
        rule: ``adagrad``, ``adam`` or ``yogi``.
        at_first: the first value of v.
        beta: beta2, the weight of the old v; not used by ``adagrad``.
    """
    delta = models[0].astype(np.float64)
    # the old v, or the number ``at_first``
    square = models[1] if len(models) > 1 else at_first
    if rule == "adagrad":
        moment = square + delta**2
    elif rule == "adam":
        moment = delta**2 * (1 - beta) + beta * square
    else:
        moment = square - (1 - beta) * delta**2 * np.sign(square - delta**2)
    # the moment v stays finite, as with an infinite v no later step would move the model
    return np.minimum(moment, np.finfo(np.float32).max, out=moment)


@pure
def adaptive_step(
    models: list[NDArray[np.float32]], lr: float, tau: float, mean_scale: float, square_scale: float
) -> Floats:
    """Compute the next model of an adaptive server optimiser, float64 [d].

    With the model w, the first moment m and the second moment v it is w + lr m / (sqrt(v) + tau).

    Args:
        models: w, m and v, each float32 [d].
        lr: the server's learning rate.
        tau: constant that is added to the root of v.
        mean_scale: factor of m, for bias correction.
        square_scale: factor of v, for bias correction.
    """
    weights, mean, square = (array.astype(np.float64) for array in models)
    return weights + mean * mean_scale * lr / (np.sqrt(square * square_scale) + tau)


@dataclass
class AdaptiveState(State):
    """State of an adaptive server optimiser for one model: its moments.

    Attributes:
        steps: Number of steps made.
        mean: m, the first moment [d]; None while it is 0.
        square: v, the second moment [d]; None before the first step.
    """

    steps: int = 0
    mean: Ref | None = None
    square: Ref | None = None


class Adaptive(ServerOptimizer):
    """Base of the server optimisers that scale steps by moments of past updates, such as FedAdam.

    With the model w and delta, the aggregated update minus w, a step sets m <- beta1 m + (1 -
    beta1) delta, then v by the rule of the subclass, and w <- w + lr m / (sqrt(v) + tau).

    Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2. There m begins
    at 0 and v at tau^2, without bias correction. With ``bias_correction`` both begin at 0. Before
    their use in step t, m is then divided by 1 - beta1^t, and v by 1 - beta2^t if its rule has a
    decay factor beta2, as in Adam (Kingma and Ba, 2015).

    Attributes:
        lr: the server's learning rate, eta.
        beta1: decay factor of the first moment in each step.
        tau: constant that is added to the root of v; the smaller it is, the more a step is scaled
            by v.
        bias_correction: whether m and v are corrected as in Adam: v begins at 0 like m, and the
            moments are divided by 1 - beta^t.
    """

    lr: float = Field(default=0.01, gt=0.0, le=1e6)
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    tau: float = Field(default=1e-3, ge=1e-12, le=1e6)
    bias_correction: bool = False

    State = AdaptiveState

    def step(self, server: Server, state: AdaptiveState, model: Ref, aggregated: Ref) -> Ref:
        """Update the moments of the aggregated change, and move the model by them.

        ``state.mean`` and ``state.square`` are the first and the second moment, m and v; None
        before the first step, when m counts as 0.
        """
        models = server.models
        beta2 = getattr(self, "beta2", 0.0)  # Adagrad has no beta2
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
    """FedAdagrad: v <- v + delta^2. v never falls, and has no bias correction.

    Attributes:
        beta1: 0 by default, as in the paper's experiments.
    """

    kind: Literal["adagrad"] = "adagrad"
    beta1: float = Field(default=0.0, ge=0.0, lt=1.0)


class Adam(Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) delta^2.

    Attributes:
        beta2: decay factor of the second moment in each step.
    """

    kind: Literal["adam"] = "adam"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)


class Yogi(Adaptive):
    """FedYogi: v <- v - (1 - beta2) delta^2 sign(v - delta^2), so that v falls slowly.

    Attributes:
        beta2: in each step, an entry of v moves by (1 - beta2) delta^2 towards delta^2.
    """

    kind: Literal["yogi"] = "yogi"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
