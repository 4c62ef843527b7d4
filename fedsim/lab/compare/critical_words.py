"""Critical paths in sentences and tables: what rounds waited for, and what would shorten them."""

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from statistics import median

from fedsim.common import step_names
from fedsim.common.round_words import count_rounds, counted
from fedsim.common.units import show_ratio, show_seconds, show_share
from fedsim.lab.compare.columns import Cell, ComparedTable
from fedsim.lab.compare.critical_path import (
    AFTER,
    AT_HOST,
    QUEUE,
    SHARED,
    WAIT,
    CriticalPaths,
    PathStep,
    RoundPath,
)

_BAR = 40  # length of the longest bar (characters)
_MOST_DEVICES = 5
_MESSAGE = "message"
_MOST_MESSAGES = 3  # up to this count, consecutive messages have a row each; more share a row


def run_in_words(paths: CriticalPaths) -> list[str]:
    """Return sentences for people on the deadlines and devices for which a run's rounds waited.

    Args:
        paths: for each round of the run, the chain of steps for which it waited.
    """
    rounds = paths.rounds
    if not rounds:
        return [f"The run has no {paths.word}s, so nothing was waited for."]
    round_count = count_rounds(len(rounds), paths.word)
    sentences = [f"{round_count} in {show_seconds(rounds[-1].end)}{_lengths_in_words(paths)}."]
    selecting_rounds = [path for path in rounds if path.selected]
    if selecting_rounds:
        seconds = sum(path.seconds for path in selecting_rounds)
        half_done_s = sum(path.half_done_s - path.start for path in selecting_rounds)
        half_done_share = half_done_s / (seconds or 1.0)
        saved_s = sum(path.saved_s for path in rounds)
        sentences.append(
            f"Half of the clients that began to work were done after {show_share(half_done_share)} "
            "of a round; the clients that ended last held the rounds up for "
            f"{show_seconds(saved_s)} in all."
        )
    deadline_count = sum(path.by_deadline for path in rounds)
    if deadline_count:
        sentences.append(f"The deadline ended {deadline_count:,} of {round_count}.")
    counts = Counter(path.device for path in rounds if path.device is not None)
    devices = []
    for device, count in counts.most_common(_MOST_DEVICES):
        devices.append(f"device {device} ({count_rounds(count, paths.word)})")
    if devices:
        sentences.append(f"Waited for most often: {', '.join(devices)}.")
    return sentences


def _lengths_in_words(paths: CriticalPaths) -> str:
    """Return the end of a sentence on the usual and the longest round; empty for a single round."""
    rounds = paths.rounds
    if len(rounds) == 1:
        return ""
    longest = max(rounds, key=lambda path: path.seconds)
    usual = show_seconds(median(path.seconds for path in rounds))
    most = show_seconds(longest.seconds)
    if most == usual:
        return f": {usual} in the median and at most"
    return f": {usual} in the median, {most} the longest ({paths.word} {longest.number})"


def round_in_words(paths: CriticalPaths, number: int) -> list[str]:
    """Return sentences on why a round took its time, and on changes that would shorten it.

    Args:
        paths: the critical paths of the run.
        number: index of the round.
    """
    path = paths.described_round(number)
    usual = median(path.seconds for path in paths.rounds)
    words = [
        f"{paths.word.capitalize()} {number} took {show_seconds(path.seconds)}"
        f"{_compare_length(path.seconds, usual)}: "
        f"from {show_seconds(path.start)} to {show_seconds(path.end)} of {paths.clock}."
    ]
    if path.late:
        words.append(_late_in_words(path))
    if path.steps:
        words += _longest_in_words(path)
    shared_s = path.totals.get(SHARED, 0.0) + path.totals.get(QUEUE, 0.0)
    if shared_s > 0:
        words.append(
            f"Shared links and queues held it up for {show_seconds(shared_s)}: the most that a "
            "faster server saves."
        )
    at_host_s = path.totals.get(AT_HOST, 0.0)
    if at_host_s > 0:
        words.append(
            f"Its tasks waited {show_seconds(at_host_s)} for workers: the most that more workers "
            "of the hosts save."
        )
    return words


def _late_in_words(path: RoundPath) -> str:
    """Return a sentence on the clients whose tasks were cut off at the end of a round."""
    late_count = len(path.late)
    verb = "was" if late_count == 1 else "were"
    count = f"{late_count} of {counted(path.selected, 'client')}"
    if not path.by_deadline:
        return f"Enough others had answered: {count} {verb} cut off."
    noun = "devices" if late_count > 1 else "device"
    devices = f"{noun} {', '.join(map(str, path.late[:_MOST_DEVICES]))}"
    if late_count > _MOST_DEVICES:
        devices += " and others"
    return f"Its deadline ended it: {count} {verb} late ({devices})."


def category_in_words(paths: CriticalPaths, category: str) -> str:
    """Return a readable name of a kind of waiting, such as ``computing``, for sentences and tables.

    This is ``category`` itself, with one exception: ``after the last round`` becomes ``after the
    last version`` in an asynchronous run, which has model versions instead of rounds.

    Args:
        paths: the critical paths of the run.
        category: a key of the paths' ``totals``.
    """
    return f"after the last {paths.word}" if category == AFTER else category


def _compare_length(seconds: float, usual: float) -> str:
    if not usual:
        return ""
    ratio = show_ratio(seconds / usual, 2)
    return ", as long as the median" if ratio == "1" else f", {ratio} times the median"


def _longest_in_words(path: RoundPath) -> list[str]:
    """Return sentences on the longest of the steps for which a round waited.

    They also state how much sooner the round would have ended without the last client, or with
    twice the rate in that step.
    """
    step = max(path.steps, key=lambda step: step.seconds)
    awaited = step.label or "the server, its timers, or devices to come"
    if step.device is not None:
        awaited = f"device {step.device} ({step.step})"
    words = [
        f"It waited longest for {awaited}: {show_seconds(step.seconds)}, "
        f"{show_share(step.seconds / path.seconds)}."
    ]
    if path.saved_s > 0:
        clients = "the client that ended last"
        if path.device is not None:
            clients = f"device {path.device}"
        if path.clients_at_end > 1:
            clients = f"the {path.clients_at_end:,} clients that ended last together"
        if path.by_deadline:
            clients = "the late client" if len(path.late) == 1 else "the late clients"
        words.append(f"Without {clients} it would have ended {show_seconds(path.saved_s)} sooner.")
    # twice the rate helps only if the step is no wait, and if a single client ended last
    has_one_last_client = path.saved_s > 0 and path.clients_at_end == 1
    is_waiting = step.step in (WAIT, step_names.QUEUE)
    if has_one_last_client and step.outcome == "done" and not is_waiting:
        gain = min(step.seconds / 2, path.saved_s)
        limit = ""
        if gain == path.saved_s:
            limit = "; then another client is the last"
        words.append(f"With twice the rate there, {show_seconds(gain)} sooner{limit}.")
    return words


def path_table(path: RoundPath) -> ComparedTable:
    """Return a table of the steps of a round's critical path, with a row for each step.

    If many messages follow each other, as in an all-reduce, they share a row. If transfers took
    longer because links were shared, a column has this additional time.
    """
    rows: list[dict[str, Cell]] = []
    for kind, group in groupby(path.steps, key=lambda step: step.step):
        steps = list(group)
        if kind == _MESSAGE and len(steps) > _MOST_MESSAGES:
            seconds = sum(step.seconds for step in steps)
            route = f"{steps[0].label}, and so on until {steps[-1].label}"
            rows.append(
                {
                    "step": f"{len(steps)} messages",
                    "of": route,
                    "after": show_seconds(steps[0].start - path.start),
                    "took": show_seconds(seconds),
                    "share": show_share(seconds / path.seconds, 1),
                }
            )
        else:
            rows += [_path_row(path, step) for step in steps]
    heads = ["step", "of", "after", "took", "share"]
    if any(step.shared for step in path.steps):
        heads.append("of it shared links")
    return ComparedTable.of(heads, rows)


def _path_row(path: RoundPath, step: PathStep) -> dict[str, Cell]:
    """Return the row of ``path_table`` for one step, as a dict from heading to cell."""
    name = step.step
    if step.outcome != "done":
        name += f" ({step.outcome})"
    device = None if step.device is None else f"device {step.device}"
    return {
        "step": name,
        "of": step.label or device,
        "after": show_seconds(step.start - path.start),
        "took": show_seconds(step.seconds),
        "share": show_share(step.seconds / path.seconds, 1),
        "of it shared links": show_seconds(step.shared) if step.shared else None,
    }


def totals_table(runs: Mapping[str, CriticalPaths]) -> ComparedTable:
    """Return a table of the time for which runs waited, with a bar of ``#`` in each row.

    It has a row for each pair of a kind of waiting, such as ``computing``, and a run.

    Args:
        runs: the critical paths of runs, by the runs' names.
    """
    most = 0.0
    categories: dict[str, None] = {}
    for paths in runs.values():
        most = max([most, *paths.totals.values()])
        categories.update(dict.fromkeys(paths.totals))
    rows: list[dict[str, Cell]] = []
    for category in categories:
        for run, paths in runs.items():
            seconds = paths.totals.get(category, 0.0)
            rows.append(
                {
                    "critical path": category_in_words(paths, category),
                    "run": run,
                    "took": show_seconds(seconds),
                    "share": show_share(seconds / paths.end, 1) if paths.end else None,
                    "": "#" * round(_BAR * seconds / most),
                }
            )
    heads = ["critical path", "took", "share", ""]
    if len(runs) > 1:
        heads.insert(1, "run")
    return ComparedTable.of(heads, rows)
