"""Learner of a trial, which counts trainings, tests and stored models instead of computing."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from typing_extensions import override

from fedsim.common.training import Training
from fedsim.learning import Learner
from fedsim.learning.derived import MOST_SHARE, is_spliced
from fedsim.learning.functions import Function
from fedsim.learning.refs import Applied, Best, Recipe, Ref, parents
from fedsim.learning.scratch import ROOM, SMALL


class Together(NamedTuple):
    """Largest call of a function on models that a run makes.

    Attributes:
        models: count of models that the call combines.
        function: name of the function.
    """

    models: int = 0
    function: str = ""


UsedTraining = tuple[int, Training]
"""Device ID, and a training on that device whose result the run uses, without its models."""


class Tally(Learner):
    """Learner for forecasts: counts trainings, tests and stored models instead of computing them.

    At a test a run computes the tested models and all models from which they follow. Of these it
    stores the models to which anything still refers. This learner drops the recipes of all these
    models, as the run does, and then counts the bytes of those that Python has not freed.

    Attributes:
        trainings: device and training of each result that the run uses.
        tests: count of tests of models.
        together: greatest count of models that one function call combined so far.
        stored_bytes: greatest size so far of the models that are stored at a time (bytes).
        room: memory for models (bytes), as ``training.memory``.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trainings: list[UsedTraining] = []
        self.tests = 0
        self.together = Together()
        self.stored_bytes = 0.0
        self.room: float = ROOM
        self._sizes: weakref.WeakKeyDictionary[Ref, float] = weakref.WeakKeyDictionary()
        self._sources: weakref.WeakKeyDictionary[Ref, list[weakref.ref[Ref]]] = (
            weakref.WeakKeyDictionary()
        )

    @override
    def _name(self, prefix: str, recipe: Recipe | None, device: int | None = None) -> Ref:
        ref = super()._name(prefix, None, device)
        ref.recipe = recipe
        return ref

    @override
    def apply(self, function: Function, models: Sequence[Ref], **options: Any) -> Ref:
        self.together = max(self.together, Together(len(models), function.__name__))
        return super().apply(function, models, **options)

    @override
    def train(self, training: Training, device: int, **options: Any) -> Ref:
        # without models, which would stay in use
        contrast = training.contrast
        if contrast is not None:
            contrast = replace(contrast, previous=None)
        bare = replace(training, start=None, anchor=None, linear=None, contrast=contrast)
        self.trainings.append((device, bare))
        return super().train(training, device, **options)

    @override
    async def evaluate(self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]) -> None:
        self.tests += 1
        stay = self.bytes * len(models) <= self.room
        self.note_computed([ref for ref, _ in models.values()], stay=stay)

    def note_computed(self, models: Sequence[Ref], *, stay: bool = False) -> None:
        """Count the memory of models that a run would compute now, with all models that they need.

        Args:
            models: the models. They and the models that they need lose their recipes.
            stay: whether the models themselves stay in memory, and so are not stored.
        """
        if stay:
            for ref in models:
                if ref.recipe is not None:
                    self._sizes[ref] = 0.0
        needed = self._compute(models)
        with_needed = self.stored_size(self._sizes)
        is_sum = len(models) == 1
        del needed
        stored = self.stored_size(self._sizes)
        if is_sum:
            # models of earlier rounds are freed one by one while the sum is computed
            stored = (stored + with_needed) / 2
        self.stored_bytes = max(self.stored_bytes, stored)

    def _compute(self, models: Sequence[Ref]) -> list[Ref]:
        """Drop the recipes of models that a run would compute now, and of the models that they need.

        A recipe is the description of how a model is computed from other models.

        Returns:
            The models that were computed before, and that the dropped recipes had.
        """
        needed: list[Ref] = []
        waiting = list(models)
        while waiting:
            ref = waiting.pop()
            recipe = ref.recipe
            if recipe is None:
                needed.append(ref)
                continue
            waiting += parents(recipe)
            ref.recipe = None
            self._sizes.setdefault(ref, self._size(recipe))
            if is_spliced(recipe):
                self._sources[ref] = [weakref.ref(model) for model in parents(recipe)]
        computed = set(map(id, models))
        return [ref for ref in needed if ref in self._sizes and id(ref) not in computed]

    def _size(self, recipe: Recipe) -> float:
        """Return the size (bytes) of the model that a recipe (its way of computation) makes."""
        if isinstance(recipe, Best):
            return 0.0  # shares the memory of the chosen model
        if isinstance(recipe, Applied) and recipe.size is not None:
            return 4.0 * recipe.size
        return self.bytes

    def stored_size(self, models: Iterable[Ref]) -> float:
        """Return the size (bytes) of the given models that a run would have stored by now."""
        total = 0.0
        for ref in models:
            size = self._sizes.get(ref, 0.0)
            if size > SMALL and not self._is_derived(ref):
                total += size
        return total

    def saved_size(self, models: Iterable[Ref]) -> float:
        """Return the size (bytes) in a checkpoint of the given models that are computed."""
        total = 0.0
        for ref in models:
            if ref in self._sizes:
                total += self._sizes[ref] or self.bytes
        return total

    def _is_derived(self, ref: Ref) -> bool:
        """Whether a stored model takes no space of its own.

        It is so for a model that is put together of two models, of which the one with the values is
        small and both are still in use.
        """
        sources = [source() for source in self._sources.get(ref, ())]
        if len(sources) != 2 or None in sources:
            return False
        values = sources[1]
        return values is not None and self._sizes.get(values, self.bytes) <= MOST_SHARE * self.bytes
