"""What must outlive a power cut: written beside its place, brought to the disk, and only then given its name.

A system keeps in memory what is written, and brings contents and names to the disk when it likes, in any order. A content is
there for certain when its file was synced, and a name when its folder was.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITING = ".writing"  # at the end of the name of what is not whole yet


def sync(path: Path) -> None:
    """Bring the content of a file, or the names in a folder, to the disk."""
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
    """Where to write what is to become ``path``: it gets that name when its content is on the disk, and goes if that fails.

    The name is on the disk only after ``sync(path.parent)``, which may be done once for many. No link is followed: what was
    left there is removed first.
    """
    beside = path.with_name(path.name + WRITING)
    beside.unlink(missing_ok=True)
    try:
        yield beside
        sync(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, where they are missing."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
