"""The findings of a report: one sentence each, with the part of the page that shows it. They are its table of contents."""

from typing import NamedTuple

from fedsim.analysis.report.gather import Subject
from fedsim.analysis.report.markup import plain
from fedsim.language.units import show_bytes, show_joules, show_seconds
from fedsim.meters.energy import PHASES
from fedsim.records.reading import RunFolder

_MOST = 6
_LONG = 1.2  # times the median: a round that stands out


class Finding(NamedTuple):
    """A sentence, and the anchor of the part that shows it."""

    says: str
    anchor: str


def findings(subject: Subject) -> list[Finding]:
    """The findings of one run, or of several compared."""
    if len(subject.runs) == 1:
        return _of_run(subject.runs[0])
    worlds = subject.comparison.answers()
    found = [
        Finding(
            plain(f"{f'{answer.world}: ' if answer.world else ''}{answer.to(ranking)}{ranking.sentences[0]}", 160), "summary"
        )
        for answer in worlds
        for ranking in answer.rankings[: 1 if len(worlds) > 1 else None]
        if ranking.sentences
    ][: _MOST - 1]
    shares = [(_wasted(run), one.name) for one in subject.series for run in one.runs if _wasted(run) is not None]
    if shares:
        most, least = max(shares), min(shares)
        found.append(Finding(f"{least[0]:.0%} ({least[1]}) to {most[0]:.0%} ({most[1]}) of the bytes were wasted.", "tables"))
    return found[:_MOST]


def _wasted(run: RunFolder) -> float | None:
    """Share of a run's bytes that was wasted; None where nothing moved."""
    moved = run.summary["bytes"]
    total = moved["down"] + moved["up"]
    return moved["wasted"] / total if total else None


def _of_run(run: RunFolder) -> list[Finding]:
    summary, rounds = run.summary, run.rounds
    found = []
    finals = {name: told["final"] for name, told in summary.get("metrics", {}).items()}
    reached = {
        name: value for name, value in ({"accuracy": summary["accuracy"]["final"]} | finals).items() if value is not None
    }
    if reached:
        time, words = show_seconds(summary["simulated_s"]), " and a ".join(f"{name} of {reached[name]:.3f}" for name in reached)
        article = "an" if "accuracy" in reached else "a"
        found.append(Finding(f"It ends at {article} {words} after {time} and {len(rounds):,} rounds.", "summary"))
    share, moved = _wasted(run), summary["bytes"]
    if share is not None:
        found.append(Finding(f"{share:.0%} of {show_bytes(moved['down'] + moved['up'])} that moved was wasted.", "summary"))
    lengths = [row["time"] - before for row, before in zip(rounds, [0.0, *(row["time"] for row in rounds)], strict=False)]
    middle = sorted(lengths)[len(lengths) // 2] if lengths else 0.0
    if lengths and max(lengths) > _LONG * middle:
        longest = rounds[lengths.index(max(lengths))]["round"]
        words = f"Round {longest} was the longest, {show_seconds(max(lengths))}; the median is {show_seconds(middle)}."
        found.append(Finding(words, "timeline"))
    asked, valid = (sum(row[name] or 0 for row in rounds) for name in ("selected", "valid"))
    if asked and valid < asked:
        found.append(Finding(f"{asked - valid:,} of {asked:,} selected clients gave no update that counts.", "run-0"))
    energy = summary.get("energy")
    if energy and (drawn := sum(energy["by_phase"][phase] for phase in PHASES)):
        phase = max(PHASES, key=lambda name: energy["by_phase"][name])
        words = f"Devices drew {show_joules(drawn)}, {energy['by_phase'][phase] / drawn:.0%} of it for the phase {phase!r}."
        found.append(Finding(words, "run-0"))
    return found[:_MOST]
