"""Did any message take longer than its links and those that shared them explain?

A message of a fluid network has at least an even share of each of its links at every instant:
the check holds each done message against the smallest share that it can have had.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.common.units import BytesPerSecond
from fedsim.lab.audit.evidence import NOTHING, Evidence, at_places, findings, grain_s, read

_ROUNDING = 1e-6


def within_time(evidence: Evidence) -> Iterator[str]:
    """Each done message of a device has taken its latency and its bytes over the least share of
    its links, or less.

    Of a star or a tree whose links keep their rates, and of the protocol ``fluid``, by which
    messages share links evenly.
    """
    network = evidence.run.scenario["network"]
    plain = (
        network["kind"] in ("star", "tree")
        and "edge" not in network
        and network["protocol"]["kind"] == "fluid"
    )
    if not plain or not evidence.run.has_all_devices or len(evidence.said("link-rate")):
        return
    told = evidence.transfers
    if (told["direction"] == "peer").any():
        return
    told = told[told["device"] != NOTHING]
    devices = evidence.devices
    row = evidence.row_of(told["device"])
    begin = told["start"].to_numpy() + at_places(devices["latency"], row)
    end = told["end"].to_numpy()
    spans = told.assign(begin=np.minimum(begin, end), row=row)
    for way in ("down", "up"):
        own = spans[spans["direction"] == way]
        rate = at_places(devices[f"link_{way}"], own["row"].to_numpy())
        for link, place in _shared(network, way, own["device"].to_numpy()):
            rate = np.minimum(rate, link / _most_at_once(own, place))
        due = own["wire_bytes"].to_numpy() / rate
        took = own["end"].to_numpy() - own["begin"].to_numpy()
        slack = 4 * grain_s(own["end"].to_numpy()) + _ROUNDING * due
        slow = (own["outcome"] == "done").to_numpy() & (took > due + slack)
        text = (
            "transfer {row}: {wire_bytes:.0f} bytes took {took:.6g} s; by its links {due:.6g} s "
            "are enough"
        )
        yield from findings(text, own.drop(columns="row").assign(took=took, due=due), slow)


def _shared(network: Mapping[str, Any], way: str, device: Any) -> Iterator[tuple[float, Any]]:
    """Rates of the links that devices share in a direction, and which of them each device is on."""
    if "server" in network and way in network["server"]:
        yield read(BytesPerSecond, network["server"][way]), np.zeros(len(device), dtype=np.int64)
    if "cell" in network and way in network["cell"]:
        yield read(BytesPerSecond, network["cell"][way]), device % network["cells"]


def _most_at_once(spans: pd.DataFrame, place: Any) -> Floats:
    """For each message the most that were on its link at any time of it, itself included."""
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


def _range_maxima(values: Any, first: Any, last: Any) -> Floats:
    """The largest value from ``first`` up to but not including ``last``; float64, as many."""
    table = [values.astype(np.float64)]
    while 2 ** len(table) <= len(values):
        before = table[-1]
        step = 2 ** (len(table) - 1)
        table.append(np.maximum(before[:-step], before[step:]))
    level = np.log2(last - first).astype(np.int64)
    found = np.empty(len(first))
    for each in np.unique(level).tolist():
        rows = level == each
        found[rows] = np.maximum(table[each][first[rows]], table[each][last[rows] - 2**each])
    return found
