"""Runs for Weights & Biases, in files: the step is the round; ``simulated time, s`` is a metric beside the others.

Nothing leaves this machine until somebody sends the files by ``wandb sync``.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.lab.trackers.exports import Export, exports, tracker

TIME = "simulated time, s"
_OFF = ("x_disable_stats", "x_disable_meta", "disable_git", "disable_code")


def write_wandb(paths: Sequence[str | Path], out: Path, project: str = "fedsim") -> list[Path]:
    """Write runs as W&B's own files into ``out/wandb``; returns their folders. One done again replaces the first.

    Args:
        paths: folders of runs and studies; a study is a group.
        out: a folder.
        project: the name under which they are sent, if they are.

    Raises:
        RunFolderError: a folder is neither a run nor a study, or is damaged; a file cannot be written; or W&B is missing.
    """
    wandb = tracker("wandb", "W&B", "wandb>=0.18")
    found = exports(paths)
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [_write(wandb, one, out, project) for one in found]
    except OSError as error:
        raise RunFolderError(f"--out {str(out)!r} cannot be written: {error.strerror}") from None
    finally:
        wandb.teardown()  # its own process writes the files, and may still be at it when a run is finished


def _write(wandb: Any, one: Export, out: Path, project: str) -> Path:
    written = f"wandb/offline-run-*-{one.key}"
    for old in out.glob(written):
        shutil.rmtree(old)
    quiet = wandb.Settings(silent=True, console="off", x_save_requirements=False, **dict.fromkeys(_OFF, True))
    names = {"project": project, "name": one.name, "group": one.study or None, "id": one.key}
    run = wandb.init(mode="offline", dir=str(out), config=one.settings, settings=quiet, **names)
    for time, number, values in one.scalars():
        run.log({**values, TIME: time}, step=number)
    run.summary.update({f"summary/{name}": value for name, value in one.figures.items()})
    run.finish(exit_code=0 if one.run.summary["status"] == "done" else 1)
    return next(out.glob(written))
