"""CATA-Fed's choice of clients: proportionally fair over random groups within clusters, and the variants beside it.

Clients are known by their numbers; ``cluster`` is the cluster of each, -1 for who is not connected, int64 [n]. All cost
O(n) in numpy. A choice is an int64 array of at most ``size`` clients, empty if nobody is connected.
"""

import numpy as np
from numpy.typing import NDArray

Clients = NDArray[np.int64]


def cut_groups(cluster: Clients, size: int, generator: np.random.Generator) -> list[Clients]:
    """Shuffle each cluster and cut it into disjoint groups of exactly ``size``, [g, size] a cluster (Eq. 23).

    Clients that remain sit out this round. A cluster smaller than ``size`` forms one group of all its clients: they would
    never be selected otherwise (the paper is silent). Empty clusters are left out.
    """
    shuffled = generator.permutation(len(cluster))
    blocks = []
    for number in range(int(cluster.max(initial=-1)) + 1):
        members = shuffled[cluster[shuffled] == number]
        if len(members) >= size:
            blocks.append(members[: len(members) // size * size].reshape(-1, size))
        elif len(members):
            blocks.append(members[np.newaxis])
    return blocks


def fairest_group(blocks: list[Clients], waiting: Clients, generator: np.random.Generator) -> Clients:
    """The group that has waited longest: with the largest sum of A over its clients (Eqs. 24, 25); ties at random.

    Args:
        blocks: groups, [g, size] each.
        waiting: A, rounds since each client was last selected, int64 [n].
        generator: decides ties.
    """
    if not blocks:
        return np.empty(0, dtype=np.int64)
    priorities = np.concatenate([waiting[groups].sum(axis=1) for groups in blocks])
    best = int(generator.choice(np.flatnonzero(priorities == priorities.max())))
    return next(group for at, group in enumerate(group for groups in blocks for group in groups) if at == best)


def in_turn(cluster: Clients, clusters: int, size: int, number: int, generator: np.random.Generator) -> Clients:
    """Round robin over clusters: random clients of cluster ``number`` mod P, or of the next one that is not empty."""
    for step in range(clusters):
        members = np.flatnonzero(cluster == (number + step) % clusters)
        if len(members):
            return generator.permutation(members)[:size]
    return np.empty(0, dtype=np.int64)


def at_random(cluster: Clients, size: int, generator: np.random.Generator) -> Clients:
    """Random clients out of all who are connected, whatever their cluster."""
    shuffled = generator.permutation(len(cluster))
    return shuffled[cluster[shuffled] >= 0][:size]
