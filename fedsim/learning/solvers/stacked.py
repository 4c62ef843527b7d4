"""Any ``nn.Module`` on a GPU, which is bound by launches: a whole cohort takes each step at once, stacked under ``vmap``."""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedsim.learning.factory import numbers
from fedsim.learning.solvers.base import BatchHint, Descent, LocalSolve, ParameterStep, Solved
from fedsim.learning.solvers.context import constants_of, parts_of, rules
from fedsim.learning.solvers.dropout import KeyedDropout, step_key
from fedsim.learning.solvers.reference import Reference

_STACK_BYTES = 8 << 30  # stacked weights of one solve on a GPU
_MOST_AT_ONCE = 256


class Stacked(Reference):
    """The reference, for many devices at once."""

    def batch_hint(self, samples: int, width: int, steps: int) -> BatchHint:
        stack_bytes = 4 * sum(math.prod(shape) for _, shape in self.tensors)
        return BatchHint("module", max(1, min(_MOST_AT_ONCE, _STACK_BYTES // stack_bytes)))

    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all, each step of all at once; with a contrastive term one after the other."""
        if any(solve.contrast is not None for solve in solves):
            return super().solve(solves, descent)
        order = sorted(range(len(solves)), key=lambda at: -solves[at].batches.steps)
        ranked = [solves[at] for at in order]
        stacked = _Stack(self._own_copy().train(), self.losses, ranked, descent, self.kernels, self.device)
        most = ranked[0].batches.steps
        active = len(ranked)
        for step in range(most):
            while ranked[active - 1].batches.steps <= step:
                active -= 1
            stacked.step(step, active)
        solved = dict(zip(order, stacked.solved(), strict=True))
        return [solved[at] for at in range(len(solves))]


class _Stack:
    """The parameters of many devices, stacked, and their samples padded to one length."""

    def __init__(
        self,
        module: nn.Module,
        losses: Callable[[Tensor, Tensor], Tensor],
        solves: Sequence[LocalSolve],
        descent: Descent,
        kernel_names: Collection[str],
        device: torch.device,
    ) -> None:
        self.solves = solves
        trained = numbers(module)
        values = parts_of(torch.from_numpy(np.stack([solve.weights for solve in solves])).to(device), trained)
        constants = constants_of(solves, descent, trained, device)
        self.steps = {
            name: ParameterStep(
                values[name].contiguous(),
                rule,
                rule.shrinkage(name in kernel_names, values[name].ndim - 1),
                constants.get(name),
            )
            for name, rule in rules(descent, trained).items()
        }
        longest = max(len(solve.x) for solve in solves)
        self.x = torch.zeros(len(solves), longest + 1, *solves[0].x.shape[1:], dtype=solves[0].x.dtype, device=device)
        self.y = torch.zeros(len(solves), longest + 1, *solves[0].y.shape[1:], dtype=solves[0].y.dtype, device=device)
        for rank, solve in enumerate(solves):
            self.x[rank, : len(solve.x)] = solve.x.to(device)
            self.y[rank, : len(solve.y)] = solve.y.to(device)
        self.totals = torch.zeros(len(solves), dtype=torch.float64, device=device)
        self.device = device
        self.dropouts = [name for name, part in module.named_modules() if isinstance(part, KeyedDropout)]

        def mean_loss(own: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            return (losses(functional_call(module, {**own, **buffers}, (x,)), y) * share).sum()

        self.gradient = vmap(grad_and_value(mean_loss))

    def step(self, step: int, active: int) -> None:
        """One SGD step of the first ``active`` devices."""
        batches = [solve.batches for solve in self.solves[:active]]
        rows = torch.from_numpy(np.stack([batch.rows[step] for batch in batches])).to(self.device)
        counts = torch.tensor([int(batch.counts[step]) for batch in batches], device=self.device)
        share = (torch.arange(rows.shape[1], device=self.device) < counts[:, None]) / counts[:, None]
        device = torch.arange(active, device=self.device)[:, None]
        keys = torch.tensor([step_key(solve.key, step) for solve in self.solves[:active]], device=self.device)
        buffers = {f"{name}.key" if name else "key": keys for name in self.dropouts}
        own = {name: rule.parameter[:active] for name, rule in self.steps.items()}
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
