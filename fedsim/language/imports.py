"""Code named by its import path, ``package.module:Name``: the one place that imports it.

To import a module is to run it. What a program gives to ``Scenario(...)`` is the program's own choice; a file may come from
anyone. So whoever reads a scenario from a file does it within ``from_file``, where nothing outside fedsim is imported that the
user has not allowed: for this file (``--allow-code``, or ``allow_code=True``), or for a package in all files, in
``$FEDSIM_ALLOW_CODE`` (names, with commas between) or in ``~/.config/fedsim/config.toml`` (``allow_code = ["mypackage"]``).
No scenario, study, checkpoint or run folder can grant it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from fedsim.errors import ScenarioError, nearest
from fedsim.files import read_toml

ALLOWED_PACKAGES = "FEDSIM_ALLOW_CODE"

_allowed = ContextVar("_allowed", default=True)


@contextmanager
def from_file(allow_code: bool) -> Iterator[None]:
    """What is validated here comes from a file; ``allow_code`` is whether its user allows the code that it names."""
    before = _allowed.set(allow_code)
    try:
        yield
    finally:
        _allowed.reset(before)


def refuse_unless_allowed(path: str, key: str) -> None:
    """Import nothing, and look whether ``path``, the value of ``key``, may be imported here.

    Raises:
        ScenarioError: it is no import path, or it leads out of fedsim in a file whose code was not allowed.
    """
    file, colon, name = path.rpartition(":")
    module = _module(file)
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ScenarioError(
            f"{key} is {path!r}; allowed is an import path of the form 'package.module:Name', or './file.py:Name' for "
            "a file in the working directory"
        )
    if _allowed.get() or any(f"{module}.".startswith(f"{known}.") for known in ("fedsim", *_packages()) if known):
        return
    package = module.partition(".")[0]
    raise ScenarioError(
        f"{key} is {path!r}, which is code outside fedsim, and would be run; if you trust it, allow it with --allow-code "
        f"(in Python allow_code=True), or always, with {package!r} in ${ALLOWED_PACKAGES} or in {str(_config())!r}"
    )


def refuse_code(place: str, key: str) -> None:
    """Refuse code at a place on the disk, the value of ``key``, in a file whose code was not allowed.

    Raises:
        ScenarioError: names the place.
    """
    if not _allowed.get():
        raise ScenarioError(
            f"{key} is {place!r}, which is code outside fedsim, and would be run; if you trust it, allow it with --allow-code "
            "(in Python allow_code=True)"
        )


def find(path: str, key: str, base: type, called: str, *, or_function: bool = False) -> Any:
    """The class at an import path.

    Args:
        path: ``package.module:Name``.
        key: whose value it is, for errors.
        base: what it must be a subclass of.
        called: how users know the base.
        or_function: whether a function that says that it returns one will do too.

    Raises:
        ScenarioError: it may not be imported here, cannot be, or is something else; nothing but its module was run.
    """
    found = named(path, key)
    if isinstance(found, type):
        if issubclass(found, base):
            return found
        raise ScenarioError(f"{key} is {path!r}, a class that is not a subclass of {called}")
    if not (or_function and isinstance(found, FunctionType)):
        wanted = f"a subclass of {called}" + (f", or a function that is annotated '-> {called}'" if or_function else "")
        raise ScenarioError(f"{key} is {path!r}, which is a {type(found).__name__}; it must be {wanted}")
    if not _returns(found, base):
        raise ScenarioError(
            f"{key} is {path!r}, a function that does not say that it returns a {called}; annotate it '-> {called}', with "
            "annotations that can be evaluated when the program runs"
        )
    return found


def named(path: str, key: str) -> Any:
    """Whatever is at an import path, the value of ``key``.

    Raises:
        ScenarioError: it may not be imported here, or cannot be.
    """
    refuse_unless_allowed(path, key)
    file, _, name = path.rpartition(":")
    module_name = _module(file)
    try:
        module = import_module(module_name) if module_name == file else _from_file(Path(file))
    except (Exception, SystemExit) as error:
        raise ScenarioError(f"{key} is {path!r}, which cannot be imported: {_in_words(error)}") from error
    if not hasattr(module, name):
        hint = nearest(name, (known for known in vars(module) if not known.startswith("_")))
        raise ScenarioError(f"{key} is {path!r}, but {module_name!r} has no attribute {name!r}{hint}")
    return getattr(module, name)


def _returns(function: FunctionType, base: type) -> bool:
    try:
        said = get_type_hints(function).get("return")
    except Exception:  # an annotation may hold any expression
        return False
    return isinstance(said, type) and issubclass(said, base)


def _packages() -> list[str]:
    """What the user's configuration allows."""
    names: Any = []
    try:
        names = read_toml(_config()).get("allow_code", [])
    except OSError:
        pass  # there is none
    except ValueError as error:
        raise ScenarioError(f"your configuration {str(_config())!r} is not valid TOML: {error}") from None
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ScenarioError(f"allow_code in {str(_config())!r} is {names!r}; it must be a list of names of packages")
    return [*names, *os.environ.get(ALLOWED_PACKAGES, "").replace(" ", "").split(",")]


def _config() -> Path:
    said = Path(os.environ.get("XDG_CONFIG_HOME", ""))  # one that is not absolute counts for nothing, as its standard says
    return (said if said.is_absolute() else Path(os.path.expanduser("~"), ".config")) / "fedsim" / "config.toml"  # noqa: PTH111


def _module(file: str) -> str:
    """The name of a module that is given by its name, or by its file."""
    return Path(file).stem if file.endswith(".py") else file


def _from_file(file: Path) -> ModuleType:
    """The module in a file; its folder is searched from now on, so that workers find it too."""
    place = file.resolve()
    if not place.is_file():
        raise ImportError(f"there is no file {str(file)!r}")
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    module = import_module(place.stem)
    if Path(module.__file__ or "").resolve() != place:
        raise ImportError(f"a module of the name {place.stem!r} is there already; call the file otherwise")
    return module


def _in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
