"""MOON: representations held near those of the global model (Li et al., 2021)."""

from typing import Literal

from pydantic import Field

from fedsim.common.errors import ScenarioError
from fedsim.common.training import Contrast, Training
from fedsim.federation import Contents, Device, Instruction, LocalResult, RunInfo
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.toolbox.strategies.personal import OwnModelClient


class MOONParams(AggregatingParams):
    """Parameters of MOON, in addition to ``AggregatingParams``."""

    kind: Literal["moon"] = "moon"
    mu: float = Field(default=1.0, ge=0.0, le=1e6)
    """weight of the contrastive term; 0 is FedAvg, which asks no other models."""
    temperature: float = Field(default=0.5, gt=0.0, le=1e6)
    """tau, by which similarities are divided."""


class MOONClient(OwnModelClient[MOONParams]):
    """Trains with the contrastive term; its own model is the one that it trained last."""

    def __init__(self, params: MOONParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        layers = list(
            {tensor.name.rpartition(".")[0]: tensor.layer for tensor in setting.tensors()}.values()
        )
        if params.mu and layers and "Linear" not in layers[1:]:
            raise ScenarioError(
                "strategy.kind is 'moon', which compares what comes to a model's last dense "
                "layer, and before it this one has "
                f"nothing to train: its layers are {', '.join(layers)}; allowed are models "
                "with a torch.nn.Linear that is not "
                "their first layer, such as model.kind = 'mlp'"
            )

    def training(self, device: Device, instruction: Instruction) -> Training:
        contrast = Contrast(self.last(device), self.params.mu, self.params.temperature)
        return Training(
            instruction["model"],
            self.params.local_epochs,
            contrast=contrast if self.params.mu else None,
        )

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.trained is not None
        return self.answer(device, instruction, result, result.trained, self.last(device))


class MOON(FedAvg[MOONParams]):
    """Model-contrastive federated learning.

    Source: Li, He and Song, "Model-contrastive federated learning" (CVPR 2021), Algorithm 1 and Eq.
    3 (numbers from memory): to the loss of each sample comes mu times -log(e^(s / tau) / (e^(s /
    tau) + e^(t / tau))), where s is the cosine of its representation by the model that is trained
    to that by the received model, and t the same to that by the client's model of the last time.
    The representation is the input of the last dense layer (``torch.nn.Linear``), where the paper
    has a projection head; both other models are asked without dropout. The reported training loss
    is without the term.

    Sends what FedAvg sends. A step takes two forward passes more, 5/3 of FedAvg's, and on devices
    with a memory room for the weights of two models. A client whose answer is cut off keeps its
    last model; a newcomer's is the first model of all.
    """

    Params = MOONParams
    Client = MOONClient
