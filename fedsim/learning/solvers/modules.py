"""Torch modules from architectures, and flat models from modules and back."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import nn

from fedsim.learning.architecture import Architecture, Conv2d, Dropout, Flatten, Layer, Linear, MaxPool2d, ReLU
from fedsim.learning.refs import Weights


def module_of(architecture: Architecture) -> nn.Module:
    """The layers as a ``nn.Sequential``; its weights are whatever the memory held."""
    with torch.device("meta"):
        empty = nn.Sequential(*(_layer(layer) for layer in architecture.layers))
    return empty.to_empty(device="cpu")


def _layer(layer: Layer) -> nn.Module:
    match layer:
        case Linear(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case Conv2d(inputs, outputs, kernel, stride, padding):
            return nn.Conv2d(inputs, outputs, kernel, stride, padding)
        case MaxPool2d(size):
            return nn.MaxPool2d(size)
        case Dropout(rate):
            return nn.Dropout(rate)
        case ReLU():
            return nn.ReLU()
        case Flatten():
            return nn.Flatten()


def flat_weights(parameters: Sequence[torch.Tensor], dtype: DTypeLike = np.float32) -> Weights:
    """Parameters as one vector [d], each in row-major order."""
    with torch.no_grad():
        return torch.cat([parameter.reshape(-1) for parameter in parameters]).cpu().numpy().astype(dtype, copy=False)


def load_weights(parameters: Sequence[torch.Tensor], weights: Weights) -> None:
    """Copy a flat model into parameters."""
    flat, at = torch.tensor(weights), 0
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(flat[at : at + parameter.numel()].view(parameter.shape))
            at += parameter.numel()


def kernels(module: nn.Module) -> set[str]:
    """Names of the parameters that are kernels: weights of dense layers and convolutions."""
    kinds = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
    return {f"{name}.weight" if name else "weight" for name, part in module.named_modules() if isinstance(part, kinds)}
