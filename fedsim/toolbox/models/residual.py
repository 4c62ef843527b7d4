"""Torch module of ResNet-18 with group norm: images [n, c, h, w] to scores [n, outputs]."""

import torch
from torch import Tensor, nn

_STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))
"""For each pair of blocks: its channels as a multiple of the first pair's; its first stride."""


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group norm, whose output is added to the block's input.

    Source: He et al. 2016.

    Args:
        inputs: count of input channels.
        outputs: count of output channels.
        stride: stride of the first convolution; if it is not 1, or if ``inputs`` differs from
            ``outputs``, a 1x1 convolution with group norm changes the input's shape.
        groups: count of groups of each norm.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        # the connection around ``body``, which adapts the shape if the block changes it
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.short = nn.Sequential(convolution, nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet18(inputs: int, outputs: int, channels: int = 64, groups: int = 2) -> nn.Sequential:
    """Build ResNet-18 for small images: a 3x3 convolution, eight blocks, mean pool, dense layer.

    Args:
        inputs: channels of an image.
        outputs: count of scores.
        channels: channels of the first blocks; the last blocks have eight times as many.
        groups: count of groups of each norm.
    """
    parts: list[nn.Module] = [
        nn.Conv2d(inputs, channels, 3, 1, 1, bias=False),
        nn.GroupNorm(groups, channels),
        nn.ReLU(),
    ]
    width = channels
    for multiple, stride in _STAGES:
        next_width = multiple * channels
        parts.append(ResidualBlock(width, next_width, stride, groups))
        parts.append(ResidualBlock(next_width, next_width, 1, groups))
        width = next_width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, outputs))
