"""Trainings of devices whose memory suffices only for the last layers of the model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from fedsim.common.training import Places, Training, union
from fedsim.learning.architecture import Tensor, layers_of
from fedsim.world.population import Population
from fedsim.world.steps import Task, TaskStep, Train


class FewerLayers:
    """Rule by which a device trains only the last layers of the model for which it has memory.

    Used with ``population.short_of_memory = "fewer-layers"``.

    Args:
        population: the devices.
        tensors: function that returns the model's tensors, in their order in the array of all
            parameters.
    """

    def __init__(self, population: Population, tensors: Callable[[], Sequence[Tensor]]) -> None:
        self._population = population
        # The rooflines (speed and memory of devices) are stored here, because a deployment that
        # simulates no times later sets ``population.rooflines`` to None.
        self._rooflines = population.rooflines
        self._tensors = tensors
        self._frozen = cache(self._find_frozen)

    def limit_step(self, task: Task, step: TaskStep) -> TaskStep:
        """Return a step of a task, limited to the layers for which the task's device has memory.

        Args:
            task: the task.
            step: the step. A step that is no training is unchanged.
        """
        if not isinstance(step, Train):
            return step
        return replace(step, training=self.limit(task.device, step.training))

    def limit(self, device: int, training: Training) -> Training:
        """Return a training that is limited to the last layers for which the device has memory.

        Earlier layers stay fixed. The training is returned unchanged if the memory suffices for all
        layers, or not even for the last one.

        Args:
            device: ID of the device.
            training: the training.
        """
        samples = self._population.samples.item(device)
        if training.part is not None:
            samples = training.part.samples
        fitted = self._population.fit(device, training, samples, self._rooflines)
        if fitted.layers is None:  # there is memory for all layers, or not even for the last one
            return training
        frozen = self._frozen(fitted.layers)  # ranges of the parameters of all earlier layers
        return replace(fitted, held=union(training.held, frozen))

    def _find_frozen(self, layers: int) -> Places:
        """Return the ranges of parameters that stay fixed if only the last layers train.

        A range is a pair (begin, end) of positions in the array of all parameters.

        Args:
            layers: count of the last layers, which train.
        """
        frozen_layers = layers_of(self._tensors())[:-layers]
        frozen_count = sum(tensor.size for layer in frozen_layers for tensor in layer)
        return ((0, frozen_count),) if frozen_count else ()
