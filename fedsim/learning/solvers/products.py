"""Dense layers by torch's matrix products, one device at a time: gradients in closed form, without autograd."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.learning.solvers.base import Descent, LocalSolve, ParameterStep, Solved

Layers = list[tuple[Tensor, Tensor]]
"""Kernel [outputs, inputs] and bias [outputs] of each layer, as views of one flat model."""


def train(weights: Tensor, layers: Callable[[Tensor], Layers], solve: LocalSolve, descent: Descent) -> Solved:
    """Train a perceptron with ReLU under softmax cross-entropy, in place; ``layers`` gives those of a flat model [d]."""
    parameters, constant = layers(weights), solve.constant(descent)
    constants = None if constant is None else layers(torch.tensor(constant))
    steps, at = [], 0
    for number, (kernel, bias) in enumerate(parameters):
        middle, end = at + kernel.numel(), at + kernel.numel() + bias.numel()
        of_kernel, of_bias = descent.of(at, middle), descent.of(middle, end)
        own = (None, None) if constants is None else constants[number]
        kernel_step = ParameterStep(kernel, of_kernel, of_kernel.shrinkage(kernel=True), own[0])
        steps.append((kernel_step, ParameterStep(bias, of_bias, of_bias.shrinkage(kernel=False), own[1])))
        at = end
    batches, x, total = solve.batches, solve.x.reshape(len(solve.x), -1).to(weights.dtype), 0.0
    rows = torch.from_numpy(batches.rows)
    for step, count in enumerate(batches.counts.tolist()):
        batch = rows[step, :count]
        inputs = [x[batch]]
        for kernel, bias in parameters[:-1]:
            inputs.append(torch.addmm(bias, inputs[-1], kernel.t()).relu_())
        kernel, bias = parameters[-1]
        logs, right = torch.addmm(bias, inputs[-1], kernel.t()).log_softmax(1), solve.y[batch][:, None]
        if step >= batches.last_epoch:
            total -= float(logs.gather(1, right).sum(dtype=torch.float64))
        error = logs.exp_().scatter_add_(1, right, logs.new_full((count, 1), -1.0)).div_(count)
        for number in range(len(parameters) - 1, -1, -1):
            below = torch.mm(error, parameters[number][0]) if number else error
            steps[number][0].descend_product(error.t(), inputs[number])
            steps[number][1].descend(error.sum(0))
            error = torch.ops.aten.threshold_backward(below, inputs[number], 0) if number else error
    seen = int(batches.counts[batches.last_epoch :].sum())
    return Solved(weights.numpy(), total / seen if seen else float("nan"))
