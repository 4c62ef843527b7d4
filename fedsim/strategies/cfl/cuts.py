"""Clusters as they were seen in a round, and how they are cut in two (CFL, Eq. 6)."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.strategies.cfl.criteria import Lengths
from fedsim.strategies.clustering.linkage import bipartition
from fedsim.strategies.clustering.similarity import cosine_matrix

Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Cluster:
    """What came from a cluster in a round: updates that are finite, where they were looked at.

    Attributes:
        group: which.
        entries: of ``received``, in order of the devices' numbers.
        weights: of each in the mean.
        updates: what each has changed in the model, float32 [d]; empty with ``learning = "off"``.
        lengths: of the updates; None with ``learning = "off"``.
    """

    group: int
    entries: Entries
    weights: list[float]
    updates: list[NDArray[np.float32]]
    lengths: Lengths | None

    @property
    def devices(self) -> list[int]:
        """Who sent the entries."""
        return [entry["device"] for entry in self.entries]

    @property
    def norms(self) -> dict[str, float]:
        """The lengths for the records."""
        return {} if self.lengths is None else {"mean_norm": self.lengths.mean, "max_norm": self.lengths.longest}


@dataclass(frozen=True)
class Cut:
    """A cluster, and its clients on both sides of the cut.

    Attributes:
        cluster: what is cut.
        sides: positions in its ``entries``, ascending.
        record: what is worth recording about it.
        cosines: of all pairs of its updates, [k, k]; None with ``learning = "off"``.
    """

    cluster: Cluster
    sides: tuple[list[int], list[int]]
    record: dict[str, Any]
    cosines: NDArray[np.float64] | None


def bisect(cluster: Cluster, method: Literal["single", "complete"]) -> Cut:
    """Cut between the updates that are least alike."""
    cosines = cosine_matrix(np.stack(cluster.updates))
    first, second, cross = bipartition(cosines, method)
    return Cut(cluster, (first, second), cluster.norms | {"similarity": cross}, cosines)
