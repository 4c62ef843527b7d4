"""Critical paths in words and tables: the reasons why a run, or one of its rounds, took as long as it did."""

from collections import Counter
from collections.abc import Mapping
from statistics import median

from fedsim.lab.compare.critical_path import SHARED, CriticalPaths, RoundPath
from fedsim.lab.compare.table import Cell, ComparedTable
from fedsim.language.units import show_seconds

_BAR = 40  # characters of the longest bar
_MOST_DEVICES = 5


def run_in_words(paths: CriticalPaths) -> list[str]:
    """The reasons why the rounds of a run ended when they did: deadlines, and the slowest devices."""
    rounds = paths.rounds
    if not rounds:
        return ["The run has no rounds, so nothing was waited for."]
    longest = max(rounds, key=lambda one: one.seconds)
    words = [
        f"{len(rounds)} rounds in {show_seconds(rounds[-1].end)}: {show_seconds(median(one.seconds for one in rounds))} in the "
        f"median, {show_seconds(longest.seconds)} the longest (round {longest.number})."
    ]
    if any(one.selected for one in rounds):
        words.append(f"The slowest alone held the rounds up for {show_seconds(sum(one.sooner for one in rounds))} in all.")
    if ended := sum(one.deadline for one in rounds):
        words.append(f"The deadline ended {ended} of {len(rounds)} rounds.")
    often = Counter(one.device for one in rounds if one.device is not None).most_common(_MOST_DEVICES)
    named = (f"device {device} ({count} round{'s' if count > 1 else ''})" for device, count in often)
    return [*words, f"Waited for most often: {', '.join(named)}."]


def round_in_words(paths: CriticalPaths, number: int) -> list[str]:
    """The reasons why a round took as long as it did, and changes that would have ended it sooner."""
    one, usual = paths.round(number), median(other.seconds for other in paths.rounds)
    factor = f", {one.seconds / usual:.2g} times the median" if usual else ""
    words = [
        f"Round {number} took {show_seconds(one.seconds)}{factor}: "
        f"from {show_seconds(one.start)} to {show_seconds(one.end)} of simulated time."
    ]
    devices = ", ".join(map(str, one.late[:_MOST_DEVICES])) + (" and others" if len(one.late) > _MOST_DEVICES else "")
    if one.deadline:
        words.append(f"Its deadline ended it: {len(one.late)} of {one.selected} clients were late (devices {devices}).")
    elif one.late:
        words.append(f"Enough others had answered: {len(one.late)} of {one.selected} clients were cut off.")
    if one.steps:
        step = max(one.steps, key=lambda step: step.seconds)
        idle = step.label or "the server, or its timers; no device was at work"
        whom = idle if step.device is None else f"device {step.device} ({step.step})"
        words.append(f"It waited longest for {whom}: {show_seconds(step.seconds)}, {step.seconds / one.seconds:.0%}.")
    if one.steps and one.sooner > 0:
        whom = "the late clients" if one.deadline else f"device {one.device}"
        words.append(f"Without {whom} it would have ended {show_seconds(one.sooner)} sooner.")
    shared = one.totals.get(SHARED, 0.0) + one.totals.get("queue at the server", 0.0)
    if shared > 0:
        words.append(f"Shared links and queues held it up for {show_seconds(shared)}: the most that a faster server saves.")
    return words


def path_table(one: RoundPath) -> ComparedTable:
    """The steps of a round's path; their times sum to the round's."""
    rows: list[dict[str, Cell]] = [
        {
            "step": step.step if step.outcome == "done" else f"{step.step} ({step.outcome})",
            "of": step.label or (None if step.device is None else f"device {step.device}"),
            "after": show_seconds(step.start - one.start),
            "took": show_seconds(step.seconds),
            "share": f"{step.seconds / one.seconds:.1%}",
            "of it shared links": show_seconds(step.shared) if step.shared else None,
        }
        for step in one.steps
    ]
    return ComparedTable.of(["step", "of", "after", "took", "share", "of it shared links"], rows)


def totals_table(runs: Mapping[str, CriticalPaths]) -> ComparedTable:
    """The simulated time of runs by category of their critical paths, with bars on one axis of time."""
    names = dict.fromkeys(name for paths in runs.values() for name in paths.totals)
    most = max((seconds for paths in runs.values() for seconds in paths.totals.values()), default=0.0)
    rows: list[dict[str, Cell]] = []
    for name in names:
        for run, paths in runs.items():
            seconds = paths.totals.get(name, 0.0)
            share = f"{seconds / paths.end:.1%}" if paths.end else None
            bar = "#" * round(_BAR * seconds / most)
            rows.append({"critical path": name, "run": run, "took": show_seconds(seconds), "share": share, "": bar})
    heads = ["critical path", *(["run"] if len(runs) > 1 else []), "took", "share", ""]
    return ComparedTable.of(heads, rows)
