"""Options and arguments that several verbs of the command line share."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from fedsim.cli.output import is_quiet, prints_json
from fedsim.common.errors import ScenarioError
from fedsim.common.harmless import say
from fedsim.running.mistakes import explained

Command = TypeVar("Command", bound=Callable[..., object])

one_message = explained("fedsim")
FOLDER = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)

ALLOW_CODE = click.option(
    "--allow-code",
    is_flag=True,
    help="Import the code that the scenario or study names (a strategy or module of your own), which "
    "runs with your rights; refused by default.",
)
SCENARIO = click.argument("scenario", type=click.Path(dir_okay=False))
SCENARIO_OR_RUN = click.argument("scenario", type=click.Path())
SEED = click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Seed of all random draws; by default the scenario's.",
)
ADDRESS = click.option(
    "--address",
    metavar="HOST:PORT",
    help="For '--executor ray': the cluster's address, or 'auto' for the one of this machine; by "
    "default Ray is started here.",
)
RESOURCES = click.option(
    "--resources",
    metavar="JSON",
    help="For '--executor ray': what each task reserves on its node, such as '{\"num_cpus\": 1, "
    '"memory": "2 GB"}\'; also num_gpus and named. By default one core.',
)
WATCH = click.option(
    "--watch",
    is_flag=True,
    help="Serve the report as a page for browsers on this machine, and renew it while runs go on.",
)
PORT = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="For --watch: the port of the page; by default any that is free.",
)
RUN_FOLDER = click.argument("run", type=FOLDER)
RUNS = click.argument("runs", nargs=-1, required=True, type=FOLDER)
WORKERS = click.option(
    "--workers",
    type=int,
    help="How many threads or processes compute at a time; by default one for each core that this "
    "process may use. Results do not depend on it.",
)


def out(
    text: str, *, required: bool = False, kind: click.Path = FOLDER
) -> Callable[[Command], Command]:
    """Return a decorator that adds the option ``--out`` to a command: a path to write to.

    Args:
        text: help text of the option.
        required: whether the option must be given.
        kind: click's type of the path; by default a path, returned as ``Path``.
    """
    return click.option("--out", type=kind, required=required, help=text)


def changes(text: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that adds the option ``--set KEY.PATH=VALUE`` to a command.

    The command gets the argument ``changes``, a tuple with the text of each change.

    Args:
        text: help text of the option.
        required: whether the option must be given.
    """
    return click.option(
        "--set",
        "changes",
        multiple=True,
        required=required,
        metavar="KEY.PATH=VALUE",
        help=f"{text}; may be repeated.",
    )


def port_of(watch: bool, port: int | None) -> int:
    """Return the port for the live report of ``--watch``; 0 for any free port.

    Args:
        watch: whether the option ``--watch`` is given.
        port: value of ``--port``; None if it is not given.

    Raises:
        ScenarioError: ``port`` is given without ``watch``.
    """
    if port is not None and not watch:
        raise ScenarioError(f"--port is {port}, but nothing is served without --watch")
    return port or 0


def is_attended() -> bool:
    """Whether to show progress: stderr is a terminal, and no ``--quiet`` or ``--json`` is given."""
    return sys.stderr.isatty() and not is_quiet() and not prints_json()


def refuse_beside_json(option: str, is_given: bool) -> None:
    """Reject an option that only changes printed text, if the command prints JSON.

    Args:
        option: name of the option, for the message.
        is_given: whether the option is given.

    Raises:
        ScenarioError: the option is given together with ``--json``.
    """
    if is_given and prints_json():
        raise ScenarioError(f"--json prints one object, and {option} text; give one of the two")


CHANGES = changes(
    "Override a key of the scenario, such as stop.rounds=5; 'KEY.PATH=' without a value takes the "
    "key away"
)


def tell_dropped(line: str) -> None:
    """Print a note to stderr that a key of a scenario was dropped, unless ``--quiet`` is given.

    Keys are dropped if ``--set`` changes the ``kind`` of their table to a kind without such keys.

    Args:
        line: the note, which names the key.
    """
    if not is_quiet():
        say(f"fedsim: {line}", err=True)
