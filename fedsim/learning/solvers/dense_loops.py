"""Compiled loops for the SGD of a device on dense layers, with gradients in closed form.

Weights are changed in place. The loops handle four samples and four outputs at a time, which keeps
the registers of a CPU full. All arrays with outputs are therefore padded with zeros to a multiple
of four outputs. A batch is padded to a multiple of four samples with its first sample, whose error
is set to 0.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.learning.solvers.compiled import compiled, compiled_entry, inlined

AnyFloats = NDArray[np.floating]
Positions = NDArray[np.int64]

# samples of a batch (or outputs) in one block of a product, which fits into the cache
_AT_ONCE = 32


class Rule(NamedTuple):
    """Rule of an SGD step for compiled loops; all numbers have the model's dtype.

    Attributes:
        lr: learning rate.
        momentum: factor of the velocity.
        mu: factor of the proximal term.
        kernels: factor of a kernel in its own gradient (``Descent.shrinkage``).
        biases: factor of a bias in its own gradient.
    """

    lr: np.floating
    momentum: np.floating
    mu: np.floating
    kernels: np.floating
    biases: np.floating


class Parameter(NamedTuple):
    """Weights or biases of a layer in training by compiled loops, with all that an SGD step reads.

    The arrays may be stacks of several layers' parameters. Arrays that the settings of SGD do not
    need, such as ``velocity`` without momentum, have no rows.

    Attributes:
        weight: the present values.
        velocity: the velocity of momentum.
        start: weights before the first step, to which the proximal term pulls.
        constant: the parameter's part of ``LocalSolve.constant``.
    """

    weight: AnyFloats
    velocity: AnyFloats
    start: AnyFloats
    constant: AnyFloats


class FirstLayer(NamedTuple):
    """First layer of a model in training by compiled loops: its kernel, or coefficients of samples.

    In *weight space* steps change the kernel W. In *sample space* they change the coefficients A of
    the samples X in W = a W_0 + b C + A^T X, where W_0 is the start and C the constant part of the
    gradient.

    Attributes:
        features: [n, c]: in weight space the samples; in sample space their inner products with all
            samples, with columns padded with zeros.
        kernel: the factor of ``features``, [outputs padded to fours, c]: in weight space the kernel
            W, in sample space the coefficients A.
        products: in sample space the products of the samples with W_0 (and C), [1 or 2, n,
            outputs]; empty along its second dimension in weight space.
        shares: coefficient of W_0 (and C) in the kernel before each step, [1 or 2, steps + 1].
        turned: whether ``kernel`` is transposed, [c, outputs], which is faster for many outputs.
    """

    features: AnyFloats
    kernel: Parameter
    products: AnyFloats
    shares: AnyFloats
    turned: bool


class LoopPlan(NamedTuple):
    """Labels of a device's samples, and the samples of each batch, for compiled loops.

    Attributes:
        labels: label of each sample, int64 [n].
        rows, counts, last_epoch: as in ``Batches``: sample indices and count of each batch, and the
            first step of the last epoch.
    """

    labels: Positions
    rows: Positions
    counts: Positions
    last_epoch: int


class DenseParameters(NamedTuple):
    """Parameters of all layers of a model in training, for compiled loops.

    Attributes:
        entry: the first layer.
        kernels: kernels of all later layers, padded to one shape, [layers - 1, outputs, inputs];
            outputs are a multiple of four.
        biases: all biases, [layers, 1, outputs].
        sizes: count of outputs of each layer, int64 [layers].
    """

    entry: FirstLayer
    kernels: Parameter
    biases: Parameter
    sizes: Positions


class StepMemory(NamedTuple):
    """Working memory of a local training by compiled loops, overwritten in each step.

    It has room for a batch and the outputs of the widest layer, both padded to multiples of four.

    Attributes:
        outputs: outputs of each layer for a batch, [layers, b, outputs].
        errors: gradients with respect to the outputs of a layer and of the layer below, [2, b,
            outputs].
        scratch: features of a batch, [b, c], if the first layer's kernel is transposed.
        every: 0, 1, 2, ..., as many as the longest axis needs.
        batch: indices of the samples of a batch, int64 [b].
    """

    outputs: AnyFloats
    errors: AnyFloats
    scratch: AnyFloats
    every: Positions
    batch: Positions


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
    samples = _fours(plan.rows.shape[1])
    widest = _fours(network.sizes.max())
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
    padded = _fours(count)
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
    _enter(entry, step, batch, bias[0], sizes[0], memory.scratch, memory.every, outputs[0])
    rows = memory.every[: len(batch)]
    for layer in range(1, len(sizes)):
        hidden = outputs[layer - 1]
        _rectify(hidden, len(batch), sizes[layer - 1])
        kernel = network.kernels.weight[layer - 1]
        _inner_products(hidden, rows, kernel, bias[layer], sizes[layer], outputs[layer])
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
        positions = memory.every[: _fours(sizes[layer])]
        inputs = sizes[layer - 1]
        _pass_back(error, positions, kernel.weight, hidden, below, len(batch), inputs)
        _descend_kernel(kernel, sizes[layer], hidden, rows, error, rule)
        _descend_bias(_of(network.biases, layer), sizes[layer], count, error, rule)
    entry = network.entry
    error = _error_of(memory, 0)
    if entry.products.shape[1]:
        _descend_along(entry, batch[:count], sizes[0], error, rule)
    else:
        _descend_kernel(entry.kernel, sizes[0], entry.features, batch, error, rule)
    _descend_bias(_of(network.biases, 0), sizes[0], count, error, rule)


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
def _fours(count: int) -> int:
    return (count + 3) // 4 * 4


# forward and backward pass; a batch is an array of samples' indices, padded to a multiple of four


@compiled
def _enter(
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
        _inner_products(features, batch, kernel, bias, outputs, out)
    else:
        for rank in range(len(batch)):
            for output in range(outputs):
                out[rank, output] = bias[0, output]
            for column in range(features.shape[1]):
                scratch[rank, column] = features[batch[rank], column]
        positions = every[: _fours(len(features))]
        _add_products(out, len(batch), outputs, kernel, positions, scratch.T, out.dtype.type(1))
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
    error[: len(batch), : _fours(classes)] = 0
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
    below[:rows, : _fours(inputs)] = 0
    _add_products(below, rows, inputs, kernel, positions, error.T, error.dtype.type(1))
    for row in range(rows):
        for column in range(inputs):
            below[row, column] = below[row, column] if hidden[row, column] > 0 else 0


@compiled
def _inner_products(
    features: AnyFloats,
    batch: Positions,
    kernel: AnyFloats,
    bias: AnyFloats,
    outputs: int,
    out: AnyFloats,
) -> None:
    """Compute a dense layer's outputs for a batch, and write them into ``out``.

    out[rank, output] becomes <features[batch[rank]], kernel[output]> + bias[0, output].
    """
    for begin in range(0, len(batch), _AT_ONCE):
        for output in range(outputs):
            for rank in range(begin, min(begin + _AT_ONCE, len(batch)), 4):
                first = batch[rank]
                second = batch[rank + 1]
                third = batch[rank + 2]
                fourth = batch[rank + 3]
                one = two = three = four = bias[0, output]
                for column in range(kernel.shape[1]):
                    weight = kernel[output, column]
                    one += weight * features[first, column]
                    two += weight * features[second, column]
                    three += weight * features[third, column]
                    four += weight * features[fourth, column]
                out[rank, output], out[rank + 1, output] = one, two
                out[rank + 2, output], out[rank + 3, output] = three, four


@compiled
def _add_products(
    target: AnyFloats,
    rows: int,
    columns: int,
    sources: AnyFloats,
    positions: Positions,
    factors: AnyFloats,
    scale: np.floating,
) -> None:
    """Add the product of two matrices to ``target``, in place, four rows at a time.

    To each row, scale x sum_k factors[k, row] sources[positions[k]] is added. The counts of rows
    and positions are multiples of four. Only the first ``columns`` columns are used.
    """
    for begin in range(0, len(positions), _AT_ONCE):
        for row in range(0, rows, 4):
            for k in range(begin, min(begin + _AT_ONCE, len(positions)), 4):
                first = positions[k]
                second = positions[k + 1]
                third = positions[k + 2]
                fourth = positions[k + 3]
                a, b, c, d = _four(factors, k, row, scale)
                e, f, g, h = _four(factors, k, row + 1, scale)
                i, j, m, n = _four(factors, k, row + 2, scale)
                p, q, r, s = _four(factors, k, row + 3, scale)
                for at in range(columns):
                    one = sources[first, at]
                    two = sources[second, at]
                    three = sources[third, at]
                    four = sources[fourth, at]
                    target[row, at] += a * one + b * two + c * three + d * four
                    target[row + 1, at] += e * one + f * two + g * three + h * four
                    target[row + 2, at] += i * one + j * two + m * three + n * four
                    target[row + 3, at] += p * one + q * two + r * three + s * four


@compiled
def _four(factors: AnyFloats, k: int, row: int, scale: np.floating) -> tuple[np.floating, ...]:
    return (
        scale * factors[k, row],
        scale * factors[k + 1, row],
        scale * factors[k + 2, row],
        scale * factors[k + 3, row],
    )


# SGD step; the gradient is added to the velocity if the rule has momentum, else to the weights


@compiled
def _descend_kernel(
    kernel: Parameter,
    outputs: int,
    features: AnyFloats,
    batch: Positions,
    error: AnyFloats,
    rule: Rule,
) -> None:
    """Change a layer's kernel by one SGD step, in place.

    Its gradient is error^T features[batch], where ``error`` is the gradient with respect to the
    layer's outputs, [b, outputs], and ``features`` are the layer's inputs.
    """
    target, scale = _prepare(kernel, rule, rule.kernels, rule.mu)
    _add_products(target, outputs, target.shape[1], features, batch, error, scale)
    _follow(kernel, rule)


@compiled
def _descend_along(
    entry: FirstLayer, batch: Positions, outputs: int, error: AnyFloats, rule: Rule
) -> None:
    """Change the first layer by one SGD step, in place, by its coefficients A of the samples.

    The gradient of A is ``error`` for the samples of the batch, and 0 for all other samples of the
    device. The proximal term pulls A to 0.
    """
    target, scale = _prepare(entry.kernel, rule, rule.kernels, rule.mu - rule.mu)
    for rank in range(len(batch)):
        sample = batch[rank]
        for output in range(outputs):
            if entry.turned:
                target[sample, output] += scale * error[rank, output]
            else:
                target[output, sample] += scale * error[rank, output]
    _follow(entry.kernel, rule)


@compiled
def _descend_bias(bias: Parameter, outputs: int, count: int, error: AnyFloats, rule: Rule) -> None:
    """Change a layer's bias by one SGD step, in place.

    Its gradient is the sum of ``error``, the gradient with respect to the layer's outputs, over the
    batch.
    """
    target, scale = _prepare(bias, rule, rule.biases, rule.mu)
    for rank in range(count):
        for output in range(outputs):
            target[0, output] += scale * error[rank, output]
    _follow(bias, rule)


@compiled
def _prepare(
    part: Parameter, rule: Rule, shrinkage: np.floating, mu: np.floating
) -> tuple[AnyFloats, np.floating]:
    """Apply all terms of an SGD step to a parameter except the gradient of the loss, in place.

    They are momentum, shrinkage, the proximal term and the constant.

    Args:
        part: the parameter.
        rule: the rule of an SGD step.
        shrinkage: factor of the weights in the gradient.
        mu: factor of the start in the gradient.

    Returns:
        The array (velocity or weights) to which the loss's gradient must be added, and the factor
        of the gradient.
    """
    weight, velocity, start, constant = part
    rows, columns = weight.shape
    target = weight
    scale = -rule.lr
    if len(velocity):
        target = velocity
        scale = weight.dtype.type(1)
        for row in range(rows):
            for column in range(columns):
                velocity[row, column] = (
                    rule.momentum * velocity[row, column] + shrinkage * weight[row, column]
                )
                if mu > 0:
                    velocity[row, column] -= mu * start[row, column]
    elif shrinkage > 0:
        for row in range(rows):
            for column in range(columns):
                pull = shrinkage * weight[row, column]
                if mu > 0:
                    pull -= mu * start[row, column]
                weight[row, column] -= rule.lr * pull
    for row in range(len(constant)):
        for column in range(columns):
            target[row, column] += scale * constant[row, column]
    return target, scale


@compiled
def _follow(part: Parameter, rule: Rule) -> None:
    """Complete an SGD step with momentum: subtract lr x velocity from the weights, in place."""
    for row in range(len(part.velocity)):
        for column in range(part.velocity.shape[1]):
            part.weight[row, column] -= rule.lr * part.velocity[row, column]
