"""The sections of a report: one run in short, or several compared."""

from collections import Counter
from collections.abc import Iterator, Sequence

import tomli_w

from fedsim.analysis import palette
from fedsim.analysis.accuracy import choose_measures
from fedsim.analysis.report import tables
from fedsim.analysis.report.answer import HINT, answers
from fedsim.analysis.report.chart import chart
from fedsim.analysis.report.drawings import draw_key_picture, draw_series, fold
from fedsim.analysis.report.findings import find_in_series
from fedsim.analysis.report.gather import MOST_DRAWN, DetailedRun, Subject
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.analysis.report.runs import headline_figures
from fedsim.common.files import flatten
from fedsim.common.harmless import visible
from fedsim.lab.compare.lines import ComparedLine
from fedsim.records.reading import RunFolder
from fedsim.running.overrides import Tables

_MOST_CHARACTERS = 3000  # greatest length of a paragraph on the scenario; the rest is left out
_LONG_ABOUT = 200  # a study's description with more characters than this is folded
_IMPORTANT_KEYS = (
    *("seed", "learning", "population.devices", "population.host.", "strategy.clients_per_round"),
    *("strategy.local_epochs", "strategy.deadline", "stop."),
)


def in_short(entry: DetailedRun) -> Markup:
    """Return the first section of a report on one run: its key numbers, and its main picture.

    The numbers are rounds, accuracy, simulated time, bytes, and energy if it was counted. The
    picture shows the accuracy, or the traffic if nothing was learned.
    """
    heading = el("h2", "In short", id="summary")
    return el("section", heading, headline_figures(entry.run), draw_key_picture(entry.run))


def scenario(run: RunFolder) -> Markup:
    """Return a folded part of the page: a summary of a run's scenario, and the whole scenario."""
    about = "its kinds and sizes, and the file with every default"
    return fold("Scenario", *_scenario(run), anchor="scenario", about=about)


def _scenario(run: RunFolder) -> Iterator[Markup]:
    """Yield a summary of the scenario, remarks on its limits, and the whole scenario.

    The remarks name estimated values, and values outside the range for which a formula was fitted.
    """
    scenario = tables.without_paths(run.scenario)
    yield el("p", plain(_scenario_in_short(scenario), _MOST_CHARACTERS))
    if "estimates" in run.summary:
        yield el("p", plain(f"This run {run.summary['estimates']}.", _MOST_CHARACTERS))
    outside = run.summary.get("outside_of_rules")
    if outside:
        text = f"Outside of what a rule was fitted to: {'; '.join(map(str, outside))}."
        yield el("p", plain(text, _MOST_CHARACTERS))
    lines = tomli_w.dumps(scenario).split("\n")
    text = "\n".join(visible(line) for line in lines)
    summary = el("summary", "The scenario with every default written out")
    yield el("details", summary, el("pre", text, tabindex="0"))


def _scenario_in_short(scenario: Tables) -> str:
    """Return a text with the kinds in a scenario, and its most important values."""
    values = {}
    for name, value in flatten(scenario).items():
        is_important = name.endswith(".kind") or name.startswith(_IMPORTANT_KEYS)
        # a kind or value without an effect is not worth its place in a short text
        has_no_effect = value == "constant" or (name == "stop.min_delta" and not value)
        if is_important and not has_no_effect:
            values[name.removesuffix(".kind")] = value
    processes = scenario.get("world", {}).get("processes", ())
    if processes:
        kinds = [str(process.get("kind")) for process in processes]
        values["world.processes"] = ", ".join(kinds)
    return "; ".join(f"{name}: {value}" for name, value in values.items())


def answer(subject: Subject) -> Markup:
    """Return the first section of a report on several runs: which variants are best, by how much.

    Before the answer are remarks on unfinished runs and the descriptions of the studies.
    """
    lines = subject.lines
    colours = {}
    for rank, line_index in enumerate(subject.order):
        colours[line_index] = str(palette.line_of(rank, 1.0)["color"])
    done = sum(len(line.runs) for line in lines)
    planned = sum(line.planned for line in lines)
    parts: list[Markup | None] = [el("h2", "In short", id="summary")]
    if done < planned:
        text = f"{done:,} of {planned:,} runs are done so far{_ended_early(lines)}."
        text += " The figures below are of the done runs alone."
        parts.append(el("p", text, class_="soft"))
    parts += _unfinished(subject)
    hint = "Each is one run, so nothing says how sure that is."
    if any(line.planned > 1 for line in lines):
        hint = HINT
    if subject.comparison.lines.until_sure is not None:
        hint += " What was decided by added seeds holds with its error for all lines together."
    parts += _about(subject.about)
    is_over = done == planned and all(run.is_done for run in subject.runs)
    parts += answers(subject.comparison.answers(), colours, hint, is_over=is_over)
    wasted = find_in_series(subject.series, is_over=is_over)
    if wasted is not None:
        parts.append(el("p", el("a", wasted, href="#tables")))
    return el("section", *parts)


def _ended_early(lines: Sequence[ComparedLine]) -> str:
    """Return a text such as ", 1 failed, 2 interrupted" on the runs that ended too early.

    Args:
        lines: the compared variants or scenarios, each with its runs over seeds.
    """
    statuses: Counter[str] = Counter()
    for line in lines:
        statuses.update(status for _, status in line.undone if status in ("failed", "interrupted"))
    return "".join(f", {count:,} {status}" for status, count in statuses.items())


def _unfinished(subject: Subject) -> Iterator[Markup]:
    """Yield a remark that names the shown runs that are not done; nothing if there are none."""
    names = []
    for detailed in subject.detailed:
        if not detailed.run.is_done:
            names.append(f"{detailed.name} ({plain(detailed.run.summary['status'], 30)})")
    undone_count = sum(not run.is_done for run in subject.runs)
    if undone_count > len(names):  # only runs that are shown in detail have names on the page
        names.append(f"{undone_count - len(names)} more")
    if names:
        text = f"Not done: {', '.join(names)}. The figures of such a run are those so far."
        yield el("p", text, class_="soft")


def _about(text: str) -> Iterator[Markup]:
    """Yield the description of a study, folded if it is long."""
    if len(text) > _LONG_ABOUT:
        yield el("details", el("summary", "What this study asks"), el("p", text))
    elif text:
        yield el("p", text)


def comparison(subject: Subject) -> Iterator[Markup]:
    """Yield the folded parts of a report on several runs: curves, pictures, scenarios, tables."""
    curves = chart(subject.series)
    if curves:
        title = "How the lines get there"
        about = f"{choose_measures(subject.runs)[0]} against time, bytes and rounds"
        yield fold(title, *curves, anchor="accuracy", about=about)
    pictures = _draw_compared_runs(subject)
    if pictures:
        about = "energy by phase, traffic by purpose, fairness"
        yield fold("What it goes to", *pictures, anchor="pictures", about=about)
    yield _compare_scenarios(subject)
    parts: list[Markup] = []
    for table in subject.comparison.tables():
        parts += tables.comparison(table, subject.order)
    about = "of all lines, and their differences to the baseline"
    yield fold("All figures", *parts, anchor="tables", about=about)


def _draw_compared_runs(subject: Subject) -> list[Markup]:
    drawn = min(len(subject.detailed), MOST_DRAWN)
    total = len(subject.runs)
    pictures = [*draw_series(subject.single_runs(drawn), subject.series, is_comparison=True)]
    if pictures and drawn < total:
        hint = f"Pictures of single runs show {drawn} of {total} runs. Means are over all runs."
        pictures.append(el("p", hint, class_="soft"))
    return pictures


def _compare_scenarios(subject: Subject) -> Markup:
    """Return a folded part: the first variant's scenario, and the keys in which variants differ."""
    examples = []  # for each line (variant) with a detailed run, the first such run
    for line in subject.lines:
        runs_of_line = [detailed for detailed in subject.detailed if detailed.line is line]
        examples += runs_of_line[:1]
    runs = [example.run for example in examples]
    differences = tables.compare_scenarios(runs, [example.name for example in examples])
    text = "All runs have this scenario, with seeds of their own."
    about = "its kinds and sizes, and the file with every default"
    if differences:
        text = f"The scenario of {examples[0].name}."
        about = "of one line, and the keys in which the lines differ"
    content = [el("p", text, class_="soft"), *_scenario(runs[0]), differences]
    line_count = sum(bool(line.runs) for line in subject.lines)
    if differences and len(examples) < line_count:
        remark = f"The scenarios of {len(examples)} of {line_count} lines are compared."
        content.append(el("p", remark, class_="soft"))
    return fold("Scenario", *content, anchor="scenario", about=about)
