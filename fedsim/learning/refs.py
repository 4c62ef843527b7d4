"""References to models (``Ref``), and recipes, which describe how models are computed.

A model is computed when its weights are first needed. Its ref then drops the recipe, which frees
all models that only this recipe needs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray
from fedsim.common.saved import saved
from fedsim.common.tensor_files import StoredTensor, array_of
from fedsim.common.training import Training
from fedsim.learning.scratch import ComputedWeights, Weights


@saved()
@dataclass(frozen=True, slots=True, eq=False)
class Initial:
    """Recipe (description of a computation) of an initial model, whose weights are drawn at random.

    Attributes:
        count: index of the draw; equal indices give equal models.
    """

    count: int


# not frozen, because the construction would take several times as long
@saved()
@dataclass(slots=True, eq=False)
class Trained:
    """Recipe (description of a computation) of an update: local training on a device's data.

    Attributes:
        training: the start model, additional terms of the loss, and count of epochs or steps.
        device: index of the device.
        version: version of the device's data.
        key: integer that selects, with ``device``, the random stream of shuffles and dropout.
        round: index of the round, by which ``[training] lr`` decays.
        before: the device's previous training; this training begins with the state of its trainer,
            such as momentum. None to begin with no state.
    """

    training: Training
    device: int
    version: int
    key: int
    round: int
    before: "Ref | None" = None


@saved()
@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """Recipe (description of a computation) of a weighted sum of models.

    Attributes:
        parts: each model and its coefficient.
        otherwise: model that replaces the sum if no model is finite, or if rescaling is impossible
            because coefficients sum to 0; None for a result of NaN.
        rescale: whether the coefficients of the finite models are scaled to the sum of all
            coefficients; models that are not finite are always left out.
    """

    parts: tuple[tuple["Ref", float], ...]
    otherwise: "Ref | None"
    rescale: bool


@saved()
@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """Recipe (description of a computation) of a choice: the best model for a device's data.

    The best model has the least mean loss on the device's training samples, plus the L2 penalty.
    A client of IFCA (Ghosh et al. 2020) chooses its group in this way.

    Attributes:
        models: the models to choose from, at least one.
        device: index of the device.
        version: version of the device's data.
        batch: count of random training samples on which the loss is computed, and the integer that
            selects the random stream that draws these samples; None for all training samples.
    """

    models: tuple["Ref", ...]
    device: int
    version: int
    batch: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError(
                f"device {self.device} is to choose the best out of no models; it needs at "
                "least one"
            )


@saved()
@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """Recipe (description of a computation) of the result of a pure function of models.

    The function is stored by its import path, so that a resumed run can call it too.

    Attributes:
        function: import path of the function.
        models: the models to which the function is applied.
        constants: name -> constant argument of the function, JSON-able.
        stream: purpose and integers of the random stream that the function draws from; None if it
            draws no random numbers.
        otherwise: substitute for the result if a model is not finite, or no model remains.
        leave_out: whether models that are not finite are left out, instead of replacing the result
            by ``otherwise``.
        size: count of values in the result; None for a model.
    """

    function: str
    models: tuple["Ref", ...]
    constants: Mapping[str, Any]
    stream: tuple[Any, ...] | None
    otherwise: "Ref | None"
    leave_out: bool
    size: int | None = None


Recipe = Initial | Trained | Mixed | Best | Applied


def parents(recipe: Recipe) -> list["Ref"]:
    """Return the models that must be computed before a recipe can be carried out, in a fixed order.

    Args:
        recipe: description of the computation of a model.
    """
    refs: list[Ref | None] = []
    match recipe:
        case Trained(training=training, before=before):
            refs = [training.start, training.proximal.anchor, training.linear]
            if training.contrast is not None:
                refs.append(training.contrast.previous)
            refs.append(before)
        case Mixed(parts=parts, otherwise=otherwise):
            refs = [*(ref for ref, _ in parts), otherwise]
        case Applied(models=models, otherwise=otherwise):
            refs = [*models, otherwise]
        case Best(models=models):
            refs = [*models]
    return [ref for ref in refs if ref is not None]


def with_models_replaced(recipe: Recipe, replacements: Mapping["Ref", "Ref"]) -> Recipe:
    """Return a copy of a recipe in which some models are replaced by other models.

    Args:
        recipe: description of the computation of a model.
        replacements: model -> its replacement.
    """

    def replaced(ref: "Ref") -> "Ref":
        return replacements.get(ref, ref)

    def replaced_if_any(ref: "Ref | None") -> "Ref | None":
        return None if ref is None else replacements.get(ref, ref)

    match recipe:
        case Trained(training=training, before=before):
            proximal = training.proximal
            contrast = training.contrast
            if contrast is not None:
                contrast = replace(contrast, previous=replaced(contrast.previous))
            training = replace(
                training,
                start=replaced(training.start),
                proximal=replace(proximal, anchor=replaced_if_any(proximal.anchor)),
                linear=replaced_if_any(training.linear),
                contrast=contrast,
            )
            return replace(recipe, training=training, before=replaced_if_any(before))
        case Mixed(parts=parts, otherwise=otherwise):
            pairs = tuple((replaced(ref), coefficient) for ref, coefficient in parts)
            return replace(recipe, parts=pairs, otherwise=replaced_if_any(otherwise))
        case Applied(models=models, otherwise=otherwise):
            return replace(
                recipe, models=tuple(map(replaced, models)), otherwise=replaced_if_any(otherwise)
            )
        case Best(models=models):
            return replace(recipe, models=tuple(map(replaced, models)))
    return recipe


@saved()
@dataclass(slots=True, eq=False)
class Loss:
    """Training loss of an update (a model trained by a device), and other reported values.

    Attributes:
        value: mean loss over the samples of the last local epoch; NaN if none is reported.
        numbers: name -> other reported value.
    """

    value: float = float("nan")
    numbers: Mapping[str, float] = field(default_factory=dict)


@saved()
@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Ref:
    """Name of a model, such as ``update-17``, whose weights are computed when they are needed.

    The name is unique within a run. A strategy passes refs on, stores them in its state and
    compares them. ``ServerModels.value`` returns the weights; the attributes are for fedsim only.

    Attributes:
        name: the name.
        serial: count of refs created before this one.
        recipe: the computation of the model; None once the model is computed.
        device: index of the device that trained or chose the model; None for other models.
        held: the weights in memory, on disk or on a torch device; None until the model is
            computed.
        finite: whether all weights are finite numbers; False until the model is computed.
        loss: the training loss of an update, in an object that models made of the update share;
            None for other models.
        losses: for a choice among models, the objective (loss plus L2 penalty) of each candidate,
            float64 [models]; None for other models, and before the choice.
        choice: for a choice among models, the index of the chosen candidate; None for other
            models, and before the choice.
        state: name -> array of the trainer's state, such as momentum, after a training, or of the
            mean state of a weighted sum if states are sent; None for other models.
    """

    name: str
    serial: int
    recipe: Recipe | None
    device: int | None = None
    held: Weights | StoredTensor | None = None
    finite: bool = False
    loss: Loss | None = None
    losses: NDArray[np.float64] | None = None
    choice: int | None = None
    state: Mapping[str, AnyArray] | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def value(self) -> Weights | None:
        """The weights, float32 [d], read-only; None until the model is computed.

        Weights on disk or on a torch device are read at each access.
        """
        if self.held is None:
            return None
        weights = array_of(self.held)
        weights.setflags(write=False)
        return weights

    @value.setter
    def value(self, weights: Weights | None) -> None:
        self.held = weights

    @property
    def train_loss(self) -> float:
        """Training loss that the device has reported for this update; NaN if none is reported."""
        return float("nan") if self.loss is None else self.loss.value

    @property
    def numbers(self) -> Mapping[str, float]:
        """Values, except the loss, that the trainer has reported for this update, by name."""
        return {} if self.loss is None else self.loss.numbers

    def settle(
        self,
        value: Weights | ComputedWeights,
        train_loss: float = float("nan"),
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Store the computed weights of the model, and what its training has reported.

        The recipe, the description of the model's computation, is dropped.

        Args:
            value: the weights, float32 [d].
            train_loss: mean loss of the last epoch; NaN if none is reported.
            numbers: name -> another reported value.
        """
        self.held = value
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
            self.finite = bool(np.isfinite(value).all())
        else:
            self.finite = value.finite
        if self.loss is not None and isinstance(self.recipe, Trained):
            self.loss.value = train_loss
            self.loss.numbers = numbers or {}
        self.recipe = None

    def choose(self, losses: NDArray[np.float64]) -> None:
        """Decide a choice among models: take over the weights of the candidate of least loss.

        Among equal losses the first one is chosen. A loss that is not finite counts as infinite.
        The recipe (description) of the choice, which has the candidates, is dropped.

        Args:
            losses: the objective (loss plus L2 penalty) of each candidate, float64 [models].

        Raises:
            ValueError: this model is no choice, or the choice has been made.
        """
        if not isinstance(self.recipe, Best):
            raise ValueError(f"{self} is no choice that is still to be made")
        losses.setflags(write=False)
        self.losses = losses
        self.choice = int(np.where(np.isfinite(losses), losses, np.inf).argmin())
        chosen = self.recipe.models[self.choice]
        self.held = chosen.held
        self.finite = chosen.finite
        self.recipe = None


def length_of(ref: Ref, parameters: int) -> int | None:
    """Return the count of values of a ref's model or function result; None if it is unknown.

    The length is unknown of a weighted sum, and of the result of a function that is applied without
    a ``size``, until they are computed.

    Args:
        ref: the ref.
        parameters: count of a model's parameters.
    """
    recipe = ref.recipe
    if recipe is None:
        return None if ref.held is None else int(ref.held.shape[0])
    if isinstance(recipe, Applied):
        return recipe.size
    return None if isinstance(recipe, Mixed) else parameters


def weights_of(ref: Ref) -> Weights:
    """Return the weights of a computed model, float32 [d].

    Raises:
        ValueError: the model has not been computed.
    """
    weights = ref.value
    if weights is None:
        raise ValueError(f"{ref} has no value: it is not of this run, or its run has no learning")
    return weights


# order in which types of recipes are computed; recipes of rank 0 are computed one by one
_RANKS: dict[type[Recipe], int] = {Initial: 0, Mixed: 0, Applied: 1, Best: 2, Trained: 3}


class _ReadyModel(NamedTuple):
    """Model whose parents (the models that it needs) are computed; the least one is computed first.

    Attributes:
        rank: position of the recipe's type in the order of computation (``_RANKS``).
        serial: serial of the model, by which the oldest is the first among equal ranks.
        ref: the model.
    """

    rank: int
    serial: int
    ref: Ref


class Waves:
    """Iterable of uncomputed models, in an order in which they can be computed: wave by wave.

    A wave is a list of models that can be computed together once all earlier waves are computed.
    The waves have the targets, and all uncomputed models that the targets need. A model is ready
    if all models that it needs are computed or in earlier waves. The next wave is the first of
    these lists that is not empty:

    - a single ready model, the oldest initial model or weighted sum;
    - all ready results of functions of models (``Applied``);
    - all ready choices of a best model (``Best``);
    - all ready local trainings.

    The oldest model of a wave is the first. The object can be iterated over once.

    Args:
        targets: the models to compute; computed ones are skipped.
    """

    def __init__(self, targets: Iterable[Ref]) -> None:
        self._ready: list[_ReadyModel] = []  # a heap
        # uncomputed model -> count of its parents that are not computed
        self._missing_parents: dict[Ref, int] = {}
        # uncomputed model -> the models of which it is a parent
        self._children: dict[Ref, list[Ref]] = {}
        stack = list(targets)
        while stack:
            ref = stack.pop()
            if ref.recipe is not None and ref not in self._missing_parents:
                pending = [parent for parent in parents(ref.recipe) if parent.recipe is not None]
                self._missing_parents[ref] = len(pending)
                for parent in pending:
                    self._children.setdefault(parent, []).append(ref)
                stack += pending
                if not pending:
                    self._add_ready(ref, ref.recipe)

    def _add_ready(self, ref: Ref, recipe: Recipe) -> None:
        heappush(self._ready, _ReadyModel(_RANKS[type(recipe)], ref.serial, ref))

    def __len__(self) -> int:
        """Return the count of models in all waves; not for use after the iteration has begun."""
        return len(self._missing_parents)

    def __iter__(self) -> Iterator[list[Ref]]:
        """Yield the waves, lists of models that can be computed together, in order."""
        ready = self._ready
        while ready:
            first = heappop(ready)
            wave = [first.ref]
            # initial models and weighted sums, of rank 0, are computed one by one
            takes_all_of_rank = first.rank > 0
            while takes_all_of_rank and ready and ready[0].rank == first.rank:
                wave.append(heappop(ready).ref)
            yield wave
            for ref in wave:
                del self._missing_parents[ref]
                for child in self._children.pop(ref, ()):
                    self._missing_parents[child] -= 1
                    if not self._missing_parents[child] and child.recipe is not None:
                        self._add_ready(child, child.recipe)
