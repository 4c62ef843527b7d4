"""Lock of a folder, so that only one process at a time works in it.

The lock is a lock of the operating system on a file, which names the process that holds it. The
system releases the lock when that process ends.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.common.errors import RunFolderError
from fedsim.common.files import read_text

LOCK = "fedsim.lock"


class FolderInUseError(RunFolderError):
    """Error: another process holds the lock of a folder."""


@contextmanager
def locked(folder: Path, patience_s: float = 0.0, name: str = LOCK) -> Iterator[list[int]]:
    """Hold the lock of a folder for the duration of a block.

    On systems without POSIX locks nothing is locked.

    Args:
        folder: an existing folder.
        patience_s: the longest time to wait for another process (s).
        name: name of the locked file in the folder.

    Yields:
        The file descriptors that hold the lock. A child process that inherits them holds it, too.

    Raises:
        FolderInUseError: another process still holds the lock after ``patience_s``.
        RunFolderError: the folder cannot be locked.
    """
    path = folder / name
    end = time.monotonic() + patience_s
    try:
        while (descriptor := _try_lock(path)) is None:
            if time.monotonic() >= end:
                raise FolderInUseError(f"{_holder(path)} works in {str(folder)!r}; wait, or end it")
            time.sleep(0.1)
    except ImportError:  # the system is not POSIX
        yield []
        return
    except OSError as error:
        raise RunFolderError(f"{str(folder)!r} cannot be locked: {error.strerror}") from None
    try:
        yield [descriptor]
    finally:
        path.unlink(missing_ok=True)  # removed while no other process can lock it
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a file; None if another process holds it."""
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # the file system has no locks
            pass
        if os.fstat(descriptor).st_nlink:  # no other process has removed the locked file
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())
            return descriptor
        os.close(descriptor)  # another process has removed the file: lock a new file


def _holder(path: Path) -> str:
    """Describe the process that holds a folder's lock, if possible with its number and machine.

    Args:
        path: the locked file.
    """
    try:
        process, host = read_text(path, errors="replace")[:300].split()
        return f"another process ({int(process)} on {host!r})"
    except (OSError, ValueError):  # another process has just created or removed the file
        return "another process"
