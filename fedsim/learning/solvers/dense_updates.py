"""Compiled SGD steps of kernels and biases, in place.

The gradient is added to the velocity if the rule has momentum, else to the weights.
"""

import numpy as np

from fedsim.learning.solvers.compiled import compiled
from fedsim.learning.solvers.dense_arrays import AnyFloats, FirstLayer, Parameter, Positions, Rule
from fedsim.learning.solvers.dense_products import add_products


@compiled
def descend_kernel(
    kernel: Parameter,
    outputs: int,
    features: AnyFloats,
    batch: Positions,
    error: AnyFloats,
    rule: Rule,
) -> None:
    """Change a layer's kernel by one SGD step, in place.

    The gradient of the loss is error^T features[batch].

    Args:
        kernel: the kernel, [outputs, inputs], with rows of zeros up to a multiple of four.
        outputs: count of outputs.
        features: the layer's inputs for all samples, [n, inputs].
        batch: indices of the batch's samples, int64 [b], padded to a multiple of four.
        error: gradient of the loss with respect to the layer's outputs, [b, outputs]; 0 for samples
            that pad the batch.
        rule: the rule of an SGD step.
    """
    target, scale = _apply_terms(kernel, rule, rule.kernel_shrinkage, rule.mu)
    add_products(target, outputs, target.shape[1], features, batch, error, scale)
    _subtract_velocity(kernel, rule)


@compiled
def descend_coefficients(
    first_layer: FirstLayer, batch: Positions, outputs: int, error: AnyFloats, rule: Rule
) -> None:
    """Change the first layer's coefficients by one SGD step, in place (sample space).

    In sample space the kernel is W = a W_0 + b C + A^T X, with the device's samples X and their
    coefficients A. The gradient of A is ``error``, the gradient with respect to the layer's
    outputs, for the samples of the batch, and 0 for all other samples. The proximal term pulls A
    to 0.

    Args:
        first_layer: the first layer, in sample space.
        batch: indices of the batch's samples, int64 [b], without padding.
        outputs: count of outputs.
        error: gradient of the loss with respect to the layer's outputs, [b or more, outputs].
        rule: the rule of an SGD step.
    """
    # A starts at 0, so that the shrinkage is the whole proximal term, and no pull to the start is
    # added. The difference is a 0 with the dtype of mu.
    no_mu = rule.mu - rule.mu
    target, scale = _apply_terms(first_layer.kernel, rule, rule.kernel_shrinkage, no_mu)
    for rank in range(len(batch)):
        sample = batch[rank]
        for output in range(outputs):
            if first_layer.is_transposed:
                target[sample, output] += scale * error[rank, output]
            else:
                target[output, sample] += scale * error[rank, output]
    _subtract_velocity(first_layer.kernel, rule)


@compiled
def descend_bias(bias: Parameter, outputs: int, count: int, error: AnyFloats, rule: Rule) -> None:
    """Change a layer's bias by one SGD step, in place.

    The gradient of the bias is the sum of ``error`` over the batch.

    Args:
        bias: the bias, [1, outputs].
        outputs: count of outputs.
        count: count of samples in the batch, without padding.
        error: gradient of the loss with respect to the layer's outputs, [count or more, outputs].
        rule: the rule of an SGD step.
    """
    target, scale = _apply_terms(bias, rule, rule.bias_shrinkage, rule.mu)
    for rank in range(count):
        for output in range(outputs):
            target[0, output] += scale * error[rank, output]
    _subtract_velocity(bias, rule)


@compiled
def _apply_terms(
    parameter: Parameter, rule: Rule, shrinkage: np.floating, mu: np.floating
) -> tuple[AnyFloats, np.floating]:
    """Apply all terms of an SGD step to a parameter except the gradient of the loss, in place.

    The terms are momentum, shrinkage, the proximal term and the constant. With momentum they go
    into the velocity, which ``_subtract_velocity`` subtracts later; without it, into the weights.

    Args:
        parameter: the parameter.
        rule: the rule of an SGD step.
        shrinkage: factor of the weights in the gradient; includes the proximal term's mu.
        mu: factor of the start, which is subtracted from the gradient.

    Returns:
        The array (velocity or weights) to which the loss's gradient must be added, and the factor
        of the gradient: 1 for the velocity, -lr for the weights.
    """
    weight, velocity, start, constant = parameter
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
def _subtract_velocity(parameter: Parameter, rule: Rule) -> None:
    """Complete an SGD step with momentum: subtract lr x velocity from the weights, in place.

    Without momentum the velocity has no rows, and the weights have been changed already.
    """
    for row in range(len(parameter.velocity)):
        for column in range(parameter.velocity.shape[1]):
            parameter.weight[row, column] -= rule.lr * parameter.velocity[row, column]
