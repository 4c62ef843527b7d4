"""Server optimisers, which move the model along the aggregated update."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import OnlyWith, Spec
from fedsim.federation import Server
from fedsim.learning.refs import Ref
from fedsim.strategies.state import PartState, State

_HERE = "fedsim.strategies.parts.server_optimizer"
_TOOLS = "fedsim.toolbox.optimizers"
OPTIMIZERS = Registry(
    "server optimiser",
    f"{_HERE}:ServerOptimizer",
    {
        "sgd": (f"{_HERE}:SGD", "a step along the pseudo-gradient, with momentum (FedAvgM)"),
        "adagrad": (
            f"{_TOOLS}:Adagrad",
            "steps scaled by the sum of all squared pseudo-gradients (FedAdagrad)",
        ),
        "adam": (f"{_TOOLS}:Adam", "steps scaled by both moments of the pseudo-gradient (FedAdam)"),
        "yogi": (
            f"{_TOOLS}:Yogi",
            "as adam, with a second moment that changes in small steps alone (FedYogi)",
        ),
    },
    usual="sgd",
    key="strategy.server",
)


class ServerOptimizer(Spec):
    """Base of the rules by which the server moves its model towards the aggregated updates.

    A scenario names the rule by ``strategy.server``.
    """

    kind: str

    State: ClassVar[type[PartState]] = dict
    """Class of the optimiser's state for one model: a plain dict, or a subclass of ``State``."""

    def step(self, server: Server, state: PartState, model: Ref, aggregated: Ref) -> Ref:
        """Return the server's next model, one optimiser step from the present one.

        Args:
            server: API of the strategy's server code, with ``models`` for arithmetic.
            state: state of the optimiser for this model, a ``State``.
            model: the model [d] from which the updates were trained.
            aggregated: the aggregation [d] of the updates.

        Returns:
            The next model [d].
        """
        raise NotImplementedError


ServerOptimizerSpec = Annotated[ServerOptimizer, KindField(OPTIMIZERS)]


@dataclass
class SGDState(State):
    """State of the server optimiser ``sgd`` for one model: the velocity of its momentum.

    Attributes:
        velocity: Velocity v [d]; None before the first step, and if the momentum is 0.
    """

    velocity: Ref | None = None


class SGD(ServerOptimizer):
    """Gradient descent: v <- momentum v + (aggregated - w); w <- w + lr v.

    Here w is the server's model, aggregated the aggregation of the updates, and v the velocity, at
    first 0. With lr = 1 and no momentum the next model is the aggregation, up to rounding.

    Source: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution" (2019):
    FedAvgM.

    Attributes:
        lr: the server's learning rate.
        momentum: factor of the velocity v in each step.
        nesterov: w <- w + lr (momentum v + (aggregated - w)) instead, with the new v (Sutskever et
            al., 2013).
    """

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=1.0, gt=0.0, le=1e6)
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    nesterov: Annotated[bool, OnlyWith("momentum")] = False

    State = SGDState

    def step(self, server: Server, state: SGDState, model: Ref, aggregated: Ref) -> Ref:
        mix = server.models.mix
        delta = [(aggregated, 1.0), (model, -1.0)]
        momentum = [] if state.velocity is None else [(state.velocity, self.momentum)]
        velocity = mix([*delta, *momentum], rescale=False)
        if self.momentum:
            state.velocity = velocity
        direction = velocity
        if self.nesterov:
            direction = mix([*delta, (velocity, self.momentum)], rescale=False)
        return mix([(model, 1.0), (direction, self.lr)], otherwise=model, rescale=False)
