"""Tests on devices that never train (``population.tested_only``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.evaluation import AccuracyOver
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.learning import Learner

ACCURACY = "accuracy_unseen"
LOSS = "loss_unseen"
COLUMNS = {
    ACCURACY: "accuracy on the devices that are tested and never train",
    LOSS: "loss on the devices that are tested and never train",
}
"""Columns of ``rounds.parquet`` with ``population.tested_only`` -> description."""


class UnseenTest(NamedTuple):
    """Accuracy and loss of a test on the devices that never train, in total and by device.

    Attributes:
        figures: accuracy and loss, by column of ``rounds.parquet``.
        of_devices: device -> its accuracy; None without test samples.
    """

    figures: dict[str, float | None]
    of_devices: dict[int, float | None]


class UnseenTests:
    """Tests of a strategy's models on the devices that never train (``population.tested_only``).

    Args:
        learner: computes and tests models.
        devices: IDs of the devices; empty if all devices may train.
    """

    def __init__(self, learner: "Learner", devices: Sequence[int]) -> None:
        self._learner = learner
        self._devices = list(devices)

    def not_measured(self) -> dict[str, float | None]:
        """Return the values of these tests in the table of rounds, for a round without a test.

        Each column has the value None; the dict is empty if all devices may train.
        """
        return dict.fromkeys(COLUMNS) if self._devices else {}

    async def measure(self, models: ModelAssignment, over: AccuracyOver) -> UnseenTest | None:
        """Test the strategy's models on the test samples of each device that never trains.

        With several models, a measure is the mean over the models, weighted by the counts of the
        devices that they serve (``weighted_models``). This mean is the expected value for a device
        that gets the model of a random device.

        Args:
            models: the strategy's models.
            over: definition of accuracy: ``pooled`` over all test samples, or ``device-mean``, the
                mean of the devices' accuracies.

        Returns:
            The result; None without such devices, or without learning.
        """
        if not self._devices:
            return None
        accuracy = _MeanOverModels()
        loss = _MeanOverModels()
        of_devices = {device: _MeanOverModels() for device in self._devices}
        for model, weight in weighted_models(models):
            evaluation = await self._learner.evaluate({"unseen": (model, self._devices)})
            if evaluation is None:
                return None
            figures = evaluation.accuracy_and_loss(over)
            accuracy.add(figures.accuracy, weight)
            loss.add(figures.loss, weight)
            for device, device_accuracy in evaluation.device_accuracy().items():
                of_devices[device].add(device_accuracy, weight)
        return UnseenTest(
            figures={ACCURACY: accuracy.value, LOSS: loss.value},
            of_devices={device: mean.value for device, mean in of_devices.items()},
        )


class _MeanOverModels:
    """Mean of a measure over several models, weighted by the count of devices that each serves.

    ``value`` is None if no value was added, or if an added value is None.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0.0
        self._is_known = True

    def add(self, value: float | None, weight: float) -> None:
        self._weight += weight
        if value is None:
            self._is_known = False
        else:
            self._sum += weight * value

    @property
    def value(self) -> float | None:
        if not self._is_known or not self._weight:
            return None
        return self._sum / self._weight


def weighted_models(models: ModelAssignment) -> list[tuple[Ref, float]]:
    """Return the models that a device without a model of its own may receive, and their weights.

    Args:
        models: the strategy's models, and the devices that each serves.

    Returns:
        Pairs of a model and its weight. A model that serves all devices, or else the model
        ``global``, is the only result, with weight 1. If there is neither, the models that serve
        devices have the counts of their devices as weights. If no model serves a device, every
        model has weight 1.
    """
    for model, served in models.values():
        if served is None:
            return [(model, 1.0)]
    if "global" in models:
        global_model, _ = models["global"]
        return [(global_model, 1.0)]
    # each model with the count of its devices
    counts = [(model, float(len(served or ()))) for model, served in models.values()]
    serving_models = [(model, count) for model, count in counts if count]
    return serving_models or [(model, 1.0) for model, _ in counts]
