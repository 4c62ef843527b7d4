"""Models as names: a ``Ref`` stands for a model that may not have been computed yet, and knows how it would be.

A ref that nobody asks about is never computed. Once it is, it holds its value and drops its recipe, and with it every model
that only the recipe needed; plain reference counting does the rest.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

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
    """Local SGD of one device.

    Attributes:
        base: where it starts.
        device, version: whose data, and in which version.
        epochs: passes over the data; ignored when ``iterations`` is given.
        iterations: SGD steps, however many epochs that takes.
        key: with the device, the name of the stream of shuffles (and of dropout masks).
        lr: learning rate.
        proximal: mu of the proximal term mu/2 ||w - base||^2.
        samples: positions within the device's training samples that it trains on, int64 [k]; None for all.
    """

    base: "Ref"
    device: int
    version: int
    epochs: int
    iterations: int | None
    key: int
    lr: float
    proximal: float
    samples: NDArray[np.int64] | None

    @property
    def parents(self) -> tuple["Ref", ...]:
        """The base."""
        return (self.base,)


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


Recipe = Initial | Trained | Mixed


class Ref:
    """The name of a model. Strategies pass it on; only ``Learning`` looks inside.

    Attributes:
        name: unique within a run, ``model-3`` or ``update-17``.
        serial: how many refs were made before.
        device: who trained it, or None.
        recipe: how to compute it; None once that is done.
        value: the weights, float32 [d], read-only; None until then.
        finite: whether all weights are finite numbers; False until they are known.
        train_loss: mean mini-batch loss over the last local epoch, weighted by samples; NaN where there is none.
    """

    __slots__ = ("__weakref__", "device", "finite", "name", "recipe", "serial", "train_loss", "value")

    def __init__(self, name: str, serial: int, recipe: Recipe | None, device: int | None = None) -> None:
        self.name = name
        self.serial = serial
        self.recipe = recipe
        self.device = device
        self.value: Weights | None = None
        self.finite = False
        self.train_loss = float("nan")

    def __repr__(self) -> str:
        return self.name

    def settle(self, value: Weights, train_loss: float = float("nan")) -> None:
        """Take the computed weights and forget how they were made."""
        value.setflags(write=False)
        self.value = value
        self.finite = bool(np.isfinite(value).all())
        self.train_loss = train_loss
        self.recipe = None


class Waves:
    """What must be computed for some refs to be known, in waves.

    ``combined`` gives initial models and mixes whose parts are known, in order of creation, until there are none left;
    ``trainings`` then gives every training whose base is known. What is given out must be ``done`` before the next call.
    Walks no recursion, so chains may be of any length.
    """

    def __init__(self, wanted: Iterable[Ref]) -> None:
        self._missing: dict[Ref, int] = {}
        self._children: dict[Ref, list[Ref]] = {}
        self._combined: list[tuple[int, Ref]] = []
        self._trainings: list[Ref] = []
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
        if isinstance(ref.recipe, Trained):
            self._trainings.append(ref)
        else:
            heappush(self._combined, (ref.serial, ref))

    def combined(self) -> Iterator[Ref]:
        """Initial models and mixes that can be computed now, oldest first, including those that become so meanwhile."""
        while self._combined:
            yield heappop(self._combined)[1]

    def trainings(self) -> list[Ref]:
        """The trainings that can be done now, oldest first."""
        ready, self._trainings = self._trainings, []
        return sorted(ready, key=lambda ref: ref.serial)

    def done(self, ref: Ref) -> None:
        """``ref`` is known; what waited for it may have become ready."""
        del self._missing[ref]
        for child in self._children.pop(ref, ()):
            self._missing[child] -= 1
            if not self._missing[child]:
                self._ready(child)
