"""The cohort solver: local SGD of many devices together, as one stack of models by autograd."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import FedsimError
from fedsim.learning.host_copies import FlatModel, on_device, on_host, to_device, to_host
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, use_one_thread
from fedsim.learning.solvers.by_trainer import ByTrainer
from fedsim.learning.solvers.context import Representations, contrastive_terms
from fedsim.learning.solvers.reference import Reference, same_results
from fedsim.learning.solvers.stack import (
    LaneLoss,
    LaneSteps,
    OptimizerSteps,
    SgdSteps,
    Stack,
    plan_lanes,
)
from fedsim.learning.solvers.watched import ModuleCopy
from fedsim.learning.spec import LANES, Trainer, TrainingSession

_ALIGNED = 16  # sizes of padded batches are multiples of this, which aligns each lane's memory
_TOLERANCE = 1e-2  # greatest difference from plain torch (norm), relative to the step's change
_TOLERANCE_BF16 = 5e-2  # tolerance for products in bfloat16, which has 8 binary digits
_STEEP_LR = 2.0**24  # so large a learning rate that a gradient's last bits show in float32 weights
_NOISE = 0.1  # standard deviation of the noise that makes the weights of lanes differ
_FALLBACK_WARNING = (
    "There is a performance drop because we have not yet implemented the batching rule for "
)


def _warn_of_operations(*, warns: bool) -> None:
    """Set whether torch warns of operations that it cannot compute for a whole stack."""
    vars(torch._C._functorch)["_set_vmap_fallback_warning_enabled"](warns)


_warn_of_operations(warns=False)


class StackKind(NamedTuple):
    """Properties that trainings must share to be computed together, as one stack of models.

    Attributes:
        width: count of samples in a padded batch.
        descent: the rule of a step, with ``lr`` set to 0, as the learning rates of fedsim's SGD may
            differ within a stack.
        contrast: weight and temperature of the contrastive term of the loss; None for no term.
        has_constant: whether a part of the gradient is equal in all steps.
        session: learning rate, round and counts of steps, as far as the steps of a trainer's own
            optimiser depend on them; None for fedsim's SGD.
    """

    width: int
    descent: Descent
    contrast: tuple[float, float] | None
    has_constant: bool
    session: TrainingSession | None = None


class Cohort(Reference):
    """Solver that trains the models of several devices together, stacked by ``torch.func``.

    A stack has a fixed count of lanes, each with one model, and its batches are padded to one width.
    The bits of a result thus depend neither on the other lanes nor on the lane that computes it.
    Lanes that are left over repeat a training, and their results are dropped. A model that cannot
    be stacked is trained one device at a time, as by ``Reference``.

    Args:
        module: the module, which is copied and not changed.
        device: the torch device of the computation.
        dtype: dtype of weights and samples; None for the module's own dtypes.
        losses: computes the loss of each sample, [n]; None for softmax cross-entropy.
        lanes: count of models in a stack.

    Attributes:
        lanes: count of models in a stack.
        obstacle: the reason why the module can never be stacked; "" if there is none.
        stackable_widths: widths (counts of samples in a padded batch) at which ``try_stack`` has
            found that stacks give correct results. Trainings with batches of any other width are
            carried out one at a time.
        one_by_one: names of operations of the module that torch cannot compute for a whole stack,
            and computes model by model.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype | None = None,
        losses: Callable[..., Tensor] | None = None,
        lanes: int = LANES,
    ) -> None:
        super().__init__(module, device, dtype, losses)
        self._prepare_stacks(lanes)

    def _prepare_stacks(self, lanes: int) -> None:
        self.lanes = lanes
        self.obstacle = self._find_layer_obstacle()
        self.stackable_widths: set[int] = set()
        self.one_by_one: tuple[str, ...] = ()

    def _find_layer_obstacle(self) -> str:
        """Return the reason why the module's layers or tensors prevent stacks of models.

        Returns:
            The reason, such as a norm by the batch; "" if there is none.
        """
        for name, part in self._template.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                return f"{name or 'it'} is a {type(part).__name__}, a norm by the batch"
        for name, parameter in self._template.named_parameters():
            if parameter.is_complex():
                return f"its tensor {name} is complex"
        return ""

    @property
    def at_once(self) -> int:
        return self.lanes if self.stackable_widths else 1

    def solve(self, inputs: LocalSolve, descent: Descent) -> Solved:
        (solved,) = self.solve_all([(inputs, descent)])
        return solved

    def solve_all(self, trainings: Sequence[tuple[LocalSolve, Descent]]) -> list[Solved]:
        """Train in stacks of ``lanes`` models if that gives correct results, else one by one."""
        results: dict[int, Solved] = {}  # position in ``trainings`` -> result
        positions_of_kind: dict[StackKind, list[int]] = {}  # positions of trainings for one stack
        for position, (solve, descent) in enumerate(trainings):
            kind = self._kind_of(solve, descent)
            if solve.batches.steps and kind.width in self.stackable_widths:
                positions_of_kind.setdefault(kind, []).append(position)
            else:
                results[position] = super().solve(solve, descent)
        for kind, positions in positions_of_kind.items():
            for begin in range(0, len(positions), self.lanes):
                stacked = positions[begin : begin + self.lanes]
                solved = self._solve_stack(kind, [trainings[position] for position in stacked])
                results.update(zip(stacked, solved, strict=True))
        return [results[position] for position in range(len(trainings))]

    def _solve_stack(
        self, kind: StackKind, trainings: Sequence[tuple[LocalSolve, Descent]]
    ) -> list[Solved]:
        """Train several devices' models as one stack, and check a user's module for hidden state.

        Args:
            kind: properties that all trainings share.
            trainings: inputs and rule of descent of each training, at most ``lanes``.

        Returns:
            The result of each training, in order.
        """

        def train(copied_module: ModuleCopy) -> list[Solved]:
            return self.train_stack(copied_module, kind, trainings)

        first, descent = trainings[0]
        self._repeat_first_steps(first, descent)
        return self.watch.use(train, _are_equal, first.task.where, trains=True)

    def train_stack(
        self,
        copied_module: ModuleCopy,
        kind: StackKind,
        trainings: Sequence[tuple[LocalSolve, Descent]],
    ) -> list[Solved]:
        """Carry out several devices' trainings together, as one stack of models.

        If there are fewer trainings than ``lanes`` (places in the stack), the last one is repeated.

        Args:
            copied_module: a copy of the module.
            kind: properties that all trainings share.
            trainings: for each training, its inputs and its rule of descent; 1 to ``lanes``
                trainings, each with at least one step.

        Returns:
            The result of each training, in order.
        """
        unused_lanes = self.lanes - len(trainings)
        training_of_lane = [*trainings, *[trainings[-1]] * unused_lanes]
        solves = [solve for solve, _ in training_of_lane]
        plan = plan_lanes(solves, kind.width, self.device)
        x = torch.cat([self._as_input(solve.x) for solve in solves])
        y = torch.cat([solve.y for solve in solves])
        constant = None
        if kind.has_constant:
            constants = [solve.constant(descent) for solve, descent in trainings]
            # ``kind.has_constant`` holds for all trainings, so that none is left out
            constant = self._stack_models([value for value in constants if value is not None])
        with self.stack(copied_module, kind, solves) as stack:
            stack.load(self._stack_models([solve.weights for solve, _ in trainings]), constant)
            loss_sums = stack.descend(plan, x, y, self._lane_steps(kind, training_of_lane))
            weights = _models_of(stack.weights(), [solve for solve, _ in trainings])
        results = []  # results of the lanes that do not repeat a training
        host_loss_sums = to_host(loss_sums).tolist()
        for lane, (solve, _) in enumerate(trainings):
            results.append(Solved(weights[lane], solve.batches.mean_loss(host_loss_sums[lane])))
        return results

    def _stack_models(self, models: Sequence[FlatModel]) -> Tensor:
        """Return models as one tensor on the torch device, with a model for each lane of the stack.

        A model that occurs several times is copied once to the device. If all models are the same
        one, the lanes share its memory.

        Args:
            models: the models of the first lanes, float [d] each; the last model is repeated for
                the lanes that are left over.

        Returns:
            The models of all lanes, float [W, d], which must not be changed.
        """
        copies: dict[int, Tensor] = {}  # id(model) -> the model on the torch device
        for model in models:
            if id(model) not in copies:
                copies[id(model)] = on_device(model, self.device)
        if len(copies) == 1:
            return copies[id(models[0])].expand(self.lanes, -1)
        copy_of_lane = [copies[id(model)] for model in models]
        copy_of_lane += [copy_of_lane[-1]] * (self.lanes - len(models))
        return torch.stack(copy_of_lane)

    def _loss_options(self, kind: StackKind) -> Mapping[str, float]:
        """Return options of torch's ``cross_entropy`` for the trainings of a stack, by name."""
        return {}

    def _kind_of(self, solve: LocalSolve, descent: Descent) -> StackKind:
        return kind_of(solve, descent)

    def _lane_steps(
        self, kind: StackKind, lanes: Sequence[tuple[LocalSolve, Descent]]
    ) -> LaneSteps:
        """Return the optimiser that changes the models of a stack by their gradients.

        It is SGD here; a subclass returns the optimiser of a trainer.

        Args:
            kind: properties that all trainings share.
            lanes: inputs and rule of descent of the training in each lane (place in the stack); the
                learning rates may differ.
        """
        rates = [descent.lr for _, descent in lanes]
        lr = to_device(np.array(rates, dtype=np.float64), self.device)
        return SgdSteps(lr, kind.descent.momentum)

    @contextmanager
    def stack(
        self, copied_module: ModuleCopy, kind: StackKind, solves: Sequence[LocalSolve]
    ) -> Iterator["Stack"]:
        """Return a context that provides a stack of models for training, without weights yet.

        ``Stack.load`` sets the weights.

        Args:
            copied_module: a copy of the module.
            kind: properties that all trainings share.
            solves: the inputs of the training in each lane (place in the stack).
        """
        module = copied_module.module
        copied_module.restore()  # an earlier use of the copy may have replaced buffers
        losses = LaneLoss(self, copied_module, self._loss_options(kind))
        with ExitStack() as contexts:
            if kind.contrast is not None:  # MOON's term of the loss
                # The recorder hooks into the module. The hook stays for all steps of the training,
                # whose loss reads the representations by the current models, and is removed at the
                # end of the context.
                representations = Representations(module)
                contexts.callback(representations.close)
                with torch.no_grad():
                    losses.contrast = self._contrast_of_lanes(
                        copied_module, representations, solves
                    )
            # after the contrastive term, whose models are applied in evaluation mode
            module.train()
            yield Stack(losses, copied_module.model_tensors, kind.descent, self)

    def _contrast_of_lanes(
        self,
        copied_module: ModuleCopy,
        representations: Representations,
        solves: Sequence[LocalSolve],
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that computes MOON's contrastive term of each sample in a batch.

        The term compares representations of a sample (inputs of the last dense layer) by three
        models: the current one, the received one and the device's previous one. The
        representations by the received and the previous model do not change in the training. They
        are computed here, once, for all samples.

        Args:
            copied_module: the copy of the module, whose weights are overwritten.
            representations: the recorder of the inputs of the module's last dense layer.
            solves: the trainings of the lanes, all with a contrastive term.

        Returns:
            A function that returns the weighted terms, [b], given the indices [b], among the
            samples of all lanes, of the samples to which the module was applied last.
        """
        contrasts = [solve.contrast for solve in solves if solve.contrast is not None]

        def represent(weights: FlatModel, x: Tensor) -> Tensor:
            self._apply(copied_module, weights, x)  # ``representations`` records this forward pass
            return representations.take_all()

        # representations of each lane's samples by its two fixed models, [n, r] each
        by_received = []
        by_previous = []
        for solve, contrast in zip(solves, contrasts, strict=True):
            by_received.append(represent(solve.weights, solve.x))
            by_previous.append(represent(contrast.previous, solve.x))
        received = torch.cat(by_received)  # representations of the samples of all lanes
        previous = torch.cat(by_previous)
        term = contrasts[0]  # weight and temperature are equal in all lanes

        def contrast_of(rows: Tensor) -> Tensor:
            current = representations.take_last()  # recorded in the forward pass of this step
            return term.weight * contrastive_terms(
                current, received[rows], previous[rows], term.temperature
            )

        return contrast_of

    def try_stack(self, solve: LocalSolve, descent: Descent) -> str:
        """Test by one SGD step whether trainings with batches of this size can be stacked.

        If they can, the size is added to ``stackable_widths``. There are two conditions. The
        change by the step must agree with the change that ``Reference`` computes, up to rounding.
        The gradients must have the same bits in each lane (place) of a stack. For some sizes of
        tensors on a CPU the bits differ: the order of the sums in a matrix product depends on
        whether a lane's matrix begins at a cache line.

        Args:
            solve: the training of which the first step is tried.
            descent: the rule of its steps.

        Returns:
            The reason why such trainings are not stacked; "" if they are.
        """
        self.obstacle = self.obstacle or self._find_state_obstacle()
        if self.obstacle:
            return self.obstacle
        use_one_thread()
        first_step = replace(solve, batches=solve.batches.between(0, 1))
        kind = kind_of(first_step, descent)
        try:
            with _noted_operations() as operations:
                stacked = self.train_stack(self.watch.fresh(), kind, [(first_step, descent)])
            lanes_agree = self._lanes_agree(kind, first_step, descent)
            plain = Reference.solve(self, first_step, descent)
        except FedsimError:
            raise
        except Exception as error:  # torch raises many types for what it cannot stack
            lines = str(error).strip().splitlines() or [""]
            return f"torch cannot stack it ({type(error).__name__}: {lines[0]})"
        self.one_by_one = tuple(operations)
        if not lanes_agree:
            return "the last bits of its gradients depend on the place in a stack"
        reason = self._compare_with_plain(first_step, stacked[0], plain)
        if not reason:
            self.stackable_widths.add(kind.width)
        return reason

    def _compare_with_plain(self, step: LocalSolve, stacked: Solved, plain: Solved) -> str:
        """Compare the result of a stack with the result of plain torch for the same SGD step.

        The results may differ slightly, as sums are computed in different orders: the norm of the
        difference may be a small share of the norm of the step's change of the weights.

        Args:
            step: the inputs of the step.
            stacked: the result of a stack.
            plain: the result of ``Reference``.

        Returns:
            The reason why the stack is wrong; "" if the results agree.
        """
        plain_weights = on_host(plain.weights)
        change = float(np.linalg.norm(plain_weights - on_host(step.weights)))
        difference = float(np.linalg.norm(plain_weights - on_host(stacked.weights)))
        tolerance = _TOLERANCE_BF16 if self.in_bf16 else _TOLERANCE
        if difference > tolerance * change:
            return (
                f"a step differs from plain torch by {difference:.2g}, of a change of {change:.2g}"
            )
        return ""

    def _find_state_obstacle(self) -> str:
        """Return the reason why ``probe``'s trial of a user's module prevents stacks of models.

        Returns:
            The reason, such as random draws; "" if there is none.
        """
        if self.keyed["training"]:
            return "its module draws random numbers in forward"
        if self.watch.harmless:
            return f"its module keeps {', '.join(sorted(self.watch.harmless))} between steps"
        return ""

    def _lanes_agree(self, kind: StackKind, step: LocalSolve, descent: Descent) -> bool:
        """Return whether a model's gradient has the same bits in each lane (place) of a stack.

        Args:
            kind: properties that all trainings of the stack share.
            step: the inputs of a training of a single step.
            descent: the rule of the step.
        """
        generator = np.random.default_rng(0)
        steep_descent = replace(descent, lr=_STEEP_LR)
        start = on_host(step.weights)
        trainings = []
        for lane in range(self.lanes):
            noise = generator.normal(0.0, _NOISE, len(start))
            weights = (start + noise).astype(start.dtype)
            trainings.append((replace(step, weights=weights, key=lane), steep_descent))
        expected = self.train_stack(self.watch.fresh(), kind, trainings)
        # The results of a model must not depend on its lane. Each model is therefore trained again
        # some lanes further left, and its results are shifted back.
        for shift in {1, self.lanes // 2}:
            shifted = trainings[shift:] + trainings[:shift]
            shifted_results = self.train_stack(self.watch.fresh(), kind, shifted)
            results = shifted_results[-shift:] + shifted_results[:-shift]
            if not _are_equal(expected, results):
                return False
        return True


class CohortByTrainer(Cohort, ByTrainer):
    """Solver that trains the models of several devices together, by the optimiser of a trainer.

    The models are stacked, as by ``Cohort``.

    Args:
        module: the module, which is copied and not changed.
        device: the torch device of the computation.
        trainer: the trainer, whose optimiser changes each number of a tensor independently of all
            other numbers.
        losses: computes the loss of each sample, [n]; None for softmax cross-entropy.

    Raises:
        ScenarioError: the trainer cannot train the model.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        trainer: Trainer,
        losses: Callable[..., Tensor] | None = None,
    ) -> None:
        ByTrainer.__init__(self, module, device, trainer, losses)
        self._prepare_stacks(trainer.stack_lanes)
        self.obstacle = self.obstacle or trainer.stack_obstacle

    def _loss_options(self, kind: StackKind) -> Mapping[str, float]:
        return {} if kind.session is None else self._trainer.loss_options

    def _kind_of(self, solve: LocalSolve, descent: Descent) -> StackKind:
        session = TrainingSession(descent.lr)
        if self._trainer.has_schedule:  # the steps depend on round and counts of steps, too
            task = solve.task
            batches = solve.batches
            session = TrainingSession(
                descent.lr, task.round, task.epochs, batches.steps, batches.per_epoch
            )
        return kind_of(solve, descent)._replace(session=session)

    def _lane_steps(
        self, kind: StackKind, lanes: Sequence[tuple[LocalSolve, Descent]]
    ) -> LaneSteps:
        if kind.session is None:
            return super()._lane_steps(kind, lanes)
        return OptimizerSteps(partial(self._trainer.stack_steps, session=kind.session))


def kind_of(solve: LocalSolve, descent: Descent) -> StackKind:
    """Return the properties of a training that all trainings in its stack must share.

    Args:
        solve: the inputs of the training.
        descent: the rule of its steps.
    """
    columns = solve.batches.rows.shape[1]
    width = math.ceil(columns / _ALIGNED) * _ALIGNED
    same_descent = replace(descent, lr=0.0)  # learning rates may differ in a stack
    contrast = None
    if solve.contrast is not None:
        contrast = (solve.contrast.weight, solve.contrast.temperature)
    return StackKind(width, same_descent, contrast, solve.has_constant(descent))


def _models_of(weights: Tensor, solves: Sequence[LocalSolve]) -> list[FlatModel]:
    """Return the trained models of a stack, on the host or on the torch device.

    Each model is returned where the start of its training lies. All models for the host are copied
    there together.

    Args:
        weights: the models of all lanes on the torch device, float [W, d].
        solves: the inputs of the trainings, at most W.

    Returns:
        The models, float [d] each, in memory of their own.
    """
    results: list[FlatModel] = []
    host_weights: AnyArray | None = None
    for lane, solve in enumerate(solves):
        start = solve.weights
        if isinstance(start, Tensor):
            results.append(weights[lane].detach().to(start.dtype, copy=True))
            continue
        if host_weights is None:
            host_weights = to_host(weights)
        results.append(host_weights[lane].astype(start.dtype))
    return results


def _are_equal(first: Sequence[Solved], second: Sequence[Solved]) -> bool:
    """Return whether two lists of training results are equal bit for bit."""
    return all(same_results(*pair) for pair in zip(first, second, strict=True))


@contextmanager
def _noted_operations() -> Iterator[list[str]]:
    """Return a context that lists the operations that torch cannot compute for a whole stack.

    Yields:
        A list, to which the operations' names are added at the end of the context.
    """
    names: list[str] = []
    _warn_of_operations(warns=True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")  # else only the first of equal warnings is recorded
            yield names
    finally:
        _warn_of_operations(warns=False)
    for warning in caught:
        text = str(warning.message)
        if text.startswith(_FALLBACK_WARNING):  # its next word is the operation's name
            name = text.removeprefix(_FALLBACK_WARNING).split()[0].removesuffix(".")
            if name not in names:
                names.append(name)
