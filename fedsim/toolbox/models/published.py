"""Models of papers, whose parameter counts are tested against the published ones.

Convolutions pad symmetrically. Keras, in which some papers' models are written, pads one row more
at the end for even inputs and stride 2, which shifts values by a pixel.
"""

from typing import ClassVar, Literal

from fedsim.learning.architecture import Dropout, Flatten, Layer, MaxPool2d, convolution, dense
from fedsim.learning.models import Layered, pooled, two_convolutions


class FemnistPerceptron(Layered):
    """FlexCFL's FEMNIST-MLP: 784-512-10, 407,050 parameters."""

    kind: Literal["femnist-mlp"] = "femnist-mlp"
    layers: ClassVar[tuple[Layer, ...]] = dense(512)


def _block(channels: int) -> tuple[Layer, ...]:
    return (*convolution(channels, 3, same=False) * 2, *convolution(channels, 5, 2), Dropout(0.4))


def _pair(channels: int) -> tuple[Layer, ...]:
    return (*convolution(channels, 3) * 2, MaxPool2d(2), Dropout(0.2))


class MnistCNN(Layered):
    """FlexCFL's CNN for MNIST, with 50,186 parameters.

    Layers: convolution 3x3x32, pool, convolution 3x3x64, pool, dropout 0.5, dense outputs.
    """

    kind: Literal["mnist-cnn"] = "mnist-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (*two_convolutions(32, 64, 3), Dropout(0.5))


class FemnistCNN(Layered):
    """FlexCFL's FEMNIST-CNN: six convolutions, two with stride 2, dense 128; 325,578 parameters."""

    kind: Literal["femnist-cnn"] = "femnist-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (
        *_block(32),
        *_block(64),
        Flatten(),
        *dense(128),
        Dropout(0.4),
    )


class FashionCNN(Layered):
    """FlexCFL's CNN for Fashion-MNIST, with 3,274,634 parameters.

    Layers: convolution 5x5x32, pool, convolution 5x5x64, pool, dense 1024, dense outputs.
    """

    kind: Literal["fashion-cnn"] = "fashion-cnn"
    layers: ClassVar[tuple[Layer, ...]] = two_convolutions(32, 64, 5, 1024)


class LcflCNN(Layered):
    """LCFL's CNN for MNIST and FEMNIST, with 417,482 parameters.

    Layers: convolution 5x5x16, pool, convolution 5x5x32, pool, dense 256, dense outputs.
    """

    kind: Literal["lcfl-cnn"] = "lcfl-cnn"
    layers: ClassVar[tuple[Layer, ...]] = two_convolutions(16, 32, 5, 256)


class LcflCifarCNN(Layered):
    """LCFL's CNN for CIFAR-10, with 610,142 parameters.

    Layers: convolutions 5x5x32 and 5x5x84 without padding, each pooled, dense 256, dense outputs.
    """

    kind: Literal["lcfl-cifar-cnn"] = "lcfl-cifar-cnn"
    layers: ClassVar[tuple[Layer, ...]] = two_convolutions(32, 84, 5, 256, same=False)


class CflCNN(Layered):
    """CFL's CNN of five layers, with 188,810 parameters on CIFAR-10.

    A convolution 3x3x32 and two 3x3x64, each pooled, then dense 128. The paper does not give these
    widths.
    """

    kind: Literal["cfl-cnn"] = "cfl-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (
        *pooled(32, 3),
        *pooled(64, 3) * 2,
        Flatten(),
        *dense(128),
    )


class CataCNN(Layered):
    """CATA-Fed's CNN: three pairs of convolutions, and four dense layers.

    The 3x3 convolutions of the three pairs have 32, 64 and 128 channels; pooling and dropout 0.2
    follow each pair. The dense layers have 1024, 512 and 256 units, and the outputs. The model has
    3,043,882 parameters on CIFAR-10, 2,125,802 on MNIST. The padding, and pooling after each pair,
    are our reading of the paper.
    """

    kind: Literal["cata-cnn"] = "cata-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (
        *_pair(32),
        *_pair(64),
        *_pair(128),
        Flatten(),
        *dense(1024, 512, 256),
    )


class LeafCNN(Layered):
    """LEAF's CNN for FEMNIST (Caldas et al. 2018), with 6,603,710 parameters on 62 classes.

    Layers: convolution 5x5x32, pool, convolution 5x5x64, pool, dense 2048, dense outputs.
    """

    kind: Literal["leaf-cnn"] = "leaf-cnn"
    layers: ClassVar[tuple[Layer, ...]] = two_convolutions(32, 64, 5, 2048)


class EmnistCNN(Layered):
    """The CNN of Reddi et al. 2021 for EMNIST, with 1,206,590 parameters on 62 classes.

    Layers: convolutions 3x3x32 and 3x3x64 without padding, pool, dropout 0.25, dense 128, dropout
    0.5, dense outputs. FLUTE and FedML compare with this model, too.
    """

    kind: Literal["emnist-cnn"] = "emnist-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (
        *convolution(32, 3, same=False),
        *convolution(64, 3, same=False),
        MaxPool2d(2),
        Dropout(0.25),
        Flatten(),
        *dense(128),
        Dropout(0.5),
    )
