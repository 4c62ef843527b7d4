"""One self-contained page: its findings and parts in their order, the frame that lets it load
nothing, and its file.
"""

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
from fedsim.records.reading import RunFolder
from fedsim.strategies import strategy_name
from fedsim.version import __version__
from fedsim.world.meters.energy import PHASES

ENDINGS = (".html", ".htm")
_LONGEST = 100  # of the part of a file name that comes from a folder's
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
    """Write the report of folders of runs and studies to an HTML file, by default beside the
    first one; returns the file.

    Raises:
        PictureError: ``out`` is no name for an HTML file.
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
    if target.is_dir():  # before the work of drawing
        raise RunFolderError(f"--out {str(target)!r} is a folder; give a file")
    text = build(gather(folders))
    with writing(target) as beside:
        beside.write_text(text, encoding="utf-8")
    return target


def default_out(folder: Path) -> Path:
    """Beside a folder, named after it by letters, digits and ``-_.`` alone."""
    whole = folder.resolve()
    kept = style.as_file_name(whole.name)[:_LONGEST]
    return whole.with_name(f"{kept.lstrip('-.') or 'fedsim'}.report.html")


def build(subject: Subject, *, live: bool = False) -> str:
    """The page as HTML; ``live`` marks the title of runs that may go on."""
    several = len(subject.runs) > 1
    parts = (
        [sections.answer(subject), *sections.comparison(subject)]
        if several
        else [sections.in_short(subject.shown[0])]
    )
    parts.append(sections.timelines(subject.shown, len(subject.runs)))
    parts += [sections.details(place, shown, several) for place, shown in enumerate(subject.shown)]
    footer = (
        f"Written by fedsim {__version__} from run folders alone. Times are simulated unless said "
        "otherwise."
    )
    if live:
        subject = replace(subject, title=f"Live: {subject.title}")
    return _frame(
        subject.title,
        join(_header(subject, several), el("main", *parts), el("footer", el("p", footer))),
    )


def _frame(title: str, body: Markup) -> str:
    has_chart = 'class="chart"' in body
    script = "\n".join(asset(f"{name}.js") for name in (*SCRIPTS, *(CHART if has_chart else ())))
    sheet = "\n".join(
        asset(name) for name in ("report.css", *(("uPlot.min.css",) if has_chart else ()))
    )
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (script, sheet)
    ]
    own = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
    policy = f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"
    palette = data_block(
        "palette",
        {"steps": style.STEPS, "outcomes": style.OUTCOMES, "idle": style.PALE, "away": style.AWAY},
    )
    texts = {"policy": html.escape(policy), "title": html.escape(harmless(title))}
    parts = {"sheet": sheet, "body": body, "palette": palette, "script": script}
    return Template(asset("page.html")).substitute(texts | parts) + "\n"


def _header(subject: Subject, several: bool) -> Markup:
    kinds = dict.fromkeys(str(run.summary["strategy"]) for run in subject.runs)
    # the user's own by its class
    strategies = [strategy_name(kind) or plain(kind.rpartition(":")[2], 60) for kind in kinds]
    about = f"{', '.join(strategies)}, seed {subject.runs[0].summary['seed']}"
    if several:
        lines = [line for line in subject.lines if line.runs]
        of = f" of {len(lines)} variants" if len(lines) < len(subject.runs) else ""
        about = f"{len(subject.runs)} runs{of}: {', '.join(strategies)}"
    links = [("summary", "In short"), ("timeline", "Timeline")]
    links[1:1] = (
        [("pictures", "Pictures"), ("scenario", "Scenario"), ("tables", "Tables")]
        if several
        else []
    )
    if len(subject.shown) <= sections.AT_ONCE:
        names = [shown.name if several else "Pictures and tables" for shown in subject.shown]
        links += [(f"run-{place}", name) for place, name in enumerate(names)]
    entries = [el("li", el("a", text, href=f"#{where}")) for where, text in links]
    found = _compared(subject) if several else _of_run(subject.runs[0])
    told = [el("li", el("a", says, href=f"#{anchor}")) for says, anchor in found[:_MOST]]
    return join(
        el("header", el("h1", subject.title), el("p", about, class_="soft")),
        el("nav", el("ol", *told), aria_label="Findings") if told else None,
        el("nav", el("ul", *entries), aria_label="Parts of this page"),
    )


# Findings: one sentence each, with the anchor of the part of the page that shows it. They are its
# table of contents.

_MOST = 6
_LONG = 1.2  # times the median: a round that stands out


def _compared(subject: Subject) -> list[tuple[str, str]]:
    worlds = subject.comparison.answers()
    told = [
        f"{answer.where}{answer.to(ranking)}{ranking.sentences[0]}"
        for answer in worlds
        for ranking in answer.rankings[: 1 if len(worlds) > 1 else None]
        if ranking.sentences
    ]
    found = [(plain(says, 160), "summary") for says in told[: _MOST - 1]]
    shares = [
        (share, one.name)
        for one in subject.series
        for run in one.runs
        if (share := _wasted(run)) is not None
    ]
    if shares:
        (most, worst), (least, best) = max(shares), min(shares)
        found.append(
            (f"{least:.0%} ({best}) to {most:.0%} ({worst}) of the bytes were wasted.", "tables")
        )
    return found


def _wasted(run: RunFolder) -> float | None:
    moved = run.summary["bytes"]
    total = moved["down"] + moved["up"]
    return moved["wasted"] / total if total else None


def _of_run(run: RunFolder) -> list[tuple[str, str]]:
    summary = run.summary
    rounds = run.rounds
    found = []
    finals = {"accuracy": summary["accuracy"]["final"]}
    finals |= {name: told["final"] for name, told in summary.get("metrics", {}).items()}
    reached = [f"{name} {value:.3f}" for name, value in finals.items() if value is not None]
    if reached:
        after = f"after {show_seconds(summary['simulated_s'])} and {len(rounds):,} rounds"
        found.append((f"It ends with {' and '.join(reached)} {after}.", "summary"))
    share = _wasted(run)
    moved = summary["bytes"]
    if share is not None:
        found.append(
            (
                f"{share:.0%} of {show_bytes(moved['down'] + moved['up'])} that moved was wasted.",
                "summary",
            )
        )
    ends = [0.0, *(row["time"] for row in rounds)]
    lengths = [after - before for before, after in pairwise(ends)]
    middle = sorted(lengths)[len(lengths) // 2] if lengths else 0.0
    if lengths and max(lengths) > _LONG * middle:
        longest = rounds[lengths.index(max(lengths))]["round"]
        told = (
            f"Round {longest} was the longest, {show_seconds(max(lengths))}; the median is "
            f"{show_seconds(middle)}."
        )
        found.append((told, "timeline"))
    asked, valid = (sum(row[name] or 0 for row in rounds) for name in ("selected", "valid"))
    if asked and valid < asked:
        found.append(
            (
                f"{asked - valid:,} of {asked:,} selected clients gave no update that counts.",
                "run-0",
            )
        )
    joules = summary["energy"]["by_phase"] if "energy" in summary else {}
    if drawn := sum(joules.get(phase, 0.0) for phase in PHASES):
        phase = max(PHASES, key=joules.__getitem__)
        told = (
            f"Devices drew {show_joules(drawn)}, {joules[phase] / drawn:.0%} of it for the phase "
            f"{phase!r}."
        )
        found.append((told, "run-0"))
    return found
