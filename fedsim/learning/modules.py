"""Modules of torch: built, refused, adapted, frozen, loaded from a file, and counted."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils.flop_counter import FlopCounterMode

from fedsim.common.errors import DataError, FedsimError, ScenarioError, home_of, nearest, place_of
from fedsim.common.files import reading, regular, sought
from fedsim.common.imports import find
from fedsim.learning.architecture import STATISTICS, LoRA, Patterns, Shape, matching
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.draws import generators_kept

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


_FIXED = "_fedsim_fixed"
"""Attribute of a part: names of its buffers that ``model.train`` leaves out."""


def build(path: str, args: Mapping[str, Any], seed: int) -> nn.Module:
    """Make the module, initialised under ``seed``; the process's global generators are left as
    they were.
    """
    factory = find(path, "model.factory", nn.Module, "torch.nn.Module", or_function=True)
    with settings_kept("when it makes the module"):
        try:
            module = seeded(lambda: factory(**args), seed)
        except Exception as error:
            raise ScenarioError(
                f"model.factory {path!r} failed with model.args = {dict(args)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(module, nn.Module):
        raise ScenarioError(
            f"model.factory {path!r} made a {type(module).__name__}; it must make a torch.nn.Module"
        )
    _refuse(module, path)
    _prepare(module)
    return module


@contextmanager
def settings_kept(where: str) -> Iterator[None]:
    """Refuse code of a user's module that changes settings of torch for the whole process; they
    are set back.
    """
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    changed = []
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            changed.append("threads (torch.set_num_threads)")
            torch.set_num_threads(threads)
        if torch.get_default_dtype() != dtype:
            changed.append("default dtype (torch.set_default_dtype)")
            torch.set_default_dtype(dtype)
    if changed:
        raise ScenarioError(
            f"model.factory changes torch's {' and '.join(changed)} {where}, which holds for "
            "the whole process; allowed is a "
            "module that leaves them, such as one of another dtype by module.double()"
        )


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module made while the process's global generators have a seed."""
    with generators_kept(seed):
        return make()


def _refuse(module: nn.Module, path: str) -> None:
    """Raise for a part whose size is unknown, or that keeps statistics that cannot be averaged."""
    for name, part in module.named_modules():
        where = f"model.factory {path!r}: the part {name or 'itself'!r} is a {type(part).__name__}"
        if isinstance(part, nn.modules.lazy.LazyModuleMixin):
            raise ScenarioError(
                f"{where}, whose size is not known before its first use; say it, as in "
                "torch.nn.Linear(64, 10)"
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise ScenarioError(
                f"{where}, made by torch.jit.script or torch.jit.trace, whose state and random "
                "draws fedsim cannot see; give "
                "the plain torch.nn.Module of which it was made"
            )
        if (
            getattr(part, "running_mean", None) is not None
            and getattr(part, "momentum", 0.1) is None
        ):
            raise ScenarioError(
                f"{where} with momentum=None, whose running statistics are means over all "
                "batches that it ever saw; devices' "
                "means over unlike numbers of batches cannot be averaged; give it a momentum, "
                "or track_running_stats=False"
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise ScenarioError(
                f"model.factory {path!r}: {name!r} is on the device 'meta', without numbers; "
                "allowed is 'cpu'"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ScenarioError(f"model.factory {path!r} makes a module without trainable parameters")
    if hasattr(module, "loss") and not inspect.ismethod(module.loss):
        raise ScenarioError(
            f"model.factory {path!r}: 'loss' must be a method loss(outputs, y) that returns "
            "one loss a sample"
        )


def _prepare(module: nn.Module) -> None:
    """Make constants of buffers that cannot be averaged, and let the module be copied."""
    for part in module.modules():
        for key, buffer in part.named_buffers(recurse=False):
            if buffer.requires_grad:
                part._buffers[key] = buffer.detach()
            if _is_number(buffer) and not torch.isfinite(buffer).all():  # a mask of -inf, say
                part._non_persistent_buffers_set.add(key)
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):  # it computes this attribute anew in each pass
                setattr(part, hook.name, getattr(part, hook.name).detach())


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module; one that cannot be copied raises ``ScenarioError``."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        for name, part in module.named_modules():
            for key, value in vars(part).items():
                if key != "_modules" and not _can_be_copied(value):
                    where = f"{name}.{key}" if name else key
                    raise ScenarioError(
                        "the module of model.factory cannot be copied, for its attribute "
                        f"{where!r}: {error}"
                    ) from error
        raise ScenarioError(f"the module of model.factory cannot be copied: {error}") from error


def _can_be_copied(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def numbers(module: nn.Module) -> dict[str, Tensor]:
    """Tensors of a module that a flat model holds, by name, in its order: trained parameters, and
    after a part's own its persistent buffers of floats (such as running statistics), unless they
    are fixed. A tensor that is used in several places is listed once.
    """
    found: dict[str, Tensor] = {}
    listed: set[int] = set()
    for name, part in module.named_modules():
        fixed = part._non_persistent_buffers_set.union(getattr(part, _FIXED, ()))
        own = [
            (key, tensor)
            for key, tensor in part.named_parameters(recurse=False)
            if tensor.requires_grad
        ]
        own += [
            (key, tensor)
            for key, tensor in part.named_buffers(recurse=False)
            if key not in fixed and _is_number(tensor)
        ]
        for key, tensor in own:
            if id(tensor) not in listed:
                listed.add(id(tensor))
                found[f"{name}.{key}" if name else key] = tensor
    return found


def real_shape(tensor: Tensor) -> Shape:
    """The shape of a tensor's numbers in a flat model, where a complex number is two."""
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


def as_real(tensor: Tensor) -> Tensor:
    """The same numbers in ``real_shape``."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_tensor_like(values: Tensor, like: Tensor) -> Tensor:
    """Numbers of a flat model in the shape of a tensor, complex if that is."""
    shaped = values.reshape(real_shape(like))
    return torch.view_as_complex(shaped) if like.is_complex() else shaped


def frozen_numbers(module: nn.Module) -> int:
    """Numbers of a module outside the flat model: parts that devices have once, and parts that
    never change.
    """
    held: dict[int, Tensor] = {id(tensor): tensor for tensor in module.parameters()}
    for part in module.modules():
        for key, buffer in part.named_buffers(recurse=False):
            if key not in part._non_persistent_buffers_set and _is_number(buffer):
                held[id(buffer)] = buffer
    return _count(held.values()) - _count(numbers(module).values())


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(real_shape(tensor)) for tensor in tensors)


def step_flops(module: nn.Module, shape: Shape, *, backward: bool = False) -> float:
    """FLOPs of the matrix products and convolutions of a training step on one sample: three times
    those of a forward pass, or with ``backward`` those of both passes, without gradients that are
    not needed.

    Counted on tensors that hold nothing, where recurrent layers and attention are products too;
    unless values are needed.
    """
    # of one alone a batch norm could not take the variance
    batch = example(2, shape, samples_dtype(module))
    for place in ("meta", "cpu"):
        try:
            own = copied(module).to(place).eval()
            with (
                generators_kept(),
                FlopCounterMode(display=False) as counter,
                torch.set_grad_enabled(backward),
            ):
                outputs = outputs_of(own, batch.to(place))
                if backward:
                    torch.autograd.backward(outputs.sum())
            break
        except FedsimError:
            raise
        except Exception as error:
            if place == "cpu":
                raise ScenarioError(
                    f"the module of model.factory cannot take samples of shape {tuple(shape)}: "
                    f"{error}{place_of(error)}"
                ) from error
    return float(counter.get_total_flops()) / 2 * (1.0 if backward else 3.0)


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a module; ``ScenarioError`` if they are no tensor."""
    outputs = module(x)
    if isinstance(outputs, Tensor):
        return outputs
    hint = ""
    if isinstance(outputs, Mapping):
        hint = f", such as outputs[{next(iter(outputs), 'logits')!r}]"
    elif isinstance(outputs, tuple | list):
        hint = ", such as outputs[0]"
    raise ScenarioError(
        f"the module of model.factory, {type(module).__name__}{home_of(type(module))}, gives a "
        f"{type(outputs).__name__} for a "
        "batch of samples; it must give a tensor [n, ...]; return the tensor of scores from "
        f"its forward{hint}"
    )


def samples_dtype(module: nn.Module) -> torch.dtype:
    """The dtype in which a module takes samples of numbers: that of its parameters of floats, if
    all are alike.
    """
    kinds = {each.dtype for each in module.parameters() if each.is_floating_point()}
    return kinds.pop() if len(kinds) == 1 else torch.float32


def example(samples: int, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """So many samples of a shape, all 0: int64 where they are tokens, else of a dtype."""
    return torch.zeros(
        samples, *shape, dtype=torch.long if isinstance(shape, TokenShape) else dtype
    )


def fit(module: nn.Module, lora: LoRA | None, train: Patterns | None, seed: int = 0) -> nn.Module:
    """The module, changed in place: adapters by a seed; trained are tensors that ``train`` names
    (None: adapters, or all).
    """
    if lora is not None:
        seeded(lambda: _adapt(module, lora), seed)
    if train is not None or lora is not None:
        _freeze(module, "*.lora_?" if train is None else train)
    return module


class LoRALinear(nn.Linear):
    """A dense layer with a low-rank adapter (``architecture.LoRA``); the layer's tensors keep
    their names.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.weight = layer.weight
        self.bias = layer.bias
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return (
            super().forward(x)
            + functional.linear(functional.linear(x, self.lora_A), self.lora_B) * self.scale
        )


def _adapt(module: nn.Module, lora: LoRA) -> nn.Module:
    layers = {name: part for name, part in module.named_modules() if type(part) is nn.Linear}
    if not layers:
        kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in module.modules()))
        raise ScenarioError(
            "model.lora is given, and the model has no torch.nn.Linear for an adapter, only "
            f"{kinds}"
        )
    chosen = matching(list(layers), lora.where, "model.lora.where", "layer")
    for name, layer in layers.items():
        if name in chosen:
            if not name:
                raise ScenarioError(
                    "model.lora: the model is a torch.nn.Linear; put it into a torch.nn.Sequential"
                )
            holder, _, own = name.rpartition(".")
            setattr(module.get_submodule(holder), own, LoRALinear(layer, lora.rank, lora.alpha))
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            # without gradients torch would go past its dense layers, and their adapters
            part.activation_relu_or_gelu = 0
    return module


def _freeze(module: nn.Module, patterns: Patterns) -> None:
    chosen = matching(list(numbers(module)), patterns, "model.train", "tensor")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in chosen)
    for name, part in module.named_modules():
        buffers = [key for key, _ in part.named_buffers(recurse=False)]
        fixed = {key for key in buffers if (f"{name}.{key}" if name else key) not in chosen}
        if type(part) in _BATCH_NORMS and fixed.intersection(STATISTICS):
            fixed.update(STATISTICS)
            part.register_forward_pre_hook(_as_in_tests)
        setattr(part, _FIXED, frozenset(fixed))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ScenarioError(
            f"model.train is {patterns!r}, which leaves no tensor to be trained by gradients"
        )


def _as_in_tests(part: nn.Module, args: object) -> None:
    """Have a norm go by its running statistics, in training too, and leave them as they are."""
    part.training = False


def load(module: nn.Module, path: str, root: Path | None) -> None:
    """Copy the arrays of ``model.file`` into the tensors of their names.

    Raises:
        DataError: there is no such file or tensor, or numbers are not finite.
    """
    from safetensors.torch import load_file

    place = sought(path, root)
    with reading(place, "model.file", "a .safetensors file"):
        arrays = load_file(regular(place))
    known = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    if not arrays:
        raise DataError(f"model.file: '{place}' has no tensors; the model has {', '.join(known)}")
    for name, array in arrays.items():
        if name not in known:
            names = f"{', '.join(known)}{nearest(name, known)}"
            shape = tuple(array.shape)
            raise DataError(
                f"model.file: '{place}' has {name!r} of shape {shape}, but the model has none; "
                f"it has {names}"
            )
        _fill(known[name], array, f"model.file: '{place}' has {name!r}")


def _fill(tensor: Tensor, array: Tensor, where: str) -> None:
    """Copy an array of a file into a tensor."""
    if (
        tuple(array.shape) == real_shape(tensor) != tuple(tensor.shape)
        and array.is_floating_point()
    ):
        array = torch.view_as_complex(array.double().contiguous())
    if array.shape != tensor.shape:
        raise DataError(
            f"{where} of shape {tuple(array.shape)}, for which the model has one of shape "
            f"{real_shape(tensor)}"
        )
    if _is_number(array) != _is_number(tensor) or array.is_complex() > tensor.is_complex():
        raise DataError(f"{where} of {array.dtype}, for which the model has one of {tensor.dtype}")
    is_wrong = ~torch.isfinite(array)
    if bool(is_wrong.any()) and not torch.equal(
        array.nan_to_num(1e30), tensor.to(array.dtype).nan_to_num(1e30)
    ):
        raise DataError(
            f"{where} with {int(is_wrong.sum())} of {array.numel()} numbers that are not "
            "finite (NaN or infinity); allowed are "
            "finite numbers"
        )
    with torch.no_grad():
        tensor.copy_(array)
