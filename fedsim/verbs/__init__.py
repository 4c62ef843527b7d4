"""Verbs of the command line besides those that run, study and audit (``fedsim.cli``), and the options that verbs share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedsim.output.mistakes import explained

one_message = explained("fedsim")
FOLDER, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)

ALLOW_CODE = click.option(
    "--allow-code",
    is_flag=True,
    help="Import the code that the file names (a strategy or module of your own): trust it first.",
)
RUN_FOLDER = click.argument("run", type=FOLDER)
RUNS = click.argument("runs", nargs=-1, required=True, type=FOLDER)
WORKERS = click.option("--workers", type=int, help="Threads or processes; by default one per core. No influence on results.")


def out(told: str, *, required: bool = False, kind: click.Path = FOLDER) -> Callable[[Any], Any]:
    """The option ``--out``."""
    return click.option("--out", type=kind, required=required, help=told)


def changes(told: str, *, required: bool = False) -> Callable[[Any], Any]:
    """The option ``--set``."""
    how: Any = {"multiple": True, "metavar": "KEY.PATH=VALUE", "required": required}
    return click.option("--set", "changes", help=f"{told}; may be repeated.", **how)
