"""The interface of learners. ``Learner`` only names models; ``engine.py:Learning`` computes them.

The base ``Learner`` is also the learner of ``learning = "off"``, whose models have no weights.
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
    """Learner that only names models, and computes nothing: the learner of ``learning = "off"``.

    ``learning/engine.py:Learning`` derives from this class, and trains, mixes and tests the named
    models. In this base the result of every test is None, and a request for weights raises
    ``SimulationError``.

    Args:
        model: the model of the scenario.
        shape: shape of a sample.
        classes: number of classes.

    Attributes:
        learns: whether models have weights.
        parameters: number of trained parameters, d.
        bytes: the model's size in float32 (bytes).
        base_bytes: size of the frozen tensors (bytes).
        state_bytes: size of the trainer's state that is sent with each model (bytes).
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
        """A freshly initialised model.

        Args:
            count: number of the draw; a draw does not depend on the strategy.
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
        """The result of a local training, a ref ``update-N``.

        Args:
            training: start, terms and amount of the training; with 0 epochs the result is the
                start.
            device: the device that trains.
            key: names, with ``device``, the stream of shuffles and dropout masks.
            round: the round, by which ``[training] lr`` decays.
            version: version of the device's data.
            before: the device's previous training, with whose trainer's state this training
                begins; None: without a state.
        """
        ref = self._name("update", Trained(training, device, version, key, round, before), device)
        ref.loss = Loss()
        ref.state = {} if self.state_bytes else None
        return ref

    def first_epoch(self, update: Ref) -> Ref:
        """The result of the first local epoch of an update.

        An update that is computed already, or has one epoch, is returned itself.
        """
        return update

    def last_gradient(self, update: Ref) -> Ref:
        """The gradient of the last SGD step of an update that is not computed yet, [d].

        The gradient is taken on the last mini-batch, at the model before the step. It has all
        terms of the loss and weight decay, and no momentum, like torch's ``param.grad``.
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
        """The model with the least training objective on a device's data, a ref ``choice-N``.

        The objective is the mean loss over the device's training samples, without dropout, plus
        ``training.l2`` times the sum of the squared kernel entries. The first of equals wins. An
        objective that is not finite wins only if no objective is finite.

        Args:
            models: the models to choose from, at least one.
            device: the device.
            version: version of the device's data.
            batch: number of samples of the estimate, and the key of the stream that draws them;
                None: all samples.
        """
        return self._name("choice", Best(tuple(models), device, version, batch), device)

    def mix(
        self,
        parts: Sequence[tuple[Ref, float]],
        otherwise: Ref | None = None,
        *,
        rescale: bool = True,
    ) -> Ref:
        """The sum of coefficient x model, in order; float64 sums, float32 result.

        A model that is not finite is left out, with a record ``non-finite``.

        Args:
            parts: models and their coefficients.
            otherwise: the result if no model remains, or the remaining coefficients sum to 0; None:
                a result of NaN.
            rescale: whether the remaining coefficients are scaled to the sum of all; False for sums
                of differences.
        """
        ref = self._name("model", Mixed(tuple(parts), otherwise, rescale))
        if self.state_bytes and any(part.state is not None for part, _ in parts):
            ref.state = {}
        return ref

    def given(self, weights: NDArray[np.floating]) -> Ref:
        """A model with the weights of an array.

        Args:
            weights: the weights, [d].

        Raises:
            SimulationError: the array has another shape.
        """
        if np.shape(weights) != (self.parameters,):
            raise SimulationError(
                f"an array of shape {np.shape(weights)} is no model; allowed is [{self.parameters}]"
            )
        return self._name("model", None)

    def zero(self) -> Ref:
        """The model whose weights are all 0."""
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
        """The result of a pure function of models; see ``ServerModels.apply``.

        Args:
            function: a function that is marked by ``pure``.
            models: the models.
            stream: purpose and numbers of the stream that the function draws from; None: no draws.
            otherwise: the result if a model is not finite, or no model remains.
            leave_out: whether models that are not finite are left out instead.
            size: count of numbers in the result; None for a model.
            **constants: constant arguments of the function, JSON-able.
        """
        recipe = Applied(
            path_of(function), tuple(models), constants, stream, otherwise, leave_out, size
        )
        return self._name("model", recipe)

    def _name(self, prefix: str, recipe: Recipe | None, device: int | None = None) -> Ref:
        if not self.learns:
            recipe = None
        ref = Ref(f"{prefix}-{self._serial}", self._serial, recipe, device)
        self._serial += 1
        return ref

    def snapshot(self) -> int:
        """The number of models named so far, as the state of a checkpoint."""
        return self._serial

    def restore(self, state: int) -> None:
        self._serial = state

    # Numbers.

    def shift(self, device: int, version: int) -> None:
        """Test ``device`` on another version of its data from now on."""

    @property
    def needs_sizes(self) -> bool:
        """Whether ``check_sizes`` may refuse some sizes of devices' data."""
        return False

    def check_sizes(self, sizes: Mapping[int, int]) -> None:
        """Refuse data whose batches the model cannot be trained on.

        Args:
            sizes: number of training samples by device.

        Raises:
            ScenarioError: a device has such batches.
        """

    def tensors(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """A flat model [d] as tensors by their torch names; empty without learning."""
        return {}

    async def value(self, ref: Ref) -> NDArray[np.float32]:
        """The weights of a model, float32 [d], read-only."""
        (value,) = await self.values([ref])
        return value

    async def values(self, refs: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """The weights of several models, float32 [d] each, read-only.

        All trainings that the models need are computed as one cohort.

        Raises:
            SimulationError: the run has no learning.
        """
        await self.compute(refs)
        return []

    async def compute(self, refs: Sequence[Ref]) -> None:
        """Compute models together as ``values`` does, without their weights in memory.

        Raises:
            SimulationError: the run has no learning.
        """
        if refs:
            raise SimulationError(
                f'the strategy looks at the weights of {refs[0].name}, but learning = "off" has '
                'none; set learning = "on"'
            )

    def compute_now(self, ref: Ref) -> None:
        """Compute a model at once, without yielding to the simulation.

        Does nothing without learning.
        """

    async def evaluate(
        self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]
    ) -> Evaluation | None:
        """Test models.

        Args:
            models: for each name a model, and the devices on whose test samples the model is
                tested; None: all devices.

        Returns:
            The evaluation of all models in order; None without learning.
        """
        return None

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """The weighted mean of the finite training losses of updates.

        Args:
            updates: updates and their weights.

        Returns:
            The mean; None without learning or finite losses.
        """
        return None
