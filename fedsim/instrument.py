"""The researcher's instrument: how good the models are, seen from outside. It takes no simulated time and moves no bytes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsim.stop import StopSpec

if TYPE_CHECKING:
    from fedsim.learning import Evaluation, Learner, Ref

Served = Mapping[str, tuple["Ref", Sequence[int] | None]]
"""A strategy's models by name, each with the devices that it serves (None: all)."""

_MEASURES = ("accuracy", "loss", "train_loss", "discrepancy")


class Instrument:
    """Measures aggregations when it is due, and knows when a run has come to its end.

    Args:
        learner: where models are measured.
        stop: when to end.
        every: a test after every so many rounds, and after the last.
        score: ``pooled`` (all test samples as one set) or ``device-mean`` (mean of the devices' accuracies); None for the
            strategy's own.

    Attributes:
        last: the last evaluation, or None.
    """

    def __init__(self, learner: "Learner", stop: StopSpec, every: int, score: str | None) -> None:
        self._learner = learner
        self._every = every
        self._score = score
        self.stop = stop
        self.last: Evaluation | None = None

    def is_last(self, number: int) -> bool:
        """Whether round ``number`` (from 0) is the last one planned."""
        return self.stop.rounds is not None and number + 1 >= self.stop.rounds

    def reason_to_stop(self, number: int, accuracy: float | None) -> str | None:
        """Why the run ends after round ``number``; None if it goes on."""
        if self.stop.accuracy is not None and accuracy is not None and accuracy >= self.stop.accuracy:
            return f"accuracy {accuracy:.4f} reached"
        return f"{number + 1} rounds" if self.is_last(number) else None

    async def measure(
        self,
        number: int,
        models: Served,
        updates: Sequence[tuple["Ref", float]],
        center: "Ref | None",
        usual_score: str,
    ) -> dict[str, float | None]:
        """Accuracy and loss on test data, training loss and discrepancy after a round; Nones when no test is due."""
        row: dict[str, float | None] = dict.fromkeys(_MEASURES)
        if not self.is_last(number) and (number + 1) % self._every:
            return row
        evaluation = await self._learner.evaluate(models)
        if evaluation is None:
            return row
        self.last = evaluation
        row["accuracy"], row["loss"] = evaluation.score(self._score or usual_score)
        if updates:
            row["train_loss"] = await self._learner.train_loss(updates)
            if center is not None:
                row["discrepancy"] = await self._learner.discrepancy([ref for ref, _ in updates], center)
        return row

    async def test(self, model: "Ref", devices: Sequence[int] | None) -> float | None:
        """Accuracy of a model on the pooled test samples of devices (None: all); None where nothing is measured."""
        evaluation = await self._learner.evaluate({"test": (model, devices)})
        return None if evaluation is None else evaluation.score("pooled")[0]
