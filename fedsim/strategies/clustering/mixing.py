"""FlexCFL's inter-group aggregation: how much each group's model takes over from the others."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray


def inter_group_coefficients(
    norms: NDArray[np.float64],
    eta: float,
    form: Literal["normalised", "literal"] = "normalised",
    present: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Row j has the coefficients of all groups' models in group j's next model, float64 [m, m].

    ``literal`` is w_j + eta sum of w_l / ||w_l|| over l != j (FlexCFL, Algorithm 2): each round adds up to eta (m - 1) to the
    norm. ``normalised`` divides that by 1 + sum of eta / ||w_l|| (FlexCFL's code), so that no norm grows beyond the largest.
    A model of zeros has no direction to give.

    Args:
        norms: ||w_l|| of each group, [m].
        eta: how strong the influence is; 0: none.
        form: which of the two.
        present: which groups take part, [m]; the others give nothing and keep their model. None: all.
    """
    there = np.ones(len(norms), dtype=bool) if present is None else present
    given = np.divide(eta, norms, out=np.zeros(len(norms)), where=there & (norms > 0))
    coefficients = np.where(there[:, None], given[None, :], 0.0)
    np.fill_diagonal(coefficients, 1.0)
    return coefficients if form == "literal" else coefficients / coefficients.sum(axis=1, keepdims=True)
