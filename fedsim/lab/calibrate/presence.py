"""Estimates of the phases in which clients of a log are online."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats, Ints
from fedsim.lab.calibrate.log import Log

# If clients take part in at least this share of the rounds, on average, a client that is absent
# from a round counts as unreachable. Otherwise, it may just not have been selected.
_LEAST_SHARE = 0.8


class Presence(NamedTuple):
    """Mean durations of the phases in which clients are online or unreachable, as a log shows them.

    Attributes:
        mean_on: mean duration of an online phase (s).
        mean_off: mean duration of an unreachable phase (s).
        share: share of the time (0..1) that each client is online; float64 [clients].
    """

    mean_on: float
    mean_off: float
    share: Floats


def estimate_presence(log: Log) -> Presence | None:
    """Estimate the online and unreachable phases of a log's clients.

    The phases are read from the log. If the log has no phases, and nearly all clients take part in
    every round, a client that is absent from a round counts as unreachable. Durations are taken to
    be exponential, and phases may be cut off by the begin and the end of the log.

    Returns:
        The estimates; None if no client becomes unreachable in the log, if none comes back, or if
        neither phases nor rounds tell when clients are online.
    """
    phases = _online_phases(log)
    if phases is None:
        return None
    client, start, end = phases
    clients = len(log.clients)
    log_start = log.rounds.start.min()
    log_end = log.rounds.end.max()
    online_s = np.bincount(client, end - start, clients)
    departures = np.sum(end < log_end)
    arrivals = np.sum(start > log_start)
    if not departures or not arrivals:
        return None
    duration = log_end - log_start
    # the maximum likelihood for exponential phases: time in a state over count of its observed ends
    mean_on = float(online_s.sum() / departures)
    mean_off = float((duration * clients - online_s.sum()) / arrivals)
    return Presence(mean_on, mean_off, online_s / duration)


def _online_phases(log: Log) -> tuple[Ints, Floats, Floats] | None:
    """Return the clients' online phases, as the log states them or as the rounds show them.

    Returns:
        Index of the client, start and end (s) of each phase, [phases] each. None if the log states
        no phases, and the clients that take part in the rounds do not show them.
    """
    if log.on:
        client, start, end = map(np.array, zip(*log.on, strict=True))
        return client, start, end
    if not log.synchronous:
        return None
    task_counts = pd.crosstab(log.tasks.client, log.tasks.number)
    task_counts = task_counts.reindex(columns=log.rounds.number, fill_value=0)
    takes_part = task_counts.clip(upper=1).to_numpy()  # 0 or 1; int64 [clients, rounds]
    if takes_part.all() or takes_part.mean() < _LEAST_SHARE:
        return None
    edges = np.append(log.rounds.start, log.rounds.end.max())
    # row-major order pairs the n-th begin of a client with its n-th end
    change = np.diff(takes_part, prepend=0, append=0)
    client, first_rounds = np.nonzero(change == 1)
    end_rounds = np.nonzero(change == -1)[1]
    return client, edges[first_rounds], edges[end_rounds]
