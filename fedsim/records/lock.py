"""A lock of the operating system on a file that names its holder: one process at a time works in
a folder, until it ends.
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
    """Another process works in a folder."""


@contextmanager
def locked(folder: Path, patience_s: float = 0.0, name: str = LOCK) -> Iterator[list[int]]:
    """Keep other processes from working in a folder.

    Systems without such locks lock nothing.

    Args:
        folder: that exists.
        patience_s: how long (s) to wait for another process.
        name: of the file that is locked, in the folder.

    Yields:
        The file descriptors that hold the lock, also in a child process.

    Raises:
        FolderInUseError: another process works there.
        RunFolderError: the folder cannot be locked.
    """
    path = folder / name
    end = time.monotonic() + patience_s
    try:
        while (descriptor := _take(path)) is None:
            if time.monotonic() >= end:
                raise FolderInUseError(f"{_holder(path)} works in {str(folder)!r}; wait, or end it")
            time.sleep(0.1)
    except ImportError:  # not a POSIX system
        yield []
        return
    except OSError as error:
        raise RunFolderError(f"{str(folder)!r} cannot be locked: {error.strerror}") from None
    try:
        yield [descriptor]
    finally:
        path.unlink(missing_ok=True)  # while it is held, so that it is nobody else's
        os.close(descriptor)


def _take(path: Path) -> int | None:
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system without locks
            pass
        if os.fstat(descriptor).st_nlink:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())
            return descriptor
        os.close(descriptor)  # the file of a holder that has ended meanwhile and removed it


def _holder(path: Path) -> str:
    try:
        process, host = read_text(path, errors="replace")[:300].split()
        return f"another process ({int(process)} on {host!r})"
    except (OSError, ValueError):  # it is just coming or going
        return "another process"
