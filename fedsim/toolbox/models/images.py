"""``model.kind = "resnet18-gn"``: ResNet-18 with group norm, for images."""

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError
from fedsim.learning.architecture import Shape
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.models import TorchModel

if TYPE_CHECKING:
    from torch import nn


class ResNet18(TorchModel):
    """ResNet-18 for small images, with group norm in place of batch norm.

    Source: He et al. 2016; group norm as in Hsieh et al. 2020 and Reddi et al. 2021. 11,173,962
    parameters (44.7 MB) on CIFAR-10, 11,220,132 on CIFAR-100. The first convolution is 3x3 with
    stride 1 and no pooling follows it, as is usual for images of 32x32 pixels.

    Attributes:
        channels: count of channels of the first blocks; the last blocks have eight times as many. A
            smaller count makes a smaller and faster model of the same depth.
        groups: count of groups of channels in each group norm, a divisor of ``channels``.
    """

    is_tried: ClassVar[bool] = False
    kind: Literal["resnet18-gn"] = "resnet18-gn"
    channels: int = Field(default=64, ge=1, le=4_096)
    groups: int = Field(default=2, ge=1, le=4_096)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.channels % self.groups:
            raise ValueError(
                f"'groups' is {self.groups}, which does not divide 'channels' = {self.channels}"
            )
        return self

    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        from fedsim.learning.modules import make_seeded
        from fedsim.toolbox.models.residual import resnet18

        if isinstance(shape, TokenShape) or len(shape) != 3:
            raise ScenarioError(
                f"model.kind is {self.kind!r}, which takes images of shape (channels, height, "
                f"width), and samples are of shape {tuple(shape)}"
            )
        return make_seeded(lambda: resnet18(shape[0], classes, self.channels, self.groups), seed)
