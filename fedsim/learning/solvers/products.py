"""Dense layers by torch's matrix products, one device at a time: gradients in closed form, without autograd."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.learning.solvers.base import Descent, LocalSolve, ParameterStep, Solved


def train(
    weights: Tensor, layers: Callable[[Tensor], list[tuple[Tensor, Tensor]]], solve: LocalSolve, descent: Descent
) -> Solved:
    """Train a perceptron with ReLU under softmax cross-entropy, in place; ``layers`` gives views of a flat model [d]:
    kernel [outputs, inputs] and bias [outputs] of each layer."""
    parameters, constant = layers(weights), solve.constant(descent)
    constants = [(None, None)] * len(parameters) if constant is None else layers(torch.tensor(constant))
    steps, at = [], 0
    for own, of_own in zip(parameters, constants, strict=True):
        for tensor, of_tensor in zip(own, of_own, strict=True):
            rule = descent.of(at, at + tensor.numel())
            steps.append(ParameterStep(tensor, rule, rule.shrinkage(kernel=tensor.ndim > 1), of_tensor))
            at += tensor.numel()
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
        for layer in range(len(parameters) - 1, -1, -1):
            below = torch.mm(error, parameters[layer][0]) if layer else error
            steps[2 * layer].descend_product(error.t(), inputs[layer])
            steps[2 * layer + 1].descend(error.sum(0))
            error = torch.ops.aten.threshold_backward(below, inputs[layer], 0) if layer else error
    return Solved(weights.numpy(), batches.mean_loss(total))
