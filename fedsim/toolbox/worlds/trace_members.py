"""Files of traces in folders and archives."""

import tarfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from fedsim.common.errors import DataError
from fedsim.common.files import read_bytes, require_regular


def files_of(path: Path) -> list[Path]:
    """Return the files of a folder and of the folders in it, sorted; for a file, only this file.

    Raises:
        OSError: there is no such file or folder.
    """
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    path.stat()
    return [path]


def members(path: Path, pattern: str, key: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a folder or archive whose name matches a pattern.

    An archive is a tar or zip file. Any other file is itself yielded, whatever its name.

    Args:
        path: the file, folder or archive.
        pattern: pattern of names, such as ``*.csv``. It is compared with a file's path within the
            folder or archive, and with the last part of this path; one match suffices.
        key: the key of a scenario that names the path, for messages.

    Raises:
        DataError: the file cannot be read, or is damaged.
    """
    if path.is_dir():
        for file in files_of(path):
            name = file.relative_to(path).as_posix()
            if _matches(name, pattern):
                yield name, read_bytes(file)
        return
    try:
        if zipfile.is_zipfile(require_regular(path)):
            yield from _zip_members(path, pattern)
        elif tarfile.is_tarfile(path):
            yield from _tar_members(path, pattern)
        else:
            yield path.name, read_bytes(path)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(f"{key}: {str(path)!r} cannot be read: {error}") from None
    except Exception as error:  # decompressors raise errors of their own types
        if isinstance(error, DataError):
            raise
        raise DataError(f"{key}: {str(path)!r} is damaged: {error}") from None


def _zip_members(path: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(require_regular(path)) as archive:
        for name in archive.namelist():
            if not name.endswith("/") and _matches(name, pattern):
                yield name, archive.read(name)


def _tar_members(path: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(require_regular(path)) as archive:
        for member in archive:
            if not member.isfile() or not _matches(member.name, pattern):
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                yield member.name, stream.read()


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)
