"""The coefficients of a mix, whose models that are not finite are left out."""

import math
from collections.abc import Sequence

from fedsim.learning.refs import Mixed


def coefficients_of(recipe: Mixed, finite: Sequence[bool]) -> list[float] | None:
    """The coefficients of the finite parts of a mix; see ``Learner.mix``.

    Args:
        recipe: the mix.
        finite: whether each part is finite.

    Returns:
        The coefficient of each finite part, in order; None if the substitute is the result.
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
