"""How pre-trained devices are put into groups (FlexCFL, Algorithm 3)."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.strategies.clustering.distances import madc
from fedsim.strategies.clustering.edc import edc_features
from fedsim.strategies.clustering.kmeans import kmeans
from fedsim.strategies.clustering.linkage import agglomerative
from fedsim.strategies.clustering.showing import MOST_SHOWN, rounded, shown_pairs
from fedsim.strategies.clustering.similarity import cosine_matrix


def cluster_updates(
    updates: NDArray[np.float32], groups: int, measure: Literal["edc", "madc"], generator: np.random.Generator
) -> tuple[list[int], dict[str, Any]]:
    """Group updates [k, d] by what they have in common.

    Args:
        updates: of the pre-trained devices.
        groups: m.
        measure: ``edc``: k-means++ on the cosines with the m leading singular directions; ``madc``: complete linkage on the
            mean absolute difference of the cosines with all others.
        generator: of the strategy.

    Returns:
        The group of each, and what is worth recording: the measure, EDC features [k, m], and for up to 200 devices the
        cosine of every two [k, k].
    """
    record: dict[str, Any] = {"measure": measure}
    similarity = cosine_matrix(updates) if measure == "madc" or len(updates) <= MOST_SHOWN else None
    if measure == "madc":
        assert similarity is not None
        labels = agglomerative(madc(similarity), groups, "complete")
    else:
        features = edc_features(updates, groups, generator)
        labels = kmeans(features, groups, generator)
        record["features"] = rounded(features)
    if similarity is not None:
        record |= shown_pairs("similarity", similarity)
    found: list[int] = labels.tolist()
    return found, record | {"groups": found}
