"""Importer of users' code by import path, ``package.module:Name`` or ``./file.py:Name``.

Importing a module runs it, and a scenario file may come from a stranger. Scenario files are
therefore read in ``code_from_file``, which follows only import paths that the user has allowed.
``allow_code=True`` allows all paths of one file. The environment variable ``$FEDSIM_ALLOW_CODE``
(package names, comma-separated) and ``allow_code = ["mypackage"]`` in
``~/.config/fedsim/config.toml`` allow installed packages in all files. A scenario, study,
checkpoint or run folder cannot allow any code.

``sys.path`` never changes. A file is loaded from its own path under a unique module name, and a
package that is not installed from the working directory. Only allowed code can import the modules
in its folder.
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
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, get_type_hints

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_toml

ALLOWED_PACKAGES = "FEDSIM_ALLOW_CODE"

_FILE_PREFIX = "fedsim_file_"  # prefix of names of modules that are loaded from files by path
_REFUSAL = (
    "which is code, and would be run; if you trust it, allow it with --allow-code (in Python "
    "allow_code=True)"
)

_allowed = ContextVar("_allowed", default=True)


@contextmanager
def code_from_file(allow_code: bool) -> Iterator[None]:
    """Context within which a scenario file may import only code that the user has allowed.

    Without the context, validating a file could run a stranger's code. The caller reads and
    validates the file within the context. An import path that is not allowed raises
    ``ScenarioError`` there (``refuse_unless_allowed``).

    If ``allow_code`` is true, all import paths are allowed. If it is false, only code of the
    installed packages that the user's configuration lists is allowed.

    Args:
        allow_code: whether the user trusts the file, so that any code that it names may be
            imported.
    """
    token = _allowed.set(allow_code)
    try:
        yield
    finally:
        _allowed.reset(token)


def is_allowed() -> bool:
    """Return whether all code of users may be imported now.

    True unless a scenario file is being validated without ``allow_code`` (``code_from_file``).
    """
    return _allowed.get()


def refuse_unless_allowed(path: str, key: str) -> None:
    """Check that an import path is well formed, and that its code may be imported; import nothing.

    Within ``code_from_file``, without ``allow_code``, only code of packages that the user's
    configuration lists is allowed. Otherwise all code is allowed.

    Args:
        path: the import path.
        key: dotted key of the scenario that has the path, for messages.

    Raises:
        ScenarioError: ``path`` is not an import path, or its code is not allowed.
    """
    module, colon, name = path.rpartition(":")  # ``module`` is a dotted name or a file's path
    is_script = module.endswith(".py")
    module_names = [Path(module).stem] if is_script else module.split(".")
    is_well_formed = colon and all(part.isidentifier() for part in (name, *module_names))
    if not is_well_formed:
        raise ScenarioError(
            f"{key} is {path!r}; allowed is an import path of the form 'package.module:Name', "
            "or './file.py:Name' for a file in the working directory"
        )
    if _allowed.get():  # all code is allowed
        return
    if is_script:
        raise ScenarioError(f"{key} is {path!r}, {_REFUSAL}")
    package = module_names[0]
    if package not in _allowed_packages() or not _is_installed(package):
        raise ScenarioError(
            f"{key} is {path!r}, {_REFUSAL}, or always, if it is installed, with {package!r} in "
            f"${ALLOWED_PACKAGES} or in {str(_config())!r}"
        )


def is_refusal_of_code(message: str) -> bool:
    """Return whether an error's message says that users' code may not be imported."""
    return _REFUSAL in message


def refuse_code(place: str, key: str) -> None:
    """Raise an error if a scenario names code by a path, and users' code may not be run.

    Used for paths that are no import paths, such as the folder of a Flower app.

    Args:
        place: the path.
        key: dotted key of the scenario that has the path, for messages.

    Raises:
        ScenarioError: code is not allowed.
    """
    if not _allowed.get():
        raise ScenarioError(f"{key} is {place!r}, {_REFUSAL}")


def import_class(
    path: str,
    key: str,
    base: type,
    called: str,
    *,
    or_function: bool = False,
    is_trusted: bool = False,
) -> Any:
    """Import the class at an import path that a scenario names, and check its base class.

    Args:
        path: the import path.
        key: dotted key of the scenario that has the path, for messages.
        base: the class that the imported class must inherit.
        called: name of ``base`` in messages.
        or_function: whether a function is accepted too whose annotated result is a ``base``.
        is_trusted: whether the path is an entry point of an installed package, not text from a
            file.

    Raises:
        ScenarioError: the object does not exist or is no such class, or its code is not allowed
            (``refuse_unless_allowed``).
    """
    target = import_trusted(path, key) if is_trusted else import_object(path, key)
    if isinstance(target, type):
        if issubclass(target, base):
            return target
        raise ScenarioError(f"{key} is {path!r}, a class that is not a subclass of {called}")
    is_accepted_function = or_function and isinstance(target, FunctionType)
    if not is_accepted_function:
        allowed = f"a subclass of {called}"
        if or_function:
            allowed += f", or a function that is annotated '-> {called}'"
        raise ScenarioError(
            f"{key} is {path!r}, which is a {type(target).__name__}; it must be {allowed}"
        )
    returned = _annotated_result(target)
    if not (isinstance(returned, type) and issubclass(returned, base)):
        raise ScenarioError(
            f"{key} is {path!r}, a function that does not say that it returns a {called}; "
            f"annotate it '-> {called}', with annotations that can be evaluated when the program "
            "runs"
        )
    return target


def _annotated_result(function: FunctionType) -> object:
    """Return the annotated type of a function's result; None if it is missing or not evaluable."""
    with suppress(Exception):  # an annotation may be any expression
        return get_type_hints(function).get("return")
    return None


def import_object(path: str, key: str) -> Any:
    """Import the object at an import path (``module:name``), if its code is allowed.

    Args:
        path: the import path.
        key: dotted key of the scenario that has the path, for messages.

    Raises:
        ScenarioError: the code is not allowed (``refuse_unless_allowed``), or the object does not
            exist.
    """
    refuse_unless_allowed(path, key)
    return import_trusted(path, key)


def import_trusted(path: str, key: str) -> Any:
    """Import the object at an import path without a check that its code is allowed.

    Args:
        path: the import path.
        key: dotted key of the scenario that has the path, for messages.

    Raises:
        ScenarioError: the module cannot be imported, or lacks the attribute.
    """
    file, _, name = path.rpartition(":")  # ``file`` may be the dotted name of a module
    try:
        module = import_module(_module_name(file))
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            reason = str(error)
        raise ScenarioError(f"{key} is {path!r}, which cannot be imported: {reason}") from error
    if not hasattr(module, name):
        public_names = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        hint = nearest(name, public_names)
        raise ScenarioError(f"{key} is {path!r}, but {file!r} has no attribute {name!r}{hint}")
    return getattr(module, name)


@cache
def entry_points_of(group: str) -> dict[str, str]:
    """Return the entry points of a group that installed packages declare: name -> import path.

    Packages in the working directory do not count as installed.
    """
    points: list[EntryPoint] = []
    for distribution in distributions(path=_installed_folders()):
        points += distribution.entry_points.select(group=group)
    paths = {}
    for point in reversed(points):  # if two entry points have one name, the first one counts
        package = point.module.partition(".")[0]
        if _is_installed(package):
            paths[point.name] = point.value
    return paths


def _installed_folders() -> list[str]:
    """List the folders that Python searches, except the working directory."""
    working_directory = Path.cwd().resolve()
    absolute = [path for path in sys.path if Path(path).is_absolute()]
    return [path for path in absolute if Path(path).resolve() != working_directory]


def _allowed_packages() -> list[str]:
    """Return the packages whose code scenario files may name without ``--allow-code``.

    The user's configuration and the environment variable ``ALLOWED_PACKAGES`` name them.

    Raises:
        ScenarioError: the configuration is malformed.
    """
    names: object = []  # value of ``allow_code`` in the configuration, not validated yet
    try:
        with suppress(OSError):  # the user has no configuration
            names = read_toml(_config()).get("allow_code", [])
    except ValueError as error:
        raise ScenarioError(
            f"your configuration {str(_config())!r} is not valid TOML: {error}"
        ) from None
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ScenarioError(
            f"allow_code in {str(_config())!r} is {names!r}; it must be a list of names of packages"
        )
    names_in_variable = os.environ.get(ALLOWED_PACKAGES, "").replace(" ", "").split(",")
    return [*names, *names_in_variable]


def _config() -> Path:
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():  # the XDG standard ignores a relative path
        home = os.path.expanduser("~")  # noqa: PTH111
        folder = Path(home, ".config")
    return folder / "fedsim" / "config.toml"


class _PermittedFinder(MetaPathFinder):
    """Finder by which Python imports users' code that is allowed and not installed.

    It finds the allowed modules, and the modules in their folders that they import. Installed
    modules take precedence.
    """

    def __init__(self) -> None:
        # top-level module name -> its file, or the folder that holds it
        self.locations: dict[str, str] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a top-level module in an allowed file or folder, else None.

        If an allowed module imports another module from its folder, the imported module becomes
        allowed, too. So the imports of that module are also found.

        Args:
            name: name of the module.
            path: the folders of its package; None for a top-level module.
            target: not used.
        """
        if path is not None:  # Python finds a submodule by its package
            return None
        # an allowed module, or a module in the folder of the allowed module that imports it now
        location = self.locations.get(name) or self.locations.get(_importer())
        if location is None:
            return None
        if name.startswith(_FILE_PREFIX):  # a module that fedsim loads from a file by its path
            return spec_from_file_location(name, location) if name in self.locations else None
        folder = str(Path(location).parent) if location.endswith(".py") else location
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None:
            self.locations[name] = folder
        return spec


_finder = _PermittedFinder()
sys.meta_path.append(_finder)


def module_locations() -> dict[str, str]:
    """Return the locations of the users' modules that this process has imported.

    ``adopt_module_locations`` makes the same modules importable in a worker process.

    Returns:
        Top-level name of a module -> its file, or the folder that holds it.
    """
    folder = str(Path.cwd())
    locations = _finder.locations.copy()
    # iterates over a copy, as another thread may import modules meanwhile
    for name, module in [*sys.modules.items()]:
        origin = getattr(module, "__file__", None)
        if not origin:  # a package without ``__init__.py`` has folders instead of a file
            origin = next(iter(getattr(module, "__path__", ())), None)
        places = (f"{folder}/{name}.py", f"{folder}/{name}/__init__.py", f"{folder}/{name}")
        if origin in places:  # the module was imported from the working directory
            locations.setdefault(name, folder)
    return locations


def adopt_module_locations(locations: dict[str, str]) -> None:
    """Make users' modules importable in this worker process, as they are in its parent process.

    Args:
        locations: the result of ``module_locations`` in the parent process: top-level name of a
            module -> its file, or the folder that holds it.
    """
    _finder.locations.update(locations)


def _importer() -> str:
    """Return the top-level name of the module whose import statement Python executes now.

    The name is read from the call stack of the finder; it is empty if there is no such module.
    """
    frame: FrameType | None = sys._getframe(2)  # the caller of ``find_spec``, in importlib
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib", "_frozen_importlib")):
            return name.partition(".")[0]
        frame = frame.f_back
    return ""


def _module_name(file: str) -> str:
    """Return the name by which Python can import a user's module.

    The module's file or folder is stored, so that Python finds it.

    Args:
        file: name of a module, or path of a Python file.

    Raises:
        ImportError: the file does not exist, or another file of the same name was imported.
    """
    if file.endswith(".py"):
        path = Path(file).resolve()
        if not path.is_file():
            raise ImportError(f"there is no file {str(Path(file))!r}")
        name = f"{_FILE_PREFIX}{path.stem}"
        location = _finder.locations.setdefault(name, str(path))
        if location != str(path):
            raise ImportError(
                f"another file of the name {path.name!r} is loaded already; call the file otherwise"
            )
        return name
    package = file.partition(".")[0]
    if package not in sys.modules and find_spec(package) is None:
        folder = str(Path.cwd())  # Python's search path has this folder only in some programs
        if PathFinder.find_spec(package, [folder]):
            _finder.locations[package] = folder
    return file


def _is_installed(package: str) -> bool:
    """Whether a package is installed outside the working directory; imports nothing."""
    if package in _finder.locations:  # a user's module that fedsim has imported
        return False
    if package in sys.modules:  # the program has already imported the package
        return getattr(sys.modules[package], "__file__", None) is not None
    installed = PathFinder.find_spec(package, _installed_folders())
    for finder in sys.meta_path:  # a package installed as editable has a finder of its own
        if installed is None and finder is not PathFinder:
            installed = finder.find_spec(package, None)
    # the module that an import would find, which may be a module of the working directory
    imported = find_spec(package)
    if installed is None or imported is None or installed.origin is None:
        return False
    return imported.origin == installed.origin
