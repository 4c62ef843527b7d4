"""Rules that may end a run after a round: reached goals, count of rounds, and lack of progress."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedsim.common.saved import saved
from fedsim.common.stop import StopSpec
from fedsim.federation.unseen import ACCURACY
from fedsim.learning.objectives import EvaluationMetric
from fedsim.learning.refs import Ref

MeasuredRound = Mapping[str, float | None]
"""Measures of a round, by column of ``rounds.parquet``; None for a measure without a test."""


@saved()
@dataclass
class Progress:
    """Best test of a run so far, for ``[stop]`` and ``evaluation.keep_best`` to compare new tests.

    Attributes:
        value: Monitored value (``StopRules.monitor``) at the last improvement. An improvement is a
            test that is better than the improvement before it by more than ``stop.min_delta``.
            None until a test has a finite value.
        since: Index of the round of the last improvement, from 0; before any improvement, the
            round of the first test. None before a test.
        best: Best monitored value of any test; None before a finite value.
        best_round: Index of the round of the first test with the value ``best``; None before a
            finite value.
        models: The strategy's models at the best test, by name; empty unless
            ``evaluation.keep_best`` is set.
    """

    value: float | None = None
    since: int | None = None
    best: float | None = None
    best_round: int | None = None
    models: dict[str, Ref] = field(default_factory=dict)


class StopRules:
    """Rules of ``[stop]``, which decide after each round whether the run ends.

    The object also stores the models of the best test.

    Args:
        stop: ``[stop]`` of the scenario.
        metrics: metrics of tests, in addition to accuracy and loss.
        has_accuracy: whether the objective has an accuracy.
        keeps_best: whether the models of the best test are stored.

    Attributes:
        monitor: column of ``rounds.parquet`` by which tests are compared.
        progress: the best test so far, and the last improvement.
        last_round: index of the round that was finished last, from 0; None before the first. The
            table of rounds has it too, from which a resumed run restores it.
    """

    def __init__(
        self,
        stop: StopSpec,
        metrics: Sequence[EvaluationMetric] = (),
        *,
        has_accuracy: bool = True,
        keeps_best: bool = False,
    ) -> None:
        self._stop = stop
        # columns of which a larger value is better
        self._maximised = {metric.name for metric in metrics if metric.more_is_better}
        # ``ACCURACY`` is the accuracy of the devices that never train
        self._maximised |= {"accuracy", ACCURACY}
        self._keeps_best = keeps_best
        default_monitor = "accuracy" if has_accuracy else "loss"
        self.monitor: str = stop.monitor or default_monitor
        self.progress = Progress()
        self.last_round: int | None = None

    @property
    def summary(self) -> dict[str, object]:
        """Entry ``best`` of ``summary.json``, as a dict with this single key.

        The entry has the keys ``monitor`` (column of ``rounds.parquet`` by which tests are
        compared), ``round`` (index of the round of the best test) and ``value`` (value of the best
        test in this column). The dict is empty unless ``stop.patience`` or ``evaluation.keep_best``
        is set.
        """
        if self._stop.patience is None and not self._keeps_best:
            return {}
        best: dict[str, object] = {"monitor": self.monitor}
        best["round"] = self.progress.best_round
        best["value"] = self.progress.best
        return {"best": best}

    def is_last(self, round_number: int) -> bool:
        """Whether a round (``round_number`` from 0) is the last planned round."""
        return self._stop.rounds is not None and round_number + 1 >= self._stop.rounds

    def note(
        self, round_number: int, figures: MeasuredRound, models: Mapping[str, tuple[Ref, object]]
    ) -> None:
        """Store that a round is finished, and compare its test with the best test so far.

        If the test is the best one and ``evaluation.keep_best`` is set, the models are stored.

        Args:
            round_number: the round, from 0.
            figures: column of ``rounds.parquet`` -> value for this round. Nothing is compared if
                the monitored column (``monitor``) has no value.
            models: name -> model of the strategy, and the devices that it serves.
        """
        self.last_round = round_number
        value = figures.get(self.monitor)
        if value is None:
            return
        # ``stop.patience`` counts from ``since``, the round of the last improvement. Before any
        # improvement it is the round of the first test, whose model may have diverged.
        progress = self.progress
        if progress.since is None:
            progress.since = round_number
        if not math.isfinite(value):
            return
        # an improvement is better than the last improvement by more than ``stop.min_delta``
        if self._is_better(value, progress.value, self._stop.min_delta):
            progress.value = value
            progress.since = round_number
        # the best test may be better by less than ``stop.min_delta``
        if self._is_better(value, progress.best, 0.0):
            progress.best = value
            progress.best_round = round_number
            if self._keeps_best:
                progress.models = {name: model for name, (model, _) in models.items()}

    def _is_better(self, value: float, than: float | None, by: float) -> bool:
        """Whether ``value`` beats ``than`` by more than ``by``; True if ``than`` is None."""
        if than is None:
            return True
        if self.monitor in self._maximised:
            return value > than + by
        return value < than - by

    def reason(self, round_number: int, figures: MeasuredRound) -> str | None:
        """Return the reason for which the run ends after a round; None if it goes on.

        Args:
            round_number: the round, from 0.
            figures: measures of the round: column of ``rounds.parquet`` -> value.

        Returns:
            A few words for the summary, such as ``accuracy 0.9012 reached`` or ``40 rounds``.
        """
        for name, goal in self._stop.metrics.items():
            value = figures.get(name)
            if value is None:
                continue
            # ``_maximised``: columns of which a larger value is better
            is_reached = value >= goal if name in self._maximised else value <= goal
            if is_reached:
                return f"{name} {value:.4g} reached"
        accuracy = figures.get("accuracy")
        goal_accuracy = self._stop.accuracy
        if goal_accuracy is not None and accuracy is not None and accuracy >= goal_accuracy:
            return f"accuracy {accuracy:.4f} reached"
        if self.is_last(round_number):
            return f"{round_number + 1} rounds"
        return self._lack_of_progress(round_number, figures)

    def _lack_of_progress(self, round_number: int, figures: MeasuredRound) -> str | None:
        patience = self._stop.patience
        since = self.progress.since
        if patience is None or since is None or figures.get(self.monitor) is None:
            return None
        if round_number - since < patience:
            return None
        return f"no progress of {self.monitor} in {round_number - since} rounds"
