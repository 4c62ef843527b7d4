"""Whole cache lines, in which everything stacked is laid out.

All rows are padded with zeros to a multiple of 16 floats (one cache line): a device's slot in the stack then never changes how
its memory is aligned, so its result does not depend on who shares the stack, bit for bit.
"""

from torch import Tensor

_LINE = 16  # floats in a cache line

Layer = tuple[Tensor, Tensor]  # a kernel and a bias


def padded(size: int) -> int:
    """``size`` rounded up to whole cache lines of floats."""
    return -(-size // _LINE) * _LINE
