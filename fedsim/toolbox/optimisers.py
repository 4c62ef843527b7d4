"""Adaptive server optimisers: FedAdagrad, FedAdam and FedYogi."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.arrays import Floats
from fedsim.federation import Server
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.server import ServerOptimiser


@pure
def second_moment(
    models: list[NDArray[np.float32]], rule: str, at_first: float, beta: float
) -> Floats:
    """v after delta, of [delta, v], or of [delta] with a v that is ``at_first`` everywhere."""
    delta = models[0].astype(np.float64)
    square = models[1] if len(models) > 1 else at_first
    if rule == "adagrad":
        found = square + delta**2
    elif rule == "adam":
        found = delta**2 * (1 - beta) + beta * square
    else:
        found = square - (1 - beta) * delta**2 * np.sign(square - delta**2)
    # one huge update must not last for ever
    return np.minimum(found, np.finfo(np.float32).max, out=found)


@pure
def adaptive_step(
    models: list[NDArray[np.float32]], lr: float, tau: float, mean_scale: float, square_scale: float
) -> Floats:
    """w + lr m / (sqrt(v) + tau) of [w, m, v], both moments scaled."""
    weights, mean, square = (array.astype(np.float64) for array in models)
    return weights + mean * mean_scale * lr / (np.sqrt(square * square_scale) + tau)


class Adaptive(ServerOptimiser):
    """With delta = aggregated - w: m <- beta1 m + (1 - beta1) delta, v by each kind's rule, w <-
    w + lr m / (sqrt(v) + tau).

    Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2: v begins at
    tau^2 and m at 0, and neither is corrected. With ``bias_correction`` v begins at 0 too, and a
    moment that is a decaying mean is divided by 1 - beta^t, as in Adam (Kingma and Ba, 2015).
    """

    lr: float = Field(default=0.01, gt=0.0, le=1e6)
    """the server's learning rate, eta."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """how long the first moment remembers."""
    tau: float = Field(default=1e-3, ge=1e-12, le=1e6)
    """how adaptive it is; the smaller the more."""
    bias_correction: bool = False
    """see above."""

    def step(self, server: Server, state: dict[str, Any], model: Ref, aggregated: Ref) -> Ref:
        count = state["steps"] = state.get("steps", 0) + 1
        delta = server.models.mix([(aggregated, 1.0), (model, -1.0)], rescale=False)
        known = [(state["mean"], self.beta1)] if "mean" in state else []
        state["mean"] = server.models.mix([*known, (delta, 1 - self.beta1)], rescale=False)
        squares = [delta, state["square"]] if "square" in state else [delta]
        beta2 = getattr(self, "beta2", 0.0)
        at_first = 0.0 if self.bias_correction else self.tau**2
        state["square"] = server.models.apply(
            second_moment, squares, rule=self.kind, at_first=at_first, beta=beta2
        )
        scales = [
            1 / (1 - beta**count) if self.bias_correction else 1.0 for beta in (self.beta1, beta2)
        ]
        how: dict[str, Any] = {
            "lr": self.lr,
            "tau": self.tau,
            "mean_scale": scales[0],
            "square_scale": scales[1],
        }
        return server.models.apply(
            adaptive_step, [model, state["mean"], state["square"]], otherwise=model, **how
        )


class Adagrad(Adaptive):
    """``Adaptive`` with v <- v + delta^2, which forgets nothing and is never corrected
    (FedAdagrad).
    """

    kind: Literal["adagrad"] = "adagrad"
    beta1: float = Field(default=0.0, ge=0.0, lt=1.0)
    """0 by default, as in the paper's experiments."""


class Adam(Adaptive):
    """``Adaptive`` with v <- beta2 v + (1 - beta2) delta^2 (FedAdam)."""

    kind: Literal["adam"] = "adam"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """how long the second moment remembers."""


class Yogi(Adaptive):
    """``Adaptive`` with v <- v - (1 - beta2) delta^2 sign(v - delta^2): v forgets a large change
    slowly (FedYogi).
    """

    kind: Literal["yogi"] = "yogi"
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """how slowly the second moment follows."""
