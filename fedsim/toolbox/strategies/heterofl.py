"""HeteroFL: each device trains as wide a part of the model as it can (Diao et al., 2021)."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.errors import ScenarioError, nearest
from fedsim.federation.client import Instruction, LocalResult, RunInfo
from fedsim.federation.contents import Contents, Header, Partial
from fedsim.federation.devices import Device
from fedsim.federation.server import Server
from fedsim.learning.architecture import Tensor
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import CutBy, Places, Training, places_of


class CutParams(AggregatingParams):
    """Parameters of strategies whose devices train smaller models within the global one.

    Attributes:
        sizes: of each device's model: a table by the kinds of devices (``population.device``), or a list of which each device
            has one, drawn uniformly and once.
        redraw: in each round a device has any of the sizes up to its own (from a list: any), drawn uniformly.
    """

    by: ClassVar[CutBy]
    looks_at_each: ClassVar[str | None] = "the server has to know which numbers each client has sent"
    sizes: dict[str, float] | list[float] = Field(min_length=1)
    redraw: bool = False

    @model_validator(mode="after")
    def _means_alone(self) -> "CutParams":
        if self.aggregation.kind not in ("weighted", "mean"):
            raise ValueError(
                f"'aggregation' is {self.aggregation.kind!r}, and {self.kind} has updates of different sizes; allowed are "
                "'weighted' and 'mean'"
            )
        if self.all_sizes[0] <= 0:
            raise ValueError(f"'sizes' is {self.sizes}; allowed is more than 0")
        return self

    @property
    def resizes(self) -> bool:
        return self.redraw

    @property
    def all_sizes(self) -> list[float]:
        """All sizes, ascending."""
        return sorted({*(self.sizes.values() if isinstance(self.sizes, dict) else self.sizes)})

    def places(self, setting: RunInfo) -> dict[float, Places]:
        """Ranges of the flat model whose numbers devices of each size send."""
        return {size: leading(setting.tensors(), setting.cut(self.by, size)) for size in self.all_sizes}


def leading(whole: Sequence[Tensor], part: Sequence[Tensor], chosen: Sequence[bool] | None = None) -> Places:
    """Ranges of a flat model that hold the first numbers of each tensor, along its first two axes, as ``part`` has them.

    ``chosen``: of these tensors alone.
    """
    found, at = list[tuple[int, int]](), 0
    for tensor, own, counts in zip(whole, part, chosen or [True] * len(whole), strict=True):
        row, length = (math.prod(each.shape[1:]) for each in (tensor, own))
        if counts:
            found += [(begin, begin + length) for begin in range(at, at + own.size // length * row, row)]
        at += tensor.size
    return places_of(found)


@pure
def mean_of_holders(
    models: list[NDArray[np.float32]], weights: list[float], places: list[Places], which: list[int]
) -> NDArray[np.floating]:
    """Each number's weighted mean over the finite updates that have it, else that of the first model; [d].

    ``models`` are the model and the updates; ``places`` are those of each size, ``which`` the size of each update.
    """
    total, weight = np.zeros(len(models[0])), np.zeros(len(models[0]))
    for update, share, size in zip(models[1:], weights, which, strict=True):
        if np.isfinite(update).all():
            for begin, end in places[size]:
                total[begin:end] += share * update[begin:end].astype(np.float64)
                weight[begin:end] += share
    return np.divide(total, weight, out=models[0].astype(np.float64), where=weight > 0)


class CutClient(SynchronousClient[CutParams]):
    """Trains the numbers that it has received, among zeros, and sends them back."""

    def __init__(self, params: CutParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._places = params.places(setting)

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(instruction["model"], self.params.local_epochs, cut=(self.params.by, instruction["size"]))

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents | None:
        assert result.update is not None
        size, reply = instruction["size"], super().reply(device, instruction, result) or {}
        return {**reply, "update": Partial(result.update, instruction["model"], self._places[size]), "size": Header(size)}


class CutModels(FedAvg[CutParams]):
    """FedAvg whose devices train smaller models within the global one, of a size of their own.

    A number of the smaller model is the same number of the global one. The device trains among zeros what it has received:
    in layers with ReLU between, and in adapters, zeros have no gradient and add nothing, so that this is training the smaller
    model. Its time, memory and bytes are those of the smaller model.

    State besides FedAvg's: ``zero``, the model that devices splice what they receive into.
    """

    Client: ClassVar[type[SynchronousClient[Any]]] = CutClient

    def __init__(self, params: CutParams, server: Server) -> None:
        super().__init__(params, server)
        if isinstance(params.sizes, dict):
            for kind in self.setting.kinds or ["none"]:
                if kind not in params.sizes:
                    raise ScenarioError(
                        f"strategy.sizes has no size for devices of the kind {kind!r}{nearest(kind, params.sizes)}; allowed is "
                        "one for each kind in population.device, or a list of sizes, of which each device has one"
                    )
        self._places = params.places(self.setting)

    async def on_start(self) -> None:
        self.state["zero"] = self.server.models.zero()
        await super().on_start()

    def size_of(self, device: int) -> float:
        """The size of a device's model in this round."""
        sizes = self.params.sizes
        own = sizes[self.setting.kind_of(device) or ""] if isinstance(sizes, dict) else max(sizes)
        if self.params.redraw:
            sizes = [size for size in self.params.all_sizes if size <= own]
        if isinstance(sizes, dict):
            return own
        drawn = ("size", device, self.state["round"]) if self.params.redraw else ("size", device)
        return sizes[int(self.server.rng(*drawn).integers(len(sizes)))]

    def contents(self, device: int) -> Contents:
        size = self.size_of(device)
        return {"model": Partial(self.state["model"], self.state["zero"], self._places[size]), "size": Header(size)}

    async def combine(self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: Any) -> Ref:
        weights = await self.weighed(entries)
        self.record_aggregate(entries, weights, **record)
        return self.advance(model, self.joined(model, entries, weights), slot)

    async def weighed(self, entries: Sequence[dict[str, Any]]) -> list[float]:
        """The weight of each update."""
        return self.weights(entries)

    def joined(self, model: Ref, entries: Sequence[dict[str, Any]], weights: Sequence[float]) -> Ref:
        """The model that updates of different sizes become."""
        which = [[*self._places].index(entry["contents"]["size"]) for entry in entries]
        models, size = [model, *(entry["update"] for entry in entries)], self.setting.parameters
        how: dict[str, Any] = {"weights": list(weights), "places": [*self._places.values()], "which": which}
        return self.server.models.apply(mean_of_holders, models, size=size, **how)


class HeteroFLParams(CutParams):
    """Parameters of HeteroFL: ``sizes`` are widths, shares of the channels and units of each layer."""

    by: ClassVar[CutBy] = "width"
    kind: Literal["heterofl"] = "heterofl"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 0.5, 0.25], min_length=1)


class HeteroFL(CutModels):
    """Federated learning of models of different widths.

    Source: Diao, Ding and Tarokh, "HeteroFL" (ICLR 2021, arXiv 2010.01264), Algorithm 1: a device of width r has the first r of
    the channels of each hidden layer, and each number of the global model becomes the mean over the devices that have it
    (Eqs. 1 to 3); one that no client has stays. Weighted by samples, unless ``aggregation`` is ``mean``. The paper's scaler,
    static batch norm and masked loss are left out. ``redraw`` with a list is its dynamic setting; with a table it is FjORD's
    ordered dropout (Horváth et al. 2021) with one width a round, where FjORD draws one a step and distils besides.

    Sends the numbers of each client's width, down and up (``model`` and ``update``, 4 bytes each).
    """

    Params = HeteroFLParams
