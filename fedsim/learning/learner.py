"""The learner's interface, and the learner of ``learning = "off"``: a run that measures time and
bytes alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import SimulationError
from fedsim.common.training import Training
from fedsim.learning.architecture import Shape
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.functions import Function, path_of
from fedsim.learning.models import Model
from fedsim.learning.refs import Applied, Best, Initial, Loss, Mixed, Recipe, Ref, Trained


class Learner:
    """Makes and measures models, for samples of a shape and a number of classes; this one
    without weights.

    Every test answers None, and asking for weights raises ``SimulationError``.

    Attributes:
        learns: whether models have weights.
        parameters: trained numbers, d.
        bytes: the model's size in float32.
        base_bytes: bytes of the frozen tensors.
        state_bytes: bytes of a trainer's state that is sent with each model.
        flops_per_sample: FLOPs of a training step on one sample.
    """

    learns: ClassVar[bool] = False

    def __init__(self, model: Model, shape: Shape, classes: int) -> None:
        self.parameters = model.parameters(shape, classes)
        self.bytes = 4.0 * self.parameters
        self.base_bytes = model.base_bytes(shape, classes)
        self.state_bytes = 0.0
        self.flops_per_sample = model.flops(shape, classes)
        self._serial = 0

    # Names.

    def initial(self, count: int = 0) -> Ref:
        """A freshly initialised model; another ``count`` is another draw, the same for every
        strategy.
        """
        return self._name("model", Initial(count))

    def train(
        self,
        training: Training,
        device: int,
        *,
        key: int,
        round: int = 0,  # noqa: A002
        version: int = 0,
        before: Ref | None = None,
    ) -> Ref:
        """The result of local training on a version of a device's data; of 0 epochs, its start.

        See ``Trained``.
        """
        ref = self._name("update", Trained(training, device, version, key, round, before), device)
        ref.loss = Loss()
        ref.state = {} if self.state_bytes else None
        return ref

    def first_epoch(self, update: Ref) -> Ref:
        """The result of an update's first local epoch; the update itself if it is computed
        already, or has no other epoch.
        """
        return update

    def last_gradient(self, update: Ref) -> Ref:
        """The gradient of the last SGD step behind an update that is not computed yet; [d].

        The gradient is that of the last mini-batch at the model before the step, with all terms
        of the loss and weight decay, without momentum: what torch leaves in ``param.grad``.
        """
        return self._name("gradient", None, update.device)

    def best(
        self,
        models: Sequence[Ref],
        device: int,
        *,
        version: int = 0,
        batch: tuple[int, int] | None = None,
    ) -> Ref:
        """The model with the smallest training objective on a device's data; see ``Best``.

        The objective is the mean loss over the device's training samples, without dropout, plus
        ``training.l2`` times the sum of the squared kernel entries. The first of equals wins; an
        objective that is not finite wins only where none is.
        """
        return self._name("choice", Best(tuple(models), device, version, batch), device)

    def mix(
        self,
        parts: Sequence[tuple[Ref, float]],
        otherwise: Ref | None = None,
        *,
        rescale: bool = True,
    ) -> Ref:
        """The sum of coefficient x model, in the order given; float64 sums, float32 result.

        A part that is not finite is left out, with a record ``non-finite``, and the other
        coefficients are scaled to the sum of all, unless ``rescale`` is False (for sums of
        differences). Where nothing is left, or the rest sums to 0, the mix is ``otherwise``, or
        without one not finite.
        """
        ref = self._name("model", Mixed(tuple(parts), otherwise, rescale))
        ref.state = (
            {} if self.state_bytes and any(part.state is not None for part, _ in parts) else None
        )
        return ref

    def given(self, weights: NDArray[np.floating]) -> Ref:
        """A model whose weights are known: an array [d]; any other shape raises
        ``SimulationError``.
        """
        if np.shape(weights) != (self.parameters,):
            raise SimulationError(
                f"an array of shape {np.shape(weights)} is no model; allowed is [{self.parameters}]"
            )
        return self._name("model", None)

    def apply(
        self,
        function: Function,
        models: Sequence[Ref],
        *,
        stream: tuple[Any, ...] | None = None,
        otherwise: Ref | None = None,
        leave_out: bool = False,
        size: int | None = None,
        **constants: Any,
    ) -> Ref:
        """The result of a pure function of models: a model or, with ``size``, so many numbers;
        see ``ServerModels.apply``.
        """
        return self._name(
            "model",
            Applied(
                path_of(function), tuple(models), constants, stream, otherwise, leave_out, size
            ),
        )

    def _name(self, what: str, recipe: Recipe | None, device: int | None = None) -> Ref:
        ref = Ref(f"{what}-{self._serial}", self._serial, recipe if self.learns else None, device)
        self._serial += 1
        return ref

    def snapshot(self) -> int:
        """The number of names given so far."""
        return self._serial

    def restore(self, state: int) -> None:
        self._serial = state

    # Numbers.

    def shift(self, device: int, version: int) -> None:
        """From now on ``device`` is tested on that version of its data."""

    @property
    def needs_sizes(self) -> bool:
        """Whether some sizes of devices' data would be refused by ``check_sizes``."""
        return False

    def check_sizes(self, sizes: Mapping[int, int]) -> None:
        """Raise ``ScenarioError`` for a device, by number of training samples, whose batches the
        model cannot be trained on.
        """

    def tensors(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """A flat model as named tensors, named as torch names them."""
        return {}

    async def value(self, ref: Ref) -> NDArray[np.float32]:
        """The weights, float32 [d], read-only."""
        (value,) = await self.values([ref])
        return value

    async def values(self, refs: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """The weights of several models, float32 [d] each, read-only; all trainings that they
        need are one cohort.
        """
        if not refs:
            return []
        raise SimulationError(
            f'the strategy looks at the weights of {refs[0].name}, but learning = "off" has '
            'none; set learning = "on"'
        )

    def compute_now(self, ref: Ref) -> None:
        """Compute a model at once, without waiting for other workers; does nothing without
        learning.
        """

    async def evaluate(
        self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]
    ) -> Evaluation | None:
        """Each model on the test samples of the devices that it serves (None: all), pooled and
        device by device.
        """
        return None

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """The mean of the devices' training losses over their last local epoch, with the weights
        given; finite ones only.
        """
        return None
