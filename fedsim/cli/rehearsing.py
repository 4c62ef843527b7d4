"""The verb ``rehearse``."""

from pathlib import Path

import click

from fedsim.cli.options import (
    ALLOW_CODE,
    CHANGES,
    SCENARIO,
    SEED,
    one_message,
    out,
    tell_dropped,
)
from fedsim.common.harmless import say


@click.command(
    "rehearse",
    short_help="Run a scenario for real on this machine.",
    epilog="Example: fedsim rehearse quickstart --loopback --out runs/rehearsal",
)
@SCENARIO
@out("The folder for both runs and the page that compares them.", required=True)
@SEED
@CHANGES
@click.option(
    "--loopback",
    is_flag=True,
    help="Connect all processes by this machine's loopback, which needs no root, but gives no client a "
    "slower link. By default each client has a network namespace with the rates of its link.",
)
@click.option(
    "--train",
    is_flag=True,
    help="Let training take the time of this machine; by default it takes that of the scenario.",
)
@click.option(
    "--flower-waits",
    is_flag=True,
    help="Let Flower wait as long as it does between two looks for messages (up to 3 s and 10 s); by "
    "default these waits are short.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the SuperLink; by default any that is free.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Run nothing; compare the runs of the rehearsal in --out once more.",
)
@ALLOW_CODE
@one_message
def rehearse_command(
    scenario: str,
    out: Path,
    seed: int | None,
    changes: tuple[str, ...],
    loopback: bool,
    train: bool,
    flower_waits: bool,
    port: int | None,
    again: bool,
    allow_code: bool,
) -> None:
    """Run SCENARIO for real, on Flower's SuperLink and SuperNodes as processes of this machine.

    Messages take real time. Each client has a network namespace with the rates of its link; with
    --loopback there are no namespaces, and messages are as fast as this machine. Training takes the
    scenario's time, or real time with --train. Flower's waits between two looks for messages are
    shortened, unless --flower-waits is given. --port is the port of the SuperLink.

    SCENARIO is also simulated. The page in --out compares the real run with the simulation, before
    and after the simulation is calibrated to the real run. With --again nothing is run, and the
    runs in --out are compared once more.
    """
    from fedsim.lab.rehearsal.conduct import SHORT_WAIT_S, RehearsalPlan
    from fedsim.lab.rehearsal.loop import describe, rehearse_beside
    from fedsim.running.scenario import load

    def print_note(line: str) -> None:
        say(f"fedsim: {line}", err=True)

    loaded = load(scenario, changes, seed, allow_code=allow_code, tell=tell_dropped)
    if again:
        say(*describe(out))
        return
    plan = RehearsalPlan(
        has_namespaces=not loopback,
        trains=train,
        waits_s=None if flower_waits else SHORT_WAIT_S,
        port=port,
    )
    say(*rehearse_beside(loaded, out, plan, print_note))
