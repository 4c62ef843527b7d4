"""Parts of a model: tensors by patterns of their names, weights from a file, frozen tensors, adapters beside dense layers."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.errors import DataError, ScenarioError
from fedsim.files import SOUGHT, regular, sought
from fedsim.learning.factory import STATISTICS, Frozen, numbers
from fedsim.learning.patterns import LoRA, Patterns, matching


class LoRALinear(nn.Linear):
    """A dense layer with a low-rank adapter: W x + b + (alpha / r) B A x (Hu et al., "LoRA", 2021).

    A [r, inputs] is drawn as torch draws a dense layer's weights, B [outputs, r] is 0. The layer's tensors keep their names.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + functional.linear(functional.linear(x, self.lora_A), self.lora_B) * self.scale


class FrozenBatchNorm1d(Frozen, nn.BatchNorm1d):
    """``BatchNorm1d`` that goes by its running statistics."""


class FrozenBatchNorm2d(Frozen, nn.BatchNorm2d):
    """``BatchNorm2d`` that goes by its running statistics."""


class FrozenBatchNorm3d(Frozen, nn.BatchNorm3d):
    """``BatchNorm3d`` that goes by its running statistics."""


_FROZEN = {nn.BatchNorm1d: FrozenBatchNorm1d, nn.BatchNorm2d: FrozenBatchNorm2d, nn.BatchNorm3d: FrozenBatchNorm3d}


def fit(module: nn.Module, lora: LoRA | None, train: Patterns | None, seed: int = 0) -> nn.Module:
    """The module, which is changed, with adapters, and frozen but for what ``train`` names (None: the adapters, or all).

    ``seed`` is of the adapters' first numbers; torch's global generator is left as it was.
    """
    if lora is not None:
        _adapt(module, lora, seed)
    if train is not None or lora is not None:
        _freeze(module, "*.lora_?" if train is None else train)
    return module


def frozen_numbers(module: nn.Module) -> int:
    """Numbers of a module that are no numbers of the flat model: what its devices have once, and what never changes."""
    held = [*module.parameters(), *(buffer for name, buffer in module.named_buffers() if name.endswith(STATISTICS))]
    return sum(tensor.numel() for tensor in held) - sum(tensor.numel() for tensor in numbers(module).values())


def load(module: nn.Module, path: str, root: Path | None) -> None:
    """Copy the arrays of ``model.file`` into the tensors of the same names; all others stay as they are.

    Raises:
        DataError: the file cannot be read, or has an array for which the module has no tensor of that shape.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    place = sought(path, root)
    try:
        arrays = load_file(regular(place))
    except FileNotFoundError:
        raise DataError(f"model.file names '{place}', which does not exist; {SOUGHT}") from None
    except (OSError, SafetensorError) as error:
        raise DataError(f"model.file: '{place}' cannot be read as a .safetensors file: {error}") from None
    known = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if tensor.is_floating_point()}
    for name, array in arrays.items():
        if name not in known or known[name].shape != array.shape:
            there = f"one of shape {tuple(known[name].shape)}" if name in known else f"none; it has {', '.join(known)}"
            raise DataError(f"model.file: '{place}' has {name!r} of shape {array.shape}, for which the model has {there}")
        with torch.no_grad():
            known[name].copy_(torch.from_numpy(array))


def _adapt(module: nn.Module, lora: LoRA, seed: int) -> None:
    layers = {name: part for name, part in module.named_modules() if type(part) is nn.Linear}
    if not layers:
        kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in module.modules()))
        raise ScenarioError(f"model.lora is given, and the model has no torch.nn.Linear for an adapter, only {kinds}")
    chosen = matching(list(layers), lora.where, "model.lora.where", "layer")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name, layer in layers.items():
            if name in chosen:
                if not name:
                    raise ScenarioError("model.lora: the model is a torch.nn.Linear; put it into a torch.nn.Sequential")
                holder, _, own = name.rpartition(".")
                setattr(module.get_submodule(holder), own, LoRALinear(layer, lora.rank, lora.alpha))
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # without gradients torch would go past its dense layers, and their adapters


def _freeze(module: nn.Module, patterns: Patterns) -> None:
    names = list(numbers(module))
    chosen = matching(names, patterns, "model.train", "tensor")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in chosen)
    for name, part in module.named_modules():
        statistics = [f"{name}.{key}" if name else key for key in STATISTICS if getattr(part, key, None) is not None]
        if not statistics or chosen.issuperset(statistics):
            continue
        if type(part) not in _FROZEN:
            raise ScenarioError(
                f"model.train leaves out the running statistics of {name!r}, a {type(part).__name__}; allowed with "
                "torch.nn.BatchNorm1d, 2d and 3d alone"
            )
        part.__class__ = _FROZEN[type(part)]
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ScenarioError(f"model.train is {patterns!r}, which leaves no tensor to be trained by gradients")
