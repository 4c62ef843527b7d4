"""Stand-in for a run's learning, to predict a run's cost without training models."""

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from fedsim.common.training import Training
from fedsim.learning import Learner
from fedsim.learning.functions import Function
from fedsim.learning.refs import Recipe, Ref, Trained

if TYPE_CHECKING:
    from fedsim.lab.planned_models import PlannedComputing


class LargestCall(NamedTuple):
    """Function call of a run that combines the most models at once, such as an aggregation.

    Attributes:
        models: count of models that the call combines.
        function: name of the function.
    """

    models: int = 0
    function: str = ""


UsedTraining = tuple[int, Training]
"""Device ID, and a training on that device whose result the run uses, without its models."""


class Tally(Learner):
    """Learner of a run that trains nothing, and counts trainings and tests to predict their cost.

    Strategies see models without weights, as with ``learning = "off"``. When a run would compute
    models, such as for a test, the object ``planned`` does so with placeholders for weights, to
    count the memory that the models take.

    Attributes:
        trainings: device and training of each result that the run uses.
        tests: count of tests of models.
        largest_call: function call that combined the most models so far.
        planned: computes models with placeholders for weights; None if the run has no learning.
    """

    planned: "PlannedComputing | None" = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trainings: list[UsedTraining] = []
        self.tests = 0
        self.largest_call = LargestCall()

    @override
    def _name(self, prefix: str, recipe: Recipe | None, device: int | None = None) -> Ref:
        # the base class drops recipes (how models would be computed) if ``learns`` is false
        ref = super()._name(prefix, recipe=None, device=device)
        ref.recipe = recipe
        return ref

    @override
    def zero(self) -> Ref:
        ref = super().zero()
        if self.planned is not None:
            self.planned.finish(ref, None)
        return ref

    @override
    def last_gradient(self, update: Ref) -> Ref:
        recipe = update.recipe
        if not isinstance(recipe, Trained):
            return super().last_gradient(update)
        training = replace(recipe.training, result="last-gradient")
        return self._name("gradient", replace(recipe, training=training), update.device)

    @override
    def apply(self, function: Function, models: Sequence[Ref], **options: Any) -> Ref:
        self.largest_call = max(self.largest_call, LargestCall(len(models), function.__name__))
        return super().apply(function, models, **options)

    @override
    def train(self, training: Training, device: int, **options: Any) -> Ref:
        # the stored copy of the training has no models, which would otherwise stay in memory
        contrast = training.contrast
        if contrast is not None:
            contrast = replace(contrast, previous=None)
        proximal = replace(training.proximal, anchor=None)
        without_models = replace(
            training, start=None, proximal=proximal, linear=None, contrast=contrast
        )
        self.trainings.append((device, without_models))
        return super().train(training, device, **options)

    @override
    async def evaluate(self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]) -> None:
        self.tests += 1
        refs = [ref for ref, _ in models.values()]
        stay = self.planned is not None and self.planned.has_room(len(refs))
        await self.note_skipped(refs, stay=stay)

    @override
    async def note_skipped(self, models: Sequence[Ref], *, stay: bool = False) -> None:
        if self.planned is not None:
            await self.planned.compute(models, stay=stay)

    @override
    def compute_now(self, ref: Ref) -> None:
        _run_without_waiting(self.note_skipped([ref], stay=True))

    @override
    def free_derived(self) -> None:
        if self.planned is not None:
            self.planned.scratch.free_substituted()

    def plan(self, models: Sequence[Ref]) -> None:
        """Count the memory that a run needs to compute the models that it writes at its end.

        The models are computed one after the other, without weights.

        Args:
            models: the models.
        """
        for model in models:
            _run_without_waiting(self.note_skipped([model]))


def _run_without_waiting(coroutine: Coroutine[object, None, None]) -> None:
    """Run a coroutine without an event loop.

    Args:
        coroutine: a coroutine that never waits, as it computes no weights.
    """
    with suppress(StopIteration):
        coroutine.send(None)
