"""First in, first out queues of links, whose bytes are kept in batches.

A batch holds the bytes that came into a queue in one time step. A link serves the oldest batch first;
within a batch, it serves equal parts of all flows' bytes.
"""

import numpy as np

from fedsim.common.arrays import Floats, Ints

_MOST_BATCHES = 16


def open_batch(batches: Floats) -> Floats:
    """Copy the bytes in queues, and append an empty batch for the bytes that come in the next step.

    A batch holds the bytes that came into a queue in one time step. The oldest batches are left out
    if they are empty, and pairs of neighbours are merged if there are too many batches.

    Args:
        batches: bytes of each flow in the queue of each link of its route, oldest batch first,
            float64 [flows, hops, batches].

    Returns:
        The new batches, float64 [flows, hops, batches].
    """
    flows, hops, count = batches.shape
    # indices of the batches in which any flow has bytes
    filled = np.asarray(batches.reshape(-1, count).any(axis=0)).nonzero()[0]
    first_filled = int(filled[0]) if len(filled) else count
    unserved = batches[:, :, first_filled:]
    if unserved.shape[2] >= _MOST_BATCHES:
        padding = unserved.shape[2] % 2  # an empty batch, which makes the count even
        unserved = np.pad(unserved, ((0, 0), (0, 0), (padding, 0)))
        unserved = unserved.reshape(flows, hops, -1, 2).sum(axis=3)
    opened = np.zeros((flows, hops, unserved.shape[2] + 1))
    opened[:, :, :-1] = unserved
    return opened


def sum_by_link(batches: Floats, numbers: Ints, links: int) -> Floats:
    """Sum the bytes of flows in the queue of each link, batch by batch; float64 [links, batches].

    A batch holds the bytes that came into queues in one time step.

    Args:
        batches: bytes of each flow on each of its links, float64 [flows on links, batches].
        numbers: link to which each row of ``batches`` belongs, int64 [flows on links].
        links: count of links.
    """
    count = batches.shape[1]
    # index of each entry of ``batches`` in the flattened sums
    cells = numbers[:, None] * count + np.arange(count)
    totals = np.bincount(cells.ravel(), weights=batches.ravel(), minlength=links * count)
    by_link: Floats = np.asarray(totals, dtype=np.float64).reshape(links, count)
    return by_link


def sum_over_hops(amounts: Floats) -> Floats:
    """Sum the bytes of each flow over the links of its route, float64 [flows].

    A sum by columns takes a fraction of the time of ``amounts.sum(axis=1)``, and is the same to the
    bit for fewer than eight hops.

    Args:
        amounts: bytes by flow and link, float64 [flows, hops].
    """
    total: Floats = amounts[:, 0].copy()
    for hop in range(1, amounts.shape[1]):
        total += amounts[:, hop]
    return total


def serve_in_order(totals: Floats, sendable: Floats) -> Floats:
    """Return the share of each batch that its link sends in a time step, the oldest batch first.

    A batch holds the bytes that came into a link's queue in one time step.

    Args:
        totals: bytes of each link's batches, oldest first, float64 [links, batches].
        sendable: bytes that each link can send in the step, float64 [links].

    Returns:
        Shares, 0 to 1, float64 [links, batches].
    """
    older = np.cumsum(totals, axis=1) - totals  # bytes in older batches, which are sent before
    served = np.maximum(sendable[:, None] - older, 0.0)
    shares: Floats = np.minimum(served / np.where(totals > 0, totals, 1.0), 1.0)
    return shares
