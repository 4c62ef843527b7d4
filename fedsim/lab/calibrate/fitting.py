"""Estimates of clients' speeds and links from the log of a deployment, robust against outliers."""

import math
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import theilslopes

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.lab.calibrate.links import DIRECTIONS, LinkSearch
from fedsim.lab.calibrate.replay import FittedWorld
from fedsim.lab.calibrate.sharing import CommonLink
from fedsim.lab.calibrate.tasks import Steps, Tasks, durations
from fedsim.lab.calibrate.values import aggregate, bisect, fill_unknown
from fedsim.world.network import Direction
from fedsim.world.network.protocol import Fluid, Protocol

# ratio of the standard deviation to the median absolute deviation of a normal distribution
_SIGMA = 1.4826
_OUTLIER = 3.5  # standard deviations beyond which a time is an outlier
_NO_JITTER = 1e-3
_APART = 1.5  # least ratio of the largest amount to the smallest for which a line is fitted
_LARGE = 1e9  # size of a message that lasts much longer than its slow start (bytes)
_FAST = 1e9  # rate of links whose rates are unknown and limit nothing (bytes/s)
# upper bound of the count of sizes for a line; the fit's time grows with the square of the count
_MOST_POINTS = 64
_FIRST_WINDOW = 14_480  # bytes that TCP sends in the first round trip
_MBIT_PER_S = 125e3  # 1 Mbit/s (bytes/s)


class Fitted(NamedTuple):
    """Result of the fit of a world (clients' speeds and links) to a log.

    Attributes:
        world: the fitted world.
        rivals: worlds that explain the log about as well, with other rates of links; the fitted
            world is among them.
        overhead: part of a training's duration that does not depend on the samples, for each client
            (s), NaN if unknown; float64 [clients]. ``world`` has no such part; its speeds are lower
            instead.
        latency_is_known: whether latencies were given or fitted. If not, all latencies are 0 in
            ``world``, and the rates of its links are lower instead.
        samples: samples per epoch of each client; float64 [clients].
        epochs: median count of epochs of a training.
        tasks: count of tasks to which each client was fitted; int64 [clients].
        notes: sentences about unknown quantities, for users.
    """

    world: FittedWorld
    rivals: tuple[FittedWorld, ...]
    overhead: Floats
    latency_is_known: bool
    samples: Floats
    epochs: int
    tasks: Ints
    notes: tuple[str, ...]


class _Links(NamedTuple):
    """Links of the clients and of the server in one direction, fitted to a log.

    Attributes:
        rates: rates of the clients' links (bytes/s), NaN for clients without messages; float64
            [clients].
        capacity: rate of the server's link (bytes/s), infinity allowed.
        rivals: further pairs of ``rates`` and ``capacity`` that explain the log as well.
        notes: sentences for users on what the log does not show.
    """

    rates: Floats
    capacity: float
    rivals: list[tuple[Floats, float]]
    notes: list[str]

    @property
    def alternatives(self) -> list[tuple[Floats, float]]:
        """All pairs of rates and capacity that explain the log, the fitted pair first."""
        return [(self.rates, self.capacity), *self.rivals]


def fit(
    tasks: Tasks,
    clients: int,
    latency: float | None = None,
    protocol: Protocol | None = None,
    all_tasks: Tasks | None = None,
) -> Fitted:
    """Fit a world (clients' speeds and links) to tasks of a log.

    A client without a task gets the median of the other clients' values.

    Args:
        tasks: all or some tasks of the log.
        clients: count of clients.
        latency: latency of all clients (s); None to fit each client's latency.
        protocol: protocol of the messages, fluid by default. Messages are assumed to share links
            evenly.
        all_tasks: tasks of all rounds, for the test whether clients share a link; None to test with
            ``tasks``.

    Returns:
        The fitted world, the worlds that explain the log as well, and notes on unknown values.
    """
    if protocol is None:
        protocol = Fluid()
    # protocol for the fit, without the weights by which messages share a link unevenly
    even_protocol = protocol.model_copy(update={"weight_spread": 1.0, "late_weight": 1.0})
    speed, jitter = _fit_speeds(tasks, clients)
    fitted_latencies = _fit_latencies(tasks, clients, even_protocol, latency)
    latencies = np.zeros(clients) if fitted_latencies is None else fitted_latencies
    links: dict[Direction, _Links] = {}
    rates: dict[Direction, Floats] = {}
    notes = []
    for direction in DIRECTIONS:
        links[direction] = _fit_links(tasks, direction, latencies, even_protocol, all_tasks)
        rates[direction] = links[direction].rates
        notes += links[direction].notes
    # a direction without messages gets the rates of the opposite one
    for direction, opposite in permutations(DIRECTIONS, 2):
        if np.isnan(rates[direction]).all():
            rates[direction] = rates[opposite]
            notes.append(
                f"nothing tells the links {direction}: they are taken for those {opposite}"
            )
    world = FittedWorld(
        down=fill_unknown(rates["down"]),
        up=fill_unknown(rates["up"]),
        latency=latencies,
        server={direction: links[direction].capacity for direction in DIRECTIONS},
        protocol=protocol,
        speed=fill_unknown(speed),
        jitter=jitter,
    )
    fixed_s, _ = _fit_lines(tasks.train, tasks.client, clients)
    samples_of_tasks = tasks.train.amount / tasks.epochs  # NaN for a task without a training
    samples = fill_unknown(aggregate(samples_of_tasks, tasks.client, clients))
    epochs = max(1, int(np.median(tasks.epochs[~np.isnan(samples_of_tasks)])))
    return Fitted(
        world=world,
        rivals=_combine_links(world, links["down"], links["up"]),
        overhead=fixed_s,
        latency_is_known=fitted_latencies is not None,
        samples=np.maximum(1.0, np.round(samples)),
        epochs=epochs,
        tasks=np.bincount(tasks.client, minlength=clients),
        notes=tuple(notes),
    )


def _combine_links(world: FittedWorld, down: _Links, up: _Links) -> tuple[FittedWorld, ...]:
    """Return the worlds with each alternative of the links down and each of the links up.

    Args:
        world: the fitted world, which is the first result.
        down: links down, with further links that explain the log as well.
        up: links up, in the same form.
    """
    worlds = []
    for (down_rates, down_capacity), (up_rates, up_capacity) in product(
        down.alternatives, up.alternatives
    ):
        rival = _replace_links(world, "down", down_rates, down_capacity)
        worlds.append(_replace_links(rival, "up", up_rates, up_capacity))
    return tuple(worlds)


def _replace_links(
    world: FittedWorld, direction: Direction, rates: Floats, capacity: float
) -> FittedWorld:
    """Return a copy of a world with other links in one direction.

    Args:
        world: the fitted world.
        direction: ``down`` or ``up``.
        rates: rates of the clients' links (bytes/s); float64 [clients]. If all are NaN, ``world``
            is returned unchanged.
        capacity: rate of the server's link (bytes/s).
    """
    if np.isnan(rates).all():
        return world
    server = {**world.server, direction: capacity}
    if direction == "down":
        return world._replace(down=fill_unknown(rates), server=server)
    return world._replace(up=fill_unknown(rates), server=server)


def _fit_speeds(tasks: Tasks, clients: int) -> tuple[Floats, float]:
    """Estimate the speed of each client, and the jitter of an epoch.

    Durations of trainings are taken to be lognormal with the mean samples / speed. A task is left
    out as an outlier if it is further than ``_OUTLIER`` standard deviations from its client's
    median. The standard deviation is estimated from the median of absolute residuals.

    Returns:
        Speeds (samples/s), float64 [clients], and the coefficient of variation of an epoch's
        duration, 0 if it is tiny.
    """
    tasks = tasks[~np.isnan(tasks.train.end) & (durations(tasks.train) > 0)]
    client = tasks.client
    log_pace = np.log(durations(tasks.train) / tasks.train.amount)
    residuals = log_pace - aggregate(log_pace, client, clients, "median")[client]
    # corrects for the degrees of freedom that the clients' medians take
    correction = math.sqrt(len(residuals) / max(1, len(residuals) - len(np.unique(client))))
    sigma = _SIGMA * float(np.median(np.abs(residuals))) * correction
    # if most residuals are 0, ``sigma`` is 0, and rounding errors must not count as outliers
    is_inlier = np.abs(residuals) <= max(_OUTLIER * sigma, 1e-9)
    log_pace = log_pace[is_inlier]
    client = client[is_inlier]
    mean = aggregate(log_pace, client, clients, "mean")
    degrees_of_freedom = len(log_pace) - len(np.unique(client))
    if degrees_of_freedom > 0:
        sigma = math.sqrt(float(np.sum((log_pace - mean[client]) ** 2)) / degrees_of_freedom)
    # The coefficient of variation of a lognormal variable is sqrt(exp(sigma^2) - 1). A single epoch
    # varies sqrt(n) times as much as the mean of a task's n epochs.
    jitter = math.sqrt(math.expm1(sigma**2) * float(np.median(tasks.epochs)))
    # a speed is the inverse of the mean pace, which is exp(mean + sigma^2 / 2) if it is lognormal
    speeds = np.exp(-mean - sigma**2 / 2)
    if jitter <= _NO_JITTER:
        jitter = 0.0
    return speeds, jitter


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
    times = pd.DataFrame({"client": client, "amount": steps.amount, "seconds": durations(steps)})
    for name, group in times.dropna(subset="seconds").groupby("client"):
        medians = group.groupby("amount")["seconds"].median()
        sizes = medians.index.to_numpy(float)
        if len(sizes) < 2 or sizes[-1] < _APART * sizes[0]:
            continue
        # indices of all sizes or, if there are too many, of evenly spaced sizes
        points = np.unique(np.linspace(0, len(sizes) - 1, _MOST_POINTS).astype(np.int64))
        line = theilslopes(medians.to_numpy()[points], sizes[points], method="joint")
        client_index = int(str(name))
        lines[:, client_index] = max(0.0, float(line.intercept)), float(line.slope)
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
        Latencies (s), float64 [clients]; None if every client's messages are of similar size, so
        that latency and rate cannot be separated.
    """
    if latency is not None:
        return np.full(clients, latency)
    down = _fit_lines(tasks.down, tasks.client, clients)
    up = _fit_lines(tasks.up, tasks.client, clients)
    intercept, slope = np.stack([down, up], axis=1)  # float64 [directions, clients] each
    is_fitted = ~np.isnan(intercept)
    if not is_fitted.any():
        return None
    latencies = intercept.copy()
    if protocol.slow_start:  # the intercept contains round trips that delay large messages
        large_s = intercept + slope * _LARGE

        # whether the large message is faster by the protocol than by the fitted line
        def is_low(latencies: Floats) -> Flags:
            round_trip = 2 * latencies + protocol.round_trip
            sending_s = protocol.sending_s(_LARGE, protocol.overhead / slope, round_trip)
            return np.asarray(latencies + sending_s < large_s)

        latencies = bisect(is_low, np.zeros_like(large_s), intercept)
    means = pd.DataFrame(latencies).where(is_fitted).mean()  # means over both directions
    return fill_unknown(means.to_numpy())


def _fit_links(
    tasks: Tasks,
    direction: Direction,
    latency: Floats,
    protocol: Protocol,
    all_tasks: Tasks | None,
) -> _Links:
    """Estimate the rates of the clients' links and of the server's link in one direction.

    The first of these cases that the log shows decides:

    - There are no messages: all rates are NaN.
    - Messages are too small to tell rates.
    - The server's link limits transfers, by a search for its capacity.
    - All clients have the same rate, as if they shared a link.
    - Some clients share a link, by a permutation test. This link is taken for the server's link.
    - Each client is limited by its own link.

    Args:
        tasks: the tasks.
        direction: ``down`` or ``up``.
        latency: latency of each client (s); float64 [clients].
        protocol: protocol of the messages.
        all_tasks: tasks of all rounds, for the test whether clients share a link; None to test with
            ``tasks``.
    """
    all_tasks = _with_messages(tasks if all_tasks is None else all_tasks, direction)
    tasks = _with_messages(tasks, direction)
    if not len(tasks):
        unknown = np.full(len(latency), math.nan)
        return _Links(unknown, math.inf, [], [])
    search = LinkSearch(direction, tasks[direction], tasks.client, latency, protocol)
    capacity = search.fit_capacity()
    rates, _ = search.fit_rates(capacity, len(tasks))
    # no rate can be fitted if all durations depend only on windows and round trips
    if np.isnan(rates).all():
        rates = np.full(len(latency), _FAST)
    if np.median(tasks[direction].amount) <= _FIRST_WINDOW:
        note = (
            f"messages {direction} are so small that a round trip holds them: they tell latency, "
            "not the links' rates"
        )
        return _Links(rates, capacity, [], [note])
    if capacity < math.inf:
        return _limited_links(search, direction, rates, capacity)
    if search.are_rates_alike(rates):
        return _alike_links(search, direction, rates)
    search_of_all = LinkSearch(direction, all_tasks[direction], all_tasks.client, latency, protocol)
    link = search_of_all.find_shared_link()
    if link is not None:
        return _shared_links(link, direction, rates, protocol)
    return _Links(rates, math.inf, _unseen_limits(search, rates), [])


def _limited_links(
    search: LinkSearch, direction: Direction, rates: Floats, capacity: float
) -> _Links:
    """Return the fitted links if the server's link was found to limit transfers.

    If the log is explained as well by clients' links that are at least as fast as the server's
    link, the clients' own rates cannot be known. These faster links are then returned, with a note
    for the user.

    Args:
        search: the search that found the limit.
        direction: ``down`` or ``up``.
        rates: the least rates of the clients' links that explain the log (bytes/s); [clients].
        capacity: capacity of the server's link (bytes/s).
    """
    rivals = [(rates, capacity)]
    # rates of the clients' own links at which these are as fast as the server's link, or faster,
    # so that they limit nothing
    unlimiting_rates = np.where(np.isnan(rates), math.nan, np.fmax(rates, capacity))
    if not search.explains(unlimiting_rates, capacity, rates, capacity):
        return _Links(rates, capacity, rivals, [])
    note = (
        f"the server's link {direction} hides what the clients' own links carry: only fewer of "
        "them at once tell"
    )
    return _Links(unlimiting_rates, capacity, [*rivals, (unlimiting_rates, capacity)], [note])


def _alike_links(search: LinkSearch, direction: Direction, rates: Floats) -> _Links:
    """Return the fitted links if all clients have the same rate, so that they seem to share a link.

    The server's link gets the sum of the clients' rates as its capacity. The clients' own links get
    this capacity too, so that they limit no transfer.

    Args:
        search: the search that found the rates.
        direction: ``down`` or ``up``.
        rates: rates that explain the clients' messages without a shared link (bytes/s); float64
            [clients].
    """
    capacity = float(np.nansum(rates))
    note = (
        f"the {len(rates)} clients all have the same rate {direction}, and always at once: taken "
        f"for one link that they share, of {capacity / _MBIT_PER_S:.4g} Mbit/s; only fewer of them at "
        "once tell what their own links carry"
    )
    unlimiting_rates = np.full(len(rates), capacity)
    return _Links(unlimiting_rates, capacity, _unseen_limits(search, rates), [note])


def _unseen_limits(search: LinkSearch, rates: Floats) -> list[tuple[Floats, float]]:
    """Return alternative links, with or without a limit at the server, that fit the log as well.

    The alternatives, in this order, are:

    - The server's link limits nobody.
    - The server's link is just wide enough for the clients' own links.
    - The server's link is the only limit of the clients with the highest rate.
    - The server's link is the only limit of all clients.

    The last two are left out if the log contradicts them.

    Args:
        search: the search that found the rates.
        rates: rates that explain the clients' messages without a shared link (bytes/s), NaN if
            unknown; float64 [clients].

    Returns:
        For each alternative, rates of the clients' links (bytes/s; float64 [clients]) and capacity
        of the server's link (bytes/s).
    """
    undelaying_capacity = search.least_undelaying_capacity(rates)
    limits = [(rates, math.inf), (rates, undelaying_capacity)]
    is_highest = search.is_at_highest_rate(rates)
    if is_highest.any():
        unlimiting_rates = np.where(is_highest, undelaying_capacity, rates)
        limits.append((unlimiting_rates, undelaying_capacity))
    observed_rate = search.observed_total()
    unlimiting_rates = np.where(np.isnan(rates), math.nan, np.fmax(rates, observed_rate))
    if search.may_share(unlimiting_rates, observed_rate, rates):
        limits.append((unlimiting_rates, observed_rate))
    return limits


def _shared_links(
    link: CommonLink, direction: Direction, rates: Floats, protocol: Protocol
) -> _Links:
    """Return the fitted links of clients that were found to share a link.

    The shared link is taken for the server's link. A client that the shared link limits gets an own
    link of the same rate.

    Args:
        link: the shared link.
        direction: ``down`` or ``up``.
        rates: rates that explain the clients' messages without a shared link (bytes/s); float64
            [clients].
        protocol: protocol of the messages.
    """
    capacity = link.capacity * protocol.overhead
    note = (
        f"{link.members.sum()} of {len(rates)} clients share a link {direction}, of "
        f"{capacity / _MBIT_PER_S:.4g} Mbit/s: their messages' times vary by {link.spread:.1%}, the time "
        f"of all together by {link.spread_together:.1%} (by chance in {link.chance:.1%} of logs "
        "whose times are exchanged among rounds); only fewer of them at once tell what their own "
        "links carry"
    )
    rates_on_shared_link = np.where(link.members, capacity, rates)
    return _Links(rates_on_shared_link, capacity, [(rates, capacity)], [note])


def _with_messages(tasks: Tasks, direction: Direction) -> Tasks:
    """Return the tasks that have a finished message in a direction, sorted by its start.

    Args:
        tasks: the tasks of a log.
        direction: ``down`` or ``up``.
    """
    steps = tasks[direction]
    tasks = tasks[~np.isnan(steps.end) & (steps.amount > 0)]
    return tasks[np.argsort(tasks[direction].start, kind="stable")]
