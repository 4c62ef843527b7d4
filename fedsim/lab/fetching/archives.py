"""Unpacking of single files from archives that may be hostile.

The catalogue of data sets names the files to write; names in an archive are never used as paths.
Only regular files are read, and no more of a file than its expected size.
"""

import lzma
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedsim.common.errors import DataError, is_full
from fedsim.common.files import open_file, replacing, require_regular
from fedsim.common.units import show_bytes
from fedsim.lab.fetching.catalogue import Member, RemoteFile
from fedsim.lab.fetching.transfer import FetchProgress

_CHUNK = 1 << 20  # bytes unpacked at a time
_MOST_MEMBERS = 10_000  # upper bound of the entries that are searched for a member of a tar archive


def unpack(archive: Path, file: RemoteFile, folder: Path, progress: FetchProgress) -> None:
    """Unpack files from a downloaded archive into a folder, replacing files of the same names.

    Args:
        archive: the downloaded file.
        file: description of the archive; its ``members`` are the files to unpack.
        folder: an existing folder.
        progress: called while bytes are written, with the name of a file, the count of its bytes so
            far, and its size (bytes; None if unknown).

    Raises:
        DataError: the archive is damaged or hostile, or lacks a member; or the disk is full.
    """
    for name, member in file.members.items():
        with (
            _converted_errors(file.name, folder),
            replacing(folder / name) as target,
            _open_member(archive, file, member) as source,
            target.open("wb") as output,
        ):
            _copy(source, output, f"{file.name}: {name}", member, progress)


@contextmanager
def _converted_errors(name: str, folder: Path) -> Iterator[None]:
    """Return a context that converts errors while a file is unpacked to ``DataError``.

    Args:
        name: name of the archive, for the message.
        folder: folder to unpack to, which the message names if the disk is full.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # archives raise many kinds of errors
        if is_full(error):
            raise DataError(
                f"the disk that holds '{folder}' is full while {name} is unpacked; make room there, "
                "and the same command goes on"
            ) from None
        raise DataError(f"{name} is a damaged archive: {error}") from None


@contextmanager
def _open_member(archive: Path, file: RemoteFile, member: Member) -> Iterator[IO[bytes]]:
    """Return a context in which one file of a downloaded archive is open for reading.

    Args:
        archive: path of the archive on the disk.
        file: description of the download, with the archive's form (``zip``, ``tar``, ``lzma``).
        member: the file within the archive.
    """
    if file.form == "lzma":
        with open_file(archive) as packed, lzma.LZMAFile(packed) as content:
            yield content
    elif file.form == "zip":
        with (
            zipfile.ZipFile(require_regular(archive)) as entries,
            _open_in_zip(entries, file, member) as content,
        ):
            yield content
    else:
        with (
            tarfile.open(require_regular(archive)) as entries_of_tar,
            _open_in_tar(entries_of_tar, file, member) as content,
        ):
            yield content


def _open_in_zip(entries: zipfile.ZipFile, file: RemoteFile, member: Member) -> IO[bytes]:
    count = entries.namelist().count(member.source)
    if count != 1:
        raise DataError(f"{file.name} has {count} entries {member.source!r}; 1 is expected")
    return entries.open(member.source)


def _open_in_tar(entries: tarfile.TarFile, file: RemoteFile, member: Member) -> IO[bytes]:
    for number, entry in enumerate(entries):
        if number >= _MOST_MEMBERS:
            break
        if entry.name != member.source:
            continue
        content = entries.extractfile(entry) if entry.isreg() else None
        if content is None:
            raise DataError(f"{file.name}: {member.source!r} is a link or no file; it is not read")
        return content
    raise DataError(f"{file.name} has no entry {member.source!r}")


def _copy(
    source: IO[bytes], output: IO[bytes], name: str, member: Member, progress: FetchProgress
) -> None:
    """Copy a file while it is unpacked; raise ``DataError`` if its size is not the expected one.

    Args:
        source: the file in the archive.
        output: the file to write.
        name: name of the file for messages.
        member: description of the file, with its size or the largest size that is accepted.
        progress: called after each written piece.
    """
    size = 0
    while True:
        # one byte more than allowed shows that the file is too long
        chunk = source.read(min(_CHUNK, member.limit + 1 - size))
        if not chunk:
            break
        size += len(chunk)
        if size > member.limit:
            raise DataError(
                f"{name} unpacks to more than {show_bytes(member.limit)}, the size expected"
            )
        output.write(chunk)
        progress(name, size, member.bytes)
    if member.bytes is not None and size != member.bytes:
        raise DataError(f"{name} unpacks to {size} bytes; {member.bytes} are expected")
