"""The plain reference: local SGD of any ``nn.Module`` by autograd, one device at a time: no bit
depends on the cohort.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor, nn

from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.learning.architecture import Architecture
from fedsim.learning.draws import KeyedDraws
from fedsim.learning.modules import (
    as_real,
    as_tensor_like,
    copied,
    numbers,
    outputs_of,
    real_shape,
    samples_dtype,
)
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Descent, LocalSolve, ParameterStep, Solved, Solver
from fedsim.learning.solvers.context import (
    LocalData,
    TrainingContext,
    contrastive_loss,
    parts_of,
    rules,
)
from fedsim.learning.solvers.dropout import step_key, with_keyed_dropout
from fedsim.learning.solvers.watched import ModuleCopy, Watch, plainly

# numbers in the samples of one forward pass: activations then stay in the cache
_APPLIED_AT_ONCE = 1 << 16
_ALIGNED = 16  # samples: any number of these begins where a cache line does
_HALVES = (torch.float16, torch.bfloat16)
_REPEATED = 3  # steps
_TEST_KEY = 0x7E57  # of draws in tests, which are the same for every model and device
_LOSS_KEY = 0x7E58  # of draws in the loss of tests


class Reference(Solver):
    """Local SGD of a ``nn.Module``, which is copied for each thread that computes with it.

    Its loss is ``losses`` (softmax cross-entropy without it), unless it has a method
    ``loss(outputs, y)`` that returns one loss a sample, [n]. ``dtype`` is that of the numbers;
    None: as the module has them, with samples in ``samples_dtype``.

    Attributes:
        watch: the copies; a trial of the module (``probe``) sets what to watch.
        keyed: whether random draws are keyed, in ``training`` and in ``testing``; set by the trial.
        drawn: whether there were keyed draws.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype | None = None,
        losses: Callable[..., Tensor] | None = None,
    ) -> None:
        self._dtype = dtype
        self._samples_dtype = dtype or samples_dtype(module)
        self.keyed = {"training": False, "testing": False}
        self.drawn = {"training": False, "testing": False}
        self._template = with_keyed_dropout(copied(module)).to(device, dtype)
        for name, part in self._template.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.register_forward_pre_hook(partial(_refuse_single, name))
        self._is_image = any(isinstance(part, nn.Conv2d) for part in module.modules())
        if self._is_image:
            self._template = self._template.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _tie_again(module, self._template)
        self.watch = Watch(self._template, device)
        self._has_loss = hasattr(self._template, "loss")
        self._losses = losses
        tensors = [(name, real_shape(tensor)) for name, tensor in numbers(self._template).items()]
        super().__init__(device, tensors, kernels(module))

    def losses(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        if self._losses is not None:
            return self._losses(outputs, y, **options)
        if outputs.dtype in _HALVES:
            outputs = outputs.float()
        if y.is_floating_point():
            y = y.to(outputs.dtype)
        return super().losses(outputs, y, **options)

    @property
    def has_usual_loss(self) -> bool:
        """Whether it is neither the module's nor that of an objective."""
        return not self._has_loss and self._losses is None

    def losses_of(
        self, copied_module: ModuleCopy, outputs: Tensor, y: Tensor, **options: Any
    ) -> Tensor:
        """The loss of each sample, [n], by the method of a copy of the module, if it has one."""
        if not self._has_loss:
            return self.losses(outputs, y, **options)
        found: Tensor = copied_module.module.loss(outputs, y, **options)  # type: ignore[operator]
        return found

    def tested_losses(self, weights: Weights, outputs: Tensor, y: Tensor) -> Tensor:
        if not self._has_loss:
            return super().tested_losses(weights, outputs, y)

        def judged(module: ModuleCopy) -> Tensor:
            return self.judged(module, weights, outputs, y)

        return self.watch.use(judged, same_bits, "in the loss of a test", trains=False)

    def tested_losses_each(
        self, weights: Sequence[Weights], outputs: Sequence[Tensor], y: Tensor
    ) -> Tensor:
        if not self._has_loss:
            return super().tested_losses_each(weights, outputs, y)
        targets = torch.split(y, [len(each) for each in outputs])
        work = zip(weights, outputs, targets, strict=True)
        return torch.cat([self.tested_losses(*each) for each in work])

    def judged(
        self, copied_module: ModuleCopy, weights: Weights, outputs: Tensor, y: Tensor
    ) -> Tensor:
        """The loss of each sample of a test by a copy of the module with these weights, [n],
        without gradients.
        """
        with torch.no_grad(), self._testing(copied_module, weights) as draws:
            if draws is not None:
                draws.seed(_LOSS_KEY)
            return self.losses_of(copied_module, outputs.clone(), y)

    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        def tested(module: ModuleCopy) -> Tensor:
            return self.tested(module, weights, x)

        return self.watch.use(tested, same_bits, "in a test", trains=False)

    def tested(self, module: ModuleCopy, weights: Weights, x: Tensor) -> Tensor:
        """The outputs of a copy of the module for samples, with these weights."""
        # its draws could not be keyed there
        mode = torch.no_grad if self.keyed["testing"] else torch.inference_mode
        with mode():
            return self._apply(module, weights, x)

    def solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        def trained(module: ModuleCopy) -> Solved:
            return self.trained(module, solve, descent)

        device, number, _ = solve.task
        where = f"in the training of device {device} in round {number}"
        self._repeat_first(solve, descent, where)
        return self.watch.use(trained, same_results, where, trains=True)

    def _repeat_first(self, solve: LocalSolve, descent: Descent, where: str) -> None:
        """Refuse a module that gives other numbers when it repeats the first steps of this
        thread's first training.
        """
        if not self.watch.is_on or not self.watch.is_first:
            return
        begin = first_steps(solve, _REPEATED)
        results = [
            plainly(lambda: self.trained(self.watch.fresh(), begin, descent), where)
            for _ in range(2)
        ]
        if not same_results(*results):
            raise SimulationError(repeats_message(where))

    def trained(self, copied_module: ModuleCopy, solve: LocalSolve, descent: Descent) -> Solved:
        """The result of a training on a copy of the module."""
        module = copied_module.module
        with self.context(copied_module, solve, descent) as (trained, context):
            constants = parts_of(solve.constant(descent), trained)
            steps = []
            for name, rule in rules(descent, trained).items():
                if (tensor := trained[name]).requires_grad:
                    shrinkage = rule.shrinkage(name in self.kernels, tensor.ndim)
                    steps.append(ParameterStep(tensor, rule, shrinkage, constants.get(name)))
            moved = [step.parameter for step in steps]
            for x, y in context.data:
                loss = context.batch_loss(outputs_of(module, x), y)
                gradients = torch.autograd.grad(loss, moved, materialize_grads=True)
                with torch.no_grad():
                    if descent.clip is not None:
                        norm = torch.linalg.vector_norm(
                            torch.stack([torch.linalg.vector_norm(each) for each in gradients])
                        )
                        gradients = tuple(
                            each * (descent.clip / norm).clamp(max=1.0) for each in gradients
                        )
                    for step, gradient in zip(steps, gradients, strict=True):
                        step.descend(gradient)
        found = flat_weights(list(copied_module.moved().values()), solve.weights.dtype)
        for begin, end in descent.held:  # running statistics, which forward passes move
            found[begin:end] = solve.weights[begin:end]
        return Solved(found, context.train_loss)

    @contextmanager
    def context(
        self, copied_module: ModuleCopy, solve: LocalSolve, descent: Descent
    ) -> Iterator[tuple[dict[str, Tensor], TrainingContext]]:
        """Load a device's start into a module to be trained: its tensors by name, and the
        batches and the loss.
        """
        term = solve.contrast if solve.batches.steps else None
        x = solve.x
        module = copied_module.module
        apply = partial(self._apply, copied_module, x=x)
        draws = KeyedDraws() if self.keyed["training"] else None
        with (
            nullcontext() if draws is None else draws,
            nullcontext()
            if term is None
            else contrastive_loss(module, term, solve.weights, apply) as contrast,
        ):
            trained = _load(copied_module, solve.weights)
            module.train()
            losses = partial(self.losses_of, copied_module)
            data = LocalData(
                module, solve, self._on_device(x), solve.y.to(self.device), self._laid_out, draws
            )
            yield trained, TrainingContext(solve, descent, trained, losses, data, contrast)
        self.drawn["training"] |= draws is not None and draws.drawn

    def _apply(self, copied_module: ModuleCopy, weights: Weights, x: Tensor) -> Tensor:
        """The outputs of a module after loading these weights."""
        module = copied_module.module
        size = _APPLIED_AT_ONCE // max(1, math.prod(x.shape[1:])) // _ALIGNED * _ALIGNED
        outputs = []
        with self._testing(copied_module, weights) as draws:
            for number, piece in enumerate(torch.split(x, max(_ALIGNED, size))):
                if draws is not None:
                    draws.seed(step_key(_TEST_KEY, number))
                outputs.append(outputs_of(module, self._laid_out(self._on_device(piece))))
        return torch.cat(outputs)

    @contextmanager
    def _testing(self, copied_module: ModuleCopy, weights: Weights) -> Iterator[KeyedDraws | None]:
        """Load weights into a module in evaluation mode, which may not change them; gives its
        draws, if they are keyed.
        """
        trained = _load(copied_module, weights)
        copied_module.module.eval()
        versions = [tensor._version for tensor in trained.values()]
        draws = KeyedDraws() if self.keyed["testing"] else None
        with nullcontext() if draws is None else draws:
            yield draws
        self.drawn["testing"] |= draws is not None and draws.drawn
        for (name, tensor), version in zip(trained.items(), versions, strict=True):
            if tensor._version != version or copied_module.is_replaced(name):
                raise ScenarioError(
                    f"the module of model.factory changes its tensor {name!r} in a test (in "
                    "evaluation mode); allowed are "
                    "changes in training (if self.training: ...)"
                )

    def _on_device(self, x: Tensor) -> Tensor:
        """Samples as the module takes them: on its device, and numbers in its dtype."""
        return x.to(self.device, self._samples_dtype if x.is_floating_point() else self._dtype)

    def _laid_out(self, x: Tensor) -> Tensor:
        return (
            x.contiguous(memory_format=torch.channels_last) if self._is_image and x.ndim == 4 else x
        )


def _load(module: ModuleCopy, weights: Weights) -> dict[str, Tensor]:
    """Copy a flat model into a module; a running variance below 0, which a server's step may
    have made, counts as 0.
    """
    own = module.restore()
    load_weights(list(own.values()), weights)
    for name, tensor in own.items():
        if name.endswith("running_var"):
            tensor.clamp_(min=0.0)
    return own


class SingleSampleError(ScenarioError):
    """A norm by the batch meets a batch of one sample; ``part``: the norm, in words."""

    def __init__(self, part: str) -> None:
        super().__init__(
            f"the module of model.factory: {part}, which needs batches of two samples at "
            "least, and the last batch of a device "
            'has one; allowed is training.last_batch = "drop" or "merge", a '
            "training.batch_size that leaves no single sample "
            "over, or torch.nn.GroupNorm"
        )
        self.part = part

    def __reduce__(self) -> Any:
        return type(self), (self.part,)


def _refuse_single(name: str, part: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Refuse a batch in which a channel has a single value, and so no variance, for norms by the
    batch.
    """
    if args[0].numel() == args[0].shape[1] and (part.training or part.running_mean is None):
        raise SingleSampleError(f"the part {name or 'itself'!r} is a {type(part).__name__}")


def module_of(architecture: Architecture) -> nn.Module:
    """The layers, which are named and given as torch's, as a ``nn.Sequential``; its weights are
    whatever the memory held.
    """
    with torch.device("meta"):
        empty = nn.Sequential(
            *(getattr(nn, type(layer).__name__)(*astuple(layer)) for layer in architecture.layers)
        )
    return empty.to_empty(device="cpu")


def flat_weights(parameters: Sequence[torch.Tensor], dtype: DTypeLike = np.float32) -> Weights:
    """Parameters as one vector [d], each in row-major order."""
    flat = torch.cat([as_real(parameter.detach()).reshape(-1) for parameter in parameters])
    if flat.dtype in _HALVES:
        flat = flat.float()
    return flat.cpu().numpy().astype(dtype, copy=False)


def load_weights(parameters: Sequence[torch.Tensor], weights: Weights) -> None:
    """Copy a flat model into parameters."""
    parts = torch.split(
        torch.tensor(weights), [math.prod(real_shape(parameter)) for parameter in parameters]
    )
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(as_tensor_like(part, parameter))


def same_results(one: Solved, other: Solved) -> bool:
    """Whether two trainings had the same result, to the bit."""
    losses = np.array([one.train_loss, other.train_loss])
    return (
        one.weights.tobytes() == other.weights.tobytes()
        and losses[:1].tobytes() == losses[1:].tobytes()
    )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same numbers, to the bit."""
    bits = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(*bits)


def first_steps(solve: LocalSolve, steps: int) -> LocalSolve:
    """The same work, cut off after so many steps."""
    batches = solve.batches
    part = replace(batches, rows=batches.rows[:steps], counts=batches.counts[:steps], last_epoch=0)
    return replace(solve, batches=part)


def repeats_message(where: str) -> str:
    """The message for a module whose numbers cannot be had again."""
    return (
        "the module of model.factory gives other numbers when the same steps are repeated "
        f"{where}: it draws from a generator "
        "that nobody seeds (numpy.random.default_rng(), os.urandom), or looks at a clock; "
        "allowed are torch's draws in "
        "forward, which are keyed by device and step"
    )


def _tie_again(module: nn.Module, moved: nn.Module) -> None:
    """Let buffers be one tensor where they were one in ``module``, of which ``moved`` was made."""
    firsts: dict[int, Tensor] = {}
    for part, other in zip(module.modules(), moved.modules(), strict=False):
        for key, buffer in part._buffers.items():
            if buffer is not None and type(other) is type(part):
                first = firsts.setdefault(id(buffer), getattr(other, key))
                other._buffers[key] = first


def kernels(module: nn.Module) -> set[str]:
    """Names of the parameters that are kernels: weights of dense layers and convolutions."""
    kinds = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
    return {
        f"{name}.weight" if name else "weight"
        for name, part in module.named_modules()
        if isinstance(part, kinds)
    }
