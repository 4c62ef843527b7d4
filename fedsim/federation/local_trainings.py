"""Local trainings that differ by device (``[population.local]``)."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from fedsim.common.training import ALL_SAMPLES, LocalEpochs, LocalSteps, Training
from fedsim.learning.spec import Trainer
from fedsim.world.own_training import OwnTraining
from fedsim.world.steps import Task, TaskStep, Train

_MAX_CACHED = 4_096  # size of the cache of learning rates; others are built again when needed


class LocalTrainings:
    """Learning rate, batch size and count of steps that each device uses in its trainings.

    Args:
        settings: epochs, steps, batch size and learning rate of each device; None if all devices
            train alike.
        trainer: ``[training]`` of the scenario.
    """

    def __init__(self, settings: OwnTraining | None, trainer: Trainer) -> None:
        self.settings = settings
        self._rate_in = lru_cache(maxsize=_MAX_CACHED)(
            lambda lr: trainer.model_copy(update={"lr": lr}).lr_in
        )

    def lr_in(self, device: int) -> Callable[[int], float] | None:
        """Return a function of a round (from 0) that returns a device's learning rate in the round.

        None if the device has no rate of its own, so that ``[training]`` determines the rate.
        """
        if self.settings is None or not self.settings.lr[device]:
            return None
        return self._rate_in(float(self.settings.lr[device]))

    def adapt(self, device: int, training: Training, round_number: int) -> Training:
        """Return a training with the learning rate and batch size of a device.

        Args:
            device: ID of the device, which does the training.
            training: the training. If it has a learning rate or a batch size, this value is kept.
            round_number: the round, from 0, by which the rate decays.
        """
        if self.settings is None:  # no device has settings of its own
            return training
        training = self.settings.with_batch(device, training)
        lr_in = self.lr_in(device)
        # the device has no rate of its own, or the training already has a rate
        if lr_in is None or training.lr is not None:
            return training
        return replace(training, lr=lr_in(round_number))

    def epochs(self, device: int) -> int:
        """Return the count of local epochs that a device's client code reads as ``local_epochs``.

        The result is 0 if the device uses the count in ``[strategy]``. The result is 1 for a device
        with a count of SGD steps. The client code then trains one epoch, and ``adapt_step``
        replaces the epoch by the SGD steps.
        """
        if self.settings is None:
            return 0
        if self.settings.steps.item(device):
            return 1
        return self.settings.epochs.item(device)

    def adapt_step(self, task: Task, step: TaskStep) -> TaskStep:
        """Return a step of a task, which gets the settings of the device if it is a training.

        The settings are learning rate, batch size and count of SGD steps.

        If the device has a count of SGD steps, a training of a single epoch in mini-batches becomes
        a training of this count of steps. A training of several epochs, or with all samples in a
        single batch, keeps its epochs.

        Args:
            task: the task of the device.
            step: the step of the task; a step that is no training is returned unchanged.
        """
        if self.settings is None or not isinstance(step, Train):
            return step
        training = self.adapt(task.device, step.training, task.round or 0)
        steps = self.settings.steps.item(task.device)
        is_one_epoch = training.amount == LocalEpochs(1) and training.batch_size != ALL_SAMPLES
        if steps and is_one_epoch:
            training = replace(training, amount=LocalSteps(steps))
        return replace(step, training=training)
