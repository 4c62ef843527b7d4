"""Verbs that run many scenarios: ``study``, and ``bench`` for strategies."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from fedsim.cli.options import (
    ADDRESS,
    ALLOW_CODE,
    CHANGES,
    FILE,
    RESOURCES,
    WORKERS,
    changes,
    out,
    tell_dropped,
)
from fedsim.cli.output import VerbOutcome, is_quiet, prints_json, reported, show_nothing
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.harmless import say
from fedsim.running.signals import interrupted_once

if TYPE_CHECKING:
    from fedsim.cli.results.parts import VerbResult
    from fedsim.cli.results.study import StudyStatus
    from fedsim.lab.study.conduct import Conductor
    from fedsim.lab.study.costs import StudyForecast


@click.command(
    "study",
    short_help="Run many strategies with the same devices; compare them.",
    epilog="Example: fedsim study communication --out runs/communication --dry-run",
)
@click.argument("words", nargs=-1, required=True, metavar="STUDY | merge DIR...")
@out("The study's folder: a new one, or that of an interrupted study to continue.", required=True)
@click.option(
    "--executor",
    default="processes",
    show_default=True,
    help="Where runs are computed: processes of this machine, or ray (a cluster).",
)
@WORKERS
@ADDRESS
@RESOURCES
@CHANGES
@click.option(
    "--size",
    help="Size of the study to run, such as small, if its file defines several in a table [sizes]; by "
    "default the first.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the seeds 1 to N instead of those of the study.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="VARIANT|KEY=VALUE",
    help="Run only this variant, part (part=NAME), seed (seed=3) or value of the grid "
    "(deadline='50 s'); may be repeated: all given variants are run, and all given values of a KEY.",
)
@click.option(
    "--shard",
    metavar="K/N",
    help="Run only part K of N of the runs, such as 1/4; other processes run the other parts, in the "
    "same folder or each in a folder of its own.",
)
@click.option(
    "--until-sure",
    is_flag=True,
    help="Add seeds to the variants that may still be the best, until one is surely the best, or "
    "worse than the best by no more than --within.",
)
@click.option(
    "--within",
    metavar="SHARE",
    help="For --until-sure: the difference that does not matter, such as 5%; by default 5% of a cost, "
    "or 0.01 of an accuracy.",
)
@click.option(
    "--error",
    metavar="SHARE",
    help="For --until-sure: the greatest probability of a wrong answer, such as 1%; by default 5%.",
)
@click.option(
    "--most-runs",
    type=click.IntRange(min=1),
    metavar="N",
    help="For --until-sure: the most runs in all; by default ten for each variant and value of the grid.",
)
@click.option(
    "--most-time",
    metavar="TIME",
    help="For --until-sure: the most real time of all runs together, such as '2 h'; by default no limit.",
)
@ALLOW_CODE
@click.option(
    "--dry-run",
    is_flag=True,
    help="List the runs, how far each is, and what they cost on this machine; run and write nothing.",
)
@click.option(
    "--no-trial",
    is_flag=True,
    help="For --dry-run: list the runs without their cost; read no data.",
)
@reported
def study_command(
    words: tuple[str, ...], out: Path, **options: "Unpack[StudyOptions]"
) -> VerbOutcome:
    """Run all variants of STUDY (a file, or a name of 'fedsim list studies') with the same devices,
    network and data, and compare them.

    --only, --seeds and --shard select runs; --size selects one of the sizes that the study's file
    defines; --set changes keys of all scenarios. --until-sure adds seeds until the best variant is
    sure. --dry-run runs nothing, and prints the runs and their predicted cost.

    Run the same command again to continue an interrupted study. '--shard 1/4' runs a quarter of the
    runs, for example on one of four machines; 'fedsim study merge DIR... --out PATH' then joins the
    four folders.
    """
    first, *rest = words
    if first == "merge" and rest:
        return _merge(rest, out, options)
    if rest:
        raise ScenarioError(
            f"a study is named by one word, and {len(words)} are given: {' '.join(words)}; several "
            "studies are run one after another"
        )
    return _run_study(first, out, options)


class StudyOptions(TypedDict):
    """Values of the options of ``fedsim study`` other than ``--out``, by the options' names."""

    executor: str
    workers: int | None
    address: str | None
    resources: str | None
    changes: tuple[str, ...]
    size: str | None
    seeds: int | None
    only: tuple[str, ...]
    shard: str | None
    until_sure: bool
    within: str | None
    error: str | None
    most_runs: int | None
    most_time: str | None
    allow_code: bool
    dry_run: bool
    no_trial: bool


def _merge(sources: Sequence[str], out: Path, options: StudyOptions) -> VerbOutcome:
    """Merge the folders of a study's shards (``fedsim study merge``).

    The exit status is 1 if a run of the study is in none of the folders.
    """
    from fedsim.lab.study.merging import merge

    given_names = [name for name, value in options.items() if _is_given(name, value)]
    if given_names:
        raise ScenarioError(
            f"'study merge' takes --out, --json and --quiet; --{given_names[0].replace('_', '-')} is "
            "an option for carrying out runs, and merge carries out none"
        )
    merged = merge(sources, out)
    complaints: tuple[str, ...] = ()
    if merged.missing:
        complaints = (f"fedsim: {len(merged.missing)} runs are missing:", *merged.missing)

    def print_text() -> None:
        say(
            f"{len(merged.copied)} runs copied to {out}, {len(merged.present)} were there",
            f"{len(merged.repeated)} were done more than once, with equal hashes",
        )
        say(*complaints, err=True)

    def make_result() -> "VerbResult":
        from fedsim.cli.results.study import MergeResult

        return MergeResult(folder=str(out), **asdict(merged))

    return VerbOutcome(make_result, print_text, 1 if complaints else 0, complaints)


def _is_given(name: str, value: object) -> bool:
    """Whether an option of ``fedsim study`` was given: its value is not empty, nor its default."""
    return bool(value) and (name, value) != ("executor", "processes")


def _run_study(study: str, out: Path, options: StudyOptions) -> VerbOutcome:
    """Run a study or, with ``--dry-run``, print its plan (``fedsim study STUDY``)."""
    from fedsim.lab.study.conduct import Conductor, StudyWorkers
    from fedsim.lab.study.plan import read_study
    from fedsim.lab.study.shards import StudyShard

    dry_run = options["dry_run"]
    if dry_run and is_quiet() and not prints_json():
        raise ScenarioError(
            "--quiet prints nothing, but --dry-run only prints; give one of the two"
        )
    if options["no_trial"] and not dry_run:
        raise ScenarioError("--no-trial belongs to --dry-run; give both, or neither")
    plan = read_study(
        study,
        options["changes"],
        size=options["size"],
        seeds=options["seeds"],
        until_sure=_read_rule(options),
        allow_code=options["allow_code"],
        tell=tell_dropped,
    )
    shard = None
    if options["shard"] is not None:
        shard = StudyShard.read(options["shard"])
    workers = StudyWorkers(
        options["executor"], options["workers"], options["address"], options["resources"]
    )
    conductor = Conductor(
        plan, out, workers, only=options["only"], shard=shard, try_variants=not dry_run
    )
    if not is_quiet():
        say(*(f"fedsim: {note}" for note in conductor.notes), err=True)
    if not dry_run:
        return _carry_out(conductor)
    forecast = None
    if not options["no_trial"]:
        forecast = _forecast(conductor)
    make_result = partial(_make_result, conductor, "dry-run", forecast)
    return VerbOutcome(make_result, partial(_print_plan, conductor, forecast))


def _read_rule(options: StudyOptions) -> dict[str, object] | None:
    """Return the keys that command-line options set in the study's table ``[until_sure]``.

    Returns:
        Key -> value of its option; None without ``--until-sure``.

    Raises:
        ScenarioError: an option for this table is given without ``--until-sure``.
    """
    values: dict[str, object] = {
        "within": options["within"],
        "error": options["error"],
        "most_runs": options["most_runs"],
        "most_time": options["most_time"],
    }
    rule = {name: value for name, value in values.items() if value is not None}
    if options["until_sure"]:
        return rule
    if not rule:
        return None
    name, value = next(iter(rule.items()))
    option = name.replace("_", "-")
    raise ScenarioError(f"--{option} is {value!r}, but it belongs to --until-sure")


def _carry_out(conductor: "Conductor") -> VerbOutcome:
    """Carry out the runs of a study that are not done yet, and show progress and errors.

    The exit status is 1 if runs failed or a search found no best trial. If a signal interrupted the
    study, it is the status of this signal.
    """
    from fedsim.lab.study.pool import StudyProgress
    from fedsim.lab.terminal import Console

    with (
        closing(StudyProgress(Console(stderr=True, quiet=is_quiet()))) as progress,
        interrupted_once(conductor.interrupt) as interruption,
    ):
        conductor.run(progress)
    for failure in conductor.failed:
        say(f"fedsim: {failure.order.label} failed: {failure.error}", err=True)
    if conductor.interrupted:
        make_result = partial(_make_result, conductor, "interrupted")
        return VerbOutcome(make_result, show_nothing, interruption.exit_status)
    print_text = partial(_print_results, conductor)
    if conductor.complete:
        return VerbOutcome(partial(_make_result, conductor, "done"), print_text)
    complaints: tuple[str, ...] = ()
    if conductor.trials is not None:
        complaints = tuple(conductor.trials.lines_of_text())
    return VerbOutcome(partial(_make_result, conductor, "incomplete"), print_text, 1, complaints)


def _make_result(
    conductor: "Conductor", status: "StudyStatus", forecast: "StudyForecast | None" = None
) -> "VerbResult":
    from fedsim.cli.results.study import StudyResult

    return StudyResult.of(conductor, status, forecast)


def _forecast(conductor: "Conductor") -> "StudyForecast | None":
    """Return the predicted cost of a study; print a note and return None if data cannot be read."""
    try:
        return conductor.forecast()
    except DataError as error:
        say(f"fedsim: what the runs cost cannot be told: {error}", err=True)
        return None


def _print_plan(conductor: "Conductor", forecast: "StudyForecast | None") -> None:
    """Print the selected runs of a study: their states, share of the work, and predicted cost.

    Args:
        conductor: object that has planned the study's runs.
        forecast: the predicted cost; None if it is not known.
    """
    from fedsim.lab.study.costs import forecast_lines
    from fedsim.lab.study.shards import work_of_share

    for run, state in conductor.selected_runs:
        say(f"{state:<6}  {run.folder}")
    if conductor.trials is not None and not conductor.trials.is_over:
        say("more trials follow from what these come to")
    if conductor.seeding is not None and not conductor.seeding.is_over:
        say(
            f"more seeds follow where they decide: at most {conductor.seeding.most_runs} runs in all"
        )
    planned = conductor.study.runs
    share = conductor.shard
    if share is not None and planned:
        runs = [run for run, _ in conductor.selected_runs]
        work = work_of_share(runs, planned)
        say(f"shard {share}: {len(runs)} of {len(planned)} runs, {work:.1%} of the work")
    if forecast is not None:
        say(*forecast_lines(forecast, share))


def _print_results(conductor: "Conductor") -> None:
    """Print the most important results of a study, and the names of the files with all results.

    If the study searches for values of keys, its results are the best trials (tried values). If it
    reproduces a paper, they are the comparison with the published values. Otherwise they are
    sentences on the best variants.
    """
    from fedsim.lab.compare.lines import read_lines
    from fedsim.lab.compare.published import CLAIMS
    from fedsim.lab.compare.show import compare_published, print_short, print_tables
    from fedsim.lab.compare.table import Comparison
    from fedsim.lab.reading.study_folder import PUBLISHED
    from fedsim.lab.terminal import Console

    out = conductor.out
    trials = conductor.trials
    if trials is not None:
        print_tables(Console(), [trials.table(most=5)])
        say(*trials.lines_of_text(), f"written to {out}")
    elif conductor.study.spec.published is not None:
        tables = compare_published(out, out / PUBLISHED)
        claims = [table for table in tables if table.title == CLAIMS]
        print_tables(Console(), claims or tables)
        say(f"written to {out}: compare.md and published.md have all figures")
    else:
        print_short(Console(), Comparison(read_lines([out]).begun()))
        say(f"written to {out}: compare.md and paired.csv have all figures")


@click.command(
    "bench",
    short_help="Rank strategies in six frozen worlds.",
    epilog="Example: fedsim bench ./mine.py:Mine --allow-code --out runs/bench-mine",
)
@click.argument("strategies", nargs=-1, required=True, metavar="STRATEGY...")
@out("The folder of the runs; by default runs/bench-STRATEGY.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the seeds 1 to N of each world; by default 3.",
)
@changes("Set a key of your strategy, such as strategy.mu=0.1")
@click.option(
    "--keep", type=FILE, help="A CSV file to which the results are added; by default none."
)
@WORKERS
@ALLOW_CODE
@reported
def bench_command(
    strategies: tuple[str, ...],
    out: Path | None,
    changes: tuple[str, ...],
    keep: Path | None,
    seeds: int | None,
    workers: int | None,
    allow_code: bool,
) -> VerbOutcome:
    """Run strategies in six fixed scenarios, and rank them among the strategies of the board, the
    published table of results in these scenarios.

    STRATEGY is a name of 'fedsim list strategies', the import path of a strategy of your own, the
    name of a line of the board, or 'all' for all lines of the board. --set sets keys of the
    strategy, and --keep adds the results to a CSV file.
    """
    from fedsim.lab import bench
    from fedsim.lab.compare.show import print_tables
    from fedsim.lab.study.variant import safe_name
    from fedsim.lab.terminal import Console

    target = out or Path("runs") / f"bench-{safe_name(strategies[0])}"
    lines = bench.bench(
        strategies, target, changes, seeds=seeds, workers=workers, allow_code=allow_code
    )
    board = bench.read_board()
    tables = bench.digests_of_tables(target)
    changed = bench.changed_tables(tables)
    if keep is not None:
        bench.keep(lines, keep, tables)

    def print_text() -> None:
        print_tables(Console(), [bench.table_of(lines, board)])
        if changed:
            say(
                f"these are not the board's worlds, so places mean nothing: {'; '.join(changed)} "
                "differ",
                err=True,
            )
        say(f"runs are in {target}: fedsim report {target}")
        if keep is not None:
            say(f"kept in {keep}")

    def make_result() -> "VerbResult":
        from fedsim.cli.results.bench import BenchResult

        return BenchResult.of(target, lines, board, changed, keep)

    return VerbOutcome(make_result, print_text)


STUDYING = (study_command, bench_command)
