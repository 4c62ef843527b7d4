"""The result of testing models on devices' test samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from fedsim.learning.objectives import EvaluationMetric, SampleNumbers


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Right answers and losses, device by device."""

    devices: list[int]
    """the tested devices, one entry for each model that serves a device."""
    correct: NDArray[np.int64] | None
    """right answers, int64 [devices]; None for objectives without accuracy."""
    count: NDArray[np.int64]
    """answers, one or several (tokens) a test sample, int64 [devices]."""
    loss_sum: NDArray[np.float64]
    """summed cross-entropy (or another loss), float64 [devices]."""
    facts: dict[str, list[SampleNumbers]] = field(default_factory=dict)
    """numbers that each metric keeps of each device's test samples, by metric."""

    @classmethod
    def together(cls, each: Sequence["Evaluation"]) -> "Evaluation":
        """Several models' results as one."""
        right = [one.correct for one in each if one.correct is not None]
        return cls(
            [device for one in each for device in one.devices],
            None if len(right) < len(each) else np.concatenate([np.empty(0, np.int64), *right]),
            np.concatenate([np.empty(0, np.int64), *(one.count for one in each)]),
            np.concatenate([np.empty(0), *(one.loss_sum for one in each)]),
            {
                name: [own for one in each for own in one.facts.get(name, ())]
                for name in chain(*(one.facts for one in each))
            },
        )

    def row(self, at: int) -> "Evaluation":
        """One entry by itself."""
        row = slice(at, at + 1)
        correct = None if self.correct is None else self.correct[row]
        facts = {name: own[row] for name, own in self.facts.items()}
        return Evaluation(
            self.devices[row], correct, self.count[row], self.loss_sum[row], facts=facts
        )

    @property
    def accuracy(self) -> float:
        """Right answers over all, all devices pooled; NaN without any."""
        return (
            float("nan")
            if self.correct is None or not self.count.any()
            else float(self.correct.sum() / self.count.sum())
        )

    @property
    def loss(self) -> float:
        """Mean loss over answers, all devices pooled; NaN without any."""
        return float(self.loss_sum.sum() / self.count.sum()) if self.count.any() else float("nan")

    def device_accuracy(self) -> dict[int, float | None]:
        """Each device's accuracy on its own samples; None for one without."""
        return dict(zip(self.devices, self._ratios(self.correct), strict=True))

    def score(self, how: str) -> tuple[float | None, float | None]:
        """Accuracy and loss, ``pooled`` or ``device-mean``; None where nothing was tested, or
        not finite.
        """
        if how == "pooled":
            return _finite(self.accuracy), _finite(self.loss)
        return _mean(self._ratios(self.correct)), _mean(self._ratios(self.loss_sum))

    def figure(self, metric: EvaluationMetric, how: str) -> float | None:
        """A metric, ``pooled`` or ``device-mean``; None where nothing was tested, or it is not
        defined.
        """
        own = [facts for facts in self.facts.get(metric.name, ()) if len(facts)]
        if how == "pooled":
            return _finite(metric.value(np.concatenate(own))) if own else None
        return _mean([_finite(metric.value(facts)) for facts in own])

    def _ratios(self, sums: NDArray[np.int64] | NDArray[np.float64] | None) -> list[float | None]:
        if sums is None:
            return [None] * len(self.devices)
        pairs = zip(sums.tolist(), self.count.tolist(), strict=True)
        return [total / count if count else None for total, count in pairs]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _finite(sum(known) / len(known)) if known else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
