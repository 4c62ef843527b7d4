"""The plain reference: local SGD of any ``nn.Module`` by autograd, one device at a time: no bit depends on the cohort."""

import copy
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor, nn

from fedsim.errors import ScenarioError
from fedsim.learning.architecture import Architecture
from fedsim.learning.modules import numbers
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Descent, LocalSolve, ParameterStep, Solved, Solver
from fedsim.learning.solvers.context import LocalData, TrainingContext, contrastive_loss, parts_of, rules
from fedsim.learning.solvers.dropout import with_keyed_dropout

_APPLIED_AT_ONCE = 1 << 16  # numbers in the samples of one forward pass: activations then stay in the cache
_ALIGNED = 16  # samples: any number of these begins where a cache line does


class Reference(Solver):
    """Local SGD of a ``nn.Module``, which is copied once for each thread that computes with it.

    Its loss is ``losses`` (softmax cross-entropy without it), unless it has a method ``loss(outputs, y)`` that returns one loss
    a sample, [n]. ``dtype`` is that of the numbers; None: as the module has them, and samples in float32.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype | None = None,
        losses: Callable[..., Tensor] | None = None,
    ) -> None:
        self._dtype, self._threads = dtype, threading.local()
        self._template = with_keyed_dropout(copy.deepcopy(module)).to(device, dtype)
        for name, part in self._template.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.register_forward_pre_hook(partial(_refuse_single, name))
        self._is_image = any(isinstance(part, nn.Conv2d) for part in module.modules())
        if self._is_image:
            self._template = self._template.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._own_loss: Callable[..., Tensor] | None = getattr(self._template, "loss", losses)
        tensors = [(name, tuple(tensor.shape)) for name, tensor in numbers(self._template).items()]
        super().__init__(device, tensors, kernels(module))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_threads": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _threads=threading.local())

    def losses(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        return (self._own_loss or super().losses)(outputs, y, **options)

    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        module = self._own_copy()  # not in inference mode: a copy that is made there can never be trained
        with torch.inference_mode():
            return self._apply(module, weights, x)

    def solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        module = self._own_copy()
        with self.context(module, solve, descent) as (trained, context):
            constants, steps = parts_of(solve.constant(descent), trained), []
            for name, rule in rules(descent, trained).items():
                if (tensor := trained[name]).requires_grad:
                    shrinkage = rule.shrinkage(name in self.kernels, tensor.ndim)
                    steps.append(ParameterStep(tensor, rule, shrinkage, constants.get(name)))
            moved = [step.parameter for step in steps]
            for x, y in context.data:
                gradients = torch.autograd.grad(context.batch_loss(module(x), y), moved, materialize_grads=True)
                with torch.no_grad():
                    if descent.clip is not None:
                        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
                        gradients = tuple(each * (descent.clip / norm).clamp(max=1.0) for each in gradients)
                    for step, gradient in zip(steps, gradients, strict=True):
                        step.descend(gradient)
        found = flat_weights(list(trained.values()), solve.weights.dtype)
        for begin, end in descent.held:  # running statistics, which forward passes move
            found[begin:end] = solve.weights[begin:end]
        return Solved(found, context.train_loss)

    @contextmanager
    def context(
        self, module: nn.Module, solve: LocalSolve, descent: Descent
    ) -> Iterator[tuple[dict[str, Tensor], TrainingContext]]:
        """Load a device's start into a module to be trained: its tensors by name, and the batches and the loss."""
        term, x = solve.contrast if solve.batches.steps else None, solve.x
        apply = partial(self._apply, module, x=x)
        with nullcontext() if term is None else contrastive_loss(module, term, solve.weights, apply) as contrast:
            trained = _load(module.train(), solve.weights)
            data = LocalData(module, solve, x.to(self.device, self._dtype), solve.y.to(self.device), self._laid_out)
            yield trained, TrainingContext(solve, descent, trained, self.losses, data, contrast)

    def _own_copy(self) -> nn.Module:
        if not hasattr(self._threads, "module"):
            self._threads.module = copy.deepcopy(self._template)
        own: nn.Module = self._threads.module
        return own

    def _apply(self, module: nn.Module, weights: Weights, x: Tensor) -> Tensor:
        """The outputs of a module after loading these weights."""
        _load(module.eval(), weights)
        size = _APPLIED_AT_ONCE // max(1, math.prod(x.shape[1:])) // _ALIGNED * _ALIGNED
        pieces = torch.split(x, max(_ALIGNED, size))
        return torch.cat([module(self._laid_out(piece.to(self.device, self._dtype))) for piece in pieces])

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self._is_image and x.ndim == 4 else x


def _load(module: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """Copy a flat model into a module; a running variance below 0, which a server's step may have made, counts as 0."""
    own = numbers(module)
    load_weights(list(own.values()), weights)
    for name, tensor in own.items():
        if name.endswith("running_var"):
            tensor.clamp_(min=0.0)
    return own


def _refuse_single(name: str, part: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Refuse a batch in which a channel has a single value, and so no variance, for norms by the batch."""
    if args[0].numel() == args[0].shape[1] and (part.training or part.running_mean is None):
        raise ScenarioError(
            f"the module of model.factory: the part {name or 'itself'!r} is a {type(part).__name__}, which needs batches of "
            "two samples at least, and the last batch of a device has one; allowed is a training.batch_size that leaves no "
            "single sample over (one above every device's samples: full batches), or torch.nn.GroupNorm"
        )


def module_of(architecture: Architecture) -> nn.Module:
    """The layers, which are named and given as torch's, as a ``nn.Sequential``; its weights are whatever the memory held."""
    with torch.device("meta"):
        empty = nn.Sequential(*(getattr(nn, type(layer).__name__)(*astuple(layer)) for layer in architecture.layers))
    return empty.to_empty(device="cpu")


def flat_weights(parameters: Sequence[torch.Tensor], dtype: DTypeLike = np.float32) -> Weights:
    """Parameters as one vector [d], each in row-major order."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    return flat.cpu().numpy().astype(dtype, copy=False)


def load_weights(parameters: Sequence[torch.Tensor], weights: Weights) -> None:
    """Copy a flat model into parameters."""
    parts = torch.split(torch.tensor(weights), [parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))


def kernels(module: nn.Module) -> set[str]:
    """Names of the parameters that are kernels: weights of dense layers and convolutions."""
    kinds = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
    return {f"{name}.weight" if name else "weight" for name, part in module.named_modules() if isinstance(part, kinds)}
