"""Adaptive server optimisers (Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2): what they share."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats
from fedsim.federation.server import Server
from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.server import ServerOptimiser

if TYPE_CHECKING:
    from fedsim.learning import Ref


def delta_and_square(models: list[NDArray[np.float32]], at_first: float) -> tuple[Floats, NDArray[np.float32] | float]:
    """Of [delta, v] both, delta as float64 [d]; of [delta] alone with a v that is ``at_first`` everywhere."""
    return models[0].astype(np.float64), models[1] if len(models) > 1 else at_first


def bounded(square: Floats) -> Floats:
    """A second moment that stays finite: one huge update must not last for ever."""
    limited: Floats = np.minimum(square, np.finfo(np.float32).max, out=square)
    return limited


@pure
def step(models: list[NDArray[np.float32]], lr: float, tau: float, mean_scale: float, square_scale: float) -> Floats:
    """w + lr m / (sqrt(v) + tau) of [w, m, v], both moments scaled."""
    weights, mean, square = (array.astype(np.float64) for array in models)  # changed in place: new arrays cost more than sums
    mean *= mean_scale
    mean *= lr
    square *= square_scale
    np.sqrt(square, out=square)
    square += tau
    mean /= square
    weights += mean
    return weights


class Adaptive(ServerOptimiser):
    """With delta = aggregated - w: m <- beta1 m + (1 - beta1) delta, v by ``second_moment``, w <- w + lr m / (sqrt(v) + tau).

    As in Algorithm 2, v begins at tau^2 and m at 0, and neither is corrected. With ``bias_correction`` v begins at 0 too, and a
    moment that is a decaying mean is divided by 1 - beta^t, as in Adam (Kingma and Ba, 2015).

    State: ``mean`` and ``square`` (refs), ``steps``.

    Attributes:
        lr: the server's learning rate, eta.
        beta1: how long the first moment remembers.
        tau: how adaptive it is; the smaller the more.
        bias_correction: see above.
    """

    lr: float = Field(default=0.01, gt=0.0, le=1e6)
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    tau: float = Field(default=1e-3, ge=1e-12, le=1e6)
    bias_correction: bool = False

    def second_moment(self) -> tuple[Function, dict[str, Any], float]:
        """The rule for v: a pure function of [delta, v], its constants, and the beta by which v is corrected (0: it is not)."""
        raise NotImplementedError

    def step(self, server: Server, state: dict[str, Any], model: "Ref", aggregated: "Ref") -> "Ref":
        count = state["steps"] = state.get("steps", 0) + 1
        delta = server.mix([(aggregated, 1.0), (model, -1.0)], rescale=False)
        known = [(state["mean"], self.beta1)] if "mean" in state else []
        state["mean"] = server.mix([*known, (delta, 1 - self.beta1)], rescale=False)
        squares = [delta, state["square"]] if "square" in state else [delta]
        rule, constants, beta2 = self.second_moment()
        state["square"] = server.apply(rule, squares, at_first=0.0 if self.bias_correction else self.tau**2, **constants)
        scales = [1 / (1 - beta**count) if self.bias_correction else 1.0 for beta in (self.beta1, beta2)]
        moments = [model, state["mean"], state["square"]]
        how: dict[str, Any] = {"lr": self.lr, "tau": self.tau, "mean_scale": scales[0], "square_scale": scales[1]}
        return server.apply(step, moments, otherwise=model, **how)
