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
from fedsim.learning.solvers.compiled import compiling
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
# Count of outputs of the first layer above which sample space is faster if the coefficients A of
# the samples, in W = a W_0 + b C + A^T X, are stored as [samples, outputs] (``is_transposed``).
_FEW_OUTPUTS = 32


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


def _round_up(count: int, step: int) -> int:
    """Return the least multiple of ``step`` that is at least ``count``."""
    return (count + step - 1) // step * step


def _parameter(
    arrays: Sequence[AnyFloats],
    constants: Sequence[AnyFloats] | None,
    descent: Descent,
    dtype: np.dtype[np.floating],
    *,
    in_fours: bool = True,
) -> Parameter:
    """Stack matrices, such as the kernels of several layers, into one parameter of the loops.

    The parameter also has a velocity if the rule of descent has momentum, and the start values if
    it has a proximal term.

    Args:
        arrays: the matrices, which are padded with zeros to one shape.
        constants: for each matrix, the part of its gradient that is equal in all steps; None for 0.
        descent: the rule of an SGD step.
        dtype: dtype of the stacks.
        in_fours: whether rows are padded to a multiple of four, as the loops need for kernels.

    Returns:
        Stacks of shape [matrices, rows, columns]; a stack that the rule does not need has no rows.
    """
    rows = max((array.shape[0] for array in arrays), default=0)
    columns = max((array.shape[1] for array in arrays), default=0)
    if in_fours:
        rows = _round_up(rows, 4)

    def stack(matrices: Sequence[AnyFloats]) -> AnyFloats:
        stacked = np.zeros((len(matrices), rows, columns), dtype)
        for padded, matrix in zip(stacked, matrices, strict=True):
            padded[: matrix.shape[0], : matrix.shape[1]] = matrix
        return stacked

    weight = stack(arrays)
    without_rows = weight[:, :0]
    velocity = np.zeros_like(weight) if descent.momentum else without_rows
    start = weight.copy() if descent.mu else without_rows
    constant = without_rows if constants is None else stack(constants)
    return Parameter(weight, velocity, start, constant)


PreparedLayer = tuple[FirstLayer, Callable[[], object]]
"""First layer for the loops, and a function that writes its trained kernel into the flat model.

The kernel in the flat model does not change before this function is called.
"""


def _in_weight_space(
    solve: LocalSolve, kernel: AnyFloats, constant: AnyFloats | None, descent: Descent
) -> PreparedLayer:
    """Prepare the training of the first layer, in which each step changes the layer's kernel.

    Args:
        solve: the device's start model, samples and batches.
        kernel: the kernel before the training, [outputs, inputs]; overwritten by the trained one.
        constant: part of the gradient that is equal in all steps, [outputs, inputs]; None for 0.
        descent: the rule of an SGD step.

    Returns:
        The first layer for the loops, and a function that writes the trained kernel.
    """
    samples = solve.x.numpy().reshape(len(solve.x), -1).astype(kernel.dtype, copy=False)
    samples = np.ascontiguousarray(samples)
    constants = None if constant is None else [constant]
    stacks = _parameter([kernel], constants, descent, kernel.dtype)
    trained = Parameter(*(stack[0] for stack in stacks))  # each stack has one matrix
    # empty, as only sample space has products and shares
    no_products = kernel[None, :0]
    no_shares = kernel[:0]
    first_layer = FirstLayer(samples, trained, no_products, no_shares, is_transposed=False)
    return first_layer, lambda: np.copyto(kernel, trained.weight[: len(kernel)])


def _in_sample_space(
    solve: LocalSolve, kernel: AnyFloats, constant: AnyFloats | None, descent: Descent
) -> PreparedLayer:
    """Prepare the training of the first layer, in which steps change coefficients of the samples.

    The kernel W is not computed in each step. It is W = a W_0 + b C + A^T X, where X are the
    device's samples, [n, inputs], and A their coefficients, [n, outputs], which the steps change.
    This function computes the products of W_0 and C with the samples.

    Args:
        solve: the device's start model, samples and batches.
        kernel: W_0, the kernel before the training, [outputs, inputs], in torch's memory;
            overwritten by the trained kernel.
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
    padded_count = _round_up(count, _LINE)
    # The samples are copied to torch's memory, which is aligned, because the last bits of a product
    # depend on alignment.
    samples = start.new_empty(count, inputs)
    samples.copy_(solve.x.reshape(count, inputs))
    gram = start.new_zeros(count, padded_count)  # X X^T
    torch.mm(samples, samples.t(), out=gram[:, :count])
    bases = [start]  # W_0 (and C)
    # Two parts of the gradient are equal in all steps. One is C. The other is -mu W_0 of the
    # proximal term mu (W - W_0); its part mu W is in the shrinkage.
    shares = [_shares(descent, steps, initial_share=1.0, gradient_factor=-descent.mu)]
    if constant is not None:
        bases.append(torch.tensor(constant))
        shares.append(_shares(descent, steps, initial_share=0.0, gradient_factor=1.0))
    products = start.new_empty(len(bases), count, outputs)
    for base, base_products in zip(bases, products, strict=True):
        # this order is faster than the product ``samples @ base.t()``
        base_products.copy_(torch.mm(base, samples.t()).t())
    is_transposed = outputs > _FEW_OUTPUTS
    shape = (padded_count, outputs) if is_transposed else (_round_up(outputs, 4), padded_count)
    coefficients = start.new_zeros(shape)  # A if ``is_transposed``, else A^T; padded
    weight = coefficients.numpy()
    without_rows = weight[:0]
    velocity = np.zeros_like(weight) if descent.momentum else without_rows
    trained = Parameter(weight, velocity, start=without_rows, constant=without_rows)
    first_layer = FirstLayer(
        gram.numpy(), trained, products.numpy(), np.array(shares, kernel.dtype), is_transposed
    )

    def write_kernel() -> None:
        # W = a W_0 + A^T X + b C, with the a and b after the last step. ``start`` is W_0 before
        # these lines, and W after them, in the memory of ``kernel``.
        by_output = coefficients[:count].t() if is_transposed else coefficients[:outputs, :count]
        start.addmm_(by_output, samples, beta=shares[0][-1])  # ``by_output`` is A^T
        for base, base_shares in zip(bases[1:], shares[1:], strict=True):
            start.add_(base, alpha=base_shares[-1])

    return first_layer, write_kernel


def _shares(
    descent: Descent, steps: int, *, initial_share: float, gradient_factor: float
) -> list[float]:
    """Return the share of a fixed matrix in the kernel, before each step and after the last.

    In sample space the kernel is a sum of matrices with factors, the shares. SGD moves each share a
    independently. With velocity v, a step is v <- momentum v + shrinkage a + g; a <- a - lr v.

    Args:
        descent: the rule of an SGD step.
        steps: count of steps.
        initial_share: the share before the first step.
        gradient_factor: g, the factor of the matrix in each gradient, without the shrinkage.

    Returns:
        ``steps + 1`` shares.
    """
    shrinkage = descent.shrinkage(is_kernel=True)
    if not (shrinkage or descent.momentum):  # all steps are equal
        step_length = descent.lr * gradient_factor
        return [initial_share - step_length * step for step in range(steps + 1)]
    share = initial_share
    velocity = 0.0
    shares = [share]
    for _ in range(steps):
        velocity = descent.momentum * velocity + shrinkage * share + gradient_factor
        share -= descent.lr * velocity
        shares.append(share)
    return shares


@cache
def prepare(dtype: torch.dtype) -> None:
    """Compile the training loops for a dtype, or load their machine code, before they are used.

    A training with one step on one sample compiles them. Later calls for the same dtype do nothing.
    """
    batches = Batches(np.zeros((1, 1), np.int64), np.ones(1, np.int64), last_epoch=0)
    weights = torch.zeros(4, dtype=dtype).numpy()
    solve = LocalSolve(weights, torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), batches)
    with compiling(descend):
        train(weights, (1, 2), solve, Descent(lr=1.0), _in_weight_space)


def train(
    flat: AnyFloats,
    sizes: Sequence[int],
    solve: LocalSolve,
    descent: Descent,
    prepare_first_layer: Callable[..., PreparedLayer],
) -> float:
    """Train a model of dense layers in place, by compiled loops.

    Args:
        flat: the model, [d], which is trained in place. The array must share memory that torch has
            allocated, as its alignment determines the last bits of the result.
        sizes: count of features, then the count of outputs of each layer.
        solve: the device's start model, samples and batches, of at least one step.
        descent: the rule of an SGD step.
        prepare_first_layer: function that prepares the training of the first layer:
            ``_in_weight_space`` (steps change the kernel), or ``_in_sample_space`` (steps change
            coefficients of the device's samples, from which the kernel is computed at the end).

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
    # copies of the weights in padded arrays, which the loops train
    first_layer, write_kernel = prepare_first_layer(solve, layers.first, first_constant, descent)
    kernels = _parameter(layers.kernels, kernel_constants, descent, flat.dtype)
    biases = _parameter(layers.biases, bias_constants, descent, flat.dtype, in_fours=False)
    rule = _rule_of(descent, flat.dtype)
    plan = LoopPlan(solve.y.numpy(), batches.rows, batches.counts, batches.last_epoch)
    loss_sum = descend(first_layer, kernels, biases, np.array(sizes[1:]), plan, rule)
    # the trained weights go back into ``flat``
    write_kernel()
    _unstack(kernels, layers.kernels)
    _unstack(biases, layers.biases)
    return batches.mean_loss(loss_sum)


def _rule_of(descent: Descent, dtype: np.dtype[np.floating]) -> Rule:
    """Return the rule of an SGD step as the compiled loops take it, in the model's dtype."""
    as_number = dtype.type
    return Rule(
        lr=as_number(descent.lr),
        momentum=as_number(descent.momentum),
        mu=as_number(descent.mu),
        kernel_shrinkage=as_number(descent.shrinkage(is_kernel=True)),
        bias_shrinkage=as_number(descent.shrinkage(is_kernel=False)),
    )


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
        solve: the device's start model, samples and batches, of zero or more steps.
        descent: the rule of an SGD step.

    Returns:
        The mean loss over the last epoch; NaN if there are no steps.
    """
    layers = list(split(weights, sizes))
    # one object for each tensor: the first layer's kernel, its bias, the second layer's kernel, ...
    parameter_steps = _parameter_steps(layers, sizes, solve, descent)
    batches = solve.batches
    x = solve.x.reshape(len(solve.x), -1).to(weights.dtype)
    loss_sum = 0.0
    rows = torch.from_numpy(batches.rows)
    for step, count in enumerate(batches.counts.tolist()):
        batch = rows[step, :count]
        # forward pass: the inputs of each layer, and the log-probabilities of the classes
        inputs = [x[batch]]
        for kernel, bias in layers[:-1]:
            inputs.append(torch.addmm(bias, inputs[-1], kernel.t()).relu_())
        kernel, bias = layers[-1]
        log_probabilities = torch.addmm(bias, inputs[-1], kernel.t()).log_softmax(1)
        labels = solve.y[batch][:, None]
        if step >= batches.last_epoch:
            loss_sum -= float(log_probabilities.gather(1, labels).sum(dtype=torch.float64))
        # ``error`` is the gradient of the mean loss with respect to a layer's outputs. For the last
        # layer, whose outputs are the logits, it is (probabilities - one-hot labels) / count. It is
        # computed in place, and overwrites the log-probabilities.
        minus_one = log_probabilities.new_full((count, 1), -1.0)
        error = log_probabilities.exp_().scatter_add_(1, labels, minus_one).div_(count)
        for layer in range(len(layers) - 1, 0, -1):
            kernel, _ = layers[layer]
            error_below = torch.mm(error, kernel)  # before the step changes the kernel
            parameter_steps[2 * layer].descend_product(error.t(), inputs[layer])
            parameter_steps[2 * layer + 1].descend(error.sum(0))
            # gradient of the ReLU: 0 where its output is 0
            error = torch.ops.aten.threshold_backward(error_below, inputs[layer], 0)
        parameter_steps[0].descend_product(error.t(), inputs[0])
        parameter_steps[1].descend(error.sum(0))
    return batches.mean_loss(loss_sum)


def _parameter_steps(
    layers: Sequence[tuple[Tensor, Tensor]],
    sizes: Sequence[int],
    solve: LocalSolve,
    descent: Descent,
) -> list[ParameterStep]:
    """Return an object for each kernel and bias that takes its SGD steps, in the model's order.

    This is the order of the flat model: each layer's kernel, then its bias.

    Args:
        layers: each layer's kernel, [outputs, inputs], and bias, [outputs], as views of the model.
        sizes: count of features, then the count of outputs of each layer.
        solve: the device's start model, samples and batches.
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
        rule = descent.for_tensor(begin, end)
        shrinkage = rule.shrinkage(is_kernel=tensor.ndim > 1)
        steps.append(ParameterStep(tensor, rule, shrinkage, tensor_constant))
        begin = end
    return steps


Method = Literal["weight space", "sample space", "products"]
"""Method of training: compiled loops in weight space or in sample space, or torch's products.

Torch's matrix products cost more per call.
"""

_PRODUCT_SPEED = 2.5  # multiplications per second in torch's matrix products, relative to the loops
# Costs. The unit is the time of one multiplication in the compiled loops.
_LOOP_UPDATE_COST = 2  # update of one weight of a kernel, in the loops
_PRODUCT_UPDATE_COST = 20  # update of one weight of a kernel, by products
# cost of the preparation for training in sample space, in addition to its multiplications
_SAMPLE_SPACE_COST = 1_000_000
_PRODUCT_STEP_COST = 2_000_000  # all calls of torch in one step, in addition to multiplications
_COPY_COST = 48  # copy of one value of a sample
# count of samples in one product of a forward pass of ``outputs``, in whole cache lines
_APPLIED_AT_ONCE = 256


class Dense(Solver):
    """Solver for logistic regression and perceptrons with cross-entropy, on a CPU.

    Gradients are computed in closed form, without autograd, which is much faster for small models.
    ``Reference`` trains the same models.

    Args:
        architecture: the layers, which are dense (``Architecture.is_dense``).
        dtype: float32; float64 for tests of the gradients.
        method: the method by which all devices are trained. ``weight space``: compiled loops whose
            steps change the kernels. ``sample space``: compiled loops that represent the first
            kernel by coefficients of the device's samples. ``products``: torch's matrix products.
            None: the fastest method for each device (``choose_method``).
    """

    def __init__(
        self,
        architecture: Architecture,
        dtype: torch.dtype = torch.float32,
        *,
        method: Method | None = None,
    ) -> None:
        layers = [layer for _, layer in architecture.trained()]
        tensors = architecture.tensors
        kernels = {name for name, shape in tensors if len(shape) == 2}  # biases have one dimension
        super().__init__(torch.device("cpu"), tensors, kernels)
        self.dtype = dtype
        self._fixed_method = method
        self._architecture = architecture
        # count of features, then the count of outputs of each layer
        self.sizes = [layers[0].inputs, *(layer.outputs for layer in layers)]
        self._parameters = architecture.parameters
        prepare(dtype)

    @cached_property
    def by_autograd(self) -> Reference:
        return Reference(module_of(self._architecture), self.device, self.dtype)

    def choose_method(self, samples: int, width: int, steps: int) -> Method:
        """Choose the method by which a device's training is fastest, by an estimate of the times.

        ``weight space`` and ``sample space`` are compiled loops, which represent the first layer by
        its kernel or by coefficients of the device's samples. ``products`` are torch's matrix
        products. The estimate counts multiplications, in the time that one takes in the loops. Its
        constants were fitted to the times of 165 trainings of different shapes on one core. The
        choice depends only on the arguments, so that results do not depend on other devices.

        In sample space the first kernel is a W_0 + b C + A^T X. X are the samples, [samples,
        inputs], and W_0 is the kernel before the training, [outputs, inputs]. Each step changes A,
        the coefficients of the samples, [samples, outputs]. The term of C, which few strategies
        have, is not counted.

        Args:
            samples: count of the device's samples.
            width: count of samples in a padded batch.
            steps: count of SGD steps.

        Returns:
            The method; always the argument ``method`` of the class if that was given.
        """
        if self._fixed_method is not None:
            return self._fixed_method
        inputs, outputs = self.sizes[:2]
        width = min(width, samples)
        # cost of one step of all layers but the first, in the loops: for each weight and sample a
        # multiplication in the forward pass, the backward pass, and the gradient
        later_weights = sum(below * above for below, above in pairwise(self.sizes[1:]))
        later_cost = later_weights * (3 * width + _LOOP_UPDATE_COST)
        # cost of one step of the first layer, which has no backward pass
        first_cost_in_weight_space = inputs * outputs * (2 * width + _LOOP_UPDATE_COST)
        # for each number of A the products with the batch in the forward pass, and the update; the
        # gradient of A is the error, which needs no product
        first_cost_in_sample_space = samples * outputs * (width + _LOOP_UPDATE_COST)
        # multiplications by torch before and after the steps in sample space
        sample_products = (
            samples * inputs * samples  # X X^T, before the steps
            + outputs * inputs * samples  # W_0 X^T, before the steps
            + outputs * samples * inputs  # A^T X, after the steps
        )
        sample_space_cost = _SAMPLE_SPACE_COST + sample_products / _PRODUCT_SPEED
        # Cost of one step of all layers by torch's matrix products: for each weight and sample a
        # multiplication in the forward pass and in the gradient. The backward pass is not counted,
        # as the first layer, usually the largest, has none.
        cost_per_weight = 2 * width / _PRODUCT_SPEED + _PRODUCT_UPDATE_COST
        products_step_cost = _PRODUCT_STEP_COST + self._parameters * cost_per_weight
        costs: dict[Method, float] = {
            "weight space": steps * (first_cost_in_weight_space + later_cost),
            "sample space": sample_space_cost + steps * (first_cost_in_sample_space + later_cost),
            "products": samples * inputs * _COPY_COST + steps * products_step_cost,
        }
        return min(costs, key=lambda method: costs[method])

    @torch.inference_mode()
    def solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        """Train by the method that is fastest for the device's count of samples."""
        batches = solve.batches
        method = self.choose_method(len(solve.x), batches.rows.shape[1], batches.steps)
        flat = self._flat([solve.weights])[0]  # a copy, which is trained in place
        if method == "products" or descent.held:  # the loops cannot freeze weights
            return Solved(flat.numpy(), train_by_products(flat, self.sizes, solve, descent))
        if not batches.steps:
            return Solved(flat.numpy(), float("nan"))
        prepare_first_layer = _in_sample_space if method == "sample space" else _in_weight_space
        loss = train(flat.numpy(), self.sizes, solve, descent, prepare_first_layer)
        return Solved(flat.numpy(), loss)

    @torch.inference_mode()
    def outputs_each(self, weights: Sequence[FlatModel], xs: Sequence[Tensor]) -> list[Tensor]:
        """Apply all models together, each to its own samples, padded to one count."""
        longest = max(len(x) for x in xs)
        # the samples of all models, padded to one count: [models, longest, features]
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
        """Apply a model to samples, in blocks that stay in the cache."""
        layers = []
        for kernel, bias in split(self._flat([weights]), self.sizes):
            # clones begin at aligned memory, on which the last bits of products depend
            layers.append((kernel[0].clone(), bias[0, :, None].clone()))
        samples = x.reshape(len(x), self.sizes[0]).to(self.dtype)
        logits = []
        for block in torch.split(samples, _APPLIED_AT_ONCE):
            hidden = block.t()  # features before samples, as in ``outputs_each``
            for layer, (kernel, bias) in enumerate(layers):
                if layer:
                    hidden.relu_()
                hidden = torch.addmm(bias, kernel, hidden)
            logits.append(hidden.t())
        return torch.cat(logits)

    def _flat(self, models: Sequence[FlatModel]) -> Tensor:
        """Copy models into aligned memory of torch, [models, d], in the solver's dtype."""
        aligned = torch.empty(len(models), len(models[0]), dtype=self.dtype)
        for row, weights in zip(aligned.numpy(), models, strict=True):
            row[:] = on_host(weights)
        return aligned
