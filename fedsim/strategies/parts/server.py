"""Server optimisers: steps from the model along the aggregated update."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.common.registry import Registry
from fedsim.common.spec import OnlyWith, Spec
from fedsim.federation import Server
from fedsim.learning.refs import Ref

_HERE = "fedsim.strategies.parts.server"
_TOOLS = "fedsim.toolbox.optimisers"
OPTIMISERS = Registry(
    "server optimiser",
    f"{_HERE}:ServerOptimiser",
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
)


class ServerOptimiser(Spec):
    """The base of every server optimiser.

    Its memory is ``state``: JSON-able values and refs, one for each model.
    """

    kind: str

    State: ClassVar[type[Any]] = dict
    """Class of its memory of one model: a plain dict, or a subclass of ``State``."""

    def step(self, server: Server, state: Any, model: Ref, aggregated: Ref) -> Ref:
        """The next model; ``aggregated`` is the aggregation of the updates, ``model`` the start
        of their trainings.
        """
        raise NotImplementedError


ServerOptimiserSpec = Annotated[ServerOptimiser, OPTIMISERS]


class SGD(ServerOptimiser):
    """v <- momentum v + (aggregated - w); w <- w + lr v. With lr = 1 and no momentum the
    aggregated update, up to rounding.

    Source: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution" (2019):
    FedAvgM.
    """

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=1.0, gt=0.0, le=1e6)
    """the server's learning rate."""
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """of its velocity."""
    nesterov: Annotated[bool, OnlyWith("momentum")] = False
    """w <- w + lr (momentum v + (aggregated - w)) instead, with the new v (Sutskever et al.,
    2013).
    """

    def step(self, server: Server, state: Any, model: Ref, aggregated: Ref) -> Ref:
        mix = server.models.mix
        delta = [(aggregated, 1.0), (model, -1.0)]
        known = [(state["velocity"], self.momentum)] if "velocity" in state else []
        velocity = mix([*delta, *known], rescale=False)
        if self.momentum:
            state["velocity"] = velocity
        along = (
            mix([*delta, (velocity, self.momentum)], rescale=False) if self.nesterov else velocity
        )
        return mix([(model, 1.0), (along, self.lr)], otherwise=model, rescale=False)
