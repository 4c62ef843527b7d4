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
from fedsim.learning.solvers.dense_updates import descend_bias, descend_coefficients, descend_kernel


@compiled_entry
def descend(
    first_layer: FirstLayer,
    kernels: Parameter,
    biases: Parameter,
    sizes: Positions,
    plan: LoopPlan,
    rule: Rule,
) -> float:
    """Carry out all SGD steps of a local training, in place, by compiled loops.

    Args:
        first_layer: the first layer.
        kernels: kernels of all later layers, padded with zeros to one shape, [layers - 1, rows,
            columns]; the count of rows is the greatest count of outputs of a layer, rounded up to a
            multiple of four, and the count of columns is the greatest count of inputs.
        biases: biases of all layers, padded with zeros to one shape, [layers, 1, columns].
        sizes: count of outputs of each layer, int64 [layers].
        plan: labels and batches.
        rule: the rule of an SGD step.

    Returns:
        The sum of the losses over the samples of the last epoch.
    """
    dtype = first_layer.features.dtype
    last = len(sizes) - 1
    samples = round_up_to_fours(plan.rows.shape[1])
    widest = round_up_to_fours(sizes.max())
    columns = first_layer.features.shape[1] if first_layer.is_transposed else 0
    # Working memory, overwritten in each step. The arrays are variables of this function and no
    # fields of a tuple, as numba counts references at each access to a field.
    # outputs of each layer, before the ReLU; ``_rectify`` makes them the inputs of the next layer
    outputs = np.zeros((last + 1, samples, widest), dtype)
    # gradients with respect to the layers' outputs; adjacent layers use different arrays
    errors = np.zeros((2, samples, widest), dtype)
    scratch = np.empty((samples, columns), dtype)
    # 0, 1, 2, ..., of sufficient length: indices for products of all rows of an array in order
    integers = np.arange(max(samples, widest, columns))
    batch = np.arange(samples)
    loss_sum = 0.0
    for step in range(len(plan.counts)):
        # the indices of the batch's samples, padded with its first sample to a multiple of four
        count = plan.counts[step]
        padded = round_up_to_fours(count)
        for rank in range(padded):
            batch[rank] = plan.rows[step, rank if rank < count else 0]

        # forward pass
        bias = biases.weight
        _pass_first_layer(
            first_layer, step, batch[:padded], bias[0], sizes[0], scratch, integers, outputs[0]
        )
        for layer in range(1, last + 1):
            hidden = outputs[layer - 1]
            kernel = kernels.weight[layer - 1]
            _rectify(hidden, padded, sizes[layer - 1])
            inner_products(
                hidden, integers[:padded], kernel, bias[layer], sizes[layer], outputs[layer]
            )

        error = errors[last % 2]
        batch_loss = _cross_entropy(
            outputs[last], error, plan.labels, batch[:padded], count, sizes[last]
        )
        if step >= plan.last_epoch:
            loss_sum += batch_loss

        # backward pass, in which each layer passes the error on before its own step
        for layer in range(last, 0, -1):
            kernel_of_layer = _layer_of(kernels, layer - 1)
            hidden = outputs[layer - 1]
            error_below = errors[(layer - 1) % 2]
            positions = integers[: round_up_to_fours(sizes[layer])]
            inputs = sizes[layer - 1]
            _pass_back(
                error, positions, kernel_of_layer.weight, hidden, error_below, padded, inputs
            )
            descend_kernel(kernel_of_layer, sizes[layer], hidden, integers[:padded], error, rule)
            descend_bias(_layer_of(biases, layer), sizes[layer], count, error, rule)
            error = error_below
        # the first layer, whose inputs need no gradient
        if first_layer.products.shape[1]:  # training in sample space
            descend_coefficients(first_layer, batch[:count], sizes[0], error, rule)
        else:
            descend_kernel(
                first_layer.kernel, sizes[0], first_layer.features, batch[:padded], error, rule
            )
        descend_bias(_layer_of(biases, 0), sizes[0], count, error, rule)
    return loss_sum


@compiled
def _rectify(outputs: AnyFloats, rows: int, columns: int) -> None:
    """Apply ReLU to the first rows and columns of an array, in place; NaN stays NaN."""
    for row in range(rows):
        for column in range(columns):
            outputs[row, column] = 0 if outputs[row, column] < 0 else outputs[row, column]


@compiled
def _layer_of(stack: Parameter, layer: int) -> Parameter:
    return Parameter(
        stack.weight[layer], stack.velocity[layer], stack.start[layer], stack.constant[layer]
    )


@compiled
def _pass_first_layer(
    first_layer: FirstLayer,
    step: int,
    batch: Positions,
    bias: AnyFloats,
    outputs: int,
    scratch: AnyFloats,
    integers: Positions,
    out: AnyFloats,
) -> None:
    """Write the first layer's outputs for a batch, before its ReLU, into ``out``.

    The outputs are features[batch] kernel^T + bias. In weight space this is all. In sample space
    the features are inner products of samples, and kernel^T is A, the samples' coefficients, so
    that the products of the batch with a W_0 + b C are added.

    Args:
        first_layer: the first layer.
        step: index of the step.
        batch: indices of the samples, int64 [b], padded to a multiple of four.
        bias: the layer's bias, [1, outputs].
        outputs: count of outputs.
        scratch: working memory, [b or more, c], if ``first_layer.is_transposed``; receives the
            features of the batch.
        integers: 0, 1, 2, ..., of sufficient length.
        out: receives the outputs, [b or more, outputs or more].
    """
    features = first_layer.features
    kernel = first_layer.kernel.weight
    products = first_layer.products
    if not first_layer.is_transposed:
        inner_products(features, batch, kernel, bias, outputs, out)
    else:  # a sum of the kernel's rows, one for each sample of the device
        for rank in range(len(batch)):
            for output in range(outputs):
                out[rank, output] = bias[0, output]
            for column in range(features.shape[1]):
                scratch[rank, column] = features[batch[rank], column]
        positions = integers[: round_up_to_fours(len(features))]
        add_products(out, len(batch), outputs, kernel, positions, scratch.T, out.dtype.type(1))
    # in sample space, the parts of the outputs that come from W_0 and C are added
    for base in range(len(products) if products.shape[1] else 0):
        share = first_layer.shares[base, step]
        for rank in range(len(batch)):
            sample = batch[rank]
            for output in range(outputs):
                out[rank, output] += share * products[base, sample, output]


@compiled
def _cross_entropy(
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
    sample_share = logits.dtype.type(1) / logits.dtype.type(count)
    error[: len(batch), : round_up_to_fours(classes)] = 0
    loss_sum = 0.0
    for rank in range(count):
        label = labels[batch[rank]]
        top = logits[rank, 0]  # will be the greatest logit, subtracted so that exp cannot overflow
        for output in range(classes):
            top = logits[rank, output] if logits[rank, output] > top else top
        total = logits.dtype.type(0)
        for output in range(classes):
            error[rank, output] = np.exp(logits[rank, output] - top)
            total += error[rank, output]
        loss_sum += np.log(total) - (logits[rank, label] - top)
        for output in range(classes):
            error[rank, output] *= sample_share / total
        error[rank, label] -= sample_share
    return loss_sum


@compiled
def _pass_back(
    error: AnyFloats,
    positions: Positions,
    kernel: AnyFloats,
    hidden: AnyFloats,
    error_below: AnyFloats,
    rows: int,
    inputs: int,
) -> None:
    """Compute the gradient with respect to a layer's inputs from the gradient of its outputs.

    Args:
        error: gradient with respect to the layer's outputs, [rows, outputs].
        positions: 0, 1, ..., outputs - 1, padded to a multiple of four.
        kernel: the layer's kernel, [outputs, inputs].
        hidden: the layer's inputs, after the ReLU below; the gradient is 0 where an input is 0.
        error_below: receives the gradient with respect to the inputs, [rows, inputs].
        rows: count of samples, a multiple of four.
        inputs: count of inputs.
    """
    error_below[:rows, : round_up_to_fours(inputs)] = 0
    add_products(error_below, rows, inputs, kernel, positions, error.T, error.dtype.type(1))
    for row in range(rows):
        for column in range(inputs):
            error_below[row, column] = error_below[row, column] if hidden[row, column] > 0 else 0
