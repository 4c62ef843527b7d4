"""Verbs of a deployment: ``flower export`` and ``rehearse``."""

from pathlib import Path

import click

from fedsim.cli.options import ALLOW_CODE, CHANGES, FOLDER, SEED, one_message, tell_dropped
from fedsim.cli.rehearsing import rehearse_command
from fedsim.common.harmless import say


@click.group("flower", short_help="Write a scenario as a Flower app.")
def flower_group() -> None:
    """Write a scenario as an app for a real deployment with Flower."""


@flower_group.command(
    "export",
    short_help="Write a scenario as a Flower app.",
    epilog="Example: fedsim flower export quickstart app",
)
@click.argument("scenario", type=click.Path())
@click.argument("app", type=FOLDER)
@SEED
@CHANGES
@ALLOW_CODE
@one_message
def flower_export_command(
    scenario: str, app: Path, seed: int | None, changes: tuple[str, ...], allow_code: bool
) -> None:
    """Write SCENARIO, a file or a run folder, as a Flower app into the new folder APP.

    --set changes keys of the scenario. 'flwr run APP' then runs the strategy's server code and
    client code in real time.
    """
    from fedsim.deployed.export import export
    from fedsim.records.reading import RunFolder
    from fedsim.running.scenario import load, load_of_run

    if Path(scenario).is_dir():
        if seed is not None:
            changes = (*changes, f"seed={seed}")
        run = RunFolder(scenario)
        loaded = load_of_run(run, changes, allow_code=allow_code, tell=tell_dropped)
    else:
        loaded = load(scenario, changes, seed, allow_code=allow_code, tell=tell_dropped)
    files = export(loaded, app)
    nodes = f"--federation-config num-supernodes={loaded.population.devices}"
    say(*(f"written {path}" for path in files), "run it:", f"  flwr run {app} --stream {nodes}")


DEPLOYING = (flower_group, rehearse_command)
