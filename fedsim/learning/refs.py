"""Models as names: a ``Ref`` stands for a model that may not have been computed yet, and knows how it would be.

A ref that nobody asks about is never computed. Once it is, it holds its value and drops its recipe, and with it every model
that only the recipe needed; plain reference counting does the rest.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.training import Training

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Initial:
    """A fresh draw of the model's initialisation; another ``count`` is another draw."""

    count: int

    @property
    def parents(self) -> tuple["Ref", ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Local training of one device.

    Attributes:
        training: what it does.
        device, version: whose data, and in which version.
        key: with the device, the name of the stream of shuffles (and of dropout masks).
        round: decays the learning rate.
    """

    training: Training
    device: int
    version: int
    key: int
    round: int

    @property
    def parents(self) -> tuple["Ref", ...]:
        """The start, and the models in the terms that are added to the gradient, or to the loss."""
        training = self.training
        previous = None if training.contrast is None else training.contrast.previous
        return tuple(ref for ref in (training.start, training.anchor, training.linear, previous) if ref is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A linear combination, summed in the order given.

    Attributes:
        parts: models and coefficients.
        otherwise: stands in when no part is finite.
        rescale: whether the coefficients of the finite parts are scaled up to the sum of all.
    """

    parts: tuple[tuple["Ref", float], ...]
    otherwise: "Ref | None"
    rescale: bool

    @property
    def parents(self) -> tuple["Ref", ...]:
        """The parts, and what stands in for them."""
        parts = tuple(ref for ref, _ in self.parts)
        return parts if self.otherwise is None else (*parts, self.otherwise)


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The model with the smallest training objective on a device's data, chosen there (IFCA, Algorithm 1).

    Attributes:
        models: out of which; at least one.
        device, version: whose data, and in which version.
        batch: how many of its samples the objective is estimated on, and the key of their stream; None: all.
    """

    models: tuple["Ref", ...]
    device: int
    version: int
    batch: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError(f"device {self.device} is to choose the best out of no models; it needs at least one")

    @property
    def parents(self) -> tuple["Ref", ...]:
        """The models."""
        return self.models


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """What a pure function (``fedsim.learning.functions``) makes of models.

    Attributes:
        function: its import path, ``package.module:function``.
        models: what it is given, in this order.
        constants: what else, by name; JSON-able.
        stream: the purpose and the numbers of the stream that it draws from; None: it draws nothing.
        otherwise: stands in where a model is not finite, or none is left.
        leave_out: whether a model that is not finite is left out instead.
        size: how many numbers it gives; None for a model.
    """

    function: str
    models: tuple["Ref", ...]
    constants: Mapping[str, Any]
    stream: tuple[Any, ...] | None
    otherwise: "Ref | None"
    leave_out: bool
    size: int | None = None

    @property
    def parents(self) -> tuple["Ref", ...]:
        """The models, and what stands in for them."""
        return self.models if self.otherwise is None else (*self.models, self.otherwise)


Recipe = Initial | Trained | Mixed | Best | Applied


class Loss:
    """What a training reports: the mean mini-batch loss over the last local epoch, weighted by samples; NaN until then."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = float("nan")


class Ref:
    """The name of a model. Strategies pass it on; only ``Learning`` looks inside.

    Attributes:
        name: unique within a run, ``model-3`` or ``update-17``.
        serial: how many refs were made before.
        device: who trained or chose it, or None.
        recipe: how to compute it; None once that is done.
        value: the weights, float32 [d], read-only; None until then.
        finite: whether all weights are finite numbers; False until they are known.
        loss: of a training, and of all that its device and the wire make of it, what it reports; None elsewhere.
        losses: of a choice, the objective of each model, float64 [models], read-only; None until then.
        choice: of a choice, the position of the chosen model; None until then.
    """

    __slots__ = ("__weakref__", "choice", "device", "finite", "loss", "losses", "name", "recipe", "serial", "value")

    def __init__(self, name: str, serial: int, recipe: Recipe | None, device: int | None = None) -> None:
        self.name = name
        self.serial = serial
        self.recipe = recipe
        self.device = device
        self.value: Weights | None = None
        self.finite = False
        self.loss: Loss | None = None
        self.losses: NDArray[np.float64] | None = None
        self.choice: int | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def train_loss(self) -> float:
        """What it reports; NaN where it reports nothing."""
        return float("nan") if self.loss is None else self.loss.value

    def settle(self, value: Weights, train_loss: float = float("nan")) -> None:
        """Take the computed weights and forget how they were made."""
        value.setflags(write=False)
        self.value = value
        self.finite = bool(np.isfinite(value).all())
        if self.loss is not None and isinstance(self.recipe, Trained):
            self.loss.value = train_loss
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
        self.value, self.finite = chosen.value, chosen.finite
        self.recipe = None


class Waves:
    """What must be computed for some refs to be known, in waves.

    ``combined`` gives initial models and mixes whose parts are known, in order of creation, until there are none left. Then
    ``next_wave`` gives what can be computed side by side: every function whose models are known; where there is none, every
    choice between known models; where there is none either, every training whose base is known. What is given out must be
    ``done`` before the next call. Walks no recursion, so chains may be of any length.
    """

    def __init__(self, wanted: Iterable[Ref]) -> None:
        self._missing: dict[Ref, int] = {}
        self._children: dict[Ref, list[Ref]] = {}
        self._combined: list[tuple[int, Ref]] = []
        self._side_by_side: dict[type[Recipe], list[Ref]] = {Applied: [], Best: [], Trained: []}
        self._gather(wanted)

    def __bool__(self) -> bool:
        return bool(self._missing)

    def _gather(self, wanted: Iterable[Ref]) -> None:
        stack = [ref for ref in wanted if ref.recipe is not None]
        while stack:
            ref = stack.pop()
            if ref in self._missing or ref.recipe is None:
                continue
            unknown = [parent for parent in ref.recipe.parents if parent.recipe is not None]
            self._missing[ref] = len(unknown)
            for parent in unknown:
                self._children.setdefault(parent, []).append(ref)
            stack += unknown
            if not unknown:
                self._ready(ref)
        heapify(self._combined)

    def _ready(self, ref: Ref) -> None:
        waiting = self._side_by_side.get(type(ref.recipe))  # type: ignore[arg-type]
        if waiting is None:
            heappush(self._combined, (ref.serial, ref))
        else:
            waiting.append(ref)

    def combined(self) -> Iterator[Ref]:
        """Initial models and mixes that can be computed now, oldest first, including those that become so meanwhile."""
        while self._combined:
            yield heappop(self._combined)[1]

    def next_wave(self) -> list[Ref]:
        """What can be computed side by side now, all of one kind, oldest first."""
        for waiting in self._side_by_side.values():
            if waiting:
                ready = sorted(waiting, key=lambda ref: ref.serial)
                waiting.clear()
                return ready
        return []

    def done(self, ref: Ref) -> None:
        """``ref`` is known; what waited for it may have become ready."""
        del self._missing[ref]
        for child in self._children.pop(ref, ()):
            self._missing[child] -= 1
            if not self._missing[child]:
                self._ready(child)
