"""The verbs that help to begin: ``new``, ``describe``, ``list``, ``init``, ``schema``, and ``bench`` for a strategy."""

from pathlib import Path
from typing import Any

import click

from fedsim.output.harmless import say
from fedsim.verbs import ALLOW_CODE, FILE, FOLDER, WORKERS, changes, one_message, out


@click.command("new")
@click.argument("file", type=FILE, default="study.toml")
@click.option("--devices", help="A count and a kind: '200 phones', '30 boards', '10 hospitals', '4 regions'.")
@click.option("--link", help="A kind of link (fedsim describe links), or its rates down and up: '20/5 Mbit/s'.")
@click.option("--model", help="The size of the model: '5 MB'.")
@click.option("--target", type=float, help="The accuracy to reach: 0.9.")
@click.option("--deadline", help="Of a round: a time, or 'try' for several.")
@one_message
def new_command(file: Path, **given: Any) -> None:
    """Ask five things and write FILE, a commented study that answers: which deadline, which strategy, at what cost?

    Options answer the questions for scripts; the others are asked, and Enter takes the answer in brackets.
    """
    from fedsim.lab.newcomer import QUESTIONS, write_study

    for name, (question, usual) in QUESTIONS.items():
        if given[name] is None:
            given[name] = click.prompt(question, default=usual, type=float if name == "target" else str)
    line = write_study(file, **given)
    say(f"written {line}", "run it:", f"  fedsim study {file} --out runs/{file.stem}", f"  fedsim report runs/{file.stem}")


@click.command("describe")
@click.argument("name", nargs=-1, required=True)
@one_message
def describe_command(name: tuple[str, ...]) -> None:
    """Say what NAME is, with its figures and their sources: a kind, a preset, a link, a key or table of a scenario or study.

    Such as: phone-mid, smartphone-4g, lte, fedbuff, energy.preset, study.parts. Any other words are searched for.
    """
    from fedsim.lab.catalogue import about

    say(*about(" ".join(name)))


@click.command("list")
@click.argument("name", required=False)
@one_message
def list_command(name: str | None) -> None:
    """List what a scenario can name; with NAME the same as ``describe``."""
    from fedsim.lab.catalogue import about, catalogue, entry_lines

    if name is None:
        say(*(line for title, entries in catalogue().items() for line in entry_lines(title, entries)))
    else:
        say(*about(name))


@click.command("init")
@click.argument("name")
@click.argument("folder", type=FOLDER, default=".")
@one_message
def init_command(name: str, folder: Path) -> None:
    """Copy the scenario or study NAME, of those that come with fedsim, into FOLDER, to be changed there."""
    from fedsim.shipped import copy

    say(*(f"written {path}" for path in copy(name, folder)))


@click.command("schema")
@click.argument("file", type=click.Choice(["scenario", "study"]), default="scenario")
@one_message
def schema_command(file: Any) -> None:
    """Print the JSON schema of a scenario or a study, with which editors of TOML complete keys."""
    import json

    from fedsim.lab.catalogue import schema

    say(*json.dumps(schema(file), indent=1).split("\n"))


@click.command("bench")
@click.argument("strategies", nargs=-1, required=True, metavar="STRATEGY...")
@out("The folder of the runs; by default runs/bench-STRATEGY.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Seeds 1 to N; by default 3.")
@changes("A key of your strategy")
@click.option("--keep", type=FILE, help="A board (CSV) to put the lines on.")
@WORKERS
@ALLOW_CODE
@one_message
def bench_command(strategies: tuple[str, ...], out: Path | None, changes: Any, keep: Path | None, **how: Any) -> None:
    """Run strategies in six frozen worlds, and place them on the kept board.

    STRATEGY is a name of the board, a kind (fedsim list strategies), an import path of your own, or 'all' for the board's.
    """
    from fedsim.lab import bench
    from fedsim.lab.compare.show import print_to
    from fedsim.lab.study.plan import safe_name
    from fedsim.output.terminal import Console

    target = out or Path("runs") / f"bench-{safe_name(strategies[0])}"
    lines = bench.bench(strategies, target, changes, **how)
    print_to(Console(), [bench.table_of(lines, bench.read_board())])
    tables = bench.tables_of(target)
    if changed := bench.changed_tables(tables):
        say(f"these are not the board's worlds, so places mean nothing: {'; '.join(changed)} differ", err=True)
    if keep is not None:
        bench.keep(lines, keep, tables)
    say(f"runs are in {target}: fedsim report {target}", *([] if keep is None else [f"kept in {keep}"]))


NAMING = (new_command, describe_command, list_command, init_command, schema_command, bench_command)
"""The verbs of this file, in the order of the help."""
