"""Compiled loops for the SGD of a device on dense layers, with gradients in closed form.

Weights are changed in place. The loops handle four samples and four outputs at a time, which keeps
the registers of a CPU full. All arrays with outputs are therefore padded with zeros to a multiple
of four outputs. A batch is padded to a multiple of four samples with its first sample, whose error
is set to 0.
"""

import numpy as np

from fedsim.learning.solvers.compiled import compiled, compiled_entry, inlined
from fedsim.learning.solvers.dense_arrays import (
    AnyFloats,
    DenseParameters,
    FirstLayer,
    LoopPlan,
    Parameter,
    Positions,
    Rule,
    StepMemory,
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
    network = DenseParameters(entry, kernels, biases, sizes)
    memory = _allocate(network, plan)
    loss = 0.0
    for step in range(len(plan.counts)):
        count = plan.counts[step]
        batch = _fill_batch(memory, plan, step)
        logits = _pass_forward(network, memory, step, batch)
        error = _error_of(memory, len(sizes) - 1)
        batch_loss = _judge(logits, error, plan.labels, batch, count, sizes[-1])
        if step >= plan.last_epoch:
            loss += batch_loss
        _descend_layers(network, memory, batch, count, rule)
    return loss


@inlined
def _allocate(network: DenseParameters, plan: LoopPlan) -> StepMemory:
    """Allocate the working memory of a local training, for a model and a device's batches."""
    entry = network.entry
    dtype = entry.features.dtype
    layers = len(network.sizes)
    samples = round_up_to_fours(plan.rows.shape[1])
    widest = round_up_to_fours(network.sizes.max())
    columns = entry.features.shape[1] if entry.turned else 0
    return StepMemory(
        np.zeros((layers, samples, widest), dtype),
        np.zeros((2, samples, widest), dtype),
        np.empty((samples, columns), dtype),
        np.arange(max(samples, widest, columns)),
        np.arange(samples),
    )


@inlined
def _fill_batch(memory: StepMemory, plan: LoopPlan, step: int) -> Positions:
    """Return the indices of the samples of a step's batch, as a view of ``memory``.

    They are padded to a multiple of four by the batch's first sample.
    """
    count = plan.counts[step]
    padded = round_up_to_fours(count)
    for at in range(padded):
        memory.batch[at] = plan.rows[step, at if at < count else 0]
    batch: Positions = memory.batch[:padded]
    return batch


@inlined
def _error_of(memory: StepMemory, layer: int) -> AnyFloats:
    """Return the memory for the loss's gradient with respect to a layer's outputs, [b, outputs].

    Two layers that follow one another have different memory.
    """
    error: AnyFloats = memory.errors[layer % 2]
    return error


@inlined
def _pass_forward(
    network: DenseParameters, memory: StepMemory, step: int, batch: Positions
) -> AnyFloats:
    """Compute the outputs of all layers for a batch, and store them in ``memory.outputs``.

    Args:
        network: the parameters.
        memory: the working memory.
        step: index of the step.
        batch: indices of the samples, padded to a multiple of four.

    Returns:
        The outputs of the last layer, [b or more, outputs or more].
    """
    entry = network.entry
    sizes = network.sizes
    outputs = memory.outputs
    bias = network.biases.weight
    _pass_first_layer(
        entry, step, batch, bias[0], sizes[0], memory.scratch, memory.every, outputs[0]
    )
    rows = memory.every[: len(batch)]
    for layer in range(1, len(sizes)):
        hidden = outputs[layer - 1]
        _rectify(hidden, len(batch), sizes[layer - 1])
        kernel = network.kernels.weight[layer - 1]
        inner_products(hidden, rows, kernel, bias[layer], sizes[layer], outputs[layer])
    logits: AnyFloats = outputs[-1]
    return logits


@inlined
def _descend_layers(
    network: DenseParameters, memory: StepMemory, batch: Positions, count: int, rule: Rule
) -> None:
    """Take one SGD step of all parameters, from the last layer to the first.

    Args:
        network: the parameters.
        memory: the outputs of all layers, and the gradient with respect to the logits.
        batch: indices of the samples, padded to a multiple of four.
        count: count of samples in the batch.
        rule: the rule of an SGD step.
    """
    sizes = network.sizes
    rows = memory.every[: len(batch)]
    for layer in range(len(sizes) - 1, 0, -1):
        error = _error_of(memory, layer)
        below = _error_of(memory, layer - 1)
        kernel = _of(network.kernels, layer - 1)
        hidden = memory.outputs[layer - 1]
        positions = memory.every[: round_up_to_fours(sizes[layer])]
        inputs = sizes[layer - 1]
        _pass_back(error, positions, kernel.weight, hidden, below, len(batch), inputs)
        descend_kernel(kernel, sizes[layer], hidden, rows, error, rule)
        descend_bias(_of(network.biases, layer), sizes[layer], count, error, rule)
    entry = network.entry
    error = _error_of(memory, 0)
    if entry.products.shape[1]:
        descend_along(entry, batch[:count], sizes[0], error, rule)
    else:
        descend_kernel(entry.kernel, sizes[0], entry.features, batch, error, rule)
    descend_bias(_of(network.biases, 0), sizes[0], count, error, rule)


@inlined
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
