"""Compiled loops for the SGD of a device on dense layers, with gradients in closed form.

Weights are changed in place. The loops handle four samples and four outputs at a time, which keeps
the registers of a CPU full. All arrays with outputs are therefore padded with zeros to a multiple
of four outputs. A batch is padded to a multiple of four samples with its first sample, whose error
is set to 0.
"""

import numpy as np

from fedsim.learning.solvers.compiled import compiled, compiled_entry
from fedsim.learning.solvers.dense_arrays import (
    AnyFloats,
    FirstLayer,
    LoopPlan,
    Parameter,
    Positions,
    Rule,
)
from fedsim.learning.solvers.dense_products import add_products, inner_products, round_up_to_fours
from fedsim.learning.solvers.dense_updates import descend_along, descend_bias, descend_kernel


@compiled_entry
def descend(
    entry: FirstLayer,
    kernels: Parameter,
    biases: Parameter,
    sizes: Positions,
    plan: LoopPlan,
    rule: Rule,
) -> float:
    """Carry out all SGD steps of a local training, in place, by compiled loops.

    Args:
        entry: the first layer.
        kernels: kernels of all later layers, padded to one shape, [layers - 1, outputs, inputs],
            where outputs are a multiple of four.
        biases: all biases, [layers, 1, outputs].
        sizes: count of outputs of each layer, int64 [layers].
        plan: labels and batches.
        rule: the rule of an SGD step.

    Returns:
        The sum of the losses over the samples of the last epoch.
    """
    dtype = entry.features.dtype
    last = len(sizes) - 1
    samples = round_up_to_fours(plan.rows.shape[1])
    widest = round_up_to_fours(sizes.max())
    columns = entry.features.shape[1] if entry.turned else 0
    # Working memory, overwritten in each step. The arrays are variables of this function and no
    # fields of a tuple, as numba counts references at each access to a field.
    outputs = np.zeros((last + 1, samples, widest), dtype)
    errors = np.zeros((2, samples, widest), dtype)  # gradients of a layer's outputs, in turns
    scratch = np.empty((samples, columns), dtype)
    every = np.arange(max(samples, widest, columns))
    batch = np.arange(samples)
    loss = 0.0
    for step in range(len(plan.counts)):
        count = plan.counts[step]
        padded = round_up_to_fours(count)
        for at in range(padded):
            batch[at] = plan.rows[step, at if at < count else 0]

        bias = biases.weight
        _pass_first_layer(
            entry, step, batch[:padded], bias[0], sizes[0], scratch, every, outputs[0]
        )
        for layer in range(1, last + 1):
            hidden = outputs[layer - 1]
            kernel = kernels.weight[layer - 1]
            _rectify(hidden, padded, sizes[layer - 1])
            inner_products(
                hidden, every[:padded], kernel, bias[layer], sizes[layer], outputs[layer]
            )

        error = errors[last % 2]
        batch_loss = _judge(outputs[last], error, plan.labels, batch[:padded], count, sizes[last])
        if step >= plan.last_epoch:
            loss += batch_loss

        for layer in range(last, 0, -1):
            parameter = _of(kernels, layer - 1)
            hidden = outputs[layer - 1]
            below = errors[(layer - 1) % 2]
            positions = every[: round_up_to_fours(sizes[layer])]
            inputs = sizes[layer - 1]
            _pass_back(error, positions, parameter.weight, hidden, below, padded, inputs)
            descend_kernel(parameter, sizes[layer], hidden, every[:padded], error, rule)
            descend_bias(_of(biases, layer), sizes[layer], count, error, rule)
            error = below
        if entry.products.shape[1]:
            descend_along(entry, batch[:count], sizes[0], error, rule)
        else:
            descend_kernel(entry.kernel, sizes[0], entry.features, batch[:padded], error, rule)
        descend_bias(_of(biases, 0), sizes[0], count, error, rule)
    return loss


@compiled
def _rectify(outputs: AnyFloats, rows: int, columns: int) -> None:
    """Apply ReLU to the first rows and columns of an array, in place; NaN stays NaN."""
    for row in range(rows):
        for column in range(columns):
            outputs[row, column] = 0 if outputs[row, column] < 0 else outputs[row, column]


@compiled
def _of(stack: Parameter, layer: int) -> Parameter:
    return Parameter(
        stack.weight[layer], stack.velocity[layer], stack.start[layer], stack.constant[layer]
    )


@compiled
def _pass_first_layer(
    entry: FirstLayer,
    step: int,
    batch: Positions,
    bias: AnyFloats,
    outputs: int,
    scratch: AnyFloats,
    every: Positions,
    out: AnyFloats,
) -> None:
    """Write the first layer's outputs for a batch, before its ReLU, into ``out``.

    Args:
        entry: the first layer.
        step: index of the step.
        batch: indices of the samples, int64 [b].
        bias: the layer's bias, [1, outputs].
        outputs: count of outputs.
        scratch: working memory, [b or more, c], if ``entry.turned``.
        every: 0, 1, 2, ..., of sufficient length.
        out: receives the outputs, [b or more, outputs or more].
    """
    features = entry.features
    kernel = entry.kernel.weight
    products = entry.products
    if not entry.turned:
        inner_products(features, batch, kernel, bias, outputs, out)
    else:
        for rank in range(len(batch)):
            for output in range(outputs):
                out[rank, output] = bias[0, output]
            for column in range(features.shape[1]):
                scratch[rank, column] = features[batch[rank], column]
        positions = every[: round_up_to_fours(len(features))]
        add_products(out, len(batch), outputs, kernel, positions, scratch.T, out.dtype.type(1))
    for part in range(len(products) if products.shape[1] else 0):
        share = entry.shares[part, step]
        for rank in range(len(batch)):
            sample = batch[rank]
            for output in range(outputs):
                out[rank, output] += share * products[part, sample, output]


@compiled
def _judge(
    logits: AnyFloats,
    error: AnyFloats,
    labels: Positions,
    batch: Positions,
    count: int,
    classes: int,
) -> float:
    """Compute the cross-entropy of a batch, and its gradient.

    Args:
        logits: outputs of the last layer, [b or more, classes or more].
        error: receives the gradient of the mean loss with respect to the logits.
        labels: label of each of the device's samples, [n].
        batch: indices of the samples, padded to a multiple of four.
        count: count of samples in the batch, b.
        classes: count of classes.

    Returns:
        The sum of the samples' losses.
    """
    share = logits.dtype.type(1) / logits.dtype.type(count)
    error[: len(batch), : round_up_to_fours(classes)] = 0
    loss = 0.0
    for rank in range(count):
        label = labels[batch[rank]]
        top = logits[rank, 0]
        for output in range(classes):
            top = logits[rank, output] if logits[rank, output] > top else top
        total = logits.dtype.type(0)
        for output in range(classes):
            error[rank, output] = np.exp(logits[rank, output] - top)
            total += error[rank, output]
        loss += np.log(total) - (logits[rank, label] - top)
        for output in range(classes):
            error[rank, output] *= share / total
        error[rank, label] -= share
    return loss


@compiled
def _pass_back(
    error: AnyFloats,
    positions: Positions,
    kernel: AnyFloats,
    hidden: AnyFloats,
    below: AnyFloats,
    rows: int,
    inputs: int,
) -> None:
    """Compute the gradient with respect to a layer's inputs from the gradient of its outputs.

    Args:
        error: gradient with respect to the layer's outputs, [rows, outputs].
        positions: 0, 1, ..., outputs - 1, padded to a multiple of four.
        kernel: the layer's kernel, [outputs, inputs].
        hidden: the layer's inputs, after the ReLU below; the gradient is 0 where an input is 0.
        below: receives the gradient with respect to the inputs, [rows, inputs].
        rows: count of samples, a multiple of four.
        inputs: count of inputs.
    """
    below[:rows, : round_up_to_fours(inputs)] = 0
    add_products(below, rows, inputs, kernel, positions, error.T, error.dtype.type(1))
    for row in range(rows):
        for column in range(inputs):
            below[row, column] = below[row, column] if hidden[row, column] > 0 else 0
