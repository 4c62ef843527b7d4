"""Compiled products of matrices in blocks, for the forward and the backward pass of dense layers.

Four samples and four outputs are handled at a time, which keeps the registers of a CPU full. A
batch is an array of samples' indices, padded to a multiple of four.
"""

import numpy as np

from fedsim.learning.solvers.compiled import compiled
from fedsim.learning.solvers.dense_arrays import AnyFloats, Positions

# samples of a batch (or outputs) in one block of a product, which fits into the cache
_BLOCK = 32


@compiled
def round_up_to_fours(count: int) -> int:
    """Return the least multiple of four that is at least ``count``."""
    return (count + 3) // 4 * 4


@compiled
def inner_products(
    features: AnyFloats,
    batch: Positions,
    kernel: AnyFloats,
    bias: AnyFloats,
    outputs: int,
    out: AnyFloats,
) -> None:
    """Compute a dense layer's outputs for a batch, and write them into ``out``.

    out[rank, output] becomes <features[batch[rank]], kernel[output]> + bias[0, output].

    Args:
        features: the layer's inputs for all samples, [n, inputs].
        batch: indices of the batch's samples, int64 [b], b a multiple of four.
        kernel: [outputs or more, inputs].
        bias: [1, outputs or more].
        outputs: count of outputs.
        out: receives the outputs, [b or more, outputs or more].
    """
    for begin in range(0, len(batch), _BLOCK):
        for output in range(outputs):
            for rank in range(begin, min(begin + _BLOCK, len(batch)), 4):
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
def add_products(
    target: AnyFloats,
    rows: int,
    columns: int,
    sources: AnyFloats,
    positions: Positions,
    factors: AnyFloats,
    scale: np.floating,
) -> None:
    """Add scale x factors^T sources[positions] to ``target``, in place, four rows at a time.

    To each row of ``target``, scale x sum_k factors[k, row] sources[positions[k]] is added.

    Args:
        target: [rows or more, columns or more].
        rows: count of rows, a multiple of four.
        columns: count of columns of ``target`` and ``sources`` that are used.
        sources: the right factor, of which some rows are used, [n, columns or more].
        positions: indices of rows of ``sources``, int64 [k], k a multiple of four.
        factors: the left factor, transposed, [k, rows or more].
        scale: factor of the product.
    """
    for begin in range(0, len(positions), _BLOCK):
        for row in range(0, rows, 4):
            for k in range(begin, min(begin + _BLOCK, len(positions)), 4):
                first = positions[k]
                second = positions[k + 1]
                third = positions[k + 2]
                fourth = positions[k + 3]
                # each line: ``scale`` times the factors of the four sources, for one of four rows
                a, b, c, d = _scaled_factors(factors, k, row, scale)
                e, f, g, h = _scaled_factors(factors, k, row + 1, scale)
                i, j, m, n = _scaled_factors(factors, k, row + 2, scale)
                p, q, r, s = _scaled_factors(factors, k, row + 3, scale)
                for column in range(columns):
                    one = sources[first, column]
                    two = sources[second, column]
                    three = sources[third, column]
                    four = sources[fourth, column]
                    target[row, column] += a * one + b * two + c * three + d * four
                    target[row + 1, column] += e * one + f * two + g * three + h * four
                    target[row + 2, column] += i * one + j * two + m * three + n * four
                    target[row + 3, column] += p * one + q * two + r * three + s * four


@compiled
def _scaled_factors(
    factors: AnyFloats, k: int, row: int, scale: np.floating
) -> tuple[np.floating, ...]:
    return (
        scale * factors[k, row],
        scale * factors[k + 1, row],
        scale * factors[k + 2, row],
        scale * factors[k + 3, row],
    )
