"""Devices that share machines: do computations and tasks add up to what the scenario's hosts can do?"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from fedsim.arrays import Floats
from fedsim.audit.evidence import Evidence, findings
from fedsim.language.units import Bytes

_COMPUTING = ("train", "evaluate", "compute")
_ROUNDING_S = 1e-6


def hosts_shared(evidence: Evidence) -> Iterator[str]:
    """Each computation had its host's even share at every instant, and no host had more tasks at once than it has room for."""
    host = evidence.run.scenario["population"].get("host")
    if host is None:
        return
    steps = evidence.steps[evidence.steps["step"].isin(_COMPUTING) & (evidence.steps["outcome"] != "memory")]
    for _, own in steps.join(evidence.core_s).groupby(steps["device"] % host["number"]):
        had = _shares(host, own["start"].to_numpy(), own["time"].to_numpy())
        text = "device {device} had {core_s!r} s of a core by {time!r} s; its host's share was {had!r} s"
        yield from findings(text, own.assign(had=had), ~(np.abs(own["core_s"] - had) <= _ROUNDING_S * (1 + had)))
    tasks, slots = _at_work(evidence), host.get("workers", math.inf)
    if "memory" in host:
        memory, each = (TypeAdapter[float](Bytes).validate_python(host[key]) for key in ("memory", "task_memory"))
        slots = min(slots, memory // each)
    for number, own in tasks.groupby(tasks["device"] % host["number"]):
        most = _busy(own["start"].to_numpy(), own["time"].to_numpy())[1].max()
        if most > slots:
            yield f"host {number} had {most:g} tasks at once; it has room for {slots:g}"


def _busy(start: Any, end: Any) -> tuple[Floats, Floats]:
    """Times at which intervals begin or end, ascending, and how many there are from each on; ends come first."""
    times = np.concatenate([end, start])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.repeat([-1.0, 1.0], [len(end), len(start)])[order])


def _shares(host: Mapping[str, Any], start: Any, end: Any) -> Floats:
    """Seconds of a core that each of a host's computations got; float64 [computations]."""
    times, busy = _busy(start, end)
    cores = host.get("cores", 1)
    counts, work = zip([1.0, 1.0], *host.get("throughput", [[cores, cores]]), strict=True)
    rates = np.interp(busy, counts, work) / np.maximum(busy, 1)
    served = np.append(0.0, np.cumsum(rates[:-1] * np.diff(times)))
    shares: Floats = np.interp(end, times, served) - np.interp(start, times, served)
    return shares


def _at_work(evidence: Evidence) -> pd.DataFrame:
    """Tasks from when they have a worker to their end: a step ``queue`` that comes first is for one."""
    tasks, first = evidence.tasks, evidence.steps.sort_values("begun").drop_duplicates("task")
    waited = first[first["step"] == "queue"].set_index("task")["time"]
    return tasks.assign(start=tasks["task"].map(waited).fillna(tasks["start"]))
