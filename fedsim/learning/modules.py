"""Functions on torch modules: build, check, copy, add LoRA, freeze, apply, count FLOPs."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils.flop_counter import FlopCounterMode

from fedsim.common.errors import FedsimError, ScenarioError, home_of, place_of
from fedsim.common.imports import import_class
from fedsim.learning.architecture import STATISTICS, LoRA, Patterns, Shape, matching_names
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.draws import generators_kept

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_FIXED_BUFFERS = "_fedsim_fixed"
"""Attribute of a submodule with the names of its buffers that ``model.train`` excludes."""


def build(path: str, args: Mapping[str, Any], seed: int) -> nn.Module:
    """Build the torch module of ``model.factory``, so that it can be copied and averaged.

    Buffers that belong to a computation of gradients are detached, because torch cannot copy them.
    Buffers with values that are not finite, such as masks, are left out of the values that are sent
    and averaged. The states of the process's global generators are restored.

    Args:
        path: import path of a class or function, ``model.factory``.
        args: keyword arguments of the class or function, ``model.args``.
        seed: seed of the global generators while the module is built.

    Returns:
        The module.

    Raises:
        ScenarioError: the factory raises an error, or the module cannot be trained.
    """
    factory = import_class(path, "model.factory", nn.Module, "torch.nn.Module", or_function=True)
    with settings_kept("when it makes the module"):
        try:
            module = make_seeded(lambda: factory(**args), seed)
        except Exception as error:
            raise ScenarioError(
                f"model.factory {path!r} failed with model.args = {dict(args)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(module, nn.Module):
        raise ScenarioError(
            f"model.factory {path!r} made a {type(module).__name__}; it must make a torch.nn.Module"
        )
    _refuse_untrainable(module, path)
    _prepare_for_copies(module)
    return module


@contextmanager
def settings_kept(where: str) -> Iterator[None]:
    """Return a context that restores torch's global settings, and raises if code changed them.

    Args:
        where: text on the time of the change, such as "when it makes the module", for the error.

    Raises:
        ScenarioError: the code has changed the number of threads or the default dtype.
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


def make_seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module from seeded global random generators, whose states are restored afterwards.

    Args:
        make: function that returns the module.
        seed: the seed.
    """
    with generators_kept(seed):
        return make()


def _refuse_untrainable(module: nn.Module, path: str) -> None:
    """Raise ``ScenarioError`` if a user's module cannot be trained by federated averaging.

    Examples are lazy layers, scripted modules, and norms whose statistics cannot be averaged.

    Args:
        module: the module.
        path: ``model.factory``, for error messages.
    """
    for name, part in module.named_modules():
        where = f"model.factory {path!r}: the part {name or 'itself'!r} is a {type(part).__name__}"
        _refuse_untrainable_part(part, where)
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


def _refuse_untrainable_part(part: nn.Module, where: str) -> None:
    if isinstance(part, nn.modules.lazy.LazyModuleMixin):
        raise ScenarioError(
            f"{where}, whose size is not known before its first use; say it, as in "
            "torch.nn.Linear(64, 10)"
        )
    if isinstance(part, torch.jit.ScriptModule):
        raise ScenarioError(
            f"{where}, made by torch.jit.script or torch.jit.trace, whose state and random "
            "draws fedsim cannot see; give the plain torch.nn.Module of which it was made"
        )
    has_statistics = getattr(part, "running_mean", None) is not None
    if has_statistics and getattr(part, "momentum", 0.1) is None:
        raise ScenarioError(
            f"{where} with momentum=None, whose running statistics are means over all batches "
            "that it ever saw; devices' means over unlike numbers of batches cannot be averaged; "
            "give it a momentum, or track_running_stats=False"
        )


def _prepare_for_copies(module: nn.Module) -> None:
    """Make a user's module fit for copying, and for use as a flat model, in place.

    The flat model is one array of all values that are trained and sent. Buffers that are not
    finite, such as masks, are left out of it. Tensors that belong to a computation of gradients are
    detached, because torch could not copy them.
    """
    for part in module.modules():
        for key, buffer in part.named_buffers(recurse=False):
            if buffer.requires_grad:
                part._buffers[key] = buffer.detach()
            if is_number(buffer) and not torch.isfinite(buffer).all():
                # This buffer, for example a mask of -inf, is left out of the flat model, by which each
                # update would count as diverged: ``trained_tensors`` takes persistent buffers only.
                part._non_persistent_buffers_set.add(key)
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):  # torch cannot copy the attribute that it computes
                setattr(part, hook.name, getattr(part, hook.name).detach())


def copy_module(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module.

    Raises:
        ScenarioError: the module cannot be copied; the error names the attribute that prevents it,
            if one does.
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:
        cause = ""
        attribute = _attribute_without_copy(module)
        if attribute is not None:
            cause = f", for its attribute {attribute!r}"
        raise ScenarioError(
            f"the module of model.factory cannot be copied{cause}: {error}"
        ) from error


def _attribute_without_copy(module: nn.Module) -> str | None:
    """Return the name of a module's first attribute that cannot be copied; None if all can."""
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key != "_modules" and not _can_be_copied(value):
                return _join(name, key)
    return None


def _join(part_name: str, key: str) -> str:
    """Join the name of a submodule and the name of its tensor or attribute by a dot."""
    return f"{part_name}.{key}" if part_name else key


def _can_be_copied(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


def is_number(tensor: Tensor) -> bool:
    """Return whether a tensor holds real or complex numbers, and no integers or bools."""
    return tensor.is_floating_point() or tensor.is_complex()


def trained_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the trained and sent tensors of a module, whose values in order are its flat model.

    For each submodule these are its trained parameters, then its persistent float buffers (such as
    running statistics) that ``model.train`` does not exclude. A tensor that several submodules
    share is listed once.

    Returns:
        Torch's name -> tensor.
    """
    tensors: dict[str, Tensor] = {}
    listed: set[int] = set()  # ``id()`` of each listed tensor
    for name, part in module.named_modules():
        for key, tensor in _trained_of_part(part):
            if id(tensor) not in listed:
                listed.add(id(tensor))
                tensors[_join(name, key)] = tensor
    return tensors


def _trained_of_part(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each tensor of a submodule that is trained and sent."""
    for key, parameter in part.named_parameters(recurse=False):
        if parameter.requires_grad:
            yield key, parameter
    fixed = part._non_persistent_buffers_set.union(getattr(part, _FIXED_BUFFERS, ()))
    for key, buffer in part.named_buffers(recurse=False):
        if key not in fixed and is_number(buffer):
            yield key, buffer


def real_shape(tensor: Tensor) -> Shape:
    """Return the shape of a tensor's real values; a complex number has two, in a last dimension."""
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


def as_real(tensor: Tensor) -> Tensor:
    """Return a view of a tensor as real values: [*shape, 2] if it is complex, else the tensor."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_tensor_like(values: Tensor, like: Tensor) -> Tensor:
    """Reshape a slice of a model, one array of all values, to the shape of a tensor.

    Args:
        values: the slice; two values for each complex number.
        like: the tensor, whose shape the result has; the result is complex if ``like`` is.
    """
    shaped = values.reshape(real_shape(like))
    return torch.view_as_complex(shaped) if like.is_complex() else shaped


def count_frozen_numbers(module: nn.Module) -> int:
    """Count the values in a module's frozen tensors, which are neither trained nor sent."""
    return _count(frozen_tensors(module))


def frozen_tensors(module: nn.Module) -> list[Tensor]:
    """Return a module's frozen tensors, which are neither trained nor sent, in order."""
    tensors: dict[int, Tensor] = {id(tensor): tensor for tensor in module.parameters()}
    for part in module.modules():
        for key, buffer in part.named_buffers(recurse=False):
            if key not in part._non_persistent_buffers_set and is_number(buffer):
                tensors[id(buffer)] = buffer
    trained_ids = {id(tensor) for tensor in trained_tensors(module).values()}
    return [tensor for tensor_id, tensor in tensors.items() if tensor_id not in trained_ids]


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(real_shape(tensor)) for tensor in tensors)


def step_flops(module: nn.Module, shape: Shape, *, backward: bool = False) -> float:
    """Count the FLOPs of the matrix products and convolutions of a training step on one sample.

    The count is made on torch's device ``meta``, whose tensors have no values, and on which
    recurrent layers and attention are counted as products. A module that reads values is counted on
    the CPU.

    Args:
        module: the module, which is copied.
        shape: shape of a sample.
        backward: whether the backward pass is carried out and counted too, in which frozen tensors
            have no gradients. Otherwise the result is three times the count of the forward pass.

    Returns:
        The FLOPs of a step.

    Raises:
        ScenarioError: the module cannot take samples of this shape.
    """
    batch = example(2, shape, samples_dtype(module))  # a batch norm needs two for a variance
    for device in ("meta", "cpu"):
        try:
            flops = _count_flops(module, batch, device, backward=backward)
            break
        except FedsimError:
            raise
        except Exception as error:
            if device == "cpu":
                raise ScenarioError(
                    f"the module of model.factory cannot take samples of shape {tuple(shape)}: "
                    f"{error}{place_of(error)}"
                ) from error
    passes = 1.0 if backward else 3.0
    return flops / len(batch) * passes


def _count_flops(module: nn.Module, batch: Tensor, device: str, *, backward: bool) -> float:
    """Count the FLOPs of a forward pass, and of a backward pass if requested, on a torch device."""
    trial = copy_module(module).to(device).eval()
    with (
        generators_kept(),
        FlopCounterMode(display=False) as counter,
        torch.set_grad_enabled(backward),
    ):
        outputs = outputs_of(trial, batch.to(device))
        if backward:
            torch.autograd.backward(outputs.sum())
    return float(counter.get_total_flops())


def outputs_in_bf16(module: nn.Module, x: Tensor) -> Tensor:
    """Apply a module with float32 tensors to samples, in torch's mixed precision.

    Products are computed in bfloat16 and sums, such as norms, in float32.

    Args:
        module: the module.
        x: samples, [n, ...].

    Returns:
        The outputs, float32 [n, ...].
    """
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
        outputs = outputs_of(module, x)
    return outputs.float()


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """Apply a module to samples, and return its outputs.

    Args:
        module: the module.
        x: samples, [n, ...].

    Raises:
        ScenarioError: the outputs are no tensor.
    """
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
    """Return the dtype of samples (other than tokens) that a module takes.

    This is the dtype of the module's float parameters if they have only one, else float32.
    """
    dtypes = set()
    for parameter in module.parameters():
        if parameter.is_floating_point():
            dtypes.add(parameter.dtype)
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def example(samples: int, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a batch of zeros of the right shape, to try a module with.

    Args:
        samples: count of samples.
        shape: shape of a sample.
        dtype: dtype of the batch; not used for tokens, whose batch is int64.

    Returns:
        [samples, *shape].
    """
    if isinstance(shape, TokenShape):
        dtype = torch.long
    return torch.zeros(samples, *shape, dtype=dtype)


def adapt_and_freeze(
    module: nn.Module, lora: LoRA | None, train: Patterns | None, seed: int = 0
) -> nn.Module:
    """Add low-rank adapters to a module, and freeze the tensors that are not trained, in place.

    Args:
        module: the module.
        lora: settings of the adapters; None for no adapters.
        train: patterns of the tensors that are trained; None for the adapters, or for all tensors
            if there are no adapters.
        seed: seed of the adapters' initial values.

    Returns:
        The module.

    Raises:
        ScenarioError: a pattern matches nothing, no layer can have an adapter, or no tensor is left
            to be trained.
    """
    adapters = "*.lora_?"  # pattern of the names of the adapters' tensors
    if lora is not None and isinstance(module, Adaptable):
        adapters = module.adapters
        make_seeded(lambda: module.adapt(lora), seed)
    elif lora is not None:
        make_seeded(lambda: _adapt(module, lora), seed)
    if train is not None or lora is not None:
        _freeze(module, adapters if train is None else train)
    return module


class Adaptable(nn.Module):
    """Base of a module that adds low-rank adapters to its own layers, by a package such as peft.

    A subclass implements ``adapt``, and sets ``adapters``. For modules of all other classes,
    fedsim replaces dense layers by ``LoRALinear``.
    """

    adapters: ClassVar[str]
    """Pattern of the names of the adapters' tensors."""

    def adapt(self, lora: LoRA) -> "nn.Module":
        """Add adapters to the module in place, and return it.

        The adapters' values are drawn from torch's global generator.

        Args:
            lora: settings of the adapters.

        Raises:
            ScenarioError: no layer can have an adapter, or a pattern matches none.
        """
        raise NotImplementedError


class LoRALinear(nn.Linear):
    """Dense layer with a low-rank adapter: W x + b + alpha / rank B A x.

    The layer takes over the tensors of an existing dense layer, with their names. The adapter's
    tensors A and B are ``lora_A`` and ``lora_B``.

    Args:
        layer: the dense layer.
        rank: rank of the adapter.
        alpha: numerator of alpha / rank, the factor of the product B A x.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.weight = layer.weight
        self.bias = layer.bias
        self.scale = alpha / rank
        device = "meta" if layer.weight.is_meta else "cpu"
        self.lora_A = nn.Parameter(torch.empty(rank, layer.in_features, device=device))
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        adapter = functional.linear(functional.linear(x, self.lora_A), self.lora_B)
        return super().forward(x) + adapter * self.scale


def _adapt(module: nn.Module, lora: LoRA) -> nn.Module:
    """Replace dense layers of a module by layers with adapters, in place, and return the module.

    Args:
        module: the module.
        lora: settings of the adapters; ``where`` has the patterns of the layers' names.

    Raises:
        ScenarioError: no layer can have an adapter, or a pattern matches none.
    """
    # without subclasses, whose forward pass a ``LoRALinear`` would replace
    layers = {name: part for name, part in module.named_modules() if type(part) is nn.Linear}
    if not layers:
        kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in module.modules()))
        raise ScenarioError(
            "model.lora is given, and the model has no torch.nn.Linear for an adapter, only "
            f"{kinds}"
        )
    adapted = matching_names(list(layers), lora.where, "model.lora.where", "layer")
    for name, layer in layers.items():
        if name not in adapted:
            continue
        if not name:  # the module itself, which has no parent in which it could be replaced
            raise ScenarioError(
                "model.lora: the model is a torch.nn.Linear; put it into a torch.nn.Sequential"
            )
        parent, _, attribute = name.rpartition(".")
        adapter = LoRALinear(layer, lora.rank, lora.alpha)
        setattr(module.get_submodule(parent), attribute, adapter)
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            # torch's fast path, without gradients, would skip the dense layers and their adapters
            part.activation_relu_or_gelu = 0
    return module


def _freeze(module: nn.Module, patterns: Patterns) -> None:
    """Exclude all tensors of a module from training that match no pattern, in place.

    A batch norm whose running statistics are excluded normalises by them in training, too.

    Args:
        module: the module.
        patterns: ``model.train``, one pattern or several for names of tensors.

    Raises:
        ScenarioError: a pattern matches no tensor, or no tensor is left to be trained.
    """
    trained = matching_names(list(trained_tensors(module)), patterns, "model.train", "tensor")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    for name, part in module.named_modules():
        fixed = set()  # names of the part's buffers that do not change
        for key, _ in part.named_buffers(recurse=False):
            if _join(name, key) not in trained:
                fixed.add(key)
        if type(part) in _BATCH_NORMS and fixed.intersection(STATISTICS):
            # only evaluation mode stops a norm from changing a statistic, and it stops both
            fixed.update(STATISTICS)
            part.register_forward_pre_hook(_set_to_evaluation)
        setattr(part, _FIXED_BUFFERS, frozenset(fixed))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ScenarioError(
            f"model.train is {patterns!r}, which leaves no tensor to be trained by gradients"
        )


def _set_to_evaluation(part: nn.Module, args: object) -> None:
    """Set a norm to evaluation mode before each forward pass, so that its statistics stay.

    torch calls this function as a hook of the norm.
    """
    part.training = False
