"""The result of testing models on devices' test samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Right answers and losses, device by device.

    Attributes:
        devices: who was tested, in order; a device that several models serve stands here once for each.
        correct: right answers, int64 [devices].
        count: test samples, int64 [devices].
        loss_sum: summed cross-entropy (or the module's own loss), float64 [devices].
        models: the same for each model by itself, where several were tested.
    """

    devices: list[int]
    correct: NDArray[np.int64]
    count: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    models: dict[str, "Evaluation"] = field(default_factory=dict)

    @classmethod
    def together(cls, models: dict[str, "Evaluation"]) -> "Evaluation":
        """Several models' results as one."""
        each = list(models.values())
        return cls(
            [device for one in each for device in one.devices],
            np.concatenate([np.empty(0, np.int64), *(one.correct for one in each)]),
            np.concatenate([np.empty(0, np.int64), *(one.count for one in each)]),
            np.concatenate([np.empty(0), *(one.loss_sum for one in each)]),
            models,
        )

    def row(self, at: int) -> "Evaluation":
        """One entry by itself."""
        row = slice(at, at + 1)
        return Evaluation(self.devices[row], self.correct[row], self.count[row], self.loss_sum[row])

    def __getitem__(self, model: str) -> "Evaluation":
        return self.models[model]

    @property
    def accuracy(self) -> float:
        """Right answers over samples, all devices pooled; NaN without samples."""
        return float(self.correct.sum() / self.count.sum()) if self.count.any() else float("nan")

    @property
    def loss(self) -> float:
        """Mean loss over samples, all devices pooled; NaN without samples."""
        return float(self.loss_sum.sum() / self.count.sum()) if self.count.any() else float("nan")

    def device_accuracy(self) -> dict[int, float | None]:
        """Accuracy of each device on its own samples; None for one without."""
        return dict(zip(self.devices, self._ratios(self.correct), strict=True))

    def score(self, how: str) -> tuple[float | None, float | None]:
        """Accuracy and loss, ``pooled`` or ``device-mean``; None where nothing was tested, or not finite."""
        if how == "pooled":
            return _finite(self.accuracy), _finite(self.loss)
        return _mean(self._ratios(self.correct)), _mean(self._ratios(self.loss_sum))

    def _ratios(self, sums: NDArray[np.int64] | NDArray[np.float64]) -> list[float | None]:
        pairs = zip(sums.tolist(), self.count.tolist(), strict=True)
        return [total / count if count else None for total, count in pairs]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _finite(sum(known) / len(known)) if known else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
