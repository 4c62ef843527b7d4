"""Models as names: a ``Ref`` denotes a model that may not have been computed yet, and has its
recipe.

A ref is computed when its value is needed. Then it drops its recipe, and with it all models that
only the recipe needed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.training import Training

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Initial:
    """A fresh draw of the model's initialisation, one for each ``count``."""

    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Local training of one device on a version of its data.

    ``device`` and ``key`` name the stream of shuffles and dropout masks; ``round`` decays
    ``[training] lr``. ``before`` is the device's previous training, whose trainer's state it begins
    with; None: no state.
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
    """The model with the smallest training objective on a version of a device's data (IFCA,
    Algorithm 1).

    ``batch``: number of samples of the estimate, and the key of the stream that draws them;
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
    """The result of a pure function (``fedsim.learning.functions``, by its import path) of
    models and constants.
    """

    function: str
    models: tuple["Ref", ...]
    constants: Mapping[str, Any]
    """by name; JSON-able."""
    stream: tuple[Any, ...] | None
    """the purpose and the numbers of the stream that it draws from; None: it draws nothing."""
    otherwise: "Ref | None"
    """its substitute where a model is not finite, or none is left."""
    leave_out: bool
    """whether it leaves out models that are not finite instead."""
    size: int | None = None
    """how many numbers it gives; None for a model."""


Recipe = Initial | Trained | Mixed | Best | Applied


def parents(recipe: Recipe) -> list["Ref"]:
    """The models that a recipe needs."""
    needed: list[Ref | None] = []
    match recipe:
        case Trained(training=training, before=before):
            previous = None if training.contrast is None else training.contrast.previous
            needed = [training.start, training.anchor, training.linear, previous, before]
        case Mixed(parts=parts, otherwise=otherwise):
            needed = [*(ref for ref, _ in parts), otherwise]
        case Applied(models=models, otherwise=otherwise):
            needed = [*models, otherwise]
        case Best(models=models):
            needed = [*models]
    return [ref for ref in needed if ref is not None]


@dataclass(slots=True, eq=False)
class Loss:
    """Reported training loss, the mean over the samples of the last local epoch, and the
    trainer's numbers by name.
    """

    value: float = float("nan")
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Ref:
    """The name of a model, unique within a run: ``model-3``, ``update-17``. Nobody but fedsim
    looks inside.

    A strategy passes refs on, stores them in its state and compares them; ``ServerModels.value``
    gives the weights.

    Attributes:
        name: the name.
        serial: number of refs made before.
        device: the device that trained or chose it, or None.
        recipe: how to compute it; None once that is done.
        value: the weights, float32 [d], read-only; None until then.
        finite: whether all weights are finite numbers; False until they are known.
        loss: the training loss, shared by all refs made of the update; None elsewhere.
        losses, choice: of a choice, the objective of each model, float64 [models], and the
            position of the chosen one.
        state: the trainer's state after a training, by name, and the mean state of a mix where
            states are sent; else None.
    """

    name: str
    serial: int
    recipe: Recipe | None
    device: int | None = None
    value: Weights | None = None
    finite: bool = False
    loss: Loss | None = None
    losses: NDArray[np.float64] | None = None
    choice: int | None = None
    state: Mapping[str, NDArray[Any]] | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def train_loss(self) -> float:
        """NaN where none is reported."""
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
        """Take the computed weights and forget how they were made."""
        value.setflags(write=False)
        self.value = value
        self.finite = bool(np.isfinite(value).all())
        if self.loss is not None and isinstance(self.recipe, Trained):
            self.loss.value = train_loss
            self.loss.numbers = numbers or {}
        self.recipe = None

    def choose(self, losses: NDArray[np.float64]) -> None:
        """Become the model with the smallest loss, the first of equals, and forget the others.

        A loss that is not finite never wins; where none is finite, the first model does.
        """
        if not isinstance(self.recipe, Best):
            raise ValueError(f"{self} is no choice that is still to be made")
        losses.setflags(write=False)
        self.losses = losses
        self.choice = int(np.where(np.isfinite(losses), losses, np.inf).argmin())
        chosen = self.recipe.models[self.choice]
        self.value = chosen.value
        self.finite = chosen.finite
        self.recipe = None


_RANKS: dict[type[Recipe], int] = {Initial: 0, Mixed: 0, Applied: 1, Best: 2, Trained: 3}


def waves(wanted: Iterable[Ref]) -> Iterator[list[Ref]]:
    """The refs that must be computed for ``wanted``, wave by wave, each of one kind of recipe
    and oldest first.

    An initial model or a mix comes first, alone; then all functions, all choices or all
    trainings whose parents are known. The caller computes a wave before it asks for the next.
    """
    stack = list(wanted)
    ready = list[tuple[int, int, Ref]]()
    missing = dict[Ref, int]()
    children = dict[Ref, list[Ref]]()

    def add(ref: Ref, recipe: Recipe) -> None:
        heappush(ready, (_RANKS[type(recipe)], ref.serial, ref))

    while stack:
        ref = stack.pop()
        if ref.recipe is not None and ref not in missing:
            unknown = [parent for parent in parents(ref.recipe) if parent.recipe is not None]
            missing[ref] = len(unknown)
            for parent in unknown:
                children.setdefault(parent, []).append(ref)
            stack += unknown
            if not unknown:
                add(ref, ref.recipe)
    while ready:
        rank, _, ref = heappop(ready)
        wave = [ref]
        while rank and ready and ready[0][0] == rank:
            wave.append(heappop(ready)[2])
        yield wave
        for ref in wave:
            del missing[ref]
            for child in children.pop(ref, ()):
                missing[child] -= 1
                if not missing[child] and child.recipe is not None:
                    add(child, child.recipe)
