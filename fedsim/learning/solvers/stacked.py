"""Any ``nn.Module`` on a GPU, which is bound by launches: a whole cohort takes each step at once, stacked under ``vmap``."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedsim.learning.modules import numbers
from fedsim.learning.solvers.base import Descent, LocalSolve, ParameterStep, Solved
from fedsim.learning.solvers.context import constants_of, parts_of, rules
from fedsim.learning.solvers.dropout import KeyedDropout, step_key
from fedsim.learning.solvers.reference import Reference

_STACK_BYTES = 8 << 30  # stacked weights of one solve on a GPU
_MOST_AT_ONCE = 256


class Stacked(Reference):
    """The reference, for many devices at once."""

    def batch_hint(self, samples: int, width: int, steps: int) -> tuple[str, int]:
        stack_bytes = 4 * sum(math.prod(shape) for _, shape in self.tensors)
        return "module", max(1, min(_MOST_AT_ONCE, _STACK_BYTES // stack_bytes))

    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all, each step of all at once; with a contrastive term one after the other."""
        if any(solve.contrast is not None for solve in solves):
            return super().solve(solves, descent)
        order = sorted(range(len(solves)), key=lambda at: -solves[at].batches.steps)
        solved = dict(zip(order, self._stack([solves[at] for at in order], descent), strict=True))
        return [solved[at] for at in range(len(solves))]

    def _stack(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train devices, of which those with the most steps come first, their samples padded to one length."""
        module, device = self._own_copy().train(), self.device
        trained = numbers(module)
        values = parts_of(torch.from_numpy(np.stack([solve.weights for solve in solves])).to(device), trained)
        constants = constants_of(solves, descent, trained, device)
        steps = {}
        for name, rule_of in rules(descent, trained).items():
            shrinkage = rule_of.shrinkage(name in self.kernels, values[name].ndim - 1)
            steps[name] = ParameterStep(values[name].contiguous(), rule_of, shrinkage, constants.get(name))
        longest = max(len(solve.x) for solve in solves) + 1
        x, y = (torch.stack([_padded(getattr(solve, part), longest) for solve in solves]).to(device) for part in ("x", "y"))
        totals = torch.zeros(len(solves), dtype=torch.float64, device=device)
        dropouts = [f"{name}.key" if name else "key" for name, part in module.named_modules() if isinstance(part, KeyedDropout)]

        def mean_loss(own: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            return (self.losses(functional_call(module, {**own, **buffers}, (x,)), y) * share).sum()

        gradient = vmap(grad_and_value(mean_loss))
        for step in range(solves[0].batches.steps):
            active = [solve for solve in solves if solve.batches.steps > step]
            first = slice(len(active))
            rows = torch.from_numpy(np.stack([solve.batches.rows[step] for solve in active])).to(device)
            counts = torch.tensor([int(solve.batches.counts[step]) for solve in active], device=device)
            share = (torch.arange(rows.shape[1], device=device) < counts[:, None]) / counts[:, None]
            keys = torch.tensor([step_key(solve.key, step) for solve in active], device=device)
            member = torch.arange(len(active), device=device)[:, None]
            own = {name: rule.parameter[first] for name, rule in steps.items()}
            gradients, loss = gradient(own, dict.fromkeys(dropouts, keys), x[member, rows], y[member, rows], share)
            for name, rule in steps.items():
                rule.descend(gradients[name])
            last = torch.tensor([step >= solve.batches.last_epoch for solve in active], device=device)
            totals[first] += loss * counts * last
        flat = torch.cat([rule.parameter.flatten(1) for rule in steps.values()], dim=1).cpu().numpy()
        found = zip(flat, solves, totals.tolist(), strict=True)
        return [Solved(row.copy(), solve.batches.mean_loss(total)) for row, solve, total in found]


def _padded(samples: Tensor, length: int) -> Tensor:
    return torch.cat([samples, samples.new_zeros(length - len(samples), *samples.shape[1:])])
