"""Search for the rates of clients' links and the server's link that explain a log's durations."""

import math
from itertools import pairwise

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.lab.calibrate.replay import FittedWorld, replay_transfers
from fedsim.lab.calibrate.sharing import CommonLink, find_shared_link
from fedsim.lab.calibrate.tasks import Steps, durations
from fedsim.lab.calibrate.values import aggregate, bisect, fill_unknown
from fedsim.world.network import Direction
from fedsim.world.network.protocol import Protocol

DIRECTIONS: tuple[Direction, ...] = ("down", "up")
# The search for the clients' rates behind a shared link ends after this count of iterations, or if
# the logarithms of rates and durations change by less than this tolerance.
_MOST_ITERATIONS = 12
_TOLERANCE = 1e-3
_MOST_TRANSFERS = 400  # upper bound of the transfers that the search replays
# trial capacities of a server's link, as factors on the least possible capacity
_TRIAL_FACTORS = (1.0, 1.1, 1.25, 1.5, 2.0)
_BRACKET = 1.25  # factor around the best trial capacity within which the search goes on
# A limited link of the server is kept only if its error is less than _BETTER times the error
# without a limit, and less than that error minus _LEAST_GAIN.
_BETTER = 0.9
_LEAST_GAIN = 0.005
# other links explain a log too if their error is at most _AS_WELL times the fitted error, plus
# _LEAST_GAIN
_AS_WELL = 1.3
# weight of the error of a busy period relative to a transfer's, as a round waits for the period's
# end
_BUSY_WEIGHT = 3.0
# Real transfers do not share a link evenly, but replayed transfers do. So the error with one shared
# link may exceed the error with separate links by this value (mean absolute error of logarithms; in
# scenarios/validation 0.02 to 0.17).
_UNEVEN = 0.15
_SECTIONS = 12  # steps of the search around the best trial capacity
_GOLDEN = (math.sqrt(5) - 1) / 2
_LEAST_S = 1e-9  # least duration (s), so that no ratio of durations is infinite
_STEEP = 1e3  # greatest ratio of a fitted rate to the mean rate of a message
# at least _MANY clients whose rates differ by less than _ALIKE are taken to share one link
_ALIKE = 0.03
_MANY = 5


def find_rates(protocol: Protocol, sizes: Floats, sending: Floats, latency: Floats) -> Floats:
    """Return the link rate at which each message takes its measured time if it has the whole link.

    Args:
        protocol: protocol of the messages.
        sizes: sizes of the messages (bytes); float64 [messages].
        sending: measured durations without latency (s); float64 [messages].
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

    log_rates = bisect(is_low, *np.log((low, high)))
    return np.where(depends_on_rate, np.exp(log_rates), math.nan)


class LinkSearch:
    """Search for the rates of all links in one direction that explain a log's transfers.

    Each client has a link of its own, and all transfers share the server's link. The steps are:

    - Several capacities of the server's link are tried.
    - For each capacity, the transfers are replayed in the simulator, and each client's rate is
      changed until its transfers take the logged times.
    - The error of a capacity is how much replayed and logged durations differ, of transfers and of
      busy periods. A busy period is a time in which at least one transfer is always under way.
    - The capacity with the least error is the estimate. It is infinite if an unlimited link has
      hardly a greater error.

    Args:
        direction: ``down`` to the clients, ``up`` to the server.
        steps: transfers of the log in this direction.
        client: index of each transfer's client; int64 [steps].
        latency: latencies of the clients (s); float64 [clients].
        protocol: protocol of the messages.
    """

    def __init__(
        self, direction: Direction, steps: Steps, client: Ints, latency: Floats, protocol: Protocol
    ) -> None:
        self._direction = direction
        self._steps = steps
        self._client = client
        self._latency = latency
        self._protocol = protocol
        # the latest end of each transfer and of all transfers before it (s); float64 [steps]
        self._last_end = np.maximum.accumulate(steps.end)

    def fit_capacity(self) -> float:
        """Return the fitted rate of the server's link (bytes/s); infinity if it limits nothing."""
        count = self._replayed_count
        if len(self._busy_period_starts(count)) == count:  # no two transfers are at the same time
            return math.inf
        unlimited_error = self._fitted_error(math.inf, count)
        if unlimited_error <= _LEAST_GAIN:  # the clients' own links explain the durations
            return math.inf
        least = self._busy_rate(count)
        errors = {}  # capacity -> error
        for factor in _TRIAL_FACTORS:
            errors[least * factor] = self._fitted_error(least * factor, count)
        best = min(errors, key=errors.__getitem__)
        if errors[best] >= unlimited_error:
            return math.inf
        errors.update(self._errors_near(best, count))
        best = min(errors, key=errors.__getitem__)
        # by chance a limit fits a little better than no limit, so it has to fit much better
        most_error = min(_BETTER * unlimited_error, unlimited_error - _LEAST_GAIN)
        if errors[best] < most_error:
            return best
        return math.inf

    def _errors_near(self, capacity: float, count: int) -> dict[float, float]:
        """Search near a capacity of the server's link for the one with the least error.

        The search is a golden-section search over the logarithm of the capacity.

        Args:
            capacity: the capacity (bytes/s).
            count: count of transfers to replay.

        Returns:
            Dict from each capacity that was tried (bytes/s) to its error.
        """
        errors = {}
        low = math.log(capacity / _BRACKET)
        high = math.log(capacity * _BRACKET)
        for _ in range(_SECTIONS):
            lower = math.exp(high - _GOLDEN * (high - low))
            upper = math.exp(low + _GOLDEN * (high - low))
            errors[lower] = self._fitted_error(lower, count)
            errors[upper] = self._fitted_error(upper, count)
            if errors[lower] <= errors[upper]:
                high = math.log(upper)
            else:
                low = math.log(lower)
        return errors

    @property
    def _replayed_count(self) -> int:
        """Count of transfers to replay: the first of the log, at most ``_MOST_TRANSFERS``."""
        return min(_MOST_TRANSFERS, len(self._client))

    def explains(
        self, rates: Floats, capacity: float, fitted_rates: Floats, fitted_capacity: float
    ) -> bool:
        """Return whether given links explain the log's durations nearly as well as fitted links.

        The error of links is the mean absolute difference of the logarithms of replayed and logged
        durations. The given links explain the log if their error is at most 1.3 times the error of
        the fitted links, plus 0.005.

        Args:
            rates: given rates of the clients' links (bytes/s), NaN if unknown; float64 [clients].
            capacity: given capacity of the server's link (bytes/s).
            fitted_rates: fitted rates of the clients' links (bytes/s); float64 [clients].
            fitted_capacity: fitted capacity of the server's link (bytes/s).
        """
        error = self._replay_error(rates, capacity)
        fitted_error = self._replay_error(fitted_rates, fitted_capacity)
        return error <= fitted_error * _AS_WELL + _LEAST_GAIN

    def may_share(self, rates: Floats, capacity: float, own_rates: Floats) -> bool:
        """Return whether one link that all clients share may explain the transfers' durations.

        The transfers are replayed over the shared link, and over the clients' own links. Replayed
        transfers share a link evenly and real ones do not. So the error of the durations may be
        greater with the shared link than with own links, by up to 0.15 (mean absolute difference of
        the logarithms of replayed and logged durations).

        Args:
            rates: rates of the clients' links (bytes/s), NaN if unknown; float64 [clients].
            capacity: capacity of the link that they share (bytes/s).
            own_rates: rates of the clients' links that explain the messages without a shared link
                (bytes/s); float64 [clients].
        """
        separate_error = self._replay_error(own_rates, math.inf)
        return self._replay_error(rates, capacity) <= separate_error + _UNEVEN

    def least_undelaying_capacity(self, rates: Floats) -> float:
        """Return the least capacity of the server's link (bytes/s) at which it delays no client.

        It is the largest sum of the rates of clients that send in the same busy period, a time
        without a break between transfers.

        Args:
            rates: rates of the clients' links (bytes/s), NaN if unknown; float64 [clients].
        """
        sums = [np.nansum(rates[clients]) for clients in self._clients_at_once()]
        return float(max(sums))

    def _clients_at_once(self) -> list[Ints]:
        """Return the indices of the clients that send in each busy period, each client once.

        A busy period is a time in which at least one transfer is always under way.
        """
        cohorts = np.split(self._client, self._busy_period_starts(len(self._client))[1:])
        return [np.unique(cohort) for cohort in cohorts]

    def is_at_highest_rate(self, rates: Floats) -> Flags:
        """Find the clients whose rates may be alike because one shared link limits them all.

        They are the clients whose rates are within 3 % of the highest rate.

        Args:
            rates: rates of the clients' links (bytes/s), NaN if unknown; float64 [clients].

        Returns:
            Whether each client is one of them; bool [clients]. All are False if there are fewer
            than five such clients, or if one of them sends nothing in some busy period (a time
            without a break between transfers).
        """
        is_highest = np.nan_to_num(rates) >= (1 - _ALIKE) * np.nanmax(rates)
        members = np.flatnonzero(is_highest)
        always_at_once = all(np.isin(members, clients).all() for clients in self._clients_at_once())
        if len(members) < _MANY or not always_at_once:
            return np.zeros(len(rates), dtype=bool)
        return is_highest

    def _replay_error(self, rates: Floats, capacity: float) -> float:
        """Return the error of the durations of transfers that are replayed over given links.

        Args:
            rates: rates of the clients' links (bytes/s); float64 [clients].
            capacity: capacity of the server's link (bytes/s).

        Returns:
            The mean absolute difference of the logarithms of replayed and logged durations.
        """
        count = self._replayed_count
        steps = self._steps[:count]
        links = fill_unknown(rates)
        server = dict.fromkeys(DIRECTIONS, capacity)
        world = FittedWorld(links, links, self._latency, server, self._protocol)
        replayed_s = replay_transfers(world, self._direction, steps, self._client[:count])
        return _log_error(replayed_s, durations(steps))

    def observed_total(self) -> float:
        """Return the total rate (bytes/s) that the transfers of all clients together have reached.

        A busy period is a time in which at least one transfer is always under way. The rate of a
        busy period is the greatest ratio of the bytes that have arrived to the time since its
        begin. The result is the 90th percentile of these rates.
        """
        return self._busy_rate(self._replayed_count)

    def find_shared_link(self) -> CommonLink | None:
        """Test by permutations of the transfers' times whether clients share a link.

        Returns:
            The shared link; None if the test finds none.
        """
        begins = self._busy_period_starts(len(self._client))
        return find_shared_link(self._steps, self._client, self._latency, begins)

    def are_rates_alike(self, rates: Floats) -> bool:
        """Whether the clients' rates may be alike because they share one link.

        This is so if there are at least five clients with a known rate, if these rates differ by at
        most 3 % of their median, and if all these clients send in each busy period (time without a
        break between transfers).

        Args:
            rates: rates of the clients' links (bytes/s), NaN if unknown; float64 [clients].
        """
        rates = rates[~np.isnan(rates)]
        if len(rates) < _MANY or np.ptp(rates) > _ALIKE * np.median(rates):
            return False
        return min(len(clients) for clients in self._clients_at_once()) == len(rates)

    def fit_rates(self, capacity: float, count: int) -> tuple[Floats, Floats]:
        """Fit the rates of the clients' links to a given capacity of the server's link.

        Each rate is changed until the replayed transfers of its client take the logged time.

        Args:
            capacity: capacity of the server's link (bytes/s), infinity allowed.
            count: count of transfers to replay, in order of time.

        Returns:
            Rates (bytes/s), float64 [clients], and durations of the replayed transfers (s), float64
            [count].
        """
        latency = self._latency[self._client]
        sending_s = np.maximum(durations(self._steps) - latency, _LEAST_S)
        alone = find_rates(self._protocol, self._steps.amount, sending_s, latency)
        rates = aggregate(alone, self._client, len(self._latency))
        if capacity == math.inf:
            return rates, self._unshared_times(rates, count)
        return self._iterate(np.minimum(rates, capacity), capacity, sending_s[:count])

    def _unshared_times(self, rates: Floats, count: int) -> Floats:
        client = self._client[:count]
        latency = self._latency[client]
        round_trip = 2 * latency + self._protocol.round_trip
        sizes = self._steps[:count].amount
        return latency + self._protocol.sending_s(sizes, rates[client], round_trip)

    def _iterate(self, rates: Floats, capacity: float, sending_s: Floats) -> tuple[Floats, Floats]:
        """Replay transfers and correct the rates of the clients' links until they hardly change.

        Args:
            rates: initial rates of the clients' links (bytes/s); float64 [clients].
            capacity: capacity of the server's link (bytes/s).
            sending_s: logged durations of the transfers to replay, without latency (s).

        Returns:
            Rates (bytes/s), float64 [clients], and durations of the replayed transfers (s).
        """
        count = len(sending_s)
        client = self._client[:count]
        latency = self._latency[client]
        replayed_s = sending_s
        for _ in range(_MOST_ITERATIONS):
            # a client of unknown rate is limited by the server's link alone
            links = np.where(np.isnan(rates), capacity, rates)
            world = FittedWorld(
                links, links, self._latency, dict.fromkeys(DIRECTIONS, capacity), self._protocol
            )
            replayed_s = replay_transfers(world, self._direction, self._steps[:count], client)
            log_error = np.log(np.maximum(replayed_s - latency, _LEAST_S) / sending_s)
            # Transfers without an error do not correct a rate. The server's link may hold them up,
            # and then their duration does not depend on the client's link.
            has_error = np.abs(log_error) > _TOLERANCE
            # a client's median; NaN, and then no correction, if none of its transfers has an error
            correction = aggregate(log_error[has_error], client[has_error], len(rates))
            next_rates = np.minimum(rates * np.exp(np.nan_to_num(correction)), capacity)
            if np.nanmax(np.abs(np.log(next_rates / rates))) < _TOLERANCE:
                break
            rates = next_rates
        return rates, replayed_s

    def _fitted_error(self, capacity: float, count: int) -> float:
        """Replay transfers with an assumed capacity of the server's link, and compare durations.

        Args:
            capacity: capacity of the server's link (bytes/s).
            count: count of transfers to replay.

        Returns:
            The mean absolute difference of the logarithms of replayed and logged durations. Two
            such means are added: of the transfers and, with a weight, of the busy periods (times
            in which at least one transfer is always under way).
        """
        steps = self._steps[:count]
        _, replayed_s = self.fit_rates(capacity, count)
        begins = self._busy_period_starts(count)
        first_start = steps.start[begins]
        # ``reduceat`` gives the latest end of each busy period
        busy_s = np.maximum.reduceat(steps.end, begins) - first_start
        replayed_busy_s = np.maximum.reduceat(steps.start + replayed_s, begins) - first_start
        transfer_error = _log_error(replayed_s, durations(steps))
        period_error = _log_error(replayed_busy_s, busy_s)
        return float(transfer_error + _BUSY_WEIGHT * period_error)

    def _busy_period_starts(self, count: int) -> Ints:
        """Return the index of the first transfer of each busy period; int64 [busy periods].

        A busy period is a time in which at least one transfer is always under way.

        Args:
            count: count of transfers to use, in order of time.
        """
        is_start = self._steps.start[1:count] >= self._last_end[: count - 1]
        return np.concatenate(([0], 1 + np.flatnonzero(is_start)))

    def _busy_rate(self, count: int) -> float:
        """Return a lower bound of the rate (bytes/s) of the link that all transfers share.

        A busy period is a time in which at least one transfer is always under way. Its rate is the
        greatest ratio of the bytes that have arrived to the time since its start. The result is the
        90th percentile of these rates.

        Args:
            count: count of transfers to use, in order of time.
        """
        rates = []
        for first, last in pairwise([*self._busy_period_starts(count).tolist(), count]):
            steps = self._steps[first:last]
            order = np.argsort(steps.end, kind="stable")
            latency = self._latency[self._client[first:last]].min()
            # bytes that have arrived, and elapsed time, at the end of each transfer
            wire_bytes = np.cumsum(steps.amount[order]) * self._protocol.overhead
            elapsed_s = np.maximum(steps.end[order] - steps.start[0] - latency, _LEAST_S)
            rates.append((wire_bytes / elapsed_s).max())
        return float(np.percentile(rates, 90))


def _log_error(replayed: Floats, logged: Floats) -> float:
    """Return the mean absolute difference of the logarithms of two arrays of durations (s)."""
    ratio = np.maximum(replayed, _LEAST_S) / np.maximum(logged, _LEAST_S)
    return float(np.abs(np.log(ratio)).mean())
