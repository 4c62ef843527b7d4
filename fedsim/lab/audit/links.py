"""Can the network have carried it?

The folder tells when each message began and ended, not how its rate went. So the check is whether
each link could have carried its messages in some way (``capacity``): each device's own, and those
that devices share. The scenario says how the links of a network are shared; of one from a file, the
run has left its links and routes in a file of the folder.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedsim.common.arrays import Flags, Floats
from fedsim.common.errors import RunFolderError
from fedsim.common.units import BytesPerSecond, Seconds
from fedsim.lab.audit.evidence import NOTHING, Evidence, findings, grain_s, numbered, read
from fedsim.records import folder as files

SLACK = 1 + 1e-9  # rounding error of a rate


class Stretch(NamedTuple):
    """A time (s) in which a link would have had to carry more than it can: so many bytes of
    messages wholly within.
    """

    begin: float
    end: float
    carried: float


def slack_s(end: Floats) -> Floats:
    """Time that rounding may take from each message (s), a tie with a deadline included; float64
    [messages].
    """
    return 12 * grain_s(end)


class Rate(NamedTuple):
    """Capacity of a link that changes with time."""

    since: Floats  # from when on (s), ascending, the first 0; float64 [n]
    values: Floats  # bytes/s, infinity allowed; float64 [n]

    def carried(self, until: Floats) -> Floats:
        """The most bytes from 0 to each of some times (s), those of times of infinite rate left
        out; float64 [times].
        """
        values = np.where(np.isinf(self.values), 0.0, self.values)
        sums = np.append(0.0, np.cumsum(values[:-1] * np.diff(self.since)))
        place = np.searchsorted(self.since, until, side="right") - 1
        return np.asarray(sums[place] + values[place] * (until - self.since[place]))

    def is_unlimited(self, begin: Floats, end: Floats) -> Flags:
        """Whether the rate is infinite at some instant from ``begin`` to ``end`` (s); bool, as
        many.
        """
        free = np.append(0, np.cumsum(np.isinf(self.values)))
        first, last = (np.searchsorted(self.since, times, side="right") for times in (begin, end))
        return np.asarray(free[last] > free[np.maximum(first - 1, 0)])

    def overfull(self, begin: Floats, end: Floats, size: Floats) -> Stretch | None:
        """A stretch that the link cannot have carried, the one that ends first; None where there
        is none.

        ``begin``, ``end`` (s) and ``size`` (bytes) are of its messages; float64 [messages] each.
        """
        due = end + slack_s(end)
        bound = np.flatnonzero((size > 0) & ~self.is_unlimited(begin, due))
        order = bound[np.argsort(begin[bound], kind="stable")]
        begin, end, due, size = (column[order] for column in (begin, end, due, size))
        # on a clock of carried bytes its rate is always 1
        opens = self.carried(begin)
        closes = self.carried(due)
        for late in _missed(opens, closes, size / SLACK):
            # from the last start on: the addition of each further message
            within = np.flatnonzero(closes <= late)[::-1]
            carried = np.cumsum(size[within])
            excess = carried - SLACK * (late - opens[within])
            worst = int(excess.argmax())
            if excess[worst] > 0:  # not for the rounding error of a sum of many times
                return Stretch(
                    begin.item(within[worst]), end[within].max().item(), carried.item(worst)
                )
        return None


def _missed(begin: Floats, due: Floats, need: Floats) -> Iterator[float]:
    """Due times of messages that are late even if messages are sent in the order of their due
    times.

    Each has the link from ``begin`` (ascending), is ``due``, and would ``need`` it for so long
    alone, all on the link's clock.
    """
    waiting: list[tuple[float, float]] = []  # due, need
    # the clock starts again when the link falls idle, so that little is lost to rounding
    origin = now = 0.0
    ends = [*zip(begin.tolist(), due.tolist(), need.tolist(), strict=True), (np.inf, np.inf, 0.0)]
    for start, end, takes in ends:
        until = start - origin
        while waiting:
            first, left = waiting[0]
            if now + left > until:
                waiting[0] = (first, left - (until - now))
                now = until
                break
            now += left
            heappop(waiting)
            if now > first - origin:
                yield first
        if not waiting:
            origin = start
            now = 0.0
        heappush(waiting, (end, takes))


_WAYS = ("down", "up")
# between devices and the server, devices and edge servers, and these and the server
_WHOLE, _BELOW, _ABOVE = range(3)


class Link(NamedTuple):
    """A link that messages share."""

    name: str  # in findings
    key: str  # in records
    rate: float  # as it was built (bytes/s)
    # messages of a direction, on a part of the way, of a place (of devices, or an edge)
    users: Sequence[tuple[str, int, int]]


class LinkLayout(NamedTuple):
    """The shared part of a network.

    Attributes:
        links: those that devices share.
        place_s: what devices' latencies have in them beside their own, by place (s), float64
            [places].
        edge_s: latency between each edge server and the server (s), and 0 for no edge server;
            float64 [edge servers + 1].
    """

    links: list[Link]
    place_s: Floats
    edge_s: Floats

    def beyond_s(self, edge: Any) -> Floats:
        """Latency beyond the edge server of each message (s), 0 without one; float64 [messages]."""
        numbers = np.asarray(edge)
        known = (numbers >= 0) & (numbers < len(self.edge_s) - 1)
        return np.asarray(self.edge_s[np.where(known, numbers, -1)])


def within_capacity(evidence: Evidence) -> Iterator[str]:
    """Each device's own link each way, and each link that devices share."""
    changes = evidence.said("link-rate").assign(time=evidence.events["time"]).groupby("link")
    changed = {str(link): own for link, own in changes}
    network = evidence.run.scenario["network"]
    from_file = network["kind"] == "graph" or "edge" in network
    layout = _from_file(evidence) if from_file else _of_scenario(network, network.get("cells", 1))
    links = layout.links
    messages = _messages(evidence, layout)
    yield from _own_links(evidence, messages, changed)
    yield from _between_peers(evidence, layout, changed)
    users = messages.groupby(["direction", "part", "place"], observed=True).indices
    for link in links:
        rows = np.concatenate(
            [np.empty(0, dtype=np.int64), *(users[user] for user in link.users if user in users)]
        )
        rate = _rate(link.rate, changed.get(link.key))
        yield from _overfull(f"{link.name} of {link.rate:g} B/s", messages.iloc[rows], rate)


def _rate(built: float, changes: pd.DataFrame | None) -> Rate:
    """The rate with which a link was built (bytes/s), and those that it had later."""
    if changes is None:
        return Rate(np.zeros(1), np.array([built]))
    return Rate(np.append(0.0, changes["time"]), np.append(built, changes["rate"]))


def _overfull(link: str, messages: pd.DataFrame, rate: Rate) -> Iterator[str]:
    end = messages["end"].to_numpy()
    size = messages["wire_bytes"].to_numpy()
    if (
        found := rate.overfull(np.minimum(messages["begin"].to_numpy(), end), end, size)
    ) is not None:
        yield (
            f"{link} carried {found.carried:.0f} bytes from {found.begin:.6g} s to {found.end:.6g} "
            "s"
        )


def _messages(evidence: Evidence, layout: LinkLayout) -> pd.DataFrame:
    """The transfers on links: other parts of the server's side than edge servers have none.

    Columns besides theirs: ``part`` of the way, ``place`` of the device or the edge server,
    ``at`` (the device's row), and ``begin`` of its bytes, after the latency (s).
    """
    transfers = evidence.transfers
    devices = evidence.devices
    told = transfers[(transfers["device"] != NOTHING) | (transfers["edge"] != NOTHING)]
    device = told["device"]
    edge = told["edge"]
    at = evidence.row_of(told["device"])
    own = device[device != NOTHING]
    if (evidence.row_of(own) < 0).any():
        raise RunFolderError(
            f"there are messages of devices {own.min()} to {own.max()}, but {len(devices)} devices"
        )
    if evidence.run.has_all_devices and (devices["device"] != devices.index).any():
        raise RunFolderError(
            "it is not known whose links are whose: the devices are not in their order"
        )
    if not told["direction"].isin(_WAYS).all():
        raise RunFolderError("there are messages that went neither down nor up")
    part = np.where(edge == NOTHING, _WHOLE, np.where(device == NOTHING, _ABOVE, _BELOW))
    beyond_s = layout.beyond_s(edge)
    device_s = np.append(devices["latency"], 0.0)[at]  # at -1: between an edge and the server
    delay = device_s + beyond_s * (part == _ABOVE) - beyond_s * (part == _BELOW)
    begin = told["start"] + np.where(told["wire_bytes"] > 0, delay, 0.0)
    place = np.where(part == _ABOVE, edge, device % len(layout.place_s))
    return told.assign(part=part, place=place, at=at, begin=begin)


def _own_links(
    evidence: Evidence, messages: pd.DataFrame, changed: Mapping[str, pd.DataFrame]
) -> Iterator[str]:
    """A device has its messages one after another, so that each has the link for itself."""
    told = messages[messages["part"] != _ABOVE]
    links = evidence.devices.iloc[told["at"]]
    end = told["end"].to_numpy()
    rate = np.where(told["direction"] == "down", links["link_down"], links["link_up"])
    most = rate * (end - told["begin"].to_numpy() + slack_s(end)) * SLACK
    for owner, changes in (
        (re.fullmatch(r"device ([0-9]+) (down|up)", link), own) for link, own in changed.items()
    ):
        if owner is None:
            continue
        rows = np.flatnonzero((told["device"] == int(owner[1])) & (told["direction"] == owner[2]))
        if not len(rows):
            continue
        over = _rate(rate[rows[0]], changes)
        begin = told["begin"].to_numpy()[rows]
        due = end[rows] + slack_s(end[rows])
        most[rows] = np.where(
            over.is_unlimited(begin, due),
            math.inf,
            (over.carried(due) - over.carried(begin)) * SLACK,
        )
    text = (
        "transfer {row} brought {wire_bytes:.0f} bytes in {took:.6g} s over a link of {rate:g} B/s"
    )
    yield from findings(
        text, told.assign(took=end - told["begin"], rate=rate), ~(told["wire_bytes"] <= most)
    )


def _between_peers(
    evidence: Evidence, layout: LinkLayout, changed: Mapping[str, pd.DataFrame]
) -> Iterator[str]:
    """A device may have many messages of other devices at a time, beside those of its tasks, on
    its own link each way.

    The folder does not tell which shared links they take.
    """
    told = evidence.transfers
    devices = evidence.devices
    peer = told["direction"] == "peer"
    ends = {
        way: numbered(told[end], "device") for way, end in (("up", "sender"), ("down", "receiver"))
    }
    # where it is each pair's, and is left out here
    between_regions = evidence.run.scenario["network"]["kind"] == "regions"
    shared_s = layout.place_s[devices["device"].to_numpy() % len(layout.place_s)]
    # at -1, of others, 0
    own = np.append(np.maximum(devices["latency"] - shared_s, 0.0) * (not between_regions), 0.0)
    delay = sum(own[evidence.row_of(end)] for end in ends.values())
    told = told.assign(begin=told["start"] + np.where(peer, delay, 0.0))
    for way, end in ends.items():
        user = np.where(peer, end, np.where(told["direction"] == way, told["device"], NOTHING))
        for device in np.unique(user[peer & (user != NOTHING)]).tolist():
            built = devices[f"link_{way}"].to_numpy()[evidence.row_of([device])].item()
            text = f"the link {way} of device {device}, of {built:g} B/s,"
            yield from _overfull(
                text, told[user == device], _rate(built, changed.get(f"device {device} {way}"))
            )


def _of_scenario(network: Mapping[str, Any], places: int) -> LinkLayout:
    """The places of a star, or a tree of cells, to which devices are attached in turn, and the
    links that they share.
    """
    links = []
    for way, text in network.get("server", {}).items():
        users = [(way, _WHOLE, place) for place in range(places)]
        links.append(
            Link(f"the server's {way} link", f"server {way}", read(BytesPerSecond, text), users)
        )
    for way, text in network.get("cell", {}).items():
        for place in range(places):
            name = f"the {way} link of cell {place}"
            rate = read(BytesPerSecond, text)
            links.append(Link(name, f"cell {place} {way}", rate, [(way, _WHOLE, place)]))
    return LinkLayout(links, np.zeros(places), np.zeros(1))


def _from_file(evidence: Evidence) -> LinkLayout:
    """Likewise as the run has left them in the folder, with the latencies of links and of edge
    servers.
    """
    try:
        if (told := evidence.network) is None:
            raise ValueError("there is no such file")
        users: dict[str, list[tuple[str, int, int]]] = {name: [] for name in told["links"]}
        edges = told.get("edges", {"below": {}, "above": {}, "latency": 0.0})
        for part, routes in (
            (_WHOLE, told["routes"]),
            (_BELOW, edges["below"]),
            (_ABOVE, edges["above"]),
        ):
            for way in _WAYS:
                for place, route in enumerate(routes.get(way, ())):
                    for name in route:
                        users[name].append((way, part, place))
        rates = {
            name: math.inf if rate is None else float(rate) for name, rate in told["links"].items()
        }
        links = [Link(f"the link {name!r}", name, rates[name], users[name]) for name in users]
        places = len(told["routes"]["down"])
        servers = len(edges["above"].get("down", ()))
        delays = told.get("delays", {"places": [0.0] * places, "edges": [0.0] * servers})
        place_s = np.array(delays["places"], dtype=np.float64).reshape(places) + float(
            edges["latency"]
        )
        edge_s = np.array(delays["edges"], dtype=np.float64).reshape(servers) + float(
            edges["latency"]
        )
        return LinkLayout(links, place_s, np.append(edge_s, 0.0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{files.NETWORK} of {str(evidence.run.path)!r} is missing or damaged: {error}"
        ) from None


def layout_as_said(evidence: Evidence) -> Iterator[str]:
    """The links and places of a tree with edge servers are those of the scenario."""
    network = evidence.run.scenario["network"]
    layout = evidence.network
    if network["kind"] != "tree" or layout is None:
        return
    if (places := len(layout["routes"]["down"])) != network["cells"]:
        yield f"{files.NETWORK} has {places} cells, the scenario {network['cells']}"
    edge = network.get("edge")
    if (
        edge is not None
        and (latency := read(Seconds, edge["latency"])) != layout["edges"]["latency"]
    ):
        yield (
            f"edge servers are {layout['edges']['latency']!r} s away in {files.NETWORK}, by the "
            f"scenario {latency!r} s"
        )
    for name, rate in layout["links"].items():
        section, _, way = name.partition(" ")
        due = read(BytesPerSecond, network.get(section, {}).get(way.rpartition(" ")[2], "inf B/s"))
        if (math.inf if rate is None else rate) != due:
            yield (
                f"the link {name!r} has {rate!r} B/s in {files.NETWORK}, by the scenario {due!r} "
                "B/s"
            )
