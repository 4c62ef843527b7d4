"""FLoRA: adapters of all clients are stacked, and merged into the weights (Wang et al., 2024)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats32
from fedsim.common.errors import ScenarioError
from fedsim.common.training import CutBy, Places, Training, complement
from fedsim.federation import Contents, Device, Header, Instruction, Opaque, RunInfo, Server
from fedsim.learning.functions import pure, spliced
from fedsim.learning.refs import Ref
from fedsim.toolbox.strategies.sizes import CutClient, CutModels, CutParams, by_name, leading


class FLoRAParams(CutParams):
    """Parameters of FLoRA: ``sizes`` are ranks, of ``model.lora.rank`` at most."""

    by: ClassVar[CutBy] = "adapters"
    plain_down: ClassVar[bool] = True
    kind: Literal["flora"] = "flora"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 2.0, 4.0], min_length=1)

    @model_validator(mode="after")
    def _merges(self) -> Self:
        if self.server is not None:
            raise ValueError(
                f"'server' is {self.server.kind!r}, and with flora devices merge what they "
                "receive; leave it out"
            )
        return self

    def places(self, setting: RunInfo) -> dict[float, Places]:
        names = [tensor.name for tensor in setting.tensors()]
        chosen = [".lora_" in name for name in names]
        if not all(
            name.replace(f".lora_{name[-1]}", ".weight") in names for name in names
        ) or not any(chosen):
            raise ScenarioError(
                "strategy.kind is 'flora', which merges adapters into the weights beside them, "
                "and the model trains "
                f"{', '.join(names)}; allowed is a model.lora with model.train = '*'"
            )
        return {
            size: leading(setting.tensors(), setting.cut("rank", size), chosen)
            for size in self.all_sizes
        }


@pure
def merged(
    models: list[Floats32],
    rng: np.random.Generator,
    weights: list[float],
    tensors: list[tuple[str, list[int]]],
    scale: float,
) -> NDArray[np.floating]:
    """The first model with the weighted mean of the finite updates' scale B A in its layers, and
    with fresh adapters; [d].

    ``tensors`` are names and shapes, in the order of a flat model. A is drawn as a dense layer's
    weights are, B is 0.
    """
    kept = [
        (update, share)
        for update, share in zip(models[1:], weights, strict=True)
        if np.isfinite(update).all()
    ]
    total = sum(share for _, share in kept) or 1.0
    result = models[0].astype(np.float64)
    updates = [
        (by_name(update.astype(np.float64), tensors), share / total) for update, share in kept
    ]
    own = by_name(result, tensors)
    for layer in [name.removesuffix(".lora_A") for name in own if name.endswith(".lora_A")]:
        a = f"{layer}.lora_A"
        b = f"{layer}.lora_B"
        for update, share in updates:
            own[f"{layer}.weight"] += share * scale * (update[b] @ update[a])
        own[a][:] = rng.uniform(-1.0, 1.0, own[a].shape) / np.sqrt(own[a].shape[1])
        own[b][:] = 0.0
    return result


class FLoRAClient(CutClient):
    """Trains its adapters alone, and sends them."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        plain = super().training(device, instruction)
        return replace(
            plain, held=complement(self._places[instruction["size"]], self.setting.parameters)
        )


class FLoRA(CutModels):
    """Stacked adapters.

    Source: Wang et al., "FLoRA: Federated fine-tuning large language models with heterogeneous
    low-rank adaptations" (NeurIPS 2024, arXiv 2409.05976), Algorithm 1: the server stacks the
    adapters that it receives, scaled by the clients' shares of samples, and sends the stack; so
    each device adds the mean of the products B A to its weights, without the cross terms of a
    product of means, and begins with fresh adapters, drawn by a seed that all share.

    Sends the adapters of a client's rank up (``update``), and down (``model``) the stacks since
    the device last answered, or the whole model if that is less; at first that (4 bytes a
    number).
    """

    Params = FLoRAParams
    Client = FLoRAClient

    def __init__(self, params: FLoRAParams, server: Server) -> None:
        super().__init__(params, server)
        self._begin = {
            size: leading(self.setting.tensors(), self.setting.cut("rank", size))
            for size in self._places
        }

    async def on_start(self) -> None:
        self.state |= {"stacks": [], "served": {}}
        await super().on_start()

    def contents(self, device: int) -> Contents:
        size = self.size_of(device)
        has = self.state.served.get(device)
        whole = self.setting.parameters
        count = whole if has is None else min(sum(self.state.stacks[has:]), whole)
        start = self.server.models.apply(
            spliced, [self.state.zero, self.state.model], places=self._begin[size]
        )
        return {"model": Opaque(start, 4.0 * count), "size": Header(size)}

    def joined(
        self, model: Ref, entries: Sequence[dict[str, Any]], weights: Sequence[float]
    ) -> Ref:
        stacks = self.state.stacks
        self.state.served |= {entry["device"]: len(stacks) for entry in entries}
        stacks.append(
            sum(
                end - begin
                for entry in entries
                for begin, end in self._places[entry["contents"]["size"]]
            )
        )
        tensors = [(tensor.name, list(tensor.shape)) for tensor in self.setting.tensors()]
        how: dict[str, Any] = {
            "weights": list(weights),
            "tensors": tensors,
            "scale": self.setting.adapter_scale,
        }
        models = [model, *(entry["update"] for entry in entries)]
        stream = ("adapters", len(stacks))
        return self.server.models.apply(
            merged, models, size=self.setting.parameters, stream=stream, **how
        )
