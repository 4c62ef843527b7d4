"""Arrays of a model of dense layers in training, as the compiled loops take them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AnyFloats = NDArray[np.floating]
Positions = NDArray[np.int64]


class Rule(NamedTuple):
    """Rule of an SGD step for compiled loops; all numbers have the model's dtype.

    Attributes:
        lr: learning rate.
        momentum: factor of the velocity.
        mu: factor of the proximal term.
        kernel_shrinkage: factor of a kernel in its own gradient (``Descent.shrinkage``).
        bias_shrinkage: factor of a bias in its own gradient.
    """

    lr: np.floating
    momentum: np.floating
    mu: np.floating
    kernel_shrinkage: np.floating
    bias_shrinkage: np.floating


class Parameter(NamedTuple):
    """Weights or biases of a layer in training by compiled loops, with all that an SGD step reads.

    The arrays may be stacks of several layers' parameters. Arrays that the settings of SGD do not
    need, such as ``velocity`` without momentum, have no rows.

    Attributes:
        weight: the present values.
        velocity: the velocity of momentum.
        start: weights before the first step, to which the proximal term pulls.
        constant: the part of the gradient that is equal in all steps.
    """

    weight: AnyFloats
    velocity: AnyFloats
    start: AnyFloats
    constant: AnyFloats


class FirstLayer(NamedTuple):
    """First layer of a model in training by compiled loops: its kernel, or coefficients of samples.

    In *weight space* SGD steps change the kernel W. In *sample space* they change the coefficients
    A of the device's samples X in W = a W_0 + b C + A^T X, where W_0 is the kernel before the
    training, and C the part of the gradient that is equal in all steps.

    Attributes:
        features: [n, c]: in weight space the samples; in sample space their inner products with all
            samples, with columns padded with zeros.
        kernel: the factor of ``features``, [outputs padded to fours, c]: in weight space the kernel
            W, in sample space the coefficients A.
        products: in sample space the products of the samples with W_0 (and C), [1 or 2, n,
            outputs]; empty in weight space, where they are not used.
        shares: coefficient of W_0 (and C) in the kernel before each step, [1 or 2, steps + 1].
        is_transposed: whether ``kernel`` is transposed, [c, outputs], which is faster for many
            outputs.
    """

    features: AnyFloats
    kernel: Parameter
    products: AnyFloats
    shares: AnyFloats
    is_transposed: bool


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
