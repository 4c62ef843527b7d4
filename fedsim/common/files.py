"""Functions that read untrusted files, and write files so that they survive a power cut.

Reading refuses pipes, device files, and contents that are nested too deeply. An operating system
writes contents and names to the disk in any order. A content survives a power cut once its file is
synced, and a name once its folder is synced.
"""

import errno
import json
import math
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedsim.common.errors import DataError
from fedsim.common.inputs import copy_of, record, reference_to

SEARCH_RULE = (
    "a relative path is sought in data.root, or without that in the working directory and then in "
    "$FEDSIM_DATA"
)
WRITING = ".writing"  # suffix of names of incomplete files
_TOO_DEEP = "it is nested too deeply"
# greatest count of parts of a dotted key: the parser's time grows with the square of this count
_MOST_PARTS = 100
_TOML_STRING = re.compile(r""""(?:[^"\\]|\\.)*+"?|'[^']*+'?""")
_BETWEEN_KEYS = re.compile(r"[=,{\[\]]")


def find_file(file: str, root: Path | None) -> Path:
    """Return the path at which a file that a scenario names can be read.

    A relative path begins at ``root``; without a root, at the working directory, or at the folder
    ``$FEDSIM_DATA`` if the working directory lacks the file. If the call is within
    ``copied_files``, and the file has a copy, the result is the path of the copy. The result may
    be the path of a missing file.

    Args:
        file: the path in the scenario.
        root: the scenario's ``data.root``; None if it has none.
    """
    reference = reference_to(file, root)
    copy = copy_of(reference)
    if copy is not None:
        return copy
    path = Path(file) if root is None else root / file
    shared_folder = os.environ.get("FEDSIM_DATA")
    if root is None and shared_folder and not path.exists():
        path = Path(shared_folder, file)
    record(reference, path)  # a surrounding ``recorded_files`` gets the path
    return path


def require_regular(path: Path) -> Path:
    """Check that a path is a regular file, and return it; pipes, devices and folders are refused.

    Raises:
        OSError: the path is not a regular file, or does not exist; ``strerror`` says which.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # the path has a character that no path may have, such as NUL
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device; allowed are files", str(path))
    return path


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading bytes; raise ``OSError`` if it is not a regular file."""
    return require_regular(path).open("rb")


def read_bytes(path: Path) -> bytes:
    """Read the bytes of a file; raise ``OSError`` if it is not a regular file."""
    return require_regular(path).read_bytes()


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read the text of a file.

    Raises:
        OSError: the path is not a regular file.
        UnicodeDecodeError: the file's content has another encoding.
    """
    return require_regular(path).read_text(encoding, errors)


@contextmanager
def reading(path: Path, key: str, form: str) -> Iterator[None]:
    """Context manager that converts errors of reading a file to ``DataError``.

    Args:
        path: the file.
        key: the key of the scenario that names the file.
        form: form of the file, such as "a zip archive", for messages.
    """
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{key} names '{path}', which does not exist; {SEARCH_RULE}") from None
    except Exception as error:  # libraries raise many types of errors for damaged files
        raise DataError(f"'{path}' cannot be read as {form}: {error}") from None


def read_json(path: Path) -> Any:
    """Read a JSON file in UTF-8, with a byte order mark or without.

    Raises:
        OSError: the path is not a regular file.
        ValueError: the content is not JSON.
    """
    try:
        return json.loads(read_text(path, "utf-8-sig"))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


_FINITE_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def parse_json(text: str, *, finite: bool = False) -> Any:
    """Parse a text in JSON.

    Args:
        text: the text.
        finite: whether numbers must be finite; if so, NaN and infinity are errors.

    Raises:
        ValueError: the text is not JSON, or has a number that is not allowed.
    """
    try:
        return _FINITE_DECODER.decode(text) if finite else json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file in UTF-8, with a byte order mark or without.

    Raises:
        OSError: the path is not a regular file.
        ValueError: the content is not TOML.
    """
    return parse_toml(read_text(path, "utf-8-sig"))


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text in TOML; raise ``ValueError`` if it is not TOML."""
    _refuse_long_keys(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _refuse_long_keys(text: str) -> None:
    """Raise ``ValueError`` if a TOML text has a key that would take too long to parse."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") <= _MOST_PARTS:
            continue
        # the line without strings and comments, whose dots cost no time
        code = _TOML_STRING.sub("", line).partition("#")[0]
        parts = _BETWEEN_KEYS.split(code)
        longest = max(parts, key=lambda part: part.count("."))
        refuse_long_key(longest, f" in line {number}")


def refuse_long_key(key: str, place: str = "") -> None:
    """Raise an error if a dotted key has so many parts that parsing it would take too long.

    Args:
        key: the key.
        place: text on the key's place in the file, for the message.

    Raises:
        ValueError: the key has too many parts.
    """
    if key.count(".") > _MOST_PARTS:
        raise ValueError(
            f"a key{place} has {key.count('.') + 1} parts; allowed are at most {_MOST_PARTS}"
        )


def flatten(tables: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to one dict: dotted key -> value.

    Args:
        tables: the tables.
        prefix: text before each key.
    """
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            values |= flatten(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def sync(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to the disk.

    Without this call, a power cut could lose the content or the names.

    Args:
        path: the file or folder.
    """
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some file systems cannot sync folders
        if not is_folder or error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager to write a file atomically: yields a temporary path, then renames it.

    The temporary file is synced to the disk. If the body raises an error, ``path`` is not changed.
    The name survives a power cut only after ``sync(path.parent)``, which the caller may call once
    for several files.
    """
    temporary = path.with_name(path.name + WRITING)
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, so that they survive a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def read_keyed_json(path: Path) -> Any:
    """Read a JSON file in UTF-8, and refuse an object that has the same key twice.

    Raises:
        OSError: the path is not a regular file.
        ValueError: the content is not JSON, or an object has a key twice.
    """
    try:
        return json.loads(read_text(path, "utf-8-sig"), object_pairs_hook=_table_of)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _table_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of a JSON file as a dict.

    Args:
        pairs: the keys and values of the object, as Python's parser gives them.

    Raises:
        ValueError: a key is repeated.
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"an object has the key {repeated[:80]!r} twice")
    return table
