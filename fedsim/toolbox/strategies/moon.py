"""MOON: representations held near the global model's representations (Li et al., 2021)."""

from typing import Literal

from pydantic import Field

from fedsim.common.errors import ScenarioError
from fedsim.common.training import Contrast, Training
from fedsim.federation import Contents, Device, Instruction, LocalResult, RunInfo
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.toolbox.strategies.personal import OwnModelClient


class MOONParams(AggregatingParams):
    """Keys of ``[strategy]`` for MOON: weight and temperature of the contrastive loss.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation.

    Attributes:
        mu: weight of the contrastive term; with 0 the training is FedAvg's, without forward passes
            of other models.
        temperature: tau, by which similarities are divided.
    """

    kind: Literal["moon"] = "moon"
    mu: float = Field(default=1.0, ge=0.0, le=1e6)
    temperature: float = Field(default=0.5, gt=0.0, le=1e6)


class MOONClient(OwnModelClient[MOONParams]):
    """Client that trains with MOON's contrastive loss, and sends the result.

    The loss pulls the trained model's representation of each sample towards the representation of
    this sample by the received model, and pushes it away from the representation by the client's
    last model. The client stores its last model.
    """

    def __init__(self, params: MOONParams, setting: RunInfo) -> None:
        """Check that the model has representations, the inputs of a dense layer.

        Args:
            params: keys of the strategy.
            setting: information about the run, with the model's tensors.

        Raises:
            ScenarioError: no dense layer comes after another trained layer.
        """
        super().__init__(params, setting)
        # layer's name -> its class; a layer has several tensors
        layer_classes = {
            tensor.name.rpartition(".")[0]: tensor.layer for tensor in setting.tensors()
        }
        layers = list(layer_classes.values())
        if params.mu and layers and "Linear" not in layers[1:]:
            raise ScenarioError(
                "strategy.kind is 'moon', which compares what comes to a model's last dense "
                "layer, and before it this one has nothing to train: its layers are "
                f"{', '.join(layers)}; allowed are models with a torch.nn.Linear that is not their "
                "first layer, such as model.kind = 'mlp'"
            )

    def training(self, device: Device, instruction: Instruction) -> Training:
        params = self.params
        contrast = None
        if params.mu:
            contrast = Contrast(self.last(device), params.mu, params.temperature)
        return Training(instruction["model"], params.local_epochs, contrast=contrast)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.trained is not None
        last = self.last(device)
        return self.answer(device, instruction, result, own=result.trained, otherwise=last)


class MOON(FedAvg[MOONParams]):
    """Model-contrastive federated learning.

    It is FedAvg with a contrastive loss, which holds the representations of the model in training
    near the representations of the received model.

    Source: Li, He and Song, "Model-contrastive federated learning" (CVPR 2021), Algorithm 1 and Eq.
    3 (numbers from memory). The loss of each sample gets an additional term, mu times -log(e^(s /
    tau) / (e^(s / tau) + e^(t / tau))), with the keys ``mu`` and ``temperature`` (tau). The
    representation of a sample by a model is the input of the last dense layer
    (``torch.nn.Linear``); the paper has a projection head there.

    - s is the cosine of the representations by the trained model and by the received model.
    - t is the cosine of the representations by the trained model and by the client's last model,
      the result of its last training.

    The received and the last model run without dropout. The reported training loss is without the
    term.

    Messages are as in FedAvg, the model down and the update up (d parameters each). A step has two
    additional forward passes, and takes 5/3 of FedAvg's time. On devices with a limited memory, the
    weights of two additional models need memory too. A client whose answer does not arrive keeps
    its last model; before its first answer that is the run's first model.
    """

    Params = MOONParams
    Client = MOONClient
