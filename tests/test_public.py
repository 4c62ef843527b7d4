"""The public face: what it names, what it costs to import, and which way the arrows run."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import networkx
import pytest

import fedsim
import fedsim.plugin
from tests.test_source import tree_of

PACKAGE = Path(fedsim.__file__).parent
HEAVY = {"torch", "numba", "sklearn", "pandas", "matplotlib", "ray"}


def test_the_face_holds_nothing_that_it_does_not_export() -> None:
    code = (
        "import fedsim.plugin; print(*(name for name in dir(fedsim.plugin) if not "
        "name.startswith('_')))"
    )
    assert sorted(python(code).split()) == sorted(fedsim.plugin.__all__)
    assert {name for names in fedsim._HOMES.values() for name in names} == set(fedsim.__all__)
    for face in (fedsim, fedsim.plugin):
        assert [name for name in face.__all__ if not getattr(face, name).__doc__] == []


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_the_package_is_the_command_line_and_importing_it_costs_little() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedsim", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"fedsim, version {fedsim.__version__}\n"
    count = python(
        "import sys; before = len(sys.modules); import fedsim; print(len(sys.modules) - before)"
    )
    assert int(count) < 300  # torch alone is a thousand


@pytest.mark.parametrize(
    ("do", "heavy"),
    [
        ("fedsim.Scenario()", HEAVY),
        (
            "fedsim.run(fedsim.load('quickstart', ['learning=off', 'stop.rounds=2']), 'run')",
            HEAVY | {"scipy", "networkx"},
        ),
    ],
)
def test_what_is_not_needed_is_not_loaded(do: str, heavy: set[str], tmp_path: Path) -> None:
    modules = python(
        f"import os, sys; os.chdir({str(tmp_path)!r}); import fedsim; {do}; print(*sys.modules)"
    )
    assert not heavy & set(modules.split())


def modules() -> dict[str, Path]:
    # a link, which Python before 3.13 does not follow
    paths = {*PACKAGE.rglob("*.py"), *(PACKAGE / "analysis").rglob("*.py")}
    named = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in paths
    }
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = modules()


@cache
def needs(module: str, types: bool = False) -> set[str]:
    """The modules of the package that one imports: in functions too, and the ``_HOMES`` of names
    that it hands on.

    What is imported for type checking alone is left out, unless ``types``.
    """
    found = set()
    tree = tree_of(MODULES[module].resolve())
    for node in ast.walk(tree) if types else _run_time_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{module} imports by a relative name"
            found |= {
                name if name in MODULES else node.module
                for name in (f"{node.module}.{it.name}" for it in node.names)
            }
        elif isinstance(node, ast.Import):
            found |= {it.name for it in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            found |= {f"{module}.{home}" for home in ast.literal_eval(node.value)}
    return {name for name in found if name in MODULES} - {module}


INNER = ("lab", "toolbox", "world.energy", "world.meters", "learning.data", "running.checkpoint")
"""Rooms whose inner rooms are told apart: all of ``lab`` and ``toolbox``, and some of others."""


def room(module: str) -> str:
    """The room of a module: the folder under ``fedsim``, or an inner room."""
    parts = module.split(".")[1:]
    if not parts:
        return "fedsim"
    inner = ".".join(parts[:2])
    return inner if parts[0] in INNER or inner in INNER else parts[0]


def _run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            nodes += [node for other in child.orelse for node in [other, *_run_time_nodes(other)]]
            continue
        nodes += [child, *_run_time_nodes(child)]
    return nodes


_FEDERATED = "common clock world learning federation"
_LAYERS = {
    "version": "",
    "common": "",
    "clock": "common",
    "world": "common clock world.meters",
    "world.meters": "common clock",
    "world.energy": "common clock world world.meters",
    "learning.data": "common",
    "learning": "common clock learning.data",
    "records": "common clock world.meters",
    "federation": "common clock world learning",
    "strategies": _FEDERATED,
    "flower": f"{_FEDERATED} strategies",
    "toolbox": "",
    "toolbox.aggregation": "common federation learning strategies",
    "toolbox.attacks": "common federation learning",
    "toolbox.clustering": "common",
    "toolbox.codecs": "common federation learning",
    "toolbox.deadlines": "common strategies world",
    "toolbox.models": "common learning learning.data",
    "toolbox.objectives": "common learning learning.data",
    "toolbox.optimizers": "common federation learning strategies",
    "toolbox.partitions": "common learning.data",
    "toolbox.peers": f"{_FEDERATED} strategies",
    "toolbox.ray": "common clock",
    "toolbox.selection": f"{_FEDERATED} strategies",
    "toolbox.shifts": "common learning.data",
    "toolbox.sources": "common learning.data",
    "toolbox.strategies": f"{_FEDERATED} strategies toolbox.aggregation toolbox.clustering toolbox.deadlines "
    "toolbox.selection",
    "toolbox.trainers": "common learning",
    "toolbox.worlds": "common clock world",
    "plugin": f"{_FEDERATED} learning.data records strategies toolbox.attacks toolbox.peers "
    "toolbox.strategies world.meters",
    "running.checkpoint": f"{_FEDERATED} strategies world.energy",
    "running": f"{_FEDERATED} learning.data records running.checkpoint strategies version world.energy "
    "world.meters",
    "deployed": f"{_FEDERATED} records running strategies version",
    "lab": "",
    "lab.reading": "common records",
    "lab.terminal": "common clock records",
    "lab.compare": "common lab.reading records running world.meters",
    "lab.trackers": "common lab.reading records",
    "analysis": "common clock lab.compare lab.reading lab.trackers records running strategies version "
    "world.meters",
    "lab.loading": "analysis common clock lab.reading records running world.meters",
    "lab.audit": "common clock records world.meters",
    "lab.calibrate": "common clock records running world",
    "lab.rehearsal": "analysis clock common deployed lab.calibrate records running version world",
    "lab.model_memory": "common lab.forecast lab.planned_models lab.tally learning learning.data running running.checkpoint",
    "lab.planned_models": "common learning running running.checkpoint",
    "lab.tally": "common lab.planned_models learning",
    "lab.forecast": "common clock lab.planned_models lab.tally lab.terminal learning records running strategies",
    "lab.device_memory": "common running world",
    "lab.whole_forecast": "clock common lab.device_memory lab.forecast lab.model_memory running",
    "lab.study": "analysis common clock lab.compare lab.forecast lab.loading lab.reading lab.terminal "
    "lab.whole_forecast learning.data records running running.checkpoint strategies toolbox.ray world",
    "fedsim": "common clock lab.loading lab.study running version world",
    "lab.audited": "common lab.audit records running version",
    "lab.contract": "common clock fedsim lab.audited learning.data records running",
    "testing": "lab.contract",
    "lab.newcomer": "common world",
    "lab.fetching": "common records version",
    "lab.bench": "common lab.compare lab.reading lab.study records running version",
    "lab.catalogue": "common clock federation lab.study learning learning.data running strategies "
    "toolbox.clustering "
    "toolbox.worlds world world.energy world.meters",
    "cli": "analysis common clock deployed lab.audit lab.audited lab.bench lab.calibrate lab.catalogue "
    "lab.compare lab.fetching lab.forecast lab.whole_forecast "
    "lab.loading lab.newcomer lab.reading lab.rehearsal lab.study lab.terminal lab.trackers records running "
    "version",
    "__main__": "cli",
}
"""The rooms that each room imports at most, lower ones first."""
LAYERS = {room: set(needs.split()) for room, needs in _LAYERS.items()}


def test_arrows_run_one_way() -> None:
    assert set(LAYERS) == {room(module) for module in MODULES}
    for module in MODULES:
        for needed in needs(module):
            assert room(needed) in LAYERS[room(module)] | {room(module)}, (
                f"{module} imports {needed}"
            )


def test_no_two_parts_need_each_other() -> None:
    """Each module, types included, and each room can be read after those that it imports,
    wherever it does so.
    """
    modules = networkx.DiGraph({module: needs(module, types=True) for module in MODULES})
    rooms = networkx.DiGraph(
        [(room(module), room(other)) for module in MODULES for other in needs(module)]
    )
    for graph in (modules, rooms):
        assert [
            sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1
        ] == []


def test_nothing_but_fedsim_is_installed_with_the_pictures_and_every_scenario_within_it() -> None:
    setuptools = pytest.importorskip("setuptools")
    told = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = setuptools.find_packages(
        str(PACKAGE.parent), include=told["packages"]["find"]["include"]
    )
    assert {name.split(".")[0] for name in packages} == {"fedsim"}
    assert "fedsim.analysis.report" in packages
    installed = {
        path.relative_to(PACKAGE / "running/scenarios").as_posix()
        for path in PACKAGE.glob("running/scenarios/**/*")
    }
    assert "running/scenarios/**/*" in told["package-data"]["fedsim"]
    there = {
        path.relative_to(PACKAGE.parent / "scenarios").as_posix()
        for path in (PACKAGE.parent / "scenarios").rglob("*.*")
    }
    assert there <= installed
