"""Load of the server's link over time, from a run's transfers and the devices' latencies."""

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.records.folder import DEVICES, TRANSFERS
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    import pandas as pd


class Curve(NamedTuple):
    """Step function of time, which is 0 before its first step.

    Attributes:
        times: times of the steps (s), ascending; float64 [n].
        values: value from each time until the next; float64 [n].
    """

    times: Floats
    values: Floats


def link_load(run: RunFolder, direction: Literal["down", "up"]) -> Curve:
    """Compute the load of the server's link in one direction (bytes/s).

    Each message counts with its mean rate from the end of its latency to the end of its transfer.
    If an edge server sends or receives the message, the latency is taken as 0. Messages between
    devices and edge servers, or between two devices, do not use the server's link and are left out.

    Args:
        run: the run folder.
        direction: ``down`` or ``up``.

    Raises:
        RunFolderError: a table is missing or damaged.
    """
    columns = ["start", "end", "device", "direction", "wire_bytes", "sender", "receiver"]
    table = run.table(TRANSFERS).select(columns).to_pandas()
    devices = run.table(DEVICES).select(["device", "latency"]).to_pandas()
    latencies = devices.set_index("device")["latency"]
    has_endpoints = table["sender"].notna() | table["receiver"].notna()
    # Messages between a device and the server name no endpoints. Messages between an edge server
    # and the server have no device.
    is_on_link = table["device"].notna() ^ has_endpoints
    table = table[(table["direction"] == direction) & is_on_link]
    latency = table["device"].map(latencies).fillna(0.0).to_numpy(float)
    return _load(table, latency)


def peer_load(run: RunFolder) -> Curve:
    """Compute the load of all messages between devices (bytes/s).

    Each message counts with its mean rate from its start to its end.

    Args:
        run: the run folder.

    Raises:
        RunFolderError: the table is missing or damaged.
    """
    columns = ["start", "end", "direction", "wire_bytes"]
    table = run.table(TRANSFERS).select(columns).to_pandas()
    between = table[table["direction"] == "peer"]
    return _load(between, np.zeros(len(between)))


def _load(table: "pd.DataFrame", latency: Floats) -> Curve:
    """Return the sum of the rates of transfers over time (bytes/s).

    Args:
        table: transfers, with columns ``start`` (s), ``end`` (s) and ``wire_bytes``.
        latency: time from each transfer's start until its bytes flow (s); float64 [rows].
    """
    start = table["start"].to_numpy(float)
    end = table["end"].to_numpy(float)
    size = table["wire_bytes"].to_numpy(float)
    begin = np.minimum(start + latency, end)
    # if the latency is the whole duration, up to rounding, the bytes spread over the duration
    begin = np.where(begin < end, begin, start)
    has_moved = (size > 0) & (end > start)
    begin = begin[has_moved]
    end = end[has_moved]
    rate = size[has_moved] / (end - begin)
    return running_sum(np.concatenate([begin, end]), np.concatenate([rate, -rate]))


def running_sum(times: Floats, changes: Floats) -> Curve:
    """Return the running sum of changes at given times, as a step function of time.

    Args:
        times: times of the changes (s), in any order; float64 [n].
        changes: the changes; float64 [n].
    """
    order = np.argsort(times, kind="stable")
    instants, first_rows = np.unique(times[order], return_index=True)
    if not len(instants):
        return Curve(instants, instants)
    changes_of_instants = np.add.reduceat(changes[order], first_rows)
    values = np.cumsum(changes_of_instants)
    # remove rounding errors at times without any load
    values[np.abs(values) < 1e-9 * np.abs(changes).max()] = 0.0
    return Curve(instants, values)


def thin_out(curve: Curve, most: int) -> Curve:
    """Return a curve with fewer steps, to draw it: at most ``most``, evenly spaced.

    Each value is the mean of ``curve`` until the next step. A shorter curve is returned unchanged.

    Args:
        curve: the curve.
        most: the largest count of steps.
    """
    if len(curve.times) <= most:
        return curve
    edges = np.linspace(curve.times[0], curve.times[-1], most)
    return Curve(edges, np.append(interval_means(curve, edges), curve.values[-1]))


def interval_means(curve: Curve, edges: Floats) -> Floats:
    """Return the mean value of a curve in each interval between two edges.

    The curve counts as 0 after its last step.

    Args:
        curve: the curve.
        edges: edges of the intervals (s), ascending; float64 [n].

    Returns:
        The means; float64 [n - 1].
    """
    if not len(curve.times):
        return np.zeros(len(edges) - 1)
    # integral of the curve up to each of its steps, and then up to each edge
    integrals = np.concatenate([[0.0], np.cumsum(curve.values[:-1] * np.diff(curve.times))])
    until_edges = np.interp(edges, curve.times, integrals)
    return np.asarray(np.diff(until_edges) / np.diff(edges))
