"""Scenarios and studies shipped with fedsim.

Each is named by its path below ``scenarios/`` or ``scenarios/studies/``.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_text, read_toml

_FOLDER = (Path(__file__).parent / "scenarios").resolve()
_KEYS_OF_FILES = ("extends", "base", "published")
_PART_NAMES = ("published", "_base", "validation/worlds")  # files that only studies refer to


@cache
def shipped() -> dict[str, Path]:
    """Return the paths of all scenarios and studies that are shipped with fedsim, by name."""
    files: dict[str, Path] = {}
    for path in sorted(_FOLDER.glob("**/*.toml")):
        name = path.relative_to(_FOLDER).with_suffix("").as_posix()
        if not name.endswith(_PART_NAMES):
            files[name.removeprefix("studies/")] = path
    return files


def shipped_titles(studies: bool) -> list[tuple[str, str]]:
    """Return name and title of each shipped scenario, or of each shipped study.

    Args:
        studies: True to list studies, False to list scenarios.

    Returns:
        Pairs of name and title, which is the file's first line.
    """
    titles = []
    for name, path in shipped().items():
        if is_study(read_toml(path)) is studies:
            line = read_text(path).partition("\n")[0]
            titles.append((name, line.lstrip("# ")))
    return titles


def is_study(tables: Mapping[str, object]) -> bool:
    """Return whether the tables of a TOML file describe a study, and not a scenario."""
    return "base" in tables or "variants" in tables


def find_file(path: str | Path) -> Path:
    """Find the file of a scenario or study, by its path or by the name of a shipped one.

    Args:
        path: path of a file, or the name of a shipped file.

    Returns:
        The file's path. A path with a suffix need not exist.

    Raises:
        ScenarioError: ``path`` is neither an existing file nor the name of a shipped file.
    """
    file = Path(path)
    if file.suffix or file.exists():
        return file
    return _find_shipped(
        str(path),
        f"{str(path)!r} does not exist; allowed are the path of a file, or what 'fedsim list "
        "scenarios' and 'fedsim list studies' name",
    )


def _find_shipped(name: str, refusal: str) -> Path:
    """Return the path of the shipped file called ``name``.

    Args:
        name: name of a shipped scenario or study.
        refusal: the error message if no file has the name; similar names are appended.
    """
    files = shipped()
    if name in files:
        return files[name]
    names_in_folder = [repr(path) for path in files if path.startswith(f"{name}/")]
    hint = nearest(name, files)
    if names_in_folder:
        hint = f" (did you mean one of {', '.join(names_in_folder)}?)"
    raise ScenarioError(refusal + hint)


def copy(name: str, folder: Path) -> list[Path]:
    """Copy a shipped scenario or study, and the files to which it refers.

    Args:
        name: name of the shipped file.
        folder: folder of the copies, which keep their paths relative to each other.

    Returns:
        Paths of the copies.

    Raises:
        ScenarioError: nothing has this name, or a copy exists already.
    """
    file = _find_shipped(name, f"nothing called {name!r} comes with fedsim")
    files = list(dict.fromkeys(_with_named_files(file)))  # lists each file once
    root = os.path.commonpath([path.parent for path in files])
    copies = {path: folder / path.relative_to(root) for path in files}
    for target in copies.values():
        if target.exists():
            raise ScenarioError(f"{str(target)!r} exists already; give another folder")
    for source, target in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return [*copies.values()]


def _with_named_files(file: Path) -> Iterator[Path]:
    """Yield a TOML file and all files to which it refers, directly or through other files."""
    yield file
    tables = read_toml(file)
    sizes = tables.get("sizes", {})
    parts = tables.get("parts", {})
    for table in (tables, *sizes.values(), *parts.values()):
        for key in _KEYS_OF_FILES:
            name = table.get(key)
            if isinstance(name, str) and name.endswith(".toml"):
                yield from _with_named_files((file.parent / name).resolve())
