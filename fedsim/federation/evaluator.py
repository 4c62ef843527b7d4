"""Evaluation: how good the models are, measured from outside.

It takes no simulated time and moves no bytes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.imports import at
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.common.training import Training
from fedsim.learning.objectives import EvaluationMetric
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.federation.contents import Handlers
    from fedsim.learning import Evaluation, Learner

ModelAssignment = Mapping[str, tuple[Ref, Sequence[int] | None]]
"""A strategy's models by name, each with the devices that it serves (None: all)."""

Figures = dict[str, float | None]

NOT_MEASURED: Figures = dict.fromkeys(
    ("accuracy", "loss", "train_loss", "discrepancy", "discrepancy_start")
)

# stands for a task's number, and is greater than any: fine-tuning has shuffles of its own
_FINE_TUNING = 1 << 62


class EvaluationSpec(Spec):
    """``[evaluation]``: when and how accuracy is counted. Measuring takes no simulated time."""

    every: int = Field(default=1, ge=1)
    """after every so many rounds, and after the last."""
    from_round: int = Field(default=0, ge=0)
    """the first round (from 0) that is tested; FlexCFL counts from when each device has been
    selected, and so has a group.
    """
    score: Literal["pooled", "device-mean", "historical"] | None = None
    """``pooled`` (right answers over all devices' test samples), ``device-mean`` (mean of the
    devices' accuracies), ``historical`` (pooled, each model on all devices that it has ever served:
    FlexCFL's words, not its code), or the strategy's own way when not given.
    """
    train_loss: Literal["last", "first"] = "last"
    """a client's training loss is that of its ``last`` local epoch, or of its ``first`` (published
    code of FlexCFL; its figures are higher), which is computed again; the last one anyway for
    updates without epochs, or that the strategy has looked at.
    """
    cosines: bool = False
    """record how alike the updates of a round are (``Evaluator.cosines``): as in Fig. 3 of the
    CFL paper.
    """
    fine_tune_epochs: int = Field(default=0, ge=0, le=100_000)
    """epochs that each device trains its model after the run, for one more test
    (``accuracy.fine_tuned``); 0: none.
    """

    def tests(self, rounds: int) -> int:
        """The number of tests in a run of so many rounds."""
        regular = max(0, rounds // self.every - self.from_round // self.every)
        # the last one is, in any case
        return regular + bool(rounds and (rounds % self.every or rounds <= self.from_round))


class Measured(NamedTuple):
    """An update that went into an aggregation, as ``Server.finish_round`` takes it.

    Attributes:
        update: the model that came (``message["update"]``), by which its task is found.
        weight: its weight in the mean of the training losses, such as its samples; with the
            record that ``finish_round`` writes, its share of the sum is its weight in the
            aggregation.
        start: the model that its training started from, or None.
        center: the aggregate that it went into, or None: its distance from the update is the
            discrepancy (FlexCFL, Eq. 3; the published figures are measured after the aggregation,
            the equation says before).
        device: its device; None for an update of several devices.
    """

    update: Ref
    weight: float
    start: Ref | None = None
    center: Ref | None = None
    device: int | None = None


class WorldView(NamedTuple):
    """The evaluator's view of all devices: who is present (None: all), the true groups (None:
    unknown), data versions.
    """

    present: Callable[[], NDArray[np.bool_] | None]
    truth: Callable[[], NDArray[np.int64] | None]
    version: Callable[[], NDArray[np.int64]]


class Evaluator:
    """Measures models when a test is due, and decides when the run ends."""

    def __init__(
        self,
        learner: "Learner",
        stop: StopSpec,
        spec: EvaluationSpec,
        world: WorldView,
        metrics: Sequence[EvaluationMetric] = (),
    ) -> None:
        self._learner = learner
        self.stop = stop
        self._spec = spec
        self._world = world
        self._metrics = metrics
        self.last: Evaluation | None = None
        # devices that each model has served, ascending (``historical``); None: all
        self.ever: dict[str, list[int] | None] = {}

    def is_last(self, number: int) -> bool:
        """Whether round ``number`` (from 0) is the last one planned."""
        return self.stop.rounds is not None and number + 1 >= self.stop.rounds

    def reason_to_stop(self, number: int, figures: Mapping[str, float | None]) -> str | None:
        """Why the run ends after round ``number``; None if it goes on."""
        accuracy = figures.get("accuracy")
        most = {metric.name for metric in self._metrics if metric.more_is_better}
        for name, goal in self.stop.metrics.items():
            value = figures.get(name)
            if value is not None and (value >= goal if name in most else value <= goal):
                return f"{name} {value:.4g} reached"
        if (
            self.stop.accuracy is not None
            and accuracy is not None
            and accuracy >= self.stop.accuracy
        ):
            return f"accuracy {accuracy:.4f} reached"
        return f"{number + 1} rounds" if self.is_last(number) else None

    def why_no_accuracy(self, rounds: int, models: ModelAssignment) -> str:
        """Why a run of so many rounds that ends with these models has no accuracy."""
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
        """Accuracy, losses, discrepancies after a round, None where no test is due; agreement
        where true groups are known.
        """
        row: Figures = dict(NOT_MEASURED) | dict.fromkeys(metric.name for metric in self._metrics)
        if self._spec.score == "historical":
            for name, (_, served) in models.items():
                ever = self.ever.get(name, [])
                self.ever[name] = (
                    None if served is None or ever is None else sorted({*ever, *served})
                )
        if self._is_due(number):
            row |= await self._figures(models, updates, self._how(strategy.score))
        return row | self._agreement(strategy)

    def _is_due(self, number: int) -> bool:
        spec = self._spec
        return self.is_last(number) or (
            number >= spec.from_round and (number + 1) % spec.every == 0
        )

    async def _figures(
        self, models: ModelAssignment, updates: Sequence[Measured], how: str
    ) -> Figures:
        learner = self._learner
        row = Figures()
        trained = [(entry.update, entry.weight) for entry in updates]
        if self._spec.train_loss == "first":  # before updates are computed, which forgets how
            trained = [(learner.first_epoch(update), weight) for update, weight in trained]
        evaluation = await learner.evaluate(self._here(models))
        if evaluation is None:
            return row
        self.last = evaluation
        if self._spec.score == "historical":
            ever = {name: (ref, self.ever[name]) for name, (ref, _) in models.items()}
            evaluation = await learner.evaluate(self._here(ever)) or evaluation
        row["accuracy"], row["loss"] = evaluation.score(how)
        row |= {metric.name: evaluation.figure(metric, how) for metric in self._metrics}
        if updates:
            row["train_loss"] = await learner.train_loss(trained)
            # trainers may report them with updates
            for name in [metric.name for metric in self._metrics]:
                told = [
                    (entry.update.numbers[name], entry.weight)
                    for entry in updates
                    if name in entry.update.numbers
                ]
                if total := sum(weight for _, weight in told):
                    row[name] = sum(value * weight for value, weight in told) / total
            pairs = [(entry.update, entry.center) for entry in updates if entry.center is not None]
            starts = [(entry.update, entry.start) for entry in updates if entry.start is not None]
            row |= {
                "discrepancy": await self.discrepancy(pairs),
                "discrepancy_start": await self.discrepancy(starts),
            }
        return row

    async def _changes(self, pairs: Sequence[tuple[Ref, Ref]]) -> Iterator[NDArray[np.float64]]:
        """update - start of each pair, float64 [d]."""
        values = await self._learner.values([ref for pair in pairs for ref in pair])
        return (
            np.subtract(*pair, dtype=np.float64)
            for pair in zip(values[::2], values[1::2], strict=True)
        )

    async def discrepancy(self, pairs: Sequence[tuple[Ref, Ref]]) -> float | None:
        """The mean of ||update - center||_2 (FlexCFL, Eq. 3) over the pairs in which both are
        finite; None if there is none.
        """
        with np.errstate(all="ignore"):
            lengths = [
                math.sqrt(np.square(change).sum())
                for change in await self._changes(pairs)
                if np.isfinite(change).all()
            ]
        return sum(lengths) / len(lengths) if lengths else None

    def _how(self, usual_score: str) -> str:
        return "pooled" if self._spec.score == "historical" else self._spec.score or usual_score

    def _here(self, models: ModelAssignment) -> ModelAssignment:
        """The models with those of their devices that have arrived and not left."""
        present = self._world.present()
        if present is None:
            return models
        every: list[int] = np.flatnonzero(present).tolist()
        return {
            name: (
                ref,
                every if served is None else [device for device in served if present[device]],
            )
            for name, (ref, served) in models.items()
        }

    async def cosines(
        self, number: int, updates: Sequence[Measured], strategy: "Handlers"
    ) -> dict[str, list[float]]:
        """Least, mean and largest cosine of two updates with known starts, by kind of pair,
        rounded to six digits.

        Kinds where the true groups are known: ``alike`` and ``unlike``, of one or of two true
        groups but in one group of the strategy's, ``settled``, of one true group in a group that
        has no other, and ``across`` groups. Where they are not: ``within`` and ``across``. The
        strategy's groups are those after the round; without groups all are in one. Empty where
        cosines are not wanted, or no test is due.
        """
        known = [
            ((one.update, one.start), one.device)
            for one in updates
            if one.start is not None and one.device is not None
        ]
        if (
            not (self._spec.cosines and self._learner.learns and self._is_due(number))
            or len(known) < 2
        ):
            return {}
        pairs, devices = map(list, zip(*known, strict=True))
        with np.errstate(all="ignore"):
            units = np.array(
                [change / np.linalg.norm(change) for change in await self._changes(pairs)]
            )
            cosines = units @ units.T
        groups = self._groups(strategy)
        truth = self._world.truth()
        together = groups[devices][:, None] == groups[devices]
        of_two = np.triu(np.isfinite(cosines), 1)
        kinds = {"within": together}
        if truth is not None:
            own = truth[devices]
            mixed = np.array(
                [len({*truth[groups == group]} - {-1}) > 1 for group in groups[devices]], dtype=bool
            )
            same = own[:, None] == own
            kinds = {
                "alike": together & same & mixed,
                "unlike": together & ~same,
                "settled": together & same & ~mixed,
            }
            of_two &= (own >= 0) & (own[:, None] >= 0)
        told = {
            kind: cosines[of_two & chosen]
            for kind, chosen in (kinds | {"across": ~together}).items()
        }
        return {
            kind: np.round([own.min(), own.mean(), own.max()], 6).tolist()
            for kind, own in told.items()
            if len(own)
        }

    async def agreement(self, number: int, models: Sequence[Ref]) -> dict[str, float]:
        """Agreement of the models of all devices, where there is no server; nothing where no
        test is due.

        ``mean_accuracy`` is that of the mean of all finite models on the pooled test samples of all
        devices, ``consensus`` the root of the mean squared Euclidean distance of the models from
        that mean (Kong et al. 2021).
        """
        if not (self._learner.learns and models and self._is_due(number)):
            return {}
        values = [value for value in await self._learner.values(models) if np.isfinite(value).all()]
        if not values:
            return {}
        mean: NDArray[np.float64] = np.asarray(np.mean(values, axis=0, dtype=np.float64))
        squares = [np.square(value - mean).sum() for value in values]
        accuracy = await self.test(self._learner.given(mean), None)
        found = {} if accuracy is None else {"mean_accuracy": accuracy}
        return found | {"consensus": float(np.sqrt(np.mean(squares)))}

    def _groups(self, strategy: "Handlers") -> NDArray[np.int64]:
        """Each device's group, or -1, int64 [devices]."""
        found = strategy.groups_of(range(len(self._world.version())))
        return np.array([-1 if group is None else group for group in found], dtype=np.int64)

    def _agreement(self, strategy: "Handlers") -> Figures:
        """Agreement of the strategy's groups with the true ones, over the present devices for
        which both are known.
        """
        truth = self._world.truth()
        if truth is None:
            return {}
        groups = self._groups(strategy)
        present = self._world.present()
        groups[truth < 0] = -1
        if present is not None:
            groups[~present] = -1
        return (
            at("fedsim.toolbox.clustering.agreement:measures", "agreement")(groups, truth)
            if (groups >= 0).any()
            else {}
        )

    async def fine_tuned(
        self, models: ModelAssignment, number: int, usual_score: str
    ) -> float | None:
        """Accuracy when each device has trained its own model further, from round ``number`` on;
        None if it is not wanted.
        """
        epochs = self._spec.fine_tune_epochs
        version = self._world.version()
        if not epochs:
            return None
        train = partial(self._learner.train, key=_FINE_TUNING, round=number)
        tuned = {
            f"{name}/{device}": (
                train(Training(ref, epochs), device, version=int(version[device])),
                [device],
            )
            for name, (ref, served) in self._here(models).items()
            for device in (range(len(version)) if served is None else served)
        }
        evaluation = await self._learner.evaluate(tuned)
        return None if evaluation is None else evaluation.score(self._how(usual_score))[0]

    async def test(self, model: Ref, devices: Sequence[int] | None) -> float | None:
        """A model's accuracy on the pooled test samples of devices (None: all); None where
        nothing is measured.
        """
        evaluation = await self._learner.evaluate(self._here({"test": (model, devices)}))
        return None if evaluation is None else evaluation.score("pooled")[0]
