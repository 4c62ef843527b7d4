"""Verbs that audit, show and export runs, and fit worlds to logs."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from fedsim.cli.results import AuditResult

_MOST_PROBLEMS = 5


@click.command("audit", short_help="Check that the records of a run fit together.")
@RUN_FOLDER
@ALLOW_CODE
@click.option(
    "--unchecked", is_flag=True, help="List all columns, keys and entries that no check covers."
)
@reported
def audit_command(run: Path, allow_code: bool, unchecked: bool) -> VerbOutcome:
    """Check the run folder RUN: causes before effects, one device in one place, bytes that
    balance.
    """
    from fedsim.lab.audit.declared import UNCHECKED
    from fedsim.lab.audited import audit_run
    from fedsim.records.reading import RunFolder

    findings, parts = audit_run(run, allow_code=allow_code)
    status = str(RunFolder(run).summary["status"])
    failing = {name: problems for name, problems in findings.items() if problems}

    def show() -> None:
        if status == "failed":
            say("the run failed: its records end at the error, and are checked up to there")
        for name, problems in findings.items():
            say(*_check_lines(name, problems))
        say(*(f"not checked: {part}" for part in parts))
        if unchecked:
            say(*(f"not checked: {name} ({reason})" for name, reason in UNCHECKED.items()))

    def make() -> "AuditResult":
        from fedsim.cli.results import AuditResult, CheckedPart, UncheckedEntry

        entries = []
        if unchecked:
            entries = [UncheckedEntry(name=name, reason=why) for name, why in UNCHECKED.items()]
        return AuditResult(
            run=str(run),
            passed=not failing,
            status=status,
            checks=[
                CheckedPart(check=name, passed=not problems, problems=problems)
                for name, problems in findings.items()
            ],
            not_checked=parts,
            unchecked=entries,
        )

    complaints = []
    for name, problems in failing.items():
        complaints += _check_lines(name, problems)
    return VerbOutcome(make, show, 1 if failing else 0, tuple(complaints))


def _check_lines(name: str, problems: list[str]) -> list[str]:
    """Return text lines about a check, with its first problems."""
    verdict = "FAIL" if problems else "ok  "
    lines = [f"{verdict} {name}"]
    lines += [f"       {problem}" for problem in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"       and {len(problems) - _MOST_PROBLEMS} more")
    return lines


@click.command("trace", short_help="Write a run for Perfetto, as Chrome trace JSON.")
@RUN_FOLDER
@out("The file; by default trace.json beside the run folder.")
@one_message
def trace_command(run: Path, out: Path | None) -> None:
    """Write RUN as Chrome trace JSON, which opens in Perfetto."""
    from fedsim.lab.trackers.trace import write_trace
    from fedsim.records.reading import RunFolder

    folder = run.resolve()
    path = out or folder.with_name(f"{folder.name}.trace.json")
    count = write_trace(RunFolder(run), path)
    say(f"written {count} trace events to {path}")


_ABSENT = "where LOG has no such column."


@click.command("calibrate", short_help="Fit a world to the log of a real deployment.")
@click.argument("log", type=FOLDER)
@out("The folder for the scenario and its tables.", required=True)
@click.option(
    "--by-client",
    is_flag=True,
    help="Write each client's own values, not distributions over clients.",
)
@click.option("--bytes", "size", metavar="SIZE", help=f"Of each message, such as '2 MB', {_ABSENT}")
@click.option("--samples", type=click.IntRange(min=1), help=f"Of each training, {_ABSENT}")
@click.option(
    "--epochs", type=click.IntRange(min=1), help=f"Of each training, {_ABSENT} Default: 1."
)
@click.option("--latency", metavar="TIME", help="Of each client, if known: '20 ms'.")
@click.option(
    "--protocol",
    type=click.Choice(["fluid", "tcp", "bbr"]),
    help="That messages go by ([network] protocol); by default fluid, or that of a run folder.",
)
@one_message
def calibrate_command(
    log: Path,
    out: Path,
    size: str | None,
    samples: int | None,
    epochs: int | None,
    latency: str | None,
    **fit: Any,
) -> None:
    """Fit a population and a network to LOG, the tasks of a real deployment (CSV, Parquet), or a
    run folder.
    """
    from fedsim.common.units import Bytes, Seconds, read_quantity
    from fedsim.lab.calibrate import calibrate
    from fedsim.lab.calibrate.log import LogDefaults

    message_bytes = None if size is None else read_quantity("--bytes", size, Bytes)
    latency_s = None if latency is None else read_quantity("--latency", latency, Seconds)
    defaults = LogDefaults(message_bytes, samples, epochs)
    say(*calibrate(log, out, defaults, latency=latency_s, **fit))


@click.command("report", short_help="Write runs and studies as one HTML page.")
@RUNS
@out("The HTML file; by default FOLDER.report.html beside the first folder.")
@WATCH
@PORT
@one_message
def report_command(runs: tuple[Path, ...], out: Path | None, watch: bool, port: int | None) -> None:
    """Write RUNS (run folders, folders of studies) as one HTML page with pictures, tables and an
    interactive timeline.

    They may still go on. With --watch nothing is written; Ctrl-C ends it, with status 0.
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


@click.command("tensorboard", short_help="Write the rounds of runs for TensorBoard.")
@RUNS
@out("The folder to point TensorBoard at.", required=True)
@one_message
def tensorboard_command(runs: tuple[Path, ...], out: Path) -> None:
    """Write the rounds of RUNS (or studies) for TensorBoard: "Step" is the round, "Relative" the
    simulated time.
    """
    from fedsim.lab.trackers.exports import write_tensorboard

    say(*(f"written {path}" for path in write_tensorboard(runs, out)))


@click.command("mlflow", short_help="Tell MLflow of runs or studies.")
@RUNS
@click.option(
    "--out",
    required=True,
    metavar="FOLDER|URI",
    help="The store: a folder of files, or a URI as MLflow has them.",
)
@one_message
def mlflow_command(runs: tuple[Path, ...], out: str) -> None:
    """Tell MLflow of RUNS (or studies): the step is the round, the time the simulated time; a
    study is an experiment.
    """
    from fedsim.lab.trackers.exports import write_mlflow

    say(*(f"written {name}" for name in write_mlflow(runs, out)))


@click.command("wandb", short_help="Write runs or studies for W&B, here alone.")
@RUNS
@out("The folder; its 'wandb' holds the runs.", required=True)
@click.option(
    "--project",
    default="fedsim",
    show_default=True,
    help="The project that 'wandb sync' will send them to.",
)
@one_message
def wandb_command(runs: tuple[Path, ...], out: Path, project: str) -> None:
    """Write RUNS (or studies) for W&B, on this machine alone: the step is the round; a study is
    a group.
    """
    from fedsim.lab.trackers.exports import write_wandb

    say(*(f"written {path}" for path in write_wandb(runs, out, project)))


SHOWING = (
    audit_command,
    trace_command,
    calibrate_command,
    report_command,
    tensorboard_command,
    mlflow_command,
    wandb_command,
)
