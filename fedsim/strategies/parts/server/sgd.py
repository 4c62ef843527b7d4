"""FedAvgM (Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution", 2019)."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedsim.federation.server import Server
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.server import ServerOptimiser


class SGD(ServerOptimiser):
    """v <- momentum v + (aggregated - w); w <- w + lr v. With lr = 1 and no momentum the aggregated update, up to rounding.

    State: ``velocity``.

    Attributes:
        lr: the server's learning rate.
        momentum: of its velocity.
        nesterov: w <- w + lr (momentum v + (aggregated - w)) instead, with the new v (Sutskever et al., 2013).
    """

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=1.0, gt=0.0, le=1e6)
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    nesterov: bool = False

    @model_validator(mode="after")
    def _has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("'nesterov' needs a 'momentum' above 0")
        return self

    def step(self, server: Server, state: dict[str, Any], model: Ref, aggregated: Ref) -> Ref:
        delta = [(aggregated, 1.0), (model, -1.0)]
        known = [(state["velocity"], self.momentum)] if "velocity" in state else []
        velocity = server.mix([*delta, *known], rescale=False)
        if self.momentum:
            state["velocity"] = velocity
        along = server.mix([*delta, (velocity, self.momentum)], rescale=False) if self.nesterov else velocity
        return server.mix([(model, 1.0), (along, self.lr)], otherwise=model, rescale=False)
