"""Chains of plain layers on a CPU, without autograd: one device at a time, whose weights and activations stay in the cache."""

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from fedsim.learning import architecture as described
from fedsim.learning.refs import Weights
from fedsim.learning.solvers import layers
from fedsim.learning.solvers.base import BatchHint, Descent, LocalSolve, Solved, Solver, kernel_norm
from fedsim.learning.solvers.dropout import step_key
from fedsim.learning.solvers.reference import Reference, module_of
from fedsim.learning.solvers.winograd import Winograd
from fedsim.training import Penalised

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
        at = 0
        for kernel, own in zip(self._kernels, parts, strict=True):
            kernel.begin(descent, own, at)
            at += kernel.size

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
    """The layers; pooling takes a ReLU beside it along, and a dense layer the flattening before it."""
    place, last, before = 0, max(at for at, _ in architecture.trained()), architecture.layers
    flattened: described.Shape = ()
    for at, (layer, shape) in enumerate(zip(architecture.layers, architecture.shapes, strict=False)):
        beside = [type(other) for other in (*before[max(0, at - 1) : at], *before[at + 1 : at + 2])]
        match layer:
            case described.MaxPool2d(size):
                yield layers.MaxPool2d(size, dtype, rectified=described.ReLU in beside)
            case described.ReLU():
                if described.MaxPool2d not in beside:
                    yield layers.ReLU()
            case described.Flatten():
                if at > last:
                    yield layers.Flatten()
                flattened = flattened or shape
            case described.Linear():
                yield layers.Linear(layer, dtype, flattened or shape)
                flattened = ()
            case described.Conv2d():
                yield (Winograd if Winograd.suits(layer) else layers.Conv2d)(layer, dtype)
            case described.Dropout(rate):
                if rate:
                    yield layers.Dropout(rate, place, dtype)
                place += 1


_APPLIED_AT_ONCE = 32  # samples in one forward pass: activations then stay in the cache
_KEPT_FOR = 256  # samples in a batch; the memory for larger ones is given back after a device's training


class Chain(Solver):
    """Convolutions, pooling, dropout and dense layers under softmax cross-entropy, in closed form.

    Args:
        architecture: the layers.
        dtype: float32; float64 for tests of the gradients.
    """

    def __init__(self, architecture: described.Architecture, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(torch.device("cpu"))
        self._architecture = architecture
        self._dtype = dtype

    @cached_property
    def plain(self) -> Reference:
        """See ``Solver``."""
        return Reference(module_of(self._architecture), self.device, self._dtype)

    def batch_hint(self, samples: int, width: int, steps: int) -> BatchHint:
        """See ``Solver``."""
        return BatchHint("chain", 1)

    def kernel_norm(self, weights: Weights, l2_on: Penalised = "kernels") -> float:
        """The sum of the squared kernel entries."""
        tensors = self._architecture.tensors
        return kernel_norm(weights, tensors, {name for name, _ in tensors if name.endswith(".weight")}, l2_on)

    @torch.inference_mode()
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
            del self.threads.network
        return Solved(trained.numpy(), total / seen if seen else float("nan"))

    @torch.inference_mode()
    def _loaded(self, weights: Weights) -> Network:
        """This thread's network, with these weights."""
        if not hasattr(self.threads, "network"):
            self.threads.network = Network(self._architecture, self._dtype)
        network: Network = self.threads.network
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
