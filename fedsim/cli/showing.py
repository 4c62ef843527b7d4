"""Verbs that audit, show and export runs, and fit worlds to logs."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fedsim.cli.options import (
    ALLOW_CODE,
    FOLDER,
    PORT,
    RUN_FOLDER,
    RUNS,
    WATCH,
    one_message,
    out,
    port_of,
)
from fedsim.cli.output import VerbOutcome, reported
from fedsim.common.errors import ScenarioError
from fedsim.common.harmless import say

if TYPE_CHECKING:
    from fedsim.cli.results.parts import VerbResult

_MOST_PROBLEMS = 5  # upper bound of the problems of a check that are printed as text


@click.command(
    "audit",
    short_help="Check that the records of a run fit together.",
    epilog="Example: fedsim audit runs/first",
)
@RUN_FOLDER
@ALLOW_CODE
@click.option(
    "--unchecked",
    is_flag=True,
    help="List also the columns, keys and entries of run folders that no check covers.",
)
@reported
def audit_command(run: Path, allow_code: bool, unchecked: bool) -> VerbOutcome:
    """Check that the tables of the run folder RUN agree: causes come before effects, a device does
    one thing at a time, and bytes sent are bytes received or lost.

    The exit status is 1 if a check fails. With --unchecked, columns and entries that no check
    covers are listed too.
    """
    from fedsim.lab.audit.declared import UNCHECKED
    from fedsim.lab.audited import audit_run
    from fedsim.records.reading import RunFolder

    findings, not_checked = audit_run(run, allow_code=allow_code)
    status = str(RunFolder(run).summary["status"])
    failing = {name: problems for name, problems in findings.items() if problems}

    def print_text() -> None:
        if status == "failed":
            say("the run failed: its records end at the error, and are checked up to there")
        for name, problems in findings.items():
            say(*_check_lines(name, problems))
        say(*(f"not checked: {part}" for part in not_checked))
        if unchecked:
            say(*(f"not checked: {name} ({reason})" for name, reason in UNCHECKED.items()))

    def make_result() -> "VerbResult":
        from fedsim.cli.results.audit import AuditResult

        listed = UNCHECKED if unchecked else {}
        return AuditResult.of(run, status, findings, not_checked, listed)

    complaints = []
    for name, problems in failing.items():
        complaints += _check_lines(name, problems)
    return VerbOutcome(make_result, print_text, 1 if failing else 0, tuple(complaints))


def _check_lines(name: str, problems: list[str]) -> list[str]:
    """Return text lines about a check of an audit: passed or failed, and its first problems.

    Args:
        name: title of the check.
        problems: all problems that it found, as sentences.
    """
    verdict = "FAIL" if problems else "ok  "
    lines = [f"{verdict} {name}"]
    lines += [f"       {problem}" for problem in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"       and {len(problems) - _MOST_PROBLEMS} more")
    return lines


@click.command(
    "trace",
    short_help="Write a run for Perfetto, as Chrome trace JSON.",
    epilog="Example: fedsim trace runs/first --out first.trace.json",
)
@RUN_FOLDER
@out("The file to write; by default RUN.trace.json beside the run folder.")
@one_message
def trace_command(run: Path, out: Path | None) -> None:
    """Write the run folder RUN as Chrome trace JSON, a timeline for https://ui.perfetto.dev."""
    from fedsim.lab.trackers.trace import write_trace
    from fedsim.records.reading import RunFolder

    folder = run.resolve()
    path = out or folder.with_name(f"{folder.name}.trace.json")
    count = write_trace(RunFolder(run), path)
    say(f"written {count} trace events to {path}")


_ABSENT = "if LOG has no such column."


@click.command(
    "calibrate",
    short_help="Fit a world to the log of a real deployment.",
    epilog="Example: fedsim calibrate log.csv --bytes '2 MB' --samples 500 --out fitted",
)
@click.argument("log", type=FOLDER)
@out("The folder to make for the fitted scenario and its tables.", required=True)
@click.option(
    "--by-client",
    is_flag=True,
    help="Write each client's own values; by default distributions over clients.",
)
@click.option(
    "--bytes", "size", metavar="SIZE", help=f"Size of each message, such as '2 MB', {_ABSENT}"
)
@click.option("--samples", type=click.IntRange(min=1), help=f"Samples of each training, {_ABSENT}")
@click.option(
    "--epochs", type=click.IntRange(min=1), help=f"Epochs of each training, {_ABSENT} Default: 1."
)
@click.option(
    "--latency",
    metavar="TIME",
    help="Latency of each client's link, such as '20 ms', if it is known; by default it is fitted.",
)
@click.option(
    "--protocol",
    type=click.Choice(["fluid", "tcp", "bbr"]),
    help="The model of transfers to fit (key network.protocol); by default fluid, or that of a run "
    "folder.",
)
@one_message
def calibrate_command(
    log: Path,
    out: Path,
    size: str | None,
    samples: int | None,
    epochs: int | None,
    latency: str | None,
    by_client: bool,
    protocol: Literal["fluid", "tcp", "bbr"] | None,
) -> None:
    """Fit a population and a network to LOG: a table of the tasks of a real deployment (CSV or
    Parquet), or a run folder.

    The folder --out gets a scenario with the fitted speeds and links. It has distributions over
    clients, or each client's own values with --by-client. --bytes, --samples and --epochs give the
    values of columns that LOG does not have. --latency gives the latency of all links, which
    otherwise is fitted too. --protocol is the model of transfers that is fitted.
    """
    from fedsim.common.units import Bytes, Seconds, read_quantity
    from fedsim.lab.calibrate import calibrate
    from fedsim.lab.calibrate.log import LogDefaults

    message_bytes = None if size is None else read_quantity("--bytes", size, Bytes)
    latency_s = None if latency is None else read_quantity("--latency", latency, Seconds)
    defaults = LogDefaults(message_bytes, samples, epochs)
    lines = calibrate(log, out, defaults, by_client=by_client, latency=latency_s, protocol=protocol)
    say(*lines)


@click.command(
    "report",
    short_help="Write runs and studies as one HTML page.",
    epilog="Example: fedsim report runs/first",
)
@RUNS
@out("The HTML file to write; by default RUN.report.html beside the first of RUNS.")
@WATCH
@PORT
@one_message
def report_command(runs: tuple[Path, ...], out: Path | None, watch: bool, port: int | None) -> None:
    """Write RUNS (run folders, folders of studies) as one HTML page with pictures, tables and an
    interactive timeline.

    RUNS may be unfinished. With --watch the page is served and updated, nothing is written, and
    Ctrl-C ends the command with status 0.
    """
    from fedsim.analysis.report import write_report
    from fedsim.analysis.watch import watch as serve

    served_port = port_of(watch, port)
    if not watch:
        path = write_report(runs, out)
        say(f"written {path.stat().st_size / 1e6:.1f} MB to {path}")
        return
    if out is not None:
        raise ScenarioError(f"--out is {str(out)!r}, but --watch writes no file")

    def announce(address: str) -> None:
        say(f"watch it at {address} (Ctrl-C ends this)", err=True)

    with suppress(KeyboardInterrupt):  # Ctrl-C is how one closes the page
        serve(runs, announce, threading.Event(), served_port)


@click.command(
    "figures",
    short_help="Draw runs and studies as figures for a paper.",
    epilog="Example: fedsim figures runs/first --figure straggling --format pdf,svg",
)
@RUNS
@out("The folder for the files; by default RUN-figures beside the first of RUNS.")
@click.option(
    "--width",
    default="3.5in",
    show_default=True,
    help="Width of a figure, such as '3.5in', '9cm', '90mm' or '252pt' (points of TeX).",
)
@click.option(
    "--format",
    "formats",
    default="pdf",
    show_default=True,
    help="Type of the files: pdf, svg or png, or several with commas between.",
)
@click.option(
    "--figure",
    "figures",
    multiple=True,
    metavar="NAME",
    help="The figure to draw: straggling, waiting, rounds, migration, members or communication; may "
    "be repeated. By default all that apply.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="VARIANT|KEY=VALUE",
    help="Draw only the runs of a study's variant, or with this value of its grid; may be repeated. By "
    "default all.",
)
@click.option(
    "--round",
    "rounds",
    type=click.IntRange(min=0),
    multiple=True,
    help="For '--figure rounds': the round to draw (the first is 0); may be repeated. By default the "
    "round with the most failures and the median one.",
)
@click.option(
    "--target",
    help="For '--figure communication': a test accuracy (0 to 1), or another metric, such as "
    "perplexity=8. By default a target of the study, or a usual accuracy: the highest that all runs "
    "reach.",
)
@reported
def figures_command(
    runs: tuple[Path, ...],
    out: Path | None,
    width: str,
    formats: str,
    target: str | None,
    figures: tuple[str, ...],
    only: tuple[str, ...],
    rounds: tuple[int, ...],
) -> VerbOutcome:
    """Draw RUNS (run folders, folders of studies) as figures for a paper, each with a CSV file of
    the drawn numbers.

    All figures that apply to RUNS are drawn, unless --figure names some. --only selects variants of
    a study, or values of its grid. --width is the width of a figure, by default a column of 3.5in;
    --format is pdf, svg or png, or several with commas between.

    --round selects the rounds that the figure 'rounds' draws. --target is the accuracy, or value of
    another metric, up to which the figure 'communication' counts bytes.
    """
    from fedsim.analysis.paper.figures import write_figures
    from fedsim.analysis.paper.sheet import read_width
    from fedsim.lab.reading.targets import Target

    inches = read_width(width)
    outcome = write_figures(
        runs,
        out,
        figures=figures,
        only=only,
        width=inches,
        formats=[word.strip().lower() for word in formats.split(",")],
        target=None if target is None else Target.read(target),
        rounds=rounds,
    )

    def print_text() -> None:
        for figure in outcome.written:
            say(*(f"written {path}" for path in figure.files))
            say(*(f"{figure.name}: {note}" for note in figure.notes), err=True)
        for skipped in outcome.skipped:
            of_line = f" of {skipped.line}" if skipped.line else ""
            say(f"no {skipped.name}{of_line}: {skipped.reason}", err=True)

    def make_result() -> "VerbResult":
        from fedsim.cli.results.figures import FiguresResult

        return FiguresResult.of(inches, outcome)

    return VerbOutcome(make_result, print_text)


@click.command(
    "tensorboard",
    short_help="Write the rounds of runs for TensorBoard.",
    epilog="Example: fedsim tensorboard runs/first --out board",
)
@RUNS
@out("The folder to write, for 'tensorboard --logdir'.", required=True)
@one_message
def tensorboard_command(runs: tuple[Path, ...], out: Path) -> None:
    """Write the rounds of RUNS (run folders, folders of studies) for TensorBoard, into --out.

    In TensorBoard, "Step" is the round, and "Relative" the simulated time.
    """
    from fedsim.lab.trackers.exports import write_tensorboard

    say(*(f"written {path}" for path in write_tensorboard(runs, out)))


@click.command(
    "mlflow",
    short_help="Write runs or studies for MLflow.",
    epilog="Example: fedsim mlflow runs/first --out mlruns",
)
@RUNS
@click.option(
    "--out",
    required=True,
    metavar="FOLDER|URI",
    help="Where to write: a folder, or the URI of an MLflow tracking server.",
)
@one_message
def mlflow_command(runs: tuple[Path, ...], out: str) -> None:
    """Write RUNS (run folders, folders of studies) to MLflow. --out is a folder, or the URI of a
    tracking server.

    MLflow's step is the round, its timestamp the simulated time, and its experiment the study.
    """
    from fedsim.lab.trackers.exports import write_mlflow

    say(*(f"written {name}" for name in write_mlflow(runs, out)))


@click.command(
    "wandb",
    short_help="Write runs or studies for W&B, here alone.",
    epilog="Example: fedsim wandb runs/first --out board",
)
@RUNS
@out("The folder to write; its folder 'wandb' holds the runs.", required=True)
@click.option(
    "--project",
    default="fedsim",
    show_default=True,
    help="The W&B project to which 'wandb sync' will send them.",
)
@one_message
def wandb_command(runs: tuple[Path, ...], out: Path, project: str) -> None:
    """Write RUNS (run folders, folders of studies) for W&B into the folder --out, to upload later.

    Nothing is sent: 'wandb sync' uploads the files, to the project --project. W&B's step is the
    round, and its group the study.
    """
    from fedsim.lab.trackers.exports import write_wandb

    say(*(f"written {path}" for path in write_wandb(runs, out, project)))


SHOWING = (
    audit_command,
    trace_command,
    calibrate_command,
    report_command,
    figures_command,
    tensorboard_command,
    mlflow_command,
    wandb_command,
)
