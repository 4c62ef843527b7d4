"""Runs for Weights & Biases, in files: its step is the round; ``simulated time, s`` is a metric beside the others.

Nothing leaves this machine: ``wandb sync`` sends the files, if somebody wants that. Needs the package ``wandb``.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.records.exports import Export, exports, scalars

_FOLDER = "wandb"  # in which the package puts its runs
TIME = "simulated time, s"


def write_wandb(paths: Sequence[str | Path], out: Path, project: str = "fedsim") -> list[Path]:
    """Write runs as W&B's own files into ``out/wandb``; returns their folders. One done again replaces the first.

    Args:
        paths: folders of runs and studies; a study is a group.
        out: a folder.
        project: the name under which they are sent, if they are.

    Raises:
        RunFolderError: a folder is neither a run nor a study, or is damaged; a file cannot be written; or W&B is missing.
    """
    try:
        import wandb
    except ImportError as error:
        raise RunFolderError(f"W&B cannot be imported ({error}); pip install 'wandb>=0.18' installs it") from error
    found = exports(paths)
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [_write(wandb, one, out, project) for one in found]
    except OSError as error:
        raise RunFolderError(f"--out {str(out)!r} cannot be written: {error.strerror}") from None
    finally:
        wandb.teardown()  # its own process writes the files, and may still be at it when a run is finished


def _write(wandb: Any, one: Export, out: Path, project: str) -> Path:
    for old in (out / _FOLDER).glob(f"offline-run-*-{one.key}"):
        shutil.rmtree(old)
    quiet = wandb.Settings(
        silent=True,
        console="off",
        x_disable_stats=True,
        x_disable_meta=True,
        disable_git=True,
        disable_code=True,
        x_save_requirements=False,
    )
    run = wandb.init(
        mode="offline",
        dir=str(out),
        project=project,
        name=one.name,
        group=one.study or None,
        id=one.key,
        config=one.settings,
        settings=quiet,
    )
    for time, number, values in scalars(one.run):
        run.log({**values, TIME: time}, step=number)
    run.summary.update({f"summary/{name}": value for name, value in one.figures.items()})
    run.finish(exit_code=0 if one.run.summary["status"] == "done" else 1)
    (written,) = (out / _FOLDER).glob(f"offline-run-*-{one.key}")
    return written
