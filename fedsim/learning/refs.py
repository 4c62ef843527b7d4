"""Models as names: a ``Ref`` names a model, and holds its recipe until the model is computed.

A ref is computed once its weights are needed. The ref then drops its recipe, which frees all models
that only the recipe needed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray
from fedsim.common.training import Training
from fedsim.learning.scratch import Weights, Written


@dataclass(frozen=True, slots=True, eq=False)
class Initial:
    """A fresh draw of the model's initialisation; each ``count`` is another draw."""

    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Local training of one device on a version of its data.

    Attributes:
        training: start, terms and amount of the training.
        device: the device.
        version: version of the device's data.
        key: names, with ``device``, the stream of shuffles and dropout masks.
        round: the round, by which ``[training] lr`` decays.
        before: the device's previous training, with whose trainer's state this training begins;
            None: without a state.
    """

    training: Training
    device: int
    version: int
    key: int
    round: int
    before: "Ref | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A linear combination of models; see ``Learner.mix``."""

    parts: tuple[tuple["Ref", float], ...]
    otherwise: "Ref | None"
    rescale: bool


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The model with the least training objective on a device's data (IFCA, Algorithm 1).

    Attributes:
        models: the models to choose from, at least one.
        device: the device.
        version: version of the device's data.
        batch: number of samples of the estimate, and the key of the stream that draws the samples;
            None: all samples.
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


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """The result of a pure function of models and constants; see ``fedsim.learning.functions``."""

    function: str
    """import path of the function."""
    models: tuple["Ref", ...]
    constants: Mapping[str, Any]
    """constant arguments of the function, by name; JSON-able."""
    stream: tuple[Any, ...] | None
    """purpose and numbers of the stream that the function draws from; None: no draws."""
    otherwise: "Ref | None"
    """substitute for the result if a model is not finite, or no model remains."""
    leave_out: bool
    """whether models that are not finite are left out instead."""
    size: int | None = None
    """count of numbers in the result; None for a model."""


Recipe = Initial | Trained | Mixed | Best | Applied


def parents(recipe: Recipe) -> list["Ref"]:
    """The models that a recipe needs, in a fixed order."""
    refs: list[Ref | None] = []
    match recipe:
        case Trained(training=training, before=before):
            refs = [training.start, training.anchor, training.linear]
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


def renamed(recipe: Recipe, names: Mapping["Ref", "Ref"]) -> Recipe:
    """A recipe with other models in place of some.

    Args:
        recipe: the recipe.
        names: for each model to replace the model in its place.
    """

    def of(ref: "Ref") -> "Ref":
        return names.get(ref, ref)

    def of_optional(ref: "Ref | None") -> "Ref | None":
        return None if ref is None else names.get(ref, ref)

    match recipe:
        case Trained(training=training, before=before):
            contrast = training.contrast
            if contrast is not None:
                contrast = replace(contrast, previous=of(contrast.previous))
            training = replace(
                training,
                start=of(training.start),
                anchor=of_optional(training.anchor),
                linear=of_optional(training.linear),
                contrast=contrast,
            )
            return replace(recipe, training=training, before=of_optional(before))
        case Mixed(parts=parts, otherwise=otherwise):
            pairs = tuple((of(ref), coefficient) for ref, coefficient in parts)
            return replace(recipe, parts=pairs, otherwise=of_optional(otherwise))
        case Applied(models=models, otherwise=otherwise):
            return replace(recipe, models=tuple(map(of, models)), otherwise=of_optional(otherwise))
        case Best(models=models):
            return replace(recipe, models=tuple(map(of, models)))
    return recipe


@dataclass(slots=True, eq=False)
class Loss:
    """Reported training loss of an update, and the trainer's numbers by name.

    The loss is the mean over the samples of the last local epoch; NaN if none is reported.
    """

    value: float = float("nan")
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Ref:
    """The name of a model, unique within a run: ``model-3``, ``update-17``.

    A strategy passes refs on, stores them in its state and compares them. ``ServerModels.value``
    gives the weights; the attributes are for fedsim alone.

    Attributes:
        name: the name.
        serial: number of refs made before this one.
        device: the device that trained or chose the model, or None.
        recipe: the computation of the model; None once the model is computed.
        held: the weights in memory, or their place on disk; None until the model is computed.
        finite: whether all weights are finite numbers; False until the model is computed.
        loss: the training loss, shared by all refs made of an update; None for other models.
        losses, choice: for a choice, the objective of each model, float64 [models], and the
            position of the chosen model.
        state: the trainer's state after a training, by name, or the mean state of a mix if states
            are sent; else None.
    """

    name: str
    serial: int
    recipe: Recipe | None
    device: int | None = None
    held: Weights | Written | None = None
    finite: bool = False
    loss: Loss | None = None
    losses: NDArray[np.float64] | None = None
    choice: int | None = None
    state: Mapping[str, AnyArray] | None = None

    __saved__: ClassVar[tuple[str, ...]] = (
        *("name", "serial", "recipe", "device", "value", "finite", "loss", "losses", "choice"),
        "state",
    )
    """Names of the attributes in a snapshot."""

    def __repr__(self) -> str:
        return self.name

    @property
    def value(self) -> Weights | None:
        """The weights, float32 [d], read-only; None until the model is computed.

        Weights on disk are read at each access.
        """
        held = self.held
        return held.read() if isinstance(held, Written) else held

    @value.setter
    def value(self, weights: Weights | None) -> None:
        self.held = weights

    @property
    def train_loss(self) -> float:
        """The reported training loss; NaN if none is reported."""
        return float("nan") if self.loss is None else self.loss.value

    @property
    def numbers(self) -> Mapping[str, float]:
        """Numbers that a training reports, by name."""
        return {} if self.loss is None else self.loss.numbers

    def settle(
        self,
        value: Weights,
        train_loss: float = float("nan"),
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Store the computed weights, with the training's reports, and drop the recipe.

        Args:
            value: the weights, float32 [d].
            train_loss: mean loss of the last epoch; NaN if none is reported.
            numbers: further reported numbers by name.
        """
        value.setflags(write=False)
        self.held = value
        self.finite = bool(np.isfinite(value).all())
        if self.loss is not None and isinstance(self.recipe, Trained):
            self.loss.value = train_loss
            self.loss.numbers = numbers or {}
        self.recipe = None

    def choose(self, losses: NDArray[np.float64]) -> None:
        """Store the weights of the model with the smallest loss, and drop the recipe.

        The first of equals wins. A loss that is not finite counts as infinite.

        Args:
            losses: the objective of each model, float64 [models].
        """
        if not isinstance(self.recipe, Best):
            raise ValueError(f"{self} is no choice that is still to be made")
        losses.setflags(write=False)
        self.losses = losses
        self.choice = int(np.where(np.isfinite(losses), losses, np.inf).argmin())
        chosen = self.recipe.models[self.choice]
        self.held = chosen.value
        self.finite = chosen.finite
        self.recipe = None


_RANKS: dict[type[Recipe], int] = {Initial: 0, Mixed: 0, Applied: 1, Best: 2, Trained: 3}


class Waves:
    """The computation of refs and their ancestors in waves.

    An initial model or a mix forms a wave alone, before any other wave. Otherwise a wave has all
    functions, all choices or all trainings whose parents are computed, oldest first. The caller
    computes a wave before it takes the next one. Iterate once.

    Args:
        targets: the refs to compute; computed refs are skipped.
    """

    def __init__(self, targets: Iterable[Ref]) -> None:
        self._ready: list[tuple[int, int, Ref]] = []
        self._missing: dict[Ref, int] = {}
        self._children: dict[Ref, list[Ref]] = {}
        stack = list(targets)
        while stack:
            ref = stack.pop()
            if ref.recipe is not None and ref not in self._missing:
                pending = [parent for parent in parents(ref.recipe) if parent.recipe is not None]
                self._missing[ref] = len(pending)
                for parent in pending:
                    self._children.setdefault(parent, []).append(ref)
                stack += pending
                if not pending:
                    self._add(ref, ref.recipe)

    def _add(self, ref: Ref, recipe: Recipe) -> None:
        heappush(self._ready, (_RANKS[type(recipe)], ref.serial, ref))

    def __len__(self) -> int:
        """Number of models that are still to be computed."""
        return len(self._missing)

    def __iter__(self) -> Iterator[list[Ref]]:
        """The refs of each wave, which have one kind of recipe."""
        ready = self._ready
        while ready:
            rank, _, ref = heappop(ready)
            wave = [ref]
            while rank and ready and ready[0][0] == rank:
                wave.append(heappop(ready)[2])
            yield wave
            for ref in wave:
                del self._missing[ref]
                for child in self._children.pop(ref, ()):
                    self._missing[child] -= 1
                    if not self._missing[child] and child.recipe is not None:
                        self._add(child, child.recipe)
