"""Server optimisers: what the server makes of an aggregated update, instead of taking it for the new model."""

from typing import TYPE_CHECKING, Annotated, Any

from fedsim.federation.server import Server
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec

if TYPE_CHECKING:
    from fedsim.learning import Ref

_HERE = "fedsim.strategies.parts.server"
OPTIMISERS = Registry(
    "server optimiser",
    f"{_HERE}:ServerOptimiser",
    {
        "sgd": (f"{_HERE}.sgd:SGD", "a step along the pseudo-gradient, with momentum (FedAvgM)"),
        "adagrad": (f"{_HERE}.adagrad:Adagrad", "steps scaled by the sum of all squared pseudo-gradients (FedAdagrad)"),
        "adam": (f"{_HERE}.adam:Adam", "steps scaled by both moments of the pseudo-gradient (FedAdam)"),
        "yogi": (f"{_HERE}.yogi:Yogi", "as adam, with a second moment that changes in small steps alone (FedYogi)"),
    },
    usual="sgd",
)


class ServerOptimiser(Spec):
    """The base of every server optimiser. What it must remember is in ``state``: JSON-able values and refs, one a model."""

    kind: str

    def step(self, server: Server, state: dict[str, Any], model: "Ref", aggregated: "Ref") -> "Ref":
        """The next model; ``aggregated`` is what the updates have become, ``model`` that from which they began."""
        raise NotImplementedError


ServerOptimiserSpec = Annotated[ServerOptimiser, OPTIMISERS]
