"""The reference solver: local SGD of any ``nn.Module`` by autograd, one device at a time."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
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
from fedsim.learning.host_copies import FlatModel, on_device, on_host, to_host
from fedsim.learning.modules import (
    as_real,
    as_tensor_like,
    copy_module,
    outputs_in_bf16,
    outputs_of,
    real_shape,
    samples_dtype,
    trained_tensors,
)
from fedsim.learning.scratch import Weights
from fedsim.learning.solvers.base import Descent, LocalSolve, ParameterStep, Solved, Solver
from fedsim.learning.solvers.context import (
    LocalData,
    TrainingContext,
    contrastive_loss,
    parts_of,
    rules,
)
from fedsim.learning.solvers.dropout import step_key, with_keyed_dropout
from fedsim.learning.solvers.watched import ModuleCopy, Watch, run_user_code

# count of values in the samples of one forward pass, so that activations stay in the cache
_APPLIED_AT_ONCE = 1 << 16
_GROUP = 16  # count of samples whose float32 values always fill whole cache lines (64 bytes)
_HALF_DTYPES = (torch.float16, torch.bfloat16)
_REPEATED_STEPS = 3  # count of first steps that each thread trains twice, to compare results
_TEST_KEY = 0x7E57  # key of random draws in tests, equal for all models and devices
_LOSS_KEY = 0x7E58  # key of random draws in the loss of tests


class Reference(Solver):
    """Solver of any ``nn.Module`` by autograd, whose results other solvers must reproduce.

    Each thread computes with its own copy of the module. If the module has a method ``loss(outputs,
    y)``, this method computes the loss of each sample.

    Args:
        module: the module, which is copied and not changed.
        device: the torch device of the computation.
        dtype: dtype of weights and samples; None for the module's own dtypes.
        losses: computes the loss of each sample, [n]; None for softmax cross-entropy.

    Attributes:
        watch: the threads' copies of the module, and checks that they carry no state from device to
            device; ``probe`` turns the checks on.
        keyed: ``training`` and ``testing`` -> whether torch's random draws in the module are seeded
            by a key, so that they can be repeated; set by ``probe``.
        drawn: ``training`` and ``testing`` -> whether the module has drawn random numbers so far.
        forward: applies the module to a batch of a training, in the precision of the training.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype | None = None,
        losses: Callable[..., Tensor] | None = None,
    ) -> None:
        self._samples_dtype = dtype or samples_dtype(module)
        self.keyed = {"training": False, "testing": False}
        self.drawn = {"training": False, "testing": False}
        # the module of which each thread makes its copies
        self._template = with_keyed_dropout(copy_module(module)).to(device, dtype)
        for name, part in self._template.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):  # needs two samples in a batch
                part.register_forward_pre_hook(partial(_refuse_single, name))
        self._is_image = any(isinstance(part, nn.Conv2d) for part in module.modules())
        if self._is_image:  # convolutions are faster with the channels of a pixel side by side
            self._template = self._template.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _share_buffers_again(module, self._template)  # ``to`` has given each buffer its own memory
        self.watch = Watch(self._template, device)
        self._has_loss = hasattr(self._template, "loss")
        self._losses = losses
        tensors = [
            (name, real_shape(tensor)) for name, tensor in trained_tensors(self._template).items()
        ]
        self.forward: Callable[[nn.Module, Tensor], Tensor] = outputs_of  # see ``use_bf16``
        super().__init__(device, tensors, kernels(module))

    def use_bf16(self) -> None:
        """Let all later trainings compute products in bfloat16.

        Raises:
            ScenarioError: the module has tensors of other types than float32.
        """
        for name, tensor in self._template.named_parameters():
            if tensor.dtype != torch.float32:
                kind = str(tensor.dtype).removeprefix("torch.")
                raise ScenarioError(
                    f"training.precision is 'bf16', but the tensor {name!r} of the model is "
                    f"{kind}; allowed are models in float32, and training.precision = 'float32'"
                )
        self.forward = outputs_in_bf16

    @property
    def in_bf16(self) -> bool:
        """Whether products in training are computed in bfloat16."""
        return self.forward is outputs_in_bf16

    def losses(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        if self._losses is not None:
            return self._losses(outputs, y, **options)
        if outputs.dtype in _HALF_DTYPES:
            outputs = outputs.float()
        if y.is_floating_point():
            y = y.to(outputs.dtype)
        return super().losses(outputs, y, **options)

    @property
    def has_usual_loss(self) -> bool:
        """Whether the loss is fedsim's cross-entropy; False if module or objective define one."""
        return not self._has_loss and self._losses is None

    def losses_of(
        self, copied_module: ModuleCopy, outputs: Tensor, y: Tensor, **options: Any
    ) -> Tensor:
        """Compute the loss of each sample, by the module's own method ``loss`` if it has one.

        Args:
            copied_module: the copy of the module.
            outputs: outputs of the module for the samples.
            y: targets of the samples.
            **options: options of ``torch.nn.functional.cross_entropy``.

        Returns:
            The losses, float [n].
        """
        if not self._has_loss:
            return self.losses(outputs, y, **options)
        losses: Tensor = copied_module.module.loss(outputs, y, **options)  # type: ignore[operator]
        return losses

    def tested_losses(self, weights: FlatModel, outputs: Tensor, y: Tensor) -> Tensor:
        if not self._has_loss:
            return super().tested_losses(weights, outputs, y)

        def evaluate(copied_module: ModuleCopy) -> Tensor:
            return self.evaluate_losses(copied_module, weights, outputs, y)

        return self.watch.use(evaluate, same_bits, "in the loss of a test", trains=False)

    def tested_losses_each(
        self, weights: Sequence[FlatModel], outputs: Sequence[Tensor], y: Tensor
    ) -> Tensor:
        if not self._has_loss:
            return super().tested_losses_each(weights, outputs, y)
        targets = torch.split(y, [len(model_outputs) for model_outputs in outputs])
        losses = []
        for test in zip(weights, outputs, targets, strict=True):
            losses.append(self.tested_losses(*test))
        return torch.cat(losses)

    def evaluate_losses(
        self, copied_module: ModuleCopy, weights: FlatModel, outputs: Tensor, y: Tensor
    ) -> Tensor:
        """Compute the loss of each sample of a test, without gradients.

        Args:
            copied_module: the copy of the module.
            weights: the model, float [d].
            outputs: outputs of the model for the samples.
            y: targets of the samples.

        Returns:
            The losses, float [n].
        """
        with torch.no_grad(), self._testing(copied_module, weights) as draws:
            if draws is not None:
                draws.seed(_LOSS_KEY)
            # copies, as a module may change its inputs in place
            return self.losses_of(copied_module, outputs.clone(), y.clone())

    def outputs(self, weights: FlatModel, x: Tensor) -> Tensor:
        def test(copied_module: ModuleCopy) -> Tensor:
            return self.test(copied_module, weights, x)

        return self.watch.use(test, same_bits, "in a test", trains=False)

    def test(self, copied_module: ModuleCopy, weights: FlatModel, x: Tensor) -> Tensor:
        """Apply a copy of the module to samples, without gradients.

        Args:
            copied_module: the copy of the module.
            weights: the model, float [d].
            x: the samples, [n, *shape].

        Returns:
            The outputs, [n, ...].
        """
        # ``KeyedDraws`` seeds each of torch's random operations by a key. In inference mode it gets
        # a layer such as ``nn.LSTM`` as one operation, whose inner draws it cannot seed.
        mode = torch.no_grad if self.keyed["testing"] else torch.inference_mode
        with mode():
            return self._apply(copied_module, weights, x)

    def solve(self, inputs: LocalSolve, descent: Descent) -> Solved:
        def train(copied_module: ModuleCopy) -> Solved:
            return self.train(copied_module, inputs, descent)

        self._repeat_first_steps(inputs, descent)
        return self.watch.use(train, same_results, inputs.task.where, trains=True)

    def _repeat_first_steps(self, solve: LocalSolve, descent: Descent) -> None:
        """Carry out the first steps of a training twice, to find draws that cannot be repeated.

        Only the first training of each thread is tried. Later calls, and calls for fedsim's own
        modules, do nothing.

        Args:
            solve: the device's start model, samples and batches.
            descent: the rule of an SGD step.

        Raises:
            SimulationError: the results differ, so the module draws numbers that are not keyed.
        """
        if not self.watch.is_on or self.watch.has_trained:
            return
        self.watch.note_training()
        short_training = first_steps(solve, _REPEATED_STEPS)
        where = solve.task.where

        def train() -> Solved:
            return self.train(self.watch.fresh(), short_training, descent)

        if not same_results(run_user_code(train, where), run_user_code(train, where)):
            raise SimulationError(repeats_message(where))

    def train(self, copied_module: ModuleCopy, solve: LocalSolve, descent: Descent) -> Solved:
        """Train a copy of the module on one device's samples.

        Args:
            copied_module: the copy of the module.
            solve: the device's start model, samples and batches.
            descent: the rule of an SGD step.
        """
        module = copied_module.module
        with self.training_context(copied_module, solve, descent) as (trained, context):
            steps = self._steps(solve, descent, trained)
            parameters = [step.parameter for step in steps]
            for x, y in context.data:  # also sets the keys of the step's random draws
                loss = context.batch_loss(self.forward(module, x), y)
                gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
                with torch.no_grad():
                    if descent.clip is not None:
                        gradients = _clip(gradients, descent.clip)
                    for step, gradient in zip(steps, gradients, strict=True):
                        step.descend(gradient)
        # ``flat_result`` resets held tensors to the start: forward passes may have changed their
        # running statistics
        weights = flat_result(list(copied_module.trained_tensors().values()), solve, descent)
        return Solved(weights, context.train_loss)

    def _steps(
        self, solve: LocalSolve, descent: Descent, trained: dict[str, Tensor]
    ) -> list[ParameterStep]:
        """Return, for each trained parameter, the object that takes the parameter's SGD steps.

        Args:
            solve: the device's start model, samples and batches.
            descent: the rule of an SGD step.
            trained: name -> tensor of the flat model.
        """
        constants = parts_of(solve.constant(descent), trained)
        steps = []
        for name, rule in rules(descent, trained).items():
            tensor = trained[name]
            if tensor.requires_grad:
                is_kernel = name in self.kernels
                shrinkage = rule.shrinkage(is_kernel=is_kernel, dimensions=tensor.ndim)
                steps.append(ParameterStep(tensor, rule, shrinkage, constants.get(name)))
        return steps

    @contextmanager
    def training_context(
        self, copied_module: ModuleCopy, solve: LocalSolve, descent: Descent
    ) -> Iterator[tuple[dict[str, Tensor], TrainingContext]]:
        """Return a context for a training of a copy of the module, which holds the start weights.

        If ``keyed["training"]`` is True, torch's random draws in this context are seeded by the
        key of the training and the index of the step. At the end of the context,
        ``drawn["training"]`` is then set to True if the module has drawn random numbers. ``probe``
        reads ``drawn``.

        Args:
            copied_module: the copy of the module.
            solve: the device's start model, samples and batches.
            descent: the rule of an SGD step.

        Yields:
            Name -> tensor that is trained and sent, and the context with batches and loss.
        """
        module = copied_module.module
        draws = KeyedDraws() if self.keyed["training"] else None
        with ExitStack() as stack:
            if draws is not None:
                stack.enter_context(draws)
            contrastive_term = None
            if solve.contrast is not None and solve.batches.steps:
                apply = partial(self._apply, copied_module, x=solve.x)
                context = contrastive_loss(module, solve.contrast, solve.weights, apply)
                contrastive_term = stack.enter_context(context)
            # after the contrastive term, whose models overwrite the weights of the copy
            trained = _load(copied_module, solve.weights)
            module.train()
            losses_of = partial(self.losses_of, copied_module)
            x = self._as_input(solve.x)
            data = LocalData(module, solve, x, solve.y, self._lay_out, draws)
            yield (
                trained,
                TrainingContext(
                    solve, descent, trained, losses_of, data, contrastive_term, self.forward
                ),
            )
        self.drawn["training"] |= draws is not None and draws.drawn

    def _apply(self, copied_module: ModuleCopy, weights: FlatModel, x: Tensor) -> Tensor:
        """Apply the module with given weights to samples, in evaluation mode, block by block.

        Args:
            copied_module: a copy of the module, whose weights are overwritten.
            weights: the model, float [d].
            x: the samples, [n, *shape].

        Returns:
            The outputs, [n, ...].
        """
        module = copied_module.module
        # A block has whole groups of samples, so that the next block begins at a cache line. The
        # last bits of a product depend on the alignment of its memory.
        values_per_group = _GROUP * max(1, math.prod(x.shape[1:]))
        groups_per_block = max(1, _APPLIED_AT_ONCE // values_per_group)
        block_size = _GROUP * groups_per_block
        outputs = []
        with self._testing(copied_module, weights) as draws:
            for number, block in enumerate(torch.split(x, block_size)):
                if draws is not None:
                    draws.seed(step_key(_TEST_KEY, number))
                samples = self._lay_out(self._as_input(block))
                if self.watch.is_on:  # a user's module may change its inputs in place
                    samples = samples.clone()
                outputs.append(outputs_of(module, samples))
        return torch.cat(outputs)

    @contextmanager
    def _testing(
        self, copied_module: ModuleCopy, weights: FlatModel
    ) -> Iterator[KeyedDraws | None]:
        """Return a context of a test, in which a copy of the module has given weights.

        The module is in evaluation mode.

        Args:
            copied_module: the copy of the module.
            weights: the model, float [d].

        Yields:
            The context of the module's random draws, which the caller must seed; None if the module
            draws none.

        Raises:
            ScenarioError: the module has changed its weights.
        """
        trained = _load(copied_module, weights)
        copied_module.module.eval()
        # torch's counts of changes in place; a test must leave them as they are
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

    def _as_input(self, x: Tensor) -> Tensor:
        """Convert samples on the solver's device to the module's dtype; tokens stay integers."""
        return x.to(self._samples_dtype) if x.is_floating_point() else x

    def _lay_out(self, x: Tensor) -> Tensor:
        """Return samples in the memory layout in which torch computes the module fastest."""
        if self._is_image and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x


def _clip(gradients: tuple[Tensor, ...], max_norm: float) -> tuple[Tensor, ...]:
    """Scale gradients down, by one factor, to a joint norm of at most ``max_norm``."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    factor = (max_norm / torch.linalg.vector_norm(torch.stack(norms))).clamp(max=1.0)
    return tuple(gradient * factor for gradient in gradients)


def _load(copied_module: ModuleCopy, weights: FlatModel) -> dict[str, Tensor]:
    """Copy a flat model [d] into a copy of the module, and return its tensors by name.

    A running variance below 0, to which a server's step may lead, becomes 0.
    """
    copied_module.restore()
    tensors = copied_module.model_tensors
    load_weights(list(tensors.values()), weights)
    for name, tensor in tensors.items():
        if name.endswith("running_var"):
            tensor.clamp_(min=0.0)
    return tensors


class SingleSampleError(ScenarioError):
    """Error that a batch norm got a batch with a single sample, which has no variance.

    Args:
        part: text that names the norm.
    """

    def __init__(self, part: str) -> None:
        super().__init__(
            f"the module of model.factory: {part}, which needs batches of two samples at "
            "least, and the last batch of a device "
            'has one; allowed is training.last_batch = "drop" or "merge", a '
            "training.batch_size that leaves no single sample "
            "over, or torch.nn.GroupNorm"
        )
        self.part = part

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.part,)


def _refuse_single(name: str, part: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Raise ``SingleSampleError`` if a batch norm gets only one value for each channel.

    torch calls this function before each forward pass of the norm (a hook).

    Args:
        name: name of the norm in its module.
        part: the norm.
        args: arguments of the norm's forward pass.

    Raises:
        SingleSampleError: the channels have one value, and so no variance.
    """
    x = args[0]
    uses_batch = part.training or part.running_mean is None
    if uses_batch and x.numel() == x.shape[1]:
        raise SingleSampleError(f"the part {name or 'itself'!r} is a {type(part).__name__}")


def module_of(architecture: Architecture, device: str = "cpu") -> nn.Module:
    """Build a torch module of an architecture's layers, with uninitialised weights.

    Args:
        architecture: the layers, whose classes have the names and fields of torch's classes.
        device: torch's device for the weights; ``meta`` for shapes without memory.
    """
    layers = []
    with torch.device("meta"):
        for layer in architecture.layers:
            torch_class = getattr(nn, type(layer).__name__)
            layers.append(torch_class(*astuple(layer)))
    return nn.Sequential(*layers).to_empty(device=device)


def flat_weights(parameters: Sequence[torch.Tensor], dtype: DTypeLike = np.float32) -> Weights:
    """Concatenate tensors to one vector on the host, [d], each in row-major order.

    Args:
        parameters: the tensors; a complex number is two values.
        dtype: dtype of the vector.
    """
    return to_host(_concatenated(parameters)).astype(dtype, copy=False)


def _concatenated(parameters: Sequence[Tensor]) -> Tensor:
    flat = torch.cat([as_real(parameter.detach()).reshape(-1) for parameter in parameters])
    return flat.float() if flat.dtype in _HALF_DTYPES else flat


def flat_result(parameters: Sequence[Tensor], solve: LocalSolve, descent: Descent) -> FlatModel:
    """Concatenate trained tensors to a flat model, with the torch device and dtype of the start.

    Args:
        parameters: the trained tensors.
        solve: the inputs of the training, of which the start is used.
        descent: the rule of a step; its frozen ranges, ``held``, get the values of the start.

    Returns:
        The model, float [d], in new memory.
    """
    start = solve.weights
    if isinstance(start, Tensor):
        tensor = on_device(_concatenated(parameters), start.device).to(start.dtype)
        for begin, end in descent.held:
            tensor[begin:end] = start[begin:end]
        return tensor
    weights = flat_weights(parameters, start.dtype)
    for begin, end in descent.held:
        weights[begin:end] = start[begin:end]
    return weights


def load_weights(parameters: Sequence[torch.Tensor], weights: FlatModel) -> None:
    """Copy a flat model, float [d], into parameters in place, in their order."""
    sizes = [math.prod(real_shape(parameter)) for parameter in parameters]
    parts = torch.split(on_device(weights, next(iter(parameters)).device), sizes)
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(as_tensor_like(part, parameter))


def same_results(first: Solved, second: Solved) -> bool:
    """Return whether two trainings have bitwise equal weights and losses."""
    first_loss = np.float64(first.train_loss)
    second_loss = np.float64(second.train_loss)
    if first_loss.tobytes() != second_loss.tobytes():  # compared by bytes, as NaN differs from NaN
        return False
    if isinstance(first.weights, Tensor) and isinstance(second.weights, Tensor):
        return same_bits(first.weights, second.weights)
    return on_host(first.weights).tobytes() == on_host(second.weights).tobytes()


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are bitwise equal."""
    return torch.equal(_bytes_of(first), _bytes_of(second))


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def first_steps(solve: LocalSolve, steps: int) -> LocalSolve:
    """Return the inputs of a device's training, shortened to its first ``steps`` SGD steps.

    All steps count as one epoch, so that the training loss is the mean over all of them.
    """
    batches = solve.batches
    first = replace(batches, rows=batches.rows[:steps], counts=batches.counts[:steps], last_epoch=0)
    return replace(solve, batches=first)


def repeats_message(where: str) -> str:
    """Return the error message for a module whose results differ between two equal calls.

    Args:
        where: text that names the call, such as "in a test".
    """
    return (
        "the module of model.factory gives other numbers when the same steps are repeated "
        f"{where}: it draws from a generator "
        "that nobody seeds (numpy.random.default_rng(), os.urandom), or looks at a clock; "
        "allowed are torch's draws in "
        "forward, which are keyed by device and step"
    )


def _share_buffers_again(module: nn.Module, copied_module: nn.Module) -> None:
    """Let buffers of a copy of a module share one tensor if they share one in the module.

    A conversion of the copy to another dtype has given each of these buffers its own tensor.

    Args:
        module: the module that was copied.
        copied_module: the copy, which is changed.
    """
    shared: dict[int, Tensor] = {}  # id of a buffer of ``module`` -> the tensor of its copies
    for part, copied_part in zip(module.modules(), copied_module.modules(), strict=False):
        for key, buffer in part._buffers.items():
            if buffer is not None and type(copied_part) is type(part):
                tensor = shared.setdefault(id(buffer), getattr(copied_part, key))
                copied_part._buffers[key] = tensor


def kernels(module: nn.Module) -> set[str]:
    """Return the names of a module's kernels: the weights of dense layers and convolutions."""
    kinds = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
    names = set()
    for name, part in module.named_modules():
        if isinstance(part, kinds):
            names.add(f"{name}.weight" if name else "weight")
    return names
