"""Reading of untrusted files (no pipes, devices or endless nesting), and writing of files that
survive a power cut.

An operating system writes contents and names to the disk in any order. A content is safe once
its file is synced, a name once its folder is.
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

SOUGHT = (
    "a relative path is sought in data.root, or without that in the working directory and then in "
    "$FEDSIM_DATA"
)
WRITING = ".writing"  # suffix of incomplete files
_TOO_DEEP = "it is nested too deeply"
_MOST_PARTS = 100  # of a dotted key: the parser's time grows with their square
_TOML_STRING = re.compile(r""""(?:[^"\\]|\\.)*+"?|'[^']*+'?""")
_BETWEEN_KEYS = re.compile(r"[=,{\[\]]")


def sought(file: str, root: Path | None) -> Path:
    """The path of a file that a scenario names (see ``SOUGHT``); ``root``: ``data.root``, if
    given.
    """
    here = (root or Path()) / file
    shared = os.environ.get("FEDSIM_DATA")
    return Path(shared, file) if shared and root is None and not here.exists() else here


def regular(path: Path) -> Path:
    """``path``, if it is a regular file; otherwise ``OSError``, whose ``strerror`` names its
    type.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # no system has such a path
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device; allowed are files", str(path))
    return path


def open_file(path: Path) -> BufferedReader:
    """A regular file, open for reading bytes; otherwise ``OSError``, as of ``regular``."""
    return regular(path).open("rb")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; otherwise ``OSError``, as of ``regular``."""
    return regular(path).read_bytes()


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text of a regular file; otherwise ``OSError``, as of ``regular``, or
    ``UnicodeDecodeError``.
    """
    return regular(path).read_text(encoding, errors)


@contextmanager
def reading(path: Path, key: str, form: str) -> Iterator[None]:
    """Raise a ``DataError`` if the file at ``path``, which the scenario's ``key`` names, cannot
    be read as ``form``.
    """
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{key} names '{path}', which does not exist; {SOUGHT}") from None
    except Exception as error:  # readers raise many kinds for damaged files
        raise DataError(f"'{path}' cannot be read as {form}: {error}") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file in UTF-8, with a byte order mark or without; raises ``OSError``
    or ``ValueError``.
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


_FINITE = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def parse_json(text: str, *, finite: bool = False) -> Any:
    """The value of a text in JSON; raises ``ValueError``, also for numbers that are not
    ``finite`` where all are to be.
    """
    try:
        return _FINITE.decode(text) if finite else json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file in UTF-8, with a byte order mark or without; raises ``OSError``
    or ``ValueError``.
    """
    return toml(read_text(path, "utf-8-sig"))


def toml(text: str) -> dict[str, Any]:
    """The tables of a text in TOML; raises ``ValueError``."""
    _refuse_long_keys(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _refuse_long_keys(text: str) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MOST_PARTS:
            bare = _TOML_STRING.sub("", line).partition("#")[0]
            refuse_long_key(
                max(_BETWEEN_KEYS.split(bare), key=lambda part: part.count(".")),
                f" in line {number}",
            )


def refuse_long_key(key: str, place: str = "") -> None:
    """Raise ``ValueError`` for a dotted key of very many parts, at a ``place`` of its file."""
    if key.count(".") > _MOST_PARTS:
        raise ValueError(
            f"a key{place} has {key.count('.') + 1} parts; allowed are at most {_MOST_PARTS}"
        )


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as dotted keys, in order."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        )
    return found


def sync(path: Path) -> None:
    """Sync the content of a file, or the names in a folder, to the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":  # other systems do not open folders
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
    """A temporary path, renamed to ``path`` on success; the name is safe after
    ``sync(path.parent)``, once for many.
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


def read_keyed_json(path: Path) -> Any:
    """As ``read_json``; an object that has a key twice raises ``ValueError`` too."""
    try:
        return json.loads(
            regular(path).read_text(encoding="utf-8-sig"), object_pairs_hook=_each_key_once
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"an object has the key {twice[:80]!r} twice")
    return table
