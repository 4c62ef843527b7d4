"""Cost of a step of training: FLOPs and bytes of every operation, counted by torch on tensors
that hold nothing.

FLOPs are those that ``torch.utils.flop_counter`` knows (matrix products, convolutions, attention;
two a multiply-add) and those of LSTM layers, with the channels of a convolution filled up to whole
registers. Bytes are the sizes of an operation's operands and results, as if each moved through
memory once; views move none. Recurrent layers but LSTM are counted step by step, as torch computes
them. Each step of a recurrent layer has a fixed cost besides.

A CPU does more: matrix products and convolutions lay out their data anew, pooling and some others
go number by number. ``_PASSES`` has what this takes on a server's CPU, as further passes over the
data. On a board with ARM cores kernels of another library run: ``_ARM_SHARES`` and ``_ARM_PASSES``
have their speeds by kind of operation.
"""

import math
from collections.abc import Callable, Sequence
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
from fedsim.learning.draws import generators_kept
from fedsim.learning.modules import copied, example, outputs_of, samples_dtype
from fedsim.learning.objectives import Classification, Objective
from fedsim.learning.spec import Trainer, TrainingSpec

# batches, whose difference is the part per sample
_SMALL = 2
_LARGE = 4
_PHASES = ("forward", "backward", "update")
_LANES = 16  # float32 numbers in a register of 512 bits, to which channels are filled up
# a first layer of fewer channels than this has kernels of its own, which take its samples as they
# are
_FIRST = 4
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
"""Operation -> passes over its data that a CPU makes beside one. Fitted to some sixty single layers
on one core of an AMD EPYC 9004 with torch 2.13 (by ``tests/benchmarks/roofline.py --layers`` of
d6d1d37d); those of recurrent layers to four models.
"""

_STEP = 107e3
"""Fixed cost of a step of a fused LSTM layer: the time to move these bytes, forward; twice that
backward.
"""

_CALL = 75e3
"""Bytes in whose time a CPU calls one of the many small operations of a recurrent layer that is
computed step by step.
"""

_ARM_SHARES = {"dense": 1.03, "dense_backward": 0.79, "pointwise": 0.19, "pointwise_backward": 0.61}
_ARM_SHARES |= {"grouped": 0.010, "grouped_backward": 0.35}
_ARM_PASSES = {"norm": 25.0, "curve": 1.1, "other": 3.7}
"""Of torch's kernels on boards with ARM cores, by kind of operation: speed of convolutions as a
share of that of matrix products, and further passes over their data of all that are neither. Fitted
by ``scenarios/outside/pis/predict.py --fit`` to 51 published times of batches of 26 models on a
Raspberry Pi 4, which tell kernels apart only as far as models differ in them.
"""

_NORMALISING = ("native_batch_norm", "native_layer_norm", "native_group_norm")
_CURVED = (
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
    """The cost of one step of a trainer (None: SGD) with a module, which is left as it was.

    The module takes samples [n, *shape]; its loss is cross-entropy, or that of ``objective``,
    unless it has a method ``loss``. A module that cannot be trained on such samples raises
    ``ScenarioError``.
    """
    trainer = training or TrainingSpec()
    learned = objective or Classification()
    is_fused = any(isinstance(part, nn.LSTM) for part in module.modules())
    # a CPU has one kernel for a layer of LSTM, meta tensors many
    for place in ("cpu",) if is_fused else ("meta", "cpu"):
        try:
            batches = [example(size, shape, samples_dtype(module)) for size in (_SMALL, _LARGE)]
            steps = [_step(module, batch, trainer, place, learned) for batch in batches]
            break
        except FedsimError:
            raise
        except Exception as error:
            # some modules look at values, which tensors that hold nothing do not have
            if place == "cpu":
                raise ScenarioError(
                    f"the model cannot be trained on samples of shape {shape}: {error}"
                ) from error
    (small, kept_small, held), (large, kept_large, _) = steps
    a_sample = (kept_large - kept_small) / (_LARGE - _SMALL)
    parts = {phase: _by_sample(small[phase], large[phase]) for phase in _PHASES}
    weights = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    return ModelCost(**parts, weights=float(weights), memory=float(held), memory_a_sample=a_sample)


class Counted(NamedTuple):
    """An operation: FLOPs, those with channels filled up, bytes moved, its name in torch, its
    kind on ARM cores, and the bytes in whose time a CPU calls it.
    """

    flops: float
    filled: float
    moved: float
    name: str
    kind: str
    call: float = 0.0

    def columns(self) -> tuple[float, ...]:
        arm_flops = self.flops / _ARM_SHARES.get(self.kind, 1.0)
        arm_moved = self.moved * _ARM_PASSES.get(self.kind, 0.0)
        return (
            self.filled,
            self.moved,
            self.moved * _PASSES.get(self.name, 0.0) + self.call,
            arm_flops,
            arm_moved,
        )


def _by_sample(small: list[Counted], large: list[Counted]) -> Operations:
    """Each operation's FLOPs and bytes, as a fixed part and a part per sample."""
    first, second = (
        np.reshape([each.columns() for each in rows], (-1, COLUMNS)) for rows in (small, large)
    )
    if first.shape != second.shape:  # the size of a batch decides on the operations
        first = first.sum(axis=0, keepdims=True)
        second = second.sum(axis=0, keepdims=True)
    a_sample = (second - first) / (_LARGE - _SMALL)
    return np.stack([first - _SMALL * a_sample, a_sample], axis=2).reshape(-1, 2 * COLUMNS)


def _step(
    module: nn.Module, batch: Tensor, trainer: Trainer, place: str, objective: Objective
) -> tuple[dict[str, list[Counted]], float, float]:
    """The operations of a second step (the first makes the optimiser's state), bytes kept for
    it, and bytes held always.
    """
    own = copied(module).to(place).train()
    x = batch.to(place)
    named = {
        name: parameter for name, parameter in own.named_parameters() if parameter.requires_grad
    }
    optimiser = trainer.torch_optimiser(named, 0.1)
    loss_of: Callable[..., Any] = own.loss if hasattr(own, "loss") else objective.losses  # type: ignore[assignment]
    known = {parameter.untyped_storage()._cdata for parameter in own.parameters()}
    steps = (nn.RNNBase, nn.RNNCellBase)
    call = (
        _CALL
        if any(isinstance(part, steps) and not isinstance(part, nn.LSTM) for part in own.modules())
        else 0.0
    )
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with generators_kept():
        y = objective.answers(outputs_of(own, x).detach())
        for _ in range(2):
            optimiser.zero_grad()
            kept.clear()
            with (
                Counting(call) as forward,
                torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            ):
                loss = loss_of(own(x), y).mean()
            with Counting(call) as backward:
                loss.backward()
            with Counting() as update:
                optimiser.step()
    found = dict(
        zip(_PHASES, (forward.operations, backward.operations, update.operations), strict=True)
    )
    held = [
        *own.parameters(),
        *own.buffers(),
        *(each.grad for each in named.values() if each.grad is not None),
    ]
    held += [
        state
        for entry in optimiser.state.values()
        for state in entry.values()
        if isinstance(state, Tensor)
    ]
    return found, float(sum(kept.values())), float(sum(map(_size, held)))


def _size(tree: Any) -> int:
    """Bytes of all tensors within."""
    return sum(
        leaf.numel() * leaf.element_size() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)
    )


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the FLOPs and bytes of each operation, in ``operations``; each costs a ``call``
    besides (bytes).
    """

    def __init__(self, call: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.call = call
        self.operations = list[Counted]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        name = func._overloadpacket.__name__
        called = self.call
        if name == "convolution":
            flops, filled, moved = _convolved(
                args[0], args[1], result, *(args[place] for place in (3, 6, 8))
            )
            kind = _kind_of_convolution(args[1], args[8])
        elif (
            name == "convolution_backward"
        ):  # one for the samples, if needed, and one for the weights
            y, x, weight, _, stride, _, _, transposed, _, groups, asked, *_ = args
            one = _convolved(x, weight, y, stride, transposed, groups, backward=True)
            flops, filled, moved = (sum(asked[:2]) * of for of in one)
            kind = _kind_of_convolution(weight, groups) + "_backward"
        elif name.startswith("mkldnn_rnn_layer"):
            x, *weights = args[:3]
            times = 2 if name.endswith("backward") else 1
            flops = filled = (
                times * 2.0 * x.shape[0] * x.shape[1] * sum(weight.numel() for weight in weights)
            )
            kind = "matrix"
            moved = _size((args, given)) + _size(result)
            called = times * x.shape[0] * _STEP
        else:
            count = flop_registry.get(func._overloadpacket)
            flops = filled = 0.0 if count is None else float(count(*args, **given, out_val=result))
            kind = "matrix" if count is not None else _kind_by_name(name)
            moved = (
                0
                if func.is_view or "empty" in name or name == "_unsafe_view"
                else _size((args, given)) + _size(result)
            )
        if flops or moved:
            self.operations.append(Counted(flops, filled, float(moved), name, kind, called))
        return result


def _convolved(
    x: Any,
    weight: Any,
    y: Any,
    stride: Sequence[int],
    transposed: bool,
    groups: int,
    *,
    backward: bool = False,
) -> tuple[float, float, float]:
    """FLOPs, filled FLOPs and bytes of a convolution from x to y; backward, y's gradient is
    spread over the grid of x.
    """
    if transposed:
        x, y, backward = y, x, not backward
    fill = [
        -(-channels // _LANES) * _LANES / channels
        for channels in (x.shape[1], y.shape[1])
        if channels >= _FIRST
    ]
    flops = float(2 * y.numel() * weight[0].numel())
    filled = flops * (math.prod(fill) if groups == 1 else 1)
    return (
        flops,
        filled,
        float(_size((x, weight)) + (math.prod(stride) if backward else 1) * _size(y)),
    )


def _kind_of_convolution(weight: Tensor, groups: int) -> str:
    return "grouped" if groups > 1 else "pointwise" if weight[0, 0].numel() == 1 else "dense"


def _kind_by_name(name: str) -> str:
    return (
        "norm"
        if name.startswith(_NORMALISING)
        else "curve"
        if any(part in name for part in _CURVED)
        else "other"
    )
