"""Winograd's transforms of images that are cut into tiles, channels last.

Pixels of a row that are ``PITCH`` apart are put side by side first, as [phase, place, channels]: then the k-th pixels of all
tiles of a row are contiguous, and the innermost loops run over whole rows of tiles and channels. All arrays are flat, and no
slices are taken, which cost numba a hundred nanoseconds each. Positions are unsigned: of others it would ask whether they are
negative, which keeps loops out of vector registers.
"""

import numpy as np
from numpy.typing import NDArray

from fedsim.learning.solvers.compiled import compiled, compiled_entry
from fedsim.learning.solvers.layers import Numbers, Sides

PITCH = 4
"""Distance of tiles: how many pixels of a row of the output one tile gives."""


@compiled
def copy(source: Numbers, at: int, target: Numbers, to: int, size: int) -> None:
    """target[to :] = source[at :], so many."""
    p, o = np.uint64(at), np.uint64(to)
    for z in range(np.uint64(size)):
        target[o + z] = source[p + z]


@compiled
def add(source: Numbers, at: int, target: Numbers, to: int, size: int) -> None:
    """target[to :] += source[at :], so many."""
    p, o = np.uint64(at), np.uint64(to)
    for z in range(np.uint64(size)):
        target[o + z] += source[p + z]


@compiled
def combine(
    factors: Numbers, row: int, source: Numbers, at: int, stride: int, turn: int, target: Numbers, to: int, size: int
) -> None:
    """target[to :] = sum over k of factors[row, k] source[at + k stride :], so many, for 3, 4, 5, 6 or 8 factors.

    From the fifth on, positions are ``turn`` further on. The sums are written out, so that they stay in registers.
    """
    taps = factors.shape[1]
    o, n, k = np.uint64(to), np.uint64(size), np.uint64(stride)
    i = np.uint64(row)
    p = np.uint64(at)
    q = p + k
    r = q + k
    a, b, c = factors[i, 0], factors[i, 1], factors[i, 2]
    if taps == 3:
        for z in range(n):
            target[o + z] = a * source[p + z] + b * source[q + z] + c * source[r + z]
        return
    s, d = r + k, factors[i, 3]
    if taps == 4:
        for z in range(n):
            target[o + z] = (a * source[p + z] + b * source[q + z]) + (c * source[r + z] + d * source[s + z])
        return
    t, e = s + k + np.uint64(turn), factors[i, 4]
    if taps == 5:
        for z in range(n):
            target[o + z] = (a * source[p + z] + b * source[q + z]) + (
                c * source[r + z] + d * source[s + z] + e * source[t + z]
            )
        return
    u, f = t + k, factors[i, 5]
    if taps == 6:
        for z in range(n):
            target[o + z] = (a * source[p + z] + b * source[q + z] + c * source[r + z]) + (
                d * source[s + z] + e * source[t + z] + f * source[u + z]
            )
        return
    v, g = u + k, factors[i, 6]
    w, h = v + k, factors[i, 7]
    for z in range(n):
        target[o + z] = (a * source[p + z] + b * source[q + z] + c * source[r + z] + d * source[s + z]) + (
            e * source[t + z] + f * source[u + z] + g * source[v + z] + h * source[w + z]
        )


@compiled_entry
def into_tiles(factors: Numbers, image: Numbers, shape: Sides, padding: int, rows: int, columns: int, tiles: Numbers) -> None:
    """Cut images into tiles ``PITCH`` apart, zero outside of the image, and transform each: factors tile factors^T.

    Args:
        factors: [after, side].
        image, shape: [n, height, width, channels].
        padding: pixels by which the first tile begins outside.
        rows, columns: tiles of one image.
        tiles: [after, after, n, rows, columns, channels].
    """
    n, height, width, channels = shape
    after, side = factors.shape
    size = columns * channels
    apart = n * rows * size
    phase = (columns + (side - 1) // PITCH) * channels
    line = PITCH * phase
    lines = (rows - 1) * PITCH + side
    pixels = np.zeros(lines * line, dtype=image.dtype)
    middle = np.empty(line, dtype=image.dtype)
    for at in range(n):
        for y in range(padding, min(height + padding, lines)):
            for x in range(padding, min(width + padding, line // channels)):
                source = ((at * height + y - padding) * width + x - padding) * channels
                copy(image, source, pixels, y * line + x % PITCH * phase + x // PITCH * channels, channels)
        for row in range(rows):
            begin = (at * rows + row) * size
            for i in range(after):
                combine(factors, i, pixels, row * PITCH * line, line, 0, middle, 0, line)
                for j in range(after):
                    turn = channels - PITCH * phase
                    combine(factors, j, middle, 0, phase, turn, tiles, begin + (i * after + j) * apart, size)


@compiled_entry
def see_nothing(image: Numbers, shape: Sides, side: int, padding: int, empty: NDArray[np.uint8]) -> None:
    """Where a kernel of that ``side`` sees zeros only: ``empty`` [n, down, across].

    There a plain sum is exactly zero, and with no bias that is where ReLU has its kink: a rounding error would let an error
    pass that a plain sum does not.
    """
    n, height, width, channels = shape
    down, across = height + 2 * padding - side + 1, width + 2 * padding - side + 1
    blank = np.empty(height * width, dtype=np.uint8)
    for at in range(n):
        for pixel in range(height * width):
            p, c = np.uint64((at * height * width + pixel) * channels), np.uint64(0)
            while c < np.uint64(channels) and image[p + c] == 0:
                c += np.uint64(1)
            blank[pixel] = c == np.uint64(channels)
        for row in range(down):
            for column in range(across):
                only = True
                for y in range(max(0, row - padding), min(height, row - padding + side)):
                    for x in range(max(0, column - padding), min(width, column - padding + side)):
                        only = only and blank[y * width + x] != 0
                    if not only:
                        break
                empty[(at * down + row) * across + column] = only


@compiled_entry
def out_of_tiles(
    factors: Numbers,
    tiles: Numbers,
    bias: Numbers,
    empty: NDArray[np.uint8],
    rows: int,
    columns: int,
    image: Numbers,
    shape: Sides,
) -> None:
    """Transform tiles and lay them side by side; what reaches beyond the image is dropped.

    Args:
        factors: [PITCH, before].
        tiles: [before, before, n, rows, columns, channels].
        bias: added, [channels].
        empty: where the kernel saw zeros only, [n, height, width]; there the result is the bias, without rounding errors.
        rows, columns: tiles of one image.
        image, shape: the result, [n, height, width, channels].
    """
    n, height, width, channels = shape
    before = factors.shape[1]
    size = columns * channels
    apart = n * rows * size
    middle = np.empty(before * size, dtype=image.dtype)
    pixels = np.empty(PITCH * size, dtype=image.dtype)
    for at in range(n):
        for row in range(rows):
            begin = (at * rows + row) * size
            for k in range(min(PITCH, height - row * PITCH)):
                for j in range(before):
                    combine(factors, k, tiles, begin + j * apart, before * apart, 0, middle, j * size, size)
                for x in range(PITCH):
                    combine(factors, x, middle, 0, size, 0, pixels, x * size, size)
                line = (at * height + row * PITCH + k) * width
                for x in range(width):
                    p = np.uint64(x % PITCH * size + x // PITCH * channels)
                    o = np.uint64((line + x) * channels)
                    if empty[line + x]:
                        copy(bias, 0, image, (line + x) * channels, channels)
                        continue
                    for z in range(np.uint64(channels)):
                        image[o + z] = pixels[p + z] + bias[z]


@compiled_entry
def add_out_of_tiles(
    factors: Numbers, tiles: Numbers, padding: int, rows: int, columns: int, image: Numbers, shape: Sides
) -> None:
    """The adjoint of ``into_tiles``: transform tiles and add up what overlaps.

    Args:
        factors: [side, before].
        tiles: [before, before, n, rows, columns, channels].
        padding, rows, columns: as in ``into_tiles``.
        image, shape: the result, [n, height, width, channels].
    """
    n, height, width, channels = shape
    side, before = factors.shape
    size = columns * channels
    apart = n * rows * size
    phase = (columns + (side - 1) // PITCH) * channels
    line = PITCH * phase
    lines = (rows - 1) * PITCH + side
    middle = np.empty(before * size, dtype=image.dtype)
    part = np.empty(size, dtype=image.dtype)
    sums = np.empty(lines * line, dtype=image.dtype)
    image[:] = 0
    for at in range(n):
        sums[:] = 0
        for row in range(rows):
            begin = (at * rows + row) * size
            for k in range(side):
                for j in range(before):
                    combine(factors, k, tiles, begin + j * apart, before * apart, 0, middle, j * size, size)
                for x in range(side):
                    combine(factors, x, middle, 0, size, 0, part, 0, size)
                    add(part, 0, sums, (row * PITCH + k) * line + x % PITCH * phase + x // PITCH * channels, size)
        for y in range(padding, min(height + padding, lines)):
            for x in range(padding, min(width + padding, line // channels)):
                target = ((at * height + y - padding) * width + x - padding) * channels
                copy(sums, y * line + x % PITCH * phase + x // PITCH * channels, image, target, channels)


@compiled_entry
def transform_kernels(factors: Numbers, source: Numbers, target: Numbers, size: int) -> None:
    """Transform kernels [before, before, size] into [after, after, size]."""
    after, before = factors.shape
    block = min(size, 512)
    middle = np.empty(before * block, dtype=source.dtype)
    for at in range(0, size, block):
        length = min(block, size - at)
        for i in range(after):
            for j in range(before):
                combine(factors, i, source, at + j * size, before * size, 0, middle, j * block, length)
            for j in range(after):
                combine(factors, j, middle, 0, block, 0, target, at + (i * after + j) * size, length)
