"""The base of strategies whose devices train smaller models within the global one: HeteroFL,
HetLoRA, FLoRA.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.training import CutBy, Places, Training, places_of
from fedsim.federation import (
    Contents,
    Device,
    Header,
    Instruction,
    LocalResult,
    Partial,
    RunInfo,
    Server,
)
from fedsim.learning.architecture import Tensor
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import SynchronousClient


class CutParams(AggregatingParams):
    """Parameters of strategies whose devices train smaller models within the global one."""

    by: ClassVar[CutBy]
    looks_at_each: ClassVar[str | None] = (
        "the server has to know which numbers each client has sent"
    )
    sizes: dict[str, float] | list[float] = Field(min_length=1)
    """of each device's model: a table by the kinds of devices (``population.device``), or a list
    of which each device has one, drawn uniformly and once.
    """
    redraw: bool = False
    """in each round a device has any of several sizes up to its own (from a list: any), drawn
    uniformly.
    """

    @model_validator(mode="after")
    def _means_alone(self) -> Self:
        if self.aggregation.kind not in ("weighted", "mean"):
            raise ValueError(
                f"'aggregation' is {self.aggregation.kind!r}, and {self.kind} has updates of "
                "different sizes; allowed are "
                "'weighted' and 'mean'"
            )
        if self.redraw and len(self.all_sizes) == 1:
            raise ValueError(
                "'redraw' is true, which counts only where 'sizes' has several; here 'sizes' "
                f"is {self.sizes}"
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
        return {
            size: leading(setting.tensors(), setting.cut(self.by, size)) for size in self.all_sizes
        }


def leading(
    whole: Sequence[Tensor], part: Sequence[Tensor], chosen: Sequence[bool] | None = None
) -> Places:
    """Ranges of a flat model with the first numbers of each (``chosen``) tensor, along its first
    two axes, as in ``part``.
    """
    found = list[tuple[int, int]]()
    at = 0
    for tensor, own, counts in zip(whole, part, chosen or [True] * len(whole), strict=True):
        row, length = (math.prod(each.shape[1:]) for each in (tensor, own))
        if counts:
            found += [
                (begin, begin + length) for begin in range(at, at + own.size // length * row, row)
            ]
        at += tensor.size
    return places_of(found)


def by_name(
    model: NDArray[np.floating], tensors: Sequence[tuple[str, Sequence[int]]]
) -> dict[str, NDArray[np.floating]]:
    """The tensors of a flat model, by name; ``tensors`` are their names and shapes."""
    parts = np.split(model, np.cumsum([math.prod(shape) for _, shape in tensors])[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(tensors, parts, strict=True)}


class CutClient(SynchronousClient[CutParams]):
    """Trains the numbers that it has received, among zeros, and sends them back."""

    def __init__(self, params: CutParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._places = params.places(setting)

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(
            instruction["model"],
            self.params.local_epochs,
            cut=(self.params.by, instruction["size"]),
        )

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        assert result.update is not None
        size = instruction["size"]
        reply = super().reply(device, instruction, result) or {}
        return {
            **reply,
            "update": Partial(result.update, instruction["model"], self._places[size]),
            "size": Header(size),
        }


class CutModels(FedAvg[CutParams]):
    """FedAvg whose devices train smaller models within the global one, of a size of their own.

    The device trains among zeros what it has received: in layers with ReLU between, and in
    adapters, zeros have no gradient and add nothing, so that this is training the smaller model.
    Its time, memory and bytes are those of the smaller model.
    """

    Client: ClassVar[type[SynchronousClient[Any]]] = CutClient

    def __init__(self, params: CutParams, server: Server) -> None:
        super().__init__(params, server)
        for kind in self.setting.kinds or ["none"]:
            if isinstance(params.sizes, dict) and kind not in params.sizes:
                raise ScenarioError(
                    "strategy.sizes has no size for devices of the kind "
                    f"{kind!r}{nearest(kind, params.sizes)}; allowed is one "
                    "for each kind in population.device, or a list of sizes, of which each "
                    "device has one"
                )
        self._places = params.places(self.setting)

    async def on_start(self) -> None:
        self.state.zero = self.server.models.zero()
        await super().on_start()

    def size_of(self, device: int) -> float:
        """The size of a device's model in this round."""
        sizes = self.params.sizes
        redraw = self.params.redraw
        own = sizes[self.setting.kind_of(device) or ""] if isinstance(sizes, dict) else max(sizes)
        if redraw:
            sizes = [size for size in self.params.all_sizes if size <= own]
        if isinstance(sizes, dict):
            return own
        return sizes[
            int(
                self.server.rng("size", device, *([self.state.round] if redraw else [])).integers(
                    len(sizes)
                )
            )
        ]

    def contents(self, device: int) -> Contents:
        size = self.size_of(device)
        return {
            "model": Partial(self.state.model, self.state.zero, self._places[size]),
            "size": Header(size),
        }

    async def next_model(
        self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: Any
    ) -> Ref:
        weights = await self.weighed(entries)
        self.record_aggregate(entries, weights, **record)
        return self.advance(model, self.joined(model, entries, weights), slot)

    async def weighed(self, entries: Sequence[dict[str, Any]]) -> list[float]:
        return self.weights(entries)

    def joined(
        self, model: Ref, entries: Sequence[dict[str, Any]], weights: Sequence[float]
    ) -> Ref:
        """The model that updates of different sizes become."""
        raise NotImplementedError
