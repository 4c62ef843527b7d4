"""Winograd's transforms of images that are cut into tiles, channels last.

Pixels of a row that are ``PITCH`` apart are put side by side first, as [phase, place, channels]: then the k-th pixels of all
tiles of a row are contiguous, and the innermost loops run over whole rows of tiles and channels. There the numbers of a line
through a tile are loaded once, and give all of its transform: half of the multiplications are saved where points come in pairs,
p and -p, whose values are the sum and the difference of the even and the odd part. All arrays are flat, and no slices are
taken, which cost numba a hundred nanoseconds each.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedsim.learning.solvers.compiled import compiled, compiled_entry
from fedsim.learning.solvers.layers import Numbers, Sides
from fedsim.learning.solvers.vectors import INT, REGISTER, Vectors

PITCH = 4
"""Distance of tiles: how many pixels of a row of the output one tile gives."""

POINTS = (*map(Fraction, (0, 1, -1)), Fraction(1, 2), Fraction(-2), Fraction(-1, 2), Fraction(2))
"""Where polynomials are evaluated, besides infinity: of the choices tried, the one that loses the fewest digits."""

Matrix = list[list[Fraction]]


def matrices(outputs: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """A [outputs, side], G [side, taps], B [side, side] with correlate(d, g) = A ((G g) (B d)), side = outputs + taps - 1."""
    points = POINTS[: outputs + taps - 2]
    values = [[point**power for point in points] + [Fraction(int(power == outputs - 1))] for power in range(outputs)]
    kernels = []
    signals = []
    for at, point in enumerate(points):
        others = points[:at] + points[at + 1 :]
        scale = prod((point - other for other in others), start=Fraction(1))
        kernels.append([point**power / scale for power in range(taps)])
        signals.append([*_expanded(others), Fraction(0)])
    kernels.append([Fraction(int(power == taps - 1)) for power in range(taps)])
    signals.append(_expanded(points))
    return values, kernels, signals


def _expanded(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - root), the constant one first."""
    coefficients = [Fraction(1)]
    for root in roots:
        coefficients = [a - root * b for a, b in zip([Fraction(0), *coefficients], [*coefficients, Fraction(0)], strict=True)]
    return coefficients


def _turned(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def _pairs(matrix: Matrix) -> list[tuple[int, int]]:
    """Rows that differ in the signs of the odd columns alone."""
    signs = [[number * (-1) ** at for at, number in enumerate(row)] for row in matrix]
    return [(one, other) for one, other in combinations(range(len(matrix)), 2) if matrix[one] == signs[other]]


def _transformed(code: Any, vectors: Vectors, matrix: Matrix, values: Sequence[Any]) -> list[Any]:
    """Writes ``matrix`` times ``values``, which are registers."""

    def combined(factors: Sequence[Fraction], of: Sequence[Any]) -> Any:
        total = None
        for factor, value in sorted(zip(factors, of, strict=True), key=lambda term: term[0] != 1):
            if total is None:
                total = None if not factor else value if factor == 1 else code.fmul(vectors.constant(float(factor)), value)
            elif abs(factor) == 1:
                total = (code.fadd if factor == 1 else code.fsub)(total, value)
            elif factor:
                total = vectors.multiply_add(vectors.constant(float(factor)), value, total)
        return total

    found, both = {}, _pairs(matrix)
    for one, other in both:
        even, odd = (combined(matrix[one][at::2], values[at::2]) for at in (0, 1))
        found[one], found[other] = code.fadd(even, odd), code.fsub(even, odd)
    sides, gone = [list(values), list(values)], set()
    for one, other in [] if both else _pairs(_turned(matrix)):
        sides[0][one], sides[1][one] = code.fadd(values[one], values[other]), code.fsub(values[one], values[other])
        gone.add(other)
    left = [at for at in range(len(values)) if at not in gone]
    return [
        found[row] if row in found else combined([matrix[row][at] for at in left], [sides[row % 2][at] for at in left])
        for row in range(len(matrix))
    ]


def _register(matrix: Matrix, *, add: bool) -> Any:
    """The transform of so many numbers side by side as a register has."""

    def register(
        typing: Any, source: Any, at: Any, apart: Any, turn: Any, target: Any, to: Any, afar: Any, swing: Any, count: Any
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            arrays = (context.make_array(signature.args[at])(context, builder, args[at]).data for at in (0, 4))
            (_, at, apart, turn, _, to, afar, swing, count), (read, write) = args, arrays
            vectors = Vectors(builder, context.get_value_type(source.dtype), source.dtype.bitwidth, count)

            def place(base: Any, begin: Any, number: int, step: Any, jump: Any) -> Any:
                there = builder.add(begin, builder.mul(INT(number), step))
                return builder.gep(base, [builder.add(there, jump) if number >= PITCH else there])

            values = [vectors.load(place(read, at, number, apart, turn)) for number in range(len(matrix[0]))]
            for number, value in enumerate(_transformed(builder, vectors, matrix, values)):
                there = place(write, to, number, afar, swing)
                vectors.store(builder.fadd(vectors.load(there), value) if add else value, there)
            return context.get_dummy_value()

        return types.void(source, at, apart, turn, target, to, afar, swing, count), codegen

    return intrinsic(register)


def _line(which: int, *, turned: bool, add: bool = False) -> Any:
    """A loop for one of the ``matrices`` (or its transpose), for kernels of side 3 and 5.

    It computes target[to + i afar :] (+)= sum over k of matrix[i, k] source[at + k apart :], so many (``size``). From the
    fifth on, positions are ``turn`` and ``swing`` further on.
    """
    three, five = (
        _register(_turned(matrix) if turned else matrix, add=add)
        for matrix in (matrices(PITCH, taps)[which] for taps in (3, 5))
    )

    @compiled
    def line(
        taps: int, source: Numbers, at: int, apart: int, turn: int, target: Numbers, to: int, afar: int, swing: int, size: int
    ) -> None:
        lanes = REGISTER // source.itemsize
        for z in range(0, size, lanes):
            if taps == 5:
                five(source, at + z, apart, turn, target, to + z, afar, swing, size - z)
            else:
                three(source, at + z, apart, turn, target, to + z, afar, swing, size - z)

    return line


_from_product, _to_product = _line(0, turned=False), _line(0, turned=True)
_to_kernel, _from_kernel = _line(1, turned=False), _line(1, turned=True)
_to_signal, _add_from_signal, _from_signal = _line(2, turned=False), _line(2, turned=True, add=True), _line(2, turned=True)


@compiled
def copy(source: Numbers, at: int, target: Numbers, to: int, size: int) -> None:
    """target[to :] = source[at :], so many."""
    p, o = np.uint64(at), np.uint64(to)
    for z in range(np.uint64(size)):
        target[o + z] = source[p + z]


@compiled_entry
def into_tiles(
    taps: int, is_signal: bool, image: Numbers, shape: Sides, padding: int, rows: int, columns: int, tiles: Numbers
) -> None:
    """Cut images into tiles ``PITCH`` apart, zero outside of the image, and transform each: B tile B^T, or A^T tile A.

    Args:
        taps: side of the kernel.
        is_signal: whether tiles overlap, as what a kernel sees does: for B.
        image, shape: [n, height, width, channels].
        padding: pixels by which the first tile begins outside.
        rows, columns: tiles of one image.
        tiles: [after, after, n, rows, columns, channels].
    """
    n, height, width, channels = shape
    after = PITCH + taps - 1
    side = after if is_signal else PITCH
    size = columns * channels
    apart = n * rows * size
    phase = (columns + (side - 1) // PITCH) * channels
    line = PITCH * phase
    lines = (rows - 1) * PITCH + side
    turn = channels - PITCH * phase
    pixels = np.zeros(lines * line, dtype=image.dtype)
    middle = np.empty(after * line, dtype=image.dtype)
    for at in range(n):
        for y in range(padding, min(height + padding, lines)):
            for x in range(padding, min(width + padding, line // channels)):
                source = ((at * height + y - padding) * width + x - padding) * channels
                copy(image, source, pixels, y * line + x % PITCH * phase + x // PITCH * channels, channels)
        for row in range(rows):
            begin, first = (at * rows + row) * size, row * PITCH * line
            if is_signal:
                _to_signal(taps, pixels, first, line, 0, middle, 0, line, 0, line)
            else:
                _to_product(taps, pixels, first, line, 0, middle, 0, line, 0, line)
            for i in range(after):
                to = begin + i * after * apart
                if is_signal:
                    _to_signal(taps, middle, i * line, phase, turn, tiles, to, apart, 0, size)
                else:
                    _to_product(taps, middle, i * line, phase, turn, tiles, to, apart, 0, size)


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
    taps: int,
    tiles: Numbers,
    bias: Numbers,
    empty: NDArray[np.uint8],
    rows: int,
    columns: int,
    image: Numbers,
    shape: Sides,
) -> None:
    """Transform tiles, A tile A^T, and lay them side by side; what reaches beyond the image is dropped.

    Args:
        taps: side of the kernel.
        tiles: [before, before, n, rows, columns, channels].
        bias: added, [channels].
        empty: where the kernel saw zeros only, [n, height, width]; there the result is the bias, without rounding errors.
        rows, columns: tiles of one image.
        image, shape: the result, [n, height, width, channels].
    """
    n, height, width, channels = shape
    before = PITCH + taps - 1
    size = columns * channels
    apart = n * rows * size
    middle = np.empty(PITCH * before * size, dtype=image.dtype)
    pixels = np.empty(PITCH * size, dtype=image.dtype)
    for at in range(n):
        for row in range(rows):
            begin = (at * rows + row) * size
            for j in range(before):
                _from_product(taps, tiles, begin + j * apart, before * apart, 0, middle, j * size, before * size, 0, size)
            for k in range(min(PITCH, height - row * PITCH)):
                _from_product(taps, middle, k * before * size, size, 0, pixels, 0, size, 0, size)
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
def add_out_of_tiles(taps: int, tiles: Numbers, padding: int, rows: int, columns: int, image: Numbers, shape: Sides) -> None:
    """The adjoint of ``into_tiles`` with B: transform tiles and add up what overlaps.

    Args:
        taps: side of the kernel.
        tiles: [side, side, n, rows, columns, channels].
        padding, rows, columns: as in ``into_tiles``.
        image, shape: the result, [n, height, width, channels].
    """
    n, height, width, channels = shape
    side = PITCH + taps - 1
    size = columns * channels
    apart = n * rows * size
    phase = (columns + (side - 1) // PITCH) * channels
    line = PITCH * phase
    lines = (rows - 1) * PITCH + side
    swing = channels - PITCH * phase
    middle = np.empty(side * side * size, dtype=image.dtype)
    sums = np.empty(lines * line, dtype=image.dtype)
    image[:] = 0
    for at in range(n):
        sums[:] = 0
        for row in range(rows):
            begin = (at * rows + row) * size
            for j in range(side):
                _from_signal(taps, tiles, begin + j * apart, side * apart, 0, middle, j * size, side * size, 0, size)
            for k in range(side):
                to = (row * PITCH + k) * line
                _add_from_signal(taps, middle, k * side * size, size, 0, sums, to, phase, swing, size)
        for y in range(padding, min(height + padding, lines)):
            for x in range(padding, min(width + padding, line // channels)):
                target = ((at * height + y - padding) * width + x - padding) * channels
                copy(sums, y * line + x % PITCH * phase + x // PITCH * channels, image, target, channels)


@compiled_entry
def transform_kernels(taps: int, back: bool, source: Numbers, target: Numbers, size: int) -> None:
    """Transform kernels [before, before, size] into [after, after, size], by G, or by G^T if it is ``back``."""
    side = PITCH + taps - 1
    after, before = (taps, side) if back else (side, taps)
    block = min(size, 512)
    middle = np.empty(after * before * block, dtype=source.dtype)
    for at in range(0, size, block):
        length = min(block, size - at)
        for j in range(before):
            if back:
                _from_kernel(taps, source, at + j * size, before * size, 0, middle, j * block, before * block, 0, length)
            else:
                _to_kernel(taps, source, at + j * size, before * size, 0, middle, j * block, before * block, 0, length)
        for i in range(after):
            to = at + i * after * size
            if back:
                _from_kernel(taps, middle, i * before * block, block, 0, target, to, size, 0, length)
            else:
                _to_kernel(taps, middle, i * before * block, block, 0, target, to, size, 0, length)
