"""Weighted sums of models without their non-finite models: coefficients and trainers' states."""

import math
from collections.abc import Mapping, Sequence

from fedsim.common.arrays import AnyArray
from fedsim.learning.functions import mean_state
from fedsim.learning.refs import Mixed


def coefficients_of(recipe: Mixed, finite: Sequence[bool]) -> list[float] | None:
    """Return the coefficients of the finite models in a weighted sum.

    If models are left out and ``recipe.rescale`` is set, the coefficients of the other models are
    scaled to the sum of all coefficients.

    Args:
        recipe: the weighted sum.
        finite: for each model of the sum, whether its weights are finite.

    Returns:
        The coefficient of each finite model, in order; None if ``recipe.otherwise`` must replace
        the sum: no model is finite, or the coefficients of all models or of the finite models sum
        to 0, so that they cannot be rescaled.
    """
    all_coefficients = [coefficient for _, coefficient in recipe.parts]
    coefficients = []
    for coefficient, is_finite in zip(all_coefficients, finite, strict=True):
        if is_finite:
            coefficients.append(coefficient)
    if len(coefficients) == len(all_coefficients):
        return coefficients
    if not coefficients:
        return None
    if not recipe.rescale:
        return coefficients
    total = math.fsum(all_coefficients)
    finite_total = math.fsum(coefficients)
    if 0.0 in (total, finite_total):
        return None
    factor = total / finite_total
    return [coefficient * factor for coefficient in coefficients]


def state_of(
    recipe: Mixed, finite: Sequence[bool], states: Sequence[Mapping[str, AnyArray] | None]
) -> Mapping[str, AnyArray]:
    """Return the weighted mean of the trainers' states that belong to the models of a weighted sum.

    A trainer's state has the arrays, by name, that the trainer keeps between trainings, such as
    momentum. Models that are not finite are left out.

    Args:
        recipe: the weighted sum.
        finite: for each model of the sum, whether its weights are finite.
        states: the trainer's state of each model of the sum; None for a model without a state.

    Returns:
        The mean. If no model has a finite state, or the weights sum to 0: the state of
        ``recipe.otherwise``, the model that may replace the sum; empty if that has none.
    """
    weighted = []
    for (_, weight), state, is_finite in zip(recipe.parts, states, finite, strict=True):
        if is_finite:
            weighted.append((state, weight))
    mean = mean_state(weighted)
    if not mean and recipe.otherwise is not None and recipe.otherwise.state:
        return recipe.otherwise.state
    return mean
