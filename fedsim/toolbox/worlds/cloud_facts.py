"""Connections between regions of clouds: measurements, and rules for all other pairs of regions.

``cloud_regions.toml`` has measured connections with source, licence and date. ``CloudFacts`` fits
two rules to the measured connections, to estimate the connections between all other pairs of
regions. The rate (bytes/s) is the TCP window of the receiver's cloud divided by the round trip. The
round trip (s) is linear in the length of the route along submarine cables.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.files import read_toml
from fedsim.toolbox.worlds.cables import Cables, great_circle_km, read_cities
from fedsim.world.device_kinds import Figure

_TABLE = Path(__file__).with_name("cloud_regions.toml")
_LINUX_WINDOW = 3 * 2**20
"""TCP window of Linux by default (bytes), half of the receive buffer of 6 MiB.

Source: ``tcp_rmem`` and ``tcp_adv_win_scale`` in the kernel's ip-sysctl.rst.
"""
_MEASURED_S = 10.0  # length of a measurement (s); measured rates are means, slow start included
_LEAST_SHARE = 0.1  # share of the measured time that the rule leaves at least, after slow start
_NEARLY = 0.1  # a rule holds up to this share beyond the values that it was fitted to


class Connection(NamedTuple):
    """TCP connection from one region to another: its round trip time and its rate.

    Attributes:
        round_trip: round trip (s).
        rate: rate (bytes/s).
        measured: whether the rate was measured; False if a rule estimates it.
    """

    round_trip: float
    rate: float
    measured: bool = True


class Window(NamedTuple):
    """Rule for the rate of a TCP connection into a cloud: the cloud's window over the round trip.

    Attributes:
        bytes: size of the TCP window (bytes).
        slow_start: transmission time lost to slow start (s), for each second of round trip.
        fit: errors and valid range of the rule.
    """

    bytes: float
    slow_start: float
    fit: "Fit"

    def rate(self, round_trip: float) -> float:
        """Return the mean rate of a TCP connection over its first ten seconds (bytes/s).

        It is the TCP window divided by the round trip time, minus the loss by slow start.

        Args:
            round_trip: round trip time of the connection (s).
        """
        share = 1.0 - self.slow_start * round_trip / _MEASURED_S
        return self.bytes * max(share, _LEAST_SHARE) / round_trip


class RoundTripRule(NamedTuple):
    """Rule for the round trip time between two regions (s): a constant plus a time per kilometre.

    Attributes:
        fixed: constant part (s).
        per_km: seconds per kilometre of the route.
        fit: errors and valid range of the rule.
        parts: pairs of continents, such as {europe, east-asia}, whose connections were measured.
            The rule is less certain for any other pair.
    """

    fixed: float
    per_km: float
    fit: "Fit"
    parts: frozenset[frozenset[str]]


class Fit(NamedTuple):
    """Relative errors of a fitted rule on the measured pairs of regions, and its valid range.

    A rule is a function of one variable. It estimates the rate of a connection from its round trip
    time (s), or the round trip time from the length of the route (km). The valid range goes from
    the least to the greatest value of the variable over the measured pairs.

    Attributes:
        rows: count of measured pairs.
        mean: mean relative error.
        largest: largest relative error.
        least: least value of the rule's variable over the pairs.
        most: greatest value of the rule's variable over the pairs.
    """

    rows: int
    mean: float
    largest: float
    least: float
    most: float

    @classmethod
    def of(cls, predicted: Floats, measured: Floats, reach: Floats) -> "Fit":
        """Compute the errors and the valid range of a fitted rule.

        Args:
            predicted: the rule's value for each measured pair of regions, float64 [pairs].
            measured: the measured values, float64 [pairs].
            reach: value of the rule's variable (round trip time, or length of the route) for each
                pair, float64 [pairs].
        """
        errors = np.abs(predicted / measured - 1.0)
        return cls(
            rows=len(errors),
            mean=errors.mean().item(),
            largest=errors.max().item(),
            least=reach.min().item(),
            most=reach.max().item(),
        )

    def holds(self, value: float) -> bool:
        """Return whether a value is in the valid range of the rule, widened by 10 %.

        Args:
            value: value of the rule's variable: round trip time (s), or length of the route (km).
        """
        return self.least * (1 - _NEARLY) <= value <= self.most * (1 + _NEARLY)

    @property
    def error(self) -> str:
        """Text with the errors of the estimates on the pairs of regions that were measured (%).

        The text has the mean and the largest relative error, or the error of a single pair.
        """
        if self.rows == 1:
            return f"{100 * self.mean:.0f} % off on the one pair that was measured"
        return (
            f"{100 * self.mean:.0f} % off on the mean of its {self.rows} pairs, "
            f"{100 * self.largest:.0f} % at most"
        )


class CloudFacts:
    """Measured TCP connections between regions of clouds, and rules that estimate all others.

    An instance reads ``cloud_regions.toml`` and fits the rules. ``connection`` returns the
    connection of a pair of regions.

    Attributes:
        sites: region -> its city.
        source: two texts: the source with its licence, and the date of the measurements.
        measured: (sender's region, receiver's region) -> connection.
        rate_rules: cloud -> rule for the rate of a connection into the cloud, fitted by least
            squares of relative errors. Azure's rule is not fitted: its window is Linux's default
            receive buffer, and its loss by slow start is as fitted for GCP, whose window has this
            size.
        round_trip_rules: two rules for the round trip from the length of the route along submarine
            cables, fitted by least squares of relative errors: True -> between two regions of AWS,
            False -> between any others.
    """

    def __init__(self) -> None:
        """Read the table of measurements, whose rows give round trips in ms and rates in Mbit/s."""
        table = read_toml(_TABLE)
        self.source = f"{table['source']}, {table['licence']}", table["date"]
        self.sites = read_cities(table["sites"])
        self._cables = Cables(read_cities(table["hubs"]).values(), table["cables"])
        self.measured: dict[tuple[str, str], Connection] = {}
        for source, target, ms, mbit in table["measured"]:
            self.measured[source, target] = Connection(ms / 1e3, mbit * 1e6 / 8)
        self._into_azure: list[Connection] = []
        for _, _, ms, mbit in table["azure"]:
            self._into_azure.append(Connection(ms / 1e3, mbit * 1e6 / 8))
        self.fit()

    def fit(self) -> None:
        """Fit ``rate_rules`` and ``round_trip_rules`` to the connections in ``measured``.

        The constructor calls this method. It must be called again after a change of ``measured``.
        """
        clouds = sorted({cloud_of(name) for name in self.sites})
        self.rate_rules = {cloud: self._fit_window(cloud) for cloud in clouds if cloud != "azure"}
        self.rate_rules["azure"] = self._default_window(self.rate_rules["gcp"])
        self.round_trip_rules = {within: self._fit_round_trip(within) for within in (False, True)}

    def _fit_window(self, cloud: str) -> Window:
        """Fit the rule for the rate of connections into a cloud: the TCP window W and the loss L.

        The model is rate x r = W - L r / 10 s for a round trip r. L is lost to slow start, and
        ``Window.slow_start`` is L / W.
        """
        connections = []
        for (_, target), connection in self.measured.items():
            if cloud_of(target) == cloud:
                connections.append(connection)
        round_trips = np.array([connection.round_trip for connection in connections])
        # rate x r: the mean count of bytes that are under way
        flight = round_trips * np.array([connection.rate for connection in connections])
        # the columns of the two constants W and L in the model
        columns = np.stack([np.ones(len(connections)), -round_trips / _MEASURED_S], axis=1)
        constants = _least_squares(columns, flight)
        fit = Fit.of(columns @ constants, flight, round_trips)
        size, loss = constants.tolist()
        return Window(size, loss / size, fit)

    def _default_window(self, fitted: Window) -> Window:
        """Return the rule for the rate of connections into Azure.

        The window is Linux's default receive buffer, and not fitted. The errors of the rule are
        computed on the measured connections into Azure.

        Args:
            fitted: the rule for a cloud whose machines have the same buffer; its loss by slow start
                is used.
        """
        rule = fitted._replace(bytes=_LINUX_WINDOW)
        round_trips = np.array([connection.round_trip for connection in self._into_azure])
        rates = np.array([connection.rate for connection in self._into_azure])
        predicted = np.array([rule.rate(round_trip) for round_trip in round_trips])
        return rule._replace(fit=Fit.of(predicted, rates, round_trips))

    def _fit_round_trip(self, within: bool) -> RoundTripRule:
        """Fit round trip = ``fixed`` + ``per_km`` x route length, to pairs within AWS or all others."""
        pairs = [pair for pair in self.measured if _within_aws(*pair) == within]
        round_trips = np.array([self.measured[pair].round_trip for pair in pairs])
        lengths = np.array([self.way_km(*pair) for pair in pairs])
        columns = np.stack([np.ones(len(pairs)), lengths], axis=1)
        constants = _least_squares(columns, round_trips)
        fit = Fit.of(columns @ constants, round_trips, lengths)
        fixed, per_km = constants.tolist()
        return RoundTripRule(fixed, per_km, fit, frozenset(self._parts(*pair) for pair in pairs))

    def _parts(self, source: str, target: str) -> frozenset[str]:
        """Return the set of the two regions' continents, such as {europe, east-asia}."""
        return frozenset({self.sites[source].part, self.sites[target].part})

    def figures_of(self, name: str) -> dict[str, Figure]:
        """Describe the connections from a region to each other region, with their sources.

        Args:
            name: the region, such as ``aws:eu-west-1``.

        Returns:
            Other region -> text with round trip and rate, source and date; measured connections
            come first.
        """
        publication, date = self.source
        estimate = 'estimate: by the rules of network.kind "regions"'
        connections = {}
        for target in self.sites:
            if target != name:
                connections[target] = self.connection(name, target)
        figures = {}
        measured_first = sorted(connections.items(), key=lambda item: not item[1].measured)
        for target, connection in measured_first:
            rate = connection.rate * 8 / 1e6
            text = f"{1e3 * connection.round_trip:.1f} ms, {rate:.1f} Mbit/s"
            source = publication if connection.measured else estimate
            figures[target] = Figure(text, source, date)
        return figures

    def way_km(self, source: str, target: str) -> float:
        """Return the length of the route between two regions along submarine cables (km)."""
        return self._cables.way_km(self.sites[source], self.sites[target])

    def great_circle_km(self, source: str, target: str) -> float:
        """Return the great-circle distance between two regions (km)."""
        return great_circle_km(self.sites[source], self.sites[target])

    def connection(self, source: str, target: str) -> Connection:
        """Return the connection between two regions: measured, or estimated by fitted rules.

        If only the opposite direction was measured, the measured round trip is used. Between two
        regions of one cloud the measured rate is used too; between two clouds the rate is estimated
        by the rule for the receiver's cloud.

        Args:
            source: the region of the sender.
            target: the region of the receiver.
        """
        if (source, target) in self.measured:
            return self.measured[source, target]
        reverse = self.measured.get((target, source))
        if reverse is None:
            return self.estimate(source, target)
        if cloud_of(source) == cloud_of(target):
            return reverse
        rate = self.rate_rules[cloud_of(target)].rate(reverse.round_trip)
        return Connection(reverse.round_trip, rate, measured=False)

    def estimate(self, source: str, target: str) -> Connection:
        """Estimate the connection from one region to another by the rules, even if it was measured.

        Args:
            source: the region of the sender.
            target: the region of the receiver.
        """
        rule = self.round_trip_rules[_within_aws(source, target)]
        round_trip = rule.fixed + rule.per_km * self.way_km(source, target)
        rate = self.rate_rules[cloud_of(target)].rate(round_trip)
        return Connection(round_trip, rate, measured=False)

    def rules_for(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """Describe the rules that estimate connections between regions without a measurement.

        Args:
            pairs: (sender's region, receiver's region).

        Returns:
            One sentence for each rule that the pairs need: the round trip times or the lengths of
            routes for which the rule was fitted to measurements, and its relative error there.
        """
        ruled = [pair for pair in pairs if not self.connection(*pair).measured]
        lines = []
        for cloud in sorted({cloud_of(target) for _, target in ruled}):
            fit = self.rate_rules[cloud].fit
            reach = f"{1e3 * fit.least:.0f} to {1e3 * fit.most:.0f} ms"
            if fit.rows == 1:
                reach = f"{1e3 * fit.least:.0f} ms"
            lines.append(
                f"rates into {cloud} follow a rule for round trips of {reach}: {fit.error}"
            )
        unmeasured = [pair for pair in ruled if pair[::-1] not in self.measured]
        for within in sorted({_within_aws(*pair) for pair in unmeasured}):
            fit = self.round_trip_rules[within].fit
            where = "within aws" if within else "to, from and within other clouds"
            reach = f"{fit.least:,.0f} to {fit.most:,.0f} km"
            lines.append(f"round trips {where} follow a rule for {reach}: {fit.error}")
        return lines

    def outside_of_rules(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """List the connections that a rule estimates outside the range to which it was fitted.

        Args:
            pairs: (sender's region, receiver's region).

        Returns:
            One text for each such pair: the regions, and the reasons, such as a longer round trip.
        """
        lines = []
        for source, target in pairs:
            connection = self.connection(source, target)
            if connection.measured:
                continue
            reasons = []
            if not self.rate_rules[cloud_of(target)].fit.holds(connection.round_trip):
                reasons.append(f"its round trip is {1e3 * connection.round_trip:.0f} ms")
            if (target, source) not in self.measured:
                rule = self.round_trip_rules[_within_aws(source, target)]
                length = self.way_km(source, target)
                parts = self._parts(source, target)
                if not rule.fit.holds(length):
                    reasons.append(f"its way is {length:,.0f} km")
                if parts not in rule.parts:
                    reasons.append(f"no pair of {' and '.join(sorted(parts))} was measured")
            if reasons:
                lines.append(f"{source} to {target}: {', '.join(reasons)}")
        return lines


def _least_squares(columns: Floats, values: Floats) -> Floats:
    """Fit ``columns @ constants`` to ``values`` by least squares of relative errors.

    Args:
        columns: the variables of each measurement, float64 [rows, constants].
        values: the measured values, float64 [rows].

    Returns:
        The fitted constants, float64 [constants].
    """
    targets = np.ones(len(values))
    constants, *_ = np.linalg.lstsq(columns / values[:, None], targets, rcond=None)
    return np.asarray(constants)


def cloud_of(region: str) -> str:
    """Return the cloud of a region: ``gcp`` for ``gcp:us-central1``."""
    return region.partition(":")[0]


def _within_aws(source: str, target: str) -> bool:
    return cloud_of(source) == cloud_of(target) == "aws"


@cache
def cloud_facts() -> CloudFacts:
    """Return the measured connections between regions of clouds and the rules fitted to them.

    The file ``cloud_regions.toml`` is read once per process; later calls return the same object.
    """
    return CloudFacts()
