"""Coefficients of a mix (weighted sum of models), from which non-finite models are left out."""

import math
from collections.abc import Sequence

from fedsim.learning.refs import Mixed


def coefficients_of(recipe: Mixed, finite: Sequence[bool]) -> list[float] | None:
    """Return the coefficients of the finite models in a weighted sum.

    If the recipe requires it, they are scaled to the sum of all coefficients.

    Args:
        recipe: the weighted sum.
        finite: for each part, whether its weights are finite.

    Returns:
        The coefficient of each finite part, in order; None if ``recipe.otherwise`` must be used.
    """
    every = [coefficient for _, coefficient in recipe.parts]
    coefficients = [
        coefficient for coefficient, is_finite in zip(every, finite, strict=True) if is_finite
    ]
    if len(coefficients) == len(every):
        return coefficients
    if not coefficients:
        return None
    if not recipe.rescale:
        return coefficients
    total = math.fsum(every)
    rest = math.fsum(coefficients)
    if 0.0 in (total, rest):
        return None
    factor = total / rest
    return [coefficient * factor for coefficient in coefficients]
