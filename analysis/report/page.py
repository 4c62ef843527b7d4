"""One self-contained page: its parts in their order, the frame around it that lets it load nothing, and its file."""

import base64
import hashlib
import html
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from fedsim.analysis import style
from fedsim.analysis.report import sections, words
from fedsim.analysis.report.findings import findings
from fedsim.analysis.report.gather import Subject, gather
from fedsim.analysis.report.markup import Markup, asset, data_block, el, join, plain
from fedsim.errors import RunFolderError
from fedsim.records.folder import refuse_within_run, writing
from fedsim.version import __version__

ENDINGS = (".html", ".htm")
_LONGEST = 100  # of the part of a file name that comes from a folder's
SCRIPTS = ("clock", "columns", "lanes", "curves", "words", "marks", "drawing", "controls", "timeline", "tables", "page")
CHART = ("uPlot.iife.min", "chart")


def write_report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of runs and studies; returns its file.

    Args:
        paths: folders of runs or studies, one or more.
        out: an HTML file; by default beside the first folder and named after it.

    Raises:
        PictureError: ``out`` is no name for an HTML file.
        RunFolderError: a folder is neither a run nor a study or is damaged, or the file cannot be written, or lies in a run.
    """
    folders = [Path(path) for path in paths]
    target = default_out(folders[0]) if out is None else Path(out)
    if target.suffix.lower() not in ENDINGS:
        raise style.PictureError(f"--out is {str(target)!r}; allowed is a file whose name ends in {' or '.join(ENDINGS)}")
    subject = gather(folders)
    _refuse_unusable(target)
    text = build(subject)
    with writing(target) as beside:
        beside.write_text(text, encoding="utf-8")
    return target


def _refuse_unusable(target: Path) -> None:
    """Look whether the file can be written, before the work of drawing, and change nothing."""
    refuse_within_run(target)
    if target.is_dir():
        raise RunFolderError(f"--out {str(target)!r} is a folder; give a file")
    parent = target.resolve().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise RunFolderError(f"--out {str(target)!r} cannot be written: {str(parent)!r} is not a folder that you may write to")


def default_out(folder: Path) -> Path:
    """Beside a folder, named after it by letters, digits and ``-_.`` alone."""
    whole = folder.resolve()
    kept = style.as_file_name(whole.name)[:_LONGEST]
    return whole.with_name(f"{kept.lstrip('-.') or 'fedsim'}.report.html")


def build(subject: Subject, *, live: bool = False) -> str:
    """The page as HTML; ``live``: of runs that may go on, which the page's title says."""
    several = len(subject.runs) > 1
    parts = [sections.answer(subject), *sections.comparison(subject)] if several else [sections.in_short(subject.shown[0])]
    parts.append(sections.timelines(subject.shown, len(subject.runs)))
    parts += [sections.details(place, shown, several) for place, shown in enumerate(subject.shown)]
    footer = f"Written by fedsim {__version__} from run folders alone. Times are simulated unless said otherwise."
    if live:
        subject = replace(subject, title=f"Live: {subject.title}")
    return _frame(subject.title, join(_header(subject, several), el("main", *parts), el("footer", el("p", footer))))


def _frame(title: str, body: Markup) -> str:
    """The whole document. Its policy lets it run the one script and the one style that stand in it, and load nothing."""
    has_chart = 'class="chart"' in body
    script = "\n".join(asset(f"{name}.js") for name in (*SCRIPTS, *(CHART if has_chart else ())))
    sheet = "\n".join(asset(name) for name in ("report.css", *(("uPlot.min.css",) if has_chart else ())))
    own = f"script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(sheet)}'"
    policy = f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"
    palette = data_block("palette", {"steps": style.STEPS, "outcomes": style.OUTCOMES, "idle": style.PALE, "away": style.AWAY})
    texts = {"policy": html.escape(policy), "title": html.escape(title)}
    parts = {"sheet": sheet, "body": body, "palette": palette, "script": script}
    return Template(asset("page.html")).substitute(texts | parts) + "\n"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _header(subject: Subject, several: bool) -> Markup:
    runs = subject.runs
    first = runs[0].summary
    if several:
        strategies = list(dict.fromkeys(plain(words.strategy_name(str(run.summary["strategy"])), 60) for run in runs))
        lines = [line for line in subject.lines.lines if line.runs]
        of = f" of {len(lines)} variants" if len(lines) < len(runs) else ""
        about = f"{len(runs)} runs{of}: {', '.join(strategies)}"
    else:
        about = f"{plain(words.strategy_name(str(first['strategy'])), 60)}, seed {first['seed']}"
    links = [("summary", "In short"), ("timeline", "Timeline")]
    links[1:1] = [("pictures", "Pictures"), ("scenario", "Scenario"), ("tables", "Tables")] if several else []
    if len(subject.shown) <= sections.AT_ONCE:
        names = [shown.name if several else "Pictures and tables" for shown in subject.shown]
        links += [(f"run-{place}", name) for place, name in enumerate(names)]
    entries = [el("li", el("a", text, href=f"#{where}")) for where, text in links]
    found = [el("li", el("a", one.says, href=f"#{one.anchor}")) for one in findings(subject)]
    return join(
        el("header", el("h1", subject.title), el("p", about, class_="soft")),
        el("nav", el("ol", *found), aria_label="Findings") if found else None,
        el("nav", el("ul", *entries), aria_label="Parts of this page"),
    )
