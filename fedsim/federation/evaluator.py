"""Evaluation: accuracy, losses and other measures of the models.

Measuring takes no simulated time and moves no bytes.
"""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.common.training import Training
from fedsim.federation.cosines import kinds_of_pairs, spread_by_kind
from fedsim.federation.evaluation_spec import EvaluationSpec
from fedsim.federation.group_agreement import measure_agreement
from fedsim.federation.round_result import Measured, ModelAssignment
from fedsim.federation.stop_rules import StopRules
from fedsim.federation.unseen import UnseenTests
from fedsim.learning.evaluation import AccuracyOver
from fedsim.learning.objectives import EvaluationMetric
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.federation.events import Handlers
    from fedsim.federation.local_trainings import LocalTrainings
    from fedsim.learning import Evaluation, Learner

Figures = dict[str, float | None]

NOT_MEASURED: Figures = dict.fromkeys(
    ("accuracy", "loss", "train_loss", "discrepancy", "discrepancy_start")
)

# A task's ID is the key of the random streams that shuffle its samples. Fine-tuning has this key,
# which is greater than any ID, so that fine-tuning never repeats the shuffle of a task.
_FINE_TUNING = 1 << 62


class WorldView(NamedTuple):
    """Functions by which ``Evaluator`` reads the state of all devices.

    Attributes:
        present: returns whether each device has arrived and not left, bool [devices]; None if all
            are present.
        truth: returns the true group of each device, int64 [devices], -1 for a device without a
            true group; None if the data source knows no true groups. A true group is a set of
            devices with alike data.
        data_versions: returns the version of each device's data, int64 [devices]: 0 at the start
            of the run, and another number after each shift of the data.
    """

    present: Callable[[], NDArray[np.bool_] | None]
    truth: Callable[[], NDArray[np.int64] | None]
    data_versions: Callable[[], NDArray[np.int64]]


def _with_centers(updates: Sequence[Measured]) -> list[tuple[Ref, Ref]]:
    return [(entry.update, entry.center) for entry in updates if entry.center is not None]


def _with_starts(updates: Sequence[Measured]) -> list[tuple[Ref, Ref]]:
    return [(entry.update, entry.start) for entry in updates if entry.start is not None]


class Evaluator:
    """Tests a strategy's models after the rounds for which ``[evaluation]`` has a test.

    Tests take no simulated time.

    Args:
        learner: computes and tests models.
        ending: determines the last round, after which models are always tested.
        spec: ``[evaluation]`` of the scenario.
        world: functions that return the present devices, their true groups (sets of devices with
            alike data) and the versions of their data.
        metrics: metrics of tests, in addition to accuracy and loss.
        local: local trainings of the devices, for fine-tuning; None if all devices train alike.
        unseen: IDs of the devices that never train, which are the last IDs of all devices.

    Attributes:
        last: the last evaluation; None before the first.
        served: name of a model -> devices to which the strategy has ever assigned the model,
            ascending; None for all. Filled only with ``score = "historical"``.
        unseen_accuracy: device that never trains -> accuracy in the last test; None without test
            samples.
    """

    def __init__(
        self,
        learner: "Learner",
        ending: StopRules,
        spec: EvaluationSpec,
        world: WorldView,
        metrics: Sequence[EvaluationMetric] = (),
        local: "LocalTrainings | None" = None,
        unseen: Sequence[int] = (),
    ) -> None:
        self._learner = learner
        self._ending = ending  # knows the last round, which is always tested
        self._spec = spec
        self._world = world  # which devices are present, their true groups, and changes of data
        self._local = local  # each device's own settings of training, for fine-tuning
        self._metrics = metrics
        self._unseen = UnseenTests(learner, unseen)  # tests of the devices that never train
        self._unseen_count = len(unseen)
        self.last: Evaluation | None = None
        # name of a model -> devices that it has ever served; None for all
        self.served: dict[str, list[int] | None] = {}
        # device that never trains -> accuracy in the last test
        self.unseen_accuracy: dict[int, float | None] = {}

    def why_no_accuracy(self, rounds: int, models: ModelAssignment) -> str:
        """Return an explanation for the user why a run has measured no accuracy.

        Args:
            rounds: count of rounds of the run.
            models: the strategy's models at the end of the run.
        """
        spec = self._spec
        if not rounds:
            return (
                "not one round came to an aggregation; the timeline shows what became of the tasks"
            )
        if not self._learner.learns:
            return 'learning = "off" tests no model'
        if self.last is None:
            return (
                f"no round was to be tested (evaluation.every = {spec.every}, "
                f"evaluation.from_round = {spec.from_round})"
            )
        if not models:
            return "the strategy has no model to test"
        if self.last.correct is None:
            return "no answer is right or wrong with this objective; its metrics are in the rounds"
        # each model serves an empty list of devices (None: all devices)
        if all(served is not None and not served for _, served in models.values()):
            return "no device ever got a group, and a group's model is tested on its devices alone"
        if not self.last.devices:
            return "no device that has a model was there at the last test"
        return "no device that was tested has test samples"

    async def measure(
        self,
        round_number: int,
        models: ModelAssignment,
        updates: Sequence[Measured],
        strategy: "Handlers",
    ) -> Figures:
        """Measure models, updates and groups after a round.

        - If ``[evaluation]`` has a test after the round, accuracy, loss and other metrics of the
          models are measured, and the training loss of the updates.
        - In such a round the discrepancies of the updates are measured too: the mean distances of
          the updates from the models into which they were aggregated, and from the models from
          which they were trained.
        - After every round, if the data source knows true groups of devices, the agreement of the
          strategy's groups with the true groups is measured.

        The attributes ``last``, ``served`` and ``unseen_accuracy`` are updated.

        Args:
            round_number: the round, from 0.
            models: the strategy's models.
            updates: the updates of the round's aggregation.
            strategy: the strategy's server code.

        Returns:
            Column of ``rounds.parquet`` -> value; None for a measure of a test if no test is due.
            The columns of agreement (``purity``, ``ari`` and ``nmi``) are missing if true groups
            are unknown, or if no device with a true group has a group of the strategy.
        """
        figures = self._not_measured()  # None for each measure of a test
        if self._spec.score == "historical":
            self._note_served(models)
        if self._is_due(round_number):
            # The trained models are determined before the test, because the test computes the
            # updates. The model after the first epoch of an update is available only while the
            # update is not computed yet.
            trained = self._trained_models(updates)
            tested = await self._test_models(models, self._accuracy_over(strategy.score))
            if tested is None:  # a run without learning
                await self._note_skipped(trained, updates)
            else:
                figures |= tested
                figures |= await self._measure_updates(trained, updates)
        figures |= self._group_agreement(strategy)
        return figures

    def _not_measured(self) -> Figures:
        """Return the measures of a round without a test: column of ``rounds.parquet`` -> None."""
        figures = dict(NOT_MEASURED)
        figures |= dict.fromkeys(metric.name for metric in self._metrics)
        figures |= self._unseen.not_measured()
        return figures

    def _note_served(self, models: ModelAssignment) -> None:
        for name, (_, served) in models.items():
            earlier = self.served.get(name, [])
            if served is None or earlier is None:
                self.served[name] = None
            else:
                self.served[name] = sorted({*earlier, *served})

    def _is_due(self, round_number: int) -> bool:
        return self._spec.is_due(round_number, is_last=self._ending.is_last(round_number))

    def _trained_models(self, updates: Sequence[Measured]) -> list[tuple[Ref, float]]:
        """Return the models whose training losses are measured, each with the weight of its update.

        By ``evaluation.train_loss`` they are the updates, or the models after their first epochs.
        """
        trained = [(entry.update, entry.weight) for entry in updates]
        if self._spec.train_loss == "first":
            trained = [(self._learner.first_epoch(update), weight) for update, weight in trained]
        return trained

    async def _test_models(self, models: ModelAssignment, over: AccuracyOver) -> Figures | None:
        """Test the strategy's models; store the test, and the accuracy of the devices that never train.

        Args:
            models: the strategy's models.
            over: definition of accuracy.

        Returns:
            Accuracy, loss and other metrics; None without learning.
        """
        evaluation = await self._learner.evaluate(self._with_present_devices(models))
        if evaluation is None:
            return None
        self.last = evaluation
        if self._spec.score == "historical":
            # Only the figures are historical: in ``last`` each device is tested with its present
            # model.
            evaluation = await self._test_historically(models) or evaluation
        figures = Figures()
        figures["accuracy"], figures["loss"] = evaluation.accuracy_and_loss(over)
        unseen = await self._unseen.measure(models, over)
        if unseen is not None:
            self.unseen_accuracy = unseen.of_devices
            figures |= unseen.figures
        figures |= {metric.name: evaluation.figure(metric, over) for metric in self._metrics}
        return figures

    async def _test_historically(self, models: ModelAssignment) -> "Evaluation | None":
        """Test each model on the present devices among all devices that it has ever served."""
        ever_served = {name: (ref, self.served[name]) for name, (ref, _) in models.items()}
        return await self._learner.evaluate(self._with_present_devices(ever_served))

    async def _measure_updates(
        self, trained: Sequence[tuple[Ref, float]], updates: Sequence[Measured]
    ) -> Figures:
        """Return a round's training loss, discrepancies, and means of metrics that trainers report.

        The discrepancies are the mean distances of the updates from the models into which they
        were aggregated, and from the models from which they were trained.

        Args:
            trained: the models whose training losses are measured, and their weights.
            updates: the updates of the round's aggregation.

        Returns:
            Column of ``rounds.parquet`` -> value; empty without updates.
        """
        figures = Figures()
        if not updates:
            return figures
        figures["train_loss"] = await self._learner.train_loss(trained)
        figures |= self._mean_reports(updates)
        figures["discrepancy"] = await self.discrepancy(_with_centers(updates))
        figures["discrepancy_start"] = await self.discrepancy(_with_starts(updates))
        return figures

    async def _note_skipped(
        self, trained: Sequence[tuple[Ref, float]], updates: Sequence[Measured]
    ) -> None:
        """Count the memory of models that measures of updates would need in a run with learning.

        ``fedsim check`` reads the count from a trial without learning.

        Args:
            trained: the models whose training losses are measured, and their weights.
            updates: the updates of the round's aggregation.
        """
        learner = self._learner
        await learner.note_skipped([model for model, _ in trained])
        # pairs of models whose distances would be measured
        for pairs in (_with_centers(updates), _with_starts(updates)):
            await learner.note_skipped([model for pair in pairs for model in pair])

    def _mean_reports(self, updates: Sequence[Measured]) -> Figures:
        """Return the mean of each metric that trainers report with updates, weighted as the updates are.

        A metric that no update has is left out.
        """
        means = Figures()
        for metric in self._metrics:
            name = metric.name
            reports = []  # pairs of a reported value and the weight of its update
            for entry in updates:
                if name in entry.update.numbers:
                    reports.append((entry.update.numbers[name], entry.weight))
            total_weight = sum(weight for _, weight in reports)
            if total_weight:
                means[name] = sum(value * weight for value, weight in reports) / total_weight
        return means

    async def _changes(
        self, pairs: Sequence[tuple[Ref, Ref]]
    ) -> AsyncIterator[NDArray[np.float64]]:
        """Yield the difference of update and start for each pair, float64 [d].

        Only one difference is in memory at a time.
        """
        learner = self._learner
        await learner.compute([ref for pair in pairs for ref in pair])
        for update, start in pairs:
            weights, start_weights = await learner.values([update, start])
            yield np.subtract(weights, start_weights, dtype=np.float64)

    async def discrepancy(self, pairs: Sequence[tuple[Ref, Ref]]) -> float | None:
        """Return the mean Euclidean distance of updates from other models (FlexCFL's discrepancy).

        Args:
            pairs: pairs of an update and a model, such as the model into which the update was
                aggregated. A pair with a model that is not finite is left out.

        Returns:
            The mean; None if no pair remains.
        """
        distances = await self._learner.distances(pairs)
        finite = list(filter(math.isfinite, distances))
        return sum(finite) / len(finite) if finite else None

    def _accuracy_over(self, strategy_default: AccuracyOver) -> AccuracyOver:
        """Return the definition of accuracy by ``evaluation.score``, by default the strategy's.

        The definition for ``historical`` is ``pooled``; only the tested devices differ
        (``_test_models``).

        Args:
            strategy_default: definition by the strategy (``Strategy.score``).
        """
        if self._spec.score == "historical":
            return "pooled"
        return self._spec.score or strategy_default

    def _with_present_devices(self, models: ModelAssignment) -> ModelAssignment:
        """Return the models, each with the devices that it serves and that are present."""
        present = self._world.present()
        if present is None:
            return models
        all_present: list[int] = np.flatnonzero(present).tolist()
        assigned: dict[str, tuple[Ref, Sequence[int] | None]] = {}
        for name, (ref, served) in models.items():
            if served is None:  # the model serves all devices
                assigned[name] = ref, all_present
            else:
                assigned[name] = ref, [device for device in served if present[device]]
        return assigned

    async def cosines(
        self, round_number: int, updates: Sequence[Measured], strategy: "Handlers"
    ) -> dict[str, list[float]]:
        """Return the spread of the cosines between the updates of a round, by kind of pair.

        ``kinds_of_pairs`` divides the pairs into kinds, by the groups of the strategy after the
        round. If the strategy has no groups, all devices are in one group.

        Args:
            round_number: index of the round, from 0.
            updates: the round's updates; an update without a start or a device is left out.
            strategy: the strategy's server code.

        Returns:
            Kind of pair -> least, mean and largest cosine, rounded to six digits. Empty if
            ``evaluation.cosines`` is false, if ``[evaluation]`` has no test after the round,
            without learning, or with fewer than two updates.
        """
        if not (self._spec.cosines and self._learner.learns and self._is_due(round_number)):
            return {}
        pairs: list[tuple[Ref, Ref]] = []
        devices: list[int] = []
        for entry in updates:
            if entry.start is not None and entry.device is not None:
                pairs.append((entry.update, entry.start))
                devices.append(entry.device)
        if len(pairs) < 2:
            return {}
        with np.errstate(all="ignore"):  # an update without a change has no direction: NaN
            units = [change / np.linalg.norm(change) async for change in self._changes(pairs)]
        kinds = kinds_of_pairs(devices, self._groups(strategy), self._world.truth())
        return spread_by_kind(np.array(units), kinds)

    async def consensus(self, round_number: int, models: Sequence[Ref]) -> dict[str, float]:
        """Return how far the devices' models agree in a strategy without a server.

        Args:
            round_number: the round, from 0.
            models: the model of each device.

        Returns:
            A dict with ``mean_accuracy``, the accuracy of the mean of all finite models on the
            pooled test samples of all devices, and ``consensus``, the root of the mean squared
            Euclidean distance of the models from that mean (Kong et al. 2021). Empty if no test is
            due, without learning, or if no model is finite.
        """
        if not (models and self._is_due(round_number)):
            return {}
        if not self._learner.learns:
            await self._learner.note_skipped(models)
            return {}
        await self._learner.compute(models)
        finite = [model for model in models if model.finite]
        if not finite:
            return {}
        mean = np.zeros(int(self._learner.parameters))
        for model in finite:
            mean += await self._learner.value(model)
        mean /= len(finite)
        squared_distances = []  # squared distance of each model from the mean
        for model in finite:
            difference = await self._learner.value(model) - mean
            squared_distances.append(np.square(difference).sum())
        figures: dict[str, float] = {}
        accuracy = await self.test(self._learner.given(mean), devices=None)  # None: all devices
        if accuracy is not None:
            figures["mean_accuracy"] = accuracy
        figures["consensus"] = float(np.sqrt(np.mean(squared_distances)))
        return figures

    def _groups(self, strategy: "Handlers") -> NDArray[np.int64]:
        """Return the group of each device in the strategy; -1 for no group; int64 [devices]."""
        count = len(self._world.data_versions())
        groups = np.full(count, -1, dtype=np.int64)
        group_by_device = strategy.groups_of(range(count - self._unseen_count))
        for device, group in enumerate(group_by_device):
            if group is not None:
                groups[device] = group
        return groups

    def _group_agreement(self, strategy: "Handlers") -> Figures:
        """Return measures of agreement of the strategy's groups with the true groups of devices.

        Only devices that are present and have a true group count.

        Returns:
            ``purity``, ``ari`` and ``nmi`` -> value (``measure_agreement``). Empty if true groups
            are unknown, or if no such device has a group of the strategy.
        """
        truth = self._world.truth()
        if truth is None:
            return {}
        groups = self._groups(strategy)
        present = self._world.present()  # None: all devices
        no_group = -1  # devices without a group do not count
        groups[truth < 0] = no_group
        if present is not None:
            groups[~present] = no_group
        if not (groups >= 0).any():
            return {}
        return Figures(measure_agreement(groups, truth))

    async def test_fine_tuned(
        self, models: ModelAssignment, round_number: int, strategy_default: AccuracyOver
    ) -> float | None:
        """Return the accuracy after each device has trained its model further on its own data.

        Each device starts from the strategy's model that serves the device, and trains for
        ``evaluation.fine_tune_epochs`` epochs.

        Args:
            models: the strategy's models.
            round_number: the round, on which the orders of the samples depend.
            strategy_default: the strategy's definition of accuracy (``Strategy.score``), used if
                ``evaluation.score`` is None.

        Returns:
            The accuracy, 0 to 1; None if the count of epochs is 0, or without learning.
        """
        if not self._spec.fine_tune_epochs:
            return None
        evaluation = await self._learner.evaluate(self._fine_tune(models, round_number))
        if evaluation is None:
            return None
        over = self._accuracy_over(strategy_default)
        return evaluation.accuracy_and_loss(over).accuracy

    def _fine_tune(self, models: ModelAssignment, round_number: int) -> ModelAssignment:
        """Return a model for each present device: the model that serves it, trained on its data.

        Args:
            models: the strategy's models.
            round_number: the round, on which the orders of the samples depend.
        """
        versions = self._world.data_versions()
        # ``key`` distinguishes fine-tuning from the device's tasks in the names of random streams
        train = partial(self._learner.train, key=_FINE_TUNING, round=round_number)
        tuned: dict[str, tuple[Ref, Sequence[int] | None]] = {}
        for name, (ref, served) in self._with_present_devices(models).items():
            devices = range(len(versions)) if served is None else served  # None: all devices
            for device in devices:
                training = Training(ref, self._spec.fine_tune_epochs)
                if self._local is not None:
                    training = self._local.adapt(device, training, round_number)
                model = train(training, device, version=int(versions[device]))
                tuned[f"{name}/{device}"] = model, [device]
        return tuned

    async def test(self, model: Ref, devices: Sequence[int] | None) -> float | None:
        """Return a model's accuracy on the pooled test samples of devices.

        Args:
            model: the model.
            devices: IDs of the devices; None for all.

        Returns:
            The accuracy, 0 to 1; None if nothing was tested, as with ``learning = "off"``.
        """
        evaluation = await self._learner.evaluate(
            self._with_present_devices({"test": (model, devices)})
        )
        return None if evaluation is None else evaluation.accuracy_and_loss("pooled").accuracy
