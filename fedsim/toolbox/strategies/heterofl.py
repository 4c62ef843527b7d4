"""HeteroFL: each device trains as wide a part of the model as it can (Diao et al., 2021)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.training import CutBy, Places
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.toolbox.strategies.sizes import CutModels, CutParams


@pure
def mean_of_holders(
    models: list[NDArray[np.float32]], weights: list[float], places: list[Places], which: list[int]
) -> NDArray[np.floating]:
    """Each number's weighted mean over the finite updates that have it, else that of the first
    model; [d].

    ``models`` are the model and the updates; ``places`` are those of each size, ``which`` the
    size of each update.
    """
    total = np.zeros(len(models[0]))
    weight = np.zeros(len(models[0]))
    for update, share, size in zip(models[1:], weights, which, strict=True):
        if np.isfinite(update).all():
            for begin, end in places[size]:
                total[begin:end] += share * update[begin:end].astype(np.float64)
                weight[begin:end] += share
    return np.divide(total, weight, out=models[0].astype(np.float64), where=weight > 0)


class HeteroFLParams(CutParams):
    """Parameters of HeteroFL: ``sizes`` are widths, shares of the channels and units of each
    layer.
    """

    by: ClassVar[CutBy] = "width"
    kind: Literal["heterofl"] = "heterofl"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 0.5, 0.25], min_length=1)


class HeteroFL(CutModels):
    """Federated learning of models of different widths.

    Source: Diao, Ding and Tarokh, "HeteroFL" (ICLR 2021, arXiv 2010.01264), Algorithm 1: a device
    of width r has the first r of the channels of each hidden layer, and each number of the global
    model becomes the mean over the devices that have it (Eqs. 1 to 3); one that no client has
    stays. Weighted by samples, unless ``aggregation`` is ``mean``. The paper's scaler, static batch
    norm and masked loss are left out. ``redraw`` with a list is its dynamic setting; with a table
    it is FjORD's ordered dropout (Horváth et al. 2021) with one width a round.

    Sends the numbers of each client's width, down and up (``model`` and ``update``, 4 bytes each).
    """

    Params = HeteroFLParams

    def joined(
        self, model: Ref, entries: Sequence[dict[str, Any]], weights: Sequence[float]
    ) -> Ref:
        which = [[*self._places].index(entry["contents"]["size"]) for entry in entries]
        how: dict[str, Any] = {
            "weights": list(weights),
            "places": [*self._places.values()],
            "which": which,
        }
        models = [model, *(entry["update"] for entry in entries)]
        return self.server.models.apply(
            mean_of_holders, models, size=self.setting.parameters, **how
        )
