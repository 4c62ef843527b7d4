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

    All arrays have one shape, [rows, columns], or [layers, rows, columns] for a stack of several
    layers' parameters. An array that the settings of SGD do not need has 0 rows.

    Attributes:
        weight: the present values.
        velocity: the velocity; 0 rows without momentum.
        start: weights before the first step, for the proximal term; 0 rows without this term.
        constant: the part of the gradient that is equal in all steps; 0 rows if there is none.
    """

    weight: AnyFloats
    velocity: AnyFloats
    start: AnyFloats
    constant: AnyFloats


class FirstLayer(NamedTuple):
    """First layer of a model in training by compiled loops: its kernel, or coefficients of samples.

    In *weight space* SGD steps change the kernel W. In *sample space* W is not stored. It is the
    sum a W_0 + b C + A^T X. The steps change A, [n, outputs], the coefficients of the device's
    samples X, [n, inputs]. W_0 is the kernel before the training, and C the part of the gradient
    that is equal in all steps. The numbers a and b are known for each step before the training.

    Attributes:
        features: [n, c]. In weight space the samples. In sample space the inner products of each
            sample with all samples, with columns of zeros as padding.
        kernel: W in weight space, A^T in sample space; [r, c], where r is the count of outputs,
            rounded up to a multiple of four.
        products: in sample space the products of the samples with W_0, and with C if there is a C,
            [1 or 2, n, outputs]; empty in weight space.
        shares: in sample space a, and b if there is a C, before each step and after the last,
            [1 or 2, steps + 1]; empty in weight space.
        is_transposed: whether ``kernel`` is A instead, [c, outputs], as this is faster for many
            outputs; False in weight space.
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
