"""Do the devices' rows say what the records say of them?"""

from collections.abc import Iterator

import numpy as np

from fedsim.arrays import Ints
from fedsim.records.audit.columns import NOTHING, Numbers
from fedsim.records.audit.evidence import Evidence


def devices_agree(evidence: Evidence) -> Iterator[str]:
    """One row a device, selected for a round as often as the records say, and at work only while it was there.

    Of very many devices there is one for each that was ever asked.
    """
    devices, stated = evidence.devices, evidence.run.scenario["population"]["devices"]
    numbers = np.arange(devices.count)
    if evidence.run.has_all_devices:
        if devices.count != stated:
            yield f"there are {devices.count} devices, the scenario says {stated}"
    else:
        asked = np.unique(evidence.events["device"][evidence.events.are("task-start")])
        if len(asked) != devices.count or (asked != devices["device"]).any() or not (asked < stated).all():
            yield f"there are rows of {devices.count} devices; the records ask others, or {len(asked)} of the {stated}"
        numbers = devices["device"]
    yield from _selections(evidence, numbers)
    yield from _presence(evidence)


def _selections(evidence: Evidence, numbers: Numbers | Ints) -> Iterator[str]:
    devices, events = evidence.devices, evidence.events
    of_round = events.are("task-start") & (events["round"] != NOTHING) & ~events.continues
    asked = evidence.row_of(events["device"][of_round])
    times = np.bincount(asked[asked >= 0], minlength=devices.count)  # of others ``_presence`` tells
    misplaced = devices["device"] != numbers
    for row in np.flatnonzero(misplaced | (devices["selected"] != times)).tolist():
        if misplaced[row]:
            yield f"row {row} is device {devices.shown('device', row)}"
        if devices["selected"][row] != times[row]:
            yield f"device {numbers[row]} was selected {devices.shown('selected', row)} times, the records say {times[row]}"


def _presence(evidence: Evidence) -> Iterator[str]:
    devices, events = evidence.devices, evidence.events
    ends = events.are("task-end")
    rows = np.flatnonzero((ends | events.are("task-start")) & (events["device"] != NOTHING))
    gone = events["task"][ends & (events["outcome"] == evidence.words["left"])]
    # A server may ask a device of whose leaving it has not heard: that task ends at once.
    rows = rows[~np.isin(events["task"][rows], gone)]
    device, time = events["device"][rows], events["time"][rows]
    at = evidence.row_of(device)
    known = at >= 0
    there = known
    if devices.count:
        there = known & (devices["arrival"][at] <= time) & (time <= devices["departure"][at])
    for place in np.flatnonzero(~there).tolist():
        if known[place]:
            yield f"device {device[place]} works at {time.item(place)!r} s, when it is not there"
        else:
            yield f"task {events.shown('task', rows[place])} is on device {device[place]}, which does not exist"
