"""Checks that the network can have carried the messages.

The folder has the begin and the end of each message, but not its rate in between. So the check asks
whether a link can share its rate among its messages in any way that carries them all in time
(``capacity``). Both each device's own link and the links that devices share are checked. The
scenario defines which links of a network are shared; a run whose network is a file writes links and
routes into the folder.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedsim.common.arrays import Floats
from fedsim.common.errors import RunFolderError
from fedsim.common.units import BytesPerSecond, Seconds
from fedsim.lab.audit.capacity import RATE_TOLERANCE, LinkCapacity, time_tolerance_s
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, endpoint_numbers, read_quantity, report_rows
from fedsim.lab.audit.traces import LinkRates, has_trace
from fedsim.records import folder as files

_DIRECTIONS = ("down", "up")
# codes of the parts of a route
_DEVICE_TO_SERVER, _DEVICE_TO_EDGE, _EDGE_TO_SERVER = range(3)

_LinkUser = tuple[str, int, int]
"""Kind of messages: direction, section of the route, and index of a place or edge server."""


class Link(NamedTuple):
    """Link that several devices share, to check that it can have carried their messages.

    Attributes:
        name: name of the link in findings.
        key: name of the link in the run's records.
        rate: rate at the run's begin (bytes/s).
        users: kinds of messages that use the link, as triples (direction, section, index). The
            direction is ``down`` or ``up``. The section of the route is 0 between device and
            server, 1 between device and edge server, 2 between edge server and server. The index
            identifies the place where the devices are attached or, in section 2, the edge server.
    """

    name: str
    key: str
    rate: float
    users: Sequence[_LinkUser]


class LinkLayout(NamedTuple):
    """Shared links of a network, and the latencies of places and edge servers.

    A place is where devices are attached to the network, such as a cell.

    Attributes:
        links: the links that devices share.
        place_s: latency of each place (s), which is part of the latency of the devices attached to
            it; float64 [places].
        edge_s: latency between each edge server and the server (s), followed by a 0 for messages
            that pass no edge server; float64 [edge servers + 1].
    """

    links: list[Link]
    place_s: Floats
    edge_s: Floats

    def beyond_s(self, edge: ArrayLike) -> Floats:
        """Return the latency between each message's edge server and the server (s).

        Args:
            edge: index of each message's edge server, ``NOTHING`` (a negative number) for none;
                [messages].

        Returns:
            Latencies, 0 if there is no edge server; float64 [messages].
        """
        numbers = np.asarray(edge)
        exists = (numbers >= 0) & (numbers < len(self.edge_s) - 1)
        return np.asarray(self.edge_s[np.where(exists, numbers, -1)])


def check_link_capacities(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each link that carried more bytes in some interval than its rate allows.

    The devices' own links and the links that devices share are checked.
    """
    rates = LinkRates(evidence)
    layout = _read_layout(evidence)
    messages = _find_messages(evidence, layout, rates)
    yield from _check_own_links(evidence, messages, rates)
    yield from _check_peers(evidence, layout, rates)
    # a link's users are triples of these three columns
    rows_of_user = messages.groupby(["direction", "part", "place"], observed=True).indices
    for link in layout.links:
        rows_by_user = [rows_of_user[user] for user in link.users if user in rows_of_user]
        no_rows = np.empty(0, dtype=np.int64)  # rows of a link that no message used
        rows = np.concatenate([no_rows, *rows_by_user])
        rate = rates.of(link.key, link.rate)
        of_rate = "" if link.rate == math.inf else f" of {link.rate:g} B/s"
        yield from _check_link(f"{link.name}{of_rate}", messages.iloc[rows], rate)


def _read_layout(evidence: Evidence) -> LinkLayout:
    """Return the shared links of the run's network, from its scenario or from the folder."""
    network = evidence.run.scenario["network"]
    if network["kind"] == "graph" or "edge" in network:
        return _layout_from_file(evidence)
    return _layout_of_scenario(network)


def _check_link(link: str, messages: pd.DataFrame, rate: LinkCapacity) -> Iterator[str]:
    """Yield a finding if a link carried more bytes in some interval than it can.

    Args:
        link: name of the link for the finding.
        messages: its messages, with ``begin`` and ``end`` (s) and ``wire_bytes``.
        rate: rate of the link over time.
    """
    end = messages["end"].to_numpy()
    # a message that broke off within its latency ends before its first byte is sent
    begin = np.minimum(messages["begin"].to_numpy(), end)
    stretch = rate.overfull(begin, end, messages["wire_bytes"].to_numpy())
    if stretch is not None:
        yield (
            f"{link} carried {stretch.carried:.0f} bytes from {stretch.begin:.6g} s to "
            f"{stretch.end:.6g} s"
        )


def _find_messages(evidence: Evidence, layout: LinkLayout, rates: LinkRates) -> pd.DataFrame:
    """Return the transfers of devices and edge servers, except those between devices.

    Returns:
        DataFrame of transfers with four more columns. ``part``: whether the message goes between
        device and server, device and edge server, or edge server and server. ``place``: place of
        the device, or index of the edge server. ``device_row``: row of the device in the table of
        devices. ``begin``: time at which the first byte is sent (s), the start plus the latency.
    """
    transfers = evidence.transfers
    on_links = (transfers["device"] != NOTHING) | (transfers["edge"] != NOTHING)
    messages = transfers[on_links]
    _check_damage(evidence, messages)
    devices = evidence.devices
    device = messages["device"]
    edge = messages["edge"]
    part = np.where(device == NOTHING, _EDGE_TO_SERVER, _DEVICE_TO_EDGE)
    part = np.where(edge == NOTHING, _DEVICE_TO_SERVER, part)
    device_row = evidence.row_of(device)
    # row -1, the appended entry, is of messages between an edge server and the server
    device_s = np.append(devices["latency"], 0.0)[device_row]
    device_s = device_s + rates.beyond_mean_s(device.to_numpy(), messages["start"].to_numpy())
    # A device's latency includes the way from its edge server to the server. A message between
    # device and edge server does not go this way; one between the two servers goes only this way.
    edge_s = layout.beyond_s(edge)
    latency = device_s
    latency = latency + edge_s * (part == _EDGE_TO_SERVER)
    latency = latency - edge_s * (part == _DEVICE_TO_EDGE)
    # the latency delays the first byte; a message without a byte on the wire has none
    begin = messages["start"] + np.where(messages["wire_bytes"] > 0, latency, 0.0)
    place = np.where(part == _EDGE_TO_SERVER, edge, device % len(layout.place_s))
    return messages.assign(part=part, place=place, device_row=device_row, begin=begin)


def _check_damage(evidence: Evidence, messages: pd.DataFrame) -> None:
    """Raise ``RunFolderError`` if devices or directions of the messages are impossible."""
    devices = evidence.devices
    numbers = messages["device"][messages["device"] != NOTHING]
    if (evidence.row_of(numbers) < 0).any():
        raise RunFolderError(
            f"there are messages of devices {numbers.min()} to {numbers.max()}, but "
            f"{len(devices)} devices"
        )
    if evidence.run.has_all_devices and (devices["device"] != devices.index).any():
        raise RunFolderError(
            "it is not known whose links are whose: the devices are not in their order"
        )
    if not messages["direction"].isin(_DIRECTIONS).all():
        raise RunFolderError("there are messages that went neither down nor up")


def _check_own_links(evidence: Evidence, messages: pd.DataFrame, rates: LinkRates) -> Iterator[str]:
    """Yield a finding for each message that was too fast for its device's own link.

    A device sends and receives one message after another, so that each message has the whole link.

    Args:
        evidence: the run folder.
        messages: the messages of devices and edge servers, as ``_find_messages`` returns them.
        rates: rates of all links over time.
    """
    messages = messages[messages["part"] != _EDGE_TO_SERVER]
    links = evidence.devices.iloc[messages["device_row"]]
    slack = time_tolerance_s(messages["end"].to_numpy())
    device = messages["device"].astype(str)
    direction = messages["direction"].astype(str)
    messages = messages.assign(
        link="device " + device + " " + direction,
        rate=np.where(direction == "down", links["link_down"], links["link_up"]),
        took=messages["end"] - messages["begin"],
        latest_end=messages["end"] + slack,
    )
    # upper bound of the bytes of each message at a constant rate; the loop replaces it for links
    # whose rate varies
    allowed = (messages["rate"] * (messages["took"] + slack) * RATE_TOLERANCE).to_numpy(copy=True)
    for name, rows in messages.groupby("link").indices.items():
        link = str(name)
        if rates.varies(link):
            of_link = messages.iloc[rows]
            rate_over_time = rates.of(link, of_link["rate"].iloc[0])
            allowed[rows] = _allowed_bytes(rate_over_time, of_link)
    # braces have columns of ``messages``; ``row`` is the index
    template = (
        "transfer {row} brought {wire_bytes:.0f} bytes in {took:.6g} s over a link of {rate:g} B/s"
    )
    # ``~(a <= b)`` instead of ``a > b``, to report NaN too
    yield from report_rows(template, messages, ~(messages["wire_bytes"] <= allowed))


def _allowed_bytes(rate: LinkCapacity, messages: pd.DataFrame) -> Floats:
    """Return an upper bound of the bytes that a link can carry while each message is under way.

    Args:
        rate: rate of the link over time.
        messages: the link's messages, with ``begin`` and ``latest_end`` (s).

    Returns:
        Bytes, infinity if the rate is infinite at some time; float64 [messages].
    """
    begin = messages["begin"].to_numpy()
    end = messages["latest_end"].to_numpy()
    carried = rate.capacity_until(end) - rate.capacity_until(begin)
    return np.where(rate.is_unlimited(begin, end), math.inf, carried * RATE_TOLERANCE)


def _check_peers(evidence: Evidence, layout: LinkLayout, rates: LinkRates) -> Iterator[str]:
    """Yield findings for devices' own links that messages between devices overload.

    Such peer messages share each device's own link with the messages of its tasks. Other links that
    they share are not known from the folder.

    Args:
        evidence: the run folder.
        layout: the latencies of places.
        rates: rates of all links over time.
    """
    transfers = evidence.transfers
    between_peers = transfers["direction"] == "peer"
    endpoints = {
        "up": endpoint_numbers(transfers["sender"], "device"),
        "down": endpoint_numbers(transfers["receiver"], "device"),
    }
    device_s = np.append(_peer_latencies(evidence, layout), 0.0)  # row -1, no device: 0 s
    latency = np.zeros(len(transfers))  # latency of each message, to which both devices add
    for endpoint in endpoints.values():
        latency += device_s[evidence.row_of(endpoint)]
        latency += rates.beyond_mean_s(np.asarray(endpoint), transfers["start"].to_numpy())
    messages = transfers.assign(begin=transfers["start"] + np.where(between_peers, latency, 0.0))
    for direction, endpoint in endpoints.items():
        # ``link_owner``: the device whose link in this direction a message crosses, ``NOTHING`` for
        # none. It is the sender (up) or receiver (down) of a message between devices, and the
        # task's device for any other message.
        device_of_task = np.where(transfers["direction"] == direction, transfers["device"], NOTHING)
        link_owner = np.where(between_peers, endpoint, device_of_task)
        built_rates = evidence.devices[f"link_{direction}"].to_numpy()
        peers = np.unique(link_owner[between_peers & (link_owner != NOTHING)])
        for device in peers.tolist():
            built_rate = built_rates[evidence.row_of([device])].item()
            rate = rates.of(f"device {device} {direction}", built_rate)
            link = f"the link {direction} of device {device}, of {built_rate:g} B/s,"
            yield from _check_link(link, messages[link_owner == device], rate)


def _peer_latencies(evidence: Evidence, layout: LinkLayout) -> Floats:
    """Return the part of the latency to a peer that each device adds (s); float64 [devices].

    In a network of regions it is 0, because the latency depends on both regions there.
    """
    devices = evidence.devices
    if evidence.run.scenario["network"]["kind"] == "regions":
        return np.zeros(len(devices))
    place_s = layout.place_s[devices["device"].to_numpy() % len(layout.place_s)]
    return np.asarray(np.maximum(devices["latency"] - place_s, 0.0))


def _layout_of_scenario(network: TomlTable) -> LinkLayout:
    """Return the links that devices share in a star, or in a tree of cells.

    These are the links of the server and, in a tree, of the cells: device n is attached to cell n
    modulo the count of cells.

    Args:
        network: the network's section of the scenario.
    """
    places = network.get("cells", 1)
    links = []
    for direction, section in network.get("server", {}).items():
        users = [(direction, _DEVICE_TO_SERVER, place) for place in range(places)]
        name = f"the server's {direction} link"
        links.append(Link(name, f"server {direction}", _read_rate(section), users))
    for direction, section in network.get("cell", {}).items():
        for place in range(places):
            name = f"the {direction} link of cell {place}"
            key = f"cell {place} {direction}"
            users = [(direction, _DEVICE_TO_SERVER, place)]
            links.append(Link(name, key, _read_rate(section), users))
    return LinkLayout(links, np.zeros(places), np.zeros(1))


def _read_rate(section: object) -> float:
    """Return the rate of a shared link by the scenario (bytes/s); infinity if it is a trace."""
    return math.inf if has_trace(section) else float(read_quantity(BytesPerSecond, section))


def _layout_from_file(evidence: Evidence) -> LinkLayout:
    """Return the shared links and latencies in the network file that the run wrote.

    Raises:
        RunFolderError: the file is missing or damaged.
    """
    try:
        if evidence.network is None:
            raise ValueError("there is no such file")
        return _parse_layout(evidence.network)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{files.NETWORK} of {str(evidence.run.path)!r} is missing or damaged: {error}"
        ) from None


def _parse_layout(network: TomlTable) -> LinkLayout:
    """Convert the content of the run's network file to shared links and latencies.

    The file has ``links`` (rate by name), ``routes`` between devices and server and, with edge
    servers, routes ``below`` and ``above`` them. ``routes[direction][place]`` is the list of names
    of the links that the messages of a place cross, such as ``["server up", "cell 3 up"]``. In
    ``above``, the place is an edge server.
    """
    edges = network.get("edges", {"below": {}, "above": {}, "latency": 0.0})
    users_of_link: dict[str, list[_LinkUser]] = {name: [] for name in network["links"]}
    routes_of_section = {
        _DEVICE_TO_SERVER: network["routes"],
        _DEVICE_TO_EDGE: edges["below"],
        _EDGE_TO_SERVER: edges["above"],
    }
    for section, routes in routes_of_section.items():
        for direction in _DIRECTIONS:
            for place, route in enumerate(routes.get(direction, ())):
                for name in route:
                    users_of_link[name].append((direction, section, place))
    links = []
    for name, rate in network["links"].items():
        built_rate = math.inf if rate is None else float(rate)  # JSON has no infinity
        links.append(Link(f"the link {name!r}", name, built_rate, users_of_link[name]))
    place_count = len(network["routes"]["down"])
    edge_count = len(edges["above"].get("down", ()))
    no_delays = {"places": [0.0] * place_count, "edges": [0.0] * edge_count}
    delays = network.get("delays", no_delays)
    latency = float(edges["latency"])
    place_s = np.array(delays["places"], dtype=np.float64).reshape(place_count) + latency
    edge_s = np.array(delays["edges"], dtype=np.float64).reshape(edge_count) + latency
    return LinkLayout(links, place_s, np.append(edge_s, 0.0))  # 0 for messages of no edge server


def check_network_file(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each latency or link in ``network.json`` that contradicts the scenario.

    Some runs write this file, which has the links and routes of their network. Only networks of the
    kind ``tree`` are checked. The count of cells is compared, too.
    """
    network = evidence.run.scenario["network"]
    layout = evidence.network
    if network["kind"] != "tree" or layout is None:
        return
    places = len(layout["routes"]["down"])
    if places != network["cells"]:
        yield f"{files.NETWORK} has {places} cells, the scenario {network['cells']}"
    if "edge" in network:
        latency = read_quantity(Seconds, network["edge"]["latency"])
        stated = layout["edges"]["latency"]
        if stated != latency:
            yield (
                f"edge servers are {stated!r} s away in {files.NETWORK}, by the scenario "
                f"{latency!r} s"
            )
    for name, rate in layout["links"].items():
        # names are such as "server up" or "cell 3 down"
        words = name.split(" ")
        owner = words[0]
        direction = words[-1]
        setting = network.get(owner, {}).get(direction, "inf B/s")
        if has_trace(setting):  # ``check_trace_offsets`` compares traces
            continue
        expected = read_quantity(BytesPerSecond, setting)
        stated = math.inf if rate is None else rate  # JSON has no infinity
        if stated != expected:
            yield (
                f"the link {name!r} has {rate!r} B/s in {files.NETWORK}, by the scenario "
                f"{expected!r} B/s"
            )
