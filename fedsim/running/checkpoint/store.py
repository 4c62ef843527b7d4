"""Checkpoints on disk. A checkpoint is a folder that is written completely or not at all.

A manifest in the folder has the SHA-256 of its files. The last two checkpoints are kept. A model that
both have is one file with two names (``apart``).
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
_FORMAT = 23


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
    """Write a new checkpoint of a run, and remove all but the last two.

    Args:
        folder: the run folder, whose tables already have all events before the checkpoint.
        checkpoint: the content.
        linked: the large arrays of the run's earlier checkpoints, to which those of this one are
            added; None if there are none.

    Returns:
        The checkpoint's folder.
    """
    events, tree, arrays = checkpoint
    place = folder / FOLDER / f"{events:012d}"
    # exists after a signal or a resume: the same count of events means the same state
    if place.exists():
        return place
    beside = place.with_name(place.name + WRITING)
    state = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
    linked = linked or LinkedTensors()
    large = {name: array for name, array in arrays.items() if is_apart(array)}
    small = {name: array for name, array in arrays.items() if name not in large}
    hashes: dict[str, str] = {}
    manifest: dict[str, object] = {"format": _FORMAT, "events": events, _MODELS: hashes}
    manifest[_STATE] = hashlib.sha256(state).hexdigest()
    make_folder(place.parent)
    try:
        beside.mkdir()
        (beside / _STATE).write_bytes(state)
        manifest[_ARRAYS] = write_tensors(beside / _ARRAYS, small)
        if large:
            (beside / _MODELS).mkdir()
        for name, array in large.items():
            hashes[name] = linked.write(_model_file(beside, name), array)
        if large:
            sync(beside / _MODELS)
        (beside / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for name in (_STATE, _ARRAYS, _MANIFEST):
            sync(beside / name)
        sync(beside)
        beside.replace(place)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync(place.parent)
    for name, array in large.items():
        linked.take(_model_file(place, name), array, hashes[name])
    for old in list_checkpoints(folder)[:-_KEPT]:
        linked.leave(old)
        shutil.rmtree(old)
    return place


def _model_file(place: Path, name: str) -> Path:
    """Return the path of the file that stores the large array ``name`` of a checkpoint."""
    return place / _MODELS / f"{name}.safetensors"


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
    places = list_checkpoints(folder)
    if not places:
        raise CheckpointError(
            f"{str(folder)!r} holds no checkpoint to resume from; run the scenario again, with "
            "another --out"
        )
    return places[-1]


def read(place: Path) -> Checkpoint:
    """Read a checkpoint, and verify its files against the manifest.

    Args:
        place: the checkpoint's folder.

    Returns:
        The content, whose arrays are read when they are needed, even if the checkpoint is removed.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another format.
    """

    def damaged(problem: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {str(place)!r} is damaged: {problem}; remove it to resume from the "
            "one before"
        )

    try:
        manifest = read_json(place / _MANIFEST)
        if manifest["format"] != _FORMAT:
            raise _format_error(place, manifest["format"])
        state = read_bytes(place / _STATE)
        arrays = open_tensors(place / _ARRAYS, hashed=True)
        fingerprints = {_STATE: hashlib.sha256(state).hexdigest(), _ARRAYS: arrays.sha256}
        for name, fingerprint in fingerprints.items():
            if fingerprint != manifest[name]:
                raise damaged(f"{name} is not what was written")
        tensors: Arrays = dict(arrays.tensors)
        for name, fingerprint in manifest[_MODELS].items():
            tensor = LinkedTensor.find(_model_file(place, name))
            if fingerprint != tensor.sha256:
                raise damaged(f"{tensor.path.name} of its models is not what was written")
            tensors[name] = tensor
        if manifest["events"] != int(place.name):
            raise damaged(f"it was taken after {manifest['events']} events, which is not its name")
        return Checkpoint(manifest["events"], json.loads(state), tensors)
    except CheckpointError:
        raise
    except Exception as error:  # readers raise many kinds for damaged files
        raise damaged(f"{type(error).__name__}: {error}") from None


def _format_error(place: Path, number: object) -> CheckpointError:
    """Return the error for a checkpoint of another format."""
    return CheckpointError(
        f"the checkpoint {str(place)!r} is of format {number!r}, and this fedsim reads {_FORMAT}: "
        "resume with the fedsim that wrote it, or run the scenario again, with another --out"
    )


def refuse_other_format(place: Path) -> None:
    """Check that a checkpoint has the format of this version, if its manifest can be read.

    Args:
        place: the checkpoint's folder.

    Raises:
        CheckpointError: the checkpoint has another format.
    """
    try:
        number = read_json(place / _MANIFEST)["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # ``read`` says what is damaged
    if number != _FORMAT:
        raise _format_error(place, number)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, oldest first.

    Args:
        folder: the run folder.
    """
    if not (folder / FOLDER).is_dir():
        return []
    places = []
    for place in (folder / FOLDER).glob("*"):
        is_checkpoint = re.fullmatch("[0-9]+", place.name) is not None
        if is_checkpoint and place.is_dir() and not place.is_symlink():
            places.append(place)
    return sorted(places)


def remove_after(place: Path) -> None:
    """Remove the checkpoints of a run that are newer than a given one.

    Args:
        place: folder of the checkpoint that remains the newest.
    """
    for checkpoint in list_checkpoints(place.parent.parent):
        if checkpoint.name > place.name:
            shutil.rmtree(checkpoint)
