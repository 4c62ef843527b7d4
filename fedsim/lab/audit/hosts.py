"""Did devices that share hosts wait for workers, start up and share cores as the scenario says?"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.common.units import Bytes, Seconds
from fedsim.lab.audit.evidence import NOTHING, Evidence, findings, grain_s, read

_ROUNDING = 1e-6
_ON_CORES = ("train", "evaluate", "compute")


def hosts_shared(evidence: Evidence) -> Iterator[str]:
    """Each computation had its host's even share at every instant, and no host had more tasks at
    once than it has room for.
    """
    host = evidence.run.scenario["population"].get("host")
    if host is None:
        return
    steps = evidence.steps
    cores = host.get("cores", 1)
    counts, work = zip([1.0, 1.0], *host.get("throughput", [[cores, cores]]), strict=True)
    computing = steps[steps["step"].isin(_ON_CORES) & (steps["outcome"] != "memory")]
    text = (
        "device {device} had {core_s!r} s of a core by {time!r} s; its host's share was {had!r} s"
    )
    for _, own in computing.join(evidence.core_s).groupby(steps["device"] % host["number"]):
        times, busy = counts_at_once(own)
        rates = np.interp(busy, counts, work) / np.maximum(busy, 1)
        served = np.append(0.0, np.cumsum(rates[:-1] * np.diff(times)))
        had = np.interp(own["time"], times, served) - np.interp(own["start"], times, served)
        yield from findings(
            text, own.assign(had=had), ~(np.abs(own["core_s"] - had) <= _ROUNDING * (1 + had))
        )


def workers_as_said(evidence: Evidence) -> Iterator[str]:
    """Tasks wait for a worker only while all of their host's are taken, and never otherwise."""
    host = evidence.run.scenario["population"].get("host")
    if host is None:
        return
    steps = evidence.steps
    tasks = evidence.tasks
    slots = _slots(host)
    first = steps.sort_values("begun").drop_duplicates("task")
    waits = first[first["step"] == "queue"]  # a queue that comes first is for a worker
    entered = waits.set_index("task")["time"]
    at_work = tasks.assign(start=tasks["task"].map(entered).fillna(tasks["start"]))
    if slots == math.inf:
        yield from findings("task {task} waited for a worker, and its host has one for each", waits)
        return
    for number, own in at_work.groupby(tasks["device"] % host["number"]):
        times, busy = counts_at_once(own)
        if (most := busy.max()) > slots:
            yield f"host {number} had {most:g} tasks at once; it has room for {slots:g}"
        waited = waits[waits["device"] % host["number"] == number]
        waited = waited[waited["time"] > waited["start"]]
        least = fewest_at_once(times, busy, waited["start"].to_numpy(), waited["time"].to_numpy())
        text = (
            "task {task} waited for a worker of host {number} at {start!r} s, when {least:g} of "
            "{slots:g} were taken"
        )
        yield from findings(
            text, waited.assign(number=number, least=least, slots=slots), least < slots
        )


def _slots(host: Mapping[str, Any]) -> float:
    slots = float(host.get("workers", math.inf))
    if "memory" in host:
        memory, each = (read(Bytes, host[key]) for key in ("memory", "task_memory"))
        slots = min(slots, memory // each)
    return slots


def fewest_at_once(times: Floats, busy: Floats, start: Floats, end: Floats) -> Floats:
    """The fewest tasks at work at any time of each interval, its end left out."""
    found = np.full(len(start), np.inf)
    if not len(start) or not len(times):
        return found
    settled = np.append(times[1:] > times[:-1], True)  # after the last change of an instant
    times = times[settled]
    busy = busy[settled]
    for place, (begin, until) in enumerate(zip(start, end, strict=True)):
        first = np.searchsorted(times, begin, side="right") - 1
        last = np.searchsorted(times, until, side="left")
        found[place] = busy[max(first, 0) : max(last, first + 1)].min(initial=np.inf)
    return found


def counts_at_once(spans: pd.DataFrame) -> tuple[Floats, Floats]:
    """Times at which intervals begin or end, ascending, and how many there are from each on;
    ends come first.
    """
    times = np.concatenate([spans["time"], spans["start"]])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.repeat([-1.0, 1.0], len(spans))[order])


def started_up(evidence: Evidence) -> Iterator[str]:
    """Each task on a host starts up before its first step of another kind, for as long as the
    scenario says.
    """
    host = evidence.run.scenario["population"].get("host") or {}
    due = read(Seconds, host.get("start_up", "0 s"))
    steps = evidence.steps[evidence.steps["device"] != NOTHING]
    starting = steps[steps["step"] == "start-up"]
    if not due:
        yield from findings("task {task} starts up, and by the scenario none does", starting)
        return
    took = starting["time"] - starting["start"]
    text = "task {task} started up in {took!r} s; by the scenario that takes {due!r} s"
    told = starting.assign(took=took, due=due)
    over = starting["outcome"] == "done"
    yield from findings(
        text, told, np.where(over, np.abs(took - due), took - due) > 2 * grain_s(starting["time"])
    )
    others = (
        steps[~steps["step"].isin(("start-up", "queue"))]
        .sort_values("begun")
        .drop_duplicates("task")
    )
    begun = starting.set_index("task")["begun"]
    before = others["task"].map(begun).fillna(math.inf)
    text = "task {task} begins with {step}; by the scenario it starts up first"
    yield from findings(text, others, before > others["begun"])
