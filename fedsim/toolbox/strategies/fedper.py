"""FedPer: the layers next to the output stay on each device (Arivazhagan et al., 2019)."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.learning.architecture import Tensor
from fedsim.toolbox.strategies.personal import Keeping, KeepingClient, KeepingParams


class HeadParams(KeepingParams):
    """Parameters of strategies whose devices keep a head of their own.

    Attributes:
        head: what stays: so many of the last layers with parameters, or names of tensors, in which * stands for anything.
    """

    head: Annotated[int, Field(ge=1)] | Annotated[list[str], Field(min_length=1)] = 1

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        if isinstance(self.head, int):
            layers = [tensor.name.rpartition(".")[0] for tensor in tensors]
            last = list(dict.fromkeys(layers))[-self.head :]
            return [layer in last for layer in layers]
        names = [tensor.name for tensor in tensors]
        for pattern in self.head:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ScenarioError(
                    f"strategy.head has {pattern!r}, and the model has no such tensor; it has {', '.join(names)}"
                )
        return [any(fnmatchcase(name, pattern) for pattern in self.head) for name in names]


class FedPerParams(HeadParams):
    """Parameters of FedPer; see ``HeadParams`` and ``AggregatingParams``."""

    kind: Literal["fedper"] = "fedper"


class FedPer(Keeping[FedPerParams]):
    """Federated learning with personalisation layers.

    Source: Arivazhagan et al., "Federated learning with personalization layers" (2019), Algorithm 1: each client trains the
    base layers that it received together with its own head, in one local solve, and sends the base layers back; they become
    the mean weighted by samples.

    Sends the base layers, down and up (4 bytes a number of theirs, ``model`` and ``update``). All heads begin as that of the
    initial model, where the paper draws one for each client. A device is tested with the base layers of the server and its own
    head; newcomers, and devices that have never answered, with the initial one.
    """

    Params = FedPerParams
    Client = KeepingClient
