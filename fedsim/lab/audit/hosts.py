"""Checks that devices on shared hosts wait for workers, start up and share cores as configured."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.common.step_names import COMPUTATIONS
from fedsim.common.units import Bytes, Seconds
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, grain_s, read_quantity, report_rows

_ROUNDING = 1e-6


def check_core_shares(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each computation that did not get an even share of its host's cores.

    A host is a machine that several devices share. By the scenario, its throughput (in cores)
    depends on how many computations it carries out at a time. These share the throughput evenly.
    """
    host = evidence.run.scenario["population"].get("host")
    if host is None:
        return
    steps = evidence.steps
    cores = host.get("cores", 1)
    # points (computations at a time, cores) between which the throughput is interpolated
    throughput = [[1.0, 1.0], *host.get("throughput", [[cores, cores]])]
    counts = [count for count, _ in throughput]
    throughputs = [rate for _, rate in throughput]
    computing = steps[steps["step"].isin(COMPUTATIONS) & (steps["outcome"] != "memory")]
    template = (
        "device {device} had {core_s!r} s of a core by {time!r} s; its host's share was "
        "{expected!r} s"
    )
    hosts = steps["device"] % host["number"]
    for _, spans in computing.join(evidence.core_s).groupby(hosts):
        times, busy = counts_at_once(spans)
        # cores of each computation while ``busy`` computations run; core time (s) up to each time
        core_shares = np.interp(busy, counts, throughputs) / np.maximum(busy, 1)
        core_s_until = np.append(0.0, np.cumsum(core_shares[:-1] * np.diff(times)))
        until_end = np.interp(spans["time"], times, core_s_until)
        expected = until_end - np.interp(spans["start"], times, core_s_until)
        wrong = ~(np.abs(spans["core_s"] - expected) <= _ROUNDING * (1 + expected))
        yield from report_rows(template, spans.assign(expected=expected), wrong)


def check_host_workers(evidence: Evidence) -> Iterator[str]:
    """Yield findings for hosts with more tasks than workers, and for tasks that waited needlessly.

    A host is a machine that several devices share; a task waits only while all of its workers are
    taken.
    """
    host = evidence.run.scenario["population"].get("host")
    if host is None:
        return
    steps = evidence.steps
    tasks = evidence.tasks
    slots = _largest_count(host)
    first = steps.sort_values("begin_row").drop_duplicates("task")
    waits = first[first["step"] == "queue"]  # a task's first step "queue" waits for a worker
    if slots == math.inf:
        yield from report_rows(
            "task {task} waited for a worker, and its host has one for each", waits
        )
        return
    # a task takes a worker when its wait ends, or at once
    wait_end = waits.set_index("task")["time"]
    at_work = tasks.assign(start=tasks["task"].map(wait_end).fillna(tasks["start"]))
    long_waits = waits[waits["time"] > waits["start"]]
    for number, spans in at_work.groupby(tasks["device"] % host["number"]):
        times, busy = counts_at_once(spans)
        most_tasks = busy.max()
        if most_tasks > slots:
            yield f"host {number} had {most_tasks:g} tasks at once; it has room for {slots:g}"
        waiting = long_waits[long_waits["device"] % host["number"] == number]
        start = waiting["start"].to_numpy()
        # the wait was needless if the host had a free worker at some time during the wait
        fewest = fewest_at_once(times, busy, start, waiting["time"].to_numpy())
        template = (
            "task {task} waited for a worker of host {number} at {start!r} s, when {fewest:g} of "
            "{slots:g} were taken"
        )
        waiting = waiting.assign(number=number, fewest=fewest, slots=slots)
        yield from report_rows(template, waiting, fewest < slots)


def _largest_count(host: TomlTable) -> float:
    """Return how many tasks a host's workers and memory allow at a time; may be infinity.

    Args:
        host: the scenario's section on hosts, the machines that devices share.
    """
    slots = float(host.get("workers", math.inf))
    if "memory" in host:
        memory = read_quantity(Bytes, host["memory"])
        task_memory = read_quantity(Bytes, host["task_memory"])
        slots = min(slots, memory // task_memory)
    return slots


def fewest_at_once(times: Floats, busy: Floats, start: Floats, end: Floats) -> Floats:
    """Return the smallest count of running tasks during each of given intervals.

    Args:
        times: times at which the count of tasks changes (s); float64 [n].
        busy: count of tasks from each time until the next; float64 [n].
        start: begins of the intervals (s); float64 [m].
        end: ends of the intervals (s), exclusive; float64 [m].

    Returns:
        Counts, infinity if ``times`` is empty; float64 [m].
    """
    fewest = np.full(len(start), np.inf)
    if not len(start) or not len(times):
        return fewest
    is_last_of_instant = np.append(times[1:] > times[:-1], True)
    times = times[is_last_of_instant]
    busy = busy[is_last_of_instant]
    for index, (begin, until) in enumerate(zip(start, end, strict=True)):
        # the interval begins with the count of the last change before it, or at its begin
        first = np.searchsorted(times, begin, side="right") - 1
        last = np.searchsorted(times, until, side="left")
        within = busy[max(first, 0) : max(last, first + 1)]
        fewest[index] = within.min(initial=np.inf)
    return fewest


def counts_at_once(spans: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return how many intervals overlap at a time, as a step function.

    Args:
        spans: DataFrame of intervals from ``start`` to ``time`` (s).

    Returns:
        Times (s) at which an interval begins or ends, ascending; at equal times, ends come before
        begins. And the count of overlapping intervals from each time until the next. Both are
        float64 [n], for n = 2 times the count of intervals.
    """
    # the sort is stable: as ends are listed first, they come first within an instant
    times = np.concatenate([spans["time"], spans["start"]])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.repeat([-1.0, 1.0], len(spans))[order])


def check_start_ups(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each task with a missing or wrong start-up.

    A start-up is the time that a task on a shared host needs before it can compute. It comes before
    all other steps of the task except ``queue``, and takes the time that the scenario sets.
    """
    host = evidence.run.scenario["population"].get("host") or {}
    expected = read_quantity(Seconds, host.get("start_up", "0 s"))
    steps = evidence.steps[evidence.steps["device"] != NOTHING]
    start_ups = steps[steps["step"] == "start-up"]
    if not expected:
        yield from report_rows("task {task} starts up, and by the scenario none does", start_ups)
        return
    start_ups = start_ups.assign(took=start_ups["time"] - start_ups["start"], expected=expected)
    template = "task {task} started up in {took!r} s; by the scenario that takes {expected!r} s"
    # begin and end are each rounded to a tick of the clock
    is_wrong = _start_up_errors(start_ups, expected) > 2 * grain_s(start_ups["time"])
    yield from report_rows(template, start_ups, is_wrong)
    work = steps[~steps["step"].isin(("start-up", "queue"))]
    first = work.sort_values("begin_row").drop_duplicates("task")
    start_up_rows = start_ups.set_index("task")["begin_row"]
    start_up_row = first["task"].map(start_up_rows).fillna(math.inf)
    template = "task {task} begins with {step}; by the scenario it starts up first"
    yield from report_rows(template, first, start_up_row > first["begin_row"])


def _start_up_errors(start_ups: pd.DataFrame, expected: float) -> Floats:
    """Return the error of each start-up's duration (s); float64 [start_ups].

    This is the absolute difference from the expected duration if the start-up was finished. A
    start-up that was cut off may be shorter, so its error is the excess, which may be negative.

    Args:
        start_ups: DataFrame with the duration ``took`` (s) and the ``outcome``.
        expected: expected duration (s).
    """
    excess = start_ups["took"] - expected
    return np.where(start_ups["outcome"] == "done", np.abs(excess), excess)
