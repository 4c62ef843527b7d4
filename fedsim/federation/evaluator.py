"""Evaluation: accuracy, losses and other measures of the models.

Measuring takes no simulated time and moves no bytes.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.imports import import_trusted
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.common.training import Training
from fedsim.federation.ending import StopRules
from fedsim.federation.unseen import UnseenTests
from fedsim.learning.objectives import EvaluationMetric
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.federation.contents import Handlers
    from fedsim.federation.local import LocalTrainings
    from fedsim.learning import Evaluation, Learner

ModelAssignment = Mapping[str, tuple[Ref, Sequence[int] | None]]
"""A strategy's models by name, each with the devices that it serves (None: all)."""

Figures = dict[str, float | None]

NOT_MEASURED: Figures = dict.fromkeys(
    ("accuracy", "loss", "train_loss", "discrepancy", "discrepancy_start")
)

# key of the streams of fine-tuning in place of a task ID; greater than any ID, so that fine-tuning
# draws shuffles that no task draws
_FINE_TUNING = 1 << 62


class EvaluationSpec(Spec):
    """``[evaluation]``: when and how models are tested, which takes no simulated time."""

    every: int = Field(default=1, ge=1)
    """count of rounds from one test to the next; the last round is always tested."""
    from_round: int = Field(default=0, ge=0)
    """first round (from 0) that is tested; FlexCFL tests from the round in which each device has
    been selected, and so has a group.
    """
    score: Literal["pooled", "device-mean", "historical"] | None = None
    """definition of accuracy. ``pooled``: right answers over all devices' test samples;
    ``device-mean``: mean of the devices' accuracies; ``historical``: pooled, with each model tested
    on all devices that it has ever served (FlexCFL's words, not its code). None: the strategy's
    definition.
    """
    train_loss: Literal["last", "first"] = "last"
    """local epoch whose loss is a client's training loss: the ``last``, or the ``first`` (published
    code of FlexCFL; its figures are higher), which is computed again. The last epoch is used in any
    case for updates without epochs, and for updates whose weights the strategy has read.
    """
    keep_best: bool = False
    """whether the run folder also has the models of the best test, by ``stop.monitor``, in
    ``best/``.
    """
    cosines: bool = False
    """whether the cosines between the updates of a round are recorded (``Evaluator.cosines``), as
    in Fig. 3 of the CFL paper.
    """
    fine_tune_epochs: int = Field(default=0, ge=0, le=100_000)
    """epochs that each device trains its model after the run, for an additional test
    (``accuracy.fine_tuned``); 0: no such test.
    """

    def tests(self, rounds: int) -> int:
        """Return the count of tests in a run of ``rounds`` rounds."""
        regular = max(0, rounds // self.every - self.from_round // self.every)
        # the last round is always tested
        return regular + bool(rounds and (rounds % self.every or rounds <= self.from_round))


class Measured(NamedTuple):
    """Aggregated update, an item of the argument ``updates`` of ``Server.finish_round``.

    Attributes:
        update: the received model (``message["update"]``), by which the task is found.
        weight: weight of the update in the mean of the training losses, such as its count of
            samples. In the record that ``finish_round`` writes, the share of this weight in the sum
            is the weight in the aggregation.
        start: the model from which the update was trained; None if unknown.
        center: the model into which the update was aggregated; None if unknown. The distance of
            ``update`` from ``center`` is the discrepancy (FlexCFL, Eq. 3; the published figures are
            measured after the aggregation, the equation has the model before).
        device: ID of the device; None for an update of several devices.
    """

    update: Ref
    weight: float
    start: Ref | None = None
    center: Ref | None = None
    device: int | None = None


class WorldView(NamedTuple):
    """Functions by which the evaluator reads the state of all devices.

    Attributes:
        present: returns whether each device has arrived and not left, bool [devices]; None if all
            are present.
        truth: returns the true group of each device, int64 [devices]; None if unknown. A device
            without a true group has -1.
        version: returns the version of each device's data, int64 [devices].
    """

    present: Callable[[], NDArray[np.bool_] | None]
    truth: Callable[[], NDArray[np.int64] | None]
    version: Callable[[], NDArray[np.int64]]


class Evaluator:
    """Measures the models after rounds, and decides when the run ends.

    Args:
        learner: computes and tests models.
        stop: ``[stop]`` of the scenario.
        spec: ``[evaluation]`` of the scenario.
        world: the present devices and their data.
        metrics: metrics of tests, in addition to accuracy and loss.
        local: local trainings of the devices, for fine-tuning; None if all devices train alike.
        ending: decides when the run ends; None for ``stop`` alone.
        unseen: IDs of the devices that never train. They have the last IDs.

    Attributes:
        ending: decides when the run ends, and stores the best models.
        unseen: tests on the devices that never train.
        last: the last evaluation; None before the first.
        ever: name of a model -> devices that the model has ever served, ascending; None for all.
            Filled only with ``score = "historical"``.
    """

    def __init__(
        self,
        learner: "Learner",
        stop: StopSpec,
        spec: EvaluationSpec,
        world: WorldView,
        metrics: Sequence[EvaluationMetric] = (),
        local: "LocalTrainings | None" = None,
        ending: StopRules | None = None,
        unseen: Sequence[int] = (),
    ) -> None:
        self._learner = learner
        self.ending = StopRules(stop, metrics) if ending is None else ending
        self._spec = spec
        self._world = world
        self._local = local
        self._metrics = metrics
        self.unseen = UnseenTests(learner, unseen)
        self._unseen_count = len(unseen)
        self.last: Evaluation | None = None
        self.ever: dict[str, list[int] | None] = {}

    def why_no_accuracy(self, rounds: int, models: ModelAssignment) -> str:
        """Return a reason, for the user, why a run of so many rounds has measured no accuracy.

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
        if all(served is not None and not served for _, served in models.values()):
            return "no device ever got a group, and a group's model is tested on its devices alone"
        if not self.last.devices:
            return "no device that has a model was there at the last test"
        return "no device that was tested has test samples"

    async def measure(
        self,
        number: int,
        models: ModelAssignment,
        updates: Sequence[Measured],
        strategy: "Handlers",
    ) -> Figures:
        """Measure accuracy, losses, discrepancies and agreement of groups after a round.

        Args:
            number: the round, from 0.
            models: the strategy's models.
            updates: the updates of the round's aggregation.
            strategy: the server half.

        Returns:
            Values of columns of ``rounds.parquet``; None for a measure if no test is due. Columns
            of agreement are included only if true groups are known.
        """
        row: Figures = dict(NOT_MEASURED) | dict.fromkeys(metric.name for metric in self._metrics)
        row |= self.unseen.not_measured()
        if self._spec.score == "historical":
            self._note_served(models)
        if self._is_due(number):
            row |= await self._figures(models, updates, self._score(strategy.score))
        return row | self._agreement(strategy)

    def _note_served(self, models: ModelAssignment) -> None:
        for name, (_, served) in models.items():
            ever = self.ever.get(name, [])
            if served is None or ever is None:
                self.ever[name] = None
            else:
                self.ever[name] = sorted({*ever, *served})

    def _is_due(self, number: int) -> bool:
        if self.ending.is_last(number):
            return True
        return number >= self._spec.from_round and (number + 1) % self._spec.every == 0

    async def _figures(
        self, models: ModelAssignment, updates: Sequence[Measured], score: str
    ) -> Figures:
        """Return the measures of models and updates when a test is due; empty without learning.

        Args:
            models: the strategy's models.
            updates: the updates of the round's aggregation.
            score: definition of accuracy, ``pooled`` or ``device-mean``.
        """
        learner = self._learner
        row = Figures()
        trained = [(entry.update, entry.weight) for entry in updates]
        if self._spec.train_loss == "first":  # a computed update cannot be cut to its first epoch
            trained = [(learner.first_epoch(update), weight) for update, weight in trained]
        evaluation = await learner.evaluate(self._with_present_devices(models))
        if evaluation is None:
            return row
        self.last = evaluation
        if self._spec.score == "historical":
            ever = {name: (ref, self.ever[name]) for name, (ref, _) in models.items()}
            evaluation = await learner.evaluate(self._with_present_devices(ever)) or evaluation
        row["accuracy"], row["loss"] = evaluation.score(score)
        row |= await self.unseen.measure(models, score)
        row |= {metric.name: evaluation.figure(metric, score) for metric in self._metrics}
        if not updates:
            return row
        row["train_loss"] = await learner.train_loss(trained)
        row |= self._mean_reports(updates)
        centers = [(entry.update, entry.center) for entry in updates if entry.center is not None]
        starts = [(entry.update, entry.start) for entry in updates if entry.start is not None]
        row["discrepancy"] = await self.discrepancy(centers)
        row["discrepancy_start"] = await self.discrepancy(starts)
        return row

    def _mean_reports(self, updates: Sequence[Measured]) -> Figures:
        """Return the mean of each metric that trainers report with updates, weighted as the updates are.

        A metric that no update has is left out.
        """
        means = Figures()
        for metric in self._metrics:
            name = metric.name
            reports = [
                (entry.update.numbers[name], entry.weight)
                for entry in updates
                if name in entry.update.numbers
            ]
            total = sum(weight for _, weight in reports)
            if total:
                means[name] = sum(value * weight for value, weight in reports) / total
        return means

    async def _changes(
        self, pairs: Sequence[tuple[Ref, Ref]]
    ) -> AsyncIterator[NDArray[np.float64]]:
        """Yield update - start of each pair, float64 [d].

        Only one difference is in memory at a time.
        """
        learner = self._learner
        await learner.compute([ref for pair in pairs for ref in pair])
        for update, start in pairs:
            weights, start_weights = await learner.values([update, start])
            yield np.subtract(weights, start_weights, dtype=np.float64)

    async def discrepancy(self, pairs: Sequence[tuple[Ref, Ref]]) -> float | None:
        """Return the mean of ||update - center||_2 over pairs of finite models (FlexCFL, Eq. 3).

        Args:
            pairs: pairs of an update and a center.

        Returns:
            The mean; None if no pair is finite.
        """
        with np.errstate(all="ignore"):
            lengths = [
                math.sqrt(np.square(change).sum())
                async for change in self._changes(pairs)
                if np.isfinite(change).all()
            ]
        return sum(lengths) / len(lengths) if lengths else None

    def _score(self, usual_score: str) -> str:
        """Return how accuracy is defined: as the scenario says, or else as the strategy usually has it.

        Args:
            usual_score: ``pooled`` (over all samples) or ``device-mean`` (mean over devices).
        """
        if self._spec.score == "historical":
            return "pooled"
        return self._spec.score or usual_score

    def _with_present_devices(self, models: ModelAssignment) -> ModelAssignment:
        """Return the models, each with the devices that it serves and that are present."""
        present = self._world.present()
        if present is None:
            return models
        all_present: list[int] = np.flatnonzero(present).tolist()
        assigned: dict[str, tuple[Ref, Sequence[int] | None]] = {}
        for name, (ref, served) in models.items():
            if served is None:
                assigned[name] = ref, all_present
            else:
                assigned[name] = ref, [device for device in served if present[device]]
        return assigned

    async def cosines(
        self, number: int, updates: Sequence[Measured], strategy: "Handlers"
    ) -> dict[str, list[float]]:
        """Return least, mean and largest cosine of pairs of updates, rounded to six digits.

        A pair is two updates of the round. If the true groups of devices are unknown, the kinds of
        pairs are ``within`` (one group of the strategy) and ``across`` (two groups of the
        strategy). If the true groups are known, pairs ``within`` a group of the strategy are
        ``unlike`` (two true groups), ``settled`` (one true group, and the strategy's group has no
        device of another true group) or ``alike`` (one true group, and the strategy's group has
        devices of several true groups). The groups of the strategy are taken after the round. If
        the strategy has no groups, all devices are in one group.

        Args:
            number: the round, from 0.
            updates: the round's updates; an update without a start or a device is left out.
            strategy: the server half.

        Returns:
            Kind of pair -> least, mean and largest cosine; empty if ``evaluation.cosines`` is false
            or no test is due.
        """
        is_due = self._spec.cosines and self._learner.learns and self._is_due(number)
        pairs: list[tuple[Ref, Ref]] = []
        devices: list[int] = []
        for entry in updates:
            if entry.start is not None and entry.device is not None:
                pairs.append((entry.update, entry.start))
                devices.append(entry.device)
        if not is_due or len(pairs) < 2:
            return {}
        with np.errstate(all="ignore"):
            units = np.array(
                [change / np.linalg.norm(change) async for change in self._changes(pairs)]
            )
            cosines = units @ units.T
        groups = self._groups(strategy)
        truth = self._world.truth()
        together = groups[devices][:, None] == groups[devices]
        is_pair = np.triu(np.isfinite(cosines), 1)
        kinds = {"within": together}
        if truth is not None:
            true_groups = truth[devices]
            mixed = np.array(
                [len({*truth[groups == group]} - {-1}) > 1 for group in groups[devices]], dtype=bool
            )
            same = true_groups[:, None] == true_groups
            kinds = {
                "alike": together & same & mixed,
                "unlike": together & ~same,
                "settled": together & same & ~mixed,
            }
            is_pair &= (true_groups >= 0) & (true_groups[:, None] >= 0)
        kinds["across"] = ~together
        figures: dict[str, list[float]] = {}
        for kind, is_kind in kinds.items():
            values = cosines[is_pair & is_kind]
            if len(values):
                extremes = [values.min(), values.mean(), values.max()]
                figures[kind] = np.round(extremes, 6).tolist()
        return figures

    async def agreement(self, number: int, models: Sequence[Ref]) -> dict[str, float]:
        """Return the agreement of the devices' models in a strategy without a server.

        Args:
            number: the round, from 0.
            models: the model of each device.

        Returns:
            ``mean_accuracy``, the accuracy of the mean of all finite models on the pooled test
            samples of all devices, and ``consensus``, the root of the mean squared Euclidean
            distance of the models from that mean (Kong et al. 2021). Empty if no test is due.
        """
        if not (self._learner.learns and models and self._is_due(number)):
            return {}
        await self._learner.compute(models)
        finite = [model for model in models if model.finite]
        if not finite:
            return {}
        mean = np.zeros(int(self._learner.parameters))
        for model in finite:
            mean += await self._learner.value(model)
        mean /= len(finite)
        squares = [np.square(await self._learner.value(model) - mean).sum() for model in finite]
        accuracy = await self.test(self._learner.given(mean), None)
        figures = {} if accuracy is None else {"mean_accuracy": accuracy}
        figures["consensus"] = float(np.sqrt(np.mean(squares)))
        return figures

    def _groups(self, strategy: "Handlers") -> NDArray[np.int64]:
        """Return the group of each device in the strategy; -1 for no group; int64 [devices]."""
        count = len(self._world.version())
        groups = np.full(count, -1, dtype=np.int64)
        of_devices = strategy.groups_of(range(count - self._unseen_count))
        for device, group in enumerate(of_devices):
            if group is not None:
                groups[device] = group
        return groups

    def _agreement(self, strategy: "Handlers") -> Figures:
        """Return measures of agreement of the strategy's groups with the true groups.

        Only present devices with a true group count. Empty if true groups are unknown, or if no
        such device has a group.
        """
        truth = self._world.truth()
        if truth is None:
            return {}
        groups = self._groups(strategy)
        present = self._world.present()
        groups[truth < 0] = -1
        if present is not None:
            groups[~present] = -1
        if not (groups >= 0).any():
            return {}
        measures = import_trusted("fedsim.toolbox.clustering.agreement:measures", "agreement")
        agreement: Figures = measures(groups, truth)
        return agreement

    async def fine_tuned(
        self, models: ModelAssignment, number: int, usual_score: str
    ) -> float | None:
        """Return the accuracy after each device has trained the model that serves it a little further.

        Args:
            models: the strategy's models.
            number: the round, on which the orders of the samples depend.
            usual_score: how the devices' accuracies are combined if the scenario does not say it:
                ``pooled`` over all samples, or ``device-mean``.

        Returns:
            The accuracy, 0 to 1; None if ``evaluation.fine_tune_epochs`` is 0.
        """
        epochs = self._spec.fine_tune_epochs
        version = self._world.version()
        if not epochs:
            return None
        train = partial(self._learner.train, key=_FINE_TUNING, round=number)
        tuned: dict[str, tuple[Ref, Sequence[int] | None]] = {}
        for name, (ref, served) in self._with_present_devices(models).items():
            devices = range(len(version)) if served is None else served
            for device in devices:
                training = Training(ref, epochs)
                if self._local is not None:
                    training = self._local.adapt(device, training, number)
                model = train(training, device, version=int(version[device]))
                tuned[f"{name}/{device}"] = model, [device]
        evaluation = await self._learner.evaluate(tuned)
        return None if evaluation is None else evaluation.score(self._score(usual_score))[0]

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
        return None if evaluation is None else evaluation.score("pooled")[0]
