"""Stratified parts of a device's data (CATA-Fed, section 4.1.2): 2^u of them, disjoint, alike in their labels."""

import numpy as np
from numpy.typing import NDArray


def stratified_part(labels: NDArray[np.int64], splits: int, number: int) -> NDArray[np.int64]:
    """Positions of the samples in part ``number`` out of 2^``splits``; ascending by label, int64.

    The samples are laid out by label, in the device's own order within one, and dealt to the parts in turn. So a label's
    counts in two parts differ by at most 1, and so do the parts' sizes (``Part.samples``); another split halves each part, x
    into x and x + 2^u.

    Args:
        labels: of all the device's training samples, int64 [n].
        splits: u, how often the data were halved; 0 gives everything.
        number: x in 1..2^u.
    """
    return np.argsort(labels, kind="stable")[number - 1 :: 2**splits]
