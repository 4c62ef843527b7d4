"""Files that survive a power cut: written beside their place, synced, and only then renamed.

An operating system writes contents and names to the disk in any order. A content is safe when its file was synced, a name when
its folder was.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITING = ".writing"  # suffix of incomplete files


def sync(path: Path) -> None:
    """Sync the content of a file, or the names in a folder, to the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":  # other systems do not open folders
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not is_folder or error.errno not in (errno.EINVAL, errno.EBADF):  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when its content is on the disk, and is removed on failure.

    The name is safe only after ``sync(path.parent)``, once for many files. Links are not followed.
    """
    beside = path.with_name(path.name + WRITING)
    beside.unlink(missing_ok=True)
    try:
        yield beside
        sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, and sync their names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
