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

from fedsim.errors import RunFolderError
from fedsim.files import read_json
from fedsim.language.units import BytesPerSecond
from fedsim.records import folder as files
from fedsim.records.audit.capacity import SLACK, Rate, overfull, slack_s
from fedsim.records.audit.columns import NOTHING, Floats, Ints
from fedsim.records.audit.evidence import Evidence

_WAYS = ("down", "up")


class Link(NamedTuple):
    """A link that messages share.

    Attributes:
        name: what a finding calls it.
        key: its name in the records.
        rate: what it was built to carry, bytes/s.
        users: direction and place of the messages that take it.
    """

    name: str
    key: str
    rate: float
    users: Sequence[tuple[str, int]]


class Layout(NamedTuple):
    """What devices share; device i is at place i mod ``places``."""

    places: int
    links: Sequence[Link]


class _Messages(NamedTuple):
    """What went over links of devices; what stays at the server's side takes none.

    Attributes:
        number: of the transfer; int64 [n].
        device: int32 [n].
        down: whether it went to the device; bool [n].
        begin, end: of its bytes, after the latency (s); float64 [n].
        size: bytes that it brought, with their headers; float64 [n].
    """

    number: Ints
    device: NDArray[np.int32]
    down: NDArray[np.bool_]
    begin: Floats
    end: Floats
    size: Floats


def within_capacity(evidence: Evidence) -> Iterator[str]:
    """Each device's own link each way, and each link that devices share."""
    messages = _messages(evidence)
    changed = _changed(evidence)
    layout = _layout(evidence, changed)
    yield from _own_links(evidence, messages, changed)
    parts = _by_place(messages, layout.places)
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


def _messages(evidence: Evidence) -> _Messages:
    transfers, devices = evidence.transfers, evidence.devices
    rows = np.flatnonzero(transfers["device"] != NOTHING)
    device = transfers["device"][rows]
    if len(rows) and not 0 <= device.min() <= device.max() < devices.count:
        raise RunFolderError(f"there are messages of devices {device.min()} to {device.max()}, but {devices.count} devices")
    if (devices["device"] != np.arange(devices.count)).any():
        raise RunFolderError("it is not known whose links are whose: the devices are not in their order")
    down, up = (transfers["direction"][rows] == evidence.words[way] for way in _WAYS)
    if not (down | up).all():
        raise RunFolderError("there are messages that went neither down nor up")
    start, end, size = (transfers[name][rows] for name in ("start", "end", "wire_bytes"))
    begin = start + np.where(size > 0, devices["latency"][device], 0.0)
    return _Messages(rows, device, down, begin, end, size)


def _own_links(evidence: Evidence, messages: _Messages, changed: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    """A device has its messages one after another, so each is looked at alone."""
    number, device, down, begin, end, size = messages
    rate = np.where(down, evidence.devices["link_down"][device], evidence.devices["link_up"][device])
    moving = end - begin
    with np.errstate(invalid="ignore"):  # a link of infinite rate, and a message that takes no time
        most = rate * (moving + slack_s(end)) * SLACK
    for link in changed:
        owner = re.fullmatch(r"device (\d+) (down|up)", link)
        if owner is not None:
            rows = np.flatnonzero((device == int(owner[1])) & (down == (owner[2] == "down")))
            over = _rate(changed, link, evidence.devices[f"link_{owner[2]}"].item(int(owner[1])))
            if over is not None and rows.size:
                due = end[rows] + slack_s(end[rows])
                most[rows] = (over.carried(due) - over.carried(begin[rows])) * SLACK
                most[rows[over.is_unlimited(begin[rows], due)]] = math.inf
    for row in np.flatnonzero(~(size <= most)).tolist():
        brought = f"brought {size[row]:.0f} bytes in {moving[row]:.6g} s"
        yield f"transfer {number[row]} {brought} over a link of {rate[row]:g} B/s"


def _by_place(messages: _Messages, places: int) -> dict[tuple[str, int], Ints]:
    """The rows of the messages of each direction and place."""
    parts = {}
    for way, rows in zip(_WAYS, (np.flatnonzero(messages.down), np.flatnonzero(~messages.down)), strict=True):
        place = messages.device[rows] % places
        order = np.argsort(place, kind="stable")
        begins = np.flatnonzero(np.diff(place[order], prepend=-1))
        for begin, part in zip(begins.tolist(), np.split(rows[order], begins[1:]), strict=False):
            parts[way, place.item(order[begin])] = part
    return parts


def _layout(evidence: Evidence, changed: Collection[str]) -> Layout:
    """The links that devices share, but for those of infinite rate all the time."""
    network = evidence.run.scenario["network"]
    if network["kind"] == "graph":
        places, links = _from_file(evidence)
    else:
        places = network.get("cells", 1)
        links = _of_scenario(network, places)
    return Layout(places, [link for link in links if link.rate < math.inf or link.key in changed])


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
                [(way, place) for place in range(places)],
            )
        )
    for way, text in network.get("cell", {}).items():
        value = rate.validate_python(text)
        links += [
            Link(f"the {way} link of cell {place}", f"cell {place} {way}", value, [(way, place)]) for place in range(places)
        ]
    return links


def _from_file(evidence: Evidence) -> tuple[int, list[Link]]:
    """The links and routes that the run has left in the folder.

    Raises:
        RunFolderError: they are missing or damaged.
    """
    path = evidence.run.path / files.NETWORK
    try:
        told = read_json(path)
        users: dict[str, list[tuple[str, int]]] = {name: [] for name in told["links"]}
        for way in _WAYS:
            for place, route in enumerate(told["routes"][way]):
                for name in route:
                    users[name].append((way, place))
        rates = {name: math.inf if rate is None else float(rate) for name, rate in told["links"].items()}
        return len(told["routes"]["down"]), [Link(f"the link {name!r}", name, rates[name], users[name]) for name in users]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{files.NETWORK} of {str(evidence.run.path)!r} is missing or damaged: {error}") from None
