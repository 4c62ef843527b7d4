"""Queues that serve first in, first out: their bytes in batches of those that came in one step.

A batch is served after all older ones, and its bytes of all flows alike.
"""

import numpy as np

from fedsim.common.arrays import Floats, Ints

_MOST_BATCHES = 16


def open_batch(batches: Floats) -> Floats:
    """Return a copy with an empty batch at the end, for what comes in a step.

    Batches that are served are left out, and neighbours become one if there are too many.

    Args:
        batches: bytes, oldest first, float64 [flows, hops, batches].
    """
    flows, hops, count = batches.shape
    filled = np.flatnonzero(batches.reshape(-1, count).any(axis=0))
    first = int(filled[0]) if len(filled) else count
    unserved = batches[:, :, first:]
    if unserved.shape[2] >= _MOST_BATCHES:
        odd = unserved.shape[2] % 2
        unserved = np.pad(unserved, ((0, 0), (0, 0), (odd, 0)))
        unserved = unserved.reshape(flows, hops, -1, 2).sum(axis=3)
    opened = np.zeros((flows, hops, unserved.shape[2] + 1))
    opened[:, :, :-1] = unserved
    return opened


def mix_batches(before: Floats, after: Floats, share: float) -> Floats:
    """Return the batches within a step.

    Args:
        before: bytes at its begin, float64 [flows, hops, batches].
        after: bytes at its end, from a copy that ``open_batch`` made of ``before``.
        share: part of the step that is over, 0 to 1.
    """
    if share >= 1:
        return after
    mixed = share * after
    opened = open_batch(before)
    mixed += (1 - share) * opened
    return mixed


def sum_by_link(batches: Floats, numbers: Ints, links: int) -> Floats:
    """Return the bytes of all flows in each batch of each link; float64 [links, batches].

    Args:
        batches: bytes of each flow, float64 [flows on links, batches].
        numbers: link of each flow, int64 [flows on links].
        links: count of links.
    """
    count = batches.shape[1]
    cells = numbers[:, None] * count + np.arange(count)
    totals = np.bincount(cells.ravel(), weights=batches.ravel(), minlength=links * count)
    by_link: Floats = np.asarray(totals, dtype=np.float64).reshape(links, count)
    return by_link


def serve_in_order(totals: Floats, room: Floats) -> Floats:
    """Return the part of each batch that leaves in a step, 0 to 1; float64 [links, batches].

    Args:
        totals: bytes of each link's batches, oldest first, float64 [links, batches].
        room: bytes that each link can send in the step, float64 [links].
    """
    older = np.cumsum(totals, axis=1) - totals
    served = np.maximum(room[:, None] - older, 0.0)
    part: Floats = np.minimum(served / np.where(totals > 0, totals, 1.0), 1.0)
    return part
