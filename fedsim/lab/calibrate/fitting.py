"""Devices and links from a log, by estimators that a few odd rows do not move."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import theilslopes

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.lab.calibrate.log import Log, Tasks, took
from fedsim.lab.calibrate.replay import FittedWorld, transfers
from fedsim.world.network import Direction
from fedsim.world.network.protocol import Fluid, Protocol

_WAYS: tuple[Direction, ...] = ("down", "up")
# standard deviations in the median distance from the median, of a normal distribution
_SIGMA = 1.4826
_FAR = 3.5  # standard deviations beyond which a time is an outlier
_NO_JITTER = 1e-3
_APART = 1.5  # the least ratio of sizes that separates latency from rate
# of the search for rates behind a shared link
_TURNS = 12
_STILL = 1e-3
_MOST = 400  # transfers that this search uses
# tried capacities of a server's link, in shares of the least possible one
_WIDER = (1.0, 1.1, 1.25, 1.5, 2.0)
# by how much a limit must explain a log better than none
_BETTER = 0.9
_WORTH = 0.005
# weight of the end of a busy time, for which rounds wait, against that of a transfer
_TOGETHER = 3.0
_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGE = 1e9  # bytes of a message whose slow start is over
_STEEP = 1e3  # the highest ratio of a link's rate to the mean rate of its messages
_FIRST_WINDOW = 14_480  # bytes that TCP sends in the first round trip
# many clients whose rates differ by less share a link
_ALIKE = 0.03
_MANY = 5
_MOSTLY = 0.8  # the share of clients in a round from which the others count as away


class Fitted(NamedTuple):
    """A world with further estimates; arrays are [clients]."""

    world: FittedWorld
    overhead: Floats  # fixed part of a training (s), NaN if unknown; the world's speeds contain it
    latency_is_known: bool  # given or fitted; if not, rates contain latencies
    samples: Floats  # of each client
    epochs: int  # of a training
    seen: Ints  # tasks that each client was fitted to
    notes: tuple[str, ...]  # unknown quantities, for people


class Presence(NamedTuple):
    """Mean durations for which clients are there and away (s), and the share of the time that
    each is there, [clients].
    """

    mean_on: float
    mean_off: float
    share: Floats


def fit(
    tasks: Tasks, clients: int, latency: float | None = None, protocol: Protocol | None = None
) -> Fitted:
    """The world that tasks of a log are from; a client without a task gets the median of the
    others.

    Args:
        tasks: some of a log.
        clients: how many the log has.
        latency: of all clients (s), if it is known.
        protocol: of the messages, fluid by default; shares of links are taken as alike.
    """
    protocol = protocol or Fluid()
    steady = protocol.model_copy(update={"weight_spread": 1.0, "late_weight": 1.0})
    speed, jitter = _speeds(tasks, clients)
    found = _latencies(tasks, clients, steady) if latency is None else np.full(clients, latency)
    latencies = np.zeros(clients) if found is None else found
    rates = {}
    server = {}
    notes = []
    for way in _WAYS:
        rates[way], server[way], unknown = _links(tasks, way, latencies, steady)
        notes += unknown
    for way, other in (_WAYS, _WAYS[::-1]):
        if np.isnan(rates[way]).all():
            rates[way] = rates[other]
            notes.append(f"nothing tells the links {way}: they are taken for those {other}")
    world = FittedWorld(
        _usual(rates["down"]),
        _usual(rates["up"]),
        latencies,
        server,
        protocol,
        _usual(speed),
        jitter,
    )
    overhead: Floats = _lines(tasks.train, tasks.client, clients)[0]
    held = tasks.train.amount / tasks.epochs
    samples = np.maximum(1.0, np.round(_usual(_middle(held, tasks.client, clients))))
    epochs = max(1, int(np.median(tasks.epochs[~np.isnan(held)])))
    seen = np.bincount(tasks.client, minlength=clients)
    return Fitted(world, overhead, found is not None, samples, epochs, seen, tuple(notes))


def presence(log: Log) -> Presence | None:
    """When clients can be reached: as the log says, or where nearly all are in every round, from
    those who are not.

    Means are those of exponential phases, of which the first and the last may be cut off.
    """
    clients = len(log.clients)
    first = log.rounds.start.min()
    last = log.rounds.end.max()
    if log.on:
        client, start, end = map(np.array, zip(*log.on, strict=True))
    elif log.synchronous:
        tasks = pd.crosstab(log.tasks.client, log.tasks.number).reindex(
            columns=log.rounds.number, fill_value=0
        )
        there = tasks.clip(upper=1).to_numpy()
        if there.all() or there.mean() < _MOSTLY:
            return None
        edges = np.append(log.rounds.start, last)
        change = np.diff(there, prepend=0, append=0)
        client, begins = np.nonzero(change == 1)
        start = edges[begins]
        end = edges[np.nonzero(change == -1)[1]]
    else:
        return None
    on = np.bincount(client, end - start, clients)
    leaves = np.sum(end < last)
    comes = np.sum(start > first)
    if not leaves or not comes:
        return None
    whole = last - first
    return Presence(
        float(on.sum() / leaves), float((whole * clients - on.sum()) / comes), on / whole
    )


def _middle(values: Floats, client: Ints, clients: int, how: str = "median") -> Floats:
    """The median, or the mean, of each client's values, NaN without any, [clients]."""
    return np.asarray(
        pd.Series(values).groupby(np.asarray(client)).agg(how).reindex(range(clients)),
        dtype=np.float64,
    )


def _usual(values: Floats) -> Floats:
    """The values with their median in place of NaN."""
    known = values[~np.isnan(values)]
    return np.where(np.isnan(values), np.median(known) if len(known) else math.inf, values)


def _speeds(tasks: Tasks, clients: int) -> tuple[Floats, float]:
    """Samples/s, [clients], and the jitter of an epoch; times of trainings are lognormal with
    mean samples / speed.
    """
    tasks = tasks[~np.isnan(tasks.train.end) & (took(tasks.train) > 0)]
    client = tasks.client
    pace = np.log(took(tasks.train) / tasks.train.amount)
    rest = pace - _middle(pace, client, clients)[client]
    spread = math.sqrt(len(rest) / max(1, len(rest) - len(np.unique(client))))
    sigma = _SIGMA * float(np.median(np.abs(rest))) * spread
    near = np.abs(rest) <= max(_FAR * sigma, 1e-9)
    pace = pace[near]
    own = client[near]
    mean = _middle(pace, own, clients, "mean")
    if (free := len(pace) - len(np.unique(own))) > 0:
        sigma = math.sqrt(float(np.sum((pace - mean[own]) ** 2)) / free)
    jitter = math.sqrt(math.expm1(sigma**2) * float(np.median(tasks.epochs)))
    return np.exp(-mean - sigma**2 / 2), jitter if jitter > _NO_JITTER else 0.0


def _lines(steps: Any, client: Ints, clients: int) -> Floats:
    """Intercept (at least 0) and slope of each client's Theil-Sen line of time over amount; NaN
    of one amount; [2, clients].
    """
    found = np.full((2, clients), math.nan)
    times = pd.DataFrame({"client": client, "amount": steps.amount, "took": took(steps)}).dropna(
        subset="took"
    )
    for one, own in times.groupby("client"):
        middle = own.groupby("amount")["took"].median()
        sizes = middle.index.to_numpy(float)
        if len(sizes) >= 2 and sizes[-1] >= _APART * sizes[0]:
            some = np.unique(np.linspace(0, len(sizes) - 1, 64).astype(np.int64))
            line = theilslopes(middle.to_numpy()[some], sizes[some], method="joint")
            found[:, int(str(one))] = max(0.0, float(line.intercept)), float(line.slope)
    return found


def _latencies(tasks: Tasks, clients: int, protocol: Protocol) -> Floats | None:
    """The latency of each client's messages (s), [clients]; None where all messages have one
    size.
    """
    lines = np.stack(
        [_lines(steps, tasks.client, clients) for steps in (tasks.down, tasks.up)], axis=1
    )
    known = ~np.isnan(lines[0])
    if not known.any():
        return None
    latency = lines[0].copy()
    if protocol.slow_start:  # the intercept has round trips in it, by which large messages are late
        large = lines[0] + lines[1] * _LARGE

        def is_low(tried: Floats) -> Flags:
            sending = protocol.sending_s(
                _LARGE, protocol.overhead / lines[1], 2 * tried + protocol.round_trip
            )
            return np.asarray(tried + sending < large)

        latency = _bisected(is_low, np.zeros_like(large), lines[0])
    return _usual(pd.DataFrame(latency).where(known).mean().to_numpy())


def _bisected(is_low: Callable[[Floats], Flags], low: Floats, high: Floats) -> Floats:
    """The boundaries between ``low`` and ``high`` from which values are no longer low."""
    for _ in range(60):
        middle = (low + high) / 2
        below = is_low(middle)
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    return np.asarray(low, dtype=np.float64)


def _links(
    tasks: Tasks, way: Direction, latency: Floats, protocol: Protocol
) -> tuple[Floats, float, list[str]]:
    """Rates of the clients' links, [clients], NaN where nothing went, the capacity of the
    server's (bytes/s), and notes.
    """
    tasks = tasks[~np.isnan(tasks[way].end) & (tasks[way].amount > 0)]
    clients = len(latency)
    if not len(tasks):
        return np.full(clients, math.nan), math.inf, []
    tasks = tasks[np.argsort(tasks[way].start, kind="stable")]
    search = _LinkSearch(way, tasks[way], tasks.client, latency, protocol)
    capacity = search.capacity()
    notes = []
    rates = search.settled(capacity, len(tasks))[0]
    if np.isnan(rates).all():  # windows and round trips alone tell how long messages take
        rates = np.full(clients, _LARGE)
    if np.median(tasks[way].amount) <= _FIRST_WINDOW:
        notes.append(
            f"messages {way} are so small that a round trip holds them: they tell latency, not "
            "the links' rates"
        )
    elif capacity == math.inf and search.looks_shared(rates):
        capacity = float(np.nansum(rates))
        notes.append(
            f"the {clients} clients all have the same rate {way}, and always at once: taken "
            "for one link "
            f"that they share, of {capacity / 125e3:.4g} Mbit/s; only fewer of them at once "
            "tell what their own links carry"
        )
        rates = np.full(clients, capacity)
    return rates, capacity, notes


def _rates(protocol: Protocol, sizes: Floats, sending: Floats, latency: Floats) -> Floats:
    """The rates (bytes/s) at which messages take ``sending`` (s) beside their latencies (s),
    [messages].

    NaN where any faster link would take as long, since windows alone limit it.
    """
    low = sizes * protocol.overhead / sending
    if protocol.window == math.inf:
        return low
    round_trip = 2 * latency + protocol.round_trip
    known = protocol.sending_s(sizes, low * _STEEP, round_trip) < sending
    ends = np.log((low, low * _STEEP))
    found = _bisected(
        lambda log: protocol.sending_s(sizes, np.exp(log), round_trip) > sending, *ends
    )
    return np.where(known, np.exp(found), math.nan)


class _LinkSearch:
    """The links of one direction behind which a log's transfers would take as long as they did.

    The simulator says whether the server's link limits them: for each capacity that is tried,
    clients' rates are found by which each takes as long as it did, on the median of those that its
    own link holds up. The remaining errors, of single transfers and of whole busy times, say which
    capacity is right; a limit that explains little more than none is none.
    """

    def __init__(
        self, way: Direction, steps: Any, client: Ints, latency: Floats, protocol: Protocol
    ) -> None:
        self._way = way
        self._steps = steps
        self._client = client
        self._latency = latency
        self._protocol = protocol
        self._over = np.maximum.accumulate(steps.end)

    def capacity(self) -> float:
        """Of the server's link, bytes/s; infinity if it limits nothing."""
        most = min(_MOST, len(self._client))
        if len(self._begins(most)) == most or (alone := self._error(math.inf, most)) <= _WORTH:
            return math.inf
        least = self._least(most)
        tried = {least * factor: self._error(least * factor, most) for factor in _WIDER}
        best = min(tried, key=tried.__getitem__)
        if tried[best] >= alone:
            return math.inf
        low = math.log(best / _WIDER[2])
        high = math.log(best * _WIDER[2])
        for _ in range(12):  # a golden section
            left = math.exp(high - _GOLDEN * (high - low))
            right = math.exp(low + _GOLDEN * (high - low))
            tried |= {one: self._error(one, most) for one in (left, right)}
            low, high = (
                (low, math.log(right)) if tried[left] <= tried[right] else (math.log(left), high)
            )
        best = min(tried, key=tried.__getitem__)
        return best if tried[best] < _BETTER * alone and tried[best] < alone - _WORTH else math.inf

    def looks_shared(self, rates: Floats) -> bool:
        """Whether many clients have one rate (bytes/s, [clients]), and never send but all
        together.
        """
        known = rates[~np.isnan(rates)]
        if len(known) < _MANY or np.ptp(known) > _ALIKE * np.median(known):
            return False
        together = np.split(self._client, self._begins(len(self._client))[1:])
        return min(len(np.unique(part)) for part in together) == len(known)

    def settled(self, capacity: float, most: int) -> tuple[Floats, Floats]:
        """Rates (bytes/s, [clients]) behind a server's link of this capacity, and how long the
        first transfers take (s).
        """
        latency = self._latency[self._client]
        clients = len(self._latency)
        sending = np.maximum(took(self._steps) - latency, 1e-9)
        rates = _middle(
            _rates(self._protocol, self._steps.amount, sending, latency), self._client, clients
        )
        steps = self._steps[:most]
        client = self._client[:most]
        latency = latency[:most]
        real = sending[:most]
        if capacity == math.inf:
            round_trip = 2 * latency + self._protocol.round_trip
            return rates, latency + self._protocol.sending_s(
                steps.amount, rates[client], round_trip
            )
        rates = np.minimum(rates, capacity)
        took_s = real
        for _ in range(_TURNS):
            known = np.where(np.isnan(rates), capacity, rates)
            world = FittedWorld(
                known, known, self._latency, dict.fromkeys(_WAYS, capacity), self._protocol
            )
            took_s = transfers(world, self._way, steps, client)
            apart = np.log(np.maximum(took_s - latency, 1e-9) / real)
            # those that the server's link holds up do not depend on their own
            own = np.abs(apart) > _STILL
            change = np.nan_to_num(_middle(apart[own], client[own], clients))
            better = np.minimum(rates * np.exp(change), capacity)
            if np.nanmax(np.abs(np.log(better / rates))) < _STILL:
                break
            rates = better
        return rates, took_s

    def _error(self, capacity: float, most: int) -> float:
        """Mean log error of single transfers, plus the weighted one of the ends of busy times."""
        steps = self._steps[:most]
        took_s = self.settled(capacity, most)[1]
        begins = self._begins(most)
        busy, here = (
            np.maximum.reduceat(ends, begins) - steps.start[begins]
            for ends in (steps.end, steps.start + took_s)
        )
        alone, together = (
            np.abs(np.log(np.maximum(found, 1e-9) / np.maximum(real, 1e-9))).mean()
            for found, real in ((took_s, took(steps)), (here, busy))
        )
        return float(alone + _TOGETHER * together)

    def _begins(self, most: int) -> Ints:
        return np.concatenate(
            ([0], 1 + np.flatnonzero(self._steps.start[1:most] >= self._over[: most - 1]))
        )

    def _least(self, most: int) -> float:
        """Lower bound of the server's link (bytes/s): the rate of whole transfers in the busiest
        stretches.
        """
        found = []
        for first, last in pairwise([*self._begins(most).tolist(), most]):
            steps = self._steps[first:last]
            order = np.argsort(steps.end, kind="stable")
            latency = self._latency[self._client[first:last]].min()
            wire = np.cumsum(steps.amount[order]) * self._protocol.overhead
            found.append(
                (wire / np.maximum(steps.end[order] - steps.start[0] - latency, 1e-9)).max()
            )
        return float(np.percentile(found, 90))
