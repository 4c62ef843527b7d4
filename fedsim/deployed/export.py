"""Writes a scenario as a Flower app."""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import tomli_w
from pydantic import BaseModel

from fedsim.common.errors import RunFolderError, ScenarioError
from fedsim.common.files import read_text
from fedsim.common.harmless import clean
from fedsim.deployed.refusals import refusals, unused
from fedsim.running.scenario import Scenario
from fedsim.version import __version__

PACKAGE = "fedsim_app"
"""Name of the app's package."""
_HALF = '''"""The {title} of the app: {half} of the strategy {kind!r}, by fedsim."""

import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(_FOLDER / "own"))

from fedsim.deployed.{module} import {module}_app  # noqa: E402

app = {module}_app(_FOLDER / "scenario.toml")
'''
_README = """# {name}

A Flower app that `fedsim flower export` has written (fedsim {version}). The server half and the client
half of the strategy `{kind}` are fedsim's own; they run in real time, over Flower's messages.

    flwr run . --stream --federation-config num-supernodes={devices}   # on Flower's simulation engine
    flwr run . DEPLOYMENT --stream                   # on the SuperLink that your configuration calls so

All machines need fedsim and Flower of the same versions; the app lists no dependencies, as Flower would
install them anew for each run. Each SuperNode needs the data (`data.root` of `{package}/scenario.toml` on
its own disk) and the number of its device, from 0 to {last}:

    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink HOST:8000 --node-config partition-id=0

The run begins when {devices} nodes have answered (`min-nodes`), and ends as `[stop]` of the scenario says.
It leaves a run folder in `out`, on the server's machine: `fedsim report`, `compare` and `why` read it.

| key of the run configuration | meaning |
|---|---|
| `out` | folder of the results, on the machine of the ServerApp; it has no run yet |
| `min-nodes` | count of nodes for which the run waits; 0 for all devices of the scenario |
| `patience` | how long it waits for them (s) |
| `pace` | 0: nodes work as fast as they can. Above 0: each takes the times of the scenario, this many real seconds a second |
| `slept` | with a `pace`: `all`, nodes sleep for the times of messages too; `training`, messages take what they take |

## What needs care

- A node that is gone is noticed late: a SuperLink reports it after its heartbeat (some 30 s to a minute), and
  its task is lost then. A deadline ends its task earlier.
- A node that is late goes on: Flower cannot stop a ClientApp, so the node takes its next message when it is done,
  and its late answer is ignored.
- Deadlines compare the clocks of two machines if a device limits its own training: keep them by NTP.
- Relative deadlines (a share of the mean epoch) are in the scenario's times. With `pace = 0` give a deadline in
  seconds.
- With `pace = 0` a device measures its speed by two epochs before its first training with a time limit.
- Every node reads the data of the scenario and takes its own part, by its number. The server tests models on all
  test samples, which no server of real users has: leave the data out there by `evaluation.every`.
- A node whose label counts have changed since its last answer says so with its next one, if the strategy tests
  for shifts. A ClientApp in a process that stays (the simulation engine, or fedsim's executor) reads its data once.
- A node that is started anew has lost the state of its device, and goes on without it; the log names it.
- Codecs that round at random draw other numbers than in the simulation; the bytes are the same.
{unused}"""
_UNUSED = "- The scenario's {names} do not apply: real nodes are what they are.\n"


def export(
    scenario: Scenario, folder: Path, config: Mapping[str, object] | None = None
) -> list[Path]:
    """Write a scenario as a Flower app.

    Args:
        scenario: the scenario.
        folder: the app's folder, which is created; an existing folder must be empty.
        config: entries of Flower's run configuration that replace the defaults.

    Returns:
        The files that were written.

    Raises:
        ScenarioError: a part of the scenario has no counterpart in a deployment.
        RunFolderError: the folder has files, or is a file.
    """
    reasons = list(refusals(scenario))
    if reasons:
        raise ScenarioError("\n".join(reasons))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{str(folder)!r} exists; give the app a folder of its own")
    modules = list(_own_files(scenario))  # before anything is written, as this may fail
    package = folder / PACKAGE
    texts = {
        folder / "pyproject.toml": tomli_w.dumps(_project(scenario, config or {})),
        folder / "README.md": _readme(scenario),
        package / "__init__.py": f'"""The app {clean(scenario.name)!r}."""\n',
        package / "server.py": _half(scenario, "ServerApp", "server"),
        package / "client.py": _half(scenario, "ClientApp", "client"),
        package / "scenario.toml": _deployed(scenario).to_toml(),
    }
    for root, file in modules:
        texts[package / "own" / file.relative_to(root)] = read_text(file)
    for path, text in texts.items():  # the content of each file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(texts)


def _deployed(scenario: Scenario) -> Scenario:
    """Return a copy of a scenario without the sections that have no effect in a deployment.

    An example is the availability of devices, which is real in a deployment.
    """
    tables = scenario.model_dump(mode="python", exclude_none=True)
    for name in unused(scenario):
        section, _, key = name.partition(".")
        if key:
            tables[section].pop(key)
        else:
            tables.pop(section)
    return Scenario(**tables)


def _project(scenario: Scenario, own_config: Mapping[str, object]) -> dict[str, object]:
    """Return the content of the app's ``pyproject.toml``, with its run configuration."""
    name = re.sub(r"[^a-z0-9]+", "-", scenario.name.lower()).strip("-")
    config: dict[str, object] = {
        "out": "results",
        "min-nodes": 0,
        "patience": 120.0,
        "pace": 0.0,
        "slept": "all",
    }
    config |= own_config
    components = {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"}
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": name or "fedsim-app",
            "version": "1.0.0",
            "description": f"{scenario.strategy.kind} by fedsim",
            "license": "Apache-2.0",
            # Flower would install dependencies, torch among them, anew for each run
            "dependencies": [],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {"app": {"publisher": "fedsim", "components": components, "config": config}},
        },
    }


def _half(scenario: Scenario, title: str, module: str) -> str:
    """Return the text of the app's module ``server`` or ``client``."""
    return _HALF.format(
        title=title, half=f"the {module} half", kind=scenario.strategy.kind, module=module
    )


def _readme(scenario: Scenario) -> str:
    names = ", ".join(f"`{name}`" for name in unused(scenario))
    devices = scenario.population.devices
    return _README.format(
        name=clean(scenario.name),
        version=__version__,
        kind=scenario.strategy.kind,
        package=PACKAGE,
        devices=devices,
        last=devices - 1,
        unused=_UNUSED.format(names=names) if names else "",
    )


def _own_files(scenario: Scenario) -> Iterator[tuple[Path, Path]]:
    """Yield the user's Python files that a scenario needs: modules that it names and their imports.

    Args:
        scenario: the scenario.

    Yields:
        The folder from which a module is imported, and its file. Installed packages are left out.
    """
    module_names = {type(table).__module__ for table in _tables_in(scenario)}
    module_names |= {path.partition(":")[0] for path in _import_paths(scenario)}
    module_names.add(_strategy_module(scenario))
    yielded: set[Path] = set()
    for name in sorted(module_names):
        module = sys.modules.get(name)
        if module is not None:
            yield from _files_of(module, yielded)


def _strategy_module(scenario: Scenario) -> str:
    from fedsim.strategies import strategy_class

    return strategy_class(scenario.strategy.kind).__module__


def _files_of(module: ModuleType, yielded: set[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the file of a user's module, and of each user's module that it imports, once each.

    Args:
        module: the module; nothing is yielded if it is not the user's.
        yielded: files that were yielded before, which are skipped; new ones are added.

    Yields:
        The folder from which a module is imported, and its file.
    """
    file = Path(getattr(module, "__file__", None) or "")
    root = _import_folder(module, file)
    if root is None or file in yielded:
        return
    yielded.add(file)
    yield root, file
    # ``imported``: a module that ``module`` imports, or from which it imports a function or class
    for value in list(vars(module).values()):
        imported = value if isinstance(value, ModuleType) else inspect.getmodule(value)
        if imported is not None and imported is not module:
            yield from _files_of(imported, yielded)


def _import_folder(module: ModuleType, file: Path) -> Path | None:
    """Return the folder from which a user's module is imported; None for any other module.

    A user's module is a Python file below the working directory that is not installed.
    """
    file = file.resolve()
    is_below = file.suffix == ".py" and Path.cwd().resolve() in file.parents
    is_installed = bool({"site-packages", "dist-packages"} & set(file.parts))
    is_fedsims = module.__name__.partition(".")[0] == "fedsim"
    if not is_below or is_installed or is_fedsims:
        return None
    depth = module.__name__.count(".")  # folders between the file and the returned folder
    if file.name == "__init__.py":
        depth += 1
    return file.parents[depth]


def _tables_in(value: object) -> Iterator[BaseModel]:
    """Yield a table of a scenario and all tables within it."""
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _tables_in(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tables_in(item)


def _import_paths(scenario: Scenario) -> Iterator[str]:
    """Yield the import paths of users' code that a scenario names, such as ``mine:Chain``."""
    for part in _tables_in(scenario):
        for name in type(part).model_fields:
            text = getattr(part, name)
            if isinstance(text, str) and re.fullmatch(r"[\w.]+:\w+", text):
                yield text
