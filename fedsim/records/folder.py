"""The run folder on disk: refused when it cannot be used, and never half-written under a final name."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import RunFolderError

EVENTS, TRANSFERS, ROUNDS, DEVICES = "events.parquet", "transfers.parquet", "rounds.parquet", "devices.parquet"
SCENARIO, SUMMARY, MODELS, NETWORK = "scenario.toml", "summary.json", "models", "network.json"


def refuse_unusable(path: Path) -> None:
    """Look whether a new run folder can be made at ``path``, and change nothing.

    Raises:
        RunFolderError: it holds files already, is no folder, or cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"--out {str(path)!r} is a file; give a folder that does not exist yet")
    if path.is_dir() and any(path.iterdir()):
        raise RunFolderError(f"--out {str(path)!r} already holds files; give a new folder, or remove it first")
    parent = path
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise RunFolderError(f"--out {str(path)!r} cannot be made: {str(parent)!r} is not a folder that you may write to")


def refuse_other_run(path: Path, scenario: str) -> None:
    """Look whether ``path`` holds an unfinished run of ``scenario`` (as written TOML), and change nothing.

    Raises:
        RunFolderError: it holds none, one of another scenario, or one that is done.
    """
    try:
        there = (path / SCENARIO).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise RunFolderError(f"--out {str(path)!r} holds no run to resume: its {SCENARIO} cannot be read") from None
    if there != scenario:
        raise RunFolderError(
            f"--out {str(path)!r} holds a run of another scenario; to resume it, give its own {str(path / SCENARIO)!r}"
        )
    if (path / SUMMARY).is_file():
        try:
            status = json.loads((path / SUMMARY).read_text(encoding="utf-8"))["status"]
        except (OSError, ValueError, KeyError, TypeError):
            status = "unknown"
        if status == "done":
            raise RunFolderError(f"--out {str(path)!r} holds a run that is done; there is nothing to resume")


def reopen(path: Path) -> None:
    """Remove what an interrupted run had closed: it goes on."""
    for name in (SUMMARY, EVENTS, TRANSFERS, ROUNDS, DEVICES):
        (path / name).unlink(missing_ok=True)
    if (path / MODELS).is_dir():
        shutil.rmtree(path / MODELS)


def make(path: Path) -> None:
    """Make the folder.

    Raises:
        RunFolderError: the system refuses.
    """
    refuse_unusable(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"--out {str(path)!r} cannot be made: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place and rename it, so that nobody ever sees a part of it."""
    beside = path.with_name(path.name + ".writing")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def fingerprints(folder: Path) -> dict[str, str]:
    """sha256 of every file of the folder but the summary and the parts of tables, by its path within."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMMARY and ".part-" not in path.name)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json``."""
    write_text(folder / SUMMARY, json.dumps(summary, indent=2, sort_keys=False, allow_nan=False) + "\n")


def write_network(folder: Path, layout: Mapping[str, Any]) -> None:
    """Write ``network.json``: the links and routes that a scenario's network takes from a file of its own."""
    write_text(folder / NETWORK, json.dumps(layout, indent=1, allow_nan=False) + "\n")


def write_models(folder: Path, models: Mapping[str, Mapping[str, NDArray[np.float32]]]) -> None:
    """Write each model file as ``models/NAME.safetensors``."""
    from safetensors.numpy import save_file

    (folder / MODELS).mkdir(exist_ok=True)
    for name, tensors in models.items():
        beside = folder / MODELS / f"{name}.writing"
        save_file(dict(tensors), beside)
        beside.replace(folder / MODELS / f"{name}.safetensors")


def write_devices(folder: Path, columns: Mapping[str, Any]) -> None:
    """Write ``devices.parquet``; each column has one entry a device."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedsim.records.schema import DEVICES as SCHEMA

    beside = folder / (DEVICES + ".writing")
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMA]
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), beside, compression="zstd")
    beside.replace(folder / DEVICES)
