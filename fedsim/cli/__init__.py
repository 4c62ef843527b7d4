"""The command line: each command parses its options, calls the library, and prints.

No other package of fedsim imports ``cli``. The exit status is 0 for success, 1 for a failure, 2 for
a mistake in the scenario or on the command line, and 130 for an interrupted command, whose results
until then are kept. It is 75 if a batch system announced the end of the job.
"""

import asyncio
import atexit
import gc
import signal
import threading
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING

import click

from fedsim.cli import options
from fedsim.cli.beginning import BEGINNING
from fedsim.cli.deploying import DEPLOYING
from fedsim.cli.explaining import EXPLAINING
from fedsim.cli.output import VerbOutcome, is_quiet, print_usage_error, reported
from fedsim.cli.showing import SHOWING
from fedsim.cli.studying import STUDYING
from fedsim.common.errors import ScenarioError
from fedsim.common.harmless import say, visible
from fedsim.running.signals import (
    discard_output_on_hangup,
    end_at_once,
    interrupted_once,
    interrupting_signals,
    raise_interruption,
)
from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.cli.results.parts import VerbResult
    from fedsim.running.runner import Job

_WATCHED_EVERY_S = 2.0  # real time (s) between two updates of a watched run


class _Group(click.Group):
    """Group of commands that prints the usage errors of all its commands.

    With ``--json`` an error is one JSON object, otherwise text without control characters.
    """

    def invoke(self, ctx: click.Context) -> object:
        arguments = [*ctx.args]  # click empties the list when it invokes a verb
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            message = visible(error.format_message())
            if "--json" in arguments:
                print_usage_error(error, message)
                ctx.exit(error.exit_code)
            raise click.UsageError(message, error.ctx) from None


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: fedsim run quickstart --out runs/first",
)
@click.version_option(__version__, prog_name="fedsim")
def main() -> None:
    """Simulate federated learning: what would a strategy cost in time, bytes and accuracy on
    real devices?

    'fedsim VERB --help' explains a verb, 'fedsim describe WORD' a key of scenarios or a kind, such
    as a strategy or a model.
    """
    # SIGTERM and the other signals that interrupt a run end any command as Ctrl-C does
    if threading.current_thread() is threading.main_thread():
        for number in interrupting_signals()[1:]:
            previous = signal.signal(number, _interrupt)
            click.get_current_context().call_on_close(partial(signal.signal, number, previous))
    threshold = gc.get_threshold()
    click.get_current_context().call_on_close(lambda: gc.set_threshold(*threshold))
    # loading libraries makes many objects that are no garbage, so collect less often
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)  # frozen objects are left out of the garbage collection at exit


def _interrupt(number: int, frame: FrameType | None) -> None:
    discard_output_on_hangup(number)
    raise_interruption(number, frame)


for _verb in (*BEGINNING, *STUDYING, *DEPLOYING, *EXPLAINING, *SHOWING):
    main.add_command(_verb)


def _scenario_and_folder(scenario: str, out: Path | None, *, resume: bool) -> tuple[str, Path]:
    """Return the scenario's file and the run folder for ``fedsim run``, from its arguments.

    Args:
        scenario: the argument SCENARIO: a file or a name, or the folder of a run to resume.
        out: the option ``--out``; None if it is not given.
        resume: whether an existing run is resumed or continued.

    Raises:
        ScenarioError: a new run has no folder, or SCENARIO is a folder.
    """
    from fedsim.records.folder import SCENARIO

    folder = Path(scenario)
    if not folder.is_dir():
        if out is None:
            raise ScenarioError("--out is missing: the run folder to make, such as 'runs/first'")
        return scenario, out
    if not resume:
        raise ScenarioError(
            f"{scenario!r} is a folder, not a scenario; to go on with a run in it, give --resume, "
            "or --more 20 if the run is done"
        )
    return str(folder / SCENARIO), out or folder


@main.command(
    "run",
    short_help="Run a scenario and write a run folder.",
    epilog="Example: fedsim run quickstart --out runs/first",
)
@options.SCENARIO_OR_RUN
@options.out("The run folder to make; required for a new run.")
@options.SEED
@options.CHANGES
@click.option(
    "--executor",
    default=None,
    show_default="threads; processes on several GPUs",
    help="Where training is computed: inline (in one thread), threads, processes (of this machine), "
    "or ray (a cluster).",
)
@options.WORKERS
@options.ADDRESS
@options.RESOURCES
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the interrupted run in --out from its newest checkpoint. SCENARIO may be the run "
    "folder, without --out.",
)
@click.option(
    "--more",
    metavar="ROUNDS",
    help="Go on with a finished run for so many rounds, or so much simulated time ('2 h'). The run must "
    "have been made with 'checkpoint.last = true'.",
)
@options.ALLOW_CODE
@options.WATCH
@options.PORT
@reported
def run_command(
    scenario: str,
    out: Path | None,
    seed: int | None,
    changes: tuple[str, ...],
    executor: str | None,
    workers: int | None,
    address: str | None,
    resources: str | None,
    resume: bool,
    more: str | None,
    allow_code: bool,
    watch: bool,
    port: int | None,
) -> VerbOutcome:
    """Run SCENARIO, a file or a name of 'fedsim list scenarios', and write a run folder (--out).

    --set changes keys of the scenario. --executor and --workers choose where training is computed;
    --address and --resources belong to '--executor ray', a cluster. Results do not depend on them.
    --resume continues an interrupted run, --more a finished one.

    --watch serves a page about the run on --port. In a terminal the page stays after the run, until
    Ctrl-C, which does not change the exit status. Elsewhere, and with --json or --quiet, the page
    ends with the run.
    """
    from fedsim.clock.executors import make_executor
    from fedsim.lab.terminal import summary_lines
    from fedsim.records.live import EVERY_S
    from fedsim.running.more import Extension, refuse_former
    from fedsim.running.runner import Job, end_soon
    from fedsim.running.scenario import load

    scenario, out = _scenario_and_folder(scenario, out, resume=resume or more is not None)
    extension = None if more is None else Extension.read(more)
    served_port = options.port_of(watch, port)
    if watch:
        from fedsim.analysis.watch import watching
    if resume or more is not None:
        refuse_former(out)
    loaded = load(scenario, changes, seed, allow_code=allow_code, tell=options.tell_dropped)
    device = loaded.training.device
    page = None
    kept_page = None  # the page, if it stays after the run until the user presses Ctrl-C
    with (
        closing(make_executor(executor, workers, address, device, resources)) as pool,
        ExitStack() as stack,
    ):
        live_every_s = EVERY_S
        if watch:
            page = stack.enter_context(watching(out, served_port))
            live_every_s = _WATCHED_EVERY_S
        job = Job(loaded, out, pool, resume=resume, more=extension, live_every_s=live_every_s)
        if not is_quiet():
            _say_notes(job)
            _show_progress(job)
        with interrupted_once(partial(end_soon, job), on_second=end_at_once) as interruption:
            result = asyncio.run(job.execute())
        is_interrupted = result.summary["status"] == "interrupted"
        open_page = ExitStack()
        if options.is_attended() and not is_interrupted:
            kept_page = page
            open_page = stack.pop_all()
    resumption = None
    if is_interrupted and job.checkpointer is not None:
        resumption = _resumption(out, allow_code=allow_code)

    def print_text() -> None:
        say(*summary_lines(result.summary), f"written to {out}")
        if resumption is not None:
            say(f"interrupted; to go on: {resumption}", err=True)
        with open_page:
            if kept_page is not None:
                kept_page.stay()

    def make_result() -> "VerbResult":
        from fedsim.cli.results.run import RunResult

        return RunResult.of(out, resumption)

    return VerbOutcome(make_result, print_text, interruption.exit_status if is_interrupted else 0)


def _say_notes(job: "Job") -> None:
    """Print notes on a run that is about to begin, such as its strategy's notes, to stderr."""
    strategy = job.scenario.strategy
    say(*job.scenario.stop.notes, *strategy.notes, *job.run.learner.notes, *job.notes, err=True)


def _show_progress(job: "Job") -> None:
    """Arrange that the progress of a run is displayed, from its begin to its end."""
    from fedsim.lab.terminal import Console, RunProgress

    horizon = job.scenario.strategy.horizon(job.scenario.stop)
    strategy = job.run.strategy
    progress = RunProgress(horizon, Console(stderr=True), strategy.facts, strategy.round_word)
    job.simulation.listen(progress.take, kinds=("round", "task-end"))
    job.simulation.at_close(progress.close)
    if job.checkpointer is not None:
        job.checkpointer.on_saved = progress.show_saved


def _resumption(out: Path, *, allow_code: bool) -> str:
    """Return the command that resumes the run in a folder."""
    from fedsim.records.folder import SCENARIO

    command = f"fedsim run {quote(str(out / SCENARIO))} --out {quote(str(out))} --resume"
    if allow_code:
        command += " --allow-code"
    return command
