"""Any ``nn.Module``, by autograd: modules of a user's own, one device at a time on a CPU; on a GPU all, stacked under ``vmap``.

On a CPU one device at a time is not slower (its weights stay in the cache, convolutions run channels-last) and keeps results
equal bit for bit whatever the cohort. A GPU is bound by launches, so there a whole cohort takes each step at once.
"""

import copy
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Company, Descent, LocalSolve, Solved, kernel_norm, mean_of
from fedsim.learning.solvers.dropout import KeyedDropout, step_key, with_keyed_dropout
from fedsim.learning.solvers.modules import flat_weights, kernels, load_weights
from fedsim.learning.solvers.step import Step

_STACK_BYTES = 8 << 30  # stacked weights of one solve on a GPU
_MOST_AT_ONCE = 256
_APPLIED_AT_ONCE = 1 << 16  # numbers in the samples of one forward pass: activations then stay in the cache
_ALIGNED = 16  # samples: any number of these begins where a cache line does


class Module:
    """Local SGD of a ``nn.Module``.

    Args:
        module: the model; it is copied, once for each thread that computes with it. Its loss is softmax cross-entropy unless
            it has a method ``loss(outputs, y)`` that returns one loss a sample, [n].
        device: where to compute.

    Attributes:
        tensors: names and shapes of the trained parameters, in the order of a flat model.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.device = device
        self._template = with_keyed_dropout(copy.deepcopy(module)).to(device)
        self._is_image = any(isinstance(part, nn.Conv2d) for part in module.modules())
        if self._is_image:
            self._template = self._template.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._threads = threading.local()
        self._own_loss: Callable[[Tensor, Tensor], Tensor] | None = getattr(self._template, "loss", None)
        self._kernels = kernels(module)
        trained = _trained(self._template)
        stack_bytes = 4 * sum(parameter.numel() for parameter in trained.values())
        self.tensors = [(name, tuple(parameter.shape)) for name, parameter in trained.items()]
        self._at_once = 1 if device.type == "cpu" else max(1, min(_MOST_AT_ONCE, _STACK_BYTES // stack_bytes))

    def __getstate__(self) -> dict[str, Any]:
        """All but what threads of this process keep, for another process."""
        return {name: value for name, value in vars(self).items() if name != "_threads"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _threads=threading.local())

    def company(self, samples: int, width: int, steps: int) -> Company:
        """See ``Solver``."""
        return Company("module", self._at_once)

    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all; see ``Solver``."""
        if self.device.type == "cpu":
            return [self.solve_one(solve, descent) for solve in solves]
        return self.solve_stacked(solves, descent)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample: the module's own, or softmax cross-entropy."""
        if self._own_loss is not None:
            return self._own_loss(outputs, y)
        return functional.cross_entropy(outputs, y, reduction="none")

    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        """What the module makes of samples [n, *shape]."""
        return self._apply(self._loaded(weights), x)

    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        """The same for several models, one after the other."""
        return [self.outputs(own, x) for own, x in zip(weights, xs, strict=True)]

    def mean_losses(self, weights: Weights, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[float]:
        """Mean losses of one model, which is loaded once; see ``Solver``."""
        module = self._loaded(weights)
        with torch.inference_mode():
            return [
                mean_of(self.losses(self._apply(module, x), y)) if len(y) else float("nan") for x, y in zip(xs, ys, strict=True)
            ]

    def kernel_norm(self, weights: Weights) -> float:
        """The sum of the squared kernel entries."""
        return kernel_norm(weights, self.tensors, self._kernels)

    def solve_one(self, solve: LocalSolve, descent: Descent) -> Solved:
        """Train one device."""
        module = self._own_copy().train()
        trained = _trained(module)
        parameters = list(trained.values())
        load_weights(parameters, solve.weights)
        constants = _constants([solve], descent, trained, self.device)
        steps = [
            Step(parameter, descent, descent.shrinkage(name in self._kernels), constants[name][0] if constants else None)
            for name, parameter in trained.items()
        ]
        dropouts = [part for part in module.modules() if isinstance(part, KeyedDropout)]
        x, y = solve.x.to(self.device), solve.y.to(self.device)
        rows = torch.from_numpy(solve.batches.rows).to(self.device)
        total = 0.0
        for step, count in enumerate(solve.batches.counts.tolist()):
            for dropout in dropouts:
                dropout.key.fill_(step_key(solve.key, step))
            batch = rows[step, :count]
            losses = self.losses(module(self._laid_out(x[batch])), y[batch])
            gradients = torch.autograd.grad(losses.mean(), parameters, materialize_grads=True)
            with torch.no_grad():
                for rule, gradient in zip(steps, gradients, strict=True):
                    rule.descend(gradient)
            if step >= solve.batches.last_epoch:
                total += float(losses.detach().sum(dtype=torch.float64))
        seen = int(solve.batches.counts[solve.batches.last_epoch :].sum())
        return Solved(flat_weights(parameters), total / seen if seen else float("nan"))

    def solve_stacked(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all at once, each step of all under one ``vmap``."""
        order = sorted(range(len(solves)), key=lambda at: -solves[at].batches.steps)
        ranked = [solves[at] for at in order]
        stacked = _Stacked(self._own_copy().train(), self.losses, ranked, descent, self._kernels, self.device)
        most = ranked[0].batches.steps
        active = len(ranked)
        for step in range(most):
            while ranked[active - 1].batches.steps <= step:
                active -= 1
            stacked.step(step, active)
        solved = dict(zip(order, stacked.solved(), strict=True))
        return [solved[at] for at in range(len(solves))]

    def _own_copy(self) -> nn.Module:
        """This thread's copy of the module."""
        if not hasattr(self._threads, "module"):
            self._threads.module = copy.deepcopy(self._template)
        return self._threads.module  # type: ignore[no-any-return]

    def _loaded(self, weights: Weights) -> nn.Module:
        """This thread's copy of the module, with these weights and without dropout."""
        module = self._own_copy().eval()
        load_weights(list(_trained(module).values()), weights)
        return module

    def _apply(self, module: nn.Module, x: Tensor) -> Tensor:
        """The outputs for samples [n, *shape], some at a time."""
        size = _APPLIED_AT_ONCE // max(1, math.prod(x.shape[1:])) // _ALIGNED * _ALIGNED
        with torch.inference_mode():
            pieces = torch.split(x, max(_ALIGNED, size))
            return torch.cat([module(self._laid_out(piece.to(self.device))) for piece in pieces])

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self._is_image and x.ndim == 4 else x


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _parts(models: Tensor, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of flat models [devices, d], each [devices, *shape]."""
    parts = torch.split(models, [parameter.numel() for parameter in trained.values()], dim=1)
    return {name: part.reshape(len(part), *trained[name].shape) for name, part in zip(trained, parts, strict=True)}


def _constants(
    solves: Sequence[LocalSolve], descent: Descent, trained: Mapping[str, Tensor], device: torch.device
) -> dict[str, Tensor]:
    """``LocalSolve.constant`` of all as such parts; nothing if nobody has one."""
    own = [solve.constant(descent) for solve in solves]
    if all(constant is None for constant in own):
        return {}
    rows = [np.zeros_like(solve.weights) if constant is None else constant for solve, constant in zip(solves, own, strict=True)]
    return _parts(torch.from_numpy(np.stack(rows)).to(device), trained)


class _Stacked:
    """The parameters of many devices, stacked, and their samples padded to one length."""

    def __init__(
        self,
        module: nn.Module,
        losses: Callable[[Tensor, Tensor], Tensor],
        solves: Sequence[LocalSolve],
        descent: Descent,
        kernel_names: set[str],
        device: torch.device,
    ) -> None:
        self.solves = solves
        trained = _trained(module)
        values = _parts(torch.from_numpy(np.stack([solve.weights for solve in solves])).to(device), trained)
        constants = _constants(solves, descent, trained, device)
        self.steps = {
            name: Step(stack.contiguous(), descent, descent.shrinkage(name in kernel_names), constants.get(name))
            for name, stack in values.items()
        }
        longest = max(len(solve.x) for solve in solves)
        self.x = torch.zeros(len(solves), longest + 1, *solves[0].x.shape[1:], device=device)
        self.y = torch.zeros(len(solves), longest + 1, dtype=torch.int64, device=device)
        for rank, solve in enumerate(solves):
            self.x[rank, : len(solve.x)] = solve.x.to(device)
            self.y[rank, : len(solve.y)] = solve.y.to(device)
        self.totals = torch.zeros(len(solves), dtype=torch.float64, device=device)
        self.device = device
        self.dropouts = [name for name, part in module.named_modules() if isinstance(part, KeyedDropout)]
        self.gradient = vmap(grad_and_value(self._loss_of(module, losses)))

    @staticmethod
    def _loss_of(module: nn.Module, losses: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
        def mean_loss(own: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            return (losses(functional_call(module, {**own, **buffers}, (x,)), y) * share).sum()

        return mean_loss

    def step(self, step: int, active: int) -> None:
        """One SGD step of the first ``active`` devices."""
        batches = [solve.batches for solve in self.solves[:active]]
        rows = torch.from_numpy(np.stack([batch.rows[step] for batch in batches])).to(self.device)
        counts = torch.tensor([int(batch.counts[step]) for batch in batches], device=self.device)
        share = (torch.arange(rows.shape[1], device=self.device) < counts[:, None]) / counts[:, None]
        device = torch.arange(active, device=self.device)[:, None]
        keys = torch.tensor([step_key(solve.key, step) for solve in self.solves[:active]], device=self.device)
        buffers = {f"{name}.key" if name else "key": keys for name in self.dropouts}
        own: Mapping[str, Tensor] = {name: rule.parameter[:active] for name, rule in self.steps.items()}
        gradients, loss = self.gradient(own, buffers, self.x[device, rows], self.y[device, rows], share)
        for name, rule in self.steps.items():
            rule.descend(gradients[name])
        last = torch.tensor([step >= batch.last_epoch for batch in batches], device=self.device)
        self.totals[:active] += loss * counts * last

    def solved(self) -> list[Solved]:
        """The outcome, in the order of the stack."""
        flat = torch.cat([rule.parameter.flatten(1) for rule in self.steps.values()], dim=1).cpu().numpy()
        seen = [int(solve.batches.counts[solve.batches.last_epoch :].sum()) for solve in self.solves]
        totals = self.totals.tolist()
        return [
            Solved(row.copy(), total / count if count else float("nan"))
            for row, total, count in zip(flat, totals, seen, strict=True)
        ]
