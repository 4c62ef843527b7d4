"""Test whether transfers at the same time share a link (a permutation test).

If clients that send at the same time share one limiting link, one client's slow transfer goes with
another client's fast transfer. The times of single transfers then vary between rounds, but the time
until all have ended hardly varies. If each client has its own link, the time until all have ended
varies as much as the maximum of independent times. To see which variance chance gives, the times of
each client are permuted between its rounds. This keeps the spread of each client.
"""

from typing import NamedTuple

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.streams import Streams
from fedsim.lab.calibrate.tasks import Steps, durations

_LEAST_CLIENTS = 3
_LEAST_COHORTS = 4
# share of a transfer's median duration for which all transfers of a busy period have to overlap
_LEAST_OVERLAP = 0.6
_DRAWS = 999
_LEAST_S = 1e-9  # least duration of a busy period (s), so that its rate is finite
_CHANCE = 0.02  # greatest ``CommonLink.chance`` at which a shared link is reported
_LEAST_SPREAD = 2e-3  # relative variation of times below which the test says nothing
# The shared link limits a client only if the client's times vary at least this much, as a share of
# the median variation. A slower link of the client's own would keep the client's times steady.
_STEADY = 0.3


class CommonLink(NamedTuple):
    """Link that several clients were found to share, from a test of a log's transfers.

    Attributes:
        capacity: rate of the link (bytes/s of payload).
        members: whether the link limits each client; bool [clients]. The other clients use the
            link too, but slower links of their own limit them.
        chance: p-value of the test (0..1): how often rounds vary as little in length as in the log
            if the times of each client are exchanged at random between its rounds. A small value
            means that the clients share a link.
        spread: relative standard deviation of one client's transfer times; median over clients.
        spread_together: relative standard deviation, over rounds, of the time until all transfers
            of the round have ended. A shared link keeps it small.
    """

    capacity: float
    members: Flags
    chance: float
    spread: float
    spread_together: float


def find_shared_link(
    steps: Steps, client: Ints, latency: Floats, begins: Ints
) -> CommonLink | None:
    """Test whether clients of a log share a link, and estimate its capacity.

    The calibration calls this function for each direction. The test compares busy periods: times in
    which at least one transfer is always under way. It uses only busy periods in which at least
    three clients have exactly one transfer each, and all of these transfers overlap for long.

    Args:
        steps: transfers in one direction, in order of their starts.
        client: index of each transfer's client; int64 [transfers].
        latency: latency of each client (s); float64 [clients].
        begins: index of the first transfer of each busy period; int64 [busy periods].

    Returns:
        The link; None if chance explains the transfers' durations, if the durations hardly vary, or
        if there are fewer than four such busy periods.
    """
    cohorts = _find_cohorts(steps, client, begins)
    if len(cohorts) < _LEAST_COHORTS:
        return None
    rows = np.array(cohorts)  # indices of transfers; [busy periods, clients], as the next arrays
    starts = steps.start[rows]
    seconds = durations(steps)[rows]
    owner = client[rows]
    spreads = _spreads(seconds, owner, len(latency))
    spread = float(np.nanmedian(spreads))
    if spread < _LEAST_SPREAD:
        return None
    busy_s = (starts + seconds).max(axis=1) - starts.min(axis=1)
    variance = float(np.log(busy_s).var())
    chance = _chance_of_variance(variance, starts, seconds, owner)
    if chance > _CHANCE:
        return None
    least_latency = latency[owner].min(axis=1)
    rates = steps.amount[rows].sum(axis=1) / np.maximum(busy_s - least_latency, _LEAST_S)
    return CommonLink(
        capacity=float(np.median(rates)),
        members=np.nan_to_num(spreads, nan=spread) >= _STEADY * spread,
        chance=chance,
        spread=spread,
        spread_together=float(np.std(busy_s) / np.mean(busy_s)),
    )


def _chance_of_variance(variance: float, starts: Floats, seconds: Floats, owner: Ints) -> float:
    """Return the share of permutations in which busy periods vary as little as in the log (0..1).

    A permutation exchanges the times of each client's transfers between the periods.

    Args:
        variance: variance of the logarithms of the periods' durations in the log.
        starts: starts of the transfers (s); float64 [busy periods, clients].
        seconds: durations of the transfers (s); float64 [busy periods, clients].
        owner: index of each transfer's client; int64 [busy periods, clients].
    """
    generator = Streams(0).generator("world/calibrate/sharing")
    first_start = starts.min(axis=1)
    transfers_of_clients = [np.nonzero(owner == number) for number in np.unique(owner)]
    as_steady = 1  # count of permutations with at most this variance; the log itself is one
    for _ in range(_DRAWS):
        permuted = seconds.copy()
        for of_client in transfers_of_clients:
            permuted[of_client] = generator.permutation(seconds[of_client])
        ends = (starts + permuted).max(axis=1)
        as_steady += bool(np.log(ends - first_start).var() <= variance)
    return as_steady / (_DRAWS + 1)


def _spreads(seconds: Floats, owner: Ints, clients: int) -> Floats:
    """Return how much each client's times vary: their standard deviation over their mean.

    Args:
        seconds: times (s).
        owner: index of the client of each time.
        clients: count of clients.

    Returns:
        The ratios, NaN for a client without times; float64 [clients].
    """
    spreads = np.full(clients, np.nan)
    for client_index in np.unique(owner).tolist():
        times = seconds[owner == client_index]
        spreads[client_index] = np.std(times) / np.mean(times)
    return spreads


def _find_cohorts(steps: Steps, client: Ints, begins: Ints) -> list[Ints]:
    """Return the busy periods in which each client has one transfer, and all of them overlap.

    The overlap has to be long compared with a transfer. Of these busy periods, only those with the
    median count of clients are returned.

    Args:
        steps: transfers in one direction, in order of their starts.
        client: index of each transfer's client; int64 [transfers].
        begins: index of the first transfer of each busy period, in which a transfer is always under
            way.

    Returns:
        Indices of the transfers of each busy period; int64 [clients] each.
    """
    cohorts = []
    for cohort in np.split(np.arange(len(client)), begins[1:]):
        if len(np.unique(client[cohort])) < len(cohort) or len(cohort) < _LEAST_CLIENTS:
            continue
        overlap_s = steps.end[cohort].min() - steps.start[cohort].max()
        if overlap_s >= _LEAST_OVERLAP * float(np.median(durations(steps)[cohort])):
            cohorts.append(cohort)
    if not cohorts:
        return []
    usual_count = int(np.median([len(cohort) for cohort in cohorts]))
    return [cohort for cohort in cohorts if len(cohort) == usual_count]
