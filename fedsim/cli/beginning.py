"""Commands that need no run: ``new``, ``describe``, ``list``, ``init``, ``schema``, ``check``.

The command ``data fetch`` is here too.
"""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedsim.cli.options import (
    ALLOW_CODE,
    CHANGES,
    FILE,
    FOLDER,
    SCENARIO,
    SEED,
    is_attended,
    one_message,
    refuse_beside_json,
    tell_dropped,
)
from fedsim.cli.output import VerbOutcome, is_quiet, prints_json, reported
from fedsim.common.harmless import say

if TYPE_CHECKING:
    from fedsim.cli.results.parts import VerbResult
    from fedsim.lab.fetching.transfer import FetchProgress


@click.command(
    "new",
    short_help="Ask five questions and write a study.",
    epilog="Example: fedsim new mine.toml --devices '200 phones' --link lte --model '5 MB' "
    "--target 0.9 --deadline try",
)
@click.argument("file", type=FILE, default="study.toml")
@click.option(
    "--devices",
    help="Number and kind of the devices: '200 phones', '30 boards', '10 hospitals', '4 regions'.",
)
@click.option(
    "--link",
    help="The devices' link: a kind ('fedsim list links' names them), or its download and upload "
    "rate: '20/5 Mbit/s'.",
)
@click.option(
    "--model", help="The size of the model as it is sent: '5 MB'; or a name such as resnet18."
)
@click.option("--target", type=float, help="The test accuracy to reach (0 to 1), such as 0.9.")
@click.option(
    "--deadline",
    help="The deadline of a round: a time such as '50 s', or 'try' to compare four deadlines.",
)
@one_message
def new_command(file: Path, **answers: Any) -> None:
    """Ask five questions about your devices, and write a study with comments to FILE (TOML).

    'fedsim study FILE' then compares strategies and deadlines by their time, bytes and energy until
    the test accuracy is reached. Each option answers a question; questions without an option are
    asked, and Enter accepts the default in brackets.
    """
    from fedsim.lab.newcomer import QUESTIONS, write_study

    for name, (question, default) in QUESTIONS.items():
        if answers[name] is None:
            kind = float if name == "target" else str
            answers[name] = click.prompt(question, default=default, type=kind)
    line = write_study(file, **answers)
    say(
        f"written {line}",
        "run it:",
        f"  fedsim study {file} --out runs/{file.stem}",
        f"  fedsim report runs/{file.stem}",
    )


@click.command(
    "describe",
    short_help="Say what a kind, a preset, a key or a link is.",
    epilog="Example: fedsim describe strategy.deadline",
)
@click.argument("name", nargs=-1, required=True)
@reported
def describe_command(name: tuple[str, ...]) -> VerbOutcome:
    """Describe NAME: a kind of strategy, device or other part, a preset, a link, or a key or table
    of a scenario or study. Its published values are printed with their sources.

    Examples are phone-mid, smartphone-4g, lte, fedbuff, energy.preset and study.parts. Any other
    words are searched for in all descriptions.
    """
    return _describe(" ".join(name), "describe")


def _describe(name: str, verb: Literal["describe", "list"]) -> VerbOutcome:
    """Return the outcome of ``fedsim describe NAME``, or of ``fedsim list NAME``.

    Args:
        name: a name of 'fedsim list', or a key or table of a scenario or study.
        verb: the command that prints the description.
    """
    from fedsim.lab.catalogue import about

    lines = about(name)

    def make_result() -> "VerbResult":
        from fedsim.cli.results.catalogue import DescribeResult

        return DescribeResult.of(verb, name, lines)

    return VerbOutcome(make_result, partial(say, *lines))


@click.command(
    "list", short_help="List what a scenario can name.", epilog="Example: fedsim list strategies"
)
@click.argument("name", required=False)
@reported
def list_command(name: str | None) -> VerbOutcome:
    """List the kinds that a scenario can name: strategies, models, devices, links and others.

    With NAME, list one of these families, or describe one kind as 'fedsim describe' does.
    """
    from fedsim.lab.catalogue import catalogue, entry_lines

    if name is not None:
        return _describe(name, "list")
    names = catalogue()

    def print_text() -> None:
        for title, entries in names.items():
            say(*entry_lines(title, entries))

    def make_result() -> "VerbResult":
        from fedsim.cli.results.catalogue import ListResult

        return ListResult.of(names)

    return VerbOutcome(make_result, print_text)


@click.command(
    "init",
    short_help="Copy a scenario or study that comes with fedsim.",
    epilog="Example: fedsim init quickstart mine",
)
@click.argument("name")
@click.argument("folder", type=FOLDER, default=".")
@one_message
def init_command(name: str, folder: Path) -> None:
    """Copy the scenario or study NAME, of those that come with fedsim, into FOLDER, to be
    changed there.
    """
    from fedsim.running.shipped import copy

    say(*(f"written {path}" for path in copy(name, folder)))


@click.command(
    "schema",
    short_help="Print the JSON schema of a scenario, a study or the output.",
    epilog="Example: fedsim schema > scenario.json",
)
@click.argument("file", type=click.Choice(["scenario", "study", "output"]), default="scenario")
@one_message
def schema_command(file: Literal["scenario", "study", "output"]) -> None:
    """Print the JSON schema of a scenario or a study, with which editors of TOML complete keys, or
    of the output of the commands with --json.
    """
    import json

    from fedsim.cli.results.schema import output_schema
    from fedsim.lab.catalogue import schema

    json_schema = output_schema() if file == "output" else schema(file)
    say(*json.dumps(json_schema, indent=1).split("\n"))


@click.command(
    "check",
    short_help="Validate a scenario; say what it will cost.",
    epilog="Example: fedsim check quickstart --set strategy.kind=fedprox",
)
@SCENARIO
@SEED
@CHANGES
@ALLOW_CODE
@click.option(
    "--no-trial",
    is_flag=True,
    help="Skip the trial of the first steps (some seconds), by which the real time of a run on this "
    "machine is estimated.",
)
@click.option(
    "--toml",
    is_flag=True,
    help="Print the scenario too, with every default: the output is a scenario file.",
)
@reported
def check_command(
    scenario: str,
    seed: int | None,
    changes: tuple[str, ...],
    allow_code: bool,
    no_trial: bool,
    toml: bool,
) -> VerbOutcome:
    """Validate SCENARIO, and estimate its bytes, simulated time, real time and memory.

    SCENARIO is a file or a name of 'fedsim list scenarios'; --set changes keys in it, such as
    stop.rounds=5, and --allow-code imports code that it names. The first steps of the run are tried
    to estimate real time and memory; --no-trial leaves both out. With --toml the whole scenario is
    printed too. Nothing is written.
    """
    from fedsim.clock.executors import make_executor
    from fedsim.lab.forecast import PATIENCE_S
    from fedsim.lab.whole_forecast import forecast_whole
    from fedsim.running.scenario import load

    refuse_beside_json("--toml", toml)
    loaded = load(scenario, changes, seed, allow_code=allow_code, tell=tell_dropped)
    patience_s = 0.0 if no_trial else PATIENCE_S
    with closing(make_executor("threads", device=loaded.training.device)) as executor:
        forecast = forecast_whole(loaded, executor, patience_s)

    def print_text() -> None:
        if toml:
            say(*(f"# {line}" for line in forecast.lines), *loaded.to_toml().split("\n"))
        else:
            say(*forecast.lines, "it is valid; --toml prints it with every default")

    def make_result() -> "VerbResult":
        from fedsim.cli.results.check import CheckResult

        return CheckResult.of(loaded.to_toml(), forecast)

    return VerbOutcome(make_result, print_text)


@click.group("data", short_help="Fetch data sets.")
def data_group() -> None:
    """Download public data sets to this machine."""


@data_group.command(
    "fetch",
    short_help="Download a public data set.",
    epilog="Example: fedsim data fetch cifar10 --root data --dry-run",
)
@click.argument("name")
@click.option(
    "--root",
    type=FOLDER,
    envvar="FEDSIM_DATA",
    required=True,
    help="The folder of data sets; required unless the environment variable FEDSIM_DATA names it.",
)
@click.option(
    "--from",
    "mirror",
    metavar="URL",
    help="Download from this address instead of the publisher's: a mirror with the same file names. "
    "Checksums are compared all the same.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be downloaded, and ask no server.")
@reported
def data_fetch_command(name: str, root: Path, mirror: str | None, dry_run: bool) -> VerbOutcome:
    """Download the public data set NAME from its publisher, check it and unpack it below --root.

    Licence, size and host are printed first; with --dry-run nothing else is done. --from is an
    address to use instead of the publisher's. The same command resumes an interrupted download.
    """
    from fedsim.lab.fetching.catalogue import find_dataset
    from fedsim.lab.fetching.fetch import fetch, plan_fetch

    plan = plan_fetch(name, find_dataset(name), root, mirror)
    if not is_quiet() and not prints_json():
        say(*plan.lines())
    if not dry_run:
        fetch(plan, _make_download_progress())

    def print_text() -> None:
        if dry_run and plan.missing:
            say("nothing was downloaded, for --dry-run")
        elif plan.missing:
            say(f"written to {plan.folder}")
        else:
            say(f"it is there: {plan.folder}")

    def make_result() -> "VerbResult":
        from fedsim.cli.results.fetch import FetchResult

        return FetchResult.of(plan, dry_run=dry_run)

    return VerbOutcome(make_result, print_text)


def _make_download_progress() -> "FetchProgress":
    """Return a function that prints the progress of downloads to stderr, in steps of 10 %.

    It prints only if stderr is a terminal, and neither ``--quiet`` nor ``--json`` is given.
    """
    printed_tenths: dict[str, int] = {}
    prints = is_attended()

    def print_progress(name: str, size: int, total: int | None) -> None:
        if not prints or total is None:
            return
        tenths = 10 * size // total
        if tenths > printed_tenths.get(name, 0):
            say(f"{name}: {10 * tenths} %", err=True)
        printed_tenths[name] = tenths

    return print_progress


BEGINNING = (
    new_command,
    describe_command,
    list_command,
    init_command,
    schema_command,
    check_command,
    data_group,
)
