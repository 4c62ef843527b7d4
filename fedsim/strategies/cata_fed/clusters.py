"""CATA-Fed's clusters: clients of like data size, cut by the interquartile range (section 4.2.1, Eqs. 17-20)."""

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.int64]


def moderate_range(sizes: Sizes, whisker: float = 1.5) -> tuple[int, int]:
    """The smallest and the largest size that is no outlier, R_l and R_u (Eqs. 17, 18).

    Outliers lie below Q1 - whisker IQR or above Q3 + whisker IQR; quartiles are interpolated linearly.

    Args:
        sizes: reported data sizes in samples, int64 [n], n >= 1.
        whisker: delta.
    """
    first, third = np.percentile(sizes, (25, 75))
    reach = whisker * (third - first)
    moderate = sizes[(sizes >= first - reach) & (sizes <= third + reach)]
    return int(moderate.min()), int(moderate.max())


def cluster_numbers(sizes: Sizes, clusters: int, bounds: tuple[int, int]) -> NDArray[np.int64]:
    """The cluster of each client, 0..P-1 by size (Eqs. 19, 20); int64 [n].

    The range is cut into P clusters of equal width theta = (R_u - R_l) / P; a size on the border between two belongs to the
    upper one, outliers to the first or the last. Where theta is 0 all are in the last. (Eq. 20 as printed subtracts R_l; the
    figures do without. It is meant as an offset.)

    Args:
        sizes: reported data sizes in samples, int64 [n].
        clusters: P.
        bounds: R_l and R_u in samples.
    """
    low, high = bounds
    if low == high:
        return np.full(len(sizes), clusters - 1, dtype=np.int64)
    # Whole numbers throughout: floor((s - R_l) / theta) is exact on the borders.
    return np.clip((sizes - low) * clusters // (high - low), 0, clusters - 1)
