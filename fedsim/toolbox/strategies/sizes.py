"""Base of strategies whose devices train a part of the model (HeteroFL, HetLoRA, FLoRA)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.training import CutBy, ModelCut, Places, Training, places_of
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
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import SynchronousClient


class CutParams(AggregatingParams):
    """Keys of ``[strategy]`` for strategies whose devices train parts of the global model.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation.

    Attributes:
        sizes: sizes of the devices' models: a table with a size for each kind of device
            (``population.device``), or a list from which each device's size is drawn, uniformly and
            once.
        redraw: whether a device's size is drawn anew in each round, uniformly: with a table from
            the sizes up to the size of its kind, with a list from all sizes.
    """

    by: ClassVar[CutBy]
    """Measure of a size, such as ``width`` or ``rank``."""
    why_not: ClassVar[Reasons] = Reasons(
        sum_alone="the server has to know which numbers each client has sent"
    )
    sizes: dict[str, float] | list[float] = Field(min_length=1)
    redraw: bool = False

    @model_validator(mode="after")
    def _check_means(self) -> Self:
        """Check that updates are averaged, ``redraw`` has several sizes, and all sizes exceed 0."""
        if self.aggregation.kind not in ("weighted", "mean"):
            raise ValueError(
                f"'aggregation' is {self.aggregation.kind!r}, and {self.kind} has updates of "
                "different sizes; allowed are 'weighted' and 'mean'"
            )
        if self.redraw and len(self.all_sizes) == 1:
            raise ValueError(
                "'redraw' is true, which counts only where 'sizes' has several; here 'sizes' "
                f"is {self.sizes}"
            )
        if self.all_sizes[0] <= 0:
            raise ValueError(f"'sizes' is {self.sizes}; allowed is more than 0")
        return self

    def usual_training(self, kind: str) -> Training:
        size = self.all_sizes[0]
        if isinstance(self.sizes, dict):
            size = self.sizes.get(kind, size)
        return Training(None, cut=ModelCut(self.by, size))

    @property
    def resizes(self) -> bool:
        return self.redraw

    @property
    def all_sizes(self) -> list[float]:
        """Distinct sizes of devices' models in the key ``sizes``, ascending."""
        sizes = self.sizes.values() if isinstance(self.sizes, dict) else self.sizes
        return sorted({*sizes})

    def places(self, setting: RunInfo) -> dict[float, Places]:
        """Return which parameters of the global model a device of each size trains and sends.

        Args:
            setting: information about the run, with the tensors of the global model.

        Returns:
            Size -> ranges (begin, end) of a flat model.
        """
        places = {}
        for size in self.all_sizes:
            places[size] = places_within(setting, setting.cut(self.by, size))
        return places


def places_within(
    setting: RunInfo, part: Sequence[Tensor], mask: Sequence[bool] | None = None
) -> Places:
    """Return the ranges of a flat global model that hold a smaller model.

    The smaller model is the leading part of each tensor. In runs without learning only the count of
    parameters matters, and the result is one range of this length, in place of a range for each row
    of a matrix.

    Args:
        setting: information about the run, with the tensors of the global model.
        part: the tensors of the smaller model, which may be shorter along the first two axes.
        mask: whether to include each tensor; None: all tensors.
    """
    if setting.learns:
        return leading(setting.tensors(), part, mask)
    included = mask or [True] * len(part)
    sizes = [tensor.size for tensor, is_in in zip(part, included, strict=True) if is_in]
    return places_of([(0, sum(sizes))])


def leading(
    whole: Sequence[Tensor], part: Sequence[Tensor], mask: Sequence[bool] | None = None
) -> Places:
    """Return the ranges of a flat model that hold the leading part of each of its tensors.

    This part is a smaller model, which a device trains.

    Args:
        whole: the tensors of the model, in the order of the flat model.
        part: the tensors of the smaller model, which may be shorter along the first two axes.
        mask: whether to include each tensor; None: all tensors.
    """
    # A tensor is stored row by row; a row has one index of the first axis. The smaller tensor has
    # the first rows, and of each of them the first values.
    ranges = list[tuple[int, int]]()
    begin = 0  # index of the tensor's first value in the flat model
    included = mask or [True] * len(whole)
    for tensor, small, is_in in zip(whole, part, included, strict=True):
        row_size = math.prod(tensor.shape[1:])
        small_row_size = math.prod(small.shape[1:])
        small_rows = small.size // small_row_size
        end = begin + small_rows * row_size  # end of the rows that the smaller tensor has
        if is_in and small_row_size == row_size:  # whole rows, one after the other
            ranges.append((begin, end))
        elif is_in:  # the first values of each row
            for row_begin in range(begin, end, row_size):
                ranges.append((row_begin, row_begin + small_row_size))
        begin += tensor.size
    return places_of(ranges)


def split_by_tensor(
    model: NDArray[np.floating], tensors: Sequence[tuple[str, Sequence[int]]]
) -> dict[str, NDArray[np.floating]]:
    """Split a flat model into its tensors.

    Args:
        model: the flat model, [d].
        tensors: (name, shape) of each tensor, in the order of the flat model.

    Returns:
        Tensor name -> view of the tensor in ``model``.
    """
    ends = np.cumsum([math.prod(shape) for _, shape in tensors])
    parts = np.split(model, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(tensors, parts, strict=True)}


class CutClient(SynchronousClient[CutParams]):
    """Client that receives a part of the global model, trains this part, and sends it back."""

    def __init__(self, params: CutParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._places = params.places(setting)

    def training(self, device: Device, instruction: Instruction) -> Training:
        cut = ModelCut(self.params.by, instruction["size"])
        return Training(instruction["model"], self.params.local_epochs, cut=cut)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        assert result.update is not None
        size = instruction["size"]
        reply = super().reply(device, instruction, result) or {}
        update = Partial(result.update, instruction["model"], self._places[size])
        return {**reply, "update": update, "size": Header(size)}


@dataclass
class CutState(FedAvgState):
    """State on the server of a strategy whose devices train smaller models.

    Attributes:
        zero: Model in which all parameters are 0. A device's model has these values in the
            parameters that it does not receive.
    """

    zero: Ref = field(init=False)


def _check_kinds(sizes: Mapping[str, float], kinds: Sequence[str]) -> None:
    """Check that a table of sizes has a size for each kind of device.

    Args:
        sizes: kind of device -> size of its model.
        kinds: kinds of devices in the scenario; empty if devices have no kinds.

    Raises:
        ScenarioError: devices have no kinds, or a kind has no size.
    """
    if not kinds:
        raise ScenarioError(
            "strategy.sizes is a table with a size for each kind of device, and "
            "population.device has no kinds; allowed is a list of sizes, of which each device "
            "has one"
        )
    for kind in kinds:
        if kind not in sizes:
            raise ScenarioError(
                "strategy.sizes has no size for devices of the kind "
                f"{kind!r}{nearest(kind, sizes)}; allowed is one for each kind in "
                "population.device, or a list of sizes, of which each device has one"
            )


class CutModels(FedAvg[CutParams]):
    """Base of FedAvg-like strategies whose devices train smaller models, parts of the global one.

    A device receives a part of the parameters; in its model all other parameters are 0. In
    adapters, and in layers that are joined by ReLU, these zeros add nothing to an output, and their
    gradients are 0, so that they stay 0. The device thus trains the smaller model, although its
    tensors have the shapes of the global model. Time, memory and bytes are counted for the smaller
    model. Subclasses implement ``combine_updates``, which combines updates of different sizes.
    """

    Client: ClassVar[type[SynchronousClient[Any]]] = CutClient
    State = CutState
    state: CutState

    def __init__(self, params: CutParams, server: Server) -> None:
        super().__init__(params, server)
        if isinstance(params.sizes, dict):
            _check_kinds(params.sizes, self.setting.kinds)
        self._places = params.places(self.setting)

    async def on_start(self) -> None:
        self.state.zero = self.server.models.zero()
        await super().on_start()

    def size_of(self, device: int) -> float:
        """Return the size of a device's model in the present round, such as a width or a rank.

        It is one of the values of the key ``sizes``: the size of the device's kind, or a draw.

        Args:
            device: ID of the device.
        """
        sizes = self.params.sizes
        is_redrawn = self.params.redraw  # a new draw in each round
        if isinstance(sizes, dict):
            size_of_kind = sizes[self.setting.kind_of(device) or ""]
            if not is_redrawn:
                return size_of_kind
            candidates = [size for size in self.params.all_sizes if size <= size_of_kind]
        elif is_redrawn:
            candidates = self.params.all_sizes
        else:
            candidates = sizes  # a size that is listed twice is twice as likely
        ids = [device]  # integers that name the random stream
        if is_redrawn:
            ids.append(self.state.round)
        generator = self.server.rng("size", *ids)
        return candidates[int(generator.integers(len(candidates)))]

    def contents(self, device: int) -> Contents:
        size = self.size_of(device)
        model = Partial(self.state.model, self.state.zero, self._places[size])
        return {"model": model, "size": Header(size)}

    async def next_model(
        self, model: Ref, entries: list[Entry], slot: int = 0, **record: object
    ) -> Ref:
        weights = await self.weigh_updates(entries)
        self.record_aggregate(entries, weights, **record)
        return self.advance(model, self.combine_updates(model, entries, weights), slot)

    async def weigh_updates(self, entries: Sequence[Entry]) -> list[float]:
        """Return the weight of each update in the next model, by default by ``aggregation``.

        Args:
            entries: the updates of the round.
        """
        return self.weights(entries)

    def combine_updates(
        self, model: Ref, entries: Sequence[Entry], weights: Sequence[float]
    ) -> Ref:
        """Combine updates of different sizes into the next model.

        Args:
            model: the present model.
            entries: the received updates.
            weights: the weight of each update.

        Returns:
            The next model, before the step of the server optimiser.
        """
        raise NotImplementedError
