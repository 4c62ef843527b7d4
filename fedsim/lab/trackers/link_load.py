"""Load of the server's link over time, from the audit's transfers and the devices' latencies."""

from typing import Literal, NamedTuple

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.records.folder import DEVICES, TRANSFERS
from fedsim.records.reading import RunFolder


class Curve(NamedTuple):
    """A quantity that changes at some ``times`` only (s, ascending, float64 [n]), and its
    ``values`` from then on; 0 before.
    """

    times: Floats
    values: Floats


def link_load(run: RunFolder, direction: Literal["down", "up"]) -> Curve:
    """Bytes/s over the server's link in one direction. ``RunFolderError``: a table is missing or
    damaged.

    Each message counts with its mean rate from the end of its latency on (to or from an edge
    server, from its start on). Messages between devices and edge servers, or between other
    endpoints, are on other links.
    """
    columns = ["start", "end", "device", "direction", "wire_bytes", "sender", "receiver"]
    table = run.table(TRANSFERS).select(columns).to_pandas()
    latency = (
        run.table(DEVICES).select(["device", "latency"]).to_pandas().set_index("device")["latency"]
    )
    named = table["sender"].notna() | table["receiver"].notna()
    table = table[(table["direction"] == direction) & (table["device"].notna() ^ named)]
    start, end, size = (table[name].to_numpy(float) for name in ("start", "end", "wire_bytes"))
    begin = np.minimum(start + table["device"].map(latency).fillna(0.0).to_numpy(float), end)
    # a latency of the whole transfer, up to rounding: it moved at once
    begin = np.where(begin < end, begin, start)
    moved = (size > 0) & (end > start)
    rate = size[moved] / (end - begin)[moved]
    return summed(np.concatenate([begin[moved], end[moved]]), np.concatenate([rate, -rate]))


def summed(times: Floats, changes: Floats) -> Curve:
    """The running sum of changes, each at its time, in any order; float64 [n] each.

    Changes of one instant are one.
    """
    order = np.argsort(times, kind="stable")
    instants, first = np.unique(times[order], return_index=True)
    if not len(instants):
        return Curve(instants, instants)
    values = np.cumsum(np.add.reduceat(changes[order], first))
    # what rounding leaves when all has ended
    values[np.abs(values) < 1e-9 * np.abs(changes).max()] = 0.0
    return Curve(instants, values)


def thinned(curve: Curve, most: int) -> Curve:
    """The curve with at most ``most`` changes, evenly spaced; each value is the mean until the
    next one.
    """
    if len(curve.times) <= most:
        return curve
    edges = np.linspace(curve.times[0], curve.times[-1], most)
    return Curve(edges, np.append(means(curve, edges), curve.values[-1]))


def means(curve: Curve, edges: Floats) -> Floats:
    """The curve's mean between each edge (s), ascending, and the next, float64 [edges - 1];
    after its last change it is 0.
    """
    if not len(curve.times):
        return np.zeros(len(edges) - 1)
    areas = np.concatenate([[0.0], np.cumsum(curve.values[:-1] * np.diff(curve.times))])
    return np.asarray(np.diff(np.interp(edges, curve.times, areas)) / np.diff(edges))
