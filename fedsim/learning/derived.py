"""Weights that are computed from stored models at each use, instead of being stored themselves."""

from collections.abc import Sequence

import numpy as np

from fedsim.common.tensor_files import StoredTensor
from fedsim.common.training import Places
from fedsim.learning.functions import path_of, spliced
from fedsim.learning.refs import Applied, Recipe, Ref
from fedsim.learning.scratch import Weights

MOST_SHARE = 0.5
"""Only the changed slices of a model are stored if they have at most this share of its values."""

_SPLICED = path_of(spliced)


class Derived(StoredTensor):
    """Weights of a model that equals another model except in some slices; only these are stored.

    It saves memory if each device keeps some tensors of its own, and the devices' models share all
    other tensors. The weights are computed at each use, by the function ``spliced``.

    Args:
        model: the other model, computed.
        values: the concatenated values of the slices, computed.
        places: (begin, end) of each slice, as indices of weights.
        length: count of weights of the model, d.
    """

    __slots__ = ("_model", "_places", "_values")

    def __init__(self, model: Ref, values: Ref, places: Places, length: int) -> None:
        super().__init__(np.dtype(np.float32), (length,))
        self._model = model
        self._values = values
        self._places = places

    @classmethod
    def of(cls, recipe: Applied) -> "Derived":
        """Build the weights that a recipe describes: a model in which some slices are replaced.

        Args:
            recipe: a call of the function ``spliced``, whose arguments are the whole model, the
                values of the slices, and their places. Model and values must be computed.
        """
        model, values = recipe.models
        assert model.held is not None
        return cls(model, values, recipe.constants["places"], model.held.shape[0])

    @property
    def recipe(self) -> Applied:
        """Description of the call of ``spliced``, which replaces slices, that computes the weights.

        A checkpoint stores it in place of the weights.
        """
        return Applied(
            _SPLICED,
            (self._model, self._values),
            constants={"places": self._places},
            stream=None,
            otherwise=None,
            leave_out=False,
        )

    def read(self) -> Weights:
        model = self._model.value
        values = self._values.value
        assert model is not None
        assert values is not None
        return spliced([model, values], places=self._places).astype(np.float32, copy=False)


def is_spliced(recipe: Recipe | None) -> bool:
    """Return whether a recipe (description of a computation) replaces slices of a model."""
    return isinstance(recipe, Applied) and recipe.function == _SPLICED


def derived_of(recipe: Recipe | None, models: Sequence[Ref | None]) -> Derived | None:
    """Describe a model's weights as changed slices of a different model, if this saves much memory.

    It saves memory if the recipe replaces slices that have at most half of the model's values.

    Args:
        recipe: the description of the computation of the model; None for a model without any.
        models: the models from which the recipe computes, in order, computed. None in place of a
            model that is not stored, because nothing but the recipe needs it.

    Returns:
        The description; None if the weights must be stored as a whole array, for example because
        the recipe is no call of ``spliced`` or one of ``models`` is None.
    """
    if not isinstance(recipe, Applied) or not is_spliced(recipe):
        return None
    model, values = models
    if model is None or values is None or model.held is None or values.held is None:
        return None
    if isinstance(model.held, Derived):  # every read would have to follow a chain of derived models
        return None
    length = model.held.shape[0]
    is_small = values.held.shape[0] <= MOST_SHARE * length
    if not is_small or not model.finite or not values.finite:
        return None
    return Derived(model, values, recipe.constants["places"], length)
