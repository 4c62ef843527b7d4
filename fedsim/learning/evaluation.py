"""Results of testing models on devices' test samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.common.saved import saved
from fedsim.learning.objectives import EvaluationMetric, SampleNumbers

AccuracyOver = Literal["pooled", "device-mean"]
"""Definition of accuracy, and of the other measures of a test.

``pooled``: over all answers; ``device-mean``: the mean of the devices' values.
"""


class AccuracyAndLoss(NamedTuple):
    """Accuracy (0 to 1) and loss of a test.

    A value is None if it is not finite or nothing was tested. The accuracy is also None if the
    objective has no accuracy, such as a regression.
    """

    accuracy: float | None
    loss: float | None


@saved()
@dataclass(frozen=True, eq=False)
class Evaluation:
    """Results of testing models on devices' test samples: correct answers, losses and metrics.

    There is an entry for each test of a model on a device's samples, so that a device can have
    several entries.

    Attributes:
        devices: the device of each entry.
        correct: count of correct answers, int64 [entries]; None for objectives that have no
            accuracy.
        count: count of answers (one per test sample, or one per token), int64 [entries].
        loss_sum: summed cross-entropy (or another loss), float64 [entries].
        facts: name of a metric -> one array [n, m] for each entry. It has, for each of the entry's
            n test samples, the m values from which the metric is computed.
    """

    devices: list[int]
    correct: NDArray[np.int64] | None
    count: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    facts: dict[str, list[SampleNumbers]] = field(default_factory=dict)

    @classmethod
    def concatenate(cls, evaluations: Sequence["Evaluation"]) -> "Evaluation":
        """Concatenate the evaluations of several models to one with the entries of all.

        Args:
            evaluations: the evaluations.

        Returns:
            The evaluation, with entries (tests of a model on a device's samples) in order. Its
            ``correct`` is None if it is None in one of ``evaluations``.
        """
        devices: list[int] = []
        facts: dict[str, list[SampleNumbers]] = {}
        # an empty array first, as numpy cannot concatenate an empty list
        corrects = [np.empty(0, np.int64)]
        counts = [np.empty(0, np.int64)]
        loss_sums = [np.empty(0)]
        has_correct = True
        for evaluation in evaluations:
            devices += evaluation.devices
            counts.append(evaluation.count)
            loss_sums.append(evaluation.loss_sum)
            if evaluation.correct is None:
                has_correct = False
            else:
                corrects.append(evaluation.correct)
            for name, entries in evaluation.facts.items():
                facts.setdefault(name, []).extend(entries)
        correct = None
        if has_correct:
            correct = np.concatenate(corrects)
        return cls(devices, correct, np.concatenate(counts), np.concatenate(loss_sums), facts)

    def entry(self, position: int) -> "Evaluation":
        """Return one entry, as an evaluation with a single entry.

        Args:
            position: index of the entry.
        """
        entry = slice(position, position + 1)
        correct = None if self.correct is None else self.correct[entry]
        facts = {name: entries[entry] for name, entries in self.facts.items()}
        return Evaluation(
            self.devices[entry], correct, self.count[entry], self.loss_sum[entry], facts=facts
        )

    @property
    def accuracy(self) -> float:
        """Share of correct answers, over all tests of the evaluation; NaN if it is not defined.

        There is one answer per test sample or token. The accuracy is not defined if there are no
        answers, or if the objective has no accuracy, such as a regression.
        """
        if self.correct is None or not self.count.any():
            return float("nan")
        return float(self.correct.sum() / self.count.sum())

    @property
    def loss(self) -> float:
        """Mean loss over all answers (one per test sample or token); NaN if there are none."""
        if not self.count.any():
            return float("nan")
        return float(self.loss_sum.sum() / self.count.sum())

    def device_accuracy(self) -> dict[int, float | None]:
        """Return the accuracy of each device on its test samples.

        Returns:
            Device -> accuracy, 0 to 1; None without test samples. If a device has several entries,
            its last entry counts.
        """
        return dict(zip(self.devices, self._ratios(self.correct), strict=True))

    def accuracy_and_loss(self, over: AccuracyOver) -> AccuracyAndLoss:
        """Return accuracy and loss of the evaluation; None for a value that is not defined.

        Args:
            over: ``pooled`` for values over all answers, ``device-mean`` for the mean of the
                devices' values.
        """
        if over == "pooled":
            return AccuracyAndLoss(_finite(self.accuracy), _finite(self.loss))
        return AccuracyAndLoss(
            _mean(self._ratios(self.correct)), _mean(self._ratios(self.loss_sum))
        )

    def figure(self, metric: EvaluationMetric, over: AccuracyOver) -> float | None:
        """Return the value of a metric, such as F1; None if it is not finite or nothing was tested.

        Args:
            metric: a metric of the objective, whose values for the samples are in ``facts``.
            over: ``pooled`` for the value over the test samples of all devices together,
                ``device-mean`` for the mean of the devices' values.
        """
        facts = [entry for entry in self.facts.get(metric.name, ()) if len(entry)]
        if over != "pooled":
            return _mean([_finite(metric.value(entry)) for entry in facts])
        if not facts:
            return None
        return _finite(metric.value(np.concatenate(facts)))

    def _ratios(self, sums: NDArray[np.int64] | NDArray[np.float64] | None) -> list[float | None]:
        """Return each entry's sum divided by its count of answers; None if there are no answers.

        Args:
            sums: correct answers or summed loss of each entry, [entries]; None if the objective has
                no such sum. The result is then None for each entry.
        """
        if sums is None:
            return [None] * len(self.devices)
        ratios = []
        for total, count in zip(sums.tolist(), self.count.tolist(), strict=True):
            ratios.append(total / count if count else None)
        return ratios


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return _finite(sum(numbers) / len(numbers))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
