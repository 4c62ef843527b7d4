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


@click.command("rehearse", short_help="Run a scenario for real on this machine.")
@SCENARIO
@out("Folder of the rehearsal.", required=True)
@SEED
@CHANGES
@click.option(
    "--loopback", is_flag=True, help="Without network namespaces: no root, and no shaped links."
)
@click.option(
    "--train", is_flag=True, help="Nodes take their own time for training, not the scenario's."
)
@click.option(
    "--flower-waits",
    is_flag=True,
    help="Keep Flower's own waits between two looks for messages (up to 3 s and 10 s).",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the SuperLink.")
@click.option(
    "--again", is_flag=True, help="Compare the runs of a rehearsal that has ended in --out anew."
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

    It is simulated too; the page in --out compares both, before and after a calibration.
    """
    from fedsim.lab.rehearsal.conduct import SHORT_WAIT_S, RehearsalPlan
    from fedsim.lab.rehearsal.loop import describe, rehearse_beside
    from fedsim.running.scenario import load

    def tell(line: str) -> None:
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
    say(*rehearse_beside(loaded, out, plan, tell))
