"""Can the network have carried it?

The folder tells when each message began and ended, not how its rate went. What can be checked is whether each link could have
carried its messages in some way (``capacity``): each device's own, and those that devices share. How the links of a network are
shared is said by the scenario; of one from a file, the run has left its links and routes in a file of the folder.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats, Ints
from fedsim.errors import RunFolderError
from fedsim.language.units import BytesPerSecond
from fedsim.records import folder as files
from fedsim.records.audit.capacity import SLACK, Rate, overfull, slack_s
from fedsim.records.audit.columns import NOTHING
from fedsim.records.audit.evidence import Evidence
from fedsim.records.audit.transfers import numbered

_WAYS = ("down", "up")


class Link(NamedTuple):
    """A link that messages share.

    Attributes:
        name: what a finding calls it.
        key: its name in the records.
        rate: what it was built to carry, bytes/s.
        users: the messages that take it: direction, which part of the way, and place, or edge server.
    """

    name: str
    key: str
    rate: float
    users: Sequence[tuple[str, int, int]]


_WHOLE, _BELOW, _ABOVE = range(3)  # between devices and the server, devices and edge servers, and these and the server


class Layout(NamedTuple):
    """What devices share; device i is at place i mod ``places``. ``latency``: between edge servers and the server (s)."""

    places: int
    links: Sequence[Link]
    latency: float = 0.0


class _Messages(NamedTuple):
    """What went over links; other parts of the server's side than edge servers have none.

    Attributes:
        number: of the transfer; int64 [n].
        device: ``NOTHING`` for a message between an edge server and the server; int32 [n].
        part: which part of the way it took; int64 [n].
        place: of the device, or the edge server; int64 [n].
        down: whether it went to the device; bool [n].
        begin, end: of its bytes, after the latency (s); float64 [n].
        size: bytes that it brought, with their headers; float64 [n].
    """

    number: Ints
    device: NDArray[np.int32]
    part: Ints
    place: Ints
    down: NDArray[np.bool_]
    begin: Floats
    end: Floats
    size: Floats


def within_capacity(evidence: Evidence) -> Iterator[str]:
    """Each device's own link each way, and each link that devices share."""
    changed = _changed(evidence)
    layout = _layout(evidence, changed)
    messages = _messages(evidence, layout)
    yield from _own_links(evidence, messages, changed)
    yield from _between_peers(evidence, layout, changed)
    parts = _by_place(messages)
    for link in layout.links:
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(parts[user] for user in link.users if user in parts)])
        end = messages.end[rows]
        begin, size = np.minimum(messages.begin[rows], end), messages.size[rows]
        rate = _rate(changed, link.key, link.rate)
        found = overfull(begin, end, size, link.rate) if rate is None else rate.overfull(begin, end, size)
        if found is not None:
            stretch = f"from {found.begin:.6g} s to {found.end:.6g} s"
            yield f"{link.name} of {link.rate:g} B/s carried {found.carried:.0f} bytes {stretch}"


def _changed(evidence: Evidence) -> dict[str, list[tuple[float, float]]]:
    """When (s) each link that processes changed came to carry how much (bytes/s)."""
    changed: dict[str, list[tuple[float, float]]] = {}
    for time, link, rate in evidence.events.link_rates:
        changed.setdefault(link, []).append((time, rate))
    return changed


def _rate(changed: dict[str, list[tuple[float, float]]], link: str, built: float) -> Rate | None:
    """What a link carried when; None if always what it was built to."""
    return Rate(*np.array([(0.0, built), *changed[link]]).T) if link in changed else None


def _messages(evidence: Evidence, layout: Layout) -> _Messages:
    transfers, devices = evidence.transfers, evidence.devices
    rows = np.flatnonzero((transfers["device"] != NOTHING) | (transfers.edge != NOTHING))
    device, edge = transfers["device"][rows], transfers.edge[rows]
    own = device[device != NOTHING]
    if (evidence.row_of(own) < 0).any():
        raise RunFolderError(f"there are messages of devices {own.min()} to {own.max()}, but {devices.count} devices")
    if evidence.run.has_all_devices and (devices["device"] != np.arange(devices.count)).any():
        raise RunFolderError("it is not known whose links are whose: the devices are not in their order")
    down, up = (transfers["direction"][rows] == evidence.words[way] for way in _WAYS)
    if not (down | up).all():
        raise RunFolderError("there are messages that went neither down nor up")
    start, end, size = (transfers[name][rows] for name in ("start", "end", "wire_bytes"))
    part = np.where(edge == NOTHING, _WHOLE, np.where(device == NOTHING, _ABOVE, _BELOW))
    latency = np.append(devices["latency"], layout.latency)[np.where(part == _ABOVE, devices.count, evidence.row_of(device))]
    latency = latency - layout.latency * (part == _BELOW)
    begin = start + np.where(size > 0, latency, 0.0)
    place = np.where(part == _ABOVE, edge, device % layout.places).astype(np.int64)
    return _Messages(rows, device, part, place, down, begin, end, size)


def _own_links(evidence: Evidence, messages: _Messages, changed: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    """A device has its messages one after another, so each is looked at alone."""
    mine = messages.part != _ABOVE
    number, device, _, _, down, begin, end, size = (column[mine] for column in messages)
    row_of = evidence.row_of(device)
    rate = np.where(down, evidence.devices["link_down"][row_of], evidence.devices["link_up"][row_of])
    moving = end - begin
    most = rate * (moving + slack_s(end)) * SLACK
    for link in changed:
        owner = re.fullmatch(r"device ([0-9]+) (down|up)", link)
        if owner is not None:
            rows = np.flatnonzero((device == int(owner[1])) & (down == (owner[2] == "down")))
            over = _rate(changed, link, rate.item(rows[0])) if rows.size else None
            if over is not None:
                due = end[rows] + slack_s(end[rows])
                most[rows] = (over.carried(due) - over.carried(begin[rows])) * SLACK
                most[rows[over.is_unlimited(begin[rows], due)]] = math.inf
    for row in np.flatnonzero(~(size <= most)).tolist():
        brought = f"brought {size[row]:.0f} bytes in {moving[row]:.6g} s"
        yield f"transfer {number[row]} {brought} over a link of {rate[row]:g} B/s"


def _between_peers(evidence: Evidence, layout: Layout, changed: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    """A device may have many messages of other devices at a time, beside those of its tasks, on its own link each way.

    Which shared links they take is not in the folder.
    """
    transfers, latency, words = evidence.transfers, evidence.devices["latency"], evidence.words
    peer = transfers["direction"] == words["peer"]
    if not peer.any():
        return
    ends = [numbered(words, transfers[name], "device") for name in ("sender", "receiver")]
    own = np.append(np.maximum(latency - layout.latency, 0.0), 0.0)  # row -1: of whom is no device
    delay = sum(own[np.where(end == NOTHING, -1, evidence.row_of(end))] for end in ends)
    begin = np.minimum(transfers["start"] + np.where(peer, delay, 0.0), transfers["end"])
    for way, end in zip(("up", "down"), ends, strict=True):
        user = np.where(peer, end, np.where(transfers["direction"] == words[way], transfers["device"], NOTHING))
        for device in np.unique(user[peer & (user != NOTHING)]).tolist():
            rows = np.flatnonzero(user == device)
            built = evidence.devices[f"link_{way}"].item(evidence.row_of(np.array([device])).item())
            times = begin[rows], transfers["end"][rows], transfers["wire_bytes"][rows]
            rate = _rate(changed, f"device {device} {way}", built)
            found = rate.overfull(*times) if rate is not None else None if built == math.inf else overfull(*times, built)
            if found is not None:
                stretch = f"from {found.begin:.6g} s to {found.end:.6g} s"
                yield f"the link {way} of device {device}, of {built:g} B/s, carried {found.carried:.0f} bytes {stretch}"


def _by_place(messages: _Messages) -> dict[tuple[str, int, int], Ints]:
    """The rows of the messages of each direction, part of the way and place."""
    found = {}
    for way, mine in zip(_WAYS, (messages.down, ~messages.down), strict=True):
        for part in (_WHOLE, _BELOW, _ABOVE):
            rows = np.flatnonzero(mine & (messages.part == part))
            place = messages.place[rows]
            order = np.argsort(place, kind="stable")
            begins = np.flatnonzero(np.diff(place[order], prepend=-1))
            for begin, own in zip(begins.tolist(), np.split(rows[order], begins[1:]), strict=False):
                found[way, part, place.item(order[begin])] = own
    return found


def _layout(evidence: Evidence, changed: Collection[str]) -> Layout:
    """The links that devices share, but for those of infinite rate all the time."""
    network, latency = evidence.run.scenario["network"], 0.0
    if network["kind"] == "graph" or "edge" in network:
        places, links, latency = _from_file(evidence)
    else:
        places = network.get("cells", 1)
        links = _of_scenario(network, places)
    return Layout(places, [link for link in links if link.rate < math.inf or link.key in changed], latency)


def _of_scenario(network: dict[str, Any], places: int) -> list[Link]:
    """A star, or a tree of cells."""
    from pydantic import TypeAdapter

    rate = TypeAdapter[float](BytesPerSecond)
    links = []
    for way, text in network.get("server", {}).items():
        links.append(
            Link(
                f"the server's {way} link",
                f"server {way}",
                rate.validate_python(text),
                [(way, _WHOLE, place) for place in range(places)],
            )
        )
    for way, text in network.get("cell", {}).items():
        value = rate.validate_python(text)
        links += [
            Link(f"the {way} link of cell {place}", f"cell {place} {way}", value, [(way, _WHOLE, place)])
            for place in range(places)
        ]
    return links


def _from_file(evidence: Evidence) -> tuple[int, list[Link], float]:
    """The places, links and latency of edge servers that the run has left in the folder.

    Raises:
        RunFolderError: they are missing or damaged.
    """
    try:
        told = evidence.network
        if told is None:
            raise ValueError("there is no such file")
        users: dict[str, list[tuple[str, int, int]]] = {name: [] for name in told["links"]}
        edges = told.get("edges", {"below": {}, "above": {}, "latency": 0.0})
        for part, routes in ((_WHOLE, told["routes"]), (_BELOW, edges["below"]), (_ABOVE, edges["above"])):
            for way in _WAYS:
                for place, route in enumerate(routes.get(way, ())):
                    for name in route:
                        users[name].append((way, part, place))
        rates = {name: math.inf if rate is None else float(rate) for name, rate in told["links"].items()}
        links = [Link(f"the link {name!r}", name, rates[name], users[name]) for name in users]
        return len(told["routes"]["down"]), links, float(edges["latency"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{files.NETWORK} of {str(evidence.run.path)!r} is missing or damaged: {error}") from None
