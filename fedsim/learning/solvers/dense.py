"""Training of dense layers on a CPU by gradients in closed form, one device at a time.

Small steps run in compiled loops. The first layer is computed in weight space or in sample space,
whose results are equal up to rounding, at different costs.

In *weight space* a step multiplies the batch with the kernel, and changes the whole kernel.

In *sample space* the kernel W is never formed. SGD moves W only along the device's own samples X,
and along the constant part C of the gradient (if there is one): W = a W_0 + b C + A^T X. The
products of W with a batch thus follow from two kinds of products that do not change: the products
of W_0 and C with all samples, and the inner products of the samples, X X^T. A step is one product
of outputs x batch x n instead of two products of outputs x batch x inputs, and changes only the
batch's part of A. This saves time because most devices have fewer samples than a sample has
features.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.learning.architecture import Architecture
from fedsim.learning.host_copies import FlatModel, on_host
from fedsim.learning.solvers.base import Batches, Descent, LocalSolve, ParameterStep, Solved, Solver
from fedsim.learning.solvers.dense_arrays import (
    AnyFloats,
    FirstLayer,
    LoopPlan,
    Parameter,
    Rule,
)
from fedsim.learning.solvers.dense_loops import descend
from fedsim.learning.solvers.reference import Reference, module_of

Array = TypeVar("Array", NDArray[np.floating], Tensor)

# float32 values in a cache line; rows are padded to a multiple of it, for vector registers
_LINE = 16
# count of outputs above which transposed coefficients A (``FirstLayer.turned``) are faster
_FEW = 32


def split(flat: Array, sizes: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Split models of dense layers, each an array of all weights, into kernels and biases.

    These are views, which share the memory of the models.

    Args:
        flat: the models, [..., d].
        sizes: count of features, then the count of outputs of each layer.

    Yields:
        For each layer the kernel, [..., outputs, inputs], and the bias, [..., outputs].
    """
    begin = 0
    for inputs, outputs in pairwise(sizes):
        end = begin + inputs * outputs
        kernel = flat[..., begin:end].reshape(*flat.shape[:-1], outputs, inputs)
        begin = end + outputs
        yield kernel, flat[..., end:begin]


def _round_up_to_fours(count: int) -> int:
    return -(-count // 4) * 4


def _parameter(
    arrays: Sequence[AnyFloats],
    constants: Sequence[AnyFloats] | None,
    descent: Descent,
    dtype: np.dtype[np.floating],
    *,
    in_fours: bool = True,
) -> Parameter:
    """Stack matrices into one parameter of the compiled loops.

    The parameter also has momentum and start values if the rule of descent uses them.

    Args:
        arrays: the matrices, which are padded with zeros to one shape.
        constants: for each matrix the part of its gradient that is equal in all steps; None for 0.
        descent: the rule of an SGD step.
        dtype: dtype of the stacks.
        in_fours: whether rows are padded to a multiple of four.

    Returns:
        Stacks of shape [matrices, rows, columns].
    """
    rows = max((array.shape[0] for array in arrays), default=0)
    columns = max((array.shape[1] for array in arrays), default=0)
    if in_fours:
        rows = _round_up_to_fours(rows)

    def stack(matrices: Sequence[AnyFloats]) -> AnyFloats:
        stacked = np.zeros((len(matrices), rows, columns), dtype)
        for padded, matrix in zip(stacked, matrices, strict=True):
            padded[: matrix.shape[0], : matrix.shape[1]] = matrix
        return stacked

    weight = stack(arrays)
    none = weight[:, :0]
    velocity = np.zeros_like(weight) if descent.momentum else none
    start = weight.copy() if descent.mu else none
    constant = none if constants is None else stack(constants)
    return Parameter(weight, velocity, start, constant)


TrainedEntry = tuple[FirstLayer, Callable[[], object]]
"""First layer for the loops, and a function that writes the trained weights into its kernel.

The kernel in the flat model does not change before this function is called.
"""


def _in_weight_space(
    solve: LocalSolve, kernel: AnyFloats, constant: AnyFloats | None, descent: Descent
) -> TrainedEntry:
    samples = solve.x.numpy().reshape(len(solve.x), -1).astype(kernel.dtype, copy=False)
    samples = np.ascontiguousarray(samples)
    constants = None if constant is None else [constant]
    stacks = _parameter([kernel], constants, descent, kernel.dtype)
    trained = Parameter(*(stack[0] for stack in stacks))
    entry = FirstLayer(samples, trained, kernel[None, :0], kernel[:0], turned=False)
    return entry, lambda: np.copyto(kernel, trained.weight[: len(kernel)])


def _in_sample_space(
    solve: LocalSolve, kernel: AnyFloats, constant: AnyFloats | None, descent: Descent
) -> TrainedEntry:
    """Prepare the training of the first layer by coefficients of the device's samples.

    The kernel W is not changed in each step. Instead W = a W_0 + b C + A^T X, where X are the
    samples, and steps change A. The products of W_0 and C with the samples are computed here.

    Args:
        solve: the device's start, samples and batches.
        kernel: W_0, [outputs, inputs], in torch's memory; overwritten by the trained kernel.
        constant: C, the part of the gradient that is equal in all steps, [outputs, inputs]; None
            for 0.
        descent: the rule of an SGD step.

    Returns:
        The first layer for the loops, and a function that writes the trained kernel.
    """
    start = torch.from_numpy(kernel)
    outputs, inputs = kernel.shape
    count = len(solve.x)
    steps = solve.batches.steps
    columns = -(-count // _LINE) * _LINE
    turned = outputs > _FEW
    # the last bits of a product depend on the alignment of memory, and torch's memory is aligned
    samples = start.new_empty(count, inputs)
    samples.copy_(solve.x.reshape(count, inputs))
    gram = start.new_zeros(count, columns)
    torch.mm(samples, samples.t(), out=gram[:, :count])
    bases = [start]
    # Two parts of the gradient are equal in all steps: -mu W_0 of the proximal term, whose mu W is in
    # the shrinkage, and C.
    shares = [_shares(1.0, -descent.mu, descent, steps)]
    if constant is not None:
        bases.append(torch.tensor(constant))
        shares.append(_shares(0.0, 1.0, descent, steps))
    products = start.new_empty(len(bases), count, outputs)
    for base, values in zip(bases, products, strict=True):
        # faster than the product samples @ base.t()
        values.copy_(torch.mm(base, samples.t()).t())
    shape = (columns, outputs) if turned else (_round_up_to_fours(outputs), columns)
    coefficients = start.new_zeros(shape)
    weight = coefficients.numpy()
    none = weight[:0]
    velocity = np.zeros_like(weight) if descent.momentum else none
    trained = Parameter(weight, velocity, none, none)
    entry = FirstLayer(
        gram.numpy(), trained, products.numpy(), np.array(shares, kernel.dtype), turned
    )

    def write() -> None:
        factor = coefficients[:count].t() if turned else coefficients[:outputs, :count]
        start.addmm_(factor, samples, beta=shares[0][-1])
        for base, share in zip(bases[1:], shares[1:], strict=True):
            start.add_(base, alpha=share[-1])

    return entry, write


def _shares(first: float, in_gradient: float, descent: Descent, steps: int) -> list[float]:
    """Return the share of a fixed matrix in the kernel, before each step and after the last.

    The kernel is a sum of matrices, and SGD moves the share a of each one by itself. With velocity
    v, a step is v <- momentum v + shrinkage a + g; a <- a - lr v.

    Args:
        first: the share before the first step.
        in_gradient: g, the factor of the matrix in each gradient, without the shrinkage.
        descent: the rule of an SGD step.
        steps: count of steps.

    Returns:
        ``steps + 1`` shares.
    """
    shrinkage = descent.shrinkage(kernel=True)
    if not (shrinkage or descent.momentum):
        return [first - descent.lr * in_gradient * step for step in range(steps + 1)]
    share = first
    velocity = 0.0
    shares = [share]
    for _ in range(steps):
        velocity = descent.momentum * velocity + shrinkage * share + in_gradient
        share -= descent.lr * velocity
        shares.append(share)
    return shares


@cache
def prepare(dtype: torch.dtype) -> None:
    """Compile the training loops for a dtype, or load their machine code, before they are used.

    Later calls for the same dtype do nothing.
    """
    batches = Batches(np.zeros((1, 1), np.int64), np.ones(1, np.int64), last_epoch=0)
    weights = torch.zeros(4, dtype=dtype).numpy()
    solve = LocalSolve(weights, torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), batches)
    train(weights, (1, 2), solve, Descent(lr=1.0), _in_weight_space)


def train(
    flat: AnyFloats,
    sizes: Sequence[int],
    solve: LocalSolve,
    descent: Descent,
    prepare_entry: Callable[..., TrainedEntry],
) -> float:
    """Train a model of dense layers in place, by compiled loops.

    Args:
        flat: the model, [d], in torch's memory, which is aligned.
        sizes: count of features, then the count of outputs of each layer.
        solve: the device's start, samples and batches, of at least one step.
        descent: the rule of an SGD step.
        prepare_entry: ``_in_weight_space`` or ``_in_sample_space``, which prepares the first layer.

    Returns:
        The mean loss over the last epoch.
    """
    batches = solve.batches
    layers = _Layers(flat, sizes)
    first_constant = None
    kernel_constants = None
    bias_constants = None
    constant = solve.constant(descent)
    if constant is not None:
        constants = _Layers(on_host(constant).astype(flat.dtype, copy=False), sizes)
        first_constant = constants.first
        kernel_constants = constants.kernels
        bias_constants = constants.biases
    entry, write = prepare_entry(solve, layers.first, first_constant, descent)
    kernels = _parameter(layers.kernels, kernel_constants, descent, flat.dtype)
    biases = _parameter(layers.biases, bias_constants, descent, flat.dtype, in_fours=False)
    as_number = flat.dtype.type
    rule = Rule(
        lr=as_number(descent.lr),
        momentum=as_number(descent.momentum),
        mu=as_number(descent.mu),
        kernels=as_number(descent.shrinkage(kernel=True)),
        biases=as_number(descent.shrinkage(kernel=False)),
    )
    plan = LoopPlan(solve.y.numpy(), batches.rows, batches.counts, batches.last_epoch)
    loss = descend(entry, kernels, biases, np.array(sizes[1:]), plan, rule)
    write()
    _unstack(kernels, layers.kernels)
    _unstack(biases, layers.biases)
    return batches.mean_loss(loss)


class _Layers:
    """Views of a flat model's layers, which share its memory.

    ``first`` is the kernel of the first layer, ``kernels`` the kernels of all later layers, and
    ``biases`` all biases, [1, outputs] each.
    """

    def __init__(self, flat: AnyFloats, sizes: Sequence[int]) -> None:
        layers = list(split(flat, sizes))
        self.first = layers[0][0]
        self.kernels = [kernel for kernel, _ in layers[1:]]
        self.biases = [bias[None] for _, bias in layers]


def _unstack(parameter: Parameter, matrices: Sequence[AnyFloats]) -> None:
    """Copy trained weights from their padded stack into the matrices of the flat model.

    Args:
        parameter: the trained stack.
        matrices: the matrices, views of the flat model, which are overwritten.
    """
    for padded, matrix in zip(parameter.weight, matrices, strict=True):
        matrix[:] = padded[: matrix.shape[0], : matrix.shape[1]]


def train_by_products(
    weights: Tensor, sizes: Sequence[int], solve: LocalSolve, descent: Descent
) -> float:
    """Train a model of dense layers in place, by torch's matrix products, without autograd.

    Args:
        weights: the model, [d].
        sizes: count of features, then the count of outputs of each layer.
        solve: the device's start, samples and batches, of zero or more steps.
        descent: the rule of an SGD step.

    Returns:
        The mean loss over the last epoch; NaN if there are no steps.
    """
    layers = list(split(weights, sizes))
    steps = _parameter_steps(layers, sizes, solve, descent)
    batches = solve.batches
    x = solve.x.reshape(len(solve.x), -1).to(weights.dtype)
    total = 0.0
    rows = torch.from_numpy(batches.rows)
    for step, count in enumerate(batches.counts.tolist()):
        batch = rows[step, :count]
        inputs = [x[batch]]
        for kernel, bias in layers[:-1]:
            inputs.append(torch.addmm(bias, inputs[-1], kernel.t()).relu_())
        kernel, bias = layers[-1]
        logs = torch.addmm(bias, inputs[-1], kernel.t()).log_softmax(1)
        right = solve.y[batch][:, None]
        if step >= batches.last_epoch:
            total -= float(logs.gather(1, right).sum(dtype=torch.float64))
        error = logs.exp_().scatter_add_(1, right, logs.new_full((count, 1), -1.0)).div_(count)
        for layer in range(len(layers) - 1, 0, -1):
            kernel, _ = layers[layer]
            below = torch.mm(error, kernel)  # before the step changes the kernel
            steps[2 * layer].descend_product(error.t(), inputs[layer])
            steps[2 * layer + 1].descend(error.sum(0))
            error = torch.ops.aten.threshold_backward(below, inputs[layer], 0)
        steps[0].descend_product(error.t(), inputs[0])
        steps[1].descend(error.sum(0))
    return batches.mean_loss(total)


def _parameter_steps(
    layers: Sequence[tuple[Tensor, Tensor]],
    sizes: Sequence[int],
    solve: LocalSolve,
    descent: Descent,
) -> list[ParameterStep]:
    """Return an object for each kernel and bias that takes its SGD steps, in the model's order.

    Args:
        layers: each layer's kernel, [outputs, inputs], and bias, [outputs], as views of the model.
        sizes: count of features, then the count of outputs of each layer.
        solve: the device's start, samples and batches.
        descent: the rule of an SGD step.
    """
    constants: list[Tensor | None] = [None] * (2 * len(layers))
    constant = solve.constant(descent)
    if constant is not None:
        constants = list(chain(*split(torch.tensor(on_host(constant)), sizes)))
    steps = []
    begin = 0
    for tensor, tensor_constant in zip(chain(*layers), constants, strict=True):
        end = begin + tensor.numel()
        rule = descent.of(begin, end)
        shrinkage = rule.shrinkage(kernel=tensor.ndim > 1)
        steps.append(ParameterStep(tensor, rule, shrinkage, tensor_constant))
        begin = end
    return steps


Way = Literal["weight space", "sample space", "products"]
"""Method of training: compiled loops in weight space or in sample space, or torch's products.

Torch's matrix products cost more per call.
"""

_PRODUCT_SPEED = 2.5  # multiplications per second in matrix products, relative to the loops
# costs, in multiplications of the loops
_LOOP_UPDATE_COST = 2  # update of one weight of a kernel, in the loops
_PRODUCT_UPDATE_COST = 20  # update of one weight of a kernel, by products
_GRAM_COST = 1_000_000  # preparation of sample space
_PRODUCT_STEP_COST = 2_000_000  # calls of torch in one step of products
_COPY_COST = 48  # copy of one value of a sample
# samples in one product if a model is applied; a multiple of whole cache lines
_APPLIED_AT_ONCE = 256


class Dense(Solver):
    """Solver for logistic regression and perceptrons with cross-entropy, on a CPU.

    Gradients are computed in closed form, without autograd, which is much faster for small models.
    ``Reference`` trains the same models.

    Args:
        architecture: the layers, which are dense (``Architecture.is_dense``).
        dtype: float32; float64 for tests of the gradients.
        way: the method by which all devices are trained: ``weight space``, ``sample space`` or
            ``products``; None to choose the fastest one for each device (method ``way``).
    """

    def __init__(
        self,
        architecture: Architecture,
        dtype: torch.dtype = torch.float32,
        *,
        way: Way | None = None,
    ) -> None:
        layers = [layer for _, layer in architecture.trained()]
        tensors = architecture.tensors
        kernels = {name for name, shape in tensors if len(shape) == 2}
        super().__init__(torch.device("cpu"), tensors, kernels)
        self.dtype = dtype
        self._fixed_way = way
        self._architecture = architecture
        self.sizes = [layers[0].inputs, *(layer.outputs for layer in layers)]
        self._parameters = architecture.parameters
        prepare(dtype)

    @cached_property
    def plain(self) -> Reference:
        return Reference(module_of(self._architecture), self.device, self.dtype)

    def way(self, samples: int, width: int, steps: int) -> Way:
        """Choose the method by which a device's training is fastest, by an estimate of the times.

        The methods are ``weight space`` and ``sample space``, compiled loops that the docstring of
        this module describes, and ``products``, torch's matrix products. The constants of the
        estimate were fitted to the times of 165 trainings of different shapes on one core. The
        choice depends only on the arguments, so that results do not depend on other devices.

        Args:
            samples: count of the device's samples.
            width: count of samples in a padded batch.
            steps: count of SGD steps.

        Returns:
            The method; always the argument ``way`` of the class if that was given.
        """
        if self._fixed_way is not None:
            return self._fixed_way
        inputs, outputs = self.sizes[:2]
        width = min(width, samples)
        rest_kernels = sum(below * above for below, above in pairwise(self.sizes[1:]))
        rest = rest_kernels * (3 * width + _LOOP_UPDATE_COST)
        gram = _GRAM_COST + samples * inputs * (samples + 2 * outputs) / _PRODUCT_SPEED
        product = _PRODUCT_STEP_COST + self._parameters * (
            2 * width / _PRODUCT_SPEED + _PRODUCT_UPDATE_COST
        )
        costs: dict[Way, float] = {
            "weight space": steps * (inputs * outputs * (2 * width + _LOOP_UPDATE_COST) + rest),
            "sample space": gram + steps * (samples * outputs * (width + _LOOP_UPDATE_COST) + rest),
            "products": samples * inputs * _COPY_COST + steps * product,
        }
        return min(costs, key=lambda way: costs[way])

    @torch.inference_mode()
    def solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        way = self.way(len(solve.x), solve.batches.rows.shape[1], solve.batches.steps)
        flat = self._flat([solve.weights])[0]
        if way == "products" or descent.held:
            return Solved(flat.numpy(), train_by_products(flat, self.sizes, solve, descent))
        if not solve.batches.steps:
            return Solved(flat.numpy(), float("nan"))
        prepare_entry = _in_sample_space if way == "sample space" else _in_weight_space
        loss = train(flat.numpy(), self.sizes, solve, descent, prepare_entry)
        return Solved(flat.numpy(), loss)

    @torch.inference_mode()
    def outputs_each(self, weights: Sequence[FlatModel], xs: Sequence[Tensor]) -> list[Tensor]:
        longest = max(len(x) for x in xs)
        samples = torch.zeros(len(xs), longest, self.sizes[0], dtype=self.dtype)
        for model_samples, x in zip(samples, xs, strict=True):
            model_samples[: len(x)] = x.reshape(len(x), -1)
        # features before samples: twice as fast for the few outputs of a classifier
        hidden = samples.transpose(1, 2)
        for layer, (kernel, bias) in enumerate(split(self._flat(weights), self.sizes)):
            if layer:
                hidden.relu_()
            hidden = torch.baddbmm(bias[:, :, None], kernel, hidden)
        return [logits[:, : len(x)].t() for logits, x in zip(hidden, xs, strict=True)]

    @torch.inference_mode()
    def outputs(self, weights: FlatModel, x: Tensor) -> Tensor:
        layers = []
        for kernel, bias in split(self._flat([weights]), self.sizes):
            layers.append((kernel[0].clone(), bias[0, :, None].clone()))
        samples = x.reshape(len(x), self.sizes[0]).to(self.dtype)
        logits = []
        for piece in torch.split(samples, _APPLIED_AT_ONCE):
            hidden = piece.t()  # features before samples, as in ``outputs_each``
            for layer, (kernel, bias) in enumerate(layers):
                if layer:
                    hidden.relu_()
                hidden = torch.addmm(bias, kernel, hidden)
            logits.append(hidden.t())
        return torch.cat(logits)

    def _flat(self, models: Sequence[FlatModel]) -> Tensor:
        """Copy models into aligned memory of torch, [models, d], in the solver's dtype."""
        flat = torch.empty(len(models), len(models[0]), dtype=self.dtype)
        for row, weights in zip(flat.numpy(), models, strict=True):
            row[:] = on_host(weights)
        return flat
