"""Chains of plain layers on a CPU, without autograd: one device at a time, whose weights and activations stay in the cache."""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.learning.architecture import Architecture
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Company, Descent, LocalSolve, Solved, kernel_norm, mean_of
from fedsim.learning.solvers.chain.network import Network
from fedsim.learning.solvers.chain.room import Room
from fedsim.learning.solvers.dropout import step_key

_APPLIED_AT_ONCE = 32  # samples in one forward pass: activations then stay in the cache
_KEPT_FOR = 256  # samples in a batch; the memory for larger ones is given back after a device's training


class Chain:
    """Convolutions, pooling, dropout and dense layers under softmax cross-entropy, in closed form.

    Args:
        architecture: the layers.
        dtype: float32; float64 for tests of the gradients.
    """

    def __init__(self, architecture: Architecture, dtype: torch.dtype = torch.float32) -> None:
        self.device = torch.device("cpu")
        self._architecture = architecture
        self._dtype = dtype
        self._threads = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        """All but what threads of this process keep, for another process."""
        return {name: value for name, value in vars(self).items() if name != "_threads"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _threads=threading.local())

    def company(self, samples: int, width: int, steps: int) -> Company:
        """See ``Solver``."""
        return Company("chain", 1)

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
        rows, room = torch.from_numpy(batches.rows), Room(self._dtype)
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
