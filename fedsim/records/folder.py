"""The run folder on disk: checks before it is used, its files, and their fingerprints.

A file under its final name is always complete.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedsim.common.errors import RunFolderError
from fedsim.common.files import (
    WRITING,
    make_folder,
    open_file,
    read_bytes,
    read_json,
    replacing,
    sync,
)
from fedsim.common.tensor_files import AnyTensor, write_tensors
from fedsim.records import live
from fedsim.records.lock import LOCK

EVENTS = "events.parquet"
TRANSFERS = "transfers.parquet"
ROUNDS = "rounds.parquet"
DEVICES = "devices.parquet"
AVAILABILITY = "availability.parquet"
SCENARIO = "scenario.toml"
SUMMARY = "summary.json"
MODELS = "models"
BEST = "best"  # folder of the models that had the best test
NETWORK = "network.json"
TRACES = "link_traces.parquet"
TRACED_LINKS = "traced_links.parquet"
MEASURED = "measured"
"""Entry of the summary that marks the folder of a deployment, whose times were measured.

The entry is a dict that describes the deployment. Summaries of simulated runs have no such entry.
"""
SEAL = "summary_sha256"  # entry of the summary: sha256 of all other entries
_BEFORE_SEALS = ("0.1.0",)  # versions of fedsim that wrote summaries without a seal


def refuse_unusable(path: Path) -> None:
    """Check that a new run folder can be made at a path; nothing is changed.

    Args:
        path: the new run folder, which the user gives by ``--out``.

    Raises:
        RunFolderError: ``path`` is a file, holds other files or an unfinished run, lies in a run
            folder, cannot be written to, or is no text in UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:  # pyarrow takes only paths that are valid UTF-8
        raise RunFolderError(
            f"--out {str(path)!r} is no text in UTF-8; give another name"
        ) from None
    _refuse_content(path)
    refuse_within_run(path)
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise RunFolderError(
            f"--out {str(path)!r} cannot be made: {str(existing)!r} is not a folder that you may "
            "write to"
        )


def _refuse_content(path: Path) -> None:
    """Raise ``RunFolderError`` if a path is a file, or a folder that is not empty."""
    if not path.exists():
        return
    if not path.is_dir():
        raise RunFolderError(
            f"--out {str(path)!r} is a file; give a folder that does not exist yet"
        )
    if holds_nothing(path):
        return
    has_unfinished_run = any(path.glob("checkpoint/*")) and summarised_status(path) != "done"
    content = "files;"
    if has_unfinished_run:
        content = "an unfinished run; --resume goes on with it; or"
    raise RunFolderError(
        f"--out {str(path)!r} already holds {content} give a new folder, or remove it first"
    )


def refuse_within_run(path: Path) -> None:
    """Raise ``RunFolderError`` if ``path`` is a run folder, or lies in one.

    Nothing may be added to the files of a run folder.
    """
    for folder in (path.resolve(), *path.resolve().parents):
        summaries = (
            folder / SUMMARY,
            folder / live.LIVE / SUMMARY,
        )  # the files that show that a folder is a run's, finished or not
        if (folder / SCENARIO).is_file() and any(file.is_file() for file in summaries):
            raise RunFolderError(
                f"--out {str(path)!r} lies in the run folder {folder.name!r}; give a place "
                "outside of it"
            )


def holds_nothing(path: Path) -> bool:
    """Return whether a folder is empty, except for leftovers of a run that was killed at its start."""
    return all(entry.name in (LOCK, SCENARIO + WRITING) for entry in path.iterdir())


def refuse_other_run(path: Path, scenario: str) -> None:
    """Check that a folder holds an unfinished run of a scenario, so that it can be resumed.

    Args:
        path: the run folder.
        scenario: the scenario as TOML.

    Raises:
        RunFolderError: ``path`` has no run, or the run has another scenario, or it is done.
    """
    refuse_other_scenario(path, scenario)
    if summarised_status(path) == "done":
        raise RunFolderError(
            f"--out {str(path)!r} holds a run that is done; there is nothing to resume. --more 20 "
            "gives it 20 more rounds"
        )


def refuse_other_scenario(path: Path, scenario: str) -> None:
    """Check that a folder holds a run of a scenario.

    Args:
        path: the run folder.
        scenario: the scenario as TOML.

    Raises:
        RunFolderError: ``path`` has no run, or the run has another scenario.
    """
    try:
        stored = read_bytes(path / SCENARIO)
    except OSError:
        reason = "does not exist: no run to resume"
        if path.exists():
            reason = f"holds no run to resume: its {SCENARIO} cannot be read"
        raise RunFolderError(f"--out {str(path)!r} {reason}") from None
    if stored != scenario.encode():
        raise RunFolderError(
            f"--out {str(path)!r} holds a run of another scenario; to resume it, give its own "
            f"{str(path / SCENARIO)!r}"
        )


def summarised_status(path: Path) -> object:
    """Return the status of a run, such as ``done``, or None if its summary cannot be read.

    Args:
        path: the run folder.
    """
    return summarised(path, "status")


def summarised(path: Path, entry: str) -> object:
    """Return one entry of ``summary.json`` in a run folder; None if the file cannot be read.

    Args:
        path: the run folder.
        entry: key of the entry.
    """
    try:
        return read_json(path / SUMMARY)[entry]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def reopen(path: Path, parts: Collection[Path], more: Iterable[str]) -> None:
    """Prepare a run folder for a resumed run: remove the files that the run will write again.

    Removed are the final files, unfinished files, and the part files of tables that were written
    after the checkpoint.

    Args:
        path: the run folder.
        parts: part files that the checkpoint needs, each with some rows of a table; all other part
            files are removed.
        more: names of other final files to remove, such as the files of meters.
    """
    tables = (EVENTS, TRANSFERS, ROUNDS, DEVICES, AVAILABILITY, TRACES, TRACED_LINKS)
    names = (SUMMARY, *tables, MODELS, BEST, NETWORK, *more)
    final_files = [path / name for name in names]
    newer_parts = []
    for file in path.glob("*.part-*"):
        if _is_part(file.name) and file not in parts:
            newer_parts.append(file)
    # ``rglob`` follows no symbolic link, so that only files within the run folder are removed
    unfinished_files = path.rglob("*" + WRITING)
    live.remove(path)
    for outdated in (*final_files, *newer_parts, *unfinished_files):
        if outdated.is_dir() and not outdated.is_symlink():
            shutil.rmtree(outdated)
        else:
            outdated.unlink(missing_ok=True)


def make(path: Path) -> None:
    """Make the folder that the user gave by ``--out``.

    Raises:
        RunFolderError: the system cannot make the folder.
    """
    try:
        make_folder(path)
    except OSError as error:
        raise RunFolderError(f"--out {str(path)!r} cannot be made: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to a file atomically, and sync it to the disk.

    A reader, also after a power cut, finds either the old file or the whole new file.
    """
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
    sync(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Context manager to write a file atomically: the block writes to a temporary path.

    The temporary file replaces the file if the block ends without an error. The folder of ``path``
    is created if it does not exist.

    Args:
        path: path of a file that a user requested.

    Raises:
        RunFolderError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            yield beside
        sync(path.parent)
    except OSError as error:
        raise RunFolderError(f"{str(path)!r} cannot be written: {error.strerror}") from None


def fingerprint(path: Path) -> str:
    """Return the sha256 of a file, as hexadecimal digits."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprints(folder: Path, but: Collection[Path] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file of a run folder, by path within the folder.

    Args:
        folder: the run folder.
        but: files to skip, in addition to the summary and the lock.
    """
    others = {folder / SUMMARY, folder / LOCK, *but}
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path not in others)
    return {path.relative_to(folder).as_posix(): fingerprint(path) for path in paths}


def changes(folder: Path) -> Iterator[str]:
    """Compare the files of a run folder with the checksums in its summary.

    The summary itself is checked by its entry ``summary_sha256``, the checksum of its other
    entries.

    Args:
        folder: folder of a finished run.

    Yields:
        A message for each file that was changed or added after the run, or that is missing, such as
        ``rounds.parquet is missing``; nothing if the folder is unchanged.
    """
    try:
        written = read_bytes(folder / SUMMARY)
        summary = read_json(folder / SUMMARY)
        is_intact = written == summary_text(summary).encode()
        # the first version wrote no seal (checksum of the summary's other entries)
        is_before_seals = summary["fedsim"] in _BEFORE_SEALS and SEAL not in summary
        if is_intact and not is_before_seals:
            is_intact = summary[SEAL] == _seal(summary)
        expected = dict(summary["files_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        yield f"{SUMMARY} was changed after the run"
        return
    if not is_intact:
        yield f"{SUMMARY} was changed after the run"
    present = fingerprints(folder)
    for name in sorted(expected.keys() | present.keys()):
        if name not in present:
            yield f"{name} is missing"
        elif name not in expected and not _is_part(name):
            yield f"{name} was added after the run"
        elif name in expected and expected[name] != present[name]:
            yield f"{name} was changed after the run"


def _is_part(name: str) -> bool:
    """Return whether a file holds some rows of a table of an unfinished run (a part).

    The parts become one file at the end of the run, and are removed. A missing or additional part is
    therefore no change of a finished run.

    Args:
        name: name of the file.
    """
    return re.fullmatch(r"(events|transfers|rounds)\.part-[0-9]{5,}\.parquet", name) is not None


def write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    """Write ``summary.json`` with its checksum, after all other files have been synced to the disk.

    A folder with a summary thus has all files of the run.

    Args:
        folder: the run folder.
        summary: the entries without the checksum.
    """
    sync(folder)
    write_text(folder / SUMMARY, summary_text({**summary, SEAL: _seal(summary)}))


def summary_text(summary: Mapping[str, object]) -> str:
    """Return the text of ``summary.json`` for the entries of a summary."""
    return json.dumps(summary, indent=2, allow_nan=False) + "\n"


def _seal(summary: Mapping[str, object]) -> str:
    unsealed = {key: value for key, value in summary.items() if key != SEAL}
    return hashlib.sha256(summary_text(unsealed).encode()).hexdigest()


def write_network(folder: Path, layout: Mapping[str, object] | None) -> None:
    """Write ``network.json``, the links and routes that a scenario's network has read from a file.

    Args:
        folder: the run folder.
        layout: links and routes, as JSON values; None if the network reads no file, and then
            nothing is written.
    """
    if layout is not None:
        write_text(folder / NETWORK, json.dumps(layout, indent=1, allow_nan=False) + "\n")


def write_models(
    folder: Path, models: Mapping[str, Mapping[str, AnyTensor]], place: str = MODELS
) -> None:
    """Write models to a run folder as ``models/NAME.safetensors``.

    Args:
        folder: the run folder.
        models: for each file name without ending, the model's tensors by name. Stored tensors are
            read one at a time.
        place: folder for the files within the run folder: ``models``, or ``best``, which is made only
            if there are models.
    """
    if place == BEST and not models:
        return
    (folder / place).mkdir(exist_ok=True)
    for name, tensors in models.items():
        with replacing(folder / place / f"{name}.safetensors") as beside:
            write_tensors(beside, tensors)
    sync(folder / place)
