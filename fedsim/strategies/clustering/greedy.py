"""CCS: greedy clusters of similar gradients, with a threshold that falls as training goes on (Wang, Zhang and Tao)."""

import math

import numpy as np

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.grouping import require_square
from fedsim.strategies.clustering.similarity import Matrix


def threshold(loss: float, first_loss: float, least_loss: float = 0.0, theta: float = math.pi / 36) -> float:
    """The similarity that gradients need in order to be clustered (CCS, Eq. 7): cos(theta) at first, 0 in the end.

    Progress, (l_0 - l_t) / (l_0 - l_*), is limited to [0, 1]; it is 0 if there is nothing to gain from l_0 on.

    Args:
        loss: l_t, the present loss.
        first_loss: l_0, that of the first round.
        least_loss: l_*, the least that can be reached.
        theta: the angle (radians) that is allowed at first.

    Raises:
        SimulationError: a loss is not finite.
    """
    if not (math.isfinite(loss) and math.isfinite(first_loss)):
        raise SimulationError(f"the threshold of CCS needs finite losses; the first is {first_loss}, the present one {loss}")
    progress = 0.0
    if first_loss > least_loss:
        progress = min(max((first_loss - loss) / (first_loss - least_loss), 0.0), 1.0)
    # The sine of the complement: the cosine of pi/2 would not be exactly 0, and orthogonal gradients would stay apart.
    return math.sin((math.pi / 2 - theta) * (1.0 - progress))


def greedy_clusters(similarity: Matrix, eps: float) -> list[list[int]]:
    """Take the largest neighbourhood among those left, again and again (CCS, Algorithm 1).

    A neighbourhood is a device and all that are at least ``eps`` similar to it; its other members need not be similar to each
    other. Of equally large ones the first is taken.

    Args:
        similarity: symmetric [n, n].
        eps: the threshold.

    Returns:
        The clusters as they were found, each in ascending order.
    """
    require_square(similarity, "similarity")
    near = similarity >= eps
    np.fill_diagonal(near, True)
    left = np.ones(len(near), dtype=bool)
    clusters = []
    while left.any():
        sizes = np.where(left, (near & left).sum(axis=1), 0)
        cluster = near[np.argmax(sizes)] & left
        clusters.append(np.flatnonzero(cluster).tolist())
        left &= ~cluster
    return clusters
