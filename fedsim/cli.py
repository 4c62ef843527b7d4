"""The command line: each verb parses its options, calls the library, and prints.

Exit status: 0 done; 1 failed; 2 a mistake in the scenario or on the command line; 130 interrupted, and what there was is kept.
"""

import asyncio
import atexit
import gc
import signal
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fedsim.errors import ScenarioError
from fedsim.output.harmless import say, visible
from fedsim.output.mistakes import INTERRUPTED
from fedsim.signals import end_at_once, interrupted_once, let_go, signals
from fedsim.verbs import ALLOW_CODE, FOLDER, RUN_FOLDER, RUNS, WORKERS, changes, one_message, out
from fedsim.verbs.beginning import NAMING
from fedsim.verbs.explaining import VERBS
from fedsim.version import __version__

_WATCHED_S = 2.0  # of real time, between two pictures of a run that is watched


class _Group(click.Group):
    """Verbs with sanitised messages for mistakes on the command line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise click.UsageError(visible(error.format_message()), error.ctx) from None


_scenario = click.argument("scenario", type=click.Path(dir_okay=False))
_changes = changes("Override a key, or without VALUE take it away")
_seed = click.option("--seed", type=click.IntRange(min=0), help="Override the scenario's seed.")
_address = click.option("--address", metavar="HOST:PORT", help="The Ray cluster, or 'auto'; by default Ray is started here.")
_watch = click.option("--watch", is_flag=True, help="Serve the report on this machine alone, and renew it while runs go on.")
_port = click.option("--port", type=click.IntRange(0, 65535), default=0, help="For --watch; by default any that is free.")
_quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedsim")
def main() -> None:
    """Simulate federated learning: what would a strategy cost in time, bytes and accuracy on real devices?"""
    if threading.current_thread() is threading.main_thread():  # SIGTERM and SIGHUP end a command as Ctrl-C does
        for number in signals()[1:]:
            click.get_current_context().call_on_close(partial(signal.signal, number, signal.signal(number, _end)))
    before = gc.get_threshold()
    click.get_current_context().call_on_close(lambda: gc.set_threshold(*before))
    gc.set_threshold(100_000)  # libraries make many objects when they are loaded, and none of them is garbage
    atexit.register(gc.freeze)  # nor need they be looked through when the process ends


def _end(number: int, frame: Any) -> None:
    let_go(number)
    signal.default_int_handler(number, frame)


for _verb in (*NAMING, *VERBS):
    main.add_command(_verb)


@main.command("run")
@_scenario
@out("The run folder to make.", required=True)
@_seed
@_changes
@click.option("--executor", default="threads", show_default=True, help="Where learning is computed: inline, threads, ray.")
@WORKERS
@_address
@click.option("--resume", is_flag=True, help="Go on with the run in --out where its newest checkpoint left it.")
@ALLOW_CODE
@_watch
@_port
@_quiet
@one_message
def run_command(scenario: str, out: Path, allow_code: bool, watch: bool, port: int, quiet: bool, **given: Any) -> int:
    """Run SCENARIO and write a run folder."""
    from fedsim.executors.named import make_executor
    from fedsim.output.progress import RunProgress, summary_lines
    from fedsim.output.terminal import Console
    from fedsim.records.folder import SCENARIO
    from fedsim.records.live import EVERY_S
    from fedsim.running.runner import Job, end_soon
    from fedsim.scenario import load

    if watch:
        from fedsim.analysis.watch import watching  # loads what draws
    read = load(scenario, given["changes"], given["seed"], allow_code=allow_code, tell=_tell(quiet))
    with closing(make_executor(given["executor"], given["workers"], given["address"], read.training.device)) as where:
        job = Job(read, out, where, resume=given["resume"], live_every_s=_WATCHED_S if watch else EVERY_S)
        if not quiet:
            say(*read.stop.notes, *read.strategy.notes, err=True)
            progress = RunProgress(read.strategy.horizon(read.stop), Console(stderr=True), job.run.strategy.facts)
            job.simulation.listen(progress.take, kinds=("round", "task-end"))
            job.simulation.at_close(progress.close)
            job.on_saved(progress.saved)
        with watching(out, port) if watch else nullcontext(), interrupted_once(partial(end_soon, job), again=end_at_once):
            result = asyncio.run(job.execute())
    interrupted = result.summary["status"] == "interrupted"
    if not quiet:
        say(*summary_lines(result.summary), f"written to {out}")
        if job.checkpointer is not None and interrupted:
            code = " --allow-code" if allow_code else ""
            again = f"fedsim run {quote(str(out / SCENARIO))} --out {quote(str(out))} --resume{code}"
            say(f"interrupted; to go on: {again}", err=True)
    return INTERRUPTED if interrupted else 0


def _tell(quiet: bool = False) -> Callable[[str], object]:
    return (lambda _: None) if quiet else lambda line: say(f"fedsim: {line}", err=True)


@main.command("check")
@_scenario
@_seed
@_changes
@ALLOW_CODE
@click.option("--no-trial", is_flag=True, help="Do not try the beginning of the run (some seconds) to tell what it takes here.")
@click.option("--toml", is_flag=True, help="Print the scenario too, with every default: the output is a scenario file.")
@one_message
def check_command(scenario: str, seed: int | None, changes: Any, allow_code: bool, no_trial: bool, toml: bool) -> None:
    """Validate SCENARIO, and say what it will cost."""
    from fedsim.executors.named import make_executor
    from fedsim.lab.forecast import PATIENCE_S, forecast_lines
    from fedsim.scenario import load

    read = load(scenario, changes, seed, allow_code=allow_code, tell=_tell())
    with closing(make_executor("threads", device=read.training.device)) as executor:
        lines = forecast_lines(read, executor, 0.0 if no_trial else PATIENCE_S)
    if toml:
        say(*(f"# {line}" for line in lines), *read.to_toml().split("\n"))
    else:
        say(*lines, "it is valid; --toml prints it with every default")


@main.group("data")
def data_group() -> None:
    """Data sets on disk."""


@data_group.command("fetch")
@click.argument("name")
@click.option("--root", type=FOLDER, envvar="FEDSIM_DATA", required=True, help="Where to put it; by default $FEDSIM_DATA.")
@one_message
def data_fetch_command(name: str, root: Path) -> None:
    """Download the data set NAME and write it in its published format."""
    from fedsim.toolbox.sources.images import fetch

    say(f"written to {fetch(name, root)}")


@main.command("study")
@click.argument("study", type=click.Path(dir_okay=False))
@out("The study's folder, new or begun before.", required=True)
@click.option("--executor", default="processes", show_default=True, help="Where the runs are done: processes or ray.")
@WORKERS
@_address
@_changes
@click.option("--size", help="The size in which the study is run, of those that it has; by default the first.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Run the seeds 1 to N instead of those that it says.")
@click.option(
    "--only",
    multiple=True,
    metavar="VARIANT|KEY=VALUE",
    help="Run some of it: KEY is part, seed or a key of the grid; several values of a KEY, or variants, are alternatives.",
)
@ALLOW_CODE
@click.option("--dry-run", is_flag=True, help="List the runs and how far each is; run and write nothing, read no data.")
@_quiet
@one_message
def study_command(study: str, out: Path, changes: Any, only: Any, dry_run: bool, quiet: bool, **given: Any) -> int:
    """Run all strategies of STUDY in the same worlds, and compare them; called again, go on where it was left."""
    from fedsim.lab.compare.lines import read_lines
    from fedsim.lab.compare.show import claims_of, compare_published, print_short, print_to
    from fedsim.lab.compare.table import Comparison
    from fedsim.lab.study.conduct import Conductor
    from fedsim.lab.study.plan import read_study
    from fedsim.lab.study.pool import StudyProgress
    from fedsim.output.terminal import Console
    from fedsim.records.study_folder import PUBLISHED

    executor, workers, address = (given.pop(name) for name in ("executor", "workers", "address"))
    read = read_study(study, changes, **given, tell=_tell(quiet))
    conductor = Conductor(read, out, workers, executor, address, only, tried=not dry_run)
    if dry_run:
        for run, state in conductor.wanted_runs:
            say(f"{state:<6}  {run.folder}")
        if conductor.trials is not None and not conductor.trials.is_over:
            say("more trials follow from what these come to")
        return 0
    with closing(StudyProgress(Console(stderr=True, quiet=quiet))) as progress, interrupted_once(conductor.interrupt):
        conductor.run(progress)
    trials = conductor.trials
    for failure in conductor.failed:
        say(f"fedsim: {failure.order.label} failed: {failure.error}", err=True)
    if conductor.interrupted:
        return INTERRUPTED
    if quiet:
        if trials is not None and not conductor.complete:
            say(*trials.lines_of_text(), err=True)
    elif trials is not None:
        print_to(Console(), [trials.table(5)])
        say(*trials.lines_of_text(), f"written to {out}")
    elif read.spec.published is not None:
        print_to(Console(), claims_of(compare_published(out, out / PUBLISHED)))
        say(f"written to {out}: compare.md and published.md have all figures")
    else:
        print_short(Console(), Comparison(read_lines([out])))
        say(f"written to {out}: compare.md and paired.csv have all figures")
    return 0 if conductor.complete else 1


@main.command("audit")
@RUN_FOLDER
@ALLOW_CODE
@one_message
def audit_command(run: Path, allow_code: bool) -> int:
    """Check the run folder RUN: causes before effects, one device in one place, bytes that balance."""
    from fedsim.audit import audit

    findings = audit(run, allow_code=allow_code)
    for name, problems in findings.items():
        say(f"{'ok  ' if not problems else 'FAIL'} {name}")
        say(*(f"       {problem}" for problem in problems[:5]))
        if len(problems) > 5:
            say(f"       and {len(problems) - 5} more")
    return 1 if any(findings.values()) else 0


@main.command("trace")
@RUN_FOLDER
@out("The file; by default trace.json beside the run folder.")
@one_message
def trace_command(run: Path, out: Path | None) -> None:
    """Write RUN as Chrome trace JSON, which opens in Perfetto."""
    from fedsim.lab.trackers.trace import write_trace
    from fedsim.records.reading import RunFolder

    path = out or run.resolve().with_name(run.resolve().name + ".trace.json")
    count = write_trace(RunFolder(run), path)
    say(f"written {count} trace events to {path}")


_ABSENT = "where LOG has no such column."


@main.command("calibrate")
@click.argument("log", type=FOLDER)
@out("The folder for the scenario and its tables.", required=True)
@click.option("--by-client", is_flag=True, help="Write each client's own values, not distributions over clients.")
@click.option(
    "--hold-out",
    type=click.Choice(["third", "last", "none"]),
    default="third",
    show_default=True,
    help="Rounds that nothing is fitted to: every third, the last third, none.",
)
@click.option("--bytes", "size", metavar="SIZE", help=f"Of each message, such as '2 MB', {_ABSENT}")
@click.option("--samples", type=click.IntRange(min=1), help=f"Of each training, {_ABSENT}")
@click.option("--epochs", type=click.IntRange(min=1), default=1, help=f"Of each training, {_ABSENT}")
@click.option("--latency", metavar="TIME", help="Of each client, if known: '20 ms'.")
@click.option(
    "--protocol",
    type=click.Choice(["fluid", "tcp", "bbr"]),
    help="That messages go by ([network] protocol); by default fluid, or that of a run folder.",
)
@click.option("--lenient", is_flag=True, help="Leave out what cannot be used (holes, clients that appear once), and say so.")
@one_message
def calibrate_command(
    log: Path, out: Path, size: Any, samples: Any, epochs: int, latency: Any, lenient: bool, **fit: Any
) -> None:
    """Fit a population and a network to LOG, the tasks of a real deployment (CSV, Parquet), or a run folder."""
    from fedsim.calibrate import calibrate
    from fedsim.calibrate.log import LogDefaults
    from fedsim.language.units import Bytes, Seconds, read_quantity

    sized = None if size is None else read_quantity("--bytes", size, Bytes)
    latency_s = None if latency is None else read_quantity("--latency", latency, Seconds)
    say(*calibrate(log, out, LogDefaults(sized, samples, epochs, lenient), latency=latency_s, **fit))


@main.command("report")
@RUNS
@out("The HTML file; by default FOLDER.report.html beside the first folder.")
@_watch
@_port
@one_message
def report_command(runs: tuple[Path, ...], out: Path | None, watch: bool, port: int) -> None:
    """Write RUNS (run folders, folders of studies) as one HTML page with pictures, tables and an interactive timeline.

    They may still go on. With --watch nothing is written; Ctrl-C ends it.
    """
    from fedsim.analysis.report import write_report
    from fedsim.analysis.watch import watch as serve

    if watch:
        if out is not None:
            raise ScenarioError(f"--out is {str(out)!r}, but --watch writes no file")
        serve(runs, lambda address: say(f"watch it at {address} (Ctrl-C ends this)", err=True), threading.Event(), port)
    else:
        path = write_report(runs, out)
        say(f"written {path.stat().st_size / 1e6:.1f} MB to {path}")


@main.command("tensorboard")
@RUNS
@out("The folder to point TensorBoard at.", required=True)
@one_message
def tensorboard_command(runs: tuple[Path, ...], out: Path) -> None:
    """Write the rounds of RUNS (or studies) for TensorBoard: "Step" is the round, "Relative" the simulated time."""
    from fedsim.lab.trackers.exports import write_tensorboard

    say(*(f"written {path}" for path in write_tensorboard(runs, out)))


@main.command("mlflow")
@RUNS
@click.option("--out", required=True, metavar="FOLDER|URI", help="The store: a folder of files, or a URI as MLflow has them.")
@one_message
def mlflow_command(runs: tuple[Path, ...], out: str) -> None:
    """Tell MLflow of RUNS (or studies): the step is the round, the time the simulated time; a study is an experiment."""
    from fedsim.lab.trackers.exports import write_mlflow

    say(*(f"written {name}" for name in write_mlflow(runs, out)))


@main.command("wandb")
@RUNS
@out("The folder; its 'wandb' holds the runs.", required=True)
@click.option("--project", default="fedsim", show_default=True, help="The project that 'wandb sync' will send them to.")
@one_message
def wandb_command(runs: tuple[Path, ...], out: Path, project: str) -> None:
    """Write RUNS (or studies) for W&B, on this machine alone: the step is the round; a study is a group."""
    from fedsim.lab.trackers.exports import write_wandb

    say(*(f"written {path}" for path in write_wandb(runs, out, project)))
