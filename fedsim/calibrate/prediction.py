"""How good a fit is: rounds as they were, and as a fitted world makes them."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedsim.arrays import Flags, Floats
from fedsim.calibrate.log import Log
from fedsim.calibrate.replay import World, rounds, updates_per_s
from fedsim.errors import DataError

HoldOut = Literal["third", "last", "none"]

_LEAST_ROUNDS = 3
_UPDATES = 200  # over so many an asynchronous server's rate is counted


class Prediction(NamedTuple):
    """Rounds, or of an asynchronous server what came between two versions; [rounds] each.

    Attributes:
        held_out: whether nothing was fitted to it.
        measured, predicted: s; NaN where a round cannot be predicted.
        updates: a second, measured and predicted; None of a synchronous server.
    """

    held_out: Flags
    measured: Floats
    predicted: Floats
    updates: tuple[float, float] | None

    def of(self, held_out: bool) -> "Prediction":
        """The rounds that were held out and can be predicted, or the others."""
        there = (self.held_out == held_out) & ~np.isnan(self.predicted)
        return Prediction(self.held_out[there], self.measured[there], self.predicted[there], self.updates)

    @property
    def errors(self) -> Floats:
        """|predicted / measured - 1|."""
        return np.abs(self.predicted / self.measured - 1)

    def told(self, whose: str) -> Iterator[str]:
        """Lines for people; ``whose`` values predicted it."""
        if self.updates is not None:
            measured, predicted = self.updates
            what = "held out" if self.held_out.any() else "fitted"
            error = abs(predicted / measured - 1)
            yield f"{what:<10} {measured:.4g} updates/s measured, {predicted:.4g} predicted {whose}: error {error:.1%}"
            return
        if np.isnan(self.predicted).all():
            yield f"fit        not known {whose}: no round can be predicted, since each has a task that did not come to its end"
        for held_out, what in ((True, "held out"), (False, "fitted")):
            part = self.of(held_out)
            if len(part.errors):
                yield (
                    f"{what:<10} {len(part.errors)} rounds of {part.measured.mean():.4g} s on the mean, "
                    f"{part.predicted.mean():.4g} s predicted {whose}: "
                    f"error {part.errors.mean():.1%} on the mean, {np.percentile(part.errors, 95):.1%} at the 95th percentile"
                )


def held_out(log: Log, how: HoldOut) -> Flags:
    """Which rounds nothing is to be fitted to, [rounds].

    Raises:
        DataError: there are too few.
    """
    count = len(log.rounds.number)
    held = np.zeros(count, dtype=bool)
    if how == "none":
        return held
    if count < _LEAST_ROUNDS:
        raise DataError(f"the log has {count} rounds; {_LEAST_ROUNDS} at least are needed to hold one out (--hold-out none)")
    if not log.synchronous or how == "last":  # versions run into each other, so none can be taken from among them
        held[-(count // 3) :] = True
    else:
        held[2::3] = True
    return held


def predict(log: Log, held: Flags, worlds: Sequence[World]) -> Prediction:
    """What worlds make of a log, on the mean: each round with its own cohort; of an asynchronous server, updates a second."""
    return (_rounds if log.synchronous else _rate)(log, held, worlds)


def _rounds(log: Log, held: Flags, worlds: Sequence[World]) -> Prediction:
    order = np.argsort(log.tasks.round, kind="stable")
    edges = (np.searchsorted(log.tasks.round[order], log.rounds.number, side=side) for side in ("left", "right"))
    cohorts = [order[first:last] for first, last in zip(*edges, strict=True)]
    whole = [place for place, cohort in enumerate(cohorts) if len(cohort) and log.tasks.whole[cohort].all()]
    predicted = np.full(len(cohorts), np.nan)
    if whole:
        chosen = [cohorts[place] for place in whole]
        predicted[whole] = np.mean([rounds(world, log.tasks, chosen, seed) for seed, world in enumerate(worlds)], axis=0)
    return Prediction(held, log.rounds.end - log.rounds.start, predicted, None)


def _rate(log: Log, held: Flags, worlds: Sequence[World]) -> Prediction:
    tasks, versions = log.tasks, log.rounds
    scored = versions.at(held if held.any() else ~held)
    first, last = scored.start.min(), scored.end.max()
    ends = tasks.up.end[tasks.whole]
    measured = float(np.sum((ends > first) & (ends <= last)) / (last - first))
    whole = np.flatnonzero(tasks.whole)
    one_each = tasks.at(whole[np.unique(tasks.client[whole], return_index=True)[1]])
    rates = [updates_per_s(world, one_each, log.at_work, _UPDATES, seed) for seed, world in enumerate(worlds)]
    predicted = float(np.mean(rates))
    usual = np.full(len(held), log.per_version / predicted)
    return Prediction(held, versions.end - versions.start, usual, (measured, predicted))
