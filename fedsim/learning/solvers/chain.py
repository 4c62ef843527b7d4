"""Chains of plain layers on a CPU, without autograd: one device at a time, whose weights and activations stay in the cache."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.learning import architecture as described
from fedsim.learning.refs import Weights
from fedsim.learning.solvers import layers
from fedsim.learning.solvers.base import BatchHint, Descent, LocalSolve, Solved, kernel_norm, mean_of
from fedsim.learning.solvers.dropout import step_key
from fedsim.learning.solvers.winograd import Winograd

_TRAINED = (layers.Linear, Winograd, layers.Conv2d)


class Network:
    """The layers of an architecture, and memory for their work.

    Args:
        architecture: what it is made of.
        dtype: of the numbers.
    """

    def __init__(self, architecture: described.Architecture, dtype: torch.dtype) -> None:
        self._layers: list[layers.Layer] = list(_layers(architecture, dtype))
        trained = [(at, layer.trained) for at, layer in enumerate(self._layers) if isinstance(layer, _TRAINED)]
        self._kernels = [kernel for _, kernel in trained]
        self._sizes = [kernel.size for kernel in self._kernels]
        self._lowest = trained[0][0]
        self._dropouts = [layer for layer in self._layers if isinstance(layer, layers.Dropout)]

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
            if not isinstance(layer, layers.Dropout):
                x = layer.forward(x)
        return x

    def forward(self, x: Tensor, key: int) -> Tensor:
        """Logits of a batch, channels last, for a step of training with that key; writes over ``x``."""
        for dropout in self._dropouts:
            dropout.begin_step(key)
        for layer in self._layers:
            x = layer.forward(x)
        return x

    def backward(self, error: Tensor) -> None:
        """One SGD step of all parameters, given the gradient of the loss by the logits."""
        for at in range(len(self._layers) - 1, self._lowest - 1, -1):
            error = self._layers[at].backward(error, onward=at > self._lowest)


def _layers(architecture: described.Architecture, dtype: torch.dtype) -> Iterator[layers.Layer]:
    """The layers; ReLU goes after the pooling that follows it: there are fewer numbers, and neither changes the other's."""
    ordered, place = list(architecture.layers), 0
    for at, pair in enumerate(pairwise(architecture.layers)):
        if isinstance(pair[0], described.ReLU) and isinstance(pair[1], described.MaxPool2d):
            ordered[at : at + 2] = pair[::-1]
    for layer in ordered:
        match layer:
            case described.MaxPool2d(size):
                yield layers.MaxPool2d(size)
            case described.ReLU():
                yield layers.ReLU()
            case described.Flatten():
                yield layers.Flatten()
            case described.Linear():
                yield layers.Linear(layer, dtype)
            case described.Conv2d():
                yield (Winograd if Winograd.suits(layer) else layers.Conv2d)(layer, dtype)
            case described.Dropout(rate):
                if rate:
                    yield layers.Dropout(rate, place)
                place += 1


_APPLIED_AT_ONCE = 32  # samples in one forward pass: activations then stay in the cache
_KEPT_FOR = 256  # samples in a batch; the memory for larger ones is given back after a device's training


class Chain:
    """Convolutions, pooling, dropout and dense layers under softmax cross-entropy, in closed form.

    Args:
        architecture: the layers.
        dtype: float32; float64 for tests of the gradients.
    """

    def __init__(self, architecture: described.Architecture, dtype: torch.dtype = torch.float32) -> None:
        self.device = torch.device("cpu")
        self._architecture = architecture
        self._dtype = dtype
        self._threads = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        """All but what threads of this process keep, for another process."""
        return {name: value for name, value in vars(self).items() if name != "_threads"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _threads=threading.local())

    def batch_hint(self, samples: int, width: int, steps: int) -> BatchHint:
        """See ``Solver``."""
        return BatchHint("chain", 1)

    @torch.inference_mode()
    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all, one after the other; see ``Solver``."""
        return [self._solve(solve, descent) for solve in solves]

    @torch.inference_mode()
    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        """Logits of samples [n, *shape]: [n, classes]."""
        return self._apply(self._loaded(weights), x)

    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        """The same for several models, one after the other."""
        return [self.outputs(own, x) for own, x in zip(weights, xs, strict=True)]

    @torch.inference_mode()
    def mean_losses(self, weights: Weights, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[float]:
        """Mean losses of one model, which is loaded once; see ``Solver``."""
        network = self._loaded(weights)
        return [
            mean_of(self.losses(self._apply(network, x), y)) if len(y) else float("nan") for x, y in zip(xs, ys, strict=True)
        ]

    def kernel_norm(self, weights: Weights) -> float:
        """The sum of the squared kernel entries."""
        tensors = self._architecture.tensors
        return kernel_norm(weights, tensors, {name for name, _ in tensors if name.endswith(".weight")})

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Softmax cross-entropy of each sample."""
        return functional.cross_entropy(outputs, y, reduction="none")

    def _solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        network = self._loaded(solve.weights)
        constant = solve.constant(descent)
        network.begin(descent, None if constant is None else torch.tensor(constant))
        batches, x, total = solve.batches, self._laid_out(solve.x), 0.0
        rows, room = torch.from_numpy(batches.rows), layers.Room(self._dtype)
        for step, count in enumerate(batches.counts.tolist()):
            batch = rows[step, :count]
            samples = torch.index_select(x, 0, batch, out=room.of(count, *x.shape[1:]))
            logs = network.forward(samples, step_key(solve.key, step)).log_softmax(1)
            right = solve.y[batch][:, None]
            if step >= batches.last_epoch:
                total -= float(logs.gather(1, right).sum(dtype=torch.float64))
            network.backward(logs.exp_().scatter_add_(1, right, logs.new_full((count, 1), -1.0)).div_(count))
        seen = int(batches.counts[batches.last_epoch :].sum())
        trained = torch.empty(self._architecture.parameters, dtype=self._dtype)
        network.store(trained)
        if rows.shape[1] > _KEPT_FOR:
            del self._threads.network
        return Solved(trained.numpy(), total / seen if seen else float("nan"))

    def _loaded(self, weights: Weights) -> Network:
        """This thread's network, with these weights."""
        if not hasattr(self._threads, "network"):
            self._threads.network = Network(self._architecture, self._dtype)
        network: Network = self._threads.network
        network.load(torch.tensor(weights))
        return network

    def _apply(self, network: Network, x: Tensor) -> Tensor:
        """Logits of samples [n, *shape], some at a time."""
        pieces = torch.split(x, _APPLIED_AT_ONCE)
        return torch.cat([network.outputs(self._laid_out(piece)).clone() for piece in pieces])

    def _laid_out(self, x: Tensor) -> Tensor:
        """A copy of samples [n, *shape], channels last."""
        order = (0, 2, 3, 1) if x.ndim == 4 else tuple(range(x.ndim))
        return torch.empty([x.shape[at] for at in order], dtype=self._dtype).copy_(x.permute(order))
