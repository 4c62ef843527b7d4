"""HeteroFL: each device trains as wide a part of the model as it can (Diao et al., 2021)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.training import CutBy, Places
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.toolbox.strategies.sizes import CutModels, CutParams


@pure
def mean_of_holders(
    models: list[NDArray[np.float32]],
    weights: list[float],
    places: list[Places],
    size_indices: list[int],
) -> NDArray[np.floating]:
    """Compute for each parameter the weighted mean over the updates that contain it (HeteroFL).

    An update of a smaller size has only some ranges of the parameters (Eqs. 1 to 3). A parameter
    that no update has keeps its value in the present model.

    Args:
        models: the present model and the updates, flat, float32 [d] each.
        weights: the weight of each update.
        places: for each size the ranges of a flat model that a device of this size has.
        size_indices: index in ``places`` of each update's size.

    Returns:
        The next model, float64 [d].
    """
    present, *updates = models
    totals = np.zeros(len(present))  # sum of weight x value for each parameter
    total_weights = np.zeros(len(present))
    for update, weight, size_index in zip(updates, weights, size_indices, strict=True):
        if not np.isfinite(update).all():  # its device has diverged
            continue
        for begin, end in places[size_index]:
            totals[begin:end] += weight * update[begin:end].astype(np.float64)
            total_weights[begin:end] += weight
    return np.divide(totals, total_weights, out=present.astype(np.float64), where=total_weights > 0)


class HeteroFLParams(CutParams):
    """Keys of ``[strategy]`` for HeteroFL.

    ``sizes`` are the widths of devices' models: shares of each layer's channels and units.
    """

    by: ClassVar[CutBy] = "width"
    kind: Literal["heterofl"] = "heterofl"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 0.5, 0.25], min_length=1)


class HeteroFL(CutModels):
    """Federated learning of models of different widths.

    Source: Diao, Ding and Tarokh, "HeteroFL" (ICLR 2021, arXiv 2010.01264), Algorithm 1. A device
    of width r has the first channels of each hidden layer, a share r of them. Each parameter of the
    global model becomes the mean over the clients that have it (Eqs. 1 to 3); a parameter that no
    client has is unchanged. The mean is weighted by samples, unless ``aggregation`` is ``mean``.
    The paper's scaler, static batch norm and masked loss are left out. ``redraw = true`` with a
    list as ``sizes`` is the paper's dynamic setting; with a table it is FjORD's ordered dropout
    (Horváth et al. 2021) with one width a round.

    Each client receives and sends the parameters of its width (``model`` and ``update``, 4 bytes
    each).
    """

    Params = HeteroFLParams

    def combine_updates(
        self, model: Ref, entries: Sequence[Entry], weights: Sequence[float]
    ) -> Ref:
        """Return the model whose parameters are the means over the updates that contain them.

        Args:
            model: the present model.
            entries: the received updates, with the width as ``size`` in their contents.
            weights: the weight of each update.
        """
        sizes = list(self._places)  # widths, in the order of ``places`` below
        return self.server.models.apply(
            mean_of_holders,
            [model, *(entry["update"] for entry in entries)],
            size=self.setting.parameters,
            weights=list(weights),
            places=list(self._places.values()),
            size_indices=[sizes.index(entry["contents"]["size"]) for entry in entries],
        )
