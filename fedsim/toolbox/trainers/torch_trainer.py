"""Local training by any optimiser of ``torch.optim``. torch is imported on demand: reading most
scenarios needs none.
"""

import inspect
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.spec import Spec
from fedsim.learning.spec import Trainer

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fedsim.learning.solvers.context import LocalData, TrainingContext

_LENGTHS = ("T_max", "total_steps")  # of schedules: how many steps they take to their end
_SAID_ELSEWHERE = ("params", "lr", "optimizer", "last_epoch")


class LearningRateSchedule(Spec):
    """A schedule of ``torch.optim.lr_scheduler``: the learning rate changes from ``training.lr``
    on.
    """

    name: str
    """its class, such as ``CosineAnnealingLR``."""
    args: dict[str, Any] = Field(default_factory=dict)
    """its arguments.

    ``T_max`` and ``total_steps`` are by default the length of the local training.
    """
    every: Literal["step", "epoch", "round"] = "step"
    """length of a step of the schedule.

    A schedule by ``step`` (of the optimiser) or ``epoch`` begins anew in each training.
    """

    def build(
        self, optimiser: "torch.optim.Optimizer", length: int, number: int = 0
    ) -> "torch.optim.lr_scheduler.LRScheduler":
        """The schedule of an optimiser, for a local training of so many of its steps in the
        round of this number.
        """
        from torch.optim import lr_scheduler

        found = getattr(lr_scheduler, self.name)
        asked = () if self.every == "round" else _LENGTHS
        usual = {
            name: max(length, 1) for name in asked if name in inspect.signature(found).parameters
        }
        made: lr_scheduler.LRScheduler = found(optimiser, **usual | self.args)
        if self.every == "round":
            # without any gradient: torch expects it before the first step of a schedule
            optimiser.step()
            for _ in range(number):
                made.step()
        return made


class ParameterGroup(Spec):
    """Parameters with arguments of their own, such as no weight decay."""

    match: list[str] = Field(min_length=1)
    """patterns of their names in the model, such as ``*.bias``."""
    args: dict[str, Any]
    """arguments of the optimiser for them."""


class TorchTrainer(Trainer):
    """Local training by an optimiser of ``torch.optim``, as a plain loop in torch: loss,
    backward, clipping, step.

    The loss has all terms of the strategy. A gradient is the mean over the samples of
    ``accumulate`` batches, fewer at the end of an epoch.
    """

    kind: Literal["torch"] = "torch"
    optimiser: str = "SGD"
    """a class of ``torch.optim``, such as ``AdamW``."""
    args: dict[str, Any] = Field(default_factory=dict)
    """its arguments; the learning rate is ``training.lr``."""
    groups: list[ParameterGroup] = Field(default_factory=list)
    """parameters with other arguments; each belongs to the first group that matches its name."""
    schedule: LearningRateSchedule | None = None
    """how the learning rate changes; None: by ``lr_decay`` alone."""
    clip_norm: float | None = Field(default=None, gt=0.0, le=1e9)
    """the gradient of all parameters is scaled down to this norm."""
    clip_value: float | None = Field(default=None, gt=0.0, le=1e9)
    """each number of the gradient is cut off at this value, and at its negative."""
    accumulate: int = Field(default=1, ge=1, le=1_000_000)
    """batches whose gradients make one step."""
    label_smoothing: float = Field(default=0.0, ge=0.0, le=1.0)
    """of the cross-entropy."""

    applies_terms: ClassVar[bool] = True

    @model_validator(mode="after")
    def _torch_takes_it(self) -> Self:
        """Refuse names and arguments that torch does not take, also by steps on small
        parameters.
        """
        import torch
        from torch.optim import lr_scheduler

        optimisers = _classes(torch.optim, torch.optim.Optimizer)
        for key, args in [
            ("args", self.args),
            *(("groups.args", group.args) for group in self.groups),
        ]:
            _refuse_unknown("optimiser", self.optimiser, key, args, optimisers)
        if self.schedule is not None:
            schedules = _classes(lr_scheduler, lr_scheduler.LRScheduler)
            _refuse_unknown(
                "schedule.name", self.schedule.name, "schedule.args", self.schedule.args, schedules
            )
        # each matches itself
        names = ["", *(pattern for group in self.groups for pattern in group.match)]
        parameters = {
            name: torch.nn.Parameter(torch.zeros(2, 2) if name else torch.zeros(2))
            for name in names
        }
        try:
            optimiser = self.torch_optimiser(parameters, self.lr)
            schedule = None if self.schedule is None else self.schedule.build(optimiser, 2)
            for _ in range(2):
                for parameter in parameters.values():
                    parameter.grad = torch.ones_like(parameter)
                optimiser.step()
                if schedule is not None:
                    schedule.step()
        except Exception as error:
            raise ValueError(
                f"'optimiser' is {self.optimiser!r}, with which torch takes no step as asked: "
                f"{error}"
            ) from error
        return self

    def check_model(self, model: "nn.Module", *, usual_loss: bool) -> None:
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for pattern in (pattern for group in self.groups for pattern in group.match):
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
        import torch

        parts: list[dict[str, Any]] = [{"params": [], **group.args} for group in self.groups] + [
            {"params": []}
        ]
        for name, parameter in parameters.items():
            of = (
                at
                for at, group in enumerate(self.groups)
                if any(fnmatchcase(name, pattern) for pattern in group.match)
            )
            parts[next(of, -1)]["params"].append(parameter)
        chosen = [part for part in parts if part["params"]]
        return getattr(torch.optim, self.optimiser)(chosen, lr=lr, **self.args)  # type: ignore[no-any-return]

    @property
    def has_no_state(self) -> bool:
        momenta = [
            self.args.get("momentum"),
            *(group.args.get("momentum") for group in self.groups),
        ]
        return self.optimiser == "SGD" and not any(momenta)

    def state_numbers(self, shapes: "Mapping[str, Sequence[int]]") -> int:
        import torch

        parameters = {
            name: torch.nn.Parameter(torch.empty(*shape, device="meta"))
            for name, shape in shapes.items()
        }
        optimiser = self.torch_optimiser(parameters, self.lr)
        for parameter in parameters.values():
            parameter.grad = torch.empty_like(parameter)
        try:
            optimiser.step()
        except RuntimeError:  # of one that looks at its numbers
            return 0
        values = (value for entry in optimiser.state.values() for value in entry.values())
        return sum(value.numel() for value in values if isinstance(value, torch.Tensor))

    def train(
        self, model: "nn.Module", data: "LocalData", context: "TrainingContext"
    ) -> "tuple[Mapping[str, Tensor], Mapping[str, float]]":
        import torch
        from torch.nn.utils import clip_grad_norm_, clip_grad_value_

        parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        optimiser = self.torch_optimiser(parameters, context.lr)
        for name, value in context.state.items():
            owner, _, part = name.rpartition("/")
            is_number = value.shape == (1,) != parameters[owner].shape
            optimiser.state[parameters[owner]][part] = value[0] if is_number else value
        shares = _shares(data.counts, data.ends, self.accumulate)
        every = None if self.schedule is None else self.schedule.every
        length = context.epochs if every == "epoch" else sum(is_last for _, is_last in shares)
        schedule = (
            None if self.schedule is None else self.schedule.build(optimiser, length, context.round)
        )
        options = {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}
        for (x, y), (share, is_last), ends in zip(data, shares, data.ends, strict=True):
            torch.autograd.backward(share * context.loss(model(x), y, **options))
            if not is_last:
                continue
            if self.clip_norm is not None:
                clip_grad_norm_(parameters.values(), self.clip_norm)
            if self.clip_value is not None:
                clip_grad_value_(parameters.values(), self.clip_value)
            optimiser.step()
            optimiser.zero_grad()
            if schedule is not None and (every == "step" or (every == "epoch" and ends)):
                schedule.step()
        states = (
            (name, *item)
            for name, parameter in parameters.items()
            for item in optimiser.state[parameter].items()
        )
        context.state = {
            f"{name}/{part}": value for name, part, value in states if value is not None
        }
        return model.state_dict(), {}

    @property
    def steps_along_gradient(self) -> bool:
        is_plain = not (self.args.keys() - {"weight_decay"} or self.groups or self.schedule)
        return self.optimiser == "SGD" and is_plain and self.accumulate == 1


def _shares(counts: "list[int]", ends: "list[bool]", accumulate: int) -> list[tuple[float, bool]]:
    """The share of each batch in the gradient of its step, by samples, and whether it is the
    step's last.
    """
    steps: list[list[int]] = [[]]
    for count, end in zip(counts, ends, strict=True):
        steps[-1].append(count)
        if end or len(steps[-1]) == accumulate:
            steps.append([])
    return [
        (count / sum(step), at + 1 == len(step)) for step in steps for at, count in enumerate(step)
    ]


def _classes(module: Any, base: type) -> dict[str, type]:
    """The subclasses of a base in a module, by name."""
    found = {
        name: each
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, base)
    }
    return {
        name: each
        for name, each in sorted(found.items())
        if each is not base and not name.startswith("_")
    }


def _refuse_unknown(
    key: str, name: str, key_of_args: str, args: Mapping[str, Any], classes: Mapping[str, type]
) -> None:
    if name not in classes:
        raise ValueError(
            f"{key!r} is {name!r}; allowed are torch's {', '.join(classes)}{nearest(name, classes)}"
        )
    known = [
        each for each in inspect.signature(classes[name]).parameters if each not in _SAID_ELSEWHERE
    ]
    for argument in args:
        if argument not in known:
            why = "is said by training.lr" if argument == "lr" else f"{name} does not take"
            raise ValueError(
                f"{key_of_args!r} has {argument!r}, which {why}; allowed are "
                f"{', '.join(known)}{nearest(argument, known)}"
            )
