"""Checks that no message took longer than its links, and the messages that shared them, explain.

A message of a fluid network has at least an even share of each of its links at every instant. The
check compares the duration of each ``done`` message with the duration at its smallest share.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats, Ints
from fedsim.common.units import BytesPerSecond
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, grain_s, read_quantity, report_rows, values_at_rows
from fedsim.lab.audit.traces import LinkRates, has_trace

_ROUNDING = 1e-6
_ROUNDED_TICKS = 4  # ticks of the clock by which rounding may change a message's duration


def check_transfer_times(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each ``done`` message that was slower than its links can explain.

    The longest allowed duration is the latency plus the bytes over the smallest possible rate. Only
    stars and trees with constant rates and the ``fluid`` protocol are checked, because messages
    share their links evenly there.
    """
    network = evidence.run.scenario["network"]
    if not _shares_evenly(network) or not evidence.run.has_all_devices:
        return
    transfers = evidence.transfers
    # changed rates are not constant, and messages between devices use links that are not known
    if len(evidence.data_of("link-rate")) or (transfers["direction"] == "peer").any():
        return
    messages = transfers[transfers["device"] != NOTHING]
    devices = evidence.devices
    row = evidence.row_of(messages["device"])
    # time of the first byte; a message may break off within its latency
    begin = messages["start"].to_numpy() + values_at_rows(devices["latency"], row)
    begin = np.minimum(begin, messages["end"].to_numpy())
    messages = messages.assign(begin=begin, device_row=row)
    for direction in ("down", "up"):
        spans = messages[messages["direction"] == direction]
        # the even share of a shared link is not known if its rate follows a trace
        if any(_is_traced(network, part, direction) for part in ("server", "cell")):
            continue
        if _is_traced(network, "device", direction):
            yield from _check_traced(evidence, spans, direction)
            continue
        # the smallest possible rate: the rate of the device's own link, or an even share of the
        # rate of a shared link
        rate = values_at_rows(devices[f"link_{direction}"], spans["device_row"].to_numpy())
        for link_rate, link in _limited_links(network, direction, spans["device"].to_numpy()):
            rate = np.minimum(rate, link_rate / _largest_counts(spans, link))
        yield from _check_times(spans, rate)


def _shares_evenly(network: TomlTable) -> bool:
    """Whether messages share links evenly: a star or tree with the ``fluid`` protocol."""
    if network["kind"] not in ("star", "tree") or "edge" in network:
        return False
    return bool(network["protocol"]["kind"] == "fluid")


def _is_traced(network: TomlTable, part: str, direction: str) -> bool:
    return has_trace(network.get(part, {}).get(direction))


def _check_traced(evidence: Evidence, spans: pd.DataFrame, direction: str) -> Iterator[str]:
    """Yield a finding for each message that took longer than the trace of its device's link allows.

    A trace gives the rate of a link over time. Nothing is checked if the messages also use a
    limited link of the server or of a cell.

    Args:
        evidence: the run folder.
        spans: the messages in the direction, with ``begin`` (s).
        direction: ``down`` or ``up``.
    """
    network = evidence.run.scenario["network"]
    device = spans["device"].to_numpy()
    if any(np.isfinite(rate) for rate, _ in _limited_links(network, direction, device)):
        return
    rates = LinkRates(evidence)
    end = spans["end"].to_numpy()
    possible = np.zeros(len(spans))  # bytes that the link can carry before the message ends
    # times are rounded: by this time, the message surely had not yet ended
    sooner = np.maximum(end - _ROUNDED_TICKS * grain_s(end), spans["begin"].to_numpy())
    for number in np.unique(device).tolist():
        rows = np.flatnonzero(device == number)
        rate = rates.of(f"device {number} {direction}", np.inf)
        begin = spans["begin"].to_numpy()[rows]
        possible[rows] = rate.capacity_until(sooner[rows]) - rate.capacity_until(begin)
    # a message is slow if its link could have carried more than all its bytes
    needed = spans["wire_bytes"].to_numpy() * (1 + _ROUNDING) + 1.0
    is_slow = (spans["outcome"] == "done").to_numpy() & (possible > needed)
    template = (
        "transfer {row} brought {wire_bytes:.0f} bytes until {end:.6g} s, by its link's trace "
        "{possible:.0f} are possible"
    )
    yield from report_rows(template, spans.assign(possible=possible), is_slow)


def _check_times(spans: pd.DataFrame, rate: Floats) -> Iterator[str]:
    """Yield a finding for each message that took too long.

    Args:
        spans: messages in the same direction.
        rate: the smallest rate that each message can have had (bytes/s); float64 [messages].
    """
    end = spans["end"].to_numpy()
    expected = spans["wire_bytes"].to_numpy() / rate
    took = end - spans["begin"].to_numpy()
    slack = _ROUNDED_TICKS * grain_s(end) + _ROUNDING * expected
    is_slow = (spans["outcome"] == "done").to_numpy() & (took > expected + slack)
    template = (
        "transfer {row}: {wire_bytes:.0f} bytes took {took:.6g} s; by its links {expected:.6g} s "
        "are enough"
    )
    yield from report_rows(template, spans.assign(took=took, expected=expected), is_slow)


def _limited_links(
    network: TomlTable, direction: str, device: Ints
) -> Iterator[tuple[float, Ints]]:
    """Yield the server's link and the cells' links, each if the scenario limits its rate.

    Args:
        network: the network's section of the scenario.
        direction: ``down`` or ``up``.
        device: device ID of each message; int64 [messages].

    Yields:
        The rate (bytes/s), and the index of the link that each message crosses: its cell, or 0 for
        the server's link; int64 [messages].
    """
    if "server" in network and direction in network["server"]:
        rate = read_quantity(BytesPerSecond, network["server"][direction])
        yield rate, np.zeros(len(device), dtype=np.int64)
    if "cell" in network and direction in network["cell"]:
        yield read_quantity(BytesPerSecond, network["cell"][direction]), device % network["cells"]


def _largest_counts(spans: pd.DataFrame, link: Ints) -> Floats:
    """Return the largest count of messages on each message's link during its transmission.

    Args:
        spans: DataFrame of messages, with ``begin`` and ``end`` (s).
        link: index of each message's link; int64 [messages].

    Returns:
        Counts, in which each message includes itself; float64 [messages].
    """
    largest = np.ones(len(spans))
    for index in np.unique(link).tolist():
        rows = np.flatnonzero(link == index)
        begin = spans["begin"].to_numpy()[rows]
        end = spans["end"].to_numpy()[rows]
        times = np.concatenate([begin, end])
        # two messages count as simultaneous if one ends in the instant in which the other begins
        order = np.argsort(times, kind="stable")
        counts = np.cumsum(np.repeat([1, -1], len(rows))[order])
        first = np.searchsorted(times[order], begin, side="left")
        last = np.searchsorted(times[order], end, side="right")
        largest[rows] = _range_maxima(counts, first, np.maximum(last, first + 1))
    return largest


def _range_maxima(values: Ints, begin: Ints, end: Ints) -> Floats:
    """Return the largest value in each of many ranges of an array.

    Maxima of all ranges of 2^k values are computed once; each range is covered by two of these.

    Args:
        values: the values; int64 [n].
        begin: begin of each range; int64 [ranges].
        end: end of each range (exclusive); int64 [ranges].

    Returns:
        Maxima; float64 [ranges].
    """
    table = [values.astype(np.float64)]  # entry k: maxima of all ranges of 2^k values
    while 2 ** len(table) <= len(values):
        halves = table[-1]
        half_length = 2 ** (len(table) - 1)
        table.append(np.maximum(halves[:-half_length], halves[half_length:]))
    levels = np.log2(end - begin).astype(np.int64)
    maxima = np.empty(len(begin))
    for level in np.unique(levels).tolist():
        rows = levels == level
        from_begin = table[level][begin[rows]]
        to_end = table[level][end[rows] - 2**level]
        maxima[rows] = np.maximum(from_begin, to_end)
    return maxima
