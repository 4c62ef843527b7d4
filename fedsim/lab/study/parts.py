"""Copying of a run folder to another machine while the run goes on.

The sender sends all files that have changed since it last sent files, cut into pieces. It does so
between two records of the run, while no file is written. The receiver first puts the tables into
its copy of the folder, then the newest checkpoint and at last the summary. Then it removes the
files that the sender's folder no longer has. Because of this order, a run can be resumed from the
copy even if the receiver is killed in between.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import SimulationError
from fedsim.common.files import WRITING, make_folder, open_file, sync
from fedsim.records.folder import SUMMARY
from fedsim.records.live import LIVE
from fedsim.records.lock import LOCK
from fedsim.running.checkpoint.store import FOLDER as CHECKPOINT

PIECE_BYTES = 16 << 20  # greatest size of a piece of a file
_INCOMING = ".incoming"  # suffix of the folder with received files that are not in the copy yet

Pieces: TypeAlias = list[AnyArray]
"""A file as read-only arrays of bytes, uint8 [n] each."""


class FileStamp(NamedTuple):
    """Size, time of change and inode of a file; they differ after a change of the file.

    Attributes:
        bytes: size (bytes).
        modified_ns: time of the last change (ns since 1970).
        inode: number of the file's inode.
    """

    bytes: int
    modified_ns: int
    inode: int


def list_files(folder: Path) -> dict[str, FileStamp]:
    """Return the files of a run folder: a dict from path in the folder to a file's stamp.

    A stamp has size, time of change and inode, to notice a change of the file.

    The lock, links and unfinished files are left out.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        inner_path = path.relative_to(folder)
        is_unfinished = any(name.endswith(WRITING) for name in inner_path.parts)
        if path.name == LOCK or is_unfinished or path.is_symlink() or not path.is_file():
            continue
        status = path.stat()
        files[inner_path.as_posix()] = FileStamp(status.st_size, status.st_mtime_ns, status.st_ino)
    return files


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield a file's content in pieces of at most 16 MiB; an empty file has one empty piece."""
    with open_file(path) as file:
        yield file.read(PIECE_BYTES)
        while content := file.read(PIECE_BYTES):
            yield content


def read_pieces(path: Path) -> Pieces:
    """Return the content of a file as read-only uint8 arrays of at most 16 MiB each.

    Ray stores such an array only once, even if it is sent to several workers.
    """
    return [np.frombuffer(content, dtype=np.uint8) for content in pieces_of(path)]


def read_folder(folder: Path) -> dict[str, Pieces]:
    """Return the content of the files that a resumed run needs, by their path in the run folder.

    Files of intermediate results are left out.
    """
    names = [name for name in list_files(folder) if not name.startswith(f"{LIVE}/")]
    return {name: read_pieces(folder / name) for name in names}


def write_pieces(path: Path, pieces: Sequence[AnyArray]) -> None:
    """Write a file from the arrays of its content, and make its folder if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece.data)


class PartSender:
    """Sends a run folder from a worker to the study's process, which keeps a copy of it.

    Each call of ``send_part`` sends all files that have changed since the last call, in pieces, and
    then the names of all files in the folder. The receiver removes files that are not named.

    Args:
        folder: the run folder.
        send: sends a message to the study's process; its keyword arguments are the entries of the
            message. Messages have to arrive in the order of the calls.
    """

    def __init__(self, folder: Path, send: Callable[..., None]) -> None:
        self._folder = folder
        self._send = send
        self._sent: Mapping[str, FileStamp] = {}

    def skip_present(self) -> None:
        """Regard the present files of the folder as sent, because the receiver has them."""
        self._sent = list_files(self._folder)

    @property
    def newest(self) -> tuple[str, ...]:
        """Texts that tell whether there are new checkpoints or intermediate results in the folder.

        The value differs from an earlier value of this property if a checkpoint or result is new.
        """
        checkpoint_times = self._times_of("checkpoint/*/manifest.json")
        return (*checkpoint_times, *self._times_of(f"{LIVE}/{SUMMARY}"))

    def _times_of(self, pattern: str) -> list[str]:
        stamps = []
        for path in sorted(self._folder.glob(pattern)):
            stamps.append(f"{path.parent.name} {path.stat().st_mtime_ns}")
        return stamps

    def send_part(self) -> None:
        """Send the files that have changed since the last call, then the names of all files.

        The receiver removes the files that are not named. Nothing is sent if no file was changed,
        added or removed.
        """
        files = list_files(self._folder)
        changed = [name for name in files if self._sent.get(name) != files[name]]
        if not changed and files.keys() == self._sent.keys():
            return
        for name in changed:
            for content in pieces_of(self._folder / name):
                self._send(event="file-piece", path=name, content=content)
        self._send(event="part-complete", files=[*files])
        self._sent = files


class PartReceiver:
    """Keeps a copy of a remote run folder, from the messages of its ``PartSender``.

    ``take_piece`` stores received pieces of files in another folder. ``complete_part`` then moves
    the files into the copy, in an order that keeps the copy usable for resuming the run at any
    time.

    Args:
        folder: the copy, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder.with_name(f".{folder.name}{_INCOMING}")
        self.drop()

    def drop(self) -> None:
        """Remove received pieces that ``complete_part`` has not moved into the copy."""
        shutil.rmtree(self._incoming, ignore_errors=True)

    def take_piece(self, name: str, content: bytes) -> None:
        """Append a received piece to a file that ``complete_part`` will move into the copy.

        Args:
            name: path of the file in the run folder.
            content: the piece.

        Raises:
            SimulationError: the path leads out of the run folder.
        """
        inner_path = PurePosixPath(name)
        if inner_path.is_absolute() or ".." in inner_path.parts:
            raise SimulationError(f"a worker has sent a file called {name!r}, outside of its run")
        path = self._incoming / inner_path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)

    def complete_part(self, files: Sequence[str]) -> None:
        """Move the received files into the copy, and remove files that the sender does not have.

        Args:
            files: paths of all files that the sender's folder has.
        """
        make_folder(self._folder)
        received = sorted(list_files(self._incoming)) if self._incoming.is_dir() else []
        for name in received:
            if _first_part(name) != LIVE:  # intermediate results need not survive a power failure
                sync(self._incoming / name)
        # The order keeps the copy usable if this process is killed in between: a file comes after
        # the files that it needs. Tables come first, because a checkpoint needs them.
        for name in received:
            if _first_part(name) not in (CHECKPOINT, LIVE, SUMMARY):
                self._move_file(name)
        sync(self._folder)
        for checkpoint in _checkpoints_among(received):
            # a checkpoint is named by its count of events, and the same count means the same state
            if not (self._folder / checkpoint).exists():
                self._replace_folder(checkpoint)
        if any(_first_part(name) == LIVE for name in received):
            self._replace_folder(LIVE)
        if SUMMARY in received:  # moved last, because a summary shows that the run has ended
            self._move_file(SUMMARY)
        sync(self._folder)
        self._remove_unlisted(set(files))
        self.drop()

    def _move_file(self, name: str) -> None:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._incoming / name).replace(target)

    def _replace_folder(self, name: str) -> None:
        """Replace a folder of the copy, such as a checkpoint, by the received folder.

        Args:
            name: path of the folder in the run folder.
        """
        target = self._folder / name
        # files with this suffix count as unfinished, if this process is killed before the end
        old = target.with_name(f"{target.name}.old{WRITING}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        (self._incoming / name).rename(target)
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)

    def _remove_unlisted(self, files: set[str]) -> None:
        for name in list_files(self._folder):
            if name not in files:
                (self._folder / name).unlink()
        for folder, _, _ in os.walk(self._folder, topdown=False):
            if Path(folder) != self._folder and not any(Path(folder).iterdir()):
                Path(folder).rmdir()


def _first_part(name: str) -> str:
    return name.partition("/")[0]


def _checkpoints_among(names: Sequence[str]) -> list[str]:
    """Return the paths of the checkpoint folders that have the named files, each once, in order."""
    folders = []
    for name in names:
        if _first_part(name) == CHECKPOINT:
            folders.append("/".join(name.split("/")[:2]))
    return list(dict.fromkeys(folders))
