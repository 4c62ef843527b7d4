"""Scenarios and studies shipped with fedsim, named by their path below ``scenarios/`` or
``scenarios/studies/``.
"""

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_text, read_toml

_HERE = (Path(__file__).parent / "scenarios").resolve()
_NAMES_FILES = ("extends", "base", "published")
_PARTS = ("published", "_base", "validation/worlds")  # parts of studies, which cannot be run alone


@cache
def shipped() -> dict[str, Path]:
    """Every file by its name."""
    found = {
        path.relative_to(_HERE).with_suffix("").as_posix(): path
        for path in sorted(_HERE.glob("**/*.toml"))
    }
    return {
        name.removeprefix("studies/"): path
        for name, path in found.items()
        if not name.endswith(_PARTS)
    }


def shipped_titles(studies: bool) -> list[tuple[str, str]]:
    """Name and title of every scenario, or of every study; the title is the file's first line."""
    titles = {name: read_text(path).partition("\n")[0] for name, path in shipped().items()}
    return [
        (name, title.lstrip("# "))
        for name, title in titles.items()
        if is_study(read_toml(shipped()[name])) is studies
    ]


def is_study(tables: dict[str, Any]) -> bool:
    """Whether the tables describe a study."""
    return bool({"base", "variants"} & set(tables))


def found(path: str | Path) -> Path:
    """The file at ``path``, or the shipped file of that name; ``ScenarioError`` if there is
    neither.
    """
    here = Path(path)
    if here.suffix or here.exists():
        return here
    allowed = (
        "allowed are the path of a file, or what 'fedsim list scenarios' and 'fedsim list studies' "
        "name"
    )
    return _named(str(path), f"{str(path)!r} does not exist; {allowed}")


def _named(name: str, refusal: str) -> Path:
    """The shipped file called ``name``; otherwise ``ScenarioError`` with ``refusal`` and the
    nearest names.
    """
    if name not in shipped():
        inside = [one for one in shipped() if one.startswith(f"{name}/")]
        hint = (
            f" (did you mean one of {', '.join(map(repr, inside))}?)"
            if inside
            else nearest(name, shipped())
        )
        raise ScenarioError(refusal + hint)
    return shipped()[name]


def copy(name: str, folder: Path) -> list[Path]:
    """Copy a shipped file and the files it names into ``folder``; existing files are refused.

    Returns the copies.
    """
    files = _with_named(_named(name, f"nothing called {name!r} comes with fedsim"))
    above = os.path.commonpath([file.parent for file in files])
    copies = {file: folder / file.relative_to(above) for file in files}
    for target in copies.values():
        if target.exists():
            raise ScenarioError(f"{str(target)!r} exists already; give another folder")
    for file, target in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return [*copies.values()]


def _with_named(file: Path) -> list[Path]:
    tables = read_toml(file)
    parts = [*tables.get("sizes", {}).values(), *tables.get("parts", {}).values()]
    names = [said.get(key) for said in (tables, *parts) for key in _NAMES_FILES]
    named = [
        (file.parent / name).resolve()
        for name in names
        if isinstance(name, str) and name.endswith(".toml")
    ]
    return list(dict.fromkeys([file, *(other for one in named for other in _with_named(one))]))
