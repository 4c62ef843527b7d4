"""The training loop of a stack: each step of all devices at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.learning.solvers.base import Descent
from fedsim.learning.solvers.dense.input_layers import InputLayer
from fedsim.learning.solvers.dense.parameter import Parameter
from fedsim.learning.solvers.dense.schedule import Segment


class Stack:
    """Stacked weights being trained, with the buffers that a step needs.

    Args:
        entry: the first layer.
        kernels: of all other layers, [K, inputs, outputs] each.
        biases: of all layers, [K, 1, outputs] each.
        width: rows of a batch.
        descent: the rule.
    """

    def __init__(
        self, entry: InputLayer, kernels: Sequence[Tensor], biases: Sequence[Tensor], width: int, descent: Descent
    ) -> None:
        clients, like = len(biases[0]), biases[0]
        self.entry, self.width = entry, width
        self.kernels = [Parameter(kernel, descent, descent.shrinkage(kernel=True)) for kernel in kernels]
        self.biases = [Parameter(bias, descent, descent.shrinkage(kernel=False)) for bias in biases]
        self.outputs = [like.new_zeros(clients, width, bias.shape[2]) for bias in biases]
        self.errors = [torch.empty_like(buffer) for buffer in self.outputs[:-1]]
        self.minus_one = like.new_full((clients, width, 1), -1.0)
        self.ones = like.new_ones(clients, 1, width)

    def run(self, segment: Segment) -> None:
        """Carry out the steps of a segment.

        The gradient of a kernel is x^T error, that of a bias 1^T error: both sums over the batch.
        """
        active = segment.active
        entry = self.entry.active(active, self.width)
        outputs = [buffer[:active] for buffer in self.outputs]
        errors = [buffer[:active] for buffer in self.errors]
        kernels = [kernel.first(active) for kernel in self.kernels]
        biases = [bias.first(active) for bias in self.biases]
        transposed = [buffer.transpose(1, 2) for buffer in outputs]
        minus_one, ones, top = self.minus_one[:active], self.ones[:active], len(kernels)
        for rows, labels, shares, picked, judged in zip(*segment.steps, segment.judged, strict=True):
            entry.forward(rows, biases[0].weight, outputs[0])
            for layer in range(top):
                hidden = outputs[layer].relu_()
                torch.baddbmm(biases[layer + 1].weight, hidden, kernels[layer].weight, out=outputs[layer + 1])
            if judged:
                torch.gather(torch.log_softmax(outputs[top], 2), 2, labels, out=picked)
            error = torch.softmax(outputs[top], 2).scatter_add_(2, labels, minus_one).mul_(shares)
            for layer in range(top - 1, -1, -1):
                below = errors[layer]
                torch.bmm(error, kernels[layer].weight.transpose(1, 2), out=below)
                torch.ops.aten.threshold_backward.grad_input(below, outputs[layer], 0.0, grad_input=below)
                kernels[layer].descend(transposed[layer], error)
                biases[layer + 1].descend(ones, error)
                error = below
            entry.descend(rows, error)
            biases[0].descend(ones, error)
