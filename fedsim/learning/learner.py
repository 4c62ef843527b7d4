"""Interface of learners, which make references to models and compute the models when needed.

The base class is also the learner of runs with ``learning = "off"``, whose models have no weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Ints
from fedsim.common.errors import SimulationError
from fedsim.common.training import LocalEpochs, Training
from fedsim.learning.architecture import Shape
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.functions import DataFunction, Function, path_of
from fedsim.learning.models import Model
from fedsim.learning.refs import Applied, Best, Initial, Loss, Mixed, Recipe, Ref, Trained


class Learner:
    """Factory of references to models (``Ref``); the models are computed later, or never.

    This base class is the learner of ``learning = "off"``: it computes no weights. The result of
    each test is None, and a request for weights raises ``SimulationError``.

    Args:
        model: the model of the scenario.
        shape: shape of a sample.
        classes: count of classes.

    Attributes:
        learns: whether models have weights.
        parameters: count of trained parameters, d.
        bytes: the model's size in float32 (bytes).
        base_bytes: size of the frozen tensors, which are not trained (bytes).
        state_bytes: size of the trainer's state that is sent with each model (bytes).
        flops_per_sample: FLOPs of a training step on one sample.
        batch_sizes: batch size of each device, int64 [devices]; 0 for ``training.batch_size``. None
            if ``training.batch_size`` holds for all devices.
        notes: texts for the user about models that the solver cannot train together; usually empty.
    """

    learns: ClassVar[bool] = False

    def __init__(self, model: Model, shape: Shape, classes: int) -> None:
        self.shape = shape
        self.parameters = model.parameters(shape, classes)
        self.bytes = 4.0 * self.parameters
        self.base_bytes = model.base_bytes(shape, classes)
        self.state_bytes = 0.0
        self.flops_per_sample = model.flops(shape, classes)
        self.batch_sizes: Ints | None = None
        self.notes: list[str] = []
        self._serial = 0

    # methods that return refs, whose weights are computed later

    def initial(self, count: int = 0) -> Ref:
        """Return a reference to an initial model, whose weights are drawn at random.

        Args:
            count: index of the draw; equal indices give equal weights, whatever the strategy.
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
        """Return a reference, named ``update-N``, to the result of a local training.

        The training is carried out later, when its result is needed.

        Args:
            training: the start model, additional terms of the loss, and count of epochs or steps;
                with 0 epochs the result is the start model.
            device: index of the device that trains.
            key: integer that selects, with ``device``, the random stream of shuffles and dropout.
            round: index of the round, by which ``[training] lr`` decays.
            version: version of the device's data.
            before: the device's previous training; this training begins with the state of its
                trainer, such as momentum. None to begin with no state.
        """
        ref = self._name("update", Trained(training, device, version, key, round, before), device)
        ref.loss = Loss()
        ref.state = {} if self.state_bytes else None
        return ref

    def first_epoch(self, update: Ref) -> Ref:
        """Return a reference to the model as it was after the first local epoch of a training.

        Args:
            update: the result of the training. If this is computed already, or has fewer than two
                epochs, ``update`` itself is returned.
        """
        recipe = update.recipe
        if not isinstance(recipe, Trained) or recipe.training.epochs < 2:
            return update
        return self.train(
            replace(recipe.training, amount=LocalEpochs(1)),
            recipe.device,
            key=recipe.key,
            round=recipe.round,
            version=recipe.version,
            before=recipe.before,
        )

    def last_gradient(self, update: Ref) -> Ref:
        """Return a reference to the gradient of the last SGD step of a training, [d].

        The gradient is taken on the last mini-batch, at the model before the step. It has all terms
        of the loss and weight decay, and no momentum, like torch's ``param.grad``.

        Args:
            update: the result of the training, which must not be computed yet.
        """
        return self._name("gradient", recipe=None, device=update.device)

    def best(
        self,
        models: Sequence[Ref],
        device: int,
        *,
        version: int = 0,
        batch: tuple[int, int] | None = None,
    ) -> Ref:
        """Return a reference to the model of least loss on a device's training data.

        The reference is named ``choice-N``. The chosen model has the least objective: the mean loss
        over the device's training samples, without dropout, plus ``training.l2`` times the sum of
        the squared kernel entries. Among equal objectives the first is chosen. A non-finite
        objective is chosen only if no objective is finite.

        Args:
            models: the models to choose from, at least one.
            device: index of the device.
            version: version of the device's data.
            batch: count of random samples on which the objective is computed, and the integer that
                selects the random stream that draws them; None for all samples.
        """
        return self._name("choice", Best(tuple(models), device, version, batch), device)

    def mix(
        self,
        parts: Sequence[tuple[Ref, float]],
        otherwise: Ref | None = None,
        *,
        rescale: bool = True,
    ) -> Ref:
        """Return a reference to a weighted sum of models, float32 [d], summed in float64.

        A model that is not finite is left out, with a record ``non-finite``.

        Args:
            parts: models and their coefficients.
            otherwise: the result if all models are left out, or if rescaling is impossible because
                the remaining coefficients, or all coefficients, sum to 0; None for a result of NaN.
            rescale: whether the remaining coefficients are scaled to the sum of all coefficients
                when models are left out; False for sums of differences.
        """
        ref = self._name("model", Mixed(tuple(parts), otherwise, rescale))
        if self.state_bytes and any(part.state is not None for part, _ in parts):
            ref.state = {}
        return ref

    def given(self, weights: NDArray[np.floating]) -> Ref:
        """Return a reference to a model whose weights are given as an array.

        Args:
            weights: the weights, [d].

        Raises:
            SimulationError: the array is not of shape [d].
        """
        if np.shape(weights) != (self.parameters,):
            raise SimulationError(
                f"an array of shape {np.shape(weights)} is no model; allowed is [{self.parameters}]"
            )
        return self._name("model", recipe=None)

    def received(self, values: NDArray[np.float32], device: int | None = None) -> Ref:
        """Return a reference to an array that another process, such as a real device, has computed.

        Args:
            values: a model, or other values, float32 [any length].
            device: index of the device that has computed the array; None for no device.
        """
        ref = self._name("model", recipe=None, device=device)
        ref.settle(values)
        return ref

    def of_data(
        self,
        function: DataFunction,
        device: int,
        version: int,
        constants: Mapping[str, object],
    ) -> Ref:
        """Return a reference to values that a function computes from a device's training samples.

        The values are flattened to float32 [any length].

        Args:
            function: takes the samples, [n, *shape], their targets, [n, ...], and ``constants``.
            device: index of the device.
            version: version of the device's data.
            constants: name -> further argument of the function.
        """
        return self._name("values", recipe=None, device=device)

    def zero(self) -> Ref:
        """Return a reference to the model whose weights are all 0."""
        return self._name("model", recipe=None)

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
        """Return a reference to the result of a function of models, such as a robust mean.

        Args:
            function: a function that is marked by ``pure``.
            models: the models to which the function is applied.
            stream: purpose and integers of the random stream that the function draws from; None if
                it draws no random numbers.
            otherwise: the result if a model is not finite, or no model remains.
            leave_out: whether models that are not finite are left out, instead of replacing the
                result by ``otherwise``.
            size: count of values in the result; None for a model.
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
        """Return the count of references created so far, as the learner's state in a checkpoint."""
        return self._serial

    def restore(self, state: int) -> None:
        self._serial = state

    def hold_restored(self, refs: Iterable[Ref]) -> None:
        """Read models of a resumed run from the checkpoint's file into memory, as many as fit.

        The weights of all other models stay in the file, and are read at each use.

        Args:
            refs: the models of the checkpoint.
        """

    def free_derived(self) -> None:
        """Free the memory of models that equal another stored model except in some slices.

        From then on the freed models are computed from the other model at each use. The method is
        called before a checkpoint is written, which then stores only the slices.
        """

    # methods that compute weights, or depend on data

    def shift(self, device: int, version: int) -> None:
        """Use a new version of a device's test samples in later tests, as its data have shifted.

        Args:
            device: index of the device.
            version: index of the version of the device's data.
        """

    @property
    def needs_sizes(self) -> bool:
        """Whether training fails for some counts of samples, so that ``check_sizes`` is needed."""
        return False

    def check_sizes(self, sizes: Mapping[int, int]) -> None:
        """Check, before a run, that the model can be trained on all batches of the devices.

        Args:
            sizes: device -> count of training samples.

        Raises:
            ScenarioError: a device has a batch of a single sample, and the model needs two.
        """

    def frozen(self) -> NDArray[np.float32]:
        """Return the values of the model's untrained (frozen) tensors as one float32 array.

        The result is empty if the model has no such tensors, or if learning is off.
        """
        return np.empty(0, dtype=np.float32)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Name of each of the model's tensors -> its shape; empty if learning is off.

        The tensors are in the order of their values in the model's weights, [d].
        """
        return {}

    def tensors(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Split a model's weights, one array, into the model's tensors.

        Args:
            weights: the weights, float32 [d].

        Returns:
            Torch's name of a tensor -> its values, a view of ``weights``; empty if learning is off.
        """
        return {}

    async def value(self, ref: Ref) -> NDArray[np.float32]:
        """Compute a model if needed, and return its weights, float32 [d], read-only.

        Raises:
            SimulationError: learning is off.
        """
        (value,) = await self.values([ref])
        return value

    async def values(self, refs: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """Compute several models if needed, and return their weights, float32 [d] each, read-only.

        The trainings that the models need are computed together, in parallel.

        Raises:
            SimulationError: learning is off.
        """
        await self.compute(refs)
        return []

    async def distances(self, pairs: Sequence[tuple[Ref, Ref]]) -> list[float]:
        """Compute models if needed, and return the Euclidean distance of the models of each pair.

        Only one pair is in memory at a time. A distance is not finite if a model is not.

        Args:
            pairs: the pairs.

        Raises:
            SimulationError: learning is off, and ``pairs`` is not empty.
        """
        await self.compute([ref for pair in pairs for ref in pair])
        distances = []
        for pair in pairs:
            first, second = await self.values(pair)
            with np.errstate(all="ignore"):
                change = np.subtract(first, second, dtype=np.float64)
                distances.append(math.sqrt(np.square(change).sum()))
        return distances

    async def compute(self, refs: Sequence[Ref]) -> None:
        """Compute several models together, without returning their weights.

        The weights are stored in memory or on disk.

        Raises:
            SimulationError: learning is off, and ``refs`` is not empty.
        """
        if refs:
            raise SimulationError(
                f'the strategy looks at the weights of {refs[0].name}, but learning = "off" has '
                'none; set learning = "on"'
            )

    async def note_skipped(self, models: Sequence[Ref], *, stay: bool = False) -> None:
        """Do nothing, at a point where a run with learning would compute models.

        It is called only if learning is off. The learner of ``fedsim check`` overrides it to
        forecast the memory of a run with learning.

        Args:
            models: the models that a run with learning would compute.
            stay: whether the weights of all models would be in memory at the same time, as they
                are if a strategy reads them.
        """

    def compute_now(self, ref: Ref) -> None:
        """Compute a model before this call returns; the simulation handles no event meanwhile.

        Nothing is done if learning is off.
        """

    async def evaluate(
        self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]
    ) -> Evaluation | None:
        """Test models on devices' test samples.

        Args:
            models: name -> model, and the devices on whose test samples it is tested (None for all
                devices).

        Returns:
            One evaluation with the entries of all models in order; None if learning is off.
        """
        return None

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """Compute updates, and return the weighted mean of their training losses.

        Losses that are not finite are left out.

        Args:
            updates: results of local trainings, and the weight of each in the mean.

        Returns:
            The mean; None if learning is off, no loss is finite, or the weights sum to 0.
        """
        return None
