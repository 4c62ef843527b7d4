"""Checks that no message took longer than its links, and the messages that shared them, explain.

A message of a fluid network has at least an even share of each of its links at every instant. The
check compares each done message with the smallest share that it can have had.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats, Ints
from fedsim.common.units import BytesPerSecond
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, at_places, grain_s, read, report

_ROUNDING = 1e-6


def within_time(evidence: Evidence) -> Iterator[str]:
    """No done message took longer than its latency and its bytes over the least share of its links.

    Checked in a star or a tree whose links keep their rates, and whose protocol is ``fluid``, by
    which messages share links evenly.
    """
    network = evidence.run.scenario["network"]
    if not _shares_evenly(network) or not evidence.run.has_all_devices:
        return
    transfers = evidence.transfers
    if len(evidence.data_of("link-rate")) or (transfers["direction"] == "peer").any():
        return
    messages = transfers[transfers["device"] != NOTHING]
    devices = evidence.devices
    row = evidence.row_of(messages["device"])
    begin = messages["start"].to_numpy() + at_places(devices["latency"], row)
    messages = messages.assign(begin=np.minimum(begin, messages["end"].to_numpy()), row=row)
    for direction in ("down", "up"):
        spans = messages[messages["direction"] == direction]
        rate = at_places(devices[f"link_{direction}"], spans["row"].to_numpy())
        for shared, place in _shared_links(network, direction, spans["device"].to_numpy()):
            rate = np.minimum(rate, shared / _most_at_once(spans, place))
        yield from _check_times(spans.drop(columns="row"), rate)


def _shares_evenly(network: TomlTable) -> bool:
    if network["kind"] not in ("star", "tree") or "edge" in network:
        return False
    return bool(network["protocol"]["kind"] == "fluid")


def _check_times(spans: pd.DataFrame, rate: Floats) -> Iterator[str]:
    """Check messages of one direction, by the least rate that each can have had (bytes/s)."""
    end = spans["end"].to_numpy()
    due = spans["wire_bytes"].to_numpy() / rate
    took = end - spans["begin"].to_numpy()
    slack = 4 * grain_s(end) + _ROUNDING * due
    is_slow = (spans["outcome"] == "done").to_numpy() & (took > due + slack)
    text = (
        "transfer {row}: {wire_bytes:.0f} bytes took {took:.6g} s; by its links {due:.6g} s "
        "are enough"
    )
    yield from report(text, spans.assign(took=took, due=due), is_slow)


def _shared_links(network: TomlTable, direction: str, device: Ints) -> Iterator[tuple[float, Ints]]:
    """The rate of each kind of shared link (bytes/s), and the number of each device's link."""
    if "server" in network and direction in network["server"]:
        rate = read(BytesPerSecond, network["server"][direction])
        yield rate, np.zeros(len(device), dtype=np.int64)
    if "cell" in network and direction in network["cell"]:
        yield read(BytesPerSecond, network["cell"][direction]), device % network["cells"]


def _most_at_once(spans: pd.DataFrame, place: Ints) -> Floats:
    """The most messages on each message's link while it was there, itself included.

    Args:
        spans: the messages.
        place: number of the link of each message.

    Returns:
        float64 [messages].
    """
    most = np.ones(len(spans))
    for link in np.unique(place).tolist():
        rows = np.flatnonzero(place == link)
        begin = spans["begin"].to_numpy()[rows]
        end = spans["end"].to_numpy()[rows]
        times = np.concatenate([begin, end])
        # a message that ends as another begins counts with it
        order = np.argsort(times, kind="stable")
        counts = np.cumsum(np.repeat([1, -1], len(rows))[order])
        first = np.searchsorted(times[order], begin, side="left")
        last = np.searchsorted(times[order], end, side="right")
        most[rows] = _range_maxima(counts, first, np.maximum(last, first + 1))
    return most


def _range_maxima(values: Ints, first: Ints, last: Ints) -> Floats:
    """The largest value of each range, by a sparse table of ranges of 2^k values.

    Args:
        values: int64 [n].
        first: begin of each range; int64 [ranges].
        last: end of each range, not part of it; int64 [ranges].

    Returns:
        float64 [ranges].
    """
    table = [values.astype(np.float64)]
    while 2 ** len(table) <= len(values):
        before = table[-1]
        step = 2 ** (len(table) - 1)
        table.append(np.maximum(before[:-step], before[step:]))
    level_of = np.log2(last - first).astype(np.int64)
    maxima = np.empty(len(first))
    for level in np.unique(level_of).tolist():
        rows = level_of == level
        ending = table[level][last[rows] - 2**level]
        maxima[rows] = np.maximum(table[level][first[rows]], ending)
    return maxima
