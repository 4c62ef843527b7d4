"""Cost of a training step: FLOPs and bytes of each operation, counted without computing values.

Operations run on torch's device ``meta``, whose tensors have no values. FLOPs, two for each
multiply-add, are counted for the operations of ``torch.utils.flop_counter`` (matrix products,
convolutions, attention) and for LSTM layers. The channels of a convolution are padded to whole
registers. Bytes are the sizes of an operation's operands and results, as if each moved through
memory once; views move no bytes. Recurrent layers other than LSTM are counted step by step, as
torch computes them. Each step of a recurrent layer has an additional fixed cost.

A CPU needs more time than these counts suggest. Matrix products and convolutions change the layout
of their data, and pooling and some other operations handle one value at a time. ``_PASSES``
expresses this work on a server's CPU by additional passes over the data. Boards with ARM cores run
other kernels, whose speeds are in ``_ARM_SHARES`` and ``_ARM_PASSES``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fedsim.common.errors import FedsimError, ScenarioError
from fedsim.common.model_cost import COLUMNS, ModelCost, Operations
from fedsim.learning.architecture import Shape
from fedsim.learning.draws import Operation, generators_kept
from fedsim.learning.modules import copy_module, example, outputs_of, samples_dtype
from fedsim.learning.objectives import Classification, Objective
from fedsim.learning.spec import Trainer, TrainingSpec

# sizes of two batches; the difference of their costs is the cost of two samples, without the fixed
# cost of a batch
_SMALL = 2
_LARGE = 4
_LANES = 16  # float32 values in a register of 512 bits; channels are padded to a multiple of it
# least count of channels that is padded; for fewer, such as the three of an image, torch has other
# kernels
_LEAST_PADDED = 4
_PASSES = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), 1.1),
    **dict.fromkeys(("convolution", "convolution_backward"), 3.7),
    "max_pool2d_with_indices": 21.0,
    "avg_pool2d": 9.1,
    "avg_pool2d_backward": 4.9,
    "native_batch_norm": 5.9,
    "native_layer_norm": 0.9,
    "_softmax": 1.5,
    "gelu": 1.0,
    "gelu_backward": 1.2,
    "tanh": 8.1,
    "bernoulli_": 41.0,
    **dict.fromkeys(("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"), 0.9),
}
"""Operation -> passes over its data that a CPU makes after the first pass.

Fitted to some sixty single layers on one core of an AMD EPYC 9004 with torch 2.13 (by
``tests/benchmarks/roofline.py --layers`` of commit d6d1d37d); the passes of recurrent layers were
fitted to four models.
"""

_LSTM_STEP_BYTES = 107e3
"""Fixed cost of a forward step of a fused LSTM layer, as the bytes that move in the same time.

A backward step costs twice as much.
"""

_CALL_BYTES = 75e3
"""Fixed cost of an operation in an unfused recurrent layer, as the bytes that move in its time."""

_ARM_SHARES = {"dense": 1.03, "dense_backward": 0.79, "pointwise": 0.19, "pointwise_backward": 0.61}
_ARM_SHARES |= {"grouped": 0.010, "grouped_backward": 0.35}
_ARM_PASSES = {"norm": 25.0, "curve": 1.1, "other": 3.7}
"""Speeds of torch's kernels on boards with ARM cores, by kind of operation.

``_ARM_SHARES`` has the speed of convolutions, as a share of the speed of matrix products.
``_ARM_PASSES`` has the additional passes of all other operations over their data. Both were fitted
by ``scenarios/outside/pis/predict.py --fit`` to 51 published times of batches of 26 models on a
Raspberry Pi 4. The fit poorly separates kernels that these models use in similar proportions.
"""

_NORM_NAMES = ("native_batch_norm", "native_layer_norm", "native_group_norm")
_CURVE_NAMES = (
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "hardswish",
    "hardsigmoid",
    "softmax",
    "elu",
    "exp",
    "softplus",
)


def profile(
    module: nn.Module,
    shape: Shape,
    training: Trainer | None = None,
    objective: Objective | None = None,
) -> ModelCost:
    """Count the FLOPs, memory traffic and memory of a training step of a torch module.

    Args:
        module: the module, which is copied; its method ``loss``, if it has one, replaces the
            objective's loss.
        shape: shape of a sample.
        training: the trainer; None for SGD.
        objective: the objective; None for classification by cross-entropy.

    Returns:
        FLOPs and bytes moved by each operation of the forward pass, of the backward pass and of the
        optimiser's update, each as a fixed part and a part per sample; and the memory.

    Raises:
        ScenarioError: the module cannot be trained on such samples.
    """
    trainer = TrainingSpec() if training is None else training
    if objective is None:
        objective = Classification()
    # two sizes of a batch, from which the fixed part and the part per sample are computed
    small_batch = example(_SMALL, shape, samples_dtype(module))
    large_batch = example(_LARGE, shape, samples_dtype(module))
    # On a CPU an LSTM layer is one kernel, as in a real training. On ``meta`` it would be counted
    # as many operations.
    has_lstm = any(isinstance(part, nn.LSTM) for part in module.modules())
    devices = ("cpu",) if has_lstm else ("meta", "cpu")
    for device in devices:
        try:
            small = _count_step(module, small_batch, trainer, device, objective)
            large = _count_step(module, large_batch, trainer, device, objective)
            break
        except FedsimError:
            raise
        except Exception as error:
            # some modules read values, which tensors on ``meta`` do not have
            if device == "cpu":
                raise ScenarioError(
                    f"the model cannot be trained on samples of shape {shape}: {error}"
                ) from error
    weights = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    return ModelCost(
        forward=_split_by_sample(small.forward, large.forward),
        backward=_split_by_sample(small.backward, large.backward),
        update=_split_by_sample(small.update, large.update),
        weights=float(weights),
        memory=small.memory,
        memory_a_sample=(large.saved - small.saved) / (_LARGE - _SMALL),
    )


class Counted(NamedTuple):
    """FLOPs and memory traffic of a call of a torch operation, such as a convolution.

    Attributes:
        flops: FLOPs of the call.
        padded_flops: for a convolution, the FLOPs with its channels rounded up to a multiple of 16,
            as a CPU computes whole registers of 512 bits; for all other operations as ``flops``.
        traffic: size of operands and results (bytes).
        name: torch's name of the operation.
        kind: class of operations with equal speed on ARM cores: ``matrix`` for matrix products;
            ``dense``, ``pointwise`` or ``grouped`` for convolutions, with the suffix ``_backward``
            for their gradients; ``norm``; ``curve`` for functions such as GELU; or ``other``.
        call_bytes: fixed cost of the call on a CPU, as the bytes that could be moved in its time.
    """

    flops: float
    padded_flops: float
    traffic: float
    name: str
    kind: str
    call_bytes: float = 0.0

    def columns(self) -> tuple[float, ...]:
        """Return the FLOPs and bytes from which the time of the call is computed.

        A CPU makes additional passes over the data of some operations, such as pooling, which take
        more time than their operands and results suggest.

        Returns:
            Five numbers: ``padded_flops``; ``traffic``; the bytes of the additional passes on a
            server's CPU plus ``call_bytes``; and two for a single-board computer with ARM cores,
            the FLOPs of a matrix product that takes the same time, and the bytes of the additional
            passes.
        """
        arm_flops = self.flops / _ARM_SHARES.get(self.kind, 1.0)
        arm_moved = self.traffic * _ARM_PASSES.get(self.kind, 0.0)
        return (
            self.padded_flops,
            self.traffic,
            self.traffic * _PASSES.get(self.name, 0.0) + self.call_bytes,
            arm_flops,
            arm_moved,
        )


def _split_by_sample(small: list[Counted], large: list[Counted]) -> Operations:
    """Split each operation's FLOPs and bytes into a fixed part and a part per sample.

    Args:
        small: the operations on a batch of two samples.
        large: the operations on a batch of four samples.

    Returns:
        float64 [operations, 2 columns]: for each number of ``Counted.columns`` its fixed part, then
        its part per sample. If the two batches have different counts of operations, there is one
        row, for their sum.
    """
    small_costs = np.reshape([operation.columns() for operation in small], (-1, COLUMNS))
    large_costs = np.reshape([operation.columns() for operation in large], (-1, COLUMNS))
    if small_costs.shape != large_costs.shape:  # the operations depend on the size of the batch
        small_costs = small_costs.sum(axis=0, keepdims=True)
        large_costs = large_costs.sum(axis=0, keepdims=True)
    a_sample = (large_costs - small_costs) / (_LARGE - _SMALL)
    fixed = small_costs - _SMALL * a_sample
    return np.stack([fixed, a_sample], axis=2).reshape(-1, 2 * COLUMNS)


class _StepCounts(NamedTuple):
    """Operations and memory of a training step on one batch.

    Attributes:
        forward: operations of the forward pass, the loss included.
        backward: operations of the backward pass.
        update: operations of the optimiser's step.
        saved: size of the tensors that are saved for the backward pass (bytes).
        memory: size of weights, buffers, gradients and the optimiser's state (bytes).
    """

    forward: list[Counted]
    backward: list[Counted]
    update: list[Counted]
    saved: float
    memory: float


def _count_step(
    module: nn.Module, batch: Tensor, trainer: Trainer, device: str, objective: Objective
) -> _StepCounts:
    """Count the operations and the memory of a training step of a copy of a module.

    The second of two steps is counted, because the first one creates the optimiser's state.

    Args:
        module: the module.
        batch: samples.
        trainer: provides the optimiser.
        device: torch's device, ``meta`` or ``cpu``.
        objective: provides targets, and the loss if the module has no method ``loss``.
    """
    copied_module = copy_module(module).to(device).train()
    x = batch.to(device)
    trained = {}
    for name, parameter in copied_module.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter
    optimiser = trainer.torch_optimiser(trained, 0.1)
    losses: Callable[..., Tensor] = getattr(copied_module, "loss", objective.losses)
    # a storage is identified by its address; several tensors may share one
    weights = {parameter.untyped_storage()._cdata for parameter in copied_module.parameters()}
    is_unfused = any(map(_is_unfused_layer, copied_module.modules()))
    call_bytes = _CALL_BYTES if is_unfused else 0.0
    saved: dict[int, int] = {}  # storage kept for the backward pass -> its bytes

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:  # weights stay in memory anyway
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with generators_kept():
        y = objective.answers(outputs_of(copied_module, x).detach())
        for _ in range(2):
            optimiser.zero_grad()
            saved.clear()
            with (
                Counting(call_bytes) as forward,
                torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
            ):
                loss = losses(copied_module(x), y).mean()
            with Counting(call_bytes) as backward:
                loss.backward()
            with Counting() as update:
                optimiser.step()
    return _StepCounts(
        forward.operations,
        backward.operations,
        update.operations,
        saved=float(sum(saved.values())),
        memory=float(_training_bytes(copied_module, optimiser)),
    )


def _training_bytes(module: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Return the size of weights, buffers, gradients and the optimiser's state (bytes)."""
    tensors = [*module.parameters(), *module.buffers()]
    for parameter in module.parameters():
        if parameter.grad is not None:
            tensors.append(parameter.grad)
    for state in optimiser.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return _size(tensors)


def _is_unfused_layer(part: nn.Module) -> bool:
    """Return whether a layer is recurrent and computed by torch step by step (not an LSTM)."""
    return isinstance(part, nn.RNNBase | nn.RNNCellBase) and not isinstance(part, nn.LSTM)


def _size(tree: object) -> int:
    """Sum the sizes of all tensors in nested lists, tuples and dicts (bytes)."""
    size = 0
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            size += leaf.numel() * leaf.element_size()
    return size


class Counting(TorchDispatchMode):
    """Context manager that counts FLOPs and bytes of each torch operation (a dispatch mode).

    Args:
        call_bytes: fixed cost of each operation, as bytes that could be moved in its time.

    Attributes:
        operations: the counts of the operations, in order.
    """

    def __init__(self, call_bytes: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.call_bytes = call_bytes
        self.operations = list[Counted]()

    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Do a torch operation, and append its counts to ``operations`` unless all are 0."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        if name == "convolution":
            counted = self._count_forward(args, result)
        elif name == "convolution_backward":
            counted = self._count_backward(args)
        elif name.startswith("mkldnn_rnn_layer"):
            counted = _count_recurrent(name, args, _size((args, kwargs)) + _size(result))
        else:
            counted = self._count_other(func, args, kwargs, result)
        if counted.flops or counted.traffic:
            self.operations.append(counted)
        return result

    def _count_forward(self, args: Sequence[Any], result: Tensor) -> Counted:
        """Count the forward pass of a convolution.

        Args:
            args: arguments of torch's operation ``convolution``.
            result: its result.
        """
        x, weight, _, stride, _, _, transposed, _, groups, *_ = args
        counts = _count_convolution(x, weight, result, stride, transposed, groups)
        kind = _kind_of_convolution(weight, groups)
        return Counted(*counts, "convolution", kind, self.call_bytes)

    def _count_backward(self, args: Sequence[Any]) -> Counted:
        """Count the backward pass of a convolution.

        The gradients of its input and of its weights each count as a convolution. A gradient that
        is not computed does not count.

        Args:
            args: arguments of torch's operation ``convolution_backward``.
        """
        y, x, weight, _, stride, _, _, transposed, _, groups, output_mask, *_ = args
        counts = _count_convolution(x, weight, y, stride, transposed, groups, backward=True)
        convolutions = sum(output_mask[:2])  # the mask says which of the two gradients is computed
        flops, padded_flops, traffic = (convolutions * number for number in counts)
        kind = _kind_of_convolution(weight, groups) + "_backward"
        return Counted(flops, padded_flops, traffic, "convolution_backward", kind, self.call_bytes)

    def _count_other(
        self, func: Operation, args: Sequence[object], kwargs: Mapping[str, object], result: object
    ) -> Counted:
        """Count an operation that is neither a convolution nor an LSTM layer.

        A view moves no bytes.

        Args:
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
            result: its result.
        """
        name = func._overloadpacket.__name__
        kind = _kind_by_name(name)
        flops = 0.0
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            kind = "matrix"
            flops = float(count(*args, **kwargs, out_val=result))
        traffic = 0
        if not (func.is_view or "empty" in name or name == "_unsafe_view"):
            traffic = _size((args, kwargs)) + _size(result)
        return Counted(flops, flops, float(traffic), name, kind, self.call_bytes)


def _count_recurrent(name: str, args: Sequence[Any], traffic: int) -> Counted:
    """Count the forward or the backward pass of an LSTM layer.

    Args:
        name: torch's name of the operation.
        args: arguments of the operation: the samples [steps, n, features], and the weights.
        traffic: size of operands and results (bytes).
    """
    x, *weights = args[:3]
    passes = 2 if name.endswith("backward") else 1
    numbers = sum(weight.numel() for weight in weights)
    flops = passes * 2.0 * x.shape[0] * x.shape[1] * numbers
    call_bytes = passes * x.shape[0] * _LSTM_STEP_BYTES
    return Counted(flops, flops, float(traffic), name, "matrix", call_bytes)


def _count_convolution(
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    stride: Sequence[int],
    transposed: bool,
    groups: int,
    *,
    backward: bool = False,
) -> tuple[float, float, float]:
    """Count the FLOPs and bytes of a convolution, or of a gradient of it.

    Args:
        x: input of the layer.
        weight: kernel of the layer.
        y: output of the layer, or its gradient.
        stride: stride in each dimension.
        transposed: whether the convolution is transposed.
        groups: count of groups of channels.
        backward: whether a gradient is computed from the gradient of y. Zeros are then inserted
            into the gradient of y according to the stride, so that more bytes are moved.

    Returns:
        FLOPs, FLOPs if channels are padded to whole registers, and bytes.
    """
    if transposed:  # it computes as the gradient of a convolution from y to x
        x, y = y, x
        backward = not backward
    flops = float(2 * y.numel() * weight[0].numel())  # a multiplication and an addition each
    padding = math.prod([_padding(x.shape[1]), _padding(y.shape[1])])
    padded_flops = flops * padding if groups == 1 else flops
    spread = math.prod(stride) if backward else 1
    return flops, padded_flops, float(_size((x, weight)) + spread * _size(y))


def _padding(channels: int) -> float:
    """Return the factor by which padding to whole registers increases the work of a convolution.

    Args:
        channels: count of input or output channels.
    """
    if channels < _LEAST_PADDED:
        return 1.0
    registers = math.ceil(channels / _LANES)
    return registers * _LANES / channels


def _kind_of_convolution(weight: Tensor, groups: int) -> str:
    if groups > 1:
        return "grouped"
    return "pointwise" if weight[0, 0].numel() == 1 else "dense"


def _kind_by_name(name: str) -> str:
    if name.startswith(_NORM_NAMES):
        return "norm"
    if any(part in name for part in _CURVE_NAMES):
        return "curve"
    return "other"
