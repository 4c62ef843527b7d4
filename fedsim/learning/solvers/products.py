"""Matrix products of operands that are spread over memory, in vector registers.

torch's own products are made for large matrices. Here a block of the result stays in registers until it is done (K. Goto and
R. van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008), and operands are any strided views, so that nothing
is copied first: the patches of a convolution are a view of its image. Every sum goes in the order of its terms, and each term
is rounded as it is added: no bit depends on what else is multiplied.
"""

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from fedsim.learning.solvers.compiled import compiled_entry
from fedsim.learning.solvers.vectors import INT, REGISTER, Vectors, cgutils

_KINDS: dict[torch.dtype, np.floating[Any]] = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


def multiply(a: Tensor, b: Tensor, c: Tensor, *, add: bool = False) -> None:
    """c[t, y, x, j] (+)= the sum over u and v of a[t, y, x, u, v] b[t, u, v, j].

    Args:
        a, b, c: of any strides, but contiguous along j; c overlaps neither a nor b. Where several t have one c (by a stride
            of 0), they follow each other.
        add: whether to add to what c holds.
    """
    begins, strides = (a.data_ptr(), b.data_ptr(), c.data_ptr()), (a.stride(), b.stride()[:3], c.stride()[:3])
    _multiply(_KINDS[c.dtype], c.element_size(), begins, tuple(a.shape), b.shape[3], *strides, add)


def _block(height: int, width: int) -> Any:
    """A block of the result, of at most so many rows, and of so many registers a row."""

    def block(typing: Any, kind: Any, begins: Any, row: Any, rows: Any, depths: Any, steps: Any, columns: Any, add: Any) -> Any:
        """c (+)= a b. All steps are in numbers.

        Args:
            typing: numba's.
            kind: a number of the kind of all.
            begins: addresses in a, b and c.
            row: the first one, as (far, near).
            rows: how many there are of both, and the steps from one to the next, of both in a and of both in c.
            depths: terms, far and near.
            steps: from one term to the next, of both in a and of both in b.
            columns: how many, if fewer than the registers have room for; only one register may be filled in part.
            add: whether to add to what is there.
        """

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = context.get_value_type(kind)
            _, begins, row, rows, depths, steps, columns, add = args
            (far, near), (all_far, all_near, *apart), (up, on), (a_up, a_on, b_up, b_on) = (
                cgutils.unpack_tuple(builder, given) for given in (row, rows, depths, steps)
            )
            a, b, c = (builder.inttoptr(begin, number.as_pointer()) for begin in cgutils.unpack_tuple(builder, begins))
            vectors = Vectors(builder, number, kind.bitwidth, columns if width == 1 else None)
            parts = [INT(part * vectors.lanes) for part in range(width)]

            def moved(place: Any, *by: Any) -> Any:
                return builder.gep(place, [builder.add(*(builder.mul(count, step) for count, step in by))])

            lefts: list[Any] = []
            results: list[Any] = []
            for _ in range(height):  # beyond the last row, that one again
                beyond = builder.icmp_signed(">=", far, all_far)
                for places, base, step in ((lefts, a, apart[:2]), (results, c, apart[2:])):
                    place = moved(base, (far, step[0]), (near, step[1]))
                    places.append(builder.select(beyond, places[-1], place) if places else place)
                near = builder.add(near, INT(1))
                over = builder.icmp_signed("==", near, all_near)
                far, near = builder.add(far, builder.zext(over, INT)), builder.select(over, INT(0), near)
            places = [builder.gep(result, [part]) for result in results for part in parts]
            sums = [cgutils.alloca_once(builder, vectors.type) for _ in places]
            with builder.if_else(add) as (on_top, anew):
                with on_top:
                    for own, place in zip(sums, places, strict=True):
                        builder.store(vectors.load(place), own)
                with anew:
                    for own in sums:
                        builder.store(vectors.constant(0.0), own)
            with cgutils.for_range(builder, up) as outer, cgutils.for_range(builder, on) as inner:
                right = moved(b, (outer.index, b_up), (inner.index, b_on))
                rights = [vectors.load(builder.gep(right, [part])) for part in parts]
                for at, left in enumerate(lefts):
                    factor = vectors.spread(builder.load(moved(left, (outer.index, a_up), (inner.index, a_on))))
                    for own, other in zip(sums[at * width : (at + 1) * width], rights, strict=True):
                        builder.store(vectors.multiply_add(factor, other, builder.load(own)), own)
            for own, place in zip(sums, places, strict=True):
                vectors.store(builder.load(own), place)
            return context.get_dummy_value()

        return types.void(kind, begins, row, rows, depths, steps, columns, add), codegen

    return intrinsic(block)


_high_wide, _high, _low_wide, _low = _block(8, 2), _block(8, 1), _block(4, 2), _block(4, 1)


@compiled_entry
def _multiply(
    kind: np.floating[Any],
    size: int,
    begins: tuple[int, ...],
    shape: tuple[int, ...],
    columns: int,
    of_a: tuple[int, ...],
    of_b: tuple[int, ...],
    of_c: tuple[int, ...],
    add: bool,
) -> None:
    """``multiply``, with ``shape`` and the strides of a, and those of b and c but the last."""
    times, far, near, up, on = shape
    rows, steps = (far, near, of_a[1], of_a[2], of_c[1], of_c[2]), (of_a[3], of_a[4], of_b[1], of_b[2])
    lanes = REGISTER // size
    for t in range(times):
        column = 0
        while column < columns:
            row, left = 0, columns - column
            wide = left >= 2 * lanes
            begin = (
                begins[0] + t * of_a[0] * size,
                begins[1] + (t * of_b[0] + column) * size,
                begins[2] + (t * of_c[0] + column) * size,
            )
            while row < far * near:
                high, at = far * near - row > 4, (row // near, row % near)
                if high and wide:
                    _high_wide(kind, begin, at, rows, (up, on), steps, left, add)
                elif high:
                    _high(kind, begin, at, rows, (up, on), steps, left, add)
                elif wide:
                    _low_wide(kind, begin, at, rows, (up, on), steps, left, add)
                else:
                    _low(kind, begin, at, rows, (up, on), steps, left, add)
                row += 8 if high else 4
            column += 2 * lanes if wide else lanes
