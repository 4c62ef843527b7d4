"""Critical paths in words and tables: the reasons why a run, or one of its rounds, took as long as it did."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from fedsim.lab.compare.critical_path import SHARED, WAIT, CriticalPaths, PathStep, RoundPath
from fedsim.lab.compare.table import Cell, ComparedTable
from fedsim.language.units import show_seconds

_BAR = 40  # characters of the longest bar
_MOST_DEVICES = 5


def run_in_words(paths: CriticalPaths) -> list[str]:
    """The reasons why the rounds of a run ended when they did: deadlines, and the slowest devices."""
    rounds = paths.rounds
    if not rounds:
        return ["The run has no rounds, so nothing was waited for."]
    lengths = [one.seconds for one in rounds]
    words = [
        f"{len(rounds)} rounds in {show_seconds(rounds[-1].end)}: {show_seconds(median(lengths))} in the median, "
        f"{show_seconds(max(lengths))} the longest (round {max(rounds, key=lambda one: one.seconds).number})."
    ]
    asked = [one for one in rounds if one.selected and one.half is not None]
    if asked:
        total = sum(one.seconds for one in asked)
        half = sum(one.half - one.start for one in asked if one.half is not None) / total if total else 0.0
        words.append(
            f"Half of a round's clients were done after {half:.0%} of it; the slowest alone held the rounds up for "
            f"{show_seconds(sum(one.sooner for one in asked))} in all."
        )
    ended = sum(one.deadline for one in rounds)
    if ended:
        words.append(f"The deadline ended {ended} of {len(rounds)} rounds.")
    often = Counter(one.device for one in rounds if one.device is not None).most_common(_MOST_DEVICES)
    words.append(
        "Waited for most often: "
        + ", ".join(f"device {device} ({count} round{'s' if count > 1 else ''})" for device, count in often)
        + "."
    )
    return words


def round_in_words(paths: CriticalPaths, number: int) -> list[str]:
    """The reasons why a round took as long as it did, and changes that would have ended it sooner."""
    one, usual = paths.round(number), median(other.seconds for other in paths.rounds)
    ratio = f"{one.seconds / usual:.2g}" if usual else ""
    factor = {"": "", "1": ", as long as the median"}.get(ratio, f", {ratio} times the median")
    words = [
        f"Round {number} took {show_seconds(one.seconds)}{factor}: "
        f"from {show_seconds(one.start)} to {show_seconds(one.end)} of simulated time."
    ]
    if one.deadline:
        words.append(f"Its deadline ended it: {len(one.late)} of {one.selected} clients were late ({_devices(one.late)}).")
    elif one.late:
        words.append(f"Enough others had answered: {len(one.late)} of {one.selected} clients were cut off.")
    if not one.steps:
        return words
    longest = max(one.steps, key=lambda step: step.seconds)
    words.append(f"It waited longest for {_of(longest)}: {show_seconds(longest.seconds)}, {longest.seconds / one.seconds:.0%}.")
    return [*words, *_sooner(one, longest)]


def _sooner(one: RoundPath, longest: PathStep) -> Iterator[str]:
    """Changes that would have ended a round sooner, by as much as its records tell."""
    if one.sooner > 0:
        whom = "the late clients" if one.deadline else f"device {one.device}"
        yield f"Without {whom} it would have ended {show_seconds(one.sooner)} sooner."
        if longest.step not in (WAIT, "queue") and longest.outcome == "done":
            gain = min(longest.seconds / 2, one.sooner)
            then = "; then another client is the last" if gain == one.sooner else ""
            yield f"With twice the rate there, {show_seconds(gain)} sooner{then}."
    shared = one.totals.get(SHARED, 0.0) + one.totals.get("queue at the server", 0.0)
    if shared > 0:
        yield f"Shared links and queues held its path up for {show_seconds(shared)}: the most that a faster server saves."


def _of(step: PathStep) -> str:
    if step.device is not None:
        return f"device {step.device} ({step.step})"
    return step.label or "the server, or its timers; no device was at work"


def _devices(devices: Sequence[int]) -> str:
    names = ", ".join(map(str, devices[:_MOST_DEVICES]))
    return f"device{'s' if len(devices) > 1 else ''} {names}" + (" and others" if len(devices) > _MOST_DEVICES else "")


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
            row: dict[str, Cell] = {"critical path": name, "took": show_seconds(seconds)}
            row |= {"share": f"{seconds / paths.end:.1%}" if paths.end else None, "run": run}
            rows.append(row | {"": "#" * round(_BAR * seconds / most)})
    heads = ["critical path", *(["run"] if len(runs) > 1 else []), "took", "share", ""]
    return ComparedTable.of(heads, rows)
