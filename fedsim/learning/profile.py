"""Cost of a step of SGD: FLOPs and bytes of every operation, counted by torch on tensors that hold nothing.

FLOPs are those that ``torch.utils.flop_counter`` knows (matrix products, convolutions, attention; two a multiply-add), with the
channels of a convolution filled up to whole registers. Bytes are the sizes of an operation's operands and results; views move
none. So each operation moves all its data through memory once: caches, and kernels that fuse several operations, make real
devices faster; recurrent layers are counted step by step.

A CPU does more: matrix products and convolutions lay out their data anew, pooling and some others go number by number.
``_PASSES`` has what this takes, as further passes over the data.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.errors import ScenarioError
from fedsim.learning.architecture import Shape
from fedsim.learning.factory import example
from fedsim.learning.objectives import Classification, Objective
from fedsim.model_cost import ModelCost, Operations

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedsim.learning.models import Model
    from fedsim.learning.spec import TrainingSpec

_SMALL, _LARGE = 2, 4  # batches: what differs between them is for each sample
_PHASES = ("forward", "backward", "update")
_LANES = 16  # float32 numbers in a register of 512 bits, to which channels are filled up
_FIRST = 4  # a first layer of fewer channels than this has kernels of its own, which take its samples as they are
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
}
"""Operation -> passes over its data that a CPU makes beside one. Fitted by ``tests/benchmarks/roofline.py --layers`` to single
layers on one core of an AMD EPYC 9004 with torch 2.13 (oneDNN, MKL), and to no model."""


def cost_of(
    model: "Model", shape: Shape, classes: int, training: "TrainingSpec", objective: "Objective | None" = None
) -> ModelCost:
    """The cost of one SGD step with a scenario's model; the loss is that of ``objective``, without it cross-entropy.

    The momentum and the weight decay of ``training`` count; what strategies add to a step (a proximal term) does not. A module
    that cannot be trained on such samples raises ``ScenarioError``.
    """
    from fedsim.learning.models import Layered, SizeOnly, TorchModel
    from fedsim.learning.solvers.reference import module_of

    if isinstance(model, SizeOnly):
        return ModelCost.of_size(model.bytes, model.flops_per_sample, momentum=training.momentum > 0)
    assert isinstance(model, Layered | TorchModel)
    module = model.module(shape, classes) if isinstance(model, TorchModel) else module_of(model.architecture(shape, classes))
    return profile(module, shape, classes, training.momentum, training.weight_decay, objective)


def profile(
    module: "nn.Module",
    shape: Shape,
    classes: int,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    objective: "Objective | None" = None,
) -> ModelCost:
    """The cost of one SGD step with a module, which is left as it was.

    The module maps samples [n, *shape] to outputs [n, classes]; its loss is cross-entropy, or that of ``objective``, unless it
    has a method ``loss``.
    """
    learned = Classification() if objective is None else objective
    for place in ("meta", "cpu"):
        try:
            batches = [example(size, shape) for size in (_SMALL, _LARGE)]
            steps = [_step(module, batch, learned, momentum, weight_decay, place) for batch in batches]
            break
        except Exception as error:
            if place == "cpu":  # some modules look at values, which tensors that hold nothing do not have
                raise ScenarioError(f"the model cannot be trained on samples of shape {shape}: {error}") from error
    (small, kept_small, held), (large, kept_large, _) = steps
    a_sample = (kept_large - kept_small) / (_LARGE - _SMALL)
    parts = {phase: _by_sample(small[phase], large[phase]) for phase in _PHASES}
    weights = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    return ModelCost(**parts, weights=float(weights), memory=float(held), memory_a_sample=a_sample)


Counted = tuple[float, float, float]
"""FLOPs, bytes moved, and bytes of a CPU's further passes."""


def _by_sample(small: list[Counted], large: list[Counted]) -> Operations:
    """Each operation's FLOPs and bytes, cut into what is fixed and what each sample adds."""
    first, second = np.reshape(small, (-1, 3)), np.reshape(large, (-1, 3))
    if first.shape != second.shape:  # the size of a batch decides what is done
        first, second = first.sum(axis=0, keepdims=True), second.sum(axis=0, keepdims=True)
    a_sample = (second - first) / (_LARGE - _SMALL)
    fixed = first - _SMALL * a_sample
    return np.stack([fixed, a_sample], axis=2).reshape(-1, 6)


def _step(
    module: "nn.Module",
    batch: "torch.Tensor",
    objective: Objective,
    momentum: float,
    weight_decay: float,
    place: str,
) -> "tuple[dict[str, list[Counted]], float, float]":
    """The operations of a second step (the first makes the optimiser's state), bytes kept for it, and bytes held always."""
    import torch

    own = copy.deepcopy(module).to(place).train()
    x = batch.to(place)
    trained = [parameter for parameter in own.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1, momentum=momentum, weight_decay=weight_decay, foreach=False)
    loss_of: Callable[..., Any] = own.loss if hasattr(own, "loss") else objective.losses  # type: ignore[assignment]
    known = {_storage(parameter) for parameter in own.parameters()}
    found: dict[str, list[Counted]] = {}
    kept: dict[int, int] = {}

    def keep(tensor: "torch.Tensor") -> "torch.Tensor":
        if _storage(tensor) not in known:
            kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.random.fork_rng(devices=[]):
        y = objective.answers(own(x).detach())
        for _ in range(2):
            optimiser.zero_grad()
            kept.clear()
            with _counting() as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = loss_of(own(x), y).mean()
            with _counting() as backward:
                loss.backward()
            with _counting() as update:
                optimiser.step()
            found = dict(zip(_PHASES, (forward.operations, backward.operations, update.operations), strict=True))
    held = [*own.parameters(), *own.buffers(), *(parameter.grad for parameter in trained if parameter.grad is not None)]
    held += [state for entry in optimiser.state.values() for state in entry.values() if isinstance(state, torch.Tensor)]
    return found, float(sum(kept.values())), float(sum(tensor.numel() * tensor.element_size() for tensor in held))


def _storage(tensor: "torch.Tensor") -> int:
    return int(tensor.untyped_storage()._cdata)


def _counting() -> Any:
    """A mode that notes the FLOPs and bytes of each operation, in ``operations``."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    def size(tree: Any) -> int:
        return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))

    def convolved(
        x: Any, weight: Any, y: Any, stride: Sequence[int], transposed: bool, groups: int, *, backward: bool = False
    ) -> tuple[float, float]:
        """FLOPs and bytes of one convolution from x to y; backward, the gradient of y lies spread over the grid of x."""
        if transposed:
            x, y, backward = y, x, not backward
        fill = [-(-channels // _LANES) * _LANES / channels for channels in (x.shape[1], y.shape[1]) if channels >= _FIRST]
        spread = math.prod(stride) if backward else 1
        flops = 2 * y.numel() * weight[0].numel() * (math.prod(fill) if groups == 1 else 1)
        return float(flops), float(size((x, weight)) + spread * size(y))

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.operations: list[Counted] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            result = func(*args, **given)
            name = func._overloadpacket.__name__
            if name == "convolution":
                flops, moved = convolved(args[0], args[1], result, *(args[place] for place in (3, 6, 8)))
            elif name == "convolution_backward":  # one for the samples, unless nobody asks, and one for the weights
                y, x, weight, _, stride, _, _, transposed, _, groups, asked, *_ = args
                one = convolved(x, weight, y, stride, transposed, groups, backward=True)
                flops, moved = (sum(asked[:2]) * of for of in one)
            else:
                count = flop_registry.get(func._overloadpacket)
                flops = 0 if count is None else count(*args, **given, out_val=result)
                moved = 0 if func.is_view or "empty" in name or name == "_unsafe_view" else size((args, given)) + size(result)
            if flops or moved:
                self.operations.append((float(flops), float(moved), moved * _PASSES.get(name, 0.0)))
            return result

    return Counting()
