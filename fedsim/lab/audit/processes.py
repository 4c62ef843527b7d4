"""Did the processes of the world do what the scenario says, and are their records there?"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import pandas as pd

from fedsim.clock.simulation import on_grid
from fedsim.common.streams import Streams
from fedsim.common.units import BytesPerSecond, Seconds
from fedsim.lab.audit.evidence import Evidence, TomlTable, findings, read
from fedsim.lab.audit.hosts import counts_at_once, fewest_at_once

_BEFORE_COUNTS = ("0.1.0",)
"""Versions of fedsim whose summaries do not count the records of processes."""

_ACTS = ("link-rate", "pace", "queue", "switch-off", "switch-on", "edge-off", "edge-on")


def processes(evidence: Evidence) -> Sequence[TomlTable]:
    """The processes that the scenario has."""
    found: Sequence[TomlTable] = evidence.run.scenario.get("world", {}).get("processes", [])
    return found


def outages_as_said(evidence: Evidence) -> Iterator[str]:
    """Outages of links and edge servers begin and end at the times that the scenario and its
    seed give.
    """
    told = processes(evidence)
    for number, process in enumerate(told):
        key = {"link-outage": "link", "edge-outage": "edge"}.get(process["kind"])
        alone = sum(key is not None and other.get(key) == process.get(key) for other in told) == 1
        if key is None or not alone or any(":" in other["kind"] for other in told):
            continue  # what several do at once is recorded once
        yield from _outages(evidence, number, process)


def _outages(evidence: Evidence, number: int, process: TomlTable) -> Iterator[str]:
    begins, ends = _times(evidence, number, process)
    is_of_links = process["kind"] == "link-outage" or process["work"] == "waits"
    found = _rates(evidence, process) if is_of_links else _losses(evidence, process["edge"])
    over = evidence.run.summary["simulated_s"]
    where = f"process {number} ({process['kind']})"
    if is_of_links and len(rates := _usual_rates(evidence, process)) > 1:
        yield f"{where}: between outages the link has rates of {rates} B/s"
    for what, times, due in (("begin", found[0], begins), ("end", found[1], ends)):
        # the run may have ended in that instant
        if times == due or times == [time for time in due if time < over]:
            continue
        pairs = zip_longest(times, due)
        time, wanted = next(pair for pair in pairs if pair[0] != pair[1])
        yield (
            f"{where}: an outage {what}s at {time!r} s; by the scenario and its seed one does at "
            f"{wanted!r} s"
        )


def _rates(evidence: Evidence, process: TomlTable) -> tuple[list[float], list[float]]:
    """When a link is given the outage's rate, and when another one (s)."""
    rates = evidence.said("link-rate").assign(time=evidence.events["time"])
    link = process.get("link", f"edge {process.get('edge')} receive")
    own = rates[rates["link"] == link]
    is_low = own["rate"] == read(BytesPerSecond, process.get("rate", "0 B/s"))
    return own["time"][is_low].tolist(), own["time"][~is_low].tolist()


def _usual_rates(evidence: Evidence, process: TomlTable) -> list[float]:
    """The different rates that a link has between outages (bytes/s), with that of the scenario
    where it says one.
    """
    rates = evidence.said("link-rate")
    link = process.get("link", f"edge {process.get('edge')} receive")
    section, _, way = link.partition(" ")
    told = (
        evidence.run.scenario["network"].get(section, {}).get(way.rpartition(" ")[2])
        if section != "device"
        else None
    )
    low = read(BytesPerSecond, process.get("rate", "0 B/s"))
    found = {rate for rate in rates["rate"][rates["link"] == link].tolist() if rate != low}
    return sorted(found | ({read(BytesPerSecond, told)} if told is not None else set()))


def _losses(evidence: Evidence, edge: int) -> tuple[list[float], list[float]]:
    """When an edge server is lost, and when it is back (s)."""
    found = []
    for kind in ("edge-off", "edge-on"):
        told = evidence.said(kind)
        found.append(evidence.events["time"][told.index[told["edge"] == edge]].tolist())
    return found[0], found[1]


def _times(evidence: Evidence, number: int, process: TomlTable) -> tuple[list[float], list[float]]:
    """When outages begin and end, by draws of the process's own streams (s)."""
    streams = Streams(evidence.run.scenario["seed"])
    end = evidence.run.summary["simulated_s"]
    begins: list[float] = []
    ends: list[float] = []
    now = 0.0
    for count in range(1_000_000):
        for what, found in (("every", begins), ("lasts", ends)):
            mean = read(Seconds, process[what])
            drawn = (
                streams.generator(f"world/process/{what}", number, count).exponential(mean)
                if process["random"]
                else mean
            )
            now = on_grid(now + drawn)
            if now > end:
                return begins, ends
            found.append(now)
    return begins, ends


def slots_as_said(evidence: Evidence) -> Iterator[str]:
    """Uploads queue for as many slots as the scenario gives, and only while these are taken."""
    own = [process for process in processes(evidence) if process["kind"] == "upload-slots"]
    others = any(":" in process["kind"] for process in processes(evidence))
    queues = evidence.said("queue")
    due = [["up", process["slots"]] for process in own]
    found = queues[["direction", "slots"]].to_numpy().tolist()
    if not others and found != due:
        yield f"messages queue for {found}; by the scenario for {due}"
    if not own or others:
        return
    steps = evidence.steps
    slots = own[0]["slots"]
    times, under_way = counts_at_once(
        steps[(steps["step"] == "upload") & ~steps["task"].isin(_of_edges(evidence))]
    )
    if (most := under_way.max(initial=0)) > slots:
        yield (
            f"{most:g} uploads were under way at {times[under_way.argmax()]!r} s; there are "
            f"{slots} slots"
        )
    ordered = steps.sort_values(["task", "begun"])
    before_uploads = ordered["step"].groupby(ordered["task"]).shift(-1) == "upload"
    waits = ordered[
        (ordered["step"] == "queue") & before_uploads & (ordered["time"] > ordered["start"])
    ]
    least = fewest_at_once(times, under_way, waits["start"].to_numpy(), waits["time"].to_numpy())
    text = "task {task} waited for a slot at {start!r} s, when {least:g} of {slots} were taken"
    yield from findings(text, waits.assign(least=least, slots=slots), least < slots)


def _of_edges(evidence: Evidence) -> "pd.Series[int]":
    """Tasks of edge servers, whose messages do not queue."""
    told = evidence.transfers
    return told["task"][told["edge"] >= 0]


def paces_as_said(evidence: Evidence) -> Iterator[str]:
    """Devices are slowed by factors of the scenario's processes alone, and only those that these
    name.
    """
    told = processes(evidence)
    heats = [process for process in told if process["kind"] == "heat"]
    if not heats or any(":" in process["kind"] for process in told):
        return
    paces = evidence.said("pace").join(evidence.events["device"])
    devices = [set(heat.get("devices") or range(evidence.run.population)) for heat in heats]
    factors = {1.0, *(heat["factor"] for heat in heats)}
    factors |= {math.prod(heat["factor"] for heat in heats)}
    unknown = ~paces["device"].isin(set().union(*devices)) | ~paces["factor"].isin(factors)
    yield from findings(
        "record {row} slows device {device} by {factor!r}; by the scenario no process does",
        paces,
        unknown,
    )


def acts_counted(evidence: Evidence) -> Iterator[str]:
    """The records of processes are as many of each kind as the summary counts."""
    summary = evidence.run.summary
    if "acts" not in summary and (summary["fedsim"] in _BEFORE_COUNTS or not processes(evidence)):
        return
    stated = summary.get("acts", {})
    kinds = evidence.events["kind"].value_counts()
    found = {kind: int(count) for kind, count in kinds.items() if _is_act(str(kind)) and count}
    for kind in sorted({*stated, *found}):
        if stated.get(kind) != found.get(kind):
            yield (
                f"there are {found.get(kind)} records {kind!r}, the summary counts "
                f"{json.dumps(stated.get(kind))}"
            )


def _is_act(kind: str) -> bool:
    return kind in _ACTS or kind.startswith("process:")
