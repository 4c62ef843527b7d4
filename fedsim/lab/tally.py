"""Learner of a trial, which counts trainings and tests instead of computing."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from fedsim.common.training import Training
from fedsim.learning import Learner
from fedsim.learning.functions import Function
from fedsim.learning.refs import Ref


class Together(NamedTuple):
    """The most models that a run combines in one call of a function, and the function's name."""

    models: int = 0
    function: str = ""


UsedTraining = tuple[int, Training]
"""Device ID, and a training on that device whose result the run uses."""


class Tally(Learner):
    """Learner that counts trainings and tests instead of computing.

    Attributes:
        trainings: device and training of each result that the run uses.
        tests: count of tests of models.
        together: greatest count of models that one function call combined so far.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trainings: list[UsedTraining] = []
        self.tests = 0
        self.together = Together()

    @override
    def apply(self, function: Function, models: Sequence[Ref], **options: Any) -> Ref:
        self.together = max(self.together, Together(len(models), function.__name__))
        return super().apply(function, models, **options)

    @override
    def train(self, training: Training, device: int, **options: Any) -> Ref:
        self.trainings.append((device, training))
        return super().train(training, device, **options)

    @override
    async def evaluate(self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]) -> None:
        self.tests += 1
