"""Checkpoints on disk. A checkpoint is a folder that is written completely or not at all.

A manifest in the folder has the SHA-256 of each other file. The last two checkpoints are kept. A
model that both checkpoints have is one file with two hard links (``apart``).
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.common.errors import CheckpointError
from fedsim.common.files import WRITING, make_folder, read_bytes, read_json, sync
from fedsim.common.tensor_files import open_tensors, write_tensors
from fedsim.running.checkpoint.apart import LinkedTensor, LinkedTensors, is_apart
from fedsim.running.checkpoint.codec import Arrays

FOLDER = "checkpoint"
_STATE = "state.json"
_ARRAYS = "arrays.safetensors"
_MODELS = "models"
_MANIFEST = "manifest.json"
_KEPT = 2
_FORMAT = 24


class Checkpoint(NamedTuple):
    """Content of a checkpoint: the state of a run as tables and arrays.

    Attributes:
        events: count of events before the checkpoint.
        tree: state of the run as JSON-compatible tables.
        arrays: arrays by the names to which the tables refer; weights of models may be on disk.
    """

    events: int
    tree: Any
    arrays: Arrays


def write(folder: Path, checkpoint: Checkpoint, linked: LinkedTensors | None = None) -> Path:
    """Write a new checkpoint of a run, and remove all checkpoints but the last two.

    If the folder has a checkpoint of the same count of events, nothing is written.

    Args:
        folder: the run folder, whose tables already have all events before the checkpoint.
        checkpoint: the content.
        linked: register of the large arrays in the run's earlier checkpoints. Arrays in it are not
            written again, but hard-linked; new large arrays are added to it. None for an empty
            register.

    Returns:
        The checkpoint's folder.
    """
    path = folder / FOLDER / f"{checkpoint.events:012d}"
    # After a signal or a resume, a checkpoint with this count of events may exist. An equal count
    # means an equal state.
    if path.exists():
        return path
    unfinished = path.with_name(path.name + WRITING)
    linked = linked or LinkedTensors()
    make_folder(path.parent)
    try:
        hashes = _write_files(unfinished, checkpoint, linked)
        unfinished.replace(path)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync(path.parent)
    for name, sha256 in hashes.items():  # later checkpoints link to these files
        linked.add_written(_model_file(path, name), checkpoint.arrays[name], sha256)
    for old in list_checkpoints(folder)[:-_KEPT]:
        linked.keep_readable(old)
        shutil.rmtree(old)
    return path


def _write_files(folder: Path, checkpoint: Checkpoint, linked: LinkedTensors) -> dict[str, str]:
    """Write a checkpoint to a new folder, and sync it to the disk.

    Args:
        folder: the folder, which does not exist yet.
        checkpoint: the content.
        linked: the large arrays of the run's earlier checkpoints.

    Returns:
        Name of each large array -> SHA-256 of its file.
    """
    events, tree, arrays = checkpoint
    state = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
    # each large array has a file of its own; all small arrays share one file
    large = {name: array for name, array in arrays.items() if is_apart(array)}
    small = {name: array for name, array in arrays.items() if name not in large}
    folder.mkdir()
    (folder / _STATE).write_bytes(state)
    arrays_sha256 = write_tensors(folder / _ARRAYS, small)
    hashes: dict[str, str] = {}
    if large:
        (folder / _MODELS).mkdir()
        for name, array in large.items():
            hashes[name] = linked.write(_model_file(folder, name), array)
        sync(folder / _MODELS)
    manifest = {
        "format": _FORMAT,
        "events": events,
        _MODELS: hashes,
        _STATE: hashlib.sha256(state).hexdigest(),
        _ARRAYS: arrays_sha256,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for name in (_STATE, _ARRAYS, _MANIFEST):
        sync(folder / name)
    sync(folder)
    return hashes


def _model_file(path: Path, name: str) -> Path:
    """Return the path of the file that stores the large array ``name`` of a checkpoint."""
    return path / _MODELS / f"{name}.safetensors"


def latest(folder: Path) -> Path:
    """Find the newest checkpoint of a run folder.

    Args:
        folder: the run folder.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: the run folder has no checkpoint, or its checkpoint folder is a link.
    """
    if (folder / FOLDER).is_symlink():
        raise CheckpointError(
            f"{str(folder / FOLDER)!r} is a link, which is not followed; resume in a copy with "
            "all it leads to"
        )
    paths = list_checkpoints(folder)
    if not paths:
        raise CheckpointError(
            f"{str(folder)!r} holds no checkpoint to resume from; run the scenario again, with "
            "another --out"
        )
    return paths[-1]


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, and verify its files against the manifest.

    Args:
        path: the checkpoint's folder.

    Returns:
        The content, whose arrays are read when they are needed, even if the checkpoint is removed.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another format.
    """

    def damaged(problem: str) -> CheckpointError:
        """Return the error for a damaged checkpoint."""
        return CheckpointError(
            f"the checkpoint {str(path)!r} is damaged: {problem}; remove it to resume from the "
            "one before"
        )

    try:
        manifest = read_json(path / _MANIFEST)
        if manifest["format"] != _FORMAT:
            raise _format_error(path, manifest["format"])
        # the state, and the small arrays in one file
        state = read_bytes(path / _STATE)
        small_arrays = open_tensors(path / _ARRAYS, hashed=True)
        hashes = {_STATE: hashlib.sha256(state).hexdigest(), _ARRAYS: small_arrays.sha256}
        for name, sha256 in hashes.items():
            if sha256 != manifest[name]:
                raise damaged(f"{name} is not what was written")
        # the large arrays, each of which has a file of its own
        tensors: Arrays = dict(small_arrays.tensors)
        for name, sha256 in manifest[_MODELS].items():
            tensor = LinkedTensor.of_file(_model_file(path, name))
            if tensor.sha256 != sha256:
                raise damaged(f"{tensor.path.name} of its models is not what was written")
            tensors[name] = tensor
        if manifest["events"] != int(path.name):
            raise damaged(f"it was taken after {manifest['events']} events, which is not its name")
        return Checkpoint(manifest["events"], json.loads(state), tensors)
    except CheckpointError:
        raise
    except Exception as error:  # readers raise many kinds of errors for damaged files
        raise damaged(f"{type(error).__name__}: {error}") from None


def _format_error(path: Path, number: object) -> CheckpointError:
    """Return the error for a checkpoint of another format than this version reads.

    Args:
        path: the checkpoint's folder.
        number: format of the checkpoint.
    """
    return CheckpointError(
        f"the checkpoint {str(path)!r} is of format {number!r}, and this fedsim reads {_FORMAT}: "
        "resume with the fedsim that wrote it, or run the scenario again, with another --out"
    )


def refuse_other_format(path: Path) -> None:
    """Check that a checkpoint has the format of this version, if its manifest can be read.

    Args:
        path: the checkpoint's folder.

    Raises:
        CheckpointError: the checkpoint has another format.
    """
    try:
        number = read_json(path / _MANIFEST)["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # ``read`` reports the damage of the manifest
    if number != _FORMAT:
        raise _format_error(path, number)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, oldest first.

    Args:
        folder: the run folder.
    """
    if not (folder / FOLDER).is_dir():
        return []
    paths = []
    for path in (folder / FOLDER).glob("*"):
        is_checkpoint = re.fullmatch("[0-9]+", path.name) is not None
        if is_checkpoint and path.is_dir() and not path.is_symlink():
            paths.append(path)
    return sorted(paths)


def remove_after(path: Path) -> None:
    """Remove the checkpoints of a run that are newer than a given one.

    Args:
        path: folder of the checkpoint that remains the newest.
    """
    for checkpoint in list_checkpoints(path.parent.parent):
        if checkpoint.name > path.name:
            shutil.rmtree(checkpoint)
