"""Checkpoints on disk: each a folder, whole or not there, with fingerprints of what it holds.

The last two are kept.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from fedsim.common.errors import CheckpointError
from fedsim.common.files import WRITING, make_folder, read_bytes, read_json, sync
from fedsim.running.checkpoint.codec import Arrays

FOLDER = "checkpoint"
_STATE = "state.json"
_ARRAYS = "arrays.safetensors"
_MANIFEST = "manifest.json"
_KEPT = 2
_FORMAT = 17


def write(folder: Path, events: int, tree: Any, arrays: Arrays) -> Path:
    """Write a checkpoint, whose parts are on the disk already, after so many events; then remove
    all but the last two.
    """
    from safetensors.numpy import save

    place = folder / FOLDER / f"{events:012d}"
    # the same events again, after a signal or a resume: to go on from there comes to the same
    if place.exists():
        return place
    beside = place.with_name(place.name + WRITING)
    content = {
        _STATE: json.dumps(tree, separators=(",", ":"), allow_nan=False).encode(),
        _ARRAYS: save(arrays),
    }
    fingerprints = {name: hashlib.sha256(part).hexdigest() for name, part in content.items()}
    manifest = {"format": _FORMAT, "events": events} | fingerprints
    content[_MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    make_folder(place.parent)
    try:
        beside.mkdir()
        for name, part in content.items():
            (beside / name).write_bytes(part)
            sync(beside / name)
        sync(beside)
        beside.replace(place)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync(place.parent)
    for old in _all(folder)[:-_KEPT]:
        shutil.rmtree(old)
    return place


def latest(folder: Path) -> Path:
    """The newest checkpoint of a run folder; ``CheckpointError``: there is none."""
    if (folder / FOLDER).is_symlink():
        raise CheckpointError(
            f"{str(folder / FOLDER)!r} is a link, which is not followed; resume in a copy with "
            "all it leads to"
        )
    found = _all(folder)
    if not found:
        raise CheckpointError(
            f"{str(folder)!r} holds no checkpoint to resume from; run the scenario again, with "
            "another --out"
        )
    return found[-1]


def read(place: Path) -> tuple[int, Any, Arrays]:
    """Number of events, tree and arrays of a checkpoint; ``CheckpointError``: it is of another
    format, or damaged.
    """
    from safetensors.numpy import load

    def damaged(why: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {str(place)!r} is damaged: {why}; remove it to resume from the "
            "one before"
        )

    try:
        manifest = read_json(place / _MANIFEST)
        if manifest["format"] != _FORMAT:
            raise CheckpointError(
                f"the checkpoint {str(place)!r} is of format {manifest['format']!r}, and this "
                f"fedsim reads {_FORMAT}: resume "
                "with the fedsim that wrote it, or run the scenario again, with another --out"
            )
        content = {name: read_bytes(place / name) for name in (_STATE, _ARRAYS)}
        for name, part in content.items():
            if hashlib.sha256(part).hexdigest() != manifest[name]:
                raise damaged(f"{name} is not what was written")
        if manifest["events"] != int(place.name):
            raise damaged(f"it was taken after {manifest['events']} events, which is not its name")
        return manifest["events"], json.loads(content[_STATE]), load(content[_ARRAYS])
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file makes a reader say
        raise damaged(f"{type(error).__name__}: {error}") from None


def _all(folder: Path) -> list[Path]:
    places = (folder / FOLDER).glob("*") if (folder / FOLDER).is_dir() else ()
    return sorted(
        place
        for place in places
        if re.fullmatch("[0-9]+", place.name) and place.is_dir() and not place.is_symlink()
    )
