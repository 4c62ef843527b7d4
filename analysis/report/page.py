"""The report as one self-contained HTML page: findings, parts, and the frame of the page."""

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from string import Template

from fedsim.analysis import style
from fedsim.analysis.report import sections
from fedsim.analysis.report.gather import Subject, gather
from fedsim.analysis.report.markup import Markup, asset, data_block, el, join, plain
from fedsim.common.errors import RunFolderError
from fedsim.common.harmless import harmless
from fedsim.common.units import show_bytes, show_joules, show_seconds
from fedsim.records.folder import refuse_within_run, writing
from fedsim.records.ledger import total
from fedsim.records.reading import RunFolder
from fedsim.strategies import strategy_name
from fedsim.version import __version__
from fedsim.world.meters.energy import PHASES

ENDINGS = (".html", ".htm")
_LONGEST = 100  # greatest length of the folder's name in the report's file name
SCRIPTS = (
    "clock",
    "columns",
    "lanes",
    "curves",
    "words",
    "marks",
    "drawing",
    "controls",
    "timeline",
    "tables",
    "page",
)
CHART = ("uPlot.iife.min", "chart")


def write_report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of runs and studies to an HTML file.

    Args:
        paths: folders of runs and studies.
        out: the file; by default beside the first folder.

    Returns:
        The file.

    Raises:
        PictureError: the name of ``out`` has no ending of HTML.
        RunFolderError: a folder is neither a run nor a study or is damaged, or the file cannot
            be written, or lies in a run.
    """
    folders = [Path(path) for path in paths]
    target = default_out(folders[0]) if out is None else Path(out)
    if target.suffix.lower() not in ENDINGS:
        raise style.PictureError(
            f"--out is {str(target)!r}; allowed is a file whose name ends in {' or '.join(ENDINGS)}"
        )
    refuse_within_run(target)
    if target.is_dir():  # checked before the pictures are drawn
        raise RunFolderError(f"--out {str(target)!r} is a folder; give a file")
    text = build(gather(folders))
    with writing(target) as beside:
        beside.write_text(text, encoding="utf-8")
    return target


def default_out(folder: Path) -> Path:
    """Return the default path of a report: beside a folder, with a name made from the folder's."""
    path = folder.resolve()
    name = style.as_file_name(path.name)[:_LONGEST].lstrip("-.")
    if not name:
        name = "fedsim"
    return path.with_name(f"{name}.report.html")


def build(subject: Subject, *, live: bool = False, progress: Markup | None = None) -> str:
    """Build the page as HTML.

    Args:
        subject: the runs of the report.
        live: whether runs may still go on; the title then says so.
        progress: section on the progress of studies, shown first.
    """
    several = len(subject.runs) > 1
    parts: list[Markup | None] = [progress]
    if several:
        parts.append(sections.answer(subject))
        parts += sections.comparison(subject)
    else:
        parts.append(sections.in_short(subject.detailed[0]))
    parts.append(sections.timelines(subject.detailed, len(subject.runs)))
    for place, entry in enumerate(subject.detailed):
        parts.append(sections.details(place, entry, several))
    if live:
        subject = replace(subject, title=f"Live: {subject.title}")
    text = (
        f"Written by fedsim {__version__} from run folders alone. Times are simulated unless said "
        "otherwise."
    )
    footer = el("footer", el("p", text))
    return _frame(subject.title, join(_header(subject, several), el("main", *parts), footer))


def build_progress(title: str, progress: Markup | None) -> str:
    """Build the page of studies of which no run is done yet, as HTML.

    Args:
        title: title of the page.
        progress: section on the progress of the studies.
    """
    return _frame(title, join(el("header", el("h1", title)), el("main", progress)))


def _frame(title: str, body: Markup) -> str:
    """Return the whole page with scripts and style sheets.

    Its content security policy forbids it to load anything.
    """
    script_names = [*SCRIPTS]
    sheet_names = ["report.css"]
    if 'class="chart"' in body:
        script_names += CHART
        sheet_names.append("uPlot.min.css")
    script = "\n".join(asset(f"{name}.js") for name in script_names)
    sheet = "\n".join(asset(name) for name in sheet_names)
    policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; "
        f"style-src 'sha256-{_digest(sheet)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    palette = {
        "steps": style.STEPS,
        "outcomes": style.OUTCOMES,
        "idle": style.PALE,
        "away": style.AWAY,
    }
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(harmless(title)),
        "sheet": sheet,
        "body": body,
        "palette": data_block("palette", palette),
        "script": script,
    }
    return Template(asset("page.html")).substitute(parts) + "\n"


def _digest(text: str) -> str:
    """Return the SHA-256 digest of a text, in base64."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(subject: Subject, several: bool) -> Markup:
    findings = _find_in_comparison(subject) if several else _find_in_run(subject.runs[0])
    entries = []
    for text, anchor in findings[:_MOST]:
        entries.append(el("li", el("a", text, href=f"#{anchor}")))
    links = []
    for anchor, text in _list_parts(subject, several):
        links.append(el("li", el("a", text, href=f"#{anchor}")))
    heading = el("h1", subject.title)
    return join(
        el("header", heading, el("p", _about(subject, several), class_="soft")),
        el("nav", el("ol", *entries), aria_label="Findings") if entries else None,
        el("nav", el("ul", *links), aria_label="Parts of this page"),
    )


def _about(subject: Subject, several: bool) -> str:
    """Return a text with the strategies, and the count of runs or the seed of a single run."""
    names = []
    for kind in dict.fromkeys(str(run.summary["strategy"]) for run in subject.runs):
        name = strategy_name(kind)
        if not name:  # a strategy of the user has the name of its class
            name = plain(kind.rpartition(":")[2], 60)
        names.append(name)
    strategies = ", ".join(names)
    if not several:
        return f"{strategies}, seed {subject.runs[0].summary['seed']}"
    variants = sum(bool(line.runs) for line in subject.lines)
    number = f"{len(subject.runs)} runs"
    if variants < len(subject.runs):
        number += f" of {variants} variants"
    return f"{number}: {strategies}"


def _list_parts(subject: Subject, several: bool) -> list[tuple[str, str]]:
    """Return anchor and name of each part of the page."""
    parts = [("summary", "In short")]
    if several:
        parts += [("pictures", "Pictures"), ("scenario", "Scenario"), ("tables", "Tables")]
    parts.append(("timeline", "Timeline"))
    if len(subject.detailed) <= sections.AT_ONCE:
        for place, entry in enumerate(subject.detailed):
            name = entry.name if several else "Pictures and tables"
            parts.append((f"run-{place}", name))
    return parts


# Findings: sentences with the anchor of the part of the page that shows it. They are the page's
# table of contents.

_MOST = 6
_LONG = 1.2  # ratio to the median duration above which a round is a finding

_Finding = tuple[str, str]  # sentence, anchor


def _find_in_comparison(subject: Subject) -> list[_Finding]:
    findings = []
    for sentence in _ranking_sentences(subject)[: _MOST - 1]:
        findings.append((plain(sentence, 160), "summary"))
    shares: list[tuple[float, str]] = []
    for series in subject.series:
        for run in series.runs:
            share = _wasted_share(run)
            if share is not None:
                shares.append((share, series.name))
    if shares:
        most, worst = max(shares)
        least, best = min(shares)
        sentence = f"{least:.0%} ({best}) to {most:.0%} ({worst}) of the bytes were wasted."
        findings.append((sentence, "tables"))
    return findings


def _ranking_sentences(subject: Subject) -> list[str]:
    """Return the first sentence of each ranking; if there are several worlds, of the goal only."""
    answers = subject.comparison.answers()
    sentences = []
    for answer in answers:
        rankings = answer.rankings[:1] if len(answers) > 1 else answer.rankings
        for ranking in rankings:
            if ranking.sentences:
                sentences.append(f"{answer.where}{answer.to(ranking)}{ranking.sentences[0]}")
    return sentences


def _wasted_share(run: RunFolder) -> float | None:
    """Return the share of bytes that were wasted (0..1); None if no bytes moved."""
    sizes = run.summary["bytes"]
    size = total(sizes)
    return sizes["wasted"] / size if size else None


def _find_in_run(run: RunFolder) -> list[_Finding]:
    sentences = (
        (_final_figures(run), "summary"),
        (_wasted_bytes(run), "summary"),
        (_longest_round(run), "timeline"),
        (_lost_updates(run), "run-0"),
        (_energy(run), "run-0"),
    )
    return [(sentence, anchor) for sentence, anchor in sentences if sentence is not None]


def _final_figures(run: RunFolder) -> str | None:
    summary = run.summary
    finals = {"accuracy": summary["accuracy"]["final"]}
    for name, metric in summary.get("metrics", {}).items():
        finals[name] = metric["final"]
    figures = [f"{name} {value:.3f}" for name, value in finals.items() if value is not None]
    if not figures:
        return None
    duration = f"{show_seconds(summary['simulated_s'])} and {len(run.rounds):,} rounds"
    return f"It ends with {' and '.join(figures)} after {duration}."


def _wasted_bytes(run: RunFolder) -> str | None:
    share = _wasted_share(run)
    if share is None:
        return None
    size = show_bytes(total(run.summary["bytes"]))
    amount = f"{share:.0%}" if share else "Nothing"
    return f"{amount} of {size} that moved was wasted."


def _longest_round(run: RunFolder) -> str | None:
    """Return a sentence on the longest round; None unless it is much longer than the median."""
    ends = [0.0, *(row["time"] for row in run.rounds)]
    durations = [end - start for start, end in pairwise(ends)]
    if not durations:
        return None
    longest = max(durations)
    median = sorted(durations)[len(durations) // 2]
    if longest <= _LONG * median:
        return None
    number = run.rounds[durations.index(longest)]["round"]
    return (
        f"Round {number} was the longest, {show_seconds(longest)}; the median is "
        f"{show_seconds(median)}."
    )


def _lost_updates(run: RunFolder) -> str | None:
    selected = sum(row["selected"] or 0 for row in run.rounds)
    valid = sum(row["valid"] or 0 for row in run.rounds)
    if not selected or valid >= selected:
        return None
    return f"{selected - valid:,} of {selected:,} selected clients gave no update that counts."


def _energy(run: RunFolder) -> str | None:
    """Return a sentence on the energy of devices and the phase that used most.

    None if energy was not counted, or is 0.
    """
    if "energy" not in run.summary:
        return None
    joules = run.summary["energy"]["by_phase"]
    total = sum(joules.get(phase, 0.0) for phase in PHASES)
    if not total:
        return None
    phase = max(PHASES, key=joules.__getitem__)
    return (
        f"Devices drew {show_joules(total)}, {joules[phase] / total:.0%} of it for the phase "
        f"{phase!r}."
    )
