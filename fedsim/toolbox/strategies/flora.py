"""FLoRA: adapters of all clients are stacked, and merged into the weights (Wang et al., 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats32
from fedsim.common.errors import ScenarioError
from fedsim.common.training import CutBy, Places, Training, complement
from fedsim.federation import Contents, Device, Header, Instruction, Opaque, RunInfo, Server
from fedsim.learning.functions import pure, spliced
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.traits import Traits
from fedsim.toolbox.strategies.sizes import (
    CutClient,
    CutModels,
    CutParams,
    CutState,
    places_within,
    split_by_tensor,
)


class FLoRAParams(CutParams):
    """Keys of ``[strategy]`` for FLoRA.

    ``sizes`` are the ranks of devices' low-rank adapters. The largest allowed rank is
    ``model.lora.rank``.
    """

    by: ClassVar[CutBy] = "adapters"
    traits: ClassVar[Traits] = Traits(plain_down=True)
    kind: Literal["flora"] = "flora"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 2.0, 4.0], min_length=1)

    @model_validator(mode="after")
    def _check_merge(self) -> Self:
        if self.server is not None:
            raise ValueError(
                f"'server' is {self.server.kind!r}, and with flora devices merge what they "
                "receive; leave it out"
            )
        return self

    def places(self, setting: RunInfo) -> dict[float, Places]:
        """Return which parameters of the flat global model a device of each rank trains and sends.

        A device of rank r has the first r rows of each ``lora_A`` and r columns of each ``lora_B``.

        Args:
            setting: information about the run, with the tensors of the global model. A layer's
                adapter is the tensors ``LAYER.lora_A`` and ``LAYER.lora_B``.

        Returns:
            Rank (a whole number) -> ranges (begin, end) of a flat model.

        Raises:
            ScenarioError: the model has no adapters, or the weights of a layer with an adapter are
                frozen, so that the server cannot merge the adapter into them.
        """
        names = [tensor.name for tensor in setting.tensors()]
        is_adapter = [".lora_" in name for name in names]
        # weights of the layers that have an adapter, into which the adapter is merged
        adapted_weights = set()
        for name in names:
            layer, separator, _ = name.rpartition(".lora_")
            if separator:
                adapted_weights.add(f"{layer}.weight")
        if not adapted_weights or not adapted_weights.issubset(names):
            raise ScenarioError(
                "strategy.kind is 'flora', which merges adapters into the weights beside them, "
                f"and the model trains {', '.join(names)}; allowed is a model.lora with "
                "model.train = '*'"
            )
        places: dict[float, Places] = {}
        for size in self.all_sizes:
            places[size] = places_within(setting, setting.cut("rank", size), is_adapter)
        return places


@pure
def merged(
    models: list[Floats32],
    rng: np.random.Generator,
    weights: list[float],
    tensors: list[tuple[str, list[int]]],
    scale: float,
) -> NDArray[np.floating]:
    """Merge the low-rank adapters of all updates into the model's weights (FLoRA).

    A layer's adapter is a pair of matrices A and B. The layer's weights move by the weighted mean
    over the updates of ``scale`` B A. Then a fresh adapter replaces the layer's adapter: A is drawn
    like a dense layer's weights, and B is 0. Updates that are not finite are left out.

    Args:
        models: the present model and the updates, flat, float32 [d] each.
        rng: source of the fresh adapters.
        weights: the weight of each update.
        tensors: (name, shape) of each tensor, in the order of a flat model.
        scale: factor of the product B A in a layer.

    Returns:
        The next model, float64 [d].
    """
    present, *updates = models
    # each finite update as name -> tensor, and its weight
    finite_updates = list[tuple[dict[str, NDArray[np.floating]], float]]()
    for update, weight in zip(updates, weights, strict=True):
        if np.isfinite(update).all():
            finite_updates.append((split_by_tensor(update.astype(np.float64), tensors), weight))
    total = sum(weight for _, weight in finite_updates) or 1.0
    result = present.astype(np.float64)
    views = split_by_tensor(result, tensors)  # changing them changes ``result``
    for a_name in views:
        if not a_name.endswith(".lora_A"):
            continue
        layer = a_name.removesuffix(".lora_A")
        b_name = f"{layer}.lora_B"
        for update_tensors, weight in finite_updates:
            product = update_tensors[b_name] @ update_tensors[a_name]
            views[f"{layer}.weight"] += weight / total * scale * product
        _rank, inputs = views[a_name].shape
        views[a_name][:] = rng.uniform(-1.0, 1.0, views[a_name].shape) / np.sqrt(inputs)
        views[b_name][:] = 0.0
    return result


class FLoRAClient(CutClient):
    """Client that trains only its low-rank adapters, and sends them; other weights are fixed."""

    def __init__(self, params: FLoRAParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        # size -> ranges of the flat model that a device of this size does not train
        self._frozen: dict[float, Places] = {}
        for size, adapters in self._places.items():
            self._frozen[size] = complement(adapters, setting.parameters)

    def training(self, device: Device, instruction: Instruction) -> Training:
        training = super().training(device, instruction)
        return replace(training, held=self._frozen[instruction["size"]])


@dataclass
class FLoRAState(CutState):
    """State of FLoRA on the server: the model, and the stacks of adapters that devices receive.

    A stack has the adapters of all updates of an aggregation.

    Attributes:
        stacks: Count of values in the stack of each aggregation.
        served: Device ID -> count of stacks that the device had received when it last answered.
    """

    stacks: list[int] = field(default_factory=list)
    served: dict[int, int] = field(default_factory=dict)


class FLoRA(CutModels):
    """Stacked adapters.

    Devices train low-rank adapters of different ranks. The server stacks the adapters of all
    clients, in place of averaging them, and each device merges the stack into its weights.

    Source: Wang et al., "FLoRA: Federated fine-tuning large language models with heterogeneous
    low-rank adaptations" (NeurIPS 2024, arXiv 2409.05976), Algorithm 1. An adapter is a pair of
    low-rank matrices A and B of a layer.

    - Each client trains adapters of its rank, and sends them (``update``).
    - The server stacks the adapters that it receives, weighted by the clients' samples, and sends
      the stack. From a stack a device can compute the weighted mean of the products B A. It could
      not do so from the means of A and of B.
    - Each device adds this mean to its weights, and begins with fresh adapters, drawn by a seed
      that all devices share.

    The server sends a device all stacks since the device last answered (``model``), or the whole
    model if that is smaller. Before a device's first answer it sends the whole model (4 bytes a
    parameter).
    """

    Params = FLoRAParams
    Client = FLoRAClient
    State = FLoRAState
    state: FLoRAState

    def __init__(self, params: FLoRAParams, server: Server) -> None:
        super().__init__(params, server)
        # size -> ranges of the flat model with all values that a device of this size needs
        self._starts: dict[float, Places] = {}
        for size in self._places:
            smaller = self.setting.cut("rank", size)
            self._starts[size] = places_within(self.setting, smaller)

    def contents(self, device: int) -> Contents:
        """Return the model of a device's rank, at the cost of the stacks that it lacks.

        A stack has the adapters of all updates of an aggregation. In FLoRA a device receives the
        stacks since its last answer, and computes the model from them. The message thus has the
        bytes of these stacks, or of the whole model if that is smaller. Before a device's first
        answer it has the bytes of the whole model.

        Args:
            device: ID of the device.
        """
        state = self.state
        size = self.size_of(device)
        sent_values = self.setting.parameters
        if device in state.served:  # the device has received the stacks before this index
            lengths_of_new_stacks = state.stacks[state.served[device] :]
            sent_values = min(sum(lengths_of_new_stacks), sent_values)
        # the values of the present model that the device needs, and 0 elsewhere
        models = [state.zero, state.model]
        start = self.server.models.apply(spliced, models, places=self._starts[size])
        return {"model": Opaque(start, 4.0 * sent_values), "size": Header(size)}

    def combine_updates(
        self, model: Ref, entries: Sequence[Entry], weights: Sequence[float]
    ) -> Ref:
        """Merge all clients' adapters into the weights, and store the length of their stack.

        The stack has all these adapters. Its length decides the bytes of later messages.

        Args:
            model: the present model.
            entries: the received updates, with the client's rank as ``size`` in the contents.
            weights: the weight of each update.

        Returns:
            The next model, with fresh adapters.
        """
        stacks = self.state.stacks  # count of values of each stack so far
        stack_values = 0
        for entry in entries:
            # the device has received all earlier stacks, and not the stack that is made here
            self.state.served[entry["device"]] = len(stacks)
            adapter_ranges = self._places[entry["contents"]["size"]]
            stack_values += sum(end - begin for begin, end in adapter_ranges)
        stacks.append(stack_values)
        return self.server.models.apply(
            merged,
            [model, *(entry["update"] for entry in entries)],
            size=self.setting.parameters,
            stream=("adapters", len(stacks)),  # other fresh adapters in each aggregation
            weights=list(weights),
            tensors=[(tensor.name, list(tensor.shape)) for tensor in self.setting.tensors()],
            scale=self.setting.adapter_scale,
        )
