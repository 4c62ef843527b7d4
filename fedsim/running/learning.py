"""Builds the learning of a run: the data, the samples of each device, and the learner."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.learning import Learner
from fedsim.learning.architecture import Tensor
from fedsim.learning.models import SizeOnly

if TYPE_CHECKING:
    from fedsim.learning.data.federated import FederatedData
    from fedsim.running.sections import Sections


class LearningBuilder:
    """Builder of a run's data, of each device's sample count, and of the learner.

    The learner is the object that trains and tests the run's models.

    Args:
        scenario: the scenario.
        simulation: the clock.
        streams: random streams of the seed.

    Attributes:
        data: the data of all devices; None if the run reads no data.
        samples: count of training samples of each device; int64 [devices].
        shape_and_classes: pair of the shape of a sample, and the count of classes. If models learn
            targets other than classes, the second is the count of the model's outputs.
        tensors: function without arguments that returns name and shape of each of the model's
            tensors. It returns no tensors if the strategy trains by its own code.

    Raises:
        ScenarioError, DataError: the data cannot be built, or do not fit the strategy.
    """

    def __init__(self, scenario: "Sections", simulation: Simulation, streams: Streams) -> None:
        self._scenario = scenario
        self._simulation = simulation
        self._streams = streams
        self._root = scenario.data.own_folder()
        self.data: FederatedData | None = None
        self.samples: Ints  # count of training samples of each device
        # shape of a sample, and count of the model's outputs
        self.shape_and_classes: tuple[tuple[int, ...], int] = (1,), 1
        population = scenario.population
        # a strategy with its own training code reads its own data; with ``learning = "off"``, the
        # data need not be read if the scenario gives the counts of samples
        if scenario.strategy.traits.brings_learning:
            self.samples = np.zeros(population.devices, dtype=np.int64)
            if population.samples is not None:
                self.samples = population.sizes(streams, self._root)
        elif scenario.learning == "on" or population.samples is None:
            self.data = self._build_data()
            self.samples = self.data.train_sizes()
            pool = self.data.pool
            self.shape_and_classes = pool.shape, pool.outputs or pool.classes
        else:
            self.samples = population.sizes(streams, self._root)
            self.shape_and_classes = scenario.objective.sizes(*scenario.data.shape_and_classes())
        self.tensors = cache(self._tensors)  # computed when they are first needed

    def _build_data(self) -> "FederatedData":
        """Build the data of all devices, and check that objective and strategy can use them."""
        scenario = self._scenario
        data = scenario.data.build(scenario.population.devices, self._streams)
        self._check_sample_counts(data)
        maps_labels = any(shard.label_map is not None for shard in data.shards)
        learns_labels = scenario.objective.kind == "classification" and data.pool.targets is None
        if maps_labels and not learns_labels:
            kind = scenario.data.partition.kind
            raise ScenarioError(
                f"data.partition.kind is {kind!r}, which maps labels, and models learn "
                "other targets here"
            )
        if scenario.strategy.traits.needs_labels and not data.pool.labelled:
            raise ScenarioError(
                f"strategy.kind is {scenario.strategy.kind!r}, which goes by labels, and "
                "the data have none; allowed with data.column"
            )
        # replace the targets of the samples by the targets that the objective needs
        data.pool = scenario.objective.fitted(data.pool, self._streams)
        return data

    def _check_sample_counts(self, data: "FederatedData") -> None:
        """Raise ``ScenarioError`` if a device that may train has no training samples."""
        population = self._scenario.population
        sizes = data.train_sizes()
        without_samples = np.flatnonzero(sizes[: population.trainable] == 0)
        if len(without_samples):
            count = int((sizes == 0).sum())  # count of all devices without samples
            raise ScenarioError(
                f"device {without_samples[0]} has no training samples; with this data.partition allowed is "
                f"population.tested_only = {count}, by which the last {count} devices are tested "
                "and never train"
            )

    def _tensors(self) -> Sequence[Tensor]:
        if self._scenario.strategy.traits.brings_learning:
            return ()
        return self._scenario.model.tensors(*self.shape_and_classes)

    def build_learner(self, replacement: type[Learner] | None) -> Learner:
        """Build the object that trains and tests the run's models.

        Args:
            replacement: class to use; None for the class that the scenario needs, which depends on
                ``learning``.
        """
        scenario = self._scenario
        if scenario.strategy.traits.brings_learning:
            # A stand-in: fedsim does not know the models of the strategy's own code. Training on a
            # sample costs as much as with the reference model.
            flops = scenario.population.reference_flops or 1.0
            model = SizeOnly.model_validate(
                {"kind": "size", "bytes": "4 B", "flops_per_sample": flops}
            )
            return Learner(model, *self.shape_and_classes)
        learner = self._make_learner(replacement)
        if scenario.training.state == "sent":
            learner.state_bytes = self._state_bytes(learner)
        return learner

    def _make_learner(self, replacement: type[Learner] | None) -> Learner:
        """Make the learner: a replacement, or one that computes weights if ``learning`` is on.

        With ``learning = "off"`` the learner computes no weights; models have only a size.

        Args:
            replacement: class to use; None for the class that the scenario needs, which depends on
                ``learning``.
        """
        scenario = self._scenario
        if replacement is not None:
            return replacement(scenario.model, *self.shape_and_classes)
        if scenario.learning != "on":
            return Learner(scenario.model, *self.shape_and_classes)
        from fedsim.learning.engine import Learning  # loads torch

        assert self.data is not None
        return Learning(
            self._simulation,
            scenario.model,
            scenario.training,
            self.data,
            self._streams,
            self._root,
            scenario.objective,
        )

    def _state_bytes(self, learner: Learner) -> float:
        """Return the size (bytes) of a trainer's state, such as momentum, in a message."""
        shapes = {tensor.name: tensor.shape for tensor in self.tensors() if not tensor.is_buffer}
        if not shapes:
            shapes = {"": (int(learner.parameters),)}
        return 4.0 * self._scenario.training.state_numbers(shapes)
