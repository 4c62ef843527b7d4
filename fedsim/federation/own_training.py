"""Local trainings that differ by device (``[population.local]``), and the client code."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fedsim.common.spec import Spec
from fedsim.common.training import ALL_SAMPLES, LocalEpochs, LocalSteps, Training
from fedsim.federation.client import Client, RunInfo
from fedsim.learning.spec import Trainer
from fedsim.world.own_training import OwnTraining
from fedsim.world.steps import Task, TaskStep, Train

AnyClient = Client[Any]

# most ``Client`` objects and learning rates in a cache; others are built again when needed
_MAX_CACHED = 4_096


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
        """Return a training with the learning rate and batch size of its device.

        Args:
            device: ID of the device.
            training: the training. A learning rate or batch size that it has is unchanged.
            round_number: the round, from 0, by which the rate decays.
        """
        if self.settings is None:
            return training
        training = self.settings.with_batch(device, training)
        lr_in = self.lr_in(device)
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
        """Return a training with the learning rate, batch size and SGD steps of its device.

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


class ClientHalves:
    """Client code of a strategy, one ``Client`` object for all devices that train alike.

    Args:
        make: function that builds a ``Client`` from the keys of ``[strategy]`` and a ``RunInfo``.
        params: the keys of ``[strategy]``.
        setting: properties of the run, which the client code reads.
        local: learning rate, batch size and steps of each device's trainings.
    """

    def __init__(
        self,
        make: Callable[[Spec, RunInfo], AnyClient],
        params: Spec,
        setting: RunInfo,
        local: LocalTrainings,
    ) -> None:
        self._make = make  # builds a ``Client``
        self._params = params
        self._setting = setting
        self._local = local  # each device's own settings of training
        self._default = make(params, setting)  # for all devices, if they train alike
        # count of epochs and rule of the learning rate -> ``Client`` of the devices with both
        self._half_for = lru_cache(maxsize=_MAX_CACHED)(self._build)

    def of(self, device: int) -> AnyClient:
        """Return the ``Client`` object whose methods are called for a device."""
        local = self._local
        if local.settings is None:
            return self._default
        return self._half_for(local.epochs(device), local.lr_in(device))

    def _build(self, epochs: int, lr_in: Callable[[int], float] | None) -> AnyClient:
        """Build the strategy's code for devices that train alike.

        Args:
            epochs: count of local epochs; 0 for the count in ``[strategy]``.
            lr_in: learning rate by round; None for the rate of ``[training]``.
        """
        params = self._params
        setting = self._setting
        if epochs:
            params = params.model_copy(update={"local_epochs": epochs})
        if lr_in is not None:
            setting = replace(setting, lr_in=lr_in)
        return self._make(params, setting)
