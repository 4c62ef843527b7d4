"""Predicted times of rounds with other counts of clients than the log has, as intervals.

A world has the speeds and links of all clients. A log may not show whether the clients' own links
limit them, a link that all clients share, or both. Several worlds then explain the log. With as
many clients as in the log, a round takes the same time in all of them; with more or fewer clients,
the times differ. Further clients would also have other speeds and links than the log's clients.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Flags
from fedsim.common.round_words import counted
from fedsim.lab.calibrate.files import draw_clients
from fedsim.lab.calibrate.log import Log
from fedsim.lab.calibrate.replay import FittedWorld, predict, replay_rounds
from fedsim.lab.calibrate.tasks import has_ended

_LEAST_WIDTH = 0.02  # relative width below which an interval is shown as one number
# A world is refuted if its mean error of held-out rounds exceeds the fitted world's mean error by
# more than this.
_REFUTING_EXCESS = 0.05
_DRAWS = 10  # count of draws of clients whose times an interval spans


@dataclass(frozen=True)
class Outlook:
    """Predicted duration of a round in which more or fewer clients take part than in the log.

    ``fedsim calibrate`` fits worlds to a log; a world has the speeds and links of all clients.
    Several worlds may explain the log. With another count of clients, they predict different
    durations. If the round has more clients than the log, the others are copies of the log's
    clients. To see how much the clients matter, the round is also simulated with clients that are
    drawn at random, from distributions fitted to the log's clients.

    Attributes:
        clients: count of clients in the round.
        fitted: duration of the round (s) in the world that fits the log best, with the log's
            clients and their copies.
        fastest, slowest: shortest and longest duration of the round (s) over all worlds that
            explain the log, each with the log's clients, and with ten draws of clients.
    """

    clients: int
    fitted: float
    fastest: float
    slowest: float

    @property
    def line(self) -> str:
        """Text for the user: the predicted time of a round, and its range if that is wide."""
        text = (
            f"outlook    with {counted(self.clients, 'client')} at a time a round takes "
            f"{self.fitted:.4g} s in the scenario"
        )
        if self.slowest <= self.fastest * (1 + _LEAST_WIDTH):
            return text
        return (
            f"{text}; links and clients that the log does not rule out take "
            f"{self.fastest:.4g} to {self.slowest:.4g} s"
        )


def keep_unrefuted(
    log: Log, is_held_out: Flags, world: FittedWorld, rivals: Sequence[FittedWorld]
) -> list[FittedWorld]:
    """Return the rival worlds that predict held-out rounds about as well as the fitted world.

    A world has the clients' speeds and links; rivals explain the rounds of the fit about equally
    well. A rival is left out if the mean relative error of its predictions exceeds the fitted
    world's error by more than 0.05 (such as 0.16 instead of 0.1). All rivals are returned if no
    round is held out, or if the server is asynchronous.

    Args:
        log: the log.
        is_held_out: whether each round was left out of the fit, to test it; bool [rounds].
        world: the world that was fitted to the other rounds.
        rivals: worlds that may explain the log too.
    """
    if not log.synchronous or not is_held_out.any():
        return list(rivals)
    most_error = _held_out_error(log, is_held_out, world) + _REFUTING_EXCESS
    # ``not >``, as NaN, an unknown error, refutes no world
    return [rival for rival in rivals if not _held_out_error(log, is_held_out, rival) > most_error]


def _held_out_error(log: Log, is_held_out: Flags, world: FittedWorld) -> float:
    """Return the mean relative error (0.1: 10 %) with which a world predicts held-out rounds.

    It is the mean of absolute values; NaN if no held-out round can be predicted.

    Args:
        log: the log, which has the measured durations.
        is_held_out: whether each round was left out of the fit, to test it; bool [rounds].
        world: the clients' speeds and links, by which the rounds are simulated.
    """
    prediction = predict(log, is_held_out, [world])
    is_scored = is_held_out & ~np.isnan(prediction.predicted)
    if not is_scored.any():
        return math.nan
    errors = prediction.predicted[is_scored] / prediction.measured[is_scored] - 1
    return float(np.abs(errors).mean())


def predict_outlooks(
    log: Log, world: FittedWorld, rivals: Sequence[FittedWorld]
) -> Iterator[Outlook]:
    """Yield predictions for a round with half, and with twice, as many clients as the last round.

    Only clients that ended their task in the last round count. The first half of these clients
    takes part in the smaller round. In the larger round, each of these clients takes part as two
    clients. The range from ``fastest`` to ``slowest`` also covers clients that are drawn from
    lognormal distributions, fitted to the clients that take part.

    Args:
        log: the log. Nothing is yielded if its server is asynchronous.
        world: the world (clients' speeds and links) that fits the log best.
        rivals: other worlds that explain the log as well.
    """
    if not log.synchronous:
        return
    tasks = log.tasks[has_ended(log.tasks)]
    cohort = np.flatnonzero(tasks.number == tasks.number[-1])
    at_once = len(cohort)
    for count in sorted({max(1, at_once // 2), 2 * at_once}):
        # each task gets a client of its own, as ``np.resize`` repeats tasks to get more of them
        cohort_tasks = tasks[np.resize(cohort, count)]
        originals = cohort_tasks.client.copy()  # client of the log that each client is a copy of
        cohort_tasks.client[:] = np.arange(count)
        times = []  # first the time in the best world, with clients of the log
        # without jitter, so that the times differ only by links and clients
        for candidate in (world, *rivals):
            copies = candidate._replace(
                down=candidate.down[originals],
                up=candidate.up[originals],
                latency=candidate.latency[originals],
                speed=candidate.speed[originals],
                jitter=0.0,
            )
            drawn_worlds = [draw_clients(copies, seed) for seed in range(_DRAWS)]
            for replayed_world in (copies, *drawn_worlds):
                durations = replay_rounds(replayed_world, cohort_tasks, [np.arange(count)])
                times.append(float(durations[0]))
        yield Outlook(count, fitted=times[0], fastest=min(times), slowest=max(times))
