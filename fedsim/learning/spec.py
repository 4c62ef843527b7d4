"""Scenario table ``[training]``: base class of trainers, and fedsim's SGD."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from fedsim.common import former_keys
from fedsim.common.former_keys import Former
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, guard, returns
from fedsim.common.spec import ForAll, Spec
from fedsim.common.table_classes import with_any_kind
from fedsim.common.training import Batching, LastBatch, Penalised
from fedsim.common.units import Bytes, PositiveSeconds

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fedsim.learning.solvers.context import LocalData, TrainingContext


Precision = Literal["float32", "bf16"]

LANES = 16
"""Count of models in a stack (which are trained together); default of ``training.lanes``."""


class TrainingSession(NamedTuple):
    """Numbers on which an optimiser's steps may depend: learning rate, round and counts of steps.

    Only optimisers with a schedule depend on more than the learning rate. For all other optimisers
    the fields after ``lr`` keep their defaults, so that trainings with different rounds or counts
    of steps can be computed together, as one stack of models.

    Attributes:
        lr: learning rate of the round.
        round: index of the round, from 0.
        epochs: count of local epochs.
        steps: count of steps.
        per_epoch: count of steps in an epoch.
    """

    lr: float
    round: int = 0
    epochs: int = 1
    steps: int = 1
    per_epoch: int = 1


class Trainer(Spec):
    """Base of the ways in which a device trains the received model on its samples (``[training]``).

    Attributes:
        lr: learning rate.
        batch_size: count B of samples in a batch. If it exceeds a device's count of samples, each
            batch has all of them.
        last_batch: an epoch's last batch, if it has fewer than B samples: ``keep`` it, ``drop`` it,
            or ``merge`` it into the batch before. The only batch of an epoch is always kept.
        lr_decay: factor of the learning rate from round to round; in round r (from 0) the rate is
            lr x lr_decay^r.
        device: torch device of the computation: ``cpu``, ``cuda`` or ``cuda:N``; checked when
            learning starts.
        state: state of the trainer, such as moments. ``fresh``: each training begins without a
            state; ``kept``: the state stays on the device between trainings; ``sent``: the state
            comes with the model and goes with the update, and the server averages states as it
            averages updates.
        memory: memory for computed models in the run's process, such as ``"4 GB"``. Further models
            that are still needed, such as the devices' own, lie in a file in the folder for
            temporary files (TMPDIR), the oldest first. None: 256 MB.
        real_limit: real time (s) after which a local training that still runs ends the run with an
            error.
    """

    kind: str
    lr: Annotated[float, ForAll] = Field(default=0.03, gt=0.0, le=1e6)
    batch_size: Annotated[int, ForAll] = Field(default=10, ge=1, le=1_000_000_000)
    last_batch: LastBatch = "keep"
    lr_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    device: str = "cpu"
    state: Literal["fresh", "kept", "sent"] = "fresh"
    memory: Bytes | None = Field(default=None, gt=0)
    real_limit: PositiveSeconds = 3600.0

    applies_terms: ClassVar[bool] = False
    """Whether the trainer minimises ``TrainingContext.loss``, or itself applies the terms that
    strategies add to the loss. Strategies with such terms refuse any other trainer.
    """
    reports: ClassVar[Mapping[str, bool]] = {}
    """Name of a value that ``train`` reports, which becomes a column of the rounds and a metric of
    the run -> whether a greater value is better.
    """
    stops_early: ClassVar[bool] = False
    """Whether the trainer may skip the last batches. The training is then computed when the device
    begins, so that its simulated time is known.
    """

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
            raise ValueError(f"'device' is {device!r}; allowed are cpu, cuda and cuda:N")
        return device

    @returns("a finite number, 0 or more", find_outside(least=0.0))
    def lr_in(self, round_number: int) -> float:
        """Return the learning rate of a round.

        Args:
            round_number: the round, from 0.
        """
        return self.lr * self.lr_decay**round_number

    def train(
        self, model: "nn.Module", data: "LocalData", context: "TrainingContext"
    ) -> "tuple[Mapping[str, Tensor], Mapping[str, float]]":
        """Train a torch module that holds the received model.

        Args:
            model: the module, which only this training uses.
            data: the device's batches, in their order.
            context: the loss and the settings of the training. ``context.seed`` is for the
                trainer's own generators; the global generators must stay untouched.

        Returns:
            The trained tensors by name, such as ``model.state_dict()``, and numbers that the device
            reports. A number ``loss`` is the training loss, instead of the mean loss of the batches
            of the last epoch.
        """
        raise NotImplementedError

    def check_model(self, model: "nn.Module", *, usual_loss: bool) -> None:
        """Check, before a run, that this trainer can train the model; by default it can train any.

        Args:
            model: the module.
            usual_loss: whether the loss is cross-entropy.

        Raises:
            ScenarioError: the trainer cannot train the model.
        """

    def torch_optimiser(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float
    ) -> "torch.optim.Optimizer":
        """Return a torch optimiser whose step costs as much as this trainer's; by default SGD.

        It serves to count the FLOPs and memory of a step.

        Args:
            parameters: the trained parameters by name.
            lr: learning rate.
        """
        from torch.optim import SGD

        rule = self.sgd
        return SGD(
            parameters.values(),
            lr,
            momentum=rule.momentum,
            weight_decay=rule.weight_decay,
            foreach=False,
        )

    @property
    def stack_lanes(self) -> int:
        """Count of devices whose models are trained together, as one stack; 1 for no stack."""
        return 1

    @property
    def in_bf16(self) -> bool:
        """Whether products in training are computed in bfloat16."""
        return False

    @property
    def stack_obstacle(self) -> str:
        """Reason why devices' models cannot be trained together, as a stack; "" if they can."""
        return f"training.kind {self.kind!r} has its own way of training"

    @property
    def has_schedule(self) -> bool:
        """Whether the optimiser's steps depend on the round or the length of the training."""
        return True

    @property
    def loss_options(self) -> Mapping[str, float]:
        """Name -> option of the loss, torch's ``cross_entropy``, such as ``label_smoothing``."""
        return {}

    def stack_steps(
        self, parameters: "Mapping[str, nn.Parameter]", session: TrainingSession
    ) -> Callable[[], None]:
        """Return a function that makes one optimiser step for several devices' stacked models.

        The models are stacked along the first axis. The function has no arguments. It is called
        once for each step, when the parameters have their gradients.

        Args:
            parameters: name -> parameter of all W stacked models, [W, *shape].
            session: learning rate, round and steps, which the trainings share.
        """
        raise NotImplementedError

    @property
    def has_no_state(self) -> bool:
        """Whether the optimiser certainly passes no state, such as momentum, from step to step."""
        return False

    @returns("a whole number, 0 or more", find_outside(least=0))
    def state_numbers(self, shapes: "Mapping[str, Sequence[int]]") -> int:
        """Return how many numbers of the trainer's state are sent with a model.

        They are sent if ``training.state`` is ``sent``.

        Args:
            shapes: shapes of the model's tensors by name.

        Returns:
            The count; a scenario with ``state = "sent"`` is refused if the count is 0, for a
            trainer whose state is empty or unknown.
        """
        return 0

    @property
    def batching(self) -> Batching:
        """Batch size of a device's training, and treatment of an epoch's last batch."""
        return Batching(self.batch_size, self.last_batch)

    @property
    def steps_along_gradient(self) -> bool:
        """Whether each step moves the model by -lr times the gradient, apart from momentum.

        Some strategies, such as SCAFFOLD, need this, because they compute the gradients of a
        training from the change of the model.
        """
        return False

    @property
    def sgd(self) -> "TrainingSpec":
        """Settings of fedsim's own SGD; its defaults if this trainer is not fedsim's SGD."""
        return TrainingSpec()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the trainer as its settings and a class that another process can import.

        The class may have been made at run time, so that no module has it: ``with_any_kind`` makes
        a subclass of a user's trainer that accepts any text as ``kind``. The base class is then
        stored.
        """
        cls = type(self)
        is_importable = getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls
        return _unpickle, (cls if is_importable else cls.__base__, self.model_dump())


def _unpickle(cls: type[Trainer], values: dict[str, Any]) -> Trainer:
    # ``guard`` adds checks of the hooks' results. The class that a worker process has imported does
    # not have them yet.
    guard(cls, TRAINERS.key)
    if cls.model_fields["kind"].default != values["kind"]:
        cls = with_any_kind(cls)
    return cls.model_validate(values)


class TrainingSpec(Trainer):
    """Local mini-batch SGD.

    Each local training begins with zero momentum. Batches are shuffled anew in each epoch.

    Attributes:
        momentum: heavy-ball momentum, the factor of the velocity v in v <- momentum v + g, where g
            is the gradient.
        weight_decay: factor of each parameter w, which is added to its gradient as weight_decay w.
        clip: greatest norm of the gradient of a batch's mean loss; a longer gradient is scaled down
            to it, before all other terms are added. On a CPU only, and by autograd.
        l2: the penalty l2 ||W||^2 on kernels (weights of dense layers and convolutions), not on
            biases: gradient 2 l2 W.
        l2_on: all ``kernels``, or only the kernels of ``dense`` layers, as in FlexCFL's
            FEMNIST-CNN.
        solver: ``fast``: the fastest solver for the model and the device; ``reference``: plain
            torch, one device at a time; ``cohort``: several devices at a time, as one stack of
            models, which is the fastest on a GPU. Results are equal up to rounding.
        lanes: count of models in a stack of the ``cohort`` solver. Each of them needs memory for
            weights, gradients and activations, so that large models need fewer.
        precision: ``bf16``: torch computes the products of forward and backward passes in bfloat16
            (``torch.autocast``), by autograd; weights, steps and tests remain float32.
    """

    instead: ClassVar[Former] = {
        **former_keys.TRAINING,
        **dict.fromkeys(("state", "real_limit"), "kind = 'torch'"),
    }

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    weight_decay: float = Field(default=0.0, ge=0.0, le=1e6)
    clip: float | None = Field(default=None, gt=0.0, le=1e6)
    l2: float = Field(default=0.0, ge=0.0, le=1e6)
    l2_on: Penalised = "kernels"
    solver: Literal["fast", "reference", "cohort"] = "fast"
    lanes: int = Field(default=LANES, ge=1, le=4096)
    precision: Precision = "float32"
    state: None = None  # type: ignore[assignment]
    real_limit: None = None  # type: ignore[assignment]

    applies_terms: ClassVar[bool] = True

    @model_validator(mode="after")
    def _refuse_clip_on_gpus(self) -> Self:
        if self.clip is not None and self.device != "cpu":
            raise ValueError(
                f"'clip' is {self.clip:g} and 'device' {self.device!r}; gradients are clipped "
                "on a cpu only"
            )
        return self

    @property
    def in_bf16(self) -> bool:
        return self.precision == "bf16"

    @property
    def steps_along_gradient(self) -> bool:
        return True

    @property
    def sgd(self) -> "TrainingSpec":
        return self


_TORCH = (
    "fedsim.toolbox.trainers.torch_trainer:TorchTrainer",
    "any optimiser of torch.optim, with schedule and clipping",
)
_SGD = TrainingSpec, "local SGD, by the fastest solver that the model has"
TRAINERS = Registry(
    "trainer",
    f"{__name__}:Trainer",
    {"sgd": _SGD, "torch": _TORCH},
    usual="sgd",
    key="training",
)
TrainerSpec = Annotated[Trainer, KindField(TRAINERS)]
