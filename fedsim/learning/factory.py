"""Building a module of the user's own, and refusing what cannot be trained fairly or repeatably."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from fedsim.errors import ScenarioError
from fedsim.language.imports import find
from fedsim.learning.architecture import Shape

if TYPE_CHECKING:
    from torch import Tensor, nn

STATISTICS = ("running_mean", "running_var")  # buffers of torch's batch and instance norms


class Frozen:
    """A norm that goes by its running statistics, in training too, and leaves them as they are."""

    def train(self, mode: bool = True) -> Self:
        return super().train(False)  # type: ignore[misc,no-any-return]


def build(path: str, args: Mapping[str, Any], seed: int) -> "nn.Module":
    """Make the module, initialised under ``seed``; torch's global generator is left as it was."""
    import torch

    factory = find(path, "model.factory", torch.nn.Module, "torch.nn.Module", or_function=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module = factory(**args)
        except Exception as error:
            raise ScenarioError(
                f"model.factory {path!r} failed with model.args = {dict(args)}: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(module, torch.nn.Module):
        raise ScenarioError(f"model.factory {path!r} made a {type(module).__name__}; it must make a torch.nn.Module")
    _refuse(module, path)
    return module


def numbers(module: "nn.Module") -> dict[str, "Tensor"]:
    """Tensors of a module that a flat model holds, by name, in its order: trained parameters, and after a norm's own the
    running statistics. A tensor that is used in several places is listed once."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        own = [(key, tensor) for key, tensor in part.named_parameters(recurse=False) if tensor.requires_grad]
        if not isinstance(part, Frozen):
            own += [(key, tensor) for key, tensor in part.named_buffers(recurse=False) if key in STATISTICS]
        for key, tensor in own:
            if all(tensor is not other for other in found.values()):
                found[f"{name}.{key}" if name else key] = tensor
    return found


def step_flops(module: "nn.Module", shape: Shape, *, backward: bool = False) -> float:
    """FLOPs of the matrix products and convolutions of a training step on one sample: three times those of a forward pass.

    With ``backward`` those of both passes are counted: gradients that nobody needs cost nothing.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        try:
            outputs = module.eval()(torch.zeros(2, *shape))  # of one alone a batch norm could not take the variance
        except Exception as error:
            raise ScenarioError(f"the module of model.factory cannot take samples of shape {shape}: {error}") from error
        if backward:
            outputs.sum().backward()
    return float(counter.get_total_flops()) / 2 * (1.0 if backward else 3.0)


def _refuse(module: "nn.Module", path: str) -> None:
    """Raise for a part that keeps statistics that cannot be averaged, or draws from torch's global generator."""
    from torch import nn

    from fedsim.learning.solvers.dropout import REPLACEABLE

    keyed = "its random numbers would depend on the order of the work; use torch.nn.Dropout, whose masks are keyed"
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
        inner = getattr(part, "dropout", 0.0) if isinstance(part, nn.RNNBase | nn.MultiheadAttention) else 0.0
        if draws or inner:
            raise ScenarioError(f"{where} that draws random numbers in training; {keyed}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ScenarioError(f"model.factory {path!r} makes a module without trainable parameters")
    if hasattr(module, "loss") and not inspect.ismethod(module.loss):
        raise ScenarioError(f"model.factory {path!r}: 'loss' must be a method loss(outputs, y) that returns one loss a sample")
