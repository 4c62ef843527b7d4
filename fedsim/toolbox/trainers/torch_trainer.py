"""Local training by any optimiser of ``torch.optim``.

torch is imported on demand, because reading most scenarios does not need torch.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.spec import Spec
from fedsim.learning.spec import LANES, Precision, Trainer, TrainingSession

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fedsim.learning.solvers.context import LocalData, TrainingContext

# arguments of torch's schedules that give the schedule's length in steps
_LENGTH_ARGUMENTS = ("T_max", "total_steps")
# optimisers that update each entry of a tensor independently of all other entries
_ELEMENTWISE_OPTIMISERS = (
    "ASGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
# arguments of torch's classes that a scenario cannot set in ``args``
_SET_ELSEWHERE = ("params", "lr", "optimizer", "last_epoch")


class LearningRateSchedule(Spec):
    """Keys of a schedule of ``torch.optim.lr_scheduler``, which changes the learning rate.

    The schedule starts from ``training.lr``.

    Attributes:
        name: class of the schedule, such as ``CosineAnnealingLR``.
        args: arguments of the class. ``T_max`` and ``total_steps`` are by default the length of the
            local training, in steps of the schedule; with ``every = "round"`` they have no such
            default.
        every: event after which the schedule advances: each ``step`` of the optimiser, each
            ``epoch``, or each ``round``. With ``step`` or ``epoch`` the schedule begins anew in
            each local training.
    """

    name: str
    args: dict[str, object] = Field(default_factory=dict)
    every: Literal["step", "epoch", "round"] = "step"

    def build(
        self, optimiser: "torch.optim.Optimizer", length: int, number: int = 0
    ) -> "torch.optim.lr_scheduler.LRScheduler":
        """Build torch's learning-rate schedule of an optimiser for one local training.

        If ``every`` is ``round``, the schedule is advanced to round ``number``.

        Args:
            optimiser: the optimiser whose learning rate changes.
            length: how often the schedule advances in the training: the count of optimiser steps or
                epochs. Not used if ``every`` is ``round``.
            number: index of the round, from 0.
        """
        from torch.optim import lr_scheduler

        schedule_class = getattr(lr_scheduler, self.name)
        arguments: dict[str, object] = {}
        if self.every != "round":
            parameters = inspect.signature(schedule_class).parameters
            for name in _LENGTH_ARGUMENTS:
                if name in parameters:
                    arguments[name] = max(length, 1)
        arguments.update(self.args)
        schedule: lr_scheduler.LRScheduler = schedule_class(optimiser, **arguments)
        if self.every == "round":
            # Torch warns if the optimiser makes no step before the schedule. This step has no
            # effect, as there are no gradients yet.
            optimiser.step()
            for _ in range(number):
                schedule.step()
        return schedule


class ParameterGroup(Spec):
    """Arguments of the optimiser for some parameters, such as no weight decay for biases.

    Attributes:
        match: patterns of the parameters' names in the model, such as ``*.bias``.
        args: arguments of the optimiser for these parameters.
    """

    match: list[str] = Field(min_length=1)
    args: dict[str, object]


class TorchTrainer(Trainer):
    """Local training of a device by an optimiser of ``torch.optim``.

    A step computes the loss and its gradient, clips the gradient, and calls the optimiser. The loss
    includes the terms that the strategy adds, such as FedProx's proximal term. The gradient of a
    step is the mean over the samples of ``accumulate`` batches, or of fewer batches at the end of
    an epoch.

    Attributes:
        optimizer: a class of ``torch.optim``, such as ``AdamW``.
        args: arguments of the optimiser; the learning rate is ``training.lr``.
        groups: sets of parameters with other arguments; a parameter belongs to the first group
            that matches its name.
        schedule: schedule of the learning rate; None: only ``lr_decay`` changes the rate.
        clip_norm: greatest L2 norm of the gradient of all parameters together, to which a longer
            gradient is scaled down; None: no limit.
        clip_value: greatest magnitude of each entry of the gradient, which is cut off there; None:
            no limit.
        accumulate: count of batches whose gradients are averaged for one step.
        label_smoothing: strength of label smoothing in the cross-entropy, from 0 (none) to 1.
        solver: ``reference``: trains one device at a time; ``cohort``: trains several devices at a
            time, as one stack of models, for optimisers that update each entry of a tensor
            independently.
        lanes: count of models in a stack of the ``cohort`` solver.
        precision: ``bf16``: torch computes the products of forward and backward passes in bfloat16
            (``torch.autocast``); weights, optimiser and tests remain float32.
    """

    renamed: ClassVar[Mapping[str, str]] = {"optimiser": "optimizer"}

    kind: Literal["torch"] = "torch"
    optimizer: str = "SGD"
    args: dict[str, object] = Field(default_factory=dict)
    groups: list[ParameterGroup] = Field(default_factory=list)
    schedule: LearningRateSchedule | None = None
    clip_norm: float | None = Field(default=None, gt=0.0, le=1e9)
    clip_value: float | None = Field(default=None, gt=0.0, le=1e9)
    accumulate: int = Field(default=1, ge=1, le=1_000_000)
    label_smoothing: float = Field(default=0.0, ge=0.0, le=1.0)
    solver: Literal["reference", "cohort"] = "reference"
    lanes: int = Field(default=LANES, ge=1, le=4096)
    precision: Precision = "float32"

    applies_terms: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_with_torch(self) -> Self:
        """Check that torch accepts the optimiser's and the schedule's names and arguments.

        A trial of two steps on small tensors is part of the check.

        Raises:
            ValueError: torch has no such class or argument, or the trial fails.
        """
        self._check_names()
        try:
            self._try_two_steps()
        except Exception as error:
            raise ValueError(
                f"'optimizer' is {self.optimizer!r}, with which torch takes no step as asked: "
                f"{error}"
            ) from error
        return self

    def _check_names(self) -> None:
        """Check that torch has the optimiser and the schedule, and that they have all arguments.

        Raises:
            ValueError: torch has no such class or argument.
        """
        import torch
        from torch.optim import lr_scheduler

        optimisers = _classes(torch.optim, torch.optim.Optimizer)
        _refuse_unknown("optimizer", self.optimizer, "args", self.args, optimisers)
        for group in self.groups:
            _refuse_unknown("optimizer", self.optimizer, "groups.args", group.args, optimisers)
        if self.schedule is not None:
            schedules = _classes(lr_scheduler, lr_scheduler.LRScheduler)
            _refuse_unknown(
                "schedule.name", self.schedule.name, "schedule.args", self.schedule.args, schedules
            )

    def _try_two_steps(self) -> None:
        """Make two steps of the optimiser and its schedule, on small parameters of each group.

        Torch checks the values of arguments in these steps, or when the objects are created; it
        raises errors of any class.
        """
        import torch

        parameters = {"": torch.nn.Parameter(torch.zeros(2))}
        for pattern in self._patterns:  # the pattern itself is the parameter's name
            parameters[pattern] = torch.nn.Parameter(torch.zeros(2, 2))
        optimiser = self.torch_optimiser(parameters, self.lr)
        schedule = None if self.schedule is None else self.schedule.build(optimiser, 2)
        for _ in range(2):
            for parameter in parameters.values():
                parameter.grad = torch.ones_like(parameter)
            optimiser.step()
            if schedule is not None:
                schedule.step()

    @property
    def _patterns(self) -> list[str]:
        """Patterns of parameter names of all ``groups``, in order."""
        patterns = []
        for group in self.groups:
            patterns += group.match
        return patterns

    def check_model(self, model: "nn.Module", *, usual_loss: bool) -> None:
        """Check that each pattern of ``groups`` matches a parameter that the model trains.

        With another loss than cross-entropy, check too that there is no label smoothing.

        Args:
            model: the module.
            usual_loss: whether the loss is cross-entropy.

        Raises:
            ScenarioError: a pattern matches nothing, or the loss has no label smoothing.
        """
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for pattern in self._patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ScenarioError(
                    f"training.groups has the pattern {pattern!r}, which matches no parameter "
                    "of the model; it has "
                    f"{', '.join(names)}{nearest(pattern, names)}"
                )
        if self.label_smoothing and not usual_loss:
            raise ScenarioError(
                f"training.label_smoothing is {self.label_smoothing:g}, which the usual "
                "cross-entropy alone has, and here the "
                "loss is another one; allowed is 0"
            )

    def torch_optimiser(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float
    ) -> "torch.optim.Optimizer":
        """Create the optimiser, in which parameters of the same entry of ``groups`` are one group.

        Parameters that no entry matches are a further group, with the optimiser's usual arguments.

        Args:
            parameters: the parameters by name.
            lr: the learning rate.
        """
        import torch

        groups: list[dict[str, Any]] = [{"params": [], **group.args} for group in self.groups]
        groups.append({"params": []})  # last, as ``_group_of`` returns -1 if no entry matches
        for name, parameter in parameters.items():
            groups[self._group_of(name)]["params"].append(parameter)
        filled_groups = [group for group in groups if group["params"]]
        optimiser_class = getattr(torch.optim, self.optimizer)
        optimiser: torch.optim.Optimizer = optimiser_class(filled_groups, lr=lr, **self.args)
        return optimiser

    def _group_of(self, name: str) -> int:
        """Return the index of the first entry of ``groups`` that matches a name; -1 if none.

        A name that equals a pattern is also matched, for the trial in ``_try_two_steps``.
        """
        for position, group in enumerate(self.groups):
            if name in group.match or any(fnmatchcase(name, pattern) for pattern in group.match):
                return position
        return -1

    @property
    def in_bf16(self) -> bool:
        return self.precision == "bf16"

    @property
    def stack_lanes(self) -> int:
        return self.lanes if self.solver == "cohort" else 1

    @property
    def stack_obstacle(self) -> str:
        if self.optimizer not in _ELEMENTWISE_OPTIMISERS:
            return f"training.optimizer {self.optimizer!r} looks at whole tensors"
        if self.accumulate > 1:
            return "training.accumulate ends a step at other batches for each device"
        if self.state != "fresh":
            return f"training.state {self.state!r} differs from device to device"
        return ""

    @property
    def has_schedule(self) -> bool:
        return self.schedule is not None

    @property
    def loss_options(self) -> Mapping[str, float]:
        return {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}

    def stack_steps(
        self, parameters: "Mapping[str, nn.Parameter]", session: TrainingSession
    ) -> Callable[[], None]:
        """Return a function that clips the gradients of all stacked models, and moves the models.

        The function also advances the schedule of the learning rate, if the rate changes within a
        training.

        Args:
            parameters: name -> parameter of all W stacked models, [W, *shape].
            session: learning rate, round and counts of steps, which the trainings share.

        Returns:
            The function, without arguments; called once for each step, after the backward pass.
        """
        from fedsim.toolbox.trainers.stacked import StackedOptimizer, SteppedSchedule

        optimizer = self.torch_optimiser(parameters, session.lr)
        changes_within_training = None
        if self.schedule is not None:
            is_by_epoch = self.schedule.every == "epoch"
            length = session.epochs if is_by_epoch else session.steps
            # a schedule by rounds sets the rate of this round here, and does not change it later
            schedule = self.schedule.build(optimizer, length, session.round)
            if self.schedule.every != "round":
                steps_per_change = session.per_epoch if is_by_epoch else 1
                changes_within_training = SteppedSchedule(schedule, steps_per_change, session.steps)
        stack = StackedOptimizer(
            optimizer, parameters, self.clip_norm, self.clip_value, changes_within_training
        )
        return stack.step

    @property
    def has_no_state(self) -> bool:
        has_momentum = any(group.args.get("momentum") for group in self.groups)
        has_momentum |= bool(self.args.get("momentum"))
        return self.optimizer == "SGD" and not has_momentum

    def state_numbers(self, shapes: "Mapping[str, Sequence[int]]") -> int:
        """Count the numbers in the optimiser's state, by a trial step on tensors without memory.

        Args:
            shapes: shapes of the model's tensors by name.

        Returns:
            The count; 0 if the optimiser cannot step without actual numbers.
        """
        import torch

        # tensors on ``meta`` have a shape but no numbers; optimisers create their state in the step
        parameters = {}
        for name, shape in shapes.items():
            parameters[name] = torch.nn.Parameter(torch.empty(*shape, device="meta"))
        optimiser = self.torch_optimiser(parameters, self.lr)
        for parameter in parameters.values():
            parameter.grad = torch.empty_like(parameter)
        try:
            optimiser.step()
        except RuntimeError:  # the optimiser reads numbers, which tensors on ``meta`` lack
            return 0
        count = 0
        for state in optimiser.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    count += value.numel()
        return count

    def train(
        self, model: "nn.Module", data: "LocalData", context: "TrainingContext"
    ) -> "tuple[Mapping[str, Tensor], Mapping[str, float]]":
        """Train the module on all batches; ``accumulate`` batches give one step of the optimiser.

        An epoch's last step may have fewer batches. The optimiser begins with ``context.state``, in
        which its state is stored again at the end.

        Args:
            model: the module, which is changed.
            data: the device's batches, in their order.
            context: the loss and the settings of the training.

        Returns:
            The trained tensors by name; and no reported numbers, an empty dict.
        """
        import torch

        parameters = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameters[name] = parameter
        optimiser = self.torch_optimiser(parameters, context.lr)
        _load_state(optimiser, parameters, context.state)
        shares = _step_shares(data.counts, data.ends, self.accumulate)
        schedule = None
        if self.schedule is not None:
            step_count = sum(ends_step for _, ends_step in shares)
            length = context.epochs if self.schedule.every == "epoch" else step_count
            # a schedule by rounds sets the rate of this round here, and does not change it later
            schedule = self.schedule.build(optimiser, length, context.round)
        options = self.loss_options
        for (x, y), (share, ends_step), ends_epoch in zip(data, shares, data.ends, strict=True):
            # The gradients of a step's batches add up. The batches' shares sum to 1, so that the
            # sum is the mean over the samples of the step.
            torch.autograd.backward(share * context.loss(context.forward(model, x), y, **options))
            if not ends_step:  # further batches add to the gradient of this step
                continue
            self._clip_gradients([*parameters.values()])
            optimiser.step()
            optimiser.zero_grad()
            if schedule is not None and self._changes_rate(ends_epoch):
                schedule.step()
        context.state = _save_state(optimiser, parameters)
        return model.state_dict(), {}

    def _changes_rate(self, ends_epoch: bool) -> bool:
        """Return whether the schedule changes the learning rate after a step of the optimiser.

        Args:
            ends_epoch: whether it is the last step of an epoch.
        """
        every = None if self.schedule is None else self.schedule.every
        return every == "step" or (every == "epoch" and ends_epoch)

    def _clip_gradients(self, parameters: "Collection[nn.Parameter]") -> None:
        """Scale down all gradients together to ``clip_norm``, then cut entries at ``clip_value``."""
        from torch.nn.utils import clip_grad_norm_, clip_grad_value_

        if self.clip_norm is not None:
            clip_grad_norm_(parameters, self.clip_norm)
        if self.clip_value is not None:
            clip_grad_value_(parameters, self.clip_value)

    @property
    def steps_along_gradient(self) -> bool:
        is_plain = not (self.args.keys() - {"weight_decay"} or self.groups or self.schedule)
        return self.optimizer == "SGD" and is_plain and self.accumulate == 1


def _load_state(
    optimiser: "torch.optim.Optimizer",
    parameters: "Mapping[str, nn.Parameter]",
    state: Mapping[str, "Tensor"],
) -> None:
    """Restore the state of an optimiser that ``_save_state`` has returned.

    Args:
        optimiser: the optimiser.
        parameters: its parameters by name.
        state: ``PARAMETER/KEY`` -> tensor. Scalars have the shape [1] in it, and get the shape []
            in the optimiser.
    """
    for name, value in state.items():
        owner, _, key = name.rpartition("/")
        parameter = parameters[owner]
        is_scalar = value.shape == (1,) and parameter.shape != (1,)
        optimiser.state[parameter][key] = value[0] if is_scalar else value


def _save_state(
    optimiser: "torch.optim.Optimizer", parameters: "Mapping[str, nn.Parameter]"
) -> dict[str, "Tensor"]:
    """Return an optimiser's state as ``PARAMETER/KEY`` -> tensor, such as ``fc.bias/exp_avg``."""
    state = {}
    for name, parameter in parameters.items():
        for key, value in optimiser.state[parameter].items():
            if value is not None:
                state[f"{name}/{key}"] = value
    return state


def _step_shares(
    counts: "list[int]", ends: "list[bool]", accumulate: int
) -> list[tuple[float, bool]]:
    """Return the weight of each batch in the accumulated gradient of its optimiser step.

    Args:
        counts: number of samples in each batch.
        ends: whether each batch is the last of its epoch, and so ends a step early.
        accumulate: number of batches in a full step.

    Returns:
        For each batch its weight, which is its share of the samples of its step, and whether it is
        the last batch of the step.
    """
    steps: list[list[int]] = [[]]  # for each step the sample counts of its batches
    for count, ends_epoch in zip(counts, ends, strict=True):
        steps[-1].append(count)
        if ends_epoch or len(steps[-1]) == accumulate:
            steps.append([])
    shares = []
    for step in steps:
        for number, count in enumerate(step, start=1):
            ends_step = number == len(step)
            shares.append((count / sum(step), ends_step))
    return shares


def _classes(module: ModuleType, base: type) -> dict[str, type]:
    """Return the public subclasses of ``base`` that a module has, by name, sorted by name."""
    classes = {}
    for name, value in sorted(vars(module).items()):
        is_private = name.startswith("_") or value is base
        if not is_private and inspect.isclass(value) and issubclass(value, base):
            classes[name] = value
    return classes


def _refuse_unknown(
    key: str, name: str, key_of_args: str, args: Mapping[str, object], classes: Mapping[str, type]
) -> None:
    """Check the name of a class of torch, and the names of arguments for it.

    Args:
        key: the scenario's key of ``name``, for error messages.
        name: name of the class.
        key_of_args: the scenario's key of ``args``, for error messages.
        args: name of an argument -> its value, which is not checked.
        classes: all allowed classes, by name.

    Raises:
        ValueError: there is no such class, or its constructor lacks an argument.
    """
    if name not in classes:
        raise ValueError(
            f"{key!r} is {name!r}; allowed are torch's {', '.join(classes)}{nearest(name, classes)}"
        )
    parameters = inspect.signature(classes[name]).parameters
    allowed = [parameter for parameter in parameters if parameter not in _SET_ELSEWHERE]
    for argument in args:
        if argument not in allowed:
            why = "is said by training.lr" if argument == "lr" else f"{name} does not take"
            raise ValueError(
                f"{key_of_args!r} has {argument!r}, which {why}; allowed are "
                f"{', '.join(allowed)}{nearest(argument, allowed)}"
            )
