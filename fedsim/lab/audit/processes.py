"""Checks that the world's processes followed the scenario, and that their records are complete."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import pandas as pd

from fedsim.clock.simulation import on_grid
from fedsim.common.streams import Streams
from fedsim.common.units import BytesPerSecond, Seconds
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import read_quantity, report_rows
from fedsim.lab.audit.hosts import counts_at_once, fewest_at_once
from fedsim.lab.audit.traces import has_trace

_VERSIONS_WITHOUT_COUNTS = ("0.1.0",)
"""Versions of fedsim whose summaries have no counts of process records."""

_ACT_KINDS = ("link-rate", "pace", "queue", "switch-off", "switch-on", "edge-off", "edge-on")
_TARGET_KEYS = {"link-outage": "link", "edge-outage": "edge"}
"""Dict from kind of process that causes outages to its key for the link or edge server."""


class _Outages(NamedTuple):
    """Times at which outages of a link or edge server begin and end (s)."""

    begins: list[float]
    ends: list[float]


def process_sections(evidence: Evidence) -> Sequence[TomlTable]:
    """Return the tables ``[[world.processes]]`` of the scenario, such as outages of links."""
    sections: Sequence[TomlTable] = evidence.run.scenario.get("world", {}).get("processes", [])
    return sections


def _has_user_code(sections: Sequence[TomlTable]) -> bool:
    """Whether any process is user code, which may act on anything."""
    return any(":" in section["kind"] for section in sections)


def check_outages(evidence: Evidence) -> Iterator[str]:
    """Yield findings if outages of links or edge servers have wrong times.

    The times are drawn again from the scenario's seed. Nothing is checked if a process of the
    scenario is user code, which may cause outages too.
    """
    sections = process_sections(evidence)
    if _has_user_code(sections):
        return
    for number, process in enumerate(sections):
        key = _TARGET_KEYS.get(process["kind"])
        if key is None:
            continue
        target = process.get(key)
        of_target = [section for section in sections if section.get(key) == target]
        # outages of a target by two processes may overlap, and are then recorded once
        if len(of_target) == 1:
            yield from _check_outages_of(evidence, number, process)


def _check_outages_of(evidence: Evidence, number: int, process: TomlTable) -> Iterator[str]:
    """Yield a finding if the outages that a process caused begin or end at wrong times.

    The recorded times are compared with draws from the seed. A link that has several rates between
    its outages is a finding, too.

    Args:
        evidence: the run folder.
        number: index of the process in the scenario.
        process: section of the process in the scenario.
    """
    name = f"process {number} ({process['kind']})"
    # an edge server's work ``waits`` in an outage if only its link breaks off
    if process["kind"] == "link-outage" or process["work"] == "waits":
        stated = _find_link_outages(evidence, process)
        rates = _usual_rates(evidence, process)
        if len(rates) > 1:
            yield f"{name}: between outages the link has rates of {rates} B/s"
    else:
        stated = _find_edge_outages(evidence, process["edge"])
    expected = _draw_outages(evidence, number, process)
    yield from _check_times(evidence, f"{name}: an outage begins", stated.begins, expected.begins)
    yield from _check_times(evidence, f"{name}: an outage ends", stated.ends, expected.ends)


def _check_times(
    evidence: Evidence, event: str, stated: list[float], expected: list[float]
) -> Iterator[str]:
    """Yield a finding for the first time that differs between recorded and expected times (s).

    Args:
        evidence: the run folder.
        event: begin of the finding, such as ``an outage begins``.
        stated: recorded times.
        expected: times by the scenario's seed.
    """
    end = evidence.run.summary["simulated_s"]
    # a run that ends in the instant of an outage may end before the outage is recorded
    if stated == expected or stated == [time for time in expected if time < end]:
        return
    for time, expected_time in zip_longest(stated, expected):
        if time != expected_time:
            yield (
                f"{event} at {time!r} s; by the scenario and its seed one does at "
                f"{expected_time!r} s"
            )
            return


def _find_link(process: TomlTable) -> str:
    """Return the name of the link whose rate an outage lowers.

    Args:
        process: section of the process that causes the outage; a link or an edge server is its
            target.
    """
    link: str = process.get("link", f"edge {process.get('edge')} receive")
    return link


def _find_link_outages(evidence: Evidence, process: TomlTable) -> _Outages:
    """Return the recorded begins and ends of a link's outages.

    The run records each change of the link's rate. A change to the low rate that the scenario sets
    for outages begins one; a change to any other rate ends it.

    Args:
        evidence: the run folder.
        process: the scenario's section of the process that causes the outages.
    """
    rates = evidence.data_of("link-rate").assign(time=evidence.events["time"])
    rates = rates[rates["link"] == _find_link(process)]
    is_low = rates["rate"] == read_quantity(BytesPerSecond, process.get("rate", "0 B/s"))
    return _Outages(rates["time"][is_low].tolist(), rates["time"][~is_low].tolist())


def _usual_rates(evidence: Evidence, process: TomlTable) -> list[float]:
    """Return the distinct rates that a link had outside its outages (bytes/s), sorted.

    They are the recorded rates and, unless it is a device's own link, the rate by the scenario.

    Args:
        evidence: the run folder.
        process: the scenario's section of the process that causes the outages.
    """
    records = evidence.data_of("link-rate")
    link = _find_link(process)
    low = read_quantity(BytesPerSecond, process.get("rate", "0 B/s"))
    rates = set(records["rate"][records["link"] == link].tolist()) - {low}
    # links are named such as "device 7 up" or "server down"
    words = link.split(" ")
    if words[0] != "device":
        text = evidence.run.scenario["network"].get(words[0], {}).get(words[-1])
        if text is not None and not has_trace(text):
            rates.add(read_quantity(BytesPerSecond, text))
    return sorted(rates)


def _find_edge_outages(evidence: Evidence, edge: int) -> _Outages:
    """Return the recorded times at which an edge server failed and came back."""
    return _Outages(_edge_times(evidence, "edge-off", edge), _edge_times(evidence, "edge-on", edge))


def _edge_times(evidence: Evidence, kind: str, edge: int) -> list[float]:
    """Return the times (s) of an edge server's records of a kind, such as ``edge-off``."""
    records = evidence.data_of(kind)
    rows = records.index[records["edge"] == edge]
    times: list[float] = evidence.events["time"][rows].tolist()
    return times


def _draw_outages(evidence: Evidence, number: int, process: TomlTable) -> _Outages:
    """Draw the outages of a process up to the run's end, from the process's random streams.

    Args:
        evidence: the run folder.
        number: index of the process in the scenario.
        process: section of the process.
    """
    streams = Streams(evidence.run.scenario["seed"])
    end = evidence.run.summary["simulated_s"]
    outages = _Outages([], [])
    now = 0.0
    # the loop returns at the run's end; its bound is for a damaged scenario with durations of 0
    for outage in range(1_000_000):
        for key, times in (("every", outages.begins), ("lasts", outages.ends)):
            duration = read_quantity(Seconds, process[key])
            if process["random"]:
                generator = streams.generator(f"world/process/{key}", number, outage)
                duration = generator.exponential(duration)
            now = on_grid(now + duration)
            if now > end:
                return outages
            times.append(now)
    return outages


def check_upload_slots(evidence: Evidence) -> Iterator[str]:
    """Yield findings for uploads that break the scenario's limit of simultaneous uploads (slots).

    At most ``slots`` uploads run at a time, and an upload waits only if all slots are in use.
    """
    recorded = evidence.data_of("queue")[["direction", "slots"]].to_numpy().tolist()
    sections = process_sections(evidence)
    if _has_user_code(sections):
        return
    limits = [process["slots"] for process in sections if process["kind"] == "upload-slots"]
    expected = [["up", limit] for limit in limits]
    if recorded != expected:
        yield f"messages queue for {recorded}; by the scenario for {expected}"
    if limits:
        yield from _check_slots(evidence, limits[0])


def _check_slots(evidence: Evidence, slots: int) -> Iterator[str]:
    """Yield findings for too many simultaneous uploads, and for waits while a slot was free.

    Args:
        evidence: the run folder.
        slots: allowed count of simultaneous uploads.
    """
    steps = evidence.steps
    uploads = steps[(steps["step"] == "upload") & ~steps["task"].isin(_find_edge_tasks(evidence))]
    times, under_way = counts_at_once(uploads)
    most_uploads = under_way.max(initial=0)
    if most_uploads > slots:
        time = times[under_way.argmax()]
        yield f"{most_uploads:g} uploads were under way at {time!r} s; there are {slots} slots"
    ordered = steps.sort_values(["task", "begin_row"])
    before_upload = ordered["step"].groupby(ordered["task"]).shift(-1) == "upload"
    has_waited = ordered["time"] > ordered["start"]
    waits = ordered[(ordered["step"] == "queue") & before_upload & has_waited]
    fewest = fewest_at_once(times, under_way, waits["start"].to_numpy(), waits["time"].to_numpy())
    template = "task {task} waited for a slot at {start!r} s, when {fewest:g} of {slots} were taken"
    yield from report_rows(template, waits.assign(fewest=fewest, slots=slots), fewest < slots)


def _find_edge_tasks(evidence: Evidence) -> "pd.Series[int]":
    """Return the IDs of tasks whose messages pass an edge server and so do not queue."""
    transfers = evidence.transfers
    return transfers["task"][transfers["edge"] >= 0]


def check_slowdowns(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each slowdown of a device that no process of the scenario explains.

    The scenario's processes of kind ``heat`` name the devices that they may slow down (by
    default all), and the factor.
    """
    sections = process_sections(evidence)
    heats = [process for process in sections if process["kind"] == "heat"]
    if not heats or _has_user_code(sections):
        return
    paces = evidence.data_of("pace").join(evidence.events["device"])
    devices = set[int]()
    for heat in heats:
        devices.update(heat.get("devices") or range(evidence.run.population))
    factors = [heat["factor"] for heat in heats]
    # 1 after a slowdown, the factor of one process, or the product if all slow at a time
    allowed = {1.0, *factors, math.prod(factors)}
    template = "record {row} slows device {device} by {factor!r}; by the scenario no process does"
    wrong = ~paces["device"].isin(devices) | ~paces["factor"].isin(allowed)
    yield from report_rows(template, paces, wrong)


def check_act_counts(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each kind of act whose count in the summary is not the recorded count.

    An act is a record of a change of devices or links, such as ``switch-off``, that a process of
    the scenario (``[[world.processes]]``) caused.
    """
    summary = evidence.run.summary
    if "acts" not in summary and _may_lack_counts(evidence):
        return
    stated = summary.get("acts", {})
    counts = {}
    for kind, count in evidence.events["kind"].value_counts().items():
        if _is_act(str(kind)) and count:
            counts[str(kind)] = int(count)
    for kind in sorted({*stated, *counts}):
        if stated.get(kind) != counts.get(kind):
            yield (
                f"there are {counts.get(kind)} records {kind!r}, the summary counts "
                f"{json.dumps(stated.get(kind))}"
            )


def _may_lack_counts(evidence: Evidence) -> bool:
    run = evidence.run
    is_older = run.understood.is_former or run.summary["fedsim"] in _VERSIONS_WITHOUT_COUNTS
    return is_older or not process_sections(evidence)


def _is_act(kind: str) -> bool:
    return kind in _ACT_KINDS or kind.startswith("process:")
