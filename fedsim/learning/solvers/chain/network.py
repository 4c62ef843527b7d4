"""A chain of layers with its parameters, in one thread."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedsim.learning import architecture as described
from fedsim.learning.solvers.base import Descent
from fedsim.learning.solvers.chain.direct import Direct
from fedsim.learning.solvers.chain.dropout import Dropout
from fedsim.learning.solvers.chain.layers import Flatten, Layer, Linear, ReLU
from fedsim.learning.solvers.chain.pooling import MaxPool
from fedsim.learning.solvers.chain.unfolding import Unfolded
from fedsim.learning.solvers.chain.winograd import Winograd

_TRAINED = (Linear, Winograd, Unfolded, Direct)


class Network:
    """The layers of an architecture, and memory for their work.

    Args:
        architecture: what it is made of.
        dtype: of the numbers.
    """

    def __init__(self, architecture: described.Architecture, dtype: torch.dtype) -> None:
        self._layers: list[Layer] = list(_layers(architecture, dtype))
        trained = [(at, layer.trained) for at, layer in enumerate(self._layers) if isinstance(layer, _TRAINED)]
        self._kernels = [kernel for _, kernel in trained]
        self._sizes = [kernel.size for kernel in self._kernels]
        self._lowest = trained[0][0]
        self._dropouts = [layer for layer in self._layers if isinstance(layer, Dropout)]

    def load(self, weights: Tensor) -> None:
        """Take the parameters of a flat model, [d]."""
        for kernel, own in zip(self._kernels, torch.split(weights, self._sizes), strict=True):
            kernel.load(own)

    def store(self, weights: Tensor) -> None:
        """Write the parameters into a flat model, [d]."""
        for kernel, own in zip(self._kernels, torch.split(weights, self._sizes), strict=True):
            kernel.store(own)

    def begin(self, descent: Descent, constant: Tensor | None) -> None:
        """Start training from the parameters there are; ``constant`` is that of ``LocalSolve``."""
        parts = [None] * len(self._sizes) if constant is None else torch.split(constant, self._sizes)
        for kernel, own in zip(self._kernels, parts, strict=True):
            kernel.begin(descent, own)

    def outputs(self, x: Tensor) -> Tensor:
        """Logits of samples, channels last, without dropout; writes over ``x``."""
        for layer in self._layers:
            if not isinstance(layer, Dropout):
                x = layer.forward(x)
        return x

    def forward(self, x: Tensor, key: int) -> Tensor:
        """Logits of a batch, channels last, for a step of training with that key; writes over ``x``."""
        for dropout in self._dropouts:
            dropout.key = key
        for layer in self._layers:
            x = layer.forward(x)
        return x

    def backward(self, error: Tensor) -> None:
        """One SGD step of all parameters, given the gradient of the loss by the logits."""
        for at in range(len(self._layers) - 1, self._lowest - 1, -1):
            error = self._layers[at].backward(error, onward=at > self._lowest)


def _layers(architecture: described.Architecture, dtype: torch.dtype) -> Iterator[Layer]:
    """The layers; pooling and ReLU beside each other become one."""
    layers, place, at = architecture.layers, 0, 0
    while at < len(layers):
        layer, after = layers[at], layers[at + 1] if at + 1 < len(layers) else None
        lowest = at == next(architecture.trained())[0]
        at += 1
        match layer, after:
            case (described.MaxPool2d(size), described.ReLU()) | (described.ReLU(), described.MaxPool2d(size)):
                yield MaxPool(size, True, dtype)
                at += 1
            case described.MaxPool2d(size), _:
                yield MaxPool(size, False, dtype)
            case described.ReLU(), _:
                yield ReLU()
            case described.Flatten(), _:
                yield Flatten()
            case described.Linear(), _:
                yield Linear(layer, dtype)
            case described.Conv2d(), _:
                kinds: tuple[type[Winograd | Unfolded | Direct], ...] = (Winograd, Unfolded, Direct)
                yield next(kind for kind in kinds if kind.suits(layer, lowest))(layer, dtype)
            case described.Dropout(rate), _:
                if rate:
                    yield Dropout(rate, place, dtype)
                place += 1
