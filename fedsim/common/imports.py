"""Code named by its import path, ``package.module:Name`` or ``./file.py:Name``: the one place
that imports it.

Importing a module runs it, and a scenario file may come from a stranger. Scenario files are
therefore read in ``from_file``, which follows only import paths that the user has allowed.
``allow_code=True`` allows all paths of one file. The environment variable ``$FEDSIM_ALLOW_CODE``
(package names, comma-separated) and ``allow_code = ["mypackage"]`` in
``~/.config/fedsim/config.toml`` allow installed packages in all files. No scenario, study,
checkpoint or run folder can.

``sys.path`` never changes. A file is loaded from its own path under a unique module name, and a
package that is not installed from the working directory. Only allowed code can import the modules
that lie beside it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_toml

ALLOWED_PACKAGES = "FEDSIM_ALLOW_CODE"

_PRIVATE = "fedsim_file_"
_RUNS = (
    "which is code, and would be run; if you trust it, allow it with --allow-code (in Python "
    "allow_code=True)"
)

_allowed = ContextVar("_allowed", default=True)


@contextmanager
def from_file(allow_code: bool) -> Iterator[None]:
    """Context for validating a scenario file; ``allow_code``: whether its import paths may be
    followed.
    """
    before = _allowed.set(allow_code)
    try:
        yield
    finally:
        _allowed.reset(before)


def is_allowed() -> bool:
    """Whether any import path may be followed in this context."""
    return _allowed.get()


def refuse_unless_allowed(path: str, key: str) -> None:
    """Check without importing that ``path``, the value of ``key``, is an import path that may be
    followed here.
    """
    file, colon, name = path.rpartition(":")
    words = [Path(file).stem] if file.endswith(".py") else file.split(".")
    if not (colon and all(word.isidentifier() for word in (name, *words))):
        raise ScenarioError(
            f"{key} is {path!r}; allowed is an import path of the form 'package.module:Name', "
            "or './file.py:Name' for "
            "a file in the working directory"
        )
    if _allowed.get() or (
        not file.endswith(".py") and words[0] in _packages() and _is_installed(words[0])
    ):
        return
    where = f"${ALLOWED_PACKAGES} or in {str(_config())!r}"
    always = (
        ""
        if file.endswith(".py")
        else f", or always, if it is installed, with {words[0]!r} in {where}"
    )
    raise ScenarioError(f"{key} is {path!r}, {_RUNS}{always}")


def is_refusal_of_code(message: str) -> bool:
    """Whether a ``ScenarioError`` of this message refuses code that is not allowed."""
    return _RUNS in message


def refuse_code(place: str, key: str) -> None:
    """Refuse a path on disk that holds code, the value of ``key``, unless the file's code is
    allowed.
    """
    if not _allowed.get():
        raise ScenarioError(f"{key} is {place!r}, {_RUNS}")


def find(
    path: str,
    key: str,
    base: type,
    called: str,
    *,
    or_function: bool = False,
    permitted: bool = False,
) -> Any:
    """The class at an import path, the value of ``key``; ``ScenarioError`` if there is none that
    may be imported here.

    The class must inherit ``base``, which messages name ``called``. With ``or_function`` a function
    annotated to return such a class is accepted too. ``permitted``: the path is an entry point of
    an installed package, not text from a file.
    """
    found = at(path, key) if permitted else named(path, key)
    if isinstance(found, type):
        if issubclass(found, base):
            return found
        raise ScenarioError(f"{key} is {path!r}, a class that is not a subclass of {called}")
    if not (or_function and isinstance(found, FunctionType)):
        wanted = f"a subclass of {called}" + (
            f", or a function that is annotated '-> {called}'" if or_function else ""
        )
        raise ScenarioError(
            f"{key} is {path!r}, which is a {type(found).__name__}; it must be {wanted}"
        )
    said: Any = None
    with suppress(Exception):  # an annotation may hold any expression
        said = get_type_hints(found).get("return")
    if not (isinstance(said, type) and issubclass(said, base)):
        raise ScenarioError(
            f"{key} is {path!r}, a function that does not say that it returns a {called}; "
            f"annotate it '-> {called}', with "
            "annotations that can be evaluated when the program runs"
        )
    return found


def named(path: str, key: str) -> Any:
    """The object at an import path that is the value of ``key``; ``ScenarioError`` if it may not
    or cannot be imported.
    """
    refuse_unless_allowed(path, key)
    return at(path, key)


def at(path: str, key: str) -> Any:
    """The object at an import path that the program has chosen, or whose code is allowed."""
    file, _, name = path.rpartition(":")
    try:
        module = import_module(_module(file))
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ScenarioError(f"{key} is {path!r}, which cannot be imported: {why}") from error
    if not hasattr(module, name):
        hint = nearest(name, (known for known in vars(module) if not known.startswith("_")))
        raise ScenarioError(f"{key} is {path!r}, but {file!r} has no attribute {name!r}{hint}")
    return getattr(module, name)


@cache
def entry_points_of(group: str) -> dict[str, str]:
    """Entry points of a group: name -> import path.

    Packages in the working directory do not count as installed.
    """
    points = [
        point
        for found in distributions(path=_elsewhere())
        for point in found.entry_points.select(group=group)
    ]
    return {
        point.name: point.value
        for point in reversed(points)
        if _is_installed(point.module.partition(".")[0])
    }


def _elsewhere() -> list[str]:
    """The folders that Python searches, but for the working directory."""
    return [
        path
        for path in sys.path
        if Path(path).is_absolute() and Path(path).resolve() != Path.cwd().resolve()
    ]


def _packages() -> list[str]:
    """The packages that the user's configuration allows."""
    names: Any = []
    try:
        with suppress(OSError):  # there is none
            names = read_toml(_config()).get("allow_code", [])
    except ValueError as error:
        raise ScenarioError(
            f"your configuration {str(_config())!r} is not valid TOML: {error}"
        ) from None
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ScenarioError(
            f"allow_code in {str(_config())!r} is {names!r}; it must be a list of names of packages"
        )
    return [*names, *os.environ.get(ALLOWED_PACKAGES, "").replace(" ", "").split(",")]


def _config() -> Path:
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():  # the XDG standard ignores a relative path
        home = os.path.expanduser("~")  # noqa: PTH111
        folder = Path(home, ".config")
    return folder / "fedsim" / "config.toml"


class _PermittedFinder(MetaPathFinder):
    """Finds allowed code that is not installed, and the modules beside it; installed modules
    win.
    """

    def __init__(self) -> None:
        # top-level module name -> its file, or the folder that holds it
        self.of: dict[str, str] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        place = None if path is not None else self.of.get(name) or self.of.get(_importer())
        if place is None:
            return None
        if name.startswith(_PRIVATE):
            return spec_from_file_location(name, place) if name in self.of else None
        folder = str(Path(place).parent) if place.endswith(".py") else place
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None:
            self.of[name] = folder
        return spec


_places = _PermittedFinder()
sys.meta_path.append(_places)


def places() -> dict[str, str]:
    """Allowed modules and modules imported from the working directory: name -> folder or file,
    for ``learn``.
    """
    here = str(Path.cwd())
    known = _places.of.copy()
    for name, module in [*sys.modules.items()]:
        place = getattr(module, "__file__", None) or next(
            iter(getattr(module, "__path__", ())), None
        )
        if place in (f"{here}/{name}.py", f"{here}/{name}/__init__.py", f"{here}/{name}"):
            known.setdefault(name, here)
    return known


def learn(places: dict[str, str]) -> None:
    """In a worker process: find modules at the ``places`` of the parent process."""
    _places.of.update(places)


def _importer() -> str:
    """Top-level name of the module that executes the current import."""
    frame: Any = sys._getframe(2)
    while frame is not None and (name := frame.f_globals.get("__name__", "")).startswith(
        ("importlib", "_frozen_importlib")
    ):
        frame = frame.f_back
    return "" if frame is None else str(name).partition(".")[0]


def _module(file: str) -> str:
    """The name by which the code at ``file``, a module or a file, can be imported."""
    if file.endswith(".py"):
        place = Path(file).resolve()
        if not place.is_file():
            raise ImportError(f"there is no file {str(Path(file))!r}")
        name = f"{_PRIVATE}{place.stem}"
        if _places.of.setdefault(name, str(place)) != str(place):
            raise ImportError(
                f"another file of the name {place.name!r} is loaded already; call the file "
                "otherwise"
            )
        return name
    first = file.partition(".")[0]
    if (
        first not in sys.modules
        and find_spec(first) is None
        and PathFinder.find_spec(first, [str(Path.cwd())])
    ):
        _places.of[first] = str(Path.cwd())
    return file


def _is_installed(package: str) -> bool:
    """Whether a package is installed outside the working directory; imports nothing."""
    if package in _places.of:
        return False
    if package in sys.modules:  # the program has chosen it
        return getattr(sys.modules[package], "__file__", None) is not None
    installed = PathFinder.find_spec(package, _elsewhere())
    for finder in sys.meta_path:
        installed = installed or (None if finder is PathFinder else finder.find_spec(package, None))
    found = find_spec(package)
    file = installed and installed.origin
    return found is not None and file is not None and found.origin == file
