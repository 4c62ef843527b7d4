"""Verbs that explain finished runs: ``compare``, ``why`` and ``whatif``."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedsim.cli.options import (
    ALLOW_CODE,
    RUN_FOLDER,
    RUNS,
    WORKERS,
    changes,
    out,
    refuse_beside_json,
    tell_dropped,
)
from fedsim.cli.output import VerbOutcome, reported, show_nothing
from fedsim.common.errors import ScenarioError
from fedsim.common.harmless import say
from fedsim.running.mistakes import INTERRUPTED

if TYPE_CHECKING:
    from fedsim.cli.results.compare import WhatifResult
    from fedsim.cli.results.parts import VerbResult
    from fedsim.lab.compare.columns import ComparedTable


@click.command(
    "compare",
    short_help="Put runs and studies side by side.",
    epilog="Example: fedsim compare runs/first runs/second --target 0.8",
)
@RUNS
@click.option(
    "--ledger",
    type=click.Choice(["strict", "paper"]),
    default="strict",
    show_default=True,
    help="Which bytes are counted: all that the links carry (strict), or those that papers count "
    "(paper).",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="A test accuracy (0 to 1), or another metric, such as perplexity=8: rounds, time and bytes "
    "until it was reached are compared; may be repeated.",
)
@click.option(
    "--baseline",
    help="Name of the run or variant with which all others are compared; by default that of the study, "
    "or the first run.",
)
@click.option(
    "--goal",
    help="What to rank by: time, bytes, energy, carbon, money, rounds, battery (the share of a "
    "device's battery), flat (batteries that ran empty), accuracy or budget. By default the goal that "
    "a study names, or time.",
)
@click.option(
    "--budget",
    multiple=True,
    metavar="KEY=VALUE",
    help="A limit within which the best accuracy ranks first, such as time='20 "
    "min' or bytes='3 GB'; may be repeated.",
)
@click.option(
    "--published",
    type=click.Path(dir_okay=False),
    help="A TOML file of figures from a paper; they are shown beside those of the study, and nothing "
    "else is.",
)
@click.option("--csv", "form", flag_value="csv", help="Print all figures as CSV.")
@click.option("--markdown", "form", flag_value="markdown", help="Print all figures as Markdown.")
@click.option(
    "--all", "whole", is_flag=True, help="Print all figures; by default those asked for most."
)
@reported
def compare_command(
    runs: tuple[Path, ...],
    form: Literal["csv", "markdown"] | None,
    whole: bool,
    published: str | None,
    goal: str | None,
    **options: Any,
) -> VerbOutcome:
    """Compare RUNS (run folders, folders of studies): which run or variant is best, by how much,
    and how surely.

    The best reaches the target (--target) in the least simulated time, unless --goal or a study
    names another measure. --budget sets limits within which the best accuracy wins. --baseline is
    the run or variant with which every other one is compared. --ledger selects the bytes that
    count.

    The most important figures are printed; --all, --csv and --markdown print all. With --published
    a study is compared with a paper's figures only.
    """
    from fedsim.lab.compare.lines import read_lines
    from fedsim.lab.compare.measures import read_goal
    from fedsim.lab.compare.show import print_short
    from fedsim.lab.compare.table import Comparison
    from fedsim.lab.terminal import Console

    option = f"--{form}"
    if form is None:
        option = "--all"
    prints_all = whole or form is not None
    refuse_beside_json(option, prints_all)
    criterion, budget = read_goal(goal, options["budget"])
    if published is not None:
        _refuse_unused(goal, options)
        return _compare_with_paper(runs, published, form)
    if goal is not None and prints_all:
        raise ScenarioError(
            f"--goal {goal} ranks lines, but {option} prints all figures unranked; give one of "
            "the two"
        )
    lines = read_lines(runs, options["baseline"], criterion, budget).begun()
    comparison = Comparison(lines, options["targets"], options["ledger"])

    def print_text() -> None:
        if prints_all:
            _print_whole(comparison.tables(), form)
        else:
            print_short(Console(), comparison)
            say("All figures: --all, --markdown and --csv print them.")

    def make_result() -> "VerbResult":
        from fedsim.cli.results.compare import CompareResult
        from fedsim.cli.results.parts import answers_of, tables_of

        return CompareResult(
            runs=[*map(str, runs)],
            answers=answers_of(comparison),
            tables=tables_of(comparison.tables()),
        )

    return VerbOutcome(make_result, print_text)


def _compare_with_paper(
    runs: Sequence[Path], published: str, form: Literal["csv", "markdown"] | None
) -> VerbOutcome:
    """Compare a study with the figures of a paper (``fedsim compare --published``).

    Args:
        runs: the study's folder, the only entry.
        published: TOML file of the paper's figures.
        form: form of the printed tables; None for tables as the terminal shows them.

    Raises:
        ScenarioError: several folders are given.
    """
    from fedsim.lab.compare.show import compare_published

    if len(runs) > 1:
        raise ScenarioError(f"--published is of one study, but {len(runs)} folders are given")
    tables = compare_published(runs[0], published)

    def make_result() -> "VerbResult":
        from fedsim.cli.results.compare import CompareResult
        from fedsim.cli.results.parts import tables_of

        return CompareResult(runs=[*map(str, runs)], answers=[], tables=tables_of(tables))

    return VerbOutcome(make_result, partial(_print_whole, tables, form))


def _print_whole(
    tables: Sequence["ComparedTable"], form: Literal["csv", "markdown"] | None
) -> None:
    """Print whole tables as CSV or Markdown, or as the terminal shows them if ``form`` is None."""
    from fedsim.lab.compare.show import as_text, print_tables
    from fedsim.lab.terminal import Console

    if form is None:
        print_tables(Console(), tables)
    else:
        say(*as_text(tables, form).removesuffix("\n").split("\n"))


def _refuse_unused(goal: str | None, options: Mapping[str, object]) -> None:
    """Raise ``ScenarioError`` if an option is given that has no effect with ``--published``.

    Args:
        goal: the option ``--goal``; None if it is not given.
        options: ``targets``, ``budget``, ``baseline`` and ``ledger``: the options' values by name.
    """
    values = {
        "--target": options["targets"],
        "--budget": options["budget"],
        "--baseline": options["baseline"],
        "--goal": goal,
        "--ledger paper": options["ledger"] == "paper",
    }
    for name, value in values.items():
        if value:
            raise ScenarioError(
                f"{name} changes nothing with --published, whose file says what is shown; "
                "leave it out"
            )


@click.command(
    "why",
    short_help="Explain how long the rounds of a run took.",
    epilog="Example: fedsim why runs/first --round 1",
)
@RUN_FOLDER
@click.option(
    "--round",
    "number",
    type=click.IntRange(min=0),
    metavar="N",
    help="Explain round N alone (the first is 0): each step that it waited for. By default all rounds "
    "together.",
)
@reported
def why_command(run: Path, number: int | None) -> VerbOutcome:
    """Explain how long the rounds of RUN took, in simulated time.

    The critical path of a round is the chain of steps, such as a device's training, that determined
    when the round ended. With --round, the critical path of this round is shown. Without it, a table
    shows how much time each kind of step, such as computing, has taken on the critical paths of all
    rounds.
    """
    from fedsim.lab.compare.critical_path import CriticalPaths
    from fedsim.lab.compare.critical_words import (
        path_table,
        round_in_words,
        run_in_words,
        totals_table,
    )
    from fedsim.lab.compare.show import print_tables
    from fedsim.lab.terminal import Console
    from fedsim.records.reading import RunFolder

    paths = CriticalPaths(RunFolder(run))
    if number is None:
        sentences = run_in_words(paths)
        totals = paths.totals
        table = totals_table({run.name: paths})
    else:
        sentences = round_in_words(paths, number)
        totals = paths.round(number).totals
        table = path_table(paths.described_round(number))

    def print_text() -> None:
        say(*sentences)
        print_tables(Console(), [table])

    def make_result() -> "VerbResult":
        from fedsim.cli.results.why import RoundResult, WhyResult

        selected = paths.rounds if number is None else [paths.round(number)]
        rounds = [RoundResult.of(path) for path in selected]
        return WhyResult(run=str(run), sentences=sentences, totals_s=totals, rounds=rounds)

    return VerbOutcome(make_result, print_text)


@click.command(
    "whatif",
    short_help="Run a run again with a change; show what it changed.",
    epilog="Example: fedsim whatif runs/first --set strategy.deadline='20 s'",
)
@RUN_FOLDER
@changes("The change: a key of the scenario, such as strategy.deadline='20 s'", required=True)
@out("The changed run's folder; by default RUN.whatif beside RUN.")
@WORKERS
@ALLOW_CODE
@reported
def whatif_command(
    run: Path, changes: tuple[str, ...], out: Path | None, workers: int | None, allow_code: bool
) -> VerbOutcome:
    """Run the scenario of RUN again with the changes of --set, otherwise with the same devices,
    network and data, and show both results side by side.

    The new run is written to --out. A page beside the folders shows both timelines on one time
    axis.
    """
    from fedsim.analysis.report import write_report
    from fedsim.lab.compare.critical_path import CriticalPaths
    from fedsim.lab.compare.critical_words import totals_table
    from fedsim.lab.compare.lines import read_lines
    from fedsim.lab.compare.show import print_short, print_tables
    from fedsim.lab.compare.table import Comparison
    from fedsim.lab.loading import run as run_scenario
    from fedsim.lab.terminal import Console
    from fedsim.records.reading import RunFolder
    from fedsim.running.scenario import load_of_run

    original = RunFolder(run)
    path = run.resolve()
    changed = out or path.with_name(f"{path.name}.whatif")
    scenario = load_of_run(original, changes, allow_code=allow_code, tell=tell_dropped)
    result = run_scenario(scenario, changed, workers=workers)
    status = str(result.summary["status"])
    if status == "interrupted":
        return VerbOutcome(
            partial(_whatif_result, run, changed, status, changes), show_nothing, INTERRUPTED
        )
    folders = (original, RunFolder(changed))
    accuracies = [folder.summary["accuracy"]["best"] for folder in folders]
    comparison = Comparison(read_lines([run, changed]), _common_targets(accuracies))
    paths = {folder.path.name: CriticalPaths(folder) for folder in folders}
    page = write_report([run, changed], changed.with_name(f"{changed.name}.report.html"))

    def print_text() -> None:
        say(f"what if {', '.join(changes)}:")
        print_short(Console(), comparison)
        print_tables(Console(), [totals_table(paths)])
        say(f"written to {changed}; both timelines are in {page}")

    def make_result() -> "WhatifResult":
        from fedsim.cli.results.parts import answers_of, tables_of

        whatif = _whatif_result(run, changed, status, changes)
        whatif.page = str(page)
        whatif.answers = answers_of(comparison)
        whatif.tables = tables_of(comparison.tables())
        whatif.totals_s = {str(folder.path): paths[folder.path.name].totals for folder in folders}
        return whatif

    return VerbOutcome(make_result, print_text)


def _common_targets(accuracies: Sequence[float | None]) -> list[float]:
    """Return the highest multiple of 0.05 that all accuracies reach, in a list.

    Args:
        accuracies: the best accuracy of each run; None for a run without learning.

    Returns:
        A list with the target; empty if there is none above 0.
    """
    measured = [accuracy for accuracy in accuracies if accuracy is not None]
    if len(measured) < len(accuracies):
        return []
    target = math.floor(min(measured) * 20) / 20
    return [target] if target else []


def _whatif_result(run: Path, changed: Path, status: str, changes: Sequence[str]) -> "WhatifResult":
    """Return the result of ``fedsim whatif``, before both runs are compared.

    Args:
        run: folder of the first run.
        changed: folder of the run with the changes.
        status: status of the run with the changes.
        changes: the changes, ``key.path=value``.
    """
    from fedsim.cli.results.compare import WhatifResult

    return WhatifResult(run=str(run), changed=str(changed), status=status, changes=[*changes])


EXPLAINING = (compare_command, why_command, whatif_command)
