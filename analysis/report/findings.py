"""Findings of a report: sentences with the anchor of the part of the page that shows each."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from fedsim.analysis.series import Series
from fedsim.common.round_words import count_rounds, counted
from fedsim.common.units import show_bytes, show_joules, show_seconds, show_share
from fedsim.records.ledger import total
from fedsim.records.reading import RunFolder
from fedsim.world.meters.energy import PHASES

_LONG_RATIO = 1.2  # the longest round is a finding if it exceeds this multiple of the median

Finding = tuple[str, str]  # sentence, and HTML id of the part of the page that shows more


def find_in_series(all_series: Sequence[Series], *, is_over: bool) -> str | None:
    """Return a sentence on the wasted share of each run's bytes: the least and the greatest share.

    The result is None if no bytes moved.

    Args:
        all_series: the variants or scenarios, each with its runs.
        is_over: whether all planned runs are done; otherwise the sentence ends with "so far".
    """
    shares: list[tuple[float, str]] = []
    for series in all_series:
        for run in series.runs:
            share = _wasted_share(run)
            if share is not None:
                shares.append((share, series.name))
    if not shares:
        return None
    most, worst = max(shares)
    least, best = min(shares)
    moment = "" if is_over else " so far"
    if not most:
        return f"Nothing that moved was wasted{moment}."
    low = show_share(least)
    high = show_share(most)
    if low == high:
        return f"In every run {high} of the bytes were wasted{moment}."
    return f"{low} ({best}) to {high} ({worst}) of the bytes of a run were wasted{moment}."


def find_in_run(run: RunFolder) -> list[Finding]:
    """Return the findings on one run: pairs of a sentence, and the HTML id of the part on it.

    The sentences are about the last test, wasted bytes, the longest round, selected clients without
    an update that counts, and energy. A sentence that does not apply is left out.
    """
    sentences = (
        (_final_figures(run), "summary"),
        (_wasted_bytes(run), "summary"),
        (_longest_round(run), "timeline"),
        (_lost_updates(run), "devices-0"),
        (_energy(run), "energy"),
    )
    return [(sentence, anchor) for sentence, anchor in sentences if sentence is not None]


def _so_far(run: RunFolder) -> str:
    """Return `` so far`` if the run is not done, and otherwise an empty text."""
    return "" if run.is_done else " so far"


def _wasted_share(run: RunFolder) -> float | None:
    """Return the share of bytes that were wasted (0..1); None if no bytes moved."""
    sizes = run.summary["bytes"]
    size = total(sizes)
    return sizes["wasted"] / size if size else None


def _final_figures(run: RunFolder) -> str | None:
    summary = run.summary
    finals = {"accuracy": summary["accuracy"]["final"]}
    for name, metric in summary.get("metrics", {}).items():
        finals[name] = metric["final"]
    figures = [f"{name} {value:.3f}" for name, value in finals.items() if value is not None]
    if not figures:
        return None
    duration = f"{show_seconds(summary['simulated_s'])} and {count_rounds(len(run.rounds), run.round_word)}"
    verb = "ends with" if run.is_done else "has reached"
    return f"It {verb} {' and '.join(figures)} after {duration}{_so_far(run)}."


def _wasted_bytes(run: RunFolder) -> str | None:
    share = _wasted_share(run)
    if share is None:
        return None
    size = show_bytes(total(run.summary["bytes"]))
    amount = show_share(share, 1) if share else "Nothing"
    return f"{amount} of {size} that moved was wasted{_so_far(run)}."


def _longest_round(run: RunFolder) -> str | None:
    """Return a sentence on the longest round; None unless it is much longer than the median."""
    ends = [0.0, *(row["time"] for row in run.rounds)]
    durations = [end - start for start, end in pairwise(ends)]
    if not durations:
        return None
    longest = max(durations)
    median_s = median(durations)
    if longest <= _LONG_RATIO * median_s:
        return None
    number = run.rounds[durations.index(longest)]["round"]
    return (
        f"{run.round_word.capitalize()} {number} was the longest{_so_far(run)}, "
        f"{show_seconds(longest)}; the median is {show_seconds(median_s)}."
    )


def _lost_updates(run: RunFolder) -> str | None:
    selected = sum(row["selected"] or 0 for row in run.rounds)
    valid = sum(row["valid"] or 0 for row in run.rounds)
    if not selected or valid >= selected:
        return None
    clients = counted(selected, "selected client")
    return f"{selected - valid:,} of {clients} gave no update that counts{_so_far(run)}."


def _energy(run: RunFolder) -> str | None:
    """Return a sentence on the energy of devices and the phase that used most.

    None if energy was not counted, or is 0.
    """
    if "energy" not in run.summary:
        return None
    joules = run.summary["energy"]["by_phase"]
    total_joules = sum(joules.get(phase, 0.0) for phase in PHASES)
    if not total_joules:
        return None
    largest = max(PHASES, key=joules.__getitem__)
    share = show_share(joules[largest] / total_joules)
    return (
        f"Devices drew {show_joules(total_joules)}{_so_far(run)}, {share} of it for the phase "
        f"{largest!r}."
    )
