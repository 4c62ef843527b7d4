"""Estimates of devices and links from a log, robust against a few outliers."""

import math
from collections.abc import Callable
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import theilslopes

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.lab.calibrate.replay import FittedWorld, transfers
from fedsim.lab.calibrate.sharing import CommonLink, find_shared_link
from fedsim.lab.calibrate.tasks import Steps, Tasks, took
from fedsim.world.network import Direction
from fedsim.world.network.protocol import Fluid, Protocol

_DIRECTIONS: tuple[Direction, ...] = ("down", "up")
# standard deviation over median absolute deviation, of a normal distribution
_SIGMA = 1.4826
_FAR = 3.5  # standard deviations beyond which a time is an outlier
_NO_JITTER = 1e-3
_APART = 1.5  # the least ratio of sizes that separates latency from rate
# search for rates behind a shared link: most iterations, and tolerance of logarithms
_TURNS = 12
_STILL = 1e-3
_MOST = 400  # count of transfers that the search uses
# trial capacities of a server's link, as factors on the least possible capacity
_WIDER = (1.0, 1.1, 1.25, 1.5, 2.0)
# a limit at the server is kept if its error is below _BETTER times, and _WORTH below, no limit's
_BETTER = 0.9
_WORTH = 0.005
# links explain a log as well as fitted links if their error is below _AS_WELL times, plus _WORTH
_AS_WELL = 1.3
# weight of a busy period's error, whose end rounds wait for, relative to a transfer's error
_TOGETHER = 3.0
_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGE = 1e9  # size of a message that is long past its slow start (bytes)
_STEEP = 1e3  # the highest ratio of a link's rate to the mean rate of its messages
_FIRST_WINDOW = 14_480  # bytes that TCP sends in the first round trip
# clients are assumed to share one link if they are this many and their rates differ by less
_ALIKE = 0.03
_MANY = 5


class Fitted(NamedTuple):
    """World fitted to a log, with further estimates; arrays have one value per client."""

    world: FittedWorld
    rivals: tuple[FittedWorld, ...]  # further worlds that explain the log
    overhead: Floats  # fixed part of a training (s), NaN if unknown; the world's speeds contain it
    latency_is_known: bool  # whether it is given or fitted; if not, rates contain latencies
    samples: Floats  # count of samples per epoch
    epochs: int  # median count of epochs of a training
    tasks: Ints  # count of tasks to which the client was fitted
    notes: tuple[str, ...]  # sentences about unknown quantities, for users


class _Links(NamedTuple):
    """Links of a direction that were fitted to a log.

    Attributes:
        rates: rates of the clients' links (bytes/s), NaN for clients without messages; [clients].
        capacity: capacity of the server's link (bytes/s), infinity allowed.
        rivals: further rates and capacities that explain the log.
        notes: notes for users.
    """

    rates: Floats
    capacity: float
    rivals: list[tuple[Floats, float]]
    notes: list[str]


def fit(
    tasks: Tasks,
    clients: int,
    latency: float | None = None,
    protocol: Protocol | None = None,
    all_tasks: Tasks | None = None,
) -> Fitted:
    """Fit a world to tasks of a log.

    A client without a task gets the median of the other clients' values.

    Args:
        tasks: all or some tasks of the log.
        clients: count of clients.
        latency: latency of all clients (s), if it is known.
        protocol: protocol of the messages, fluid by default. Messages are assumed to share links
            evenly.
        all_tasks: tasks of all rounds, by which it is tested whether clients share a link; None for
            ``tasks``.
    """
    if protocol is None:
        protocol = Fluid()
    steady = protocol.model_copy(update={"weight_spread": 1.0, "late_weight": 1.0})
    speed, jitter = _fit_speeds(tasks, clients)
    fitted_latencies = _fit_latencies(tasks, clients, steady, latency)
    latencies = np.zeros(clients) if fitted_latencies is None else fitted_latencies
    rates = {}
    server: dict[Direction, float] = {}
    rivals: dict[Direction, list[tuple[Floats, float]]] = {}
    notes = []
    for direction in _DIRECTIONS:
        links = _fit_links(tasks, direction, latencies, steady, all_tasks)
        rates[direction] = links.rates
        server[direction] = links.capacity
        rivals[direction] = [(links.rates, links.capacity), *links.rivals]
        notes += links.notes
    for direction, opposite in (_DIRECTIONS, _DIRECTIONS[::-1]):
        if np.isnan(rates[direction]).all():
            rates[direction] = rates[opposite]
            notes.append(
                f"nothing tells the links {direction}: they are taken for those {opposite}"
            )
    world = FittedWorld(
        _fill_unknown(rates["down"]),
        _fill_unknown(rates["up"]),
        latencies,
        server,
        protocol,
        _fill_unknown(speed),
        jitter,
    )
    overhead: Floats = _fit_lines(tasks.train, tasks.client, clients)[0]
    samples_of_tasks = tasks.train.amount / tasks.epochs
    samples = _fill_unknown(_aggregate(samples_of_tasks, tasks.client, clients))
    epochs = max(1, int(np.median(tasks.epochs[~np.isnan(samples_of_tasks)])))
    return Fitted(
        world=world,
        rivals=tuple(
            _rival(_rival(world, "down", *down), "up", *up)
            for down, up in product(rivals["down"], rivals["up"])
        ),
        overhead=overhead,
        latency_is_known=fitted_latencies is not None,
        samples=np.maximum(1.0, np.round(samples)),
        epochs=epochs,
        tasks=np.bincount(tasks.client, minlength=clients),
        notes=tuple(notes),
    )


def _rival(world: FittedWorld, direction: Direction, rates: Floats, capacity: float) -> FittedWorld:
    """Return a world with other links in one direction."""
    if np.isnan(rates).all():
        return world
    server = {**world.server, direction: capacity}
    if direction == "down":
        return world._replace(down=_fill_unknown(rates), server=server)
    return world._replace(up=_fill_unknown(rates), server=server)


def _aggregate(values: Floats, client: Ints, clients: int, function: str = "median") -> Floats:
    """Aggregate the values of each client.

    Args:
        values: the values; float64 [n].
        client: index of each value's client; int64 [n].
        clients: count of clients.
        function: ``median`` or ``mean``.

    Returns:
        The aggregates, NaN for a client that has no values; float64 [clients].
    """
    by_client = pd.Series(values).groupby(np.asarray(client)).agg(function)
    return np.asarray(by_client.reindex(range(clients)), dtype=np.float64)


def _fill_unknown(values: Floats) -> Floats:
    """Replace NaN by the median of the other values, or by infinity if all are NaN."""
    numbers = values[~np.isnan(values)]
    usual = np.median(numbers) if len(numbers) else math.inf
    return np.where(np.isnan(values), usual, values)


def _fit_speeds(tasks: Tasks, clients: int) -> tuple[Floats, float]:
    """Estimate the speed of each client, and the jitter of an epoch.

    Durations of trainings are lognormal with mean samples / speed.

    Returns:
        Speeds (samples/s), float64 [clients], and the coefficient of variation of an epoch's
        duration, 0 if it is tiny.
    """
    tasks = tasks[~np.isnan(tasks.train.end) & (took(tasks.train) > 0)]
    client = tasks.client
    pace = np.log(took(tasks.train) / tasks.train.amount)
    rest = pace - _aggregate(pace, client, clients)[client]
    spread = math.sqrt(len(rest) / max(1, len(rest) - len(np.unique(client))))
    sigma = _SIGMA * float(np.median(np.abs(rest))) * spread
    near = np.abs(rest) <= max(_FAR * sigma, 1e-9)
    pace = pace[near]
    client = client[near]
    mean = _aggregate(pace, client, clients, "mean")
    degrees = len(pace) - len(np.unique(client))  # degrees of freedom
    if degrees > 0:
        sigma = math.sqrt(float(np.sum((pace - mean[client]) ** 2)) / degrees)
    jitter = math.sqrt(math.expm1(sigma**2) * float(np.median(tasks.epochs)))
    return np.exp(-mean - sigma**2 / 2), jitter if jitter > _NO_JITTER else 0.0


def _fit_lines(steps: Steps, client: Ints, clients: int) -> Floats:
    """Fit a Theil-Sen line of duration over amount to each client's steps.

    Args:
        steps: the steps, with amounts in bytes or samples.
        client: index of each step's client; int64 [steps].
        clients: count of clients.

    Returns:
        Intercepts (s), at least 0, and slopes (s per unit), NaN for clients whose amounts are too
        similar; float64 [2, clients].
    """
    lines = np.full((2, clients), math.nan)
    times = pd.DataFrame({"client": client, "amount": steps.amount, "took": took(steps)})
    for number, group in times.dropna(subset="took").groupby("client"):
        medians = group.groupby("amount")["took"].median()
        sizes = medians.index.to_numpy(float)
        if len(sizes) < 2 or sizes[-1] < _APART * sizes[0]:
            continue
        points = np.unique(np.linspace(0, len(sizes) - 1, 64).astype(np.int64))
        line = theilslopes(medians.to_numpy()[points], sizes[points], method="joint")
        lines[:, int(str(number))] = max(0.0, float(line.intercept)), float(line.slope)
    return lines


def _fit_latencies(
    tasks: Tasks, clients: int, protocol: Protocol, latency: float | None
) -> Floats | None:
    """Estimate the latency of each client's messages (s), unless it is known.

    Args:
        tasks: the tasks.
        clients: count of clients.
        protocol: protocol of the messages.
        latency: the latency of all clients (s), if it is known.

    Returns:
        Latencies (s), float64 [clients]; None if the messages are too similar in size.
    """
    if latency is not None:
        return np.full(clients, latency)
    down = _fit_lines(tasks.down, tasks.client, clients)
    up = _fit_lines(tasks.up, tasks.client, clients)
    intercept, slope = np.stack([down, up], axis=1)
    is_fitted = ~np.isnan(intercept)
    if not is_fitted.any():
        return None
    latencies = intercept.copy()
    if protocol.slow_start:  # the intercept contains round trips that delay large messages
        large_s = intercept + slope * _LARGE

        def is_low(trial: Floats) -> Flags:
            round_trip = 2 * trial + protocol.round_trip
            sending = protocol.sending_s(_LARGE, protocol.overhead / slope, round_trip)
            return np.asarray(trial + sending < large_s)

        latencies = _bisect(is_low, np.zeros_like(large_s), intercept)
    return _fill_unknown(pd.DataFrame(latencies).where(is_fitted).mean().to_numpy())


def _bisect(is_low: Callable[[Floats], Flags], low: Floats, high: Floats) -> Floats:
    """Find by bisection, element by element, the value at which ``is_low`` becomes false.

    Args:
        is_low: whether each value is below its boundary; bool [n].
        low: values below the boundaries; float64 [n].
        high: values above the boundaries; float64 [n].

    Returns:
        The boundaries; float64 [n].
    """
    for _ in range(60):
        middle = (low + high) / 2
        below = is_low(middle)
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    return np.asarray(low, dtype=np.float64)


def _fit_links(
    tasks: Tasks,
    direction: Direction,
    latency: Floats,
    protocol: Protocol,
    all_tasks: Tasks | None,
) -> _Links:
    """Estimate the clients' links and the server's link in one direction.

    Args:
        tasks: the tasks.
        direction: ``down`` or ``up``.
        latency: latency of each client (s); float64 [clients].
        protocol: protocol of the messages.
        all_tasks: tasks of all rounds; None for ``tasks``.
    """
    all_tasks = _with_messages(tasks if all_tasks is None else all_tasks, direction)
    tasks = _with_messages(tasks, direction)
    clients = len(latency)
    if not len(tasks):
        unknown = np.full(clients, math.nan)
        return _Links(unknown, math.inf, [], [])
    search = _LinkSearch(direction, tasks[direction], tasks.client, latency, protocol)
    capacity = search.capacity()
    notes = []
    rates = search.settle(capacity, len(tasks))[0]
    if np.isnan(rates).all():  # the durations depend only on windows and round trips
        rates = np.full(clients, _LARGE)
    if np.median(tasks[direction].amount) <= _FIRST_WINDOW:
        notes.append(
            f"messages {direction} are so small that a round trip holds them: they tell latency, not "
            "the links' rates"
        )
        return _Links(rates, capacity, [], notes)
    seen = rates
    together = capacity if capacity < math.inf else search.seen_together()
    hidden = np.where(np.isnan(seen), math.nan, np.fmax(seen, together))
    rivals = [(seen, together), (seen, math.inf)]
    if search.explains(hidden, together, seen, capacity):
        rivals.append((hidden, together))
    if capacity < math.inf:
        rivals.pop(1)  # a limit at the server was found
        if len(rivals) > 1:
            rates = hidden
            notes.append(
                f"the server's link {direction} hides what the clients' own links carry: only fewer "
                "of them at once tell"
            )
    elif search.looks_shared(rates):
        capacity = float(np.nansum(rates))
        notes.append(
            f"the {clients} clients all have the same rate {direction}, and always at once: taken "
            "for one link "
            f"that they share, of {capacity / 125e3:.4g} Mbit/s; only fewer of them at once "
            "tell what their own links carry"
        )
        rates = np.full(clients, capacity)
    else:
        every = _LinkSearch(direction, all_tasks[direction], all_tasks.client, latency, protocol)
        link = every.shared_link()
        if link is not None:
            capacity, rates, note = _share(link, rates, direction, protocol)
            notes.append(note)
            rivals = [(seen, capacity)]
    return _Links(rates, capacity, rivals, notes)


def _with_messages(tasks: Tasks, direction: Direction) -> Tasks:
    """Return the tasks with a message in a direction, in order of its start."""
    steps = tasks[direction]
    tasks = tasks[~np.isnan(steps.end) & (steps.amount > 0)]
    return tasks[np.argsort(tasks[direction].start, kind="stable")]


def _share(
    link: CommonLink, rates: Floats, direction: Direction, protocol: Protocol
) -> tuple[float, Floats, str]:
    """Return the capacity of the server's link, the clients' rates and a note, by a shared link.

    The rates of clients that the shared link limits are taken for its capacity.

    Args:
        link: the shared link.
        rates: rates that explain each client's messages alone (bytes/s); float64 [clients].
        direction: ``down`` or ``up``.
        protocol: protocol of the messages.
    """
    capacity = link.capacity * protocol.overhead
    note = (
        f"{link.members.sum()} of {len(rates)} clients share a link {direction}, of "
        f"{capacity / 125e3:.4g} Mbit/s: their messages' times vary by {link.spread:.1%}, the time "
        f"of all together by {link.spread_together:.1%} (by chance in {link.chance:.1%} of logs "
        "whose times are exchanged among rounds); only fewer of them at once tell what their own "
        "links carry"
    )
    return capacity, np.where(link.members, capacity, rates), note


def _find_rates(protocol: Protocol, sizes: Floats, sending: Floats, latency: Floats) -> Floats:
    """Return the link rates at which messages take given times.

    Args:
        protocol: protocol of the messages.
        sizes: sizes of the messages (bytes); float64 [messages].
        sending: durations without latency (s); float64 [messages].
        latency: latencies (s); float64 [messages].

    Returns:
        Rates (bytes/s), NaN if the protocol's window limits the duration at any rate; float64
        [messages].
    """
    low = sizes * protocol.overhead / sending
    if protocol.window == math.inf:
        return low
    round_trip = 2 * latency + protocol.round_trip
    high = low * _STEEP
    depends_on_rate = protocol.sending_s(sizes, high, round_trip) < sending

    def is_low(log_rate: Floats) -> Flags:
        return np.asarray(protocol.sending_s(sizes, np.exp(log_rate), round_trip) > sending)

    log_rates = _bisect(is_low, *np.log((low, high)))
    return np.where(depends_on_rate, np.exp(log_rates), math.nan)


class _LinkSearch:
    """Search for the links of a direction that explain the durations of a log's transfers.

    For each trial capacity of the server's link, the rates of clients are fitted by replaying the
    transfers in the simulator. Each client's rate is fitted to the median of the transfers that its
    own link delays. The capacity with the smallest errors, of single transfers and of whole busy
    periods, is the estimate. A limit is dropped if it explains little more than no limit.
    """

    def __init__(
        self, direction: Direction, steps: Steps, client: Ints, latency: Floats, protocol: Protocol
    ) -> None:
        self._direction = direction
        self._steps = steps
        self._client = client
        self._latency = latency
        self._protocol = protocol
        self._last_end = np.maximum.accumulate(steps.end)

    def capacity(self) -> float:
        """Estimate the capacity of the server's link (bytes/s); infinity if it limits nothing."""
        most = min(_MOST, len(self._client))
        if len(self._begins(most)) == most:
            return math.inf
        unlimited = self._error(math.inf, most)
        if unlimited <= _WORTH:
            return math.inf
        least = self._least(most)
        errors = {least * factor: self._error(least * factor, most) for factor in _WIDER}
        best = min(errors, key=errors.__getitem__)
        if errors[best] >= unlimited:
            return math.inf
        low = math.log(best / _WIDER[2])
        high = math.log(best * _WIDER[2])
        for _ in range(12):  # golden-section search
            lower = math.exp(high - _GOLDEN * (high - low))
            upper = math.exp(low + _GOLDEN * (high - low))
            errors[lower] = self._error(lower, most)
            errors[upper] = self._error(upper, most)
            if errors[lower] <= errors[upper]:
                high = math.log(upper)
            else:
                low = math.log(lower)
        best = min(errors, key=errors.__getitem__)
        if errors[best] < _BETTER * unlimited and errors[best] < unlimited - _WORTH:
            return best
        return math.inf

    def explains(
        self, rates: Floats, capacity: float, fitted_rates: Floats, fitted_capacity: float
    ) -> bool:
        """Return whether links explain the times of transfers nearly as well as the fitted ones.

        Args:
            rates: rates of the clients' links (bytes/s), NaN if unknown; float64 [clients].
            capacity: capacity of the server's link (bytes/s).
            fitted_rates: fitted rates (bytes/s); float64 [clients].
            fitted_capacity: fitted capacity of the server's link (bytes/s).
        """
        error = self._error_of(rates, capacity)
        fitted_error = self._error_of(fitted_rates, fitted_capacity)
        return error <= fitted_error * _AS_WELL + _WORTH

    def _error_of(self, rates: Floats, capacity: float) -> float:
        """Return the mean absolute error of the logarithms of durations over given links."""
        most = min(_MOST, len(self._client))
        steps = self._steps[:most]
        links = _fill_unknown(rates)
        server = dict.fromkeys(_DIRECTIONS, capacity)
        world = FittedWorld(links, links, self._latency, server, self._protocol)
        took_s = transfers(world, self._direction, steps, self._client[:most])
        return _log_error(took_s, took(steps))

    def seen_together(self) -> float:
        """Return the most that all clients were seen to send at a time (bytes/s)."""
        return self._least(min(_MOST, len(self._client)))

    def shared_link(self) -> CommonLink | None:
        """Return a link that clients share by a test against chance; None if there is no sign."""
        begins = self._begins(len(self._client))
        return find_shared_link(self._steps, self._client, self._latency, begins)

    def looks_shared(self, rates: Floats) -> bool:
        """Whether many clients have nearly the same rate, and always send at the same time.

        Args:
            rates: rates of the clients' links (bytes/s), NaN if unknown; float64 [clients].
        """
        rates = rates[~np.isnan(rates)]
        if len(rates) < _MANY or np.ptp(rates) > _ALIKE * np.median(rates):
            return False
        cohorts = np.split(self._client, self._begins(len(self._client))[1:])
        return min(len(np.unique(cohort)) for cohort in cohorts) == len(rates)

    def settle(self, capacity: float, most: int) -> tuple[Floats, Floats]:
        """Fit the rates of the clients' links, for a given capacity of the server's link.

        Args:
            capacity: capacity of the server's link (bytes/s), infinity allowed.
            most: count of transfers to replay, in order of time.

        Returns:
            Rates (bytes/s), float64 [clients], and durations of the replayed transfers (s), float64
            [most].
        """
        latency = self._latency[self._client]
        clients = len(self._latency)
        sending = np.maximum(took(self._steps) - latency, 1e-9)
        of_transfers = _find_rates(self._protocol, self._steps.amount, sending, latency)
        rates = _aggregate(of_transfers, self._client, clients)
        steps = self._steps[:most]
        client = self._client[:most]
        latency = latency[:most]
        real = sending[:most]
        if capacity == math.inf:
            round_trip = 2 * latency + self._protocol.round_trip
            sending = self._protocol.sending_s(steps.amount, rates[client], round_trip)
            return rates, latency + sending
        rates = np.minimum(rates, capacity)
        took_s = real
        for _ in range(_TURNS):
            links = np.where(np.isnan(rates), capacity, rates)
            world = FittedWorld(
                links, links, self._latency, dict.fromkeys(_DIRECTIONS, capacity), self._protocol
            )
            took_s = transfers(world, self._direction, steps, client)
            apart = np.log(np.maximum(took_s - latency, 1e-9) / real)
            # a transfer that the server's link holds up does not depend on the client's link
            moves = np.abs(apart) > _STILL
            change = np.nan_to_num(_aggregate(apart[moves], client[moves], clients))
            better = np.minimum(rates * np.exp(change), capacity)
            if np.nanmax(np.abs(np.log(better / rates))) < _STILL:
                break
            rates = better
        return rates, took_s

    def _error(self, capacity: float, most: int) -> float:
        """Return the error of a trial capacity: of single transfers, plus weighted of busy periods.

        Args:
            capacity: capacity of the server's link (bytes/s).
            most: count of transfers to replay.

        Returns:
            Mean absolute error of the logarithms of durations.
        """
        steps = self._steps[:most]
        took_s = self.settle(capacity, most)[1]
        begins = self._begins(most)
        first_start = steps.start[begins]
        busy_s = np.maximum.reduceat(steps.end, begins) - first_start
        replayed_s = np.maximum.reduceat(steps.start + took_s, begins) - first_start
        single = _log_error(took_s, took(steps))
        together = _log_error(replayed_s, busy_s)
        return float(single + _TOGETHER * together)

    def _begins(self, most: int) -> Ints:
        """Return the index of the first transfer of each busy period of overlapping transfers."""
        is_begin = self._steps.start[1:most] >= self._last_end[: most - 1]
        return np.concatenate(([0], 1 + np.flatnonzero(is_begin)))

    def _least(self, most: int) -> float:
        """Return a lower bound of the server's capacity (bytes/s): its busiest periods' rate."""
        rates = []
        for first, last in pairwise([*self._begins(most).tolist(), most]):
            steps = self._steps[first:last]
            order = np.argsort(steps.end, kind="stable")
            latency = self._latency[self._client[first:last]].min()
            wire = np.cumsum(steps.amount[order]) * self._protocol.overhead
            seconds = np.maximum(steps.end[order] - steps.start[0] - latency, 1e-9)
            rates.append((wire / seconds).max())
        return float(np.percentile(rates, 90))


def _log_error(stated: Floats, measured: Floats) -> float:
    """Return the mean absolute error of the logarithms of durations."""
    ratio = np.maximum(stated, 1e-9) / np.maximum(measured, 1e-9)
    return float(np.abs(np.log(ratio)).mean())
