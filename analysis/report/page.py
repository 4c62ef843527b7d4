"""The report as one self-contained HTML page: findings, parts, and the frame of the page."""

import base64
import hashlib
import html
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from fedsim.analysis import palette, style
from fedsim.analysis.report import runs, sections
from fedsim.analysis.report.drawings import fold
from fedsim.analysis.report.findings import find_in_run
from fedsim.analysis.report.gather import DetailedRun, Subject, gather
from fedsim.analysis.report.markup import Markup, asset, data_block, el, join, plain
from fedsim.common.errors import RunFolderError
from fedsim.common.harmless import harmless
from fedsim.common.round_words import counted
from fedsim.records.folder import refuse_within_run, writing
from fedsim.strategies import strategy_name
from fedsim.version import __version__

ENDINGS = (".html", ".htm")
_MOST_FINDINGS = 6
_LONGEST = 100  # greatest length of NAME in the default file name ``NAME.report.html``
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
        out: path of the HTML file; by default ``NAME.report.html`` beside the first folder, whose
            name is NAME.

    Returns:
        Path of the file.

    Raises:
        PictureError: the name of ``out`` ends in neither ``.html`` nor ``.htm``.
        RunFolderError: a folder is neither a run nor a study, or is damaged; no run of the studies
            is done; or ``out`` is a folder, lies within a run folder, or cannot be written.
    """
    folders = [Path(path) for path in paths]
    target = default_out(folders[0]) if out is None else Path(out)
    if target.suffix.lower() not in ENDINGS:
        raise style.PictureError(
            f"--out is {str(target)!r}; allowed is a file whose name ends in {' or '.join(ENDINGS)}"
        )
    refuse_within_run(target)
    if target.is_dir():  # checked first, as drawing the pictures takes long
        raise RunFolderError(f"--out {str(target)!r} is a folder; give a file")
    text = build(gather(folders))
    with writing(target) as beside:
        beside.write_text(text, encoding="utf-8")
    return target


def default_out(folder: Path) -> Path:
    """Return the default path of a report: ``NAME.report.html`` beside a folder called NAME."""
    path = folder.resolve()
    name = style.as_file_name(path.name)[:_LONGEST].lstrip("-.")
    if not name:
        name = "fedsim"
    return path.with_name(f"{name}.report.html")


def build(subject: Subject, *, live: bool = False, progress: Markup | None = None) -> str:
    """Build the HTML page of a report.

    Args:
        subject: runs of the report, and their comparison.
        live: whether runs may be unfinished; the title then begins with "Live".
        progress: section on the progress of unfinished studies, shown first; None for no section.
    """
    is_comparison = len(subject.runs) > 1
    parts: list[Markup | None] = [progress]
    if is_comparison:
        parts += _parts_of_several(subject)
    else:
        parts += _parts_of_one(subject.detailed[0])
    if live:
        subject = replace(subject, title=f"Live: {subject.title}")
    clocks = {entry.run.clock for entry in subject.detailed}
    times = "Times are simulated unless said otherwise."
    if clocks == {"measured time"}:
        times = "Times are those of a real run."
    text = f"Written by fedsim {__version__} from run folders alone. {times}"
    footer = el("footer", el("p", text))
    return _frame(subject.title, join(_header(subject, is_comparison), el("main", *parts), footer))


def _parts_of_one(entry: DetailedRun) -> Iterator[Markup]:
    yield sections.in_short(entry)
    timeline = runs.timelines((entry,), 1)
    yield el("section", el("h2", "Timeline", id="timeline"), *timeline)
    yield from runs.details(0, entry, is_comparison=False)
    yield sections.scenario(entry.run)


def _parts_of_several(subject: Subject) -> Iterator[Markup]:
    yield sections.answer(subject)
    yield from sections.comparison(subject)
    content = [*runs.timelines(subject.detailed, len(subject.runs))]
    for index, entry in enumerate(subject.detailed):
        content.append(runs.section_of_run(index, entry))
    about = "what each device did when, and why rounds took so long"
    yield fold("Single runs", *content, anchor="timeline", about=about)


def build_progress(title: str, progress: Markup | None) -> str:
    """Build the HTML page for studies that have no finished run yet.

    Args:
        title: title of the page.
        progress: section on the progress of the studies; None for a page without content.
    """
    return _frame(title, join(el("header", el("h1", title)), el("main", progress)))


def _frame(title: str, body: Markup) -> str:
    """Return the whole page with scripts and style sheets.

    Its content security policy forbids the page to load anything.

    Args:
        title: title of the browser's window.
        body: content of the page.
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
    colours = {
        "steps": palette.STEPS,
        "outcomes": palette.OUTCOMES,
        "idle": palette.PALE,
        "away": palette.AWAY,
    }
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(harmless(title)),
        "sheet": sheet,
        "body": body,
        "palette": data_block("palette", colours),
        "script": script,
    }
    return Template(asset("page.html")).substitute(parts) + "\n"


def _digest(text: str) -> str:
    """Return the SHA-256 digest of a text, in base64."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(subject: Subject, is_comparison: bool) -> Markup:
    """Return the title of the page, and the findings of a report on one run as links."""
    entries = []
    if not is_comparison:
        for text, anchor in find_in_run(subject.runs[0])[:_MOST_FINDINGS]:
            entries.append(el("li", el("a", text, href=f"#{anchor}")))
    heading = el("h1", subject.title)
    return join(
        el("header", heading, el("p", _about(subject, is_comparison), class_="soft")),
        el("nav", el("ol", *entries), aria_label="Findings") if entries else None,
    )


def _about(subject: Subject, is_comparison: bool) -> str:
    """Return a text with the strategies, and the count of runs or the seed of a single run."""
    names = []
    for kind in dict.fromkeys(str(run.summary["strategy"]) for run in subject.runs):
        name = strategy_name(kind)
        if not name:  # a strategy of the user; the name of its class is shown
            name = plain(kind.rpartition(":")[2], 60)
        names.append(name)
    strategies = ", ".join(names)
    if not is_comparison:
        return f"{strategies}, seed {subject.runs[0].summary['seed']}"
    lines = sum(bool(line.runs) for line in subject.lines)
    number = f"{len(subject.runs)} runs"
    if lines < len(subject.runs):
        number += f" of {counted(lines, 'line')}"
    return f"{number}: {strategies}"
