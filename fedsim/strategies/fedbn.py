"""FedBN: the normalisation layers stay on each device (Li et al., 2021)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedsim.errors import ScenarioError
from fedsim.learning.architecture import Tensor
from fedsim.strategies.personal import Keeping, KeepingClient, KeepingParams
from fedsim.strategies.synchronous import RoundParams


class FedBNParams(KeepingParams):
    """What FedBN takes; see ``AggregatingParams``."""

    kind: Literal["fedbn"] = "fedbn"

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Those of layers whose class is called a norm: ``BatchNorm2d``, ``GroupNorm``, ``LayerNorm``, or one of the user's.

        Raises:
            ScenarioError: the model has none.
        """
        found = ["norm" in tensor.layer.lower() for tensor in tensors]
        if not any(found):
            layers = ", ".join(dict.fromkeys(tensor.layer for tensor in tensors))
            raise ScenarioError(
                f"strategy.kind is 'fedbn', and the model has no normalisation layer, only {layers}; allowed is a "
                "model.factory of a module with one, torch.nn.BatchNorm2d say"
            )
        return found


class FedBN(Keeping[FedBNParams]):
    """FedAvg without the normalisation layers.

    Source: Li et al., "FedBN: federated learning on non-IID features via local batch normalization" (ICLR 2021), Algorithm 1:
    after local training the server averages all layers but the normalisation layers, which each client keeps.

    Sends all other tensors, down and up (``model`` and ``update``). Newcomers, and who has never answered, are tested with the
    normalisation layers of the initial model. Batch norms must have ``track_running_stats=False``: they then go by the batch,
    in tests too.
    """

    Params: ClassVar[type[RoundParams]] = FedBNParams
    Client = KeepingClient
