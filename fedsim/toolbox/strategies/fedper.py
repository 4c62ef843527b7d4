"""FedPer: the layers next to the output stay on each device (Arivazhagan et al., 2019)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.learning.architecture import Tensor, matching_names
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.traits import Traits


class FedPerParams(AggregatingParams):
    """Keys of ``[strategy]`` for FedPer: the last layers, the head, that stay on the devices.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation.

    Attributes:
        head: the tensors that stay on the device: the number of last layers with parameters, or
            names of tensors, in which * matches anything.
    """

    traits: ClassVar[Traits] = Traits(kept_by="strategy")
    kind: Literal["fedper"] = "fedper"
    head: Annotated[int, Field(ge=1)] | Annotated[list[str], Field(min_length=1)] = 1

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        if isinstance(self.head, int):
            layers = [tensor.name.rpartition(".")[0] for tensor in tensors]
            last_layers = list(dict.fromkeys(layers))[-self.head :]
            return [layer in last_layers for layer in layers]
        names = [tensor.name for tensor in tensors]
        head_names = matching_names(names, self.head, "strategy.head")
        return [name in head_names for name in names]


class FedPer(FedAvg[FedPerParams]):
    """Federated learning with personalisation layers.

    Source: Arivazhagan et al., "Federated learning with personalization layers" (2019), Algorithm
    1. The model is cut into base layers, which all clients share, and a head, the last layers, of
    which each client keeps its own. Each client trains the received base layers together with its
    own head, and sends the base layers back, which are averaged.

    Only the base layers are sent, down and up (4 bytes for each parameter, ``model`` and
    ``update``). All heads begin as the head of the initial model. In the paper each client draws
    its own first head. A device is tested with its own head.
    """

    Params = FedPerParams
