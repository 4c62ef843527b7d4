"""Modules of torch: built, refused, adapted, frozen, loaded from a file, and counted."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fedsim.data.federated import TokenShape
from fedsim.errors import DataError, ScenarioError
from fedsim.files import reading, regular, sought
from fedsim.language.imports import find
from fedsim.learning.architecture import STATISTICS, LoRA, Patterns, Shape, matching
from fedsim.learning.solvers.dropout import REPLACEABLE


def build(path: str, args: Mapping[str, Any], seed: int) -> nn.Module:
    """Make the module, initialised under ``seed``; torch's global generator is left as it was."""
    factory = find(path, "model.factory", nn.Module, "torch.nn.Module", or_function=True)
    try:
        module = seeded(lambda: factory(**args), seed)
    except Exception as error:
        raise ScenarioError(
            f"model.factory {path!r} failed with model.args = {dict(args)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ScenarioError(f"model.factory {path!r} made a {type(module).__name__}; it must make a torch.nn.Module")
    _refuse(module, path)
    return module


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module made while torch's global generator has a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def _refuse(module: nn.Module, path: str) -> None:
    """Raise for a part that keeps statistics that cannot be averaged, or draws from torch's global generator."""
    for name, part in module.named_modules():
        where = f"model.factory {path!r}: the part {name or 'itself'!r} is a {type(part).__name__}"
        if isinstance(part, nn.modules.lazy.LazyModuleMixin):
            raise ScenarioError(f"{where}, whose size is not known before its first use; say it, as in torch.nn.Linear(64, 10)")
        if getattr(part, "running_mean", None) is not None and getattr(part, "momentum", 0.1) is None:
            raise ScenarioError(
                f"{where} with momentum=None, whose running statistics are means over all batches that it ever saw; devices' "
                "means over unlike numbers of batches cannot be averaged; give it a momentum, or track_running_stats=False"
            )
        draws = isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU) and not isinstance(part, REPLACEABLE)
        if draws or (isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout):
            raise ScenarioError(
                f"{where} that draws random numbers in training; its random numbers would depend on the order of the work; use "
                "torch.nn.Dropout, whose masks are keyed"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ScenarioError(f"model.factory {path!r} makes a module without trainable parameters")
    if hasattr(module, "loss") and not inspect.ismethod(module.loss):
        raise ScenarioError(f"model.factory {path!r}: 'loss' must be a method loss(outputs, y) that returns one loss a sample")


def numbers(module: nn.Module) -> dict[str, Tensor]:
    """Tensors of a module that a flat model holds, by name, in its order: trained parameters, and after a norm's own the
    running statistics, unless they are frozen. A tensor that is used in several places is listed once."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        own = [(key, tensor) for key, tensor in part.named_parameters(recurse=False) if tensor.requires_grad]
        if not getattr(part, "frozen", False):
            own += [(key, tensor) for key, tensor in part.named_buffers(recurse=False) if key in STATISTICS]
        for key, tensor in own:
            if all(tensor is not other for other in found.values()):
                found[f"{name}.{key}" if name else key] = tensor
    return found


def frozen_numbers(module: nn.Module) -> int:
    """Numbers of a module outside the flat model: parts that devices have once, and parts that never change."""
    held = [*module.parameters(), *(buffer for name, buffer in module.named_buffers() if name.endswith(STATISTICS))]
    return sum(tensor.numel() for tensor in held) - sum(tensor.numel() for tensor in numbers(module).values())


def step_flops(module: nn.Module, shape: Shape, *, backward: bool = False) -> float:
    """FLOPs of the matrix products and convolutions of a training step on one sample: three times those of a forward pass, or
    with ``backward`` those of both passes, without gradients that are not needed.

    Counted on tensors that hold nothing, where recurrent layers and attention are products too; unless values are needed.
    """
    for place in ("meta", "cpu"):
        try:
            own = copy.deepcopy(module).to(place).eval()
            with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
                outputs = own(example(2, shape).to(place))  # of one alone a batch norm could not take the variance
                if backward:
                    outputs.sum().backward()
            break
        except Exception as error:
            if place == "cpu":
                raise ScenarioError(f"the module of model.factory cannot take samples of shape {shape}: {error}") from error
    return float(counter.get_total_flops()) / 2 * (1.0 if backward else 3.0)


def example(samples: int, shape: Shape) -> Tensor:
    """So many samples of a shape, all 0: int64 where they are tokens, else float32."""
    return torch.zeros(samples, *shape, dtype=torch.long if isinstance(shape, TokenShape) else torch.float32)


def fit(module: nn.Module, lora: LoRA | None, train: Patterns | None, seed: int = 0) -> nn.Module:
    """The module, changed in place: adapters by a seed; trained are tensors that ``train`` names (None: adapters, or all)."""
    if lora is not None:
        seeded(lambda: _adapt(module, lora), seed)
    if train is not None or lora is not None:
        _freeze(module, "*.lora_?" if train is None else train)
    return module


class LoRALinear(nn.Linear):
    """A dense layer with a low-rank adapter (``architecture.LoRA``); the layer's tensors keep their names."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias, self.scale = layer.weight, layer.bias, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + functional.linear(functional.linear(x, self.lora_A), self.lora_B) * self.scale


def _adapt(module: nn.Module, lora: LoRA) -> nn.Module:
    layers = {name: part for name, part in module.named_modules() if type(part) is nn.Linear}
    if not layers:
        kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in module.modules()))
        raise ScenarioError(f"model.lora is given, and the model has no torch.nn.Linear for an adapter, only {kinds}")
    chosen = matching(list(layers), lora.where, "model.lora.where", "layer")
    for name, layer in layers.items():
        if name in chosen:
            if not name:
                raise ScenarioError("model.lora: the model is a torch.nn.Linear; put it into a torch.nn.Sequential")
            holder, _, own = name.rpartition(".")
            setattr(module.get_submodule(holder), own, LoRALinear(layer, lora.rank, lora.alpha))
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # without gradients torch would go past its dense layers, and their adapters
    return module


def _freeze(module: nn.Module, patterns: Patterns) -> None:
    chosen = matching(list(numbers(module)), patterns, "model.train", "tensor")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in chosen)
    for name, part in module.named_modules():
        statistics = [f"{name}.{key}" if name else key for key in STATISTICS if getattr(part, key, None) is not None]
        if not statistics or chosen.issuperset(statistics):
            continue
        if type(part) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            raise ScenarioError(
                f"model.train leaves out the running statistics of {name!r}, a {type(part).__name__}; allowed with "
                "torch.nn.BatchNorm1d, 2d and 3d alone"
            )
        part.frozen = True
        part.register_forward_pre_hook(_as_in_tests)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ScenarioError(f"model.train is {patterns!r}, which leaves no tensor to be trained by gradients")


def _as_in_tests(part: nn.Module, args: object) -> None:
    """Have a norm go by its running statistics, in training too, and leave them as they are."""
    part.training = False


def load(module: nn.Module, path: str, root: Path | None) -> None:
    """Copy the arrays of ``model.file`` into the tensors of their names; ``DataError``: no such file, or no such tensor."""
    from safetensors.numpy import load_file

    place = sought(path, root)
    with reading(place, "model.file", "a .safetensors file"):
        arrays = load_file(regular(place))
    known = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if tensor.is_floating_point()}
    for name, array in arrays.items():
        if name not in known or known[name].shape != array.shape:
            there = f"one of shape {tuple(known[name].shape)}" if name in known else f"none; it has {', '.join(known)}"
            raise DataError(f"model.file: '{place}' has {name!r} of shape {array.shape}, for which the model has {there}")
        with torch.no_grad():
            known[name].copy_(torch.from_numpy(array))
