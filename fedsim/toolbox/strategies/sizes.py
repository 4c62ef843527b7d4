"""Strategies whose devices train smaller models within the global one: HeteroFL, HetLoRA, FLoRA."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.arrays import Floats32
from fedsim.errors import ScenarioError, nearest
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Opaque, Partial, RunInfo, Server
from fedsim.learning.architecture import Tensor
from fedsim.learning.functions import pure, spliced
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import CutBy, Places, Training, complement, places_of


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
    def _means_alone(self) -> Self:
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
    """Ranges of a flat model with the first numbers of each (``chosen``) tensor, along its first two axes, as in ``part``."""
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

    The device trains among zeros what it has received: in layers with ReLU between, and in adapters, zeros have no gradient and
    add nothing, so that this is training the smaller model. Its time, memory and bytes are those of the smaller model.
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
        return self.weights(entries)

    def joined(self, model: Ref, entries: Sequence[dict[str, Any]], weights: Sequence[float]) -> Ref:
        """The model that updates of different sizes become."""
        which = [[*self._places].index(entry["contents"]["size"]) for entry in entries]
        how: dict[str, Any] = {"weights": list(weights), "places": [*self._places.values()], "which": which}
        models = [model, *(entry["update"] for entry in entries)]
        return self.server.models.apply(mean_of_holders, models, size=self.setting.parameters, **how)


class HeteroFLParams(CutParams):
    """Parameters of HeteroFL: ``sizes`` are widths, shares of the channels and units of each layer."""

    by: ClassVar[CutBy] = "width"
    kind: Literal["heterofl"] = "heterofl"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 0.5, 0.25], min_length=1)


class HeteroFL(CutModels):
    """Federated learning of models of different widths.

    Source: Diao, Ding and Tarokh, "HeteroFL" (ICLR 2021, arXiv 2010.01264), Algorithm 1: a device of width r has the first r of
    the channels of each hidden layer, and each number of the global model becomes the mean over the devices that have it (Eqs.
    1 to 3); one that no client has stays. Weighted by samples, unless ``aggregation`` is ``mean``. The paper's scaler, static
    batch norm and masked loss are left out. ``redraw`` with a list is its dynamic setting; with a table it is FjORD's ordered
    dropout (Horváth et al. 2021) with one width a round.

    Sends the numbers of each client's width, down and up (``model`` and ``update``, 4 bytes each).
    """

    Params = HeteroFLParams


class HetLoRAParams(CutParams):
    """Parameters of HetLoRA: ``sizes`` are ranks, of ``model.lora.rank`` at most.

    Attributes:
        weights: of updates: by their ``norm``, as in the paper, or as ``aggregation`` says.
    """

    by: ClassVar[CutBy] = "rank"
    kind: Literal["hetlora"] = "hetlora"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 2.0, 4.0], min_length=1)
    weights: Literal["norm", "aggregation"] = "norm"


def _by_name(model: NDArray[np.floating], tensors: Sequence[tuple[str, Sequence[int]]]) -> dict[str, NDArray[np.floating]]:
    """The tensors of a flat model, by name; ``tensors`` are their names and shapes."""
    parts = np.split(model, np.cumsum([math.prod(shape) for _, shape in tensors])[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(tensors, parts, strict=True)}


def norm(update: NDArray[np.float32], tensors: Sequence[Tensor]) -> float:
    """The norm of all that the adapters of a flat model add to their layers, ||B A||, in float64."""
    named = _by_name(update.astype(np.float64), [(tensor.name, tensor.shape) for tensor in tensors])
    layers = [name.removesuffix(".lora_B") for name in named if name.endswith(".lora_B")]
    products = [named[f"{layer}.lora_B"] @ named[f"{layer}.lora_A"] for layer in layers if f"{layer}.lora_A" in named]
    return float(np.sqrt(sum(np.square(product).sum() for product in products)))


class HetLoRA(CutModels):
    """Adapters of different ranks.

    Source: Cho et al., "Heterogeneous LoRA for federated fine-tuning of on-device foundation models" (EMNLP 2024, arXiv
    2401.06432): a device of rank r receives the first r rows of each A and columns of each B; updates are filled up with zeros
    and averaged, each weighted by the norm of B A, so that a small rank counts for less. The self-pruning of ranks is left out.

    Sends the numbers of each client's rank, down and up (``model`` and ``update``, 4 bytes each).
    """

    Params = HetLoRAParams

    async def weighed(self, entries: Sequence[dict[str, Any]]) -> list[float]:
        models = self.server.models
        if self.params.weights == "aggregation" or not models.learns:  # type: ignore[attr-defined]
            return self.weights(entries)
        tensors = self.setting.tensors()
        norms = [norm(update, tensors) for update in await models.values([entry["update"] for entry in entries])]
        norms = [each if np.isfinite(each) else 0.0 for each in norms]
        total = sum(norms)
        return [each / total for each in norms] if total else self.weights(entries)

    def joined(self, model: Ref, entries: Sequence[dict[str, Any]], weights: Sequence[float]) -> Ref:
        updates = [entry["update"] for entry in entries]
        return self.server.models.mix(list(zip(updates, weights, strict=True)), otherwise=model)


class FLoRAParams(CutParams):
    """Parameters of FLoRA: ``sizes`` are ranks, of ``model.lora.rank`` at most."""

    by: ClassVar[CutBy] = "adapters"
    plain_down: ClassVar[bool] = True
    kind: Literal["flora"] = "flora"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 2.0, 4.0], min_length=1)

    @model_validator(mode="after")
    def _merges(self) -> Self:
        if self.server is not None:
            raise ValueError(f"'server' is {self.server.kind!r}, and with flora devices merge what they receive; leave it out")
        return self

    def places(self, setting: RunInfo) -> dict[float, Places]:
        names = [tensor.name for tensor in setting.tensors()]
        chosen = [".lora_" in name for name in names]
        if not all(name.replace(f".lora_{name[-1]}", ".weight") in names for name in names) or not any(chosen):
            raise ScenarioError(
                "strategy.kind is 'flora', which merges adapters into the weights beside them, and the model trains "
                f"{', '.join(names)}; allowed is a model.lora with model.train = '*'"
            )
        return {size: leading(setting.tensors(), setting.cut("rank", size), chosen) for size in self.all_sizes}


@pure
def merged(
    models: list[Floats32], rng: np.random.Generator, weights: list[float], tensors: list[tuple[str, list[int]]], scale: float
) -> NDArray[np.floating]:
    """The first model with the weighted mean of the finite updates' scale B A in its layers, and with fresh adapters; [d].

    ``tensors`` are names and shapes, in the order of a flat model. A is drawn as a dense layer's weights are, B is 0.
    """
    kept = [(update, share) for update, share in zip(models[1:], weights, strict=True) if np.isfinite(update).all()]
    total, result = sum(share for _, share in kept) or 1.0, models[0].astype(np.float64)
    updates = [(_by_name(update.astype(np.float64), tensors), share / total) for update, share in kept]
    own = _by_name(result, tensors)
    for layer in [name.removesuffix(".lora_A") for name in own if name.endswith(".lora_A")]:
        a, b = f"{layer}.lora_A", f"{layer}.lora_B"
        for update, share in updates:
            own[f"{layer}.weight"] += share * scale * (update[b] @ update[a])
        own[a][:] = rng.uniform(-1.0, 1.0, own[a].shape) / np.sqrt(own[a].shape[1])
        own[b][:] = 0.0
    return result


class FLoRAClient(CutClient):
    """Trains its adapters alone, and sends them."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        plain = super().training(device, instruction)
        return replace(plain, held=complement(self._places[instruction["size"]], self.setting.parameters))


class FLoRA(CutModels):
    """Stacked adapters.

    Source: Wang et al., "FLoRA: Federated fine-tuning large language models with heterogeneous low-rank adaptations" (NeurIPS
    2024, arXiv 2409.05976), Algorithm 1: the server stacks the adapters that it receives, scaled by the clients' shares of
    samples, and sends the stack; so each device adds the mean of the products B A to its weights, without the cross terms of a
    product of means, and begins with fresh adapters, drawn by a seed that all share.

    Sends the adapters of a client's rank up (``update``), and down (``model``) the stacks since the device last answered, or
    the whole model if that is less; at first that (4 bytes a number).
    """

    Params = FLoRAParams
    Client = FLoRAClient

    def __init__(self, params: FLoRAParams, server: Server) -> None:
        super().__init__(params, server)
        self._begin = {size: leading(self.setting.tensors(), self.setting.cut("rank", size)) for size in self._places}

    async def on_start(self) -> None:
        self.state |= {"stacks": [], "served": {}}
        await super().on_start()

    def contents(self, device: int) -> Contents:
        size, has, whole = self.size_of(device), self.state["served"].get(device), self.setting.parameters
        count = whole if has is None else min(sum(self.state["stacks"][has:]), whole)
        start = self.server.models.apply(spliced, [self.state["zero"], self.state["model"]], places=self._begin[size])
        return {"model": Opaque(start, 4.0 * count), "size": Header(size)}

    def joined(self, model: Ref, entries: Sequence[dict[str, Any]], weights: Sequence[float]) -> Ref:
        stacks = self.state["stacks"]
        self.state["served"] |= {entry["device"]: len(stacks) for entry in entries}
        stacks.append(sum(end - begin for entry in entries for begin, end in self._places[entry["contents"]["size"]]))
        tensors = [(tensor.name, list(tensor.shape)) for tensor in self.setting.tensors()]
        how: dict[str, Any] = {"weights": list(weights), "tensors": tensors, "scale": self.setting.adapter_scale}
        models, stream = [model, *(entry["update"] for entry in entries)], ("adapters", len(stacks))
        return self.server.models.apply(merged, models, size=self.setting.parameters, stream=stream, **how)
